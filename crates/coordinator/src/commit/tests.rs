//! Commits of shards, and crashes in the middle of them: the run directory is copied at every
//! stage, and every copy must recover.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use furrow_records::fixtures::{TrajectoryFixture, group};
use furrow_records::{Commit, DataSet, RecordsFile, RescoreRecord, StoredCommits, local_files, verify};
use furrow_rollout::{EndKind, StepRecord, TrajectoryAncestry, TrajectoryRecord};
use furrow_wire::{OpaqueStep, digest, encode_ending, encode_opaque_step, encode_trace};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::*;
use crate::ledger::conformance::{draw, opened};
use crate::ledger::{
    Ledger, LedgerLimits, LedgerSnapshot, MemoryLedger, PolicyFacts, SqliteLedger, TaskDraw, TimedScore,
    TrajectoryEnd, TrajectoryStanding, TrajectoryStart,
};
use crate::small_disk::{is_limited, on_small_disk};
use crate::spool::SpoolLimits;

/// A run with a ledger and a spool in which everything has ended and nothing is committed.
struct TestRun {
    dir: TempDir,
    stories: BTreeMap<Id<Trajectory>, ExpectedTrajectory>,
    groups: BTreeMap<Id<Group>, GroupRecord>,
}

/// What one trajectory must look like in the data set.
#[derive(Clone)]
struct ExpectedTrajectory {
    record: TrajectoryRecord,
    steps: Vec<StepRecord>,
}

/// Slots of two groups: one failed attempt that was retried, one hang, different lengths.
fn plots() -> Vec<TrajectoryFixture> {
    let plot = |group, sample, attempt, end, steps| TrajectoryFixture {
        run: "r".into(),
        group,
        sample,
        attempt,
        group_size: 2,
        end,
        steps,
        ..TrajectoryFixture::default()
    };
    vec![
        plot(0, 0, 0, EndKind::Answered, 3),
        plot(0, 1, 0, EndKind::BrowserDead, 2),
        plot(0, 1, 1, EndKind::Done, 1),
        plot(1, 0, 0, EndKind::MaxSteps, 4),
        plot(1, 1, 0, EndKind::LeaseLost, 0),
    ]
}

/// Each fits a file of 4 MB in the spool; together they exceed one in a shard.
fn heavy() -> Vec<TrajectoryFixture> {
    let size = furrow_rollout::Size::new(700, 700);
    let plot = |sample| TrajectoryFixture {
        run: "r".into(),
        group_size: 2,
        steps: 6,
        sample,
        size,
        ..TrajectoryFixture::default()
    };
    vec![plot(0), plot(1)]
}

impl TestRun {
    fn new(plots: &[TrajectoryFixture]) -> Self {
        let dir = quick_dir();
        let stories = (1..).zip(plots).map(|(token, plot)| ExpectedTrajectory::of(plot, token));
        let stories = stories.map(|story| (story.record.ancestry.trajectory_id.clone(), story)).collect();
        let mut world = Self { dir, stories, groups: BTreeMap::new() };
        world.groups = world.closed_groups();
        world.fill();
        world
    }

    fn closed_groups(&self) -> BTreeMap<Id<Group>, GroupRecord> {
        let mut members = BTreeMap::<_, Vec<TrajectoryRecord>>::new();
        for story in self.stories.values() {
            members.entry(story.record.ancestry.group_id.clone()).or_default().push(story.record.clone());
        }
        members.into_iter().map(|(id, records)| (id, group(&records))).collect()
    }

    /// Brings ledger and spool to where the coordinator would have them by now.
    fn fill(&self) {
        let mut ledger = SqliteLedger::open(self.dir.path().join("ledger.sqlite")).unwrap();
        let (spool, _) = Spool::open(self.dir.path().join("spool"), SpoolLimits::default()).unwrap();
        let mut mutations = vec![opened()];
        for (index, id) in (0..).zip(self.groups.keys()) {
            let drawn = TaskDraw { group_id: id.clone(), task_id: "click-it".into(), ..draw(index, 2) };
            mutations.push(Mutation::GroupDrawn { draw: drawn, draws: index });
        }
        let mut stories: Vec<_> = self.stories.values().collect();
        stories.sort_by_key(|story| story.record.token);
        for story in stories {
            story.spool(&spool);
            mutations.extend(story.mutations());
        }
        mutations.extend(
            self.groups.keys().map(|id| Mutation::GroupClosed { group_id: id.clone(), at_micros: 1 }),
        );
        ledger.commit(&mutations).unwrap();
    }

    fn scored_reward(&self, id: &str) -> f32 {
        self.stories[&Id::new(id).unwrap()].record.score.as_ref().unwrap().reward.unwrap()
    }

    fn batch(&self, snapshot: &LedgerSnapshot) -> ShardBatch {
        let trajectories = snapshot.uncommitted().map(|row| self.stories[&row.start.trajectory_id].facts());
        let groups = snapshot.groups.iter().filter(|row| row.shard_id.is_none());
        ShardBatch {
            trajectories: trajectories.collect(),
            groups: groups.map(|row| self.groups[&row.draw.group_id].clone()).collect(),
        }
    }

    /// Two batches in the order of the ends, so that a group waits for its last trajectory.
    fn batches(&self, snapshot: &LedgerSnapshot) -> [ShardBatch; 2] {
        let mut first = self.batch(snapshot);
        let later = first.trajectories.split_off(2);
        let groups = first.groups.split_off(0);
        [first, ShardBatch { trajectories: later, groups }]
    }

    /// Checks that every acknowledged trajectory is there exactly once and whole, and that nothing
    /// else is left.
    #[track_caller]
    fn check(&self, run_dir: &Path, what: &str) {
        let set = DataSet::open(run_dir).unwrap();
        let mut records: Vec<TrajectoryRecord> = set.trajectories().map(Result::unwrap).collect();
        records.sort_by_key(|record| record.token);
        let mut want: Vec<_> = self.stories.values().map(ExpectedTrajectory::expected).collect();
        want.sort_by_key(|record| record.token);
        assert_eq!(records, want, "{what}");
        for story in self.stories.values() {
            let rows = if story.is_scored() { set.steps() } else { set.failed_steps() };
            let rows = rows.map(Result::unwrap).filter(|row| row.ancestry == story.record.ancestry);
            assert_eq!(rows.map(|row| row.record).collect::<Vec<_>>(), story.steps, "{what}");
        }
        let groups: Vec<GroupRecord> = set.groups().map(Result::unwrap).collect();
        assert_eq!(groups, self.groups.values().cloned().collect::<Vec<_>>(), "{what}");
        let report = verify(run_dir).unwrap();
        assert!(report.is_sound(), "{what}: {report:?}");
        assert_eq!(names(&run_dir.join("spool")), BTreeSet::new(), "{what}");
        for file in local_files(&run_dir.join("data")).unwrap() {
            assert!(set.snapshot().holds(&file.name), "{what}: {} was left behind", file.name);
        }
    }
}

