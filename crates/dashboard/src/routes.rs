//! The paths of the dashboard, and the responses to them.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, RawQuery, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use furrow_http::{
    AccessControl, AccessLayer, AccessRefusal, BodyError, CHALLENGE, HTML, JSON, SignInError, respond,
};
use futures::{StreamExt as _, stream};
use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode, Uri};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::Layer as _;

use crate::access::SIGN_IN_PATH;
use crate::answers::Refusal;
use crate::api;
use crate::api_error::DashboardApiError;
use crate::follow::DashboardState;
use crate::live::{self, EndMode};
use crate::pages::{self, INDEX, NOT_FOUND, POLICY, SIGN_IN, StaticAsset};

/// What the handlers share.
#[derive(Clone)]
pub(crate) struct DashboardRoutes {
    access: Arc<AccessControl>,
    state: Arc<DashboardState>,
    /// Limits the concurrent answers that read files or sort: each may take tens of MB.
    busy: Arc<Semaphore>,
    /// Limits the pictures that are read at a time: rows and figures do not wait for them.
    pictures: Arc<Semaphore>,
    /// Time for the body of the sign-in form.
    form_timeout: Duration,
    stop: CancellationToken,
}

/// The captures of a path. Captures that are not UTF-8 name nothing.
pub(crate) struct Captured<T>(T);

type Routes = State<DashboardRoutes>;
pub(crate) type ApiResponse = Result<Response, DashboardApiError>;

/// Most answers made at the same time.
const BUSY_MAX: usize = 4;
/// Most pictures read at the same time: a strip or a table shows dozens.
const PICTURES_MAX: usize = 2;
/// Interval of a comment line that keeps the connection of a silent run alive.
const HEARTBEAT: Duration = Duration::from_secs(15);

const NOTHING: &str = "no such path; docs/DASHBOARD.md lists the answers";

/// The service of a dashboard: access control and common headers around its paths.
pub(crate) fn router(routes: DashboardRoutes) -> Router {
    let access = AccessLayer::new(routes.access.clone(), refuse);
    let noted = middleware::from_fn_with_state(routes.state.clone(), note);
    // A layer of a router sees the request after the path was matched, so this one is outside.
    let paths = middleware::map_request(trim_slashes).layer(paths(routes));
    let headers = middleware::map_response(with_headers);
    Router::new().fallback_service(paths).layer(access).layer(noted).layer(headers)
}

/// The same without access control and headers, for a server that has both around it.
pub(crate) fn bare_router(routes: DashboardRoutes) -> Router {
    let noted = middleware::from_fn_with_state(routes.state.clone(), note);
    paths(routes).layer(noted)
}

fn paths(routes: DashboardRoutes) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/sessions", get(index))
        .route("/trajectories", get(index))
        .route("/trajectory/{id}", get(index))
        .route("/learning", get(index))
        .route("/job", get(index))
        .route("/assets/{name}", get(named_asset))
        .route("/favicon.ico", get(icon))
        .route(SIGN_IN_PATH, post(sign_in))
        .route("/api/overview", get(overview))
        .route("/api/learning", get(learning))
        .route("/api/job", get(job))
        .route("/api/choices", get(choices))
        .route("/api/trajectories", get(trajectories))
        .route("/api/trajectory/{id}", get(trajectory))
        .route("/api/trajectory/{id}/row", get(row))
        .route("/api/trajectory/{id}/screenshot/{which}", get(picture))
        .route("/api/sessions", get(sessions))
        .route("/api/sessions/{id}", get(session))
        .route("/api/sessions/{id}/screenshot", get(newest_picture))
        .route("/api/events", get(events))
        .route("/api/drain", post(drain))
        .route("/api/stop", post(stop))
        .route("/metrics", get(process_metrics))
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_path)
        .with_state(routes)
}

impl DashboardRoutes {
    pub(crate) fn new(
        access: Arc<AccessControl>,
        state: Arc<DashboardState>,
        form_timeout: Duration,
        stop: CancellationToken,
    ) -> Self {
        let [busy, pictures] = [BUSY_MAX, PICTURES_MAX].map(|most| Arc::new(Semaphore::new(most)));
        Self { access, state, busy, pictures, form_timeout, stop }
    }

