//! The `model` policy: a checkpoint, the engine that runs it on its own thread, and the state its
//! sessions share.

mod audit;
mod chat;
mod open;
mod session;
mod weights;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use furrow_model::backend::DeviceLost;
use furrow_model::config::VisionConfig;
use furrow_model::sample::AllowedTokens;
use furrow_model::template::ChatTemplate;
use furrow_model::vision::ResampleMode;
use furrow_rollout::{ContextPolicy, Grammar, PolicyHashes, PolicyKind, PolicyVersion, WeightsOrder};
use furrow_wire::{PastStep, SessionOpening};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::constrain::{Constraint, ConstraintError, ConstraintRules, TokenLexicon};
use crate::context::ImageDelimiters;
use crate::conversation::RebuildMode;
use crate::engine::{EngineEvent, EngineFault, NewWeights, OnSwap, SessionId, SwapReport};
use crate::policy::{Policy, PolicyError, Session, WeightSwapStats};
use audit::DriftAudit;
use session::ModelSession;
use weights::{LoadedWeights, WeightUpdateLoader, error_chain};

pub(crate) use chat::{ChatEngine, ChatReplyRequest, ChatSession};
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
}

/// State that all sessions share.
struct ModelShared {
    events: mpsc::Sender<EngineEvent>,
    /// Why the engine ended; `None` while it runs.
    ended: watch::Receiver<Option<EngineEnd>>,
    sessions: AtomicU64,
    template: ChatTemplate,
    delimiters: ImageDelimiters,
    vision: VisionConfig,
    resample: ResampleMode,
    rules: Option<ConstraintRules>,
    /// One automaton for each grammar and reply length of the sessions opened so far.
    constraints: Mutex<Vec<CompiledGrammar>>,
    /// Automata of the JSON schemas that chats ask for.
    schemas: Arc<chat::SchemaCache>,
    /// Rows of the output head. Ids below can be sampled.
    vocabulary: usize,
    /// Rows of the embedding table. Ids below can be run.
    embedding_rows: usize,
    /// Ids that an unconstrained reply may sample; `None`: every id.
    allowed_ids: Option<Arc<AllowedTokens>>,
    context_tokens_max: u32,
    rebuild_mode: RebuildMode,
    on_swap: OnSwap,
    audit: Option<DriftAudit>,
    current_weights: Mutex<CurrentWeights>,
}

/// Why an engine does not run any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum EngineEnd {
    #[error(transparent)]
    Device(#[from] DeviceLost),
    #[error("its engine was stopped")]
    Stopped,
    /// The engine's thread panicked, which is a bug.
    #[error("its engine panicked; see the worker's log")]
    Panicked,
}

impl EngineEnd {
    fn of(lost: Option<&DeviceLost>) -> Self {
        lost.map_or(Self::Stopped, |lost| lost.clone().into())
    }
}

/// The weights that new sessions run on.
#[derive(Debug, Clone)]
struct CurrentWeights {
    version: PolicyVersion,
    weights_sha256: String,
}

struct CompiledGrammar {
    grammar: Grammar,
    max_tokens: u32,
    constraint: Arc<Constraint>,
}

/// How many automata are kept. A worker serves one job at a time, and a job has one grammar.
const CONSTRAINTS_MAX: usize = 8;

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

    async fn open(&self, opening: &SessionOpening) -> Result<Box<dyn Session>, PolicyError> {
        let constraint = self.shared.constraint_of(opening).await?;
        Ok(Box::new(self.shared.open(opening, constraint).await?))
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
        let swapped = answer
            .await
            .map_err(|_| self.shared.engine_gone().to_string())?
            .map_err(|why| why.to_string())?;
        *self.shared.current_weights.lock().unwrap_or_else(PoisonError::into_inner) =
            CurrentWeights { version, weights_sha256: hashes.weights };
        let SwapReport { pause_micros, sessions, old_versions } = swapped;
        tracing::info!(version = version.0, pause_micros, sessions, old_versions, "new weights took effect");
        Ok(WeightSwapStats { load_micros, pause_micros, sessions })
    }

    async fn failed(&self) -> String {
        let mut ended = self.shared.ended.clone();
        let ended = ended.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone());
        // A thread that ended without a reason has panicked.
        ended.unwrap_or(EngineEnd::Panicked).to_string()
    }

    async fn stop(&self) {
        // The send fails only if the engine has ended already.
        self.shared.events.send(EngineEvent::Stop).await.ok();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            let joined = tokio::task::spawn_blocking(|| thread.join()).await;
            if !matches!(joined, Ok(Ok(()))) {
                tracing::error!(name, "a thread panicked");
            }
        }
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
        audit::score(&self.shared, opening, past, step, indices).await
    }
}

