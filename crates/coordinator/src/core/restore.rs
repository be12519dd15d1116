//! Start: the state a coordinator begins with, rebuilt from the ledger and the spool; and what was left to do.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use furrow_rollout::{Ancestry, End, Id, Trajectory};

use super::discards::Discards;
use super::evaluation::Evaluation;
use super::{Core, Decision, Effect, Now, Outgoing, Plan, Rules, Scoring, Tally, Turn};
use crate::groups::{Group, Home};
use crate::lease::{Lease, Leases};
use crate::ledger::{Ended, RunRow, Snapshot, Standing, Totals, TrajectoryRow, Verdict};
use crate::versions::Versions;

/// What the spool holds of one trajectory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spooled {
    /// Whole steps.
    pub steps: u32,
    /// Oldest and newest policy version among their tokens.
    pub policy_versions: Option<(i32, i32)>,
    /// SHA-256 of the encoded ending, if there is one.
    pub ending: Option<[u8; 32]>,
}

impl Core {
    /// Takes up a run where the ledger says it stands; a new run is one in which nothing happened. Each open assignment gets one
    /// whole term.
    pub fn start(
        rules: Rules,
        plan: Arc<dyn Plan>,
        (run, snapshot): (RunRow, Snapshot),
        spooled: &BTreeMap<Id<Trajectory>, Spooled>,
        now: Now,
    ) -> (Self, Decision) {
        let mut core = Self::empty(rules, plan, run, now);
        let mut turn = Turn::at(now);
        core.newest_version = Some(snapshot.versions.current()).filter(|version| *version > 0);
        core.versions = snapshot.versions.clone();
        core.evaluated = snapshot.evaluations.last().map(|row| row.version);
        core.evaluation = snapshot.evaluations.last().and_then(Evaluation::taken_up);
        for row in &snapshot.groups {
            let needed = match row.draw.problem {
                Some(_) => row.draw.group_size,
                None => core.plan.group_needs(),
            };
            let group = Group::new(Arc::new(row.draw.clone()), needed, now.millis);
            core.groups.insert(row.draw.index, group);
        }
        let indices: BTreeMap<_, _> =
            snapshot.groups.iter().map(|row| (row.draw.group_id.clone(), row.draw.index)).collect();
        for row in snapshot.trajectories {
            if let Some(index) = indices.get(&row.start.group_id) {
                let held = spooled.get(&row.start.trajectory_id).copied().unwrap_or_default();
                core.take_up(row, *index, held, &mut turn);
            }
        }
        for row in &snapshot.groups {
            core.take_up_group(row.draw.index, row.closed_at_micros, &mut turn);
        }
        core.tallies = snapshot.totals.tasks.clone();
        let closed_now = core.tally.groups_closed;
        core.tally = Tally::of(&snapshot.totals, core.unpublished.len() as u64);
        core.tally.groups_closed += closed_now;
        core.end_evaluation_if_done(&mut turn);
        core.stop_over_budget(&mut turn);
        core.finish_up(&mut turn);
        (core, turn.decision)
    }

    fn empty(rules: Rules, plan: Arc<dyn Plan>, run: RunRow, now: Now) -> Self {
        Self {
            leases: Leases::new(rules.fencing),
            settled_millis: now.millis + rules.lease_millis,
            rules,
            plan,
            run_id: run.run_id,
            epoch: run.epoch,
            next_token: run.next_token,
            next_group: run.next_group,
            next_draw: run.draws,
            groups: BTreeMap::new(),
            scoring: BTreeMap::new(),
            unpublished: BTreeMap::new(),
            env_workers: BTreeMap::new(),
            policy_workers: BTreeMap::new(),
            newest_version: None,
            versions: Versions::default(),
            behind: BTreeMap::new(),
            refusals: BTreeMap::new(),
            strangers: BTreeMap::new(),
            waiting: VecDeque::new(),
            ticked_millis: now.millis,
            disk_low: None,
            discards: Discards::default(),
            told_pause: None,
            stopping: None,
            shards_closing: false,
            over: false,
            tally: Tally::default(),
            tallies: BTreeMap::new(),
            evaluation: None,
            evaluated: None,
        }
    }

