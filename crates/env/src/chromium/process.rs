//! One browser process: found, started as an ordinary user with its sandbox on, and ended with everything it started.
//!
//! The packaged `/usr/bin/chromium-headless-shell` is a shell script that does not exec: whoever kills it leaves browsers behind. So the real
//! program is started, in a process group of its own. `setpriv --pdeathsig=KILL` makes the kernel kill it when the *thread* that started it
//! dies, so that thread is one of ours that lives as long as the browser, never one of a pool. A worker that dies before `setpriv` has asked
//! for that is noticed behind it: the browser only starts under the parent that meant to start it.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use furrow_rollout::{Clock, Size, Task};
use rustix::process::{Pid, Signal, geteuid, kill_process_group};
use tokio::sync::{oneshot, watch};

use super::libraries;
use super::limits::{self, Account};
use crate::config::BrowserConfig;

/// Where the program is looked for when the job does not say.
pub const LOOKED_FOR: &[&str] = &[
    "/usr/lib/chromium/chromium-headless-shell",
    "/usr/lib/chromium-browser/headless_shell",
    "/usr/lib/chromium/headless_shell",
    "/opt/chromium/chrome-headless-shell",
];

/// A start takes 0.2 s; on a machine that starts a hundred contexts at once it took 3 s.
const START_DEADLINE: Duration = Duration::from_secs(30);

/// Becomes the browser (`$@` behind `$1`) if the worker (`$0`) is still the parent. The worker's death takes the browser along. `$1`, if not empty, is
/// where the browser's loader searches for libraries: it is exported here, so that `setpriv` and the shell run with the system's.
const START: &str = "[ \"$PPID\" = \"$0\" ] || exit 1; libraries=\"$1\"; shift; \
    [ -z \"$libraries\" ] || export LD_LIBRARY_PATH=\"$libraries\"; exec \"$@\"";

/// Lines of the browser's own messages that are kept to explain a death.
const MESSAGES_MAX: usize = 40;

/// Browsers started by this process, of all its pools: no two share a profile.
static STARTS: AtomicU64 = AtomicU64::new(0);

/// Why there is no browser.
#[derive(Debug, thiserror::Error)]
pub enum BrowserError {
    /// No program was found.
    #[error(
        "env.browser: no Chromium headless shell found (looked for {LOOKED_FOR:?}); on Debian `apt-get install chromium-headless-shell`, elsewhere set env.browser to the program"
    )]
    NotFound,
    /// What was named cannot be started.
    #[error("env.browser: {path} is {what}; name the program itself, such as {}", LOOKED_FOR[0])]
    NoProgram {
        /// What was named.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// Libraries or fonts of the job cannot be used.
    #[error("{key}: {path} {what}")]
    Given {
        /// The job's key.
        key: &'static str,
        /// The folder or file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        what: String,
    },
    /// Libraries that it is linked with are not there.
    #[error(
        "the browser {path} needs shared libraries that are not found: {missing}; install them, or name the folder that holds them in env.browser_libraries ({said})"
    )]
    MissingLibraries {
        /// The program.
        path: PathBuf,
        /// Their names.
        missing: String,
        /// The loader's message.
        said: String,
    },
    /// The machine refuses what its sandbox is made of.
    #[error(
        "the browser {path} cannot make its sandbox: user namespaces are refused here; allow them, or set env.sandbox = false where the container is the sandbox ({said})"
    )]
    Sandbox {
        /// The program.
        path: PathBuf,
        /// Its last messages.
        said: String,
    },
    /// The user to run as is not there.
    #[error(
        "env.browser_user: there is no user {user:?} on this machine; name an ordinary user, such as \"nobody\""
    )]
    NoUser {
        /// Its name.
        user: String,
    },
    /// A directory or process could not be made.
    #[error("cannot {what}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: std::io::Error,
    },
    /// It ended or stayed silent before it listened.
    #[error("the browser {path} did not start: {said}")]
    Start {
        /// The program.
        path: PathBuf,
        /// Its last messages.
        said: String,
    },
    /// Its version is not one this was made for.
    #[error("env.browser: {found} is too old; Furrow needs Chromium {wanted} or newer")]
    Version {
        /// What it says of itself.
        found: String,
        /// Oldest major version.
        wanted: u32,
    },
    /// It does not do what farms need.
    #[error("the browser failed its self-test: {what}")]
    SelfTest {
        /// Which part.
        what: String,
    },
    /// The protocol link broke.
    #[error("the link to the browser broke: {what}")]
    Link {
        /// How.
        what: String,
    },
}

