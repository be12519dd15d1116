//! What to simulate, what the engine and the device need for it, and why it may be impossible.

use std::sync::Arc;

use furrow_model::backend::{BackendCapacity, PAGE_TOKENS};
use furrow_model::config::{Config, VisionConfig};
use furrow_model::floor::{DeviceSpec, ModelWork};
use furrow_policy::stepped::SteppedSettings;
use furrow_rollout::ContextPolicy;

use crate::floor::{ContextRetention, RolloutFloor};
use crate::workload::{SessionMix, Workload};

/// Prefill chunk in tokens for devices like the H200, which computes 183 rows in the time it reads
/// their weights.
pub const PREFILL_CHUNK: u32 = 512;
/// Most prefill tokens beside decode, which limits how fast a backlog runs. Pacing stays below it.
pub const PREFILL_TOKENS: u32 = 4096;
/// Each new trajectory makes two snapshots, and uses one of them at its next step.
const SNAPSHOTS: u32 = 32;
/// Most tokens of all sessions; each is an id of 4 bytes.
const TOKENS_MAX: u64 = 50_000_000;

#[derive(Debug, Clone, PartialEq)]
pub struct SimulatorSettings {
    pub mix: SessionMix,
    /// Sizes of their steps, such as those of a recorded run. They replace what `mix` says of
    /// steps, tokens, screenshots and page time.
    pub workload: Option<Arc<Workload>>,
    /// Context policy: `append` or `last_image`.
    pub keep: ContextPolicy,
    /// Tokens of a prefill chunk: `policy.engine.prefill_chunk`.
    pub prefill_chunk: u32,
    /// Tokens prefilled beside the decode rows of a batch: `policy.engine.prefill_tokens`.
    pub prefill_tokens: u32,
    /// Microseconds of host work between two batches, in which the device is idle.
    pub host_micros: u64,
    /// Seconds of simulated time to measure, after the sessions are spread evenly; `None`: as long
    /// as a trajectory takes at the floor, so that every session passes every age.
    pub seconds: Option<f64>,
}

/// Why the simulation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SimulatorError {
    /// No floor is known for this context policy.
    #[error("{0} cannot be simulated; use append or last_image")]
    Keep(ContextPolicy),
    /// The sessions have fewer steps or tokens than a simulation needs.
    #[error("the sessions have too few {0}")]
    TooFew(&'static str),
    /// The device is too small for one session, or a chunk is larger than a batch.
    #[error("the engine rejects these settings: {0}")]
    Mismatch(String),
    /// The simulation would need too much memory.
    #[error(
        "all sessions together have {tokens} tokens, but at most {TOKENS_MAX} can be simulated; use fewer or shorter sessions"
    )]
    TooLarge {
        /// Tokens of all sessions at their longest.
        tokens: u64,
    },
    /// The engine answered a step with a fault.
    #[error("the engine ended a session: {0}")]
    Fault(String),
}

/// Functions of [`RolloutFloor`] that compute the floor of a mix and of a workload.
pub(crate) type FloorFunctions = (
    fn(&dyn ModelWork, &DeviceSpec, &SessionMix, ContextRetention) -> RolloutFloor,
    fn(&Config, &DeviceSpec, &Workload, usize, ContextRetention) -> RolloutFloor,
);

impl SimulatorSettings {
    /// The floor of these sessions, if they can be simulated.
    pub(crate) fn floor(
        &self,
        config: &Config,
        device: &DeviceSpec,
        of: FloorFunctions,
    ) -> Result<RolloutFloor, SimulatorError> {
        let keep = match self.keep {
            ContextPolicy::Append => ContextRetention::Append,
            ContextPolicy::LastImage => ContextRetention::LastImage,
            other => return Err(SimulatorError::Keep(other)),
        };
        let sessions = self.mix.sessions;
        self.check_sizes()?;
        let floor = match &self.workload {
            None => of.0(config, device, &self.mix, keep),
            Some(work) => of.1(config, device, work, sessions, keep),
        };
        let tokens = (floor.context_max * sessions as f64) as u64;
        if tokens > TOKENS_MAX { Err(SimulatorError::TooLarge { tokens }) } else { Ok(floor) }
    }

