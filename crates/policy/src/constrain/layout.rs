//! A reply's layout: fixed text, literals, numbers and free texts in order, and how each becomes
//! nodes of the automaton.

use std::collections::{BTreeMap, HashMap};

use furrow_rollout::Grammar;

use super::automaton::{Automaton, JoinFailure, NodeId};
use super::error::ConstraintError;
use super::lexicon::TokenLexicon;
use super::rules::{ConstraintRules, TextCaps};
use crate::grammar::{self, ActionField, ActionShape, FieldKind, ReplyFrame};

/// An element of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ReplyElement {
    Fixed(String),
    /// One of these literals.
    Choices(&'static [&'static str]),
    /// A whole number within these inclusive bounds, without leading zeros.
    Number {
        from: u64,
        to: u64,
    },
    /// At most this many ids of free text.
    Text(u32),
    /// Free text that takes its whole budget.
    FillingText,
    /// White space that takes its whole budget, at least one id: after a number it shows that no
    /// digit follows.
    Space,
}

/// The bytes of JSON's white space.
const WHITE_SPACE: &[u8] = b" \t\n\r";

/// Builds the automaton of a grammar. Returns it with its first node.
pub(super) fn build(
    grammar: &Grammar,
    lexicon: &TokenLexicon<'_>,
    rules: &ConstraintRules,
) -> Result<(Automaton, NodeId), ConstraintError> {
    let mut builder = AutomatonBuilder::new(lexicon)?;
    let end = builder.automaton.end();
    // The end of a reply is a step of one id, so the stop id is forced.
    let stop = builder.automaton.chain(&[lexicon.stop], end);
    let frame =
        grammar::frame(grammar).ok_or_else(|| ConstraintError::NoLayout { grammar: grammar.name.clone() })?;
    let mut actions: Option<NodeId> = None;
    let is_on = |shape: &ActionShape| rules.endings || !frame.endings.contains(&shape.name);
    for shape in (frame.shapes)(&grammar.extra).into_iter().filter(is_on) {
        let rest = builder.parts(&action(&shape, rules)?, stop)?;
        let way = builder.choices(&[shape.name], rest)?;
        actions = Some(match actions {
            Some(others) => builder.either(others, way)?,
            None => way,
        });
    }
    let start = builder.parts(&head(&frame, rules), actions.unwrap_or(stop))?;
    Ok((builder.automaton, start))
}

/// The elements before the action's name.
fn head(frame: &ReplyFrame, rules: &ConstraintRules) -> Vec<ReplyElement> {
    let TextCaps { note, thought, .. } = rules.caps;
    vec![
        ReplyElement::Fixed("{\"note\":\"".into()),
        ReplyElement::Text(note),
        ReplyElement::Fixed("\",\"thought\":\"".into()),
        // This is the last text before the action. It reserves ids for the longest action, so that
        // every action stays possible.
        if rules.exact_tokens.is_some() { ReplyElement::FillingText } else { ReplyElement::Text(thought) },
        ReplyElement::Fixed(format!("\",\"{}\":{{\"{}\":\"", frame.call, frame.name)),
    ]
}

