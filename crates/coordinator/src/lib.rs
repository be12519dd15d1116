//! Assigns tasks, keeps the ledger, has trajectories scored and writes each of them once.
//!
//! [`core`] decides without I/O; the shell around it performs. A decision is in the [`ledger`]
//! before any worker learns of it, a step is in the [`spool`] before it is acknowledged, and a
//! committed trajectory is named in the manifest exactly once.

mod assign;
mod backup;
mod card;
mod commit;
mod config;
pub mod core;
mod crash;
mod disk;
mod durable;
mod error;
mod fail_points;
mod first_screenshots;
mod groups;
mod identity;
mod inbox;
mod judge;
mod lease;
mod lease_secret;
pub mod ledger;
mod lock;
mod lost_found;
mod open;
mod plan;
mod rescore;
mod run;
mod scoring;
mod service;
mod shell;
#[cfg(test)]
mod small_disk;
pub mod spool;
#[cfg(feature = "failpoints")]
mod stepped;
mod version_range;
pub mod versions;

pub use assign::{AdmissionPacing, PolicyOffer};
pub use backup::{BackupDamage, BackupError, BackupSummary, RestoreSummary, restore_backup, take_backup};
pub use commit::{
    CommitError, CommitStage, RepairedBy, RunFinding, RunInspection, RunRepair, ShardCommitter, inspect_run,
    repair_run,
};
pub use config::{LimitsConfig, LimitsFile};
#[cfg(feature = "failpoints")]
pub use crash::arm_fail_points;
pub use error::CoordinatorError;
pub use fail_points::{
    evaluation_fail_points, expiry_fail_points, fail_points, weights_fail_points, withdrawal_fail_points,
};
pub use identity::JobIdentity;
pub use judge::{JudgeConfig, JudgeFile, JudgeKeyError, ScoreConfig, ScoreFile};
pub use lease_secret::{SecretDigest, SecretSource};
pub use lock::{LockError, RunLock};
pub use lost_found::{LostFoundError, PutAside, lost_and_found};
pub use open::{Coordinator, CoordinatorJob};
pub use plan::UnknownTask;
pub use rescore::{RescoreError, RescoreFilter, RescoreJob, RescoreSummary, rescore};
pub use run::{RunDamage, RunSummary, run};
pub use service::progress_message;
#[cfg(feature = "failpoints")]
pub use stepped::{PendingCall, SteppedCoordinator};
