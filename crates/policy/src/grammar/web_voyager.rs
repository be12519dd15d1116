//! WebVoyager's set-of-marks replies: `Thought: …` and `Action: Click [4]`, over numbered boxes
//! drawn into the image.
//!
//! Forms and meanings are those of the published agent (MinorJerry/WebVoyager). Its parser searches
//! the whole text for one form after the other and so misreads texts that contain another form.
//! Here an action must begin its line and end it.

use furrow_rollout::{Action, Mark, Modifiers, PagePoint, PointerButton, ScrollDirection};
use serde_json::json;

use super::dialect::{GrammarDialect, ReplyRemarks, ViewedPage, unsupported_action};
use super::shape::{ParsedCall, cut};

pub(super) const MARKS: GrammarDialect = GrammarDialect {
    name: "web_voyager",
    read: |text, _, view, parsed| read(text, view, parsed),
    encode: |action, remarks, _, view| encode(action, remarks, view),
    instructions: |_| INSTRUCTIONS.into(),
    extra: &[],
    needs_marks: true,
    frame: None,
};

const WAIT_SECONDS: u8 = 5;

/// Address of the action `Google`.
const SEARCH_PAGE: &str = "https://www.google.com/";

const INSTRUCTIONS: &str = "You operate a web browser. Each turn shows a screenshot in which things to act on bear numbers. Reply with two lines: \
\"Thought: \" and why, then \"Action: \" and one of these:
- Click [number]: click on what bears the number
- Type [number]; [text]: replace what the field holds, press Enter
- Scroll [number or WINDOW]; [up or down]: scroll the page, or the box that bears the number
- Wait: wait five seconds
- GoBack: go one page back
- Google: open the search page
- ANSWER; [text]: give the answer and end the task
";

fn read(text: &str, view: ViewedPage<'_>, parsed: &mut ParsedCall) -> Result<Action, String> {
    // The last one counts, because a thought may mention an action.
    let (_, action) = text
        .rsplit_once("Action:")
        .ok_or("there is no line \"Action:\"; reply with a thought and an action")?;
    let action = action.trim();
    let (name, rest) = action.split_at(action.find([' ', ';', '[', '\n']).unwrap_or(action.len()));
    name.clone_into(&mut parsed.name);
    let parts = match name {
        "ANSWER" => text_of(rest).into_iter().collect(),
        _ => parts(rest),
    };
    parsed.args_json = Some(json!({ "arguments": parts }).to_string());
    let bare = |action: Action| match rest.trim().is_empty() {
        true => Ok(action),
        false => Err(format!("{name} takes no arguments, but {:?} follows it", cut(rest.trim()))),
    };
    match (name, parts.as_slice()) {
        ("Click", [mark]) => Ok(Action::click(mark_centre(mark, view)?)),
        ("Type", [mark, content]) => Ok(Action::Write {
            into: Some(mark_centre(mark, view)?),
            content: content.clone(),
            press_enter: true,
        }),
        ("Scroll", [what, way]) => {
            let direction = match way.as_str() {
                "up" => ScrollDirection::Up,
                "down" => ScrollDirection::Down,
                other => return Err(format!("Scroll has the direction {:?}; use up or down", cut(other))),
            };
            match what.as_str() {
                // Two thirds of the window's height.
                "WINDOW" => Ok(Action::Scroll {
                    at: None,
                    direction,
                    pixels: Some((view.image.height * 2 / 3).max(1)),
                    modifiers: Modifiers::NONE,
                }),
                mark => Ok(Action::Scroll {
                    at: Some(mark_centre(mark, view)?),
                    direction,
                    pixels: None,
                    modifiers: Modifiers::NONE,
                }),
            }
        }
        ("Wait", _) => bare(Action::Wait { seconds: WAIT_SECONDS }),
        ("GoBack", _) => bare(Action::GoBack),
        ("Google", _) => bare(Action::Goto { url: SEARCH_PAGE.into() }),
        ("ANSWER", [content]) => Ok(Action::Answer { content: content.clone() }),
        ("Click" | "Type" | "Scroll" | "ANSWER", given) => {
            Err(format!("{name} has {} arguments; write it as the instructions say", given.len()))
        }
        (other, _) => Err(format!(
            "there is no action {:?}; use Click, Type, Scroll, Wait, GoBack, Google, ANSWER",
            cut(other)
        )),
    }
}

/// The arguments of `[4]; [a text]`. The second is optional; brackets and semicolon may be left
/// out.
fn parts(rest: &str) -> Vec<String> {
    let first = rest.trim().trim_start_matches('[');
    let end = first.find([']', ';', ' ']).unwrap_or(first.len());
    let is_target = first[..end].parse::<u32>().is_ok() || &first[..end] == "WINDOW";
    if !is_target {
        return text_of(rest).into_iter().collect();
    }
    let second = text_of(first[end..].trim_start_matches(']'));
    std::iter::once(first[..end].to_owned()).chain(second).collect()
}

/// The text after a semicolon, without the brackets around it; `None` if there is none.
fn text_of(rest: &str) -> Option<String> {
    let text = rest.trim().trim_start_matches(';').trim();
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    (!text.is_empty()).then(|| bare.to_owned())
}

