//! A hundred declared secrets, typed into a page that spreads them: the page's server gets each of
//! them, and nothing that the farm writes, prints or serves has one.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use bytes::Bytes;
use furrow_records::DataSet;
use serde_json::{Value, json};

use crate::dashboard::ServingProcess;
use crate::farm::{FURROW, browser_setting};
use crate::small_run::text;

const SECRETS: usize = 100;

/// Part of every secret that every encoding of a text keeps in one of the [`forms`].
const MARKER: &str = "Zq9vault";

/// Part of a text that is typed like a secret and is none: whatever finds no secret must find it.
const TRACER: &str = "Zq9tracer";

/// A page that shows, stores, prints, sends and names its files by what is typed into it.
const PAGE: &str = r##"<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Vault</title>
<link rel="icon" href="data:,"></head><body style="margin:0">
<form id="form"><input id="field" autocomplete="off" style="position:absolute;left:10px;top:10px;width:300px;height:30px"></form>
<p id="echo" style="margin-top:80px"></p><p id="state"></p><textarea id="area"></textarea>
<script>
const at = (selector) => document.querySelector(selector);
at("#form").onsubmit = (event) => {
  event.preventDefault();
  const typed = at("#field").value;
  document.title = `Hello ${typed}`;
  at("#echo").textContent = `You typed ${typed}`;
  at("#echo").title = typed;
  at("#area").value = JSON.stringify({ typed });
  localStorage.typed = typed;
  document.cookie = `typed=${encodeURIComponent(typed)}`;
  history.replaceState(null, "", `?typed=${encodeURIComponent(typed)}#${typed}`);
  console.error(typed);
  fetch(`http://vault.test/log?k=${encodeURIComponent(typed)}`).catch(() => {});
  fetch("http://vault.test/login", { method: "POST", body: JSON.stringify({ typed }) })
    .then((answer) => answer.text())
    .then((answer) => { alert(typed); at("#state").textContent = "Thank you"; at("#echo").innerHTML += answer; });
};
</script></body></html>"##;

const SOLVE: &str = r##"
if (document.querySelector("#state").textContent !== "") return { action: "answer", content: "done" };
const content = goal.match(/\{\{\w+\}\}|Zq9\S*/)[0];
return { action: "write_element_abs", element: "the field", content, x: 100, y: 25, press_enter: true };
"##;

/// Characters that addresses, JSON, HTML and file names write in another way.
fn value(index: usize) -> String {
    format!("{MARKER}{index:03}'s \"é&<{}>/\\+%", index * 7919)
}

/// The marker as raw text, percent-encoded, in hexadecimal and in Base64.
fn forms(marker: &str) -> Vec<String> {
    let mut forms = vec![marker.to_owned()];
    forms.push(marker.bytes().map(|byte| format!("%{byte:02x}")).collect());
    forms.push(marker.bytes().map(|byte| format!("{byte:02x}")).collect());
    // At each of its three positions, without the letters that depend on what is beside it.
    for offset in 0..3 {
        let encoded = BASE64_STANDARD_NO_PAD.encode([&[0; 2][..offset], marker.as_bytes()].concat());
        let first = if offset == 0 { 0 } else { offset + 1 };
        forms.push(encoded[first..encoded.len() - 1].to_owned());
    }
    forms.iter().map(|form| form.to_lowercase()).collect()
}

fn found_in(marker: &str, text: &str) -> Option<String> {
    let text = text.to_lowercase();
    let at = forms(marker).into_iter().find_map(|form| text.find(&form))?;
    let around: String =
        text.chars().skip(text[..at].chars().count().saturating_sub(100)).take(300).collect();
    Some(around)
}

#[track_caller]
fn assert_clean(what: &str, text: &str) {
    if let Some(around) = found_in(MARKER, text) {
        panic!("{what} has a secret: … {around} …");
    }
}

/// A server that answers with what it got.
struct VaultServer {
    address: SocketAddr,
    received: Arc<Mutex<BTreeSet<String>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl VaultServer {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let received = Arc::new(Mutex::new(BTreeSet::new()));
        let stopped = stop.clone();
        let kept = received.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let kept = kept.clone();
                std::thread::spawn(move || answer(stream.unwrap(), &kept));
            }
        });
        Self { address, received, stop, thread: Some(thread) }
    }
}

impl Drop for VaultServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        TcpStream::connect(self.address).ok();
        self.thread.take().map(JoinHandle::join);
    }
}

