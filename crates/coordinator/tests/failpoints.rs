//! Kills: a child process dies at every fail point of the spool and the ledger, as in a power cut,
//! and its parent checks that everything acknowledged is there. The same check must catch planted
//! bugs.
//!
//! Needs the feature `failpoints`. A binary of its own, because a fail point that a test sets acts
//! on every thread of the process.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use bytes::Bytes;
use furrow_coordinator::arm_fail_points;
use furrow_coordinator::ledger::{
    LEDGER_FAIL_POINTS, Ledger, LedgerHandle, LedgerLimits, Mutation, RunOpening, SqliteLedger, TaskDraw,
};
use furrow_coordinator::spool::{AppendOutcome, EntryKey, SPOOL_FAIL_POINTS, Spool, SpoolError, SpoolLimits};
use furrow_rollout::{Group, Id, Split, Trajectory};
use sha2::{Digest, Sha256};
use tokio::runtime::Runtime;

const SIGKILL: i32 = 9;
const DIR: &str = "FURROW_TEST_DIR";

/// Longer than any sync here takes; only a hung child exceeds it.
const SILENCE: Duration = Duration::from_millis(1500);

/// Runs one of the children below with these fail points until it dies or stops responding; returns
/// the lines it printed.
fn run_child(role: &str, dir: &Path, fail_points: &str) -> Vec<String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", role, "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(DIR, dir).env("FAILPOINTS", fail_points).env("FURROW_POWER_CUT", "1");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = listen(&mut child);
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(
        status.signal(),
        Some(SIGKILL),
        "{role} with {fail_points} was not killed by its fail point: {status}"
    );
    lines
}

fn listen(child: &mut Child) -> Vec<String> {
    let (line, lines) = sync_channel(1000);
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let reader =
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|text| line.send(text)));
    let mut output = Vec::new();
    loop {
        match lines.recv_timeout(SILENCE) {
            Ok(text) => output.push(text),
            Err(RecvTimeoutError::Timeout) => break,
            Err(RecvTimeoutError::Disconnected) => {
                reader.join().unwrap().unwrap();
                break;
            }
        }
    }
    output
}

fn work_dir() -> std::path::PathBuf {
    std::env::var_os(DIR).expect("only its parent runs this").into()
}

fn payload(name: &str, step: u32) -> Bytes {
    Bytes::from(format!("{name} {step} ").repeat(50))
}

fn append(runtime: &Runtime, spool: &Spool, name: &str, step: u32) -> Result<AppendOutcome, SpoolError> {
    let id = Id::new(name).unwrap();
    let payload = payload(name, step);
    runtime.block_on(spool.append_step(&id, step, Sha256::digest(&payload).into(), payload))
}

#[test]
#[ignore = "runs only as a child of the other tests"]
fn child_that_records() {
    arm_fail_points();
    let (spool, recovered) = Spool::open(work_dir(), SpoolLimits::default()).unwrap();
    let runtime = Runtime::new().unwrap();
    let mut next: BTreeMap<String, u32> =
        recovered.iter().map(|found| (found.trajectory_id.to_string(), found.steps.len() as u32)).collect();
    for round in 0..1000 {
        let name = format!("t{}", round % 3);
        let step = next.entry(name.clone()).or_default();
        append(&runtime, &spool, &name, *step).unwrap();
        println!("kept {name} {step}");
        *step += 1;
        // as after a lost reply: the same step again
        append(&runtime, &spool, &name, *step - 1).unwrap();
        if round % 3 == 2 {
            let done = format!("d{round}");
            append(&runtime, &spool, &done, 0).unwrap();
            println!("kept {done} 0");
            println!("dropping {done}");
            spool.delete(&Id::new(&done).unwrap()).unwrap();
        }
    }
}

