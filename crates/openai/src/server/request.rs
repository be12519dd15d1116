//! Parses requests: what a request asks for, or which of its keys is wrong and what to use instead.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use serde_json::{Map, Value};

use super::ApiError;
use crate::chat::Role;

/// Limits of a request. Its bytes were counted before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChatLimits {
    pub messages_max: usize,
    /// Most images in all messages.
    pub images_max: usize,
    /// Most bytes of one image.
    pub image_bytes_max: usize,
    /// Most tokens of a reply.
    pub max_tokens: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ChatRequest {
    /// Name of the requested model.
    pub model: String,
    /// The messages. They begin with a user's message, or a system message before it, and end with
    /// a user's.
    pub messages: Vec<ChatMessage>,
    /// How tokens are sampled.
    pub sampling: RequestSampling,
    /// Most tokens of the reply, if the request sets a limit.
    pub max_tokens: Option<u32>,
    /// Texts that end the reply and are not part of it.
    pub stop: Vec<String>,
    /// The form of the reply.
    pub format: ResponseFormat,
    /// How many of the likeliest tokens to report beside each, with all their log-probs; `None`: no
    /// log-probs.
    pub logprobs: Option<u32>,
    /// Whether to return token ids, as in vLLM's protocol.
    pub return_token_ids: bool,
    /// Whether to stream the reply.
    pub stream: bool,
    /// Whether a stream ends with the counts of tokens.
    pub include_usage: bool,
    /// Name under which the state is kept for the next request. An extension.
    pub session_id: Option<String>,
}

/// How tokens are sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RequestSampling {
    pub temperature: f32,
    /// Nucleus sampling; 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all. An extension.
    pub top_k: u32,
    /// 0 keeps all. An extension.
    pub min_p: f32,
    /// Equal seeds give equal samples.
    pub seed: Option<u64>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ChatMessage {
    pub role: Role,
    /// Texts and images in order; a message of a system or an assistant has texts only.
    pub parts: Vec<MessagePart>,
    /// Ids of an assistant's message, as the server returned them. They are used as they are
    /// instead of tokenising the text. An extension.
    pub token_ids: Option<Vec<u32>>,
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum MessagePart {
    Text(String),
    /// A PNG or JPEG image as it was encoded.
    Image(Bytes),
}

/// The form of a reply.
#[derive(Debug, Clone, PartialEq)]
pub enum ResponseFormat {
    Text,
    JsonObject,
    /// JSON that matches this schema.
    JsonSchema(Value),
}

/// Keys that are accepted and ignored.
const IDLE: [&str; 4] = ["user", "metadata", "safety_identifier", "prompt_cache_key"];
/// Keys that may have one value, or null.
const FIXED: [(&str, &str); 8] = [
    ("n", "1"),
    ("frequency_penalty", "0"),
    ("presence_penalty", "0"),
    ("store", "false"),
    ("service_tier", "\"auto\""),
    ("modalities", "[\"text\"]"),
    ("parallel_tool_calls", "true"),
    ("tool_choice", "\"none\""),
];
/// The limit of OpenAI's API.
const TOP_LOGPROBS_MAX: i64 = 20;
const STOPS_MAX: usize = 4;
const STOP_BYTES_MAX: usize = 256;
const SESSION_CHARS_MAX: usize = 128;

/// Most values of a body. Each takes some 100 bytes once parsed, however short its text is.
const PIECES_MAX: usize = 200_000;

type ApiResult<T> = Result<T, ApiError>;

impl ChatRequest {
    /// Parses the body of a request and returns the first error in it.
    pub fn read(body: &[u8], limits: &ChatLimits) -> ApiResult<Self> {
        if pieces(body) > PIECES_MAX {
            let message = format!("the body has more than {PIECES_MAX} values; send less");
            return Err(ApiError { param: None, ..ApiError::invalid("", message) });
        }
        let value: Value = serde_json::from_slice(body).map_err(|why| ApiError {
            param: None,
            ..ApiError::invalid("", format!("the body is not JSON: {why}"))
        })?;
        let Value::Object(map) = value else {
            return Err(ApiError { param: None, ..ApiError::invalid("", "the body is not a JSON object") });
        };
        let mut keys = RequestKeys { path: String::new(), map };
        let request = Self::take(&mut keys, limits)?;
        keys.finish(&IDLE, &FIXED)?;
        Ok(request)
    }

    fn take(keys: &mut RequestKeys, limits: &ChatLimits) -> ApiResult<Self> {
        let model = keys.text("model")?.ok_or_else(|| keys.missing("model"))?;
        let messages = messages(keys, limits)?;
        let sampling = RequestSampling {
            temperature: keys.number("temperature", 0.0, 100.0)?.unwrap_or(1.0) as f32,
            top_p: top_p(keys)?,
            top_k: top_k(keys)?,
            min_p: keys.number("min_p", 0.0, 1.0)?.unwrap_or(0.0) as f32,
            seed: keys.whole("seed", i64::MIN, i64::MAX)?.map(|seed| seed as u64),
        };
        let max_tokens = max_tokens(keys, limits.max_tokens)?;
        let stop = stop(keys)?;
        let format = format(keys)?;
        let logprobs = logprobs(keys)?;
        let return_token_ids = keys.flag("return_token_ids")?;
        let stream = keys.flag("stream")?;
        let include_usage = match keys.object("stream_options")? {
            None => false,
            Some(_) if !stream => {
                return Err(ApiError::invalid("stream_options", "stream_options need stream = true"));
            }
            Some(mut options) => {
                let included = options.flag("include_usage")?;
                options.finish(&[], &[("include_obfuscation", "false")])?;
                included
            }
        };
        let session_id = session_id(keys)?;
        if logprobs.is_some() && format != ResponseFormat::Text {
            return Err(ApiError::unsupported(
                "logprobs",
                "tokens that a response_format forces are not sampled and have no log-prob; use one or the other",
            ));
        }
        if !stop.is_empty() && format != ResponseFormat::Text {
            return Err(ApiError::unsupported(
                "stop",
                "a stop text could end the reply before it matches response_format; use one or the other",
            ));
        }
        Ok(Self {
            model,
            messages,
            sampling,
            max_tokens,
            stop,
            format,
            logprobs,
            return_token_ids,
            stream,
            include_usage,
            session_id,
        })
    }
}

/// Upper bound of the number of values in a JSON body: it counts opening brackets and separators
/// outside of strings.
fn pieces(body: &[u8]) -> usize {
    let mut count = 0;
    let mut is_text = false;
    let mut is_escaped = false;
    for byte in body {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            b',' | b':' | b'[' | b'{' if !is_text => count += 1,
            _ => {}
        }
    }
    count
}

