//! Weights whose every value is finite and whose logits are not: the version is withdrawn, its
//! trajectories continue on the version before, and a worker whose own checkpoint is such ends.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::farm::{FURROW, FarmBrowser, FarmHarness, FarmRole, pause, simulated_tasks, tiny_policy};
use crate::weights::{copy, published, publishing, write_checkpoint};

const GROUPS: u32 = 16;
const GROUP_SIZE: u32 = 2;

/// Makes the logits of a checkpoint overflow: its last norm multiplies by the largest number of its
/// type.
fn overflow(checkpoint: &Path) {
    let path = checkpoint.join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let header_len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + header_len]).unwrap();
    let is_last_norm = |(name, _): &(&String, &Value)| name.ends_with("norm_f.weight");
    let (_, tensor) = header.as_object().unwrap().iter().find(is_last_norm).unwrap();
    let largest: &[u8] = match tensor["dtype"].as_str().unwrap() {
        "BF16" => &[0x7f, 0x7f],
        "F32" => &[0xff, 0xff, 0x7f, 0x7f],
        other => panic!("{other}"),
    };
    let [begin, end] = [0, 1].map(|edge| tensor["data_offsets"][edge].as_u64().unwrap() as usize);
    let values = &mut bytes[8 + header_len..][begin..end];
    values.chunks_exact_mut(largest.len()).for_each(|value| value.copy_from_slice(largest));
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn broken_weights_are_withdrawn_and_cost_no_trajectory() {
    withdraw(None);
}

/// At each of its crash points the coordinator dies while it withdraws a version, as in a power
/// cut.
#[test]
fn no_crash_point_of_a_withdrawal_brings_the_version_back() {
    for point in furrow_coordinator::withdrawal_fail_points() {
        withdraw(Some(point));
    }
}

fn withdraw(fail_point: Option<&str>) {
    let folder = tempfile::tempdir().unwrap();
    let [checkpoint, good, broken, last] =
        ["tiny", "good", "broken", "last"].map(|name| folder.path().join(name));
    for (path, seed) in [(&checkpoint, "11"), (&good, "12"), (&last, "13")] {
        write_checkpoint(path, seed);
    }
    copy(&good, &broken);
    overflow(&broken);
    let [good, broken, last] = [&good, &broken, &last].map(|path| path.to_str().unwrap());
    let job = format!(
        "{tasks}\
         {policy}\
         [env]\nsessions_max = 8\n[records]\nmax_delay_millis = 500\n\
         [limits]\nlease_millis = 4000\nheartbeat_millis = 300\nattempts_max = 3\nfailure_budget = 1.0\n",
        tasks = simulated_tasks(folder.path(), GROUPS, GROUP_SIZE),
        policy = tiny_policy(&checkpoint),
    );
    let mut farm = FarmHarness::new(FarmBrowser::Simulated(4000), &job);
    farm.environment("FURROW_POWER_CUT", "1");
    if let Some(point) = fail_point {
        println!("{point}");
        farm.environment("FAILPOINTS", &format!("{point}=return"));
    }
    farm.start(FarmRole::Coordinator);
    farm.environment("FAILPOINTS", "");
    farm.start(FarmRole::Policy);
    farm.start(FarmRole::Env);
    farm.wait_until("acting", Duration::from_secs(120), |now| now.steps > 0);
    assert_eq!(published(&farm, publishing(&farm, &[good, "--id", "good"]))["version"], 1);
    let publishes = publishing(&farm, &[broken, "--id", "broken"]);
    if fail_point.is_some() {
        let died = farm.wait_for_end(FarmRole::Coordinator, Duration::from_secs(60));
        assert_eq!(died, None, "the point was not reached\n{}", farm.outputs());
        farm.start(FarmRole::Coordinator);
    }
    // It may have moved every worker before the first session failed.
    publishes.wait_with_output().unwrap();
    wait_withdrawn(&farm, broken);
    let back = published(&farm, publishing(&farm, &["--rollback-to", "1", "--id", "withdrawn-2"]));
    assert_eq!(
        (&back["version"], &back["repeated"]),
        (&3.into(), &true.into()),
        "the coordinator published it"
    );
    farm.wait_until("at work again", Duration::from_secs(60), |now| now.admission == "open");
    assert_eq!(published(&farm, publishing(&farm, &[last, "--id", "last"]))["version"], 4);
    farm.finish(Duration::from_secs(240));

    let summary = farm.check(GROUPS, GROUP_SIZE).unwrap_or_else(|breaches| panic!("{breaches}"));
    println!("{summary}");
    let verified = Command::new(FURROW).args(["records", "verify"]).arg(farm.run_dir()).output().unwrap();
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
    check_ends(&farm.run_dir());
}

