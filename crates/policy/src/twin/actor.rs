//! A session of the twin: what it is shown, and what it does with a reply.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use furrow_model::floor::{StepSizes, Workload};
use furrow_model::vision::Tile;
use furrow_rollout::{Ancestry, ContextPolicy, Id, Sampling};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::device::DRAWN;
use super::{TwinError, TwinSettings};
use crate::draw::{Response, Stream};
use crate::engine::{Ask, Engine, Event, Fault, Reply, SessionId};
use crate::sequence::{Picture, Placed, Stretch};

/// Ids that stand for everything: the twin reads none.
const STOP: u32 = 0;
const TEXT: u32 = 2;
const MARK: u32 = 3;
const PLACEHOLDER: u32 = 4;
/// From here on each trajectory has its own.
const NAMES: u32 = 16;

/// A session and those that follow it.
pub struct Actor {
    keep: ContextPolicy,
    sessions: u64,
    work: Arc<Workload>,
    /// Which trajectory of the workload the next session of any actor acts.
    next: Arc<AtomicUsize>,
    /// Which one this session acts.
    course: usize,
    rows_per_tile: usize,
    stream: Stream,
    /// Counts trajectories of all actors apart: this one's index, then one more for each round.
    trajectory: u64,
    step: usize,
    id: SessionId,
    life: CancellationToken,
    /// Text of the turn before and its reply, which `last_image` reads into what it keeps with the next turn.
    untold: Vec<Stretch>,
    waits: Option<Waits>,
}

struct Waits {
    done: oneshot::Receiver<Result<Reply, Fault>>,
    /// When the page was seen; `None` while a past is laid.
    seen: Option<u64>,
}

/// What an actor does next.
pub enum Next {
    /// No answer yet, or none was asked for.
    Waits,
    /// Its past is on the device.
    Aged,
    /// Its page acts; the page before was seen at this time.
    Acts {
        /// On the twin's clock.
        seen: u64,
    },
}

impl Actor {
    pub fn new(
        index: usize,
        settings: &TwinSettings,
        (work, next): (Arc<Workload>, Arc<AtomicUsize>),
        rows_per_tile: usize,
    ) -> Self {
        Self {
            keep: settings.keep,
            sessions: settings.mix.sessions as u64,
            work,
            next,
            course: 0,
            rows_per_tile,
            stream: stream(),
            trajectory: index as u64,
            step: 0,
            id: SessionId(index as u64),
            life: CancellationToken::new(),
            untold: Vec::new(),
            waits: None,
        }
    }

    /// Opens a session in a trajectory of the workload that has so many steps behind it.
    pub fn begin_at(&mut self, engine: &mut Engine, (course, age): (usize, usize)) -> Result<(), TwinError> {
        self.course = course;
        let (opened, mut answer) = oneshot::channel();
        self.id = SessionId(self.trajectory);
        self.life = CancellationToken::new();
        self.untold.clear();
        engine.apply(Event::Open { session: self.id, rebuilt: age > 0, life: self.life.clone(), opened });
        match answer.try_recv() {
            Ok(Ok(())) => {}
            Ok(Err(fault)) => return Err(TwinError::Fault(fault.to_string())),
            Err(why) => return Err(TwinError::Fault(why.to_string())),
        }
        let mut past = Vec::new();
        for step in 0..age {
            self.step = step;
            past.extend(self.live());
        }
        self.step = age;
        if !past.is_empty() {
            let (done, answer) = oneshot::channel();
            self.waits = Some(Waits { done: answer, seen: None });
            engine.apply(Event::Step { session: self.id, kept: past, ask: None, done });
        }
        Ok(())
    }

    /// A step that lies behind: what is kept of it. Its picture's rows are read as text.
    fn live(&mut self) -> Vec<Stretch> {
        let response = self.response();
        match self.keep {
            ContextPolicy::Append => {
                let ids = [self.turn().ids, response].concat();
                // As it was lived: what was drawn last, and the stop id, are run with the next step.
                vec![Stretch { ends: vec![ids.len() as u32 - 2], ids, ..Stretch::default() }]
            }
            _ => {
                let kept = std::mem::take(&mut self.untold);
                self.answered();
                kept
            }
        }
    }

    /// Ids of every reply.
    pub(super) fn response(&self) -> Vec<u32> {
        [vec![DRAWN; self.drawn()], vec![STOP]].concat()
    }

    /// Sees a page.
    pub fn show(&mut self, engine: &mut Engine, now: u64) {
        let generated = self.drawn() as u32;
        let sampling = Sampling { max_tokens: generated, ..Sampling::default() };
        let (kept, prompt) = self.lays();
        let ask = Ask {
            prompt,
            stays: self.keep == ContextPolicy::Append,
            response: Response::new(&sampling, &self.stream, self.step as u32, STOP, None),
            tokens_max: generated + 1,
        };
        let (done, answer) = oneshot::channel();
        self.waits = Some(Waits { done: answer, seen: Some(now) });
        engine.apply(Event::Step { session: self.id, kept, ask: Some(Box::new(ask)), done });
    }

