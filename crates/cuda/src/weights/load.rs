//! Uploads weights to their addresses, tensor by tensor.
//!
//! A tensor is checked for values that are not finite before its first byte is copied. A tensor
//! whose form in the file is that on the device needs no intermediate copy. Lower bound: 26.3 GB
//! for the 12B; one core copies about 10 GB/s out of a mapped file that is in memory, 2.6 s,
//! several cores as much as PCIe 5 takes; from a disk, its own rate. From pinned memory the weights
//! take 26.3 / 55 = 0.48 s over PCIe 5 at about 55 GB/s.

use std::borrow::Cow;

use furrow_model::checkpoint::{Checkpoint, CheckpointError, StoredNumbers, Tensor};
use furrow_model::vision::resize_positions;
use furrow_model::weights::decay;
use half::bf16;

use super::{NoiseValues, TensorUpload, UploadForm};
use crate::executor::{ExecutionLane, Executor, ExecutorError, PinnedMemory};
use crate::types::WeightElement;

/// Bytes of generated noise: 1 MiB, repeated for longer tensors.
const BLOCK_BYTES: usize = 1 << 20;

/// Why weights were not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The checkpoint cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("the weights could not be copied to the device")]
    Executor(#[from] ExecutorError),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UploadTarget {
    /// On the device, at addresses.
    Device,
    /// In pinned host memory, starting at its first byte.
    Host(PinnedMemory),
}

impl UploadTarget {
    fn put(self, executor: &mut dyn Executor, bytes: &[u8], to: u64) -> Result<(), ExecutorError> {
        match self {
            Self::Device => executor.upload(ExecutionLane::Vision, bytes, to),
            Self::Host(pinned) => executor.fill(pinned, to, bytes),
        }
    }
}

/// Checks every value; copies nothing.
pub(crate) fn check(checkpoint: &Checkpoint, uploads: &[TensorUpload]) -> Result<(), CheckpointError> {
    for TensorUpload { names, form, .. } in uploads {
        for name in names {
            let tensor = checkpoint.tensor(name)?;
            match form {
                UploadForm::Decay => drop(decay(&tensor)?),
                _ => drop(tensor.numbers()?),
            }
        }
    }
    checkpoint.check_uncut()
}

/// Uploads tensors to their buffer; returns their number of bytes in the checkpoint.
pub(crate) fn upload_tensor<T: WeightElement>(
    executor: &mut dyn Executor,
    target: UploadTarget,
    checkpoint: &Checkpoint,
    upload: &TensorUpload,
) -> Result<u64, LoadError> {
    let mut at = upload.to;
    let end = upload.to + bytes::<T>(upload) as u64;
    let mut read = 0;
    for name in &upload.names {
        let tensor = checkpoint.tensor(name)?;
        let mut put = |bytes: &[u8]| {
            assert!(at + bytes.len() as u64 <= end, "{name} exceeds its buffer");
            target.put(executor, bytes, at)?;
            at += bytes.len() as u64;
            Ok::<_, ExecutorError>(())
        };
        match upload.form {
            UploadForm::Stored => put(&as_stored::<T>(&tensor.numbers()?))?,
            form => put(&formed::<T>(checkpoint, &tensor, form)?)?,
        }
        read += tensor.bytes();
    }
    assert_eq!(at, end, "{:?} do not fill their buffer", upload.names);
    checkpoint.check_uncut()?;
    Ok(read)
}

/// Fills a buffer with noise.
pub(crate) fn upload_noise<T: WeightElement>(
    executor: &mut dyn Executor,
    target: UploadTarget,
    upload: &TensorUpload,
) -> Result<(), ExecutorError> {
    let total = bytes::<T>(upload);
    let size = if is_value(upload.form) { size_of::<T>() } else { size_of::<f32>() };
    let values = upload.noise.values(total.min(BLOCK_BYTES) / size);
    let block = if is_value(upload.form) {
        bytemuck::pod_collect_to_vec(&values.map(T::nearest).collect::<Vec<T>>())
    } else {
        bytemuck::pod_collect_to_vec(&values.collect::<Vec<f32>>())
    };
    for first in (0..total).step_by(block.len()) {
        let count = block.len().min(total - first);
        target.put(executor, &block[..count], upload.to + first as u64)?;
    }
    Ok(())
}

/// Whether the values have the weights' type, not float32.
fn is_value(form: UploadForm) -> bool {
    matches!(form, UploadForm::Stored | UploadForm::Turned { .. })
}

/// Bytes of an upload.
fn bytes<T>(upload: &TensorUpload) -> usize {
    upload.count * if is_value(upload.form) { size_of::<T>() } else { size_of::<f32>() }
}

/// A small tensor in another form than the stored one.
fn formed<T: WeightElement>(
    checkpoint: &Checkpoint,
    tensor: &Tensor<'_>,
    form: UploadForm,
) -> Result<Vec<u8>, CheckpointError> {
    let floats = match form {
        UploadForm::Stored | UploadForm::Float32 => tensor.to_f32()?,
        UploadForm::Turned { rows, columns } => {
            let values = tensor.to_f32()?;
            let at = |index: usize| T::nearest(values[index % rows * columns + index / rows]);
            let turned: Vec<T> = (0..rows * columns).map(at).collect();
            return Ok(bytemuck::pod_collect_to_vec(&turned));
        }
        UploadForm::Decay => decay(tensor)?,
        UploadForm::Positions => {
            let mut resized = Vec::new();
            let vision =
                checkpoint.config().vision.as_ref().expect("only a model with a tower has a position table");
            resize_positions(vision, &tensor.to_f32()?, &mut resized);
            resized
        }
    };
    Ok(bytemuck::pod_collect_to_vec(&floats))
}

/// Numbers as bytes of another type, or of their own.
fn as_stored<'a, T: WeightElement>(numbers: &'a StoredNumbers<'_>) -> Cow<'a, [u8]> {
    let of = |values: &mut dyn Iterator<Item = f32>| -> Cow<'a, [u8]> {
        let values: Vec<T> = values.map(T::nearest).collect();
        Cow::Owned(bytemuck::pod_collect_to_vec(&values))
    };
    match (numbers, T::pick(false, true)) {
        (StoredNumbers::F32(values), false) => Cow::Borrowed(bytemuck::cast_slice(values)),
        (StoredNumbers::Bf16(bits), true) => Cow::Borrowed(bytemuck::cast_slice(bits)),
        (StoredNumbers::F32(values), true) => of(&mut values.iter().copied()),
        (StoredNumbers::Bf16(bits), false) => {
            of(&mut bits.iter().map(|bits| bf16::from_bits(*bits).to_f32()))
        }
    }
}

impl NoiseValues {
    /// Values in sequence; the same each time.
    fn values(self, count: usize) -> impl Iterator<Item = f32> {
        let Self(middle, spread) = self;
        (0..count as u32).map(move |index| {
            // Knuth's multiplicative hash; its upper 24 bits give -1..1.
            let unit = (index.wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0;
            middle + spread * unit
        })
    }
}