impl ExpectedTrajectory {
    fn of(plot: &TrajectoryFixture, token: u64) -> Self {
        let (mut record, steps) = plot.trajectory();
        record.token = token;
        Self { record, steps }
    }

    fn is_scored(&self) -> bool {
        self.record.score.is_some()
    }

    /// A failed trajectory without a reported ending: times and ids come from its steps and its
    /// lease.
    fn expected(&self) -> TrajectoryRecord {
        let mut record = self.record.clone();
        if !self.is_scored() {
            record.score_micros = 0;
            record.ending.goal.clear();
            record.ending.last_outcome = self.steps.last().map(|step| step.outcome.clone());
            record.ending.environment = Default::default();
            record.ending.environment.worker = "env-1".into();
        }
        record
    }

    fn ended(&self) -> TrajectoryEnd {
        let ending = &self.record.ending;
        TrajectoryEnd {
            end: ending.end,
            reason: ending.reason.clone(),
            steps: self.steps.len() as u32,
            policy_versions: self.record.policy_versions,
            staleness: self.record.staleness,
            at_micros: self.record.ended_at_micros,
        }
    }

    fn verdict(&self) -> Option<TimedScore> {
        let score = self.record.score.clone()?;
        Some(TimedScore { score, micros: self.record.score_micros })
    }

    fn start(&self) -> TrajectoryStart {
        let TrajectoryAncestry { trajectory_id, group_id, sample_index, attempt, .. } =
            self.record.ancestry.clone();
        TrajectoryStart {
            trajectory_id,
            group_id,
            sample_index,
            attempt,
            token: self.record.token,
            env_worker: Id::new("env-1").unwrap(),
            policy: PolicyFacts {
                worker: Id::new("policy-1").unwrap(),
                address: "127.0.0.1:1".into(),
                kind: self.record.policy_kind,
                version: None,
                hashes: self.record.hashes.clone(),
            },
            at_micros: self.record.started_at_micros,
            queue_micros: self.record.queue_micros,
        }
    }

    fn mutations(&self) -> Vec<Mutation> {
        let trajectory_id = self.record.ancestry.trajectory_id.clone();
        let token = self.record.token;
        let ended = self.ended();
        let mut mutations = vec![Mutation::Assigned(self.start())];
        match self.verdict() {
            None => mutations.push(Mutation::Failed { trajectory_id, ended }),
            Some(verdict) => {
                let evidence_sha256 = verdict.score.evidence_sha256;
                let finished = trajectory_id.clone();
                mutations.push(Mutation::Finished { trajectory_id: finished, token, ended, evidence_sha256 });
                mutations.push(Mutation::Scored { trajectory_id, verdict });
            }
        }
        mutations
    }

    fn facts(&self) -> TrajectoryFacts {
        let record = self.record.clone();
        TrajectoryFacts {
            ancestry: record.ancestry,
            task: record.task,
            task_json: record.task_json,
            policy_kind: record.policy_kind,
            hashes: record.hashes,
            session: record.session,
            group_size: record.group_size,
            token: record.token,
            env_worker: "env-1".into(),
            queue_micros: record.queue_micros,
            started_at_micros: record.started_at_micros,
            ended: self.ended(),
            verdict: self.verdict(),
            cost_usd: None,
        }
    }

    fn spool(&self, spool: &Spool) {
        let runtime = Runtime::new().unwrap();
        let id = &self.record.ancestry.trajectory_id;
        for step in &self.steps {
            let bytes = encode_opaque_step(&sealed(step));
            runtime.block_on(spool.append_step(id, step.step, digest(&bytes), bytes)).unwrap();
        }
        if self.is_scored() {
            let bytes = encode_ending(&self.record.ending);
            runtime.block_on(spool.append_ending(id, digest(&bytes), bytes)).unwrap();
        }
    }
}

fn sealed(step: &StepRecord) -> OpaqueStep {
    let StepRecord { step, observation, reply, outcome, trace, timing, observed_at_micros } = step.clone();
    OpaqueStep { step, observation, reply, outcome, trace: encode_trace(&trace), timing, observed_at_micros }
}

/// A directory in memory where the system has one: these tests check which files exist, not what a
/// disk kept.
fn quick_dir() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

fn names(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn settings(data_dir: PathBuf) -> CommitSettings {
    let file = RecordsFile { merge_files_min: 2, max_delay_millis: Some(100), ..RecordsFile::default() };
    let run_id = Id::new("r").unwrap();
    CommitSettings {
        run_dir: data_dir.parent().unwrap().to_owned(),
        data_dir,
        run_id,
        job_toml: "[run]\nname = \"r\"\n".into(),
        records: file.check().unwrap(),
    }
}

/// Starts a coordinator on the directory.
fn restart(run_dir: &Path) -> Result<RecoveredRun, CommitError> {
    restart_in(run_dir, run_dir.join("data"))
}

fn restart_in(run_dir: &Path, data_dir: PathBuf) -> Result<RecoveredRun, CommitError> {
    let mut ledger = SqliteLedger::open(run_dir.join("ledger.sqlite"))?;
    ledger.commit(&[opened()])?;
    let (spool, spooled) = Spool::open(run_dir.join("spool"), SpoolLimits::default())?;
    ShardCommitter::recover(settings(data_dir), ledger, LedgerLimits::default(), spool, spooled)
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let from = entry.path();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_tree(&from, &to),
            false => drop(fs::copy(&from, &to).unwrap()),
        }
    }
}

/// What a crash at each stage would leave, with the stage's name.
type StageImages = Arc<Mutex<Vec<(String, PathBuf)>>>;

/// Copies the run directory at every stage from now on.
fn photograph(committer: &mut ShardCommitter, run_dir: &Path, album: &Path) -> StageImages {
    let images = StageImages::default();
    let taken = Arc::clone(&images);
    let run_dir = run_dir.to_owned();
    let album = album.to_owned();
    committer.on_stage(move |stage| {
        let mut taken = taken.lock().unwrap();
        let name = format!("{:03}-{}", taken.len(), stage.fail_point());
        copy_tree(&run_dir, &album.join(&name));
        taken.push((name.clone(), album.join(name)));
    });
    images
}

