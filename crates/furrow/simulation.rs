//! How the outcome of a simulated rollout is shown: as a row of a table, and as JSON.

use std::fmt::Display;

use furrow_rollout::ContextPolicy;
use furrow_simulator::SimulationOutcome;
use furrow_telemetry::{DeviceUse, Label};
use serde_json::{Map, Value, json};

use crate::output;

/// The columns of [`row`].
pub const HEADER: [&str; 14] = [
    "  context",
    "steps/s",
    "floor",
    "share",
    "reply",
    "parked",
    "decode",
    "prefill",
    "vision",
    "copy",
    "weights",
    "no work",
    "no room",
    "host",
];

/// A table row of an outcome, labelled with `what`.
pub fn row(what: &dyn Display, outcome: &SimulationOutcome) -> Vec<String> {
    let share = |used: &DeviceUse| {
        output::percent(Some(outcome.time.micros_of(*used) as f64 / outcome.micros as f64))
    };
    let figures = [
        format!("  {what}, {:.0} s", outcome.micros as f64 / 1e6),
        format!("{:.2}", outcome.steps_per_second()),
        format!("{:.2}", outcome.floor.steps_per_second),
        output::percent(Some(outcome.share())),
        format!("{:.2} s", outcome.reply_seconds),
        outcome.offloaded.to_string(),
    ];
    figures.into_iter().chain(DeviceUse::ALL.iter().map(share)).collect()
}

/// An outcome as JSON.
pub fn entry(keep: &ContextPolicy, outcome: &SimulationOutcome) -> Map<String, Value> {
    let uses: Map<String, Value> = DeviceUse::ALL
        .iter()
        .map(|used| (used.value().to_owned(), Value::from(outcome.time.micros_of(*used))))
        .collect();
    let fields = json!({
        "context": keep.to_string(), "steps": outcome.steps, "micros": outcome.micros,
        "steps_per_second": outcome.steps_per_second(), "floor_steps_per_second": outcome.floor.steps_per_second,
        "share": outcome.share(), "reply_seconds": outcome.reply_seconds, "parked": outcome.offloaded,
        "device_micros": uses,
    });
    match fields {
        Value::Object(fields) => fields,
        _ => unreachable!("the value above is an object"),
    }
}
