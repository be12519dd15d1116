//! One sequence of tokens: which tokens are known, how many of them the state holds, and where it
//! is cut into spans.
//!
//! A *chunk group* is what becomes known between two sampled tokens: an observation, or the sampled
//! token with the forced ones after it. It is cut at multiples of a chunk counted from its own
//! start, at fork points inside it, and at its end. So the cuts depend on the session's tokens
//! alone, and a session that is rebuilt from its traces runs through the same spans.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use furrow_model::vision::ImageTile;

/// A screenshot, cut into tiles.
#[derive(Debug, PartialEq)]
pub struct TiledImage {
    /// Tiles in the order of their rows.
    pub tiles: Vec<ImageTile>,
    /// Language-model rows of a tile.
    pub rows_per_tile: u32,
    /// Tiles across and down, without the thumbnail.
    pub grid: (u16, u16),
    /// SHA-256 of the encoded image.
    pub blob_sha256: [u8; 32],
    /// SHA-256 of the decoded RGB pixels.
    pub rgb_sha256: [u8; 32],
}

/// An image among tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct PositionedImage {
    /// Index of its first placeholder.
    pub at: u32,
    pub picture: Arc<TiledImage>,
}

/// Tokens that extend a sequence.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TokenSegment {
    pub ids: Vec<u32>,
    /// Images among them, in order; `at` counts from the segment's start.
    pub pictures: Vec<PositionedImage>,
    /// Ends of chunk groups, counted from the segment's start, ascending. Tokens after the last end
    /// belong to the next chunk group.
    pub ends: Vec<u32>,
    /// Positions in it from which siblings may fork, ascending.
    pub forks: Vec<u32>,
}

/// Some rows of one tile.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TileRows<'a> {
    /// Index of the first placeholder in the span.
    pub at: u32,
    pub len: u32,
    /// Row of the tile that the first placeholder takes.
    pub row: u32,
    pub tile: &'a ImageTile,
}

/// A session's tokens, images and cuts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sequence {
    ids: Vec<u32>,
    pictures: VecDeque<PositionedImage>,
    forks: VecDeque<u32>,
    cuts: VecDeque<u32>,
    done: u32,
}

impl TiledImage {
    /// Number of placeholders it takes.
    pub fn rows(&self) -> u32 {
        self.tiles.len() as u32 * self.rows_per_tile
    }
}

impl TokenSegment {
    /// Text as one chunk group; none if it is empty.
    pub fn text(ids: Vec<u32>) -> Self {
        let ends = if ids.is_empty() { Vec::new() } else { vec![ids.len() as u32] };
        Self { ids, ends, ..Self::default() }
    }
}

impl Sequence {
    /// A sequence that begins at the end of this one's last chunk group, for a fork of its state.
    /// Tokens after that end run with the fork's first chunk group.
    pub(crate) fn fork(&self) -> Self {
        Self { ids: self.ids.clone(), done: self.planned(), ..Self::default() }
    }

    /// Number of known tokens.
    pub(crate) fn len(&self) -> u32 {
        self.ids.len() as u32
    }

    /// Number of tokens in the state.
    pub(crate) fn done(&self) -> u32 {
        self.done
    }

    /// Adds a segment and cuts the chunk groups that end in it.
    pub(crate) fn extend(&mut self, segment: TokenSegment, chunk: u32) {
        let start = self.len();
        self.ids.extend(segment.ids);
        let positioned = segment.pictures.into_iter();
        self.pictures
            .extend(positioned.map(|positioned| PositionedImage { at: start + positioned.at, ..positioned }));
        self.forks.extend(segment.forks.iter().map(|fork| start + fork));
        for end in segment.ends {
            self.cut_chunk_group(start + end, chunk);
        }
    }

    /// Adds one token to the open chunk group.
    pub(crate) fn push(&mut self, id: u32) {
        self.ids.push(id);
    }

