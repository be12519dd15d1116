//! A killed process loses nothing that it had logged: a child logs, reports its progress, and is
//! killed without warning.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use furrow_rollout::{Id, TrajectoryAncestry};
use furrow_telemetry::{Level, LogTargets, TrajectoryStarted};
use furrow_telemetry::{LogError, TelemetryFile};
use serde_json::Value;

const LOG_VARIABLE: &str = "FURROW_TEST_LOG";

/// A killed child must leave the lines that it reported on its standard output.
#[test]
fn what_a_killed_process_logged_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("logs/env.jsonl");
    let promised: u64 = (0..2).map(|_| log_and_die(&path)).sum();
    assert!(promised >= 200, "each child logs at least 100 lines before it is killed");
    let text = fs::read_to_string(&path).unwrap();
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    assert_eq!(whole, text.len(), "the last line is complete, too");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() as u64 >= promised, "{} lines of {promised}", lines.len());
    assert!(lines.iter().all(|line| line["event"] == "trajectory.started" && line["run_id"] == "r"));
}

/// Runs a child, kills it once it has logged 100 lines, and returns how many it reported.
fn log_and_die(path: &Path) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::logs_until_it_is_killed", "--ignored", "--nocapture"])
        .env(LOG_VARIABLE, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let counts = lines.filter_map(|line| line.strip_prefix("logged ")?.parse::<u64>().ok());
    let mut last = 0;
    for count in counts {
        last = count;
        if count == 100 {
            child.kill().unwrap(); // SIGKILL; output before its death still counts
        }
    }
    assert!(!child.wait().unwrap().success());
    last
}

#[test]
#[ignore = "the child of the test above"]
fn logs_until_it_is_killed() {
    let Some(path) = std::env::var_os(LOG_VARIABLE).map(PathBuf::from) else { return };
    let config = TelemetryFile { stderr_level: Level::Error, ..TelemetryFile::default() }.check().unwrap();
    LogTargets::to_file(path, &config).start().unwrap();
    let run_id = Id::new("r").unwrap();
    let group_id = Id::nth(&run_id, 0);
    let trajectory_id = Id::attempt(&group_id, 0, 0);
    let of = &TrajectoryAncestry { run_id, group_id, sample_index: 0, attempt: 0, trajectory_id };
    for logged in 1..=1_000_000 {
        TrajectoryStarted { of, token: logged, worker: "e", browser: "b" }.emit();
        println!("logged {logged}");
    }
}

#[test]
fn a_log_file_that_cannot_be_opened_is_named_with_its_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let in_the_way = folder.path().join("logs");
    fs::write(&in_the_way, "a file, not a folder").unwrap();
    let config = TelemetryFile::default().check().unwrap();
    let error = LogTargets::to_file(in_the_way.join("env.jsonl"), &config).start().unwrap_err();
    assert!(matches!(&error, LogError::Open { path, .. } if path.starts_with(&in_the_way)), "{error}");
    assert!(error.to_string().contains("must exist or be creatable"), "{error}");
}
