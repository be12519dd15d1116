//! The loop of a rollout without a farm around it: sessions that wait for a page, read a screenshot, write a reply; as many as there are, for a while.
//!
//! Sessions begin aged, the i-th at step i of its trajectory, so that contexts are mixed from the start. Every reply has the same number of tokens, every
//! screenshot is new, and a page takes a fixed time. What is planned each iteration is what the engine plans: all that write, and chunks of what
//! waits to be read, longest wait first, within a budget of tokens.

use std::collections::VecDeque;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use furrow_model::backend::{BackendError, Feature, Inset, PAGE_TOKENS, Page, Slot, Span, Want};
use furrow_model::config::Config;
use furrow_model::floor::Keep;
use furrow_model::vision::Tile;

use super::{noise_tile, pick};
use crate::backend::Device;

/// What is rolled out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rollout {
    /// Sessions.
    pub sessions: u32,
    /// Steps of a trajectory.
    pub steps: u32,
    /// Tiles of a screenshot.
    pub tiles: u32,
    /// Text tokens that come with one.
    pub text: u32,
    /// Tokens of a reply, at least 2.
    pub generated: u32,
    /// How long a page takes.
    pub page: Duration,
    /// What a session keeps: everything, or the text.
    pub keep: Keep,
    /// Tokens of a chunk, and of all chunks of a batch.
    pub chunk: u32,
    /// At least a chunk.
    pub budget: u32,
    /// Ended steps that end it before its time is over, a quarter as many what does not count.
    pub steps_max: u64,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rolled {
    /// Steps that ended.
    pub steps: u64,
    /// Trajectories that ended, those that were cut short included.
    pub trajectories: u64,
    /// Trajectories that no page was left for.
    pub cut: u64,
    /// Batches.
    pub batches: u64,
    /// Tokens written in them.
    pub written: u64,
    /// Batches that read, too, and how long they took.
    pub reading: (u64, Duration),
    /// How long it took.
    pub time: Duration,
    /// Of that, with no session to run.
    pub idle: Duration,
    /// Of that, inside the device's calls. What is left the host took while there was work: the device stood idle at most so long.
    pub called: Duration,
}

impl Rolled {
    /// Share of the time in which the host planned and the device may have stood idle for it.
    pub fn host_share(&self) -> f64 {
        let host = self.time.saturating_sub(self.idle).saturating_sub(self.called);
        host.as_secs_f64() / self.time.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

impl fmt::Display for Rolled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cut, batches, written, reading, .. } = self;
        let share =
            |time: Duration| 100.0 * time.as_secs_f64() / self.time.as_secs_f64().max(f64::MIN_POSITIVE);
        write!(f, "{batches} batches, {:.1} tokens written in each", *written as f64 / *batches as f64)?;
        write!(f, "; {} that read took {:.0} % of the time", reading.0, share(reading.1))?;
        write!(f, "; nobody ready {:.1} %, host {:.1} %", share(self.idle), 100.0 * self.host_share())?;
        if *cut > 0 { write!(f, "; {cut} trajectories cut for want of pages") } else { Ok(()) }
    }
}

/// What a session does.
#[derive(Debug, Clone)]
enum Doing {
    /// Its page is at work until then.
    Waiting(Instant),
    /// It waits for tiles to be encoded, having waited for its page.
    Seen,
    /// The text of the turn before is read into what is kept; then the screenshot is.
    Recalling { left: u32 },
    /// Its screenshot and text are read: tokens done, tiles.
    Reading { done: u32, tiles: Vec<Feature> },
    /// It writes.
    Writing { left: u32 },
}

#[derive(Debug)]
struct Session {
    /// What runs; where only the text is kept, a fork of what is kept in the slot behind it.
    slot: Slot,
    pages: Vec<Page>,
    /// Tokens in the slot that runs.
    len: u32,
    /// Tokens kept, where only the text is.
    kept: u32,
    step: u32,
    doing: Doing,
}

impl Session {
    fn writes(&self) -> bool {
        matches!(self.doing, Doing::Writing { .. })
    }
}

