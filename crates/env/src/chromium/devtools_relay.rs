//! Carries the DevTools messages of one browser between its pipe and the protocol library, which
//! speaks WebSocket alone.
//!
//! A DevTools port of the browser would answer every process of the machine for as long as the
//! browser lives. Here a port is open until the library has connected, some milliseconds, and only
//! for a caller that names 128 random bits. In the pipe, a zero byte ends each message.

use std::collections::VecDeque;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use async_tungstenite::tokio::{TokioAdapter, accept_hdr_async_with_config};
use async_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use async_tungstenite::tungstenite::protocol::WebSocketConfig;
use async_tungstenite::tungstenite::{self, Message};
use async_tungstenite::{WebSocketReceiver, WebSocketSender, WebSocketStream};
use bytes::Buf;
use futures::{SinkExt, StreamExt};
use http::StatusCode;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

/// Time for the library to connect, which it does at once.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// Most connections whose handshake is not over; the oldest makes way for a further one, so that
/// silent peers do not keep the library out.
const HANDSHAKES_MAX: usize = 16;

/// Time for the browser to take a command. Commands have shorter deadlines of their own: when this
/// one passes, every page of the browser has long counted as hung.
const WRITE_DEADLINE: Duration = Duration::from_secs(60);

/// Largest message in either direction: as much as Chromium keeps for a DevTools client that reads
/// slowly. The largest of an ordinary job is a screenshot, 1 to 10 MB; a body that an archive
/// records may be `env.archive_response_bytes_max` and half as much again.
const MESSAGE_BYTES_MAX: usize = 256 << 20;

/// Size of one read: what a pipe holds.
const READ_BYTES: usize = 64 << 10;

type LibraryStream = TokioAdapter<TcpStream>;
type LibrarySocket = WebSocketStream<LibraryStream>;

/// Our ends of a browser's pipe.
#[derive(Debug)]
pub(super) struct DevToolsPipe {
    /// Commands to the browser.
    pub commands: OwnedFd,
    /// Answers and events of the browser.
    pub events: OwnedFd,
}

/// A relay between a pipe and the library. Dropping it closes the pipe, which ends the browser.
#[derive(Debug)]
pub(super) struct DevToolsRelay {
    address: String,
    _task: AbortOnDropHandle<()>,
}

impl DevToolsRelay {
    /// Opens the port for the one connection that will use the pipe.
    pub(super) async fn open(pipe: DevToolsPipe) -> io::Result<Self> {
        Self::open_with(pipe, MESSAGE_BYTES_MAX).await
    }

    async fn open_with(pipe: DevToolsPipe, message_bytes_max: usize) -> io::Result<Self> {
        let commands = pipe::Sender::from_owned_fd(pipe.commands)?;
        let events = pipe::Receiver::from_owned_fd(pipe.events)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let path = format!("/{:032x}", rand::random::<u128>());
        let address = format!("ws://{}{path}", listener.local_addr()?);
        let task = tokio::spawn(async move {
            let Ok(socket) = timeout(CONNECT_DEADLINE, accept(listener, path, message_bytes_max)).await
            else {
                tracing::warn!("a browser's DevTools were not connected to in time");
                return;
            };
            if let Err(error) = carry(socket, commands, events, message_bytes_max).await {
                tracing::debug!(error = &error as &dyn std::error::Error, "a DevTools link ended");
            }
        });
        Ok(Self { address, _task: AbortOnDropHandle::new(task) })
    }

    /// Where the library connects, which works once.
    pub(super) fn address(&self) -> &str {
        &self.address
    }
}

