//! Opens checkpoints from outside the crate: every oracle checkpoint loads under every naming, and
//! every hostile one is refused.

mod hostile;
mod inspected;
mod loaded;
mod made;
mod updated;
