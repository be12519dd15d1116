//! Weights are published while every process involved is killed: versions only grow, each
//! publication is one version, and a restarted policy worker runs the version of the others.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::farm::{FURROW, FarmBrowser, FarmHarness, FarmRole, pause, simulated_tasks, tiny_policy};

const GROUPS: u32 = 8;
const GROUP_SIZE: u32 = 2;

/// A `furrow publish` of a directory under a name, or of an earlier version.
pub(crate) fn publishing(farm: &FarmHarness, arguments: &[&str]) -> Child {
    let mut command = Command::new(FURROW);
    command.args(["publish", "--json", "--deadline", "120", "--run"]).arg(farm.run_dir()).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Its output after success: every policy worker moved.
#[track_caller]
pub(crate) fn published(farm: &FarmHarness, child: Child) -> Value {
    let output = child.wait_with_output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}\n{wrong}\n{}", farm.outputs());
    let result: Value = serde_json::from_str(&stdout).unwrap();
    assert!(result["workers"].as_array().unwrap().iter().all(|worker| worker["moved"] == true), "{result}");
    result
}

pub(crate) fn write_checkpoint(path: &Path, seed: &str) {
    let made = Command::new(FURROW).args(["checkpoint", "init", "--seed", seed]).arg(path).output();
    assert!(made.unwrap().status.success());
}

#[test]
fn versions_only_grow_whatever_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["11", "12", "13"].map(|seed| folder.path().join(format!("tiny-{seed}")));
    for (path, seed) in paths.iter().zip(["11", "12", "13"]) {
        write_checkpoint(path, seed);
    }
    let [checkpoint, first, second] = paths;
    let [first, second] = [&first, &second].map(|path| path.to_str().unwrap());
    // Two trajectories per version, from version 0 on: 16 do not exist before version 7, so the run
    // cannot end while processes are killed.
    let job = format!(
        "{tasks}\
         {policy}\
         [env]\nsessions_max = 4\n[records]\nmax_delay_millis = 500\n\
         [limits]\ntrajectories_per_version = {GROUP_SIZE}\nmax_off_policy_versions = 0\nlease_millis = 4000\nheartbeat_millis = 300\n\
         attempts_max = 20\nfailure_budget = 1.0\n",
        tasks = simulated_tasks(folder.path(), GROUPS, GROUP_SIZE),
        policy = tiny_policy(&checkpoint),
    );
    let mut farm = FarmHarness::new(FarmBrowser::Simulated(4000), &job);
    farm.start_all();
    farm.wait_until("acting", Duration::from_secs(120), |now| now.steps > 0);
    let result = published(&farm, publishing(&farm, &[first, "--id", "one"]));
    assert_eq!(
        (&result["version"], &result["state"], &result["repeated"]),
        (&1.into(), &"taken".into(), &false.into())
    );

    println!("the policy worker dies and restarts with the job's checkpoint: it is moved to version 1");
    farm.kill(FarmRole::Policy);
    farm.start(FarmRole::Policy);
    let result = published(&farm, publishing(&farm, &[first, "--id", "one"]));
    assert_eq!((&result["version"], &result["repeated"]), (&1.into(), &true.into()));

    println!("the publishing process dies, and publishes again");
    let mut dying = publishing(&farm, &[second, "--id", "two"]);
    (0..10).for_each(|_| pause());
    dying.kill().unwrap();
    dying.wait().unwrap();
    let result = published(&farm, publishing(&farm, &[second, "--id", "two"]));
    assert_eq!(result["version"], 2);

    println!("the coordinator dies while weights are published");
    let waits = publishing(&farm, &[first, "--id", "three"]);
    (0..5).for_each(|_| pause());
    farm.kill(FarmRole::Coordinator);
    farm.start(FarmRole::Coordinator);
    assert_eq!(published(&farm, waits)["version"], 3);

    println!("the policy worker dies while weights are published");
    let waits = publishing(&farm, &[second, "--id", "four"]);
    farm.kill(FarmRole::Policy);
    farm.start(FarmRole::Policy);
    assert_eq!(published(&farm, waits)["version"], 4);

    println!("weights that cannot be read are refused, and the current ones stay");
    let torn = folder.path().join("torn");
    copy(Path::new(first), &torn);
    std::fs::write(torn.join("model.safetensors"), b"torn").unwrap();
    let output = publishing(&farm, &[torn.to_str().unwrap(), "--id", "torn"]).wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("version 5 was refused") && stderr.contains("model.safetensors"), "{stderr}");

    println!("an earlier version is published under a new number, and every process dies once more");
    let result = published(&farm, publishing(&farm, &["--rollback-to", "1", "--id", "back"]));
    assert_eq!(result["version"], 6);
    farm.kill(FarmRole::Coordinator);
    farm.kill(FarmRole::Policy);
    farm.start(FarmRole::Coordinator);
    farm.start(FarmRole::Policy);
    assert_eq!(published(&farm, publishing(&farm, &[first, "--id", "last"]))["version"], 7);
    farm.finish(Duration::from_secs(240));

    let summary = farm.check(GROUPS, GROUP_SIZE).unwrap_or_else(|breaches| panic!("{breaches}"));
    println!("{summary}");
    let verified = Command::new(FURROW).args(["records", "verify"]).arg(farm.run_dir()).output().unwrap();
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
    check_versions(&farm.run_dir());
}

