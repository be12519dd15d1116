//! Splits identifiers and prose into the words that the glossary speaks of.

/// The words of an identifier or a sentence: split at case changes, digits and everything that is
/// not a letter.
pub(super) fn segments(text: &str) -> Vec<&str> {
    let mut segments = Vec::new();
    let mut start = None;
    let mut before = ' ';
    let mut letters = text.char_indices().peekable();
    while let Some((index, letter)) = letters.next() {
        let next_is_lower = letters.peek().is_some_and(|(_, next)| next.is_lowercase());
        let begins_segment =
            letter.is_uppercase() && (before.is_lowercase() || (before.is_uppercase() && next_is_lower));
        if !letter.is_alphabetic() || begins_segment {
            segments.extend(start.take().map(|from| &text[from..index]));
        }
        if letter.is_alphabetic() && start.is_none() {
            start = Some(index);
        }
        before = letter;
    }
    segments.extend(start.map(|from| &text[from..]));
    segments
}

/// The identifiers of code without comments and literals, each with its line (from 0) and the byte
/// it starts at.
pub(super) fn identifiers(code: &str) -> impl Iterator<Item = (usize, usize, &str)> {
    code.split('\n')
        .enumerate()
        .scan(0, |line_start, (line, text)| {
            let start = *line_start;
            *line_start += text.len() + 1;
            Some(identifiers_of_line(text).into_iter().map(move |(at, name)| (line, start + at, name)))
        })
        .flatten()
}

fn identifiers_of_line(text: &str) -> Vec<(usize, &str)> {
    let mut names = Vec::new();
    let mut rest = 0;
    while let Some(found) = text[rest..].find(|letter: char| letter.is_alphanumeric() || letter == '_') {
        let start = rest + found;
        let length = text[start..].find(|letter: char| !letter.is_alphanumeric() && letter != '_');
        let end = length.map_or(text.len(), |length| start + length);
        if !text[start..].starts_with(|first: char| first.is_ascii_digit()) {
            names.push((start, &text[start..end]));
        }
        rest = end;
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_split_into_segments() {
        assert_eq!(segments("page_of_text"), ["page", "of", "text"]);
        assert_eq!(segments("HTTPServer"), ["HTTP", "Server"]);
        assert_eq!(segments("SCREEN_BYTES_MAX"), ["SCREEN", "BYTES", "MAX"]);
        assert_eq!(segments("sha256Of"), ["sha", "Of"]);
        assert_eq!(segments("placeholder, it's fair"), ["placeholder", "it", "s", "fair"]);
        assert!(segments("_ 12 ()").is_empty());
    }

    #[test]
    fn identifiers_are_found_with_their_lines() {
        let found: Vec<_> = identifiers("let a_b =\n  0x1f + c.d;").collect();
        assert_eq!(found, [(0, 0, "let"), (0, 4, "a_b"), (1, 19, "c"), (1, 21, "d")]);
    }
}
