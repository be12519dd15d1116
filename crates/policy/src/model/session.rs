//! One session of the `model` policy: cuts screenshots, sends turns to the engine, parses replies
//! and writes traces.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use furrow_model::sample::AllowedTokens;
use furrow_rollout::{
    ContextPolicy, Outcome, PolicyKind, PolicyReply, PolicyVersion, SamplingParams, Screenshot, TokenTrace,
    Trace,
};
use furrow_wire::{PastStep, SessionOpening};
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::shared::ModelShared;
use crate::constrain::Constraint;
use crate::context::PromptTurn;
use crate::conversation::Conversation;
use crate::engine::{EngineEvent, EngineFault, GenerationRequest, OnSwap, SessionId, StepOutput};
use crate::grammar::{self, ViewedPage};
use crate::policy::{PolicyError, PolicyInput, PolicyOutput, Session};
use crate::prompt::{self, PastReply, TurnText};
use crate::response::{PartialResponse, RandomStream};
use crate::sequence::{TiledImage, TokenSegment};
use crate::trace::token_trace;

/// A session of a trajectory. Dropping it ends it in the engine.
pub(super) struct ModelSession {
    shared: Arc<ModelShared>,
    id: SessionId,
    /// Cancelled when this is dropped.
    _life: DropGuard,
    opening: SessionOpening,
    constraint: Option<Arc<Constraint>>,
    stream: RandomStream,
    conversation: Conversation,
    /// Replies so far, for prompts that are built from nothing.
    past_replies: Vec<PastReply>,
    /// The step that comes next.
    next: u32,
    /// Version of the weights when its state was begun.
    begun_on: PolicyVersion,
    /// The recorded steps, kept if newer weights may have to run them again.
    past: Vec<PastStep>,
}

impl ModelSession {
    /// Opens a session in the engine.
    pub(super) async fn open(
        shared: &Arc<ModelShared>,
        opening: &SessionOpening,
        constraint: Option<Arc<Constraint>>,
    ) -> Result<Self, PolicyError> {
        let id = SessionId(shared.sessions.fetch_add(1, Ordering::Relaxed));
        let life = CancellationToken::new();
        // From here on, dropping the session closes it, also if opening it fails.
        let session = Self::new(shared.clone(), id, life.clone(), opening.clone(), constraint);
        let (opened, answer) = oneshot::channel();
        let rebuilt = opening.past_steps > 0;
        shared.send_event(EngineEvent::Open { session: id, rebuilt, life, opened }).await?;
        let answer = shared.answer(answer).await?;
        answer.map_err(|fault| policy_error(0, &fault))?;
        Ok(session)
    }

    fn new(
        shared: Arc<ModelShared>,
        id: SessionId,
        life: CancellationToken,
        opening: SessionOpening,
        constraint: Option<Arc<Constraint>>,
    ) -> Self {
        Self {
            id,
            _life: life.drop_guard(),
            conversation: Conversation::new(opening.session.context, shared.rebuild_mode),
            stream: RandomStream::new(opening.session.sampling.seed, &opening.ancestry),
            opening,
            constraint,
            past_replies: Vec::new(),
            next: 0,
            begun_on: shared.current_weights().version,
            past: Vec::new(),
            shared,
        }
    }

    /// Whether newer weights must not continue the state that older ones wrote.
    fn needs_rebuild(&self) -> bool {
        self.next > 0 && self.is_rebuildable() && self.begun_on < self.shared.current_weights().version
    }

    /// Runs the past steps again with the weights in use, as in a worker that never held the
    /// session.
    async fn rebuild(&mut self) -> Result<(), PolicyError> {
        let shared = self.shared.clone();
        shared.send_event(EngineEvent::Close(self.id)).await?;
        let life = CancellationToken::new();
        self.id = SessionId(shared.sessions.fetch_add(1, Ordering::Relaxed));
        self._life = life.clone().drop_guard();
        self.begun_on = shared.current_weights().version;
        self.conversation = Conversation::new(self.keep(), shared.rebuild_mode);
        self.past_replies.clear();
        let past = std::mem::take(&mut self.past);
        (self.next, self.opening.past_steps) = (0, past.len() as u32);
        let (opened, answer) = oneshot::channel();
        shared.send_event(EngineEvent::Open { session: self.id, rebuilt: true, life, opened }).await?;
        shared.answer(answer).await?.map_err(|fault| policy_error(self.next, &fault))?;
        for step in past {
            self.rebuild_step(step).await?;
        }
        Ok(())
    }

