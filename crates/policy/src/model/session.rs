//! One session of the `model` policy: screenshots in, turns shown to the engine, replies read, accounts written.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use furrow_model::sample::Allowed;
use furrow_rollout::{
    ContextPolicy, Outcome, PolicyKind, PolicyVersion, Reply as Said, Sampling, Screenshot, TokenTrace, Trace,
};
use furrow_wire::{Opening, PastStep};
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Shared, fault_at, is_seen_at};
use crate::constrain::Constraint;
use crate::context::Turn as Shown;
use crate::conversation::Conversation;
use crate::draw::{Response, Stream};
use crate::engine::{Ask, Event, OnSwap, Reply, SessionId};
use crate::grammar::{self, Seen};
use crate::policy::{Answer, PolicyError, Session, Turn};
use crate::prompt::{self, Text, Told};
use crate::sequence::{Picture, Stretch};
use crate::trace::token_trace;

/// The session. Dropping it ends it in the engine.
pub(super) struct ModelSession {
    shared: Arc<Shared>,
    id: SessionId,
    /// Cancelled when this is dropped.
    _life: DropGuard,
    opening: Opening,
    constraint: Option<Arc<Constraint>>,
    stream: Stream,
    conversation: Conversation,
    /// Replies so far, for prompts that begin anew.
    told: Vec<Told>,
    /// The step that comes next.
    next: u32,
    /// Version of the weights when its state was begun.
    begun_on: PolicyVersion,
    /// What it was shown and said, where it may have to be read again by newer weights.
    past: Vec<PastStep>,
}

impl ModelSession {
    pub fn new(
        shared: Arc<Shared>,
        id: SessionId,
        life: CancellationToken,
        opening: Opening,
        constraint: Option<Arc<Constraint>>,
    ) -> Self {
        Self {
            id,
            _life: life.drop_guard(),
            conversation: Conversation::new(opening.session.context, shared.replay),
            stream: Stream::new(opening.session.sampling.seed, &opening.ancestry),
            opening,
            constraint,
            told: Vec::new(),
            next: 0,
            begun_on: shared.in_use().version,
            past: Vec::new(),
            shared,
        }
    }

    /// Whether newer weights shall not go on with the state that older ones wrote.
    fn is_to_be_rebuilt(&self) -> bool {
        self.next > 0 && self.remembers() && self.begun_on < self.shared.in_use().version
    }

    /// Has its past read again by the weights in use, as a worker would that never held it.
    async fn rebuild(&mut self) -> Result<(), PolicyError> {
        let shared = self.shared.clone();
        shared.tell(Event::Close(self.id)).await?;
        let life = CancellationToken::new();
        self.id = SessionId(shared.sessions.fetch_add(1, Ordering::Relaxed));
        self._life = life.clone().drop_guard();
        self.begun_on = shared.in_use().version;
        self.conversation = Conversation::new(self.keep(), shared.replay);
        self.told.clear();
        let past = std::mem::take(&mut self.past);
        (self.next, self.opening.past_steps) = (0, past.len() as u32);
        let (opened, answer) = oneshot::channel();
        shared.tell(Event::Open { session: self.id, rebuilt: true, life, opened }).await?;
        answer.await.map_err(|_| shared.gone())?.map_err(|fault| fault_at(self.next, &fault))?;
        for step in past {
            self.recall(step).await?;
        }
        Ok(())
    }

    /// Whether its steps may have to be read again by newer weights.
    fn remembers(&self) -> bool {
        self.shared.on_swap == OnSwap::Rebuild && self.keep() != ContextPolicy::Fresh
    }

    /// Whether its steps may have to be read again at all.
    fn keeps_past(&self) -> bool {
        self.remembers() || self.shared.audit.is_some()
    }

    fn keep(&self) -> ContextPolicy {
        self.opening.session.context
    }

    fn in_order(&self, step: u32) -> Result<(), PolicyError> {
        if step == self.next { Ok(()) } else { Err(PolicyError::OutOfOrder { step, next: self.next }) }
    }

    /// Decoding and cutting take tens of milliseconds of a processor: not on a thread that serves streams.
    async fn picture(&self, step: u32, screenshot: &Screenshot) -> Result<Arc<Picture>, PolicyError> {
        let (shared, screenshot) = (self.shared.clone(), screenshot.clone());
        let preparing = tokio::task::spawn_blocking(move || {
            prompt::picture(&screenshot.bytes, &shared.vision, shared.resample).map_err(|why| why.to_string())
        });
        let prepared = preparing.await.unwrap_or_else(|why| Err(why.to_string()));
        prepared.map(Arc::new).map_err(|why| PolicyError::Screenshot { step, why })
    }

