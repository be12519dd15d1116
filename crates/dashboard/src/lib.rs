//! Shows the farm in a browser, in a terminal and in a report: trajectories per GPU-hour, where
//! every second went, and any trajectory step by step.
//!
//! A [`DashboardServer`] shows a run directory, a data set, or both while a run is in progress. It
//! serves pages (`pages/`, plain HTML, CSS and modules that are part of the binary), a JSON API
//! below `/api/`, and server-sent events that announce changes. `metrics.rs` alone defines what
//! each metric means; `docs/DASHBOARD.md` explains them.
//!
//! A request passes `furrow_http` with the limits of `server.rs` and the rules of `access.rs`, then
//! `routes.rs` (the paths) → `api.rs` (the answer, a type of `answers.rs`). `report.rs` (a
//! self-contained file) and `terminal.rs` (`furrow watch`) render the same answers. Two tasks run
//! beside it: `follow.rs` reads what was committed since, `live.rs` polls the coordinator of a
//! running job. Both are idle without requests.

mod access;
mod answers;
mod api;
mod api_error;
mod comparison;
mod config;
mod file_identity;
mod follow;
mod format;
mod history;
mod live;
mod live_run;
mod markup;
mod metrics;
mod pages;
mod plan;
mod query;
mod report;
mod routes;
mod run_time;
mod runs;
mod runs_routes;
mod server;
mod terminal;
mod trajectory_file;

pub use access::AccessError;
pub use answers::DeviceKind;
pub use comparison::comparison_sentence;
pub use config::{DashboardConfig, DashboardFile};
pub use follow::DashboardSubject;
pub use format::clean;
pub use plan::{DeviceFloor, MeasuredWork, PlannedWork};
pub use report::{
    PlotPicture, REPORT_RUNS_MAX, ReportError, ReportTable, RunMetrics, report_html, report_pictures,
};
pub use run_time::trajectories_per_hour;
pub use runs::{RunFolder, RunSummary};
pub use server::{DashboardError, DashboardServer};
pub use terminal::{DashboardAddress, RunSnapshot, WatchError, WatchSource, read_snapshot, watch};
pub use trajectory_file::{targets, trajectory_html};
