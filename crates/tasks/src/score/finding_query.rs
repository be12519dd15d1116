//! The queries of scorers: what the environment worker must look up, validated with caps.

use furrow_rollout::{
    EXPRESSION_BYTES_MAX, FinalQuery, HttpMethod, HttpQuery, PagePart, QUERY_TEXT_BYTES_MAX, StorageArea,
    is_hook_name,
};
use url::Url;

use crate::config::is_host_pattern;
use crate::fields::JsonFields;

/// What a rule looks up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QueryKind {
    Text,
    Storage,
    Cookie,
    Script,
    Http,
    Command,
}

impl QueryKind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            QueryKind::Text => "text",
            QueryKind::Storage => "storage",
            QueryKind::Cookie => "cookie",
            QueryKind::Script => "script",
            QueryKind::Http => "http",
            QueryKind::Command => "command",
        }
    }
}

/// Keys: of `text` `selector`; of `storage` `area` and `key`; of `cookie` `name`; of `script`
/// `expression`; each of them with `host`. Of `http` `url`, `method`, `body`, `pointer`; of
/// `command` `hook`.
pub(super) fn read(kind: QueryKind, fields: &mut JsonFields) -> Option<FinalQuery> {
    let part = match kind {
        QueryKind::Text => PagePart::Text { selector: read_selector(fields)? },
        QueryKind::Storage => {
            let area = fields.choice("area", &StorageArea::ALL.map(|area| (area.as_str(), area)));
            if !fields.has("area") {
                fields.problem("area", "is missing; use local or session");
            }
            PagePart::Storage { key: fields.required_text("key", QUERY_TEXT_BYTES_MAX)?, area: area? }
        }
        QueryKind::Cookie => PagePart::Cookie { name: fields.required_text("name", QUERY_TEXT_BYTES_MAX)? },
        QueryKind::Script => {
            PagePart::Script { expression: fields.required_text("expression", EXPRESSION_BYTES_MAX)? }
        }
        QueryKind::Http => return read_http(fields).map(FinalQuery::Http),
        QueryKind::Command => {
            let hook = fields.required_text("hook", QUERY_TEXT_BYTES_MAX)?;
            return match is_hook_name(&hook) {
                true => Some(FinalQuery::Command { hook }),
                false => {
                    fields.problem("hook", not_a_hook(&hook));
                    None
                }
            };
        }
    };
    let host = match fields.text("host", 255) {
        Some(host) if host == "*" || !is_host_pattern(&host) => {
            fields.problem("host", format!("{host:?} is not a host; use host or *.host in lower case"));
            return None;
        }
        host => host,
    };
    Some(FinalQuery::Page { part, host })
}

/// What is wrong with the name of a hook, and what to write.
pub(crate) fn not_a_hook(name: &str) -> String {
    format!("{:?} is not a hook's name; use 1 to 64 of a-z 0-9 - _", crate::fields::short(name))
}

/// Absent is the whole page; a mistake in the key's value is `None` of the outer option.
fn read_selector(fields: &mut JsonFields) -> Option<Option<String>> {
    if !fields.has("selector") {
        return Some(None);
    }
    fields.text("selector", QUERY_TEXT_BYTES_MAX).map(Some)
}

fn read_http(fields: &mut JsonFields) -> Option<HttpQuery> {
    let text = fields.required_text("url", QUERY_TEXT_BYTES_MAX)?;
    let parsed = Url::parse(&text).ok().filter(|url| url.scheme() == "http" && url.host_str().is_some());
    let Some(parsed) = parsed.filter(|url| url.username().is_empty() && url.password().is_none()) else {
        let problem = format!("{:?} is not an http address without a login", crate::fields::short(&text));
        fields.problem("url", format!("{problem}; use such as http://api.hats.test/cart"));
        return None;
    };
    let methods = HttpMethod::ALL.map(|method| (method.as_str(), method));
    let method = match fields.has("method") {
        true => fields.choice("method", &methods)?,
        false => HttpMethod::Get,
    };
    let body = match fields.value("body") {
        None => None,
        Some(body) if method == HttpMethod::Post => Some(body.to_string()),
        Some(body) => return fields.refuse("body", body, "belongs to a POST", "set method to \"POST\""),
    };
    if body.as_ref().is_some_and(|body| body.len() > EXPRESSION_BYTES_MAX) {
        fields.problem("body", format!("is too large; use at most {EXPRESSION_BYTES_MAX} bytes of JSON"));
        return None;
    }
    let pointer = match fields.has("pointer") {
        true if method == HttpMethod::Head => {
            fields.problem("pointer", "a HEAD has no body; use GET");
            return None;
        }
        true => Some(fields.pointer("pointer")?),
        false => None,
    };
    Some(HttpQuery { method, url: parsed.to_string(), body, pointer })
}
