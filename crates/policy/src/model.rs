//! The `model` policy: a checkpoint, the engine that runs it on its own thread, and the state its
//! sessions share.

mod audit;
mod chat;
mod check;
mod open;
mod schema_cache;
mod session;
mod shared;
mod watchdog;
mod weights;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use furrow_rollout::{PolicyHashes, PolicyKind, PolicyVersion, WeightsOrder};
use furrow_wire::{PastStep, SessionOpening};
use tokio::sync::oneshot;

use crate::device_faults::arm_at_stop;
use crate::engine::{EngineEvent, NewWeights, SwapReport};
use crate::policy::{Policy, PolicyError, Session, WeightSwapStats};
use crate::progress::DeviceProgress;
use session::{ModelSession, score_again};
use shared::{CurrentWeights, EngineEnd, ModelShared};
use weights::{LoadedWeights, WeightUpdateLoader, error_chain};

pub(crate) use chat::{ChatEngine, ChatReplyRequest, ChatSession, ConstrainedForm};
pub use open::{EngineMemoryPlan, ModelError, cpu_memory_bytes};

/// Runs a checkpoint in an engine on its own thread.
pub struct ModelPolicy {
    shared: Arc<ModelShared>,
    hashes: PolicyHashes,
    sessions_max: u32,
    loader: Arc<WeightUpdateLoader>,
    /// Only one weight update runs at a time.
    swap_lock: tokio::sync::Mutex<()>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    progress: Arc<DeviceProgress>,
}

/// Time that the engine gets to end. A batch on a CPU may take longer; the process ends without it.
const STOP_MAX: Duration = Duration::from_secs(10);

#[tonic::async_trait]
impl Policy for ModelPolicy {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Model
    }

    fn wants_hints(&self) -> bool {
        false
    }

    fn hashes(&self) -> PolicyHashes {
        let weights = Some(self.shared.current_weights().weights_sha256);
        PolicyHashes { weights, ..self.hashes.clone() }
    }

    fn version(&self) -> Option<PolicyVersion> {
        Some(self.shared.current_weights().version)
    }

    fn sessions_max(&self) -> Option<u32> {
        Some(self.sessions_max)
    }

    fn broken(&self) -> Option<(PolicyVersion, String)> {
        let broken = *self.shared.broken.borrow();
        // An older version may be broken while trajectories finish on it.
        let broken = broken.filter(|broken| Some(broken.version) == self.version())?;
        Some((broken.version, broken.to_string()))
    }

    async fn break_changed(&self) {
        let mut broken = self.shared.broken.clone();
        broken.mark_unchanged();
        if broken.changed().await.is_err() {
            // The engine has ended, which `failed` reports.
            std::future::pending::<()>().await;
        }
    }

    async fn open(&self, opening: &SessionOpening) -> Result<Box<dyn Session>, PolicyError> {
        let constraint = self.shared.constraint_of(opening).await?;
        Ok(Box::new(ModelSession::open(&self.shared, opening, constraint).await?))
    }

    async fn take_weights(&self, order: &WeightsOrder) -> Result<WeightSwapStats, String> {
        let _one = self.swap_lock.lock().await;
        let began = Instant::now();
        let loader = self.loader.clone();
        let wanted = order.clone();
        let loading = tokio::task::spawn_blocking(move || loader.load(&wanted));
        let loaded = loading.await.map_err(|why| why.to_string())?;
        let LoadedWeights { hashes, incoming } = loaded.map_err(|why| error_chain(&why))?;
        let load_micros = began.elapsed().as_micros() as u64;
        let (done, answer) = oneshot::channel();
        let version = order.version;
        let vision = hashes.vision;
        let new = NewWeights { version, vision, weights: incoming, done };
        self.shared.send_event(EngineEvent::Weights(Box::new(new))).await.map_err(|why| why.to_string())?;
        let swapped = self.shared.answer(answer).await.map_err(|why| why.to_string())?;
        let swapped = swapped.map_err(|why| why.to_string())?;
        *self.shared.current_weights.lock().unwrap_or_else(PoisonError::into_inner) =
            CurrentWeights { version, weights_sha256: hashes.weights };
        let SwapReport { pause_micros, sessions, old_versions } = swapped;
        tracing::info!(version = version.0, pause_micros, sessions, old_versions, "new weights took effect");
        Ok(WeightSwapStats { load_micros, pause_micros, sessions })
    }

    async fn failed(&self) -> String {
        self.shared.ended().await.to_string()
    }

    fn prepare_to_stop(&self) {
        self.progress.prepare_to_stop();
        arm_at_stop();
    }

    async fn stop(&self) -> Result<(), String> {
        let stopping = async {
            // The send fails only if the engine has ended already.
            self.shared.events.send(EngineEvent::Stop).await.ok();
            self.shared.ended().await
        };
        let Ok(end) = tokio::time::timeout(STOP_MAX, stopping).await else {
            // Without a watchdog, as on a CPU, a long batch is no failure.
            tracing::error!(
                seconds = STOP_MAX.as_secs(),
                "the engine did not stop in time; the process ends without it"
            );
            return Ok(());
        };
        if matches!(end, EngineEnd::Stalled { .. }) {
            return Err(end.to_string());
        }
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            let joined = tokio::task::spawn_blocking(|| thread.join()).await;
            if !matches!(joined, Ok(Ok(()))) {
                tracing::error!(name, "a thread panicked");
            }
        }
        if end == EngineEnd::Stopped { Ok(()) } else { Err(end.to_string()) }
    }
}

impl ModelPolicy {
    /// Log-probs of recorded tokens over the whole vocabulary, at the session's temperature, by the
    /// prefill path. The earlier steps run as in a worker that never held the session; each token
    /// is scored after a prompt that ends just before it.
    ///
    /// `positions` are indices into the response of `step`, which follows `past`. Returns an error
    /// if another model recorded the trace.
    pub async fn score(
        &self,
        opening: &SessionOpening,
        past: &[PastStep],
        step: &PastStep,
        indices: &[usize],
    ) -> Result<Vec<f32>, PolicyError> {
        score_again(&self.shared, opening, past, step, indices).await
    }
}

impl ModelPolicy {
    /// Access to the engine for chats, which are not trajectories.
    pub(crate) fn chat_engine(&self) -> ChatEngine {
        ChatEngine(self.shared.clone())
    }
}
