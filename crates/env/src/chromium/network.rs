//! Intercepts a trajectory's network requests: records them to an archive, or answers them from
//! one.
//!
//! The browser's own session pauses every request of every context: of pages, frames, popups from
//! their first byte on, and workers of all kinds, with any scheme. A page's session would miss
//! popups, shared and service workers, and the egress filter sees only a tunnel for https. The
//! drawback is that the browser does not say which context a request belongs to, so a trajectory
//! with an archive has a browser of its own. WebSockets and WebRTC are not visible here: they are
//! not recorded, and in a replay the egress filter blocks them.

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
use furrow_rollout::{Task, TrajectoryAncestry};
use futures::StreamExt;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use zeroize::Zeroizing;

use super::browser::RunningBrowser;
use crate::archive::{
    ArchiveError, ArchiveMetadata, ArchiveMode, ArchiveRecorder, ArchiveRequest, ArchiveResponse,
    HttpExchange, TrajectoryArchive,
};
use crate::egress::FlightCounter;
use crate::environment::EnvironmentError;
use crate::secrets::Scrubber;

/// Most requests handled at once. Each may keep a response in memory: 16 of the largest are what a
/// browser may use itself.
const HANDLED_MAX: usize = 16;

/// Most unrecorded requests reported per step; a page may send requests without end.
const UNRECORDED_MAX: usize = 100;

/// A reported address is cut to this length.
const URL_CHARS_MAX: usize = 2048;

/// Longest wait for a complete response; one that streams for ever fails then.
const BODY_DEADLINE: Duration = Duration::from_secs(20);

/// Time for pending responses to be written after their context is closed.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// The interceptor of one trajectory. It ends with its owner.
pub(super) struct NetworkInterceptor {
    shared: Arc<InterceptorShared>,
    /// Cancelled when no further request is accepted.
    closing: CancellationToken,
    /// Cancelled to drop the pending requests.
    stop: CancellationToken,
    work: TaskTracker,
}

struct InterceptorShared {
    browser: Arc<RunningBrowser>,
    /// Counts intercepted requests, so that the page is not quiet while one is pending.
    flight: FlightCounter,
    /// Replaces values in what is recorded, and gives placeholders one spelling.
    secrets: Arc<Scrubber>,
    deadline: Duration,
    mode: InterceptorMode,
    unrecorded: Mutex<Vec<String>>,
    permits: Arc<Semaphore>,
}

enum InterceptorMode {
    Record(Arc<Mutex<Option<ArchiveRecorder>>>),
    Replay(Arc<Mutex<TrajectoryArchive>>),
}

impl NetworkInterceptor {
    /// Starts the interception, before the first page is loaded.
    pub(super) async fn begin(
        archives: &ArchiveMode,
        running: Arc<RunningBrowser>,
        flight: FlightCounter,
        (of, task): (&TrajectoryAncestry, &Task),
        secrets: Arc<Scrubber>,
        deadline: Duration,
    ) -> Result<Self, EnvironmentError> {
        let to_error = |error: ArchiveError| EnvironmentError::Failed(describe_error(&error));
        let mode = match archives {
            ArchiveMode::Record { folder, limits } => {
                let folder = folder.clone();
                let limits = *limits;
                let of = of.clone();
                let task = task.clone();
                let browser = running.product.clone();
                let recorder = run_blocking(move || {
                    let about = ArchiveMetadata {
                        trajectory: &of.trajectory_id,
                        task_id: &task.task_id,
                        start_url: &task.start_url,
                        browser: &browser,
                    };
                    ArchiveRecorder::create(&folder, about, limits)
                });
                InterceptorMode::Record(Arc::new(Mutex::new(Some(recorder.await?.map_err(to_error)?))))
            }
            ArchiveMode::Replay { folder } => {
                InterceptorMode::Replay(Arc::new(Mutex::new(open(folder, of).await?)))
            }
        };
        let stage = match mode {
            InterceptorMode::Record(_) => RequestStage::Response,
            InterceptorMode::Replay(_) => RequestStage::Request,
        };
        let paused = running.link.browser.event_listener::<EventRequestPaused>().await;
        let paused =
            paused.map_err(|error| super::link::protocol_error("listening to the network", &error))?;
        let pattern =
            RequestPattern { url_pattern: Some("*".into()), resource_type: None, request_stage: Some(stage) };
        let enable = EnableParams { patterns: Some(vec![pattern]), handle_auth_requests: None };
        running.link.call(enable, deadline, "starting the network interception").await?;
        let network = Self {
            shared: Arc::new(InterceptorShared {
                browser: running,
                flight,
                secrets,
                deadline,
                mode,
                unrecorded: Mutex::default(),
                permits: Arc::new(Semaphore::new(HANDLED_MAX)),
            }),
            closing: CancellationToken::new(),
            stop: CancellationToken::new(),
            work: TaskTracker::new(),
        };
        let shared = network.shared.clone();
        let stop = network.stop.clone();
        let work = network.work.clone();
        let closing = network.closing.clone();
        network.work.spawn(async move {
            closing.run_until_cancelled(watch(paused, &shared, &stop, &work)).await;
        });
        Ok(network)
    }

