//! Anthropic's computer use:
//! `{"type":"tool_use","name":"computer","input":{"action":"left_click","coordinate":[412,633]}}`.
//!
//! Actions and fields are those of the published demonstration. Coordinates are pixels of the
//! screenshot as sent. A reply is one content block or a list of them; text beside a tool use is
//! thinking, text alone is the answer. The keys that are down during a click are its `text`, or
//! `key` as the demonstration's own parameter is called.

use furrow_rollout::{
    Action, ExtraAction, HOLD_MILLIS_MAX, Modifiers, PagePoint, PointerButton, ScrollDirection, Size,
};
use serde_json::{Value, json};

use super::dialect::{
    GrammarDialect, NOTCH_PIXELS, ReplyRemarks, UPLOAD, distance, key_names, unsupported_action, with_keys,
};
use super::shape::{
    ActionField, ActionFields, ActionShape, FieldKind, ParsedCall, cut, field, listed, read_call,
};
use super::space::CoordinateSpace;

pub(super) const COMPUTER: GrammarDialect = GrammarDialect {
    name: "anthropic_computer",
    read: |text, extra, view, parsed| read(text, extra, view.image, parsed),
    encode: |action, remarks, _, view| encode(action, remarks, view.image),
    instructions,
    extra: &[ExtraAction::Upload],
    needs_marks: false,
    frame: None,
};

const CLICK_FIELDS: &[ActionField] = &[
    field("coordinate", FieldKind::PairOrNone),
    field("text", FieldKind::TextOrNone),
    field("key", FieldKind::TextOrNone),
];

const fn click(name: &'static str, says: &'static str) -> ActionShape {
    ActionShape { name, fields: CLICK_FIELDS, description: says }
}

const ACTIONS: &[ActionShape] = &[
    click(
        "left_click",
        "click at a point, or where the mouse is; text names keys to hold, such as ctrl+shift",
    ),
    click("right_click", "click with the right button"),
    click("middle_click", "click with the middle button"),
    click("double_click", "click twice"),
    click("triple_click", "click three times"),
    ActionShape {
        name: "mouse_move",
        fields: &[field("coordinate", FieldKind::Pair)],
        description: "move the mouse there",
    },
    ActionShape {
        name: "left_click_drag",
        fields: &[field("start_coordinate", FieldKind::PairOrNone), field("coordinate", FieldKind::Pair)],
        description: "press at the one point, or where the mouse is, move, release at the other",
    },
    ActionShape {
        name: "left_mouse_down",
        fields: &[],
        description: "press the left button where the mouse is; it stays down until left_mouse_up",
    },
    ActionShape {
        name: "left_mouse_up",
        fields: &[],
        description: "release the left button where the mouse is",
    },
    ActionShape {
        name: "key",
        fields: &[field("text", FieldKind::Text)],
        description: "press a key or several together, such as Return or ctrl+a",
    },
    ActionShape {
        name: "hold_key",
        fields: &[
            field("text", FieldKind::Text),
            field("duration", FieldKind::Number { from: 0.0, to: 30.0 }),
        ],
        description: "keep a key or several down for so many seconds",
    },
    ActionShape {
        name: "type",
        fields: &[field("text", FieldKind::Text)],
        description: "type where the focus is",
    },
    ActionShape {
        name: "scroll",
        fields: &[
            field("coordinate", FieldKind::PairOrNone),
            field("scroll_direction", FieldKind::Choice(&["down", "up", "left", "right"])),
            field("scroll_amount", FieldKind::Whole { from: 0, to: 100 }),
            field("text", FieldKind::TextOrNone),
        ],
        description: "turn the wheel by so many clicks; text names keys to hold",
    },
    ActionShape {
        name: "wait",
        fields: &[field("duration", FieldKind::Number { from: 0.0, to: 30.0 })],
        description: "let so many seconds pass",
    },
    ActionShape { name: "screenshot", fields: &[], description: "look again" },
    ActionShape {
        name: "cursor_position",
        fields: &[],
        description: "look again: the mouse is where it was left",
    },
];

