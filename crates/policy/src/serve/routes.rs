//! Routes requests to their kind of answer: whole, streamed, or an error in the protocol's form.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use furrow_openai::server::{ApiError, ChatCompletion, ChatRequest, DONE, models};
use furrow_telemetry::{ChatAnswered, ChatRefused};
use futures::StreamExt as _;
use http::header::{self, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited, StreamBody};
use hyper::body::{Body, Frame};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::access::AccessCheck;
use super::chats::{ChatService, DeltaSink, PreparedChat};

pub(super) type ChatHttpResponse = Response<UnsyncBoxBody<Bytes, Infallible>>;

#[derive(Clone)]
pub(super) struct ChatRoutes {
    access: Arc<AccessCheck>,
    chats: Arc<ChatService>,
    /// Permits of running and waiting requests.
    admission: Arc<Semaphore>,
    /// Permits of running requests.
    working: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
    cut: CancellationToken,
}

/// Permits of a running request; dropping them lets the next one run.
struct WorkPermit {
    _admission: OwnedSemaphorePermit,
    _working: OwnedSemaphorePermit,
}

/// Deadline of a request's body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Events of a stream that wait for a slow reader. The engine does not wait: its queue holds the
/// whole reply.
const PARTS_MAX: usize = 16;
/// Deadline for a reader to take the last event of an aborted stream, equal to the deadline of
/// every write.
const LAST_EVENT_TIMEOUT: Duration = Duration::from_secs(60);
const JSON: &str = "application/json";

impl ChatRoutes {
    pub fn new(
        access: AccessCheck,
        chats: Arc<ChatService>,
        tasks: TaskTracker,
        stop: CancellationToken,
        cut: CancellationToken,
    ) -> Self {
        let requests = chats.config.requests_max;
        let queue = chats.config.queue_max;
        Self {
            access: Arc::new(access),
            admission: Arc::new(Semaphore::new(requests + queue)),
            working: Arc::new(Semaphore::new(requests)),
            chats,
            tasks,
            stop,
            cut,
        }
    }

    /// Number of running requests.
    pub fn at_work(&self) -> usize {
        self.chats.config.requests_max - self.working.available_permits()
    }

