//! The device of one of two policy workers fails or hangs at each kind of call: at the first one,
//! in the middle of its work, and once the worker got its signal to stop. No trajectory is lost, a
//! worker whose device hangs is given up within its limit, and one that is to stop ends soon.
//!
//! Three cases in each run, all of them and more with `FURROW_DEVICE_ALL` (`tests/long.sh device`).

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use furrow_policy::DEVICE_FAIL_POINTS;
use furrow_records::DataSet;
use furrow_rollout::TrajectoryStatus;

use crate::farm::{FarmBrowser, FarmHarness, FarmRole, pause, simulated_tasks, tiny_policy};
use crate::weights::{publishing, write_checkpoint};

const GROUP_SIZE: u32 = 2;
/// What a device gets here, instead of 30 s: the tiny model on a loaded machine takes less.
const LIMIT: Duration = Duration::from_secs(4);
/// Beyond its limit a worker may take so long to end: as the 45 s of a device with 30 s.
const BEYOND_LIMIT: Duration = Duration::from_secs(15);
/// From a signal to the end of a worker, whatever its device does.
const AFTER_SIGNAL: Duration = Duration::from_secs(10);
/// What no trajectory needs: a call for chats alone.
const NOT_CALLED: [&str; 1] = ["device.logits"];
/// Calls that bring new weights: they need some.
const OF_WEIGHTS: [&str; 3] = ["device.stage", "device.copy_staged", "device.swap"];
/// Calls of which each step makes some.
const FREQUENT: [&str; 4] = ["device.run", "device.sample", "device.is_moving", "device.await_states"];

/// When the call comes that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallPosition {
    First,
    Middle,
    /// The first one after the worker got its signal.
    Stopping,
}

#[derive(Debug, Clone, Copy)]
struct DeviceCase {
    call: &'static str,
    position: CallPosition,
    hangs: bool,
}

/// What became of the worker.
struct CaseResult {
    status: Option<i32>,
    /// From the failure to the end of the process; `None` where the call never came.
    after_failure: Option<Duration>,
    after_signal: Option<Duration>,
}

impl DeviceCase {
    fn all() -> Vec<Self> {
        let positions = [CallPosition::First, CallPosition::Middle, CallPosition::Stopping];
        let of = |call| {
            positions
                .into_iter()
                .flat_map(move |position| [false, true].map(|hangs| Self { call, position, hangs }))
        };
        DEVICE_FAIL_POINTS.into_iter().filter(|call| !NOT_CALLED.contains(call)).flat_map(of).collect()
    }

    /// Three whose calls come in every run.
    fn few() -> Vec<Self> {
        vec![
            Self { call: "device.await_states", position: CallPosition::First, hangs: false },
            Self { call: "device.sample", position: CallPosition::Middle, hangs: true },
            Self { call: "device.run", position: CallPosition::Stopping, hangs: true },
        ]
    }

    fn plan(&self) -> String {
        let Self { call, position, hangs } = *self;
        let verdict = if hangs { "return(hang)" } else { "return(CUDA_ERROR_LAUNCH_FAILED)" };
        let before = if FREQUENT.contains(&call) { 120 } else { 1 };
        match position {
            CallPosition::First => format!("{call}={verdict}"),
            CallPosition::Middle => format!("{call}={before}*off->{verdict}"),
            CallPosition::Stopping => format!("device.at_stop=return({call}={verdict})"),
        }
    }
}

/// Farms one after the other, as many as the cases take.
struct FarmSeries {
    groups: u32,
    folder: tempfile::TempDir,
    farm: FarmHarness,
    publications: u32,
}

impl FarmSeries {
    fn new(groups: u32, limit: Duration) -> Self {
        let mut series = Self::without_environments(groups, limit);
        series.farm.start(FarmRole::Env);
        series
    }

    /// A farm that has no work for its policy workers yet.
    fn without_environments(groups: u32, limit: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = folder.path().join("tiny");
        write_checkpoint(&checkpoint, "11");
        write_checkpoint(&folder.path().join("next"), "12");
        // Few slots, so that states are offloaded and come back. One attempt: a trajectory that
        // ended with its worker would be missing.
        let job = format!(
            "{tasks}\
             {policy}\
             [env]\nsessions_max = 8\n[records]\nmax_delay_millis = 500\n\
             [limits]\nlease_millis = 4000\nheartbeat_millis = 300\nattempts_max = 1\nfailure_budget = 1.0\n",
            tasks = simulated_tasks(folder.path(), groups, GROUP_SIZE),
            policy =
                tiny_policy(&checkpoint).replace("[policy.engine]\n", "[policy.engine]\nstate_slots = 3\n"),
        );
        let mut farm = FarmHarness::new(FarmBrowser::Simulated(4000), &job);
        farm.start(FarmRole::Coordinator);
        farm.start(FarmRole::Policy);
        farm.wait_until("registered", Duration::from_secs(60), |now| now.policy_workers == 1);
        farm.set(&format!("policy.engine.device_timeout_millis={}", limit.as_millis()));
        Self { groups, folder, farm, publications: 0 }
    }

