//! The time limit of a trajectory, and whose doing it is that the time is over.
//!
//! It counts what the environment takes, and not the replies of the policy, which have a deadline
//! of their own: otherwise a policy could leave by thinking for long, unscored.

use std::time::Duration;

use furrow_rollout::EndKind;
use tokio::time::{Instant, timeout_at};

/// A limit that is never reached, where the task's own has more seconds than a clock can count.
const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);

#[derive(Debug)]
pub(crate) struct TimeLimit {
    limit: Duration,
    deadline: Instant,
    /// How long the policy's actions took, what they caused in the page included.
    acting: Duration,
}

/// The time limit interrupted the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the time limit passed")]
pub(crate) struct TimeOver;

impl TimeLimit {
    pub(crate) fn start(limit: Duration) -> Self {
        let now = Instant::now();
        let deadline = now.checked_add(limit).unwrap_or_else(|| now + NEVER);
        Self { limit, deadline, acting: Duration::ZERO }
    }

    /// The moment at which work of the environment is to be interrupted.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Time passed that is the policy worker's.
    pub(crate) fn exclude(&mut self, passed: Duration) {
        self.deadline = self.deadline.checked_add(passed).unwrap_or(self.deadline);
    }

    /// Time passed in an action of the policy's.
    pub(crate) fn add_action(&mut self, passed: Duration) {
        self.acting += passed;
    }

    /// Why the trajectory ends when the time is over, and the reason in words: the policy's doing
    /// if its own actions took at least half of the time, else the farm's.
    pub(crate) fn end(&self) -> (EndKind, String) {
        let limit = self.limit.as_millis();
        let acting = self.acting.as_millis();
        let reason = format!("its time limit of {limit} ms passed, {acting} ms of it in its own actions");
        match self.acting >= self.limit / 2 {
            true => (EndKind::MaxTime, reason),
            false => (EndKind::Cancelled, reason),
        }
    }
}

/// Runs work until a deadline.
pub(crate) async fn until<T>(deadline: Instant, work: impl Future<Output = T>) -> Result<T, TimeOver> {
    timeout_at(deadline, work).await.map_err(|_| TimeOver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_limit_is_the_policys_if_its_actions_took_half_of_it() {
        let second = Duration::from_secs(1);
        for (acting, want) in [(0, EndKind::Cancelled), (29, EndKind::Cancelled), (30, EndKind::MaxTime)] {
            let mut limit = TimeLimit::start(60 * second);
            limit.add_action(acting * second);
            assert_eq!(limit.end().0, want, "{acting} s");
        }
        let mut limit = TimeLimit::start(60 * second);
        limit.exclude(30 * second);
        assert_eq!(until(limit.deadline(), tokio::time::sleep(89 * second)).await, Ok(()));
        assert_eq!(until(limit.deadline(), tokio::time::sleep(2 * second)).await, Err(TimeOver));
        let endless = TimeLimit::start(Duration::from_millis(u64::MAX));
        assert_eq!(until(endless.deadline(), tokio::time::sleep(second)).await, Ok(()));
    }
}
