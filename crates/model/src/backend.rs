//! What runs a model: the interface that the `cpu` and the `cuda` backend share.
//!
//! A backend holds weights, state slots, KV pages and tile features. It knows no session: who owns a slot or a page, and what a
//! sequence's page table is, is the caller's business (`policy/src/slots.rs`). A call either does all it was asked or says why not.
//! Every call that can reach the device can find it lost and returns a `Result`: an error is never turned into a value.

mod door;

use std::any::Any;

pub use self::door::Door;
use crate::config::Config;
use crate::sample::{Pick, Picked};
use crate::vision::Tile;

/// Positions a KV page holds. 64 x 2 x 1024 x 2 bytes = 256 KiB a layer for the 12B: large enough to stream, small enough to share.
pub const PAGE_TOKENS: usize = 64;

/// A place for the convolution and SSM state of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// A place for the keys and values of `PAGE_TOKENS` positions in every attention layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Page(pub u32);

/// The language-model rows of one encoded tile, `[rows_per_tile, H]`, held by the backend until released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Feature(pub u32);

/// How much of everything a backend has. All of it is allocated when it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// State slots.
    pub slots: u32,
    /// KV pages.
    pub pages: u32,
    /// Rows (tokens) of one batch.
    pub rows_max: u32,
    /// Rows of one batch whose logits may be asked for.
    pub logits_max: u32,
    /// Tile features.
    pub features: u32,
    /// Bytes of host memory for parked states. A GPU's are locked when it is opened.
    pub parked_bytes: u64,
}

/// Some tokens of one sequence, to be run after the state in `slot`.
#[derive(Debug, Clone, Copy)]
pub struct Span<'a> {
    /// Where the sequence's state is; no two spans of a batch share one.
    pub slot: Slot,
    /// The sequence's pages in order: page i holds positions `i * PAGE_TOKENS..`; they cover `start + tokens.len()`.
    pub pages: &'a [Page],
    /// Tokens already in the state; with 0 the sequence starts anew, whatever the slot holds.
    pub start: u32,
    /// Tokens to run, at least one.
    pub tokens: &'a [u32],
    /// Image rows among them, sorted and disjoint.
    pub insets: &'a [Inset],
    /// Which rows' logits are wanted.
    pub want: Want,
}

impl Span<'_> {
    /// How many of its rows' logits are wanted: its last ones.
    pub fn wanted(&self) -> usize {
        match self.want {
            Want::Nothing => 0,
            Want::Last => 1,
            Want::All => self.tokens.len(),
        }
    }
}

/// Rows of a tile that stand in place of the embeddings of placeholders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inset {
    /// Index of the first one in the span's tokens.
    pub at: u32,
    /// How many.
    pub len: u32,
    /// Whose rows.
    pub feature: Feature,
    /// Row of the tile the first one takes.
    pub row: u32,
}

/// Rows of a span whose logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// None: a prefill that goes on.
    Nothing,
    /// The last one: the next token is to be drawn.
    Last,
    /// Every one.
    All,
}

/// A sequence's state in host memory, bit for bit. Where it lies there is its backend's business; dropping this gives the memory back.
#[derive(Debug)]
pub struct Parked {
    bytes: u64,
    kept: Box<dyn Any + Send>,
}

impl Parked {
    /// A state that takes so many bytes, and what its backend finds it by.
    pub fn new(bytes: u64, kept: impl Any + Send) -> Self {
        Self { bytes, kept: Box::new(kept) }
    }

    /// Bytes of host memory that it takes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What its backend finds it by; `None` where another kind of backend parked it.
    pub fn kept<T: Any>(&self) -> Option<&T> {
        self.kept.downcast_ref()
    }
}

/// How backends park whose own memory is the host's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plain {
    /// Convolution and SSM state.
    pub state: Vec<u8>,
    /// Keys and values, page by page.
    pub pages: Vec<u8>,
}

impl Plain {
    /// Parks it.
    pub fn parked(self) -> Parked {
        Parked::new((self.state.len() + self.pages.len()) as u64, self)
    }

    /// The one that was parked.
    ///
    /// # Panics
    /// When another kind of backend parked it.
    pub fn of(parked: &Parked) -> &Self {
        parked.kept().expect("a backend restores what one of its kind parked")
    }
}

/// Weights on their way into a backend: [`crate::cpu::Ready`] for the `cpu` backend, [`crate::checkpoint::Checkpoint`] for a GPU.
pub type Incoming = Box<dyn Any + Send>;

/// The device failed and cannot be used any more. Nothing that was under way on it has a result.
///
/// A device may show a failure at any later call, so every call that reaches it can return this. It says nothing about one sequence: all of them are lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the device failed: {0}")]
pub struct DeviceLost(
    /// The device's own error.
    pub String,
);

