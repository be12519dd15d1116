//! The paths of the endpoint, and their kinds of answer: whole, streamed, or an error in the
//! protocol's form.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::{any, get, post};
use bytes::Bytes;
use furrow_http::{AccessControl, AccessLayer, BodyError, CHALLENGE, JSON, ServerTasks, read_body, respond};
use furrow_openai::server::{ApiError, ChatCompletion, ChatRequest, DONE, models};
use furrow_telemetry::{ChatAnswered, ChatRefused};
use futures::StreamExt as _;
use http::StatusCode;
use http::header::{self, HeaderValue};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, timeout_at};
use tokio_stream::wrappers::ReceiverStream;

use super::access::access_error;
use super::chats::{ChatService, DeltaSink, PreparedChat};

#[derive(Clone)]
pub(super) struct ChatRoutes {
    chats: Arc<ChatService>,
    /// Permits of running and waiting requests.
    admission: Arc<Semaphore>,
    /// Permits of running requests.
    working: Arc<Semaphore>,
    tasks: ServerTasks,
    body_timeout: Duration,
}

/// Permits of a running request; dropping them lets the next one run.
struct WorkPermit {
    _admission: OwnedSemaphorePermit,
    _working: OwnedSemaphorePermit,
}

/// Events of a stream that wait for a slow reader. The engine does not wait: its queue holds the
/// whole reply.
const PARTS_MAX: usize = 16;
/// Deadline for a reader to take the last event of an aborted stream, equal to the deadline of
/// every write.
const LAST_EVENT_TIMEOUT: Duration = Duration::from_secs(60);

/// The service of the endpoint: its paths, all but `/health` behind the access control.
pub(super) fn router(routes: ChatRoutes, access: AccessControl) -> Router {
    let access = AccessLayer::new(Arc::new(access), |why, _| refused(&access_error(why)));
    Router::new()
        .fallback_service(guarded_paths(routes.clone()))
        .layer(access)
        .route("/health", any(health))
        .layer(map_response(finish))
        .with_state(routes)
}

/// A router of its own, because axum names the methods of a path in the response of any layer
/// around its routes, also to a request without the token.
fn guarded_paths(routes: ChatRoutes) -> Router {
    let model_path = || get(model).fallback(async || not_allowed("GET, HEAD"));
    Router::new()
        .route("/v1/chat/completions", post(chat).fallback(async || not_allowed("POST")))
        .route("/v1/models", get(model_list).fallback(async || not_allowed("GET, HEAD")))
        .route("/v1/models/", model_path())
        .route("/v1/models/{*name}", model_path())
        .fallback(unknown_path)
        .with_state(routes)
}

/// Whether the endpoint takes requests. The answer contains nothing else, so it needs no token.
async fn health(State(routes): State<ChatRoutes>) -> Response {
    match routes.tasks.stop.is_cancelled() {
        false => whole(StatusCode::OK, &json!({ "status": "ok" })),
        true => whole(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "draining" })),
    }
}

async fn model_list(State(routes): State<ChatRoutes>) -> Response {
    whole(StatusCode::OK, &routes.models())
}

/// Clients send the slash of `acme/tiny` as it is or as %2F. A name that is not UTF-8 counts as
/// empty.
async fn model(State(routes): State<ChatRoutes>, name: Result<Path<String>, PathRejection>) -> Response {
    let name = name.map_or_else(|_| String::new(), |Path(name)| name);
    match routes.chats.check_model(&name) {
        Ok(()) => whole(StatusCode::OK, &routes.models()["data"][0]),
        Err(error) => refused(&error),
    }
}

async fn chat(State(routes): State<ChatRoutes>, request: Request) -> Response {
    routes.chat(request.into_body()).await.unwrap_or_else(|error| refused(&error))
}

async fn unknown_path() -> Response {
    let why = "unknown path; use /v1/chat/completions, /v1/models or /health, see docs/SERVE.md";
    refused(&ApiError::of(404, "invalid_request_error", "unknown_url", why))
}

/// Sets the headers of every response.
async fn finish(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl ChatRoutes {
    pub fn new(chats: Arc<ChatService>, tasks: ServerTasks, body_timeout: Duration) -> Self {
        let requests = chats.config.requests_max;
        let queue = chats.config.queue_max;
        Self {
            admission: Arc::new(Semaphore::new(requests + queue)),
            working: Arc::new(Semaphore::new(requests)),
            chats,
            tasks,
            body_timeout,
        }
    }

    /// Number of running requests.
    pub fn at_work(&self) -> usize {
        self.chats.config.requests_max - self.working.available_permits()
    }

    fn models(&self) -> Value {
        models(&self.chats.config.model, self.chats.created, self.chats.context_tokens_max())
    }

    async fn chat(&self, body: Body) -> Result<Response, ApiError> {
        let began = Instant::now();
        let deadline = began + self.chats.config.deadline;
        let answer = async {
            let admission = self.admit()?;
            // The body is read before a permit to run is taken, so that a slow sender does not
            // block others.
            let body = self.body(body, deadline).await?;
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
        if self.tasks.stop.is_cancelled() {
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
            () = self.tasks.stop.cancelled() => return Err(draining()),
            working = timeout_at(deadline, self.working.clone().acquire_owned()) => working.map_err(|_| late())?,
        };
        let working = working.map_err(|_| draining())?;
        Ok(WorkPermit { _admission: admission, _working: working })
    }

    async fn body(&self, body: Body, deadline: Instant) -> Result<Bytes, ApiError> {
        let most = self.chats.config.body_bytes_max;
        let body_deadline = deadline.min(Instant::now() + self.body_timeout);
        read_body(body, most, body_deadline).await.map_err(|error| match error {
            BodyError::TooLarge => {
                let why = format!("a request may have at most {most} bytes");
                ApiError::of(413, "invalid_request_error", "request_too_large", why)
            }
            BodyError::Cut => {
                ApiError::of(400, "invalid_request_error", "body_cut", "the body ended too early")
            }
            BodyError::Late => {
                ApiError::of(408, "invalid_request_error", "body_late", "the body was not sent in time")
            }
        })
    }

    /// Runs work within its deadline and until the worker cuts running requests.
    async fn until_cut<T>(
        &self,
        deadline: Instant,
        work: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        tokio::select! {
            done = within(deadline, work) => done,
            () = self.tasks.cut.cancelled() => Err(draining()),
        }
    }

    /// Streams an answer. Its task ends when the reader leaves.
    fn stream(
        &self,
        prepared: PreparedChat,
        permit: WorkPermit,
        began: Instant,
        deadline: Instant,
    ) -> Response {
        let (frames, body) = mpsc::channel(PARTS_MAX);
        let routes = self.clone();
        self.tasks.tracker.spawn(async move {
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
        let body = Body::from_stream(ReceiverStream::new(body).map(Ok::<_, Infallible>));
        respond(StatusCode::OK, "text/event-stream", body)
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

fn not_allowed(methods: &'static str) -> Response {
    let why = format!("use {methods}");
    let mut response = refused(&ApiError::of(405, "invalid_request_error", "method_not_allowed", why));
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(methods));
    response
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

fn refused(error: &ApiError) -> Response {
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut answer = whole(status, &error.json());
    let headers = answer.headers_mut();
    match status {
        StatusCode::UNAUTHORIZED => {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(CHALLENGE));
        }
        StatusCode::TOO_MANY_REQUESTS => {
            // In seconds.
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        _ => {}
    }
    answer
}

fn whole(status: StatusCode, body: &Value) -> Response {
    respond(status, JSON, body.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

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
