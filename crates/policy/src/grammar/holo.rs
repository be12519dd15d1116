//! The Holo navigation object: `{"note":…,"thought":…,"action":{"action":"click_element",…}}`.
//!
//! The layout is Holo1's navigation step as published in H Company's cookbook; coordinates are whole numbers 0 to 1000 of the image as
//! sent, as in Holo2 and later. Unknown fields are refused. A job may switch on `drag`, `select_tab`, `press_key` and `write`.

use furrow_rollout::{Action, Direction, ExtraAction, ModelPoint, Reply, Size, page_from_model};
use serde_json::{Map, Value, json};

use super::Remarks;
use super::shape::{Field, FieldKind, Fields, Shape, field};

/// Replies longer than this are refused unread: 64 KiB of JSON is no single action.
const TEXT_BYTES_MAX: usize = 64 << 10;

const COORDINATE: FieldKind = FieldKind::Whole { from: 0, to: 1000 };
const ELEMENT: Field = field("element", FieldKind::Text);
const X: Field = field("x", COORDINATE);
const Y: Field = field("y", COORDINATE);

const SHAPES: &[Shape] = &[
    Shape { name: "click_element", fields: &[ELEMENT, X, Y], says: "click at a point" },
    Shape {
        name: "write_element_abs",
        fields: &[field("content", FieldKind::Text), ELEMENT, X, Y],
        says: "click into a field, replace what it holds, press Enter",
    },
    Shape {
        name: "scroll",
        fields: &[field("direction", FieldKind::Word(&["down", "up", "left", "right"]))],
        says: "scroll the page",
    },
    Shape { name: "go_back", fields: &[], says: "go one page back" },
    Shape { name: "refresh", fields: &[], says: "load the page again" },
    Shape { name: "restart", fields: &[], says: "go back to the start page" },
    Shape {
        name: "goto",
        fields: &[field("url", FieldKind::Address)],
        says: "load an address that begins with http:// or https://",
    },
    Shape {
        name: "wait",
        fields: &[field("seconds", FieldKind::WholeOr { from: 0, to: 10, default: 2 })],
        says: "let time pass",
    },
    Shape {
        name: "answer",
        fields: &[field("content", FieldKind::Text)],
        says: "give the answer and end the task",
    },
];

const DRAG: Shape = Shape {
    name: "drag",
    fields: &[ELEMENT, X, Y, field("to_x", COORDINATE), field("to_y", COORDINATE)],
    says: "press at x, y, move, release at to_x, to_y",
};
const SELECT_TAB: Shape = Shape {
    name: "select_tab",
    fields: &[field("index", FieldKind::Whole { from: 0, to: 255 })],
    says: "show another tab, counted from 0, oldest first",
};
const PRESS_KEY: Shape = Shape {
    name: "press_key",
    fields: &[field("key", FieldKind::Text)],
    says: "press a key such as Enter, Tab, ArrowDown or Control+a",
};
const WRITE: Shape = Shape {
    name: "write",
    fields: &[field("content", FieldKind::Text), field("press_enter", FieldKind::Flag)],
    says: "type where the focus is",
};

/// Reads a reply; what cannot be read is in its `action`.
pub(super) fn parse(text: &str, extra: &[ExtraAction], image: Size) -> Reply {
    let mut reply = Reply {
        raw_text: text.to_owned(),
        name: String::new(),
        args_json: "{}".into(),
        action: Err(String::new()),
    };
    reply.action = read(text, extra, image, &mut reply.name, &mut reply.args_json);
    reply
}

fn read(
    text: &str,
    extra: &[ExtraAction],
    image: Size,
    name: &mut String,
    args_json: &mut String,
) -> Result<Action, String> {
    let given = action_object(text)?;
    let called =
        given.get("action").and_then(Value::as_str).ok_or("action.action is missing; name the action")?;
    let shape = shape(called, extra)
        .ok_or_else(|| format!("there is no action {:?}; use {}", cut(called), action_names(extra)))?;
    shape.name.clone_into(name);
    let args: Map<String, Value> = given.iter().filter(|(key, _)| *key != "action").map(owned).collect();
    *args_json = Value::Object(args).to_string();
    action(shape.name, &shape.read(&given)?, image)
}

