//! Localisation replies of the Holo models: a point and nothing else. For data sets of images with
//! boxes, where an action is always a click.
//!
//! `holo_click`: `Click(352, 348)` in pixels, as Holo1 was trained. `holo_click_absolute`:
//! `{"action":"click_absolute","x":947,"y":338}` in pixels, Holo1.5. `holo_point`:
//! `{"x":552,"y":404}`, whole numbers 0 to 1000, Holo2 and Holo3.

use furrow_rollout::{Action, Modifiers, PointerButton, Size};
use serde_json::{Map, Value, json};

use super::dialect::{GrammarDialect, unsupported_action};
use super::shape::{ActionShape, FieldKind, ParsedCall, cut, field};
use super::space::CoordinateSpace;

pub(super) const CLICK_CALL: GrammarDialect = GrammarDialect {
    name: "holo_click",
    read: |text, _, view, parsed| read_call(text, view.image, parsed),
    encode: |action, _, _, view| {
        let (x, y) = click_point(CoordinateSpace::Pixels, "holo_click", action, view.image)?;
        Ok(format!("Click({x}, {y})"))
    },
    instructions: |_| instructions("Click(x, y)", CoordinateSpace::Pixels),
    ..PLAIN
};

pub(super) const CLICK_ABSOLUTE: GrammarDialect = GrammarDialect {
    name: "holo_click_absolute",
    read: |text, _, view, parsed| {
        let mut given = object(text)?;
        match given.remove("action") {
            Some(Value::String(name)) if name == "click_absolute" => {}
            _ => return Err("action is not \"click_absolute\"".into()),
        }
        read_point("click_absolute", &given, CoordinateSpace::Pixels, view.image, parsed)
    },
    encode: |action, _, _, view| {
        let (x, y) = click_point(CoordinateSpace::Pixels, "holo_click_absolute", action, view.image)?;
        Ok(json!({ "action": "click_absolute", "x": x, "y": y }).to_string())
    },
    instructions: |_| {
        instructions(r#"{"action": "click_absolute", "x": …, "y": …}"#, CoordinateSpace::Pixels)
    },
    ..PLAIN
};

pub(super) const POINT: GrammarDialect = GrammarDialect {
    name: "holo_point",
    read: |text, _, view, parsed| {
        read_point("point", &object(text)?, CoordinateSpace::Thousandths, view.image, parsed)
    },
    encode: |action, _, _, view| {
        let (x, y) = click_point(CoordinateSpace::Thousandths, "holo_point", action, view.image)?;
        Ok(json!({ "x": x, "y": y }).to_string())
    },
    instructions: |_| instructions(r#"{"x": …, "y": …}"#, CoordinateSpace::Thousandths),
    ..PLAIN
};

/// The parts that all three share.
const PLAIN: GrammarDialect = GrammarDialect {
    name: "",
    read: |_, _, _, _| Err(String::new()),
    encode: |_, _, _, _| Err(String::new()),
    instructions: |_| String::new(),
    extra: &[],
    needs_marks: false,
    frame: None,
};

const POINT_SHAPE: ActionShape = ActionShape {
    name: "point",
    fields: &[
        field("x", FieldKind::Whole { from: 0, to: 16_384 }),
        field("y", FieldKind::Whole { from: 0, to: 16_384 }),
    ],
    description: "",
};

fn object(text: &str) -> Result<Map<String, Value>, String> {
    match serde_json::from_str(text.trim()) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err("the reply is not a JSON object".into()),
        Err(why) => Err(format!("the reply is not JSON: {why}")),
    }
}

fn read_point(
    name: &str,
    given: &Map<String, Value>,
    space: CoordinateSpace,
    image: Size,
    parsed: &mut ParsedCall,
) -> Result<Action, String> {
    name.clone_into(&mut parsed.name);
    parsed.args_json = Some(json!(given).to_string());
    let fields = POINT_SHAPE.read(given, "")?;
    space.page(fields.number("x"), fields.number("y"), image).map(Action::click)
}

/// Parses `Click(352, 348)` with any spaces.
fn read_call(text: &str, image: Size, parsed: &mut ParsedCall) -> Result<Action, String> {
    let form = || format!("{:?} is not of the form Click(x, y)", cut(text.trim()));
    let inside =
        text.trim().strip_prefix("Click(").and_then(|rest| rest.strip_suffix(')')).ok_or_else(form)?;
    let (x, y) = inside.split_once(',').ok_or_else(form)?;
    let whole = |text: &str| text.trim().parse::<u32>().map_err(|_| form());
    let given = Map::from_iter([("x".to_owned(), whole(x)?.into()), ("y".to_owned(), whole(y)?.into())]);
    read_point("Click", &given, CoordinateSpace::Pixels, image, parsed)
}

fn click_point(
    space: CoordinateSpace,
    grammar: &str,
    action: &Action,
    image: Size,
) -> Result<(u64, u64), String> {
    match action {
        Action::Click { at: Some(at), button: PointerButton::Left, count: 1, modifiers: Modifiers::NONE } => {
            let (x, y) = space.model(*at, image);
            Ok((x as u64, y as u64))
        }
        other => Err(unsupported_action(grammar, other)),
    }
}

fn instructions(form: &str, space: CoordinateSpace) -> String {
    format!(
        "The screenshot shows a page. Reply with the place that the instruction speaks of, as {form}. {}\n",
        space.description()
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::check;

    #[test]
    fn points_become_clicks_or_errors() {
        let at = |x, y| {
            format!(
                "Click {{ at: Some(PagePoint {{ x: {x:.1}, y: {y:.1} }}), button: Left, count: 1, modifiers: none }}"
            )
        };
        check("holo_click", "Click(352, 348)", &at(352.0, 348.0));
        check("holo_click", " Click( 1000,500 )\n", &at(1000.0, 500.0));
        check("holo_click", "Click(1001, 348)", "x is 1001; use 0 to 1000");
        check("holo_click", "click(1, 2)", "\"click(1, 2)\" is not of the form Click(x, y)");
        check("holo_click", "Click(-1, 2)", "\"Click(-1, 2)\" is not of the form");
        check("holo_click", "Click(1, 2) and more", "\"Click(1, 2) and more\" is not of the form");
        check("holo_click_absolute", r#"{"action":"click_absolute","x":947,"y":338}"#, &at(947.0, 338.0));
        check(
            "holo_click_absolute",
            r#"{"action":"click","x":947,"y":338}"#,
            "action is not \"click_absolute\"",
        );
        check("holo_point", r#"{"x":552,"y":404}"#, &at(552.0, 202.0));
        check("holo_point", r#"{"x":552}"#, "point.y is missing");
        check("holo_point", r#"{"x":552,"y":1001}"#, "y is 1001; use 0 to 1000");
        check("holo_point", r#"{"x":552,"y":1,"z":1}"#, "point has no field \"z\"");
        check("holo_point", "[552, 404]", "the reply is not a JSON object");
    }
}
