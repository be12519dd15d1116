//! Conversions of replies, actions and outcomes.

use std::ops::RangeInclusive;

use furrow_rollout::{
    Action, CLICKS_MAX, HOLD_MILLIS_MAX, Modifiers, Outcome, OutcomeName, PRESSES_MAX, PagePoint,
    PointerButton, PolicyReply, SCROLL_PIXELS_MAX, SEVERAL_MAX, ScrollDirection, UPLOAD_FILES_MAX,
    WAIT_SECONDS_MAX,
};

use crate::error::{WireError, capped, finite, known_value, need, unknown};
use crate::limits::{TEXT_BYTES_MAX, URL_BYTES_MAX};
use crate::v1::{self, action as a};

/// Validates a policy's reply.
pub fn reply_from(message: v1::Reply) -> Result<PolicyReply, WireError> {
    let action = match need(message.reading, "reply.reading")? {
        v1::reply::Reading::Action(action) => Ok(action_from(action)?),
        v1::reply::Reading::Error(error) => Err(capped(error, TEXT_BYTES_MAX, "reply.error")?),
    };
    Ok(PolicyReply {
        raw_text: capped(message.raw_text, TEXT_BYTES_MAX, "reply.raw_text")?,
        name: capped(message.name, 256, "reply.name")?,
        args_json: capped(message.args_json, TEXT_BYTES_MAX, "reply.args_json")?,
        action,
    })
}

/// Converts a reply to its message.
pub fn reply_into(value: &PolicyReply) -> v1::Reply {
    let reading = match &value.action {
        Ok(action) => v1::reply::Reading::Action(action_into(action)),
        Err(error) => v1::reply::Reading::Error(error.clone()),
    };
    v1::Reply {
        raw_text: value.raw_text.clone(),
        name: value.name.clone(),
        args_json: value.args_json.clone(),
        reading: Some(reading),
    }
}

/// Validates an outcome: its name is one of [`OutcomeName::ALL`], and its detail is cut to 500
/// characters.
pub fn outcome_from(message: v1::Outcome) -> Result<Outcome, WireError> {
    let name = known_value(
        OutcomeName::parse(&message.name),
        "outcome.name",
        &message.name,
        "a name of the closed set",
    )?;
    Ok(Outcome::with_detail(name, message.detail))
}

/// Converts an outcome to its message.
pub fn outcome_into(value: &Outcome) -> v1::Outcome {
    v1::Outcome { name: value.name.as_str().to_owned(), detail: value.detail.clone() }
}

