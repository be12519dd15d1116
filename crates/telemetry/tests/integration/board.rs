//! The Grafana board and the alert rules in deploy/, generated from the names of the metrics, so
//! that none becomes outdated.
//!
//! `FURROW_WRITE_BOARD=1 cargo test -p furrow-telemetry --test integration board` regenerates them
//! after a change here.

use std::collections::BTreeMap;
use std::path::PathBuf;

use furrow_telemetry::{ProcessMetrics, prometheus};
use serde_json::{Value, json};

/// Rows of the board: a heading, and its panels as title, Grafana unit, queries with their legends.
const BOARD: &[(&str, &[BoardPanel])] = &[
    (
        "Throughput",
        &[
            (
                "Trajectories per device-hour",
                "none",
                &[
                    (
                        "3600 * sum(rate(furrow_rollout_scored_total[$__rate_interval])) / sum(rate(furrow_policy_device_seconds_total[$__rate_interval]))",
                        "measured",
                    ),
                    (
                        "3600 * sum(rate(furrow_rollout_scored_total[$__rate_interval])) / sum(rate(furrow_policy_device_seconds_total{use!~\"no_work|no_room|host\"}[$__rate_interval]))",
                        "if the device never waited",
                    ),
                ],
            ),
            (
                "Trajectories ended per hour",
                "none",
                &[
                    ("3600 * sum(rate(furrow_rollout_scored_total[$__rate_interval]))", "scored"),
                    ("3600 * sum(rate(furrow_rollout_failed_total[$__rate_interval]))", "failed by the farm"),
                ],
            ),
            (
                "Steps per second",
                "none",
                &[("sum(rate(furrow_rollout_steps_total[$__rate_interval]))", "durable")],
            ),
            (
                "Success rate",
                "percentunit",
                &[(
                    "sum(rate(furrow_rollout_successes_total[$__rate_interval])) / sum(rate(furrow_rollout_scored_total[$__rate_interval]))",
                    "of scored",
                )],
            ),
        ],
    ),
    (
        "Where the time goes",
        &[
            (
                "Device time by use",
                "percentunit",
                &[(
                    "sum by (use) (rate(furrow_policy_device_seconds_total[$__rate_interval])) / scalar(sum(rate(furrow_policy_device_seconds_total[$__rate_interval])))",
                    "{{use}}",
                )],
            ),
            (
                "Slot time by use",
                "percentunit",
                &[(
                    "sum by (use) (rate(furrow_env_slot_seconds_total[$__rate_interval])) / scalar(sum(rate(furrow_env_slot_seconds_total[$__rate_interval])))",
                    "{{use}}",
                )],
            ),
            (
                "Session time by cause",
                "percentunit",
                &[(
                    "sum by (cause) (rate(furrow_env_session_seconds_total[$__rate_interval])) / scalar(sum(rate(furrow_env_session_seconds_total[$__rate_interval])))",
                    "{{cause}}",
                )],
            ),
            (
                "A step, and a reply, 99th percentile",
                "s",
                &[
                    (
                        "histogram_quantile(0.99, sum by (le) (rate(furrow_env_step_seconds_bucket[$__rate_interval])))",
                        "step",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (le) (rate(furrow_policy_service_seconds_bucket[$__rate_interval])))",
                        "reply",
                    ),
                ],
            ),
        ],
    ),
    (
        "Health",
        &[
            (
                "Ends per hour",
                "none",
                &[("3600 * sum by (end) (rate(furrow_rollout_ends_total[$__rate_interval]))", "{{end}}")],
            ),
            (
                "Running, and slots",
                "none",
                &[
                    ("sum(furrow_rollout_running)", "running"),
                    ("sum(furrow_env_slots)", "slots"),
                    ("sum(furrow_policy_sessions)", "sessions of policies"),
                ],
            ),
            ("Workers", "none", &[("sum by (kind) (furrow_rollout_workers)", "{{kind}}")]),
            ("Why nothing is assigned", "none", &[("sum by (reason) (furrow_rollout_paused)", "{{reason}}")]),
            (
                "Browsers lost per hour",
                "none",
                &[(
                    "3600 * sum by (death) (rate(furrow_env_browsers_died_total[$__rate_interval]))",
                    "{{death}}",
                )],
            ),
            (
                "Invalid replies",
                "percentunit",
                &[(
                    "sum(rate(furrow_policy_replies_invalid_total[$__rate_interval])) / sum(rate(furrow_policy_replies_total[$__rate_interval]))",
                    "of all",
                )],
            ),
        ],
    ),
    (
        "Durability and machine",
        &[
            (
                "From an end to its commit, 99th percentile",
                "s",
                &[(
                    "histogram_quantile(0.99, sum by (le) (rate(furrow_records_commit_seconds_bucket[$__rate_interval])))",
                    "committed",
                )],
            ),
            ("Spooled and not yet committed", "bytes", &[("sum(furrow_records_spool_bytes)", "spool")]),
            (
                "Memory of the tree",
                "bytes",
                &[
                    ("furrow_tree_pss_bytes", "{{instance}} PSS"),
                    ("furrow_tree_rss_bytes", "{{instance}} RSS"),
                ],
            ),
            (
                "Cores used",
                "none",
                &[("rate(furrow_tree_cpu_seconds_total[$__rate_interval])", "{{instance}}")],
            ),
        ],
    ),
];

