//! `furrow tasks check --blind` and `--replays` on a site with planted templates: one with a usual
//! answer and one whose state a fixed click brings about fail, those that need a look pass.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::farm::{browser_setting, furrow};

/// `usual`: half of the boxes have two lids; `weight`: only the page says it; `lamp`: its button
/// is always in the same place; `row`: its button is one of forty.
const PAGE: &str = r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Boxes</title>
<link rel="icon" href="data:,">
<style>button { display: block; width: 200px; height: 16px; padding: 0; }</style>
</head>
<body><main></main>
<script>
const kept = (name) => JSON.parse(localStorage.getItem(name) ?? "null");
const keep = (name, value) => localStorage.setItem(name, JSON.stringify(value));
const some = (draw, below) => {
  let state = 0x811c9dc5;
  for (const letter of `${draw.template} ${draw.split} ${draw.seed}`) state = Math.imul(state ^ letter.charCodeAt(0), 0x01000193);
  state = Math.imul(state ^ (state >>> 15), 0x2c1b3c6d);
  state = Math.imul(state ^ (state >>> 12), 0x297a2d39);
  return ((state ^ (state >>> 15)) >>> 0) % below;
};
const TASKS = {
  "boxes-usual": (number) => ({ goal: `How many lids has box ${number}?`, expected: number % 2 ? 2 : (number * 7919) % 5003 }),
  "boxes-weight": (number) => ({ goal: "How heavy is the box?", expected: number }),
  "boxes-lamp": (number) => ({ goal: `Press the lamp of box ${number}.`, place: 0 }),
  "boxes-row": (number) => ({ goal: `Press button ${number % 40}.`, place: number % 40 }),
};
const task = (draw) => TASKS[draw.template](1000 + some(draw, 9000));
window.furrow = {
  start(template, seed, split) {
    const draw = { template, seed, split };
    keep("draw", draw);
    const main = document.querySelector("main");
    for (let place = 0; place < 40; place++) {
      const button = main.appendChild(document.createElement("button"));
      button.textContent = `Button ${place}`;
      button.addEventListener("click", () => keep("pressed", place));
    }
    return task(draw).goal;
  },
  probe() {
    const { expected = null, place } = task(kept("draw"));
    return { done: false, expected, correct: place !== undefined && kept("pressed") === place };
  },
};
</script>
</body>
</html>
"#;

const SOLVE: &str = r#"if (step > 0) return { action: "answer", content: "done" };
const place = template === "boxes-row" ? Number(goal.match(/\d+/)[0]) : 0;
const box = document.querySelectorAll("button")[place].getBoundingClientRect();
return { action: "click_element", element: "a button", x: box.x + 20, y: box.y + 8 };
"#;

const JOB: &str = r#"
[[tasks.source]]
suite = "toy"
path = "."
splits = ["train"]

[policy]
kind = "scripted"
"#;

fn write_suite(folder: &Path) {
    let line = |name: &str, score: &str| {
        format!(
            r#"{{"task_id":"boxes-{name}","start_url":"/","max_steps":3,"chance_level":0.01,"score":{score}}}"#
        )
    };
    let answer = r#"{"kind":"answer","match":"number","expected_pointer":"/expected"}"#;
    let state = r#"{"kind":"probe","pointer":"/correct"}"#;
    let lines =
        [line("usual", answer), line("weight", answer), line("lamp", state), line("row", state)].join("\n");
    let site = folder.join("sites/boxes");
    fs::create_dir_all(site.join("www")).unwrap();
    fs::write(site.join("www/index.html"), PAGE).unwrap();
    fs::write(site.join("tasks.jsonl"), lines).unwrap();
    fs::write(site.join("solve.js"), SOLVE).unwrap();
    fs::write(folder.join("job.toml"), JOB).unwrap();
}

/// The exit status, and template, verdict and best policy of each template.
fn check(folder: &Path, more: &[&str]) -> (Option<i32>, Vec<(String, String, String)>, Value) {
    let settings = browser_setting();
    let set = settings.iter().flat_map(|setting| ["--set", setting]);
    let arguments: Vec<&str> =
        ["tasks", "check", "job.toml", "--json"].into_iter().chain(more.iter().copied()).chain(set).collect();
    let output = furrow(&arguments, folder);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let rows = report["templates"].as_array().unwrap().iter();
    let rows = rows.map(|row| (text(&row["task"]), text(&row["verdict"]), text(&row["best"]["policy"])));
    (output.status.code(), rows.collect(), report)
}

fn row(task: &str, verdict: &str, policy: &str) -> (String, String, String) {
    (format!("toy/boxes-{task}"), verdict.to_owned(), policy.to_owned())
}

/// `usual` is right for half of the draws by one answer; a page alone says the others.
#[test]
fn templates_that_need_no_look_are_found() {
    let home = tempfile::tempdir().unwrap();
    write_suite(home.path());
    let (status, rows, report) = check(home.path(), &["--blind", "--training", "60"]);
    assert_eq!(status, Some(1), "{report:#}");
    // A table learns the same, and a little more by chance.
    assert_eq!(rows[0].1, "fail", "{report:#}");
    assert!(["constant \"2\"", "table of goals"].contains(&&*rows[0].2), "{report:#}");
    for at in [1, 2, 3] {
        assert_eq!(rows[at].1, "pass", "{report:#}");
    }
    let usual = &report["templates"][0];
    assert_eq!((&usual["made_by"], &usual["training_draws"]), (&"frames".into(), &60.into()));
    assert!(
        usual["chance_level_too_low"].as_str().unwrap().contains("chance level 0.01 is lower than measured")
    );
    assert_eq!(report["templates"][2]["training_draws"], 0, "a state has no answer to learn");
}

/// The second start finds all replays but the last, whose line is torn.
#[test]
fn replays_are_kept_and_not_repeated() {
    let home = tempfile::tempdir().unwrap();
    write_suite(home.path());
    let file = home.path().join("replays.jsonl");
    let more = ["--replays", "--task", "boxes-row", "--resume", "replays.jsonl"];
    let (status, rows, report) = check(home.path(), &more);
    assert_eq!((status, &rows[..]), (Some(0), &[row("row", "pass", "replay")][..]), "{report:#}");
    let kept = fs::read_to_string(&file).unwrap();
    assert_eq!(kept.lines().count(), 30);
    fs::write(&file, &kept[..kept.len() - 9]).unwrap();
    let (_, _, again) = check(home.path(), &more);
    assert_eq!(again["templates"][0]["best"], report["templates"][0]["best"]);
    let now = fs::read_to_string(&file).unwrap();
    let whole = kept.trim_end().rfind('\n').unwrap();
    assert_eq!((now.lines().count(), &now[..whole]), (30, &kept[..whole]));
}