    fn check_sizes(&self) -> Result<(), SimulatorError> {
        let SessionMix { steps, sessions, generated, text, .. } = self.mix;
        let mut least = vec![("sessions", sessions, 1)];
        match &self.workload {
            None => {
                least.extend([("steps", steps, 1), ("generated tokens", generated, 1), ("text", text, 3)]);
            }
            Some(work) => {
                let steps = work.trajectories.iter().map(Vec::len).min().unwrap_or(0);
                let sampled = work.steps().map(|step| step.sampled).max().unwrap_or(0) as usize;
                least.extend([("steps", steps, 1), ("sampled tokens", sampled, 1)]);
            }
        }
        match least.into_iter().find(|(_, has, needs)| has < needs) {
            Some((what, _, _)) => Err(SimulatorError::TooFew(what)),
            None => Ok(()),
        }
    }

    /// Sizes of the sessions' steps.
    pub(crate) fn workload(&self, config: &Config) -> Arc<Workload> {
        let uniform = || {
            let rows = config.screenshot_tokens(self.mix.screenshot.0, self.mix.screenshot.1);
            let per_tile = config.vision.as_ref().map_or(1, VisionConfig::rows_per_tile);
            Arc::new(Workload::uniform(&self.mix, (rows / per_tile) as u32))
        };
        self.workload.clone().unwrap_or_else(uniform)
    }

    /// Steps of the longest trajectory.
    fn steps_max(&self) -> usize {
        self.workload.as_ref().map_or(self.mix.steps, |work| work.steps_max())
    }

    /// Engine settings for these sessions: one slot for each, and one for the fork of each running
    /// session.
    pub(crate) fn engine_settings(&self, floor: &RolloutFloor) -> SteppedSettings {
        let sessions = self.mix.sessions as u32;
        let slots = if self.keep == ContextPolicy::Append { sessions } else { 2 * sessions };
        SteppedSettings {
            state_slots: slots + 2,
            // With `last_image` the task is prefilled once, on the first fork. The kept state
            // begins with its snapshot.
            snapshot_slots: if self.keep == ContextPolicy::Append { 0 } else { SNAPSHOTS },
            chunk: self.prefill_chunk,
            prefill_tokens: self.prefill_tokens,
            // In addition to the floor's longest context: the stop id after each reply.
            context_tokens_max: floor.context_max as u32 + self.spare_tokens() + 1,
        }
    }

    /// Tokens of a session that the floor does not count. A recorded step may have less text than
    /// two delimiters and no sampled token, but the simulated step has both.
    pub(crate) fn spare_tokens(&self) -> u32 {
        let each = if self.workload.is_some() { 4 } else { 1 };
        each * self.steps_max() as u32
    }

    /// Capacity of the device beside weights and workspace, as [`ModelWork::sessions_that_fit`]
    /// computes it: slots, and pages in the memory they leave.
    pub(crate) fn capacity(
        &self,
        config: &Config,
        device: &DeviceSpec,
        floor: &RolloutFloor,
    ) -> BackendCapacity {
        let engine = self.engine_settings(floor);
        let page_bytes = config.session_bytes(PAGE_TOKENS as f64) - config.session_bytes(0.0);
        let free = device.memory * 0.92 - 6e9 - config.weight_bytes();
        let slots = engine.state_slots + engine.snapshot_slots;
        let left = free - f64::from(slots) * config.session_bytes(0.0);
        BackendCapacity {
            slots,
            pages: (left / page_bytes).max(0.0) as u32,
            rows_max: self.prefill_tokens + 8 * engine.state_slots,
            logits_max: engine.state_slots,
            // The tiles of a chunk, and one more for each session between two chunks. A tile's 256
            // rows of 5,120 are 2.6 MB.
            features: 1024,
            // The simulated host memory is unlimited.
            offload_bytes: u64::MAX,
        }
    }
}
