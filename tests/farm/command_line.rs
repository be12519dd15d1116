//! The command line as users get it: clear errors with status 2, `--json` that parses, a run that
//! is never overwritten by accident.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::farm::{FURROW, furrow, pause, simulated_tasks};

/// A job with simulated tasks in a folder.
fn job(folder: &Path, more: &str) -> String {
    let text = format!("[run]\nname = \"run\"\noutput_dir = \".\"\n{}{more}", simulated_tasks(folder, 3, 2));
    let path = folder.join("job.toml");
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[track_caller]
fn check(arguments: &[&str], folder: &Path, status: i32, says: &[&str]) -> String {
    let output = furrow(arguments, folder);
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}\n{text}");
    for expected in says {
        assert!(text.contains(expected), "{arguments:?} does not print {expected:?}:\n{text}");
    }
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn wrong_input_names_key_value_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let good = job(here, "");
    let checked = ["# trajectories   6 in 3 groups of 2", "# the start pages of 3 tasks can be reached"];
    check(&["check", &good, "--no-browser"], here, 0, &checked);
    check(&["check", "--schema"], here, 0, &["\"$schema\"", "\"sessions_max\""]);
    check(&["check"], here, 2, &["<JOB>"]);
    check(&["check", "absent.toml"], here, 2, &["absent.toml", "cannot read the job file"]);
    check(
        &["check", &good, "--set", "policy.kind=skripted"],
        here,
        2,
        &["policy.kind", "skripted", "scripted"],
    );
    check(
        &["check", &good, "--set", "env.sesions_max=4"],
        here,
        2,
        &["env.sesions_max", "did you mean env.sessions_max?"],
    );
    check(
        &["run", &good, "--set", "env.browser=/bin/absent"],
        here,
        2,
        &["env.browser", "/bin/absent", "absent or not readable"],
    );
    check(&["coordinator", &good, "--listen", "256.0.0.1:1"], here, 2, &["--listen", "cannot listen on"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    check(
        &["coordinator", &good, "--listen", &address],
        here,
        2,
        &["--listen", &address, "use another port"],
    );
    fs::write(here.join("simulated/tasks.jsonl"), "{\"task_id\":\"x\"}\n{\"no\":1}\nnot json\n").unwrap();
    check(&["tasks", "check", &good], here, 2, &["tasks.jsonl:1", "start_url", "tasks.jsonl:3"]);
    check(&["records", "inspect", "absent"], here, 1, &["absent"]);
    check(&["rnu", &good], here, 2, &["unrecognized subcommand 'rnu'", "'run'"]);
    check(&["bench", "farm", "--rounds", "1"], here, 2, &["bench: now a separate program", "furrow-bench"]);
    assert!(!here.join("run").join("ledger.sqlite").exists(), "wrong input starts no run");
}

/// As under `furrow … | head -0`: the reader of the output is gone.
#[test]
fn a_closed_output_does_not_stop_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let good = job(here, "[policy]\nkind = \"scripted\"\n");
    let unread = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer
    };
    for (arguments, status) in [
        (&["check", &good, "--no-browser", "--json"][..], 0),
        (&["tasks", "list", &good], 0),
        (&["check", "absent.toml"], 2),
        (&["run", &good, "--simulate-browser", "2000", "--json"], 0),
        (&["report", "run"], 0),
    ] {
        let mut command = Command::new(FURROW);
        // Its log is closed, too: a run must survive the loss of its terminal.
        command.args(arguments).current_dir(here).env("FURROW_LOG", "info").stdin(Stdio::null());
        let ended = command.stdout(unread()).stderr(unread()).status().unwrap();
        assert_eq!(ended.code(), Some(status), "{arguments:?}: {ended}");
    }
    assert!(here.join("run/data/manifest/00000000000000000001.json").exists(), "the run ran to its end");
    // A full disk is not a reader that left: the output was to be kept and is lost.
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let ended = Command::new(FURROW)
        .args(["check", &good, "--no-browser"])
        .current_dir(here)
        .stdout(full)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("cannot be written") && !stderr.contains("panicked"), "{stderr}");
}

#[test]
fn a_gpu_that_cannot_be_used_is_wrong_input_for_this_machine() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let good = job(here, "");
    check(&["checkpoint", "init", "tiny", "--size", "tiny"], here, 0, &[]);
    let set = ["kind=model", "checkpoint=tiny", "engine.backend=cuda"];
    let set: Vec<String> = set.iter().map(|key| format!("policy.{key}")).collect();
    let mut arguments = vec!["policy", &good];
    set.iter().for_each(|key| arguments.extend(["--set", key]));
    // Without a driver, the driver is missing; with one, there are no kernels for the heads of this
    // small tower.
    check(&arguments, here, 2, &["the model cannot be opened", "policy.engine"]);
}

