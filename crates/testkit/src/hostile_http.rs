//! Hostile HTTP clients: the table of requests and connections that every HTTP server of the farm
//! is tried with. After each row the server still answers others.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A server under test.
#[derive(Debug, Clone, Copy)]
pub struct HttpTarget {
    pub address: SocketAddr,
    /// Token that it requires; `None`: it answers requests that name loopback.
    pub token: Option<&'static str>,
    /// Path that a GET with the token reads.
    pub page: &'static str,
    /// Path that reads the body of a POST, and refuses an empty one.
    pub form: &'static str,
    /// Most bytes of that body.
    pub form_bytes_max: usize,
    /// Whether a form without the token is refused unread.
    pub form_needs_token: bool,
    /// Whether a form from a foreign page is refused.
    pub checks_origin: bool,
}

/// One connection: what a client sends, and how the server may answer.
struct RequestRow {
    name: &'static str,
    bytes: Vec<u8>,
    /// Statuses of the only response; [`CLOSED`]: no response.
    statuses: &'static [u16],
    /// Whether the client ends its side of the connection.
    is_half_closed: bool,
}

/// A client that occupies a connection.
struct SlowClient {
    name: &'static str,
    /// What it sends before it slows down.
    first: String,
    rest: SlowRest,
}

#[derive(Clone, Copy)]
enum SlowRest {
    Nothing,
    /// This byte again and again, with a pause.
    Drip(u8),
    /// The first part again and again, until the server reads no more.
    Flood,
}

/// In the place of a status: the server closes the connection without a response.
const CLOSED: u16 = 0;
const MALFORMED: &[u16] = &[400];
/// For what the connection may end with before the response is read.
const MALFORMED_OR_CLOSED: &[u16] = &[400, CLOSED];
const HEAD_TOO_LARGE: &[u16] = &[414, 431, CLOSED];
/// A form without content: invalid, or without its token.
const EMPTY_FORM: &[u16] = &[400, 401];
const FORBIDDEN: &[u16] = &[403];
const UNAUTHORIZED: &[u16] = &[401];

/// Time for everything that must happen.
const DEADLINE: Duration = Duration::from_secs(30);
/// Pause between two bytes of a slow client.
const DRIP: Duration = Duration::from_millis(20);
/// Time after which a write that makes no progress counts as stopped.
const FLOOD_STOPS: Duration = Duration::from_millis(200);
const FLOOD_BYTES_MAX: usize = 64 << 20;
/// Larger than the head that any server takes, whose last read may go beyond its limit by as much
/// as that.
const HEAD_BYTES: usize = 1 << 20;

impl HttpTarget {
    /// Sends each request of the table on its own connection. The connection gets one response with
    /// an expected status, and ends.
    #[track_caller]
    pub fn assert_requests(&self) {
        let rows = [self.framing_rows(), self.head_rows(), self.body_rows(), self.access_rows()];
        for row in rows.into_iter().flatten() {
            let name = row.name;
            let heard = self.converse(&row).unwrap_or_else(|why| panic!("{name}: {why}"));
            let text = String::from_utf8_lossy(&heard);
            // A second response would answer a request that another one hides in its body.
            let responses = text.matches("HTTP/1.").count();
            let status = match responses {
                0 => CLOSED,
                _ => text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(CLOSED),
            };
            assert!(responses <= 1 && row.statuses.contains(&status), "{name}: {text:.400}");
            self.assert_answers(DEADLINE, name);
        }
    }

