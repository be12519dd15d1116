//! docs/SITES.md as a new user would follow it: its files are taken from the page and its commands
//! are run; then its trajectories are replayed.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::farm::{browser_setting, free_port, furrow};

fn page() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/SITES.md")).unwrap()
}

/// Writes every file of the page: a line with a path in backquotes, and the fenced block after it.
fn follow(page: &str, folder: &Path) -> Vec<String> {
    let mut files = Vec::new();
    let mut lines = page.lines();
    let mut named = None;
    while let Some(line) = lines.next() {
        let path = line.strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
        if line.starts_with("```") {
            let block: Vec<&str> = lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
            let path: String = named.take().unwrap_or_else(|| panic!("a block without a name: {block:?}"));
            let path_in_folder = folder.join(&path);
            fs::create_dir_all(path_in_folder.parent().unwrap()).unwrap();
            fs::write(path_in_folder, block.join("\n") + "\n").unwrap();
            files.push(path);
        } else if let Some(path) = path.filter(|path| path.contains('.') && !path.contains(' ')) {
            named = Some(path.to_owned());
        }
    }
    files
}

/// Runs a command of the page in the folder; returns status, standard output, error output.
fn run_command(folder: &Path, command: &[&str]) -> (Option<i32>, String, String) {
    let settings = browser_setting();
    let takes_settings = command[0] != "report";
    let set = settings.iter().filter(|_| takes_settings).flat_map(|setting| ["--set", setting]);
    let arguments: Vec<&str> = command.iter().copied().chain(set).collect();
    let output = furrow(&arguments, folder);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[track_caller]
fn run_successfully(folder: &Path, command: &[&str]) -> String {
    let (status, out, stderr) = run_command(folder, command);
    assert_eq!(status, Some(0), "{command:?}\n{out}\n{stderr}");
    out
}

#[track_caller]
fn replayed(folder: &Path, more: &[&str]) -> (Option<i32>, Value) {
    let command = [&["replay", "--all", "--run", "runs/library", "--json"], more].concat();
    let (status, out, stderr) = run_command(folder, &command);
    let report = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}\n{stderr}"));
    (status, report)
}

fn edit(path: PathBuf, from: &str, to: &str) {
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{} does not contain {from:?}", path.display());
    fs::write(path, text.replace(from, to)).unwrap();
}

#[test]
fn the_page_on_sites_can_be_followed_and_its_trajectories_replayed() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path();
    let files = follow(&page(), folder);
    assert_eq!(files.len(), 18, "{files:?}");

    assert!(run_successfully(folder, &["tasks", "check", "job.toml"]).contains("2 tasks, no problems"));
    assert!(
        run_successfully(folder, &["tasks", "check", "job.toml", "--all"])
            .contains("2 of 2 demonstrations proved")
    );
    // The page's job, with an archive.
    run_successfully(folder, &["run", "job.toml", "--set", "env.archive=true"]);
    let report: Value =
        serde_json::from_str(&run_successfully(folder, &["report", "runs/library", "--json"])).unwrap();
    assert_eq!(
        (&report["lines"][0]["scored"], &report["lines"][0]["success"]["value"]),
        (&4.into(), &1.0.into())
    );
    assert_eq!(report["lines"][2]["name"], "library.mine.test");

    let (status, replay_report) = replayed(folder, &[]);
    assert_eq!((status, &replay_report["equal"]), (Some(0), &4.into()), "{replay_report:#}");
    assert!(replay_report["trajectories"].as_array().unwrap().iter().all(|one| one["from"] == "sites"));

    // The site and its files are moved away: everything comes from the archive.
    let site = folder.join("sites");
    let away = folder.join("away");
    fs::rename(&site, &away).unwrap();
    let (status, replay_report) = replayed(folder, &["--archive"]);
    assert_eq!((status, &replay_report["equal"]), (Some(0), &4.into()), "{replay_report:#}");
    assert!(replay_report["trajectories"].as_array().unwrap().iter().all(|one| one["from"] == "archive"));
    fs::rename(&away, &site).unwrap();

    plant_differences(&site);
    check_planted_differences(folder);
    check_incomplete_archive(folder);
}

/// The book's page, the second page of each trajectory, gets another text and another title.
fn plant_differences(site: &Path) {
    edit(site.join("library/www/book/index.html"), "a book", "any book");
    edit(site.join("library/www/app.js"), "</span> pages</p>", "</span> leaves</p>");
    edit(site.join("library/www/app.js"), "120 + below(700)", "121 + below(700)");
}