/// Two policy workers of one job run every version together, and one that does not follow is named.
#[test]
fn two_policy_workers_move_together_and_one_that_lags_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let [checkpoint, first, second] = ["11", "12", "13"].map(|seed| {
        let path = folder.path().join(format!("tiny-{seed}"));
        write_checkpoint(&path, seed);
        path
    });
    let job = format!(
        "{tasks}[policy]\nkind = \"model\"\ncheckpoint = {checkpoint:?}\n[limits]\nlease_millis = 15000\nheartbeat_millis = 300\n",
        tasks = simulated_tasks(folder.path(), 1, 1),
    );
    // No environment worker acts, so the run is never over.
    let mut farm = FarmHarness::new(FarmBrowser::Simulated(4000), &job);
    farm.start(FarmRole::Coordinator);
    farm.start(FarmRole::Policy);
    farm.start(FarmRole::OtherPolicy);
    farm.wait_until("registered", Duration::from_secs(60), |now| now.policy_workers == 2);
    let workers = |result: &Value| -> Vec<(String, i64, bool)> {
        let row = |row: &Value| {
            (
                row["worker"].as_str().unwrap().to_owned(),
                row["version"].as_i64().unwrap(),
                row["moved"] == true,
            )
        };
        result["workers"].as_array().unwrap().iter().map(row).collect()
    };
    let both =
        |version| [("otherpolicy-1".to_owned(), version, true), ("policy-1".to_owned(), version, true)];
    let result = published(&farm, publishing(&farm, &[first.to_str().unwrap(), "--id", "one"]));
    assert_eq!(workers(&result), both(1));

    farm.signal(FarmRole::OtherPolicy, "-STOP");
    let directory = second.to_str().unwrap();
    let mut command = Command::new(FURROW);
    command
        .args(["publish", "--json", "--deadline", "10", "--id", "two", directory, "--run"])
        .arg(farm.run_dir());
    let output = command.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stdout}{wrong}");
    let result: Value = serde_json::from_str(&stdout).unwrap();
    let lags = ("otherpolicy-1".to_owned(), 1, false);
    assert_eq!(workers(&result), [lags, ("policy-1".to_owned(), 2, true)], "{wrong}");
    assert!(wrong.contains("otherpolicy-1"), "{wrong}");

    farm.signal(FarmRole::OtherPolicy, "-CONT");
    let result = published(&farm, publishing(&farm, &[directory, "--id", "two"]));
    assert_eq!((&result["repeated"], workers(&result)), (&true.into(), both(2).to_vec()));
}

/// A worker that starts while the weights in use cannot be read is named, and loads them when they
/// can.
#[test]
fn a_worker_that_cannot_read_what_others_run_tries_again() {
    let folder = tempfile::tempdir().unwrap();
    let [checkpoint, first] = ["11", "12"].map(|seed| {
        let path = folder.path().join(format!("tiny-{seed}"));
        write_checkpoint(&path, seed);
        path
    });
    let job = format!(
        "{tasks}[policy]\nkind = \"model\"\ncheckpoint = {checkpoint:?}\n[limits]\nlease_millis = 3000\nheartbeat_millis = 300\n",
        tasks = simulated_tasks(folder.path(), 1, 1),
    );
    // No environment worker acts, so the run is never over.
    let mut farm = FarmHarness::new(FarmBrowser::Simulated(4000), &job);
    farm.start(FarmRole::Coordinator);
    farm.start(FarmRole::Policy);
    farm.wait_until("registered", Duration::from_secs(60), |now| now.policy_workers == 1);
    let one = [first.to_str().unwrap(), "--id", "one"];
    assert_eq!(published(&farm, publishing(&farm, &one))["version"], 1);

    let away = folder.path().join("away");
    std::fs::rename(&first, &away).unwrap();
    farm.start(FarmRole::OtherPolicy);
    farm.wait_until("registered", Duration::from_secs(60), |now| now.policy_workers == 2);
    // Then no worker runs the version.
    farm.kill(FarmRole::Policy);
    let why = "no policy worker may serve version 1; otherpolicy-1 runs 0: ";
    let now = farm.wait_until("named", Duration::from_secs(60), |now| {
        now.admission.contains(why) && now.admission.contains("tiny-12")
    });
    println!("{}", now.admission);
    std::fs::rename(&away, &first).unwrap();
    assert_eq!(published(&farm, publishing(&farm, &one))["version"], 1);
}

