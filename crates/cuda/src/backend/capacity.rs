//! Checks a capacity, and computes the memory that a model needs with it, before anything is
//! allocated.

use furrow_model::backend::BackendCapacity;
use furrow_model::checkpoint::Checkpoint;
use furrow_model::config::Config;

use super::allocation::{AllocationInputs, needs_in};
use super::error::CudaOpenError;
use super::options::{BackendOptions, ModelPrecision};
use crate::arena::MemoryPlan;
use crate::needs::MemoryNeeds;
use crate::types::{Bfloat16Types, Float32Types, NarrowState, WideResidual};
use crate::unsupported::unsupported;
use crate::weights::{CheckpointCounts, MatrixTypes};
use crate::work::BatchLimits;

/// Largest number of blocks of a launch along its second and third axis.
const GRID_MAX: usize = 65_535;

/// Device memory of a model in bfloat16 with this capacity, from its configuration alone.
///
/// # Errors
/// If there are no kernels for the model.
pub fn plan(
    config: &Config,
    capacity: &BackendCapacity,
    options: &BackendOptions,
) -> Result<MemoryPlan, CudaOpenError> {
    Ok(needs(config, capacity, options)?.device)
}

/// Device and host memory of a model in bfloat16 with this capacity, from its configuration alone.
///
/// # Errors
/// If there are no kernels for the model.
pub fn needs(
    config: &Config,
    capacity: &BackendCapacity,
    options: &BackendOptions,
) -> Result<MemoryNeeds, CudaOpenError> {
    let counts = CheckpointCounts::of_config(config);
    compute_needs(false, AllocationInputs { config, counts: &counts, capacity, options })
}

/// Device and host memory of a checkpoint with this capacity: what [`open`](super::open) will
/// allocate, to the byte.
///
/// # Errors
/// If there are no kernels for the model, or a tensor is missing.
pub fn checkpoint_needs(
    checkpoint: &Checkpoint,
    capacity: &BackendCapacity,
    options: &BackendOptions,
) -> Result<MemoryNeeds, CudaOpenError> {
    let kept = MatrixTypes::of(checkpoint)?;
    let counts = CheckpointCounts::of(checkpoint, kept.wide)?;
    let config = checkpoint.config();
    compute_needs(kept.of_f32, AllocationInputs { config, counts: &counts, capacity, options })
}

fn compute_needs(of_f32: bool, inputs: AllocationInputs<'_>) -> Result<MemoryNeeds, CudaOpenError> {
    check_supported(inputs.config, inputs.capacity)?;
    Ok(match (of_f32, inputs.options.precision) {
        (true, _) => needs_in::<Float32Types>(inputs),
        (_, ModelPrecision::Usual) => needs_in::<Bfloat16Types>(inputs),
        (_, ModelPrecision::WideResidual) => needs_in::<WideResidual>(inputs),
        (_, ModelPrecision::NarrowState) => needs_in::<NarrowState>(inputs),
    })
}

/// Checks that no part of a capacity is zero or more than a launch supports, and that there are
/// kernels for the model.
pub(super) fn check_supported(config: &Config, capacity: &BackendCapacity) -> Result<(), CudaOpenError> {
    let parts = [
        ("state slots", capacity.slots),
        ("rows", capacity.rows_max),
        ("rows of logits", capacity.logits_max),
    ];
    if let Some((what, _)) = parts.into_iter().find(|(_, count)| *count == 0) {
        return Err(CudaOpenError::NoCapacity { what });
    }
    let requested = BatchLimits::of(&config.text, capacity).rows;
    if requested > GRID_MAX {
        return Err(CudaOpenError::TooLarge { what: "rows of a batch", requested, most: GRID_MAX });
    }
    let why = unsupported(config);
    if why.is_empty() { Ok(()) } else { Err(CudaOpenError::Unsupported { why }) }
}
