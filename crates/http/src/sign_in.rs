//! Signs browsers in: the token of a link or of a form becomes a cookie.
//!
//! The cookie is a hash of the token, so a browser's profile never holds the token itself.

use axum::body::Body;
use axum::response::Response;
use http::header::{self, HeaderValue};
use http::{HeaderMap, Method, StatusCode, Uri};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::body::{BodyError, read_body};
use crate::headers::first_value;
use crate::response::{HTML, respond};
use crate::token::TokenDigest;

/// How browsers sign in to a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignIn {
    /// Prefix of the cookie's name. A browser does not distinguish ports of a host, so each server
    /// adds digits of its own.
    pub cookie_prefix: &'static str,
    /// Path that takes the form by POST, without a token.
    pub path: &'static str,
}

/// Why a sign-in form is refused.
#[derive(Debug, thiserror::Error)]
pub enum SignInError {
    #[error("the form has no token, or a wrong one")]
    WrongToken,
    #[error(transparent)]
    Body(#[from] BodyError),
}

/// Signs browsers in to one server, and recognises them.
#[derive(Debug, Clone)]
pub(crate) struct BrowserSignIn {
    path: &'static str,
    /// `None`: the server requires no token, so no form has the right one.
    cookie: Option<TokenCookie>,
}

/// A token, and what a browser keeps of it.
#[derive(Debug, Clone)]
struct TokenCookie {
    token: TokenDigest,
    /// The prefix, and 8 hex digits of a hash.
    name: String,
    /// Hex digits of another hash.
    value: String,
    value_digest: TokenDigest,
}

/// Most bytes of a form with a token.
const FORM_BYTES_MAX: usize = 2048;

impl BrowserSignIn {
    pub(crate) fn new(sign_in: SignIn, token: Option<&str>) -> Self {
        let cookie = token.map(|token| TokenCookie::new(sign_in.cookie_prefix, token));
        Self { path: sign_in.path, cookie }
    }

    pub(crate) fn is_signed_in(&self, headers: &HeaderMap) -> bool {
        self.cookie.as_ref().is_some_and(|cookie| cookie.is_presented(headers))
    }

    pub(crate) fn is_form(&self, method: &Method, uri: &Uri) -> bool {
        method == Method::POST && uri.path() == self.path
    }

    /// Reads a form and sets the cookie if its token is right.
    pub(crate) async fn answer_form(&self, form: Body, deadline: Instant) -> Result<Response, SignInError> {
        let form = read_body(form, FORM_BYTES_MAX, deadline).await?;
        let token = url::form_urlencoded::parse(&form).find(|(key, _)| key == "token");
        let cookie = token.and_then(|(_, token)| self.set_cookie(token.trim()));
        cookie.map(|cookie| redirect("/", &cookie)).ok_or(SignInError::WrongToken)
    }

    /// Redirects a link with the token to itself without it, and sets the cookie.
    pub(crate) fn answer_link(&self, uri: &Uri) -> Option<Response> {
        let query = uri.query()?;
        let parameters = || url::form_urlencoded::parse(query.as_bytes());
        let (_, token) = parameters().find(|(key, _)| key == "token")?;
        let cookie = self.set_cookie(&token)?;
        // Never redirects to `//elsewhere`.
        let mut to = format!("/{}", uri.path().trim_start_matches(['/', '\\']));
        let mut rest = url::form_urlencoded::Serializer::new(String::new());
        let rest = rest.extend_pairs(parameters().filter(|(key, _)| key != "token")).finish();
        if !rest.is_empty() {
            to = format!("{to}?{rest}");
        }
        Some(redirect(&to, &cookie))
    }

    /// The `Set-Cookie` for the token, if `presented` is the token.
    fn set_cookie(&self, presented: &str) -> Option<String> {
        let cookie = self.cookie.as_ref().filter(|cookie| cookie.token.matches(presented))?;
        // No `Secure`: a TLS proxy in front of the server uses plain HTTP.
        Some(format!("{}={}; Path=/; HttpOnly; SameSite=Strict", cookie.name, cookie.value))
    }
}

impl TokenCookie {
    fn new(prefix: &str, token: &str) -> Self {
        let name = Sha256::digest(format!("furrow cookie name {token}"));
        let value = hex(&Sha256::digest(format!("furrow cookie {token}")));
        Self {
            token: TokenDigest::new(token),
            name: format!("{prefix}{}", hex(&name[..4])),
            value_digest: TokenDigest::new(&value),
            value,
        }
    }