fn action_from(message: v1::Action) -> Result<Action, WireError> {
    let text = |text: String, key| capped(text, TEXT_BYTES_MAX, key);
    Ok(match need(message.kind, "action.kind")? {
        a::Kind::Click(m) => Action::Click {
            at: optional_point(m.at, "click.at")?,
            button: button_from(&m.button, "click.button")?,
            count: number(m.count, 1..=CLICKS_MAX.into(), "click.count", "1 to 3")? as u8,
            modifiers: modifiers_from(&m.modifiers, "click.modifiers")?,
        },
        a::Kind::Move(m) => Action::Move {
            at: point_from(m.at, "move.at")?,
            modifiers: modifiers_from(&m.modifiers, "move.modifiers")?,
        },
        a::Kind::Write(m) => Action::Write {
            into: optional_point(m.into, "write.into")?,
            content: text(m.content, "write.content")?,
            press_enter: m.press_enter,
        },
        a::Kind::Scroll(m) => Action::Scroll {
            at: optional_point(m.at, "scroll.at")?,
            pixels: m
                .pixels
                .map(|pixels| number(pixels, 1..=SCROLL_PIXELS_MAX, "scroll.pixels", "1 to 10000"))
                .transpose()?,
            direction: known_value(
                ScrollDirection::parse(&m.direction),
                "scroll.direction",
                &m.direction,
                "down, up, left or right",
            )?,
            modifiers: modifiers_from(&m.modifiers, "scroll.modifiers")?,
        },
        a::Kind::GoBack(_) => Action::GoBack,
        a::Kind::GoForward(_) => Action::GoForward,
        a::Kind::Refresh(_) => Action::Refresh,
        a::Kind::Restart(_) => Action::Restart,
        a::Kind::Goto(m) => Action::Goto { url: capped(m.url, URL_BYTES_MAX, "goto.url")? },
        a::Kind::Wait(m) => Action::Wait {
            seconds: number(m.seconds, 0..=WAIT_SECONDS_MAX.into(), "wait.seconds", "0 to 30")? as u8,
        },
        a::Kind::Answer(m) => Action::Answer { content: text(m.content, "answer.content")? },
        a::Kind::Drag(m) => Action::Drag {
            from: optional_point(m.from, "drag.from")?,
            to: point_from(m.to, "drag.to")?,
            modifiers: modifiers_from(&m.modifiers, "drag.modifiers")?,
        },
        a::Kind::SelectTab(m) => Action::SelectTab { index: m.index },
        a::Kind::PressKey(m) => Action::PressKey {
            key: key_from(m.key, "press_key.key")?,
            times: number(m.times, 1..=PRESSES_MAX.into(), "press_key.times", "1 to 20")? as u8,
        },
        a::Kind::HoldKey(m) => Action::HoldKey {
            key: key_from(m.key, "hold_key.key")?,
            millis: number(m.millis, 1..=HOLD_MILLIS_MAX, "hold_key.millis", "1 to 30000")?,
        },
        a::Kind::KeyDown(m) => Action::KeyDown { key: key_from(m.key, "key_down.key")? },
        a::Kind::KeyUp(m) => Action::KeyUp { key: key_from(m.key, "key_up.key")? },
        a::Kind::MouseDown(m) => Action::MouseDown {
            at: optional_point(m.at, "mouse_down.at")?,
            button: button_from(&m.button, "mouse_down.button")?,
        },
        a::Kind::MouseUp(m) => Action::MouseUp {
            at: optional_point(m.at, "mouse_up.at")?,
            button: button_from(&m.button, "mouse_up.button")?,
        },
        a::Kind::Upload(m) => upload_from(m)?,
        a::Kind::OpenTab(m) => Action::OpenTab { url: capped(m.url, URL_BYTES_MAX, "open_tab.url")? },
        a::Kind::Several(m) => several_from(m)?,
    })
}

fn upload_from(message: a::Upload) -> Result<Action, WireError> {
    let count = message.names.len();
    known_value(
        (1..=UPLOAD_FILES_MAX).contains(&count).then_some(()),
        "upload.names",
        &format!("{count} names"),
        "1 to 16 names",
    )?;
    let names = message.names.into_iter().map(|name| capped(name, 1024, "upload.names"));
    Ok(Action::Upload { names: names.collect::<Result<_, _>>()? })
}

/// Checks the list before it converts any element: no list is longer than allowed and none contains
/// another one, however deeply a message is nested.
fn several_from(message: a::Several) -> Result<Action, WireError> {
    let right = "2 to 16 actions, none of them several, an answer only as the last";
    let nested = |action: &v1::Action| matches!(action.kind, Some(a::Kind::Several(_)));
    let count = message.actions.len();
    if !(2..=SEVERAL_MAX).contains(&count) || message.actions.iter().any(nested) {
        return Err(unknown("several.actions", &format!("{count} actions"), right));
    }
    let actions = message.actions.into_iter().map(action_from).collect::<Result<Vec<_>, _>>()?;
    Action::of_several(actions).map_err(|why| unknown("several.actions", &why, right))
}