    /// Makes an answer that may read files on a blocking thread, a few at a time.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&DashboardState) -> Result<T, DashboardApiError> + Send + 'static,
    ) -> Result<T, DashboardApiError> {
        self.read_within(&self.busy, read).await
    }

    async fn read_within<T: Send + 'static>(
        &self,
        limit: &Arc<Semaphore>,
        read: impl FnOnce(&DashboardState) -> Result<T, DashboardApiError> + Send + 'static,
    ) -> Result<T, DashboardApiError> {
        self.state.wait_for_first(|firsts| firsts.files && firsts.coordinator).await;
        let permit = limit.clone().acquire_owned().await.map_err(|_| stopping())?;
        let state = self.state.clone();
        let made = tokio::task::spawn_blocking(move || {
            let made = read(&state);
            drop(permit);
            made
        });
        made.await.unwrap_or_else(|_| {
            Err(DashboardApiError::Unreadable("the answer could not be made; see the log".to_owned()))
        })
    }

    /// The same as JSON, which is written on that thread: an answer may have thousands of rows.
    async fn read_json<T: Serialize>(
        &self,
        read: impl FnOnce(&DashboardState) -> Result<T, DashboardApiError> + Send + 'static,
    ) -> ApiResponse {
        let body = self.read(move |state| json_body(&read(state)?)).await?;
        Ok(respond(StatusCode::OK, JSON, body))
    }

    /// Makes an answer of the coordinator of a running job, a few at a time: a step may be as large
    /// as the farm's largest message.
    async fn ask<T>(
        &self,
        answer: impl Future<Output = Result<T, DashboardApiError>>,
    ) -> Result<T, DashboardApiError> {
        let _permit = self.busy.acquire().await.map_err(|_| stopping())?;
        answer.await
    }
}

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Captured<T> {
    type Rejection = DashboardApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, DashboardApiError> {
        let captures = Path::from_request_parts(parts, state).await;
        let Path(captures) = captures.map_err(|_| DashboardApiError::NotFound(NOTHING.to_owned()))?;
        Ok(Self(captures))
    }
}

