//! The `cpu` backend: plain Rust, the definition of correct results.
//!
//! A row's results do not depend on its batch, on how its sequence was cut or on the number of
//! threads, bit for bit: products sum in one fixed order, the Mamba-2 recurrence runs token by
//! token in prefill and decode alike, and attention reads pages of absolute positions. `open`
//! allocates all memory except the scratch of a thread's first product.

mod arena;
mod batch;
mod capacity;
mod error;
mod features;
mod forward;
mod memory;
mod memory_use;
mod observe;
mod probe;
mod values;
mod work;

use std::fmt;
use std::sync::Arc;

use self::arena::StateArena;
use self::batch::BatchLayout;
pub use self::error::CpuOpenError;
use self::features::FeatureStore;
use self::forward::ForwardPass;
pub use self::memory_use::MemoryUse;
pub use self::probe::{ProbeEvent, ProbeObserver};
use self::work::BatchWorkspace;
use crate::backend::{
    Backend, BackendCapacity, BackendError, BatchValidator, DeviceLost, HostState, IncomingWeights,
    OffloadedState, Page, SequenceSpan, Slot, TileFeature, WeightsError,
};
use crate::config::Config;
use crate::kernels::{ConvKernel, ProductPrecision, ThreadPool};
use crate::layers::ComputeContext;
use crate::sample::{SampleOutcome, SampleRequest, Sampler};
use crate::vision::{ImageTile, VisionEncoder, VisionWorkspace};
use crate::weights::{LayerWeights, MixerWeights, ModelWeights};

/// Runs a model on the CPUs of this machine.
pub struct CpuBackend {
    weights: Arc<ModelWeights>,
    convs: Arc<[ConvKernel]>,
    /// Weights for the next swap.
    staged: Option<PreparedWeights>,
    capacity: BackendCapacity,
    team: ThreadPool,
    compute: ProductPrecision,
    arena: StateArena,
    features: FeatureStore,
    layout: BatchLayout,
    work: BatchWorkspace,
    tiles: VisionWorkspace,
    samplers: Vec<Sampler>,
    observer: Option<ProbeObserver>,
}

/// Weights, and what is derived from them before the first product. Deriving it copies the
/// convolutions, so it does not happen between two batches.
#[derive(Clone)]
pub struct PreparedWeights {
    weights: Arc<ModelWeights>,
    /// The convolution of each Mamba-2 layer, in the layout for vectors.
    convs: Arc<[ConvKernel]>,
}

impl CpuBackend {
    /// Allocates the whole capacity for these weights. `threads` includes the caller's.
    pub fn open(
        weights: impl Into<Arc<ModelWeights>>,
        capacity: BackendCapacity,
        threads: usize,
        compute: ProductPrecision,
    ) -> Result<Self, CpuOpenError> {
        let weights = weights.into();
        check_capacity(&weights.config, &capacity)?;
        let text = &weights.config.text;
        let rows = weights.config.vision.as_ref().map_or(0, crate::config::VisionConfig::rows_per_tile);
        Ok(Self {
            arena: StateArena::new(text, &capacity)?,
            features: FeatureStore::new(capacity.features, rows, text.hidden)?,
            layout: BatchLayout::new(&capacity),
            work: BatchWorkspace::new(text, &capacity, threads)?,
            tiles: VisionWorkspace::default(),
            samplers: (0..threads.max(1)).map(|_| Sampler::default()).collect(),
            team: ThreadPool::new(threads),
            convs: convs(&weights),
            weights,
            staged: None,
            capacity,
            compute,
            observer: None,
        })
    }

    /// The weights in use.
    pub fn weights(&self) -> &Arc<ModelWeights> {
        &self.weights
    }

    /// Uses other weights of the same shapes from the next batch on; slots and pages keep their
    /// contents. Returns the old weights.
    pub fn replace_weights(&mut self, weights: Arc<ModelWeights>) -> Result<Arc<ModelWeights>, CpuOpenError> {
        Ok(self.exchange(PreparedWeights::new(weights))?.weights)
    }

