//! Finds calls of functions in the text of a reply as it arrives. What is no call of an offered
//! function is content.

use std::sync::Arc;

use furrow_openai::server::ToolCall;
use rand::Rng;
use serde_json::{Map, Value};

use crate::tool_text::{CALL_CLOSE, CALL_OPEN};

/// Separates content and calls.
pub(super) struct CallParser {
    /// Names of the functions that may be called.
    names: Arc<[String]>,
    /// Text that is neither content nor a call yet.
    pending: String,
    /// White space before the call that has begun.
    gap: String,
    /// The position in a call that has begun.
    inside: Option<JsonScan>,
    calls: usize,
}

/// How far the JSON of a call was read, and whether a string is open there.
#[derive(Debug, Clone, Copy, Default)]
struct JsonScan {
    at: usize,
    is_text: bool,
    is_escaped: bool,
}

/// What a part of a reply says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ParsedText {
    pub content: String,
    pub calls: Vec<ToolCall>,
}

/// Most bytes of a call; a longer one is content.
const CALL_BYTES_MAX: usize = 256 << 10;

impl CallParser {
    pub(super) fn new(names: Arc<[String]>) -> Self {
        Self { names, pending: String::new(), gap: String::new(), inside: None, calls: 0 }
    }

    /// Adds a part of the text. White space waits until it is known whether a call follows, which
    /// it then separates and is no content.
    pub(super) fn push(&mut self, text: &str) -> ParsedText {
        self.pending.push_str(text);
        let mut parsed = ParsedText::default();
        while match self.inside {
            None => self.outside(&mut parsed),
            Some(scan) => self.call(scan, &mut parsed),
        } {}
        parsed
    }

    /// The rest after the last part. A call that has not ended is content.
    pub(super) fn finish(mut self) -> ParsedText {
        let rest = std::mem::take(&mut self.pending);
        let content = match self.inside {
            Some(_) => [&self.gap, CALL_OPEN, &rest].concat(),
            None if self.calls > 0 && rest.trim().is_empty() => String::new(),
            None => rest,
        };
        ParsedText { content, calls: Vec::new() }
    }

    /// Takes content up to the next call. Returns whether a call begins.
    fn outside(&mut self, parsed: &mut ParsedText) -> bool {
        if let Some(at) = self.pending.find(CALL_OPEN) {
            let content = self.pending[..at].trim_end();
            parsed.content.push_str(content);
            self.gap = self.pending[content.len()..at].to_owned();
            self.pending.drain(..at + CALL_OPEN.len());
            self.inside = Some(JsonScan::default());
            return true;
        }
        let begun = (1..CALL_OPEN.len()).rev().find(|length| self.pending.ends_with(&CALL_OPEN[..*length]));
        let ready = self.pending[..self.pending.len() - begun.unwrap_or(0)].trim_end().len();
        parsed.content.extend(self.pending.drain(..ready));
        false
    }

    /// Reads on in a call. Returns whether it ended.
    fn call(&mut self, mut scan: JsonScan, parsed: &mut ParsedText) -> bool {
        let bytes = self.pending.as_bytes();
        while let Some(byte) = bytes.get(scan.at) {
            if *byte == b'<' && !scan.is_text {
                let rest = &self.pending[scan.at..];
                if rest.starts_with(CALL_CLOSE) {
                    return self.end(scan.at, parsed);
                }
                if CALL_CLOSE.starts_with(rest) {
                    break;
                }
            }
            match byte {
                _ if scan.is_escaped => scan.is_escaped = false,
                b'\\' if scan.is_text => scan.is_escaped = true,
                b'"' => scan.is_text = !scan.is_text,
                _ => {}
            }
            scan.at += 1;
        }
        if self.pending.len() > CALL_BYTES_MAX {
            parsed.content.extend([self.gap.as_str(), CALL_OPEN]);
            self.inside = None;
            return true;
        }
        self.inside = Some(scan);
        false
    }

    /// Ends a call whose JSON has this many bytes.
    fn end(&mut self, length: usize, parsed: &mut ParsedText) -> bool {
        let mut json = std::mem::take(&mut self.pending);
        self.pending = json.split_off(length).split_off(CALL_CLOSE.len());
        self.inside = None;
        match self.read(&json) {
            Some(call) => {
                self.calls += 1;
                parsed.calls.push(call);
            }
            None => parsed.content.extend([self.gap.as_str(), CALL_OPEN, &json, CALL_CLOSE]),
        }
        true
    }

