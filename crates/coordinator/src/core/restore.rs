//! Start: rebuilds the state of a coordinator from the ledger and the spool, and returns what was
//! left to do.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use furrow_rollout::{EndKind, Id, Trajectory, TrajectoryAncestry};

use super::decision::{Decision, Effect, EndedTrajectory, EventContext};
use super::event::EventTime;
use super::group_plan::GroupPlan;
use super::rules::CoreRules;
use super::state::{Core, DiscardCounts, OpenEvaluation, PendingScore, RunTally};
use crate::groups::{GroupHome, OpenGroup};
use crate::lease::{Lease, LeaseTable};
use crate::lease_secret::SecretSource;
use crate::ledger::{
    LedgerSnapshot, RunRow, RunTotals, TimedScore, TrajectoryEnd, TrajectoryRow, TrajectoryStanding,
};
use crate::versions::VersionTable;

/// What the spool holds of one trajectory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpoolProgress {
    pub steps: u32,
    /// Oldest and newest policy version among their tokens.
    pub policy_versions: Option<(i32, i32)>,
    /// SHA-256 of the encoded ending, if there is one.
    pub ending: Option<[u8; 32]>,
}

impl Core {
    /// Continues a run from the state in its ledger; a new run has an empty one. Each open
    /// assignment gets one whole term.
    pub fn start(
        rules: CoreRules,
        plan: Arc<dyn GroupPlan>,
        (run, snapshot): (RunRow, LedgerSnapshot),
        spooled: &BTreeMap<Id<Trajectory>, SpoolProgress>,
        secrets: SecretSource,
        now: EventTime,
    ) -> (Self, Decision) {
        let mut core = Self::empty(rules, plan, (run, secrets), now);
        let mut turn = EventContext::at(now);
        core.newest_version = Some(snapshot.versions.current()).filter(|version| *version > 0);
        core.versions = snapshot.versions.clone();
        core.evaluated = snapshot.evaluations.last().map(|row| row.version);
        core.evaluation = snapshot.evaluations.last().and_then(OpenEvaluation::from_row);
        for row in &snapshot.groups {
            let needed = match row.draw.problem {
                Some(_) => row.draw.group_size,
                None => core.plan.group_needs(),
            };
            let group = OpenGroup::new(Arc::new(row.draw.clone()), needed, now.millis);
            core.groups.insert(row.draw.index, group);
        }
        let indices: BTreeMap<_, _> =
            snapshot.groups.iter().map(|row| (row.draw.group_id.clone(), row.draw.index)).collect();
        for row in snapshot.trajectories {
            if let Some(index) = indices.get(&row.start.group_id) {
                let progress = spooled.get(&row.start.trajectory_id).copied().unwrap_or_default();
                core.restore_trajectory(row, *index, progress, &mut turn);
            }
        }
        for row in &snapshot.groups {
            core.restore_group(row.draw.index, row.closed_at_micros, &mut turn);
        }
        core.tallies = snapshot.totals.tasks.clone();
        let closed_now = core.tally.groups_closed;
        core.tally = RunTally::of(&snapshot.totals, core.uncommitted.len() as u64);
        core.tally.groups_closed += closed_now;
        core.scored_before = core.tally.scored;
        core.end_leases_without_secrets(&mut turn);
        core.end_evaluation_if_done(&mut turn);
        core.stop_over_budget(&mut turn);
        core.finish_if_done(&mut turn);
        (core, turn.decision)
    }

    /// A release before this one gave its leases no secrets, so no call can prove that it is their
    /// holder's. Their workers speak an older protocol and cannot go on; the attempts are made
    /// again.
    fn end_leases_without_secrets(&mut self, turn: &mut EventContext) {
        for lease in self.leases.take_where(|lease| lease.start.secret.is_none()) {
            let reason = "leased by an earlier release, which gave no secret to its worker";
            self.fail_lease(lease, EndKind::Cancelled, reason, turn);
        }
    }

    fn empty(
        rules: CoreRules,
        plan: Arc<dyn GroupPlan>,
        (run, secrets): (RunRow, SecretSource),
        now: EventTime,
    ) -> Self {
        Self {
            leases: LeaseTable::new(rules.fencing),
            settled_millis: now.millis + rules.lease_millis,
            rules,
            plan,
            run_id: run.run_id,
            epoch: run.epoch,
            next_token: run.next_token,
            secrets,
            next_group: run.next_group,
            next_draw: run.draws,
            groups: BTreeMap::new(),
            scoring: BTreeMap::new(),
            uncommitted: BTreeMap::new(),
            env_workers: BTreeMap::new(),
            policy_workers: BTreeMap::new(),
            newest_version: None,
            versions: VersionTable::default(),
            behind: BTreeMap::new(),
            refusals: BTreeMap::new(),
            broken: BTreeMap::new(),
            strangers: BTreeMap::new(),
            waiting: VecDeque::new(),
            ticked_millis: now.millis,
            disk_low: None,
            discards: DiscardCounts::default(),
            reported_pause: None,
            stopping: None,
            shards_closing: false,
            over: false,
            tally: RunTally::default(),
            began_millis: now.millis,
            scored_before: 0,
            tallies: BTreeMap::new(),
            evaluation: None,
            evaluated: None,
        }
    }

