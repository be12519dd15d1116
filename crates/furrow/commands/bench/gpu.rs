//! `furrow bench gpu`: decode, prefill, vision, forks, parking and swaps of weights on a GPU, each beside its floor at the rates that the same run measured.
//!
//! Weights are noise made here, so no checkpoint is needed; what does not fit says so.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use furrow_cuda::backend::{Options, Precision, Stage};
use furrow_cuda::executor::Executor;
use furrow_cuda::gpu::{Gpu, Places};
use furrow_cuda::measure::{Cases, Figure, Rates, Subject, Yard, Yardstick, swap};
use furrow_model::config::Config;
use furrow_model::floor::Keep;
use serde_json::json;

use crate::commands::model::chain;
use crate::{Failure, output};

/// What to measure, and where.
#[derive(Debug, Args)]
pub struct GpuArgs {
    /// Checkpoint directory (its config.json is read) [default: the published 12B]
    #[arg(long)]
    checkpoint: Option<PathBuf>,
    /// Which GPU, as the driver numbers them
    #[arg(long, default_value_t = 0)]
    gpu: usize,
    /// Folder with NVIDIA's libraries; may be given again
    #[arg(long, value_name = "DIR")]
    cuda_libraries: Vec<PathBuf>,
    /// Where compiled kernels are kept
    #[arg(long, value_name = "DIR", default_value = ".cache/kernels")]
    kernel_cache: PathBuf,
    /// Tokens of a prefill chunk
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=65_000))]
    chunk: u32,
    /// Runs of each figure; their median counts
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    times: u32,
    /// Seconds of each rollout; 0: none
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    seconds: u64,
    /// States of the recurrence in bfloat16
    #[arg(long)]
    narrow_state: bool,
    /// As policy.engine.deterministic has it: no neighbours in any shape
    #[arg(long)]
    deterministic: bool,
    /// The residual stream in float32
    #[arg(long, conflicts_with = "narrow_state")]
    wide_residual: bool,
    /// Print JSON, a line a figure
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &GpuArgs) -> Result<(), Failure> {
    let config = match &args.checkpoint {
        Some(dir) => Config::read(dir).map_err(|error| Failure::Input(vec![chain(&error)]))?,
        None => Config::published(),
    };
    let mut gpu = open(args)?;
    let (name, times) = (gpu.device().name().to_owned(), args.times as usize);
    let mut yard = Yard::open(&mut gpu, Yardstick::default(), times)?;
    let found = yard.rates()?;
    let precision = match (args.narrow_state, args.wide_residual) {
        (true, _) => Precision::NarrowState,
        (_, true) => Precision::WideResidual,
        _ => Precision::Usual,
    };
    let (options, cases) = (
        Options { precision, deterministic: args.deterministic, ..Options::default() },
        Cases { chunk: args.chunk, rollout: Duration::from_secs(args.seconds), ..Cases::default() },
    );
    let mut alone: Vec<Figure> = Vec::new();
    cases.measure_alone(&config, &mut yard, found, &mut |figure| alone.push(figure.clone()))?;
    let room = cases.room(&config, &options, gpu.free_bytes()?);
    let room = room.map_err(|error| Failure::Input(vec![chain(&error)]))?;
    let subject = Subject::open(&config, room, options, Box::new(gpu), times);
    let mut subject = subject.map_err(|error| Failure::Input(vec![chain(&error)]))?;
    let plan = subject.device().plan().to_string();
    if args.json {
        let head = json!({
            "gpu": name, "copy_bytes_per_second": found.bandwidth, "product_flops": found.flops, "plan": plan,
            "state_slots": room.slots, "pages": room.pages, "rows_max": room.rows_max, "times": times,
        });
        output::line(head.to_string());
        let mut tell = |figure: &Figure| output::line(value(figure).to_string());
        alone.iter().for_each(&mut tell);
        cases.measure(&mut subject, found, &mut tell)?;
        drop(subject);
        rollouts(args, &config, &options, &cases, found, &mut tell)?;
        return swaps(args, &config, found, &mut tell);
    }
    output::line(format!(
        "{name}: copies {:.2} TB/s, products {:.0} TFLOP/s in bfloat16; {plan}",
        found.bandwidth / 1e12,
        found.flops / 1e12
    ));
    let mut rows: Vec<Vec<String>> = alone.iter().map(row).collect();
    let mut tell = |figure: &Figure| rows.push(row(figure));
    cases.measure(&mut subject, found, &mut tell)?;
    drop(subject);
    rollouts(args, &config, &options, &cases, found, &mut tell)?;
    swaps(args, &config, found, &mut tell)?;
    output::table(&["", "measured", "floor", "share", "rate"], &rows);
    Ok(())
}

fn open(args: &GpuArgs) -> Result<Gpu, Failure> {
    let (ordinal, libraries, cache) = (args.gpu, args.cuda_libraries.clone(), args.kernel_cache.clone());
    let gpu = Gpu::open(&Places { ordinal, libraries, cache });
    gpu.map_err(|error| Failure::Input(vec![chain(&error)]))
}

/// Rollouts: a device opened anew for each way to keep what was seen, for each has its own share of states and pages.
fn rollouts(
    args: &GpuArgs,
    config: &Config,
    options: &Options,
    cases: &Cases,
    found: Rates,
    tell: &mut dyn FnMut(&Figure),
) -> Result<(), Failure> {
    if cases.rollout.is_zero() {
        return Ok(());
    }
    let refused = |error| Failure::Input(vec![chain(&error)]);
    for keep in [Keep::Append, Keep::LastImage] {
        let mut gpu = open(args)?;
        let room = cases.rollout_room(config, options, keep, gpu.free_bytes()?).map_err(refused)?;
        let subject = Subject::open(config, room, *options, Box::new(gpu), args.times as usize);
        cases.measure_rollouts(keep, &mut subject.map_err(refused)?, found, tell)?;
    }
    Ok(())
}

/// Exchanges of all weights: a device opened anew for each, for each takes the memory of everything else.
fn swaps(
    args: &GpuArgs,
    config: &Config,
    found: Rates,
    tell: &mut dyn FnMut(&Figure),
) -> Result<(), Failure> {
    for stage in [Stage::Device, Stage::Host] {
        let taken = swap(config, stage, Box::new(open(args)?), args.times as usize)?;
        tell(&Cases::swapped(config, found, stage, taken));
    }
    Ok(())
}

fn row(figure: &Figure) -> Vec<String> {
    let millis = |seconds: f64| format!("{:.3} ms", seconds * 1e3);
    let dash = || "–".to_owned();
    vec![
        [&*figure.what, &*figure.note]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(": "),
        figure.taken.map_or("does not fit".to_owned(), |taken| millis(taken.as_secs_f64())),
        figure.floor.map_or_else(dash, millis),
        output::percent(figure.share()),
        figure.rate().map_or_else(dash, |rate| format!("{rate:.1} {}", figure.unit)),
    ]
}

fn value(figure: &Figure) -> serde_json::Value {
    json!({
        "what": figure.what, "note": figure.note, "fits": figure.taken.is_some(), "seconds": figure.taken.map(|taken| taken.as_secs_f64()),
        "floor_seconds": figure.floor, "share": figure.share(), "rate": figure.rate(), "unit": figure.unit,
    })
}
