//! What a policy may do to a page, and the two spaces its coordinates live in.

use crate::Size;

/// A point in CSS pixels of the viewport, origin top left.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PagePoint {
    /// From the left.
    pub x: f32,
    /// From the top.
    pub y: f32,
}

/// A point as models of the Holo2 line write it: whole numbers 0 to 1000 of the image as sent, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelPoint {
    /// From the left.
    pub x: u16,
    /// From the top.
    pub y: u16,
}

/// Where a page scrolls to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Direction {
    Down,
    Up,
    Left,
    Right,
}

/// A button of the mouse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Button {
    #[default]
    Left,
    Middle,
    Right,
}

/// Clicks that one action may make at one place: the third selects a paragraph, a fourth means nothing.
pub const CLICKS_MAX: u8 = 3;

/// Pixels that one action may scroll: ten screens of 1,000.
pub const SCROLL_PIXELS_MAX: u32 = 10_000;

/// Seconds that one action may wait.
pub const WAIT_SECONDS_MAX: u8 = 30;

/// Times that one action may press a key.
pub const PRESSES_MAX: u8 = 20;

/// Address of a page with nothing on it; every tab begins with it.
pub const EMPTY_PAGE: &str = "about:blank";

/// Actions of one step.
pub const SEVERAL_MAX: usize = 16;

/// One thing done to a page, whatever grammar it was written in.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Move, press and release a button.
    Click {
        /// Where; `None`: where the mouse is.
        at: Option<PagePoint>,
        /// Which button.
        button: Button,
        /// 1 to [`CLICKS_MAX`], one right behind the other.
        count: u8,
    },
    /// Move the mouse there and leave it: menus open, tips show.
    Move {
        /// Where.
        at: PagePoint,
    },
    /// Type text.
    Write {
        /// Click here first and replace what the field holds; `None` types where the focus is.
        into: Option<PagePoint>,
        /// The text.
        content: String,
        /// Press Enter afterwards.
        press_enter: bool,
    },
    /// Turn the wheel: what scrolls at that point scrolls, be it the page or a box in it.
    Scroll {
        /// The mouse is there; `None`: at the centre of the page.
        at: Option<PagePoint>,
        /// Where to.
        direction: Direction,
        /// 1 to [`SCROLL_PIXELS_MAX`]; `None`: most of a screen.
        pixels: Option<u32>,
    },
    /// One page back in the tab's history.
    GoBack,
    /// One page forward again.
    GoForward,
    /// Load the page again.
    Refresh,
    /// Back to the task's start page.
    Restart,
    /// Load an address.
    Goto {
        /// Absolute http(s) URL; the environment decides whether it is allowed.
        url: String,
    },
    /// Let time pass.
    Wait {
        /// 0 to [`WAIT_SECONDS_MAX`]; with 0 the page is only looked at again.
        seconds: u8,
    },
    /// Give the answer and end the trajectory.
    Answer {
        /// The answer.
        content: String,
    },
    /// Press at one point, move, release at another.
    Drag {
        /// Pressed here; `None`: where the mouse is.
        from: Option<PagePoint>,
        /// Released here.
        to: PagePoint,
    },
    /// Bring another tab to the front.
    SelectTab {
        /// Counted from 0, oldest tab first.
        index: u32,
    },
    /// Open a tab and show it.
    OpenTab {
        /// Absolute http(s) URL or [`EMPTY_PAGE`]; the environment decides whether it is allowed.
        url: String,
    },
    /// Press a key, optionally with modifiers: `Enter`, `Tab`, `ArrowDown`, `Control+a`.
    PressKey {
        /// Key name as in `KeyboardEvent.key`.
        key: String,
        /// 1 to [`PRESSES_MAX`].
        times: u8,
    },
    /// One after the other, until one of them ends otherwise than well.
    Several(
        /// 2 to [`SEVERAL_MAX`], none of them `Several`; only the last may be an answer.
        Vec<Action>,
    ),
}

/// What the policy replied at one step and how its grammar read it.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// The action text exactly as it was written.
    pub raw_text: String,
    /// Action name in the grammar's own words, empty if none could be read.
    pub name: String,
    /// The action's fields as written, a JSON object; `{}` if none could be read.
    pub args_json: String,
    /// The action, or why there is none.
    pub action: Result<Action, String>,
}

