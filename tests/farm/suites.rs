//! Suites as their users write them: lines by hand, a folder of pages, pictures with boxes, a
//! judge; run, listed, proved, scored again.

use std::fs;
use std::path::Path;

use furrow_testkit::chat_server::{FakeChatServer, ServerAction};
use serde_json::{Value, json};

use crate::farm::{browser_setting, furrow};

/// The starter pages under another name, with the test's own tasks.
const PAGES: &str = r#"{"task_id":"judged","start_url":"read-and-answer.html","score":{"kind":"judge"}}
{"task_id":"priced","start_url":"click.html","score":{"kind":"step_penalty","of":{"kind":"probe"},"per_step":0.25}}
"#;

const LINES: &str = r#"{"task_id":"look","goal":"Look at the page.","start_url":"http://hand.test/click.html","max_steps":2,"ends":["max_steps"],"score":{"kind":"all","of":[{"kind":"url","host":"hand.test"},{"kind":"not","of":{"kind":"url","path":"/type.html"}}]}}
{"task_id":"say","goal":"Say 7.","start_url":"http://hand.test/click.html","max_steps":2,"score":{"kind":"answer","match":"number","value":7}}
"#;

fn write_suites(folder: &Path) {
    let starter = Path::new(env!("CARGO_MANIFEST_DIR")).join("envs/starter");
    let hand = folder.join("hand");
    fs::create_dir(&hand).unwrap();
    for entry in fs::read_dir(starter).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, hand.join(path.file_name().unwrap())).unwrap();
        }
    }
    fs::write(hand.join("tasks.jsonl"), PAGES).unwrap();
    fs::write(folder.join("lines.jsonl"), LINES).unwrap();
    let set = folder.join("set");
    fs::create_dir(&set).unwrap();
    let rows: Vec<String> = [(320, 200), (500, 90)]
        .into_iter()
        .enumerate()
        .map(|(index, (width, height))| {
            fs::write(set.join(format!("{index}.png")), furrow_records::fixtures::png(width, height, 7)).unwrap();
            json!({ "image": format!("{index}.png"), "instruction": "Click the box.", "bbox": [0.5, 0.5, 0.55, 0.6] })
                .to_string()
        })
        .collect();
    fs::write(set.join("metadata.jsonl"), rows.join("\n")).unwrap();
}

fn source(suite: &str, path: &str) -> String {
    format!("[[tasks.source]]\nsuite = \"{suite}\"\npath = \"{path}\"\n")
}

/// Runs a command in a folder and returns the last JSON value it printed.
#[track_caller]
fn last_json(folder: &Path, arguments: &[&str]) -> Value {
    last_json_with_status(folder, arguments, 0)
}

/// The last JSON value printed by a command that must end with this status.
fn last_json_with_status(folder: &Path, arguments: &[&str], status: i32) -> Value {
    let settings = browser_setting();
    let mut all: Vec<&str> = arguments.to_vec();
    all.extend(settings.iter().flat_map(|setting| ["--set", setting]));
    let output =
        furrow(if arguments[0] == "records" || arguments[0] == "score" { arguments } else { &all }, folder);
    let errors = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {errors}\n{printed}");
    let values = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
    values.last().unwrap_or_else(|| panic!("{arguments:?} printed nothing: {errors}")).unwrap()
}

fn rewards(folder: &Path) -> Value {
    let summary = last_json(folder, &["records", "inspect", "run", "--json"]);
    let line = |line: &Value| Some((line["task_id"].as_str()?.to_owned(), line["reward_mean"].clone()));
    summary["tasks"].as_array().unwrap().iter().filter_map(line).collect::<serde_json::Map<_, _>>().into()
}

