//! The JSON of the answers: its keys, its order, its numbers.

use furrow_analysis::{KeptLine, KeptReport};
use furrow_records::LogprobGap;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;

fn rates() -> TrajectoryRates {
    TrajectoryRates {
        trajectories: 4,
        scored: 3,
        failed: 1,
        judged: 2,
        successes: 1,
        steps: 10,
        success_rate: Some(0.5),
        reward_mean: Some(1.0),
        failure_rate: Some(0.25),
        steps_mean: Some(2.5),
        response_tokens_per_step: None,
        invalid_action_rate: Some(0.0),
        device_seconds_per_scored: Some(1e21),
    }
}

fn head() -> PageHead {
    PageHead { name: "<night>".into(), trouble: Some("torn".into()), ..PageHead::default() }
}

fn live() -> LiveProgress {
    LiveProgress {
        success_rate: Some(RateWithInterval { low: 0.25, high: 0.75, value: 0.5 }),
        version: Some(-1),
        weights: vec![RunningVersion { worker: "policy-0".into(), version: 3, lags: String::new() }],
        ..LiveProgress::default()
    }
}

fn parts() -> Vec<TimeShare> {
    vec![TimeShare { cause: "busy".into(), group: "busy".into(), micros: u64::MAX, share: 1.0 }]
}

fn overview() -> OverviewAnswer {
    let metrics = OverviewMetrics {
        counts: rates(),
        ends: vec![EndCount { end: "answered".into(), status: "scored".into(), trajectories: 3 }],
        started_at: Some(-1),
        wall_seconds: Some(90.5),
        device: DeviceKind::Cpu,
        device_parts: Some(parts()),
        session_parts: parts(),
        over_time: TrajectoriesOverTime { span_minutes: 1, points: vec![MinuteSpan::default()] },
        hours_over_time: vec![HistorySpan::default()],
        ..OverviewMetrics::default()
    };
    OverviewAnswer { metrics, head: head(), live: Some(live()) }
}

fn learning() -> LearningAnswer {
    let kept = KeptLine { by: "suite".into(), value: "shop".into(), ..KeptLine::default() };
    let metrics = LearningMetrics {
        by_version: vec![VersionLine {
            rates: rates(),
            version: Some(2),
            success_interval: Some(RateInterval { low: 0.25, high: 0.75 }),
            entropy_mean: Some(0.125),
            ..VersionLine::default()
        }],
        by_suite: vec![SuiteLine { rates: rates(), suite: "shop".into() }],
        by_task: vec![TaskLine { rates: rates(), suite: "shop".into(), task_id: "t-1".into() }],
        finish_reasons: [("stop".to_owned(), 3)].into(),
        prefill_gap: Some(LogprobGap { tokens: 3, mean_abs: 0.5, p50: 0.5, p99: 1.0, max: 1.0 }),
        staleness: vec![(0, 7), (10, 2)],
        ..LearningMetrics::default()
    };
    let kept = KeptReport { max_off_policy_versions: None, lines: vec![kept] };
    LearningAnswer { metrics, kept: Some(kept), head: head() }
}

fn job() -> JobAnswer {
    let account = TimeAccount { micros: 1, parts: parts() };
    JobAnswer {
        head: head(),
        live: Some(live()),
        workers: Some(vec![WorkerStatus { heard_seconds: 0.5, ..WorkerStatus::default() }]),
        plan: Some(vec![
            PlanLine::default(),
            PlanLine { device: Some("h200".into()), planned: Some(7.0), ..PlanLine::default() },
        ]),
        ledger: TimeLedger { device: account, cpu_micros: Some(2), ..TimeLedger::default() },
        tables: Some(vec![TableTotals { table: "steps".into(), files: 1, rows: 2, bytes: 3 }]),
        ..JobAnswer::default()
    }
}

fn trajectory() -> TrajectoryAnswer {
    TrajectoryAnswer {
        trajectory: json!({ "trajectory_id": "t", "reward": 0.5 }),
        steps: vec![json!({ "step": 0 })],
        siblings: vec![TrajectoryRow { reward: Some(0.5), success: Some(true), ..TrajectoryRow::default() }],
        head: head(),
    }
}

