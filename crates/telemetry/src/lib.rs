//! What the farm says about itself: every event and metric named once, the time account, logs, and exported figures.
//!
//! A service says a thing once, as an event: `StepAcknowledged { .. }.emit()` writes the log line and moves the figures, so a
//! call site carries neither strings nor counters. Events and [`figures`] belong to the process, like the log they are written
//! to; everything that computes (accounts, histograms, the exporter's lines) is a plain value that a test makes for itself.

mod account;
mod clock;
mod config;
mod events;
mod export;
mod labels;
mod logs;
mod memory;
mod metrics;
mod names;
mod origin;
// One door with two doormen: the other lets nobody through.
#[cfg_attr(not(feature = "otel"), path = "otel_absent.rs")]
mod otel;
mod process;
mod prometheus;

pub use account::{Account, DeviceAccount, DeviceTime, WorkerAccount};
pub use clock::{ManualTime, TimeSource};
pub use config::{Level, TelemetryConfig, TelemetryFile};
pub use events::*;
pub use export::{ExportError, Exporter, export};
pub use labels::{
    BlockReason, BrowserDeath, BrowserLimit, DeviceUse, IdleCause, Label, PauseReason, Role, SessionEnd,
    SlotUse, WorkerKind,
};
pub use logs::{LogError, Logs, log_path};
pub use memory::{available_bytes, taken_bytes};
pub use metrics::{Average, Buckets, Counter, Family, Gauge, Histogram, Measure};
pub use names::{Figures, Point, Sample, Unit, event, figures};
pub use origin::Origin;
pub use otel::Otlp;
pub use process::{
    Member, Memory, ProcessError, Usage, group_members, process_usage, tree_open_files, tree_usage,
};
pub use prometheus::prometheus;
