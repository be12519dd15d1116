//! The time source of a service, passed in so that a test can control it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Reads the time. Clones read the same clocks.
#[derive(Debug, Clone)]
pub struct TimeSource(ClockSource);

/// Moves the time of the [`TimeSource`] it was created with.
#[derive(Debug, Clone)]
pub struct ManualTime(Arc<ManualClock>);

#[derive(Debug, Clone)]
enum ClockSource {
    System { started: Instant },
    Manual(Arc<ManualClock>),
}

#[derive(Debug)]
struct ManualClock {
    micros: AtomicU64,
    wall_micros: AtomicI64,
}

impl TimeSource {
    /// The machine's clocks; counting starts now.
    pub fn system() -> Self {
        Self(ClockSource::System { started: Instant::now() })
    }

    /// A clock that moves only by hand. It starts at 0, and at `wall_micros` after the Unix epoch.
    pub fn manual(wall_micros: i64) -> (Self, ManualTime) {
        let hands =
            Arc::new(ManualClock { micros: AtomicU64::new(0), wall_micros: AtomicI64::new(wall_micros) });
        (Self(ClockSource::Manual(hands.clone())), ManualTime(hands))
    }

    /// Microseconds since counting started. Never goes back: durations and deadlines use it.
    pub fn micros(&self) -> u64 {
        match &self.0 {
            ClockSource::System { started } => started.elapsed().as_micros() as u64,
            ClockSource::Manual(hands) => hands.micros.load(SeqCst),
        }
    }

    /// Wall clock, microseconds since the Unix epoch. May jump: for columns and logs only, never
    /// for decisions.
    pub fn wall_micros(&self) -> i64 {
        match &self.0 {
            ClockSource::System { .. } => micros_since_epoch(SystemTime::now()),
            ClockSource::Manual(hands) => hands.wall_micros.load(SeqCst),
        }
    }
}

impl ManualTime {
    pub fn advance(&self, micros: u64) {
        self.0.micros.fetch_add(micros, SeqCst);
        self.0.wall_micros.fetch_add(micros as i64, SeqCst);
    }

    /// Sets the wall clock; the monotonic clock does not change.
    pub fn set_wall(&self, micros: i64) {
        self.0.wall_micros.store(micros, SeqCst);
    }
}

fn micros_since_epoch(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_micros() as i64,
        Err(before) => -(before.duration().as_micros() as i64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_system_clock_goes_on_from_zero() {
        let time = TimeSource::system();
        let first = time.micros();
        assert!(first < 60_000_000, "{first}");
        assert!(time.clone().micros() >= first);
        let year_2020 = 1_577_836_800_000_000;
        assert!(time.wall_micros() > year_2020);
    }

    #[test]
    fn a_manual_clock_moves_by_hand_alone() {
        let (time, hand) = TimeSource::manual(1000);
        assert_eq!((time.micros(), time.wall_micros()), (0, 1000));
        hand.advance(5);
        assert_eq!((time.micros(), time.wall_micros()), (5, 1005));
        hand.set_wall(-7);
        assert_eq!((time.micros(), time.wall_micros()), (5, -7));
    }

    #[test]
    fn before_the_epoch_is_negative() {
        assert_eq!(micros_since_epoch(UNIX_EPOCH - Duration::from_micros(3)), -3);
    }
}
