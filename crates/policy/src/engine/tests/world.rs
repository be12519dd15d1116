//! A small world around an engine: sessions with their scripts, one engine that may be killed, and no thread but the test's own.

use std::sync::{Arc, OnceLock};

use furrow_model::backend::Room;
use furrow_model::vision::Tile;
use furrow_rollout::{Ancestry, ContextPolicy, Grammar, Id, ImageSpan, PolicyVersion, Sampling, TokenTrace};
use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::constrain::{Caps, Constraint, Lexicon};
use crate::context::{Marks, Seen, Turn};
use crate::conversation::{Conversation, Replay};
use crate::draw::{Response, Stream, Watch};
use crate::engine::{Ask, Engine, Event, Fault, Reply, SessionId, Settings, Swaps};
use crate::grammar::HOLO_NAVIGATION;
use crate::sequence::Picture;
use crate::sim::{Cost, Sim, SimSettings};
use crate::trace::token_trace;

pub const STOP: u32 = 256;
pub const MARKS: Marks = Marks { open: 257, close: 258 };
/// Beyond the vocabulary, so that they are never drawn.
pub const POISON: u32 = 301;
pub const PLACEHOLDER: u32 = 300;
/// All bytes and the stop id.
const VOCABULARY: u32 = 257;
const ROWS_PER_TILE: u32 = 6;

/// What a session will be shown; everything follows from it.
#[derive(Debug, Clone)]
pub struct Script {
    pub keep: ContextPolicy,
    /// Siblings of a group share instructions, task and first page.
    pub group: u64,
    pub sample: u64,
    pub steps: u32,
    /// Whether a grammar forces tokens.
    pub forces: bool,
    /// Step whose text holds the id that spoils the logits.
    pub poisoned_at: Option<u32>,
}

/// A session on its way through its script.
pub struct Actor {
    pub script: Script,
    pub traces: Vec<TokenTrace>,
    pub replies: Vec<Reply>,
    conversation: Conversation,
    session: Option<(SessionId, CancellationToken)>,
    /// Steps that the present session was told of.
    recalled: usize,
    waits: Option<Waits>,
    pub fault: Option<Fault>,
}

struct Waits {
    done: oneshot::Receiver<Result<Reply, Fault>>,
    /// The turn and prompt it answers; `None` while a past is laid.
    shown: Option<(Turn, crate::context::Prompt)>,
}

pub struct World {
    pub engine: Engine,
    pub actors: Vec<Actor>,
    /// Who watches the replies.
    pub watch: Option<Watch>,
    settings: Settings,
    device: SimSettings,
    sessions: u64,
}

pub fn settings() -> Settings {
    Settings {
        state_slots: 5,
        snapshot_slots: 3,
        chunk: 16,
        prefill_tokens: 48,
        context_tokens_max: 1024,
        version: PolicyVersion(1),
        swaps: Swaps::default(),
    }
}

pub fn room() -> Room {
    Room { slots: 8, pages: 60, rows_max: 96, logits_max: 8, features: 4, parked_bytes: 64 << 20 }
}

