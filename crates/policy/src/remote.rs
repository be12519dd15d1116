//! The `openai` policy: a model behind an OpenAI-compatible endpoint acts. Every step sends the
//! whole conversation.
//!
//! The endpoint holds no session, so K is empty and a step's prompt is all of it (as under
//! `fresh`). The context policy decides which turns and images are in it. Token ids and log-probs
//! are recorded if the endpoint returns them and they can be matched with what was shown. Otherwise
//! their columns are null and the step cannot be trained with a reward. An endpoint does not report
//! a version of its weights, so its tokens have version 0.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use furrow_model::vision::{ImageLimits, decode};
use furrow_openai::{CallLimits, ChatClient, ChatConversation, ChatReply, ConversationTurn, Role};
use furrow_rollout::{
    ContextPolicy, EngineStats, FinishReason, ImageSpan, PolicyHashes, PolicyKind, SamplingParams,
    TokenTrace, Trace, TrajectoryAncestry, token_hash,
};
use furrow_telemetry::{RemoteAnswered, RemoteFailed};
use furrow_wire::{PastStep, SessionOpening};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::config::RemoteConfig;
use crate::grammar::{self, ViewedPage};
use crate::policy::{Policy, PolicyError, PolicyInput, PolicyOutput, Session, trace_without_tokens};
use crate::prompt::outcome_text;

pub struct RemotePolicy {
    shared: Arc<RemoteShared>,
}

/// State that all sessions share.
struct RemoteShared {
    config: RemoteConfig,
    client: ChatClient,
    call_permits: Arc<Semaphore>,
}

struct RemoteSession {
    shared: Arc<RemoteShared>,
    keep: ContextPolicy,
    /// Earlier turns with their replies, the oldest first.
    past_turns: VecDeque<PastTurn>,
    /// Cancelled when the session is dropped, which ends its call.
    life: CancellationToken,
}

/// A turn that was answered.
struct PastTurn {
    step: u32,
    /// Outcome of the action before it; `None` at the first step.
    outcome: Option<String>,
    /// Its screenshot, while the context policy shows it again.
    picture: Option<Bytes>,
    reply: String,
}

/// An image in a prompt.
struct PromptImage {
    step: u32,
    bytes: Bytes,
}

impl RemotePolicy {
    /// Creates the policy of a checked configuration. Sends nothing yet.
    pub fn new(config: RemoteConfig) -> Self {
        let client = ChatClient::new(config.client.clone());
        let call_permits = Arc::new(Semaphore::new(config.calls_max as usize));
        Self { shared: Arc::new(RemoteShared { config, client, call_permits }) }
    }
}

#[tonic::async_trait]
impl Policy for RemotePolicy {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Openai
    }

    fn wants_hints(&self) -> bool {
        false
    }

    fn hashes(&self) -> PolicyHashes {
        PolicyHashes::default()
    }

    async fn open(&self, opening: &SessionOpening) -> Result<Box<dyn Session>, PolicyError> {
        let shared = self.shared.clone();
        let keep = opening.session.context;
        let past_turns = VecDeque::new();
        let life = CancellationToken::new();
        Ok(Box::new(RemoteSession { shared, keep, past_turns, life }))
    }
}

#[tonic::async_trait]
impl Session for RemoteSession {
    async fn rebuild_step(&mut self, past: PastStep) -> Result<(), PolicyError> {
        let outcome = past.last_outcome.as_ref().map(outcome_text);
        self.remember(past.step, outcome, past.screenshot.bytes, past.reply.raw_text);
        Ok(())
    }

