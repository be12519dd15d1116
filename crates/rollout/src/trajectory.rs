//! One attempt at a slot: how it is lent, how it ends, what is written of it.

use crate::{
    Evidence, Group, Id, Outcome, PolicyKind, Run, Score, SessionSpec, Size, Task, TimeSplit, Trajectory,
};

/// A trajectory lent to an environment worker for a while.
#[derive(Debug, Clone, PartialEq)]
pub struct Assignment {
    /// Where the trajectory belongs.
    pub ancestry: Ancestry,
    /// Fencing token: calls about the trajectory must carry it, an older one is refused.
    pub token: u64,
    /// How long the lease lasts without a renewal.
    pub lease_millis: u64,
    /// What to do.
    pub task: Task,
    /// How the policy speaks, samples and remembers.
    pub session: SessionSpec,
    /// Policy worker to talk to, `host:port`.
    pub policy_address: String,
}

/// Where a trajectory belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ancestry {
    /// Run.
    pub run_id: Id<Run>,
    /// Group.
    pub group_id: Id<Group>,
    /// Slot within the group, from 0.
    pub sample_index: u32,
    /// Attempt at the slot, from 0.
    pub attempt: u32,
    /// The trajectory.
    pub trajectory_id: Id<Trajectory>,
}

/// How a trajectory ended. The first seven are the policy's own (scored), the others the farm's (retried).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum End {
    /// The policy answered.
    Answered,
    /// The page said the task is over.
    Done,
    /// The step limit.
    MaxSteps,
    /// The model's context is full.
    ContextFull,
    /// Too many replies in a row held no action.
    Unparsable,
    /// The policy asked for an address that is not on the task's list.
    OffListNavigation,
    /// The page stopped answering. The farm's the first time, the policy's own when it recurs.
    PageHang,
    /// The environment worker failed.
    EnvCrash,
    /// The browser died.
    BrowserDead,
    /// The page's process died.
    PageCrash,
    /// The site refused to serve us.
    Blocked,
    /// The environment worker went silent.
    LeaseLost,
    /// The policy worker failed.
    PolicyFault,
    /// The scorer came to no verdict.
    ScorerError,
    /// Nobody needs it any more, or its time limit passed.
    Cancelled,
    /// Its acknowledged steps or its ending were damaged on the coordinator's disk.
    RecordLost,
}

/// Whose doing an end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The policy's own: scored, trainable.
    Policy,
    /// The farm's: excluded, retried within a budget.
    Farm,
}

/// What an environment worker reports when a trajectory is over.
#[derive(Debug, Clone, PartialEq)]
pub struct Ending {
    /// How it ended.
    pub end: End,
    /// Why, in a sentence, where the name does not say it.
    pub reason: String,
    /// What was seen at the end; a policy's own end without it becomes `page_crash`.
    pub evidence: Option<Evidence>,
    /// The instruction that was given (the page's own where the task had none).
    pub goal: String,
    /// Steps recorded before it.
    pub steps: u32,
    /// What came of the last thing tried, when that was no step of its own.
    pub last_outcome: Option<Outcome>,
    /// Where the whole trajectory's time went in the environment worker; sums to its life there.
    pub timing: TimeSplit,
    /// The place it was acted in.
    pub environment: EnvironmentFingerprint,
}

/// The place a trajectory was acted in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EnvironmentFingerprint {
    /// Environment worker.
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

/// Whether a trajectory counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// A scorer saw its end.
    Scored,
    /// It ended by the farm's fault.
    Failed,
}

/// Hashes of everything a policy is made of, empty where it has no such part. Hexadecimal SHA-256.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hashes {
    /// Weights.
    pub weights: Option<String>,
    /// tokenizer.json.
    pub tokenizer: Option<String>,
    /// Chat template.
    pub template: Option<String>,
    /// Action grammar and its extras.
    pub grammar: Option<String>,
    /// Image processor settings.
    pub processor: Option<String>,
}

