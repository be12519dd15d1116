//! Where a session's time goes: a closed list of causes and a sum of microseconds for each.

/// What a session is waiting for. At any moment it is exactly one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Being prepared: a browser context, a tab, the start page.
    Boot,
    /// A screenshot is taken and encoded.
    Observe,
    /// The policy is thinking: from the observation sent to the reply read.
    Policy,
    /// Input is delivered to the page.
    Act,
    /// The page settles.
    Settle,
    /// The coordinator makes a step durable.
    Record,
    /// Evidence is gathered and the browser context thrown away.
    Finish,
}

/// Microseconds by cause. The parts always add up to the whole: there is no other way to add time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeSplit {
    micros: [u64; Cause::ALL.len()],
}

impl Cause {
    /// All causes, in the order of the columns.
    pub const ALL: [Cause; 7] =
        [Cause::Boot, Cause::Observe, Cause::Policy, Cause::Act, Cause::Settle, Cause::Record, Cause::Finish];

    /// The word in columns and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Boot => "boot",
            Cause::Observe => "observe",
            Cause::Policy => "policy",
            Cause::Act => "act",
            Cause::Settle => "settle",
            Cause::Record => "record",
            Cause::Finish => "finish",
        }
    }
}

impl TimeSplit {
    /// Adds time to one cause.
    pub fn add(&mut self, cause: Cause, micros: u64) {
        self.micros[cause as usize] += micros;
    }

    /// Adds another split, part by part.
    pub fn merge(&mut self, other: &TimeSplit) {
        for (mine, theirs) in self.micros.iter_mut().zip(other.micros) {
            *mine += theirs;
        }
    }

    /// Time of one cause.
    pub fn of(&self, cause: Cause) -> u64 {
        self.micros[cause as usize]
    }

    /// Time of all causes together.
    pub fn total(&self) -> u64 {
        self.micros.iter().sum()
    }
}
