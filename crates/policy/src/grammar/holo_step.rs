//! The Holo step object of Holo3 and Holotron-3-Nano:
//! `{"note":…,"thought":…,"tool_call":{"tool_name":…,…}}`.
//!
//! The desktop tools are those that a public harness for Holotron-3-Nano describes. The browser
//! tools beside them have the names of the navigation object. Coordinates are whole numbers 0 to
//! 1000.

use furrow_rollout::{Action, ExtraAction, Modifiers, PointerButton, ScrollDirection};
use serde_json::{Value, json};

use super::dialect::{
    GrammarDialect, NOTCH_PIXELS, ReplyFrame, ReplyRemarks, ViewedPage, unsupported_action, with_keys,
    with_upload,
};
use super::holo::{ImageSpace, call, web_address};
use super::shape::{ActionField, ActionFields, ActionShape, FieldKind, ParsedCall, field, listed, read_call};
use super::space::CoordinateSpace;

pub(super) const STEP: GrammarDialect = GrammarDialect {
    name: "holo_step",
    read,
    encode,
    instructions,
    extra: &[ExtraAction::Upload],
    needs_marks: false,
    // A plan is a list of objects, for which the automaton has no element, so a constrained policy
    // makes none.
    frame: Some(ReplyFrame {
        call: "tool_call",
        name: "tool_name",
        shapes: |extra| with_upload(SHAPES, extra).into_iter().filter(|shape| shape.name != PLAN).collect(),
        endings: &["answer", "goto"],
    }),
};

const PLAN: &str = "update_plan";
const COORDINATE: FieldKind = FieldKind::Whole { from: 0, to: 1000 };
const ELEMENT: ActionField = field("element", FieldKind::Text);
const X: ActionField = field("x", COORDINATE);
const Y: ActionField = field("y", COORDINATE);
const CONTENT: ActionField = field("content", FieldKind::Text);

const SHAPES: &[ActionShape] = &[
    ActionShape {
        name: "click_desktop",
        fields: &[ELEMENT, X, Y, field("button", FieldKind::ChoiceOr(&["left", "right", "middle"]))],
        description: "click at a point",
    },
    ActionShape { name: "double_click_desktop", fields: &[ELEMENT, X, Y], description: "click twice" },
    ActionShape { name: "move_to_desktop", fields: &[ELEMENT, X, Y], description: "move the mouse there" },
    ActionShape {
        name: "drag_to_desktop",
        fields: &[ELEMENT, X, Y],
        description: "press where the mouse is, move, release at the point",
    },
    ActionShape {
        name: "scroll_desktop",
        fields: &[
            ELEMENT,
            X,
            Y,
            field("direction", FieldKind::Choice(&["down", "up", "left", "right"])),
            field("scroll_size", FieldKind::WholeOr { from: 1, to: 100, default: 10 }),
        ],
        description: "turn the wheel at a point by so many notches",
    },
    ActionShape {
        name: "write_desktop",
        fields: &[CONTENT, field("press_enter", FieldKind::Flag), field("overwrite", FieldKind::Flag)],
        description: "type where the focus is, instead of what is there if overwrite is true",
    },
    ActionShape {
        name: "hotkey_desktop",
        fields: &[
            field("keys", FieldKind::Keys { most: 5 }),
            field("repeat_count", FieldKind::WholeOr { from: 1, to: 20, default: 1 }),
        ],
        description: "press keys together",
    },
    ActionShape {
        name: "hold_and_tap_key_desktop",
        fields: &[
            field("hold_keys", FieldKind::Keys { most: 3 }),
            field("tap_keys", FieldKind::Keys { most: 5 }),
        ],
        description: "press and hold keys, press others one after the other, release the first",
    },
    ActionShape {
        name: "key_down_desktop",
        fields: &[field("key", FieldKind::Text)],
        description: "press a key; it stays down in later steps, until key_up_desktop or another page",
    },
    ActionShape {
        name: "key_up_desktop",
        fields: &[field("key", FieldKind::Text)],
        description: "release a key that is down",
    },
    ActionShape {
        name: PLAN,
        fields: &[field("goals", FieldKind::Anything)],
        description: "note the plan; goals is a list of {title, status}, status one of todo, running, done, failed",
    },
    ActionShape { name: "go_back", fields: &[], description: "go one page back" },
    ActionShape { name: "refresh", fields: &[], description: "load the page again" },
    ActionShape { name: "restart", fields: &[], description: "go back to the start page" },
    ActionShape {
        name: "goto",
        fields: &[field("url", FieldKind::Address)],
        description: "load an address that begins with http:// or https://",
    },
    ActionShape {
        name: "select_tab",
        fields: &[field("index", FieldKind::Whole { from: 0, to: 255 })],
        description: "show another tab, counted from 0, oldest first",
    },
    ActionShape {
        name: "wait",
        fields: &[field("seconds", FieldKind::WholeOr { from: 0, to: 10, default: 2 })],
        description: "let time pass",
    },
    ActionShape { name: "answer", fields: &[CONTENT], description: "give the answer and end the task" },
];