#[test]
fn what_is_read_again_is_the_same_text() {
    #[track_caller]
    fn check<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(answer: &T) {
        let text = serde_json::to_string(answer).unwrap();
        let read: T = serde_json::from_str(&text).unwrap();
        assert_eq!(read, *answer);
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        // What a report contains.
        assert_eq!(json!(answer).to_string(), text);
    }
    check(&overview());
    check(&OverviewAnswer::default());
    check(&learning());
    check(&LearningAnswer::default());
    check(&job());
    check(&JobAnswer::default());
    check(&SessionsAnswer { sessions: vec![RunningSession::default()], ..SessionsAnswer::default() });
    check(&SessionStep { step: 3, observed_at: -1, ..SessionStep::default() });
    check(&TrajectoryWindow { rows: trajectory().siblings, ..TrajectoryWindow::default() });
    check(&trajectory());
    check(&ChoicesAnswer { suites: vec!["shop".into()], ..ChoicesAnswer::default() });
    check(&Refusal { error: "use GET".into() });
    check(&RunsAnswer { runs: vec![RunLine::default()], ..RunsAnswer::default() });
    let task = TaskDifferenceLine { success: Some(DifferenceAnswer::default()), ..Default::default() };
    let comparison = ComparisonAnswer { tasks: vec![task], ..ComparisonAnswer::default() };
    check(&CompareAnswer { keys: vec!["a".into()], comparisons: vec![comparison] });
}

/// Checks the keys of an object, in order.
#[track_caller]
fn check_keys(answer: &impl Serialize, want: &str) {
    let value = json!(answer);
    let keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys.join(" "), want);
}

const RATES: &str = "trajectories scored failed judged successes steps success_rate reward_mean failure_rate \
     steps_mean response_tokens_per_step invalid_action_rate device_seconds_per_scored";

#[test]
fn the_keys_of_the_overview_are_these() {
    check_keys(&rates(), RATES);
    check_keys(
        &overview(),
        "counts training evaluated ends started_at ended_at wall_seconds device throughput tokens device_hours \
         device_micros_of_trajectories device_parts slot_parts session_parts cost_usd cost_usd_per_trajectory \
         versions over_time hours_over_time head live",
    );
    check_keys(
        &head(),
        "name version generation lines trajectories left_out step_files_left problems trouble device",
    );
    check_keys(&EndCount::default(), "end status trajectories");
    check_keys(
        &Throughput::default(),
        "scored trajectories_per_device_hour ceiling_device_bound ceiling_session_bound \
         trajectories_per_slot_hour trajectories_per_hour steps_per_second",
    );
    check_keys(
        &TokenRates::default(),
        "generated prefilled reused generated_per_second prefilled_per_second reused_per_second reused_share",
    );
    check_keys(&VersionRange::default(), "oldest newest staleness_mean staleness_max");
    check_keys(&parts()[0], "cause group micros share");
    check_keys(&TrajectoriesOverTime::default(), "span_minutes points");
    check_keys(
        &MinuteSpan::default(),
        "at scored failed trajectories_per_hour success_rate success_interval",
    );
    check_keys(
        &HistorySpan::default(),
        "at trajectories_per_device_hour trajectories_per_hour device_busy_share",
    );
    check_keys(
        &live(),
        "groups_planned groups_closed running scored failed published discarded steps successes judged \
         success_rate scoring reward_mean env_workers policy_workers admission run_over \
         trajectories_per_hour eta_seconds version version_newest weights",
    );
    check_keys(&live().success_rate, "low high value");
    check_keys(&live().weights[0], "worker version lags");
}

