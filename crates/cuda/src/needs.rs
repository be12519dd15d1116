//! What a backend takes before it computes anything: bytes of the device by part, and bytes of this machine's memory that it pins.
//!
//! Both come from the code that allocates: the device's bytes from placing every buffer from address 0 (`arena.rs`), the pinned bytes from cutting slabs as
//! `parking.rs` pins them. `crates/cuda/tests/backend/needs.rs` holds them to what an executor is asked for.

use crate::arena::Plan;
use crate::gpu::STAGING_BYTES;
use crate::parking::Blocks;

/// Part of the pinned bytes: what every executor with a GPU has, whatever the model.
pub const STAGING: &str = "staging of copies";
/// Part of the pinned bytes.
const PARKED: &str = "states of idle sessions";
/// Part of the pinned bytes.
const STAGED: &str = "a second set of weights";

/// Bytes by part, of a device and of the machine around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needs {
    /// Of the device: one allocation.
    pub device: Plan,
    /// Of this machine, pinned.
    pub pinned: Plan,
    /// Bytes of a state slot and of a KV page.
    pub sizes: [u64; 2],
}

impl Needs {
    /// `pinned`: bytes given to the states of idle sessions, and bytes of weights that are staged on the host.
    pub(crate) fn new(device: Plan, sizes: [u64; 2], (parked, staged): (u64, u64)) -> Self {
        let mut pinned = Plan::default();
        pinned.add(STAGING, STAGING_BYTES);
        pinned.add(PARKED, Blocks::of(sizes).slabs(parked).sum());
        pinned.add(STAGED, staged);
        Self { device, pinned, sizes }
    }

    /// Bytes of pinned memory that the state of a session with so many pages takes: whole blocks.
    pub fn parked_bytes(&self, pages: u32) -> u64 {
        Blocks::of(self.sizes).bytes_of(pages)
    }
}
