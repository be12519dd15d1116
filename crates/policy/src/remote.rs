//! The `openai` policy: any model behind an OpenAI-compatible endpoint acts. Every step sends the conversation anew.
//!
//! The endpoint holds no session of ours, so K is empty and a step's prompt is all of it (as under `fresh`); which turns and pictures are
//! in it the context policy says. Token ids and log-probs are recorded where the endpoint gives them and they can be tied to what was
//! shown; else their columns are null and nothing of the step is trainable by reward. An endpoint tells no version of its weights: its
//! tokens are of version 0.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use furrow_model::vision::{ImageLimits, decode};
use furrow_openai::{Chat, ChatReply, Client, Message, Role, Until};
use furrow_rollout::{
    Ancestry, ContextPolicy, Engine, FinishReason, Hashes, ImageSpan, PolicyKind, Sampling, TokenTrace,
    Trace, token_hash,
};
use furrow_telemetry::{RemoteAnswered, RemoteFailed};
use furrow_wire::{Opening, PastStep};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::config::RemoteConfig;
use crate::grammar::{self, Seen};
use crate::policy::{Answer, Policy, PolicyError, Session, Turn, tokenless};
use crate::prompt::outcome_text;

/// Asks an endpoint.
pub struct Remote {
    shared: Arc<Shared>,
}

/// What sessions have in common.
struct Shared {
    config: RemoteConfig,
    client: Client,
    /// Calls that may be under way.
    places: Arc<Semaphore>,
}

/// One conversation.
struct RemoteSession {
    shared: Arc<Shared>,
    keep: ContextPolicy,
    /// Earlier turns with their replies, the oldest first.
    told: VecDeque<Told>,
    /// Cancelled when the session is dropped: a call that nobody waits for ends.
    life: CancellationToken,
}

/// A turn that was answered.
struct Told {
    step: u32,
    /// What came of the action before it; `None` at the first step.
    outcome: Option<String>,
    /// Its screenshot, as long as the context policy shows it again.
    picture: Option<Bytes>,
    reply: String,
}

/// A picture that a prompt shows.
struct Shown {
    step: u32,
    bytes: Bytes,
}

impl Remote {
    /// Asks whom a checked configuration names. Nothing is sent yet.
    pub fn new(config: RemoteConfig) -> Self {
        let client = Client::new(config.client.clone());
        let places = Arc::new(Semaphore::new(config.calls_max as usize));
        Self { shared: Arc::new(Shared { config, client, places }) }
    }
}

#[tonic::async_trait]
impl Policy for Remote {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Openai
    }

    fn wants_hints(&self) -> bool {
        false
    }

    fn hashes(&self) -> Hashes {
        Hashes::default()
    }

    async fn open(&self, opening: &Opening) -> Result<Box<dyn Session>, PolicyError> {
        let (shared, keep) = (self.shared.clone(), opening.session.context);
        let (told, life) = (VecDeque::new(), CancellationToken::new());
        Ok(Box::new(RemoteSession { shared, keep, told, life }))
    }
}

#[tonic::async_trait]
impl Session for RemoteSession {
    async fn recall(&mut self, past: PastStep) -> Result<(), PolicyError> {
        let outcome = past.last_outcome.as_ref().map(outcome_text);
        self.remember(past.step, outcome, past.screenshot.bytes, past.reply.raw_text);
        Ok(())
    }

