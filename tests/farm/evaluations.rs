//! Versions are evaluated while a job collects, gets new weights and dies: each evaluation covers
//! one version, counts no problem twice, and none of it is trainable.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::farm::{FURROW, FarmBrowser, FarmHarness, FarmRole, pause, simulated_tasks, tiny_policy};
use crate::weights::{published, publishing, write_checkpoint};

const GROUPS: u32 = 6;
const GROUP_SIZE: u32 = 2;
/// The tasks that `[eval]` includes.
const PROBLEMS: u32 = 3;

#[test]
fn each_evaluation_is_finished_on_its_version_whatever_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let [checkpoint, first, second] = ["11", "12", "13"].map(|seed| {
        let path = folder.path().join(format!("tiny-{seed}"));
        write_checkpoint(&path, seed);
        path
    });
    let pages = folder.path().join("simulated");
    // Four trajectories per version: the run cannot end before version 2 is in use.
    let job = format!(
        "{tasks}\
         [eval]\nevery_versions = 2\ngroup_size = {GROUP_SIZE}\n[[eval.source]]\nsuite = \"simulated\"\npath = {pages:?}\ninclude = [\"simulated-0\", \"simulated-1\", \"simulated-2\"]\n\
         {policy}\
         [env]\nsessions_max = 2\n[records]\nmax_delay_millis = 500\n\
         [limits]\ntrajectories_per_version = 4\nmax_off_policy_versions = 0\nlease_millis = 4000\nheartbeat_millis = 300\n\
         attempts_max = 20\nfailure_budget = 1.0\n",
        tasks = simulated_tasks(folder.path(), GROUPS, GROUP_SIZE),
        policy = tiny_policy(&checkpoint),
    );
    let mut farm = FarmHarness::new(FarmBrowser::Simulated(4000), &job);
    farm.start_all();
    let within = Duration::from_secs(120);
    farm.wait_until("evaluating version 0", within, |now| now.scored > 0);

    println!("newer weights wait, and the coordinator dies during the evaluation");
    let waits = publishing(&farm, &[first.to_str().unwrap(), "--id", "one"]);
    (0..10).for_each(|_| pause());
    farm.kill(FarmRole::Coordinator);
    farm.start(FarmRole::Coordinator);
    assert_eq!(published(&farm, waits)["version"], 1);
    let log = std::fs::read_to_string(farm.run_dir().join("logs/coordinator.jsonl")).unwrap_or_default();
    assert!(log.contains("evaluation.ended"), "weights did not wait for the evaluation");

    println!("the next due version, and every process dies during its evaluation");
    assert_eq!(published(&farm, publishing(&farm, &[second.to_str().unwrap(), "--id", "two"]))["version"], 2);
    let scored = farm.wait_until("continuing", within, |_| true).scored;
    farm.wait_until("evaluating version 2", within, |now| now.scored > scored);
    farm.kill(FarmRole::Policy);
    farm.kill(FarmRole::Coordinator);
    farm.start(FarmRole::Coordinator);
    farm.start(FarmRole::Policy);
    farm.finish(Duration::from_secs(240));

    let groups = GROUPS + 2 * PROBLEMS;
    let summary = farm.check(groups, GROUP_SIZE).unwrap_or_else(|breaches| panic!("{breaches}"));
    println!("{summary}");
    let furrow = |arguments: &[&str]| {
        let output = Command::new(FURROW).args(arguments).arg(farm.run_dir()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        text
    };
    println!("{}", furrow(&["records", "verify"]));
    let table = furrow(&["report"]);
    assert!(table.contains("evaluation of") && table.contains("\nversion 2"), "{table}");
    let report = folder.path().join("report.json");
    std::fs::write(&report, furrow(&["report", "--json"])).unwrap();
    python(&["tests/evaluate.py".as_ref(), &farm.run_dir(), &report]);
    python(&["-c".as_ref(), EVALUATIONS.as_ref(), &farm.run_dir()]);
}

/// Reads the ledger and the data set with independent readers.
const EVALUATIONS: &str = r#"
import collections, glob, sqlite3, sys
import pyarrow.parquet as parquet
run = sys.argv[1]
ledger = sqlite3.connect(run + "/ledger.sqlite")
evaluations = ledger.execute("SELECT version, problems, drawn, state FROM evaluations ORDER BY version").fetchall()
assert evaluations == [(0, 3, 3, "complete"), (2, 3, 3, "complete")], evaluations
problems = dict(ledger.execute("SELECT group_id, eval_version FROM groups WHERE eval_version IS NOT NULL").fetchall())
assert collections.Counter(problems.values()) == {0: 3, 2: 3}, problems
assert ledger.execute("SELECT draws, next_group FROM run").fetchone() == (6, 12)
read = lambda table, columns: [row for path in sorted(glob.glob(f"{run}/data/{table}/*.parquet")) for row in parquet.read_table(path, columns=columns).to_pylist()]
rows = read("trajectories", ["trajectory_id", "group_id", "sample_index", "split", "status", "policy_version_min", "policy_version_max", "task"])
scored = [row for row in rows if row["status"] == "scored" and row["split"] == "eval"]
slots = [(row["group_id"], row["sample_index"]) for row in scored]
assert len(slots) == len(set(slots)) == 12, slots
assert {row["group_id"] for row in rows if row["split"] == "eval"} == set(problems)
for row in scored:
    assert row["policy_version_min"] == row["policy_version_max"] == problems[row["group_id"]], row
seeds = collections.defaultdict(set)
for row in rows:
    seeds[row["split"], problems.get(row["group_id"])].add(row["task"]["seed"])
assert seeds["eval", 0] == seeds["eval", 2] and not seeds["eval", 0] & seeds["train", None], seeds
steps = read("steps", ["split", "trainable_rl", "trainable_sft"])
trainable = collections.Counter(row["split"] for row in steps if row["trainable_rl"] or row["trainable_sft"])
assert set(trainable) == {"train"} and any(row["split"] == "eval" for row in steps), trainable
print(f"{len(scored)} trajectories of two evaluations, {sum(trainable.values())} trainable steps and none of them among theirs")
"#;

fn python(arguments: &[&Path]) {
    let python = std::env::var("FURROW_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let output = Command::new(python).args(arguments).output().unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
