//! `furrow model`: runs a checkpoint on given tokens and writes its outputs, to compare them with
//! another implementation.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use furrow_model::checkpoint::chain;
use furrow_model::cpu::CpuBackend;
use furrow_model::forward::{self, ForwardOutputs, ForwardRequest};
use furrow_model::kernels::{ProductPrecision, ThreadPool};
use furrow_model::vision::{ImageLimits, ImageTile, ResampleMode, decode, prepare};
use furrow_model::weights::ModelWeights;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};

use crate::{CommandFailure, output};

#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// Run a checkpoint on given token ids and images; write logits, log-probabilities and a greedy
    /// continuation, to compare with another implementation
    Forward(ForwardArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ForwardArgs {
    /// Checkpoint directory in Hugging Face layout
    #[arg(long)]
    checkpoint: PathBuf,
    /// File with a JSON list of token ids, image placeholders already expanded
    #[arg(long)]
    input_ids: PathBuf,
    /// Images (PNG, JPEG) that replace the placeholders, in order
    #[arg(long, num_args = 1..)]
    images: Vec<PathBuf>,
    /// Cut the prefill into pieces of these lengths in tokens, such as 5,1,7 [default: one piece]
    #[arg(long, value_delimiter = ',')]
    segments: Vec<usize>,
    /// Number of tokens to decode greedily after the input
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    decode: u32,
    /// Set cpe_align_corners=true|false, resample=u8|float or compute=float32|bfloat16; repeat the
    /// option for more [default: as the checkpoint says, u8, float32]
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Number of threads [default: one per core]
    #[arg(long)]
    threads: Option<usize>,
    /// Safetensors file to write: logits [T, V], logprobs [T-1], decode.tokens [N], decode.logits
    /// [N, V]
    #[arg(long)]
    out: PathBuf,
    /// Print the token counts, the mean log-probability in nats and the decoded tokens as JSON
    /// instead of text
    #[arg(long)]
    json: bool,
}

/// The switches of `--set`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct ForwardSwitches {
    align_corners: Option<bool>,
    resample: ResampleMode,
    compute: ProductPrecision,
}

/// A list of a million ids takes eight megabytes of JSON; a file larger than this is not a list of
/// ids.
const IDS_BYTES_MAX: u64 = 64 << 20;

pub(crate) fn run(command: &ModelCommand) -> Result<(), CommandFailure> {
    let ModelCommand::Forward(args) = command;
    let switches = ForwardSwitches::read(&args.set).map_err(CommandFailure::Input)?;
    let input_ids = read_ids(&args.input_ids)?;
    let threads = args.threads.unwrap_or_else(cores).max(1);
    let weights = load(&args.checkpoint, threads, &switches)?;
    let tiles = read_images(&args.images, &weights, switches.resample)?;
    let decode = args.decode as usize;
    let capacity = forward::capacity_for(input_ids.len(), tiles.len(), decode);
    let mut cpu = CpuBackend::open(weights, capacity, threads, switches.compute)
        .context("failed to open the cpu backend")?;
    let request = ForwardRequest { input_ids: &input_ids, tiles: &tiles, segments: &args.segments, decode };
    let outputs =
        forward::forward(&mut cpu, &request).map_err(|error| CommandFailure::Input(vec![chain(&error)]))?;
    write(&outputs, input_ids.len(), &args.out)?;
    print_outputs(&outputs, input_ids.len(), args)
}

/// Threads by default: one per core.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn load(dir: &Path, threads: usize, switches: &ForwardSwitches) -> Result<ModelWeights, CommandFailure> {
    let team = ThreadPool::new(threads);
    let mut weights = ModelWeights::load(dir, &team, &mut |_, _| ())
        .map_err(|error| CommandFailure::Input(vec![chain(&error)]))?;
    match (switches.align_corners, &mut weights.config.vision) {
        (Some(align), Some(vision)) => vision.align_corners = align,
        (Some(_), None) => {
            return Err(input_failure("--set cpe_align_corners: the checkpoint has no vision encoder"));
        }
        (None, _) => {}
    }
    Ok(weights)
}

fn read_ids(path: &Path) -> Result<Vec<u32>, CommandFailure> {
    let invalid = |why: String| input_failure(format!("--input-ids {}: {why}", path.display()));
    let size = fs::metadata(path).map_err(|error| invalid(error.to_string()))?.len();
    if size > IDS_BYTES_MAX {
        return Err(invalid(format!(
            "the file has {size} bytes; use a list of at most {IDS_BYTES_MAX} bytes"
        )));
    }
    let text = fs::read(path).map_err(|error| invalid(error.to_string()))?;
    serde_json::from_slice(&text)
        .map_err(|error| invalid(format!("{error}; use a JSON list of token ids such as [1, 10, 42]")))
}

