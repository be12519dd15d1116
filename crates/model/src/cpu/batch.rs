//! A batch, checked and laid out in rows: one a token, spans in the order of their slots.

use crate::backend::{BackendError, Door, Room, Slot, Span};

/// Where a span's rows lie.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    /// Which span of the batch it is.
    pub span: usize,
    /// Its first row.
    pub base: usize,
    /// Its rows.
    pub len: usize,
    /// Tokens before the first row.
    pub start: usize,
    /// Where its state is.
    pub slot: Slot,
}

impl Piece {
    /// Its part of some rows of `width` values.
    pub fn rows<'a>(&self, values: &'a [f32], width: usize) -> &'a [f32] {
        &values[self.base * width..(self.base + self.len) * width]
    }
}

/// The layout of the newest batch.
#[derive(Debug)]
pub(super) struct Layout {
    /// Spans by ascending slot, so that states can be lent out one after another.
    pub pieces: Vec<Piece>,
    /// Which piece each row belongs to.
    pub piece_of: Vec<u32>,
    /// Rows whose logits are wanted, in the order of the spans.
    pub wanted: Vec<u32>,
    /// Of each span, its piece.
    places: Vec<u32>,
}

impl Layout {
    /// Room for any batch that fits.
    pub fn new(room: &Room) -> Self {
        let spans = room.slots.min(room.rows_max) as usize;
        Self {
            pieces: Vec::with_capacity(spans),
            piece_of: Vec::with_capacity(room.rows_max as usize),
            wanted: Vec::with_capacity(room.logits_max as usize),
            places: Vec::with_capacity(spans),
        }
    }

    /// Rows of the batch.
    pub fn rows(&self) -> usize {
        self.piece_of.len()
    }

    /// Checks the batch and lays it out. On error nothing is changed but the layout.
    pub fn lay(&mut self, batch: &[Span<'_>], door: Door<'_>) -> Result<(), BackendError> {
        self.clear();
        door.check(batch)?;
        self.order(batch);
        for (span, place) in batch.iter().zip(&self.places) {
            let piece = &self.pieces[*place as usize];
            let end = piece.base + piece.len;
            self.wanted.extend((end - span.wanted()) as u32..end as u32);
        }
        Ok(())
    }

    fn order(&mut self, batch: &[Span<'_>]) {
        let piece = |(span, of): (usize, &Span<'_>)| Piece {
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
        self.places.resize(batch.len(), 0);
        for (place, piece) in self.pieces.iter_mut().enumerate() {
            piece.base = self.piece_of.len();
            self.places[piece.span] = place as u32;
            self.piece_of.resize(piece.base + piece.len, place as u32);
        }
    }

    fn clear(&mut self) {
        self.pieces.clear();
        self.piece_of.clear();
        self.wanted.clear();
        self.places.clear();
    }
}
