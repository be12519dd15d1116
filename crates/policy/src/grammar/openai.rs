//! OpenAI's computer use:
//! `{"type":"computer_call","action":{"type":"click","x":…,"y":…,"button":"left"}}`.
//!
//! Actions and fields are those of the published sample application. Coordinates are pixels of the
//! declared display, here of the image as sent. Navigation uses function calls, as there. A reply
//! is one output item, a list of them, or an action alone; a message is the answer.

use furrow_rollout::{Action, PagePoint, PointerButton, ScrollDirection, Size};
use serde_json::{Map, Value, json};

use super::dialect::{GrammarDialect, distance, unsupported_action};
use super::holo::web_address;
use super::shape::{ActionFields, ActionShape, FieldKind, ParsedCall, cut, field, listed, read_call};
use super::space::CoordinateSpace;

pub(super) const COMPUTER: GrammarDialect = GrammarDialect {
    name: "openai_computer",
    read: |text, _, view, parsed| read(text, view.image, parsed),
    encode: |action, _, _, view| encode(action, view.image),
    instructions: |_| instructions(),
    is_extensible: false,
    needs_marks: false,
    frame: None,
};

const COORDINATE: FieldKind = FieldKind::Number { from: 0.0, to: 16_384.0 };
const WHEEL: FieldKind = FieldKind::NumberOr { from: -10_000.0, to: 10_000.0, default: 0.0 };

const ACTIONS: &[ActionShape] = &[
    ActionShape {
        name: "click",
        fields: &[
            field("x", COORDINATE),
            field("y", COORDINATE),
            field("button", FieldKind::ChoiceOr(&["left", "right", "wheel", "back", "forward"])),
        ],
        description: "click at a point",
    },
    ActionShape {
        name: "double_click",
        fields: &[field("x", COORDINATE), field("y", COORDINATE)],
        description: "click twice",
    },
    ActionShape {
        name: "scroll",
        fields: &[
            field("x", COORDINATE),
            field("y", COORDINATE),
            field("scroll_x", WHEEL),
            field("scroll_y", WHEEL),
        ],
        description: "turn the wheel at a point by so many pixels",
    },
    ActionShape {
        name: "type",
        fields: &[field("text", FieldKind::Text)],
        description: "type where the focus is",
    },
    ActionShape {
        name: "wait",
        fields: &[field("ms", FieldKind::NumberOr { from: 0.0, to: 30_000.0, default: 1000.0 })],
        description: "let so many milliseconds pass",
    },
    ActionShape {
        name: "move",
        fields: &[field("x", COORDINATE), field("y", COORDINATE)],
        description: "move the mouse there",
    },
    ActionShape {
        name: "keypress",
        fields: &[field("keys", FieldKind::Keys { most: 5 })],
        description: "press keys together",
    },
    ActionShape {
        name: "drag",
        fields: &[field("path", FieldKind::Anything)],
        description: "press, move, release; path is a list of {x, y}",
    },
    ActionShape { name: "screenshot", fields: &[], description: "look again" },
];

fn read(text: &str, image: Size, parsed: &mut ParsedCall) -> Result<Action, String> {
    let reply: Value =
        serde_json::from_str(text.trim()).map_err(|why| format!("the reply is not JSON: {why}"))?;
    let items = match reply {
        Value::Array(items) => items,
        item => vec![item],
    };
    let mut actions = Vec::new();
    for item in &items {
        let Value::Object(item) = item else { return Err("an output item is not a JSON object".into()) };
        actions.extend(parse_item(item, image, parsed)?);
    }
    Action::of_several(actions)
}