fn read(text: &str, extra: &[ExtraAction], image: Size, parsed: &mut ParsedCall) -> Result<Action, String> {
    let reply: Value =
        serde_json::from_str(text.trim()).map_err(|why| format!("the reply is not JSON: {why}"))?;
    let blocks = match reply {
        Value::Array(blocks) => blocks,
        block => vec![block],
    };
    let mut actions = Vec::new();
    let mut texts = Vec::new();
    for block in &blocks {
        match block["type"].as_str() {
            Some("text") => texts.push(block["text"].as_str().ok_or("text.text is missing")?),
            Some("thinking" | "redacted_thinking") => {}
            Some("tool_use") if block["name"] == UPLOAD.name && extra.contains(&ExtraAction::Upload) => {
                let input = block["input"].as_object().ok_or("tool_use.input is missing or not an object")?;
                UPLOAD.name.clone_into(&mut parsed.name);
                parsed.args_json = Some(block["input"].to_string());
                actions.push(Action::Upload { names: UPLOAD.read(input, "name")?.texts("files") });
            }
            Some("tool_use") => {
                if block["name"] != "computer" {
                    return Err(format!(
                        "there is no tool {:?}; use computer",
                        cut(&block["name"].to_string())
                    ));
                }
                let input = block["input"].as_object().ok_or("tool_use.input is missing or not an object")?;
                let (name, fields) = read_call(input, ("input", "action"), ACTIONS, parsed)?;
                let keys = keys_during(name, &fields);
                let action = action(name, &fields, image)?;
                actions.extend(with_keys(&key_names(&keys), vec![action]));
            }
            _ => return Err("a content block has no type of text, thinking or tool_use".into()),
        }
    }
    if actions.is_empty() && !texts.is_empty() {
        "text".clone_into(&mut parsed.name);
        return Ok(Action::Answer { content: texts.concat() });
    }
    Action::of_several(actions)
}

/// The keys to hold during an action, joined by a plus.
fn keys_during(name: &str, fields: &ActionFields) -> String {
    let is_own = |field: &&str| !fields.text(field).is_empty();
    let names: &[&str] = match name {
        "key" | "hold_key" | "type" => &[],
        _ => &["text", "key"],
    };
    names.iter().find(|field| is_own(field)).map(|field| fields.text(field)).unwrap_or_default()
}

fn action(name: &str, fields: &ActionFields, image: Size) -> Result<Action, String> {
    let at = |key: &str| {
        let point = fields.pair(key).map(|(x, y)| CoordinateSpace::Pixels.page(x, y, image));
        point.transpose().map_err(|why| format!("{name}.{key}: {why}"))
    };
    let there = || at("coordinate")?.ok_or_else(|| format!("{name}.coordinate is missing"));
    let click = |button, count| {
        Ok(Action::Click { at: at("coordinate")?, button, count, modifiers: Modifiers::NONE })
    };
    match name {
        "left_click" => click(PointerButton::Left, 1),
        "right_click" => click(PointerButton::Right, 1),
        "middle_click" => click(PointerButton::Middle, 1),
        "double_click" => click(PointerButton::Left, 2),
        "triple_click" => click(PointerButton::Left, 3),
        "mouse_move" => Ok(Action::hover(there()?)),
        "left_click_drag" => {
            Ok(Action::Drag { from: at("start_coordinate")?, to: there()?, modifiers: Modifiers::NONE })
        }
        "left_mouse_down" => Ok(Action::MouseDown { at: None, button: PointerButton::Left }),
        "left_mouse_up" => Ok(Action::MouseUp { at: None, button: PointerButton::Left }),
        "hold_key" => {
            let millis = (fields.number("duration") * 1000.0).round() as u32;
            Ok(Action::HoldKey { key: fields.text("text"), millis: millis.clamp(1, HOLD_MILLIS_MAX) })
        }
        "key" => Ok(Action::press(fields.text("text"))),
        "type" => Ok(Action::Write { into: None, content: fields.text("text"), press_enter: false }),
        "scroll" => {
            let direction = ScrollDirection::parse(&fields.text("scroll_direction"))
                .ok_or("scroll.scroll_direction is unknown")?;
            Ok(match fields.whole::<u32>("scroll_amount") {
                0 => Action::Wait { seconds: 0 },
                clicks => Action::Scroll {
                    at: at("coordinate")?,
                    direction,
                    pixels: Some(clicks * NOTCH_PIXELS),
                    modifiers: Modifiers::NONE,
                },
            })
        }
        "wait" => Ok(Action::Wait { seconds: fields.number("duration").ceil() as u8 }),
        "screenshot" | "cursor_position" => Ok(Action::Wait { seconds: 0 }),
        other => Err(format!("there is no action {other:?}")),
    }
}

