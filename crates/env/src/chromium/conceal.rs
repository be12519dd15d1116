//! Keeps the values of secrets out of pictures.
//!
//! Before a picture is taken, the worker looks for values in what the page may show as text, and
//! whatever contains one is drawn as dots. Afterwards it looks again: a picture during which a
//! value appeared is taken again, and one that cannot be made without a value is withheld.

use serde_json::{Value, json};

use super::script::{self, IsolatedWorld, ScriptFailure};
use super::tab::BrowserTab;
use crate::environment::EnvironmentError;
use crate::secrets::Scrubber;

const SCRIPT: &str = include_str!("conceal.js");

/// The script gathers up to a million characters of text and as many of fields.
const RESULT_BYTES_MAX: usize = 12 << 20;

/// Pictures that are taken until one is without values from its beginning to its end.
const PICTURES_MAX: u32 = 4;

const WHAT: &str = "looking for secrets";

/// A picture, or why there is none.
#[derive(Debug)]
pub(super) enum ConcealedPicture<T> {
    Shown(T),
    Withheld(&'static str),
}

/// What was found in a page before or after a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// No value is drawn; some were until now.
    Covered { newly: u64 },
    /// A value is drawn that cannot be covered.
    Bare,
    /// The page has more text than is looked at.
    TooLarge,
    /// The document was replaced meanwhile.
    Replaced,
}

/// Takes a picture of a page without values in it.
pub(super) async fn picture<T, F: Future<Output = Result<T, EnvironmentError>>>(
    tab: &BrowserTab,
    scrubber: &Scrubber,
    take: impl Fn() -> F,
) -> Result<ConcealedPicture<T>, EnvironmentError> {
    if scrubber.is_empty() {
        return take().await.map(ConcealedPicture::Shown);
    }
    let mut before = look(tab, scrubber).await?;
    for _ in 0..PICTURES_MAX {
        match before {
            Look::Bare => {
                return Ok(ConcealedPicture::Withheld("the page draws a secret that cannot be covered"));
            }
            Look::TooLarge => {
                return Ok(ConcealedPicture::Withheld(
                    "the page has too much text to be searched for secrets",
                ));
            }
            Look::Covered { .. } | Look::Replaced => {}
        }
        let taken = take().await?;
        let after = look(tab, scrubber).await?;
        if before != Look::Replaced && after == (Look::Covered { newly: 0 }) {
            return Ok(ConcealedPicture::Shown(taken));
        }
        before = after;
    }
    Ok(ConcealedPicture::Withheld("the page kept changing while it was searched for secrets"))
}

/// Looks for values and covers what draws them.
async fn look(tab: &BrowserTab, scrubber: &Scrubber) -> Result<Look, EnvironmentError> {
    let world = script::isolated_world(tab, tab.deadlines.screenshot, WHAT).await?;
    let gathered = match run(tab, &world, &Value::Null).await? {
        Ok(gathered) => gathered,
        Err(look) => return Ok(look),
    };
    let [Value::String(text), Value::Array(values), covered, Value::Bool(is_whole)] =
        gathered.as_array().map_or(&[][..], Vec::as_slice)
    else {
        return Ok(Look::Replaced);
    };
    if !is_whole {
        return Ok(Look::TooLarge);
    }
    let ranges = utf16_ranges(text, &scrubber.ranges(text));
    let contains = |value: &Value| value.as_str().is_some_and(|text| !scrubber.ranges(text).is_empty());
    let values: Vec<usize> =
        values.iter().enumerate().filter(|(_, value)| contains(value)).map(|(index, _)| index).collect();
    let newly = covered.as_u64().unwrap_or_default();
    if ranges.is_empty() && values.is_empty() {
        return Ok(Look::Covered { newly });
    }
    let counts = match run(tab, &world, &json!({ "ranges": ranges, "values": values })).await? {
        Ok(counts) => counts,
        Err(look) => return Ok(look),
    };
    match (counts[0].as_u64(), counts[1].as_u64()) {
        (Some(more), Some(0)) => Ok(Look::Covered { newly: newly + more }),
        (Some(_), Some(_)) => Ok(Look::Bare),
        _ => Ok(Look::Replaced),
    }
}

async fn run(
    tab: &BrowserTab,
    world: &IsolatedWorld,
    found: &Value,
) -> Result<Result<Value, Look>, EnvironmentError> {
    let call = format!("({SCRIPT})({found})");
    let deadline = tab.deadlines.screenshot;
    match script::try_evaluate(tab, &call, Some(world), deadline, WHAT, RESULT_BYTES_MAX).await {
        Ok(Ok(value)) => Ok(Ok(value)),
        Ok(Err(ScriptFailure::TooLarge(_))) => Ok(Err(Look::TooLarge)),
        Ok(Err(ScriptFailure::Threw(_))) | Err(EnvironmentError::Failed(_)) => Ok(Err(Look::Replaced)),
        Err(error) => Err(error),
    }
}

/// Ranges of bytes as ranges of the units that scripts count in.
fn utf16_ranges(text: &str, ranges: &[(usize, usize)]) -> Vec<(usize, usize)> {
    let units = |part: &str| part.encode_utf16().count();
    let mut last = 0;
    let mut unit = 0;
    let mut counted = Vec::with_capacity(ranges.len());
    for &(start, end) in ranges {
        let begin = unit + units(&text[last..start]);
        unit = begin + units(&text[start..end]);
        last = end;
        counted.push((begin, unit));
    }
    counted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_counted_as_scripts_count() {
        let text = "é😀abc😀def";
        let bytes = |part: &str| {
            let start = text.find(part).unwrap();
            (start, start + part.len())
        };
        assert_eq!(utf16_ranges(text, &[bytes("abc"), bytes("def")]), [(3, 6), (8, 11)]);
        assert_eq!(utf16_ranges(text, &[]), []);
    }
}
