//! Attempts to get a reward that was not earned, or to avoid a reward of 0: lists of actions, in
//! real Chromium, against unchanged pages. A demonstration file replaces the policy; it does
//! nothing that a policy could not do.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::farm::{browser_setting, copy, envs, furrow};

/// Runs a command in a directory; returns its exit status and the last JSON value it printed.
#[track_caller]
fn last_json(folder: &Path, command: &[&str]) -> (Option<i32>, Value) {
    let settings = browser_setting();
    let takes_settings = command[0] == "run";
    let set = settings.iter().filter(|_| takes_settings).flat_map(|setting| ["--set", setting]);
    let arguments: Vec<&str> = command.iter().copied().chain(set).collect();
    let output = furrow(&arguments, folder);
    let last = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>().last();
    let line = last.unwrap_or_else(|| panic!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code(), line.unwrap())
}

/// Runs a job of these sources once per task, each attempt final; returns the reward of each task,
/// null if it was not scored, and the ends.
fn run(folder: &Path, sources: &str) -> (Value, Value) {
    let job = format!(
        "[run]\nname = \"run\"\noutput_dir = \".\"\n[tasks]\ngroup_size = 1\nsampler = \"sequential\"\nseed = 3\n{sources}\
         [policy]\nkind = \"scripted\"\n[policy.grammar]\nextra = [\"press_key\"]\n[env]\nsessions_max = 2\n[limits]\nattempts_max = 1\n"
    );
    fs::write(folder.join("job.toml"), job).unwrap();
    let (_, result) = last_json(folder, &["run", "job.toml", "--json"]);
    println!("{result}");
    let (_, summary) = last_json(folder, &["records", "inspect", "run", "--json"]);
    let line = |line: &Value| Some((line["task_id"].as_str()?.to_owned(), line["reward_mean"].clone()));
    let rewards: serde_json::Map<_, _> =
        summary["tasks"].as_array().unwrap().iter().filter_map(line).collect();
    (rewards.into(), summary["ends"].clone())
}

/// Ways to the browser's error page, one per task of the starter pages: the action of each step.
/// After the last action the policy waits, unless one of them was an answer.
const LEAVE: [(&str, &str); 7] = [
    ("click", r#"[go(tls), say("x")]"#),
    ("type", "[go(tls)]"),
    ("choose", r#"[go(tls), go(own), { action: "go_back" }, say("x")]"#),
    ("read-and-answer", r#"[go(`${own}:25/`), say("x")]"#),
    (
        "form",
        r#"[go(tls), { action: "click_element", element: "page", x: 40, y: 40 }, { action: "refresh" }, say("x")]"#,
    ),
    // Neither the page of an unknown port nor a missing page is the browser's.
    ("scroll", r#"[go(`${own}:443/`), say("x")]"#),
    ("select", r#"[go(`${own}/nowhere`), say("x")]"#),
];

#[test]
fn a_policy_that_leaves_for_an_error_page_is_scored() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let script = |host: &str, steps: &str| {
        format!(
            "const own = 'http://{host}', tls = 'https://{host}/', go = (url) => ({{ action: 'goto', url }}), \
             say = (content) => ({{ action: 'answer', content }});\nreturn {steps}[step] ?? null;"
        )
    };
    let starter = folder.join("starter");
    copy(&envs().join("starter"), &starter);
    for (task, steps) in LEAVE {
        fs::write(starter.join(format!("{task}.solve.js")), script("starter.test", steps)).unwrap();
    }
    let leave = r#"[go(tls), say("x")]"#;
    let miniwob = folder.join("miniwob");
    copy(&envs().join("miniwob"), &miniwob);
    fs::write(miniwob.join("solve/click-button.js"), script("miniwob.test", leave)).unwrap();
    fs::write(
        miniwob.join("solve/click-dialog.js"),
        script("miniwob.test", r#"[go(own + "/nowhere"), say("x")]"#),
    )
    .unwrap();
    let web = folder.join("web");
    copy(&envs().join("web/shared"), &web.join("shared"));
    copy(&envs().join("web/sites/answers"), &web.join("sites/answers"));
    fs::write(web.join("sites/answers/solve.js"), script("answers.web.test", leave)).unwrap();
    let left = LEAVE.map(|(task, _)| task);
    let wheel = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/miniwob-1.1.0-py3-none-any.whl");
    let sources = format!(
        "[[tasks.source]]\nsuite = \"starter\"\npath = \"starter\"\ninclude = {left:?}\n\
         [[tasks.source]]\nsuite = \"miniwob\"\npath = \"miniwob\"\npages = {wheel:?}\ninclude = [\"click-button\", \"click-dialog\"]\n\
         [[tasks.source]]\nsuite = \"web\"\npath = \"web\"\ninclude = [\"answers-arithmetic\", \"answers-settings\"]\n"
    );
    let (rewards, ends) = run(folder, &sources);
    let tasks =
        left.into_iter().chain(["click-button", "click-dialog", "answers-arithmetic", "answers-settings"]);
    let want: serde_json::Map<_, _> = tasks.map(|task| (task.to_owned(), json!(0.0))).collect();
    assert_eq!(rewards, Value::from(want), "{ends:#}");
    assert!(ends.as_array().unwrap().iter().all(|end| end["status"] == "scored"), "{ends:#}");

    // Scored again, they earn the same.
    let (_, rescored) = last_json(folder, &["score", "run", "--json"]);
    assert_eq!(
        (&rescored["scored"], &rescored["changed"], &rescored["unscored"]),
        (&json!(11), &json!(0), &json!(0)),
        "{rescored:#}"
    );
    assert_eq!(last_json(folder, &["records", "verify", "run", "--json"]).0, Some(0));
}
