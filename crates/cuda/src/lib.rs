//! The model's operations on an NVIDIA GPU. Here is the way from a kernel's source to machine code, and each operation's launch; the
//! `cuda` backend that runs them is not written yet.
//!
//! A kernel is one file of `kernels/` and is carried in the binary. `device.rs` opens a GPU, `compile.rs` makes machine code for it,
//! `ops` check shapes and say how a kernel is launched. CUDA's libraries are loaded at run time: where they are missing, an error says so.
//! Without a GPU the tests compile every kernel and run it on the CPU against `furrow_model::layers`.

pub mod cache;
pub mod compile;
pub mod device;
pub mod launch;
pub mod ops;
pub mod sources;
