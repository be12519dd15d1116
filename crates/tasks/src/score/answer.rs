//! What the policy answered, compared with what is right.

use std::ops::Range;

use serde_json::Value;

use super::{Case, ScoreError, Verdict};
use crate::fields::{Fields, short};
use furrow_rollout::End;

const NAME: &str = "answer";

/// Longest right answer.
const VALUE_BYTES_MAX: usize = 4096;

/// An answer longer than this is no answer; reading it whole would cost more than the page did.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// A comparison, and what is compared with.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AnswerRule {
    comparison: Comparison,
    expected: Expected,
}

/// How the answer is compared.
#[derive(Debug, Clone, PartialEq)]
enum Comparison {
    /// Letter for letter one of the values.
    Exact,
    /// One of the values, apart from case, spacing, quotes and final punctuation.
    Normalized,
    /// The one number in it is near enough.
    Number(Nearness),
    /// Holds all values as whole words.
    MustInclude,
    /// Holds none of the values as whole words.
    MustNotInclude,
}

/// Where the right answer stands.
#[derive(Debug, Clone, PartialEq)]
enum Expected {
    /// In the task's line: texts, or one number.
    Here(Vec<Value>),
    /// In the page's probe at this pointer, because the page drew it from the seed.
    Probe(String),
}

/// How far off a number may be, and what must stand beside it.
#[derive(Debug, Clone, PartialEq)]
struct Nearness {
    tolerance: f64,
    relative_tolerance: f64,
    units: Vec<String>,
}

#[derive(Clone, Copy)]
enum Match {
    Exact,
    Normalized,
    Number,
    MustInclude,
    MustNotInclude,
}

const MATCHES: [(&str, Match); 5] = [
    ("exact", Match::Exact),
    ("normalized", Match::Normalized),
    ("number", Match::Number),
    ("must_include", Match::MustInclude),
    ("must_not_include", Match::MustNotInclude),
];

impl AnswerRule {
    /// Keys: `match`; `value` (a text or a list of texts, under `number` a number) or `expected_pointer` (where the page's
    /// probe holds it); under `number` also `tolerance`, `relative_tolerance` and `unit`.
    pub(super) fn read(fields: &mut Fields) -> Option<Self> {
        if !fields.has("match") {
            fields.problem(
                "match",
                format!("is missing; use one of {}", MATCHES.map(|(word, _)| word).join(", ")),
            );
            return None;
        }
        let comparison = match fields.word("match", &MATCHES)? {
            Match::Exact => Comparison::Exact,
            Match::Normalized => Comparison::Normalized,
            Match::Number => Comparison::Number(Nearness::read(fields)),
            Match::MustInclude => Comparison::MustInclude,
            Match::MustNotInclude => Comparison::MustNotInclude,
        };
        let expected = Expected::read(fields, &comparison)?;
        Some(Self { comparison, expected })
    }

    /// Whether the page's probe holds the right answer.
    pub(super) fn needs_probe(&self) -> bool {
        matches!(self.expected, Expected::Probe(_))
    }

    pub(super) fn judge(&self, case: &Case) -> Result<Verdict, ScoreError> {
        let end = case.facts.end;
        let answer = match case.evidence.answer.as_deref() {
            None if end == End::Answered => {
                return Err(ScoreError::Missing { scorer: NAME, part: "the answer" });
            }
            None => {
                return Ok(Verdict::binary(false, format!("no answer was given before {}", end.as_str())));
            }
            Some(answer) => answer,
        };
        if answer.len() > ANSWER_BYTES_MAX {
            return Ok(Verdict::binary(false, format!("the answer is too long: {} bytes", answer.len())));
        }
        let Some(expected) = self.expected.of(case)? else {
            return Ok(Verdict::binary(false, "the final page is none of the task's".to_owned()));
        };
        let (right, why) = self.comparison.compare(answer, &expected)?;
        Ok(Verdict::binary(right, format!("{why}: {}", short(answer))))
    }
}

impl Expected {
    fn read(fields: &mut Fields, comparison: &Comparison) -> Option<Self> {
        match (fields.has("value"), fields.has("expected_pointer")) {
            (true, false) => Self::read_here(fields, comparison),
            (false, true) => fields.pointer("expected_pointer").map(Self::Probe),
            _ => {
                fields.problem(
                    "value",
                    "is missing, or there is `expected_pointer` as well; give one of the two",
                );
                None
            }
        }
    }

