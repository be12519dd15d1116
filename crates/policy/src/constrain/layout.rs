//! A reply's layout: fixed pieces, words, numbers and free texts in order, and how each becomes places of the automaton.

use std::collections::{BTreeMap, HashMap};

use furrow_rollout::Grammar;

use super::automaton::{Automaton, Place, Unjoined};
use super::{Caps, ConstraintError, Lexicon, Rules};
use crate::grammar::{self, Field, FieldKind, Frame, Shape};

/// A part of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// This text.
    Fixed(String),
    /// One of these words.
    Words(&'static [&'static str]),
    /// A whole number, both ends included, without leading zeros.
    Number { from: u64, to: u64 },
    /// At most so many ids of free text.
    Text(u32),
    /// Free text that takes all the room there is.
    FillingText,
    /// White space that takes all the room there is, one id at least: behind a number it says that no digit follows.
    Space,
}

/// Bytes of JSON's white space.
const WHITE_SPACE: &[u8] = b" \t\n\r";

/// Builds the automaton of a grammar; the place where a reply begins.
pub(super) fn build(
    grammar: &Grammar,
    lexicon: &Lexicon<'_>,
    rules: &Rules,
) -> Result<(Automaton, Place), ConstraintError> {
    let mut builder = Builder::new(lexicon)?;
    let end = builder.automaton.end();
    // The end of a reply leaves one id to take: the stop id is forced.
    let stop = builder.automaton.chain(&[lexicon.stop], end);
    let frame =
        grammar::frame(grammar).ok_or_else(|| ConstraintError::NoLayout { grammar: grammar.name.clone() })?;
    let mut actions: Option<Place> = None;
    let is_on = |shape: &Shape| rules.endings || !frame.endings.contains(&shape.name);
    for shape in (frame.shapes)(&grammar.extra).into_iter().filter(is_on) {
        let rest = builder.parts(&action(&shape, rules)?, stop)?;
        let way = builder.words(&[shape.name], rest)?;
        actions = Some(match actions {
            Some(others) => builder.either(others, way)?,
            None => way,
        });
    }
    let start = builder.parts(&head(&frame, rules), actions.unwrap_or(stop))?;
    Ok((builder.automaton, start))
}

/// What stands before the action's name.
fn head(frame: &Frame, rules: &Rules) -> Vec<Part> {
    let Caps { note, thought, .. } = rules.caps;
    vec![
        Part::Fixed("{\"note\":\"".into()),
        Part::Text(note),
        Part::Fixed("\",\"thought\":\"".into()),
        // The last text in front of the action: it leaves room for the longest, so that every action stays possible.
        if rules.exact_tokens.is_some() { Part::FillingText } else { Part::Text(thought) },
        Part::Fixed(format!("\",\"{}\":{{\"{}\":\"", frame.call, frame.name)),
    ]
}

/// What stands behind the action's name: its fields in their order, all of them written out.
fn action(shape: &Shape, rules: &Rules) -> Result<Vec<Part>, ConstraintError> {
    let caps = &rules.caps;
    let mut parts = Vec::new();
    // Fixed text since the last free part, opened by the quote that closes the name.
    let mut fixed = String::from("\"");
    for Field { name, kind } in shape.fields {
        fixed.push_str(&format!(",\"{name}\":"));
        let mut closing = "";
        let (quoted, free) = match *kind {
            FieldKind::Text => (true, vec![Part::Text(caps.of(name))]),
            FieldKind::Address => (true, vec![Part::Words(&["http://", "https://"]), Part::Text(caps.url)]),
            FieldKind::Word(words) | FieldKind::WordOr(words) => (true, vec![Part::Words(words)]),
            // One key: the shortest list. A longer one is no better for a policy that is led.
            FieldKind::Keys { .. } => {
                fixed.push('[');
                closing = "]";
                (true, vec![Part::Text(caps.of("key"))])
            }
            FieldKind::Flag => (false, vec![Part::Words(&["true", "false"])]),
            FieldKind::Whole { from, to } | FieldKind::WholeOr { from, to, .. } => {
                (false, vec![Part::Number { from, to }])
            }
            FieldKind::Number { .. }
            | FieldKind::NumberOr { .. }
            | FieldKind::Pair
            | FieldKind::PairOrNone
            | FieldKind::Anything => {
                return Err(ConstraintError::NoLayout { grammar: shape.name.to_owned() });
            }
        };
        let quote = if quoted { "\"" } else { "" };
        parts.push(Part::Fixed(fixed + quote));
        parts.extend(free);
        fixed = format!("{quote}{closing}");
    }
    if rules.exact_tokens.is_some() {
        // What a shorter action leaves.
        parts.extend([Part::Fixed(fixed), Part::Space, Part::Fixed("}}".into())]);
    } else {
        parts.push(Part::Fixed(fixed + "}}"));
    }
    Ok(parts)
}

impl Lexicon<'_> {
    /// Ids that are nothing but white space.
    pub(super) fn white_space(&self) -> Vec<u32> {
        let is_space = |text: &[u8]| text.iter().all(|byte| WHITE_SPACE.contains(byte));
        (0..self.rows as u32).filter(|id| self.text(*id).is_some_and(is_space)).collect()
    }
}