fn answer(stream: TcpStream, received: &Mutex<BTreeSet<String>>) {
    stream.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
            break;
        }
        let line = line.to_lowercase();
        length = line.strip_prefix("content-length:").map_or(length, |text| text.trim().parse().unwrap());
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok();
    if let Ok(sent) = serde_json::from_slice::<Value>(&body) {
        received.lock().unwrap().insert(sent["typed"].as_str().unwrap_or_default().to_owned());
    }
    let mut stream = reader.into_inner();
    let head = format!(
        "HTTP/1.1 200 OK\r\naccess-control-allow-origin: *\r\nx-echo: yes\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(&[head.as_bytes(), &body].concat()).ok();
    while stream.read(&mut [0]).is_ok_and(|read| read > 0) {}
}

fn write(folder: &Path, address: SocketAddr) {
    let site = folder.join("sites/shop");
    fs::create_dir_all(site.join("www")).unwrap();
    fs::write(site.join("www/index.html"), PAGE).unwrap();
    fs::write(site.join("solve.js"), SOLVE).unwrap();
    let task = |name: &str, content: &str, secrets: &[String]| {
        let mut line = json!({
            "task_id": format!("shop-{name}"), "goal": format!("Type {content} and answer \"done\"."),
            "start_url": "/", "split": "train", "allow_hosts": ["vault.test"], "max_steps": 4,
            "score": {"kind": "text", "selector": "#state", "match": "exact", "value": "Thank you"},
        });
        if !secrets.is_empty() {
            line["secrets"] = json!(secrets);
        }
        format!("{line}\n")
    };
    let declared = (0..SECRETS)
        .map(|index| task(&index.to_string(), &format!("{{{{S{index}}}}}"), &[format!("S{index}")]));
    let plain = task("plain", &format!("{TRACER}-7"), &[]);
    fs::write(site.join("tasks.jsonl"), declared.chain([plain]).collect::<String>()).unwrap();
    let secrets: String = (0..SECRETS)
        .map(|index| {
            format!("[env.secrets.S{index}]\nvariable = \"VAULT_{index}\"\nhosts = [\"*.mine.test\"]\n")
        })
        .collect();
    let job = format!(
        "[run]\nname = \"vault\"\noutput_dir = \"runs\"\n[tasks]\ngroup_size = 1\nsampler = \"sequential\"\n\
         [[tasks.source]]\nsuite = \"mine\"\npath = \".\"\nsplits = [\"train\"]\n\
         [env]\nsessions_max = 6\naxtree = true\npins = [\"vault.test={address}\"]\n{secrets}\
         [telemetry]\nlog_level = \"debug\"\n[dashboard]\nlisten = \"127.0.0.1:0\"\n"
    );
    fs::write(folder.join("job.toml"), job).unwrap();
}

fn furrow(folder: &Path, arguments: &[&str], with_values: bool) -> Output {
    let mut command = Command::new(FURROW);
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    if with_values {
        command.envs((0..SECRETS).map(|index| (format!("VAULT_{index}"), value(index))));
    }
    command.output().unwrap()
}

/// Runs a command whose output must not have a secret.
#[track_caller]
fn run(folder: &Path, arguments: &[&str], want: i32) -> String {
    let is_ours = ["run", "check", "tasks", "replay"].contains(&arguments[0]);
    let settings = if is_ours { browser_setting() } else { Vec::new() };
    let set = settings.iter().flat_map(|setting| ["--set", setting]);
    let all: Vec<&str> = arguments.iter().copied().chain(set).collect();
    let output = furrow(folder, &all, arguments[0] != "replay");
    let printed = text(&output);
    assert_eq!(output.status.code(), Some(want), "{arguments:?}\n{printed}");
    assert_clean(&format!("the output of {arguments:?}"), &printed);
    printed
}

