//! The loop that owns the device: it applies events, plans a batch, runs it, samples tokens and
//! answers.
//!
//! It knows sequences, not conversations. A session has a *base* sequence whose state is kept
//! between steps. A step adds kept tokens to the base, runs a prompt after them, either on the base
//! itself (`append`) or on a fork that is dropped afterwards, and samples a reply. `context.rs`
//! decides which tokens are kept and shown. `phase.rs` lists the phases of a session and the
//! transitions between them.
//!
//! No result of a session depends on other sessions. Spans are cut by the session's own tokens
//! (`sequence.rs`), random numbers come from its own counter, and a backend gives a row the same
//! result in every batch. Offloading and restoring copy bits; a fork copies a state that the same
//! spans had made. So a session gets the tokens it would get alone.
//!
//! A device can fail at any call. The iteration stops at that call ([`DeviceLost`] is returned
//! through `?`). Every step without an answer is answered with the failure, the device is not read
//! any more, and the engine ends.

mod admit;
mod batch;
mod breaker;
mod fault;
mod lifecycle;
mod phase;
mod reply;
mod running;
mod session;
mod sessions;
mod step;
mod tiles;
mod weight_versions;
mod weights;

use std::sync::Arc;

use furrow_model::backend::{Backend, BackendCapacity, DeviceLost, IncomingWeights};
use furrow_model::sample::Sampler;
use furrow_rollout::PolicyVersion;
use furrow_telemetry::{DeviceTime, DeviceUse, TimeSource};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::features::FeatureCache;
use crate::metered::MeteredBackend;
use crate::offload::OffloadBudget;
use crate::progress::DeviceProgress;
use crate::schedule::{PrefillPace, SchedulerLimits};
use crate::sequence::TokenSegment;
use crate::slots::{Allocator, pages_for};
use crate::snapshots::SnapshotCache;

use breaker::Breaker;
pub(crate) use breaker::BrokenVersion;
pub(crate) use fault::EngineFault;
use phase::EngineSession;
pub(crate) use sessions::SessionId;
use sessions::Sessions;
use step::StepSender;
pub(crate) use step::{GenerationRequest, StepOutput};
use weight_versions::WeightVersions;
pub(crate) use weight_versions::{NewWeights, OnSwap, SwapReport, SwapSettings};

/// All inputs of the engine's loop.
pub(crate) enum EngineEvent {
    Open {
        /// The new session's id.
        session: SessionId,
        /// Whether its tokens come from traces.
        rebuilt: bool,
        /// Cancelled when the session's owner has dropped it.
        life: CancellationToken,
        /// Receives the result: open, or why not.
        opened: oneshot::Sender<Result<(), EngineFault>>,
    },
    /// Continues a session: adds kept tokens and may request a reply.
    Step {
        session: SessionId,
        /// Segments to add to the kept tokens.
        kept: Vec<TokenSegment>,
        /// The prompt and how to reply to it; `None` if only the past is rebuilt.
        ask: Option<Box<GenerationRequest>>,
        done: StepSender,
    },
    /// Requests that other weights take effect between two batches.
    Weights(Box<NewWeights>),
    /// Ends a session. Its cancelled `life` has the same effect later.
    Close(SessionId),
    /// Ends every session and the engine.
    Stop,
}

/// How the engine uses its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EngineSettings {
    /// State slots of sessions.
    pub state_slots: u32,
    /// State slots of snapshots, in addition.
    pub snapshot_slots: u32,
    /// Tokens of a prefill chunk.
    pub chunk: u32,
    /// Rows of prefill beside the decode rows of one batch.
    pub prefill_tokens: u32,
    /// Most tokens of a session, its longest reply included.
    pub context_tokens_max: u32,
    /// Version of the weights at the start.
    pub version: PolicyVersion,
    /// How new weights take effect.
    pub swaps: SwapSettings,
}

impl EngineSettings {
    /// Most sessions that an engine with these settings admits with this capacity. `offloaded`
    /// returns the bytes that a state with this many pages takes in host memory.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub(crate) fn sessions_max(
        self,
        capacity: BackendCapacity,
        offload_bytes: impl Fn(u32) -> u64,
    ) -> Result<u32, SettingsMismatch> {
        check(self, capacity)?;
        Ok(sessions_max(
            self,
            capacity.pages,
            &OffloadBudget::of([offload_bytes(0), offload_bytes(1)], capacity.offload_bytes),
        ))
    }
}

