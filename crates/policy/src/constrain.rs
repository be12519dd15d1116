//! Constrained decoding: an automaton over token ids that restricts every reply to JSON which the
//! grammar's parser accepts.
//!
//! A reply consists of fixed text, literals, numbers and free texts (`layout.rs`). Fixed text and
//! literals are tokenised once, each alone, so no id spans the border between fixed and free text.
//! A free text takes ids whose bytes can be in a JSON string (`text.rs`), at most a cap of them,
//! and ends with the first id of the element after it.
//!
//! **A reply always fits.** `least` of a node is the number of ids to the end with every text
//! empty, along the longest of the other paths. A text continues only while the `least` of the node
//! after it, and what closes an open character or escape, still fit `max_tokens`. So every action
//! stays possible and the reply ends in time, whatever is sampled. `compile` refuses a `max_tokens`
//! below the start's `least`.
//!
//! **An exact length** (`ConstraintRules::exact_tokens`) uses the same rule. `max_tokens` is that
//! length. The text before the action is closed only when its budget is used up, so every action
//! still fits, and white space before the closing braces fills what the chosen action leaves.
//!
//! **Forced ids.** Where one id is legal, nothing is sampled: the caller appends it. The stop id at
//! the end is such an id, so under a grammar it is never sampled (`response_mask` 0, `forced`
//! true).
//!
//! A step costs one look-up, because masks are made when the grammar is compiled, one for each
//! distinct set of legal ids. For 131,072 ids with numbers of up to three digits and all extra
//! actions there are some 72 masks of 16 KiB, and 13 bytes for each id's transitions within a text:
//! 3 MiB a job.

mod automaton;
mod bounds;
mod calls;
mod error;
mod layout;
mod lexicon;
mod masks;
mod rules;
mod schema;
#[cfg(test)]
mod tests;
mod text;

use std::sync::Arc;

use furrow_model::sample::AllowedTokens;
use furrow_rollout::{FinishReason, Grammar};

use automaton::{Automaton, Node, NodeId};
pub use calls::CallForms;
pub use error::{ConstraintError, IllegalToken};
use layout::AutomatonBuilder;
pub use lexicon::TokenLexicon;
use masks::TokenMasks;
pub use rules::{ConstraintRules, TextCaps};
pub use schema::{Schema, SchemaError};
use text::{TextState, TextTransitions};

/// The automaton of one job's grammar and tokenizer, shared by its sessions.
#[derive(Debug)]
pub struct Constraint {
    automaton: Automaton,
    start: NodeId,
    max_tokens: u32,
    texts: Arc<TextTransitions>,
    masks: TokenMasks,
    /// Whether all paths must stay open to the end, or one.
    keeps_all_ways: bool,
}

/// The transitions of each id within a text, which are equal for all grammars and schemas of a
/// tokenizer.
#[derive(Debug, Clone)]
pub struct SharedTransitions(Arc<TextTransitions>);

/// A position in a reply.
#[derive(Debug, Clone)]
pub struct ConstraintCursor {
    constraint: Arc<Constraint>,
    node_id: NodeId,
    /// Number of ids so far.
    used: u32,
    /// Number of ids in the current text.
    text: u32,
    state: TextState,
    /// Whether a text was closed because its budget was used up.
    cut: bool,
}

/// The ids that may come next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextToken<'a> {
    /// This id and no other: append it.
    Forced(u32),
    /// One of these, at least two: sample it.
    Choose(&'a AllowedTokens),
    /// Nothing: the reply is complete, its stop id included.
    Done,
}

impl SharedTransitions {
    /// Computes the transitions of a tokenizer. Takes a second for 131,072 ids without
    /// optimisation.
    pub fn of(lexicon: &TokenLexicon<'_>) -> Self {
        Self(Arc::new(TextTransitions::new(lexicon)))
    }
}

