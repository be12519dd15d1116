//! The weight files of a job.

use furrow_cuda::backend::StagingMode;
use furrow_model::config::Config;
use furrow_model::init::SHARD_BYTES_MAX;
use furrow_policy::{BackendChoice, ModelConfig};

/// Bytes of each weight file of a job: of the existing files, else of files of 5 GB with two bytes
/// per parameter of the configuration.
pub(super) fn weight_files(model: &ModelConfig) -> Vec<u64> {
    let files = std::fs::read_dir(&model.checkpoint).into_iter().flatten().flatten();
    let weights = files.filter(|file| file.path().extension().is_some_and(|end| end == "safetensors"));
    let bytes: Vec<u64> =
        weights.filter_map(|file| file.path().metadata().ok()).map(|file| file.len()).collect();
    if !bytes.is_empty() {
        return bytes;
    }
    let all = Config::read(&model.checkpoint).map_or(0, |config| config.parameters() * 2);
    (0..all.div_ceil(SHARD_BYTES_MAX)).map(|file| SHARD_BYTES_MAX.min(all - file * SHARD_BYTES_MAX)).collect()
}

/// Whether the GPU keeps capacity for published weights beside those in use.
pub(super) fn loads_new_versions(model: &ModelConfig) -> bool {
    matches!(&model.backend, BackendChoice::Cuda(_, options) if options.stage != StagingMode::None)
}
