//! The source of a snapshot: a served dashboard, over HTTP, or a run directory that is read here.
//! Both yield the answers of `/api/`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::sync::watch::Receiver;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use url::Url;

use super::snapshot::RunSnapshot;
use crate::answers::Refusal;
use crate::api;
use crate::follow::{DashboardState, DashboardSubject, StateChange, follow};
use crate::format::clean;
use crate::live::{self, poll};

#[derive(Debug, Clone)]
pub enum WatchSource {
    /// A run directory or a data set on this machine.
    Run(DashboardSubject),
    /// A dashboard served at this address.
    Dashboard(DashboardAddress),
}

/// The address of a dashboard, and its token.
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
        /// The given address, cut short.
        address: String,
        why: &'static str,
    },
    /// The file of the token cannot be used.
    #[error("--token-file")]
    Token(#[from] furrow_http::TokenError),
    /// No answer, or not in time.
    #[error("the dashboard at {host} does not answer: {why}")]
    Silent { host: String, why: String },
    /// The dashboard refuses the request.
    #[error("the dashboard at {host} refuses: {why}")]
    Refused { host: String, why: String },
    /// A run directory that cannot be read.
    #[error("{run}: {why}")]
    Unreadable { run: String, why: String },
    /// The terminal cannot be set up or written.
    #[error("the terminal cannot be used")]
    Terminal(#[from] std::io::Error),
}

/// Deadline of an answer: a dashboard makes four at once, and one over a million rows takes a
/// second.
const DEADLINE: Duration = Duration::from_secs(15);
/// Longest silence of the event stream, which sends something every 15 s, at least a heartbeat.
const SILENCE_MAX: Duration = Duration::from_secs(45);
/// 300 sessions take 100 kB; the metrics of a run with 1000 tasks less.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// A message of `/api/events` has about 200 characters.
const EVENT_BYTES_MAX: usize = 64 << 10;
/// Pause between two answers, and before a new try after a lost connection.
const REST: Duration = Duration::from_secs(1);
/// Most characters of a text that a dashboard sent, in a message.
const REASON_CHARS_MAX: usize = 300;

impl DashboardAddress {
    /// Reads `http://host:port/`, with the token as furrow printed it, or with the token of a file.
    pub fn new(address: &str, token_file: Option<PathBuf>) -> Result<Self, WatchError> {
        let refused = |why| WatchError::Address { address: address.chars().take(120).collect(), why };
        let url =
            Url::parse(address).map_err(|_| refused("use an address such as http://127.0.0.1:7380/"))?;
        if url.scheme() != "http" {
            return Err(refused(
                "a dashboard serves plain HTTP; open a tunnel (ssh -L 7380:127.0.0.1:7380 HOST) and use http://127.0.0.1:7380/",
            ));
        }
        let Some(host) = url.host_str().filter(|host| !host.is_empty()) else {
            return Err(refused("use an address such as http://127.0.0.1:7380/"));
        };
        let token_in_url =
            url.query_pairs().find(|(key, _)| key == "token").map(|(_, token)| token.into_owned());
        let token = match token_file {
            Some(file) => Some(furrow_http::read_token(&file)?),
            None => token_in_url,
        };
        if token.as_ref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(refused("a token has only printable characters"));
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
            // Ends with the answer; the body reports errors.
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
                "it needs a token: use --token-file, or the whole URL that furrow printed".to_owned()
            }
            _ => {
                let reply = within(DEADLINE, self.whole::<Refusal>(answer), &silent).await;
                reply.map_or_else(|_| format!("it answered {status}"), |reply| short(&reply.error))
            }
        };
        Err(WatchError::Refused { host: self.host.clone(), why })
    }

    async fn whole<T: DeserializeOwned>(&self, answer: hyper::Response<Incoming>) -> Result<T, WatchError> {
        let silent = |why: String| WatchError::Silent { host: self.host.clone(), why };
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        let bytes = body.map_err(|why| silent(why.to_string()))?.to_bytes();
        serde_json::from_slice(&bytes).map_err(|why| match why.is_data() {
            true => silent(format!(
                "its answer has another form ({}): another version of furrow or another program listens there",
                short(&why.to_string())
            )),
            false => silent("its answer is not JSON: another program listens there".to_owned()),
        })
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, WatchError> {
        let silent = |why: String| WatchError::Silent { host: self.host.clone(), why };
        let answer = self.ask(path).await?;
        within(DEADLINE, self.whole(answer), &silent).await
    }

    async fn snapshot(&self) -> Result<RunSnapshot, WatchError> {
        let overview = self.get("/api/overview").await?;
        let job = self.get("/api/job").await?;
        // A coordinator that is late for this question does not end the run.
        let sessions = match self.get("/api/sessions").await {
            Err(WatchError::Refused { .. }) => None,
            sessions => Some(sessions?),
        };
        Ok(RunSnapshot::new(overview, sessions, job))
    }
}