    /// A call of an offered function, its arguments written without white space.
    fn read(&self, json: &str) -> Option<ToolCall> {
        let mut call: Map<String, Value> = serde_json::from_str(json.trim()).ok()?;
        let name = call.get("name")?.as_str()?.to_owned();
        if !self.names.contains(&name) {
            return None;
        }
        let arguments = match call.remove("arguments") {
            None => Map::new(),
            Some(Value::Object(arguments)) => arguments,
            Some(_) => return None,
        };
        let random = rand::rng().next_u64();
        Some(ToolCall {
            id: format!("call_{random:016x}"),
            name,
            arguments: Value::Object(arguments).to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The content, and each call's name and arguments, whatever the parts are.
    fn parse(text: &str, size: usize) -> (String, Vec<String>) {
        let mut parser = CallParser::new(vec!["add".to_owned(), "say".to_owned()].into());
        let chars: Vec<char> = text.chars().collect();
        let parts = chars.chunks(size).map(|part| part.iter().collect::<String>());
        let mut content = String::new();
        let mut calls = Vec::new();
        let mut parsed: Vec<ParsedText> = parts.map(|part| parser.push(&part)).collect();
        parsed.push(parser.finish());
        for part in parsed {
            content.push_str(&part.content);
            calls.extend(part.calls.iter().map(|call| format!("{}{}", call.name, call.arguments)));
        }
        (content, calls)
    }

    #[track_caller]
    fn check(text: &str, content: &str, calls: &[&str]) {
        for size in [1, 2, 3, 7, 1000] {
            let (got, got_calls) = parse(text, size);
            assert_eq!(
                (got.as_str(), got_calls.iter().map(String::as_str).collect()),
                (content, calls.to_vec()),
                "parts of {size}"
            );
        }
    }

    #[test]
    fn calls_are_found_and_all_else_is_content() {
        check("plain é text ", "plain é text ", &[]);
        check("", "", &[]);
        check("  ", "  ", &[]);
        let one = r#"<tool_call>{"name":"add","arguments":{"a":1}}</tool_call>"#;
        check(one, "", &[r#"add{"a":1}"#]);
        check(&format!("Well.\n\n{one}\n{one}\n"), "Well.", &[r#"add{"a":1}"#; 2]);
        check(&format!("{one} and more"), " and more", &[r#"add{"a":1}"#]);
        check("<tool_call>\n{ \"name\": \"say\" }\n</tool_call>", "", &["say{}"]);
        let quoted = r#"<tool_call>{"name":"say","arguments":{"t":"</tool_call> \" <"}}</tool_call>"#;
        check(quoted, "", &[r#"say{"t":"</tool_call> \" <"}"#]);
    }

    #[test]
    fn malformed_calls_are_content() {
        for text in [
            "<tool_call>",
            "<tool_call",
            "<tool_call>{}</tool_call>",
            "<tool_call></tool_call>",
            "<tool_call>not json</tool_call>",
            r#"<tool_call>{"name":"add","arguments":{"a":1}"#,
            r#"<tool_call>{"name":"add","arguments":{"a":1}}</tool_cal"#,
            r#"<tool_call>{"name":"unknown","arguments":{}}</tool_call>"#,
            r#"<tool_call>{"name":"add","arguments":[1]}</tool_call>"#,
            r#"<tool_call>{"name":7,"arguments":{}}</tool_call>"#,
            r#"<tool_call>{"name":"add","arguments":{"a":"open}}</tool_call>"#,
            "a < b <tool",
            "a \n<tool_call>bad</tool_call> b",
        ] {
            check(text, text, &[]);
        }
        check(
            &format!("<tool_call>{}</tool_call>", "[".repeat(5000)),
            &format!("<tool_call>{}</tool_call>", "[".repeat(5000)),
            &[],
        );
        let long = format!("<tool_call>\"{}", "x".repeat(CALL_BYTES_MAX + 9));
        assert_eq!(parse(&long, 1000), (long, Vec::new()));
    }
}