    /// Requests since the last call that have no recorded response.
    pub(super) fn unrecorded(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.shared.unrecorded))
    }

    /// Stops the interception and finishes the archive. The context is closed by now, so that
    /// pending requests end soon.
    pub(super) async fn close(self) {
        self.closing.cancel();
        self.work.close();
        if timeout(CLOSE_GRACE, self.work.wait()).await.is_err() {
            self.stop.cancel();
            self.work.wait().await;
        }
        // A dead browser has nothing left to disable.
        self.shared
            .browser
            .link
            .call(DisableParams {}, self.shared.deadline, "stopping the network interception")
            .await
            .ok();
        let Some(recorder) = self.shared.recorder() else { return };
        if let Ok(Err(error)) = run_blocking(move || recorder.finish()).await {
            tracing::warn!(error = describe_error(&error), "an archive is lost");
        }
    }
}

impl Drop for NetworkInterceptor {
    fn drop(&mut self) {
        self.closing.cancel();
        self.stop.cancel();
    }
}

async fn open(folder: &Path, of: &TrajectoryAncestry) -> Result<TrajectoryArchive, EnvironmentError> {
    let folder = folder.to_owned();
    let id = of.trajectory_id.clone();
    let opened = run_blocking(move || TrajectoryArchive::open(&folder, &id)).await?;
    opened.map_err(|error| EnvironmentError::Failed(describe_error(&error)))
}

/// Accepts paused requests while its owner lives. Each is a task of the tracker and ends with the
/// token.
async fn watch(
    mut paused: EventStream<EventRequestPaused>,
    shared: &Arc<InterceptorShared>,
    stop: &CancellationToken,
    work: &TaskTracker,
) {
    while let Some(event) = paused.next().await {
        let in_flight = shared.flight.begin();
        // The semaphore is never closed.
        let Ok(permit) = shared.permits.clone().acquire_owned().await else { return };
        let shared = shared.clone();
        let stop = stop.clone();
        work.spawn(async move {
            stop.run_until_cancelled(shared.handle(&event)).await;
            drop((in_flight, permit));
        });
    }
}

impl InterceptorShared {
    /// Takes the recorder, once.
    fn recorder(&self) -> Option<ArchiveRecorder> {
        match &self.mode {
            InterceptorMode::Record(recorder) => lock(recorder).take(),
            InterceptorMode::Replay(_) => None,
        }
    }

    async fn handle(&self, event: &EventRequestPaused) {
        let url = &event.request.url;
        if !["http://", "https://"].iter().any(|scheme| url.starts_with(scheme)) {
            return self.continue_request(&event.request_id).await;
        }
        match &self.mode {
            InterceptorMode::Record(recorder) => self.record(event, recorder).await,
            InterceptorMode::Replay(archive) => self.answer(event, archive).await,
        }
    }

    async fn record(&self, event: &EventRequestPaused, recorder: &Arc<Mutex<Option<ArchiveRecorder>>>) {
        let mut exchange = new_exchange(event, &self.secrets);
        let mut body = None;
        if let Some(reason) = &event.response_error_reason {
            exchange.missing = Some(reason.as_ref().to_owned());
            self.continue_request(&event.request_id).await;
        } else if let Err(why) = has_body(event, recorder) {
            exchange.missing = why.map(str::to_owned);
            self.continue_request(&event.request_id).await;
        } else {
            match self.body(&event.request_id).await {
                Ok(bytes) => {
                    body = Some(bytes);
                    self.continue_request(&event.request_id).await;
                }
                Err(EnvironmentError::PageHang { .. }) => {
                    // The body was already taken from the browser; an incomplete one cannot be
                    // given back.
                    exchange.missing = Some("unfinished".to_owned());
                    self.fail_request(&event.request_id, ErrorReason::TimedOut).await;
                }
                Err(_) => {
                    exchange.missing = Some("unfinished".to_owned());
                    self.continue_request(&event.request_id).await;
                }
            }
        }
        let recorder = recorder.clone();
        let secrets = self.secrets.clone();
        let added = run_blocking(move || {
            let body = body.as_deref().map(|body| secrets.bytes(body));
            match &mut *lock(&recorder) {
                Some(recorder) => recorder.add(exchange, body.as_deref()),
                None => Ok(()),
            }
        });
        if let Ok(Err(error)) = added.await {
            tracing::warn!(error = describe_error(&error), "a response is missing in an archive");
        }
    }

    async fn body(&self, id: &RequestId) -> Result<Bytes, EnvironmentError> {
        let get = GetResponseBodyParams::new(id.clone());
        let got = self.browser.link.call(get, BODY_DEADLINE, "a response").await?;
        match got.base64_encoded {
            false => Ok(got.body.into()),
            true => STANDARD
                .decode(got.body)
                .map(Bytes::from)
                .map_err(|bad| EnvironmentError::Failed(bad.to_string())),
        }
    }

