//! The steps of a run as a workload of the simulator: their sizes equal those of the rows, in the
//! spool before the commit and in shards after it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use furrow_coordinator::spool::{EntryKey, Spool, SpoolLimits};
use furrow_records::DataSet;
use furrow_rollout::StepRecord;
use serde_json::Value;

use crate::farm::{FarmBrowser, FarmHarness, FarmRole, furrow, simulated_tasks, tiny_policy};
use crate::weights::write_checkpoint;

const GROUPS: u32 = 4;
const GROUP_SIZE: u32 = 2;

#[test]
fn the_steps_of_a_run_are_what_the_simulator_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = folder.path().join("tiny");
    write_checkpoint(&checkpoint, "11");
    // Nothing is committed before the end.
    let job = format!(
        "{tasks}\
         {policy}\
         [env]\nsessions_max = 3\n[records]\nmax_delay_millis = 86400000\n[limits]\nlease_millis = 4000\nheartbeat_millis = 300\n",
        tasks = simulated_tasks(folder.path(), GROUPS, GROUP_SIZE),
        policy = tiny_policy(&checkpoint),
    );
    let mut farm = FarmHarness::new(FarmBrowser::Simulated(4000), &job);
    farm.start_all();
    farm.wait_until("scored", Duration::from_secs(240), |now| now.scored >= 3);
    farm.kill(FarmRole::Coordinator);
    let run = farm.run_dir();
    let from_spool = plan(&run, folder.path(), &[]);
    let rows = spooled(&run);
    assert!(rows.len() >= 3 && rows.len() < 8, "{} have ended", rows.len());
    check(&from_spool, &rows);

    farm.start(FarmRole::Coordinator);
    farm.finish(Duration::from_secs(300));
    let rows = committed(&run);
    assert_eq!(rows.len(), (GROUPS * GROUP_SIZE) as usize);
    let simulated = plan(&run, folder.path(), &["--simulate", "--seconds", "60"]);
    check(&simulated, &rows);
    let outcomes = simulated["simulated"].as_array().unwrap();
    assert_eq!(outcomes.len(), 1, "only the recorded context policy: {outcomes:?}");
    let steps = outcomes[0]["steps"].as_u64().unwrap();
    let share = outcomes[0]["share"].as_f64().unwrap();
    assert!(outcomes[0]["context"] == "append" && steps > 0 && share > 0.0 && share < 1.1, "{outcomes:?}");
    let floors = &simulated["recorded"]["floors"];
    let rate = |name: &str| floors[name]["steps_per_second"].as_f64().unwrap();
    assert!(rate("two_streams") >= rate("one_after_another") && rate("one_after_another") > 0.0, "{floors}");
    assert_eq!(simulated["recorded"]["job"]["run"], "run");
    // Bytes of a step in its shard, which a budget uses.
    assert!(simulated["recorded"]["step_bytes"].as_u64().unwrap() > 4000);
}

#[test]
fn a_run_without_tokens_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut farm = FarmHarness::new(FarmBrowser::Simulated(2000), &simulated_tasks(folder.path(), 1, 1));
    farm.start_all();
    farm.finish(Duration::from_secs(120));
    let run = farm.run_dir();
    let output = furrow(&["plan", "--recorded", run.to_str().unwrap()], folder.path());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("recorded no tokens") && stderr.contains("policy.kind = \"model\""), "{stderr}");
}

fn plan(run: &Path, folder: &Path, more: &[&str]) -> Value {
    let arguments = [&["plan", "--json", "--recorded", run.to_str().unwrap()], more].concat();
    let output = furrow(&arguments, folder);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

type StepsByTrajectory = BTreeMap<String, Vec<StepRecord>>;

fn committed(run: &Path) -> StepsByTrajectory {
    let mut rows = StepsByTrajectory::new();
    for step in DataSet::open(run).unwrap().steps() {
        let step = step.unwrap();
        rows.entry(step.ancestry.trajectory_id.to_string()).or_default().push(step.record);
    }
    rows
}

/// Reads the spool as a restarted coordinator does.
fn spooled(run: &Path) -> StepsByTrajectory {
    let (spool, recovered) = Spool::open(run.join("spool"), SpoolLimits::default()).unwrap();
    let mut rows = StepsByTrajectory::new();
    for found in recovered {
        let entries: Vec<_> = spool.read(&found.trajectory_id).unwrap().map(Result::unwrap).collect();
        if entries.last().is_none_or(|entry| entry.key != EntryKey::End) {
            continue;
        }
        let steps = entries.into_iter().filter(|entry| entry.key != EntryKey::End);
        let steps = steps.map(|entry| furrow_wire::decode_step(entry.payload).unwrap());
        rows.insert(found.trajectory_id.to_string(), steps.collect());
    }
    rows
}

/// Counts, means and percentiles, computed here from the rows.
fn check(reported: &Value, rows: &StepsByTrajectory) {
    let tokens = || rows.values().flatten().map(|step| step.trace.tokens.as_ref().unwrap());
    // Simulated pages have one tile.
    let tiles = |step: &StepRecord| {
        let spans = &step.trace.tokens.as_ref().unwrap().image_spans;
        let own = spans.iter().find(|span| span.step == step.step).unwrap();
        usize::from(own.tiles_x * own.tiles_y)
    };
    let wanted: [(&str, Vec<usize>); 5] = [
        ("steps a trajectory", rows.values().map(Vec::len).collect()),
        ("prompt tokens a step", tokens().map(|it| it.prompt_token_ids.len()).collect()),
        ("response tokens a step", tokens().map(|it| it.response_token_ids.len()).collect()),
        (
            "sampled tokens a step",
            tokens().map(|it| it.response_mask.iter().filter(|it| **it).count()).collect(),
        ),
        ("tiles a step", rows.values().flatten().map(tiles).collect()),
    ];
    let spreads = reported["recorded"]["spreads"].as_array().unwrap();
    assert_eq!(spreads.len(), wanted.len());
    for (spread, (what, mut numbers)) in spreads.iter().zip(wanted) {
        numbers.sort_unstable();
        let count = numbers.len();
        let mean = numbers.iter().sum::<usize>() as f64 / count as f64;
        assert_eq!((&spread["what"], &spread["count"]), (&Value::from(what), &Value::from(count)));
        assert!((spread["mean"].as_f64().unwrap() - mean).abs() < 1e-9, "{spread}, expected {mean}");
        // At least this percentage of the values is at or below a percentile, and less is below it.
        for (name, percent) in [("p5", 5), ("p50", 50), ("p95", 95)] {
            let value = spread[name].as_u64().unwrap() as usize;
            let at_most = numbers.iter().filter(|number| **number <= value).count();
            let below = numbers.iter().filter(|number| **number < value).count();
            assert!(
                at_most * 100 >= percent * count && below * 100 < percent * count,
                "{name}: {spread} {numbers:?}"
            );
        }
    }
    assert_eq!(reported["recorded"]["without_tokens"], 0);
}
