//! Who may ask: anybody on this machine, and from elsewhere whoever brings the token.
//!
//! Without a token the `Host` must name loopback, or a page of a stranger could have its own name resolved to 127.0.0.1, and no `Origin`
//! may be told but our own: programs tell none, browsers do.

use std::net::IpAddr;
use std::path::Path;

use furrow_openai::server::ApiError;
use http::{HeaderMap, header};
use sha2::{Digest, Sha256};

use super::ServeError;

/// Decides who may ask.
#[derive(Debug, Clone)]
pub(super) struct Access {
    /// SHA-256 of the token, so that lengths and common beginnings tell nothing.
    token: Option<[u8; 32]>,
}

/// 16 letters of base 64 are 96 bits; shorter ones can be tried out.
const TOKEN_CHARS_MIN: usize = 16;
const TOKEN_CHARS_MAX: usize = 512;

impl Access {
    /// Asks for the token of a file; without a file for none.
    pub fn new(token_file: Option<&Path>) -> Result<Self, ServeError> {
        let token = token_file.map(read_token).transpose()?;
        Ok(Self { token: token.map(|token| hash(&token)) })
    }

    /// Refuses a request with these headers, or lets it in.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let Some(token) = &self.token else {
            let host = text(header::HOST);
            let is_own = |origin: &str| origin.strip_prefix("http://") == host;
            if !host.is_some_and(names_loopback) || !text(header::ORIGIN).is_none_or(is_own) {
                let why = "this endpoint is asked as 127.0.0.1 or localhost, and not by pages; others bring a token";
                return Err(ApiError::of(403, "invalid_request_error", "foreign_origin", why));
            }
            return Ok(());
        };
        let brought = text(header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
        if equal(&hash(brought.unwrap_or_default().trim()), token) {
            return Ok(());
        }
        let why = "a token is needed here: send it as `Authorization: Bearer TOKEN`; clients of OpenAI call it api_key";
        Err(ApiError::of(401, "authentication_error", "invalid_api_key", why))
    }
}

fn read_token(path: &Path) -> Result<String, ServeError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ServeError::Unreadable { path: path.to_owned(), source })?;
    let token = text.trim();
    let is_right = (TOKEN_CHARS_MIN..=TOKEN_CHARS_MAX).contains(&token.len())
        && token.chars().all(|letter| letter.is_ascii_graphic());
    if is_right { Ok(token.to_owned()) } else { Err(ServeError::Weak { path: path.to_owned() }) }
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// Compares all bytes, wherever the first difference is.
fn equal(a: &[u8; 32], b: &[u8; 32]) -> bool {
    a.iter().zip(b).fold(0, |differences, (a, b)| differences | (a ^ b)) == 0
}

/// Whether a `Host` is loopback, by name or by number.
fn names_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "correct-horse-battery";

    #[track_caller]
    fn check(token: bool, headers: &[(&'static str, &str)], want: Option<u16>) {
        let pairs = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let headers: HeaderMap = pairs.collect();
        let access = Access { token: token.then(|| hash(TOKEN)) };
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
        for wrong in
            ["", "Bearer", "Bearer ", "Bearer correct-horse-batterz", "Bearer correct-horse", "Basic x"]
        {
            check(true, &[host, ("authorization", wrong)], Some(401));
        }
        check(true, &[host], Some(401));
    }

    #[test]
    fn a_token_that_can_be_tried_out_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        for (text, is_right) in
            [(" 0123456789abcdef\n", true), ("", false), ("short", false), ("with a blank inside it", false)]
        {
            std::fs::write(&path, text).unwrap();
            assert_eq!(Access::new(Some(&path)).is_ok(), is_right, "{text:?}");
        }
        assert!(Access::new(Some(&folder.path().join("none"))).is_err());
        assert!(Access::new(None).is_ok());
    }
}
