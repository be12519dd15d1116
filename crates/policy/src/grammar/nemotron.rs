//! Nemotron's browser tool calls:
//! `<TOOLCALL>[{"name":"computer","arguments":{"actions":[…]}}]</TOOLCALL>`.
//!
//! Tools and fields are those of the WebArena agent that NVIDIA's NeMo site describes. Coordinates
//! are numbers 0 to 1 of the viewport, and one `computer` call has a list of actions. Text before
//! the calls is thinking. Nothing there presses a key or a button without releasing it.

use furrow_rollout::{
    Action, EMPTY_PAGE, ExtraAction, Modifiers, PRESSES_MAX, PagePoint, PointerButton, SCROLL_PIXELS_MAX,
    ScrollDirection, Size,
};
use serde_json::{Value, json};

use super::dialect::{
    GrammarDialect, NOTCH_PIXELS, ReplyRemarks, ViewedPage, distance, unsupported_action, with_upload,
};
use super::holo::web_address;
use super::shape::{ActionField, ActionFields, ActionShape, FieldKind, ParsedCall, field, listed, read_call};
use super::space::CoordinateSpace;

pub(super) const TOOLS: GrammarDialect = GrammarDialect {
    name: "nemotron_tools",
    read: |text, extra, view, parsed| read(text, extra, view.image, parsed),
    encode: |action, remarks, _, view| encode(action, remarks, view),
    instructions,
    extra: &[ExtraAction::Upload],
    needs_marks: false,
    frame: None,
};

const OPEN: &str = "<TOOLCALL>";
const CLOSE: &str = "</TOOLCALL>";

const POINT_FIELDS: &[ActionField] = &[field("coordinate", FieldKind::Pair)];

const fn aimed(name: &'static str, says: &'static str) -> ActionShape {
    ActionShape { name, fields: POINT_FIELDS, description: says }
}

/// Actions of the tool `computer`.
const COMPUTER: &[ActionShape] = &[
    aimed("left_click", "click at a point"),
    aimed("middle_click", "click with the middle button"),
    aimed("right_click", "click with the right button"),
    aimed("double_click", "click twice"),
    aimed("triple_click", "click three times"),
    aimed("mouse_move", "move the mouse there"),
    ActionShape {
        name: "type",
        fields: &[field("text", FieldKind::Text)],
        description: "type where the focus is",
    },
    ActionShape {
        name: "key_press",
        fields: &[field("keys", FieldKind::Keys { most: 5 })],
        description: "press keys together",
    },
    ActionShape {
        name: "scroll",
        fields: &[
            field("scroll_parameters", FieldKind::Anything),
            field("coordinate", FieldKind::PairOrNone),
        ],
        description: "turn the wheel; scroll_parameters is {scroll_direction, scroll_amount}, the amount in notches",
    },
    ActionShape {
        name: "left_click_drag",
        fields: &[field("start_coordinate", FieldKind::Pair), field("coordinate", FieldKind::Pair)],
        description: "press at the one point, move, release at the other",
    },
    ActionShape {
        name: "wait",
        fields: &[field("duration", FieldKind::Number { from: 0.0, to: 30.0 })],
        description: "let so many seconds pass",
    },
];

const OTHERS: &[ActionShape] = &[
    ActionShape {
        name: "navigate",
        fields: &[field("url", FieldKind::Text), field("tab_id", FieldKind::Anything)],
        description: "load an address, or go \"back\" or \"forward\"",
    },
    ActionShape {
        name: "tabs_create",
        fields: &[field("url", FieldKind::Anything)],
        description: "open a tab with an address, or an empty one",
    },
    ActionShape {
        name: "tabs_focus",
        fields: &[field("tab_id", FieldKind::Whole { from: 0, to: 255 })],
        description: "show another tab, counted from 0, oldest first",
    },
    ActionShape {
        name: "terminate",
        fields: &[
            field("status", FieldKind::Choice(&["success", "failure"])),
            field("answer", FieldKind::Text),
        ],
        description: "give the answer and end the task",
    },
];

fn read(text: &str, extra: &[ExtraAction], image: Size, parsed: &mut ParsedCall) -> Result<Action, String> {
    let (_, rest) = text.split_once(OPEN).ok_or_else(|| format!("there is no {OPEN} in the reply"))?;
    let (calls, after) = rest.split_once(CLOSE).ok_or_else(|| format!("{OPEN} is not closed by {CLOSE}"))?;
    if !after.trim().is_empty() {
        return Err(format!("there is text after {CLOSE}"));
    }
    let calls: Value = serde_json::from_str(calls).map_err(|why| format!("the calls are not JSON: {why}"))?;
    let Value::Array(calls) = calls else { return Err("the calls are not a list".into()) };
    let actions = calls.iter().map(|call| tool(call, extra, image, parsed)).collect::<Result<Vec<_>, _>>()?;
    let name = actions.len() != 1;
    let action = Action::of_several(actions.into_iter().flatten().collect())?;
    if name {
        parsed.name = "several".into();
    }
    parsed.args_json = Some(json!({ "calls": calls }).to_string());
    Ok(action)
}

