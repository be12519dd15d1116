//! Float32 memory of a backend: on cache lines, in huge pages where there are any, and asked for with an error instead of an abort.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::OpenError;
use crate::kernels::Buffer;

/// Values, zero at first.
pub(super) struct Values(Buffer);

impl Values {
    /// `count` times `each` of them, every page touched; or the error that says what they were for.
    pub fn zeros(part: &'static str, count: usize, each: usize) -> Result<Self, OpenError> {
        let values = count.checked_mul(each).ok_or(OpenError::TooLarge { part, count, each })?;
        let bytes = values as u64 * size_of::<f32>() as u64;
        Buffer::try_new(values).map(Self).ok_or(OpenError::NoMemory { part, bytes })
    }
}

impl Deref for Values {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        self.0.as_f32()
    }
}

impl DerefMut for Values {
    fn deref_mut(&mut self) -> &mut [f32] {
        self.0.as_f32_mut()
    }
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Values({})", self.len())
    }
}
