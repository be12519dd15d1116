//! Keys that have no effect under the value of another key. Each one that a job sets is named, so
//! that no one relies on a setting that does nothing.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

/// Keys that only count where another key allows it.
struct KeyCondition {
    /// Keys and sections; a section stands for all keys below it, less those in `except`.
    keys: &'static [&'static str],
    except: &'static [&'static str],
    /// The key that decides.
    other: &'static str,
    counts: Counts,
}

/// The values of the other key with which the keys count.
enum Counts {
    /// One of these texts.
    With(&'static [&'static str]),
    /// Any text but this one.
    Unless(&'static str),
    /// A flag with this value.
    If(bool),
    /// A text that is not empty, or a list with entries.
    IfGiven,
    /// Any number but this one.
    UnlessNumber(f64),
}

const CONDITIONS: &[KeyCondition] = &[
    condition(
        &[
            "policy.checkpoint",
            "policy.engine",
            "policy.constrain",
            "policy.template",
            "policy.weights",
            "policy.audit",
            "policy.serve",
        ],
        "policy.kind",
        Counts::With(&["model"]),
    ),
    condition(&["policy.remote"], "policy.kind", Counts::With(&["openai"])),
    KeyCondition {
        keys: &["policy.sampling", "policy.context"],
        // The actions of `random` are drawn from the seed.
        except: &["policy.sampling.seed"],
        other: "policy.kind",
        counts: Counts::With(&["model", "openai"]),
    },
    condition(&["policy.sampling.seed"], "policy.kind", Counts::With(&["model", "openai", "random"])),
    condition(
        &[
            "policy.engine.gpu",
            "policy.engine.cuda_libraries",
            "policy.engine.kernel_cache",
            "policy.engine.precision",
            "policy.engine.deterministic",
            "policy.weights.stage",
            "policy.weights.bring_bytes",
            "dashboard.gpu",
        ],
        "policy.engine.backend",
        Counts::With(&["cuda"]),
    ),
    condition(
        &["policy.engine.threads", "policy.engine.compute"],
        "policy.engine.backend",
        Counts::With(&["cpu"]),
    ),
    condition(&["dashboard.gpu", "dashboard.usd_per_device_hour"], "policy.kind", Counts::With(&["model"])),
    condition(
        &["policy.weights.old_versions_max"],
        "policy.weights.on_swap",
        Counts::With(&["finish_on_old"]),
    ),
    KeyCondition {
        keys: &["policy.constrain"],
        except: &["policy.constrain.enabled"],
        other: "policy.constrain.enabled",
        counts: Counts::If(true),
    },
    condition(&["policy.remote.token_ids"], "policy.remote.image_token_id", Counts::IfGiven),
    condition(&["policy.remote.image_token_id"], "policy.remote.token_ids", Counts::If(true)),
    KeyCondition {
        keys: &["policy.serve"],
        except: &["policy.serve.listen"],
        other: "policy.serve.listen",
        counts: Counts::IfGiven,
    },
    condition(&["env.pins", "env.live_bytes_max", "env.isolation"], "env.live", Counts::If(true)),
    condition(
        &["env.archive_response_bytes_max", "env.archive_trajectory_bytes_max", "env.archive_bytes_max"],
        "env.archive",
        Counts::If(true),
    ),
    // Each trajectory of an archive has its own browser process.
    condition(
        &["env.contexts_per_browser", "env.contexts_ready", "env.trajectories_per_browser"],
        "env.archive",
        Counts::If(false),
    ),
    condition(&["env.blocked_timeout_millis"], "env.blocked_pages", Counts::Unless("never")),
    KeyCondition {
        keys: &["score.judge"],
        except: &["score.judge.endpoint"],
        other: "score.judge.endpoint",
        counts: Counts::IfGiven,
    },
    condition(
        &["eval.every_versions", "eval.group_size", "eval.seed", "eval.hold_millis"],
        "eval.source",
        Counts::IfGiven,
    ),
    condition(&["limits.max_off_policy_versions"], "limits.trajectories_per_version", Counts::IfGiven),
    condition(&["limits.failures_free"], "limits.failure_budget", Counts::UnlessNumber(1.0)),
    condition(
        &["dashboard.listen", "dashboard.token_file", "dashboard.connections_max"],
        "dashboard.enabled",
        Counts::If(true),
    ),
    condition(&["records.merge_files_min"], "records.merge_below_bytes", Counts::UnlessNumber(0.0)),
];