fn top_p(keys: &mut RequestKeys) -> ApiResult<f32> {
    match keys.number("top_p", 0.0, 1.0)?.map(|p| p as f32) {
        Some(p) if p < f32::MIN_POSITIVE => Err(keys.wrong("top_p", "a number above 0 and at most 1")),
        p => Ok(p.unwrap_or(1.0)),
    }
}

fn logprobs(keys: &mut RequestKeys) -> ApiResult<Option<u32>> {
    let is_requested = keys.flag("logprobs")?;
    match keys.whole("top_logprobs", 0, TOP_LOGPROBS_MAX)? {
        Some(1..) if !is_requested => {
            Err(ApiError::invalid("top_logprobs", "top_logprobs needs logprobs = true"))
        }
        count => Ok(is_requested.then_some(count.unwrap_or(0) as u32)),
    }
}

/// In vLLM's protocol -1 keeps all.
fn top_k(keys: &mut RequestKeys) -> ApiResult<u32> {
    Ok(keys.whole("top_k", -1, 1 << 30)?.map_or(0, |k| k.max(0) as u32))
}

fn max_tokens(keys: &mut RequestKeys, most: u32) -> ApiResult<Option<u32>> {
    let mut read = |key| {
        let value = keys.whole(key, 1, i64::from(u32::MAX))?;
        match value.filter(|value| *value > i64::from(most)) {
            Some(value) => Err(ApiError::invalid(key, format!("{key} is {value}; use at most {most}"))),
            None => Ok(value.map(|value| value as u32)),
        }
    };
    match (read("max_tokens")?, read("max_completion_tokens")?) {
        (Some(old), Some(new)) if old != new => Err(ApiError::invalid(
            "max_tokens",
            format!("max_tokens is {old} and max_completion_tokens {new}; they mean the same, use one"),
        )),
        (old, new) => Ok(new.or(old)),
    }
}