/// Publishes the broken weights again until that fails because they were withdrawn.
fn wait_withdrawn(farm: &FarmHarness, broken: &str) {
    let began = Instant::now();
    loop {
        let output = publishing(farm, &[broken, "--id", "broken"]).wait_with_output().unwrap();
        let [stdout, stderr] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        if output.status.code() == Some(1) {
            let why =
                "version 2 was withdrawn: the logits of 4 sessions on weights of version 2 were not finite";
            assert!(stderr.contains(why), "{stderr}\n{}", farm.outputs());
            let result: Value = serde_json::from_str(&stdout).unwrap();
            assert_eq!((&result["version"], &result["state"]), (&2.into(), &"withdrawn".into()));
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{stdout}\n{stderr}\n{}", farm.outputs());
        pause();
    }
}

/// Every trajectory is scored, at most four attempts were lost to the weights, and nothing was
/// sampled from them.
const ENDS: &str = r#"
import collections, glob, sqlite3, sys
import pyarrow.parquet as parquet
run, wanted = sys.argv[1], int(sys.argv[2])
weights = sqlite3.connect(run + "/ledger.sqlite").execute("SELECT version, state, publication_id FROM weights ORDER BY version").fetchall()
assert weights == [(1, "taken", "good"), (2, "withdrawn", "broken"), (3, "taken", "withdrawn-2"), (4, "taken", "last")], weights
rows = [row for path in glob.glob(run + "/data/trajectories/*.parquet") for row in parquet.read_table(path).to_pylist()]
ends = collections.Counter(row["end"] for row in rows)
assert sum(row["status"] == "scored" for row in rows) == wanted, ends
failed = collections.Counter(row["end"] for row in rows if row["status"] != "scored")
assert failed["policy_fault"] <= 4, ends
# A worker may be late to renew after a coordinator that died, on a busy machine; the attempt is repeated.
assert set(failed) <= {"policy_fault", "lease_lost"}, ends
steps = [row for path in glob.glob(run + "/data/steps/*.parquet") for row in parquet.read_table(path).to_pylist()]
tokens = collections.Counter(version for row in steps for version in row["policy_versions"])
assert tokens[1] + tokens[0] > 0 and tokens[3] + tokens[4] > 0, tokens
assert tokens[2] == 0, tokens
print(f"ends {dict(ends)}, tokens by version {dict(tokens)}")
"#;

fn check_ends(run_dir: &Path) {
    let python = std::env::var("FURROW_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let trajectories = (GROUPS * GROUP_SIZE).to_string();
    let output = Command::new(python).args(["-c", ENDS]).arg(run_dir).arg(trajectories).output().unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_worker_whose_own_checkpoint_is_broken_ends_and_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = folder.path().join("tiny");
    write_checkpoint(&checkpoint, "11");
    overflow(&checkpoint);
    let job = format!(
        "{tasks}\
         {policy}\
         [env]\nsessions_max = 8\n[limits]\nfailure_budget = 1.0\n",
        tasks = simulated_tasks(folder.path(), GROUPS, GROUP_SIZE),
        policy = tiny_policy(&checkpoint),
    );
    let mut farm = FarmHarness::new(FarmBrowser::Simulated(4000), &job);
    farm.start_all();
    farm.wait_until("acting", Duration::from_secs(60), |now| now.assigned > 0);
    let status = farm.wait_for_end(FarmRole::Policy, Duration::from_secs(30));
    let output = farm.output(FarmRole::Policy);
    assert_eq!(status, Some(1), "{output}");
    let why = "the policy failed: the device failed: the logits of 4 sessions on weights of version 0 were not finite \
               within 60 s; that is the job's own checkpoint";
    assert!(output.contains(why), "{output}");
}