impl Constraint {
    /// Builds the automaton and its masks, once for each job. Takes a second for 131,072 ids
    /// without optimisation.
    pub fn compile(
        grammar: &Grammar,
        lexicon: &TokenLexicon<'_>,
        rules: &ConstraintRules,
        max_tokens: u32,
    ) -> Result<Arc<Self>, ConstraintError> {
        lexicon.check_stop()?;
        let (automaton, start) = layout::build(grammar, lexicon, rules)?;
        let least = automaton.least(start);
        match rules.exact_tokens {
            Some(exact_tokens) if !(least..=max_tokens).contains(&exact_tokens) => {
                return Err(ConstraintError::NotExact { exact_tokens, least, max_tokens });
            }
            None if max_tokens < least => return Err(ConstraintError::TooFew { max_tokens, least }),
            _ => {}
        }
        let max_tokens = rules.exact_tokens.unwrap_or(max_tokens);
        let texts = Arc::new(TextTransitions::new(lexicon));
        let mut masks = TokenMasks::new(&automaton, &texts, lexicon.rows)?;
        if rules.exact_tokens.is_some() {
            masks = masks.with_space(&lexicon.white_space(), lexicon.rows);
        }
        Ok(Arc::new(Self { automaton, start, max_tokens, texts, masks, keeps_all_ways: true }))
    }

    /// Builds the automaton of a JSON schema. A list can end before its longest form, so one path
    /// is kept open instead of all: elements that no longer fit `max_tokens` are omitted, and the
    /// reply ends as `grammar_cap`.
    pub fn of_schema(
        schema: &Schema,
        lexicon: &TokenLexicon<'_>,
        letters: &SharedTransitions,
        max_tokens: u32,
    ) -> Result<Arc<Self>, ConstraintError> {
        let build = |digit_by_digit: bool| {
            Self::narrowed(lexicon, letters, max_tokens, |builder| {
                schema.build(builder, lexicon, digit_by_digit)
            })
        };
        // Many numbers are too many ids where ids have several digits.
        match build(false) {
            Err(ConstraintError::TooLarge { .. }) => build(true),
            made => made,
        }
    }

    /// Builds the automaton of calls. Calls that no longer fit `max_tokens` are omitted.
    pub fn of_calls(
        calls: &CallForms,
        lexicon: &TokenLexicon<'_>,
        letters: &SharedTransitions,
        max_tokens: u32,
    ) -> Result<Arc<Self>, ConstraintError> {
        let mut made = Err(ConstraintError::Ambiguous);
        for count in calls.counts() {
            made =
                Self::narrowed(lexicon, letters, max_tokens, |builder| calls.build(builder, lexicon, *count));
            if !matches!(made, Err(ConstraintError::TooLarge { .. })) {
                break;
            }
        }
        made
    }

    /// Builds an automaton that keeps one path open.
    fn narrowed(
        lexicon: &TokenLexicon<'_>,
        letters: &SharedTransitions,
        max_tokens: u32,
        build: impl FnOnce(&mut AutomatonBuilder<'_, '_>) -> Result<NodeId, ConstraintError>,
    ) -> Result<Arc<Self>, ConstraintError> {
        lexicon.check_stop()?;
        let mut builder = AutomatonBuilder::new(lexicon)?;
        let start = build(&mut builder)?;
        let automaton = builder.automaton.finished();
        let texts = letters.0.clone();
        let least = automaton.shortest(start);
        if max_tokens < least {
            return Err(ConstraintError::TooFew { max_tokens, least });
        }
        let masks = TokenMasks::narrowed(&automaton, &texts, lexicon.rows)?;
        Ok(Arc::new(Self { automaton, start, max_tokens, texts, masks, keeps_all_ways: false }))
    }

    /// Ids to reserve at this node so that a reply can reach its end.
    fn ids_needed(&self, node_id: NodeId) -> u32 {
        if self.keeps_all_ways { self.automaton.least(node_id) } else { self.automaton.shortest(node_id) }
    }

    /// Fewest ids that hold any reply with all texts empty: the least possible `max_tokens`.
    #[cfg(test)]
    pub(crate) fn tokens_least(&self) -> u32 {
        self.automaton.least(self.start)
    }

    /// Ids of the longest reply that the caps allow. With a lower `max_tokens`, early texts may
    /// shorten later ones.
    #[cfg(test)]
    pub(crate) fn tokens_most(&self) -> u32 {
        self.automaton.most(self.start)
    }

    /// Number of distinct sets of legal ids, with one bit for each id.
    pub fn masks(&self) -> usize {
        self.masks.len()
    }
}

impl ConstraintCursor {
    /// Creates a cursor at the start of a reply.
    pub fn new(constraint: &Arc<Constraint>) -> Self {
        let node_id = constraint.start;
        Self {
            constraint: constraint.clone(),
            node_id,
            used: 0,
            text: 0,
            state: TextState::Plain,
            cut: false,
        }
    }