fn stop(keys: &mut RequestKeys) -> ApiResult<Vec<String>> {
    let wrong = || {
        ApiError::invalid(
            "stop",
            format!("stop must be a text or up to {STOPS_MAX} of them, each of 1 to {STOP_BYTES_MAX} bytes"),
        )
    };
    let texts = match keys.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(list)) => list
            .into_iter()
            .map(|text| if let Value::String(text) = text { Ok(text) } else { Err(wrong()) })
            .collect::<ApiResult<Vec<String>>>()?,
        Some(_) => return Err(wrong()),
    };
    let is_right = |text: &String| (1..=STOP_BYTES_MAX).contains(&text.len());
    if texts.len() <= STOPS_MAX && texts.iter().all(is_right) { Ok(texts) } else { Err(wrong()) }
}

fn format(keys: &mut RequestKeys) -> ApiResult<ResponseFormat> {
    let Some(mut requested) = keys.object("response_format")? else { return Ok(ResponseFormat::Text) };
    let kind = requested.text("type")?.ok_or_else(|| requested.missing("type"))?;
    let format = match kind.as_str() {
        "text" => ResponseFormat::Text,
        "json_object" => ResponseFormat::JsonObject,
        "json_schema" => {
            let mut named =
                requested.object("json_schema")?.ok_or_else(|| requested.missing("json_schema"))?;
            let schema = named.take("schema").ok_or_else(|| named.missing("schema"))?;
            named.finish(&["name", "description", "strict"], &[])?;
            ResponseFormat::JsonSchema(schema)
        }
        other => {
            let message =
                format!("response_format.type is {:?}; use text, json_object or json_schema", cut(other));
            return Err(ApiError::invalid("response_format.type", message));
        }
    };
    requested.finish(&[], &[])?;
    Ok(format)
}

fn session_id(keys: &mut RequestKeys) -> ApiResult<Option<String>> {
    let Some(name) = keys.text("session_id")? else { return Ok(None) };
    let is_right = (1..=SESSION_CHARS_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte));
    if is_right {
        return Ok(Some(name));
    }
    let right = format!("session_id must have 1 to {SESSION_CHARS_MAX} letters, digits and . _ : -");
    Err(ApiError::invalid("session_id", right))
}

fn messages(keys: &mut RequestKeys, limits: &ChatLimits) -> ApiResult<Vec<ChatMessage>> {
    let list = match keys.take("messages") {
        Some(Value::Array(list)) => list,
        Some(_) => return Err(ApiError::invalid("messages", "messages must be a list")),
        None => return Err(keys.missing("messages")),
    };
    if list.is_empty() || list.len() > limits.messages_max {
        let count = list.len();
        let most = limits.messages_max;
        return Err(ApiError::invalid("messages", format!("there are {count} messages; send 1 to {most}")));
    }
    let mut images_left = limits.images_max;
    let mut read = Vec::with_capacity(list.len());
    for (index, message) in list.into_iter().enumerate() {
        let path = format!("messages[{index}]");
        let Value::Object(map) = message else {
            return Err(ApiError::invalid(path, "a message must be an object with role and content"));
        };
        read.push(message_of(&mut RequestKeys { path, map }, limits, &mut images_left)?);
    }
    check_turns(&read)?;
    Ok(read)
}

/// The template supports a system message at the start, then turns of user and assistant, the last
/// one the user's.
fn check_turns(messages: &[ChatMessage]) -> ApiResult<()> {
    let mut before = Role::System;
    for (index, ChatMessage { role, .. }) in messages.iter().enumerate() {
        let wrong = match (before, role) {
            _ if index == 0 => {
                (*role == Role::Assistant).then_some("the first message must be the system's or a user's")
            }
            (_, Role::System) => Some("there may be one system message, as the first one"),
            (Role::System | Role::Assistant, Role::Assistant) => {
                Some("an assistant's message must follow a user's")
            }
            _ => None,
        };
        if let Some(why) = wrong {
            return Err(ApiError::unsupported(format!("messages[{index}].role"), why));
        }
        before = *role;
    }
    if before != Role::User {
        let last = messages.len() - 1;
        return Err(ApiError::unsupported(
            format!("messages[{last}].role"),
            "the last message must be a user's; replies cannot be continued",
        ));
    }
    Ok(())
}