impl ModelPolicy {
    /// Access to the engine for chats, which are not trajectories.
    pub(crate) fn chat_engine(&self) -> ChatEngine {
        ChatEngine(self.shared.clone())
    }
}

impl ModelShared {
    async fn open(
        self: &Arc<Self>,
        opening: &SessionOpening,
        constraint: Option<Arc<Constraint>>,
    ) -> Result<ModelSession, PolicyError> {
        let id = SessionId(self.sessions.fetch_add(1, Ordering::Relaxed));
        let life = CancellationToken::new();
        // From here on, dropping the session closes it, also if opening it fails.
        let session = ModelSession::new(self.clone(), id, life.clone(), opening.clone(), constraint);
        let (opened, answer) = oneshot::channel();
        let rebuilt = opening.past_steps > 0;
        self.send_event(EngineEvent::Open { session: id, rebuilt, life, opened }).await?;
        let answer = answer.await.map_err(|_| self.engine_gone())?;
        answer.map_err(|fault| policy_error(0, &fault))?;
        Ok(session)
    }

    fn current_weights(&self) -> CurrentWeights {
        self.current_weights.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn send_event(&self, event: EngineEvent) -> Result<(), PolicyError> {
        self.events.send(event).await.map_err(|_| self.engine_gone())
    }

    /// The error for a session whose engine has ended.
    fn engine_gone(&self) -> PolicyError {
        let ended = self.ended.borrow().clone();
        let why = ended.map_or_else(|| "its engine has stopped".to_owned(), |ended| ended.to_string());
        PolicyError::Gone { why }
    }

    /// The automaton for a session's grammar, compiled on first use.
    async fn constraint_of(
        self: &Arc<Self>,
        opening: &SessionOpening,
    ) -> Result<Option<Arc<Constraint>>, PolicyError> {
        if self.rules.is_none() {
            return Ok(None);
        }
        let grammar = opening.session.grammar.clone();
        let max_tokens = opening.session.sampling.max_tokens;
        let shared = self.clone();
        let compiling = tokio::task::spawn_blocking(move || shared.constraint(&grammar, max_tokens));
        let compiled = compiling.await.map_err(|why| PolicyError::Settings { why: why.to_string() })?;
        compiled.map_err(|why| PolicyError::Settings { why: why.to_string() })
    }

    fn constraint(
        &self,
        grammar: &Grammar,
        max_tokens: u32,
    ) -> Result<Option<Arc<Constraint>>, ConstraintError> {
        let Some(rules) = &self.rules else { return Ok(None) };
        // The lock is held while an automaton is compiled, because callers that wait most likely
        // need the same one.
        let mut kept = self.constraints.lock().unwrap_or_else(PoisonError::into_inner);
        let same =
            |compiled: &&CompiledGrammar| compiled.grammar == *grammar && compiled.max_tokens == max_tokens;
        if let Some(compiled) = kept.iter().find(same) {
            return Ok(Some(compiled.constraint.clone()));
        }
        let lexicon = TokenLexicon::of(self.template.tokenizer(), self.vocabulary, self.template.stop());
        let constraint = Constraint::compile(grammar, &lexicon, rules, max_tokens)?;
        kept.truncate(CONSTRAINTS_MAX - 1);
        kept.insert(
            0,
            CompiledGrammar { grammar: grammar.clone(), max_tokens, constraint: constraint.clone() },
        );
        Ok(Some(constraint))
    }

    /// Most tokens of a reply. An unconstrained reply that reaches the limit gets the stop id
    /// appended.
    fn reply_tokens_max(&self, max_tokens: u32) -> u32 {
        max_tokens + u32::from(self.rules.is_none())
    }
}

/// Maps an engine fault to the error of a session.
fn policy_error(step: u32, fault: &EngineFault) -> PolicyError {
    let why = fault.to_string();
    match fault {
        EngineFault::Full { .. } => PolicyError::Full { why },
        EngineFault::Device(_) | EngineFault::Gone => PolicyError::Gone { why },
        EngineFault::NotFinite { .. } | EngineFault::TooLong { .. } | EngineFault::Refused(_) => {
            PolicyError::Failed { step, why }
        }
    }
}

/// Whether a context policy still shows the image of step `step` at step `now`.
fn is_shown_at(keep: ContextPolicy, step: u32, now: u32) -> bool {
    match keep {
        ContextPolicy::Append => true,
        ContextPolicy::LastImage | ContextPolicy::Fresh => step == now,
        ContextPolicy::Window(pictures) => now - step < pictures,
    }
}