    /// Runs a case in the farm, or in another one where its job is over before the call comes.
    fn run(&mut self, case: &DeviceCase, limit: Duration, timeout: Duration) -> CaseResult {
        loop {
            let began_micros = now_micros();
            self.farm.environment("FAILPOINTS", &case.plan());
            self.farm.start(FarmRole::OtherPolicy);
            self.farm.environment("FAILPOINTS", "");
            let publication = OF_WEIGHTS.contains(&case.call).then(|| self.publish());
            let signalled = self.wait_for_the_end(case, timeout);
            for mut child in publication.into_iter().flatten() {
                child.kill().ok();
                child.wait().ok();
            }
            let status = self.farm.wait_for_end(FarmRole::OtherPolicy, limit + BEYOND_LIMIT);
            let ended_micros = now_micros();
            let failed_at = self.failed_at(began_micros);
            let is_over = signalled.is_none() || self.farm.progress().is_none_or(|now| now.run_over);
            if failed_at.is_none() && is_over {
                let next = Self::new(self.groups, limit);
                std::mem::replace(self, next).finish();
                continue;
            }
            let since = |at: i64| Duration::from_micros((ended_micros - at).max(0) as u64);
            return CaseResult {
                status,
                after_failure: failed_at.map(since),
                after_signal: signalled.map(|at| at.elapsed()),
            };
        }
    }

    /// Two versions, one after the other.
    fn publish(&mut self) -> Vec<std::process::Child> {
        let next = self.folder.path().join("next");
        let each = (0..2).map(|_| {
            self.publications += 1;
            let id = format!("publication-{}", self.publications);
            publishing(&self.farm, &[next.to_str().unwrap(), "--id", &id])
        });
        each.collect()
    }

    /// Waits until the worker ends by itself, or tells it to. Returns when it did.
    fn wait_for_the_end(&mut self, case: &DeviceCase, timeout: Duration) -> Option<Instant> {
        let began = Instant::now();
        let is_stopped = case.position == CallPosition::Stopping;
        while self.farm.is_alive(FarmRole::OtherPolicy) && self.farm.is_alive(FarmRole::Coordinator) {
            if began.elapsed() > timeout || is_stopped && self.is_at_work() {
                self.farm.signal(FarmRole::OtherPolicy, "-TERM");
                return Some(Instant::now());
            }
            pause();
        }
        None
    }

    /// Whether the worker has sessions. The one before it is listed until it counts as lost.
    fn is_at_work(&self) -> bool {
        let id = self.farm.worker_id(FarmRole::OtherPolicy);
        let workers = self.farm.progress().map(|now| now.workers).unwrap_or_default();
        workers.iter().any(|worker| worker.worker_id == id && worker.sessions > 1)
    }

    /// When the device failed, by the log.
    fn failed_at(&self, began_micros: i64) -> Option<i64> {
        let text = std::fs::read_to_string(self.farm.run_dir().join("logs/policy.jsonl")).ok()?;
        let lines = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        lines.filter_map(|line| line["at_micros"].as_i64()).filter(|at| *at >= began_micros).min()
    }

    /// Runs the job to its end: every trajectory is there once, scored, at its first attempt.
    fn finish(mut self) {
        self.farm.finish(Duration::from_secs(600));
        let summary =
            self.farm.check(self.groups, GROUP_SIZE).unwrap_or_else(|breaches| panic!("{breaches}"));
        let set = DataSet::open(&self.farm.run_dir()).unwrap();
        let scored = set
            .trajectories()
            .map(Result::unwrap)
            .filter(|record| record.status == TrajectoryStatus::Scored && record.ancestry.attempt == 0);
        assert_eq!(scored.count() as u32, self.groups * GROUP_SIZE, "a trajectory was lost");
        println!("{}", summary.trim_end());
    }
}

fn now_micros() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as i64
}

fn runs_all() -> bool {
    std::env::var_os("FURROW_DEVICE_ALL").is_some()
}

#[test]
fn a_device_that_fails_or_hangs_at_any_call_costs_no_trajectory() {
    let (cases, groups, timeout) = match runs_all() {
        true => (DeviceCase::all(), 150, Duration::from_secs(20)),
        false => (DeviceCase::few(), 20, Duration::from_secs(20)),
    };
    let mut farms = FarmSeries::new(groups, LIMIT);
    println!(
        "{:<20} {:<9} {:<6} {:>8} {:>14} {:>13}",
        "call", "when", "what", "status", "after failure", "after signal"
    );
    for case in &cases {
        let found = farms.run(case, LIMIT, timeout);
        let seconds = |time: Option<Duration>| {
            time.map_or("–".to_owned(), |time| format!("{:.1} s", time.as_secs_f64()))
        };
        println!(
            "{:<20} {:<9} {:<6} {:>8} {:>14} {:>13}",
            case.call,
            format!("{:?}", case.position).to_lowercase(),
            if case.hangs { "hangs" } else { "fails" },
            found.status.map_or("signal".to_owned(), |status| status.to_string()),
            seconds(found.after_failure),
            seconds(found.after_signal),
        );
        check_case(case, &found);
    }
    farms.finish();
}

