//! The ledger as a whole: the suite of all ledgers, restarts, crashes and full disks.

use std::cell::Cell;
use std::fs;
use std::time::Duration;

use furrow_rollout::EndKind;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::totals::recount;
use super::*;
use crate::ledger::conformance::{
    a_little_of_everything, assigned, begun, close, draw, fail, finish, ledger_conformance, lost, opened,
    problem, score,
};
use crate::ledger::{LedgerHandle, LedgerLimits, TaskDraw, TrajectoryRow};
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

/// The sums that are kept are those of the rows, whatever was committed before.
#[test]
fn tallies_equal_a_recount() {
    let dir = tempfile::tempdir().unwrap();
    let count = Cell::new(0);
    let mut runner = TestRunner::new(ProptestConfig { cases: 64, ..ProptestConfig::default() });
    let most = Cell::new((0, 0, 0));
    let walk = |choices: Vec<(u8, u8)>| {
        count.set(count.get() + 1);
        let mut ledger = SqliteLedger::open(dir.path().join(format!("{}.sqlite", count.get()))).unwrap();
        ledger.commit(&[opened(), begun(3, 2)]).unwrap();
        for (choice, of) in choices {
            let snapshot = ledger.load().unwrap();
            if let Some(mutation) = next_mutation(&snapshot, choice, of.into()) {
                ledger.commit(&[mutation]).ok();
            }
        }
        let kept = ledger.load().unwrap().totals;
        let recounted = recount(&ledger.connection).unwrap_or_else(|_| panic!("unreadable"));
        prop_assert_eq!(&kept, &recounted);
        let (scored, evaluated, lost) = most.get();
        let lost_now = kept.failed.get(&EndKind::RecordLost).copied().unwrap_or(0);
        most.set((scored.max(kept.scored), evaluated.max(kept.evaluated.scored), lost.max(lost_now)));
        Ok(())
    };
    runner.run(&prop::collection::vec(any::<(u8, u8)>(), 1..150), walk).unwrap();
    let (scored, evaluated, lost) = most.get();
    assert!(scored > 2 && evaluated > 0 && lost > 0, "the histories held {:?}", most.get());
}

/// A mutation that mostly follows: of a random row, or a new one.
fn next_mutation(snapshot: &LedgerSnapshot, choice: u8, of: usize) -> Option<Mutation> {
    let run = snapshot.run.as_ref()?;
    let rows = &snapshot.trajectories;
    let numbers = |row: &TrajectoryRow| {
        let group = snapshot.groups.iter().find(|group| group.draw.group_id == row.start.group_id);
        (group.unwrap().draw.index, row.start.sample_index, row.start.attempt)
    };
    let row = (!rows.is_empty()).then(|| &rows[of % rows.len()]);
    match choice % 12 {
        0 => Some(Mutation::GroupDrawn { draw: draw(run.next_group, 2), draws: run.draws + 1 }),
        1 => Some(problem(run.next_group, 3, snapshot.evaluations[0].drawn)),
        2..=5 => {
            let group = snapshot.groups.get(of % snapshot.groups.len().max(1))?;
            let sample = (of / 16 % 2) as u32;
            let same = |row: &&TrajectoryRow| {
                row.start.group_id == group.draw.group_id && row.start.sample_index == sample
            };
            let attempt = rows.iter().filter(same).count() as u32;
            Some(assigned(group.draw.index, sample, attempt, run.next_token))
        }
        6 | 7 => row.map(|row| {
            let (group, sample, attempt) = numbers(row);
            finish(group, sample, attempt, row.start.token, EndKind::Done)
        }),
        8 | 9 => row.map(|row| {
            let (group, sample, attempt) = numbers(row);
            score(group, sample, attempt, [0.0, 0.25, 1.0][of % 3])
        }),
        10 => row.map(|row| {
            let (group, sample, attempt) = numbers(row);
            if of.is_multiple_of(2) {
                lost(group, sample, attempt)
            } else {
                fail(group, sample, attempt, EndKind::Blocked)
            }
        }),
        _ => snapshot.groups.get(of % snapshot.groups.len().max(1)).map(|group| close(group.draw.index)),
    }
}

/// A ledger with more rows than are checked before a start.
fn large_ledger(path: &Path) -> SqliteLedger {
    let mut ledger = SqliteLedger::open(path).unwrap();
    ledger.commit(&[opened()]).unwrap();
    for index in 0..20 {
        let draw = TaskDraw { task_json: "x".repeat(1 << 20), ..draw(index, 1) };
        ledger.commit(&[Mutation::GroupDrawn { draw, draws: index }]).unwrap();
    }
    ledger
}

fn verdict_of(ledger: &SqliteLedger) -> Result<(), LedgerError> {
    let check = ledger.page_check.as_ref().expect("a large file is checked beside the run");
    loop {
        match check.poll() {
            Some(verdict) => return verdict,
            None => std::thread::park_timeout(Duration::from_millis(5)),
        }
    }
}

#[test]
fn a_large_file_is_checked_beside_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.sqlite");
    drop(large_ledger(&path));
    let mut ledger = SqliteLedger::open(&path).unwrap();
    ledger.commit(&[opened()]).unwrap();
    drop(ledger);
    verdict_of(&SqliteLedger::open(&path).unwrap()).unwrap();
    // The page of an index that a start does not read.
    let other = Connection::open(&path).unwrap();
    let sql = "SELECT rootpage FROM sqlite_schema WHERE name = 'trajectories_of_a_shard'";
    let page: u32 = other.query_row(sql, [], |row| row.get(0)).unwrap();
    drop(other);
    let mut bytes = fs::read(&path).unwrap();
    bytes[(page as usize - 1) * 4096..][..2048].fill(0xee);
    fs::write(&path, bytes).unwrap();
    let mut ledger = SqliteLedger::open(&path).unwrap();
    let error = loop {
        match ledger.commit(&[opened()]) {
            Ok(()) => std::thread::park_timeout(Duration::from_millis(5)),
            Err(error) => break error,
        }
    };
    assert!(matches!(&error, LedgerError::Foreign { why, .. } if why.contains("damaged")), "{error:?}");
    assert!(matches!(ledger.commit(&[opened()]), Err(LedgerError::Stopped)));
}

/// A start reads what is open, whatever lies behind it.
#[test]
fn a_load_reads_no_history() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = SqliteLedger::open(dir.path().join("ledger.sqlite")).unwrap();
    ledger.commit(&a_little_of_everything()).unwrap();
    let open = groups::uncommitted("group_id");
    let queries = [
        open.clone(),
        format!(
            "SELECT * FROM trajectories t LEFT JOIN shards s USING (shard_id) WHERE group_id IN ({open})"
        ),
        "SELECT shard_id FROM shards WHERE state IN ('opened', 'written')".to_owned(),
    ];
    for sql in queries {
        let mut query = ledger.connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let steps = query.query_map([], |row| row.get::<_, String>(3)).unwrap();
        let steps: Vec<String> = steps.map(Result::unwrap).collect();
        let scans = |step: &&String| step.starts_with("SCAN ") && !step.contains("groups_in_no_shard");
        assert!(!steps.iter().any(|step| scans(&step)), "{sql}: {steps:#?}");
    }
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