fn encode(action: &Action, remarks: &ReplyRemarks, image: Size) -> Result<String, String> {
    let mut blocks = Vec::new();
    for part in action.parts() {
        blocks.extend(self::blocks(part, image).ok_or_else(|| unsupported_action(COMPUTER.name, part))?);
    }
    let answers = blocks.iter().filter(|block| block["type"] == "text").count();
    if answers > 0 && blocks.len() > 1 {
        // Text beside a tool use would be parsed as thinking.
        return Err(unsupported_action(COMPUTER.name, action));
    }
    if answers == 0 && !remarks.thought.is_empty() {
        blocks.insert(0, json!({ "type": "text", "text": remarks.thought }));
    }
    Ok(match <[Value; 1]>::try_from(blocks) {
        Ok([block]) => block.to_string(),
        Err(blocks) => Value::Array(blocks).to_string(),
    })
}

/// The keys to hold as X11 names them; `None` if there are none.
fn names_of(modifiers: Modifiers) -> Option<String> {
    let names = modifiers.to_string().replace("Control", "ctrl").replace("Meta", "super").to_lowercase();
    (!names.is_empty()).then_some(names)
}

fn uses(input: &Value) -> Value {
    json!({ "type": "tool_use", "name": "computer", "input": input })
}

/// An action where the mouse is, after a move there.
fn at_mouse(coordinate: Option<Value>, name: &str) -> Vec<Value> {
    let moved = coordinate.map(|at| uses(&json!({ "action": "mouse_move", "coordinate": at })));
    moved.into_iter().chain([uses(&json!({ "action": name }))]).collect()
}

