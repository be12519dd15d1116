//! The actions a policy may take on a page, and the two coordinate spaces they use.

use crate::{Modifiers, Size};

/// A point in CSS pixels of the viewport, with the origin at the top left.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PagePoint {
    /// Distance from the left edge.
    pub x: f32,
    /// Distance from the top edge.
    pub y: f32,
}

/// A point as models of the Holo2 line write it: whole numbers from 0 to 1000 relative to the image
/// as sent, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelPoint {
    /// Distance from the left edge, in thousandths of the image's width.
    pub x: u16,
    /// Distance from the top edge, in thousandths of the image's height.
    pub y: u16,
}

/// Direction in which a page scrolls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum ScrollDirection {
    Down,
    Up,
    Left,
    Right,
}

/// The mouse button of a click; the left one where a grammar names none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the names say it")]
pub enum PointerButton {
    #[default]
    Left,
    Middle,
    Right,
}

/// Most clicks that one action may make at one point: the third selects a paragraph, a fourth means
/// nothing.
pub const CLICKS_MAX: u8 = 3;

/// Most pixels that one action may scroll: ten screens of 1,000.
pub const SCROLL_PIXELS_MAX: u32 = 10_000;

/// Most seconds that one action may wait.
pub const WAIT_SECONDS_MAX: u8 = 30;

/// Most times that one action may press a key.
pub const PRESSES_MAX: u8 = 20;

/// Most files that one action may upload, and that one task may offer for it.
pub const UPLOAD_FILES_MAX: usize = 16;

/// Most milliseconds for which one action may keep a key down: as long as it may wait.
pub const HOLD_MILLIS_MAX: u32 = 30_000;

/// Address of an empty page; every tab begins with it.
pub const EMPTY_PAGE: &str = "about:blank";

/// Most actions of one step.
pub const SEVERAL_MAX: usize = 16;

