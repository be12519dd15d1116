//! Comparisons: what was said, by an answer or by a page's report, against what is right.

use serde_json::Value;

use super::date::{DateRule, day_of};
use super::number::{Nearness, number_of};
use super::text::{holds, normalized, states, without};
use crate::fields::Fields;

/// Longest right answer.
const VALUE_BYTES_MAX: usize = 4096;

/// Values of one comparison.
const VALUES_MAX: usize = 100;

/// How two things are compared.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Comparison {
    /// Letter for letter one of the values.
    Exact,
    /// One of the values, apart from case, spacing, quotes and final punctuation.
    Normalized,
    /// The one number in it is near enough.
    Number(Nearness),
    /// The one day in it is near enough.
    Date(DateRule),
    /// A list of just these values, in any order or in this one.
    Set {
        /// Whether the order counts.
        ordered: bool,
    },
    /// States all values as whole words, and none of these others.
    MustInclude {
        /// Normalized.
        among: Vec<String>,
    },
    /// Holds none of the values as whole words.
    MustNotInclude,
}

#[derive(Clone, Copy)]
enum Match {
    Exact,
    Normalized,
    Number,
    Date,
    Set,
    MustInclude,
    MustNotInclude,
}

const MATCHES: [(&str, Match); 7] = [
    ("exact", Match::Exact),
    ("normalized", Match::Normalized),
    ("number", Match::Number),
    ("date", Match::Date),
    ("set", Match::Set),
    ("must_include", Match::MustInclude),
    ("must_not_include", Match::MustNotInclude),
];

impl Comparison {
    /// Keys: `match`; under `number` also `tolerance`, `relative_tolerance`, `unit`; under `date` `order`, `tolerance_days`,
    /// `year_optional`; under `set` `ordered`; under `must_include` `among`.
    pub(super) fn read(fields: &mut Fields) -> Option<Self> {
        if !fields.has("match") {
            let known = MATCHES.map(|(word, _)| word).join(", ");
            fields.problem("match", format!("is missing; use one of {known}"));
            return None;
        }
        Some(match fields.word("match", &MATCHES)? {
            Match::Exact => Self::Exact,
            Match::Normalized => Self::Normalized,
            Match::Number => Self::Number(Nearness::read(fields)),
            Match::Date => Self::Date(DateRule::read(fields)),
            Match::Set => Self::Set { ordered: read_flag(fields, "ordered") },
            Match::MustInclude => Self::MustInclude { among: read_among(fields) },
            Match::MustNotInclude => Self::MustNotInclude,
        })
    }

    /// What is right, from the key `value`: a text or a list of texts, under `number` a number, under `date` `YYYY-MM-DD`.
    pub(super) fn read_value(&self, fields: &mut Fields) -> Option<Vec<Value>> {
        match self {
            Self::Number(_) => return fields.any_number("value").map(|value| vec![value.into()]),
            Self::Date(_) => {
                let text = fields.text("value", 10)?;
                let value = Value::from(text);
                return match day_of(std::slice::from_ref(&value)) {
                    Ok(_) => Some(vec![value]),
                    Err(_) => fields.refuse("value", &value, "is no day", "write it as 2024-02-29"),
                };
            }
            _ => {}
        }
        let texts = fields.texts("value", VALUES_MAX, VALUE_BYTES_MAX)?;
        let ignored = |text: &String| *self != Self::Exact && normalized(text).is_empty();
        if let Some(text) = texts.iter().find(|text| ignored(text)) {
            let problem = "is only spaces and punctuation, which this match ignores";
            return fields.refuse("value", &Value::from(text.as_str()), problem, "use match exact");
        }
        Some(texts.into_iter().map(Value::from).collect())
    }

    /// Whether it is right, and why; an error says what is wrong with `expected`.
    pub(super) fn compare(&self, said: &str, expected: &[Value]) -> Result<(bool, String), String> {
        match self {
            Self::Number(nearness) => return Ok(nearness.compare(said, number_of(expected)?)),
            Self::Date(rule) => return Ok(rule.compare(said, day_of(expected)?)),
            _ => {}
        }
        let values: Vec<&str> = expected.iter().filter_map(Value::as_str).collect();
        if values.is_empty() || values.len() < expected.len() {
            return Err("what it expects is no text".to_owned());
        }
        if *self == Self::Exact {
            return Ok(equal(values.contains(&said)));
        }
        let values: Vec<String> = values.into_iter().map(normalized).collect();
        if values.iter().any(String::is_empty) {
            return Err("what it expects is only spaces and punctuation".to_owned());
        }
        Ok(match self {
            Self::Set { ordered } => same_items(items_of(said), values, *ordered),
            Self::MustInclude { among } => includes_all(&normalized(said), &values, among),
            Self::MustNotInclude => includes_none(&normalized(said), &values),
            _ => equal(values.contains(&normalized(said))),
        })
    }
}

