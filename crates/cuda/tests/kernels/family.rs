//! A kernel file, what holds it to the CPU, and bugs that must not pass.

use std::fmt::Display;

use furrow_cuda::launch::Span;
use furrow_cuda::sources::{KERNELS, Source};
use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};

use crate::shim::Library;

/// Orders in which threads are run. A kernel must give the same in each.
const ORDERS: [u64; 2] = [1, 2];

/// A kernel file and its comparison.
pub struct Family {
    /// Name in `kernels/`.
    pub file: &'static str,
    /// Runs every kernel of the file on cases and compares; what differs is the error.
    pub check: fn(&Library) -> Result<(), String>,
    /// Edits of the source that `check` must notice.
    pub bugs: &'static [Bug],
}

/// What a planted bug breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An index or a bound.
    Index,
    /// A wait for other threads.
    Barrier,
    /// What one token, chunk or slot leaves to the next.
    State,
    /// The mathematics.
    Formula,
}

/// An edit of the source.
pub struct Bug {
    /// What it breaks.
    pub kind: Kind,
    /// What stands in the source once.
    pub find: &'static str,
    /// What is put in its place.
    pub put: &'static str,
}

impl Family {
    /// The source as it is.
    pub fn source(&self) -> Source<'static> {
        *KERNELS.iter().find(|source| source.name == self.file).expect("the file is one of the kernels")
    }

    /// The kernels give what the CPU gives, in any order of threads, and the comparison ran each of them.
    #[track_caller]
    pub fn agrees(&self) {
        let mut library = Library::build(self.source());
        for order in ORDERS {
            library.order = order;
            if let Err(difference) = (self.check)(&library) {
                panic!("{}, order {order}: {difference}", self.file);
            }
        }
        assert_eq!(
            library.not_launched(),
            Vec::<String>::new(),
            "{}: kernels without a comparison",
            self.file
        );
    }

    /// Each planted bug makes the comparison fail.
    #[track_caller]
    pub fn finds_its_bugs(&self) {
        let source = self.source();
        for Bug { kind, find, put } in self.bugs {
            let times = source.text.matches(find).count();
            assert_eq!(times, 1, "{}: {find:?} stands there {times} times", self.file);
            let text = source.text.replace(find, put);
            let mut library = Library::build(Source { name: source.name, text: &text });
            let found = ORDERS.iter().any(|order| {
                library.order = *order;
                (self.check)(&library).is_err()
            });
            assert!(found, "{}: {kind:?} bug passes: {find:?} made {put:?}", self.file);
        }
    }
}

/// Random values for a case; the same each time.
pub struct Draw(ChaCha12Rng);

impl Draw {
    pub fn new(seed: u64) -> Self {
        Self(ChaCha12Rng::seed_from_u64(seed))
    }

    /// `count` values in -scale..scale.
    pub fn floats(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count).map(|_| self.0.random_range(-scale..scale)).collect()
    }
}

/// Each value within `tolerance` of itself and of the root mean square of all; NaN is far from everything.
pub fn near(what: impl Display, got: &[f32], want: &[f32], tolerance: f32) -> Result<(), String> {
    if got.len() != want.len() {
        return Err(format!("{what}: {} values for {}", got.len(), want.len()));
    }
    let squares: f64 = want.iter().map(|want| f64::from(*want) * f64::from(*want)).sum();
    let typical = (squares / want.len().max(1) as f64).sqrt() as f32;
    for (at, (got, want)) in got.iter().zip(want).enumerate() {
        let far = (got - want).abs() > tolerance * (typical + want.abs());
        if far || got.is_nan() || want.is_nan() {
            return Err(format!("{what}: value {at} is {got}, not {want}"));
        }
    }
    Ok(())
}

/// Both the same.
pub fn same<T: PartialEq + std::fmt::Debug>(what: impl Display, got: &[T], want: &[T]) -> Result<(), String> {
    let first = got.iter().zip(want).position(|(got, want)| got != want);
    match first {
        Some(at) => Err(format!("{what}: value {at} is {:?}, not {:?}", got[at], want[at])),
        None if got.len() != want.len() => Err(format!("{what}: {} values for {}", got.len(), want.len())),
        None => Ok(()),
    }
}

/// Spans one behind the other, each of `length` rows after `start` tokens, in slots that do not follow their order; one slot more than spans.
pub fn spans(of: &[(u32, u32)]) -> Vec<Span> {
    let mut base = 0;
    let span = |(index, (length, start)): (usize, &(u32, u32))| {
        base += length;
        Span {
            base: base - length,
            length: *length,
            start: *start,
            slot: ((index + 1) * 2 % (of.len() | 1)) as u32,
        }
    };
    let spans: Vec<Span> = of.iter().enumerate().map(span).collect();
    let mut slots: Vec<u32> = spans.iter().map(|span| span.slot).collect();
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len(), spans.len(), "a slot for each span");
    spans
}

/// Slots that `spans` uses, and some that it does not.
pub fn slots(of: &[(u32, u32)]) -> usize {
    (of.len() | 1) + 1
}

/// Whose row each is.
pub fn span_of(spans: &[Span]) -> Vec<u32> {
    let of_span = |(index, span): (usize, &Span)| std::iter::repeat_n(index as u32, span.length as usize);
    spans.iter().enumerate().flat_map(of_span).collect()
}
