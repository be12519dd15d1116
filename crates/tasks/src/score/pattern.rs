//! Texts as they are: parts of a text, letter for letter, and regular expressions.

use regex::{Regex, RegexBuilder};

/// Longest regular expression of a task.
pub(super) const BYTES_MAX: usize = 1024;

/// Largest compiled expression; matching takes time linear in the text, whatever the expression.
const COMPILED_BYTES_MAX: usize = 1 << 20;

/// Compiles an expression; the error completes a problem with its remedy.
pub(super) fn compile(expression: &str) -> Result<Regex, String> {
    if expression.len() > BYTES_MAX {
        return Err(format!("use at most {BYTES_MAX} bytes"));
    }
    let compiled = RegexBuilder::new(expression).size_limit(COMPILED_BYTES_MAX).build();
    compiled.map_err(|error| match error {
        regex::Error::Syntax(why) => {
            let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            format!("{why}; look-around and back references are not supported")
        }
        _ => "it is too large; use smaller counts of repetitions".to_owned(),
    })
}

/// Whether one of the expressions fits a part of the text, and why.
pub(super) fn fits(text: &str, expressions: &[&str]) -> Result<(bool, String), String> {
    let compiled: Result<Vec<Regex>, String> =
        expressions.iter().map(|expression| compile(expression)).collect();
    let right = compiled?.iter().any(|expression| expression.is_match(text));
    let verb = if right { "fits" } else { "does not fit" };
    Ok((right, format!("the answer {verb} the regular expression")))
}

/// Whether the text contains each of the parts, and why. Only spacing is ignored.
pub(super) fn contains_all(text: &str, parts: &[&str]) -> (bool, String) {
    let text = spaced(text);
    match parts.iter().find(|part| !text.contains(&spaced(part))) {
        Some(missing) => (false, format!("the answer lacks {missing:?}")),
        None => (true, "the answer contains everything required".to_owned()),
    }
}

/// One space between words.
fn spaced(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
