//! One attempt at a slot: its assignment, its end and its record.

use crate::{
    Evidence, Group, Id, Outcome, PolicyKind, Run, Score, SessionSpec, Size, Task, TimeSplit, Trajectory,
};

/// A trajectory leased to an environment worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Assignment {
    /// The run, group and slot of the trajectory.
    pub ancestry: TrajectoryAncestry,
    /// Fencing token: every call about the trajectory carries it, and a call with an older one is
    /// refused.
    pub token: u64,
    /// Milliseconds that the lease lasts without a renewal.
    pub lease_millis: u64,
    /// The task to attempt.
    pub task: Task,
    /// How the policy parses replies, samples and keeps context.
    pub session: SessionSpec,
    /// Address of the policy worker to use, as `host:port`.
    pub policy_address: String,
}

/// The run, group and slot that a trajectory belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrajectoryAncestry {
    /// The execution of a job that the trajectory is recorded in.
    pub run_id: Id<Run>,
    /// The group whose trajectories share its task and seed.
    pub group_id: Id<Group>,
    /// Slot within the group, from 0.
    pub sample_index: u32,
    /// Attempt at the slot, from 0.
    pub attempt: u32,
    /// Identifier of the trajectory.
    pub trajectory_id: Id<Trajectory>,
}

/// How a trajectory ended. The first seven are the policy's responsibility (scored), the others the
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
    /// The trajectory is no longer needed, or its time limit passed.
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

/// An environment worker's report when a trajectory is over.
#[derive(Debug, Clone, PartialEq)]
pub struct TrajectoryEnding {
    /// The end that the environment worker reports; the coordinator decides whose fault it is.
    pub end: EndKind,
    /// The reason in one sentence, where the name of the end is not sufficient.
    pub reason: String,
    /// The final state; an end of the policy without evidence becomes `page_crash`.
    pub evidence: Option<Evidence>,
    /// The instruction that the policy received (the page's own if the task had none).
    pub goal: String,
    /// Number of recorded steps.
    pub steps: u32,
    /// Outcome of the last action, if that action was not a step of its own.
    pub last_outcome: Option<Outcome>,
    /// Where the trajectory's time went in the environment worker; sums to its whole duration
    /// there.
    pub timing: TimeSplit,
    /// The environment that the trajectory ran in.
    pub environment: EnvironmentFingerprint,
}

/// The environment that a trajectory ran in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EnvironmentFingerprint {
    /// Name of the environment worker.
    pub worker: String,
    /// Browser product and version.
    pub browser: String,
    /// Whether the renderer's sandbox is on.
    pub sandbox: bool,
    /// Language of the context.
    pub locale: String,
    /// Time zone of the context.
    pub timezone: String,
    /// Viewport of the pages.
    pub viewport: Option<Size>,
}

/// Whether a trajectory counts for training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TrajectoryStatus {
    /// A scorer received its end.
    Scored,
    /// It ended through the farm's fault.
    Failed,
}

/// Hashes of all parts of a policy, as hexadecimal SHA-256; `None` for a part that the policy does
/// not have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PolicyHashes {
    /// Hash of all weights, with deltas and adapters applied.
    pub weights: Option<String>,
    /// Hash of the file tokenizer.json, byte by byte.
    pub tokenizer: Option<String>,
    /// Hash of the chat template as compact JSON, after defaults are filled in.
    pub template: Option<String>,
    /// The action grammar and its extra actions.
    pub grammar: Option<String>,
    /// The image processor's settings.
    pub processor: Option<String>,
}

/// One row of the table `trajectories`.
#[derive(Debug, Clone, PartialEq)]
pub struct TrajectoryRecord {
    /// The run, group and slot of the trajectory.
    pub ancestry: TrajectoryAncestry,
    /// The task as assigned.
    pub task: Task,
    /// The task's whole line in its file, so that the trajectory can be scored again without the
    /// file.
    pub task_json: String,
    /// Kind of policy that made the steps.
    pub policy_kind: PolicyKind,
    /// Whether the trajectory counts for training.
    pub status: TrajectoryStatus,
    /// How it ended, with the evidence.
    pub ending: TrajectoryEnding,
    /// The scorer's result; present exactly if the status is scored.
    pub score: Option<Score>,
    /// Oldest and newest policy version among its tokens.
    pub policy_versions: Option<(i32, i32)>,
    /// Number of weight versions published between its start and its end.
    pub staleness: Option<i32>,
    /// Hashes of the policy's parts.
    pub hashes: PolicyHashes,
    /// Session settings that it ran with.
    pub session: SessionSpec,
    /// Number of slots planned in its group.
    pub group_size: u32,
    /// Fencing token under which it finished.
    pub token: u64,
    /// Time from the slot being free to start until the lease.
    pub queue_micros: u64,
    /// Time spent on scoring.
    pub score_micros: u64,
    /// Device time of all steps.
    pub gpu_micros: u64,
    /// Prompt tokens of all steps.
    pub prompt_tokens: u64,
    /// Response tokens of all steps.
    pub response_tokens: u64,
    /// Number of replies without an action.
    pub invalid_actions: u32,
    /// Cost in US dollars, if a price is known.
    pub cost_usd: Option<f64>,
    /// Wall clock at the lease, in microseconds since the Unix epoch.
    pub started_at_micros: i64,
    /// Wall clock when the coordinator acknowledged the end.
    pub ended_at_micros: i64,
}

impl EndKind {
    /// Every end in the order of declaration: `ALL[i] as usize` is `i`, which labels of metrics
    /// need.
    pub const ALL: [EndKind; 16] = [
        EndKind::Answered,
        EndKind::Done,
        EndKind::MaxSteps,
        EndKind::ContextFull,
        EndKind::Unparsable,
        EndKind::OffListNavigation,
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
            | EndKind::OffListNavigation => FaultOwner::Policy,
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

impl TrajectoryStatus {
    /// The status's name in columns.
    pub fn as_str(self) -> &'static str {
        match self {
            TrajectoryStatus::Scored => "scored",
            TrajectoryStatus::Failed => "failed",
        }
    }
}
