//! The text of a goal as policies that never see a page read it: words, numbers, days, and keys in
//! which numbers and names are masked.

/// Most numbers and most days of a goal that are read.
const NUMBERS_MAX: usize = 8;

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

/// A goal and what is read from it.
#[derive(Debug, Clone)]
pub(super) struct GoalText {
    pub text: String,
    /// Its words in lower case, without numbers.
    pub terms: Vec<String>,
    /// Its numbers in their order, those of days included.
    pub numbers: Vec<f64>,
    /// Its days in their order, each as days since 1970-01-01.
    pub days: Vec<i64>,
    /// The text with `#` for each number.
    pub without_numbers: String,
    /// The same with `_` for quoted texts and for words that begin with a capital inside a
    /// sentence.
    pub without_names: String,
}

impl GoalText {
    pub(super) fn read<'t>(text: &'t str) -> Self {
        let tokens = tokens(text);
        let numbers = tokens.iter().filter_map(GoalToken::number).take(NUMBERS_MAX).collect();
        let terms = tokens.iter().filter(|token| token.kind == TokenKind::Term);
        let terms = terms.map(|token| token.text.to_lowercase()).collect();
        let masked = |token: &GoalToken<'t>| if token.kind == TokenKind::Number { "#" } else { token.text };
        Self {
            text: text.to_owned(),
            terms,
            numbers,
            days: days(&tokens).into_iter().take(NUMBERS_MAX).collect(),
            without_numbers: tokens.iter().map(masked).collect(),
            without_names: without_names(&tokens),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenKind {
    Term,
    Number,
    Punctuation,
}

#[derive(Debug, Clone, Copy)]
struct GoalToken<'a> {
    kind: TokenKind,
    text: &'a str,
}

impl GoalToken<'_> {
    fn number(&self) -> Option<f64> {
        (self.kind == TokenKind::Number).then(|| self.text.replace(',', "").parse().ok()).flatten()
    }

    /// The number of a month's name or of its first three letters, from 1.
    fn month(&self) -> Option<i64> {
        let name = self.text.get(..3)?.to_lowercase();
        let at = MONTHS.iter().position(|month| *month == name)?;
        (self.kind == TokenKind::Term).then_some(at as i64 + 1)
    }
}

/// Cuts a text into words, numbers and what is between them. The pieces together are the text.
fn tokens(text: &str) -> Vec<GoalToken<'_>> {
    let mut tokens = Vec::new();
    let mut start = 0;
    while start < text.len() {
        let (kind, bytes) = first_token(&text[start..], text[..start].chars().next_back());
        tokens.push(GoalToken { kind, text: &text[start..start + bytes] });
        start += bytes;
    }
    tokens
}

/// The kind and the bytes of the token that a text begins with.
fn first_token(text: &str, before: Option<char>) -> (TokenKind, usize) {
    let run = |fits: &dyn Fn(char) -> bool| text.find(|c| !fits(c)).unwrap_or(text.len());
    let first = text.chars().next().unwrap_or(' ');
    let is_sign = first == '-' && !before.is_some_and(char::is_alphanumeric);
    let digits = if is_sign { &text[1..] } else { text };
    if digits.starts_with(|c: char| c.is_ascii_digit()) {
        return (TokenKind::Number, usize::from(is_sign) + number_bytes(digits));
    }
    if first.is_alphabetic() {
        return (TokenKind::Term, run(&|c| c.is_alphabetic() || matches!(c, '\'' | '’')));
    }
    (TokenKind::Punctuation, first.len_utf8())
}

/// Digits with `,` between groups of three and at most one `.`, each followed by a digit.
fn number_bytes(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digits_from = |from: usize| bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut end = digits_from(0);
    while bytes.get(end) == Some(&b',') && digits_from(end + 1) == 3 {
        end += 4;
    }
    if bytes.get(end) == Some(&b'.') && digits_from(end + 1) > 0 {
        end += 1 + digits_from(end + 1);
    }
    end
}

