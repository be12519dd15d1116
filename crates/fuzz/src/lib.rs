//! Fuzz targets: one for each kind of input that comes from outside, with its bounds, its first
//! inputs and what holds of an input that is accepted.
//!
//! `main.rs` runs one target under libFuzzer. `tests/integration/` runs all of them for some
//! seconds and writes the first inputs anew; `tests/long.sh fuzz` runs each for an hour, guided by
//! coverage. An input that breaks a promise ends the process, and libFuzzer keeps it.

mod bounds;
mod change;
mod files;
mod images;
mod models;
mod target;
mod targets;

pub(crate) use bounds::accept;
pub use bounds::{accepts, begin, examine};
pub use change::change;
pub use target::{FuzzTarget, RepairFn, Seed};
pub use targets::{TARGETS, target_of_environment};
