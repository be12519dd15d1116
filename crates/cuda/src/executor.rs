//! Who carries out the backend's work: memory, copies, launches, matrix products, their order, and their recording as graphs.
//!
//! A GPU is one (`gpu.rs`); in tests this machine's processor is another, which runs the same kernels through the shim. The backend knows
//! only this, so everything above a kernel is proved without a GPU.

use std::error::Error;

use crate::launch::{Launch, Stored, View};
use crate::ops::Rows;

/// A queue of work. What is in one is done in order; two run side by side unless one `follow`s the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Batches of the language model, and what belongs to sessions.
    Batch,
    /// Tiles.
    Vision,
    /// Parked states on their way. Nothing is multiplied or staged in it.
    Copy,
}

/// Memory of this machine that an executor has pinned: the number it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pinned(pub usize);

/// A stretch of pinned memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostStretch {
    /// Of which.
    pub pinned: Pinned,
    /// Its first byte there.
    pub at: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What a recorded batch depends on beside the contents of its buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GraphKey {
    /// Rows, the unused ones included.
    pub rows: usize,
    /// Parts that attention splits the longest context into.
    pub splits: usize,
}

/// Why work was not done. After one an executor is good for nothing any more.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// There is less memory than asked for.
    #[error("{asked} bytes are not to be had, {free} are free")]
    NoMemory {
        /// How much.
        asked: u64,
        /// What there is.
        free: u64,
    },
    /// This machine does not lend the device so much of its own memory.
    #[error("{asked} bytes of this machine's memory are not to be pinned")]
    NoHostMemory {
        /// How much.
        asked: u64,
    },
    /// The device or one of its libraries refused.
    #[error("could not {operation}")]
    Failed {
        /// What was asked of it.
        operation: String,
        /// Its answer.
        source: Box<dyn Error + Send + Sync>,
    },
}

impl ExecutorError {
    /// An operation that failed.
    pub fn failed(operation: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Failed { operation: operation.into(), source: source.into() }
    }
}

/// Does what it is told, in order, lane by lane. Calls return before the work is done, except where they say otherwise.
pub trait Executor: Send {
    /// Bytes that can still be allocated.
    fn free_bytes(&mut self) -> Result<u64, ExecutorError>;

    /// Memory at an address that is a multiple of 256, kept as long as the executor. It may hold anything.
    fn allocate(&mut self, bytes: u64) -> Result<u64, ExecutorError>;

    /// Copies bytes to the device. They may change as soon as this returns.
    fn upload(&mut self, lane: Lane, bytes: &[u8], to: u64) -> Result<(), ExecutorError>;

    /// Copies bytes from the device, and waits for them.
    fn download(&mut self, lane: Lane, from: u64, bytes: &mut [u8]) -> Result<(), ExecutorError>;

    /// Memory of this machine that the device reads and writes by itself, kept as long as the executor. It may hold anything.
    fn pin(&mut self, bytes: u64) -> Result<Pinned, ExecutorError>;

    /// Writes bytes to pinned memory, from byte `at` on. What was sent from there before has been waited for.
    fn fill(&mut self, pinned: Pinned, at: u64, bytes: &[u8]) -> Result<(), ExecutorError>;

    /// Copies pinned bytes to the device, without another copy on the way. They stay as they are until that is done.
    fn send(&mut self, lane: Lane, from: HostStretch, to: u64) -> Result<(), ExecutorError>;

    /// Copies bytes of the device to pinned memory, without another copy on the way. Nobody else reads or writes there until that is done.
    fn fetch(&mut self, lane: Lane, from: u64, to: HostStretch) -> Result<(), ExecutorError>;

    /// Launches a kernel.
    fn launch(&mut self, lane: Lane, launch: &Launch) -> Result<(), ExecutorError>;

    /// Multiplies.
    fn multiply(&mut self, lane: Lane, product: &Product) -> Result<(), ExecutorError>;

    /// What `lane` gets from now on waits for what `other` has got so far.
    fn follow(&mut self, lane: Lane, other: Lane) -> Result<(), ExecutorError>;

    /// Whether a lane has done all it got so far. It is not waited for.
    fn is_done(&mut self, lane: Lane) -> Result<bool, ExecutorError>;