/// The inner object, after the outer one was checked.
fn action_object(text: &str) -> Result<Map<String, Value>, String> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(format!("the reply has {} bytes, at most {TEXT_BYTES_MAX} are read", text.len()));
    }
    let outer: Value =
        serde_json::from_str(text.trim()).map_err(|why| format!("the reply is not JSON: {why}"))?;
    let Value::Object(mut outer) = outer else { return Err("the reply is not a JSON object".into()) };
    if let Some(stranger) = outer.keys().find(|key| !["note", "thought", "action"].contains(&key.as_str())) {
        return Err(format!("there is no field {:?}; use note, thought, action", cut(stranger)));
    }
    for key in ["note", "thought"] {
        if !matches!(outer.get(key), None | Some(Value::String(_) | Value::Null)) {
            return Err(format!("{key} is not a string"));
        }
    }
    match outer.remove("action") {
        Some(Value::Object(action)) => Ok(action),
        Some(_) => Err("action is not an object".into()),
        None => Err("action is missing".into()),
    }
}

fn action(name: &str, fields: &Fields, image: Size) -> Result<Action, String> {
    let at = |x: &str, y: &str| page_from_model(ModelPoint { x: fields.whole(x), y: fields.whole(y) }, image);
    Ok(match name {
        "click_element" => Action::Click { at: at("x", "y") },
        "write_element_abs" => {
            Action::Write { into: Some(at("x", "y")), content: fields.text("content"), press_enter: true }
        }
        "scroll" => Action::Scroll {
            direction: Direction::parse(&fields.text("direction")).ok_or("scroll.direction is unknown")?,
        },
        "go_back" => Action::GoBack,
        "refresh" => Action::Refresh,
        "restart" => Action::Restart,
        "goto" => Action::Goto { url: web_address(fields.text("url"))? },
        "wait" => Action::Wait { seconds: fields.whole("seconds") },
        "answer" => Action::Answer { content: fields.text("content") },
        "drag" => Action::Drag { from: at("x", "y"), to: at("to_x", "to_y") },
        "select_tab" => Action::SelectTab { index: fields.whole("index") },
        "press_key" => Action::PressKey { key: fields.text("key") },
        "write" => Action::Write {
            into: None,
            content: fields.text("content"),
            press_enter: fields.flag("press_enter"),
        },
        other => return Err(format!("there is no action {other:?}")),
    })
}

fn web_address(url: String) -> Result<String, String> {
    if url.starts_with("http://") || url.starts_with("https://") {
        Ok(url)
    } else {
        Err(format!("goto.url is {:?}; it begins with http:// or https://", cut(&url)))
    }
}

/// Writes an action as a policy would.
pub(super) fn encode(
    action: &Action,
    remarks: &Remarks,
    extra: &[ExtraAction],
    image: Size,
) -> Result<String, String> {
    let inner = inner(action, &remarks.element, image)?;
    let name = inner["action"].as_str().unwrap_or_default();
    if shape(name, extra).is_none() {
        return Err(format!("{name} is not switched on; add it to policy.grammar.extra"));
    }
    Ok(json!({ "note": remarks.note, "thought": remarks.thought, "action": inner }).to_string())
}

fn inner(action: &Action, element: &str, image: Size) -> Result<Value, String> {
    let model = |point| ModelPoint::from_page(point, image);
    Ok(match action {
        Action::Click { at } => {
            let at = model(*at);
            json!({ "action": "click_element", "element": element, "x": at.x, "y": at.y })
        }
        Action::Write { into: Some(at), content, press_enter: true } => {
            let at = model(*at);
            json!({ "action": "write_element_abs", "content": content, "element": element, "x": at.x, "y": at.y })
        }
        Action::Write { into: None, content, press_enter } => {
            json!({ "action": "write", "content": content, "press_enter": press_enter })
        }
        Action::Write { into: Some(_), press_enter: false, .. } => {
            return Err("holo_navigation has no action that writes into a field without Enter".into());
        }
        Action::Scroll { direction } => json!({ "action": "scroll", "direction": direction.as_str() }),
        Action::GoBack => json!({ "action": "go_back" }),
        Action::Refresh => json!({ "action": "refresh" }),
        Action::Restart => json!({ "action": "restart" }),
        Action::Goto { url } => json!({ "action": "goto", "url": url }),
        Action::Wait { seconds } => json!({ "action": "wait", "seconds": seconds }),
        Action::Answer { content } => json!({ "action": "answer", "content": content }),
        Action::Drag { from, to } => {
            let (from, to) = (model(*from), model(*to));
            json!({ "action": "drag", "element": element, "x": from.x, "y": from.y, "to_x": to.x, "to_y": to.y })
        }
        Action::SelectTab { index } => json!({ "action": "select_tab", "index": index }),
        Action::PressKey { key } => json!({ "action": "press_key", "key": key }),
    })
}

