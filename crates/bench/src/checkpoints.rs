//! The random checkpoints that both sides of a model benchmark read.

use std::path::{Path, PathBuf};

use furrow::{CommandFailure, ScratchDir};
use furrow_model::init::{InitSpec, ModelSize, SHARD_BYTES_MAX, StoredType, init};

use crate::model_peer::save_checkpoints;
use crate::report::BenchReport;

/// One value per data type.
pub(crate) struct PerDtype<T> {
    pub float32: T,
    pub bfloat16: T,
}

/// The same model stored in both data types, in a shape that the peer's script knows; if the script
/// cannot run, another model replaces it.
pub(crate) fn checkpoints(
    python: &Path,
    scripts: &Path,
    shape: &str,
    scratch: &ScratchDir,
    report: &mut BenchReport,
) -> Result<PerDtype<PathBuf>, CommandFailure> {
    let folder = scratch.fresh("checkpoints")?;
    let folders = PerDtype { float32: folder.join("float32"), bfloat16: folder.join("bfloat16") };
    if let Err(why) = save_checkpoints(python, scripts, &folder, shape) {
        report.note(format!(
            "no checkpoint of the shape {shape} ({why:#}); measured one of `furrow checkpoint init --size small` instead: install torch \
             and transformers and set --python"
        ));
        write(&folders.float32, StoredType::Float32)?;
        write(&folders.bfloat16, StoredType::Bfloat16)?;
    }
    Ok(folders)
}

fn write(folder: &Path, dtype: StoredType) -> Result<(), CommandFailure> {
    init(folder, &InitSpec { size: ModelSize::Small, seed: 7, dtype, shard_bytes_max: SHARD_BYTES_MAX })?;
    Ok(())
}
