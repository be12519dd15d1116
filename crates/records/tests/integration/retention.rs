//! Old rows expire by whole commits, a trajectory with its steps, and nothing that expired comes
//! back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use furrow_records::fixtures::data_set::{commit_group, open};
use furrow_records::merge::{self, MergePlanner};
use furrow_records::{
    CommitDraft, DataSet, ExpiryPlan, Manifest, Op, RecordsConfig, RecordsError, RecordsFile,
    RetentionConfig, Table, VerifyCheck, WrittenFile, verify,
};
use furrow_rollout::{Id, SCHEMA_VERSION};
use futures::executor::block_on;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use proptest::prelude::*;

const SECOND: i64 = 1_000_000;
/// Tables whose rows leave together.
const BOUND: [Table; 2] = [Table::Trajectories, Table::Steps];

/// A data set in memory that a coordinator would write, and what should be in it.
struct ModelledSet {
    store: Arc<dyn ObjectStore>,
    manifest: Manifest,
    planner: MergePlanner,
    config: RecordsConfig,
    shards: u64,
    now_micros: i64,
    /// The commits whose rows each file of the data set holds.
    files: BTreeMap<String, (WrittenFile, BTreeSet<u64>)>,
    committed_at: BTreeMap<u64, i64>,
    gone: BTreeSet<String>,
    expired_rows: BTreeMap<Table, u64>,
}

impl ModelledSet {
    fn new(retention: RetentionConfig) -> Self {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let manifest = block_on(Manifest::open(Arc::clone(&store))).unwrap();
        let config = RecordsFile { merge_files_min: 2, ..RecordsFile::default() }.check().unwrap();
        Self {
            store,
            manifest,
            planner: MergePlanner::default(),
            config: RecordsConfig { retention, ..config },
            shards: 0,
            now_micros: SECOND,
            files: BTreeMap::new(),
            committed_at: BTreeMap::new(),
            gone: BTreeSet::new(),
            expired_rows: BTreeMap::new(),
        }
    }

    fn commit(&mut self, op: Op, files: Vec<WrittenFile>, removed: Vec<String>) -> u64 {
        let shard = Id::new(format!("x{}", self.shards)).unwrap();
        let draft = CommitDraft::append(files, Id::new("r").unwrap(), 1, shard, self.now_micros);
        block_on(self.manifest.commit(&CommitDraft { op, removed, ..draft })).unwrap().version()
    }

    fn file(&self, table: Table, bytes: u64, rows: u64) -> WrittenFile {
        let path = format!("{table}/x{}.parquet", self.shards);
        WrittenFile { table, path, rows, bytes, sha256: "ab".repeat(32) }
    }

    /// One shard: tables with 0 bytes have no file.
    fn append(&mut self, bytes: [(Table, u64); 4]) {
        self.shards += 1;
        let of = |(table, bytes): &(Table, u64)| self.file(*table, *bytes, 1 + bytes % 7);
        let files: Vec<_> = bytes.iter().filter(|(_, bytes)| *bytes > 0).map(of).collect();
        if files.is_empty() {
            return;
        }
        let version = self.commit(Op::Append, files.clone(), Vec::new());
        self.committed_at.insert(version, self.now_micros);
        let entries = files.into_iter().map(|file| (file.path.clone(), (file, BTreeSet::from([version]))));
        self.files.extend(entries);
    }

    fn replace(&mut self, parts: &[String]) {
        self.shards += 1;
        let parts: Vec<_> = parts.iter().map(|path| self.files.remove(path).unwrap()).collect();
        let bytes = parts.iter().map(|(part, _)| part.bytes).sum();
        let rows = parts.iter().map(|(part, _)| part.rows).sum();
        let merged = self.file(parts[0].0.table, bytes, rows);
        let removed: Vec<String> = parts.iter().map(|(part, _)| part.path.clone()).collect();
        self.gone.extend(removed.iter().cloned());
        self.commit(Op::Replace, vec![merged.clone()], removed);
        let versions = parts.into_iter().flat_map(|(_, versions)| versions).collect();
        self.files.insert(merged.path.clone(), (merged, versions));
    }

    /// What the planner would merge next.
    fn merge(&mut self) {
        let plans = self.planner.plan(self.manifest.snapshot(), &self.config, |_| Some(SCHEMA_VERSION));
        let Some(plan) = plans.first() else { return };
        let parts: Vec<String> = plan.parts.iter().map(|part| part.path.clone()).collect();
        self.replace(&parts);
    }

    /// Some files of a table, as a release without retention merged them.
    fn merge_any(&mut self, table: Table, picks: &[prop::sample::Index]) {
        let of_table: Vec<String> = self
            .files
            .iter()
            .filter(|(_, (file, _))| file.table == table)
            .map(|(path, _)| path.clone())
            .collect();
        if of_table.len() < 2 {
            return;
        }
        let parts: BTreeSet<String> = picks.iter().map(|pick| pick.get(&of_table).clone()).collect();
        if parts.len() > 1 {
            self.replace(&parts.into_iter().collect::<Vec<_>>());
        }
    }

