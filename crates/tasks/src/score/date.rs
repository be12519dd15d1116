//! Days in an answer: `2024-02-29`, `February 29th, 2024`, `29 Feb 2024`, and `2/29/2024` where the
//! order of the parts is clear.

use std::ops::Range;

use serde_json::Value;
use time::{Date, Month};

use super::text::{is_negated, normalized};
use crate::fields::JsonFields;

const MONTHS: [(&str, Month); 24] = [
    ("january", Month::January),
    ("february", Month::February),
    ("march", Month::March),
    ("april", Month::April),
    ("may", Month::May),
    ("june", Month::June),
    ("july", Month::July),
    ("august", Month::August),
    ("september", Month::September),
    ("october", Month::October),
    ("november", Month::November),
    ("december", Month::December),
    ("jan", Month::January),
    ("feb", Month::February),
    ("mar", Month::March),
    ("apr", Month::April),
    ("jun", Month::June),
    ("jul", Month::July),
    ("aug", Month::August),
    ("sept", Month::September),
    ("sep", Month::September),
    ("oct", Month::October),
    ("nov", Month::November),
    ("dec", Month::December),
];

/// How days are parsed, and the tolerance.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DateRule {
    /// Order of days written in numbers alone; `None` accepts only those where one part cannot be a
    /// month.
    order: Option<DateOrder>,
    tolerance_days: i64,
    /// Whether a day without its year is accepted.
    year_optional: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum DateOrder {
    MonthFirst,
    DayFirst,
}

/// A day as written in a text.
#[derive(Debug, Clone, Copy, PartialEq)]
enum StatedDay {
    Day(Date),
    /// A day without its year.
    DayOfYear(Month, u8),
    /// A day that is ambiguous or does not exist: `3/4/2024`, `30 February`, `1-3 May`.
    Unclear,
}

impl DateRule {
    /// Keys: `order` (`month_first` or `day_first`), `tolerance_days`, `year_optional`.
    pub(super) fn read(fields: &mut JsonFields) -> Self {
        let year_optional = match fields.value("year_optional") {
            None => false,
            Some(Value::Bool(optional)) => *optional,
            Some(other) => {
                fields.refuse::<()>("year_optional", other, "is not a boolean", "use true or false");
                false
            }
        };
        Self {
            order: fields.choice(
                "order",
                &[("month_first", DateOrder::MonthFirst), ("day_first", DateOrder::DayFirst)],
            ),
            tolerance_days: fields.integer("tolerance_days", 0..=36_525).unwrap_or(0) as i64,
            year_optional,
        }
    }

    /// Correct if all stated days are the same day, and it is the expected one or close enough.
    pub(super) fn compare(&self, answer: &str, expected: Date) -> (bool, String) {
        let answer = normalized(answer);
        let stated: Vec<StatedDay> = days_in(&answer, self.order)
            .into_iter()
            .filter(|(span, _)| !is_negated(&answer, span))
            .map(|(_, stated)| stated)
            .collect();
        if stated.is_empty() {
            return (false, "the answer states no day".to_owned());
        }
        if stated.contains(&StatedDay::Unclear) {
            return (false, "the answer contains an ambiguous day".to_owned());
        }
        let days: Option<Vec<Date>> =
            stated.iter().map(|stated| self.resolve_year(*stated, expected)).collect();
        let Some(days) = days else {
            return (false, "the answer states a day without its year".to_owned());
        };
        if days.iter().any(|day| *day != days[0]) {
            return (false, "the answer contains several days".to_owned());
        }
        let off = (days[0] - expected).whole_days().abs();
        let near = off <= self.tolerance_days;
        let verb = if near { "is" } else { "is not" };
        (near, format!("{} {verb} near enough to {expected}", days[0]))
    }

    /// Resolves a day without its year to the expected year, if that is allowed.
    fn resolve_year(&self, stated: StatedDay, expected: Date) -> Option<Date> {
        match stated {
            StatedDay::Day(day) => Some(day),
            StatedDay::DayOfYear(month, day) if self.year_optional => {
                Date::from_calendar_date(expected.year(), month, day).ok()
            }
            _ => None,
        }
    }
}

