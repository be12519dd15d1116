//! Reads single values of a request's headers. A value that is not text counts as absent.

use http::HeaderMap;
use http::header::{self, HeaderName, HeaderValue};

/// The first value of a header.
pub(crate) fn first_value(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(text)
}

/// The value of a header that occurs once.
pub(crate) fn only_value(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).into_iter();
    let value = values.next()?;
    if values.next().is_some() { None } else { text(value) }
}

/// The token of `Authorization: Bearer …`, or an empty text. The name of a scheme is
/// case-insensitive (RFC 9110, section 11.1).
pub(crate) fn bearer_token(headers: &HeaderMap) -> &str {
    let presented = first_value(headers, header::AUTHORIZATION).and_then(|value| value.split_once(' '));
    let presented = presented.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("Bearer"));
    presented.map_or("", |(_, token)| token.trim())
}

fn text(value: &HeaderValue) -> Option<&str> {
    value.to_str().ok()
}
