//! `furrow checkpoint`: writes random checkpoints of the published architecture, and inspects any
//! checkpoint.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use clap::{Args, Subcommand, ValueEnum};
use furrow_model::checkpoint::{CheckpointInspection, ModelFacts, inspect};
use furrow_model::init::{self, InitSpec, ModelSize, SHARD_BYTES_MAX, StoredType};
use serde_json::json;

use crate::progress::BytesProgress;
use crate::{CommandFailure, output};
use furrow_model::checkpoint::chain;

#[derive(Debug, Subcommand)]
pub(crate) enum CheckpointCommand {
    /// Write a complete random checkpoint of the published architecture in Hugging Face layout,
    /// tokenizer included; for tests and to try a farm
    Init(InitArgs),
    /// Print what a checkpoint holds and whether it can be loaded; reads headers, no weights
    Inspect(InspectArgs),
}

#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// Directory to create; it must not exist. After a kill, the same command continues at the
    /// first weight file that is missing
    dir: PathBuf,
    /// Size of the model. mini: a million parameters, to train on a CPU core; tiny: four million,
    /// for tests and the quickstart; small: about 100 million; 12b: the published shape, 26 GB in
    /// bfloat16
    #[arg(long, value_enum, default_value = "tiny")]
    size: SizeName,
    /// Seed of the weights; the same seed writes the same bytes
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Data type of the stored weights [default: float32; bfloat16 for 12b]
    #[arg(long, value_enum)]
    dtype: Option<TypeName>,
    /// Print the path, parameters, tensors, bytes and vocabulary as JSON instead of a line
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Directory of the checkpoint: config.json and the safetensors files of the weights
    dir: PathBuf,
    /// Print shape, parameters, state sizes, files and problems as JSON instead of tables
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum SizeName {
    Mini,
    Tiny,
    Small,
    #[value(name = "12b")]
    Nano12b,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum TypeName {
    Float32,
    Bfloat16,
}

pub(crate) fn run(command: &CheckpointCommand) -> Result<(), CommandFailure> {
    match command {
        CheckpointCommand::Init(args) => write(args),
        CheckpointCommand::Inspect(args) => print_checkpoint(args),
    }
}

fn write(args: &InitArgs) -> Result<(), CommandFailure> {
    let size = match args.size {
        SizeName::Mini => ModelSize::Mini,
        SizeName::Tiny => ModelSize::Tiny,
        SizeName::Small => ModelSize::Small,
        SizeName::Nano12b => ModelSize::Nano12b,
    };
    let dtype = match (args.dtype, size) {
        (Some(TypeName::Bfloat16), _) | (None, ModelSize::Nano12b) => StoredType::Bfloat16,
        (Some(TypeName::Float32) | None, _) => StoredType::Float32,
    };
    let init = InitSpec { size, seed: args.seed, dtype, shard_bytes_max: SHARD_BYTES_MAX };
    let progress = Mutex::new(BytesProgress::new("weights"));
    let on_progress = |done, all| progress.lock().unwrap_or_else(PoisonError::into_inner).update(done, all);
    let written = init::init_with_progress(&args.dir, &init, &on_progress);
    drop(progress);
    let summary = written.map_err(|error| CommandFailure::Input(vec![chain(&error)]))?;
    if args.json {
        return Ok(output::json(&json!({
            "dir": args.dir, "parameters": summary.parameters, "tensors": summary.tensors, "bytes": summary.bytes,
            "vocabulary": summary.vocabulary,
        }))?);
    }
    output::line(format!(
        "{}: {} parameters in {} tensors, {}",
        args.dir.display(),
        summary.parameters,
        summary.tensors,
        output::bytes(summary.bytes)
    ));
    Ok(())
}

fn print_checkpoint(args: &InspectArgs) -> Result<(), CommandFailure> {
    let found = inspect(&args.dir);
    if args.json {
        output::json(&found)?;
    } else {
        print_inspection(&found);
    }
    if found.problems.is_empty() { Ok(()) } else { Err(CommandFailure::Input(found.problems)) }
}

fn print_inspection(found: &CheckpointInspection) {
    if let Some(model) = &found.model {
        print_model(model);
    }
    let files = found
        .files
        .iter()
        .map(|file| vec![file.name.clone(), file.tensors.to_string(), output::bytes(file.bytes)]);
    output::line("");
    output::table(&["file", "tensors", "size"], &files.collect::<Vec<_>>());
    for (dtype, bytes) in &found.bytes_by_type {
        output::line(format!("{dtype}: {}", output::bytes(*bytes)));
    }
    if !found.ignored.is_empty() {
        output::line(format!("not used: {}", found.ignored.join(", ")));
    }
}

fn print_model(model: &ModelFacts) {
    let layers = &model.layers;
    let count = &model.parameters;
    let state = &model.state;
    output::line(format!("pattern {}", model.pattern));
    let rows = [
        ("Mamba-2", layers.ssm, count.layers.ssm),
        ("attention", layers.attention, count.layers.attention),
        ("MLP", layers.mlp, count.layers.mlp),
        ("experts", layers.moe, count.layers.moe),
        ("embeddings", 1, count.embeddings),
        ("output head", 1, count.head),
        ("vision tower", u64::from(model.vision), count.tower),
        ("projector", u64::from(model.vision), count.projector),
        ("all", layers.ssm + layers.attention + layers.mlp + layers.moe, count.total),
    ];
    let rows: Vec<Vec<String>> = rows
        .iter()
        .filter(|(_, layers, _)| *layers > 0)
        .map(|(name, layers, parameters)| {
            vec![(*name).to_owned(), layers.to_string(), parameters.to_string()]
        })
        .collect();
    output::table(&["part", "layers", "parameters"], &rows);
    output::line(format!(
        "a session takes {} of SSM state (float32), {} of convolution state and {} per token of keys and values (bfloat16)",
        output::bytes(state.ssm_float32_bytes),
        output::bytes(state.conv_bfloat16_bytes),
        output::bytes(state.kv_bfloat16_bytes_a_token)
    ));
}