/// Settings that do not fit the device's capacity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {has} {why}")]
pub struct SettingsMismatch {
    /// The size that is too small.
    pub what: &'static str,
    pub has: u32,
    pub why: String,
}

/// Most pages of a session beyond those its tokens fill: one copied after a fork, one after each of
/// two snapshots, and one partly filled page that the fork shares.
const PAGES_SPARE: u32 = 4;

/// The loop with its device and sessions.
pub(crate) struct Engine {
    device: MeteredBackend,
    settings: EngineSettings,
    limits: SchedulerLimits,
    pace: PrefillPace,
    allocator: Allocator,
    snapshots: SnapshotCache,
    features: FeatureCache,
    /// Ranks logits for replies that report log-probs of other tokens.
    sampler: Sampler,
    weight_versions: WeightVersions,
    offload_budget: OffloadBudget,
    sessions_max: u32,
    sessions: Sessions,
    /// Counts iterations and arrivals, to find the one that waited longest.
    clock: u64,
    breaker: Breaker,
    /// The device's failure, if there was one.
    lost: Option<DeviceLost>,
    is_stopped: bool,
    progress: Arc<DeviceProgress>,
}

impl Engine {
    /// Creates an engine on a device.
    pub(crate) fn new(device: Box<dyn Backend>, settings: EngineSettings) -> Result<Self, SettingsMismatch> {
        Self::with_clock(device, settings, TimeSource::system())
    }

    /// Creates an engine on a device with a simulated clock.
    pub(crate) fn with_clock(
        device: Box<dyn Backend>,
        settings: EngineSettings,
        time: TimeSource,
    ) -> Result<Self, SettingsMismatch> {
        let capacity = device.capacity();
        check(settings, capacity)?;
        let device = MeteredBackend::new(device, time.clone());
        let offload_budget = OffloadBudget::new(&device);
        Ok(Self {
            limits: SchedulerLimits {
                rows_max: capacity.rows_max,
                logits_max: capacity.logits_max,
                prefill_tokens: settings.prefill_tokens,
            },
            pace: PrefillPace::default(),
            allocator: Allocator::new(capacity.slots, capacity.pages),
            snapshots: SnapshotCache::new(settings.snapshot_slots),
            features: FeatureCache::new(capacity.features),
            sampler: Sampler::default(),
            weight_versions: WeightVersions::new(settings.version, settings.swaps.vision, None),
            sessions_max: sessions_max(settings, capacity.pages, &offload_budget),
            offload_budget,
            device,
            settings,
            sessions: Sessions::default(),
            clock: 0,
            breaker: Breaker::new(time),
            lost: None,
            is_stopped: false,
            progress: Arc::default(),
        })
    }

    /// Sends retired weights to a channel whose receiver frees them.
    pub(crate) fn retire_weights_to(mut self, drop_queue: mpsc::Sender<IncomingWeights>) -> Self {
        self.weight_versions =
            WeightVersions::new(self.settings.version, self.settings.swaps.vision, Some(drop_queue));
        self
    }

    /// Most sessions that fit at their longest.
    pub(crate) fn sessions_max(&self) -> u32 {
        self.sessions_max
    }

    /// Runs until it is stopped, every sender of events is dropped or the device has failed. No
    /// other code calls the device.
    pub(crate) fn run(mut self, events: &mut mpsc::Receiver<EngineEvent>) -> Self {
        while !self.is_stopped && self.lost.is_none() {
            if self.is_idle() {
                let Some(event) = events.blocking_recv() else { return self };
                self.apply(event);
            }
            while let Ok(event) = events.try_recv() {
                self.apply(event);
            }
            self.step();
        }
        self
    }

    /// What a watchdog reads.
    pub(crate) fn progress(&self) -> Arc<DeviceProgress> {
        self.progress.clone()
    }

    /// Reports the version in use while it is broken.
    pub(crate) fn broken_version(&self) -> watch::Receiver<Option<BrokenVersion>> {
        self.breaker.subscribe()
    }

    /// The device's failure, if there was one.
    pub(crate) fn lost(&self) -> Option<&DeviceLost> {
        self.lost.as_ref()
    }

    /// Whether no step or update waits.
    pub(crate) fn is_idle(&self) -> bool {
        let is_idle = |session: &EngineSession| matches!(session, EngineSession::Idle(_));
        self.sessions.values().all(is_idle) && !self.has_weights_to_take()
    }

