//! The Holo navigation object: `{"note":…,"thought":…,"action":{"action":"click_element",…}}`.
//!
//! The layout is Holo1's navigation step as published in H Company's cookbook. Its coordinates are
//! pixels of the image as sent with Holo1 and Holo1.5 (`holo_navigation_pixels`), and whole numbers
//! 0 to 1000 with Holo2 and later (`holo_navigation`). Unknown fields are refused. A job may enable
//! `drag`, `select_tab`, `press_key`, `write` and `upload`.

use furrow_rollout::{Action, ExtraAction, Modifiers, PagePoint, PointerButton, ScrollDirection, Size};
use serde_json::{Map, Value, json};

use super::dialect::{GrammarDialect, ReplyFrame, ReplyRemarks, UPLOAD, ViewedPage, unsupported_action};
use super::shape::{
    ActionField, ActionFields, ActionShape, FieldKind, ParsedCall, cut, field, listed, read_call,
};
use super::space::CoordinateSpace;

/// The Holo navigation object with coordinates 0 to 1000 of the image as sent.
pub(crate) const HOLO_NAVIGATION: &str = "holo_navigation";

pub(super) const NAVIGATION: GrammarDialect = GrammarDialect {
    name: HOLO_NAVIGATION,
    read: |text, extra, view, parsed| read(CoordinateSpace::Thousandths, text, extra, view.image, parsed),
    encode: |action, remarks, extra, view| encode(CoordinateSpace::Thousandths, action, remarks, extra, view),
    instructions: |extra| instructions(CoordinateSpace::Thousandths, extra),
    extra: &ExtraAction::ALL,
    needs_marks: false,
    frame: Some(ReplyFrame {
        call: "action",
        name: "action",
        shapes: |extra| shapes(CoordinateSpace::Thousandths, extra),
        endings: &["answer", "goto"],
    }),
};

pub(super) const NAVIGATION_PIXELS: GrammarDialect = GrammarDialect {
    name: "holo_navigation_pixels",
    read: |text, extra, view, parsed| read(CoordinateSpace::Pixels, text, extra, view.image, parsed),
    encode: |action, remarks, extra, view| encode(CoordinateSpace::Pixels, action, remarks, extra, view),
    instructions: |extra| instructions(CoordinateSpace::Pixels, extra),
    extra: &ExtraAction::ALL,
    needs_marks: false,
    // The legal coordinates depend on the image, but an automaton is compiled once.
    frame: None,
};

const ELEMENT: ActionField = field("element", FieldKind::Text);

/// The actions, with coordinates of this kind.
macro_rules! shapes {
    ($coordinate:expr) => {
        [
            ActionShape {
                name: "click_element",
                fields: &[ELEMENT, field("x", $coordinate), field("y", $coordinate)],
                description: "click at a point",
            },
            ActionShape {
                name: "write_element_abs",
                fields: &[
                    field("content", FieldKind::Text),
                    ELEMENT,
                    field("x", $coordinate),
                    field("y", $coordinate),
                ],
                description: "click into a field, replace what it holds, press Enter",
            },
            ActionShape {
                name: "scroll",
                fields: &[field("direction", FieldKind::Choice(&["down", "up", "left", "right"]))],
                description: "scroll the page",
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
                name: "wait",
                fields: &[field("seconds", FieldKind::WholeOr { from: 0, to: 10, default: 2 })],
                description: "let time pass",
            },
            ActionShape {
                name: "answer",
                fields: &[field("content", FieldKind::Text)],
                description: "give the answer and end the task",
            },
            // Actions that a job may enable, in the order of `ExtraAction`.
            ActionShape {
                name: "drag",
                fields: &[
                    ELEMENT,
                    field("x", $coordinate),
                    field("y", $coordinate),
                    field("to_x", $coordinate),
                    field("to_y", $coordinate),
                ],
                description: "press at x, y, move, release at to_x, to_y",
            },
            ActionShape {
                name: "select_tab",
                fields: &[field("index", FieldKind::Whole { from: 0, to: 255 })],
                description: "show another tab, counted from 0, oldest first",
            },
            ActionShape {
                name: "press_key",
                fields: &[field("key", FieldKind::Text)],
                description: "press a key such as Enter, Tab, ArrowDown or Control+a",
            },
            ActionShape {
                name: "write",
                fields: &[field("content", FieldKind::Text), field("press_enter", FieldKind::Flag)],
                description: "type where the focus is",
            },
            UPLOAD,
        ]
    };
}

const THOUSANDTHS: [ActionShape; 14] = shapes!(FieldKind::Whole { from: 0, to: 1000 });
/// No side of an image is longer. The parser checks whether a coordinate is in the actual image.
const PIXELS: [ActionShape; 14] = shapes!(FieldKind::Whole { from: 0, to: 16_384 });

