//! Who may look: anybody on this machine, and from elsewhere whoever brings the token.
//!
//! * On loopback there is no account. The `Host` must name loopback too, or a page of a stranger could have its own name resolved to
//!   127.0.0.1 and read everything (DNS rebinding).
//! * On any other address every request brings the token: as `Authorization: Bearer …`, or as the cookie that `/?token=…` and the
//!   sign-in page leave. The cookie is a hash of the token, so that a browser's profile never holds the token itself.
//! * What changes something comes from our own pages only: a browser tells an `Origin`, and it must be our own.

use std::net::SocketAddr;

use furrow_wire::{TokenError, Word, names_loopback};
use http::{HeaderMap, Method, header};
use sha2::{Digest, Sha256};

/// Decides who may look.
#[derive(Debug, Clone)]
pub struct Access {
    token: Option<Token>,
}

/// What opens the door: the token itself, or the cookie that stands for it.
#[derive(Debug, Clone)]
struct Token {
    bearer: Word,
    /// Value of the cookie: hex digits of a hash of the token.
    value: String,
    cookie: Word,
    /// Of the cookie: [`COOKIE`] and 8 hex digits of another hash.
    name: String,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ruling {
    /// It is answered.
    Allowed,
    /// It lacks the token, or brings another.
    Unknown,
    /// It comes from a page of somebody else.
    Foreign,
}

/// Why nobody can be let in.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The token's file cannot be used.
    #[error("dashboard.token_file")]
    Token(#[from] TokenError),
    /// Anybody could look.
    #[error(
        "dashboard.listen: {address} can be reached from other machines, so a token is needed; set dashboard.token_file"
    )]
    Open {
        /// Where it should listen.
        address: SocketAddr,
    },
}

/// Beginning of the cookie's name. A browser does not tell ports of a host apart, so each dashboard's name goes on with digits of its own.
const COOKIE: &str = "furrow_dashboard_";

impl Access {
    /// For a dashboard that listens here. On loopback a token is not needed, and asked for where one is given.
    pub fn new(address: SocketAddr, token: Option<&str>) -> Result<Self, AccessError> {
        match token {
            Some(token) => Ok(Self { token: Some(Token::new(token)) }),
            None if address.ip().is_loopback() => Ok(Self { token: None }),
            None => Err(AccessError::Open { address }),
        }
    }

    /// What becomes of a request with these headers.
    pub(crate) fn rule(&self, method: &Method, headers: &HeaderMap) -> Ruling {
        let host = text(headers, header::HOST);
        if self.token.is_none() && !host.is_some_and(names_loopback) {
            return Ruling::Foreign;
        }
        if !matches!(*method, Method::GET | Method::HEAD) && !is_own(text(headers, header::ORIGIN), host) {
            return Ruling::Foreign;
        }
        match &self.token {
            Some(token) if !token.is_brought(headers) => Ruling::Unknown,
            _ => Ruling::Allowed,
        }
    }

    /// The cookie that stands for the token, where this is the token.
    pub(crate) fn cookie(&self, brought: &str) -> Option<String> {
        let token = self.token.as_ref()?;
        let is_right = token.bearer.is(brought);
        // No `Secure`: whoever puts TLS before the dashboard speaks plain HTTP with it.
        is_right.then(|| format!("{}={}; Path=/; HttpOnly; SameSite=Strict", token.name, token.value))
    }
}

impl Token {
    fn new(token: &str) -> Self {
        let name = Sha256::digest(format!("furrow cookie name {token}"));
        let value = hex(&Sha256::digest(format!("furrow cookie {token}")));
        Self {
            bearer: Word::new(token),
            cookie: Word::new(&value),
            value,
            name: format!("{COOKIE}{}", hex(&name[..4])),
        }
    }

