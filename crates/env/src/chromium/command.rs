//! The command line that starts a browser: its user, its flags, and the descriptors that it speaks
//! DevTools on.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use furrow_rollout::{PageClock, Size, Task};

use super::libraries;
use super::user::{OwnerIds, as_user_inside};
use crate::config::{BlockedPages, BrowserConfig};
use crate::namespace::NetworkNamespace;

/// Becomes the browser (`$@` behind `$1`) if the worker (`$0`) is still the parent. The worker's
/// death ends the browser. `$1`, if not empty, is the library search path of the browser: it is
/// exported here, so that `setpriv` and the shell run with the system's libraries.
///
/// The browser reads DevTools commands from descriptor 3 and answers on descriptor 4. The standard
/// library gives a program 0, 1 and 2 alone, so the pipes arrive as input and output and are moved
/// here.
const START: &str = "[ \"$PPID\" = \"$0\" ] || exit 1; libraries=\"$1\"; shift; \
    [ -z \"$libraries\" ] || export LD_LIBRARY_PATH=\"$libraries\"; \
    exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null";

/// The configuration that a browser is started with; a process serves one kind only, because
/// neither part can be changed while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BrowserKind {
    /// Size of its pages and of the screen: a native list is drawn where the screen has space for
    /// it.
    pub viewport: Size,
    /// Whether the time of its pages stands still except for grants. See [`VIRTUAL_TIME_FLAG`].
    pub virtual_time: bool,
    /// Whether it serves one trajectory, and no other after it.
    pub is_alone: bool,
}

impl BrowserKind {
    /// The kind that a task's pages need.
    pub(super) fn of(task: &Task, config: &BrowserConfig) -> Self {
        Self {
            viewport: task.viewport,
            virtual_time: matches!(task.clock, PageClock::Virtual { .. }),
            is_alone: config.live_processes && BlockedPages::Live.applies_to(task),
        }
    }
}

/// The command of a browser; its input and output are its end of the DevTools pipe.
pub(super) fn command(
    program: &Path,
    profile: &Path,
    owner: OwnerIds,
    config: &BrowserConfig,
    kind: BrowserKind,
    namespace: Option<&NetworkNamespace>,
) -> Command {
    let mut command = as_user_inside(namespace, owner, config);
    command.args(["/bin/sh", "-c", START]).arg(std::process::id().to_string());
    command.arg(libraries::search_path(config));
    command.arg(program).args(flags(config)).arg(format!("--user-data-dir={}", profile.display()));
    if kind.virtual_time {
        command.arg(VIRTUAL_TIME_FLAG);
    }
    let Size { width, height } = kind.viewport;
    command.arg(format!("--screen-info={{{width}x{height}}}")).arg("about:blank");
    command.current_dir("/").env("HOME", profile).env("TMPDIR", profile).env("LANG", "en_US.UTF-8");
    if let Some(fonts) = &config.fonts {
        command.env("FONTCONFIG_FILE", fonts);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    command
}

fn flags(config: &BrowserConfig) -> Vec<String> {
    let mut flags: Vec<String> = FLAGS.iter().map(ToString::to_string).collect();
    flags.push(format!("--lang={}", config.locale));
    if !config.sandbox {
        flags.push("--no-sandbox".into());
    }
    // Containers give 64 MB of shared memory, less than a large screenshot needs.
    if rustix::fs::statvfs("/dev/shm").is_ok_and(|shm| shm.f_blocks * shm.f_frsize < 512 << 20) {
        flags.push("--disable-dev-shm-usage".into());
    }
    flags
}

/// Ends a frame when its stages are done instead of at its deadline.
///
/// Deadlines are points in wall time, but virtual time stops the clock of the whole renderer, its
/// compositor included. Once a policy has computed for longer than its page time, the deadline lies
/// in the future of a stopped clock: a frame without changes (a moved mouse is enough) never ended,
/// no frame came after it, and a screenshot, a wheel event or a drag waited until the page counted
/// as hung. With this flag a page requests frames all the time, 15 ms of CPU per second instead of
/// 8 where time stands still and of 0.1 where it does not (Chromium 156); therefore it is set only
/// where it is needed.
const VIRTUAL_TIME_FLAG: &str = "--run-all-compositor-stages-before-draw";

const FLAGS: &[&str] = &[
    "--headless",
    // A port would answer every process of the machine.
    "--remote-debugging-pipe",
    // Errors only: otherwise the thread that serves all pages writes each line of a page's console
    // a second time.
    "--log-level=2",
    // Disable everything that contacts the browser's vendor.
    "--no-first-run",
    "--no-default-browser-check",
    "--no-pings",
    "--disable-background-networking",
    "--disable-client-side-phishing-detection",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-sync",
    "--disable-breakpad",
    "--disable-quic",
    "--metrics-recording-only",
    "--password-store=basic",
    "--use-mock-keychain",
    "--mute-audio",
    // WebRTC bypasses any proxy unless both spellings carry the value: one works in the headless
    // shell, one in full Chromium.
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    // Pages that are not in front are not throttled as background pages.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    // The same pixels everywhere, and wheel events that are complete when they are answered.
    "--font-render-hinting=none",
    "--disable-lcd-text",
    "--force-color-profile=srgb",
    "--disable-smooth-scrolling",
    "--disable-features=Translate,MediaRouter,OptimizationHints,AutofillServerCommunication,HttpsUpgrades",
];

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::chromium::user::owner;
    use crate::config::EnvFile;

    /// What a test program answers on descriptor 4: the flags it was started with, and what it read
    /// from descriptor 3.
    fn answered(virtual_time: bool, under: impl FnOnce(&Command) -> Command) -> String {
        let folder = tempfile::tempdir().unwrap();
        // The browser's user starts it.
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let program = folder.path().join("program");
        // Written by another process: a program that this one holds open, for however short a time,
        // may not be started.
        let script = "#!/bin/sh\n{ printf '%s ' \"$@\"; cat <&3; } >&4; echo nowhere\n";
        let mut writing = Command::new("/bin/sh");
        writing.args(["-c", "printf %s \"$1\" > \"$0\"; chmod 755 \"$0\""]).arg(&program).arg(script);
        assert!(writing.status().unwrap().success());
        let config = EnvFile::default().check(Path::new("/")).unwrap().browser;
        let owner = owner(&config).unwrap();
        let kind = BrowserKind { viewport: Size::new(512, 512), virtual_time, is_alone: false };
        let command = command(&program, Path::new("/tmp"), owner, &config, kind, None);
        let mut child = under(&command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // Where another process is the parent, no process reads it.
        drop(child.stdin.take().unwrap().write_all(b"commands"));
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    }

    fn same_command(command: &Command) -> Command {
        let mut same = Command::new(command.get_program());
        same.args(command.get_args());
        same
    }

    #[test]
    fn a_browser_starts_under_its_own_worker_only() {
        assert!(answered(false, same_command).ends_with("about:blank commands"));
        // A process between the two is another parent, as init is once the worker is dead.
        let under_another = |command: &Command| {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", "\"$@\"; :", "sh"]).arg(command.get_program()).args(command.get_args());
            shell
        };
        assert_eq!(answered(false, under_another), "");
    }

    /// With the flag, pages in real time cost a hundred times their usual CPU when idle.
    #[test]
    fn frames_without_deadlines_are_for_virtual_time_alone() {
        assert!(answered(true, same_command).contains(VIRTUAL_TIME_FLAG));
        assert!(!answered(false, same_command).contains(VIRTUAL_TIME_FLAG));
    }
}
