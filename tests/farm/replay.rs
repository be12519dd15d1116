//! Trajectories of every offline suite, replayed in another browser process: they are equal to the
//! last step.

use std::fs;
use std::path::Path;

use furrow_testkit::chat_server::{FakeChatServer, ServerAction, completion};
use serde_json::{Value, json};

use crate::farm::{browser_setting, furrow};

/// From each suite some tasks that click, type, drag, change tabs, scroll, answer and run on
/// virtual time.
const JOB: &str = r#"
[run]
name = "run"
output_dir = "."
[tasks]
group_size = 1
sampler = "sequential"
seed = 7
[[tasks.source]]
suite = "starter"
path = "{root}/envs/starter"
include = ["form", "drag", "tabs", "scroll", "read-and-answer"]
[[tasks.source]]
suite = "miniwob"
path = "{root}/envs/miniwob"
pages = "{root}/.cache/miniwob-1.1.0-py3-none-any.whl"
include = ["choose-list", "click-dialog", "enter-text", "use-autocomplete", "click-checkboxes-large"]
[[tasks.source]]
suite = "web"
path = "{root}/envs/web"
include = ["shop-review", "dictionary-save", "maps-layer"]
[policy]
kind = "scripted"
[policy.grammar]
extra = ["drag", "select_tab", "press_key", "write"]
[env]
sessions_max = 3
"#;

