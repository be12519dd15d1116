//! What goes wrong in a run, drawn from its seed.

use std::fmt;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::ChaCha12Rng;

/// The kinds of faults, for the table of what a number of runs went through.
pub(crate) const KINDS: [&str; 6] =
    ["cut", "cut one way", "held back", "slow", "worker crashed", "coordinator crashed"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NetworkFault {
    /// No message passes between two hosts; what is under way is lost.
    Cut(String, String),
    /// None passes from the first to the second.
    CutOneWay(String, String),
    /// Messages wait, and arrive together at the end.
    HoldBack(String, String),
    /// Messages take up to this long.
    Slow(Duration),
    /// A host dies with all that it did not write, and starts again at the end.
    Crash(String),
}

/// A fault and its time.
#[derive(Debug, Clone)]
pub(crate) struct PlannedFault {
    pub begins: Duration,
    pub ends: Duration,
    pub fault: NetworkFault,
}

impl NetworkFault {
    /// Its number in [`KINDS`].
    pub(crate) fn kind(&self) -> usize {
        match self {
            NetworkFault::Cut(..) => 0,
            NetworkFault::CutOneWay(..) => 1,
            NetworkFault::HoldBack(..) => 2,
            NetworkFault::Slow(_) => 3,
            NetworkFault::Crash(host) if host != crate::farm::COORDINATOR => 4,
            NetworkFault::Crash(_) => 5,
        }
    }
}

impl fmt::Display for PlannedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>6} to {:>6} ms: {:?}", self.begins.as_millis(), self.ends.as_millis(), self.fault)
    }
}

/// Faults between `from` and `until`, one after another; each may be longer than the next one's
/// start.
pub(crate) fn plan(
    chance: &mut ChaCha12Rng,
    hosts: &[String],
    from: Duration,
    until: Duration,
) -> Vec<PlannedFault> {
    let mut faults = Vec::new();
    let mut begins = from;
    while begins < until {
        let lasts = match chance.random_range(0..4) {
            0 => chance.random_range(5_000..25_000), // longer than keepalives and leases
            _ => chance.random_range(20..4_000),
        };
        let fault = one(chance, hosts);
        faults.push(PlannedFault { begins, ends: begins + Duration::from_millis(lasts), fault });
        begins += Duration::from_millis(chance.random_range(100..3_000));
    }
    faults
}

fn one(chance: &mut ChaCha12Rng, hosts: &[String]) -> NetworkFault {
    let pair = loop {
        let [first, second] = [0, 1].map(|_| &hosts[chance.random_range(0..hosts.len())]);
        let role = |host: &String| host.split('-').next().map(str::to_owned);
        // Workers of one role have nothing to say to each other.
        if role(first) != role(second) {
            break (first.clone(), second.clone());
        }
    };
    match chance.random_range(0..8) {
        0 | 1 => NetworkFault::Cut(pair.0, pair.1),
        2 => NetworkFault::CutOneWay(pair.0, pair.1),
        3 => NetworkFault::HoldBack(pair.0, pair.1),
        4 => NetworkFault::Slow(Duration::from_millis(chance.random_range(50..2_000))),
        5 => NetworkFault::Crash(crate::farm::COORDINATOR.to_owned()),
        _ => NetworkFault::Crash(pair.0),
    }
}
