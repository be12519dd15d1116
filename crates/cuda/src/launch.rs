//! A kernel's launch as a value: what runs it, on a GPU or on the CPU in tests, need not know the operation.

use std::fmt::Write as _;
use std::marker::PhantomData;

use bytemuck::{Pod, Zeroable};
use half::bf16;

/// Most threads of a block that a kernel here asks for.
pub const THREADS_MAX: u32 = 1024;

/// Values in a device's memory: where and how many. It keeps nothing alive; whoever launches answers for that.
#[derive(Debug)]
pub struct View<T> {
    address: u64,
    len: usize,
    of: PhantomData<T>,
}

// Not derived: a view is copied whatever it is of.
impl<T> Clone for View<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for View<T> {}

impl<T: Element> View<T> {
    /// `len` values at an address, which is a multiple of 16 where a kernel moves packs.
    pub fn new(address: u64, len: usize) -> Self {
        Self { address, len, of: PhantomData }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where they begin.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The values from `at` on.
    pub fn from(&self, at: usize) -> Self {
        assert!(at <= self.len, "{at} lies behind the {} values there are", self.len);
        Self::new(self.address + (at * size_of::<T>()) as u64, self.len - at)
    }

    /// The first values.
    pub fn first(&self, len: usize) -> Self {
        assert!(len <= self.len, "{len} values of the {} there are", self.len);
        Self::new(self.address, len)
    }
}

/// What a device's memory holds, and the letter by which the shim knows it.
pub trait Element: Copy + Send + 'static {
    /// One for each type.
    const LETTER: char;
}

macro_rules! elements {
    ($($type:ty: $letter:literal),*) => { $(impl Element for $type { const LETTER: char = $letter; })* };
}

elements!(f32: 'f', f64: 'd', u32: 'u', u64: 'l', u8: 'b', bf16: 'h', Span: 's', Tile: 't', Move: 'm');

/// What weights, activations, keys and values are stored as; sums are float32 in either case.
pub trait Stored: Element {
    /// The one of two that is meant for this type.
    fn pick<A>(f32: A, bf16: A) -> A;
}

impl Stored for f32 {
    fn pick<A>(f32: A, _: A) -> A {
        f32
    }
}

impl Stored for bf16 {
    fn pick<A>(_: A, bf16: A) -> A {
        bf16
    }
}

/// Some tokens of one sequence, as rows of a batch: `Span` of `kernels/include/device.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Span {
    /// First row.
    pub base: u32,
    /// Rows; 0 for a place of a fixed-size batch that is not used.
    pub length: u32,
    /// Tokens already in the state; with 0 the slot counts as empty.
    pub start: u32,
    /// Where the state is.
    pub slot: u32,
}

/// A piece of a span: its rows from `first` on. `Tile` of `kernels/include/device.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Tile {
    /// Which span.
    pub span: u32,
    /// Its row.
    pub first: u32,
}

/// Pieces of at most `rows` rows each that cover all spans, in order.
pub fn tiles(spans: &[Span], rows: u32) -> Vec<Tile> {
    let of_span = |(span, of): (usize, &Span)| {
        (0..of.length).step_by(rows as usize).map(move |first| Tile { span: span as u32, first })
    };
    spans.iter().enumerate().flat_map(of_span).collect()
}

/// A stretch of memory to be copied, by its places. `Move` of `kernels/copy.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Move {
    /// Place it is read from.
    pub from: u32,
    /// Place it is written to.
    pub to: u32,
}

/// A parameter of a kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Argument {
    /// An address, and the letter of what lies there.
    Address(u64, char),
    /// A number.
    U32(u32),
    /// A number.
    F32(f32),
    /// A number.
    U64(u64),
}

impl<T: Element> From<View<T>> for Argument {
    fn from(view: View<T>) -> Self {
        Self::Address(view.address, T::LETTER)
    }
}

impl<T: Element> From<Option<View<T>>> for Argument {
    fn from(view: Option<View<T>>) -> Self {
        view.map_or(Self::Address(0, T::LETTER), Self::from)
    }
}

impl From<u32> for Argument {
    fn from(number: u32) -> Self {
        Self::U32(number)
    }
}

impl From<u64> for Argument {
    fn from(number: u64) -> Self {
        Self::U64(number)
    }
}

impl From<f32> for Argument {
    fn from(number: f32) -> Self {
        Self::F32(number)
    }
}

impl Argument {
    /// Its bytes in the first ones of eight, as a launch hands them over.
    pub fn bits(self) -> u64 {
        match self {
            Self::Address(bits, _) | Self::U64(bits) => bits,
            Self::U32(bits) => u64::from(bits),
            Self::F32(number) => u64::from(number.to_bits()),
        }
    }
}

/// A kernel, its parameters and how many threads run it.
#[derive(Debug, Clone, PartialEq)]
pub struct Launch {
    /// File in `kernels/`.
    pub file: &'static str,
    /// Name in the file.
    pub kernel: &'static str,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads a block, a multiple of 32.
    pub threads: u32,
    /// Shared memory a block.
    pub shared_bytes: u32,
    /// Parameters in order.
    pub arguments: Vec<Argument>,
}

impl Launch {
    /// Letters of the parameters' types, to be held to those of the kernel: `*f` is a pointer to float.
    pub fn signature(&self) -> String {
        let mut letters = String::new();
        for argument in &self.arguments {
            match argument {
                Argument::Address(_, letter) => {
                    // Writing to a String cannot fail.
                    write!(letters, "*{letter}").expect("a String takes what it is given");
                }
                Argument::U32(_) => letters.push('u'),
                Argument::U64(_) => letters.push('l'),
                Argument::F32(_) => letters.push('f'),
            }
        }
        letters
    }
}

/// Bytes of shared memory for some arrays, each rounded up to 16 bytes as `Shared` of the kernels does.
pub(crate) fn shared_bytes(arrays: &[(usize, usize)]) -> u32 {
    arrays.iter().map(|(count, size)| (count * size).next_multiple_of(16) as u32).sum()
}

/// A size as a kernel takes it.
pub(crate) fn size(value: usize) -> u32 {
    u32::try_from(value).expect("sizes of a checked configuration fit 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_each_span_and_no_more() {
        let span = |base, length| Span { base, length, start: 0, slot: 0 };
        let spans = [span(0, 5), span(5, 0), span(5, 8), span(13, 1)];
        let tile = |span, first| Tile { span, first };
        assert_eq!(tiles(&spans, 4), [tile(0, 0), tile(0, 4), tile(2, 0), tile(2, 4), tile(3, 0)]);
    }

    #[test]
    fn a_signature_has_a_letter_for_each_parameter() {
        let launch = Launch {
            file: "",
            kernel: "",
            grid: [1; 3],
            threads: 32,
            shared_bytes: 0,
            arguments: vec![View::<bf16>::new(16, 4).into(), 3_u32.into(), 0.5_f32.into(), 7_u64.into()],
        };
        assert_eq!(launch.signature(), "*hufl");
        assert_eq!(launch.arguments[2].bits(), u64::from(0.5_f32.to_bits()));
    }
}