    /// Answers any request. The content of a request cannot make it fail.
    pub async fn answer<B>(&self, request: Request<B>) -> ChatHttpResponse
    where
        B: Body + Send,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut answer = self.route(request).await.unwrap_or_else(|error| refused(&error));
        let headers = answer.headers_mut();
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        answer
    }

    async fn route<B>(&self, request: Request<B>) -> Result<ChatHttpResponse, ApiError>
    where
        B: Body + Send,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let path = request.uri().path().to_owned();
        let method = request.method().clone();
        if path == "/health" {
            return Ok(self.health());
        }
        self.access.check(request.headers())?;
        let models = models(&self.chats.config.model, self.chats.created, self.chats.context_tokens_max());
        match (path.as_str(), &method) {
            ("/v1/chat/completions", &Method::POST) => self.chat(request).await,
            ("/v1/models", &Method::GET | &Method::HEAD) => Ok(whole(StatusCode::OK, &models)),
            ("/v1/chat/completions", _) => Ok(not_allowed("POST")),
            ("/v1/models", _) => Ok(not_allowed("GET, HEAD")),
            (other, method) => match other.strip_prefix("/v1/models/") {
                Some(name) if matches!(*method, Method::GET | Method::HEAD) => {
                    // Clients send the slash of `acme/tiny` as it is or as %2F.
                    self.chats.check_model(&percent_decode_str(name).decode_utf8_lossy())?;
                    Ok(whole(StatusCode::OK, &models["data"][0]))
                }
                Some(_) => Ok(not_allowed("GET, HEAD")),
                None => {
                    let why =
                        "unknown path; use /v1/chat/completions, /v1/models or /health, see docs/SERVE.md";
                    Err(ApiError::of(404, "invalid_request_error", "unknown_url", why))
                }
            },
        }
    }

    /// Whether it takes requests. The answer contains nothing else, so it needs no token.
    fn health(&self) -> ChatHttpResponse {
        match self.stop.is_cancelled() {
            false => whole(StatusCode::OK, &json!({ "status": "ok" })),
            true => whole(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "draining" })),
        }
    }

    async fn chat<B>(&self, request: Request<B>) -> Result<ChatHttpResponse, ApiError>
    where
        B: Body + Send,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let began = Instant::now();
        let deadline = began + self.chats.config.deadline;
        let answer = async {
            let admission = self.admit()?;
            // The body is read before a permit to run is taken, so that a slow sender does not
            // block others.
            let body = self.body(request, deadline).await?;
            let permit = self.start_work(admission, deadline).await?;
            let limits = self.chats.config.limits;
            let reading = tokio::task::spawn_blocking(move || ChatRequest::read(&body, &limits));
            let request = reading.await.unwrap_or_else(|why| Err(failed(&why.to_string())))?;
            let is_streamed = request.stream;
            let prepared = within(deadline, self.chats.prepare(request)).await?;
            if is_streamed {
                return Ok(self.stream(prepared, permit, began, deadline));
            }
            let envelope = prepared.envelope.clone();
            let completion =
                self.until_cut(deadline, self.chats.reply(prepared, DeltaSink::Gathered)).await?;
            drop(permit);
            answered(&completion, began);
            Ok::<_, ApiError>(whole(StatusCode::OK, &envelope.completion(&completion)))
        };
        answer.await.inspect_err(refusal)
    }

    /// A permit to wait or run. If too many requests wait, one more is refused at once.
    fn admit(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        if self.stop.is_cancelled() {
            return Err(draining());
        }
        let full = || {
            let waiting = self.chats.config.queue_max;
            let why = format!("{waiting} requests are waiting; try again, or raise policy.serve.queue_max");
            ApiError::of(429, "rate_limit_error", "queue_full", why)
        };
        self.admission.clone().try_acquire_owned().map_err(|_| full())
    }

    /// A permit to run.
    async fn start_work(
        &self,
        admission: OwnedSemaphorePermit,
        deadline: Instant,
    ) -> Result<WorkPermit, ApiError> {
        let working = tokio::select! {
            biased;
            () = self.stop.cancelled() => return Err(draining()),
            working = timeout_at(deadline, self.working.clone().acquire_owned()) => working.map_err(|_| late())?,
        };
        let working = working.map_err(|_| draining())?;
        Ok(WorkPermit { _admission: admission, _working: working })
    }

    async fn body<B>(&self, request: Request<B>, deadline: Instant) -> Result<Bytes, ApiError>
    where
        B: Body + Send,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let most = self.chats.config.body_bytes_max;
        let too_large = || {
            let why = format!("a request may have at most {most} bytes");
            ApiError::of(413, "invalid_request_error", "request_too_large", why)
        };
        if request.body().size_hint().lower() > most as u64 {
            return Err(too_large());
        }
        let body = read_body(Limited::new(request.into_body(), most));
        let body_deadline = deadline.min(Instant::now() + BODY_TIMEOUT);
        match timeout_at(body_deadline, body).await {
            Ok(Ok(body)) => Ok(body),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
            Ok(Err(_)) => {
                Err(ApiError::of(400, "invalid_request_error", "body_cut", "the body ended too early"))
            }
            Err(_) => {
                Err(ApiError::of(408, "invalid_request_error", "body_late", "the body was not sent in time"))
            }
        }
    }

    /// Runs work within its deadline and until the worker cuts running requests.
    async fn until_cut<T>(
        &self,
        deadline: Instant,
        work: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        tokio::select! {
            done = within(deadline, work) => done,
            () = self.cut.cancelled() => Err(draining()),
        }
    }

    /// Streams an answer. Its task ends when the reader leaves.
    fn stream(
        &self,
        prepared: PreparedChat,
        permit: WorkPermit,
        began: Instant,
        deadline: Instant,
    ) -> ChatHttpResponse {
        let (frames, body) = mpsc::channel(PARTS_MAX);
        let routes = self.clone();
        self.tasks.spawn(async move {
            let outcome = tokio::select! {
                completion = routes.until_cut(deadline, routes.stream_reply(prepared, &frames)) => completion,
                () = frames.closed() => return,
            };
            drop(permit);
            match outcome {
                Ok(completion) => answered(&completion, began),
                Err(error) => {
                    refusal(&error);
                    break_off(&frames, &error).await;
                }
            }
        });
        let frames = ReceiverStream::new(body).map(|bytes| Ok(Frame::data(bytes)));
        let mut answer = Response::new(StreamBody::new(frames).boxed_unsync());
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        answer
    }

    async fn stream_reply(
        &self,
        prepared: PreparedChat,
        frames: &mpsc::Sender<Bytes>,
    ) -> Result<ChatCompletion, ApiError> {
        let envelope = prepared.envelope.clone();
        let prompt = prepared.ids.then(|| prepared.prompt_ids());
        send(frames, &envelope.first_chunk(prompt.as_deref())).await;
        let (parts, mut deltas) = mpsc::channel(PARTS_MAX);
        let forwarding = async {
            while let Some(delta) = deltas.recv().await {
                send(frames, &envelope.delta_chunk(&delta)).await;
            }
        };
        let (outcome, ()) = tokio::join!(self.chats.reply(prepared, DeltaSink::Streamed(parts)), forwarding);
        let completion = outcome?;
        send(frames, &envelope.finish_chunk(completion.finish)).await;
        if envelope.counts_usage {
            send(frames, &envelope.usage_chunk(completion.usage)).await;
        }
        frames.send(frame(DONE)).await.ok();
        Ok(completion)
    }
}

