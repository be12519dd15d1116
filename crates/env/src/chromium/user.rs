//! The ordinary user that a browser runs as when the worker is root, and what it is left with: no
//! variable of the worker's environment, and no way to gain privileges.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use rustix::process::geteuid;

use super::error::BrowserError;
use crate::config::BrowserConfig;
use crate::namespace::{NetworkNamespace, SEARCH_PATH};

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
///
/// It inherits no variable of the worker, whose environment may hold keys: a page that breaks out
/// of its renderer, or another process of the same user, could read them. Unless
/// [`privileges_problem`] has a reason, it can gain no privileges either: no program that it starts
/// may change its user, and its capability bounding set is empty.
pub(super) fn as_user(owner: OwnerIds, config: &BrowserConfig) -> Command {
    as_user_inside(None, owner, config)
}

/// The same inside a network namespace.
pub(super) fn as_user_inside(
    namespace: Option<&NetworkNamespace>,
    owner: OwnerIds,
    config: &BrowserConfig,
) -> Command {
    command_as(namespace, owner, privileges_problem(owner, config).is_none())
}

fn command_as(namespace: Option<&NetworkNamespace>, owner: OwnerIds, is_unprivileged: bool) -> Command {
    let mut command = match namespace {
        Some(namespace) => {
            // The browser's user may not enter; once inside, it may not leave.
            let mut entering = Command::new("nsenter");
            entering.args(namespace.entering()).arg("setpriv");
            entering
        }
        None => Command::new("setpriv"),
    };
    command.env_clear().env("PATH", SEARCH_PATH).env("LANG", "C.UTF-8");
    command.arg("--pdeathsig=KILL");
    if let Some((user, group)) = owner {
        command.arg(format!("--reuid={user}")).arg(format!("--regid={group}")).arg("--clear-groups");
    }
    if is_unprivileged {
        command.arg("--no-new-privs");
        // Only a privileged process may empty the set; that of an ordinary user grants nothing.
        if owner.is_some() {
            command.args(["--bounding-set=-all", "--inh-caps=-all"]);
        }
    }
    command.arg("--");
    command
}

/// Why the browser may not be kept from gaining privileges; `None` if it is. Found out once.
///
/// Chromium's sandbox needs user namespaces. Where the browser's user may not create them, it is a
/// program that may become root for a moment, which nothing then may prevent. Without the sandbox
/// nothing does.
pub(super) fn privileges_problem(owner: OwnerIds, config: &BrowserConfig) -> Option<&'static str> {
    static WITH_SANDBOX: OnceLock<Option<String>> = OnceLock::new();
    static WITHOUT: OnceLock<Option<String>> = OnceLock::new();
    let problem = match config.sandbox {
        true => WITH_SANDBOX.get_or_init(|| namespaces_problem(owner)),
        false => WITHOUT.get_or_init(|| try_without_privileges(owner, &["true"])),
    };
    problem.as_deref()
}

/// Why the browser's user may not create user namespaces without privileges.
fn namespaces_problem(owner: OwnerIds) -> Option<String> {
    // AppArmor then lets any program create one, and takes from it what the sandbox needs.
    let restricted = fs::read_to_string("/proc/sys/kernel/apparmor_restrict_unprivileged_userns");
    if restricted.is_ok_and(|value| value.trim() == "1") {
        return Some("kernel.apparmor_restrict_unprivileged_userns is 1".into());
    }
    try_without_privileges(owner, &["unshare", "--user", "true"])
}

/// Runs a program that can gain no privileges; returns why it failed.
fn try_without_privileges(owner: OwnerIds, program: &[&str]) -> Option<String> {
    let mut trial = command_as(None, owner, true);
    trial.args(program).current_dir("/").stdin(Stdio::null());
    match trial.output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("setpriv: {error}")),
    }
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
