//! Turns a chat into tokens, and tokens into a reply. Tokens that a session holds already do not
//! run again.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use furrow_model::template::{ChatContent, RenderedChat};
use furrow_openai::Role;
use furrow_openai::server::{
    ApiError, ChatCompletion, ChatDelta, ChatEnvelope, ChatFinishReason, ChatMessage, ChatRequest,
    MessagePart, ResponseFormat, TokenUsage,
};
use furrow_rollout::{FinishReason, SamplingParams};
use rand::Rng;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use super::residents::{MessageDigest, ResidentChat, ResidentChats, SessionMessage, Sha256Digest, TakenChat};
use super::text::TextAssembler;
use crate::config::ServeConfig;
use crate::constrain::{Constraint, ConstraintError, Schema};
use crate::engine::{EngineFault, StepOutput};
use crate::model::{ChatEngine, ChatReplyRequest};
use crate::response::TokenWatcher;
use crate::sequence::{PositionedImage, TiledImage, TokenSegment};

pub(super) struct ChatService {
    chat_engine: ChatEngine,
    /// Kept sessions, and the permits of all sessions.
    pub residents: ResidentChats,
    pub config: ServeConfig,
    /// Start of this service, in seconds since 1970.
    pub created: u64,
}

/// A chat that is ready to be answered.
pub(super) struct PreparedChat {
    resident: ResidentChat,
    /// The messages, including this request's last one.
    messages: Vec<MessageDigest>,
    segment: TokenSegment,
    keeps_reply: bool,
    sampling: SamplingParams,
    constraint: Option<Arc<Constraint>>,
    stops: Arc<[String]>,
    /// How many of the likeliest tokens to report beside each token's log-prob; `None`: no
    /// log-probs.
    logprobs: Option<u32>,
    /// Whether to return token ids.
    pub ids: bool,
    session_id: Option<String>,
    /// Fields that all parts of the answer share.
    pub envelope: ChatEnvelope,
}

/// Receiver of a reply's parts.
pub(super) enum DeltaSink {
    /// None: the reply is returned whole.
    Gathered,
    /// A stream, which gets the parts as they arrive.
    Streamed(mpsc::Sender<ChatDelta>),
}

type ApiResult<T> = Result<T, ApiError>;

impl ChatService {
    pub fn new(chat_engine: ChatEngine, config: ServeConfig) -> Self {
        let residents = ResidentChats::new(config.sessions_max, config.idle);
        Self { chat_engine, residents, config, created: now() }
    }

    /// Most tokens of a chat.
    pub fn context_tokens_max(&self) -> u32 {
        self.chat_engine.context_tokens_max()
    }

    /// Finds every error of a request before the first part of an answer is sent.
    pub async fn prepare(&self, request: ChatRequest) -> ApiResult<PreparedChat> {
        let ChatRequest { model, messages, sampling: sampled, max_tokens, stop, format, session_id, .. } =
            request;
        self.check_model(&model)?;
        let stop_id = self.chat_engine.template().stop();
        let digests: Vec<MessageDigest> =
            messages.iter().map(|message| digest_message(message, stop_id)).collect();
        // A request that is invalid or late changes nothing: the session is put back for the next
        // request.
        let taken = session_id.as_deref().map(|name| self.residents.take(name));
        let known = taken.as_ref().and_then(TakenChat::resident);
        let known = known.filter(|known| known.is_prefix_of(&digests) && !known.chat.is_outdated());
        let (segment, max_tokens, constraint) = self.plan(messages, known, max_tokens, format).await?;
        let goes_on = known.is_some();
        let resident = match taken.and_then(TakenChat::keep).filter(|_| goes_on) {
            Some(known) => known,
            None => self.begin().await?,
        };
        let seed = sampled.seed.unwrap_or_else(|| rand::rng().next_u64());
        let envelope = ChatEnvelope {
            id: format!("chatcmpl-{:016x}{:016x}", rand::rng().next_u64(), rand::rng().next_u64()),
            created: now(),
            model,
            fingerprint: self.chat_engine.fingerprint(),
            counts_usage: request.include_usage,
        };
        Ok(PreparedChat {
            resident,
            messages: digests,
            segment,
            // A reply that ends at a stop text leaves tokens in the state that were not returned.
            keeps_reply: stop.is_empty() && session_id.is_some(),
            sampling: SamplingParams {
                temperature: sampled.temperature,
                top_p: sampled.top_p,
                top_k: sampled.top_k,
                min_p: sampled.min_p,
                max_tokens,
                seed,
            },
            constraint,
            stops: stop.into(),
            logprobs: request.logprobs,
            ids: request.return_token_ids,
            session_id,
            envelope,
        })
    }