    /// Does `work`, which launches and multiplies on this lane only. It is recorded one of the first times its key comes; afterwards the record is done
    /// again and `work` is not called: all that may differ between two times is what lies in memory.
    fn graph(&mut self, lane: Lane, key: GraphKey, work: Work<'_>) -> Result<(), ExecutorError>;

    /// Waits until everything is done.
    fn wait(&mut self) -> Result<(), ExecutorError>;
}

/// What a graph is recorded from.
pub type Work<'a> = &'a mut dyn FnMut(&mut dyn Executor) -> Result<(), ExecutorError>;

/// `output = input W^T + bias`, or that added to what is there; sums in float32; W `[outputs, inputs]` as checkpoints store it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Product {
    /// Of W.
    pub weight: u64,
    /// Of the first input row.
    pub input: u64,
    /// Of `[outputs]`; 0 where nothing is added.
    pub bias: u64,
    /// Of the first output row.
    pub output: u64,
    /// Sizes and types.
    pub shape: Shape,
}

/// What a product's algorithm depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Rows of input and output.
    pub rows: usize,
    /// Values of an input row.
    pub inputs: usize,
    /// Values of an output row.
    pub outputs: usize,
    /// Values from one input row to the next.
    pub input_stride: usize,
    /// Values from one output row to the next.
    pub output_stride: usize,
    /// Type of weights, inputs and bias.
    pub values: Number,
    /// Type of the outputs: the same, or float32.
    pub results: Number,
    /// Whether a bias is added.
    pub biased: bool,
    /// Whether the product is added to what the outputs hold.
    pub adds: bool,
}

/// A type of stored numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Number {
    /// float32.
    F32,
    /// bfloat16.
    Bf16,
}

impl Number {
    /// The one that a type is.
    pub fn of<T: Stored>() -> Self {
        T::pick(Self::F32, Self::Bf16)
    }

    /// Bytes of one.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// A weight matrix `[outputs, inputs]` on the device.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<T> {
    /// By row; none where there are `wide` ones.
    pub values: View<T>,
    /// The same in float32, where they are stored so in a model of bfloat16.
    pub wide: Option<View<f32>>,
    /// Rows.
    pub outputs: usize,
    /// Values a row.
    pub inputs: usize,
}

impl<T: Stored> Matrix<T> {
    /// The matrix in float32, where it is stored so in a model of bfloat16.
    pub fn widened(&self) -> Option<Matrix<f32>> {
        let Self { outputs, inputs, .. } = *self;
        self.wide.map(|values| Matrix { values, wide: None, outputs, inputs })
    }

    /// The product with `count` rows.
    pub fn product<O: Stored>(&self, count: usize, input: Rows<T>, output: Rows<O>) -> Product {
        let Self { values, outputs, inputs, .. } = *self;
        assert_eq!(values.len(), outputs * inputs, "a matrix of {outputs} x {inputs}");
        for (what, stride, width, len) in [
            ("inputs", input.stride, inputs, input.values.len()),
            ("outputs", output.stride, outputs, output.values.len()),
        ] {
            assert!(width <= stride, "{what}: rows of {width} in steps of {stride}");
            assert!(count == 0 || (count - 1) * stride + width <= len, "{what}: {count} rows of {width}");
        }
        Product {
            weight: values.address(),
            input: input.values.address(),
            bias: 0,
            output: output.values.address(),
            shape: Shape {
                rows: count,
                inputs,
                outputs,
                input_stride: input.stride,
                output_stride: output.stride,
                values: Number::of::<T>(),
                results: Number::of::<O>(),
                biased: false,
                adds: false,
            },
        }
    }
}

impl Product {
    /// The same with a bias added.
    pub fn plus<T: Stored>(mut self, bias: View<T>) -> Self {
        assert_eq!(bias.len(), self.shape.outputs, "a bias for each output");
        assert_eq!(Number::of::<T>(), self.shape.results, "a bias as the outputs are stored");
        (self.bias, self.shape.biased) = (bias.address(), true);
        self
    }

    /// The same added to what the outputs hold.
    pub fn onto_outputs(mut self) -> Self {
        self.shape.adds = true;
        self
    }
}