    async fn act(&mut self, turn: Turn<'_>) -> Result<Answer, PolicyError> {
        let next = self.told.back().map_or(0, |told| told.step + 1);
        if turn.step != next {
            return Err(PolicyError::OutOfOrder { step: turn.step, next });
        }
        let outcome = turn.last_outcome.map(outcome_text);
        let (messages, shown) = self.conversation(&turn, outcome.as_deref());
        let chat = self.shared.chat(messages, &turn);
        let began = Instant::now();
        let reply = match self.ask(chat).await {
            Ok(reply) => reply,
            Err(AskFailed::TooLong) => return Ok(Answer::ContextFull),
            Err(AskFailed::Why(why)) => {
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
        let read = grammar::parse(&turn.session.grammar, &completion.text, Seen::from(turn.observation));
        let picture = turn.observation.screenshot.bytes.clone();
        self.remember(turn.step, outcome, picture, completion.text);
        Ok(Answer::Reply(Box::new((read, trace))))
    }
}

impl Drop for RemoteSession {
    fn drop(&mut self) {
        self.life.cancel();
    }
}

/// Why there is no reply.
enum AskFailed {
    /// The conversation is longer than the model takes.
    TooLong,
    Why(String),
}

impl RemoteSession {
    fn remember(&mut self, step: u32, outcome: Option<String>, picture: Bytes, reply: String) {
        self.told.push_back(Told { step, outcome, picture: Some(picture), reply });
        let again = self.pictures_shown_again();
        let forgotten = self.told.len().saturating_sub(again);
        self.told.iter_mut().take(forgotten).for_each(|told| told.picture = None);
    }

    /// Earlier pictures that the next prompt shows.
    fn pictures_shown_again(&self) -> usize {
        match self.keep {
            ContextPolicy::Append => usize::MAX,
            ContextPolicy::Window(pictures) => pictures as usize - 1,
            ContextPolicy::LastImage | ContextPolicy::Fresh => 0,
        }
    }

    /// The turns that are sent, and the pictures in them, in order.
    fn conversation(&self, turn: &Turn<'_>, outcome: Option<&str>) -> (Vec<Message>, Vec<Shown>) {
        let own = Shown { step: turn.step, bytes: turn.observation.screenshot.bytes.clone() };
        let mut messages = vec![said(Role::System, turn.session.instructions.clone(), None)];
        if self.keep == ContextPolicy::Fresh {
            let mut text = turn.goal.to_owned();
            // A reply stands before what came of it: the outcome that the turn after it opened with.
            let outcomes = self.told.iter().skip(1).map(|told| told.outcome.as_deref()).chain([outcome]);
            for (told, outcome) in self.told.iter().zip(outcomes) {
                text.push_str(&format!("\n{}\n{}", told.reply, outcome.unwrap_or_default()));
            }
            messages.push(said(Role::User, text, Some(&own.bytes)));
            return (messages, vec![own]);
        }
        let opens = |step: u32, outcome: Option<&str>| match step {
            0 => turn.goal.to_owned(),
            _ => outcome.unwrap_or_default().to_owned(),
        };
        let mut shown = Vec::new();
        for told in &self.told {
            let text = opens(told.step, told.outcome.as_deref());
            messages.push(said(Role::User, text, told.picture.as_ref()));
            messages.push(said(Role::Assistant, told.reply.clone(), None));
            shown.extend(told.picture.clone().map(|bytes| Shown { step: told.step, bytes }));
        }
        messages.push(said(Role::User, opens(turn.step, outcome), Some(&own.bytes)));
        shown.push(own);
        (messages, shown)
    }

    /// Waits for a place, then on a thread that may wait for the endpoint; both within one deadline.
    async fn ask(&self, chat: Chat) -> Result<ChatReply, AskFailed> {
        let Shared { config, client, places } = &*self.shared;
        let deadline = Instant::now() + config.deadline;
        let waiting = tokio::time::timeout(config.deadline, places.clone().acquire_owned());
        // A call that has no time left to be answered is paid for all the same.
        let is_in_time = || deadline.saturating_duration_since(Instant::now()) >= config.deadline / 10;
        let place = match waiting.await {
            Ok(Ok(place)) if is_in_time() => place,
            _ => {
                let (calls, millis) = (config.calls_max, config.deadline.as_millis());
                return Err(AskFailed::Why(format!(
                    "no place among policy.remote.calls_max = {calls} calls became free in time for an answer within {millis} ms"
                )));
            }
        };
        let (client, life) = (client.clone(), self.life.clone());
        let asking = tokio::task::spawn_blocking(move || {
            let stopped = || life.is_cancelled();
            let reply = client.chat(&chat, Until { deadline, stopped: &stopped });
            drop(place);
            reply
        });
        match asking.await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) if error.is_too_long_a_prompt() => Err(AskFailed::TooLong),
            Ok(Err(error)) => Err(AskFailed::Why(error.to_string())),
            Err(panicked) => Err(AskFailed::Why(panicked.to_string())),
        }
    }
}

