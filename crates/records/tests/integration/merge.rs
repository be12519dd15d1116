//! Many small files become one, without a row lost, doubled or changed.

use std::collections::BTreeSet;
use std::time::Duration;

use furrow_records::fixtures::TrajectoryFixture;
use furrow_records::fixtures::data_set::{commit_files, commit_group, open, write};
use furrow_records::merge::{self, MergePlan};
use furrow_records::{
    CommitDraft, CommitOutcome, DataSet, Op, RecordsConfig, RecordsError, RecordsFile, ShardPlan, Table,
    WrittenFile, fixtures, verify,
};
use furrow_rollout::RescoredToken;
use futures::executor::block_on;

fn config(merge_below_bytes: u64, merge_files_min: u32) -> RecordsConfig {
    RecordsFile { merge_below_bytes, merge_files_min, ..RecordsFile::default() }
        .check()
        .expect("valid settings")
}

#[test]
fn a_merged_data_set_holds_the_same_rows() {
    let dir = tempfile::tempdir().unwrap();
    (0..5).for_each(|group| drop(commit_group(dir.path(), group, 2)));
    let before = DataSet::open(dir.path()).unwrap();
    let mut manifest = open(dir.path());
    let plans = merge::plan(manifest.snapshot(), &config(1 << 20, 3), &BTreeSet::new());
    assert_eq!(
        plans.iter().map(|plan| plan.table).collect::<Vec<_>>(),
        [Table::Trajectories, Table::Steps, Table::Groups]
    );
    let now = fixtures::STARTED + 60_000_000;
    for plan in &plans {
        assert_eq!(plan.parts.len(), 5);
        let shard = fixtures::plan(dir.path(), &format!("merged-{}", plan.table));
        let merged = merge::merge(&shard, plan, |_, _| {}).unwrap();
        let draft = CommitDraft {
            op: Op::Replace,
            removed: plan.parts.iter().map(|part| part.path.clone()).collect(),
            ..CommitDraft::append(vec![merged], shard.run_id, 1, shard.shard_id, now)
        };
        assert!(matches!(block_on(manifest.commit(&draft)).unwrap(), CommitOutcome::Now(_)));
        for _ in 0..2 {
            merge::set_aside(dir.path(), &draft.removed).unwrap();
        }
        let folder = dir.path().join(plan.table.as_str());
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), 1, "a glob reads each row once");
    }
    let after = DataSet::open(dir.path()).unwrap();
    // A reader that opened the old version can still read it.
    for set in [&before, &after] {
        assert_eq!(set.steps().map(Result::unwrap).count(), 5 * 2 * 3);
    }
    let all = |set: &DataSet| {
        let trajectories: Vec<_> = set.trajectories().map(Result::unwrap).collect();
        let steps: Vec<_> = set.steps().map(Result::unwrap).collect();
        let groups: Vec<_> = set.groups().map(Result::unwrap).collect();
        (trajectories, steps, groups)
    };
    assert!(all(&before) == all(&after));
    assert_eq!(after.snapshot().files(Table::Steps).count(), 1);
    let report = verify(dir.path()).unwrap();
    assert!(report.is_sound(), "{:#?}", report.breaches);
    assert!(
        report.warnings.is_empty(),
        "parts within their grace are not stray files: {:?}",
        report.warnings
    );

    let grace = Duration::from_secs(60);
    let snapshot = manifest.snapshot();
    assert!(merge::retire(dir.path(), snapshot, now + 59_999_999, grace).unwrap().removed.is_empty());
    // A merged file that is damaged: its parts are the only copy.
    let merged = dir.path().join(&snapshot.files(Table::Steps).next().unwrap().path);
    let mut bytes = std::fs::read(&merged).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&merged, &bytes).unwrap();
    let retired = merge::retire(dir.path(), snapshot, now + 60_000_000, grace).unwrap();
    assert_eq!((retired.removed.len(), retired.damaged.len()), (10, 1));
    bytes[100] ^= 1;
    std::fs::write(&merged, &bytes).unwrap();
    assert_eq!(merge::retire(dir.path(), snapshot, now + 60_000_000, grace).unwrap().removed.len(), 5);
    assert!(merge::retire(dir.path(), snapshot, now + 60_000_000, grace).unwrap().removed.is_empty());
    assert!(verify(dir.path()).unwrap().is_sound());
    assert!(merge::plan(snapshot, &config(1 << 20, 2), &BTreeSet::new()).is_empty());
}

#[test]
fn only_enough_small_files_are_merged_and_only_as_many_as_fit() {
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<_> = (0..4).flat_map(|group| commit_group(dir.path(), group, 1)).collect();
    let snapshot = open(dir.path()).snapshot().clone();
    let steps: Vec<u64> =
        files.iter().filter(|file| file.table == Table::Steps).map(|file| file.bytes).collect();
    let parts = |config: RecordsConfig| {
        let plans = merge::plan(&snapshot, &config, &BTreeSet::new());
        plans.into_iter().find(|plan| plan.table == Table::Steps).map_or(0, |plan| plan.parts.len())
    };
    assert_eq!(parts(config(1 << 20, 4)), 4);
    assert_eq!(parts(config(1 << 20, 5)), 0);
    assert_eq!(parts(config(1, 2)), 0);
    let capacity = RecordsConfig { max_shard_bytes: steps[..3].iter().sum(), ..config(1 << 20, 2) };
    assert_eq!(parts(capacity), 3);
}

