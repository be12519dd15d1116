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

/// Automata of schemas, the one asked for last first.
#[derive(Debug)]
pub(super) struct Schemas {
    letters: OnceLock<Letters>,
    kept: Mutex<Vec<(Form, Arc<Constraint>)>>,
    /// One is made at a time, whoever still waits for it: making one cannot be broken off.
    making: Arc<Semaphore>,
}

/// What an automaton is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Form {
    /// The schema as it was sent, in the order of its properties: equal values can stand for other texts. `None`: any object.
    schema: Option<String>,
    max_tokens: u32,
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

    /// Tokens that a picture takes, read from its header; milliseconds for a long JPEG.
    pub fn picture_rows(&self, encoded: &[u8]) -> Result<u32, String> {
        prompt::picture_rows(encoded, &self.0.vision).map_err(|why| why.to_string())
    }

    /// The automaton of a schema, made when it is first asked for. `source`: as it was sent, or `None` for any object.
    pub async fn constraint(
        &self,
        source: Option<String>,
        schema: Schema,
        max_tokens: u32,
    ) -> Result<Arc<Constraint>, ConstraintError> {
        let shared = self.0.clone();
        let making = move |schemas: &Schemas| {
            let template = &shared.template;
            let lexicon = Lexicon::of(template.tokenizer(), shared.vocabulary, template.stop());
            let letters = schemas.letters.get_or_init(|| Letters::of(&lexicon));
            Constraint::of_schema(&schema, &lexicon, letters, max_tokens)
        };
        self.0.schemas.clone().get(Form { schema: source, max_tokens }, making).await
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
    /// The automaton of a form: one that is kept, or the one that `make` makes, on a thread that may take its time.
    async fn get(
        self: Arc<Self>,
        form: Form,
        make: impl FnOnce(&Self) -> Result<Arc<Constraint>, ConstraintError> + Send + 'static,
    ) -> Result<Arc<Constraint>, ConstraintError> {
        if let Some(constraint) = self.find(&form) {
            return Ok(constraint);
        }
        let turn = self.making.clone().acquire_owned().await;
        // Somebody else may have made it meanwhile.
        if let Some(constraint) = self.find(&form) {
            return Ok(constraint);
        }
        let making = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            make(&self).inspect(|constraint| self.keep(form, constraint.clone()))
        });
        making.await.unwrap_or_else(|why| Err(ConstraintError::Broken { why: why.to_string() }))
    }

    fn find(&self, form: &Form) -> Option<Arc<Constraint>> {
        let mut kept = self.lock();
        let place = kept.iter().position(|(of, _)| of == form)?;
        kept[..=place].rotate_right(1);
        Some(kept[0].1.clone())
    }

    fn keep(&self, form: Form, constraint: Arc<Constraint>) {
        let mut kept = self.lock();
        kept.truncate(SCHEMAS_MAX - 1);
        kept.insert(0, (form, constraint));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(Form, Arc<Constraint>)>> {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;

    /// An automaton of ids that are bytes.
    fn made() -> Arc<Constraint> {
        let bytes: Vec<u8> = (0..=255).collect();
        let lexicon = Lexicon::new(
            257,
            256,
            |id| bytes.get(id as usize..=id as usize),
            |text| text.bytes().map(u32::from).collect(),
        );
        let schema = Schema::check(&serde_json::json!({ "type": "null" })).unwrap();
        Constraint::of_schema(&schema, &lexicon, &Letters::of(&lexicon), 10).unwrap()
    }

    fn form(schema: &str, max_tokens: u32) -> Form {
        Form { schema: Some(schema.to_owned()), max_tokens }
    }

    /// Counts what is made, and how much of it at once.
    #[derive(Default)]
    struct Works {
        made: AtomicUsize,
        now: AtomicUsize,
        most: AtomicUsize,
    }

    async fn get(schemas: &Arc<Schemas>, works: &Arc<Works>, form: Form) -> Arc<Constraint> {
        let works = works.clone();
        let make = move |_: &Schemas| {
            works.made.fetch_add(1, Ordering::SeqCst);
            works.most.fetch_max(works.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::runtime::Handle::current().block_on(tokio::time::sleep(Duration::from_millis(30)));
            works.now.fetch_sub(1, Ordering::SeqCst);
            Ok(made())
        };
        schemas.clone().get(form, make).await.unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn one_automaton_is_made_of_each_form_and_one_at_a_time() {
        let (schemas, works) = (Arc::new(Schemas::default()), Arc::new(Works::default()));
        let forms = [
            form(r#"{"a":1,"b":2}"#, 10),
            form(r#"{"b":2,"a":1}"#, 10),
            form(r#"{"a":1,"b":2}"#, 11),
            Form { schema: None, max_tokens: 10 },
        ];
        // All at once, each three times.
        let asked = forms.iter().cycle().take(12).map(|form| {
            let (schemas, works, form) = (schemas.clone(), works.clone(), form.clone());
            tokio::spawn(async move { get(&schemas, &works, form).await })
        });
        let mut got = Vec::new();
        for asked in asked.collect::<Vec<_>>() {
            got.push(asked.await.unwrap());
        }
        for (at, one) in got.iter().enumerate() {
            for (other_at, other) in got.iter().enumerate() {
                assert_eq!(Arc::ptr_eq(one, other), at % 4 == other_at % 4, "{at} and {other_at}");
            }
        }
        assert_eq!((works.made.load(Ordering::SeqCst), works.most.load(Ordering::SeqCst)), (4, 1));
    }

    #[tokio::test]
    async fn what_is_asked_for_again_is_kept_and_what_failed_is_not() {
        let (schemas, works) = (Arc::new(Schemas::default()), Arc::new(Works::default()));
        let usual = get(&schemas, &works, form("usual", 1)).await;
        let first = get(&schemas, &works, form("first", 1)).await;
        for other in 0..SCHEMAS_MAX {
            get(&schemas, &works, form(&other.to_string(), 1)).await;
            assert!(Arc::ptr_eq(&usual, &get(&schemas, &works, form("usual", 1)).await), "{other}");
        }
        assert!(
            !Arc::ptr_eq(&first, &get(&schemas, &works, form("first", 1)).await),
            "{SCHEMAS_MAX} are kept"
        );
        // Whoever asked has gone: it is made to its end, and there for the next.
        let before = works.made.load(Ordering::SeqCst);
        let gone = tokio::time::timeout(Duration::from_millis(5), get(&schemas, &works, form("gone", 1)));
        assert!(gone.await.is_err());
        get(&schemas, &works, form("gone", 1)).await;
        assert_eq!(works.made.load(Ordering::SeqCst), before + 1);
        let failing = schemas.clone().get(form("failing", 1), |_| Err(ConstraintError::Ambiguous));
        assert_eq!(failing.await.unwrap_err(), ConstraintError::Ambiguous);
        let panicking = schemas.clone().get(form("failing", 1), |_| panic!("a fault"));
        assert!(matches!(panicking.await.unwrap_err(), ConstraintError::Broken { .. }));
        get(&schemas, &works, form("failing", 1)).await;
    }
}
