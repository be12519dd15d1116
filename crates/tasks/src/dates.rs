//! Days that have passed, moved forward: WebVoyager's travel tasks name days of 2023 and 2024 that can no longer be booked.
//!
//! Only tasks of sites that sell the future are touched (`Booking`, `Google Flights`): a question about a paper of 2023 or a game
//! of last year stays what it is. All years in a task move by the same number, the least that brings its earliest day to the day
//! the job names or behind it, so that a stay keeps its length and the new year stays where it was. Days without a year stay:
//! they mean the next ones. The week's days move against the calendar, and a 29 February that does not exist becomes the 28th.

use time::{Date, Month};

/// Sites whose days must lie ahead.
pub(crate) const SITES: [&str; 2] = ["Booking", "Google Flights"];

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

/// A year that a text names: where it stands, and the earliest day near it that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Year {
    start: usize,
    year: i32,
}

/// The text with its years moved, and by how many; `None` where there is nothing to move.
pub(crate) fn moved(text: &str, from: Date) -> Option<(String, i32)> {
    let years = years_in(text);
    let earliest = earliest_day(text, &years)?;
    let by = (0..=100).find(|by| later(earliest, *by) >= from).filter(|by| *by > 0)?;
    let mut moved = text.to_owned();
    for Year { start, year } in years.iter().rev() {
        moved.replace_range(*start..start + 4, &(year + by).to_string());
    }
    Some((keep_to_the_calendar(&moved), by))
}

/// The same day so many years on.
fn later(day: Date, by: i32) -> Date {
    let year = day.year() + by;
    day.replace_year(year).or_else(|_| Date::from_calendar_date(year, Month::February, 28)).unwrap_or(day)
}

/// Four digits from 2000 to 2099 that are no part of a longer number or word.
fn years_in(text: &str) -> Vec<Year> {
    let bytes = text.as_bytes();
    let alone = |at: usize| {
        let before = at.checked_sub(1).and_then(|at| bytes.get(at));
        let is_part =
            |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'$');
        !is_part(before) && !is_part(bytes.get(at + 4))
    };
    let places = text.match_indices("20").map(|(at, _)| at);
    let digits = |at: &usize| bytes.get(*at..at + 4).is_some_and(|four| four.iter().all(u8::is_ascii_digit));
    let year = |at: usize| Some(Year { start: at, year: text.get(at..at + 4)?.parse().ok()? });
    places.filter(digits).filter(|at| alone(*at)).filter_map(year).collect()
}

/// The earliest day before a year: the months and days between it and the year before count as of that year.
fn earliest_day(text: &str, years: &[Year]) -> Option<Date> {
    let mut begin = 0;
    let mut earliest: Option<Date> = None;
    for Year { start, year } in years {
        let span = &text[begin..*start];
        let days = days_of(span).into_iter().filter_map(|(month, day)| {
            Date::from_calendar_date(*year, Month::try_from(month).ok()?, day).ok()
        });
        earliest = days.chain(earliest).min();
        begin = start + 4;
    }
    earliest
}

/// Months by their names with the number beside them, and `20/12/`.
fn days_of(span: &str) -> Vec<(u8, u8)> {
    let words: Vec<&str> =
        span.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let number = |word: &&str| {
        let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        digits.parse::<u8>().ok().filter(|day| (1..=31).contains(day))
    };
    let month = |word: &str| {
        let word = word.to_ascii_lowercase();
        let known = |(_, name): &(usize, &&str)| word.starts_with(**name) && word.len() >= 3;
        MONTHS.iter().enumerate().find(known).map(|(index, _)| index as u8 + 1)
    };
    let mut days = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let Some(month) = month(word) else { continue };
        let behind = words.get(at + 1).and_then(number);
        let before = at.checked_sub(1).and_then(|at| words.get(at)).and_then(number);
        days.extend(behind.or(before).map(|day| (month, day)));
    }
    if days.is_empty()
        && let [.., day, month] = words[..]
        && span.ends_with('/')
    {
        days.extend(number(&month).filter(|month| *month <= 12).zip(number(&day)));
    }
    days
}

/// A 29 February of a year without one becomes the 28th.
fn keep_to_the_calendar(text: &str) -> String {
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
            assert_eq!(moved(text, day(from)), Some((want.to_owned(), by)), "{text}");
        }
    }

    #[test]
    fn what_lies_ahead_or_names_no_day_stays() {
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
            assert_eq!(moved(text, day("2026-11-22")), None, "{text}");
        }
    }

    #[test]
    fn a_task_that_was_moved_is_not_moved_again() {
        let from = day("2026-11-22");
        let (once, _) = moved("from March 20-27, 2024", from).unwrap();
        assert_eq!(moved(&once, from), None);
    }

    proptest! {
        #[test]
        fn any_text_is_safe(text in "(\\PC|20[0-9]{2}|Feb(ruary)? 29,? ?|/){0,40}") {
            if let Some((moved, by)) = moved(&text, day("2026-11-22")) {
                prop_assert!(by > 0 && moved.chars().count() == text.chars().count());
            }
        }
    }
}