    /// Occupies all connections with each kind of slow client, and waits until another client is
    /// answered. The server's deadlines must be shorter than half a minute.
    #[track_caller]
    pub fn assert_slow_clients(&self, connections_max: usize) {
        for client in self.slow_clients() {
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for _ in 0..connections_max {
                    // Opened here, so that all are open before the other client.
                    let stream = self.connect().unwrap_or_else(|why| panic!("{}: {why}", client.name));
                    let client = &client;
                    let is_over = &is_over;
                    // An error is what a slow client gets.
                    scope.spawn(move || client.occupy(stream, is_over).ok());
                }
                self.assert_answers(DEADLINE, client.name);
                is_over.store(true, Ordering::SeqCst);
            });
        }
    }

    /// Opens one connection more than the server accepts. Its deadline for a head must be longer
    /// than a test.
    #[track_caller]
    pub fn assert_connections_max(&self, connections_max: usize) {
        let open = || -> io::Result<TcpStream> {
            let mut stream = self.connect()?;
            stream.write_all(self.get("keep-alive").as_bytes())?;
            stream.read_exact(&mut [0; 12])?;
            Ok(stream)
        };
        let opened: io::Result<Vec<TcpStream>> = (0..connections_max).map(|_| open()).collect();
        let mut opened = opened.unwrap_or_else(|why| panic!("{connections_max} connections: {why}"));
        let is_answered = self.is_answered(Duration::from_millis(500));
        assert!(!is_answered, "connection {} is served", connections_max + 1);
        opened.pop();
        self.assert_answers(DEADLINE, "a connection has ended");
    }

    /// Requests whose length two readers could understand in different ways.
    fn framing_rows(&self) -> Vec<RequestRow> {
        let hidden = self.get("close");
        let chunked = format!("0\r\n\r\n{hidden}");
        let length = format!("Content-Length: {}\r\n", chunked.len());
        let post = |headers: &str, body: &str| self.post(headers, body);
        // The server must end these connections unasked.
        let both = |headers: &str| self.kept_post(headers, &chunked);
        vec![
            row(
                "a length, then chunks",
                EMPTY_FORM,
                both(&format!("{length}Transfer-Encoding: chunked\r\n")),
            ),
            row(
                "chunks, then a length",
                EMPTY_FORM,
                both(&format!("Transfer-Encoding: chunked\r\n{length}")),
            ),
            row(
                "a length of nothing, then chunks",
                EMPTY_FORM,
                both("Content-Length: 0\r\nTransfer-Encoding: chunked\r\n"),
            ),
            row("two lengths", MALFORMED, post("Content-Length: 5\r\nContent-Length: 6\r\n", "aaaaaa")),
            row("a list of lengths", MALFORMED, post("Content-Length: 5, 6\r\n", "aaaaaa")),
            row("a signed length", MALFORMED, post("Content-Length: +5\r\n", "aaaaa")),
            row("a length beyond 64 bits", MALFORMED, post("Content-Length: 18446744073709551616\r\n", "a")),
            row("no final chunks", MALFORMED, post("Transfer-Encoding: chunked, gzip\r\n", &chunked)),
            row("an unknown coding", MALFORMED, post("Transfer-Encoding: xchunked\r\n", &chunked)),
            row(
                "chunks in HTTP/1.0",
                MALFORMED,
                post("Transfer-Encoding: chunked\r\n", &chunked).replacen("HTTP/1.1", "HTTP/1.0", 1),
            ),
            row("no size of a chunk", MALFORMED_OR_CLOSED, post("Transfer-Encoding: chunked\r\n", "zz\r\n")),
            row(
                "a size of a chunk beyond 64 bits",
                MALFORMED_OR_CLOSED,
                post("Transfer-Encoding: chunked\r\n", "10000000000000000\r\na"),
            ),
            row("a header over two lines", MALFORMED, self.with_header("X-Folded: a\r\n b")),
            row("a blank before a colon", MALFORMED, self.with_header("Content-Length : 5")),
            row("a header without a name", MALFORMED, self.with_header(": 5")),
            row("a NUL in a header", MALFORMED, self.with_header("X-Nul: a\0b")),
            row("a carriage return in a header", MALFORMED, self.with_header("X-Return: a\rb")),
        ]
    }

    fn head_rows(&self) -> Vec<RequestRow> {
        let many: String = (0..101).map(|number| format!("X-{number}: a\r\n")).collect();
        let long = "a".repeat(HEAD_BYTES);
        vec![
            row("a flood of headers", &[431], self.with_header(many.trim_end())),
            row("a long header", HEAD_TOO_LARGE, self.with_header(&format!("X-Long: {long}"))),
            row("a long path", HEAD_TOO_LARGE, format!("GET /{long} HTTP/1.1\r\n{}\r\n", self.headers())),
            row(
                "a request of TLS",
                MALFORMED_OR_CLOSED,
                "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}\r\n\r\n".into(),
            ),
            row("HTTP/2", MALFORMED_OR_CLOSED, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into()),
            RequestRow {
                is_half_closed: true,
                ..row("half a head, then an end", MALFORMED_OR_CLOSED, "GET / HTTP/1.1\r\nHost: 127".into())
            },
        ]
    }

    fn body_rows(&self) -> Vec<RequestRow> {
        let more = self.form_bytes_max + 1;
        let chunks = format!("{more:x}\r\n{}\r\n0\r\n\r\n", "a".repeat(more));
        vec![
            row("a long body", &[413], self.post(&format!("Content-Length: {more}\r\n"), "")),
            row(
                "a long body in chunks",
                &[413, CLOSED],
                self.post("Transfer-Encoding: chunked\r\n", &chunks),
            ),
            RequestRow {
                is_half_closed: true,
                ..row("half a body, then an end", MALFORMED_OR_CLOSED, self.post(&self.form_length(), "aaa"))
            },
        ]
    }

    fn access_rows(&self) -> Vec<RequestRow> {
        let origin = |origin: &str| self.post(&format!("Content-Length: 0\r\nOrigin: {origin}\r\n"), "");
        let mut rows = Vec::new();
        if self.checks_origin {
            for (name, foreign) in [("a foreign origin", "http://evil.test"), ("no origin", "null")] {
                rows.push(row(name, FORBIDDEN, origin(foreign)));
            }
        }
        let page = self.page;
        let form = self.form;
        let address = self.address;
        let mut get = |name, statuses, headers: &str| {
            let text = format!("GET {page} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n");
            rows.push(row(name, statuses, text));
        };
        let Some(token) = self.token else {
            get("a foreign host", FORBIDDEN, "Host: evil.test\r\n");
            get("a host that looks like loopback", FORBIDDEN, "Host: 127.0.0.1.evil.test\r\n");
            get("no host", FORBIDDEN, "");
            get("two hosts", FORBIDDEN, &format!("Host: {address}\r\nHost: evil.test\r\n"));
            return rows;
        };
        let mut present = |name, value: &str| {
            get(name, UNAUTHORIZED, &format!("Host: {address}\r\nAuthorization: {value}\r\n"));
        };
        present("a wrong token", "Bearer another-token-of-letters");
        present("the token without its end", &format!("Bearer {}", &token[..token.len() - 1]));
        present("the token and more", &format!("Bearer {token}a"));
        present("the token in another scheme", &format!("Basic {token}"));
        get("no token", UNAUTHORIZED, &format!("Host: {address}\r\n"));
        get("the token in a cookie", UNAUTHORIZED, &format!("Host: {address}\r\nCookie: token={token}\r\n"));
        if self.form_needs_token {
            let headers = format!("Host: {address}\r\n{}Connection: close\r\n", self.form_length());
            let text = format!("POST {form} HTTP/1.1\r\n{headers}\r\n");
            rows.push(row("a form without a token", UNAUTHORIZED, text));
        }
        rows
    }

    fn slow_clients(&self) -> Vec<SlowClient> {
        let head = format!("GET {} HTTP/1.1\r\nHost: 127", self.page);
        let form = self.kept_post(&self.form_length(), "a");
        let client = |name, first, rest| SlowClient { name, first, rest };
        vec![
            client("sends nothing", String::new(), SlowRest::Nothing),
            client("never finishes its head", head.clone(), SlowRest::Nothing),
            client("sends its head byte by byte", head, SlowRest::Drip(b'1')),
            client("never finishes its body", form.clone(), SlowRest::Nothing),
            client("sends its body byte by byte", form, SlowRest::Drip(b'a')),
            client("sends one request and stays", self.get("keep-alive"), SlowRest::Nothing),
            client("never reads", self.get("keep-alive"), SlowRest::Flood),
        ]
    }

    /// The headers of a request that is answered.
    fn headers(&self) -> String {
        let host = format!("Host: {}\r\n", self.address);
        match self.token {
            Some(token) => format!("{host}Authorization: Bearer {token}\r\n"),
            None => host,
        }
    }

    /// Announces the longest body that is read.
    fn form_length(&self) -> String {
        format!("Content-Length: {}\r\n", self.form_bytes_max)
    }

    fn get(&self, connection: &str) -> String {
        format!("GET {} HTTP/1.1\r\n{}Connection: {connection}\r\n\r\n", self.page, self.headers())
    }

    fn with_header(&self, header: &str) -> String {
        format!("GET {} HTTP/1.1\r\n{}{header}\r\nConnection: close\r\n\r\n", self.page, self.headers())
    }

    fn post(&self, headers: &str, body: &str) -> String {
        self.kept_post(&format!("{headers}Connection: close\r\n"), body)
    }

    /// A form whose connection stays, unless the server ends it.
    fn kept_post(&self, headers: &str, body: &str) -> String {
        format!("POST {} HTTP/1.1\r\n{}{headers}\r\n{body}", self.form, self.headers())
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.set_write_timeout(Some(DEADLINE))?;
        Ok(stream)
    }

    /// Sends a row's bytes and reads until the server ends the connection.
    fn converse(&self, row: &RequestRow) -> io::Result<Vec<u8>> {
        let mut stream = self.connect()?;
        // A server may end the connection before it has read everything.
        let sent = stream.write_all(&row.bytes);
        if row.is_half_closed && sent.is_ok() {
            stream.shutdown(Shutdown::Write)?;
        }
        let mut heard = Vec::new();
        match stream.read_to_end(&mut heard) {
            Err(why) if is_reset(&why) => Ok(heard),
            read => read.map(|_| heard),
        }
    }

    #[track_caller]
    fn assert_answers(&self, limit: Duration, name: &str) {
        assert!(self.is_answered(limit), "{name}: another client is not answered");
    }

    /// Whether a request is answered within the limit.
    fn is_answered(&self, limit: Duration) -> bool {
        let ask = || -> io::Result<Vec<u8>> {
            let mut stream = TcpStream::connect(self.address)?;
            stream.set_read_timeout(Some(limit))?;
            stream.write_all(self.get("close").as_bytes())?;
            let mut heard = Vec::new();
            stream.read_to_end(&mut heard).map(|_| heard)
        };
        ask().is_ok_and(|heard| heard.starts_with(b"HTTP/1.1 200"))
    }
}

