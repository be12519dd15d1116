//! The parts of `/chat/completions` that are used: the request's body and the fields of the answer.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

/// One question to a judge.
#[derive(Debug, Clone, PartialEq)]
pub struct JudgeQuestion {
    pub system: String,
    pub text: String,
    /// The user's images after it, PNG or JPEG.
    pub pictures: Vec<Bytes>,
    /// Seed of the reply, if the server supports seeds.
    pub seed: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    pub text: String,
    /// Whether it was truncated at `max_tokens`.
    pub cut: bool,
    /// Tokens of the prompt, 0 if the server does not count them.
    pub prompt_tokens: u64,
    /// Tokens of the reply, 0 if the server does not count them.
    pub completion_tokens: u64,
}

/// The body of a request.
pub(crate) fn body(model: &str, temperature: f64, max_tokens: u32, ask: &JudgeQuestion) -> Vec<u8> {
    let content = parts(&ask.text, &ask.pictures);
    let body = json!({
        "model": model,
        "messages": [
            { "role": "system", "content": ask.system },
            { "role": "user", "content": content },
        ],
        "temperature": temperature,
        "max_tokens": max_tokens,
        "seed": ask.seed,
    });
    body.to_string().into_bytes()
}

/// A text and the images after it, as data URLs.
pub(crate) fn parts(text: &str, pictures: &[Bytes]) -> Value {
    let text_part = json!({ "type": "text", "text": text });
    let pictures = pictures.iter().map(|bytes| {
        let url = format!("data:{};base64,{}", media_type(bytes), STANDARD.encode(bytes));
        json!({ "type": "image_url", "image_url": { "url": url } })
    });
    [text_part].into_iter().chain(pictures).collect()
}

/// Decides by the first bytes of a PNG; everything else counts as JPEG.
fn media_type(bytes: &[u8]) -> &'static str {
    if bytes.starts_with(b"\x89PNG") { "image/png" } else { "image/jpeg" }
}

/// Optional parts are kept as raw JSON, so that an unexpected form loses the part and not the
/// reply.
#[derive(Deserialize)]
struct CompletionResponse {
    choices: Vec<CompletionChoice>,
    #[serde(default)]
    usage: Value,
    #[serde(default)]
    prompt_token_ids: Value,
}

#[derive(Deserialize)]
struct CompletionChoice {
    message: ResponseMessage,
    #[serde(default)]
    finish_reason: Value,
    #[serde(default)]
    token_ids: Value,
    #[serde(default)]
    logprobs: Value,
}

#[derive(Deserialize)]
struct ResponseMessage {
    #[serde(default)]
    content: Option<MessageContent>,
}

/// A text, or the list of parts that some servers send instead.
#[derive(Deserialize)]
#[serde(untagged)]
enum MessageContent {
    Text(String),
    Parts(Vec<ContentPart>),
}

#[derive(Deserialize)]
struct ContentPart {
    #[serde(default)]
    text: Option<String>,
}

pub(crate) struct ParsedCompletion {
    /// Whether its message has a content; otherwise the text is empty.
    pub has_content: bool,
    /// The text and the counts of tokens.
    pub completion: Completion,
    /// Tokens of the prompt that the server had computed before.
    pub cached_tokens: u64,
    /// Ids of the prompt, as received.
    pub prompt_token_ids: Value,
    /// Ids of the reply, as received.
    pub token_ids: Value,
    /// Log-probs of the reply's tokens, as received.
    pub logprobs: Value,
}

/// Parses a reply; the error says what is missing.
pub(crate) fn reply(body: &[u8]) -> Result<ParsedCompletion, String> {
    let CompletionResponse { choices, usage, prompt_token_ids } =
        serde_json::from_slice(body).map_err(|error| format!("is not a chat completion: {error}"))?;
    let CompletionChoice { message, finish_reason, token_ids, logprobs } =
        choices.into_iter().next().ok_or("has no choices")?;
    let has_content = message.content.is_some();
    let text = match message.content {
        Some(MessageContent::Text(text)) => text,
        Some(MessageContent::Parts(parts)) => parts.into_iter().filter_map(|part| part.text).collect(),
        None => String::new(),
    };
    let count = |pointer: &str| usage.pointer(pointer).and_then(Value::as_u64).unwrap_or_default();
    let completion = Completion {
        text,
        cut: finish_reason.as_str() == Some("length"),
        prompt_tokens: count("/prompt_tokens"),
        completion_tokens: count("/completion_tokens"),
    };
    let cached_tokens = count("/prompt_tokens_details/cached_tokens");
    Ok(ParsedCompletion { has_content, completion, cached_tokens, prompt_token_ids, token_ids, logprobs })
}

