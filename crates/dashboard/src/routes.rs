//! What is asked, and what kind of answer it gets.

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

use crate::access::{Access, Ruling};
use crate::api::{self, Refusal};
use crate::follow::State;
use crate::live::{self, Ending};
use crate::pages::{self, Asset, INDEX, POLICY, SIGN_IN};

/// What an answer is made of.
pub(crate) type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// Answers requests.
#[derive(Clone)]
pub(crate) struct Routes {
    pub access: Arc<Access>,
    pub state: Arc<State>,
    /// Answers that read files or sort, at once: each may hold tens of MB.
    pub busy: Arc<Semaphore>,
    /// A form comes within this time, as a head does.
    pub form_timeout: Duration,
    pub stop: CancellationToken,
}

/// Answers that are made at once.
pub(crate) const BUSY_MAX: usize = 4;
/// A form with a token.
const FORM_BYTES_MAX: usize = 2048;
/// A line that says nothing, so that a silent run's connection is not taken for a dead one.
const HEARTBEAT: Duration = Duration::from_secs(15);

const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
const NOTHING: &str = "no such answer; see docs/DASHBOARD.md for what there is";

impl Routes {
    /// The answer to any request. Nothing a request says makes it fail.
    pub async fn answer<B>(&self, request: Request<B>) -> Answer
    where
        B: Body + Send,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.state.look();
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

    async fn route<B>(&self, request: Request<B>) -> Answer
    where
        B: Body + Send,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (path, query) =
            (request.uri().path().to_owned(), request.uri().query().unwrap_or_default().to_owned());
        let ruling = self.access.rule(request.method(), request.headers());
        if ruling == Ruling::Foreign {
            return refusal(
                StatusCode::FORBIDDEN,
                "this address is answered under its own name and to its own pages only; open it as 127.0.0.1 or localhost",
            );
        }
        if path == "/token" && request.method() == Method::POST {
            return self.sign_in(request).await;
        }
        // A link from the terminal brings the token along; it leaves the address at once.
        if let Some(answer) = self.take_token(&path, &query) {
            return answer;
        }
        if ruling == Ruling::Unknown {
            return unknown(&path, request.headers());
        }
        let ending = match path.as_str() {
            "/api/drain" => Some(Ending::Drain),
            "/api/stop" => Some(Ending::Stop),
            _ => None,
        };
        if let Some(ending) = ending.filter(|_| request.method() == Method::POST) {
            return match live::end(&self.state, ending).await {
                Ok(()) => whole(StatusCode::OK, JSON, json!({ "draining": true }).to_string().into()),
                Err(why) => refusal(StatusCode::CONFLICT, &why),
            };
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return refusal(StatusCode::METHOD_NOT_ALLOWED, "use GET");
        }
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        match parts.as_slice() {
            ["" | "sessions" | "trajectories" | "learning" | "job"] | ["trajectory", _] => {
                whole(StatusCode::OK, HTML, INDEX.into())
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
                let text = furrow_telemetry::prometheus(furrow_telemetry::figures());
                whole(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text.into())
            }
            _ => refusal(StatusCode::NOT_FOUND, "no such page; begin at /"),
        }
    }

    /// Answers that the coordinator of a running job gives, a few at once: a step may be as large as a message of the farm.
    async fn sessions(&self, rest: &[&str], query: &str) -> Answer {
        let Ok(_permit) = self.busy.acquire().await else { return stopping() };
        let told = match rest {
            [] => live::sessions(&self.state).await,
            [id] => live::session(&self.state, id).await,
            [id, "screenshot"] => {
                return match live::picture(&self.state, id, query).await.map(api::with_type) {
                    // Another picture is at this address a moment later: nobody keeps it.
                    Ok((bytes, media_type)) => whole(StatusCode::OK, media_type, bytes),
                    Err(why) => refused(why),
                };
            }
            _ => Err(Refusal::Missing(NOTHING.to_owned())),
        };
        match told {
            Ok(told) => whole(StatusCode::OK, JSON, told.to_string().into()),
            Err(why) => refused(why),
        }
    }

    /// Answers that may read files are made on a blocking thread, a few at once.
    async fn api(&self, rest: &[&str], query: String, known: Option<HeaderValue>) -> Answer {
        let parts: Vec<String> = rest.iter().map(|part| (*part).to_owned()).collect();
        let Ok(permit) = self.busy.clone().acquire_owned().await else {
            return stopping();
        };
        let state = self.state.clone();
        let made = tokio::task::spawn_blocking(move || {
            let made = make(&state, &parts, &query, known.as_ref());
            drop(permit);
            made
        });
        made.await.unwrap_or_else(|_| {
            refusal(StatusCode::INTERNAL_SERVER_ERROR, "the answer could not be made; see the log")
        })
    }

    /// Says when something changed. A page that is slow gets the newest word and none of those before it.
    fn events(&self) -> Answer {
        let mut changes = self.state.changes();
        changes.mark_changed();
        let stop = self.stop.clone();
        let words = stream::unfold((changes, stop), |(mut changes, stop)| async move {
            let word = tokio::select! {
                () = stop.cancelled() => return None,
                changed = changes.changed() => {
                    changed.ok()?;
                    let change = changes.borrow_and_update().clone();
                    format!("data: {}\n\n", json!(change))
                }
                () = tokio::time::sleep(HEARTBEAT) => ": still here\n\n".to_owned(),
            };
            Some((word, (changes, stop)))
        });
        // A page that lost its connection asks again after two seconds.
        let first = stream::once(async { "retry: 2000\n\n".to_owned() });
        let frames = first.chain(words).map(|word| Ok(Frame::data(Bytes::from(word))));
        let mut answer = Response::new(StreamBody::new(frames).boxed_unsync());
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        answer
    }

    async fn sign_in<B>(&self, request: Request<B>) -> Answer
    where
        B: Body + Send,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let form = Limited::new(request.into_body(), FORM_BYTES_MAX).collect();
        let body = match tokio::time::timeout(self.form_timeout, form).await {
            Ok(Ok(body)) => body,
            Ok(Err(_)) => return refusal(StatusCode::PAYLOAD_TOO_LARGE, "a form with a token is shorter"),
            Err(_) => return refusal(StatusCode::REQUEST_TIMEOUT, "a form with a token comes at once"),
        };
        let body = body.to_bytes();
        let token = url::form_urlencoded::parse(&body).find(|(key, _)| key == "token");
        match token.and_then(|(_, token)| self.access.cookie(token.trim())) {
            Some(cookie) => redirect("/", &cookie),
            None => whole(StatusCode::UNAUTHORIZED, HTML, pages::sign_in_again().into()),
        }
    }

    fn take_token(&self, path: &str, query: &str) -> Option<Answer> {
        let asked = || url::form_urlencoded::parse(query.as_bytes());
        let (_, token) = asked().find(|(key, _)| key == "token")?;
        let cookie = self.access.cookie(&token)?;
        // No `//elsewhere` as the place to go on to.
        let mut to = format!("/{}", path.trim_start_matches('/'));
        let mut rest = url::form_urlencoded::Serializer::new(String::new());
        let rest = rest.extend_pairs(asked().filter(|(key, _)| key != "token")).finish();
        if !rest.is_empty() {
            to = format!("{to}?{rest}");
        }
        Some(redirect(&to, &cookie))
    }
}

