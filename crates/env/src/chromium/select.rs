//! The native `<select>` trap: headless Chromium draws the open list into the screenshot, but a
//! mouse event on a drawn row only closes the list and the value stays. Therefore a click on a
//! drawn row is translated: the row is found by geometry and chosen by keyboard, which works.
//!
//! Geometry as measured on Chromium 156 (Linux, default theme): the list has a border of 1 px and
//! as many rows as options, each as high as the font's line plus 8 px, at least 24 px; a group's
//! label is its line plus 5 px, a rule 2 px. It opens below its field if the screen has enough
//! space there, else above if there is more space; what does not fit is cut. The screen of a
//! process is the size of its pages (`process.rs`).

use std::collections::BTreeMap;

use furrow_rollout::{PagePoint, Size};
use serde_json::Value;

use super::script;
use super::tab::BrowserTab;
use crate::environment::EnvironmentError;

/// An open list as the page describes it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OpenList {
    /// Left, top, right, bottom of the field.
    field: [f64; 4],
    /// Height of a line of its font.
    line: f64,
    /// Rows from the top.
    rows: Vec<ListRow>,
    /// Index of the selected option, -1 for none.
    selected: i64,
    /// Width of the widest option, as far as the page can measure it.
    width: f64,
    /// Labels of its options, by their index.
    labels: BTreeMap<i64, String>,
}

/// A drawn row of an open list with an option that can be chosen.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DrawnRow {
    pub label: String,
    /// Left, top, right, bottom.
    pub bounds: [f64; 4],
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum ListRow {
    /// An option and its index in the list.
    Choice { index: i64, enabled: bool },
    /// The name of a group.
    Label,
    /// A line between options.
    Rule,
}

/// The meaning of a click on an open list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PickResult {
    /// An option, as a number of steps down (or up, if negative) from the selected one.
    Steps(i64),
    /// A row that cannot be chosen; the list stays open.
    Nothing,
    /// The click is outside the list.
    Outside,
}

