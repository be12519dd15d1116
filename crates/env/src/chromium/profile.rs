//! Where a browser's profile lies, and the removal of what dead workers left there.
//!
//! A name has the process id of its worker and the id of the machine's boot: a process id alone may
//! be another program's after a restart, and the remains would lie there until that one ends.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::error::BrowserError;
use super::removal::remove_folder;
use super::user::OwnerIds;

const PREFIX: &str = "furrow-env-";

/// Characters of the boot's id in a name: enough to tell a few boots apart.
const BOOT_CHARS: usize = 8;

/// The folder of a browser, `<temp>/furrow-env-<pid>-<index>-<boot>`.
pub(super) fn profile_path(index: u64) -> PathBuf {
    std::env::temp_dir().join(format!("{PREFIX}{}-{index}-{}", std::process::id(), boot()))
}

/// Creates the profile of the browser with this index, for its user alone.
pub(super) fn make_profile(index: u64, owner: OwnerIds) -> Result<PathBuf, BrowserError> {
    let profile = profile_path(index);
    remove_folder(&profile);
    // Neither other users nor other farms on this machine may read what pages store.
    fs::DirBuilder::new()
        .mode(0o700)
        .create(&profile)
        .map_err(|source| BrowserError::Io { what: "create a profile directory", source })?;
    if let Some((user, group)) = owner {
        chown(&profile, Some(user), Some(group)).map_err(|source| BrowserError::Io {
            what: "give the profile directory to env.browser_user",
            source,
        })?;
    }
    Ok(profile)
}

/// Removes the profiles and the session folders that dead workers of this machine left.
pub(super) fn remove_stale_profiles() {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return };
    let is_alive = |pid: u32| Path::new(&format!("/proc/{pid}")).exists();
    for entry in entries.flatten() {
        if entry.file_name().to_str().is_some_and(|name| is_stale(name, boot(), is_alive)) {
            remove_folder(&entry.path());
        }
    }
}

/// Whether a folder of this name belongs to no living worker. Names of versions before the boot's
/// id have none.
fn is_stale(name: &str, boot: &str, is_alive: impl Fn(u32) -> bool) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    let rest = rest.strip_suffix("-files").unwrap_or(rest);
    let mut parts = rest.split('-');
    let Some(pid) = parts.next().and_then(|pid| pid.parse().ok()) else { return false };
    let is_of_this_boot = parts.nth(1).is_none_or(|named| named == boot);
    !is_of_this_boot || !is_alive(pid)
}

/// The start of the id that the kernel gave this boot; `unknown` where it cannot be read.
fn boot() -> &'static str {
    static BOOT: OnceLock<String> = OnceLock::new();
    BOOT.get_or_init(|| {
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(BOOT_CHARS).collect();
        if digits.is_empty() { "unknown".into() } else { digits }
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_folder_is_stale_when_its_worker_or_its_boot_is_gone() {
        for (name, stale) in [
            ("furrow-env-7-0-0123abcd", false),
            ("furrow-env-7-0-0123abcd-files", false),
            ("furrow-env-8-0-0123abcd", true),
            ("furrow-env-8-0-0123abcd-files", true),
            // The number is another program's since the machine started again.
            ("furrow-env-7-0-ffffffff", true),
            ("furrow-env-7-0-ffffffff-files", true),
            ("furrow-env-7-0-unknown", true),
            // As earlier versions named them.
            ("furrow-env-7-0", false),
            ("furrow-env-8-0", true),
            ("furrow-env-8-0-files", true),
            ("furrow-env-x-0-0123abcd", false),
            ("furrow-environment-8-0", false),
            ("furrow-env-", false),
            ("other-8-0-ffffffff", false),
        ] {
            assert_eq!(is_stale(name, "0123abcd", |pid| pid == 7), stale, "{name}");
        }
    }

    #[test]
    fn a_profile_is_its_users_alone_and_never_stale_while_the_worker_lives() {
        // No browser has this index.
        let path = make_profile(u64::MAX - 1, None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        remove_stale_profiles();
        assert!(path.is_dir());
        remove_folder(&path);
    }
}
