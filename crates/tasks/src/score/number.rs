//! Numbers in an answer, with unit and tolerance.

use std::ops::Range;

use serde_json::Value;

use super::text::{is_combining, is_negated, normalized};
use crate::fields::JsonFields;

/// Phrases that make the following number a bound: `at least 5` does not state 5.
const BOUNDS: [&str; 22] = [
    "more than",
    "greater than",
    "higher than",
    "less than",
    "fewer than",
    "lower than",
    "at least",
    "at most",
    "up to",
    "no more than",
    "no less than",
    "over",
    "under",
    "above",
    "below",
    "beyond",
    "exceeds",
    "<",
    ">",
    "≤",
    "≥",
    "≠",
];

/// Tolerance of a number, and the unit that must accompany it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NumberRule {
    tolerance: f64,
    relative_tolerance: f64,
    units: Vec<String>,
}

/// A number in a text. Its value is NaN if it is ambiguous: `5²`, `5½`, a struck-out `5̶`.
#[derive(Debug, PartialEq)]
struct FoundNumber {
    span: Range<usize>,
    value: f64,
}

impl NumberRule {
    /// Keys: `tolerance`, `relative_tolerance`, `unit`.
    pub(super) fn read(fields: &mut JsonFields) -> Self {
        Self {
            tolerance: fields.number("tolerance", 0.0..=1e15).unwrap_or(0.0),
            relative_tolerance: fields.number("relative_tolerance", 0.0..=1.0).unwrap_or(0.0),
            units: read_units(fields),
        }
    }

    /// Correct if exactly one number counts and it is close enough. A negated number or a bound
    /// does not count; with units only numbers beside one of them do. An answer with several
    /// numbers does not say which one it means.
    pub(super) fn compare(&self, answer: &str, expected: f64) -> (bool, String) {
        let answer = normalized(answer);
        let numbers = numbers_in(&answer);
        let counts = |number: &&FoundNumber| {
            (self.units.is_empty() || self.carries_unit(&answer, number))
                && !is_negated(&answer, &number.span)
                && !is_bound(&answer, &number.span)
        };
        let values: Vec<f64> = numbers.iter().filter(counts).map(|number| number.value).collect();
        let Some(&first) = values.first() else {
            let kind = if self.units.is_empty() { "number" } else { "number with the unit" };
            return (false, format!("the answer states no {kind}"));
        };
        if values.iter().any(|value| value.is_nan()) {
            return (false, "the answer contains an ambiguous number".to_owned());
        }
        if values.iter().any(|&value| value != first) {
            return (false, "the answer contains several numbers".to_owned());
        }
        let near = self.is_near(first, expected);
        let verb = if near { "is" } else { "is not" };
        (near, format!("{first} {verb} near enough to {expected}"))
    }

    /// The last term allows for rounding of binary fractions: 1.1 is within 0.1 of 1.
    fn is_near(&self, value: f64, expected: f64) -> bool {
        let size = expected.abs();
        (value - expected).abs() <= self.tolerance + self.relative_tolerance * size + 1e-12 * size.max(1.0)
    }

    /// `5 km`, `5km`, `km 5`, `$5`: directly after or before it, and not part of a longer word.
    fn carries_unit(&self, answer: &str, number: &FoundNumber) -> bool {
        let behind = answer[number.span.end..].trim_start();
        let before = answer[..number.span.start].trim_end();
        let goes_on = |edge: Option<char>, neighbour: Option<char>| {
            edge.is_some_and(char::is_alphanumeric) && neighbour.is_some_and(char::is_alphanumeric)
        };
        self.units.iter().any(|unit| {
            let follows = behind.strip_prefix(unit.as_str());
            let leads = before.strip_suffix(unit.as_str());
            follows.is_some_and(|rest| !goes_on(unit.chars().last(), rest.chars().next()))
                || leads.is_some_and(|rest| !goes_on(unit.chars().next(), rest.chars().last()))
        })
    }
}

/// The only expected number; a page may have written it as text.
pub(super) fn number_of(expected: &[Value]) -> Result<f64, String> {
    let number = match expected {
        [Value::Number(number)] => number.as_f64(),
        [Value::String(text)] => text.trim().parse().ok(),
        _ => None,
    };
    number.filter(|number| number.is_finite()).ok_or_else(|| "the expected value is not a number".to_owned())
}

