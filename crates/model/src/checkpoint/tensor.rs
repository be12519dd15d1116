//! The values of one tensor of a checkpoint, read from its file and checked to be finite.

use std::borrow::Cow;

use safetensors::Dtype;
use sha2::{Digest, Sha256};

use super::displayed::{displayed_name, hex};
use super::error::CheckpointError;
use crate::kernels::PackedMatrix;
use crate::weights::StoredValues;

const _: () = assert!(
    cfg!(target_endian = "little"),
    "safetensors files are little-endian and are read without conversion"
);

/// Values that are checked between two looks at the result: enough to keep the vector units busy,
/// few enough to stay in cache.
const SCAN: usize = 4096;

/// A tensor that is stored in one or more files.
#[derive(Debug, Clone)]
pub struct Tensor<'a> {
    shape: Vec<usize>,
    pieces: Vec<TensorRows<'a>>,
}

/// Consecutive rows of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct TensorRows<'a> {
    pub(super) file: &'a str,
    pub(super) name: &'a str,
    pub(super) dtype: Dtype,
    pub(super) bytes: &'a [u8],
}

/// Stored numbers, borrowed where their alignment permits.
#[derive(Debug)]
pub enum StoredNumbers<'a> {
    F32(Cow<'a, [f32]>),
    Bf16(Cow<'a, [u16]>),
}

impl<'a> Tensor<'a> {
    pub(super) fn new(shape: Vec<usize>, pieces: Vec<TensorRows<'a>>) -> Self {
        Self { shape, pieces }
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Bytes it takes in its files.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.bytes.len() as u64).sum()
    }

    /// The error that names a value of this tensor that is not finite or leads to one.
    pub(crate) fn not_finite(&self, index: usize, value: f32) -> CheckpointError {
        let [file, name] = self.pieces.first().map_or([""; 2], |piece| [piece.file, piece.name]);
        CheckpointError::NotFinite { file: file.into(), name: displayed_name(name), index, value }
    }

    /// Type, shape and hash of its bytes: `BF16 512x72 {SHA-256}`.
    pub(super) fn summary(&self) -> String {
        let mut types: Vec<String> = self.pieces.iter().map(|piece| piece.dtype.to_string()).collect();
        types.dedup();
        let shape: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        let hash = self.pieces.iter().fold(Sha256::new(), |hash, piece| hash.chain_update(piece.bytes));
        format!("{} {} {}", types.join("+"), shape.join("x"), hex(&hash.finalize()))
    }

    /// Joins tensors of one width by row.
    pub fn stacked(tensors: &[Self]) -> Self {
        let rows = tensors.iter().map(|tensor| tensor.shape[0]).sum();
        let width = tensors.iter().flat_map(|tensor| tensor.shape.iter().skip(1)).take(1).copied();
        let pieces = tensors.iter().flat_map(|tensor| tensor.pieces.iter().copied()).collect();
        Self { shape: std::iter::once(rows).chain(width).collect(), pieces }
    }

    /// Its values in float32.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn to_f32(&self) -> Result<Vec<f32>, CheckpointError> {
        Ok(match self.numbers()? {
            StoredNumbers::F32(values) => values.into_owned(),
            StoredNumbers::Bf16(bits) => bits.iter().map(|bits| widen(*bits)).collect(),
        })
    }

    /// Its values as stored.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn values(&self) -> Result<StoredValues, CheckpointError> {
        Ok(match self.numbers()? {
            StoredNumbers::F32(values) => StoredValues::F32(values.into_owned()),
            StoredNumbers::Bf16(bits) => StoredValues::Bf16(bits.into_owned()),
        })
    }

    /// Its values packed for products, as `[out, in]`.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn matrix(&self) -> Result<PackedMatrix, CheckpointError> {
        let out = self.shape[0];
        let input = self.shape[1..].iter().product();
        Ok(match self.numbers()? {
            StoredNumbers::F32(values) => PackedMatrix::from_f32(out, input, &values),
            StoredNumbers::Bf16(bits) => PackedMatrix::from_bf16(out, input, &bits),
        })
    }

    /// Whether all of it is stored as bfloat16.
    pub fn is_bf16(&self) -> bool {
        self.pieces.iter().all(|piece| piece.dtype == Dtype::BF16)
    }

    /// All values: bfloat16 if stored so, float32 otherwise.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn numbers(&self) -> Result<StoredNumbers<'a>, CheckpointError> {
        self.pieces.iter().try_for_each(TensorRows::check_finite)?;
        Ok(match (self.pieces.as_slice(), self.is_bf16()) {
            ([piece], true) => StoredNumbers::Bf16(values(piece.bytes)),
            ([piece], false) => StoredNumbers::F32(values(piece.bytes)),
            (pieces, true) => {
                let pieces: Vec<Cow<'_, [u16]>> = pieces.iter().map(|piece| values(piece.bytes)).collect();
                StoredNumbers::Bf16(Cow::Owned(pieces.concat()))
            }
            (pieces, false) => {
                let pieces: Vec<Vec<f32>> = pieces.iter().map(|piece| piece.to_f32()).collect();
                StoredNumbers::F32(Cow::Owned(pieces.concat()))
            }
        })
    }
}

impl TensorRows<'_> {
    fn to_f32(self) -> Vec<f32> {
        match self.dtype {
            Dtype::BF16 => values(self.bytes).iter().map(|bits| widen(*bits)).collect(),
            _ => values(self.bytes).into_owned(),
        }
    }

    fn check_finite(&self) -> Result<(), CheckpointError> {
        let found = match self.dtype {
            Dtype::BF16 => position(&values::<u16>(self.bytes), |bits| bits & 0x7f80 == 0x7f80),
            _ => position(&values::<u32>(self.bytes), |bits| bits & 0x7f80_0000 == 0x7f80_0000),
        };
        let Some(index) = found else { return Ok(()) };
        Err(CheckpointError::NotFinite {
            file: self.file.into(),
            name: displayed_name(self.name),
            index,
            value: self.to_f32()[index],
        })
    }
}

/// Position of the first value for which `bad` holds. A loop without a branch skips blocks that
/// have none.
fn position<T: Copy>(values: &[T], bad: impl Fn(T) -> bool) -> Option<usize> {
    let block =
        values.chunks(SCAN).position(|block| block.iter().fold(false, |any, value| any | bad(*value)))?;
    let within = values[block * SCAN..].iter().position(|value| bad(*value))?;
    Some(block * SCAN + within)
}

/// Bytes as numbers: borrowed if they are aligned, else copied.
fn values<T: bytemuck::Pod>(bytes: &[u8]) -> Cow<'_, [T]> {
    match bytemuck::try_cast_slice(bytes) {
        Ok(values) => Cow::Borrowed(values),
        Err(_) => Cow::Owned(bytemuck::pod_collect_to_vec(bytes)),
    }
}

fn widen(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}
