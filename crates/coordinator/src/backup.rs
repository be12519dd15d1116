//! Backups of run directories: taken while the run goes on, restored as a whole or not at all.
//!
//! A backup is a folder with `run/`, a run directory that a start would accept, and `backup.json`,
//! which lists every file in it with its hash and is written last. [`take_backup`] makes one and
//! [`restore_backup`] makes a run directory of it.

mod copy;
mod error;
mod list;
mod restore;
mod snapshot;
mod take;

pub use error::BackupError;
pub use list::BackupDamage;
pub use restore::{RestoreSummary, restore_backup};
pub use take::{BackupSummary, take_backup};
