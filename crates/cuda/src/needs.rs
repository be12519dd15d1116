//! Memory of a backend before it computes anything: bytes of the device by part, and bytes of host
//! memory that it pins.
//!
//! Both come from the code that allocates: the device's bytes from assigning every buffer an
//! address from 0 on (`arena.rs`), the pinned bytes from splitting them into slabs as `offload.rs`
//! does. `crates/cuda/tests/backend/needs.rs` compares them with the requests to an executor.

use crate::arena::MemoryPlan;
use crate::gpu::STAGING_BYTES;
use crate::offload::BlockSizes;

/// Part of the pinned bytes that every executor with a GPU has, for any model.
pub const STAGING: &str = "staging of copies";
/// Part of the pinned bytes.
const OFFLOADED: &str = "states of idle sessions";
/// Part of the pinned bytes.
const STAGED: &str = "a second set of weights";

/// Bytes by part, of the device and of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryNeeds {
    /// Of the device: one allocation.
    pub device: MemoryPlan,
    /// Of this machine, pinned.
    pub pinned: MemoryPlan,
    /// Bytes of a state slot and of a KV page.
    pub sizes: [u64; 2],
}

impl MemoryNeeds {
    /// `pinned`: bytes for the states of idle sessions, and bytes of weights that are staged on the
    /// host.
    pub(crate) fn new(device: MemoryPlan, sizes: [u64; 2], (offloaded, staged): (u64, u64)) -> Self {
        let mut pinned = MemoryPlan::default();
        pinned.add(STAGING, STAGING_BYTES);
        pinned.add(OFFLOADED, BlockSizes::of(sizes).slabs(offloaded).sum());
        pinned.add(STAGED, staged);
        Self { device, pinned, sizes }
    }

    /// Bytes of pinned memory for the state of a session with this many pages: whole blocks.
    pub fn offloaded_bytes(&self, pages: u32) -> u64 {
        BlockSizes::of(self.sizes).bytes_of(pages)
    }
}
