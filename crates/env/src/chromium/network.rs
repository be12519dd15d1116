//! A trajectory's network between its pages and the world: recorded to an archive, or answered from one.
//!
//! The browser's own session pauses every request of every context: of pages, frames, popups from their first byte on, workers of all
//! kinds, whatever the scheme of encryption. A page's session would miss popups, shared and service workers, and the egress filter sees of
//! https no more than a tunnel. The price is that the browser does not say whose request it is, so a trajectory with an archive has
//! a browser to itself. WebSockets and WebRTC are not seen here: they are not recorded, and acted again they meet a filter that lets nothing
//! through.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use chromiumoxide::cdp::browser_protocol::fetch::{
    ContinueRequestParams, DisableParams, EnableParams, EventRequestPaused, FailRequestParams,
    FulfillRequestParams, GetResponseBodyParams, HeaderEntry, RequestId, RequestPattern, RequestStage,
};
use chromiumoxide::cdp::browser_protocol::network::{ErrorReason, ResourceType};
use chromiumoxide::listeners::EventStream;
use furrow_rollout::{Ancestry, Task};
use futures::StreamExt;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::pool::Running;
use crate::archive::{About, Answer, Archive, ArchiveError, Archives, Asked, Exchange, Recorder};
use crate::egress::Counter;
use crate::stage::StageError;

/// Requests handled at once. Each may hold a response in memory: 16 of the largest are what a browser may take by itself.
const HANDLED_MAX: usize = 16;

/// Unrecorded requests that are told of in one step; a page may ask without end.
const UNRECORDED_MAX: usize = 100;

/// An address that is told of is cut to this.
const URL_CHARS_MAX: usize = 2048;

/// Longest wait for a response to be whole; one that streams for ever is failed then.
const BODY_DEADLINE: Duration = Duration::from_secs(20);

/// Time for responses in hand to be written when their context is gone.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// Whoever stands between. It ends with its owner.
pub(super) struct Network {
    shared: Arc<Shared>,
    /// No further request is taken up.
    deaf: CancellationToken,
    /// What is in hand is dropped.
    stop: CancellationToken,
    work: TaskTracker,
}

struct Shared {
    running: Arc<Running>,
    /// A page is not quiet while a request of it is in our hands.
    flight: Counter,
    deadline: Duration,
    mode: Mode,
    unrecorded: Mutex<Vec<String>>,
    places: Arc<Semaphore>,
}

enum Mode {
    Record(Arc<Mutex<Option<Recorder>>>),
    Replay(Arc<Mutex<Archive>>),
}

impl Network {
    /// Takes its place, before the first page is loaded.
    pub async fn begin(
        archives: &Archives,
        running: Arc<Running>,
        flight: Counter,
        of: &Ancestry,
        task: &Task,
        deadline: Duration,
    ) -> Result<Self, StageError> {
        let told = |error: ArchiveError| StageError::Failed(told(&error));
        let mode = match archives {
            Archives::Record { folder, limits } => {
                let (folder, limits) = (folder.clone(), *limits);
                let (of, task, browser) = (of.clone(), task.clone(), running.product.clone());
                let recorder = blocking(move || {
                    let about = About {
                        trajectory: &of.trajectory_id,
                        task_id: &task.task_id,
                        start_url: &task.start_url,
                        browser: &browser,
                    };
                    Recorder::create(&folder, about, limits)
                });
                Mode::Record(Arc::new(Mutex::new(Some(recorder.await?.map_err(told)?))))
            }
            Archives::Replay { folder } => Mode::Replay(Arc::new(Mutex::new(open(folder, of).await?))),
        };
        let stage = match mode {
            Mode::Record(_) => RequestStage::Response,
            Mode::Replay(_) => RequestStage::Request,
        };
        let paused = running.link.browser.event_listener::<EventRequestPaused>().await;
        let paused = paused.map_err(|error| super::link::failed("listening to the network", &error))?;
        let pattern =
            RequestPattern { url_pattern: Some("*".into()), resource_type: None, request_stage: Some(stage) };
        let enable = EnableParams { patterns: Some(vec![pattern]), handle_auth_requests: None };
        running.link.call(enable, deadline, "watching the network").await?;
        let network = Self {
            shared: Arc::new(Shared {
                running,
                flight,
                deadline,
                mode,
                unrecorded: Mutex::default(),
                places: Arc::new(Semaphore::new(HANDLED_MAX)),
            }),
            deaf: CancellationToken::new(),
            stop: CancellationToken::new(),
            work: TaskTracker::new(),
        };
        let (shared, stop, work) = (network.shared.clone(), network.stop.clone(), network.work.clone());
        let deaf = network.deaf.clone();
        network.work.spawn(async move {
            deaf.run_until_cancelled(watch(paused, &shared, &stop, &work)).await;
        });
        Ok(network)
    }

