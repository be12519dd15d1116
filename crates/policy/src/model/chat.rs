//! A chat's session in the engine: it runs the messages of the chat and produces one reply after
//! another.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use furrow_model::template::ChatTemplate;
use furrow_rollout::{PolicyVersion, SamplingParams};
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::schema_cache::{SchemaCache, SchemaKey};
use super::shared::ModelShared;
use crate::constrain::{CallForms, Constraint, ConstraintError, Schema, SharedTransitions, TokenLexicon};
use crate::engine::{EngineEvent, EngineFault, GenerationRequest, OnSwap, SessionId, StepOutput};
use crate::prompt;
use crate::response::{PartialResponse, RandomStream, TokenWatcher};
use crate::sequence::{TiledImage, TokenSegment};

/// Opens chats on a model's engine.
#[derive(Clone)]
pub(crate) struct ChatEngine(pub(super) Arc<ModelShared>);

/// The form of a reply that is constrained.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ConstrainedForm {
    /// JSON of a schema.
    Value(Schema),
    Calls(CallForms),
}

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

impl ChatEngine {
    /// The template of the checkpoint.
    pub(crate) fn template(&self) -> &ChatTemplate {
        &self.0.template
    }

    /// Most tokens of a chat, including its longest reply.
    pub(crate) fn context_tokens_max(&self) -> u32 {
        self.0.context_tokens_max
    }

    /// A prefix of the hash of the weights in use.
    pub(crate) fn fingerprint(&self) -> String {
        format!("furrow-{}", self.0.current_weights().weights_sha256.chars().take(12).collect::<String>())
    }

    /// Whether the model accepts this id in a prompt.
    pub(crate) fn knows(&self, id: u32) -> bool {
        (id as usize) < self.0.embedding_rows && id != self.0.vision.image_token
    }

    /// Decodes an image and cuts it into tiles on a blocking thread.
    pub(crate) async fn picture(&self, encoded: Bytes) -> Result<Arc<TiledImage>, String> {
        let shared = self.0.clone();
        let preparing = tokio::task::spawn_blocking(move || {
            prompt::picture(&encoded, &shared.vision, shared.resample).map_err(|why| why.to_string())
        });
        preparing.await.unwrap_or_else(|why| Err(why.to_string())).map(Arc::new)
    }

    /// Tokens that an image takes, read from its header. A long JPEG takes milliseconds.
    pub(crate) fn picture_rows(&self, encoded: &[u8]) -> Result<u32, String> {
        prompt::picture_rows(encoded, &self.0.vision).map_err(|why| why.to_string())
    }

    /// The automaton of a form of replies, compiled on first use. `source` is the schema as it was
    /// sent, or `None` for any object.
    pub(crate) async fn constraint(
        &self,
        source: Option<String>,
        form: ConstrainedForm,
        max_tokens: u32,
    ) -> Result<Arc<Constraint>, ConstraintError> {
        let shared = self.0.clone();
        let making = move |schemas: &SchemaCache| {
            let template = &shared.template;
            let lexicon = TokenLexicon::of(template.tokenizer(), shared.vocabulary, template.stop());
            let letters = schemas.letters.get_or_init(|| SharedTransitions::of(&lexicon));
            match &form {
                ConstrainedForm::Value(schema) => {
                    Constraint::of_schema(schema, &lexicon, letters, max_tokens)
                }
                ConstrainedForm::Calls(calls) => Constraint::of_calls(calls, &lexicon, letters, max_tokens),
            }
        };
        self.0.schemas.clone().get(SchemaKey { schema: source, max_tokens }, making).await
    }

    pub(crate) async fn open(&self) -> Result<ChatSession, EngineFault> {
        let shared = self.0.clone();
        let id = SessionId(shared.sessions.fetch_add(1, Ordering::Relaxed));
        let life = CancellationToken::new();
        let begun_on = shared.current_weights().version;
        // From here on, dropping the session closes it, also if opening it fails.
        let chat = ChatSession { shared, id, _life: life.clone().drop_guard(), begun_on };
        let (opened, answer) = oneshot::channel();
        chat.send_event(EngineEvent::Open { session: id, rebuilt: false, life, opened }).await?;
        chat.shared.answer(answer).await.map_err(|_| EngineFault::Gone)??;
        Ok(chat)
    }
}

impl ChatSession {
    /// Whether older weights wrote its state and newer ones must not continue it.
    pub(crate) fn is_outdated(&self) -> bool {
        self.shared.on_swap != OnSwap::Keep && self.begun_on < self.shared.current_weights().version
    }

    /// Sends the new segment to the engine and waits for the reply.
    pub(crate) async fn reply(&mut self, wanted: ChatReplyRequest) -> Result<StepOutput, EngineFault> {
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
        self.shared.answer(answer).await.map_err(|_| EngineFault::Gone)?
    }

    async fn send_event(&self, event: EngineEvent) -> Result<(), EngineFault> {
        self.shared.send_event(event).await.map_err(|_| EngineFault::Gone)
    }
}

impl Drop for ChatSession {
    /// Frees the session at once. If the engine's queue is full, the engine finds the cancelled
    /// token by itself.
    fn drop(&mut self) {
        self.shared.events.try_send(EngineEvent::Close(self.id)).ok();
    }
}
