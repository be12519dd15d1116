//! The kinds of metrics, all plain atomics: cheap enough for every step, readable at any time,
//! without locks.
//!
//! Relaxed ordering everywhere: a metric is a quantity and orders nothing.

use std::array;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use crate::Label;

/// A number that only grows.
#[derive(Debug)]
pub struct Counter(AtomicU64);

/// A number that goes up and down.
#[derive(Debug)]
pub struct Gauge(AtomicI64);

/// A value measured outside, or unknown: never a 0 that was not measured.
#[derive(Debug)]
pub struct OptionalGauge(AtomicI64);

/// Sum and number of values that are not counts, such as rewards.
#[derive(Debug)]
pub struct MeanMetric {
    sum_bits: AtomicU64,
    count: AtomicU64,
}

/// Counts of whole numbers by size, in fixed buckets at most an eighth of their value wide.
#[derive(Debug)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
}

/// The counts of a histogram at one moment, or between two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistogramBuckets {
    counts: Box<[u64; BUCKETS]>,
    sum: u64,
}

/// One metric per value of a closed set.
#[derive(Debug)]
pub struct Family<L, M, const N: usize> {
    cells: [M; N],
    label: PhantomData<fn(L)>,
}

/// Each power of two is split into this many buckets: a bucket is at most 1/8 of its lower edge
/// wide.
const PARTS: usize = 8;
/// Values from here on share the last bucket: 2^40 µs are twelve days.
const LIMIT_BITS: usize = 40;
/// 16 exact ones (0 to 15), then 8 for each power of two from 2^4 to 2^40: 16 + 36 × 8 = 304, 2.4
/// kB.
const BUCKETS: usize = 16 + (LIMIT_BITS - 4) * PARTS;

impl Counter {
    #[expect(clippy::new_without_default, reason = "a metric is created once, as a field of ProcessMetrics")]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Relaxed);
    }

    /// Raises the counter to a total that is kept elsewhere; a lower total changes nothing.
    pub(crate) fn raise_to(&self, total: u64) {
        self.0.fetch_max(total, Relaxed);
    }

    /// What has been added so far.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Gauge {
    #[expect(clippy::new_without_default, reason = "a metric is created once, as a field of ProcessMetrics")]
    pub const fn new() -> Self {
        Self(AtomicI64::new(0))
    }

    /// Adds an amount, which may be negative.
    pub fn add(&self, amount: i64) {
        self.0.fetch_add(amount, Relaxed);
    }

    pub fn set(&self, value: i64) {
        self.0.store(value, Relaxed);
    }

    pub fn get(&self) -> i64 {
        self.0.load(Relaxed)
    }
}

impl OptionalGauge {
    const UNKNOWN: i64 = i64::MIN;

    #[expect(clippy::new_without_default, reason = "a metric is created once, as a field of ProcessMetrics")]
    pub const fn new() -> Self {
        Self(AtomicI64::new(Self::UNKNOWN))
    }

    /// Sets the measured value, or unknown.
    pub fn set(&self, value: Option<u64>) {
        self.0.store(value.map_or(Self::UNKNOWN, |value| value as i64), Relaxed);
    }

    /// The last measured value.
    pub fn get(&self) -> Option<i64> {
        Some(self.0.load(Relaxed)).filter(|&value| value != Self::UNKNOWN)
    }
}

impl MeanMetric {
    #[expect(clippy::new_without_default, reason = "a metric is created once, as a field of ProcessMetrics")]
    pub const fn new() -> Self {
        Self { sum_bits: AtomicU64::new(0), count: AtomicU64::new(0) }
    }

    /// Adds a value. A value that is not finite would make the sum useless for ever and is left
    /// out.
    pub fn record(&self, value: f64) {
        if !value.is_finite() {
            return;
        }
        let add = |bits| Some((f64::from_bits(bits) + value).to_bits());
        // The closure never returns `None`, so this never fails.
        if self.sum_bits.fetch_update(Relaxed, Relaxed, add).is_ok() {
            self.count.fetch_add(1, Relaxed);
        }
    }

