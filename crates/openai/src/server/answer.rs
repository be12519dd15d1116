//! What the answers of all routes are made of: replies, counts of tokens, errors, the list of
//! models.

use serde_json::{Map, Value, json};

use super::tool_call::ToolCall;

/// Why there is no completion, with the fields that clients of the protocol expect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub status: u16,
    pub kind: &'static str,
    pub code: Option<&'static str>,
    /// `error.param`: the key of the request that is wrong.
    pub param: Option<String>,
    pub message: String,
}

/// Fields that all parts of one answer share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerHead {
    /// Identifies the answer; each route puts its own prefix before it.
    pub id: String,
    pub created: u64,
    /// Name of the model.
    pub model: String,
    /// Identifies the weights in use.
    pub fingerprint: String,
    /// Whether chunks contain a `usage`, which is null in all but the last.
    pub counts_usage: bool,
}

/// Why a reply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChatFinishReason {
    /// The model ended it, or a stop text.
    Stop,
    /// It reached its limit of tokens.
    Length,
    /// It ended and calls functions.
    ToolCalls,
}

/// A token of a reply and its log-prob.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    /// Its text; bytes that are not UTF-8 by themselves become U+FFFD.
    pub token: String,
    pub bytes: Vec<u8>,
    /// Finite and at most 0.
    pub logprob: f32,
    /// The likeliest tokens at its position, if requested. Their own lists are empty.
    pub top: Vec<TokenLogprob>,
}

/// A part of a reply.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ChatDelta {
    pub text: String,
    /// Calls of functions, in order.
    pub calls: Vec<ToolCall>,
    /// Log-probs of its tokens, if requested.
    pub logprobs: Option<Vec<TokenLogprob>>,
    /// Ids of its tokens, if requested.
    pub token_ids: Option<Vec<u32>>,
}

/// Tokens of a prompt and its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenUsage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Those of the prompt's tokens that the state held already.
    pub cached_tokens: u32,
    /// Those of the prompt's tokens that were computed for this reply. An extension.
    pub prefilled_tokens: u32,
    /// Tokens of the reply.
    pub completion_tokens: u32,
}

/// A reply that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct CompletedChoice {
    /// Its text, calls and tokens.
    pub reply: ChatDelta,
    pub finish: ChatFinishReason,
    /// Ids of its prompt, if requested.
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// The replies to a request.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatCompletion {
    pub choices: Vec<CompletedChoice>,
    /// Counts of all their tokens.
    pub usage: TokenUsage,
}

impl ApiError {
    /// An error in a value of the request: 400.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            status: 400,
            kind: "invalid_request_error",
            code: None,
            param: Some(param.into()),
            message: message.into(),
        }
    }

    /// A key or value that this server does not support: 400.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: Some("unsupported_parameter"), ..Self::invalid(param, message) }
    }

    /// An error of the whole request, or of the server.
    pub fn of(status: u16, kind: &'static str, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, code: Some(code), param: None, message: message.into() }
    }

    /// The body of the answer.
    pub fn json(&self) -> Value {
        let Self { kind, code, param, message, .. } = self;
        json!({ "error": { "message": message, "type": kind, "param": param, "code": code } })
    }
}

impl ChatFinishReason {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
}

impl TokenLogprob {
    pub(super) fn json(&self) -> Value {
        let mut entry = self.entry_json();
        entry["top_logprobs"] = self.top.iter().map(Self::entry_json).collect();
        entry
    }

    fn entry_json(&self) -> Value {
        let Self { token, bytes, logprob, .. } = self;
        // Every 32-bit float is exact as a 64-bit one, so clients read back the same value.
        json!({ "token": token, "bytes": bytes, "logprob": f64::from(*logprob) })
    }
}

impl ChatDelta {
    /// Whether it has no text, calls, log-probs or ids.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
            && self.calls.is_empty()
            && self.logprobs.as_ref().is_none_or(Vec::is_empty)
            && self.token_ids.as_ref().is_none_or(Vec::is_empty)
    }

    pub(super) fn logprobs_json(&self) -> Value {
        let content_json = |list: &Vec<TokenLogprob>| {
            let content: Vec<Value> = list.iter().map(TokenLogprob::json).collect();
            json!({ "content": content, "refusal": null })
        };
        self.logprobs.as_ref().map_or(Value::Null, content_json)
    }
}

impl TokenUsage {
    pub(super) fn json(self) -> Value {
        let Self { prompt_tokens, cached_tokens, prefilled_tokens, completion_tokens } = self;
        json!({
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": { "cached_tokens": cached_tokens, "prefilled_tokens": prefilled_tokens },
        })
    }
}

impl AnswerHead {
    /// The fields of every answer, with the id's prefix and the name of its kind.
    pub(super) fn json(&self, prefix: &str, object: &str) -> Map<String, Value> {
        let Self { id, created, model, fingerprint, .. } = self;
        let pairs: [(&str, Value); 5] = [
            ("id", format!("{prefix}{id}").into()),
            ("object", object.into()),
            ("created", (*created).into()),
            ("model", model.as_str().into()),
            ("system_fingerprint", fingerprint.as_str().into()),
        ];
        pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

/// The list of models, which has one entry.
pub fn models(name: &str, created: u64, context_tokens_max: u32) -> Value {
    json!({ "object": "list", "data": [{
        "id": name, "object": "model", "created": created, "owned_by": "furrow", "max_model_len": context_tokens_max,
    }] })
}
