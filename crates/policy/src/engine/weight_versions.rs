//! The versions of weights in memory, and the settings and results of an exchange.

use furrow_model::backend::{IncomingWeights, WeightsError};
use furrow_rollout::PolicyVersion;
use tokio::sync::{mpsc, oneshot};

/// What happens to sessions whose state older weights wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnSwap {
    /// They continue with their state; `state_version_min` records its age.
    #[default]
    Keep,
    /// Their past runs again on the new weights before their next step.
    Rebuild,
    /// Their trajectories end on the weights they began with.
    FinishOnOld,
}

/// How new weights take effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwapSettings {
    /// What happens to sessions with an older state.
    pub on_swap: OnSwap,
    /// Versions kept beside the newest for trajectories that finish on them. Newer weights wait for
    /// the oldest to end.
    pub old_versions_max: u32,
    /// Bytes copied to a device between two batches.
    pub bring_bytes: u64,
    /// Hash of the vision weights at the start.
    pub vision: [u8; 32],
}

/// Weights that are to take effect.
pub(crate) struct NewWeights {
    /// Their version, newer than the one in use.
    pub version: PolicyVersion,
    /// Hash of their vision encoder. Tiles that another encoder made are not reused.
    pub vision: [u8; 32],
    /// The weights in the backend's form.
    pub weights: IncomingWeights,
    /// Receives the report, or why they were refused.
    pub done: oneshot::Sender<Result<SwapReport, WeightsError>>,
}

/// The result of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SwapReport {
    /// Microseconds in which no batch ran.
    pub pause_micros: u64,
    /// Sessions that were open.
    pub sessions: u32,
    /// Versions on which trajectories still finish.
    pub old_versions: u32,
}

/// The versions of weights in memory.
pub(super) struct WeightVersions {
    /// The version that new sessions run on.
    pub newest: WeightsKey,
    /// The version that the device holds.
    pub on_device: WeightsKey,
    /// Others, ready to be exchanged with those on the device.
    pub kept: Vec<(WeightsKey, IncomingWeights)>,
    pub pending_swap: Option<PendingSwap>,
    /// Channel to the thread that frees unused weights, which takes longer than a batch.
    pub retired: Option<mpsc::Sender<IncomingWeights>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WeightsKey {
    pub version: PolicyVersion,
    pub vision: [u8; 32],
}

pub(super) struct PendingSwap {
    pub name: WeightsKey,
    /// `None` once they are staged.
    pub weights: Option<IncomingWeights>,
    pub done: oneshot::Sender<Result<SwapReport, WeightsError>>,
}

impl PendingSwap {
    /// Refuses them with a reason.
    pub(super) fn refuse(self, why: WeightsError) {
        self.done.send(Err(why)).ok();
    }
}

impl Default for SwapSettings {
    fn default() -> Self {
        // 256 MB take 60 ms on a bus of 4 GB/s and 6 ms on one of 40 GB/s.
        Self { on_swap: OnSwap::Keep, old_versions_max: 2, bring_bytes: 256 << 20, vision: [0; 32] }
    }
}

impl WeightVersions {
    pub(super) fn new(
        version: PolicyVersion,
        vision: [u8; 32],
        retired: Option<mpsc::Sender<IncomingWeights>>,
    ) -> Self {
        let name = WeightsKey { version, vision };
        Self { newest: name, on_device: name, kept: Vec::new(), pending_swap: None, retired }
    }

    /// Version that new sessions start with.
    pub(super) fn newest(&self) -> PolicyVersion {
        self.newest.version
    }

    /// Version of the weights that the device computes with.
    pub(super) fn on_device(&self) -> PolicyVersion {
        self.on_device.version
    }

    /// Hash of the vision encoder on the device.
    pub(super) fn vision(&self) -> [u8; 32] {
        self.on_device.vision
    }

    pub(super) fn retire(&self, weights: IncomingWeights) {
        // If the channel is full, this thread frees them: that is slow, but they are freed.
        if let Some(drop_queue) = &self.retired
            && let Err(back) = drop_queue.try_send(weights)
        {
            drop(back);
        }
    }
}
