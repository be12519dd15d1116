//! One browser process: finds it, starts it as an ordinary user with its sandbox on, and ends it
//! with everything it started.
//!
//! The packaged `/usr/bin/chromium-headless-shell` is a shell script that does not exec: killing it
//! leaves browsers behind. Therefore the real program is started, in its own process group.
//! `setpriv --pdeathsig=KILL` makes the kernel kill it when the *thread* that started it dies, so
//! that thread is dedicated to the browser and lives as long as it, never one of a pool. The script
//! after `setpriv` covers a worker that dies before that: the browser only starts if its parent is
//! still the one that started it.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use furrow_rollout::{PageClock, Size, Task};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::sync::{oneshot, watch};

use super::error::{BrowserError, LOOKED_FOR};
use super::libraries;
use super::limits::{self, BrowserUsage};
use super::removal::remove_folder;
use super::session_folder::SessionFolders;
use super::user::{OwnerIds, as_user, owner};
use crate::config::BrowserConfig;

/// A start takes 0.2 s; on a machine that starts a hundred contexts at once it took 3 s.
const START_DEADLINE: Duration = Duration::from_secs(30);

/// Becomes the browser (`$@` behind `$1`) if the worker (`$0`) is still the parent. The worker's
/// death ends the browser. `$1`, if not empty, is the library search path of the browser: it is
/// exported here, so that `setpriv` and the shell run with the system's libraries.
const START: &str = "[ \"$PPID\" = \"$0\" ] || exit 1; libraries=\"$1\"; shift; \
    [ -z \"$libraries\" ] || export LD_LIBRARY_PATH=\"$libraries\"; exec \"$@\"";

/// Lines of the browser's own messages that are kept to explain a failure.
const MESSAGES_MAX: usize = 40;

/// Browsers started by this process in all its pools: no two share a profile.
static STARTS: AtomicU64 = AtomicU64::new(0);

/// The configuration that a browser is started with; a process serves one kind only, because
/// neither part can be changed while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BrowserKind {
    /// Size of its pages and of the screen: a native list is drawn where the screen has space for
    /// it.
    pub viewport: Size,
    /// Whether the time of its pages stands still except for grants. See [`VIRTUAL_TIME_FLAG`].
    pub virtual_time: bool,
}

impl BrowserKind {
    /// The kind that a task's pages need.
    pub(super) fn of(task: &Task) -> Self {
        Self { viewport: task.viewport, virtual_time: matches!(task.clock, PageClock::Virtual { .. }) }
    }
}

/// A running browser. Dropping it kills the whole process group and removes its profile and the
/// folders of its sessions.
#[derive(Debug)]
pub(super) struct BrowserProcess {
    pub pid: u32,
    /// Distinguishes the browsers of one worker process.
    pub index: u64,
    /// Address of its DevTools.
    pub address: String,
    messages: Arc<Mutex<VecDeque<String>>>,
    ended: watch::Receiver<bool>,
    profile: PathBuf,
    pub session_folders: SessionFolders,
    /// Its resource use, as the polling thread measured it last.
    pub account: Arc<BrowserUsage>,
}

