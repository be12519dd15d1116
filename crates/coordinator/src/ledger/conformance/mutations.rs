//! Builders of mutations, with values that differ enough for a mixed-up column to be found.

use furrow_records::{Table, WrittenFile};
use furrow_rollout::{
    EndKind, Group, Id, LEASE_SECRET_BYTES, LeaseSecret, PolicyHashes, PolicyKind, Run, Score,
    ScoreComponent, Shard, Split, Trajectory, WeightsForm,
};

use crate::lease_secret::SecretDigest;
use crate::ledger::{
    EvaluationProblem, Mutation, PolicyFacts, RunOpening, ShardOpening, TaskDraw, TimedScore, TrajectoryEnd,
    TrajectoryStart,
};
use crate::versions::tests::{hash, row as version_row};
use crate::versions::{VersionRow, VersionSource};

/// One of each kind.
pub(crate) fn sample_mutations() -> Vec<Mutation> {
    vec![
        opened(),
        drawn(0),
        assigned(0, 0, 0, 1),
        finish(0, 0, 0, 1, EndKind::Done),
        score(0, 0, 0, 1.0),
        fail(0, 0, 0, EndKind::Cancelled),
        close(0),
        shard_open(0, &[(0, 0, 0)], &[0]),
        shard_written(0),
        shard_committed(0, 1),
        abandoned(0),
        proposed(1, 0),
        taken(1),
        unable(2),
        withdrawn(1),
        begun(0, 1),
        over(0, true),
    ]
}

/// Two groups, the first of them closed, with attempts that are scored, failed, finished and open.
pub(crate) fn a_little_of_everything() -> Vec<Mutation> {
    vec![
        opened(),
        drawn(0),
        assigned(0, 0, 0, 1),
        finish(0, 0, 0, 1, EndKind::Answered),
        score(0, 0, 0, 0.25),
        assigned(0, 1, 0, 2),
        fail(0, 1, 0, EndKind::Blocked),
        close(0),
        drawn(1),
        assigned(1, 0, 0, 3),
        finish(1, 0, 0, 3, EndKind::MaxSteps),
        assigned(1, 1, 0, 4),
    ]
}

/// Versions that are taken, refused, proposed and withdrawn, in this order.
pub(crate) fn versions_in_every_state() -> Vec<Mutation> {
    let proposed = (1..=4).map(|version| proposed(version, 0));
    proposed.chain([taken(1), unable(2), taken(4), withdrawn(4)]).collect()
}

pub(super) fn opening() -> RunOpening {
    RunOpening { run_id: run(), job_sha256: [7; 32], began_sha256: None, at_micros: 1 }
}

pub(crate) fn opened() -> Mutation {
    Mutation::RunOpened(opening())
}

pub(crate) fn drawn(index: u64) -> Mutation {
    redrawn(index, index + 1)
}

pub(super) fn redrawn(index: u64, draws: u64) -> Mutation {
    Mutation::GroupDrawn { draw: draw(index, 2), draws }
}

pub(super) fn chanced(chance: f64) -> Mutation {
    Mutation::GroupDrawn { draw: TaskDraw { chance: Some(chance), ..draw(0, 2) }, draws: 1 }
}

pub(super) fn draw_with(index: u64, group_size: u32) -> Mutation {
    Mutation::GroupDrawn { draw: draw(index, group_size), draws: index + 1 }
}

pub(crate) fn draw(index: u64, group_size: u32) -> TaskDraw {
    TaskDraw {
        group_id: group(index),
        index,
        suite: "starter".to_owned(),
        task_id: "click".to_owned(),
        split: Split::Train,
        seed: u64::MAX - index,
        group_size,
        task_json: "{\"id\":\"click\"}".to_owned(),
        chance: index.is_multiple_of(2).then_some(0.25),
        problem: None,
        at_micros: 2,
    }
}