/// All actions of a job.
fn shapes(space: CoordinateSpace, extra: &[ExtraAction]) -> Vec<ActionShape> {
    let all = if space == CoordinateSpace::Pixels { PIXELS } else { THOUSANDTHS };
    let is_on = |shape: &ActionShape| {
        let switch = match shape.name {
            "drag" => ExtraAction::Drag,
            "select_tab" => ExtraAction::SelectTab,
            "press_key" => ExtraAction::PressKey,
            "write" => ExtraAction::Write,
            "upload" => ExtraAction::Upload,
            _ => return true,
        };
        extra.contains(&switch)
    };
    all.into_iter().filter(is_on).collect()
}

fn read(
    space: CoordinateSpace,
    text: &str,
    extra: &[ExtraAction],
    image: Size,
    parsed: &mut ParsedCall,
) -> Result<Action, String> {
    let given = call(text, "action")?;
    let (name, fields) = read_call(&given, ("action", "action"), &shapes(space, extra), parsed)?;
    action(name, &fields, &ImageSpace { space, image })
}

/// The call in a reply with `note`, `thought` and `key`, after all other fields were checked.
pub(super) fn call(text: &str, key: &str) -> Result<Map<String, Value>, String> {
    let outer: Value =
        serde_json::from_str(text.trim()).map_err(|why| format!("the reply is not JSON: {why}"))?;
    let Value::Object(mut outer) = outer else { return Err("the reply is not a JSON object".into()) };
    if let Some(stranger) = outer.keys().find(|name| !["note", "thought", key].contains(&name.as_str())) {
        return Err(format!("there is no field {:?}; use note, thought, {key}", cut(stranger)));
    }
    for name in ["note", "thought"] {
        if !matches!(outer.get(name), None | Some(Value::String(_) | Value::Null)) {
            return Err(format!("{name} is not a string"));
        }
    }
    match outer.remove(key) {
        Some(Value::Object(call)) => Ok(call),
        Some(_) => Err(format!("{key} is not an object")),
        None => Err(format!("{key} is missing")),
    }
}

/// Converts coordinates of an action.
pub(super) struct ImageSpace {
    pub space: CoordinateSpace,
    pub image: Size,
}

impl ImageSpace {
    /// The point in two fields of an action.
    pub(super) fn at(
        &self,
        action: &str,
        fields: &ActionFields,
        x: &str,
        y: &str,
    ) -> Result<PagePoint, String> {
        let outside = |why| format!("{action}.{why}");
        self.space.page(fields.number(x), fields.number(y), self.image).map_err(outside)
    }

    /// The coordinates of a point as whole numbers.
    pub(super) fn whole(&self, at: PagePoint) -> (u64, u64) {
        let (x, y) = self.space.model(at, self.image);
        (x as u64, y as u64)
    }
}

fn action(name: &str, fields: &ActionFields, aim: &ImageSpace) -> Result<Action, String> {
    let at = || aim.at(name, fields, "x", "y");
    Ok(match name {
        "click_element" => Action::click(at()?),
        "write_element_abs" => {
            Action::Write { into: Some(at()?), content: fields.text("content"), press_enter: true }
        }
        "scroll" => Action::scroll(
            ScrollDirection::parse(&fields.text("direction")).ok_or("scroll.direction is unknown")?,
        ),
        "go_back" => Action::GoBack,
        "refresh" => Action::Refresh,
        "restart" => Action::Restart,
        "goto" => Action::Goto { url: web_address(fields.text("url"))? },
        "wait" => Action::Wait { seconds: fields.whole("seconds") },
        "answer" => Action::Answer { content: fields.text("content") },
        "drag" => Action::drag(at()?, aim.at(name, fields, "to_x", "to_y")?),
        "select_tab" => Action::SelectTab { index: fields.whole("index") },
        "press_key" => Action::press(fields.text("key")),
        "write" => Action::Write {
            into: None,
            content: fields.text("content"),
            press_enter: fields.flag("press_enter"),
        },
        "upload" => Action::Upload { names: fields.texts("files") },
        other => return Err(format!("there is no action {other:?}")),
    })
}

/// Checks that an address is one of the web.
pub(super) fn web_address(url: String) -> Result<String, String> {
    if url.starts_with("http://") || url.starts_with("https://") {
        Ok(url)
    } else {
        Err(format!("goto.url is {:?}; it must begin with http:// or https://", cut(&url)))
    }
}

fn encode(
    space: CoordinateSpace,
    action: &Action,
    remarks: &ReplyRemarks,
    extra: &[ExtraAction],
    view: ViewedPage<'_>,
) -> Result<String, String> {
    let inner = inner(action, &remarks.element, &ImageSpace { space, image: view.image })
        .ok_or_else(|| unsupported_action(HOLO_NAVIGATION, action))?;
    let name = inner["action"].as_str().unwrap_or_default();
    if !shapes(space, extra).iter().any(|shape| shape.name == name) {
        return Err(format!("{name} is not enabled; add it to policy.grammar.extra"));
    }
    Ok(json!({ "note": remarks.note, "thought": remarks.thought, "action": inner }).to_string())
}

