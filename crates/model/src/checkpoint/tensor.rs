//! The values of one tensor of a checkpoint, read out of its file and looked over for anything that is not a finite number.

use std::borrow::Cow;

use safetensors::Dtype;
use sha2::{Digest, Sha256};

use super::CheckpointError;
use crate::kernels::Matrix;
use crate::weights::Values;

const _: () =
    assert!(cfg!(target_endian = "little"), "safetensors files are little-endian, and are read as they lie");

/// Values that are looked over between two looks at the result: enough to keep the vector units busy, little enough to stay in cache.
const SCAN: usize = 4096;

/// A tensor that lies in one or more files.
#[derive(Debug, Clone)]
pub struct Tensor<'a> {
    shape: Vec<usize>,
    pieces: Vec<Piece<'a>>,
}

/// Some rows of it that lie together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece<'a> {
    pub(super) file: &'a str,
    pub(super) name: &'a str,
    pub(super) dtype: Dtype,
    pub(super) bytes: &'a [u8],
}

/// Stored numbers, borrowed where they lie well.
#[derive(Debug)]
pub enum Numbers<'a> {
    /// float32.
    F32(Cow<'a, [f32]>),
    /// bfloat16 bits.
    Bf16(Cow<'a, [u16]>),
}

impl<'a> Tensor<'a> {
    pub(super) fn new(shape: Vec<usize>, pieces: Vec<Piece<'a>>) -> Self {
        Self { shape, pieces }
    }

    /// Its shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Bytes it takes in its files.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.bytes.len() as u64).sum()
    }

    /// The error that says which value of this tensor leads to something that is not finite.
    pub(crate) fn not_finite(&self, index: usize, value: f32) -> CheckpointError {
        let [file, name] = self.pieces.first().map_or([""; 2], |piece| [piece.file, piece.name]);
        CheckpointError::NotFinite { file: file.into(), name: super::shown(name), index, value }
    }

    /// Type, shape and hash of its bytes: `BF16 512x72 {SHA-256}`.
    pub(super) fn summary(&self) -> String {
        let mut types: Vec<String> = self.pieces.iter().map(|piece| piece.dtype.to_string()).collect();
        types.dedup();
        let shape: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        let hash = self.pieces.iter().fold(Sha256::new(), |hash, piece| hash.chain_update(piece.bytes));
        format!("{} {} {}", types.join("+"), shape.join("x"), super::hex(&hash.finalize()))
    }

    /// Tensors of one width, one after another by row.
    pub fn stacked(tensors: &[Self]) -> Self {
        let rows = tensors.iter().map(|tensor| tensor.shape[0]).sum();
        let width = tensors.iter().flat_map(|tensor| tensor.shape.iter().skip(1)).take(1).copied();
        let pieces = tensors.iter().flat_map(|tensor| tensor.pieces.iter().copied()).collect();
        Self { shape: std::iter::once(rows).chain(width).collect(), pieces }
    }

    /// Its values in float32.
    ///
    /// # Errors
    /// When one of them is not finite.
    pub fn to_f32(&self) -> Result<Vec<f32>, CheckpointError> {
        Ok(match self.numbers()? {
            Numbers::F32(values) => values.into_owned(),
            Numbers::Bf16(bits) => bits.iter().map(|bits| widen(*bits)).collect(),
        })
    }

    /// Its values as stored.
    ///
    /// # Errors
    /// When one of them is not finite.
    pub fn values(&self) -> Result<Values, CheckpointError> {
        Ok(match self.numbers()? {
            Numbers::F32(values) => Values::F32(values.into_owned()),
            Numbers::Bf16(bits) => Values::Bf16(bits.into_owned()),
        })
    }

    /// Its values packed for products, `[out, in]`.
    ///
    /// # Errors
    /// When one of them is not finite.
    pub fn matrix(&self) -> Result<Matrix, CheckpointError> {
        let out = self.shape[0];
        let input = self.shape[1..].iter().product();
        Ok(match self.numbers()? {
            Numbers::F32(values) => Matrix::from_f32(out, input, &values),
            Numbers::Bf16(bits) => Matrix::from_bf16(out, input, &bits),
        })
    }

    /// Whether all of it is stored as bfloat16.
    pub fn is_bf16(&self) -> bool {
        self.pieces.iter().all(|piece| piece.dtype == Dtype::BF16)
    }

    /// All of it: bfloat16 where it is stored so, float32 otherwise.
    ///
    /// # Errors
    /// When a value is not finite.
    pub fn numbers(&self) -> Result<Numbers<'a>, CheckpointError> {
        self.pieces.iter().try_for_each(Piece::check_finite)?;
        Ok(match (self.pieces.as_slice(), self.is_bf16()) {
            ([piece], true) => Numbers::Bf16(values(piece.bytes)),
            ([piece], false) => Numbers::F32(values(piece.bytes)),
            (pieces, true) => {
                let pieces: Vec<Cow<'_, [u16]>> = pieces.iter().map(|piece| values(piece.bytes)).collect();
                Numbers::Bf16(Cow::Owned(pieces.concat()))
            }
            (pieces, false) => {
                let pieces: Vec<Vec<f32>> = pieces.iter().map(|piece| piece.to_f32()).collect();
                Numbers::F32(Cow::Owned(pieces.concat()))
            }
        })
    }
}

impl Piece<'_> {
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
            name: super::shown(self.name),
            index,
            value: self.to_f32()[index],
        })
    }
}

/// Where the first value is that `bad` holds for. Blocks without one are passed over by a loop without a branch.
fn position<T: Copy>(values: &[T], bad: impl Fn(T) -> bool) -> Option<usize> {
    let block =
        values.chunks(SCAN).position(|block| block.iter().fold(false, |any, value| any | bad(*value)))?;
    let within = values[block * SCAN..].iter().position(|value| bad(*value))?;
    Some(block * SCAN + within)
}

/// Bytes as numbers: where they lie if they are aligned, else a copy.
fn values<T: bytemuck::Pod>(bytes: &[u8]) -> Cow<'_, [T]> {
    match bytemuck::try_cast_slice(bytes) {
        Ok(values) => Cow::Borrowed(values),
        Err(_) => Cow::Owned(bytemuck::pod_collect_to_vec(bytes)),
    }
}

fn widen(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}