    /// Whether newer weights may have to run its steps again.
    fn is_rebuildable(&self) -> bool {
        self.shared.on_swap == OnSwap::Rebuild && self.keep() != ContextPolicy::Fresh
    }

    /// Whether its steps may have to run again at all.
    fn keeps_past(&self) -> bool {
        self.is_rebuildable() || self.shared.audit.is_some()
    }

    fn keep(&self) -> ContextPolicy {
        self.opening.session.context
    }

    fn check_order(&self, step: u32) -> Result<(), PolicyError> {
        if step == self.next { Ok(()) } else { Err(PolicyError::OutOfOrder { step, next: self.next }) }
    }

    /// Decoding and cutting take tens of milliseconds of CPU time, so they run on a blocking
    /// thread.
    async fn picture(&self, step: u32, screenshot: &Screenshot) -> Result<Arc<TiledImage>, PolicyError> {
        let shared = self.shared.clone();
        let screenshot = screenshot.clone();
        let preparing = tokio::task::spawn_blocking(move || {
            prompt::picture(&screenshot.bytes, &shared.vision, shared.resample).map_err(|why| why.to_string())
        });
        let prepared = preparing.await.unwrap_or_else(|why| Err(why.to_string()));
        prepared.map(Arc::new).map_err(|why| PolicyError::Screenshot { step, why })
    }

    /// The texts of the next turn.
    fn turn_text(&mut self, last_outcome: Option<&Outcome>) -> TurnText {
        let outcome = last_outcome.map(prompt::outcome_text).unwrap_or_default();
        let template = &self.shared.template;
        let SessionOpening { goal, session, .. } = &self.opening;
        match self.keep() {
            ContextPolicy::Fresh => {
                if let Some(last) = self.past_replies.last_mut() {
                    last.outcome = outcome;
                }
                prompt::fresh_turn(template, &session.instructions, goal, &self.past_replies)
            }
            _ if self.next == 0 => prompt::first_turn(template, &session.instructions, goal),
            _ => prompt::later_turn(template, &outcome),
        }
    }

    /// Keeps a reply if prompts are built from nothing.
    fn remember_reply(&mut self, response: &[u32]) {
        if self.keep() == ContextPolicy::Fresh {
            let stop = self.shared.template.stop();
            let response = response.iter().copied().filter(|id| *id != stop).collect();
            self.past_replies.push(PastReply { response, outcome: String::new() });
        }
    }

    async fn engine_step(
        &self,
        kept: Vec<TokenSegment>,
        ask: Option<Box<GenerationRequest>>,
    ) -> Result<StepOutput, PolicyError> {
        let (done, answer) = oneshot::channel();
        self.shared.send_event(EngineEvent::Step { session: self.id, kept, ask, done }).await?;
        self.shared.answer(answer).await?.map_err(|fault| policy_error(self.next, &fault))
    }

    /// Sends the turn to the engine and waits for the reply.
    async fn generate(
        &mut self,
        turn: PromptTurn,
        picture: Arc<TiledImage>,
        task_end: u32,
    ) -> Result<Trace, PolicyError> {
        let sampling = &self.opening.session.sampling;
        let tokens_max = self.shared.reply_tokens_max(sampling.max_tokens);
        let stop = self.shared.template.stop();
        let mut response =
            PartialResponse::new(sampling, &self.stream, self.next, stop, self.constraint.as_ref());
        if let Some(among) = &self.shared.allowed_ids {
            response = response.restricted_to(among);
        }
        let shown = self.conversation.plan_prompt(&turn, Some(picture), task_end);
        let ask =
            GenerationRequest { prompt: shown.segment, keeps_reply: shown.keeps_reply, response, tokens_max };
        let reply = self.engine_step(shown.kept, Some(Box::new(ask))).await?;
        let commit = self.conversation.commit_response(turn, &reply.columns.ids);
        self.remember_reply(&reply.columns.ids);
        Ok(Trace {
            policy_kind: PolicyKind::Model,
            policy_version: reply.columns.policy_versions.last().map(|version| PolicyVersion(*version)),
            state_version_min: Some(reply.state_version_min),
            engine: reply.engine.clone(),
            tokens: Some(token_trace(shown.prompt, reply, commit)),
            rescored: Vec::new(),
        })
    }

