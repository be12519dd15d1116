//! The oldest rows of a run expire while it goes on: every command and reader takes it so, and the
//! run may die at any point of it.

use std::fs;
use std::path::Path;
use std::process::Command;

use furrow_records::{DataSet, Table};

use crate::farm::furrow;
use crate::small_run::{SmallRun, text};

const KEPT_BYTES: u64 = 4 << 20;
/// Steps of 40 kB: a shard every 150 ms, and an expiry after most of them once 4 MiB are there.
const SCREENSHOT_BYTES: u32 = 40_000;
const SETTINGS: [&str; 5] = [
    "records.retention_bytes=4194304",
    "records.max_shard_bytes=1048576",
    "records.row_group_bytes=262144",
    "records.merge_files_min=3",
    "records.merge_grace_millis=0",
];

fn settings() -> Vec<&'static str> {
    SETTINGS.iter().flat_map(|setting| ["--set", setting]).collect()
}

fn bytes(run_dir: &Path) -> u64 {
    let set = DataSet::open(run_dir).unwrap();
    Table::ALL.iter().flat_map(|table| set.snapshot().files(*table)).map(|file| file.bytes).sum()
}

#[track_caller]
fn says(args: &[&str], here: &Path, part: &str) {
    let output = furrow(args, here);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {text}");
    assert!(text.contains(part), "{args:?} lacks {part:?}: {text}");
}

#[test]
fn a_run_whose_oldest_rows_expired_is_right_to_every_command_and_reader() {
    let run = SmallRun::with_screenshots(60, SCREENSHOT_BYTES);
    run.completes(&settings());
    let here = run.folder.path();
    // One shard more than the limit, where the last one was not followed by another.
    assert!(bytes(&run.dir()) <= KEPT_BYTES + (2 << 20), "{} bytes", bytes(&run.dir()));
    let expired = DataSet::open(&run.dir()).unwrap().snapshot().expired_rows(Table::Trajectories);
    assert!((20..120).contains(&expired), "{expired} of 120 trajectories expired");
    assert_eq!(run.breaches(), Vec::<String>::new());
    let sentence = format!("rows of this data set have expired: {expired} trajectories");
    says(&["records", "verify", "run"], here, &sentence);
    says(&["records", "inspect", "run"], here, &sentence);
    let rates = format!("rows of this data set have expired: {expired} trajectories are in no rate");
    says(&["report", "run"], here, &rates);
    says(&["doctor", "--run", "run"], here, "");
    let missing =
        furrow(&["records", "export", "run-g000000-s0-a0", "--run", "run", "--html", "x.html"], here);
    assert!(text(&missing).contains("whose oldest rows have expired"), "{}", text(&missing));
    says(&["backup", "run", "kept"], here, "");
    says(&["restore", "kept", "again/run"], here, "");
    says(&["records", "verify", "again/run"], here, &sentence);
    says(&["doctor", "--run", "again/run"], here, "");
    let resumed =
        run.command_in(&here.join("again"), &[&settings()[..], &["--resume"]].concat()).output().unwrap();
    assert!(resumed.status.success(), "{}", text(&resumed));
    assert_eq!(run.breaches_in(&here.join("again/run")), Vec::<String>::new());
    let python = std::env::var("FURROW_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let read = Command::new(python).args(["tests/read_back.py", "--opens"]).arg(run.dir()).output().unwrap();
    assert!(read.status.success(), "{}", text(&read));
    // The run becomes longer, and keeps more from now on.
    let more = ["--resume", "--set", "tasks.groups=90", "--set", "records.retention_bytes=8388608"];
    run.completes(&[&settings()[2..], &more].concat());
    assert_eq!(run.breaches_of(90, &run.dir()), Vec::<String>::new());
    let later = DataSet::open(&run.dir()).unwrap().snapshot().expired_rows(Table::Trajectories);
    assert!(later >= expired, "{later} expired, {expired} had before");
    // Without the key nothing expires any more.
    let log = fs::read_to_string(run.dir().join("logs/coordinator.jsonl")).unwrap_or_default();
    assert!(log.is_empty() || log.contains("rows.expired"));
}

#[cfg(feature = "failpoints")]
#[test]
fn no_crash_point_of_an_expiry_loses_more_or_brings_anything_back() {
    let run = SmallRun::with_screenshots(200, SCREENSHOT_BYTES);
    let here = run.folder.path();
    let mut resume: &[&str] = &[];
    for point in furrow_coordinator::expiry_fail_points() {
        for visit in ["return", "2*off->return"] {
            let mut command = run.command(&[&settings()[..], resume].concat());
            let output = command.env("FAILPOINTS", format!("{point}={visit}")).output().unwrap();
            let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
            assert_eq!(signal, Some(9), "{point} ({visit}) was not passed: {}", text(&output));
            says(&["records", "verify", "run"], here, "0 breaches");
            resume = &["--resume"];
        }
    }
    run.completes(&[&settings()[..], resume].concat());
    assert_eq!(run.breaches(), Vec::<String>::new());
    assert!(bytes(&run.dir()) <= KEPT_BYTES + (2 << 20), "{} bytes", bytes(&run.dir()));
}
