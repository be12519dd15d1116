//! Opens checkpoints from outside the crate: every oracle checkpoint loads under every naming, and
//! every hostile one is refused.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "checkpoint/made.rs"]
mod made;

#[path = "checkpoint/hostile.rs"]
mod hostile;
#[path = "checkpoint/inspected.rs"]
mod inspected;
#[path = "checkpoint/loaded.rs"]
mod loaded;
#[path = "checkpoint/updated.rs"]
mod updated;
