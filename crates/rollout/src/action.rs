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

/// One thing done to a page, whatever grammar it was written in.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Move, press and release the left button.
    Click {
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
    /// Scroll by most of a screen at the centre of the page.
    Scroll {
        /// Where to.
        direction: Direction,
    },
    /// One page back in the tab's history.
    GoBack,
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
        /// 0 to 10.
        seconds: u8,
    },
    /// Give the answer and end the trajectory.
    Answer {
        /// The answer.
        content: String,
    },
    /// Press at one point, move, release at another.
    Drag {
        /// Pressed here.
        from: PagePoint,
        /// Released here.
        to: PagePoint,
    },
    /// Bring another tab to the front.
    SelectTab {
        /// Counted from 0, oldest tab first.
        index: u32,
    },
    /// Press a key, optionally with modifiers: `Enter`, `Tab`, `ArrowDown`, `Control+a`.
    PressKey {
        /// Key name as in `KeyboardEvent.key`.
        key: String,
    },
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
    /// The point it aims at, for the record and for drawing: a drag's end.
    pub fn point(&self) -> Option<PagePoint> {
        match self {
            Action::Click { at } | Action::Write { into: Some(at), .. } => Some(*at),
            Action::Drag { to, .. } => Some(*to),
            _ => None,
        }
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

    proptest! {
        #[test]
        fn model_points_survive_the_page_and_back(x in 0u16..=1000, y in 0u16..=1000, w in 1u32..5000, h in 1u32..5000) {
            let image = Size::new(w, h);
            let point = ModelPoint { x, y };
            prop_assert_eq!(ModelPoint::from_page(page_from_model(point, image), image), point);
        }
    }
}
