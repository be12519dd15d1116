//! Constrained decoding: an automaton over token ids that leads every reply to JSON the grammar's parser reads.
//!
//! A reply is fixed pieces, words, numbers and free texts (`layout.rs`). Fixed pieces and words are tokenised once, each alone, so no id
//! reaches across the border between what is given and what is free. A free text takes ids whose bytes can stand inside a JSON string
//! (`text.rs`), at most a cap of them, and ends with the first id of the piece behind it.
//!
//! **It always fits.** `least` of a place is the number of ids to the end with every text empty, by the longest of the other ways. A text
//! goes on only while its place's `least`, and what closes an open character or escape, still fit `max_tokens`; so whatever is drawn,
//! every action stays possible and the reply ends in time. `compile` refuses a `max_tokens` below the start's `least`.
//!
//! **An exact length** (`Rules::exact_tokens`) takes no more than that: `max_tokens` is it, the text in front of the action is closed only where
//! no room is left, so every action still fits, and white space in front of the closing braces takes what the chosen one leaves.
//!
//! **Forced ids.** Where one id is legal there is nothing to draw: the caller appends it. The stop id at the end is such a one, so under a
//! grammar it is never sampled (`response_mask` 0, `forced` true).
//!
//! A step costs a look-up: masks are made when the grammar is compiled, one for each set of legal ids that differs. For 131,072 ids with
//! numbers of up to three digits and all extra actions that is some 72 masks of 16 KiB, and 13 bytes an id for where it leads within a
//! text: 3 MiB a job.

mod automaton;
mod layout;
mod masks;
mod schema;
#[cfg(test)]
mod tests;
mod text;

use std::sync::Arc;

use furrow_model::sample::Allowed;
use furrow_model::tokenizer::Tokenizer;
use furrow_rollout::{FinishReason, Grammar};

use automaton::{Automaton, Node, Place, TooLarge};
use layout::Builder;
use masks::Masks;
pub use schema::{Schema, SchemaError};
use text::{State, Texts};

/// Most ids of each free text. A text that reaches its cap is closed, and the reply ends as `grammar_cap`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caps {
    /// `note`.
    pub note: u32,
    /// `thought`.
    pub thought: u32,
    /// `content` of an answer or of what is written.
    pub content: u32,
    /// `element`.
    pub element: u32,
    /// `url`, behind http:// or https://.
    pub url: u32,
    /// `key`.
    pub key: u32,
}

/// How replies are held to a grammar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Most ids of each free text.
    pub caps: Caps,
    /// Ids of every reply, its stop id included; `None`: as many as its texts take. `thought` then has no cap of its own: it takes what the longest
    /// action leaves, and white space in front of the closing braces what a shorter one does. A workload for measurements.
    pub exact_tokens: Option<u32>,
    /// Whether actions are possible that end a trajectory or can end it: an answer, an address off the task's list.
    pub endings: bool,
}

/// What the automaton needs to know of a tokenizer and a model.
pub struct Lexicon<'a> {
    /// Rows of the output head: ids from here on cannot be drawn.
    pub rows: usize,
    /// The id that ends a reply.
    pub stop: u32,
    text: Box<Text<'a>>,
    encode: Box<Encode<'a>>,
}

/// Bytes of an id that is a piece of text.
type Text<'a> = dyn Fn(u32) -> Option<&'a [u8]> + 'a;
/// Ids of a text.
type Encode<'a> = dyn Fn(&str) -> Vec<u32> + 'a;

/// The automaton of one job's grammar and tokenizer, shared by its sessions.
#[derive(Debug)]
pub struct Constraint {
    automaton: Automaton,
    start: Place,
    max_tokens: u32,
    texts: Arc<Texts>,
    masks: Masks,
    /// Whether every way stays open to the end, or one.
    keeps_all_ways: bool,
}

/// Where each id leads within a text: the same for every grammar and schema of a tokenizer.
#[derive(Debug, Clone)]
pub struct Letters(Arc<Texts>);

/// A place in a reply.
#[derive(Debug, Clone)]
pub struct Cursor {
    constraint: Arc<Constraint>,
    place: Place,
    /// Ids so far.
    used: u32,
    /// Ids of the text it is in.
    text: u32,
    state: State,
    /// Whether a text was closed because no room was left.
    cut: bool,
}