#[test]
fn a_crash_at_any_stage_loses_nothing_and_doubles_nothing() {
    let world = TestRun::new(&plots());
    let album = quick_dir();
    let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
    let images = photograph(&mut committer, world.dir.path(), album.path());
    for batch in world.batches(&snapshot) {
        committer.commit(&batch).unwrap();
    }
    committer.merge().unwrap();
    drop(committer);
    world.check(world.dir.path(), "undisturbed");
    let images = images.lock().unwrap().clone();
    for stage in CommitStage::ALL {
        let visits = images.iter().filter(|(name, _)| name.ends_with(stage.fail_point())).count();
        assert!(visits >= 2, "{} was passed {visits} times", stage.fail_point());
    }
    for (name, run_dir) in images {
        drop(restart(&run_dir).unwrap()); // a crash right after recovery: recovery must be repeatable
        let RecoveredRun { mut committer, snapshot, .. } = restart(&run_dir).unwrap();
        assert!(snapshot.shards.is_empty(), "{name}");
        let rest = world.batch(&snapshot);
        if rest != ShardBatch::default() {
            committer.commit(&rest).unwrap();
        }
        drop(committer);
        world.check(&run_dir, &name);
    }
}

#[test]
fn a_manifest_commit_missing_from_the_ledger_is_found_again() {
    let world = TestRun::new(&plots());
    let album = quick_dir();
    let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
    let images = photograph(&mut committer, world.dir.path(), album.path());
    let committed = committer.commit(&world.batch(&snapshot)).unwrap();
    let after = |stage: CommitStage| {
        let images = images.lock().unwrap();
        images.iter().find(|(name, _)| name.ends_with(stage.fail_point())).unwrap().1.clone()
    };
    for (stage, commits_before) in [(CommitStage::Written, 0), (CommitStage::Manifest, 1)] {
        let run_dir = after(stage);
        assert_eq!(names(&run_dir.join("data/manifest")).len(), commits_before);
        drop(restart(&run_dir).unwrap());
        let set = DataSet::open(&run_dir).unwrap();
        assert_eq!(set.snapshot().version(), 1);
        assert_eq!(set.snapshot().version_of(&committed.shard_id), Some(committed.manifest_version));
        world.check(&run_dir, stage.fail_point());
    }
}

#[test]
fn an_undone_shard_comes_back_under_another_name() {
    let world = TestRun::new(&plots());
    let album = quick_dir();
    let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
    let images = photograph(&mut committer, world.dir.path(), album.path());
    let committed = committer.commit(&world.batch(&snapshot)).unwrap();
    let (_, run_dir) = images.lock().unwrap()[3].clone();
    let RecoveredRun { mut committer, snapshot, .. } = restart(&run_dir).unwrap();
    let repeated = committer.commit(&world.batch(&snapshot)).unwrap();
    assert_eq!((committed.shard_id.as_str(), repeated.shard_id.as_str()), ("r-x000000", "r-x000001"));
    assert_eq!((repeated.trajectories, repeated.groups), (committed.trajectories, committed.groups));
}

/// Changes the bytes of a file as a bad disk would.
type DamageFile = fn(&mut Vec<u8>);

