//! Stopping: draining, the failure budget, and the end of the job.

use furrow_rollout::EndKind;

use super::answer::CallResponse;
use super::decision::{Effect, EventContext, JobOutcome};
use super::event::CallId;
use super::notice::CoreNotice;
use super::state::{Core, ShutdownState};
use crate::groups::OpenGroup;

/// A browser takes the contexts of all default sessions with it, 8 of them.
const FREE_LEAST: u64 = 8;
/// A browser and a half, at 25 contexts each.
const FREE_MOST: u64 = 40;

impl Core {
    /// Stops admission; running trajectories have until the end of the grace period.
    pub(super) fn drain(&mut self, call: Option<CallId>, turn: &mut EventContext) {
        self.stop(None, turn);
        if let Some(call) = call {
            turn.reply(call, CallResponse::Draining);
        }
    }

    /// Stops admission and reclaims all leases.
    pub(super) fn stop_at_once(&mut self, call: CallId, turn: &mut EventContext) {
        self.stop(None, turn);
        if let Some(stopping) = &mut self.stopping {
            stopping.until_millis = turn.now.millis;
        }
        self.end_grace(turn);
        turn.reply(call, CallResponse::Draining);
    }

    /// Stops the job when the farm fails so often that continuing would waste it.
    pub(super) fn stop_over_budget(&mut self, turn: &mut EventContext) {
        // Cancelled attempts were reclaimed or out of time; they are not failures of the farm.
        let failed: u64 = self.failures().map(|(_, count)| count).sum();
        let free = self.failures_free();
        let allowed = free as f64 + self.rules.failure_budget * (failed + self.tally.scored) as f64;
        if failed as f64 <= allowed {
            return;
        }
        let by_end: Vec<_> =
            self.failures().map(|(end, count)| format!("{} {count}", end.as_str())).collect();
        let detail = format!(
            "{failed} attempts failed against {} scored ({}), limits.failure_budget = {} and \
             limits.failures_free = {free} allow {}: look for the cause in logs/; raise one of them to \
             continue with --resume",
            self.tally.scored,
            by_end.join(", "),
            self.rules.failure_budget,
            allowed.floor()
        );
        self.stop(Some(detail), turn);
    }

    /// Failures that the share does not count. What a large job survives (a browser that dies with
    /// its 25 contexts) is all of a small one: there the default is a part of the job.
    fn failures_free(&self) -> u64 {
        let planned = self.plan.groups().saturating_mul(u64::from(self.plan.group_needs()));
        let by_size = (planned / 4).clamp(FREE_LEAST, FREE_MOST);
        self.rules.failures_free.unwrap_or(by_size)
    }

    /// At the end of the grace period, cancels what is still leased; a resumed job tries it again.
    /// What is still being scored stays finished and unscored in the ledger, and a resumed job
    /// scores it: a judge may take longer than the grace period.
    pub(super) fn end_grace(&mut self, turn: &mut EventContext) {
        let ended = |stopping: &ShutdownState| stopping.until_millis <= turn.now.millis;
        if !self.stopping.as_ref().is_some_and(ended) {
            return;
        }
        let leases = self.leases.take_where(|_| true);
        if let Some(stopping) = &mut self.stopping {
            stopping.cancelled += leases.len() as u64;
        }
        self.scoring.clear();
        for lease in leases {
            self.fail_lease(lease, EndKind::Cancelled, "the coordinator was stopping", turn);
        }
    }

    /// Whether nothing will be leased any more.
    pub(super) fn is_admission_over(&self) -> bool {
        self.stopping.is_some() || self.is_complete()
    }

    /// Whether every planned group and every started evaluation is closed.
    fn is_complete(&self) -> bool {
        self.next_draw >= self.plan.groups()
            && self.evaluation.is_none()
            && self.groups.values().all(OpenGroup::is_closed)
    }

    /// When nothing is leased or being scored and nothing will be, commits what is left and then
    /// ends the job.
    pub(super) fn finish_if_done(&mut self, turn: &mut EventContext) {
        if self.over || !self.is_admission_over() || self.leases.len() + self.scoring.len() > 0 {
            return;
        }
        if self.uncommitted.is_empty() && !self.groups.values().any(OpenGroup::is_closed) {
            self.over = true;
            if let Some(ShutdownState { since_millis, cancelled, .. }) = self.stopping {
                let millis = turn.now.millis.saturating_sub(since_millis);
                turn.notify(CoreNotice::Drained { left: cancelled, millis });
            }
            turn.then(Effect::Over(self.outcome()));
        } else if !self.shards_closing {
            self.shards_closing = true;
            turn.then(Effect::CloseShards);
        }
    }

    fn outcome(&self) -> JobOutcome {
        match &self.stopping {
            Some(ShutdownState { failures: Some(detail), .. }) => {
                JobOutcome::TooManyFailures { detail: detail.clone() }
            }
            Some(ShutdownState { cancelled, .. }) if !self.is_complete() => {
                JobOutcome::Drained { cancelled: *cancelled }
            }
            _ => JobOutcome::Complete,
        }
    }

    fn stop(&mut self, failures: Option<String>, turn: &mut EventContext) {
        if self.stopping.is_none() {
            let since_millis = turn.now.millis;
            let until_millis = since_millis + self.rules.drain_grace_millis;
            self.stopping = Some(ShutdownState { since_millis, until_millis, cancelled: 0, failures });
            turn.notify(CoreNotice::Draining { in_hand: self.leases.len() as u64 });
        }
    }

    fn failures(&self) -> impl Iterator<Item = (EndKind, u64)> {
        let counts = |(end, count): (&EndKind, &u64)| (*end != EndKind::Cancelled).then_some((*end, *count));
        self.tally.failed.iter().filter_map(counts)
    }
}
