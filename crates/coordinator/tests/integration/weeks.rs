//! A run of weeks starts as one of minutes does: what a start reads and keeps does not grow with
//! the trajectories and commits behind it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use furrow_coordinator::ledger::{
    Ledger, Mutation, PolicyFacts, RunOpening, ShardOpening, SqliteLedger, TaskDraw, TimedScore,
    TrajectoryEnd, TrajectoryStart,
};
use furrow_coordinator::{Coordinator, SecretDigest};
use furrow_records::{CommitDraft, Manifest, Op, Table, WrittenFile};
use furrow_rollout::{
    EndKind, Group, Id, LEASE_SECRET_BYTES, LeaseSecret, PolicyHashes, PolicyKind, Run, Score, Shard, Split,
};
use object_store::local::LocalFileSystem;
use tokio::runtime::Runtime;

use crate::common::JobSetup;

/// Where the child finds its run.
const DIR: &str = "FURROW_WEEKS_DIR";
/// Trajectories of the long test.
const TRAJECTORIES: &str = "FURROW_WEEKS";
/// The folder that has space for their run directory.
const SCRATCH: &str = "FURROW_WEEKS_SCRATCH";

/// Every tenth commit merges the files of the nine before it.
const MERGE_EVERY: u64 = 10;
/// So many commits go into one merged file, until it is full.
const FULL_AFTER: u64 = 10_000;
/// Commits of a transaction, to be done in minutes.
const BATCH: usize = 500;
/// Commits after which the parts of merged files are gone from the disk.
const GRACE: u64 = 2_000;
const TABLES: [Table; 3] = [Table::Trajectories, Table::Steps, Table::Groups];

/// A run directory in the making: its ledger, and a manifest without the syncs of a real one.
struct History {
    ledger: SqliteLedger,
    manifest: Manifest,
    runtime: Runtime,
    run_id: Id<Run>,
    pending: Vec<Mutation>,
    /// The last merged file of each table, and the files after it.
    parts: Vec<Vec<WrittenFile>>,
    trajectories: u64,
    shards: u64,
}

impl History {
    fn begin(dir: &Path) -> Self {
        let job = JobSetup { groups: 100_000_000, ..JobSetup::default() }.job(dir);
        let data = job.run_dir.join("data");
        std::fs::create_dir_all(data.join("manifest")).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let store = Arc::new(LocalFileSystem::new_with_prefix(&data).unwrap());
        let manifest = runtime.block_on(Manifest::open(store)).unwrap();
        let ledger = SqliteLedger::open(job.run_dir.join("ledger.sqlite")).unwrap();
        let job_sha256 = job.identity.sha256();
        let opening = RunOpening { run_id: job.run_id.clone(), job_sha256, began_sha256: None, at_micros: 1 };
        Self {
            ledger,
            manifest,
            runtime,
            run_id: job.run_id,
            pending: vec![Mutation::RunOpened(opening)],
            parts: vec![Vec::new(); TABLES.len()],
            trajectories: 0,
            shards: 0,
        }
    }

    fn shard_id(&self) -> Id<Shard> {
        Id::new(format!("{}-x{:06}", self.run_id, self.shards)).unwrap()
    }

    /// A trajectory from its task to its commit, or a merge where one is due.
    fn go_on(&mut self) {
        let version = self.shards + 1;
        let file = |table: Table, rows| WrittenFile {
            table,
            path: format!("{}/{}.parquet", table.as_str(), self.shard_id()),
            rows,
            bytes: 9,
            sha256: "ab".repeat(32),
        };
        if version.is_multiple_of(MERGE_EVERY) {
            let rows = |parts: &[WrittenFile]| parts.iter().map(|part| part.rows).sum();
            let files =
                TABLES.iter().zip(&self.parts).map(|(table, parts)| file(*table, rows(parts))).collect();
            let removed = self.parts.iter().flatten().map(|part| part.path.clone()).collect();
            self.commit(Op::Replace, files, removed, Vec::new(), Vec::new());
        } else {
            let files = TABLES.iter().map(|table| file(*table, 1)).collect();
            let group = Id::nth(&self.run_id, self.trajectories);
            self.act(&group);
            let trajectory = Id::attempt(&group, 0, 0);
            self.commit(Op::Append, files, Vec::new(), vec![trajectory], vec![group]);
        }
        if version.is_multiple_of(FULL_AFTER) {
            self.parts.iter_mut().for_each(Vec::clear);
        }
    }

    fn act(&mut self, group: &Id<Group>) {
        let index = self.trajectories;
        self.trajectories += 1;
        let trajectory_id = Id::attempt(group, 0, 0);
        let draw = TaskDraw {
            group_id: group.clone(),
            index,
            suite: "mine".into(),
            task_id: if index.is_multiple_of(2) { "first".into() } else { "second".into() },
            split: Split::Train,
            seed: index,
            group_size: 1,
            task_json: r#"{"task_id":"first","goal":"Say 42.","start_url":"http://pages.test/"}"#.into(),
            chance: None,
            problem: None,
            at_micros: 2,
        };
        let policy = PolicyFacts {
            worker: Id::new("policy-0").unwrap(),
            address: "127.0.0.1:7000".into(),
            kind: PolicyKind::Scripted,
            version: None,
            hashes: PolicyHashes::default(),
        };
        let start = TrajectoryStart {
            trajectory_id: trajectory_id.clone(),
            group_id: group.clone(),
            sample_index: 0,
            attempt: 0,
            token: index + 1,
            env_worker: Id::new("env-0").unwrap(),
            policy,
            at_micros: 3,
            queue_micros: 4,
            secret: Some(SecretDigest::of(&LeaseSecret::new([1; LEASE_SECRET_BYTES]))),
        };
        let ended = TrajectoryEnd {
            end: EndKind::Answered,
            reason: "it answered".into(),
            steps: 12,
            policy_versions: None,
            staleness: None,
            at_micros: 5,
        };
        let score = Score {
            reward: Some(1.0),
            success: Some(true),
            components: Vec::new(),
            scorer: "answer".into(),
            version: 1,
            rationale: "the answer is the one that was asked for".into(),
            evidence_sha256: [6; 32],
        };
        let evidence_sha256 = [6; 32];
        self.pending.extend([
            Mutation::GroupDrawn { draw, draws: index + 1 },
            Mutation::Assigned(start),
            Mutation::Finished {
                trajectory_id: trajectory_id.clone(),
                token: index + 1,
                ended,
                evidence_sha256,
            },
            Mutation::Scored { trajectory_id, verdict: TimedScore { score, micros: 8 } },
            Mutation::GroupClosed { group_id: group.clone(), at_micros: 9 },
        ]);
    }

