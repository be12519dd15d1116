//! A session and its step: what was shown, what was drawn, and what comes next.

use std::time::Instant;

use furrow_model::backend::Parked;
use furrow_model::sample::{Ranking, Token};
use furrow_rollout::{Engine as Account, FinishReason, PolicyVersion, StateOrigin};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{Engine, Fault, SessionId};
use crate::constrain::Illegal;
use crate::draw::{Columns, Response, Wait};
use crate::sequence::{Sequence, Stretch};
use crate::slots::{Place, Reserve};
use crate::snapshots::Name;

/// What a session is shown.
pub struct Ask {
    /// Behind the kept tokens. Its last leg stays open: forced tokens may join it.
    pub prompt: Stretch,
    /// Whether prompt and reply stay behind the kept tokens; else they run on a fork that is dropped.
    pub stays: bool,
    /// The empty response: how tokens are drawn, and what may come.
    pub response: Response,
    /// Tokens the response has at most, appended ones included.
    pub tokens_max: u32,
}

/// A reply and its account.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// What was drawn.
    pub columns: Columns,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Oldest version that wrote any state it was read from.
    pub state_version_min: PolicyVersion,
    /// What it cost; `worker` and `service_micros` are the caller's to fill.
    pub engine: Account,
}

/// A session.
pub struct Session {
    /// Cancelled when nobody holds it.
    pub life: CancellationToken,
    /// What is kept.
    pub base: Sequence,
    /// Version of the weights it keeps to; `None`: whichever is newest.
    pub pinned: Option<PolicyVersion>,
    /// Where the base's state is.
    pub state: State,
    /// Oldest version that wrote any of it.
    pub version_min: Option<PolicyVersion>,
    /// Where the state of its next reply came from, when it was not resident.
    pub origin: Option<StateOrigin>,
    /// What bringing it up to its past has cost; the next reply accounts for it.
    pub brought: Tally,
    /// What it is doing.
    pub step: Option<Step>,
    /// When it last did something: the idlest is parked first.
    pub touched: u64,
}

/// Where a base's state is.
#[derive(Debug)]
pub enum State {
    /// No token was run yet.
    Nowhere,
    /// On the device.
    Device(Place),
    /// In host memory.
    Host(Parked),
}

/// Prompt and reply that run beside the base and are dropped.
pub struct Fork {
    /// Begins where the base ends.
    pub sequence: Sequence,
    /// Its place, from when the step is admitted.
    pub place: Option<Place>,
}

/// One step of a session.
pub struct Step {
    /// Who waits for it; `None` once answered.
    pub done: Option<oneshot::Sender<Result<Reply, Fault>>>,
    /// Prompt and reply, where they do not stay.
    pub fork: Option<Fork>,
    /// Pages set aside for it.
    pub reserve: Reserve,
    /// Snapshots it makes on its way, by position.
    pub promised: Vec<(u32, Name)>,
    /// Whether it has its places.
    pub is_admitted: bool,
    /// Whether its next span was left out of a batch that it would have held up.
    pub was_left_out: bool,
    /// When it came, on the engine's clock; later, when it last decoded.
    pub since: u64,
    /// Oldest version that wrote any state of it.
    pub version_min: Option<PolicyVersion>,
    /// The costs.
    pub tally: Tally,
    /// When it came.
    pub arrived: Instant,
    asked: Option<Asked>,
}

struct Asked {
    response: Response,
    tokens_max: u32,
}

/// What a step cost.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tally {
    /// Tokens run before the first draw.
    pub prefill_tokens: u32,
    /// Tokens that the state held when the step was admitted.
    pub reused_tokens: u32,
    /// Spans run after the first draw.
    pub decode_steps: u32,
    /// Sessions that decoded in these batches, summed.
    pub decoded_together: u64,
    /// From its arrival to its first batch.
    pub queue_micros: Option<u64>,
    /// Its share of the device's time.
    pub device_micros: f64,
    /// Slot it ran in.
    pub slot: Option<u32>,
}

