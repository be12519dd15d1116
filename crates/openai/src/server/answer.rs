//! What is answered: a completion, the chunks of a stream, an error, the list of models.

use serde_json::{Map, Value, json};

/// The last line of a stream.
pub const DONE: &str = "[DONE]";

/// Why there is no completion, as clients of the protocol expect to be told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// `error.type`.
    pub kind: &'static str,
    /// `error.code`.
    pub code: Option<&'static str>,
    /// `error.param`: which key of the request.
    pub param: Option<String>,
    /// `error.message`.
    pub message: String,
}

/// What all parts of one answer have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// `chatcmpl-…`.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// Name of the model.
    pub model: String,
    /// Which weights answer.
    pub fingerprint: String,
    /// Whether chunks hold a `usage`, null in all but the last.
    pub counts_usage: bool,
}

/// Why a reply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// By itself, or at a text it was to stop at.
    Stop,
    /// Its tokens were used up.
    Length,
}

/// A token of a reply and its log-prob.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    /// Its text; bytes that are no UTF-8 alone become U+FFFD.
    pub token: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Finite and at most 0.
    pub logprob: f32,
    /// The likeliest ones in its place, where they were asked for; they have none of their own.
    pub top: Vec<TokenLogprob>,
}

/// A part of a reply.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Delta {
    /// Its text.
    pub text: String,
    /// Its tokens' log-probs, where they were asked for.
    pub logprobs: Option<Vec<TokenLogprob>>,
    /// Its tokens' ids, where they were asked for.
    pub token_ids: Option<Vec<u32>>,
}

/// Tokens of a prompt and its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: u32,
    /// Of the prompt, which the state held already.
    pub cached_tokens: u32,
    /// Of the prompt, which were computed for this reply. An extension.
    pub prefilled_tokens: u32,
    /// Of the reply.
    pub completion_tokens: u32,
}

/// A whole reply.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    /// Its text and tokens.
    pub reply: Delta,
    /// Why it ended.
    pub finish: Finish,
    /// What it took.
    pub usage: Usage,
    /// Ids of the prompt, where they were asked for.
    pub prompt_token_ids: Option<Vec<u32>>,
}

impl ApiError {
    /// What is wrong with a request: 400.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            status: 400,
            kind: "invalid_request_error",
            code: None,
            param: Some(param.into()),
            message: message.into(),
        }
    }

    /// What a server of ours does not do: 400.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: Some("unsupported_parameter"), ..Self::invalid(param, message) }
    }

    /// What is wrong with a request as a whole, or with the server.
    pub fn of(status: u16, kind: &'static str, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, code: Some(code), param: None, message: message.into() }
    }

    /// The body of the answer.
    pub fn json(&self) -> Value {
        let Self { kind, code, param, message, .. } = self;
        json!({ "error": { "message": message, "type": kind, "param": param, "code": code } })
    }
}

impl Finish {
    fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

impl TokenLogprob {
    fn json(&self) -> Value {
        let mut entry = self.alone();
        entry["top_logprobs"] = self.top.iter().map(Self::alone).collect();
        entry
    }

    fn alone(&self) -> Value {
        let Self { token, bytes, logprob, .. } = self;
        // A 32-bit number is a 64-bit one exactly: whoever reads it back has the same.
        json!({ "token": token, "bytes": bytes, "logprob": f64::from(*logprob) })
    }
}

impl Delta {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
            && self.logprobs.as_ref().is_none_or(Vec::is_empty)
            && self.token_ids.as_ref().is_none_or(Vec::is_empty)
    }

    fn logprobs_json(&self) -> Value {
        let told = |list: &Vec<TokenLogprob>| {
            let content: Vec<Value> = list.iter().map(TokenLogprob::json).collect();
            json!({ "content": content, "refusal": null })
        };
        self.logprobs.as_ref().map_or(Value::Null, told)
    }
}

impl Usage {
    fn json(self) -> Value {
        let Self { prompt_tokens, cached_tokens, prefilled_tokens, completion_tokens } = self;
        json!({
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": { "cached_tokens": cached_tokens, "prefilled_tokens": prefilled_tokens },
        })
    }
}

impl Envelope {
    /// A whole completion.
    pub fn completion(&self, told: &Told) -> Value {
        let Told { reply, finish, usage, prompt_token_ids } = told;
        let mut choice = Map::new();
        choice.insert("index".into(), 0.into());
        choice
            .insert("message".into(), json!({ "role": "assistant", "content": reply.text, "refusal": null }));
        choice.insert("logprobs".into(), reply.logprobs_json());
        choice.insert("finish_reason".into(), finish.as_str().into());
        if let Some(ids) = &reply.token_ids {
            choice.insert("token_ids".into(), json!(ids));
        }
        let mut whole = self.head("chat.completion");
        whole.insert("choices".into(), json!([choice]));
        whole.insert("usage".into(), usage.json());
        if let Some(ids) = prompt_token_ids {
            whole.insert("prompt_token_ids".into(), json!(ids));
        }
        Value::Object(whole)
    }

    /// The first chunk: who speaks, and the ids of the prompt where they were asked for.
    pub fn opening(&self, prompt_token_ids: Option<&[u32]>) -> Value {
        let delta = json!({ "role": "assistant", "content": "", "refusal": null });
        let mut chunk = self.chunk(delta, Value::Null, None, None);
        if let Some(ids) = prompt_token_ids {
            chunk.insert("prompt_token_ids".into(), json!(ids));
        }
        Value::Object(chunk)
    }

    /// A part of the reply.
    pub fn part(&self, delta: &Delta) -> Value {
        let content = json!({ "content": delta.text });
        let ids = delta.token_ids.as_deref();
        Value::Object(self.chunk(content, delta.logprobs_json(), None, ids))
    }

    /// Why the reply ended.
    pub fn ending(&self, finish: Finish) -> Value {
        Value::Object(self.chunk(json!({}), Value::Null, Some(finish), None))
    }

    /// The chunk that only counts.
    pub fn counted(&self, usage: Usage) -> Value {
        let mut chunk = self.head("chat.completion.chunk");
        chunk.insert("choices".into(), json!([]));
        chunk.insert("usage".into(), usage.json());
        Value::Object(chunk)
    }

    fn head(&self, object: &str) -> Map<String, Value> {
        let Self { id, created, model, fingerprint, .. } = self;
        let pairs: [(&str, Value); 5] = [
            ("id", id.as_str().into()),
            ("object", object.into()),
            ("created", (*created).into()),
            ("model", model.as_str().into()),
            ("system_fingerprint", fingerprint.as_str().into()),
        ];
        pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    fn chunk(
        &self,
        delta: Value,
        logprobs: Value,
        finish: Option<Finish>,
        token_ids: Option<&[u32]>,
    ) -> Map<String, Value> {
        let mut choice = Map::new();
        choice.insert("index".into(), 0.into());
        choice.insert("delta".into(), delta);
        choice.insert("logprobs".into(), logprobs);
        choice.insert("finish_reason".into(), finish.map(Finish::as_str).into());
        if let Some(ids) = token_ids {
            choice.insert("token_ids".into(), ids.into());
        }
        let mut chunk = self.head("chat.completion.chunk");
        chunk.insert("choices".into(), vec![Value::Object(choice)].into());
        if self.counts_usage {
            chunk.insert("usage".into(), Value::Null);
        }
        chunk
    }
}

/// The list of models, of which there is one.
pub fn models(name: &str, created: u64, context_tokens_max: u32) -> Value {
    json!({ "object": "list", "data": [{
        "id": name, "object": "model", "created": created, "owned_by": "furrow", "max_model_len": context_tokens_max,
    }] })
}
