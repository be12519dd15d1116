//! Trajectories of every offline suite, replayed in another browser process: they are equal to the
//! last step.

use std::fs;
use std::path::Path;

use serde_json::Value;

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
