//! The way of a chat to the engine: a session of its own that is shown what was said, and one reply after another.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use furrow_model::template::Template;
use furrow_rollout::{PolicyVersion, Sampling};
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Shared;
use crate::constrain::{Constraint, ConstraintError, Letters, Lexicon, Schema};
use crate::draw::{Response, Stream, Watch};
use crate::engine::{Ask, Event, Fault, OnSwap, Reply, SessionId};
use crate::prompt;
use crate::sequence::{Picture, Stretch};

/// Makes chats on a model's engine.
#[derive(Clone)]
pub(crate) struct Talks(pub(super) Arc<Shared>);

/// A chat in the engine. Dropping it ends it there, whatever it was doing.
pub(crate) struct Talk {
    shared: Arc<Shared>,
    id: SessionId,
    /// Cancelled when this is dropped.
    _life: DropGuard,
    begun_on: PolicyVersion,
}

/// One reply that is asked for.
pub(crate) struct Wanted {
    /// What is shown behind what the session holds.
    pub stretch: Stretch,
    /// Whether it and the reply stay.
    pub stays: bool,
    /// How tokens are drawn; the stream of numbers begins anew with each reply.
    pub sampling: Sampling,
    /// What the reply is led to.
    pub constraint: Option<Arc<Constraint>>,
    /// Who is told of its tokens.
    pub watch: Watch,
}

/// Automata of schemas, the newest first.
#[derive(Debug)]
pub(super) struct Schemas {
    letters: OnceLock<Letters>,
    kept: Mutex<Vec<Compiled>>,
    /// One is made at a time, whoever still waits for it: making one cannot be broken off.
    making: Arc<Semaphore>,
}

#[derive(Debug)]
struct Compiled {
    /// As it was sent, in the order of its properties; `None`: any object.
    schema: Option<String>,
    max_tokens: u32,
    constraint: Arc<Constraint>,
}

/// Automata kept: clients ask with the same few schemas again and again. One has up to 200,000 places of 100 bytes and
/// 2 million ids of 8, and 2,048 sets.
const SCHEMAS_MAX: usize = 8;

impl Talks {
    /// The layout.
    pub fn template(&self) -> &Template {
        &self.0.template
    }

    /// Tokens of the longest chat, its longest reply included.
    pub fn context_tokens_max(&self) -> u32 {
        self.0.context_tokens_max
    }

    /// The beginning of the hash of the weights in use.
    pub fn fingerprint(&self) -> String {
        format!("furrow-{}", self.0.in_use().weights_sha256.chars().take(12).collect::<String>())
    }

    /// Whether the model can be shown this id.
    pub fn knows(&self, id: u32) -> bool {
        (id as usize) < self.0.embedding_rows && id != self.0.vision.image_token
    }

    /// Decodes a picture and cuts it into tiles, on a thread that may take its time.
    pub async fn picture(&self, encoded: Bytes) -> Result<Arc<Picture>, String> {
        let shared = self.0.clone();
        let preparing = tokio::task::spawn_blocking(move || {
            prompt::picture(&encoded, &shared.vision, shared.resample).map_err(|why| why.to_string())
        });
        preparing.await.unwrap_or_else(|why| Err(why.to_string())).map(Arc::new)
    }

    /// The automaton of a schema, made when it is first asked for. `source`: as it was sent, or `None` for any object.
    pub async fn constraint(
        &self,
        source: Option<String>,
        schema: Schema,
        max_tokens: u32,
    ) -> Result<Arc<Constraint>, ConstraintError> {
        if let Some(constraint) = self.0.schemas.find(source.as_ref(), max_tokens) {
            return Ok(constraint);
        }
        let turn = self.0.schemas.making.clone().acquire_owned().await;
        // Somebody else may have made it meanwhile.
        if let Some(constraint) = self.0.schemas.find(source.as_ref(), max_tokens) {
            return Ok(constraint);
        }
        let shared = self.0.clone();
        let compiling = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let template = &shared.template;
            let lexicon = Lexicon::of(template.tokenizer(), shared.vocabulary, template.stop());
            let letters = shared.schemas.letters.get_or_init(|| Letters::of(&lexicon));
            let constraint = Constraint::of_schema(&schema, &lexicon, letters, max_tokens)?;
            let mut kept = shared.schemas.lock();
            kept.truncate(SCHEMAS_MAX - 1);
            kept.insert(0, Compiled { schema: source, max_tokens, constraint: constraint.clone() });
            Ok::<_, ConstraintError>(constraint)
        });
        compiling.await.unwrap_or(Err(ConstraintError::Ambiguous))
    }

    /// Begins a chat.
    pub async fn open(&self) -> Result<Talk, Fault> {
        let shared = self.0.clone();
        let id = SessionId(shared.sessions.fetch_add(1, Ordering::Relaxed));
        let life = CancellationToken::new();
        let begun_on = shared.in_use().version;
        // From here on the session is closed by being dropped, whatever becomes of the opening.
        let talk = Talk { shared, id, _life: life.clone().drop_guard(), begun_on };
        let (opened, answer) = oneshot::channel();
        talk.tell(Event::Open { session: id, rebuilt: false, life, opened }).await?;
        answer.await.map_err(|_| Fault::Gone)??;
        Ok(talk)
    }
}

impl Default for Schemas {
    fn default() -> Self {
        Self { letters: OnceLock::new(), kept: Mutex::default(), making: Arc::new(Semaphore::new(1)) }
    }
}

impl Schemas {
    fn find(&self, source: Option<&String>, max_tokens: u32) -> Option<Arc<Constraint>> {
        let kept = self.lock();
        let same = |made: &&Compiled| made.schema.as_ref() == source && made.max_tokens == max_tokens;
        kept.iter().find(same).map(|made| made.constraint.clone())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Compiled>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Talk {
    /// Whether its state was written by weights that shall not be gone on with.
    pub fn is_outdated(&self) -> bool {
        self.shared.on_swap != OnSwap::Keep && self.begun_on < self.shared.in_use().version
    }

    /// Shows what was said and waits for the reply.
    pub async fn reply(&mut self, wanted: Wanted) -> Result<Reply, Fault> {
        let Wanted { stretch, stays, sampling, constraint, watch } = wanted;
        let stream = Stream::of_chat(sampling.seed);
        let stop = self.shared.template.stop();
        // A free reply that is cut gets the stop id appended.
        let tokens_max = sampling.max_tokens + u32::from(constraint.is_none());
        let mut response = Response::new(&sampling, &stream, 0, stop, constraint.as_ref()).watched(watch);
        if let Some(among) = &self.shared.among {
            response = response.among(among);
        }
        let ask = Box::new(Ask { prompt: stretch, stays, response, tokens_max });
        let (done, answer) = oneshot::channel();
        self.tell(Event::Step { session: self.id, kept: Vec::new(), ask: Some(ask), done }).await?;
        answer.await.map_err(|_| Fault::Gone)?
    }

    async fn tell(&self, event: Event) -> Result<(), Fault> {
        self.shared.events.send(event).await.map_err(|_| Fault::Gone)
    }
}

impl Drop for Talk {
    /// Has its place freed now. An engine that is too busy to be told sees it by itself: its life ends with this.
    fn drop(&mut self) {
        self.shared.events.try_send(Event::Close(self.id)).ok();
    }
}
