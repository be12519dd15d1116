//! OpenAI's computer use:
//! `{"type":"computer_call","action":{"type":"click","x":…,"y":…,"button":"left"}}`.
//!
//! Actions and fields are those of the published sample application. Coordinates are pixels of the
//! declared display, here of the image as sent. Navigation uses function calls, as there. A reply
//! is one output item, a list of them, or an action alone; a message is the answer. The keys that
//! are down during an action are its `keys`.

use furrow_rollout::{
    Action, ExtraAction, Modifiers, PagePoint, PointerButton, SEVERAL_MAX, ScrollDirection, Size,
};
use serde_json::{Map, Value, json};

use super::dialect::{GrammarDialect, UPLOAD, distance, unsupported_action, with_keys};
use super::holo::web_address;
use super::shape::{
    ActionField, ActionFields, ActionShape, FieldKind, ParsedCall, cut, field, listed, read_call,
};
use super::space::CoordinateSpace;

pub(super) const COMPUTER: GrammarDialect = GrammarDialect {
    name: "openai_computer",
    read: |text, extra, view, parsed| read(text, extra, view.image, parsed),
    encode: |action, _, _, view| encode(action, view.image),
    instructions,
    extra: &[ExtraAction::Upload],
    needs_marks: false,
    frame: None,
};

const COORDINATE: FieldKind = FieldKind::Number { from: 0.0, to: 16_384.0 };
const WHEEL: FieldKind = FieldKind::NumberOr { from: -10_000.0, to: 10_000.0, default: 0.0 };

/// Keys that are down during the action.
const KEYS: ActionField = field("keys", FieldKind::KeysOrNone { most: 4 });

const ACTIONS: &[ActionShape] = &[
    ActionShape {
        name: "click",
        fields: &[
            field("x", COORDINATE),
            field("y", COORDINATE),
            field("button", FieldKind::ChoiceOr(&["left", "right", "wheel", "back", "forward"])),
            KEYS,
        ],
        description: "click at a point, with keys held down",
    },
    ActionShape {
        name: "double_click",
        fields: &[field("x", COORDINATE), field("y", COORDINATE), KEYS],
        description: "click twice",
    },
    ActionShape {
        name: "scroll",
        fields: &[
            field("x", COORDINATE),
            field("y", COORDINATE),
            field("scroll_x", WHEEL),
            field("scroll_y", WHEEL),
            KEYS,
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
        fields: &[field("x", COORDINATE), field("y", COORDINATE), KEYS],
        description: "move the mouse there",
    },
    ActionShape {
        name: "keypress",
        fields: &[field("keys", FieldKind::Keys { most: 5 })],
        description: "press keys together",
    },
    ActionShape {
        name: "drag",
        fields: &[field("path", FieldKind::Anything), KEYS],
        description: "press, move, release; path is a list of 2 to 16 {x, y}, which the mouse follows",
    },
    ActionShape { name: "screenshot", fields: &[], description: "look again" },
];

fn read(text: &str, extra: &[ExtraAction], image: Size, parsed: &mut ParsedCall) -> Result<Action, String> {
    let reply: Value =
        serde_json::from_str(text.trim()).map_err(|why| format!("the reply is not JSON: {why}"))?;
    let items = match reply {
        Value::Array(items) => items,
        item => vec![item],
    };
    let mut actions = Vec::new();
    for item in &items {
        let Value::Object(item) = item else { return Err("an output item is not a JSON object".into()) };
        actions.extend(parse_item(item, extra, image, parsed)?);
    }
    Action::of_several(actions)
}

/// The actions of an output item; thinking has none.
fn parse_item(
    item: &Map<String, Value>,
    extra: &[ExtraAction],
    image: Size,
    parsed: &mut ParsedCall,
) -> Result<Vec<Action>, String> {
    match item.get("type").and_then(Value::as_str) {
        Some("reasoning") => Ok(Vec::new()),
        Some("computer_call") => match item.get("action") {
            Some(Value::Object(action)) => parse_action(action, image, parsed),
            None => parse_batch(item.get("actions"), image, parsed),
            _ => Err("computer_call.action is missing or not an object".into()),
        },
        Some("function_call") => function(item, extra, parsed).map(|action| vec![action]),
        Some("message") => {
            "message".clone_into(&mut parsed.name);
            let form = r#"message.content is not a list; write [{"type": "output_text", "text": …}]"#;
            let parts = item.get("content").and_then(Value::as_array).ok_or(form)?;
            let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            Ok(vec![Action::Answer { content: texts.concat() }])
        }
        _ => parse_action(item, image, parsed),
    }
}

/// The actions of a call that has a list of them, as newer models write it.
fn parse_batch(actions: Option<&Value>, image: Size, parsed: &mut ParsedCall) -> Result<Vec<Action>, String> {
    let Some(Value::Array(actions)) = actions else {
        return Err("computer_call.action is missing or not an object".into());
    };
    let mut all = Vec::new();
    for action in actions {
        let action = action.as_object().ok_or("one of computer_call.actions is not an object")?;
        all.extend(parse_action(action, image, parsed)?);
    }
    Ok(all)
}

/// The functions goto, back, forward and upload, whose arguments are JSON in a string.
fn function(
    item: &Map<String, Value>,
    extra: &[ExtraAction],
    parsed: &mut ParsedCall,
) -> Result<Action, String> {
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
        "upload" if extra.contains(&ExtraAction::Upload) => {
            let given = given.as_object().ok_or("upload.files is missing")?;
            Ok(Action::Upload { names: UPLOAD.read(given, "name")?.texts("files") })
        }
        other => Err(format!("there is no function {:?}; use goto, back, forward", cut(other))),
    }
}

