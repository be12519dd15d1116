//! Marks: the elements that a person could act on in the visible part of the page, numbered in
//! reading order.
//!
//! `marks.js` inspects the page from an isolated world and changes nothing; the worker draws the
//! numbers into the picture (`paint.rs`), so that no page can see, move or remove them. Rows of an
//! open native list, which are invisible to the page, are added from the list's geometry.

use furrow_rollout::{MARK_TEXT_CHARS_MAX, MARKS_MAX, Mark, Size};
use serde_json::Value;

use super::script::{self, IsolatedWorld};
use super::select::{self, OpenList};
use super::tab::BrowserTab;
use crate::environment::EnvironmentError;

const SCRIPT: &str = include_str!("marks.js");

/// 1,000 marks with 200 characters each of up to four bytes, and their boxes: 0.9 MB.
const RESULT_BYTES_MAX: usize = 2 << 20;

const ROLE_CHARS_MAX: usize = 16;

/// An element to act on and its visible box.
#[derive(Debug, Clone, PartialEq)]
struct FoundElement {
    role: String,
    text: String,
    /// Left, top, right, bottom.
    bounds: [f64; 4],
}

/// The marks of the page as it is now. `shown` is the part of it that the picture shows, `viewport`
/// the whole.
pub(super) async fn marks(
    tab: &BrowserTab,
    world: &IsolatedWorld,
    shown: Size,
    viewport: Size,
) -> Result<Vec<Mark>, EnvironmentError> {
    let Size { width, height } = shown;
    let elements = format!("({SCRIPT})({width}, {height}, {MARKS_MAX}, {MARK_TEXT_CHARS_MAX})");
    let both = format!("({{ elements: {elements}, list: {} }})", select::OPEN_LIST_SCRIPT);
    let deadline = tab.deadlines.screenshot;
    let value = script::evaluate(tab, &both, Some(world), deadline, "the marks", RESULT_BYTES_MAX).await;
    match value {
        Ok(value) => Ok(number_marks(all_elements(&value, viewport), shown)),
        // The document was replaced during the query, or blocks scripts: nothing is marked or
        // drawn.
        Err(EnvironmentError::Failed(why)) => {
            tracing::debug!(why, "no marks");
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}

/// The page's elements, and the rows of an open list in place of what lies below it.
fn all_elements(value: &Value, viewport: Size) -> Vec<FoundElement> {
    let mut found: Vec<FoundElement> =
        value["elements"].as_array().into_iter().flatten().filter_map(FoundElement::read).collect();
    if let Some(list) = OpenList::read(&value["list"]) {
        let cover = list.bounds(viewport);
        found.retain(|found| !found.is_under(cover));
        let rows = list.drawn_rows(viewport).into_iter();
        found.extend(rows.map(|row| FoundElement {
            role: "option".into(),
            text: row.label,
            bounds: row.bounds,
        }));
    }
    found
}

/// Numbers the elements from 1 in reading order, with boxes in whole pixels of the picture.
fn number_marks(found: Vec<FoundElement>, shown: Size) -> Vec<Mark> {
    let boxed = found.into_iter().filter_map(|found| found.clipped_to(shown)).collect();
    let ordered = in_reading_order(boxed).into_iter().take(MARKS_MAX);
    ordered.zip(1..).map(|(found, mark)| found.into_mark(mark)).collect()
}

/// Line by line, and each line from the left: a line contains the elements that begin within half
/// the height of the line's first element.
fn in_reading_order(mut found: Vec<FoundElement>) -> Vec<FoundElement> {
    found.sort_by(|one, other| one.top().total_cmp(&other.top()));
    let mut ordered = Vec::with_capacity(found.len());
    while let Some(first) = found.first() {
        let top = first.top();
        let height = first.height();
        let is_on_line = |other: &FoundElement| other.top() - top < height.min(other.height()) / 2.0;
        let (mut line, rest): (Vec<_>, Vec<_>) = found.into_iter().partition(is_on_line);
        line.sort_by(|one, other| one.bounds[0].total_cmp(&other.bounds[0]));
        ordered.append(&mut line);
        found = rest;
    }
    ordered
}

impl FoundElement {
    fn read(value: &Value) -> Option<Self> {
        let number = |index: usize| value.get(index)?.as_f64();
        Some(Self {
            role: value.get(0)?.as_str()?.to_owned(),
            text: value.get(1)?.as_str()?.to_owned(),
            bounds: [number(2)?, number(3)?, number(4)?, number(5)?],
        })
    }

    fn top(&self) -> f64 {
        self.bounds[1]
    }

    fn height(&self) -> f64 {
        self.bounds[3] - self.bounds[1]
    }

    fn is_under(&self, [left, top, right, bottom]: [f64; 4]) -> bool {
        let [own_left, own_top, own_right, own_bottom] = self.bounds;
        let x = (own_left + own_right) / 2.0;
        let y = (own_top + own_bottom) / 2.0;
        (left..right).contains(&x) && (top..bottom).contains(&y)
    }

    /// Grows the box to whole pixels and cuts it to the picture; `None` if no part of it is inside.
    fn clipped_to(mut self, Size { width, height }: Size) -> Option<Self> {
        let [left, top, right, bottom] = self.bounds;
        self.bounds = [
            left.floor().max(0.0),
            top.floor().max(0.0),
            right.ceil().min(f64::from(width)),
            bottom.ceil().min(f64::from(height)),
        ];
        let [left, top, right, bottom] = self.bounds;
        (right > left && bottom > top).then_some(self)
    }

    fn into_mark(self, mark: u32) -> Mark {
        // Whole numbers up to 16,384: exact as f32 and as f64.
        let [left, top, right, bottom] = self.bounds.map(|edge| edge as f32);
        Mark {
            mark,
            role: self.role.chars().take(ROLE_CHARS_MAX).collect(),
            text: self.text.chars().take(MARK_TEXT_CHARS_MAX).collect(),
            x: left,
            y: top,
            width: right - left,
            height: bottom - top,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, bounds: [f64; 4]) -> FoundElement {
        FoundElement { role: "button".into(), text: text.into(), bounds }
    }

    #[track_caller]
    fn check(boxes: &[(&str, [f64; 4])], want: &str) {
        let found = boxes.iter().map(|(text, bounds)| found(text, *bounds)).collect();
        let marks = number_marks(found, Size::new(200, 100));
        let order: Vec<_> = marks.iter().map(|mark| mark.text.as_str()).collect();
        assert_eq!(order.join(" "), want);
        assert_eq!(Mark::problem(&marks, Size::new(200, 100)), None);
    }

    #[test]
    fn numbers_go_line_by_line() {
        check(&[], "");
        // A difference of a pixel or two does not start a new line.
        check(
            &[
                ("c", [90.0, 9.0, 120.0, 29.0]),
                ("a", [0.0, 10.0, 30.0, 30.0]),
                ("b", [40.0, 12.0, 80.0, 28.0]),
                ("d", [0.0, 40.0, 30.0, 60.0]),
            ],
            "a b c d",
        );
        // A tall column does not absorb every line beside it.
        check(
            &[
                ("column", [0.0, 0.0, 40.0, 100.0]),
                ("one", [50.0, 2.0, 90.0, 12.0]),
                ("two", [50.0, 40.0, 90.0, 50.0]),
                ("three", [100.0, 41.0, 140.0, 51.0]),
            ],
            "column one two three",
        );
    }

    #[test]
    fn boxes_are_whole_pixels_of_the_picture() {
        let marks = number_marks(vec![found("x", [-3.5, 10.2, 20.4, 120.0])], Size::new(200, 100));
        assert_eq!((marks[0].x, marks[0].y, marks[0].width, marks[0].height), (0.0, 10.0, 21.0, 90.0));
        check(&[("out", [200.0, 0.0, 220.0, 20.0]), ("below", [0.0, 100.0, 20.0, 120.0])], "");
        let many: Vec<_> = (0..1500).map(|_| ("x", [1.0, 1.0, 9.0, 9.0])).collect();
        check(&many, ["x"; 1000].join(" ").as_str());
    }

    #[test]
    fn what_an_open_list_covers_cannot_be_acted_on() {
        let value = serde_json::json!({
            "elements": [
                ["combobox", "Colour", 40, 40, 108, 59],
                ["button", "below it", 40, 70, 108, 90],
                ["button", "beside it", 140, 70, 190, 90],
                ["button", "half", 90],
            ],
            "list": {
                "left": 40, "top": 40, "right": 108, "bottom": 59, "line": 15, "selected": 0, "width": 60,
                "rows": [["option", 0, true, "red"], ["option", 1, false, "green"], ["option", 2, true, "blue"]],
            },
        });
        let marks = number_marks(all_elements(&value, Size::new(512, 512)), Size::new(512, 512));
        let marked: Vec<_> =
            marks.iter().map(|mark| (mark.mark, mark.role.as_str(), mark.text.as_str(), mark.y)).collect();
        let wanted = [
            (1, "combobox", "Colour", 40.0),
            (2, "option", "red", 60.0),
            (3, "button", "beside it", 70.0),
            (4, "option", "blue", 108.0),
        ];
        assert_eq!(marked, wanted);
    }
}
