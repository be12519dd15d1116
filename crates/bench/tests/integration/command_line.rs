//! The command line as users get it: clear errors with status 2, and a report that programs can
//! read.

use std::process::{Command, Output};

use serde_json::Value;

const PAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../envs/bench");

fn furrow_bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_furrow-bench")).args(arguments).output().unwrap()
}

#[track_caller]
fn check_refused(arguments: &[&str], says: &str) {
    let output = furrow_bench(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}\n{stderr}");
    assert!(stderr.contains(says), "{arguments:?} does not print {says:?}:\n{stderr}");
}

#[test]
fn wrong_input_names_the_option_and_the_remedy() {
    check_refused(&["farm", "--pages", "absent"], "furrow-bench: --pages: absent has no shop.html; use");
    for benchmark in ["farm", "records"] {
        let arguments = [benchmark, "--pages", PAGES, "--furrow", "/no/furrow"];
        check_refused(&arguments, "furrow-bench: --furrow: there is no /no/furrow; build it");
    }
    check_refused(&["soak", "--furrow", "/no/furrow"], "--furrow: there is no /no/furrow");
    check_refused(&["gpu", "--recorded", "absent"], "--recorded absent: cannot read job.toml");
    check_refused(&["quickly"], "unrecognized subcommand 'quickly'");
}

#[test]
fn a_report_has_conditions_results_and_notes() {
    let output = furrow_bench(&["grpc", "--sessions", "2", "--seconds", "6", "--anyway", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let keys: Vec<&String> = report.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["conditions", "figures", "notes"]);
    let rate = &report["figures"]["messages"];
    assert!(rate["median"].as_f64().unwrap() > 0.0 && rate["unit"] == "1/s", "{rate}");
}
