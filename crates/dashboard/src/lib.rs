//! Shows the farm in a browser, in a terminal and in a report: trajectories per GPU-hour, where every second went, and any trajectory step by step.
//!
//! A [`Dashboard`] looks at a run directory, at a data set, or at both while a run goes on. It serves pages (`pages/`, plain HTML, CSS
//! and modules that are part of the binary), a JSON API below `/api/`, and server-sent events that say when to ask again. What a
//! figure means is said in `figures.rs` and nowhere else; `docs/DASHBOARD.md` says it for people.
//!
//! The way of a request: `server.rs` (limits, deadlines) → `access.rs` (who may) → `routes.rs` (what is asked) → `api.rs` (the answer).
//! `report.rs` (a file that needs nothing else) and `terminal.rs` (`furrow watch`) draw the same answers.
//! Beside it two tasks: `follow.rs` reads what was published since, `live.rs` asks the coordinator of a running job. Both rest while
//! nobody looks.

mod access;
mod api;
mod config;
mod figures;
mod follow;
mod format;
mod hours;
mod live;
mod pages;
mod plan;
mod query;
mod report;
mod routes;
mod server;
mod terminal;

pub use access::{Access, AccessError};
pub use config::{DashboardConfig, DashboardFile};
pub use figures::Device;
pub use follow::Subject;
pub use format::clean;
pub use plan::{Floor, Planned, Work};
pub use report::{
    Picture, REPORT_RUNS_MAX, ReportError, ReportTable, RunFigures, report_html, report_pictures,
};
pub use server::{Dashboard, DashboardError};
pub use terminal::{DashboardAddress, Seen, WatchError, WatchSource, look, watch};
