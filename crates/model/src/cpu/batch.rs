//! A batch, checked and arranged in rows: one row a token, spans in the order of their slots.

use crate::backend::{BackendCapacity, BackendError, BatchValidator, SequenceSpan, Slot};

/// Rows of a span.
#[derive(Debug, Clone, Copy)]
pub(super) struct SpanRows {
    /// Index of the span in the batch.
    pub span: usize,
    pub base: usize,
    pub len: usize,
    /// Tokens before the first row.
    pub start: usize,
    /// Slot of its state.
    pub slot: Slot,
}

impl SpanRows {
    /// Its part of a buffer with `width` values a row.
    pub(super) fn rows<'a>(&self, values: &'a [f32], width: usize) -> &'a [f32] {
        &values[self.base * width..(self.base + self.len) * width]
    }
}

/// The layout of the newest batch.
#[derive(Debug)]
pub(super) struct BatchLayout {
    /// Spans by ascending slot, so that states can be borrowed mutably one after another.
    pub pieces: Vec<SpanRows>,
    /// Which piece each row belongs to.
    pub piece_of: Vec<u32>,
    /// Rows whose logits are needed, in the order of the spans.
    pub wanted: Vec<u32>,
    /// Index of each span's piece.
    piece_index: Vec<u32>,
}

impl BatchLayout {
    /// Allocates for any batch that fits the capacity.
    pub(super) fn new(capacity: &BackendCapacity) -> Self {
        let spans = capacity.slots.min(capacity.rows_max) as usize;
        Self {
            pieces: Vec::with_capacity(spans),
            piece_of: Vec::with_capacity(capacity.rows_max as usize),
            wanted: Vec::with_capacity(capacity.logits_max as usize),
            piece_index: Vec::with_capacity(spans),
        }
    }

    /// Rows of the batch.
    pub(super) fn rows(&self) -> usize {
        self.piece_of.len()
    }

    /// Checks the batch and arranges it. On error only the layout has changed.
    pub(super) fn arrange(
        &mut self,
        batch: &[SequenceSpan<'_>],
        validator: BatchValidator<'_>,
    ) -> Result<(), BackendError> {
        self.clear();
        validator.check(batch)?;
        self.order(batch);
        for (span, piece_index) in batch.iter().zip(&self.piece_index) {
            let piece = &self.pieces[*piece_index as usize];
            let end = piece.base + piece.len;
            self.wanted.extend((end - span.wanted()) as u32..end as u32);
        }
        Ok(())
    }

    fn order(&mut self, batch: &[SequenceSpan<'_>]) {
        let piece = |(span, of): (usize, &SequenceSpan<'_>)| SpanRows {
            span,
            base: 0,
            len: of.tokens.len(),
            start: of.start as usize,
            slot: of.slot,
        };
        self.pieces.extend(batch.iter().enumerate().map(piece));
        self.pieces.sort_unstable_by_key(|piece| piece.slot);
        assert!(
            self.pieces.windows(2).all(|two| two[0].slot < two[1].slot),
            "two spans of a batch share a slot"
        );
        self.piece_index.resize(batch.len(), 0);
        for (piece_index, piece) in self.pieces.iter_mut().enumerate() {
            piece.base = self.piece_of.len();
            self.piece_index[piece.span] = piece_index as u32;
            self.piece_of.resize(piece.base + piece.len, piece_index as u32);
        }
    }

    fn clear(&mut self) {
        self.pieces.clear();
        self.piece_of.clear();
        self.wanted.clear();
        self.piece_index.clear();
    }
}
