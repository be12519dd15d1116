//! Every event as a reader of the log gets it, and the metrics it changes. The `*.acknowledged`,
//! `trajectory.scored` and `shard.published` lines are a contract: checkers outside of this
//! repository compare them with the data set.
//!
//! A binary of its own, because a process has one log and one set of metrics, and the test compares
//! all of both.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod reader;

use std::collections::BTreeSet;
use std::panic;
use std::time::Duration;

use furrow_rollout::{
    EndKind, EngineStats, GroupRecord, GroupStatistics, Id, OutcomeName, PolicyKind, Score, Split, TimeCause,
    TimeSplit, TrajectoryAncestry,
};
use furrow_telemetry::*;
use serde_json::json;

use crate::reader::LogReader;

const RUN_ID: &str = "r";
const TRAJECTORY_ID: &str = "r-g000003-s1-a0";

fn ancestry() -> TrajectoryAncestry {
    let run_id = Id::new(RUN_ID).unwrap();
    let group_id = Id::nth(&run_id, 3);
    let trajectory_id = Id::attempt(&group_id, 1, 0);
    TrajectoryAncestry { run_id, group_id, sample_index: 1, attempt: 0, trajectory_id }
}

fn split(cause: TimeCause, micros: u64) -> TimeSplit {
    let mut split = TimeSplit::default();
    split.add(cause, micros);
    split
}

#[test]
fn every_event_writes_one_line_and_its_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let path = log_path(folder.path(), Role::Tool);
    let config = TelemetryFile { log_level: Level::Debug, stderr_level: Level::Error, ..Default::default() };
    LogTargets::to_file(path.clone(), &config.check().unwrap()).start().unwrap();
    let mut reader = LogReader { path, recorded_events: BTreeSet::new() };
    for check in [
        check_run_and_worker_events,
        check_lease_events,
        check_trajectory_events,
        check_evaluation_events,
        check_group_and_shard_events,
        check_admission_events,
        check_acknowledgement_events,
        check_browser_events,
        check_page_events,
        check_endpoint_events,
        check_session_events,
        check_process_events,
    ] {
        check(&mut reader);
    }
    let all: BTreeSet<String> = event::ALL.iter().map(ToString::to_string).collect();
    assert_eq!(reader.recorded_events, all, "each event name is emitted by a test here");
}

fn check_run_and_worker_events(reader: &mut LogReader) {
    let run = &Id::new(RUN_ID).unwrap();
    reader.check(
        || RunStarted { run_id: run, resumed: false }.emit(),
        "INFO",
        json!({"event": "run.started", "run_id": RUN_ID, "resumed": false}),
        &[],
    );
    reader.check(
        || RunEnded { run_id: run, complete: true, scored: 60, failed: 2 }.emit(),
        "INFO",
        json!({"event": "run.ended", "run_id": RUN_ID, "complete": true, "scored": 60, "failed": 2}),
        &[],
    );
    reader.check(
        || WorkerRegistered { kind: WorkerKind::Env, worker: "e1", slots: 8 }.emit(),
        "INFO",
        json!({"event": "worker.registered", "kind": "env", "worker": "e1", "slots": 8}),
        &[("rollout/workers/env", 1)],
    );
    reader.check(
        || WorkerRefused { kind: WorkerKind::Policy, worker: "p1", reason: "speaks version 2" }.emit(),
        "WARN",
        json!({"event": "worker.refused", "kind": "policy", "worker": "p1", "reason": "speaks version 2"}),
        &[("rollout/workers_refused/policy", 1)],
    );
    reader.check(
        || WorkerLeft { kind: WorkerKind::Env, worker: "e1" }.emit(),
        "INFO",
        json!({"event": "worker.left", "kind": "env", "worker": "e1"}),
        &[("rollout/workers/env", -1)],
    );
    reader.check(
        || WorkerLost { kind: WorkerKind::Env, worker: "e1", reason: "silent for 30 s" }.emit(),
        "WARN",
        json!({"event": "worker.lost", "kind": "env", "worker": "e1", "reason": "silent for 30 s"}),
        &[("rollout/workers/env", -1)],
    );
}