/// Ids that are nothing but digits, with their text, by its length (index 0: one digit).
fn digits(lexicon: &Lexicon<'_>) -> Result<Vec<Vec<(u32, String)>>, ConstraintError> {
    let mut digits = vec![Vec::new()];
    for id in 0..lexicon.rows as u32 {
        // 20 digits hold any u64.
        let Some(text) = lexicon.text(id).filter(|text| (1..=20).contains(&text.len())) else { continue };
        if let (true, Ok(text)) = (text.iter().all(u8::is_ascii_digit), str::from_utf8(text)) {
            digits.resize_with(digits.len().max(text.len()), Vec::new);
            digits[text.len() - 1].push((id, text.to_owned()));
        }
    }
    match (0..=9).find(|digit| !digits[0].iter().any(|(_, text)| *text == digit.to_string())) {
        Some(digit) => Err(ConstraintError::NoDigit { digit }),
        None => Ok(digits),
    }
}

/// Turns parts into places, each one before those it leads to.
pub(super) struct Builder<'a, 'b> {
    pub automaton: Automaton,
    lexicon: &'a Lexicon<'b>,
    digits: Vec<Vec<(u32, String)>>,
}

/// A number being written: what it may be, what follows it, and the places of the beginnings seen so far.
struct Number {
    from: u64,
    to: u64,
    next: Place,
    /// By what can still be written: beginnings with the same ends are one place.
    seen: HashMap<Vec<Ends>, Place>,
}

/// How many digits may follow a beginning, and which numbers they may be.
type Ends = (u32, u128, u128);

impl<'a, 'b> Builder<'a, 'b> {
    pub fn new(lexicon: &'a Lexicon<'b>) -> Result<Self, ConstraintError> {
        Ok(Self { automaton: Automaton::default(), lexicon, digits: digits(lexicon)? })
    }
}

impl Builder<'_, '_> {
    /// This text, tokenised alone.
    pub fn fixed(&mut self, text: &str, next: Place) -> Result<Place, ConstraintError> {
        self.automaton.fits()?;
        self.automaton.count(text.len());
        let ids = self.lexicon.encode_exactly(text)?;
        Ok(self.automaton.chain(&ids, next))
    }

    /// From here on numbers are written digit by digit, whatever ids of several digits there are.
    pub fn digit_by_digit(&mut self) {
        self.digits.truncate(1);
    }

    /// A whole number, both ends included, without leading zeros.
    pub fn digits_of(&mut self, from: u64, to: u64, next: Place) -> Result<Place, ConstraintError> {
        self.number("", &mut Number { from, to, next, seen: HashMap::new() })
    }

    /// One to so many digits.
    pub fn fraction(&mut self, digits_max: usize, next: Place) -> Result<Place, ConstraintError> {
        let mut places = vec![next];
        for left in 1..=digits_max {
            let ids = self.digits.iter().take(left).enumerate();
            let edges = ids.flat_map(|(index, ids)| ids.iter().map(move |(id, _)| (*id, index + 1)));
            let edges: BTreeMap<u32, Place> = edges.map(|(id, taken)| (id, places[left - taken])).collect();
            let some = self.automaton.step(edges);
            places.push(if left < digits_max { self.either(some, next)? } else { some });
        }
        Ok(places[digits_max])
    }

    /// Any of these ways.
    pub fn one_of(&mut self, ways: Vec<Place>) -> Result<Place, ConstraintError> {
        let mut ways = ways.into_iter();
        let first = ways.next().ok_or(ConstraintError::Ambiguous)?;
        ways.try_fold(first, |all, way| self.either(all, way))
    }

    fn parts(&mut self, parts: &[Part], next: Place) -> Result<Place, ConstraintError> {
        parts.iter().rev().try_fold(next, |next, part| self.part(part, next))
    }

    fn part(&mut self, part: &Part, next: Place) -> Result<Place, ConstraintError> {
        match part {
            Part::Fixed(text) => self.fixed(text, next),
            Part::Words(words) => self.words(words, next),
            Part::Number { from, to } => self.digits_of(*from, *to, next),
            Part::Text(cap) => Ok(self.automaton.text(*cap, next)),
            Part::FillingText => Ok(self.automaton.filling_text(next)),
            Part::Space => self.space(next),
        }
    }

    fn space(&mut self, next: Place) -> Result<Place, ConstraintError> {
        let more = self.automaton.space(next);
        let ids = self.lexicon.white_space();
        if ids.is_empty() {
            return Err(ConstraintError::NoSpace);
        }
        Ok(self.automaton.step(ids.into_iter().map(|id| (id, more)).collect()))
    }

    /// One of some words, each tokenised alone.
    pub fn words(&mut self, words: &[impl AsRef<str>], next: Place) -> Result<Place, ConstraintError> {
        let mut all: Option<Place> = None;
        for word in words {
            let way = self.fixed(word.as_ref(), next)?;
            all = Some(match all {
                Some(others) => self.either(others, way)?,
                None => way,
            });
        }
        Ok(all.unwrap_or(next))
    }