    /// Requests since the last call that nothing was recorded for.
    pub fn unrecorded(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.shared.unrecorded))
    }

    /// Lets go of the network and finishes the archive. The context is gone by now, so what is still in hand ends soon.
    pub async fn close(self) {
        self.deaf.cancel();
        self.work.close();
        if timeout(CLOSE_GRACE, self.work.wait()).await.is_err() {
            self.stop.cancel();
            self.work.wait().await;
        }
        // A browser that is dead has nothing left to disable.
        self.shared
            .running
            .link
            .call(DisableParams {}, self.shared.deadline, "leaving the network")
            .await
            .ok();
        let Some(recorder) = self.shared.recorder() else { return };
        if let Ok(Err(error)) = blocking(move || recorder.finish()).await {
            tracing::warn!(error = told(&error), "an archive is lost");
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.deaf.cancel();
        self.stop.cancel();
    }
}

async fn open(folder: &Path, of: &Ancestry) -> Result<Archive, StageError> {
    let (folder, id) = (folder.to_owned(), of.trajectory_id.clone());
    let opened = blocking(move || Archive::open(&folder, &id)).await?;
    opened.map_err(|error| StageError::Failed(told(&error)))
}

/// Takes paused requests while its owner lives. Each is a task of the tracker and ends with the token.
async fn watch(
    mut paused: EventStream<EventRequestPaused>,
    shared: &Arc<Shared>,
    stop: &CancellationToken,
    work: &TaskTracker,
) {
    while let Some(event) = paused.next().await {
        let asked = shared.flight.ask();
        // Nobody closes the semaphore.
        let Ok(place) = shared.places.clone().acquire_owned().await else { return };
        let (shared, stop) = (shared.clone(), stop.clone());
        work.spawn(async move {
            stop.run_until_cancelled(shared.handle(&event)).await;
            drop((asked, place));
        });
    }
}

impl Shared {
    /// What records, once.
    fn recorder(&self) -> Option<Recorder> {
        match &self.mode {
            Mode::Record(recorder) => lock(recorder).take(),
            Mode::Replay(_) => None,
        }
    }

    async fn handle(&self, event: &EventRequestPaused) {
        let url = &event.request.url;
        if !["http://", "https://"].iter().any(|scheme| url.starts_with(scheme)) {
            return self.go_on(&event.request_id).await;
        }
        match &self.mode {
            Mode::Record(recorder) => self.record(event, recorder).await,
            Mode::Replay(archive) => self.answer(event, archive).await,
        }
    }

    async fn record(&self, event: &EventRequestPaused, recorder: &Arc<Mutex<Option<Recorder>>>) {
        let mut exchange = exchange(event);
        let mut body = None;
        if let Some(reason) = &event.response_error_reason {
            exchange.missing = Some(reason.as_ref().to_owned());
            self.go_on(&event.request_id).await;
        } else if let Err(why) = has_body(event, recorder) {
            exchange.missing = why.map(str::to_owned);
            self.go_on(&event.request_id).await;
        } else {
            match self.body(&event.request_id).await {
                Ok(bytes) => {
                    body = Some(bytes);
                    self.go_on(&event.request_id).await;
                }
                Err(StageError::PageHang { .. }) => {
                    // Its bytes were taken from it; what is not whole by now cannot be given back.
                    exchange.missing = Some("unfinished".to_owned());
                    self.fail(&event.request_id, ErrorReason::TimedOut).await;
                }
                Err(_) => {
                    exchange.missing = Some("unfinished".to_owned());
                    self.go_on(&event.request_id).await;
                }
            }
        }
        let recorder = recorder.clone();
        let added = blocking(move || match &mut *lock(&recorder) {
            Some(recorder) => recorder.add(exchange, body.as_deref()),
            None => Ok(()),
        });
        if let Ok(Err(error)) = added.await {
            tracing::warn!(error = told(&error), "a response is missing in an archive");
        }
    }

    async fn body(&self, id: &RequestId) -> Result<Bytes, StageError> {
        let get = GetResponseBodyParams::new(id.clone());
        let got = self.running.link.call(get, BODY_DEADLINE, "a response").await?;
        match got.base64_encoded {
            false => Ok(got.body.into()),
            true => {
                STANDARD.decode(got.body).map(Bytes::from).map_err(|bad| StageError::Failed(bad.to_string()))
            }
        }
    }