fn read(
    text: &str,
    extra: &[ExtraAction],
    view: ViewedPage<'_>,
    parsed: &mut ParsedCall,
) -> Result<Action, String> {
    let given = call(text, "tool_call")?;
    let (name, fields) = read_call(&given, ("tool_call", "tool_name"), &with_upload(SHAPES, extra), parsed)?;
    action(name, &fields, &ImageSpace { space: CoordinateSpace::Thousandths, image: view.image })
}

fn action(name: &str, fields: &ActionFields, aim: &ImageSpace) -> Result<Action, String> {
    let at = || aim.at(name, fields, "x", "y");
    Ok(match name {
        "click_desktop" => Action::Click {
            at: Some(at()?),
            button: PointerButton::parse(&fields.text("button")).unwrap_or_default(),
            count: 1,
            modifiers: Modifiers::NONE,
        },
        "double_click_desktop" => Action::Click {
            at: Some(at()?),
            button: PointerButton::Left,
            count: 2,
            modifiers: Modifiers::NONE,
        },
        "move_to_desktop" => Action::hover(at()?),
        "drag_to_desktop" => Action::Drag { from: None, to: at()?, modifiers: Modifiers::NONE },
        "scroll_desktop" => Action::Scroll {
            at: Some(at()?),
            direction: ScrollDirection::parse(&fields.text("direction"))
                .ok_or("scroll_desktop.direction is unknown")?,
            pixels: Some(fields.whole::<u32>("scroll_size") * NOTCH_PIXELS),
            modifiers: Modifiers::NONE,
        },
        "write_desktop" => {
            let write = Action::Write {
                into: None,
                content: fields.text("content"),
                press_enter: fields.flag("press_enter"),
            };
            match fields.flag("overwrite") {
                true => Action::Several(vec![Action::press("Control+a"), write]),
                false => write,
            }
        }
        "hotkey_desktop" => {
            Action::PressKey { key: fields.texts("keys").join("+"), times: fields.whole("repeat_count") }
        }
        "hold_and_tap_key_desktop" => {
            let keys = fields.texts("hold_keys");
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let taps = fields.texts("tap_keys").into_iter().map(Action::press);
            Action::of_several(with_keys(&keys, taps.collect()))?
        }
        "key_down_desktop" => Action::KeyDown { key: fields.text("key") },
        "key_up_desktop" => Action::KeyUp { key: fields.text("key") },
        PLAN => {
            check_plan(fields.value("goals"))?;
            Action::Wait { seconds: 0 }
        }
        "go_back" => Action::GoBack,
        "refresh" => Action::Refresh,
        "restart" => Action::Restart,
        "goto" => Action::Goto { url: web_address(fields.text("url"))? },
        "select_tab" => Action::SelectTab { index: fields.whole("index") },
        "wait" => Action::Wait { seconds: fields.whole("seconds") },
        "answer" => Action::Answer { content: fields.text("content") },
        "upload" => Action::Upload { names: fields.texts("files") },
        other => return Err(format!("there is no action {other:?}")),
    })
}

/// A plan changes nothing on the page, but its form is checked.
fn check_plan(goals: &Value) -> Result<(), String> {
    let is_goal = |goal: &Value| {
        goal["title"].is_string()
            && matches!(goal["status"].as_str(), Some("todo" | "running" | "done" | "failed"))
            && goal.as_object().is_some_and(|goal| goal.len() == 2)
    };
    match goals.as_array() {
        Some(goals) if (1..=20).contains(&goals.len()) && goals.iter().all(is_goal) => Ok(()),
        _ => Err("update_plan.goals is not a list of 1 to 20 goals with title and status".into()),
    }
}

