//! The offline web in real Chromium: its demonstrations solve its templates, and nothing else earns
//! a reward.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::farm::{browser_setting, furrow};

/// Templates checked in every test run: of each site one that changes its state, one that answers,
/// or one that does both. `FURROW_WEB_ALL=1` checks every template of every site, twice.
const SAMPLE: &[&str] = &[
    "shop-unsteady",
    "shop-review",
    "papers-table",
    "papers-report",
    "recipes-plan",
    "recipes-lightest",
    "dictionary-save",
    "dictionary-count",
    "hotels-cancel",
    "hotels-total",
    "news-letters",
    "news-fact",
    "courses-note",
    "courses-lesson",
    "sports-alerts",
    "sports-stat",
    "flights-week",
    "answers-settings",
    "code-contributor",
    "maps-layer",
    "maker-helpful",
    "search-settings",
    "models-access",
];

/// A job over a suite of sites.
fn job(folder: &Path, suite: &Path, include: &[&str]) -> String {
    let text = format!(
        "[run]\nname = \"run\"\noutput_dir = \".\"\n[env]\nsessions_max = 2\n\
         [[tasks.source]]\nsuite = \"web\"\npath = {suite:?}\ninclude = {include:?}\n",
    );
    let path = folder.join("job.toml");
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// The output of `tasks check --all`, and its exit status.
fn check_all(folder: &Path, job: &str, seeds: &str) -> (Option<i32>, Value, String) {
    let settings = browser_setting();
    let set = settings.iter().flat_map(|setting| ["--set", setting]);
    let arguments: Vec<&str> =
        ["tasks", "check", job, "--all", "--json", "--seeds", seeds].into_iter().chain(set).collect();
    let output = furrow(&arguments, folder);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let json = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"));
    (output.status.code(), json, stderr)
}

#[test]
fn demonstrations_earn_the_reward_and_idling_and_guessing_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("envs/web");
    let all = std::env::var_os("FURROW_WEB_ALL").is_some_and(|set| set == "1");
    let (include, seeds) = if all { (&[][..], "2") } else { (SAMPLE, "1") };
    let (status, printed, stderr) = check_all(folder.path(), &job(folder.path(), &suite, include), seeds);
    assert_eq!(status, Some(0), "{stderr}\n{printed:#}");
    let proofs = printed["proofs"].as_array().unwrap();
    assert!(proofs.len() >= SAMPLE.len(), "{printed:#}");
    assert_eq!(printed["without_demonstration"], 0);
    for proof in proofs {
        println!(
            "{} with seed {}: {} steps; {}",
            proof["task"], proof["seed"], proof["steps"], proof["goal"]
        );
    }
}

/// A site with three tasks: solved, earned by doing nothing, and unsolvable.
fn write_toy_site(folder: &Path) {
    let site = folder.join("sites/toy");
    fs::create_dir_all(site.join("www")).unwrap();
    fs::create_dir_all(folder.join("shared")).unwrap();
    let line = |name: &str, score: &str| {
        format!(r#"{{"task_id":"toy-{name}","start_url":"/","split":"test","max_steps":3,"score":{score}}}"#)
    };
    let lines = [
        line("good", r#"{"kind":"answer","match":"exact","expected_pointer":"/expected"}"#),
        line("given", r#"{"kind":"probe"}"#),
        line("guessed", r#"{"kind":"answer","match":"exact","expected_pointer":"/expected"}"#),
        line("lost", r#"{"kind":"answer","match":"exact","expected_pointer":"/expected"}"#),
    ];
    fs::write(site.join("tasks.jsonl"), lines.join("\n")).unwrap();
    fs::write(
        site.join("solve.js"),
        r#"
        if (template === "toy-lost") return { action: "answer", content: "nowhere" };
        return { action: "answer", content: document.body.textContent.trim() };
    "#,
    )
    .unwrap();
    let page = r#"<!doctype html><body><script>
        let expected;
        window.furrow = {
          start(task, seed) {
            expected = task === "toy-guessed" ? "blue" : `secret ${seed}`;
            document.body.textContent = expected;
            return 'Which word is on the page? Perhaps "blue".';
          },
          probe: () => ({ done: false, correct: true, expected }),
        };
    </script>"#;
    fs::write(site.join("www/index.html"), page).unwrap();
}

#[test]
fn a_task_that_is_earned_for_nothing_or_cannot_be_solved_is_named() {
    let folder = tempfile::tempdir().unwrap();
    // Browsers drop to an ordinary user; the worker reads the pages, so only its owner needs access
    // to the folder.
    write_toy_site(folder.path());
    let (status, printed, stderr) = check_all(folder.path(), &job(folder.path(), folder.path(), &[]), "1");
    assert_eq!((status, &printed["proved"]), (Some(1), &Value::from(1)), "{stderr}\n{printed:#}");
    for (task, problem) in [
        ("toy-given", "doing nothing is rewarded"),
        ("toy-guessed", "answering \"blue\" without a look is rewarded"),
        ("toy-lost", "the demonstration ended as answered after 1 steps with reward 0"),
    ] {
        let named = stderr.lines().any(|line| line.contains(task) && line.contains(problem));
        assert!(named, "{task} is not reported with {problem:?}:\n{stderr}");
    }
    assert!(!stderr.contains("toy-good"), "{stderr}");
}