fn check_lease_events(reader: &mut LogReader) {
    let of = &ancestry();
    reader.check(
        || AssignmentLeased { of, token: 7, worker: "e1", task_id: "click \"me\"\n" }.emit(),
        "INFO",
        json!({"event": "assignment.leased", "run_id": RUN_ID, "trajectory_id": TRAJECTORY_ID, "token": 7,
               "worker": "e1", "task_id": "click \"me\"\n"}),
        &[("rollout/assignments", 1)],
    );
    reader.check(
        || LeaseLost { of, token: 7, worker: "e1" }.emit(),
        "WARN",
        json!({"event": "lease.lost", "run_id": RUN_ID, "trajectory_id": TRAJECTORY_ID, "token": 7, "worker": "e1"}),
        &[("rollout/leases_lost", 1)],
    );
    reader.check(
        || CallFenced { of, token: 7, call: "record_step", why: "other secret" }.emit(),
        "WARN",
        json!({"event": "call.fenced", "run_id": RUN_ID, "trajectory_id": TRAJECTORY_ID, "token": 7, "call": "record_step", "why": "other secret"}),
        &[("rollout/calls_fenced", 1)],
    );
    reader.check(
        || CallRepeated { of, call: "record_step" }.emit(),
        "DEBUG",
        json!({"event": "call.repeated", "run_id": RUN_ID, "trajectory_id": TRAJECTORY_ID, "call": "record_step"}),
        &[("rollout/calls_repeated", 1)],
    );
    reader.check(
        || StepRecorded { of, step: 2, token: 8 }.emit(),
        "DEBUG",
        json!({"event": "step.recorded", "run_id": RUN_ID, "trajectory_id": TRAJECTORY_ID, "step": 2, "token": 8}),
        &[("rollout/steps", 1)],
    );
    reader.check(
        || TrajectoryFinished { of, token: 8, end: EndKind::Done, steps: 3 }.emit(),
        "DEBUG",
        json!({"event": "trajectory.finished", "run_id": RUN_ID, "trajectory_id": TRAJECTORY_ID, "token": 8,
               "end": "done", "steps": 3}),
        &[],
    );
}

fn check_trajectory_events(reader: &mut LogReader) {
    let of = &ancestry();
    let score = |success| Score {
        reward: Some(0.5),
        success,
        components: Vec::new(),
        scorer: "probe".into(),
        version: 1,
        rationale: String::new(),
        evidence_sha256: [0; 32],
    };
    let scored = |score: &Score| {
        TrajectoryScored { of, end: EndKind::Done, score, reward: 0.5, score_micros: 40 }.emit();
    };
    reader.check(
        || scored(&score(Some(true))),
        "INFO",
        json!({"event": "trajectory.scored", "run_id": RUN_ID, "trajectory_id": TRAJECTORY_ID, "reward": 0.5,
               "success": true, "end": "done", "scorer": "probe"}),
        &[
            ("rollout/trajectories", 1),
            ("rollout/scored", 1),
            ("rollout/ends/done", 1),
            ("rollout/successes", 1),
            ("rollout/reward", 1),
            ("rollout/score_micros", 1),
        ],
    );
    reader.check(
        || scored(&score(None)),
        "INFO",
        json!({"event": "trajectory.scored", "run_id": RUN_ID, "trajectory_id": TRAJECTORY_ID, "reward": 0.5,
               "end": "done", "scorer": "probe"}),
        &[
            ("rollout/trajectories", 1),
            ("rollout/scored", 1),
            ("rollout/ends/done", 1),
            ("rollout/reward", 1),
            ("rollout/score_micros", 1),
        ],
    );
    reader.check(
        || TrajectoryFailed { of, end: EndKind::PageCrash, reason: "gone", retried: true }.emit(),
        "WARN",
        json!({"event": "trajectory.failed", "run_id": RUN_ID, "trajectory_id": TRAJECTORY_ID, "end": "page_crash",
               "retried": true, "reason": "gone"}),
        &[
            ("rollout/trajectories", 1),
            ("rollout/failed", 1),
            ("rollout/ends/page_crash", 1),
            ("rollout/retries", 1),
        ],
    );
}

