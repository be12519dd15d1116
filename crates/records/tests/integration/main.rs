//! Data sets on a disk and in memory: written, committed, merged and read through the public
//! interface.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod checkpoint;
mod earlier;
mod manifest;
mod merge;
mod retention;
mod round_trip;
mod row_sizes;
mod shard;
