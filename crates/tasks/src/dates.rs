//! Moves past days forward: WebVoyager's travel tasks name days of 2023 and 2024 that can no longer
//! be booked.
//!
//! Only tasks of booking sites are changed (`Booking`, `Google Flights`): a question about a paper
//! of 2023 or a game of last year stays unchanged. All years in a task move by the same number, the
//! smallest that brings its earliest day to the day that the job names or later, so that the length
//! of a stay and a change of year are preserved. Days without a year stay: they mean the next such
//! day. Weekdays shift against the calendar, and a 29 February that does not exist becomes the
//! 28th.

use time::{Date, Month};

/// Sites whose days must lie in the future.
pub(crate) const SITES: [&str; 2] = ["Booking", "Google Flights"];

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

/// A year in a text: its position, and the earliest day near it that belongs to it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct YearMention {
    start: usize,
    year: i32,
}

/// The text with moved years, and the number of years; `None` if there is nothing to move.
pub(crate) fn move_years(text: &str, from: Date) -> Option<(String, i32)> {
    let years = years_in(text);
    let earliest = earliest_day(text, &years)?;
    let by = (0..=100).find(|by| years_later(earliest, *by) >= from).filter(|by| *by > 0)?;
    let mut moved = text.to_owned();
    for YearMention { start, year } in years.iter().rev() {
        moved.replace_range(*start..start + 4, &(year + by).to_string());
    }
    Some((fix_leap_days(&moved), by))
}

/// The same day `by` years later.
fn years_later(day: Date, by: i32) -> Date {
    let year = day.year() + by;
    day.replace_year(year).or_else(|_| Date::from_calendar_date(year, Month::February, 28)).unwrap_or(day)
}

/// Four digits from 2000 to 2099 that are not part of a longer number or word.
fn years_in(text: &str) -> Vec<YearMention> {
    let bytes = text.as_bytes();
    let alone = |at: usize| {
        let before = at.checked_sub(1).and_then(|at| bytes.get(at));
        let is_part =
            |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'$');
        !is_part(before) && !is_part(bytes.get(at + 4))
    };
    let positions = text.match_indices("20").map(|(at, _)| at);
    let digits = |at: &usize| bytes.get(*at..at + 4).is_some_and(|four| four.iter().all(u8::is_ascii_digit));
    let year = |at: usize| Some(YearMention { start: at, year: text.get(at..at + 4)?.parse().ok()? });
    positions.filter(digits).filter(|at| alone(*at)).filter_map(year).collect()
}

/// The earliest day before a year: the months and days between it and the previous year count as
/// days of that year.
fn earliest_day(text: &str, years: &[YearMention]) -> Option<Date> {
    let mut begin = 0;
    let mut earliest: Option<Date> = None;
    for YearMention { start, year } in years {
        let span = &text[begin..*start];
        let days = days_of(span).into_iter().filter_map(|(month, day)| {
            Date::from_calendar_date(*year, Month::try_from(month).ok()?, day).ok()
        });
        earliest = days.chain(earliest).min();
        begin = start + 4;
    }
    earliest
}

/// Month names with the adjacent number, and `20/12/`.
fn days_of(span: &str) -> Vec<(u8, u8)> {
    let tokens: Vec<&str> =
        span.split(|c: char| !c.is_alphanumeric()).filter(|token| !token.is_empty()).collect();
    let number = |token: &&str| {
        let digits = token.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        digits.parse::<u8>().ok().filter(|day| (1..=31).contains(day))
    };
    let month = |token: &str| {
        let token = token.to_ascii_lowercase();
        let known = |(_, name): &(usize, &&str)| token.starts_with(**name) && token.len() >= 3;
        MONTHS.iter().enumerate().find(known).map(|(index, _)| index as u8 + 1)
    };
    let mut days = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let Some(month) = month(token) else { continue };
        let behind = tokens.get(at + 1).and_then(number);
        let before = at.checked_sub(1).and_then(|at| tokens.get(at)).and_then(number);
        days.extend(behind.or(before).map(|day| (month, day)));
    }
    if days.is_empty()
        && let [.., day, month] = tokens[..]
        && span.ends_with('/')
    {
        days.extend(number(&month).filter(|month| *month <= 12).zip(number(&day)));
    }
    days
}

/// A 29 February in a year without one becomes the 28th.
fn fix_leap_days(text: &str) -> String {
    let leap = |year: i32| Date::from_calendar_date(year, Month::February, 29).is_ok();
    if years_in(text).iter().all(|year| leap(year.year)) {
        return text.to_owned();
    }
    text.replace("February 29", "February 28")
        .replace("Feb 29", "Feb 28")
        .replace("29 February", "28 February")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn day(text: &str) -> Date {
        crate::score::date::read_day(text).unwrap()
    }

    #[test]
    fn years_move_together_until_the_earliest_day_lies_ahead() {
        let from = "2026-11-22";
        let table = [
            ("a stay from March 20-27, 2024, please", "a stay from March 20-27, 2027, please", 3),
            ("from February 28 to March 2, 2024", "from February 28 to March 2, 2027", 3),
            ("for Dec 25th - Dec 26th, 2024", "for Dec 25th - Dec 26th, 2026", 2),
            (
                "leaving December 25, 2023, back January 5, 2024",
                "leaving December 25, 2026, back January 5, 2027",
                3,
            ),
            ("for 20/12/2023 - 21/12/2023.", "for 20/12/2026 - 21/12/2026.", 3),
            ("on the 8 March 2024", "on the 8 March 2027", 3),
            ("(6 March to 8 March 2024)", "(6 March to 8 March 2027)", 3),
            ("from February 22 to February 29, 2024", "from February 22 to February 28, 2027", 3),
            ("today (February 17, 2024)", "today (February 17, 2027)", 3),
            ("departing on November 22, 2024", "departing on November 22, 2026", 2),
            ("departing on November 21, 2024", "departing on November 21, 2027", 3),
        ];
        for (text, want, by) in table {
            assert_eq!(move_years(text, day(from)), Some((want.to_owned(), by)), "{text}");
        }
    }

    #[test]
    fn future_or_undated_text_is_unchanged() {
        for text in [
            "from March 20 to March 27",
            "on January 3, 2027",
            "a hotel of 2024 rooms",
            "under $2024 on March 3",
            "room 20245, March 3",
            "",
            "the best of 2024",
            "Ünïcode – 2024 ☃",
        ] {
            assert_eq!(move_years(text, day("2026-11-22")), None, "{text}");
        }
    }

    #[test]
    fn a_moved_task_is_not_moved_twice() {
        let from = day("2026-11-22");
        let (once, _) = move_years("from March 20-27, 2024", from).unwrap();
        assert_eq!(move_years(&once, from), None);
    }

    proptest! {
        #[test]
        fn any_text_is_safe(text in "(\\PC|20[0-9]{2}|Feb(ruary)? 29,? ?|/){0,40}") {
            if let Some((moved, by)) = move_years(&text, day("2026-11-22")) {
                prop_assert!(by > 0 && moved.chars().count() == text.chars().count());
            }
        }
    }
}
