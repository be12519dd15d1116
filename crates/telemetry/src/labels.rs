//! The closed sets that figures are broken down by. Ids, hosts and texts go to the log, never here.

use furrow_rollout::{Cause, End, OutcomeName};

/// A closed set of words: each metric broken down by it has exactly one cell a word.
pub trait Label: Copy + 'static {
    /// What the words say, such as `end` or `cause`.
    const NAME: &'static str;
    /// All of them; `ALL[i].index() == i`.
    const ALL: &'static [Self];

    /// The word in logs and metrics.
    fn word(self) -> &'static str;

    /// Its place in [`Label::ALL`].
    fn index(self) -> usize;
}

macro_rules! labels {
    ($($(#[$doc:meta])* $type:ident as $name:literal {
        $($(#[$variant_doc:meta])* $variant:ident = $word:literal),* $(,)?
    })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $type { $($(#[$variant_doc])* $variant),* }

        impl Label for $type {
            const NAME: &'static str = $name;
            const ALL: &'static [Self] = &[$($type::$variant),*];

            fn word(self) -> &'static str {
                match self { $($type::$variant => $word),* }
            }

            fn index(self) -> usize {
                self as usize
            }
        }
    )*};
}

labels! {
    /// What a process does in the farm. Names its log file.
    Role as "role" {
        /// Everything in one process: `furrow run`.
        Run = "run",
        /// The coordinator alone.
        Coordinator = "coordinator",
        /// An environment worker alone.
        Env = "env",
        /// A policy worker alone.
        Policy = "policy",
        /// Any other command, such as `furrow bench`.
        Tool = "tool",
    }

    /// Which of the two kinds of worker.
    WorkerKind as "kind" {
        /// Runs browsers.
        Env = "env",
        /// Runs a policy.
        Policy = "policy",
    }

    /// Why the coordinator assigns nothing for now.
    PauseReason as "reason" {
        /// More would be too many versions behind: accepted + running has reached what the published version allows.
        OffPolicy = "off_policy",
        /// The disk is down to its reserve.
        DiskReserve = "disk_reserve",
        /// Too much is waiting to be scored or published.
        Backlog = "backlog",
        /// No policy worker is registered, or none of them runs the weights in use.
        NoPolicyWorker = "no_policy_worker",
        /// The budget of failures is spent.
        FailureBudget = "failure_budget",
    }

    /// Why a slot of an environment worker holds no trajectory.
    IdleCause as "cause" {
        /// Browsers are being started.
        Starting = "starting",
        /// The coordinator has nothing to assign.
        NoAssignment = "no_assignment",
        /// The coordinator cannot be reached.
        NoCoordinator = "no_coordinator",
        /// The worker admits no more for now: memory or CPU are short.
        Admission = "admission",
        /// The worker is stopping.
        Draining = "draining",
    }

    /// What a slot of an environment worker is used for.
    SlotUse as "use" {
        /// A trajectory is in it; [`Cause`] says what that waits for.
        Busy = "busy",
        /// Idle, [`IdleCause::Starting`].
        Starting = "starting",
        /// Idle, [`IdleCause::NoAssignment`].
        NoAssignment = "no_assignment",
        /// Idle, [`IdleCause::NoCoordinator`].
        NoCoordinator = "no_coordinator",
        /// Idle, [`IdleCause::Admission`].
        Admission = "admission",
        /// Idle, [`IdleCause::Draining`].
        Draining = "draining",
    }

    /// What a policy worker's device does.
    DeviceUse as "use" {
        /// Computes the next token of sequences, and draws it.
        Decode = "decode",
        /// Reads prompts.
        Prefill = "prefill",
        /// Encodes tiles of screenshots.
        Vision = "vision",
        /// Copies states: forks, snapshots, to host memory and back.
        Copy = "copy",
        /// Takes new weights.
        Weights = "weights",
        /// Idle: nothing is asked for, every session waits for its page.
        NoWork = "no_work",
        /// Idle: steps wait, and none has a place.
        NoRoom = "no_room",
        /// Idle: the engine plans the next batch or takes in what was drawn.
        Host = "host",
    }

    /// How a browser was lost.
    BrowserDeath as "death" {
        /// Its process ended by itself.
        Exited = "exited",
        /// Its connection broke.
        Disconnected = "disconnected",
        /// It stopped answering and was killed.
        Unresponsive = "unresponsive",
        /// It passed its memory limit and was killed.
        OverMemory = "over_memory",
        /// It passed its limit of threads and was killed.
        OverThreads = "over_threads",
        /// It did not come up in time.
        StartFailed = "start_failed",
    }

    /// What a browser, all its processes together, may take only so much of.
    BrowserLimit as "limit" {
        /// Bytes.
        Memory = "memory",
        /// Threads.
        Threads = "threads",
    }

    /// Why a request of a page was refused.
    BlockReason as "reason" {
        /// The host is not on the task's list.
        OffList = "off_list",
        /// The address is private, loopback, link-local or a metadata service.
        PrivateAddress = "private_address",
        /// Neither http nor https.
        Scheme = "scheme",
        /// The name does not resolve.
        Unresolved = "unresolved",
        /// No HTTP that the filter understands.
        Malformed = "malformed",
        /// Neither the port of http nor that of https.
        Port = "port",
        /// The trajectory was sent as much as it may be.
        TooMuch = "too_much",
    }

    /// How a session at a policy worker ended.
    SessionEnd as "end" {
        /// The environment worker closed it.
        Closed = "closed",
        /// Its stream broke.
        Disconnected = "disconnected",
        /// Nobody spoke for too long.
        IdleTooLong = "idle_too_long",
        /// The other side broke the protocol.
        Refused = "refused",
        /// The policy failed in this session.
        PolicyFault = "policy_fault",
        /// The device or the engine failed; the session can go on at another worker.
        WorkerLost = "worker_lost",
        /// The worker is stopping.
        Draining = "draining",
    }
}

macro_rules! nouns {
    ($($type:ident as $name:literal),*) => {$(
        impl Label for $type {
            const NAME: &'static str = $name;
            const ALL: &'static [Self] = &$type::ALL;

            fn word(self) -> &'static str {
                self.as_str()
            }

            fn index(self) -> usize {
                self as usize
            }
        }
    )*};
}

nouns!(End as "end", Cause as "cause", OutcomeName as "outcome");

impl From<IdleCause> for SlotUse {
    fn from(cause: IdleCause) -> Self {
        match cause {
            IdleCause::Starting => SlotUse::Starting,
            IdleCause::NoAssignment => SlotUse::NoAssignment,
            IdleCause::NoCoordinator => SlotUse::NoCoordinator,
            IdleCause::Admission => SlotUse::Admission,
            IdleCause::Draining => SlotUse::Draining,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[track_caller]
    fn check<L: Label>() {
        for (place, label) in L::ALL.iter().enumerate() {
            assert_eq!(label.index(), place, "{} {}", L::NAME, label.word());
            let plain = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(label.word().chars().all(plain), "{} {:?}", L::NAME, label.word());
        }
        let words: BTreeSet<_> = L::ALL.iter().map(|label| label.word()).collect();
        assert_eq!(words.len(), L::ALL.len(), "{}: a word names two things", L::NAME);
    }

    #[test]
    fn each_label_has_one_word_and_one_cell() {
        check::<Role>();
        check::<WorkerKind>();
        check::<PauseReason>();
        check::<IdleCause>();
        check::<SlotUse>();
        check::<DeviceUse>();
        check::<BrowserDeath>();
        check::<BrowserLimit>();
        check::<BlockReason>();
        check::<SessionEnd>();
        check::<End>();
        check::<Cause>();
        check::<OutcomeName>();
    }

    #[test]
    fn every_idle_cause_keeps_its_word_as_a_use_of_a_slot() {
        for cause in IdleCause::ALL {
            assert_eq!(SlotUse::from(*cause).word(), cause.word());
        }
    }
}
