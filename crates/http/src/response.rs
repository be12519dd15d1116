//! Responses with a whole body.

use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use http::header::{self, HeaderValue};

/// Media type of JSON.
pub const JSON: &str = "application/json";
/// Media type of a page.
pub const HTML: &str = "text/html; charset=utf-8";
/// `WWW-Authenticate` of a response to a program without the token.
pub const CHALLENGE: &str = "Bearer realm=\"furrow\"";

/// A response with this body.
pub fn respond(status: StatusCode, media_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}
