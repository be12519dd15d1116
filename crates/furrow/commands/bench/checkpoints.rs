//! The random checkpoints that both sides of a model benchmark read.

use std::path::{Path, PathBuf};

use furrow_model::init::{Init, SHARD_BYTES_MAX, Size, StoredType, init};

use super::model_peer::save_checkpoints;
use super::report::Report;
use crate::Failure;
use crate::commands::scratch::Scratch;

/// One of each type of number.
pub struct Types<T> {
    pub float32: T,
    pub bfloat16: T,
}

/// The same model stored in both types, of a shape that the peer's script knows; without the script's Python another model stands in.
pub fn checkpoints(
    python: &Path,
    scripts: &Path,
    shape: &str,
    scratch: &Scratch,
    report: &mut Report,
) -> Result<Types<PathBuf>, Failure> {
    let folder = scratch.fresh("checkpoints")?;
    let folders = Types { float32: folder.join("float32"), bfloat16: folder.join("bfloat16") };
    if let Err(why) = save_checkpoints(python, scripts, &folder, shape) {
        report.note(format!(
            "no checkpoint of the shape {shape} ({why:#}), one of `furrow checkpoint init --size small` stands in: install torch \
             and transformers and give --python"
        ));
        write(&folders.float32, StoredType::Float32)?;
        write(&folders.bfloat16, StoredType::Bfloat16)?;
    }
    Ok(folders)
}

fn write(folder: &Path, dtype: StoredType) -> Result<(), Failure> {
    init(folder, &Init { size: Size::Small, seed: 7, dtype, shard_bytes_max: SHARD_BYTES_MAX })?;
    Ok(())
}