    /// The segment after the tokens that a session holds, the most tokens of the reply, and its
    /// constraint.
    async fn plan(
        &self,
        messages: Vec<ChatMessage>,
        known: Option<&ResidentChat>,
        max_tokens: Option<u32>,
        format: ResponseFormat,
    ) -> ApiResult<(TokenSegment, u32, Option<Arc<Constraint>>)> {
        let (from, before) = known.map_or((0, 0), |known| (known.messages.len(), known.ids.len()));
        let segment = self.build_segment(messages, from).await?;
        let max_tokens = self.reply_tokens(before + segment.ids.len(), max_tokens)?;
        let constraint = self.constraint(format, max_tokens).await?;
        Ok((segment, max_tokens, constraint))
    }

    /// Checks that a request names this model.
    pub fn check_model(&self, name: &str) -> ApiResult<()> {
        if name == self.config.model {
            return Ok(());
        }
        let name: String = name.chars().take(80).collect();
        let message = format!("the model {name:?} does not exist here; use {:?}", self.config.model);
        Err(ApiError {
            param: Some("model".into()),
            ..ApiError::of(404, "invalid_request_error", "model_not_found", message)
        })
    }

    async fn begin(&self) -> ApiResult<ResidentChat> {
        let permit = self.residents.acquire_permit().ok_or_else(|| {
            ApiError::of(
                429,
                "rate_limit_error",
                "no_capacity",
                "all sessions for chats are in use; try again",
            )
        })?;
        let chat = self.chat_engine.open().await.map_err(|fault| failed(&fault))?;
        Ok(ResidentChat { chat, _permit: permit, messages: Vec::new(), ids: Vec::new() })
    }

    /// Builds the segment of the messages from an index on, with images cut into tiles.
    async fn build_segment(&self, received: Vec<ChatMessage>, from: usize) -> ApiResult<TokenSegment> {
        let chat_engine = self.chat_engine.clone();
        let shared = Arc::new(received);
        let messages = shared.clone();
        run_blocking(move || pictures_fit(&chat_engine, &messages, from)).await?;
        let mut pictures: Vec<Arc<TiledImage>> = Vec::new();
        for (index, encoded) in pictures_of(&shared, from) {
            let picture = self.chat_engine.picture(encoded.clone()).await;
            pictures.push(picture.map_err(|why| unreadable(index, &why))?);
        }
        let chat_engine = self.chat_engine.clone();
        run_blocking(move || ChatSegmentBuilder::new(&chat_engine, pictures).build(&shared, from)).await
    }

    /// Most tokens of the reply: the requested number, or as many as fit.
    fn reply_tokens(&self, prompt: usize, requested: Option<u32>) -> ApiResult<u32> {
        let most = self.chat_engine.context_tokens_max() as usize;
        // The stop id after a truncated reply needs one token.
        let left = most.saturating_sub(prompt + 1);
        let wanted = requested.map_or(1, |requested| requested as usize);
        if left < wanted {
            let message = format!(
                "the messages take {prompt} tokens and the reply at least {wanted}; the sum must be below {most}"
            );
            return Err(too_long(message));
        }
        Ok(requested.unwrap_or(self.config.limits.max_tokens.min(left as u32)))
    }

    async fn constraint(
        &self,
        format: ResponseFormat,
        max_tokens: u32,
    ) -> ApiResult<Option<Arc<Constraint>>> {
        const PARAM: &str = "response_format.json_schema.schema";
        let (source, schema) = match format {
            ResponseFormat::Text => return Ok(None),
            ResponseFormat::JsonObject => (None, Schema::any_object()),
            ResponseFormat::JsonSchema(source) => {
                let checking = move || {
                    let schema = Schema::check(&source)
                        .map_err(|why| ApiError::unsupported(PARAM, why.to_string()))?;
                    Ok((Some(source.to_string()), schema))
                };
                run_blocking(checking).await?
            }
        };
        let made = self.chat_engine.constraint(source, schema, max_tokens).await;
        made.map(Some).map_err(|why| match why {
            ConstraintError::TooFew { max_tokens, least } => ApiError::invalid(
                "max_tokens",
                format!("max_tokens is {max_tokens}; a reply of this form takes at least {least} tokens"),
            ),
            ConstraintError::Ambiguous => ApiError::unsupported(
                PARAM,
                "two alternatives of this schema begin with the same text; give them different types",
            ),
            ConstraintError::Broken { why } => broken(&why),
            other => ApiError::unsupported(PARAM, other.to_string()),
        })
    }

