//! A test harness around an engine: scripted sessions, one engine that can be killed, and no thread
//! but the test's own.

use std::sync::{Arc, OnceLock};

use furrow_model::backend::BackendCapacity;
use furrow_model::vision::ImageTile;
use furrow_rollout::{
    ContextPolicy, Grammar, Id, ImageSpan, PolicyVersion, SamplingParams, TokenTrace, TrajectoryAncestry,
};
use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::constrain::{Constraint, TextCaps, TokenLexicon};
use crate::context::{ImageDelimiters, PromptTurn, TurnImage};
use crate::conversation::{Conversation, RebuildMode};
use crate::engine::{
    Engine, EngineEvent, EngineFault, EngineSettings, GenerationRequest, SessionId, StepOutput, SwapSettings,
};
use crate::grammar::HOLO_NAVIGATION;
use crate::response::{PartialResponse, RandomStream, TokenWatcher};
use crate::sequence::TiledImage;
use crate::sim::{SimBackend, SimCost, SimSettings};
use crate::trace::token_trace;

pub(super) const STOP: u32 = 256;
pub(super) const DELIMITERS: ImageDelimiters = ImageDelimiters { open: 257, close: 258 };
/// Beyond the vocabulary, so that it is never sampled.
pub(super) const POISON: u32 = 301;
pub(super) const PLACEHOLDER: u32 = 300;
/// All bytes and the stop id.
const VOCABULARY: u32 = 257;
const ROWS_PER_TILE: u32 = 6;

/// Determines everything that a session is shown.
#[derive(Debug, Clone)]
pub(super) struct SessionScript {
    pub keep: ContextPolicy,
    /// Siblings of a group share instructions, task and first page.
    pub group: u64,
    pub sample: u64,
    pub steps: u32,
    /// Whether a grammar forces tokens.
    pub forces: bool,
    /// Step whose text contains the id that makes the logits non-finite.
    pub poisoned_at: Option<u32>,
}

/// A session that acts a script.
pub(super) struct ScriptedSession {
    pub script: SessionScript,
    pub traces: Vec<TokenTrace>,
    pub replies: Vec<StepOutput>,
    conversation: Conversation,
    session: Option<(SessionId, CancellationToken)>,
    /// Number of past steps that the current session was given.
    rebuilt: usize,
    awaited: Option<AwaitedStep>,
    pub fault: Option<EngineFault>,
}

struct AwaitedStep {
    done: oneshot::Receiver<Result<StepOutput, EngineFault>>,
    /// The turn and prompt it answers; `None` while the past is rebuilt.
    shown: Option<(PromptTurn, crate::context::StepPrompt)>,
}

pub(super) struct EngineHarness {
    pub engine: Engine,
    pub actors: Vec<ScriptedSession>,
    /// Watches the tokens of replies.
    pub watch: Option<TokenWatcher>,
    settings: EngineSettings,
    device: SimSettings,
    sessions: u64,
}

pub(super) fn settings() -> EngineSettings {
    EngineSettings {
        state_slots: 5,
        snapshot_slots: 3,
        chunk: 16,
        prefill_tokens: 48,
        context_tokens_max: 1024,
        version: PolicyVersion(1),
        swaps: SwapSettings::default(),
    }
}

pub(super) fn capacity() -> BackendCapacity {
    BackendCapacity { slots: 8, pages: 60, rows_max: 96, logits_max: 8, features: 4, offload_bytes: 64 << 20 }
}