/// The elements after the action's name: all of its fields in order.
fn action(shape: &ActionShape, rules: &ConstraintRules) -> Result<Vec<ReplyElement>, ConstraintError> {
    let caps = &rules.caps;
    let mut parts = Vec::new();
    // Fixed text since the last free element. It starts with the quote that closes the name.
    let mut fixed = String::from("\"");
    for ActionField { name, kind } in shape.fields {
        fixed.push_str(&format!(",\"{name}\":"));
        let mut closing = "";
        let (quoted, free) = match *kind {
            FieldKind::Text => (true, vec![ReplyElement::Text(caps.of(name))]),
            FieldKind::Address => {
                (true, vec![ReplyElement::Choices(&["http://", "https://"]), ReplyElement::Text(caps.url)])
            }
            FieldKind::Choice(choices) | FieldKind::ChoiceOr(choices) => {
                (true, vec![ReplyElement::Choices(choices)])
            }
            // One key is the shortest list; a longer one has no advantage for a constrained policy.
            FieldKind::Keys { .. } => {
                fixed.push('[');
                closing = "]";
                (true, vec![ReplyElement::Text(caps.of("key"))])
            }
            FieldKind::Names { .. } => {
                fixed.push('[');
                closing = "]";
                (true, vec![ReplyElement::Text(caps.of("content"))])
            }
            FieldKind::Flag => (false, vec![ReplyElement::Choices(&["true", "false"])]),
            FieldKind::Whole { from, to } | FieldKind::WholeOr { from, to, .. } => {
                (false, vec![ReplyElement::Number { from, to }])
            }
            FieldKind::Number { .. }
            | FieldKind::NumberOr { .. }
            | FieldKind::Pair
            | FieldKind::PairOrNone
            | FieldKind::TextOrNone
            | FieldKind::KeysOrNone { .. }
            | FieldKind::Anything => {
                return Err(ConstraintError::NoLayout { grammar: shape.name.to_owned() });
            }
        };
        let quote = if quoted { "\"" } else { "" };
        parts.push(ReplyElement::Fixed(fixed + quote));
        parts.extend(free);
        fixed = format!("{quote}{closing}");
    }
    if rules.exact_tokens.is_some() {
        // White space fills what a shorter action leaves.
        parts.extend([ReplyElement::Fixed(fixed), ReplyElement::Space, ReplyElement::Fixed("}}".into())]);
    } else {
        parts.push(ReplyElement::Fixed(fixed + "}}"));
    }
    Ok(parts)
}

impl TokenLexicon<'_> {
    /// Ids that consist of white space only.
    pub(super) fn white_space(&self) -> Vec<u32> {
        let is_space = |text: &[u8]| text.iter().all(|byte| WHITE_SPACE.contains(byte));
        (0..self.rows as u32).filter(|id| self.text(*id).is_some_and(is_space)).collect()
    }
}

