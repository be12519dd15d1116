//! A batch in the form that the device reads: spans, tiles, sources of rows, page tables and rows
//! with logits, in one buffer of 32-bit values.
//!
//! Spans of one token come first, longer ones after them: decode and prefill have separate kernels,
//! and each takes its part of the lists. A decode batch is padded to a bucket with spans of no
//! rows, so that one recorded graph serves every batch of that bucket. Padding rows run like any
//! other, on the scrap page and without a slot, and their results are not read.

use std::ops::Range;

use furrow_model::backend::SequenceSpan;

use crate::launch::{self, DeviceView, tiles};
use crate::ops::attention::TILE_ROWS;
use crate::ops::conv;
use crate::ops::embed::RowSource;
use crate::state::pages_of;
use crate::work::{BatchLimits, bucket};

/// Sections begin at multiples of 16 bytes.
const SECTION_ALIGN: usize = 4;

/// Sizes of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct BatchForm {
    pub rows: usize,
    /// Spans of one row, including padding; they come first.
    pub singles: usize,
    /// Spans of several rows.
    pub longs: usize,
    /// Tiles of the convolution, over all spans.
    pub conv_tiles: usize,
    /// Tiles of prefill attention, over the longer spans.
    pub attend_tiles: usize,
    /// Entries of a row of the page table.
    pub table_stride: usize,
    /// Parts of the longest context of a span of one row.
    pub splits: usize,
    /// Rows whose logits are computed.
    pub wanted: usize,
}

/// The lists of a batch on the device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchLists {
    pub spans: DeviceView<launch::RowSpan>,
    pub conv_tiles: DeviceView<launch::SpanTile>,
    pub attend_tiles: DeviceView<launch::SpanTile>,
    pub sources: DeviceView<u32>,
    pub span_of: DeviceView<u32>,
    pub table: DeviceView<u32>,
    pub wanted: DeviceView<u32>,
}

impl BatchForm {
    pub(crate) fn spans(&self) -> usize {
        self.singles + self.longs
    }

    /// The lists' addresses, for a buffer at `block`.
    pub(crate) fn lists(&self, block: DeviceView<u32>) -> BatchLists {
        let [spans, conv_tiles, attend_tiles, sources, span_of, table, wanted] =
            self.sections().map(|section| block.from(section.start).first(section.len()));
        BatchLists {
            spans: DeviceView::new(spans.address(), self.spans()),
            conv_tiles: DeviceView::new(conv_tiles.address(), self.conv_tiles),
            attend_tiles: DeviceView::new(attend_tiles.address(), self.attend_tiles),
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
        .map(|section_len| {
            let start = end;
            end = (start + section_len).next_multiple_of(SECTION_ALIGN);
            start..start + section_len
        })
    }
}

/// Inputs for arranging a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayoutInputs<'a> {
    pub limits: &'a BatchLimits,
    /// The page of padding rows.
    pub scrap: u32,
    /// Rows of a tile feature.
    pub feature_rows: usize,
}

/// The description of a batch before it is copied to the device.
#[derive(Debug, Default)]
pub(crate) struct BatchDescriptor {
    pub form: BatchForm,
    pub values: Vec<u32>,
    spans: Vec<launch::RowSpan>,
    wanted: Vec<u32>,
}

