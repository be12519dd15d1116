//! Spans of a trajectory's events: one trace per trajectory, one span per step, and below it one
//! span per cause that its time went to.
//!
//! Ids are hashes of the trajectory's id and the span's path in it. So the environment worker, the
//! policy worker and the coordinator write into one trace, each knows its parent, and calls need
//! not carry ids. Times are those of the time account: the causes of a step come in the order in
//! which a step goes through them, and their durations add up to the step's.

use furrow_rollout::{FaultOwner, Id, TimeCause, TimeSplit, Trajectory, TrajectoryAncestry};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, Status};
use sha2::{Digest as _, Sha256};

use super::attributes::{attribute, int_attribute, text_attribute};
use super::queue::TracedEvent;
use crate::events::{
    ReplySent, StepAcknowledged, TrajectoryAbandoned, TrajectoryAcknowledged, TrajectoryFailed,
    TrajectoryScored,
};

/// A span's path in its trajectory, from which its id is derived.
#[derive(Debug, Clone, Copy)]
enum SpanPath {
    Trajectory,
    /// A cause outside of any step.
    Part(TimeCause),
    Step(u32),
    StepPart(u32, TimeCause),
    Reply(u32),
    Score,
    Failure,
}

/// Start and end in nanoseconds since the Unix epoch.
#[derive(Debug, Clone, Copy)]
struct SpanTime {
    began: u64,
    ended: u64,
}

impl TracedEvent for StepAcknowledged<'_> {
    fn spans(&self, _: u64) -> Vec<Span> {
        let step = self.step;
        let trajectory = &self.of.trajectory_id;
        let whole_step = SpanTime::starting_at(nanos(self.began_at_micros), self.timing.total());
        let mut attributes = ancestry(self.of);
        attributes.extend([
            int_attribute("furrow.token", self.token),
            int_attribute("furrow.step", step.into()),
            text_attribute("furrow.outcome", self.outcome.as_str()),
            int_attribute("furrow.screenshot_bytes", self.screenshot_bytes),
        ]);
        let mut spans = vec![span(trajectory, SpanPath::Step(step), whole_step, attributes)];
        let mut began = whole_step.began;
        for (cause, micros) in parts(self.timing) {
            let time = SpanTime::starting_at(began, micros);
            spans.push(span(trajectory, SpanPath::StepPart(step, cause), time, Vec::new()));
            began = time.ended;
        }
        spans
    }
}

impl TracedEvent for TrajectoryAcknowledged<'_> {
    fn spans(&self, now_nanos: u64) -> Vec<Span> {
        let trajectory = &self.of.trajectory_id;
        let reported = SpanTime::ending_at(now_nanos, self.report_micros);
        let life = SpanTime { ended: now_nanos, ..SpanTime::ending_at(reported.began, self.timing.total()) };
        let mut attributes = ancestry(self.of);
        attributes.extend([
            int_attribute("furrow.token", self.token),
            text_attribute("furrow.end", self.end.as_str()),
            int_attribute("furrow.steps", self.steps.into()),
        ]);
        attributes.extend(split(self.timing));
        let farms_fault = self.end.fault(true) == FaultOwner::Farm;
        let status = farms_fault.then(|| failed(self.end.as_str()));
        let booted = SpanTime::starting_at(life.began, self.timing.of(TimeCause::Boot));
        let finished = SpanTime::ending_at(reported.began, self.timing.of(TimeCause::Finish));
        let parts = [(TimeCause::Boot, booted), (TimeCause::Finish, finished), (TimeCause::Record, reported)];
        let parts = parts.map(|(cause, time)| span(trajectory, SpanPath::Part(cause), time, Vec::new()));
        let whole_life = Span { status, ..span(trajectory, SpanPath::Trajectory, life, attributes) };
        [whole_life].into_iter().chain(parts).collect()
    }
}

impl TracedEvent for TrajectoryAbandoned<'_> {
    fn spans(&self, now_nanos: u64) -> Vec<Span> {
        let mut attributes = ancestry(self.of);
        attributes.push(int_attribute("furrow.token", self.token));
        attributes.extend(split(self.timing));
        let life = SpanTime::ending_at(now_nanos, self.timing.total());
        let status = Some(failed(self.reason));
        vec![Span { status, ..span(&self.of.trajectory_id, SpanPath::Trajectory, life, attributes) }]
    }
}

impl TracedEvent for TrajectoryScored<'_> {
    fn spans(&self, now_nanos: u64) -> Vec<Span> {
        let mut attributes = ancestry(self.of);
        attributes.extend([
            text_attribute("furrow.scorer", &self.score.scorer),
            attribute("furrow.reward", Value::DoubleValue(self.reward.into())),
        ]);
        attributes.extend(self.score.success.map(|won| attribute("furrow.success", Value::BoolValue(won))));
        let time = SpanTime::ending_at(now_nanos, self.score_micros);
        vec![span(&self.of.trajectory_id, SpanPath::Score, time, attributes)]
    }
}

impl TracedEvent for TrajectoryFailed<'_> {
    fn spans(&self, now_nanos: u64) -> Vec<Span> {
        let mut attributes = ancestry(self.of);
        attributes.push(text_attribute("furrow.end", self.end.as_str()));
        attributes.push(attribute("furrow.retried", Value::BoolValue(self.retried)));
        let time = SpanTime::ending_at(now_nanos, 0);
        let status = Some(failed(self.reason));
        vec![Span { status, ..span(&self.of.trajectory_id, SpanPath::Failure, time, attributes) }]
    }
}

