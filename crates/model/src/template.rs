//! The chat template: fixed strings, and ids of marks, around instructions, task, outcome and
//! image.
//!
//! A layout is one string for each turn. Names of added tokens in it become their ids. The text
//! between two marks, including filled-in text, is encoded in one call, as a renderer followed by a
//! tokenizer would, except that filled-in text is never searched for marks.

mod chat;
mod layout;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::config::Config;
use crate::file::{self, FileError};
use crate::tokenizer::Tokenizer;
pub use chat::{ChatContent, RenderedChat};
use chat::{ChatLayout, ChatWriter};
use layout::{ImageMarkIds, TemplateField, TurnLayout};

/// Name of the file in a checkpoint directory. Without it the defaults apply.
pub(crate) const TEMPLATE_FILE: &str = "furrow_template.json";
/// Largest file read: a few strings of a few hundred bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// The file as written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TemplateFile {
    /// The first prompt, with `{instructions}`, `{task}` and `{image}` once each.
    pub first_turn: String,
    /// Text after the ids of a reply, with `{outcome}` and `{image}` once each.
    pub later_turn: String,
    /// Names in the layouts that must be one token each; a tokenizer without them is refused.
    pub marks: Vec<String>,
    pub stop: String,
    /// Mark before the rows of an image; absent: the mark in `config.json`.
    pub image_open: Option<String>,
    /// Mark after them; absent: the mark in `config.json`.
    pub image_close: Option<String>,
}

impl Default for TemplateFile {
    /// The layout of Nemotron-Nano-12B-v2-VL with thinking off.
    fn default() -> Self {
        Self {
            first_turn: "<s><SPECIAL_10>System\n{instructions}\n<SPECIAL_11>User\n{task}\n{image}\n\
                         <SPECIAL_11>Assistant\n<think></think>"
                .into(),
            later_turn: "\n\n<SPECIAL_11>User\n{outcome}\n{image}\n<SPECIAL_11>Assistant\n<think></think>"
                .into(),
            marks: ["<s>", "<SPECIAL_10>", "<SPECIAL_11>"].map(Into::into).into(),
            stop: "<SPECIAL_12>".into(),
            image_open: None,
            image_close: None,
        }
    }
}

/// Why a template file was not read.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The file exists but could not be read.
    #[error("cannot open the template; correct {TEMPLATE_FILE}, or remove it to use the default")]
    File(#[from] FileError),
    /// The file is not JSON of the expected form.
    #[error("{} is not a template", path.display())]
    Syntax { path: PathBuf, source: serde_json::Error },
}

impl TemplateFile {
    /// Reads the template of a checkpoint directory; the default if it has none.
    pub fn open(dir: &Path) -> Result<Self, TemplateError> {
        let path = dir.join(TEMPLATE_FILE);
        if !path.exists() {
            return Ok(Self::default());
        }
        let text = file::read(&path, FILE_BYTES_MAX)?;
        serde_json::from_slice(&text).map_err(|source| TemplateError::Syntax { path, source })
    }
}

/// Renders a chat. Only `check` creates one.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    first_turn: TurnLayout,
    later_turn: TurnLayout,
    chat: Option<ChatLayout>,
    image: Option<ImageMarkIds>,
    stop: u32,
    sha256: [u8; 32],
    tokenizer: Arc<Tokenizer>,
}

/// Ids of a turn around its image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnIds {
    /// Up to the image.
    pub before_image: Vec<u32>,
    /// From after the image to where the reply begins.
    pub after_image: Vec<u32>,
}

