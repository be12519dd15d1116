//! A chat's session in the engine: it runs the messages of the chat and produces one reply after
//! another.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use furrow_model::template::ChatTemplate;
use furrow_rollout::{PolicyVersion, SamplingParams};
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::ModelShared;
use crate::constrain::{Constraint, ConstraintError, Schema, SharedTransitions, TokenLexicon};
use crate::engine::{EngineEvent, EngineFault, GenerationRequest, OnSwap, SessionId, StepOutput};
use crate::prompt;
use crate::response::{PartialResponse, RandomStream, TokenWatcher};
use crate::sequence::{TiledImage, TokenSegment};

/// Opens chats on a model's engine.
#[derive(Clone)]
pub(crate) struct ChatEngine(pub(super) Arc<ModelShared>);

/// A chat's session in the engine. Dropping it ends the session at once.
pub(crate) struct ChatSession {
    shared: Arc<ModelShared>,
    id: SessionId,
    /// Cancelled when this is dropped.
    _life: DropGuard,
    begun_on: PolicyVersion,
}

/// A request for one reply.
pub(crate) struct ChatReplyRequest {
    /// The tokens after those that the session holds.
    pub segment: TokenSegment,
    /// Whether these tokens and the reply stay in the session.
    pub keeps_reply: bool,
    /// How tokens are sampled. Each reply starts the random stream again.
    pub sampling: SamplingParams,
    /// The constraint on the reply.
    pub constraint: Option<Arc<Constraint>>,
    /// Receives the reply's tokens.
    pub watch: TokenWatcher,
}

/// Automata of schemas, the most recently used first.
#[derive(Debug)]
pub(super) struct SchemaCache {
    letters: OnceLock<SharedTransitions>,
    kept: Mutex<Vec<(SchemaKey, Arc<Constraint>)>>,
    /// Automata are compiled one at a time, since a compilation cannot be aborted when its caller
    /// leaves.
    making: Arc<Semaphore>,
}

/// What identifies an automaton.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SchemaKey {
    /// The schema as it was sent, with the order of its properties: equal JSON values can stand for
    /// different texts. `None`: any object.
    schema: Option<String>,
    max_tokens: u32,
}

/// How many automata are kept, since clients send the same few schemas repeatedly. One has at most
/// 200,000 nodes of 100 bytes, 2 million ids of 8 bytes, and 2,048 sets.
const SCHEMAS_MAX: usize = 8;

impl ChatEngine {
    /// The template of the checkpoint.
    pub fn template(&self) -> &ChatTemplate {
        &self.0.template
    }

    /// Most tokens of a chat, including its longest reply.
    pub fn context_tokens_max(&self) -> u32 {
        self.0.context_tokens_max
    }

    /// A prefix of the hash of the weights in use.
    pub fn fingerprint(&self) -> String {
        format!("furrow-{}", self.0.current_weights().weights_sha256.chars().take(12).collect::<String>())
    }

    /// Whether the model accepts this id in a prompt.
    pub fn knows(&self, id: u32) -> bool {
        (id as usize) < self.0.embedding_rows && id != self.0.vision.image_token
    }

    /// Decodes an image and cuts it into tiles on a blocking thread.
    pub async fn picture(&self, encoded: Bytes) -> Result<Arc<TiledImage>, String> {
        let shared = self.0.clone();
        let preparing = tokio::task::spawn_blocking(move || {
            prompt::picture(&encoded, &shared.vision, shared.resample).map_err(|why| why.to_string())
        });
        preparing.await.unwrap_or_else(|why| Err(why.to_string())).map(Arc::new)
    }

    /// Tokens that an image takes, read from its header. A long JPEG takes milliseconds.
    pub fn picture_rows(&self, encoded: &[u8]) -> Result<u32, String> {
        prompt::picture_rows(encoded, &self.0.vision).map_err(|why| why.to_string())
    }

    /// The automaton of a schema, compiled on first use. `source` is the schema as it was sent, or
    /// `None` for any object.
    pub async fn constraint(
        &self,
        source: Option<String>,
        schema: Schema,
        max_tokens: u32,
    ) -> Result<Arc<Constraint>, ConstraintError> {
        let shared = self.0.clone();
        let making = move |schemas: &SchemaCache| {
            let template = &shared.template;
            let lexicon = TokenLexicon::of(template.tokenizer(), shared.vocabulary, template.stop());
            let letters = schemas.letters.get_or_init(|| SharedTransitions::of(&lexicon));
            Constraint::of_schema(&schema, &lexicon, letters, max_tokens)
        };
        self.0.schemas.clone().get(SchemaKey { schema: source, max_tokens }, making).await
    }