fn message_of(
    keys: &mut RequestKeys,
    limits: &ChatLimits,
    images_left: &mut usize,
) -> ApiResult<ChatMessage> {
    let role = keys.text("role")?.ok_or_else(|| keys.missing("role"))?;
    let role = match role.as_str() {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        other => {
            let message = format!("role {:?} is not supported; use system, user or assistant", cut(other));
            return Err(ApiError::unsupported(keys.at("role"), message));
        }
    };
    let parts = match keys.take("content") {
        Some(Value::String(text)) => vec![MessagePart::Text(text)],
        Some(Value::Array(list)) if !list.is_empty() => {
            let mut parts = Vec::with_capacity(list.len().min(64));
            for (index, part) in list.into_iter().enumerate() {
                let path = keys.at(&format!("content[{index}]"));
                let Value::Object(map) = part else {
                    return Err(ApiError::invalid(path, "a part must be an object with a type"));
                };
                parts.push(part_of(&mut RequestKeys { path, map }, role, limits, images_left)?);
            }
            parts
        }
        Some(_) => {
            return Err(ApiError::invalid(
                keys.at("content"),
                "content must be a text or a list of at least one part",
            ));
        }
        None => return Err(keys.missing("content")),
    };
    let token_ids = match keys.take("token_ids") {
        None => None,
        Some(_) if role != Role::Assistant => {
            return Err(ApiError::invalid(
                keys.at("token_ids"),
                "only an assistant's message may have token_ids",
            ));
        }
        Some(ids) => match serde_json::from_value::<Vec<u32>>(ids) {
            Ok(ids) if !ids.is_empty() => Some(ids),
            _ => {
                return Err(ApiError::invalid(
                    keys.at("token_ids"),
                    "token_ids must be a list of ids, as it was returned",
                ));
            }
        },
    };
    keys.finish(&[], &[])?;
    Ok(ChatMessage { role, parts, token_ids })
}

fn part_of(
    keys: &mut RequestKeys,
    role: Role,
    limits: &ChatLimits,
    images_left: &mut usize,
) -> ApiResult<MessagePart> {
    let kind = keys.text("type")?.ok_or_else(|| keys.missing("type"))?;
    let part = match kind.as_str() {
        "text" => MessagePart::Text(keys.text("text")?.ok_or_else(|| keys.missing("text"))?),
        "image_url" if role != Role::User => {
            return Err(ApiError::unsupported(keys.at("type"), "only a user's message may have images"));
        }
        "image_url" => {
            let mut image = keys.object("image_url")?.ok_or_else(|| keys.missing("image_url"))?;
            let url = image.text("url")?.ok_or_else(|| image.missing("url"))?;
            // All images are cut as the checkpoint's processor cuts them.
            image.finish(&["detail"], &[])?;
            *images_left = images_left.checked_sub(1).ok_or_else(|| {
                let most = limits.images_max;
                ApiError::invalid(keys.at("image_url"), format!("there are more than {most} images"))
            })?;
            picture(&url, limits.image_bytes_max)
                .map(MessagePart::Image)
                .map_err(|why| ApiError::invalid(keys.at("image_url.url"), why))?
        }
        other => {
            let message = format!("parts of type {:?} are not supported; use text or image_url", cut(other));
            return Err(ApiError::unsupported(keys.at("type"), message));
        }
    };
    keys.finish(&[], &[])?;
    Ok(part)
}