/// The digest of the secret that comes with a token.
pub(super) fn secret_of(token: u64) -> SecretDigest {
    SecretDigest::of(&LeaseSecret::new([token as u8; LEASE_SECRET_BYTES]))
}

/// A lease without the digest of a secret.
pub(super) fn assigned_bare() -> Mutation {
    let Mutation::Assigned(start) = assigned(0, 0, 0, 1) else { unreachable!() };
    Mutation::Assigned(TrajectoryStart { secret: None, ..start })
}

pub(crate) fn assigned(group_index: u64, sample_index: u32, attempt: u32, token: u64) -> Mutation {
    Mutation::Assigned(TrajectoryStart {
        trajectory_id: trajectory(group_index, sample_index, attempt),
        group_id: group(group_index),
        sample_index,
        attempt,
        token,
        env_worker: Id::new("env-1").unwrap(),
        policy: PolicyFacts {
            worker: Id::new("policy-1").unwrap(),
            address: "127.0.0.1:7000".to_owned(),
            kind: PolicyKind::Scripted,
            version: Some(3),
            hashes: PolicyHashes { grammar: Some("ab".to_owned()), ..PolicyHashes::default() },
        },
        at_micros: 3,
        queue_micros: 4,
        secret: Some(secret_of(token)),
    })
}

pub(super) fn ended(end: EndKind) -> TrajectoryEnd {
    let reason = format!("because of {}", end.as_str());
    TrajectoryEnd { end, reason, steps: 2, policy_versions: Some((1, 2)), staleness: Some(1), at_micros: 5 }
}

pub(crate) fn finish(
    group_index: u64,
    sample_index: u32,
    attempt: u32,
    token: u64,
    end: EndKind,
) -> Mutation {
    let trajectory_id = trajectory(group_index, sample_index, attempt);
    Mutation::Finished { trajectory_id, token, ended: ended(end), evidence_sha256: [6; 32] }
}

pub(super) fn score_of(reward: f32) -> Score {
    Score {
        reward: Some(reward),
        success: Some(reward > 0.0),
        components: vec![ScoreComponent { name: "raw".to_owned(), value: 0.1 }],
        scorer: "probe".to_owned(),
        version: 1,
        rationale: "the \"page\" said so".to_owned(),
        evidence_sha256: [6; 32],
    }
}

pub(crate) fn score(group_index: u64, sample_index: u32, attempt: u32, reward: f32) -> Mutation {
    verdict(group_index, sample_index, attempt, score_of(reward))
}

pub(super) fn verdict(group_index: u64, sample_index: u32, attempt: u32, score: Score) -> Mutation {
    let trajectory_id = trajectory(group_index, sample_index, attempt);
    Mutation::Scored { trajectory_id, verdict: TimedScore { score, micros: 8 } }
}

pub(crate) fn fail(group_index: u64, sample_index: u32, attempt: u32, end: EndKind) -> Mutation {
    Mutation::Failed { trajectory_id: trajectory(group_index, sample_index, attempt), ended: ended(end) }
}

pub(crate) fn lost(group_index: u64, sample_index: u32, attempt: u32) -> Mutation {
    record_lost(group_index, sample_index, attempt, EndKind::RecordLost)
}

pub(super) fn record_lost(group_index: u64, sample_index: u32, attempt: u32, end: EndKind) -> Mutation {
    Mutation::RecordLost { trajectory_id: trajectory(group_index, sample_index, attempt), ended: ended(end) }
}

pub(crate) fn close(group_index: u64) -> Mutation {
    Mutation::GroupClosed { group_id: group(group_index), at_micros: 9 }
}

pub(super) fn shard_open(index: u64, rows: &[(u64, u32, u32)], groups: &[u64]) -> Mutation {
    Mutation::ShardOpened(ShardOpening {
        shard_id: shard_id(index),
        index,
        trajectories: rows.iter().map(|&(g, s, a)| trajectory(g, s, a)).collect(),
        groups: groups.iter().map(|&index| group(index)).collect(),
        replaces: Vec::new(),
    })
}

