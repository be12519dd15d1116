//! What makes a run the run that it is: the settings that a resumed run keeps.
//!
//! A resumed job is compared key by key with the job that the run directory keeps. Keys that the
//! user sets must be as they were; keys that are not set take over the run's values, so that a
//! default which changed between two releases changes no run. A key that the stored job lacks is
//! younger than the run.

use std::collections::{BTreeMap, BTreeSet};

use furrow_coordinator::JobIdentity;
use toml::{Table, Value};

/// Keys that a resumed run must not change, with all that stands below them.
pub(crate) const KEYS: &[&str] = &[
    "run.name",
    "run.seed",
    "tasks",
    "eval.every_versions",
    "eval.group_size",
    "eval.seed",
    "eval.source",
    "policy.kind",
    "policy.grammar",
    "policy.sampling",
    "policy.context",
    "policy.instructions",
    "policy.remote.model",
    "score.judge.model",
    "score.judge.screenshots",
    "score.judge.votes",
    "score.judge.show_reference",
];

/// What the ledger is given to recognise the job by: [`KEYS`] of the resolved job, and the hash of
/// its tasks.
///
/// The ledgers of earlier releases hold a hash of it, so these keys, their order and the text of
/// their values stay as they are: a key that comes later is compared by [`differences`] alone.
pub(crate) fn of(resolved: &Table, tasks: &str) -> JobIdentity {
    let mut settings = vec![("task files".to_owned(), tasks.to_owned())];
    for key in KEYS {
        settings.push(((*key).to_owned(), at(resolved, key).map(ToString::to_string).unwrap_or_default()));
    }
    settings.extend(spread_first_steps(resolved));
    JobIdentity::new(settings)
}

/// The key that may grow: which task a group gets depends on its number and the seed alone.
const LENGTH: &str = "tasks.groups";

/// What differs between a resumed job and the one that began its run, a sentence a key. `written`
/// are the keys that the user gave a value; `pass` is the number of groups of a run that does not
/// set [`LENGTH`].
pub(crate) fn differences(now: &Table, began: &Table, written: &BTreeSet<String>, pass: u64) -> Vec<String> {
    let length =
        |job: &Table| at(job, LENGTH).and_then(Value::as_integer).map_or(pass, |groups| groups.max(0) as u64);
    let is_longer = length(now) >= length(began);
    let before = length(began);
    let now = settings(now);
    let began = settings(began);
    let keys: BTreeSet<&String> = now.keys().chain(began.keys()).collect();
    let is_younger = |key: &String| !began.contains_key(key) && !written.contains(key);
    keys.into_iter()
        .filter(|key| now.get(*key) != began.get(*key) && !is_younger(key))
        .filter(|key| key.as_str() != LENGTH || !is_longer)
        .map(|key| {
            let remedy = if key == LENGTH {
                format!("use {before} or more, which lengthens the run")
            } else if key.starts_with("tasks.source") && key.ends_with(".repeat") {
                format!("set it back; to lengthen the run, set {LENGTH} to more than {before}")
            } else {
                "set it back, or start a new run".to_owned()
            };
            format!(
                "{key}: {} now, {} when the run began; {remedy}",
                now.get(key).map_or("not set", String::as_str),
                began.get(key).map_or("not set", String::as_str),
            )
        })
        .collect()
}

/// Every value at or below [`KEYS`] by its dotted key, such as `tasks.source[0].repeat`, as TOML.
fn settings(job: &Table) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for key in KEYS {
        if let Some(value) = at(job, key) {
            gather(key, value, &mut found);
        }
    }
    found.extend(spread_first_steps(job));
    found
}

fn gather(key: &str, value: &Value, found: &mut BTreeMap<String, String>) {
    match value {
        Value::Table(table) => {
            for (name, value) in table {
                gather(&format!("{key}.{name}"), value, found);
            }
        }
        Value::Array(entries) if entries.iter().any(Value::is_table) => {
            for (index, entry) in entries.iter().enumerate() {
                gather(&format!("{key}[{index}]"), entry, found);
            }
        }
        plain => {
            found.insert(key.to_owned(), plain.to_string());
        }
    }
}

/// Spread step limits follow from how many trajectories run at once, which may change in a run
/// without them.
fn spread_first_steps(job: &Table) -> Option<(String, String)> {
    let key = "limits.spread_first_steps";
    let whole = |key| at(job, key).and_then(Value::as_integer);
    if at(job, key).and_then(Value::as_bool) != Some(true) {
        return None;
    }
    let sessions = whole("env.sessions_max").min(whole("policy.sessions_max")).unwrap_or_default();
    Some((key.to_owned(), format!("true with {sessions} trajectories at once (env.sessions_max)")))
}

