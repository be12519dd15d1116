//! A simulator of the scheduler: the real engine with a simulated device, whose work takes as long
//! as the floor says, on a simulated clock.
//!
//! The loop is the one that [`RolloutFloor`] computes: sessions of all ages are shown a page, get a
//! reply of fixed length, act in their page for a while and return. Admission, planning, chunks,
//! forks, tile features and offloading are the engine's own; only the device and the time are
//! simulated. So the difference from the floor is what the scheduler loses. The vision tower runs
//! beside batches and states are transferred beside both, as `device.rs` describes. The floor is
//! the one of two streams (`RolloutFloor::floor_concurrent`). No two tiles are equal and no two
//! trajectories share text, so no result comes from a cache.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread;
use std::time::Duration;

use furrow_model::backend::Backend;
use furrow_model::config::{Config, VisionConfig};
use furrow_model::floor::DeviceSpec;
use furrow_policy::stepped::SteppedEngine;
use furrow_telemetry::{DeviceTime, ManualTime, TimeSource};

use crate::device::SimulatedDevice;
use crate::floor::RolloutFloor;
use crate::session::{SessionProgress, SimulatedSession};
use crate::settings::{SimulatorError, SimulatorSettings};
use crate::workload::Workload;

/// Rounds of the sessions before the measurement.
const WARM_UP: u32 = 4;

/// The result of a simulation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SimulationOutcome {
    pub steps: u64,
    /// Simulated microseconds that were measured.
    pub micros: u64,
    /// The floor of the same sessions on the same device, with the tower on its own stream.
    pub floor: RolloutFloor,
    /// How the device's time was used.
    pub time: DeviceTime,
    /// Mean seconds from a page to its reply.
    pub reply_seconds: f64,
    /// States that were copied to host memory because the device was full.
    pub offloaded: u64,
}

/// Runs the simulation. It is deterministic: equal settings give equal results.
pub fn simulate(
    config: &Config,
    device: &'static DeviceSpec,
    settings: &SimulatorSettings,
) -> Result<SimulationOutcome, SimulatorError> {
    let floor = settings.floor(
        config,
        device,
        (RolloutFloor::floor_concurrent, RolloutFloor::workload_floor_concurrent),
    )?;
    let (time, hand) = TimeSource::manual(0);
    let capacity = settings.capacity(config, device, &floor);
    let backend = SimulatedDevice::new(config.clone(), device, capacity, (time.clone(), hand.clone()));
    let clock = SimulatorClock { time, hand: Some(hand) };
    SimulatorLoop::new(Box::new(backend), clock, settings, &floor)?.measure(settings, floor, WARM_UP)
}

impl SimulationOutcome {
    /// Measured steps per second.
    pub fn steps_per_second(&self) -> f64 {
        self.steps as f64 / (self.micros as f64 / 1e6)
    }

    /// Share of the floor's rate that was reached.
    pub fn share(&self) -> f64 {
        self.steps_per_second() / self.floor.steps_per_second
    }
}

/// The simulated loop: sessions, their pages, and one engine.
pub(crate) struct SimulatorLoop {
    engine: SteppedEngine,
    clock: SimulatorClock,
    sessions: Vec<SimulatedSession>,
    /// Time at which each session's page has acted.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    page_micros: u64,
    host_micros: u64,
    steps: u64,
    /// Sum of the microseconds from pages to replies.
    waited: u64,
}

/// The trajectory and the number of past steps with which a session begins. Every step of a
/// workload is equally likely, so a long trajectory occurs more often than a short one, as in a
/// running farm.
pub(crate) fn start_position(work: &Workload, index: usize, sessions: usize) -> (usize, usize) {
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

/// A clock with its hand if it is simulated; a real clock has none.
pub(crate) struct SimulatorClock {
    pub time: TimeSource,
    pub hand: Option<ManualTime>,
}

/// The counters at one time.
struct CounterReading {
    now: u64,
    steps: u64,
    waited: u64,
    offloaded: u64,
    time: DeviceTime,
}

impl SimulatorClock {
    fn micros(&self) -> u64 {
        self.time.micros()
    }

    /// Lets this many microseconds pass.
    #[expect(
        clippy::disallowed_methods,
        reason = "pages take real time here, and only the clock's state can be waited for"
    )]
    fn pass(&self, micros: u64) {
        match &self.hand {
            Some(hand) => hand.advance(micros),
            None => thread::sleep(Duration::from_micros(micros)),
        }
    }
}

