//! The errors of opening a GPU.

use cudarc::driver::DriverError;

use super::products::ProductsError;
use crate::cache::CacheError;
use crate::compile::CompileError;
use crate::device::DeviceError;

/// Why a GPU cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// No GPU was opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A kernel did not compile, or could not be stored.
    #[error(transparent)]
    Cache(#[from] CacheError),
    #[error(transparent)]
    Products(#[from] ProductsError),
    #[error("the GPU was opened, but the driver could not {operation}")]
    Driver { operation: &'static str, source: DriverError },
}
