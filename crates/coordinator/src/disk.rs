//! Free bytes against the reserve: admission stops before the disk fills and resumes when it has room again.

use std::path::{Path, PathBuf};

use rustix::fs::statvfs;

use crate::durable::DurableError;

/// Watches the file system of the run directory.
#[derive(Debug)]
pub struct DiskGate {
    path: PathBuf,
    reserve_bytes: u64,
    resume_bytes: u64,
    open: bool,
}

/// Whether new trajectories may be admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// They may.
    Enough {
        /// Free bytes.
        free_bytes: u64,
    },
    /// Admission waits; what is in hand is finished within the reserve.
    BelowReserve {
        /// Free bytes.
        free_bytes: u64,
        /// Free bytes at which it goes on.
        resume_bytes: u64,
    },
}

impl DiskGate {
    /// A gate that is open until the first look.
    pub fn new(path: impl Into<PathBuf>, reserve_bytes: u64) -> Self {
        // An eighth above the reserve: a shard published or a log rotated near the line must not open and close the gate.
        let resume_bytes = reserve_bytes.saturating_add(reserve_bytes / 8);
        Self { path: path.into(), reserve_bytes, resume_bytes, open: true }
    }

    /// Looks at the disk.
    pub fn look(&mut self) -> Result<Room, DurableError> {
        Ok(self.judge(free_bytes(&self.path)?))
    }

    /// Decides on a number of free bytes.
    pub fn judge(&mut self, free_bytes: u64) -> Room {
        let needed = if self.open { self.reserve_bytes } else { self.resume_bytes };
        self.open = free_bytes >= needed;
        if self.open {
            return Room::Enough { free_bytes };
        }
        Room::BelowReserve { free_bytes, resume_bytes: self.resume_bytes }
    }
}

/// Bytes an ordinary user may still write on the file system of `path`.
pub fn free_bytes(path: &Path) -> Result<u64, DurableError> {
    let stat = statvfs(path).map_err(|error| DurableError::on("measure the disk of", path)(error.into()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gate_closes_at_the_reserve_and_opens_above_it() {
        let mut gate = DiskGate::new("unused", 800);
        let looks =
            [(900, true), (800, true), (799, false), (800, false), (899, false), (900, true), (850, true)];
        for (free_bytes, open) in looks {
            let room = gate.judge(free_bytes);
            assert_eq!(matches!(room, Room::Enough { .. }), open, "{free_bytes} free: {room:?}");
        }
    }

    #[test]
    fn no_reserve_never_closes() {
        assert_eq!(DiskGate::new("unused", 0).judge(0), Room::Enough { free_bytes: 0 });
    }

    #[test]
    fn a_real_disk_is_measured() {
        let dir = tempfile::tempdir().unwrap();
        assert!(free_bytes(dir.path()).unwrap() > 0);
        let error = DiskGate::new("/no/such/place", 1).look().unwrap_err();
        assert!(error.to_string().contains("/no/such/place"), "{error}");
    }
}
