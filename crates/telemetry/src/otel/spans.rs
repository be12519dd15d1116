//! What events of a trajectory become: a trace a trajectory, a span a step, and below it a span for each cause its time went to.
//!
//! Ids are hashes of the trajectory's own and of the place in it. So the environment worker, the policy worker and the coordinator
//! write into one trace, each knows its parent, and nothing has to travel with a call. Times are those of the time account: the
//! causes of a step come in the order in which a step goes through them, and their lengths add up to the step's.

use furrow_rollout::{Ancestry, Cause, Fault, Id, TimeSplit, Trajectory};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, Status};
use sha2::{Digest as _, Sha256};

use super::{attribute, text, whole};
use crate::events::{
    ReplySent, StepAcknowledged, TrajectoryAbandoned, TrajectoryAcknowledged, TrajectoryFailed,
    TrajectoryScored,
};

/// An event that is the end of something that took time.
pub(crate) trait Traced {
    /// Its spans, if it ended now: nanoseconds since the Unix epoch.
    fn spans(&self, now_nanos: u64) -> Vec<Span>;
}

/// A span's place in its trajectory, of which its id is made.
#[derive(Debug, Clone, Copy)]
enum Place {
    Trajectory,
    /// A cause outside of any step.
    Part(Cause),
    Step(u32),
    StepPart(u32, Cause),
    Reply(u32),
    Score,
    Failure,
}

/// From when to when, nanoseconds since the Unix epoch.
#[derive(Debug, Clone, Copy)]
struct Time {
    began: u64,
    ended: u64,
}

impl Traced for StepAcknowledged<'_> {
    fn spans(&self, _: u64) -> Vec<Span> {
        let (step, trajectory) = (self.step, &self.of.trajectory_id);
        let whole_step = Time::of(nanos(self.began_at_micros), self.timing.total());
        let mut attributes = ancestry(self.of);
        attributes.extend([
            whole("furrow.token", self.token),
            whole("furrow.step", step.into()),
            text("furrow.outcome", self.outcome.as_str()),
            whole("furrow.screenshot_bytes", self.screenshot_bytes),
        ]);
        let mut spans = vec![span(trajectory, Place::Step(step), whole_step, attributes)];
        let mut began = whole_step.began;
        for (cause, micros) in parts(self.timing) {
            let time = Time::of(began, micros);
            spans.push(span(trajectory, Place::StepPart(step, cause), time, Vec::new()));
            began = time.ended;
        }
        spans
    }
}

impl Traced for TrajectoryAcknowledged<'_> {
    fn spans(&self, now_nanos: u64) -> Vec<Span> {
        let trajectory = &self.of.trajectory_id;
        let reported = Time::before(now_nanos, self.report_micros);
        let life = Time { ended: now_nanos, ..Time::before(reported.began, self.timing.total()) };
        let mut attributes = ancestry(self.of);
        attributes.extend([
            whole("furrow.token", self.token),
            text("furrow.end", self.end.as_str()),
            whole("furrow.steps", self.steps.into()),
        ]);
        attributes.extend(split(self.timing));
        let farms_fault = self.end.fault(true) == Fault::Farm;
        let status = farms_fault.then(|| failed(self.end.as_str()));
        let booted = Time::of(life.began, self.timing.of(Cause::Boot));
        let finished = Time::before(reported.began, self.timing.of(Cause::Finish));
        let parts = [(Cause::Boot, booted), (Cause::Finish, finished), (Cause::Record, reported)];
        let parts = parts.map(|(cause, time)| span(trajectory, Place::Part(cause), time, Vec::new()));
        let whole_life = Span { status, ..span(trajectory, Place::Trajectory, life, attributes) };
        [whole_life].into_iter().chain(parts).collect()
    }
}

impl Traced for TrajectoryAbandoned<'_> {
    fn spans(&self, now_nanos: u64) -> Vec<Span> {
        let mut attributes = ancestry(self.of);
        attributes.push(whole("furrow.token", self.token));
        attributes.extend(split(self.timing));
        let life = Time::before(now_nanos, self.timing.total());
        let status = Some(failed(self.reason));
        vec![Span { status, ..span(&self.of.trajectory_id, Place::Trajectory, life, attributes) }]
    }
}

impl Traced for TrajectoryScored<'_> {
    fn spans(&self, now_nanos: u64) -> Vec<Span> {
        let mut attributes = ancestry(self.of);
        attributes.extend([
            text("furrow.scorer", &self.score.scorer),
            attribute("furrow.reward", Value::DoubleValue(self.reward.into())),
        ]);
        attributes.extend(self.score.success.map(|won| attribute("furrow.success", Value::BoolValue(won))));
        let time = Time::before(now_nanos, self.score_micros);
        vec![span(&self.of.trajectory_id, Place::Score, time, attributes)]
    }
}

impl Traced for TrajectoryFailed<'_> {
    fn spans(&self, now_nanos: u64) -> Vec<Span> {
        let mut attributes = ancestry(self.of);
        attributes.push(text("furrow.end", self.end.as_str()));
        attributes.push(attribute("furrow.retried", Value::BoolValue(self.retried)));
        let (time, status) = (Time::before(now_nanos, 0), Some(failed(self.reason)));
        vec![Span { status, ..span(&self.of.trajectory_id, Place::Failure, time, attributes) }]
    }
}

