//! Events of every process of the farm.

use tracing::{info, warn};

use super::cut;
use crate::labels::{Label, Role};
use crate::names::event;

/// The process was asked to stop: it admits nothing new and finishes or hands back its work.
#[derive(Debug)]
pub struct ProcessDraining {
    /// What the process does.
    pub role: Role,
    /// Number of trajectories, sessions or shards in progress.
    pub in_hand: u64,
}

#[derive(Debug)]
pub struct ProcessDrained {
    /// What the process does.
    pub role: Role,
    /// Number of these that remained when the grace period ended; 0 after a clean stop.
    pub left: u64,
    pub micros: u64,
}

/// An OTLP endpoint does not accept data. Logged once, until it accepts data again.
#[derive(Debug)]
pub struct ExportFailing<'a> {
    /// What is sent: `spans` or `metrics`.
    pub signal: &'static str,
    pub reason: &'a str,
}

/// An OTLP endpoint accepts data again.
#[derive(Debug)]
pub struct ExportResumed {
    pub signal: &'static str,
    /// Time without accepted data.
    pub micros: u64,
}

impl ProcessDraining {
    pub fn emit(self) {
        info!(event = event::DRAINING, role = self.role.value(), in_hand = self.in_hand, "draining");
    }
}

impl ProcessDrained {
    pub fn emit(self) {
        let event = event::DRAINED;
        let role = self.role.value();
        let Self { left, micros, .. } = self;
        match left {
            0 => info!(event, role, left, micros, "drained"),
            _ => warn!(event, role, left, micros, "drained, with unfinished work"),
        }
    }
}

impl ExportFailing<'_> {
    /// Logs. Dropped events are counted where they are dropped.
    pub fn emit(self) {
        let event = event::EXPORT_FAILING;
        let signal = self.signal;
        let reason = cut(self.reason);
        warn!(
            event,
            signal, reason, "telemetry.otlp_endpoint accepts nothing; the run does not depend on it"
        );
    }
}

impl ExportResumed {
    /// Logs at the level of the failure, so that its readers see the recovery.
    pub fn emit(self) {
        let Self { signal, micros } = self;
        warn!(event = event::EXPORT_RESUMED, signal, micros, "telemetry.otlp_endpoint accepts data again");
    }
}
