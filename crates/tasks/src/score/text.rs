//! Texts as scorers compare them: texts that a reader considers equal are equal here, and texts
//! that only look alike are not.
//!
//! A text is normalized to NFC (Unicode Standard Annex 15), lower case, one space between words,
//! plain quotes, hyphens and ASCII in place of its full-width forms; invisible characters are
//! dropped. Letters of other scripts that look like Latin ones are kept: `Раris` with a Cyrillic Р
//! is another word.

use std::ops::Range;

use icu_normalizer::ComposingNormalizerBorrowed;

/// Words that negate a value when one is among the three words before it.
const NEGATIONS: [&str; 24] = [
    "not",
    "no",
    "never",
    "neither",
    "nor",
    "without",
    "except",
    "excluding",
    "cannot",
    "isn't",
    "aren't",
    "wasn't",
    "weren't",
    "doesn't",
    "don't",
    "didn't",
    "can't",
    "won't",
    "hasn't",
    "haven't",
    "couldn't",
    "shouldn't",
    "wouldn't",
    "ain't",
];

/// Phrases that retract a value when they follow it directly.
const RETRACTIONS: [&str; 12] = [
    "is wrong",
    "is incorrect",
    "is false",
    "is not right",
    "is not correct",
    "is not the answer",
    "is not it",
    "isn't right",
    "isn't correct",
    "isn't the answer",
    "isn't it",
    "would be wrong",
];

/// Number of words before a value in which a negation counts.
const REACH: usize = 3;

/// The normalized text without surrounding quotes, brackets and full stops.
pub(super) fn normalized(text: &str) -> String {
    let composed = ComposingNormalizerBorrowed::new_nfc().normalize(text);
    let plain = composed.chars().filter(|c| !is_invisible(*c)).map(plain);
    let lower = plain.collect::<String>().to_lowercase();
    let spaced = lower.split_whitespace().collect::<Vec<_>>().join(" ");
    let around = ['"', '\'', '`', '(', ')', '[', ']', '{', '}', ' '];
    let closing = ['.', ',', ';', ':', '!', '?'];
    let text = spaced.trim_start_matches(around);
    text.trim_end_matches(|c| around.contains(&c) || closing.contains(&c)).to_owned()
}

/// Whether a normalized text states a normalized value: as whole words, at least once without a
/// negation.
pub(super) fn states_value(text: &str, value: &str) -> bool {
    occurrences(text, value).any(|span| !is_negated(text, &span))
}

/// Whether a normalized text contains a normalized value as whole words, negated or not.
pub(super) fn contains_value(text: &str, value: &str) -> bool {
    occurrences(text, value).next().is_some()
}

/// The text without any whole-word occurrence of these values.
pub(super) fn without_values(text: &str, values: &[String]) -> String {
    let mut left = text.to_owned();
    for value in values {
        let spans: Vec<_> = occurrences(&left, value).collect();
        for span in spans.into_iter().rev() {
            left.replace_range(span, "\u{fffc}");
        }
    }
    left
}

/// Whether the value at a position of a normalized text is negated: `not 5`, `isn't in Paris`, `5
/// is wrong`. `not only 5` is not.
pub(super) fn is_negated(text: &str, span: &Range<usize>) -> bool {
    let before = &text[..span.start];
    let clause = before.rsplit([',', ';', ':', '.', '!', '?', '\u{fffc}']).next().unwrap_or_default();
    let clause = clause.rsplit(" but ").next().unwrap_or_default();
    let last_tokens: Vec<&str> = clause.split_whitespace().rev().take(REACH).collect();
    let denies = |(index, token): (usize, &&str)| {
        let next = index.checked_sub(1).and_then(|next| last_tokens.get(next));
        NEGATIONS.contains(token) && !matches!(next, Some(&"only" | &"just"))
    };
    let instead =
        ["rather than", "instead of", "other than"].iter().any(|phrase| clause.trim_end().ends_with(phrase));
    let behind = text[span.end..].trim_start_matches(['"', '\'', ')', ']', ' ']);
    instead
        || last_tokens.iter().enumerate().any(denies)
        || RETRACTIONS.iter().any(|phrase| behind.strip_prefix(phrase).is_some_and(ends_at_boundary))
}

/// Whether the text continues with something other than the same word.
fn ends_at_boundary(rest: &str) -> bool {
    !rest.starts_with(char::is_alphanumeric)
}

fn occurrences<'a>(text: &'a str, value: &'a str) -> impl Iterator<Item = Range<usize>> + 'a {
    let spans = text.match_indices(value).map(|(at, _)| at..at + value.len());
    spans.filter(|span| stands_alone(text, span.clone()))
}

/// `10` does not stand alone in `100`, `10.5`, `1,10` or ` -10`; neither does `art` in `start`.
fn stands_alone(text: &str, span: Range<usize>) -> bool {
    let value = &text[span.clone()];
    let before = &text[..span.start];
    let behind = &text[span.end..];
    let starts_alphanumeric = value.starts_with(char::is_alphanumeric);
    let ends_alphanumeric = value.ends_with(char::is_alphanumeric);
    let cut_before = starts_alphanumeric && before.ends_with(char::is_alphanumeric);
    let cut_behind =
        ends_alphanumeric && behind.starts_with(|c: char| c.is_alphanumeric() || is_combining(c));
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

fn plain(c: char) -> char {
    match c {
        '\u{2018}' | '\u{2019}' => '\'',
        '\u{201c}' | '\u{201d}' => '"',
        '\u{2010}'..='\u{2014}' | '\u{2212}' => '-',
        // Full-width forms are 0xfee0 above the ASCII characters.
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(u32::from(c) - 0xfee0).unwrap_or(c),
        other => other,
    }
}

/// Marks that strike a character through or attach to it, if they are not part of a composed
/// letter.
pub(super) fn is_combining(c: char) -> bool {
    matches!(c, '\u{0300}'..='\u{036f}' | '\u{20d0}'..='\u{20ff}')
}

/// Characters that are not drawn: zero-width spaces and joiners, the soft hyphen, direction marks,
/// the byte order mark.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2064}' | '\u{2066}'..='\u{206f}' | '\u{feff}')
}
