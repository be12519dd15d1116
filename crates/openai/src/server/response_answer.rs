//! The answer of `/responses`, whole or as the events of a stream.

use serde_json::{Map, Value, json};

use super::answer::{
    AnswerHead, ApiError, ChatCompletion, ChatDelta, ChatFinishReason, TokenLogprob, TokenUsage,
};
use super::options::RequestSampling;
use super::responses::RepeatedKeys;
use super::tool_call::ToolCall;

/// Writes the answer to one request.
#[derive(Debug, Clone)]
pub(super) struct ResponseAnswer {
    head: AnswerHead,
    sampling: RequestSampling,
    repeated: RepeatedKeys,
    /// Number of the next event.
    sequence: u64,
    /// Items that are complete.
    output: Vec<Value>,
    /// The message that is being written.
    open: Option<OpenMessage>,
}

#[derive(Debug, Clone, Default)]
struct OpenMessage {
    id: String,
    text: String,
    logprobs: Vec<Value>,
}

/// How far a response is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResponseStatus {
    InProgress,
    Ended(ChatFinishReason),
    Failed,
}

impl ResponseStatus {
    fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Ended(ChatFinishReason::Length) => "incomplete",
            Self::Ended(ChatFinishReason::Stop | ChatFinishReason::ToolCalls) => "completed",
            Self::Failed => "failed",
        }
    }
}

impl ResponseAnswer {
    pub(super) fn new(head: AnswerHead, sampling: RequestSampling, repeated: RepeatedKeys) -> Self {
        Self { head, sampling, repeated, sequence: 0, output: Vec::new(), open: None }
    }

    pub(super) fn whole(mut self, completion: &ChatCompletion) -> Value {
        let Some(choice) = completion.choices.first() else { return Value::Null };
        // The events are not sent; the items that they complete are the answer's.
        self.delta(&choice.reply);
        self.close(choice.finish);
        self.response(ResponseStatus::Ended(choice.finish), Some(completion.usage))
    }

    pub(super) fn begin(&mut self) -> Vec<Value> {
        ["response.created", "response.in_progress"]
            .map(|kind| {
                let response = self.response(ResponseStatus::InProgress, None);
                self.event(kind, json!({ "response": response }))
            })
            .into()
    }

    /// The events of a part of the reply.
    pub(super) fn delta(&mut self, part: &ChatDelta) -> Vec<Value> {
        let mut events = Vec::new();
        let logprobs: Vec<Value> = part.logprobs.iter().flatten().map(TokenLogprob::json).collect();
        if !part.text.is_empty() || !logprobs.is_empty() {
            events.extend(self.open_message());
            events.extend(self.text(&part.text, &logprobs));
        }
        for call in &part.calls {
            events.extend(self.close_message(ChatFinishReason::Stop));
            events.extend(self.call(call));
        }
        events
    }

    pub(super) fn finish(&mut self, completion: &ChatCompletion) -> Vec<Value> {
        let Some(choice) = completion.choices.first() else { return Vec::new() };
        let mut events = self.close(choice.finish);
        let status = ResponseStatus::Ended(choice.finish);
        let response = self.response(status, Some(completion.usage));
        let kind = format!("response.{}", status.as_str());
        events.push(self.event(&kind, json!({ "response": response })));
        events
    }

    /// The event that ends a stream whose reply was broken off.
    pub(super) fn fail(&mut self, error: &ApiError) -> Value {
        let mut response = self.response(ResponseStatus::Failed, None);
        let code = if error.status == 429 { "rate_limit_exceeded" } else { "server_error" };
        response["error"] = json!({ "code": code, "message": error.message });
        self.event("response.failed", json!({ "response": response }))
    }

    /// Completes the message that is open. A reply without text and calls is an empty message.
    fn close(&mut self, finish: ChatFinishReason) -> Vec<Value> {
        let mut events = Vec::new();
        if self.open.is_none() && self.output.is_empty() {
            events.extend(self.open_message());
        }
        events.extend(self.close_message(finish));
        events
    }

    fn open_message(&mut self) -> Vec<Value> {
        if self.open.is_some() {
            return Vec::new();
        }
        let id = format!("msg_{}{:04x}", self.head.id, self.output.len());
        let item = message_json(&id, "in_progress", &[]);
        let part = json!({ "type": "output_text", "text": "", "annotations": [], "logprobs": [] });
        let added = json!({ "output_index": self.output.len(), "item": item });
        let begun = self.of_part(&id, json!({ "part": part }));
        self.open = Some(OpenMessage { id, ..OpenMessage::default() });
        vec![
            self.event("response.output_item.added", added),
            self.event("response.content_part.added", begun),
        ]
    }

