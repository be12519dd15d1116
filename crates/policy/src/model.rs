//! The `model` policy: a checkpoint, the engine that runs it on a thread of its own, and what its sessions share.

mod audit;
mod open;
mod session;
mod talk;
mod weights;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use furrow_model::backend::DeviceLost;
use furrow_model::config::VisionConfig;
use furrow_model::sample::Allowed;
use furrow_model::template::Template;
use furrow_model::vision::Resample;
use furrow_rollout::{ContextPolicy, Grammar, Hashes, PolicyKind, PolicyVersion, WeightsOrder};
use furrow_wire::{Opening, PastStep};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::constrain::{Constraint, ConstraintError, Lexicon, Rules};
use crate::context::Marks;
use crate::conversation::Replay;
use crate::engine::{Event, Fault, NewWeights, OnSwap, SessionId, Swapped};
use crate::policy::{Policy, PolicyError, Session, Taken};
use audit::Audit;
use session::ModelSession;
use weights::{Loaded, Loader};

pub use open::{Arena, ModelError, bytes_on_the_processor};
pub(crate) use talk::{Talk, Talks, Wanted};

/// Runs a checkpoint.
pub struct Model {
    shared: Arc<Shared>,
    hashes: Hashes,
    places: u32,
    loader: Arc<Loader>,
    /// One exchange at a time.
    taking: tokio::sync::Mutex<()>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What sessions have in common.
struct Shared {
    events: mpsc::Sender<Event>,
    /// Why the engine has ended; `None` while it runs.
    ended: watch::Receiver<Option<Ended>>,
    sessions: AtomicU64,
    template: Template,
    marks: Marks,
    vision: VisionConfig,
    resample: Resample,
    rules: Option<Rules>,
    /// One automaton for each grammar and length of reply that sessions were opened with.
    constraints: Mutex<Vec<Compiled>>,
    /// What chats are led to.
    schemas: Arc<talk::Schemas>,
    /// Rows of the output head: ids below can be drawn.
    vocabulary: usize,
    /// Rows of the embedding table: ids below can be run.
    embedding_rows: usize,
    /// What a free reply draws among; `None`: every id.
    among: Option<Arc<Allowed>>,
    context_tokens_max: u32,
    replay: Replay,
    on_swap: OnSwap,
    audit: Option<Audit>,
    in_use: Mutex<InUse>,
}

/// Why an engine runs no more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Ended {
    /// Its device failed.
    #[error(transparent)]
    Device(#[from] DeviceLost),
    /// The worker stops.
    #[error("its engine was stopped")]
    Stopped,
    /// A bug.
    #[error("its engine ended by a panic; the log says where")]
    Panicked,
}

impl Ended {
    fn of(lost: Option<&DeviceLost>) -> Self {
        lost.map_or(Self::Stopped, |lost| lost.clone().into())
    }
}

/// The weights that new sessions run on.
#[derive(Debug, Clone)]
struct InUse {
    version: PolicyVersion,
    weights_sha256: String,
}

struct Compiled {
    grammar: Grammar,
    max_tokens: u32,
    constraint: Arc<Constraint>,
}

/// Automata kept: a worker serves one job at a time, which has one grammar.
const CONSTRAINTS_MAX: usize = 8;

#[tonic::async_trait]
impl Policy for Model {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Model
    }

    fn wants_hints(&self) -> bool {
        false
    }

    fn hashes(&self) -> Hashes {
        let weights = Some(self.shared.in_use().weights_sha256);
        Hashes { weights, ..self.hashes.clone() }
    }

    fn version(&self) -> Option<PolicyVersion> {
        Some(self.shared.in_use().version)
    }

    fn places(&self) -> Option<u32> {
        Some(self.places)
    }

    async fn open(&self, opening: &Opening) -> Result<Box<dyn Session>, PolicyError> {
        let constraint = self.shared.constraint_of(opening).await?;
        Ok(Box::new(self.shared.open(opening, constraint).await?))
    }

    async fn take_weights(&self, order: &WeightsOrder) -> Result<Taken, String> {
        let _one = self.taking.lock().await;
        let began = Instant::now();
        let (loader, wanted) = (self.loader.clone(), order.clone());
        let loading = tokio::task::spawn_blocking(move || loader.load(&wanted));
        let Loaded { hashes, incoming } = loading.await.map_err(|why| why.to_string())??;
        let load_micros = began.elapsed().as_micros() as u64;
        let (done, answer) = oneshot::channel();
        let (version, vision) = (order.version, hashes.vision);
        let new = NewWeights { version, vision, weights: incoming, done };
        self.shared.tell(Event::Weights(Box::new(new))).await.map_err(|why| why.to_string())?;
        let swapped =
            answer.await.map_err(|_| self.shared.gone().to_string())?.map_err(|why| why.to_string())?;
        *self.shared.in_use.lock().unwrap_or_else(PoisonError::into_inner) =
            InUse { version, weights_sha256: hashes.weights };
        let Swapped { pause_micros, sessions, old_versions } = swapped;
        tracing::info!(version = version.0, pause_micros, sessions, old_versions, "new weights are in use");
        Ok(Taken { load_micros, pause_micros, sessions })
    }