fn check_evaluation_events(reader: &mut LogReader) {
    reader.check(
        || VersionWithdrawn { version: 3, reason: "its logits are not finite" }.emit(),
        "ERROR",
        json!({"event": "version.withdrawn", "version": 3, "reason": "its logits are not finite"}),
        &[("rollout/versions_withdrawn", 1)],
    );
    reader.check(
        || EvaluationBegun { version: 4, problems: 3 }.emit(),
        "INFO",
        json!({"event": "evaluation.begun", "version": 4, "problems": 3}),
        &[],
    );
    let ended = |cut| EvaluationEnded { version: 4, problems: 3, drawn: 2, scored: 4, succeeded: 1, cut };
    reader.check(
        || ended(None).emit(),
        "INFO",
        json!({"event": "evaluation.ended", "version": 4, "problems": 3, "scored": 4, "succeeded": 1, "success": 0.25}),
        &[("eval/evaluations", 1), ("eval/version", 4), ("eval/scored", 4), ("eval/successes", 1)],
    );
    reader.check(
        || ended(Some("newer weights waited")).emit(),
        "WARN",
        json!({"event": "evaluation.ended", "version": 4, "problems": 3, "drawn": 2, "scored": 4, "succeeded": 1, "success": 0.25, "why": "newer weights waited"}),
        &[("eval/evaluations", 1), ("eval/cut", 1)],
    );
}

fn check_group_and_shard_events(reader: &mut LogReader) {
    let of = &ancestry();
    let group = |valid, rewards| GroupRecord {
        run_id: of.run_id.clone(),
        group_id: of.group_id.clone(),
        task_id: "t".into(),
        suite: "s".into(),
        split: Split::Train,
        seed: 1,
        planned: 4,
        valid,
        failed: Default::default(),
        rewards,
        policy_versions: None,
        closed_at_micros: 0,
    };
    let equal = GroupStatistics { mean: 1.0, std: 0.0, zero_variance: true };
    reader.check(
        || GroupClosed { group: &group(4, Some(equal)) }.emit(),
        "INFO",
        json!({"event": "group.closed", "run_id": RUN_ID, "group_id": "r-g000003", "planned": 4, "valid": 4,
               "mean": 1.0, "std": 0.0}),
        &[("rollout/groups", 1), ("rollout/groups_zero_variance", 1)],
    );
    reader.check(
        || GroupClosed { group: &group(0, None) }.emit(),
        "INFO",
        json!({"event": "group.closed", "run_id": RUN_ID, "group_id": "r-g000003", "planned": 4, "valid": 0}),
        &[("rollout/groups", 1), ("rollout/groups_short", 1)],
    );
    let shard_id = &Id::new("r-7").unwrap();
    let delays = &[Duration::from_micros(900), Duration::from_millis(2)];
    reader.check(
        || ShardCommitted { shard_id, version: 5, delays, bytes: 1234 }.emit(),
        "INFO",
        json!({"event": "shard.published", "shard_id": "r-7", "version": 5, "trajectories": 2, "bytes": 1234,
               "slowest_micros": 2000}),
        &[
            ("records/shards", 1),
            ("records/trajectories", 2),
            ("records/bytes", 1234),
            ("records/commit_micros", 2),
        ],
    );
    reader.check(
        || {
            RowsExpired { version: 9, up_to: 4, trajectories: 3, steps: 40, files: 5, bytes: 777 }.emit();
        },
        "INFO",
        json!({"event": "rows.expired", "version": 9, "up_to": 4, "trajectories": 3, "steps": 40, "files": 5,
               "bytes": 777}),
        &[("records/expired", 3), ("records/expired_bytes", 777)],
    );
}

fn check_admission_events(reader: &mut LogReader) {
    reader.check(
        || AdmissionPaused { reason: PauseReason::DiskReserve, detail: "1 GB left of 5" }.emit(),
        "WARN",
        json!({"event": "admission.paused", "reason": "disk_reserve", "detail": "1 GB left of 5"}),
        &[("rollout/paused/disk_reserve", 1)],
    );
    reader.check(
        || AdmissionResumed { reason: PauseReason::DiskReserve }.emit(),
        "INFO",
        json!({"event": "admission.resumed", "reason": "disk_reserve"}),
        &[("rollout/paused/disk_reserve", -1)],
    );
    reader.check(
        || SpoolRecovered { files: 3, records: 40, cut_bytes: 17 }.emit(),
        "INFO",
        json!({"event": "spool.recovered", "files": 3, "records": 40, "cut_bytes": 17}),
        &[("records/spool_recovered", 3)],
    );
}

