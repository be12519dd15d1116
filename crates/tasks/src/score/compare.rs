//! Comparisons of an answer or a page's report with the expected values.

use serde_json::Value;

use super::date::{DateRule, day_of};
use super::number::{NumberRule, number_of};
use super::pattern;
use super::text::{contains_value, normalized, states_value, without_values};
use crate::fields::JsonFields;

const VALUE_BYTES_MAX: usize = 4096;

/// Most values of one comparison.
const VALUES_MAX: usize = 100;

/// How two values are compared.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum AnswerComparison {
    /// Equal to one of the values, character by character.
    Exact,
    /// Equal to one of the values, ignoring case, spacing, quotes and final punctuation.
    Normalized,
    /// The only number in it is close enough.
    Number(NumberRule),
    /// The only day in it is close enough.
    Date(DateRule),
    /// A list of exactly these values, in any order or in this one.
    Set {
        /// Whether the order counts.
        ordered: bool,
    },
    /// States all values as whole words, and none of the other listed texts.
    MustInclude { among: Vec<String> },
    /// Contains none of the values as whole words.
    MustNotInclude,
    /// Contains each of the values, letter for letter apart from spacing.
    Contains,
    /// A regular expression fits a part of it.
    Regex,
}

#[derive(Clone, Copy)]
enum MatchKind {
    Exact,
    Normalized,
    Number,
    Date,
    Set,
    MustInclude,
    MustNotInclude,
    Contains,
    Regex,
}

const MATCHES: [(&str, MatchKind); 9] = [
    ("exact", MatchKind::Exact),
    ("normalized", MatchKind::Normalized),
    ("number", MatchKind::Number),
    ("date", MatchKind::Date),
    ("set", MatchKind::Set),
    ("must_include", MatchKind::MustInclude),
    ("must_not_include", MatchKind::MustNotInclude),
    ("contains", MatchKind::Contains),
    ("regex", MatchKind::Regex),
];

impl AnswerComparison {
    /// Keys: `match`; under `number` also `tolerance`, `relative_tolerance`, `unit`; under `date`
    /// `order`, `tolerance_days`,
    /// `year_optional`; under `set` `ordered`; under `must_include` `among`.
    pub(super) fn read(fields: &mut JsonFields) -> Option<Self> {
        if !fields.has("match") {
            let known = MATCHES.map(|(name, _)| name).join(", ");
            fields.problem("match", format!("is missing; use one of {known}"));
            return None;
        }
        Some(match fields.choice("match", &MATCHES)? {
            MatchKind::Exact => Self::Exact,
            MatchKind::Normalized => Self::Normalized,
            MatchKind::Number => Self::Number(NumberRule::read(fields)),
            MatchKind::Date => Self::Date(DateRule::read(fields)),
            MatchKind::Set => Self::Set { ordered: read_flag(fields, "ordered") },
            MatchKind::MustInclude => Self::MustInclude { among: read_among(fields) },
            MatchKind::MustNotInclude => Self::MustNotInclude,
            MatchKind::Contains => Self::Contains,
            MatchKind::Regex => Self::Regex,
        })
    }

