//! Parses requests of `/responses`: items become the messages of a chat.

use serde_json::{Map, Value};

use super::ApiError;
use super::format::ResponseFormat;
use super::keys::{ApiResult, IgnoredForm, IgnoredKey, RequestKeys, cut, without_indices};
use super::messages::{self, ChatMessage, MessageAuthor, MessagePart, ReadMessage};
use super::options::{ChatLimits, FIXED, GenerationOptions, IGNORED, TOP_LOGPROBS_MAX};
use super::picture::PictureBudget;
use super::request::ChatRequest;
use super::tools::{self, ToolForm, ToolUse};
use crate::chat::Role;

#[derive(Debug, Clone, PartialEq)]
pub struct ResponsesRequest {
    pub chat: ChatRequest,
    /// Keys that the answer repeats.
    pub repeated: RepeatedKeys,
}

/// Keys of a request as they were sent, which its answer repeats.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RepeatedKeys(pub(super) Map<String, Value>);

const REPEATED: [&str; 7] =
    ["instructions", "metadata", "tools", "tool_choice", "parallel_tool_calls", "text", "max_output_tokens"];

/// Keys of this route that are accepted and ignored.
const IGNORED_HERE: [IgnoredKey; 3] = [
    IgnoredKey { name: "reasoning", form: IgnoredForm::Any },
    // What is too long is refused, whatever may be left out.
    IgnoredKey { name: "truncation", form: IgnoredForm::TextBut(&["disabled"]) },
    // Counts calls of tools that the server runs, and it runs none.
    IgnoredKey { name: "max_tool_calls", form: IgnoredForm::Number { from: 1.0, to: 1e9, neutral: 0.0 } },
];
/// Keys of an item that name it or describe its state.
const OF_ITEM: [IgnoredKey; 4] = [
    IgnoredKey { name: "id", form: IgnoredForm::TextBut(&[]) },
    IgnoredKey { name: "status", form: IgnoredForm::Text },
    IgnoredKey { name: "phase", form: IgnoredForm::Text },
    IgnoredKey { name: "name", form: IgnoredForm::Text },
];
/// Of the answer's parts that a request can ask for, these are known.
const LOGPROBS: &str = "message.output_text.logprobs";
const IGNORED_PARTS: [&str; 1] = ["reasoning.encrypted_content"];

impl ResponsesRequest {
    /// Parses the body of a request and returns the first error in it.
    pub fn read(body: &[u8], limits: &ChatLimits) -> ApiResult<Self> {
        let mut keys = RequestKeys::of_body(body)?;
        let repeated = keys.copies(&REPEATED);
        let mut options = GenerationOptions::take(&mut keys, limits, &["max_output_tokens"])?;
        if options.choices != 1 {
            return Err(ApiError::unsupported("n", "a response has one reply; use /v1/chat/completions"));
        }
        if options.return_token_ids {
            let why = "items have no field for token ids; use /v1/chat/completions";
            return Err(ApiError::unsupported("return_token_ids", why));
        }
        refuse_state(&mut keys)?;
        options.logprobs = logprobs(&mut keys)?;
        let messages = input(&mut keys, limits)?;
        let tools = ToolUse::take(&mut keys, ToolForm::Flat)?;
        let format = format(&mut keys)?;
        let ignored = [&IGNORED[..], &IGNORED_HERE].concat();
        let fixed = [&FIXED[..], &[("background", "false")]].concat();
        options.ignored = keys.finish(&ignored, &fixed)?;
        let chat = ChatRequest { messages, tools, format, options }.checked("text.format")?;
        Ok(Self { chat, repeated: RepeatedKeys(repeated) })
    }
}

/// Refuses keys that refer to what a server keeps of earlier responses.
fn refuse_state(keys: &mut RequestKeys) -> ApiResult<()> {
    for key in ["previous_response_id", "conversation", "prompt"] {
        if keys.take(key).is_some() {
            let why = format!(
                "responses are not stored, so {key} refers to nothing; send the whole input, and session_id to keep its state"
            );
            return Err(ApiError::unsupported(key, why));
        }
    }
    Ok(())
}

