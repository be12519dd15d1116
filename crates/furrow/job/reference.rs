//! Writes docs/CONFIG.md and docs/job.schema.json from the sources, and fails where they differ.
//!
//! A key's name and type come from [`KeyShape`], its meaning from the doc comment of its field, its
//! default from the serialized default job, and its limits from what a job's check says of values
//! that are far out of them.

mod comments;
mod keys;
mod limits;
mod page;
mod schema;

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use keys::JobKeys;

/// Set to write the files instead of comparing them.
const WRITE: &str = "FURROW_WRITE_CONFIG";

/// Asking the checks for every limit takes seconds.
static KEYS: LazyLock<JobKeys> = LazyLock::new(JobKeys::gather);

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The first line in which two texts differ, of both.
fn first_difference(got: &str, want: &str) -> String {
    let lines = got.lines().chain([""]).zip(want.lines().chain([""]));
    lines.into_iter().find(|(got, want)| got != want).map_or_else(
        || "one of them is longer".to_owned(),
        |(got, want)| format!("the file has\n{got}\nthe sources give\n{want}"),
    )
}

#[test]
fn the_files_are_what_the_sources_give() {
    for (path, want) in
        [("docs/CONFIG.md", page::write(&KEYS)), ("docs/job.schema.json", schema::write(&KEYS))]
    {
        let file = root().join(path);
        if std::env::var_os(WRITE).is_some() {
            fs::write(&file, &want).unwrap();
        }
        let got = fs::read_to_string(&file).unwrap_or_default();
        let difference = first_difference(&got, &want);
        assert!(
            got == want,
            "{path} is not what the sources give; write it with\n    {WRITE}=1 cargo test -p furrow --lib reference\n{difference}"
        );
    }
}

#[test]
fn every_key_and_section_has_a_meaning() {
    assert!(KEYS.sections.len() > 20, "{}", KEYS.sections.len());
    for section in &KEYS.sections {
        assert!(section.comment.len() >= 20, "[{}]: {:?}", section.name, section.comment);
        for key in &section.keys {
            assert!(key.comment.len() >= 20, "{}: {:?}", key.name, key.comment);
        }
    }
}

/// Milliseconds, bytes and counts are limited somewhere, or a typing error is a job that hangs.
#[test]
fn limits_are_found_where_a_check_has_them() {
    let limits = |name: &str| KEYS.key(name).limits.join("; ");
    assert_eq!(limits("env.sessions_max"), "1 to 1000");
    assert_eq!(limits("tasks.source[].repeat"), "1 to 1000");
    assert_eq!(limits("records.compression_level"), "1 to 22");
    assert_eq!(limits("limits.trajectories_per_version"), "1 or more");
    assert_eq!(limits("score.judge.votes"), "1 to 99");
    assert_eq!(limits("policy.remote.calls_max"), "1 to 256");
    assert_eq!(limits("policy.serve.max_tokens"), "1 to 1000000");
    assert_eq!(limits("policy.kind"), r#""scripted", "random", "model" or "openai""#);
    let unlimited: Vec<&str> = KEYS.keys().filter(|key| key.is_unlimited()).map(|key| &*key.name).collect();
    // Seeds and free failures are any number; an index of a GPU is refused by the driver; `top_k`
    // is a cut without a most; the rest are bytes of memory that only the machine limits, or counts
    // of tokens that `policy.sampling.max_tokens` limits.
    let allowed =
        ["seed", "gpu", "failures_free", "top_k", "_bytes", "policy.constrain", "image_token_id", "share"];
    let unexpected: Vec<_> =
        unlimited.iter().filter(|name| !allowed.iter().any(|known| name.contains(known))).collect();
    assert!(unexpected.is_empty(), "without a limit: {unexpected:?}");
}

#[test]
fn jobs_of_the_repository_are_right_by_the_schema() {
    let schema = schema::of(&KEYS);
    let check = |text: &str| {
        let job: toml::Table = text.parse().unwrap();
        schema::problems(&serde_json::to_value(job).unwrap(), &schema, "")
    };
    for path in [
        "deploy/quickstart.toml",
        "deploy/suites.toml",
        "deploy/web.toml",
        "deploy/learn/attempt.toml",
        "examples/tiles/job.toml",
    ] {
        let problems = check(&fs::read_to_string(root().join(path)).unwrap());
        assert!(problems.is_empty(), "{path}: {problems:?}");
    }
    assert_eq!(check("[env]\nsesions_max = 3"), ["env.sesions_max: not a key"]);
    assert_eq!(check("[env]\nsessions_max = 0"), ["env.sessions_max: 0 is below 1"]);
    assert_eq!(check("[env]\nsandbox = 1"), ["env.sandbox: 1 is not a boolean"]);
    assert_eq!(check("[[tasks.source]]\nrepeat = 1001"), ["tasks.source.repeat: 1001 is above 1000"]);
    assert_eq!(check("[telemetry]\nlog_level = \"x\""), ["telemetry.log_level: \"x\" is not a choice"]);
}
