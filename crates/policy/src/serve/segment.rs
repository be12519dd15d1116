//! The tokens of a request's prompt: a chat in the checkpoint's layout, or a text as it is.

use std::sync::Arc;

use bytes::Bytes;
use furrow_model::template::{ChatContent, RenderedChat};
use furrow_openai::Role;
use furrow_openai::server::{ApiError, ChatMessage, FunctionTool, MessagePart, Prompt};

use super::errors::{ApiResult, run_blocking, too_long};
use crate::model::ChatEngine;
use crate::sequence::{PositionedImage, TiledImage, TokenSegment};
use crate::tool_text;

/// A chat whose prompt is built.
#[derive(Debug)]
pub(super) struct ChatPrompt {
    pub messages: Vec<ChatMessage>,
    /// Functions that the instructions describe.
    pub functions: Vec<FunctionTool>,
}

/// Refuses texts that have more bytes than the context's tokens can have, before one is hashed,
/// copied or tokenised.
pub(super) fn texts_fit(chat_engine: &ChatEngine, messages: &[ChatMessage]) -> ApiResult<()> {
    let most = chat_engine.context_tokens_max() as usize;
    let tokenizer = chat_engine.template().tokenizer();
    let bytes = |is_reply: bool| -> usize {
        let texts = messages.iter().filter(|message| (message.role == Role::Assistant) == is_reply);
        texts.flat_map(|message| &message.parts).map(text_bytes).sum()
    };
    check_bytes(bytes(false), "bytes of text", most, tokenizer.encoded_bytes_max(most))?;
    // The text of a reply that is held as tokens is longer where they are no UTF-8.
    let replies_max = tokenizer.decoded_bytes_max(most).max(tokenizer.encoded_bytes_max(most));
    check_bytes(bytes(true), "bytes of replies", most, replies_max)
}

fn check_bytes(bytes: usize, of: &str, tokens: usize, bytes_max: usize) -> ApiResult<()> {
    if bytes <= bytes_max {
        return Ok(());
    }
    Err(too_long(format!("there are {bytes} {of}; the context's {tokens} tokens have at most {bytes_max}")))
}

fn text_bytes(part: &MessagePart) -> usize {
    match part {
        MessagePart::Text(text) | MessagePart::CallResult(text) => text.len(),
        MessagePart::Call(call) => call.name.len() + call.arguments.len(),
        MessagePart::Image(_) => 0,
    }
}

/// Builds the segment of the messages from an index on, with images cut into tiles.
pub(super) async fn of_chat(
    chat_engine: &ChatEngine,
    prompt: ChatPrompt,
    from: usize,
) -> ApiResult<TokenSegment> {
    let shared = Arc::new(prompt);
    let engine = chat_engine.clone();
    let prompt = shared.clone();
    run_blocking(move || pictures_fit(&engine, &prompt.messages, from)).await?;
    let mut pictures: Vec<Arc<TiledImage>> = Vec::new();
    for (message, encoded) in pictures_of(&shared.messages, from) {
        let picture = chat_engine.picture(encoded.clone()).await;
        pictures.push(picture.map_err(|why| unreadable(message, &why))?);
    }
    let engine = chat_engine.clone();
    run_blocking(move || ChatSegmentBuilder::new(&engine, pictures).build(&shared, from)).await
}

/// Builds the segment of a prompt without a layout.
pub(super) async fn of_prompt(chat_engine: &ChatEngine, prompt: Prompt) -> ApiResult<TokenSegment> {
    let engine = chat_engine.clone();
    if let Prompt::Text(text) = &prompt {
        let most = engine.context_tokens_max() as usize;
        let bytes_max = engine.template().tokenizer().encoded_bytes_max(most);
        check_bytes(text.len(), "bytes of the prompt", most, bytes_max)?;
    }
    let building = move || {
        let ids = match prompt {
            Prompt::Text(text) => engine.template().tokenizer().encode(&text),
            Prompt::Ids(ids) => ids,
        };
        match ids.iter().find(|id| !engine.knows(**id)) {
            Some(stranger) => {
                let why = format!("token id {stranger} is not in this model's vocabulary");
                Err(ApiError::invalid("prompt", why))
            }
            None => Ok(TokenSegment::text(ids)),
        }
    };
    run_blocking(building).await
}

/// Builds the segment of a chat's messages.
struct ChatSegmentBuilder<'a> {
    chat_engine: &'a ChatEngine,
    pictures: std::vec::IntoIter<Arc<TiledImage>>,
    segment: TokenSegment,
}

impl<'a> ChatSegmentBuilder<'a> {
    fn new(chat_engine: &'a ChatEngine, pictures: Vec<Arc<TiledImage>>) -> Self {
        Self { chat_engine, pictures: pictures.into_iter(), segment: TokenSegment::default() }
    }

