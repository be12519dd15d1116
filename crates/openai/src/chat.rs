//! A conversation with a model that acts: many turns with pictures, sampling settings, and what the server tells of tokens.
//!
//! What is not part of the protocol itself is asked for by name and read only where it is there: `return_token_ids` and its answers
//! `prompt_token_ids` and `token_ids` are vLLM's words, as are `top_k` and `min_p`.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::client::Completion;
use crate::wire;

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
struct Response {
    choices: Vec<Choice>,
    #[serde(default)]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(default)]
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
    #[serde(default)]
    logprobs: Option<Logprobs>,
}

#[derive(Deserialize)]
struct Logprobs {
    #[serde(default)]
    content: Option<Vec<Logprob>>,
}

#[derive(Deserialize)]
struct Logprob {
    logprob: f32,
}

#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    #[serde(default)]
    cached_tokens: Option<u64>,
}

/// Reads a reply; the error says what is missing. What is only offered is left out where it is not as it should be.
pub(crate) fn reply(body: &[u8]) -> Result<ChatReply, String> {
    let completion = wire::completion(body)?;
    let Response { choices, prompt_token_ids, usage } =
        serde_json::from_slice(body).map_err(|error| format!("is no chat completion: {error}"))?;
    let Choice { token_ids, logprobs } = choices.into_iter().next().ok_or("has no choice in it")?;
    let offered = prompt_token_ids.zip(token_ids);
    let offered = offered.filter(|(prompt, response)| !prompt.is_empty() && !response.is_empty());
    let logprobs = logprobs.and_then(|logprobs| logprobs.content);
    let logprobs: Option<Vec<f32>> = logprobs.map(|list| list.iter().map(|entry| entry.logprob).collect());
    let details = usage.and_then(|usage| usage.prompt_tokens_details);
    Ok(ChatReply {
        completion,
        token_ids: offered.map(|(prompt, response)| TokenIds { prompt, response }),
        // -9999 stands for minus infinity on some servers; a token that was drawn has a chance.
        logprobs: logprobs.filter(|list| list.iter().all(|logprob| (-1000.0..=0.0).contains(logprob))),
        cached_tokens: details.and_then(|details| details.cached_tokens).unwrap_or_default(),
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
        ];
        for (body, ids, logprobs) in table {
            let got = reply(body.as_bytes()).unwrap();
            assert_eq!(got.token_ids.map(|ids| (ids.prompt, ids.response)), ids, "{body}");
            assert_eq!(got.logprobs, logprobs, "{body}");
        }
        let wrong = format!(r#"{{"prompt_token_ids":[-1],"choices":[{{{said}}}]}}"#);
        assert!(reply(wrong.as_bytes()).unwrap_err().contains("is no chat completion"));
        let usage = r#""usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":6}}"#;
        let got = reply(format!(r#"{{"choices":[{{{said}}}],{usage}}}"#).as_bytes()).unwrap();
        assert_eq!((got.completion.prompt_tokens, got.cached_tokens), (9, 6));
    }
}