    pub async fn open(&self) -> Result<ChatSession, EngineFault> {
        let shared = self.0.clone();
        let id = SessionId(shared.sessions.fetch_add(1, Ordering::Relaxed));
        let life = CancellationToken::new();
        let begun_on = shared.current_weights().version;
        // From here on, dropping the session closes it, also if opening it fails.
        let chat = ChatSession { shared, id, _life: life.clone().drop_guard(), begun_on };
        let (opened, answer) = oneshot::channel();
        chat.send_event(EngineEvent::Open { session: id, rebuilt: false, life, opened }).await?;
        answer.await.map_err(|_| EngineFault::Gone)??;
        Ok(chat)
    }
}

impl Default for SchemaCache {
    fn default() -> Self {
        Self { letters: OnceLock::new(), kept: Mutex::default(), making: Arc::new(Semaphore::new(1)) }
    }
}

impl SchemaCache {
    /// Returns the automaton of a key: one that is kept, or one that `compile` builds on a blocking
    /// thread.
    async fn get(
        self: Arc<Self>,
        form: SchemaKey,
        make: impl FnOnce(&Self) -> Result<Arc<Constraint>, ConstraintError> + Send + 'static,
    ) -> Result<Arc<Constraint>, ConstraintError> {
        if let Some(constraint) = self.find(&form) {
            return Ok(constraint);
        }
        let turn = self.making.clone().acquire_owned().await;
        // Another caller may have compiled it while this one waited.
        if let Some(constraint) = self.find(&form) {
            return Ok(constraint);
        }
        let making = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            make(&self).inspect(|constraint| self.keep(form, constraint.clone()))
        });
        making.await.unwrap_or_else(|why| Err(ConstraintError::Broken { why: why.to_string() }))
    }

    fn find(&self, form: &SchemaKey) -> Option<Arc<Constraint>> {
        let mut kept = self.lock();
        let index = kept.iter().position(|(of, _)| of == form)?;
        kept[..=index].rotate_right(1);
        Some(kept[0].1.clone())
    }

    fn keep(&self, form: SchemaKey, constraint: Arc<Constraint>) {
        let mut kept = self.lock();
        kept.truncate(SCHEMAS_MAX - 1);
        kept.insert(0, (form, constraint));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(SchemaKey, Arc<Constraint>)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ChatSession {
    /// Whether older weights wrote its state and newer ones must not continue it.
    pub fn is_outdated(&self) -> bool {
        self.shared.on_swap != OnSwap::Keep && self.begun_on < self.shared.current_weights().version
    }

    /// Sends the new segment to the engine and waits for the reply.
    pub async fn reply(&mut self, wanted: ChatReplyRequest) -> Result<StepOutput, EngineFault> {
        let ChatReplyRequest { segment, keeps_reply, sampling, constraint, watch } = wanted;
        let stream = RandomStream::of_chat(sampling.seed);
        let stop = self.shared.template.stop();
        // An unconstrained reply that reaches the limit gets the stop id appended.
        let tokens_max = sampling.max_tokens + u32::from(constraint.is_none());
        let mut response =
            PartialResponse::new(&sampling, &stream, 0, stop, constraint.as_ref()).watched_by(watch);
        if let Some(among) = &self.shared.allowed_ids {
            response = response.restricted_to(among);
        }
        let ask = Box::new(GenerationRequest { prompt: segment, keeps_reply, response, tokens_max });
        let (done, answer) = oneshot::channel();
        self.send_event(EngineEvent::Step { session: self.id, kept: Vec::new(), ask: Some(ask), done })
            .await?;
        answer.await.map_err(|_| EngineFault::Gone)?
    }

    async fn send_event(&self, event: EngineEvent) -> Result<(), EngineFault> {
        self.shared.events.send(event).await.map_err(|_| EngineFault::Gone)
    }
}

impl Drop for ChatSession {
    /// Frees the session at once. If the engine's queue is full, the engine finds the cancelled
    /// token by itself.
    fn drop(&mut self) {
        self.shared.events.try_send(EngineEvent::Close(self.id)).ok();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;

    /// An automaton over ids that are bytes.
    fn made() -> Arc<Constraint> {
        let bytes: Vec<u8> = (0..=255).collect();
        let lexicon = TokenLexicon::new(
            257,
            256,
            |id| bytes.get(id as usize..=id as usize),
            |text| text.bytes().map(u32::from).collect(),
        );
        let schema = Schema::check(&serde_json::json!({ "type": "null" })).unwrap();
        Constraint::of_schema(&schema, &lexicon, &SharedTransitions::of(&lexicon), 10).unwrap()
    }

    fn key(schema: &str, max_tokens: u32) -> SchemaKey {
        SchemaKey { schema: Some(schema.to_owned()), max_tokens }
    }

    /// Counts compilations, and how many run at the same time.
    #[derive(Default)]
    struct BuildCounters {
        made: AtomicUsize,
        now: AtomicUsize,
        most: AtomicUsize,
    }

    async fn get(schemas: &Arc<SchemaCache>, works: &Arc<BuildCounters>, form: SchemaKey) -> Arc<Constraint> {
        let works = works.clone();
        let make = move |_: &SchemaCache| {
            works.made.fetch_add(1, Ordering::SeqCst);
            works.most.fetch_max(works.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::runtime::Handle::current().block_on(tokio::time::sleep(Duration::from_millis(30)));
            works.now.fetch_sub(1, Ordering::SeqCst);
            Ok(made())
        };
        schemas.clone().get(form, make).await.unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn one_automaton_is_built_per_schema_and_one_at_a_time() {
        let schemas = Arc::new(SchemaCache::default());
        let works = Arc::new(BuildCounters::default());
        let forms = [
            key(r#"{"a":1,"b":2}"#, 10),
            key(r#"{"b":2,"a":1}"#, 10),
            key(r#"{"a":1,"b":2}"#, 11),
            SchemaKey { schema: None, max_tokens: 10 },
        ];
        // All at once, each three times.
        let requests = forms.iter().cycle().take(12).map(|form| {
            let schemas = schemas.clone();
            let works = works.clone();
            let form = form.clone();
            tokio::spawn(async move { get(&schemas, &works, form).await })
        });
        let mut got = Vec::new();
        for request in requests.collect::<Vec<_>>() {
            got.push(request.await.unwrap());
        }
        for (at, one) in got.iter().enumerate() {
            for (other_at, other) in got.iter().enumerate() {
                assert_eq!(Arc::ptr_eq(one, other), at % 4 == other_at % 4, "{at} and {other_at}");
            }
        }
        assert_eq!((works.made.load(Ordering::SeqCst), works.most.load(Ordering::SeqCst)), (4, 1));
    }

    #[tokio::test]
    async fn a_repeated_schema_is_cached_and_a_failed_one_is_not() {
        let schemas = Arc::new(SchemaCache::default());
        let works = Arc::new(BuildCounters::default());
        let usual = get(&schemas, &works, key("usual", 1)).await;
        let first = get(&schemas, &works, key("first", 1)).await;
        for other in 0..SCHEMAS_MAX {
            get(&schemas, &works, key(&other.to_string(), 1)).await;
            assert!(Arc::ptr_eq(&usual, &get(&schemas, &works, key("usual", 1)).await), "{other}");
        }
        assert!(
            !Arc::ptr_eq(&first, &get(&schemas, &works, key("first", 1)).await),
            "{SCHEMAS_MAX} are kept"
        );
        // A compilation finishes although its caller has gone, and the next caller finds its
        // result.
        let before = works.made.load(Ordering::SeqCst);
        let gone = tokio::time::timeout(Duration::from_millis(5), get(&schemas, &works, key("gone", 1)));
        assert!(gone.await.is_err());
        get(&schemas, &works, key("gone", 1)).await;
        assert_eq!(works.made.load(Ordering::SeqCst), before + 1);
        let failing = schemas.clone().get(key("failing", 1), |_| Err(ConstraintError::Ambiguous));
        assert_eq!(failing.await.unwrap_err(), ConstraintError::Ambiguous);
        let panicking = schemas.clone().get(key("failing", 1), |_| panic!("a fault"));
        assert!(matches!(panicking.await.unwrap_err(), ConstraintError::Broken { .. }));
        get(&schemas, &works, key("failing", 1)).await;
    }
}
