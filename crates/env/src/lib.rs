//! A browser a trajectory: serves sites, filters egress, observes, acts, reports evidence.
//!
//! From the outside in: `worker.rs` leases trajectories and keeps them alive, `attempt.rs` acts one of them out between its policy
//! (`policy_link.rs`) and the coordinator (`coordinator_link.rs`), on a stage (`stage.rs`): a real browser context (`chromium/`) or air
//! (`sim.rs`). Pages are served by `sites.rs`; `egress.rs` is their only way out and `hosts.rs` says where it may lead.

mod again;
mod archive;
mod attempt;
mod chromium;
mod config;
mod coordinator_link;
mod crash;
mod egress;
mod held;
mod hosts;
mod live;
mod policy_link;
mod retry;
pub mod sim;
mod sites;
mod stage;
mod worker;

pub use again::{ActedAgain, Expectation, Recorded, SeenStep, act_again};
pub use archive::{
    About, Answer, Archive, ArchiveError, ArchiveLimits, Archives, Asked, EXCHANGES_MAX, Exchange, Recorder,
    VOLATILE,
};
pub use chromium::{BlockedPages, BrowserError, Chromium, Health, LOOKED_FOR};
pub use config::{BrowserConfig, BrowserLimits, Deadlines, EnvConfig, EnvFile, Refusals, Settle};
pub use crash::ENV_FAIL_POINTS;
pub use egress::{BLOCKED_HOSTS_MAX, Blocked, Egress, EgressLimits, LiveLimits};
pub use hosts::{AllowList, BadEntry, HostName, OffLimits, Place};
pub use live::Pins;
pub use retry::Retry;
pub use sites::{Made, Make, Root, Site, SiteError, SiteLimits, Sites};
pub use stage::{Room, Stage, StageError, Stages};
pub use worker::{Summary, WorkerConfig, WorkerError, run};
