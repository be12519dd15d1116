//! Access control: every program on this machine, and from other machines only requests with the
//! token.
//!
//! * On loopback no token is needed. The `Host` must name loopback, too; otherwise a foreign page
//!   could resolve its own name to 127.0.0.1 and read everything (DNS rebinding).
//! * On any other address every request needs the token: as `Authorization: Bearer …`, or as the
//!   cookie that `/?token=…` and the sign-in page set. The cookie is a hash of the token, so a
//!   browser's profile never holds the token itself.
//! * Requests that change something are accepted only from the dashboard's own pages: their
//!   `Origin`, which a browser sends, must match.

use std::net::SocketAddr;

use furrow_http::{TokenDigest, TokenError, is_loopback_host};
use http::{HeaderMap, Method, header};
use sha2::{Digest, Sha256};

/// Decides which requests are answered.
#[derive(Debug, Clone)]
pub struct AccessControl {
    token: Option<AccessToken>,
}

/// The accepted credentials: the token itself, or the cookie derived from it.
#[derive(Debug, Clone)]
struct AccessToken {
    bearer: TokenDigest,
    /// Value of the cookie: hex digits of a hash of the token.
    value: String,
    cookie: TokenDigest,
    /// Name of the cookie: [`COOKIE`] and 8 hex digits of another hash.
    name: String,
}

/// The decision on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AccessDecision {
    /// The request is answered.
    Allowed,
    /// The request lacks the token, or has a wrong one.
    Unknown,
    /// The request comes from a foreign page.
    Foreign,
}

/// Why a dashboard cannot control access.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The token's file cannot be used.
    #[error("dashboard.token_file")]
    Token(#[from] TokenError),
    /// The address is reachable from other machines and there is no token.
    #[error(
        "dashboard.listen: {address} can be reached from other machines and needs a token; set dashboard.token_file"
    )]
    Open {
        /// The address to listen on.
        address: SocketAddr,
    },
}

/// Prefix of the cookie's name. A browser does not distinguish ports of a host, so each dashboard
/// adds its own digits.
const COOKIE: &str = "furrow_dashboard_";

impl AccessControl {
    /// Access for a dashboard that listens on this address. On loopback no token is needed, but one
    /// that is given is required.
    pub fn new(address: SocketAddr, token: Option<&str>) -> Result<Self, AccessError> {
        match token {
            Some(token) => Ok(Self { token: Some(AccessToken::new(token)) }),
            None if address.ip().is_loopback() => Ok(Self { token: None }),
            None => Err(AccessError::Open { address }),
        }
    }

    /// The decision on a request with these headers.
    pub(crate) fn decide(&self, method: &Method, headers: &HeaderMap) -> AccessDecision {
        let host = text(headers, header::HOST);
        if self.token.is_none() && !host.is_some_and(is_loopback_host) {
            return AccessDecision::Foreign;
        }
        if !matches!(*method, Method::GET | Method::HEAD) && !is_own(text(headers, header::ORIGIN), host) {
            return AccessDecision::Foreign;
        }
        match &self.token {
            Some(token) if !token.is_presented(headers) => AccessDecision::Unknown,
            _ => AccessDecision::Allowed,
        }
    }

    /// The cookie for the token, if `brought` is the token.
    pub(crate) fn cookie(&self, brought: &str) -> Option<String> {
        let token = self.token.as_ref()?;
        let is_right = token.bearer.matches(brought);
        // No `Secure`: a TLS proxy in front of the dashboard uses plain HTTP.
        is_right.then(|| format!("{}={}; Path=/; HttpOnly; SameSite=Strict", token.name, token.value))
    }
}

impl AccessToken {
    fn new(token: &str) -> Self {
        let name = Sha256::digest(format!("furrow cookie name {token}"));
        let value = hex(&Sha256::digest(format!("furrow cookie {token}")));
        Self {
            bearer: TokenDigest::new(token),
            cookie: TokenDigest::new(&value),
            value,
            name: format!("{COOKIE}{}", hex(&name[..4])),
        }
    }

