//! Turns a request into tokens, and tokens into replies. Tokens that a session holds already do not
//! run again.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use furrow_openai::server::{
    AnswerForm, AnswerHead, AnswerWriter, ApiError, ChatCompletion, ChatDelta, ChatFinishReason, ChatRequest,
    CompletedChoice, CompletionRequest, GenerationOptions, MessagePart, TokenUsage,
};
use furrow_rollout::{FinishReason, SamplingParams};
use futures::future::try_join_all;
use rand::Rng;
use tokio::sync::mpsc;

use super::calls::CallParser;
use super::digests::{digest_message, digest_of_ids, digest_of_reply};
use super::errors::{ApiResult, failed, too_long};
use super::forms::ReplyForms;
use super::residents::{MessageDigest, ResidentChat, ResidentChats, SessionMessage, TakenChat};
use super::segment::{self, ChatPrompt};
use super::text::TextAssembler;
use crate::config::ServeConfig;
use crate::constrain::Constraint;
use crate::engine::StepOutput;
use crate::model::{ChatEngine, ChatReplyRequest};
use crate::response::{RandomStream, TokenWatcher};
use crate::sequence::TokenSegment;

pub(super) struct ChatService {
    chat_engine: ChatEngine,
    /// Kept sessions, and the permits of all sessions.
    pub residents: ResidentChats,
    pub config: ServeConfig,
    /// Start of this service, in seconds since 1970.
    pub created: u64,
}

/// A request that is ready to be answered.
pub(super) struct PreparedChat {
    choices: Vec<PreparedChoice>,
    shared: SharedOptions,
    session: Option<ContinuedSession>,
    pub writer: AnswerWriter,
    /// Paths of keys of the request that have no effect.
    pub ignored: Vec<String>,
}

/// A reply that is ready to be sampled.
struct PreparedChoice {
    resident: ResidentChat,
    segment: TokenSegment,
    sampling: SamplingParams,
    /// Whether it is the first reply to its prompt.
    is_first: bool,
}

/// What the replies to one request have in common.
struct SharedOptions {
    constraint: Option<Arc<Constraint>>,
    stops: Arc<[String]>,
    /// How many of the likeliest tokens to report beside each token's log-prob; `None`: no
    /// log-probs.
    logprobs: Option<u32>,
    /// Whether to return token ids.
    ids: bool,
    /// Names of the functions that a reply may call; `None`: all text is content.
    functions: Option<Arc<[String]>>,
    keeps_reply: bool,
}

/// The session that a request continues or begins.
struct ContinuedSession {
    name: String,
    /// The messages, including this request's last one.
    messages: Vec<MessageDigest>,
}

/// A reply that has ended, and the session that holds it.
struct EndedChoice {
    completed: CompletedChoice,
    resident: ResidentChat,
    prompt: Vec<u32>,
    reply: StepOutput,
    is_first: bool,
}

/// A part of a choice, with its index.
pub(super) type ChoiceDelta = (usize, ChatDelta);

/// Receiver of the parts of replies.
#[derive(Clone)]
pub(super) enum DeltaSink {
    /// None: the replies are returned whole.
    Gathered,
    /// A stream, which gets the parts as they arrive.
    Streamed(mpsc::Sender<ChoiceDelta>),
}

impl ChatService {
    pub(super) fn new(chat_engine: ChatEngine, config: ServeConfig) -> Self {
        let residents = ResidentChats::new(config.sessions_max, config.idle);
        Self { chat_engine, residents, config, created: now() }
    }

    /// Most tokens of a chat.
    pub(super) fn context_tokens_max(&self) -> u32 {
        self.chat_engine.context_tokens_max()
    }

