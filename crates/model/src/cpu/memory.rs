//! Memory that this process may still take: what the system has available, and what a container's
//! limit leaves.

use std::fs;
use std::path::Path;

/// Available bytes, or `None` where the system does not report them (not Linux).
pub(super) fn available() -> Option<u64> {
    let system = fs::read_to_string("/proc/meminfo").ok().and_then(|text| meminfo_available(&text))?;
    Some(cgroup_available(Path::new("/sys/fs/cgroup")).map_or(system, |group| group.min(system)))
}

/// The line `MemAvailable:    7856772 kB`: what new programs can allocate without swapping.
fn meminfo_available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// What a limit of control groups (version 2, as a container sees its own) leaves; `None` without a
/// limit. Such groups count pages of files as used, but the kernel can reclaim them.
fn cgroup_available(dir: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(dir.join(name)).ok();
    let limit: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    let files = read("memory.stat").and_then(|text| inactive_file_bytes(&text)).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(files)))
}

/// The line `inactive_file 123456`, in bytes.
fn inactive_file_bytes(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("inactive_file "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_and_nonsense_is_not() {
        let text = "MemTotal:       16384000 kB\nMemFree:  100 kB\nMemAvailable:    7856772 kB\n";
        assert_eq!(meminfo_available(text), Some(7_856_772 * 1024));
        for text in ["", "MemAvailable:", "MemAvailable: many kB", "MemAvailable: 99999999999999999999 kB"] {
            assert_eq!(meminfo_available(text), None, "{text}");
        }
    }

    #[test]
    fn a_cgroup_leaves_its_limit_minus_unreclaimable_use() {
        #[track_caller]
        fn check(files: &[(&str, &str)], want: Option<u64>) {
            let dir = tempfile::tempdir().unwrap();
            for (name, text) in files {
                fs::write(dir.path().join(name), text).unwrap();
            }
            assert_eq!(cgroup_available(dir.path()), want, "{files:?}");
        }
        let used = ("memory.current", "3000\n");
        check(&[], None);
        check(&[("memory.max", "max\n"), used], None);
        check(&[("memory.max", "8000\n"), used], Some(5000));
        let stat = ("memory.stat", "anon 2000\ninactive_file 700\nactive_file 300\n");
        check(&[("memory.max", "8000\n"), used, stat], Some(5700));
        check(&[("memory.max", "2000\n"), used], Some(0));
    }
}
