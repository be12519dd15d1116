//! A batch as the device reads it: spans, tiles, where each row comes from, page tables, wanted rows, in one block of words.
//!
//! Spans of one token come first, the longer ones behind them: decode and prefill have kernels of their own, and each takes its part of the
//! lists. A decode batch is filled up to a bucket with spans of no rows, so that one recorded graph does for every batch of that bucket; rows that
//! fill it up run like any other, on the scrap page and no slot, and nobody reads them.

use std::ops::Range;

use furrow_model::backend::Span;

use crate::launch::{self, View, tiles};
use crate::ops::attention::TILE_ROWS;
use crate::ops::conv;
use crate::ops::embed::Source;
use crate::state::pages_of;
use crate::work::{Limits, bucket};

/// Sections begin at multiples of 16 bytes.
const SECTION_WORDS: usize = 4;

/// How many of everything a batch has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Form {
    /// Rows, those that fill it up included.
    pub rows: usize,
    /// Spans of one row, likewise; they come first.
    pub singles: usize,
    /// Spans of more.
    pub longs: usize,
    /// Tiles of the convolution, over all spans.
    pub conv_tiles: usize,
    /// Tiles of prefill attention, over the longer spans.
    pub attend_tiles: usize,
    /// Entries of a row of the page table.
    pub table_stride: usize,
    /// Parts of the longest context of a single.
    pub splits: usize,
    /// Rows whose logits are computed.
    pub wanted: usize,
}

/// The lists of a batch on the device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lists {
    pub spans: View<launch::Span>,
    pub conv_tiles: View<launch::Tile>,
    pub attend_tiles: View<launch::Tile>,
    pub sources: View<u32>,
    pub span_of: View<u32>,
    pub table: View<u32>,
    pub wanted: View<u32>,
}

impl Form {
    /// Spans.
    pub fn spans(&self) -> usize {
        self.singles + self.longs
    }

    /// Where the lists are, from the start of the block on.
    pub fn lists(&self, block: View<u32>) -> Lists {
        let [spans, conv_tiles, attend_tiles, sources, span_of, table, wanted] =
            self.sections().map(|words| block.from(words.start).first(words.len()));
        Lists {
            spans: View::new(spans.address(), self.spans()),
            conv_tiles: View::new(conv_tiles.address(), self.conv_tiles),
            attend_tiles: View::new(attend_tiles.address(), self.attend_tiles),
            sources,
            span_of,
            table,
            wanted,
        }
    }

    fn sections(&self) -> [Range<usize>; 7] {
        let mut end = 0;
        [
            4 * self.spans(),
            2 * self.conv_tiles,
            2 * self.attend_tiles,
            self.rows,
            self.rows,
            self.spans() * self.table_stride,
            self.wanted,
        ]
        .map(|words| {
            let start = end;
            end = (start + words).next_multiple_of(SECTION_WORDS);
            start..start + words
        })
    }
}

/// What a batch is laid out with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layer<'a> {
    pub limits: &'a Limits,
    /// The page of rows that fill a batch up.
    pub scrap: u32,
    /// Rows of a tile feature.
    pub feature_rows: usize,
}

/// The block of a batch on its way to the device.
#[derive(Debug, Default)]
pub(crate) struct Block {
    pub form: Form,
    pub words: Vec<u32>,
    spans: Vec<launch::Span>,
    wanted: Vec<u32>,
}