fn action_into(value: &Action) -> v1::Action {
    let kind = match value {
        Action::Click { at, button, count, modifiers } => a::Kind::Click(a::Click {
            at: at.map(point_into),
            button: button.as_str().to_owned(),
            count: u32::from(*count),
            modifiers: modifiers.to_string(),
        }),
        Action::Move { at, modifiers } => {
            a::Kind::Move(a::Move { at: Some(point_into(*at)), modifiers: modifiers.to_string() })
        }
        Action::Write { into, content, press_enter } => a::Kind::Write(a::Write {
            into: into.map(point_into),
            content: content.clone(),
            press_enter: *press_enter,
        }),
        Action::Scroll { at, direction, pixels, modifiers } => a::Kind::Scroll(a::Scroll {
            direction: direction.as_str().to_owned(),
            at: at.map(point_into),
            pixels: *pixels,
            modifiers: modifiers.to_string(),
        }),
        Action::GoBack => a::Kind::GoBack(a::Plain {}),
        Action::GoForward => a::Kind::GoForward(a::Plain {}),
        Action::Refresh => a::Kind::Refresh(a::Plain {}),
        Action::Restart => a::Kind::Restart(a::Plain {}),
        Action::Goto { url } => a::Kind::Goto(a::Goto { url: url.clone() }),
        Action::Wait { seconds } => a::Kind::Wait(a::Wait { seconds: u32::from(*seconds) }),
        Action::Answer { content } => a::Kind::Answer(a::Answer { content: content.clone() }),
        Action::Drag { from, to, modifiers } => a::Kind::Drag(a::Drag {
            from: from.map(point_into),
            to: Some(point_into(*to)),
            modifiers: modifiers.to_string(),
        }),
        Action::SelectTab { index } => a::Kind::SelectTab(a::SelectTab { index: *index }),
        Action::PressKey { key, times } => {
            a::Kind::PressKey(a::PressKey { key: key.clone(), times: u32::from(*times) })
        }
        Action::HoldKey { key, millis } => a::Kind::HoldKey(a::HoldKey { key: key.clone(), millis: *millis }),
        Action::KeyDown { key } => a::Kind::KeyDown(a::Key { key: key.clone() }),
        Action::KeyUp { key } => a::Kind::KeyUp(a::Key { key: key.clone() }),
        Action::MouseDown { at, button } => a::Kind::MouseDown(button_into(*at, *button)),
        Action::MouseUp { at, button } => a::Kind::MouseUp(button_into(*at, *button)),
        Action::Upload { names } => a::Kind::Upload(a::Upload { names: names.clone() }),
        Action::OpenTab { url } => a::Kind::OpenTab(a::OpenTab { url: url.clone() }),
        Action::Several(actions) => {
            a::Kind::Several(a::Several { actions: actions.iter().map(action_into).collect() })
        }
    };
    v1::Action { kind: Some(kind) }
}

fn key_from(name: String, key: &'static str) -> Result<String, WireError> {
    capped(name, 256, key)
}

fn button_from(name: &str, key: &'static str) -> Result<PointerButton, WireError> {
    known_value(PointerButton::parse(name), key, name, "left, middle or right")
}

fn button_into(at: Option<PagePoint>, button: PointerButton) -> a::Button {
    a::Button { at: at.map(point_into), button: button.as_str().to_owned() }
}

fn modifiers_from(names: &str, key: &'static str) -> Result<Modifiers, WireError> {
    let expected = "some of Alt, Control, Meta and Shift, joined by +";
    known_value(Modifiers::parse(names), key, names, expected)
}

fn point_from(message: Option<v1::Point>, key: &'static str) -> Result<PagePoint, WireError> {
    let point = need(message, key)?;
    Ok(PagePoint { x: finite(point.x, key)?, y: finite(point.y, key)? })
}

fn optional_point(message: Option<v1::Point>, key: &'static str) -> Result<Option<PagePoint>, WireError> {
    message.map(|point| point_from(Some(point), key)).transpose()
}

fn point_into(value: PagePoint) -> v1::Point {
    v1::Point { x: value.x, y: value.y }
}

fn number(
    number: u32,
    allowed: RangeInclusive<u32>,
    key: &'static str,
    expected: &'static str,
) -> Result<u32, WireError> {
    known_value(allowed.contains(&number).then_some(number), key, &number.to_string(), expected)
}