impl BatchDescriptor {
    /// Arranges spans in the given order, single ones first. The caller has checked that they fit
    /// the limits.
    pub(crate) fn arrange(&mut self, layer: LayoutInputs<'_>, spans: &[&SequenceSpan<'_>]) {
        let order = || in_order(spans);
        let longest = order().map(|span| pages_of(end(span))).max().unwrap_or(1);
        self.set_spans(order(), 0);
        let singles = spans.iter().filter(|span| is_single(span)).count();
        self.form.table_stride = longest;
        let context = order().take(singles).map(|span| pages_of(end(span))).max().unwrap_or(1);
        self.form.splits = layer.limits.splits(context);
        self.write(layer, spans);
    }

    /// Arranges single spans and pads to a bucket: that of their number, or a given one.
    pub(crate) fn arrange_decode(
        &mut self,
        layer: LayoutInputs<'_>,
        spans: &[&SequenceSpan<'_>],
        fixed: Option<FixedBucket>,
    ) {
        let longest = spans.iter().map(|span| pages_of(end(span))).max().unwrap_or(1);
        let most = layer.limits.splits(layer.limits.pages);
        let own = FixedBucket {
            rows: bucket(spans.len()),
            splits: layer.limits.splits(longest).next_power_of_two().min(most),
        };
        let FixedBucket { rows, splits } = fixed.unwrap_or(own);
        self.set_spans(spans.iter().copied(), rows - spans.len());
        (self.form.splits, self.form.table_stride) = (splits, splits * layer.limits.split_pages);
        self.write(layer, spans);
        self.want_all();
    }

    /// Arranges spans one after another, then padding spans of no rows with a row each.
    fn set_spans<'a>(&mut self, spans: impl Iterator<Item = &'a SequenceSpan<'a>>, unused: usize) {
        let mut base = 0;
        self.spans.clear();
        self.spans.extend(spans.map(|span| {
            let length = span.tokens.len() as u32;
            base += length;
            launch::RowSpan { base: base - length, length, start: span.start, slot: span.slot.0 }
        }));
        let filler = |base| launch::RowSpan { base, length: 0, start: 0, slot: 0 };
        self.spans.extend((base..base + unused as u32).map(filler));
        let singles = self.spans.iter().take_while(|span| span.length <= 1).count();
        self.form = BatchForm {
            rows: base as usize + unused,
            singles,
            longs: self.spans.len() - singles,
            ..BatchForm::default()
        };
    }

    fn write(&mut self, layer: LayoutInputs<'_>, spans: &[&SequenceSpan<'_>]) {
        let conv_tiles = self.conv_tiles();
        let attend_tiles = tiles(&self.spans[self.form.singles..], TILE_ROWS);
        self.wanted.clear();
        self.wanted.extend(wanted_rows(&self.spans, spans));
        self.form.conv_tiles = conv_tiles.len();
        self.form.attend_tiles = attend_tiles.len();
        self.form.wanted = self.wanted.len();
        let [at_spans, at_conv, at_attend, at_sources, at_span_of, at_table, at_wanted] =
            self.form.sections();
        self.values.clear();
        self.values.resize(at_wanted.end.next_multiple_of(SECTION_ALIGN), 0);
        self.values[at_spans].copy_from_slice(bytemuck::cast_slice(&self.spans));
        self.values[at_conv].copy_from_slice(bytemuck::cast_slice(&conv_tiles));
        self.values[at_attend].copy_from_slice(bytemuck::cast_slice(&attend_tiles));
        self.values[at_wanted].copy_from_slice(&self.wanted);
        let sources = &mut self.values[at_sources];
        let of_spans = in_order(spans).flat_map(|span| sources_of(span, layer.feature_rows));
        sources.iter_mut().zip(of_spans).for_each(|(value, source)| *value = source.encoded());
        let span_of = self.values[at_span_of].iter_mut();
        let numbers = (0_u32..)
            .zip(&self.spans)
            .flat_map(|(number, span)| std::iter::repeat_n(number, span.length.max(1) as usize));
        span_of.zip(numbers).for_each(|(value, number)| *value = number);
        self.values[at_table.clone()].fill(layer.scrap);
        let rows = self.values[at_table].chunks_exact_mut(self.form.table_stride);
        for (row, span) in rows.zip(in_order(spans)) {
            let used = pages_of(end(span));
            row.iter_mut().zip(&span.pages[..used]).for_each(|(value, page)| *value = page.0);
        }
    }

    /// Padding spans have a tile too: the number of tiles must not depend on the number of padding
    /// spans.
    fn conv_tiles(&self) -> Vec<launch::SpanTile> {
        let unused = |(span, of): (usize, &launch::RowSpan)| {
            (of.length == 0).then_some(launch::SpanTile { span: span as u32, first: 0 })
        };
        let mut all = tiles(&self.spans, conv::TILE_ROWS);
        all.extend(self.spans.iter().enumerate().filter_map(unused));
        all
    }

    /// Computes the logits of every row, requested ones first. No row may occur twice, because each
    /// adds the output of its last layer.
    fn want_all(&mut self) {
        let mut others = vec![true; self.form.rows];
        self.wanted.iter().for_each(|row| others[*row as usize] = false);
        let rows = (0_u32..).zip(others).filter_map(|(row, other)| other.then_some(row));
        self.wanted.extend(rows);
        self.form.wanted = self.form.rows;
        let [.., at_wanted] = self.form.sections();
        self.values.resize(at_wanted.end.next_multiple_of(SECTION_ALIGN), 0);
        self.values[at_wanted].copy_from_slice(&self.wanted);
    }
}

/// A bucket to which every decode batch is padded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FixedBucket {
    pub rows: usize,
    pub splits: usize,
}

/// Single spans first, each kind in the given order.
pub(crate) fn in_order<'a>(spans: &'a [&'a SequenceSpan<'a>]) -> impl Iterator<Item = &'a SequenceSpan<'a>> {
    let singles = spans.iter().copied().filter(|span| is_single(span));
    singles.chain(spans.iter().copied().filter(|span| !is_single(span)))
}

/// Whether a span runs as decode.
pub(crate) fn is_single(span: &SequenceSpan<'_>) -> bool {
    span.tokens.len() == 1
}

/// Positions of a span after it has run.
fn end(span: &SequenceSpan<'_>) -> usize {
    span.start as usize + span.tokens.len()
}