/// At each of its crash points the coordinator dies while weights are published or refused, as in a
/// power cut.
#[test]
fn no_crash_point_of_publishing_gives_a_number_twice() {
    let folder = tempfile::tempdir().unwrap();
    let [checkpoint, other, torn] = ["tiny", "other", "torn"].map(|name| folder.path().join(name));
    write_checkpoint(&checkpoint, "11");
    write_checkpoint(&other, "12");
    copy(&other, &torn);
    std::fs::write(torn.join("model.safetensors"), b"torn").unwrap();
    let job = format!(
        "{tasks}[policy]\nkind = \"model\"\ncheckpoint = {checkpoint:?}\n[limits]\nlease_millis = 4000\nheartbeat_millis = 300\n",
        tasks = simulated_tasks(folder.path(), 1, 1),
    );
    // No environment worker acts, so the run is never over.
    let mut farm = FarmHarness::new(FarmBrowser::Simulated(4000), &job);
    farm.environment("FURROW_POWER_CUT", "1");
    farm.start(FarmRole::Coordinator);
    farm.start(FarmRole::Policy);
    let mut want = Vec::new();
    for point in furrow_coordinator::weights_fail_points() {
        println!("{point}");
        farm.wait_until("registered", Duration::from_secs(60), |now| now.policy_workers > 0);
        farm.kill(FarmRole::Coordinator);
        farm.environment("FAILPOINTS", &format!("{point}=return"));
        farm.start(FarmRole::Coordinator);
        let (directory, state) =
            if point.contains("_refuse") { (&torn, "refused") } else { (&other, "taken") };
        let id = point.replace('.', "-");
        let publishes = publishing(&farm, &[directory.to_str().unwrap(), "--id", &id]);
        let died = farm.wait_for_end(FarmRole::Coordinator, Duration::from_secs(60));
        assert_eq!(died, None, "{point} was not reached\n{}", farm.outputs());
        farm.environment("FAILPOINTS", "");
        farm.start(FarmRole::Coordinator);
        want.push(format!("{} {state} {id}", want.len() + 1));
        if state == "taken" {
            assert_eq!(published(&farm, publishes)["version"], want.len());
        } else {
            assert_eq!(publishes.wait_with_output().unwrap().status.code(), Some(1));
        }
    }
    assert_eq!(want.len(), 7, "{want:?}");
    let read = "import sqlite3, sys\nfor row in sqlite3.connect(sys.argv[1]).execute('SELECT version, state, publication_id FROM weights ORDER BY version'): print(*row)";
    let python = std::env::var("FURROW_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let ledger = farm.run_dir().join("ledger.sqlite");
    let output = Command::new(python).args(["-c", read]).arg(ledger).output().unwrap();
    let rows = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(rows.lines().collect::<Vec<_>>(), want);
}

pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// Reads the ledger and the data set with independent readers.
const VERSIONS: &str = r#"
import glob, sqlite3, sys
import pyarrow.parquet as parquet
run = sys.argv[1]
ledger = sqlite3.connect(run + "/ledger.sqlite")
weights = ledger.execute("SELECT version, state, publication_id FROM weights ORDER BY version").fetchall()
assert [row[0] for row in weights] == [1, 2, 3, 4, 5, 6, 7], weights
assert [row[1] for row in weights] == ["taken"] * 4 + ["refused", "taken", "taken"], weights
began = ledger.execute("SELECT trajectory_id, policy_version FROM trajectories ORDER BY token").fetchall()
versions = [version for _, version in began]
assert versions == sorted(versions), f"a trajectory began on older weights than one before it: {versions}"
assert versions[0] == 0 and 5 not in versions, versions
began, acted = dict(began), {}
for path in sorted(glob.glob(run + "/data/steps/*.parquet")):
    for row in parquet.read_table(path, columns=["trajectory_id", "step", "policy_versions", "state_version_min"]).to_pylist():
        acted.setdefault(row["trajectory_id"], []).append(row)
tokens = 0
for trajectory, rows in acted.items():
    rows.sort(key=lambda row: row["step"])
    line = [version for row in rows for version in row["policy_versions"]]
    tokens += len(line)
    assert line == sorted(line), (trajectory, line)
    assert line[0] >= began[trajectory], (trajectory, line[0], began[trajectory])
    assert all(row["state_version_min"] <= min(row["policy_versions"]) for row in rows), trajectory
print(f"{len(acted)} trajectories, {tokens} tokens, began on versions {sorted(set(versions))}")
"#;

fn check_versions(run_dir: &Path) {
    let python = std::env::var("FURROW_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let output = Command::new(python).args(["-c", VERSIONS]).arg(run_dir).output().unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