    async fn act(&mut self, turn: PolicyInput<'_>) -> Result<PolicyOutput, PolicyError> {
        let next = self.past_turns.back().map_or(0, |past| past.step + 1);
        if turn.step != next {
            return Err(PolicyError::OutOfOrder { step: turn.step, next });
        }
        let outcome = turn.last_outcome.map(outcome_text);
        let (messages, shown) = self.conversation(&turn, outcome.as_deref());
        let chat = self.shared.chat(messages, &turn);
        let began = Instant::now();
        let reply = match self.ask(chat).await {
            Ok(reply) => reply,
            Err(RemoteFailure::TooLong) => return Ok(PolicyOutput::ContextFull),
            Err(RemoteFailure::Other(why)) => {
                RemoteFailed { step: turn.step, reason: &why }.emit();
                return Err(PolicyError::Failed { step: turn.step, why });
            }
        };
        let trace = self.shared.trace(&reply, shown, &turn.session.sampling).await;
        let ChatReply { completion, attempts, .. } = reply;
        RemoteAnswered {
            prompt_tokens: completion.prompt_tokens,
            completion_tokens: completion.completion_tokens,
            attempts,
            micros: began.elapsed().as_micros() as u64,
            cost_usd: trace.engine.cost_usd,
        }
        .emit();
        let read =
            grammar::parse(&turn.session.grammar, &completion.text, ViewedPage::from(turn.observation));
        let picture = turn.observation.screenshot.bytes.clone();
        self.remember(turn.step, outcome, picture, completion.text);
        Ok(PolicyOutput::Reply(Box::new((read, trace))))
    }
}

impl Drop for RemoteSession {
    fn drop(&mut self) {
        self.life.cancel();
    }
}

/// Why there is no reply.
enum RemoteFailure {
    /// The conversation is longer than the model's context.
    TooLong,
    Other(String),
}

impl RemoteSession {
    fn remember(&mut self, step: u32, outcome: Option<String>, picture: Bytes, reply: String) {
        self.past_turns.push_back(PastTurn { step, outcome, picture: Some(picture), reply });
        let kept = self.images_kept();
        let forgotten = self.past_turns.len().saturating_sub(kept);
        self.past_turns.iter_mut().take(forgotten).for_each(|past| past.picture = None);
    }

    /// How many earlier images the next prompt shows.
    fn images_kept(&self) -> usize {
        match self.keep {
            ContextPolicy::Append => usize::MAX,
            ContextPolicy::Window(pictures) => pictures as usize - 1,
            ContextPolicy::LastImage | ContextPolicy::Fresh => 0,
        }
    }

    /// The messages to send, and their images in order.
    fn conversation(
        &self,
        turn: &PolicyInput<'_>,
        outcome: Option<&str>,
    ) -> (Vec<ConversationTurn>, Vec<PromptImage>) {
        let own = PromptImage { step: turn.step, bytes: turn.observation.screenshot.bytes.clone() };
        let mut messages = vec![message(Role::System, turn.session.instructions.clone(), None)];
        if self.keep == ContextPolicy::Fresh {
            let mut text = turn.goal.to_owned();
            // An outcome follows its reply: it opens the next turn.
            let outcomes =
                self.past_turns.iter().skip(1).map(|past| past.outcome.as_deref()).chain([outcome]);
            for (past, outcome) in self.past_turns.iter().zip(outcomes) {
                text.push_str(&format!("\n{}\n{}", past.reply, outcome.unwrap_or_default()));
            }
            messages.push(message(Role::User, text, Some(&own.bytes)));
            return (messages, vec![own]);
        }
        let opens = |step: u32, outcome: Option<&str>| match step {
            0 => turn.goal.to_owned(),
            _ => outcome.unwrap_or_default().to_owned(),
        };
        let mut shown = Vec::new();
        for past in &self.past_turns {
            let text = opens(past.step, past.outcome.as_deref());
            messages.push(message(Role::User, text, past.picture.as_ref()));
            messages.push(message(Role::Assistant, past.reply.clone(), None));
            shown.extend(past.picture.clone().map(|bytes| PromptImage { step: past.step, bytes }));
        }
        messages.push(message(Role::User, opens(turn.step, outcome), Some(&own.bytes)));
        shown.push(own);
        (messages, shown)
    }