    /// Sum and number of values.
    pub fn get(&self) -> (f64, u64) {
        (f64::from_bits(self.sum_bits.load(Relaxed)), self.count.load(Relaxed))
    }
}

impl Histogram {
    #[expect(clippy::new_without_default, reason = "a metric is created once, as a field of ProcessMetrics")]
    pub const fn new() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; BUCKETS], sum: AtomicU64::new(0) }
    }

    pub fn record(&self, value: u64) {
        self.buckets[bucket_of(value)].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    /// The counts at this moment.
    pub fn get(&self) -> HistogramBuckets {
        let mut counts = Box::new([0; BUCKETS]);
        for (count, bucket) in counts.iter_mut().zip(&self.buckets) {
            *count = bucket.load(Relaxed);
        }
        HistogramBuckets { counts, sum: self.sum.load(Relaxed) }
    }
}

impl HistogramBuckets {
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of all values.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Mean of all values; `None` without values.
    pub fn mean(&self) -> Option<f64> {
        let count = self.count();
        (count > 0).then(|| self.sum as f64 / count as f64)
    }

    /// The upper edge of the bucket with the `share` quantile: at least the true value, and at most
    /// 1/8 above it.
    pub(crate) fn quantile(&self, share: f64) -> Option<u64> {
        let count = self.count();
        let rank = ((share * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut cumulative = 0;
        self.counts.iter().enumerate().find_map(|(bucket, &in_bucket)| {
            cumulative += in_bucket;
            (in_bucket > 0 && cumulative >= rank).then(|| upper_edge(bucket))
        })
    }

    /// Number of values below `2^bits`, for `bits` from 4 to 39: powers at which a bucket begins.
    pub(crate) fn below_power(&self, bits: u32) -> u64 {
        self.counts[..bucket_of(1 << bits)].iter().sum()
    }

    /// The counts added since `earlier`, a reading of the same histogram.
    pub fn since(&self, earlier: &HistogramBuckets) -> HistogramBuckets {
        let mut counts = self.counts.clone();
        for (count, before) in counts.iter_mut().zip(earlier.counts.iter()) {
            *count = count.saturating_sub(*before);
        }
        HistogramBuckets { counts, sum: self.sum.wrapping_sub(earlier.sum) }
    }
}

impl<L: Label, M, const N: usize> Family<L, M, N> {
    /// One cell per label value. Does not compile if the number of cells differs from the number of
    /// values.
    pub(crate) const fn of(cells: [M; N]) -> Self {
        const { assert!(N == L::ALL.len(), "a family has one cell per value of its label") }
        Self { cells, label: PhantomData }
    }

    /// The cell of a label value.
    pub fn at(&self, label: L) -> &M {
        &self.cells[label.index()]
    }

    /// All label values with their cells.
    pub fn each(&self) -> impl Iterator<Item = (L, &M)> {
        L::ALL.iter().copied().zip(&self.cells)
    }
}

impl<L: Label, const N: usize> Family<L, Counter, N> {
    /// The sum over all cells.
    pub fn total(&self) -> u64 {
        self.cells.iter().map(Counter::get).sum()
    }

    /// The values of all cells, in the order of the label values.
    pub fn get(&self) -> [u64; N] {
        array::from_fn(|cell| self.cells[cell].get())
    }
}

fn bucket_of(value: u64) -> usize {
    if value < 16 {
        return value as usize;
    }
    let power = value.ilog2() as usize; // at least 4
    let part = (value >> (power - 3)) as usize - PARTS; // the three bits after the leading one
    (16 + (power - 4) * PARTS + part).min(BUCKETS - 1)
}

fn upper_edge(bucket: usize) -> u64 {
    if bucket < 16 {
        return bucket as u64;
    }
    let power = 4 + (bucket - 16) / PARTS;
    let part = (bucket - 16) % PARTS;
    let width = 1 << (power - 3);
    (PARTS as u64 + part as u64 + 1) * width - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_rollout::TimeCause;
    use proptest::prelude::*;

    #[test]
    fn buckets_cover_every_value_without_a_gap() {
        let mut next = 0;
        for bucket in 0..BUCKETS {
            assert_eq!(bucket_of(next), bucket, "the first value of bucket {bucket}");
            assert_eq!(bucket_of(upper_edge(bucket)), bucket, "the last value of bucket {bucket}");
            next = upper_edge(bucket) + 1;
        }
        assert_eq!(next, 1 << LIMIT_BITS);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[track_caller]
    fn check(values: &[u64], share: f64, want: Option<u64>) {
        let histogram = Histogram::new();
        values.iter().for_each(|&value| histogram.record(value));
        assert_eq!(histogram.get().quantile(share), want, "{share} of {values:?}");
    }

    #[test]
    fn quantiles_are_upper_edges() {
        check(&[], 0.5, None);
        check(&[0], 0.5, Some(0));
        check(&[7], 0.99, Some(7));
        check(&[1, 2, 3, 4], 0.5, Some(2));
        check(&[1, 2, 3, 4], 0.51, Some(3));
        check(&[1, 2, 3, 4], 1.0, Some(4));
        check(&[1, 2, 3, 4], 0.0, Some(1));
        check(&[1000], 0.5, Some(1023)); // 960 to 1023 share a bucket
        check(&[5, 5, 5, 1_000_000], 0.75, Some(5));
        check(&[u64::MAX], 0.5, Some((1 << 40) - 1));
    }

    #[test]
    fn a_family_keeps_its_cells_apart() {
        let family: Family<TimeCause, Counter, 7> = Family::of([const { Counter::new() }; 7]);
        family.at(TimeCause::Act).add(3);
        family.at(TimeCause::Finish).add(4);
        assert_eq!(family.get(), [0, 0, 0, 3, 0, 0, 4]);
        assert_eq!(family.total(), 7);
    }

    #[test]
    fn an_average_leaves_out_what_is_not_finite() {
        let average = MeanMetric::new();
        [1.0, f64::NAN, -0.5, f64::INFINITY].into_iter().for_each(|value| average.record(value));
        assert_eq!(average.get(), (0.5, 2));
    }

    #[test]
    fn nothing_is_lost_between_threads() {
        let counter = Counter::new();
        let average = MeanMetric::new();
        let histogram = Histogram::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for value in 0..1000 {
                        counter.add(1);
                        average.record(1.0);
                        histogram.record(value);
                    }
                });
            }
        });
        assert_eq!(counter.get(), 4000);
        assert_eq!(average.get(), (4000.0, 4000));
        assert_eq!((histogram.get().count(), histogram.get().sum()), (4000, 4 * 999 * 500));
    }

    proptest! {
        #[test]
        fn a_quantile_is_at_most_an_eighth_too_high(mut values in prop::collection::vec(0u64..1 << 40, 1..200), share in 0.0f64..=1.0) {
            let histogram = Histogram::new();
            values.iter().for_each(|&value| histogram.record(value));
            values.sort_unstable();
            let rank = ((share * values.len() as f64).ceil() as usize).max(1);
            let truth = values[rank - 1];
            let got = histogram.get().quantile(share).unwrap();
            prop_assert!(got >= truth && got - truth <= truth / 8, "{} for {}", got, truth);
        }

        #[test]
        fn a_difference_holds_what_came_between(first in prop::collection::vec(any::<u32>(), 0..50), then in prop::collection::vec(any::<u32>(), 0..50)) {
            let whole = Histogram::new();
            let alone = Histogram::new();
            first.iter().for_each(|&value| whole.record(value.into()));
            let earlier = whole.get();
            then.iter().for_each(|&value| { whole.record(value.into()); alone.record(value.into()); });
            prop_assert_eq!(whole.get().since(&earlier), alone.get());
        }

        #[test]
        fn powers_of_two_are_edges(values in prop::collection::vec(0u64..1 << 40, 0..100), bits in 4u32..40) {
            let histogram = Histogram::new();
            values.iter().for_each(|&value| histogram.record(value));
            let want = values.iter().filter(|&&value| value < 1 << bits).count() as u64;
            prop_assert_eq!(histogram.get().below_power(bits), want);
        }
    }
}
