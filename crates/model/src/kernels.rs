//! What the hot loops are made of: packed matrices and their products, a team of threads, vector mathematics. The only `unsafe` of
//! this crate beside one memory map lives below here.
//!
//! Every product gives each output element by one fixed chain of fused multiply-adds over k = 0, 1, 2, …, whatever the number of rows,
//! the number of threads or the width of the machine's vectors: so a row's result does not depend on its neighbours, bit for bit.

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
mod team;
pub(crate) mod tower;
mod vector;
pub(crate) mod vision_attention;

pub use attention::{Attention, PAGE_KEYS, Page};
pub(crate) use buffer::Buffer;
pub use conv::Conv;
pub use isa::Isa;
pub use matrix::{Compute, Matrix};
pub use rows::Rows;
pub use scan::Scan;
pub use team::Team;