    fn read_here(fields: &mut Fields, comparison: &Comparison) -> Option<Self> {
        if let Comparison::Number(_) = comparison {
            return fields.any_number("value").map(|value| Self::Here(vec![value.into()]));
        }
        let texts = fields.texts("value", 100, VALUE_BYTES_MAX)?;
        let ignored = |text: &String| *comparison != Comparison::Exact && normalized(text).is_empty();
        if let Some(text) = texts.iter().find(|text| ignored(text)) {
            let problem = "is only spaces and punctuation, which this match ignores";
            return fields.refuse("value", &Value::from(text.as_str()), problem, "use match exact");
        }
        Some(Self::Here(texts.into_iter().map(Value::from).collect()))
    }

    /// The values to compare with; `None` when the page that knows them is no longer there.
    fn of(&self, case: &Case) -> Result<Option<Vec<Value>>, ScoreError> {
        let pointer = match self {
            Self::Here(values) => return Ok(Some(values.clone())),
            Self::Probe(pointer) => pointer,
        };
        let report = case.probe(NAME)?;
        if report.is_away() {
            return Ok(None);
        }
        match report.at(pointer) {
            Some(Value::Array(values)) => Ok(Some(values.clone())),
            Some(value) => Ok(Some(vec![value.clone()])),
            None => Err(unusable(format!("it has nothing at {pointer}"))),
        }
    }
}

impl Comparison {
    fn compare(&self, answer: &str, expected: &[Value]) -> Result<(bool, String), ScoreError> {
        if let Comparison::Number(nearness) = self {
            return Ok(nearness.compare(answer, number_of(expected)?));
        }
        let values: Vec<&str> = expected.iter().filter_map(Value::as_str).collect();
        if values.is_empty() || values.len() < expected.len() {
            return Err(unusable("what it expects is no text".to_owned()));
        }
        if *self == Comparison::Exact {
            return Ok(equal(values.contains(&answer)));
        }
        let answer = normalized(answer);
        let values: Vec<String> = values.into_iter().map(normalized).collect();
        if values.iter().any(String::is_empty) {
            return Err(unusable("what it expects is only spaces and punctuation".to_owned()));
        }
        Ok(self.compare_normalized(&answer, &values))
    }

    fn compare_normalized(&self, answer: &str, values: &[String]) -> (bool, String) {
        let found = values.iter().find(|value| includes(answer, value));
        let missing = values.iter().find(|value| !includes(answer, value));
        match self {
            Comparison::MustInclude => match missing {
                None => (true, "the answer holds all that it must".to_owned()),
                Some(missing) => (false, format!("the answer lacks {missing:?}")),
            },
            Comparison::MustNotInclude => match found {
                None => (true, "the answer holds nothing that it must not".to_owned()),
                Some(found) => (false, format!("the answer holds {found:?}")),
            },
            _ => equal(values.iter().any(|value| value == answer)),
        }
    }
}

impl Nearness {
    fn read(fields: &mut Fields) -> Self {
        Self {
            tolerance: fields.number("tolerance", 0.0..=1e15).unwrap_or(0.0),
            relative_tolerance: fields.number("relative_tolerance", 0.0..=1.0).unwrap_or(0.0),
            units: read_units(fields),
        }
    }

    /// Right when there is one number that counts and it is near enough; with units only numbers beside one of them count.
    /// An answer that lists several numbers has not said which it means.
    fn compare(&self, answer: &str, expected: f64) -> (bool, String) {
        let answer = normalized(answer);
        let numbers = numbers_in(&answer);
        let counts = |number: &&Number| self.units.is_empty() || self.carries_unit(&answer, number);
        let values: Vec<f64> = numbers.iter().filter(counts).map(|number| number.value).collect();
        let Some(&first) = values.first() else {
            let kind = if self.units.is_empty() { "number" } else { "number with the unit" };
            return (false, format!("the answer holds no {kind}"));
        };
        if values.iter().any(|&value| value != first) {
            return (false, "the answer holds several numbers".to_owned());
        }
        let near = self.is_near(first, expected);
        let word = if near { "is" } else { "is not" };
        (near, format!("{first} {word} near enough to {expected}"))
    }

    /// The last term forgives what binary fractions lose: 1.1 is within 0.1 of 1.
    fn is_near(&self, value: f64, expected: f64) -> bool {
        let size = expected.abs();
        (value - expected).abs() <= self.tolerance + self.relative_tolerance * size + 1e-12 * size.max(1.0)
    }

