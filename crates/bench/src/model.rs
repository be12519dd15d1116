//! `furrow-bench model`: measures the `cpu` backend beside the same model in transformers, round by
//! round, and relative to itself for scaling: bfloat16 against float32, a long context against
//! none, a state copy against a plain memory copy.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use clap::Args;
use furrow::{CommandFailure, ScratchDir};
use furrow_model::backend::{
    Backend as _, BackendCapacity, DeviceLost, OffloadedState, PAGE_TOKENS, Page, Slot,
};
use furrow_model::config::LayerKind;
use furrow_model::cpu::CpuBackend;
use furrow_model::kernels::{
    PageView as KeyPage, PagedAttention, ProductPrecision, StridedRows, ThreadPool, peak,
};
use furrow_telemetry::{MemoryMeasure, process_usage};

use crate::BenchArgs;
use crate::checkpoints::{PerDtype, checkpoints};
use crate::model_ours::{BenchLoad, CpuModel, pages};
use crate::model_peer::ModelPeer;
use crate::report::{BenchReport, cores};

#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    /// Python with torch and transformers, for the peer: writes the model for both sides; without
    /// it only furrow is measured, on a random model
    #[arg(long, env = "FURROW_PEER_PYTHON", default_value = "python3")]
    python: PathBuf,
    /// Directory of the peer's script
    #[arg(long, default_value = "tests/peers")]
    peer: PathBuf,
    /// Number of rounds; the result is the median over the rounds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Number of threads [default: one per core]
    #[arg(long)]
    threads: Option<usize>,
    /// Tokens of the context that an observation is appended to
    #[arg(long, default_value_t = 8000, value_parser = clap::value_parser!(u32).range(64..=100_000))]
    context: u32,
    /// Directory to write checkpoints to; they are removed at the end
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    #[command(flatten)]
    bench: BenchArgs,
}

/// Numbers of sequences decoded at once.
const BATCHES: [u32; 3] = [1, 8, 32];

/// Number of sessions whose memory is measured.
const RESIDENT: u32 = 16;

/// Name of the shape in the peer's script.
const SHAPE: &str = "97m";
/// As in the peer: a short prompt, warm-up steps, then measured steps.
const PROMPT: u32 = 32;
const WARM: u32 = 2;
const STEPS: u32 = 24;
const PREFILL_TOKENS: u32 = 1024;
const OBSERVATION: u32 = 256;

pub(crate) fn run(args: &ModelArgs) -> Result<(), CommandFailure> {
    let mut report = BenchReport::begin(&args.bench)?;
    let scratch = ScratchDir::make(&args.dir)?;
    let folders = checkpoints(&args.python, &args.peer, SHAPE, &scratch, &mut report)?;
    let threads = args.threads.unwrap_or_else(cores).max(1);
    let team = ThreadPool::new(threads);
    let load = BenchLoad {
        sequences: 32,
        sequence_tokens: PROMPT + WARM + STEPS,
        // The context, an observation after it, and a copy of both.
        alone_tokens: 2 * (args.context + OBSERVATION),
        rows_max: PREFILL_TOKENS,
    };
    let mut ours = PerDtype {
        float32: CpuModel::open(&folders.float32, ProductPrecision::Float32, threads, load)?,
        bfloat16: CpuModel::open(&folders.bfloat16, ProductPrecision::Bfloat16, threads, load)?,
    };
    let mut peers = peers(args, &folders, threads, &mut report)?;
    for _ in 0..args.rounds {
        peaks(&team, &mut report);
        speeds(&mut ours, peers.as_mut(), &mut report)?;
        observation(&mut ours.float32, args.context, &mut report)?;
        copies(&mut ours.float32, args.context, &mut report)?;
        memory(&mut ours.float32, args.context, &mut report)?;
    }
    report.note(
        "rates are tokens per second; bfloat16 weights with inputs rounded to bfloat16, sums in float32",
    );
    report.print(&args.bench)
}

fn peers(
    args: &ModelArgs,
    folders: &PerDtype<PathBuf>,
    threads: usize,
    report: &mut BenchReport,
) -> Result<Option<PerDtype<ModelPeer>>, CommandFailure> {
    let mut notes = Vec::new();
    let mut open = |folder: &PathBuf, dtype| {
        ModelPeer::open(&args.python, &args.peer, folder, dtype, threads, &mut notes)
    };
    let opened = (open(&folders.float32, "float32"), open(&folders.bfloat16, "bfloat16"));
    notes.into_iter().for_each(|note| report.note(note));
    match opened {
        (Ok(float32), Ok(bfloat16)) => Ok(Some(PerDtype { float32, bfloat16 })),
        (Err(why), _) | (_, Err(why)) => {
            report.note(format!("no peer: {why:#}"));
            Ok(None)
        }
    }
}

