//! Finds the values of secrets in texts and replaces them by their placeholders.
//!
//! A value is found in any case of its letters, with other white space between its parts, and
//! however each of its characters is written (`encodings.rs`); and as Base64 or hexadecimal digits
//! of its bytes. One that is split, compressed, hashed, reversed or otherwise changed is not found.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use serde_json::Value;
use zeroize::Zeroizing;

use super::encodings::{Readings, is_cut_escape};

/// A text of at least so many bytes may have been cut inside of a value.
const CUT_BYTES_MIN: usize = 100;

/// Fewer characters of a value's beginning are not recognised at the end of a text that was cut.
const CUT_CHARS_MIN: usize = 4;

/// Longest white space between the parts of a value, in characters.
const SPACE_CHARS_MAX: usize = 64;

const NOT_IN_FILE_NAMES: [char; 10] = ['"', '*', '/', ':', '<', '>', '?', '\\', '|', '~'];

/// Finds values. Without any, it leaves everything as it is.
#[derive(Default)]
pub(crate) struct Scrubber {
    patterns: Vec<Pattern>,
    /// The patterns by their first character, in lower case.
    by_first: HashMap<char, Vec<usize>>,
    /// Whether a byte can begin a match.
    begins: Vec<bool>,
}

/// One form of a value.
struct Pattern {
    /// Its characters; a space stands for any white space.
    units: Zeroizing<Vec<char>>,
    /// Whether the case of letters counts.
    is_exact: bool,
    placeholder: String,
}

/// A match: bytes from `start` up to `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Match {
    start: usize,
    end: usize,
    pattern: usize,
}

/// Buffers of a search.
#[derive(Default)]
struct SearchBuffers {
    starts: Readings,
    readings: Readings,
    frontier: Vec<usize>,
    next: Vec<usize>,
}

impl Scrubber {
    /// Finds these values, each with the placeholder that replaces it.
    pub(super) fn new<'a>(values: impl IntoIterator<Item = (&'a str, String)>) -> Self {
        let mut scrubber = Self::default();
        for (value, placeholder) in values {
            scrubber.add(value, false, &placeholder);
            // What a browser makes of it in the name of a file.
            scrubber.add(&Zeroizing::new(value.replace(NOT_IN_FILE_NAMES, "_")), false, &placeholder);
            for encoded in encoded_forms(value.as_bytes()) {
                scrubber.add(&encoded, true, &placeholder);
            }
            let hex: String = value.bytes().map(|byte| format!("{byte:02x}")).collect();
            scrubber.add(&Zeroizing::new(hex), false, &placeholder);
        }
        let can_begin = |byte: u8| match byte {
            b'%' | b'\\' | b'&' => !scrubber.patterns.is_empty(),
            0..=0x7f => scrubber.by_first.contains_key(&folded(char::from(byte))),
            _ => byte >= 0xc0,
        };
        scrubber.begins = (0..=u8::MAX).map(can_begin).collect();
        scrubber
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// The text with placeholders in place of values.
    pub(crate) fn text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.replaced(text, false)
    }

    /// The same for a text that may have been cut at its end.
    pub(crate) fn cut_text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.replaced(text, text.len() >= CUT_BYTES_MIN)
    }

    /// The same for a text that is owned.
    pub(crate) fn owned(&self, text: String) -> String {
        match self.cut_text(&text) {
            Cow::Owned(scrubbed) => scrubbed,
            Cow::Borrowed(_) => text,
        }
    }

    /// The same for any bytes.
    pub(crate) fn bytes<'t>(&self, bytes: &'t [u8]) -> Cow<'t, [u8]> {
        let matches = self.find(bytes, false);
        if matches.is_empty() {
            return Cow::Borrowed(bytes);
        }
        let mut scrubbed = Vec::with_capacity(bytes.len());
        let mut copied = 0;
        for found in matches {
            scrubbed.extend_from_slice(&bytes[copied..found.start]);
            scrubbed.extend_from_slice(self.patterns[found.pattern].placeholder.as_bytes());
            copied = found.end;
        }
        scrubbed.extend_from_slice(&bytes[copied..]);
        Cow::Owned(scrubbed)
    }

    /// JSON with placeholders in place of values, in keys too. A number that contains a value
    /// becomes a text. JSON without a value stays as it is, byte for byte.
    pub(crate) fn json(&self, json: String) -> String {
        if self.find(json.as_bytes(), false).is_empty() && json.len() < CUT_BYTES_MIN {
            return json;
        }
        let Ok(parsed) = serde_json::from_str::<Value>(&json) else { return self.owned(json) };
        let scrubbed = self.value(parsed.clone());
        if scrubbed == parsed { json } else { scrubbed.to_string() }
    }

    fn value(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.owned(text)),
            Value::Number(number) => match self.text(&number.to_string()) {
                Cow::Owned(scrubbed) => Value::String(scrubbed),
                Cow::Borrowed(_) => Value::Number(number),
            },
            Value::Array(entries) => {
                Value::Array(entries.into_iter().map(|entry| self.value(entry)).collect())
            }
            Value::Object(fields) => {
                let fields = fields.into_iter().map(|(key, field)| (self.owned(key), self.value(field)));
                Value::Object(fields.collect())
            }
            other => other,
        }
    }

    /// The parts of a text that are values: first byte and the byte behind each, in order.
    pub(crate) fn ranges(&self, text: &str) -> Vec<(usize, usize)> {
        self.find(text.as_bytes(), false).into_iter().map(|found| (found.start, found.end)).collect()
    }

    fn add(&mut self, form: &str, is_exact: bool, placeholder: &str) {
        let mut units = Zeroizing::new(Vec::with_capacity(form.len()));
        for character in form.chars() {
            match character.is_whitespace() {
                true if units.last() == Some(&' ') => {}
                true => units.push(' '),
                false => units.push(character),
            }
        }
        let is_known = |pattern: &Pattern| *pattern.units == *units;
        let Some(first) = units.first().copied().filter(|_| !self.patterns.iter().any(is_known)) else {
            return;
        };
        self.by_first.entry(folded(first)).or_default().push(self.patterns.len());
        self.patterns.push(Pattern { units, is_exact, placeholder: placeholder.to_owned() });
    }

    fn replaced<'t>(&self, text: &'t str, may_be_cut: bool) -> Cow<'t, str> {
        let matches = self.find(text.as_bytes(), may_be_cut);
        if matches.is_empty() {
            return Cow::Borrowed(text);
        }
        let mut scrubbed = String::with_capacity(text.len());
        let mut copied = 0;
        for found in matches {
            scrubbed.push_str(&text[copied..found.start]);
            scrubbed.push_str(&self.patterns[found.pattern].placeholder);
            copied = found.end;
        }
        scrubbed.push_str(&text[copied..]);
        Cow::Owned(scrubbed)
    }

    /// All matches in order; those that overlap are one, named by the longest of them.
    fn find(&self, text: &[u8], may_be_cut: bool) -> Vec<Match> {
        let mut found: Vec<Match> = Vec::new();
        let mut longest = 0;
        let mut buffers = SearchBuffers::default();
        let mut at = 0;
        while !self.patterns.is_empty()
            && let Some(skipped) = text[at..].iter().position(|byte| self.begins[usize::from(*byte)])
        {
            at += skipped;
            let Some(new) = self.longest_at(text, at, may_be_cut, &mut buffers) else {
                at += 1;
                continue;
            };
            at += 1;
            let length = new.end - new.start;
            match found.last_mut().filter(|last| new.start < last.end) {
                Some(last) => {
                    last.end = last.end.max(new.end);
                    if length > longest {
                        (longest, last.pattern) = (length, new.pattern);
                    }
                }
                None => {
                    longest = length;
                    found.push(new);
                }
            }
        }
        found
    }

    fn longest_at(
        &self,
        text: &[u8],
        at: usize,
        may_be_cut: bool,
        buffers: &mut SearchBuffers,
    ) -> Option<Match> {
        let SearchBuffers { starts, readings, frontier, next } = buffers;
        let mut best: Option<Match> = None;
        for &(first, behind) in starts.read(text, at) {
            for &index in self.by_first.get(&folded(first)).map_or(&[][..], Vec::as_slice) {
                let pattern = &self.patterns[index];
                if !pattern.is_same(pattern.units[0], first) {
                    continue;
                }
                frontier.clear();
                frontier.push(behind);
                let end = pattern.end(text, may_be_cut, readings, frontier, next);
                if let Some(end) = end.filter(|end| best.is_none_or(|best| *end > best.end)) {
                    best = Some(Match { start: at, end, pattern: index });
                }
            }
        }
        best
    }
}

