//! The `cuda` backend: the model on an NVIDIA GPU.
//!
//! A kernel is one file of `kernels/` and is carried in the binary; `compile.rs` makes machine code of it, `ops` check shapes and say how it is launched.
//! Above them nobody knows what a GPU is: `backend.rs` plans memory, describes batches and gives launches and matrix products to an executor
//! (`executor.rs`), in order. `gpu.rs` is the executor that has a GPU (`device.rs` opens it); CUDA's libraries are loaded at run time, and where they are
//! missing, an error says so. Without a GPU the tests compile every kernel, hold it to `furrow_model::layers` on the CPU, and run the whole backend on
//! an executor of air against `furrow_model::cpu`.

mod arena;
pub mod backend;
mod batch;
pub mod cache;
pub mod compile;
pub mod device;
mod draw;
mod encode;
pub mod executor;
mod forward;
pub mod gpu;
mod latch;
pub mod launch;
pub mod measure;
pub mod needs;
pub mod ops;
mod parking;
pub mod sources;
mod state;
pub mod types;
mod unsupported;
mod weights;
mod work;

pub use self::arena::Plan;
pub use self::weights::LoadError;
