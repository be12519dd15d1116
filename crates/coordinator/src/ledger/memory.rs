//! The ledger in memory: the rules in plain Rust, for simulation and as the reference for the
//! others.

use std::collections::{BTreeMap, HashMap};

use furrow_records::WrittenFile;
use furrow_rollout::{Group, Id, Shard, Trajectory};

use super::{
    CommittedShard, EvaluationRow, EvaluationStanding, GroupRow, Ledger, LedgerError, LedgerRefusal,
    LedgerSnapshot, Mutation, RunOpening, RunRow, RunTotals, ShardOpening, ShardPhase, ShardRow, TaskDraw,
    TimedScore, TrajectoryEnd, TrajectoryFate, TrajectoryRow, TrajectoryStanding, TrajectoryStart,
    VersionTable, expect_next, may_begin, may_draw, may_end,
};

/// Loses everything when dropped.
#[derive(Debug, Default)]
pub struct MemoryLedger {
    state: LedgerState,
    committed: Vec<Mutation>,
}

#[derive(Debug, Default)]
struct LedgerState {
    run: Option<RunRow>,
    groups: BTreeMap<u64, GroupState>,
    group_index: HashMap<Id<Group>, u64>,
    trajectories: HashMap<Id<Trajectory>, TrajectoryRow>,
    shards: BTreeMap<Id<Shard>, ShardState>,
    versions: VersionTable,
    evaluations: Vec<EvaluationRow>,
}

#[derive(Debug)]
struct GroupState {
    row: GroupRow,
    attempts: Vec<Id<Trajectory>>,
}

#[derive(Debug)]
struct ShardState {
    row: ShardRow,
    phase: ShardPhase,
}

impl Ledger for MemoryLedger {
    fn commit(&mut self, mutations: &[Mutation]) -> Result<(), LedgerError> {
        for mutation in mutations {
            if let Err(refusal) = self.state.apply(mutation) {
                self.roll_back();
                return Err(refusal);
            }
        }
        self.committed.extend_from_slice(mutations);
        Ok(())
    }

    fn load(&mut self) -> Result<LedgerSnapshot, LedgerError> {
        Ok(self.state.snapshot())
    }

    fn fate(&mut self, trajectory: &Id<Trajectory>) -> Result<Option<TrajectoryFate>, LedgerError> {
        Ok(self.state.trajectories.get(trajectory).map(|row| match row.standing {
            _ if row.committed => TrajectoryFate::Committed,
            TrajectoryStanding::Assigned => TrajectoryFate::Open,
            _ => TrajectoryFate::Ended,
        }))
    }

    fn shard_of(&mut self, trajectory: &Id<Trajectory>) -> Result<Option<Id<Shard>>, LedgerError> {
        Ok(self.state.trajectories.get(trajectory).and_then(|row| row.shard_id.clone()))
    }

    fn committed_shards(&mut self, from: u64) -> Result<Vec<CommittedShard>, LedgerError> {
        let committed = self.state.shards.values().filter_map(|shard| match shard.phase {
            ShardPhase::Committed { manifest_version } if manifest_version >= from => Some(CommittedShard {
                shard_id: shard.row.shard_id.clone(),
                manifest_version,
                files: shard.row.files.clone().unwrap_or_default(),
                replaces: shard.row.replaces.clone(),
            }),
            _ => None,
        });
        let mut committed: Vec<_> = committed.collect();
        committed.sort_by_key(|shard| shard.manifest_version);
        Ok(committed)
    }

    fn newest_commit(&mut self) -> Result<u64, LedgerError> {
        Ok(self.committed_shards(0)?.last().map_or(0, |shard| shard.manifest_version))
    }

    fn shard_phase(&mut self, shard: &Id<Shard>) -> Result<Option<ShardPhase>, LedgerError> {
        Ok(self.state.shards.get(shard).map(|shard| shard.phase))
    }
}

