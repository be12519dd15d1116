//! `furrow plan`: what a model takes on a device, how many sessions fit, and the floor of a rollout, before a machine is rented; what a job's arena takes.

mod arena;
pub mod simulate;

use std::path::PathBuf;

use clap::Args;
use furrow_model::config::Config;
use furrow_model::floor::{Device, Keep, Mix, Rollout, Transformer, Work};
use serde_json::{Value, json};

use self::arena::ArenaArgs;
use self::simulate::SimulateArgs;
use crate::{Failure, job, output};
use furrow_model::checkpoint::chain;

/// A model, a device, a rollout.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Checkpoint directory (its config.json is read) [default: the published 12B]
    #[arg(long)]
    checkpoint: Option<PathBuf>,
    /// Device: h200, h100, b200, a100, l40s
    #[arg(long, default_value = "h200")]
    gpu: String,
    /// Sessions at once
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    sessions: u32,
    /// Steps of a trajectory
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    steps: u32,
    /// Tokens generated a step
    #[arg(long, default_value_t = 150, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    generated: u32,
    /// Pixels of a screenshot, such as 1280x720
    #[arg(long, default_value = "1280x720", value_parser = size)]
    screenshot: (usize, usize),
    /// Seconds that the page takes for a step
    #[arg(long, default_value_t = 2.0, value_parser = page_seconds)]
    page_seconds: f64,
    #[command(flatten)]
    arena: ArenaArgs,
    #[command(flatten)]
    simulated: SimulateArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A model and what it is called.
struct Candidate {
    name: String,
    work: Box<dyn Work>,
}

/// How a session's earlier turns are treated, and how to say so.
const KEEPS: [(Keep, &str); 3] = [
    (Keep::Append, "append (state resident)"),
    (Keep::LastImage, "last_image (state resident)"),
    (Keep::Again, "whole prompt again each turn"),
];

/// Runs the command.
pub fn run(args: &PlanArgs) -> Result<(), Failure> {
    let device = job::gpu("--gpu", &args.gpu).map_err(Failure::Input)?;
    let of_job = args.arena.model()?;
    let checkpoint = of_job.as_ref().map(|model| &model.checkpoint).or(args.checkpoint.as_ref());
    let (name, config) = model(checkpoint)?;
    let planned = of_job.map(|model| args.arena.planned(&model, device)).transpose()?.flatten();
    let transformer =
        Candidate { name: Transformer::HOLO2_8B.name.into(), work: Box::new(Transformer::HOLO2_8B) };
    let mix = args.mix();
    let simulated = args.simulated.run(&config, device, &mix)?;
    let candidates = [Candidate { name, work: Box::new(config) }, transformer];
    if args.json {
        let models: Vec<Value> = candidates.iter().map(|candidate| candidate.value(device, &mix)).collect();
        let mut told = json!({ "gpu": device.name, "figures_from": device.source, "models": models });
        if let Some(planned) = planned {
            told["arena"] = planned.value();
        }
        if !simulated.is_empty() {
            told["simulated"] = simulate::value(&simulated);
        }
        return Ok(output::json(&told)?);
    }
    output::line(format!(
        "{}: {:.2} TB/s, {:.0} TFLOP/s bfloat16, {} ({})",
        device.name,
        device.bandwidth / 1e12,
        device.flops / 1e12,
        output::bytes(device.memory as u64),
        device.source
    ));
    output::line(format!(
        "{} sessions of {} steps, {} tokens a step, screenshots {}x{}, pages take {} s a step",
        args.sessions, args.steps, args.generated, args.screenshot.0, args.screenshot.1, args.page_seconds
    ));
    for candidate in &candidates {
        candidate.tell(device, &mix);
    }
    if let Some(planned) = planned {
        planned.tell();
    }
    args.simulated.tell(&simulated);
    output::line(
        "\nFloors: bytes and operations at the device's own rates, no launch, no wait. Expect 60 % of them.",
    );
    Ok(())
}

impl PlanArgs {
    fn mix(&self) -> Mix {
        Mix {
            steps: self.steps as usize,
            screenshot: self.screenshot,
            generated: self.generated as usize,
            page_seconds: self.page_seconds,
            sessions: self.sessions as usize,
            ..Mix::default()
        }
    }
}

impl Candidate {
    fn tell(&self, device: &Device, mix: &Mix) {
        let tokens = self.work.screenshot_tokens(mix.screenshot.0, mix.screenshot.1);
        let bytes = |bytes: f64| output::bytes(bytes as u64);
        output::line(format!("\n{}", self.name));
        output::line(format!("  weights                     {}", bytes(self.work.weight_bytes())));
        output::line(format!("  a session before any token  {}", bytes(self.work.session_bytes(0.0))));
        let a_token = self.work.session_bytes(1.0) - self.work.session_bytes(0.0);
        output::line(format!("  a session, each token       {}", bytes(a_token)));
        output::line(format!("  tokens a screenshot         {tokens}"));
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

    fn row(&self, device: &Device, mix: &Mix, keep: Keep, name: &str) -> Vec<String> {
        let floor = Rollout::floor(&*self.work, device, mix, keep);
        let fit = floor.sessions_that_fit.min(mix.sessions as u64) as usize;
        // As many as fit do the work of all.
        let reached = Rollout::floor(&*self.work, device, &Mix { sessions: fit.max(1), ..*mix }, keep);
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

    fn value(&self, device: &Device, mix: &Mix) -> Value {
        let rollouts: Vec<Value> = KEEPS
            .iter()
            .map(|(keep, name)| {
                let floor = Rollout::floor(&*self.work, device, mix, *keep);
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

fn model(dir: Option<&PathBuf>) -> Result<(String, Config), Failure> {
    let Some(dir) = dir else {
        return Ok(("Nemotron-Nano-12B-v2-VL / Holotron-12B".into(), Config::published()));
    };
    let config = Config::read(dir).map_err(|error| Failure::Input(vec![chain(&error)]))?;
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
