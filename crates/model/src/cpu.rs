//! The `cpu` backend: plain Rust, the definition of what is correct.
//!
//! A row's results do not depend on its batch, on how its sequence was cut or on the number of threads, bit for bit: products sum in one
//! fixed order, the Mamba-2 recurrence runs token by token in prefill and decode alike, and attention walks pages of absolute
//! positions. All memory is allocated by `open`, but for the scratch of a thread's first product.

mod arena;
mod batch;
mod features;
mod forward;
mod memory;
mod probe;
mod room;
mod values;
mod work;

use std::fmt;
use std::sync::Arc;

use self::arena::Arena;
use self::batch::Layout;
use self::features::Features;
use self::forward::Pass;
pub use self::probe::{Observer, Probe};
pub use self::room::Bytes;
use self::work::Work;
use crate::backend::{
    Backend, BackendError, DeviceLost, Door, Feature, Incoming, Page, Parked, Plain, Room, Slot, Span,
    WeightsError,
};
use crate::config::Config;
use crate::kernels::{Compute, Conv, Team};
use crate::layers::Crew;
use crate::sample::{Pick, Picked, Sampler};
use crate::vision::{Encoder, Tile, Workspace};
use crate::weights::{Layer, Mixer, Weights};

/// Runs a model on this machine's processors.
pub struct Cpu {
    weights: Arc<Weights>,
    convs: Arc<[Conv]>,
    /// To take over next.
    staged: Option<Ready>,
    room: Room,
    team: Team,
    compute: Compute,
    arena: Arena,
    features: Features,
    layout: Layout,
    work: Work,
    tiles: Workspace,
    samplers: Vec<Sampler>,
    observer: Option<Observer>,
}

/// Weights, and what is made of them before the first product. Making it takes a copy of the convolutions: not between two batches.
#[derive(Clone)]
pub struct Ready {
    weights: Arc<Weights>,
    /// The convolution of each Mamba-2 layer, as vectors want it.
    convs: Arc<[Conv]>,
}

/// Why a backend did not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A part of the room is empty.
    #[error("room for 0 {what}: give at least 1")]
    NoRoom {
        /// Which.
        what: &'static str,
    },
    /// The size does not fit a number.
    #[error("{part}: {count} of {each} values are more than this machine can address; ask for fewer")]
    TooLarge {
        /// What it was for.
        part: &'static str,
        /// How many.
        count: usize,
        /// Values each.
        each: usize,
    },
    /// The system has less to give.
    #[error("{asked} are asked for, but {:.1} MB of memory are free; ask for fewer slots, pages or rows", *available as f64 / 1e6)]
    Full {
        /// By part; the weights have been loaded already.
        asked: Bytes,
        /// Bytes there are.
        available: u64,
    },
    /// The allocator refused.
    #[error("{part}: {bytes} bytes are not to be had; ask for fewer slots, pages or rows")]
    NoMemory {
        /// What it was for.
        part: &'static str,
        /// How much.
        bytes: u64,
    },
    /// New weights are of another model.
    #[error("the new weights are of another shape than those in use: {difference}")]
    OtherModel {
        /// The first thing that differs.
        difference: String,
    },
}

impl Cpu {
    /// Allocates all the room for these weights. `threads` counts the caller's.
    pub fn open(
        weights: impl Into<Arc<Weights>>,
        room: Room,
        threads: usize,
        compute: Compute,
    ) -> Result<Self, OpenError> {
        let weights = weights.into();
        check_room(&weights.config, &room)?;
        let text = &weights.config.text;
        let rows = weights.config.vision.as_ref().map_or(0, crate::config::VisionConfig::rows_per_tile);
        Ok(Self {
            arena: Arena::new(text, &room)?,
            features: Features::new(room.features, rows, text.hidden)?,
            layout: Layout::new(&room),
            work: Work::new(text, &room, threads)?,
            tiles: Workspace::default(),
            samplers: (0..threads.max(1)).map(|_| Sampler::default()).collect(),
            team: Team::new(threads),
            convs: convs(&weights),
            weights,
            staged: None,
            room,
            compute,
            observer: None,
        })
    }

    /// The weights in use.
    pub fn weights(&self) -> &Arc<Weights> {
        &self.weights
    }

    /// Uses other weights of the same shapes from the next batch on; slots and pages keep what they hold. Gives the old ones back.
    pub fn replace_weights(&mut self, weights: Arc<Weights>) -> Result<Arc<Weights>, OpenError> {
        Ok(self.exchange(Ready::new(weights))?.weights)
    }

    fn exchange(&mut self, ready: Ready) -> Result<Ready, OpenError> {
        if let Some(difference) = difference(&self.weights, &ready.weights) {
            return Err(OpenError::OtherModel { difference });
        }
        let weights = std::mem::replace(&mut self.weights, ready.weights);
        Ok(Ready { weights, convs: std::mem::replace(&mut self.convs, ready.convs) })
    }

    /// Holds rows `[n, H]` as a feature, as if they were a tile's: whatever shall stand in place of embeddings.
    pub fn hold_rows(&mut self, rows: &[f32]) -> Result<Feature, BackendError> {
        self.features.hold(rows)
    }
}

impl Ready {
    /// Makes weights ready, on the caller's thread.
    pub fn new(weights: impl Into<Arc<Weights>>) -> Self {
        let weights = weights.into();
        Self { convs: convs(&weights), weights }
    }
}

/// The first thing that differs between the shapes of two sets of weights.
fn difference(old: &Weights, new: &Weights) -> Option<String> {
    let rows = |weights: &Weights| weights.text.embeddings.rows;
    let prefix = |weights: &Weights| weights.vision.as_ref().map_or(0, |vision| vision.prefix.len());
    if old.config.text != new.config.text {
        Some("the language model".to_owned())
    } else if old.config.vision != new.config.vision || prefix(old) != prefix(new) {
        Some("the vision encoder".to_owned())
    } else if rows(old) != rows(new) {
        Some(format!("the embedding table has {} rows, that in use {}", rows(new), rows(old)))
    } else {
        None
    }
}

