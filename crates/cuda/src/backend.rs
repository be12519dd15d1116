//! The `cuda` backend: computes what `furrow_model::cpu` defines, through an executor.
//!
//! All memory is one allocation, planned before it is made (`arena.rs`, `backend/allocation.rs`). A
//! batch is described in one buffer (`batch.rs`), which takes one copy to the device, and then run
//! (`forward.rs`): decode batches as graphs, recorded once a bucket; all others directly
//! (`backend/batches.rs`). Tiles go through the tower on a lane of their own, and a batch waits for
//! them only if it shows one (`backend/features.rs`). Offloaded states also have a lane of their
//! own (`offload.rs`), and a batch waits for them only if it uses their slot or pages
//! (`backend/states.rs`). New weights are copied beside running batches and swapped in between two
//! (`backend/staging.rs`, `backend/exchange.rs`). Any failure ends the backend (`latch.rs`): the
//! call that detects it and every later one return that failure and nothing else.

mod allocation;
mod batches;
mod capacity;
mod copy;
mod cuda;
mod error;
mod exchange;
mod features;
mod interface;
mod open;
mod options;
mod origin;
mod staging;
mod states;

pub use self::capacity::{checkpoint_needs, needs, plan};
pub use self::error::{CudaOpenError, SwapError};
pub use self::interface::DeviceBackend;
pub use self::open::open;
pub(crate) use self::open::open_noise;
pub use self::options::{BackendOptions, ModelPrecision, StagingMode};