impl Session {
    pub fn new(life: CancellationToken, origin: Option<StateOrigin>, pinned: Option<PolicyVersion>) -> Self {
        Self {
            life,
            pinned,
            base: Sequence::default(),
            state: State::Nowhere,
            version_min: None,
            origin,
            brought: Tally::default(),
            step: None,
            touched: 0,
        }
    }

    /// Tokens of the longest sequence a step makes.
    pub fn tokens_with(&self, kept: &[Stretch], ask: Option<&Ask>) -> u32 {
        let kept: usize = kept.iter().map(|stretch| stretch.ids.len()).sum();
        let shown = ask.map_or(0, |ask| ask.prompt.ids.len() + ask.tokens_max as usize);
        self.base.len().saturating_add((kept + shown).min(u32::MAX as usize) as u32)
    }

    /// Lays the prompt. Goes on with [`Session::proceed`].
    pub fn show(&mut self, ask: Ask, chunk: u32) {
        let Ask { prompt, stays, response, tokens_max } = ask;
        let Some(step) = &mut self.step else { return };
        step.asked = Some(Asked { response, tokens_max });
        if stays {
            self.base.lay(prompt, chunk);
        } else {
            let mut sequence = self.base.behind();
            sequence.lay(prompt, chunk);
            step.fork = Some(Fork { sequence, place: None });
        }
    }

    /// The sequence to run, and whether it is the fork. The kept tokens come first.
    pub fn active(&self) -> (&Sequence, bool) {
        match self.step.as_ref().and_then(|step| step.fork.as_ref()) {
            Some(fork) if self.base.next().is_none() => (&fork.sequence, true),
            _ => (&self.base, false),
        }
    }

    /// The same, to change.
    pub fn active_mut(&mut self) -> &mut Sequence {
        match self.step.as_mut().and_then(|step| step.fork.as_mut()) {
            Some(fork) if self.base.next().is_none() => &mut fork.sequence,
            _ => &mut self.base,
        }
    }

    /// Goes on to where a token must be drawn: forced tokens join the leg, which then ends. `Some` when the reply is whole.
    pub fn proceed(&mut self, chunk: u32, version: PolicyVersion) -> Option<FinishReason> {
        let step = self.step.as_mut()?;
        let asked = step.asked.as_mut()?;
        let sequence = step.fork.as_mut().map_or(&mut self.base, |fork| &mut fork.sequence);
        asked.response.force(version.0).iter().for_each(|id| sequence.push(*id));
        match asked.response.wait() {
            Wait::Over(reason) => Some(reason),
            Wait::Draw => {
                sequence.end_leg(chunk);
                None
            }
        }
    }

    /// A token was drawn.
    pub fn take(
        &mut self,
        token: &Token,
        ranking: Option<Ranking>,
        version: PolicyVersion,
    ) -> Result<(), Illegal> {
        let Some(step) = &mut self.step else { return Ok(()) };
        let Some(asked) = &mut step.asked else { return Ok(()) };
        let sequence = step.fork.as_mut().map_or(&mut self.base, |fork| &mut fork.sequence);
        sequence.push(token.id);
        asked.response.rank(ranking);
        asked.response.take(token, version.0)
    }

    /// The next span to run.
    pub fn next(&self) -> Option<std::ops::Range<u32>> {
        self.active().0.next()
    }

    /// The span that comes next, where the active one is running; otherwise the active one.
    pub fn span_ahead(&self, is_running: bool) -> Option<(&Sequence, std::ops::Range<u32>)> {
        let (sequence, is_fork) = self.active();
        if !is_running {
            return Some((sequence, sequence.next()?));
        }
        if let Some(span) = sequence.after_next() {
            return Some((sequence, span));
        }
        let fork = self.step.as_ref()?.fork.as_ref().filter(|_| !is_fork)?;
        Some((&fork.sequence, fork.sequence.next()?))
    }

    /// Tokens of the sequence that the reply grows on.
    pub fn replying_len(&self) -> u32 {
        let fork = self.step.as_ref().and_then(|step| step.fork.as_ref());
        fork.map_or(self.base.len(), |fork| fork.sequence.len())
    }