impl BrowserError {
    /// Whether another try may go better: the rest is for a person to put right.
    pub(super) fn may_pass(&self) -> bool {
        // Namespaces may be used up by browsers that are just ending.
        matches!(
            self,
            Self::Io { .. }
                | Self::Start { .. }
                | Self::Sandbox { .. }
                | Self::SelfTest { .. }
                | Self::Link { .. }
        )
    }
}

/// What a browser is started for; a process serves one kind alone, because neither can be changed while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BrowserKind {
    /// Size of its pages, and of the screen: a native list is drawn where the screen has room for it.
    pub viewport: Size,
    /// Whether the time of its pages stands still but for grants. See [`VIRTUAL_TIME_FLAG`].
    pub virtual_time: bool,
}

impl BrowserKind {
    /// The kind that shows the pages of a task.
    pub fn of(task: &Task) -> Self {
        Self { viewport: task.viewport, virtual_time: matches!(task.clock, Clock::Virtual { .. }) }
    }
}

/// A running browser. Dropping it kills the whole process group and removes its profile.
#[derive(Debug)]
pub(super) struct Process {
    pub pid: u32,
    /// Tells the browsers of one worker process apart.
    pub index: u64,
    /// Address of its DevTools.
    pub address: String,
    messages: Arc<Mutex<VecDeque<String>>>,
    ended: watch::Receiver<bool>,
    profile: PathBuf,
    /// What it takes, as the thread that looks after it saw last.
    pub account: Arc<Account>,
}

impl Process {
    /// Starts one and waits until it listens.
    pub async fn start(config: &BrowserConfig, kind: BrowserKind) -> Result<Self, BrowserError> {
        let index = STARTS.fetch_add(1, Ordering::Relaxed);
        let program = program(config.path.as_deref())?;
        let owner = owner(config)?;
        let profile = make_profile(index, owner)?;
        let command = command(&program, &profile, owner, config, kind);
        let (listening, listens) = oneshot::channel();
        let (end, ended) = watch::channel(false);
        let messages = Arc::new(Mutex::new(VecDeque::new()));
        let (spawned, pid) = oneshot::channel();
        let kept = messages.clone();
        let (alive, gone) = sync_channel(0);
        // This thread starts the browser, reads what it says and outlives it: see the top of the file.
        std::thread::Builder::new()
            .name(format!("browser-{index}"))
            .spawn(move || {
                keep(command, spawned, listening, &kept, &end);
                // Nothing was ever sent: who looks after its limits hears that there is nobody left to send.
                drop::<SyncSender<()>>(alive);
            })
            .map_err(|source| BrowserError::Io { what: "start a thread for the browser", source })?;
        let pid = match pid.await {
            Ok(Ok(pid)) => pid,
            Ok(Err(source)) => {
                remove(&profile);
                return Err(BrowserError::Io {
                    what: "start the browser (is setpriv of util-linux there?)",
                    source,
                });
            }
            Err(_) => return Err(BrowserError::Start { path: program, said: "its thread ended".into() }),
        };
        let account = Arc::new(Account::default());
        let mut process =
            Self { pid, index, address: String::new(), messages, ended, profile, account: account.clone() };
        let (name, bounds) = (process.name(), config.limits);
        std::thread::Builder::new()
            .name(format!("limits-{index}"))
            .spawn(move || limits::look_after(pid, &name, bounds, &account, &gone))
            .map_err(|source| BrowserError::Io { what: "start a thread for the browser", source })?;
        match tokio::time::timeout(START_DEADLINE, listens).await {
            Ok(Ok(address)) => process.address = address,
            _ => {
                let (said, config) = (process.messages(), config.clone());
                let (path, kept) = (program.clone(), said.clone());
                // Asks the loader, which reads every library once.
                let why =
                    tokio::task::spawn_blocking(move || libraries::explain(&program, said, &config, owner));
                return Err(why.await.unwrap_or(BrowserError::Start { path, said: kept }));
            }
        }
        Ok(process)
    }

