//! `furrow bench gpu`: decode, prefill, vision, forks and parking on a GPU, each beside its floor at the rates that the same run measured.
//!
//! Weights are noise made here, so no checkpoint is needed. A floor is the time that the bytes or the operations of each part take one after another at the
//! device's own copy and product rates (`furrow_model::floor`); what does not fit says so.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use furrow_cuda::backend::{self, Options, Precision};
use furrow_cuda::executor::Executor;
use furrow_cuda::gpu::{Gpu, Places};
use furrow_cuda::measure::{Rates, Subject, Yardstick, rates};
use furrow_model::backend::{BackendError, Room};
use furrow_model::config::Config;
use furrow_model::floor::{Device, Part, Work, seconds};
use serde_json::json;

use crate::commands::model::chain;
use crate::{Failure, output};

/// Decode batches and contexts.
const BATCHES: [u32; 7] = [1, 8, 32, 64, 100, 128, 256];
const CONTEXTS: [u32; 5] = [0, 2048, 8192, 16_384, 30_000];
/// Screenshots that make 3, 7 and 13 tiles of the published rule, and the text that comes with each.
const SCREENSHOTS: [(usize, usize); 3] = [(1280, 720), (1280, 800), (1024, 768)];
const TEXT_TOKENS: u32 = 60;
/// Tokens that prefills follow.
const PASTS: [u32; 2] = [0, 16_384];
/// Tokens of the session that is parked.
const PARKED: u32 = 8192;

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
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    chunk: u32,
    /// Runs of each figure; their median counts
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    times: u32,
    /// States of the recurrence in bfloat16
    #[arg(long)]
    narrow_state: bool,
    /// Print JSON, a line a figure
    #[arg(long)]
    json: bool,
}

/// A figure and what stands against it.
struct Figure {
    what: String,
    taken: Option<Duration>,
    /// Seconds at the device's own rates; `None` where there is no floor to speak of.
    floor: Option<f64>,
    /// What a second of it is worth, and in what.
    per_second: (f64, &'static str),
}

/// Runs the command.
pub fn run(args: &GpuArgs) -> Result<(), Failure> {
    let config = match &args.checkpoint {
        Some(dir) => Config::read(dir).map_err(|error| Failure::Input(vec![chain(&error)]))?,
        None => Config::published(),
    };
    let (ordinal, libraries, cache) = (args.gpu, args.cuda_libraries.clone(), args.kernel_cache.clone());
    let places = Places { ordinal, libraries, cache };
    let mut gpu = Gpu::open(&places).map_err(|error| Failure::Input(vec![chain(&error)]))?;
    let name = gpu.device().name().to_owned();
    let times = args.times as usize;
    let found = rates(&mut gpu, Yardstick::default(), times)?;
    let precision = if args.narrow_state { Precision::NarrowState } else { Precision::Usual };
    let options = Options { precision, ..Options::default() };
    let room = room(&config, options, args.chunk, gpu.free_bytes()?)?;
    let subject = Subject::open(&config, room, options, Box::new(gpu), times);
    let subject = subject.map_err(|error| Failure::Input(vec![chain(&error)]))?;
    let bench = Bench { args, config, found, device: device(found), room, subject };
    bench.tell(&name)
}

/// Most pages that fit beside everything else.
fn room(config: &Config, options: Options, chunk: u32, free: u64) -> Result<Room, Failure> {
    let slots = BATCHES.into_iter().max().unwrap_or(1);
    let with = |pages| Room { slots, pages, rows_max: chunk.max(slots), logits_max: slots, features: 16 };
    let bytes = |pages| -> Result<u64, Failure> {
        let plan = backend::plan(config, &with(pages), &options);
        Ok(plan.map_err(|error| Failure::Input(vec![chain(&error)]))?.total())
    };
    // From a sequence's length on the plan grows by the page.
    let base = u32::try_from(config.text.positions_max.div_ceil(64)).unwrap_or(u32::MAX);
    let (first, next) = (bytes(base)?, bytes(base.saturating_add(1024))?);
    let page = next.saturating_sub(first).div_ceil(1024).max(1);
    let more = free.checked_sub(first).ok_or_else(|| {
        let asked = output::bytes(first);
        Failure::Input(vec![format!(
            "the model and one sequence take {asked}, {} are free",
            output::bytes(free)
        )])
    })? / page;
    // As many as the largest case uses, if they fit.
    let most = slots * CONTEXTS.into_iter().max().unwrap_or(1).div_ceil(64).saturating_add(1);
    let fit = u64::from(base).saturating_add(more).min(u64::from(u32::MAX)) as u32;
    Ok(with(fit.min(most.max(base))))
}

/// The device of the floor: what was measured.
fn device(found: Rates) -> Device {
    Device {
        name: "this one",
        bandwidth: found.bandwidth,
        flops: found.flops,
        memory: 0.0,
        source: "measured in this run",
    }
}

struct Bench<'a> {
    args: &'a GpuArgs,
    config: Config,
    found: Rates,
    device: Device,
    room: Room,
    subject: Subject,
}

