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
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::sync::{oneshot, watch};

use super::command::{BrowserKind, command};
use super::devtools_relay::DevToolsPipe;
use super::error::{BrowserError, LOOKED_FOR};
use super::libraries;
use super::limits::{self, BrowserUsage};
use super::profile::make_profile;
use super::removal::remove_folder;
use super::session_folder::SessionFolders;
use super::user::{OwnerIds, owner};
use super::walls::BrowserWalls;
use crate::config::BrowserConfig;
use crate::namespace::{HelperProcess, LoopbackNetwork, NetworkNamespace};
use crate::secrets::WorkerSecrets;

/// Time for the last messages of a browser that did not start: it is killed before.
const LAST_MESSAGES: Duration = Duration::from_secs(2);

/// Lines of the browser's own messages that are kept to explain a failure.
const MESSAGES_MAX: usize = 40;

/// Browsers started by this process in all its pools: no two share a profile.
static STARTS: AtomicU64 = AtomicU64::new(0);

/// A running browser. Dropping it kills the whole process group and removes its profile and the
/// folders of its sessions.
#[derive(Debug)]
pub(super) struct BrowserProcess {
    pub pid: u32,
    /// Distinguishes the browsers of one worker process.
    pub index: u64,
    program: PathBuf,
    owner: OwnerIds,
    messages: Arc<Mutex<VecDeque<String>>>,
    /// Values that pages may have printed.
    secrets: Arc<WorkerSecrets>,
    ended: watch::Receiver<bool>,
    profile: PathBuf,
    pub session_folders: SessionFolders,
    /// Where its pages meet their filters.
    pub network: LoopbackNetwork,
    /// Its resource use, as the polling thread measured it last.
    pub account: Arc<BrowserUsage>,
}

impl BrowserProcess {
    /// Starts a browser, which answers on the pipe as soon as it can.
    pub(super) async fn start(
        config: &BrowserConfig,
        kind: BrowserKind,
        walls: &BrowserWalls,
    ) -> Result<(Self, DevToolsPipe), BrowserError> {
        let index = STARTS.fetch_add(1, Ordering::Relaxed);
        let program = find_program(config.path.as_deref())?;
        let owner = owner(config)?;
        let session_folders = SessionFolders::create(index)
            .map_err(|source| BrowserError::Io { what: "create a folder for files of tasks", source })?;
        let profile = make_profile(index, owner)?;
        let start = BrowserStart {
            program: program.clone(),
            profile: profile.clone(),
            owner,
            config: config.clone(),
            kind,
            has_namespace: walls.has_namespace(),
        };
        let (end, ended) = watch::channel(false);
        let messages = Arc::new(Mutex::new(VecDeque::new()));
        let (spawned, started) = oneshot::channel();
        let kept = messages.clone();
        let (alive, gone) = sync_channel(0);
        // This thread starts the browser, reads its messages and outlives it: see the top of the
        // file.
        std::thread::Builder::new()
            .name(format!("browser-{index}"))
            .spawn(move || {
                own_browser(&start, spawned, &kept, &end);
                // Nothing is ever sent: the polling thread notices when the sender is dropped.
                drop::<SyncSender<()>>(alive);
            })
            .map_err(|source| BrowserError::Io { what: "start a thread for the browser", source })?;
        let SpawnedBrowser { pid, pipe, network } = match started.await {
            Ok(Ok(started)) => started,
            Ok(Err(error)) => {
                remove_folder(&profile);
                return Err(error);
            }
            Err(_) => return Err(BrowserError::Start { path: program, messages: "its thread ended".into() }),
        };
        let account = Arc::new(BrowserUsage::default());
        let process = Self {
            pid,
            index,
            program,
            owner,
            messages,
            secrets: config.secrets.clone(),
            ended,
            profile,
            session_folders,
            network,
            account: account.clone(),
        };
        let name = process.name();
        let bounds = config.limits;
        std::thread::Builder::new()
            .name(format!("limits-{index}"))
            .spawn(move || limits::enforce_limits(pid, &name, bounds, &account, &gone))
            .map_err(|source| BrowserError::Io { what: "start a thread for the browser", source })?;
        Ok((process, pipe))
    }

