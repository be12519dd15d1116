//! Routes requests, and makes their responses.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream;
use http::header::{self, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use hyper::body::{Body, Frame};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::access::{AccessControl, AccessDecision};
use crate::api;
use crate::api_error::DashboardApiError;
use crate::follow::DashboardState;
use crate::live::{self, EndMode};
use crate::pages::{self, INDEX, POLICY, SIGN_IN, StaticAsset};

/// The response type of all routes.
pub(crate) type HttpResponse = Response<UnsyncBoxBody<Bytes, Infallible>>;

#[derive(Clone)]
pub(crate) struct RequestRouter {
    pub access: Arc<AccessControl>,
    pub state: Arc<DashboardState>,
    /// Limits the concurrent answers that read files or sort: each may take tens of MB.
    pub busy: Arc<Semaphore>,
    /// Time for the body of a form, the same as for a head.
    pub form_timeout: Duration,
    pub stop: CancellationToken,
}

/// Most answers made at the same time.
pub(crate) const BUSY_MAX: usize = 4;
/// Most bytes of a form with a token.
const FORM_BYTES_MAX: usize = 2048;
/// Interval of a comment line that keeps the connection of a silent run alive.
const HEARTBEAT: Duration = Duration::from_secs(15);

const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
const NOTHING: &str = "no such path; docs/DASHBOARD.md lists the answers";

impl RequestRouter {
    /// Responds to any request; never fails.
    pub async fn answer<B>(&self, request: Request<B>) -> HttpResponse
    where
        B: Body + Send,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.state.note_request();
        let mut answer = self.route(request).await;
        let headers = answer.headers_mut();
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
        answer
    }

    async fn route<B>(&self, request: Request<B>) -> HttpResponse
    where
        B: Body + Send,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let path = request.uri().path().to_owned();
        let query = request.uri().query().unwrap_or_default().to_owned();
        let ruling = self.access.decide(request.method(), request.headers());
        if ruling == AccessDecision::Foreign {
            return refusal(
                StatusCode::FORBIDDEN,
                "the dashboard answers only under its own address and to its own pages; open it as 127.0.0.1 or localhost",
            );
        }
        if path == "/token" && request.method() == Method::POST {
            return self.sign_in(request).await;
        }
        // A link from the terminal contains the token, which is removed from the URL at once.
        if let Some(answer) = self.take_token(&path, &query) {
            return answer;
        }
        if ruling == AccessDecision::Unknown {
            return unknown(&path, request.headers());
        }
        let ending = match path.as_str() {
            "/api/drain" => Some(EndMode::Drain),
            "/api/stop" => Some(EndMode::Stop),
            _ => None,
        };
        if let Some(ending) = ending.filter(|_| request.method() == Method::POST) {
            return match live::end(&self.state, ending).await {
                Ok(()) => full_response(StatusCode::OK, JSON, json!({ "draining": true }).to_string().into()),
                Err(why) => refusal(StatusCode::CONFLICT, &why),
            };
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return refusal(StatusCode::METHOD_NOT_ALLOWED, "use GET");
        }
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        match parts.as_slice() {
            ["" | "sessions" | "trajectories" | "learning" | "job"] | ["trajectory", _] => {
                full_response(StatusCode::OK, HTML, INDEX.into())
            }
            ["assets", name] => asset(name, request.headers()),
            ["favicon.ico"] => asset("icon.svg", request.headers()),
            ["api", "events"] => self.events(),
            ["api", "sessions", rest @ ..] => self.sessions(rest, &query).await,
            ["api", rest @ ..] => {
                let known = request.headers().get(header::IF_NONE_MATCH).cloned();
                self.api(rest, query, known).await
            }
            ["metrics"] => {
                let text = furrow_telemetry::prometheus(furrow_telemetry::process_metrics());
                full_response(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text.into())
            }
            _ => refusal(StatusCode::NOT_FOUND, "no such page; start at /"),
        }
    }

    /// Answers from the coordinator of a running job, a few at a time: a step may be as large as
    /// the farm's largest message.
    async fn sessions(&self, rest: &[&str], query: &str) -> HttpResponse {
        let Ok(_permit) = self.busy.acquire().await else { return stopping() };
        let answer = match rest {
            [] => live::sessions(&self.state).await,
            [id] => live::session(&self.state, id).await,
            [id, "screenshot"] => {
                return match live::picture(&self.state, id, query).await.map(api::with_type) {
                    // The picture at this URL changes with each step, so it is not cached.
                    Ok((bytes, media_type)) => full_response(StatusCode::OK, media_type, bytes),
                    Err(why) => refused(why),
                };
            }
            _ => Err(DashboardApiError::NotFound(NOTHING.to_owned())),
        };
        match answer {
            Ok(answer) => full_response(StatusCode::OK, JSON, answer.to_string().into()),
            Err(why) => refused(why),
        }
    }

    /// Answers that may read files are made on a blocking thread, a few at a time.
    async fn api(&self, rest: &[&str], query: String, known: Option<HeaderValue>) -> HttpResponse {
        let parts: Vec<String> = rest.iter().map(|part| (*part).to_owned()).collect();
        let Ok(permit) = self.busy.clone().acquire_owned().await else {
            return stopping();
        };
        let state = self.state.clone();
        let made = tokio::task::spawn_blocking(move || {
            let made = blocking_response(&state, &parts, &query, known.as_ref());
            drop(permit);
            made
        });
        made.await.unwrap_or_else(|_| {
            refusal(StatusCode::INTERNAL_SERVER_ERROR, "the answer could not be made; see the log")
        })
    }

    /// Announces changes. A slow page gets the newest message only.
    fn events(&self) -> HttpResponse {
        let mut changes = self.state.changes();
        changes.mark_changed();
        let stop = self.stop.clone();
        let messages = stream::unfold((changes, stop), |(mut changes, stop)| async move {
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
        let frames = first.chain(messages).map(|message| Ok(Frame::data(Bytes::from(message))));
        let mut answer = Response::new(StreamBody::new(frames).boxed_unsync());
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        answer
    }

    async fn sign_in<B>(&self, request: Request<B>) -> HttpResponse
    where
        B: Body + Send,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let form = Limited::new(request.into_body(), FORM_BYTES_MAX).collect();
        let body = match tokio::time::timeout(self.form_timeout, form).await {
            Ok(Ok(body)) => body,
            Ok(Err(_)) => return refusal(StatusCode::PAYLOAD_TOO_LARGE, "the token form is too long"),
            Err(_) => return refusal(StatusCode::REQUEST_TIMEOUT, "the token form came too late"),
        };
        let body = body.to_bytes();
        let token = url::form_urlencoded::parse(&body).find(|(key, _)| key == "token");
        match token.and_then(|(_, token)| self.access.cookie(token.trim())) {
            Some(cookie) => redirect("/", &cookie),
            None => full_response(StatusCode::UNAUTHORIZED, HTML, pages::sign_in_again().into()),
        }
    }

    fn take_token(&self, path: &str, query: &str) -> Option<HttpResponse> {
        let parameters = || url::form_urlencoded::parse(query.as_bytes());
        let (_, token) = parameters().find(|(key, _)| key == "token")?;
        let cookie = self.access.cookie(&token)?;
        // Never redirects to `//elsewhere`.
        let mut to = format!("/{}", path.trim_start_matches('/'));
        let mut rest = url::form_urlencoded::Serializer::new(String::new());
        let rest = rest.extend_pairs(parameters().filter(|(key, _)| key != "token")).finish();
        if !rest.is_empty() {
            to = format!("{to}?{rest}");
        }
        Some(redirect(&to, &cookie))
    }
}

