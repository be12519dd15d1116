//! `furrow bench model`: the `cpu` backend beside the same model in transformers, round by round, and beside itself where the claim is
//! about scaling: bfloat16 against float32, a long context against none, a state copy against plain memory.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use clap::Args;
use furrow_model::backend::{Backend as _, DeviceLost, PAGE_TOKENS, Page, Parked, Room, Slot};
use furrow_model::config::LayerKind;
use furrow_model::cpu::Cpu;
use furrow_model::kernels::{Attention, Compute, Page as KeyPage, Rows, Team, peak};
use furrow_telemetry::{Memory, process_usage};

use super::BenchArgs;
use super::checkpoints::{Types, checkpoints};
use super::model_ours::{Load, Ours, pages};
use super::model_peer::ModelPeer;
use super::report::Report;
use crate::Failure;
use crate::commands::model::cores;
use crate::commands::scratch::Scratch;

/// What to measure.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// Python that has torch and transformers, for the peer; it writes the model that both run. Without it a random one is written
    #[arg(long, env = "FURROW_PEER_PYTHON", default_value = "python3")]
    python: PathBuf,
    /// Folder of the peer's script
    #[arg(long, default_value = "tests/peers")]
    peer: PathBuf,
    /// Rounds; each figure is the median of theirs
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Threads [default: one a core]
    #[arg(long)]
    threads: Option<usize>,
    /// Tokens of the context that an observation is appended to
    #[arg(long, default_value_t = 8000, value_parser = clap::value_parser!(u32).range(64..=100_000))]
    context: u32,
    /// Folder for checkpoints that are written; removed at the end
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    #[command(flatten)]
    bench: BenchArgs,
}

/// Sequences decoded at once.
const BATCHES: [u32; 3] = [1, 8, 32];

/// Sessions whose memory is looked at.
const RESIDENT: u32 = 16;

/// As the peer names it.
const SHAPE: &str = "97m";
/// As the peer does: a short prompt, steps to warm up, then those that count.
const PROMPT: u32 = 32;
const WARM: u32 = 2;
const STEPS: u32 = 24;
const PREFILL_TOKENS: u32 = 1024;
const OBSERVATION: u32 = 256;

/// Runs the command.
pub fn run(args: &ModelArgs) -> Result<(), Failure> {
    let mut report = Report::begin(&args.bench)?;
    let scratch = Scratch::make(&args.dir)?;
    let folders = checkpoints(&args.python, &args.peer, SHAPE, &scratch, &mut report)?;
    let threads = args.threads.unwrap_or_else(cores).max(1);
    let team = Team::new(threads);
    let load = Load {
        sequences: 32,
        sequence_tokens: PROMPT + WARM + STEPS,
        // The context, an observation behind it, and a copy of both.
        alone_tokens: 2 * (args.context + OBSERVATION),
        rows_max: PREFILL_TOKENS,
    };
    let mut ours = Types {
        float32: Ours::open(&folders.float32, Compute::Float32, threads, load)?,
        bfloat16: Ours::open(&folders.bfloat16, Compute::Bfloat16, threads, load)?,
    };
    let mut peers = peers(args, &folders, threads, &mut report)?;
    for _ in 0..args.rounds {
        peaks(&team, &mut report);
        speeds(&mut ours, peers.as_mut(), &mut report)?;
        observation(&mut ours.float32, args.context, &mut report)?;
        copies(&mut ours.float32, args.context, &mut report)?;
        memory(&mut ours.float32, args.context, &mut report)?;
    }
    report
        .note("rates are tokens a second; bfloat16 weights with inputs rounded to bfloat16, sums in float32");
    report.print(&args.bench)
}