    /// Its name in the log.
    pub fn name(&self) -> String {
        format!("browser-{}", self.index)
    }

    /// What the browser said last.
    pub fn messages(&self) -> String {
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.iter().cloned().collect::<Vec<_>>().join(" | ")
    }

    /// Resolves when the process has ended.
    pub async fn ended(&self) {
        let mut ended = self.ended.clone();
        // An error means that its thread is gone, and with it the browser.
        ended.wait_for(|ended| *ended).await.ok();
    }

    /// Kills the whole group at once.
    pub fn kill(&self) {
        if let Some(group) = Pid::from_raw(self.pid as i32) {
            // Gone already is as good.
            kill_process_group(group, Signal::KILL).ok();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        remove(&self.profile);
    }
}

/// Removes what dead workers of this machine left behind.
pub(super) fn sweep() {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|name| name.strip_prefix("furrow-env-")?.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            remove(&entry.path());
        }
    }
}

/// What the kernel says of a renderer's sandbox: seccomp mode 2 is a filter.
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

/// Whether the process of this status descends from `pid`.
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

/// The life of a browser, seen from the thread that owns it.
fn keep(
    mut command: Command,
    spawned: oneshot::Sender<std::io::Result<u32>>,
    listening: oneshot::Sender<String>,
    messages: &Mutex<VecDeque<String>>,
    end: &watch::Sender<bool>,
) {
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            // Whoever asked has stopped waiting: nobody is left to be told.
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
    // Lines are cut at 4 KiB: a browser's message may carry a page's text.
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

/// The program to start: what the job names, or the first that is there.
fn program(named: Option<&Path>) -> Result<PathBuf, BrowserError> {
    let Some(path) = named else {
        let found = LOOKED_FOR.iter().map(PathBuf::from).find(|path| path.is_file());
        return found.ok_or(BrowserError::NotFound);
    };
    let no_program = |what| BrowserError::NoProgram { path: path.to_owned(), what };
    let mut magic = [0; 4];
    let mut file = fs::File::open(path).map_err(|_| no_program("not there, or not readable"))?;
    match file.read_exact(&mut magic) {
        Ok(()) if &magic == b"\x7fELF" => Ok(path.to_owned()),
        Ok(()) if magic.starts_with(b"#!") => {
            Err(no_program("a wrapper script, whose browser would outlive it"))
        }
        _ => Err(no_program("no program")),
    }
}

/// Checks what the job gives the browser beside its program, on this machine.
pub(super) async fn check_given(config: &BrowserConfig) -> Result<(), BrowserError> {
    if config.libraries.is_empty() && config.fonts.is_none() {
        return Ok(());
    }
    let (config, owner) = (config.clone(), owner(config)?);
    let checking = tokio::task::spawn_blocking(move || libraries::check(&config, owner));
    checking.await.map_err(|why| BrowserError::Io {
        what: "check the browser's libraries",
        source: std::io::Error::other(why),
    })?
}

/// Whom the browser runs as when we are root: user and group id.
pub(super) fn owner(config: &BrowserConfig) -> Result<Option<(u32, u32)>, BrowserError> {
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

/// `<temp>/furrow-env-<pid>-<index>`: the name says whose it is, so that `sweep` knows when nobody's.
fn make_profile(index: u64, owner: Option<(u32, u32)>) -> Result<PathBuf, BrowserError> {
    let profile = std::env::temp_dir().join(format!("furrow-env-{}-{index}", std::process::id()));
    remove(&profile);
    fs::create_dir(&profile)
        .map_err(|source| BrowserError::Io { what: "make a profile directory", source })?;
    if let Some((user, group)) = owner {
        chown(&profile, Some(user), Some(group)).map_err(|source| BrowserError::Io {
            what: "hand the profile directory to env.browser_user",
            source,
        })?;
    }
    Ok(profile)
}

fn remove(profile: &Path) {
    // A dying renderer may write once more; the next worker's sweep takes what is left.
    for _ in 0..3 {
        if fs::remove_dir_all(profile).is_ok() || !profile.exists() {
            return;
        }
    }
}

/// A command as the browser's user that dies with the thread that starts it; the program and its arguments are added.
pub(super) fn as_user(owner: Option<(u32, u32)>) -> Command {
    let mut command = Command::new("setpriv");
    command.arg("--pdeathsig=KILL");
    if let Some((user, group)) = owner {
        command.arg(format!("--reuid={user}")).arg(format!("--regid={group}")).arg("--clear-groups");
    }
    command.arg("--");
    command
}

fn command(
    program: &Path,
    profile: &Path,
    owner: Option<(u32, u32)>,
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
    command.env_remove("DBUS_SESSION_BUS_ADDRESS").env_remove("XDG_RUNTIME_DIR");
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
/// Deadlines are points of the wall's time, and virtual time holds the clock of the whole renderer, its compositor's too. Once a policy has thought for
/// longer than its page was granted, the deadline lies in the future of a clock that stands: a frame that changed nothing (a moved mouse is enough) never
/// ended, none came after it, and a screenshot, a wheel or a drag waited until they were given up as a hung page. With this flag a page asks for frames
/// all the time, 15 ms of CPU a second instead of 8 where time stands still and of 0.1 where it does not (Chromium 156): only where it is needed.
const VIRTUAL_TIME_FLAG: &str = "--run-all-compositor-stages-before-draw";

const FLAGS: &[&str] = &[
    "--headless",
    "--remote-debugging-port=0",
    // Errors only: else each line that a page writes to its console is written once more by the thread that serves all pages.
    "--log-level=2",
    // Nothing that speaks with the browser's maker.
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
    // WebRTC passes any proxy unless both spellings carry the value: one works in the headless shell, one in full Chromium.
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    // A page is no background page because nobody looks.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    // The same pixels everywhere, and a wheel event that is over when it is answered.
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

    /// What a program that is no browser says when it is started as one: the flags that it was given.
    fn said(virtual_time: bool, under: impl FnOnce(&Command) -> Command) -> String {
        let config = EnvFile::default().check(Path::new("/")).unwrap().browser;
        let owner = owner(&config).unwrap();
        let kind = BrowserKind { viewport: Size::new(512, 512), virtual_time };
        let command = command(Path::new("/bin/echo"), Path::new("/tmp"), owner, &config, kind);
        let output = under(&command).stdin(Stdio::null()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn same(command: &Command) -> Command {
        let mut same = Command::new(command.get_program());
        same.args(command.get_args());
        same
    }

    #[test]
    fn a_browser_starts_under_its_worker_and_under_nobody_else() {
        assert!(said(false, same).contains("about:blank"));
        // Between the two stands another parent, as init does once the worker is dead.
        let under_another = |command: &Command| {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", "\"$@\"; :", "sh"]).arg(command.get_program()).args(command.get_args());
            shell
        };
        assert_eq!(said(false, under_another), "");
    }
    /// It costs pages whose time passes by itself a hundred times what they take when idle.
    #[test]
    fn frames_without_deadlines_are_for_virtual_time_alone() {
        assert!(said(true, same).contains(VIRTUAL_TIME_FLAG));
        assert!(!said(false, same).contains(VIRTUAL_TIME_FLAG));
    }
}