/// Parses the reply to a question; a message without content is an error.
pub(crate) fn completion(body: &[u8]) -> Result<Completion, String> {
    let ParsedCompletion { has_content, completion, .. } = reply(body)?;
    if has_content { Ok(completion) } else { Err("has a message without content".to_owned()) }
}

/// The server's error message: `{"error": {"message": …}}`, or the beginning of the body.
pub(crate) fn complaint(body: &[u8]) -> String {
    let parsed: Option<Value> = serde_json::from_slice(body).ok();
    let message = parsed.as_ref().and_then(|parsed| {
        parsed
            .pointer("/error/message")
            .or_else(|| parsed.get("error"))
            .or_else(|| parsed.get("detail"))?
            .as_str()
    });
    let text = message.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned);
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().take(200).map(clean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_what_the_protocol_asks_for() {
        let pictures = vec![Bytes::from_static(b"\x89PNG.."), Bytes::from_static(b"\xff\xd8..")];
        let ask = JudgeQuestion { system: "s".into(), text: "t".into(), pictures, seed: 42 };
        let sent: Value = serde_json::from_slice(&body("m", 0.0, 1000, &ask)).unwrap();
        let want = json!({
            "model": "m",
            "messages": [
                { "role": "system", "content": "s" },
                { "role": "user", "content": [
                    { "type": "text", "text": "t" },
                    { "type": "image_url", "image_url": { "url": "data:image/png;base64,iVBORy4u" } },
                    { "type": "image_url", "image_url": { "url": "data:image/jpeg;base64,/9guLg==" } },
                ] },
            ],
            "temperature": 0.0,
            "max_tokens": 1000,
            "seed": 42,
        });
        assert_eq!(sent, want);
    }

    #[test]
    fn replies_are_read_as_far_as_they_are_needed() {
        let table = [
            (
                r#"{"choices":[{"message":{"content":"yes"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":2}}"#,
                Ok(("yes", false, 7, 2)),
            ),
            (
                r#"{"choices":[{"message":{"content":"ye"},"finish_reason":"length"}]}"#,
                Ok(("ye", true, 0, 0)),
            ),
            (
                r#"{"choices":[{"message":{"content":[{"type":"text","text":"a"},{"text":"b"},{"type":"x"}]}}],"usage":null}"#,
                Ok(("ab", false, 0, 0)),
            ),
            (
                r#"{"choices":[{"message":{"content":"y"},"finish_reason":7}],"usage":{"prompt_tokens":-1,"completion_tokens":3}}"#,
                Ok(("y", false, 0, 3)),
            ),
            (
                r#"{"choices":[{"message":{"content":null,"refusal":"no"}}]}"#,
                Err("has a message without content"),
            ),
            (r#"{"choices":[]}"#, Err("has no choice")),
            (r#"{"object":"list"}"#, Err("is not a chat completion")),
            (r#"{"choices":[{"message":{"content":7}}]}"#, Err("is not a chat completion")),
            ("<html>", Err("is not a chat completion")),
            ("", Err("is not a chat completion")),
            (r#"{"choices":[{"mess"#, Err("is not a chat completion")),
        ];
        for (body, want) in table {
            let got = completion(body.as_bytes());
            match want {
                Ok((text, cut, prompt_tokens, completion_tokens)) => {
                    let text = text.to_owned();
                    assert_eq!(got, Ok(Completion { text, cut, prompt_tokens, completion_tokens }), "{body}");
                }
                Err(why) => assert!(got.as_ref().is_err_and(|error| error.contains(why)), "{body}: {got:?}"),
            }
        }
    }

    #[test]
    fn complaints_are_short_and_clean() {
        let table = [
            (r#"{"error":{"message":"slow down"}}"#, "slow down"),
            (r#"{"error":"overloaded"}"#, "overloaded"),
            (r#"{"detail":"no such model"}"#, "no such model"),
            ("busy\u{7}", "busy "),
            ("", ""),
        ];
        for (body, want) in table {
            assert_eq!(complaint(body.as_bytes()), want);
        }
        assert_eq!(complaint("x".repeat(1000).as_bytes()).len(), 200);
    }
}