impl MemoryLedger {
    /// A refusal is rare and fatal, so rebuilding from the log is fast enough.
    fn roll_back(&mut self) {
        self.state = LedgerState::default();
        for mutation in &self.committed {
            self.state.apply(mutation).expect("a committed mutation is accepted again");
        }
    }
}

impl LedgerState {
    fn apply(&mut self, mutation: &Mutation) -> Result<(), LedgerError> {
        let refuse = |why| mutation.refused(why);
        if let Some(flaw) = mutation.flaw() {
            return Err(refuse(flaw));
        }
        if let Mutation::RunOpened(opening) = mutation {
            return self.open_run(opening);
        }
        if self.run.is_none() {
            return Err(refuse(LedgerRefusal::NoRun));
        }
        match mutation {
            Mutation::RunOpened(_) => Ok(()),
            Mutation::GroupDrawn { draw, draws } => self.draw(draw, *draws),
            Mutation::Assigned(start) => self.assign(start),
            Mutation::Finished { trajectory_id, token, ended, evidence_sha256 } => {
                self.finish(trajectory_id, *token, ended, *evidence_sha256)
            }
            Mutation::Scored { trajectory_id, verdict } => self.score(trajectory_id, verdict),
            Mutation::Failed { trajectory_id, ended } => self.fail(trajectory_id, ended),
            Mutation::RecordLost { trajectory_id, ended } => self.lose_record(trajectory_id, ended),
            Mutation::GroupClosed { group_id, at_micros } => self.close(group_id, *at_micros),
            Mutation::ShardOpened(opening) => self.open_shard(opening),
            Mutation::ShardWritten { shard_id, files } => self.write_shard(shard_id, files),
            Mutation::ShardCommitted { shard_id, manifest_version } => {
                self.commit_shard(shard_id, *manifest_version)
            }
            Mutation::ShardAbandoned { shard_id } => self.abandon_shard(shard_id),
            Mutation::VersionProposed(row) => self.versions.propose(row.clone()).map_err(LedgerRefusal::from),
            Mutation::VersionTaken { version, weights_sha256 } => {
                self.versions.take(*version, weights_sha256).map_err(LedgerRefusal::from)
            }
            Mutation::VersionRefused { version, reason } => {
                self.versions.refuse(*version, reason).map_err(LedgerRefusal::from)
            }
            Mutation::VersionWithdrawn { version, reason } => {
                self.versions.withdraw(*version, reason).map_err(LedgerRefusal::from)
            }
            Mutation::EvaluationBegun { version, problems, at_micros } => {
                self.begin_evaluation(*version, *problems, *at_micros)
            }
            Mutation::EvaluationEnded { version, cut } => self.end_evaluation(*version, cut.as_ref()),
        }
        .map_err(refuse)
    }

    fn open_run(&mut self, opening: &RunOpening) -> Result<(), LedgerError> {
        let Some(run) = &mut self.run else {
            self.run = Some(RunRow::first(opening));
            return Ok(());
        };
        run.check_same(opening)?;
        run.job_sha256 = opening.job_sha256;
        run.epoch += 1;
        Ok(())
    }

    fn draw(&mut self, draw: &TaskDraw, draws: u64) -> Result<(), LedgerRefusal> {
        let run = self.run.as_mut().ok_or(LedgerRefusal::NoRun)?;
        expect_next("group", run.next_group, draw.index)?;
        if draws < run.draws {
            return Err(LedgerRefusal::DrawsWentBack { drawn: run.draws, got: draws });
        }
        if self.group_index.contains_key(&draw.group_id) {
            return Err(LedgerRefusal::Exists { what: "group" });
        }
        if let Some(problem) = draw.problem {
            may_draw(self.evaluations.last(), problem)?;
            let none = LedgerRefusal::NoEvaluation { version: problem.version };
            self.evaluations.last_mut().ok_or(none)?.drawn += 1;
        }
        run.next_group += 1;
        run.draws = draws;
        self.group_index.insert(draw.group_id.clone(), draw.index);
        let row = GroupRow { draw: draw.clone(), closed_at_micros: None, shard_id: None };
        self.groups.insert(draw.index, GroupState { row, attempts: Vec::new() });
        Ok(())
    }

