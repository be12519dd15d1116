//! The one loop that owns the device: it applies what was asked, plans a batch, runs it, draws tokens, answers.
//!
//! It knows sequences, not conversations. A session has a *base* sequence whose state is kept between steps. A step lays kept tokens
//! behind the base, shows a prompt behind that, on the base itself (`append`) or on a fork that is dropped afterwards, and draws a reply.
//! Which tokens are kept and shown is decided outside, in `context.rs`.
//!
//! Nothing a session computes depends on its neighbours: spans are cut by its own tokens (`sequence.rs`), draws take numbers from its own
//! counter, and a backend gives a row the same result whatever else is in the batch. Parking and restoring copy bits; a fork copies a
//! state that the very same spans had made. So a session gets the tokens it would get alone.
//!
//! A device that fails may say so at any call. The iteration stops at that very call ([`DeviceLost`] goes up by `?`): what it had not answered yet is
//! answered with the failure, nothing is read from the device any more, and the engine ends.

mod admit;
mod batch;
mod step;
mod weights;

use std::collections::{HashMap, VecDeque};

use furrow_model::backend::{Backend, DeviceLost, Incoming, Room};
use furrow_model::sample::Sampler;
use furrow_rollout::{FinishReason, PolicyVersion, StateOrigin};
use furrow_telemetry::{DeviceTime, DeviceUse, TimeSource};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::features::Features;
use crate::metered::Metered;
use crate::park::Lot;
use crate::schedule::{Limits, Pace};
use crate::sequence::Stretch;
use crate::slots::{Places, pages_for};
use crate::snapshots::Snapshots;

pub use step::{Ask, Reply};
use step::{Session, State, Step};
use weights::Shelf;
pub use weights::{NewWeights, OnSwap, Swapped, Swaps};

/// A session of one engine. Never given twice, so what is late finds nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// Everything that can wake the engine. To learn what it reacts to, read this.
pub enum Event {
    /// A session begins.
    Open {
        /// Its name.
        session: SessionId,
        /// Whether its tokens come out of traces.
        rebuilt: bool,
        /// Cancelled when nobody holds the session any more.
        life: CancellationToken,
        /// Told when it has a place, or why it has none.
        opened: oneshot::Sender<Result<(), Fault>>,
    },
    /// A session goes on: its kept tokens grow, and perhaps it is asked for a reply.
    Step {
        /// Whose.
        session: SessionId,
        /// Behind what is kept.
        kept: Vec<Stretch>,
        /// What is shown; `None` when the session is only brought up to its past.
        ask: Option<Box<Ask>>,
        /// The reply.
        done: oneshot::Sender<Result<Reply, Fault>>,
    },
    /// Other weights shall take over between two batches.
    Weights(Box<NewWeights>),
    /// A session is over. Its `life` says so too: this event only makes it happen now.
    Close(SessionId),
    /// Every session is over and the engine ends.
    Stop,
}

/// Why the engine did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// As many sessions as fit are open.
    #[error("all {places} places for sessions are taken")]
    Full {
        /// How many fit.
        places: u32,
    },
    /// The model computed something that is not a number.
    #[error("the model's logits are not numbers after {tokens} tokens; this session cannot go on, others do")]
    NotFinite {
        /// Tokens of the sequence.
        tokens: u32,
    },
    /// A step is longer than any place.
    #[error("a step of {tokens} tokens does not fit; at most {tokens_max} do")]
    TooLong {
        /// Tokens, the longest reply included.
        tokens: u32,
        /// Tokens that fit.
        tokens_max: u32,
    },
    /// The device would not run the session's tokens or tiles.
    #[error("the device refused the step: {0}")]
    Refused(String),
    /// The device cannot be used any more. The session can go on elsewhere.
    #[error(transparent)]
    Device(#[from] DeviceLost),
    /// The session is not open, or failed before.
    #[error("the session is gone")]
    Gone,
}