#[test]
fn trajectories_of_every_suite_are_replayed_to_the_last_step() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path();
    fs::write(folder.join("job.toml"), JOB.replace("{root}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let settings = browser_setting();
    let with_settings = |command: &[&str]| {
        let set = settings.iter().flat_map(|setting| ["--set", setting]);
        let arguments: Vec<&str> = command.iter().copied().chain(set).collect();
        furrow(&arguments, folder)
    };
    let ran = with_settings(&["run", "job.toml"]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let output = with_settings(&["replay", "--all", "--run", "run", "--json"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let results: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"));
    assert_eq!((output.status.code(), &results["equal"]), (Some(0), &13.into()), "{results:#}");
    for one in results["trajectories"].as_array().unwrap() {
        assert_eq!((&one["reward"], &one["same_browser"]), (&1.0.into(), &true.into()), "{one:#}");
        assert!(one["steps"].as_u64().unwrap() > 0, "{one:#}");
    }

    // What cannot be replayed is reported before anything starts.
    for (command, want) in [
        (&["replay", "unknown", "--run", "run"][..], "unknown: run holds no trajectory with this id"),
        (&["replay", "a/b", "--run", "run"], "is not a valid trajectory id"),
        (
            &["replay", "run-g000000-s0-a0", "--run", "run", "--archive"],
            "holds no archive of this trajectory",
        ),
        (&["replay", "--all", "--run", "run", "--share", "2"], "--share: 2; use 0 to 1"),
        (&["replay", "--all", "--run", "none"], "none"),
    ] {
        let output = with_settings(command);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains(want), "{command:?}: {stderr}");
    }
    assert!(Path::new(&folder.join("run/data/manifest")).is_dir());
}

/// A button puts a value into each place that a scorer of the final page looks at.
const STORING_PAGE: &str = r#"<!doctype html><meta charset=utf-8><title>order</title>
<button id=order>Order</button><p id=state></p>
<script>
order.onclick = () => {
  localStorage.kept = sessionStorage.kept = 'VALUE';
  document.cookie = 'kept=VALUE';
  state.textContent = 'VALUE';
};
window.furrow = { start: () => 'Order, then answer "done".', probe: () => ({}) };
</script>"#;

const STORING_SOLVE: &str = r##"
if (document.querySelector("#state").textContent !== "") return { action: "answer", content: "done" };
const box = document.querySelector("#order").getBoundingClientRect();
return { action: "click_element", element: "Order", x: box.x + box.width / 2, y: box.y + box.height / 2 };
"##;

/// One task for each scorer of the final page, so that a kind that a replay scores otherwise is
/// named.
fn write_scored_suite(folder: &Path) {
    let wanted = json!({ "match": "exact", "value": "yes" });
    let scorers = [
        json!({ "kind": "text", "selector": "#state" }),
        json!({ "kind": "storage", "area": "local", "key": "kept" }),
        json!({ "kind": "storage", "area": "session", "key": "kept" }),
        json!({ "kind": "cookie", "name": "kept" }),
        json!({ "kind": "script", "expression": "document.querySelector('#state').textContent" }),
    ];
    let tasks = scorers.into_iter().enumerate().map(|(index, mut scorer)| {
        scorer.as_object_mut().unwrap().extend(wanted.as_object().unwrap().clone());
        let id = format!("{index}-{}", scorer["kind"].as_str().unwrap());
        json!({ "task_id": id, "start_url": "/order.html", "max_steps": 4, "score": scorer }).to_string()
    });
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("tasks.jsonl"), tasks.collect::<Vec<_>>().join("\n")).unwrap();
    fs::write(folder.join("order.solve.js"), STORING_SOLVE).unwrap();
    fs::write(folder.join("order.html"), STORING_PAGE.replace("VALUE", "yes")).unwrap();
}

#[test]
fn every_scorer_of_the_final_page_scores_a_replay_as_the_trajectory() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path();
    write_scored_suite(&folder.join("suite"));
    let job = "[run]\nname = \"run\"\noutput_dir = \".\"\n[tasks]\ngroup_size = 1\nsampler = \"sequential\"\n\
               [[tasks.source]]\nsuite = \"scored\"\npath = \"suite\"\n[policy]\nkind = \"scripted\"\n";
    fs::write(folder.join("job.toml"), job).unwrap();
    let run = |command: &[&str]| with_browser(command, folder);
    let (status, _, stderr) = run(&["run", "job.toml"]);
    assert_eq!(status, Some(0), "{stderr}");
    let replayed = || {
        let (status, text, stderr) = run(&["replay", "--all", "--run", "run", "--json"]);
        let results: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {stderr}"));
        (status, results)
    };
    let (status, results) = replayed();
    assert_eq!((status, &results["equal"]), (Some(0), &5.into()), "{results:#}");
    let all = results["trajectories"].as_array().unwrap();
    assert!(all.iter().all(|one| one["reward"] == 1.0), "{results:#}");

    // The page keeps another value: each scorer finds it in the replay.
    let page = folder.join("suite/order.html");
    fs::write(&page, STORING_PAGE.replace("VALUE", "no")).unwrap();
    let (status, results) = replayed();
    assert_eq!((status, &results["equal"]), (Some(1), &0.into()), "{results:#}");
    for one in results["trajectories"].as_array().unwrap() {
        let of_reward = |found: &&Value| found["what"] == "reward";
        let found = one["differences"].as_array().unwrap().iter().find(of_reward);
        let rewards = found.map(|found| (found["recorded"].as_str(), found["replayed"].as_str()));
        assert_eq!(rewards, Some((Some("1"), Some("0"))), "{one:#}");
    }
}

/// Writes down what keys and buttons do to it, takes a file and gives its text back as a download.
const INPUT_PAGE: &str = r#"<!doctype html><meta charset=utf-8><title>input</title>
<style>body { margin: 0; user-select: none; font: 10px monospace } input, a { position: absolute; left: 0; width: 300px; height: 40px }</style>
<input type=file id=f style="top: 0"><a id=out style="top: 50px" download="out.txt">out</a><pre id=log style="padding-top: 260px"></pre>
<script>
const notes = new Set();
const note = (what, event) => {
  notes.add(what + (event ? [...(event.shiftKey ? 's' : ''), ...(event.ctrlKey ? 'c' : ''), ...(event.altKey ? 'a' : '')].join('') : ''));
  log.textContent = [...notes].join(' ');
};
onkeydown = (e) => note('+' + e.key + (e.repeat ? '*' : ''));
onkeyup = (e) => note('-' + e.key);
onmousedown = (e) => note('down ', e);
onmouseup = (e) => note('up ', e);
onclick = (e) => note('click ', e);
onwheel = (e) => note('wheel ', e);
onmousemove = (e) => { if (e.buttons) note('drag ', e); else if (e.ctrlKey) note('move ', e) };
f.onchange = async () => {
  const text = await f.files[0].text();
  out.href = URL.createObjectURL(new Blob([text.toUpperCase()]));
  note('file ' + text);
};
window.furrow = { start: () => 'Use everything.', probe: () => ({ log: [...notes] }) };
</script>"#;

/// Replies of a policy, and what the page notes of them.
struct InputCase {
    grammar: &'static str,
    replies: Vec<Value>,
    noted: &'static [&'static str],
}

