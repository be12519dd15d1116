//! Evaluations: the job's own test of every n-th version of the weights, run between its training
//! trajectories and on one version.
//!
//! An evaluation begins when a worker runs a version that is due. While it is open it has priority,
//! its trajectories are leased only to workers that run its version, and newer weights wait: the
//! version ordered for policy workers stays the same until the evaluation is complete. Then the
//! newest version is ordered, and versions that were due in between are skipped. If newer weights
//! have waited for too long, no registered worker has run the version for as long, or the version
//! is withdrawn, the evaluation is *cut*: its leases are cancelled, problems not yet drawn are left
//! out, and ledger and log record the cut by name.

use furrow_rollout::{EndKind, Id};

use super::decision::EventContext;
use super::event::ReportedEnd;
use super::group_plan::EvaluationSchedule;
use super::notice::{CoreNotice, EvaluationResult};
use super::state::{Core, OpenEvaluation, WorkerEntry};
use crate::assign::WorkerCapacity;
use crate::groups::{OpenGroup, SlotAttempt};
use crate::lease::Lease;
use crate::ledger::{EvaluationProblem, EvaluationRow, Mutation, PolicyFacts};

impl OpenEvaluation {
    pub(super) fn from_row(row: &EvaluationRow) -> Option<Self> {
        let EvaluationRow { version, problems, drawn, scored, succeeded, .. } = *row;
        row.is_open().then_some(Self {
            version,
            problems,
            drawn,
            scored,
            succeeded,
            holds_since_millis: None,
            idle_since_millis: None,
        })
    }

    fn end(self, cut: Option<String>, turn: &mut EventContext) {
        let Self { version, problems, drawn, scored, succeeded, .. } = self;
        turn.commit(Mutation::EvaluationEnded { version, cut: cut.clone() });
        turn.notify(CoreNotice::EvaluationEnded(EvaluationResult {
            version,
            problems,
            drawn,
            scored,
            succeeded,
            cut,
        }));
    }
}

impl Core {
    /// Begins an evaluation where one is due.
    pub(super) fn begin_evaluation(&mut self, turn: &mut EventContext) {
        let Some(schedule) = self.plan.schedule() else { return };
        if self.evaluation.is_some() || self.is_admission_over() {
            return;
        }
        let version = self.newest_version.unwrap_or(0);
        if !self.is_due(version, schedule) || !self.any_worker_runs(version) {
            return;
        }
        let EvaluationSchedule { problems, .. } = schedule;
        self.evaluated = Some(version);
        self.evaluation = Some(OpenEvaluation {
            version,
            problems,
            drawn: 0,
            scored: 0,
            succeeded: 0,
            holds_since_millis: None,
            idle_since_millis: None,
        });
        let at_micros = turn.now.wall_micros;
        turn.commit(Mutation::EvaluationBegun { version, problems, at_micros });
        turn.notify(CoreNotice::EvaluationBegun { version, problems });
    }

    fn any_worker_runs(&self, version: i32) -> bool {
        self.policy_workers
            .iter()
            .any(|(id, entry)| self.may_serve(id) && serves_version(entry.offer.version, version))
    }

    /// The next attempt at a problem of the evaluation, on a worker that runs its version.
    pub(super) fn choose_problem(
        &mut self,
        turn: &mut EventContext,
    ) -> Option<(u64, SlotAttempt, PolicyFacts)> {
        let (version, is_drawn) =
            self.evaluation.as_ref().map(|open| (open.version, open.drawn == open.problems))?;
        let capacity = self.capacity_running(version);
        let in_open_group = |(index, group): (&u64, &OpenGroup)| {
            group.draw().problem?;
            let attempt = group.next_attempt()?;
            Some((*index, attempt, capacity.for_group(group.home())?))
        };
        if let Some(chosen) = self.groups.iter().find_map(in_open_group) {
            return Some(chosen);
        }
        let policy = capacity.for_group(None)?;
        if is_drawn {
            return None;
        }
        let index = self.open_problem(turn)?;
        let attempt = self.group(index).next_attempt()?;
        Some((index, attempt, policy))
    }

    fn open_problem(&mut self, turn: &mut EventContext) -> Option<u64> {
        let EvaluationSchedule { group_size, .. } = self.plan.schedule()?;
        let open = self.evaluation.as_mut()?;
        let problem = EvaluationProblem { version: open.version, index: open.drawn };
        open.drawn += 1;
        let drawn = self.plan.problem(problem.index);
        Some(self.open_group_of(drawn, Some(problem), (group_size, group_size), turn))
    }