/// The value of a dotted key.
pub(crate) fn at<'t>(table: &'t Table, key: &str) -> Option<&'t Value> {
    let mut parts = key.split('.');
    let first = parts.next().and_then(|part| table.get(part));
    parts.fold(first, |value, part| value.and_then(|value| value.get(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(began: &str, now: &str, written: &[&str], want: &[&str]) {
        let written = written.iter().map(ToString::to_string).collect();
        let found = differences(&now.parse().unwrap(), &began.parse().unwrap(), &written, 6);
        assert_eq!(found.len(), want.len(), "{found:?}");
        for (found, want) in found.iter().zip(want) {
            assert!(found.starts_with(want), "{found}");
        }
    }

    #[test]
    fn values_are_compared_key_by_key() {
        let began = "[run]\nseed = 1\n[[tasks.source]]\nsuite = \"web\"\nrepeat = 2\n[policy.sampling]\ntop_p = 1.0\n";
        check(began, began, &["run.seed"], &[]);
        let now = began.replace("repeat = 2", "repeat = 3").replace("seed = 1", "seed = 2");
        let want = ["run.seed: 2 now, 1 when the run began", "tasks.source[0].repeat: 3 now, 2 when"];
        check(began, &now, &["run.seed", "tasks.source[0].repeat"], &want);
        check(began, &now, &[], &want);
        let more = format!("{began}[[tasks.source]]\nsuite = \"starter\"\n");
        check(
            began,
            &more.replace("[policy.sampling]\ntop_p = 1.0\n", ""),
            &["tasks.source[1].suite"],
            &[
                "policy.sampling.top_p: not set now, 1.0 when",
                "tasks.source[1].suite: \"starter\" now, not set when",
            ],
        );
        // Whatever else a job says may change.
        check("[limits]\nhours = 1\n", "[limits]\nhours = 2\n", &["limits.hours"], &[]);
    }

    #[test]
    fn a_run_may_become_longer_and_not_shorter() {
        let began = "[tasks]\ngroups = 8\n[[tasks.source]]\nrepeat = 6\n";
        let now = |groups: &str| began.replace("groups = 8\n", groups);
        for (groups, want) in [
            ("groups = 8\n", &[][..]),
            ("groups = 12\n", &[]),
            ("groups = 7\n", &["tasks.groups: 7 now, 8 when the run began; use 8 or more"]),
            // Without the key a run has six groups.
            ("", &["tasks.groups: not set now, 8 when the run began; use 8 or more"]),
        ] {
            check(began, &now(groups), &["tasks.groups"], want);
        }
        let unset = now("");
        check(&unset, &now("groups = 12\n"), &["tasks.groups"], &[]);
        check(&unset, &now("groups = 5\n"), &["tasks.groups"], &["tasks.groups: 5 now, not set when"]);
        let repeated = began.replace("repeat = 6", "repeat = 12");
        let want = "tasks.source[0].repeat: 12 now, 6 when the run began; set it back; to lengthen the run, \
                    set tasks.groups to more than 8";
        check(began, &repeated, &["tasks.source[0].repeat"], &[want]);
    }

    #[test]
    fn a_key_that_came_later_changes_no_run_unless_it_is_set() {
        let began = "[policy.sampling]\ntop_p = 1.0\n";
        let now = "[policy.sampling]\ntop_p = 1.0\nmin_p = 0.0\n";
        check(began, now, &["policy.sampling.top_p"], &[]);
        let want = ["policy.sampling.min_p: 0.0 now, not set when the run began"];
        check(began, now, &["policy.sampling.min_p"], &want);
    }

    #[test]
    fn limits_that_are_spread_belong_to_a_job_and_sessions_then_do() {
        let job = |spread: &str, env: u32, policy: u32| {
            format!("[env]\nsessions_max = {env}\n[policy]\nsessions_max = {policy}\n[limits]\n{spread}")
        };
        let key = "limits.spread_first_steps";
        let off = "spread_first_steps = false";
        let on = "spread_first_steps = true";
        // A run of a release that did not know the key.
        check(&job("", 8, 256), &job(off, 9, 256), &[key], &[]);
        check(&job(on, 8, 256), &job(on, 8, 200), &[key], &[]);
        check(&job(off, 8, 256), &job(on, 8, 256), &[key], &["limits.spread_first_steps: true with 8"]);
        check(&job(on, 8, 256), &job(on, 9, 256), &[key], &["limits.spread_first_steps: true with 9"]);
        check(&job(on, 8, 256), &job(off, 8, 256), &[key], &["limits.spread_first_steps: not set now"]);
    }
}
