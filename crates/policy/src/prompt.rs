//! From what a session sees to the ids of a turn: a layout filled in, a screenshot cut into tiles.

use std::sync::Arc;

use furrow_model::config::VisionConfig;
use furrow_model::template::Template;
use furrow_model::vision::{self, ImageError, ImageLimits, Resample, decode, prepare};
use furrow_rollout::{ImageSpan, Outcome};
use sha2::{Digest, Sha256};

use crate::context::{Marks, Seen, Turn};
use crate::sequence::Picture;

/// Text of a turn around its picture, as ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    before: Vec<u32>,
    /// Where instructions and task end; what follows may differ between sessions of a group.
    task_end: u32,
    after: Vec<u32>,
}

/// A reply given before, as a prompt that begins anew tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// As it was sampled, the stop id left out.
    pub response: Vec<u32>,
    /// What came of it.
    pub outcome: String,
}

/// Decodes a screenshot, or any other picture, and cuts it into tiles. Tens of milliseconds: not for the engine's thread nor for one that
/// serves others.
pub fn picture(encoded: &[u8], config: &VisionConfig, resample: Resample) -> Result<Picture, ImageError> {
    let rgb = decode(encoded, ImageLimits::default())?;
    let prepared = prepare(&rgb, config, resample);
    Ok(Picture {
        grid: (prepared.grid.0 as u16, prepared.grid.1 as u16),
        tiles: prepared.tiles,
        rows_per_tile: config.rows_per_tile() as u32,
        blob_sha256: Sha256::digest(encoded).into(),
        rgb_sha256: rgb.sha256,
    })
}

/// Placeholders that a picture takes, by what it says of its size: nothing is decoded.
pub fn picture_rows(encoded: &[u8], config: &VisionConfig) -> Result<u32, ImageError> {
    let (width, height) = vision::size(encoded, ImageLimits::default())?;
    let grid = vision::grid(width, height, config.tile, config.tiles_max);
    Ok(vision::tokens(config, grid) as u32)
}

/// What an outcome says in a prompt: its name, and the sentence where there is one.
pub fn outcome_text(outcome: &Outcome) -> String {
    match outcome.detail.as_str() {
        "" => outcome.name.as_str().to_owned(),
        detail => format!("{}: {detail}", outcome.name.as_str()),
    }
}

/// The first prompt: instructions and task.
pub fn first(template: &Template, instructions: &str, task: &str) -> Text {
    let turn = template.first_turn(instructions, task);
    Text { task_end: turn.before_image.len() as u32, before: turn.before_image, after: turn.after_image }
}

/// What is added after a reply: the outcome of its action.
pub fn later(template: &Template, outcome: &str) -> Text {
    let turn = template.later_turn(outcome);
    Text { task_end: turn.before_image.len() as u32, before: turn.before_image, after: turn.after_image }
}

/// A prompt that begins anew: instructions, task, and each reply so far, as sampled, with what came of it on the next line.
pub fn anew(template: &Template, instructions: &str, task: &str, told: &[Told]) -> Text {
    let mut text = first(template, instructions, task);
    for Told { response, outcome } in told {
        text.before.extend(response);
        text.before.extend(template.tokenizer().encode(&format!("\n{outcome}\n")));
    }
    text
}

/// Puts a picture into a turn's text. Returns the turn and where instructions and task end in it. `None` for a model that reads text
/// only.
pub fn turn(text: Text, picture: &Arc<Picture>, step: u32, template: &Template) -> Option<(Turn, u32)> {
    let image = template.image(picture.rows() as usize)?;
    let Text { before, task_end, after } = text;
    let start = before.len() as u32;
    let leaves = start..start + image.len() as u32;
    let span = ImageSpan {
        step,
        token_start: start + 1,
        token_len: picture.rows(),
        tiles_x: picture.grid.0,
        tiles_y: picture.grid.1,
        blob_sha256: picture.blob_sha256,
        rgb_sha256: picture.rgb_sha256,
    };
    let ids = [before, image, after].concat();
    Some((Turn { ids, seen: Some(Seen { span, leaves }) }, task_end))
}

/// The marks around a picture's placeholders.
pub fn marks(template: &Template) -> Option<Marks> {
    match template.image(0)?[..] {
        [open, close] => Some(Marks { open, close }),
        _ => None,
    }
}