    fn assign(&mut self, start: &TrajectoryStart) -> Result<(), LedgerRefusal> {
        self.check_slot(start)?;
        let run = self.run.as_mut().ok_or(LedgerRefusal::NoRun)?;
        expect_next("token", run.next_token, start.token)?;
        if self.trajectories.contains_key(&start.trajectory_id) {
            return Err(LedgerRefusal::Exists { what: "trajectory" });
        }
        run.next_token += 1;
        self.group(&start.group_id)?.attempts.push(start.trajectory_id.clone());
        let row = TrajectoryRow {
            start: start.clone(),
            standing: TrajectoryStanding::Assigned,
            shard_id: None,
            committed: false,
        };
        self.trajectories.insert(start.trajectory_id.clone(), row);
        Ok(())
    }

    fn check_slot(&mut self, start: &TrajectoryStart) -> Result<(), LedgerRefusal> {
        let group = self.group(&start.group_id)?;
        if group.row.closed_at_micros.is_some() {
            return Err(LedgerRefusal::GroupClosed);
        }
        if start.sample_index >= group.row.draw.group_size {
            return Err(LedgerRefusal::NoSlot { slot: start.sample_index });
        }
        let attempts = group.attempts.clone();
        let before: Vec<_> = attempts
            .iter()
            .filter_map(|id| self.trajectories.get(id))
            .filter(|row| row.start.sample_index == start.sample_index)
            .collect();
        if before.len() != start.attempt as usize {
            let next = before.len() as u64;
            return Err(LedgerRefusal::AttemptOutOfOrder { next, got: start.attempt });
        }
        match before.iter().find(|row| !matches!(row.standing, TrajectoryStanding::Failed { .. })) {
            Some(row) => Err(LedgerRefusal::SlotTaken { trajectory: row.start.trajectory_id.to_string() }),
            None => Ok(()),
        }
    }

    fn finish(
        &mut self,
        id: &Id<Trajectory>,
        token: u64,
        ended: &TrajectoryEnd,
        evidence_sha256: [u8; 32],
    ) -> Result<(), LedgerRefusal> {
        let row = self.trajectory(id)?;
        if row.start.token != token {
            return Err(LedgerRefusal::NotLeased);
        }
        match row.standing {
            TrajectoryStanding::Assigned => {
                row.standing = TrajectoryStanding::Finished { ended: ended.clone(), evidence_sha256 }
            }
            _ => return Err(LedgerRefusal::NotLeased),
        }
        Ok(())
    }

    fn score(&mut self, id: &Id<Trajectory>, verdict: &TimedScore) -> Result<(), LedgerRefusal> {
        let row = self.trajectory(id)?;
        let TrajectoryStanding::Finished { ended, evidence_sha256 } = &row.standing else {
            return Err(LedgerRefusal::NotAwaitingScore);
        };
        if *evidence_sha256 != verdict.score.evidence_sha256 {
            return Err(LedgerRefusal::OtherEvidence);
        }
        row.standing = TrajectoryStanding::Scored { ended: ended.clone(), verdict: verdict.clone() };
        Ok(())
    }

    fn begin_evaluation(&mut self, version: i32, problems: u64, at_micros: i64) -> Result<(), LedgerRefusal> {
        may_begin(self.evaluations.last(), version)?;
        let standing = EvaluationStanding::Open;
        let row = EvaluationRow { version, problems, drawn: 0, scored: 0, succeeded: 0, standing, at_micros };
        self.evaluations.push(row);
        Ok(())
    }