/// Waits for the connection that names the path. The listener is closed when this returns.
async fn accept(listener: TcpListener, path: String, message_bytes_max: usize) -> LibrarySocket {
    let mut handshakes = JoinSet::new();
    let mut latest = VecDeque::new();
    loop {
        tokio::select! {
            Some(ended) = handshakes.join_next() => {
                if let Ok(Some(socket)) = ended {
                    return socket;
                }
            }
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    latest.push_back(handshakes.spawn(shake_hands(stream, path.clone(), message_bytes_max)));
                    if latest.len() > HANDSHAKES_MAX
                        && let Some(oldest) = latest.pop_front()
                    {
                        oldest.abort();
                    }
                }
                Err(error) => {
                    // File descriptors are probably exhausted: accepting again at once would spin.
                    tracing::warn!(%error, "a DevTools relay cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
        }
    }
}

/// The WebSocket of a peer that names the path; any other is answered with 403.
async fn shake_hands(stream: TcpStream, path: String, message_bytes_max: usize) -> Option<LibrarySocket> {
    stream.set_nodelay(true).ok()?;
    #[expect(clippy::result_large_err, reason = "the type of the WebSocket library")]
    let check = |request: &Request, response: Response| match request.uri().path() == path {
        true => Ok(response),
        false => {
            let mut refusal = ErrorResponse::new(None);
            *refusal.status_mut() = StatusCode::FORBIDDEN;
            Err(refusal)
        }
    };
    let config = WebSocketConfig::default()
        .max_message_size(Some(message_bytes_max))
        .max_frame_size(Some(message_bytes_max));
    accept_hdr_async_with_config(stream, check, Some(config)).await.ok()
}

/// Why a link ended before either side closed it.
#[derive(Debug, thiserror::Error)]
enum RelayError {
    #[error("the browser's pipe failed")]
    Pipe(#[from] io::Error),
    #[error("the library's WebSocket failed")]
    Socket(#[from] tungstenite::Error),
    #[error("the browser took no command for {} s", WRITE_DEADLINE.as_secs())]
    Stalled,
}

/// Carries messages until either side is gone; then both are closed.
async fn carry(
    socket: LibrarySocket,
    commands: pipe::Sender,
    events: pipe::Receiver,
    message_bytes_max: usize,
) -> Result<(), RelayError> {
    let (to_library, from_library) = socket.split();
    tokio::select! {
        ended = carry_commands(from_library, commands) => ended,
        ended = carry_events(events, to_library, message_bytes_max) => ended,
    }
}

async fn carry_commands(
    mut library: WebSocketReceiver<LibraryStream>,
    mut commands: pipe::Sender,
) -> Result<(), RelayError> {
    while let Some(message) = library.next().await {
        let text = match message? {
            Message::Text(text) => text,
            Message::Close(_) => break,
            _ => continue,
        };
        // JSON escapes zero bytes, so that this one is the only one.
        let mut bytes = Buf::chain(text.as_bytes(), &b"\0"[..]);
        match timeout(WRITE_DEADLINE, commands.write_all_buf(&mut bytes)).await {
            Ok(written) => written?,
            Err(_) => return Err(RelayError::Stalled),
        }
    }
    Ok(())
}

async fn carry_events(
    events: pipe::Receiver,
    mut library: WebSocketSender<LibraryStream>,
    message_bytes_max: usize,
) -> Result<(), RelayError> {
    let mut events = BufReader::with_capacity(READ_BYTES, events);
    while let Some(message) = next_message(&mut events, message_bytes_max).await? {
        library.feed(Message::Text(message.into())).await?;
        // What follows may be half a message, whose rest comes whenever it comes.
        if !events.buffer().contains(&0) {
            library.flush().await?;
        }
    }
    Ok(())
}

/// The next message that is not too large; `None` at the end. A larger one is left out, so that its
/// page waits until its deadline and the other pages go on.
async fn next_message(
    events: &mut (impl AsyncBufRead + Unpin),
    message_bytes_max: usize,
) -> io::Result<Option<String>> {
    // With its zero byte.
    let most = message_bytes_max as u64 + 1;
    let mut is_skipping = false;
    loop {
        let mut message = Vec::new();
        let read = (&mut *events).take(most).read_until(0, &mut message).await?;
        match message.pop_if(|last| *last == 0) {
            Some(_) if is_skipping => is_skipping = false,
            // Chromium writes UTF-8 alone; at anything else the library would end the link of every
            // page.
            Some(_) => return Ok(Some(into_text(message))),
            None if read as u64 == most => {
                if !is_skipping {
                    tracing::warn!(message_bytes_max, "a DevTools message is too large and is left out");
                }
                is_skipping = true;
            }
            None => return Ok(None),
        }
    }
}

fn into_text(message: Vec<u8>) -> String {
    String::from_utf8(message).unwrap_or_else(|bad| String::from_utf8_lossy(bad.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use async_tungstenite::tokio::{ConnectStream, connect_async};
    use async_tungstenite::tungstenite::error::Error as SocketError;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The browser's ends of a pipe, and the relay at the others.
    struct RelayedBrowser {
        relay: DevToolsRelay,
        commands: pipe::Receiver,
        events: pipe::Sender,
    }

    async fn relayed(message_bytes_max: usize) -> RelayedBrowser {
        let (sender, commands) = pipe::pipe().unwrap();
        let (events, receiver) = pipe::pipe().unwrap();
        let pipe = DevToolsPipe {
            commands: sender.into_nonblocking_fd().unwrap(),
            events: receiver.into_nonblocking_fd().unwrap(),
        };
        let relay = DevToolsRelay::open_with(pipe, message_bytes_max).await.unwrap();
        RelayedBrowser { relay, commands, events }
    }

    async fn connect(address: &str) -> Result<WebSocketStream<ConnectStream>, SocketError> {
        connect_async(address).await.map(|(socket, _)| socket)
    }

    fn port(relay: &DevToolsRelay) -> u16 {
        relay.address().rsplit(':').next().unwrap().split('/').next().unwrap().parse().unwrap()
    }

    /// The next text that the library receives; `None` when the link ended.
    async fn received(socket: &mut WebSocketStream<ConnectStream>) -> Option<String> {
        match timeout(20 * SECOND, socket.next()).await.expect("a message or the end in time") {
            Some(Ok(Message::Text(text))) => Some(text.to_string()),
            _ => None,
        }
    }

    #[tokio::test]
    async fn messages_pass_whole_in_both_directions() {
        let mut browser = relayed(MESSAGE_BYTES_MAX).await;
        let mut library = connect(browser.relay.address()).await.unwrap();
        library.send(Message::text("{\"id\":1}")).await.unwrap();
        library.send(Message::text("{\"id\":2}")).await.unwrap();
        let mut commands = [0; 18];
        browser.commands.read_exact(&mut commands).await.unwrap();
        assert_eq!(&commands, b"{\"id\":1}\0{\"id\":2}\0");
        // A screenshot is larger than the pipe, and what follows it arrives in the same read.
        let large = "x".repeat(3 << 20);
        let sent = format!("{large}\0\0{{\"method\":\"\u{e9}\"}}\0half");
        let writing = tokio::spawn(async move {
            browser.events.write_all(sent.as_bytes()).await.unwrap();
            browser.events
        });
        assert_eq!(received(&mut library).await, Some(large));
        assert_eq!(received(&mut library).await.as_deref(), Some(""));
        assert_eq!(received(&mut library).await.as_deref(), Some("{\"method\":\"\u{e9}\"}"));
        let mut events = writing.await.unwrap();
        events.write_all(b" \xff\0").await.unwrap();
        assert_eq!(received(&mut library).await.as_deref(), Some("half \u{fffd}"));
    }

    #[tokio::test]
    async fn only_the_first_connection_with_the_path_is_taken_and_then_no_port_is_open() {
        let browser = relayed(MESSAGE_BYTES_MAX).await;
        let address = browser.relay.address().to_owned();
        let port = port(&browser.relay);
        let origin = format!("ws://127.0.0.1:{port}");
        let almost = format!("{}g", &address[..address.len() - 1]);
        for wrong in
            [format!("{origin}/"), format!("{origin}/devtools/browser/x"), format!("{address}/"), almost]
        {
            match connect(&wrong).await {
                Err(SocketError::Http(answer)) => assert_eq!(answer.status(), 403, "{wrong}"),
                other => panic!("{wrong}: {other:?}"),
            }
        }
        // Not a WebSocket, even with the path.
        let mut plain = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let path = address.trim_start_matches(&origin);
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        plain.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        timeout(20 * SECOND, plain.read_to_end(&mut answer)).await.expect("the end of the answer").ok();
        assert!(!answer.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&answer));

        let mut library = connect(&address).await.unwrap();
        library.send(Message::text("{}")).await.unwrap();
        let mut commands = browser.commands;
        let mut command = [0; 3];
        commands.read_exact(&mut command).await.unwrap();
        assert_eq!(&command, b"{}\0");
        assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err(), "the port is still open");
        assert!(connect(&address).await.is_err(), "a second connection was taken");
    }

    #[tokio::test]
    async fn silent_peers_keep_nobody_out() {
        let mut browser = relayed(MESSAGE_BYTES_MAX).await;
        let port = port(&browser.relay);
        let mut silent = Vec::new();
        for half in [&b""[..], b"GET / HTTP/1.1\r\nHost: "].into_iter().cycle().take(3 * HANDSHAKES_MAX) {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            stream.write_all(half).await.unwrap();
            silent.push(stream);
        }
        let mut library = connect(browser.relay.address()).await.unwrap();
        browser.events.write_all(b"{}\0").await.unwrap();
        assert_eq!(received(&mut library).await.as_deref(), Some("{}"));
        for mut stream in silent {
            let closed = timeout(20 * SECOND, stream.read(&mut [0; 16])).await.expect("the end in time");
            assert!(matches!(closed, Ok(0) | Err(_)), "a silent peer is still connected");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_port_that_nobody_connects_to_is_closed() {
        let mut browser = relayed(MESSAGE_BYTES_MAX).await;
        // The end of the pipe is the sign that the relay has ended.
        assert_eq!(browser.commands.read(&mut [0; 1]).await.unwrap(), 0);
        assert!(connect(browser.relay.address()).await.is_err());
    }

    #[tokio::test]
    async fn a_message_that_is_too_large_costs_itself_alone() {
        let mut browser = relayed(1000).await;
        let mut library = connect(browser.relay.address()).await.unwrap();
        let writing = tokio::spawn(async move {
            for length in [1000, 1001, 5, 1_000_000, 6, 2002, 999] {
                browser.events.write_all(&vec![b'x'; length]).await.unwrap();
                browser.events.write_all(&[0]).await.unwrap();
            }
            browser
        });
        for length in [1000, 5, 6, 999] {
            assert_eq!(received(&mut library).await.map(|text| text.len()), Some(length));
        }
        let mut browser = writing.await.unwrap();
        // A command of this size is the library's mistake: no other sender is behind it.
        library.send(Message::text("x".repeat(1001))).await.unwrap();
        assert_eq!(received(&mut library).await, None);
        assert_eq!(browser.commands.read(&mut [0; 1]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn the_link_ends_with_the_browser_and_the_browser_with_the_link() {
        let browser = relayed(MESSAGE_BYTES_MAX).await;
        let mut library = connect(browser.relay.address()).await.unwrap();
        drop(browser.events);
        assert_eq!(received(&mut library).await, None);

        let mut browser = relayed(MESSAGE_BYTES_MAX).await;
        let library = connect(browser.relay.address()).await.unwrap();
        drop(library);
        let ended = timeout(20 * SECOND, browser.commands.read(&mut [0; 1])).await.expect("the end in time");
        assert_eq!(ended.unwrap(), 0);

        let mut browser = relayed(MESSAGE_BYTES_MAX).await;
        let mut library = connect(browser.relay.address()).await.unwrap();
        drop(browser.relay);
        assert_eq!(received(&mut library).await, None);
        assert_eq!(browser.commands.read(&mut [0; 1]).await.unwrap(), 0);
    }
}
