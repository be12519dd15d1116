//! `furrow plan --simulate`: what the scheduler makes of the floor.

use std::fmt::Display;

use clap::Args;
use furrow_model::config::Config;
use furrow_model::floor::{Device, Mix};
use furrow_policy::twin::{self, Outcome, TwinSettings};
use furrow_rollout::ContextPolicy;
use furrow_telemetry::{DeviceUse, Label};
use serde_json::{Map, Value, json};

use crate::recorded::Recorded;
use crate::{Failure, output};

/// How the scheduler is set and how long it is watched.
#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// Run the scheduler itself too, in front of a device of air that takes as long as the floor says: what share of the floor it
    /// reaches, and where the device's time goes
    #[arg(long)]
    simulate: bool,
    /// Seconds that are simulated [default: what a trajectory takes at the floor]
    #[arg(long, value_parser = seconds, requires = "simulate")]
    seconds: Option<f64>,
    /// Microseconds that the host takes between two batches
    #[arg(long, default_value_t = 0, requires = "simulate", value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    host_micros: u64,
    /// Tokens of a prefill chunk, policy.engine.prefill_chunk
    #[arg(long, default_value_t = twin::PREFILL_CHUNK, requires = "simulate", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    prefill_chunk: u32,
    /// Tokens prefilled beside the decode rows of a batch, policy.engine.prefill_tokens
    #[arg(long, default_value_t = twin::PREFILL_TOKENS, requires = "simulate", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    prefill_tokens: u32,
}

/// Context policies that have a twin.
const KEEPS: [ContextPolicy; 2] = [ContextPolicy::Append, ContextPolicy::LastImage];

impl SimulateArgs {
    /// What was asked for, one outcome a context policy; nothing when it was not.
    pub fn run(
        &self,
        config: &Config,
        device: &'static Device,
        mix: &Mix,
        recorded: Option<&Recorded>,
    ) -> Result<Vec<(ContextPolicy, Outcome)>, Failure> {
        // Recorded sessions kept what they kept.
        let is_kept = |keep: &ContextPolicy| recorded.is_none_or(|recorded| recorded.keep == *keep);
        let keeps = KEEPS.into_iter().filter(|keep| self.simulate && is_kept(keep));
        let outcome = |keep| {
            let settings = TwinSettings {
                mix: *mix,
                workload: recorded.map(|recorded| recorded.workload.clone()),
                keep,
                prefill_chunk: self.prefill_chunk,
                prefill_tokens: self.prefill_tokens,
                host_micros: self.host_micros,
                seconds: self.seconds,
            };
            let outcome = twin::simulate(config, device, &settings);
            outcome.map(|outcome| (keep, outcome)).map_err(|why| Failure::Input(vec![why.to_string()]))
        };
        keeps.map(outcome).collect()
    }

    /// The outcomes as a table.
    pub fn tell(&self, outcomes: &[(ContextPolicy, Outcome)]) {
        if outcomes.is_empty() {
            return;
        }
        output::line(format!(
            "\nThe scheduler on a device of air, chunks of {} tokens, {} beside decode, {} us of the host's a batch",
            self.prefill_chunk, self.prefill_tokens, self.host_micros
        ));
        let row = |(keep, outcome): &(ContextPolicy, Outcome)| row(keep, outcome);
        let rows: Vec<Vec<String>> = outcomes.iter().map(row).collect();
        output::table(&HEADER, &rows);
        output::line(
            "  The floor of two streams: screenshots are encoded beside decode, and vision is what was waited for.\n  From decode on: shares of the device's time; it is idle where there is no work, no room or the host is awaited.",
        );
    }
}

/// What [`row`] has.
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

/// An outcome in a table, under what it is of.
pub fn row(what: &dyn Display, outcome: &Outcome) -> Vec<String> {
    let share =
        |used: &DeviceUse| output::percent(Some(outcome.time.of(*used) as f64 / outcome.micros as f64));
    let figures = [
        format!("  {what}, {:.0} s", outcome.micros as f64 / 1e6),
        format!("{:.2}", outcome.steps_per_second()),
        format!("{:.2}", outcome.floor.steps_per_second),
        output::percent(Some(outcome.share())),
        format!("{:.2} s", outcome.reply_seconds),
        outcome.parked.to_string(),
    ];
    figures.into_iter().chain(DeviceUse::ALL.iter().map(share)).collect()
}

/// The outcomes for a program.
pub fn value(outcomes: &[(ContextPolicy, Outcome)]) -> Value {
    outcomes.iter().map(|(keep, outcome)| Value::from(entry(keep, outcome))).collect()
}

/// An outcome for a program.
pub fn entry(keep: &ContextPolicy, outcome: &Outcome) -> Map<String, Value> {
    let uses: Map<String, Value> = DeviceUse::ALL
        .iter()
        .map(|used| (used.word().to_owned(), Value::from(outcome.time.of(*used))))
        .collect();
    let said = json!({
        "context": keep.to_string(), "steps": outcome.steps, "micros": outcome.micros,
        "steps_per_second": outcome.steps_per_second(), "floor_steps_per_second": outcome.floor.steps_per_second,
        "share": outcome.share(), "reply_seconds": outcome.reply_seconds, "parked": outcome.parked,
        "device_micros": uses,
    });
    match said {
        Value::Object(said) => said,
        _ => unreachable!("an object was written above"),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (1.0..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "use 1 to 3600".to_owned())
}
