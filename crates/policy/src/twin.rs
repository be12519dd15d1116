//! The scheduler's twin: the engine itself, in front of a device of air that takes as long as the floor says, on a clock of its own.
//!
//! A closed loop as `furrow_model::floor::Rollout` counts it: sessions of all ages see a page, get a reply of fixed length, act in
//! their page for a while and come back. Admission, planning, chunks, forks, tile features and parking are the engine's own; only the
//! device and the time are not real. So what the twin loses against the floor, the scheduler loses. The tower runs beside batches and states move beside both,
//! as `device.rs` says; the floor is the one of two streams (`Rollout::floor_beside`). No two tiles are alike and no two
//! trajectories share a word: nothing comes from a cache.

mod actor;
mod device;
mod rehearsal;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread;
use std::time::Duration;

use furrow_model::backend::{Backend, PAGE_TOKENS, Room};
use furrow_model::config::{Config, VisionConfig};
use furrow_model::floor::{Device, Keep, Mix, Rollout, Work, Workload};
use furrow_rollout::{ContextPolicy, PolicyVersion};
use furrow_telemetry::{DeviceTime, ManualTime, TimeSource};

use crate::engine::{Engine, Settings, Swaps};
use actor::{Actor, Next};
use device::Air;
pub use rehearsal::{needs, rehearse};

/// Tokens of a prefill chunk that suit a device of the H200's class: it computes 183 rows in the time it reads their weights.
pub const PREFILL_CHUNK: u32 = 512;
/// The most tokens beside decode: what a backlog may be read with; the pace decides below it.
pub const PREFILL_TOKENS: u32 = 4096;
/// Two are made by each trajectory that begins, and one of them is wanted at its next step.
const SNAPSHOTS: u32 = 32;
/// Rounds of the sessions before they are watched.
const WARM_UP: u32 = 4;
/// Each is held as an id: 4 bytes.
const TOKENS_MAX: u64 = 50_000_000;

/// What is simulated.
#[derive(Debug, Clone, PartialEq)]
pub struct TwinSettings {
    /// The sessions.
    pub mix: Mix,
    /// Sizes of their steps, such as those of a run's trajectories, in place of what `mix` says of steps, tokens, screenshots and page time.
    pub workload: Option<Arc<Workload>>,
    /// What they keep: `append` or `last_image`.
    pub keep: ContextPolicy,
    /// Tokens of a prefill chunk: `policy.engine.prefill_chunk`.
    pub prefill_chunk: u32,
    /// Tokens prefilled beside the decode rows of a batch: `policy.engine.prefill_tokens`.
    pub prefill_tokens: u32,
    /// What the host takes between two batches, in which the device stands idle.
    pub host_micros: u64,
    /// How long it is watched, in its own time, from when the sessions are spread evenly; `None`: as long as a trajectory takes at the floor, so that
    /// every session passes every age.
    pub seconds: Option<f64>,
}

/// What was seen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Steps that ended.
    pub steps: u64,
    /// In so many microseconds.
    pub micros: u64,
    /// The floor of the same sessions on the same device, the tower on a stream of its own.
    pub floor: Rollout,
    /// Where the device's time went.
    pub time: DeviceTime,
    /// Seconds from a page to its reply, in the mean.
    pub reply_seconds: f64,
    /// States that were copied to host memory because the device was full.
    pub parked: u64,
}

/// Why nothing is simulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TwinError {
    /// No floor is known for it.
    #[error("{0} has no twin; use append or last_image")]
    Keep(ContextPolicy),
    /// No loop to speak of.
    #[error("the sessions have too few {0}")]
    TooFew(&'static str),
    /// The device is too small for one session, or a chunk is larger than a batch.
    #[error("the engine does not run so: {0}")]
    Misfit(String),
    /// More tokens than a simulation should hold.
    #[error("{tokens} tokens of all sessions together are more than the {TOKENS_MAX} that are simulated")]
    TooLarge {
        /// At the sessions' longest.
        tokens: u64,
    },
    /// A step was not answered.
    #[error("the engine gave up on a session: {0}")]
    Fault(String),
}