impl Pattern {
    /// Where the longest match ends, of which the first character ends at the frontier.
    fn end(
        &self,
        text: &[u8],
        may_be_cut: bool,
        readings: &mut Readings,
        frontier: &mut Vec<usize>,
        next: &mut Vec<usize>,
    ) -> Option<usize> {
        for (consumed, unit) in (1..).zip(&self.units[1..]) {
            next.clear();
            for &at in frontier.iter() {
                match unit {
                    ' ' => skip_space(text, at, readings, next),
                    _ => {
                        let fit =
                            readings.read(text, at).iter().filter(|(read, _)| self.is_same(*unit, *read));
                        next.extend(fit.map(|(_, end)| *end));
                    }
                }
            }
            if next.is_empty() {
                let is_cut = |at: &usize| *at == text.len() || is_cut_escape(text, *at);
                let ends = may_be_cut && consumed >= CUT_CHARS_MIN && frontier.iter().any(is_cut);
                return ends.then_some(text.len());
            }
            next.sort_unstable();
            next.dedup();
            std::mem::swap(frontier, next);
        }
        frontier.iter().max().copied()
    }

    fn is_same(&self, unit: char, read: char) -> bool {
        unit == read || (!self.is_exact && folded(unit) == folded(read))
    }
}

/// Adds each position to which a run of white space leads.
fn skip_space(text: &[u8], at: usize, readings: &mut Readings, ends: &mut Vec<usize>) {
    let mut open = vec![at];
    for _ in 0..SPACE_CHARS_MAX {
        let mut reached = Vec::new();
        for at in open {
            let spaces = readings.read(text, at).iter().filter(|(read, _)| read.is_whitespace());
            reached.extend(spaces.map(|(_, end)| *end));
        }
        if reached.is_empty() {
            return;
        }
        ends.extend(&reached);
        open = reached;
        open.dedup();
    }
}

/// The letters of Base64 that a value has in common in every text that contains it: one form for
/// each of its three positions, in both alphabets.
fn encoded_forms(value: &[u8]) -> Vec<Zeroizing<String>> {
    let mut forms = Vec::new();
    for offset in 0..3 {
        let padded = Zeroizing::new([&[0; 3][..offset], value].concat());
        // A letter of which some bits are the neighbours' is left out.
        let first = (offset * 8).div_ceil(6);
        let behind = (offset + value.len()) * 8 / 6;
        for engine in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
            let text = Zeroizing::new(engine.encode(&*padded));
            forms.push(Zeroizing::new(text[first..behind].to_owned()));
        }
    }
    forms
}

fn folded(character: char) -> char {
    character.to_lowercase().next().unwrap_or(character)
}

impl fmt::Debug for Scrubber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scrubber").field("patterns", &self.patterns.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