impl TracedEvent for ReplySent<'_> {
    fn spans(&self, now_nanos: u64) -> Vec<Span> {
        let engine = self.engine;
        let attributes = vec![
            text_attribute("furrow.trajectory_id", self.trajectory_id.as_str()),
            int_attribute("furrow.step", self.step.into()),
            attribute("furrow.valid", Value::BoolValue(self.valid)),
            text_attribute("furrow.worker", &engine.worker),
            int_attribute("furrow.queue_micros", engine.queue_micros),
            int_attribute("furrow.device_micros", engine.gpu_micros),
            int_attribute("furrow.prefill_tokens", engine.prefill_tokens.into()),
            int_attribute("furrow.reused_tokens", engine.reused_tokens.into()),
            int_attribute("furrow.decode_steps", engine.decode_steps.into()),
        ];
        let time = SpanTime::ending_at(now_nanos, engine.service_micros);
        vec![span(self.trajectory_id, SpanPath::Reply(self.step), time, attributes)]
    }
}

impl SpanPath {
    /// Name of the span, the same in every process.
    fn name(self) -> &'static str {
        match self {
            SpanPath::Trajectory => "trajectory",
            SpanPath::Part(cause) | SpanPath::StepPart(_, cause) => cause.as_str(),
            SpanPath::Step(_) => "step",
            SpanPath::Reply(_) => "reply",
            SpanPath::Score => "score",
            SpanPath::Failure => "failed",
        }
    }

    fn parent(self) -> Option<SpanPath> {
        match self {
            SpanPath::Trajectory => None,
            SpanPath::Part(_) | SpanPath::Step(_) | SpanPath::Score | SpanPath::Failure => {
                Some(SpanPath::Trajectory)
            }
            SpanPath::StepPart(step, _) => Some(SpanPath::Step(step)),
            SpanPath::Reply(step) => Some(SpanPath::StepPart(step, TimeCause::Policy)),
        }
    }

    /// A policy is called over the network: the client is in one process, the server in another.
    fn kind(self) -> SpanKind {
        match self {
            SpanPath::StepPart(_, TimeCause::Policy) => SpanKind::Client,
            SpanPath::Reply(_) => SpanKind::Server,
            _ => SpanKind::Internal,
        }
    }

    /// Unique within the trajectory.
    fn path(self) -> String {
        match self {
            SpanPath::Trajectory => String::new(),
            SpanPath::Part(_) | SpanPath::Score | SpanPath::Failure => self.name().to_owned(),
            SpanPath::Step(step) => format!("{step}"),
            SpanPath::StepPart(step, _) | SpanPath::Reply(step) => format!("{step}/{}", self.name()),
        }
    }

    /// The first 8 bytes of SHA-256 over trajectory and path; no id contains the NUL between them.
    fn id(self, trajectory: &Id<Trajectory>) -> Vec<u8> {
        Sha256::digest(format!("{trajectory}\0{}", self.path()))[..8].to_vec()
    }
}

impl SpanTime {
    fn starting_at(began: u64, micros: u64) -> Self {
        Self { began, ended: began.saturating_add(micros.saturating_mul(1000)) }
    }

    fn ending_at(ended: u64, micros: u64) -> Self {
        Self { began: ended.saturating_sub(micros.saturating_mul(1000)), ended }
    }
}

fn span(trajectory: &Id<Trajectory>, path: SpanPath, time: SpanTime, attributes: Vec<KeyValue>) -> Span {
    Span {
        // The first 16 bytes of SHA-256 over the trajectory's id.
        trace_id: Sha256::digest(trajectory.as_str())[..16].to_vec(),
        span_id: path.id(trajectory),
        parent_span_id: path.parent().map(|parent| parent.id(trajectory)).unwrap_or_default(),
        name: path.name().to_owned(),
        kind: path.kind().into(),
        start_time_unix_nano: time.began,
        end_time_unix_nano: time.ended,
        attributes,
        ..Default::default()
    }
}

/// The causes that took time, in the order in which a trajectory and a step go through them.
fn parts(timing: &TimeSplit) -> impl Iterator<Item = (TimeCause, u64)> {
    TimeCause::ALL.into_iter().map(|cause| (cause, timing.of(cause))).filter(|(_, micros)| *micros > 0)
}

fn split(timing: &TimeSplit) -> impl Iterator<Item = KeyValue> {
    parts(timing).map(|(cause, micros)| int_attribute(&format!("furrow.{}_micros", cause.as_str()), micros))
}

fn ancestry(of: &TrajectoryAncestry) -> Vec<KeyValue> {
    vec![
        text_attribute("furrow.run_id", of.run_id.as_str()),
        text_attribute("furrow.group_id", of.group_id.as_str()),
        int_attribute("furrow.sample_index", of.sample_index.into()),
        int_attribute("furrow.attempt", of.attempt.into()),
        text_attribute("furrow.trajectory_id", of.trajectory_id.as_str()),
    ]
}

fn failed(reason: &str) -> Status {
    Status { code: StatusCode::Error.into(), message: crate::events::cut(reason).to_owned() }
}

/// Times before the epoch become the epoch.
fn nanos(wall_micros: i64) -> u64 {
    u64::try_from(wall_micros).unwrap_or(0).saturating_mul(1000)
}
