//! The Content-Security-Policy of a suite's own pages: what a page's files contain runs, and
//! nothing that is typed into its address bar or written into its markup.
//!
//! A policy acts in these pages, and may find a field or an address that a page takes for markup or
//! for code. The scripts in a file are known when it is served, so each inline script and each
//! handler in an attribute is allowed by its SHA-256 (CSP level 3, `'unsafe-hashes'`); scripts of
//! any server that the session may reach are allowed by address. What is left out:
//! `javascript:` addresses, inline scripts and handlers that are not in the file.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use sha2::{Digest, Sha256};

/// Most different inline scripts and handlers of a page: a header of more is refused by browsers.
const HASHES_MAX: usize = 400;

/// The header of a page, or of any other file, for which nothing is inline. `None` for a page with
/// more inline scripts than a header can name.
pub(super) fn script_policy(page: &[u8]) -> Option<HeaderValue> {
    let mut allowed: Vec<String> = inline_scripts(page).iter().map(|script| hash(script)).collect();
    allowed.sort();
    allowed.dedup();
    if allowed.len() > HASHES_MAX {
        return None;
    }
    let hashed = match allowed.is_empty() {
        true => String::new(),
        false => format!(" 'unsafe-hashes' {}", allowed.join(" ")),
    };
    let policy = format!(
        "script-src 'self' http: https: 'unsafe-eval'{hashed}; worker-src 'self' blob:; object-src 'none'; base-uri 'self'"
    );
    HeaderValue::from_str(&policy).ok()
}

fn hash(script: &[u8]) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(script)))
}

/// The inline scripts of a page and the handlers in its attributes, as a browser hashes them. What
/// only looks like one, such as markup in a comment, is listed as well: its hash allows nothing
/// that the file does not contain.
fn inline_scripts(page: &[u8]) -> Vec<Vec<u8>> {
    let page = String::from_utf8_lossy(page).replace("\r\n", "\n").replace('\r', "\n");
    let lower = page.to_ascii_lowercase();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = lower[at..].find('<').map(|offset| at + offset) {
        let tag = read_tag(&page[start..]);
        let behind = start + tag.bytes;
        found.extend(tag.handlers.into_iter().map(String::into_bytes));
        at = behind;
        if is_element(&lower[start..], "script") {
            let end = lower[behind..].find("</script").map_or(page.len(), |offset| behind + offset);
            found.push(page.as_bytes()[behind..end].to_vec());
            at = end;
        }
    }
    found
}

fn is_element(text: &str, name: &str) -> bool {
    let rest = text.strip_prefix('<').and_then(|text| text.strip_prefix(name));
    rest.and_then(|rest| rest.chars().next())
        .is_some_and(|next| next.is_ascii_whitespace() || matches!(next, '>' | '/'))
}

/// A tag of a page.
struct HtmlTag {
    /// Bytes from its `<` to behind its `>`, at least 1.
    bytes: usize,
    /// Values of its attributes whose names begin with `on`.
    handlers: Vec<String>,
}

/// Reads the tag that a text begins with.
fn read_tag(text: &str) -> HtmlTag {
    let mut handlers = Vec::new();
    let is_tag = text[1..].starts_with(|next: char| next.is_ascii_alphabetic());
    if !is_tag {
        return HtmlTag { bytes: 1, handlers };
    }
    let mut rest =
        text[1..].trim_start_matches(|next: char| !next.is_ascii_whitespace() && next != '>' && next != '/');
    loop {
        rest = rest.trim_start_matches(|next: char| next.is_ascii_whitespace() || next == '/');
        if rest.is_empty() {
            return HtmlTag { bytes: text.len(), handlers };
        }
        if let Some(behind) = rest.strip_prefix('>') {
            return HtmlTag { bytes: text.len() - behind.len(), handlers };
        }
        let (name, value, behind) = read_attribute(rest);
        if name.len() > 2 && name.get(..2).is_some_and(|begin| begin.eq_ignore_ascii_case("on")) {
            handlers.push(unescape(value));
        }
        rest = behind;
    }
}