/// The action of an output item; thinking has none.
fn parse_item(
    item: &Map<String, Value>,
    image: Size,
    parsed: &mut ParsedCall,
) -> Result<Option<Action>, String> {
    match item.get("type").and_then(Value::as_str) {
        Some("reasoning") => Ok(None),
        Some("computer_call") => match item.get("action") {
            Some(Value::Object(action)) => parse_action(action, image, parsed).map(Some),
            _ => Err("computer_call.action is missing or not an object".into()),
        },
        Some("function_call") => function(item, parsed).map(Some),
        Some("message") => {
            "message".clone_into(&mut parsed.name);
            let parts =
                item.get("content").and_then(Value::as_array).ok_or("message.content is not a list")?;
            let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            Ok(Some(Action::Answer { content: texts.concat() }))
        }
        _ => parse_action(item, image, parsed).map(Some),
    }
}

/// The functions goto, back and forward, whose arguments are JSON in a string.
fn function(item: &Map<String, Value>, parsed: &mut ParsedCall) -> Result<Action, String> {
    let name = item.get("name").and_then(Value::as_str).ok_or("function_call.name is missing")?;
    name.clone_into(&mut parsed.name);
    let arguments = item.get("arguments").and_then(Value::as_str).unwrap_or("{}");
    let given: Value = serde_json::from_str(arguments)
        .map_err(|why| format!("function_call.arguments is not JSON in a string: {why}"))?;
    parsed.args_json = Some(given.to_string());
    match name {
        "back" => Ok(Action::GoBack),
        "forward" => Ok(Action::GoForward),
        "goto" => {
            let url = given["url"].as_str().ok_or("goto.url is missing")?;
            Ok(Action::Goto { url: web_address(url.into())? })
        }
        other => Err(format!("there is no function {:?}; use goto, back, forward", cut(other))),
    }
}

fn parse_action(given: &Map<String, Value>, image: Size, parsed: &mut ParsedCall) -> Result<Action, String> {
    let (name, fields) = read_call(given, ("action", "type"), ACTIONS, parsed)?;
    let at = || {
        let outside = |why| format!("{name}.{why}");
        CoordinateSpace::Pixels.page(fields.number("x"), fields.number("y"), image).map_err(outside)
    };
    match name {
        "click" => match fields.text("button").as_str() {
            "back" => Ok(Action::GoBack),
            "forward" => Ok(Action::GoForward),
            "wheel" => Ok(Action::Click { at: Some(at()?), button: PointerButton::Middle, count: 1 }),
            button => Ok(Action::Click {
                at: Some(at()?),
                button: PointerButton::parse(button).unwrap_or_default(),
                count: 1,
            }),
        },
        "double_click" => Ok(Action::Click { at: Some(at()?), button: PointerButton::Left, count: 2 }),
        "scroll" => scroll(at()?, &fields),
        "type" => Ok(Action::Write { into: None, content: fields.text("text"), press_enter: false }),
        "wait" => Ok(Action::Wait { seconds: (fields.number("ms") / 1000.0).ceil() as u8 }),
        "move" => Ok(Action::Move { at: at()? }),
        "keypress" => Ok(Action::press(fields.texts("keys").join("+"))),
        "drag" => drag(fields.value("path"), image),
        "screenshot" => Ok(Action::Wait { seconds: 0 }),
        other => Err(format!("there is no action {other:?}")),
    }
}

/// The wheel turns in one direction at a time, so the larger distance counts.
fn scroll(at: PagePoint, fields: &ActionFields) -> Result<Action, String> {
    let x = fields.number("scroll_x");
    let y = fields.number("scroll_y");
    let (far, back, on) = match x.abs() > y.abs() {
        true => (x, ScrollDirection::Left, ScrollDirection::Right),
        false => (y, ScrollDirection::Up, ScrollDirection::Down),
    };
    Ok(match far.abs().round() as u32 {
        0 => Action::Wait { seconds: 0 },
        pixels => Action::Scroll {
            at: Some(at),
            direction: if far < 0.0 { back } else { on },
            pixels: Some(pixels),
        },
    })
}