    /// The expected values from the key `value`: a text or a list of texts, under `number` a
    /// number, under `date` `YYYY-MM-DD`.
    pub(super) fn read_value(&self, fields: &mut JsonFields) -> Option<Vec<Value>> {
        match self {
            Self::Number(_) => return fields.any_number("value").map(|value| vec![value.into()]),
            Self::Date(_) => {
                let text = fields.text("value", 10)?;
                let value = Value::from(text);
                return match day_of(std::slice::from_ref(&value)) {
                    Ok(_) => Some(vec![value]),
                    Err(_) => fields.refuse("value", &value, "is not a day", "write it as 2024-02-29"),
                };
            }
            Self::Regex => {
                let text = fields.text("value", pattern::BYTES_MAX)?;
                let value = Value::from(text.as_str());
                return match pattern::compile(&text) {
                    Ok(_) => Some(vec![value]),
                    Err(why) => fields.refuse("value", &value, "is not a regular expression", &why),
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

    /// A text that states these values; `None` where a comparison does not say which text is right.
    pub(super) fn stating(&self, expected: &[Value]) -> Option<String> {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        match self {
            Self::Regex | Self::MustNotInclude => None,
            Self::Set { .. } | Self::MustInclude { .. } | Self::Contains => {
                Some(expected.iter().map(text).collect::<Vec<_>>().join(", "))
            }
            Self::Exact | Self::Normalized | Self::Number(_) | Self::Date(_) => expected.first().map(text),
        }
    }

    /// Whether the text is correct, and why; an error says what is wrong with `expected`.
    pub(super) fn compare(&self, answer: &str, expected: &[Value]) -> Result<(bool, String), String> {
        match self {
            Self::Number(nearness) => return Ok(nearness.compare(answer, number_of(expected)?)),
            Self::Date(rule) => return Ok(rule.compare(answer, day_of(expected)?)),
            _ => {}
        }
        let values: Vec<&str> = expected.iter().filter_map(Value::as_str).collect();
        if values.is_empty() || values.len() < expected.len() {
            return Err("the expected value is not a text".to_owned());
        }
        if *self == Self::Exact {
            return Ok(equal(values.contains(&answer)));
        }
        match self {
            Self::Contains => return Ok(pattern::contains_all(answer, &values)),
            Self::Regex => return pattern::fits(answer, &values),
            _ => {}
        }
        let values: Vec<String> = values.into_iter().map(normalized).collect();
        if values.iter().any(String::is_empty) {
            return Err("the expected value is only spaces and punctuation".to_owned());
        }
        Ok(match self {
            Self::Set { ordered } => same_items(items_of(answer), values, *ordered),
            Self::MustInclude { among } => includes_all(&normalized(answer), &values, among),
            Self::MustNotInclude => includes_none(&normalized(answer), &values),
            _ => equal(values.contains(&normalized(answer))),
        })
    }
}

fn includes_all(answer: &str, values: &[String], among: &[String]) -> (bool, String) {
    if let Some(missing) = values.iter().find(|value| !states_value(answer, value)) {
        return (false, format!("the answer lacks {missing:?}"));
    }
    let rest = without_values(answer, values);
    let others = among.iter().filter(|other| !values.contains(other));
    match others.into_iter().find(|other| states_value(&rest, other)) {
        Some(other) => (false, format!("the answer names {other:?} as well")),
        None => (true, "the answer contains everything required".to_owned()),
    }
}

fn includes_none(answer: &str, values: &[String]) -> (bool, String) {
    match values.iter().find(|value| contains_value(answer, value)) {
        None => (true, "the answer contains nothing that is excluded".to_owned()),
        Some(found) => (false, format!("the answer contains {found:?}")),
    }
}

fn same_items(mut answer: Vec<String>, mut values: Vec<String>, ordered: bool) -> (bool, String) {
    if !ordered {
        answer.sort();
        answer.dedup();
        values.sort();
        values.dedup();
    }
    if let Some(extra) = answer.iter().find(|item| !values.contains(item)) {
        return (
            false,
            format!("the answer lists {:?}, which is not one of the values", crate::fields::short(extra)),
        );
    }
    if let Some(missing) = values.iter().find(|value| !answer.contains(value)) {
        return (false, format!("the answer lacks {missing:?}"));
    }
    let same = answer == values;
    (
        same,
        if same {
            "the answer lists exactly the values"
        } else {
            "the answer lists the values in another order or number"
        }
        .to_owned(),
    )
}

/// The items of a list: a JSON list of strings, or the texts between commas, semicolons, line ends
/// and `and`, without numbers and bullets before them and without a sentence that ends in a colon.
fn items_of(answer: &str) -> Vec<String> {
    if let Ok(items) = serde_json::from_str::<Vec<String>>(answer.trim()) {
        return items.iter().map(|item| normalized(item)).collect();
    }
    let list = match answer.split_once(':') {
        Some((before, list)) if !before.contains([',', ';', '\n']) && !list.trim().is_empty() => list,
        _ => answer,
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
    let verb = if right { "is" } else { "is not" };
    (right, format!("the answer {verb} the expected one"))
}

fn read_among(fields: &mut JsonFields) -> Vec<String> {
    let among: Vec<String> = fields
        .texts("among", VALUES_MAX, VALUE_BYTES_MAX)
        .unwrap_or_default()
        .iter()
        .map(|text| normalized(text))
        .collect();
    if among.iter().any(String::is_empty) {
        fields.problem("among", "contains a text of only spaces and punctuation; leave it out");
    }
    among
}

pub(super) fn read_flag(fields: &mut JsonFields, key: &'static str) -> bool {
    match fields.value(key) {
        None => false,
        Some(Value::Bool(flag)) => *flag,
        Some(other) => {
            fields.refuse::<()>(key, other, "is not a boolean", "use true or false");
            false
        }
    }
}