/// How the engine uses its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// State slots of sessions.
    pub state_slots: u32,
    /// State slots of snapshots, beside those.
    pub snapshot_slots: u32,
    /// Tokens of a prefill chunk.
    pub chunk: u32,
    /// Rows of prefill beside the decode rows of one batch.
    pub prefill_tokens: u32,
    /// Longest sequence of a session, its longest reply included.
    pub context_tokens_max: u32,
    /// Version of the weights it begins with.
    pub version: PolicyVersion,
    /// How others take over.
    pub swaps: Swaps,
}

impl Settings {
    /// Sessions that an engine with these settings admits in a room, by the bytes that a state with so many pages takes where it is parked.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub(crate) fn sessions_max(self, room: Room, parked: impl Fn(u32) -> u64) -> Result<u32, Misfit> {
        check(self, room)?;
        Ok(places_max(self, room.pages, &Lot::of([parked(0), parked(1)], room.parked_bytes)))
    }
}

/// Settings and a device that do not fit each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {has} {why}")]
pub struct Misfit {
    /// Of what.
    pub what: &'static str,
    /// There are.
    pub has: u32,
    /// What would be right.
    pub why: String,
}

/// Pages a session can come to hold beyond those its tokens fill: one parted from a fork, one from each of two snapshots, one that the
/// fork shares half-full.
const PAGES_SPARE: u32 = 4;

/// Who waits for a step.
type Waiter = oneshot::Sender<Result<Reply, Fault>>;

/// The engine.
pub struct Engine {
    device: Metered,
    settings: Settings,
    limits: Limits,
    pace: Pace,
    places: Places,
    snapshots: Snapshots,
    features: Features,
    /// Ranks logits for those who ask.
    sampler: Sampler,
    shelf: Shelf,
    lot: Lot,
    places_max: u32,
    sessions: HashMap<SessionId, Session>,
    /// Steps that wait for room, in the order they came.
    waiting: VecDeque<SessionId>,
    /// Counts iterations and arrivals: who waited longest.
    clock: u64,
    /// Why the device cannot be used any more.
    lost: Option<DeviceLost>,
    is_stopped: bool,
}

impl Engine {
    /// Takes a device.
    pub fn new(device: Box<dyn Backend>, settings: Settings) -> Result<Self, Misfit> {
        Self::with_clock(device, settings, TimeSource::system())
    }

    /// Takes a device whose time goes by a clock of its own.
    pub fn with_clock(
        device: Box<dyn Backend>,
        settings: Settings,
        time: TimeSource,
    ) -> Result<Self, Misfit> {
        let room = device.room();
        check(settings, room)?;
        let device = Metered::new(device, time);
        let lot = Lot::new(&device);
        Ok(Self {
            limits: Limits {
                rows_max: room.rows_max,
                logits_max: room.logits_max,
                prefill_tokens: settings.prefill_tokens,
            },
            pace: Pace::default(),
            places: Places::new(room.slots, room.pages),
            snapshots: Snapshots::new(settings.snapshot_slots),
            features: Features::new(room.features),
            sampler: Sampler::default(),
            shelf: Shelf::new(settings.version, settings.swaps.vision, None),
            places_max: places_max(settings, room.pages, &lot),
            lot,
            device,
            settings,
            sessions: HashMap::new(),
            waiting: VecDeque::new(),
            clock: 0,
            lost: None,
            is_stopped: false,
        })
    }

    /// Gives weights that nobody needs any more to somebody else to take apart.
    pub fn retiring_to(mut self, bin: mpsc::Sender<Incoming>) -> Self {
        self.shelf = Shelf::new(self.settings.version, self.settings.swaps.vision, Some(bin));
        self
    }

    /// Sessions that fit, whatever they come to hold.
    pub fn places_max(&self) -> u32 {
        self.places_max
    }

    /// Runs until it is stopped, every sender of events is gone or the device has failed. No other code calls the device.
    pub fn run(mut self, events: &mut mpsc::Receiver<Event>) -> Self {
        while !self.is_stopped && self.lost.is_none() {
            if self.is_idle() {
                let Some(event) = events.blocking_recv() else { return self };
                self.apply(event);
            }
            while let Ok(event) = events.try_recv() {
                self.apply(event);
            }
            self.step();
        }
        self
    }

    /// Why the device cannot be used any more, if it failed.
    pub fn lost(&self) -> Option<&DeviceLost> {
        self.lost.as_ref()
    }