    /// Finds every error of a chat before the first part of an answer is sent.
    pub(super) async fn prepare_chat(
        &self,
        request: ChatRequest,
        form: AnswerForm,
    ) -> ApiResult<PreparedChat> {
        let ChatRequest { messages, tools, format, options } = request;
        self.check_model(&options.model)?;
        segment::texts_fit(&self.chat_engine, &messages)?;
        let stop_id = self.chat_engine.template().stop();
        let digests: Vec<MessageDigest> =
            messages.iter().map(|message| digest_message(message, stop_id)).collect();
        let forms = ReplyForms::of(tools, format);
        // A request that is invalid or late changes nothing: the session is put back for the next
        // request.
        let taken = options.session_id.as_deref().map(|name| self.residents.take(name));
        let known = taken.as_ref().and_then(TakenChat::resident);
        let instructions = forms.digest();
        let known = known.filter(|known| {
            known.instructions == instructions && known.is_prefix_of(&digests) && !known.chat.is_outdated()
        });
        let (from, before) = known.map_or((0, 0), |known| (known.messages.len(), known.ids.len()));
        let prompt = ChatPrompt { messages, functions: forms.functions() };
        let segment = segment::of_chat(&self.chat_engine, prompt, from).await?;
        let max_tokens = self.reply_tokens(before + segment.ids.len(), options.max_tokens)?;
        let functions = forms.callable();
        let constraint = forms.constraint(&self.chat_engine, max_tokens).await?;
        let goes_on = known.is_some();
        let known = taken.and_then(TakenChat::keep).filter(|_| goes_on);
        // A reply that ends at a stop text leaves tokens in the state that were not returned.
        let keeps_reply = options.stop.is_empty() && options.session_id.is_some();
        let name = options.session_id.clone();
        let shared = SharedOptions {
            constraint,
            stops: options.stop.clone().into(),
            logprobs: options.logprobs,
            ids: options.return_token_ids,
            functions,
            keeps_reply,
        };
        let mut choices = self.choices(segment, known, max_tokens, &options).await?;
        choices.iter_mut().for_each(|choice| choice.resident.instructions = instructions);
        Ok(self.prepared(
            choices,
            shared,
            name.map(|name| ContinuedSession { name, messages: digests }),
            options,
            form,
        ))
    }

    /// The same for prompts without a layout.
    pub(super) async fn prepare_completion(&self, request: CompletionRequest) -> ApiResult<PreparedChat> {
        let CompletionRequest { prompts, options } = request;
        self.check_model(&options.model)?;
        let mut choices = Vec::new();
        for prompt in prompts {
            let segment = segment::of_prompt(&self.chat_engine, prompt).await?;
            let max_tokens = self.reply_tokens(segment.ids.len(), options.max_tokens)?;
            choices.extend(self.choices(segment, None, max_tokens, &options).await?);
        }
        let shared = SharedOptions {
            constraint: None,
            stops: options.stop.clone().into(),
            logprobs: options.logprobs,
            ids: options.return_token_ids,
            functions: None,
            keeps_reply: false,
        };
        Ok(self.prepared(choices, shared, None, options, AnswerForm::Completion))
    }

    fn prepared(
        &self,
        choices: Vec<PreparedChoice>,
        shared: SharedOptions,
        session: Option<ContinuedSession>,
        options: GenerationOptions,
        form: AnswerForm,
    ) -> PreparedChat {
        let head = AnswerHead {
            id: format!("{:016x}{:016x}", rand::rng().next_u64(), rand::rng().next_u64()),
            created: now(),
            model: options.model,
            fingerprint: self.chat_engine.fingerprint(),
            counts_usage: options.include_usage,
        };
        let writer = AnswerWriter::new(form, head, choices.len());
        PreparedChat { choices, shared, session, writer, ignored: options.ignored }
    }

    /// The replies to one prompt, each in its own session. The first may continue a session.
    async fn choices(
        &self,
        mut segment: TokenSegment,
        mut known: Option<ResidentChat>,
        max_tokens: u32,
        options: &GenerationOptions,
    ) -> ApiResult<Vec<PreparedChoice>> {
        let sampled = &options.sampling;
        let seed = sampled.seed.unwrap_or_else(|| rand::rng().next_u64());
        if options.choices > 1 && segment.ids.len() > 1 {
            // All but the last token are prefilled once.
            segment.forks = vec![segment.ids.len() as u32 - 1];
        }
        let mut choices = Vec::with_capacity(options.choices as usize);
        for index in 0..options.choices {
            let resident = match known.take() {
                Some(known) => known,
                None => self.begin().await?,
            };
            let sampling = SamplingParams {
                temperature: sampled.temperature,
                top_p: sampled.top_p,
                top_k: sampled.top_k,
                min_p: sampled.min_p,
                max_tokens,
                seed: RandomStream::seed_of_choice(seed, index),
            };
            choices.push(PreparedChoice {
                resident,
                segment: segment.clone(),
                sampling,
                is_first: index == 0,
            });
        }
        Ok(choices)
    }

