//! Random batches: contents of memory for kernels, and the same numbers for the CPU.

use furrow_cuda::launch::{DeviceView, RowSpan, SpanTile, tiles};
use furrow_cuda::ops::{DeviceRows, DeviceSlots, PACK};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use crate::family::near;
use crate::memory::{GuardedMemory, TestNumber, rounded, stored, widened};

/// Random values for a case; the same each time. Cheap without optimisation, as in tests.
pub(crate) struct RandomCase(Xoshiro256PlusPlus);

impl RandomCase {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// `count` values in -scale..scale.
    pub(crate) fn floats(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count).map(|_| (2.0 * self.0.random::<f32>() - 1.0) * scale).collect()
    }

    /// `count` values, also in stored form.
    pub(crate) fn stored<T: TestNumber>(&mut self, count: usize, scale: f32) -> StoredMemory<T> {
        StoredMemory::of(&self.floats(count, scale))
    }

    /// Rows of `width` values, each followed by `gap` other values.
    pub(crate) fn spread<T: TestNumber>(
        &mut self,
        count: usize,
        width: usize,
        gap: usize,
        scale: f32,
    ) -> SpreadRows<T> {
        SpreadRows::of(&self.floats(count * width, scale), width, width + gap)
    }

    /// Rows of `width` values, padded with other values to whole packs.
    pub(crate) fn spread_in_packs<T: TestNumber>(
        &mut self,
        count: usize,
        width: usize,
        gap: usize,
        scale: f32,
    ) -> SpreadRows<T> {
        let stride = (width + gap).next_multiple_of(PACK);
        self.spread(count, width, stride - width, scale)
    }

    /// What a layer keeps of every slot's sequence: `kept` values, starting `offset` values after
    /// the start of the slot.
    pub(crate) fn states<S: TestNumber>(
        &mut self,
        batch: &TestBatch,
        offset: usize,
        kept: usize,
    ) -> SlotStates<S> {
        // Other layers come before and after.
        let stride = (offset + kept + PACK).next_multiple_of(PACK);
        let mut values = self.floats(batch.slots * stride, 1.0);
        // A slot that begins anew has contents that must not be read.
        for span in batch.spans.iter().filter(|span| span.start == 0 && span.length > 0) {
            values[span.slot as usize * stride + offset..][..kept].fill(f32::NAN);
        }
        SlotStates { stored: StoredMemory::of(&values), offset, stride, kept }
    }
}

/// Values for the CPU, and in stored form.
pub(crate) struct StoredMemory<T> {
    /// The stored values as float32.
    pub values: Vec<f32>,
    pub memory: GuardedMemory<T>,
}

impl<T: TestNumber> StoredMemory<T> {
    pub(crate) fn of(values: &[f32]) -> Self {
        Self { values: rounded::<T>(values), memory: GuardedMemory::of(&stored::<T>(values)) }
    }

    pub(crate) fn view(&self) -> DeviceView<T> {
        self.memory.view()
    }
}

/// Rows inside wider ones; the values between them are NaN.
pub(crate) struct SpreadRows<T> {
    stored: StoredMemory<T>,
    width: usize,
    stride: usize,
}

impl<T: TestNumber> SpreadRows<T> {
    fn of(values: &[f32], width: usize, stride: usize) -> Self {
        let mut spread = vec![f32::NAN; values.len() / width * stride];
        for (row, own) in spread.chunks_exact_mut(stride).zip(values.chunks_exact(width)) {
            row[..width].copy_from_slice(own);
        }
        Self { stored: StoredMemory::of(&spread), width, stride }
    }

    /// The rows for an operation.
    pub(crate) fn rows(&self) -> DeviceRows<T> {
        DeviceRows { values: self.stored.view(), stride: self.stride }
    }

    /// A row for the CPU.
    pub(crate) fn row(&self, row: usize) -> &[f32] {
        &self.stored.values[row * self.stride..][..self.width]
    }
}

/// Some tokens of some sequences.
pub(crate) struct TestBatch {
    /// Spans in order, in slots of another order.
    pub spans: Vec<RowSpan>,
    pub memory: GuardedMemory<RowSpan>,
    /// Slots that spans use, and some that no span uses.
    slots: usize,
}

impl TestBatch {
    /// A span for each length and number of tokens before it.
    pub(crate) fn new(of: &[(u32, u32)]) -> Self {
        let odd = of.len() | 1;
        let mut base = 0;
        let span = |(index, (length, start)): (usize, &(u32, u32))| {
            base += length;
            // 2 has an inverse modulo an odd number, so no two are the same.
            let slot = ((index + 1) * 2 % odd) as u32;
            RowSpan { base: base - length, length: *length, start: *start, slot }
        };
        let spans: Vec<RowSpan> = of.iter().enumerate().map(span).collect();
        Self { memory: GuardedMemory::of(&spans), spans, slots: odd + 1 }
    }

    /// Rows of all spans.
    pub(crate) fn count(&self) -> usize {
        self.spans.iter().map(|span| span.length as usize).sum()
    }

    /// The spans for an operation.
    pub(crate) fn view(&self) -> DeviceView<RowSpan> {
        self.memory.view()
    }

    /// The span of each row.
    pub(crate) fn span_of(&self) -> GuardedMemory<u32> {
        let of_span =
            |(index, span): (usize, &RowSpan)| std::iter::repeat_n(index as u32, span.length as usize);
        GuardedMemory::of(&self.spans.iter().enumerate().flat_map(of_span).collect::<Vec<_>>())
    }

    /// Its tiles of `rows` rows.
    pub(crate) fn tiles(&self, rows: u32) -> Vec<SpanTile> {
        tiles(&self.spans, rows)
    }
}

/// Contents of slots before and after a batch.
pub(crate) struct SlotStates<S> {
    stored: StoredMemory<S>,
    offset: usize,
    stride: usize,
    kept: usize,
}

impl<S: TestNumber> SlotStates<S> {
    /// The slots for an operation.
    pub(crate) fn slots(&self) -> DeviceSlots<S> {
        DeviceSlots { values: self.stored.view().from(self.offset), stride: self.stride }
    }

    /// A span's state for the CPU, before and after it.
    pub(crate) fn of(&mut self, span: &RowSpan) -> &mut [f32] {
        let own = &mut self.stored.values[span.slot as usize * self.stride + self.offset..][..self.kept];
        if span.start == 0 && span.length > 0 {
            own.fill(0.0);
        }
        own
    }

    /// Checks that every slot has the state that the CPU computed, and that the memory around it
    /// did not change.
    pub(crate) fn compare(&self, what: &str, tolerance: f32) -> Result<(), String> {
        near(format!("state, {what}"), &widened(&self.stored.memory.read()?), &self.stored.values, tolerance)
    }
}