fn logprobs(keys: &mut RequestKeys) -> ApiResult<Option<u32>> {
    let mut is_requested = false;
    for (index, part) in keys.list("include")?.unwrap_or_default().into_iter().enumerate() {
        match part.as_str() {
            Some(LOGPROBS) => is_requested = true,
            Some(part) if IGNORED_PARTS.contains(&part) => keys.ignored.push(format!("include.{part}")),
            _ => {
                let why = format!("this part is not known; use {LOGPROBS}");
                return Err(ApiError::unsupported(format!("include[{index}]"), why));
            }
        }
    }
    match keys.whole("top_logprobs", 0, TOP_LOGPROBS_MAX)? {
        Some(count @ 1..) if !is_requested => {
            let why = format!("top_logprobs is {count} and needs include = [{LOGPROBS:?}]");
            Err(ApiError::invalid("top_logprobs", why))
        }
        count => Ok(is_requested.then_some(count.unwrap_or(0) as u32)),
    }
}

fn format(keys: &mut RequestKeys) -> ApiResult<ResponseFormat> {
    let Some(mut text) = keys.object("text")? else { return Ok(ResponseFormat::Text) };
    let format = ResponseFormat::take_flat(&mut text)?;
    let verbosity = IgnoredKey { name: "verbosity", form: IgnoredForm::TextBut(&["medium"]) };
    keys.ignored.extend(text.finish(&[verbosity], &[])?);
    Ok(format)
}

/// The messages of `instructions` and `input`.
fn input(keys: &mut RequestKeys, limits: &ChatLimits) -> ApiResult<Vec<ChatMessage>> {
    let mut read = Vec::new();
    if let Some(text) = keys.text("instructions")? {
        read.push(text_message(MessageAuthor::System, text, "instructions"));
    }
    match keys.take("input") {
        None => return Err(keys.missing("input")),
        Some(Value::String(text)) => read.push(text_message(MessageAuthor::User, text, "input")),
        Some(Value::Array(list)) => {
            messages::check_count("input", list.len(), limits)?;
            let mut reader = ItemReader {
                pictures: PictureBudget::new(limits.images_max, limits.image_bytes_max),
                ignored: Vec::new(),
            };
            for (index, item) in list.into_iter().enumerate() {
                let right = "an item must be an object with a type, or with role and content";
                let item = RequestKeys::of_part(format!("input[{index}]"), item, right)?;
                reader.item(item, &mut read)?;
            }
            keys.ignored.extend(reader.ignored);
        }
        Some(_) => return Err(keys.wrong("input", "a text or a list of items")),
    }
    messages::arrange(read, "type")
}

fn text_message(author: MessageAuthor, text: String, path: &str) -> ReadMessage {
    let role = if author == MessageAuthor::System { Role::System } else { Role::User };
    let parts = vec![MessagePart::Text(text)];
    ReadMessage { author, message: ChatMessage { role, parts, token_ids: None, path: path.to_owned() } }
}

struct ItemReader {
    pictures: PictureBudget,
    ignored: Vec<String>,
}

impl ItemReader {
    /// Adds an item to the messages. Consecutive items of the assistant are one reply.
    fn item(&mut self, mut keys: RequestKeys, read: &mut Vec<ReadMessage>) -> ApiResult<()> {
        let kind = keys.text("type")?.unwrap_or_else(|| "message".to_owned());
        let path = keys.path().to_owned();
        let (author, parts) = match kind.as_str() {
            "message" => self.message(&mut keys)?,
            "function_call" => {
                let call = tools::call_of(keys.needed_text("call_id")?, &mut keys)?;
                (MessageAuthor::Assistant, vec![MessagePart::Call(call)])
            }
            "function_call_output" => self.call_output(&mut keys)?,
            // Reasoning of another model cannot be shown to this one.
            "reasoning" => {
                self.ignored.push(without_indices(&format!("{path}.reasoning")));
                return Ok(());
            }
            other => {
                let why = format!(
                    "items of type {:?} are not supported; use message, function_call or function_call_output",
                    cut(other)
                );
                return Err(ApiError::unsupported(keys.at("type"), why));
            }
        };
        // Which item of an earlier response this was does not matter.
        keys.finish(&OF_ITEM, &[])?;
        let before = read.last_mut().filter(|before| before.author == MessageAuthor::Assistant);
        match before {
            Some(before) if author == MessageAuthor::Assistant => before.message.parts.extend(parts),
            _ => {
                let role = match author {
                    MessageAuthor::System => Role::System,
                    MessageAuthor::Assistant => Role::Assistant,
                    MessageAuthor::User | MessageAuthor::Tool { .. } => Role::User,
                };
                read.push(ReadMessage {
                    author,
                    message: ChatMessage { role, parts, token_ids: None, path },
                });
            }
        }
        Ok(())
    }