/// Ids that consist of digits only, with their text, by its length (index 0: one digit).
fn digits(lexicon: &TokenLexicon<'_>) -> Result<Vec<Vec<(u32, String)>>, ConstraintError> {
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

/// Turns elements into nodes, the last one first.
pub(super) struct AutomatonBuilder<'a, 'b> {
    pub automaton: Automaton,
    lexicon: &'a TokenLexicon<'b>,
    digits: Vec<Vec<(u32, String)>>,
}

/// The number that is being built: its bounds, the node after it, and the nodes of the prefixes so
/// far.
struct NumberRange {
    from: u64,
    to: u64,
    next: NodeId,
    /// Keyed by what can still follow: prefixes with the same ends share a node.
    known_nodes: HashMap<Vec<DigitEnds>, NodeId>,
}

/// How many digits may follow a prefix, and the range of the resulting numbers.
type DigitEnds = (u32, u128, u128);

impl<'a, 'b> AutomatonBuilder<'a, 'b> {
    pub(super) fn new(lexicon: &'a TokenLexicon<'b>) -> Result<Self, ConstraintError> {
        Ok(Self { automaton: Automaton::default(), lexicon, digits: digits(lexicon)? })
    }
}

impl AutomatonBuilder<'_, '_> {
    /// This text, tokenised alone.
    pub(super) fn fixed(&mut self, text: &str, next: NodeId) -> Result<NodeId, ConstraintError> {
        self.automaton.check_limits()?;
        self.automaton.count(text.len());
        let ids = self.lexicon.encode_exactly(text)?;
        Ok(self.automaton.chain(&ids, next))
    }

    /// Ids of one character of ASCII that a JSON string can have as it is, one for each.
    pub(super) fn single_chars(&self) -> Vec<u32> {
        let mut chars = BTreeMap::new();
        for id in 0..self.lexicon.rows as u32 {
            if let Some([byte @ b' '..=b'~']) = self.lexicon.text(id)
                && !matches!(byte, b'"' | b'\\')
            {
                chars.entry(*byte).or_insert(id);
            }
        }
        chars.into_values().collect()
    }

    /// From here on numbers are written digit by digit, although ids of several digits exist.
    pub(super) fn digit_by_digit(&mut self) {
        self.digits.truncate(1);
    }

    /// A whole number within these inclusive bounds, without leading zeros.
    pub(super) fn digits_of(&mut self, from: u64, to: u64, next: NodeId) -> Result<NodeId, ConstraintError> {
        self.number("", &mut NumberRange { from, to, next, known_nodes: HashMap::new() })
    }

    /// One to `digits_max` digits.
    pub(super) fn fraction(&mut self, digits_max: usize, next: NodeId) -> Result<NodeId, ConstraintError> {
        let mut node_ids = vec![next];
        for left in 1..=digits_max {
            let ids = self.digits.iter().take(left).enumerate();
            let edges = ids.flat_map(|(index, ids)| ids.iter().map(move |(id, _)| (*id, index + 1)));
            let edges: BTreeMap<u32, NodeId> =
                edges.map(|(id, taken)| (id, node_ids[left - taken])).collect();
            let some = self.automaton.step(edges);
            node_ids.push(if left < digits_max { self.either(some, next)? } else { some });
        }
        Ok(node_ids[digits_max])
    }

    /// Any of these alternatives.
    pub(super) fn one_of(&mut self, ways: Vec<NodeId>) -> Result<NodeId, ConstraintError> {
        let mut ways = ways.into_iter();
        let first = ways.next().ok_or(ConstraintError::Ambiguous)?;
        ways.try_fold(first, |all, way| self.either(all, way))
    }

    fn parts(&mut self, parts: &[ReplyElement], next: NodeId) -> Result<NodeId, ConstraintError> {
        parts.iter().rev().try_fold(next, |next, part| self.part(part, next))
    }

    fn part(&mut self, part: &ReplyElement, next: NodeId) -> Result<NodeId, ConstraintError> {
        match part {
            ReplyElement::Fixed(text) => self.fixed(text, next),
            ReplyElement::Choices(choices) => self.choices(choices, next),
            ReplyElement::Number { from, to } => self.digits_of(*from, *to, next),
            ReplyElement::Text(cap) => Ok(self.automaton.text(*cap, next)),
            ReplyElement::FillingText => Ok(self.automaton.filling_text(next)),
            ReplyElement::Space => self.space(next),
        }
    }

    fn space(&mut self, next: NodeId) -> Result<NodeId, ConstraintError> {
        let more = self.automaton.space(next);
        let ids = self.lexicon.white_space();
        if ids.is_empty() {
            return Err(ConstraintError::NoSpace);
        }
        Ok(self.automaton.step(ids.into_iter().map(|id| (id, more)).collect()))
    }

    /// One of some literals, each tokenised alone.
    pub(super) fn choices(
        &mut self,
        choices: &[impl AsRef<str>],
        next: NodeId,
    ) -> Result<NodeId, ConstraintError> {
        let mut all: Option<NodeId> = None;
        for choice in choices {
            let way = self.fixed(choice.as_ref(), next)?;
            all = Some(match all {
                Some(others) => self.either(others, way)?,
                None => way,
            });
        }
        Ok(all.unwrap_or(next))
    }

    /// The nodes of a number that begins with these digits.
    fn number(&mut self, begun: &str, number: &mut NumberRange) -> Result<NodeId, ConstraintError> {
        let ends = number.ends(begun);
        if let Some(node_id) = number.known_nodes.get(&ends) {
            return Ok(*node_id);
        }
        self.automaton.check_limits()?;
        self.automaton.count(self.digits.iter().map(Vec::len).sum());
        let mut edges = BTreeMap::new();
        for (id, grown) in self.grown(begun, number) {
            edges.insert(id, self.number(&grown, number)?);
        }
        let node_id = match (edges.is_empty(), number.is_whole(begun)) {
            (true, _) => number.next,
            (false, false) => self.automaton.step(edges),
            (false, true) => {
                let longer = self.automaton.step(edges);
                self.either(longer, number.next)?
            }
        };
        number.known_nodes.insert(ends, node_id);
        Ok(node_id)
    }

    /// The digits extended by one id, if the result is or can become such a number.
    fn grown(&self, begun: &str, number: &NumberRange) -> Vec<(u32, String)> {
        let digits_left = number.to.to_string().len() - begun.len();
        let ids = self.digits.iter().take(digits_left).flatten();
        let grown = ids.map(|(id, text)| (*id, format!("{begun}{text}")));
        grown.filter(|(_, grown)| number.begins_with(grown)).collect()
    }

    pub(super) fn either(&mut self, left: NodeId, right: NodeId) -> Result<NodeId, ConstraintError> {
        self.automaton.either(left, right).map_err(|why| match why {
            JoinFailure::Ambiguous => ConstraintError::Ambiguous,
            JoinFailure::TooLarge(why) => why.into(),
        })
    }
}

impl NumberRange {
    fn is_whole(&self, digits: &str) -> bool {
        digits.parse().is_ok_and(|value: u64| (self.from..=self.to).contains(&value))
    }

    /// What may follow these digits: for each count of further digits, the range of the resulting
    /// numbers.
    fn ends(&self, begun: &str) -> Vec<DigitEnds> {
        let digits_max = self.to.to_string().len();
        let Ok(value) = begun.parse::<u128>() else { return Vec::new() };
        let longer = if begun == "0" { 0 } else { digits_max.saturating_sub(begun.len()) as u32 };
        let from = u128::from(self.from);
        let to = u128::from(self.to);
        let ends = (0..=longer).filter_map(|digits| {
            let low = value * 10u128.pow(digits);
            let span = 10u128.pow(digits);
            let least = from.max(low);
            let most = to.min(low + span - 1);
            (least <= most).then(|| (digits, least - low, most - low))
        });
        ends.collect()
    }

    /// Whether one of the numbers begins with these digits: 41 begins 41, 410 to 419, 4100 to 4199,
    /// …
    fn begins_with(&self, digits: &str) -> bool {
        let Ok(value) = digits.parse::<u64>() else { return false };
        if digits.starts_with('0') {
            return digits == "0" && self.from == 0;
        }
        let mut low = value;
        let mut span = 1u64;
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
            let number = NumberRange { from, to, next: 0, known_nodes: HashMap::new() };
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
        let rules = ConstraintRules::from(TextCaps::default());
        let goto = ActionShape {
            name: "goto",
            fields: &[ActionField { name: "url", kind: FieldKind::Address }],
            description: "",
        };
        let fixed = |text: &str| ReplyElement::Fixed(text.into());
        let want = [
            fixed("\",\"url\":\""),
            ReplyElement::Choices(&["http://", "https://"]),
            ReplyElement::Text(rules.caps.url),
            fixed("\"}}"),
        ];
        assert_eq!(action(&goto, &rules).unwrap(), want);
        const SECONDS: ActionField =
            ActionField { name: "seconds", kind: FieldKind::WholeOr { from: 0, to: 10, default: 2 } };
        let wait = ActionShape { name: "wait", fields: &[SECONDS], description: "" };
        let want = [fixed("\",\"seconds\":"), ReplyElement::Number { from: 0, to: 10 }, fixed("}}")];
        assert_eq!(action(&wait, &rules).unwrap(), want);
        let exact = ConstraintRules { exact_tokens: Some(150), ..rules.clone() };
        let [seconds, number, _] = want;
        assert_eq!(
            action(&wait, &exact).unwrap(),
            [seconds, number, fixed(""), ReplyElement::Space, fixed("}}")]
        );
        assert_eq!(
            action(&ActionShape { name: "refresh", fields: &[], description: "" }, &rules).unwrap(),
            [fixed("\"}}")]
        );
    }
}