/// Every file below a folder with its bytes.
fn tree(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else {
                found.insert(path.strip_prefix(dir).unwrap().to_owned(), fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// A run whose two shards and their merge are committed.
fn committed_run() -> TestRun {
    let world = TestRun::new(&plots());
    let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
    for batch in world.batches(&snapshot) {
        committer.commit(&batch).unwrap();
    }
    committer.merge().unwrap();
    world
}

fn kept(world: &TestRun) -> Vec<(String, String)> {
    let entries = crate::lost_and_found(world.dir.path()).unwrap();
    entries.into_iter().map(|entry| (entry.from.display().to_string(), entry.why)).collect()
}

#[test]
fn files_of_no_shard_are_put_aside_and_only_abandoned_ones_removed() {
    let world = TestRun::new(&plots());
    let data = world.dir.path().join("data");
    let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
    committer.commit(&world.batch(&snapshot)).unwrap();
    let abandoned = committer.opening(Vec::new(), Vec::new(), vec!["steps/x.parquet".into()]).unwrap();
    committer.remember_opening(&abandoned).unwrap();
    committer.undo(&abandoned.shard_id).unwrap();
    drop(committer);
    fs::create_dir_all(data.join("scores")).unwrap();
    fs::create_dir_all(data.join("steps/folder")).unwrap();
    let removed = format!("steps/{}.parquet", abandoned.shard_id);
    let foreign = [
        "steps/r-x000009.parquet",
        "groups/.r-x000009.parquet.tmp",
        "trajectories/notes.txt",
        "steps/folder/inside",
    ];
    let staged = "manifest/00000000000000000002.json#1";
    let others = ["scores/mine.parquet", "README"];
    for name in foreign.iter().chain(&others).chain([&staged, &removed.as_str()]) {
        fs::write(data.join(name), *name).unwrap();
    }
    drop(restart(world.dir.path()).unwrap());
    for name in foreign.iter().chain([&staged, &removed.as_str()]) {
        assert!(!data.join(name).exists(), "{name}");
    }
    assert!(others.iter().all(|name| data.join(name).exists()));
    let aside = tree(&world.dir.path().join("lost+found"));
    for name in foreign {
        let at = aside.iter().find(|(path, _)| path.ends_with(Path::new("data").join(name)));
        assert_eq!(at.map(|(_, bytes)| bytes.as_slice()), Some(name.as_bytes()), "{name} was not kept");
    }
    assert!(
        !aside.keys().any(|path| path.ends_with(&removed)),
        "files of a shard that the ledger abandoned do not belong in lost+found"
    );
    fs::remove_file(data.join("scores/mine.parquet")).unwrap();
    world.check(world.dir.path(), "after the moves to lost+found");
}

/// A regression test: commits are missing, and the start removed what they named.
#[test]
fn missing_commits_are_made_again_and_no_file_is_removed() {
    for lost in [vec![1], vec![2], vec![3], vec![2, 3], vec![1, 2, 3], vec![1, 3]] {
        let world = committed_run();
        let commits = names(&world.dir.path().join("data/manifest"));
        assert!(commits.len() >= 3, "{commits:?}");
        let before = tree(&world.dir.path().join("data"));
        let manifest = |version: u64| world.dir.path().join("data").join(StoredCommits::file_name(version));
        lost.iter().for_each(|version| fs::remove_file(manifest(*version)).unwrap());
        drop(restart(world.dir.path()).unwrap());
        let after = tree(&world.dir.path().join("data"));
        assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>(), "{lost:?}");
        let is_table = |path: &&PathBuf| !path.starts_with("manifest");
        for path in before.keys().filter(is_table) {
            assert_eq!(before[path], after[path], "{lost:?}: {}", path.display());
        }
        for path in before.keys().filter(|path| path.starts_with("manifest")) {
            let commit = |bytes: &[u8]| -> serde_json::Value {
                let mut commit: serde_json::Value = serde_json::from_slice(bytes).unwrap();
                commit["created_at_micros"] = 0.into();
                commit["txn"]["epoch"] = 0.into();
                commit
            };
            assert_eq!(commit(&before[path]), commit(&after[path]), "{lost:?}: {}", path.display());
        }
        world.check(world.dir.path(), &format!("{lost:?}"));
        // and the run continues: the next number is free
        let RecoveredRun { mut committer, .. } = restart(world.dir.path()).unwrap();
        committer.merge().unwrap();
    }
}

#[test]
fn the_whole_manifest_is_made_again() {
    let world = committed_run();
    fs::remove_dir_all(world.dir.path().join("data/manifest")).unwrap();
    drop(restart(world.dir.path()).unwrap());
    world.check(world.dir.path(), "no manifest");
    assert_eq!(kept(&world), []);
}

/// A scoring of stored trajectories commits between two shards; the ledger does not know of it.
#[test]
fn the_commit_of_a_scoring_is_made_again_from_its_file() {
    let world = TestRun::new(&plots());
    let data_dir = world.dir.path().join("data");
    let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
    let [first, second] = world.batches(&snapshot);
    committer.commit(&first).unwrap();
    let story = world.stories.values().find(|story| story.is_scored()).unwrap();
    let shard_id = Id::new("r-score-17").unwrap();
    let mut scores = ShardWriter::create(committer.shard_plan(&shard_id));
    let task = story.record.task.clone();
    scores
        .add_rescore(&RescoreRecord {
            ancestry: story.record.ancestry.clone(),
            task_id: task.task_id,
            suite: task.suite,
            split: task.split,
            score: story.record.score.clone().unwrap(),
            scored_at_micros: 17,
        })
        .unwrap();
    let files = scores.finish(|_, _| {}).unwrap();
    let draft = CommitDraft::append(files, Id::new("r").unwrap(), 0, shard_id, 17);
    committer.runtime.block_on(committer.manifest.commit(&draft)).unwrap();
    committer.commit(&second).unwrap();
    drop(committer);
    let commits = names(&data_dir.join("manifest"));
    fs::remove_dir_all(data_dir.join("manifest")).unwrap();
    let refused = check_manifest_is_whole(world.dir.path(), &data_dir).unwrap_err().to_string();
    assert!(refused.contains("3 commits of the manifest are missing or damaged"), "{refused}");
    drop(restart(world.dir.path()).unwrap());
    assert_eq!(names(&data_dir.join("manifest")), commits);
    check_manifest_is_whole(world.dir.path(), &data_dir).unwrap();
    let set = DataSet::open(world.dir.path()).unwrap();
    assert_eq!(set.snapshot().version_of(&Id::new("r-score-17").unwrap()), Some(2));
    world.check(world.dir.path(), "scored between the shards");
}

#[test]
fn a_damaged_commit_is_put_aside_and_made_again() {
    let damages: [DamageFile; 4] = [
        |bytes| bytes.clear(),
        |bytes| bytes.truncate(bytes.len() / 2),
        |bytes| {
            let at = bytes.windows(6).position(|part| part == b"sha256").unwrap() + 10;
            bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
        },
        |bytes| bytes[0] ^= 1,
    ];
    for version in [1, 2, 3] {
        for damage in damages {
            let world = committed_run();
            let path = world.dir.path().join("data").join(StoredCommits::file_name(version));
            let mut bytes = fs::read(&path).unwrap();
            damage(&mut bytes);
            fs::write(&path, &bytes).unwrap();
            drop(restart(world.dir.path()).unwrap());
            world.check(world.dir.path(), "damaged commit");
            let aside = tree(&world.dir.path().join("lost+found"));
            assert!(aside.values().any(|kept| *kept == bytes), "commit {version}: {:?}", kept(&world));
        }
    }
}

/// Commits everything and returns the run directory as a kill after the first visit of a stage
/// would have left it.
fn killed_after(stage: CommitStage, world: &TestRun, album: &Path) -> PathBuf {
    let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
    let images = photograph(&mut committer, world.dir.path(), album);
    committer.commit(&world.batch(&snapshot)).unwrap();
    drop(committer);
    let images = images.lock().unwrap().clone();
    let is_it = |(name, _): &(String, PathBuf)| name.ends_with(stage.fail_point());
    images.into_iter().find(is_it).unwrap().1
}

fn make_pipe(path: &Path) {
    let kind = rustix::fs::FileType::Fifo;
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
}

/// Checks that the next start after a change to a filled run directory is refused with this text
/// and changes nothing.
#[track_caller]
fn refused(world: &TestRun, change: impl FnOnce(&TestRun), part: &str) {
    change(world);
    let watched = |world: &TestRun| {
        let mut tree = tree(world.dir.path());
        tree.retain(|path, _| !path.to_string_lossy().starts_with("ledger"));
        tree
    };
    let before = watched(world);
    let error = restart(world.dir.path()).map(drop).unwrap_err();
    assert!(error.to_string().contains(part), "{error}, not {part}");
    assert!(before == watched(world), "a refused start changed something ({part})");
}

#[test]
fn what_contradicts_the_ledger_is_refused_before_anything_changes() {
    let spool = |world: &TestRun, id: &str| world.dir.path().join(format!("spool/r-{id}.spool"));
    refused(
        &TestRun::new(&plots()),
        |world| fs::remove_file(spool(world, "g000000-s0-a0")).unwrap(),
        "r-g000000-s0-a0 was acknowledged (3 steps and the ending), but spool/ has no file of it",
    );
    refused(
        &TestRun::new(&plots()),
        |world| fs::remove_dir_all(world.dir.path().join("spool")).unwrap(),
        "but spool/ has no file of it",
    );
    refused(
        &TestRun::new(&plots()),
        |world| fs::write(spool(world, "g000007-s0-a0"), "").unwrap(),
        "spool/ holds r-g000007-s0-a0, which the ledger does not know",
    );
    refused(
        &TestRun::new(&plots()),
        |world| {
            let ledger = world.dir.path().join("ledger.sqlite");
            let old = fs::read(&ledger).unwrap();
            let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
            committer.commit(&world.batch(&snapshot)).unwrap();
            drop(committer);
            fs::write(&ledger, old).unwrap();
        },
        "manifest commit 1 names shard r-x000000, which the ledger does not know: ledger.sqlite is older \
         than data/",
    );
    // data/ restored from before the shards: neither commits nor files
    refused(
        &committed_run(),
        |world| fs::remove_dir_all(world.dir.path().join("data")).unwrap(),
        "that ledger.sqlite records as committed are neither in the manifest nor whole on disk",
    );
    // more than lost+found takes: none of them is moved
    refused(
        &committed_run(),
        |world| {
            for index in 0..1_001 {
                fs::write(world.dir.path().join(format!("data/steps/other-{index}.parquet")), "x").unwrap();
            }
        },
        "and 1001 more to add",
    );
    // a commit of a scoring that cannot be restored
    refused(
        &committed_run(),
        |world| {
            let name = |version| world.dir.path().join("data").join(StoredCommits::file_name(version));
            let newest = names(&world.dir.path().join("data/manifest")).len() as u64;
            let Commit { files, .. } = serde_json::from_slice(&fs::read(name(1)).unwrap()).unwrap();
            let mut file = files[0].clone();
            (file.table, file.path) = (furrow_records::Table::Scores, "scores/r-score-1.parquet".into());
            let draft =
                CommitDraft::append(vec![file], Id::new("r").unwrap(), 0, Id::new("r-score-1").unwrap(), 1);
            let commit = draft.numbered(newest + 2);
            fs::write(name(newest + 2), serde_json::to_vec(&commit).unwrap()).unwrap();
        },
        "neither the ledger nor data/scores/ holds what it named",
    );
}

#[test]
fn a_ledger_older_than_the_data_set_is_refused() {
    let world = TestRun::new(&plots());
    let album = quick_dir();
    let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
    let images = photograph(&mut committer, world.dir.path(), album.path());
    committer.commit(&world.batch(&snapshot)).unwrap();
    let opened = images.lock().unwrap()[0].1.clone();
    copy_tree(&world.dir.path().join("data"), &opened.join("data"));
    let error = restart(&opened).map(drop).unwrap_err();
    assert!(matches!(error, CommitError::Disagreement(LedgerDisagreement::LedgerBehind { .. })), "{error}");
}

/// One spool file is damaged in every way; its trajectory ends as `record_lost`, all others are
/// committed.
#[test]
fn a_damaged_spool_file_costs_its_own_trajectory_alone() {
    let damages: [(&str, DamageFile); 6] = [
        ("a bit of the first header", |bytes| bytes[20] ^= 1),
        ("a bit of the first payload", |bytes| bytes[300] ^= 1),
        ("the first length", |bytes| bytes[13] ^= 0x10),
        ("the last byte", |bytes| bytes.truncate(bytes.len() - 1)),
        ("a bit of the ending", |bytes| *bytes.last_mut().unwrap() ^= 1),
        ("all of it", Vec::clear),
    ];
    for (what, damage) in damages {
        let world = TestRun::new(&plots());
        let id = "r-g000000-s0-a0";
        let path = world.dir.path().join(format!("spool/{id}.spool"));
        let mut bytes = fs::read(&path).unwrap();
        damage(&mut bytes);
        fs::write(&path, &bytes).unwrap();
        let RecoveredRun { snapshot, lost, spooled, .. } = restart(world.dir.path()).unwrap();
        assert_eq!(lost.iter().map(Id::as_str).collect::<Vec<_>>(), [id], "{what}");
        let row = |id: &str| {
            snapshot.trajectories.iter().find(|row| row.start.trajectory_id.as_str() == id).unwrap()
        };
        let TrajectoryStanding::Failed { ended } = &row(id).standing else { panic!("{what}: {:?}", row(id)) };
        assert_eq!(ended.end, EndKind::RecordLost, "{what}");
        assert!(ended.reason.starts_with("of 3 acknowledged steps "), "{what}: {}", ended.reason);
        let others = world.stories.keys().filter(|other| other.as_str() != id);
        for other in others {
            assert_eq!(
                row(other.as_str()).standing.ended().unwrap().end,
                world.stories[other].record.ending.end
            );
        }
        let found = spooled.iter().find(|found| found.trajectory_id.as_str() == id).unwrap();
        assert_eq!((found.steps.len() as u32, found.ending), (ended.steps, None), "{what}");
        let aside = tree(&world.dir.path().join("lost+found"));
        assert!(aside.values().any(|kept| *kept == bytes), "{what}: the damaged file was not kept unchanged");
        // what is left of it is committed as a failed trajectory, and the next start finds nothing
        // to do
        let RecoveredRun { mut committer, snapshot, lost, .. } = restart(world.dir.path()).unwrap();
        assert_eq!(lost, [], "{what}");
        let mut batch = world.batch(&snapshot);
        batch.groups.clear();
        for facts in &mut batch.trajectories {
            if facts.ancestry.trajectory_id.as_str() == id {
                (facts.ended, facts.verdict) = (ended.clone(), None);
            }
        }
        committer.commit(&batch).unwrap();
        drop(committer);
        let set = DataSet::open(world.dir.path()).unwrap();
        let records: Vec<TrajectoryRecord> = set.trajectories().map(Result::unwrap).collect();
        assert_eq!(records.len(), world.stories.len(), "{what}");
        let scored = records.iter().filter(|record| record.score.is_some()).count();
        assert_eq!(scored, 2, "{what}");
    }
}

/// The ledger was restored from a time when a shard was unfinished; its rows have left the spool
/// since, so its files are the only copy.
#[test]
fn an_unfinished_shard_whose_rows_are_nowhere_else_is_kept() {
    let world = TestRun::new(&plots());
    let album = quick_dir();
    let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
    for batch in world.batches(&snapshot) {
        committer.commit(&batch).unwrap();
    }
    let images = photograph(&mut committer, world.dir.path(), album.path());
    committer.merge().unwrap();
    drop(committer);
    let (_, opened) = images.lock().unwrap()[0].clone();
    let run_dir = world.dir.path();
    let merged: Vec<_> = tree(&run_dir.join("data"))
        .into_iter()
        .filter(|(path, _)| {
            !opened.join("data").join(path).exists()
                && path.extension().is_some_and(|end| end == "parquet")
                && !path.starts_with("replaced")
        })
        .collect();
    assert!(!merged.is_empty());
    // The grace of the parts is over, and ledger and manifest are from when the merge began.
    fs::remove_dir_all(run_dir.join("data/replaced")).unwrap();
    fs::remove_dir_all(run_dir.join("data/manifest")).unwrap();
    copy_tree(&opened.join("data/manifest"), &run_dir.join("data/manifest"));
    for name in ["ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"] {
        fs::remove_file(run_dir.join(name)).ok();
        if opened.join(name).exists() {
            fs::copy(opened.join(name), run_dir.join(name)).unwrap();
        }
    }
    drop(restart(run_dir).unwrap());
    let kept: Vec<_> = tree(run_dir).into_values().collect();
    for (path, bytes) in &merged {
        assert!(kept.contains(bytes), "{} is gone", path.display());
    }
}

/// A crash before the spool deleted its copy, and a committed file that a disk damaged: the spool
/// has the last readable copy.
#[test]
fn the_spool_keeps_the_last_copy() {
    let world = TestRun::new(&plots());
    let album = quick_dir();
    let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
    let images = photograph(&mut committer, world.dir.path(), album.path());
    committer.commit(&world.batch(&snapshot)).unwrap();
    let images = images.lock().unwrap().clone();
    let (_, run_dir) =
        images.iter().find(|(name, _)| name.ends_with(CommitStage::Committed.fail_point())).unwrap().clone();
    let spooled = tree(&run_dir.join("spool"));
    assert!(!spooled.is_empty());
    let path = run_dir.join("data/steps/r-x000000.parquet");
    let mut bytes = fs::read(&path).unwrap();
    bytes[100] ^= 1;
    fs::write(&path, &bytes).unwrap();
    drop(restart(&run_dir).unwrap());
    let aside = tree(&run_dir.join("lost+found"));
    for (name, copy) in &spooled {
        assert!(aside.values().any(|kept| kept == copy), "{} is gone", name.display());
    }
    assert_eq!(fs::read(&path).unwrap(), bytes, "the damaged file changed");
}

#[test]
fn a_written_shard_with_a_damaged_file_is_written_again() {
    let world = TestRun::new(&plots());
    let album = quick_dir();
    let written = killed_after(CommitStage::Written, &world, album.path());
    for damage in ["a bit", "a cut", "gone", "a pipe"] {
        let run_dir = album.path().join(damage.replace(' ', "-"));
        copy_tree(&written, &run_dir);
        let path = run_dir.join("data/steps/r-x000000.parquet");
        let mut bytes = fs::read(&path).unwrap();
        match damage {
            "a bit" => bytes[100] ^= 1,
            _ => bytes.truncate(50),
        }
        fs::write(&path, &bytes).unwrap();
        if damage == "gone" || damage == "a pipe" {
            fs::remove_file(&path).unwrap();
        }
        if damage == "a pipe" {
            make_pipe(&path);
        }
        let RecoveredRun { mut committer, snapshot, .. } = restart(&run_dir).unwrap();
        committer.commit(&world.batch(&snapshot)).unwrap();
        drop(committer);
        world.check(&run_dir, damage);
        let aside = crate::lost_and_found(&run_dir).unwrap();
        assert_eq!(aside.len(), usize::from(damage != "gone"), "{damage}");
    }
}

/// A kill between the manifest's commit and its record in the ledger, and then a damaged file: the
/// start is refused, and succeeds once the file and the commit are moved away as its error says.
#[test]
fn a_damaged_file_that_a_commit_names_is_refused_with_a_remedy_that_works() {
    let world = TestRun::new(&plots());
    let album = quick_dir();
    let run_dir = killed_after(CommitStage::Manifest, &world, album.path());
    let path = run_dir.join("data/steps/r-x000000.parquet");
    let mut bytes = fs::read(&path).unwrap();
    bytes[100] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let data = tree(&run_dir.join("data"));
    let error = restart(&run_dir).map(drop).unwrap_err();
    let CommitError::NamedAndDamaged { path: damaged, commit, .. } = error else { panic!("{error}") };
    assert_eq!((&damaged, &data), (&path, &tree(&run_dir.join("data"))));
    fs::remove_file(damaged).unwrap();
    fs::remove_file(commit).unwrap();
    let RecoveredRun { mut committer, snapshot, .. } = restart(&run_dir).unwrap();
    committer.commit(&world.batch(&snapshot)).unwrap();
    drop(committer);
    world.check(&run_dir, "after the remedy");
}

#[test]
fn a_written_shard_that_is_the_only_copy_is_abandoned_by_the_steps_its_errors_name() {
    let world = TestRun::new(&plots());
    let album = quick_dir();
    let run_dir = killed_after(CommitStage::Written, &world, album.path());
    let spooled = run_dir.join("spool/r-g000000-s0-a0.spool");
    fs::remove_file(&spooled).unwrap();
    let damaged = run_dir.join("data/groups/r-x000000.parquet");
    fs::write(&damaged, "x").unwrap();
    let why = restart(&run_dir).map(drop).unwrap_err().to_string();
    assert!(why.contains("move the file away and start again"), "{why}");
    fs::remove_file(&damaged).unwrap();
    let why = restart(&run_dir).map(drop).unwrap_err().to_string();
    assert!(why.contains("an empty file r-g000000-s0-a0.spool"), "{why}");
    fs::write(&spooled, "").unwrap();
    let RecoveredRun { mut committer, snapshot, lost, .. } = restart(&run_dir).unwrap();
    assert_eq!(lost, [Id::new("r-g000000-s0-a0").unwrap()]);
    let kept: Vec<_> = crate::lost_and_found(&run_dir).unwrap().into_iter().map(|kept| kept.from).collect();
    for table in ["steps", "trajectories"] {
        let file = PathBuf::from(format!("data/{table}/r-x000000.parquet"));
        assert!(kept.contains(&file), "{kept:?}");
    }
    let mut batch = world.batch(&snapshot);
    batch.groups.clear();
    batch.trajectories.retain(|facts| facts.ancestry.trajectory_id != lost[0]);
    committer.commit(&batch).unwrap();
    drop(committer);
    let report = verify(&run_dir).unwrap();
    assert!(report.is_sound(), "{report:?}");
}

/// All steps are in the spool and the ending is not: the written shard is the only copy of the
/// evidence.
#[test]
fn a_written_shard_is_kept_where_the_spool_lacks_an_ending() {
    let world = TestRun::new(&plots());
    let album = quick_dir();
    let run_dir = killed_after(CommitStage::Written, &world, album.path());
    let spooled = run_dir.join("spool/r-g000000-s0-a0.spool");
    let bytes = fs::read(&spooled).unwrap();
    // Each entry begins with its magic.
    let entries: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b"FSP1")).collect();
    assert_eq!(entries.len(), 4, "three steps and an ending");
    fs::write(&spooled, &bytes[..entries[3]]).unwrap();
    fs::write(run_dir.join("data/groups/r-x000000.parquet"), "x").unwrap();
    let before = tree(&run_dir.join("data"));
    let error = restart(&run_dir).map(drop).unwrap_err();
    assert!(matches!(error, CommitError::OnlyCopyDamaged { .. }), "{error}");
    assert!(before == tree(&run_dir.join("data")), "a refused start changed something");
}

