//! `furrow plan --simulate`: computes the share of the floor that the scheduler reaches.

use clap::Args;
use furrow_model::config::Config;
use furrow_model::floor::DeviceSpec;
use furrow_rollout::ContextPolicy;
use furrow_simulator::{
    PREFILL_CHUNK, PREFILL_TOKENS, SessionMix, SimulationOutcome, SimulatorSettings, simulate,
};
use serde_json::Value;

use crate::recorded::RecordedRun;
use crate::{CommandFailure, output, simulation};

/// Settings and duration of the simulation.
#[derive(Debug, Args)]
pub(super) struct SimulateArgs {
    /// Also run the scheduler on a simulated device that takes exactly the floor's time: shows the
    /// share of the floor it reaches, and where the device's time goes
    #[arg(long)]
    simulate: bool,
    /// Seconds to simulate [default: the time of a trajectory at the floor]
    #[arg(long, value_parser = seconds, requires = "simulate")]
    seconds: Option<f64>,
    /// Microseconds of host time between two batches
    #[arg(long, default_value_t = 0, requires = "simulate", value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    host_micros: u64,
    /// Tokens of a prefill chunk, as policy.engine.prefill_chunk
    #[arg(long, default_value_t = PREFILL_CHUNK, requires = "simulate", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    prefill_chunk: u32,
    /// Tokens prefilled beside the decode rows of a batch, as policy.engine.prefill_tokens
    #[arg(long, default_value_t = PREFILL_TOKENS, requires = "simulate", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    prefill_tokens: u32,
}

/// Context policies that the scheduler simulator supports.
const KEEPS: [ContextPolicy; 2] = [ContextPolicy::Append, ContextPolicy::LastImage];

impl SimulateArgs {
    /// One outcome per context policy; empty without `--simulate`.
    pub(super) fn run(
        &self,
        config: &Config,
        device: &'static DeviceSpec,
        mix: &SessionMix,
        recorded: Option<&RecordedRun>,
    ) -> Result<Vec<(ContextPolicy, SimulationOutcome)>, CommandFailure> {
        // Recorded sessions fix the context policy.
        let is_kept = |keep: &ContextPolicy| recorded.is_none_or(|recorded| recorded.keep == *keep);
        let keeps = KEEPS.into_iter().filter(|keep| self.simulate && is_kept(keep));
        let outcome = |keep| {
            let settings = SimulatorSettings {
                mix: *mix,
                workload: recorded.map(|recorded| recorded.workload.clone()),
                keep,
                prefill_chunk: self.prefill_chunk,
                prefill_tokens: self.prefill_tokens,
                host_micros: self.host_micros,
                seconds: self.seconds,
            };
            let outcome = simulate(config, device, &settings);
            outcome.map(|outcome| (keep, outcome)).map_err(|why| CommandFailure::Input(vec![why.to_string()]))
        };
        keeps.map(outcome).collect()
    }

    pub(super) fn print(&self, outcomes: &[(ContextPolicy, SimulationOutcome)]) {
        if outcomes.is_empty() {
            return;
        }
        output::line(format!(
            "\nThe scheduler on a simulated device: chunks of {} tokens, {} beside decode, {} us of host time per batch",
            self.prefill_chunk, self.prefill_tokens, self.host_micros
        ));
        let row = |(keep, outcome): &(ContextPolicy, SimulationOutcome)| simulation::row(keep, outcome);
        let rows: Vec<Vec<String>> = outcomes.iter().map(row).collect();
        output::table(&simulation::HEADER, &rows);
        output::line(
            "  The floor of two streams: screenshots are encoded beside decode, and vision counts only waits for it.\n  From decode on: shares of the device's time; idle: no work, no room, or waiting for the host.",
        );
    }
}

/// The outcomes as JSON.
pub(super) fn value(outcomes: &[(ContextPolicy, SimulationOutcome)]) -> Value {
    outcomes.iter().map(|(keep, outcome)| Value::from(simulation::entry(keep, outcome))).collect()
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (1.0..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "use 1 to 3600".to_owned())
}
