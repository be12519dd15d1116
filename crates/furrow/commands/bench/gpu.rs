//! `furrow bench gpu`: decode, prefill, vision, forks, parking, swaps of weights and whole rollouts on a GPU, each beside its floor at the rates that the same
//! run measured.
//!
//! Weights are noise made here, so no checkpoint is needed; what does not fit says so. Parts open the GPU one after another, for each takes all of its memory.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use furrow_cuda::backend::{Options, Precision, Stage};
use furrow_cuda::executor::Executor;
use furrow_cuda::gpu::{Gpu, Places};
use furrow_cuda::measure::{Cases, Figure, Rates, Subject, Yard, Yardstick, open_widest, swap};
use furrow_model::config::Config;
use furrow_model::floor::Mix;
use furrow_policy::twin::{self, Outcome, TwinSettings};
use furrow_rollout::ContextPolicy;
use serde_json::json;

use crate::commands::plan::simulate;
use crate::recorded::Recorded;
use crate::{Failure, output};
use furrow_model::checkpoint::chain;

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
    /// Tokens of a prefill chunk, where a prefill is measured alone
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=65_000))]
    chunk: u32,
    /// Runs of each figure; their median counts
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    times: u32,
    /// Seconds in which each rollout is watched
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Sessions of the rollouts [default: as many as the recorded run had, else 100]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1000))]
    sessions: Option<u64>,
    /// Run rollouts of the steps, tokens, tiles and page time of this run directory's finished trajectories, as its sessions kept them, and no others
    #[arg(long, value_name = "RUN_DIR")]
    recorded: Option<PathBuf>,
    /// Only these parts, commas between [default: all of them]
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
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

/// A part of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// State updates, decode, prefill, vision, forks and parking
    Figures,
    /// Some of them again: deterministic, with the residual stream in float32, with states in bfloat16
    Variants,
    /// The engine itself, with pages that take two seconds
    Rollouts,
    /// Swaps of all weights, staged on the device and on the host
    Swaps,
}

/// Runs the command.
pub fn run(args: &GpuArgs) -> Result<(), Failure> {
    let config = match &args.checkpoint {
        Some(dir) => Config::read(dir).map_err(|error| Failure::Input(vec![chain(&error)]))?,
        None => Config::published(),
    };
    // Before a GPU is opened: a run that cannot be used is refused at once.
    let recorded = args.recorded.as_deref().map(Recorded::read).transpose()?;
    let bench = Bench::begin(args, config, recorded)?;
    let mut rows = Vec::new();
    let mut tell = |figure: &Figure| {
        if args.json {
            output::line(value(figure).to_string());
        } else {
            rows.push(row(figure));
        }
    };
    if bench.takes(Part::Figures) {
        bench.figures(&mut tell)?;
    }
    if bench.takes(Part::Variants) {
        bench.variants(&mut tell)?;
    }
    if bench.takes(Part::Swaps) {
        bench.swaps(&mut tell)?;
    }
    if !rows.is_empty() {
        output::table(&["", "measured", "floor", "share", "rate"], &rows);
    }
    if bench.takes(Part::Rollouts) {
        bench.rollouts()?;
    }
    Ok(())
}

/// A GPU whose rates are known.
struct Bench<'a> {
    args: &'a GpuArgs,
    config: Config,
    options: Options,
    cases: Cases,
    rates: Rates,
    /// Bytes of the device that were free.
    free: u64,
    /// Whose trajectories the rollouts repeat.
    recorded: Option<Recorded>,
}

