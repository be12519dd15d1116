//! The strings of a chat and the ids of its marks: what stands around instructions, task, outcome and image.
//!
//! A layout is written as one string a turn. Names of added tokens in it become their ids; what stands between two marks, filled-in text
//! included, is encoded in one go, as a renderer followed by a tokenizer would, except that filled-in text is never read for marks.

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
use chat::Chat;
pub use chat::{Content, Laid};
use layout::{Layout, Slot};

/// Name of the file in a checkpoint directory; without it the defaults hold.
pub const TEMPLATE_FILE: &str = "furrow_template.json";
/// Largest file read: a few strings of a few hundred bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// The file as written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TemplateFile {
    /// The first prompt, with `{instructions}`, `{task}` and `{image}` once each.
    pub first_turn: String,
    /// What is added after the ids of a reply, with `{outcome}` and `{image}` once each.
    pub later_turn: String,
    /// Names in the layouts that must be one token each; a tokenizer without them is refused.
    pub marks: Vec<String>,
    /// Ends a reply.
    pub stop: String,
    /// Stands before the rows of an image; absent: the mark `config.json` names.
    pub image_open: Option<String>,
    /// Stands after them; absent: the mark `config.json` names.
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
    /// The file is there and could not be read.
    #[error("cannot open the template; remove {TEMPLATE_FILE} and the default holds")]
    File(#[from] FileError),
    /// The file is not the JSON it should be.
    #[error("{} is not a template", path.display())]
    Syntax {
        /// Which.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
}

impl TemplateFile {
    /// Reads the template of a checkpoint directory; the default where it has none.
    pub fn open(dir: &Path) -> Result<Self, TemplateError> {
        let path = dir.join(TEMPLATE_FILE);
        if !path.exists() {
            return Ok(Self::default());
        }
        let text = file::read(&path, FILE_BYTES_MAX)?;
        serde_json::from_slice(&text).map_err(|source| TemplateError::Syntax { path, source })
    }
}

/// Lays out a chat; only `check` makes one.
#[derive(Debug, Clone)]
pub struct Template {
    first_turn: Layout,
    later_turn: Layout,
    chat: Option<Chat>,
    image: Option<ImageMarks>,
    stop: u32,
    sha256: [u8; 32],
    tokenizer: Arc<Tokenizer>,
}

/// Ids of a turn around its image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// Up to the image.
    pub before_image: Vec<u32>,
    /// From after the image to where the reply begins.
    pub after_image: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct ImageMarks {
    open: u32,
    row: u32,
    close: u32,
}

impl Template {
    /// Resolves every mark, or names every problem.
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
        let mut layout = |key, text, slots| Layout::check(key, text, slots, tokenizer, &mut problems);
        let first_turn =
            layout("first_turn", &file.first_turn, &[Slot::Instructions, Slot::Task, Slot::Image]);
        let later_turn = layout("later_turn", &file.later_turn, &[Slot::Outcome, Slot::Image]);
        if !problems.is_empty() {
            return Err(problems);
        }
        let sha256 = Sha256::digest(json!(file).to_string()).into();
        let chat = Chat::of(&first_turn, &later_turn);
        Ok(Self { first_turn, later_turn, chat, image, stop, sha256, tokenizer: Arc::clone(tokenizer) })
    }

    /// The first prompt.
    pub fn first_turn(&self, instructions: &str, task: &str) -> Turn {
        self.turn(&self.first_turn, |slot| if slot == Slot::Instructions { instructions } else { task })
    }

    /// What is added after the ids of a reply.
    pub fn later_turn(&self, outcome: &str) -> Turn {
        self.turn(&self.later_turn, |_| outcome)
    }

    /// An image of so many rows between its marks; `None` for a model that reads text only.
    pub fn image(&self, rows: usize) -> Option<Vec<u32>> {
        let marks = self.image?;
        let rows = std::iter::repeat_n(marks.row, rows);
        Some(std::iter::once(marks.open).chain(rows).chain([marks.close]).collect())
    }

    /// The id that ends a reply.
    pub fn stop(&self) -> u32 {
        self.stop
    }

    /// What the layouts are encoded with.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// SHA-256 of the resolved file as compact JSON, keys in the order of `TemplateFile`.
    pub fn sha256(&self) -> &[u8; 32] {
        &self.sha256
    }

    fn turn<'a>(&self, layout: &Layout, fill: impl Fn(Slot) -> &'a str) -> Turn {
        let [before_image, after_image] = layout.ids(&self.tokenizer, fill);
        Turn { before_image, after_image }
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
) -> Option<ImageMarks> {
    let row = config.vision.as_ref()?.image_token;
    let open = mark_id("image_open", file.image_open.as_deref()?, tokenizer, problems);
    let close = mark_id("image_close", file.image_close.as_deref()?, tokenizer, problems);
    Some(ImageMarks { open, row, close })
}

/// The stop id must be one the model can draw.
fn stop(file: &TemplateFile, tokenizer: &Tokenizer, config: &Config, problems: &mut Vec<String>) -> u32 {
    let id = mark_id("stop", &file.stop, tokenizer, problems);
    let rows = config.text.vocabulary;
    if id as usize >= rows {
        problems.push(format!(
            "template: stop {:?} is id {id}, but the head has {rows} rows; name a mark the model can draw",
            file.stop
        ));
    }
    id
}

fn mark_id(key: &str, mark: &str, tokenizer: &Tokenizer, problems: &mut Vec<String>) -> u32 {
    tokenizer.special(mark).unwrap_or_else(|| {
        let some = tokenizer.specials().take(8).map(|(name, _)| name).collect::<Vec<_>>().join(" ");
        problems.push(format!(
            "template: {key} names {mark:?}, which is no added token of the tokenizer; it has {some} …"
        ));
        0
    })
}

#[cfg(test)]
mod tests;