fn is_bound(text: &str, span: &Range<usize>) -> bool {
    let before = text[..span.start].trim_end_matches(['$', '€', '£', '¥', ' ', '-', '=']);
    BOUNDS.iter().any(|bound| {
        before.strip_suffix(bound).is_some_and(|rest| {
            !bound.starts_with(char::is_alphabetic) || !rest.ends_with(char::is_alphanumeric)
        })
    })
}

/// All numbers of a normalized text, in English notation: `-1,234.5`, `3e8`. Digits of a name
/// (`b2b`, `gpt-4`, `v1.2.3`) do not count.
fn numbers_in(text: &str) -> Vec<FoundNumber> {
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut numbers = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let starts = is_digit(at) || (bytes[at] == b'.' && is_digit(at + 1));
        if !starts {
            at += 1;
            continue;
        }
        let end = number_end(bytes, at);
        if !belongs_to_name(text, at) {
            numbers.extend(number_at(text, at..end));
        }
        at = end;
    }
    numbers
}

fn number_at(text: &str, digits: Range<usize>) -> Option<FoundNumber> {
    let plain: String = text[digits.clone()].chars().filter(|c| *c != ',').collect();
    let size = plain.parse::<f64>().ok().filter(|size| size.is_finite())?;
    let next = text[digits.end..].chars().next();
    let goes_on = next.is_some_and(|c| is_combining(c) || (c.is_numeric() && !c.is_ascii()));
    let size = if goes_on { f64::NAN } else { size };
    let before = &text[..digits.start];
    let before = before.strip_suffix(['$', '€', '£', '¥']).unwrap_or(before);
    let Some(rest) = before.strip_suffix('-').filter(|rest| !rest.ends_with(char::is_alphanumeric)) else {
        return Some(FoundNumber { span: digits, value: size });
    };
    let start = if before.len() == digits.start { rest.len() } else { digits.start };
    Some(FoundNumber { span: start..digits.end, value: -size })
}

/// The end of a number that starts here: digits in groups, a fraction, an exponent.
fn number_end(bytes: &[u8], start: usize) -> usize {
    let mut at = grouped_end(bytes, start);
    if bytes.get(at) == Some(&b'.') && digits_end(bytes, at + 1) > at + 1 {
        at = digits_end(bytes, at + 1);
    }
    if bytes.get(at) == Some(&b'e') {
        let power = at + 1 + usize::from(matches!(bytes.get(at + 1), Some(b'-' | b'+')));
        let end = digits_end(bytes, power);
        let closed = !bytes.get(end).is_some_and(u8::is_ascii_alphanumeric);
        if end > power && closed {
            at = end;
        }
    }
    at
}

/// `12345`, or up to three digits and then groups of exactly three: `12,345`.
fn grouped_end(bytes: &[u8], start: usize) -> usize {
    let mut at = digits_end(bytes, start);
    if at - start <= 3 && at > start {
        while bytes.get(at) == Some(&b',') && digits_end(bytes, at + 1) == at + 4 {
            at += 4;
        }
    }
    at
}

fn digits_end(bytes: &[u8], start: usize) -> usize {
    let rest = bytes.get(start..).unwrap_or_default();
    start + rest.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

fn belongs_to_name(text: &str, at: usize) -> bool {
    let before = &text[..at];
    let before_hyphen = before.strip_suffix('-').unwrap_or_default();
    let after_dot = text[at..].starts_with('.') && before.ends_with(char::is_alphanumeric);
    after_dot
        || before.ends_with(|c: char| c.is_alphabetic() || c == '_')
        || before_hyphen.ends_with(char::is_alphabetic)
}

/// Units in the form of a normalized answer.
fn read_units(fields: &mut JsonFields) -> Vec<String> {
    let units: Vec<String> =
        fields.texts("unit", 50, 64).unwrap_or_default().iter().map(|unit| normalized(unit)).collect();
    if units.iter().any(String::is_empty) {
        fields.problem("unit", "is only spaces and punctuation; use a unit such as km or $");
    }
    units
}
