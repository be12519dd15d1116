//! Parses hints: JSON from a page's `solve.js`, in page coordinates, becomes an action.

use furrow_rollout::{Action, PagePoint, ScrollDirection};
use serde::Deserialize;

use crate::grammar::ReplyRemarks;

/// Largest hint. An action is a short JSON object, so a larger hint is an error.
const HINT_BYTES_MAX: usize = 64 << 10;

/// Parses a hint. `Ok(None)` means that the script has nothing to do at the moment.
pub fn read(json: &str) -> Result<Option<(Action, ReplyRemarks)>, String> {
    if json.len() > HINT_BYTES_MAX {
        return Err(format!("the hint has {} bytes; use at most {HINT_BYTES_MAX}", json.len()));
    }
    let hint: Option<HintFile> = serde_json::from_str(json).map_err(|why| format!("invalid hint: {why}"))?;
    hint.map(HintFile::read).transpose()
}

#[derive(Deserialize)]
struct HintFile {
    #[serde(default)]
    thought: String,
    #[serde(default)]
    element: String,
    #[serde(flatten)]
    action: HintAction,
}

#[derive(Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
enum HintAction {
    ClickElement {
        x: f32,
        y: f32,
    },
    WriteElementAbs {
        content: String,
        x: f32,
        y: f32,
        /// Only to refuse `false`: the action presses Enter whatever a script says.
        #[serde(default = "pressed")]
        press_enter: bool,
    },
    Scroll {
        direction: HintDirection,
    },
    GoBack,
    Refresh,
    Restart,
    Goto {
        url: String,
    },
    Wait {
        #[serde(default)]
        seconds: u8,
    },
    Answer {
        content: String,
    },
    Drag {
        x: f32,
        y: f32,
        to_x: f32,
        to_y: f32,
    },
    SelectTab {
        index: u32,
    },
    PressKey {
        key: String,
    },
    Write {
        content: String,
        #[serde(default)]
        press_enter: bool,
    },
    Upload {
        files: Vec<String>,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum HintDirection {
    Down,
    Up,
    Left,
    Right,
}

impl HintFile {
    fn read(self) -> Result<(Action, ReplyRemarks), String> {
        let remarks = ReplyRemarks { note: String::new(), thought: self.thought, element: self.element };
        let action = match self.action {
            HintAction::ClickElement { x, y } => Action::click(PagePoint { x, y }),
            HintAction::WriteElementAbs { press_enter: false, .. } => {
                return Err("write_element_abs always presses Enter; click the field, then write, which \
                            policy.grammar.extra = [\"write\"] switches on"
                    .to_owned());
            }
            HintAction::WriteElementAbs { content, x, y, press_enter: true } => {
                Action::Write { into: Some(PagePoint { x, y }), content, press_enter: true }
            }
            HintAction::Scroll { direction } => Action::scroll(direction.into()),
            HintAction::GoBack => Action::GoBack,
            HintAction::Refresh => Action::Refresh,
            HintAction::Restart => Action::Restart,
            HintAction::Goto { url } => Action::Goto { url },
            HintAction::Wait { seconds } => Action::Wait { seconds: seconds.min(10) },
            HintAction::Answer { content } => Action::Answer { content },
            HintAction::Drag { x, y, to_x, to_y } => {
                Action::drag(PagePoint { x, y }, PagePoint { x: to_x, y: to_y })
            }
            HintAction::SelectTab { index } => Action::SelectTab { index },
            HintAction::PressKey { key } => Action::press(key),
            HintAction::Write { content, press_enter } => Action::Write { into: None, content, press_enter },
            HintAction::Upload { files } => Action::Upload { names: files },
        };
        Ok((action, remarks))
    }
}

/// Whether Enter is pressed where a script does not say.
const fn pressed() -> bool {
    true
}

impl From<HintDirection> for ScrollDirection {
    fn from(way: HintDirection) -> Self {
        match way {
            HintDirection::Down => ScrollDirection::Down,
            HintDirection::Up => ScrollDirection::Up,
            HintDirection::Left => ScrollDirection::Left,
            HintDirection::Right => ScrollDirection::Right,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: &str, want: &str) {
        let got = match read(json) {
            Ok(None) => "nothing".to_owned(),
            Ok(Some((action, _))) => format!("{action:?}"),
            Err(why) => why,
        };
        assert!(got.starts_with(want), "\n got {got}\nwant {want}");
    }

    #[test]
    fn hints_are_actions_in_page_coordinates() {
        check("null", "nothing");
        check(
            r#"{"action":"click_element","element":"OK","x":40.5,"y":12}"#,
            "Click { at: Some(PagePoint { x: 40.5, y: 12.0 }), button: Left, count: 1, modifiers: none }",
        );
        check(
            r#"{"action":"write","content":"a"}"#,
            r#"Write { into: None, content: "a", press_enter: false }"#,
        );
        check(
            r#"{"action":"scroll","direction":"down"}"#,
            "Scroll { at: None, direction: Down, pixels: None, modifiers: none }",
        );
        check(r#"{"action":"go_back"}"#, "GoBack");
        check(
            r#"{"action":"write_element_abs","content":"a","x":1,"y":2}"#,
            r#"Write { into: Some(PagePoint { x: 1.0, y: 2.0 }), content: "a", press_enter: true }"#,
        );
        // A script that believes it can keep Enter from being pressed would be recorded as wrong.
        check(
            r#"{"action":"write_element_abs","content":"a","x":1,"y":2,"press_enter":false}"#,
            "write_element_abs always presses Enter",
        );
        check(r#"{"action":"click_element","x":1}"#, "invalid hint: missing field `y`");
        check(r#"{"action":"teleport"}"#, "invalid hint: unknown variant `teleport`");
        check("[", "invalid hint");
    }
}