    fn is_brought(&self, headers: &HeaderMap) -> bool {
        let bearer = text(headers, header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
        let cookies = text(headers, header::COOKIE).unwrap_or_default();
        let cookie = cookies
            .split(';')
            .find_map(|pair| pair.trim().strip_prefix(self.name.as_str())?.strip_prefix('='));
        // Both are always compared, and each in the same time whatever was brought.
        self.bearer.is(bearer.unwrap_or_default()) | self.cookie.is(cookie.unwrap_or_default())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Whether a request comes from our own page: a browser sends `Origin` with everything that changes something; programs send none.
fn is_own(origin: Option<&str>, host: Option<&str>) -> bool {
    let Some(origin) = origin else { return true };
    let named = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    named.is_some() && named == host
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "correct-horse-battery";

    fn access(token: bool) -> Access {
        let address = if token { "0.0.0.0:1" } else { "127.0.0.1:1" };
        Access::new(address.parse().unwrap(), token.then_some(TOKEN)).unwrap()
    }

    #[track_caller]
    fn check(token: bool, method: &Method, headers: &[(&'static str, &str)], want: Ruling) {
        let pairs = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let headers: HeaderMap = pairs.collect();
        assert_eq!(access(token).rule(method, &headers), want, "{headers:?}");
    }

    #[test]
    fn loopback_needs_no_token_and_no_other_name() {
        for host in ["127.0.0.1:7380", "localhost:7380", "LOCALHOST", "[::1]:7380", "127.8.8.8"] {
            check(false, &Method::GET, &[("host", host)], Ruling::Allowed);
        }
        for host in ["evil.test:7380", "127.0.0.1.evil.test", "10.0.0.1:7380", "", "[::2]:1"] {
            check(false, &Method::GET, &[("host", host)], Ruling::Foreign);
        }
        check(false, &Method::GET, &[], Ruling::Foreign);
    }

    #[test]
    fn elsewhere_the_token_decides() {
        let bearer = format!("Bearer {TOKEN}");
        let cookie = access(true).cookie(TOKEN).unwrap();
        let pair = cookie.split(';').next().unwrap();
        let among = format!("a=b; {pair}; c=d");
        check(true, &Method::GET, &[("host", "farm.test"), ("authorization", &bearer)], Ruling::Allowed);
        check(true, &Method::GET, &[("cookie", pair)], Ruling::Allowed);
        check(true, &Method::GET, &[("cookie", &among)], Ruling::Allowed);
        for wrong in
            ["", "Bearer", "Bearer ", "Bearer correct-horse-batterz", "Bearer correct-horse", "Basic x"]
        {
            check(true, &Method::GET, &[("authorization", wrong)], Ruling::Unknown);
        }
        let (name, _) = pair.split_once('=').unwrap();
        check(true, &Method::GET, &[("cookie", &format!("{name}={TOKEN}"))], Ruling::Unknown);
        check(true, &Method::GET, &[("cookie", &pair[..pair.len() - 1])], Ruling::Unknown);
        check(true, &Method::GET, &[], Ruling::Unknown);
        assert!(!cookie.contains(TOKEN) && cookie.contains("HttpOnly"));
        assert_eq!(access(true).cookie("correct-horse"), None);
        assert_eq!(access(false).cookie(""), None);
    }

    #[test]
    fn two_dashboards_of_a_host_do_not_take_each_others_cookies() {
        let other = Access::new("0.0.0.0:2".parse().unwrap(), Some("another-horse-battery")).unwrap();
        let pairs = [access(true).cookie(TOKEN), other.cookie("another-horse-battery")]
            .map(|cookie| cookie.unwrap().split(';').next().unwrap().to_owned());
        assert_ne!(pairs[0].split_once('=').unwrap().0, pairs[1].split_once('=').unwrap().0);
        let both: HeaderMap =
            [("cookie".parse().unwrap(), pairs.join("; ").parse().unwrap())].into_iter().collect();
        for access in [access(true), other] {
            assert_eq!(access.rule(&Method::GET, &both), Ruling::Allowed);
        }
    }

    #[test]
    fn what_changes_something_comes_from_our_own_pages() {
        let host = ("host", "127.0.0.1:7380");
        check(false, &Method::POST, &[host], Ruling::Allowed);
        check(false, &Method::POST, &[host, ("origin", "http://127.0.0.1:7380")], Ruling::Allowed);
        for origin in [
            "http://evil.test",
            "null",
            "http://127.0.0.1:7381",
            "ftp://127.0.0.1:7380",
            "http://localhost:7380",
        ] {
            check(false, &Method::POST, &[host, ("origin", origin)], Ruling::Foreign);
        }
    }

    #[test]
    fn nobody_listens_to_the_world_without_a_token() {
        let error = Access::new("0.0.0.0:80".parse().unwrap(), None).unwrap_err().to_string();
        assert!(error.contains("0.0.0.0:80") && error.contains("token_file"), "{error}");
    }
}