impl ChatTemplate {
    /// Resolves every mark, or returns every problem.
    pub fn check(
        file: &TemplateFile,
        tokenizer: &Arc<Tokenizer>,
        config: &Config,
    ) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let file = &with_image_marks(file, config);
        for mark in &file.marks {
            mark_id("marks", mark, tokenizer, &mut problems);
        }
        let image = image_marks(file, tokenizer, config, &mut problems);
        let stop = stop(file, tokenizer, config, &mut problems);
        let mut layout = |key, text, slots| TurnLayout::check(key, text, slots, tokenizer, &mut problems);
        let first_turn = layout(
            "first_turn",
            &file.first_turn,
            &[TemplateField::Instructions, TemplateField::Task, TemplateField::Image],
        );
        let later_turn =
            layout("later_turn", &file.later_turn, &[TemplateField::Outcome, TemplateField::Image]);
        if !problems.is_empty() {
            return Err(problems);
        }
        let sha256 = Sha256::digest(json!(file).to_string()).into();
        let chat = ChatLayout::of(&first_turn, &later_turn);
        Ok(Self { first_turn, later_turn, chat, image, stop, sha256, tokenizer: Arc::clone(tokenizer) })
    }

    pub fn first_turn(&self, instructions: &str, task: &str) -> TurnIds {
        self.turn(
            &self.first_turn,
            |slot| if slot == TemplateField::Instructions { instructions } else { task },
        )
    }

    /// Text after the ids of a reply.
    pub fn later_turn(&self, outcome: &str) -> TurnIds {
        self.turn(&self.later_turn, |_| outcome)
    }

    /// An image of this many rows between its marks; `None` for a model that reads text only.
    pub fn image(&self, rows: usize) -> Option<Vec<u32>> {
        Some(self.image?.around(rows))
    }

    /// Whether chats can be rendered: whether the layout of the first turn has its instructions
    /// first.
    pub fn has_chat(&self) -> bool {
        self.chat.is_some()
    }

    /// The beginning of a chat, up to where the reply begins; empty for layouts without that form.
    pub fn render_first(&self, instructions: &str, content: &[ChatContent<'_>]) -> RenderedChat {
        let Some(chat) = &self.chat else { return RenderedChat::default() };
        chat.render_first(ChatWriter::new(&self.tokenizer, self.image), instructions, content)
    }

    /// Text after a reply and its stop id, up to where the next reply begins.
    pub fn render_later(&self, content: &[ChatContent<'_>]) -> RenderedChat {
        let Some(chat) = &self.chat else { return RenderedChat::default() };
        chat.render_later(ChatWriter::new(&self.tokenizer, self.image), content)
    }

    /// The id that ends a reply.
    pub fn stop(&self) -> u32 {
        self.stop
    }

    /// The tokenizer that encodes the layouts.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// SHA-256 of the resolved file as compact JSON, keys in the order of `TemplateFile`.
    pub fn sha256(&self) -> &[u8; 32] {
        &self.sha256
    }

    fn turn<'a>(&self, layout: &TurnLayout, fill: impl Fn(TemplateField) -> &'a str) -> TurnIds {
        let [before_image, after_image] = layout.ids(&self.tokenizer, fill);
        TurnIds { before_image, after_image }
    }
}

fn with_image_marks(file: &TemplateFile, config: &Config) -> TemplateFile {
    let mut file = file.clone();
    if let Some(vision) = &config.vision {
        let [open, close] = &vision.image_marks;
        file.image_open.get_or_insert_with(|| open.clone());
        file.image_close.get_or_insert_with(|| close.clone());
    }
    file
}

fn image_marks(
    file: &TemplateFile,
    tokenizer: &Tokenizer,
    config: &Config,
    problems: &mut Vec<String>,
) -> Option<ImageMarkIds> {
    let row = config.vision.as_ref()?.image_token;
    let open = mark_id("image_open", file.image_open.as_deref()?, tokenizer, problems);
    let close = mark_id("image_close", file.image_close.as_deref()?, tokenizer, problems);
    Some(ImageMarkIds { open, row, close })
}

/// Checks that the model can sample the stop id.
fn stop(file: &TemplateFile, tokenizer: &Tokenizer, config: &Config, problems: &mut Vec<String>) -> u32 {
    let id = mark_id("stop", &file.stop, tokenizer, problems);
    let rows = config.text.vocabulary;
    if id as usize >= rows {
        problems.push(format!(
            "template: stop {:?} is id {id}, but the head has {rows} rows; name a mark that the model can sample",
            file.stop
        ));
    }
    id
}

fn mark_id(key: &str, mark: &str, tokenizer: &Tokenizer, problems: &mut Vec<String>) -> u32 {
    tokenizer.special(mark).unwrap_or_else(|| {
        let some = tokenizer.specials().take(8).map(|(name, _)| name).collect::<Vec<_>>().join(" ");
        problems.push(format!(
            "template: {key} names {mark:?}, which is not an added token of the tokenizer; it has {some} …"
        ));
        0
    })
}

#[cfg(test)]
mod tests;