fn make(state: &State, parts: &[String], query: &str, known: Option<&HeaderValue>) -> Answer {
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
        _ => Err(Refusal::Missing(NOTHING.to_owned())),
    };
    match answer {
        Ok(value) => whole(StatusCode::OK, JSON, value.to_string().into()),
        Err(why) => refused(why),
    }
}

/// A recorded picture. A run that is begun anew uses the same ids, so a browser that has it asks whether it is still the one.
fn picture(answer: Result<(Bytes, &'static str), Refusal>, known: Option<&HeaderValue>) -> Answer {
    match answer {
        Ok((bytes, media_type)) => tagged(&pages::tag(&bytes), bytes, media_type, known),
        Err(why) => refused(why),
    }
}

/// An answer that a browser may keep and must ask for: what it has already is not sent again.
fn tagged(tag: &str, bytes: Bytes, media_type: &'static str, known: Option<&HeaderValue>) -> Answer {
    let mut answer = match known {
        Some(known) if known.as_bytes() == tag.as_bytes() => {
            whole(StatusCode::NOT_MODIFIED, media_type, Bytes::new())
        }
        _ => whole(StatusCode::OK, media_type, bytes),
    };
    if let Ok(tag) = HeaderValue::from_str(tag) {
        answer.headers_mut().insert(header::ETAG, tag);
    }
    answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    answer
}

fn stopping() -> Answer {
    refusal(StatusCode::SERVICE_UNAVAILABLE, "the dashboard is stopping")
}

fn refused(why: Refusal) -> Answer {
    match why {
        Refusal::Asked(what) => refusal(StatusCode::BAD_REQUEST, &what),
        Refusal::Missing(what) => refusal(StatusCode::NOT_FOUND, &what),
        Refusal::Broken(what) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &what),
        Refusal::Late(what) => refusal(StatusCode::SERVICE_UNAVAILABLE, &what),
    }
}

/// Without the token: a page that asks for it, or for a program what to bring.
fn unknown(path: &str, headers: &http::HeaderMap) -> Answer {
    let accepts = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if accepts.contains("text/html") && !path.starts_with("/api/") {
        return whole(StatusCode::UNAUTHORIZED, HTML, SIGN_IN.into());
    }
    // What the sign-in page is drawn with.
    if let Some(name @ ("palette.css" | "style.css" | "icon.svg")) = path.strip_prefix("/assets/") {
        return asset(name, headers);
    }
    let what = "a token is needed here: send it as `Authorization: Bearer TOKEN`, or open the address that furrow printed when it started";
    let mut answer = refusal(StatusCode::UNAUTHORIZED, what);
    answer
        .headers_mut()
        .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"furrow\""));
    answer
}

fn asset(name: &str, headers: &http::HeaderMap) -> Answer {
    let Some(asset) = Asset::find(name) else { return refusal(StatusCode::NOT_FOUND, "no such file") };
    tagged(
        &pages::tag(asset.bytes),
        Bytes::from_static(asset.bytes),
        asset.media_type,
        headers.get(header::IF_NONE_MATCH),
    )
}

fn redirect(to: &str, cookie: &str) -> Answer {
    let mut answer = whole(StatusCode::SEE_OTHER, HTML, Bytes::new());
    for (name, value) in [(header::LOCATION, to), (header::SET_COOKIE, cookie)] {
        if let Ok(value) = HeaderValue::from_str(value) {
            answer.headers_mut().insert(name, value);
        }
    }
    answer
}

fn refusal(status: StatusCode, what: &str) -> Answer {
    let body: Value = json!({ "error": what });
    whole(status, JSON, body.to_string().into())
}

fn whole(status: StatusCode, media_type: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body).boxed_unsync());
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    answer
}
