//! The door of every backend: a batch fits its room, and every token has a row to begin with.

use std::fmt;

use super::{BackendError, Feature, PAGE_TOKENS, Room, Span};

/// What a batch is checked against.
#[derive(Clone, Copy)]
pub struct Door<'a> {
    /// What the backend was opened with.
    pub room: &'a Room,
    /// Rows of the embedding table.
    pub embeddings: usize,
    /// Rows that a feature has; 0 when it is not held.
    pub feature_rows: &'a dyn Fn(Feature) -> usize,
}

impl fmt::Debug for Door<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { room, embeddings, .. } = self;
        f.debug_struct("Door").field("room", room).field("embeddings", embeddings).finish_non_exhaustive()
    }
}

impl Door<'_> {
    /// Whether the batch can be run.
    ///
    /// # Errors
    /// Names the first thing there is no room for, or the token that has no embedding.
    ///
    /// # Panics
    /// When a span has no token, or its insets are not sorted and disjoint.
    pub fn check(&self, batch: &[Span<'_>]) -> Result<(), BackendError> {
        let rows = batch.iter().map(|span| span.tokens.len()).sum();
        let wanted = batch.iter().map(Span::wanted).sum();
        fits("rows of a batch", rows, self.room.rows_max)?;
        fits("rows whose logits are wanted", wanted, self.room.logits_max)?;
        batch.iter().try_for_each(|span| self.check_span(span))
    }

    fn check_span(&self, span: &Span<'_>) -> Result<(), BackendError> {
        assert!(!span.tokens.is_empty(), "a span has at least one token");
        fits("state slots", span.slot.0 as usize + 1, self.room.slots)?;
        let positions = span.start as usize + span.tokens.len();
        fits("positions of a span's pages", positions, (span.pages.len() * PAGE_TOKENS) as u32)?;
        for page in span.pages {
            fits("KV pages", page.0 as usize + 1, self.room.pages)?;
        }
        self.check_tokens(span)
    }

    /// Every token has an embedding or an image row in its place.
    fn check_tokens(&self, span: &Span<'_>) -> Result<(), BackendError> {
        let mut next = 0;
        for inset in span.insets {
            assert!(inset.at as usize >= next, "insets are sorted and disjoint");
            self.check_ids(span, next, inset.at as usize)?;
            next = inset.at as usize + inset.len as usize;
            fits("tokens of a span with an inset", next, span.tokens.len() as u32)?;
            let rows = (self.feature_rows)(inset.feature);
            fits("rows of a tile feature", inset.row as usize + inset.len as usize, rows as u32)?;
        }
        self.check_ids(span, next, span.tokens.len())
    }

    fn check_ids(&self, span: &Span<'_>, from: usize, to: usize) -> Result<(), BackendError> {
        let rows = self.embeddings;
        let bad = (from..to).find(|index| span.tokens[*index] as usize >= rows);
        match bad {
            Some(index) => Err(BackendError::NoEmbedding { id: span.tokens[index], index, rows }),
            None => Ok(()),
        }
    }
}

fn fits(what: &'static str, asked: usize, room: u32) -> Result<(), BackendError> {
    let room = room as usize;
    if asked > room { Err(BackendError::NoRoom { what, asked, room }) } else { Ok(()) }
}
