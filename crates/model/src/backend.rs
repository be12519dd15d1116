//! The interface that runs a model. The `cpu` and the `cuda` backend implement it.
//!
//! A backend holds weights, state slots, KV pages and tile features. It knows nothing about
//! sessions: the caller decides which sequence owns a slot or a page and keeps the page tables
//! (`policy/src/slots.rs`). A call either does everything that was requested or returns an error
//! that says why not. Every call that can reach the device can find it failed and returns a
//! `Result`: an error never becomes a value.

mod validate;

use std::any::Any;

pub use self::validate::BatchValidator;
use crate::config::Config;
use crate::sample::{SampleOutcome, SampleRequest};
use crate::vision::ImageTile;

/// Positions in a KV page. 64 x 2 x 1024 x 2 bytes = 256 KiB a layer for the 12B: large enough to
/// stream, small enough to share.
pub const PAGE_TOKENS: usize = 64;

/// Index of the memory for the convolution and SSM state of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// Index of the memory for the keys and values of `PAGE_TOKENS` positions in every attention layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Page(pub u32);

/// The language-model rows of one encoded tile, `[rows_per_tile, H]`. The backend keeps them until
/// they are released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TileFeature(pub u32);

/// Capacity of a backend. All of it is allocated when the backend opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackendCapacity {
    pub slots: u32,
    pub pages: u32,
    /// Rows (tokens) of one batch.
    pub rows_max: u32,
    /// Rows of one batch that can return logits.
    pub logits_max: u32,
    pub features: u32,
    /// Bytes of host memory for offloaded states. A GPU backend pins them when it opens.
    pub offload_bytes: u64,
}

/// Tokens of one sequence, to be run after the state in `slot`.
#[derive(Debug, Clone, Copy)]
pub struct SequenceSpan<'a> {
    /// Slot of the sequence's state; no two spans of a batch share one.
    pub slot: Slot,
    /// The sequence's pages in order: page i holds positions `i * PAGE_TOKENS..`. They cover
    /// `start + tokens.len()`.
    pub pages: &'a [Page],
    /// Tokens already in the state. With 0 the sequence starts anew, whatever the slot holds.
    pub start: u32,
    /// Tokens to run, at least one.
    pub tokens: &'a [u32],
    /// Image rows among the tokens, sorted and disjoint.
    pub insets: &'a [ImageInset],
    /// Rows whose logits the caller needs.
    pub want: LogitRows,
}

impl SequenceSpan<'_> {
    /// Number of rows whose logits are needed: the last ones of the span.
    pub fn wanted(&self) -> usize {
        match self.want {
            LogitRows::Nothing => 0,
            LogitRows::Last => 1,
            LogitRows::All => self.tokens.len(),
        }
    }
}

/// Rows of a tile that replace the embeddings of placeholders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageInset {
    /// Index of the first placeholder in the span's tokens.
    pub at: u32,
    pub len: u32,
    pub feature: TileFeature,
    /// Row of the tile that the first placeholder takes.
    pub row: u32,
}

/// Rows of a span whose logits the caller needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitRows {
    /// None: the prefill continues in a later batch.
    Nothing,
    /// The last one: the next token is to be sampled.
    Last,
    All,
}

/// A sequence's state in host memory, bit for bit. The backend decides where it is stored there.
/// Dropping this frees the memory.
#[derive(Debug)]
pub struct OffloadedState {
    bytes: u64,
    handle: Box<dyn Any + Send>,
}

impl OffloadedState {
    /// A state of this size, with the handle by which its backend finds it.
    pub fn new(bytes: u64, kept: impl Any + Send) -> Self {
        Self { bytes, handle: Box::new(kept) }
    }

    /// Bytes of host memory that the state takes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The handle by which its backend finds it; `None` if another kind of backend offloaded the
    /// state.
    pub fn handle<T: Any>(&self) -> Option<&T> {
        self.handle.downcast_ref()
    }
}

/// An offloaded state of a backend whose own memory is host memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostState {
    /// Convolution and SSM state.
    pub state: Vec<u8>,
    /// Keys and values, page by page.
    pub pages: Vec<u8>,
}

impl HostState {
    /// Wraps the state for the backend interface.
    pub fn into_offloaded(self) -> OffloadedState {
        OffloadedState::new((self.state.len() + self.pages.len()) as u64, self)
    }

    /// The state inside `offloaded`.
    ///
    /// # Panics
    /// If another kind of backend offloaded it.
    pub fn of(offloaded: &OffloadedState) -> &Self {
        offloaded.handle().expect("a backend restores only states that its own kind offloaded")
    }
}

/// Weights for a backend to load: [`crate::cpu::PreparedWeights`] for the `cpu` backend,
/// [`crate::checkpoint::Checkpoint`] for a GPU.
pub type IncomingWeights = Box<dyn Any + Send>;

/// The device failed and cannot be used any more. Work that was in progress on it has no result.
///
/// A device may report a failure at any later call, so every call that reaches it can return this
/// error. It does not concern one sequence: all of them are lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the device failed: {0}")]
pub struct DeviceLost(
    /// The device's own error.
    pub String,
);

