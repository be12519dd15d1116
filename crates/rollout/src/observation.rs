//! What the policy receives of a page.

use bytes::Bytes;

/// Width and height in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Size {
    /// Number of pixels from left to right.
    pub width: u32,
    /// Number of pixels from top to bottom.
    pub height: u32,
}

/// Encoding of a screenshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ImageFormat {
    /// Lossless PNG, encoded for speed.
    Png,
    /// Lossy JPEG, which is several times smaller than PNG for photographs.
    Jpeg {
        /// Quality, 1 to 100.
        quality: u8,
    },
}

/// One picture of a page. The bytes are recorded unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Screenshot {
    /// The image file that the policy decodes and that the records keep.
    pub bytes: Bytes,
    /// How `bytes` are encoded, by the task's observation settings.
    pub format: ImageFormat,
    /// Size of the decoded image, padding included. Model coordinates refer to it.
    pub size: Size,
}

/// One open tab of the browser.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TabInfo {
    /// Page title, cut to 256 characters.
    pub title: String,
    /// Page address, cut to 2,048 characters.
    pub url: String,
    /// Whether the screenshot shows this tab.
    pub active: bool,
}

/// Most marks of one observation; further elements of the page get no mark.
pub const MARKS_MAX: usize = 1000;

/// Longest text of a mark, in characters.
pub const MARK_TEXT_CHARS_MAX: usize = 200;

/// A numbered box drawn into the picture over an element that a person could act on.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// The number in the picture: 1, 2, 3 … in reading order.
    pub mark: u32,
    /// The element's ARIA role, such as `button`, or its tag if no role fits.
    pub role: String,
    /// The element's name or text, cut to [`MARK_TEXT_CHARS_MAX`] characters.
    pub text: String,
    /// Left edge in CSS pixels of the picture; the next three fields use the same unit.
    pub x: f32,
    /// Top edge of the box.
    pub y: f32,
    /// Width of the box; `x + width` lies inside the picture.
    pub width: f32,
    /// Height of the box; `y + height` lies inside the picture.
    pub height: f32,
}

/// State as the policy sees it before a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Observation {
    /// The picture, with marks drawn if the job asks for them.
    pub screenshot: Screenshot,
    /// Address of the active tab.
    pub url: String,
    /// Title of the active tab.
    pub title: String,
    /// All open tabs, oldest first.
    pub tabs: Vec<TabInfo>,
    /// Vertical scroll position in CSS pixels.
    pub scroll_y: f32,
    /// Height of the document in CSS pixels.
    pub page_height: f32,
    /// Accessibility text, if the job asks for it.
    pub axtree: Option<String>,
    /// The elements behind the numbers in the picture, if the job asks for marks.
    pub marks: Option<Vec<Mark>>,
}

impl Mark {
    /// Describes what is wrong with the marks of a picture of this size; `None` if they are
    /// numbered from 1 and their boxes lie inside the picture.
    pub fn problem(marks: &[Mark], picture: Size) -> Option<String> {
        if marks.len() > MARKS_MAX {
            return Some(format!("there are {} marks, at most {MARKS_MAX} are allowed", marks.len()));
        }
        (1..).zip(marks).find_map(|(number, mark)| mark.problem_at(number, picture))
    }

    fn problem_at(&self, number: u32, picture: Size) -> Option<String> {
        let Self { mark, x, y, width, height, .. } = self;
        let inside =
            |from: f32, length: f32, end: u32| from >= 0.0 && length > 0.0 && from + length <= end as f32;
        if *mark != number {
            return Some(format!("expected mark {number}, found mark {mark}"));
        }
        if !inside(*x, *width, picture.width) || !inside(*y, *height, picture.height) {
            let Size { width: right, height: bottom } = picture;
            return Some(format!(
                "mark {mark} ({width}x{height} at {x}, {y}) is outside the {right}x{bottom} picture"
            ));
        }
        if self.text.chars().count() > MARK_TEXT_CHARS_MAX {
            return Some(format!("mark {mark} has more than {MARK_TEXT_CHARS_MAX} characters of text"));
        }
        None
    }
}

impl Size {
    /// A size from its two sides.
    pub const fn new(width: u32, height: u32) -> Self {
        Self { width, height }
    }
}

impl ImageFormat {
    /// The format's name in columns and on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            ImageFormat::Png => "png",
            ImageFormat::Jpeg { .. } => "jpeg",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(number: u32) -> Mark {
        Mark {
            mark: number,
            role: "button".into(),
            text: "OK".into(),
            x: 0.0,
            y: 10.0,
            width: 64.0,
            height: 8.0,
        }
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Vec<Mark>), want: Option<&str>) {
        let mut marks = vec![mark(1), mark(2)];
        change(&mut marks);
        let problem = Mark::problem(&marks, Size::new(64, 18));
        match want {
            None => assert_eq!(problem, None),
            Some(want) => {
                assert!(problem.as_ref().is_some_and(|problem| problem.contains(want)), "{problem:?}");
            }
        }
    }

    #[test]
    fn marks_are_numbered_and_inside_the_picture() {
        check(|_| {}, None);
        check(Vec::clear, None);
        check(|marks| marks[1].mark = 1, Some("expected mark 2, found mark 1"));
        check(|marks| marks[0].mark = 0, Some("expected mark 1, found mark 0"));
        check(|marks| marks[0].x = -0.5, Some("outside the 64x18 picture"));
        check(|marks| marks[1].x = 0.5, Some("mark 2 (64x8 at 0.5, 10)"));
        check(|marks| marks[1].height = 8.5, Some("mark 2"));
        check(|marks| marks[1].width = 0.0, Some("mark 2"));
        check(|marks| marks[1].y = f32::NAN, Some("mark 2"));
        check(|marks| marks[1].width = f32::INFINITY, Some("mark 2"));
        check(|marks| marks[1].text = "é".repeat(200), None);
        check(|marks| marks[1].text = "é".repeat(201), Some("more than 200 characters"));
        check(|marks| *marks = (1..=1000).map(mark).collect(), None);
        check(|marks| *marks = (1..=1001).map(mark).collect(), Some("there are 1001 marks"));
    }
}