/// The content blocks that express one action.
fn blocks(action: &Action, image: Size) -> Option<Vec<Value>> {
    let point = |at: &PagePoint| {
        let (x, y) = CoordinateSpace::Pixels.model(*at, image);
        json!([x as u64, y as u64])
    };
    let mut input = match action {
        Action::Click { at, button, count, modifiers } => {
            let name = match (button, count) {
                (PointerButton::Left, 1) => "left_click",
                (PointerButton::Right, 1) => "right_click",
                (PointerButton::Middle, 1) => "middle_click",
                (PointerButton::Left, 2) => "double_click",
                (PointerButton::Left, 3) => "triple_click",
                _ => return None,
            };
            json!({ "action": name, "coordinate": at.as_ref().map(point), "text": names_of(*modifiers) })
        }
        Action::Move { at, modifiers: Modifiers::NONE } => {
            json!({ "action": "mouse_move", "coordinate": point(at) })
        }
        Action::Drag { from, to, modifiers: Modifiers::NONE } => json!({
            "action": "left_click_drag", "start_coordinate": from.as_ref().map(point), "coordinate": point(to),
        }),
        Action::Scroll { at, direction, pixels, modifiers } => {
            let clicks = distance(*direction, *pixels, image).div_ceil(NOTCH_PIXELS).clamp(1, 100);
            json!({
                "action": "scroll", "coordinate": at.as_ref().map(point), "scroll_direction": direction.as_str(),
                "scroll_amount": clicks, "text": names_of(*modifiers),
            })
        }
        Action::MouseDown { at, button: PointerButton::Left } => {
            return Some(at_mouse(at.as_ref().map(point), "left_mouse_down"));
        }
        Action::MouseUp { at, button: PointerButton::Left } => {
            return Some(at_mouse(at.as_ref().map(point), "left_mouse_up"));
        }
        Action::HoldKey { key, millis } => {
            json!({ "action": "hold_key", "text": key, "duration": f64::from(*millis) / 1000.0 })
        }
        Action::Write { into, content, press_enter } => {
            let click = |at| uses(&json!({ "action": "triple_click", "coordinate": point(at) }));
            let mut blocks: Vec<Value> = into.iter().map(click).collect();
            blocks.push(uses(&json!({ "action": "type", "text": content })));
            blocks.extend(press_enter.then(|| uses(&json!({ "action": "key", "text": "Return" }))));
            return Some(blocks);
        }
        Action::PressKey { key, times } => {
            return Some(vec![uses(&json!({ "action": "key", "text": key })); usize::from(*times)]);
        }
        Action::Upload { names } => {
            let input = json!({ "files": names });
            return Some(vec![json!({ "type": "tool_use", "name": UPLOAD.name, "input": input })]);
        }
        Action::Wait { seconds: 0 } => json!({ "action": "screenshot" }),
        Action::Wait { seconds } => json!({ "action": "wait", "duration": seconds }),
        Action::Answer { content } => return Some(vec![json!({ "type": "text", "text": content })]),
        _ => return None,
    };
    // Optional fields are omitted if they are empty.
    if let Value::Object(fields) = &mut input {
        fields.retain(|_, value| !value.is_null());
    }
    Some(vec![uses(&input)])
}

