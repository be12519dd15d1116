//! Many small files become one, without a row lost, doubled or changed.

use std::path::Path;
use std::time::Duration;

use furrow_records::fixtures::TrajectoryFixture;
use furrow_records::fixtures::data_set::{commit_files, commit_group, merge_all, merge_all_as, open, write};
use furrow_records::merge::{self, MergePlan, MergePlanner};
use furrow_records::{
    CommitDraft, CommitOutcome, DataSet, Manifest, Op, RecordsConfig, RecordsError, RecordsFile, ShardPlan,
    ShardWriter, Table, WrittenFile, fixtures, hex, verify,
};
use furrow_rollout::{Id, RescoredToken, SCHEMA_VERSION};
use futures::executor::block_on;
use parquet::file::reader::{FileReader, SerializedFileReader};

fn config(merge_below_bytes: u64, merge_files_min: u32) -> RecordsConfig {
    let merge_below_bytes = Some(merge_below_bytes);
    RecordsFile { merge_below_bytes, merge_files_min, ..RecordsFile::default() }
        .check()
        .expect("valid settings")
}

fn plan(manifest: &Manifest, config: &RecordsConfig) -> Vec<MergePlan> {
    MergePlanner::default().plan(manifest.snapshot(), config, |_| Some(SCHEMA_VERSION))
}

#[test]
fn a_merged_data_set_holds_the_same_rows() {
    let dir = tempfile::tempdir().unwrap();
    (0..5).for_each(|group| drop(commit_group(dir.path(), group, 2)));
    let before = DataSet::open(dir.path()).unwrap();
    let mut manifest = open(dir.path());
    let plans = plan(&manifest, &config(1 << 20, 3));
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
    let late = before.steps().find_map(Result::err).unwrap();
    assert!(matches!(late, RecordsError::LeftDataSet { .. }), "{late}");
    assert!(plan(&manifest, &config(1 << 20, 2)).is_empty());
}

#[test]
fn only_enough_small_files_are_merged_and_only_as_many_as_fit() {
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<_> = (0..4).flat_map(|group| commit_group(dir.path(), group, 1)).collect();
    let manifest = open(dir.path());
    let steps: Vec<u64> =
        files.iter().filter(|file| file.table == Table::Steps).map(|file| file.bytes).collect();
    let parts = |config: RecordsConfig| {
        plan(&manifest, &config)
            .into_iter()
            .find(|plan| plan.table == Table::Steps)
            .map_or(0, |plan| plan.parts.len())
    };
    assert_eq!(parts(config(1 << 20, 4)), 4);
    assert_eq!(parts(config(1 << 20, 5)), 0);
    assert_eq!(parts(config(1, 2)), 0);
    let capacity = RecordsConfig { max_shard_bytes: steps[..3].iter().sum(), ..config(1 << 20, 2) };
    assert_eq!(parts(capacity), 3);
}

/// A shard of one group, written under this job.
fn commit_group_of(dir: &Path, group: u64, job: &str) {
    let made = TrajectoryFixture { group, group_size: 1, ..TrajectoryFixture::default() }.trajectory();
    let shard = format!("shard-{group:04}");
    let plan = ShardPlan { job_toml: job.into(), ..fixtures::plan(dir, &shard) };
    let mut writer = ShardWriter::create(plan);
    writer.add_trajectory(&made.0, &made.1).unwrap();
    writer.add_group(&fixtures::group(std::slice::from_ref(&made.0))).unwrap();
    commit_files(dir, &shard, writer.finish(|_, _| {}).unwrap());
}