/// The ends of a path. The page also gets the moves between them.
fn drag(path: &Value, image: Size) -> Result<Action, String> {
    let point = |value: &Value| match (value["x"].as_f64(), value["y"].as_f64()) {
        (Some(x), Some(y)) => {
            CoordinateSpace::Pixels.page(x, y, image).map_err(|why| format!("drag.path: {why}"))
        }
        _ => Err("drag.path may hold only {x, y}".into()),
    };
    match path.as_array().map(Vec::as_slice) {
        Some([from, .., to]) => Ok(Action::drag(point(from)?, point(to)?)),
        _ => Err("drag.path is not a list of two or more points".into()),
    }
}

fn encode(action: &Action, image: Size) -> Result<String, String> {
    let items = action
        .parts()
        .iter()
        .map(|part| items(part, image).ok_or_else(|| unsupported_action(COMPUTER.name, part)));
    let items: Vec<Value> = items.collect::<Result<Vec<_>, _>>()?.concat();
    Ok(match <[Value; 1]>::try_from(items) {
        Ok([item]) => item.to_string(),
        Err(items) => Value::Array(items).to_string(),
    })
}

/// The output items that express one action.
fn items(action: &Action, image: Size) -> Option<Vec<Value>> {
    let pixel = |at: &PagePoint| {
        let (x, y) = CoordinateSpace::Pixels.model(*at, image);
        (x as u64, y as u64)
    };
    let call = |action: Value| json!({ "type": "computer_call", "action": action });
    let function = |name: &str, arguments: Value| {
        vec![json!({ "type": "function_call", "name": name, "arguments": arguments.to_string() })]
    };
    let one = |action: Value| Some(vec![call(action)]);
    match action {
        Action::Click { at: Some(at), button, count: 1 } => {
            let (x, y) = pixel(at);
            let button = if *button == PointerButton::Middle { "wheel" } else { button.as_str() };
            one(json!({ "type": "click", "x": x, "y": y, "button": button }))
        }
        Action::Click { at: Some(at), button: PointerButton::Left, count: 2 } => {
            let (x, y) = pixel(at);
            one(json!({ "type": "double_click", "x": x, "y": y }))
        }
        Action::Move { at } => {
            let (x, y) = pixel(at);
            one(json!({ "type": "move", "x": x, "y": y }))
        }
        Action::Scroll { at, direction, pixels } => {
            let centre = PagePoint { x: image.width as f32 / 2.0, y: image.height as f32 / 2.0 };
            let (x, y) = pixel(&at.unwrap_or(centre));
            let far = i64::from(distance(*direction, *pixels, image));
            let (scroll_x, scroll_y) = match direction {
                ScrollDirection::Down => (0, far),
                ScrollDirection::Up => (0, -far),
                ScrollDirection::Right => (far, 0),
                ScrollDirection::Left => (-far, 0),
            };
            one(json!({ "type": "scroll", "x": x, "y": y, "scroll_x": scroll_x, "scroll_y": scroll_y }))
        }
        Action::Write { into, content, press_enter } => {
            let mut items = Vec::new();
            if let Some(at) = into {
                let (x, y) = pixel(at);
                items.push(call(json!({ "type": "click", "x": x, "y": y, "button": "left" })));
                items.push(call(json!({ "type": "keypress", "keys": ["CTRL", "A"] })));
            }
            items.push(call(json!({ "type": "type", "text": content })));
            items.extend(press_enter.then(|| call(json!({ "type": "keypress", "keys": ["ENTER"] }))));
            Some(items)
        }
        Action::PressKey { key, times } => {
            Some(vec![call(json!({ "type": "keypress", "keys": [key] })); usize::from(*times)])
        }
        Action::Drag { from: Some(from), to } => {
            let (x, y) = pixel(from);
            let (to_x, to_y) = pixel(to);
            one(json!({ "type": "drag", "path": [{ "x": x, "y": y }, { "x": to_x, "y": to_y }] }))
        }
        Action::Wait { seconds: 0 } => one(json!({ "type": "screenshot" })),
        Action::Wait { seconds } => one(json!({ "type": "wait", "ms": u32::from(*seconds) * 1000 })),
        Action::GoBack => Some(function("back", json!({}))),
        Action::GoForward => Some(function("forward", json!({}))),
        Action::Goto { url } => Some(function("goto", json!({ "url": url }))),
        Action::Answer { content } => Some(vec![json!({
            "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": content }],
        })]),
        _ => None,
    }
}

