//! JSON as Python writes it: the bare words `Infinity`, `-Infinity` and `NaN` are numbers, too.

use serde_json::Value;

/// The words, longest first, and the text that newer files hold in their place.
const WORDS: [(&[u8], &[u8]); 3] = [
    (b"-Infinity", br#"{"__float__":"-Infinity"}"#),
    (b"Infinity", br#"{"__float__":"Infinity"}"#),
    (b"NaN", br#"{"__float__":"NaN"}"#),
];

/// Reads a document; bare words come back in the newer form, which [`number`] understands.
pub(super) fn read(text: &[u8]) -> Result<Value, serde_json::Error> {
    serde_json::from_slice(&without_words(text))
}

/// A number in any of its forms.
pub(super) fn number(value: &Value) -> Option<f64> {
    let word = || value.get("__float__").and_then(Value::as_str);
    value.as_f64().or_else(|| match word()? {
        "Infinity" | "inf" => Some(f64::INFINITY),
        "-Infinity" | "-inf" => Some(f64::NEG_INFINITY),
        "NaN" | "nan" => Some(f64::NAN),
        _ => None,
    })
}

/// Strings are copied as they are. A word that touches another token stays invalid JSON after the exchange.
fn without_words(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let (mut at, mut in_string) = (0, false);
    while at < text.len() {
        let word = WORDS.iter().find(|(word, _)| !in_string && text[at..].starts_with(word));
        let (len, copied) = match (word, text[at]) {
            (Some((word, stands_for)), _) => (word.len(), *stands_for),
            (None, b'\\') => (2, &text[at..text.len().min(at + 2)]),
            (None, byte) => {
                in_string ^= byte == b'"';
                (1, &text[at..=at])
            }
        };
        out.extend_from_slice(copied);
        at += len;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Option<f64>) {
        let value = read(text.as_bytes()).ok();
        let found = value.as_ref().and_then(|value| number(&value["x"]));
        assert_eq!(found.map(f64::to_bits), expected.map(f64::to_bits), "{text}");
    }

    #[test]
    fn python_floats_are_numbers() {
        check(r#"{"x": Infinity}"#, Some(f64::INFINITY));
        check(r#"{"x":-Infinity}"#, Some(f64::NEG_INFINITY));
        check(r#"{"x": NaN}"#, Some(f64::NAN));
        check(r#"{"x": {"__float__": "Infinity"}}"#, Some(f64::INFINITY));
        check(r#"{"y": "Infinity \" NaN", "x": 2.5}"#, Some(2.5));
        check(r#"{"y": "\\", "x": Infinity}"#, Some(f64::INFINITY));
        check(r#"{"x": "Infinity"}"#, None);
        check(r#"{"x": 1Infinity}"#, None);
        check(r#"{"x": InfinityNaN}"#, None);
    }

    #[test]
    fn strings_keep_their_words() {
        let value = read(br#"{"x": "to Infinity, NaN"}"#).unwrap();
        assert_eq!(value["x"], "to Infinity, NaN");
    }
}
