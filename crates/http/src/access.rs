//! Decides which requests are answered: by a token, or without one by the names of this machine.
//!
//! * Without a token the `Host` must name loopback. Otherwise a foreign page could resolve its own
//!   name to 127.0.0.1 and read everything (DNS rebinding).
//! * With a token every request needs it, as `Authorization: Bearer …` or, for a role that browsers
//!   open, as the cookie of `sign_in.rs`.
//! * Browsers send an `Origin` with requests that change something, and programs send none. One of
//!   another page is refused where [`OriginCheck`] says so.

use std::net::IpAddr;

use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, Method, header};
use tokio::time::Instant;

use crate::headers::{bearer_token, only_value};
use crate::sign_in::{BrowserSignIn, SignIn, SignInError};
use crate::token::TokenDigest;

/// What a role requires of a request.
#[derive(Debug, Clone, Copy)]
pub struct AccessRules<'a> {
    /// Token that requests need; `None`: they need none, and must name loopback as their host.
    pub token: Option<&'a str>,
    pub origin_check: OriginCheck,
    /// How browsers sign in with the token; `None`: only programs send requests.
    pub sign_in: Option<SignIn>,
}

/// Which requests must not come from another server's page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OriginCheck {
    /// Those that change something: a browser sends its cookie with them by itself.
    Changes,
    /// All of them, unless a token is required, which a foreign page cannot send.
    WithoutToken,
}

/// Why a request is not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessRefusal {
    /// It lacks the token, or has a wrong one.
    Unknown,
    /// It comes from a foreign page, or names a foreign host.
    Foreign,
}

/// Decides which requests are answered.
#[derive(Debug, Clone)]
pub struct AccessControl {
    token: Option<TokenDigest>,
    origin_check: OriginCheck,
    pub(crate) sign_in: Option<BrowserSignIn>,
}

impl AccessControl {
    pub fn new(rules: &AccessRules<'_>) -> Self {
        Self {
            token: rules.token.map(TokenDigest::new),
            origin_check: rules.origin_check,
            sign_in: rules.sign_in.map(|sign_in| BrowserSignIn::new(sign_in, rules.token)),
        }
    }

    /// Answers the form of a sign-in page: the token in it becomes a cookie.
    pub async fn sign_in(&self, form: Body, deadline: Instant) -> Result<Response, SignInError> {
        match &self.sign_in {
            Some(sign_in) => sign_in.answer_form(form, deadline).await,
            None => Err(SignInError::WrongToken),
        }
    }

    /// The decision on a request with these headers.
    pub(crate) fn decide(&self, method: &Method, headers: &HeaderMap) -> Result<(), AccessRefusal> {
        let host = only_value(headers, header::HOST);
        if self.token.is_none() && !host.is_some_and(is_loopback_host) {
            return Err(AccessRefusal::Foreign);
        }
        let checks_origin = match self.origin_check {
            OriginCheck::Changes => !matches!(*method, Method::GET | Method::HEAD),
            OriginCheck::WithoutToken => self.token.is_none(),
        };
        if checks_origin && !is_own(headers, host) {
            return Err(AccessRefusal::Foreign);
        }
        let Some(token) = &self.token else { return Ok(()) };
        // Both are always compared, in constant time.
        let is_signed_in = self.sign_in.as_ref().is_some_and(|sign_in| sign_in.is_signed_in(headers));
        match token.matches(bearer_token(headers)) | is_signed_in {
            true => Ok(()),
            false => Err(AccessRefusal::Unknown),
        }
    }
}