    /// Waits for a permit, then calls the endpoint on a blocking thread; both within one deadline.
    async fn ask(&self, chat: ChatConversation) -> Result<ChatReply, RemoteFailure> {
        let RemoteShared { config, client, call_permits } = &*self.shared;
        let deadline = Instant::now() + config.deadline;
        let waiting = tokio::time::timeout(config.deadline, call_permits.clone().acquire_owned());
        // A call that starts too late is billed although its answer cannot arrive in time.
        let is_in_time = || deadline.saturating_duration_since(Instant::now()) >= config.deadline / 10;
        let permit = match waiting.await {
            Ok(Ok(permit)) if is_in_time() => permit,
            _ => {
                let calls = config.calls_max;
                let millis = config.deadline.as_millis();
                return Err(RemoteFailure::Other(format!(
                    "none of the policy.remote.calls_max = {calls} calls became free in time for an answer within {millis} ms; raise policy.remote.calls_max or policy.remote.deadline_millis"
                )));
            }
        };
        let client = client.clone();
        let life = self.life.clone();
        let asking = tokio::task::spawn_blocking(move || {
            let stopped = || life.is_cancelled();
            let reply = client.chat(&chat, CallLimits { deadline, stopped: &stopped });
            drop(permit);
            reply
        });
        match asking.await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) if error.is_too_long_a_prompt() => Err(RemoteFailure::TooLong),
            Ok(Err(error)) => Err(RemoteFailure::Other(error.to_string())),
            Err(panicked) => Err(RemoteFailure::Other(panicked.to_string())),
        }
    }
}

impl RemoteShared {
    fn chat(&self, messages: Vec<ConversationTurn>, turn: &PolicyInput<'_>) -> ChatConversation {
        let SamplingParams { temperature, top_p, top_k, min_p, max_tokens, seed } = turn.session.sampling;
        ChatConversation {
            messages,
            temperature: decimal(temperature),
            top_p: decimal(top_p),
            top_k,
            min_p: decimal(min_p),
            max_tokens,
            seed: seed_of(turn.ancestry, seed, turn.step),
            logprobs: self.config.logprobs,
            token_ids: self.config.token_ids,
        }
    }

    async fn trace(&self, reply: &ChatReply, shown: Vec<PromptImage>, sampling: &SamplingParams) -> Trace {
        let tokens = match self.config.image_token_id {
            Some(placeholder) => tokens(reply, shown, placeholder, sampling).await,
            None => None,
        };
        let completion = &reply.completion;
        let count = |tokens: u64| u32::try_from(tokens).unwrap_or(u32::MAX);
        let cost_usd = self.config.prices.map(|prices| {
            completion.prompt_tokens as f64 * prices.prompt
                + completion.completion_tokens as f64 * prices.completion
        });
        let engine = EngineStats {
            prefill_tokens: count(completion.prompt_tokens.saturating_sub(reply.cached_tokens)),
            reused_tokens: count(reply.cached_tokens.min(completion.prompt_tokens)),
            decode_steps: count(completion.completion_tokens),
            cost_usd,
            ..EngineStats::default()
        };
        Trace { tokens, engine, ..trace_without_tokens(PolicyKind::Openai) }
    }
}