    /// The places of a number that begins with these digits.
    fn number(&mut self, begun: &str, number: &mut Number) -> Result<Place, ConstraintError> {
        let ends = number.ends(begun);
        if let Some(place) = number.seen.get(&ends) {
            return Ok(*place);
        }
        self.automaton.fits()?;
        self.automaton.count(self.digits.iter().map(Vec::len).sum());
        let mut edges = BTreeMap::new();
        for (id, grown) in self.grown(begun, number) {
            edges.insert(id, self.number(&grown, number)?);
        }
        let place = match (edges.is_empty(), number.is_whole(begun)) {
            (true, _) => number.next,
            (false, false) => self.automaton.step(edges),
            (false, true) => {
                let longer = self.automaton.step(edges);
                self.either(longer, number.next)?
            }
        };
        number.seen.insert(ends, place);
        Ok(place)
    }

    /// What the digits can grow to by one id and still be, or become, such a number.
    fn grown(&self, begun: &str, number: &Number) -> Vec<(u32, String)> {
        let room = number.to.to_string().len() - begun.len();
        let ids = self.digits.iter().take(room).flatten();
        let grown = ids.map(|(id, text)| (*id, format!("{begun}{text}")));
        grown.filter(|(_, grown)| number.begins_with(grown)).collect()
    }

    pub fn either(&mut self, left: Place, right: Place) -> Result<Place, ConstraintError> {
        self.automaton.either(left, right).map_err(|why| match why {
            Unjoined::Ambiguous => ConstraintError::Ambiguous,
            Unjoined::TooLarge(why) => why.into(),
        })
    }
}

impl Number {
    fn is_whole(&self, digits: &str) -> bool {
        digits.parse().is_ok_and(|value: u64| (self.from..=self.to).contains(&value))
    }

    /// What may follow these digits: for each count of further digits the numbers that they may be.
    fn ends(&self, begun: &str) -> Vec<Ends> {
        let digits_max = self.to.to_string().len();
        let Ok(value) = begun.parse::<u128>() else { return Vec::new() };
        let longer = if begun == "0" { 0 } else { digits_max.saturating_sub(begun.len()) as u32 };
        let (from, to) = (u128::from(self.from), u128::from(self.to));
        let ends = (0..=longer).filter_map(|digits| {
            let (low, span) = (value * 10u128.pow(digits), 10u128.pow(digits));
            let (least, most) = (from.max(low), to.min(low + span - 1));
            (least <= most).then(|| (digits, least - low, most - low))
        });
        ends.collect()
    }

    /// Whether one of the numbers begins with these digits: 41 begins 41, 410 to 419, 4100 to 4199, …
    fn begins_with(&self, digits: &str) -> bool {
        let Ok(value) = digits.parse::<u64>() else { return false };
        if digits.starts_with('0') {
            return digits == "0" && self.from == 0;
        }
        let (mut low, mut span) = (value, 1u64);
        while low <= self.to {
            if low.saturating_add(span - 1) >= self.from {
                return true;
            }
            (low, span) = (low.saturating_mul(10), span.saturating_mul(10));
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings_of_numbers_are_those_of_their_decimals() {
        for (from, to) in [(0, 10), (0, 255), (0, 1000), (7, 7), (95, 1203)] {
            let number = Number { from, to, next: 0, seen: HashMap::new() };
            let all: Vec<String> = (from..=to).map(|value| value.to_string()).collect();
            let candidates =
                (0..=20_000).map(|value: u32| value.to_string()).chain(["00".into(), "01".into()]);
            for digits in candidates {
                let want = all.iter().any(|decimal| decimal.starts_with(&digits));
                assert_eq!(number.begins_with(&digits), want, "{digits} of {from} to {to}");
            }
        }
    }

    #[test]
    fn parts_alternate_between_fixed_and_free() {
        let rules = Rules::from(Caps::default());
        let goto =
            Shape { name: "goto", fields: &[Field { name: "url", kind: FieldKind::Address }], says: "" };
        let fixed = |text: &str| Part::Fixed(text.into());
        let want = [
            fixed("\",\"url\":\""),
            Part::Words(&["http://", "https://"]),
            Part::Text(rules.caps.url),
            fixed("\"}}"),
        ];
        assert_eq!(action(&goto, &rules).unwrap(), want);
        const SECONDS: Field =
            Field { name: "seconds", kind: FieldKind::WholeOr { from: 0, to: 10, default: 2 } };
        let wait = Shape { name: "wait", fields: &[SECONDS], says: "" };
        let want = [fixed("\",\"seconds\":"), Part::Number { from: 0, to: 10 }, fixed("}}")];
        assert_eq!(action(&wait, &rules).unwrap(), want);
        let exact = Rules { exact_tokens: Some(150), ..rules.clone() };
        let [seconds, number, _] = want;
        assert_eq!(action(&wait, &exact).unwrap(), [seconds, number, fixed(""), Part::Space, fixed("}}")]);
        assert_eq!(
            action(&Shape { name: "refresh", fields: &[], says: "" }, &rules).unwrap(),
            [fixed("\"}}")]
        );
    }
}
