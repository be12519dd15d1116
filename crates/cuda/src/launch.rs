//! A kernel's launch as a value: code that runs it, on a GPU or in tests on the CPU, need not know
//! the operation.

use std::fmt::Write as _;
use std::marker::PhantomData;

use bytemuck::{Pod, Zeroable};
use half::bf16;

/// Most threads of a block that a kernel here uses.
pub const THREADS_MAX: u32 = 1024;

/// Address and number of values in device memory. It keeps nothing alive; the code that launches
/// must.
#[derive(Debug)]
pub struct DeviceView<T> {
    address: u64,
    len: usize,
    of: PhantomData<T>,
}

// Not derived: a view is `Clone` for every T.
impl<T> Clone for DeviceView<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DeviceView<T> {}

impl<T: DeviceElement> DeviceView<T> {
    /// `len` values at an address, which must be a multiple of 16 if a kernel moves packs.
    pub fn new(address: u64, len: usize) -> Self {
        Self { address, len, of: PhantomData }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first value.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The values from index `at` on.
    pub fn from(&self, at: usize) -> Self {
        assert!(at <= self.len, "{at} is beyond the {} values", self.len);
        Self::new(self.address + (at * size_of::<T>()) as u64, self.len - at)
    }

    pub fn first(&self, len: usize) -> Self {
        assert!(len <= self.len, "{len} of {} values", self.len);
        Self::new(self.address, len)
    }
}

/// A type in device memory, and the letter that the shim uses for it.
pub trait DeviceElement: Copy + Send + 'static {
    /// A distinct letter for each type.
    const LETTER: char;
}

macro_rules! elements {
    ($($type:ty: $letter:literal),*) => { $(impl DeviceElement for $type { const LETTER: char = $letter; })* };
}

elements!(f32: 'f', f64: 'd', u32: 'u', u64: 'l', u8: 'b', bf16: 'h', RowSpan: 's', SpanTile: 't', CopyMove: 'm');

/// A type in which weights, activations, keys and values are stored; sums are always float32.
pub trait StoredElement: DeviceElement {
    /// Selects the value for this type.
    fn pick<A>(f32: A, bf16: A) -> A;
}

impl StoredElement for f32 {
    fn pick<A>(f32: A, _: A) -> A {
        f32
    }
}

impl StoredElement for bf16 {
    fn pick<A>(_: A, bf16: A) -> A {
        bf16
    }
}

/// Some tokens of one sequence, as rows of a batch: `Span` of `kernels/include/device.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct RowSpan {
    pub base: u32,
    /// Number of rows; 0 for an unused span of a fixed-size batch.
    pub length: u32,
    /// Tokens already in the state; with 0 the slot counts as empty.
    pub start: u32,
    /// Slot of the state.
    pub slot: u32,
}

/// A part of a span: its rows from `first` on. `Tile` of `kernels/include/device.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SpanTile {
    /// Index of the span.
    pub span: u32,
    /// Row within the span.
    pub first: u32,
}

/// Parts of at most `rows` rows each that cover all spans, in order.
pub fn tiles(spans: &[RowSpan], rows: u32) -> Vec<SpanTile> {
    let of_span = |(span, of): (usize, &RowSpan)| {
        (0..of.length).step_by(rows as usize).map(move |first| SpanTile { span: span as u32, first })
    };
    spans.iter().enumerate().flat_map(of_span).collect()
}

/// A copy between two indexed ranges. `Move` of `kernels/copy.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct CopyMove {
    /// Index of the source.
    pub from: u32,
    /// Index of the destination.
    pub to: u32,
}

/// A parameter of a kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KernelArgument {
    /// An address, and the letter of the type there.
    Address(u64, char),
    U32(u32),
    F32(f32),
    U64(u64),
}

impl<T: DeviceElement> From<DeviceView<T>> for KernelArgument {
    fn from(view: DeviceView<T>) -> Self {
        Self::Address(view.address, T::LETTER)
    }
}

impl<T: DeviceElement> From<Option<DeviceView<T>>> for KernelArgument {
    fn from(view: Option<DeviceView<T>>) -> Self {
        view.map_or(Self::Address(0, T::LETTER), Self::from)
    }
}

impl From<u32> for KernelArgument {
    fn from(number: u32) -> Self {
        Self::U32(number)
    }
}

impl From<u64> for KernelArgument {
    fn from(number: u64) -> Self {
        Self::U64(number)
    }
}

impl From<f32> for KernelArgument {
    fn from(number: f32) -> Self {
        Self::F32(number)
    }
}

impl KernelArgument {
    /// Its bytes in the first of eight, as a launch passes them.
    pub fn bits(self) -> u64 {
        match self {
            Self::Address(bits, _) | Self::U64(bits) => bits,
            Self::U32(bits) => u64::from(bits),
            Self::F32(number) => u64::from(number.to_bits()),
        }
    }
}

/// A kernel, its parameters and its numbers of blocks and threads.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelLaunch {
    pub file: &'static str,
    /// Name in the file.
    pub kernel: &'static str,
    pub grid: [u32; 3],
    /// Threads a block, a multiple of 32.
    pub threads: u32,
    /// Shared memory a block.
    pub shared_bytes: u32,
    pub arguments: Vec<KernelArgument>,
}

impl KernelLaunch {
    /// Letters of the parameters' types, to compare with the kernel's: `*f` is a pointer to float.
    pub fn signature(&self) -> String {
        let mut letters = String::new();
        for argument in &self.arguments {
            match argument {
                KernelArgument::Address(_, letter) => {
                    // Writing to a String cannot fail.
                    write!(letters, "*{letter}").expect("writing to a String cannot fail");
                }
                KernelArgument::U32(_) => letters.push('u'),
                KernelArgument::U64(_) => letters.push('l'),
                KernelArgument::F32(_) => letters.push('f'),
            }
        }
        letters
    }
}

/// Bytes of shared memory for some arrays, each rounded up to 16 bytes as in `Shared` of the
/// kernels.
pub(crate) fn shared_bytes(arrays: &[(usize, usize)]) -> u32 {
    arrays.iter().map(|(count, size)| (count * size).next_multiple_of(16) as u32).sum()
}

/// A size as a kernel parameter.
pub(crate) fn size(value: usize) -> u32 {
    u32::try_from(value).expect("sizes of a checked configuration fit 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_each_span_and_no_more() {
        let span = |base, length| RowSpan { base, length, start: 0, slot: 0 };
        let spans = [span(0, 5), span(5, 0), span(5, 8), span(13, 1)];
        let tile = |span, first| SpanTile { span, first };
        assert_eq!(tiles(&spans, 4), [tile(0, 0), tile(0, 4), tile(2, 0), tile(2, 4), tile(3, 0)]);
    }

    #[test]
    fn a_signature_has_a_letter_for_each_parameter() {
        let launch = KernelLaunch {
            file: "",
            kernel: "",
            grid: [1; 3],
            threads: 32,
            shared_bytes: 0,
            arguments: vec![
                DeviceView::<bf16>::new(16, 4).into(),
                3_u32.into(),
                0.5_f32.into(),
                7_u64.into(),
            ],
        };
        assert_eq!(launch.signature(), "*hufl");
        assert_eq!(launch.arguments[2].bits(), u64::from(0.5_f32.to_bits()));
    }
}
