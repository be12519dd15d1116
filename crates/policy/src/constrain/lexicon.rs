//! What an automaton needs to know about a tokenizer: the bytes of each id, and the ids of a text.

use furrow_model::tokenizer::Tokenizer;

use super::error::ConstraintError;

/// Properties of a tokenizer and a model that the automaton needs.
pub struct TokenLexicon<'a> {
    /// Rows of the output head. Ids from here on cannot be sampled.
    pub rows: usize,
    /// The id that ends a reply.
    pub stop: u32,
    text: Box<TokenText<'a>>,
    encode: Box<TextEncoder<'a>>,
}

/// Returns the bytes of an id that is a piece of text.
type TokenText<'a> = dyn Fn(u32) -> Option<&'a [u8]> + 'a;

/// Returns the ids of a text.
type TextEncoder<'a> = dyn Fn(&str) -> Vec<u32> + 'a;

impl<'a> TokenLexicon<'a> {
    /// The lexicon of a checkpoint's tokenizer; `rows` and `stop` are its model's.
    pub fn of(tokenizer: &'a Tokenizer, rows: usize, stop: u32) -> Self {
        Self::new(rows, stop, |id| tokenizer.vocabulary().text(id), |text| tokenizer.encode(text))
    }

    /// The lexicon of any tokenizer, from functions that return the bytes of a text id and the ids
    /// of a text.
    pub fn new(
        rows: usize,
        stop: u32,
        text: impl Fn(u32) -> Option<&'a [u8]> + 'a,
        encode: impl Fn(&str) -> Vec<u32> + 'a,
    ) -> Self {
        Self { rows, stop, text: Box::new(text), encode: Box::new(encode) }
    }

    /// Bytes of an id that can occur in a reply's text.
    pub(super) fn text(&self, id: u32) -> Option<&'a [u8]> {
        let can_be_sampled = (id as usize) < self.rows && id != self.stop;
        (self.text)(id).filter(|bytes| can_be_sampled && !bytes.is_empty())
    }

    /// Ids of a text; checks that they decode to the same text.
    pub(super) fn encode_exactly(&self, piece: &str) -> Result<Vec<u32>, ConstraintError> {
        let ids = (self.encode)(piece);
        let back: Option<Vec<&[u8]>> = ids.iter().map(|id| self.text(*id)).collect();
        match back {
            Some(back) if back.concat() == piece.as_bytes() => Ok(ids),
            _ => Err(ConstraintError::Encoding { piece: piece.into(), ids, rows: self.rows }),
        }
    }

    /// Checks that the stop id can be sampled, since only it ends a reply.
    pub(super) fn check_stop(&self) -> Result<(), ConstraintError> {
        let Self { stop, rows, .. } = *self;
        if (stop as usize) < rows { Ok(()) } else { Err(ConstraintError::NoStop { stop, rows }) }
    }
}