/// Instructions in our own words, generated from the shapes so that they cannot disagree with the parser.
pub(super) fn instructions(extra: &[ExtraAction]) -> String {
    let mut text = String::from(
        "You operate a web browser. Each turn shows a screenshot. Reply with one JSON object: \"note\" (what to remember), \
         \"thought\" (why), \"action\" (one of the actions below). Coordinates are whole numbers from 0 to 1000 of the screenshot, \
         from its top left corner.\n",
    );
    for shape in shapes(extra) {
        text.push_str(&format!("- {}: {}", shape.name, shape.says));
        for field in shape.fields {
            text.push_str(&format!("; {} is {}", field.name, field.kind.right()));
        }
        text.push('\n');
    }
    text
}

/// All actions of a job.
pub(super) fn shapes(extra: &[ExtraAction]) -> impl Iterator<Item = Shape> {
    SHAPES.iter().copied().chain(extra.iter().map(|extra| match extra {
        ExtraAction::Drag => DRAG,
        ExtraAction::SelectTab => SELECT_TAB,
        ExtraAction::PressKey => PRESS_KEY,
        ExtraAction::Write => WRITE,
    }))
}

fn shape(name: &str, extra: &[ExtraAction]) -> Option<Shape> {
    shapes(extra).find(|shape| shape.name == name)
}

fn action_names(extra: &[ExtraAction]) -> String {
    shapes(extra).map(|shape| shape.name).collect::<Vec<_>>().join(", ")
}

fn owned((key, value): (&String, &Value)) -> (String, Value) {
    (key.clone(), value.clone())
}