/// The only expected day, `YYYY-MM-DD`.
pub(super) fn day_of(expected: &[Value]) -> Result<Date, String> {
    let text = match expected {
        [Value::String(text)] => text.as_str(),
        _ => return Err("the expected value is not a day".to_owned()),
    };
    read_day(text).ok_or_else(|| "the expected value is not a day such as 2024-02-29".to_owned())
}

/// `YYYY-MM-DD` and nothing else.
pub(crate) fn read_day(text: &str) -> Option<Date> {
    let parts: Vec<&str> = text.split('-').collect();
    let [year, month, day] = parts[..] else { return None };
    let digits =
        |part: &str, count: usize| part.len() == count && part.bytes().all(|byte| byte.is_ascii_digit());
    if !(digits(year, 4) && digits(month, 2) && digits(day, 2)) {
        return None;
    }
    let month = Month::try_from(month.parse::<u8>().ok()?).ok()?;
    Date::from_calendar_date(year.parse().ok()?, month, day.parse().ok()?).ok()
}

/// A word or a number of a text.
#[derive(Debug, Clone, Copy)]
struct DateToken<'a> {
    text: &'a str,
    start: usize,
    end: usize,
}

/// All days of a normalized text, with their positions.
fn days_in(text: &str, order: Option<DateOrder>) -> Vec<(Range<usize>, StatedDay)> {
    let tokens = tokens(text);
    let mut days = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match day_at(text, &tokens[at..], order) {
            Some((used, stated)) => {
                days.push((tokens[at].start..tokens[at + used - 1].end, stated));
                at += used;
            }
            None => at += 1,
        }
    }
    days
}

/// Runs of letters and runs of digits; the text between them is looked up when needed.
fn tokens(text: &str) -> Vec<DateToken<'_>> {
    let class = |c: char| if c.is_ascii_digit() { 1 } else { u8::from(c.is_alphabetic()) * 2 };
    let mut tokens = Vec::new();
    let mut start = 0;
    let mut kind = 0;
    for (at, c) in text.char_indices().chain([(text.len(), ' ')]) {
        let now = class(c);
        if now != kind {
            if kind != 0 {
                tokens.push(DateToken { text: &text[start..at], start, end: at });
            }
            (start, kind) = (at, now);
        }
    }
    tokens
}

/// The number of tokens of the day that begins here, and the day.
fn day_at(text: &str, tokens: &[DateToken], order: Option<DateOrder>) -> Option<(usize, StatedDay)> {
    let first = tokens.first()?;
    if let Some(month) = month_of(first.text) {
        return after_month(text, tokens, month);
    }
    let number: u32 = number_of(first)?;
    let gap = |index: usize| tokens.get(index + 1).map(|next| &text[tokens[index].end..next.start]);
    if let (Some(sign @ ("-" | "/" | ".")), Some(second_sign)) = (gap(0), gap(1))
        && sign == second_sign
        && let [_, second, third, ..] = tokens
        && let (Some(b), Some(c)) = (number_of(second), number_of(third))
    {
        return Some((3, in_numbers((first.text, number), b, (third.text, c), order)));
    }
    before_month(text, tokens, number)
}

/// `29 feb 2024`, `29th of february`.
fn before_month(text: &str, tokens: &[DateToken], day: u32) -> Option<(usize, StatedDay)> {
    let mut at = 1;
    at += usize::from(is_ordinal_end(text, tokens, at));
    at += usize::from(tokens.get(at).is_some_and(|token| token.text == "of"));
    let month = month_of(tokens.get(at)?.text)?;
    let between = &text[tokens[0].end..tokens[at].start];
    if between.contains(['.', ';', '!', '?', ':']) {
        return None;
    }
    // `1-3 may`: the parsed day is the end of a range.
    let range = text[..tokens[0].start].ends_with('-')
        && text[..tokens[0].start - 1].ends_with(|c: char| c.is_ascii_digit());
    let year = tokens.get(at + 1).filter(|token| is_year(token.text));
    let used = at + 1 + usize::from(year.is_some());
    let stated = stated_day(year.and_then(|year| year.text.parse().ok()), month, day);
    Some((used, if range { StatedDay::Unclear } else { stated }))
}

