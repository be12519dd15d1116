//! Finds a version of the weights, or a device, that gives session after session logits that are
//! not finite.
//!
//! A session whose logits are not finite ends as a fault of the policy. Where the cause is not the
//! session, others follow, and an engine that fails each of them quickly looks idle and gets even
//! more. So the engine stops a version at the first sessions: their trajectories continue elsewhere
//! or on other weights. Every weight was finite when it was loaded, so the products overflow, or
//! the device computes wrongly. The next version shows which: if that fails too, the engine ends as
//! with a lost device.

use std::collections::BTreeMap;

use furrow_model::backend::DeviceLost;
use furrow_rollout::PolicyVersion;
use furrow_telemetry::TimeSource;
use tokio::sync::watch;

/// Sessions of one version that may end for their own logits within [`WINDOW_MICROS`]: a
/// trajectory has three attempts by default, and each may meet the same page.
const SESSIONS_FREE: usize = 3;

/// Broken weights fail every session, which takes seconds. A rare overflow of good weights fails
/// one in thousands.
const WINDOW_MICROS: u64 = 60_000_000;

/// A version that is not used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the logits of {sessions} sessions on weights of version {} were not finite within {} s",
    .version.0, WINDOW_MICROS / 1_000_000
)]
pub(crate) struct BrokenVersion {
    pub version: PolicyVersion,
    /// Sessions whose logits were not finite.
    pub sessions: usize,
}

/// Counts the sessions whose logits were not finite.
pub(super) struct Breaker {
    time: TimeSource,
    /// When sessions of each version ended, within the window.
    ended_micros: BTreeMap<PolicyVersion, Vec<u64>>,
    /// The version in use, if it is broken.
    broken: watch::Sender<Option<BrokenVersion>>,
    /// The first version that was found broken.
    first: Option<BrokenVersion>,
}

impl Breaker {
    pub(super) fn new(time: TimeSource) -> Self {
        Self { time, ended_micros: BTreeMap::new(), broken: watch::Sender::new(None), first: None }
    }

    /// Whether the version is broken, now that the logits of one more of its sessions are not
    /// finite.
    pub(super) fn record(&mut self, version: PolicyVersion) -> bool {
        if self.of(version).is_some() {
            return true;
        }
        let now = self.time.micros();
        self.ended_micros.entry(version).or_default().push(now);
        self.ended_micros.retain(|_, ended| {
            ended.retain(|micros| now - micros < WINDOW_MICROS);
            !ended.is_empty()
        });
        let sessions = self.ended_micros.get(&version).map_or(0, Vec::len);
        if sessions <= SESSIONS_FREE {
            return false;
        }
        let broken = BrokenVersion { version, sessions };
        tracing::error!(version = version.0, sessions, "the logits of session after session are not finite");
        self.broken.send_replace(Some(broken));
        true
    }

    /// The version, if it is broken.
    pub(super) fn of(&self, version: PolicyVersion) -> Option<BrokenVersion> {
        self.broken.borrow().filter(|broken| broken.version == version)
    }

    /// Whether the device, or the job's own checkpoint, must be at fault: two versions are broken,
    /// or the one that nothing precedes.
    pub(super) fn check_device(&mut self, broken: BrokenVersion) -> Result<(), DeviceLost> {
        const REMEDY: &str = "the GPU is faulty, or the checkpoints are: try them on another machine";
        if broken.version == PolicyVersion(0) {
            return Err(DeviceLost(format!(
                "{broken}; that is the job's own checkpoint, so it is damaged, or the GPU is: check its files, and \
                 try it on another machine"
            )));
        }
        match self.first {
            Some(first) if first.version != broken.version => {
                Err(DeviceLost(format!("{broken}, after {first}: {REMEDY}")))
            }
            _ => {
                self.first = Some(broken);
                Ok(())
            }
        }
    }

    /// Other weights are in use.
    pub(super) fn reset(&self) {
        self.broken.send_if_modified(|broken| broken.take().is_some());
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Option<BrokenVersion>> {
        self.broken.subscribe()
    }
}