/// Measures the peak rates of this machine, for comparison.
fn peaks(team: &ThreadPool, report: &mut BenchReport) {
    let began = Instant::now();
    let flops = peak::multiply_adds(team, 2_000_000);
    report.add("peak, multiply-adds", "GFLOP/s", flops / began.elapsed().as_secs_f64() / 1e9);
    let values = vec![1.0f32; 64 << 20];
    let began = Instant::now();
    std::hint::black_box(peak::read(team, &values));
    report.add("peak, read", "GB/s", values.len() as f64 * 4.0 / began.elapsed().as_secs_f64() / 1e9);
}

fn speeds(
    ours: &mut PerDtype<CpuModel>,
    mut peers: Option<&mut PerDtype<ModelPeer>>,
    report: &mut BenchReport,
) -> Result<(), CommandFailure> {
    let mut one = [0.0; 2];
    for batch in BATCHES {
        let tokens = f64::from(batch * STEPS);
        let rates = [tokens / decode(&mut ours.float32, batch)?, tokens / decode(&mut ours.bfloat16, batch)?];
        if batch == 1 {
            one = rates;
        }
        let task = format!("decode {batch} {PROMPT} {STEPS}");
        compare_with_peer(rates, tokens, &format!("decode {batch}"), &task, peers.as_deref_mut(), report)?;
    }
    report.add("decode 1, bfloat16 / float32", "x", one[1] / one[0]);
    let tokens = f64::from(PREFILL_TOKENS);
    let rates = [
        tokens / ours.float32.prefill(0, PREFILL_TOKENS)?,
        tokens / ours.bfloat16.prefill(0, PREFILL_TOKENS)?,
    ];
    let task = format!("prefill {PREFILL_TOKENS}");
    compare_with_peer(rates, tokens, &task, &task, peers, report)
}

/// Seconds of the measured steps.
fn decode(ours: &mut CpuModel, batch: u32) -> Result<f64, CommandFailure> {
    ours.prefill_each(batch, PROMPT)?;
    ours.decode(batch, PROMPT, WARM)?;
    ours.decode(batch, PROMPT + WARM, STEPS)
}

/// Reports furrow's rates and, measured right after them, the ratios to the peer's.
fn compare_with_peer(
    rates: [f64; 2],
    tokens: f64,
    name: &str,
    task: &str,
    peers: Option<&mut PerDtype<ModelPeer>>,
    report: &mut BenchReport,
) -> Result<(), CommandFailure> {
    report.add(format!("{name}, float32"), "tokens/s", rates[0]);
    report.add(format!("{name}, bfloat16"), "tokens/s", rates[1]);
    if let Some(peers) = peers {
        let ratios = [
            rates[0] * peers.float32.seconds(task)? / tokens,
            rates[1] * peers.bfloat16.seconds(task)? / tokens,
        ];
        report.add(format!("{name}, float32, furrow / transformers"), "x", ratios[0]);
        report.add(format!("{name}, bfloat16, furrow / transformers"), "x", ratios[1]);
    }
    Ok(())
}

/// Measures an observation after a long context, and the attention operator's own part of that
/// time.
fn observation(ours: &mut CpuModel, context: u32, report: &mut BenchReport) -> Result<(), CommandFailure> {
    // The fastest of three for each, as for the operator: the difference of two times has the noise
    // of both.
    let alone = min_seconds(|| ours.prefill(0, OBSERVATION))?;
    ours.prefill(0, context)?;
    let behind = min_seconds(|| ours.prefill(context, OBSERVATION))?;
    report.add("256 tokens behind no context", "ms", alone * 1e3);
    report.add("256 tokens behind the context", "ms", behind * 1e3);
    let attention = attention(ours, context) - attention(ours, 0);
    report.add("attention operator's own difference", "ms", attention * 1e3);
    report.add("t(context) / (t(0) + 1.1 attention)", "x", behind / (alone + 1.1 * attention));
    Ok(())
}

/// Measures copies of a session's state within the backend, to the host and back, relative to a
/// plain memory copy of the same size.
fn copies(ours: &mut CpuModel, context: u32, report: &mut BenchReport) -> Result<(), CommandFailure> {
    let pages: Vec<Page> = (0..pages(context)).map(Page).collect();
    let state = offloaded_state(ours, &pages)?;
    let bytes = state.bytes() as f64;
    let source = vec![1u8; bytes as usize];
    let mut target = vec![0u8; bytes as usize];
    let rate = |seconds: f64| bytes / seconds / 1e9;
    let plain = rate(fastest(|| target.copy_from_slice(std::hint::black_box(&source))));
    let far = pages.len() as u32;
    let fork = timed(|| {
        ours.cpu.copy_slot(Slot(0), Slot(1))?;
        pages.iter().try_for_each(|page| ours.cpu.copy_page(*page, Page(far + page.0)))
    });
    let fork = rate(fork?);
    let moved: Vec<Page> = pages.iter().map(|page| Page(far + page.0)).collect();
    let restore = rate(timed(|| ours.cpu.restore(&state, Slot(1), &moved))?);
    let offload = timed(|| ours.cpu.offload(Slot(0), &pages).map(|state| drop(std::hint::black_box(state))));
    let offload = rate(offload?);
    report.add("state of a session", "MB", bytes / 1e6);
    report.add("memory copy", "GB/s", plain);
    report.add("fork / memory copy", "x", fork / plain);
    report.add("restore / memory copy", "x", restore / plain);
    report.add("park, its memory made anew / memory copy", "x", offload / plain);
    Ok(())
}

