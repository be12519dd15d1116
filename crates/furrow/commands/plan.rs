//! `furrow plan`: computes what a model needs on a device, how many sessions fit, and the floor
//! (lower bound) of a rollout, before a machine is rented; with `--job`, what a job takes of a
//! machine.

mod job;
mod simulate;

use std::path::PathBuf;

use clap::Args;
use furrow_model::config::Config;
use furrow_model::floor::{DeviceSpec, ModelWork, Transformer};
use furrow_rollout::ContextPolicy;
use furrow_simulator::{ContextRetention, RolloutFloor, SessionMix};
use serde_json::{Value, json};

use self::job::JobPlanArgs;
use self::simulate::SimulateArgs;
use crate::recorded::RecordedRun;
use crate::{CommandFailure, output};
use furrow_model::checkpoint::chain;

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// Checkpoint directory, of which config.json is read [default: the published 12B]
    #[arg(long)]
    checkpoint: Option<PathBuf>,
    /// GPU to plan for: h200, h100, b200, a100 or l40s
    #[arg(long, default_value = "h200")]
    gpu: String,
    /// Number of concurrent sessions [default: as many as the job or the recorded run has, else
    /// 100]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    sessions: Option<u32>,
    /// Steps of a trajectory [default: the largest limit of the job's tasks, else 30]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    steps: Option<u32>,
    /// Tokens generated per step [default: policy.sampling.max_tokens of the job, else 150]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    generated: Option<u32>,
    /// Width and height of a screenshot in pixels, such as 1280x720 [default: the largest page of
    /// the job's tasks, else 1280x720]
    #[arg(long, value_parser = size)]
    screenshot: Option<(usize, usize)>,
    /// Seconds that the page takes per step [default: 2]
    #[arg(long, value_parser = page_seconds)]
    page_seconds: Option<f64>,
    /// Take steps, tokens, tiles and page time from the finished trajectories of this run
    /// directory, instead of the options for them
    #[arg(long, value_name = "RUN_DIR", conflicts_with_all = ["steps", "generated", "screenshot", "page_seconds"])]
    recorded: Option<PathBuf>,
    #[command(flatten)]
    for_job: JobPlanArgs,
    #[command(flatten)]
    simulated: SimulateArgs,
    /// Print the plan as one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

/// A model and its display name.
struct PlanCandidate {
    name: String,
    work: Box<dyn ModelWork>,
}

/// How a session's earlier turns are treated, with display names.
const KEEPS: [(ContextRetention, &str); 3] = [
    (ContextRetention::Append, "append (state resident)"),
    (ContextRetention::LastImage, "last_image (state resident)"),
    (ContextRetention::Recompute, "whole prompt prefilled each turn"),
];

pub(crate) fn run(args: &PlanArgs) -> Result<(), CommandFailure> {
    let device = crate::job::gpu("--gpu", &args.gpu).map_err(CommandFailure::Input)?;
    let recorded = args.recorded.as_deref().map(RecordedRun::read).transpose()?;
    let planned = args.for_job.read()?;
    let of_job = planned.as_ref().and_then(|planned| planned.model()).map(|model| &model.checkpoint);
    let (name, config) = model(of_job.or(args.checkpoint.as_ref()))?;
    let mut mix = args.mix(planned.as_ref(), recorded.as_ref());
    if let Some(recorded) = &recorded {
        mix.page_seconds = recorded.workload.page_seconds;
    }
    let budget = planned
        .map(|planned| args.for_job.budget(&planned, (&config, &mix), recorded.as_ref(), device))
        .transpose()?;
    let floors =
        recorded.as_ref().map(|recorded| RecordedFloors::compute(recorded, &config, device, mix.sessions));
    let transformer =
        PlanCandidate { name: Transformer::HOLO2_8B.name.into(), work: Box::new(Transformer::HOLO2_8B) };
    let simulated = args.simulated.run(&config, device, &mix, recorded.as_ref())?;
    let candidates = [PlanCandidate { name, work: Box::new(config) }, transformer];
    if args.json {
        let models: Vec<Value> = candidates.iter().map(|candidate| candidate.value(device, &mix)).collect();
        let mut output = json!({ "gpu": device.name, "rates_from": device.source, "models": models });
        if let Some((recorded, floors)) = recorded.as_ref().zip(floors.as_ref()) {
            output["recorded"] = recorded.value();
            output["recorded"]["floors"] = floors.value();
        }
        if let Some((budget, of)) = &budget {
            output["budget"] = budget.value();
            output["budget"]["of"] = json!(of);
        }
        if !simulated.is_empty() {
            output["simulated"] = simulate::value(&simulated);
        }
        return Ok(output::json(&output)?);
    }
    output::line(format!(
        "{}: {:.2} TB/s, {:.0} TFLOP/s bfloat16, {} ({})",
        device.name,
        device.bandwidth / 1e12,
        device.flops / 1e12,
        output::bytes(device.memory as u64),
        device.source
    ));
    if recorded.is_none() {
        output::line(format!(
            "{} sessions of {} steps, {} tokens per step, screenshots {}x{}, pages take {} s per step",
            mix.sessions, mix.steps, mix.generated, mix.screenshot.0, mix.screenshot.1, mix.page_seconds
        ));
        for candidate in &candidates {
            candidate.print(device, &mix);
        }
    }
    if let Some((recorded, floors)) = recorded.as_ref().zip(floors.as_ref()) {
        recorded.print();
        floors.print(mix.sessions);
    }
    args.simulated.print(&simulated);
    if let Some((budget, of)) = &budget {
        budget.show(of);
    }
    output::line(
        "\nFloors are lower bounds: bytes and operations at the device's full rates, without launches and waits. Expect 60 % of these rates.",
    );
    Ok(())
}