/// The actions of one call.
fn tool(
    call: &Value,
    extra: &[ExtraAction],
    image: Size,
    parsed: &mut ParsedCall,
) -> Result<Vec<Action>, String> {
    let Value::Object(arguments) = &call["arguments"] else {
        return Err("arguments is missing or not an object".into());
    };
    if call["name"] == "computer" {
        let Some(Value::Array(actions)) = arguments.get("actions") else {
            return Err("computer.actions is missing or not a list".into());
        };
        if arguments.len() != 1 {
            return Err("computer takes only actions".into());
        }
        let one = |action: &Value| {
            let given = action.as_object().ok_or("one of computer.actions is not an object")?;
            let (name, fields) = read_call(given, ("computer.actions", "action"), COMPUTER, parsed)?;
            computer_action(name, &fields, image)
        };
        return actions.iter().map(one).collect();
    }
    // With the name beside its arguments, it has the form of any other call.
    let mut given = arguments.clone();
    given.insert("name".into(), call["name"].clone());
    let (name, fields) = read_call(&given, ("call", "name"), &with_upload(OTHERS, extra), parsed)?;
    Ok(vec![other_tool_action(name, &fields)?])
}

fn computer_action(name: &str, fields: &ActionFields, image: Size) -> Result<Action, String> {
    let at = |key: &str| {
        let point = fields.pair(key).map(|(x, y)| CoordinateSpace::Fractions.page(x, y, image));
        point.transpose().map_err(|why| format!("{name}.{key}: {why}"))
    };
    let click = |button, count| {
        Ok(Action::Click { at: at("coordinate")?, button, count, modifiers: Modifiers::NONE })
    };
    match name {
        "left_click" => click(PointerButton::Left, 1),
        "middle_click" => click(PointerButton::Middle, 1),
        "right_click" => click(PointerButton::Right, 1),
        "double_click" => click(PointerButton::Left, 2),
        "triple_click" => click(PointerButton::Left, 3),
        "mouse_move" => Ok(Action::hover(at("coordinate")?.ok_or("mouse_move.coordinate is missing")?)),
        "type" => Ok(Action::Write { into: None, content: fields.text("text"), press_enter: false }),
        "key_press" => Ok(Action::press(fields.texts("keys").join("+"))),
        "scroll" => scroll(fields.value("scroll_parameters"), at("coordinate")?),
        "left_click_drag" => Ok(Action::Drag {
            from: at("start_coordinate")?,
            to: at("coordinate")?.ok_or("left_click_drag.coordinate is missing")?,
            modifiers: Modifiers::NONE,
        }),
        "wait" => Ok(Action::Wait { seconds: fields.number("duration").ceil() as u8 }),
        other => Err(format!("there is no action {other:?}")),
    }
}

fn scroll(given: &Value, at: Option<PagePoint>) -> Result<Action, String> {
    let direction = given["scroll_direction"].as_str().and_then(ScrollDirection::parse);
    let direction =
        direction.ok_or("scroll.scroll_parameters.scroll_direction must be up, down, left or right")?;
    let notches = given["scroll_amount"].as_f64().filter(|amount| *amount >= 0.0);
    let notches = notches.ok_or("scroll.scroll_parameters.scroll_amount must be a number of at least 0")?;
    let pixels = (notches * f64::from(NOTCH_PIXELS)).round().min(f64::from(SCROLL_PIXELS_MAX)) as u32;
    Ok(match pixels {
        0 => Action::Wait { seconds: 0 },
        pixels => Action::Scroll { at, direction, pixels: Some(pixels), modifiers: Modifiers::NONE },
    })
}

