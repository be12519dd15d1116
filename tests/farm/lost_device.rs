//! A policy worker's device fails during a job: its sessions continue at the other worker, and no
//! trajectory is lost or blamed on the policy.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::farm::{FURROW, FarmBrowser, FarmHarness, FarmRole, simulated_tasks, tiny_policy};
use crate::weights::write_checkpoint;

const GROUPS: u32 = 8;
const GROUP_SIZE: u32 = 2;

/// The error of the device.
const DEVICE_ERROR: &str = "CUDA_ERROR_LAUNCH_FAILED";

#[test]
fn a_device_that_fails_costs_no_trajectory_and_blames_none() {
    for (point, visit) in [("device.sample", 150), ("device.run", 220)] {
        let fault = format!("{point}={visit}*off->return({DEVICE_ERROR})");
        let mut devices = TwoDevices::start(&fault, 0);
        let (status, output) = devices.wait_for_the_end_of_the_other();
        assert_eq!(status, Some(1), "{output}");
        let reason = format!("the policy failed: the device failed: {DEVICE_ERROR}");
        assert!(output.contains(&reason), "{output}");
        devices.check(point);
    }
}

/// Milliseconds that a device gets. The healthy one of a loaded machine must not reach them.
const TIMEOUT_MILLIS: u64 = 8_000;

#[test]
fn a_device_that_hangs_costs_no_trajectory_and_its_worker_ends() {
    let mut devices = TwoDevices::start("device.run=220*off->sleep(3600000)", TIMEOUT_MILLIS);
    let (status, output) = devices.wait_for_the_end_of_the_other();
    assert_eq!(status, Some(1), "{output}");
    assert!(output.contains("the policy failed: the device has not answered for"), "{output}");
    devices.check("a hang");
}

#[test]
fn a_worker_whose_device_hangs_ends_at_a_signal() {
    let mut devices = TwoDevices::start("device.run=220*off->sleep(3600000)", 3_600_000);
    // The worker's sessions have come to a stop once nothing is recorded for a while.
    let steps = |farm: &FarmHarness| farm.progress().map_or(0, |now| now.steps);
    devices.farm.wait_until("at work", Duration::from_secs(60), |now| now.steps > 20);
    let mut before = 0;
    while steps(&devices.farm) != before {
        before = steps(&devices.farm);
        std::thread::park_timeout(Duration::from_secs(2));
    }
    devices.farm.signal(FarmRole::OtherPolicy, "-TERM");
    let (status, output) = devices.wait_for_the_end_of_the_other();
    assert_eq!(status, Some(1), "{output}");
    devices.check("a hang, and a signal");
}

/// A farm of two policy workers, of which the device of one fails.
struct TwoDevices {
    farm: FarmHarness,
    _folder: tempfile::TempDir,
}

impl TwoDevices {
    fn start(fault: &str, device_timeout_millis: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = folder.path().join("tiny");
        write_checkpoint(&checkpoint, "11");
        let timeout = format!("[policy.engine]\ndevice_timeout_millis = {device_timeout_millis}\n");
        // One attempt: a trajectory that ended with its worker would be missing.
        let job = format!(
            "{tasks}\
             {policy}\
             [env]\nsessions_max = 8\n[records]\nmax_delay_millis = 500\n\
             [limits]\nlease_millis = 4000\nheartbeat_millis = 300\nattempts_max = 1\nfailure_budget = 1.0\n",
            tasks = simulated_tasks(folder.path(), GROUPS, GROUP_SIZE),
            policy = tiny_policy(&checkpoint).replace("[policy.engine]\n", &timeout),
        );
        let mut farm = FarmHarness::new(FarmBrowser::Simulated(4000), &job);
        farm.start(FarmRole::Coordinator);
        farm.environment("FAILPOINTS", fault);
        farm.start(FarmRole::OtherPolicy);
        farm.environment("FAILPOINTS", "");
        farm.start(FarmRole::Policy);
        farm.wait_until("registered", Duration::from_secs(60), |now| now.policy_workers == 2);
        farm.start(FarmRole::Env);
        Self { farm, _folder: folder }
    }

    fn wait_for_the_end_of_the_other(&mut self) -> (Option<i32>, String) {
        let status = self.farm.wait_for_end(FarmRole::OtherPolicy, Duration::from_secs(120));
        (status, self.farm.output(FarmRole::OtherPolicy))
    }

    /// Runs the farm to its end and checks what it recorded.
    fn check(&mut self, what: &str) {
        self.farm.finish(Duration::from_secs(240));
        let summary = self.farm.check(GROUPS, GROUP_SIZE).unwrap_or_else(|breaches| panic!("{breaches}"));
        println!("{what}: {summary}");
        let run_dir = self.farm.run_dir();
        let verified = Command::new(FURROW).args(["records", "verify"]).arg(&run_dir).output().unwrap();
        assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
        check_moves(&run_dir);
    }
}

/// Every trajectory is complete, and some began on one worker and ended on the other.
const MOVES: &str = r#"
import collections, glob, sys
import pyarrow.parquet as parquet
run, wanted = sys.argv[1], int(sys.argv[2])
rows = [row for path in glob.glob(run + "/data/trajectories/*.parquet") for row in parquet.read_table(path).to_pylist()]
ends = collections.Counter(row["end"] for row in rows)
assert "policy_fault" not in ends, ends
assert len(rows) == wanted and all(row["status"] == "scored" for row in rows), (ends, [row["status"] for row in rows])
steps = collections.defaultdict(dict)
for path in glob.glob(run + "/data/steps/*.parquet"):
    for row in parquet.read_table(path).to_pylist():
        steps[row["trajectory_id"]][row["step"]] = row
moved = 0
for trajectory, by_step in steps.items():
    line = [by_step[step] for step in sorted(by_step)]
    for before, after in zip(line, line[1:]):
        if before["engine"]["worker"] != after["engine"]["worker"]:
            assert (before["engine"]["worker"], after["engine"]["worker"]) == ("otherpolicy-1", "policy-1"), trajectory
            assert after["engine"]["state_origin"] == "rebuilt", (trajectory, after["engine"])
            moved += 1
    assert all(row["reply_error"] is None for row in line if "reply_error" in row), trajectory
assert moved > 0, "no trajectory was in the middle when the device failed"
print(f"{len(rows)} trajectories, ends {dict(ends)}, {moved} moved")
"#;

fn check_moves(run_dir: &Path) {
    let python = std::env::var("FURROW_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let trajectories = (GROUPS * GROUP_SIZE).to_string();
    let output = Command::new(python).args(["-c", MOVES]).arg(run_dir).arg(trajectories).output().unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