/// From the model's space into the page's: `x / 1000 * width` of the image as sent (its origin is the page's, its scale is 1).
pub fn page_from_model(point: ModelPoint, image: Size) -> PagePoint {
    let scale = |value: u16, side: u32| f32::from(value) / 1000.0 * side as f32;
    PagePoint { x: scale(point.x, image.width), y: scale(point.y, image.height) }
}

impl ModelPoint {
    /// From the page's space into the model's, to the nearest whole number.
    pub fn from_page(point: PagePoint, image: Size) -> Self {
        let scale =
            |value: f32, side: u32| (value / side.max(1) as f32 * 1000.0).round().clamp(0.0, 1000.0) as u16;
        Self { x: scale(point.x, image.width), y: scale(point.y, image.height) }
    }
}

impl Action {
    /// One click of the left button.
    pub fn click(at: PagePoint) -> Self {
        Action::Click { at: Some(at), button: Button::Left, count: 1 }
    }

    /// Most of a screen at the centre of the page.
    pub fn scroll(direction: Direction) -> Self {
        Action::Scroll { at: None, direction, pixels: None }
    }

    /// From one point to another.
    pub fn drag(from: PagePoint, to: PagePoint) -> Self {
        Action::Drag { from: Some(from), to }
    }

    /// A key, pressed once.
    pub fn press(key: impl Into<String>) -> Self {
        Action::PressKey { key: key.into(), times: 1 }
    }

    /// Some actions as one: the only one of them itself. The error says why they cannot be one step.
    pub fn of_several(mut actions: Vec<Action>) -> Result<Self, String> {
        let last = actions.len().saturating_sub(1);
        if actions.len() > SEVERAL_MAX {
            return Err(format!("there are {} actions, a step takes at most {SEVERAL_MAX}", actions.len()));
        }
        if actions.iter().any(|action| matches!(action, Action::Several(_))) {
            return Err("there are actions in an action of several".into());
        }
        if actions.iter().take(last).any(|action| matches!(action, Action::Answer { .. })) {
            return Err("something comes behind the answer, which ends the task".into());
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

    /// What it consists of: several, or itself.
    pub fn parts(&self) -> &[Action] {
        match self {
            Action::Several(parts) => parts,
            one => std::slice::from_ref(one),
        }
    }

    /// The word in records.
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
            Action::Several(_) => "several",
        }
    }

    /// The address it asks for, of one action alone; whether that is allowed is the environment's to say.
    pub fn address(&self) -> Option<&str> {
        match self {
            Action::Goto { url } | Action::OpenTab { url } if url != EMPTY_PAGE => Some(url),
            _ => None,
        }
    }

    /// The point it aims at, for the record and for drawing: a drag's end, and of several the last one's that has a point.
    pub fn point(&self) -> Option<PagePoint> {
        match self {
            Action::Click { at: Some(at), .. }
            | Action::Move { at }
            | Action::Scroll { at: Some(at), .. }
            | Action::Write { into: Some(at), .. } => Some(*at),
            Action::Drag { to, .. } => Some(*to),
            Action::Several(parts) => parts.iter().rev().find_map(Action::point),
            _ => None,
        }
    }
}

impl Button {
    /// All three.
    pub const ALL: [Button; 3] = [Button::Left, Button::Middle, Button::Right];

    /// The word in grammars, on the wire and in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Button::Left => "left",
            Button::Middle => "middle",
            Button::Right => "right",
        }
    }

    /// Reads the word back.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|button| button.as_str() == word)
    }
}

impl Direction {
    /// All four.
    pub const ALL: [Direction; 4] = [Direction::Down, Direction::Up, Direction::Left, Direction::Right];

    /// The word in grammars and on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Direction::Down => "down",
            Direction::Up => "up",
            Direction::Left => "left",
            Direction::Right => "right",
        }
    }

    /// Reads the word back.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|direction| direction.as_str() == word)
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
        let (wait, answer) = (Action::Wait { seconds: 1 }, Action::Answer { content: String::new() });
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
        let several =
            Action::Several(vec![Action::click(at(1.0)), Action::Move { at: at(3.0) }, Action::GoBack]);
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
