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
use furrow_openai::server::{AnswerWriter, ApiError, ChatCompletion, models};
use furrow_telemetry::{ChatAnswered, ChatRefused};
use futures::StreamExt as _;
use http::StatusCode;
use http::header::{self, HeaderName, HeaderValue};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_stream::wrappers::ReceiverStream;

use super::access::access_error;
use super::admission::{Admission, WorkPermit};
use super::chats::{ChatService, DeltaSink, PreparedChat};
use super::errors::{broken, draining, late};
use super::requests::{ReadRequest, RequestRoute};

#[derive(Clone)]
pub(super) struct ChatRoutes {
    chats: Arc<ChatService>,
    admission: Admission,
    tasks: ServerTasks,
    body_timeout: Duration,
}

/// Names the keys of a request that were accepted and have no effect.
const IGNORED: HeaderName = HeaderName::from_static("furrow-ignored");
/// Bounds the header however many parts of a request have such keys.
const IGNORED_NAMES_MAX: usize = 40;
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
        .route("/v1/completions", post(completion).fallback(async || not_allowed("POST")))
        .route("/v1/responses", post(response).fallback(async || not_allowed("POST")))
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
    routes.answer(RequestRoute::Chat, request).await
}

async fn completion(State(routes): State<ChatRoutes>, request: Request) -> Response {
    routes.answer(RequestRoute::Completions, request).await
}

async fn response(State(routes): State<ChatRoutes>, request: Request) -> Response {
    routes.answer(RequestRoute::Responses, request).await
}

async fn unknown_path() -> Response {
    let why = "unknown path; use /v1/chat/completions, /v1/responses, /v1/completions, /v1/models or /health, see docs/SERVE.md";
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
    pub(super) fn new(chats: Arc<ChatService>, tasks: ServerTasks, body_timeout: Duration) -> Self {
        let admission = Admission::new(chats.config.requests_max, chats.config.queue_max, tasks.clone());
        Self { chats, admission, tasks, body_timeout }
    }

    /// Number of running replies.
    pub(super) fn at_work(&self) -> usize {
        self.admission.at_work()
    }

    fn models(&self) -> Value {
        models(&self.chats.config.model, self.chats.created, self.chats.context_tokens_max())
    }

    async fn answer(&self, route: RequestRoute, request: Request) -> Response {
        let answer = self.answer_or_error(route, request.into_body()).await.inspect_err(refusal);
        answer.unwrap_or_else(|error| refused(&error))
    }

    async fn answer_or_error(&self, route: RequestRoute, body: Body) -> Result<Response, ApiError> {
        let began = Instant::now();
        let deadline = began + self.chats.config.deadline;
        let admitted = self.admission.admit()?;
        // The body is read before a permit to run is taken, so that a slow sender does not
        // block others.
        let body = self.body(body, deadline).await?;
        let permit = self.admission.start(admitted, deadline).await?;
        let limits = self.chats.config.limits;
        let reading = tokio::task::spawn_blocking(move || ReadRequest::read(route, &body, &limits));
        let request = reading.await.unwrap_or_else(|why| Err(broken(&why.to_string())))?;
        let permit = self.admission.widen(permit, request.replies(), deadline).await?;
        let is_streamed = request.options().stream;
        let prepared = within(deadline, request.prepare(&self.chats)).await?;
        let ignored = ignored_header(&prepared.ignored);
        let mut answer = if is_streamed {
            self.stream(prepared, permit, began, deadline)
        } else {
            let (replies, writer) = prepared.into_parts();
            let completion = self.until_cut(deadline, self.chats.reply(replies, DeltaSink::Gathered)).await?;
            drop(permit);
            answered(&completion, began);
            whole(StatusCode::OK, &writer.whole(&completion))
        };
        if let Some(names) = ignored {
            answer.headers_mut().insert(IGNORED, names);
        }
        Ok(answer)
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
            let prompt = prepared.prompt_ids();
            let (replies, mut writer) = prepared.into_parts();
            send(&frames, writer.begin(prompt.as_deref())).await;
            let (parts, mut deltas) = mpsc::channel(PARTS_MAX);
            let forwarding = async {
                while let Some((index, delta)) = deltas.recv().await {
                    send(&frames, writer.delta(index, &delta)).await;
                }
            };
            let replying =
                routes.until_cut(deadline, routes.chats.reply(replies, DeltaSink::Streamed(parts)));
            let both = async { tokio::join!(replying, forwarding).0 };
            let outcome = tokio::select! {
                outcome = both => outcome,
                () = frames.closed() => return,
            };
            drop(permit);
            match outcome {
                Ok(completion) => {
                    answered(&completion, began);
                    send(&frames, writer.finish(&completion)).await;
                }
                Err(error) => {
                    refusal(&error);
                    break_off(&frames, &mut writer, &error).await;
                }
            }
        });
        let body = Body::from_stream(ReceiverStream::new(body).map(Ok::<_, Infallible>));
        respond(StatusCode::OK, "text/event-stream", body)
    }
}

/// The header that names ignored keys; `None` without any.
fn ignored_header(paths: &[String]) -> Option<HeaderValue> {
    let mut names: Vec<&str> = paths.iter().map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    names.truncate(IGNORED_NAMES_MAX);
    if names.is_empty() { None } else { HeaderValue::from_str(&names.join(", ")).ok() }
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

fn not_allowed(methods: &'static str) -> Response {
    let why = format!("use {methods}");
    let mut response = refused(&ApiError::of(405, "invalid_request_error", "method_not_allowed", why));
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(methods));
    response
}

/// The caller notices elsewhere that the reader has left.
async fn send(frames: &mpsc::Sender<Bytes>, events: Vec<String>) {
    for event in events {
        frames.send(Bytes::from(event)).await.ok();
    }
}

/// Ends a stream with an error event. Without it an aborted reply looks complete, so this waits for
/// a slow reader.
async fn break_off(frames: &mpsc::Sender<Bytes>, writer: &mut AnswerWriter, error: &ApiError) {
    let sending = frames.send(Bytes::from(writer.fail(error)));
    // The reader may have left, or reads nothing.
    drop(tokio::time::timeout(LAST_EVENT_TIMEOUT, sending).await);
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
    use furrow_openai::server::{AnswerForm, AnswerHead};

    use super::*;

    #[tokio::test]
    async fn a_slow_reader_still_gets_the_event_of_a_broken_stream() {
        let (frames, mut reader) = mpsc::channel(1);
        let head = AnswerHead {
            id: "1".into(),
            created: 1,
            model: "m".into(),
            fingerprint: "f".into(),
            counts_usage: false,
        };
        let mut writer = AnswerWriter::new(AnswerForm::Chat, head, 1);
        send(&frames, vec!["data: \"a part\"\n\n".to_owned()]).await;
        let error = late();
        let reading = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(reader.recv().await.unwrap(), "data: \"a part\"\n\n");
            String::from_utf8(reader.recv().await.unwrap().to_vec()).unwrap()
        };
        let both = async { tokio::join!(break_off(&frames, &mut writer, &error), reading).1 };
        let last = tokio::time::timeout(Duration::from_secs(10), both).await.unwrap();
        assert!(last.contains("deadline_exceeded"), "{last}");
        // A reader that has left delays nothing.
        drop(reader);
        tokio::time::timeout(Duration::from_secs(10), break_off(&frames, &mut writer, &error)).await.unwrap();
    }
}