    fn is_presented(&self, headers: &HeaderMap) -> bool {
        let cookies = first_value(headers, header::COOKIE).unwrap_or_default();
        let value = cookies
            .split(';')
            .find_map(|pair| pair.trim().strip_prefix(self.name.as_str())?.strip_prefix('='));
        self.value_digest.matches(value.unwrap_or_default())
    }
}

fn redirect(to: &str, cookie: &str) -> Response {
    let mut response = respond(StatusCode::SEE_OTHER, HTML, Body::empty());
    for (name, value) in [(header::LOCATION, to), (header::SET_COOKIE, cookie)] {
        if let Ok(value) = HeaderValue::from_str(value) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const TOKEN: &str = "correct-horse-battery";
    const OTHER: &str = "another-horse-battery";

    fn browsers(token: Option<&str>) -> BrowserSignIn {
        BrowserSignIn::new(SignIn { cookie_prefix: "furrow_test_", path: "/token" }, token)
    }

    /// The name and the value that a browser sends after it signed in.
    fn pair(token: &str) -> String {
        let cookie = browsers(Some(token)).set_cookie(token).unwrap();
        assert!(!cookie.contains(token) && cookie.contains("HttpOnly"), "{cookie}");
        cookie.split(';').next().unwrap().to_owned()
    }

    #[track_caller]
    fn check(token: Option<&str>, cookies: &str, want: bool) {
        let headers = HeaderMap::from_iter([(header::COOKIE, cookies.parse().unwrap())]);
        assert_eq!(browsers(token).is_signed_in(&headers), want, "{cookies}");
    }

    #[test]
    fn a_browser_is_known_by_its_cookie_alone() {
        let pair = pair(TOKEN);
        check(Some(TOKEN), &pair, true);
        check(Some(TOKEN), &format!("a=b; {pair}; c=d"), true);
        let (name, value) = pair.split_once('=').unwrap();
        for wrong in ["", ";;=;", value, &pair[..pair.len() - 1], &format!("{name}={TOKEN}")] {
            check(Some(TOKEN), wrong, false);
        }
        check(None, &pair, false);
        check(None, "", false);
        assert_eq!(browsers(Some(TOKEN)).set_cookie("correct-horse"), None);
        assert_eq!(browsers(None).set_cookie(""), None);
    }

    #[test]
    fn two_servers_of_a_host_do_not_take_each_others_cookies() {
        let pairs = [pair(TOKEN), pair(OTHER)];
        assert_ne!(pairs[0].split_once('=').unwrap().0, pairs[1].split_once('=').unwrap().0);
        for token in [TOKEN, OTHER] {
            check(Some(token), &pairs.join("; "), true);
        }
    }

    #[test]
    fn a_link_loses_its_token_and_stays_on_this_server() {
        for (link, to) in [
            ("/learning?token=T", "/learning"),
            ("/trajectories?suite=a%26b&token=T&sort=reward", "/trajectories?suite=a%26b&sort=reward"),
            ("//evil.test/?token=T", "/evil.test/"),
        ] {
            let uri: Uri = link.replace('T', TOKEN).parse().unwrap();
            let response = browsers(Some(TOKEN)).answer_link(&uri).unwrap();
            assert_eq!(response.status(), StatusCode::SEE_OTHER);
            assert_eq!(response.headers()[header::LOCATION], to);
        }
        for link in ["/", "/?token=", "/?token=correct-horse", "/?other=correct-horse-battery"] {
            assert!(browsers(Some(TOKEN)).answer_link(&link.parse().unwrap()).is_none(), "{link}");
            assert!(browsers(None).answer_link(&link.parse().unwrap()).is_none(), "{link}");
        }
    }

    #[tokio::test]
    async fn a_form_with_the_token_signs_in() {
        let answer = async |token: Option<&str>, form: &str| {
            let deadline = Instant::now() + Duration::from_secs(10);
            browsers(token).answer_form(Body::from(form.to_owned()), deadline).await
        };
        let response = answer(Some(TOKEN), &format!("a=b&token=+{TOKEN}+")).await.unwrap();
        assert_eq!(response.headers()[header::LOCATION], "/");
        assert!(response.headers().contains_key(header::SET_COOKIE));
        for wrong in ["", "token=", "token=correct-horse", TOKEN] {
            assert!(matches!(answer(Some(TOKEN), wrong).await, Err(SignInError::WrongToken)), "{wrong}");
        }
        assert!(matches!(answer(None, "token=").await, Err(SignInError::WrongToken)));
        let long = answer(Some(TOKEN), &"x".repeat(FORM_BYTES_MAX + 1)).await;
        assert!(matches!(long, Err(SignInError::Body(BodyError::TooLarge))));
    }
}
