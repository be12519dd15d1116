//! The process inside a network namespace: prepares its links, then creates the sockets that the
//! worker asks for, until the worker closes the connection.

use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::links;

/// The first argument of a program that is started as a helper.
const ARGUMENT: &str = "namespace-helper";

/// The helper's first byte when its namespace is ready; otherwise an explanation follows.
pub(super) const READY: [u8; 1] = [b'R'];
const NOT_READY: [u8; 1] = [b'N'];

/// Requests: a byte and a port, least significant byte first. The answer is a byte with the socket,
/// or with the number of an error.
pub(super) const LISTEN: u8 = b'L';
pub(super) const CONNECT: u8 = b'C';

/// The port is one of a filter in this namespace, which accepts at once.
const CONNECT_DEADLINE: Duration = Duration::from_secs(1);

/// The arguments with which this program is a helper; unset: it cannot be one.
static ARGUMENTS: OnceLock<Vec<String>> = OnceLock::new();

/// Serves as the helper of a network namespace if this process was started as one, and returns its
/// exit status. Every program that starts browsers calls it first: only then can they have a
/// namespace.
pub fn become_namespace_helper() -> Option<ExitCode> {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == ARGUMENT) {
        serve_namespace_helper();
        return Some(ExitCode::SUCCESS);
    }
    use_namespace_helper(&[ARGUMENT]);
    None
}

/// The same for a program that does not have its own `main`: with these arguments it calls
/// [`become_namespace_helper`] or what does the same.
pub fn use_namespace_helper(arguments: &[&str]) {
    ARGUMENTS.get_or_init(|| arguments.iter().map(ToString::to_string).collect());
}

pub(super) fn arguments() -> Option<&'static [String]> {
    ARGUMENTS.get().map(Vec::as_slice)
}

/// Prepares the namespace and creates sockets until the worker closes the connection, which is this
/// process's input.
pub fn serve_namespace_helper() {
    let Ok(worker) = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from) else { return };
    let answered = match links::prepare() {
        Ok(()) => (&worker).write_all(&READY).and_then(|()| answer_requests(&worker)),
        Err(error) => (&worker).write_all(&NOT_READY).and_then(|()| write!(&worker, "{error}")),
    };
    // The worker has ended, and no process reads a message of this one.
    answered.ok();
}

fn answer_requests(mut worker: &UnixStream) -> io::Result<()> {
    let mut request = [0; 3];
    loop {
        worker.read_exact(&mut request)?;
        let [what, low, high] = request;
        let socket = match what {
            LISTEN => TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map(OwnedFd::from),
            CONNECT => connect(u16::from_le_bytes([low, high])).map(OwnedFd::from),
            _ => Err(io::ErrorKind::Unsupported.into()),
        };
        match socket {
            Ok(socket) => pass(worker, 0, &[socket.as_fd()])?,
            Err(error) => pass(worker, error_number(&error), &[])?,
        }
    }
}

fn connect(port: u16) -> io::Result<TcpStream> {
    TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), CONNECT_DEADLINE)
}

fn pass(worker: &UnixStream, status: u8, sockets: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut passed = SendAncillaryBuffer::new(&mut space);
    if !sockets.is_empty() {
        passed.push(SendAncillaryMessage::ScmRights(sockets));
    }
    sendmsg(worker, &[IoSlice::new(&[status])], &mut passed, SendFlags::empty())?;
    Ok(())
}

/// The number of an error, which the worker makes an error again.
fn error_number(error: &io::Error) -> u8 {
    let unknown = rustix::io::Errno::IO.raw_os_error();
    let number = error.raw_os_error().unwrap_or(unknown);
    u8::try_from(number).ok().filter(|number| *number != 0).unwrap_or(u8::MAX)
}