    fn exchange(&mut self, ready: PreparedWeights) -> Result<PreparedWeights, CpuOpenError> {
        if let Some(difference) = difference(&self.weights, &ready.weights) {
            return Err(CpuOpenError::OtherModel { difference });
        }
        let weights = std::mem::replace(&mut self.weights, ready.weights);
        Ok(PreparedWeights { weights, convs: std::mem::replace(&mut self.convs, ready.convs) })
    }

    /// Stores rows `[n, H]` as a feature, as if they were a tile's: they can replace embeddings.
    pub fn store_rows(&mut self, rows: &[f32]) -> Result<TileFeature, BackendError> {
        self.features.store(rows)
    }
}

impl PreparedWeights {
    /// Prepares weights, on the caller's thread.
    pub fn new(weights: impl Into<Arc<ModelWeights>>) -> Self {
        let weights = weights.into();
        Self { convs: convs(&weights), weights }
    }
}

/// The first difference between the shapes of two sets of weights.
fn difference(old: &ModelWeights, new: &ModelWeights) -> Option<String> {
    let rows = |weights: &ModelWeights| weights.text.embeddings.rows;
    let prefix = |weights: &ModelWeights| weights.vision.as_ref().map_or(0, |vision| vision.prefix.len());
    if old.config.text != new.config.text {
        Some("the language model".to_owned())
    } else if old.config.vision != new.config.vision || prefix(old) != prefix(new) {
        Some("the vision encoder".to_owned())
    } else if rows(old) != rows(new) {
        Some(format!("the embedding table has {} rows, the one in use has {}", rows(new), rows(old)))
    } else {
        None
    }
}

/// Checks that no part of the capacity is zero and that the system has the memory.
fn check_capacity(config: &Config, capacity: &BackendCapacity) -> Result<(), CpuOpenError> {
    let parts = [
        ("state slots", capacity.slots),
        ("rows", capacity.rows_max),
        ("rows of logits", capacity.logits_max),
    ];
    if let Some((what, _)) = parts.into_iter().find(|(_, count)| *count == 0) {
        return Err(CpuOpenError::NoCapacity { what });
    }
    let requested = capacity.bytes(config, 0);
    match memory::available() {
        Some(available) if requested.total() > available => Err(CpuOpenError::Full { requested, available }),
        _ => Ok(()),
    }
}

fn convs(weights: &ModelWeights) -> Arc<[ConvKernel]> {
    let kernel = weights.config.text.ssm.conv_kernel;
    let conv = |layer: &LayerWeights| match &layer.mixer {
        MixerWeights::Ssm(ssm) => Some(ConvKernel::new(&ssm.conv, &ssm.conv_bias, kernel)),
        _ => None,
    };
    weights.text.layers.iter().filter_map(conv).collect()
}

impl Backend for CpuBackend {
    fn config(&self) -> &Config {
        &self.weights.config
    }

    fn capacity(&self) -> BackendCapacity {
        self.capacity
    }

    fn encode(&mut self, tiles: &[ImageTile]) -> Result<Vec<TileFeature>, BackendError> {
        let ModelWeights { config, vision, .. } = &*self.weights;
        let (Some(weights), Some(config)) = (vision, &config.vision) else {
            return Err(BackendError::NoVision);
        };
        self.features.check_capacity(tiles.len())?;
        let crew = ComputeContext { team: &self.team, compute: self.compute };
        let rows = VisionEncoder { weights, config, crew }.encode(&mut self.tiles, tiles);
        rows.chunks_exact(config.rows_per_tile() * self.weights.config.text.hidden)
            .map(|rows| self.features.store(rows))
            .collect()
    }

    fn release(&mut self, features: &[TileFeature]) {
        features.iter().for_each(|feature| self.features.release(*feature));
    }