impl PlanArgs {
    /// Options override the job, and the job overrides the defaults.
    fn mix(&self, planned: Option<&job::PlannedJob>, recorded: Option<&RecordedRun>) -> SessionMix {
        let base = SessionMix::default();
        let of_run = recorded.and_then(|recorded| recorded.sessions).filter(|_| planned.is_none());
        let base =
            SessionMix { sessions: of_run.map_or(base.sessions, |sessions| sessions as usize), ..base };
        let base = planned.map_or(base, |planned| planned.mix(base));
        let over = |given: Option<u32>, own: usize| given.map_or(own, |given| given as usize);
        SessionMix {
            steps: over(self.steps, base.steps),
            screenshot: self.screenshot.unwrap_or(base.screenshot),
            generated: over(self.generated, base.generated),
            page_seconds: self.page_seconds.unwrap_or(base.page_seconds),
            sessions: over(self.sessions, base.sessions),
            ..base
        }
    }
}

/// The floors of recorded trajectories: with one operation after another, and with two streams.
struct RecordedFloors {
    one: RolloutFloor,
    two: RolloutFloor,
}

impl RecordedFloors {
    fn compute(recorded: &RecordedRun, config: &Config, device: &DeviceSpec, sessions: usize) -> Self {
        let keep = if recorded.keep == ContextPolicy::LastImage {
            ContextRetention::LastImage
        } else {
            ContextRetention::Append
        };
        let work = &recorded.workload;
        Self {
            one: RolloutFloor::workload_floor(config, device, work, sessions, keep),
            two: RolloutFloor::workload_floor_concurrent(config, device, work, sessions, keep),
        }
    }

    fn print(&self, sessions: usize) {
        let row = |name: &str, floor: &RolloutFloor| {
            vec![
                format!("  {name}"),
                format!("{:.2}", floor.steps_per_second),
                format!("{:.0}", floor.trajectories_per_hour),
                format!("{:.0}", floor.session_bound_per_hour),
                format!("{:.0}", floor.context_max),
                floor.sessions_that_fit.to_string(),
            ]
        };
        output::line(format!("Floors for {sessions} such sessions"));
        let header = ["", "steps/s", "trajectories/h", "page-bound", "longest", "sessions fit"];
        let rows =
            [row("one operation after another", &self.one), row("vision tower on its own stream", &self.two)];
        output::table(&header, &rows);
    }

    fn value(&self) -> Value {
        let floor = |floor: &RolloutFloor| {
            json!({
                "steps_per_second": floor.steps_per_second, "trajectories_per_hour": floor.trajectories_per_hour,
                "page_bound_per_hour": floor.session_bound_per_hour, "context_max": floor.context_max, "context_mean": floor.context_mean,
                "sessions_that_fit": floor.sessions_that_fit,
            })
        };
        json!({ "one_after_another": floor(&self.one), "two_streams": floor(&self.two) })
    }
}