/// Untrusted text as a part of a message.
fn short(text: &str) -> String {
    clean(text).chars().take(REASON_CHARS_MAX).collect()
}

async fn within<T>(
    deadline: Duration,
    work: impl Future<Output = Result<T, WatchError>>,
    silent: &impl Fn(String) -> WatchError,
) -> Result<T, WatchError> {
    let late = || silent(format!("no answer within {} s", deadline.as_secs()));
    tokio::time::timeout(deadline, work).await.unwrap_or_else(|_| Err(late()))
}

/// Reads one complete snapshot.
pub(super) async fn once(source: &WatchSource) -> Result<RunSnapshot, WatchError> {
    let subject = match source {
        WatchSource::Dashboard(address) => return address.snapshot().await,
        WatchSource::Run(subject) => subject.clone(),
    };
    let run = subject.name.clone();
    let state = Arc::new(DashboardState::new(subject));
    let reader = state.clone();
    let read = tokio::task::spawn_blocking(move || reader.read_all(&CancellationToken::new())).await;
    let read = read.map_err(|why| why.to_string()).flatten();
    read.map_err(|why| WatchError::Unreadable { run, why })?;
    live::poll_once(&state).await;
    Ok(snapshot_of(&state).await)
}

async fn snapshot_of(state: &Arc<DashboardState>) -> RunSnapshot {
    let sessions = live::sessions(state).await.ok();
    RunSnapshot::new(api::overview(state), sessions, api::job(state))
}

/// Yields snapshots, one after each change.
pub(super) enum SnapshotFollower {
    /// Read here, by the same tasks as in a dashboard, which end with it.
    Run { state: Arc<DashboardState>, changes: Receiver<StateChange>, stop: CancellationToken },
    /// Read from a dashboard.
    Dashboard { address: DashboardAddress, events: Option<EventListener> },
}

impl SnapshotFollower {
    pub(super) fn new(source: &WatchSource) -> Self {
        match source {
            WatchSource::Dashboard(address) => Self::Dashboard { address: address.clone(), events: None },
            WatchSource::Run(subject) => {
                let state = Arc::new(DashboardState::new(subject.clone()));
                let stop = CancellationToken::new();
                let tasks = TaskTracker::new();
                tasks.spawn(follow(state.clone(), stop.clone()));
                tasks.spawn(poll(state.clone(), stop.clone()));
                let mut changes = state.changes();
                changes.mark_changed();
                Self::Run { state, changes, stop }
            }
        }
    }

    /// The next snapshot. After an error the caller may try again.
    pub(super) async fn next(&mut self) -> Result<RunSnapshot, WatchError> {
        match self {
            Self::Run { state, changes, .. } => {
                // `state` owns the sender, so this cannot fail.
                drop(changes.changed().await);
                Ok(snapshot_of(state).await)
            }
            Self::Dashboard { address, events } => {
                // A dashboard ends each connection after a quarter of an hour: it is gone only if
                // it accepts no new one.
                loop {
                    if let Some(events) = events
                        && events.next().await
                    {
                        break;
                    }
                    *events = Some(EventListener::open(address).await?);
                }
                address.snapshot().await
            }
        }
    }

    /// The pause between two snapshots.
    pub(super) async fn rest() {
        tokio::time::sleep(REST).await;
    }
}

impl Drop for SnapshotFollower {
    fn drop(&mut self) {
        if let Self::Run { stop, .. } = self {
            stop.cancel();
        }
    }
}

/// The event stream of a dashboard, which announces changes. It is read continuously, and the
/// newest message counts.
pub(super) struct EventListener {
    event_counts: Receiver<u64>,
    _hearing: AbortOnDropHandle<()>,
}

impl EventListener {
    async fn open(address: &DashboardAddress) -> Result<Self, WatchError> {
        let body = address.ask("/api/events").await?.into_body();
        let (sender, mut receiver) = tokio::sync::watch::channel(0);
        receiver.mark_changed(); // the first snapshot needs no event
        let hearing = tokio::spawn(count_events(body, sender));
        Ok(Self { event_counts: receiver, _hearing: AbortOnDropHandle::new(hearing) })
    }

    /// Waits for an event; `false`: the connection is lost.
    async fn next(&mut self) -> bool {
        self.event_counts.changed().await.is_ok()
    }
}

/// Counts events until the connection ends, breaks or falls silent.
async fn count_events(mut body: Incoming, sender: tokio::sync::watch::Sender<u64>) {
    let mut line = Vec::new();
    while let Ok(Some(Ok(frame))) = tokio::time::timeout(SILENCE_MAX, body.frame()).await {
        for byte in frame.into_data().unwrap_or_default() {
            match byte {
                b'\n' => {
                    if line.starts_with(b"data:") {
                        sender.send_modify(|count| *count += 1);
                    }
                    line.clear();
                }
                byte if line.len() < EVENT_BYTES_MAX => line.push(byte),
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
        check("https://farm/", Err("open a tunnel"));
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