    async fn failed(&self) -> String {
        let mut ended = self.shared.ended.clone();
        let ended = ended.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone());
        // A thread that went without a word panicked.
        ended.unwrap_or(Ended::Panicked).to_string()
    }

    async fn stop(&self) {
        // An engine that is gone needs no telling.
        self.shared.events.send(Event::Stop).await.ok();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            let joined = tokio::task::spawn_blocking(|| thread.join()).await;
            if !matches!(joined, Ok(Ok(()))) {
                tracing::error!(name, "a thread ended by a panic");
            }
        }
    }
}

impl Model {
    /// Log-probs of recorded tokens, whole vocabulary at the session's temperature, by the prefill path: the steps before are read again as
    /// a worker would that never held the session, and each token is scored behind a prompt that ends just before it.
    ///
    /// `places` are indices into the response of `step`, which follows `past`. Fails where the trace is none of this model's.
    pub async fn score(
        &self,
        opening: &Opening,
        past: &[PastStep],
        step: &PastStep,
        places: &[usize],
    ) -> Result<Vec<f32>, PolicyError> {
        audit::score(&self.shared, opening, past, step, places).await
    }
}

impl Model {
    /// The way to its engine for chats, which are no trajectories.
    pub(crate) fn talks(&self) -> Talks {
        Talks(self.shared.clone())
    }
}

impl Shared {
    async fn open(
        self: &Arc<Self>,
        opening: &Opening,
        constraint: Option<Arc<Constraint>>,
    ) -> Result<ModelSession, PolicyError> {
        let id = SessionId(self.sessions.fetch_add(1, Ordering::Relaxed));
        let life = CancellationToken::new();
        // From here on the session is closed by being dropped, whatever becomes of the opening.
        let session = ModelSession::new(self.clone(), id, life.clone(), opening.clone(), constraint);
        let (opened, answer) = oneshot::channel();
        let rebuilt = opening.past_steps > 0;
        self.tell(Event::Open { session: id, rebuilt, life, opened }).await?;
        let answer = answer.await.map_err(|_| self.gone())?;
        answer.map_err(|fault| fault_at(0, &fault))?;
        Ok(session)
    }

    fn in_use(&self) -> InUse {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn tell(&self, event: Event) -> Result<(), PolicyError> {
        self.events.send(event).await.map_err(|_| self.gone())
    }

    /// What a session is told that finds no engine.
    fn gone(&self) -> PolicyError {
        let ended = self.ended.borrow().clone();
        let why = ended.map_or_else(|| "its engine has stopped".to_owned(), |ended| ended.to_string());
        PolicyError::Gone { why }
    }

    /// The automaton for a session's grammar, made when the first asks for it.
    async fn constraint_of(
        self: &Arc<Self>,
        opening: &Opening,
    ) -> Result<Option<Arc<Constraint>>, PolicyError> {
        if self.rules.is_none() {
            return Ok(None);
        }
        let (grammar, max_tokens) = (opening.session.grammar.clone(), opening.session.sampling.max_tokens);
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
        // Whoever comes while one is made waits for it here: it is most likely the same.
        let mut kept = self.constraints.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |compiled: &&Compiled| compiled.grammar == *grammar && compiled.max_tokens == max_tokens;
        if let Some(compiled) = kept.iter().find(same) {
            return Ok(Some(compiled.constraint.clone()));
        }
        let lexicon = Lexicon::of(self.template.tokenizer(), self.vocabulary, self.template.stop());
        let constraint = Constraint::compile(grammar, &lexicon, rules, max_tokens)?;
        kept.truncate(CONSTRAINTS_MAX - 1);
        kept.insert(0, Compiled { grammar: grammar.clone(), max_tokens, constraint: constraint.clone() });
        Ok(Some(constraint))
    }

    /// Tokens a reply can have at most: a free one that is cut gets the stop id appended.
    fn reply_tokens_max(&self, max_tokens: u32) -> u32 {
        max_tokens + u32::from(self.rules.is_none())
    }
}

/// What a fault of the engine means for a session.
fn fault_at(step: u32, fault: &Fault) -> PolicyError {
    let why = fault.to_string();
    match fault {
        Fault::Full { .. } => PolicyError::Full { why },
        Fault::Device(_) | Fault::Gone => PolicyError::Gone { why },
        Fault::NotFinite { .. } | Fault::TooLong { .. } | Fault::Refused(_) => {
            PolicyError::Failed { step, why }
        }
    }
}

/// Whether a context policy shows a picture of step `step` again at step `now`.
fn is_seen_at(keep: ContextPolicy, step: u32, now: u32) -> bool {
    match keep {
        ContextPolicy::Append => true,
        ContextPolicy::LastImage | ContextPolicy::Fresh => step == now,
        ContextPolicy::Window(pictures) => now - step < pictures,
    }
}