    /// The ids that may come next.
    pub fn next(&self) -> NextToken<'_> {
        let masks = &self.constraint.masks;
        let mask = match self.node() {
            Node::End => return NextToken::Done,
            Node::Step(edges) if edges.len() == 1 => return NextToken::Forced(edges[0].0),
            Node::Step(_) => masks.step(self.node_id, self.left()).0,
            Node::Text { .. } => masks.text(self.node_id, self.state, self.text_budget()),
            Node::Space { close } => {
                match (self.takes_space(*close), masks.space(), self.single_id(*close)) {
                    (true, Some(space), _) => space,
                    (_, _, Some(id)) => return NextToken::Forced(id),
                    _ => unreachable!("one path follows white space, and white space has ids"),
                }
            }
        };
        match (mask.count(), mask.first()) {
            (1, Some(id)) => NextToken::Forced(id),
            _ => NextToken::Choose(mask),
        }
    }

    /// Takes an id that `next` allowed.
    pub fn advance(&mut self, id: u32) -> Result<(), IllegalToken> {
        let constraint = self.constraint.clone();
        let illegal = IllegalToken { id, index: self.used };
        match self.node() {
            Node::End => return Err(illegal),
            Node::Step(edges) if edges.len() == 1 => self.node_id = follow(edges, id).ok_or(illegal)?,
            Node::Step(edges) => {
                let (open, is_all) = constraint.masks.step(self.node_id, self.left());
                self.node_id = follow(edges, id).filter(|_| open.contains(id)).ok_or(illegal)?;
                self.cut |= !is_all;
            }
            Node::Space { close } if self.takes_space(*close) => {
                constraint.masks.space().filter(|space| space.contains(id)).ok_or(illegal)?;
            }
            Node::Space { close } => match constraint.automaton.at(*close) {
                Node::Step(edges) => self.node_id = follow(edges, id).ok_or(illegal)?,
                _ => return Err(illegal),
            },
            Node::Text { close, cap, fills } => match self.closing(*close, id) {
                Some(_) if *fills && self.text_budget() > 0 => return Err(illegal),
                Some(node_id) => {
                    // A cap of 0 means that the job disabled the text, so it does not count as cut.
                    self.cut |= self.text_budget() == 0 && *cap > 0;
                    (self.node_id, self.text) = (node_id, 0);
                }
                None if !constraint.masks.text(self.node_id, self.state, self.text_budget()).contains(id) => {
                    return Err(illegal);
                }
                None => {
                    self.state = constraint.texts.after(self.state, id).ok_or(illegal)?;
                    self.text += 1;
                }
            },
        }
        self.used += 1;
        Ok(())
    }

    /// Why a finished reply ended.
    pub fn finish_reason(&self) -> FinishReason {
        if self.cut { FinishReason::GrammarCap } else { FinishReason::Stop }
    }

    /// Number of ids so far.
    pub fn used(&self) -> u32 {
        self.used
    }

    fn node(&self) -> &Node {
        self.constraint.automaton.at(self.node_id)
    }

    /// The node after an id that closes the text; `None` if it does not close it.
    fn closing(&self, close: NodeId, id: u32) -> Option<NodeId> {
        match self.constraint.automaton.at(close) {
            Node::Step(edges) if self.state == TextState::Plain => follow(edges, id),
            _ => None,
        }
    }

    /// Whether white space comes next, because more ids are left than the rest takes.
    fn takes_space(&self, close: NodeId) -> bool {
        self.left() > self.constraint.ids_needed(close)
    }

    /// The single id at a node with one id.
    fn single_id(&self, node_id: NodeId) -> Option<u32> {
        match self.constraint.automaton.at(node_id) {
            Node::Step(edges) if edges.len() == 1 => Some(edges[0].0),
            _ => None,
        }
    }

    /// Ids that the text may still take: up to its cap, and so that the rest fits.
    fn text_budget(&self) -> u32 {
        let Node::Text { cap, close, .. } = self.node() else { return 0 };
        let left = self.left() - self.constraint.ids_needed(*close);
        left.min(cap - self.text)
    }

    /// Ids that the reply may still take.
    fn left(&self) -> u32 {
        self.constraint.max_tokens - self.used
    }
}

fn follow(edges: &[(u32, NodeId)], id: u32) -> Option<NodeId> {
    edges.binary_search_by_key(&id, |(id, _)| *id).ok().map(|index| edges[index].1)
}
