//! The parts of the hot loops: packed matrices and their products, a thread pool, vector
//! mathematics. All `unsafe` of this crate except one memory map is in this module.
//!
//! Every product computes each output element by one fixed chain of fused multiply-adds over k = 0,
//! 1, 2, …, for any number of rows or threads and any vector width of the machine. A row's result
//! therefore does not depend on its neighbours, bit for bit.

mod attention;
mod buffer;
mod conv;
mod isa;
pub mod math;
mod matrix;
pub mod peak;
mod product;
pub(crate) mod resample;
mod rows;
mod scan;
mod thread_pool;
pub(crate) mod tower;
mod vector;
pub(crate) mod vision_attention;

pub use attention::{PageView, PagedAttention};
pub(crate) use buffer::AlignedBuffer;
pub use conv::ConvKernel;
pub use isa::InstructionSet;
pub use matrix::PackedMatrix;
pub use product::ProductPrecision;
pub use rows::StridedRows;
pub use scan::HeadScan;
pub use thread_pool::ThreadPool;