    /// Ends the chunk group at the last known token; false if it is empty.
    pub(crate) fn end_chunk_group(&mut self, chunk: u32) -> bool {
        self.cut_chunk_group(self.len(), chunk)
    }

    fn cut_chunk_group(&mut self, end: u32, chunk: u32) -> bool {
        let start = self.planned();
        if end <= start {
            return false;
        }
        let mut cuts: Vec<u32> = (start..end).step_by(chunk as usize).skip(1).collect();
        cuts.extend(self.forks.iter().filter(|fork| (start + 1..end).contains(*fork)));
        cuts.push(end);
        cuts.sort_unstable();
        cuts.dedup();
        self.cuts.extend(cuts);
        true
    }

    /// End of the last chunk group that was cut.
    pub(crate) fn planned(&self) -> u32 {
        self.cuts.back().copied().unwrap_or(self.done)
    }

    /// The next span to run.
    pub(crate) fn next(&self) -> Option<Range<u32>> {
        self.cuts.front().map(|end| self.done..*end)
    }

    /// The span after the next one, if it is cut.
    pub(crate) fn after_next(&self) -> Option<Range<u32>> {
        let mut cuts = self.cuts.iter();
        let start = *cuts.next()?;
        cuts.next().map(|end| start..*end)
    }

    /// Whether no further cut follows the next span.
    pub(crate) fn is_last(&self) -> bool {
        self.cuts.len() == 1
    }

    /// Tokens of a span.
    pub(crate) fn tokens(&self, span: Range<u32>) -> &[u32] {
        &self.ids[span.start as usize..span.end as usize]
    }

    /// Rows of tiles in a span.
    pub(crate) fn tile_rows(&self, span: Range<u32>) -> Vec<TileRows<'_>> {
        self.pictures.iter().flat_map(|positioned| positioned.rows_in(span.clone())).collect()
    }

    /// Marks the next span as run. Returns whether siblings may fork from its end.
    pub(crate) fn advance(&mut self) -> bool {
        let Some(end) = self.cuts.pop_front() else { return false };
        self.reach(end);
        self.forks.pop_front_if(|fork| *fork == end).is_some()
    }

    /// Continues from a sibling's state, up to a fork point that has not run.
    pub(crate) fn forked_to(&mut self, position: u32) {
        self.reach(position);
        while self.cuts.pop_front_if(|cut| *cut <= position).is_some() {}
        while self.forks.pop_front_if(|fork| *fork <= position).is_some() {}
    }

    /// Drops images whose rows are all in the state.
    fn reach(&mut self, done: u32) {
        self.done = done;
        while self
            .pictures
            .pop_front_if(|positioned| positioned.at + positioned.picture.rows() <= done)
            .is_some()
        {}
    }

    /// Fork points that have not run, the farthest first.
    pub(crate) fn forks_ahead(&self) -> impl Iterator<Item = u32> + '_ {
        self.forks.iter().rev().copied()
    }

    /// Passes the bytes of a snapshot's key to `part`: ids and pixel hashes up to a fork point of a
    /// sequence that has not begun.
    pub(crate) fn visit_key_bytes(&self, position: u32, mut part: impl FnMut(&[u8])) {
        let mut at = 0;
        for positioned in self.pictures.iter().filter(|positioned| positioned.at < position) {
            let end = (positioned.at + positioned.picture.rows()).min(position);
            self.ids[at..end as usize].iter().for_each(|id| part(&id.to_le_bytes()));
            part(&positioned.picture.rgb_sha256);
            at = end as usize;
        }
        self.ids[at..position as usize].iter().for_each(|id| part(&id.to_le_bytes()));
    }
}

