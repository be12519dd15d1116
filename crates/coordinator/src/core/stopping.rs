//! Stopping: draining, the budget of failures, and the moment when all is done.

use furrow_rollout::End;

use super::{Answer, Call, Core, Effect, Notice, Turn};
use crate::groups::Group;

/// How a job came to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Over {
    /// Every planned group is in the data set.
    Complete,
    /// It was asked to stop before that; `--resume` goes on.
    Drained {
        /// Trajectories that were cancelled when the grace ended.
        cancelled: u64,
    },
    /// The farm failed too often.
    TooManyFailures {
        /// What failed how often.
        detail: String,
    },
}

/// On the way out.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Stopping {
    since_millis: u64,
    until_millis: u64,
    cancelled: u64,
    /// What failed too often, where that is why.
    failures: Option<String>,
}

impl Core {
    /// Admits nothing new; work in hand has until the end of the grace.
    pub(super) fn drain(&mut self, call: Option<Call>, turn: &mut Turn) {
        self.stop(None, turn);
        if let Some(call) = call {
            turn.reply(call, Answer::Draining);
        }
    }

    /// Admits nothing new and takes back what is lent.
    pub(super) fn stop_at_once(&mut self, call: Call, turn: &mut Turn) {
        self.stop(None, turn);
        if let Some(stopping) = &mut self.stopping {
            stopping.until_millis = turn.now.millis;
        }
        self.end_grace(turn);
        turn.reply(call, Answer::Draining);
    }

    /// Stops the job when the farm fails so often that going on would waste it.
    pub(super) fn stop_over_budget(&mut self, turn: &mut Turn) {
        // Cancelled ones were wanted back or had their time; nothing is broken.
        let failed: u64 = self.failures().map(|(_, count)| count).sum();
        let allowed =
            self.rules.failures_free as f64 + self.rules.failure_budget * (failed + self.tally.scored) as f64;
        if failed as f64 <= allowed {
            return;
        }
        let by_end: Vec<_> =
            self.failures().map(|(end, count)| format!("{} {count}", end.as_str())).collect();
        let detail = format!(
            "{failed} attempts failed against {} scored ({}), limits.failure_budget = {} allows {}: \
             look for the cause in logs/; --resume goes on once a higher budget allows it",
            self.tally.scored,
            by_end.join(", "),
            self.rules.failure_budget,
            allowed.floor()
        );
        self.stop(Some(detail), turn);
    }

    /// When the grace is over, what is still lent is cancelled; a resumed job tries it again. What is still being scored stays
    /// finished and unscored in the ledger, and a resumed job has it scored: a judge may take longer than anybody waits.
    pub(super) fn end_grace(&mut self, turn: &mut Turn) {
        let ended = |stopping: &Stopping| stopping.until_millis <= turn.now.millis;
        if !self.stopping.as_ref().is_some_and(ended) {
            return;
        }
        let leases = self.leases.take_where(|_| true);
        if let Some(stopping) = &mut self.stopping {
            stopping.cancelled += leases.len() as u64;
        }
        self.scoring.clear();
        for lease in leases {
            self.fail_lease(lease, End::Cancelled, "the coordinator was stopping", turn);
        }
    }

    /// Whether nothing will be lent any more.
    pub(super) fn no_more_work(&self) -> bool {
        self.stopping.is_some() || self.is_complete()
    }

    /// Whether every planned group is closed, and every evaluation that was begun.
    fn is_complete(&self) -> bool {
        self.next_draw >= self.plan.groups()
            && self.evaluation.is_none()
            && self.groups.values().all(Group::is_closed)
    }

    /// When nothing is lent or being scored and nothing will be: publishes what is left, then says so.
    pub(super) fn finish_up(&mut self, turn: &mut Turn) {
        if self.over || !self.no_more_work() || self.leases.len() + self.scoring.len() > 0 {
            return;
        }
        if self.unpublished.is_empty() && !self.groups.values().any(Group::is_closed) {
            self.over = true;
            if let Some(Stopping { since_millis, cancelled, .. }) = self.stopping {
                let millis = turn.now.millis.saturating_sub(since_millis);
                turn.tell(Notice::Drained { left: cancelled, millis });
            }
            turn.then(Effect::Over(self.how_it_ended()));
        } else if !self.shards_closing {
            self.shards_closing = true;
            turn.then(Effect::CloseShards);
        }
    }

    fn how_it_ended(&self) -> Over {
        match &self.stopping {
            Some(Stopping { failures: Some(detail), .. }) => Over::TooManyFailures { detail: detail.clone() },
            Some(Stopping { cancelled, .. }) if !self.is_complete() => {
                Over::Drained { cancelled: *cancelled }
            }
            _ => Over::Complete,
        }
    }

    fn stop(&mut self, failures: Option<String>, turn: &mut Turn) {
        if self.stopping.is_none() {
            let since_millis = turn.now.millis;
            let until_millis = since_millis + self.rules.drain_grace_millis;
            self.stopping = Some(Stopping { since_millis, until_millis, cancelled: 0, failures });
            turn.tell(Notice::Draining { in_hand: self.leases.len() as u64 });
        }
    }

    fn failures(&self) -> impl Iterator<Item = (End, u64)> {
        let counts = |(end, count): (&End, &u64)| (*end != End::Cancelled).then_some((*end, *count));
        self.tally.failed.iter().filter_map(counts)
    }
}