/// Why a backend did not take other weights. Those in use stay, unless the device failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WeightsError {
    /// It has none that could be exchanged.
    #[error("this backend cannot exchange its weights")]
    Fixed,
    /// There is nothing to take over.
    #[error("no weights are staged, or not all of them")]
    NotStaged,
    /// They are another model's, of another backend's kind, or a value is not finite.
    #[error("{0}")]
    Refused(String),
    /// The device failed; it cannot be used any more.
    #[error(transparent)]
    Device(#[from] DeviceLost),
}

/// Why a backend did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The batch does not fit what the backend was opened with.
    #[error("{what}: {asked} asked for, {room} there are")]
    NoRoom {
        /// Of what.
        what: &'static str,
        /// How many were asked for.
        asked: usize,
        /// How many there are.
        room: usize,
    },
    /// A token id has no embedding.
    #[error(
        "token id {id} at index {index} has no row in the embedding table of {rows} rows and no image row stands in its place"
    )]
    NoEmbedding {
        /// The id.
        id: u32,
        /// Where in the span.
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

/// Runs a model. Logits of the newest batch stay inside until the next one.
pub trait Backend: Send {
    /// The model.
    fn config(&self) -> &Config;

    /// What it was opened with.
    fn room(&self) -> Room;

    /// Encodes tiles. Each feature stays until it is released.
    fn encode(&mut self, tiles: &[Tile]) -> Result<Vec<Feature>, BackendError>;

    /// Whether tiles are encoded beside batches: then one that is asked for before a batch is drawn from costs that batch little, and one that a
    /// batch shows at once holds it up.
    fn encodes_beside(&self) -> bool {
        false
    }

    /// Waits for the tiles that a batch would wait for. A backend whose batches wait by themselves does nothing.
    fn await_tiles(&mut self) -> Result<(), DeviceLost> {
        Ok(())
    }

    /// Gives features back. The device is not asked.
    fn release(&mut self, features: &[Feature]);

    /// Runs the spans and advances their states and pages. The wanted logits rows are numbered from 0 in the order of the spans.
    fn run(&mut self, batch: &[Span<'_>]) -> Result<(), BackendError>;

    /// Logits `[V]` of a wanted row of the newest batch.
    fn logits(&mut self, row: u32) -> Result<&[f32], DeviceLost>;

    /// Draws a token from each of some wanted rows of the newest batch; one answer a pick. [`Picked::NotFinite`] is what the model computed, never a failure
    /// of the device.
    fn sample(&mut self, picks: &[Pick<'_>]) -> Result<Vec<Picked>, DeviceLost>;

    /// Sets a slot to the state before any token.
    fn clear(&mut self, slot: Slot) -> Result<(), DeviceLost>;

    /// Copies a slot's state.
    fn copy_slot(&mut self, from: Slot, to: Slot) -> Result<(), DeviceLost>;

    /// Copies a page in every attention layer.
    fn copy_page(&mut self, from: Page, to: Page) -> Result<(), DeviceLost>;

    /// Bytes of host memory that a state with so many pages takes when it is parked.
    fn parked_bytes(&self, pages: u32) -> u64;

    /// Copies a sequence's state to host memory; `None` where there is no room for it. Slot and pages may be used for others at once.
    fn park(&mut self, slot: Slot, pages: &[Page]) -> Result<Option<Parked>, DeviceLost>;

    /// Whether a batch with these places would wait for states on their way to or from host memory. It is so for a while at most.
    fn is_moving(&mut self, _slot: Slot, _pages: &[Page]) -> Result<bool, DeviceLost> {
        Ok(false)
    }

    /// Waits for the states that a batch would wait for. A backend whose batches wait by themselves does nothing.
    fn await_states(&mut self, _batch: &[Span<'_>]) -> Result<(), DeviceLost> {
        Ok(())
    }

    /// Brings a parked state back, into any slot and as many pages. It may be dropped at once.
    fn restore(&mut self, parked: &Parked, slot: Slot, pages: &[Page]) -> Result<(), DeviceLost>;

    /// Takes on other weights of the same model, to be brought beside those in use. What was staged before is forgotten.
    fn stage(&mut self, _weights: Incoming) -> Result<(), WeightsError> {
        Err(WeightsError::Fixed)
    }

    /// Brings some more of the staged weights, at least so many bytes or all that is left; true when all are there. Between two batches: a
    /// batch does not wait for them.
    fn bring(&mut self, _bytes: u64) -> Result<bool, WeightsError> {
        Err(WeightsError::NotStaged)
    }

    /// The staged weights take over; slots, pages and features keep what they hold. Gives the old ones back, to be staged again, where
    /// the backend holds two sets at no cost.
    fn swap(&mut self) -> Result<Option<Incoming>, WeightsError> {
        Err(WeightsError::NotStaged)
    }
}