    /// The words of the next turn.
    fn text(&mut self, last_outcome: Option<&Outcome>) -> Text {
        let outcome = last_outcome.map(prompt::outcome_text).unwrap_or_default();
        let (template, Opening { goal, session, .. }) = (&self.shared.template, &self.opening);
        match self.keep() {
            ContextPolicy::Fresh => {
                if let Some(last) = self.told.last_mut() {
                    last.outcome = outcome;
                }
                prompt::anew(template, &session.instructions, goal, &self.told)
            }
            _ if self.next == 0 => prompt::first(template, &session.instructions, goal),
            _ => prompt::later(template, &outcome),
        }
    }

    /// Remembers a reply where prompts begin anew.
    fn tell_again(&mut self, response: &[u32]) {
        if self.keep() == ContextPolicy::Fresh {
            let stop = self.shared.template.stop();
            let response = response.iter().copied().filter(|id| *id != stop).collect();
            self.told.push(Told { response, outcome: String::new() });
        }
    }

    async fn engine_step(&self, kept: Vec<Stretch>, ask: Option<Box<Ask>>) -> Result<Reply, PolicyError> {
        let (done, answer) = oneshot::channel();
        self.shared.tell(Event::Step { session: self.id, kept, ask, done }).await?;
        answer.await.map_err(|_| self.shared.gone())?.map_err(|fault| fault_at(self.next, &fault))
    }

    /// Shows the turn and waits for the reply.
    async fn ask(&mut self, turn: Shown, picture: Arc<Picture>, task_end: u32) -> Result<Trace, PolicyError> {
        let sampling = &self.opening.session.sampling;
        let tokens_max = self.shared.reply_tokens_max(sampling.max_tokens);
        let stop = self.shared.template.stop();
        let mut response = Response::new(sampling, &self.stream, self.next, stop, self.constraint.as_ref());
        if let Some(among) = &self.shared.among {
            response = response.among(among);
        }
        let shown = self.conversation.show(&turn, Some(picture), task_end);
        let ask = Ask { prompt: shown.stretch, stays: shown.stays, response, tokens_max };
        let reply = self.engine_step(shown.kept, Some(Box::new(ask))).await?;
        let commit = self.conversation.answered(turn, &reply.columns.ids);
        self.tell_again(&reply.columns.ids);
        Ok(Trace {
            policy_kind: PolicyKind::Model,
            policy_version: reply.columns.policy_versions.last().map(|version| PolicyVersion(*version)),
            state_version_min: Some(reply.state_version_min),
            engine: reply.engine.clone(),
            tokens: Some(token_trace(shown.prompt, reply, commit)),
            scored_again: Vec::new(),
        })
    }

    /// The action text of a response: what follows the thinking, marks left out.
    fn read(&self, turn: &Turn<'_>, response: &[u32]) -> Said {
        let text = self.shared.template.tokenizer().decode(response);
        let text = text.rsplit_once("</think>").map_or(text.as_str(), |(_, action)| action);
        grammar::parse(&self.opening.session.grammar, text, Seen::from(turn.observation))
    }
}