    fn bytes(&self) -> u64 {
        self.files.values().map(|(file, _)| file.bytes).sum()
    }

    /// The newest commit whose rows should expire, found by trying every commit.
    fn expected_cut(&self) -> Option<u64> {
        let newest = |versions: &BTreeSet<u64>| versions.last().copied().unwrap_or(0);
        let bound: Vec<&BTreeSet<u64>> = self
            .files
            .values()
            .filter(|(file, _)| BOUND.contains(&file.table))
            .map(|(_, versions)| versions)
            .collect();
        let is_cut =
            |cut: &u64| bound.iter().all(|of| newest(of) <= *cut || of.first().is_none_or(|at| at > cut));
        let last = bound.iter().map(|versions| newest(versions)).max()?;
        let cuts: BTreeSet<u64> = bound.iter().map(|versions| newest(versions)).filter(is_cut).collect();
        let mut expired = None;
        for cut in cuts.into_iter().filter(|cut| *cut < last) {
            let stays = |after: u64| {
                self.files
                    .values()
                    .filter(move |(_, of)| newest(of) > after)
                    .map(|(file, _)| file.bytes)
                    .sum::<u64>()
            };
            let is_over = self.config.retention.bytes.is_some_and(|most| stays(expired.unwrap_or(0)) > most);
            let leaving = self.files.values().filter(|(_, of)| newest(of) <= cut);
            let newest_at = leaving.filter_map(|(_, of)| self.committed_at.get(&newest(of))).max();
            let is_past = self
                .config
                .retention
                .age
                .zip(newest_at)
                .is_some_and(|(age, at)| self.now_micros - at >= i64::try_from(age.as_micros()).unwrap());
            if !(is_over || is_past) {
                break;
            }
            expired = Some(cut);
        }
        expired
    }

    fn expire(&mut self) -> Option<ExpiryPlan> {
        let expected = self.expected_cut();
        let plan = self.config.retention.plan(self.manifest.snapshot(), self.now_micros);
        assert_eq!(plan.as_ref().map(|plan| plan.up_to), expected, "{:?}", self.files);
        let plan = plan?;
        let removed: Vec<_> = plan.removed.iter().map(|path| self.files.remove(path).unwrap()).collect();
        assert_eq!(removed.iter().map(|(file, _)| file.bytes).sum::<u64>(), plan.bytes);
        let mut rows = BTreeMap::new();
        for (file, _) in &removed {
            *rows.entry(file.table).or_insert(0) += file.rows;
            *self.expired_rows.entry(file.table).or_insert(0) += file.rows;
        }
        assert_eq!(rows, plan.rows);
        self.gone.extend(plan.removed.iter().cloned());
        self.shards += 1;
        self.commit(Op::Expire, Vec::new(), plan.removed.clone());
        let again = self.config.retention.plan(self.manifest.snapshot(), self.now_micros);
        assert_eq!(again, None, "one expiry is enough");
        Some(plan)
    }

    /// What is there, as another reader finds it.
    fn check(&self) {
        let read = block_on(Manifest::open(Arc::clone(&self.store))).unwrap();
        for snapshot in [read.snapshot(), self.manifest.snapshot()] {
            let listed: BTreeSet<&String> =
                Table::ALL.iter().flat_map(|table| snapshot.files(*table)).map(|file| &file.path).collect();
            assert_eq!(listed, self.files.keys().collect());
            assert!(self.gone.iter().all(|path| !snapshot.holds(path)));
            for table in Table::ALL {
                let want = self.expired_rows.get(&table).copied().unwrap_or(0);
                assert_eq!(snapshot.expired_rows(table), want, "{table}");
            }
        }
        let versions = |table: Table| -> BTreeSet<u64> {
            let of_table = self.files.values().filter(|(file, _)| file.table == table);
            of_table.flat_map(|(_, versions)| versions.clone()).collect()
        };
        let oldest = BOUND.iter().filter_map(|table| versions(*table).first().copied()).min();
        for table in BOUND {
            let there = versions(table);
            let lost = self.committed_at.keys().copied().filter(|version| !there.contains(version));
            let is_newer = |version: &u64| oldest.is_some_and(|oldest| *version >= oldest);
            let holes: Vec<u64> = lost.filter(is_newer).filter(|version| self.had(table, *version)).collect();
            assert!(holes.is_empty(), "{table} lost the rows of {holes:?}, and older ones are there");
        }
    }

    /// Whether a commit added rows to a table.
    fn had(&self, table: Table, version: u64) -> bool {
        let stored = block_on(furrow_records::StoredCommits::read(&self.store)).unwrap();
        let commit = stored.get(version).unwrap().as_ref().unwrap();
        commit.files.iter().any(|file| file.table == table)
    }
}

