//! Helpers that the tests of this crate share.

#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::BTreeSet;
use std::path::Path;

use furrow_records::fixtures::{self, TrajectoryFixture};
use furrow_records::merge;
use furrow_records::{
    CommitDraft, CommitOutcome, Manifest, Op, RecordsFile, RescoreRecord, ShardStage, ShardWriter, Table,
    WrittenFile,
};
use furrow_rollout::{GroupRecord, StepRecord, TrajectoryRecord};
use futures::executor::block_on;

/// Writes one shard without a manifest commit.
pub fn write(
    dir: &Path,
    shard: &str,
    trajectories: &[(TrajectoryRecord, Vec<StepRecord>)],
    groups: &[GroupRecord],
    rescores: &[RescoreRecord],
) -> Vec<WrittenFile> {
    let mut writer = ShardWriter::create(fixtures::plan(dir, shard));
    for (record, steps) in trajectories {
        writer.add_trajectory(record, steps).unwrap();
    }
    groups.iter().for_each(|group| writer.add_group(group).unwrap());
    rescores.iter().for_each(|rescore| writer.add_rescore(rescore).unwrap());
    writer.finish(|_, _| {}).unwrap()
}

pub fn open(dir: &Path) -> Manifest {
    block_on(Manifest::open(Manifest::local_store(dir).unwrap())).unwrap()
}

pub fn append(dir: &Path, shard: &str, files: Vec<WrittenFile>) -> CommitDraft {
    let plan = fixtures::plan(dir, shard);
    CommitDraft::append(files, plan.run_id, 1, plan.shard_id, fixtures::STARTED)
}

pub fn commit_files(dir: &Path, shard: &str, files: Vec<WrittenFile>) -> CommitOutcome {
    block_on(open(dir).commit(&append(dir, shard, files))).unwrap()
}

/// Writes and commits a shard of one group with this many slots, all scored.
pub fn commit_group(dir: &Path, group: u64, slots: u32) -> Vec<WrittenFile> {
    let plot =
        |sample| TrajectoryFixture { group, sample, group_size: slots, ..TrajectoryFixture::default() };
    let made: Vec<_> = (0..slots).map(|sample| plot(sample).trajectory()).collect();
    let records: Vec<_> = made.iter().map(|(record, _)| record.clone()).collect();
    let shard = format!("shard-{group:04}");
    let files = write(dir, &shard, &made, &[fixtures::group(&records)], &[]);
    commit_files(dir, &shard, files.clone());
    files
}

/// Every stage of every table, in the order it is reached.
pub fn stages(tables: &[Table]) -> Vec<(Table, ShardStage)> {
    tables.iter().flat_map(|&table| ShardStage::ALL.map(|stage| (table, stage))).collect()
}

/// Merges each table's small files into one and sets the parts aside, as a coordinator does.
pub fn merge_all(dir: &Path) {
    merge_all_as(dir, "merged");
}

/// The same under a name that no earlier merge used.
pub fn merge_all_as(dir: &Path, name: &str) {
    let file = RecordsFile { merge_below_bytes: 1 << 20, merge_files_min: 2, ..RecordsFile::default() };
    let config = file.check().unwrap();
    let mut manifest = open(dir);
    for plan in &merge::plan(manifest.snapshot(), &config, &BTreeSet::new()) {
        let shard = fixtures::plan(dir, &format!("{name}-{}", plan.table));
        let merged = merge::merge(&shard, plan, |_, _| {}).unwrap();
        let draft = CommitDraft {
            op: Op::Replace,
            removed: plan.parts.iter().map(|part| part.path.clone()).collect(),
            ..CommitDraft::append(vec![merged], shard.run_id, 1, shard.shard_id, fixtures::STARTED)
        };
        block_on(manifest.commit(&draft)).unwrap();
        merge::set_aside(dir, &draft.removed).unwrap();
    }
}