    fn capacity_running(&self, version: i32) -> WorkerCapacity<'_> {
        let fits = |(id, entry): &(&Id<_>, &WorkerEntry<crate::assign::PolicyOffer>)| {
            self.may_serve(id) && serves_version(entry.offer.version, version)
        };
        let workers = self.policy_workers.iter().filter(fits).map(|(id, entry)| (id, &entry.offer));
        WorkerCapacity::new(workers, self.leases.iter().map(|lease| &lease.policy.worker))
    }

    /// The version a trajectory must stay on.
    pub(super) fn pinned_version(&self, group: u64) -> Option<i32> {
        let problem = self.groups.get(&group)?.draw().problem?;
        Some(problem.version)
    }

    /// Trajectories outside of evaluations that are leased or being scored.
    pub(super) fn training_in_flight(&self) -> u64 {
        let all = self.leases.len() + self.scoring.len();
        if self.evaluation.is_none() {
            return all as u64;
        }
        let is_training = |group: u64| self.pinned_version(group).is_none();
        let leases = self.leases.iter().filter(|lease| is_training(lease.group)).count();
        (leases + self.scoring.values().filter(|scoring| is_training(scoring.group)).count()) as u64
    }

    fn is_due(&self, version: i32, schedule: EvaluationSchedule) -> bool {
        let after = |last: i32| i64::from(last) + i64::from(schedule.every_versions);
        self.evaluated.is_none_or(|last| i64::from(version) >= after(last))
    }

    /// The highest version that workers may be ordered to run: the version under evaluation. A
    /// version whose evaluation is merely due sets no limit: versions may come faster than they are
    /// evaluated, and those that no worker runs are skipped.
    pub(super) fn version_limit(&self) -> Option<i32> {
        self.evaluation.as_ref().map(|open| open.version)
    }

    /// Why no worker runs a version, if an evaluation is the reason.
    pub(super) fn version_limit_reason(&self, version: i32) -> Option<String> {
        let open = self.evaluation.as_ref().filter(|open| version > open.version)?;
        let groups = self.groups.values().filter(|group| group.draw().problem.is_some());
        let undone = groups.filter(|group| !group.is_closed()).count() as u64;
        Some(format!(
            "it waits for the evaluation of version {}: {} of {} problems are done",
            open.version,
            open.drawn.saturating_sub(undone),
            open.problems
        ))
    }

    /// Turns one of the policy's own ends into a failure, where an evaluation's trajectory was not
    /// acted on its version alone.
    pub(super) fn reject_other_weights(&self, lease: &Lease, report: &ReportedEnd) -> Option<ReportedEnd> {
        let version = self.pinned_version(lease.group)?;
        let (oldest, newest) = lease.policy_versions.filter(|range| *range != (version, version))?;
        let reason =
            format!("it is of the evaluation of version {version} and was acted on {oldest} to {newest}");
        Some(ReportedEnd { end: EndKind::PolicyFault, reason, evidence_sha256: None, ..report.clone() })
    }

    /// Counts a trajectory of the evaluation that has its reward.
    pub(super) fn count_evaluated(&mut self, succeeded: bool) {
        if let Some(open) = &mut self.evaluation {
            open.scored += 1;
            open.succeeded += u64::from(succeeded);
        }
    }

    /// Uncounts trajectories that are no longer scored.
    pub(super) fn discount_evaluated(&mut self, succeeded: u64) {
        if let Some(open) = &mut self.evaluation {
            open.scored = open.scored.saturating_sub(1);
            open.succeeded = open.succeeded.saturating_sub(succeeded);
        }
    }

    /// Ends an evaluation when its last group has closed, so that newer weights need not wait any
    /// longer.
    pub(super) fn end_evaluation_if_done(&mut self, turn: &mut EventContext) {
        let is_drawn = self.evaluation.as_ref().is_some_and(|open| open.drawn == open.problems);
        let is_open = |group: &OpenGroup| group.draw().problem.is_some() && !group.is_closed();
        if is_drawn && !self.groups.values().any(is_open) {
            self.evaluation.take().into_iter().for_each(|complete| complete.end(None, turn));
        }
    }

    /// Cuts the evaluation when newer weights have waited for too long, or when no worker has run
    /// its version for too long. The absence of all policy workers does not cut it. An evaluation
    /// that is open when the coordinator stops continues with `--resume`.
    pub(super) fn cut_overdue_evaluation(&mut self, turn: &mut EventContext) {
        let Some(version) = self.version_limit().filter(|_| self.stopping.is_none()) else { return };
        let newest = self.versions.order(None).map_or(0, |order| order.version.0);
        let is_idle = !self.policy_workers.is_empty() && !self.any_worker_runs(version);
        let hold_millis = self.plan.schedule().map_or(0, |schedule| schedule.hold_millis);
        let Some(open) = &mut self.evaluation else { return };
        let newer_waited = elapsed_while(newest > version, &mut open.holds_since_millis, turn.now.millis);
        let idle = elapsed_while(is_idle, &mut open.idle_since_millis, turn.now.millis);
        let is_over = |lasted: Option<u64>| lasted.filter(|millis| *millis >= hold_millis);
        let what = match (is_over(newer_waited), is_over(idle)) {
            (Some(millis), _) => format!("version {newest} waited {millis} ms for it"),
            (None, Some(millis)) => format!("no policy worker ran version {version} for {millis} ms"),
            (None, None) => return,
        };
        self.cut_evaluation(format!("{what}, eval.hold_millis = {hold_millis}"), turn);
    }

    /// Ends the open evaluation before its time.
    pub(super) fn cut_evaluation(&mut self, why: String, turn: &mut EventContext) {
        let Some(cut) = self.evaluation.take() else { return };
        let is_open = |(_, group): &(&u64, &OpenGroup)| group.draw().problem.is_some() && !group.is_closed();
        let groups: Vec<u64> = self.groups.iter().filter(is_open).map(|(index, _)| *index).collect();
        for index in groups {
            self.group(index).give_up();
            self.cancel_rest(index, CUT_REASON, turn);
            self.close_if_settled(index, turn);
        }
        cut.end(Some(why), turn);
    }
}

/// Why a trajectory of a cut evaluation is cancelled.
const CUT_REASON: &str = "its evaluation was cut";

/// For how long a condition has held, if it holds now.
fn elapsed_while(is_so: bool, since_millis: &mut Option<u64>, now_millis: u64) -> Option<u64> {
    if !is_so {
        *since_millis = None;
        return None;
    }
    Some(now_millis - *since_millis.get_or_insert(now_millis))
}

/// Whether a worker that runs this serves a version; a policy without weights serves any.
pub(super) fn serves_version(own: Option<i32>, version: i32) -> bool {
    own.is_none_or(|own| own == version)
}
