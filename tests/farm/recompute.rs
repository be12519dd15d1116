//! A model policy recorded what it sampled: its log-probabilities are recomputed from Parquet and
//! checkpoint alone, for steps whose state was forked from a sibling's, swapped out to host memory,
//! or rebuilt after the policy worker was killed.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::farm::{FURROW, FarmBrowser, FarmHarness, FarmRole, simulated_tasks};

const GROUP_SIZE: u32 = 4;

/// Groups of four trajectories; `FURROW_RECOMPUTE_GROUPS=40` gives more than a thousand rows.
fn groups() -> u32 {
    std::env::var("FURROW_RECOMPUTE_GROUPS").ok().and_then(|text| text.parse().ok()).unwrap_or(4)
}

#[test]
fn log_probabilities_can_be_recomputed_wherever_a_state_came_from() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = folder.path().join("tiny");
    let made = Command::new(FURROW).args(["checkpoint", "init", "--seed", "11"]).arg(&checkpoint).output();
    assert!(made.unwrap().status.success());
    // Eight sessions, each with a fork while it works, on six slots: some are always swapped out.
    let job = format!(
        "{tasks}\
         [policy]\nkind = \"model\"\ncheckpoint = {checkpoint:?}\n[policy.context]\nkeep = \"last_image\"\n\
         [policy.engine]\nstate_slots = 6\nsnapshot_slots = 4\ncontext_tokens_max = 8192\n\
         [policy.constrain]\nenabled = true\nnote = 4\nthought = 8\ncontent = 6\nelement = 4\n\
         [policy.audit]\nshare = 0.02\n[env]\nsessions_max = 8\n[limits]\nlease_millis = 5000\nheartbeat_millis = 300\nattempts_max = 20\nfailure_budget = 1.0\n\
         [records]\nmax_delay_millis = 1000\n",
        tasks = simulated_tasks(folder.path(), groups(), GROUP_SIZE),
    );
    let mut farm = FarmHarness::new(FarmBrowser::Simulated(4000), &job);
    farm.start_all();
    for kill in 1..=2u64 {
        let acted = 10 * kill;
        let now =
            farm.wait_until("acting", Duration::from_secs(120), |now| now.assigned > 0 && now.steps >= acted);
        assert!(!now.run_over, "the run was over before the policy worker could be killed: {now:?}");
        farm.kill(FarmRole::Policy);
        farm.start(FarmRole::Policy);
    }
    farm.finish(Duration::from_secs(300));
    let summary = farm.check(groups(), GROUP_SIZE).unwrap_or_else(|breaches| panic!("{breaches}"));
    println!("{summary}");
    run(Command::new(FURROW).args(["records", "verify"]).arg(farm.run_dir()));
    let python = std::env::var("FURROW_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let mut recompute = Command::new(python);
    recompute.arg("tests/recompute.py").arg(farm.run_dir()).arg(&checkpoint);
    recompute.args(["--rows", "50", "--origins", "resident,forked,parked,rebuilt"]);
    run(&mut recompute);
    tokens_come_out_again(&farm.run_dir(), &checkpoint);
}

/// On the CPU decode and prefill agree to the last bit: the run's audit finds no gap, and its
/// tokens can be replayed.
fn tokens_come_out_again(run: &Path, checkpoint: &Path) {
    let furrow = |arguments: &[&str], status: i32| -> Value {
        let output = Command::new(FURROW).args(arguments).arg("--json").output().unwrap();
        let wrong = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {wrong}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let run = run.to_str().unwrap();
    let summary = furrow(&["records", "inspect", run], 0);
    let gaps = summary["prefill_gaps"].as_array().unwrap();
    let audited: u64 = gaps.iter().map(|gap| gap["tokens"].as_u64().unwrap()).sum();
    assert!(audited > 0 && gaps.iter().all(|gap| gap["max"] == 0.0), "{summary:#}");
    // One trajectory that the policy worker's death interrupted, and one of the last group.
    let names = ["run-g000000-s0-a0", "run-g000003-s1-a0"];
    let same = furrow(&["replay", "--tokens", "--run", run, names[0], names[1]], 0);
    assert_eq!((&same["identical"], &same["replayed"]), (&2.into(), &2.into()), "{same:#}");
    for one in same["trajectories"].as_array().unwrap() {
        assert_eq!((&one["same_weights"], &one["decoded"]["max"]), (&true.into(), &0.0.into()), "{one:#}");
        assert!(one["steps"] == one["identical_steps"] && one["prefilled"]["max"] == 0.0, "{one:#}");
    }
    // With other weights the first token differs, or its log-prob.
    let other = checkpoint.with_file_name("other");
    let made = Command::new(FURROW).args(["checkpoint", "init", "--seed", "12"]).arg(&other).output();
    assert!(made.unwrap().status.success());
    let other = other.to_str().unwrap();
    let differs = furrow(&["replay", "--tokens", "--run", run, names[0], "--checkpoint", other], 1);
    let one = &differs["trajectories"][0];
    assert_eq!(
        (&one["first_difference"]["step"], &one["same_weights"]),
        (&0.into(), &false.into()),
        "{one:#}"
    );
    assert!(one["prefilled"]["max"].as_f64().unwrap() > 0.0, "{one:#}");
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    println!("{text}");
    assert!(output.status.success(), "{command:?}");
}
