//! UI-TARS: `Thought: …` and `Action: click(point='<point>352 348</point>')`, several calls
//! separated by a blank line.
//!
//! The forms are those of ByteDance's published parser, with `hover`, `select`, and the keys that
//! stay down (`press` and `release`), which its prompts leave out; the older `start_box='(x,y)'` is
//! accepted as well. Models based on Qwen2.5-VL write pixels of the image as sent
//! (`ui_tars_pixels`), those based on Qwen2-VL whole numbers 0 to 1000 (`ui_tars`).

use std::collections::BTreeMap;

use furrow_rollout::{Action, Modifier, Modifiers, PagePoint, PointerButton, ScrollDirection, Size};
use serde_json::json;

use super::dialect::{GrammarDialect, ReplyRemarks, unsupported_action};
use super::shape::{ParsedCall, cut};
use super::space::CoordinateSpace;

pub(super) const THOUSANDTHS: GrammarDialect = GrammarDialect {
    name: "ui_tars",
    read: |text, _, view, parsed| read(CoordinateSpace::Thousandths, text, view.image, parsed),
    encode: |action, remarks, _, view| encode(CoordinateSpace::Thousandths, action, remarks, view.image),
    instructions: |_| instructions(CoordinateSpace::Thousandths),
    extra: &[],
    needs_marks: false,
    frame: None,
};

pub(super) const PIXELS: GrammarDialect = GrammarDialect {
    name: "ui_tars_pixels",
    read: |text, _, view, parsed| read(CoordinateSpace::Pixels, text, view.image, parsed),
    encode: |action, remarks, _, view| encode(CoordinateSpace::Pixels, action, remarks, view.image),
    instructions: |_| instructions(CoordinateSpace::Pixels),
    ..THOUSANDTHS
};

const WAIT_SECONDS: u8 = 5;

/// Most keys that `hotkey` presses together.
const KEYS_MAX: usize = 3;

fn read(space: CoordinateSpace, text: &str, image: Size, parsed: &mut ParsedCall) -> Result<Action, String> {
    let (_, calls) = text
        .rsplit_once("Action:")
        .ok_or("there is no line \"Action:\"; reply with a thought and an action")?;
    let mut actions = Vec::new();
    for call in calls.split("\n\n").map(str::trim).filter(|call| !call.is_empty()) {
        let (name, arguments) = parse_call(call)?;
        name.clone_into(&mut parsed.name);
        parsed.args_json = Some(json!(arguments).to_string());
        actions.extend(actions_of(name, &CallArguments { name, space, image, given: arguments })?);
    }
    Action::of_several(actions)
}

/// `name(key='value', …)`; in a value `\'`, `\"`, `\\` and `\n` are escapes.
fn parse_call(call: &str) -> Result<(&str, BTreeMap<String, String>), String> {
    let form = || format!("{:?} is not of the form name(key='value')", cut(call));
    let (name, rest) = call.split_once('(').ok_or_else(form)?;
    let mut rest = rest.strip_suffix(')').ok_or_else(form)?.trim();
    let mut arguments = BTreeMap::new();
    while !rest.is_empty() {
        let (key, quoted) = rest.split_once('=').ok_or_else(form)?;
        let quote = quoted.chars().next().filter(|quote| ['\'', '"'].contains(quote)).ok_or_else(form)?;
        let (value, after) = unquote(&quoted[1..], quote).ok_or_else(form)?;
        if arguments.insert(key.trim().to_owned(), value).is_some() {
            return Err(format!("{name} has {:?} twice", cut(key.trim())));
        }
        rest = after.trim();
        match rest.strip_prefix(',') {
            Some(more) => rest = more.trim(),
            None if rest.is_empty() => {}
            None => return Err(form()),
        }
    }
    Ok((name.trim(), arguments))
}

/// A value up to its closing quote, and the text after it.
fn unquote(text: &str, quote: char) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => match letters.next()?.1 {
                'n' => value.push('\n'),
                't' => value.push('\t'),
                other => value.push(other),
            },
            letter if letter == quote => return Some((value, &text[at + 1..])),
            letter => value.push(letter),
        }
    }
    None
}

fn quoted(text: &str) -> String {
    let mut value = String::from("'");
    for letter in text.chars() {
        match letter {
            '\\' | '\'' => value.extend(['\\', letter]),
            '\n' => value.push_str("\\n"),
            '\t' => value.push_str("\\t"),
            letter => value.push(letter),
        }
    }
    value + "'"
}