/// A backup by hard links, made during the run: the file is whole, so no record is lost for it.
#[test]
fn a_second_name_of_a_spool_file_stops_the_run_and_costs_nothing() {
    let mut fed = CommitterFixture::new(|records| records.max_delay = NEVER);
    let spooled = fed.world.dir.path().join("spool/r-g000000-s0-a0.spool");
    let second = fed.world.dir.path().join("copy");
    let away = fed.world.dir.path().join("spool-away");
    let spool = fed.world.dir.path().join("spool");
    let world = fed.world.dir.path().to_owned();
    fs::hard_link(&spooled, &second).unwrap();
    fed.feed();
    let failed = |fed: &mut CommitterFixture| match fed.runtime.block_on(fed.reports.next()) {
        Some(CommitReport::Failed(error)) => furrow_records::chain(&error),
        other => panic!("{:?}", other.map(|_| "the start succeeded")),
    };
    let why = failed(&mut fed);
    assert!(why.contains("it has 2 names"), "{why}");
    fs::remove_file(second).unwrap();
    let RecoveredRun { committer, snapshot, lost, .. } = restart(&world).unwrap();
    assert_eq!(lost, []);
    // The folder is gone: that is not damage to one file.
    fs::rename(&spool, &away).unwrap();
    let (handle, reports) = committer.start(2).unwrap();
    fed = CommitterFixture { batch: fed.world.batch(&snapshot), handle: Some(handle), reports, ..fed };
    fed.feed();
    let why = failed(&mut fed);
    assert!(why.contains("No such file"), "{why}");
    fs::rename(&away, &spool).unwrap();
    let RecoveredRun { mut committer, snapshot, lost, .. } = restart(&world).unwrap();
    assert_eq!(lost, []);
    committer.commit(&fed.world.batch(&snapshot)).unwrap();
    drop(committer);
    fed.world.check(&world, "after both");
}