/// What may come next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next<'a> {
    /// This id and no other: append it.
    Forced(u32),
    /// One of these, at least two: draw it.
    Choose(&'a Allowed),
    /// Nothing: the reply is complete, its stop id included.
    Done,
}

/// Why a grammar cannot be enforced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// A piece of the grammar does not survive the tokenizer.
    #[error(
        "the tokenizer does not give {piece:?} back from its ids {ids:?}; constrained decoding needs a byte-level tokenizer whose ids \
         are below the model's {rows} rows"
    )]
    Encoding {
        /// The piece.
        piece: String,
        /// What it became.
        ids: Vec<u32>,
        /// Ids that can be drawn are below.
        rows: usize,
    },
    /// Decoding cannot be held to this grammar.
    #[error(
        "replies of {grammar:?} have no one layout; constrained decoding works with holo_navigation and holo_step"
    )]
    NoLayout {
        /// The grammar, or an action of it.
        grammar: String,
    },
    /// A number could not be written digit by digit.
    #[error("the tokenizer has no id for the digit {digit} alone; constrained decoding needs all ten")]
    NoDigit {
        /// Which.
        digit: u8,
    },
    /// Nothing fills what a short action leaves of an exact length.
    #[error(
        "the tokenizer has no id that is white space alone; policy.constrain.exact_tokens needs one, leave it at 0"
    )]
    NoSpace,
    /// Replies of an exact length do not fit.
    #[error(
        "policy.constrain.exact_tokens: {exact_tokens}; with this tokenizer a reply takes at least {least} ids with every action possible, and policy.sampling.max_tokens is {max_tokens}: use {least} to {max_tokens}"
    )]
    NotExact {
        /// What the job asks for.
        exact_tokens: u32,
        /// What would be enough.
        least: u32,
        /// What the job allows.
        max_tokens: u32,
    },
    /// The stop id cannot be drawn.
    #[error("the stop id {stop} is not below the model's {rows} rows")]
    NoStop {
        /// The id.
        stop: u32,
        /// Ids that can be drawn are below.
        rows: usize,
    },
    /// Two pieces of the grammar became ids that cannot be told apart.
    #[error(
        "two actions or words of the grammar become the same ids; the tokenizer's vocabulary is not usable"
    )]
    Ambiguous,
    /// A schema has too many forms.
    #[error(
        "the schema has more than {most} {what}; make its lists shorter, with maxItems, nest less or name fewer properties"
    )]
    TooLarge {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        most: usize,
    },
    /// It could not be built: a fault of this program.
    #[error("the automaton was not built: {why}")]
    Broken {
        /// What happened.
        why: String,
    },
    /// A reply does not fit.
    #[error(
        "policy.sampling.max_tokens: {max_tokens}; a constrained reply takes at least {least} ids with this tokenizer, use {least} or more"
    )]
    TooFew {
        /// What the job allows.
        max_tokens: u32,
        /// What would be enough.
        least: u32,
    },
}

/// An id that may not come where it came.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("id {id} is not legal as response token {index}")]
pub struct Illegal {
    /// The id.
    pub id: u32,
    /// Its index in the response.
    pub index: u32,
}

impl From<TooLarge> for ConstraintError {
    fn from(why: TooLarge) -> Self {
        Self::TooLarge { what: why.what, most: why.most }
    }
}

impl Default for Caps {
    fn default() -> Self {
        Self { note: 64, thought: 96, content: 128, element: 48, url: 128, key: 16 }
    }
}

impl From<Caps> for Rules {
    fn from(caps: Caps) -> Self {
        Self { caps, exact_tokens: None, endings: true }
    }
}

impl Caps {
    /// The cap of an action's field.
    fn of(&self, field: &str) -> u32 {
        match field {
            "element" => self.element,
            "url" => self.url,
            "key" => self.key,
            _ => self.content,
        }
    }
}

impl<'a> Lexicon<'a> {
    /// Of a checkpoint's tokenizer; `rows` and `stop` are its model's.
    pub fn of(tokenizer: &'a Tokenizer, rows: usize, stop: u32) -> Self {
        Self::new(rows, stop, |id| tokenizer.vocabulary().text(id), |text| tokenizer.encode(text))
    }

