//! Action grammars: text from a policy becomes an action, and an action becomes the text that a
//! policy would have written.
//!
//! Each family has a file and each name a [`GrammarDialect`]. A text that a published harness would
//! refuse or misread is refused here with the reason, so that a policy is rewarded for what it
//! wrote and not for what it may have meant.

mod anthropic;
mod holo;
mod holo_point;
mod holo_step;
mod nemotron;
mod openai;
mod shape;
mod space;
#[cfg(test)]
mod tests;
mod ui_tars;
mod web_voyager;

use furrow_rollout::{Action, ExtraAction, Grammar, Mark, Observation, PolicyReply, ScrollDirection, Size};
use sha2::{Digest, Sha256};

pub(crate) use shape::{ActionField, ActionShape, FieldKind};

/// The Holo navigation object with coordinates 0 to 1000 of the image as sent.
pub const HOLO_NAVIGATION: &str = "holo_navigation";

/// Longest reply that is parsed. A single step never needs 64 KiB.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// Pixels of one notch of the wheel, in grammars that count notches.
const NOTCH_PIXELS: u32 = 100;

/// Texts of a reply that do not change its action.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplyRemarks {
    /// The note for later steps.
    pub note: String,
    /// The reason for this action.
    pub thought: String,
    /// Description of the action's target.
    pub element: String,
}

/// What the policy was shown. Coordinates and marks refer to it.
#[derive(Debug, Clone, Copy)]
pub struct ViewedPage<'a> {
    /// Size of the screenshot.
    pub image: Size,
    /// Its marks, if the job asks for them.
    pub marks: Option<&'a [Mark]>,
}

/// The name and arguments of a reply's action, as far as they could be parsed.
#[derive(Debug, Default)]
struct ParsedCall {
    name: String,
    /// Its fields as written, a JSON object.
    args_json: Option<String>,
}

struct GrammarDialect {
    name: &'static str,
    /// Parses a reply of at most [`TEXT_BYTES_MAX`].
    read: fn(&str, &[ExtraAction], ViewedPage<'_>, &mut ParsedCall) -> Result<Action, String>,
    /// Formats an action; `Err` if the grammar cannot express it.
    encode: fn(&Action, &ReplyRemarks, &[ExtraAction], ViewedPage<'_>) -> Result<String, String>,
    /// Describes to a policy how to write its actions.
    instructions: fn(&[ExtraAction]) -> String,
    /// Whether a job may enable more actions.
    is_extensible: bool,
    /// Whether it uses marks, which the job must then ask for.
    needs_marks: bool,
    /// Layout of a reply, if decoding can be constrained to it.
    frame: Option<ReplyFrame>,
}

/// A reply as JSON: a note, a thought and the call of an action, with its keys in a fixed order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReplyFrame {
    /// Key of the call.
    pub call: &'static str,
    /// Key of the action's name in it.
    pub name: &'static str,
    /// The actions, in the order of the instructions.
    pub shapes: fn(&[ExtraAction]) -> Vec<ActionShape>,
    /// Names of the actions that end the trajectory or can end it: an answer, and an address that
    /// may be off the task's list (`off_list_navigation`).
    pub endings: &'static [&'static str],
}

const DIALECTS: &[GrammarDialect] = &[
    holo::NAVIGATION,
    holo::NAVIGATION_PIXELS,
    holo_step::STEP,
    holo_point::CLICK_CALL,
    holo_point::CLICK_ABSOLUTE,
    holo_point::POINT,
    web_voyager::MARKS,
    nemotron::TOOLS,
    ui_tars::THOUSANDTHS,
    ui_tars::PIXELS,
    openai::COMPUTER,
    anthropic::COMPUTER,
];

impl<'a> ViewedPage<'a> {
    /// An image without marks.
    pub fn image(image: Size) -> Self {
        Self { image, marks: None }
    }
}

impl<'a> From<&'a Observation> for ViewedPage<'a> {
    fn from(observation: &'a Observation) -> Self {
        Self { image: observation.screenshot.size, marks: observation.marks.as_deref() }
    }
}

impl GrammarDialect {
    #[track_caller]
    fn of(grammar: &Grammar) -> &'static GrammarDialect {
        named(&grammar.name).expect("the job's validation admits no other grammar")
    }
}

fn named(name: &str) -> Option<&'static GrammarDialect> {
    DIALECTS.iter().find(|dialect| dialect.name == name)
}

/// Names of all grammars.
pub fn names() -> impl Iterator<Item = &'static str> {
    DIALECTS.iter().map(|dialect| dialect.name)
}

/// Whether a job may enable further actions of this grammar; `None` if there is no such grammar.
pub fn is_extensible(name: &str) -> Option<bool> {
    named(name).map(|dialect| dialect.is_extensible)
}

/// Whether a grammar uses marks, which the job must then ask for.
pub fn needs_marks(name: &str) -> bool {
    named(name).is_some_and(|dialect| dialect.needs_marks)
}

/// Parses a policy's text. The reply's `action` holds the error if that fails.
pub fn parse(grammar: &Grammar, text: &str, view: ViewedPage<'_>) -> PolicyReply {
    let mut parsed = ParsedCall::default();
    let action = match text.len() {
        0..=TEXT_BYTES_MAX => (GrammarDialect::of(grammar).read)(text, &grammar.extra, view, &mut parsed),
        more => Err(format!("the reply has {more} bytes; use at most {TEXT_BYTES_MAX}")),
    };
    let ParsedCall { name, args_json } = parsed;
    PolicyReply {
        raw_text: text.to_owned(),
        name,
        args_json: args_json.unwrap_or_else(|| "{}".into()),
        action,
    }
}

/// Formats an action as a policy would; `Err` if the grammar cannot express it, or could not parse
/// the result.
pub fn encode(
    grammar: &Grammar,
    action: &Action,
    remarks: &ReplyRemarks,
    view: ViewedPage<'_>,
) -> Result<String, String> {
    let text = (GrammarDialect::of(grammar).encode)(action, remarks, &grammar.extra, view)?;
    parse(grammar, &text, view).action.map(|_| text)
}

/// Instructions that tell a policy how to write its actions.
pub fn instructions(grammar: &Grammar) -> String {
    (GrammarDialect::of(grammar).instructions)(&grammar.extra)
}

/// Layout of a reply, if decoding can be constrained to it.
pub(crate) fn frame(grammar: &Grammar) -> Option<ReplyFrame> {
    GrammarDialect::of(grammar).frame
}

/// Hexadecimal SHA-256 of everything that determines how a grammar parses, for the records.
pub fn sha256(grammar: &Grammar) -> String {
    let digest = Sha256::digest(format!("{}\n{}", grammar.name, instructions(grammar)));
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The error for an action that a grammar cannot express.
fn unsupported_action(grammar: &str, action: &Action) -> String {
    format!("{grammar} cannot express {:?} with these arguments", action.kind())
}

/// Pixels of a scroll in grammars that always state them; most of a screen if the action does not.
fn distance(direction: ScrollDirection, pixels: Option<u32>, image: Size) -> u32 {
    let side = match direction {
        ScrollDirection::Up | ScrollDirection::Down => image.height,
        ScrollDirection::Left | ScrollDirection::Right => image.width,
    };
    pixels.unwrap_or(side * 4 / 5)
}

/// Shortens a text for an error.
fn cut(text: &str) -> String {
    text.chars().take(60).collect()
}
