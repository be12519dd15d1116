//! Anthropic's computer use: `{"type":"tool_use","name":"computer","input":{"action":"left_click","coordinate":[412,633]}}`.
//!
//! Actions and fields are those of the published demonstration; coordinates are pixels of the screenshot as sent. A reply is one content
//! block or a list of them; text beside a tool's use is thinking, text alone is the answer. Buttons and keys held from one step to the next
//! (`left_mouse_down`, `hold_key`) are not offered: nothing of a step may outlast it.

use furrow_rollout::{Action, Button, Direction, PagePoint, Size};
use serde_json::{Value, json};

use super::shape::{Field, FieldKind, Fields, Shape, field, listed, read_call};
use super::space::Space;
use super::{Dialect, NOTCH_PIXELS, Remarks, Said, cut, distance, no_word};

pub(super) const COMPUTER: Dialect = Dialect {
    name: "anthropic_computer",
    read: |text, _, seen, said| read(text, seen.image, said),
    encode: |action, remarks, _, seen| encode(action, remarks, seen.image),
    instructions: |_| instructions(),
    is_extensible: false,
    needs_marks: false,
    frame: None,
};

const PLACE_OR_NONE: &[Field] = &[field("coordinate", FieldKind::PairOrNone)];

const fn click(name: &'static str, says: &'static str) -> Shape {
    Shape { name, fields: PLACE_OR_NONE, says }
}

const ACTIONS: &[Shape] = &[
    click("left_click", "click at a point, or where the mouse is"),
    click("right_click", "click with the right button"),
    click("middle_click", "click with the middle button"),
    click("double_click", "click twice"),
    click("triple_click", "click three times"),
    Shape {
        name: "mouse_move",
        fields: &[field("coordinate", FieldKind::Pair)],
        says: "move the mouse there",
    },
    Shape {
        name: "left_click_drag",
        fields: &[field("start_coordinate", FieldKind::PairOrNone), field("coordinate", FieldKind::Pair)],
        says: "press at the one point, or where the mouse is, move, release at the other",
    },
    Shape {
        name: "key",
        fields: &[field("text", FieldKind::Text)],
        says: "press a key or several together, such as Return or ctrl+a",
    },
    Shape { name: "type", fields: &[field("text", FieldKind::Text)], says: "type where the focus is" },
    Shape {
        name: "scroll",
        fields: &[
            field("coordinate", FieldKind::PairOrNone),
            field("scroll_direction", FieldKind::Word(&["down", "up", "left", "right"])),
            field("scroll_amount", FieldKind::Whole { from: 0, to: 100 }),
        ],
        says: "turn the wheel by so many clicks",
    },
    Shape {
        name: "wait",
        fields: &[field("duration", FieldKind::Number { from: 0.0, to: 30.0 })],
        says: "let so many seconds pass",
    },
    Shape { name: "screenshot", fields: &[], says: "look again" },
    Shape { name: "cursor_position", fields: &[], says: "look again: the mouse is where it was left" },
];

fn read(text: &str, image: Size, said: &mut Said) -> Result<Action, String> {
    let reply: Value =
        serde_json::from_str(text.trim()).map_err(|why| format!("the reply is not JSON: {why}"))?;
    let blocks = match reply {
        Value::Array(blocks) => blocks,
        block => vec![block],
    };
    let (mut actions, mut texts) = (Vec::new(), Vec::new());
    for block in &blocks {
        match block["type"].as_str() {
            Some("text") => texts.push(block["text"].as_str().ok_or("text.text is missing")?),
            Some("thinking" | "redacted_thinking") => {}
            Some("tool_use") => {
                if block["name"] != "computer" {
                    return Err(format!(
                        "there is no tool {:?}; use computer",
                        cut(&block["name"].to_string())
                    ));
                }
                let input = block["input"].as_object().ok_or("tool_use.input is missing or not an object")?;
                let (name, fields) = read_call(input, ("input", "action"), ACTIONS, said)?;
                actions.push(action(name, &fields, image)?);
            }
            _ => return Err("a content block has no type of text, thinking or tool_use".into()),
        }
    }
    if actions.is_empty() && !texts.is_empty() {
        "text".clone_into(&mut said.name);
        return Ok(Action::Answer { content: texts.concat() });
    }
    Action::of_several(actions)
}

fn action(name: &str, fields: &Fields, image: Size) -> Result<Action, String> {
    let at = |key: &str| {
        let point = fields.pair(key).map(|(x, y)| Space::Pixels.page(x, y, image));
        point.transpose().map_err(|why| format!("{name}.{key}: {why}"))
    };
    let there = || at("coordinate")?.ok_or_else(|| format!("{name}.coordinate is missing"));
    let click = |button, count| Ok(Action::Click { at: at("coordinate")?, button, count });
    match name {
        "left_click" => click(Button::Left, 1),
        "right_click" => click(Button::Right, 1),
        "middle_click" => click(Button::Middle, 1),
        "double_click" => click(Button::Left, 2),
        "triple_click" => click(Button::Left, 3),
        "mouse_move" => Ok(Action::Move { at: there()? }),
        "left_click_drag" => Ok(Action::Drag { from: at("start_coordinate")?, to: there()? }),
        "key" => Ok(Action::press(fields.text("text"))),
        "type" => Ok(Action::Write { into: None, content: fields.text("text"), press_enter: false }),
        "scroll" => {
            let direction = Direction::parse(&fields.text("scroll_direction"))
                .ok_or("scroll.scroll_direction is unknown")?;
            Ok(match fields.whole::<u32>("scroll_amount") {
                0 => Action::Wait { seconds: 0 },
                clicks => {
                    Action::Scroll { at: at("coordinate")?, direction, pixels: Some(clicks * NOTCH_PIXELS) }
                }
            })
        }
        "wait" => Ok(Action::Wait { seconds: fields.number("duration").ceil() as u8 }),
        "screenshot" | "cursor_position" => Ok(Action::Wait { seconds: 0 }),
        other => Err(format!("there is no action {other:?}")),
    }
}