impl Block {
    /// Lays out spans as they come, the single ones first. Checked before: they fit the limits.
    pub fn lay(&mut self, layer: Layer<'_>, spans: &[&Span<'_>]) {
        let order = || in_order(spans);
        let longest = order().map(|span| pages_of(end(span))).max().unwrap_or(1);
        self.set_spans(order(), 0);
        let singles = spans.iter().filter(|span| is_single(span)).count();
        self.form.table_stride = longest;
        let context = order().take(singles).map(|span| pages_of(end(span))).max().unwrap_or(1);
        self.form.splits = layer.limits.splits(context);
        self.write(layer, spans);
    }

    /// Lays out single spans and fills up to a bucket: that of their number, or a given one.
    pub fn lay_decode(&mut self, layer: Layer<'_>, spans: &[&Span<'_>], fixed: Option<Fixed>) {
        let longest = spans.iter().map(|span| pages_of(end(span))).max().unwrap_or(1);
        let most = layer.limits.splits(layer.limits.pages);
        let own = Fixed {
            rows: bucket(spans.len()),
            splits: layer.limits.splits(longest).next_power_of_two().min(most),
        };
        let Fixed { rows, splits } = fixed.unwrap_or(own);
        self.set_spans(spans.iter().copied(), rows - spans.len());
        (self.form.splits, self.form.table_stride) = (splits, splits * layer.limits.split_pages);
        self.write(layer, spans);
        self.want_all();
    }

    /// Spans one behind the other, and then some of no rows with a row each.
    fn set_spans<'a>(&mut self, spans: impl Iterator<Item = &'a Span<'a>>, unused: usize) {
        let mut base = 0;
        self.spans.clear();
        self.spans.extend(spans.map(|span| {
            let length = span.tokens.len() as u32;
            base += length;
            launch::Span { base: base - length, length, start: span.start, slot: span.slot.0 }
        }));
        let filler = |base| launch::Span { base, length: 0, start: 0, slot: 0 };
        self.spans.extend((base..base + unused as u32).map(filler));
        let singles = self.spans.iter().take_while(|span| span.length <= 1).count();
        self.form = Form {
            rows: base as usize + unused,
            singles,
            longs: self.spans.len() - singles,
            ..Form::default()
        };
    }

    fn write(&mut self, layer: Layer<'_>, spans: &[&Span<'_>]) {
        let conv_tiles = self.conv_tiles();
        let attend_tiles = tiles(&self.spans[self.form.singles..], TILE_ROWS);
        self.wanted.clear();
        self.wanted.extend(wanted_rows(&self.spans, spans));
        self.form.conv_tiles = conv_tiles.len();
        self.form.attend_tiles = attend_tiles.len();
        self.form.wanted = self.wanted.len();
        let [at_spans, at_conv, at_attend, at_sources, at_span_of, at_table, at_wanted] =
            self.form.sections();
        self.words.clear();
        self.words.resize(at_wanted.end.next_multiple_of(SECTION_WORDS), 0);
        self.words[at_spans].copy_from_slice(bytemuck::cast_slice(&self.spans));
        self.words[at_conv].copy_from_slice(bytemuck::cast_slice(&conv_tiles));
        self.words[at_attend].copy_from_slice(bytemuck::cast_slice(&attend_tiles));
        self.words[at_wanted].copy_from_slice(&self.wanted);
        let sources = &mut self.words[at_sources];
        let of_spans = in_order(spans).flat_map(|span| sources_of(span, layer.feature_rows));
        sources.iter_mut().zip(of_spans).for_each(|(word, source)| *word = source.word());
        let span_of = self.words[at_span_of].iter_mut();
        let numbers = (0_u32..)
            .zip(&self.spans)
            .flat_map(|(number, span)| std::iter::repeat_n(number, span.length.max(1) as usize));
        span_of.zip(numbers).for_each(|(word, number)| *word = number);
        self.words[at_table.clone()].fill(layer.scrap);
        let rows = self.words[at_table].chunks_exact_mut(self.form.table_stride);
        for (row, span) in rows.zip(in_order(spans)) {
            let used = pages_of(end(span));
            row.iter_mut().zip(&span.pages[..used]).for_each(|(word, page)| *word = page.0);
        }
    }

    /// One a span that fills a batch up, too: their number must not depend on how many do.
    fn conv_tiles(&self) -> Vec<launch::Tile> {
        let unused = |(span, of): (usize, &launch::Span)| {
            (of.length == 0).then_some(launch::Tile { span: span as u32, first: 0 })
        };
        let mut all = tiles(&self.spans, conv::TILE_ROWS);
        all.extend(self.spans.iter().enumerate().filter_map(unused));
        all
    }

    /// Has the logits of every row computed, those that were wanted first: no row may come twice, for each adds what its last layer gave.
    fn want_all(&mut self) {
        let mut others = vec![true; self.form.rows];
        self.wanted.iter().for_each(|row| others[*row as usize] = false);
        let rows = (0_u32..).zip(others).filter_map(|(row, other)| other.then_some(row));
        self.wanted.extend(rows);
        self.form.wanted = self.form.rows;
        let [.., at_wanted] = self.form.sections();
        self.words.resize(at_wanted.end.next_multiple_of(SECTION_WORDS), 0);
        self.words[at_wanted].copy_from_slice(&self.wanted);
    }
}

/// A bucket that every decode batch is filled up to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fixed {
    pub rows: usize,
    pub splits: usize,
}

/// Single spans first, each part in the order given.
pub(crate) fn in_order<'a>(spans: &'a [&'a Span<'a>]) -> impl Iterator<Item = &'a Span<'a>> {
    let singles = spans.iter().copied().filter(|span| is_single(span));
    singles.chain(spans.iter().copied().filter(|span| !is_single(span)))
}

/// Whether a span is run as decode is.
pub(crate) fn is_single(span: &Span<'_>) -> bool {
    span.tokens.len() == 1
}

/// Positions of a span when it has run.
fn end(span: &Span<'_>) -> usize {
    span.start as usize + span.tokens.len()
}