    /// Of any tokenizer: the bytes of an id that is text, and the ids of a text.
    pub fn new(
        rows: usize,
        stop: u32,
        text: impl Fn(u32) -> Option<&'a [u8]> + 'a,
        encode: impl Fn(&str) -> Vec<u32> + 'a,
    ) -> Self {
        Self { rows, stop, text: Box::new(text), encode: Box::new(encode) }
    }

    /// Bytes of an id that can stand in a reply's text.
    fn text(&self, id: u32) -> Option<&'a [u8]> {
        let can_be_drawn = (id as usize) < self.rows && id != self.stop;
        (self.text)(id).filter(|bytes| can_be_drawn && !bytes.is_empty())
    }

    /// Ids of a text, which they must give back.
    fn encode_exactly(&self, piece: &str) -> Result<Vec<u32>, ConstraintError> {
        let ids = (self.encode)(piece);
        let back: Option<Vec<&[u8]>> = ids.iter().map(|id| self.text(*id)).collect();
        match back {
            Some(back) if back.concat() == piece.as_bytes() => Ok(ids),
            _ => Err(ConstraintError::Encoding { piece: piece.into(), ids, rows: self.rows }),
        }
    }

    /// A reply can only end by an id that can be drawn.
    fn has_stop(&self) -> Result<(), ConstraintError> {
        let Self { stop, rows, .. } = *self;
        if (stop as usize) < rows { Ok(()) } else { Err(ConstraintError::NoStop { stop, rows }) }
    }
}

impl Letters {
    /// Of a tokenizer. A second for 131,072 ids without optimisation.
    pub fn of(lexicon: &Lexicon<'_>) -> Self {
        Self(Arc::new(Texts::new(lexicon)))
    }
}

impl Constraint {
    /// Builds the automaton and its masks. A second for 131,072 ids without optimisation: once a job.
    pub fn compile(
        grammar: &Grammar,
        lexicon: &Lexicon<'_>,
        rules: &Rules,
        max_tokens: u32,
    ) -> Result<Arc<Self>, ConstraintError> {
        lexicon.has_stop()?;
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
        let texts = Arc::new(Texts::new(lexicon));
        let mut masks = Masks::new(&automaton, &texts, lexicon.rows)?;
        if rules.exact_tokens.is_some() {
            masks = masks.with_space(&lexicon.white_space(), lexicon.rows);
        }
        Ok(Arc::new(Self { automaton, start, max_tokens, texts, masks, keeps_all_ways: true }))
    }

    /// The same for a JSON schema. Its lists have an end whatever their longest form is, so one way is kept open and not all: what no longer
    /// fits `max_tokens` is left out, and the reply ends as `grammar_cap`.
    pub fn of_schema(
        schema: &Schema,
        lexicon: &Lexicon<'_>,
        letters: &Letters,
        max_tokens: u32,
    ) -> Result<Arc<Self>, ConstraintError> {
        lexicon.has_stop()?;
        let mut builder = Builder::new(lexicon)?;
        let start = schema.build(&mut builder, lexicon)?;
        let (automaton, texts) = (builder.automaton.finished(), letters.0.clone());
        let least = automaton.shortest(start);
        if max_tokens < least {
            return Err(ConstraintError::TooFew { max_tokens, least });
        }
        let masks = Masks::narrowed(&automaton, &texts, lexicon.rows)?;
        Ok(Arc::new(Self { automaton, start, max_tokens, texts, masks, keeps_all_ways: false }))
    }

    /// Ids that are kept free so that a reply at this place comes to its end.
    fn needed(&self, place: Place) -> u32 {
        if self.keeps_all_ways { self.automaton.least(place) } else { self.automaton.shortest(place) }
    }

    /// Fewest ids that hold any reply, all texts empty: the least that `max_tokens` can be.
    pub fn tokens_least(&self) -> u32 {
        self.automaton.least(self.start)
    }

    /// Ids of the longest reply the caps allow. With a `max_tokens` below it, early texts may shorten later ones.
    pub fn tokens_most(&self) -> u32 {
        self.automaton.most(self.start)
    }