fn without_names(tokens: &[GoalToken]) -> String {
    let mut masked = String::new();
    let mut is_quoted = false;
    // A word begins a sentence until a word was seen behind the last full stop.
    let mut begins = true;
    for token in tokens {
        match (token.kind, token.text) {
            (_, "\"" | "“" | "”") => is_quoted = !is_quoted,
            _ if is_quoted => {}
            (TokenKind::Number, _) => masked.push('#'),
            (TokenKind::Term, term) if !begins && term.starts_with(char::is_uppercase) => masked.push('_'),
            (_, text) => masked.push_str(text),
        }
        if !is_quoted && token.text.ends_with(['"', '”']) {
            masked.push('_');
        }
        begins = match token.text {
            "." | "?" | "!" | ":" => true,
            text => begins && text.trim().is_empty(),
        };
    }
    // A name of several words is one name.
    while masked.contains("_ _") {
        masked = masked.replace("_ _", "_");
    }
    masked
}

/// The days that a text states with their years: `2026-03-05`, `March 5, 2026`, `5 Mar 2026`.
fn days(tokens: &[GoalToken]) -> Vec<i64> {
    let parts: Vec<&GoalToken> = tokens.iter().filter(|token| token.kind != TokenKind::Punctuation).collect();
    let whole = |token: &GoalToken| token.number().map(|number| number.abs() as i64);
    let mut days = Vec::new();
    for three in parts.windows(3) {
        let [a, b, c] = three else { continue };
        let day = match (a.month(), b.month()) {
            (Some(month), None) => whole(b).zip(whole(c)).map(|(day, year)| (year, month, day)),
            (None, Some(month)) => whole(a).zip(whole(c)).map(|(day, year)| (year, month, day)),
            // The last two of an ISO day are joined by hyphens.
            (None, None) if a.text.len() == 4 => {
                whole(a).zip(whole(b)).zip(whole(c)).map(|((year, month), day)| (year, month, day))
            }
            _ => None,
        };
        days.extend(day.and_then(|(year, month, day)| day_number(year, month, day)));
    }
    days
}

/// Days since 1970-01-01 (H. Hinnant, "chrono-compatible low-level date algorithms"); `None` for
/// years outside 1500 to 2999 and for months and days that no calendar has.
pub(super) fn day_number(year: i64, month: i64, day: i64) -> Option<i64> {
    if !(1500..3000).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let shifted = if month <= 2 { year - 1 } else { year };
    let era = shifted.div_euclid(400);
    let of_era = shifted.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}

/// `YYYY-MM-DD` of days since 1970-01-01.
pub(super) fn day_text(days: i64) -> String {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_with_their_signs_and_groups() {
        for (text, want) in [
            ("What is 12 + 7.5?", vec![12.0, 7.5]),
            ("Pay $1,234.50 by 3 people, not 1,2.", vec![1234.5, 3.0, 1.0, 2.0]),
            ("Solve -3x = 9 for x-4.", vec![-3.0, 9.0, 4.0]),
            ("None.", vec![]),
        ] {
            assert_eq!(GoalText::read(text).numbers, want, "{text}");
        }
    }

    #[test]
    fn numbers_and_names_are_masked() {
        let goal = GoalText::read("Open the page of Ada Lovelace and \"Tall Mug 20\". Buy 3 for $4.50.");
        assert_eq!(goal.without_numbers, "Open the page of Ada Lovelace and \"Tall Mug #\". Buy # for $#.");
        assert_eq!(goal.without_names, "Open the page of _ and _. Buy # for $#.");
    }

    #[test]
    fn days_are_read_in_the_usual_spellings() {
        let want = vec![day_number(2026, 3, 5).unwrap()];
        for text in ["on 2026-03-05?", "on March 5, 2026", "on 5 Mar 2026", "on Mar 5 2026"] {
            assert_eq!(GoalText::read(text).days, want, "{text}");
        }
        assert_eq!(day_number(1970, 1, 1), Some(0));
        assert_eq!(day_number(2026, 13, 1), None);
        for days in [-100, 0, 11_016, 20_000, 20_513] {
            let text = day_text(days);
            assert_eq!(GoalText::read(&text).days, [days], "{text}");
        }
    }
}