    fn end_evaluation(&mut self, version: i32, cut: Option<&String>) -> Result<(), LedgerRefusal> {
        may_end(self.evaluations.last(), version, cut.is_some())?;
        let is_open = |group: &&GroupState| {
            let of = group.row.draw.problem.map(|problem| problem.version);
            of == Some(version) && group.row.closed_at_micros.is_none()
        };
        if let Some(open) = self.groups.values().find(is_open) {
            return Err(LedgerRefusal::EvaluatedGroupOpen { group: open.row.draw.group_id.to_string() });
        }
        let row = self.evaluations.last_mut().ok_or(LedgerRefusal::NoEvaluation { version })?;
        row.standing = match cut {
            None => EvaluationStanding::Complete,
            Some(reason) => EvaluationStanding::Cut { reason: reason.clone() },
        };
        Ok(())
    }

    /// All evaluations, with the sums over their trajectories.
    fn evaluations(&self) -> Vec<EvaluationRow> {
        let mut rows = self.evaluations.clone();
        for group in self.groups.values() {
            let Some(problem) = group.row.draw.problem else { continue };
            let row = rows.iter_mut().find(|row| row.version == problem.version);
            let Some(row) = row else { continue };
            for id in &group.attempts {
                if let TrajectoryStanding::Scored { verdict, .. } = &self.trajectories[id].standing {
                    row.scored += 1;
                    row.succeeded += u64::from(verdict.score.success == Some(true));
                }
            }
        }
        rows
    }

    fn fail(&mut self, id: &Id<Trajectory>, ended: &TrajectoryEnd) -> Result<(), LedgerRefusal> {
        let row = self.trajectory(id)?;
        if !row.standing.is_open() {
            return Err(LedgerRefusal::EndedAlready);
        }
        row.standing = TrajectoryStanding::Failed { ended: ended.clone() };
        Ok(())
    }

    fn lose_record(&mut self, id: &Id<Trajectory>, ended: &TrajectoryEnd) -> Result<(), LedgerRefusal> {
        let row = self.trajectory(id)?;
        if matches!(row.standing, TrajectoryStanding::Failed { .. }) || row.shard_id.is_some() {
            return Err(LedgerRefusal::FailedOrInShard);
        }
        row.standing = TrajectoryStanding::Failed { ended: ended.clone() };
        Ok(())
    }

    fn close(&mut self, id: &Id<Group>, at_micros: i64) -> Result<(), LedgerRefusal> {
        let attempts = self.group(id)?.attempts.clone();
        if let Some(open) = attempts.iter().find(|id| self.trajectories[*id].standing.is_open()) {
            return Err(LedgerRefusal::AttemptOpen { trajectory: open.to_string() });
        }
        let row = &mut self.group(id)?.row;
        if row.closed_at_micros.is_some() {
            return Err(LedgerRefusal::GroupNotOpen);
        }
        row.closed_at_micros = Some(at_micros);
        Ok(())
    }

    fn open_shard(&mut self, opening: &ShardOpening) -> Result<(), LedgerRefusal> {
        let next = self.run.as_ref().ok_or(LedgerRefusal::NoRun)?.next_shard;
        expect_next("shard", next, opening.index)?;
        if self.shards.contains_key(&opening.shard_id) {
            return Err(LedgerRefusal::Exists { what: "shard" });
        }
        for id in &opening.trajectories {
            let row = self.trajectory(id)?;
            if row.standing.is_open() || row.shard_id.is_some() {
                return Err(LedgerRefusal::TrajectoryNotReady { trajectory: id.to_string() });
            }
            row.shard_id = Some(opening.shard_id.clone());
        }
        for id in &opening.groups {
            self.put_group(id, &opening.shard_id)?;
        }
        self.add_shard(opening);
        Ok(())
    }

    fn put_group(&mut self, id: &Id<Group>, shard: &Id<Shard>) -> Result<(), LedgerRefusal> {
        let attempts = self.group(id)?.attempts.clone();
        let left = attempts.iter().find(|id| {
            let row = &self.trajectories[*id];
            !row.committed && row.shard_id.as_ref() != Some(shard)
        });
        if let Some(left) = left {
            return Err(LedgerRefusal::GroupBeforeTrajectory {
                group: id.to_string(),
                trajectory: left.to_string(),
            });
        }
        let row = &mut self.group(id)?.row;
        if row.closed_at_micros.is_none() || row.shard_id.is_some() {
            return Err(LedgerRefusal::GroupNotReady { group: id.to_string() });
        }
        row.shard_id = Some(shard.clone());
        Ok(())
    }