/// The actions of a call's action: several where keys that are no modifiers are down during it.
fn parse_action(
    given: &Map<String, Value>,
    image: Size,
    parsed: &mut ParsedCall,
) -> Result<Vec<Action>, String> {
    let (name, fields) = read_call(given, ("action", "type"), ACTIONS, parsed)?;
    let keys = fields.texts("keys");
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    match name {
        "keypress" => Ok(vec![Action::press(keys.join("+"))]),
        "drag" => Ok(with_keys(&keys, drag(fields.value("path"), image)?)),
        name => Ok(with_keys(&keys, vec![plain_action(name, &fields, image)?])),
    }
}

fn plain_action(name: &str, fields: &ActionFields, image: Size) -> Result<Action, String> {
    let at = || {
        let outside = |why| format!("{name}.{why}");
        CoordinateSpace::Pixels.page(fields.number("x"), fields.number("y"), image).map_err(outside)
    };
    let click = |at, button, count| Action::Click { at: Some(at), button, count, modifiers: Modifiers::NONE };
    match name {
        "click" => match fields.text("button").as_str() {
            "back" => Ok(Action::GoBack),
            "forward" => Ok(Action::GoForward),
            "wheel" => Ok(click(at()?, PointerButton::Middle, 1)),
            button => Ok(click(at()?, PointerButton::parse(button).unwrap_or_default(), 1)),
        },
        "double_click" => Ok(click(at()?, PointerButton::Left, 2)),
        "scroll" => scroll(at()?, fields),
        "type" => Ok(Action::Write { into: None, content: fields.text("text"), press_enter: false }),
        "wait" => Ok(Action::Wait { seconds: (fields.number("ms") / 1000.0).ceil() as u8 }),
        "move" => Ok(Action::hover(at()?)),
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
            modifiers: Modifiers::NONE,
        },
    })
}

/// A path of two points is a drag. A longer one is followed from point to point.
fn drag(path: &Value, image: Size) -> Result<Vec<Action>, String> {
    let point = |value: &Value| match (value["x"].as_f64(), value["y"].as_f64()) {
        (Some(x), Some(y)) => {
            CoordinateSpace::Pixels.page(x, y, image).map_err(|why| format!("drag.path: {why}"))
        }
        _ => Err("drag.path may hold only {x, y}".into()),
    };
    match path.as_array().map(Vec::as_slice) {
        Some([from, to]) => Ok(vec![Action::drag(point(from)?, point(to)?)]),
        Some(points) if points.len() > SEVERAL_MAX => {
            Err(format!("drag.path has {} points; use at most {SEVERAL_MAX}", points.len()))
        }
        Some([from, between @ .., to]) => {
            let button = PointerButton::Left;
            let mut actions = vec![Action::MouseDown { at: Some(point(from)?), button }];
            for at in between {
                actions.push(Action::hover(point(at)?));
            }
            actions.push(Action::MouseUp { at: Some(point(to)?), button });
            Ok(actions)
        }
        _ => Err("drag.path is not a list of two or more points".into()),
    }
}

