//! The `cuda` backend: the model on an NVIDIA GPU.
//!
//! A kernel is one file of `kernels/`, embedded in the binary. `compile.rs` compiles it to machine
//! code; `ops` checks shapes and determines its launch. The code above is independent of GPUs:
//! `backend.rs` plans memory, describes batches and submits launches and matrix products to an
//! executor (`executor.rs`), in order. `gpu.rs` is the executor for a GPU, which `device.rs` opens.
//! CUDA's libraries are loaded at run time; if they are missing, an error says so. Without a GPU
//! the tests compile every kernel, compare it with `furrow_model::layers` on the CPU, and compare
//! the whole backend, on an executor that runs on the host, with `furrow_model::cpu`.

mod arena;
pub mod backend;
mod batch;
pub mod cache;
pub mod compile;
pub mod device;
mod encode;
pub mod executor;
mod forward;
pub mod gpu;
mod latch;
pub mod launch;
pub mod measure;
pub mod needs;
mod offload;
pub mod ops;
mod sampling;
pub mod sources;
mod state;
pub mod types;
mod unsupported;
mod weights;
mod work;

pub use self::arena::MemoryPlan;
pub use self::weights::LoadError;
