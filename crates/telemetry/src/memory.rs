//! How much memory is left to this process: what the machine has, and what the control groups it was put into leave it.
//!
//! In a container /proc/meminfo tells of the whole machine; what counts there is the limit of the container, which is a control group's.
//! Groups are only read here, never made: they belong to whoever started us.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// Bytes that can be taken before the machine or one of our control groups is out of memory; `None` where the kernel does not say.
///
/// Memory the kernel can give back (files read once) counts as left: `MemAvailable` of /proc/meminfo, and in a group
/// `limit - (usage - inactive_file)`.
pub fn available_bytes() -> Option<u64> {
    let machine = available_in_machine(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let (groups, mounts) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo"));
    let left = folders(&groups, &mounts).into_iter().filter_map(|(kind, folder)| left_in(kind, &folder));
    Some(left.fold(machine, u64::min))
}

/// Resident bytes of this process and all that it started, as the exporter measured them last; `None` before the first time.
pub fn taken_bytes() -> Option<u64> {
    crate::figures().tree_rss_bytes.get().and_then(|bytes| u64::try_from(bytes).ok())
}

/// The two generations of control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
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

/// Folders of the groups we are in that count memory, each with those above it: a limit holds for everything below.
fn folders(groups: &str, mounts: &str) -> Vec<(Kind, PathBuf)> {
    let group_of = |kind: Kind| {
        groups.lines().find_map(|line| {
            // `hierarchy:controllers:path`; the second generation has no controllers there.
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            match kind {
                Kind::V1 => controllers.split(',').any(|one| one == "memory"),
                Kind::V2 => controllers.is_empty(),
            }
            .then(|| PathBuf::from(path))
        })
    };
    let mut folders = Vec::new();
    for (kind, root, point) in mounts.lines().filter_map(mount) {
        let Some(group) = group_of(kind) else { continue };
        // A container may be shown its own group as the root, or less of the tree than its name tells.
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

/// Kind, root and place of a mount that counts memory: a line of /proc/self/mountinfo.
fn mount(line: &str) -> Option<(Kind, PathBuf, PathBuf)> {
    // `36 35 98:0 /root /point options optional... - type source super-options`
    let (left, right) = line.split_once(" - ")?;
    let (mut left, mut right) = (left.split(' ').skip(3), right.split(' '));
    let (root, point) = (left.next()?, left.next()?);
    let kind = match (right.next()?, right.nth(1)?) {
        ("cgroup2", _) => Kind::V2,
        ("cgroup", options) if options.split(',').any(|one| one == "memory") => Kind::V1,
        _ => return None,
    };
    Some((kind, root.into(), point.into()))
}

/// What a group leaves; `None` if it has no limit.
fn left_in(kind: Kind, folder: &Path) -> Option<u64> {
    // Pages of files go when others need them, those that were read twice, too: a checkpoint that was mapped before is no memory that is taken.
    let (limit, usage, files) = match kind {
        Kind::V1 => {
            ("memory.limit_in_bytes", "memory.usage_in_bytes", ["total_inactive_file ", "total_active_file "])
        }
        Kind::V2 => ("memory.max", "memory.current", ["inactive_file ", "active_file "]),
    };
    let read = |name| fs::read_to_string(folder.join(name)).ok();
    let number = |name| read(name)?.trim().parse::<u64>().ok();
    // "max", or no file at all in the root: no limit. The first generation writes a huge number instead, which leaves as much.
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
        let got: Vec<_> = folders(groups, mounts).into_iter().map(|(_, folder)| folder).collect();
        assert_eq!(got, want.iter().map(PathBuf::from).collect::<Vec<_>>(), "{groups:?}");
    }

    #[test]
    fn our_groups_are_found_with_those_above() {
        let (a, ab) = ("/sys/fs/cgroup/a", "/sys/fs/cgroup/a/b.service");
        check("0::/a/b.service\n", V2, &[ab, a, "/sys/fs/cgroup"]);
        check("0::/\n", V2, &["/sys/fs/cgroup"]);
        let (top, x) = ("/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/x");
        check("8:pids:/p\n4:memory:/x\n0::/\n", V1, &[x, top]);
        check("5:cpu,memory:/x\n", V1, &[x, top]);
        // A container that is shown its group as the root of the mount, and one that sees less than its name says.
        let shown = "35 31 0:32 /docker/7 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        check("4:memory:/docker/7/job\n", shown, &["/sys/fs/cgroup/memory/job", top]);
        check("0::/../other\n", V2, &["/sys/fs/cgroup"]);
        check("", V2, &[]);
        check("0::/a\n", "", &[]);
        check("nonsense\n0:\n", "nonsense\n1 2 - \n1 2 3 / /p - cgroup2\n", &[]);
    }

    #[test]
    fn a_limit_leaves_what_is_not_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        assert_eq!(left_in(Kind::V2, folder.path()), None);
        put("memory.max", "max\n");
        put("memory.current", "700\n");
        put("memory.stat", "anon 500\ninactive_file 200\nactive_file 5\n");
        assert_eq!(left_in(Kind::V2, folder.path()), None);
        put("memory.max", "1000\n");
        assert_eq!(left_in(Kind::V2, folder.path()), Some(505)); // 1000 - (700 - 200 - 5)
        put("memory.max", "400\n");
        assert_eq!(left_in(Kind::V2, folder.path()), Some(0));
        put("memory.limit_in_bytes", "1000\n");
        put("memory.usage_in_bytes", "900\n");
        put("memory.stat", "inactive_file 1\ntotal_inactive_file 300\ntotal_active_file 100\n");
        assert_eq!(left_in(Kind::V1, folder.path()), Some(500)); // 1000 - (900 - 300 - 100)
    }

    #[test]
    fn this_machine_says_how_much_is_left() {
        let machine = available_in_machine(&read("/proc/meminfo")).unwrap();
        let left = available_bytes().unwrap();
        // Others take and free meanwhile; no machine frees a tenth of itself between two lines.
        assert!(left > 0 && left <= machine + machine / 10, "{left} of {machine}");
        assert_eq!(available_in_machine("MemTotal: 1 kB\nMemAvailable:    2048 kB\n"), Some(2 << 20));
        assert_eq!(available_in_machine("MemTotal: 1 kB\n"), None);
    }
}