/// The arguments of a call, which are read one by one.
struct CallArguments<'a> {
    name: &'a str,
    space: CoordinateSpace,
    image: Size,
    given: BTreeMap<String, String>,
}

impl CallArguments<'_> {
    fn only(&self, keys: &[&str]) -> Result<(), String> {
        match self.given.keys().find(|key| !keys.contains(&key.as_str())) {
            Some(stranger) => Err(format!("{} has no argument {:?}", self.name, cut(stranger))),
            None => Ok(()),
        }
    }

    fn text(&self, key: &str) -> Result<&str, String> {
        self.given.get(key).map(String::as_str).ok_or_else(|| format!("{}.{key} is missing", self.name))
    }

    /// A point, under its newer name or the older one.
    fn point(&self, key: &str, older: &str) -> Result<PagePoint, String> {
        let text = self.given.get(older).map(String::as_str).map_or_else(|| self.text(key), Ok)?;
        let inside = text.replace(['(', ')', '[', ']', ','], " ");
        let inside = inside.replace("<point>", " ").replace("</point>", " ");
        let inside = inside.replace("<|box_start|>", " ").replace("<|box_end|>", " ");
        let numbers: Option<Vec<f64>> = inside.split_whitespace().map(|number| number.parse().ok()).collect();
        match numbers.as_deref() {
            Some([x, y]) => {
                let outside = |why| format!("{}.{key}: {why}", self.name);
                self.space.page(*x, *y, self.image).map_err(outside)
            }
            _ => Err(format!("{}.{key} is {:?}; write it as <point>x y</point>", self.name, cut(text))),
        }
    }
}

/// The actions of a call.
fn actions_of(name: &str, given: &CallArguments<'_>) -> Result<Vec<Action>, String> {
    let aimed = || {
        given.only(&["point", "start_box"])?;
        given.point("point", "start_box")
    };
    let click = |at, button, count| Action::Click { at: Some(at), button, count, modifiers: Modifiers::NONE };
    let key = || {
        given.only(&["key", "press"])?;
        let older = given.given.get("press").map(String::as_str);
        Ok::<_, String>(older.map_or_else(|| given.text("key"), Ok)?.trim().to_owned())
    };
    Ok(vec![match name {
        "click" | "left_single" => Action::click(aimed()?),
        "left_double" => click(aimed()?, PointerButton::Left, 2),
        "right_single" => click(aimed()?, PointerButton::Right, 1),
        "hover" => Action::hover(aimed()?),
        "press" | "keydown" => Action::KeyDown { key: key()? },
        "release" | "keyup" => Action::KeyUp { key: key()? },
        "drag" | "select" => {
            given.only(&["start_point", "end_point", "start_box", "end_box"])?;
            Action::drag(given.point("start_point", "start_box")?, given.point("end_point", "end_box")?)
        }
        "hotkey" => {
            given.only(&["key"])?;
            let keys: Vec<&str> = given.text("key")?.split_whitespace().collect();
            if !(1..=KEYS_MAX).contains(&keys.len()) {
                return Err(format!("hotkey.key names {} keys; name 1 to {KEYS_MAX}", keys.len()));
            }
            Action::press(keys.join("+"))
        }
        "type" => {
            given.only(&["content"])?;
            let content = given.text("content")?;
            let submits = content.strip_suffix('\n');
            let content = submits.unwrap_or(content).to_owned();
            Action::Write { into: None, content, press_enter: submits.is_some() }
        }
        "scroll" => {
            given.only(&["point", "start_box", "direction"])?;
            let way = given.text("direction")?;
            let direction = ScrollDirection::parse(way)
                .ok_or_else(|| format!("scroll.direction is {:?}; use down, up, left or right", cut(way)))?;
            Action::Scroll {
                at: Some(given.point("point", "start_box")?),
                direction,
                pixels: None,
                modifiers: Modifiers::NONE,
            }
        }
        "wait" => {
            given.only(&[])?;
            Action::Wait { seconds: WAIT_SECONDS }
        }
        "finished" => {
            given.only(&["content"])?;
            Action::Answer { content: given.given.get("content").cloned().unwrap_or_default() }
        }
        other => {
            let all = "click, left_double, right_single, hover, drag, hotkey, press, release, type, scroll, wait, finished";
            return Err(format!("there is no action {:?}; use {all}", cut(other)));
        }
    }])
}

