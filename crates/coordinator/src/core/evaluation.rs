//! Evaluations: every so many versions of the weights the job's own test, between its training trajectories and on one version.
//!
//! An evaluation begins the moment a worker runs a version that is due. While it is under way it goes first, no trajectory of it is lent
//! to a worker that runs another version, and newer weights wait: what policy workers shall run stays as it is until the evaluation is
//! complete. Then the newest is ordered, and what was due in between is passed over. If newer weights have waited for too long, or no
//! worker that is there has run its version for as long, it is *cut*: what is lent of it is cancelled, what is not drawn is left out, and
//! ledger and log say so by name.

use furrow_rollout::{End, Id};

use super::{Core, Notice, Reported, Turn};
use crate::assign::Rooms;
use crate::groups::{Attempt, Group};
use crate::lease::Lease;
use crate::ledger::{EvaluationRow, Mutation, PolicyFacts, Problem};

/// How a job is evaluated while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    /// Versions from one evaluation to the next.
    pub every_versions: u32,
    /// Problems of each: the same ones every time.
    pub problems: u64,
    /// Trajectories of each problem.
    pub group_size: u32,
    /// How long newer weights wait for one that is under way, and it for a worker that runs its version.
    pub hold_millis: u64,
}

/// The one that is under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Evaluation {
    version: i32,
    problems: u64,
    drawn: u64,
    scored: u64,
    succeeded: u64,
    /// Since when newer weights wait. A restarted coordinator gives it one whole term.
    holds_since_millis: Option<u64>,
    /// Since when policy workers are there and none of them runs the version; after a restart one whole term, too.
    idle_since_millis: Option<u64>,
}

/// How an evaluation ended, for those who are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evaluated {
    /// The version.
    pub version: i32,
    /// Problems it was planned with.
    pub problems: u64,
    /// Problems that were drawn.
    pub drawn: u64,
    /// Trajectories with a reward.
    pub scored: u64,
    /// Those that count as solved.
    pub succeeded: u64,
    /// Why it ended before it was complete.
    pub cut: Option<String>,
}