/// The centre of a mark's box.
fn mark_centre(mark: &str, view: ViewedPage<'_>) -> Result<PagePoint, String> {
    let marks = view.marks.unwrap_or_default();
    let number: u32 = mark.parse().map_err(|_| format!("{:?} is not the number of a mark", cut(mark)))?;
    let found = marks.iter().find(|candidate| candidate.mark == number);
    let Mark { x, y, width, height, .. } =
        found.ok_or_else(|| format!("there is no mark {number}; there are {}", marks.len()))?;
    Ok(PagePoint { x: x + width / 2.0, y: y + height / 2.0 })
}

/// The smallest box around a point, because elements in front of others are smaller.
fn mark_at(at: PagePoint, view: ViewedPage<'_>) -> Option<u32> {
    let around = |mark: &&Mark| {
        (mark.x..=mark.x + mark.width).contains(&at.x) && (mark.y..=mark.y + mark.height).contains(&at.y)
    };
    let area = |mark: &&Mark| mark.width * mark.height;
    let marks = view.marks.unwrap_or_default().iter().filter(around);
    marks.min_by(|a, b| area(a).total_cmp(&area(b))).map(|mark| mark.mark)
}

fn encode(action: &Action, remarks: &ReplyRemarks, view: ViewedPage<'_>) -> Result<String, String> {
    let mark =
        |at: &PagePoint| mark_at(*at, view).ok_or_else(|| format!("no mark is around {}, {}", at.x, at.y));
    let way = |direction: &ScrollDirection| match direction {
        ScrollDirection::Up | ScrollDirection::Down => Ok(direction.as_str()),
        _ => Err(unsupported_action(MARKS.name, action)),
    };
    let text = match action {
        modified if !modified.modifiers().is_empty() => {
            return Err(unsupported_action(MARKS.name, modified));
        }
        Action::Click { at: Some(at), button: PointerButton::Left, count: 1, .. } => {
            format!("Click [{}]", mark(at)?)
        }
        Action::Write { into: Some(at), content, press_enter: true } if !content.contains('\n') => {
            format!("Type [{}]; [{content}]", mark(at)?)
        }
        Action::Scroll { at: None, direction, .. } => format!("Scroll [WINDOW]; [{}]", way(direction)?),
        Action::Scroll { at: Some(at), direction, .. } => {
            format!("Scroll [{}]; [{}]", mark(at)?, way(direction)?)
        }
        Action::Wait { .. } => "Wait".into(),
        Action::GoBack => "GoBack".into(),
        Action::Goto { url } if url == SEARCH_PAGE => "Google".into(),
        Action::Answer { content } if !content.contains('\n') => format!("ANSWER; [{content}]"),
        other => return Err(unsupported_action(MARKS.name, other)),
    };
    Ok(format!("Thought: {}\nAction: {text}", remarks.thought.replace('\n', " ")))
}

#[cfg(test)]
mod tests {
    use super::super::tests::check;

    #[test]
    fn replies_become_actions_or_say_why_not() {
        // The second of the tests' marks is 100 to 300 by 40 to 60.
        let check = |text: &str, want: &str| check("web_voyager", text, want);
        let click =
            "Click { at: Some(PagePoint { x: 200.0, y: 50.0 }), button: Left, count: 1, modifiers: none }";
        let write = |text: &str| {
            format!(
                "Write {{ into: Some(PagePoint {{ x: 200.0, y: 50.0 }}), content: {text:?}, press_enter: true }}"
            )
        };
        check("Thought: It is 2.\nAction: Click [2]", click);
        check("Action: Click 2", click);
        check("Thought: not Action: Wait\nAction: Click [2]", click);
        check("Action: Type [2]; [vegan lasagna]", &write("vegan lasagna"));
        check("Action: Type [2]; vegan lasagna", &write("vegan lasagna"));
        check("Action: Type [2] [Click [1]; Wait]", &write("Click [1]; Wait"));
        check("Action: Type [2]; [a]; [b]", &write("a]; [b"));
        check(
            "Action: Scroll [WINDOW]; [down]",
            "Scroll { at: None, direction: Down, pixels: Some(333), modifiers: none }",
        );
        check(
            "Action: Scroll [2]; [up]",
            "Scroll { at: Some(PagePoint { x: 200.0, y: 50.0 }), direction: Up, pixels: None, modifiers: none }",
        );
        check("Action: Scroll [WINDOW]; [left]", "Scroll has the direction \"left\"; use up or down");
        check("Action: Wait", "Wait { seconds: 5 }");
        check("Action: GoBack\n", "GoBack");
        check("Action: Google", "Goto { url: \"https://www.google.com/\" }");
        check("Action: GoBack [2]", "GoBack takes no arguments");
        check("Action: ANSWER; [42 km; by train]", "Answer { content: \"42 km; by train\" }");
        check("Action: ANSWER; 42", "Answer { content: \"42\" }");
        check("Action: Click [9]", "there is no mark 9; there are 3");
        check("Action: Click [the button]", "\"the button\" is not the number of a mark");
        check("Action: Click", "Click has 0 arguments");
        check("Action: Type [2]", "Type has 1 arguments");
        check("Action: click [2]", "there is no action \"click\"");
        check("I would click [2]", "there is no line \"Action:\"");
    }
}