impl Shared {
    fn chat(&self, messages: Vec<Message>, turn: &Turn<'_>) -> Chat {
        let Sampling { temperature, top_p, top_k, min_p, max_tokens, seed } = turn.session.sampling;
        Chat {
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

    async fn trace(&self, reply: &ChatReply, shown: Vec<Shown>, sampling: &Sampling) -> Trace {
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
        let engine = Engine {
            prefill_tokens: count(completion.prompt_tokens.saturating_sub(reply.cached_tokens)),
            reused_tokens: count(reply.cached_tokens.min(completion.prompt_tokens)),
            decode_steps: count(completion.completion_tokens),
            cost_usd,
            ..Engine::default()
        };
        Trace { tokens, engine, ..tokenless(PolicyKind::Openai) }
    }
}

/// What the endpoint told of tokens, where it can be tied to the pictures that were shown.
async fn tokens(
    reply: &ChatReply,
    shown: Vec<Shown>,
    placeholder: u32,
    sampling: &Sampling,
) -> Option<TokenTrace> {
    let ids = reply.token_ids.as_ref()?;
    let runs = runs(&ids.prompt, placeholder);
    if runs.len() != shown.len() {
        tracing::debug!(
            runs = runs.len(),
            pictures = shown.len(),
            "the endpoint's prompt holds other pictures than were sent"
        );
        return None;
    }
    let hashing = tokio::task::spawn_blocking(move || shown.iter().map(hashes).collect::<Option<Vec<_>>>());
    let Some(pictures) = hashing.await.ok()? else {
        tracing::debug!("a picture that was sent cannot be read here; its tokens are not kept");
        return None;
    };
    let spans =
        runs.into_iter().zip(pictures).map(|((token_start, token_len), (step, blob_sha256, rgb_sha256))| {
            // How its processor cuts a picture the endpoint does not tell.
            ImageSpan { step, token_start, token_len, tiles_x: 1, tiles_y: 1, blob_sha256, rgb_sha256 }
        });
    let image_spans: Vec<ImageSpan> = spans.collect();
    let count = ids.response.len();
    // Endpoints tell log-softmax(logits); ours are log-softmax(logits / T), which is the same at T = 1 and, by our rule, when greedy.
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

/// Step, hash of the encoded picture, hash of its pixels; `None` where it cannot be decoded.
fn hashes(shown: &Shown) -> Option<(u32, [u8; 32], [u8; 32])> {
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

fn said(role: Role, text: String, picture: Option<&Bytes>) -> Message {
    Message { role, text, pictures: picture.cloned().into_iter().collect() }
}

/// As it was written: 0.7 in single precision is 0.699999988 in double.
fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

/// A seed of its own for each step, so that the slots of a group differ and a retried slot begins as the one before it.
fn seed_of(ancestry: &Ancestry, seed: u64, step: u32) -> i64 {
    let mut key = Sha256::new();
    key.update(b"furrow remote policy 1");
    key.update(seed.to_le_bytes());
    key.update(ancestry.sample_index.to_le_bytes());
    key.update(step.to_le_bytes());
    key.update(ancestry.group_id.as_str());
    let digest: [u8; 32] = key.finalize().into();
    let mut first = [0; 4];
    first.copy_from_slice(&digest[..4]);
    // Servers take 31 bits everywhere.
    i64::from(u32::from_le_bytes(first) >> 1)
}