    /// Checks that a request names this model.
    pub(super) fn check_model(&self, name: &str) -> ApiResult<()> {
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
        Ok(ResidentChat {
            chat,
            _permit: permit,
            instructions: [0; 32],
            messages: Vec::new(),
            ids: Vec::new(),
        })
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

    /// Generates the replies, sends their parts, and keeps the session for the next request.
    /// Dropping the future ends the sessions in the engine.
    pub(super) async fn reply(
        &self,
        prepared: PreparedReplies,
        parts: DeltaSink,
    ) -> ApiResult<ChatCompletion> {
        let PreparedReplies { choices, shared, session } = prepared;
        let running = choices.into_iter().enumerate().map(|(index, choice)| {
            self.reply_to(choice, &shared, ChoiceSink { index, parts: parts.clone() })
        });
        let ended = try_join_all(running).await?;
        let usage = usage(&ended);
        let mut completed = Vec::with_capacity(ended.len());
        let mut session = session;
        for choice in ended {
            completed.push(choice.completed.clone());
            if let Some(session) = session.take() {
                self.keep(session, choice, shared.keeps_reply);
            }
        }
        Ok(ChatCompletion { choices: completed, usage })
    }

    async fn reply_to(
        &self,
        choice: PreparedChoice,
        shared: &SharedOptions,
        mut sink: ChoiceSink,
    ) -> ApiResult<EndedChoice> {
        let PreparedChoice { mut resident, segment, sampling, is_first } = choice;
        let tokenizer = self.chat_engine.template().tokenizer();
        let mut assembler =
            TextAssembler::new(tokenizer, &shared.stops, shared.logprobs.is_some(), shared.ids);
        let mut calls = shared.functions.clone().map(CallParser::new);
        // Capacity for every token, because the engine does not wait.
        let (sender, mut tokens) = mpsc::channel(sampling.max_tokens as usize + 1);
        let watch = TokenWatcher::new(sender, shared.stops.clone(), tokenizer.clone())
            .ranking(shared.ranks(sampling.temperature));
        let prompt = [&resident.ids[..], &segment.ids].concat();
        let mut whole = ChatDelta {
            logprobs: shared.logprobs.map(|_| Vec::new()),
            token_ids: shared.ids.then(Vec::new),
            ..ChatDelta::default()
        };
        let constraint = shared.constraint.clone();
        let reply = {
            let keeps_reply = shared.keeps_reply;
            let wanted = ChatReplyRequest { segment, keeps_reply, sampling, constraint, watch };
            let mut reply = std::pin::pin!(resident.chat.reply(wanted));
            loop {
                tokio::select! {
                    biased;
                    Some(token) = tokens.recv() => {
                        if let Some(delta) = assembler.push(token) {
                            sink.push(&mut whole, with_calls(&mut calls, delta)).await?;
                        }
                    }
                    reply = &mut reply => break reply.map_err(|fault| failed(&fault))?,
                }
            }
        };
        while let Ok(token) = tokens.try_recv() {
            if let Some(delta) = assembler.push(token) {
                sink.push(&mut whole, with_calls(&mut calls, delta)).await?;
            }
        }
        let mut last = with_calls(&mut calls, assembler.finish());
        last.text.extend(calls.map(|calls| calls.finish().content));
        sink.push(&mut whole, last).await?;
        let completed = CompletedChoice {
            finish: finish(reply.finish_reason, &whole),
            prompt_token_ids: shared.ids.then(|| prompt.clone()),
            reply: whole,
        };
        Ok(EndedChoice { completed, resident, prompt, reply, is_first })
    }

    /// Keeps the session of a reply under its name.
    fn keep(&self, session: ContinuedSession, choice: EndedChoice, keeps_reply: bool) {
        let EndedChoice { completed, mut resident, prompt, reply, .. } = choice;
        if keeps_reply {
            let CompletedChoice { reply: ChatDelta { text, calls, .. }, .. } = completed;
            let parts: Vec<MessagePart> = std::iter::once(MessagePart::Text(text))
                .chain(calls.into_iter().map(MessagePart::Call))
                .collect();
            let text_digest = digest_of_reply(&parts);
            let ids = Some(digest_of_ids(&reply.columns.ids, self.chat_engine.template().stop()));
            resident.ids = [prompt, reply.columns.ids].concat();
            let new = session.messages.into_iter().skip(resident.messages.len());
            resident.messages.extend(new.map(|message| SessionMessage { message, is_sampled: false }));
            resident
                .messages
                .push(SessionMessage { message: MessageDigest { text_digest, ids }, is_sampled: true });
        }
        if !resident.messages.is_empty() {
            self.residents.keep(session.name, resident);
        }
    }
}

/// What is left of a prepared request without the writer of its answer.
pub(super) struct PreparedReplies {
    choices: Vec<PreparedChoice>,
    shared: SharedOptions,
    session: Option<ContinuedSession>,
}

impl PreparedChat {
    /// Ids of the whole prompt, if they were requested.
    pub(super) fn prompt_ids(&self) -> Option<Vec<u32>> {
        let PreparedChoice { resident, segment, .. } = self.choices.first().filter(|_| self.shared.ids)?;
        Some([&resident.ids[..], &segment.ids].concat())
    }