fn peers(
    args: &ModelArgs,
    folders: &Types<PathBuf>,
    threads: usize,
    report: &mut Report,
) -> Result<Option<Types<ModelPeer>>, Failure> {
    let mut notes = Vec::new();
    let mut open = |folder: &PathBuf, dtype| {
        ModelPeer::open(&args.python, &args.peer, folder, dtype, threads, &mut notes)
    };
    let opened = (open(&folders.float32, "float32"), open(&folders.bfloat16, "bfloat16"));
    notes.into_iter().for_each(|note| report.note(note));
    match opened {
        (Ok(float32), Ok(bfloat16)) => Ok(Some(Types { float32, bfloat16 })),
        (Err(why), _) | (_, Err(why)) => {
            report.note(format!("no peer: {why:#}"));
            Ok(None)
        }
    }
}

/// What this machine can do, beside what is made of it.
fn peaks(team: &Team, report: &mut Report) {
    let began = Instant::now();
    let flops = peak::multiply_adds(team, 2_000_000);
    report.add("peak, multiply-adds", "GFLOP/s", flops / began.elapsed().as_secs_f64() / 1e9);
    let values = vec![1.0f32; 64 << 20];
    let began = Instant::now();
    std::hint::black_box(peak::read(team, &values));
    report.add("peak, read", "GB/s", values.len() as f64 * 4.0 / began.elapsed().as_secs_f64() / 1e9);
}

fn speeds(
    ours: &mut Types<Ours>,
    mut peers: Option<&mut Types<ModelPeer>>,
    report: &mut Report,
) -> Result<(), Failure> {
    let mut one = [0.0; 2];
    for batch in BATCHES {
        let tokens = f64::from(batch * STEPS);
        let rates = [tokens / decode(&mut ours.float32, batch)?, tokens / decode(&mut ours.bfloat16, batch)?];
        if batch == 1 {
            one = rates;
        }
        let task = format!("decode {batch} {PROMPT} {STEPS}");
        beside(rates, tokens, &format!("decode {batch}"), &task, peers.as_deref_mut(), report)?;
    }
    report.add("decode 1, bfloat16 / float32", "x", one[1] / one[0]);
    let tokens = f64::from(PREFILL_TOKENS);
    let rates = [
        tokens / ours.float32.prefill(0, PREFILL_TOKENS)?,
        tokens / ours.bfloat16.prefill(0, PREFILL_TOKENS)?,
    ];
    let task = format!("prefill {PREFILL_TOKENS}");
    beside(rates, tokens, &task, &task, peers, report)
}

/// Seconds of the steps that count.
fn decode(ours: &mut Ours, batch: u32) -> Result<f64, Failure> {
    ours.prefill_each(batch, PROMPT)?;
    ours.decode(batch, PROMPT, WARM)?;
    ours.decode(batch, PROMPT + WARM, STEPS)
}

