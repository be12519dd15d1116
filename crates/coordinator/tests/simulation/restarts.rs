//! What an earlier process left in the memory of the system, and not on the disk, is no ground.

use std::path::PathBuf;

use furrow_coordinator::SteppedCoordinator;
use furrow_coordinator::ledger::{Ledger as _, Mutation, RunOpening, SqliteLedger};
use furrow_coordinator::spool::{AppendOutcome, Spool, SpoolLimits};
use furrow_faulty_disk::{Crash, FaultyDisk, Operation, scratch};
use furrow_rollout::{Id, Trajectory};
use furrow_telemetry::TimeSource;
use furrow_wire::v1;
use tempfile::TempDir;

use crate::labels::LABELS;
use crate::messages::{job, step};

const BROKEN: i32 = 5;
/// Seeds of a power cut: each keeps another part.
const CUTS: u64 = 30;

struct Fixture {
    dir: TempDir,
    root: PathBuf,
    disk: FaultyDisk,
}

impl Fixture {
    fn new(seed: u64) -> Self {
        let dir = tempfile::tempdir_in(scratch()).unwrap();
        let root = dir.path().canonicalize().unwrap().join("disk");
        std::fs::create_dir_all(root.join("run")).unwrap();
        let disk = FaultyDisk::new(&root, seed, LABELS);
        Self { dir, root, disk }
    }

    fn run(&self, name: &str) -> PathBuf {
        self.root.join("run").join(name)
    }

    fn end(&self, crash: Crash) {
        self.disk.crash(crash);
        self.disk.revive();
    }
}

fn opening() -> Mutation {
    Mutation::RunOpened(RunOpening {
        run_id: Id::new("sim").unwrap(),
        job_sha256: [1; 32],
        began_sha256: None,
        at_micros: 1,
    })
}

fn epoch(ledger: &mut SqliteLedger) -> u64 {
    ledger.load().unwrap().run.unwrap().epoch
}

#[test]
fn a_commit_upon_one_whose_sync_failed_stays() {
    for seed in 0..CUTS {
        let fixture = Fixture::new(seed);
        let open = || SqliteLedger::open(fixture.run("ledger.sqlite"));
        let mut first = open().unwrap();
        first.commit(&[opening()]).unwrap();
        fixture.disk.fail_next((Operation::Sync, "ledger wal"), BROKEN);
        assert!(first.commit(&[opening()]).is_err());
        fixture.disk.crash(Crash::Kill);
        drop(first);
        fixture.disk.revive();
        let mut second = open().unwrap();
        second.commit(&[opening()]).unwrap();
        let before = epoch(&mut second);
        fixture.disk.crash(Crash::PowerCut);
        drop(second);
        fixture.disk.revive();
        assert_eq!(epoch(&mut open().unwrap()), before, "seed {seed}");
    }
}

/// SQLite passes over a sync of the folder that fails.
#[test]
fn a_commit_into_a_new_log_stays() {
    for seed in 0..CUTS {
        let fixture = Fixture::new(seed);
        let open = || SqliteLedger::open(fixture.run("ledger.sqlite")).unwrap();
        // A clean end removes the log.
        drop(open());
        let mut ledger = open();
        fixture.disk.fail_next((Operation::SyncFolder, "run"), BROKEN);
        ledger.commit(&[opening()]).unwrap();
        fixture.disk.crash(Crash::PowerCut);
        drop(ledger);
        fixture.disk.revive();
        assert_eq!(epoch(&mut open()), 1, "seed {seed}");
    }
}

async fn append(spool: &Spool, id: &Id<Trajectory>) -> Option<AppendOutcome> {
    let lease = v1::LeaseRef { trajectory_id: id.to_string(), token: 1, secret: None };
    let message = step(&lease, 0);
    let digest = message.digest[..].try_into().unwrap();
    spool.append_step(id, 0, digest, message.record).await.ok()
}

#[tokio::test]
async fn a_step_that_is_repeated_after_a_failed_sync_stays() {
    for seed in 0..CUTS {
        let fixture = Fixture::new(seed);
        let id = Id::new("sim-g000000-s0-a0").unwrap();
        let open = || Spool::open(fixture.run("spool"), SpoolLimits::default()).unwrap();
        let (spool, _) = open();
        fixture.disk.fail_next((Operation::Sync, "spool"), BROKEN);
        assert_eq!(append(&spool, &id).await, None);
        drop(spool);
        let (spool, _) = open();
        append(&spool, &id).await.unwrap();
        fixture.disk.crash(Crash::PowerCut);
        drop(spool);
        fixture.disk.revive();
        let (_, found) = open();
        assert_eq!(found.first().map(|found| found.steps.len()), Some(1), "seed {seed}");
    }
}

#[tokio::test]
async fn a_step_that_is_repeated_after_a_kill_stays() {
    for seed in 0..CUTS {
        let fixture = Fixture::new(seed);
        let id = Id::new("sim-g000000-s0-a0").unwrap();
        let open = || Spool::open(fixture.run("spool"), SpoolLimits::default()).unwrap();
        let (spool, _) = open();
        append(&spool, &id).await.unwrap();
        drop(spool);
        // As if the process had been killed before the sync.
        let path = fixture.run("spool/sim-g000000-s0-a0.spool");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes).unwrap();
        fixture.end(Crash::Kill);
        let (spool, _) = open();
        assert_eq!(append(&spool, &id).await, Some(AppendOutcome::Repeated));
        fixture.disk.crash(Crash::PowerCut);
        drop(spool);
        fixture.disk.revive();
        let (_, found) = open();
        assert_eq!(found.first().map(|found| found.steps.len()), Some(1), "seed {seed}");
    }
}

/// Folders that a killed start made and did not sync are made durable by the next one.
#[test]
fn folders_of_a_killed_start_are_durable_after_the_next() {
    let runtime = SteppedCoordinator::runtime().unwrap();
    for seed in 0..CUTS {
        let fixture = Fixture::new(seed);
        let open = || {
            let job = job(fixture.dir.path(), &fixture.root, true);
            SteppedCoordinator::open(job, TimeSource::system(), &runtime)
        };
        drop(open().unwrap());
        std::fs::create_dir(fixture.run("data/trajectories")).unwrap();
        fixture.end(Crash::Kill);
        let second = open().unwrap();
        fixture.disk.crash(Crash::PowerCut);
        drop(second);
        fixture.disk.revive();
        assert!(fixture.run("data/trajectories").is_dir(), "seed {seed}");
    }
}

/// A folder or a name whose sync failed is made again by the next try.
#[test]
fn a_name_whose_sync_failed_is_not_taken_as_durable() {
    for seed in 0..CUTS {
        let fixture = Fixture::new(seed);
        let folder = fixture.run("data");
        fixture.disk.fail_next((Operation::SyncFolder, "run"), BROKEN);
        assert!(furrow_storage::create_durable_dir(&folder).is_err());
        furrow_storage::create_durable_dir(&folder).unwrap();
        fixture.end(Crash::PowerCut);
        assert!(folder.is_dir(), "seed {seed}");
    }
}
