//! Reads the keys of one section of a configuration. Records what is wrong and continues, so that
//! one error lists all problems.

use std::cell::RefCell;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::json;
use super::problems::{ConfigProblem, ConfigProblems};

/// Characters of a value that an error shows.
const VALUE_CHARS_MAX: usize = 80;

/// One section. For a wrong value it records a problem and returns a harmless one, so that reading
/// finds the next problem.
#[derive(Clone, Copy)]
pub(super) struct ConfigSection<'a> {
    section: &'a str,
    values: &'a Map<String, Value>,
    problems: &'a RefCell<ConfigProblems>,
}

impl<'a> ConfigSection<'a> {
    /// A section whose keys are reported as `{section}{key}`.
    pub(super) fn new(
        section: &'a str,
        values: &'a Map<String, Value>,
        problems: &'a RefCell<ConfigProblems>,
    ) -> Self {
        Self { section, values, problems }
    }

    /// The section in a key of this one; `name` is its full path.
    pub(super) fn section(&self, key: &str, name: &'a str) -> Option<ConfigSection<'a>> {
        let value = self.value(key)?;
        let values = value.as_object();
        if values.is_none() {
            self.note_problem(key, "expected an object");
        }
        values.map(|values| ConfigSection::new(name, values, self.problems))
    }

    /// The value of a key; null counts as absent.
    pub(super) fn value(&self, key: &str) -> Option<&'a Value> {
        self.values.get(key).filter(|value| !value.is_null())
    }

    /// The first of several names that is present. If two are present, they must agree.
    pub(super) fn find<'k>(&self, keys: &[&'k str]) -> Option<(&'k str, &'a Value)> {
        let mut found = keys.iter().filter_map(|key| self.value(key).map(|value| (*key, value)));
        let first = found.next()?;
        for (key, _) in found.filter(|(_, value)| *value != first.1) {
            self.note_problem(
                key,
                &format!(
                    "`{}{}` is {}; keep one of the two",
                    self.section,
                    first.0,
                    displayed_value(first.1)
                ),
            );
        }
        Some(first)
    }

    /// A required whole number, under any of these names.
    pub(super) fn count(&self, keys: &[&str], range: RangeInclusive<usize>) -> usize {
        if self.find(keys).is_none() {
            let right = format!("expected a whole number from {} to {}", range.start(), range.end());
            self.note_problem(keys[0], &right);
        }
        let harmless = *range.start();
        self.count_or(keys, range, harmless)
    }

    /// A whole number, or a default where the key is absent.
    pub(super) fn count_or(&self, keys: &[&str], range: RangeInclusive<usize>, default: usize) -> usize {
        let Some((key, value)) = self.find(keys) else { return default };
        let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
        count.filter(|count| range.contains(count)).unwrap_or_else(|| {
            self.note_problem(
                key,
                &format!("expected a whole number from {} to {}", range.start(), range.end()),
            );
            *range.start()
        })
    }

    /// A number, or a default where the key is absent.
    pub(super) fn number_or(&self, keys: &[&str], range: RangeInclusive<f64>, default: f64) -> f64 {
        let Some((key, value)) = self.find(keys) else { return default };
        json::number(value).filter(|number| range.contains(number)).unwrap_or_else(|| {
            self.note_problem(key, &format!("expected a number from {} to {}", range.start(), range.end()));
            default
        })
    }

    /// True or false, or a default where the key is absent.
    pub(super) fn flag_or(&self, key: &str, default: bool) -> bool {
        let Some(value) = self.value(key) else { return default };
        value.as_bool().unwrap_or_else(|| {
            self.note_problem(key, "expected true or false");
            default
        })
    }

    /// A string, or a default where the key is absent.
    pub(super) fn string_or(&self, keys: &[&str], default: &str) -> String {
        let Some((key, value)) = self.find(keys) else { return default.into() };
        value.as_str().map(String::from).unwrap_or_else(|| {
            self.note_problem(key, "expected a string");
            default.into()
        })
    }

    /// Three numbers, or a default where the key is absent.
    pub(super) fn triple_or(&self, key: &str, range: RangeInclusive<f64>, default: [f32; 3]) -> [f32; 3] {
        let Some(value) = self.value(key) else { return default };
        let numbers: Option<Vec<f64>> =
            value.as_array().and_then(|list| list.iter().map(json::number).collect());
        match numbers.as_deref() {
            Some(&[a, b, c]) if [a, b, c].iter().all(|number| range.contains(number)) => {
                [a as f32, b as f32, c as f32]
            }
            _ => {
                let right =
                    format!("expected a list of three numbers from {} to {}", range.start(), range.end());
                self.note_problem(key, &right);
                default
            }
        }
    }

    /// Refuses a key whose value, if present, is none of these.
    pub(super) fn allow_only(&self, key: &str, allowed: &[Value], why: &str) {
        if self.value(key).is_some_and(|value| !allowed.contains(value)) {
            let allowed: Vec<String> = allowed.iter().map(Value::to_string).collect();
            self.note_problem(key, &format!("only {} is supported; {why}", allowed.join(" or ")));
        }
    }

    /// Refuses a key that is present.
    pub(super) fn refuse_key(&self, key: &str, why: &str) {
        if self.value(key).is_some() {
            self.note_problem(key, why);
        }
    }

    /// Records that a key is wrong, and what is expected.
    pub(super) fn note_problem(&self, key: &str, right: &str) {
        let found = self.value(key).map_or_else(|| String::from("missing"), displayed_value);
        let problem = ConfigProblem { key: format!("{}{key}", self.section), found, right: right.into() };
        let mut problems = self.problems.borrow_mut();
        if !problems.0.iter().any(|known| known.key == problem.key) {
            problems.0.push(problem);
        }
    }

    /// Whether no problem was recorded so far. Checks that compare several keys ask this first, so
    /// that one mistake is reported once.
    pub(super) fn has_no_problems(&self) -> bool {
        self.problems.borrow().0.is_empty()
    }
}

/// A value for an error.
fn displayed_value(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(VALUE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