    /// Whether nothing is asked for.
    pub(crate) fn is_idle(&self) -> bool {
        self.sessions.values().all(|session| session.step.is_none()) && !self.has_weights_to_take()
    }

    /// Changes the state; starts nothing.
    pub(crate) fn apply(&mut self, event: Event) {
        match event {
            Event::Open { session, rebuilt, life, opened } => {
                self.sweep();
                let answer = self.open(session, rebuilt, life);
                // Whoever asked may be gone already; then its life is over and the next sweep finds it.
                opened.send(answer).ok();
            }
            Event::Step { session, kept, ask, done } => self.begin(session, kept, ask.map(|ask| *ask), done),
            Event::Weights(new) => self.expect_weights(*new),
            Event::Close(session) => self.close(session),
            Event::Stop => {
                self.is_stopped = true;
                self.close_all();
            }
        }
    }

    /// One iteration: let new weights take over, make room, run a batch, answer.
    pub(crate) fn step(&mut self) {
        self.device.idle_because(DeviceUse::Host);
        self.sweep();
        self.clock += 1;
        if let Err(lost) = self.use_device() {
            self.lose(lost);
        }
        self.device.idle_because(self.why_idle());
    }

    /// All that an iteration does with the device, up to the call that finds it lost.
    fn use_device(&mut self) -> Result<(), DeviceLost> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        self.take_weights()?;
        self.admit()?;
        self.run_batch()
    }

    /// Where the device's time went until now.
    pub(crate) fn device_time(&mut self) -> DeviceTime {
        self.device.time()
    }

    /// States that were parked so far.
    pub(crate) fn parked(&self) -> u64 {
        self.lot.parked()
    }

    /// Why the device does nothing between two iterations.
    fn why_idle(&self) -> DeviceUse {
        let mut steps = self.sessions.values().filter_map(|session| session.step.as_ref()).peekable();
        match (steps.peek().is_some(), steps.any(|step| step.is_admitted)) {
            (false, _) => DeviceUse::NoWork,
            (true, false) => DeviceUse::NoRoom,
            (true, true) => DeviceUse::Host,
        }
    }

    fn open(&mut self, id: SessionId, rebuilt: bool, life: CancellationToken) -> Result<(), Fault> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone().into());
        }
        if self.sessions.len() >= self.places_max as usize {
            return Err(Fault::Full { places: self.places_max });
        }
        let origin = rebuilt.then_some(StateOrigin::Rebuilt);
        let pinned = self.pin();
        self.sessions.insert(id, Session::new(life, origin, pinned));
        Ok(())
    }

    fn begin(&mut self, id: SessionId, kept: Vec<Stretch>, ask: Option<Ask>, done: Waiter) {
        self.clock += 1;
        if let Err(fault) = self.can_begin(id, &kept, ask.as_ref()) {
            done.send(Err(fault)).ok();
            return;
        }
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let chunk = self.settings.chunk;
        session.touched = self.clock;
        for stretch in kept {
            session.base.lay(stretch, chunk);
        }
        session.step = Some(Step::new(done, self.clock));
        self.waiting.push_back(id);
        match ask {
            Some(ask) => {
                session.show(ask, chunk);
                self.proceed(id);
            }
            None if session.next().is_none() => self.finish(id, FinishReason::Stop),
            None => {}
        }
    }

    fn can_begin(&self, id: SessionId, kept: &[Stretch], ask: Option<&Ask>) -> Result<(), Fault> {
        let session = self.sessions.get(&id).filter(|session| session.step.is_none()).ok_or(Fault::Gone)?;
        let (tokens, tokens_max) = (session.tokens_with(kept, ask), self.settings.context_tokens_max);
        if tokens > tokens_max { Err(Fault::TooLong { tokens, tokens_max }) } else { Ok(()) }
    }

    /// Forgets sessions nobody holds.
    fn sweep(&mut self) {
        let over = self.sessions.iter().filter(|(_, session)| session.life.is_cancelled());
        let over: Vec<SessionId> = over.map(|(id, _)| *id).collect();
        over.into_iter().for_each(|id| self.close(id));
    }

    fn close(&mut self, id: SessionId) {
        // Dropping the answer's sender tells whoever still waits for it.
        drop(self.remove(id));
    }

    fn close_all(&mut self) {
        let all: Vec<SessionId> = self.sessions.keys().copied().collect();
        all.into_iter().for_each(|id| self.close(id));
    }

    fn drop_state(&mut self, state: State) {
        match state {
            State::Nowhere => {}
            State::Device(place) => self.places.release(place),
            State::Host(parked) => self.lot.drive_off(&parked),
        }
    }

    /// Gives back all a step held.
    fn put_away(&mut self, step: Step) -> Option<Waiter> {
        let Step { fork, reserve, promised, done, .. } = step;
        self.places.unreserve(reserve);
        for (_, name) in promised {
            self.snapshots.settle(&name);
        }
        if let Some(place) = fork.and_then(|fork| fork.place) {
            self.places.release(place);
        }
        done
    }

    /// Ends a session's step with a fault. Its state is of no use any more.
    fn fail(&mut self, id: SessionId, fault: Fault) {
        if let Some(done) = self.remove(id) {
            done.send(Err(fault)).ok();
        }
    }

    /// Takes a session out and gives back all it held. Returns who waits for its step.
    fn remove(&mut self, id: SessionId) -> Option<Waiter> {
        let session = self.sessions.remove(&id)?;
        self.waiting.retain(|waiting| *waiting != id);
        self.drop_state(session.state);
        self.put_away(session.step?)
    }

    /// With no session left, only snapshots hold places.
    #[cfg(test)]
    fn assert_empty(&mut self) {
        while let Some(place) = self.snapshots.evict() {
            self.places.release(place);
        }
        let room = self.device.room();
        assert_eq!((self.places.free_slots(), self.places.free_pages()), (room.slots, room.pages));
        assert_eq!(self.lot.bytes(), 0);
        assert_eq!(self.snapshots.awaited(), 0);
    }

    /// Answers all that is asked for with the failure. No session is at fault.
    fn lose(&mut self, lost: DeviceLost) {
        if self.lost.is_none() {
            tracing::error!(
                why = lost.0,
                sessions = self.sessions.len(),
                "the device failed; its sessions can go on elsewhere"
            );
        }
        let all: Vec<SessionId> = self.sessions.keys().copied().collect();
        for id in all {
            self.fail(id, lost.clone().into());
        }
        self.lose_weights(&lost);
        self.lost = Some(lost);
    }
}

