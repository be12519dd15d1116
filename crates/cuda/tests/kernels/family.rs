//! A kernel file, its comparison with the CPU, and planted bugs that the comparison must detect.

use std::fmt::Display;

use furrow_cuda::sources::{HEADERS, KERNELS, KernelSource};

use crate::runner::KernelRunner;

/// Orders in which threads run. A kernel must give the same result in each.
const ORDERS: [u64; 2] = [1, 2];

/// A kernel file and its comparison.
pub(crate) struct KernelFamily {
    pub file: &'static str,
    /// Runs every kernel of the file on cases and compares; the error names the difference.
    pub check: fn(&KernelRunner) -> Result<(), String>,
    /// Edits of the source that `check` must detect.
    pub bugs: &'static [PlantedBug],
}

/// What a planted bug breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BugKind {
    /// An index or a bound.
    Index,
    /// Synchronisation with other threads.
    Barrier,
    /// State that one token, chunk or slot leaves for the next.
    State,
    Formula,
}

/// An edit of the source.
pub(crate) struct PlantedBug {
    pub kind: BugKind,
    /// Text that occurs once in the file, or in one of the headers that it includes.
    pub find: &'static str,
    pub put: &'static str,
}

impl KernelFamily {
    pub(crate) fn source(&self) -> KernelSource<'static> {
        *KERNELS.iter().find(|source| source.name == self.file).expect("the file is one of the kernels")
    }

    /// The text for planting bugs: the file, with an include replaced by its header if a bug is
    /// planted there.
    pub(crate) fn planted_in(&self) -> String {
        let file = self.source().text;
        let of_header = |header: &&KernelSource<'_>| {
            self.bugs.iter().any(|bug| !file.contains(bug.find) && header.text.contains(bug.find))
        };
        HEADERS.iter().filter(of_header).fold(file.to_owned(), |text, header| {
            let include = format!("#include \"{}\"\n", header.name);
            text.replace(&include, &header.text.replace("#pragma once\n", ""))
        })
    }

    /// Runs the comparison in each order of threads.
    pub(crate) fn compare(&self, library: &mut KernelRunner) -> Result<(), String> {
        for order in ORDERS {
            library.set_order(order);
            (self.check)(library).map_err(|difference| format!("order {order}: {difference}"))?;
        }
        Ok(())
    }

    /// The kernels give the CPU's results in any order of threads, and the comparison ran each of
    /// them.
    #[track_caller]
    pub(crate) fn agrees(&self) {
        let mut library = KernelRunner::build(self.source());
        if let Err(difference) = self.compare(&mut library) {
            panic!("{}, {difference}", self.file);
        }
        assert_eq!(
            library.not_launched(),
            Vec::<String>::new(),
            "{}: kernels without a comparison",
            self.file
        );
    }
}

/// Each value within `tolerance` of itself and of the root mean square of all; a NaN counts as
/// infinitely far.
pub(crate) fn near(what: impl Display, got: &[f32], want: &[f32], tolerance: f32) -> Result<(), String> {
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

/// Checks that both are equal.
pub(crate) fn same<T: PartialEq + std::fmt::Debug>(
    what: impl Display,
    got: &[T],
    want: &[T],
) -> Result<(), String> {
    let first = got.iter().zip(want).position(|(got, want)| got != want);
    match first {
        Some(at) => Err(format!("{what}: value {at} is {:?}, not {:?}", got[at], want[at])),
        None if got.len() != want.len() => Err(format!("{what}: {} values for {}", got.len(), want.len())),
        None => Ok(()),
    }
}
