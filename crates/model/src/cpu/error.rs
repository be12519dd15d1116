//! The errors of opening a backend.

use super::memory_use::MemoryUse;

/// Why a backend did not open.
#[derive(Debug, thiserror::Error)]
pub enum CpuOpenError {
    /// A part of the capacity is zero.
    #[error("capacity of 0 {what}; give at least 1")]
    NoCapacity { what: &'static str },
    /// The size overflows a number.
    #[error("{part}: {count} of {each} values are more than this machine can address; lower their number")]
    TooLarge {
        /// What the memory was for.
        part: &'static str,
        count: usize,
        each: usize,
    },
    /// The system has less memory available.
    #[error("out of memory: {requested} requested, {:.1} MB free; lower slots, pages or rows", *available as f64 / 1e6)]
    Full {
        /// Requested bytes by part; the weights are loaded already.
        requested: MemoryUse,
        available: u64,
    },
    #[error("{part}: cannot allocate {bytes} bytes; lower slots, pages or rows")]
    NoMemory {
        /// What the memory was for.
        part: &'static str,
        bytes: u64,
    },
    /// New weights belong to another model.
    #[error("the new weights have other shapes than those in use: {difference}")]
    OtherModel { difference: String },
}
