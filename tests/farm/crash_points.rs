//! Every crash point of the coordinator and of the environment worker, each hit twice, in one run that must lose nothing.

use std::time::Duration;

use crate::farm::{Farm, Ground, Role, air_tasks, pause};

/// A restart, and the work that leads to the next point.
const NEXT_DEATH: Duration = Duration::from_secs(30);

const GROUPS: u32 = 300;
const GROUP_SIZE: u32 = 2;

/// Small shards and short leases, so that every stage is passed many times a minute.
fn job(folder: &std::path::Path) -> String {
    let tasks = air_tasks(folder, GROUPS, GROUP_SIZE);
    format!(
        "{tasks}\n[limits]\nlease_millis = 2000\nheartbeat_millis = 200\nattempts_max = 50\nfailure_budget = 1.0\n[records]\nmax_delay_millis = 200\n[env]\nsessions_max = 4\n[policy]\nkind = \"scripted\"\nthink_millis = 20\n"
    )
}

#[test]
fn no_crash_point_of_the_coordinator_loses_or_repeats_anything() {
    let points: Vec<&str> = furrow_coordinator::fail_points().collect();
    assert!(points.len() >= 25, "only {points:?}");
    let mut ground = Farms::new();
    for point in &points {
        for visit in visits(point) {
            ground.die(point, visit);
        }
    }
    ground.finish();
    println!("{} crash points, each twice", points.len());
}

/// Farms one after the other: how far a job gets between two deaths depends on the machine, so when one is over the next goes on.
struct Farms {
    folder: tempfile::TempDir,
    farm: Farm,
    /// Whether a coordinator of this farm has died yet.
    used: bool,
}

impl Farms {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut farm = Farm::new(Ground::Air(2_000), &job(folder.path()));
        // Bytes that were not synced are lost with the process, as in a power cut.
        farm.environment("FURROW_POWER_CUT", "1");
        farm.start(Role::Policy);
        farm.start(Role::Env);
        Self { folder, farm, used: false }
    }

    /// Has a coordinator die at a point.
    fn die(&mut self, point: &str, visit: &str) {
        loop {
            // A shard is abandoned where an earlier life left one that was never written.
            let prepared =
                !point.contains("shard_abandon") || die(&mut self.farm, "publish.after_open", "return");
            if prepared && die(&mut self.farm, point, visit) {
                self.used = true;
                return;
            }
            assert!(self.used, "{point} ({visit}) was not reached in a whole job\n{}", self.farm.outputs());
            std::mem::replace(self, Self::new()).check();
        }
    }

    /// Lets the job come to its end.
    fn finish(mut self) {
        self.farm.environment("FAILPOINTS", "");
        self.farm.start(Role::Coordinator);
        let status = self.farm.wait_for_end(Role::Coordinator, Duration::from_secs(240));
        assert_eq!(status, Some(0), "the coordinator did not come to the job's end\n{}", self.farm.outputs());
        self.check();
    }

    /// Of a job whose coordinator has left.
    fn check(mut self) {
        self.farm.finish_workers(Duration::from_secs(60));
        let told = self.farm.check(GROUPS, GROUP_SIZE).unwrap_or_else(|breaches| panic!("{breaches}"));
        println!("{told}");
        drop(self.folder);
    }
}

/// At its first visit, and at its second; what is visited once a start is visited at two starts.
fn visits(point: &str) -> [&'static str; 2] {
    let once_a_start = ["run_open", "shard_abandon"].iter().any(|name| point.contains(name));
    if once_a_start { ["return", "return"] } else { ["return", "1*off->return"] }
}

/// Kills the environment worker with trajectories in hand and brings another, unless the coordinator is dead already.
fn lose_the_worker(farm: &mut Farm) {
    let began = std::time::Instant::now();
    while farm.lives(Role::Coordinator) && began.elapsed() < NEXT_DEATH {
        if farm.progress().is_some_and(|now| now.assigned > 0) {
            farm.kill(Role::Env);
            farm.start(Role::Env);
            return;
        }
        pause();
    }
}

/// Starts the coordinator with a deadly point and waits until it died there; `false` when the job was over first.
fn die(farm: &mut Farm, point: &str, visit: &str) -> bool {
    farm.environment("FAILPOINTS", &format!("{point}={visit}"));
    farm.start(Role::Coordinator);
    println!("{point} ({visit})");
    if point.ends_with("_fail") {
        // Trajectories fail where their worker is gone; each time it is, once.
        for _ in 0..2 {
            lose_the_worker(farm);
        }
    }
    match farm.wait_for_end(Role::Coordinator, NEXT_DEATH) {
        None => true,
        Some(0) => false,
        Some(status) => panic!("{point} ({visit}): the coordinator ended with {status}\n{}", farm.outputs()),
    }
}

#[test]
fn no_crash_point_of_the_environment_worker_loses_or_repeats_anything() {
    let folder = tempfile::tempdir().unwrap();
    let mut farm = Farm::new(Ground::Air(2_000), &job(folder.path()));
    farm.start(Role::Coordinator);
    farm.start(Role::Policy);
    for point in furrow_env::ENV_FAIL_POINTS {
        for visit in ["return", "1*off->return"] {
            farm.environment("FAILPOINTS", &format!("{point}={visit}"));
            farm.start(Role::Env);
            assert_eq!(farm.wait_for_end(Role::Env, NEXT_DEATH), None, "{point} ({visit}) was never reached");
        }
    }
    farm.environment("FAILPOINTS", "");
    farm.start(Role::Env);
    farm.finish(Duration::from_secs(240));
    let told = farm.check(GROUPS, GROUP_SIZE).unwrap_or_else(|breaches| panic!("{breaches}"));
    println!("{told}");
}