/// The name of the attribute that a text begins with, its value, and what follows.
fn read_attribute(text: &str) -> (&str, &str, &str) {
    let ends_name = |next: char| next.is_ascii_whitespace() || matches!(next, '=' | '>' | '/');
    // A name may begin with `=`.
    let first = text.chars().next().map_or(0, char::len_utf8);
    let end = text[first..].find(ends_name).map_or(text.len(), |offset| first + offset);
    let (name, behind) = text.split_at(end);
    let Some(value) = behind.trim_start().strip_prefix('=') else { return (name, "", behind) };
    let value = value.trim_start();
    for quote in ['"', '\''] {
        if let Some(quoted) = value.strip_prefix(quote) {
            let (value, behind) = quoted.split_once(quote).unwrap_or((quoted, ""));
            return (name, value, behind);
        }
    }
    let end = value.find(|next: char| next.is_ascii_whitespace() || next == '>').unwrap_or(value.len());
    let (value, behind) = value.split_at(end);
    (name, value, behind)
}

/// An attribute's value without the character references that code is usually written with.
fn unescape(value: &str) -> String {
    [
        ("&quot;", "\""),
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&apos;", "'"),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&amp;", "&"),
    ]
    .iter()
    .fold(value.to_owned(), |text, (reference, character)| text.replace(reference, character))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(page: &str, want: &[&str]) {
        let found = inline_scripts(page.as_bytes());
        let found: Vec<_> = found.iter().map(|script| String::from_utf8_lossy(script)).collect();
        assert_eq!(found, want, "{page}");
    }

    #[test]
    fn inline_scripts_and_handlers_are_found() {
        check("", &[]);
        check("<p>onclick=1 < 2 <3 <", &[]);
        check("<script>a < b</script><p>", &["a < b"]);
        check("<SCRIPT type=module>\r\nx()\r\n</Script>", &["\nx()\n"]);
        check("<script src=/a.js></script>", &[""]);
        check("<scripted>x</scripted>", &[]);
        check("<script>never ends", &["never ends"]);
        check(r#"<a onclick="go(&quot;x&quot; &amp;&amp; 1)" href=">">y</a>"#, &[r#"go("x" && 1)"#]);
        check("<a ONCLICK = go(1) title='onload=\"no()\"'>", &["go(1)"]);
        check("<svg onload=a><img onerror='b' /><p on>", &["a", "b"]);
        check("<p =onclick=x>", &[]);
        check("<a title=é onclick='ü()'>", &["ü()"]);
        check("<a onclick='cut", &["cut"]);
    }

    #[test]
    fn a_page_names_what_it_contains_and_nothing_else() {
        let policy =
            |page: &str| script_policy(page.as_bytes()).map(|value| value.to_str().unwrap().to_owned());
        let plain = policy("<p>").unwrap();
        assert!(!plain.contains("unsafe-inline") && !plain.contains("sha256"), "{plain}");
        // From the standard's own example: sha256 of `alert('Hello, world.');`.
        let hashed = policy("<script>alert('Hello, world.');</script>").unwrap();
        let want = "'unsafe-hashes' 'sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng='";
        assert!(hashed.contains(want), "{hashed}");
        let many: String = (0..401).map(|at| format!("<p onclick='f({at})'>")).collect();
        assert_eq!(policy(&many), None);
    }

    #[test]
    fn any_page_is_read_to_its_end() {
        for page in ["<a", "<a ", "<a =", "<a b=", "<a b=\"", "<a/", "<é", "<a é=é>", "<script", "</script"]
        {
            inline_scripts(page.as_bytes());
        }
        inline_scripts(&[b'<', 0xff, b'a', b'<', b'o', 0xc3]);
    }
}
