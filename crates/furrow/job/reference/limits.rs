//! Finds the limits of a key by asking a job's check: a value far outside is refused with the
//! remedy `use 1 to 1000`, which states them.

use std::path::Path;

use crate::job::shape::KeyShape;
use crate::job::{Job, KeyProblem};

/// Jobs in which every section is in use and so checked. The first has the model's, the second the
/// endpoint's, the third what only MiniWoB++ has.
const JOBS: [&str; 3] = [
    r#"
    tasks.source = [{ suite = "pages", path = "pages" }]
    eval.source = [{ suite = "pages", path = "pages" }]
    policy = { kind = "model", checkpoint = "c", serve = { listen = "127.0.0.1:0" } }
    score.judge = { endpoint = "http://127.0.0.1:1/v1", model = "m" }
    "#,
    r#"
    tasks.source = [{ suite = "pages", path = "pages" }]
    policy = { kind = "openai", remote = { endpoint = "http://127.0.0.1:1/v1", model = "m" } }
    "#,
    r#"
    tasks.source = [{ suite = "miniwob", path = "pages", pages = "w" }]
    eval.source = [{ suite = "miniwob", path = "pages", pages = "w" }]
    "#,
];

/// More entries than most lists may have; reading them takes quadratic time, as each gets its line.
const ENTRIES: usize = 1_001;

/// A key whose check depends on the features of the build; its doc comment has the limits.
const BUILD_DEPENDENT: &str = "telemetry.otlp_endpoint";

/// What the checks allow for a key, each sentence once.
pub(super) fn of(key: &str, shape: &KeyShape) -> Vec<String> {
    if key == BUILD_DEPENDENT {
        return Vec::new();
    }
    let bare = key.replace("[]", "[0]");
    let mut found = Vec::new();
    for value in outside(shape) {
        let setting = format!("{bare}={value}");
        for job in jobs_of(key) {
            let problems = Job::parse(job, "job", Path::new("/jobs"), std::slice::from_ref(&setting));
            for problem in problems.err().unwrap_or_default() {
                found.extend(limit_in(&problem, &bare));
            }
        }
    }
    let mut once: Vec<String> = Vec::new();
    found.into_iter().for_each(|limit| {
        if !once.contains(&limit) {
            once.push(limit);
        }
    });
    once
}

/// The jobs that check this key; a check takes some 20 ms in a test.
fn jobs_of(key: &str) -> &'static [&'static str] {
    match key {
        _ if key.contains("source[]") => &JOBS,
        _ if key.starts_with("policy.remote.") => &JOBS[1..2],
        _ => &JOBS[..1],
    }
}

/// Values of the right type that no key should take.
fn outside(shape: &KeyShape) -> Vec<String> {
    // No name, path, host or day contains it.
    let text = "\"?\\u0001 ?\"";
    match shape {
        KeyShape::Whole { least, most } => vec![least.to_string(), most.to_string()],
        KeyShape::Number => vec!["-1e30".to_owned(), "1e30".to_owned()],
        KeyShape::Text | KeyShape::Path => vec![text.to_owned()],
        KeyShape::List(each) if matches!(**each, KeyShape::Text | KeyShape::Path) => {
            vec![format!("[{text}]"), format!("[{}]", vec!["\"a\""; ENTRIES].join(","))]
        }
        _ => Vec::new(),
    }
}

/// The remedy of a problem of this key, if it states what the key allows alone.
fn limit_in(problem: &KeyProblem, key: &str) -> Option<String> {
    let rest = problem.key.strip_prefix(key)?;
    if !(rest.is_empty() || rest.starts_with([' ', '['])) {
        return None;
    }
    let (_, remedy) = ["; use ", ", use ", "; write it "]
        .into_iter()
        .find_map(|before| problem.text.rsplit_once(before))?;
    // Remedies that follow from another key's value: the doc comment has the rule.
    if remedy.starts_with("that ") || remedy.contains("records.") {
        return None;
    }
    let counted = problem.text.contains(&ENTRIES.to_string());
    let remedy = remedy.replace(&format!(" to {}", i64::MAX), " or more");
    Some(if counted { format!("{remedy} entries") } else { remedy })
}