    fn restore_trajectory(
        &mut self,
        row: TrajectoryRow,
        index: u64,
        progress: SpoolProgress,
        turn: &mut EventContext,
    ) {
        let start = &row.start;
        let home = GroupHome { worker: start.policy.worker.clone(), kind: start.policy.kind };
        self.group(index).take(start.sample_index, home);
        self.newest_version = self.newest_version.max(start.policy.version);
        if let (Some(digest), true) = (progress.ending, was_acknowledged(&row.standing)) {
            self.leases.restore_acknowledged(start, digest);
        }
        match row.standing.clone() {
            TrajectoryStanding::Assigned => self.restore_lease(row, index, progress, turn),
            TrajectoryStanding::Finished { ended, evidence_sha256 } => {
                self.restart_scoring(row, index, ended, evidence_sha256, turn);
            }
            TrajectoryStanding::Scored { ended, verdict } => {
                // The ledger accepts no score without a reward.
                let reward = verdict.score.reward.unwrap_or_default();
                self.group(index).score(start.sample_index, reward, ended.policy_versions);
                self.commit_again(row, index, ended, Some(verdict), turn);
            }
            TrajectoryStanding::Failed { ended } => {
                let attempts_max = self.rules.attempts_max;
                let now_millis = turn.now.millis;
                self.group(index).fail(start.sample_index, ended.end, attempts_max, now_millis);
                self.commit_again(row, index, ended, None, turn);
            }
        }
    }

    fn restore_lease(
        &mut self,
        row: TrajectoryRow,
        group: u64,
        progress: SpoolProgress,
        turn: &EventContext,
    ) {
        self.leases.insert(Lease {
            of: self.ancestry(&row),
            group,
            expires_millis: turn.now.millis + self.rules.lease_millis,
            policy: row.start.policy.clone(),
            steps: progress.steps,
            policy_versions: progress.policy_versions,
            start: row.start,
        });
    }

    fn restart_scoring(
        &mut self,
        row: TrajectoryRow,
        group: u64,
        ended: TrajectoryEnd,
        evidence_sha256: [u8; 32],
        turn: &mut EventContext,
    ) {
        let trajectory = row.start.trajectory_id.clone();
        let draw = self.group(group).draw().clone();
        let sample_index = row.start.sample_index;
        turn.then(Effect::Score { trajectory: trajectory.clone(), draw, sample_index });
        let of = self.ancestry(&row);
        let scoring = PendingScore {
            start: row.start,
            of,
            group,
            ended,
            evidence_sha256,
            attempts: 1,
            retry_at_millis: None,
        };
        self.scoring.insert(trajectory, scoring);
    }

    fn commit_again(
        &mut self,
        row: TrajectoryRow,
        group: u64,
        ended: TrajectoryEnd,
        verdict: Option<TimedScore>,
        turn: &mut EventContext,
    ) {
        if !row.committed {
            let of = self.ancestry(&row);
            let draw = self.group(group).draw().clone();
            self.commit_trajectory(EndedTrajectory { of, start: row.start, ended, verdict, draw }, turn);
        }
    }

    fn restore_group(&mut self, index: u64, closed_at_micros: Option<i64>, turn: &mut EventContext) {
        let Some(at_micros) = closed_at_micros else {
            return self.close_if_settled(index, turn);
        };
        let run_id = self.run_id.clone();
        let group = self.group(index);
        group.close(at_micros);
        if let Some(record) = group.record(&run_id) {
            turn.then(Effect::CommitGroup { record: Box::new(record) });
        }
    }

    fn ancestry(&self, row: &TrajectoryRow) -> TrajectoryAncestry {
        TrajectoryAncestry {
            run_id: self.run_id.clone(),
            group_id: row.start.group_id.clone(),
            sample_index: row.start.sample_index,
            attempt: row.start.attempt,
            trajectory_id: row.start.trajectory_id.clone(),
        }
    }
}

/// Whether the ending in the spool is the one that ended the trajectory. An ending that was spooled
/// after its lease was lost or reclaimed was never acknowledged and must not be now.
fn was_acknowledged(standing: &TrajectoryStanding) -> bool {
    match standing {
        TrajectoryStanding::Assigned => false,
        TrajectoryStanding::Finished { .. } | TrajectoryStanding::Scored { .. } => true,
        TrajectoryStanding::Failed { ended } => !matches!(ended.end, EndKind::LeaseLost | EndKind::Cancelled),
    }
}

impl RunTally {
    fn of(totals: &RunTotals, uncommitted: u64) -> Self {
        let failed: BTreeMap<EndKind, u64> = totals.failed.clone();
        let ended = totals.scored + failed.values().sum::<u64>();
        Self {
            scored: totals.scored,
            committed: ended.saturating_sub(uncommitted),
            failed,
            groups_closed: totals.groups_closed,
            reward_sum: totals.tasks.values().chain([&totals.evaluated]).map(|tally| tally.reward_sum).sum(),
            successes: totals.tasks.values().chain([&totals.evaluated]).map(|tally| tally.succeeded).sum(),
            training_success_known: totals.tasks.values().map(|tally| tally.success_known).sum(),
            training_successes: totals.tasks.values().map(|tally| tally.succeeded).sum(),
            steps: 0,
            evaluated: totals.evaluated.scored,
        }
    }
}