/// One action on a page, independent of the grammar it was written in.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Move, press and release a button.
    Click {
        /// Click position; `None` clicks at the current mouse position.
        at: Option<PagePoint>,
        /// The mouse button that is pressed.
        button: PointerButton,
        /// Number of clicks in immediate succession, 1 to [`CLICKS_MAX`].
        count: u8,
        /// Keys that are pressed before it and released after it.
        modifiers: Modifiers,
    },
    /// Move the mouse and leave it there, which opens menus and shows tooltips.
    Move {
        /// Where the mouse stays, so that what appears under it is in the next screenshot.
        at: PagePoint,
        /// Keys that are pressed before it and released after it.
        modifiers: Modifiers,
    },
    /// Type text into a field or at the current focus.
    Write {
        /// Click here first and replace the field's content; `None` types at the current focus.
        into: Option<PagePoint>,
        /// Text to type; empty only clears the field at `into`.
        content: String,
        /// Whether Enter follows the text, which submits most forms.
        press_enter: bool,
    },
    /// Turn the mouse wheel; scrolls whatever scrolls at that point: the page or a box in it.
    Scroll {
        /// Mouse position; `None` is the centre of the page.
        at: Option<PagePoint>,
        /// Where the visible part of the page moves.
        direction: ScrollDirection,
        /// Distance in pixels, 1 to [`SCROLL_PIXELS_MAX`]; `None` scrolls most of a screen.
        pixels: Option<u32>,
        /// Keys that are pressed before it and released after it.
        modifiers: Modifiers,
    },
    /// Go back one page in the tab's history.
    GoBack,
    /// Go forward one page in the tab's history.
    GoForward,
    /// Load the page again, as the browser's own reload does.
    Refresh,
    /// Return to the task's start page.
    Restart,
    /// Load an address in the active tab.
    Goto {
        /// Absolute http(s) URL; the environment decides whether it is allowed.
        url: String,
    },
    /// Let time pass on the page without input, in place of the step's share of a virtual clock.
    Wait {
        /// Seconds to wait, 0 to [`WAIT_SECONDS_MAX`]; 0 only observes the page again.
        seconds: u8,
    },
    /// Give the answer and end the trajectory.
    Answer {
        /// Text of the answer.
        content: String,
    },
    /// Press the left button at one point, move, and release it at another.
    Drag {
        /// Point of the press; `None` is the current mouse position.
        from: Option<PagePoint>,
        /// Point of the release.
        to: PagePoint,
        /// Keys that are pressed before it and released after it.
        modifiers: Modifiers,
    },
    /// Bring another tab to the front.
    SelectTab {
        /// Index of the tab, counted from 0, oldest tab first.
        index: u32,
    },
    /// Open a tab and show it.
    OpenTab {
        /// Absolute http(s) URL or [`EMPTY_PAGE`]; the environment decides whether it is allowed.
        url: String,
    },
    /// Press a key, optionally with modifiers: `Enter`, `Tab`, `ArrowDown`, `Control+a`.
    PressKey {
        /// Key name as in `KeyboardEvent.key`, with modifiers in front of it.
        key: String,
        /// Number of presses, 1 to [`PRESSES_MAX`]; modifiers stay down between them.
        times: u8,
    },
    /// Press a key and keep it down for a while; it repeats as on a keyboard.
    HoldKey {
        /// Key name as in `PressKey`.
        key: String,
        /// Milliseconds until it is released, 1 to [`HOLD_MILLIS_MAX`].
        millis: u32,
    },
    /// Press a key and leave it down, also for later steps.
    KeyDown {
        /// Key name as in `PressKey`; all keys of a combination are pressed, in order.
        key: String,
    },
    /// Release a key that an earlier action left down.
    KeyUp {
        /// Key name as in `PressKey`; all keys of a combination are released, in reverse order.
        key: String,
    },
    /// Press a button of the mouse and leave it down, also for later steps.
    MouseDown {
        /// Where the mouse moves first; `None` is its current position.
        at: Option<PagePoint>,
        /// The button that is pressed.
        button: PointerButton,
    },
    /// Release a button of the mouse that an earlier action left down.
    MouseUp {
        /// Where the mouse moves first; `None` is its current position.
        at: Option<PagePoint>,
        /// The button that is released.
        button: PointerButton,
    },
    /// Choose files in the file chooser that an earlier action opened.
    Upload {
        /// Names of the task's files, 1 to [`UPLOAD_FILES_MAX`].
        names: Vec<String>,
    },
    /// Several actions in order; the first outcome other than `ok` ends the sequence.
    Several(
        /// 2 to [`SEVERAL_MAX`], none of them `Several`; only the last may be an answer.
        Vec<Action>,
    ),
}

/// The policy's reply at one step, and how its grammar read it.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyReply {
    /// The reply's text exactly as the policy wrote it.
    pub raw_text: String,
    /// Action name as the grammar spells it; empty if none could be read, or where the scripted
    /// policy waits because its page names no action.
    pub name: String,
    /// The action's fields as written, as a JSON object; `{}` if none could be read.
    pub args_json: String,
    /// The action, or why the reply contains none.
    pub action: Result<Action, String>,
}

/// Converts a point from the model's space to the page's: `x / 1000 * width` of the image as sent
/// (it shares the page's origin and its scale is 1).
pub fn page_from_model(point: ModelPoint, image: Size) -> PagePoint {
    let scale = |value: u16, side: u32| f32::from(value) / 1000.0 * side as f32;
    PagePoint { x: scale(point.x, image.width), y: scale(point.y, image.height) }
}

impl ModelPoint {
    /// Converts a point from the page's space to the model's, rounded to the nearest whole number.
    pub fn from_page(point: PagePoint, image: Size) -> Self {
        let scale =
            |value: f32, side: u32| (value / side.max(1) as f32 * 1000.0).round().clamp(0.0, 1000.0) as u16;
        Self { x: scale(point.x, image.width), y: scale(point.y, image.height) }
    }
}