impl Bench<'_> {
    fn tell(mut self, name: &str) -> Result<(), Failure> {
        let Rates { bandwidth, flops } = self.found;
        if self.args.json {
            let Room { slots, pages, rows_max, .. } = self.room;
            output::line(
                json!({
                    "gpu": name, "copy_bytes_per_second": bandwidth, "product_flops": flops,
                    "state_slots": slots, "pages": pages, "rows_max": rows_max, "times": self.args.times,
                    "plan": self.subject.device().plan().to_string(),
                })
                .to_string(),
            );
        } else {
            output::line(format!(
                "{name}: copies {:.2} TB/s, products {:.0} TFLOP/s in bfloat16; {}",
                bandwidth / 1e12,
                flops / 1e12,
                self.subject.device().plan()
            ));
        }
        let figures = self.figures().map_err(anyhow::Error::from)?;
        if self.args.json {
            figures.iter().for_each(|figure| output::line(figure.value().to_string()));
        } else {
            let rows: Vec<Vec<String>> = figures.iter().map(Figure::row).collect();
            output::table(&["", "measured", "floor", "share", "rate"], &rows);
        }
        Ok(())
    }

    fn figures(&mut self) -> Result<Vec<Figure>, BackendError> {
        let mut figures = Vec::new();
        for context in CONTEXTS {
            for batch in BATCHES {
                let taken = self.subject.decode(batch, context)?;
                let floor = self.floor(&self.config.decode(f64::from(batch), f64::from(context)));
                let what = format!("decode, batch {batch}, context {context}");
                figures.push(Figure { what, taken, floor, per_second: (f64::from(batch), "tokens/s") });
            }
        }
        for (width, height) in SCREENSHOTS {
            self.screenshot(width, height, &mut figures)?;
        }
        self.copies(&mut figures)?;
        Ok(figures)
    }

    /// Vision and prefill of one screenshot.
    fn screenshot(
        &mut self,
        width: usize,
        height: usize,
        figures: &mut Vec<Figure>,
    ) -> Result<(), BackendError> {
        let Some(vision) = &self.config.vision else { return Ok(()) };
        let rows = self.config.screenshot_tokens(width, height);
        let tiles = (rows / vision.rows_per_tile()) as u32;
        let taken = self.subject.vision(tiles)?;
        let floor = self.floor(&self.config.vision(width, height));
        let what = format!("vision, {width}x{height}, {tiles} tiles");
        figures.push(Figure { what, taken, floor, per_second: (f64::from(tiles), "tiles/s") });
        let new = rows as u32 + TEXT_TOKENS;
        for past in PASTS {
            let taken = self.subject.prefill(new, past, self.args.chunk)?;
            let floor = self.floor(&self.config.prefill(f64::from(new), f64::from(past)));
            let what = format!("prefill, {new} tokens behind {past}");
            figures.push(Figure { what, taken, floor, per_second: (f64::from(new), "tokens/s") });
        }
        Ok(())
    }

    /// Forks and parking.
    fn copies(&mut self, figures: &mut Vec<Figure>) -> Result<(), BackendError> {
        let state = self.config.session_bytes(0.0);
        let fork = Part { name: "state, read and written", bytes: 2.0 * state, flops: 0.0 };
        let taken = self.subject.fork()?;
        let floor = self.floor(&[fork]);
        figures.push(Figure { what: "fork of a state".into(), taken, floor, per_second: (1.0, "forks/s") });
        let session = self.config.session_bytes(f64::from(PARKED)) / 1e9;
        let [out, back] = self.subject.park(PARKED)?.map_or([None; 2], |both| both.map(Some));
        for (way, taken) in [("to", out), ("from", back)] {
            let what = format!("a session of {PARKED} tokens {way} host memory");
            figures.push(Figure { what, taken, floor: None, per_second: (session, "GB/s") });
        }
        Ok(())
    }

    fn floor(&self, parts: &[Part]) -> Option<f64> {
        Some(seconds(parts, &self.device))
    }
}

impl Figure {
    fn share(&self) -> Option<f64> {
        Some(self.floor? / self.taken?.as_secs_f64())
    }

    fn rate(&self) -> Option<f64> {
        Some(self.per_second.0 / self.taken?.as_secs_f64())
    }

    fn row(&self) -> Vec<String> {
        let millis = |seconds: f64| format!("{:.3} ms", seconds * 1e3);
        let dash = || "–".to_owned();
        vec![
            self.what.clone(),
            self.taken.map_or("does not fit".to_owned(), |taken| millis(taken.as_secs_f64())),
            self.floor.map_or_else(dash, millis),
            output::percent(self.share()),
            self.rate().map_or_else(dash, |rate| format!("{rate:.0} {}", self.per_second.1)),
        ]
    }

    fn value(&self) -> serde_json::Value {
        json!({
            "what": self.what, "seconds": self.taken.map(|taken| taken.as_secs_f64()), "fits": self.taken.is_some(),
            "floor_seconds": self.floor, "share": self.share(), "rate": self.rate(), "unit": self.per_second.1,
        })
    }
}
