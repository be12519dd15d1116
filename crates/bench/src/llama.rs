//! `furrow-bench llama`: measures the `cpu` backend beside the same model in llama.cpp, round by
//! round.

use std::path::{Path, PathBuf};

use anyhow::ensure;
use clap::Args;
use furrow::{CommandFailure, ScratchDir};
use furrow_model::kernels::ProductPrecision;

use crate::BenchArgs;
use crate::checkpoints::checkpoints;
use crate::llama_peer::{LlamaCase, LlamaPeer, PeerPaths, TokenRates};
use crate::model_ours::{BenchLoad, CpuModel};
use crate::report::{BenchReport, cores};

#[derive(Debug, Args)]
pub(crate) struct LlamaArgs {
    /// Python with torch and transformers: writes the model for both sides and converts it
    #[arg(long, env = "FURROW_PEER_PYTHON", default_value = "python3")]
    python: PathBuf,
    /// Directory of the peers' scripts
    #[arg(long, default_value = "tests/peers")]
    peer: PathBuf,
    /// Directory in which the script `llama_cpp.sh` built llama.cpp
    #[arg(long, default_value = ".cache/llama.cpp")]
    llama: PathBuf,
    /// Number of rounds; the result is the median over the rounds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Number of threads [default: one per core]
    #[arg(long)]
    threads: Option<usize>,
    /// Directory to write checkpoints to; they are removed at the end
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    #[command(flatten)]
    bench: BenchArgs,
}

/// Name of the shape in the script that writes it.
const SHAPE: &str = "38m";
/// The first run is the warm-up.
const CASE: LlamaCase<'_> = LlamaCase { prompt: 512, steps: 32, runs: &[1, 1, 8, 32] };
const WARM: usize = 1;
/// Tokens of the prompt after which both sides' logits are compared.
const COMPARED: u32 = 48;

const FLOAT32: NumberFormat =
    NumberFormat { name: "float32", peer: "f32", compute: ProductPrecision::Float32, tolerance: 1e-4 };
const BFLOAT16: NumberFormat =
    NumberFormat { name: "bfloat16", peer: "bf16", compute: ProductPrecision::Bfloat16, tolerance: 0.05 };

pub(crate) fn run(args: &LlamaArgs) -> Result<(), CommandFailure> {
    let mut report = BenchReport::begin(&args.bench)?;
    let scratch = ScratchDir::make(&args.dir)?;
    let folders = checkpoints(&args.python, &args.peer, SHAPE, &scratch, &mut report)?;
    let mut sides = [
        LlamaComparison::open(args, &folders.float32, FLOAT32, &mut report)?,
        LlamaComparison::open(args, &folders.bfloat16, BFLOAT16, &mut report)?,
    ];
    for _ in 0..args.rounds {
        for sides in &mut sides {
            sides.round(&mut report)?;
        }
    }
    report.note(
        "rates are tokens per second: all prompts are prefilled, then all sequences decoded; furrow's keys and values are \
         float32, llama.cpp's float16, its default",
    );
    report.print(&args.bench)
}

#[derive(Clone, Copy)]
struct NumberFormat {
    name: &'static str,
    /// Name of the type on the peer's side.
    peer: &'static str,
    compute: ProductPrecision,
    /// Largest difference of two logits, relative to the largest logit, that rounding explains.
    tolerance: f64,
}

/// Both sides with the same weights.
struct LlamaComparison {
    number: NumberFormat,
    ours: CpuModel,
    peer: Option<LlamaPeer>,
}

impl LlamaComparison {
    fn open(
        args: &LlamaArgs,
        checkpoint: &Path,
        number: NumberFormat,
        report: &mut BenchReport,
    ) -> Result<Self, CommandFailure> {
        let threads = args.threads.unwrap_or_else(cores).max(1);
        let load = BenchLoad {
            sequences: CASE.sequences_max(),
            sequence_tokens: CASE.prompt + CASE.steps,
            alone_tokens: 0,
            rows_max: CASE.prompt,
        };
        let mut ours = CpuModel::open(checkpoint, number.compute, threads, load)?;
        let paths = PeerPaths { python: &args.python, scripts: &args.peer, llama: &args.llama };
        let peer = LlamaPeer::open(paths, checkpoint, number.peer, threads)
            .and_then(|peer| compare_logits(&mut ours, &peer, number, report).map(|()| peer))
            .map_err(|why| report.note(format!("no peer for {}: {why:#}", number.name)))
            .ok();
        Ok(Self { number, ours, peer })
    }

