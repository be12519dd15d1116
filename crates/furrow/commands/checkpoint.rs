//! `furrow checkpoint`: writes random checkpoints of the published architecture, and looks at any.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use clap::{Args, Subcommand, ValueEnum};
use furrow_model::checkpoint::{Inspection, ModelFacts, inspect};
use furrow_model::init::{self, Init, SHARD_BYTES_MAX, Size, StoredType};
use serde_json::json;

use crate::progress::BytesDone;
use crate::{Failure, output};
use furrow_model::checkpoint::chain;

/// What to do with a checkpoint.
#[derive(Debug, Subcommand)]
pub enum CheckpointCommand {
    /// Write a complete random checkpoint of this architecture in Hugging Face layout, tokenizer included
    Init(InitArgs),
    /// Say what a checkpoint holds and whether it can be loaded; reads headers, no weights
    Inspect(InspectArgs),
}

/// What to write, and where.
#[derive(Debug, Args)]
pub struct InitArgs {
    /// Directory to make
    dir: PathBuf,
    /// mini: a million parameters, to learn on a core; tiny: four million, for tests and the quickstart; small: about 100 million; 12b: the
    /// published shape, 26 GB in bfloat16
    #[arg(long, value_enum, default_value = "tiny")]
    size: SizeName,
    /// The same seed writes the same bytes
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Type the weights are stored in [default: float32, of 12b bfloat16]
    #[arg(long, value_enum)]
    dtype: Option<TypeName>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Which checkpoint.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Checkpoint directory
    dir: PathBuf,
    /// Print JSON
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

/// Runs the command.
pub fn run(command: &CheckpointCommand) -> Result<(), Failure> {
    match command {
        CheckpointCommand::Init(args) => write(args),
        CheckpointCommand::Inspect(args) => look(args),
    }
}

fn write(args: &InitArgs) -> Result<(), Failure> {
    let size = match args.size {
        SizeName::Mini => Size::Mini,
        SizeName::Tiny => Size::Tiny,
        SizeName::Small => Size::Small,
        SizeName::Nano12b => Size::Nano12b,
    };
    let dtype = match (args.dtype, size) {
        (Some(TypeName::Bfloat16), _) | (None, Size::Nano12b) => StoredType::Bfloat16,
        (Some(TypeName::Float32) | None, _) => StoredType::Float32,
    };
    let init = Init { size, seed: args.seed, dtype, shard_bytes_max: SHARD_BYTES_MAX };
    let progress = Mutex::new(BytesDone::new("weights"));
    let told = |done, all| progress.lock().unwrap_or_else(PoisonError::into_inner).update(done, all);
    let written = init::init_told(&args.dir, &init, &told);
    drop(progress);
    let summary = written.map_err(|error| Failure::Input(vec![chain(&error)]))?;
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

fn look(args: &InspectArgs) -> Result<(), Failure> {
    let found = inspect(&args.dir);
    if args.json {
        output::json(&found)?;
    } else {
        tell(&found);
    }
    if found.problems.is_empty() { Ok(()) } else { Err(Failure::Input(found.problems)) }
}

fn tell(found: &Inspection) {
    if let Some(model) = &found.model {
        tell_model(model);
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

fn tell_model(model: &ModelFacts) {
    let (layers, count, state) = (&model.layers, &model.parameters, &model.state);
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
        "a session keeps {} of SSM state (float32), {} of convolution state and {} a token of keys and values (bfloat16)",
        output::bytes(state.ssm_float32_bytes),
        output::bytes(state.conv_bfloat16_bytes),
        output::bytes(state.kv_bfloat16_bytes_a_token)
    ));
}
