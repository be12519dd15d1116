//! A conversation with a model that acts: many turns with pictures, sampling settings, and what the server tells of tokens.
//!
//! What is not part of the protocol itself is asked for by name and read only where it is there: `return_token_ids` and its answers
//! `prompt_token_ids` and `token_ids` are vLLM's words, as are `top_k` and `min_p`.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::client::Completion;
use crate::wire::{self, Reply};

/// A conversation that waits for a reply.
#[derive(Debug, Clone, PartialEq)]
pub struct Chat {
    /// Its turns, the oldest first.
    pub messages: Vec<Message>,
    /// 0 is greedy.
    pub temperature: f64,
    /// Nucleus; sent where it is not 1.
    pub top_p: f64,
    /// Sent where it is not 0.
    pub top_k: u32,
    /// Sent where it is not 0.
    pub min_p: f64,
    /// Most tokens of the reply.
    pub max_tokens: u32,
    /// Seed of the reply, where the server heeds it.
    pub seed: i64,
    /// Whether log-probs are asked for.
    pub logprobs: bool,
    /// Whether token ids are asked for; a server that does not know the word may refuse it.
    pub token_ids: bool,
}

/// One turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Whose.
    pub role: Role,
    /// What was said.
    pub text: String,
    /// Pictures behind it, PNG or JPEG.
    pub pictures: Vec<Bytes>,
}

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Instructions.
    System,
    /// The task, and what came of each action.
    User,
    /// The model.
    Assistant,
}

/// A reply, and what the server tells of it.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatReply {
    /// What was said.
    pub completion: Completion,
    /// Ids of the whole prompt and of the reply, where both came.
    pub token_ids: Option<TokenIds>,
    /// One a token of the reply, where they came: finite and at most 0.
    pub logprobs: Option<Vec<f32>>,
    /// Tokens of the prompt that the server had computed before.
    pub cached_tokens: u64,
    /// How often it was asked.
    pub attempts: u32,
}

/// Ids, as the server's tokenizer has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenIds {
    /// Of the prompt, pictures expanded to as many placeholders as they have rows.
    pub prompt: Vec<u32>,
    /// Of the reply.
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

impl Message {
    /// A turn without pictures is sent as a plain text: some servers take nothing else from an assistant.
    fn json(&self) -> Value {
        let content = match self.pictures.is_empty() {
            true => Value::String(self.text.clone()),
            false => wire::parts(&self.text, &self.pictures),
        };
        json!({ "role": self.role.as_str(), "content": content })
    }
}

/// The body of a request.
pub(crate) fn body(model: &str, chat: &Chat) -> Vec<u8> {
    let mut body = Map::new();
    let mut put = |key: &str, value: Value| drop(body.insert(key.to_owned(), value));
    put("model", model.into());
    put("messages", chat.messages.iter().map(Message::json).collect());
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

/// Reads a reply; the error says what is missing. What is only offered is left out where it is not as it should be. A model that acts and
/// says nothing has replied: the next one would cost as much and say as much.
pub(crate) fn reply(body: &[u8]) -> Result<ChatReply, String> {
    let Reply { completion, cached_tokens, prompt_token_ids, token_ids, logprobs, .. } = wire::reply(body)?;
    let ids = |offered: Value| serde_json::from_value::<Vec<u32>>(offered).ok().filter(|ids| !ids.is_empty());
    let token_ids = ids(prompt_token_ids).zip(ids(token_ids));
    let logprobs = serde_json::from_value::<Logprobs>(logprobs).ok();
    let logprobs = logprobs.map(|told| told.content.iter().map(|entry| entry.logprob).collect::<Vec<f32>>());
    Ok(ChatReply {
        completion,
        token_ids: token_ids.map(|(prompt, response)| TokenIds { prompt, response }),
        // -9999 stands for minus infinity on some servers; a token that was drawn has a chance.
        logprobs: logprobs.filter(|list| list.iter().all(|logprob| (-1000.0..=0.0).contains(logprob))),
        cached_tokens,
        attempts: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat() -> Chat {
        let said = |role, text: &str, pictures: &[&'static [u8]]| Message {
            role,
            text: text.into(),
            pictures: pictures.iter().map(|bytes| Bytes::from_static(bytes)).collect(),
        };
        Chat {
            messages: vec![
                said(Role::System, "s", &[]),
                said(Role::User, "t", &[b"\x89PNG.."]),
                said(Role::Assistant, "a", &[]),
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
    fn nothing_is_asked_for_that_was_not_wanted() {
        let sent = |chat: &Chat| -> Value { serde_json::from_slice(&body("m", chat)).unwrap() };
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
        let all = Chat { top_p: 0.5, top_k: 3, min_p: 0.25, logprobs: true, token_ids: true, ..chat() };
        let mut want = plain;
        for (key, value) in [("top_p", json!(0.5)), ("top_k", json!(3)), ("min_p", json!(0.25))] {
            want[key] = value;
        }
        want["logprobs"] = json!(true);
        want["return_token_ids"] = json!(true);
        assert_eq!(sent(&all), want);
    }

    #[test]
    fn what_is_offered_is_taken_where_it_is_whole() {
        let said = r#""message":{"content":"yes"}"#;
        let table = [
            (format!(r#"{{"choices":[{{{said}}}]}}"#), None, None),
            (
                format!(
                    r#"{{"prompt_token_ids":[1,2],"choices":[{{{said},"token_ids":[7,8],"logprobs":{{"content":[{{"token":"a","logprob":-0.5}},{{"token":"b","logprob":0.0}}]}}}}]}}"#
                ),
                Some((vec![1, 2], vec![7, 8])),
                Some(vec![-0.5, 0.0]),
            ),
            (format!(r#"{{"choices":[{{{said},"token_ids":[7]}}]}}"#), None, None),
            (format!(r#"{{"prompt_token_ids":[],"choices":[{{{said},"token_ids":[7]}}]}}"#), None, None),
            (
                format!(r#"{{"choices":[{{{said},"logprobs":{{"content":[{{"logprob":-9999.0}}]}}}}]}}"#),
                None,
                None,
            ),
            (format!(r#"{{"choices":[{{{said},"logprobs":{{"content":null}}}}]}}"#), None, None),
            (
                format!(
                    r#"{{"prompt_token_ids":[1],"choices":[{{{said},"token_ids":[7],"logprobs":{{"content":[{{"logprob":null}}]}}}}]}}"#
                ),
                Some((vec![1], vec![7])),
                None,
            ),
            (
                format!(
                    r#"{{"prompt_token_ids":[-1],"choices":[{{{said},"token_ids":[7],"logprobs":{{"content":[{{"logprob":-0.5}}]}}}}]}}"#
                ),
                None,
                Some(vec![-0.5]),
            ),
            (
                format!(
                    r#"{{"usage":{{"prompt_tokens_details":7}},"prompt_token_ids":"1 2","choices":[{{{said},"token_ids":{{}},"logprobs":[-0.5]}}]}}"#
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
        let got = reply(format!(r#"{{"choices":[{{{said}}}],{usage}}}"#).as_bytes()).unwrap();
        assert_eq!((got.completion.prompt_tokens, got.cached_tokens), (9, 6));
    }

    #[test]
    fn a_model_that_acts_and_says_nothing_has_replied() {
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
            assert!(wire::completion(body.as_bytes()).is_err(), "and a judge has not: {message}");
        }
        assert!(reply(br#"{"choices":[]}"#).unwrap_err().contains("has no choice"));
    }
}