impl Action {
    /// One click of the left button.
    pub fn click(at: PagePoint) -> Self {
        Action::Click { at: Some(at), button: PointerButton::Left, count: 1, modifiers: Modifiers::NONE }
    }

    /// A move of the mouse.
    pub fn hover(at: PagePoint) -> Self {
        Action::Move { at, modifiers: Modifiers::NONE }
    }

    /// A scroll of most of a screen at the centre of the page.
    pub fn scroll(direction: ScrollDirection) -> Self {
        Action::Scroll { at: None, direction, pixels: None, modifiers: Modifiers::NONE }
    }

    /// A drag between two points.
    pub fn drag(from: PagePoint, to: PagePoint) -> Self {
        Action::Drag { from: Some(from), to, modifiers: Modifiers::NONE }
    }

    /// A single press of a key.
    pub fn press(key: impl Into<String>) -> Self {
        Action::PressKey { key: key.into(), times: 1 }
    }

    /// Combines actions into one; a single action is returned as it is. The error says why the
    /// actions cannot form one step.
    pub fn of_several(mut actions: Vec<Action>) -> Result<Self, String> {
        let last = actions.len().saturating_sub(1);
        if actions.len() > SEVERAL_MAX {
            return Err(format!("there are {} actions, a step takes at most {SEVERAL_MAX}", actions.len()));
        }
        if actions.iter().any(|action| matches!(action, Action::Several(_))) {
            return Err("an action of several contains another one; list all actions on one level".into());
        }
        if actions.iter().take(last).any(|action| matches!(action, Action::Answer { .. })) {
            return Err("another action follows the answer, which ends the task".into());
        }
        match actions.pop() {
            None => Err("there is no action".into()),
            Some(only) if actions.is_empty() => Ok(only),
            Some(end) => {
                actions.push(end);
                Ok(Action::Several(actions))
            }
        }
    }

    /// The actions it consists of: those of `Several`, or the action itself.
    pub fn parts(&self) -> &[Action] {
        match self {
            Action::Several(parts) => parts,
            one => std::slice::from_ref(one),
        }
    }

    /// The action's name in records.
    pub fn kind(&self) -> &'static str {
        match self {
            Action::Click { .. } => "click",
            Action::Move { .. } => "move",
            Action::Write { .. } => "write",
            Action::Scroll { .. } => "scroll",
            Action::GoBack => "go_back",
            Action::GoForward => "go_forward",
            Action::Refresh => "refresh",
            Action::Restart => "restart",
            Action::Goto { .. } => "goto",
            Action::Wait { .. } => "wait",
            Action::Answer { .. } => "answer",
            Action::Drag { .. } => "drag",
            Action::SelectTab { .. } => "select_tab",
            Action::OpenTab { .. } => "open_tab",
            Action::PressKey { .. } => "press_key",
            Action::HoldKey { .. } => "hold_key",
            Action::KeyDown { .. } => "key_down",
            Action::KeyUp { .. } => "key_up",
            Action::MouseDown { .. } => "mouse_down",
            Action::MouseUp { .. } => "mouse_up",
            Action::Upload { .. } => "upload",
            Action::Several(_) => "several",
        }
    }

    /// The modifier keys that are down only during the action.
    pub fn modifiers(&self) -> Modifiers {
        match self {
            Action::Click { modifiers, .. }
            | Action::Move { modifiers, .. }
            | Action::Scroll { modifiers, .. }
            | Action::Drag { modifiers, .. } => *modifiers,
            _ => Modifiers::NONE,
        }
    }

    /// The action with these keys down during it; `None` if it is none of the mouse's.
    pub fn with_modifiers(mut self, keys: Modifiers) -> Option<Self> {
        match &mut self {
            Action::Click { modifiers, .. }
            | Action::Move { modifiers, .. }
            | Action::Scroll { modifiers, .. }
            | Action::Drag { modifiers, .. } => *modifiers = keys,
            _ => return None,
        }
        Some(self)
    }

    /// The URL that a single action requests. The environment decides whether it is allowed.
    pub fn address(&self) -> Option<&str> {
        match self {
            Action::Goto { url } | Action::OpenTab { url } if url != EMPTY_PAGE => Some(url),
            _ => None,
        }
    }

    /// The point the action aims at, for records and for drawing: the end of a drag, or the last
    /// point among several actions.
    pub fn point(&self) -> Option<PagePoint> {
        match self {
            Action::Click { at: Some(at), .. }
            | Action::Move { at, .. }
            | Action::MouseDown { at: Some(at), .. }
            | Action::MouseUp { at: Some(at), .. }
            | Action::Scroll { at: Some(at), .. }
            | Action::Write { into: Some(at), .. } => Some(*at),
            Action::Drag { to, .. } => Some(*to),
            Action::Several(parts) => parts.iter().rev().find_map(Action::point),
            _ => None,
        }
    }
}

