//! What is synced survives everything; what is not may vanish; the same seed does the same.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use tempfile::TempDir;

use super::*;

const LABELS: DiskLabels =
    DiskLabels { kind: |name| (!name.ends_with("-shm")).then_some("file"), weight: |_| 1 };

struct Fixture {
    dir: TempDir,
    disk: FaultyDisk,
}

impl Fixture {
    fn new(seed: u64) -> Self {
        let dir = tempfile::tempdir_in(scratch()).unwrap();
        let disk = FaultyDisk::new(&dir.path().canonicalize().unwrap(), seed, LABELS);
        Self { dir, disk }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn cut_power(&self) {
        self.disk.crash(Crash::PowerCut);
        self.disk.revive();
    }
}

fn sync_folder(path: &Path) {
    File::open(path).unwrap().sync_all().unwrap();
}

#[test]
fn what_is_synced_survives_and_the_rest_may_vanish() {
    let mut found = BTreeSet::new();
    for seed in 0..200 {
        let fixture = Fixture::new(seed);
        let mut kept = File::create(fixture.path("kept")).unwrap();
        kept.write_all(b"synced").unwrap();
        kept.sync_all().unwrap();
        sync_folder(fixture.dir.path());
        kept.write_all(b" and not").unwrap();
        fs::write(fixture.path("new"), "never synced").unwrap();
        fixture.cut_power();
        let text = fs::read(fixture.path("kept")).unwrap();
        assert!(text.starts_with(b"synced"), "seed {seed}: {text:?}");
        assert!(matches!(text.len(), 6 | 14), "seed {seed}: {text:?}");
        found.insert((text, fs::read(fixture.path("new")).ok()));
    }
    // Both files, each whole, without its content, and full of zeros; the new one missing as well.
    assert!(found.len() >= 9, "{found:?}");
}

#[test]
fn a_name_is_durable_with_its_folder_and_a_content_with_its_file() {
    for seed in 0..50 {
        let fixture = Fixture::new(seed);
        fs::create_dir(fixture.path("folder")).unwrap();
        sync_folder(fixture.dir.path());
        let mut file = File::create(fixture.path("folder/temp")).unwrap();
        file.write_all(&[7; 10_000]).unwrap();
        file.sync_data().unwrap();
        fs::hard_link(fixture.path("folder/temp"), fixture.path("folder/last")).unwrap();
        sync_folder(&fixture.path("folder"));
        fs::remove_file(fixture.path("folder/temp")).unwrap();
        fixture.cut_power();
        assert_eq!(fs::read(fixture.path("folder/last")).unwrap(), [7; 10_000]);
        // Where the removal was lost, both names lead to one file, as before.
        let names = fs::metadata(fixture.path("folder/last")).unwrap().nlink();
        assert_eq!(fixture.path("folder/temp").exists(), names == 2);
    }
}

#[test]
fn a_folder_that_is_lost_takes_its_files_with_it() {
    let is_there = |seed: u64| {
        let fixture = Fixture::new(seed);
        fs::create_dir(fixture.path("folder")).unwrap();
        let mut file = File::create(fixture.path("folder/file")).unwrap();
        file.write_all(b"x").unwrap();
        file.sync_all().unwrap();
        sync_folder(&fixture.path("folder"));
        fixture.cut_power();
        assert_eq!(fixture.path("folder").exists(), fixture.path("folder/file").exists());
        fixture.path("folder").exists()
    };
    let there = (0..40).filter(|seed| is_there(*seed)).count();
    assert!((1..40).contains(&there), "{there}");
}

#[test]
fn a_rename_happens_whole_or_not_at_all() {
    for seed in 0..60 {
        let fixture = Fixture::new(seed);
        fs::write(fixture.path("old"), "new").unwrap();
        fs::write(fixture.path("name"), "old").unwrap();
        File::open(fixture.path("old")).unwrap().sync_all().unwrap();
        File::open(fixture.path("name")).unwrap().sync_all().unwrap();
        sync_folder(fixture.dir.path());
        fs::rename(fixture.path("old"), fixture.path("name")).unwrap();
        fixture.cut_power();
        let renamed = fs::read_to_string(fixture.path("name")).unwrap() == "new";
        assert_eq!(renamed, !fixture.path("old").exists(), "seed {seed}");
    }
}

#[test]
fn a_kill_loses_nothing_and_a_later_power_cut_may() {
    let is_kept = |seed: u64| {
        let fixture = Fixture::new(seed);
        fs::write(fixture.path("file"), "x").unwrap();
        fixture.disk.crash(Crash::Kill);
        assert!(fs::write(fixture.path("other"), "x").is_err());
        fixture.disk.revive();
        assert_eq!(fs::read_to_string(fixture.path("file")).unwrap(), "x");
        fixture.cut_power();
        fixture.path("file").exists()
    };
    let kept = (0..40).filter(|seed| is_kept(*seed)).count();
    assert!((1..40).contains(&kept), "{kept}");
}

#[test]
fn after_a_failed_sync_a_second_one_brings_nothing_back() {
    let mut lost = 0;
    for seed in 0..400 {
        let fixture = Fixture::new(seed);
        let mut file = File::create(fixture.path("file")).unwrap();
        sync_folder(fixture.dir.path());
        file.write_all(b"x").unwrap();
        fixture.disk.arm(3);
        let first = file.sync_all();
        fixture.disk.arm(0);
        if first.is_ok() || fixture.disk.is_down().is_some() {
            continue;
        }
        file.sync_all().unwrap();
        fixture.cut_power();
        lost += usize::from(fs::read(fixture.path("file")).unwrap() != b"x");
    }
    assert!(lost > 10, "{lost}");
}

/// What a program sees of its operations while they fail.
fn busy(fixture: &Fixture) -> Vec<String> {
    let mut outcomes = Vec::new();
    let mut note = |what: String| outcomes.push(what);
    for round in 0..60 {
        let name = fixture.path(&format!("file{}", round % 7));
        let opened = OpenOptions::new().append(true).create(true).open(&name);
        note(format!("{:?}", opened.as_ref().map(drop).map_err(std::io::Error::raw_os_error)));
        if let Ok(mut file) = opened {
            note(format!("{:?}", file.write(&[1; 9000]).map_err(|error| error.raw_os_error())));
            note(format!("{:?}", file.sync_data().map_err(|error| error.raw_os_error())));
        }
        let to = fixture.path("moved");
        note(format!("{:?}", fs::rename(&name, to).map_err(|error| error.raw_os_error())));
        if round % 3 == 0 {
            note(format!("{:?}", File::open(fixture.dir.path()).and_then(|dir| dir.sync_all()).is_ok()));
        }
        if fixture.disk.is_down().is_some() {
            fixture.disk.revive();
        }
    }
    outcomes
}

#[test]
fn a_seed_replays_and_every_fault_happens() {
    let mut coverage = Coverage::default();
    let mut digests = BTreeSet::new();
    for seed in 0..60 {
        let run = || {
            let fixture = Fixture::new(seed);
            fixture.disk.arm(12);
            let outcomes = busy(&fixture);
            (outcomes, fixture.disk.digest(), fixture.disk.coverage())
        };
        let first = run();
        assert_eq!(first, run(), "seed {seed}");
        digests.insert(first.1);
        coverage.merge(&first.2);
    }
    assert_eq!(digests.len(), 60);
    assert_eq!(coverage.gaps(1), [], "{}", coverage.table());
    assert!(coverage.losses.len() >= 3, "{}", coverage.table());
    assert_eq!(Coverage::read(&coverage.lines()), coverage);
}

#[test]
fn damage_changes_the_disk_itself() {
    let fixture = Fixture::new(1);
    fs::write(fixture.path("file"), "abc").unwrap();
    assert!(fixture.disk.damage("file", Damage::Bit(8)));
    assert_eq!(fs::read_to_string(fixture.path("file")).unwrap(), "acc");
    assert!(fixture.disk.damage("file", Damage::Cut(1)));
    assert!(!fixture.disk.damage("file", Damage::Cut(1)));
    assert!(!fixture.disk.damage("none", Damage::Cut(0)));
    assert_eq!(fixture.disk.files(), [("file".to_owned(), 1)]);
}

/// Commits of a database are on the disk or not there at all, and those that were answered are
/// there: its own calls of the system pass through the disk, too.
#[test]
fn a_database_keeps_what_it_committed() {
    let mut lost_something = 0;
    let mut coverage = Coverage::default();
    for seed in 0..40 {
        let fixture = Fixture::new(seed);
        let path = fixture.path("data.sqlite");
        let connect = || -> rusqlite::Result<rusqlite::Connection> {
            let connection = rusqlite::Connection::open(&path)?;
            connection.execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE IF NOT EXISTS t (x);",
            )?;
            Ok(connection)
        };
        let mut answered = 0;
        let mut tried = 0;
        for life in 0..6 {
            fixture.disk.arm(60);
            if let Ok(connection) = connect() {
                for _ in 0..10 {
                    tried += 1;
                    let done = connection.execute("INSERT INTO t VALUES (?1)", [tried]);
                    if fixture.disk.is_down().is_none() && done.is_ok() {
                        answered = tried;
                    } else {
                        break;
                    }
                }
                fixture.disk.crash(if life % 2 == 0 { Crash::PowerCut } else { Crash::Kill });
            }
            fixture.disk.crash(Crash::PowerCut);
            fixture.disk.revive();
            fixture.disk.arm(0);
            let count = |connection: rusqlite::Connection| {
                connection.query_row("SELECT coalesce(max(x), 0) FROM t", [], |row| row.get::<_, i64>(0))
            };
            let found = connect().and_then(count).unwrap();
            assert!((answered..=tried).contains(&found), "seed {seed}: {answered}, {found}, {tried}");
            (answered, tried) = (found, found);
        }
        coverage.merge(&fixture.disk.coverage());
        lost_something += u64::from(!fixture.disk.coverage().losses.is_empty());
    }
    assert!(lost_something > 20, "{lost_something}");
    assert!(coverage.faults() > 40, "{}", coverage.table());
}
