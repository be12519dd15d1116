//! Conversions of observations and screenshots.

use furrow_rollout::{ImageFormat, MARKS_MAX, Mark, Observation, Screenshot, Size, TabInfo};

use crate::error::{WireError, cap, capped, finite, need, unknown};
use crate::limits::{
    ROLE_BYTES_MAX, SCREENSHOT_BYTES_MAX, SIDE_MAX, TABS_MAX, TEXT_BYTES_MAX, TITLE_BYTES_MAX, URL_BYTES_MAX,
};
use crate::v1;

/// Validates an observation that an environment worker sent.
pub fn observation_from(message: v1::Observation) -> Result<Observation, WireError> {
    cap(message.tabs.len(), TABS_MAX, "observation.tabs")?;
    let axtree = message.axtree.map(|text| capped(text, TEXT_BYTES_MAX, "observation.axtree")).transpose()?;
    let screenshot = screenshot_from(need(message.screenshot, "observation.screenshot")?)?;
    let marks = message.marks.map(|marks| marks_from(marks, screenshot.size)).transpose()?;
    Ok(Observation {
        screenshot,
        url: capped(message.url, URL_BYTES_MAX, "observation.url")?,
        title: capped(message.title, TITLE_BYTES_MAX, "observation.title")?,
        tabs: message.tabs.into_iter().map(tab_from).collect::<Result<_, _>>()?,
        scroll_y: finite(message.scroll_y, "observation.scroll_y")?,
        page_height: finite(message.page_height, "observation.page_height")?,
        axtree,
        marks,
    })
}

/// Converts an observation to its message.
pub fn observation_into(value: &Observation) -> v1::Observation {
    v1::Observation {
        screenshot: Some(screenshot_into(&value.screenshot)),
        url: value.url.clone(),
        title: value.title.clone(),
        tabs: value.tabs.iter().map(tab_into).collect(),
        scroll_y: value.scroll_y,
        page_height: value.page_height,
        axtree: value.axtree.clone(),
        marks: value.marks.as_deref().map(marks_into),
    }
}

/// Validates a screenshot's size and format. The bytes are not decoded here; the decoder checks the
/// image's own header first.
pub fn screenshot_from(message: v1::Screenshot) -> Result<Screenshot, WireError> {
    cap(message.bytes.len(), SCREENSHOT_BYTES_MAX, "screenshot.bytes")?;
    Ok(Screenshot {
        bytes: message.bytes,
        format: format_from(need(message.format, "screenshot.format")?)?,
        size: size_from(need(message.size, "screenshot.size")?)?,
    })
}

/// Converts a screenshot to its message, which shares the bytes.
pub fn screenshot_into(value: &Screenshot) -> v1::Screenshot {
    v1::Screenshot {
        bytes: value.bytes.clone(),
        format: Some(format_into(value.format)),
        size: Some(size_into(value.size)),
    }
}

pub(crate) fn format_from(message: v1::ImageFormat) -> Result<ImageFormat, WireError> {
    match message.jpeg_quality {
        0 => Ok(ImageFormat::Png),
        quality @ 1..=100 => Ok(ImageFormat::Jpeg { quality: quality as u8 }),
        other => Err(unknown("format.jpeg_quality", &other.to_string(), "0 for PNG or 1 to 100")),
    }
}

pub(crate) fn format_into(value: ImageFormat) -> v1::ImageFormat {
    let jpeg_quality = match value {
        ImageFormat::Png => 0,
        ImageFormat::Jpeg { quality } => u32::from(quality),
    };
    v1::ImageFormat { jpeg_quality }
}

pub(crate) fn size_from(message: v1::Size) -> Result<Size, WireError> {
    let side = |value: u32| (1..=SIDE_MAX).contains(&value);
    if !side(message.width) || !side(message.height) {
        let value = format!("{}x{}", message.width, message.height);
        return Err(unknown("size", &value, "sides of 1 to 16384 pixels"));
    }
    Ok(Size::new(message.width, message.height))
}

pub(crate) fn size_into(value: Size) -> v1::Size {
    v1::Size { width: value.width, height: value.height }
}

fn tab_from(message: v1::Tab) -> Result<TabInfo, WireError> {
    Ok(TabInfo {
        title: capped(message.title, TITLE_BYTES_MAX, "tab.title")?,
        url: capped(message.url, URL_BYTES_MAX, "tab.url")?,
        active: message.active,
    })
}

fn tab_into(value: &TabInfo) -> v1::Tab {
    v1::Tab { title: value.title.clone(), url: value.url.clone(), active: value.active }
}

fn marks_from(message: v1::Marks, picture: Size) -> Result<Vec<Mark>, WireError> {
    cap(message.marks.len(), MARKS_MAX, "observation.marks")?;
    let marks = message.marks.into_iter().map(mark_from).collect::<Result<Vec<_>, _>>()?;
    match Mark::problem(&marks, picture) {
        None => Ok(marks),
        Some(problem) => {
            Err(unknown("observation.marks", &problem, "marks numbered from 1 with boxes inside the picture"))
        }
    }
}

fn mark_from(message: v1::Mark) -> Result<Mark, WireError> {
    let v1::Mark { mark, role, text, x, y, width, height } = message;
    let role = capped(role, ROLE_BYTES_MAX, "observation.marks.role")?;
    Ok(Mark { mark, role, text, x, y, width, height })
}

fn marks_into(value: &[Mark]) -> v1::Marks {
    let mark = |mark: &Mark| v1::Mark {
        mark: mark.mark,
        role: mark.role.clone(),
        text: mark.text.clone(),
        x: mark.x,
        y: mark.y,
        width: mark.width,
        height: mark.height,
    };
    v1::Marks { marks: value.iter().map(mark).collect() }
}