fn encode(
    action: &Action,
    remarks: &ReplyRemarks,
    _: &[ExtraAction],
    view: ViewedPage<'_>,
) -> Result<String, String> {
    let aim = ImageSpace { space: CoordinateSpace::Thousandths, image: view.image };
    let call = inner(action, &remarks.element, &aim).ok_or_else(|| unsupported_action(STEP.name, action))?;
    Ok(json!({ "note": remarks.note, "thought": remarks.thought, "tool_call": call }).to_string())
}

fn inner(action: &Action, element: &str, aim: &ImageSpace) -> Option<Value> {
    let aimed = |tool: &str, at| {
        let (x, y) = aim.whole(at);
        json!({ "tool_name": tool, "element": element, "x": x, "y": y })
    };
    Some(match action {
        modified if !modified.modifiers().is_empty() => return None,
        Action::Click { at: Some(at), button, count: 1, .. } => {
            let mut call = aimed("click_desktop", *at);
            call["button"] = button.as_str().into();
            call
        }
        Action::Click { at: Some(at), button: PointerButton::Left, count: 2, .. } => {
            aimed("double_click_desktop", *at)
        }
        Action::Move { at, .. } => aimed("move_to_desktop", *at),
        Action::Drag { from: None, to, .. } => aimed("drag_to_desktop", *to),
        Action::Scroll { at: Some(at), direction, pixels: Some(pixels), .. } => {
            let mut call = aimed("scroll_desktop", *at);
            call["direction"] = direction.as_str().into();
            call["scroll_size"] = pixels.div_ceil(NOTCH_PIXELS).clamp(1, 100).into();
            call
        }
        Action::Write { into: None, content, press_enter } => {
            json!({ "tool_name": "write_desktop", "content": content, "press_enter": press_enter, "overwrite": false })
        }
        Action::PressKey { key, times } => {
            json!({ "tool_name": "hotkey_desktop", "keys": [key], "repeat_count": times })
        }
        Action::KeyDown { key } => json!({ "tool_name": "key_down_desktop", "key": key }),
        Action::KeyUp { key } => json!({ "tool_name": "key_up_desktop", "key": key }),
        Action::Several(parts) => {
            let (keys, taps) = kept_and_tapped(parts)?;
            json!({ "tool_name": "hold_and_tap_key_desktop", "hold_keys": keys, "tap_keys": taps })
        }
        Action::GoBack => json!({ "tool_name": "go_back" }),
        Action::Refresh => json!({ "tool_name": "refresh" }),
        Action::Restart => json!({ "tool_name": "restart" }),
        Action::Goto { url } => json!({ "tool_name": "goto", "url": url }),
        Action::SelectTab { index } => json!({ "tool_name": "select_tab", "index": index }),
        Action::Wait { seconds } if *seconds <= 10 => json!({ "tool_name": "wait", "seconds": seconds }),
        Action::Answer { content } => json!({ "tool_name": "answer", "content": content }),
        Action::Upload { names } => json!({ "tool_name": "upload", "files": names }),
        _ => return None,
    })
}

/// The keys that stay down and those that are pressed meanwhile, if the actions are nothing else.
fn kept_and_tapped(parts: &[Action]) -> Option<(Vec<&str>, Vec<&str>)> {
    let key = |part: &&Action| matches!(part, Action::KeyDown { .. });
    let down: Vec<&str> = parts.iter().take_while(key).filter_map(key_of).collect();
    let taps = parts.get(down.len()..parts.len().checked_sub(down.len())?)?;
    let up: Vec<&str> = parts.iter().rev().take(down.len()).filter_map(key_of).collect();
    let is_up = |part: &&Action| matches!(part, Action::KeyUp { .. });
    let is_tap = |part: &Action| matches!(part, Action::PressKey { times: 1, .. });
    let are_taps = (1..=5).contains(&taps.len()) && taps.iter().all(is_tap);
    let is_whole = (1..=3).contains(&down.len())
        && down == up
        && parts.iter().rev().take_while(is_up).count() == up.len();
    (is_whole && are_taps).then(|| (down, taps.iter().filter_map(key_of).collect()))
}