    /// Generates the reply, sends its parts, and keeps the session for the next request. Dropping
    /// the future ends the session in the engine.
    pub async fn reply(&self, prepared: PreparedChat, mut parts: DeltaSink) -> ApiResult<ChatCompletion> {
        let ranks = prepared.ranks();
        let PreparedChat {
            mut resident, messages, segment, keeps_reply, sampling, constraint, stops, ..
        } = prepared;
        let tokenizer = self.chat_engine.template().tokenizer();
        let mut unfolding = TextAssembler::new(tokenizer, &stops, prepared.logprobs.is_some(), prepared.ids);
        // Capacity for every token, because the engine does not wait.
        let (sender, mut tokens) = mpsc::channel(sampling.max_tokens as usize + 1);
        let watch = TokenWatcher::new(sender, stops.clone(), tokenizer.clone()).ranking(ranks);
        let shown = segment.ids.clone();
        let mut whole = ChatDelta {
            text: String::new(),
            logprobs: prepared.logprobs.map(|_| Vec::new()),
            token_ids: prepared.ids.then(Vec::new),
        };
        let reply = {
            let wanted = ChatReplyRequest { segment, keeps_reply, sampling, constraint, watch };
            let mut reply = std::pin::pin!(resident.chat.reply(wanted));
            loop {
                tokio::select! {
                    biased;
                    Some(token) = tokens.recv() => {
                        if let Some(delta) = unfolding.push(token) {
                            parts.push(&mut whole, delta).await?;
                        }
                    }
                    reply = &mut reply => break reply.map_err(|fault| failed(&fault))?,
                }
            }
        };
        while let Ok(token) = tokens.try_recv() {
            if let Some(delta) = unfolding.push(token) {
                parts.push(&mut whole, delta).await?;
            }
        }
        parts.push(&mut whole, unfolding.finish()).await?;
        let prompt = [&resident.ids[..], &shown].concat();
        let usage = usage(&prompt, &reply);
        let completion = ChatCompletion {
            finish: finish(reply.finish_reason),
            usage,
            prompt_token_ids: prepared.ids.then(|| prompt.clone()),
            reply: whole,
        };
        if let Some(name) = prepared.session_id {
            if keeps_reply {
                let text_digest = digest_of(Role::Assistant, [completion.reply.text.as_bytes()].into_iter());
                let ids = Some(digest_of_ids(&reply.columns.ids, self.chat_engine.template().stop()));
                resident.ids = [prompt, reply.columns.ids].concat();
                let new = messages.into_iter().skip(resident.messages.len());
                resident.messages.extend(new.map(|message| SessionMessage { message, is_sampled: false }));
                resident
                    .messages
                    .push(SessionMessage { message: MessageDigest { text_digest, ids }, is_sampled: true });
            }
            if !resident.messages.is_empty() {
                self.residents.keep(name, resident);
            }
        }
        Ok(completion)
    }
}

impl PreparedChat {
    /// How many of the likeliest tokens to rank. A sample at temperature 0 or 1 already has the
    /// log-prob of softmax(logits).
    fn ranks(&self) -> Option<usize> {
        let needs = |count: &u32| *count > 0 || ![0.0, 1.0].contains(&self.sampling.temperature);
        self.logprobs.filter(needs).map(|count| count as usize)
    }

    /// Ids of the whole prompt.
    pub fn prompt_ids(&self) -> Vec<u32> {
        [&self.resident.ids[..], &self.segment.ids].concat()
    }
}

impl DeltaSink {
    async fn push(&mut self, whole: &mut ChatDelta, delta: ChatDelta) -> ApiResult<()> {
        whole.text.push_str(&delta.text);
        match self {
            Self::Gathered => {
                whole
                    .logprobs
                    .iter_mut()
                    .for_each(|all| all.extend(delta.logprobs.iter().flatten().cloned()));
                whole.token_ids.iter_mut().for_each(|all| all.extend(delta.token_ids.iter().flatten()));
                Ok(())
            }
            Self::Streamed(_) if delta.is_empty() => Ok(()),
            Self::Streamed(reader) => reader.send(delta).await.map_err(|_| {
                ApiError::of(499, "invalid_request_error", "client_gone", "the client has left")
            }),
        }
    }
}

/// Builds the segment of a chat's messages.
struct ChatSegmentBuilder<'a> {
    chat_engine: &'a ChatEngine,
    pictures: std::vec::IntoIter<Arc<TiledImage>>,
    segment: TokenSegment,
}

