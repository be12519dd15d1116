//! Compares free bytes with the reserve: admission stops before the disk fills and resumes once
//! enough is free.

use std::path::{Path, PathBuf};

use rustix::fs::statvfs;

use crate::durable::DurableError;

/// Watches the file system of the run directory.
#[derive(Debug)]
pub(crate) struct DiskGate {
    path: PathBuf,
    reserve_bytes: u64,
    resume_bytes: u64,
    open: bool,
}

/// Whether new trajectories may be admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskCapacity {
    Enough {
        free_bytes: u64,
    },
    /// Admission waits; running trajectories finish within the reserve.
    BelowReserve {
        free_bytes: u64,
        /// Free bytes at which admission resumes.
        resume_bytes: u64,
    },
}

impl DiskGate {
    /// A gate that is open until the first measurement.
    pub(crate) fn new(path: impl Into<PathBuf>, reserve_bytes: u64) -> Self {
        // An eighth above the reserve: a shard or a rotated log near the limit must not make the
        // gate flap.
        let resume_bytes = reserve_bytes.saturating_add(reserve_bytes / 8);
        Self { path: path.into(), reserve_bytes, resume_bytes, open: true }
    }

    pub(crate) fn measure(&mut self) -> Result<DiskCapacity, DurableError> {
        Ok(self.update(free_bytes(&self.path)?))
    }

    /// What is said while admission waits for the disk. It waits without a deadline: what is
    /// collected stays, and only a person can free space.
    pub(crate) fn describe_low(&self, resume_bytes: u64) -> String {
        let gib = |bytes: u64| format!("{:.2} GiB", bytes as f64 / (1u64 << 30) as f64);
        format!(
            "the disk of {} has less free than records.disk_reserve_bytes = {} ({}); nothing new starts until \
             {} are free: free space, or stop the run and continue later with --resume",
            self.path.display(),
            self.reserve_bytes,
            gib(self.reserve_bytes),
            gib(resume_bytes)
        )
    }

    /// Updates the gate from a number of free bytes.
    pub(crate) fn update(&mut self, free_bytes: u64) -> DiskCapacity {
        let needed = if self.open { self.reserve_bytes } else { self.resume_bytes };
        self.open = free_bytes >= needed;
        if self.open {
            return DiskCapacity::Enough { free_bytes };
        }
        DiskCapacity::BelowReserve { free_bytes, resume_bytes: self.resume_bytes }
    }
}

/// Bytes an unprivileged user may still write on the file system of `path`.
pub(crate) fn free_bytes(path: &Path) -> Result<u64, DurableError> {
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
            let capacity = gate.update(free_bytes);
            assert_eq!(
                matches!(capacity, DiskCapacity::Enough { .. }),
                open,
                "{free_bytes} free: {capacity:?}"
            );
        }
    }

    #[test]
    fn a_full_disk_is_described_by_key_and_in_units_of_people() {
        let mut gate = DiskGate::new("/runs/a", 2 << 30);
        let DiskCapacity::BelowReserve { resume_bytes, .. } = gate.update(5) else { panic!("it is open") };
        let text = gate.describe_low(resume_bytes);
        for part in ["/runs/a", "records.disk_reserve_bytes = 2147483648 (2.00 GiB)", "2.25 GiB", "--resume"]
        {
            assert!(text.contains(part), "{part:?} is missing in {text:?}");
        }
    }

    #[test]
    fn no_reserve_never_closes() {
        assert_eq!(DiskGate::new("unused", 0).update(0), DiskCapacity::Enough { free_bytes: 0 });
    }

    #[test]
    fn a_real_disk_is_measured() {
        let dir = tempfile::tempdir().unwrap();
        assert!(free_bytes(dir.path()).unwrap() > 0);
        let error = DiskGate::new("/no/such/place", 1).measure().unwrap_err();
        assert!(error.to_string().contains("/no/such/place"), "{error}");
    }
}