    async fn answer(&self, event: &EventRequestPaused, archive: &Arc<Mutex<Archive>>) {
        let asked = asked(event);
        let request: String = format!("{} {}", asked.method, asked.url).chars().take(URL_CHARS_MAX).collect();
        let archive = archive.clone();
        let found = blocking(move || lock(&archive).answer(&asked)).await;
        match found {
            Ok(Ok(Some(Answer::Response { status, headers, body }))) => {
                self.fulfill(&event.request_id, status, headers, &body).await;
            }
            Ok(Ok(Some(Answer::Failure(why)))) => {
                let reason = why.parse().unwrap_or(ErrorReason::Failed);
                self.fail(&event.request_id, reason).await;
            }
            Ok(Ok(None)) => {
                self.tell(request);
                self.fail(&event.request_id, ErrorReason::BlockedByClient).await;
            }
            Ok(Err(error)) => {
                self.tell(format!("{request} ({})", told(&error)));
                self.fail(&event.request_id, ErrorReason::BlockedByClient).await;
            }
            Err(_) => self.fail(&event.request_id, ErrorReason::Failed).await,
        }
    }

    fn tell(&self, request: String) {
        let mut unrecorded = lock(&self.unrecorded);
        if unrecorded.len() < UNRECORDED_MAX {
            unrecorded.push(request);
        }
    }

    async fn go_on(&self, id: &RequestId) {
        // A request whose page is gone needs no answer, and a dead browser none at all.
        self.running.link.call(ContinueRequestParams::new(id.clone()), self.deadline, "a request").await.ok();
    }

    async fn fail(&self, id: &RequestId, reason: ErrorReason) {
        let fail = FailRequestParams::new(id.clone(), reason);
        self.running.link.call(fail, self.deadline, "a request").await.ok();
    }

    async fn fulfill(&self, id: &RequestId, status: u16, headers: Vec<(String, String)>, body: &[u8]) {
        let mut fulfill = FulfillRequestParams::new(id.clone(), i64::from(status));
        // Several cookies come as one header of several lines.
        let lines = headers.iter().flat_map(|(name, value)| value.split('\n').map(move |line| (name, line)));
        fulfill.response_headers = Some(lines.map(|(name, value)| HeaderEntry::new(name, value)).collect());
        fulfill.body = Some(STANDARD.encode(body).into());
        self.running.link.call(fulfill, self.deadline, "a request").await.ok();
    }
}

/// Whether a response's body is worth asking for; `Err` says why not, where that is to be told.
fn has_body(
    event: &EventRequestPaused,
    recorder: &Arc<Mutex<Option<Recorder>>>,
) -> Result<(), Option<&'static str>> {
    let status = event.response_status_code.unwrap_or_default();
    let bodiless = matches!(status, 100..=199 | 204 | 205 | 304 | 301 | 302 | 303 | 307 | 308);
    if bodiless || event.request.method == "HEAD" {
        return Err(None);
    }
    if matches!(event.resource_type, ResourceType::EventSource | ResourceType::WebSocket) {
        return Err(Some("stream"));
    }
    let headers = event.response_headers.iter().flatten();
    let mut lengths = headers.filter(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length = lengths.next().and_then(|header| header.value.parse().ok()).unwrap_or(0);
    match &*lock(recorder) {
        Some(recorder) => recorder.takes(length).map_err(Some),
        None => Err(None),
    }
}

fn exchange(event: &EventRequestPaused) -> Exchange {
    let Asked { method, url, body_sha256 } = asked(event);
    let headers = event.response_headers.iter().flatten();
    Exchange {
        method,
        url,
        request_sha256: body_sha256.map(|hash| hash.iter().map(|byte| format!("{byte:02x}")).collect()),
        resource: event.resource_type.as_ref().to_owned(),
        status: event.response_status_code.and_then(|status| u16::try_from(status).ok()).unwrap_or_default(),
        headers: headers.map(|header| (header.name.clone(), header.value.clone())).collect(),
        body_sha256: None,
        body_bytes: 0,
        missing: None,
    }
}

fn asked(event: &EventRequestPaused) -> Asked {
    let request = &event.request;
    let sent = request.has_post_data.unwrap_or(false).then(|| {
        let mut hash = Sha256::new();
        let parts = request.post_data_entries.iter().flatten().filter_map(|entry| entry.bytes.as_ref());
        // What was sent as a file is not told; such a request is known by the rest of it.
        parts.filter_map(|part| STANDARD.decode(part).ok()).for_each(|part| hash.update(part));
        hash.finalize().into()
    });
    Asked { method: request.method.clone(), url: request.url.clone(), body_sha256: sent }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, StageError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| StageError::Failed(error.to_string()))
}

fn told(error: &ArchiveError) -> String {
    let cause = std::error::Error::source(error).map_or_else(String::new, |cause| format!(": {cause}"));
    format!("{error}{cause}")
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panic can leave behind is an archive that misses a line.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