/// Refuses settings under which a session could wait for ever.
fn check(settings: Settings, room: Room) -> Result<(), Misfit> {
    let Settings { state_slots, snapshot_slots, chunk, prefill_tokens, context_tokens_max, .. } = settings;
    let pages = pages_for(context_tokens_max) + PAGES_SPARE;
    let rules = [
        ("state slots", room.slots, state_slots + snapshot_slots, "of sessions and snapshots together"),
        ("state slots of sessions", state_slots, 2, "for a session and its fork"),
        ("KV pages", room.pages, pages, "for one session of the longest context"),
        ("prefill tokens", prefill_tokens, chunk, "for one chunk"),
        ("rows of a batch", room.rows_max, chunk, "for one chunk"),
        ("prefill chunk", chunk, 1, "at least"),
        ("rows of logits", room.logits_max, 1, "at least"),
    ];
    match rules.into_iter().find(|(_, has, needed, _)| has < needed) {
        None => Ok(()),
        Some((what, has, needed, why)) => {
            Err(Misfit { what, has, why: format!("are too few; {needed} are needed {why}") })
        }
    }
}

/// Sessions that fit at their longest: those whose states stay on the device beside one that works (base and fork), and those parked.
fn places_max(settings: Settings, pages: u32, lot: &Lot) -> u32 {
    let each = pages_for(settings.context_tokens_max) + PAGES_SPARE;
    let resident = (settings.state_slots - 2).min((pages - each) / each);
    let parked = lot.holds(each).min(u64::from(u32::MAX / 2)) as u32;
    (resident + parked).max(1)
}

#[cfg(test)]
mod tests;