/// Why a backend did not take new weights. Those in use stay, unless the device failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WeightsError {
    /// It cannot exchange weights.
    #[error("this backend cannot exchange its weights")]
    Fixed,
    /// No complete set of staged weights.
    #[error("no complete set of weights is staged; stage the weights and copy all of them first")]
    NotStaged,
    /// The weights are another model's or another backend's, or a value is not finite.
    #[error("{0}")]
    Refused(String),
    /// The device failed; it cannot be used any more.
    #[error(transparent)]
    Device(#[from] DeviceLost),
}

/// Why a backend did not do what was requested.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The batch exceeds the capacity that the backend was opened with.
    #[error("{what}: {requested} requested, {capacity} available")]
    OverCapacity {
        /// What the limit counts.
        what: &'static str,
        /// How many were requested.
        requested: usize,
        /// How many are available.
        capacity: usize,
    },
    /// A token id has no embedding.
    #[error(
        "token id {id} at index {index} has no row in the embedding table of {rows} rows and no image row replaces it"
    )]
    NoEmbedding {
        id: u32,
        /// Index in the span.
        index: usize,
        /// Rows of the table.
        rows: usize,
    },
    /// The checkpoint has no vision encoder.
    #[error("the checkpoint reads text only; use one with a vision encoder or send no images")]
    NoVision,
    /// The device failed; it cannot be used any more.
    #[error(transparent)]
    Device(#[from] DeviceLost),
}

/// Runs a model. The logits of the newest batch stay available until the next batch.
pub trait Backend: Send {
    /// Shapes of the model.
    fn config(&self) -> &Config;

    /// The capacity that it was opened with.
    fn capacity(&self) -> BackendCapacity;

    /// Encodes tiles. Each feature stays until it is released.
    fn encode(&mut self, tiles: &[ImageTile]) -> Result<Vec<TileFeature>, BackendError>;

    /// Whether tiles are encoded while a batch runs. Then tiles that are requested before the
    /// caller samples from the running batch cost that batch little. A batch waits for tiles that
    /// it shows itself.
    fn encodes_concurrently(&self) -> bool {
        false
    }

    /// Waits for the tiles that the next batch would wait for. A backend whose batches wait by
    /// themselves does nothing.
    fn await_tiles(&mut self) -> Result<(), DeviceLost> {
        Ok(())
    }

    /// Frees features. This call does not reach the device.
    fn release(&mut self, features: &[TileFeature]);

    /// Runs the spans and advances their states and pages. The rows whose logits are needed are
    /// numbered from 0 in the order of the spans.
    fn run(&mut self, batch: &[SequenceSpan<'_>]) -> Result<(), BackendError>;

    /// Logits `[V]` of one of those rows of the newest batch.
    fn logits(&mut self, row: u32) -> Result<&[f32], DeviceLost>;

    /// Samples a token from some of those rows of the newest batch, with one outcome for each
    /// request. [`SampleOutcome::NotFinite`] describes what the model computed and is never a
    /// failure of the device.
    fn sample(&mut self, picks: &[SampleRequest<'_>]) -> Result<Vec<SampleOutcome>, DeviceLost>;

    /// Sets a slot to the state before any token.
    fn clear(&mut self, slot: Slot) -> Result<(), DeviceLost>;

    /// Copies a slot's state.
    fn copy_slot(&mut self, from: Slot, to: Slot) -> Result<(), DeviceLost>;

    /// Copies a page in every attention layer.
    fn copy_page(&mut self, from: Page, to: Page) -> Result<(), DeviceLost>;

    /// Bytes of host memory that an offloaded state with this many pages takes.
    fn offloaded_bytes(&self, pages: u32) -> u64;

    /// Copies a sequence's state to host memory; `None` if that has no free memory for it. Slot and
    /// pages can be reused at once.
    fn offload(&mut self, slot: Slot, pages: &[Page]) -> Result<Option<OffloadedState>, DeviceLost>;

    /// Whether a batch with this slot and these pages would wait for states that are being copied
    /// to or from host memory. This stays true only for a short time.
    fn is_moving(&mut self, _slot: Slot, _pages: &[Page]) -> Result<bool, DeviceLost> {
        Ok(false)
    }

    /// Waits for the states that this batch would wait for. A backend whose batches wait by
    /// themselves does nothing.
    fn await_states(&mut self, _batch: &[SequenceSpan<'_>]) -> Result<(), DeviceLost> {
        Ok(())
    }

    /// Copies an offloaded state back into any slot and as many pages. It may be dropped at once.
    fn restore(&mut self, offloaded: &OffloadedState, slot: Slot, pages: &[Page]) -> Result<(), DeviceLost>;

    /// Accepts other weights of the same model, which are loaded while the present ones stay in
    /// use. Drops what was staged before.
    fn stage(&mut self, _weights: IncomingWeights) -> Result<(), WeightsError> {
        Err(WeightsError::Fixed)
    }

    /// Copies more of the staged weights: at least this many bytes, or all that are left. True when
    /// all are copied. Call it between two batches: a batch does not wait for them.
    fn copy_staged(&mut self, _bytes: u64) -> Result<bool, WeightsError> {
        Err(WeightsError::NotStaged)
    }

    /// Switches to the staged weights; slots, pages and features keep their contents. Returns the
    /// old weights, to be staged again, if the backend can keep both sets at no cost.
    fn swap(&mut self) -> Result<Option<IncomingWeights>, WeightsError> {
        Err(WeightsError::NotStaged)
    }
}