    fn round(&mut self, report: &mut BenchReport) -> Result<(), CommandFailure> {
        let ours = measure(&mut self.ours)?;
        let peers = self.peer.as_ref().map(|peer| peer.measure(&CASE)).transpose()?;
        for (index, ours) in ours.iter().enumerate().skip(WARM) {
            let sequences = ours.sequences;
            let number = self.number.name;
            let peer = peers.as_ref().map(|peers| peers[index]);
            let name = format!("prefill {sequences} x {}, {number}", CASE.prompt);
            report_rates(&name, ours.prefill, peer.map(|peer| peer.prefill), report);
            let name = format!("decode {sequences}, {number}");
            report_rates(&name, ours.decode, peer.map(|peer| peer.decode), report);
        }
        Ok(())
    }
}

fn report_rates(name: &str, ours: f64, peer: Option<f64>, report: &mut BenchReport) {
    report.add(name.to_owned(), "tokens/s", ours);
    if let Some(peer) = peer {
        report.add(format!("{name}, furrow / llama.cpp"), "x", ours / peer);
    }
}

/// Runs the case of the peer's program on the `cpu` backend.
fn measure(ours: &mut CpuModel) -> Result<Vec<TokenRates>, CommandFailure> {
    let LlamaCase { prompt, steps, runs } = CASE;
    let run = |&sequences: &u32| {
        let prefill = f64::from(sequences * prompt) / ours.prefill_each(sequences, prompt)?;
        let decode = f64::from(sequences * steps) / ours.decode(sequences, prompt, steps)?;
        Ok(TokenRates { sequences, prefill, decode })
    };
    runs.iter().map(run).collect()
}

/// Compares logits: rates are comparable only if both sides compute the same model.
fn compare_logits(
    ours: &mut CpuModel,
    peer: &LlamaPeer,
    number: NumberFormat,
    report: &mut BenchReport,
) -> anyhow::Result<()> {
    let prompt = ours.ids(COMPARED);
    let ours = ours.logits(&prompt)?;
    let theirs = peer.logits(&prompt)?;
    let difference = difference(&ours, &theirs);
    let NumberFormat { name, tolerance, .. } = number;
    report.add(format!("largest difference of logits, {name}"), "ppm of the largest", difference * 1e6);
    // The comparison also fails for NaN.
    ensure!(
        difference <= tolerance,
        "the peer computes another model: logits differ by {difference:.6} of the largest, more than {tolerance}"
    );
    Ok(())
}

/// Largest difference relative to the largest value; NaN if either side has a NaN.
fn difference(ours: &[f32], theirs: &[f32]) -> f64 {
    if ours.len() != theirs.len() {
        return f64::INFINITY;
    }
    let apart: Vec<f32> = ours.iter().zip(theirs).map(|(ours, theirs)| ours - theirs).collect();
    f64::from(largest(&apart) / largest(ours))
}

/// In total order, where a positive NaN exceeds all values.
fn largest(values: &[f32]) -> f32 {
    values.iter().map(|value| value.abs()).max_by(f32::total_cmp).unwrap_or(f32::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(ours: &[f32], theirs: &[f32], agrees: bool) {
        assert_eq!(difference(ours, theirs) <= 0.01, agrees, "{ours:?} and {theirs:?}");
    }

    #[test]
    fn logits_agree_within_rounding_only() {
        check(&[1.0, -2.0], &[1.0, -2.0], true);
        check(&[1.0, -2.0], &[1.015, -1.985], true);
        check(&[1.0, -2.0], &[1.025, -2.0], false);
        check(&[1.0, -2.0], &[-2.0, 1.0], false);
        check(&[1.0, -2.0], &[1.0], false);
        check(&[1.0, -2.0], &[f32::NAN, -2.0], false);
        check(&[f32::NAN, -2.0], &[1.0, -2.0], false);
        check(&[], &[], false);
    }
}