    fn text(&mut self, text: &str, logprobs: &[Value]) -> Vec<Value> {
        let Some(open) = &mut self.open else { return Vec::new() };
        open.text.push_str(text);
        open.logprobs.extend_from_slice(logprobs);
        let id = open.id.clone();
        let delta = self.of_part(&id, json!({ "delta": text, "logprobs": logprobs }));
        vec![self.event("response.output_text.delta", delta)]
    }

    fn close_message(&mut self, finish: ChatFinishReason) -> Vec<Value> {
        let Some(OpenMessage { id, text, logprobs }) = self.open.take() else { return Vec::new() };
        let done = self.of_part(&id, json!({ "text": text, "logprobs": logprobs }));
        let part = json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs });
        let part_done = self.of_part(&id, json!({ "part": part }));
        let item = message_json(&id, ResponseStatus::Ended(finish).as_str(), &[part]);
        let item_done = json!({ "output_index": self.output.len(), "item": item });
        self.output.push(item);
        vec![
            self.event("response.output_text.done", done),
            self.event("response.content_part.done", part_done),
            self.event("response.output_item.done", item_done),
        ]
    }

    fn call(&mut self, call: &ToolCall) -> Vec<Value> {
        let ToolCall { id: call_id, name, arguments } = call;
        let index = self.output.len();
        let id = format!("fc_{}{index:04x}", self.head.id);
        let item = |arguments: &str, status: &str| {
            json!({
                "type": "function_call", "id": id, "call_id": call_id, "name": name,
                "arguments": arguments, "status": status,
            })
        };
        let done = item(arguments, "completed");
        self.output.push(done.clone());
        let added = json!({ "output_index": index, "item": item("", "in_progress") });
        let delta = json!({ "output_index": index, "item_id": id, "delta": arguments });
        let whole = json!({ "output_index": index, "item_id": id, "name": name, "arguments": arguments });
        vec![
            self.event("response.output_item.added", added),
            self.event("response.function_call_arguments.delta", delta),
            self.event("response.function_call_arguments.done", whole),
            self.event("response.output_item.done", json!({ "output_index": index, "item": done })),
        ]
    }

    /// Where the part of the message is that an event is about, before the event's own fields.
    fn of_part(&self, item_id: &str, own: Value) -> Value {
        let mut fields = json!({ "item_id": item_id, "output_index": self.output.len(), "content_index": 0 });
        if let (Value::Object(fields), Value::Object(own)) = (&mut fields, own) {
            fields.extend(own);
        }
        fields
    }

    fn event(&mut self, kind: &str, own: Value) -> Value {
        let mut event = Map::new();
        event.insert("type".into(), kind.into());
        event.insert("sequence_number".into(), self.sequence.into());
        if let Value::Object(own) = own {
            event.extend(own);
        }
        self.sequence += 1;
        Value::Object(event)
    }

    fn response(&self, status: ResponseStatus, usage: Option<TokenUsage>) -> Value {
        let reason = match status {
            ResponseStatus::Ended(ChatFinishReason::Length) => json!({ "reason": "max_output_tokens" }),
            _ => Value::Null,
        };
        let sent = |key: &str, usual: Value| {
            self.repeated.0.get(key).filter(|value| !value.is_null()).cloned().unwrap_or(usual)
        };
        let RequestSampling { temperature, top_p, .. } = self.sampling;
        json!({
            "id": format!("resp_{}", self.head.id),
            "object": "response",
            "created_at": self.head.created,
            "status": status.as_str(),
            "error": null,
            "incomplete_details": reason,
            "instructions": sent("instructions", Value::Null),
            "max_output_tokens": sent("max_output_tokens", Value::Null),
            "metadata": sent("metadata", json!({})),
            "model": self.head.model,
            "output": self.output,
            "parallel_tool_calls": sent("parallel_tool_calls", true.into()),
            "previous_response_id": null,
            "reasoning": { "effort": null, "summary": null },
            "store": false,
            "temperature": temperature,
            "text": sent("text", json!({ "format": { "type": "text" } })),
            "tool_choice": sent("tool_choice", "auto".into()),
            "tools": sent("tools", json!([])),
            "top_p": top_p,
            "truncation": "disabled",
            "usage": usage.map(usage_json),
            "system_fingerprint": self.head.fingerprint,
        })
    }
}

fn message_json(id: &str, status: &str, content: &[Value]) -> Value {
    json!({ "type": "message", "id": id, "status": status, "role": "assistant", "content": content })
}

fn usage_json(usage: TokenUsage) -> Value {
    let TokenUsage { prompt_tokens, cached_tokens, prefilled_tokens, completion_tokens } = usage;
    json!({
        "input_tokens": prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": cached_tokens, "cache_write_tokens": 0, "prefilled_tokens": prefilled_tokens,
        },
        "output_tokens": completion_tokens,
        "output_tokens_details": { "reasoning_tokens": 0 },
        "total_tokens": prompt_tokens + completion_tokens,
    })
}
