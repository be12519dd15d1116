//! Texts as scorers compare them: what is one to a reader is one here, and what only looks alike is not.
//!
//! A text is normalized to NFC (Unicode Standard Annex 15), lower case, one space between words, plain quotes, hyphens and
//! ASCII in place of its full-width forms; characters that are never seen are dropped. Letters of other scripts that look like
//! Latin ones stay what they are: `Раris` with a Cyrillic Р is another word.

use std::ops::Range;

use icu_normalizer::ComposingNormalizerBorrowed;

/// Words that turn a statement round when one stands among the three before a value.
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

/// What takes a value back when it follows at once.
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

/// Words that a negation looks back over.
const REACH: usize = 3;

/// The text as it is compared, without the quotes, brackets and full stops around it.
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

/// Whether a normalized text states a normalized value: it stands there as whole words, and somewhere nobody takes it back.
pub(super) fn states(text: &str, value: &str) -> bool {
    occurrences(text, value).any(|place| !is_negated(text, &place))
}

/// Whether a normalized text holds a normalized value as whole words, said of it what may.
pub(super) fn holds(text: &str, value: &str) -> bool {
    occurrences(text, value).next().is_some()
}

/// The text with every whole-word occurrence of these values taken out of it.
pub(super) fn without(text: &str, values: &[String]) -> String {
    let mut left = text.to_owned();
    for value in values {
        let places: Vec<_> = occurrences(&left, value).collect();
        for place in places.into_iter().rev() {
            left.replace_range(place, "\u{fffc}");
        }
    }
    left
}

/// Whether what stands at a place of a normalized text is denied: `not 5`, `isn't in Paris`, `5 is wrong`. `not only 5` is not.
pub(super) fn is_negated(text: &str, place: &Range<usize>) -> bool {
    let before = &text[..place.start];
    let clause = before.rsplit([',', ';', ':', '.', '!', '?', '\u{fffc}']).next().unwrap_or_default();
    let clause = clause.rsplit(" but ").next().unwrap_or_default();
    let words: Vec<&str> = clause.split_whitespace().rev().take(REACH).collect();
    let denies = |(place, word): (usize, &&str)| {
        let next = place.checked_sub(1).and_then(|next| words.get(next));
        NEGATIONS.contains(word) && !matches!(next, Some(&"only" | &"just"))
    };
    let instead =
        ["rather than", "instead of", "other than"].iter().any(|phrase| clause.trim_end().ends_with(phrase));
    let behind = text[place.end..].trim_start_matches(['"', '\'', ')', ']', ' ']);
    instead
        || words.iter().enumerate().any(denies)
        || RETRACTIONS.iter().any(|phrase| behind.strip_prefix(phrase).is_some_and(ends_word))
}

/// Whether a text goes on with something else than the word before it.
fn ends_word(rest: &str) -> bool {
    !rest.starts_with(char::is_alphanumeric)
}

fn occurrences<'a>(text: &'a str, value: &'a str) -> impl Iterator<Item = Range<usize>> + 'a {
    let places = text.match_indices(value).map(|(at, _)| at..at + value.len());
    places.filter(|place| stands_alone(text, place.clone()))
}

/// `10` does not stand alone in `100`, `10.5`, `1,10` or ` -10`; nor does `art` in `start`.
fn stands_alone(text: &str, place: Range<usize>) -> bool {
    let (value, before, behind) = (&text[place.clone()], &text[..place.start], &text[place.end..]);
    let word_start = value.starts_with(char::is_alphanumeric);
    let word_end = value.ends_with(char::is_alphanumeric);
    let cut_before = word_start && before.ends_with(char::is_alphanumeric);
    let cut_behind = word_end && behind.starts_with(|c: char| c.is_alphanumeric() || is_combining(c));
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
        // Full-width forms stand 0xfee0 above the ASCII ones.
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(u32::from(c) - 0xfee0).unwrap_or(c),
        other => other,
    }
}

/// Marks that strike a character through or sit on it, where no composed letter takes them up.
pub(super) fn is_combining(c: char) -> bool {
    matches!(c, '\u{0300}'..='\u{036f}' | '\u{20d0}'..='\u{20ff}')
}

/// Nothing is drawn for these: zero-width spaces and joiners, the soft hyphen, marks of direction, the byte order mark.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2064}' | '\u{2066}'..='\u{206f}' | '\u{feff}')
}