fn check_planted_differences(folder: &Path) {
    let (status, replay_report) = replayed(folder, &[]);
    assert_eq!((status, &replay_report["equal"]), (Some(1), &0.into()), "{replay_report:#}");
    for one in replay_report["trajectories"].as_array().unwrap() {
        let found = one["differences"].as_array().unwrap();
        let differences: Vec<_> =
            found.iter().map(|found| (&found["step"], found["what"].as_str().unwrap())).collect();
        let first = Value::from(1);
        assert_eq!(differences[..2], [(&first, "title"), (&first, "pixels")], "{one:#}");
        assert!(!differences.iter().any(|(step, _)| **step == 0), "{one:#}");
        // Only the recorded answer, now one page off, gets another reward.
        let reward = found
            .iter()
            .find(|found| found["what"] == "reward")
            .map(|found| (&found["recorded"], &found["replayed"]));
        let was = "1".into();
        let is = "0".into();
        let want = (one["task"] == "mine/library-pages").then_some((&was, &is));
        assert_eq!(reward, want, "{one:#}");
    }
    let tasks: BTreeSet<&str> = replay_report["trajectories"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["task"].as_str().unwrap())
        .collect();
    assert_eq!(tasks, BTreeSet::from(["mine/library-borrow", "mine/library-pages"]));
}

/// An archive without a page: the missing request is named.
fn check_incomplete_archive(folder: &Path) {
    let index = fs::read_dir(folder.join("runs/library/archive")).unwrap().map(|entry| entry.unwrap().path());
    for path in index.filter(|path| path.extension().is_some_and(|extension| extension == "jsonl")) {
        let text = fs::read_to_string(&path).unwrap();
        let kept: Vec<&str> = text.lines().filter(|line| !line.contains("/book/")).collect();
        assert!(kept.len() < text.lines().count(), "{text}");
        fs::write(path, kept.join("\n") + "\n").unwrap();
    }
    let (status, replay_report) = replayed(folder, &["--archive"]);
    assert_eq!(status, Some(1), "{replay_report:#}");
    for one in replay_report["trajectories"].as_array().unwrap() {
        let found = &one["differences"][0];
        let request = found["replayed"].as_str().unwrap();
        assert_eq!(
            (&found["step"], found["what"].as_str()),
            (&0.into(), Some("unrecorded_request")),
            "{one:#}"
        );
        assert!(request.starts_with("GET http://library.mine.test/book/?number="), "{request}");
    }
}

/// What `furrow tasks look --json` prints, and its status.
#[track_caller]
fn look(folder: &Path, job: &str, task: &str) -> (Option<i32>, Value) {
    let (status, out, stderr) =
        run_command(folder, &["tasks", "look", job, task, "--json", "--png", "first.png"]);
    (status, serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}\n{stderr}")))
}

#[test]
fn an_application_is_served_as_it_is() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path();
    follow(&page(), folder);
    let out = run_successfully(folder, &["tasks", "check", "spa/job.toml", "--all"]);
    assert!(out.contains("2 of 2 demonstrations proved; 0 tasks have no demonstration"), "{out}");
    let out = run_successfully(folder, &["tasks", "check", "spa/job.toml", "--task", "shop/*-open"]);
    assert!(out.contains("1 of 1 demonstrations proved"), "{out}");
    let (status, out, stderr) = run_command(folder, &["tasks", "check", "spa/job.toml", "--task", "cap"]);
    assert!(status == Some(2) && stderr.contains("--task: \"cap\" matches no task"), "{out}{stderr}");

    // Without its demonstrations, the tasks are opened.
    fs::remove_file(folder.join("spa/sites/hats/solve.js")).unwrap();
    let out = run_successfully(folder, &["tasks", "check", "spa/job.toml", "--all"]);
    assert!(
        out.contains("0 of 0 demonstrations proved; 2 tasks have no demonstration and were opened"),
        "{out}"
    );
    let (status, page) = look(folder, "spa/job.toml", "hats-open");
    assert_eq!((status, &page["url"]), (Some(0), &"http://hats.shop.test/hats/red".into()), "{page:#}");
    assert_eq!((&page["scorer"], &page["max_steps"]), (&"url".into(), &6.into()), "{page:#}");
    assert_eq!((&page["page_errors"], &page["screenshot"][0]), (&Value::Array(vec![]), &1280.into()));
    assert!(fs::read(folder.join("first.png")).unwrap().starts_with(b"\x89PNG"));

    // Without the fallback, the deep address is no page, and that is said.
    fs::remove_file(folder.join("spa/sites/hats/site.toml")).unwrap();
    let (status, page) = look(folder, "spa/job.toml", "hats-open");
    let problem = page["problem"].as_str().unwrap();
    assert!(status == Some(1) && problem.contains("HTTP status 404"), "{page:#}");
    assert!(page["goal"].as_str().unwrap().starts_with("Open the page of the blue hat"), "{page:#}");

    // A script that fails is named by file and line, beside what follows from it.
    edit(folder.join("sites/library/www/app.js"), "function world(", "books();\nfunction world(");
    let (status, out, stderr) =
        run_command(folder, &["tasks", "check", "job.toml", "--task", "library-pages"]);
    assert_eq!(status, Some(1), "{out}{stderr}");
    let (_, looked, _) = run_command(folder, &["tasks", "look", "job.toml", "library-pages"]);
    assert!(looked.contains("unknown: the page gives it, and did not start its task"), "{looked}");
    for want in [
        "furrow is not defined",
        "mine/library-pages: page error: http://library.mine.test/app.js:17: exception: ReferenceError: books is not defined",
    ] {
        assert!(stderr.contains(want), "{want:?} is missing in {stderr}");
    }
}

/// A server of the page, which ends with its test.
struct PageServer(Child);