/// Whether a `Host` header means the loopback interface, by name or by address.
fn is_loopback_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Whether a request comes from a page of this server, or from a program, which sends no origin.
fn is_own(headers: &HeaderMap, host: Option<&str>) -> bool {
    if !headers.contains_key(header::ORIGIN) {
        return true;
    }
    let origin = only_value(headers, header::ORIGIN);
    let named =
        origin.and_then(|origin| origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://")));
    named.is_some() && named == host
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "correct-horse-battery";
    const SIGN_IN: SignIn = SignIn { cookie_prefix: "furrow_test_", path: "/token" };

    fn access(token: Option<&str>) -> AccessControl {
        let origin_check = OriginCheck::Changes;
        AccessControl::new(&AccessRules { token, origin_check, sign_in: Some(SIGN_IN) })
    }

    /// An access control without cookies.
    fn programs(token: Option<&str>) -> AccessControl {
        AccessControl::new(&AccessRules { token, origin_check: OriginCheck::WithoutToken, sign_in: None })
    }

    type Decision = Result<(), AccessRefusal>;
    const UNKNOWN: Decision = Err(AccessRefusal::Unknown);
    const FOREIGN: Decision = Err(AccessRefusal::Foreign);

    #[track_caller]
    fn check(access: &AccessControl, method: &Method, headers: &[(&'static str, &str)], want: Decision) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        assert_eq!(access.decide(method, &map), want, "{map:?}");
    }

    #[test]
    fn only_loopback_hosts_are_recognised() {
        for host in ["127.0.0.1:7380", "localhost:7380", "LOCALHOST", "[::1]:7380", "127.8.8.8"] {
            assert!(is_loopback_host(host), "{host}");
        }
        for host in ["evil.test:7380", "127.0.0.1.evil.test", "10.0.0.1:7380", "", "[::2]:1"] {
            assert!(!is_loopback_host(host), "{host}");
        }
    }

    #[test]
    fn loopback_needs_no_token_and_no_other_name() {
        for access in [access(None), programs(None)] {
            for host in ["127.0.0.1:7380", "localhost:7380", "LOCALHOST", "[::1]:7380", "127.8.8.8"] {
                check(&access, &Method::GET, &[("host", host)], Ok(()));
            }
            for host in ["evil.test:7380", "127.0.0.1.evil.test", "10.0.0.1:7380", "", "[::2]:1"] {
                check(&access, &Method::GET, &[("host", host)], FOREIGN);
            }
            check(&access, &Method::GET, &[], FOREIGN);
            check(&access, &Method::GET, &[("host", "127.0.0.1"), ("host", "evil.test")], FOREIGN);
        }
    }

    #[test]
    fn elsewhere_the_token_decides() {
        let bearer = format!("Bearer {TOKEN}");
        let browsers = access(Some(TOKEN));
        for access in [&browsers, &programs(Some(TOKEN))] {
            check(access, &Method::GET, &[("host", "farm.test"), ("authorization", &bearer)], Ok(()));
            check(access, &Method::GET, &[("authorization", &format!("bearer  {TOKEN}"))], Ok(()));
            for wrong in [
                "",
                "Bearer",
                "Bearer ",
                "Bearer correct-horse-batterz",
                "Bearer correct-horse",
                "Basic x",
                TOKEN,
            ] {
                check(access, &Method::GET, &[("authorization", wrong)], UNKNOWN);
            }
            check(access, &Method::GET, &[("authorization", &format!("Basic {TOKEN}"))], UNKNOWN);
            check(access, &Method::GET, &[("host", "127.0.0.1:8000")], UNKNOWN);
            check(access, &Method::GET, &[], UNKNOWN);
        }
        let form = browsers.sign_in.as_ref().unwrap();
        let link = format!("/?token={TOKEN}").parse().unwrap();
        let cookie = form.answer_link(&link).unwrap().headers()[header::SET_COOKIE].clone();
        let cookie = cookie.to_str().unwrap();
        check(&browsers, &Method::GET, &[("cookie", cookie)], Ok(()));
        check(&programs(Some(TOKEN)), &Method::GET, &[("cookie", cookie)], UNKNOWN);
    }

    #[test]
    fn what_changes_something_comes_from_our_own_pages() {
        let host = ("host", "127.0.0.1:7380");
        let own = ("origin", "http://127.0.0.1:7380");
        let bearer = format!("Bearer {TOKEN}");
        let foreign = [
            "http://evil.test",
            "null",
            "http://127.0.0.1:7381",
            "ftp://127.0.0.1:7380",
            "http://localhost:7380",
        ];
        for access in [access(None), programs(None)] {
            check(&access, &Method::POST, &[host], Ok(()));
            check(&access, &Method::POST, &[host, own], Ok(()));
            check(&access, &Method::POST, &[host, own, ("origin", "http://evil.test")], FOREIGN);
            for origin in foreign {
                check(&access, &Method::POST, &[host, ("origin", origin)], FOREIGN);
            }
        }
        for origin in foreign {
            let headers = [host, ("authorization", &bearer), ("origin", origin)];
            // A cookie comes with the request of a foreign page, a token does not.
            check(&access(Some(TOKEN)), &Method::POST, &headers, FOREIGN);
            check(&programs(Some(TOKEN)), &Method::POST, &headers, Ok(()));
            check(&access(None), &Method::GET, &[host, ("origin", origin)], Ok(()));
            check(&programs(None), &Method::GET, &[host, ("origin", origin)], FOREIGN);
        }
    }
}