#[track_caller]
fn check_case(case: &DeviceCase, found: &CaseResult) {
    let is_sure = case.position != CallPosition::Stopping || FREQUENT.contains(&case.call);
    assert!(found.after_failure.is_some() || !is_sure, "{case:?}: the call never came");
    assert_eq!(found.status, Some(i32::from(found.after_failure.is_some())), "{case:?}");
    let most = if case.hangs { LIMIT + BEYOND_LIMIT } else { BEYOND_LIMIT };
    assert!(found.after_failure.is_none_or(|took| took <= most), "{case:?}: {:?}", found.after_failure);
    assert!(found.after_signal.is_none_or(|took| took <= AFTER_SIGNAL), "{case:?}: {:?}", found.after_signal);
}

/// The limit of a GPU as it is, in several farms at once.
#[test]
fn hangs_in_real_time() {
    let Some(hangs) = std::env::var("FURROW_DEVICE_HANGS").ok().and_then(|text| text.parse::<usize>().ok())
    else {
        println!("skipped: FURROW_DEVICE_HANGS says how many, 35 s each; four at once");
        return;
    };
    let limit = Duration::from_secs(30);
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            std::thread::spawn(move || {
                let mut farms = FarmSeries::new(150, limit);
                let mut slowest = Duration::ZERO;
                for number in (thread..hangs).step_by(4) {
                    let call = FREQUENT[number % FREQUENT.len()];
                    let case = DeviceCase { call, position: CallPosition::Middle, hangs: true };
                    let found = farms.run(&case, limit, Duration::from_secs(120));
                    let took = found.after_failure.unwrap_or_else(|| panic!("{call} was never called"));
                    assert_eq!(found.status, Some(1), "{call}");
                    println!("{call} hung: its worker ended after {:.1} s", took.as_secs_f64());
                    slowest = slowest.max(took);
                }
                farms.finish();
                slowest
            })
        })
        .collect();
    let slowest = threads.into_iter().map(|thread| thread.join().unwrap()).max().unwrap();
    println!("{hangs} hangs: a worker was dropped after {:.1} s at most", slowest.as_secs_f64());
    assert!(slowest <= Duration::from_secs(45), "{slowest:?}");
}

/// Loading, compiling and a model on the CPU take long; nothing of it is a hang.
#[test]
fn nothing_slow_is_taken_for_a_hang() {
    let busy = if runs_all() { 16 } else { 0 };
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let burning: Vec<_> = (0..busy)
        .map(|_| {
            let stop = std::sync::Arc::clone(&stop);
            std::thread::spawn(move || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    // Longer than the limit: the checkpoint at the start, and the weights that are published.
    let slow = "model.load=sleep(6000);weights.load=sleep(6000)";
    let mut farms = FarmSeries::without_environments(
        if runs_all() { 60 } else { 8 },
        Duration::from_secs(if runs_all() { 30 } else { 4 }),
    );
    farms.farm.environment("FAILPOINTS", slow);
    farms.farm.start(FarmRole::OtherPolicy);
    farms.farm.environment("FAILPOINTS", "");
    farms.farm.wait_until("both registered", Duration::from_secs(120), |now| now.policy_workers == 2);
    let mut publications = farms.publish();
    farms.farm.start(FarmRole::Env);
    for publication in &mut publications {
        publication.wait().unwrap();
    }
    let status = farms.farm.wait_for_end(FarmRole::OtherPolicy, Duration::from_secs(600));
    assert_eq!(status, Some(0), "{}", farms.farm.output(FarmRole::OtherPolicy));
    farms.finish();
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    burning.into_iter().for_each(|thread| thread.join().unwrap());
}

/// A worker that still loads its checkpoint is to end as soon as another.
#[test]
fn a_worker_that_loads_its_checkpoint_ends_at_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint: PathBuf = folder.path().join("tiny");
    write_checkpoint(&checkpoint, "11");
    let tasks = simulated_tasks(folder.path(), 1, 1);
    let mut farm =
        FarmHarness::new(FarmBrowser::Simulated(4000), &format!("{tasks}{}", tiny_policy(&checkpoint)));
    farm.start(FarmRole::Coordinator);
    farm.environment("FAILPOINTS", "model.load=sleep(60000)");
    farm.start(FarmRole::Policy);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        pause();
    }
    farm.signal(FarmRole::Policy, "-TERM");
    let signalled = Instant::now();
    assert_eq!(farm.wait_for_end(FarmRole::Policy, Duration::from_secs(90)), Some(0));
    assert!(signalled.elapsed() < AFTER_SIGNAL, "{:?}", signalled.elapsed());
}
