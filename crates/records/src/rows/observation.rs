//! What the policy was shown: the screenshot, the page around it, its tabs and marks.

use furrow_rollout::{Mark, Observation, Screenshot, TabInfo};

use super::error::RowError;
use super::values::{format, quality_cell, size};
use crate::schema::{ImageCell, MarkCell, ObservationCell, TabCell};

impl ObservationCell {
    pub(super) fn new(observation: &Observation, path: String) -> Self {
        let Observation { screenshot, url, title, tabs, scroll_y, page_height, axtree, marks } = observation;
        Self {
            screenshot: ImageCell { bytes: screenshot.bytes.clone(), path: Some(path) },
            format: screenshot.format.as_str().into(),
            quality: quality_cell(screenshot.format),
            width: screenshot.size.width.cast_signed(),
            height: screenshot.size.height.cast_signed(),
            url: url.clone(),
            title: title.clone(),
            tabs: tabs.iter().map(TabCell::from).collect(),
            scroll_y: *scroll_y,
            page_height: *page_height,
            axtree: axtree.clone(),
            marks: marks.as_ref().map(|marks| marks.iter().map(MarkCell::from).collect()),
        }
    }

    pub(super) fn into_domain(self) -> Result<Observation, RowError> {
        let format = format(&self.format, self.quality)?;
        let tab = |cell: TabCell| TabInfo { title: cell.title, url: cell.url, active: cell.active };
        Ok(Observation {
            screenshot: Screenshot {
                bytes: self.screenshot.bytes,
                format,
                size: size(self.width, self.height),
            },
            url: self.url,
            title: self.title,
            tabs: self.tabs.into_iter().map(tab).collect(),
            scroll_y: self.scroll_y,
            page_height: self.page_height,
            axtree: self.axtree,
            marks: self.marks.map(|marks| marks.into_iter().map(Mark::from).collect()),
        })
    }
}

impl From<&TabInfo> for TabCell {
    fn from(tab: &TabInfo) -> Self {
        Self { title: tab.title.clone(), url: tab.url.clone(), active: tab.active }
    }
}

impl From<&Mark> for MarkCell {
    fn from(mark: &Mark) -> Self {
        let Mark { mark, role, text, x, y, width, height } = mark.clone();
        Self { mark: mark.cast_signed(), role, text, x, y, width, height }
    }
}

impl From<MarkCell> for Mark {
    fn from(cell: MarkCell) -> Self {
        let MarkCell { mark, role, text, x, y, width, height } = cell;
        Self { mark: mark.cast_unsigned(), role, text, x, y, width, height }
    }
}