#[test]
fn files_of_several_jobs_are_merged_and_each_is_named_with_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    for (group, job) in ["one", "one", "two", "one"].iter().enumerate() {
        commit_group_of(dir.path(), group as u64, job);
    }
    merge_all(dir.path());
    let set = DataSet::open(dir.path()).unwrap();
    let [file] = &set.snapshot().files(Table::Trajectories).collect::<Vec<_>>()[..] else { panic!() };
    let opened = std::fs::File::open(dir.path().join(&file.path)).unwrap();
    let footer = SerializedFileReader::new(opened).unwrap();
    let pairs = footer.metadata().file_metadata().key_value_metadata().unwrap().clone();
    let value = |key: &str| pairs.iter().find(|pair| pair.key == key).and_then(|pair| pair.value.clone());
    let sha256 = |job: &str| hex(&<sha2::Sha256 as sha2::Digest>::digest(job));
    let jobs: serde_json::Value = serde_json::from_str(&value("furrow.jobs").unwrap()).unwrap();
    let rows = |job: &str, rows: u64| serde_json::json!({ "sha256": sha256(job), "rows": rows });
    assert_eq!(jobs, serde_json::json!([rows("one", 2), rows("two", 1), rows("one", 1)]));
    assert_eq!(value("furrow.job_sha256"), Some(sha256("one")));
    assert_eq!(set.job().as_deref(), Some("one"));
    assert!(verify(dir.path()).unwrap().is_sound());
    std::fs::remove_file(dir.path().join(format!("jobs/{}.toml", sha256("two")))).unwrap();
    let report = verify(dir.path()).unwrap();
    assert_eq!(report.warnings.len(), 1, "every job of a merged file is looked for: {:?}", report.warnings);
    // A merged file that is merged again keeps the jobs of its rows.
    commit_group_of(dir.path(), 9, "one");
    merge_all_as(dir.path(), "again");
    commit_group_of(dir.path(), 8, "three");
    let set = DataSet::open(dir.path()).unwrap();
    assert_eq!(set.job().as_deref(), Some("three"));
}

/// The job of the newest rows, also where older rows were merged since.
#[test]
fn a_merge_makes_no_old_rows_new() {
    let dir = tempfile::tempdir().unwrap();
    for (group, job) in ["one", "one", "two"].iter().enumerate() {
        commit_group_of(dir.path(), group as u64, job);
    }
    let mut manifest = open(dir.path());
    let parts: Vec<_> = manifest.snapshot().files(Table::Trajectories).take(2).cloned().collect();
    let plan = MergePlan { table: Table::Trajectories, schema_version: SCHEMA_VERSION, parts };
    let shard = fixtures::plan(dir.path(), "merged");
    let merged = merge::merge(&shard, &plan, |_, _| {}).unwrap();
    let removed = plan.parts.iter().map(|part| part.path.clone()).collect();
    let draft = CommitDraft::append(vec![merged], shard.run_id, 1, shard.shard_id, fixtures::STARTED);
    block_on(manifest.commit(&CommitDraft { op: Op::Replace, removed, ..draft })).unwrap();
    assert_eq!(DataSet::open(dir.path()).unwrap().job().as_deref(), Some("two"));
}

#[test]
fn what_does_not_fit_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let parts: Vec<_> = (0..2).map(|group| commit_group(dir.path(), group, 1).swap_remove(1)).collect();
    let plan = MergePlan { table: Table::Steps, schema_version: SCHEMA_VERSION, parts };
    let check = |shard: ShardPlan, plan: &MergePlan, want: &str| {
        let error = merge::merge(&shard, plan, |_, _| {}).unwrap_err();
        assert!(matches!(error, RecordsError::Unmergeable { .. }), "{error}");
        assert!(error.to_string().contains(want), "{error}");
    };
    let shard = fixtures::plan(dir.path(), "m");
    let other = ShardPlan { run_id: Id::new("other").unwrap(), ..shard.clone() };
    check(other.clone(), &plan, "different runs");
    check(shard.clone(), &MergePlan { schema_version: 2, ..plan.clone() }, "has schema version 4, not 2");
    check(shard.clone(), &MergePlan { schema_version: 99, ..plan.clone() }, "does not know");
    let part = &plan.parts[0];
    let schema = |run_id| merge::mergeable_schema(dir.path(), run_id, part);
    assert_eq!((schema(&shard.run_id), schema(&other.run_id)), (Some(SCHEMA_VERSION), None));
}

/// A manifest in memory that grows as a followed run's does, with the sizes alone.
struct GrowingTable {
    manifest: Manifest,
    planner: MergePlanner,
    config: RecordsConfig,
    commits: u64,
    copied_bytes: u64,
    most_files: usize,
}

