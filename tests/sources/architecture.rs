//! The crate map: a new dependency between crates is added here first, then in a Cargo.toml. Below
//! the crates, no files use each other in a circle.

mod circles;
mod modules;

use std::fs;
use std::path::{Path, PathBuf};

use circles::{Circle, find_circles};
use modules::CrateModules;

/// Each crate and the crates it may use. `furrow`, the root package, may use any but `bench`. Only
/// services and what is above them use `telemetry`. `testkit` and `faulty-disk` are for tests and
/// may be used by any.
const MAP: &[(&str, &[&str])] = &[
    // foundation layer: no network, no clock
    ("rollout", &[]),
    ("model", &[]),
    // format layer: one external format each
    ("storage", &[]),
    ("http", &[]),
    ("identity", &["rollout", "storage"]),
    ("telemetry", &["rollout", "storage"]),
    ("wire", &["rollout", "identity"]),
    ("tasks", &["rollout"]),
    ("records", &["rollout"]),
    ("openai", &["rollout"]),
    ("cuda", &["model"]),
    // answers from a format
    ("analysis", &["rollout", "records"]),
    // services never import each other
    ("policy", &["rollout", "wire", "http", "model", "cuda", "openai", "telemetry"]),
    ("env", &["rollout", "wire", "storage", "telemetry"]),
    ("coordinator", &["rollout", "identity", "wire", "tasks", "records", "openai", "storage", "telemetry"]),
    ("dashboard", &["rollout", "identity", "wire", "http", "records", "analysis", "telemetry"]),
    // above the services
    ("simulator", &["rollout", "model", "cuda", "policy", "telemetry"]),
    ("testkit", &["rollout"]),
    ("faulty-disk", &[]),
    // a program that starts and measures the others
    (
        "bench",
        &[
            "furrow",
            "rollout",
            "identity",
            "model",
            "telemetry",
            "wire",
            "tasks",
            "records",
            "cuda",
            "policy",
            "simulator",
            "env",
            "dashboard",
        ],
    ),
    // and one that reads whatever comes from outside
    (
        "fuzz",
        &["furrow", "rollout", "model", "wire", "tasks", "records", "openai", "policy", "env", "coordinator"],
    ),
];

/// Dependencies that must stay out of the foundation layer, and of crates that never need them.
const FORBIDDEN: &[(&str, &[&str])] = &[
    ("rollout", &["tokio", "tonic", "prost", "chromiumoxide", "arrow", "parquet", "serde"]),
    ("model", &["tokio", "tonic", "prost", "chromiumoxide", "arrow", "parquet"]),
    ("cuda", &["tokio", "tonic", "prost", "chromiumoxide", "arrow", "parquet"]),
    ("http", &["tonic", "prost", "chromiumoxide", "arrow", "parquet"]),
    ("identity", &["tokio", "tonic", "prost", "chromiumoxide", "arrow", "parquet"]),
    ("tasks", &["tokio", "tonic", "chromiumoxide", "arrow", "ureq"]),
    ("openai", &["tonic", "prost", "chromiumoxide", "arrow", "parquet"]),
    ("records", &["tonic", "prost", "chromiumoxide"]),
    ("analysis", &["tokio", "tonic", "prost", "chromiumoxide", "parquet", "object_store"]),
    // Its server is that of `http`.
    ("policy", &["chromiumoxide", "arrow", "parquet", "rusqlite", "hyper", "hyper-util"]),
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
            let Some(used) = own_crate(&dependency) else { continue };
            assert!(may_use.contains(&used), "crates/{name} uses {used}: add that edge to the map first");
        }
    }
}

/// The name in the map of a dependency that is one of these crates.
fn own_crate(dependency: &str) -> Option<&str> {
    if dependency == "furrow" { Some(dependency) } else { dependency.strip_prefix("furrow-") }
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
fn no_files_of_a_crate_use_each_other_in_a_circle() {
    let read = |file: &Path| fs::read_to_string(file).ok();
    let found: Vec<Circle> =
        crate_roots().iter().flat_map(|root| find_circles(&CrateModules::read(root, &read))).collect();
    let problems: Vec<String> = found.iter().map(describe).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn describe(Circle { files, uses }: &Circle) -> String {
    format!("{} files use each other in a circle:\n  {}", files.len(), uses.join("\n  "))
}

/// The root files of every crate: a library, a program, or both.
fn crate_roots() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        fs::read_dir("crates").unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    let roots = folders
        .iter()
        .flat_map(|folder| ["lib.rs", "main.rs", "src/lib.rs", "src/main.rs"].map(|root| folder.join(root)));
    roots.filter(|root| root.exists()).collect()
}

/// Rows that the table "Where things are" may have: beyond it, better names are due.
const ROWS_MAX: usize = 40;

#[test]
fn the_architecture_page_is_short_and_names_files_that_exist() {
    let text = fs::read_to_string("docs/ARCHITECTURE.md").unwrap();
    let rows: Vec<&str> = text
        .lines()
        .skip_while(|line| !line.starts_with("| concern "))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .collect();
    assert!((1..=ROWS_MAX).contains(&rows.len()), "{} rows, at most {ROWS_MAX}", rows.len());

    let quoted = rows.iter().flat_map(|row| row.split('`').skip(1).step_by(2));
    let gone: Vec<&str> = quoted.filter(|name| name.ends_with(".rs") && !is_file_of_a_crate(name)).collect();
    assert!(gone.is_empty(), "docs/ARCHITECTURE.md names files that do not exist: {gone:?}");
}

/// Whether `CRATE/PATH` is a file of a crate; names of the page leave `crates/` and `src/` out.
fn is_file_of_a_crate(name: &str) -> bool {
    let Some((folder, path)) = name.split_once('/') else { return false };
    let folder = Path::new("crates").join(folder);
    folder.join("src").join(path).is_file() || folder.join(path).is_file()
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