const fn condition(keys: &'static [&'static str], other: &'static str, counts: Counts) -> KeyCondition {
    KeyCondition { keys, except: &[], other, counts }
}

/// Most keys that one warning lists beside its first.
const LISTED_MAX: usize = 6;

/// The keys that were written with another value than their default and have no effect, and why:
/// one entry for all keys with one reason. Keys of another kind of policy are left out where the
/// file is written for several kinds: the command line chooses the kind, or a stand-in acts in the
/// place of a checkpoint or an endpoint that the file names.
pub(super) fn without_effect(
    job: &Table,
    defaults: &Table,
    written: &BTreeSet<String>,
    is_set: impl Fn(&str) -> bool,
) -> Vec<(String, String)> {
    let is_changed = |key: &&String| value_at(job, key) != value_at(defaults, key);
    let is_for_kinds = is_set("policy.kind") || is_stand_in(job);
    let mut idle: BTreeMap<usize, Vec<&String>> = BTreeMap::new();
    for key in written.iter().filter(is_changed) {
        let found = CONDITIONS.iter().position(|condition| condition.is_about(key) && !condition.is_met(job));
        let is_for_another_kind = |at: &usize| CONDITIONS[*at].other == "policy.kind";
        match found {
            Some(at) if !(is_for_kinds && is_for_another_kind(&at) && !is_set(key)) => {
                idle.entry(at).or_default().push(key);
            }
            _ => {}
        }
    }
    let entry = |(at, keys): (usize, Vec<&String>)| {
        let (first, others) = keys.split_first()?;
        Some(((*first).clone(), format!("{}{}", CONDITIONS[at].reason(job), listed(others))))
    };
    let mut found: Vec<(String, String)> = idle.into_iter().filter_map(entry).collect();
    found.extend(weights_without_effect(job, written));
    found.extend(hosts_without_effect(job, written));
    found
}

/// The warning about a user that no browser can become: only root starts a process as another one.
pub(super) fn user_without_effect(written: &BTreeSet<String>, is_root: bool) -> Option<(String, String)> {
    let key = "env.browser_user";
    let text = "has no effect, because this process is not root: browsers run as its own user; remove it";
    (!is_root && written.contains(key)).then(|| (key.to_owned(), text.to_owned()))
}

/// Hosts of `[[tasks.source]]` and `[[eval.source]]` that only the live web has, where pages may
/// not reach it. Sites of the job are in `.test` and always reachable.
fn hosts_without_effect(job: &Table, written: &BTreeSet<String>) -> Vec<(String, String)> {
    if value_at(job, "env.live").and_then(Value::as_bool) != Some(false) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for list in ["tasks.source", "eval.source"] {
        let sources = value_at(job, list).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        for (index, source) in sources.iter().enumerate() {
            let key = format!("{list}[{index}].allow_hosts");
            let hosts = source.get("allow_hosts").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            let is_live = |host: &&str| *host != "*" && !host.ends_with(".test");
            let live = hosts.iter().filter_map(Value::as_str).find(is_live);
            if let Some(host) = live.filter(|_| written.contains(&key)) {
                let why = format!(
                    "{host:?} has no effect with env.live = false; remove it, or set env.live = true"
                );
                found.push((key, why));
            }
        }
    }
    found
}

/// Whether `scripted` or `random` acts in the place of a model that the job names.
fn is_stand_in(job: &Table) -> bool {
    let text = |key| value_at(job, key).and_then(Value::as_str).unwrap_or_default();
    let names_model = !text("policy.checkpoint").is_empty() || !text("policy.remote.endpoint").is_empty();
    names_model && matches!(text("policy.kind"), "scripted" | "random")
}

