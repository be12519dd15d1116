//! A conversation with a model that acts: many turns with images, sampling settings, and the tokens
//! that the server reports.
//!
//! Extensions of the protocol are requested by name and parsed only if they are present:
//! `return_token_ids` with its answers `prompt_token_ids` and `token_ids`, `top_k` and `min_p` are
//! vLLM's.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::wire::{self, Completion, ParsedCompletion};

/// A conversation that waits for a reply.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatConversation {
    /// Its turns, the oldest first.
    pub messages: Vec<ConversationTurn>,
    pub temperature: f64,
    /// Nucleus sampling; sent if it is not 1.
    pub top_p: f64,
    /// Sent if it is not 0.
    pub top_k: u32,
    /// Sent if it is not 0.
    pub min_p: f64,
    /// Most tokens of the reply.
    pub max_tokens: u32,
    /// Seed of the reply, if the server supports seeds.
    pub seed: i64,
    /// Whether to request log-probs.
    pub logprobs: bool,
    /// Whether to request token ids; a server that does not know the key may refuse it.
    pub token_ids: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ConversationTurn {
    pub role: Role,
    pub text: String,
    /// Images after the text, PNG or JPEG.
    pub pictures: Vec<Bytes>,
}

/// The author of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    System,
    /// The task, and the outcome of each action.
    User,
    Assistant,
}

/// A reply with the tokens that the server reports.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatReply {
    /// The reply's text and counts of tokens.
    pub completion: Completion,
    /// Ids of the whole prompt and of the reply, if both were returned.
    pub token_ids: Option<TokenIds>,
    /// Log-prob of each token of the reply, if returned: finite and at most 0.
    pub logprobs: Option<Vec<f32>>,
    /// Tokens of the prompt that the server had computed before.
    pub cached_tokens: u64,
    pub attempts: u32,
}

/// Ids of the server's tokenizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenIds {
    /// Ids of the prompt, with as many placeholders for each image as it has rows.
    pub prompt: Vec<u32>,
    /// Ids of the reply.
    pub response: Vec<u32>,
}

