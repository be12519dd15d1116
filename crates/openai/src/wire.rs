//! What is sent to `/chat/completions` and what is read of its answer, and nothing more of either.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::client::{Ask, Completion};

/// The body of a request.
pub(crate) fn body(model: &str, temperature: f64, max_tokens: u32, ask: &Ask) -> Vec<u8> {
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

/// Words and the pictures behind them, as data URLs.
pub(crate) fn parts(text: &str, pictures: &[Bytes]) -> Value {
    let words = json!({ "type": "text", "text": text });
    let pictures = pictures.iter().map(|bytes| {
        let url = format!("data:{};base64,{}", media_type(bytes), STANDARD.encode(bytes));
        json!({ "type": "image_url", "image_url": { "url": url } })
    });
    [words].into_iter().chain(pictures).collect()
}

/// By the first bytes of a PNG; all else is taken for JPEG.
fn media_type(bytes: &[u8]) -> &'static str {
    if bytes.starts_with(b"\x89PNG") { "image/png" } else { "image/jpeg" }
}

/// Parts that not every server sends are taken as they come: a shape that nobody expects costs the part and not the reply.
#[derive(Deserialize)]
struct Response {
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Value,
    #[serde(default)]
    prompt_token_ids: Value,
}

#[derive(Deserialize)]
struct Choice {
    message: Message,
    #[serde(default)]
    finish_reason: Value,
    #[serde(default)]
    token_ids: Value,
    #[serde(default)]
    logprobs: Value,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    content: Option<Content>,
}

/// A text, or the parts some servers make of it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
struct Part {
    #[serde(default)]
    text: Option<String>,
}

/// A reply, read as far as it is needed by anybody.
pub(crate) struct Reply {
    /// Whether its message has a content; where it has none the text is empty.
    pub has_content: bool,
    /// The text and what is counted.
    pub completion: Completion,
    /// Tokens of the prompt that the server had computed before.
    pub cached_tokens: u64,
    /// Ids of the prompt, as they came.
    pub prompt_token_ids: Value,
    /// Ids of the reply, as they came.
    pub token_ids: Value,
    /// What is told of the reply's tokens, as it came.
    pub logprobs: Value,
}

/// Reads a reply; the error says what is missing.
pub(crate) fn reply(body: &[u8]) -> Result<Reply, String> {
    let Response { choices, usage, prompt_token_ids } =
        serde_json::from_slice(body).map_err(|error| format!("is no chat completion: {error}"))?;
    let Choice { message, finish_reason, token_ids, logprobs } =
        choices.into_iter().next().ok_or("has no choice in it")?;
    let has_content = message.content.is_some();
    let text = match message.content {
        Some(Content::Text(text)) => text,
        Some(Content::Parts(parts)) => parts.into_iter().filter_map(|part| part.text).collect(),
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
    Ok(Reply { has_content, completion, cached_tokens, prompt_token_ids, token_ids, logprobs })
}

/// Reads a reply of somebody who was asked a question: a message without content is none.
pub(crate) fn completion(body: &[u8]) -> Result<Completion, String> {
    let Reply { has_content, completion, .. } = reply(body)?;
    if has_content { Ok(completion) } else { Err("has a message without content".to_owned()) }
}

/// What a server says is wrong, in its own few words: `{"error": {"message": …}}`, or the beginning of the body.
pub(crate) fn complaint(body: &[u8]) -> String {
    let told: Option<Value> = serde_json::from_slice(body).ok();
    let message = told.as_ref().and_then(|told| {
        told.pointer("/error/message").or_else(|| told.get("error")).or_else(|| told.get("detail"))?.as_str()
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
        let ask = Ask { system: "s".into(), text: "t".into(), pictures, seed: 42 };
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
            (r#"{"object":"list"}"#, Err("is no chat completion")),
            (r#"{"choices":[{"message":{"content":7}}]}"#, Err("is no chat completion")),
            ("<html>", Err("is no chat completion")),
            ("", Err("is no chat completion")),
            (r#"{"choices":[{"mess"#, Err("is no chat completion")),
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