type BoardPanel = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// Name, expression, duration, severity, what it means and what to do.
const ALERTS: &[[&str; 5]] = &[
    [
        "FurrowNothingScored",
        "sum(rate(furrow_rollout_scored_total[15m])) == 0 and sum(furrow_rollout_running) > 0",
        "15m",
        "critical",
        "Trajectories run, but none was scored for 15 minutes: check the ends, then the log of the environment workers.",
    ],
    [
        "FurrowManyFailures",
        "sum(rate(furrow_rollout_failed_total[15m])) / sum(rate(furrow_rollout_trajectories_total[15m])) > 0.2",
        "15m",
        "warning",
        "More than a fifth of all attempts fail by a fault of the farm: the board's panel of ends shows the kind.",
    ],
    [
        "FurrowNoPolicyWorker",
        "sum(furrow_rollout_paused{reason=\"no_policy_worker\"}) > 0",
        "2m",
        "critical",
        "No policy worker is registered, so nothing is assigned: start one, or check why it ended.",
    ],
    [
        "FurrowDiskReserve",
        "sum(furrow_rollout_paused{reason=\"disk_reserve\"}) > 0",
        "1m",
        "critical",
        "Free disk is down to the reserve, so no trajectory starts: free disk space.",
    ],
    [
        "FurrowPublishingLags",
        "histogram_quantile(0.99, sum by (le) (rate(furrow_records_commit_seconds_bucket[10m]))) > 120",
        "10m",
        "warning",
        "Trajectories wait more than two minutes for their commit: check the speed of the disk or the store.",
    ],
    [
        "FurrowBrowsersDie",
        "sum(increase(furrow_env_browsers_died_total[10m])) > 10",
        "5m",
        "warning",
        "More than ten browsers were lost in ten minutes: check memory limits, and suites whose pages crash.",
    ],
    [
        "FurrowWorkersRefused",
        "sum(increase(furrow_rollout_workers_refused_total[10m])) > 0",
        "0m",
        "warning",
        "A worker's registration was refused: usually its version differs from the coordinator's.",
    ],
    [
        "FurrowVersionWithdrawn",
        "sum(increase(furrow_rollout_versions_withdrawn_total[10m])) > 0",
        "0m",
        "critical",
        "Weights were withdrawn because their logits are not finite: stop the trainer that made them, or check the GPU.",
    ],
    [
        "FurrowPanicked",
        "sum(increase(furrow_process_panics_total[10m])) > 0",
        "0m",
        "critical",
        "A process panicked: its log names the location; please report it.",
    ],
    [
        "FurrowDeviceIdle",
        "sum(rate(furrow_policy_device_seconds_total{use=\"no_work\"}[30m])) / sum(rate(furrow_policy_device_seconds_total[30m])) > 0.5",
        "30m",
        "info",
        "The device waits for pages half of the time: use more sessions or faster pages for more trajectories per device-hour.",
    ],
];

fn board() -> Value {
    let source = json!({ "type": "prometheus", "uid": "${source}" });
    let mut panels = Vec::new();
    let mut y = 0;
    let mut id = 0;
    for (heading, row) in BOARD {
        id += 1;
        panels.push(json!({ "id": id, "type": "row", "title": heading, "collapsed": false, "gridPos": { "x": 0, "y": y, "w": 24, "h": 1 } }));
        y += 1;
        for (index, (title, unit, queries)) in row.iter().enumerate() {
            id += 1;
            let targets: Vec<Value> = queries
                .iter()
                .zip('A'..)
                .map(|((expr, legend), letter)| json!({ "refId": letter.to_string(), "expr": expr, "legendFormat": legend, "datasource": source }))
                .collect();
            // Parts of a total are stacked.
            let stacked = title.contains(" by use") || title.contains(" by cause");
            let stacking = json!({ "mode": if stacked { "normal" } else { "none" } });
            panels.push(json!({
                "id": id, "type": "timeseries", "title": title, "datasource": source, "targets": targets,
                "gridPos": { "x": 12 * (index % 2), "y": y + 8 * (index / 2), "w": 12, "h": 8 },
                "fieldConfig": { "defaults": { "unit": unit, "min": 0, "custom": { "fillOpacity": if stacked { 70 } else { 8 }, "stacking": stacking } }, "overrides": [] },
                "options": { "tooltip": { "mode": "multi" }, "legend": { "displayMode": "list", "placement": "bottom" } },
            }));
        }
        y += 8 * row.len().div_ceil(2);
    }
    let variable =
        json!({ "name": "source", "type": "datasource", "query": "prometheus", "label": "Source" });
    json!({
        "title": "Furrow", "uid": "furrow", "schemaVersion": 39, "version": 1, "editable": true, "refresh": "30s",
        "time": { "from": "now-6h", "to": "now" }, "templating": { "list": [variable] }, "panels": panels,
    })
}

