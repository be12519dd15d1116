//! Whether a device makes progress: the engine marks when its calls begin and end, and the watchdog
//! reads how long the current ones take.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Shared by the engine's thread, which writes it, and its watchdog.
#[derive(Debug, Default)]
pub(crate) struct DeviceProgress {
    /// When the calls of the current iteration began; `None` between two iterations.
    busy_since: Mutex<Option<Instant>>,
    is_stopping: AtomicBool,
}

impl DeviceProgress {
    /// Marks the beginning of an iteration's calls.
    pub(crate) fn begin(&self) {
        *self.busy_since.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Marks the end of an iteration's calls.
    pub(crate) fn end(&self) {
        *self.busy_since.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// How long the current iteration's calls have taken; zero between two iterations.
    pub(crate) fn busy_for(&self) -> Duration {
        let since = *self.busy_since.lock().unwrap_or_else(PoisonError::into_inner);
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Marks that the worker stops.
    pub(crate) fn prepare_to_stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }
}
