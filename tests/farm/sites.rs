//! docs/SITES.md as a new user would follow it: its files are taken from the page and its commands
//! are run; then its trajectories are replayed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::farm::{browser_setting, furrow};

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
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/SITES.md")).unwrap();
    let files = follow(&page, folder);
    assert_eq!(files.len(), 7, "{files:?}");

    assert!(run_successfully(folder, &["tasks", "check", "job.toml"]).contains("2 tasks, no problems"));
    assert!(run_successfully(folder, &["tasks", "check", "job.toml", "--all"]).contains("2 of 2 proved"));
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
