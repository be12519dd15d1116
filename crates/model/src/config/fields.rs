//! Reads the keys of one section of a configuration, and notes what is wrong instead of stopping at it.

use std::cell::RefCell;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::json;
use super::problems::{Problem, Problems};

/// Characters of a value that an error repeats.
const SHOWN_MAX: usize = 80;

/// One section. A wrong value is noted and a harmless one is handed on, so that reading goes on to the next problem.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    section: &'a str,
    values: &'a Map<String, Value>,
    problems: &'a RefCell<Problems>,
}

impl<'a> Fields<'a> {
    /// A section whose keys are called `{section}{key}`.
    pub(super) fn new(
        section: &'a str,
        values: &'a Map<String, Value>,
        problems: &'a RefCell<Problems>,
    ) -> Self {
        Self { section, values, problems }
    }

    /// The section a key of this one holds, `name` being its whole path.
    pub(super) fn section(&self, key: &str, name: &'a str) -> Option<Fields<'a>> {
        let value = self.value(key)?;
        let values = value.as_object();
        if values.is_none() {
            self.wrong(key, "an object belongs here");
        }
        values.map(|values| Fields::new(name, values, self.problems))
    }

    /// The value of a key; null counts as absent.
    pub(super) fn value(&self, key: &str) -> Option<&'a Value> {
        self.values.get(key).filter(|value| !value.is_null())
    }

    /// The first of several names that is there. Where two are there they must agree.
    pub(super) fn find<'k>(&self, keys: &[&'k str]) -> Option<(&'k str, &'a Value)> {
        let mut found = keys.iter().filter_map(|key| self.value(key).map(|value| (*key, value)));
        let first = found.next()?;
        for (key, _) in found.filter(|(_, value)| *value != first.1) {
            self.wrong(
                key,
                &format!("`{}{}` is {}; keep one of the two", self.section, first.0, shown(first.1)),
            );
        }
        Some(first)
    }

    /// A whole number that must be there, under the first of these names or another.
    pub(super) fn count(&self, keys: &[&str], range: RangeInclusive<usize>) -> usize {
        if self.find(keys).is_none() {
            let right = format!("a whole number from {} to {} belongs here", range.start(), range.end());
            self.wrong(keys[0], &right);
        }
        let harmless = *range.start();
        self.count_or(keys, range, harmless)
    }

    /// A whole number, or a default where the key is absent.
    pub(super) fn count_or(&self, keys: &[&str], range: RangeInclusive<usize>, default: usize) -> usize {
        let Some((key, value)) = self.find(keys) else { return default };
        let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
        count.filter(|count| range.contains(count)).unwrap_or_else(|| {
            self.wrong(
                key,
                &format!("a whole number from {} to {} belongs here", range.start(), range.end()),
            );
            *range.start()
        })
    }

    /// A number, or a default where the key is absent.
    pub(super) fn number_or(&self, keys: &[&str], range: RangeInclusive<f64>, default: f64) -> f64 {
        let Some((key, value)) = self.find(keys) else { return default };
        json::number(value).filter(|number| range.contains(number)).unwrap_or_else(|| {
            self.wrong(key, &format!("a number from {} to {} belongs here", range.start(), range.end()));
            default
        })
    }

    /// True or false, or a default where the key is absent.
    pub(super) fn flag_or(&self, key: &str, default: bool) -> bool {
        let Some(value) = self.value(key) else { return default };
        value.as_bool().unwrap_or_else(|| {
            self.wrong(key, "true or false belongs here");
            default
        })
    }

    /// A string, or a default where the key is absent.
    pub(super) fn word_or(&self, keys: &[&str], default: &str) -> String {
        let Some((key, value)) = self.find(keys) else { return default.into() };
        value.as_str().map(String::from).unwrap_or_else(|| {
            self.wrong(key, "a string belongs here");
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
                    format!("a list of three numbers from {} to {} belongs here", range.start(), range.end());
                self.wrong(key, &right);
                default
            }
        }
    }

    /// Refuses a key whose value, where it is there, is none of these.
    pub(super) fn only(&self, key: &str, allowed: &[Value], why: &str) {
        if self.value(key).is_some_and(|value| !allowed.contains(value)) {
            let allowed: Vec<String> = allowed.iter().map(Value::to_string).collect();
            self.wrong(key, &format!("only {} is supported; {why}", allowed.join(" or ")));
        }
    }

    /// Refuses a key that is there at all.
    pub(super) fn none(&self, key: &str, why: &str) {
        if self.value(key).is_some() {
            self.wrong(key, why);
        }
    }

    /// Notes that a key is wrong, and what would be right.
    pub(super) fn wrong(&self, key: &str, right: &str) {
        let found = self.value(key).map_or_else(|| String::from("missing"), shown);
        let problem = Problem { key: format!("{}{key}", self.section), found, right: right.into() };
        let mut problems = self.problems.borrow_mut();
        if !problems.0.iter().any(|known| known.key == problem.key) {
            problems.0.push(problem);
        }
    }

    /// Whether nothing was wrong so far: what compares several keys asks this first, so that one mistake is told once.
    pub(super) fn all_right(&self) -> bool {
        self.problems.borrow().0.is_empty()
    }
}

/// A value as an error shows it.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
