//! `furrow-bench gpu`: measures decode, prefill, vision, forks, swapping out, swaps of weights and
//! whole rollouts on a GPU, each relative to its floor at the rates measured in the same run.
//!
//! Weights are random, so no checkpoint is needed; parts that do not fit are reported. The parts
//! open the GPU one after another, because each takes all of its memory.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use furrow::{CommandFailure, RecordedRun, output, simulation};
use furrow_cuda::backend::{BackendOptions, ModelPrecision, StagingMode};
use furrow_cuda::executor::Executor;
use furrow_cuda::gpu::{GpuExecutor, GpuPaths};
use furrow_cuda::measure::{
    BenchmarkBuffers, BenchmarkCases, BenchmarkModel, BenchmarkResult, DeviceRates, ReferenceSizes,
    measure_swap, open_widest,
};
use furrow_model::checkpoint::chain;
use furrow_model::config::Config;
use furrow_rollout::ContextPolicy;
use furrow_simulator::{
    PREFILL_CHUNK, PREFILL_TOKENS, SessionMix, SimulationOutcome, SimulatorSettings, required_capacity,
    run_on_device,
};
use serde_json::json;

#[derive(Debug, Args)]
pub(crate) struct GpuArgs {
    /// Checkpoint directory, of which config.json is read [default: the published 12B]
    #[arg(long)]
    checkpoint: Option<PathBuf>,
    /// Index of the GPU, as the driver numbers them
    #[arg(long, default_value_t = 0)]
    gpu: usize,
    /// Directory with NVIDIA's libraries; repeat the option for more directories
    #[arg(long, value_name = "DIR")]
    cuda_libraries: Vec<PathBuf>,
    /// Directory to keep compiled kernels in
    #[arg(long, value_name = "DIR", default_value = ".cache/kernels")]
    kernel_cache: PathBuf,
    /// Tokens of a prefill chunk in the measurements of prefill alone
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=65_000))]
    chunk: u32,
    /// Number of runs of each measurement; the result is their median
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    times: u32,
    /// Seconds to measure each rollout
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Number of concurrent sessions of the rollouts [default: as many as the recorded run had,
    /// else 100]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1000))]
    sessions: Option<u64>,
    /// Take steps, tokens, tiles and page time of the rollouts from the finished trajectories of
    /// this run directory, and run no other rollouts
    #[arg(long, value_name = "RUN_DIR")]
    recorded: Option<PathBuf>,
    /// Measure only these parts, separated by commas [default: all parts]
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<GpuBenchPart>,
    /// Keep the recurrent states in bfloat16
    #[arg(long)]
    narrow_state: bool,
    /// Compute as with policy.engine.deterministic: no result depends on other sessions in the
    /// batch
    #[arg(long)]
    deterministic: bool,
    /// Keep the residual stream in float32
    #[arg(long, conflicts_with = "narrow_state")]
    wide_residual: bool,
    /// Print JSON, one line per measurement
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum GpuBenchPart {
    /// State updates, decode, prefill, vision, forks and swapping out
    Operations,
    /// Repeat some of them: deterministic, with the residual stream in float32, with states in
    /// bfloat16
    Variants,
    /// The engine itself, with pages that take two seconds
    Rollouts,
    /// Swaps of all weights, staged on the device and on the host
    Swaps,
}

pub(crate) fn run(args: &GpuArgs) -> Result<(), CommandFailure> {
    let config = match &args.checkpoint {
        Some(dir) => Config::read(dir).map_err(|error| CommandFailure::Input(vec![chain(&error)]))?,
        None => Config::published(),
    };
    // Read first: a run that cannot be used is refused before a GPU is opened.
    let recorded = args.recorded.as_deref().map(RecordedRun::read).transpose()?;
    let bench = GpuBench::begin(args, config, recorded)?;
    let mut rows = Vec::new();
    let mut emit = |figure: &BenchmarkResult| {
        if args.json {
            output::line(value(figure).to_string());
        } else {
            rows.push(row(figure));
        }
    };
    if bench.is_selected(GpuBenchPart::Operations) {
        bench.measure_operations(&mut emit)?;
    }
    if bench.is_selected(GpuBenchPart::Variants) {
        bench.measure_variants(&mut emit)?;
    }
    if bench.is_selected(GpuBenchPart::Swaps) {
        bench.measure_swaps(&mut emit)?;
    }
    if !rows.is_empty() {
        output::table(&["", "measured", "floor", "share", "rate"], &rows);
    }
    if bench.is_selected(GpuBenchPart::Rollouts) {
        bench.measure_rollouts()?;
    }
    Ok(())
}

/// A GPU with measured rates.
struct GpuBench<'a> {
    args: &'a GpuArgs,
    config: Config,
    options: BackendOptions,
    cases: BenchmarkCases,
    rates: DeviceRates,
    /// Bytes of the device that were free.
    free: u64,
    /// The run whose trajectories the rollouts repeat.
    recorded: Option<RecordedRun>,
}

