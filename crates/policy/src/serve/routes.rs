//! What is asked, and what kind of answer it gets: whole, in parts, or a refusal in the protocol's own form.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use furrow_openai::server::{ApiError, ChatRequest, DONE, Told, models};
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

use super::access::Access;
use super::chats::{Chats, Parts, Prepared};

/// What an answer is made of.
pub(super) type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// Answers requests.
#[derive(Clone)]
pub(super) struct Routes {
    access: Arc<Access>,
    chats: Arc<Chats>,
    /// Requests at work and those that wait.
    door: Arc<Semaphore>,
    /// Requests at work.
    working: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
    cut: CancellationToken,
}

/// A request's place at work; dropping it lets the next one in.
struct AtWork {
    _door: OwnedSemaphorePermit,
    _working: OwnedSemaphorePermit,
}

/// A body comes within this time.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Parts of a stream that wait for a slow reader. The engine goes on: it tells a queue with room for the whole reply.
const PARTS_MAX: usize = 16;
/// A reader of a stream that was broken off makes room for that word within this time, as it must for every write.
const LAST_WORD_TIMEOUT: Duration = Duration::from_secs(60);
const JSON: &str = "application/json";

impl Routes {
    pub fn new(
        access: Access,
        chats: Arc<Chats>,
        tasks: TaskTracker,
        stop: CancellationToken,
        cut: CancellationToken,
    ) -> Self {
        let (requests, queue) = (chats.config.requests_max, chats.config.queue_max);
        Self {
            access: Arc::new(access),
            door: Arc::new(Semaphore::new(requests + queue)),
            working: Arc::new(Semaphore::new(requests)),
            chats,
            tasks,
            stop,
            cut,
        }
    }

    /// Requests at work.
    pub fn at_work(&self) -> usize {
        self.chats.config.requests_max - self.working.available_permits()
    }

    /// The answer to any request. Nothing a request says makes it fail.
    pub async fn answer<B>(&self, request: Request<B>) -> Answer
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