/// Runs the engine in its own time. Deterministic: the same settings give the same outcome.
pub fn simulate(
    config: &Config,
    device: &'static Device,
    settings: &TwinSettings,
) -> Result<Outcome, TwinError> {
    let floor = settings.floor(config, device, (Rollout::floor_beside, Rollout::floor_beside_of))?;
    let (time, hand) = TimeSource::manual(0);
    let room = settings.room(config, device, &floor);
    let air = Air::new(config.clone(), device, room, (time.clone(), hand.clone()));
    let clock = Clock { time, hand: Some(hand) };
    World::new(Box::new(air), clock, settings, &floor)?.watch(settings, floor, WARM_UP)
}

/// A floor of rollouts, of a mix and of a workload, as [`Rollout`] has them.
type FloorOf =
    (fn(&dyn Work, &Device, &Mix, Keep) -> Rollout, fn(&Config, &Device, &Workload, usize, Keep) -> Rollout);

impl TwinSettings {
    /// The floor of these sessions, if they can be simulated.
    fn floor(&self, config: &Config, device: &Device, of: FloorOf) -> Result<Rollout, TwinError> {
        let keep = match self.keep {
            ContextPolicy::Append => Keep::Append,
            ContextPolicy::LastImage => Keep::LastImage,
            other => return Err(TwinError::Keep(other)),
        };
        let sessions = self.mix.sessions;
        self.check_sizes()?;
        let floor = match &self.workload {
            None => of.0(config, device, &self.mix, keep),
            Some(work) => of.1(config, device, work, sessions, keep),
        };
        let tokens = (floor.context_max * sessions as f64) as u64;
        if tokens > TOKENS_MAX { Err(TwinError::TooLarge { tokens }) } else { Ok(floor) }
    }

    fn check_sizes(&self) -> Result<(), TwinError> {
        let Mix { steps, sessions, generated, text, .. } = self.mix;
        let mut least = vec![("sessions", sessions, 1)];
        match &self.workload {
            None => {
                least.extend([("steps", steps, 1), ("generated tokens", generated, 1), ("text", text, 3)]);
            }
            Some(work) => {
                let steps = work.trajectories.iter().map(Vec::len).min().unwrap_or(0);
                let sampled = work.steps().map(|step| step.sampled).max().unwrap_or(0) as usize;
                least.extend([("steps", steps, 1), ("sampled tokens", sampled, 1)]);
            }
        }
        match least.into_iter().find(|(_, has, needs)| has < needs) {
            Some((what, _, _)) => Err(TwinError::TooFew(what)),
            None => Ok(()),
        }
    }

    /// Sizes of the sessions' steps.
    fn workload(&self, config: &Config) -> Arc<Workload> {
        let uniform = || {
            let rows = config.screenshot_tokens(self.mix.screenshot.0, self.mix.screenshot.1);
            let per_tile = config.vision.as_ref().map_or(1, VisionConfig::rows_per_tile);
            Arc::new(Workload::uniform(&self.mix, (rows / per_tile) as u32))
        };
        self.workload.clone().unwrap_or_else(uniform)
    }

    /// Steps of the longest trajectory.
    fn steps_max(&self) -> usize {
        self.workload.as_ref().map_or(self.mix.steps, |work| work.steps_max())
    }

    /// The engine as it would be set up for these sessions: a slot each, and one for the fork of each that works.
    fn of_the_engine(&self, floor: &Rollout) -> Settings {
        let sessions = self.mix.sessions as u32;
        let slots = if self.keep == ContextPolicy::Append { sessions } else { 2 * sessions };
        Settings {
            state_slots: slots + 2,
            // With `last_image` the task is read once, on the first fork; its snapshot is what the kept state begins with.
            snapshot_slots: if self.keep == ContextPolicy::Append { 0 } else { SNAPSHOTS },
            chunk: self.prefill_chunk,
            prefill_tokens: self.prefill_tokens,
            // Beside the floor's longest: the stop id behind each reply.
            context_tokens_max: floor.context_max as u32 + self.spare_tokens() + 1,
            version: PolicyVersion(0),
            swaps: Swaps::default(),
        }
    }