    fn commit(
        &mut self,
        op: Op,
        files: Vec<WrittenFile>,
        removed: Vec<String>,
        trajectories: Vec<Id<furrow_rollout::Trajectory>>,
        groups: Vec<Id<Group>>,
    ) {
        let shard_id = self.shard_id();
        let index = self.shards;
        self.shards += 1;
        let replaces = removed.clone();
        let opening = ShardOpening { shard_id: shard_id.clone(), index, trajectories, groups, replaces };
        for (parts, file) in self.parts.iter_mut().zip(&files) {
            if op == Op::Replace {
                parts.clear();
            }
            parts.push(file.clone());
        }
        let at_micros = self.shards.cast_signed();
        let draft = CommitDraft::append(files.clone(), self.run_id.clone(), 1, shard_id.clone(), at_micros);
        let draft = CommitDraft { op, removed, ..draft };
        let manifest_version = self.runtime.block_on(self.manifest.commit(&draft)).unwrap().version();
        self.pending.extend([
            Mutation::ShardOpened(opening),
            Mutation::ShardWritten { shard_id: shard_id.clone(), files },
            Mutation::ShardCommitted { shard_id, manifest_version },
        ]);
        let removed = self.manifest.snapshot().removed();
        if removed.len() as u64 > 2 * GRACE {
            let is_old = |by: u64| by + GRACE < manifest_version;
            let gone = removed.iter().filter(|(_, removed)| is_old(removed.by)).map(|(path, _)| path.clone());
            let gone: Vec<String> = gone.collect();
            self.manifest.forget(&gone);
        }
        self.runtime.block_on(self.manifest.write_checkpoint_if_due()).unwrap();
        if self.pending.len() >= BATCH * 8 {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.ledger.commit(&std::mem::take(&mut self.pending)).unwrap();
    }

    /// The files that a start looks for; it does not open them.
    fn write_files(&self, data: &Path) {
        for table in Table::ALL {
            std::fs::create_dir_all(data.join(table.as_str())).unwrap();
            for file in self.manifest.snapshot().files(table) {
                std::fs::write(data.join(&file.path), "PAR1 PAR1").unwrap();
            }
        }
    }
}

#[test]
#[ignore = "runs only as a child of the other tests"]
fn child_that_starts() {
    let dir = PathBuf::from(std::env::var_os(DIR).expect("only its parent runs this"));
    let job = JobSetup { groups: 100_000_000, resume: true, ..JobSetup::default() }.job(&dir);
    let began = Instant::now();
    let coordinator = Coordinator::open(job).unwrap();
    let took = began.elapsed();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kilobytes: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    println!("start: {} {kilobytes}", took.as_micros());
    drop(coordinator);
}

/// Milliseconds and megabytes of one start in a process of its own.
fn start(dir: &Path) -> (f64, f64) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "weeks::child_that_starts", "--ignored", "--nocapture"])
        .env(DIR, dir)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout).into_owned();
    let why = || format!("{text}{}", String::from_utf8_lossy(&child.stderr));
    let line = text.lines().find_map(|line| line.split_once("start: ")).map(|(_, line)| line);
    let numbers = line.unwrap_or_else(|| panic!("{}", why())).split_once(' ').unwrap();
    let micros: f64 = numbers.0.parse().unwrap();
    let kilobytes: f64 = numbers.1.parse().unwrap();
    (micros / 1e3, kilobytes / 1024.0)
}

/// Milliseconds and megabytes of so many starts of a run with this history.
fn starts(trajectories: u64, count: usize) -> Vec<(f64, f64)> {
    let scratch = std::env::var_os(SCRATCH).map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = tempfile::tempdir_in(scratch).unwrap();
    let mut history = History::begin(dir.path());
    while history.trajectories < trajectories {
        history.go_on();
    }
    history.flush();
    history.write_files(&dir.path().join("run/data"));
    drop(history);
    (0..count).map(|_| start(dir.path())).collect()
}

/// The start begins at a checkpoint, or it would read all of these commits.
#[test]
fn a_long_run_starts() {
    for (_, megabytes) in starts(2_500, 2) {
        assert!(megabytes < 150.0, "{megabytes} MiB");
    }
}

#[test]
#[ignore = "takes many minutes and 10 GB: tests/long.sh weeks"]
fn a_million_trajectories() {
    let trajectories = std::env::var(TRAJECTORIES).map_or(1_000_000, |text| text.parse().unwrap());
    let found = starts(trajectories, 20);
    println!("{trajectories} trajectories: {found:.1?} ms and MiB");
    for (millis, megabytes) in found {
        assert!(millis < 1_000.0, "a start took {millis} ms");
        assert!(megabytes < 150.0, "{megabytes} MiB");
    }
}