fn check_acknowledgement_events(reader: &mut LogReader) {
    let of = &ancestry();
    let timing = &split(TimeCause::Policy, 1500);
    reader.check(
        || TrajectoryStarted { of, token: 8, worker: "e1", browser: "b0" }.emit(),
        "INFO",
        json!({"event": "trajectory.started", "run_id": RUN_ID, "trajectory_id": TRAJECTORY_ID, "token": 8,
               "worker": "e1", "browser": "b0"}),
        &[],
    );
    let outcome = OutcomeName::OutsidePage;
    reader.check(
        || StepAcknowledged { of, step: 2, token: 8, outcome, began_at_micros: 5, timing, screenshot_bytes: 99 }
                .emit(),
        "INFO",
        json!({"event": "step.acknowledged", "run_id": RUN_ID, "trajectory_id": TRAJECTORY_ID, "step": 2, "token": 8,
               "outcome": "outside_page", "micros": 1500}),
        &[
            ("env/steps", 1),
            ("env/step_micros", 1),
            ("env/outcomes/outside_page", 1),
            ("env/screenshot_bytes", 99),
        ],
    );
    reader.check(
        || TrajectoryAcknowledged { of, token: 8, end: EndKind::Answered, steps: 3, timing, report_micros: 7 }.emit(),
        "INFO",
        json!({"event": "trajectory.acknowledged", "run_id": RUN_ID, "trajectory_id": TRAJECTORY_ID, "token": 8,
               "end": "answered", "steps": 3, "micros": 1500}),
        &[("env/trajectories", 1)],
    );
    reader.check(
        || TrajectoryAbandoned { of, token: 8, timing, reason: "its token is stale" }.emit(),
        "WARN",
        json!({"event": "trajectory.abandoned", "run_id": RUN_ID, "trajectory_id": TRAJECTORY_ID, "token": 8,
               "reason": "its token is stale"}),
        &[("env/abandoned", 1)],
    );
}

/// Browsers, and the memory that the worker has for them.
fn check_browser_events(reader: &mut LogReader) {
    let test = |problem| {
        ChromiumSelfTest { product: "Chrome/156", sandbox: true, walls: "full", micros: 9, problem }.emit();
    };
    reader.check(
        || test(None),
        "INFO",
        json!({"event": "chromium.self_test", "product": "Chrome/156", "sandbox": true, "walls": "full", "micros": 9, "passed": true}),
        &[],
    );
    reader.check(
        || test(Some("no screenshot")),
        "WARN",
        json!({"event": "chromium.self_test", "product": "Chrome/156", "sandbox": true, "walls": "full", "micros": 9, "passed": false,
               "problem": "no screenshot"}),
        &[],
    );
    reader.check(
        || BrowserStarted { browser: "b0", pid: 42, product: "Chrome/156", micros: 800 }.emit(),
        "INFO",
        json!({"event": "browser.started", "browser": "b0", "pid": 42, "product": "Chrome/156", "micros": 800}),
        &[("env/browsers", 1), ("env/browsers_started", 1)],
    );
    reader.check(
        || BrowserStopped { browser: "b0", pid: 42 }.emit(),
        "INFO",
        json!({"event": "browser.stopped", "browser": "b0", "pid": 42}),
        &[("env/browsers", -1)],
    );
    let died = |death| BrowserDied { browser: "b1", pid: 43, death, detail: "signal 9" }.emit();
    reader.check(
        || died(BrowserDeath::Exited),
        "WARN",
        json!({"event": "browser.died", "browser": "b1", "pid": 43, "death": "exited", "detail": "signal 9"}),
        &[("env/browsers", -1), ("env/browsers_died/exited", 1)],
    );
    reader.check(
        || died(BrowserDeath::StartFailed),
        "WARN",
        json!({"event": "browser.died", "browser": "b1", "pid": 43, "death": "start_failed", "detail": "signal 9"}),
        &[("env/browsers_died/start_failed", 1)],
    );
    let over = BrowserOverLimit {
        browser: "b1",
        pid: 44,
        limit: BrowserLimit::Threads,
        used: 5000,
        most: 4096,
        whole: false,
    };
    reader.check(
        || over.emit(),
        "WARN",
        json!({"event": "browser.over_limit", "browser": "b1", "pid": 44, "limit": "threads", "used": 5000,
            "most": 4096, "whole": false}),
        &[("env/over_limit/threads", 1)],
    );
    reader.check(
        || MemoryShort { available_bytes: 7, reserve_bytes: 9, in_hand: 2 }.emit(),
        "WARN",
        json!({"event": "memory.short", "available_bytes": 7, "reserve_bytes": 9, "in_hand": 2}),
        &[],
    );
    reader.check(
        || MemoryEased { available_bytes: 11, micros: 5 }.emit(),
        "INFO",
        json!({"event": "memory.eased", "available_bytes": 11, "micros": 5}),
        &[],
    );
}

