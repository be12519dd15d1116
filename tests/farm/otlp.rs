//! OpenTelemetry export of a real farm: three processes, one trace per trajectory, metrics that
//! agree with the data set; and a missing endpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use furrow_testkit::collector::{CollectorMode, FakeCollector, attribute};
use serde_json::Value;

use crate::farm::{FarmBrowser, FarmHarness, furrow, simulated_tasks};

const GROUPS: u32 = 3;
const GROUP_SIZE: u32 = 2;
const TRAJECTORIES: usize = (GROUPS * GROUP_SIZE) as usize;

fn job(folder: &std::path::Path, endpoint: &str) -> String {
    let tasks = simulated_tasks(folder, GROUPS, GROUP_SIZE);
    format!(
        "{tasks}[policy]\nkind = \"scripted\"\nthink_millis = 20\n[records]\nmax_delay_millis = 200\n\
         [telemetry]\notlp_endpoint = {endpoint:?}\n"
    )
}

/// The fields of a span that the test uses.
struct ReceivedSpan {
    name: String,
    parent: Vec<u8>,
    role: String,
    micros: u64,
    attributes: BTreeMap<String, String>,
}

#[test]
fn three_processes_write_one_trace_a_trajectory() {
    let folder = tempfile::tempdir().unwrap();
    let collector = FakeCollector::start(CollectorMode::Take);
    let mut farm =
        FarmHarness::new(FarmBrowser::Simulated(2_000), &job(folder.path(), &collector.endpoint()));
    farm.start_all();
    farm.finish(Duration::from_secs(60));

    let mut traces: BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, ReceivedSpan>> = BTreeMap::new();
    for sent in collector.spans() {
        let role = attribute(&sent.resource, "furrow.role").unwrap();
        assert_eq!(attribute(&sent.resource, "furrow.run").as_deref(), Some("run"));
        for span in sent.items {
            let attributes = span
                .attributes
                .iter()
                .filter_map(|pair| Some((pair.key.clone(), attribute(&span.attributes, &pair.key)?)));
            let received = ReceivedSpan {
                attributes: attributes.collect(),
                name: span.name,
                parent: span.parent_span_id,
                role: role.clone(),
                micros: (span.end_time_unix_nano - span.start_time_unix_nano) / 1000,
            };
            let known = traces.entry(span.trace_id).or_default().insert(span.span_id, received);
            assert!(known.is_none(), "a span arrived twice");
        }
    }
    assert_eq!(traces.len(), TRAJECTORIES);
    traces.values().for_each(check_trace);

    // The last metrics of each role equal those of the data set.
    let total = |name: &str, role: &str| {
        let of_role = |resource: &[_]| attribute(resource, "furrow.role").as_deref() == Some(role);
        let last = collector.metrics().into_iter().rfind(|sent| of_role(&sent.resource)).unwrap();
        let metric = last.items.into_iter().find(|metric| metric.name == name).unwrap();
        let text = format!("{:?}", metric.data.unwrap());
        let number = text.split("AsInt(").nth(1).unwrap_or_else(|| panic!("{name}: {text}"));
        number.split(')').next().unwrap().parse::<usize>().unwrap()
    };
    let steps: usize =
        traces.values().map(|spans| spans.values().filter(|span| span.name == "step").count()).sum();
    assert_eq!(total("furrow_rollout_scored_total", "coordinator"), TRAJECTORIES);
    assert_eq!(total("furrow_env_steps_total", "env"), steps);
    assert_eq!(total("furrow_policy_replies_total", "policy"), steps);
    assert_eq!(total("furrow_policy_sessions_opened_total", "policy"), TRAJECTORIES);
    assert_eq!(total("furrow_policy_sessions", "policy"), 0, "each session was closed");
}

fn check_trace(spans: &BTreeMap<Vec<u8>, ReceivedSpan>) {
    let of = |name: &str| spans.values().filter(|span| span.name == name).collect::<Vec<_>>();
    let [root] = of("trajectory")[..] else { panic!("expected one root") };
    assert!(root.parent.is_empty() && root.role == "env");
    let whose: BTreeSet<_> =
        spans.values().filter_map(|span| span.attributes.get("furrow.trajectory_id")).collect();
    assert_eq!(whose.len(), 1);
    for span in spans.values().filter(|span| span.name != "trajectory") {
        let parent = spans.get(&span.parent).unwrap_or_else(|| panic!("{} has no parent", span.name));
        assert!(span.micros <= parent.micros || span.name == "score", "{} outlasts its parent", span.name);
        assert_eq!(parent.name == "policy", span.name == "reply");
    }
    let steps = of("step");
    let replies = of("reply");
    let scores = of("score");
    assert!(replies.iter().all(|reply| reply.role == "policy" && reply.micros >= 20_000));
    assert!(scores.len() == 1 && scores[0].role == "coordinator");
    assert_eq!(root.attributes["furrow.steps"], steps.len().to_string());
    assert_eq!(replies.len(), steps.len());
    // The parts of a step add up to it.
    for (id, step) in spans.iter().filter(|(_, span)| span.name == "step") {
        let parts: u64 = spans.values().filter(|span| span.parent == *id).map(|span| span.micros).sum();
        assert_eq!(parts, step.micros);
    }
}

#[test]
fn an_endpoint_that_is_not_there_costs_a_run_nothing_but_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    // A port without a listener: a collector that has just stopped.
    let closed = FakeCollector::start(CollectorMode::Take).endpoint();
    let text = format!("[run]\nname = \"run\"\noutput_dir = \".\"\n{}", job(here, &closed));
    fs::write(here.join("job.toml"), text).unwrap();
    let began = Instant::now();
    let output = furrow(&["run", "job.toml", "--simulate-browser", "2000"], here);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    let lines = fs::read_to_string(here.join("run/logs/run.jsonl")).unwrap();
    let events: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut failing: Vec<_> = events
        .iter()
        .filter(|event| event["event"] == "export.failing")
        .map(|event| event["signal"].as_str().unwrap())
        .collect();
    failing.sort_unstable();
    assert_eq!(failing, ["metrics", "spans"], "each fails once\n{stderr}");
    let scored = events.iter().filter(|event| event["event"] == "trajectory.scored").count();
    assert_eq!(scored, TRAJECTORIES);
}
