//! Random batches: what a kernel finds in memory, and the same numbers for the CPU.

use furrow_cuda::launch::{Span, Tile, View, tiles};
use furrow_cuda::ops::{PACK, Rows, Slots};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use crate::family::near;
use crate::memory::{Memory, Number, rounded, stored, widened};

/// Random values for a case; the same each time. Cheap where nothing is optimised, as in tests.
pub struct Draw(Xoshiro256PlusPlus);

impl Draw {
    pub fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// `count` values in -scale..scale.
    pub fn floats(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count).map(|_| (2.0 * self.0.random::<f32>() - 1.0) * scale).collect()
    }

    /// The same, stored.
    pub fn held<T: Number>(&mut self, count: usize, scale: f32) -> Held<T> {
        Held::of(&self.floats(count, scale))
    }

    /// Rows of `width` values, each followed by `gap` others.
    pub fn spread<T: Number>(&mut self, count: usize, width: usize, gap: usize, scale: f32) -> Spread<T> {
        Spread::of(&self.floats(count * width, scale), width, width + gap)
    }

    /// The same with as many others more as make a whole number of packs.
    pub fn spread_in_packs<T: Number>(
        &mut self,
        count: usize,
        width: usize,
        gap: usize,
        scale: f32,
    ) -> Spread<T> {
        let stride = (width + gap).next_multiple_of(PACK);
        self.spread(count, width, stride - width, scale)
    }

    /// What a layer keeps of every slot's sequence: `kept` values, `offset` values behind the slot's begin.
    pub fn states<S: Number>(&mut self, batch: &Batch, offset: usize, kept: usize) -> States<S> {
        // Other layers lie before and after.
        let stride = (offset + kept + PACK).next_multiple_of(PACK);
        let mut values = self.floats(batch.slots * stride, 1.0);
        // A slot that begins anew holds what must not be read.
        for span in batch.spans.iter().filter(|span| span.start == 0 && span.length > 0) {
            values[span.slot as usize * stride + offset..][..kept].fill(f32::NAN);
        }
        States { held: Held::of(&values), offset, stride, kept }
    }
}

/// Values as the CPU takes them and as they are stored.
pub struct Held<T> {
    /// What the stored ones are as float32.
    pub values: Vec<f32>,
    pub memory: Memory<T>,
}

impl<T: Number> Held<T> {
    pub fn of(values: &[f32]) -> Self {
        Self { values: rounded::<T>(values), memory: Memory::of(&stored::<T>(values)) }
    }

    pub fn view(&self) -> View<T> {
        self.memory.view()
    }
}

/// Rows inside wider ones; what lies between them is NaN.
pub struct Spread<T> {
    held: Held<T>,
    width: usize,
    stride: usize,
}

impl<T: Number> Spread<T> {
    fn of(values: &[f32], width: usize, stride: usize) -> Self {
        let mut spread = vec![f32::NAN; values.len() / width * stride];
        for (row, own) in spread.chunks_exact_mut(stride).zip(values.chunks_exact(width)) {
            row[..width].copy_from_slice(own);
        }
        Self { held: Held::of(&spread), width, stride }
    }

    /// For an operation.
    pub fn rows(&self) -> Rows<T> {
        Rows { values: self.held.view(), stride: self.stride }
    }

    /// For the CPU.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.held.values[row * self.stride..][..self.width]
    }
}

/// Some tokens of some sequences.
pub struct Batch {
    /// One behind the other, in slots that do not follow their order.
    pub spans: Vec<Span>,
    pub memory: Memory<Span>,
    /// Those that spans use and some that none does.
    slots: usize,
}

impl Batch {
    /// A span for each length and number of tokens before it.
    pub fn new(of: &[(u32, u32)]) -> Self {
        let odd = of.len() | 1;
        let mut base = 0;
        let span = |(index, (length, start)): (usize, &(u32, u32))| {
            base += length;
            // 2 has an inverse modulo an odd number, so no two are the same.
            let slot = ((index + 1) * 2 % odd) as u32;
            Span { base: base - length, length: *length, start: *start, slot }
        };
        let spans: Vec<Span> = of.iter().enumerate().map(span).collect();
        Self { memory: Memory::of(&spans), spans, slots: odd + 1 }
    }

    /// Rows of all spans.
    pub fn count(&self) -> usize {
        self.spans.iter().map(|span| span.length as usize).sum()
    }

    /// For an operation.
    pub fn view(&self) -> View<Span> {
        self.memory.view()
    }

    /// Whose row each is.
    pub fn span_of(&self) -> Memory<u32> {
        let of_span = |(index, span): (usize, &Span)| std::iter::repeat_n(index as u32, span.length as usize);
        Memory::of(&self.spans.iter().enumerate().flat_map(of_span).collect::<Vec<_>>())
    }

    /// Its pieces of `rows` rows.
    pub fn tiles(&self, rows: u32) -> Vec<Tile> {
        tiles(&self.spans, rows)
    }
}

/// What slots keep, before and after a batch.
pub struct States<S> {
    held: Held<S>,
    offset: usize,
    stride: usize,
    kept: usize,
}

impl<S: Number> States<S> {
    /// For an operation.
    pub fn slots(&self) -> Slots<S> {
        Slots { values: self.held.view().from(self.offset), stride: self.stride }
    }

    /// What the CPU finds and leaves behind for a span.
    pub fn of(&mut self, span: &Span) -> &mut [f32] {
        let own = &mut self.held.values[span.slot as usize * self.stride + self.offset..][..self.kept];
        if span.start == 0 && span.length > 0 {
            own.fill(0.0);
        }
        own
    }

    /// Every slot holds what the CPU left there, and around it what was there before.
    pub fn compare(&self, what: &str, tolerance: f32) -> Result<(), String> {
        near(format!("state, {what}"), &widened(&self.held.memory.read()?), &self.held.values, tolerance)
    }
}