fn listed(keys: &[&String]) -> String {
    let shown: Vec<&str> = keys.iter().take(LISTED_MAX).map(|key| key.as_str()).collect();
    match keys.len() {
        0 => String::new(),
        1..=LISTED_MAX => format!("; the same of {}", shown.join(", ")),
        all => format!("; the same of {} and {} more", shown.join(", "), all - LISTED_MAX),
    }
}

/// `[[tasks.source]]` is a list, so its keys have no dotted path in the table.
fn weights_without_effect(job: &Table, written: &BTreeSet<String>) -> Vec<(String, String)> {
    let sampler = value_at(job, "tasks.sampler").and_then(Value::as_str).unwrap_or_default();
    if matches!(sampler, "weighted" | "curriculum") {
        return Vec::new();
    }
    let sources = value_at(job, "tasks.source").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let is_set =
        |source: &Value| source.get("weight").and_then(Value::as_float).is_some_and(|own| own != 1.0);
    let keys = sources.iter().enumerate().filter(|(_, source)| is_set(source));
    keys.map(|(index, _)| format!("tasks.source[{index}].weight"))
        .filter(|key| written.contains(key))
        .map(|key| {
            let why = format!(
                "has no effect with tasks.sampler = {sampler:?}; remove it, or use \"weighted\" or \"curriculum\""
            );
            (key, why)
        })
        .collect()
}

impl KeyCondition {
    fn is_about(&self, key: &str) -> bool {
        self.keys.iter().any(|own| is_within(key, own)) && !self.except.iter().any(|own| is_within(key, own))
    }

    fn is_met(&self, job: &Table) -> bool {
        let value = value_at(job, self.other);
        let text = value.and_then(Value::as_str);
        match self.counts {
            Counts::With(texts) => text.is_some_and(|text| texts.contains(&text)),
            Counts::Unless(other) => text != Some(other),
            Counts::If(flag) => value.and_then(Value::as_bool) == Some(flag),
            Counts::IfGiven => match value {
                None => false,
                Some(Value::String(text)) => !text.is_empty(),
                Some(Value::Array(entries)) => !entries.is_empty(),
                Some(_) => true,
            },
            Counts::UnlessNumber(number) => value.and_then(as_number) != Some(number),
        }
    }

    fn reason(&self, job: &Table) -> String {
        let other = self.other;
        let Some(value) = value_at(job, other) else {
            return format!("has no effect without {other}; set it, or remove this key");
        };
        let remedy = match self.counts {
            Counts::With(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| format!("{text:?}")).collect();
                format!("or use {}", texts.join(" or "))
            }
            Counts::If(flag) => format!("or set {other} = {flag}"),
            Counts::Unless(_) | Counts::IfGiven | Counts::UnlessNumber(_) => format!("or change {other}"),
        };
        format!("has no effect with {other} = {value}; remove it, {remedy}")
    }
}

fn is_within(key: &str, section: &str) -> bool {
    key.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn as_number(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|whole| whole as f64))
}

