//! Authenticates requests. Without a token file, programs on this machine may send requests; with
//! one, any client with the token may.
//!
//! Without a token the `Host` must name loopback, because otherwise a web page could have its own
//! domain resolved to 127.0.0.1. A foreign `Origin` is refused too: programs send none, browsers
//! do.

use std::path::Path;

use furrow_http::{TokenDigest, is_loopback_host, read_token};
use furrow_openai::server::ApiError;
use http::{HeaderMap, header};

use super::ServeError;

/// Decides which requests are allowed.
#[derive(Debug, Clone)]
pub(super) struct AccessCheck {
    token: Option<TokenDigest>,
}

impl AccessCheck {
    /// Requires the token in this file; without a file, none.
    pub fn new(token_file: Option<&Path>) -> Result<Self, ServeError> {
        let token = token_file.map(read_token).transpose().map_err(ServeError::Token)?;
        Ok(Self { token: token.as_deref().map(TokenDigest::new) })
    }

    /// Checks a request's headers.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let Some(token) = &self.token else {
            let host = text(header::HOST);
            let is_own = |origin: &str| origin.strip_prefix("http://") == host;
            if !host.is_some_and(is_loopback_host) || !text(header::ORIGIN).is_none_or(is_own) {
                let why = "call this endpoint as 127.0.0.1 or localhost, not from a web page; for other names set policy.serve.token_file";
                return Err(ApiError::of(403, "invalid_request_error", "foreign_origin", why));
            }
            return Ok(());
        };
        let brought = text(header::AUTHORIZATION).and_then(|value| value.split_once(' '));
        let brought = brought.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("Bearer"));
        if token.matches(brought.map_or("", |(_, token)| token.trim())) {
            return Ok(());
        }
        let why = "this endpoint needs a token: send it as `Authorization: Bearer TOKEN`; clients of OpenAI call it api_key";
        Err(ApiError::of(401, "authentication_error", "invalid_api_key", why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "correct-horse-battery";

    #[track_caller]
    fn check(token: bool, headers: &[(&'static str, &str)], want: Option<u16>) {
        let pairs = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let headers: HeaderMap = pairs.collect();
        let access = AccessCheck { token: token.then(|| TokenDigest::new(TOKEN)) };
        assert_eq!(access.check(&headers).err().map(|error| error.status), want, "{headers:?}");
    }

    #[test]
    fn the_token_decides_and_without_one_loopback_does() {
        for host in ["127.0.0.1:8000", "localhost:8000", "LOCALHOST", "[::1]:8000"] {
            check(false, &[("host", host)], None);
        }
        for host in ["evil.test:8000", "127.0.0.1.evil.test", "10.0.0.1:8000", ""] {
            check(false, &[("host", host)], Some(403));
        }
        check(false, &[], Some(403));
        let host = ("host", "127.0.0.1:8000");
        check(false, &[host, ("origin", "http://127.0.0.1:8000")], None);
        for origin in ["http://evil.test", "null", "http://127.0.0.1:8001"] {
            check(false, &[host, ("origin", origin)], Some(403));
        }
        let bearer = format!("Bearer {TOKEN}");
        check(true, &[("host", "farm.test"), ("authorization", &bearer)], None);
        // The name of a scheme is case-insensitive (RFC 9110, section 11.1).
        check(true, &[("authorization", &format!("bearer  {TOKEN}"))], None);
        check(true, &[("authorization", TOKEN)], Some(401));
        check(true, &[("authorization", &format!("Basic {TOKEN}"))], Some(401));
        for wrong in
            ["", "Bearer", "Bearer ", "Bearer correct-horse-batterz", "Bearer correct-horse", "Basic x"]
        {
            check(true, &[host, ("authorization", wrong)], Some(401));
        }
        check(true, &[host], Some(401));
    }
}
