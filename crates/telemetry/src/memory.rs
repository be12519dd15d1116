//! Memory that is available to this process: what the machine has, and what the limits of its
//! control groups leave.
//!
//! In a container /proc/meminfo describes the whole machine; the limit that counts there is that of
//! the container's control group. Groups are only read here, never created: they belong to whatever
//! started the process.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// Bytes that can be allocated before the machine or one of this process's control groups is out of
/// memory; `None` if the kernel does not report them.
///
/// Memory that the kernel can reclaim (file pages) counts as available: `MemAvailable` of
/// /proc/meminfo, and in a group `limit - (usage - inactive_file - active_file)`.
pub fn available_bytes() -> Option<u64> {
    let machine = available_in_machine(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let groups = read("/proc/self/cgroup");
    let mounts = read("/proc/self/mountinfo");
    let left = group_folders(&groups, &mounts)
        .into_iter()
        .filter_map(|(kind, folder)| available_in_group(kind, &folder));
    Some(left.fold(machine, u64::min))
}

/// Resident bytes of this process tree, as the exporter last measured them; `None` before the first
/// measurement.
pub fn taken_bytes() -> Option<u64> {
    crate::process_metrics().tree_rss_bytes.get().and_then(|bytes| u64::try_from(bytes).ok())
}

/// The two versions of control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CgroupVersion {
    V1,
    V2,
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn available_in_machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// Directories of this process's groups that count memory, each with those above it: a limit
/// applies to everything below.
fn group_folders(groups: &str, mounts: &str) -> Vec<(CgroupVersion, PathBuf)> {
    let group_of = |kind: CgroupVersion| {
        groups.lines().find_map(|line| {
            // `hierarchy:controllers:path`; version 2 lists no controllers.
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            match kind {
                CgroupVersion::V1 => controllers.split(',').any(|one| one == "memory"),
                CgroupVersion::V2 => controllers.is_empty(),
            }
            .then(|| PathBuf::from(path))
        })
    };
    let mut folders = Vec::new();
    for (kind, root, point) in mounts.lines().filter_map(mount) {
        let Some(group) = group_of(kind) else { continue };
        // A container may see its own group as the root, or less of the tree than the name
        // contains.
        let below = group.strip_prefix(&root).ok().filter(|below| below.components().all(is_plain));
        let lowest = below.map_or(point.clone(), |below| point.join(below));
        let above = lowest.ancestors().take_while(|folder| folder.starts_with(&point));
        folders.extend(above.map(|folder| (kind, folder.to_owned())));
    }
    folders
}

fn is_plain(part: Component<'_>) -> bool {
    matches!(part, Component::Normal(_))
}

/// Version, root and mount point of a mount that counts memory: a line of /proc/self/mountinfo.
fn mount(line: &str) -> Option<(CgroupVersion, PathBuf, PathBuf)> {
    // `36 35 98:0 /root /point options optional... - type source super-options`
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let mut right = right.split(' ');
    let root = left.next()?;
    let point = left.next()?;
    let kind = match (right.next()?, right.nth(1)?) {
        ("cgroup2", _) => CgroupVersion::V2,
        ("cgroup", options) if options.split(',').any(|one| one == "memory") => CgroupVersion::V1,
        _ => return None,
    };
    Some((kind, root.into(), point.into()))
}

/// Bytes that a group leaves; `None` if it has no limit.
fn available_in_group(kind: CgroupVersion, folder: &Path) -> Option<u64> {
    // File pages are reclaimed when memory is needed, also those read twice: a checkpoint that was
    // mapped earlier does not count as taken.
    let (limit, usage, files) = match kind {
        CgroupVersion::V1 => {
            ("memory.limit_in_bytes", "memory.usage_in_bytes", ["total_inactive_file ", "total_active_file "])
        }
        CgroupVersion::V2 => ("memory.max", "memory.current", ["inactive_file ", "active_file "]),
    };
    let read = |name| fs::read_to_string(folder.join(name)).ok();
    let number = |name| read(name)?.trim().parse::<u64>().ok();
    // "max", or no file at all in the root group: no limit. Version 1 writes a huge number instead,
    // which leaves as much.
    let limit = number(limit)?;
    let stat = read("memory.stat").unwrap_or_default();
    let count =
        |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    let cached = files.into_iter().filter_map(count).fold(0, u64::saturating_add);
    Some(limit.saturating_sub(number(usage)?.saturating_sub(cached)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n";

    #[track_caller]
    fn check(groups: &str, mounts: &str, want: &[&str]) {
        let got: Vec<_> = group_folders(groups, mounts).into_iter().map(|(_, folder)| folder).collect();
        assert_eq!(got, want.iter().map(PathBuf::from).collect::<Vec<_>>(), "{groups:?}");
    }

    #[test]
    fn our_groups_are_found_with_those_above() {
        let a = "/sys/fs/cgroup/a";
        let ab = "/sys/fs/cgroup/a/b.service";
        check("0::/a/b.service\n", V2, &[ab, a, "/sys/fs/cgroup"]);
        check("0::/\n", V2, &["/sys/fs/cgroup"]);
        let top = "/sys/fs/cgroup/memory";
        let x = "/sys/fs/cgroup/memory/x";
        check("8:pids:/p\n4:memory:/x\n0::/\n", V1, &[x, top]);
        check("5:cpu,memory:/x\n", V1, &[x, top]);
        // A container that sees its group as the root of the mount, and one that sees less than the
        // name contains.
        let mount_line = "35 31 0:32 /docker/7 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        check("4:memory:/docker/7/job\n", mount_line, &["/sys/fs/cgroup/memory/job", top]);
        check("0::/../other\n", V2, &["/sys/fs/cgroup"]);
        check("", V2, &[]);
        check("0::/a\n", "", &[]);
        check("nonsense\n0:\n", "nonsense\n1 2 - \n1 2 3 / /p - cgroup2\n", &[]);
    }

    #[test]
    fn a_limit_leaves_what_is_not_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        assert_eq!(available_in_group(CgroupVersion::V2, folder.path()), None);
        put("memory.max", "max\n");
        put("memory.current", "700\n");
        put("memory.stat", "anon 500\ninactive_file 200\nactive_file 5\n");
        assert_eq!(available_in_group(CgroupVersion::V2, folder.path()), None);
        put("memory.max", "1000\n");
        assert_eq!(available_in_group(CgroupVersion::V2, folder.path()), Some(505)); // 1000 - (700 - 200 - 5)
        put("memory.max", "400\n");
        assert_eq!(available_in_group(CgroupVersion::V2, folder.path()), Some(0));
        put("memory.limit_in_bytes", "1000\n");
        put("memory.usage_in_bytes", "900\n");
        put("memory.stat", "inactive_file 1\ntotal_inactive_file 300\ntotal_active_file 100\n");
        // 1000 - (900 - 300 - 100)
        assert_eq!(available_in_group(CgroupVersion::V1, folder.path()), Some(500));
    }

    #[test]
    fn this_machine_reports_available_memory() {
        let machine = available_in_machine(&read("/proc/meminfo")).unwrap();
        let left = available_bytes().unwrap();
        // Other processes allocate and free meanwhile; no machine frees a tenth of its memory
        // between two lines.
        assert!(left > 0 && left <= machine + machine / 10, "{left} of {machine}");
        assert_eq!(available_in_machine("MemTotal: 1 kB\nMemAvailable:    2048 kB\n"), Some(2 << 20));
        assert_eq!(available_in_machine("MemTotal: 1 kB\n"), None);
    }
}