fn encode(action: &Action, remarks: &Remarks, image: Size) -> Result<String, String> {
    let mut blocks = Vec::new();
    for part in action.parts() {
        blocks.extend(self::blocks(part, image).ok_or_else(|| no_word(COMPUTER.name, part))?);
    }
    let answers = blocks.iter().filter(|block| block["type"] == "text").count();
    if answers > 0 && blocks.len() > 1 {
        // Text beside a tool's use would be read as thinking.
        return Err(no_word(COMPUTER.name, action));
    }
    if answers == 0 && !remarks.thought.is_empty() {
        blocks.insert(0, json!({ "type": "text", "text": remarks.thought }));
    }
    Ok(match <[Value; 1]>::try_from(blocks) {
        Ok([block]) => block.to_string(),
        Err(blocks) => Value::Array(blocks).to_string(),
    })
}

/// The content blocks that do one action.
fn blocks(action: &Action, image: Size) -> Option<Vec<Value>> {
    let place = |at: &PagePoint| {
        let (x, y) = Space::Pixels.model(*at, image);
        json!([x as u64, y as u64])
    };
    let uses = |input: Value| json!({ "type": "tool_use", "name": "computer", "input": input });
    let mut input = match action {
        Action::Click { at, button, count } => {
            let name = match (button, count) {
                (Button::Left, 1) => "left_click",
                (Button::Right, 1) => "right_click",
                (Button::Middle, 1) => "middle_click",
                (Button::Left, 2) => "double_click",
                (Button::Left, 3) => "triple_click",
                _ => return None,
            };
            json!({ "action": name, "coordinate": at.as_ref().map(place) })
        }
        Action::Move { at } => json!({ "action": "mouse_move", "coordinate": place(at) }),
        Action::Drag { from, to } => json!({
            "action": "left_click_drag", "start_coordinate": from.as_ref().map(place), "coordinate": place(to),
        }),
        Action::Scroll { at, direction, pixels } => {
            let clicks = distance(*direction, *pixels, image).div_ceil(NOTCH_PIXELS).clamp(1, 100);
            json!({
                "action": "scroll", "coordinate": at.as_ref().map(place), "scroll_direction": direction.as_str(),
                "scroll_amount": clicks,
            })
        }
        Action::Write { into, content, press_enter } => {
            let click = |at| uses(json!({ "action": "triple_click", "coordinate": place(at) }));
            let mut blocks: Vec<Value> = into.iter().map(click).collect();
            blocks.push(uses(json!({ "action": "type", "text": content })));
            blocks.extend(press_enter.then(|| uses(json!({ "action": "key", "text": "Return" }))));
            return Some(blocks);
        }
        Action::PressKey { key, times } => {
            return Some(vec![uses(json!({ "action": "key", "text": key })); usize::from(*times)]);
        }
        Action::Wait { seconds: 0 } => json!({ "action": "screenshot" }),
        Action::Wait { seconds } => json!({ "action": "wait", "duration": seconds }),
        Action::Answer { content } => return Some(vec![json!({ "type": "text", "text": content })]),
        _ => return None,
    };
    // What may be left out is left out where there is nothing to say.
    if let Value::Object(fields) = &mut input {
        fields.retain(|_, value| !value.is_null());
    }
    Some(vec![uses(input)])
}

fn instructions() -> String {
    format!(
        "You operate a web browser. Each turn shows a screenshot. Reply with {{\"type\": \"tool_use\", \"name\": \"computer\", \"input\": …}}, the \
         input an object with its \"action\" and fields as below, or with a list of such blocks. {}\n{}\
         {{\"type\": \"text\", \"text\": …}} alone gives the answer and ends the task.\n",
        Space::Pixels.says(),
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
            "Click { at: Some(PagePoint { x: 412.0, y: 300.0 }), button: Left, count: 1 }",
        );
        anthropic(&uses(r#"{"action":"double_click"}"#), "Click { at: None, button: Left, count: 2 }");
        anthropic(
            &uses(r#"{"action":"left_click_drag","coordinate":[1,2]}"#),
            "Drag { from: None, to: PagePoint { x: 1.0, y: 2.0 } }",
        );
        anthropic(
            &uses(r#"{"action":"scroll","coordinate":[1,2],"scroll_direction":"down","scroll_amount":5}"#),
            "Scroll { at: Some(PagePoint { x: 1.0, y: 2.0 }), direction: Down, pixels: Some(500) }",
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
        anthropic(&uses(r#"{"action":"left_mouse_down"}"#), "there is no action \"left_mouse_down\"");
        anthropic(
            r#"{"type":"tool_use","name":"bash","input":{}}"#,
            "there is no tool \"\\\"bash\\\"\"; use computer",
        );
        anthropic(r#"{"type":"tool_use","name":"computer"}"#, "tool_use.input is missing");
        anthropic("[]", "there is no action");
        anthropic("{}", "a content block has no type");
        anthropic("42", "a content block has no type");
    }
}
