//! WebVoyager's set-of-marks replies: `Thought: …` and `Action: Click [4]`, over numbered boxes drawn into the picture.
//!
//! Forms and meanings are those of the published agent (MinorJerry/WebVoyager). Its parser searches the whole text for one form after the
//! other and so misreads texts that hold another form; here the form is anchored: an action begins its line and ends it.

use furrow_rollout::{Action, Button, Direction, Mark, PagePoint};
use serde_json::json;

use super::{Dialect, Remarks, Said, Seen, cut, no_word};

pub(super) const MARKS: Dialect = Dialect {
    name: "web_voyager",
    read: |text, _, seen, said| read(text, seen, said),
    encode: |action, remarks, _, seen| encode(action, remarks, seen),
    instructions: |_| INSTRUCTIONS.into(),
    is_extensible: false,
    needs_marks: true,
    frame: None,
};

/// Seconds of `Wait`.
const WAIT_SECONDS: u8 = 5;

/// Where `Google` leads.
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

fn read(text: &str, seen: Seen<'_>, said: &mut Said) -> Result<Action, String> {
    // The last one counts: a thought may tell of an action.
    let (_, action) = text
        .rsplit_once("Action:")
        .ok_or("there is no line \"Action:\"; reply with a thought and an action")?;
    let action = action.trim();
    let (word, rest) = action.split_at(action.find([' ', ';', '[', '\n']).unwrap_or(action.len()));
    word.clone_into(&mut said.name);
    let parts = match word {
        "ANSWER" => text_of(rest).into_iter().collect(),
        _ => parts(rest),
    };
    said.args_json = Some(json!({ "arguments": parts }).to_string());
    let bare = |action: Action| match rest.trim().is_empty() {
        true => Ok(action),
        false => Err(format!("{word} takes nothing, and {:?} follows it", cut(rest.trim()))),
    };
    match (word, parts.as_slice()) {
        ("Click", [mark]) => Ok(Action::click(middle(mark, seen)?)),
        ("Type", [mark, content]) => {
            Ok(Action::Write { into: Some(middle(mark, seen)?), content: content.clone(), press_enter: true })
        }
        ("Scroll", [what, way]) => {
            let direction = match way.as_str() {
                "up" => Direction::Up,
                "down" => Direction::Down,
                other => return Err(format!("Scroll goes {:?}; use up or down", cut(other))),
            };
            match what.as_str() {
                // Two thirds of the window's height.
                "WINDOW" => Ok(Action::Scroll {
                    at: None,
                    direction,
                    pixels: Some((seen.image.height * 2 / 3).max(1)),
                }),
                mark => Ok(Action::Scroll { at: Some(middle(mark, seen)?), direction, pixels: None }),
            }
        }
        ("Wait", _) => bare(Action::Wait { seconds: WAIT_SECONDS }),
        ("GoBack", _) => bare(Action::GoBack),
        ("Google", _) => bare(Action::Goto { url: SEARCH_PAGE.into() }),
        ("ANSWER", [content]) => Ok(Action::Answer { content: content.clone() }),
        ("Click" | "Type" | "Scroll" | "ANSWER", given) => {
            Err(format!("{word} is given {} things; write it as the instructions say", given.len()))
        }
        (other, _) => Err(format!(
            "there is no action {:?}; use Click, Type, Scroll, Wait, GoBack, Google, ANSWER",
            cut(other)
        )),
    }
}

/// `[4]; [a text]` as its parts, the second one optional; brackets and semicolon may be left out.
fn parts(rest: &str) -> Vec<String> {
    let first = rest.trim().trim_start_matches('[');
    let end = first.find([']', ';', ' ']).unwrap_or(first.len());
    let is_place = first[..end].parse::<u32>().is_ok() || &first[..end] == "WINDOW";
    if !is_place {
        return text_of(rest).into_iter().collect();
    }
    let second = text_of(first[end..].trim_start_matches(']'));
    std::iter::once(first[..end].to_owned()).chain(second).collect()
}

/// What follows a semicolon, without the brackets around the whole of it; `None` where nothing does.
fn text_of(rest: &str) -> Option<String> {
    let text = rest.trim().trim_start_matches(';').trim();
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    (!text.is_empty()).then(|| bare.to_owned())
}

/// The middle of a mark's box.
fn middle(mark: &str, seen: Seen<'_>) -> Result<PagePoint, String> {
    let marks = seen.marks.unwrap_or_default();
    let number: u32 = mark.parse().map_err(|_| format!("{:?} is no number of a mark", cut(mark)))?;
    let found = marks.iter().find(|candidate| candidate.mark == number);
    let Mark { x, y, width, height, .. } =
        found.ok_or_else(|| format!("there is no mark {number}; there are {}", marks.len()))?;
    Ok(PagePoint { x: x + width / 2.0, y: y + height / 2.0 })
}

/// The smallest box around a point: what lies in front of others is smaller than they.
fn mark_at(at: PagePoint, seen: Seen<'_>) -> Option<u32> {
    let around = |mark: &&Mark| {
        (mark.x..=mark.x + mark.width).contains(&at.x) && (mark.y..=mark.y + mark.height).contains(&at.y)
    };
    let area = |mark: &&Mark| mark.width * mark.height;
    let marks = seen.marks.unwrap_or_default().iter().filter(around);
    marks.min_by(|a, b| area(a).total_cmp(&area(b))).map(|mark| mark.mark)
}

fn encode(action: &Action, remarks: &Remarks, seen: Seen<'_>) -> Result<String, String> {
    let mark =
        |at: &PagePoint| mark_at(*at, seen).ok_or_else(|| format!("no mark is around {}, {}", at.x, at.y));
    let way = |direction: &Direction| match direction {
        Direction::Up | Direction::Down => Ok(direction.as_str()),
        _ => Err(no_word(MARKS.name, action)),
    };
    let text = match action {
        Action::Click { at: Some(at), button: Button::Left, count: 1 } => format!("Click [{}]", mark(at)?),
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
        other => return Err(no_word(MARKS.name, other)),
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
        let click = "Click { at: Some(PagePoint { x: 200.0, y: 50.0 }), button: Left, count: 1 }";
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
        check("Action: Scroll [WINDOW]; [down]", "Scroll { at: None, direction: Down, pixels: Some(333) }");
        check(
            "Action: Scroll [2]; [up]",
            "Scroll { at: Some(PagePoint { x: 200.0, y: 50.0 }), direction: Up, pixels: None }",
        );
        check("Action: Scroll [WINDOW]; [left]", "Scroll goes \"left\"; use up or down");
        check("Action: Wait", "Wait { seconds: 5 }");
        check("Action: GoBack\n", "GoBack");
        check("Action: Google", "Goto { url: \"https://www.google.com/\" }");
        check("Action: GoBack [2]", "GoBack takes nothing");
        check("Action: ANSWER; [42 km; by train]", "Answer { content: \"42 km; by train\" }");
        check("Action: ANSWER; 42", "Answer { content: \"42\" }");
        check("Action: Click [9]", "there is no mark 9; there are 3");
        check("Action: Click [the button]", "\"the button\" is no number of a mark");
        check("Action: Click", "Click is given 0 things");
        check("Action: Type [2]", "Type is given 1 things");
        check("Action: click [2]", "there is no action \"click\"");
        check("I would click [2]", "there is no line \"Action:\"");
    }
}
