//! Any chat in the form of the layouts: the text between instructions, contents and replies comes
//! from the layouts of the two turns.
//!
//! A content is texts and images in any order, joined by what the layout has between its text and
//! its image. One text followed by one image therefore gives exactly the ids of `first_turn` and
//! `later_turn`.

use super::layout::{ImageMarkIds, LayoutChunk, TemplateField, TurnLayout};
use crate::tokenizer::Tokenizer;

/// Fixed parts of a chat.
#[derive(Debug, Clone)]
pub(super) struct ChatLayout {
    open: Vec<LayoutChunk>,
    first: ContentFrame,
    later: ContentFrame,
}

/// The parts around a content.
#[derive(Debug, Clone)]
struct ContentFrame {
    before: Vec<LayoutChunk>,
    between: Vec<LayoutChunk>,
    /// Text up to where the reply begins.
    after: Vec<LayoutChunk>,
}

/// A part of a user message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChatContent<'a> {
    /// Text, never searched for marks.
    Text(&'a str),
    /// An image of this many rows.
    Image { rows: usize },
}

/// Ids of a part of a chat.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RenderedChat {
    /// The ids, placeholders included.
    pub ids: Vec<u32>,
    /// Index of each image's first placeholder, in order.
    pub images: Vec<u32>,
}

impl ChatLayout {
    /// Takes the parts from the layouts; `None` if instructions are not first.
    pub(super) fn of(first: &TurnLayout, later: &TurnLayout) -> Option<Self> {
        let first = first.chunks();
        let at = first.iter().position(|chunk| *chunk == LayoutChunk::Slot(TemplateField::Instructions))?;
        let first_frame = ContentFrame::of(&first[at + 1..], TemplateField::Task)?;
        Some(Self {
            open: first[..at].to_vec(),
            first: first_frame,
            later: ContentFrame::of(later.chunks(), TemplateField::Outcome)?,
        })
    }

    /// The beginning of a chat, up to where the reply begins.
    pub(super) fn render_first(
        &self,
        mut writer: ChatWriter<'_>,
        instructions: &str,
        content: &[ChatContent<'_>],
    ) -> RenderedChat {
        writer.fixed(&self.open);
        writer.text.push_str(instructions);
        writer.content(&self.first, content);
        writer.rendered
    }

    /// Text after a reply and its stop id, up to where the next reply begins.
    pub(super) fn render_later(
        &self,
        mut writer: ChatWriter<'_>,
        content: &[ChatContent<'_>],
    ) -> RenderedChat {
        writer.content(&self.later, content);
        writer.rendered
    }
}

impl ContentFrame {
    /// Text and image in either order, and no other field.
    fn of(chunks: &[LayoutChunk], text_field: TemplateField) -> Option<Self> {
        let position = |slot| chunks.iter().position(|chunk| *chunk == LayoutChunk::Slot(slot));
        let text_at = position(text_field)?;
        let image = position(TemplateField::Image)?;
        let one = text_at.min(image);
        let other = text_at.max(image);
        Some(Self {
            before: chunks[..one].to_vec(),
            between: chunks[one + 1..other].to_vec(),
            after: chunks[other + 1..].to_vec(),
        })
    }
}

/// Collects text up to the next mark or image and encodes it in one call.
pub(super) struct ChatWriter<'a> {
    tokenizer: &'a Tokenizer,
    /// `None` for a model that reads text only.
    image: Option<ImageMarkIds>,
    text: String,
    rendered: RenderedChat,
}

impl<'a> ChatWriter<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, image: Option<ImageMarkIds>) -> Self {
        Self { tokenizer, image, text: String::new(), rendered: RenderedChat::default() }
    }

    fn content(&mut self, frame: &ContentFrame, content: &[ChatContent<'_>]) {
        self.fixed(&frame.before);
        for (index, part) in content.iter().enumerate() {
            if index > 0 {
                self.fixed(&frame.between);
            }
            match part {
                ChatContent::Text(text) => self.text.push_str(text),
                ChatContent::Image { rows } => self.image(*rows),
            }
        }
        self.fixed(&frame.after);
        self.encode();
    }

    fn fixed(&mut self, chunks: &[LayoutChunk]) {
        for chunk in chunks {
            match chunk {
                LayoutChunk::Text(text) => self.text.push_str(text),
                LayoutChunk::Mark(id) => {
                    self.encode();
                    self.rendered.ids.push(*id);
                }
                LayoutChunk::Slot(_) => {}
            }
        }
    }

    fn image(&mut self, rows: usize) {
        self.encode();
        self.rendered.images.push(self.rendered.ids.len() as u32 + 1);
        self.rendered.ids.extend(self.image.map(|marks| marks.around(rows)).unwrap_or_default());
    }

    fn encode(&mut self) {
        if !self.text.is_empty() {
            self.rendered.ids.extend(self.tokenizer.encode(&std::mem::take(&mut self.text)));
        }
    }
}
