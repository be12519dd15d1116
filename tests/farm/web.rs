//! The offline web in real Chromium: its templates are solved by their demonstrations and not earned for nothing.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::farm::{browser_setting, furrow};

/// Tried in every run of the tests: of each site one that changes its state, one that answers, or one that does both.
/// `FURROW_WEB_ALL=1` tries every template of every site, twice.
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

/// What `tasks check --all` says, and its exit status.
fn check_all(folder: &Path, job: &str, seeds: &str) -> (Option<i32>, Value, String) {
    let settings = browser_setting();
    let set = settings.iter().flat_map(|setting| ["--set", setting]);
    let arguments: Vec<&str> =
        ["tasks", "check", job, "--all", "--json", "--seeds", seeds].into_iter().chain(set).collect();
    let output = furrow(&arguments, folder);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let json = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    (output.status.code(), json, said)
}

#[test]
fn demonstrations_earn_the_reward_and_idling_and_guessing_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("envs/web");
    let all = std::env::var_os("FURROW_WEB_ALL").is_some_and(|set| set == "1");
    let (include, seeds) = if all { (&[][..], "2") } else { (SAMPLE, "1") };
    let (status, told, said) = check_all(folder.path(), &job(folder.path(), &suite, include), seeds);
    assert_eq!(status, Some(0), "{said}\n{told:#}");
    let proofs = told["proofs"].as_array().unwrap();
    assert!(proofs.len() >= SAMPLE.len(), "{told:#}");
    assert_eq!(told["without_demonstration"], 0);
    for proof in proofs {
        println!(
            "{} with seed {}: {} steps; {}",
            proof["task"], proof["seed"], proof["steps"], proof["goal"]
        );
    }
}

/// A site whose three tasks are solved, earned by doing nothing, and solved by nobody.
fn toy(folder: &Path) {
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
    // Browsers drop to an ordinary user; pages are read by the worker, so the folder itself needs no more than its owner.
    toy(folder.path());
    let (status, told, said) = check_all(folder.path(), &job(folder.path(), folder.path(), &[]), "1");
    assert_eq!((status, &told["proved"]), (Some(1), &Value::from(1)), "{said}\n{told:#}");
    for (task, problem) in [
        ("toy-given", "doing nothing is rewarded"),
        ("toy-guessed", "answering \"blue\" unseen is rewarded"),
        ("toy-lost", "the demonstration ended as answered after 1 steps with reward 0"),
    ] {
        let named = said.lines().any(|line| line.contains(task) && line.contains(problem));
        assert!(named, "{task} is not told of with {problem:?}:\n{said}");
    }
    assert!(!said.contains("toy-good"), "{said}");
}