fn includes_all(said: &str, values: &[String], among: &[String]) -> (bool, String) {
    if let Some(missing) = values.iter().find(|value| !states(said, value)) {
        return (false, format!("the answer lacks {missing:?}"));
    }
    let rest = without(said, values);
    let others = among.iter().filter(|other| !values.contains(other));
    match others.into_iter().find(|other| states(&rest, other)) {
        Some(other) => (false, format!("the answer names {other:?} as well")),
        None => (true, "the answer holds all that it must".to_owned()),
    }
}

fn includes_none(said: &str, values: &[String]) -> (bool, String) {
    match values.iter().find(|value| holds(said, value)) {
        None => (true, "the answer holds nothing that it must not".to_owned()),
        Some(found) => (false, format!("the answer holds {found:?}")),
    }
}

fn same_items(mut said: Vec<String>, mut values: Vec<String>, ordered: bool) -> (bool, String) {
    if !ordered {
        said.sort();
        said.dedup();
        values.sort();
        values.dedup();
    }
    if let Some(extra) = said.iter().find(|item| !values.contains(item)) {
        return (
            false,
            format!("the answer lists {:?}, which is none of the values", crate::fields::short(extra)),
        );
    }
    if let Some(missing) = values.iter().find(|value| !said.contains(value)) {
        return (false, format!("the answer lacks {missing:?}"));
    }
    let same = said == values;
    (
        same,
        if same { "the answer lists just the values" } else { "the answer lists the values otherwise" }
            .to_owned(),
    )
}

/// The items of a list: a JSON list of texts, or what stands between commas, semicolons, line ends and `and`; numbers and bullets
/// before them and a sentence that ends in a colon are left out.
fn items_of(said: &str) -> Vec<String> {
    if let Ok(items) = serde_json::from_str::<Vec<String>>(said.trim()) {
        return items.iter().map(|item| normalized(item)).collect();
    }
    let list = match said.split_once(':') {
        Some((before, list)) if !before.contains([',', ';', '\n']) && !list.trim().is_empty() => list,
        _ => said,
    };
    let parts = list.split([',', ';', '\n', '，', '、']);
    let parts =
        parts.flat_map(|part| part.split(" and ")).map(|part| part.trim_start().trim_start_matches("and "));
    parts.map(|part| normalized(without_bullet(part))).filter(|item| !item.is_empty()).collect()
}

/// `1. red`, `2) blue`, `- green`, `• grey`.
fn without_bullet(item: &str) -> &str {
    let item = item.trim_start_matches(['-', '*', '•', '–', ' ']);
    let rest = item.trim_start_matches(|c: char| c.is_ascii_digit());
    match rest.strip_prefix(['.', ')']) {
        Some(text) if rest.len() < item.len() && text.starts_with(' ') => text.trim_start(),
        _ => item,
    }
}

fn equal(right: bool) -> (bool, String) {
    let word = if right { "is" } else { "is not" };
    (right, format!("the answer {word} the expected one"))
}

fn read_among(fields: &mut Fields) -> Vec<String> {
    let among: Vec<String> = fields
        .texts("among", VALUES_MAX, VALUE_BYTES_MAX)
        .unwrap_or_default()
        .iter()
        .map(|text| normalized(text))
        .collect();
    if among.iter().any(String::is_empty) {
        fields.problem("among", "holds a text of only spaces and punctuation; leave it out");
    }
    among
}

pub(super) fn read_flag(fields: &mut Fields, key: &'static str) -> bool {
    match fields.value(key) {
        None => false,
        Some(Value::Bool(flag)) => *flag,
        Some(other) => {
            fields.refuse::<()>(key, other, "is no flag", "use true or false");
            false
        }
    }
}