/// A random generator seeded by the parts.
fn fixed(parts: &[u64]) -> ChaCha12Rng {
    let seed = parts
        .iter()
        .fold(0x5eed, |sum: u64, part| sum.rotate_left(13) ^ part.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    ChaCha12Rng::seed_from_u64(seed)
}

impl SessionScript {
    pub(super) fn response(&self, step: u32) -> PartialResponse {
        let ancestry = TrajectoryAncestry {
            run_id: Id::new("run").unwrap(),
            group_id: Id::new(format!("g{}", self.group)).unwrap(),
            sample_index: self.sample as u32,
            attempt: 0,
            trajectory_id: Id::new("t").unwrap(),
        };
        let max_tokens = if self.forces { 160 } else { 12 };
        let sampling = SamplingParams { max_tokens, ..SamplingParams::default() };
        let constraint = self.forces.then(constraint);
        PartialResponse::new(&sampling, &RandomStream::new(0, &ancestry), step, STOP, constraint.as_ref())
    }

    /// The page of a step. At the start all siblings see the same one; some pages repeat later.
    fn picture(&self, step: u32) -> Arc<TiledImage> {
        let page = if step == 0 { 0 } else { self.sample % 3 * 7 + u64::from(step % 4) };
        let mut random = fixed(&[1, self.group, page]);
        let tiles = (0..random.random_range(1..4)).map(|_| {
            let hash: [u8; 32] = random.random();
            ImageTile { pixels: vec![f32::from(hash[0]), f32::from(hash[1])], hash }
        });
        let tiles: Vec<ImageTile> = tiles.collect();
        Arc::new(TiledImage {
            grid: (tiles.len() as u16, 1),
            tiles,
            rows_per_tile: ROWS_PER_TILE,
            blob_sha256: [page as u8; 32],
            rgb_sha256: random.random(),
        })
    }

    /// Text, an image between its delimiters, text.
    pub(super) fn turn(&self, step: u32) -> (PromptTurn, Arc<TiledImage>, u32) {
        let sibling = if step == 0 { 0 } else { self.sample };
        let mut random = fixed(&[2, self.group, sibling, u64::from(step)]);
        let mut text = |len: std::ops::Range<usize>| -> Vec<u32> {
            let len = random.random_range(len);
            (0..len).map(|_| random.random_range(0..256)).collect()
        };
        let mut ids = text(if step == 0 { 20..60 } else { 3..10 });
        let behind = text(2..6);
        if self.poisoned_at == Some(step) {
            ids.push(POISON);
        }
        let task_end = ids.len() as u32;
        let picture = self.picture(step);
        ids.push(DELIMITERS.open);
        let token_start = ids.len() as u32;
        ids.extend(std::iter::repeat_n(PLACEHOLDER, picture.rows() as usize));
        ids.push(DELIMITERS.close);
        let span = ImageSpan {
            step,
            token_start,
            token_len: picture.rows(),
            tiles_x: picture.grid.0,
            tiles_y: picture.grid.1,
            blob_sha256: picture.blob_sha256,
            rgb_sha256: picture.rgb_sha256,
        };
        let leaves = task_end..ids.len() as u32;
        ids.extend(behind);
        (PromptTurn { ids, image: Some(TurnImage { span, leaves }) }, picture, task_end)
    }
}

/// The farm's grammar over single bytes, with short texts.
fn constraint() -> Arc<Constraint> {
    static MADE: OnceLock<Arc<Constraint>> = OnceLock::new();
    let make = || {
        let bytes: Vec<u8> = (0..=255).collect();
        let text = |id: u32| bytes.get(id as usize..=id as usize);
        let lexicon =
            TokenLexicon::new(VOCABULARY as usize, STOP, text, |text| text.bytes().map(u32::from).collect());
        let grammar = Grammar { name: HOLO_NAVIGATION.into(), extra: Vec::new() };
        let caps = TextCaps { note: 3, thought: 3, content: 3, element: 3, url: 3, key: 3 };
        Constraint::compile(&grammar, &lexicon, &caps.into(), 160).unwrap()
    };
    MADE.get_or_init(make).clone()
}

impl ScriptedSession {
    pub(super) fn new(script: SessionScript) -> Self {
        Self {
            conversation: Conversation::new(script.keep, RebuildMode::AsDecoded),
            script,
            traces: Vec::new(),
            replies: Vec::new(),
            session: None,
            rebuilt: 0,
            awaited: None,
            fault: None,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.traces.len() == self.script.steps as usize || self.fault.is_some()
    }

    /// Whether it waits for an answer.
    pub(super) fn waits(&self) -> bool {
        self.awaited.is_some()
    }

    /// Drops pending answers, as when its worker ends or its stream is cut.
    pub(super) fn lose(&mut self) {
        (self.session, self.awaited) = (None, None);
    }

    fn poll(&mut self) {
        let Some(awaited) = &mut self.awaited else { return };
        let answer = match awaited.done.try_recv() {
            Ok(answer) => answer,
            Err(oneshot::error::TryRecvError::Empty) => return,
            Err(oneshot::error::TryRecvError::Closed) => panic!("a step got no answer"),
        };
        let shown = awaited.shown.take();
        self.awaited = None;
        match (answer, shown) {
            (Err(fault), _) => self.fault = Some(fault),
            (Ok(_), None) => {}
            (Ok(reply), Some((turn, prompt))) => {
                let commit = self.conversation.commit_response(turn, &reply.columns.ids);
                self.traces.push(token_trace(prompt, reply.clone(), commit));
                self.rebuilt = self.traces.len();
                self.replies.push(reply);
            }
        }
    }
}

impl EngineHarness {
    pub(super) fn new(
        settings: EngineSettings,
        capacity: BackendCapacity,
        scripts: Vec<SessionScript>,
    ) -> Self {
        Self::with_device(settings, sim_settings(capacity), scripts)
    }

    pub(super) fn with_device(
        settings: EngineSettings,
        device: SimSettings,
        scripts: Vec<SessionScript>,
    ) -> Self {
        let actors = scripts.into_iter().map(ScriptedSession::new).collect();
        Self { engine: engine(settings, device), actors, watch: None, settings, device, sessions: 0 }
    }

    /// Ends the policy worker and starts another.
    pub(super) fn kill(&mut self) {
        self.engine = engine(self.settings, self.device);
        self.actors.iter_mut().for_each(ScriptedSession::lose);
    }

    /// Cuts a session's stream; the trajectory continues in a new session.
    pub(super) fn cut(&mut self, index: usize) {
        if let Some((_, life)) = self.actors[index].session.take() {
            life.cancel();
            self.actors[index].lose();
        }
    }

    /// The session's next action, unless it waits: open, rebuild the past, show a page, close.
    pub(super) fn act(&mut self, index: usize) {
        let actor = &mut self.actors[index];
        if actor.awaited.is_some() {
            return;
        }
        if actor.is_over() {
            if let Some((id, life)) = actor.session.take() {
                life.cancel();
                self.engine.apply(EngineEvent::Close(id));
            }
            return;
        }
        let Some((session, _)) = actor.session else { return self.open(index) };
        let (done, answer) = oneshot::channel();
        if actor.rebuilt < actor.traces.len() {
            let step = actor.rebuilt as u32;
            let trace = &actor.traces[step as usize];
            let picture = actor.script.picture(step);
            let rebuilt = actor.conversation.rebuild_step(step, trace, Some(picture), DELIMITERS).unwrap();
            actor.rebuilt += 1;
            if let Some(segment) = rebuilt {
                actor.awaited = Some(AwaitedStep { done: answer, shown: None });
                self.engine.apply(EngineEvent::Step { session, kept: vec![segment], ask: None, done });
            }
            return;
        }
        let step = actor.traces.len() as u32;
        let (turn, picture, task_end) = actor.script.turn(step);
        let shown = actor.conversation.plan_prompt(&turn, Some(picture), task_end);
        let response = actor.script.response(step);
        let ask = GenerationRequest {
            prompt: shown.segment,
            keeps_reply: shown.keeps_reply,
            response: match &self.watch {
                Some(watch) => response.watched_by(watch.clone()),
                None => response,
            },
            tokens_max: if actor.script.forces { 160 } else { 13 },
        };
        actor.awaited = Some(AwaitedStep { done: answer, shown: Some((turn, shown.prompt)) });
        self.engine.apply(EngineEvent::Step { session, kept: shown.kept, ask: Some(Box::new(ask)), done });
    }

    fn open(&mut self, index: usize) {
        self.sessions += 1;
        let id = SessionId(self.sessions);
        let life = CancellationToken::new();
        let (opened, mut answer) = oneshot::channel();
        let rebuilt = !self.actors[index].traces.is_empty();
        self.engine.apply(EngineEvent::Open { session: id, rebuilt, life: life.clone(), opened });
        // A full engine refuses; the session tries again later.
        if answer.try_recv().unwrap().is_ok() {
            let actor = &mut self.actors[index];
            actor.session = Some((id, life));
            actor.conversation = Conversation::new(actor.script.keep, RebuildMode::AsDecoded);
            actor.rebuilt = 0;
        }
    }

    pub(super) fn step(&mut self) {
        self.engine.step();
        self.actors.iter_mut().for_each(ScriptedSession::poll);
    }

    /// Lets all sessions act in turn until all are over.
    pub(super) fn run_to_end(&mut self) {
        for _ in 0..200_000 {
            if self.actors.iter().all(ScriptedSession::is_over) {
                return;
            }
            (0..self.actors.len()).for_each(|index| self.act(index));
            self.step();
        }
        panic!("the sessions did not end");
    }

    /// Ids of every reply of every session.
    pub(super) fn tokens(&self) -> Vec<Vec<Vec<u32>>> {
        let of =
            |actor: &ScriptedSession| actor.replies.iter().map(|reply| reply.columns.ids.clone()).collect();
        self.actors.iter().map(of).collect()
    }
}

pub(super) fn sim_settings(capacity: BackendCapacity) -> SimSettings {
    SimSettings {
        capacity,
        vocabulary: VOCABULARY,
        stop: STOP,
        positions_max: 4096,
        cuts_matter: true,
        poison: Some(POISON),
        beside: false,
        cost: SimCost::default(),
    }
}

fn engine(settings: EngineSettings, device: SimSettings) -> Engine {
    Engine::new(Box::new(SimBackend::new(device)), settings).unwrap()
}
