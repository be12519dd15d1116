//! Brings weights to their places, tensor by tensor.
//!
//! A tensor is looked over for values that are not finite before its first byte is copied. What lies in the file as it shall lie on the device is not copied on
//! the way. Floor: 26.3 GB for the 12B; a core copies some 10 GB/s out of a mapped file that is in memory, 2.6 s, several as much as PCIe 5 takes; from a
//! disk whatever that gives. What lies in pinned memory already goes over PCIe 5 at some 55 GB/s, 26.3 / 55 = 0.48 s.

use std::borrow::Cow;

use furrow_model::checkpoint::{Checkpoint, CheckpointError, Numbers, Tensor};
use furrow_model::vision::resize_positions;
use furrow_model::weights::decay;
use half::bf16;

use super::{Cargo, Form, Noise};
use crate::executor::{Executor, ExecutorError, Lane, Pinned};
use crate::types::Value;

/// Bytes of noise that are made: 1 MiB, repeated where a tensor is longer.
const BLOCK_BYTES: usize = 1 << 20;

/// Why weights were not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The checkpoint cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The device failed.
    #[error("the weights did not reach the device")]
    Executor(#[from] ExecutorError),
}

/// Where places are that tensors are brought to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    /// On the device, at addresses.
    Device,
    /// In pinned memory of this machine, from its first byte on.
    Host(Pinned),
}

impl Hold {
    fn put(self, executor: &mut dyn Executor, bytes: &[u8], to: u64) -> Result<(), ExecutorError> {
        match self {
            Self::Device => executor.upload(Lane::Vision, bytes, to),
            Self::Host(pinned) => executor.fill(pinned, to, bytes),
        }
    }
}

/// Looks every value over; nothing is copied.
pub(crate) fn check(checkpoint: &Checkpoint, cargo: &[Cargo]) -> Result<(), CheckpointError> {
    for Cargo { names, form, .. } in cargo {
        for name in names {
            let tensor = checkpoint.tensor(name)?;
            match form {
                Form::Decay => drop(decay(&tensor)?),
                _ => drop(tensor.numbers()?),
            }
        }
    }
    Ok(())
}

/// Brings tensors to their place; returns how many bytes of the checkpoint they were.
pub(crate) fn bring<T: Value>(
    executor: &mut dyn Executor,
    hold: Hold,
    checkpoint: &Checkpoint,
    cargo: &Cargo,
) -> Result<u64, LoadError> {
    let (mut at, end, mut read) = (cargo.to, cargo.to + bytes::<T>(cargo) as u64, 0);
    for name in &cargo.names {
        let tensor = checkpoint.tensor(name)?;
        let mut put = |bytes: &[u8]| {
            assert!(at + bytes.len() as u64 <= end, "{name} fits its place");
            hold.put(executor, bytes, at)?;
            at += bytes.len() as u64;
            Ok::<_, ExecutorError>(())
        };
        match cargo.form {
            Form::Stored => put(&as_stored::<T>(&tensor.numbers()?))?,
            form => put(&formed::<T>(checkpoint, &tensor, form)?)?,
        }
        read += tensor.bytes();
    }
    assert_eq!(at, end, "{:?} fill their place", cargo.names);
    Ok(read)
}

/// Fills a place with noise.
pub(crate) fn bring_noise<T: Value>(
    executor: &mut dyn Executor,
    hold: Hold,
    cargo: &Cargo,
) -> Result<(), ExecutorError> {
    let total = bytes::<T>(cargo);
    let size = if is_value(cargo.form) { size_of::<T>() } else { size_of::<f32>() };
    let values = cargo.noise.values(total.min(BLOCK_BYTES) / size);
    let block = if is_value(cargo.form) {
        bytemuck::pod_collect_to_vec(&values.map(T::nearest).collect::<Vec<T>>())
    } else {
        bytemuck::pod_collect_to_vec(&values.collect::<Vec<f32>>())
    };
    for first in (0..total).step_by(block.len()) {
        let count = block.len().min(total - first);
        hold.put(executor, &block[..count], cargo.to + first as u64)?;
    }
    Ok(())
}

/// Whether the values are of the weights' type, not float32.
fn is_value(form: Form) -> bool {
    matches!(form, Form::Stored | Form::Turned { .. })
}

/// Bytes of a place.
fn bytes<T>(cargo: &Cargo) -> usize {
    cargo.count * if is_value(cargo.form) { size_of::<T>() } else { size_of::<f32>() }
}

/// A small tensor in another form than it is stored in.
fn formed<T: Value>(
    checkpoint: &Checkpoint,
    tensor: &Tensor<'_>,
    form: Form,
) -> Result<Vec<u8>, CheckpointError> {
    let floats = match form {
        Form::Stored | Form::Float32 => tensor.to_f32()?,
        Form::Turned { rows, columns } => {
            let values = tensor.to_f32()?;
            let at = |index: usize| T::nearest(values[index % rows * columns + index / rows]);
            let turned: Vec<T> = (0..rows * columns).map(at).collect();
            return Ok(bytemuck::pod_collect_to_vec(&turned));
        }
        Form::Decay => decay(tensor)?,
        Form::Positions => {
            let mut resized = Vec::new();
            let vision = checkpoint.config().vision.as_ref().expect("a position table is a tower's");
            resize_positions(vision, &tensor.to_f32()?, &mut resized);
            resized
        }
    };
    Ok(bytemuck::pod_collect_to_vec(&floats))
}

/// Numbers as bytes of another type, or their own.
fn as_stored<'a, T: Value>(numbers: &'a Numbers<'_>) -> Cow<'a, [u8]> {
    let of = |values: &mut dyn Iterator<Item = f32>| -> Cow<'a, [u8]> {
        let values: Vec<T> = values.map(T::nearest).collect();
        Cow::Owned(bytemuck::pod_collect_to_vec(&values))
    };
    match (numbers, T::pick(false, true)) {
        (Numbers::F32(values), false) => Cow::Borrowed(bytemuck::cast_slice(values)),
        (Numbers::Bf16(bits), true) => Cow::Borrowed(bytemuck::cast_slice(bits)),
        (Numbers::F32(values), true) => of(&mut values.iter().copied()),
        (Numbers::Bf16(bits), false) => of(&mut bits.iter().map(|bits| bf16::from_bits(*bits).to_f32())),
    }
}

impl Noise {
    /// Values one behind the other; the same each time.
    fn values(self, count: usize) -> impl Iterator<Item = f32> {
        let Self(middle, spread) = self;
        (0..count as u32).map(move |index| {
            // Knuth's multiplicative hash; its upper 24 bits make -1..1.
            let unit = (index.wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0;
            middle + spread * unit
        })
    }
}