fn key_of(action: &Action) -> Option<&str> {
    match action {
        Action::KeyDown { key } | Action::KeyUp { key } | Action::PressKey { key, .. } => Some(key),
        _ => None,
    }
}

fn instructions(extra: &[ExtraAction]) -> String {
    format!(
        "You operate a web browser. Each turn shows a screenshot. Reply with one JSON object: \"note\" (what to remember, or null), \
         \"thought\" (why), \"tool_call\" (its \"tool_name\" and arguments side by side, one of those below). {}\n{}",
        CoordinateSpace::Thousandths.description(),
        listed(&with_upload(SHAPES, extra)),
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::check;

    #[test]
    fn steps_become_actions_or_say_why_not() {
        let check = |text: &str, want: &str| check("holo_step", text, want);
        check(
            r#"{"note":null,"thought":"send","tool_call":{"tool_name":"click_desktop","element":"Send","x":500,"y":1000}}"#,
            "Click { at: Some(PagePoint { x: 500.0, y: 500.0 }), button: Left, count: 1, modifiers: none }",
        );
        check(
            r#"{"tool_call":{"tool_name":"click_desktop","element":"","x":0,"y":0,"button":"right"}}"#,
            "Click { at: Some(PagePoint { x: 0.0, y: 0.0 }), button: Right, count: 1, modifiers: none }",
        );
        check(
            r#"{"tool_call":{"tool_name":"double_click_desktop","element":"","x":10,"y":10}}"#,
            "Click { at: Some(PagePoint { x: 10.0, y: 5.0 }), button: Left, count: 2, modifiers: none }",
        );
        check(
            r#"{"tool_call":{"tool_name":"drag_to_desktop","element":"","x":10,"y":10}}"#,
            "Drag { from: None, to: PagePoint { x: 10.0, y: 5.0 }, modifiers: none }",
        );
        check(
            r#"{"tool_call":{"tool_name":"scroll_desktop","element":"","x":10,"y":10,"direction":"up","scroll_size":3}}"#,
            "Scroll { at: Some(PagePoint { x: 10.0, y: 5.0 }), direction: Up, pixels: Some(300), modifiers: none }",
        );
        check(
            r#"{"tool_call":{"tool_name":"write_desktop","content":"a","overwrite":true}}"#,
            r#"Several([PressKey { key: "Control+a", times: 1 }, Write { into: None, content: "a", press_enter: false }])"#,
        );
        check(
            r#"{"tool_call":{"tool_name":"hotkey_desktop","keys":["ctrl","shift","t"],"repeat_count":2}}"#,
            r#"PressKey { key: "ctrl+shift+t", times: 2 }"#,
        );
        check(
            r#"{"tool_call":{"tool_name":"hold_and_tap_key_desktop","hold_keys":["shift"],"tap_keys":["Tab","Enter"]}}"#,
            "Several([KeyDown { key: \"shift\" }, PressKey { key: \"Tab\", times: 1 }, PressKey { key: \"Enter\", times: 1 }, \
             KeyUp { key: \"shift\" }])",
        );
        check(
            r#"{"tool_call":{"tool_name":"update_plan","goals":[{"title":"look","status":"done"}]}}"#,
            "Wait { seconds: 0 }",
        );
        check(r#"{"tool_call":{"tool_name":"update_plan","goals":[]}}"#, "update_plan.goals is not a list");
        check(r#"{"tool_call":{"tool_name":"key_down_desktop","key":"a"}}"#, r#"KeyDown { key: "a" }"#);
        check(r#"{"tool_call":{"tool_name":"key_up_desktop","key":"a"}}"#, r#"KeyUp { key: "a" }"#);
        check(
            r#"{"tool_call":{"tool_name":"move_to_desktop","element":"","x":10,"y":10}}"#,
            "Move { at: PagePoint { x: 10.0, y: 5.0 }, modifiers: none }",
        );
        check(
            r#"{"tool_call":{"tool_name":"hotkey_desktop","keys":[]}}"#,
            "hotkey_desktop.keys is []; use a list of 1 to 5",
        );
        check(
            r#"{"action":{"action":"go_back"}}"#,
            "there is no field \"action\"; use note, thought, tool_call",
        );
        check(r#"{"tool_call":[]}"#, "tool_call is not an object");
        check(r#"{"tool_call":{}}"#, "tool_call.tool_name is missing");
    }
}
