//! The interface that performs the backend's work: memory, copies, launches, matrix products, their
//! order, and their recording as graphs.
//!
//! `gpu.rs` implements it for a GPU. In tests another implementation runs the same kernels on this
//! machine's CPU through the shim. The backend uses only this interface, so everything above a
//! kernel is tested without a GPU.

use std::error::Error;

use crate::launch::{DeviceView, KernelLaunch, StoredElement};
use crate::ops::DeviceRows;

/// A queue of work. A lane runs its work in order; two lanes run concurrently unless one `follow`s
/// the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExecutionLane {
    /// Batches of the language model, and what belongs to sessions.
    Batch,
    Vision,
    /// Offloaded states in transfer. This lane multiplies and stages nothing.
    Copy,
}

/// Memory of this machine that an executor has pinned, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PinnedMemory(pub usize);

/// A range of pinned memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostRange {
    /// Memory that it is part of.
    pub pinned: PinnedMemory,
    /// Its first byte there.
    pub at: u64,
    pub bytes: u64,
}

/// What a recorded batch depends on, apart from the contents of its buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GraphKey {
    pub rows: usize,
    /// Parts that attention splits the longest context into.
    pub splits: usize,
}

/// Why work was not done. After an error an executor cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// Less memory is free than requested.
    #[error("cannot allocate {requested} bytes: {free} bytes are free")]
    NoMemory { requested: u64, free: u64 },
    /// The system does not pin that much of its memory.
    #[error("cannot pin {requested} bytes of host memory")]
    NoHostMemory { requested: u64 },
    /// The device or one of its libraries refused.
    #[error("could not {operation}")]
    Failed {
        operation: String,
        /// The error of the device or the library.
        source: Box<dyn Error + Send + Sync>,
    },
}

impl ExecutorError {
    /// An operation that failed.
    pub fn failed(operation: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Failed { operation: operation.into(), source: source.into() }
    }
}

/// Performs work in order, lane by lane. Calls return before the work is done unless they say
/// otherwise.
pub trait Executor: Send {
    /// Bytes that can still be allocated.
    fn free_bytes(&mut self) -> Result<u64, ExecutorError>;

    /// Allocates memory at an address that is a multiple of 256, for the lifetime of the executor.
    /// Its contents are undefined.
    fn allocate(&mut self, bytes: u64) -> Result<u64, ExecutorError>;

    /// Copies bytes to the device. The caller may change them as soon as this returns.
    fn upload(&mut self, lane: ExecutionLane, bytes: &[u8], to: u64) -> Result<(), ExecutorError>;

    /// Copies bytes from the device, and waits for them.
    fn download(&mut self, lane: ExecutionLane, from: u64, bytes: &mut [u8]) -> Result<(), ExecutorError>;

    /// Pins host memory that the device accesses directly, for the lifetime of the executor. Its
    /// contents are undefined.
    fn pin(&mut self, bytes: u64) -> Result<PinnedMemory, ExecutorError>;

    /// Writes bytes to pinned memory, starting at byte `at`. The caller has waited for earlier
    /// transfers from there.
    fn fill(&mut self, pinned: PinnedMemory, at: u64, bytes: &[u8]) -> Result<(), ExecutorError>;

    /// Copies pinned bytes to the device without an intermediate copy. They must not change until
    /// that is done.
    fn send(&mut self, lane: ExecutionLane, from: HostRange, to: u64) -> Result<(), ExecutorError>;

    /// Copies bytes of the device to pinned memory without an intermediate copy. Nothing else may
    /// access the destination until that is done.
    fn fetch(&mut self, lane: ExecutionLane, from: u64, to: HostRange) -> Result<(), ExecutorError>;

    fn launch(&mut self, lane: ExecutionLane, launch: &KernelLaunch) -> Result<(), ExecutorError>;

    /// Computes a matrix product.
    fn multiply(&mut self, lane: ExecutionLane, product: &MatrixProduct) -> Result<(), ExecutorError>;

    /// Makes later work of `lane` wait for the present work of `other`.
    fn follow(&mut self, lane: ExecutionLane, other: ExecutionLane) -> Result<(), ExecutorError>;