impl IntoResponse for DashboardApiError {
    fn into_response(self) -> Response {
        let status = match self {
            Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Unreadable(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Timeout(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        refusal(status, &self.to_string())
    }
}

/// Counts the request: the dashboard reads while there are some.
async fn note(State(state): State<Arc<DashboardState>>, request: Request, next: Next) -> Response {
    state.note_request();
    next.run(request).await
}

/// Sets the headers of every response.
pub(crate) async fn with_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        // Not `no-referrer`: a browser would send the sign-in form with the origin `null`.
        ("referrer-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    // axum adds it to errors: `GET /token` would be a 404 that names POST.
    headers.remove(header::ALLOW);
    response
}

/// Removes slashes around a path to read: `/sessions/` is `/sessions`.
pub(crate) async fn trim_slashes(mut request: Request) -> Request {
    let uri = request.uri();
    let path = uri.path();
    let trimmed = path.trim_matches('/');
    if is_read(request.method()) && path.len() > trimmed.len() + 1 {
        let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
        // Parts of a valid URI stay valid.
        if let Ok(uri) = Uri::try_from(format!("/{trimmed}{query}")) {
            *request.uri_mut() = uri;
        }
    }
    request
}

pub(crate) async fn index() -> Response {
    respond(StatusCode::OK, HTML, INDEX)
}

pub(crate) async fn named_asset(Captured(name): Captured<String>, headers: HeaderMap) -> Response {
    asset(&name, &headers)
}

pub(crate) async fn icon(headers: HeaderMap) -> Response {
    asset("icon.svg", &headers)
}

async fn sign_in(State(routes): Routes, request: Request) -> Response {
    signed_in(&routes.access, routes.form_timeout, request).await
}

/// The response to the form with the token.
pub(crate) async fn signed_in(access: &AccessControl, timeout: Duration, request: Request) -> Response {
    let deadline = Instant::now() + timeout;
    match access.sign_in(request.into_body(), deadline).await {
        Ok(redirect) => redirect,
        Err(SignInError::WrongToken) => respond(StatusCode::UNAUTHORIZED, HTML, pages::sign_in_again()),
        Err(SignInError::Body(error)) => match error {
            BodyError::TooLarge => refusal(StatusCode::PAYLOAD_TOO_LARGE, "the token form is too long"),
            BodyError::Late => refusal(StatusCode::REQUEST_TIMEOUT, "the token form came too late"),
            BodyError::Cut => refusal(StatusCode::BAD_REQUEST, "the token form ended too early"),
        },
    }
}

async fn overview(State(routes): Routes) -> ApiResponse {
    routes.read_json(|state| Ok(api::overview(state))).await
}

async fn learning(State(routes): Routes) -> ApiResponse {
    routes.read_json(api::learning).await
}

async fn job(State(routes): Routes) -> ApiResponse {
    routes.read_json(|state| Ok(api::job(state))).await
}

async fn choices(State(routes): Routes) -> ApiResponse {
    routes.read_json(|state| Ok(api::choices(state))).await
}

async fn trajectories(State(routes): Routes, RawQuery(query): RawQuery) -> ApiResponse {
    routes.read_json(move |state| api::trajectories(state, &query.unwrap_or_default())).await
}

async fn trajectory(State(routes): Routes, Captured(id): Captured<String>) -> ApiResponse {
    routes.read_json(move |state| api::trajectory(state, &id)).await
}

async fn row(
    State(routes): Routes,
    Captured(id): Captured<String>,
    RawQuery(query): RawQuery,
) -> ApiResponse {
    routes.read_json(move |state| api::row(state, &id, &query.unwrap_or_default())).await
}

/// A recorded picture. A restarted run uses the same ids, so a browser must revalidate its copy.
async fn picture(
    State(routes): Routes,
    Captured((id, which)): Captured<(String, String)>,
    headers: HeaderMap,
) -> ApiResponse {
    routes
        .read_within(&routes.pictures, move |state| {
            Ok(match api::picture(state, &id, &which)? {
                Some((bytes, media_type)) => tagged(&pages::tag(&bytes), bytes, media_type, &headers),
                None => StatusCode::NO_CONTENT.into_response(),
            })
        })
        .await
}

async fn sessions(State(routes): Routes) -> ApiResponse {
    json_response(&routes.ask(live::sessions(&routes.state)).await?)
}

async fn session(State(routes): Routes, Captured(id): Captured<String>) -> ApiResponse {
    json_response(&routes.ask(live::session(&routes.state, &id)).await?)
}

/// The picture at this URL changes with each step, so it is not cached.
async fn newest_picture(
    State(routes): Routes,
    Captured(id): Captured<String>,
    RawQuery(query): RawQuery,
) -> ApiResponse {
    let query = query.unwrap_or_default();
    let bytes = routes.ask(live::picture(&routes.state, &id, &query)).await?;
    let (bytes, media_type) = api::with_type(bytes);
    Ok(respond(StatusCode::OK, media_type, bytes))
}

/// Announces changes. A slow page gets the newest message only.
async fn events(State(routes): Routes) -> Response {
    let mut changes = routes.state.changes();
    changes.mark_changed();
    let messages = stream::unfold((changes, routes.stop), |(mut changes, stop)| async move {
        let message = tokio::select! {
            () = stop.cancelled() => return None,
            changed = changes.changed() => {
                changed.ok()?;
                let change = changes.borrow_and_update().clone();
                format!("data: {}\n\n", json!(change))
            }
            () = tokio::time::sleep(HEARTBEAT) => ": still here\n\n".to_owned(),
        };
        Some((message, (changes, stop)))
    });
    // A page that lost its connection connects again after two seconds.
    let first = stream::once(async { "retry: 2000\n\n".to_owned() });
    let body = Body::from_stream(first.chain(messages).map(Ok::<_, Infallible>));
    respond(StatusCode::OK, "text/event-stream", body)
}

async fn drain(State(routes): Routes) -> Response {
    end(&routes, EndMode::Drain).await
}

async fn stop(State(routes): Routes) -> Response {
    end(&routes, EndMode::Stop).await
}

async fn end(routes: &DashboardRoutes, mode: EndMode) -> Response {
    match live::end(&routes.state, mode).await {
        Ok(()) => respond(StatusCode::OK, JSON, json!({ "draining": true }).to_string()),
        Err(why) => refusal(StatusCode::CONFLICT, &why),
    }
}

pub(crate) async fn process_metrics() -> Response {
    let text = furrow_telemetry::prometheus(furrow_telemetry::process_metrics());
    respond(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text)
}

pub(crate) async fn unknown_path(method: Method, uri: Uri, headers: HeaderMap) -> Response {
    if !is_read(&method) {
        return refusal(StatusCode::METHOD_NOT_ALLOWED, "use GET");
    }
    let is_api = uri.path().split('/').nth(1) == Some("api");
    if !is_api && accepts_html(&headers) {
        return respond(StatusCode::NOT_FOUND, HTML, NOT_FOUND);
    }
    refusal(StatusCode::NOT_FOUND, if is_api { NOTHING } else { "no such page; start at /" })
}

/// Whether a browser asks for a page.
fn accepts_html(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/html"))
}

fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// The response without the token, or to a foreign page.
pub(crate) fn refuse(why: AccessRefusal, request: &Request) -> Response {
    match why {
        AccessRefusal::Foreign => refusal(
            StatusCode::FORBIDDEN,
            "the dashboard answers only under its own address and to its own pages; open it as 127.0.0.1 or localhost",
        ),
        AccessRefusal::Unknown => unknown(request.uri().path(), request.headers()),
    }
}

/// The response without the token: the sign-in page, or for a program an error.
fn unknown(path: &str, headers: &HeaderMap) -> Response {
    if accepts_html(headers) && !path.starts_with("/api/") {
        return respond(StatusCode::UNAUTHORIZED, HTML, SIGN_IN);
    }
    // Files that the sign-in page uses.
    if let Some(name @ ("palette.css" | "style.css" | "icon.svg")) = path.strip_prefix("/assets/") {
        return asset(name, headers);
    }
    let what = "a token is needed: send it as `Authorization: Bearer TOKEN`, or open the URL that furrow printed at its start";
    let mut response = refusal(StatusCode::UNAUTHORIZED, what);
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(CHALLENGE));
    response
}

fn asset(name: &str, headers: &HeaderMap) -> Response {
    let Some(asset) = StaticAsset::find(name) else { return refusal(StatusCode::NOT_FOUND, "no such file") };
    tagged(&pages::tag(asset.bytes), Bytes::from_static(asset.bytes), asset.media_type, headers)
}

/// An answer that a browser may keep and must revalidate: unchanged content is not sent again.
fn tagged(tag: &str, bytes: Bytes, media_type: &'static str, headers: &HeaderMap) -> Response {
    let mut response = match headers.get(header::IF_NONE_MATCH) {
        Some(known) if known.as_bytes() == tag.as_bytes() => {
            respond(StatusCode::NOT_MODIFIED, media_type, Body::empty())
        }
        _ => respond(StatusCode::OK, media_type, bytes),
    };
    if let Ok(tag) = HeaderValue::from_str(tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    response
}

fn stopping() -> DashboardApiError {
    DashboardApiError::Timeout("the dashboard is stopping".to_owned())
}

pub(crate) fn json_response(answer: &impl Serialize) -> ApiResponse {
    Ok(respond(StatusCode::OK, JSON, json_body(answer)?))
}

fn json_body(answer: &impl Serialize) -> Result<Bytes, DashboardApiError> {
    let text = serde_json::to_vec(answer);
    text.map(Bytes::from).map_err(|error| DashboardApiError::Unreadable(error.to_string()))
}

fn refusal(status: StatusCode, what: &str) -> Response {
    respond(status, JSON, json!(Refusal { error: what.to_owned() }).to_string())
}