fn check_page_events(reader: &mut LogReader) {
    let of = &ancestry();
    reader.check(
        || PageCrashed { of, step: 4 }.emit(),
        "WARN",
        json!({"event": "page.crashed", "run_id": RUN_ID, "trajectory_id": TRAJECTORY_ID, "step": 4}),
        &[("env/pages_crashed", 1)],
    );
    reader.check(
        || PageHung { of, step: 4, waited_for: "screenshot" }.emit(),
        "WARN",
        json!({"event": "page.hung", "run_id": RUN_ID, "trajectory_id": TRAJECTORY_ID, "step": 4,
               "waited_for": "screenshot"}),
        &[("env/pages_hung", 1)],
    );
    reader.check(
        || DialogDismissed { of }.emit(),
        "DEBUG",
        json!({"event": "dialog.dismissed", "run_id": RUN_ID, "trajectory_id": TRAJECTORY_ID}),
        &[("env/dialogs_dismissed", 1)],
    );
    reader.check(
        || PopupClosed { of }.emit(),
        "DEBUG",
        json!({"event": "popup.closed", "run_id": RUN_ID, "trajectory_id": TRAJECTORY_ID}),
        &[("env/popups_closed", 1)],
    );
    reader.check(
        || DownloadDenied { of }.emit(),
        "DEBUG",
        json!({"event": "download.denied", "run_id": RUN_ID, "trajectory_id": TRAJECTORY_ID}),
        &[("env/downloads_denied", 1)],
    );
    let host = "x".repeat(500);
    let reason = BlockReason::OffList;
    reader.check(
        || RequestBlocked { of: Some(of), host: &host, reason }.emit(),
        "DEBUG",
        json!({"event": "request.blocked", "run_id": RUN_ID, "trajectory_id": TRAJECTORY_ID, "host": "x".repeat(253),
               "reason": "off_list"}),
        &[("env/requests_blocked/off_list", 1)],
    );
    reader.check(
        || RequestBlocked { of: None, host: "a.test", reason: BlockReason::Scheme }.emit(),
        "DEBUG",
        json!({"event": "request.blocked", "host": "a.test", "reason": "scheme"}),
        &[("env/requests_blocked/scheme", 1)],
    );
}

/// The endpoint that a worker asks, and the one that it serves.
fn check_endpoint_events(reader: &mut LogReader) {
    reader.check(
        || RemoteAnswered { prompt_tokens: 900, completion_tokens: 30, attempts: 3, micros: 7, cost_usd: Some(0.25) }.emit(),
        "DEBUG",
        json!({"event": "remote.answered", "prompt_tokens": 900, "completion_tokens": 30, "attempts": 3, "micros": 7, "cost_usd": 0.25}),
        &[
            ("remote/replies", 1),
            ("remote/retries", 2),
            ("remote/prompt_tokens", 900),
            ("remote/completion_tokens", 30),
            ("remote/cost_usd_millionths", 250_000),
            ("remote/reply_micros", 1),
        ],
    );
    reader.check(
        || RemoteFailed { step: 2, reason: "away" }.emit(),
        "WARN",
        json!({"event": "remote.failed", "step": 2, "reason": "away"}),
        &[("remote/failures", 1)],
    );
    reader.check(
        || ChatAnswered { prompt_tokens: 90, cached_tokens: 60, completion_tokens: 12, micros: 7 }.emit(),
        "DEBUG",
        json!({"event": "chat.answered", "prompt_tokens": 90, "cached_tokens": 60, "completion_tokens": 12, "micros": 7}),
        &[
            ("serve/replies", 1),
            ("serve/prompt_tokens", 90),
            ("serve/cached_tokens", 60),
            ("serve/completion_tokens", 12),
            ("serve/reply_micros", 1),
        ],
    );
    reader.check(
        || ChatRefused { status: 429, code: "queue_full" }.emit(),
        "DEBUG",
        json!({"event": "chat.refused", "status": 429, "code": "queue_full"}),
        &[("serve/refusals", 1)],
    );
}

