//! One attempt at a slot: its assignment, its ending and its record.

use crate::{
    EndKind, Evidence, Group, Id, LeaseProof, LeaseSecret, Outcome, PolicyKind, Run, Score, SessionSpec,
    Size, Task, TaskChecks, TaskFiles, TimeSplit, Trajectory,
};

/// A trajectory leased to an environment worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Assignment {
    /// The run, group and slot of the trajectory.
    pub ancestry: TrajectoryAncestry,
    /// Fencing token: every call about the trajectory carries it, and a call with an older one is
    /// refused.
    pub token: u64,
    /// Proves that a caller is the worker that the lease was given to. Policy workers never get it.
    pub secret: LeaseSecret,
    /// Milliseconds that the lease lasts without a renewal.
    pub lease_millis: u64,
    /// The task to attempt.
    pub task: Task,
    /// The files that its pages may take and give.
    pub files: TaskFiles,
    /// What the environment worker does for the task's scorer.
    pub checks: TaskChecks,
    /// Names of the secrets that the environment worker may fill in for it.
    pub secrets: Vec<String>,
    /// How the policy parses replies, samples and keeps context.
    pub session: SessionSpec,
    /// Address of the policy worker to use, as `host:port`.
    pub policy_address: String,
}

impl Assignment {
    /// What a call about the trajectory presents.
    pub fn proof(&self) -> LeaseProof {
        LeaseProof {
            trajectory_id: self.ancestry.trajectory_id.clone(),
            token: self.token,
            secret: self.secret.clone(),
        }
    }
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
    /// How far the browser was shut off from its machine; `None` without a browser, and in records
    /// of earlier versions.
    pub walls: Option<WallsLevel>,
}

/// How far a browser is shut off from the machine that it runs on, the weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WallsLevel {
    /// A part of the walls below is missing: the machine refuses it, or the job turns it off.
    Basic,
    /// It can gain no privileges, but it has the rights of the worker's own user.
    Namespaces,
    /// It also runs as an ordinary user of its own.
    Full,
}

impl WallsLevel {
    /// Every level, the weakest first.
    pub const ALL: [Self; 3] = [Self::Basic, Self::Namespaces, Self::Full];

    /// Its name in messages, columns and job files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Basic => "basic",
            Self::Namespaces => "namespaces",
            Self::Full => "full",
        }
    }

    /// Parses what `as_str` returns.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == text)
    }
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

impl TrajectoryStatus {
    /// The status's name in columns.
    pub fn as_str(self) -> &'static str {
        match self {
            TrajectoryStatus::Scored => "scored",
            TrajectoryStatus::Failed => "failed",
        }
    }
}
