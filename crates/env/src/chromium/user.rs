//! The ordinary user that a browser runs as when the worker is root.

use std::fs;
use std::process::Command;

use rustix::process::geteuid;

use super::error::BrowserError;
use crate::config::BrowserConfig;

/// User and group id that a browser runs as when the worker is root.
pub(super) type OwnerIds = Option<(u32, u32)>;

/// Looks the configured user up; `None` when the worker is an ordinary user itself.
pub(super) fn owner(config: &BrowserConfig) -> Result<OwnerIds, BrowserError> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let passwd = fs::read_to_string("/etc/passwd")
        .map_err(|source| BrowserError::Io { what: "read /etc/passwd", source })?;
    let entry = passwd
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|fields| fields[0] == config.user);
    let ids = entry.and_then(|fields| Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?)));
    match ids {
        Some((0, _)) | None => Err(BrowserError::NoUser { user: config.user.clone() }),
        ids => Ok(ids),
    }
}

/// A command that runs as the browser's user and dies with the thread that starts it; the caller
/// adds the program and its arguments.
pub(super) fn as_user(owner: OwnerIds) -> Command {
    let mut command = Command::new("setpriv");
    command.arg("--pdeathsig=KILL");
    if let Some((user, group)) = owner {
        command.arg(format!("--reuid={user}")).arg(format!("--regid={group}")).arg("--clear-groups");
    }
    command.arg("--");
    command
}