impl Role {
    fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

impl ConversationTurn {
    /// A turn without images is sent as a plain text, because some servers accept nothing else from
    /// an assistant.
    fn json(&self) -> Value {
        let content = match self.pictures.is_empty() {
            true => Value::String(self.text.clone()),
            false => wire::parts(&self.text, &self.pictures),
        };
        json!({ "role": self.role.as_str(), "content": content })
    }
}

/// The body of a request.
pub(crate) fn body(model: &str, chat: &ChatConversation) -> Vec<u8> {
    let mut body = Map::new();
    let mut put = |key: &str, value: Value| drop(body.insert(key.to_owned(), value));
    put("model", model.into());
    put("messages", chat.messages.iter().map(ConversationTurn::json).collect());
    put("temperature", chat.temperature.into());
    put("max_tokens", chat.max_tokens.into());
    put("seed", chat.seed.into());
    if chat.top_p != 1.0 {
        put("top_p", chat.top_p.into());
    }
    if chat.top_k != 0 {
        put("top_k", chat.top_k.into());
    }
    if chat.min_p != 0.0 {
        put("min_p", chat.min_p.into());
    }
    if chat.logprobs {
        put("logprobs", true.into());
    }
    if chat.token_ids {
        put("return_token_ids", true.into());
    }
    Value::Object(body).to_string().into_bytes()
}

#[derive(Deserialize)]
struct Logprobs {
    content: Vec<Logprob>,
}

#[derive(Deserialize)]
struct Logprob {
    logprob: f32,
}

/// Parses a reply; the error says what is missing. Optional parts with an unexpected form are
/// dropped. A reply without text is valid for a model that acts, since a retry would cost as much
/// and give the same.
pub(crate) fn reply(body: &[u8]) -> Result<ChatReply, String> {
    let ParsedCompletion { completion, cached_tokens, prompt_token_ids, token_ids, logprobs, .. } =
        wire::reply(body)?;
    let ids = |offered: Value| serde_json::from_value::<Vec<u32>>(offered).ok().filter(|ids| !ids.is_empty());
    let token_ids = ids(prompt_token_ids).zip(ids(token_ids));
    let logprobs = serde_json::from_value::<Logprobs>(logprobs).ok();
    let logprobs = logprobs.map(|list| list.content.iter().map(|entry| entry.logprob).collect::<Vec<f32>>());
    Ok(ChatReply {
        completion,
        token_ids: token_ids.map(|(prompt, response)| TokenIds { prompt, response }),
        // Some servers send -9999 for minus infinity, but a sampled token has a probability.
        logprobs: logprobs.filter(|list| list.iter().all(|logprob| (-1000.0..=0.0).contains(logprob))),
        cached_tokens,
        attempts: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat() -> ChatConversation {
        let message = |role, text: &str, pictures: &[&'static [u8]]| ConversationTurn {
            role,
            text: text.into(),
            pictures: pictures.iter().map(|bytes| Bytes::from_static(bytes)).collect(),
        };
        ChatConversation {
            messages: vec![
                message(Role::System, "s", &[]),
                message(Role::User, "t", &[b"\x89PNG.."]),
                message(Role::Assistant, "a", &[]),
            ],
            temperature: 0.7,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            max_tokens: 64,
            seed: 7,
            logprobs: false,
            token_ids: false,
        }
    }

    #[test]
    fn only_requested_options_are_sent() {
        let sent = |chat: &ChatConversation| -> Value { serde_json::from_slice(&body("m", chat)).unwrap() };
        let picture =
            json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,iVBORy4u" } });
        let plain = json!({
            "model": "m",
            "messages": [
                { "role": "system", "content": "s" },
                { "role": "user", "content": [{ "type": "text", "text": "t" }, picture] },
                { "role": "assistant", "content": "a" },
            ],
            "temperature": 0.7,
            "max_tokens": 64,
            "seed": 7,
        });
        assert_eq!(sent(&chat()), plain);
        let all =
            ChatConversation { top_p: 0.5, top_k: 3, min_p: 0.25, logprobs: true, token_ids: true, ..chat() };
        let mut want = plain;
        for (key, value) in [("top_p", json!(0.5)), ("top_k", json!(3)), ("min_p", json!(0.25))] {
            want[key] = value;
        }
        want["logprobs"] = json!(true);
        want["return_token_ids"] = json!(true);
        assert_eq!(sent(&all), want);
    }

    #[test]
    fn optional_parts_are_read_where_they_are_complete() {
        let message = r#""message":{"content":"yes"}"#;
        let table = [
            (format!(r#"{{"choices":[{{{message}}}]}}"#), None, None),
            (
                format!(
                    r#"{{"prompt_token_ids":[1,2],"choices":[{{{message},"token_ids":[7,8],"logprobs":{{"content":[{{"token":"a","logprob":-0.5}},{{"token":"b","logprob":0.0}}]}}}}]}}"#
                ),
                Some((vec![1, 2], vec![7, 8])),
                Some(vec![-0.5, 0.0]),
            ),
            (format!(r#"{{"choices":[{{{message},"token_ids":[7]}}]}}"#), None, None),
            (format!(r#"{{"prompt_token_ids":[],"choices":[{{{message},"token_ids":[7]}}]}}"#), None, None),
            (
                format!(r#"{{"choices":[{{{message},"logprobs":{{"content":[{{"logprob":-9999.0}}]}}}}]}}"#),
                None,
                None,
            ),
            (format!(r#"{{"choices":[{{{message},"logprobs":{{"content":null}}}}]}}"#), None, None),
            (
                format!(
                    r#"{{"prompt_token_ids":[1],"choices":[{{{message},"token_ids":[7],"logprobs":{{"content":[{{"logprob":null}}]}}}}]}}"#
                ),
                Some((vec![1], vec![7])),
                None,
            ),
            (
                format!(
                    r#"{{"prompt_token_ids":[-1],"choices":[{{{message},"token_ids":[7],"logprobs":{{"content":[{{"logprob":-0.5}}]}}}}]}}"#
                ),
                None,
                Some(vec![-0.5]),
            ),
            (
                format!(
                    r#"{{"usage":{{"prompt_tokens_details":7}},"prompt_token_ids":"1 2","choices":[{{{message},"token_ids":{{}},"logprobs":[-0.5]}}]}}"#
                ),
                None,
                None,
            ),
        ];
        for (body, ids, logprobs) in table {
            let got = reply(body.as_bytes()).unwrap();
            assert_eq!(got.token_ids.map(|ids| (ids.prompt, ids.response)), ids, "{body}");
            assert_eq!(got.logprobs, logprobs, "{body}");
        }
        let usage = r#""usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":6}}"#;
        let got = reply(format!(r#"{{"choices":[{{{message}}}],{usage}}}"#).as_bytes()).unwrap();
        assert_eq!((got.completion.prompt_tokens, got.cached_tokens), (9, 6));
    }

    #[test]
    fn an_empty_reply_of_an_acting_model_is_a_reply() {
        for message in [r#"{"content":null,"refusal":"no"}"#, r#"{"content":null,"tool_calls":[]}"#, "{}"] {
            let body = format!(
                r#"{{"choices":[{{"message":{message},"finish_reason":"stop"}}],"usage":{{"completion_tokens":3}}}}"#
            );
            let got = reply(body.as_bytes()).unwrap();
            assert_eq!(
                (got.completion.text.as_str(), got.completion.completion_tokens),
                ("", 3),
                "{message}"
            );
            assert!(wire::completion(body.as_bytes()).is_err(), "a judge's reply needs content: {message}");
        }
        assert!(reply(br#"{"choices":[]}"#).unwrap_err().contains("has no choice"));
    }
}