#[test]
fn a_scored_trajectory_whose_evidence_changed_is_not_committed() {
    let world = TestRun::new(&plots());
    let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
    let mut batch = world.batch(&snapshot);
    let verdict = batch.trajectories[0].verdict.as_mut().unwrap();
    verdict.score.evidence_sha256 = [0; 32];
    let error = committer.commit(&batch).unwrap_err().to_string();
    assert!(error.contains("the evidence in the spool is not what the scorer saw"), "{error}");
    let mut batch = world.batch(&snapshot);
    batch.trajectories[0].ended.steps += 1;
    batch.trajectories.truncate(1);
    batch.groups.clear();
    drop(committer);
    let RecoveredRun { mut committer, .. } = restart(world.dir.path()).unwrap();
    let error = committer.commit(&batch).unwrap_err().to_string();
    assert!(error.contains("of its 4 steps the spool holds 3"), "{error}");
}

#[test]
fn a_full_disk_undoes_the_shard_and_keeps_its_rows() {
    on_small_disk("commit::tests::a_full_disk_undoes_the_shard_and_keeps_its_rows", |disk| {
        let world = if is_limited() { TestRun::new(&heavy()) } else { TestRun::new(&plots()) };
        let RecoveredRun { mut committer, snapshot, .. } =
            restart_in(world.dir.path(), disk.join("data")).unwrap();
        if is_limited() {
            // a file at its size limit is not a full disk: the committer stops, and the next start
            // has everything
            let error = committer.commit(&world.batch(&snapshot)).unwrap_err();
            assert!(matches!(error, CommitError::Records(_)), "{error:?}");
            drop(committer);
            let RecoveredRun { snapshot: recovered, .. } =
                restart_in(world.dir.path(), disk.join("data")).unwrap();
            assert_eq!(recovered.trajectories, snapshot.trajectories);
            return;
        }
        let filler = disk.join("filler");
        for cycle in 0..5 {
            let free = crate::disk::free_bytes(disk).unwrap() as usize;
            fs::write(&filler, vec![0; free.saturating_sub(cycle * 8192)]).unwrap();
            let error = committer.commit(&world.batch(&snapshot)).unwrap_err();
            assert!(matches!(error, CommitError::DiskFull(_)), "cycle {cycle}: {error:?}");
            assert!(local_files(&disk.join("data")).unwrap().is_empty(), "cycle {cycle}");
            fs::remove_file(&filler).unwrap();
        }
        let committed = committer.commit(&world.batch(&snapshot)).unwrap();
        assert_eq!((committed.shard_id.as_str(), committed.manifest_version), ("r-x000005", 1));
        assert_eq!(names(&world.dir.path().join("spool")), BTreeSet::new());
        assert!(verify(disk).unwrap().is_sound());
    });
}