fn check_session_events(reader: &mut LogReader) {
    let engine = EngineStats { service_micros: 30, ..EngineStats::default() };
    let TrajectoryAncestry { trajectory_id, .. } = &ancestry();
    let id = trajectory_id.as_str();
    reader.check(
        || LogprobsRecomputed { gaps: &[0.25, -0.5] }.emit(),
        "DEBUG",
        json!({"event": "tokens.scored_again", "tokens": 2, "max_abs": 0.5}),
        &[("policy/recomputed_tokens", 2), ("policy/prefill_gap_millionths", 2)],
    );
    reader.check(
        || SessionOpened { trajectory_id, worker: "p1", policy_kind: PolicyKind::Random }.emit(),
        "INFO",
        json!({"event": "session.opened", "trajectory_id": id, "worker": "p1", "policy_kind": "random"}),
        &[("policy/sessions", 1), ("policy/sessions_opened", 1)],
    );
    reader.check(
        || SessionRebuilt { trajectory_id, worker: "p1", steps: 4 }.emit(),
        "INFO",
        json!({"event": "session.rebuilt", "trajectory_id": id, "worker": "p1", "steps": 4}),
        &[("policy/sessions_rebuilt", 1)],
    );
    reader.check(
        || ReplySent { trajectory_id, step: 4, valid: false, engine: &engine }.emit(),
        "DEBUG",
        json!({"event": "reply.sent", "trajectory_id": id, "step": 4, "valid": false, "service_micros": 30}),
        &[("policy/replies", 1), ("policy/replies_invalid", 1), ("policy/service_micros", 1)],
    );
    reader.check(
        || ReplyRepeated { trajectory_id, step: 4 }.emit(),
        "DEBUG",
        json!({"event": "reply.repeated", "trajectory_id": id, "step": 4}),
        &[("policy/replies_repeated", 1)],
    );
    reader.check(
        || SessionClosed { trajectory_id, worker: "p1", end: SessionEnd::Disconnected, replies: 5 }.emit(),
        "INFO",
        json!({"event": "session.closed", "trajectory_id": id, "worker": "p1", "end": "disconnected", "replies": 5}),
        &[("policy/sessions", -1), ("policy/sessions_ended/disconnected", 1)],
    );
}

fn check_process_events(reader: &mut LogReader) {
    reader.check(
        || ProcessDraining { role: Role::Env, in_hand: 6 }.emit(),
        "INFO",
        json!({"event": "process.draining", "role": "env", "in_hand": 6}),
        &[],
    );
    reader.check(
        || ProcessDrained { role: Role::Env, left: 0, micros: 70 }.emit(),
        "INFO",
        json!({"event": "process.drained", "role": "env", "left": 0, "micros": 70}),
        &[],
    );
    reader.check(
        || ProcessDrained { role: Role::Env, left: 1, micros: 70 }.emit(),
        "WARN",
        json!({"event": "process.drained", "role": "env", "left": 1, "micros": 70}),
        &[],
    );
    reader.check(
        || ExportFailing { signal: "spans", reason: "no answer" }.emit(),
        "WARN",
        json!({"event": "export.failing", "signal": "spans", "reason": "no answer"}),
        &[],
    );
    reader.check(
        || ExportResumed { signal: "spans", micros: 70 }.emit(),
        "WARN",
        json!({"event": "export.resumed", "signal": "spans", "micros": 70}),
        &[],
    );
    reader.check(
        || assert!(std::thread::spawn(|| panic::panic_any("by intent")).join().is_err()),
        "ERROR",
        json!({"event": "process.panicked", "location": format!("{}:{}", file!(), line!() - 2), "reason": "by intent"}),
        &[("process/panics", 1)],
    );
}