fn other_tool_action(name: &str, fields: &ActionFields) -> Result<Action, String> {
    Ok(match name {
        "navigate" => match fields.text("url").as_str() {
            "back" => Action::GoBack,
            "forward" => Action::GoForward,
            url => Action::Goto { url: web_address(url.into())? },
        },
        "tabs_create" => match fields.value("url") {
            Value::Null => Action::OpenTab { url: EMPTY_PAGE.into() },
            Value::String(url) if url == EMPTY_PAGE => Action::OpenTab { url: EMPTY_PAGE.into() },
            Value::String(url) => Action::OpenTab { url: web_address(url.clone())? },
            _ => return Err("tabs_create.url is not a string".into()),
        },
        "tabs_focus" => Action::SelectTab { index: fields.whole("tab_id") },
        "terminate" => Action::Answer { content: fields.text("answer") },
        "upload" => Action::Upload { names: fields.texts("files") },
        other => return Err(format!("there is no tool {other:?}")),
    })
}

fn encode(action: &Action, remarks: &ReplyRemarks, view: ViewedPage<'_>) -> Result<String, String> {
    let mut calls: Vec<Value> = Vec::new();
    for part in action.parts() {
        match call(part, view.image).ok_or_else(|| unsupported_action(TOOLS.name, part))? {
            // Consecutive computer actions share a call.
            Ok(pointed) => match calls.last_mut().filter(|call| call["name"] == "computer") {
                Some(call) => {
                    call["arguments"]["actions"]
                        .as_array_mut()
                        .into_iter()
                        .for_each(|list| list.extend(pointed.clone()));
                }
                None => calls.push(json!({ "name": "computer", "arguments": { "actions": pointed } })),
            },
            Err((name, arguments)) => calls.push(json!({ "name": name, "arguments": arguments })),
        }
    }
    let calls = Value::Array(calls);
    let gap = if remarks.thought.is_empty() { "" } else { "\n" };
    // A thought with the opening tag would be parsed as the call.
    Ok(format!("{}{gap}{OPEN}{calls}{CLOSE}", remarks.thought.replace(OPEN, "")))
}

