//! Float32 memory of a backend: aligned to cache lines, in huge pages where available. A failed
//! allocation is an error, not an abort.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::error::CpuOpenError;
use crate::kernels::AlignedBuffer;

pub(super) struct FloatBuffer(AlignedBuffer);

impl FloatBuffer {
    /// Allocates `count` times `each` values and touches every page; `part` names them in errors.
    pub(super) fn zeros(part: &'static str, count: usize, each: usize) -> Result<Self, CpuOpenError> {
        let values = count.checked_mul(each).ok_or(CpuOpenError::TooLarge { part, count, each })?;
        let bytes = values as u64 * size_of::<f32>() as u64;
        AlignedBuffer::try_new(values).map(Self).ok_or(CpuOpenError::NoMemory { part, bytes })
    }
}

impl Deref for FloatBuffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        self.0.as_f32()
    }
}

impl DerefMut for FloatBuffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        self.0.as_f32_mut()
    }
}

impl fmt::Debug for FloatBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Values({})", self.len())
    }
}
