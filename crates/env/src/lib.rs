//! Runs one browser context per trajectory: serves sites, filters egress, observes, acts, reports
//! evidence.
//!
//! From the outside in: `worker.rs` leases trajectories and keeps their leases alive, and
//! `attempt.rs` runs one of them between its policy (`policy_link.rs`) and the coordinator
//! (`coordinator_link.rs`) in an environment (`environment.rs`): a real browser context
//! (`chromium/`) or a simulated browser (`simulated.rs`). `replay.rs` runs a recorded trajectory
//! again. `sites.rs` serves pages; `egress.rs` filters all their traffic, on a loopback of the
//! browser's own where the machine allows it (`namespace.rs`), and `hosts.rs` decides which hosts
//! it may reach. `secrets.rs` types the job's secrets into pages and keeps them out of everything
//! else. `back_end.rs` resets and checks what is behind a site, with the job's commands
//! (`hooks.rs`). `preflight.rs` says of a start page whether a browser can get it.

mod archive;
mod attempt;
mod back_end;
mod chromium;
mod config;
mod coordinator_link;
mod crash;
mod egress;
mod environment;
mod first_look;
mod hooks;
mod hosts;
mod leases;
mod live;
mod namespace;
mod policy_link;
mod preflight;
mod replay;
mod retry;
mod secrets;
pub mod simulated;
mod sites;
mod time_limit;
mod worker;

pub use archive::{
    ArchiveError, ArchiveLimits, ArchiveMetadata, ArchiveMode, ArchiveRecorder, ArchiveRequest,
    ArchiveResponse, HttpExchange, TrajectoryArchive,
};
pub use chromium::{
    BrowserError, BrowserHealth, BrowserWalls, ChromiumPool, LOOKED_FOR, MissingWall, browser_version,
    is_root,
};
pub use config::{
    BlockedPages, BrowserConfig, BrowserLimits, EnvConfig, EnvFile, PageDeadlines, RefusalRules, SettleRules,
};
pub use crash::ENV_FAIL_POINTS;
pub use egress::{BlockedRequests, EgressFilter, EgressLimits, LiveLimits};
pub use environment::{
    Capacity, Environment, EnvironmentError, EnvironmentFactory, PageError, PageErrorKind,
};
pub use hooks::HookCommand;
pub use hosts::{AllowList, BadEntry, BlockedHost, HostName, HostPort};
pub use live::HostPins;
pub use namespace::{become_namespace_helper, serve_namespace_helper, use_namespace_helper};
pub use preflight::{HostLookup, ReachablePages};
pub use replay::{RecordedReply, ReplayExpectation, ReplayedStep, ReplayedTrajectory, replay_trajectory};
pub use retry::RetryPolicy;
pub use secrets::{DeclaredSecret, SecretFile, WorkerSecrets};
pub use sites::{FileMaker, FileRoot, SharedMaker, SiteError, SiteLimits, SiteServer, StaticSite};
pub use worker::{WorkerConfig, WorkerError, WorkerSummary, run};