#[test]
fn a_run_whose_policy_cannot_start_says_why_and_ends() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    check(&["checkpoint", "init", "tiny"], here, 0, &[]);
    let weights = here.join("tiny/model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&weights, bytes).unwrap();
    let job = job(here, "[policy]\nkind = \"model\"\ncheckpoint = \"tiny\"\n");
    let mut child = Command::new(FURROW)
        .args(["run", &job, "--simulate-browser", "2000"])
        .current_dir(here)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() && began.elapsed() < Duration::from_secs(60) {
        pause();
    }
    let is_over = child.try_wait().unwrap().is_some();
    child.kill().ok();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(is_over, "it runs on without a policy\n{stderr}");
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("the model cannot be opened") && stderr.contains("has the value NaN"),
        "{stderr}"
    );
}

#[test]
fn a_run_is_never_overwritten_and_resumes_where_it_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let job = job(here, "[policy]\nkind = \"scripted\"\n[records]\nmax_delay_millis = 200\n");
    let stdout =
        check(&["run", &job, "--simulate-browser", "2000", "--json"], here, 0, &["\"run_over\":true"]);
    // One object a line, as a program reads them.
    let lines: Vec<serde_json::Value> =
        stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let figures = lines.last().unwrap();
    assert_eq!((figures["scored"].as_u64(), figures["published"].as_u64()), (Some(6), Some(6)));
    check(&["run", &job, "--simulate-browser", "2000"], here, 2, &["--resume", "--clean"]);
    check(
        &["run", &job, "--simulate-browser", "2000", "--resume", "--set", "tasks.group_size=3"],
        here,
        2,
        &["tasks", "start a new run"],
    );
    check(&["run", &job, "--simulate-browser", "2000", "--resume"], here, 0, &["6 trajectories scored"]);
    // Nothing was scored since that start, whatever the run has.
    let resumed = check(&["run", &job, "--simulate-browser", "2000", "--resume", "--json"], here, 0, &[]);
    let resumed: serde_json::Value = serde_json::from_str(resumed.lines().last().unwrap()).unwrap();
    assert_eq!(resumed["scored"], 6);
    assert!(matches!(resumed["trajectories_per_hour"].as_f64(), None | Some(0.0)), "{resumed}");
    assert_eq!(resumed["reward_mean"], figures["reward_mean"]);
    assert_eq!((&resumed["run_id"], &resumed["groups_planned"]), (&"run".into(), &3.into()), "{resumed}");
    check(&["run", &job, "--simulate-browser", "2000", "--clean"], here, 0, &["6 trajectories scored"]);
    check(&["records", "verify", "run"], here, 0, &["6 trajectories", "0 breaches"]);
    let summary = check(&["records", "inspect", "run", "--json"], here, 0, &[]);
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    assert_eq!(summary["suites"][0]["scored"], 6);
    let listed = check(&["tasks", "list", &job, "--json"], here, 0, &[]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&listed).unwrap().as_array().unwrap().len(), 3);
    check(&["tasks", "sample", &job], here, 0, &["simulated/simulated-0"]);
    let names: Vec<String> = fs::read_dir(here.join("run"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    for name in ["job.toml", "ledger.sqlite", "data", "logs", "metrics.jsonl"] {
        assert!(names.iter().any(|known| known == name), "{name} is missing among {names:?}");
    }
}

/// A job that can never run is refused before it fails at every task.
#[test]
fn check_opens_what_it_says_it_checks() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let good = job(here, "[policy]\nkind = \"scripted\"\n");
    let line = |start_url: &str| {
        format!(
            r#"{{"task_id":"one","goal":"Look.","start_url":{start_url:?},"score":{{"kind":"url","host":"x"}}}}"#
        )
    };
    let with_page = |name: &str, start_url: &str| {
        fs::write(here.join(format!("{name}.jsonl")), line(start_url)).unwrap();
        let text = format!(
            "[run]\nname = {name:?}\noutput_dir = \".\"\n[[tasks.source]]\nsuite = \"own\"\npath = \"{name}.jsonl\"\n"
        );
        fs::write(here.join(format!("{name}.toml")), text).unwrap();
        format!("{name}.toml")
    };
    let local = with_page("local", "http://127.0.0.1:3000/shop?a=1");
    let remedy = [
        "start_url of own/one",
        "pins = [\"app.example=127.0.0.1:3000\"]",
        "start_url = \"http://app.example/shop?a=1\"",
    ];
    for command in [&["check", &local, "--no-browser"][..], &["tasks", "check", &local], &["run", &local]] {
        check(command, here, 2, &remedy);
    }
    // What the refusal says works.
    let pinned = with_page("pinned", "http://app.example/shop?a=1");
    let pins = "env.pins=[\"app.example=127.0.0.1:3000\"]";
    check(
        &["check", &pinned, "--no-browser", "--set", pins],
        here,
        0,
        &["the start pages of 1 tasks can be reached"],
    );
    let absent = with_page("absent", "http://own.test/none.html");
    check(&["check", &absent, "--no-browser"], here, 2, &["no source of the job serves own.test"]);
    fs::write(here.join("simulated/page.html"), "<h1>no script</h1>").unwrap();
    check(&["tasks", "check", &good], here, 2, &["simulated/simulated-0", "window.furrow"]);
    fs::write(here.join("simulated/page.html"), "<script>window.furrow = {}</script>").unwrap();
    for (setting, parts) in [
        ("env.browser=/nope", &["env.browser", "/nope", "absent"][..]),
        ("env.browser=/bin/true", &["env.browser", "/bin/true is not Chromium"]),
        ("run.output_dir=/proc/none", &["run.output_dir", "/proc/none/run cannot be made"]),
    ] {
        check(&["check", &good, "--set", setting], here, 2, parts);
        check(&["run", &good, "--set", setting], here, 2, parts);
    }
    check(&["checkpoint", "init", "tiny", "--size", "tiny"], here, 0, &[]);
    fs::write(here.join("tiny/tokenizer.json"), "{").unwrap();
    let model = ["--set", "policy.kind=model", "--set", "policy.checkpoint=tiny"];
    let command = [&["check", &good, "--no-browser"][..], &model].concat();
    check(&command, here, 2, &["policy.checkpoint", "tokenizer"]);
    check(
        &["doctor", &good, "--set", "env.browser=/bin/true"],
        here,
        1,
        &["BAD  env.browser", "ok   open files"],
    );
    let left: Vec<_> = fs::read_dir(here).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name == "run" || name.to_string_lossy().starts_with('.')), "{left:?}");
}

