//! Any chat in the layouts' form: what stands between instructions, contents and replies is taken out of the layouts of the two turns.
//!
//! A content is texts and images in any order, joined by what the layout has between its words and its image. So one text with one
//! image behind it gives the very ids that `first_turn` and `later_turn` give.

use super::Template;
use super::layout::{Chunk, Layout, Slot};

/// What stands where.
#[derive(Debug, Clone)]
pub(super) struct Chat {
    /// Before the instructions.
    open: Vec<Chunk>,
    first: Frame,
    later: Frame,
}

/// What stands around a content.
#[derive(Debug, Clone)]
struct Frame {
    before: Vec<Chunk>,
    between: Vec<Chunk>,
    /// Up to where the reply begins.
    after: Vec<Chunk>,
}

/// A part of what a user says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content<'a> {
    /// Words, never read for marks.
    Text(&'a str),
    /// An image of so many rows.
    Image {
        /// Its rows.
        rows: usize,
    },
}

/// Ids of a part of a chat.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Laid {
    /// The ids, placeholders included.
    pub ids: Vec<u32>,
    /// Index of each image's first placeholder, in order.
    pub images: Vec<u32>,
}

impl Chat {
    /// Out of the layouts; `None` where instructions do not stand first.
    pub fn of(first: &Layout, later: &Layout) -> Option<Self> {
        let first = first.chunks();
        let at = first.iter().position(|chunk| *chunk == Chunk::Slot(Slot::Instructions))?;
        let first_frame = Frame::of(&first[at + 1..], Slot::Task)?;
        Some(Self {
            open: first[..at].to_vec(),
            first: first_frame,
            later: Frame::of(later.chunks(), Slot::Outcome)?,
        })
    }
}

impl Frame {
    /// Words and image in either order; nothing else is to be filled in.
    fn of(chunks: &[Chunk], words: Slot) -> Option<Self> {
        let place = |slot| chunks.iter().position(|chunk| *chunk == Chunk::Slot(slot));
        let (words, image) = (place(words)?, place(Slot::Image)?);
        let (one, other) = (words.min(image), words.max(image));
        Some(Self {
            before: chunks[..one].to_vec(),
            between: chunks[one + 1..other].to_vec(),
            after: chunks[other + 1..].to_vec(),
        })
    }
}

impl Template {
    /// Whether any chat can be laid out: whether the layout of the first turn has its instructions first.
    pub fn has_chat(&self) -> bool {
        self.chat.is_some()
    }

    /// The beginning of a chat, up to where the reply begins; nothing for layouts that have no such form.
    pub fn first_words(&self, instructions: &str, content: &[Content<'_>]) -> Laid {
        let Some(chat) = &self.chat else { return Laid::default() };
        let mut writer = Writer::new(self);
        writer.fixed(&chat.open);
        writer.text.push_str(instructions);
        writer.content(&chat.first, content);
        writer.laid
    }

    /// What follows a reply and its stop id, up to where the next reply begins.
    pub fn later_words(&self, content: &[Content<'_>]) -> Laid {
        let Some(chat) = &self.chat else { return Laid::default() };
        let mut writer = Writer::new(self);
        writer.content(&chat.later, content);
        writer.laid
    }
}

/// Gathers text up to the next mark or image and encodes it in one go.
struct Writer<'a> {
    template: &'a Template,
    text: String,
    laid: Laid,
}

impl<'a> Writer<'a> {
    fn new(template: &'a Template) -> Self {
        Self { template, text: String::new(), laid: Laid::default() }
    }

    fn content(&mut self, frame: &Frame, content: &[Content<'_>]) {
        self.fixed(&frame.before);
        for (index, part) in content.iter().enumerate() {
            if index > 0 {
                self.fixed(&frame.between);
            }
            match part {
                Content::Text(text) => self.text.push_str(text),
                Content::Image { rows } => self.image(*rows),
            }
        }
        self.fixed(&frame.after);
        self.encode();
    }

    fn fixed(&mut self, chunks: &[Chunk]) {
        for chunk in chunks {
            match chunk {
                Chunk::Text(text) => self.text.push_str(text),
                Chunk::Mark(id) => {
                    self.encode();
                    self.laid.ids.push(*id);
                }
                Chunk::Slot(_) => {}
            }
        }
    }

    fn image(&mut self, rows: usize) {
        self.encode();
        self.laid.images.push(self.laid.ids.len() as u32 + 1);
        self.laid.ids.extend(self.template.image(rows).unwrap_or_default());
    }

    fn encode(&mut self) {
        if !self.text.is_empty() {
            self.laid.ids.extend(self.template.tokenizer.encode(&std::mem::take(&mut self.text)));
        }
    }
}
