//! The domain types of the farm. They follow its data flow: task → session → screenshot → tokens →
//! action → reward → shard.
//!
//! Plain values only: no clock, no network, no file. They are deliberately not serialisable: `wire`
//! and `records` each own their format and convert at the boundary, so that a proto field can
//! change without a change to a Parquet column.

#![warn(missing_docs)]

mod action;
mod checks;
mod download;
mod end;
mod evidence;
mod files;
mod graded;
mod group;
mod id;
mod lease;
mod modifiers;
mod observation;
mod score;
mod secrets;
mod session;
mod step;
mod task;
mod timing;
mod trace;
mod trajectory;
mod weights;

pub use action::{
    Action, CLICKS_MAX, EMPTY_PAGE, HOLD_MILLIS_MAX, ModelPoint, PRESSES_MAX, PagePoint, PointerButton,
    PolicyReply, SCROLL_PIXELS_MAX, SEVERAL_MAX, ScrollDirection, UPLOAD_FILES_MAX, WAIT_SECONDS_MAX,
    page_from_model,
};
pub use checks::{
    EXPRESSION_BYTES_MAX, FINDINGS_BYTES_MAX, FOUND_BYTES_MAX, FinalQuery, Finding, FindingFailure,
    FindingFailureKind, HttpMethod, HttpQuery, PagePart, QUERIES_MAX, QUERY_TEXT_BYTES_MAX, StorageArea,
    TaskChecks, is_hook_name,
};
pub use download::{DownloadReport, DownloadedFile};
pub use end::{EndKind, FaultOwner};
pub use evidence::{ErrorPage, Evidence};
pub use files::{TaskFiles, UploadFile, is_file_name};
pub use graded::{VoidState, is_graded, mark_graded, strip_graded, void_of};
pub use group::{GroupRecord, GroupStatistics};
pub use id::{BadId, EnvWorker, Group, Id, IdKind, PolicyWorker, Run, Shard, Trajectory};
pub use lease::{LEASE_SECRET_BYTES, LeaseProof, LeaseSecret};
pub use modifiers::{Modifier, Modifiers};
pub use observation::{
    ImageFormat, MARK_TEXT_CHARS_MAX, MARKS_MAX, Mark, Observation, Screenshot, Size, TabInfo,
};
pub use score::{Score, ScoreComponent};
pub use secrets::{SECRETS_MAX, is_secret_name, secret_placeholder};
pub use session::{ContextPolicy, ExtraAction, Grammar, SamplingParams, SessionSpec};
pub use step::{Outcome, OutcomeName, StepRecord};
pub use task::{ActionHint, ObservationSpec, PageClock, PageHooks, Split, Task};
pub use timing::{TimeCause, TimeSplit};
pub use trace::{
    EngineStats, FinishReason, ImageSpan, PolicyKind, PolicyVersion, RescoredToken, StateOrigin, TokenTrace,
    Trace, token_hash,
};
pub use trajectory::{
    Assignment, EnvironmentFingerprint, PolicyHashes, TrajectoryAncestry, TrajectoryEnding, TrajectoryRecord,
    TrajectoryStatus, WallsLevel,
};
pub use weights::{WEIGHTS_LINKS_MAX, WeightRoots, WeightsForm, WeightsLink, WeightsOrder};

/// Version of the messages in `proto/`. The coordinator refuses workers of another version when
/// they register.
pub const PROTOCOL_VERSION: u32 = 2;

/// Version of the Parquet schema, written into the metadata of every file and into every manifest
/// commit.
pub const SCHEMA_VERSION: u32 = 4;