fn blocking_response(
    state: &DashboardState,
    parts: &[String],
    query: &str,
    known: Option<&HeaderValue>,
) -> HttpResponse {
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let answer = match parts.as_slice() {
        ["overview"] => Ok(api::overview(state)),
        ["learning"] => api::learning(state),
        ["job"] => Ok(api::job(state)),
        ["choices"] => Ok(api::choices(state)),
        ["trajectories"] => api::trajectories(state, query),
        ["trajectory", id] => api::trajectory(state, id),
        ["trajectory", id, "row"] => api::row(state, id, query),
        ["trajectory", id, "screenshot", which] => return picture(api::picture(state, id, which), known),
        _ => Err(DashboardApiError::NotFound(NOTHING.to_owned())),
    };
    match answer {
        Ok(value) => full_response(StatusCode::OK, JSON, value.to_string().into()),
        Err(why) => refused(why),
    }
}

/// A recorded picture. A restarted run uses the same ids, so a browser must revalidate its copy.
fn picture(
    answer: Result<(Bytes, &'static str), DashboardApiError>,
    known: Option<&HeaderValue>,
) -> HttpResponse {
    match answer {
        Ok((bytes, media_type)) => tagged(&pages::tag(&bytes), bytes, media_type, known),
        Err(why) => refused(why),
    }
}

/// An answer that a browser may keep and must revalidate: unchanged content is not sent again.
fn tagged(tag: &str, bytes: Bytes, media_type: &'static str, known: Option<&HeaderValue>) -> HttpResponse {
    let mut answer = match known {
        Some(known) if known.as_bytes() == tag.as_bytes() => {
            full_response(StatusCode::NOT_MODIFIED, media_type, Bytes::new())
        }
        _ => full_response(StatusCode::OK, media_type, bytes),
    };
    if let Ok(tag) = HeaderValue::from_str(tag) {
        answer.headers_mut().insert(header::ETAG, tag);
    }
    answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    answer
}

fn stopping() -> HttpResponse {
    refusal(StatusCode::SERVICE_UNAVAILABLE, "the dashboard is stopping")
}

fn refused(why: DashboardApiError) -> HttpResponse {
    match why {
        DashboardApiError::BadRequest(what) => refusal(StatusCode::BAD_REQUEST, &what),
        DashboardApiError::NotFound(what) => refusal(StatusCode::NOT_FOUND, &what),
        DashboardApiError::Unreadable(what) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &what),
        DashboardApiError::Timeout(what) => refusal(StatusCode::SERVICE_UNAVAILABLE, &what),
    }
}