/// Actions of the tool `computer`, or another tool's name and arguments.
type ToolCall = Result<Vec<Value>, (&'static str, Value)>;

fn call(action: &Action, image: Size) -> Option<ToolCall> {
    let point = |at| {
        let (x, y) = CoordinateSpace::Fractions.model(at, image);
        json!([x, y])
    };
    let one = |value: Value| Some(Ok(vec![value]));
    match action {
        modified if !modified.modifiers().is_empty() => None,
        Action::Click { at: Some(at), button, count, .. } => {
            let name = match (button, count) {
                (PointerButton::Left, 1) => "left_click",
                (PointerButton::Middle, 1) => "middle_click",
                (PointerButton::Right, 1) => "right_click",
                (PointerButton::Left, 2) => "double_click",
                (PointerButton::Left, 3) => "triple_click",
                _ => return None,
            };
            one(json!({ "action": name, "coordinate": point(*at) }))
        }
        Action::Move { at, .. } => one(json!({ "action": "mouse_move", "coordinate": point(*at) })),
        Action::Write { into, content, press_enter } => {
            let mut actions = Vec::new();
            if let Some(at) = into {
                actions.push(json!({ "action": "triple_click", "coordinate": point(*at) }));
            }
            actions.push(json!({ "action": "type", "text": content }));
            if *press_enter {
                actions.push(json!({ "action": "key_press", "keys": ["Enter"] }));
            }
            Some(Ok(actions))
        }
        Action::PressKey { key, times } => Some(Ok(vec![
            json!({ "action": "key_press", "keys": [key] });
            usize::from((*times).min(PRESSES_MAX))
        ])),
        Action::Scroll { at, direction, pixels, .. } => {
            let notches = f64::from(distance(*direction, *pixels, image)) / f64::from(NOTCH_PIXELS);
            let parameters = json!({ "scroll_direction": direction.as_str(), "scroll_amount": notches });
            let mut action = json!({ "action": "scroll", "scroll_parameters": parameters });
            if let Some(at) = at {
                action["coordinate"] = point(*at);
            }
            one(action)
        }
        Action::Drag { from: Some(from), to, .. } => one(json!({
            "action": "left_click_drag", "start_coordinate": point(*from), "coordinate": point(*to),
        })),
        Action::Wait { seconds } => one(json!({ "action": "wait", "duration": seconds })),
        Action::GoBack => Some(Err(("navigate", json!({ "url": "back" })))),
        Action::GoForward => Some(Err(("navigate", json!({ "url": "forward" })))),
        Action::Goto { url } => Some(Err(("navigate", json!({ "url": url })))),
        Action::OpenTab { url } => Some(Err(("tabs_create", json!({ "url": url })))),
        Action::SelectTab { index } => Some(Err(("tabs_focus", json!({ "tab_id": index })))),
        Action::Upload { names } => Some(Err(("upload", json!({ "files": names })))),
        Action::Answer { content } => {
            Some(Err(("terminate", json!({ "status": "success", "answer": content }))))
        }
        _ => None,
    }
}

fn instructions(extra: &[ExtraAction]) -> String {
    format!(
        "You operate a web browser. Each turn shows a screenshot. Reply with {OPEN}[{{\"name\": tool, \"arguments\": {{…}}}}]{CLOSE}. {}\n\
         The tool computer takes \"actions\", a list of objects, each with its \"action\":\n{}The other tools:\n{}",
        CoordinateSpace::Fractions.description(),
        listed(COMPUTER),
        listed(&with_upload(OTHERS, extra)),
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::check;

    #[test]
    fn calls_become_actions_or_say_why_not() {
        let check = |calls: &str, want: &str| {
            check("nemotron_tools", &format!("I think.\n<TOOLCALL>{calls}</TOOLCALL>"), want);
        };
        let computer =
            |actions: &str| format!(r#"[{{"name":"computer","arguments":{{"actions":{actions}}}}}]"#);
        check(
            &computer(r#"[{"action":"left_click","coordinate":[0.5,0.25]}]"#),
            "Click { at: Some(PagePoint { x: 500.0, y: 125.0 }), button: Left, count: 1, modifiers: none }",
        );
        check(
            &computer(
                r#"[{"action":"triple_click","coordinate":[1,1]},{"action":"type","text":"mug"},{"action":"key_press","keys":["Enter"]}]"#,
            ),
            "Several([Click { at: Some(PagePoint { x: 1000.0, y: 500.0 }), button: Left, count: 3, modifiers: none }, \
             Write { into: None, content: \"mug\", press_enter: false }, PressKey { key: \"Enter\", times: 1 }])",
        );
        check(
            &computer(
                r#"[{"action":"scroll","scroll_parameters":{"scroll_direction":"down","scroll_amount":3},"coordinate":[0,0]}]"#,
            ),
            "Scroll { at: Some(PagePoint { x: 0.0, y: 0.0 }), direction: Down, pixels: Some(300), modifiers: none }",
        );
        check(
            &computer(
                r#"[{"action":"scroll","scroll_parameters":{"scroll_direction":"up","scroll_amount":1}}]"#,
            ),
            "Scroll { at: None, direction: Up, pixels: Some(100), modifiers: none }",
        );
        check(
            &computer(r#"[{"action":"left_click_drag","start_coordinate":[0,0],"coordinate":[0.1,0.1]}]"#),
            "Drag { from: Some(PagePoint { x: 0.0, y: 0.0 }), to: PagePoint { x: 100.0, y: 50.0 }, modifiers: none }",
        );
        check(&computer(r#"[{"action":"wait","duration":1.5}]"#), "Wait { seconds: 2 }");
        check(
            &computer(r#"[{"action":"wait","duration":31}]"#),
            "wait.duration is 31; use a number from 0 to 30",
        );
        check(
            &computer(r#"[{"action":"left_click","coordinate":[1.5,0]}]"#),
            "left_click.coordinate: x is 1.5; use 0 to 1",
        );
        check(&computer("[]"), "there is no action");
        check(&computer("{}"), "computer.actions is missing or not a list");
        check(r#"[{"name":"navigate","arguments":{"url":"back"}}]"#, "GoBack");
        check(r#"[{"name":"navigate","arguments":{"url":"ftp://x"}}]"#, "goto.url is \"ftp://x\"");
        check(r#"[{"name":"tabs_create","arguments":{}}]"#, "OpenTab { url: \"about:blank\" }");
        check(r#"[{"name":"tabs_focus","arguments":{"tab_id":1}}]"#, "SelectTab { index: 1 }");
        check(
            r#"[{"name":"terminate","arguments":{"status":"success","answer":"42"}}]"#,
            "Answer { content: \"42\" }",
        );
        check(
            r#"[{"name":"terminate","arguments":{"status":"success","answer":""}},{"name":"navigate","arguments":{"url":"back"}}]"#,
            "another action follows the answer",
        );
        check(r#"[{"name":"fly","arguments":{}}]"#, "there is no action \"fly\"; use navigate");
        check(r#"[{"name":"navigate"}]"#, "arguments is missing");
        check("7", "the calls are not a list");
        super::super::tests::check("nemotron_tools", "left_click", "there is no <TOOLCALL>");
        super::super::tests::check("nemotron_tools", "<TOOLCALL>[", "<TOOLCALL> is not closed");
        super::super::tests::check("nemotron_tools", "<TOOLCALL>[]</TOOLCALL> so", "there is text after");
    }
}