    /// Tokens of a session beside those that the floor counts. A recorded step may have less text than two marks and fewer sampled tokens than the one that each
    /// step is given here.
    fn spare_tokens(&self) -> u32 {
        let each = if self.workload.is_some() { 4 } else { 1 };
        each * self.steps_max() as u32
    }

    /// Everything the device has beside weights and workspace, as [`Work::sessions_that_fit`] counts it: slots, and pages of what they leave.
    fn room(&self, config: &Config, device: &Device, floor: &Rollout) -> Room {
        let engine = self.of_the_engine(floor);
        let page_bytes = config.session_bytes(PAGE_TOKENS as f64) - config.session_bytes(0.0);
        let free = device.memory * 0.92 - 6e9 - config.weight_bytes();
        let slots = engine.state_slots + engine.snapshot_slots;
        let left = free - f64::from(slots) * config.session_bytes(0.0);
        Room {
            slots,
            pages: (left / page_bytes).max(0.0) as u32,
            rows_max: self.prefill_tokens + 8 * engine.state_slots,
            logits_max: engine.state_slots,
            // A chunk's tiles and one more for each session that is between two chunks; a tile's 256 rows of 5,120 are 2.6 MB.
            features: 1024,
            // As much as it takes.
            parked_bytes: u64::MAX,
        }
    }
}

impl Outcome {
    /// Steps a second.
    pub fn steps_per_second(&self) -> f64 {
        self.steps as f64 / (self.micros as f64 / 1e6)
    }

    /// Share of the floor's rate that was reached.
    pub fn share(&self) -> f64 {
        self.steps_per_second() / self.floor.steps_per_second
    }
}

/// Sessions, their pages, and one engine.
struct World {
    engine: Engine,
    clock: Clock,
    actors: Vec<Actor>,
    /// When whose page has acted.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    page_micros: u64,
    host_micros: u64,
    steps: u64,
    /// Microseconds from pages to replies, summed.
    waited: u64,
}

/// Where a session begins: which trajectory, and how many steps of it lie behind. Every step of a workload is as likely as any other, so a long trajectory is
/// met more often than a short one: that is what a farm at work looks like.
fn at(work: &Workload, index: usize, sessions: usize) -> (usize, usize) {
    let lengths: Vec<usize> = work.trajectories.iter().map(Vec::len).collect();
    let all: usize = lengths.iter().sum();
    let spread = lengths.len() > 1 && all > sessions;
    let mut age = if spread { (2 * index + 1) * all / (2 * sessions) } else { index % all.max(1) };
    for (trajectory, length) in lengths.into_iter().enumerate() {
        if age < length {
            return (trajectory, age);
        }
        age -= length;
    }
    (0, 0)
}

/// A clock, and the hand that moves it; without one it goes by itself.
struct Clock {
    time: TimeSource,
    hand: Option<ManualTime>,
}

/// What a moment looks like.
struct Reading {
    now: u64,
    steps: u64,
    waited: u64,
    parked: u64,
    time: DeviceTime,
}

impl Clock {
    fn micros(&self) -> u64 {
        self.time.micros()
    }

    /// Goes on by so much.
    #[expect(
        clippy::disallowed_methods,
        reason = "a page takes its time, and there is no state to wait for but the clock's"
    )]
    fn pass(&self, micros: u64) {
        match &self.hand {
            Some(hand) => hand.advance(micros),
            None => thread::sleep(Duration::from_micros(micros)),
        }
    }
}