/// A rollout on its way.
pub(super) struct Rolling<'a> {
    device: &'a mut dyn Device,
    plan: Rollout,
    sessions: Vec<Session>,
    /// Sessions that want to read, longest wait first.
    readers: VecDeque<usize>,
    free: Vec<Page>,
    tiles: Vec<Tile>,
    rows_per_tile: u32,
    rolled: Rolled,
}

impl Rollout {
    /// State slots that it takes.
    pub fn slots(&self) -> u32 {
        self.sessions * if self.forks() { 2 } else { 1 }
    }

    fn forks(&self) -> bool {
        self.keep == Keep::LastImage
    }

    /// Tokens of a session at its longest.
    pub(super) fn tokens(&self, config: &Config) -> u32 {
        let image = self.tiles * rows_per_tile(config);
        let (text, steps) = (self.text + self.generated, self.steps);
        if self.forks() { steps * text + image } else { steps * (text + image) }
    }
}

fn rows_per_tile(config: &Config) -> u32 {
    config.vision.as_ref().map_or(0, |vision| vision.rows_per_tile() as u32)
}

impl<'a> Rolling<'a> {
    pub fn begin(device: &'a mut dyn Device, plan: Rollout) -> Self {
        let room = device.room();
        let side = device.config().vision.as_ref().map_or(0, |vision| vision.tile);
        let rows_per_tile = rows_per_tile(device.config());
        let now = Instant::now();
        let mut rolling = Self {
            device,
            plan,
            sessions: Vec::new(),
            readers: VecDeque::new(),
            free: (0..room.pages).rev().map(Page).collect(),
            tiles: (0..plan.tiles).map(|number| noise_tile(number, side)).collect(),
            rows_per_tile,
            rolled: Rolled::default(),
        };
        for number in 0..plan.sessions {
            let slot = Slot(number * if plan.forks() { 2 } else { 1 });
            let waits = plan.page.mul_f64(f64::from(number) / f64::from(plan.sessions));
            let doing = Doing::Waiting(now + waits);
            let session = Session { slot, pages: Vec::new(), len: 0, kept: 0, step: 0, doing };
            rolling.sessions.push(session);
            rolling.age(number as usize, number % plan.steps);
        }
        rolling
    }

    /// Lets a session begin at a later step; its states are whatever they are.
    fn age(&mut self, number: usize, steps: u32) {
        let len = steps * self.kept_a_step();
        if self.lengthen(number, len) {
            let session = &mut self.sessions[number];
            (session.len, session.kept, session.step) = (len, len, steps);
        }
    }

    /// Tokens that a step leaves behind.
    fn kept_a_step(&self) -> u32 {
        let text = self.plan.text + self.plan.generated;
        if self.plan.forks() { text } else { text + self.image_rows() }
    }

    fn image_rows(&self) -> u32 {
        self.plan.tiles * self.rows_per_tile
    }

    /// Runs for a while that does not count, and for one that does; what is under way at the end does not count.
    pub fn run(mut self, warm_up: Duration, time: Duration) -> Result<Rolled, BackendError> {
        self.roll(warm_up, self.plan.steps_max / 4)?;
        self.rolled = Rolled::default();
        self.roll(time, self.plan.steps_max)?;
        self.leave();
        Ok(self.rolled)
    }

    fn roll(&mut self, time: Duration, steps_max: u64) -> Result<(), BackendError> {
        let begin = Instant::now();
        while begin.elapsed() < time && self.rolled.steps < steps_max {
            self.look()?;
            if !self.step()? {
                self.idle(begin + time);
            }
        }
        let last = Instant::now();
        self.device.wait()?;
        self.rolled.called += last.elapsed();
        self.rolled.time = begin.elapsed();
        Ok(())
    }

    /// Gives features back.
    fn leave(&mut self) {
        for session in &mut self.sessions {
            if let Doing::Reading { tiles, .. } = &session.doing {
                self.device.release(tiles);
            }
        }
    }