/// Decodes a data URL. Network addresses are never fetched, because clients could direct the
/// server's requests.
fn picture(url: &str, bytes_max: usize) -> Result<Bytes, String> {
    const RIGHT: &str = "send the image itself, as data:image/png;base64,… or data:image/jpeg;base64,…";
    let Some(data) = url.strip_prefix("data:") else {
        return Err(format!("images are not fetched from addresses; {RIGHT}"));
    };
    let (head, encoded) = data.split_once(',').ok_or_else(|| format!("this is not a data URL; {RIGHT}"))?;
    if !["image/png;base64", "image/jpeg;base64", "image/jpg;base64"]
        .contains(&head.to_ascii_lowercase().as_str())
    {
        return Err(format!("this data URL has the type {:?}; {RIGHT}", cut(head)));
    }
    // Four base64 characters are three bytes.
    if encoded.len() / 4 * 3 > bytes_max.saturating_add(3) {
        return Err(format!("an image may have at most {bytes_max} bytes"));
    }
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let bytes =
        GeneralPurpose::new(&STANDARD, config).decode(encoded).map_err(|why| format!("not base64: {why}"))?;
    match bytes.len() {
        0 => Err("the image is empty".to_owned()),
        length if length > bytes_max => Err(format!("an image may have at most {bytes_max} bytes")),
        _ => Ok(Bytes::from(bytes)),
    }
}

/// An object of the request whose keys are removed one by one. Keys that remain at the end are
/// unknown.
struct RequestKeys {
    path: String,
    map: Map<String, Value>,
}

impl RequestKeys {
    fn at(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn missing(&self, key: &str) -> ApiError {
        ApiError::invalid(self.at(key), format!("{} is missing", self.at(key)))
    }

    /// A null counts as missing.
    fn take(&mut self, key: &str) -> Option<Value> {
        self.map.remove(key).filter(|value| !value.is_null())
    }

    fn wrong(&self, key: &str, right: &str) -> ApiError {
        ApiError::invalid(self.at(key), format!("{} must be {right}", self.at(key)))
    }

    fn text(&mut self, key: &str) -> ApiResult<Option<String>> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(key, "a text")),
        }
    }

    fn flag(&mut self, key: &str) -> ApiResult<bool> {
        match self.take(key) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(_) => Err(self.wrong(key, "true or false")),
        }
    }

    fn number(&mut self, key: &str, from: f64, to: f64) -> ApiResult<Option<f64>> {
        let Some(value) = self.take(key) else { return Ok(None) };
        match value.as_f64().filter(|number| (from..=to).contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(key, &format!("a number of {from:.0} to {to}"))),
        }
    }

    fn whole(&mut self, key: &str, from: i64, to: i64) -> ApiResult<Option<i64>> {
        let Some(value) = self.take(key) else { return Ok(None) };
        match value.as_i64().filter(|number| (from..=to).contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(key, &format!("a whole number of {from} to {to}"))),
        }
    }

    fn object(&mut self, key: &str) -> ApiResult<Option<Self>> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Self { path: self.at(key), map })),
            Some(_) => Err(self.wrong(key, "an object")),
        }
    }

    /// Refuses the remaining keys, except `idle` ones, `fixed` ones with their only value, and
    /// nulls.
    fn finish(&mut self, idle: &[&str], fixed: &[(&str, &str)]) -> ApiResult<()> {
        for (key, value) in std::mem::take(&mut self.map) {
            let says_nothing = value.is_null()
                || value.as_array().is_some_and(Vec::is_empty)
                || value.as_object().is_some_and(Map::is_empty);
            if says_nothing || idle.contains(&key.as_str()) {
                continue;
            }
            let at = self.at(cut(&key));
            match fixed.iter().find(|(name, _)| *name == key) {
                Some((_, only)) if is_same(&value, only) => {}
                Some((_, only)) => {
                    return Err(ApiError::unsupported(&at, format!("{at} may only be {only}")));
                }
                None => return Err(ApiError::unsupported(&at, format!("{at} is not supported"))),
            }
        }
        Ok(())
    }
}

/// Whether a value equals this JSON; numbers are compared by value.
fn is_same(value: &Value, only: &str) -> bool {
    let only: Value = serde_json::from_str(only).unwrap_or_default();
    match (value.as_f64(), only.as_f64()) {
        (Some(value), Some(only)) => value == only,
        _ => *value == only,
    }
}