fn instructions() -> String {
    format!(
        "You operate a web browser. Each turn shows a screenshot. Reply with {{\"type\": \"computer_call\", \"action\": …}}, the action an object \
         with its \"type\" and fields as below, or with a list of such calls. {}\n{}\
         {{\"type\": \"function_call\", \"name\": \"goto\", \"arguments\": \"{{\\\"url\\\": …}}\"}} loads an address; \"back\" and \"forward\" go through \
         the history.\n\
         {{\"type\": \"message\", \"content\": [{{\"type\": \"output_text\", \"text\": …}}]}} gives the answer and ends the task.\n",
        CoordinateSpace::Pixels.description(),
        listed(ACTIONS),
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::check;

    #[test]
    fn items_become_actions_or_say_why_not() {
        let openai = |text: &str, want: &str| check("openai_computer", text, want);
        let call = |action: &str| format!(r#"{{"type":"computer_call","call_id":"c","action":{action}}}"#);
        let click = |button| {
            format!("Click {{ at: Some(PagePoint {{ x: 12.0, y: 40.0 }}), button: {button}, count: 1 }}")
        };
        openai(&call(r#"{"type":"click","x":12,"y":40,"button":"left"}"#), &click("Left"));
        openai(r#"{"type":"click","x":12,"y":40}"#, &click("Left"));
        openai(r#"{"type":"click","x":12,"y":40,"button":"wheel"}"#, &click("Middle"));
        openai(r#"{"type":"click","x":12,"y":40,"button":"back"}"#, "GoBack");
        openai(r#"{"type":"click","x":1012,"y":40}"#, "click.x is 1012; use 0 to 1000");
        openai(
            r#"{"type":"scroll","x":1,"y":2,"scroll_x":0,"scroll_y":-300}"#,
            "Scroll { at: Some(PagePoint { x: 1.0, y: 2.0 }), direction: Up, pixels: Some(300) }",
        );
        openai(r#"{"type":"scroll","x":1,"y":2}"#, "Wait { seconds: 0 }");
        openai(r#"{"type":"keypress","keys":["CTRL","A"]}"#, r#"PressKey { key: "CTRL+A", times: 1 }"#);
        openai(
            r#"{"type":"drag","path":[{"x":1,"y":2},{"x":5,"y":5},{"x":9,"y":9}]}"#,
            "Drag { from: Some(PagePoint { x: 1.0, y: 2.0 }), to: PagePoint { x: 9.0, y: 9.0 } }",
        );
        openai(r#"{"type":"drag","path":[{"x":1,"y":2}]}"#, "drag.path is not a list of two or more points");
        openai(r#"{"type":"wait"}"#, "Wait { seconds: 1 }");
        openai(r#"{"type":"screenshot"}"#, "Wait { seconds: 0 }");
        openai(
            r#"{"type":"function_call","name":"goto","arguments":"{\"url\":\"http://a.test/\"}"}"#,
            r#"Goto { url: "http://a.test/" }"#,
        );
        openai(r#"{"type":"function_call","name":"back"}"#, "GoBack");
        openai(r#"{"type":"function_call","name":"rm"}"#, "there is no function \"rm\"");
        openai(
            r#"[{"type":"reasoning","summary":[]},{"type":"message","content":[{"type":"output_text","text":"42"}]}]"#,
            r#"Answer { content: "42" }"#,
        );
        openai(
            &format!("[{},{}]", call(r#"{"type":"type","text":"a"}"#), call(r#"{"type":"wait"}"#)),
            "Several([Write",
        );
        openai(&call("7"), "computer_call.action is missing or not an object");
        openai(r#"{"type":"fly"}"#, "there is no action \"fly\"; use click");
        openai("{}", "action.type is missing");
        openai("[7]", "an output item is not a JSON object");
        openai("[]", "there is no action");
        openai("click", "the reply is not JSON");
    }
}