#[test]
fn the_keys_of_learning_and_of_the_job_are_these() {
    check_keys(
        &learning(),
        "all evaluated by_version versions_left_out by_suite by_task tasks_left_out groups zero_variance_share \
         finish_reasons outcomes state_origins invalid_action_rate response_tokens_per_step entropy_mean \
         logprob_mean prefill_gap staleness lengths kept head",
    );
    check_keys(
        &learning().metrics.by_version[0],
        &format!("{RATES} version success_interval entropy_mean logprob_mean groups zero_variance_share"),
    );
    check_keys(&learning().metrics.by_suite[0], &format!("{RATES} suite"));
    check_keys(&learning().metrics.by_task[0], &format!("{RATES} suite task_id"));
    check_keys(&job(), "head dir live workers plan job ledger tables metrics_lines_unread");
    check_keys(
        &WorkerStatus::default(),
        "worker role sessions sessions_max heard_seconds memory_bytes memory_left_bytes version waits",
    );
    // Only the line of a device names it.
    check_keys(&job().plan.unwrap()[0], "figure planned measured share");
    check_keys(&job().plan.unwrap()[1], "figure planned measured share device");
    check_keys(&TimeLedger::default(), "device slots sessions cpu_micros");
    check_keys(&TimeAccount::default(), "micros parts");
    check_keys(&TableTotals::default(), "table files rows bytes");
}

#[test]
fn the_keys_of_sessions_and_trajectories_are_these() {
    check_keys(&SessionsAnswer::default(), "head is_live sessions");
    check_keys(&SessionsHead::default(), "name problems step_files_left left_out");
    check_keys(
        &RunningSession::default(),
        "trajectory_id task_id suite steps env_worker policy_worker started_at first_shown",
    );
    check_keys(&SessionStep::default(), "step title url action outcome observed_at");
    check_keys(&TrajectoryWindow::default(), "total matched offset rows");
    check_keys(
        &TrajectoryRow::default(),
        "trajectory_id task_id suite split policy_kind status end sample_index attempt reward success num_steps \
         num_prompt_tokens num_response_tokens num_invalid_actions policy_version_min policy_version_max staleness \
         gpu_millis life_millis ended_at",
    );
    check_keys(&trajectory(), "trajectory steps siblings head");
    check_keys(&ChoicesAnswer::default(), "suites splits ends policy_kinds head");
    check_keys(&Refusal::default(), "error");
}

#[test]
fn whole_numbers_stay_whole_and_what_is_not_known_is_null() {
    let text = serde_json::to_string(&rates()).unwrap();
    assert!(text.starts_with(r#"{"trajectories":4,"scored":3,"#), "{text}");
    assert!(text.contains(r#""reward_mean":1.0,"failure_rate":0.25"#), "{text}");
    assert!(text.contains(r#""response_tokens_per_step":null,"#), "{text}");
    let learning = json!(learning());
    assert_eq!(learning["staleness"], json!([[0, 7], [10, 2]]));
    assert_eq!(learning["by_version"][0]["success_interval"], json!({ "low": 0.25, "high": 0.75 }));
    assert_eq!(learning["by_version"][0]["logprob_mean"], Value::Null);
    let interval = RateInterval { low: f64::NAN, high: f64::INFINITY };
    assert_eq!(serde_json::to_string(&interval).unwrap(), r#"{"low":null,"high":null}"#);
}

#[test]
fn an_answer_of_another_version_is_read() {
    let mut newer = json!(overview());
    newer["carbon"] = json!(1);
    newer["counts"]["weather"] = json!("rain");
    newer["head"]["device"] = json!("quantum");
    newer["live"].as_object_mut().unwrap().remove("eta_seconds");
    let read: OverviewAnswer = serde_json::from_value(newer.clone()).unwrap();
    assert_eq!(read.metrics, overview().metrics);
    assert_eq!(read.head.device, DeviceKind::None);
    assert_eq!(read.live, overview().live);
    // A count is not made up.
    newer["counts"].as_object_mut().unwrap().remove("scored");
    let why = serde_json::from_value::<OverviewAnswer>(newer).unwrap_err().to_string();
    assert!(why.contains("missing field `scored`"), "{why}");
}
