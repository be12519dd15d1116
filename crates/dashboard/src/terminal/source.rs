//! Where the figures come from: a dashboard that is served somewhere, over HTTP, or a run directory that is read here. Either way they
//! are the answers of `/api/`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::watch::Receiver;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use url::Url;

use super::Seen;
use crate::api;
use crate::follow::{Change, State, Subject, follow};
use crate::format::clean;
use crate::live::{self, poll};

/// What is watched.
#[derive(Debug, Clone)]
pub enum WatchSource {
    /// A run directory or a data set on this machine.
    Run(Subject),
    /// A dashboard that answers somewhere.
    Dashboard(DashboardAddress),
}

/// Where a dashboard answers, and what it wants to see.
#[derive(Debug, Clone)]
pub struct DashboardAddress {
    host: String,
    token: Option<String>,
}

/// Why nothing can be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The address cannot be used.
    #[error("{address:?}: {why}")]
    Address {
        /// As it was given, cut short.
        address: String,
        /// What would be right.
        why: &'static str,
    },
    /// The file of the token cannot be used.
    #[error("--token-file")]
    Token(#[from] furrow_wire::TokenError),
    /// Nobody answers, or not in time.
    #[error("the dashboard at {host} does not answer: {why}")]
    Silent {
        /// Host and port.
        host: String,
        /// What happened instead.
        why: String,
    },
    /// It answers and refuses.
    #[error("the dashboard at {host} refuses: {why}")]
    Refused {
        /// Host and port.
        host: String,
        /// In its words.
        why: String,
    },
    /// A run directory that cannot be read.
    #[error("{run}: {why}")]
    Unreadable {
        /// Its name.
        run: String,
        /// Why not.
        why: String,
    },
    /// The terminal does not do what is asked of it.
    #[error("the terminal cannot be used")]
    Terminal(#[from] std::io::Error),
}

/// An answer comes within this time: a dashboard makes four at once, and one of a million rows takes a second.
const DEADLINE: Duration = Duration::from_secs(15);
/// It says something every 15 s, and be it that it is still there.
const SILENCE_MAX: Duration = Duration::from_secs(45);
/// 300 sessions are 100 kB; the figures of a run with 1000 tasks are less.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// A word of `/api/events` has some 200 letters.
const WORD_BYTES_MAX: usize = 64 << 10;
/// Between two answers, and before another try after a lost connection.
const REST: Duration = Duration::from_secs(1);
/// Letters of what it says when it refuses.
const SAID_MAX: usize = 300;

impl DashboardAddress {
    /// Reads `http://host:port/`, with the token as furrow printed it, or a token of a file.
    pub fn new(address: &str, token_file: Option<PathBuf>) -> Result<Self, WatchError> {
        let refused = |why| WatchError::Address { address: address.chars().take(120).collect(), why };
        let url =
            Url::parse(address).map_err(|_| refused("use an address such as http://127.0.0.1:7380/"))?;
        if url.scheme() != "http" {
            return Err(refused(
                "a dashboard speaks plain HTTP; bring it here through a tunnel (ssh -L 7380:127.0.0.1:7380 HOST) and use http://127.0.0.1:7380/",
            ));
        }
        let Some(host) = url.host_str().filter(|host| !host.is_empty()) else {
            return Err(refused("use an address such as http://127.0.0.1:7380/"));
        };
        let said = url.query_pairs().find(|(key, _)| key == "token").map(|(_, token)| token.into_owned());
        let token = match token_file {
            Some(file) => Some(furrow_wire::read_token(&file)?),
            None => said,
        };
        if token.as_ref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(refused("a token has printable characters alone"));
        }
        Ok(Self { host: format!("{host}:{}", url.port().unwrap_or(80)), token })
    }

    async fn ask(&self, path: &str) -> Result<hyper::Response<Incoming>, WatchError> {
        let silent = |why: String| WatchError::Silent { host: self.host.clone(), why };
        let mut request = Request::get(path)
            .header(header::HOST, &self.host)
            .header(header::ACCEPT, "application/json, text/event-stream");
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Empty::<Bytes>::new()).map_err(|why| silent(why.to_string()))?;
        let answered = async {
            let stream = TcpStream::connect(&self.host).await.map_err(|why| silent(why.to_string()))?;
            let made = http1::handshake(TokioIo::new(stream)).await;
            let (mut sender, connection) = made.map_err(|why| silent(why.to_string()))?;
            // It ends with the answer; how it ends, the answer's body says.
            tokio::spawn(async move { drop(connection.await) });
            sender.send_request(request).await.map_err(|why| silent(why.to_string()))
        };
        let answer = within(DEADLINE, answered, &silent).await?;
        if answer.status() == StatusCode::OK {
            return Ok(answer);
        }
        let status = answer.status();
        let why = match status {
            StatusCode::UNAUTHORIZED => {
                "it wants a token: give it with --token-file, or the whole address that furrow printed"
                    .to_owned()
            }
            _ => {
                let told = within(DEADLINE, self.whole(answer), &silent).await.unwrap_or_default();
                let said = |text: &str| clean(text).chars().take(SAID_MAX).collect();
                told["error"].as_str().map_or_else(|| format!("it answered {status}"), said)
            }
        };
        Err(WatchError::Refused { host: self.host.clone(), why })
    }

    async fn whole(&self, answer: hyper::Response<Incoming>) -> Result<Value, WatchError> {
        let silent = |why: String| WatchError::Silent { host: self.host.clone(), why };
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        let bytes = body.map_err(|why| silent(why.to_string()))?.to_bytes();
        serde_json::from_slice(&bytes)
            .map_err(|_| silent("what it says is no JSON: another program listens there".to_owned()))
    }

    async fn get(&self, path: &str) -> Result<Value, WatchError> {
        let silent = |why: String| WatchError::Silent { host: self.host.clone(), why };
        let answer = self.ask(path).await?;
        within(DEADLINE, self.whole(answer), &silent).await
    }

    /// The answers of this moment.
    async fn look(&self) -> Result<Seen, WatchError> {
        let (overview, job) = (self.get("/api/overview").await?, self.get("/api/job").await?);
        // A coordinator that is late for this question is no end of the run.
        let sessions = match self.get("/api/sessions").await {
            Err(WatchError::Refused { .. }) => Value::Null,
            sessions => sessions?,
        };
        Ok(Seen::new(overview, sessions, job))
    }
}