impl World {
    /// Sessions of all ages, their past on the device.
    fn new(
        device: Box<dyn Backend>,
        clock: Clock,
        settings: &TwinSettings,
        floor: &Rollout,
    ) -> Result<Self, TwinError> {
        let config = device.config();
        let (work, next) = (settings.workload(config), Arc::new(AtomicUsize::new(0)));
        let rows_per_tile = config.vision.as_ref().map_or(1, VisionConfig::rows_per_tile);
        let actor = |index| Actor::new(index, settings, (work.clone(), next.clone()), rows_per_tile);
        let actors = (0..settings.mix.sessions).map(actor).collect();
        let engine = Engine::with_clock(device, settings.of_the_engine(floor), clock.time.clone())
            .map_err(|misfit| TwinError::Misfit(misfit.to_string()))?;
        let mut world = Self {
            engine,
            clock,
            actors,
            due: BinaryHeap::new(),
            page_micros: (work.page_seconds * 1e6) as u64,
            host_micros: settings.host_micros,
            steps: 0,
            waited: 0,
        };
        for index in 0..world.actors.len() {
            world.actors[index].begin_at(&mut world.engine, at(&work, index, settings.mix.sessions))?;
            while !world.engine.is_idle() {
                world.engine.step();
            }
            world.collect()?;
        }
        world.due.clear();
        Ok(world)
    }

    /// Watches the sessions, after so many rounds of them.
    fn watch(mut self, settings: &TwinSettings, floor: Rollout, rounds: u32) -> Result<Outcome, TwinError> {
        // In the mean a session comes round once in this time.
        let round = (settings.mix.sessions as f64 / floor.steps_per_second * 1e6) as u64;
        self.spread(round);
        self.run_for(u64::from(rounds) * round)?;
        let before = self.reading();
        let steps = settings.workload.as_ref().map_or(settings.mix.steps as f64, |work| work.steps_mean());
        let seconds = settings.seconds.unwrap_or(steps * round as f64 / 1e6);
        self.run_for((seconds * 1e6) as u64)?;
        let after = self.reading();
        let steps = after.steps - before.steps;
        Ok(Outcome {
            steps,
            micros: after.now - before.now,
            floor,
            time: after.time.since(&before.time),
            reply_seconds: (after.waited - before.waited) as f64 / 1e6 / steps.max(1) as f64,
            parked: after.parked - before.parked,
        })
    }

    /// Lets the sessions see their next pages one after another, evenly over this time and not in the order of their ages.
    fn spread(&mut self, micros: u64) {
        for index in 0..self.actors.len() {
            // Multiples of the golden ratio fill a round evenly, and neighbours in age come far apart.
            let place = (index as f64 * 0.618_033_988_75).fract() * micros as f64;
            self.due.push(Reverse((self.clock.micros() + place as u64, index)));
        }
    }

    fn run_for(&mut self, micros: u64) -> Result<(), TwinError> {
        let end = self.clock.micros() + micros;
        while self.clock.micros() < end {
            self.show_due();
            let before = (self.clock.micros(), self.steps);
            if !self.engine.is_idle() {
                self.engine.step();
                if self.host_micros > 0 && self.clock.micros() > before.0 {
                    self.clock.pass(self.host_micros);
                }
                self.collect()?;
            }
            if before == (self.clock.micros(), self.steps) {
                self.wait(end);
            }
        }
        Ok(())
    }

    /// Nothing can run before the next page has acted.
    fn wait(&self, end: u64) {
        let next = self.due.peek().map_or(end, |Reverse((at, _))| (*at).min(end));
        self.clock.pass(next.saturating_sub(self.clock.micros()));
    }

    fn show_due(&mut self) {
        while let Some(Reverse((at, index))) = self.due.peek().copied()
            && at <= self.clock.micros()
        {
            self.due.pop();
            self.actors[index].show(&mut self.engine, at);
        }
    }

    /// Takes what the engine has answered; each page acts and will be seen again.
    fn collect(&mut self) -> Result<(), TwinError> {
        let now = self.clock.micros();
        for (index, actor) in self.actors.iter_mut().enumerate() {
            match actor.poll(&mut self.engine)? {
                Next::Waits => continue,
                Next::Aged => {}
                Next::Acts { seen } => {
                    self.steps += 1;
                    self.waited += now - seen;
                }
            }
            self.due.push(Reverse((now + self.page_micros, index)));
        }
        Ok(())
    }

    fn reading(&mut self) -> Reading {
        Reading {
            now: self.clock.micros(),
            steps: self.steps,
            waited: self.waited,
            parked: self.engine.parked(),
            time: self.engine.device_time(),
        }
    }
}

#[cfg(test)]
mod tests;