/// The points of a drag that is followed from point to point.
fn path_of(action: &Action) -> Option<Vec<PagePoint>> {
    let left = PointerButton::Left;
    let [
        Action::MouseDown { at: Some(from), button: down },
        between @ ..,
        Action::MouseUp { at: Some(to), button: up },
    ] = action.parts()
    else {
        return None;
    };
    let stop = |part: &Action| match part {
        Action::Move { at, modifiers: during } if during.is_empty() => Some(*at),
        _ => None,
    };
    let between: Vec<PagePoint> = between.iter().map(stop).collect::<Option<_>>()?;
    let is_whole = *down == left && *up == left && !between.is_empty();
    is_whole.then(|| std::iter::once(*from).chain(between).chain([*to]).collect())
}

fn encode(action: &Action, image: Size) -> Result<String, String> {
    if let Some(path) = path_of(action) {
        let path: Vec<Value> = path.iter().map(|at| point_of(at, image)).collect();
        return Ok(call(&json!({ "type": "drag", "path": path })).to_string());
    }
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

fn call(action: &Value) -> Value {
    json!({ "type": "computer_call", "action": action })
}

fn pixel(at: &PagePoint, image: Size) -> (u64, u64) {
    let (x, y) = CoordinateSpace::Pixels.model(*at, image);
    (x as u64, y as u64)
}

fn point_of(at: &PagePoint, image: Size) -> Value {
    let (x, y) = pixel(at, image);
    json!({ "x": x, "y": y })
}

/// Names of keys as these models write them.
fn key_names(modifiers: Modifiers) -> Vec<String> {
    modifiers.iter().map(|key| key.as_str().to_ascii_uppercase().replace("CONTROL", "CTRL")).collect()
}

/// The output items that express one action.
fn items(action: &Action, image: Size) -> Option<Vec<Value>> {
    let pixel = |at: &PagePoint| pixel(at, image);
    let function = |name: &str, arguments: Value| {
        vec![json!({ "type": "function_call", "name": name, "arguments": arguments.to_string() })]
    };
    let one = |mut input: Value| {
        if !action.modifiers().is_empty() {
            input["keys"] = key_names(action.modifiers()).into();
        }
        Some(vec![call(&input)])
    };
    match action {
        Action::Click { at: Some(at), button, count: 1, .. } => {
            let (x, y) = pixel(at);
            let button = if *button == PointerButton::Middle { "wheel" } else { button.as_str() };
            one(json!({ "type": "click", "x": x, "y": y, "button": button }))
        }
        Action::Click { at: Some(at), button: PointerButton::Left, count: 2, .. } => {
            let (x, y) = pixel(at);
            one(json!({ "type": "double_click", "x": x, "y": y }))
        }
        Action::Move { at, .. } => {
            let (x, y) = pixel(at);
            one(json!({ "type": "move", "x": x, "y": y }))
        }
        Action::Scroll { at, direction, pixels, .. } => {
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
                items.push(call(&json!({ "type": "click", "x": x, "y": y, "button": "left" })));
                items.push(call(&json!({ "type": "keypress", "keys": ["CTRL", "A"] })));
            }
            items.push(call(&json!({ "type": "type", "text": content })));
            items.extend(press_enter.then(|| call(&json!({ "type": "keypress", "keys": ["ENTER"] }))));
            Some(items)
        }
        Action::PressKey { key, times } => {
            Some(vec![call(&json!({ "type": "keypress", "keys": [key] })); usize::from(*times)])
        }
        Action::Drag { from: Some(from), to, .. } => {
            one(json!({ "type": "drag", "path": [point_of(from, image), point_of(to, image)] }))
        }
        Action::Wait { seconds: 0 } => one(json!({ "type": "screenshot" })),
        Action::Wait { seconds } => one(json!({ "type": "wait", "ms": u32::from(*seconds) * 1000 })),
        Action::GoBack => Some(function("back", json!({}))),
        Action::GoForward => Some(function("forward", json!({}))),
        Action::Goto { url } => Some(function("goto", json!({ "url": url }))),
        Action::Upload { names } => Some(function("upload", json!({ "files": names }))),
        Action::Answer { content } => Some(vec![json!({
            "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": content }],
        })]),
        _ => None,
    }
}

