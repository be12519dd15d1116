//! Replies, actions and outcomes.

use furrow_rollout::{Action, Direction, Outcome, OutcomeName, PagePoint, Reply};

use crate::error::{WireError, capped, finite, need, unknown, word};
use crate::limits::{TEXT_BYTES_MAX, URL_BYTES_MAX};
use crate::v1::{self, action as a};

/// Noun from message.
pub fn reply_from(message: v1::Reply) -> Result<Reply, WireError> {
    let action = match need(message.reading, "reply.reading")? {
        v1::reply::Reading::Action(action) => Ok(action_from(action)?),
        v1::reply::Reading::Error(error) => Err(capped(error, TEXT_BYTES_MAX, "reply.error")?),
    };
    Ok(Reply {
        raw_text: capped(message.raw_text, TEXT_BYTES_MAX, "reply.raw_text")?,
        name: capped(message.name, 256, "reply.name")?,
        args_json: capped(message.args_json, TEXT_BYTES_MAX, "reply.args_json")?,
        action,
    })
}

/// Message from noun.
pub fn reply_into(noun: &Reply) -> v1::Reply {
    let reading = match &noun.action {
        Ok(action) => v1::reply::Reading::Action(action_into(action)),
        Err(error) => v1::reply::Reading::Error(error.clone()),
    };
    v1::Reply {
        raw_text: noun.raw_text.clone(),
        name: noun.name.clone(),
        args_json: noun.args_json.clone(),
        reading: Some(reading),
    }
}

/// Noun from message.
pub fn outcome_from(message: v1::Outcome) -> Result<Outcome, WireError> {
    let name =
        word(OutcomeName::parse(&message.name), "outcome.name", &message.name, "a name of the closed set")?;
    Ok(Outcome::told(name, message.detail))
}

/// Message from noun.
pub fn outcome_into(noun: &Outcome) -> v1::Outcome {
    v1::Outcome { name: noun.name.as_str().to_owned(), detail: noun.detail.clone() }
}

fn action_from(message: v1::Action) -> Result<Action, WireError> {
    let text = |text: String, key| capped(text, TEXT_BYTES_MAX, key);
    Ok(match need(message.kind, "action.kind")? {
        a::Kind::Click(m) => Action::Click { at: point_from(m.at, "click.at")? },
        a::Kind::Write(m) => Action::Write {
            into: m.into.map(|point| point_from(Some(point), "write.into")).transpose()?,
            content: text(m.content, "write.content")?,
            press_enter: m.press_enter,
        },
        a::Kind::Scroll(m) => Action::Scroll {
            direction: word(
                Direction::parse(&m.direction),
                "scroll.direction",
                &m.direction,
                "down, up, left or right",
            )?,
        },
        a::Kind::GoBack(_) => Action::GoBack,
        a::Kind::Refresh(_) => Action::Refresh,
        a::Kind::Restart(_) => Action::Restart,
        a::Kind::Goto(m) => Action::Goto { url: capped(m.url, URL_BYTES_MAX, "goto.url")? },
        a::Kind::Wait(m) => Action::Wait { seconds: seconds_from(m.seconds)? },
        a::Kind::Answer(m) => Action::Answer { content: text(m.content, "answer.content")? },
        a::Kind::Drag(m) => {
            Action::Drag { from: point_from(m.from, "drag.from")?, to: point_from(m.to, "drag.to")? }
        }
        a::Kind::SelectTab(m) => Action::SelectTab { index: m.index },
        a::Kind::PressKey(m) => Action::PressKey { key: capped(m.key, 256, "press_key.key")? },
    })
}

fn action_into(noun: &Action) -> v1::Action {
    let kind = match noun {
        Action::Click { at } => a::Kind::Click(a::Click { at: Some(point_into(*at)) }),
        Action::Write { into, content, press_enter } => a::Kind::Write(a::Write {
            into: into.map(point_into),
            content: content.clone(),
            press_enter: *press_enter,
        }),
        Action::Scroll { direction } => {
            a::Kind::Scroll(a::Scroll { direction: direction.as_str().to_owned() })
        }
        Action::GoBack => a::Kind::GoBack(a::Plain {}),
        Action::Refresh => a::Kind::Refresh(a::Plain {}),
        Action::Restart => a::Kind::Restart(a::Plain {}),
        Action::Goto { url } => a::Kind::Goto(a::Goto { url: url.clone() }),
        Action::Wait { seconds } => a::Kind::Wait(a::Wait { seconds: u32::from(*seconds) }),
        Action::Answer { content } => a::Kind::Answer(a::Answer { content: content.clone() }),
        Action::Drag { from, to } => {
            a::Kind::Drag(a::Drag { from: Some(point_into(*from)), to: Some(point_into(*to)) })
        }
        Action::SelectTab { index } => a::Kind::SelectTab(a::SelectTab { index: *index }),
        Action::PressKey { key } => a::Kind::PressKey(a::PressKey { key: key.clone() }),
    };
    v1::Action { kind: Some(kind) }
}

fn point_from(message: Option<v1::Point>, key: &'static str) -> Result<PagePoint, WireError> {
    let point = need(message, key)?;
    Ok(PagePoint { x: finite(point.x, key)?, y: finite(point.y, key)? })
}

fn point_into(noun: PagePoint) -> v1::Point {
    v1::Point { x: noun.x, y: noun.y }
}

fn seconds_from(seconds: u32) -> Result<u8, WireError> {
    match seconds {
        0..=10 => Ok(seconds as u8),
        other => Err(unknown("wait.seconds", &other.to_string(), "0 to 10")),
    }
}