/// The last rows of each span, as many as have logits.
fn wanted_rows<'a>(
    placed: &'a [launch::RowSpan],
    spans: &'a [&'a SequenceSpan<'a>],
) -> impl Iterator<Item = u32> + 'a {
    placed.iter().zip(in_order(spans)).flat_map(|(placed, span)| {
        let end = placed.base + placed.length;
        end - span.wanted() as u32..end
    })
}

/// Sources of a span's rows.
fn sources_of<'a>(span: &'a SequenceSpan<'a>, feature_rows: usize) -> impl Iterator<Item = RowSource> + 'a {
    let mut insets = span.insets.iter().peekable();
    (0_u32..).zip(span.tokens).map(move |(at, token)| {
        while insets.next_if(|inset| inset.at + inset.len <= at).is_some() {}
        match insets.peek() {
            Some(inset) if inset.at <= at => {
                let row = inset.feature.0 as usize * feature_rows + (inset.row + at - inset.at) as usize;
                RowSource::Feature(row as u32)
            }
            _ => RowSource::Token(*token),
        }
    })
}

#[cfg(test)]
mod tests {
    use furrow_model::backend::{ImageInset, LogitRows, Page, Slot, TileFeature};

    use super::*;

    const LIMITS: BatchLimits =
        BatchLimits { rows: 64, spans: 8, wanted: 64, samples: 64, pages: 8, split_pages: 2 };
    const LAYER: LayoutInputs<'static> = LayoutInputs { limits: &LIMITS, scrap: 99, feature_rows: 4 };
    const PAGES: [Page; 5] = [Page(7), Page(3), Page(5), Page(1), Page(0)];

    fn span<'a>(slot: u32, start: u32, tokens: &'a [u32], want: LogitRows) -> SequenceSpan<'a> {
        SequenceSpan { slot: Slot(slot), pages: &PAGES, start, tokens, insets: &[], want }
    }

    fn section(block: &BatchDescriptor, number: usize) -> Vec<u32> {
        block.values[block.form.sections()[number].clone()].to_vec()
    }

    #[test]
    fn single_spans_come_first_and_rows_follow_them() {
        let long = span(4, 60, &[10, 11, 12, 13, 14], LogitRows::All);
        let single = span(2, 0, &[20], LogitRows::Last);
        let mut block = BatchDescriptor::default();
        block.arrange(LAYER, &[&long, &single]);
        assert_eq!((block.form.rows, block.form.singles, block.form.longs), (6, 1, 1));
        assert_eq!(section(&block, 0), [0, 1, 0, 2, 1, 5, 60, 4]);
        assert_eq!(section(&block, 1), [0, 0, 1, 0], "tiles of the convolution count all spans");
        assert_eq!(section(&block, 2), [0, 0], "tiles of attention count only the longer spans");
        assert_eq!(section(&block, 3), [20, 10, 11, 12, 13, 14]);
        assert_eq!(section(&block, 4), [0, 1, 1, 1, 1, 1]);
        assert_eq!(section(&block, 5), [7, 99, 7, 3], "positions 0..65 are on two pages");
        assert_eq!(section(&block, 6), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_decode_batch_is_filled_up_and_its_form_depends_on_the_bucket_alone() {
        let spans = [
            span(4, 130, &[10], LogitRows::Last),
            span(1, 3, &[11], LogitRows::Nothing),
            span(0, 0, &[12], LogitRows::Last),
        ];
        let mut block = BatchDescriptor::default();
        block.arrange_decode(LAYER, &spans.each_ref(), None);
        assert_eq!((block.form.rows, block.form.singles, block.form.splits), (4, 4, 2));
        assert_eq!(section(&block, 0)[12..], [3, 0, 0, 0], "a span of no rows");
        assert_eq!(section(&block, 4), [0, 1, 2, 3]);
        assert_eq!(section(&block, 5), [7, 3, 5, 99, 7, 99, 99, 99, 7, 99, 99, 99, 99, 99, 99, 99]);
        assert_eq!(section(&block, 6), [0, 2, 1, 3], "each row once, requested ones first");
        let form = block.form;
        let values = block.values.len();
        let four = [0, 1, 2, 3].map(|slot| span(slot, 200, &[7], LogitRows::Last));
        block.arrange_decode(LAYER, &four.each_ref(), None);
        assert_eq!((block.form, block.values.len()), (form, values));
    }

    #[test]
    fn image_rows_replace_tokens() {
        let insets = [
            ImageInset { at: 1, len: 2, feature: TileFeature(3), row: 1 },
            ImageInset { at: 3, len: 1, feature: TileFeature(0), row: 2 },
        ];
        let span = SequenceSpan { insets: &insets, ..span(0, 0, &[5, 900, 900, 900, 6], LogitRows::Nothing) };
        let row_sources: Vec<RowSource> = sources_of(&span, 4).collect();
        let [token, feature] = [RowSource::Token as fn(u32) -> RowSource, RowSource::Feature];
        assert_eq!(row_sources, [token(5), feature(13), feature(14), feature(2), token(6)]);
    }
}
