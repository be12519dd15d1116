//! The answer of `/chat/completions`, whole or as the chunks of a stream.

use serde_json::{Map, Value, json};

use super::answer::{AnswerHead, ChatCompletion, ChatDelta, ChatFinishReason, CompletedChoice};
use super::tool_call::ToolCall;

/// Writes the answer to one request.
#[derive(Debug, Clone)]
pub(super) struct ChatAnswer {
    head: AnswerHead,
    /// How many calls of each choice were written.
    calls: Vec<usize>,
}

const ID_PREFIX: &str = "chatcmpl-";

impl ChatAnswer {
    pub(super) fn new(head: AnswerHead, choices: usize) -> Self {
        Self { head, calls: vec![0; choices] }
    }

    pub(super) fn whole(&self, completion: &ChatCompletion) -> Value {
        let choices: Vec<Value> = completion.choices.iter().enumerate().map(whole_choice).collect();
        let mut whole = self.head.json(ID_PREFIX, "chat.completion");
        whole.insert("choices".into(), choices.into());
        whole.insert("usage".into(), completion.usage.json());
        let first = completion.choices.first();
        if let Some(ids) = first.and_then(|choice| choice.prompt_token_ids.as_ref()) {
            whole.insert("prompt_token_ids".into(), json!(ids));
        }
        Value::Object(whole)
    }

    /// The first chunk of each choice: the role, and in the very first the ids of the prompt if
    /// requested.
    pub(super) fn begin(&self, prompt_token_ids: Option<&[u32]>) -> Vec<Value> {
        let role = |index: usize| {
            let delta = json!({ "role": "assistant", "content": "", "refusal": null });
            let mut chunk = self.chunk(index, ChunkParts { delta, ..ChunkParts::default() });
            if let Some(ids) = prompt_token_ids.filter(|_| index == 0) {
                chunk.insert("prompt_token_ids".into(), json!(ids));
            }
            Value::Object(chunk)
        };
        (0..self.calls.len()).map(role).collect()
    }

    /// A part of a reply.
    pub(super) fn delta(&mut self, index: usize, part: &ChatDelta) -> Value {
        let mut delta = Map::new();
        if !part.text.is_empty() || part.calls.is_empty() {
            delta.insert("content".into(), part.text.as_str().into());
        }
        if !part.calls.is_empty() {
            let from = self.calls[index];
            let calls = part.calls.iter().zip(from..).map(|(call, at)| {
                let mut call = call_json(call);
                call["index"] = at.into();
                call
            });
            delta.insert("tool_calls".into(), calls.collect());
            self.calls[index] += part.calls.len();
        }
        let parts = ChunkParts {
            delta: Value::Object(delta),
            logprobs: part.logprobs_json(),
            finish: None,
            token_ids: part.token_ids.as_deref(),
        };
        Value::Object(self.chunk(index, parts))
    }

    /// The chunk with the reason why a reply ended.
    pub(super) fn finish(&self, index: usize, finish: ChatFinishReason) -> Value {
        let parts = ChunkParts { delta: json!({}), finish: Some(finish), ..ChunkParts::default() };
        Value::Object(self.chunk(index, parts))
    }

    /// The last chunk, with the counts of tokens, if it was requested.
    pub(super) fn usage(&self, completion: &ChatCompletion) -> Option<Value> {
        let mut chunk = self.head.json(ID_PREFIX, "chat.completion.chunk");
        chunk.insert("choices".into(), json!([]));
        chunk.insert("usage".into(), completion.usage.json());
        self.head.counts_usage.then_some(Value::Object(chunk))
    }

    fn chunk(&self, index: usize, parts: ChunkParts<'_>) -> Map<String, Value> {
        let mut choice = Map::new();
        choice.insert("index".into(), index.into());
        choice.insert("delta".into(), parts.delta);
        choice.insert("logprobs".into(), parts.logprobs);
        choice.insert("finish_reason".into(), parts.finish.map(ChatFinishReason::as_str).into());
        if let Some(ids) = parts.token_ids {
            choice.insert("token_ids".into(), ids.into());
        }
        let mut chunk = self.head.json(ID_PREFIX, "chat.completion.chunk");
        chunk.insert("choices".into(), vec![Value::Object(choice)].into());
        if self.head.counts_usage {
            chunk.insert("usage".into(), Value::Null);
        }
        chunk
    }
}

/// What a chunk says of one choice.
#[derive(Default)]
struct ChunkParts<'a> {
    delta: Value,
    logprobs: Value,
    finish: Option<ChatFinishReason>,
    token_ids: Option<&'a [u32]>,
}

fn whole_choice((index, choice): (usize, &CompletedChoice)) -> Value {
    let CompletedChoice { reply, finish, .. } = choice;
    let content = match reply.text.as_str() {
        "" if !reply.calls.is_empty() => Value::Null,
        text => text.into(),
    };
    let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
    if !reply.calls.is_empty() {
        message["tool_calls"] = reply.calls.iter().map(call_json).collect();
    }
    let mut json = Map::new();
    json.insert("index".into(), index.into());
    json.insert("message".into(), message);
    json.insert("logprobs".into(), reply.logprobs_json());
    json.insert("finish_reason".into(), finish.as_str().into());
    if let Some(ids) = &reply.token_ids {
        json.insert("token_ids".into(), json!(ids));
    }
    Value::Object(json)
}

fn call_json(call: &ToolCall) -> Value {
    let ToolCall { id, name, arguments } = call;
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}
