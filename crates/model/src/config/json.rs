//! JSON as Python writes it: the bare literals `Infinity`, `-Infinity` and `NaN` are numbers, too.

use serde_json::Value;

/// The bare literals, longest first, and the text that newer files have instead.
const BARE_LITERALS: [(&[u8], &[u8]); 3] = [
    (b"-Infinity", br#"{"__float__":"-Infinity"}"#),
    (b"Infinity", br#"{"__float__":"Infinity"}"#),
    (b"NaN", br#"{"__float__":"NaN"}"#),
];

/// Reads a document. Bare literals become the newer form, which [`number`] reads.
pub(super) fn read(text: &[u8]) -> Result<Value, serde_json::Error> {
    serde_json::from_slice(&replace_bare_literals(text))
}

/// A number in any of these forms.
pub(super) fn number(value: &Value) -> Option<f64> {
    let text = || value.get("__float__").and_then(Value::as_str);
    value.as_f64().or_else(|| match text()? {
        "Infinity" | "inf" => Some(f64::INFINITY),
        "-Infinity" | "-inf" => Some(f64::NEG_INFINITY),
        "NaN" | "nan" => Some(f64::NAN),
        _ => None,
    })
}

/// Copies strings unchanged. A literal that touches another token stays invalid JSON after the
/// replacement.
fn replace_bare_literals(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    let mut in_string = false;
    while at < text.len() {
        let literal = BARE_LITERALS.iter().find(|(literal, _)| !in_string && text[at..].starts_with(literal));
        let (len, copied) = match (literal, text[at]) {
            (Some((literal, stands_for)), _) => (literal.len(), *stands_for),
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
    fn strings_keep_bare_literals() {
        let value = read(br#"{"x": "to Infinity, NaN"}"#).unwrap();
        assert_eq!(value["x"], "to Infinity, NaN");
    }
}
