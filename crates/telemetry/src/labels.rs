//! The closed sets that metrics are broken down by. Ids, hosts and texts go to the log, never here.

use furrow_rollout::{EndKind, OutcomeName, TimeCause};

/// A closed set of label values: each metric broken down by it has exactly one cell per value.
pub trait Label: Copy + 'static {
    /// Name of the label, such as `end` or `cause`.
    const NAME: &'static str;
    /// All values; `ALL[i].index() == i`.
    const ALL: &'static [Self];

    /// The label value in logs and metrics.
    fn value(self) -> &'static str;

    fn index(self) -> usize;
}

macro_rules! labels {
    ($($(#[$doc:meta])* $type:ident as $name:literal {
        $($(#[$variant_doc:meta])* $variant:ident = $value:literal),* $(,)?
    })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $type { $($(#[$variant_doc])* $variant),* }

        impl Label for $type {
            const NAME: &'static str = $name;
            const ALL: &'static [Self] = &[$($type::$variant),*];

            fn value(self) -> &'static str {
                match self { $($type::$variant => $value),* }
            }

            fn index(self) -> usize {
                self as usize
            }
        }
    )*};
}

labels! {
    /// What a process does in the farm; also the name of its log file.
    Role as "role" {
        /// Everything in one process: `furrow run`.
        Run = "run",
        /// A coordinator alone: `furrow coordinator`.
        Coordinator = "coordinator",
        /// An environment worker alone.
        Env = "env",
        /// A policy worker alone.
        Policy = "policy",
        /// Any other command, such as `furrow replay`.
        Tool = "tool",
    }

    /// The kind of a worker.
    WorkerKind as "kind" {
        Env = "env",
        Policy = "policy",
    }

    /// Why the coordinator assigns nothing at the moment.
    PauseReason as "reason" {
        /// More trajectories would be too many versions behind: accepted + running has reached what
        /// the published version allows.
        OffPolicy = "off_policy",
        /// Free disk is down to the reserve.
        DiskReserve = "disk_reserve",
        /// Too many trajectories wait for scoring or for a commit.
        Backlog = "backlog",
        /// No policy worker is registered, or none of them runs the weights in use.
        NoPolicyWorker = "no_policy_worker",
        /// The budget of failures is spent.
        FailureBudget = "failure_budget",
    }

    /// Why a slot of an environment worker has no trajectory.
    IdleCause as "cause" {
        /// Browsers are being started.
        Starting = "starting",
        /// The coordinator has nothing to assign.
        NoAssignment = "no_assignment",
        /// The coordinator cannot be reached.
        NoCoordinator = "no_coordinator",
        /// The worker admits no more at the moment: memory or CPU are short.
        Admission = "admission",
        /// The worker is stopping.
        Draining = "draining",
    }

    /// What a slot of an environment worker is used for: a trajectory, or nothing for the
    /// [`IdleCause`] of the same name.
    SlotUse as "use" {
        /// A trajectory is in it; [`TimeCause`] says what it waits for.
        Busy = "busy",
        Starting = "starting",
        NoAssignment = "no_assignment",
        NoCoordinator = "no_coordinator",
        Admission = "admission",
        Draining = "draining",
    }

    /// What a policy worker's device does.
    DeviceUse as "use" {
        /// Computes and samples the next token of sequences.
        Decode = "decode",
        Prefill = "prefill",
        /// Encodes tiles of screenshots.
        Vision = "vision",
        /// Copies states: forks, snapshots, to host memory and back.
        Copy = "copy",
        /// Loads new weights, and swaps them in between two batches.
        Weights = "weights",
        /// Idle without work: every session waits for its page.
        NoWork = "no_work",
        /// Idle: steps wait, and none has an allocation.
        NoCapacity = "no_room",
        /// Idle: the engine plans the next batch or processes sampled tokens.
        Host = "host",
    }

    /// How a browser was lost.
    BrowserDeath as "death" {
        /// Its process ended by itself.
        Exited = "exited",
        Disconnected = "disconnected",
        /// It stopped answering and was killed.
        Unresponsive = "unresponsive",
        /// It passed its memory limit and was killed.
        OverMemory = "over_memory",
        /// It passed its limit of threads and was killed.
        OverThreads = "over_threads",
        /// It did not start in time.
        StartFailed = "start_failed",
    }

    /// A resource with a limit for all processes of a browser together.
    BrowserLimit as "limit" {
        /// Bytes of memory: `env.browser_memory_bytes_max`.
        Memory = "memory",
        /// Number of threads: `env.browser_threads_max`.
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
        /// The filter cannot parse the HTTP.
        Malformed = "malformed",
        /// Neither the port of http nor that of https.
        Port = "port",
        /// The trajectory has received as many bytes as allowed.
        TooMuch = "too_much",
    }

    /// How a session at a policy worker ended.
    SessionEnd as "end" {
        /// The environment worker closed it.
        Closed = "closed",
        /// Its stream ended before the environment worker closed it.
        Disconnected = "disconnected",
        /// Neither side sent a message for too long.
        IdleTooLong = "idle_too_long",
        /// The other side broke the protocol.
        Refused = "refused",
        /// The policy failed in this session.
        PolicyFault = "policy_fault",
        /// The device or the engine failed; the session can continue at another worker.
        WorkerLost = "worker_lost",
        /// The worker is stopping.
        Draining = "draining",
    }
}

macro_rules! domain_labels {
    ($($type:ident as $name:literal),*) => {$(
        impl Label for $type {
            const NAME: &'static str = $name;
            const ALL: &'static [Self] = &$type::ALL;

            fn value(self) -> &'static str {
                self.as_str()
            }

            fn index(self) -> usize {
                self as usize
            }
        }
    )*};
}

domain_labels!(EndKind as "end", TimeCause as "cause", OutcomeName as "outcome");

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
        for (index, label) in L::ALL.iter().enumerate() {
            assert_eq!(label.index(), index, "{} {}", L::NAME, label.value());
            let plain = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(label.value().chars().all(plain), "{} {:?}", L::NAME, label.value());
        }
        let values: BTreeSet<_> = L::ALL.iter().map(|label| label.value()).collect();
        assert_eq!(values.len(), L::ALL.len(), "{}: two values have the same name", L::NAME);
    }

    #[test]
    fn each_label_has_one_value_and_one_cell() {
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
        check::<EndKind>();
        check::<TimeCause>();
        check::<OutcomeName>();
    }

    #[test]
    fn every_idle_cause_keeps_its_value_as_a_slot_use() {
        for cause in IdleCause::ALL {
            assert_eq!(SlotUse::from(*cause).value(), cause.value());
        }
    }
}