    /// Whether a lane has done all its present work. Does not wait.
    fn is_done(&mut self, lane: ExecutionLane) -> Result<bool, ExecutorError>;

    /// Runs `work`, which launches and multiplies on this lane only. One of the first runs with
    /// each key is recorded; later calls replay the record and do not call `work`. Only the
    /// contents of memory may differ between two runs of a key.
    fn graph(&mut self, lane: ExecutionLane, key: GraphKey, work: GraphWork<'_>)
    -> Result<(), ExecutorError>;

    /// Waits until everything is done.
    fn wait(&mut self) -> Result<(), ExecutorError>;
}

/// The work that a graph records.
pub type GraphWork<'a> = &'a mut dyn FnMut(&mut dyn Executor) -> Result<(), ExecutorError>;

/// `output = input W^T + bias`, or that sum added to the output; sums in float32; W
/// `[outputs, inputs]` as checkpoints store it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatrixProduct {
    pub weight: u64,
    /// Address of the first input row.
    pub input: u64,
    /// Address of the bias `[outputs]`; 0 if there is none.
    pub bias: u64,
    /// Address of the first output row.
    pub output: u64,
    pub shape: ProductShape,
}

/// Everything that a product's algorithm depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProductShape {
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
    pub values: ElementType,
    /// Type of the outputs: the same, or float32.
    pub results: ElementType,
    /// Whether a bias is added.
    pub biased: bool,
    /// Whether the product is added to the contents of the output.
    pub adds: bool,
}

/// A type of stored numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ElementType {
    F32,
    Bf16,
}

impl ElementType {
    /// The element type of a Rust type.
    pub fn of<T: StoredElement>() -> Self {
        T::pick(Self::F32, Self::Bf16)
    }

    /// Bytes of one value.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// A weight matrix `[outputs, inputs]` on the device.
#[derive(Debug, Clone, Copy)]
pub struct DeviceMatrix<T> {
    /// By row; empty if there are `wide` values.
    pub values: DeviceView<T>,
    /// Values in float32, for a matrix that a bfloat16 model stores in float32.
    pub wide: Option<DeviceView<f32>>,
    pub outputs: usize,
    pub inputs: usize,
}

impl<T: StoredElement> DeviceMatrix<T> {
    /// The matrix in float32, if a bfloat16 model stores it so.
    pub fn widened(&self) -> Option<DeviceMatrix<f32>> {
        let Self { outputs, inputs, .. } = *self;
        self.wide.map(|values| DeviceMatrix { values, wide: None, outputs, inputs })
    }

    /// The product with `count` rows.
    pub fn product<O: StoredElement>(
        &self,
        count: usize,
        input: DeviceRows<T>,
        output: DeviceRows<O>,
    ) -> MatrixProduct {
        let Self { values, outputs, inputs, .. } = *self;
        assert_eq!(values.len(), outputs * inputs, "a matrix of {outputs} x {inputs}");
        for (what, stride, width, len) in [
            ("inputs", input.stride, inputs, input.values.len()),
            ("outputs", output.stride, outputs, output.values.len()),
        ] {
            assert!(width <= stride, "{what}: rows of {width} with a stride of {stride}");
            assert!(count == 0 || (count - 1) * stride + width <= len, "{what}: {count} rows of {width}");
        }
        MatrixProduct {
            weight: values.address(),
            input: input.values.address(),
            bias: 0,
            output: output.values.address(),
            shape: ProductShape {
                rows: count,
                inputs,
                outputs,
                input_stride: input.stride,
                output_stride: output.stride,
                values: ElementType::of::<T>(),
                results: ElementType::of::<O>(),
                biased: false,
                adds: false,
            },
        }
    }
}

impl MatrixProduct {
    /// The product with a bias added.
    pub fn plus<T: StoredElement>(mut self, bias: DeviceView<T>) -> Self {
        assert_eq!(bias.len(), self.shape.outputs, "one bias for each output");
        assert_eq!(ElementType::of::<T>(), self.shape.results, "a bias of the type of the outputs");
        (self.bias, self.shape.biased) = (bias.address(), true);
        self
    }

    /// The product added to the contents of the output.
    pub(crate) fn onto_outputs(mut self) -> Self {
        self.shape.adds = true;
        self
    }
}
