//! Where a session's time goes: a closed list of causes and a sum of microseconds for each.

/// What a session is waiting for. At any moment exactly one of these applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TimeCause {
    /// Preparation: a browser context, a tab, the start page.
    Boot,
    /// A screenshot is taken and encoded.
    Observe,
    /// The policy computes: from sending the observation to reading the reply.
    Policy,
    /// Input is delivered to the page.
    Act,
    /// The page settles after an action: it loads, answers requests or changes its document.
    Settle,
    /// The coordinator makes a step durable.
    Record,
    /// Evidence is gathered and the browser context is disposed of.
    Finish,
}

/// Microseconds by cause. The parts always add up to the total: there is no other way to add time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeSplit {
    micros: [u64; TimeCause::ALL.len()],
}

impl TimeCause {
    /// All causes, in the order of the columns.
    pub const ALL: [TimeCause; 7] = [
        TimeCause::Boot,
        TimeCause::Observe,
        TimeCause::Policy,
        TimeCause::Act,
        TimeCause::Settle,
        TimeCause::Record,
        TimeCause::Finish,
    ];

    /// The cause's name in columns and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            TimeCause::Boot => "boot",
            TimeCause::Observe => "observe",
            TimeCause::Policy => "policy",
            TimeCause::Act => "act",
            TimeCause::Settle => "settle",
            TimeCause::Record => "record",
            TimeCause::Finish => "finish",
        }
    }
}

impl TimeSplit {
    /// Adds time to one cause.
    pub fn add(&mut self, cause: TimeCause, micros: u64) {
        self.micros[cause as usize] += micros;
    }

    /// Adds another split, part by part.
    pub fn merge(&mut self, other: &TimeSplit) {
        for (mine, theirs) in self.micros.iter_mut().zip(other.micros) {
            *mine += theirs;
        }
    }

    /// Microseconds of one cause.
    pub fn of(&self, cause: TimeCause) -> u64 {
        self.micros[cause as usize]
    }

    /// Microseconds of all causes together.
    pub fn total(&self) -> u64 {
        self.micros.iter().sum()
    }
}