    /// Whether the active span is the one whose logits the next token is drawn from.
    pub fn draws_next(&self) -> bool {
        let Some(step) = &self.step else { return false };
        let (sequence, is_fork) = self.active();
        step.asked.is_some() && sequence.is_last() && is_fork == step.fork.is_some()
    }

    /// Whether a token was drawn already.
    pub fn decodes(&self) -> bool {
        self.step.as_ref().is_some_and(Step::has_drawn)
    }
}

impl Step {
    pub fn new(done: oneshot::Sender<Result<Reply, Fault>>, since: u64) -> Self {
        Self {
            done: Some(done),
            fork: None,
            reserve: Reserve::default(),
            promised: Vec::new(),
            is_admitted: false,
            was_left_out: false,
            since,
            version_min: None,
            tally: Tally::default(),
            arrived: Instant::now(),
            asked: None,
        }
    }

    fn has_drawn(&self) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.response.columns().mask.contains(&true))
    }

    /// Whether a reply was asked for.
    pub fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// Tokens the reply can still grow by.
    pub fn tokens_left(&self) -> u32 {
        let left = |asked: &Asked| asked.tokens_max.saturating_sub(asked.response.columns().ids.len() as u32);
        self.asked.as_ref().map_or(0, left)
    }

    /// The reply being drawn.
    pub fn response(&self) -> Option<&Response> {
        self.asked.as_ref().map(|asked| &asked.response)
    }
}

impl Tally {
    fn add(&mut self, other: &Tally) {
        self.prefill_tokens += other.prefill_tokens;
        self.device_micros += other.device_micros;
    }

    fn account(self, origin: StateOrigin) -> Account {
        let decoded = f64::from(self.decode_steps.max(1));
        Account {
            worker: String::new(),
            slot: self.slot,
            state_origin: Some(origin),
            batch_size_mean: (self.decoded_together as f64 / decoded) as f32,
            prefill_tokens: self.prefill_tokens,
            reused_tokens: self.reused_tokens,
            decode_steps: self.decode_steps,
            queue_micros: self.queue_micros.unwrap_or_default(),
            service_micros: 0,
            gpu_micros: self.device_micros as u64,
            cost_usd: None,
        }
    }
}

impl Engine {
    /// Goes on with a reply after its prompt was laid or a token drawn.
    pub(super) fn proceed(&mut self, id: SessionId) {
        let (chunk, newest) = (self.settings.chunk, self.shelf.newest());
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let version = session.pinned.unwrap_or(newest);
        if let Some(reason) = session.proceed(chunk, version) {
            self.finish(id, reason);
        }
    }

    /// Answers a step and gives back what it held.
    pub(super) fn finish(&mut self, id: SessionId, finish_reason: FinishReason) {
        self.clock += 1;
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(mut step) = session.step.take() else { return };
        self.waiting.retain(|waiting| *waiting != id);
        session.touched = self.clock;
        let versions = [session.version_min, step.version_min].into_iter().flatten();
        let state_version_min = versions.min().unwrap_or(session.pinned.unwrap_or(self.shelf.newest()));
        let reply = match step.asked.take() {
            None => {
                session.brought.add(&step.tally);
                let engine = Tally::default().account(StateOrigin::Resident);
                Reply { columns: Columns::default(), finish_reason, state_version_min, engine }
            }
            Some(asked) => {
                let brought = std::mem::take(&mut session.brought);
                step.tally.reused_tokens = step.tally.reused_tokens.saturating_sub(brought.prefill_tokens);
                step.tally.add(&brought);
                let origin = session.origin.take().unwrap_or(StateOrigin::Resident);
                let engine = step.tally.account(origin);
                Reply { columns: asked.response.into_columns(), finish_reason, state_version_min, engine }
            }
        };
        if let Some(done) = self.put_away(step) {
            // Whoever asked may have given up; the session's life tells.
            done.send(Ok(reply)).ok();
        }
    }
}