/// Some room of each kind, and no more than the system has.
fn check_room(config: &Config, room: &Room) -> Result<(), OpenError> {
    let parts = [("state slots", room.slots), ("rows", room.rows_max), ("rows of logits", room.logits_max)];
    if let Some((what, _)) = parts.into_iter().find(|(_, count)| *count == 0) {
        return Err(OpenError::NoRoom { what });
    }
    let asked = room.bytes(config, 0);
    match memory::available() {
        Some(available) if asked.total() > available => Err(OpenError::Full { asked, available }),
        _ => Ok(()),
    }
}

fn convs(weights: &Weights) -> Arc<[Conv]> {
    let kernel = weights.config.text.ssm.conv_kernel;
    let conv = |layer: &Layer| match &layer.mixer {
        Mixer::Ssm(ssm) => Some(Conv::new(&ssm.conv, &ssm.conv_bias, kernel)),
        _ => None,
    };
    weights.text.layers.iter().filter_map(conv).collect()
}

impl Backend for Cpu {
    fn config(&self) -> &Config {
        &self.weights.config
    }

    fn room(&self) -> Room {
        self.room
    }

    fn encode(&mut self, tiles: &[Tile]) -> Result<Vec<Feature>, BackendError> {
        let Weights { config, vision, .. } = &*self.weights;
        let (Some(weights), Some(config)) = (vision, &config.vision) else {
            return Err(BackendError::NoVision);
        };
        self.features.check_room(tiles.len())?;
        let crew = Crew { team: &self.team, compute: self.compute };
        let rows = Encoder { weights, config, crew }.encode(&mut self.tiles, tiles);
        rows.chunks_exact(config.rows_per_tile() * self.weights.config.text.hidden)
            .map(|rows| self.features.hold(rows))
            .collect()
    }

    fn release(&mut self, features: &[Feature]) {
        features.iter().for_each(|feature| self.features.release(*feature));
    }

    fn run(&mut self, batch: &[Span<'_>]) -> Result<(), BackendError> {
        let text = &self.weights.text;
        let features = &self.features;
        let feature_rows = &|feature| features.rows(feature).unwrap_or(0);
        self.layout.lay(batch, Door { room: &self.room, embeddings: text.embeddings.rows, feature_rows })?;
        if batch.is_empty() {
            return Ok(());
        }
        for span in batch.iter().filter(|span| span.start == 0) {
            self.arena.clear(span.slot);
        }
        let pass = Pass {
            text: &self.weights.config.text,
            weights: text,
            convs: &self.convs,
            crew: Crew { team: &self.team, compute: self.compute },
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
        let (row, width) = (row as usize, self.weights.config.text.vocabulary);
        assert!(row < self.layout.wanted.len(), "logits of row {row} were not wanted");
        Ok(&self.work.logits[row * width..(row + 1) * width])
    }

    fn sample(&mut self, picks: &[Pick<'_>]) -> Result<Vec<Picked>, DeviceLost> {
        let width = self.weights.config.text.vocabulary;
        let logits = &self.work.logits[..self.layout.wanted.len() * width];
        let mut drawn = vec![Picked::NotFinite; picks.len()];
        let share = picks.len().div_ceil(self.samplers.len()).max(1);
        let mut shares: Vec<_> =
            drawn.chunks_mut(share).zip(picks.chunks(share)).zip(&mut self.samplers).collect();
        self.team.pieces(&mut shares, 1, |_, shares| {
            for ((drawn, picks), sampler) in shares {
                for (drawn, pick) in drawn.iter_mut().zip(*picks) {
                    *drawn = sampler.draw(&logits[pick.row as usize * width..][..width], pick);
                }
            }
        });
        Ok(drawn)
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

    fn parked_bytes(&self, pages: u32) -> u64 {
        self.arena.parked_bytes(pages)
    }

    fn park(&mut self, slot: Slot, pages: &[Page]) -> Result<Option<Parked>, DeviceLost> {
        Ok(Some(self.arena.park(slot, pages).parked()))
    }

    fn restore(&mut self, parked: &Parked, slot: Slot, pages: &[Page]) -> Result<(), DeviceLost> {
        self.arena.restore(Plain::of(parked), slot, pages);
        Ok(())
    }

    fn stage(&mut self, weights: Incoming) -> Result<(), WeightsError> {
        let other = |_| WeightsError::Refused("the cpu backend takes weights loaded for it".into());
        let ready = weights.downcast::<Ready>().map_err(other)?;
        if let Some(difference) = difference(&self.weights, &ready.weights) {
            return Err(WeightsError::Refused(OpenError::OtherModel { difference }.to_string()));
        }
        self.staged = Some(*ready);
        Ok(())
    }

    /// They are in this machine's memory already.
    fn bring(&mut self, _bytes: u64) -> Result<bool, WeightsError> {
        if self.staged.is_some() { Ok(true) } else { Err(WeightsError::NotStaged) }
    }

    fn swap(&mut self) -> Result<Option<Incoming>, WeightsError> {
        let ready = self.staged.take().ok_or(WeightsError::NotStaged)?;
        let old = self.exchange(ready).map_err(|why| WeightsError::Refused(why.to_string()))?;
        Ok(Some(Box::new(old)))
    }
}

impl fmt::Debug for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { room, team, compute, .. } = self;
        f.debug_struct("Cpu")
            .field("room", room)
            .field("team", team)
            .field("compute", compute)
            .finish_non_exhaustive()
    }
}