    async fn answer(&self, event: &EventRequestPaused, archive: &Arc<Mutex<TrajectoryArchive>>) {
        let wanted = archive_request(event, &self.secrets);
        let request: String =
            format!("{} {}", wanted.method, wanted.url).chars().take(URL_CHARS_MAX).collect();
        let archive = archive.clone();
        let found = run_blocking(move || lock(&archive).find_response(&wanted)).await;
        match found {
            Ok(Ok(Some(ArchiveResponse::Response { status, headers, body }))) => {
                self.fulfill_request(&event.request_id, status, headers, &body).await;
            }
            Ok(Ok(Some(ArchiveResponse::Failure(why)))) => {
                let reason = why.parse().unwrap_or(ErrorReason::Failed);
                self.fail_request(&event.request_id, reason).await;
            }
            Ok(Ok(None)) => {
                self.add_unrecorded(request);
                self.fail_request(&event.request_id, ErrorReason::BlockedByClient).await;
            }
            Ok(Err(error)) => {
                self.add_unrecorded(format!("{request} ({})", describe_error(&error)));
                self.fail_request(&event.request_id, ErrorReason::BlockedByClient).await;
            }
            Err(_) => self.fail_request(&event.request_id, ErrorReason::Failed).await,
        }
    }

    fn add_unrecorded(&self, request: String) {
        let mut unrecorded = lock(&self.unrecorded);
        if unrecorded.len() < UNRECORDED_MAX {
            unrecorded.push(request);
        }
    }

    async fn continue_request(&self, id: &RequestId) {
        // A request whose page is closed needs no answer, and a dead browser needs none at all.
        self.browser.link.call(ContinueRequestParams::new(id.clone()), self.deadline, "a request").await.ok();
    }

    async fn fail_request(&self, id: &RequestId, reason: ErrorReason) {
        let fail = FailRequestParams::new(id.clone(), reason);
        self.browser.link.call(fail, self.deadline, "a request").await.ok();
    }

    async fn fulfill_request(
        &self,
        id: &RequestId,
        status: u16,
        headers: Vec<(String, String)>,
        body: &[u8],
    ) {
        let mut fulfill = FulfillRequestParams::new(id.clone(), i64::from(status));
        // Several cookies arrive as one header of several lines.
        let lines = headers.iter().flat_map(|(name, value)| value.split('\n').map(move |line| (name, line)));
        fulfill.response_headers = Some(lines.map(|(name, value)| HeaderEntry::new(name, value)).collect());
        fulfill.body = Some(STANDARD.encode(body).into());
        self.browser.link.call(fulfill, self.deadline, "a request").await.ok();
    }
}

/// Whether a response has a body worth requesting; `Err` says why not, if that is to be recorded.
fn has_body(
    event: &EventRequestPaused,
    recorder: &Arc<Mutex<Option<ArchiveRecorder>>>,
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
        Some(recorder) => recorder.check_body_size(length).map_err(Some),
        None => Err(None),
    }
}

fn new_exchange(event: &EventRequestPaused, secrets: &Scrubber) -> HttpExchange {
    let ArchiveRequest { method, url, body_sha256 } = archive_request(event, secrets);
    let scrubbed = |text: &str| secrets.text(text).into_owned();
    let headers = event.response_headers.iter().flatten();
    HttpExchange {
        method,
        url,
        request_sha256: body_sha256.map(|hash| hash.iter().map(|byte| format!("{byte:02x}")).collect()),
        resource: event.resource_type.as_ref().to_owned(),
        status: event.response_status_code.and_then(|status| u16::try_from(status).ok()).unwrap_or_default(),
        headers: headers.map(|header| (scrubbed(&header.name), scrubbed(&header.value))).collect(),
        body_sha256: None,
        body_bytes: 0,
        missing: None,
    }
}

fn archive_request(event: &EventRequestPaused, secrets: &Scrubber) -> ArchiveRequest {
    let request = &event.request;
    let sent = request.has_post_data.unwrap_or(false).then(|| {
        let parts = request.post_data_entries.iter().flatten().filter_map(|entry| entry.bytes.as_ref());
        // The protocol does not report uploaded files; such a request is identified by its other
        // parts.
        let body =
            Zeroizing::new(parts.filter_map(|part| STANDARD.decode(part).ok()).collect::<Vec<_>>().concat());
        Sha256::digest(secrets.bytes(&body)).into()
    });
    let url = secrets.text(&request.url).into_owned();
    ArchiveRequest { method: request.method.clone(), url, body_sha256: sent }
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, EnvironmentError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| EnvironmentError::Failed(error.to_string()))
}

fn describe_error(error: &ArchiveError) -> String {
    let cause = std::error::Error::source(error).map_or_else(String::new, |cause| format!(": {cause}"));
    format!("{error}{cause}")
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic can at most leave an archive that lacks a line.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