    fn message(&mut self, keys: &mut RequestKeys) -> ApiResult<(MessageAuthor, Vec<MessagePart>)> {
        let role = keys.needed_text("role")?;
        let author = match role.as_str() {
            "system" | "developer" => MessageAuthor::System,
            "user" => MessageAuthor::User,
            "assistant" => MessageAuthor::Assistant,
            other => {
                let why = format!("role {:?} is not supported; use system, user or assistant", cut(other));
                return Err(ApiError::unsupported(keys.at("role"), why));
            }
        };
        let parts = self.content(keys, "content", author == MessageAuthor::User)?;
        Ok((author, parts))
    }

    fn call_output(&mut self, keys: &mut RequestKeys) -> ApiResult<(MessageAuthor, Vec<MessagePart>)> {
        let path = keys.at("call_id");
        let call_id = keys.needed_text("call_id")?;
        let output = self.content(keys, "output", true)?;
        let is_picture = |part: &MessagePart| matches!(part, MessagePart::Image(_));
        let (pictures, texts): (Vec<_>, Vec<_>) = output.into_iter().partition(is_picture);
        let result = MessagePart::CallResult(messages::joined_text(texts));
        let parts = std::iter::once(result).chain(pictures).collect();
        Ok((MessageAuthor::Tool { call_id, path }, parts))
    }

    fn content(
        &mut self,
        keys: &mut RequestKeys,
        key: &str,
        may_have_images: bool,
    ) -> ApiResult<Vec<MessagePart>> {
        let list = match keys.take(key) {
            None => return Err(keys.missing(key)),
            Some(Value::String(text)) => return Ok(vec![MessagePart::Text(text)]),
            Some(Value::Array(list)) => list,
            Some(_) => return Err(keys.wrong(key, "a text or a list of parts")),
        };
        let mut parts = Vec::with_capacity(list.len().min(64));
        for (index, part) in list.into_iter().enumerate() {
            let path = keys.at(&format!("{key}[{index}]"));
            let part = RequestKeys::of_part(path, part, "a part must be an object with a type")?;
            parts.push(self.part(part, may_have_images)?);
        }
        Ok(parts)
    }

    fn part(&mut self, mut keys: RequestKeys, may_be_image: bool) -> ApiResult<MessagePart> {
        let kind = keys.needed_text("type")?;
        let part = match kind.as_str() {
            "input_text" | "output_text" | "text" => MessagePart::Text(keys.needed_text("text")?),
            "input_image" if !may_be_image => {
                let why = "only a user's message and the output of a call may have images";
                return Err(ApiError::unsupported(keys.at("type"), why));
            }
            "input_image" => {
                if keys.take("file_id").is_some() {
                    let why = "files are not stored; send the image itself as image_url";
                    return Err(ApiError::unsupported(keys.at("file_id"), why));
                }
                let url = keys.needed_text("image_url")?;
                let path = keys.at("image_url");
                MessagePart::Image(self.pictures.take(&url, path.clone(), path)?)
            }
            other => {
                let why = format!(
                    "parts of type {:?} are not supported; use input_text, input_image or output_text",
                    cut(other)
                );
                return Err(ApiError::unsupported(keys.at("type"), why));
            }
        };
        let without_effect = ["detail", "annotations", "logprobs", "parsed"]
            .map(|name| IgnoredKey { name, form: IgnoredForm::Any });
        keys.finish(&without_effect, &[])?;
        Ok(part)
    }
}