impl<'a> GpuBench<'a> {
    /// Measures the device's own rates and prints them.
    fn begin(
        args: &'a GpuArgs,
        config: Config,
        recorded: Option<RecordedRun>,
    ) -> Result<Self, CommandFailure> {
        let mut gpu = open(args)?;
        let name = gpu.device().name().to_owned();
        let free = gpu.free_bytes()?;
        let rates =
            BenchmarkBuffers::open(&mut gpu, ReferenceSizes::default(), args.times as usize)?.rates()?;
        let precision = match (args.narrow_state, args.wide_residual) {
            (true, _) => ModelPrecision::NarrowState,
            (_, true) => ModelPrecision::WideResidual,
            _ => ModelPrecision::Usual,
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
                recorded.print();
            }
        }
        let options =
            BackendOptions { precision, deterministic: args.deterministic, ..BackendOptions::default() };
        Ok(Self {
            args,
            config,
            options,
            cases: BenchmarkCases { chunk: args.chunk, ..BenchmarkCases::default() },
            rates,
            free,
            recorded,
        })
    }

    fn is_selected(&self, part: GpuBenchPart) -> bool {
        self.args.only.is_empty() || self.args.only.contains(&part)
    }

    fn measure_operations(&self, emit: &mut dyn FnMut(&BenchmarkResult)) -> Result<(), CommandFailure> {
        {
            // The memory is released before the model takes all of it.
            let mut gpu = open(self.args)?;
            let mut buffers =
                BenchmarkBuffers::open(&mut gpu, ReferenceSizes::default(), self.args.times as usize)?;
            self.cases.measure_alone(&self.config, &mut buffers, self.rates, emit)?;
        }
        Ok(self.cases.measure(&mut self.open_subject(self.options)?, self.rates, emit)?)
    }

    fn measure_variants(&self, emit: &mut dyn FnMut(&BenchmarkResult)) -> Result<(), CommandFailure> {
        let options = self.options;
        let others = [
            ("deterministic", BackendOptions { deterministic: true, ..options }),
            ("wide_residual", BackendOptions { precision: ModelPrecision::WideResidual, ..options }),
            ("narrow_state", BackendOptions { precision: ModelPrecision::NarrowState, ..options }),
        ];
        for (label, options) in others {
            self.cases.measure_with(label, &mut self.open_subject(options)?, self.rates, emit)?;
        }
        Ok(())
    }

    /// The model on a GPU without other allocations.
    fn open_subject(&self, options: BackendOptions) -> Result<BenchmarkModel, CommandFailure> {
        let mut gpu = open(self.args)?;
        let capacity =
            self.cases.capacity(&self.config, &options, gpu.free_bytes()?).map_err(input_failure)?;
        BenchmarkModel::open(&self.config, capacity, options, Box::new(gpu), self.args.times as usize)
            .map_err(input_failure)
    }

    fn measure_swaps(&self, emit: &mut dyn FnMut(&BenchmarkResult)) -> Result<(), CommandFailure> {
        for stage in [StagingMode::Device, StagingMode::Host] {
            let taken =
                measure_swap(&self.config, stage, Box::new(open(self.args)?), self.args.times as usize)?;
            emit(&BenchmarkCases::swap_result(&self.config, self.rates, stage, taken));
        }
        Ok(())
    }

    /// The engine's own loop, for each context policy and two sizes of screenshots, or for the
    /// recorded workload. `append` comes last: pinning memory for sessions that do not fit takes
    /// minutes on some machines.
    fn measure_rollouts(&self) -> Result<(), CommandFailure> {
        let mut rows = Vec::new();
        for (what, settings) in self.rollout_settings() {
            let name = format!("rollout, {} sessions, {what}", self.sessions());
            match self.rollout(&settings) {
                Ok(outcome) if self.args.json => {
                    let mut fields = simulation::entry(&settings.keep, &outcome);
                    fields.insert("what".to_owned(), json!(name));
                    fields.insert("trajectories_per_hour".to_owned(), json!(self.per_hour(&outcome)));
                    output::line(serde_json::Value::from(fields).to_string());
                }
                Ok(outcome) => rows.push(simulation::row(&what, &outcome)),
                Err(CommandFailure::Input(why)) if self.args.json => {
                    output::line(json!({ "what": name, "fits": false, "why": why }).to_string());
                }
                Err(CommandFailure::Input(why)) => output::line(format!("{name}: {}", why.join("; "))),
                Err(other) => return Err(other),
            }
        }
        if !rows.is_empty() {
            let page_seconds = self
                .recorded
                .as_ref()
                .map_or(SessionMix::default().page_seconds, |it| it.workload.page_seconds);
            output::line(format!(
                "\n{} sessions, pages of {page_seconds:.2} seconds, the floor of one operation after another",
                self.sessions()
            ));
            output::table(&simulation::HEADER, &rows);
        }
        Ok(())
    }

    /// The rollouts to run, with their names.
    fn rollout_settings(&self) -> Vec<(String, SimulatorSettings)> {
        let base = SimulatorSettings {
            mix: SessionMix { sessions: self.sessions(), ..SessionMix::default() },
            workload: None,
            keep: ContextPolicy::Append,
            prefill_chunk: PREFILL_CHUNK,
            prefill_tokens: PREFILL_TOKENS,
            host_micros: 0,
            seconds: Some(self.args.seconds as f64),
        };
        if let Some(recorded) = &self.recorded {
            let workload = Some(recorded.workload.clone());
            let settings = SimulatorSettings { workload, keep: recorded.keep, ..base };
            return vec![(format!("{}, recorded", recorded.keep), settings)];
        }
        let screenshots = || self.cases.screenshots.iter().take(2).copied();
        let each = |keep: ContextPolicy| screenshots().map(move |screenshot| (keep, screenshot));
        [ContextPolicy::LastImage, ContextPolicy::Append]
            .into_iter()
            .flat_map(each)
            .map(|(keep, screenshot)| {
                let mix = SessionMix { screenshot, ..base.mix };
                (
                    format!("{keep}, {}x{}", screenshot.0, screenshot.1),
                    SimulatorSettings { mix, keep, ..base.clone() },
                )
            })
            .collect()
    }

    fn sessions(&self) -> usize {
        let recorded = self.recorded.as_ref().and_then(|recorded| recorded.sessions).map(u64::from);
        self.args.sessions.or(recorded).unwrap_or(100) as usize
    }

    fn rollout(&self, settings: &SimulatorSettings) -> Result<SimulationOutcome, CommandFailure> {
        let device = self.rates.device(self.free);
        let capacity = required_capacity(&self.config, &device, settings).map_err(input_failure)?;
        let subject = open_widest(&self.config, capacity, self.options, Box::new(open(self.args)?))
            .map_err(input_failure)?;
        run_on_device(subject, &device, settings).map_err(input_failure)
    }

    /// Trajectories per hour, at the workload's mean number of steps.
    fn per_hour(&self, outcome: &SimulationOutcome) -> f64 {
        let steps =
            self.recorded.as_ref().map_or(SessionMix::default().steps as f64, |it| it.workload.steps_mean());
        outcome.steps_per_second() * 3600.0 / steps
    }
}

fn input_failure(error: impl std::error::Error + 'static) -> CommandFailure {
    CommandFailure::Input(vec![chain(&error)])
}

fn open(args: &GpuArgs) -> Result<GpuExecutor, CommandFailure> {
    let ordinal = args.gpu;
    let libraries = args.cuda_libraries.clone();
    let cache = args.kernel_cache.clone();
    GpuExecutor::open(&GpuPaths { ordinal, libraries, cache }).map_err(input_failure)
}

fn row(figure: &BenchmarkResult) -> Vec<String> {
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

fn value(figure: &BenchmarkResult) -> serde_json::Value {
    json!({
        "what": figure.what, "fits": figure.taken.is_some(), "seconds": figure.taken.map(|taken| taken.as_secs_f64()),
        "floor_seconds": figure.floor, "share": figure.share(), "rate": figure.rate(), "unit": figure.unit,
    })
}
