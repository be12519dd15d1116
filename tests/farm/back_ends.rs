//! A task whose back end is changed by the page, reset by a hook, and checked over HTTP and by a
//! command, from the job to the data set and to a second scoring.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use furrow_records::DataSet;
use furrow_rollout::{EndKind, TrajectoryRecord};
use serde_json::Value;

use crate::farm::{browser_setting, furrow};

const PAGE: &str = r##"<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Shop</title>
<link rel="icon" href="data:,"></head><body>
<button id="order">Order</button><button id="forge">Forge</button><p id="state"></p>
<script>
const state = document.querySelector("#state");
document.querySelector("#order").onclick = async () => {
  await fetch("http://api.hats.test/orders", { method: "POST", mode: "no-cors" });
  localStorage.ordered = "yes";
  document.cookie = "ordered=yes";
  state.textContent = "Thank you";
};
document.querySelector("#forge").onclick = () => {
  localStorage.ordered = "yes";
  state.textContent = "Thank you";
};
</script></body></html>"##;

/// The first step clicks the button of the template, the second answers.
const SOLVE: &str = r##"
const name = template === "shop-order" ? "order" : "forge";
if (document.querySelector("#state").textContent !== "") return { action: "answer", content: "done" };
const box = document.querySelector(`#${name}`).getBoundingClientRect();
return { action: "click_element", element: name, x: box.x + box.width / 2, y: box.y + box.height / 2 };
"##;

const TASKS: &str = r##"{"task_id": "shop-order", "goal": "Order a hat, then answer \"done\".", "start_url": "/", "split": "train", "allow_hosts": ["api.hats.test"], "max_steps": 4, "reset": "empty", "score": {"kind": "all", "of": [{"kind": "http", "url": "http://api.hats.test/orders", "pointer": "/count", "equals": 1}, {"kind": "command", "hook": "ordered"}, {"kind": "text", "selector": "#state", "match": "exact", "value": "Thank you"}, {"kind": "storage", "area": "local", "key": "ordered", "match": "exact", "value": "yes"}, {"kind": "script", "expression": "document.querySelectorAll('button').length", "equals": 2}, {"kind": "cookie", "name": "ordered", "match": "exact", "value": "yes"}]}}
{"task_id": "shop-forge", "goal": "Forge an order, then answer \"done\".", "start_url": "/", "split": "train", "allow_hosts": ["api.hats.test"], "max_steps": 4, "reset": "empty", "score": {"kind": "all", "of": [{"kind": "http", "url": "http://api.hats.test/orders", "pointer": "/count", "equals": 1}, {"kind": "text", "selector": "#state", "match": "exact", "value": "Thank you"}]}}
"##;

/// A back end that counts orders in a file.
struct BackEnd {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl BackEnd {
    fn start(orders: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                answer(stream.unwrap(), &orders);
            }
        });
        Self { address, stop, thread: Some(thread) }
    }
}

impl Drop for BackEnd {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        TcpStream::connect(self.address).ok();
        self.thread.take().map(JoinHandle::join);
    }
}

fn answer(stream: TcpStream, orders: &Path) {
    stream.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
            break;
        }
        head.push_str(&line);
    }
    let mut count = fs::read(orders).map_or(0, |bytes| bytes.len());
    if head.starts_with("POST /orders ") {
        count += 1;
        fs::write(orders, "x".repeat(count)).unwrap();
    }
    let body = format!("{{\"count\":{count}}}");
    let mut stream = reader.into_inner();
    let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).ok();
    // The client closes first, so that it gets the whole answer.
    while stream.read(&mut [0]).is_ok_and(|read| read > 0) {}
}

fn write(folder: &Path, address: SocketAddr) {
    let site = folder.join("sites/shop");
    fs::create_dir_all(site.join("www")).unwrap();
    fs::write(site.join("www/index.html"), PAGE).unwrap();
    fs::write(site.join("tasks.jsonl"), TASKS).unwrap();
    fs::write(site.join("solve.js"), SOLVE).unwrap();
    let job = format!(
        r#"
        [run]
        name = "shop"
        output_dir = "runs"
        [tasks]
        group_size = 2
        sampler = "sequential"
        http_hosts = ["api.hats.test"]
        [[tasks.source]]
        suite = "mine"
        path = "."
        splits = ["train"]
        [tasks.hooks.empty]
        argv = ["rm", "-f", "orders"]
        [tasks.hooks.ordered]
        argv = ["test", "-s", "orders"]
        [env]
        sessions_max = 1
        pins = ["api.hats.test={address}"]
        [limits]
        attempts_max = 2
        "#
    );
    fs::write(folder.join("job.toml"), job).unwrap();
}

#[track_caller]
fn run(folder: &Path, command: &[&str], want: i32) -> (String, String) {
    let settings = if command[0] == "records" { vec![] } else { browser_setting() };
    let set = settings.iter().flat_map(|setting| ["--set", setting]);
    let arguments: Vec<&str> = command.iter().copied().chain(set).collect();
    let output = furrow(&arguments, folder);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let texts = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(want), "{command:?}\n{}\n{}", texts.0, texts.1);
    texts
}

fn trajectories(folder: &Path, run: &str) -> Vec<TrajectoryRecord> {
    let data = DataSet::open(&folder.join("runs").join(run)).unwrap();
    data.trajectories().map(Result::unwrap).collect()
}