    /// The replies to generate, and the writer of the answer.
    pub(super) fn into_parts(self) -> (PreparedReplies, AnswerWriter) {
        let Self { choices, shared, session, writer, .. } = self;
        (PreparedReplies { choices, shared, session }, writer)
    }
}

impl SharedOptions {
    /// How many of the likeliest tokens to rank. A sample at temperature 0 or 1 already has the
    /// log-prob of softmax(logits).
    fn ranks(&self, temperature: f32) -> Option<usize> {
        let needs = |count: &u32| *count > 0 || ![0.0, 1.0].contains(&temperature);
        self.logprobs.filter(needs).map(|count| count as usize)
    }
}

/// Receiver of the parts of one choice.
struct ChoiceSink {
    index: usize,
    parts: DeltaSink,
}

impl ChoiceSink {
    async fn push(&mut self, whole: &mut ChatDelta, delta: ChatDelta) -> ApiResult<()> {
        whole.text.push_str(&delta.text);
        whole.calls.extend(delta.calls.iter().cloned());
        match &self.parts {
            DeltaSink::Gathered => {
                whole
                    .logprobs
                    .iter_mut()
                    .for_each(|all| all.extend(delta.logprobs.iter().flatten().cloned()));
                whole.token_ids.iter_mut().for_each(|all| all.extend(delta.token_ids.iter().flatten()));
                Ok(())
            }
            DeltaSink::Streamed(_) if delta.is_empty() => Ok(()),
            DeltaSink::Streamed(reader) => reader.send((self.index, delta)).await.map_err(|_| {
                ApiError::of(499, "invalid_request_error", "client_gone", "the client has left")
            }),
        }
    }
}

/// Takes the calls out of the text of a part.
fn with_calls(calls: &mut Option<CallParser>, delta: ChatDelta) -> ChatDelta {
    let Some(parser) = calls else { return delta };
    let parsed = parser.push(&delta.text);
    ChatDelta { text: parsed.content, calls: parsed.calls, ..delta }
}

/// Counts of the tokens of all replies, each prompt counted once.
fn usage(ended: &[EndedChoice]) -> TokenUsage {
    let mut usage = TokenUsage::default();
    for EndedChoice { prompt, reply, is_first, .. } in ended {
        let columns = &reply.columns;
        let sampled =
            columns.mask.iter().zip(&columns.forced).filter(|(sampled, forced)| **sampled || **forced);
        let length = prompt.len() as u32;
        let cached_tokens = reply.engine.reused_tokens;
        usage.completion_tokens += sampled.count() as u32;
        // A constrained reply begins with tokens that its layout forces; they run with the prompt
        // and belong to the reply.
        usage.prefilled_tokens += reply.engine.prefill_tokens.min(length.saturating_sub(cached_tokens));
        if *is_first {
            usage.prompt_tokens += length;
            usage.cached_tokens += cached_tokens;
        }
    }
    if ended.len() > 1 {
        // Which reply prefilled what the others forked from depends on which one began first.
        usage.cached_tokens = usage.prompt_tokens.saturating_sub(usage.prefilled_tokens);
    }
    usage
}

fn finish(reason: FinishReason, reply: &ChatDelta) -> ChatFinishReason {
    match reason {
        FinishReason::Stop if !reply.calls.is_empty() => ChatFinishReason::ToolCalls,
        FinishReason::Stop => ChatFinishReason::Stop,
        // A schema's text that was closed because its budget was used up counts as cut.
        _ => ChatFinishReason::Length,
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