/// A committer's thread with its input.
struct CommitterFixture {
    runtime: Runtime,
    world: TestRun,
    batch: ShardBatch,
    handle: Option<CommitHandle>,
    reports: CommitReports,
}

impl CommitterFixture {
    fn new(change: impl FnOnce(&mut RecordsConfig)) -> Self {
        let world = TestRun::new(&plots());
        let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
        committer.settings.records.merge_files_min = 1000;
        change(&mut committer.settings.records);
        let batch = world.batch(&snapshot);
        let (handle, reports) = committer.start(2).unwrap();
        let runtime = Runtime::new().unwrap();
        Self { runtime, world, batch, handle: Some(handle), reports }
    }

    /// Hands over everything, then closes.
    fn feed(&mut self) {
        let handle = self.handle.take().unwrap();
        for facts in self.batch.trajectories.clone() {
            self.runtime.block_on(handle.trajectory(facts)).unwrap();
        }
        for group in self.batch.groups.clone() {
            self.runtime.block_on(handle.group(group)).unwrap();
        }
    }

    /// Hands over the first trajectory.
    fn feed_one(&mut self) {
        let facts = self.batch.trajectories.remove(0);
        self.runtime.block_on(self.handle.as_ref().unwrap().trajectory(facts)).unwrap();
    }

    fn flush(&mut self) {
        self.runtime.block_on(self.handle.as_ref().unwrap().flush()).unwrap();
    }