impl<'a> Bench<'a> {
    /// Measures the device's own rates, and says them.
    fn begin(args: &'a GpuArgs, config: Config, recorded: Option<Recorded>) -> Result<Self, Failure> {
        let mut gpu = open(args)?;
        let (name, free) = (gpu.device().name().to_owned(), gpu.free_bytes()?);
        let rates = Yard::open(&mut gpu, Yardstick::default(), args.times as usize)?.rates()?;
        let precision = match (args.narrow_state, args.wide_residual) {
            (true, _) => Precision::NarrowState,
            (_, true) => Precision::WideResidual,
            _ => Precision::Usual,
        };
        if args.json {
            let head = json!({
                "gpu": name, "copy_bytes_per_second": rates.bandwidth, "product_flops": rates.flops, "free_bytes": free,
                "times": args.times,
            });
            output::line(head.to_string());
        } else {
            output::line(format!(
                "{name}: copies {:.2} TB/s, products {:.0} TFLOP/s in bfloat16",
                rates.bandwidth / 1e12,
                rates.flops / 1e12
            ));
        }
        if let Some(recorded) = &recorded {
            if args.json {
                output::line(json!({ "recorded": recorded.value() }).to_string());
            } else {
                recorded.tell();
            }
        }
        let options = Options { precision, deterministic: args.deterministic, ..Options::default() };
        Ok(Self {
            args,
            config,
            options,
            cases: Cases { chunk: args.chunk, ..Cases::default() },
            rates,
            free,
            recorded,
        })
    }

    fn takes(&self, part: Part) -> bool {
        self.args.only.is_empty() || self.args.only.contains(&part)
    }

    fn figures(&self, tell: &mut dyn FnMut(&Figure)) -> Result<(), Failure> {
        {
            // Its memory is given back before the model takes all there is.
            let mut gpu = open(self.args)?;
            let mut yard = Yard::open(&mut gpu, Yardstick::default(), self.args.times as usize)?;
            self.cases.measure_alone(&self.config, &mut yard, self.rates, tell)?;
        }
        Ok(self.cases.measure(&mut self.subject(self.options)?, self.rates, tell)?)
    }

    fn variants(&self, tell: &mut dyn FnMut(&Figure)) -> Result<(), Failure> {
        let options = self.options;
        let others = [
            ("deterministic", Options { deterministic: true, ..options }),
            ("wide_residual", Options { precision: Precision::WideResidual, ..options }),
            ("narrow_state", Options { precision: Precision::NarrowState, ..options }),
        ];
        for (label, options) in others {
            self.cases.measure_with(label, &mut self.subject(options)?, self.rates, tell)?;
        }
        Ok(())
    }

    /// The model on a GPU that has nothing else.
    fn subject(&self, options: Options) -> Result<Subject, Failure> {
        let mut gpu = open(self.args)?;
        let room = self.cases.room(&self.config, &options, gpu.free_bytes()?).map_err(refused)?;
        Subject::open(&self.config, room, options, Box::new(gpu), self.args.times as usize).map_err(refused)
    }

    fn swaps(&self, tell: &mut dyn FnMut(&Figure)) -> Result<(), Failure> {
        for stage in [Stage::Device, Stage::Host] {
            let taken = swap(&self.config, stage, Box::new(open(self.args)?), self.args.times as usize)?;
            tell(&Cases::swapped(&self.config, self.rates, stage, taken));
        }
        Ok(())
    }

    /// The engine's own loop, for each way to keep what was seen and two sizes of screenshots, or for what was recorded. `append` comes last: pinning memory for
    /// sessions that do not fit takes minutes on some machines.
    fn rollouts(&self) -> Result<(), Failure> {
        let mut rows = Vec::new();
        for (what, settings) in self.loops() {
            let name = format!("rollout, {} sessions, {what}", self.sessions());
            match self.rollout(&settings) {
                Ok(outcome) if self.args.json => {
                    let mut said = simulate::entry(&settings.keep, &outcome);
                    said.insert("what".to_owned(), json!(name));
                    said.insert("trajectories_per_hour".to_owned(), json!(self.per_hour(&outcome)));
                    output::line(serde_json::Value::from(said).to_string());
                }
                Ok(outcome) => rows.push(simulate::row(&what, &outcome)),
                Err(Failure::Input(why)) if self.args.json => {
                    output::line(json!({ "what": name, "fits": false, "why": why }).to_string());
                }
                Err(Failure::Input(why)) => output::line(format!("{name}: {}", why.join("; "))),
                Err(other) => return Err(other),
            }
        }
        if !rows.is_empty() {
            let page_seconds =
                self.recorded.as_ref().map_or(Mix::default().page_seconds, |it| it.workload.page_seconds);
            output::line(format!(
                "\n{} sessions, pages of {page_seconds:.2} seconds, the floor of one thing after another",
                self.sessions()
            ));
            output::table(&simulate::HEADER, &rows);
        }
        Ok(())
    }