fn anthropic_replies() -> InputCase {
    let block = |input: Value| json!({ "type": "tool_use", "name": "computer", "input": input });
    let replies = vec![
        block(json!({ "action": "left_click", "coordinate": [100, 150], "text": "shift" })),
        block(
            json!({ "action": "scroll", "coordinate": [120, 150], "scroll_direction": "down", "scroll_amount": 1, "text": "alt" }),
        ),
        json!([
            block(json!({ "action": "mouse_move", "coordinate": [100, 180] })),
            block(json!({ "action": "left_mouse_down" })),
        ]),
        json!([
            block(json!({ "action": "mouse_move", "coordinate": [150, 180] })),
            block(json!({ "action": "left_mouse_up" })),
        ]),
        block(json!({ "action": "hold_key", "text": "w", "duration": 0.6 })),
        // A key that is no modifier is pressed before the click and released after it.
        block(json!({ "action": "left_click", "coordinate": [100, 150], "text": "q" })),
        block(json!({ "action": "left_click", "coordinate": [50, 20] })),
        json!({ "type": "tool_use", "name": "upload", "input": { "files": ["cv.txt"] } }),
        block(json!({ "action": "left_click", "coordinate": [50, 70] })),
        json!({ "type": "text", "text": "done" }),
    ];
    let noted = &[
        "+Shift",
        "down s",
        "up s",
        "click s",
        "-Shift",
        "+Alt",
        "wheel a",
        "-Alt",
        "down ",
        "drag ",
        "up ",
        "click ",
        "+w",
        "+w*",
        "-w",
        "+q",
        "-q",
        "file resume",
    ];
    InputCase { grammar: "anthropic_computer", replies, noted }
}

fn openai_replies() -> InputCase {
    let call = |action: Value| json!({ "type": "computer_call", "action": action });
    let point = |x: u32, y: u32| json!({ "x": x, "y": y });
    let upload = json!({ "files": ["cv.txt"] }).to_string();
    let replies = vec![
        call(json!({ "type": "move", "x": 120, "y": 150, "keys": ["CTRL"] })),
        call(json!({ "type": "drag", "path": [point(100, 150), point(200, 200)], "keys": ["SHIFT"] })),
        // A longer path is a press, moves and a release.
        call(json!({ "type": "drag", "path": [point(100, 150), point(150, 170), point(200, 200)] })),
        call(json!({ "type": "click", "x": 50, "y": 20 })),
        json!({ "type": "function_call", "name": "upload", "arguments": upload }),
        call(json!({ "type": "click", "x": 50, "y": 70 })),
        json!({ "type": "message", "content": [{ "type": "output_text", "text": "done" }] }),
    ];
    let noted = &[
        "+Control",
        "move c",
        "-Control",
        "+Shift",
        "down s",
        "drag s",
        "up s",
        "click s",
        "-Shift",
        "down ",
        "drag ",
        "up ",
        "click ",
        "file resume",
    ];
    InputCase { grammar: "openai_computer", replies, noted }
}

fn holo_step_replies() -> InputCase {
    let call = |call: Value| json!({ "note": null, "thought": "", "tool_call": call });
    let click = |x, y| call(json!({ "tool_name": "click_desktop", "element": "", "x": x, "y": y }));
    let replies = vec![
        call(json!({ "tool_name": "key_down_desktop", "key": "shift" })),
        click(200, 300),
        call(json!({ "tool_name": "key_up_desktop", "key": "shift" })),
        click(98, 39),
        call(json!({ "tool_name": "upload", "files": ["cv.txt"] })),
        click(98, 137),
        call(json!({ "tool_name": "answer", "content": "done" })),
    ];
    let noted = &["+Shift", "down s", "up s", "click s", "-Shift", "down ", "up ", "click ", "file resume"];
    InputCase { grammar: "holo_step", replies, noted }
}