    /// Trajectories and groups of the next shard.
    fn next(&mut self) -> Option<(usize, usize)> {
        match self.runtime.block_on(self.reports.next())? {
            CommitReport::Committed(shard) => Some((shard.trajectories.len(), shard.groups.len())),
            CommitReport::Unreadable { trajectory, why, .. } => panic!("{trajectory}: {why}"),
            CommitReport::Failed(error) => panic!("{error:?}"),
        }
    }
}

const NEVER: Duration = Duration::from_secs(3600);

#[test]
fn the_rest_is_committed_when_the_last_handle_is_dropped() {
    let mut fed = CommitterFixture::new(|records| records.max_delay = NEVER);
    fed.feed();
    assert_eq!(fed.next(), Some((5, 2)));
    assert_eq!(fed.next(), None);
    assert_eq!(fed.next(), None);
    fed.world.check(fed.world.dir.path(), "closed");
}

#[test]
fn a_shard_closes_by_size() {
    let mut fed = CommitterFixture::new(|records| (records.max_delay, records.max_shard_bytes) = (NEVER, 1));
    fed.feed();
    // the spool holds nothing of the last trajectory, so it does not close a shard
    for shard in [(1, 0), (1, 0), (1, 0), (1, 0), (1, 2)] {
        assert_eq!(fed.next(), Some(shard));
    }
    assert_eq!(fed.next(), None);
    fed.world.check(fed.world.dir.path(), "by size");
}

#[test]
fn a_shard_closes_by_age() {
    let mut fed = CommitterFixture::new(|records| records.max_delay = Duration::from_millis(50));
    fed.feed_one();
    assert_eq!(fed.next(), Some((1, 0)));
}

#[test]
fn a_shard_closes_when_flushed() {
    let mut fed = CommitterFixture::new(|records| records.max_delay = NEVER);
    fed.flush();
    fed.feed_one();
    fed.feed_one();
    fed.flush();
    assert_eq!(fed.next(), Some((2, 0)));
}

#[test]
fn a_record_that_cannot_be_read_is_left_out_until_it_comes_as_a_failed_one() {
    left_out_until_failed("a bit", 3, "the CRC is another");
    left_out_until_failed("gone", 0, "No such file");
    left_out_until_failed("a pipe", 0, "it is a named pipe");
}

/// Damage found during the run: the shard is written without the trajectory, and a group's row that
/// counts it as scored waits for another.
fn left_out_until_failed(damage: &str, want_steps: u32, want_why: &str) {
    let mut fed = CommitterFixture::new(|records| records.max_delay = NEVER);
    let id = "r-g000000-s0-a0";
    let path = fed.world.dir.path().join(format!("spool/{id}.spool"));
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.len() - 100;
    bytes[at] ^= 1;
    fs::write(&path, &bytes).unwrap();
    if damage != "a bit" {
        fs::remove_file(&path).unwrap();
    }
    if damage == "a pipe" {
        make_pipe(&path);
    }
    let mut facts = fed
        .batch
        .trajectories
        .iter()
        .find(|facts| facts.ancestry.trajectory_id.as_str() == id)
        .unwrap()
        .clone();
    let row =
        fed.batch.groups.iter().find(|group| group.group_id == facts.ancestry.group_id).unwrap().clone();
    let handle = fed.handle.clone().unwrap();
    fed.feed();
    fed.runtime.block_on(handle.flush()).unwrap();
    let Some(CommitReport::Unreadable { trajectory, steps, why }) = fed.runtime.block_on(fed.reports.next())
    else {
        panic!("the file was read")
    };
    assert_eq!((trajectory.as_str(), steps), (id, want_steps));
    assert!(why.contains(want_why), "{why}");
    assert_eq!(fed.next(), Some((4, 1)));
    // the row that was made before the damage was found
    fed.runtime.block_on(handle.group(row.clone())).unwrap();
    let ended = TrajectoryEnd { end: EndKind::RecordLost, reason: why, steps, ..facts.ended };
    let mut ledger = SqliteLedger::open(fed.world.dir.path().join("ledger.sqlite")).unwrap();
    ledger.commit(&[Mutation::RecordLost { trajectory_id: trajectory, ended: ended.clone() }]).unwrap();
    (facts.ended, facts.verdict) = (ended, None);
    fed.runtime.block_on(handle.trajectory(facts)).unwrap();
    let failed = BTreeMap::from([("browser_dead".to_owned(), 1), ("record_lost".to_owned(), 1)]);
    let rewards = furrow_rollout::GroupStatistics::of(&[fed.world.scored_reward("r-g000000-s1-a1")]);
    let row = GroupRecord { valid: 1, failed, rewards, ..row };
    fed.runtime.block_on(handle.group(row)).unwrap();
    drop(handle);
    assert_eq!(fed.next(), Some((1, 1)));
    assert_eq!(fed.next(), None);
    let report = verify(fed.world.dir.path()).unwrap();
    assert!(report.is_sound(), "{report:?}");
    assert_eq!(names(&fed.world.dir.path().join("spool")), BTreeSet::new());
    if damage == "a bit" {
        let aside = tree(&fed.world.dir.path().join("lost+found"));
        assert!(aside.values().any(|kept| *kept == bytes), "the damaged file was not kept");
    }
}

#[test]
fn a_committer_that_fails_reports_it_and_ends() {
    let mut fed = CommitterFixture::new(|records| records.max_delay = NEVER);
    // before its trajectories: the ledger refuses it
    let group = fed.batch.groups.remove(0);
    fed.runtime.block_on(fed.handle.as_ref().unwrap().group(group)).unwrap();
    fed.flush();
    let Some(CommitReport::Failed(error)) = fed.runtime.block_on(fed.reports.next()) else {
        panic!("no failure")
    };
    assert!(matches!(&error, CommitError::Ledger(LedgerError::Refused { .. })), "{error:?}");
    assert_eq!(fed.next(), None);
    let refused = fed.runtime.block_on(fed.handle.as_ref().unwrap().flush()).unwrap_err().to_string();
    assert!(refused.contains("its last report says why"), "{refused}");
}

#[test]
fn a_committer_may_be_dropped_by_async_code() {
    let world = TestRun::new(&plots());
    let recovered = restart(world.dir.path()).unwrap();
    Runtime::new().unwrap().block_on(async move { drop(recovered) });
}

#[test]
fn nothing_is_recovered_before_the_run_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let (spool, spooled) = Spool::open(dir.path().join("spool"), SpoolLimits::default()).unwrap();
    let settings = settings(dir.path().join("data"));
    let recovered =
        ShardCommitter::recover(settings, MemoryLedger::default(), LedgerLimits::default(), spool, spooled);
    assert!(recovered.is_err());
}