    /// Waits for the first page.
    #[expect(
        clippy::disallowed_methods,
        reason = "a page takes its time, and there is no state to wait for but the clock's"
    )]
    fn idle(&mut self, end: Instant) {
        let pages = self.sessions.iter().filter_map(|session| match session.doing {
            Doing::Waiting(until) => Some(until),
            _ => None,
        });
        let now = Instant::now();
        let until = pages.min().unwrap_or(now).min(end);
        thread::sleep(until.saturating_duration_since(now));
        self.rolled.idle += now.elapsed();
    }

    /// Takes up sessions whose pages have come.
    fn look(&mut self) -> Result<(), BackendError> {
        let now = Instant::now();
        for number in 0..self.sessions.len() {
            match self.sessions[number].doing {
                Doing::Waiting(until) if until <= now => {
                    let recalls = self.plan.forks() && self.sessions[number].step > 0;
                    if recalls {
                        let left = self.plan.text + self.plan.generated;
                        self.sessions[number].doing = Doing::Recalling { left };
                        self.readers.push_back(number);
                    } else {
                        self.show(number)?;
                    }
                }
                Doing::Seen => self.show(number)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Has a session's screenshot encoded, if there is room; on a fork where only the text is kept.
    fn show(&mut self, number: usize) -> Result<(), BackendError> {
        let began = Instant::now();
        let encoded = self.device.encode(&self.tiles);
        self.rolled.called += began.elapsed();
        let tiles = match encoded {
            Ok(tiles) => tiles,
            Err(BackendError::NoRoom { .. }) => {
                self.sessions[number].doing = Doing::Seen;
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        if self.plan.forks() {
            let Session { slot, kept, .. } = self.sessions[number];
            self.device.copy_slot(slot, Slot(slot.0 + 1));
            self.sessions[number].len = kept;
        }
        self.sessions[number].doing = Doing::Reading { done: 0, tiles };
        self.readers.push_back(number);
        Ok(())
    }

    /// Plans a batch and runs it; false where nobody has anything to run.
    fn step(&mut self) -> Result<bool, BackendError> {
        let mut budget = self.plan.budget;
        let mut pieces: Vec<(usize, u32)> = (0..self.sessions.len())
            .filter(|number| self.sessions[*number].writes())
            .map(|number| (number, 1))
            .collect();
        for number in &self.readers {
            let count = self.left(*number).min(self.plan.chunk);
            if count > budget {
                break;
            }
            budget -= count;
            pieces.push((*number, count));
        }
        pieces.retain(|(number, count)| {
            let end = self.sessions[*number].len + count;
            let fits = self.lengthen(*number, end);
            if !fits {
                self.cut(*number);
            }
            fits
        });
        if pieces.is_empty() {
            return Ok(false);
        }
        self.run_batch(&pieces)?;
        pieces.iter().for_each(|(number, count)| self.advance(*number, *count));
        self.rolled.batches += 1;
        Ok(true)
    }

    /// Tokens a session has still to read.
    fn left(&self, number: usize) -> u32 {
        match &self.sessions[number].doing {
            Doing::Recalling { left } => *left,
            Doing::Reading { done, .. } => self.image_rows() + self.plan.text - done,
            _ => 0,
        }
    }

    fn run_batch(&mut self, pieces: &[(usize, u32)]) -> Result<(), BackendError> {
        let tokens = vec![1; self.plan.chunk.max(1) as usize];
        let insets: Vec<Vec<Inset>> =
            pieces.iter().map(|(number, count)| self.insets(*number, *count)).collect();
        let wants: Vec<Want> = pieces.iter().map(|(number, count)| self.want(*number, *count)).collect();
        let (sessions, forks) = (&self.sessions, self.plan.forks());
        let spans = pieces.iter().zip(&insets).zip(&wants).map(|(((number, count), insets), want)| {
            let session = &sessions[*number];
            let on_a_fork = forks && !matches!(session.doing, Doing::Recalling { .. });
            Span {
                slot: Slot(session.slot.0 + u32::from(on_a_fork)),
                pages: &session.pages,
                start: session.len,
                tokens: &tokens[..*count as usize],
                insets,
                want: *want,
            }
        });
        let spans: Vec<Span<'_>> = spans.collect();
        let began = Instant::now();
        self.device.run(&spans)?;
        let wanted = wants.iter().filter(|want| **want == Want::Last).count() as u32;
        let picks: Vec<_> = (0..wanted).map(pick).collect();
        self.device.sample(&picks);
        let took = began.elapsed();
        self.rolled.called += took;
        let written = self.sessions.iter().filter(|session| session.writes()).count();
        self.rolled.written += written as u64;
        if written < pieces.len() {
            self.rolled.reading.0 += 1;
            self.rolled.reading.1 += took;
        }
        Ok(())
    }

    /// A draw follows what ends a screenshot, and every token that is written.
    fn want(&self, number: usize, count: u32) -> Want {
        let is_kept = matches!(self.sessions[number].doing, Doing::Recalling { .. });
        if is_kept || self.left(number) > count { Want::Nothing } else { Want::Last }
    }

    /// Image rows among the next tokens: the screenshot comes first, then the text.
    fn insets(&self, number: usize, count: u32) -> Vec<Inset> {
        let Doing::Reading { done, tiles } = &self.sessions[number].doing else { return Vec::new() };
        let rows = self.rows_per_tile;
        let of_tile = |(tile, feature): (u32, &Feature)| {
            let (first, last) = (tile * rows, (tile + 1) * rows);
            let (from, to) = (first.max(*done), last.min(done + count));
            (from < to).then(|| Inset {
                at: from - done,
                len: to - from,
                feature: *feature,
                row: from - first,
            })
        };
        (0..).zip(tiles).filter_map(of_tile).collect()
    }

    fn advance(&mut self, number: usize, count: u32) {
        let (whole, generated) = (self.image_rows() + self.plan.text, self.plan.generated);
        let session = &mut self.sessions[number];
        session.len += count;
        let next = match &mut session.doing {
            Doing::Recalling { left } if *left > count => return *left -= count,
            Doing::Recalling { .. } => {
                session.kept = session.len;
                Doing::Seen
            }
            Doing::Reading { done, .. } if *done + count < whole => return *done += count,
            Doing::Reading { tiles, .. } => {
                self.device.release(tiles);
                // The first token was drawn from what was read.
                Doing::Writing { left: generated - 1 }
            }
            Doing::Writing { left } if *left > 1 => return *left -= 1,
            _ => return self.end_step(number),
        };
        session.doing = next;
        self.readers.retain(|reader| *reader != number);
    }

    fn end_step(&mut self, number: usize) {
        self.rolled.steps += 1;
        let forks = self.plan.forks();
        let session = &mut self.sessions[number];
        session.step += 1;
        session.doing = Doing::Waiting(Instant::now() + self.plan.page);
        if forks {
            session.len = session.kept;
        }
        if session.step == self.plan.steps {
            self.end_trajectory(number);
        }
    }

    /// Ends a trajectory that there is no page for.
    fn cut(&mut self, number: usize) {
        self.rolled.cut += 1;
        if let Doing::Reading { tiles, .. } = &self.sessions[number].doing {
            self.device.release(tiles);
        }
        self.readers.retain(|reader| *reader != number);
        self.sessions[number].doing = Doing::Waiting(Instant::now() + self.plan.page);
        self.end_trajectory(number);
    }

    fn end_trajectory(&mut self, number: usize) {
        self.rolled.trajectories += 1;
        let session = &mut self.sessions[number];
        (session.len, session.kept, session.step) = (0, 0, 0);
        self.free.append(&mut session.pages);
    }

    /// Pages for so many tokens; false where there are none left.
    fn lengthen(&mut self, number: usize, tokens: u32) -> bool {
        let session = &mut self.sessions[number];
        while session.pages.len() * PAGE_TOKENS < tokens as usize {
            let Some(page) = self.free.pop() else { return false };
            session.pages.push(page);
        }
        true
    }
}
