//! A network namespace for one browser: a machine's loopback on which nothing listens but the
//! browser's egress filters.
//!
//! A socket belongs to the namespace in which it was created, whichever process has it. So a helper
//! inside creates the sockets of the filters and passes them to the worker, whose threads never
//! leave the machine's own network, and the browser starts inside. The helper is this program again
//! (`namespace/helper.rs`), behind `unshare`: an ordinary user may make such a namespace only
//! together with a user namespace, which no process with threads can enter.

mod helper;
mod links;

use std::fs::File;
use std::io::{self, ErrorKind, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::geteuid;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_blocking;

pub use helper::{become_namespace_helper, serve_namespace_helper, use_namespace_helper};

/// Time for the helper to start and for each of its answers, which take milliseconds.
const DEADLINE: Duration = Duration::from_secs(10);

/// Most bytes of an explanation.
const REASON_BYTES_MAX: u64 = 1000;

/// Where the programs around a helper are found.
pub(crate) const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Starts the program that is open as the output (`/proc/self/exe` would be `unshare`, and the path
/// of this program may be another release's by now).
const START: &str = "exec 9<&1 >/dev/null; exec unshare \"$@\"";

/// The loopback on which a browser and its filters meet.
#[derive(Debug, Clone)]
pub(crate) enum LoopbackNetwork {
    /// The machine's, on which others listen, too.
    Machine,
    Namespace(Arc<NetworkNamespace>),
}

impl LoopbackNetwork {
    /// A listener on a port that the system chooses.
    pub(crate) async fn listen(&self) -> io::Result<TcpListener> {
        match self {
            Self::Machine => TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await,
            Self::Namespace(namespace) => {
                let namespace = namespace.clone();
                let listener = spawn_blocking(move || namespace.listen()).await??;
                listener.set_nonblocking(true)?;
                TcpListener::from_std(listener)
            }
        }
    }

    /// A connection to such a listener.
    pub(crate) async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        match self {
            Self::Machine => TcpStream::connect(address).await,
            Self::Namespace(namespace) => {
                let namespace = namespace.clone();
                let stream = spawn_blocking(move || namespace.connect(address.port())).await??;
                stream.set_nonblocking(true)?;
                TcpStream::from_std(stream)
            }
        }
    }
}

/// The namespace of one browser. It ends when the last process in it has ended.
#[derive(Debug)]
pub(crate) struct NetworkNamespace {
    /// Where the helper is asked for sockets; one at a time.
    helper: Mutex<UnixStream>,
    pid: u32,
}

/// The helper's process, killed when this is dropped.
#[derive(Debug)]
pub(crate) struct HelperProcess(Child);

impl Drop for HelperProcess {
    fn drop(&mut self) {
        // An error means that it has ended.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Why there is no namespace.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NamespaceError {
    #[error("this program has no helper for it")]
    NoHelper,
    #[error("its helper did not start (are setpriv and unshare of util-linux there?): {0}")]
    Start(io::Error),
    #[error("{0}")]
    Refused(String),
}

impl NetworkNamespace {
    /// Makes one. The helper dies with the thread that calls this.
    pub(crate) fn start() -> Result<(Self, HelperProcess), NamespaceError> {
        let arguments = helper::arguments().ok_or(NamespaceError::NoHelper)?;
        let program = own_program().map_err(NamespaceError::Start)?;
        let (ours, theirs) = UnixStream::pair().map_err(NamespaceError::Start)?;
        for set in [UnixStream::set_read_timeout, UnixStream::set_write_timeout] {
            set(&ours, Some(DEADLINE)).map_err(NamespaceError::Start)?;
        }
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig=KILL", "--", "/bin/sh", "-c", START, "sh"]);
        if !geteuid().is_root() {
            command.args(["--user", "--map-current-user", "--keep-caps"]);
        }
        command.args(["--net", "--", "/proc/self/fd/9"]).args(arguments);
        command.env_clear().env("PATH", SEARCH_PATH).env("LANG", "C.UTF-8").current_dir("/");
        command.stdin(OwnedFd::from(theirs)).stdout(program).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(NamespaceError::Start)?;
        // The parent's copy of the helper's end.
        drop(command);
        let messages = child.stderr.take();
        let pid = child.id();
        let process = HelperProcess(child);
        let mut ready = [0];
        match (&ours).read_exact(&mut ready) {
            Ok(()) if ready == helper::READY => Ok((Self { helper: Mutex::new(ours), pid }, process)),
            Ok(()) => Err(refused((&ours).take(REASON_BYTES_MAX), "its helper gave no reason")),
            Err(error) => {
                drop(process);
                match messages {
                    Some(messages) => Err(refused(messages.take(REASON_BYTES_MAX), &error.to_string())),
                    None => Err(NamespaceError::Refused(error.to_string())),
                }
            }
        }
    }

    /// The arguments with which `nsenter` starts a program inside.
    pub(crate) fn entering(&self) -> Vec<String> {
        let mut entering = vec![format!("--target={}", self.pid), "--net".into()];
        if !geteuid().is_root() {
            entering.extend(["--user".into(), "--preserve-credentials".into()]);
        }
        entering.push("--".into());
        entering
    }

    /// A listener inside, on a port of loopback that the system chooses.
    pub(crate) fn listen(&self) -> io::Result<std::net::TcpListener> {
        self.ask(helper::LISTEN, 0).map(Into::into)
    }

    /// A connection inside, to this port of loopback.
    pub(crate) fn connect(&self, port: u16) -> io::Result<std::net::TcpStream> {
        self.ask(helper::CONNECT, port).map(Into::into)
    }

    fn ask(&self, request: u8, port: u16) -> io::Result<OwnedFd> {
        let helper = self.helper.lock().unwrap_or_else(PoisonError::into_inner);
        let [low, high] = port.to_le_bytes();
        (&*helper).write_all(&[request, low, high])?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut passed = RecvAncillaryBuffer::new(&mut space);
        let mut status = [0];
        let received =
            recvmsg(&*helper, &mut [IoSliceMut::new(&mut status)], &mut passed, RecvFlags::CMSG_CLOEXEC);
        let received = received.map_err(|error| {
            // An answer that comes later would be taken for that of the next request.
            helper.shutdown(Shutdown::Both).ok();
            io::Error::from(error)
        })?;
        if received.bytes == 0 {
            return Err(io::Error::new(ErrorKind::BrokenPipe, "the helper of a network namespace has ended"));
        }
        let socket = passed.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut sockets) => sockets.next(),
            _ => None,
        });
        socket.ok_or_else(|| io::Error::from_raw_os_error(i32::from(status[0])))
    }
}

fn refused(mut messages: impl Read, otherwise: &str) -> NamespaceError {
    let mut bytes = Vec::new();
    messages.read_to_end(&mut bytes).ok();
    let text = String::from_utf8_lossy(&bytes).trim().replace('\n', "; ");
    NamespaceError::Refused(if text.is_empty() { otherwise.to_owned() } else { text })
}

/// This program, whatever its path names by now.
fn own_program() -> io::Result<File> {
    static PROGRAM: OnceLock<File> = OnceLock::new();
    match PROGRAM.get() {
        Some(program) => program.try_clone(),
        None => {
            let program = File::open("/proc/self/exe")?;
            PROGRAM.get_or_init(|| program).try_clone()
        }
    }
}
