//! Telemetry of the farm: every event and metric named once, the time account, logs, and exported
//! metrics.
//!
//! A service reports a thing once, as an event: `StepAcknowledged { .. }.emit()` writes the log
//! line and updates the metrics, so a call site carries neither strings nor counters. Events and
//! [`process_metrics`] belong to the process, like the log they are written to; everything that
//! computes (accounts, histograms, the exporter's lines) is a plain value that a test creates for
//! itself.

mod account;
mod clock;
mod config;
mod events;
mod export;
mod labels;
mod log_writer;
mod logs;
mod memory;
mod metrics;
mod names;
mod origin;
// One interface with two implementations: the other one exports nothing.
#[cfg_attr(not(feature = "otel"), path = "otel_absent.rs")]
mod otel;
mod process;
mod prometheus;
mod rotation;

pub use account::{DeviceAccount, DeviceTime, SessionAccount, WorkerAccount};
pub use clock::{ManualTime, TimeSource};
pub use config::{Level, TelemetryConfig, TelemetryFile};
pub use events::*;
pub use export::{ExportError, MetricsExporter, export};
pub use labels::{
    BlockReason, BrowserDeath, BrowserLimit, DeviceUse, IdleCause, Label, PauseReason, Role, SessionEnd,
    SlotUse, WorkerKind,
};
pub use logs::{LogError, LogTargets, log_path};
pub use memory::{available_bytes, taken_bytes};
pub use metrics::{Counter, Family, Gauge, Histogram, HistogramBuckets, MeanMetric, OptionalGauge};
pub use names::{MetricPoint, MetricSample, MetricUnit, ProcessMetrics, event, process_metrics};
pub use origin::ProcessOrigin;
pub use otel::OtlpExporter;
pub use process::{
    GroupMember, MemoryMeasure, ProcessError, ProcessUsage, group_members, process_usage, tree_open_files,
    tree_usage,
};
pub use prometheus::prometheus;
pub use rotation::{RotationConfig, kept_files};