fn encode(
    space: CoordinateSpace,
    action: &Action,
    remarks: &ReplyRemarks,
    image: Size,
) -> Result<String, String> {
    let calls = action.parts().iter().map(|part| modified_call(space, part, image));
    let calls = calls.collect::<Result<Vec<_>, _>>()?.concat();
    Ok(format!("Thought: {}\nAction: {}", remarks.thought, calls.join("\n\n")))
}

/// The calls that express one action, with its modifiers pressed before and released after it.
fn modified_call(space: CoordinateSpace, action: &Action, image: Size) -> Result<Vec<String>, String> {
    let keys: Vec<Modifier> = action.modifiers().iter().collect();
    let name = |modifier: &Modifier| quoted(&modifier.as_str().to_ascii_lowercase());
    let mut calls: Vec<String> = keys.iter().map(|key| format!("press(key={})", name(key))).collect();
    calls.extend(call(space, action, image)?);
    calls.extend(keys.iter().rev().map(|key| format!("release(key={})", name(key))));
    Ok(calls)
}

/// The calls that express one action.
fn call(space: CoordinateSpace, action: &Action, image: Size) -> Result<Vec<String>, String> {
    let point = |at: &PagePoint| {
        let (x, y) = space.model(*at, image);
        format!("'<point>{x} {y}</point>'")
    };
    let typed = |content: &str, press_enter: bool| {
        let end = if press_enter { "\n" } else { "" };
        format!("type(content={})", quoted(&format!("{content}{end}")))
    };
    Ok(match action {
        Action::Click { at: Some(at), button, count, .. } => {
            let name = match (button, count) {
                (PointerButton::Left, 1) => "click",
                (PointerButton::Left, 2) => "left_double",
                (PointerButton::Right, 1) => "right_single",
                _ => return Err(unsupported_action(THOUSANDTHS.name, action)),
            };
            vec![format!("{name}(point={})", point(at))]
        }
        Action::Drag { from: Some(from), to, .. } => {
            vec![format!("drag(start_point={}, end_point={})", point(from), point(to))]
        }
        Action::Move { at, .. } => vec![format!("hover(point={})", point(at))],
        Action::KeyDown { key } if is_one_key(key) => vec![format!("press(key={})", quoted(key))],
        Action::KeyUp { key } if is_one_key(key) => vec![format!("release(key={})", quoted(key))],
        // A text that ends with a line break is parsed as submitted, so it cannot be expressed.
        Action::Write { content, press_enter: false, .. } if content.ends_with('\n') => {
            return Err(unsupported_action(THOUSANDTHS.name, action));
        }
        Action::Write { into: None, content, press_enter } => vec![typed(content, *press_enter)],
        Action::Write { into: Some(at), content, press_enter } => vec![
            format!("click(point={})", point(at)),
            "hotkey(key='ctrl a')".to_owned(),
            typed(content, *press_enter),
        ],
        Action::PressKey { key, times } if !key.contains(char::is_whitespace) && !key.contains("++") => {
            vec![format!("hotkey(key={})", quoted(&key.replace('+', " "))); usize::from(*times)]
        }
        Action::Scroll { at, direction, .. } => {
            let centre = PagePoint { x: image.width as f32 / 2.0, y: image.height as f32 / 2.0 };
            let at = point(&at.unwrap_or(centre));
            vec![format!("scroll(point={at}, direction='{}')", direction.as_str())]
        }
        Action::Wait { .. } => vec!["wait()".to_owned()],
        Action::Answer { content } => vec![format!("finished(content={})", quoted(content))],
        other => return Err(unsupported_action(THOUSANDTHS.name, other)),
    })
}

/// Whether a name can be that of a single key, which is all that `press` takes.
fn is_one_key(name: &str) -> bool {
    !name.contains('+') && name.trim() == name
}