/// The response without the token: the sign-in page, or for a program an error.
fn unknown(path: &str, headers: &http::HeaderMap) -> HttpResponse {
    let accepts = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if accepts.contains("text/html") && !path.starts_with("/api/") {
        return full_response(StatusCode::UNAUTHORIZED, HTML, SIGN_IN.into());
    }
    // Files that the sign-in page uses.
    if let Some(name @ ("palette.css" | "style.css" | "icon.svg")) = path.strip_prefix("/assets/") {
        return asset(name, headers);
    }
    let what = "a token is needed: send it as `Authorization: Bearer TOKEN`, or open the URL that furrow printed at its start";
    let mut answer = refusal(StatusCode::UNAUTHORIZED, what);
    answer
        .headers_mut()
        .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"furrow\""));
    answer
}

fn asset(name: &str, headers: &http::HeaderMap) -> HttpResponse {
    let Some(asset) = StaticAsset::find(name) else { return refusal(StatusCode::NOT_FOUND, "no such file") };
    tagged(
        &pages::tag(asset.bytes),
        Bytes::from_static(asset.bytes),
        asset.media_type,
        headers.get(header::IF_NONE_MATCH),
    )
}

fn redirect(to: &str, cookie: &str) -> HttpResponse {
    let mut answer = full_response(StatusCode::SEE_OTHER, HTML, Bytes::new());
    for (name, value) in [(header::LOCATION, to), (header::SET_COOKIE, cookie)] {
        if let Ok(value) = HeaderValue::from_str(value) {
            answer.headers_mut().insert(name, value);
        }
    }
    answer
}

fn refusal(status: StatusCode, what: &str) -> HttpResponse {
    let body: Value = json!({ "error": what });
    full_response(status, JSON, body.to_string().into())
}

fn full_response(status: StatusCode, media_type: &'static str, body: Bytes) -> HttpResponse {
    let mut answer = Response::new(Full::new(body).boxed_unsync());
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    answer
}
