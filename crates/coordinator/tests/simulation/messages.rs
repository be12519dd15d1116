//! The job of a simulated run, and what its workers send.

use std::path::Path;
use std::sync::LazyLock;

use bytes::Bytes;
use furrow_coordinator::{CoordinatorJob, JobIdentity, LimitsFile};
use furrow_records::fixtures::{TrajectoryFixture, png};
use furrow_records::{DataCard, RecordsFile};
use furrow_rollout::{
    ContextPolicy, EndKind, Evidence, Grammar, Id, PROTOCOL_VERSION, PolicyKind, SCHEMA_VERSION,
    SamplingParams, SessionSpec, StepRecord, TrajectoryEnding, WeightRoots,
};
use furrow_tasks::{SourceFile, TasksFile, load};
use furrow_wire::{OpaqueStep, digest, encode_ending, encode_opaque_step, encode_trace, v1};

pub(crate) const GROUPS: u64 = 3;
pub(crate) const GROUP_SIZE: u32 = 2;
/// Most steps of a trajectory.
pub(crate) const STEPS_MAX: u32 = 4;
pub(crate) const LEASE: u64 = 4_000;
pub(crate) const BEAT: u64 = 1_000;

/// What a step holds beside its number and its time.
static STEPS: LazyLock<Vec<StepRecord>> = LazyLock::new(|| {
    let fixture = TrajectoryFixture { steps: STEPS_MAX, kind: PolicyKind::Random, ..Default::default() };
    fixture.trajectory().1
});
static PICTURE: LazyLock<Bytes> = LazyLock::new(|| png(16, 16, 9));

/// The job of a run below `disk`; its task file is beside the disk, where nothing fails.
pub(crate) fn job(dir: &Path, disk: &Path, keeps_parts: bool) -> CoordinatorJob {
    let file = dir.join("tasks.jsonl");
    if !file.exists() {
        let line = |name: &str| {
            format!(
                r#"{{"task_id":"{name}","goal":"Say 42.","start_url":"http://pages.test/","score":{{"kind":"answer","match":"exact","value":"42"}}}}"#,
            )
        };
        std::fs::write(&file, format!("{}\n{}\n", line("first"), line("second"))).unwrap();
    }
    let source = SourceFile { suite: "mine".into(), path: file, ..SourceFile::default() };
    let tasks = TasksFile {
        group_size: GROUP_SIZE,
        groups: Some(GROUPS),
        seed: 1,
        source: vec![source],
        ..TasksFile::default()
    };
    let tasks_config = tasks.check(dir).unwrap();
    let records = RecordsFile {
        disk_reserve_bytes: 16 << 20,
        compression_level: 1,
        merge_files_min: 2,
        merge_grace_millis: if keeps_parts { 3_600_000 } else { 0 },
        ..RecordsFile::default()
    };
    CoordinatorJob {
        run_id: Id::new("sim").unwrap(),
        run_dir: disk.join("run"),
        lock: None,
        resume: true,
        identity: JobIdentity::new([("tasks.seed".to_owned(), "1".to_owned())]),
        began: None,
        job_toml: "[run]\nname = \"sim\"\n".into(),
        shared_job: "[run]\nname = \"sim\"\n".into(),
        card: DataCard { run: "sim".into(), policy: "scripted".into(), suites: Vec::new() },
        tasks: load(&tasks_config).unwrap(),
        tasks_config,
        eval: None,
        session: SessionSpec {
            grammar: Grammar { name: "holo_navigation".into(), extra: Vec::new() },
            sampling: SamplingParams::default(),
            context: ContextPolicy::Append,
            instructions: String::new(),
        },
        judge: None,
        limits: limits().check().unwrap(),
        sessions: 6,
        records: records.check().unwrap(),
        weight_roots: WeightRoots::default(),
        link: None,
    }
}

fn limits() -> LimitsFile {
    LimitsFile {
        lease_millis: LEASE,
        heartbeat_millis: BEAT,
        farewell_millis: 0,
        drain_grace_millis: 5_000,
        failure_budget: 1.0,
        // One after another, so that verdicts have an order; queues that nothing waits for.
        scorers_max: 1,
        calls_max: 10_000,
        commits_max: 10_000,
        ..LimitsFile::default()
    }
}

/// The time that a step names, by which its row is recognized.
pub(crate) fn mark(trajectory: &str, step: u32) -> i64 {
    let hash = digest(trajectory.as_bytes());
    let number = u32::from_le_bytes([hash[0], hash[1], hash[2], hash[3]]);
    1_790_000_000_000_000 + i64::from(number) * 1000 + i64::from(step)
}

pub(crate) fn step(lease: &v1::LeaseRef, step: u32) -> v1::RecordStepRequest {
    let v1::LeaseRef { trajectory_id, token, secret } = lease.clone();
    let template = STEPS[step as usize].clone();
    let record = encode_opaque_step(&OpaqueStep {
        step,
        observation: template.observation,
        reply: template.reply,
        outcome: template.outcome,
        trace: encode_trace(&template.trace),
        timing: template.timing,
        observed_at_micros: mark(&trajectory_id, step),
    });
    v1::RecordStepRequest {
        trajectory_id,
        token,
        secret,
        step,
        digest: Bytes::copy_from_slice(&digest(&record)),
        record,
    }
}

pub(crate) fn ending(
    lease: &v1::LeaseRef,
    steps: u32,
    (end, answer): (EndKind, Option<&str>),
) -> v1::FinishRequest {
    let v1::LeaseRef { trajectory_id, token, secret } = lease.clone();
    let mut timing = furrow_rollout::TimeSplit::default();
    STEPS.iter().take(steps as usize).for_each(|step| timing.merge(&step.timing));
    let ending = encode_ending(&TrajectoryEnding {
        end,
        reason: String::new(),
        evidence: answer.map(|answer| Evidence {
            screenshot: Some(PICTURE.clone()),
            answer: Some(answer.to_owned()),
            ..Evidence::default()
        }),
        goal: "Say 42.".into(),
        steps,
        last_outcome: None,
        timing,
        environment: Default::default(),
    });
    v1::FinishRequest {
        trajectory_id,
        token,
        secret,
        digest: Bytes::copy_from_slice(&digest(&ending)),
        ending,
    }
}

pub(crate) fn env(worker_id: &str) -> v1::RegisterRequest {
    let info = v1::EnvWorkerInfo { sessions_max: 3, browser: "none".into(), sandbox: true };
    v1::RegisterRequest {
        protocol_version: PROTOCOL_VERSION,
        schema_version: SCHEMA_VERSION,
        worker_id: worker_id.into(),
        role: Some(v1::register_request::Role::Env(info)),
    }
}

pub(crate) fn policy(worker_id: &str) -> v1::RegisterRequest {
    let info = v1::PolicyWorkerInfo {
        address: "127.0.0.1:9".into(),
        policy_kind: "random".into(),
        sessions_max: 8,
        ..v1::PolicyWorkerInfo::default()
    };
    v1::RegisterRequest { role: Some(v1::register_request::Role::Policy(info)), ..env(worker_id) }
}
