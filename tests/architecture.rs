//! The crate map: a new dependency between crates is added here first, then in a Cargo.toml.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

/// Each crate and the crates it may use. Only services and what is above them use `telemetry`;
/// `testkit` is for tests and may be used by any.
const MAP: &[(&str, &[&str])] = &[
    // foundation layer: no network, no clock
    ("rollout", &[]),
    ("model", &[]),
    // format layer: one external format each
    ("storage", &[]),
    ("telemetry", &["rollout", "storage"]),
    ("wire", &["rollout"]),
    ("tasks", &["rollout"]),
    ("records", &["rollout"]),
    ("openai", &["rollout"]),
    ("cuda", &["model"]),
    // answers from a format
    ("analysis", &["rollout", "records"]),
    // services never import each other
    ("policy", &["rollout", "wire", "model", "cuda", "openai", "telemetry"]),
    ("env", &["rollout", "wire", "storage", "telemetry"]),
    ("coordinator", &["rollout", "wire", "tasks", "records", "openai", "storage", "telemetry"]),
    ("dashboard", &["rollout", "wire", "records", "analysis", "telemetry"]),
    // above the services
    ("simulator", &["rollout", "model", "cuda", "policy", "telemetry"]),
    ("testkit", &["rollout"]),
];

/// Dependencies that must stay out of the foundation layer, and of crates that never need them.
const FORBIDDEN: &[(&str, &[&str])] = &[
    ("rollout", &["tokio", "tonic", "prost", "chromiumoxide", "arrow", "parquet", "serde"]),
    ("model", &["tokio", "tonic", "prost", "chromiumoxide", "arrow", "parquet"]),
    ("cuda", &["tokio", "tonic", "prost", "chromiumoxide", "arrow", "parquet"]),
    ("tasks", &["tokio", "tonic", "chromiumoxide", "arrow", "ureq"]),
    ("openai", &["tonic", "prost", "chromiumoxide", "arrow", "parquet"]),
    ("records", &["tonic", "prost", "chromiumoxide"]),
    ("analysis", &["tokio", "tonic", "prost", "chromiumoxide", "parquet", "object_store"]),
    ("policy", &["chromiumoxide", "arrow", "parquet", "rusqlite"]),
    ("simulator", &["tokio", "tonic", "prost", "chromiumoxide", "arrow", "parquet"]),
    ("env", &["arrow", "parquet", "rusqlite"]),
    ("coordinator", &["chromiumoxide"]),
    ("dashboard", &["chromiumoxide", "arrow", "parquet", "rusqlite", "tonic"]),
];

/// Names in `[dependencies]` and `[build-dependencies]` of a crate.
fn dependencies_of(name: &str) -> Vec<String> {
    let manifest = fs::read_to_string(Path::new("crates").join(name).join("Cargo.toml")).unwrap();
    let mut section = "";
    let mut names = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line;
        } else if matches!(section, "[dependencies]" | "[build-dependencies]") && !line.trim().is_empty() {
            names.push(line.split(['.', ' ', '=']).next().unwrap().to_owned());
        }
    }
    names
}

#[test]
fn every_crate_uses_only_the_dependencies_of_the_map() {
    let mut found: Vec<String> = fs::read_dir("crates")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "furrow")
        .collect();
    found.sort();
    let mut mapped: Vec<&str> = MAP.iter().map(|(name, _)| *name).collect();
    mapped.sort_unstable();
    assert_eq!(found, mapped, "crates/ and the map differ");

    for (name, may_use) in MAP {
        for dependency in dependencies_of(name) {
            let Some(used) = dependency.strip_prefix("furrow-") else { continue };
            assert!(may_use.contains(&used), "crates/{name} uses {used}: add that edge to the map first");
        }
    }
}

#[test]
fn crates_keep_out_forbidden_dependencies() {
    for (name, strangers) in FORBIDDEN {
        for dependency in dependencies_of(name) {
            assert!(
                !strangers.contains(&dependency.as_str()),
                "crates/{name} must not depend on {dependency}"
            );
        }
    }
}

#[test]
fn each_file_begins_by_saying_what_it_is_for() {
    let mut silent = Vec::new();
    for root in ["crates", "tests"] {
        visit(Path::new(root), &mut |path| {
            if path.extension().is_some_and(|ending| ending == "rs") {
                let text = fs::read_to_string(path).unwrap();
                if !text.starts_with("//! ") {
                    silent.push(path.display().to_string());
                }
            }
        });
    }
    assert!(silent.is_empty(), "no `//!` sentence on line 1: {silent:?}");
}

fn visit(folder: &Path, each: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { visit(&path, each) } else { each(&path) }
    }
}
