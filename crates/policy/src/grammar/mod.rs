//! Action grammars: text from a policy becomes an action, and an action becomes the text a policy would have written.
//!
//! One file a family, one [`Dialect`] a name. What a published harness would refuse or misread is refused here with the reason, so that a
//! policy is rewarded for what it wrote and not for what it may have meant.

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

use furrow_rollout::{Action, Direction, ExtraAction, Grammar, Mark, Observation, Reply, Size};
use sha2::{Digest, Sha256};

pub(crate) use shape::{Field, FieldKind, Shape};

/// The Holo navigation object with coordinates 0 to 1000 of the image as sent.
pub const HOLO_NAVIGATION: &str = "holo_navigation";

/// Replies longer than this are refused unread: 64 KiB are no single step.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// Pixels of one notch of the wheel, in grammars that count those.
const NOTCH_PIXELS: u32 = 100;

/// Words around an action that carry no weight for what is done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Remarks {
    /// What to remember.
    pub note: String,
    /// Why this action.
    pub thought: String,
    /// What the action aims at, in words.
    pub element: String,
}

/// What the policy saw: coordinates and marks refer to it.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// Size of the screenshot.
    pub image: Size,
    /// Its marks, where the job asks for them.
    pub marks: Option<&'a [Mark]>,
}

/// The words of a reply, as far as it could be read.
#[derive(Debug, Default)]
struct Said {
    /// The action's name.
    name: String,
    /// Its fields as written, a JSON object.
    args_json: Option<String>,
}

/// A grammar.
struct Dialect {
    name: &'static str,
    /// Reads a reply of at most [`TEXT_BYTES_MAX`].
    read: fn(&str, &[ExtraAction], Seen<'_>, &mut Said) -> Result<Action, String>,
    /// Writes an action; `Err` when the grammar has no word for it.
    encode: fn(&Action, &Remarks, &[ExtraAction], Seen<'_>) -> Result<String, String>,
    /// Tells a policy how to write, in our own words.
    instructions: fn(&[ExtraAction]) -> String,
    /// Whether a job may switch on more actions.
    is_extensible: bool,
    /// Whether it speaks of marks, which the job must then ask for.
    needs_marks: bool,
    /// How a reply is laid out, where decoding can be held to it.
    frame: Option<Frame>,
}

/// A reply as JSON: a note, a thought and the call of an action, its keys in one order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    /// Key of the call.
    pub call: &'static str,
    /// Key of the action's name in it.
    pub name: &'static str,
    /// The actions, in the order of the instructions.
    pub shapes: fn(&[ExtraAction]) -> Vec<Shape>,
    /// Names of those that end the trajectory or can: an answer, and an address that may be off the task's list (`off_list_navigation`).
    pub endings: &'static [&'static str],
}

const DIALECTS: &[Dialect] = &[
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

impl<'a> Seen<'a> {
    /// A picture without marks.
    pub fn image(image: Size) -> Self {
        Self { image, marks: None }
    }
}

impl<'a> From<&'a Observation> for Seen<'a> {
    fn from(observation: &'a Observation) -> Self {
        Self { image: observation.screenshot.size, marks: observation.marks.as_deref() }
    }
}

impl Dialect {
    #[track_caller]
    fn of(grammar: &Grammar) -> &'static Dialect {
        named(&grammar.name).expect("the job's door admits no other grammar")
    }
}

fn named(name: &str) -> Option<&'static Dialect> {
    DIALECTS.iter().find(|dialect| dialect.name == name)
}

/// Names of all grammars.
pub fn names() -> impl Iterator<Item = &'static str> {
    DIALECTS.iter().map(|dialect| dialect.name)
}

/// Whether a job may switch on actions beyond this grammar's own; `None` where there is no such grammar.
pub fn is_extensible(name: &str) -> Option<bool> {
    named(name).map(|dialect| dialect.is_extensible)
}

/// Whether a grammar speaks of marks, which the job must then ask for.
pub fn needs_marks(name: &str) -> bool {
    named(name).is_some_and(|dialect| dialect.needs_marks)
}

/// Reads a policy's text; what cannot be read is in the reply's `action`.
pub fn parse(grammar: &Grammar, text: &str, seen: Seen<'_>) -> Reply {
    let mut said = Said::default();
    let action = match text.len() {
        0..=TEXT_BYTES_MAX => (Dialect::of(grammar).read)(text, &grammar.extra, seen, &mut said),
        more => Err(format!("the reply has {more} bytes, at most {TEXT_BYTES_MAX} are read")),
    };
    let Said { name, args_json } = said;
    Reply { raw_text: text.to_owned(), name, args_json: args_json.unwrap_or_else(|| "{}".into()), action }
}

/// Writes an action as a policy would; `Err` when the grammar has no word for it, or none that it would read itself.
pub fn encode(
    grammar: &Grammar,
    action: &Action,
    remarks: &Remarks,
    seen: Seen<'_>,
) -> Result<String, String> {
    let text = (Dialect::of(grammar).encode)(action, remarks, &grammar.extra, seen)?;
    parse(grammar, &text, seen).action.map(|_| text)
}

/// Instructions that tell a policy how to write its actions.
pub fn instructions(grammar: &Grammar) -> String {
    (Dialect::of(grammar).instructions)(&grammar.extra)
}

/// How a reply is laid out, where decoding can be held to it.
pub(crate) fn frame(grammar: &Grammar) -> Option<Frame> {
    Dialect::of(grammar).frame
}

/// Hexadecimal SHA-256 of everything that decides how a grammar reads, for the records.
pub fn sha256(grammar: &Grammar) -> String {
    let digest = Sha256::digest(format!("{}\n{}", grammar.name, instructions(grammar)));
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// That a grammar cannot say something.
fn no_word(grammar: &str, action: &Action) -> String {
    format!("{grammar} has no word for {:?} as it is asked for here", action.kind())
}

/// Pixels that a scroll moves, for grammars that always say how far: most of a screen where the action does not.
fn distance(direction: Direction, pixels: Option<u32>, image: Size) -> u32 {
    let side = match direction {
        Direction::Up | Direction::Down => image.height,
        Direction::Left | Direction::Right => image.width,
    };
    pixels.unwrap_or(side * 4 / 5)
}

/// A text in an error, cut short.
fn cut(text: &str) -> String {
    text.chars().take(60).collect()
}