#[derive(Debug, Clone)]
enum SetAction {
    Append { trajectories: u64, steps: u64, failed: u64, groups: u64 },
    Merge,
    MergeAny(Table, Vec<prop::sample::Index>),
    Wait(i64),
    Expire,
}

fn actions() -> impl Strategy<Value = Vec<SetAction>> {
    let append =
        (1..200u64, 1..2_000u64, 0..3u64, 0..3u64).prop_map(|(trajectories, steps, failed, groups)| {
            SetAction::Append { trajectories, steps, failed: failed * 50, groups }
        });
    let table =
        prop::sample::select(vec![Table::Trajectories, Table::Steps, Table::FailedSteps, Table::Groups]);
    let any = (table, prop::collection::vec(any::<prop::sample::Index>(), 2..5));
    let action = prop_oneof![
        6 => append,
        3 => Just(SetAction::Merge),
        1 => any.prop_map(|(table, picks)| SetAction::MergeAny(table, picks)),
        1 => (1..20 * SECOND).prop_map(SetAction::Wait),
        3 => Just(SetAction::Expire),
    ];
    prop::collection::vec(action, 1..80)
}

fn retention() -> impl Strategy<Value = RetentionConfig> {
    let bytes = prop::option::of(1_000..20_000u64);
    let age = prop::option::of((1..60u64).prop_map(Duration::from_secs));
    (bytes, age).prop_map(|(bytes, age)| RetentionConfig { bytes, age })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn what_expires_is_what_a_model_says(retention in retention(), actions in actions()) {
        let mut set = ModelledSet::new(retention);
        for action in actions {
            match action {
                SetAction::Append { trajectories, steps, failed, groups } => {
                    set.append([
                        (Table::Trajectories, trajectories),
                        (Table::Steps, steps),
                        (Table::FailedSteps, failed),
                        (Table::Groups, groups),
                    ]);
                }
                SetAction::Merge => set.merge(),
                SetAction::MergeAny(table, picks) => set.merge_any(table, &picks),
                SetAction::Wait(micros) => set.now_micros += micros,
                SetAction::Expire => drop(set.expire()),
            }
        }
        set.check();
    }
}

/// A followed run of days: a small shard every two seconds.
#[test]
fn a_run_of_days_stays_below_its_limit_and_far_above_nothing() {
    let most = 64 << 20;
    let mut set = ModelledSet::new(RetentionConfig { bytes: Some(most), age: None });
    set.config.merge_files_min = 8;
    let mut most_files = 0;
    let mut least = u64::MAX;
    for tick in 0..6_000u64 {
        set.now_micros += 2 * SECOND;
        let size = 20_000 + (tick * 7_919) % 60_000;
        set.append([
            (Table::Trajectories, size / 10),
            (Table::Steps, size),
            (Table::FailedSteps, if tick % 40 == 0 { 3_000 } else { 0 }),
            (Table::Groups, 200),
        ]);
        set.expire();
        set.merge();
        assert!(set.bytes() <= most + 200_000, "{} bytes", set.bytes());
        if tick > 3_000 {
            least = least.min(set.bytes());
            most_files = most_files.max(set.files.len());
        }
        let gone: Vec<String> = set.manifest.snapshot().removed().keys().cloned().collect();
        if gone.len() > 1_000 {
            set.manifest.forget(&gone);
        }
    }
    assert!(least > most / 8 * 7, "only {least} bytes were kept");
    assert!(most_files < 800, "{most_files} files");
}

/// Commits this expiry as a coordinator does.
fn expire(dir: &std::path::Path, name: &str, plan: &ExpiryPlan) {
    let shard = Id::new(name).unwrap();
    let draft = CommitDraft::append(Vec::new(), Id::new("test").unwrap(), 1, shard, 5);
    let draft = CommitDraft { op: Op::Expire, removed: plan.removed.clone(), ..draft };
    block_on(open(dir).commit(&draft)).unwrap();
    merge::set_aside(dir, &draft.removed).unwrap();
}

fn keep(bytes: u64) -> RetentionConfig {
    RetentionConfig { bytes: Some(bytes), age: None }
}