impl<'a> ChatSegmentBuilder<'a> {
    fn new(chat_engine: &'a ChatEngine, pictures: Vec<Arc<TiledImage>>) -> Self {
        Self { chat_engine, pictures: pictures.into_iter(), segment: TokenSegment::default() }
    }

    /// Consecutive user messages form one turn, because the template has no form for two.
    fn build(mut self, messages: &[ChatMessage], from: usize) -> ApiResult<TokenSegment> {
        let mut instructions = (from == 0).then(String::new);
        let mut turn: Vec<&MessagePart> = Vec::new();
        for (index, message) in messages.iter().enumerate().skip(from) {
            match message.role {
                Role::System => instructions = Some(message_text(message)),
                Role::User => turn.extend(&message.parts),
                Role::Assistant => {
                    self.turn(instructions.take().as_deref(), &std::mem::take(&mut turn));
                    self.reply(index, message)?;
                }
            }
        }
        self.turn(instructions.as_deref(), &turn);
        Ok(self.segment)
    }

    fn turn(&mut self, instructions: Option<&str>, parts: &[&MessagePart]) {
        let shown: Vec<(&MessagePart, Option<Arc<TiledImage>>)> =
            parts.iter().map(|part| (*part, image(part).and_then(|_| self.pictures.next()))).collect();
        let content: Vec<ChatContent<'_>> = shown
            .iter()
            .map(|(part, picture)| match (part, picture) {
                (MessagePart::Text(text), _) => ChatContent::Text(text),
                (MessagePart::Image(_), picture) => {
                    ChatContent::Image { rows: picture.as_ref().map_or(0, |picture| picture.rows() as usize) }
                }
            })
            .collect();
        let template = self.chat_engine.template();
        let RenderedChat { ids, images } = match instructions {
            Some(instructions) => template.render_first(instructions, &content),
            None => template.render_later(&content),
        };
        let start = self.segment.ids.len() as u32;
        let pictures = shown.into_iter().filter_map(|(_, picture)| picture);
        let positioned =
            images.into_iter().zip(pictures).map(|(at, picture)| PositionedImage { at: start + at, picture });
        self.segment.pictures.extend(positioned);
        self.segment.ids.extend(ids);
    }

    /// Adds an earlier reply and the stop id that ends it. Its ids are used if the request has
    /// them; otherwise its text is tokenised.
    fn reply(&mut self, index: usize, message: &ChatMessage) -> ApiResult<()> {
        let template = self.chat_engine.template();
        let stop = template.stop();
        let ids = match &message.token_ids {
            None => template.tokenizer().encode(&message_text(message)),
            Some(ids) => {
                let wrong =
                    |why: &str| ApiError::invalid(format!("messages[{index}].token_ids"), why.to_owned());
                if let Some(stranger) = ids.iter().find(|id| !self.chat_engine.knows(**id)) {
                    return Err(wrong(&format!("token id {stranger} is not in this model's vocabulary")));
                }
                // A reply ends with its first stop id. Other special tokens can have been sampled.
                if ids.strip_suffix(&[stop]).unwrap_or(ids).contains(&stop) {
                    return Err(wrong(&format!("token id {stop} ends a reply; it may only be the last")));
                }
                if !template.tokenizer().decode(ids).starts_with(&message_text(message)) {
                    return Err(wrong("these ids do not decode to the content beside them"));
                }
                ids.clone()
            }
        };
        let is_ended = ids.last() == Some(&stop);
        self.segment.ids.extend(ids);
        if !is_ended {
            self.segment.ids.push(stop);
        }
        Ok(())
    }
}

/// Runs work of milliseconds on a blocking thread.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> ApiResult<T> + Send + 'static,
) -> ApiResult<T> {
    let working = tokio::task::spawn_blocking(work);
    working.await.unwrap_or_else(|why| Err(broken(&why.to_string())))
}

/// Images of the messages from an index on, each with its message's index.
fn pictures_of(received: &[ChatMessage], from: usize) -> impl Iterator<Item = (usize, &Bytes)> {
    let messages = received.iter().enumerate().skip(from);
    messages
        .flat_map(|(index, message)| message.parts.iter().filter_map(image).map(move |image| (index, image)))
}