/// Reads a body to its end. Each part is copied and freed, because a part of a single byte keeps
/// its whole buffer alive.
async fn read_body<B: Body>(body: B) -> Result<Bytes, B::Error> {
    let mut body = std::pin::pin!(body);
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            whole.put(data);
        }
    }
    Ok(whole.freeze())
}

async fn within<T>(
    deadline: Instant,
    work: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    timeout_at(deadline, work).await.unwrap_or_else(|_| Err(late()))
}

fn answered(completion: &ChatCompletion, began: Instant) {
    let usage = completion.usage;
    ChatAnswered {
        prompt_tokens: usage.prompt_tokens.into(),
        cached_tokens: usage.cached_tokens.into(),
        completion_tokens: usage.completion_tokens.into(),
        micros: began.elapsed().as_micros() as u64,
    }
    .emit();
}

fn refusal(error: &ApiError) {
    ChatRefused { status: error.status, code: error.code.unwrap_or(error.kind) }.emit();
}

fn late() -> ApiError {
    let why = "the request was not answered in time; ask for less, or raise policy.serve.deadline_millis";
    ApiError::of(503, "server_error", "deadline_exceeded", why)
}

fn draining() -> ApiError {
    ApiError::of(503, "server_error", "draining", "this worker is stopping; use another")
}

fn failed(why: &str) -> ApiError {
    ApiError::of(500, "server_error", "failed", why)
}

fn not_allowed(methods: &'static str) -> ChatHttpResponse {
    let why = format!("use {methods}");
    let mut answer = refused(&ApiError::of(405, "invalid_request_error", "method_not_allowed", why));
    answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static(methods));
    answer
}

/// The caller notices elsewhere that the reader has left.
async fn send(frames: &mpsc::Sender<Bytes>, value: &Value) {
    frames.send(frame(&value.to_string())).await.ok();
}

/// Ends a stream with an error event. Without it an aborted reply looks complete, so this waits for
/// a slow reader.
async fn break_off(frames: &mpsc::Sender<Bytes>, error: &ApiError) {
    let sending = frames.send(frame(&error.json().to_string()));
    // The reader may have left, or reads nothing.
    drop(tokio::time::timeout(LAST_EVENT_TIMEOUT, sending).await);
}

fn frame(data: &str) -> Bytes {
    Bytes::from(format!("data: {data}\n\n"))
}

fn refused(error: &ApiError) -> ChatHttpResponse {
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut answer = whole(status, &error.json());
    let headers = answer.headers_mut();
    match status {
        StatusCode::UNAUTHORIZED => {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"furrow\""));
        }
        StatusCode::TOO_MANY_REQUESTS => {
            // In seconds.
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        _ => {}
    }
    answer
}

fn whole(status: StatusCode, body: &Value) -> ChatHttpResponse {
    let mut answer = Response::new(Full::new(Bytes::from(body.to_string())).boxed_unsync());
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON));
    answer
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn parts_of_a_body_are_released_as_they_arrive() {
        /// The buffer that a part was read with.
        struct CountedBuffer(Vec<u8>, Arc<AtomicUsize>);
        impl AsRef<[u8]> for CountedBuffer {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        impl Drop for CountedBuffer {
            fn drop(&mut self) {
                self.1.fetch_sub(1, Ordering::SeqCst);
            }
        }
        let live_buffers = Arc::new(AtomicUsize::new(0));
        let parts = futures::stream::iter(0..50u8).map({
            let live_buffers = live_buffers.clone();
            move |byte| {
                assert_eq!(live_buffers.fetch_add(1, Ordering::SeqCst), 0, "the previous part was freed");
                let part =
                    Bytes::from_owner(CountedBuffer(vec![byte; 100], live_buffers.clone())).slice(7..8);
                Ok::<_, Infallible>(Frame::data(part))
            }
        });
        let whole = read_body(StreamBody::new(parts)).await.unwrap();
        assert_eq!(whole, (0..50).collect::<Vec<u8>>());
    }

    #[tokio::test]
    async fn a_slow_reader_still_gets_the_event_of_a_broken_stream() {
        let (frames, mut reader) = mpsc::channel(1);
        send(&frames, &json!("a part")).await;
        let error = late();
        let reading = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(reader.recv().await.unwrap(), "data: \"a part\"\n\n");
            String::from_utf8(reader.recv().await.unwrap().to_vec()).unwrap()
        };
        let both = async { tokio::join!(break_off(&frames, &error), reading).1 };
        let last = tokio::time::timeout(Duration::from_secs(10), both).await.unwrap();
        assert!(last.contains("deadline_exceeded"), "{last}");
        // A reader that has left delays nothing.
        drop(reader);
        tokio::time::timeout(Duration::from_secs(10), break_off(&frames, &error)).await.unwrap();
    }
}