fn instructions(extra: &[ExtraAction]) -> String {
    let upload = match extra.contains(&ExtraAction::Upload) {
        true => {
            "The tool \"upload\" with the input {\"files\": [names]} chooses files where the page asks for a file. "
        }
        false => "",
    };
    format!(
        "You operate a web browser. Each turn shows a screenshot. Reply with {{\"type\": \"tool_use\", \"name\": \"computer\", \"input\": …}}, the \
         input an object with its \"action\" and fields as below, or with a list of such blocks. {}\n{}\
         Keys and buttons that are down stay down in later steps, until they are released or another page is shown. {upload}\
         {{\"type\": \"text\", \"text\": …}} alone gives the answer and ends the task.\n",
        CoordinateSpace::Pixels.description(),
        listed(ACTIONS),
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::check;

    #[test]
    fn blocks_become_actions_or_say_why_not() {
        let anthropic = |text: &str, want: &str| check("anthropic_computer", text, want);
        let uses =
            |input: &str| format!(r#"{{"type":"tool_use","id":"t","name":"computer","input":{input}}}"#);
        anthropic(
            &uses(r#"{"action":"left_click","coordinate":[412,300]}"#),
            "Click { at: Some(PagePoint { x: 412.0, y: 300.0 }), button: Left, count: 1, modifiers: none }",
        );
        anthropic(
            &uses(r#"{"action":"double_click"}"#),
            "Click { at: None, button: Left, count: 2, modifiers: none }",
        );
        anthropic(
            &uses(r#"{"action":"left_click_drag","coordinate":[1,2]}"#),
            "Drag { from: None, to: PagePoint { x: 1.0, y: 2.0 }, modifiers: none }",
        );
        anthropic(
            &uses(r#"{"action":"scroll","coordinate":[1,2],"scroll_direction":"down","scroll_amount":5}"#),
            "Scroll { at: Some(PagePoint { x: 1.0, y: 2.0 }), direction: Down, pixels: Some(500), modifiers: none }",
        );
        anthropic(&uses(r#"{"action":"key","text":"ctrl+s"}"#), r#"PressKey { key: "ctrl+s", times: 1 }"#);
        anthropic(&uses(r#"{"action":"wait","duration":2.5}"#), "Wait { seconds: 3 }");
        anthropic(&uses(r#"{"action":"screenshot"}"#), "Wait { seconds: 0 }");
        anthropic(
            &format!(r#"[{{"type":"text","text":"I look."}},{}]"#, uses(r#"{"action":"type","text":"a"}"#)),
            r#"Write { into: None, content: "a", press_enter: false }"#,
        );
        anthropic(r#"{"type":"text","text":"42"}"#, r#"Answer { content: "42" }"#);
        anthropic(
            &uses(r#"{"action":"left_click","coordinate":[1,501]}"#),
            "left_click.coordinate: y is 501; use 0 to 500",
        );
        anthropic(
            &uses(r#"{"action":"left_click","coordinate":"1,5"}"#),
            "left_click.coordinate is \"1,5\"; use a list of two",
        );
        anthropic(&uses(r#"{"action":"mouse_move"}"#), "mouse_move.coordinate is missing");
        anthropic(
            r#"{"type":"tool_use","name":"bash","input":{}}"#,
            "there is no tool \"\\\"bash\\\"\"; use computer",
        );
        anthropic(r#"{"type":"tool_use","name":"computer"}"#, "tool_use.input is missing");
        anthropic("[]", "there is no action");
        anthropic("{}", "a content block has no type");
        anthropic("42", "a content block has no type");
    }

    #[test]
    fn keys_and_buttons_stay_down() {
        let anthropic = |text: &str, want: &str| check("anthropic_computer", text, want);
        let uses = |input: &str| format!(r#"{{"type":"tool_use","name":"computer","input":{input}}}"#);
        anthropic(&uses(r#"{"action":"left_mouse_down"}"#), "MouseDown { at: None, button: Left }");
        anthropic(&uses(r#"{"action":"left_mouse_up"}"#), "MouseUp { at: None, button: Left }");
        anthropic(
            &uses(r#"{"action":"left_mouse_up","coordinate":[1,2]}"#),
            "left_mouse_up has no field \"coordinate\"; it takes none",
        );
        anthropic(
            &uses(r#"{"action":"hold_key","text":"shift+w","duration":1.5}"#),
            r#"HoldKey { key: "shift+w", millis: 1500 }"#,
        );
        anthropic(&uses(r#"{"action":"hold_key","text":"w","duration":31}"#), "hold_key.duration is 31; use");
        anthropic(&uses(r#"{"action":"hold_key","duration":1}"#), "hold_key.text is missing");
        for field in ["text", "key"] {
            anthropic(
                &uses(&format!(r#"{{"action":"left_click","coordinate":[1,2],"{field}":"ctrl+shift"}}"#)),
                "Click { at: Some(PagePoint { x: 1.0, y: 2.0 }), button: Left, count: 1, modifiers: Control+Shift }",
            );
        }
        anthropic(
            &uses(r#"{"action":"left_click","text":"space"}"#),
            "Several([KeyDown { key: \"space\" }, Click { at: None, button: Left, count: 1, modifiers: none }, \
             KeyUp { key: \"space\" }])",
        );
        anthropic(
            &uses(r#"{"action":"scroll","scroll_direction":"up","scroll_amount":1,"text":"ctrl"}"#),
            "Scroll { at: None, direction: Up, pixels: Some(100), modifiers: Control }",
        );
        anthropic(
            &uses(r#"{"action":"mouse_move","coordinate":[1,2]}"#),
            "Move { at: PagePoint { x: 1.0, y: 2.0 }, modifiers: none }",
        );
    }
}