/// The last rows of each span, as many as are wanted.
fn wanted_rows<'a>(placed: &'a [launch::Span], spans: &'a [&'a Span<'a>]) -> impl Iterator<Item = u32> + 'a {
    placed.iter().zip(in_order(spans)).flat_map(|(placed, span)| {
        let end = placed.base + placed.length;
        end - span.wanted() as u32..end
    })
}

/// Where a span's rows come from.
fn sources_of<'a>(span: &'a Span<'a>, feature_rows: usize) -> impl Iterator<Item = Source> + 'a {
    let mut insets = span.insets.iter().peekable();
    (0_u32..).zip(span.tokens).map(move |(at, token)| {
        while insets.next_if(|inset| inset.at + inset.len <= at).is_some() {}
        match insets.peek() {
            Some(inset) if inset.at <= at => {
                let row = inset.feature.0 as usize * feature_rows + (inset.row + at - inset.at) as usize;
                Source::Feature(row as u32)
            }
            _ => Source::Token(*token),
        }
    })
}

#[cfg(test)]
mod tests {
    use furrow_model::backend::{Feature, Inset, Page, Slot, Want};

    use super::*;

    const LIMITS: Limits = Limits { rows: 64, spans: 8, wanted: 64, draws: 64, pages: 8, split_pages: 2 };
    const LAYER: Layer<'static> = Layer { limits: &LIMITS, scrap: 99, feature_rows: 4 };
    const PAGES: [Page; 5] = [Page(7), Page(3), Page(5), Page(1), Page(0)];

    fn span<'a>(slot: u32, start: u32, tokens: &'a [u32], want: Want) -> Span<'a> {
        Span { slot: Slot(slot), pages: &PAGES, start, tokens, insets: &[], want }
    }

    fn section(block: &Block, number: usize) -> Vec<u32> {
        block.words[block.form.sections()[number].clone()].to_vec()
    }

    #[test]
    fn single_spans_come_first_and_rows_follow_them() {
        let (long, single) = (span(4, 60, &[10, 11, 12, 13, 14], Want::All), span(2, 0, &[20], Want::Last));
        let mut block = Block::default();
        block.lay(LAYER, &[&long, &single]);
        assert_eq!((block.form.rows, block.form.singles, block.form.longs), (6, 1, 1));
        assert_eq!(section(&block, 0), [0, 1, 0, 2, 1, 5, 60, 4]);
        assert_eq!(section(&block, 1), [0, 0, 1, 0], "tiles of the convolution count all spans");
        assert_eq!(section(&block, 2), [0, 0], "tiles of attention count the longer spans");
        assert_eq!(section(&block, 3), [20, 10, 11, 12, 13, 14]);
        assert_eq!(section(&block, 4), [0, 1, 1, 1, 1, 1]);
        assert_eq!(section(&block, 5), [7, 99, 7, 3], "positions 0..65 are on two pages");
        assert_eq!(section(&block, 6), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_decode_batch_is_filled_up_and_its_form_depends_on_the_bucket_alone() {
        let spans = [
            span(4, 130, &[10], Want::Last),
            span(1, 3, &[11], Want::Nothing),
            span(0, 0, &[12], Want::Last),
        ];
        let mut block = Block::default();
        block.lay_decode(LAYER, &spans.each_ref(), None);
        assert_eq!((block.form.rows, block.form.singles, block.form.splits), (4, 4, 2));
        assert_eq!(section(&block, 0)[12..], [3, 0, 0, 0], "a span of no rows");
        assert_eq!(section(&block, 4), [0, 1, 2, 3]);
        assert_eq!(section(&block, 5), [7, 3, 5, 99, 7, 99, 99, 99, 7, 99, 99, 99, 99, 99, 99, 99]);
        assert_eq!(section(&block, 6), [0, 2, 1, 3], "each row once, the wanted ones first");
        let (form, words) = (block.form, block.words.len());
        let four = [0, 1, 2, 3].map(|slot| span(slot, 200, &[7], Want::Last));
        block.lay_decode(LAYER, &four.each_ref(), None);
        assert_eq!((block.form, block.words.len()), (form, words));
    }

    #[test]
    fn image_rows_take_the_place_of_tokens() {
        let insets = [
            Inset { at: 1, len: 2, feature: Feature(3), row: 1 },
            Inset { at: 3, len: 1, feature: Feature(0), row: 2 },
        ];
        let span = Span { insets: &insets, ..span(0, 0, &[5, 900, 900, 900, 6], Want::Nothing) };
        let words: Vec<Source> = sources_of(&span, 4).collect();
        let [token, feature] = [Source::Token as fn(u32) -> Source, Source::Feature];
        assert_eq!(words, [token(5), feature(13), feature(14), feature(2), token(6)]);
    }
}