/// A setting that does nothing is said, and so is a selection that selects nothing.
#[test]
fn what_has_no_effect_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let good = job(here, "[policy]\nkind = \"scripted\"\n[records]\nmax_delay_millis = 200\n");
    let with = |setting: &str, part: &str| {
        check(&["check", &good, "--no-browser", "--set", setting], here, 0, &["warning: ", part]);
    };
    with("dashboard.gpu=h200", "dashboard.gpu: has no effect with policy.engine.backend = \"cpu\"");
    with("policy.audit.share=0.5", "policy.audit.share: has no effect with policy.kind = \"scripted\"");
    with(
        "tasks.source[0].include=[\"simulated-0\",\"simulatde-1\"]",
        "\"simulatde-1\" matches no task of suite simulated; did you mean \"simulated-1\"?",
    );
    with("env.pins=[\"a.example=10.0.0.1\"]", "env.pins: a.example has no effect");
    check(&["run", &good, "--simulate-browser", "2000"], here, 0, &["6 trajectories scored"]);
    check(&["score", "run", "--task", "zzz*"], here, 2, &["--task \"zzz*\": selects none"]);
    check(&["score", "run", "--task", "simulated-1", "--dry-run"], here, 0, &["2 trajectories submitted"]);
    let report = check(&["report", "run", "--split", "eval"], here, 0, &["no trajectory is selected"]);
    assert!(!report.contains("changed during the run"), "{report}");
}

#[test]
fn runs_are_listed_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let good = job(here, "[policy]\nkind = \"scripted\"\n");
    check(&["runs", "."], here, 0, &["no run directory below ."]);
    check(&["run", &good, "--simulate-browser", "2000"], here, 0, &[]);
    check(&["runs", "."], here, 0, &["run ", "complete", "6", "scripted"]);
    let listed = check(&["runs", ".", "--json"], here, 0, &[]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(
        (&listed[0]["state"], &listed[0]["trajectories"]),
        (&"complete".into(), &6.into()),
        "{listed}"
    );
    check(&["runs", "remove", "run"], here, 2, &["6 trajectories", "--yes"]);
    check(&["runs", "remove", "simulated", "--yes"], here, 2, &["is no run directory"]);
    check(&["runs", "remove", "run", "--yes"], here, 0, &["removed run"]);
    assert!(!here.join("run").exists() && here.join("simulated/tasks.jsonl").exists());
}
