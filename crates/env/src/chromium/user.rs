//! The ordinary user that a browser runs as when the worker is root.

use std::fs;
use std::process::Command;

use rustix::process::geteuid;

use super::error::BrowserError;
use crate::config::BrowserConfig;

/// Whether this process may start browsers as another user.
pub fn is_root() -> bool {
    geteuid().is_root()
}

/// User and group id that a browser runs as when the worker is root.
pub(super) type OwnerIds = Option<(u32, u32)>;

/// Looks the configured user up; `None` when the worker is an ordinary user itself.
pub(super) fn owner(config: &BrowserConfig) -> Result<OwnerIds, BrowserError> {
    if !is_root() {
        return Ok(None);
    }
    let passwd = fs::read_to_string("/etc/passwd")
        .map_err(|source| BrowserError::Io { what: "read /etc/passwd", source })?;
    find(&passwd, &config.user).map(Some).ok_or_else(|| BrowserError::NoUser {
        user: config.user.clone(),
        suggested: suggested(&passwd, &config.user),
    })
}

/// User and group id of an ordinary user.
fn find(passwd: &str, user: &str) -> Option<(u32, u32)> {
    let fields = entries(passwd).find(|fields| fields[0] == user)?;
    let ids = (fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?);
    (ids.0 != 0).then_some(ids)
}

/// Another ordinary user of the machine: `nobody`, else the first that a person may be.
fn suggested(passwd: &str, absent: &str) -> Option<String> {
    let ordinary = |name: &str| name != absent && find(passwd, name).is_some();
    if ordinary("nobody") {
        return Some("nobody".to_owned());
    }
    let is_a_persons = |fields: &Vec<&str>| {
        let id = fields.get(2).and_then(|id| id.parse::<u32>().ok());
        id.is_some_and(|id| (1000..60_000).contains(&id)) && ordinary(fields[0])
    };
    entries(passwd).find(is_a_persons).map(|fields| fields[0].to_owned())
}

fn entries(passwd: &str) -> impl Iterator<Item = Vec<&str>> {
    passwd.lines().map(|line| line.split(':').collect())
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

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1::/:/bin/false\nann:x:1000:1000::/home/ann:/bin/sh\n";

    #[test]
    fn a_missing_user_is_never_suggested() {
        let nobody = format!("{PASSWD}nobody:x:65534:65534::/:/bin/false\n");
        assert_eq!(find(&nobody, "nobody"), Some((65534, 65534)));
        assert_eq!((find(&nobody, "root"), find(&nobody, "bob")), (None, None));
        assert_eq!(suggested(&nobody, "bob").as_deref(), Some("nobody"));
        assert_eq!(suggested(PASSWD, "nobody").as_deref(), Some("ann"));
        assert_eq!(suggested("root:x:0:0::/:/bin/sh\n", "nobody"), None);
        let error = BrowserError::NoUser { user: "nobody".into(), suggested: None }.to_string();
        assert!(error.contains("useradd") && !error.contains("such as"), "{error}");
    }
}