/// A shard that holds the rows of an earlier one.
pub(super) fn merge_open(index: u64, rows: &[(u64, u32, u32)]) -> Mutation {
    let Mutation::ShardOpened(opening) = shard_open(index, rows, &[]) else { unreachable!() };
    Mutation::ShardOpened(ShardOpening { replaces: vec!["steps/x.parquet".to_owned()], ..opening })
}

pub(super) fn shard_file() -> WrittenFile {
    let path = "steps/x.parquet".to_owned();
    let sha256 = "05".repeat(32);
    WrittenFile { table: Table::Steps, path, rows: 2, bytes: 900, sha256 }
}

pub(super) fn shard_written(index: u64) -> Mutation {
    Mutation::ShardWritten { shard_id: shard_id(index), files: vec![shard_file()] }
}

/// What an expiry writes.
pub(super) fn nothing_written(index: u64) -> Mutation {
    Mutation::ShardWritten { shard_id: shard_id(index), files: Vec::new() }
}

pub(super) fn shard_committed(index: u64, manifest_version: u64) -> Mutation {
    Mutation::ShardCommitted { shard_id: shard_id(index), manifest_version }
}

pub(super) fn abandoned(index: u64) -> Mutation {
    Mutation::ShardAbandoned { shard_id: shard_id(index) }
}

pub(super) fn proposed(version: i32, base_version: i32) -> Mutation {
    Mutation::VersionProposed(version_row(version, WeightsForm::ALL[version as usize % 3], base_version))
}

/// The publication of version 1, as a rollback to what the job names.
pub(super) fn proposed_rollback(version: i32) -> Mutation {
    let row = version_row(version, WeightsForm::Full, 0);
    let source = VersionSource::Rollback { to: 0 };
    Mutation::VersionProposed(VersionRow { publication_id: "p1".to_owned(), source, ..row })
}

pub(super) fn taken(version: i32) -> Mutation {
    Mutation::VersionTaken { version, weights_sha256: hash(version) }
}

pub(super) fn unable(version: i32) -> Mutation {
    Mutation::VersionRefused { version, reason: "its file is torn".to_owned() }
}

pub(super) fn withdrawn(version: i32) -> Mutation {
    Mutation::VersionWithdrawn { version, reason: "its logits are not finite".to_owned() }
}

pub(crate) fn begun(version: i32, problems: u64) -> Mutation {
    Mutation::EvaluationBegun { version, problems, at_micros: 4 }
}

/// A group that is a problem of an evaluation; the sampler does not draw.
pub(crate) fn problem(group_index: u64, version: i32, index: u64) -> Mutation {
    let problem = Some(EvaluationProblem { version, index });
    let draw = TaskDraw { problem, split: Split::Eval, chance: None, ..draw(group_index, 2) };
    Mutation::GroupDrawn { draw, draws: group_index }
}

pub(super) fn over(version: i32, cut: bool) -> Mutation {
    let cut = cut.then(|| "newer weights waited".to_owned());
    Mutation::EvaluationEnded { version, cut }
}

/// The first `stages` of a shard's life, with the rows of group 0; a fourth commits it a second
/// time.
pub(super) fn shard(index: u64, stages: usize) -> Vec<Mutation> {
    let opened = shard_open(index, &[(0, 0, 0), (0, 1, 0)], &[0]);
    let mut life = vec![opened, shard_written(index), shard_committed(index, 0)];
    life.truncate(stages);
    life
}

pub(super) fn run() -> Id<Run> {
    Id::new("r").unwrap()
}

pub(super) fn group(index: u64) -> Id<Group> {
    Id::nth(&run(), index)
}

pub(super) fn trajectory(group_index: u64, sample_index: u32, attempt: u32) -> Id<Trajectory> {
    Id::attempt(&group(group_index), sample_index, attempt)
}

pub(super) fn shard_id(index: u64) -> Id<Shard> {
    Id::new(format!("r-x{index:06}")).unwrap()
}