impl Traced for ReplySent<'_> {
    fn spans(&self, now_nanos: u64) -> Vec<Span> {
        let engine = self.engine;
        let attributes = vec![
            text("furrow.trajectory_id", self.trajectory_id.as_str()),
            whole("furrow.step", self.step.into()),
            attribute("furrow.valid", Value::BoolValue(self.valid)),
            text("furrow.worker", &engine.worker),
            whole("furrow.queue_micros", engine.queue_micros),
            whole("furrow.device_micros", engine.gpu_micros),
            whole("furrow.prefill_tokens", engine.prefill_tokens.into()),
            whole("furrow.reused_tokens", engine.reused_tokens.into()),
            whole("furrow.decode_steps", engine.decode_steps.into()),
        ];
        let time = Time::before(now_nanos, engine.service_micros);
        vec![span(self.trajectory_id, Place::Reply(self.step), time, attributes)]
    }
}

impl Place {
    /// What it is called, everywhere the same.
    fn name(self) -> &'static str {
        match self {
            Place::Trajectory => "trajectory",
            Place::Part(cause) | Place::StepPart(_, cause) => cause.as_str(),
            Place::Step(_) => "step",
            Place::Reply(_) => "reply",
            Place::Score => "score",
            Place::Failure => "failed",
        }
    }

    fn parent(self) -> Option<Place> {
        match self {
            Place::Trajectory => None,
            Place::Part(_) | Place::Step(_) | Place::Score | Place::Failure => Some(Place::Trajectory),
            Place::StepPart(step, _) => Some(Place::Step(step)),
            Place::Reply(step) => Some(Place::StepPart(step, Cause::Policy)),
        }
    }

    /// A policy is asked over the network: its client waits in one process, its server works in another.
    fn kind(self) -> SpanKind {
        match self {
            Place::StepPart(_, Cause::Policy) => SpanKind::Client,
            Place::Reply(_) => SpanKind::Server,
            _ => SpanKind::Internal,
        }
    }

    /// Unlike that of any other place of the trajectory.
    fn path(self) -> String {
        match self {
            Place::Trajectory => String::new(),
            Place::Part(_) | Place::Score | Place::Failure => self.name().to_owned(),
            Place::Step(step) => format!("{step}"),
            Place::StepPart(step, _) | Place::Reply(step) => format!("{step}/{}", self.name()),
        }
    }

    /// The first 8 bytes of SHA-256 over trajectory and path; no id holds the NUL between them.
    fn id(self, trajectory: &Id<Trajectory>) -> Vec<u8> {
        Sha256::digest(format!("{trajectory}\0{}", self.path()))[..8].to_vec()
    }
}

impl Time {
    fn of(began: u64, micros: u64) -> Self {
        Self { began, ended: began.saturating_add(micros.saturating_mul(1000)) }
    }

    fn before(ended: u64, micros: u64) -> Self {
        Self { began: ended.saturating_sub(micros.saturating_mul(1000)), ended }
    }
}

fn span(trajectory: &Id<Trajectory>, place: Place, time: Time, attributes: Vec<KeyValue>) -> Span {
    Span {
        // The first 16 bytes of SHA-256 over the trajectory's id.
        trace_id: Sha256::digest(trajectory.as_str())[..16].to_vec(),
        span_id: place.id(trajectory),
        parent_span_id: place.parent().map(|parent| parent.id(trajectory)).unwrap_or_default(),
        name: place.name().to_owned(),
        kind: place.kind().into(),
        start_time_unix_nano: time.began,
        end_time_unix_nano: time.ended,
        attributes,
        ..Default::default()
    }
}

/// The causes that took time, in the order in which a trajectory and a step go through them.
fn parts(timing: &TimeSplit) -> impl Iterator<Item = (Cause, u64)> {
    Cause::ALL.into_iter().map(|cause| (cause, timing.of(cause))).filter(|(_, micros)| *micros > 0)
}

fn split(timing: &TimeSplit) -> impl Iterator<Item = KeyValue> {
    parts(timing).map(|(cause, micros)| whole(&format!("furrow.{}_micros", cause.as_str()), micros))
}

fn ancestry(of: &Ancestry) -> Vec<KeyValue> {
    vec![
        text("furrow.run_id", of.run_id.as_str()),
        text("furrow.group_id", of.group_id.as_str()),
        whole("furrow.sample_index", of.sample_index.into()),
        whole("furrow.attempt", of.attempt.into()),
        text("furrow.trajectory_id", of.trajectory_id.as_str()),
    ]
}

fn failed(reason: &str) -> Status {
    Status { code: StatusCode::Error.into(), message: crate::events::cut(reason).to_owned() }
}

/// Before the epoch is told as the epoch.
fn nanos(wall_micros: i64) -> u64 {
    u64::try_from(wall_micros).unwrap_or(0).saturating_mul(1000)
}