    fn add_shard(&mut self, opening: &ShardOpening) {
        if let Some(run) = &mut self.run {
            run.next_shard += 1;
        }
        let mut row = ShardRow {
            shard_id: opening.shard_id.clone(),
            index: opening.index,
            files: None,
            trajectories: opening.trajectories.clone(),
            groups: opening.groups.clone(),
            replaces: opening.replaces.clone(),
        };
        row.trajectories.sort();
        row.groups.sort();
        self.shards.insert(opening.shard_id.clone(), ShardState { row, phase: ShardPhase::Opened });
    }

    fn write_shard(&mut self, id: &Id<Shard>, files: &[WrittenFile]) -> Result<(), LedgerRefusal> {
        let shard = self.shard(id, ShardPhase::Opened)?;
        if files.is_empty() && shard.row.replaces.is_empty() {
            return Err(LedgerRefusal::NoFiles);
        }
        shard.phase = ShardPhase::Written;
        shard.row.files = Some(files.to_vec());
        Ok(())
    }

    fn commit_shard(&mut self, id: &Id<Shard>, manifest_version: u64) -> Result<(), LedgerRefusal> {
        let taken = |shard: &ShardState| shard.phase == ShardPhase::Committed { manifest_version };
        if self.shards.values().any(taken) {
            return Err(LedgerRefusal::ManifestVersionTaken { version: manifest_version });
        }
        let shard = self.shard(id, ShardPhase::Written)?;
        shard.phase = ShardPhase::Committed { manifest_version };
        let trajectories = shard.row.trajectories.clone();
        for id in &trajectories {
            self.trajectory(id)?.committed = true;
        }
        Ok(())
    }

    fn abandon_shard(&mut self, id: &Id<Shard>) -> Result<(), LedgerRefusal> {
        let shard = match self.shards.get_mut(id) {
            Some(shard) if matches!(shard.phase, ShardPhase::Opened | ShardPhase::Written) => shard,
            _ => return Err(LedgerRefusal::ShardSettled),
        };
        shard.phase = ShardPhase::Abandoned;
        shard.row.files = None;
        let trajectories = shard.row.trajectories.clone();
        let groups = shard.row.groups.clone();
        for id in &trajectories {
            self.trajectory(id)?.shard_id = None;
        }
        for id in &groups {
            self.group(id)?.row.shard_id = None;
        }
        Ok(())
    }

    fn group(&mut self, id: &Id<Group>) -> Result<&mut GroupState, LedgerRefusal> {
        let index = self.group_index.get(id);
        let group = index.and_then(|index| self.groups.get_mut(index));
        group.ok_or_else(|| LedgerRefusal::UnknownGroup { group: id.to_string() })
    }

    fn trajectory(&mut self, id: &Id<Trajectory>) -> Result<&mut TrajectoryRow, LedgerRefusal> {
        let row = self.trajectories.get_mut(id);
        row.ok_or_else(|| LedgerRefusal::UnknownTrajectory { trajectory: id.to_string() })
    }

    fn shard(&mut self, id: &Id<Shard>, phase: ShardPhase) -> Result<&mut ShardState, LedgerRefusal> {
        match self.shards.get_mut(id) {
            Some(shard) if shard.phase == phase => Ok(shard),
            _ if phase == ShardPhase::Opened => Err(LedgerRefusal::ShardNotOpened),
            _ => Err(LedgerRefusal::ShardNotWritten),
        }
    }