    async fn route<B>(&self, request: Request<B>) -> Result<Answer, ApiError>
    where
        B: Body + Send,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (path, method) = (request.uri().path().to_owned(), request.method().clone());
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
                    // Clients write the slash of `acme/tiny` as it is or as %2F.
                    self.chats.check_model(&percent_decode_str(name).decode_utf8_lossy())?;
                    Ok(whole(StatusCode::OK, &models["data"][0]))
                }
                Some(_) => Ok(not_allowed("GET, HEAD")),
                None => {
                    let why = "there is /v1/chat/completions, /v1/models and /health; see docs/SERVE.md";
                    Err(ApiError::of(404, "invalid_request_error", "unknown_url", why))
                }
            },
        }
    }

    /// Whether it takes requests; says nothing else, and so needs no token.
    fn health(&self) -> Answer {
        match self.stop.is_cancelled() {
            false => whole(StatusCode::OK, &json!({ "status": "ok" })),
            true => whole(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "draining" })),
        }
    }

    async fn chat<B>(&self, request: Request<B>) -> Result<Answer, ApiError>
    where
        B: Body + Send,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let began = Instant::now();
        let deadline = began + self.chats.config.deadline;
        let answer = async {
            let door = self.door()?;
            // Whoever sends slowly keeps nobody from working.
            let body = self.body(request, deadline).await?;
            let place = self.place(door, deadline).await?;
            let limits = self.chats.config.limits;
            let reading = tokio::task::spawn_blocking(move || ChatRequest::read(&body, &limits));
            let request = reading.await.unwrap_or_else(|why| Err(failed(&why.to_string())))?;
            let is_streamed = request.stream;
            let prepared = within(deadline, self.chats.prepare(request)).await?;
            if is_streamed {
                return Ok(self.stream(prepared, place, began, deadline));
            }
            let envelope = prepared.envelope.clone();
            let told = self.uncut(deadline, self.chats.reply(prepared, Parts::Gathered)).await?;
            drop(place);
            answered(&told, began);
            Ok::<_, ApiError>(whole(StatusCode::OK, &envelope.completion(&told)))
        };
        answer.await.inspect_err(refusal)
    }

    /// A place among those that wait or work; with many before it, a request is refused at once.
    fn door(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        if self.stop.is_cancelled() {
            return Err(draining());
        }
        let full = || {
            let waiting = self.chats.config.queue_max;
            let why =
                format!("{waiting} requests are waiting already; try again, or raise policy.serve.queue_max");
            ApiError::of(429, "rate_limit_error", "queue_full", why)
        };
        self.door.clone().try_acquire_owned().map_err(|_| full())
    }

    /// A place at work.
    async fn place(&self, door: OwnedSemaphorePermit, deadline: Instant) -> Result<AtWork, ApiError> {
        let working = tokio::select! {
            biased;
            () = self.stop.cancelled() => return Err(draining()),
            working = timeout_at(deadline, self.working.clone().acquire_owned()) => working.map_err(|_| late())?,
        };
        let working = working.map_err(|_| draining())?;
        Ok(AtWork { _door: door, _working: working })
    }

    async fn body<B>(&self, request: Request<B>, deadline: Instant) -> Result<Bytes, ApiError>
    where
        B: Body + Send,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let most = self.chats.config.body_bytes_max;
        let too_large = || {
            let why = format!("a request has at most {most} bytes");
            ApiError::of(413, "invalid_request_error", "request_too_large", why)
        };
        if request.body().size_hint().lower() > most as u64 {
            return Err(too_large());
        }
        let body = gathered(Limited::new(request.into_body(), most));
        let patience = deadline.min(Instant::now() + BODY_TIMEOUT);
        match timeout_at(patience, body).await {
            Ok(Ok(body)) => Ok(body),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
            Ok(Err(_)) => {
                Err(ApiError::of(400, "invalid_request_error", "body_cut", "the body came to no end"))
            }
            Err(_) => {
                Err(ApiError::of(408, "invalid_request_error", "body_late", "the body came too slowly"))
            }
        }
    }

    /// Within its deadline, and while the worker lets what is at work end.
    async fn uncut<T>(
        &self,
        deadline: Instant,
        work: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        tokio::select! {
            done = within(deadline, work) => done,
            () = self.cut.cancelled() => Err(draining()),
        }
    }

    /// An answer in parts. Whoever makes it ends when its reader goes away.
    fn stream(&self, prepared: Prepared, place: AtWork, began: Instant, deadline: Instant) -> Answer {
        let (frames, body) = mpsc::channel(PARTS_MAX);
        let routes = self.clone();
        self.tasks.spawn(async move {
            let told = tokio::select! {
                told = routes.uncut(deadline, routes.tell(prepared, &frames)) => told,
                () = frames.closed() => return,
            };
            drop(place);
            match told {
                Ok(told) => answered(&told, began),
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

    async fn tell(&self, prepared: Prepared, frames: &mpsc::Sender<Bytes>) -> Result<Told, ApiError> {
        let envelope = prepared.envelope.clone();
        let prompt = prepared.ids.then(|| prepared.prompt_ids());
        send(frames, &envelope.opening(prompt.as_deref())).await;
        let (parts, mut told) = mpsc::channel(PARTS_MAX);
        let telling = async {
            while let Some(delta) = told.recv().await {
                send(frames, &envelope.part(&delta)).await;
            }
        };
        let (told, ()) = tokio::join!(self.chats.reply(prepared, Parts::Streamed(parts)), telling);
        let told = told?;
        send(frames, &envelope.ending(told.finish)).await;
        if envelope.counts_usage {
            send(frames, &envelope.counted(told.usage)).await;
        }
        frames.send(frame(DONE)).await.ok();
        Ok(told)
    }
}

/// A body, read to its end. Each part is copied and let go: one of a single byte would hold on to all that it was read with.
async fn gathered<B: Body>(body: B) -> Result<Bytes, B::Error> {
    let (mut body, mut whole) = (std::pin::pin!(body), BytesMut::new());
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

fn answered(told: &Told, began: Instant) {
    let usage = told.usage;
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
    ApiError::of(503, "server_error", "draining", "this worker is stopping; ask another")
}

fn failed(why: &str) -> ApiError {
    ApiError::of(500, "server_error", "failed", why)
}

fn not_allowed(methods: &'static str) -> Answer {
    let why = format!("use {methods}");
    let mut answer = refused(&ApiError::of(405, "invalid_request_error", "method_not_allowed", why));
    answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static(methods));
    answer
}

/// A reader that has gone is noticed by whoever waits for this.
async fn send(frames: &mpsc::Sender<Bytes>, value: &Value) {
    frames.send(frame(&value.to_string())).await.ok();
}

/// Ends a stream that cannot go on. Without this word a reply that was broken off looks like a whole one, so a reader that is behind is
/// waited for.
async fn break_off(frames: &mpsc::Sender<Bytes>, error: &ApiError) {
    let told = frames.send(frame(&error.json().to_string()));
    // Its reader may have gone meanwhile, or read nothing.
    drop(tokio::time::timeout(LAST_WORD_TIMEOUT, told).await);
}

/// One event of a stream.
fn frame(data: &str) -> Bytes {
    Bytes::from(format!("data: {data}\n\n"))
}

fn refused(error: &ApiError) -> Answer {
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut answer = whole(status, &error.json());
    let headers = answer.headers_mut();
    match status {
        StatusCode::UNAUTHORIZED => {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"furrow\""));
        }
        StatusCode::TOO_MANY_REQUESTS => {
            // Seconds.
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        _ => {}
    }
    answer
}

fn whole(status: StatusCode, body: &Value) -> Answer {
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
    async fn parts_of_a_body_are_let_go_as_they_come() {
        /// What a part was read with.
        struct Buffer(Vec<u8>, Arc<AtomicUsize>);
        impl AsRef<[u8]> for Buffer {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        impl Drop for Buffer {
            fn drop(&mut self) {
                self.1.fetch_sub(1, Ordering::SeqCst);
            }
        }
        let held = Arc::new(AtomicUsize::new(0));
        let parts = futures::stream::iter(0..50u8).map({
            let held = held.clone();
            move |byte| {
                assert_eq!(held.fetch_add(1, Ordering::SeqCst), 0, "the part before was let go");
                let part = Bytes::from_owner(Buffer(vec![byte; 100], held.clone())).slice(7..8);
                Ok::<_, Infallible>(Frame::data(part))
            }
        });
        let whole = gathered(StreamBody::new(parts)).await.unwrap();
        assert_eq!(whole, (0..50).collect::<Vec<u8>>());
    }

    #[tokio::test]
    async fn a_reader_that_is_behind_is_told_that_a_stream_was_broken_off() {
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
        // One that has gone holds nobody up.
        drop(reader);
        tokio::time::timeout(Duration::from_secs(10), break_off(&frames, &error)).await.unwrap();
    }
}