impl SlowClient {
    /// Keeps the connection until the server ends it, or the test is over.
    fn occupy(&self, mut stream: TcpStream, is_over: &AtomicBool) -> io::Result<()> {
        stream.write_all(self.first.as_bytes())?;
        let deadline = Instant::now() + DEADLINE;
        match self.rest {
            SlowRest::Nothing => {}
            SlowRest::Drip(byte) => {
                while Instant::now() < deadline {
                    std::thread::park_timeout(DRIP);
                    stream.write_all(&[byte])?;
                }
            }
            SlowRest::Flood => {
                stream.set_write_timeout(Some(FLOOD_STOPS))?;
                for _ in 0..FLOOD_BYTES_MAX / self.first.len() {
                    // It stops when the buffers of both ends are full.
                    if stream.write_all(self.first.as_bytes()).is_err() {
                        break;
                    }
                }
                while Instant::now() < deadline && !is_over.load(Ordering::SeqCst) {
                    std::thread::park_timeout(DRIP);
                }
                return Ok(());
            }
        }
        stream.read_to_end(&mut Vec::new()).map(drop)
    }
}

fn row(name: &'static str, statuses: &'static [u16], text: String) -> RequestRow {
    RequestRow { name, bytes: text.into_bytes(), statuses, is_half_closed: false }
}

fn is_reset(why: &io::Error) -> bool {
    matches!(why.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}