/// `february 29th, 2024`, `feb. 29`. `february 2024` and `may` alone are not days.
fn after_month(text: &str, tokens: &[DateToken], month: Month) -> Option<(usize, StatedDay)> {
    let day = tokens.get(1)?;
    let gap = &text[tokens[0].end..day.start];
    if is_year(day.text) || !matches!(gap, " " | ". " | "." | " the ") {
        return None;
    }
    let number = number_of(day)?;
    let mut at = 2;
    at += usize::from(is_ordinal_end(text, tokens, at));
    // `may 1-3`, `may 1 to 3`: a range of days.
    let behind = text[tokens[at - 1].end..].trim_start();
    let range = ["-", "to ", "through ", "until "].iter().any(|sign| {
        behind
            .strip_prefix(sign)
            .is_some_and(|rest| rest.trim_start().starts_with(|c: char| c.is_ascii_digit()))
    });
    let year = tokens.get(at).filter(|token| is_year(token.text));
    let close = year.is_some_and(|year| matches!(text[tokens[at - 1].end..year.start].trim(), "" | ","));
    let year = year.filter(|_| close);
    let stated = stated_day(year.and_then(|year| year.text.parse().ok()), month, number);
    Some((at + usize::from(year.is_some()), if range { StatedDay::Unclear } else { stated }))
}

/// Three numbers with the same separator between them.
fn in_numbers(a: (&str, u32), b: u32, c: (&str, u32), order: Option<DateOrder>) -> StatedDay {
    let date = |year: u32, month: u32, day: u32| {
        let month = u8::try_from(month).ok().and_then(|month| Month::try_from(month).ok());
        month.map_or(StatedDay::Unclear, |month| stated_day(i32::try_from(year).ok(), month, day))
    };
    if is_year(a.0) {
        return date(a.1, b, c.1);
    }
    if !is_year(c.0) {
        return StatedDay::Unclear;
    }
    match order {
        Some(DateOrder::MonthFirst) => date(c.1, a.1, b),
        Some(DateOrder::DayFirst) => date(c.1, b, a.1),
        None if a.1 > 12 => date(c.1, b, a.1),
        None if b > 12 || a.1 == b => date(c.1, a.1, b),
        None => StatedDay::Unclear,
    }
}

fn stated_day(year: Option<i32>, month: Month, day: u32) -> StatedDay {
    let Ok(day) = u8::try_from(day) else { return StatedDay::Unclear };
    match year {
        Some(year) => Date::from_calendar_date(year, month, day).map_or(StatedDay::Unclear, StatedDay::Day),
        // 2024 had every possible day of a year.
        None => match Date::from_calendar_date(2024, month, day) {
            Ok(_) => StatedDay::DayOfYear(month, day),
            Err(_) => StatedDay::Unclear,
        },
    }
}

fn month_of(text: &str) -> Option<Month> {
    MONTHS.iter().find(|(name, _)| *name == text).map(|(_, month)| *month)
}

fn number_of(token: &DateToken) -> Option<u32> {
    token.text.parse().ok().filter(|_| token.text.len() <= 4)
}

fn is_year(text: &str) -> bool {
    text.len() == 4 && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `st`, `nd`, `rd`, `th` directly after a number.
fn is_ordinal_end(text: &str, tokens: &[DateToken], at: usize) -> bool {
    tokens.get(at).is_some_and(|token| {
        matches!(token.text, "st" | "nd" | "rd" | "th") && text[tokens[at - 1].end..token.start].is_empty()
    })
}