impl SimulatorLoop {
    /// Creates sessions of all ages, with their past on the device.
    pub(crate) fn new(
        device: Box<dyn Backend>,
        clock: SimulatorClock,
        settings: &SimulatorSettings,
        floor: &RolloutFloor,
    ) -> Result<Self, SimulatorError> {
        let config = device.config();
        let work = settings.workload(config);
        let next = Arc::new(AtomicUsize::new(0));
        let rows_per_tile = config.vision.as_ref().map_or(1, VisionConfig::rows_per_tile);
        let actor =
            |index| SimulatedSession::new(index, settings, (work.clone(), next.clone()), rows_per_tile);
        let actors = (0..settings.mix.sessions).map(actor).collect();
        let engine = SteppedEngine::new(device, settings.engine_settings(floor), clock.time.clone())
            .map_err(SimulatorError::Mismatch)?;
        let mut world = Self {
            engine,
            clock,
            sessions: actors,
            due: BinaryHeap::new(),
            page_micros: (work.page_seconds * 1e6) as u64,
            host_micros: settings.host_micros,
            steps: 0,
            waited: 0,
        };
        for index in 0..world.sessions.len() {
            world.sessions[index]
                .begin_at(&mut world.engine, start_position(&work, index, settings.mix.sessions))?;
            while !world.engine.is_idle() {
                world.engine.step();
            }
            world.collect()?;
        }
        world.due.clear();
        Ok(world)
    }

    /// Measures the sessions after a number of warm-up rounds.
    pub(crate) fn measure(
        mut self,
        settings: &SimulatorSettings,
        floor: RolloutFloor,
        rounds: u32,
    ) -> Result<SimulationOutcome, SimulatorError> {
        // The mean time between two pages of a session.
        let round = (settings.mix.sessions as f64 / floor.steps_per_second * 1e6) as u64;
        self.spread(round);
        self.run_for(u64::from(rounds) * round)?;
        let before = self.reading();
        let steps = settings.workload.as_ref().map_or(settings.mix.steps as f64, |work| work.steps_mean());
        let seconds = settings.seconds.unwrap_or(steps * round as f64 / 1e6);
        self.run_for((seconds * 1e6) as u64)?;
        let after = self.reading();
        let steps = after.steps - before.steps;
        Ok(SimulationOutcome {
            steps,
            micros: after.now - before.now,
            floor,
            time: after.time.since(&before.time),
            reply_seconds: (after.waited - before.waited) as f64 / 1e6 / steps.max(1) as f64,
            offloaded: after.offloaded - before.offloaded,
        })
    }

    /// Schedules the next pages of the sessions evenly over this time and not in the order of their
    /// ages.
    fn spread(&mut self, micros: u64) {
        for index in 0..self.sessions.len() {
            // Multiples of the golden ratio fill a round evenly and keep sessions of similar age
            // apart.
            let offset = (index as f64 * 0.618_033_988_75).fract() * micros as f64;
            self.due.push(Reverse((self.clock.micros() + offset as u64, index)));
        }
    }

    fn run_for(&mut self, micros: u64) -> Result<(), SimulatorError> {
        let end = self.clock.micros() + micros;
        while self.clock.micros() < end {
            self.show_due_pages();
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

    /// Advances the clock to the next page, because nothing can run before.
    fn wait(&self, end: u64) {
        let next = self.due.peek().map_or(end, |Reverse((at, _))| (*at).min(end));
        self.clock.pass(next.saturating_sub(self.clock.micros()));
    }

    fn show_due_pages(&mut self) {
        while let Some(Reverse((at, index))) = self.due.peek().copied()
            && at <= self.clock.micros()
        {
            self.due.pop();
            self.sessions[index].show(&mut self.engine, at);
        }
    }

    /// Takes the engine's answers and schedules the sessions' next pages.
    fn collect(&mut self) -> Result<(), SimulatorError> {
        let now = self.clock.micros();
        for (index, actor) in self.sessions.iter_mut().enumerate() {
            match actor.poll(&mut self.engine)? {
                SessionProgress::Waits => continue,
                SessionProgress::Aged => {}
                SessionProgress::Acts { shown_at } => {
                    self.steps += 1;
                    self.waited += now - shown_at;
                }
            }
            self.due.push(Reverse((now + self.page_micros, index)));
        }
        Ok(())
    }

    fn reading(&mut self) -> CounterReading {
        CounterReading {
            now: self.clock.micros(),
            steps: self.steps,
            waited: self.waited,
            offloaded: self.engine.offloaded(),
            time: self.engine.device_time(),
        }
    }
}

#[cfg(test)]
mod tests;
