//! Converts a reply and its action to columns and back.

use furrow_rollout::{Action, PagePoint, PointerButton, PolicyReply, ScrollDirection};
use serde::{Deserialize, Serialize};

use super::error::RowError;
use super::values::{parse_text, present};
use crate::schema::ActionCell;

impl From<&PolicyReply> for ActionCell {
    fn from(reply: &PolicyReply) -> Self {
        let mut cell = Self {
            raw_text: reply.raw_text.clone(),
            name: reply.name.clone(),
            args_json: reply.args_json.clone(),
            valid: reply.action.is_ok(),
            ..Self::default()
        };
        match &reply.action {
            Ok(action) => cell.set_action(action),
            Err(why) => cell.error = Some(why.clone()),
        }
        cell
    }
}

impl ActionCell {
    fn set_action(&mut self, action: &Action) {
        if let Some(point) = action.point() {
            (self.x, self.y) = (Some(point.x), Some(point.y));
        }
        self.kind = Some(action.kind().into());
        match action {
            Action::Click { button, count, .. } => {
                self.text = Some(button.as_str().into());
                self.number = Some((*count).into());
            }
            Action::Write { content, press_enter, .. } => {
                self.text = Some(content.clone());
                self.press_enter = Some(*press_enter);
            }
            Action::Scroll { direction, pixels, .. } => {
                self.text = Some(direction.as_str().into());
                self.number = pixels.map(u32::cast_signed);
            }
            Action::Goto { url: text } | Action::Answer { content: text } | Action::OpenTab { url: text } => {
                self.text = Some(text.clone());
            }
            Action::PressKey { key, times } => {
                self.text = Some(key.clone());
                self.number = Some((*times).into());
            }
            Action::Wait { seconds } => self.number = Some((*seconds).into()),
            Action::SelectTab { index } => self.number = Some(index.cast_signed()),
            Action::Drag { from, .. } => {
                (self.from_x, self.from_y) = (from.map(|from| from.x), from.map(|from| from.y));
            }
            Action::Several(parts) => {
                let parts: Vec<ActionPart> = parts.iter().map(ActionPart::from).collect();
                self.text = Some(serde_json::json!(parts).to_string());
            }
            Action::Move { .. } | Action::GoBack | Action::GoForward | Action::Refresh | Action::Restart => {}
        }
    }

    pub(super) fn into_domain(self) -> Result<PolicyReply, RowError> {
        let action = match (self.valid, &self.error) {
            (true, None) => Ok(self.action()?),
            (false, Some(why)) => Err(why.clone()),
            _ => return Err(RowError::ActionValidity),
        };
        Ok(PolicyReply { raw_text: self.raw_text, name: self.name, args_json: self.args_json, action })
    }

    fn action(&self) -> Result<Action, RowError> {
        let aim = || point("action.x and action.y", self.x, self.y);
        let text = || present("action.text", self.text.clone());
        let number = || present("action.number", self.number);
        Ok(match present("action.kind", self.kind.as_deref())? {
            "click" => Action::Click {
                at: self.x.map(|_| aim()).transpose()?,
                button: match &self.text {
                    Some(text) => parse_text("action.text", text, PointerButton::parse)?,
                    None => PointerButton::Left,
                },
                count: times(self.number)?,
            },
            "move" => Action::Move { at: aim()? },
            "write" => Action::Write {
                into: self.x.map(|_| aim()).transpose()?,
                content: text()?,
                press_enter: present("action.press_enter", self.press_enter)?,
            },
            "scroll" => Action::Scroll {
                at: self.x.map(|_| aim()).transpose()?,
                direction: parse_text("action.text", &text()?, ScrollDirection::parse)?,
                pixels: self.number.map(i32::cast_unsigned),
            },
            "go_back" => Action::GoBack,
            "go_forward" => Action::GoForward,
            "refresh" => Action::Refresh,
            "restart" => Action::Restart,
            "goto" => Action::Goto { url: text()? },
            "wait" => Action::Wait { seconds: u8::try_from(number()?)? },
            "answer" => Action::Answer { content: text()? },
            "drag" => Action::Drag {
                from: (self.from_x)
                    .map(|_| point("action.from_x and from_y", self.from_x, self.from_y))
                    .transpose()?,
                to: aim()?,
            },
            "select_tab" => Action::SelectTab { index: number()?.cast_unsigned() },
            "open_tab" => Action::OpenTab { url: text()? },
            "press_key" => Action::PressKey { key: text()?, times: times(self.number)? },
            "several" => {
                let parts: Vec<ActionPart> = serde_json::from_str(&text()?)?;
                let parts = parts.into_iter().map(|part| ActionCell::from(part).action());
                Action::of_several(parts.collect::<Result<_, _>>()?).map_err(RowError::SeveralActions)?
            }
            other => return parse_text("action.kind", other, |_| None),
        })
    }
}

/// One of several actions, as the column `text` lists them.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ActionPart {
    kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    x: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    y: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from_x: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from_y: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    press_enter: Option<bool>,
}

impl From<&Action> for ActionPart {
    fn from(action: &Action) -> Self {
        let mut cell = ActionCell::default();
        cell.set_action(action);
        let ActionCell { kind, x, y, from_x, from_y, text, number, press_enter, .. } = cell;
        Self { kind, x, y, from_x, from_y, text, number, press_enter }
    }
}

impl From<ActionPart> for ActionCell {
    fn from(part: ActionPart) -> Self {
        let ActionPart { kind, x, y, from_x, from_y, text, number, press_enter } = part;
        Self { kind, x, y, from_x, from_y, text, number, press_enter, ..Self::default() }
    }
}

/// Number of clicks or presses; data sets of older versions lack it.
fn times(number: Option<i32>) -> Result<u8, RowError> {
    Ok(u8::try_from(number.unwrap_or(1))?)
}

fn point(columns: &'static str, x: Option<f32>, y: Option<f32>) -> Result<PagePoint, RowError> {
    Ok(PagePoint { x: present(columns, x)?, y: present(columns, y)? })
}
