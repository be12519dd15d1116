//! Reads one JSON object key by key and collects every problem instead of stopping at the first.

use std::ops::RangeInclusive;

use furrow_rollout::Size;
use serde_json::{Map, Value};

/// Numbers must be finite, and small enough that sums of them do not overflow.
const NUMBER_MAX: f64 = 1e15;

/// A JSON object being read. An absent value or `null` is `None`; an invalid one is `None` and a
/// problem.
pub(crate) struct JsonFields<'a> {
    map: &'a Map<String, Value>,
    prefix: String,
    problems: &'a mut Vec<String>,
    read_keys: Vec<&'static str>,
}

impl<'a> JsonFields<'a> {
    /// `prefix` precedes every key in a problem, such as `tasks.jsonl:3: ` or `score.of[0].`.
    pub(crate) fn new(
        map: &'a Map<String, Value>,
        prefix: impl Into<String>,
        problems: &'a mut Vec<String>,
    ) -> Self {
        Self { map, prefix: prefix.into(), problems, read_keys: Vec::new() }
    }

    /// Whether the key is present and not null.
    pub(crate) fn has(&mut self, key: &'static str) -> bool {
        self.value(key).is_some()
    }

    pub(crate) fn value(&mut self, key: &'static str) -> Option<&'a Value> {
        if !self.read_keys.contains(&key) {
            self.read_keys.push(key);
        }
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// A text of 1 to `bytes_max` bytes without control characters other than tab and newline.
    pub(crate) fn text(&mut self, key: &'static str, bytes_max: usize) -> Option<String> {
        let value = self.value(key)?;
        let Some(text) = value.as_str() else {
            return self.refuse(key, value, "is not a string", "put it in quotes");
        };
        match text_problem(text, bytes_max) {
            None => Some(text.to_owned()),
            Some((problem, remedy)) => self.refuse(key, value, &problem, &remedy),
        }
    }

    /// Like [`JsonFields::text`], but an absent key is a problem.
    pub(crate) fn required_text(&mut self, key: &'static str, bytes_max: usize) -> Option<String> {
        if !self.has(key) {
            self.problem(key, "is missing; it must be a string");
            return None;
        }
        self.text(key, bytes_max)
    }

    /// A JSON pointer (RFC 6901).
    pub(crate) fn pointer(&mut self, key: &'static str) -> Option<String> {
        let pointer = self.text(key, 256)?;
        if !pointer.starts_with('/') {
            self.problem(
                key,
                format!("{pointer:?} is not a JSON pointer; begin it with /, such as /correct"),
            );
            return None;
        }
        Some(pointer)
    }

    /// One string or a list of strings.
    pub(crate) fn texts(
        &mut self,
        key: &'static str,
        count_max: usize,
        bytes_max: usize,
    ) -> Option<Vec<String>> {
        let value = self.value(key)?;
        let items = match value {
            Value::Array(items) => items.as_slice(),
            one => std::slice::from_ref(one),
        };
        if items.is_empty() || items.len() > count_max {
            let remedy = format!("use 1 to {count_max}");
            return self.refuse(key, value, &format!("has {} entries", items.len()), &remedy);
        }
        let good = |text: &&str| text_problem(text, bytes_max).is_none();
        let texts: Option<Vec<String>> =
            items.iter().map(|item| item.as_str().filter(good).map(str::to_owned)).collect();
        texts.or_else(|| {
            let remedy = format!("use strings of 1 to {bytes_max} bytes without control characters");
            self.refuse(key, value, "is not a list of strings", &remedy)
        })
    }

    /// A whole number within a range.
    pub(crate) fn integer(&mut self, key: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        let value = self.value(key)?;
        let number = value.as_u64().filter(|number| range.contains(number));
        number.or_else(|| {
            let remedy = format!("use a whole number from {} to {}", range.start(), range.end());
            self.refuse(key, value, "is out of range", &remedy)
        })
    }

    /// A number within a range.
    pub(crate) fn number(&mut self, key: &'static str, range: RangeInclusive<f64>) -> Option<f64> {
        let value = self.value(key)?;
        let number = value.as_f64().filter(|number| range.contains(number));
        number.or_else(|| {
            let remedy = format!("use a number from {} to {}", range.start(), range.end());
            self.refuse(key, value, "is out of range", &remedy)
        })
    }

    /// Any finite number of moderate size.
    pub(crate) fn any_number(&mut self, key: &'static str) -> Option<f64> {
        self.number(key, -NUMBER_MAX..=NUMBER_MAX)
    }

    /// `[width, height]`, each from 16 to `side_max`.
    pub(crate) fn size(&mut self, key: &'static str, side_max: u32) -> Option<Size> {
        let value = self.value(key)?;
        let side = |side: &Value| {
            side.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| (16..=side_max).contains(n))
        };
        let sides: Option<Vec<u32>> = value.as_array().and_then(|sides| sides.iter().map(side).collect());
        match sides.as_deref() {
            Some([width, height]) => Some(Size::new(*width, *height)),
            _ => {
                let remedy = format!("use [width, height], each from 16 to {side_max}");
                self.refuse(key, value, "is not a size", &remedy)
            }
        }
    }

    /// One of a closed list of names.
    pub(crate) fn choice<T: Copy>(&mut self, key: &'static str, choices: &[(&str, T)]) -> Option<T> {
        let value = self.value(key)?;
        let found = choices.iter().find(|(name, _)| value.as_str() == Some(name)).map(|(_, meant)| *meant);
        found.or_else(|| {
            let known: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
            self.refuse(key, value, "is not known here", &format!("use one of {}", known.join(", ")))
        })
    }

    /// Adds a problem about a key.
    pub(crate) fn problem(&mut self, key: &str, problem: impl AsRef<str>) {
        self.problems.push(format!("{}{key}: {}", self.prefix, problem.as_ref()));
    }

    /// Reports an invalid value; always `None`, so that a reader can return it.
    pub(crate) fn refuse<T>(&mut self, key: &str, value: &Value, problem: &str, remedy: &str) -> Option<T> {
        self.problem(key, format!("{} {problem}; {remedy}", quoted_value(value)));
        None
    }

    /// The key prefix for readers of nested objects.
    pub(crate) fn nested(&mut self, key: &str) -> (String, &mut Vec<String>) {
        (format!("{}{key}.", self.prefix), self.problems)
    }

    /// Refuses keys that were not read: in a scorer, a misspelt key would silently change the
    /// reward.
    pub(crate) fn refuse_unknown(self) {
        for key in self.map.keys().filter(|key| !self.read_keys.contains(&key.as_str())) {
            let known = self.read_keys.join(", ");
            self.problems.push(format!("{}{}: unknown key; known here: {known}", self.prefix, short(key)));
        }
    }
}

/// A JSON value as quoted in an error.
pub(crate) fn quoted_value(value: &Value) -> String {
    short(&value.to_string())
}

/// A foreign text as quoted in an error: short and without control characters.
pub(crate) fn short(text: &str) -> String {
    let clean = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut shown: String = text.chars().take(80).map(clean).collect();
    if text.chars().nth(80).is_some() {
        shown.push('…');
    }
    shown
}

/// Adds a problem about a number of a job that is out of its range.
pub(crate) fn in_range(problems: &mut Vec<String>, key: &str, value: u64, from: u64, to: u64) {
    if !(from..=to).contains(&value) {
        problems.push(format!("{key}: {value} is out of range; use {from} to {to}"));
    }
}

fn text_problem(text: &str, bytes_max: usize) -> Option<(String, String)> {
    if text.is_empty() || text.len() > bytes_max {
        return Some((format!("has {} bytes", text.len()), format!("use 1 to {bytes_max}")));
    }
    let control = text.chars().find(|c| c.is_control() && !matches!(c, '\n' | '\t'))?;
    Some((format!("contains the control character U+{:04X}", u32::from(control)), "remove it".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads one key of `{"key": <value>}` and returns the value or the problems.
    fn read<T>(json: &str, reader: impl Fn(&mut JsonFields) -> Option<T>) -> Result<T, Vec<String>> {
        let map = serde_json::from_str(json).unwrap();
        let mut problems = Vec::new();
        let got = reader(&mut JsonFields::new(&map, "row 3: ", &mut problems));
        got.ok_or(problems)
    }

    #[test]
    fn a_wrong_value_is_named_with_its_key_and_its_remedy() {
        let whole = |fields: &mut JsonFields| fields.integer("key", 1..=9);
        assert_eq!(read(r#"{"key": 9}"#, whole), Ok(9));
        assert_eq!(read(r#"{"key": null}"#, whole), Err(vec![]));
        for bad in ["0", "10", "-1", "1.5", "\"5\"", "[5]"] {
            let want = format!("row 3: key: {bad} is out of range; use a whole number from 1 to 9");
            assert_eq!(read(&format!(r#"{{"key": {bad}}}"#), whole), Err(vec![want]));
        }
    }

    #[test]
    fn texts_have_caps_and_no_control_characters() {
        let text = |fields: &mut JsonFields| fields.text("key", 5);
        assert_eq!(read(r#"{"key": "a\nb"}"#, text), Ok("a\nb".to_owned()));
        let problem = |json| read(json, text).unwrap_err().remove(0);
        assert_eq!(problem(r#"{"key": "abcdef"}"#), "row 3: key: \"abcdef\" has 6 bytes; use 1 to 5");
        assert_eq!(problem(r#"{"key": ""}"#), "row 3: key: \"\" has 0 bytes; use 1 to 5");
        assert_eq!(problem(r#"{"key": 7}"#), "row 3: key: 7 is not a string; put it in quotes");
        assert!(
            problem(r#"{"key": "a\u0000"}"#).ends_with("contains the control character U+0000; remove it")
        );
        let missing = read("{}", |fields| fields.required_text("key", 5)).unwrap_err();
        assert_eq!(missing, ["row 3: key: is missing; it must be a string"]);
    }

    #[test]
    fn sizes_are_two_sane_sides() {
        let size = |fields: &mut JsonFields| fields.size("key", 4096);
        assert_eq!(read(r#"{"key": [320, 240]}"#, size), Ok(Size::new(320, 240)));
        for bad in
            ["[320]", "[320,240,1]", "[0,240]", "[5000,240]", "[320,-1]", "\"320x240\"", "[4294967616,240]"]
        {
            assert!(read(&format!(r#"{{"key": {bad}}}"#), size).is_err(), "{bad}");
        }
    }

    #[test]
    fn unknown_keys_are_refused() {
        let map = serde_json::from_str(r#"{"value": 1, "tolerence": 2}"#).unwrap();
        let mut problems = Vec::new();
        let mut fields = JsonFields::new(&map, "score.", &mut problems);
        fields.any_number("value");
        fields.any_number("tolerance");
        fields.refuse_unknown();
        assert_eq!(problems, ["score.tolerence: unknown key; known here: value, tolerance"]);
    }
}
