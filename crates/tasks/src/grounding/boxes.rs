//! Reads the box that a click must hit, in any of the published forms.

use furrow_rollout::Size;
use serde_json::Value;

use crate::fields::JsonFields;

/// Format of the boxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoxForm {
    /// Determined by the numbers: shares if none is above 1, else pixels.
    Auto,
    /// Left, top, right, bottom as shares of the picture.
    Shares,
    /// Left, top, right, bottom in pixels.
    Pixels,
    /// Left, top, width, height in pixels.
    PixelSizes,
}

impl BoxForm {
    /// The names in job files.
    pub(crate) const NAMES: [(&str, Self); 4] = [
        ("auto", Self::Auto),
        ("shares", Self::Shares),
        ("pixels", Self::Pixels),
        ("pixel_sizes", Self::PixelSizes),
    ];

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, form)| form)
    }
}

/// The box in pixels of the original picture: left, top, right, bottom.
pub(super) fn read_box(fields: &mut JsonFields, form: BoxForm, size: Size) -> Option<[f64; 4]> {
    let Some(value) = fields.value("bbox") else {
        fields.problem("bbox", "is missing; it must be a list of four numbers");
        return None;
    };
    let numbers: Option<Vec<f64>> =
        value.as_array().and_then(|sides| sides.iter().map(Value::as_f64).collect());
    let Some(&[a, b, c, d]) = numbers.as_deref().filter(|numbers| numbers.iter().all(|n| n.is_finite()))
    else {
        return fields.refuse("bbox", value, "is not a box", "use a list of four numbers");
    };
    let width = f64::from(size.width);
    let height = f64::from(size.height);
    let in_shares = match form {
        BoxForm::Auto => [a, b, c, d].iter().all(|n| (0.0..=1.0).contains(n)),
        other => other == BoxForm::Shares,
    };
    let edges = match (in_shares, form) {
        (true, _) => [a * width, b * height, c * width, d * height],
        (false, BoxForm::PixelSizes) => [a, b, a + c, b + d],
        (false, _) => [a, b, c, d],
    };
    let [left, top, right, bottom] = edges;
    // Annotations may exceed the edge by a pixel.
    let inside = left >= -1.0 && top >= -1.0 && right <= width + 1.0 && bottom <= height + 1.0;
    if !(left < right && top < bottom && inside) {
        let remedy = format!(
            "it must lie in the picture of {width} x {height}; set `boxes` to shares, pixels or pixel_sizes"
        );
        return fields.refuse("bbox", value, "is not a box inside the picture", &remedy);
    }
    Some([left.max(0.0), top.max(0.0), right.min(width), bottom.min(height)])
}
