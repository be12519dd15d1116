//! What a family of grammars defines, and what several families share.

use furrow_rollout::{
    Action, ExtraAction, Mark, Modifiers, Observation, ScrollDirection, Size, UPLOAD_FILES_MAX,
};

use super::shape::{ActionShape, FieldKind, ParsedCall, field};

/// Longest reply that is parsed. A single step never needs 64 KiB.
pub(super) const TEXT_BYTES_MAX: usize = 64 << 10;

/// Pixels of one notch of the wheel, in grammars that count notches.
pub(super) const NOTCH_PIXELS: u32 = 100;

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

/// The action that chooses files, which no published harness has: a job enables it.
pub(super) const UPLOAD: ActionShape = ActionShape {
    name: "upload",
    fields: &[field("files", FieldKind::Names { most: UPLOAD_FILES_MAX })],
    description: "choose files by name where the page asks for a file",
};

/// The shapes with that of an upload, if the job enables it.
pub(super) fn with_upload(shapes: &[ActionShape], extra: &[ExtraAction]) -> Vec<ActionShape> {
    let upload = extra.contains(&ExtraAction::Upload).then_some(UPLOAD);
    shapes.iter().copied().chain(upload).collect()
}

pub(super) struct GrammarDialect {
    pub name: &'static str,
    /// Parses a reply of at most [`TEXT_BYTES_MAX`].
    pub read: fn(&str, &[ExtraAction], ViewedPage<'_>, &mut ParsedCall) -> Result<Action, String>,
    /// Formats an action; `Err` if the grammar cannot express it.
    pub encode: fn(&Action, &ReplyRemarks, &[ExtraAction], ViewedPage<'_>) -> Result<String, String>,
    /// Describes to a policy how to write its actions.
    pub instructions: fn(&[ExtraAction]) -> String,
    /// Actions that a job may enable beyond those that it always has.
    pub extra: &'static [ExtraAction],
    /// Whether it uses marks, which the job must then ask for.
    pub needs_marks: bool,
    /// Layout of a reply, if decoding can be constrained to it.
    pub frame: Option<ReplyFrame>,
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

/// The error for an action that a grammar cannot express.
pub(super) fn unsupported_action(grammar: &str, action: &Action) -> String {
    format!("{grammar} cannot express {:?} with these arguments", action.kind())
}

/// An action while keys are down: modifiers of an action of the mouse, or else keys that are
/// pressed before the actions and released after them.
pub(super) fn with_keys(keys: &[&str], actions: Vec<Action>) -> Vec<Action> {
    if keys.is_empty() {
        return actions;
    }
    if let ([action], Some(modifiers)) = (&actions[..], Modifiers::of_aliases(keys.iter().copied()))
        && let Some(action) = action.clone().with_modifiers(modifiers)
    {
        return vec![action];
    }
    let down = keys.iter().map(|key| Action::KeyDown { key: (*key).to_owned() });
    let up = keys.iter().rev().map(|key| Action::KeyUp { key: (*key).to_owned() });
    down.chain(actions).chain(up).collect()
}

/// The names of keys that a plus joins; the last plus may be a key itself.
pub(super) fn key_names(joined: &str) -> Vec<&str> {
    let (joined, last) = match joined.strip_suffix("++") {
        Some(before) => (before, Some("+")),
        None => (joined, None),
    };
    joined.split('+').filter(|name| !name.is_empty()).chain(last).collect()
}

/// Pixels of a scroll in grammars that always state them; most of a screen if the action does not.
pub(super) fn distance(direction: ScrollDirection, pixels: Option<u32>, image: Size) -> u32 {
    let side = match direction {
        ScrollDirection::Up | ScrollDirection::Down => image.height,
        ScrollDirection::Left | ScrollDirection::Right => image.width,
    };
    pixels.unwrap_or(side * 4 / 5)
}