/// Steps that were acted before.
impl ModelSession {
    /// The tokens of a step, where this model can run them.
    fn tokens_of<'a>(&self, past: &'a PastStep) -> Result<&'a TokenTrace, PolicyError> {
        let wrong = |why: String| PolicyError::Past { step: past.step, why };
        let Some(tokens) = &past.trace.tokens else {
            return Err(wrong("its trace has no tokens: another policy acted it".into()));
        };
        let placeholder = self.shared.vision.image_token;
        let known = |id: &&u32| (**id as usize) < self.shared.embedding_rows || **id == placeholder;
        let mut ids = tokens.prompt_token_ids.iter().chain(&tokens.response_token_ids);
        if let Some(stranger) = ids.find(|id| !known(id)) {
            return Err(wrong(format!("token id {stranger} is none of this model's")));
        }
        if tokens.response_mask.len() != tokens.response_token_ids.len() {
            return Err(wrong("response_mask has another length than response_token_ids".into()));
        }
        Ok(tokens)
    }

    /// The picture of a step, where it is shown again.
    async fn picture_of(
        &self,
        past: &PastStep,
        tokens: &TokenTrace,
        is_seen: bool,
    ) -> Result<Option<Arc<Picture>>, PolicyError> {
        if !is_seen {
            return Ok(None);
        }
        let picture = self.picture(past.step, &past.screenshot).await?;
        match tokens.image_spans.last() {
            Some(span) if span.blob_sha256 != picture.blob_sha256 || span.token_len != picture.rows() => {
                let why = "its screenshot is not the one that its trace tells of".into();
                Err(PolicyError::Past { step: past.step, why })
            }
            _ => Ok(Some(picture)),
        }
    }

    /// Log-probs of tokens of the next step's response by the prefill path: each is the only one left to draw, behind a prompt that
    /// holds the response up to it. Nothing of the step is kept.
    pub async fn score(&mut self, past: &PastStep, places: &[usize]) -> Result<Vec<f32>, PolicyError> {
        self.in_order(past.step)?;
        let tokens = self.tokens_of(past)?;
        let picture = self.picture_of(past, tokens, true).await?;
        let shown = self.conversation.shown_before(past.step, tokens, picture, self.shared.marks);
        let wrong = |why: String| PolicyError::Past { step: past.step, why };
        let (mut kept, prompt) = shown.map_err(|why| wrong(why.to_string()))?;
        let sampling = Sampling { max_tokens: 1, ..self.opening.session.sampling.clone() };
        let stop = self.shared.template.stop();
        let mut logprobs = Vec::with_capacity(places.len());
        for place in places {
            let (Some(id), Some(before)) =
                (tokens.response_token_ids.get(*place), tokens.response_token_ids.get(..*place))
            else {
                return Err(wrong(format!("its response has no token {place}")));
            };
            let mut only = Allowed::new(self.shared.vocabulary);
            only.insert(*id);
            let mut stretch = prompt.clone();
            stretch.ids.extend(before);
            let response =
                Response::new(&sampling, &self.stream, past.step, stop, None).among(&Arc::new(only));
            // The token and the stop behind it, which is appended and not run.
            let ask = Ask { prompt: stretch, stays: false, response, tokens_max: 2 };
            let reply = self.engine_step(std::mem::take(&mut kept), Some(Box::new(ask))).await?;
            let drawn = reply.columns.logprobs.first().copied().flatten();
            logprobs.push(drawn.ok_or_else(|| wrong(format!("its token {place} was not drawn")))?);
        }
        Ok(logprobs)
    }
}

impl Drop for ModelSession {
    /// Has the session's place freed now. An engine that is too busy to be told sees it by itself: its life ends with this.
    fn drop(&mut self) {
        self.shared.events.try_send(Event::Close(self.id)).ok();
    }
}

#[tonic::async_trait]
impl Session for ModelSession {
    async fn recall(&mut self, past: PastStep) -> Result<(), PolicyError> {
        let step = past.step;
        self.in_order(step)?;
        let wrong = |why: String| PolicyError::Past { step, why };
        let tokens = self.tokens_of(&past)?;
        let is_seen = is_seen_at(self.keep(), step, self.opening.past_steps);
        let picture = self.picture_of(&past, tokens, is_seen).await?;
        if let (Some(last), Some(outcome)) = (self.told.last_mut(), &past.last_outcome) {
            last.outcome = prompt::outcome_text(outcome);
        }
        let recalled = self.conversation.recall(step, tokens, picture, self.shared.marks);
        let lived = recalled.map_err(|why| wrong(why.to_string()))?;
        self.tell_again(&tokens.response_token_ids);
        if let Some(stretch) = lived {
            self.engine_step(vec![stretch], None).await?;
        }
        self.next = step + 1;
        if self.keeps_past() {
            self.past.push(past);
        }
        Ok(())
    }

    async fn act(&mut self, turn: Turn<'_>) -> Result<Answer, PolicyError> {
        self.in_order(turn.step)?;
        if self.is_to_be_rebuilt() {
            self.rebuild().await?;
        }
        let picture = self.picture(turn.step, &turn.observation.screenshot).await?;
        let text = self.text(turn.last_outcome);
        let no_vision = || PolicyError::Failed { step: turn.step, why: "the model reads text only".into() };
        let (shown, task_end) =
            prompt::turn(text, &picture, turn.step, &self.shared.template).ok_or_else(no_vision)?;
        let reply = self.shared.reply_tokens_max(self.opening.session.sampling.max_tokens) as usize;
        if self.conversation.tokens_with(&shown) + reply > self.shared.context_tokens_max as usize {
            return Ok(Answer::ContextFull);
        }
        let mut trace = self.ask(shown, picture, task_end).await?;
        self.next += 1;
        let response = trace.tokens.as_ref().map_or(&[][..], |tokens| &tokens.response_token_ids);
        let said = self.read(&turn, response);
        if self.keeps_past() {
            self.past.push(PastStep {
                step: turn.step,
                screenshot: turn.observation.screenshot.clone(),
                last_outcome: turn.last_outcome.cloned(),
                reply: said.clone(),
                trace: trace.clone(),
            });
        }
        if let Some(audit) = &self.shared.audit {
            audit.look(&self.shared, (&self.opening, &self.stream), &self.past, &mut trace).await;
        }
        Ok(Answer::Reply(Box::new((said, trace))))
    }
}