async fn within<T>(
    deadline: Duration,
    work: impl Future<Output = Result<T, WatchError>>,
    silent: &impl Fn(String) -> WatchError,
) -> Result<T, WatchError> {
    let late = || silent(format!("nothing came within {} s", deadline.as_secs()));
    tokio::time::timeout(deadline, work).await.unwrap_or_else(|_| Err(late()))
}

/// What is there now, read to its end.
pub(super) async fn once(source: &WatchSource) -> Result<Seen, WatchError> {
    let subject = match source {
        WatchSource::Dashboard(address) => return address.look().await,
        WatchSource::Run(subject) => subject.clone(),
    };
    let run = subject.name.clone();
    let state = Arc::new(State::new(subject));
    let reader = state.clone();
    let read = tokio::task::spawn_blocking(move || reader.read_all(&CancellationToken::new())).await;
    let read = read.map_err(|why| why.to_string()).flatten();
    read.map_err(|why| WatchError::Unreadable { run, why })?;
    live::look(&state).await;
    Ok(of_state(&state).await)
}

async fn of_state(state: &Arc<State>) -> Seen {
    let sessions = live::sessions(state).await.unwrap_or_default();
    Seen::new(api::overview(state), sessions, api::job(state))
}

/// Answers one after another, whenever something changed.
pub(super) enum Follower {
    /// Read here, by the tasks that read for a dashboard. They end with it.
    Run { state: Arc<State>, changes: Receiver<Change>, stop: CancellationToken },
    /// Told by a dashboard.
    Dashboard { address: DashboardAddress, events: Option<Events> },
}