impl PageServer {
    /// Runs a command of the page with another port, and waits until the server listens.
    fn start(command: &str, port: (&str, u16), folder: &Path) -> Self {
        let python = std::env::var("FURROW_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let command = command.replace(port.0, &port.1.to_string());
        let arguments: Vec<&str> = command.split_whitespace().collect();
        assert_eq!(arguments[0], "python3", "{command}");
        let mut server = Command::new(python)
            .arg("-u")
            .args(&arguments[1..])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("Serving HTTP"), "{line}");
        Self(server)
    }
}

impl Drop for PageServer {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn a_server_of_ones_own_is_reached_by_the_lines_of_the_page() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path();
    let page = page();
    follow(&page, folder);
    let commands: Vec<&str> =
        page.lines().map(str::trim).filter(|line| line.starts_with("python3 -m http.server")).collect();
    let ports = [("8000", free_port().port()), ("8001", free_port().port())];
    let servers = commands.iter().zip(ports).map(|(command, port)| PageServer::start(command, port, folder));
    let mut servers: Vec<PageServer> = servers.collect();
    assert_eq!(servers.len(), 2, "{commands:?}");
    for (named, free) in ports {
        edit(folder.join("server/job.toml"), named, &free.to_string());
    }

    let (status, start) = look(folder, "server/job.toml", "red-hat");
    assert_eq!((status, &start["title"]), (Some(0), &"Hats".into()), "{start:#}");
    assert_eq!(start["hosts"], Value::from(vec!["hats.test", "api.hats.test"]), "{start:#}");
    assert_eq!(start["page_errors"], Value::Array(vec![]), "the second server answers, too: {start:#}");
    let out = run_successfully(folder, &["tasks", "check", "server/job.toml", "--all"]);
    assert!(
        out.contains("0 of 0 demonstrations proved; 2 tasks have no demonstration and were opened"),
        "{out}"
    );
    run_successfully(folder, &["run", "server/job.toml"]);
    let report: Value =
        serde_json::from_str(&run_successfully(folder, &["report", "runs/server", "--json"])).unwrap();
    assert_eq!(report["lines"][0]["scored"], 4, "{report:#}");

    // A host that is not on the task's list is refused, and the author learns where it is named.
    edit(folder.join("server/tasks.jsonl"), r#""allow_hosts": ["api.hats.test"], "#, "");
    let (_, start) = look(folder, "server/job.toml", "red-hat");
    let errors: Vec<&str> = start["page_errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| error["text"].as_str().unwrap())
        .collect();
    assert!(
        errors.iter().any(|text| text.starts_with("http://api.hats.test/prices.js: refused")),
        "{start:#}"
    );
    assert!(errors.contains(&"ReferenceError: prices is not defined"), "{start:#}");

    // A server that is down is named.
    servers.remove(0);
    let (status, start) = look(folder, "server/job.toml", "cart");
    let silent = format!("hats.test cannot be reached at 127.0.0.1:{}", ports[0].1);
    assert!(status == Some(1) && start["problem"].as_str().unwrap().contains(&silent), "{start:#}");
    // So it is in the trajectories of a run, and the report sums them up.
    let (status, out, stderr) = run_command(folder, &["run", "server/job.toml", "--set", "run.name=down"]);
    assert_eq!(status, Some(1), "{out}{stderr}");
    let report: Value =
        serde_json::from_str(&run_successfully(folder, &["report", "runs/down", "--json"])).unwrap();
    let reasons = report["failure_reasons"].as_array().unwrap();
    let failed = &report["lines"][0]["failed"]["env_crash"];
    assert!(reasons.len() == 1 && &reasons[0]["count"] == failed, "{report:#}");
    assert!(reasons[0]["reason"].as_str().unwrap().contains(&silent), "{report:#}");
    let text = run_successfully(folder, &["report", "runs/down"]);
    assert!(
        text.contains("of them env_crash: the start page did not load") && text.contains(&silent),
        "{text}"
    );
}

#[test]
fn a_job_to_begin_with_is_written_and_proved() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path();
    let init = |arguments: &[&str]| {
        let output = furrow(&[&["init"], arguments].concat(), folder);
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let (status, text) = init(&["own-site"]);
    assert!(status == Some(0) && text.contains("next: furrow check job.toml"), "{text}");
    run_successfully(folder, &["check", "job.toml"]);
    let out = run_successfully(folder, &["tasks", "check", "job.toml", "--all"]);
    assert!(out.contains("1 of 1 demonstrations proved; 0 tasks have no demonstration"), "{out}");

    let (status, text) = init(&["localhost", "other/job.toml"]);
    assert!(status == Some(0) && text.contains("needs your server"), "{text}");
    run_successfully(folder, &["check", "other/job.toml"]);
    // The suites of the repository are not above this folder, and that is said.
    let (status, text) = init(&["eval", "eval.toml"]);
    assert!(status == Some(0) && text.contains("correct tasks.source.path in eval.toml"), "{text}");
    let (status, text) = init(&["demo"]);
    assert!(status == Some(2) && text.contains("job.toml: exists already"), "{text}");
}
