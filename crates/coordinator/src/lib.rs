//! Assigns tasks, keeps the ledger, has trajectories scored and written once.
//!
//! [`core`] decides and touches nothing; the shell around it performs. What was decided is in the [`ledger`] before anybody hears of
//! it, what was recorded is in the [`spool`] before it is acknowledged, and what is published is named in the manifest exactly once.

mod assign;
mod config;
pub mod core;
mod crash;
mod disk;
mod durable;
mod groups;
mod identity;
mod judge;
mod lease;
pub mod ledger;
mod lock;
mod lost_found;
mod open;
mod plan;
mod publish;
mod rescore;
mod run;
mod scoring;
mod service;
mod shell;
#[cfg(test)]
mod small_disk;
pub mod spool;
pub mod versions;

pub use assign::{Pacing, PolicyOffer};
pub use config::{LimitsConfig, LimitsFile};
#[cfg(feature = "failpoints")]
pub use crash::arm_fail_points;
pub use crash::{evaluation_fail_points, fail_points, weights_fail_points};
pub use identity::Identity;
pub use judge::{JudgeConfig, JudgeFile, ScoreConfig, ScoreFile};
pub use lock::{LockError, RunLock};
pub use lost_found::{LostFoundError, PutAside, lost_and_found};
pub use open::{Coordinator, CoordinatorError, Job};
pub use plan::UnknownTask;
pub use publish::{PublishError, Publisher, Stage};
pub use rescore::{RescoreError, RescoreFilter, RescoreJob, RescoreSummary, rescore};
pub use run::{Summary, run};
