//! The nouns of the farm. One sentence holds it: task → session → screenshot → tokens → action → reward → shard.
//!
//! Plain values only: no clock, no network, no file. They are not serialisable on purpose: `wire` and `records` each own
//! their format and convert at the door, so a proto field can change without touching a Parquet column.

mod action;
mod evidence;
mod group;
mod id;
mod observation;
mod score;
mod session;
mod step;
mod task;
mod timing;
mod trace;
mod trajectory;
mod weights;

pub use action::{
    Action, Button, CLICKS_MAX, Direction, EMPTY_PAGE, ModelPoint, PRESSES_MAX, PagePoint, Reply,
    SCROLL_PIXELS_MAX, SEVERAL_MAX, WAIT_SECONDS_MAX, page_from_model,
};
pub use evidence::{ErrorPage, Evidence};
pub use group::{GroupRecord, GroupStatistics};
pub use id::{BadId, EnvWorker, Group, Id, Kind, PolicyWorker, Run, Shard, Trajectory};
pub use observation::{
    ImageFormat, MARK_TEXT_CHARS_MAX, MARKS_MAX, Mark, Observation, Screenshot, Size, Tab,
};
pub use score::{Component, Score};
pub use session::{ContextPolicy, ExtraAction, Grammar, Sampling, SessionSpec};
pub use step::{Outcome, OutcomeName, StepRecord};
pub use task::{Clock, Hint, ObservationSpec, PageHooks, Split, Task};
pub use timing::{Cause, TimeSplit};
pub use trace::{
    Engine, FinishReason, ImageSpan, PolicyKind, PolicyVersion, ScoredAgain, StateOrigin, TokenTrace, Trace,
    token_hash,
};
pub use trajectory::{
    Ancestry, Assignment, End, Ending, EnvironmentFingerprint, Fault, Hashes, Status, TrajectoryRecord,
};
pub use weights::{WEIGHTS_LINKS_MAX, WeightsForm, WeightsLink, WeightsOrder};

/// Version of the messages in `proto/`. Workers of another version are refused when they register.
pub const PROTOCOL_VERSION: u32 = 1;

/// Version of the Parquet schema; written into every file's metadata and every manifest commit.
pub const SCHEMA_VERSION: u32 = 1;