fn cut(text: &str) -> String {
    text.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use furrow_rollout::PagePoint;
    use proptest::prelude::*;

    use super::*;

    const IMAGE: Size = Size::new(1000, 500);

    #[track_caller]
    fn check(text: &str, want: &str) {
        let got = match parse(text, &[], IMAGE).action {
            Ok(action) => format!("{action:?}"),
            Err(why) => why,
        };
        assert!(got.starts_with(want), "\n got {got}\nwant {want}");
    }

    #[test]
    fn replies_become_actions_or_say_why_not() {
        check(
            r#"{"note":"","thought":"open it","action":{"action":"click_element","element":"card","x":412,"y":1000}}"#,
            "Click { at: PagePoint { x: 412.0, y: 500.0 } }",
        );
        check(r#"{"action":{"action":"wait"}}"#, "Wait { seconds: 2 }");
        check(
            r#" {"thought":null,"action":{"action":"scroll","direction":"up"}} "#,
            "Scroll { direction: Up }",
        );
        check(
            r#"{"action":{"action":"write_element_abs","content":"a \"b\"","element":"","x":0,"y":0}}"#,
            r#"Write { into: Some(PagePoint { x: 0.0, y: 0.0 }), content: "a \"b\"", press_enter: true }"#,
        );
        check("click 12 40", "the reply is not JSON");
        check("[]", "the reply is not a JSON object");
        check("{}", "action is missing");
        check(r#"{"action":7}"#, "action is not an object");
        check(r#"{"action":{}}"#, "action.action is missing");
        check(r#"{"plan":1,"action":{}}"#, r#"there is no field "plan"; use note, thought, action"#);
        check(r#"{"thought":[],"action":{}}"#, "thought is not a string");
        check(r#"{"action":{"action":"fly"}}"#, r#"there is no action "fly"; use click_element"#);
        check(
            r#"{"action":{"action":"drag","element":"","x":1,"y":1,"to_x":2,"to_y":2}}"#,
            r#"there is no action "drag""#,
        );
        check(r#"{"action":{"action":"click_element","element":"a","x":1}}"#, "click_element.y is missing");
        check(
            r#"{"action":{"action":"click_element","element":"a","x":1001,"y":1}}"#,
            "click_element.x is 1001; use a whole number from 0 to 1000",
        );
        check(
            r#"{"action":{"action":"click_element","element":"a","x":-1,"y":1}}"#,
            "click_element.x is -1;",
        );
        check(
            r#"{"action":{"action":"click_element","element":"a","x":1.5,"y":1}}"#,
            "click_element.x is 1.5;",
        );
        check(
            r#"{"action":{"action":"click_element","element":"a","x":"1","y":1}}"#,
            "click_element.x is \"1\";",
        );
        check(r#"{"action":{"action":"go_back","far":1}}"#, r#"go_back has no field "far"; it takes none"#);
        check(
            r#"{"action":{"action":"scroll","direction":"in"}}"#,
            "scroll.direction is \"in\"; use one of down",
        );
        check(r#"{"action":{"action":"wait","seconds":11}}"#, "wait.seconds is 11;");
        check(
            r#"{"action":{"action":"goto","url":"file:///etc/passwd"}}"#,
            "goto.url is \"file:///etc/passwd\";",
        );
        check(&format!("{{\"note\":\"{}\"}}", "x".repeat(70_000)), "the reply has 70011 bytes");
        check(&"[".repeat(60_000), "the reply is not JSON");
    }

    #[test]
    fn extras_exist_only_where_they_are_switched_on() {
        let text = r#"{"action":{"action":"write","content":"x"}}"#;
        assert!(parse(text, &[], IMAGE).action.is_err());
        let got = parse(text, &[ExtraAction::Write], IMAGE);
        assert_eq!(got.action, Ok(Action::Write { into: None, content: "x".into(), press_enter: false }));
        assert_eq!((got.name.as_str(), got.args_json.as_str()), ("write", r#"{"content":"x"}"#));
        let encoded = encode(&Action::SelectTab { index: 1 }, &Remarks::default(), &[], IMAGE);
        assert!(encoded.unwrap_err().contains("policy.grammar.extra"));
    }

    fn point() -> impl Strategy<Value = PagePoint> {
        (0u16..=1000, 0u16..=1000).prop_map(|(x, y)| page_from_model(ModelPoint { x, y }, IMAGE))
    }

    fn any_action() -> impl Strategy<Value = Action> {
        prop_oneof![
            point().prop_map(|at| Action::Click { at }),
            (point(), ".*").prop_map(|(at, content)| Action::Write {
                into: Some(at),
                content,
                press_enter: true
            }),
            (".*", any::<bool>()).prop_map(|(content, press_enter)| Action::Write {
                into: None,
                content,
                press_enter
            }),
            Just(Action::Scroll { direction: Direction::Left }),
            Just(Action::GoBack),
            Just(Action::Refresh),
            Just(Action::Restart),
            "[a-z/?=&]{0,40}".prop_map(|rest| Action::Goto { url: format!("https://{rest}") }),
            (0u8..=10).prop_map(|seconds| Action::Wait { seconds }),
            ".*".prop_map(|content| Action::Answer { content }),
            (point(), point()).prop_map(|(from, to)| Action::Drag { from, to }),
            (0u32..256).prop_map(|index| Action::SelectTab { index }),
            ".*".prop_map(|key| Action::PressKey { key }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(action in any_action(), thought in ".*", element in ".*") {
            let remarks = Remarks { thought, element, ..Remarks::default() };
            let text = encode(&action, &remarks, &ExtraAction::ALL, IMAGE).unwrap();
            prop_assert_eq!(parse(&text, &ExtraAction::ALL, IMAGE).action, Ok(action));
        }

        #[test]
        fn any_text_is_kept_as_it_was(text in ".*") {
            prop_assert_eq!(parse(&text, &ExtraAction::ALL, IMAGE).raw_text, text);
        }
    }
}