impl BrowserProcess {
    /// Starts a browser and waits until it listens.
    pub(super) async fn start(config: &BrowserConfig, kind: BrowserKind) -> Result<Self, BrowserError> {
        let index = STARTS.fetch_add(1, Ordering::Relaxed);
        let program = find_program(config.path.as_deref())?;
        let owner = owner(config)?;
        let session_folders = SessionFolders::create(index)
            .map_err(|source| BrowserError::Io { what: "create a folder for files of tasks", source })?;
        let profile = make_profile(index, owner)?;
        let command = command(&program, &profile, owner, config, kind);
        let (listening, listens) = oneshot::channel();
        let (end, ended) = watch::channel(false);
        let messages = Arc::new(Mutex::new(VecDeque::new()));
        let (spawned, pid) = oneshot::channel();
        let kept = messages.clone();
        let (alive, gone) = sync_channel(0);
        // This thread starts the browser, reads its messages and outlives it: see the top of the
        // file.
        std::thread::Builder::new()
            .name(format!("browser-{index}"))
            .spawn(move || {
                own_browser(command, spawned, listening, &kept, &end);
                // Nothing is ever sent: the polling thread notices when the sender is dropped.
                drop::<SyncSender<()>>(alive);
            })
            .map_err(|source| BrowserError::Io { what: "start a thread for the browser", source })?;
        let pid = match pid.await {
            Ok(Ok(pid)) => pid,
            Ok(Err(source)) => {
                remove_folder(&profile);
                return Err(BrowserError::Io {
                    what: "start the browser (is setpriv of util-linux there?)",
                    source,
                });
            }
            Err(_) => return Err(BrowserError::Start { path: program, messages: "its thread ended".into() }),
        };
        let account = Arc::new(BrowserUsage::default());
        let mut process = Self {
            pid,
            index,
            address: String::new(),
            messages,
            ended,
            profile,
            session_folders,
            account: account.clone(),
        };
        let name = process.name();
        let bounds = config.limits;
        std::thread::Builder::new()
            .name(format!("limits-{index}"))
            .spawn(move || limits::enforce_limits(pid, &name, bounds, &account, &gone))
            .map_err(|source| BrowserError::Io { what: "start a thread for the browser", source })?;
        match tokio::time::timeout(START_DEADLINE, listens).await {
            Ok(Ok(address)) => process.address = address,
            _ => {
                let last_messages = process.messages();
                let config = config.clone();
                let path = program.clone();
                let kept = last_messages.clone();
                // This runs the loader, which reads every library once.
                let why = tokio::task::spawn_blocking(move || {
                    libraries::explain_start_failure(&program, last_messages, &config, owner)
                });
                return Err(why.await.unwrap_or(BrowserError::Start { path, messages: kept }));
            }
        }
        Ok(process)
    }

    pub(super) fn name(&self) -> String {
        format!("browser-{}", self.index)
    }

    /// The browser's last messages.
    pub(super) fn messages(&self) -> String {
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.iter().cloned().collect::<Vec<_>>().join(" | ")
    }

    pub(super) async fn ended(&self) {
        let mut ended = self.ended.clone();
        // An error means that the thread has ended, and with it the browser.
        ended.wait_for(|ended| *ended).await.ok();
    }

    pub(super) fn kill(&self) {
        if let Some(group) = Pid::from_raw(self.pid as i32) {
            // An error means that the group is already gone.
            kill_process_group(group, Signal::KILL).ok();
        }
    }
}

impl Drop for BrowserProcess {
    fn drop(&mut self) {
        self.kill();
        remove_folder(&self.profile);
    }
}

/// Removes the profiles and the session folders that dead workers of this machine left.
pub(super) fn remove_stale_profiles() {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|name| name.strip_prefix("furrow-env-")?.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            remove_folder(&entry.path());
        }
    }
}

/// The kernel's view of a renderer's sandbox: seccomp mode 2 is a filter.
pub(super) fn sandboxed(pid: u32) -> bool {
    let statuses = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let command = fs::read_to_string(entry.path().join("cmdline")).ok()?;
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        command.contains("--type=renderer").then_some(status)
    });
    let field = |status: &str, name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse::<u32>().ok())
    };
    let mut ours =
        statuses.filter(|status| field(status, "NSpgid:").is_some() && is_child(status, pid)).peekable();
    ours.peek().is_some() && ours.all(|status| field(&status, "Seccomp:") == Some(2))
}

/// Whether the process with this status descends from `pid`.
fn is_child(status: &str, pid: u32) -> bool {
    let mut status = status.to_owned();
    for _ in 0..8 {
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse::<u32>().ok());
        match parent {
            Some(parent) if parent == pid => return true,
            Some(0) | None => return false,
            Some(parent) => match fs::read_to_string(format!("/proc/{parent}/status")) {
                Ok(next) => status = next,
                Err(_) => return false,
            },
        }
    }
    false
}

/// The lifetime of a browser on the thread that owns it.
fn own_browser(
    mut command: Command,
    spawned: oneshot::Sender<std::io::Result<u32>>,
    listening: oneshot::Sender<String>,
    messages: &Mutex<VecDeque<String>>,
    end: &watch::Sender<bool>,
) {
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            // The receiver is gone if the caller has stopped waiting.
            spawned.send(Err(error)).ok();
            return;
        }
    };
    let handed_over = spawned.send(Ok(child.id())).is_ok();
    if handed_over {
        read_messages(&mut child, listening, messages);
    } else if let Some(group) = Pid::from_raw(child.id() as i32) {
        kill_process_group(group, Signal::KILL).ok();
    }
    child.wait().ok();
    end.send_replace(true);
}

