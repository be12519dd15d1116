//! Validates the batches of every backend: a batch fits the capacity, and every token has an
//! embedding or an image row.

use std::fmt;

use super::{BackendCapacity, BackendError, PAGE_TOKENS, SequenceSpan, TileFeature};

/// The limits that a batch is checked against.
#[derive(Clone, Copy)]
pub struct BatchValidator<'a> {
    /// The capacity that the backend was opened with.
    pub capacity: &'a BackendCapacity,
    /// Rows of the embedding table.
    pub embeddings: usize,
    /// Rows of a feature; 0 for a feature that does not exist.
    pub feature_rows: &'a dyn Fn(TileFeature) -> usize,
}

impl fmt::Debug for BatchValidator<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { capacity, embeddings, .. } = self;
        f.debug_struct("BatchValidator")
            .field("capacity", capacity)
            .field("embeddings", embeddings)
            .finish_non_exhaustive()
    }
}

impl BatchValidator<'_> {
    /// Checks that the batch can be run.
    ///
    /// # Errors
    /// Names the first limit that the batch exceeds, or the token that has no embedding.
    ///
    /// # Panics
    /// If a span has no token, or its insets are not sorted and disjoint.
    pub fn check(&self, batch: &[SequenceSpan<'_>]) -> Result<(), BackendError> {
        let rows = batch.iter().map(|span| span.tokens.len()).sum();
        let wanted = batch.iter().map(SequenceSpan::wanted).sum();
        check_capacity("rows of a batch", rows, self.capacity.rows_max)?;
        check_capacity("rows with logits", wanted, self.capacity.logits_max)?;
        batch.iter().try_for_each(|span| self.check_span(span))
    }

    fn check_span(&self, span: &SequenceSpan<'_>) -> Result<(), BackendError> {
        assert!(!span.tokens.is_empty(), "a span has no tokens");
        check_capacity("state slots", span.slot.0 as usize + 1, self.capacity.slots)?;
        let positions = span.start as usize + span.tokens.len();
        check_capacity("positions of a span's pages", positions, (span.pages.len() * PAGE_TOKENS) as u32)?;
        for page in span.pages {
            check_capacity("KV pages", page.0 as usize + 1, self.capacity.pages)?;
        }
        self.check_tokens(span)
    }

    /// Every token has an embedding, or an image row instead.
    fn check_tokens(&self, span: &SequenceSpan<'_>) -> Result<(), BackendError> {
        let mut next = 0;
        for inset in span.insets {
            assert!(inset.at as usize >= next, "insets of a span are not sorted and disjoint");
            self.check_ids(span, next, inset.at as usize)?;
            next = inset.at as usize + inset.len as usize;
            check_capacity("tokens of a span with an inset", next, span.tokens.len() as u32)?;
            let rows = (self.feature_rows)(inset.feature);
            check_capacity("rows of a tile feature", inset.row as usize + inset.len as usize, rows as u32)?;
        }
        self.check_ids(span, next, span.tokens.len())
    }

    fn check_ids(&self, span: &SequenceSpan<'_>, from: usize, to: usize) -> Result<(), BackendError> {
        let rows = self.embeddings;
        let bad = (from..to).find(|index| span.tokens[*index] as usize >= rows);
        match bad {
            Some(index) => Err(BackendError::NoEmbedding { id: span.tokens[index], index, rows }),
            None => Ok(()),
        }
    }
}

fn check_capacity(what: &'static str, requested: usize, capacity: u32) -> Result<(), BackendError> {
    let capacity = capacity as usize;
    if requested > capacity { Err(BackendError::OverCapacity { what, requested, capacity }) } else { Ok(()) }
}