fn value_at<'a>(job: &'a Table, key: &str) -> Option<&'a Value> {
    let mut parts = key.split('.');
    let first = job.get(parts.next()?)?;
    parts.try_fold(first, |value, part| value.get(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobFile;
    use crate::job::shape::KeyShape;

    /// Keys that count whatever the others say. A new key belongs here, or to the keys of a
    /// condition.
    const ALWAYS: &[&str] = &[
        "run",
        "tasks",
        "policy.kind",
        "policy.listen",
        "policy.advertise",
        "policy.sessions_max",
        "policy.think_millis",
        "policy.linger_millis",
        "policy.instructions",
        "policy.grammar",
        "env.sessions_max",
        "env.browser",
        "env.browser_libraries",
        "env.browser_fonts",
        "env.browser_user",
        "env.sandbox",
        "env.walls",
        "env.tabs_max",
        "env.browser_memory_bytes_max",
        "env.browser_threads_max",
        "env.memory_reserve_bytes",
        "env.locale",
        "env.timezone",
        "env.axtree",
        "env.marks",
        "env.input_millis",
        "env.screenshot_millis",
        "env.navigation_millis",
        "env.settle_quiet_millis",
        "env.settle_cap_millis",
        "env.blocked_pages",
        "env.unparsable_max",
        "env.policy_millis",
        "env.policy_retry_timeout_millis",
        "env.coordinator_millis",
        "env.coordinator_retry_timeout_millis",
        "env.lease_wait_millis",
        "env.drain_grace_millis",
        "env.connections_max",
        "env.live",
        "env.site_file_bytes_max",
        "env.site_cache_bytes_max",
        "env.archive",
        "env.secrets",
        "score.judge.endpoint",
        "records.follow",
        "records.max_delay_millis",
        "records.max_shard_bytes",
        "records.row_group_bytes",
        "records.compression_level",
        "records.disk_reserve_bytes",
        "records.merge_below_bytes",
        "records.merge_grace_millis",
        "records.retention_bytes",
        "records.retention_hours",
        "limits.attempts_max",
        "limits.failure_budget",
        "limits.lease_millis",
        "limits.heartbeat_millis",
        "limits.leases_per_call_max",
        "limits.drain_grace_millis",
        "limits.farewell_millis",
        "limits.score_attempts_max",
        "limits.score_millis",
        "limits.scorers_max",
        "limits.backlog_max",
        "limits.calls_max",
        "limits.commits_max",
        "limits.spool_queue_max",
        "limits.spool_queue_bytes_max",
        "limits.spool_open_files_max",
        "limits.ledger_queue_max",
        "limits.ledger_batch_max",
        "limits.disk_full_millis",
        "limits.call_millis",
        "limits.trajectories_per_version",
        "limits.spread_first_steps",
        "eval.source",
        "telemetry",
        "dashboard.enabled",
    ];

    #[test]
    fn every_key_of_a_job_always_counts_or_has_a_condition() {
        let known = KeyShape::of::<JobFile>().keys();
        let is_section = |key: &str| known.iter().any(|other| is_within(other, key) && other != key);
        let leaves = known.iter().filter(|key| !is_section(key) && !key.starts_with("eval.source"));
        let is_listed = |key: &str| {
            ALWAYS.iter().any(|own| is_within(key, own)) || CONDITIONS.iter().any(|each| each.is_about(key))
        };
        let unlisted: Vec<&String> = leaves.filter(|key| !is_listed(key)).collect();
        assert!(
            unlisted.is_empty(),
            "add {unlisted:?} to ALWAYS, or to the condition under which they count"
        );
        let named =
            CONDITIONS.iter().flat_map(|each| each.keys.iter().chain(each.except).chain([&each.other]));
        let absent: Vec<_> = named.chain(ALWAYS).filter(|key| !known.iter().any(|own| own == *key)).collect();
        assert!(absent.is_empty(), "no such keys: {absent:?}");
    }

    #[track_caller]
    fn check(text: &str, want: &[&str]) {
        check_set(text, &[], want);
    }

    /// The same with these keys from the command line.
    #[track_caller]
    fn check_set(text: &str, set: &[&str], want: &[&str]) {
        let job: Table = text.parse().unwrap();
        let file: JobFile = serde::Deserialize::deserialize(job).unwrap();
        let written = super::super::tree::parse(text).unwrap().written();
        let defaults = Table::try_from(JobFile::default()).unwrap();
        let job = Table::try_from(file).unwrap();
        let found = without_effect(&job, &defaults, &written, |key| set.contains(&key));
        let found: Vec<String> = found.iter().map(|(key, why)| format!("{key} {why}")).collect();
        assert_eq!(found, want, "{text}");
    }

    #[test]
    fn a_key_without_effect_is_named_with_the_key_that_disables_it() {
        check("[policy]\nkind = \"openai\"\n[policy.remote]\nmodel = \"m\"", &[]);
        check(
            "[policy]\nkind = \"openai\"\n[policy.constrain]\nenabled = true\nnote = 5",
            &[
                "policy.constrain.enabled has no effect with policy.kind = \"openai\"; remove it, or use \"model\"; \
                 the same of policy.constrain.note",
            ],
        );
        check(
            "[policy]\nkind = \"openai\"\n[policy.remote]\ntoken_ids = true",
            &[
                "policy.remote.token_ids has no effect without policy.remote.image_token_id; set it, or remove this key",
            ],
        );
        check("[policy]\nkind = \"openai\"\n[policy.remote]\ntoken_ids = true\nimage_token_id = 7", &[]);
        check(
            "[policy]\nkind = \"model\"\n[dashboard]\ngpu = \"h200\"",
            &["dashboard.gpu has no effect with policy.engine.backend = \"cpu\"; remove it, or use \"cuda\""],
        );
        check(
            "[policy]\nkind = \"model\"\n[policy.engine]\nbackend = \"cuda\"\nthreads = 3\n[dashboard]\ngpu = \"h200\"",
            &[
                "policy.engine.threads has no effect with policy.engine.backend = \"cuda\"; remove it, or use \"cpu\"",
            ],
        );
        check(
            "[env]\nlive = false\npins = [\"a.example=10.0.0.1\"]\narchive = true\ncontexts_per_browser = 3",
            &[
                "env.pins has no effect with env.live = false; remove it, or set env.live = true",
                "env.contexts_per_browser has no effect with env.archive = true; remove it, or set env.archive = false",
            ],
        );
    }

    #[test]
    fn a_key_without_effect_is_named_in_every_section() {
        check(
            "[limits]\nfailure_budget = 1.0\nfailures_free = 5\nmax_off_policy_versions = 4",
            &[
                "limits.max_off_policy_versions has no effect without limits.trajectories_per_version; set it, or remove this key",
                "limits.failures_free has no effect with limits.failure_budget = 1.0; remove it, or change limits.failure_budget",
            ],
        );
        check(
            "[eval]\ngroup_size = 4",
            &["eval.group_size has no effect with eval.source = []; remove it, or change eval.source"],
        );
        check(
            "[[tasks.source]]\nweight = 2.0\n[[tasks.source]]\nweight = 1.0",
            &[
                "tasks.source[0].weight has no effect with tasks.sampler = \"uniform\"; remove it, or use \"weighted\" or \"curriculum\"",
            ],
        );
        check("[tasks]\nsampler = \"weighted\"\n[[tasks.source]]\nweight = 2.0", &[]);
        let hosts = "[[tasks.source]]\nallow_hosts = [\"*.web.test\", \"*\"]\n\
            [[tasks.source]]\nallow_hosts = [\"*.web.test\", \"cdn.example\"]";
        check(
            &format!("{hosts}\n[env]\nlive = false"),
            &[
                "tasks.source[1].allow_hosts \"cdn.example\" has no effect with env.live = false; remove it, or set env.live = true",
            ],
        );
        check(hosts, &[]);
    }

    #[test]
    fn a_user_for_browsers_counts_for_root_alone() {
        let written = |key: &str| BTreeSet::from([key.to_owned()]);
        let warned = |key, is_root| user_without_effect(&written(key), is_root).map(|(key, _)| key);
        assert_eq!(warned("env.browser_user", false).as_deref(), Some("env.browser_user"));
        assert_eq!(warned("env.browser_user", true), None);
        assert_eq!(warned("env.sandbox", false), None);
    }

    #[test]
    fn a_job_for_several_kinds_of_policy_is_not_warned_of() {
        // A file for several kinds, of which the command line chooses one.
        let shared = "[policy]\nkind = \"random\"\n[policy.audit]\nshare = 0.5\n[policy.engine]\nthreads = 3";
        let reason = "has no effect with policy.kind = \"random\"; remove it, or use \"model\"";
        check(shared, &[&format!("policy.audit.share {reason}; the same of policy.engine.threads")]);
        // A stand-in for the checkpoint that the job names.
        check(&shared.replace("\n[policy.audit]", "\ncheckpoint = \"c\"\n[policy.audit]"), &[]);
        check_set(shared, &["policy.kind"], &[]);
        check_set(shared, &["policy.kind", "policy.audit.share"], &[&format!("policy.audit.share {reason}")]);
        // A stored job writes every key with its default.
        let all = toml::to_string(&JobFile::default()).unwrap();
        check(&all, &[]);
    }
}