fn read_messages(child: &mut Child, listening: oneshot::Sender<String>, messages: &Mutex<VecDeque<String>>) {
    let Some(stderr) = child.stderr.take() else { return };
    let mut listening = Some(listening);
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    // Lines are cut at 4 KiB: a browser's message may contain a page's text.
    while (&mut reader).take(4096).read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        let text = String::from_utf8_lossy(&line).trim().to_owned();
        line.clear();
        if let Some(address) = text.strip_prefix("DevTools listening on ")
            && let Some(listening) = listening.take()
        {
            listening.send(address.to_owned()).ok();
        }
        let mut messages = messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.push_back(text);
        if messages.len() > MESSAGES_MAX {
            messages.pop_front();
        }
    }
}

/// The program to start: the one that the job names, or the first that exists.
pub(super) fn find_program(named: Option<&Path>) -> Result<PathBuf, BrowserError> {
    let Some(path) = named else {
        let found = LOOKED_FOR.iter().map(PathBuf::from).find(|path| path.is_file());
        return found.ok_or(BrowserError::NotFound);
    };
    let no_program = |what| BrowserError::NoProgram { path: path.to_owned(), what };
    let mut magic = [0; 4];
    let mut file = fs::File::open(path).map_err(|_| no_program("absent or not readable"))?;
    match file.read_exact(&mut magic) {
        Ok(()) if &magic == b"\x7fELF" => Ok(path.to_owned()),
        Ok(()) if magic.starts_with(b"#!") => {
            Err(no_program("a wrapper script, whose browser would outlive it"))
        }
        _ => Err(no_program("not an executable file")),
    }
}

/// Checks the libraries and fonts that the job supplies, on this machine.
pub(super) async fn check_given(config: &BrowserConfig) -> Result<(), BrowserError> {
    if config.libraries.is_empty() && config.fonts.is_none() {
        return Ok(());
    }
    let owner = owner(config)?;
    let config = config.clone();
    let checking = tokio::task::spawn_blocking(move || libraries::check(&config, owner));
    checking.await.map_err(|why| BrowserError::Io {
        what: "check the browser's libraries",
        source: std::io::Error::other(why),
    })?
}

/// `<temp>/furrow-env-<pid>-<index>`: the name contains the owner's process id, so that
/// `remove_stale_profiles` finds profiles without an owner.
fn make_profile(index: u64, owner: OwnerIds) -> Result<PathBuf, BrowserError> {
    let profile = std::env::temp_dir().join(format!("furrow-env-{}-{index}", std::process::id()));
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

fn command(
    program: &Path,
    profile: &Path,
    owner: OwnerIds,
    config: &BrowserConfig,
    kind: BrowserKind,
) -> Command {
    let mut command = as_user(owner);
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
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
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
    "--remote-debugging-port=0",
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
    use super::*;
    use crate::config::EnvFile;

    /// The output of a test program that prints the flags it was started with.
    fn started_flags(virtual_time: bool, under: impl FnOnce(&Command) -> Command) -> String {
        let config = EnvFile::default().check(Path::new("/")).unwrap().browser;
        let owner = owner(&config).unwrap();
        let kind = BrowserKind { viewport: Size::new(512, 512), virtual_time };
        let command = command(Path::new("/bin/echo"), Path::new("/tmp"), owner, &config, kind);
        let output = under(&command).stdin(Stdio::null()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn same_command(command: &Command) -> Command {
        let mut same = Command::new(command.get_program());
        same.args(command.get_args());
        same
    }

    #[test]
    fn a_browser_starts_under_its_own_worker_only() {
        assert!(started_flags(false, same_command).contains("about:blank"));
        // A process between the two is another parent, as init is once the worker is dead.
        let under_another = |command: &Command| {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", "\"$@\"; :", "sh"]).arg(command.get_program()).args(command.get_args());
            shell
        };
        assert_eq!(started_flags(false, under_another), "");
    }
    /// With the flag, pages in real time cost a hundred times their usual CPU when idle.
    #[test]
    fn frames_without_deadlines_are_for_virtual_time_alone() {
        assert!(started_flags(true, same_command).contains(VIRTUAL_TIME_FLAG));
        assert!(!started_flags(false, same_command).contains(VIRTUAL_TIME_FLAG));
    }
}