impl PositionedImage {
    fn rows_in(&self, span: Range<u32>) -> impl Iterator<Item = TileRows<'_>> {
        let rows = self.picture.rows_per_tile;
        let tiles = self.picture.tiles.iter().zip((self.at..).step_by(rows as usize));
        tiles.filter_map(move |(tile, first)| {
            let from = first.max(span.start);
            let to = (first + rows).min(span.end);
            (from < to).then(|| TileRows { at: from - span.start, len: to - from, row: from - first, tile })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(tiles: usize) -> Arc<TiledImage> {
        Arc::new(TiledImage {
            tiles: (0..tiles).map(|tile| ImageTile { pixels: vec![], hash: [tile as u8; 32] }).collect(),
            rows_per_tile: 4,
            grid: (tiles as u16, 1),
            blob_sha256: [0; 32],
            rgb_sha256: [7; 32],
        })
    }

    fn spans(sequence: &mut Sequence) -> Vec<Range<u32>> {
        std::iter::from_fn(|| {
            let span = sequence.next()?;
            sequence.advance();
            Some(span)
        })
        .collect()
    }

    #[test]
    fn chunk_groups_are_cut_from_their_own_start_at_forks_and_at_their_end() {
        let mut sequence = Sequence::default();
        let ids = vec![1; 23];
        sequence.extend(TokenSegment { ids, forks: vec![7], ends: vec![20], ..TokenSegment::default() }, 8);
        assert_eq!(spans(&mut sequence), [0..7, 7..8, 8..16, 16..20]);
        assert!(sequence.next().is_none(), "three tokens wait for the next chunk group");
        let mut fork = sequence.fork();
        fork.extend(TokenSegment::text(vec![4; 7]), 8);
        assert_eq!(spans(&mut fork), [20..28, 28..30], "also in a fork");
        sequence.push(2);
        assert!(sequence.end_chunk_group(8));
        sequence.push(3);
        sequence.end_chunk_group(8);
        assert_eq!(spans(&mut sequence), [20..24, 24..25]);
        assert!(!sequence.end_chunk_group(8));
    }

    #[test]
    fn spans_do_not_depend_on_how_the_tokens_came() {
        let whole = |ends: Vec<u32>| {
            let mut sequence = Sequence::default();
            sequence.extend(TokenSegment { ids: vec![1; 30], ends, ..TokenSegment::default() }, 8);
            spans(&mut sequence)
        };
        let mut piecewise = Sequence::default();
        let mut ran = Vec::new();
        for id in 0..30 {
            piecewise.push(id);
            if [20, 21, 25].contains(&piecewise.len()) {
                piecewise.end_chunk_group(8);
                ran.extend(spans(&mut piecewise));
            }
        }
        assert_eq!(ran, whole(vec![20, 21, 25]));
    }

    #[test]
    fn a_span_knows_its_rows_of_each_tile_and_forgets_pictures_it_has_passed() {
        let mut sequence = Sequence::default();
        let positioned = PositionedImage { at: 2, picture: picture(2) };
        sequence.extend(
            TokenSegment { ids: vec![9; 12], pictures: vec![positioned], ends: vec![12], forks: vec![] },
            8,
        );
        let rows = |sequence: &Sequence, span: Range<u32>| -> Vec<(u32, u32, u32, u8)> {
            sequence
                .tile_rows(span)
                .iter()
                .map(|rows| (rows.at, rows.len, rows.row, rows.tile.hash[0]))
                .collect()
        };
        assert_eq!(rows(&sequence, 0..8), [(2, 4, 0, 0), (6, 2, 0, 1)]);
        assert_eq!(rows(&sequence, 8..12), [(0, 2, 2, 1)]);
        spans(&mut sequence);
        assert!(sequence.pictures.is_empty());
    }

    #[test]
    fn a_fork_skips_what_the_sibling_ran() {
        let mut sequence = Sequence::default();
        sequence.extend(
            TokenSegment { ids: vec![1; 20], ends: vec![20], forks: vec![5, 9], ..TokenSegment::default() },
            8,
        );
        assert_eq!(sequence.forks_ahead().collect::<Vec<_>>(), [9, 5]);
        sequence.forked_to(9);
        assert_eq!(spans(&mut sequence), [9..16, 16..20]);
    }
}