/// Every file below a folder.
fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn a_hundred_secrets_reach_their_server_and_no_file_log_page_or_export() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path();
    let server = VaultServer::start();
    write(folder, server.address);

    // Without the values nothing starts, and every variable is named.
    for command in [["check", "job.toml"], ["run", "job.toml"]] {
        let refused = furrow(folder, &command, false);
        let printed = text(&refused);
        assert_eq!(refused.status.code(), Some(2), "{printed}");
        assert!(printed.contains("env.secrets.S0.variable: VAULT_0 is not set in this process"), "{printed}");
    }
    assert!(!folder.join("runs").exists(), "a run that cannot start leaves nothing");
    assert!(run(folder, &["check", "job.toml"], 0).contains("the variables of 100 secrets are set"));
    let proved = run(folder, &["tasks", "check", "job.toml", "--task", "mine/shop-7"], 0);
    assert!(proved.contains("1 of 1 demonstrations proved"), "{proved}");
    run(folder, &["tasks", "look", "job.toml", "shop-7"], 0);
    server.received.lock().unwrap().clear();

    run(folder, &["run", "job.toml", "--set", "env.archive=true"], 0);
    // The positive control: the values themselves arrived, each once, and nothing else did.
    let want: BTreeSet<String> = (0..SECRETS).map(value).chain([format!("{TRACER}-7")]).collect();
    assert_eq!(*server.received.lock().unwrap(), want);
    let ids = check_records(folder);
    check_files(folder);
    run(folder, &["records", "verify", "runs/vault"], 0);
    run(folder, &["report", "runs/vault", "--json"], 0);
    check_served(folder, &ids);

    // A replay from the archive needs no value: requests are found by the placeholders in them.
    drop(server);
    let replayed = furrow(folder, &["replay", &ids[0], "--run", "runs/vault", "--archive", "--json"], false);
    let report: Value =
        serde_json::from_slice(&replayed.stdout).unwrap_or_else(|_| panic!("{}", text(&replayed)));
    let differences = report["trajectories"][0]["differences"].as_array().unwrap();
    // Dots are as many as the placeholder has letters.
    let others: Vec<&Value> = differences.iter().filter(|one| one["what"] != "pixels").collect();
    assert!(others.is_empty(), "{report:#}");
}

/// The ids of all trajectories, the one of the tracer last.
fn check_records(folder: &Path) -> Vec<String> {
    let data = DataSet::open(&folder.join("runs/vault")).unwrap();
    let mut ids = Vec::new();
    let mut tracers = 0;
    for row in data.trajectories() {
        let mut row = row.unwrap();
        let score = row.score.as_ref().unwrap();
        assert_eq!(score.reward, Some(1.0), "{}: {}", row.task.task_id, score.rationale);
        let id = row.ancestry.trajectory_id.to_string();
        match row.task.task_id == "shop-plain" {
            true => ids.push(id),
            false => ids.insert(0, id),
        }
        row.ending.evidence.as_mut().unwrap().screenshot = None;
        let all = format!("{row:?}");
        assert_clean("a trajectory", &all);
        tracers += usize::from(found_in(TRACER, &all).is_some());
    }
    assert_eq!((ids.len(), tracers), (SECRETS + 1, 1));
    let mut steps = (0, 0, 0);
    for step in data.steps() {
        let mut step = step.unwrap();
        step.record.observation.screenshot.bytes = Bytes::new();
        let all = format!("{step:?}");
        assert_clean("a step", &all);
        steps.0 += 1;
        steps.1 += usize::from(all.contains("Hello {{S"));
        steps.2 += usize::from(found_in(TRACER, &all).is_some());
    }
    assert!(steps.0 >= 2 * (SECRETS + 1) && steps.1 == SECRETS && steps.2 >= 2, "{steps:?}");
    ids
}

fn check_files(folder: &Path) {
    let mut with_tracer = BTreeSet::new();
    for path in files(folder) {
        let relative = path.strip_prefix(folder).unwrap().display().to_string();
        let content = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
        assert_clean(&relative, &content);
        assert_clean("the name of a file", &relative);
        if found_in(TRACER, &content).is_some() && relative.starts_with("runs/") {
            with_tracer.insert(relative.split('/').nth(2).unwrap_or_default().to_owned());
        }
    }
    assert!(with_tracer.contains("archive"), "the search finds what is recorded: {with_tracer:?}");
}

fn check_served(folder: &Path, ids: &[String]) {
    let view = ServingProcess::start(&["view", "runs/vault", "--listen", "127.0.0.1:0"], folder);
    let mut tracers = 0;
    let mut ask = |path: &str| {
        let (status, body) = view.ask("GET", path);
        assert_eq!(status, 200, "{path}");
        let body = String::from_utf8_lossy(&body).into_owned();
        assert_clean(path, &body);
        tracers += usize::from(found_in(TRACER, &body).is_some());
    };
    for path in ["/api/overview", "/api/job", "/api/trajectories?limit=200"] {
        ask(path);
    }
    for id in ids {
        ask(&format!("/api/trajectory/{id}"));
        ask(&format!("/api/trajectory/{id}/row"));
    }
    assert!(tracers >= 1);
    drop(view);
    for id in [&ids[0], &ids[SECRETS]] {
        run(folder, &["records", "export", id, "--run", "runs/vault", "--html", "page.html"], 0);
        let page = fs::read_to_string(folder.join("page.html")).unwrap();
        assert_clean("an export", &page);
        assert_eq!(found_in(TRACER, &page).is_some(), *id == ids[SECRETS]);
        fs::remove_file(folder.join("page.html")).unwrap();
    }
}