    /// `5 km`, `5km`, `km 5`, `$5`: right behind or before it, and no part of a longer word.
    fn carries_unit(&self, answer: &str, number: &Number) -> bool {
        let behind = answer[number.place.end..].trim_start();
        let before = answer[..number.place.start].trim_end();
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

/// A number as it stands in a text.
#[derive(Debug, PartialEq)]
struct Number {
    place: Range<usize>,
    value: f64,
}

/// All numbers of a normalized text, English style: `-1,234.5`, `3e8`. Digits of a name (`b2b`, `gpt-4`, `v1.2.3`) are none.
fn numbers_in(text: &str) -> Vec<Number> {
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

fn number_at(text: &str, digits: Range<usize>) -> Option<Number> {
    let plain: String = text[digits.clone()].chars().filter(|c| *c != ',').collect();
    let size = plain.parse::<f64>().ok().filter(|size| size.is_finite())?;
    let before = &text[..digits.start];
    let before = before.strip_suffix(['$', '€', '£', '¥']).unwrap_or(before);
    let Some(rest) = before.strip_suffix('-').filter(|rest| !rest.ends_with(char::is_alphanumeric)) else {
        return Some(Number { place: digits, value: size });
    };
    let start = if before.len() == digits.start { rest.len() } else { digits.start };
    Some(Number { place: start..digits.end, value: -size })
}

/// Where a number that starts here ends: digits in groups, a fraction, an exponent.
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

/// Lower case, one space between words, plain quotes and hyphens, and none of the quotes, brackets and full stops around it.
fn normalized(text: &str) -> String {
    let plain = text.chars().map(|c| match c {
        '\u{2018}' | '\u{2019}' => '\'',
        '\u{201c}' | '\u{201d}' => '"',
        '\u{2010}'..='\u{2014}' | '\u{2212}' => '-',
        other => other,
    });
    let lower = plain.collect::<String>().to_lowercase();
    let spaced = lower.split_whitespace().collect::<Vec<_>>().join(" ");
    let around = ['"', '\'', '`', '(', ')', '[', ']', '{', '}', ' '];
    let closing = ['.', ',', ';', ':', '!', '?'];
    let text = spaced.trim_start_matches(around);
    text.trim_end_matches(|c| around.contains(&c) || closing.contains(&c)).to_owned()
}

/// Whether a normalized text holds a normalized value as whole words.
fn includes(text: &str, value: &str) -> bool {
    text.match_indices(value).any(|(at, _)| stands_alone(text, at..at + value.len()))
}

/// `10` does not stand alone in `100`, `10.5`, `1,10` or ` -10`; nor does `art` in `start`.
fn stands_alone(text: &str, place: Range<usize>) -> bool {
    let (value, before, behind) = (&text[place.clone()], &text[..place.start], &text[place.end..]);
    let word_start = value.starts_with(char::is_alphanumeric);
    let word_end = value.ends_with(char::is_alphanumeric);
    let cut_before = word_start && before.ends_with(char::is_alphanumeric);
    let cut_behind = word_end && behind.starts_with(char::is_alphanumeric);
    let number_before = value.starts_with(|c: char| c.is_ascii_digit()) && number_goes_on_before(before);
    let number_behind = value.ends_with(|c: char| c.is_ascii_digit())
        && behind.strip_prefix(['.', ',']).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    !(cut_before || cut_behind || number_before || number_behind)
}

fn number_goes_on_before(before: &str) -> bool {
    let after_point =
        before.strip_suffix(['.', ',']).is_some_and(|rest| rest.ends_with(|c: char| c.is_ascii_digit()));
    let after_minus = before.strip_suffix('-').is_some_and(|rest| !rest.ends_with(char::is_alphanumeric));
    after_point || after_minus
}

fn equal(right: bool) -> (bool, String) {
    let word = if right { "is" } else { "is not" };
    (right, format!("the answer {word} the expected one"))
}

/// Units as they look in a normalized answer.
fn read_units(fields: &mut Fields) -> Vec<String> {
    let units: Vec<String> =
        fields.texts("unit", 50, 64).unwrap_or_default().iter().map(|unit| normalized(unit)).collect();
    if units.iter().any(String::is_empty) {
        fields.problem("unit", "is only spaces and punctuation; use a unit such as km or $");
    }
    units
}

/// The one number expected; a page may have written it as text.
fn number_of(expected: &[Value]) -> Result<f64, ScoreError> {
    let number = match expected {
        [Value::Number(number)] => number.as_f64(),
        [Value::String(text)] => text.trim().parse().ok(),
        _ => None,
    };
    number
        .filter(|number| number.is_finite())
        .ok_or_else(|| unusable("what it expects is no number".to_owned()))
}

fn unusable(problem: String) -> ScoreError {
    ScoreError::Unusable { scorer: NAME, part: "the page probe", problem }
}
