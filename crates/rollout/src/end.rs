//! How a trajectory ends, and who is responsible.

/// How a trajectory ended. The first nine are the policy's responsibility (scored), the others the
/// farm's (retried).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EndKind {
    /// The policy gave an answer, which ends the trajectory.
    Answered,
    /// The page reported that the task is over.
    Done,
    /// The trajectory reached the step limit.
    MaxSteps,
    /// The model's context is full.
    ContextFull,
    /// Too many replies in a row contained no action.
    Unparsable,
    /// The policy asked for an address that is not on the task's list.
    OffListNavigation,
    /// The time limit passed, most of it in the policy's own actions.
    MaxTime,
    /// After the policy's action a script of the task's own pages ran without end.
    ScriptLoop,
    /// The page stopped answering. Attributed to the farm the first time, to the policy when it
    /// recurs.
    PageHang,
    /// The environment worker failed.
    EnvCrash,
    /// The browser's process died or was killed, with every trajectory in it.
    BrowserDead,
    /// The page's renderer process died.
    PageCrash,
    /// The site refused to serve the page.
    Blocked,
    /// The environment worker stopped renewing its lease.
    LeaseLost,
    /// The policy worker failed.
    PolicyFault,
    /// The scorer reached no verdict.
    ScorerError,
    /// The trajectory is no longer needed, or its time limit passed by the farm's doing.
    Cancelled,
    /// The coordinator's disk damaged its acknowledged steps or its ending.
    RecordLost,
}

/// Who is responsible for an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultOwner {
    /// The policy: the trajectory is scored and trainable.
    Policy,
    /// The farm: the trajectory is excluded and retried within a budget.
    Farm,
}

impl EndKind {
    /// Every end in the order of declaration: `ALL[i] as usize` is `i`, which labels of metrics
    /// need.
    pub const ALL: [EndKind; 18] = [
        EndKind::Answered,
        EndKind::Done,
        EndKind::MaxSteps,
        EndKind::ContextFull,
        EndKind::Unparsable,
        EndKind::OffListNavigation,
        EndKind::MaxTime,
        EndKind::ScriptLoop,
        EndKind::PageHang,
        EndKind::EnvCrash,
        EndKind::BrowserDead,
        EndKind::PageCrash,
        EndKind::Blocked,
        EndKind::LeaseLost,
        EndKind::PolicyFault,
        EndKind::ScorerError,
        EndKind::Cancelled,
        EndKind::RecordLost,
    ];

    /// The end's name in columns and on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            EndKind::Answered => "answered",
            EndKind::Done => "done",
            EndKind::MaxSteps => "max_steps",
            EndKind::ContextFull => "context_full",
            EndKind::Unparsable => "unparsable",
            EndKind::OffListNavigation => "off_list_navigation",
            EndKind::MaxTime => "max_time",
            EndKind::ScriptLoop => "script_loop",
            EndKind::PageHang => "page_hang",
            EndKind::EnvCrash => "env_crash",
            EndKind::BrowserDead => "browser_dead",
            EndKind::PageCrash => "page_crash",
            EndKind::Blocked => "blocked",
            EndKind::LeaseLost => "lease_lost",
            EndKind::PolicyFault => "policy_fault",
            EndKind::ScorerError => "scorer_error",
            EndKind::Cancelled => "cancelled",
            EndKind::RecordLost => "record_lost",
        }
    }

    /// Parses what `as_str` returns.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|end| end.as_str() == name)
    }

    /// Who is responsible for the end. `hung_before`: an earlier attempt at the slot ended in
    /// `page_hang`.
    pub fn fault(self, hung_before: bool) -> FaultOwner {
        match self {
            EndKind::Answered
            | EndKind::Done
            | EndKind::MaxSteps
            | EndKind::ContextFull
            | EndKind::Unparsable
            | EndKind::OffListNavigation
            | EndKind::MaxTime
            | EndKind::ScriptLoop => FaultOwner::Policy,
            EndKind::PageHang if hung_before => FaultOwner::Policy,
            _ => FaultOwner::Farm,
        }
    }

    /// Whether the policy itself ended the trajectory (RLDS: `is_terminal`), rather than a limit
    /// (`is_truncated`).
    pub fn is_terminal(self) -> bool {
        matches!(
            self,
            EndKind::Answered
                | EndKind::Done
                | EndKind::Unparsable
                | EndKind::OffListNavigation
                | EndKind::ScriptLoop
                | EndKind::PageHang
        )
    }
}

impl FaultOwner {
    /// The name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            FaultOwner::Policy => "policy",
            FaultOwner::Farm => "farm",
        }
    }

    /// Parses what `as_str` returns.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Policy, Self::Farm].into_iter().find(|fault| fault.as_str() == name)
    }
}