/// What is wrong in a spool after its writer died, compared with the lines the writer printed.
fn look_at_spool(dir: &Path, lines: &[String]) -> Result<(), String> {
    let (spool, _) = Spool::open(dir, SpoolLimits::default()).unwrap();
    let mut dropped = Vec::new();
    for line in lines.iter().rev() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["dropping", name] => dropped.push(name.to_owned()),
            ["kept", name, step] if !dropped.iter().any(|dropped| dropped == name) => {
                let step: u32 = step.parse().unwrap();
                let kept = entries(&spool, name)?;
                if kept.get(step as usize) != Some(&(EntryKey::Step(step), payload(name, step))) {
                    return Err(format!("{name} {step} was acknowledged and is lost"));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn entries(spool: &Spool, name: &str) -> Result<Vec<(EntryKey, Bytes)>, String> {
    let id: Id<Trajectory> = Id::new(name).unwrap();
    let mut all = Vec::new();
    for entry in spool.read(&id).map_err(|error| error.to_string())? {
        let entry = entry.map_err(|error| error.to_string())?;
        if entry.key != EntryKey::Step(all.len() as u32) {
            return Err(format!("{name}: {} follows {} entries", entry.key, all.len()));
        }
        all.push((entry.key, entry.payload));
    }
    Ok(all)
}

#[test]
fn the_spool_keeps_what_it_acknowledged_wherever_it_is_killed() {
    for point in SPOOL_FAIL_POINTS {
        let dir = tempfile::tempdir().unwrap();
        let mut lines = Vec::new();
        for visit in ["return", "1*off->return", "7*off->return"] {
            lines.extend(run_child("child_that_records", dir.path(), &format!("{point}={visit}")));
            look_at_spool(dir.path(), &lines).unwrap_or_else(|wrong| panic!("{point}={visit}: {wrong}"));
        }
        assert!(!lines.is_empty(), "{point}: nothing was ever acknowledged");
    }
}

#[test]
fn a_spool_that_acknowledges_before_it_syncs_is_caught() {
    let dir = tempfile::tempdir().unwrap();
    let points = "bug.ack_before_sync=return;spool.before_sync=4*off->pause";
    let lines = run_child("child_that_records", dir.path(), points);
    let wrong = look_at_spool(dir.path(), &lines).unwrap_err();
    assert!(wrong.contains("was acknowledged and is lost"), "{wrong}");
}

#[test]
fn without_the_bug_the_same_power_cut_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let lines = run_child("child_that_records", dir.path(), "spool.before_sync=4*off->pause");
    assert!(lines.iter().any(|line| line.starts_with("kept")), "{lines:?}");
    look_at_spool(dir.path(), &lines).unwrap();
}

#[test]
fn a_spool_that_forgets_its_keys_is_caught() {
    let dir = tempfile::tempdir().unwrap();
    let lines =
        run_child("child_that_records", dir.path(), "bug.no_key=return;spool.before_sync=9*off->return");
    let wrong = look_at_spool(dir.path(), &lines);
    assert!(wrong.is_err(), "{lines:?}");
}

#[test]
fn after_a_failed_sync_nothing_is_acknowledged_any_more() {
    let scenario = fail::FailScenario::setup();
    let dir = tempfile::tempdir().unwrap();
    let runtime = Runtime::new().unwrap();
    let (spool, _) = Spool::open(dir.path(), SpoolLimits::default()).unwrap();
    append(&runtime, &spool, "a", 0).unwrap();
    fail::cfg("fault.sync", "return").unwrap();
    let failed = append(&runtime, &spool, "a", 1).unwrap_err();
    assert!(matches!(failed, SpoolError::Stopped(Some(_))), "{failed}");
    fail::cfg("fault.sync", "off").unwrap();
    for (name, step) in [("a", 1), ("a", 0), ("b", 0)] {
        let refused = append(&runtime, &spool, name, step).unwrap_err();
        assert!(matches!(refused, SpoolError::Stopped(Some(_))), "{name} {step}: {refused}");
    }
    assert!(
        spool.seal(&Id::new("a").unwrap()).is_err(),
        "what is not known to be durable must not be committed"
    );
    drop(spool);
    let (spool, recovered) = Spool::open(dir.path(), SpoolLimits::default()).unwrap();
    assert!(!recovered[0].steps.is_empty());
    append(&runtime, &spool, "a", recovered[0].steps.len() as u32).unwrap();
    drop(scenario);
}

fn draw(index: u64) -> Mutation {
    let run = Id::new("r").unwrap();
    let draw = TaskDraw {
        group_id: Id::<Group>::nth(&run, index),
        index,
        suite: "starter".to_owned(),
        task_id: "click".to_owned(),
        split: Split::Train,
        seed: index,
        group_size: 1,
        chance: None,
        problem: None,
        task_json: "{}".to_owned(),
        at_micros: 0,
    };
    Mutation::GroupDrawn { draw, draws: index }
}

fn open_ledger(dir: &Path) -> (SqliteLedger, u64) {
    let mut ledger = SqliteLedger::open(dir.join("ledger.sqlite")).unwrap();
    let run_id = Id::new("r").unwrap();
    ledger
        .commit(&[Mutation::RunOpened(RunOpening {
            run_id,
            job_sha256: [1; 32],
            began_sha256: None,
            at_micros: 0,
        })])
        .unwrap();
    let next = ledger.load().unwrap().run.unwrap().next_group;
    (ledger, next)
}

#[test]
#[ignore = "runs only as a child of the other tests"]
fn child_that_decides() {
    arm_fail_points();
    let (ledger, next) = open_ledger(&work_dir());
    let handle = LedgerHandle::start(ledger, LedgerLimits::default()).unwrap();
    for index in next..next + 1000 {
        handle.commit_blocking(vec![draw(index)]).unwrap();
        println!("kept {index}");
    }
}

#[test]
fn the_ledger_keeps_what_it_acknowledged_wherever_it_is_killed() {
    let passed =
        ["commit", "group_draw"].map(|verb| ["before", "after"].map(|when| format!("ledger.{when}_{verb}")));
    for point in passed.as_flattened() {
        assert!(LEDGER_FAIL_POINTS.contains(&point.as_str()), "{point}");
        let dir = tempfile::tempdir().unwrap();
        for visit in ["return", "1*off->return", "5*off->return"] {
            let lines = run_child("child_that_decides", dir.path(), &format!("{point}={visit}"));
            let kept = lines.iter().filter_map(|line| line.strip_prefix("kept ")).next_back();
            let (_, next) = open_ledger(dir.path());
            let acknowledged = kept.map_or(0, |index| index.parse::<u64>().unwrap() + 1);
            assert!(next >= acknowledged, "{point}={visit}: {acknowledged} acknowledged, {next} there");
        }
    }
}

/// A disk whose syncs fail, simulated by the system call tracer; without a tracer the test prints
/// that it was skipped.
#[test]
fn a_ledger_whose_disk_fails_stops_and_keeps_what_it_acknowledged() {
    let found = Command::new("strace").arg("-V").stdout(Stdio::null()).status();
    if !found.is_ok_and(|status| status.success()) {
        println!("skipped: strace, which makes a sync fail, is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync"]);
    command.args(["-e", "inject=fdatasync,fsync:error=EIO:when=30+"]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", "child_that_decides", "--ignored", "--nocapture"]).env(DIR, dir.path());
    let output = command.output().unwrap();
    let output_text = String::from_utf8(output.stdout).unwrap();
    let kept = output_text.lines().filter_map(|line| line.strip_prefix("kept ")).next_back();
    let acknowledged = kept.map_or(0, |index| index.parse::<u64>().unwrap() + 1);
    assert!(!output.status.success() && acknowledged > 0, "{output_text}");
    assert!(acknowledged < 1000, "nothing failed");
    let (_, next) = open_ledger(dir.path());
    assert!(next >= acknowledged, "{acknowledged} acknowledged, {next} there");
}