impl Follower {
    pub fn new(source: &WatchSource) -> Self {
        match source {
            WatchSource::Dashboard(address) => Self::Dashboard { address: address.clone(), events: None },
            WatchSource::Run(subject) => {
                let (state, stop) = (Arc::new(State::new(subject.clone())), CancellationToken::new());
                let tasks = TaskTracker::new();
                tasks.spawn(follow(state.clone(), stop.clone()));
                tasks.spawn(poll(state.clone(), stop.clone()));
                let mut changes = state.changes();
                changes.mark_changed();
                Self::Run { state, changes, stop }
            }
        }
    }

    /// The next answers. An error is no end: whoever asks again gets them when they can be had.
    pub async fn next(&mut self) -> Result<Seen, WatchError> {
        match self {
            Self::Run { state, changes, .. } => {
                // The sender is in `state`, so this cannot fail while we have it.
                drop(changes.changed().await);
                Ok(of_state(state).await)
            }
            Self::Dashboard { address, events } => {
                // A dashboard ends each connection after a quarter of an hour: only where it takes no other is it gone.
                loop {
                    if let Some(events) = events
                        && events.next().await
                    {
                        break;
                    }
                    *events = Some(Events::open(address).await?);
                }
                address.look().await
            }
        }
    }

    /// Between two looks.
    pub async fn rest() {
        tokio::time::sleep(REST).await;
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if let Self::Run { stop, .. } = self {
            stop.cancel();
        }
    }
}

/// What a dashboard says without being asked: that something changed. Words are heard all the time, and the newest counts.
pub(super) struct Events {
    words: Receiver<u64>,
    _hearing: AbortOnDropHandle<()>,
}

impl Events {
    async fn open(address: &DashboardAddress) -> Result<Self, WatchError> {
        let body = address.ask("/api/events").await?.into_body();
        let (told, mut words) = tokio::sync::watch::channel(0);
        words.mark_changed(); // the first look needs no word
        let hearing = tokio::spawn(hear(body, told));
        Ok(Self { words, _hearing: AbortOnDropHandle::new(hearing) })
    }

    /// Waits for a word; `false`: the connection is lost.
    async fn next(&mut self) -> bool {
        self.words.changed().await.is_ok()
    }
}

/// Counts words until the connection ends, breaks or falls silent.
async fn hear(mut body: Incoming, told: tokio::sync::watch::Sender<u64>) {
    let mut line = Vec::new();
    while let Ok(Some(Ok(frame))) = tokio::time::timeout(SILENCE_MAX, body.frame()).await {
        for byte in frame.into_data().unwrap_or_default() {
            match byte {
                b'\n' => {
                    if line.starts_with(b"data:") {
                        told.send_modify(|words| *words += 1);
                    }
                    line.clear();
                }
                byte if line.len() < WORD_BYTES_MAX => line.push(byte),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_what_furrow_printed() {
        let check = |address: &str, want: Result<(&str, Option<&str>), &str>| {
            let got = DashboardAddress::new(address, None);
            match (got, want) {
                (Ok(got), Ok((host, token))) => {
                    assert_eq!((got.host.as_str(), got.token.as_deref()), (host, token));
                }
                (Err(got), Err(want)) => assert!(got.to_string().contains(want), "{got}"),
                (got, want) => panic!("{address}: {got:?}, not {want:?}"),
            }
        };
        check("http://127.0.0.1:7380/", Ok(("127.0.0.1:7380", None)));
        check("http://farm?token=abc", Ok(("farm:80", Some("abc"))));
        check("http://[::1]:7380/job", Ok(("[::1]:7380", None)));
        check("https://farm/", Err("through a tunnel"));
        check("farm:7380", Err("plain HTTP"));
        check("runs/night", Err("http://127.0.0.1:7380/"));
        check("http://farm?token=a%0Ab", Err("printable"));
        let error = DashboardAddress::new("http://farm", Some("/absent/token".into())).unwrap_err();
        let why = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(
            (error.to_string().as_str(), why.as_str()),
            ("--token-file", "/absent/token cannot be read")
        );
    }
}