#[test]
fn what_a_page_stores_in_a_back_end_is_reset_checked_and_scored_again() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path();
    let server = BackEnd::start(folder.join("orders"));
    write(folder, server.address);
    let (_, stderr) = run(folder, &["tasks", "check", "job.toml"], 0);
    assert!(stderr.contains("may forge"), "{stderr}");
    // The demonstration proves the scorer; the one that forges is found out.
    let (out, _) = run(folder, &["tasks", "check", "job.toml", "--task", "mine/shop-order"], 0);
    assert!(out.contains("1 of 1 demonstrations proved"), "{out}");
    let (_, stderr) = run(folder, &["tasks", "check", "job.toml", "--task", "mine/shop-forge"], 1);
    assert!(stderr.contains("with reward 0"), "{stderr}");

    run(folder, &["run", "job.toml", "--set", "env.archive=true"], 0);
    let rows = trajectories(folder, "shop");
    assert_eq!(rows.len(), 4);
    for row in &rows {
        let score = row.score.as_ref().unwrap();
        let want = if row.task.task_id == "shop-order" { 1.0 } else { 0.0 };
        assert_eq!(score.reward, Some(want), "{}: {}", row.task.task_id, score.rationale);
        let findings = row.ending.evidence.as_ref().unwrap().findings_json.as_ref().unwrap();
        assert!(findings.contains("Thank you"), "{findings}");
        let marked = |name: &str| score.components.iter().any(|part| part.name == name);
        let text = if want == 1.0 { "2.text/self_reported" } else { "1.text/self_reported" };
        assert!(marked(text) && !marked("0.http/self_reported"), "{:?}", score.components);
    }
    run(folder, &["records", "verify", "runs/shop"], 0);

    // A replay asks no back end: it scores with what the back end said then.
    drop(server);
    fs::remove_file(folder.join("orders")).ok();
    let (out, _) = run(folder, &["replay", "--all", "--run", "runs/shop", "--archive", "--json"], 0);
    let replayed: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(replayed["equal"], 4, "{replayed:#}");

    // Scored again without page and back end: the same verdicts, from what was found.
    fs::remove_dir_all(folder.join("sites/shop/www")).unwrap();
    let output = furrow(&["score", "runs/shop", "--json"], folder);
    let lines = String::from_utf8(output.stdout).unwrap();
    let summary: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    let counts = ["submitted", "scored", "changed", "unscored"].map(|key| summary[key].as_u64());
    assert_eq!(counts, [Some(4), Some(4), Some(0), Some(0)], "{summary:#}");
    run(folder, &["records", "verify", "runs/shop"], 0);
}

#[test]
fn a_back_end_that_fails_gives_no_reward() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path();
    let server = BackEnd::start(folder.join("orders"));
    write(folder, server.address);
    let job = |name: &str, from: &str, to: &str| {
        let text = fs::read_to_string(folder.join("job.toml")).unwrap();
        assert!(text.contains(from), "{text}");
        let text = text.replace(from, to).replace("name = \"shop\"", &format!("name = \"{name}\""));
        fs::write(folder.join(format!("{name}.toml")), text).unwrap();
    };
    // A reset that fails, and one that hangs with its children.
    job("fails", r#"["rm", "-f", "orders"]"#, r#"["sh", "-c", "echo no database; exit 3"]"#);
    job(
        "hangs",
        r#"argv = ["rm", "-f", "orders"]"#,
        "deadline_millis = 300\nargv = [\"sh\", \"-c\", \"sleep 61240.5 & sleep 61240.5\"]",
    );
    for (name, why) in
        [("fails", "hook empty ended with status 3: no database"), ("hangs", "killed after 300 ms")]
    {
        run_job(folder, name);
        let rows = trajectories(folder, name);
        assert!(!rows.is_empty(), "{name}");
        for row in rows {
            assert_eq!((row.ending.end, row.score.is_none()), (EndKind::EnvCrash, true), "{name}");
            assert!(row.ending.reason.contains(why), "{name}: {}", row.ending.reason);
        }
    }
    let left = crate::farm::processes();
    assert!(!left.iter().any(|process| process.command.contains("61240.5")), "a child is left");

    // A back end that is down is no 0 of the policy.
    job("down", "group_size = 2", "group_size = 1");
    drop(server);
    run_job(folder, "down");
    for row in trajectories(folder, "down") {
        assert_eq!((row.ending.end, row.score.is_none()), (EndKind::ScorerError, true));
        assert!(row.ending.reason.contains("no_answer"), "{}", row.ending.reason);
    }

    // What a task names and the job does not have is refused before anything starts.
    job("unknown", "[tasks.hooks.empty]", "[tasks.hooks.other]");
    let (_, stderr) = run(folder, &["check", "unknown.toml"], 2);
    assert!(stderr.contains("hook \"empty\" is not in the job; its hooks: ordered, other"), "{stderr}");
    job("hosts", r#"http_hosts = ["api.hats.test"]"#, "");
    let (_, stderr) = run(folder, &["check", "hosts.toml"], 2);
    assert!(stderr.contains("does not let tasks ask \"api.hats.test\""), "{stderr}");
    job("pins", "api.hats.test=", "other.hats.test=");
    let (_, stderr) = run(folder, &["check", "pins.toml"], 2);
    assert!(stderr.contains("tasks.http_hosts: \"api.hats.test\" is not pinned"), "{stderr}");
}

/// Runs a job, whatever its status.
fn run_job(folder: &Path, name: &str) {
    let job = format!("{name}.toml");
    let settings = browser_setting();
    let set = settings.iter().flat_map(|setting| ["--set", setting]);
    let arguments: Vec<&str> = ["run", &job].into_iter().chain(set).collect();
    furrow(&arguments, folder);
}