fn inner(action: &Action, element: &str, aim: &ImageSpace) -> Option<Value> {
    Some(match action {
        Action::Click { at: Some(at), button: PointerButton::Left, count: 1, modifiers: Modifiers::NONE } => {
            let (x, y) = aim.whole(*at);
            json!({ "action": "click_element", "element": element, "x": x, "y": y })
        }
        Action::Write { into: Some(at), content, press_enter: true } => {
            let (x, y) = aim.whole(*at);
            json!({ "action": "write_element_abs", "content": content, "element": element, "x": x, "y": y })
        }
        Action::Write { into: None, content, press_enter } => {
            json!({ "action": "write", "content": content, "press_enter": press_enter })
        }
        Action::Scroll { at: None, direction, pixels: None, modifiers: Modifiers::NONE } => {
            json!({ "action": "scroll", "direction": direction.as_str() })
        }
        Action::GoBack => json!({ "action": "go_back" }),
        Action::Refresh => json!({ "action": "refresh" }),
        Action::Restart => json!({ "action": "restart" }),
        Action::Goto { url } => json!({ "action": "goto", "url": url }),
        Action::Wait { seconds } if *seconds <= 10 => json!({ "action": "wait", "seconds": seconds }),
        Action::Answer { content } => json!({ "action": "answer", "content": content }),
        Action::Drag { from: Some(from), to, modifiers: Modifiers::NONE } => {
            let (x, y) = aim.whole(*from);
            let (to_x, to_y) = aim.whole(*to);
            json!({ "action": "drag", "element": element, "x": x, "y": y, "to_x": to_x, "to_y": to_y })
        }
        Action::SelectTab { index } => json!({ "action": "select_tab", "index": index }),
        Action::PressKey { key, times: 1 } => json!({ "action": "press_key", "key": key }),
        Action::Upload { names } => json!({ "action": "upload", "files": names }),
        _ => return None,
    })
}

/// Generated from the shapes, so that the instructions and the parser agree.
fn instructions(space: CoordinateSpace, extra: &[ExtraAction]) -> String {
    format!(
        "You operate a web browser. Each turn shows a screenshot. Reply with one JSON object: \"note\" (what to remember), \
         \"thought\" (why), \"action\" (one of the actions below). {}\n{}",
        space.description(),
        listed(&shapes(space, extra)),
    )
}

#[cfg(test)]
mod tests {
    use furrow_rollout::Grammar;

    use super::super::tests::check;
    use super::super::{encode, parse};
    use super::*;

    const IMAGE: Size = Size::new(1000, 500);

    fn job(extra: &[ExtraAction]) -> Grammar {
        Grammar { name: HOLO_NAVIGATION.into(), extra: extra.to_vec() }
    }

    #[test]
    fn replies_become_actions_or_say_why_not() {
        let check = |text: &str, want: &str| check(HOLO_NAVIGATION, text, want);
        check(
            r#"{"note":"","thought":"open it","action":{"action":"click_element","element":"card","x":412,"y":1000}}"#,
            "Click { at: Some(PagePoint { x: 412.0, y: 500.0 }), button: Left, count: 1, modifiers: none }",
        );
        check(r#"{"action":{"action":"wait"}}"#, "Wait { seconds: 2 }");
        check(
            r#" {"thought":null,"action":{"action":"scroll","direction":"up"}} "#,
            "Scroll { at: None, direction: Up, pixels: None, modifiers: none }",
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
        assert!(parse(&job(&[]), text, ViewedPage::image(IMAGE)).action.is_err());
        let got = parse(&job(&[ExtraAction::Write]), text, ViewedPage::image(IMAGE));
        assert_eq!(got.action, Ok(Action::Write { into: None, content: "x".into(), press_enter: false }));
        assert_eq!((got.name.as_str(), got.args_json.as_str()), ("write", r#"{"content":"x"}"#));
        let encoded = encode(
            &job(&[]),
            &Action::SelectTab { index: 1 },
            &ReplyRemarks::default(),
            ViewedPage::image(IMAGE),
        );
        assert!(encoded.unwrap_err().contains("policy.grammar.extra"));
    }

    #[test]
    fn pixels_lie_in_the_picture() {
        let check = |text: &str, want: &str| check("holo_navigation_pixels", text, want);
        check(
            r#"{"action":{"action":"click_element","element":"","x":1000,"y":500}}"#,
            "Click { at: Some(PagePoint { x: 1000.0, y: 500.0 }), button: Left, count: 1, modifiers: none }",
        );
        check(
            r#"{"action":{"action":"click_element","element":"","x":1000,"y":501}}"#,
            "click_element.y is 501; use 0 to 500",
        );
    }
}
