//! Commits of shards, and crashes in the middle of them: the run directory is copied at every
//! stage, and every copy must recover.

mod committer;
mod copies;
mod damage;
mod expiry;
mod repair;
mod stages;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use furrow_records::fixtures::{TrajectoryFixture, group};
use furrow_records::{Commit, DataSet, RecordsFile, RescoreRecord, StoredCommits, local_files, verify};
use furrow_rollout::{
    EndKind, LEASE_SECRET_BYTES, LeaseSecret, StepRecord, TrajectoryAncestry, TrajectoryRecord,
};
use furrow_wire::{OpaqueStep, digest, encode_ending, encode_opaque_step, encode_trace};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::*;
use crate::commit::reconcile::LedgerDisagreement;
use crate::lease_secret::SecretDigest;
use crate::ledger::conformance::{draw, opened};
use crate::ledger::{
    Ledger, LedgerError, LedgerLimits, LedgerSnapshot, MemoryLedger, PolicyFacts, SqliteLedger, TaskDraw,
    TimedScore, TrajectoryEnd, TrajectoryStanding, TrajectoryStart,
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
            secret: Some(SecretDigest::of(&LeaseSecret::new([1; LEASE_SECRET_BYTES]))),
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
    restart_with(run_dir, settings(data_dir))
}

fn restart_with(run_dir: &Path, settings: CommitSettings) -> Result<RecoveredRun, CommitError> {
    let mut ledger = SqliteLedger::open(run_dir.join("ledger.sqlite"))?;
    ledger.commit(&[opened()])?;
    let (spool, spooled) = Spool::open(run_dir.join("spool"), SpoolLimits::default())?;
    ShardCommitter::recover(settings, ledger, LedgerLimits::default(), spool, spooled)
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

/// Changes the bytes of a file as a bad disk would.
type DamageFile = fn(&mut Vec<u8>);

/// Every file below a folder with its bytes.
fn tree(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_symlink() {
                let target = fs::read_link(&path).unwrap().to_string_lossy().into_owned();
                found.insert(path.strip_prefix(dir).unwrap().to_owned(), target.into_bytes());
            } else {
                found.insert(path.strip_prefix(dir).unwrap().to_owned(), fs::read(&path).unwrap());
            }
        }
    }
    found
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
fn nothing_is_recovered_before_the_run_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let (spool, spooled) = Spool::open(dir.path().join("spool"), SpoolLimits::default()).unwrap();
    let settings = settings(dir.path().join("data"));
    let recovered =
        ShardCommitter::recover(settings, MemoryLedger::default(), LedgerLimits::default(), spool, spooled);
    assert!(recovered.is_err());
}