/// The open list of the page, if there is one.
pub(super) async fn find_open_list(tab: &BrowserTab) -> Result<Option<OpenList>, EnvironmentError> {
    match script::evaluate_isolated(tab, OPEN_LIST_SCRIPT, tab.deadlines.input, "the open list").await {
        Ok(value) => Ok(OpenList::read(&value)),
        // The document was replaced during the query, and its list with it.
        Err(EnvironmentError::Failed(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Index of the selected option in the list that has the focus.
pub(super) async fn chosen_index(tab: &BrowserTab) -> Result<Option<i64>, EnvironmentError> {
    let script =
        "document.activeElement instanceof HTMLSelectElement ? document.activeElement.selectedIndex : null";
    Ok(script::evaluate_isolated(tab, script, tab.deadlines.input, "the chosen option").await?.as_i64())
}

impl OpenList {
    /// The meaning of a click at this point of the page.
    pub(super) fn pick(&self, at: PagePoint, screen: Size) -> PickResult {
        let [left, top, right, bottom] = self.bounds(screen);
        let x = f64::from(at.x);
        let y = f64::from(at.y);
        if y < top || y >= bottom || x < left || x >= right {
            return PickResult::Outside;
        }
        let mut row_top = top + 1.0;
        for row in &self.rows {
            let row_bottom = row_top + self.row_height(*row);
            if y < row_bottom {
                return self.steps_to(*row);
            }
            row_top = row_bottom;
        }
        PickResult::Nothing
    }

    /// The index of the option that the pick selects.
    pub(super) fn index_after(&self, steps: i64) -> Option<i64> {
        let enabled: Vec<i64> = self.enabled().collect();
        let here = self.selected_position(&enabled);
        enabled.get(usize::try_from(here + steps).ok()?).copied()
    }

    /// Left, top, right, bottom of the drawn list.
    pub(super) fn bounds(&self, screen: Size) -> [f64; 4] {
        let (top, bottom) = self.span(screen);
        let [left, _, right, _] = self.field;
        [left, top, right.max(left + self.width), bottom]
    }

    /// The drawn rows that can be chosen.
    pub(super) fn drawn_rows(&self, screen: Size) -> Vec<DrawnRow> {
        let [left, top, right, bottom] = self.bounds(screen);
        let mut row_top = top + 1.0;
        let mut drawn = Vec::new();
        for row in &self.rows {
            let row_bottom = row_top + self.row_height(*row);
            if let ListRow::Choice { index, enabled: true } = row
                && row_bottom <= bottom
            {
                let label = self.labels.get(index).cloned().unwrap_or_default();
                drawn.push(DrawnRow { label, bounds: [left, row_top, right, row_bottom] });
            }
            row_top = row_bottom;
        }
        drawn
    }

    /// Top and bottom of the drawn list.
    fn span(&self, screen: Size) -> (f64, f64) {
        let [_, field_top, _, field_bottom] = self.field;
        let height = 2.0 + self.rows.iter().map(|row| self.row_height(*row)).sum::<f64>();
        let below = f64::from(screen.height) - field_bottom;
        if height <= below || below >= field_top {
            (field_bottom, field_bottom + height.min(below))
        } else {
            (field_top - height.min(field_top), field_top)
        }
    }

    fn row_height(&self, row: ListRow) -> f64 {
        match row {
            ListRow::Choice { .. } => (self.line + 8.0).max(24.0),
            ListRow::Label => self.line + 5.0,
            ListRow::Rule => 2.0,
        }
    }

    fn steps_to(&self, row: ListRow) -> PickResult {
        let ListRow::Choice { index, enabled: true } = row else { return PickResult::Nothing };
        let enabled: Vec<i64> = self.enabled().collect();
        match enabled.iter().position(|other| *other == index) {
            Some(there) => PickResult::Steps(there as i64 - self.selected_position(&enabled)),
            None => PickResult::Nothing,
        }
    }

    /// Position of the selected option among those that can be chosen; one before the first if none
    /// is selected.
    fn selected_position(&self, enabled: &[i64]) -> i64 {
        enabled.iter().position(|index| *index == self.selected).map_or(-1, |position| position as i64)
    }

    fn enabled(&self) -> impl Iterator<Item = i64> {
        self.rows.iter().filter_map(|row| match row {
            ListRow::Choice { index, enabled: true } => Some(*index),
            _ => None,
        })
    }

    pub(super) fn read(value: &Value) -> Option<Self> {
        let number = |key: &str| value.get(key)?.as_f64();
        let row = |row: &Value| match row.get(0)?.as_str()? {
            "option" => {
                Some(ListRow::Choice { index: row.get(1)?.as_i64()?, enabled: row.get(2)?.as_bool()? })
            }
            "label" => Some(ListRow::Label),
            _ => Some(ListRow::Rule),
        };
        let label = |row: &Value| Some((row.get(1)?.as_i64()?, row.get(3)?.as_str()?.to_owned()));
        Some(Self {
            field: [number("left")?, number("top")?, number("right")?, number("bottom")?],
            line: number("line")?,
            rows: value.get("rows")?.as_array()?.iter().filter_map(row).collect(),
            selected: value.get("selected")?.as_i64()?,
            width: number("width")?,
            labels: value.get("rows")?.as_array()?.iter().filter_map(label).collect(),
        })
    }
}

/// A list with more rows than this is cut; no screen shows that many.
pub(super) const OPEN_LIST_SCRIPT: &str = r"(() => {
  const field = document.querySelector('select:open');
  if (!field || field.multiple || field.size > 1) return null;
  const box = field.getBoundingClientRect();
  const style = getComputedStyle(field);
  const pen = new OffscreenCanvas(1, 1).getContext('2d');
  pen.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  const size = pen.measureText('x');
  const line = Math.round(size.fontBoundingBoxAscent) + Math.round(size.fontBoundingBoxDescent) + Math.round(parseFloat(style.fontSize) * 0.033);
  const rows = [];
  let width = 0;
  const add = (option, dead) => {
    if (option.hidden || getComputedStyle(option).display === 'none') return;
    rows.push(['option', option.index, !option.disabled && !dead, option.label.slice(0, 100).toWellFormed()]);
    width = Math.max(width, pen.measureText(option.label).width + 24);
  };
  for (const child of field.children) {
    if (rows.length > 500) break;
    if (child instanceof HTMLOptionElement) add(child, false);
    else if (child instanceof HTMLOptGroupElement) {
      rows.push(['label']);
      for (const option of child.querySelectorAll('option')) add(option, child.disabled);
    } else if (child instanceof HTMLHRElement) rows.push(['rule']);
  }
  return { left: box.left, top: box.top, right: box.right, bottom: box.bottom, line, rows, selected: field.selectedIndex, width };
})()";

#[cfg(test)]
mod tests {
    use super::*;

    fn list(rows: &[ListRow], top: f64, selected: i64) -> OpenList {
        // The font of a plain select: 13.33 px, a line of 15 px; its field is 19 px high.
        OpenList {
            field: [40.0, top, 108.0, top + 19.0],
            line: 15.0,
            rows: rows.to_vec(),
            selected,
            width: 60.0,
            labels: BTreeMap::from([(1, "one".to_owned())]),
        }
    }

    fn choices(count: i64) -> Vec<ListRow> {
        (0..count).map(|index| ListRow::Choice { index, enabled: true }).collect()
    }

    #[track_caller]
    fn check(list: &OpenList, y: f32, want: PickResult) {
        assert_eq!(list.pick(PagePoint { x: 60.0, y }, Size::new(512, 512)), want, "at {y}");
    }

    #[test]
    fn a_drawn_row_is_so_many_steps_away() {
        let below = list(&choices(6), 40.0, 0);
        check(&below, 58.0, PickResult::Outside);
        check(&below, 72.0, PickResult::Steps(0));
        check(&below, 96.0, PickResult::Steps(1));
        check(&below, 192.0, PickResult::Steps(5));
        check(&below, 206.0, PickResult::Outside);
        check(&list(&choices(6), 40.0, 3), 72.0, PickResult::Steps(-3));
        check(&list(&choices(6), 40.0, -1), 72.0, PickResult::Steps(1));
    }

    #[test]
    fn a_list_without_space_below_is_drawn_above() {
        // Field from 453 to 472: the list of 146 px extends from 307 to 453.
        let above = list(&choices(6), 453.0, 0);
        check(&above, 320.0, PickResult::Steps(0));
        check(&above, 440.0, PickResult::Steps(5));
        check(&above, 300.0, PickResult::Outside);
        check(&above, 480.0, PickResult::Outside);
    }

    #[test]
    fn labels_rules_and_disabled_rows_cannot_be_chosen() {
        // As drawn: one 60-84, label 84-104, three rows to 176, a disabled row to 200, a rule, the
        // last row from 202.
        let mut rows = vec![ListRow::Choice { index: 0, enabled: true }, ListRow::Label];
        rows.extend((1..4).map(|index| ListRow::Choice { index, enabled: true }));
        rows.extend([
            ListRow::Choice { index: 4, enabled: false },
            ListRow::Rule,
            ListRow::Choice { index: 5, enabled: true },
        ]);
        let mixed = list(&rows, 40.0, 0);
        check(&mixed, 94.0, PickResult::Nothing);
        check(&mixed, 116.0, PickResult::Steps(1));
        check(&mixed, 188.0, PickResult::Nothing);
        check(&mixed, 214.0, PickResult::Steps(4));
        let drawn = mixed.drawn_rows(Size::new(512, 512));
        let spans: Vec<_> =
            drawn.iter().map(|row| (row.bounds[1], row.bounds[3], row.label.as_str())).collect();
        let wanted = [
            (60.0, 84.0, ""),
            (104.0, 128.0, "one"),
            (128.0, 152.0, ""),
            (152.0, 176.0, ""),
            (202.0, 226.0, ""),
        ];
        assert_eq!(spans, wanted);
        assert_eq!(mixed.drawn_rows(Size::new(512, 130)).len(), 2, "what the screen cuts off is not drawn");
        assert_eq!(mixed.index_after(4), Some(5));
    }
}