    /// Takes its reply, if there is one. After its last step a trajectory makes room for the next.
    pub fn poll(&mut self, engine: &mut Engine) -> Result<Next, TwinError> {
        let Some(waits) = &mut self.waits else { return Ok(Next::Waits) };
        match waits.done.try_recv() {
            Err(oneshot::error::TryRecvError::Empty) => return Ok(Next::Waits),
            Err(closed) => return Err(TwinError::Fault(closed.to_string())),
            Ok(answer) => answer.map_err(|fault| TwinError::Fault(fault.to_string()))?,
        };
        let seen = waits.seen;
        self.waits = None;
        let Some(seen) = seen else { return Ok(Next::Aged) };
        self.answered();
        if self.step == self.work.trajectories[self.course].len() {
            engine.apply(Event::Close(self.id));
            self.trajectory += self.sessions;
            let next = self.next.fetch_add(1, Ordering::Relaxed) % self.work.trajectories.len();
            self.begin_at(engine, (next, 0))?;
        }
        Ok(Next::Acts { seen })
    }

    /// What goes behind the kept tokens, and the prompt behind that.
    pub(super) fn lays(&mut self) -> (Vec<Stretch>, Stretch) {
        (std::mem::take(&mut self.untold), self.turn())
    }

    /// The turn was answered: `last_image` keeps its text and the reply.
    pub(super) fn answered(&mut self) {
        if self.keep == ContextPolicy::LastImage {
            let (head, text) = self.text();
            let mut stretch = Stretch::text([self.head(head), vec![TEXT; text], self.response()].concat());
            stretch.forks.extend((head > 0).then_some(head as u32));
            self.untold.push(stretch);
        }
        self.step += 1;
    }

    /// Instructions and task, unlike those of any other trajectory.
    fn head(&self, len: usize) -> Vec<u32> {
        let mut ids = vec![TEXT; len];
        ids.iter_mut().take(1).for_each(|id| *id = NAMES + self.trajectory as u32);
        ids
    }

    /// Sizes of a step of this trajectory.
    fn sizes(&self, step: usize) -> StepSizes {
        self.work.trajectories[self.course].get(step).copied().unwrap_or_default()
    }

    /// Tokens that are drawn for this step; the stop id comes behind them.
    fn drawn(&self) -> usize {
        let StepSizes { sampled, given, .. } = self.sizes(self.step);
        // Where nothing was put behind the reply, its last sampled token was the mark that ended it.
        (sampled - u32::from(given == 0 && sampled > 0)).max(1) as usize
    }

    /// Tokens of instructions and task, and of the turn's text beside its picture and the marks around that. What the grammar gave of the reply before is read
    /// with this turn, but for the stop id.
    fn text(&self) -> (usize, usize) {
        let StepSizes { instructions, text, .. } = self.sizes(self.step);
        let before = self.step.checked_sub(1).map_or(0, |step| self.sizes(step).given.saturating_sub(1));
        (instructions as usize, (text.saturating_sub(2) + before) as usize)
    }

    /// Instructions and task in the first one, the picture between its marks, text. What `conversation.rs` would lay.
    fn turn(&self) -> Stretch {
        let (head, text) = self.text();
        let picture = self.picture();
        let rows = picture.rows();
        let ids =
            [self.head(head), vec![MARK], vec![PLACEHOLDER; rows as usize], vec![MARK], vec![TEXT; text]];
        let at = head as u32 + 1;
        let forks = if self.step == 0 { vec![head as u32, at + rows + 1] } else { Vec::new() };
        // A step that showed nothing is text alone; its marks stay, so that it is as long.
        let pictures = if rows > 0 { vec![Placed { at, picture }] } else { Vec::new() };
        Stretch { ids: ids.concat(), pictures, ends: Vec::new(), forks }
    }

    /// Tiles like no others.
    fn picture(&self) -> Arc<Picture> {
        let (count, rows) = (self.sizes(self.step).tiles as usize, self.rows_per_tile);
        let tile = |tile: usize| {
            let mut hash = [0; 32];
            hash[..8].copy_from_slice(&self.trajectory.to_le_bytes());
            hash[8..16].copy_from_slice(&(self.step as u64).to_le_bytes());
            hash[16..24].copy_from_slice(&(tile as u64).to_le_bytes());
            Tile { pixels: Vec::new(), hash }
        };
        let tiles: Vec<Tile> = (0..count).map(tile).collect();
        let hash = tiles.first().map_or([0; 32], |tile| tile.hash);
        Arc::new(Picture {
            grid: (count as u16, 1),
            tiles,
            rows_per_tile: rows as u32,
            blob_sha256: hash,
            rgb_sha256: hash,
        })
    }
}

/// The same numbers for everybody: no draw depends on them.
fn stream() -> Stream {
    let name = "twin";
    Stream::new(
        0,
        &Ancestry {
            run_id: Id::new(name).unwrap_or_else(|_| unreachable!("a plain name")),
            group_id: Id::new(name).unwrap_or_else(|_| unreachable!("a plain name")),
            sample_index: 0,
            attempt: 0,
            trajectory_id: Id::new(name).unwrap_or_else(|_| unreachable!("a plain name")),
        },
    )
}
