//! The checks are useful only if they catch a broken farm: each of three planted bugs must make the
//! checker fail.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::farm::{FarmBrowser, FarmHarness, FarmRole, pause, simulated_tasks};

const GROUP_SIZE: u32 = 2;

fn farm(folder: &std::path::Path, bug: &str, groups: u32) -> FarmHarness {
    let tasks = simulated_tasks(folder, groups, GROUP_SIZE);
    let job = format!(
        "{tasks}\n[limits]\nlease_millis = 1000\nheartbeat_millis = 200\nattempts_max = 50\nfailure_budget = 1.0\n[records]\nmax_delay_millis = 200\n[env]\nsessions_max = 4\n[policy]\nkind = \"scripted\"\nthink_millis = 50\n"
    );
    let mut farm = FarmHarness::new(FarmBrowser::Simulated(2_000), &job);
    farm.environment("FURROW_POWER_CUT", "1");
    farm.environment("FAILPOINTS", bug);
    farm
}

/// The checker's result for a farm with this bug and this fault, `Ok` if it finds nothing. A farm
/// that does not finish has not passed either: the ledger refuses decisions that contradict it, and
/// the coordinator stops.
fn run_checker(bug: &str, trouble: FaultKind) -> Result<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let mut farm = farm(folder.path(), bug, trouble.groups());
    let finished = catch_unwind(AssertUnwindSafe(|| {
        match trouble {
            FaultKind::CrashAt(point) => crash_at(&mut farm, bug, point),
            FaultKind::KillWhileSyncing => kill_while_syncing(&mut farm, bug),
            FaultKind::Stall => {
                farm.start_all();
                stall_the_environment_worker(&mut farm);
            }
        }
        farm.finish(Duration::from_secs(120));
    }));
    match finished {
        Ok(()) => farm.check(trouble.groups(), GROUP_SIZE),
        Err(_) => Err(format!("BREACH the farm did not finish\n{}", farm.outputs())),
    }
}

/// The fault that accompanies the bug.
#[derive(Debug, Clone, Copy)]
enum FaultKind {
    /// The coordinator dies at this point, repeatedly.
    CrashAt(&'static str),
    /// The disk is slow to sync, and the coordinator dies while it waits for the disk, repeatedly.
    KillWhileSyncing,
    /// The environment worker stops until its leases are lost, then continues.
    Stall,
}

impl FaultKind {
    /// Enough groups that all faults happen before the end. Each stall adds a worker, and six
    /// workers finish 120 groups in ten seconds.
    fn groups(self) -> u32 {
        match self {
            FaultKind::CrashAt(_) | FaultKind::KillWhileSyncing => 60,
            FaultKind::Stall => 500,
        }
    }
}

fn crash_at(farm: &mut FarmHarness, bug: &str, point: &str) {
    farm.start(FarmRole::Policy);
    farm.start(FarmRole::Env);
    for visits in [3, 9, 17] {
        farm.environment("FAILPOINTS", &format!("{bug};{point}={visits}*off->return"));
        farm.start(FarmRole::Coordinator);
        assert_eq!(
            farm.wait_for_end(FarmRole::Coordinator, Duration::from_secs(30)),
            None,
            "{point} was not reached"
        );
    }
    farm.environment("FAILPOINTS", bug);
    farm.start(FarmRole::Coordinator);
}

/// Each sync takes so long that replies which do not wait for it have arrived before the kill.
fn kill_while_syncing(farm: &mut FarmHarness, bug: &str) {
    farm.start(FarmRole::Policy);
    farm.start(FarmRole::Env);
    for _ in 0..3 {
        farm.environment("FAILPOINTS", &format!("{bug};spool.before_sync=sleep(400)"));
        farm.start(FarmRole::Coordinator);
        farm.wait_until("recording", Duration::from_secs(60), |now| now.assigned > 0 && now.steps > 2);
        farm.kill(FarmRole::Coordinator);
    }
    farm.environment("FAILPOINTS", bug);
    farm.start(FarmRole::Coordinator);
}

/// Whether a stalled worker sends something late depends on the moment of the stop: one stall in
/// five may have no effect.
const STALLS: usize = 5;

/// Stops the environment worker until its leases are lost and given to another, then continues it.
fn stall_the_environment_worker(farm: &mut FarmHarness) {
    for _ in 0..STALLS {
        farm.wait_until("at work", Duration::from_secs(60), |now| now.assigned >= 4);
        let before = farm.progress().map_or(0, |now| now.failed);
        let stalled = farm.stall_env();
        farm.start(FarmRole::Env);
        farm.wait_until("without its leases", Duration::from_secs(60), |now| now.failed > before);
        farm.wake(stalled);
        // Its late calls arrive within this second.
        for _ in 0..50 {
            pause();
        }
    }
}

#[track_caller]
fn check(bug: &str, trouble: FaultKind) {
    // Side by side, because both farms mostly wait: for stalls, restarts and a slow disk.
    let (clean, checked) = std::thread::scope(|scope| {
        let clean = scope.spawn(|| run_checker("", trouble));
        let checked = run_checker(bug, trouble);
        (clean.join().expect("the checker panicked"), checked)
    });
    assert!(clean.is_ok(), "without the bug the checker must find nothing: {clean:?}");
    let breaches = checked.expect_err("the checker did not find the planted bug");
    assert!(breaches.contains("BREACH"), "{breaches}");
    println!("{bug}: caught\n{breaches}");
}

#[test]
fn acknowledging_before_fsync_is_caught() {
    check("bug.ack_before_sync=return", FaultKind::KillWhileSyncing);
}

#[test]
fn retrying_without_a_key_is_caught() {
    check("bug.no_key=return", FaultKind::CrashAt("spool.after_sync"));
}

#[test]
fn going_without_fencing_tokens_is_caught() {
    check("bug.no_fencing=return", FaultKind::Stall);
}
