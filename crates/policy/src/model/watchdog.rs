//! The watchdog of a device. A GPU that hangs keeps the engine's thread inside of the driver, which
//! has no deadline of its own, while heartbeats go on and the coordinator hands out sessions to a
//! worker that answers nothing.
//!
//! An iteration of the engine takes tens of milliseconds on a GPU; the longest calls copy 256 MB of
//! new weights (60 ms at 4 GB/s) or record a graph (10 ms). So a limit of seconds is far from
//! everything that works. The CPU backend has no limit by default: it never hangs, and a long
//! prefill on a loaded machine may take minutes.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::watch;

use super::shared::EngineEnd;
use crate::progress::DeviceProgress;

/// Time that a device gets once the worker stops: someone waits for the process to end.
const STOPPING_LIMIT: Duration = Duration::from_secs(5);

/// Pause between two looks, unless the limit asks for shorter ones.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What a watchdog watches.
pub(super) struct WatchedEngine {
    pub progress: Arc<DeviceProgress>,
    /// Closed by the engine's thread when it ends.
    pub running: Receiver<()>,
    /// Why the engine ended.
    pub ending: Arc<watch::Sender<Option<EngineEnd>>>,
}

impl WatchedEngine {
    /// Watches on a thread of its own until the engine ends. Declares the end itself when one
    /// iteration's device calls take longer than `limit`. The engine's thread cannot be stopped
    /// then, and must not be joined.
    ///
    /// # Errors
    /// When the operating system refuses the thread.
    pub(super) fn start(self, limit: Duration) -> std::io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name("furrow-watchdog".into()).spawn(move || self.watch(limit))
    }

    fn watch(&self, limit: Duration) {
        let pause = LOOK_EVERY.min(limit / 4);
        while self.running.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            let limit = if self.progress.is_stopping() { limit.min(STOPPING_LIMIT) } else { limit };
            let busy_for = self.progress.busy_for();
            if busy_for > limit {
                return self.give_up(busy_for, limit);
            }
        }
    }

    fn give_up(&self, busy_for: Duration, limit: Duration) {
        let millis = busy_for.as_millis() as u64;
        tracing::error!(
            millis,
            limit_millis = limit.as_millis() as u64,
            "the device does not answer; its sessions can continue on another worker"
        );
        self.ending.send_if_modified(|ended| {
            let is_first = ended.is_none();
            ended.get_or_insert(EngineEnd::Stalled { millis });
            is_first
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{SyncSender, sync_channel};

    use super::*;

    /// A watchdog without an engine.
    struct Watched {
        progress: Arc<DeviceProgress>,
        running: SyncSender<()>,
        ended: watch::Receiver<Option<EngineEnd>>,
        watching: JoinHandle<()>,
    }

    impl Watched {
        fn start(limit: Duration) -> Self {
            let progress = Arc::new(DeviceProgress::default());
            let (running, receiver) = sync_channel(0);
            let (ending, ended) = watch::channel(None);
            let watched =
                WatchedEngine { progress: progress.clone(), running: receiver, ending: Arc::new(ending) };
            Self { progress, running, ended, watching: watched.start(limit).unwrap() }
        }

        /// Milliseconds after which the device was given up.
        fn stalled_millis(self) -> u64 {
            self.watching.join().unwrap();
            let ended = self.ended.borrow().clone();
            let Some(EngineEnd::Stalled { millis }) = ended else { panic!("{ended:?}") };
            millis
        }
    }

    #[test]
    fn a_device_that_does_not_answer_is_given_up() {
        let watched = Watched::start(Duration::from_millis(80));
        watched.progress.begin();
        assert!(watched.stalled_millis() >= 80);
    }

    #[test]
    fn a_device_that_answers_in_time_or_has_no_work_is_not() {
        let watched = Watched::start(Duration::from_millis(800));
        for _ in 0..20 {
            watched.progress.begin();
            std::thread::park_timeout(Duration::from_millis(50));
            watched.progress.end();
            std::thread::park_timeout(Duration::from_millis(50));
        }
        assert_eq!(*watched.ended.borrow(), None);
        drop(watched.running);
        watched.watching.join().unwrap();
        assert_eq!(*watched.ended.borrow(), None);
    }

    #[test]
    fn a_worker_that_stops_waits_less() {
        let watched = Watched::start(Duration::from_secs(3600));
        watched.progress.begin();
        watched.progress.prepare_to_stop();
        assert!((5_000..600_000).contains(&watched.stalled_millis()));
    }
}