#[test]
fn suites_written_by_hand_are_run_judged_and_scored_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // Browsers drop to an ordinary user; their pages are served over HTTP, so this folder stays
    // closed to them.
    write_suites(folder);
    let judge = FakeChatServer::start(vec![
        ServerAction::Status(429, Some("0.05")),
        ServerAction::Truncated,
        ServerAction::Text("The page shows it.\nSUCCESS".into()),
    ])
    .unwrap();
    let job = |pages: &str| {
        format!(
            "[run]\nname = \"run\"\noutput_dir = \".\"\n[tasks]\ngroup_size = 1\nsampler = \"sequential\"\n{}{}{}\
             [env]\nsessions_max = 2\n[score.judge]\nendpoint = \"{}\"\nmodel = \"eye\"\nkey_env = \"FURROW_TEST_JUDGE_KEY\"\npause_millis = 10\n",
            source("hand", pages),
            source("lines", "lines.jsonl"),
            source("clicks", "set/metadata.jsonl"),
            judge.endpoint(),
        )
    };
    fs::write(folder.join("job.toml"), job("hand")).unwrap();

    let keyless = furrow(&["run", "job.toml"], folder);
    let stderr = String::from_utf8_lossy(&keyless.stderr).into_owned();
    assert_eq!(keyless.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("score.judge.key_env: the environment has no key in \"FURROW_TEST_JUDGE_KEY\""),
        "{stderr}"
    );
    assert!(!folder.join("run").exists(), "a job without the judge's key leaves no run directory");

    let no_key = job("hand").replace("key_env = \"FURROW_TEST_JUDGE_KEY\"\n", "");
    fs::write(folder.join("job.toml"), &no_key).unwrap();
    let listed = last_json(folder, &["tasks", "list", "job.toml", "--json"]);
    let ids: Vec<_> = listed.as_array().unwrap().iter().filter_map(|task| task["task_id"].as_str()).collect();
    assert_eq!(ids, ["judged", "priced", "look", "say", "row-000000", "row-000001"]);
    assert_eq!(last_json(folder, &["tasks", "check", "job.toml", "--json"])["tasks"], 6);
    let drawn = last_json(folder, &["tasks", "sample", "job.toml", "--json"]);
    assert_eq!(drawn[5]["task"], "clicks/row-000001");

    let result = last_json(folder, &["run", "job.toml", "--json"]);
    assert_eq!((&result["scored"], &result["failed"]), (&json!(6), &json!(0)), "{result:#}");
    assert_eq!(judge.requests().len(), 3, "a 429, half a reply, a verdict");
    let want = json!({ "judged": 1.0, "priced": 0.75, "look": 1.0, "say": 0.0, "row-000000": 1.0, "row-000001": 1.0 });
    assert_eq!(rewards(folder), want);
    last_json(folder, &["records", "verify", "run", "--json"]);

    // Another step penalty gives another reward, in data/scores/ alone.
    fs::create_dir(folder.join("other")).unwrap();
    for entry in fs::read_dir(folder.join("hand")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.join("other").join(path.file_name().unwrap())).unwrap();
    }
    fs::write(folder.join("other/tasks.jsonl"), PAGES.replace("0.25", "0.5")).unwrap();
    fs::write(folder.join("other.toml"), no_key.replace("path = \"hand\"", "path = \"other\"")).unwrap();
    let other = last_json(folder, &["score", "run", "--job", "other.toml", "--suite", "hand", "--json"]);
    assert_eq!((&other["scored"], &other["changed"], &other["left_out"]), (&json!(2), &json!(1), &json!(4)));
    assert_eq!((&other["reward_mean_before"], &other["reward_mean_after"]), (&json!(0.875), &json!(0.75)));
    let same = last_json(folder, &["score", "run", "--task", "row-*", "--json"]);
    assert_eq!((&same["scored"], &same["changed"]), (&json!(2), &json!(0)));
    assert_eq!(rewards(folder), want, "stored rewards are unchanged");
    let verified = last_json(folder, &["records", "verify", "run", "--json"]);
    assert_eq!(verified["counts"]["scores"], 4, "{verified:#}");
}

#[test]
fn a_grounding_set_is_proved_in_the_browser() {
    let folder = tempfile::tempdir().unwrap();
    write_suites(folder.path());
    let job =
        format!("[run]\nname = \"run\"\noutput_dir = \".\"\n{}", source("clicks", "set/metadata.jsonl"));
    fs::write(folder.path().join("clicks.toml"), job).unwrap();
    let proofs = last_json(folder.path(), &["tasks", "check", "clicks.toml", "--all", "--json"]);
    assert_eq!(proofs["proofs"].as_array().unwrap().len(), 2, "{proofs:#}");
}

#[test]
fn a_site_that_refuses_is_marked_and_never_scored() {
    let folder = tempfile::tempdir().unwrap();
    let shut = folder.path().join("shut");
    fs::create_dir(&shut).unwrap();
    fs::write(shut.join("door.html"), "<!doctype html><title>Door</title><h1>Access Denied</h1>").unwrap();
    let line = r#"{"task_id":"door","goal":"Go in.","start_url":"door.html","score":{"kind":"url","host":"shut.test"}}"#;
    fs::write(shut.join("tasks.jsonl"), line).unwrap();
    let job = format!(
        "[run]\nname = \"run\"\noutput_dir = \".\"\n[tasks]\ngroup_size = 1\n{}\
         [env]\nblocked_pages = \"all\"\nblocked_timeout_millis = 100\n[limits]\nattempts_max = 2\n",
        source("shut", "shut")
    );
    fs::write(folder.path().join("job.toml"), job).unwrap();
    // Nothing was scored, so the run fails.
    let result = last_json_with_status(folder.path(), &["run", "job.toml", "--json"], 1);
    assert_eq!((&result["scored"], &result["failed"]), (&json!(0), &json!(2)), "{result:#}");
    let ends = last_json(folder.path(), &["records", "inspect", "run", "--json"])["ends"].clone();
    assert_eq!(
        (&ends[0]["end"], &ends[0]["status"], &ends[0]["trajectories"]),
        (&json!("blocked"), &json!("failed"), &json!(2)),
        "{ends:#}"
    );
    last_json(folder.path(), &["records", "verify", "run", "--json"]);
}
