//! A small job and the messages of its workers, for tests that act as the environment worker.

use std::path::Path;

use bytes::Bytes;
use furrow_coordinator::{CoordinatorJob, JobIdentity, JudgeFile, LimitsFile, ScoreFile};
use furrow_records::fixtures::{TrajectoryFixture, png};
use furrow_records::{DataCard, RecordsFile};
use furrow_rollout::{
    ContextPolicy, EndKind, Evidence, Grammar, Id, PROTOCOL_VERSION, PolicyKind, SCHEMA_VERSION,
    SamplingParams, SessionSpec, TrajectoryEnding, WeightRoots,
};
use furrow_tasks::{SourceFile, TasksFile, load};
use furrow_wire::{OpaqueStep, digest, encode_ending, encode_opaque_step, encode_trace, v1};

/// What a test changes in the job.
pub(crate) struct JobSetup {
    pub groups: u64,
    pub group_size: u32,
    pub seed: u64,
    pub resume: bool,
    pub limits: LimitsFile,
    pub score: &'static str,
    pub judge: JudgeFile,
    pub weight_roots: WeightRoots,
}

/// The scorer of tasks that set no other.
pub(crate) const EXACT: &str = r#"{"kind":"answer","match":"exact","value":"42"}"#;

impl Default for JobSetup {
    fn default() -> Self {
        let limits = LimitsFile {
            lease_millis: 60_000,
            farewell_millis: 0,
            drain_grace_millis: 0,
            ..LimitsFile::default()
        };
        let score = EXACT;
        let judge = JudgeFile::default();
        let weight_roots = WeightRoots::default();
        Self { groups: 1, group_size: 1, seed: 1, resume: false, limits, score, judge, weight_roots }
    }
}

impl JobSetup {
    /// The job, with its two tasks in a file beside the run directory.
    pub(crate) fn job(self, dir: &Path) -> CoordinatorJob {
        let file = dir.join("tasks.jsonl");
        let line = |name: &str| {
            format!(
                r#"{{"task_id":"{name}","goal":"Say 42.","start_url":"http://pages.test/","score":{}}}"#,
                self.score
            )
        };
        std::fs::write(&file, format!("{}\n{}\n", line("first"), line("second"))).unwrap();
        let source = SourceFile { suite: "mine".into(), path: file, ..SourceFile::default() };
        let tasks = TasksFile {
            group_size: self.group_size,
            groups: Some(self.groups),
            seed: self.seed,
            source: vec![source],
            ..TasksFile::default()
        };
        let tasks_config = tasks.check(dir).unwrap();
        CoordinatorJob {
            run_id: Id::new("loopback").unwrap(),
            run_dir: dir.join("run"),
            lock: None,
            resume: self.resume,
            identity: JobIdentity::new([("tasks.seed".to_owned(), self.seed.to_string())]),
            began: None,
            job_toml: "[run]\nname = \"loopback\"\n".into(),
            shared_job: "[run]\nname = \"loopback\"\n".into(),
            card: DataCard { run: "loopback".into(), policy: "scripted".into(), suites: Vec::new() },
            tasks: load(&tasks_config).unwrap(),
            tasks_config,
            eval: None,
            session: SessionSpec {
                grammar: Grammar { name: "holo_navigation".into(), extra: Vec::new() },
                sampling: SamplingParams::default(),
                context: ContextPolicy::Append,
                instructions: String::new(),
            },
            judge: judge(self.judge),
            limits: self.limits.check().unwrap(),
            sessions: 6,
            records: RecordsFile { disk_reserve_bytes: 16 << 20, ..RecordsFile::default() }.check().unwrap(),
            link: None,
            weight_roots: self.weight_roots,
        }
    }
}

/// A judge as a job configures it, with its key read.
pub(crate) fn judge(judge: JudgeFile) -> Option<furrow_coordinator::JudgeConfig> {
    let config = ScoreFile { judge }.check(Path::new("/")).unwrap().judge;
    config.map(|config| config.with_key().unwrap())
}

/// An assignment and the messages of its holder.
#[derive(Clone)]
pub(crate) struct LeasedAssignment {
    pub trajectory_id: String,
    pub token: u64,
    pub secret: Option<v1::LeaseSecret>,
}

impl LeasedAssignment {
    pub(crate) fn new(assignment: v1::Assignment) -> Self {
        let v1::Assignment { ancestry, token, secret, .. } = assignment;
        Self { trajectory_id: ancestry.unwrap().trajectory_id, token, secret }
    }

    pub(crate) fn lease(&self) -> v1::LeaseRef {
        let secret = self.secret.clone();
        v1::LeaseRef { trajectory_id: self.trajectory_id.clone(), token: self.token, secret }
    }

    pub(crate) fn show(&self, screenshot: Bytes) -> v1::ShowFirstRequest {
        let v1::LeaseRef { trajectory_id, token, secret } = self.lease();
        v1::ShowFirstRequest { trajectory_id, token, secret, screenshot }
    }

    pub(crate) fn step(&self, step: u32) -> v1::RecordStepRequest {
        let record = record(step);
        v1::RecordStepRequest {
            trajectory_id: self.trajectory_id.clone(),
            token: self.token,
            secret: self.secret.clone(),
            step,
            digest: Bytes::copy_from_slice(&digest(&record)),
            record,
        }
    }

    pub(crate) fn ending(&self, steps: u32, end: EndKind, answer: Option<&str>) -> v1::FinishRequest {
        let ending = encode_ending(&TrajectoryEnding {
            end,
            reason: String::new(),
            evidence: answer.map(|answer| Evidence {
                screenshot: Some(png(16, 16, 9)),
                answer: Some(answer.to_owned()),
                ..Evidence::default()
            }),
            goal: "Say 42.".into(),
            steps,
            last_outcome: None,
            timing: TrajectoryFixture { steps, ..TrajectoryFixture::default() }.trajectory().0.ending.timing,
            environment: Default::default(),
        });
        v1::FinishRequest {
            trajectory_id: self.trajectory_id.clone(),
            token: self.token,
            secret: self.secret.clone(),
            digest: Bytes::copy_from_slice(&digest(&ending)),
            ending,
        }
    }
}

/// A step as an environment worker encodes it.
pub(crate) fn record(step: u32) -> Bytes {
    let plot =
        TrajectoryFixture { steps: step + 1, kind: PolicyKind::Random, ..TrajectoryFixture::default() };
    let step = plot.trajectory().1.remove(step as usize);
    encode_opaque_step(&OpaqueStep {
        step: step.step,
        observation: step.observation,
        reply: step.reply,
        outcome: step.outcome,
        trace: encode_trace(&step.trace),
        timing: step.timing,
        observed_at_micros: step.observed_at_micros,
    })
}

pub(crate) fn env(worker_id: &str) -> v1::RegisterRequest {
    let info = v1::EnvWorkerInfo { sessions_max: 8, browser: "none".into(), sandbox: true };
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