    /// Why it does not answer. Ends it.
    pub(super) async fn explain_failed_start(self, config: &BrowserConfig) -> BrowserError {
        self.kill();
        // Its last message may still be on the way.
        tokio::time::timeout(LAST_MESSAGES, self.ended()).await.ok();
        let messages = self.messages();
        let kept = messages.clone();
        let config = config.clone();
        let owner = self.owner;
        let program = self.program.clone();
        // This runs the loader, which reads every library once.
        let why = tokio::task::spawn_blocking(move || {
            libraries::explain_start_failure(&program, messages, &config, owner)
        });
        why.await.unwrap_or_else(|_| BrowserError::Start { path: self.program.clone(), messages: kept })
    }

    pub(super) fn name(&self) -> String {
        format!("browser-{}", self.index)
    }

    /// The browser's last messages.
    pub(super) fn messages(&self) -> String {
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let scrubber = self.secrets.scrubber();
        messages.iter().map(|line| scrubber.owned(line.clone())).collect::<Vec<_>>().join(" | ")
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

/// What a browser is started with.
#[derive(Debug)]
struct BrowserStart {
    program: PathBuf,
    profile: PathBuf,
    owner: OwnerIds,
    config: BrowserConfig,
    kind: BrowserKind,
    has_namespace: bool,
}

/// A browser that was started and has not answered yet.
#[derive(Debug)]
struct SpawnedBrowser {
    pid: u32,
    pipe: DevToolsPipe,
    network: LoopbackNetwork,
}

impl BrowserStart {
    /// Starts the helper of its namespace, if it has one, and the browser. Both die with this
    /// thread.
    fn spawn(&self) -> Result<(Child, SpawnedBrowser, Option<HelperProcess>), BrowserError> {
        let namespace = match self.has_namespace {
            true => Some(
                NetworkNamespace::start()
                    .map_err(|error| BrowserError::Network { why: error.to_string() })?,
            ),
            false => None,
        };
        let (namespace, helper) = namespace.unzip();
        let Self { program, profile, owner, config, kind, .. } = self;
        let failed = |source| BrowserError::Io {
            what: "start the browser (are setpriv and nsenter of util-linux there?)",
            source,
        };
        let mut command = command(program, profile, *owner, config, *kind, namespace.as_ref());
        let mut child = command.spawn().map_err(failed)?;
        let pipe = child.stdin.take().zip(child.stdout.take());
        let (commands, events) = pipe.ok_or_else(|| failed(ErrorKind::BrokenPipe.into()))?;
        let pipe = DevToolsPipe { commands: commands.into(), events: events.into() };
        let network = match namespace {
            Some(namespace) => LoopbackNetwork::Namespace(Arc::new(namespace)),
            None => LoopbackNetwork::Machine,
        };
        let pid = child.id();
        Ok((child, SpawnedBrowser { pid, pipe, network }, helper))
    }
}

/// The lifetime of a browser on the thread that owns it.
fn own_browser(
    start: &BrowserStart,
    spawned: oneshot::Sender<Result<SpawnedBrowser, BrowserError>>,
    messages: &Mutex<VecDeque<String>>,
    end: &watch::Sender<bool>,
) {
    let (mut child, browser, _helper) = match start.spawn() {
        Ok(started) => started,
        Err(error) => {
            // The receiver is gone if the caller has stopped waiting.
            spawned.send(Err(error)).ok();
            return;
        }
    };
    if spawned.send(Ok(browser)).is_ok() {
        read_messages(&mut child, messages);
    } else if let Some(group) = Pid::from_raw(child.id() as i32) {
        kill_process_group(group, Signal::KILL).ok();
    }
    child.wait().ok();
    end.send_replace(true);
}

fn read_messages(child: &mut Child, messages: &Mutex<VecDeque<String>>) {
    let Some(stderr) = child.stderr.take() else { return };
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    // Lines are cut at 4 KiB: a browser's message may contain a page's text.
    while (&mut reader).take(4096).read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        let text = String::from_utf8_lossy(&line).trim().to_owned();
        line.clear();
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
