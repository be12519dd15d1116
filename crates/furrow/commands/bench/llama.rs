//! `furrow bench llama`: the `cpu` backend beside the same model in llama.cpp, round by round.

use std::path::{Path, PathBuf};

use anyhow::ensure;
use clap::Args;
use furrow_model::kernels::Compute;

use super::BenchArgs;
use super::checkpoints::checkpoints;
use super::llama_peer::{Case, LlamaPeer, Places, Speeds};
use super::model_ours::{Load, Ours};
use super::report::Report;
use crate::Failure;
use crate::commands::model::cores;
use crate::commands::scratch::Scratch;

/// What to measure.
#[derive(Debug, Args)]
pub struct LlamaArgs {
    /// Python that has torch and transformers: it writes the model that both run, and converts it
    #[arg(long, env = "FURROW_PEER_PYTHON", default_value = "python3")]
    python: PathBuf,
    /// Folder of the peers' scripts
    #[arg(long, default_value = "tests/peers")]
    peer: PathBuf,
    /// Folder that the peer was built in, by `llama_cpp.sh` of the scripts
    #[arg(long, default_value = ".cache/llama.cpp")]
    llama: PathBuf,
    /// Rounds; each figure is the median of theirs
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Threads [default: one a core]
    #[arg(long)]
    threads: Option<usize>,
    /// Folder for checkpoints that are written; removed at the end
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    #[command(flatten)]
    bench: BenchArgs,
}

/// As the script that writes it names it.
const SHAPE: &str = "38m";
/// The first run warms up.
const CASE: Case<'_> = Case { prompt: 512, steps: 32, runs: &[1, 1, 8, 32] };
const WARM: usize = 1;
/// Tokens behind which both sides' logits are compared.
const COMPARED: u32 = 48;

const FLOAT32: Number = Number { name: "float32", peer: "f32", compute: Compute::Float32, tolerance: 1e-4 };
const BFLOAT16: Number =
    Number { name: "bfloat16", peer: "bf16", compute: Compute::Bfloat16, tolerance: 0.05 };

/// Runs the command.
pub fn run(args: &LlamaArgs) -> Result<(), Failure> {
    let mut report = Report::begin(&args.bench)?;
    let scratch = Scratch::make(&args.dir)?;
    let folders = checkpoints(&args.python, &args.peer, SHAPE, &scratch, &mut report)?;
    let mut sides = [
        Sides::open(args, &folders.float32, FLOAT32, &mut report)?,
        Sides::open(args, &folders.bfloat16, BFLOAT16, &mut report)?,
    ];
    for _ in 0..args.rounds {
        for sides in &mut sides {
            sides.round(&mut report)?;
        }
    }
    report.note(
        "rates are tokens a second: all prompts are prefilled, then all sequences decoded behind them; our keys and values are \
         float32, llama.cpp's float16, its default",
    );
    report.print(&args.bench)
}

/// A type of number.
#[derive(Clone, Copy)]
struct Number {
    name: &'static str,
    /// Its name there.
    peer: &'static str,
    compute: Compute,
    /// Largest difference of two logits, in parts of the largest logit, that rounding explains.
    tolerance: f64,
}

/// Both sides with the same weights.
struct Sides {
    number: Number,
    ours: Ours,
    peer: Option<LlamaPeer>,
}

impl Sides {
    fn open(
        args: &LlamaArgs,
        checkpoint: &Path,
        number: Number,
        report: &mut Report,
    ) -> Result<Self, Failure> {
        let threads = args.threads.unwrap_or_else(cores).max(1);
        let load = Load {
            sequences: CASE.sequences_max(),
            sequence_tokens: CASE.prompt + CASE.steps,
            alone_tokens: 0,
            rows_max: CASE.prompt,
        };
        let mut ours = Ours::open(checkpoint, number.compute, threads, load)?;
        let places = Places { python: &args.python, scripts: &args.peer, llama: &args.llama };
        let peer = LlamaPeer::open(places, checkpoint, number.peer, threads)
            .and_then(|peer| agree(&mut ours, &peer, number, report).map(|()| peer))
            .map_err(|why| report.note(format!("no peer in {}: {why:#}", number.name)))
            .ok();
        Ok(Self { number, ours, peer })
    }

    fn round(&mut self, report: &mut Report) -> Result<(), Failure> {
        let ours = measure(&mut self.ours)?;
        let peers = self.peer.as_ref().map(|peer| peer.measure(&CASE)).transpose()?;
        for (index, ours) in ours.iter().enumerate().skip(WARM) {
            let (sequences, number) = (ours.sequences, self.number.name);
            let peer = peers.as_ref().map(|peers| peers[index]);
            let name = format!("prefill {sequences} x {}, {number}", CASE.prompt);
            tell(&name, ours.prefill, peer.map(|peer| peer.prefill), report);
            let name = format!("decode {sequences}, {number}");
            tell(&name, ours.decode, peer.map(|peer| peer.decode), report);
        }
        Ok(())
    }
}

fn tell(name: &str, ours: f64, peer: Option<f64>, report: &mut Report) {
    report.add(name.to_owned(), "tokens/s", ours);
    if let Some(peer) = peer {
        report.add(format!("{name}, furrow / llama.cpp"), "x", ours / peer);
    }
}

/// What the peer's program does, done by us.
fn measure(ours: &mut Ours) -> Result<Vec<Speeds>, Failure> {
    let Case { prompt, steps, runs } = CASE;
    let run = |&sequences: &u32| {
        let prefill = f64::from(sequences * prompt) / ours.prefill_each(sequences, prompt)?;
        let decode = f64::from(sequences * steps) / ours.decode(sequences, prompt, steps)?;
        Ok(Speeds { sequences, prefill, decode })
    };
    runs.iter().map(run).collect()
}

/// A comparison says something only if both compute the same.
fn agree(ours: &mut Ours, peer: &LlamaPeer, number: Number, report: &mut Report) -> anyhow::Result<()> {
    let prompt = ours.ids(COMPARED);
    let (ours, theirs) = (ours.logits(&prompt)?, peer.logits(&prompt)?);
    let difference = difference(&ours, &theirs);
    let Number { name, tolerance, .. } = number;
    report.add(format!("largest difference of logits, {name}"), "ppm of the largest", difference * 1e6);
    // Not a number is no agreement either.
    ensure!(
        difference <= tolerance,
        "it computes another model: logits differ by {difference:.6} of the largest, more than {tolerance}"
    );
    Ok(())
}

/// Largest difference in parts of the largest value; not a number where either side has one that is none.
fn difference(ours: &[f32], theirs: &[f32]) -> f64 {
    if ours.len() != theirs.len() {
        return f64::INFINITY;
    }
    let apart: Vec<f32> = ours.iter().zip(theirs).map(|(ours, theirs)| ours - theirs).collect();
    f64::from(largest(&apart) / largest(ours))
}

/// In total order, where a positive NaN exceeds all.
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