fn instructions(space: CoordinateSpace) -> String {
    format!(
        "You operate a web browser. Each turn shows a screenshot. Reply with \"Thought: \" and why, then on a new line \"Action: \" and one of \
         the calls below, or several separated by a blank line. {}\n\
         - click(point='<point>x y</point>')\n\
         - left_double(point='<point>x y</point>')\n\
         - right_single(point='<point>x y</point>')\n\
         - hover(point='<point>x y</point>')\n\
         - drag(start_point='<point>x y</point>', end_point='<point>x y</point>')\n\
         - hotkey(key='ctrl c'): up to three keys, separated by blanks\n\
         - press(key='shift'), release(key='shift'): presses a key, which stays down in later steps too, and releases it\n\
         - type(content='…'): types where the focus is; a \\n at the end submits\n\
         - scroll(point='<point>x y</point>', direction='down'): or up, left, right\n\
         - wait(): five seconds\n\
         - finished(content='…'): gives the answer and ends the task\n",
        space.description(),
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::check;

    #[test]
    fn calls_become_actions_or_say_why_not() {
        let tars = |call: &str, want: &str| check("ui_tars", &format!("Thought: so.\nAction: {call}"), want);
        let click = |x, y| {
            format!(
                "Click {{ at: Some(PagePoint {{ x: {x:.1}, y: {y:.1} }}), button: Left, count: 1, modifiers: none }}"
            )
        };
        tars("click(point='<point>500 250</point>')", &click(500.0, 125.0));
        tars("click(start_box='(500,250)')", &click(500.0, 125.0));
        tars("click(start_box='<|box_start|>(500, 250)<|box_end|>')", &click(500.0, 125.0));
        check("ui_tars_pixels", "Action: click(point='<point>500 250</point>')", &click(500.0, 250.0));
        check(
            "ui_tars_pixels",
            "Action: click(point='<point>500 501</point>')",
            "click.point: y is 501; use 0 to 500",
        );
        tars(
            "left_double(point='<point>10 10</point>')",
            "Click { at: Some(PagePoint { x: 10.0, y: 5.0 }), button: Left, count: 2, modifiers: none }",
        );
        tars(
            "right_single(point='<point>10 10</point>')",
            "Click { at: Some(PagePoint { x: 10.0, y: 5.0 }), button: Right, count: 1, modifiers: none }",
        );
        tars(
            "drag(start_point='<point>0 0</point>', end_point='<point>10 10</point>')",
            "Drag { from: Some(PagePoint { x: 0.0, y: 0.0 }), to: PagePoint { x: 10.0, y: 5.0 }, modifiers: none }",
        );
        tars(
            "hover(point='<point>10 10</point>')",
            "Move { at: PagePoint { x: 10.0, y: 5.0 }, modifiers: none }",
        );
        tars("press(key='shift')", r#"KeyDown { key: "shift" }"#);
        tars("keydown(press='space')", r#"KeyDown { key: "space" }"#);
        tars("release(key='shift')", r#"KeyUp { key: "shift" }"#);
        tars("keyup(key='shift')", r#"KeyUp { key: "shift" }"#);
        tars("press(point='1 1')", "press has no argument \"point\"");
        tars("release()", "release.key is missing");
        tars(
            "select(start_box='(0,0)', end_box='(10,10)')",
            "Drag { from: Some(PagePoint { x: 0.0, y: 0.0 }), to: PagePoint { x: 10.0, y: 5.0 }, modifiers: none }",
        );
        tars("hotkey(key='ctrl shift t')", r#"PressKey { key: "ctrl+shift+t", times: 1 }"#);
        tars("hotkey(key='a b c d')", "hotkey.key names 4 keys; name 1 to 3");
        tars(r"type(content='it\'s\n')", r#"Write { into: None, content: "it's", press_enter: true }"#);
        tars(
            r#"type(content="a, b=(c)")"#,
            r#"Write { into: None, content: "a, b=(c)", press_enter: false }"#,
        );
        tars(
            "scroll(point='<point>10 10</point>', direction='down')",
            "Scroll { at: Some(PagePoint { x: 10.0, y: 5.0 }), direction: Down, pixels: None, modifiers: none }",
        );
        tars("scroll(point='<point>10 10</point>', direction='in')", "scroll.direction is \"in\"");
        tars("wait()", "Wait { seconds: 5 }");
        tars("finished(content='42')", r#"Answer { content: "42" }"#);
        tars("finished()", r#"Answer { content: "" }"#);
        tars(
            "click(point='<point>10 10</point>')\n\ntype(content='a')",
            "Several([Click { at: Some(PagePoint { x: 10.0, y: 5.0 }), button: Left, count: 1, modifiers: none }, \
             Write { into: None, content: \"a\", press_enter: false }])",
        );
        tars("finished(content='')\n\nwait()", "another action follows the answer");
        tars("click(point='<point>10</point>')", "click.point is \"<point>10</point>\"; write it as");
        tars("click(at='1')", "click has no argument \"at\"");
        tars("click(point='1 1", "\"click(point='1 1\" is not of the form");
        tars("fly()", "there is no action \"fly\"; use click");
        tars("", "there is no action");
        check("ui_tars", "click(1, 2)", "there is no line \"Action:\"");
    }
}
