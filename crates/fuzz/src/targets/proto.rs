//! Messages between machines and in the spool: steps, endings, sessions, assignments, weights.

use std::fmt::Debug;

use bytes::Bytes;
use furrow_records::fixtures::TrajectoryFixture;
use furrow_rollout::{
    Assignment, EndKind, LEASE_SECRET_BYTES, LeaseSecret, PolicyKind, PolicyVersion, StepRecord, TaskChecks,
    TaskFiles, TrajectoryRecord, WeightsForm, WeightsLink, WeightsOrder,
};
use furrow_wire::{self as wire, FileContents, OpaqueStep, SessionOpening, WireError, v1};
use prost::Message;

use crate::{FuzzTarget, Seed, accept};

pub(super) const PROTO: FuzzTarget = FuzzTarget {
    name: "proto",
    run,
    repair: None,
    memory_max: |_| 64 << 20,
    bytes_max: 16 << 10,
    catches_panics: false,
    seeds,
};

/// The first byte names the message. What is accepted is written and read back equal.
fn run(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first() else { return };
    let bytes = Bytes::copy_from_slice(bytes);
    match kind {
        b's' => {
            if let Ok(step) = wire::decode_step(bytes.clone()) {
                same(&step, wire::decode_step(encoded(&step)));
            }
            if let Ok(step) = wire::decode_opaque_step(bytes) {
                same(&step, wire::decode_opaque_step(wire::encode_opaque_step(&step)));
            }
        }
        b'e' => {
            if let Ok(ending) = wire::decode_ending(bytes) {
                same(&ending, wire::decode_ending(wire::encode_ending(&ending)));
            }
        }
        b't' => {
            if let Ok(trace) = wire::decode_trace(&bytes) {
                same(&trace, wire::decode_trace(&wire::encode_trace(&trace)));
            }
        }
        b'o' => both::<v1::Open, _>(bytes, SessionOpening::try_from, |opening| opening.into()),
        b'p' => both(bytes, wire::past_from, |past| {
            let trace = wire::encode_trace(&past.trace);
            wire::past_into(past.step, &past.screenshot, past.last_outcome.as_ref(), &past.reply, trace)
        }),
        b'k' => both(bytes, wire::task_from, wire::task_into),
        b'a' => {
            let contents = FileContents::new(vec![Bytes::from_static(b"cv")]);
            both(bytes, |message| wire::assignment_from(message, &contents), wire::assignment_into);
        }
        b'w' => both(bytes, wire::weights_order_from, wire::weights_order_into),
        b'l' => both(bytes, wire::weights_link_from, wire::weights_link_into),
        _ => {}
    }
}

fn both<M: Message + Default, T: PartialEq + Debug>(
    bytes: Bytes,
    from: impl Fn(M) -> Result<T, WireError>,
    into: impl Fn(&T) -> M,
) {
    let Ok(message) = M::decode(bytes) else { return };
    let Ok(value) = from(message) else { return };
    same(&value, from(into(&value)));
}

fn same<T: PartialEq + Debug>(value: &T, again: Result<T, WireError>) {
    accept();
    assert_eq!(again.ok().as_ref(), Some(value), "what is accepted is read back");
}

fn encoded(step: &StepRecord) -> Bytes {
    wire::encode_opaque_step(&OpaqueStep {
        step: step.step,
        observation: step.observation.clone(),
        reply: step.reply.clone(),
        outcome: step.outcome.clone(),
        trace: wire::encode_trace(&step.trace),
        timing: step.timing,
        observed_at_micros: step.observed_at_micros,
    })
}

fn seeds() -> Vec<Seed> {
    let failed = TrajectoryFixture {
        kind: PolicyKind::Scripted,
        end: EndKind::ALL[EndKind::ALL.len() - 1],
        ..TrajectoryFixture::default()
    };
    let fixture = TrajectoryFixture::default().trajectory();
    let record: &TrajectoryRecord = &fixture.0;
    let step: &StepRecord = &fixture.1[1];
    let opening = SessionOpening {
        ancestry: record.ancestry.clone(),
        token: 7,
        session: record.session.clone(),
        goal: record.ending.goal.clone(),
        past_steps: 2,
    };
    let trace = wire::encode_trace(&step.trace);
    let past =
        wire::past_into(1, &step.observation.screenshot, Some(&step.outcome), &step.reply, trace.clone());
    let link = WeightsLink { form: WeightsForm::Delta, directory: "/weights/3".into() };
    let order = WeightsOrder {
        version: PolicyVersion(3),
        links: vec![link.clone()],
        weights_sha256: Some("ab".repeat(32)),
        taken: true,
    };
    let assignment = Assignment {
        ancestry: record.ancestry.clone(),
        token: 7,
        secret: LeaseSecret::new([9; LEASE_SECRET_BYTES]),
        lease_millis: 60_000,
        task: record.task.clone(),
        files: TaskFiles::default(),
        checks: TaskChecks::default(),
        secrets: Vec::new(),
        session: record.session.clone(),
        policy_address: "127.0.0.1:7001".into(),
    };
    let seed = |name: &str, kind: u8, bytes: &[u8]| Seed::new(name, [&[kind], bytes].concat());
    vec![
        seed("step", b's', &encoded(step)),
        seed("ending", b'e', &wire::encode_ending(&record.ending)),
        seed("failed", b'e', &wire::encode_ending(&failed.trajectory().0.ending)),
        seed("trace", b't', &trace),
        seed("open", b'o', &v1::Open::from(&opening).encode_to_vec()),
        seed("past", b'p', &past.encode_to_vec()),
        seed("task", b'k', &wire::task_into(&record.task).encode_to_vec()),
        seed("assignment", b'a', &wire::assignment_into(&assignment).encode_to_vec()),
        seed("order", b'w', &wire::weights_order_into(&order).encode_to_vec()),
        seed("link", b'l', &wire::weights_link_into(&link).encode_to_vec()),
    ]
}
