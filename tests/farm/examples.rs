//! The examples, as their README says to run them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::farm::{FURROW, browser_setting, furrow};

/// The program of an example, which is built beside the tests.
fn example(name: &str) -> PathBuf {
    let path = Path::new(FURROW).with_file_name("examples").join(name);
    assert!(path.is_file(), "{} is missing; build it with `cargo build --examples`", path.display());
    path
}

#[track_caller]
fn output_of(name: &str, arguments: &[&Path]) -> String {
    let output = Command::new(example(name)).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn the_tiles_are_proved_and_collected_and_their_data_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let job = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/tiles/job.toml");
    let job = job.to_str().unwrap();
    let mut settings = browser_setting();
    settings.push(format!("run.output_dir={}", folder.path().display()));
    let settings: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    for command in [vec!["tasks", "check", job, "--all"], vec!["run", job]] {
        let output = furrow(&[&command[..], &settings].concat(), folder.path());
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{command:?}\n{text}");
    }

    let lines = output_of("read_run", &[&folder.path().join("tiles")]);
    let cells: Vec<Vec<&str>> = lines.lines().map(|line| line.split_whitespace().collect()).collect();
    for expected in [
        ["tiles/lighter", "2", "1.000"].as_slice(),
        &["tiles/lighter-quickly", "2", "1.000"],
        &["done", "4"],
        &["click_element", "4"],
    ] {
        assert!(cells.iter().any(|line| line == expected), "{expected:?} is missing in\n{lines}");
    }
}

#[test]
fn evidence_is_scored() {
    let lines = output_of("score_evidence", &[]);
    let rewards: Vec<&str> =
        lines.lines().map(|line| line[24..].split_whitespace().next().unwrap()).collect();
    assert_eq!(rewards, ["1.00", "0.70", "0.00", "0.00", "--"], "{lines}");
}