    fn snapshot(&self) -> LedgerSnapshot {
        let groups: Vec<_> = self.groups.values().filter(|group| !self.is_committed(group)).collect();
        let mut trajectories: Vec<_> =
            groups.iter().flat_map(|group| &group.attempts).map(|id| self.trajectories[id].clone()).collect();
        trajectories.sort_by_key(|row| row.start.token);
        let open = |shard: &&ShardState| matches!(shard.phase, ShardPhase::Opened | ShardPhase::Written);
        let mut shards: Vec<_> = self.shards.values().filter(open).map(|shard| shard.row.clone()).collect();
        shards.sort_by_key(|row| row.index);
        LedgerSnapshot {
            run: self.run.clone(),
            groups: groups.iter().map(|group| group.row.clone()).collect(),
            trajectories,
            shards,
            versions: self.versions.clone(),
            evaluations: self.evaluations(),
            totals: self.totals(),
        }
    }

    fn is_committed(&self, group: &GroupState) -> bool {
        let shard = group.row.shard_id.as_ref().and_then(|id| self.shards.get(id));
        shard.is_some_and(|shard| matches!(shard.phase, ShardPhase::Committed { .. }))
    }

    fn totals(&self) -> RunTotals {
        let mut totals = RunTotals::default();
        for id in self.groups.values().flat_map(|group| &group.attempts) {
            self.add_up(&self.trajectories[id], &mut totals);
        }
        let is_closed =
            |group: &&GroupState| group.row.draw.problem.is_none() && group.row.closed_at_micros.is_some();
        totals.groups_closed = self.groups.values().filter(is_closed).count() as u64;
        let is_committed = |shard: &&ShardState| matches!(shard.phase, ShardPhase::Committed { .. });
        totals.shards_committed = self.shards.values().filter(is_committed).count() as u64;
        totals
    }

    fn add_up(&self, row: &TrajectoryRow, totals: &mut RunTotals) {
        match &row.standing {
            TrajectoryStanding::Scored { verdict, .. } => {
                let draw = &self.groups[&self.group_index[&row.start.group_id]].row.draw;
                let tally = match draw.problem {
                    Some(_) => &mut totals.evaluated,
                    None => totals.tasks.entry((draw.suite.clone(), draw.task_id.clone())).or_default(),
                };
                tally.scored += 1;
                tally.success_known += u64::from(verdict.score.success.is_some());
                tally.succeeded += u64::from(verdict.score.success == Some(true));
                tally.reward_sum += f64::from(verdict.score.reward.unwrap_or_default());
                totals.scored += 1;
            }
            TrajectoryStanding::Failed { ended } => *totals.failed.entry(ended.end).or_default() += 1,
            TrajectoryStanding::Assigned | TrajectoryStanding::Finished { .. } => {}
        }
    }
}

impl RunRow {
    /// A run opened for the first time.
    pub(super) fn first(opening: &RunOpening) -> Self {
        Self {
            run_id: opening.run_id.clone(),
            job_sha256: opening.job_sha256,
            epoch: 1,
            next_token: 1,
            next_group: 0,
            next_shard: 0,
            draws: 0,
            opened_at_micros: opening.at_micros,
        }
    }

    /// A run directory belongs to one run of one job.
    pub(super) fn check_same(&self, opening: &RunOpening) -> Result<(), LedgerError> {
        let is_known = [Some(opening.job_sha256), opening.began_sha256].contains(&Some(self.job_sha256));
        if self.run_id == opening.run_id && is_known {
            return Ok(());
        }
        Err(LedgerError::OtherRun {
            found: named(&self.run_id, &self.job_sha256),
            requested: named(&opening.run_id, &opening.job_sha256),
        })
    }
}

fn named(run_id: &impl std::fmt::Display, job_sha256: &[u8; 32]) -> String {
    let [a, b, c, d, ..] = job_sha256;
    format!("run {run_id} of job {a:02x}{b:02x}{c:02x}{d:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::conformance::ledger_conformance;

    #[test]
    fn conforms() {
        ledger_conformance(MemoryLedger::default);
    }
}