    /// Which rollouts are run, and what each is called.
    fn loops(&self) -> Vec<(String, TwinSettings)> {
        let base = TwinSettings {
            mix: Mix { sessions: self.sessions(), ..Mix::default() },
            workload: None,
            keep: ContextPolicy::Append,
            prefill_chunk: twin::PREFILL_CHUNK,
            prefill_tokens: twin::PREFILL_TOKENS,
            host_micros: 0,
            seconds: Some(self.args.seconds as f64),
        };
        if let Some(recorded) = &self.recorded {
            let workload = Some(recorded.workload.clone());
            let settings = TwinSettings { workload, keep: recorded.keep, ..base };
            return vec![(format!("{}, recorded", recorded.keep), settings)];
        }
        let screenshots = || self.cases.screenshots.iter().take(2).copied();
        let each = |keep: ContextPolicy| screenshots().map(move |screenshot| (keep, screenshot));
        [ContextPolicy::LastImage, ContextPolicy::Append]
            .into_iter()
            .flat_map(each)
            .map(|(keep, screenshot)| {
                let mix = Mix { screenshot, ..base.mix };
                (
                    format!("{keep}, {}x{}", screenshot.0, screenshot.1),
                    TwinSettings { mix, keep, ..base.clone() },
                )
            })
            .collect()
    }

    fn sessions(&self) -> usize {
        let recorded = self.recorded.as_ref().and_then(|recorded| recorded.sessions).map(u64::from);
        self.args.sessions.or(recorded).unwrap_or(100) as usize
    }

    fn rollout(&self, settings: &TwinSettings) -> Result<Outcome, Failure> {
        let device = self.rates.device(self.free);
        let room = twin::needs(&self.config, &device, settings).map_err(refused)?;
        let subject =
            open_widest(&self.config, room, self.options, Box::new(open(self.args)?)).map_err(refused)?;
        twin::rehearse(subject, &device, settings).map_err(refused)
    }

    /// Of the steps that a trajectory has in the mean.
    fn per_hour(&self, outcome: &Outcome) -> f64 {
        let steps = self.recorded.as_ref().map_or(Mix::default().steps as f64, |it| it.workload.steps_mean());
        outcome.steps_per_second() * 3600.0 / steps
    }
}

fn refused(error: impl std::error::Error + 'static) -> Failure {
    Failure::Input(vec![chain(&error)])
}

fn open(args: &GpuArgs) -> Result<Gpu, Failure> {
    let (ordinal, libraries, cache) = (args.gpu, args.cuda_libraries.clone(), args.kernel_cache.clone());
    Gpu::open(&Places { ordinal, libraries, cache }).map_err(refused)
}

fn row(figure: &Figure) -> Vec<String> {
    let millis = |seconds: f64| format!("{:.3} ms", seconds * 1e3);
    let dash = || "–".to_owned();
    vec![
        figure.what.clone(),
        figure.taken.map_or("does not fit".to_owned(), |taken| millis(taken.as_secs_f64())),
        figure.floor.map_or_else(dash, millis),
        output::percent(figure.share()),
        figure.rate().map_or_else(dash, |rate| format!("{rate:.1} {}", figure.unit)),
    ]
}

fn value(figure: &Figure) -> serde_json::Value {
    json!({
        "what": figure.what, "fits": figure.taken.is_some(), "seconds": figure.taken.map(|taken| taken.as_secs_f64()),
        "floor_seconds": figure.floor, "share": figure.share(), "rate": figure.rate(), "unit": figure.unit,
    })
}