    fn run(&mut self, batch: &[SequenceSpan<'_>]) -> Result<(), BackendError> {
        let text = &self.weights.text;
        let features = &self.features;
        let feature_rows = &|feature| features.rows(feature).unwrap_or(0);
        self.layout.arrange(
            batch,
            BatchValidator { capacity: &self.capacity, embeddings: text.embeddings.rows, feature_rows },
        )?;
        if batch.is_empty() {
            return Ok(());
        }
        for span in batch.iter().filter(|span| span.start == 0) {
            self.arena.clear(span.slot);
        }
        let pass = ForwardPass {
            text: &self.weights.config.text,
            weights: text,
            convs: &self.convs,
            crew: ComputeContext { team: &self.team, compute: self.compute },
            batch,
            layout: &self.layout,
            features: &self.features,
            arena: &mut self.arena,
            work: &mut self.work,
            observer: self.observer.as_mut(),
        };
        pass.run();
        Ok(())
    }

    fn logits(&mut self, row: u32) -> Result<&[f32], DeviceLost> {
        let row = row as usize;
        let width = self.weights.config.text.vocabulary;
        assert!(row < self.layout.wanted.len(), "logits of row {row} were not requested");
        Ok(&self.work.logits[row * width..(row + 1) * width])
    }

    fn sample(&mut self, picks: &[SampleRequest<'_>]) -> Result<Vec<SampleOutcome>, DeviceLost> {
        let width = self.weights.config.text.vocabulary;
        let logits = &self.work.logits[..self.layout.wanted.len() * width];
        let mut outcomes = vec![SampleOutcome::NotFinite; picks.len()];
        let share = picks.len().div_ceil(self.samplers.len()).max(1);
        let mut shares: Vec<_> =
            outcomes.chunks_mut(share).zip(picks.chunks(share)).zip(&mut self.samplers).collect();
        self.team.pieces(&mut shares, 1, |_, shares| {
            for ((outcomes, picks), sampler) in shares {
                for (outcome, pick) in outcomes.iter_mut().zip(*picks) {
                    *outcome = sampler.sample(&logits[pick.row as usize * width..][..width], pick);
                }
            }
        });
        Ok(outcomes)
    }

    fn clear(&mut self, slot: Slot) -> Result<(), DeviceLost> {
        self.arena.clear(slot);
        Ok(())
    }

    fn copy_slot(&mut self, from: Slot, to: Slot) -> Result<(), DeviceLost> {
        self.arena.copy_slot(from, to);
        Ok(())
    }

    fn copy_page(&mut self, from: Page, to: Page) -> Result<(), DeviceLost> {
        self.arena.copy_page(from, to);
        Ok(())
    }

    fn offloaded_bytes(&self, pages: u32) -> u64 {
        self.arena.offloaded_bytes(pages)
    }

    fn offload(&mut self, slot: Slot, pages: &[Page]) -> Result<Option<OffloadedState>, DeviceLost> {
        Ok(Some(self.arena.offload(slot, pages).into_offloaded()))
    }

    fn restore(&mut self, offloaded: &OffloadedState, slot: Slot, pages: &[Page]) -> Result<(), DeviceLost> {
        self.arena.restore(HostState::of(offloaded), slot, pages);
        Ok(())
    }

    fn stage(&mut self, weights: IncomingWeights) -> Result<(), WeightsError> {
        let other = |_| WeightsError::Refused("the cpu backend takes weights loaded for it".into());
        let ready = weights.downcast::<PreparedWeights>().map_err(other)?;
        if let Some(difference) = difference(&self.weights, &ready.weights) {
            return Err(WeightsError::Refused(CpuOpenError::OtherModel { difference }.to_string()));
        }
        self.staged = Some(*ready);
        Ok(())
    }

    /// The staged weights are in this machine's memory already.
    fn copy_staged(&mut self, _bytes: u64) -> Result<bool, WeightsError> {
        if self.staged.is_some() { Ok(true) } else { Err(WeightsError::NotStaged) }
    }

    fn swap(&mut self) -> Result<Option<IncomingWeights>, WeightsError> {
        let ready = self.staged.take().ok_or(WeightsError::NotStaged)?;
        let old = self.exchange(ready).map_err(|why| WeightsError::Refused(why.to_string()))?;
        Ok(Some(Box::new(old)))
    }
}

impl fmt::Debug for CpuBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { capacity, team, compute, .. } = self;
        f.debug_struct("CpuBackend")
            .field("capacity", capacity)
            .field("team", team)
            .field("compute", compute)
            .finish_non_exhaustive()
    }
}
