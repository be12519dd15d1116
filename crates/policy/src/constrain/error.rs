//! Why a grammar or a schema cannot be enforced, and why an id is refused.

use super::automaton::LimitExceeded;

/// Why a grammar or a schema cannot be enforced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// The tokenizer does not reproduce a piece of the grammar.
    #[error(
        "the tokenizer does not decode the ids {ids:?} back to {piece:?}; constrained decoding needs a byte-level tokenizer whose ids \
         are below the model's {rows} rows"
    )]
    Encoding {
        piece: String,
        ids: Vec<u32>,
        /// Rows of the output head; ids below can be sampled.
        rows: usize,
    },
    /// Replies of this grammar have no single layout.
    #[error(
        "replies of {grammar:?} have no single layout; constrained decoding works with holo_navigation and holo_step"
    )]
    NoLayout {
        /// The grammar, or an action of it.
        grammar: String,
    },
    /// A number cannot be written digit by digit.
    #[error("the tokenizer has no id for the digit {digit} alone; constrained decoding needs all ten")]
    NoDigit { digit: u8 },
    /// No id is one character.
    #[error(
        "the tokenizer has no id of one character, which texts of bounded length need; leave minLength and maxLength out"
    )]
    NoChars,
    /// No id can fill what a short action leaves of an exact length.
    #[error(
        "the tokenizer has no id of white space alone, which policy.constrain.exact_tokens needs; set it to 0"
    )]
    NoSpace,
    /// Replies of the exact length do not fit.
    #[error(
        "policy.constrain.exact_tokens: {exact_tokens}; with this tokenizer a reply takes at least {least} ids with every action possible, and policy.sampling.max_tokens is {max_tokens}: use {least} to {max_tokens}"
    )]
    NotExact {
        exact_tokens: u32,
        /// The least possible length.
        least: u32,
        max_tokens: u32,
    },
    /// The stop id cannot be sampled.
    #[error("the stop id {stop} is not below the model's {rows} rows")]
    NoStop {
        stop: u32,
        /// Rows of the output head; ids below can be sampled.
        rows: usize,
    },
    /// Two pieces of the grammar have the same ids.
    #[error(
        "two actions or literals of the grammar become the same ids; use a tokenizer that distinguishes them"
    )]
    Ambiguous,
    /// A schema's automaton is too large.
    #[error(
        "the schema has more than {most} {what}; shorten its lists with maxItems, nest less or name fewer properties"
    )]
    TooLarge { what: &'static str, most: usize },
    /// The build panicked, which is a bug.
    #[error("the automaton could not be built: {why}")]
    Broken { why: String },
    /// The shortest reply exceeds the limit.
    #[error(
        "policy.sampling.max_tokens: {max_tokens}; a constrained reply takes at least {least} ids with this tokenizer; use {least} or more"
    )]
    TooFew {
        max_tokens: u32,
        /// The least possible limit.
        least: u32,
    },
}

/// An id that is not legal at its position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("id {id} is not legal as response token {index}")]
pub struct IllegalToken {
    pub id: u32,
    /// Its index in the response.
    pub index: u32,
}

impl From<LimitExceeded> for ConstraintError {
    fn from(why: LimitExceeded) -> Self {
        Self::TooLarge { what: why.what, most: why.most }
    }
}
