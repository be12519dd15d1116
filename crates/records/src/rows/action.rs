//! Converts a reply and its action to columns and back.

use furrow_rollout::{Action, Modifiers, PagePoint, PointerButton, PolicyReply, ScrollDirection};
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
            Action::Click { button, count, modifiers, .. } => {
                self.text = Some(modified(*modifiers, button.as_str()));
                self.number = Some((*count).into());
            }
            Action::Write { content, press_enter, .. } => {
                self.text = Some(content.clone());
                self.press_enter = Some(*press_enter);
            }
            Action::Move { modifiers, .. } => self.text = modifier_names(*modifiers),
            Action::Scroll { direction, pixels, modifiers, .. } => {
                self.text = Some(modified(*modifiers, direction.as_str()));
                self.number = pixels.map(u32::cast_signed);
            }
            Action::Goto { url: text } | Action::Answer { content: text } | Action::OpenTab { url: text } => {
                self.text = Some(text.clone());
            }
            Action::PressKey { key, times } => {
                self.text = Some(key.clone());
                self.number = Some((*times).into());
            }
            Action::HoldKey { key, millis } => {
                self.text = Some(key.clone());
                self.number = Some(millis.cast_signed());
            }
            Action::KeyDown { key } | Action::KeyUp { key } => self.text = Some(key.clone()),
            Action::MouseDown { button, .. } | Action::MouseUp { button, .. } => {
                self.text = Some(button.as_str().into());
            }
            Action::Wait { seconds } => self.number = Some((*seconds).into()),
            Action::SelectTab { index } => self.number = Some(index.cast_signed()),
            Action::Drag { from, modifiers, .. } => {
                self.text = modifier_names(*modifiers);
                (self.from_x, self.from_y) = (from.map(|from| from.x), from.map(|from| from.y));
            }
            Action::Upload { names } => self.text = Some(serde_json::json!(names).to_string()),
            Action::Several(parts) => {
                let parts: Vec<ActionPart> = parts.iter().map(ActionPart::from).collect();
                self.text = Some(serde_json::json!(parts).to_string());
            }
            Action::GoBack | Action::GoForward | Action::Refresh | Action::Restart => {}
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
        let optional_aim = || self.x.map(|_| aim()).transpose();
        Ok(match present("action.kind", self.kind.as_deref())? {
            "click" => {
                let (modifiers, button) = match &self.text {
                    Some(text) => parse_text("action.text", text, |text| split(text, PointerButton::parse))?,
                    None => (Modifiers::NONE, PointerButton::Left),
                };
                Action::Click { at: optional_aim()?, button, count: times(self.number)?, modifiers }
            }
            "move" => Action::Move { at: aim()?, modifiers: self.modifiers()? },
            "write" => Action::Write {
                into: optional_aim()?,
                content: text()?,
                press_enter: present("action.press_enter", self.press_enter)?,
            },
            "scroll" => {
                let (modifiers, direction) =
                    parse_text("action.text", &text()?, |text| split(text, ScrollDirection::parse))?;
                let pixels = self.number.map(i32::cast_unsigned);
                Action::Scroll { at: optional_aim()?, direction, pixels, modifiers }
            }
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
                modifiers: self.modifiers()?,
            },
            "select_tab" => Action::SelectTab { index: number()?.cast_unsigned() },
            "open_tab" => Action::OpenTab { url: text()? },
            "press_key" => Action::PressKey { key: text()?, times: times(self.number)? },
            "hold_key" => Action::HoldKey { key: text()?, millis: number()?.cast_unsigned() },
            "key_down" => Action::KeyDown { key: text()? },
            "key_up" => Action::KeyUp { key: text()? },
            "mouse_down" => Action::MouseDown { at: optional_aim()?, button: self.button()? },
            "mouse_up" => Action::MouseUp { at: optional_aim()?, button: self.button()? },
            "upload" => Action::Upload { names: serde_json::from_str(&text()?)? },
            "several" => {
                let parts: Vec<ActionPart> = serde_json::from_str(&text()?)?;
                let parts = parts.into_iter().map(|part| ActionCell::from(part).action());
                Action::of_several(parts.collect::<Result<_, _>>()?).map_err(RowError::SeveralActions)?
            }
            other => return parse_text("action.kind", other, |_| None),
        })
    }

    fn button(&self) -> Result<PointerButton, RowError> {
        parse_text("action.text", &present("action.text", self.text.clone())?, PointerButton::parse)
    }

    /// The modifiers of an action whose text is nothing else.
    fn modifiers(&self) -> Result<Modifiers, RowError> {
        parse_text("action.text", self.text.as_deref().unwrap_or_default(), Modifiers::parse)
    }
}

/// The modifiers of an action in front of its text: `Control+Shift+left`.
fn modified(modifiers: Modifiers, text: &str) -> String {
    match modifiers.is_empty() {
        true => text.to_owned(),
        false => format!("{modifiers}+{text}"),
    }
}

fn modifier_names(modifiers: Modifiers) -> Option<String> {
    (!modifiers.is_empty()).then(|| modifiers.to_string())
}

/// Parses what `modified` writes.
fn split<T>(text: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<(Modifiers, T)> {
    let (modifiers, last) = text.rsplit_once('+').unwrap_or(("", text));
    Some((Modifiers::parse(modifiers)?, parse(last)?))
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