impl GrowingTable {
    fn new() -> Self {
        let store = std::sync::Arc::new(object_store::memory::InMemory::new());
        let manifest = block_on(Manifest::open(store)).unwrap();
        let config = RecordsFile { follow: true, ..RecordsFile::default() }.check().unwrap();
        let planner = MergePlanner::default();
        Self { manifest, planner, config, commits: 0, copied_bytes: 0, most_files: 0 }
    }

    fn put(&mut self, op: Op, bytes: u64, rows: u64, removed: Vec<String>) {
        self.commits += 1;
        let path = format!("steps/x{:06}.parquet", self.commits);
        let sha256 = "ab".repeat(32);
        let file = WrittenFile { table: Table::Steps, path, rows, bytes, sha256 };
        let shard = Id::new(format!("x{:06}", self.commits)).unwrap();
        let draft = CommitDraft::append(vec![file], Id::new("r").unwrap(), 1, shard, 0);
        block_on(self.manifest.commit(&CommitDraft { op, removed, ..draft })).unwrap();
    }

    /// One commit and at most one merge, as where the intake is never empty.
    fn tick(&mut self, bytes: u64, schema: impl Fn(&WrittenFile) -> Option<u32>) {
        self.put(Op::Append, bytes, 1, Vec::new());
        let plans = self.planner.plan(self.manifest.snapshot(), &self.config, schema);
        if let Some(plan) = plans.first() {
            let sum = |of: fn(&WrittenFile) -> u64| plan.parts.iter().map(of).sum();
            let bytes: u64 = sum(|part| part.bytes);
            self.copied_bytes += bytes;
            let removed = plan.parts.iter().map(|part| part.path.clone()).collect();
            self.put(Op::Replace, bytes, sum(|part| part.rows), removed);
        }
        let gone: Vec<String> = self.manifest.snapshot().removed().keys().cloned().collect();
        if gone.len() > 1_000 {
            self.manifest.forget(&gone);
        }
        self.most_files = self.most_files.max(self.manifest.snapshot().files(Table::Steps).count());
    }
}

fn number(file: &WrittenFile) -> u32 {
    file.path.trim_start_matches("steps/x").trim_end_matches(".parquet").parse().unwrap()
}

/// Two days of a followed run: a commit every two seconds, small or large. Every five hours an
/// upgrade brings another schema.
#[test]
fn a_followed_run_keeps_few_files() {
    for bytes in [3_000, 100_000] {
        let mut table = GrowingTable::new();
        for tick in 0..86_400u64 {
            let size = bytes / 2 + (tick * 7_919) % bytes;
            table.tick(size, |file| Some(number(file) / 10_000));
        }
        let copies = table.copied_bytes as f64 / (86_400 * bytes) as f64;
        assert!(table.most_files <= 200, "{bytes}: {} files", table.most_files);
        assert!(copies < 8.0, "{bytes}: each row is copied {copies} times");
    }
}

/// A file that cannot be merged is left alone, and the others are merged.
#[test]
fn one_refusal_does_not_end_the_merging() {
    let mut table = GrowingTable::new();
    let is_refused = |file: &WrittenFile| number(file).is_multiple_of(50);
    for _ in 0..1_000 {
        table.tick(5_000, |file| (!is_refused(file)).then_some(3));
    }
    let files = || table.manifest.snapshot().files(Table::Steps);
    assert!(files().filter(|file| is_refused(file)).count() > 15);
    assert!(files().filter(|file| !is_refused(file)).count() < 16);
    let left: Vec<String> = files().map(|file| file.path.clone()).collect();
    table.planner.leave_alone(left.clone());
    for _ in 0..100 {
        table.tick(5_000, |_| Some(3));
    }
    let files: Vec<&WrittenFile> = table.manifest.snapshot().files(Table::Steps).collect();
    assert!(left.iter().all(|path| files.iter().any(|file| file.path == *path)), "they were left alone");
    assert!(files.len() < left.len() + 16, "{} files", files.len());
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
    let plans = plan(&manifest, &config(1 << 20, 3));
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