    /// The action text of a response: what follows the thinking, without delimiters.
    fn parse_reply(&self, turn: &PolicyInput<'_>, response: &[u32]) -> PolicyReply {
        let text = self.shared.template.tokenizer().decode(response);
        let text = text.rsplit_once("</think>").map_or(text.as_str(), |(_, action)| action);
        grammar::parse(&self.opening.session.grammar, text, ViewedPage::from(turn.observation))
    }
}

/// Steps that were acted earlier.
impl ModelSession {
    /// The tokens of a step, if this model can run them.
    fn tokens_of<'a>(&self, past: &'a PastStep) -> Result<&'a TokenTrace, PolicyError> {
        let wrong = |why: String| PolicyError::PastStep { step: past.step, why };
        let Some(tokens) = &past.trace.tokens else {
            return Err(wrong("its trace has no tokens: another policy acted it".into()));
        };
        let placeholder = self.shared.vision.image_token;
        let known = |id: &&u32| (**id as usize) < self.shared.embedding_rows || **id == placeholder;
        let mut ids = tokens.prompt_token_ids.iter().chain(&tokens.response_token_ids);
        if let Some(stranger) = ids.find(|id| !known(id)) {
            return Err(wrong(format!("token id {stranger} is not in this model's vocabulary")));
        }
        if tokens.response_mask.len() != tokens.response_token_ids.len() {
            return Err(wrong("response_mask and response_token_ids differ in length".into()));
        }
        Ok(tokens)
    }

    /// The image of a step, if a prompt shows it again.
    async fn picture_of(
        &self,
        past: &PastStep,
        tokens: &TokenTrace,
        is_shown: bool,
    ) -> Result<Option<Arc<TiledImage>>, PolicyError> {
        if !is_shown {
            return Ok(None);
        }
        let picture = self.picture(past.step, &past.screenshot).await?;
        match tokens.image_spans.last() {
            Some(span) if span.blob_sha256 != picture.blob_sha256 || span.token_len != picture.rows() => {
                let why = "its screenshot is not the one its trace names".into();
                Err(PolicyError::PastStep { step: past.step, why })
            }
            _ => Ok(Some(picture)),
        }
    }

    /// Log-probs of tokens of the next step's response by the prefill path. For each token, a
    /// prompt holds the response before it, and that token is the only one that may be sampled.
    /// Keeps nothing of the step.
    pub(super) async fn score(
        &mut self,
        past: &PastStep,
        indices: &[usize],
    ) -> Result<Vec<f32>, PolicyError> {
        self.check_order(past.step)?;
        let tokens = self.tokens_of(past)?;
        let picture = self.picture_of(past, tokens, true).await?;
        let shown = self.conversation.prompt_before(past.step, tokens, picture, self.shared.delimiters);
        let wrong = |why: String| PolicyError::PastStep { step: past.step, why };
        let (mut kept, prompt) = shown.map_err(|why| wrong(why.to_string()))?;
        let sampling = SamplingParams { max_tokens: 1, ..self.opening.session.sampling.clone() };
        let stop = self.shared.template.stop();
        let mut logprobs = Vec::with_capacity(indices.len());
        for index in indices {
            let (Some(id), Some(before)) =
                (tokens.response_token_ids.get(*index), tokens.response_token_ids.get(..*index))
            else {
                return Err(wrong(format!("its response has no token {index}")));
            };
            let mut only = AllowedTokens::new(self.shared.vocabulary);
            only.insert(*id);
            let mut segment = prompt.clone();
            segment.ids.extend(before);
            let response = PartialResponse::new(&sampling, &self.stream, past.step, stop, None)
                .restricted_to(&Arc::new(only));
            // Two tokens: the sampled one, and the stop id, which is appended and not run.
            let ask = GenerationRequest { prompt: segment, keeps_reply: false, response, tokens_max: 2 };
            let reply = self.engine_step(std::mem::take(&mut kept), Some(Box::new(ask))).await?;
            let sampled = reply.columns.logprobs.first().copied().flatten();
            logprobs.push(sampled.ok_or_else(|| wrong(format!("its token {index} was not sampled")))?);
        }
        Ok(logprobs)
    }

    /// Scores some tokens of the last step again and adds the results to its trace. A failure is
    /// logged and leaves the step as it is.
    async fn audit_last_step(&self, trace: &mut Trace) {
        let Some((last, before)) = self.past.split_last() else { return };
        let audit = self.shared.audit.as_ref();
        let Some(audited) = audit.and_then(|audit| audit.begin(&self.stream, last.step, trace)) else {
            return;
        };
        match score_again(&self.shared, &self.opening, before, last, audited.indices()).await {
            Ok(logprobs) => audited.record(&logprobs, self.shared.current_weights().version, trace),
            Err(why) => tracing::warn!(%why, step = last.step, "a step could not be scored again"),
        }
    }
}

