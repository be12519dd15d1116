//! When to try again: pauses that grow, with jitter, and a patience that ends.

use std::time::Duration;

use rand::RngExt;
use tokio::time::Instant;

/// How long to go on trying, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// The first pause; each further one is twice as long.
    pub first: Duration,
    /// The longest pause.
    pub longest: Duration,
    /// From the first failure to giving up.
    pub patience: Duration,
}

/// The pauses after one failure until the next success.
#[derive(Debug)]
pub(crate) struct Pauses {
    retry: Retry,
    next: Duration,
    since: Option<Instant>,
}

impl Retry {
    pub(crate) fn pauses(self) -> Pauses {
        Pauses { retry: self, next: self.first, since: None }
    }
}

impl Pauses {
    /// How long to wait before trying again; `None` when patience is at its end.
    ///
    /// Between half and all of the doubled pause: a hundred sessions that lost the same worker do not come back in one moment.
    pub fn next(&mut self) -> Option<Duration> {
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.retry.patience {
            return None;
        }
        let pause = self.next.mul_f64(rand::rng().random_range(0.5..1.0));
        self.next = (self.next * 2).min(self.retry.longest);
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_to_a_limit_and_patience_ends() {
        let millis = Duration::from_millis;
        let retry = Retry { first: millis(10), longest: millis(80), patience: millis(1000) };
        let mut pauses = retry.pauses();
        let mut seen = Vec::new();
        while let Some(pause) = pauses.next() {
            seen.push(pause);
            tokio::time::advance(pause).await;
        }
        for (place, pause) in seen.iter().enumerate() {
            let whole = millis(10 << place.min(3));
            assert!(whole / 2 <= *pause && *pause <= whole, "pause {place} is {pause:?}");
        }
        let total: Duration = seen.iter().sum();
        assert!(total >= millis(1000) && total < millis(1080), "{total:?}");
    }
}
