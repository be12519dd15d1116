//! The checks are worth something only if they catch a broken farm: three planted bugs, each of which must make the checker fail.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::farm::{Farm, Ground, Role, air_tasks, pause};

const GROUP_SIZE: u32 = 2;

fn farm(folder: &std::path::Path, bug: &str, groups: u32) -> Farm {
    let tasks = air_tasks(folder, groups, GROUP_SIZE);
    let job = format!(
        "{tasks}\n[limits]\nlease_millis = 1000\nheartbeat_millis = 200\nattempts_max = 50\nfailure_budget = 1.0\n[records]\nmax_delay_millis = 200\n[env]\nsessions_max = 4\n[policy]\nkind = \"scripted\"\nthink_millis = 50\n"
    );
    let mut farm = Farm::new(Ground::Air(2_000), &job);
    farm.environment("FURROW_POWER_CUT", "1");
    farm.environment("FAILPOINTS", bug);
    farm
}

/// What the checker says of a farm with this bug and this trouble, `Ok` if it finds nothing. A farm that does not even come to its end has
/// not passed either: the ledger refuses decisions that contradict it, and the coordinator stops.
fn judge(bug: &str, trouble: Trouble) -> Result<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let mut farm = farm(folder.path(), bug, trouble.groups());
    let lived = catch_unwind(AssertUnwindSafe(|| {
        match trouble {
            Trouble::CrashAt(point) => crash_at(&mut farm, bug, point),
            Trouble::KillWhileSyncing => kill_while_syncing(&mut farm, bug),
            Trouble::Stall => {
                farm.start_all();
                stall_the_environment_worker(&mut farm);
            }
        }
        farm.finish(Duration::from_secs(120));
    }));
    match lived {
        Ok(()) => farm.check(trouble.groups(), GROUP_SIZE),
        Err(_) => Err(format!("BREACH the farm did not come to its end\n{}", farm.outputs())),
    }
}

/// What goes wrong around the bug.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    /// The coordinator dies at this point, again and again.
    CrashAt(&'static str),
    /// The disk is slow to sync, and the coordinator dies while it waits for it, again and again.
    KillWhileSyncing,
    /// The environment worker stops until its leases are lost, then goes on.
    Stall,
}

impl Trouble {
    /// Work enough to last until all of it has happened. Each stall brings one more worker, and six get through 120 groups in ten seconds.
    fn groups(self) -> u32 {
        match self {
            Trouble::CrashAt(_) | Trouble::KillWhileSyncing => 60,
            Trouble::Stall => 500,
        }
    }
}

fn crash_at(farm: &mut Farm, bug: &str, point: &str) {
    farm.start(Role::Policy);
    farm.start(Role::Env);
    for visits in [3, 9, 17] {
        farm.environment("FAILPOINTS", &format!("{bug};{point}={visits}*off->return"));
        farm.start(Role::Coordinator);
        assert_eq!(
            farm.wait_for_end(Role::Coordinator, Duration::from_secs(30)),
            None,
            "{point} was not reached"
        );
    }
    farm.environment("FAILPOINTS", bug);
    farm.start(Role::Coordinator);
}

/// Each sync takes so long that replies which do not wait for it have arrived when the kill comes.
fn kill_while_syncing(farm: &mut Farm, bug: &str) {
    farm.start(Role::Policy);
    farm.start(Role::Env);
    for _ in 0..3 {
        farm.environment("FAILPOINTS", &format!("{bug};spool.before_sync=sleep(400)"));
        farm.start(Role::Coordinator);
        farm.wait_until("recording", Duration::from_secs(60), |now| now.assigned > 0 && now.steps > 2);
        farm.kill(Role::Coordinator);
    }
    farm.environment("FAILPOINTS", bug);
    farm.start(Role::Coordinator);
}

/// Whether a stalled worker has something to say late depends on the moment it was stopped in: one stall in five may pass unnoticed.
const STALLS: usize = 5;

/// Stops the environment worker until its leases are lost and lent to another, then lets it go on.
fn stall_the_environment_worker(farm: &mut Farm) {
    for _ in 0..STALLS {
        farm.wait_until("at work", Duration::from_secs(60), |now| now.assigned >= 4);
        let before = farm.progress().map_or(0, |now| now.failed);
        let stalled = farm.stall_env();
        farm.start(Role::Env);
        farm.wait_until("without its leases", Duration::from_secs(60), |now| now.failed > before);
        farm.wake(stalled);
        // What it sends late arrives within this second.
        for _ in 0..50 {
            pause();
        }
    }
}

#[track_caller]
fn check(bug: &str, trouble: Trouble) {
    let clean = judge("", trouble);
    assert!(clean.is_ok(), "without the bug there is nothing to find: {clean:?}");
    let breaches = judge(bug, trouble).expect_err("the checker did not see the planted bug");
    assert!(breaches.contains("BREACH"), "{breaches}");
    println!("{bug}: caught\n{breaches}");
}

#[test]
fn acknowledging_before_fsync_is_caught() {
    check("bug.ack_before_sync=return", Trouble::KillWhileSyncing);
}

#[test]
fn retrying_without_a_key_is_caught() {
    check("bug.no_key=return", Trouble::CrashAt("spool.after_sync"));
}

#[test]
fn going_without_fencing_tokens_is_caught() {
    check("bug.no_fencing=return", Trouble::Stall);
}
