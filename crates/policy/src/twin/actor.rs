//! A session of the twin: what it is shown, and what it does with a reply.

use std::sync::Arc;

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
    settings: TwinSettings,
    /// Tiles of a screenshot, and rows of a tile.
    tiles: (usize, usize),
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
    pub fn new(index: usize, settings: &TwinSettings, tiles: (usize, usize)) -> Self {
        Self {
            settings: *settings,
            tiles,
            stream: stream(),
            trajectory: index as u64,
            step: 0,
            id: SessionId(index as u64),
            life: CancellationToken::new(),
            untold: Vec::new(),
            waits: None,
        }
    }

    /// Opens a session that has so many steps behind it.
    pub fn begin(&mut self, engine: &mut Engine, age: usize) -> Result<(), TwinError> {
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
        match self.settings.keep {
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
        [vec![DRAWN; self.settings.mix.generated], vec![STOP]].concat()
    }

    /// Sees a page.
    pub fn show(&mut self, engine: &mut Engine, now: u64) {
        let generated = self.settings.mix.generated as u32;
        let sampling = Sampling { max_tokens: generated, ..Sampling::default() };
        let (kept, prompt) = self.lays();
        let ask = Ask {
            prompt,
            stays: self.settings.keep == ContextPolicy::Append,
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
        if self.step == self.settings.mix.steps {
            engine.apply(Event::Close(self.id));
            self.trajectory += self.settings.mix.sessions as u64;
            self.begin(engine, 0)?;
        }
        Ok(Next::Acts { seen })
    }

    /// What goes behind the kept tokens, and the prompt behind that.
    pub(super) fn lays(&mut self) -> (Vec<Stretch>, Stretch) {
        (std::mem::take(&mut self.untold), self.turn())
    }

    /// The turn was answered: `last_image` keeps its text and the reply.
    pub(super) fn answered(&mut self) {
        if self.settings.keep == ContextPolicy::LastImage {
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

    /// Tokens of instructions and task, and of the turn's text beside its picture and the marks around that.
    fn text(&self) -> (usize, usize) {
        let mix = &self.settings.mix;
        // The stop id behind the last reply counts as text of the turn that follows, and so do the marks.
        if self.step == 0 { (mix.instructions, mix.text - 2) } else { (0, mix.text - 3) }
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
        Stretch { ids: ids.concat(), pictures: vec![Placed { at, picture }], ends: Vec::new(), forks }
    }

    /// Tiles like no others.
    fn picture(&self) -> Arc<Picture> {
        let (count, rows) = self.tiles;
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