impl PointerButton {
    /// Every button, in the order of declaration.
    pub const ALL: [PointerButton; 3] = [PointerButton::Left, PointerButton::Middle, PointerButton::Right];

    /// The button's name in grammars, on the wire and in records.
    pub fn as_str(self) -> &'static str {
        match self {
            PointerButton::Left => "left",
            PointerButton::Middle => "middle",
            PointerButton::Right => "right",
        }
    }

    /// Parses what `as_str` returns.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|button| button.as_str() == name)
    }
}

impl ScrollDirection {
    /// Every direction, in the order of declaration.
    pub const ALL: [ScrollDirection; 4] =
        [ScrollDirection::Down, ScrollDirection::Up, ScrollDirection::Left, ScrollDirection::Right];

    /// The direction's name in grammars and on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            ScrollDirection::Down => "down",
            ScrollDirection::Up => "up",
            ScrollDirection::Left => "left",
            ScrollDirection::Right => "right",
        }
    }

    /// Parses what `as_str` returns.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|direction| direction.as_str() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_ends_of_the_model_space_are_inside_the_image() {
        let image = Size::new(1280, 720);
        assert_eq!(page_from_model(ModelPoint { x: 0, y: 0 }, image), PagePoint { x: 0.0, y: 0.0 });
        assert_eq!(
            page_from_model(ModelPoint { x: 1000, y: 1000 }, image),
            PagePoint { x: 1280.0, y: 720.0 }
        );
        assert_eq!(page_from_model(ModelPoint { x: 500, y: 250 }, image), PagePoint { x: 640.0, y: 180.0 });
    }

    #[test]
    fn several_actions_are_one_step_unless_something_follows_an_answer() {
        let wait = Action::Wait { seconds: 1 };
        let answer = Action::Answer { content: String::new() };
        assert_eq!(Action::of_several(vec![wait.clone()]), Ok(wait.clone()));
        let both = Action::of_several(vec![wait.clone(), answer.clone()]).unwrap();
        assert_eq!(both.parts(), [wait.clone(), answer.clone()]);
        for wrong in
            [vec![], vec![answer, wait.clone()], vec![wait.clone(); SEVERAL_MAX + 1], vec![both, wait]]
        {
            assert!(Action::of_several(wrong.clone()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn several_actions_aim_where_the_last_of_them_does() {
        let at = |x| PagePoint { x, y: 2.0 };
        let several = Action::Several(vec![Action::click(at(1.0)), Action::hover(at(3.0)), Action::GoBack]);
        assert_eq!(several.point(), Some(at(3.0)));
        assert_eq!(Action::Several(vec![Action::GoBack, Action::Refresh]).point(), None);
    }

    proptest! {
        #[test]
        fn model_points_survive_the_page_and_back(x in 0u16..=1000, y in 0u16..=1000, w in 1u32..5000, h in 1u32..5000) {
            let image = Size::new(w, h);
            let point = ModelPoint { x, y };
            prop_assert_eq!(ModelPoint::from_page(page_from_model(point, image), image), point);
        }
    }
}