    /// Updates the state; starts no batch.
    pub(crate) fn apply(&mut self, event: EngineEvent) {
        match event {
            EngineEvent::Open { session, rebuilt, life, opened } => {
                self.sweep();
                let answer = self.open(session, rebuilt, life);
                // The caller may have left. Its token is cancelled then, and the next sweep removes
                // the session.
                opened.send(answer).ok();
            }
            EngineEvent::Step { session, kept, ask, done } => {
                self.begin(session, kept, ask.map(|ask| *ask), done);
            }
            EngineEvent::Weights(new) => self.expect_weights(*new),
            EngineEvent::Close(session) => self.close(session),
            EngineEvent::Stop => {
                self.is_stopped = true;
                self.close_all();
            }
        }
    }

    /// One iteration: apply new weights, free capacity, run a batch, answer.
    pub(crate) fn step(&mut self) {
        self.device.idle_because(DeviceUse::Host);
        self.sweep();
        self.clock += 1;
        self.progress.begin();
        let used = self.use_device();
        self.progress.end();
        if let Err(lost) = used {
            self.fail_all(lost);
        }
        self.device.idle_because(self.why_idle());
    }

    /// All device calls of an iteration, up to the one that fails.
    fn use_device(&mut self) -> Result<(), DeviceLost> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        self.take_weights()?;
        self.admit()?;
        self.run_batch()
    }

    /// How the device's time was used so far.
    pub(crate) fn device_time(&mut self) -> DeviceTime {
        self.device.time()
    }

    /// States that were offloaded so far.
    pub(crate) fn offloaded(&self) -> u64 {
        self.offload_budget.offloaded()
    }

    /// Why the device idles between two iterations.
    fn why_idle(&self) -> DeviceUse {
        let is_waiting = |session: &EngineSession| matches!(session, EngineSession::Waiting(_));
        if self.sessions.all_running().next().is_some() {
            DeviceUse::Host
        } else if self.sessions.values().any(is_waiting) {
            DeviceUse::NoCapacity
        } else {
            DeviceUse::NoWork
        }
    }

    /// With no session left, only snapshots hold slots and pages.
    #[cfg(test)]
    fn assert_empty(&mut self) {
        while let Some(allocation) = self.snapshots.evict() {
            self.allocator.release(allocation);
        }
        let capacity = self.device.capacity();
        assert_eq!(
            (self.allocator.free_slots(), self.allocator.free_pages()),
            (capacity.slots, capacity.pages)
        );
        assert_eq!(self.offload_budget.bytes(), 0);
        assert_eq!(self.snapshots.awaited(), 0);
    }
}

/// Rejects settings with which a session could wait forever.
fn check(settings: EngineSettings, capacity: BackendCapacity) -> Result<(), SettingsMismatch> {
    let EngineSettings { state_slots, snapshot_slots, chunk, prefill_tokens, context_tokens_max, .. } =
        settings;
    let pages = pages_for(context_tokens_max) + PAGES_SPARE;
    let rules = [
        ("state slots", capacity.slots, state_slots + snapshot_slots, "for sessions and snapshots together"),
        ("state slots of sessions", state_slots, 2, "for a session and its fork"),
        ("KV pages", capacity.pages, pages, "for one session of the longest context"),
        ("prefill tokens", prefill_tokens, chunk, "for one chunk"),
        ("rows of a batch", capacity.rows_max, chunk, "for one chunk"),
        ("prefill chunk", chunk, 1, "for any batch"),
        ("rows of logits", capacity.logits_max, 1, "for any reply"),
    ];
    match rules.into_iter().find(|(_, has, needed, _)| has < needed) {
        None => Ok(()),
        Some((what, has, needed, why)) => {
            Err(SettingsMismatch { what, has, why: format!("is too small; use at least {needed} {why}") })
        }
    }
}

/// Most sessions that fit at their longest: those whose states stay on the device beside a running
/// one (base and fork), and those offloaded.
fn sessions_max(settings: EngineSettings, pages: u32, offload_budget: &OffloadBudget) -> u32 {
    let each = pages_for(settings.context_tokens_max) + PAGES_SPARE;
    let resident = (settings.state_slots - 2).min((pages - each) / each);
    let offloaded = offload_budget.capacity_for(each).min(u64::from(u32::MAX / 2)) as u32;
    (resident + offloaded).max(1)
}

#[cfg(test)]
mod tests;