/// The tokens that the endpoint returned, if they can be matched with the images that were shown.
async fn tokens(
    reply: &ChatReply,
    shown: Vec<PromptImage>,
    placeholder: u32,
    sampling: &SamplingParams,
) -> Option<TokenTrace> {
    let ids = reply.token_ids.as_ref()?;
    let runs = runs(&ids.prompt, placeholder);
    if runs.len() != shown.len() {
        tracing::debug!(
            runs = runs.len(),
            pictures = shown.len(),
            "the endpoint's prompt has another number of images than were sent; its tokens are not kept"
        );
        return None;
    }
    let hashing = tokio::task::spawn_blocking(move || shown.iter().map(hashes).collect::<Option<Vec<_>>>());
    let Some(pictures) = hashing.await.ok()? else {
        tracing::debug!("an image that was sent cannot be decoded; its tokens are not kept");
        return None;
    };
    let spans =
        runs.into_iter().zip(pictures).map(|((token_start, token_len), (step, blob_sha256, rgb_sha256))| {
            // The endpoint does not report how its processor cuts an image.
            ImageSpan { step, token_start, token_len, tiles_x: 1, tiles_y: 1, blob_sha256, rgb_sha256 }
        });
    let image_spans: Vec<ImageSpan> = spans.collect();
    let count = ids.response.len();
    // Endpoints return log-softmax(logits). The records need log-softmax(logits / T), which is the
    // same at T = 1 and, by definition here, at T = 0.
    let is_ours = sampling.temperature == 1.0 || sampling.temperature == 0.0;
    let logprobs = reply.logprobs.as_ref().filter(|list| is_ours && list.len() == count);
    let logprobs: Option<Vec<Option<f32>>> = logprobs.map(|list| list.iter().copied().map(Some).collect());
    let is_uncut =
        sampling.temperature == 1.0 && sampling.top_p == 1.0 && sampling.top_k == 0 && sampling.min_p == 0.0;
    Some(TokenTrace {
        prompt_hash: token_hash(&ids.prompt, &image_spans),
        prompt_token_ids: ids.prompt.clone(),
        image_spans,
        response_token_ids: ids.response.clone(),
        response_mask: vec![true; count],
        forced: vec![false; count],
        commit_token_ids: Some(Vec::new()),
        prefix_len: 0,
        prefix_hash: token_hash(&[], &[]),
        finish_reason: if reply.completion.cut { FinishReason::Length } else { FinishReason::Stop },
        sampled_logprobs: logprobs.clone().filter(|_| is_uncut),
        logprobs,
        kept_count: None,
        kept_token_ids: Vec::new(),
        kept_offsets: Vec::new(),
        entropy: None,
        policy_versions: vec![0; count],
    })
}

/// Step, hash of the encoded image and hash of its pixels; `None` if it cannot be decoded.
fn hashes(shown: &PromptImage) -> Option<(u32, [u8; 32], [u8; 32])> {
    let rgb = decode(&shown.bytes, ImageLimits::default()).ok()?;
    Some((shown.step, Sha256::digest(&shown.bytes).into(), rgb.sha256))
}

/// Start and length of each run of an id.
fn runs(ids: &[u32], of: u32) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for (at, _) in ids.iter().enumerate().filter(|(_, id)| **id == of) {
        match runs.last_mut() {
            Some((start, len)) if (*start + *len) as usize == at => *len += 1,
            _ => runs.push((at as u32, 1)),
        }
    }
    runs
}

fn message(role: Role, text: String, picture: Option<&Bytes>) -> ConversationTurn {
    ConversationTurn { role, text, pictures: picture.cloned().into_iter().collect() }
}

/// The decimal value as written: 0.7 in single precision is 0.699999988 in double.
fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

/// Each step has its own seed, so that the slots of a group differ and a retried slot starts like
/// the one before it.
fn seed_of(ancestry: &TrajectoryAncestry, seed: u64, step: u32) -> i64 {
    let mut key = Sha256::new();
    key.update(b"furrow remote policy 1");
    key.update(seed.to_le_bytes());
    key.update(ancestry.sample_index.to_le_bytes());
    key.update(step.to_le_bytes());
    key.update(ancestry.group_id.as_str());
    let digest: [u8; 32] = key.finalize().into();
    let mut first = [0; 4];
    first.copy_from_slice(&digest[..4]);
    // All servers accept seeds of 31 bits.
    i64::from(u32::from_le_bytes(first) >> 1)
}
