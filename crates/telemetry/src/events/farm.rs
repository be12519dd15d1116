//! What every process of the farm says.

use tracing::{info, warn};

use super::cut;
use crate::labels::{Label, Role};
use crate::names::event;

/// The process was asked to stop: it admits nothing new and finishes or hands back what it has.
#[derive(Debug)]
pub struct Draining {
    /// What the process does.
    pub role: Role,
    /// Trajectories, sessions or shards in hand.
    pub in_hand: u64,
}

/// Draining is over.
#[derive(Debug)]
pub struct Drained {
    /// What the process does.
    pub role: Role,
    /// What was still in hand when the grace ended; 0 after a clean stop.
    pub left: u64,
    /// Time it took.
    pub micros: u64,
}

/// An OTLP endpoint does not take what is sent to it. Said once, until it does again.
#[derive(Debug)]
pub struct ExportFailing<'a> {
    /// What is sent: `spans` or `metrics`.
    pub signal: &'static str,
    /// Why.
    pub reason: &'a str,
}

/// It takes it again.
#[derive(Debug)]
pub struct ExportResumed {
    /// What is sent.
    pub signal: &'static str,
    /// For how long it did not.
    pub micros: u64,
}

impl Draining {
    /// Logs.
    pub fn emit(self) {
        info!(event = event::DRAINING, role = self.role.word(), in_hand = self.in_hand, "draining");
    }
}

impl Drained {
    /// Logs.
    pub fn emit(self) {
        let (event, role) = (event::DRAINED, self.role.word());
        let Self { left, micros, .. } = self;
        match left {
            0 => info!(event, role, left, micros, "drained"),
            _ => warn!(event, role, left, micros, "drained, and something was left behind"),
        }
    }
}

impl ExportFailing<'_> {
    /// Logs. What is dropped is counted where it is dropped.
    pub fn emit(self) {
        let (event, signal, reason) = (event::EXPORT_FAILING, self.signal, cut(self.reason));
        warn!(
            event,
            signal, reason, "telemetry.otlp_endpoint takes nothing; nothing of the run depends on it"
        );
    }
}

impl ExportResumed {
    /// Logs, as loudly as the failing: whoever read that should read this.
    pub fn emit(self) {
        let Self { signal, micros } = self;
        warn!(event = event::EXPORT_RESUMED, signal, micros, "telemetry.otlp_endpoint is back");
    }
}
