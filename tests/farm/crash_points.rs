//! Every crash point of the coordinator and of the environment worker in runs that must lose
//! nothing: each at its first or its second visit, or with `FURROW_CRASH_VISITS=all` at both.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::farm::{FarmBrowser, FarmHarness, FarmRole, pause, simulated_tasks};

/// Time for a restart and the work that leads to the next point.
const NEXT_DEATH: Duration = Duration::from_secs(90);

const GROUPS: u32 = 300;
const GROUP_SIZE: u32 = 2;

/// Small shards and short leases, so that every stage is passed many times per minute.
fn job(folder: &std::path::Path) -> String {
    let tasks = simulated_tasks(folder, GROUPS, GROUP_SIZE);
    format!(
        "{tasks}\n[limits]\nlease_millis = 2000\nheartbeat_millis = 200\nattempts_max = 50\nfailure_budget = 1.0\n[records]\nmax_delay_millis = 200\n[env]\nsessions_max = 4\n[policy]\nkind = \"scripted\"\nthink_millis = 20\n"
    )
}

#[test]
fn no_crash_point_of_the_coordinator_loses_or_repeats_anything() {
    let points: Vec<&str> = furrow_coordinator::fail_points().collect();
    assert!(points.len() >= 25, "only {points:?}");
    let mut farms = FarmSeries::new();
    for point in &points {
        for visit in chosen(visits(point)) {
            farms.run_until_death(point, visit);
        }
    }
    farms.finish();
    println!("{} crash points", points.len());
}

/// Farms one after the other: the progress between two deaths depends on the machine, so when a job
/// is over the next farm starts.
struct FarmSeries {
    folder: tempfile::TempDir,
    farm: FarmHarness,
    /// Whether a coordinator of this farm has died yet.
    used: bool,
}

impl FarmSeries {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut farm = FarmHarness::new(FarmBrowser::Simulated(2_000), &job(folder.path()));
        // Bytes that were not synced are lost with the process, as in a power cut.
        farm.environment("FURROW_POWER_CUT", "1");
        farm.start(FarmRole::Policy);
        farm.start(FarmRole::Env);
        Self { folder, farm, used: false }
    }

    /// Lets a coordinator die at a point.
    fn run_until_death(&mut self, point: &str, visit: &str) {
        loop {
            // A shard is abandoned only if an earlier coordinator left one that was never written.
            let prepared =
                !point.contains("shard_abandon") || dies_at(&mut self.farm, "commit.after_open", "return");
            if prepared && dies_at(&mut self.farm, point, visit) {
                self.used = true;
                return;
            }
            assert!(self.used, "{point} ({visit}) was not reached in a whole job\n{}", self.farm.outputs());
            std::mem::replace(self, Self::new()).check();
        }
    }

    /// Runs the job to its end.
    fn finish(mut self) {
        self.farm.environment("FAILPOINTS", "");
        self.farm.start(FarmRole::Coordinator);
        let status = self.farm.wait_for_end(FarmRole::Coordinator, Duration::from_secs(240));
        assert_eq!(status, Some(0), "the coordinator did not finish the job\n{}", self.farm.outputs());
        self.check();
    }

    /// Checks a job whose coordinator has ended.
    fn check(mut self) {
        self.farm.finish_workers(Duration::from_secs(60));
        let summary = self.farm.check(GROUPS, GROUP_SIZE).unwrap_or_else(|breaches| panic!("{breaches}"));
        println!("{summary}");
        drop(self.folder);
    }
}

/// Both visits where all are asked for, else one at random. The caller prints each.
fn chosen(visits: [&'static str; 2]) -> Vec<&'static str> {
    if std::env::var("FURROW_CRASH_VISITS").is_ok_and(|which| which == "all") {
        return visits.to_vec();
    }
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos();
    // The lowest bits of some clocks are always 0.
    vec![visits[(nanos / 1000) as usize % 2]]
}

/// The first visit and the second; for a point that is visited once per start, two starts.
fn visits(point: &str) -> [&'static str; 2] {
    let once_a_start = ["run_open", "shard_abandon"].iter().any(|name| point.contains(name));
    if once_a_start { ["return", "return"] } else { ["return", "1*off->return"] }
}

/// Kills the environment worker with running trajectories and starts another, unless the
/// coordinator has died.
fn lose_the_worker(farm: &mut FarmHarness) {
    let began = std::time::Instant::now();
    while farm.is_alive(FarmRole::Coordinator) && began.elapsed() < NEXT_DEATH {
        if farm.progress().is_some_and(|now| now.assigned > 0) {
            farm.kill(FarmRole::Env);
            farm.start(FarmRole::Env);
            return;
        }
        pause();
    }
}

/// Starts the coordinator with a crash point and waits until it dies there; `false` if the job
/// ended first.
fn dies_at(farm: &mut FarmHarness, point: &str, visit: &str) -> bool {
    farm.environment("FAILPOINTS", &format!("{point}={visit}"));
    farm.start(FarmRole::Coordinator);
    println!("{point} ({visit})");
    if point.ends_with("_fail") {
        // Trajectories fail when their worker is gone; each round loses it once.
        for _ in 0..2 {
            lose_the_worker(farm);
        }
    }
    match farm.wait_for_end(FarmRole::Coordinator, NEXT_DEATH) {
        None => true,
        Some(0) => false,
        Some(status) => panic!("{point} ({visit}): the coordinator ended with {status}\n{}", farm.outputs()),
    }
}

#[test]
fn no_crash_point_of_the_environment_worker_loses_or_repeats_anything() {
    let folder = tempfile::tempdir().unwrap();
    let mut farm = FarmHarness::new(FarmBrowser::Simulated(2_000), &job(folder.path()));
    farm.start(FarmRole::Coordinator);
    farm.start(FarmRole::Policy);
    for point in furrow_env::ENV_FAIL_POINTS {
        for visit in chosen(["return", "1*off->return"]) {
            println!("{point} ({visit})");
            farm.environment("FAILPOINTS", &format!("{point}={visit}"));
            farm.start(FarmRole::Env);
            assert_eq!(
                farm.wait_for_end(FarmRole::Env, NEXT_DEATH),
                None,
                "{point} ({visit}) was not reached"
            );
        }
    }
    farm.environment("FAILPOINTS", "");
    farm.start(FarmRole::Env);
    farm.finish(Duration::from_secs(240));
    let summary = farm.check(GROUPS, GROUP_SIZE).unwrap_or_else(|breaches| panic!("{breaches}"));
    println!("{summary}");
}