fn read_images(
    paths: &[PathBuf],
    weights: &ModelWeights,
    resample: ResampleMode,
) -> Result<Vec<ImageTile>, CommandFailure> {
    let Some(vision) = &weights.config.vision else {
        return match paths {
            [] => Ok(Vec::new()),
            _ => Err(input_failure("--images: the checkpoint has no vision encoder")),
        };
    };
    let mut tiles = Vec::new();
    for path in paths {
        let invalid = |why: String| input_failure(format!("--images {}: {why}", path.display()));
        let bytes = fs::read(path).map_err(|error| invalid(error.to_string()))?;
        let image = decode(&bytes, ImageLimits::default()).map_err(|error| invalid(chain(&error)))?;
        tiles.extend(prepare(&image, vision, resample).tiles);
    }
    Ok(tiles)
}

/// Writes safetensors: float32, and int64 for tokens.
fn write(outputs: &ForwardOutputs, tokens: usize, path: &Path) -> Result<(), CommandFailure> {
    let decoded: Vec<i64> = outputs.decode_tokens.iter().map(|token| i64::from(*token)).collect();
    let vocabulary = outputs.logits.len() / tokens;
    let steps = decoded.len();
    let parts: [(&str, Dtype, Vec<usize>, &[u8]); 4] = [
        ("logits", Dtype::F32, vec![tokens, vocabulary], bytemuck::cast_slice(&outputs.logits)),
        ("logprobs", Dtype::F32, vec![tokens - 1], bytemuck::cast_slice(&outputs.logprobs)),
        ("decode.tokens", Dtype::I64, vec![steps], bytemuck::cast_slice(&decoded)),
        ("decode.logits", Dtype::F32, vec![steps, vocabulary], bytemuck::cast_slice(&outputs.decode_logits)),
    ];
    let mut views = Vec::new();
    for (name, dtype, shape, bytes) in parts {
        views.push((name, TensorView::new(dtype, shape, bytes)?));
    }
    serialize_to_file(views, None::<HashMap<String, String>>, path)
        .with_context(|| format!("failed to write {}", path.display()))?;
    Ok(())
}

fn print_outputs(outputs: &ForwardOutputs, tokens: usize, args: &ForwardArgs) -> Result<(), CommandFailure> {
    let vocabulary = outputs.logits.len() / tokens;
    let mean = outputs.logprobs.iter().sum::<f32>() / outputs.logprobs.len().max(1) as f32;
    if args.json {
        return Ok(output::json(&serde_json::json!({
            "tokens": tokens, "vocabulary": vocabulary, "mean_logprob": mean, "decoded": outputs.decode_tokens, "out": args.out,
        }))?);
    }
    output::line(format!(
        "{tokens} tokens, vocabulary {vocabulary}, mean log-probability of the input {mean:.4}"
    ));
    if !outputs.decode_tokens.is_empty() {
        output::line(format!("decoded {:?}", outputs.decode_tokens));
    }
    output::line(format!("written to {}", args.out.display()));
    Ok(())
}

impl ForwardSwitches {
    /// Reads the switches; fails with every wrong one.
    fn read(set: &[String]) -> Result<Self, Vec<String>> {
        let mut switches = Self::default();
        let mut wrong = Vec::new();
        for pair in set {
            match pair.split_once('=') {
                Some(("cpe_align_corners", "true")) => switches.align_corners = Some(true),
                Some(("cpe_align_corners", "false")) => switches.align_corners = Some(false),
                Some(("resample", "u8")) => switches.resample = ResampleMode::U8,
                Some(("resample", "float")) => switches.resample = ResampleMode::Float,
                Some(("compute", "float32")) => switches.compute = ProductPrecision::Float32,
                Some(("compute", "bfloat16")) => switches.compute = ProductPrecision::Bfloat16,
                _ => wrong.push(format!(
                    "--set {pair}: use cpe_align_corners=true|false, resample=u8|float or compute=float32|bfloat16"
                )),
            }
        }
        if wrong.is_empty() { Ok(switches) } else { Err(wrong) }
    }
}

fn input_failure(problem: impl Into<String>) -> CommandFailure {
    CommandFailure::Input(vec![problem.into()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_read_and_every_wrong_one_is_named() {
        let read =
            |set: &[&str]| ForwardSwitches::read(&set.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>());
        assert_eq!(read(&[]), Ok(ForwardSwitches::default()));
        let all = read(&["cpe_align_corners=true", "resample=float", "compute=bfloat16"]).unwrap();
        let want = ForwardSwitches {
            align_corners: Some(true),
            resample: ResampleMode::Float,
            compute: ProductPrecision::Bfloat16,
        };
        assert_eq!(all, want);
        assert_eq!(read(&["resample=fast", "compute"]).unwrap_err().len(), 2);
    }
}