/// Refuses more images than fit before one is decoded, because pixels take far more memory than the
/// file.
fn pictures_fit(chat_engine: &ChatEngine, messages: &[ChatMessage], from: usize) -> ApiResult<()> {
    let mut rows = 0u64;
    let most = chat_engine.context_tokens_max();
    for (index, encoded) in pictures_of(messages, from) {
        rows += u64::from(chat_engine.picture_rows(encoded).map_err(|why| unreadable(index, &why))?);
        if rows >= u64::from(most) {
            let message =
                format!("the images up to messages[{index}] take {rows} tokens; all must be below {most}");
            return Err(too_long(message));
        }
    }
    Ok(())
}

fn unreadable(index: usize, why: &str) -> ApiError {
    ApiError::invalid(format!("messages[{index}].content"), format!("the image cannot be read: {why}"))
}

fn broken(why: &str) -> ApiError {
    ApiError::of(500, "server_error", "failed", why)
}

fn image(part: &MessagePart) -> Option<&Bytes> {
    if let MessagePart::Image(encoded) = part { Some(encoded) } else { None }
}

/// The texts of a message without images.
fn message_text(message: &ChatMessage) -> String {
    let text =
        |part: &MessagePart| if let MessagePart::Text(text) = part { text.clone() } else { String::new() };
    message.parts.iter().map(text).collect()
}

fn digest_message(message: &ChatMessage, stop: u32) -> MessageDigest {
    let ids = message.token_ids.as_deref().map(|ids| digest_of_ids(ids, stop));
    MessageDigest { text_digest: digest(message), ids }
}

/// Hash of ids without the stop id at their end, so that a reply is equal with and without it.
fn digest_of_ids(ids: &[u32], stop: u32) -> Sha256Digest {
    let ids = ids.strip_suffix(&[stop]).unwrap_or(ids);
    let mut hash = Sha256::new();
    ids.iter().for_each(|id| hash.update(id.to_le_bytes()));
    hash.finalize().into()
}

fn digest(message: &ChatMessage) -> Sha256Digest {
    match message.role {
        Role::Assistant => digest_of(Role::Assistant, [message_text(message).as_bytes()].into_iter()),
        role => {
            let bytes = |part: &'_ MessagePart| -> Vec<u8> {
                match part {
                    MessagePart::Text(text) => text.as_bytes().to_vec(),
                    MessagePart::Image(encoded) => [b"\0image\0", &Sha256::digest(encoded)[..]].concat(),
                }
            };
            let parts: Vec<Vec<u8>> = message.parts.iter().map(bytes).collect();
            digest_of(role, parts.iter().map(Vec::as_slice))
        }
    }
}

/// Hashes each part after its length, so that two lists of parts are never the same bytes.
fn digest_of<'a>(role: Role, parts: impl Iterator<Item = &'a [u8]>) -> Sha256Digest {
    let mut hash = Sha256::new();
    hash.update([role as u8]);
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

fn usage(prompt: &[u32], reply: &StepOutput) -> TokenUsage {
    let columns = &reply.columns;
    let sampled = columns.mask.iter().zip(&columns.forced).filter(|(sampled, forced)| **sampled || **forced);
    let prompt_tokens = prompt.len() as u32;
    let cached_tokens = reply.engine.reused_tokens;
    TokenUsage {
        prompt_tokens,
        cached_tokens,
        // A constrained reply begins with tokens that its layout forces; they run with the prompt
        // and belong to the reply.
        prefilled_tokens: reply.engine.prefill_tokens.min(prompt_tokens.saturating_sub(cached_tokens)),
        completion_tokens: sampled.count() as u32,
    }
}

fn finish(reason: FinishReason) -> ChatFinishReason {
    match reason {
        FinishReason::Stop => ChatFinishReason::Stop,
        // A schema's text that was closed because its budget was used up counts as cut.
        _ => ChatFinishReason::Length,
    }
}

fn too_long(message: String) -> ApiError {
    let error = ApiError::of(400, "invalid_request_error", "context_length_exceeded", message);
    ApiError { param: Some("messages".into()), ..error }
}

fn failed(fault: &EngineFault) -> ApiError {
    let message = fault.to_string();
    match fault {
        EngineFault::TooLong { .. } => {
            ApiError::of(400, "invalid_request_error", "context_length_exceeded", message)
        }
        EngineFault::Full { .. } => ApiError::of(503, "server_error", "no_capacity", message),
        EngineFault::Device(_) | EngineFault::Gone => {
            ApiError::of(503, "server_error", "engine_gone", message)
        }
        EngineFault::NotFinite { .. } | EngineFault::NoPrompt | EngineFault::Refused(_) => {
            ApiError::of(500, "server_error", "failed", message)
        }
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