/// The first characters of a text from outside.
fn cut(text: &str) -> &str {
    let end = text.char_indices().nth(40).map_or(text.len(), |(at, _)| at);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LIMITS: ChatLimits =
        ChatLimits { messages_max: 4, images_max: 1, image_bytes_max: 6, max_tokens: 100 };

    fn read(value: &Value) -> ApiResult<ChatRequest> {
        ChatRequest::read(value.to_string().as_bytes(), &LIMITS)
    }

    /// A request with one key replaced.
    fn with(key: &str, value: Value) -> Value {
        let mut request = json!({ "model": "m", "messages": [{ "role": "user", "content": "hi" }] });
        request[key] = value;
        request
    }

    #[track_caller]
    fn check(key: &str, value: Value, want: Option<&str>) {
        let shown = value.to_string();
        let got = read(&with(key, value));
        let param = got.as_ref().err().map(|error| error.param.clone().unwrap_or_default());
        assert_eq!(param.as_deref(), want, "{key} = {shown}: {got:?}");
        if let Err(error) = got {
            assert_eq!((error.status, error.kind), (400, "invalid_request_error"));
            assert!(error.message.len() < 300, "{error}");
        }
    }

    #[test]
    fn supported_keys_and_neutral_values_of_others_are_accepted() {
        let fine = [
            ("n", json!(1)),
            ("n", Value::Null),
            ("temperature", json!(0)),
            ("frequency_penalty", json!(0.0)),
            ("tools", json!([])),
            ("logit_bias", json!({})),
            ("user", json!("somebody")),
            ("metadata", json!({ "a": "b" })),
            ("top_k", json!(-1)),
            ("seed", json!(-5)),
            ("top_logprobs", json!(0)),
            ("max_tokens", json!(100)),
            ("stop", json!(["a", "b"])),
            ("response_format", json!({ "type": "text" })),
            ("session_id", json!("a-b_c.D:9")),
        ];
        for (key, value) in fine {
            check(key, value, None);
        }
    }

    #[test]
    fn unsupported_keys_are_refused_by_name() {
        let wrong = [
            ("n", json!(2)),
            ("temperature", json!("hot")),
            ("temperature", json!(-0.1)),
            ("top_p", json!(0)),
            ("top_p", json!(1.5)),
            ("top_k", json!(1.5)),
            ("seed", json!("x")),
            ("max_tokens", json!(0)),
            ("max_tokens", json!(101)),
            ("max_completion_tokens", json!(101)),
            ("stop", json!("")),
            ("stop", json!(["a", "b", "c", "d", "e"])),
            ("stop", json!([1])),
            ("top_logprobs", json!(3)),
            ("top_logprobs", json!(21)),
            ("top_logprobs", json!(-1)),
            ("tools", json!([{ "type": "function" }])),
            ("logit_bias", json!({ "5": 1 })),
            ("presence_penalty", json!(0.5)),
            ("stream", json!(1)),
            ("stream_options", json!({ "include_usage": true })),
            ("session_id", json!("a b")),
            ("session_id", json!("")),
            ("session_id", json!("x".repeat(129))),
            ("reasoning_effort", json!("high")),
            ("surprise", json!(true)),
            ("model", json!(7)),
            ("model", Value::Null),
            ("messages", json!("hi")),
            ("messages", json!([])),
            ("messages", json!([{}, {}, {}, {}, {}])),
        ];
        for (key, value) in wrong {
            check(key, value, Some(key));
        }
        let both = json!({ "model": "m", "messages": [{ "role": "user", "content": "" }], "max_tokens": 2, "max_completion_tokens": 3 });
        assert_eq!(read(&both).unwrap_err().param.as_deref(), Some("max_tokens"));
        let least = read(&with("top_p", json!(0))).unwrap_err();
        assert_eq!(least.message, "top_p must be a number above 0 and at most 1");
    }

    #[test]
    fn a_refused_response_format_names_the_part_that_is_wrong() {
        check("response_format", json!({ "type": "xml" }), Some("response_format.type"));
        check("response_format", json!({ "type": "json_schema" }), Some("response_format.json_schema"));
        check(
            "response_format",
            json!({ "type": "json_schema", "json_schema": { "name": "n" } }),
            Some("response_format.json_schema.schema"),
        );
    }

    #[test]
    fn logprobs_are_for_free_text_with_up_to_20_alternatives() {
        for (top, format, want) in [
            (Value::Null, json!({ "type": "text" }), Some(0)),
            (json!(0), Value::Null, Some(0)),
            (json!(20), Value::Null, Some(20)),
            (json!(21), Value::Null, None),
            (Value::Null, json!({ "type": "json_object" }), None),
        ] {
            let mut payload = with("logprobs", json!(true));
            (payload["top_logprobs"], payload["response_format"]) = (top, format);
            assert_eq!(read(&payload).ok().map(|read| read.logprobs), want.map(Some), "{payload}");
        }
        assert_eq!(read(&with("logprobs", json!(false))).unwrap().logprobs, None);
    }

    #[test]
    fn messages_are_read_in_their_order() {
        let url = "data:image/png;base64,iVBORy4u";
        let image = |url: &str| json!({ "type": "image_url", "image_url": { "url": url, "detail": "high" } });
        let text = json!({ "type": "text", "text": "t" });
        let user = |content: Value| json!({ "role": "user", "content": content });
        let assistant = json!({ "role": "assistant", "content": "a", "refusal": null, "annotations": [] });
        let system = json!({ "role": "developer", "content": "s" });
        let read = read(&with(
            "messages",
            json!([system, user(json!([image(url), text])), assistant, user(json!("u"))]),
        ));
        let of = |role, parts| ChatMessage { role, parts, token_ids: None };
        let text_part = |text: &str| MessagePart::Text(text.into());
        let want = [
            of(Role::System, vec![text_part("s")]),
            of(Role::User, vec![MessagePart::Image(Bytes::from_static(b"\x89PNG..")), text_part("t")]),
            of(Role::Assistant, vec![text_part("a")]),
            of(Role::User, vec![text_part("u")]),
        ];
        assert_eq!(read.unwrap().messages, want);

        let table = [
            (json!([system]), "messages[0].role"),
            (json!([assistant, user(json!("u"))]), "messages[0].role"),
            (json!([user(json!("u")), system, user(json!("u"))]), "messages[1].role"),
            (json!([system, assistant, user(json!("u"))]), "messages[1].role"),
            (json!([user(json!("u")), assistant, assistant, user(json!("u"))]), "messages[2].role"),
            (json!([user(json!("u")), assistant]), "messages[1].role"),
            (json!([{ "role": "tool", "content": "x" }]), "messages[0].role"),
            (json!([{ "role": "user" }]), "messages[0].content"),
            (json!([{ "role": "user", "content": [] }]), "messages[0].content"),
            (json!([{ "role": "user", "content": 7 }]), "messages[0].content"),
            (json!([{ "role": "user", "content": "x", "name": "eve" }]), "messages[0].name"),
            (json!([{ "role": "user", "content": "x", "token_ids": [1] }]), "messages[0].token_ids"),
            (json!(["x"]), "messages[0]"),
            (json!([user(json!(["x"]))]), "messages[0].content[0]"),
            (json!([user(json!([{ "type": "input_audio" }]))]), "messages[0].content[0].type"),
            (json!([user(json!([image(url), image(url)]))]), "messages[0].content[1].image_url"),
            (
                json!([{ "role": "system", "content": [image(url)] }, user(json!("u"))]),
                "messages[0].content[0].type",
            ),
        ];
        for (messages, param) in table {
            check("messages", messages, Some(param));
        }
        for url in [
            "http://127.0.0.1/x.png",
            "https://example.test/x.png",
            "file:///etc/passwd",
            "data:image/png,raw",
            "data:text/html;base64,PGI+",
            "data:image/png;base64,****",
            "data:image/png;base64,",
            "data:image/png;base64,iVBORy4uLi4u",
            "data:image/png;base64",
            "",
        ] {
            check(
                "messages",
                json!([user(json!([image(url)]))]),
                Some("messages[0].content[0].image_url.url"),
            );
        }
    }

    #[test]
    fn a_body_that_is_no_object_is_refused() {
        let many = format!("{{\"x\":[0{}]}}", ",0".repeat(PIECES_MAX));
        let refused = ChatRequest::read(many.as_bytes(), &LIMITS).unwrap_err();
        assert!(refused.message.contains("values"), "{refused}");
        let texts = with("user", json!(",:[{\\\"".repeat(PIECES_MAX)));
        assert!(read(&texts).is_ok(), "separators inside a string do not count");
        let deep = "[".repeat(100_000);
        for body in ["", "null", "[]", "{", "\u{0}", "{\"model\":\"m\"}", &deep] {
            assert_eq!(ChatRequest::read(body.as_bytes(), &LIMITS).unwrap_err().status, 400);
        }
    }
}
