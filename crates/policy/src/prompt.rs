//! Builds the ids of a turn: fills in the template and cuts the screenshot into tiles.

use std::sync::Arc;

use furrow_model::config::VisionConfig;
use furrow_model::template::ChatTemplate;
use furrow_model::vision::{self, ImageError, ImageLimits, ResampleMode, decode, prepare};
use furrow_rollout::{ImageSpan, Outcome};
use sha2::{Digest, Sha256};

use crate::context::{ImageDelimiters, PromptTurn, TurnImage};
use crate::sequence::TiledImage;

/// The ids of a turn before and after its image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TurnText {
    before: Vec<u32>,
    /// End of instructions and task. What follows may differ between sessions of a group.
    task_end: u32,
    after: Vec<u32>,
}

/// An earlier reply, as a prompt that is built from nothing repeats it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PastReply {
    /// The sampled ids without the stop id.
    pub response: Vec<u32>,
    /// Text of the action's outcome.
    pub outcome: String,
}

/// Decodes a screenshot or another image and cuts it into tiles. This takes tens of milliseconds,
/// so run it on a blocking thread.
pub(crate) fn picture(
    encoded: &[u8],
    config: &VisionConfig,
    resample: ResampleMode,
) -> Result<TiledImage, ImageError> {
    let rgb = decode(encoded, ImageLimits::default())?;
    let prepared = prepare(&rgb, config, resample);
    Ok(TiledImage {
        grid: (prepared.grid.0 as u16, prepared.grid.1 as u16),
        tiles: prepared.tiles,
        rows_per_tile: config.rows_per_tile() as u32,
        blob_sha256: Sha256::digest(encoded).into(),
        rgb_sha256: rgb.sha256,
    })
}

/// Number of placeholders that an image takes, from the size in its header. Nothing is decoded.
pub(crate) fn picture_rows(encoded: &[u8], config: &VisionConfig) -> Result<u32, ImageError> {
    let (width, height) = vision::size(encoded, ImageLimits::default())?;
    let grid = vision::grid(width, height, config.tile, config.tiles_max);
    Ok(vision::tokens(config, grid) as u32)
}

/// Text of an outcome in a prompt: its name, and the detail if there is one.
pub(crate) fn outcome_text(outcome: &Outcome) -> String {
    match outcome.detail.as_str() {
        "" => outcome.name.as_str().to_owned(),
        detail => format!("{}: {detail}", outcome.name.as_str()),
    }
}

/// The first prompt: instructions and task.
pub(crate) fn first_turn(template: &ChatTemplate, instructions: &str, task: &str) -> TurnText {
    let turn = template.first_turn(instructions, task);
    TurnText { task_end: turn.before_image.len() as u32, before: turn.before_image, after: turn.after_image }
}

/// The text after a reply: the outcome of its action.
pub(crate) fn later_turn(template: &ChatTemplate, outcome: &str) -> TurnText {
    let turn = template.later_turn(outcome);
    TurnText { task_end: turn.before_image.len() as u32, before: turn.before_image, after: turn.after_image }
}

/// A prompt that is built from nothing: instructions, task, and each reply so far, as sampled, with
/// its outcome on the next line.
pub(crate) fn fresh_turn(
    template: &ChatTemplate,
    instructions: &str,
    task: &str,
    past_replies: &[PastReply],
) -> TurnText {
    let mut text = first_turn(template, instructions, task);
    for PastReply { response, outcome } in past_replies {
        text.before.extend(response);
        text.before.extend(template.tokenizer().encode(&format!("\n{outcome}\n")));
    }
    text
}

/// Inserts an image into a turn's text. Returns the turn and the end of instructions and task in
/// it. `None` for a model that reads text only.
pub(crate) fn with_image(
    text: TurnText,
    picture: &Arc<TiledImage>,
    step: u32,
    template: &ChatTemplate,
) -> Option<(PromptTurn, u32)> {
    let image = template.image(picture.rows() as usize)?;
    let TurnText { before, task_end, after } = text;
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
    Some((PromptTurn { ids, image: Some(TurnImage { span, leaves }) }, task_end))
}

/// The ids before and after an image's placeholders.
pub(crate) fn image_delimiters(template: &ChatTemplate) -> Option<ImageDelimiters> {
    match template.image(0)?[..] {
        [open, close] => Some(ImageDelimiters { open, close }),
        _ => None,
    }
}