/// The state of slot 0, in host memory.
fn offloaded_state(ours: &mut CpuModel, pages: &[Page]) -> Result<OffloadedState, CommandFailure> {
    Ok(ours.cpu.offload(Slot(0), pages)?.context("no capacity for a swapped-out state")?)
}

/// Measures the memory that resident sessions take in this process, relative to the bytes of their
/// states, keys and values.
fn memory(ours: &mut CpuModel, context: u32, report: &mut BenchReport) -> Result<(), CommandFailure> {
    let each = pages(context);
    let states = offloaded_state(ours, &(0..each).map(Page).collect::<Vec<_>>())?;
    let capacity = BackendCapacity {
        slots: RESIDENT,
        pages: RESIDENT * each,
        rows_max: 1,
        logits_max: 1,
        features: 0,
        offload_bytes: 0,
    };
    let process = std::process::id();
    let before = process_usage(process, MemoryMeasure::Rss).context("this process's memory")?.rss_bytes;
    let mut cpu = CpuBackend::open(Arc::clone(&ours.weights), capacity, 1, ProductPrecision::Float32)
        .context("a second backend")?;
    for slot in 0..RESIDENT {
        let own: Vec<Page> = (slot * each..(slot + 1) * each).map(Page).collect();
        cpu.restore(&states, Slot(slot), &own)?;
    }
    let taken =
        process_usage(process, MemoryMeasure::Rss).context("this process's memory")?.rss_bytes - before;
    let state = states.bytes() as f64 * f64::from(RESIDENT);
    report.add("memory of a resident session / its state", "x", taken as f64 / state);
    Ok(())
}

/// Seconds of the attention operator alone for one observation, over all attention layers, each
/// with separate keys and values.
fn attention(ours: &CpuModel, past: u32) -> f64 {
    let text = &ours.cpu.config().text;
    let config = &text.attention;
    let group = config.heads / config.kv_heads;
    let rows = OBSERVATION as usize;
    let width = group * config.head_dim;
    let page = PAGE_TOKENS * config.head_dim;
    let head = (past as usize + rows).div_ceil(PAGE_TOKENS) * page;
    let layers = text.layers_of(LayerKind::Attention).count();
    let [keys, values] = [0.01f32, 0.02].map(|value| vec![value; layers * config.kv_heads * head]);
    let queries = vec![0.1f32; rows * width];
    let mut out = vec![0.0f32; rows * width * config.kv_heads];
    let block = 32;
    let scale = (config.head_dim as f32).sqrt().recip();
    fastest(|| {
        for layer in 0..layers {
            ours.team.pieces(&mut out, block * width, |index, out| {
                let kv_head = index * block / rows;
                let first = index * block % rows;
                let at = (layer * config.kv_heads + kv_head) * head;
                let [keys, values] = [&keys, &values].map(|all| &all[at..at + head]);
                let a_page = |index: usize| {
                    let [keys, values] = [keys, values].map(|head| &head[index * page..][..page]);
                    KeyPage { keys, values }
                };
                let queries = StridedRows::new(&queries[first * width..][..out.len()], 0, width, width);
                let attention = PagedAttention { head_dim: config.head_dim, scale, queries };
                attention.run(|token| past as usize + first + token + 1, a_page, out);
            });
        }
    })
}

/// The smallest of three times that `run` reports.
fn min_seconds(mut run: impl FnMut() -> Result<f64, CommandFailure>) -> Result<f64, CommandFailure> {
    (0..3).try_fold(f64::INFINITY, |least, _| Ok(run()?.min(least)))
}

/// Seconds of the fastest of three runs on a backend.
fn timed(mut work: impl FnMut() -> Result<(), DeviceLost>) -> Result<f64, CommandFailure> {
    min_seconds(|| {
        let began = Instant::now();
        work()?;
        Ok(began.elapsed().as_secs_f64())
    })
}

/// Seconds of the fastest of three runs.
fn fastest(mut work: impl FnMut()) -> f64 {
    let run = |_| {
        let began = Instant::now();
        work();
        began.elapsed().as_secs_f64()
    };
    (0..3).map(run).fold(f64::INFINITY, f64::min)
}