impl Evaluation {
    pub(super) fn taken_up(row: &EvaluationRow) -> Option<Self> {
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

    fn end(self, cut: Option<String>, turn: &mut Turn) {
        let Self { version, problems, drawn, scored, succeeded, .. } = self;
        turn.commit(Mutation::EvaluationEnded { version, cut: cut.clone() });
        turn.tell(Notice::EvaluationEnded(Evaluated { version, problems, drawn, scored, succeeded, cut }));
    }
}

impl Core {
    /// Begins an evaluation where one is due.
    pub(super) fn begin_evaluation(&mut self, turn: &mut Turn) {
        let Some(schedule) = self.plan.schedule() else { return };
        if self.evaluation.is_some() || self.no_more_work() {
            return;
        }
        let version = self.newest_version.unwrap_or(0);
        if !self.is_due(version, schedule) || !self.somebody_runs(version) {
            return;
        }
        let Schedule { problems, .. } = schedule;
        self.evaluated = Some(version);
        self.evaluation = Some(Evaluation {
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
        turn.tell(Notice::EvaluationBegun { version, problems });
    }

    fn somebody_runs(&self, version: i32) -> bool {
        self.policy_workers.iter().any(|(id, seat)| self.may_serve(id) && runs(seat.offer.version, version))
    }

    /// The next attempt at a problem of the evaluation, on a worker that runs its version.
    pub(super) fn choose_problem(&mut self, turn: &mut Turn) -> Option<(u64, Attempt, PolicyFacts)> {
        let (version, is_drawn) =
            self.evaluation.as_ref().map(|open| (open.version, open.drawn == open.problems))?;
        let rooms = self.rooms_running(version);
        let in_open_group = |(index, group): (&u64, &Group)| {
            group.draw().problem?;
            let attempt = group.next_attempt()?;
            Some((*index, attempt, rooms.for_group(group.home())?))
        };
        if let Some(chosen) = self.groups.iter().find_map(in_open_group) {
            return Some(chosen);
        }
        let policy = rooms.for_group(None)?;
        if is_drawn {
            return None;
        }
        let index = self.open_problem(turn)?;
        let attempt = self.group(index).next_attempt()?;
        Some((index, attempt, policy))
    }

    fn open_problem(&mut self, turn: &mut Turn) -> Option<u64> {
        let Schedule { group_size, .. } = self.plan.schedule()?;
        let open = self.evaluation.as_mut()?;
        let problem = Problem { version: open.version, index: open.drawn };
        open.drawn += 1;
        let drawn = self.plan.problem(problem.index);
        Some(self.open_group_of(drawn, Some(problem), (group_size, group_size), turn))
    }

    fn rooms_running(&self, version: i32) -> Rooms<'_> {
        let fits = |(id, seat): &(&Id<_>, &super::Seat<crate::assign::PolicyOffer>)| {
            self.may_serve(id) && runs(seat.offer.version, version)
        };
        let workers = self.policy_workers.iter().filter(fits).map(|(id, seat)| (id, &seat.offer));
        Rooms::new(workers, self.leases.iter().map(|lease| &lease.policy.worker))
    }

    /// The version a trajectory must stay on.
    pub(super) fn kept_to(&self, group: u64) -> Option<i32> {
        let problem = self.groups.get(&group)?.draw().problem?;
        Some(problem.version)
    }

    /// Trajectories that are lent or being scored and no evaluation's.
    pub(super) fn training(&self) -> u64 {
        let all = self.leases.len() + self.scoring.len();
        if self.evaluation.is_none() {
            return all as u64;
        }
        let is_training = |group: u64| self.kept_to(group).is_none();
        let leases = self.leases.iter().filter(|lease| is_training(lease.group)).count();
        (leases + self.scoring.values().filter(|scoring| is_training(scoring.group)).count()) as u64
    }

    fn is_due(&self, version: i32, schedule: Schedule) -> bool {
        let after = |last: i32| i64::from(last) + i64::from(schedule.every_versions);
        self.evaluated.is_none_or(|last| i64::from(version) >= after(last))
    }

    /// What workers shall run at most: the version under evaluation. One whose evaluation is due holds nothing: versions may come faster
    /// than they are evaluated, and then those that nobody runs are passed over.
    pub(super) fn held_version(&self) -> Option<i32> {
        self.evaluation.as_ref().map(|open| open.version)
    }

    /// Why a version is run by nobody, if an evaluation is why.
    pub(super) fn why_held(&self, version: i32) -> Option<String> {
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

    /// What an end of the policy's own comes to in an evaluation, where it was not acted on the version alone.
    pub(super) fn on_other_weights(&self, lease: &Lease, report: &Reported) -> Option<Reported> {
        let version = self.kept_to(lease.group)?;
        let (oldest, newest) = lease.policy_versions.filter(|range| *range != (version, version))?;
        let reason =
            format!("it is of the evaluation of version {version} and was acted on {oldest} to {newest}");
        Some(Reported { end: End::PolicyFault, reason, evidence_sha256: None, ..report.clone() })
    }

    /// A trajectory of the evaluation has its reward.
    pub(super) fn count_evaluated(&mut self, succeeded: bool) {
        if let Some(open) = &mut self.evaluation {
            open.scored += 1;
            open.succeeded += u64::from(succeeded);
        }
    }

    /// What was counted is no longer scored.
    pub(super) fn discount_evaluated(&mut self, succeeded: u64) {
        if let Some(open) = &mut self.evaluation {
            open.scored = open.scored.saturating_sub(1);
            open.succeeded = open.succeeded.saturating_sub(succeeded);
        }
    }

    /// Says when the last group of an evaluation has closed: newer weights need wait no longer.
    pub(super) fn end_evaluation_if_done(&mut self, turn: &mut Turn) {
        let is_drawn = self.evaluation.as_ref().is_some_and(|open| open.drawn == open.problems);
        let is_open = |group: &Group| group.draw().problem.is_some() && !group.is_closed();
        if is_drawn && !self.groups.values().any(is_open) {
            self.evaluation.take().into_iter().for_each(|complete| complete.end(None, turn));
        }
    }

    /// Newer weights wait for it, and it for a worker that runs its version, but not for ever. Where no policy worker is there at all, the
    /// job waits and not the evaluation; and one that is open when the coordinator stops goes on with `--resume`.
    pub(super) fn cut_overdue_evaluation(&mut self, turn: &mut Turn) {
        let Some(version) = self.held_version().filter(|_| self.stopping.is_none()) else { return };
        let newest = self.versions.order(None).map_or(0, |order| order.version.0);
        let is_idle = !self.policy_workers.is_empty() && !self.somebody_runs(version);
        let hold_millis = self.plan.schedule().map_or(0, |schedule| schedule.hold_millis);
        let Some(open) = &mut self.evaluation else { return };
        let held = lasted(newest > version, &mut open.holds_since_millis, turn.now.millis);
        let idle = lasted(is_idle, &mut open.idle_since_millis, turn.now.millis);
        let is_over = |lasted: Option<u64>| lasted.filter(|millis| *millis >= hold_millis);
        let what = match (is_over(held), is_over(idle)) {
            (Some(millis), _) => format!("version {newest} waited {millis} ms for it"),
            (None, Some(millis)) => format!("no policy worker ran version {version} for {millis} ms"),
            (None, None) => return,
        };
        let why = format!("{what}, eval.hold_millis = {hold_millis}");
        let Some(cut) = self.evaluation.take() else { return };
        let is_open = |(_, group): &(&u64, &Group)| group.draw().problem.is_some() && !group.is_closed();
        let groups: Vec<u64> = self.groups.iter().filter(is_open).map(|(index, _)| *index).collect();
        for index in groups {
            self.group(index).give_up();
            self.cancel_rest(index, CUT, turn);
            self.close_if_settled(index, turn);
        }
        cut.end(Some(why), turn);
    }
}

/// Why a trajectory of a cut evaluation is cancelled.
const CUT: &str = "its evaluation was cut";

/// For how long something has been so, if it is so now.
fn lasted(is_so: bool, since_millis: &mut Option<u64>, now_millis: u64) -> Option<u64> {
    if !is_so {
        *since_millis = None;
        return None;
    }
    Some(now_millis - *since_millis.get_or_insert(now_millis))
}

/// Whether a worker that runs this serves a version; a policy without weights serves any.
pub(super) fn runs(own: Option<i32>, version: i32) -> bool {
    own.is_none_or(|own| own == version)
}