fn instructions(extra: &[ExtraAction]) -> String {
    let upload = match extra.contains(&ExtraAction::Upload) {
        true => {
            "The function \"upload\" with {\"files\": [names]} chooses files where the page asks for a file.\n"
        }
        false => "",
    };
    format!(
        "You operate a web browser. Each turn shows a screenshot. Reply with {{\"type\": \"computer_call\", \"action\": …}}, the action an object \
         with its \"type\" and fields as below, or with a list of such calls. {}\n{}\
         {{\"type\": \"function_call\", \"name\": \"goto\", \"arguments\": \"{{\\\"url\\\": …}}\"}} loads an address; \"back\" and \"forward\" go through \
         the history.\n{upload}\
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
            format!(
                "Click {{ at: Some(PagePoint {{ x: 12.0, y: 40.0 }}), button: {button}, count: 1, modifiers: none }}"
            )
        };
        openai(&call(r#"{"type":"click","x":12,"y":40,"button":"left"}"#), &click("Left"));
        openai(r#"{"type":"click","x":12,"y":40}"#, &click("Left"));
        openai(r#"{"type":"click","x":12,"y":40,"button":"wheel"}"#, &click("Middle"));
        openai(r#"{"type":"click","x":12,"y":40,"button":"back"}"#, "GoBack");
        openai(r#"{"type":"click","x":1012,"y":40}"#, "click.x is 1012; use 0 to 1000");
        openai(
            r#"{"type":"scroll","x":1,"y":2,"scroll_x":0,"scroll_y":-300}"#,
            "Scroll { at: Some(PagePoint { x: 1.0, y: 2.0 }), direction: Up, pixels: Some(300), modifiers: none }",
        );
        openai(r#"{"type":"scroll","x":1,"y":2}"#, "Wait { seconds: 0 }");
        openai(r#"{"type":"keypress","keys":["CTRL","A"]}"#, r#"PressKey { key: "CTRL+A", times: 1 }"#);
        openai(
            r#"{"type":"computer_call","call_id":"c","actions":[{"type":"type","text":"a"},{"type":"keypress","keys":["ENTER"]}]}"#,
            "Several([Write { into: None, content: \"a\", press_enter: false }, PressKey { key: \"ENTER\", times: 1 }])",
        );
        openai(r#"{"type":"message","content":"42"}"#, "message.content is not a list; write [");
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

    #[test]
    fn keys_are_down_during_an_action_and_a_path_is_followed() {
        let openai = |text: &str, want: &str| check("openai_computer", text, want);
        openai(
            r#"{"type":"drag","path":[{"x":1,"y":2},{"x":9,"y":9}],"keys":["ALT"]}"#,
            "Drag { from: Some(PagePoint { x: 1.0, y: 2.0 }), to: PagePoint { x: 9.0, y: 9.0 }, modifiers: Alt }",
        );
        openai(
            r#"{"type":"drag","path":[{"x":1,"y":2},{"x":5,"y":5},{"x":9,"y":9}]}"#,
            "Several([MouseDown { at: Some(PagePoint { x: 1.0, y: 2.0 }), button: Left }, \
             Move { at: PagePoint { x: 5.0, y: 5.0 }, modifiers: none }, \
             MouseUp { at: Some(PagePoint { x: 9.0, y: 9.0 }), button: Left }])",
        );
        let long = r#"{"x":1,"y":2},"#.repeat(17);
        openai(
            &format!(r#"{{"type":"drag","path":[{}]}}"#, long.trim_end_matches(',')),
            "drag.path has 17 points; use at most 16",
        );
        let click = |modifiers, count| {
            format!(
                "Click {{ at: Some(PagePoint {{ x: 12.0, y: 40.0 }}), button: Left, count: {count}, modifiers: {modifiers} }}"
            )
        };
        openai(r#"{"type":"click","x":12,"y":40,"keys":["CTRL"]}"#, &click("Control", 1));
        openai(
            r#"{"type":"double_click","x":12,"y":40,"keys":["SHIFT","CTRL"]}"#,
            &click("Control+Shift", 2),
        );
        openai(r#"{"type":"click","x":12,"y":40,"keys":[]}"#, &click("none", 1));
        openai(r#"{"type":"click","x":12,"y":40,"keys":null}"#, &click("none", 1));
        openai(
            r#"{"type":"move","x":1,"y":2,"keys":["SPACE"]}"#,
            "Several([KeyDown { key: \"SPACE\" }, Move { at: PagePoint { x: 1.0, y: 2.0 }, modifiers: none }, \
             KeyUp { key: \"SPACE\" }])",
        );
        openai(
            r#"{"type":"scroll","x":1,"y":2,"scroll_y":90,"keys":["CTRL"]}"#,
            "Scroll { at: Some(PagePoint { x: 1.0, y: 2.0 }), direction: Down, pixels: Some(90), modifiers: Control }",
        );
    }
}