impl PlanCandidate {
    fn print(&self, device: &DeviceSpec, mix: &SessionMix) {
        let tokens = self.work.screenshot_tokens(mix.screenshot.0, mix.screenshot.1);
        let bytes = |bytes: f64| output::bytes(bytes as u64);
        output::line(format!("\n{}", self.name));
        output::line(format!("  weights                     {}", bytes(self.work.weight_bytes())));
        output::line(format!("  session without tokens      {}", bytes(self.work.session_bytes(0.0))));
        let a_token = self.work.session_bytes(1.0) - self.work.session_bytes(0.0);
        output::line(format!("  session, per token          {}", bytes(a_token)));
        output::line(format!("  tokens per screenshot       {tokens}"));
        let rows: Vec<Vec<String>> =
            KEEPS.iter().map(|(keep, name)| self.row(device, mix, *keep, name)).collect();
        let header = [
            "  context",
            "longest",
            "sessions fit",
            "decode batch",
            "prefill",
            "trajectories/h",
            "page-bound",
        ];
        output::table(&header, &rows);
    }

    fn row(&self, device: &DeviceSpec, mix: &SessionMix, keep: ContextRetention, name: &str) -> Vec<String> {
        let floor = RolloutFloor::floor(&*self.work, device, mix, keep);
        let fit = floor.sessions_that_fit.min(mix.sessions as u64) as usize;
        // The sessions that fit do the work of all.
        let reached =
            RolloutFloor::floor(&*self.work, device, &SessionMix { sessions: fit.max(1), ..*mix }, keep);
        let rate = match fit {
            0 => "does not fit".into(),
            fit if fit < mix.sessions => format!("{:.0} with {fit}", reached.trajectories_per_hour),
            _ => format!("{:.0}", floor.trajectories_per_hour),
        };
        vec![
            format!("  {name}"),
            format!("{:.0}", floor.context_max),
            floor.sessions_that_fit.to_string(),
            format!("{:.1}", reached.decode_batch),
            output::percent(Some(reached.prefill_share)),
            rate,
            format!("{:.0}", reached.session_bound_per_hour),
        ]
    }

    fn value(&self, device: &DeviceSpec, mix: &SessionMix) -> Value {
        let rollouts: Vec<Value> = KEEPS
            .iter()
            .map(|(keep, name)| {
                let floor = RolloutFloor::floor(&*self.work, device, mix, *keep);
                json!({
                    "context": name, "context_max": floor.context_max, "context_mean": floor.context_mean,
                    "sessions_that_fit": floor.sessions_that_fit, "decode_batch": floor.decode_batch,
                    "prefill_share": floor.prefill_share, "steps_per_second": floor.steps_per_second,
                    "trajectories_per_hour": floor.trajectories_per_hour, "page_bound_per_hour": floor.session_bound_per_hour,
                })
            })
            .collect();
        json!({
            "name": self.name, "weight_bytes": self.work.weight_bytes(), "session_bytes": self.work.session_bytes(0.0),
            "token_bytes": self.work.session_bytes(1.0) - self.work.session_bytes(0.0),
            "screenshot_tokens": self.work.screenshot_tokens(mix.screenshot.0, mix.screenshot.1), "rollouts": rollouts,
        })
    }
}

fn model(dir: Option<&PathBuf>) -> Result<(String, Config), CommandFailure> {
    let Some(dir) = dir else {
        return Ok(("Nemotron-Nano-12B-v2-VL / Holotron-12B".into(), Config::published()));
    };
    let config = Config::read(dir).map_err(|error| CommandFailure::Input(vec![chain(&error)]))?;
    Ok((dir.display().to_string(), config))
}

fn size(text: &str) -> Result<(usize, usize), String> {
    let sides = text.split_once('x').and_then(|(w, h)| Some((w.parse().ok()?, h.parse().ok()?)));
    sides
        .filter(|(w, h)| (32..=16_384).contains(w) && (32..=16_384).contains(h))
        .ok_or_else(|| "use WIDTHxHEIGHT with sides of 32 to 16384, such as 1280x720".to_owned())
}

fn page_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.001..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "use 0.001 to 3600".to_owned())
}
