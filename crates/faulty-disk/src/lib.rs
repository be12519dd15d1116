//! For tests: a folder that behaves like a disk with a bad day. What was not synced may vanish in a
//! power cut, operations fail, and everything derives from one seed.
//!
//! The crate defines the C functions that change files (`open`, `write`, `fsync`, `rename` and
//! others), so a program that links it calls them instead of the C library's. Below the folder of a
//! [`FaultyDisk`] they count, fail and remember; elsewhere they only pass calls on. Code under test
//! stays as it is, SQLite included. Files that are mapped into memory to be written are not
//! covered; a disk treats names without a kind as lost in every crash.
//!
//! The files themselves hold what a running process sees. A model beside them holds what is
//! durable: contents as of the last `fsync`, names as of the last `fsync` of their folder. A power
//! cut rebuilds the folder from the model and a random part of what was pending.

mod calls;
mod coverage;
mod disk;
mod fault;
mod interpose;
mod model;
mod raw;
mod shared;
mod state;
mod survival;

#[cfg(test)]
mod tests;

pub use coverage::{Coverage, SiteCoverage};
pub use disk::{Damage, FaultyDisk};
pub use fault::{Crash, FaultKind, Operation, Site};
pub use state::DiskLabels;

/// A folder for disks: in memory, where the system has one there.
pub fn scratch() -> std::path::PathBuf {
    let memory = std::path::Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}
