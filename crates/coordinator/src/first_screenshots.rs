//! First screenshots of trajectories that have no durable step yet, for observers.
//!
//! A first step may take a minute, and a page that shows running sessions would be blank meanwhile.
//! Workers send them only while an observer looks; they are in memory, bounded, and nothing depends
//! on them.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use furrow_rollout::{Id, Trajectory};
use furrow_wire::SCREENSHOT_BYTES_MAX;

/// Bytes of all of them: the newest ones of a few hundred sessions.
const BYTES_MAX: usize = 64 << 20;
/// Time after a look for which workers send them. A page that shows sessions looks whenever
/// something changed, which may take as long as a slow step.
const WATCHED: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct FirstScreenshots {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    looked: Option<Instant>,
    /// In the order in which they came: what goes first is in front.
    screenshots: VecDeque<(Id<Trajectory>, Bytes)>,
    bytes: usize,
    added: u32,
}

impl FirstScreenshots {
    /// An observer looked at the running trajectories.
    pub(crate) fn note_look(&self, now: Instant) {
        self.lock().looked = Some(now);
    }

    /// Whether an observer looked a moment ago.
    pub(crate) fn is_watched(&self, now: Instant) -> bool {
        self.lock().looked.is_some_and(|looked| now.saturating_duration_since(looked) < WATCHED)
    }

    /// Keeps one; the oldest ones go where there are too many.
    pub(crate) fn add(&self, trajectory: Id<Trajectory>, screenshot: Bytes) {
        let mut kept = self.lock();
        kept.remove(&trajectory);
        kept.bytes += screenshot.len();
        kept.added = kept.added.saturating_add(1);
        kept.screenshots.push_back((trajectory, screenshot));
        while kept.bytes > BYTES_MAX {
            let Some((_, oldest)) = kept.screenshots.pop_front() else { return };
            kept.bytes -= oldest.len();
        }
    }

    pub(crate) fn get(&self, trajectory: &Id<Trajectory>) -> Option<Bytes> {
        let kept = self.lock();
        let found = kept.screenshots.iter().find(|(id, _)| id == trajectory);
        found.map(|(_, screenshot)| screenshot.clone())
    }

    pub(crate) fn has(&self, trajectory: &Id<Trajectory>) -> bool {
        self.lock().screenshots.iter().any(|(id, _)| id == trajectory)
    }

    /// How many were added so far: an observer looks again when it changes.
    pub(crate) fn added(&self) -> u32 {
        self.lock().added
    }

    /// It has a durable step, or is over.
    pub(crate) fn remove(&self, trajectory: &Id<Trajectory>) {
        self.lock().remove(trajectory);
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks what a worker sent.
pub(crate) fn check_size(screenshot: &Bytes) -> Result<(), String> {
    let length = screenshot.len();
    if (1..=SCREENSHOT_BYTES_MAX).contains(&length) {
        return Ok(());
    }
    Err(format!("screenshot has {length} bytes; send 1 to {SCREENSHOT_BYTES_MAX}"))
}

impl Kept {
    fn remove(&mut self, trajectory: &Id<Trajectory>) {
        let at = self.screenshots.iter().position(|(id, _)| id == trajectory);
        if let Some((_, screenshot)) = at.and_then(|at| self.screenshots.remove(at)) {
            self.bytes -= screenshot.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> Id<Trajectory> {
        Id::new(name).unwrap()
    }

    #[test]
    fn the_oldest_go_where_there_are_too_many() {
        let first = FirstScreenshots::default();
        let large = Bytes::from(vec![0; BYTES_MAX / 4]);
        for name in ["a", "b", "c", "d"] {
            first.add(id(name), large.clone());
        }
        assert!(["a", "b", "c", "d"].iter().all(|name| first.has(&id(name))));
        // The same one again takes no more, and is the newest then.
        first.add(id("a"), large.clone());
        first.add(id("e"), large.clone());
        assert!(!first.has(&id("b")) && first.has(&id("a")) && first.has(&id("e")));
        first.remove(&id("a"));
        first.remove(&id("none"));
        assert_eq!(first.get(&id("a")), None);
        first.add(id("f"), large.clone());
        assert_eq!(first.added(), 7);
        assert_eq!(first.get(&id("f")), Some(large));
        assert!(first.has(&id("c")), "what was removed made space");
    }

    #[test]
    fn a_look_counts_for_a_moment() {
        let first = FirstScreenshots::default();
        let now = Instant::now();
        assert!(!first.is_watched(now));
        first.note_look(now);
        assert!(first.is_watched(now) && first.is_watched(now + WATCHED / 2));
        assert!(!first.is_watched(now + WATCHED));
    }
}