/// YAML that is JSON below the first level, so that nothing needs YAML's quoting.
fn alerts() -> String {
    let mut text = "# Generated by crates/telemetry/tests/integration/board.rs from the names of the metrics; change it there.\ngroups:\n  - name: furrow\n    rules:\n".to_owned();
    for [name, expr, lasts, severity, description] in ALERTS {
        text.push_str(&format!(
            "      - alert: {name}\n        expr: {}\n        for: {lasts}\n        labels: {{\"severity\": \"{severity}\"}}\n        annotations: {{\"summary\": {}}}\n",
            json!(expr),
            json!(description)
        ));
    }
    text
}

/// Label values of each label of each exported metric.
fn scraped() -> BTreeMap<String, BTreeMap<String, Vec<String>>> {
    let mut metrics: BTreeMap<String, BTreeMap<String, Vec<String>>> = BTreeMap::new();
    // Unknown metrics are set, so that all are exported.
    let figures = ProcessMetrics::new();
    for unknown in [
        &figures.process_rss_bytes,
        &figures.tree_processes,
        &figures.tree_rss_bytes,
        &figures.tree_pss_bytes,
    ] {
        unknown.set(Some(1));
    }
    for line in prometheus(&figures).lines().filter(|line| !line.starts_with('#')) {
        let (name, labels) = line.split_once(['{', ' ']).unwrap();
        let values = metrics.entry(name.to_owned()).or_default();
        if let Some((label, value)) = labels.split_once("=\"").filter(|_| line.contains('{')) {
            values.entry(label.to_owned()).or_default().push(value.split('"').next().unwrap().to_owned());
        }
    }
    metrics
}

/// Returns a metric or label that the expression uses and nothing exports.
fn unknown(expr: &str, scraped: &BTreeMap<String, BTreeMap<String, Vec<String>>>) -> Option<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for (at, _) in expr.match_indices("furrow_") {
        let rest = &expr[at..];
        let name = &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())];
        let Some(labels) = scraped.get(name) else { return Some(name.to_owned()) };
        let Some(selector) = rest[name.len()..].strip_prefix('{').and_then(|rest| rest.split('}').next())
        else {
            continue;
        };
        let (label, values) = selector.split_once(['=', '!']).unwrap();
        let known = labels.get(label).cloned().unwrap_or_default();
        let values = values.split('"').nth(1).unwrap();
        if let Some(value) = values.split('|').find(|value| !known.iter().any(|known| known == value)) {
            return Some(format!("{name}{{{label}={value}}}"));
        }
    }
    // A sum can only be grouped by a label of the summed metric.
    let by = expr.split("by (").nth(1).and_then(|rest| rest.split(')').next());
    let first = expr.find("furrow_").map(|at| expr[at..].split(|c| !is_name(c)).next().unwrap());
    by.zip(first)
        .and_then(|(by, first)| (!scraped.get(first)?.contains_key(by)).then(|| format!("{first} by {by}")))
}

#[test]
fn board_and_alerts_use_existing_metrics() {
    let scraped = scraped();
    assert!(scraped.len() > 60, "{}", scraped.len());
    let queries = BOARD.iter().flat_map(|(_, row)| row.iter()).flat_map(|(_, _, queries)| queries.iter());
    for expr in queries.map(|(expr, _)| *expr).chain(ALERTS.iter().map(|alert| alert[1])) {
        assert_eq!(unknown(expr, &scraped), None, "{expr}");
        let count = |c: char| expr.chars().filter(|other| *other == c).count();
        assert!(count('(') == count(')') && count('[') == count(']') && count('{') == count('}'), "{expr}");
    }
    // The check finds wrong expressions.
    for wrong in [
        "furrow_rollout_score_total",
        "furrow_env_slot_seconds_total{use=\"idle\"}",
        "sum by (reason) (furrow_rollout_ends_total)",
    ] {
        assert!(unknown(wrong, &scraped).is_some(), "{wrong}");
    }
}

#[test]
fn the_files_in_deploy_are_these() {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy"));
    for (name, text) in [("grafana.json", format!("{:#}\n", board())), ("alerts.yml", alerts())] {
        let path = folder.join(name);
        if std::env::var_os("FURROW_WRITE_BOARD").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            there == text,
            "{name} differs from what board.rs generates; run FURROW_WRITE_BOARD=1 cargo test -p furrow-telemetry --test integration board"
        );
    }
}
