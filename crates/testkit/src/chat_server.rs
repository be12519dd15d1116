//! A fake chat-completions server: speaks HTTP/1.1 over a real socket and misbehaves on request.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// What the server does with one request.
#[derive(Debug, Clone)]
pub enum ServerAction {
    /// Replies with this text in a well-formed completion.
    Text(String),
    /// Replies with this body and status 200.
    Body(String),
    /// An error status, with a `Retry-After` in seconds if one is given.
    Status(u16, Option<&'static str>),
    /// Sends these bytes unchanged and closes.
    Raw(Vec<u8>),
    /// Sends nothing for this duration, then closes.
    Silence(Duration),
    /// Announces a body and sends single bytes of it for this duration.
    Drip(Duration),
    /// Announces more bytes than it sends.
    Truncated,
    /// A well-formed reply padded with this many spaces.
    Huge(usize),
    /// Redirects to this URL.
    Redirect(String),
}

/// One request as it arrived.
#[derive(Debug, Clone)]
pub struct ReceivedRequest {
    pub line: String,
    pub headers: Vec<String>,
    pub body: String,
}

/// A server that performs these actions in order and repeats the last one until it is dropped.
pub struct FakeChatServer {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// A well-formed completion with this text.
pub fn reply(text: &str) -> String {
    let quoted: String = text.chars().flat_map(char::escape_default).collect();
    let quoted = quoted.replace("\\'", "'").replace("\\u{", "\\u00").replace('}', "");
    format!(
        r#"{{"id":"x","object":"chat.completion","choices":[{{"index":0,"message":{{"role":"assistant","content":"{quoted}"}},"finish_reason":"stop"}}],"usage":{{"prompt_tokens":1200,"completion_tokens":30,"total_tokens":1230}}}}"#
    )
}

/// Token ids of the prompt, token ids of the reply and its log-probs, as servers offer them.
pub type OfferedTokens<'a> = (&'a [u32], &'a [u32], &'a [f32]);

/// A well-formed completion with any text, and with tokens under vLLM's keys if they are given.
pub fn completion(text: &str, offered: Option<OfferedTokens<'_>>) -> String {
    let quoted = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let (prompt, choice) = offered.map_or_else(Default::default, |(prompt, ids, logprobs)| {
        let content: Vec<String> =
            logprobs.iter().map(|logprob| format!(r#"{{"token":"x","logprob":{logprob}}}"#)).collect();
        let content = content.join(",");
        (
            format!(r#""prompt_token_ids":{prompt:?},"#),
            format!(r#","token_ids":{ids:?},"logprobs":{{"content":[{content}]}}"#),
        )
    });
    format!(
        r#"{{"id":"x","object":"chat.completion",{prompt}"choices":[{{"index":0,"message":{{"role":"assistant","content":"{quoted}"}},"finish_reason":"stop"{choice}}}],"usage":{{"prompt_tokens":1200,"completion_tokens":30,"total_tokens":1230,"prompt_tokens_details":{{"cached_tokens":200}}}}}}"#
    )
}

impl FakeChatServer {
    /// Starts the server on a free port of the loopback interface.
    pub fn start(deeds: Vec<ServerAction>) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let requests = Arc::<Mutex<Vec<ReceivedRequest>>>::default();
        let stop = Arc::new(AtomicBool::new(false));
        let book = requests.clone();
        let stopping = stop.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopping.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let deeds = deeds.clone();
                let book = book.clone();
                let stopping = stopping.clone();
                std::thread::spawn(move || serve(stream, &deeds, &book, &stopping));
            }
        });
        Ok(Self { address, requests, stop, thread: Some(thread) })
    }

    /// The base URL for a job's configuration.
    pub fn endpoint(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for FakeChatServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // A connection from this process wakes the listener.
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Serves one request per connection.
fn serve(stream: TcpStream, deeds: &[ServerAction], book: &Mutex<Vec<ReceivedRequest>>, stop: &AtomicBool) {
    let Some(request) = read(&stream) else { return };
    let turn = {
        let mut book = book.lock().unwrap_or_else(PoisonError::into_inner);
        book.push(request);
        book.len() - 1
    };
    let Some(deed) = deeds.get(turn).or(deeds.last()) else { return };
    // A client that disconnects is not an error of the server.
    drop(perform(stream, deed, stop));
}

fn read(stream: &TcpStream) -> Option<ReceivedRequest> {
    stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut headers = Vec::new();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        match header.trim_end() {
            "" => break,
            header => headers.push(header.to_owned()),
        }
    }
    let length = headers.iter().find_map(|header| {
        header.to_ascii_lowercase().strip_prefix("content-length:").map(|length| length.trim().to_owned())
    });
    let mut body = vec![0; length?.parse::<usize>().ok()?];
    reader.read_exact(&mut body).ok()?;
    Some(ReceivedRequest {
        line: line.trim_end().to_owned(),
        headers,
        body: String::from_utf8_lossy(&body).into_owned(),
    })
}

fn perform(mut stream: TcpStream, deed: &ServerAction, stop: &AtomicBool) -> std::io::Result<()> {
    let whole = |status: &str, extra: &str, body: &str| {
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n{extra}\r\n{body}",
            body.len()
        )
    };
    match deed {
        ServerAction::Text(text) => stream.write_all(whole("200 OK", "", &reply(text)).as_bytes()),
        ServerAction::Body(body) => stream.write_all(whole("200 OK", "", body).as_bytes()),
        ServerAction::Status(status, pause) => {
            let extra = pause.map_or_else(String::new, |pause| format!("Retry-After: {pause}\r\n"));
            let body = r#"{"error":{"message":"not now"}}"#;
            stream.write_all(whole(&format!("{status} Whatever"), &extra, body).as_bytes())
        }
        ServerAction::Raw(bytes) => stream.write_all(bytes),
        ServerAction::Silence(time) => {
            wait(*time, stop);
            Ok(())
        }
        ServerAction::Drip(time) => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{")?;
            for _ in 0..time.as_millis() / 20 {
                wait(Duration::from_millis(20), stop);
                stream.write_all(b" ")?;
            }
            Ok(())
        }
        ServerAction::Truncated => {
            let body = reply("SUCCESS");
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            stream.write_all(head.as_bytes())?;
            stream.write_all(&body.as_bytes()[..body.len() / 2])
        }
        ServerAction::Huge(bytes) => {
            let body = reply(&format!("SUCCESS{}", " ".repeat(*bytes)));
            stream.write_all(whole("200 OK", "", &body).as_bytes())
        }
        ServerAction::Redirect(to) => {
            let extra = format!("Location: {to}\r\n");
            stream.write_all(whole("307 Temporary Redirect", &extra, "").as_bytes())
        }
    }
}

fn wait(time: Duration, stop: &AtomicBool) {
    let end = std::time::Instant::now() + time;
    while std::time::Instant::now() < end && !stop.load(Ordering::SeqCst) {
        std::thread::park_timeout(Duration::from_millis(5));
    }
}