#[test]
fn files_of_different_jobs_stay_apart() {
    let dir = tempfile::tempdir().unwrap();
    let parts: Vec<_> = (0..2).map(|group| commit_group(dir.path(), group, 1).swap_remove(1)).collect();
    let plan = MergePlan { table: Table::Steps, parts };
    let check = |shard: ShardPlan, want: &str| {
        let error = merge::merge(&shard, &plan, |_, _| {}).unwrap_err();
        assert!(matches!(error, RecordsError::Unmergeable { .. }), "{error}");
        assert!(error.to_string().contains(want), "{error}");
    };
    let shard = fixtures::plan(dir.path(), "m");
    check(ShardPlan { job_toml: "other".into(), ..shard.clone() }, "different jobs");
    check(ShardPlan { run_id: furrow_rollout::Id::new("other").unwrap(), ..shard.clone() }, "different runs");
    // A run that continues with another job merges what it writes from then on.
    assert_eq!(merge::foreign(&shard, &plan).unwrap(), Vec::<String>::new());
    let others = merge::foreign(&ShardPlan { job_toml: "other".into(), ..shard }, &plan).unwrap();
    assert_eq!(others, plan.parts.iter().map(|part| part.path.clone()).collect::<Vec<_>>());
    let snapshot = open(dir.path()).snapshot().clone();
    let planned =
        |foreign: Vec<String>| merge::plan(&snapshot, &config(1 << 20, 2), &foreign.into_iter().collect());
    let steps = |plans: Vec<MergePlan>| plans.iter().any(|plan| plan.table == Table::Steps);
    assert!(steps(planned(Vec::new())) && !steps(planned(others)));
}

#[test]
fn parts_come_back_where_the_commit_of_their_merge_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    (0..2).for_each(|group| drop(commit_group(dir.path(), group, 1)));
    let snapshot = open(dir.path()).snapshot().clone();
    let path = snapshot.files(Table::Steps).next().unwrap().path.clone();
    merge::set_aside(dir.path(), [&path]).unwrap();
    assert!(!dir.path().join(&path).exists());
    merge::put_back(dir.path(), &snapshot).unwrap();
    assert!(dir.path().join(&path).exists());
    assert!(verify(dir.path()).unwrap().is_sound());
}

/// The gaps of rescored tokens are in the footer of their file, and merged files combine them.
#[test]
fn gaps_of_the_prefill_path_add_up() {
    let dir = tempfile::tempdir().unwrap();
    // Two shards whose first two steps have these gaps.
    for (shard, group, gaps) in [("a", 0, [0.5, -0.25]), ("b", 1, [1.0, 0.0])] {
        let (record, mut steps) =
            TrajectoryFixture { group, group_size: 1, ..TrajectoryFixture::default() }.trajectory();
        for (step, gap) in steps.iter_mut().zip(gaps) {
            let recorded = step.trace.tokens.as_ref().unwrap().logprobs.clone().unwrap();
            let drawn = recorded.iter().position(Option::is_some).unwrap();
            let logprob = (f64::from(recorded[drawn].unwrap()) - gap) as f32;
            step.trace.rescored = vec![RescoredToken { token: drawn as u32, logprob }];
        }
        let groups = [fixtures::group(std::slice::from_ref(&record))];
        let files = write(dir.path(), shard, &[(record, steps)], &groups, &[]);
        commit_files(dir.path(), shard, files);
    }
    drop(commit_group(dir.path(), 2, 1));
    let footers = || -> Vec<(String, usize, f64, f64)> {
        let set = DataSet::open(dir.path()).unwrap();
        let row = |file: &WrittenFile| {
            let gap = set.prefill_gap(file).unwrap()?;
            Some((file.path.clone(), gap.tokens, gap.mean_abs, gap.max))
        };
        set.snapshot().files(Table::Steps).filter_map(row).collect()
    };
    let near = |got: f64, want: f64| assert!((got - want).abs() < 1e-6, "{got}, not {want}");
    let [a, b] = &footers()[..] else { panic!("{:?}", footers()) };
    assert_eq!((&*a.0, a.1, &*b.0, b.1), ("steps/a.parquet", 2, "steps/b.parquet", 2));
    near(a.2, 0.375);
    near(a.3, 0.5);
    near(b.3, 1.0);
    let mut manifest = open(dir.path());
    let plans = merge::plan(manifest.snapshot(), &config(1 << 20, 3), &BTreeSet::new());
    let plan = plans.iter().find(|plan| plan.table == Table::Steps).unwrap();
    let shard = fixtures::plan(dir.path(), "merged");
    let merged = merge::merge(&shard, plan, |_, _| {}).unwrap();
    let removed = plan.parts.iter().map(|part| part.path.clone()).collect();
    let now = fixtures::STARTED + 60_000_000;
    let draft = CommitDraft {
        op: Op::Replace,
        removed,
        ..CommitDraft::append(vec![merged], shard.run_id, 1, shard.shard_id, now)
    };
    block_on(manifest.commit(&draft)).unwrap();
    let [whole] = &footers()[..] else { panic!("{:?}", footers()) };
    assert_eq!((&*whole.0, whole.1), ("steps/merged.parquet", 4));
    near(whole.2, (0.5 + 0.25 + 1.0) / 4.0);
    near(whole.3, 1.0);
    assert!(verify(dir.path()).unwrap().is_sound());
}