/// A suite whose task wants all of that, and a download of the uploaded text.
fn write_input_suite(folder: &Path, noted: &[&str], contains: &str) {
    let task = json!({
        "task_id": "input", "start_url": "/input.html", "files": ["cv.txt"], "downloads": true,
        "score": { "kind": "all", "of": [
            { "kind": "probe", "pointer": "/log", "equals": noted },
            { "kind": "download", "name": "out.txt", "contains": contains },
        ] },
    });
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("tasks.jsonl"), task.to_string()).unwrap();
    fs::write(folder.join("input.html"), INPUT_PAGE).unwrap();
    fs::write(folder.join("cv.txt"), "resume").unwrap();
}

/// Runs a command with this machine's browser. Returns its status, output and messages.
fn with_browser(command: &[&str], folder: &Path) -> (Option<i32>, String, String) {
    let settings = browser_setting();
    let set = settings.iter().flat_map(|setting| ["--set", setting]);
    let output = furrow(&command.iter().copied().chain(set).collect::<Vec<&str>>(), folder);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), text, stderr)
}

/// Whether a difference is a download that a busy machine began after the page had settled, so that
/// the next step reports it.
fn is_late_download(difference: &Value) -> bool {
    let is_known =
        |side: &Value| side.as_str().is_some_and(|text| text == "ok" || text.starts_with("downloaded"));
    difference["what"] == "outcome" && is_known(&difference["recorded"]) && is_known(&difference["replayed"])
}

fn check_input_case(case: &InputCase) {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path();
    write_input_suite(&folder.join("suite"), case.noted, "RESUME");
    let bodies = case.replies.iter().map(|reply| ServerAction::Body(completion(&reply.to_string(), None)));
    let server = FakeChatServer::start(bodies.collect()).unwrap();
    let job = format!(
        "[run]\nname = \"run\"\noutput_dir = \".\"\n[tasks]\ngroup_size = 1\ngroups = 1\n\
         [[tasks.source]]\nsuite = \"input\"\npath = \"suite\"\n\
         [policy]\nkind = \"openai\"\n[policy.grammar]\nname = {:?}\nextra = [\"upload\"]\n\
         [policy.context]\nkeep = \"last_image\"\n\
         [policy.remote]\nendpoint = {:?}\nmodel = \"actor\"\n[env]\nsessions_max = 1\n",
        case.grammar,
        server.endpoint(),
    );
    fs::write(folder.join("job.toml"), job).unwrap();
    let run = |command: &[&str]| with_browser(command, folder);
    let (status, _, stderr) = run(&["run", "job.toml"]);
    assert_eq!(status, Some(0), "{stderr}");
    let (status, text, stderr) = run(&["replay", "--all", "--run", "run", "--json"]);
    let results: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {stderr}"));
    let one = &results["trajectories"][0];
    let differences = one["differences"].as_array().unwrap();
    assert_eq!(status, Some(i32::from(!differences.is_empty())), "{results:#}");
    assert!(differences.iter().all(is_late_download), "{results:#}");
    assert_eq!((&one["reward"], &one["steps"]), (&1.0.into(), &case.replies.len().into()), "{one:#}");

    // The stored evidence is scored again without a browser, by the same rule and by another one.
    let summary = |arguments: &[&str]| -> Value {
        let output = furrow(&[&["score", "run", "--dry-run", "--json"], arguments].concat(), folder);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        serde_json::from_str(text.lines().last().unwrap()).unwrap()
    };
    let same = summary(&[]);
    assert_eq!((&same["scored"], &same["changed"]), (&1.into(), &0.into()), "{same:#}");
    write_input_suite(&folder.join("suite"), case.noted, "something else");
    let other = summary(&["--job", "job.toml"]);
    assert_eq!((&other["scored"], &other["changed"]), (&1.into(), &1.into()), "{other:#}");
}

#[test]
fn keys_buttons_uploads_and_downloads_are_replayed_and_scored_again() {
    check_input_case(&anthropic_replies());
    check_input_case(&openai_replies());
    check_input_case(&holo_step_replies());
}
