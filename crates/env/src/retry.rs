//! When to retry: growing pauses with jitter, up to a timeout.

use std::time::Duration;

use rand::RngExt;
use tokio::time::Instant;

/// How long to retry, and at what intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The first pause; each further one is twice as long.
    pub first: Duration,
    pub longest: Duration,
    /// Time from the first failure to giving up.
    pub timeout: Duration,
}

/// The pauses after one failure until the next success.
#[derive(Debug)]
pub(crate) struct RetryPauses {
    retry: RetryPolicy,
    next: Duration,
    since: Option<Instant>,
}

impl RetryPolicy {
    pub(crate) fn pauses(self) -> RetryPauses {
        RetryPauses { retry: self, next: self.first, since: None }
    }
}

impl RetryPauses {
    /// The pause before the next attempt; `None` once the timeout has passed.
    ///
    /// The pause lies between half and all of the doubled pause, so that a hundred sessions that
    /// lost the same worker do not return at the same moment.
    pub(crate) fn next(&mut self) -> Option<Duration> {
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.retry.timeout {
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
    async fn pauses_grow_to_a_limit_and_end_at_the_timeout() {
        let millis = Duration::from_millis;
        let retry = RetryPolicy { first: millis(10), longest: millis(80), timeout: millis(1000) };
        let mut pauses = retry.pauses();
        let mut pauses_taken = Vec::new();
        while let Some(pause) = pauses.next() {
            pauses_taken.push(pause);
            tokio::time::advance(pause).await;
        }
        for (index, pause) in pauses_taken.iter().enumerate() {
            let whole = millis(10 << index.min(3));
            assert!(whole / 2 <= *pause && *pause <= whole, "pause {index} is {pause:?}");
        }
        let total: Duration = pauses_taken.iter().sum();
        assert!(total >= millis(1000) && total < millis(1080), "{total:?}");
    }
}