/// Log-probs of tokens of a step by the prefill path, in a session that runs the steps before it.
pub(super) async fn score_again(
    shared: &Arc<ModelShared>,
    opening: &SessionOpening,
    past: &[PastStep],
    step: &PastStep,
    indices: &[usize],
) -> Result<Vec<f32>, PolicyError> {
    let opening = SessionOpening { past_steps: past.len() as u32, ..opening.clone() };
    let mut session = ModelSession::open(shared, &opening, None).await?;
    for step in past {
        session.rebuild_step(step.clone()).await?;
    }
    session.score(step, indices).await
}

impl Drop for ModelSession {
    /// Frees the session at once. If the engine's queue is full, the engine finds the cancelled
    /// token by itself.
    fn drop(&mut self) {
        self.shared.events.try_send(EngineEvent::Close(self.id)).ok();
    }
}

#[tonic::async_trait]
impl Session for ModelSession {
    async fn rebuild_step(&mut self, past: PastStep) -> Result<(), PolicyError> {
        let step = past.step;
        self.check_order(step)?;
        let wrong = |why: String| PolicyError::PastStep { step, why };
        let tokens = self.tokens_of(&past)?;
        let is_shown = is_shown_at(self.keep(), step, self.opening.past_steps);
        let picture = self.picture_of(&past, tokens, is_shown).await?;
        if let (Some(last), Some(outcome)) = (self.past_replies.last_mut(), &past.last_outcome) {
            last.outcome = prompt::outcome_text(outcome);
        }
        let rebuilt = self.conversation.rebuild_step(step, tokens, picture, self.shared.delimiters);
        let segment_to_run = rebuilt.map_err(|why| wrong(why.to_string()))?;
        self.remember_reply(&tokens.response_token_ids);
        if let Some(segment) = segment_to_run {
            self.engine_step(vec![segment], None).await?;
        }
        self.next = step + 1;
        if self.keeps_past() {
            self.past.push(past);
        }
        Ok(())
    }

    async fn act(&mut self, turn: PolicyInput<'_>) -> Result<PolicyOutput, PolicyError> {
        self.check_order(turn.step)?;
        if self.needs_rebuild() {
            self.rebuild().await?;
        }
        let picture = self.picture(turn.step, &turn.observation.screenshot).await?;
        let text = self.turn_text(turn.last_outcome);
        let no_vision = || PolicyError::Failed { step: turn.step, why: "the model reads text only".into() };
        let (shown, task_end) =
            prompt::with_image(text, &picture, turn.step, &self.shared.template).ok_or_else(no_vision)?;
        let reply = self.shared.reply_tokens_max(self.opening.session.sampling.max_tokens) as usize;
        if self.conversation.tokens_with(&shown) + reply > self.shared.context_tokens_max as usize {
            return Ok(PolicyOutput::ContextFull);
        }
        let mut trace = self.generate(shown, picture, task_end).await?;
        self.next += 1;
        let response = trace.tokens.as_ref().map_or(&[][..], |tokens| &tokens.response_token_ids);
        let parsed = self.parse_reply(&turn, response);
        if self.keeps_past() {
            self.past.push(PastStep {
                step: turn.step,
                screenshot: turn.observation.screenshot.clone(),
                last_outcome: turn.last_outcome.cloned(),
                reply: parsed.clone(),
                trace: trace.clone(),
            });
        }
        self.audit_last_step(&mut trace).await;
        Ok(PolicyOutput::Reply(Box::new((parsed, trace))))
    }
}

/// Maps an engine fault to the error of a session.
fn policy_error(step: u32, fault: &EngineFault) -> PolicyError {
    let why = fault.to_string();
    match fault {
        EngineFault::Full { .. } => PolicyError::Full { why },
        EngineFault::Broken(_) | EngineFault::Device(_) | EngineFault::Gone => PolicyError::Gone { why },
        EngineFault::NotFinite { .. }
        | EngineFault::TooLong { .. }
        | EngineFault::NoPrompt
        | EngineFault::Refused(_) => PolicyError::Failed { step, why },
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