    /// Sets of legal ids that it holds, one bit an id each.
    pub fn masks(&self) -> usize {
        self.masks.len()
    }
}

impl Cursor {
    /// At the beginning of a reply.
    pub fn new(constraint: &Arc<Constraint>) -> Self {
        let place = constraint.start;
        Self { constraint: constraint.clone(), place, used: 0, text: 0, state: State::Plain, cut: false }
    }

    /// What may come next.
    pub fn next(&self) -> Next<'_> {
        let masks = &self.constraint.masks;
        let mask = match self.node() {
            Node::End => return Next::Done,
            Node::Step(edges) if edges.len() == 1 => return Next::Forced(edges[0].0),
            Node::Step(_) => masks.step(self.place, self.left()).0,
            Node::Text { .. } => masks.text(self.place, self.state, self.room()),
            Node::Space { close } => match (self.spaces(*close), masks.space(), self.only(*close)) {
                (true, Some(space), _) => space,
                (_, _, Some(id)) => return Next::Forced(id),
                _ => unreachable!("white space is followed by one way, and there are ids for it"),
            },
        };
        match (mask.count(), mask.first()) {
            (1, Some(id)) => Next::Forced(id),
            _ => Next::Choose(mask),
        }
    }

    /// Takes an id that `next` allowed.
    pub fn advance(&mut self, id: u32) -> Result<(), Illegal> {
        let constraint = self.constraint.clone();
        let illegal = Illegal { id, index: self.used };
        match self.node() {
            Node::End => return Err(illegal),
            Node::Step(edges) if edges.len() == 1 => self.place = follow(edges, id).ok_or(illegal)?,
            Node::Step(edges) => {
                let (open, is_all) = constraint.masks.step(self.place, self.left());
                self.place = follow(edges, id).filter(|_| open.contains(id)).ok_or(illegal)?;
                self.cut |= !is_all;
            }
            Node::Space { close } if self.spaces(*close) => {
                constraint.masks.space().filter(|space| space.contains(id)).ok_or(illegal)?;
            }
            Node::Space { close } => match constraint.automaton.at(*close) {
                Node::Step(edges) => self.place = follow(edges, id).ok_or(illegal)?,
                _ => return Err(illegal),
            },
            Node::Text { close, cap, fills } => match self.closing(*close, id) {
                Some(_) if *fills && self.room() > 0 => return Err(illegal),
                Some(place) => {
                    // A cap of 0 is a text that the job switched off: nothing was cut.
                    self.cut |= self.room() == 0 && *cap > 0;
                    (self.place, self.text) = (place, 0);
                }
                None if !constraint.masks.text(self.place, self.state, self.room()).contains(id) => {
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

    /// Ids so far.
    pub fn used(&self) -> u32 {
        self.used
    }

    fn node(&self) -> &Node {
        self.constraint.automaton.at(self.place)
    }

    /// Where an id leads that closes the text; `None` where it does not.
    fn closing(&self, close: Place, id: u32) -> Option<Place> {
        match self.constraint.automaton.at(close) {
            Node::Step(edges) if self.state == State::Plain => follow(edges, id),
            _ => None,
        }
    }

    /// Whether white space comes next: more ids are left than what follows takes.
    fn spaces(&self, close: Place) -> bool {
        self.left() > self.constraint.needed(close)
    }

    /// The id at a place where there is one.
    fn only(&self, place: Place) -> Option<u32> {
        match self.constraint.automaton.at(place) {
            Node::Step(edges) if edges.len() == 1 => Some(edges[0].0),
            _ => None,
        }
    }

    /// Ids the text may still take: up to its cap, and so that what follows fits.
    fn room(&self) -> u32 {
        let Node::Text { cap, close, .. } = self.node() else { return 0 };
        let left = self.left() - self.constraint.needed(*close);
        left.min(cap - self.text)
    }

    /// Ids the reply may still take.
    fn left(&self) -> u32 {
        self.constraint.max_tokens - self.used
    }
}

fn follow(edges: &[(u32, Place)], id: u32) -> Option<Place> {
    edges.binary_search_by_key(&id, |(id, _)| *id).ok().map(|index| edges[index].1)
}