    fn take_up(&mut self, row: TrajectoryRow, index: u64, held: Spooled, turn: &mut Turn) {
        let start = &row.start;
        let home = Home { worker: start.policy.worker.clone(), kind: start.policy.kind };
        self.group(index).take(start.sample_index, home);
        self.newest_version = self.newest_version.max(start.policy.version);
        if let (Some(digest), true) = (held.ending, was_acknowledged(&row.standing)) {
            self.leases.recall(&start.trajectory_id, start.token, digest);
        }
        match row.standing.clone() {
            Standing::Assigned => self.lend_again(row, index, held, turn),
            Standing::Finished { ended, evidence_sha256 } => {
                self.score_from_start(row, index, ended, evidence_sha256, turn);
            }
            Standing::Scored { ended, verdict } => {
                // The ledger takes no score without a reward.
                let reward = verdict.score.reward.unwrap_or_default();
                self.group(index).score(start.sample_index, reward, ended.policy_versions);
                self.publish_again(row, index, ended, Some(verdict), turn);
            }
            Standing::Failed { ended } => {
                let (attempts_max, now_millis) = (self.rules.attempts_max, turn.now.millis);
                self.group(index).fail(start.sample_index, ended.end, attempts_max, now_millis);
                self.publish_again(row, index, ended, None, turn);
            }
        }
    }

    fn lend_again(&mut self, row: TrajectoryRow, group: u64, held: Spooled, turn: &Turn) {
        self.leases.lend(Lease {
            of: self.ancestry(&row),
            group,
            expires_millis: turn.now.millis + self.rules.lease_millis,
            policy: row.start.policy.clone(),
            steps: held.steps,
            policy_versions: held.policy_versions,
            start: row.start,
        });
    }

    fn score_from_start(
        &mut self,
        row: TrajectoryRow,
        group: u64,
        ended: Ended,
        evidence_sha256: [u8; 32],
        turn: &mut Turn,
    ) {
        let trajectory = row.start.trajectory_id.clone();
        let draw = self.group(group).draw().clone();
        let sample_index = row.start.sample_index;
        turn.then(Effect::Score { trajectory: trajectory.clone(), draw, sample_index });
        let of = self.ancestry(&row);
        let scoring =
            Scoring { start: row.start, of, group, ended, evidence_sha256, attempts: 1, again_millis: None };
        self.scoring.insert(trajectory, scoring);
    }

    fn publish_again(
        &mut self,
        row: TrajectoryRow,
        group: u64,
        ended: Ended,
        verdict: Option<Verdict>,
        turn: &mut Turn,
    ) {
        if !row.published {
            let (of, draw) = (self.ancestry(&row), self.group(group).draw().clone());
            self.publish(Outgoing { of, start: row.start, ended, verdict, draw }, turn);
        }
    }

    fn take_up_group(&mut self, index: u64, closed_at_micros: Option<i64>, turn: &mut Turn) {
        let Some(at_micros) = closed_at_micros else {
            return self.close_if_settled(index, turn);
        };
        let run_id = self.run_id.clone();
        let group = self.group(index);
        group.close(at_micros);
        if let Some(record) = group.record(&run_id) {
            turn.then(Effect::PublishGroup { record: Box::new(record) });
        }
    }

    fn ancestry(&self, row: &TrajectoryRow) -> Ancestry {
        Ancestry {
            run_id: self.run_id.clone(),
            group_id: row.start.group_id.clone(),
            sample_index: row.start.sample_index,
            attempt: row.start.attempt,
            trajectory_id: row.start.trajectory_id.clone(),
        }
    }
}

/// Whether the ending in the spool is what ended the trajectory. One that was spooled too late, when the lease was lost or taken back
/// already, was never acknowledged and must not be now.
fn was_acknowledged(standing: &Standing) -> bool {
    match standing {
        Standing::Assigned => false,
        Standing::Finished { .. } | Standing::Scored { .. } => true,
        Standing::Failed { ended } => !matches!(ended.end, End::LeaseLost | End::Cancelled),
    }
}

impl Tally {
    fn of(totals: &Totals, unpublished: u64) -> Self {
        let failed: BTreeMap<End, u64> = totals.failed.clone();
        let ended = totals.scored + failed.values().sum::<u64>();
        Self {
            scored: totals.scored,
            published: ended.saturating_sub(unpublished),
            failed,
            groups_closed: totals.groups_closed,
            reward_sum: totals.tasks.values().chain([&totals.evaluated]).map(|tally| tally.reward_sum).sum(),
            successes: totals.tasks.values().chain([&totals.evaluated]).map(|tally| tally.succeeded).sum(),
            training_judged: totals.tasks.values().map(|tally| tally.judged).sum(),
            training_successes: totals.tasks.values().map(|tally| tally.succeeded).sum(),
            steps: 0,
            evaluated: totals.evaluated.scored,
        }
    }
}
