//! The ledger as a whole: the suite of all ledgers, restarts, crashes and full disks.

use std::cell::Cell;
use std::fs;
use std::time::Duration;

use super::*;
use crate::ledger::conformance::{a_little_of_everything, draw, ledger_conformance, opened};
use crate::ledger::{LedgerHandle, LedgerLimits, TaskDraw};
use crate::small_disk::{is_limited, on_small_disk};

#[test]
fn conforms() {
    let dir = tempfile::tempdir().unwrap();
    let count = Cell::new(0);
    ledger_conformance(|| {
        count.set(count.get() + 1);
        SqliteLedger::open(dir.path().join(format!("{}.sqlite", count.get()))).unwrap()
    });
}

#[test]
fn it_is_all_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.sqlite");
    let mut ledger = SqliteLedger::open(&path).unwrap();
    ledger.commit(&a_little_of_everything()).unwrap();
    let before = ledger.load().unwrap();
    drop(ledger);
    assert_eq!(SqliteLedger::open(&path).unwrap().load().unwrap(), before);
}

#[test]
fn what_lies_in_the_log_is_there_after_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.sqlite");
    let copy = dir.path().join("copy.sqlite");
    let mut ledger = SqliteLedger::open(&path).unwrap();
    ledger.commit(&a_little_of_everything()).unwrap();
    // what a crash now would leave: no checkpoint, and the file is not closed
    for suffix in ["", "-wal"] {
        let from = dir.path().join(format!("ledger.sqlite{suffix}"));
        fs::copy(from, dir.path().join(format!("copy.sqlite{suffix}"))).unwrap();
    }
    assert_eq!(SqliteLedger::open(copy).unwrap().load().unwrap(), ledger.load().unwrap());
}

#[test]
fn a_full_disk_keeps_what_was_acknowledged_and_goes_on_when_freed() {
    let name = "ledger::sqlite::tests::a_full_disk_keeps_what_was_acknowledged_and_goes_on_when_freed";
    on_small_disk(name, |disk| {
        let path = disk.join("ledger.sqlite");
        let filler = |cycle: u32| disk.join(format!("filler{cycle}"));
        (0..5).for_each(|cycle| fs::write(filler(cycle), vec![0; 300_000]).unwrap());
        let mut ledger = SqliteLedger::open(&path).unwrap();
        ledger.commit(&[opened()]).unwrap();
        let group = |index| {
            let draw = TaskDraw { task_json: "x".repeat(20_000), ..draw(index, 1) };
            Mutation::GroupDrawn { draw, draws: index }
        };
        let mut drawn = 0;
        for cycle in 0..5 {
            let error = loop {
                match ledger.commit(&[group(drawn)]) {
                    Ok(()) => drawn += 1,
                    Err(error) => break error,
                }
                assert!(drawn < 1000, "the small disk is not small");
            };
            if is_limited() {
                // to SQLite a limit on file sizes is not a full disk: it stops, and keeps what
                // it acknowledged
                assert!(matches!(error, LedgerError::Storage { .. }), "{error:?}");
                assert!(matches!(ledger.commit(&[group(drawn)]), Err(LedgerError::Stopped)));
                break;
            }
            assert!(matches!(error, LedgerError::DiskFull { .. }), "cycle {cycle}: {error:?}");
            assert_eq!(ledger.load().unwrap().groups.len() as u64, drawn);
            fs::remove_file(filler(cycle)).unwrap();
            ledger.commit(&[group(drawn)]).unwrap();
            drawn += 1;
        }
        drop(ledger);
        assert!(drawn > 10);
        assert_eq!(SqliteLedger::open(&path).unwrap().load().unwrap().groups.len() as u64, drawn);
    });
}

/// Someone holds a write transaction in the `sqlite3` tool.
fn locked(path: &Path) -> Connection {
    let other = Connection::open(path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    other
}

#[test]
fn a_lock_of_another_process_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.sqlite");
    let mut ledger = SqliteLedger::open(&path).unwrap();
    ledger.connection.busy_timeout(Duration::from_millis(20)).unwrap();
    ledger.commit(&[opened()]).unwrap();
    let other = locked(&path);
    let draw = |index| vec![Mutation::GroupDrawn { draw: draw(index, 1), draws: index }];
    let error = ledger.commit(&draw(0)).unwrap_err();
    assert!(matches!(error, LedgerError::Busy { .. }), "{error:?}");
    assert!(error.to_string().contains("fuser"), "{error}");
    drop(other);
    ledger.commit(&draw(0)).unwrap();
    // The ledger's thread waits by itself.
    let other = locked(&path);
    let handle = LedgerHandle::start(ledger, LedgerLimits::default()).unwrap();
    let released = std::thread::spawn(move || {
        std::thread::park_timeout(Duration::from_millis(200));
        drop(other);
    });
    handle.commit_blocking(draw(1)).unwrap();
    released.join().unwrap();
}
