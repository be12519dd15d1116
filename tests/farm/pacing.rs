//! Admission paced by versions, with a trainer that discards: reported trajectories are collected
//! again, unreported ones are waited for.

use std::process::Output;
use std::time::Duration;

use furrow_wire::v1::ProgressResponse;

use crate::farm::{FarmBrowser, FarmHarness, FarmRole, furrow, pause, simulated_tasks};

const GROUPS: u32 = 8;
const GROUP_SIZE: u32 = 2;
/// Trajectories that version 0 allows.
const ALLOWED: u32 = 4;
const WITHIN: Duration = Duration::from_secs(60);

fn farm(folder: &std::path::Path) -> FarmHarness {
    let job = format!(
        "{tasks}\
         [policy]\nkind = \"random\"\n[env]\nsessions_max = 4\n[records]\nmax_delay_millis = 200\n\
         [limits]\ntrajectories_per_version = {ALLOWED}\nmax_off_policy_versions = 0\nlease_millis = 4000\nheartbeat_millis = 300\n\
         attempts_max = 20\nfailure_budget = 1.0\n",
        tasks = simulated_tasks(folder, GROUPS, GROUP_SIZE),
    );
    FarmHarness::new(FarmBrowser::Simulated(1000), &job)
}

fn discard(farm: &FarmHarness, arguments: &[&str]) -> Output {
    let run = farm.run_dir().display().to_string();
    furrow(&[&["discarded", "--run", &run], arguments].concat(), &farm.run_dir())
}

#[track_caller]
fn check(output: &Output, status: i32, says: &str) {
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert!(text.contains(says), "it does not print {says:?}: {text}");
}

/// Paused with this many scored trajectories, of which this many were reported as discarded.
fn is_full(now: &ProgressResponse, scored: u32, discarded: u32) -> bool {
    let state = format!(
        "{scored} accepted, {discarded} of them discarded, and 0 running fill what version 0 allows: {ALLOWED}"
    );
    now.scored == scored && now.discarded == discarded && now.admission == state
}

#[test]
fn what_a_trainer_discards_is_collected_anew_and_what_it_does_not_report_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut farm = farm(folder.path());
    farm.start_all();
    farm.wait_until("full", WITHIN, |now| is_full(now, ALLOWED, 0));
    (0..75).for_each(|_| pause());
    let now = farm.progress().unwrap();
    assert!(is_full(&now, ALLOWED, 0), "without a report no more trajectories are collected: {now:?}");

    println!("half of them are discarded, and as many are collected again");
    check(&discard(&farm, &["2"]), 0, "2 of 4 accepted trajectories were discarded");
    farm.wait_until("full again", WITHIN, |now| is_full(now, 6, 2));
    check(&discard(&farm, &["2"]), 0, "2 of 6 accepted");
    check(&discard(&farm, &["1", "--json"]), 0, "\"discarded\": 2");
    check(
        &discard(&farm, &["7"]),
        2,
        "7 trajectories cannot be discarded: this run has accepted 6 outside of evaluations",
    );
    check(&discard(&farm, &["0", "--rank", "1"]), 2, "reader 1 of 1 is out of range");

    println!("the coordinator restarts without the counts until they are reported again");
    farm.kill(FarmRole::Coordinator);
    check(&discard(&farm, &["2", "--deadline", "0"]), 1, "does not answer");
    farm.start(FarmRole::Coordinator);
    farm.wait_until("full after a restart", WITHIN, |now| is_full(now, 6, 0));
    check(&discard(&farm, &["6"]), 0, "6 of 6 accepted");

    println!("everything is discarded, until the end of the run");
    farm.wait_until("full once more", WITHIN, |now| is_full(now, 10, 6));
    check(&discard(&farm, &["10"]), 0, "10 of 10 accepted");
    farm.wait_until("full for the last time", WITHIN, |now| is_full(now, 14, 10));
    check(&discard(&farm, &["14"]), 0, "14 of 14 accepted");
    farm.finish(WITHIN);
    println!("{}", farm.check(GROUPS, GROUP_SIZE).unwrap_or_else(|breaches| panic!("{breaches}")));
    check(&discard(&farm, &["14", "--deadline", "0"]), 1, "does not answer");
}
