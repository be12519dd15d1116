//! A batch, checked and laid out in rows: one a token, spans in the order of their slots.

use super::features::Features;
use crate::backend::{BackendError, PAGE_TOKENS, Room, Slot, Span, Want};

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
    pub fn lay(&mut self, batch: &[Span<'_>], doors: Doors<'_>) -> Result<(), BackendError> {
        self.clear();
        let rows = batch.iter().map(|span| span.tokens.len()).sum();
        let wanted = batch.iter().map(wanted).sum();
        fits("rows of a batch", rows, doors.room.rows_max)?;
        fits("rows whose logits are wanted", wanted, doors.room.logits_max)?;
        for span in batch {
            doors.check(span)?;
        }
        self.order(batch);
        for (span, place) in batch.iter().zip(&self.places) {
            let piece = &self.pieces[*place as usize];
            let end = piece.base + piece.len;
            self.wanted.extend((end - self::wanted(span)) as u32..end as u32);
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

/// What spans are checked against.
#[derive(Debug, Clone, Copy)]
pub(super) struct Doors<'a> {
    pub room: &'a Room,
    pub features: &'a Features,
    /// Rows of the embedding table.
    pub embeddings: usize,
}

impl Doors<'_> {
    fn check(&self, span: &Span<'_>) -> Result<(), BackendError> {
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
            let rows = self.features.rows(inset.feature).unwrap_or(0);
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

fn wanted(span: &Span<'_>) -> usize {
    match span.want {
        Want::Nothing => 0,
        Want::Last => 1,
        Want::All => span.tokens.len(),
    }
}

fn fits(what: &'static str, asked: usize, room: u32) -> Result<(), BackendError> {
    let room = room as usize;
    if asked > room { Err(BackendError::NoRoom { what, asked, room }) } else { Ok(()) }
}