/// One row of `trajectories`.
#[derive(Debug, Clone, PartialEq)]
pub struct TrajectoryRecord {
    /// Where it belongs.
    pub ancestry: Ancestry,
    /// The task as assigned.
    pub task: Task,
    /// The task's line in its file, whole, so that it can be scored again without the file.
    pub task_json: String,
    /// What made the steps.
    pub policy_kind: PolicyKind,
    /// Whether it counts.
    pub status: Status,
    /// How it ended and what was seen.
    pub ending: Ending,
    /// The verdict; present exactly when scored.
    pub score: Option<Score>,
    /// Oldest and newest policy version among its tokens.
    pub policy_versions: Option<(i32, i32)>,
    /// Versions published between its start and its end.
    pub staleness: Option<i32>,
    /// What the policy was made of.
    pub hashes: Hashes,
    /// Session settings it ran under.
    pub session: SessionSpec,
    /// Slots planned in its group.
    pub group_size: u32,
    /// Fencing token it was finished under.
    pub token: u64,
    /// From the slot being free to start to the lease.
    pub queue_micros: u64,
    /// Scoring.
    pub score_micros: u64,
    /// Device time of all steps.
    pub gpu_micros: u64,
    /// Prompt tokens of all steps.
    pub prompt_tokens: u64,
    /// Response tokens of all steps.
    pub response_tokens: u64,
    /// Replies that held no action.
    pub invalid_actions: u32,
    /// Cost in US dollars, when a price is known.
    pub cost_usd: Option<f64>,
    /// Wall clock at the lease, microseconds since the Unix epoch.
    pub started_at_micros: i64,
    /// Wall clock when the end was acknowledged.
    pub ended_at_micros: i64,
}

impl End {
    /// All ends.
    pub const ALL: [End; 16] = [
        End::Answered,
        End::Done,
        End::MaxSteps,
        End::ContextFull,
        End::Unparsable,
        End::OffListNavigation,
        End::PageHang,
        End::EnvCrash,
        End::BrowserDead,
        End::PageCrash,
        End::Blocked,
        End::LeaseLost,
        End::PolicyFault,
        End::ScorerError,
        End::Cancelled,
        End::RecordLost,
    ];

    /// The word in columns and on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            End::Answered => "answered",
            End::Done => "done",
            End::MaxSteps => "max_steps",
            End::ContextFull => "context_full",
            End::Unparsable => "unparsable",
            End::OffListNavigation => "off_list_navigation",
            End::PageHang => "page_hang",
            End::EnvCrash => "env_crash",
            End::BrowserDead => "browser_dead",
            End::PageCrash => "page_crash",
            End::Blocked => "blocked",
            End::LeaseLost => "lease_lost",
            End::PolicyFault => "policy_fault",
            End::ScorerError => "scorer_error",
            End::Cancelled => "cancelled",
            End::RecordLost => "record_lost",
        }
    }

    /// Reads the word back.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|end| end.as_str() == word)
    }

    /// Whose doing it is. `hung_before` tells whether an earlier attempt at the slot ended in `page_hang`.
    pub fn fault(self, hung_before: bool) -> Fault {
        match self {
            End::Answered
            | End::Done
            | End::MaxSteps
            | End::ContextFull
            | End::Unparsable
            | End::OffListNavigation => Fault::Policy,
            End::PageHang if hung_before => Fault::Policy,
            _ => Fault::Farm,
        }
    }

    /// Whether the policy itself brought the trajectory to its end (RLDS: `is_terminal`), not a limit (`is_truncated`).
    pub fn is_terminal(self) -> bool {
        matches!(self, End::Answered | End::Done | End::Unparsable | End::OffListNavigation | End::PageHang)
    }
}

impl Fault {
    /// The word in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Fault::Policy => "policy",
            Fault::Farm => "farm",
        }
    }

    /// Reads the word back.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Policy, Self::Farm].into_iter().find(|fault| fault.as_str() == word)
    }
}

impl Status {
    /// The word in columns.
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Scored => "scored",
            Status::Failed => "failed",
        }
    }
}
