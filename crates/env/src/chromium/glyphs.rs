//! Which scripts the browser's fonts lack: their characters are drawn as empty boxes, or not at
//! all.

use serde_json::{Value, json};

use super::script;
use super::tab::BrowserTab;
use crate::environment::EnvironmentError;

/// What pages of the live web hold beside Latin letters, each with a character of it.
const SAMPLES: [(&str, &str); 5] = [
    ("emoji", "\u{1f600}"),
    ("Chinese", "\u{6c49}"),
    ("Japanese", "\u{3072}"),
    ("Korean", "\u{d55c}"),
    ("Arabic", "\u{639}"),
];

/// Draws each sample. One that looks like a code point without a character, which no font has, is
/// missing.
const DRAW_SCRIPT: &str = r"(samples) => {
  const canvas = new OffscreenCanvas(48, 48);
  const pen = canvas.getContext('2d', { willReadFrequently: true });
  pen.font = '24px sans-serif';
  const drawn = (text) => {
    pen.clearRect(0, 0, 48, 48);
    pen.fillText(text, 4, 34);
    return pen.getImageData(0, 0, 48, 48).data.join();
  };
  const missing = ['', '\u0378'].map(drawn);
  return samples.filter(([, text]) => missing.includes(drawn(text))).map(([name]) => name);
}";

/// The names of the samples that the browser's fonts lack.
pub(super) async fn missing(tab: &BrowserTab) -> Result<Vec<&'static str>, EnvironmentError> {
    let call = format!("({DRAW_SCRIPT})({})", json!(SAMPLES));
    let deadline = tab.deadlines.screenshot;
    let found = script::evaluate_isolated(tab, &call, deadline, "drawing characters").await?;
    let found = found.as_array().map_or(&[][..], Vec::as_slice);
    let is_missing = |name: &str| found.iter().filter_map(Value::as_str).any(|missing| missing == name);
    Ok(SAMPLES.map(|(name, _)| name).into_iter().filter(|name| is_missing(name)).collect())
}