/// A number that is the same for the same parts.
fn fixed(parts: &[u64]) -> ChaCha12Rng {
    let seed = parts
        .iter()
        .fold(0x5eed, |sum: u64, part| sum.rotate_left(13) ^ part.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    ChaCha12Rng::seed_from_u64(seed)
}

impl Script {
    pub fn response(&self, step: u32) -> Response {
        let ancestry = Ancestry {
            run_id: Id::new("run").unwrap(),
            group_id: Id::new(format!("g{}", self.group)).unwrap(),
            sample_index: self.sample as u32,
            attempt: 0,
            trajectory_id: Id::new("t").unwrap(),
        };
        let max_tokens = if self.forces { 160 } else { 12 };
        let sampling = Sampling { max_tokens, ..Sampling::default() };
        let constraint = self.forces.then(constraint);
        Response::new(&sampling, &Stream::new(0, &ancestry), step, STOP, constraint.as_ref())
    }

    /// The page of a step. At the start all siblings see the same one, later some pages come again.
    fn picture(&self, step: u32) -> Arc<Picture> {
        let page = if step == 0 { 0 } else { self.sample % 3 * 7 + u64::from(step % 4) };
        let mut random = fixed(&[1, self.group, page]);
        let tiles = (0..random.random_range(1..4)).map(|_| {
            let hash: [u8; 32] = random.random();
            Tile { pixels: vec![f32::from(hash[0]), f32::from(hash[1])], hash }
        });
        let tiles: Vec<Tile> = tiles.collect();
        Arc::new(Picture {
            grid: (tiles.len() as u16, 1),
            tiles,
            rows_per_tile: ROWS_PER_TILE,
            blob_sha256: [page as u8; 32],
            rgb_sha256: random.random(),
        })
    }

    /// Text, picture between its marks, text.
    pub fn turn(&self, step: u32) -> (Turn, Arc<Picture>, u32) {
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
        ids.push(MARKS.open);
        let token_start = ids.len() as u32;
        ids.extend(std::iter::repeat_n(PLACEHOLDER, picture.rows() as usize));
        ids.push(MARKS.close);
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
        (Turn { ids, seen: Some(Seen { span, leaves }) }, picture, task_end)
    }
}

/// The grammar of the farm over single bytes, with texts of a few.
fn constraint() -> Arc<Constraint> {
    static MADE: OnceLock<Arc<Constraint>> = OnceLock::new();
    let make = || {
        let bytes: Vec<u8> = (0..=255).collect();
        let text = |id: u32| bytes.get(id as usize..=id as usize);
        let lexicon =
            Lexicon::new(VOCABULARY as usize, STOP, text, |text| text.bytes().map(u32::from).collect());
        let grammar = Grammar { name: HOLO_NAVIGATION.into(), extra: Vec::new() };
        let caps = Caps { note: 3, thought: 3, content: 3, element: 3, url: 3, key: 3 };
        Constraint::compile(&grammar, &lexicon, &caps.into(), 160).unwrap()
    };
    MADE.get_or_init(make).clone()
}

impl Actor {
    pub fn new(script: Script) -> Self {
        Self {
            conversation: Conversation::new(script.keep, Replay::AsLived),
            script,
            traces: Vec::new(),
            replies: Vec::new(),
            session: None,
            recalled: 0,
            waits: None,
            fault: None,
        }
    }

    pub fn is_over(&self) -> bool {
        self.traces.len() == self.script.steps as usize || self.fault.is_some()
    }

    /// Whether it was asked for something that is not answered.
    pub fn waits(&self) -> bool {
        self.waits.is_some()
    }

    /// Its worker is gone, or its stream was cut: what was on its way is lost.
    pub fn lose(&mut self) {
        (self.session, self.waits) = (None, None);
    }

    fn poll(&mut self) {
        let Some(waits) = &mut self.waits else { return };
        let answer = match waits.done.try_recv() {
            Ok(answer) => answer,
            Err(oneshot::error::TryRecvError::Empty) => return,
            Err(oneshot::error::TryRecvError::Closed) => panic!("a step was forgotten"),
        };
        let shown = waits.shown.take();
        self.waits = None;
        match (answer, shown) {
            (Err(fault), _) => self.fault = Some(fault),
            (Ok(_), None) => {}
            (Ok(reply), Some((turn, prompt))) => {
                let commit = self.conversation.answered(turn, &reply.columns.ids);
                self.traces.push(token_trace(prompt, reply.clone(), commit));
                self.recalled = self.traces.len();
                self.replies.push(reply);
            }
        }
    }
}

impl World {
    pub fn new(settings: Settings, room: Room, scripts: Vec<Script>) -> Self {
        Self::with_device(settings, sim(room), scripts)
    }

    pub fn with_device(settings: Settings, device: SimSettings, scripts: Vec<Script>) -> Self {
        let actors = scripts.into_iter().map(Actor::new).collect();
        Self { engine: engine(settings, device), actors, watch: None, settings, device, sessions: 0 }
    }

    /// The policy worker dies and another takes its place.
    pub fn kill(&mut self) {
        self.engine = engine(self.settings, self.device);
        self.actors.iter_mut().for_each(Actor::lose);
    }

    /// A session's stream is cut; it comes back as another one.
    pub fn cut(&mut self, index: usize) {
        if let Some((_, life)) = self.actors[index].session.take() {
            life.cancel();
            self.actors[index].lose();
        }
    }

    /// The session's next move, unless it waits: open, tell the past, show a page, close.
    pub fn act(&mut self, index: usize) {
        let actor = &mut self.actors[index];
        if actor.waits.is_some() {
            return;
        }
        if actor.is_over() {
            if let Some((id, life)) = actor.session.take() {
                life.cancel();
                self.engine.apply(Event::Close(id));
            }
            return;
        }
        let Some((session, _)) = actor.session else { return self.open(index) };
        let (done, answer) = oneshot::channel();
        if actor.recalled < actor.traces.len() {
            let step = actor.recalled as u32;
            let (trace, picture) = (&actor.traces[step as usize], actor.script.picture(step));
            let lived = actor.conversation.recall(step, trace, Some(picture), MARKS).unwrap();
            actor.recalled += 1;
            if let Some(stretch) = lived {
                actor.waits = Some(Waits { done: answer, shown: None });
                self.engine.apply(Event::Step { session, kept: vec![stretch], ask: None, done });
            }
            return;
        }
        let step = actor.traces.len() as u32;
        let (turn, picture, task_end) = actor.script.turn(step);
        let shown = actor.conversation.show(&turn, Some(picture), task_end);
        let response = actor.script.response(step);
        let ask = Ask {
            prompt: shown.stretch,
            stays: shown.stays,
            response: match &self.watch {
                Some(watch) => response.watched(watch.clone()),
                None => response,
            },
            tokens_max: if actor.script.forces { 160 } else { 13 },
        };
        actor.waits = Some(Waits { done: answer, shown: Some((turn, shown.prompt)) });
        self.engine.apply(Event::Step { session, kept: shown.kept, ask: Some(Box::new(ask)), done });
    }

    fn open(&mut self, index: usize) {
        self.sessions += 1;
        let (id, life) = (SessionId(self.sessions), CancellationToken::new());
        let (opened, mut answer) = oneshot::channel();
        let rebuilt = !self.actors[index].traces.is_empty();
        self.engine.apply(Event::Open { session: id, rebuilt, life: life.clone(), opened });
        // A full engine refuses; the session tries again at its next move.
        if answer.try_recv().unwrap().is_ok() {
            let actor = &mut self.actors[index];
            actor.session = Some((id, life));
            actor.conversation = Conversation::new(actor.script.keep, Replay::AsLived);
            actor.recalled = 0;
        }
    }

    pub fn step(&mut self) {
        self.engine.step();
        self.actors.iter_mut().for_each(Actor::poll);
    }

    /// Everybody moves in turn until all are over.
    pub fn run_to_end(&mut self) {
        for _ in 0..200_000 {
            if self.actors.iter().all(Actor::is_over) {
                return;
            }
            (0..self.actors.len()).for_each(|index| self.act(index));
            self.step();
        }
        panic!("the sessions never came to an end");
    }

    /// Ids of every reply of every session.
    pub fn tokens(&self) -> Vec<Vec<Vec<u32>>> {
        let of = |actor: &Actor| actor.replies.iter().map(|reply| reply.columns.ids.clone()).collect();
        self.actors.iter().map(of).collect()
    }
}

pub fn sim(room: Room) -> SimSettings {
    SimSettings {
        room,
        vocabulary: VOCABULARY,
        stop: STOP,
        positions_max: 4096,
        cuts_matter: true,
        poison: Some(POISON),
        beside: false,
        cost: Cost::default(),
    }
}

fn engine(settings: Settings, device: SimSettings) -> Engine {
    Engine::new(Box::new(Sim::new(device)), settings).unwrap()
}