    /// Consecutive user messages form one turn, because the template has no form for two.
    fn build(mut self, prompt: &ChatPrompt, from: usize) -> ApiResult<TokenSegment> {
        let ChatPrompt { messages, functions } = prompt;
        let with_functions = |text: String| match functions.is_empty() {
            true => text,
            false => tool_text::with_functions(&text, functions),
        };
        let mut instructions = (from == 0).then(|| with_functions(String::new()));
        let mut turn: Vec<&MessagePart> = Vec::new();
        for message in messages.iter().skip(from) {
            match message.role {
                Role::System => instructions = Some(with_functions(tool_text::message_text(&message.parts))),
                Role::User => turn.extend(&message.parts),
                Role::Assistant => {
                    self.turn(instructions.take().as_deref(), &std::mem::take(&mut turn));
                    self.reply(message)?;
                }
            }
        }
        self.turn(instructions.as_deref(), &turn);
        Ok(self.segment)
    }

    fn turn(&mut self, instructions: Option<&str>, parts: &[&MessagePart]) {
        let shown: Vec<(&MessagePart, Option<Arc<TiledImage>>)> =
            parts.iter().map(|part| (*part, image(part).and_then(|_| self.pictures.next()))).collect();
        let texts: Vec<String> = parts.iter().map(|part| tool_text::part_text(part)).collect();
        let content: Vec<ChatContent<'_>> = shown
            .iter()
            .zip(&texts)
            .map(|((part, picture), text)| match part {
                MessagePart::Image(_) => {
                    ChatContent::Image { rows: picture.as_ref().map_or(0, |picture| picture.rows() as usize) }
                }
                _ => ChatContent::Text(text),
            })
            .collect();
        let template = self.chat_engine.template();
        let RenderedChat { ids, images } = match instructions {
            Some(instructions) => template.render_first(instructions, &content),
            None => template.render_later(&content),
        };
        let start = self.segment.ids.len() as u32;
        let pictures = shown.into_iter().filter_map(|(_, picture)| picture);
        let positioned =
            images.into_iter().zip(pictures).map(|(at, picture)| PositionedImage { at: start + at, picture });
        self.segment.pictures.extend(positioned);
        self.segment.ids.extend(ids);
    }

    /// Adds an earlier reply and the stop id that ends it. Its ids are used if the request has
    /// them; otherwise its text is tokenised.
    fn reply(&mut self, message: &ChatMessage) -> ApiResult<()> {
        let template = self.chat_engine.template();
        let stop = template.stop();
        let ids = match &message.token_ids {
            None => template.tokenizer().encode(&tool_text::message_text(&message.parts)),
            Some(ids) => {
                let wrong =
                    |why: &str| ApiError::invalid(format!("{}.token_ids", message.path), why.to_owned());
                if let Some(stranger) = ids.iter().find(|id| !self.chat_engine.knows(**id)) {
                    return Err(wrong(&format!("token id {stranger} is not in this model's vocabulary")));
                }
                // A reply ends with its first stop id. Other special tokens can have been sampled.
                if ids.strip_suffix(&[stop]).unwrap_or(ids).contains(&stop) {
                    return Err(wrong(&format!("token id {stop} ends a reply; it may only be the last")));
                }
                if !begins_with_texts(&template.tokenizer().decode(ids), message) {
                    return Err(wrong("these ids do not decode to the content beside them"));
                }
                ids.clone()
            }
        };
        let is_ended = ids.last() == Some(&stop);
        self.segment.ids.extend(ids);
        if !is_ended {
            self.segment.ids.push(stop);
        }
        Ok(())
    }
}

/// Images of the messages from an index on, each with its message.
fn pictures_of(received: &[ChatMessage], from: usize) -> impl Iterator<Item = (&ChatMessage, &Bytes)> {
    let messages = received.iter().skip(from);
    messages.flat_map(|message| message.parts.iter().filter_map(image).map(move |image| (message, image)))
}

/// Refuses more images than fit before one is decoded, because pixels take far more memory than the
/// file.
fn pictures_fit(chat_engine: &ChatEngine, messages: &[ChatMessage], from: usize) -> ApiResult<()> {
    let mut rows = 0u64;
    let most = chat_engine.context_tokens_max();
    for (message, encoded) in pictures_of(messages, from) {
        rows += u64::from(chat_engine.picture_rows(encoded).map_err(|why| unreadable(message, &why))?);
        if rows >= u64::from(most) {
            let path = &message.path;
            return Err(too_long(format!(
                "the images up to {path} take {rows} tokens; all must be below {most}"
            )));
        }
    }
    Ok(())
}

fn unreadable(message: &ChatMessage, why: &str) -> ApiError {
    ApiError::invalid(format!("{}.content", message.path), format!("the image cannot be read: {why}"))
}

fn image(part: &MessagePart) -> Option<&Bytes> {
    if let MessagePart::Image(encoded) = part { Some(encoded) } else { None }
}

/// Whether a text begins with the texts of a message, its calls aside.
fn begins_with_texts(text: &str, message: &ChatMessage) -> bool {
    let mut rest = Some(text);
    for part in &message.parts {
        if let MessagePart::Text(text) = part {
            rest = rest.and_then(|rest| rest.strip_prefix(text.as_str()));
        }
    }
    rest.is_some()
}