/// Tells our rates and, measured right after them, how they compare.
fn beside(
    rates: [f64; 2],
    tokens: f64,
    name: &str,
    task: &str,
    peers: Option<&mut Types<ModelPeer>>,
    report: &mut Report,
) -> Result<(), Failure> {
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

/// What an observation costs behind a long context, against the attention operator's own part of it.
fn observation(ours: &mut Ours, context: u32, report: &mut Report) -> Result<(), Failure> {
    // The fastest of three each, as of the operator: a difference of two times is worth no more than the noise of either.
    let alone = least(|| ours.prefill(0, OBSERVATION))?;
    ours.prefill(0, context)?;
    let behind = least(|| ours.prefill(context, OBSERVATION))?;
    report.add("256 tokens behind no context", "ms", alone * 1e3);
    report.add("256 tokens behind the context", "ms", behind * 1e3);
    let attention = attention(ours, context) - attention(ours, 0);
    report.add("attention operator's own difference", "ms", attention * 1e3);
    report.add("t(context) / (t(0) + 1.1 attention)", "x", behind / (alone + 1.1 * attention));
    Ok(())
}

/// A session's state copied within the backend, out to the host and back, against plain memory of the same size.
fn copies(ours: &mut Ours, context: u32, report: &mut Report) -> Result<(), Failure> {
    let pages: Vec<Page> = (0..pages(context)).map(Page).collect();
    let parked = parked(ours, &pages)?;
    let bytes = parked.bytes() as f64;
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
    let restore = rate(timed(|| ours.cpu.restore(&parked, Slot(1), &moved))?);
    let park = timed(|| ours.cpu.park(Slot(0), &pages).map(|parked| drop(std::hint::black_box(parked))));
    let park = rate(park?);
    report.add("state of a session", "MB", bytes / 1e6);
    report.add("memory copy", "GB/s", plain);
    report.add("fork / memory copy", "x", fork / plain);
    report.add("restore / memory copy", "x", restore / plain);
    report.add("park, its memory made anew / memory copy", "x", park / plain);
    Ok(())
}

/// The state in slot 0, in host memory.
fn parked(ours: &mut Ours, pages: &[Page]) -> Result<Parked, Failure> {
    Ok(ours.cpu.park(Slot(0), pages)?.context("no room for a parked state")?)
}

/// What resident sessions take of this process's memory, against the bytes of their states, keys and values.
fn memory(ours: &mut Ours, context: u32, report: &mut Report) -> Result<(), Failure> {
    let each = pages(context);
    let parked = parked(ours, &(0..each).map(Page).collect::<Vec<_>>())?;
    let room = Room {
        slots: RESIDENT,
        pages: RESIDENT * each,
        rows_max: 1,
        logits_max: 1,
        features: 0,
        parked_bytes: 0,
    };
    let process = std::process::id();
    let before = process_usage(process, Memory::Rss).context("this process's memory")?.rss_bytes;
    let mut cpu =
        Cpu::open(Arc::clone(&ours.weights), room, 1, Compute::Float32).context("a second backend")?;
    for slot in 0..RESIDENT {
        let own: Vec<Page> = (slot * each..(slot + 1) * each).map(Page).collect();
        cpu.restore(&parked, Slot(slot), &own)?;
    }
    let taken = process_usage(process, Memory::Rss).context("this process's memory")?.rss_bytes - before;
    let state = parked.bytes() as f64 * f64::from(RESIDENT);
    report.add("memory of a resident session / its state", "x", taken as f64 / state);
    Ok(())
}

/// Seconds of the attention operator alone for one observation, over all attention layers, each with keys and values of its own.
fn attention(ours: &Ours, past: u32) -> f64 {
    let text = &ours.cpu.config().text;
    let config = &text.attention;
    let (group, rows) = (config.heads / config.kv_heads, OBSERVATION as usize);
    let width = group * config.head_dim;
    let page = PAGE_TOKENS * config.head_dim;
    let head = (past as usize + rows).div_ceil(PAGE_TOKENS) * page;
    let layers = text.layers_of(LayerKind::Attention).count();
    let [keys, values] = [0.01f32, 0.02].map(|value| vec![value; layers * config.kv_heads * head]);
    let queries = vec![0.1f32; rows * width];
    let mut out = vec![0.0f32; rows * width * config.kv_heads];
    let (block, scale) = (32, (config.head_dim as f32).sqrt().recip());
    fastest(|| {
        for layer in 0..layers {
            ours.team.pieces(&mut out, block * width, |index, out| {
                let (kv_head, first) = (index * block / rows, index * block % rows);
                let at = (layer * config.kv_heads + kv_head) * head;
                let [keys, values] = [&keys, &values].map(|all| &all[at..at + head]);
                let a_page = |index: usize| {
                    let [keys, values] = [keys, values].map(|head| &head[index * page..][..page]);
                    KeyPage { keys, values }
                };
                let queries = Rows::new(&queries[first * width..][..out.len()], 0, width, width);
                let attention = Attention { head_dim: config.head_dim, scale, queries };
                attention.run(|token| past as usize + first + token + 1, a_page, out);
            });
        }
    })
}

/// The least seconds that a run measured of itself, of three.
fn least(mut run: impl FnMut() -> Result<f64, Failure>) -> Result<f64, Failure> {
    (0..3).try_fold(f64::INFINITY, |least, _| Ok(run()?.min(least)))
}

/// Seconds of the fastest of three runs on a backend.
fn timed(mut work: impl FnMut() -> Result<(), DeviceLost>) -> Result<f64, Failure> {
    least(|| {
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
