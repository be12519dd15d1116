//! The messages of a chat: their roles and parts, and the order that a prompt can have.

use bytes::Bytes;
use serde_json::Value;

use super::ApiError;
use super::keys::{ApiResult, IgnoredForm, IgnoredKey, RequestKeys, cut};
use super::options::ChatLimits;
use super::picture::PictureBudget;
use super::tool_call::ToolCall;
use super::tools;
use crate::chat::Role;

#[derive(Debug, Clone, PartialEq)]
pub struct ChatMessage {
    /// Results of calls have the role of the user.
    pub role: Role,
    /// Texts, images, calls and results in order. Only a user's message has images and results,
    /// and only an assistant's has calls.
    pub parts: Vec<MessagePart>,
    /// Ids of an assistant's message, as the server returned them. They are used as they are
    /// instead of tokenising the text. An extension.
    pub token_ids: Option<Vec<u32>>,
    /// Path of the message in the request, for errors.
    pub path: String,
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum MessagePart {
    Text(String),
    /// An image as it was encoded.
    Image(Bytes),
    /// A call that the assistant made.
    Call(ToolCall),
    /// The text that a call returned.
    CallResult(String),
}

/// A message as it was sent.
#[derive(Debug)]
pub(super) struct ReadMessage {
    pub author: MessageAuthor,
    pub message: ChatMessage,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MessageAuthor {
    System,
    User,
    Assistant,
    /// A function, in answer to the call with this id. The path is that of the id.
    Tool {
        call_id: String,
        path: String,
    },
}

pub(super) fn take(keys: &mut RequestKeys, limits: &ChatLimits) -> ApiResult<Vec<ChatMessage>> {
    let list = keys.list("messages")?.ok_or_else(|| keys.missing("messages"))?;
    check_count("messages", list.len(), limits)?;
    let mut pictures = PictureBudget::new(limits.images_max, limits.image_bytes_max);
    let mut read = Vec::with_capacity(list.len());
    for (index, message) in list.into_iter().enumerate() {
        let right = "a message must be an object with role and content";
        let part = RequestKeys::of_part(format!("messages[{index}]"), message, right)?;
        let (message, ignored) = read_message(part, &mut pictures)?;
        keys.ignored.extend(ignored);
        read.push(message);
    }
    arrange(read, "role")
}

pub(super) fn check_count(key: &str, count: usize, limits: &ChatLimits) -> ApiResult<()> {
    let most = limits.messages_max;
    if (1..=most).contains(&count) {
        return Ok(());
    }
    Err(ApiError::invalid(key, format!("there are {count} {key}; send 1 to {most}")))
}

/// Brings messages into the order of a prompt: the instructions first, then turns of user and
/// assistant, the last one the user's. `key` is the key that a wrong order is reported for.
pub(super) fn arrange(read: Vec<ReadMessage>, key: &str) -> ApiResult<Vec<ChatMessage>> {
    let leading = read.iter().take_while(|read| read.author == MessageAuthor::System).count();
    let mut read = read.into_iter();
    let mut arranged = instructions(read.by_ref().take(leading));
    let mut turns = read.peekable();
    let mut calls: Vec<ToolCall> = Vec::new();
    let mut last = Role::System;
    while let Some(ReadMessage { author, mut message }) = turns.next() {
        let at = format!("{}.{key}", message.path);
        match author {
            MessageAuthor::Assistant if last != Role::User => {
                return Err(ApiError::unsupported(at, "an assistant's message must follow a user's"));
            }
            MessageAuthor::Assistant => {
                calls = message.parts.iter().filter_map(MessagePart::call).cloned().collect();
                arranged.push(message);
                last = Role::Assistant;
            }
            MessageAuthor::Tool { .. } => {
                let mut results = vec![ReadMessage { author, message }];
                let is_result = |next: &ReadMessage| matches!(next.author, MessageAuthor::Tool { .. });
                while let Some(next) = turns.next_if(is_result) {
                    results.push(next);
                }
                arranged.extend(in_order_of(&calls, results)?);
                calls.clear();
                last = Role::User;
            }
            // Instructions in the middle of a chat have no form in a layout; they count as what the
            // user says.
            MessageAuthor::System | MessageAuthor::User => {
                message.role = Role::User;
                arranged.push(message);
                last = Role::User;
            }
        }
    }
    if last == Role::User {
        return Ok(arranged);
    }
    let at = arranged.last().map_or_else(String::new, |message| format!("{}.{key}", message.path));
    let why = "the last message must be a user's or a tool's; replies cannot be continued";
    Err(ApiError::unsupported(at, why))
}

/// The system messages at the start as one, with an empty line between two.
fn instructions(leading: impl Iterator<Item = ReadMessage>) -> Vec<ChatMessage> {
    let mut joined: Option<ChatMessage> = None;
    for ReadMessage { message, .. } in leading {
        match &mut joined {
            None => joined = Some(message),
            Some(first) => {
                first.parts.push(MessagePart::Text("\n\n".to_owned()));
                first.parts.extend(message.parts);
            }
        }
    }
    joined.into_iter().collect()
}

/// Results in the order of the calls that they answer.
fn in_order_of(calls: &[ToolCall], results: Vec<ReadMessage>) -> ApiResult<Vec<ChatMessage>> {
    let mut ordered: Vec<(usize, ChatMessage)> = Vec::with_capacity(results.len());
    for ReadMessage { author, message } in results {
        let MessageAuthor::Tool { call_id, path } = author else { continue };
        let Some(index) = calls.iter().position(|call| call.id == call_id) else {
            let id = cut(&call_id);
            let why = format!("{id:?} is not the id of a call in the assistant's message before it");
            return Err(ApiError::invalid(path, why));
        };
        if ordered.iter().any(|(other, _)| *other == index) {
            return Err(ApiError::invalid(path, "this call has two results; send one"));
        }
        ordered.push((index, message));
    }
    ordered.sort_by_key(|(index, _)| *index);
    Ok(ordered.into_iter().map(|(_, message)| message).collect())
}

impl MessagePart {
    fn call(&self) -> Option<&ToolCall> {
        if let Self::Call(call) = self { Some(call) } else { None }
    }
}

/// A message, and the paths of its keys that are ignored.
fn read_message(
    mut keys: RequestKeys,
    pictures: &mut PictureBudget,
) -> ApiResult<(ReadMessage, Vec<String>)> {
    let path = keys.path().to_owned();
    let role = keys.needed_text("role")?;
    let author = match role.as_str() {
        "system" | "developer" => MessageAuthor::System,
        "user" => MessageAuthor::User,
        "assistant" => MessageAuthor::Assistant,
        "tool" => {
            let id_path = keys.at("tool_call_id");
            MessageAuthor::Tool { call_id: keys.needed_text("tool_call_id")?, path: id_path }
        }
        other => {
            let why = format!("role {:?} is not supported; use system, user, assistant or tool", cut(other));
            return Err(ApiError::unsupported(keys.at("role"), why));
        }
    };
    let calls = if author == MessageAuthor::Assistant { tools::calls(&mut keys)? } else { Vec::new() };
    let mut parts = content(&mut keys, &author, pictures, calls.is_empty())?;
    if let MessageAuthor::Tool { .. } = author {
        parts = vec![MessagePart::CallResult(joined_text(parts))];
    }
    parts.extend(calls.into_iter().map(MessagePart::Call));
    if author == MessageAuthor::Assistant {
        // The official client adds what it read from the content.
        keys.take("parsed");
    }
    let token_ids = token_ids(&mut keys, &author)?;
    let named = IgnoredKey { name: "name", form: IgnoredForm::Text };
    let ignored = keys.finish(&[named], &[])?;
    let role = match author {
        MessageAuthor::System => Role::System,
        MessageAuthor::Assistant => Role::Assistant,
        MessageAuthor::User | MessageAuthor::Tool { .. } => Role::User,
    };
    Ok((ReadMessage { author, message: ChatMessage { role, parts, token_ids, path } }, ignored))
}

/// The texts of parts, one after another. The first is not copied: it may be the whole request.
pub(super) fn joined_text(parts: Vec<MessagePart>) -> String {
    let text = |part| if let MessagePart::Text(text) = part { Some(text) } else { None };
    let mut texts = parts.into_iter().filter_map(text);
    let mut joined = texts.next().unwrap_or_default();
    joined.extend(texts);
    joined
}

fn content(
    keys: &mut RequestKeys,
    author: &MessageAuthor,
    pictures: &mut PictureBudget,
    is_needed: bool,
) -> ApiResult<Vec<MessagePart>> {
    let wrong = |keys: &RequestKeys| keys.wrong("content", "a text or a list of at least one part");
    let list = match keys.take("content") {
        Some(Value::String(text)) => return Ok(vec![MessagePart::Text(text)]),
        Some(Value::Array(list)) if !list.is_empty() || !is_needed => list,
        Some(_) => return Err(wrong(keys)),
        None if is_needed => return Err(keys.missing("content")),
        None => return Ok(Vec::new()),
    };
    let mut parts = Vec::with_capacity(list.len().min(64));
    for (index, part) in list.into_iter().enumerate() {
        let path = keys.at(&format!("content[{index}]"));
        let part = RequestKeys::of_part(path, part, "a part must be an object with a type")?;
        parts.push(part_of(part, author, pictures)?);
    }
    Ok(parts)
}

fn token_ids(keys: &mut RequestKeys, author: &MessageAuthor) -> ApiResult<Option<Vec<u32>>> {
    match keys.take("token_ids") {
        None => Ok(None),
        Some(_) if *author != MessageAuthor::Assistant => {
            let why = "only an assistant's message may have token_ids";
            Err(ApiError::invalid(keys.at("token_ids"), why))
        }
        Some(ids) => match serde_json::from_value::<Vec<u32>>(ids) {
            Ok(ids) if !ids.is_empty() => Ok(Some(ids)),
            _ => {
                let why = "token_ids must be a list of ids, as it was returned";
                Err(ApiError::invalid(keys.at("token_ids"), why))
            }
        },
    }
}

fn part_of(
    mut keys: RequestKeys,
    author: &MessageAuthor,
    pictures: &mut PictureBudget,
) -> ApiResult<MessagePart> {
    let kind = keys.needed_text("type")?;
    let part = match kind.as_str() {
        "text" => MessagePart::Text(keys.needed_text("text")?),
        "image_url" if *author != MessageAuthor::User => {
            return Err(ApiError::unsupported(keys.at("type"), "only a user's message may have images"));
        }
        "image_url" => {
            let mut image = keys.object("image_url")?.ok_or_else(|| keys.missing("image_url"))?;
            let url = image.needed_text("url")?;
            let path = image.at("url");
            // All images are cut as the checkpoint's processor cuts them.
            image.finish(&[IgnoredKey { name: "detail", form: IgnoredForm::Any }], &[])?;
            MessagePart::Image(pictures.take(&url, keys.at("image_url"), path)?)
        }
        other => {
            let why = format!("parts of type {:?} are not supported; use text or image_url", cut(other));
            return Err(ApiError::unsupported(keys.at("type"), why));
        }
    };
    // Marks for a cache of prompts, which some clients add.
    keys.finish(&[IgnoredKey { name: "cache_control", form: IgnoredForm::Any }], &[])?;
    Ok(part)
}