    fn is_presented(&self, headers: &HeaderMap) -> bool {
        let bearer = text(headers, header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
        let cookies = text(headers, header::COOKIE).unwrap_or_default();
        let cookie = cookies
            .split(';')
            .find_map(|pair| pair.trim().strip_prefix(self.name.as_str())?.strip_prefix('='));
        // Both are always compared, in constant time.
        self.bearer.matches(bearer.unwrap_or_default()) | self.cookie.matches(cookie.unwrap_or_default())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Whether a request comes from the dashboard's own page: a browser sends `Origin` with every
/// request that changes something; programs send none.
fn is_own(origin: Option<&str>, host: Option<&str>) -> bool {
    let Some(origin) = origin else { return true };
    let named = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    named.is_some() && named == host
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "correct-horse-battery";

    fn access(token: bool) -> AccessControl {
        let address = if token { "0.0.0.0:1" } else { "127.0.0.1:1" };
        AccessControl::new(address.parse().unwrap(), token.then_some(TOKEN)).unwrap()
    }

    #[track_caller]
    fn check(token: bool, method: &Method, headers: &[(&'static str, &str)], want: AccessDecision) {
        let pairs = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let headers: HeaderMap = pairs.collect();
        assert_eq!(access(token).decide(method, &headers), want, "{headers:?}");
    }

    #[test]
    fn loopback_needs_no_token_and_no_other_name() {
        for host in ["127.0.0.1:7380", "localhost:7380", "LOCALHOST", "[::1]:7380", "127.8.8.8"] {
            check(false, &Method::GET, &[("host", host)], AccessDecision::Allowed);
        }
        for host in ["evil.test:7380", "127.0.0.1.evil.test", "10.0.0.1:7380", "", "[::2]:1"] {
            check(false, &Method::GET, &[("host", host)], AccessDecision::Foreign);
        }
        check(false, &Method::GET, &[], AccessDecision::Foreign);
    }

    #[test]
    fn elsewhere_the_token_decides() {
        let bearer = format!("Bearer {TOKEN}");
        let cookie = access(true).cookie(TOKEN).unwrap();
        let pair = cookie.split(';').next().unwrap();
        let among = format!("a=b; {pair}; c=d");
        check(
            true,
            &Method::GET,
            &[("host", "farm.test"), ("authorization", &bearer)],
            AccessDecision::Allowed,
        );
        check(true, &Method::GET, &[("cookie", pair)], AccessDecision::Allowed);
        check(true, &Method::GET, &[("cookie", &among)], AccessDecision::Allowed);
        for wrong in
            ["", "Bearer", "Bearer ", "Bearer correct-horse-batterz", "Bearer correct-horse", "Basic x"]
        {
            check(true, &Method::GET, &[("authorization", wrong)], AccessDecision::Unknown);
        }
        let (name, _) = pair.split_once('=').unwrap();
        check(true, &Method::GET, &[("cookie", &format!("{name}={TOKEN}"))], AccessDecision::Unknown);
        check(true, &Method::GET, &[("cookie", &pair[..pair.len() - 1])], AccessDecision::Unknown);
        check(true, &Method::GET, &[], AccessDecision::Unknown);
        assert!(!cookie.contains(TOKEN) && cookie.contains("HttpOnly"));
        assert_eq!(access(true).cookie("correct-horse"), None);
        assert_eq!(access(false).cookie(""), None);
    }

    #[test]
    fn two_dashboards_of_a_host_do_not_take_each_others_cookies() {
        let other = AccessControl::new("0.0.0.0:2".parse().unwrap(), Some("another-horse-battery")).unwrap();
        let pairs = [access(true).cookie(TOKEN), other.cookie("another-horse-battery")]
            .map(|cookie| cookie.unwrap().split(';').next().unwrap().to_owned());
        assert_ne!(pairs[0].split_once('=').unwrap().0, pairs[1].split_once('=').unwrap().0);
        let both: HeaderMap =
            [("cookie".parse().unwrap(), pairs.join("; ").parse().unwrap())].into_iter().collect();
        for access in [access(true), other] {
            assert_eq!(access.decide(&Method::GET, &both), AccessDecision::Allowed);
        }
    }

    #[test]
    fn what_changes_something_comes_from_our_own_pages() {
        let host = ("host", "127.0.0.1:7380");
        check(false, &Method::POST, &[host], AccessDecision::Allowed);
        check(false, &Method::POST, &[host, ("origin", "http://127.0.0.1:7380")], AccessDecision::Allowed);
        for origin in [
            "http://evil.test",
            "null",
            "http://127.0.0.1:7381",
            "ftp://127.0.0.1:7380",
            "http://localhost:7380",
        ] {
            check(false, &Method::POST, &[host, ("origin", origin)], AccessDecision::Foreign);
        }
    }

    #[test]
    fn listening_beyond_loopback_needs_a_token() {
        let error = AccessControl::new("0.0.0.0:80".parse().unwrap(), None).unwrap_err().to_string();
        assert!(error.contains("0.0.0.0:80") && error.contains("token_file"), "{error}");
    }
}