#[test]
fn readers_see_what_is_left_and_a_slow_one_learns_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let sizes: Vec<u64> =
        (0..4).map(|group| commit_group(dir.path(), group, 2).iter().map(|file| file.bytes).sum()).collect();
    let before = DataSet::open(dir.path()).unwrap();
    let plan = keep(sizes[2] + sizes[3]).plan(before.snapshot(), 0).unwrap();
    assert_eq!((plan.up_to, plan.bytes), (2, sizes[0] + sizes[1]));
    expire(dir.path(), "e", &plan);
    let after = DataSet::open(dir.path()).unwrap();
    let ids = |set: &DataSet| set.trajectory_ids().unwrap();
    assert_eq!((ids(&before).len(), ids(&after).len()), (8, 4), "within the grace all can be read");
    assert!(ids(&after).iter().all(|id| id.contains("g000002") || id.contains("g000003")));
    assert_eq!(after.snapshot().expired_rows(Table::Trajectories), 4);
    let report = verify(dir.path()).unwrap();
    assert!(report.is_sound() && report.warnings.is_empty(), "{report:#?}");
    let expired = report.expired.unwrap();
    assert_eq!((expired.trajectories, expired.steps, expired.groups_cut), (4, 12, 0));

    let manifest = open(dir.path());
    let retired = merge::retire(dir.path(), manifest.snapshot(), 5, Duration::ZERO).unwrap();
    assert_eq!(retired.removed.len(), plan.removed.len());
    let error = before.trajectories().find_map(Result::err).unwrap();
    assert!(matches!(error, RecordsError::Expired { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("have expired") && text.contains("records.retention_bytes"), "{text}");
    assert_eq!(before.trajectories().filter(Result::is_ok).count(), 4, "the others are read");
    // What is missing for another reason is no expiry.
    let kept = after.snapshot().files(Table::Steps).next().unwrap().path.clone();
    std::fs::remove_file(dir.path().join(kept)).unwrap();
    let error = after.steps().find_map(Result::err).unwrap();
    assert!(matches!(error, RecordsError::Io { .. }), "{error}");
}

#[test]
fn steps_do_not_expire_without_their_trajectories() {
    for (table, want) in
        [(Table::Steps, VerifyCheck::StepCount), (Table::Trajectories, VerifyCheck::StepParent)]
    {
        let dir = tempfile::tempdir().unwrap();
        let files = commit_group(dir.path(), 0, 2);
        commit_group(dir.path(), 1, 2);
        let removed = files.iter().filter(|file| file.table == table).map(|file| file.path.clone()).collect();
        let plan = ExpiryPlan { up_to: 1, removed, rows: BTreeMap::new(), bytes: 0 };
        expire(dir.path(), "e", &plan);
        let report = verify(dir.path()).unwrap();
        let found: BTreeSet<VerifyCheck> = report.breaches.iter().map(|breach| breach.check).collect();
        assert_eq!(found, BTreeSet::from([want]), "{report:#?}");
    }
}

/// A group whose row came later than its first trajectories.
#[test]
fn a_group_that_lost_trajectories_is_counted_and_one_that_has_too_many_is_a_breach() {
    use furrow_records::fixtures::data_set::{commit_files, write};
    use furrow_records::fixtures::{TrajectoryFixture, group};
    for too_many in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let made =
            |sample| TrajectoryFixture { sample, group_size: 3, ..TrajectoryFixture::default() }.trajectory();
        let all = [made(0), made(1), made(2)];
        let listed = if too_many { &all[..1] } else { &all[..] };
        let row = group(&listed.iter().map(|(record, _)| record.clone()).collect::<Vec<_>>());
        commit_files(dir.path(), "a", write(dir.path(), "a", &all[..1], &[], &[]));
        commit_files(dir.path(), "b", write(dir.path(), "b", &all[1..], &[row], &[]));
        let plan = keep(1).plan(DataSet::open(dir.path()).unwrap().snapshot(), 0).unwrap();
        assert_eq!(plan.up_to, 1);
        expire(dir.path(), "e", &plan);
        let report = verify(dir.path()).unwrap();
        let cut = report.expired.unwrap().groups_cut;
        assert_eq!((report.is_sound(), cut), if too_many { (false, 0) } else { (true, 1) }, "{report:#?}");
    }
}

/// A file that an earlier release merged may hold rows of any time.
#[test]
fn a_checkpoint_of_an_earlier_release_does_not_say_how_old_rows_are() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let mut set = ModelledSet::new(keep(1));
    set.append([(Table::Trajectories, 5), (Table::Steps, 50), (Table::FailedSteps, 0), (Table::Groups, 1)]);
    set.append([(Table::Trajectories, 5), (Table::Steps, 50), (Table::FailedSteps, 0), (Table::Groups, 1)]);
    let snapshot = set.manifest.snapshot();
    assert_eq!(keep(1).plan(snapshot, 0).map(|plan| plan.up_to), Some(1));
    let mut text = serde_json::to_value(snapshot).unwrap();
    for listed in text["files"].as_object_mut().unwrap().values_mut() {
        assert!(listed.as_object_mut().unwrap().remove("rows").is_some());
    }
    let older = serde_json::from_value(text).unwrap();
    let manifest = Manifest::at(store, older, 0);
    assert_eq!(keep(1).plan(manifest.snapshot(), 0), None, "they may be of one file");
}
