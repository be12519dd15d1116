//! The `cuda` backend: what `furrow_model::cpu` defines, carried out by an executor.
//!
//! All memory is one stretch, planned before it is asked for (`arena.rs`). A batch is described in one block of words (`batch.rs`), one copy to the device,
//! and run (`forward.rs`): decode batches as graphs, recorded once a bucket; all others as they come. Tiles go through the tower on a lane of their own, and a
//! batch waits for them only when it shows one; so do parked states (`parking.rs`), which a batch waits for only where it touches their places. Whatever
//! fails ends the backend (`latch.rs`): the call that finds it out and every later one are answered with the failure, and with nothing else.

use std::collections::BTreeSet;
use std::fmt;

use furrow_model::backend::{
    Backend, BackendError, DeviceLost, Door, Feature, Incoming, PAGE_TOKENS, Page, Parked, Room, Slot, Span,
    WeightsError,
};
use furrow_model::checkpoint::{Checkpoint, CheckpointError, chain};
use furrow_model::config::Config;
use furrow_model::sample::{Pick, Picked};
use furrow_model::vision::Tile;

use crate::arena::{Placer, Plan};
use crate::batch::{Block, Fixed, Layer, is_single};
use crate::draw;
use crate::encode::{Encoder, VisionWork};
use crate::executor::{Executor, ExecutorError, GraphKey, HostStretch, Lane};
use crate::forward::{Done, Fast, Pass};
use crate::latch::Latch;
use crate::launch::{Move, View};
use crate::needs::Needs;
use crate::ops::copy::{CopyPlaces, Places};
use crate::parking::{At, Berth, Moving, NotPinned, Parking};
use crate::state::States;
use crate::types::{Bfloat16, Float32, NarrowState, Types, Value, WideResidual};
use crate::unsupported::unsupported;
use crate::weights::{self, Cargo, Counts, Hold, Kept, LoadError, Weights};
use crate::work::{Limits, Work};

/// How a model is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Precision of bfloat16 checkpoints, whose matrices in float32 stay so; one mostly in float32 is computed in float32 throughout.
    pub precision: Precision,
    /// Whether a session's tokens must not depend on its neighbours: every decode batch is filled up to the largest, every other span and every
    /// tile runs alone.
    pub deterministic: bool,
    /// Whether decode batches are recorded and replayed.
    pub graphs: bool,
    /// Where there is room for a second set of weights, so that new ones are brought beside running batches.
    pub stage: Stage,
}

/// Where a second set of weights is kept until it takes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Stage {
    /// Nowhere: [`Device::replace_weights`] alone.
    #[default]
    None,
    /// On the device, which has less room for sessions: they take over in 12 ms.
    Device,
    /// In pinned memory of this machine, as large as the weights: they take over in half a second.
    Host,
}

/// What a bfloat16 checkpoint is computed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// States of the recurrence in float32, all else in bfloat16.
    #[default]
    Usual,
    /// The residual stream in float32, too.
    WideResidual,
    /// States in bfloat16, too.
    NarrowState,
}

impl Default for Options {
    fn default() -> Self {
        Self { precision: Precision::Usual, deterministic: false, graphs: true, stage: Stage::None }
    }
}

/// Why a backend did not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There are no kernels for this model.
    #[error("the cuda backend cannot run this model: {}; use the cpu backend", why.join("; "))]
    Unsupported {
        /// All that is in the way.
        why: Vec<String>,
    },
    /// A part of the room is empty.
    #[error("room for 0 {what}: give at least 1")]
    NoRoom {
        /// Which.
        what: &'static str,
    },
    /// A part of the room is more than a launch can name.
    #[error("room for {asked} {what}: kernels take at most {most}; ask for fewer")]
    TooLarge {
        /// Which.
        what: &'static str,
        /// How many.
        asked: usize,
        /// How many there can be.
        most: usize,
    },
    /// The device has less.
    #[error(
        "{asked} are asked for, but {:.1} MB of the device's memory are free; ask for fewer slots, pages or rows",
        *free as f64 / 1e6
    )]
    Full {
        /// By part.
        asked: Plan,
        /// Bytes there are.
        free: u64,
    },
    /// This machine does not lend the device so much memory.
    #[error(
        "a second set of weights takes {:.1} MB of this machine's memory, which is not to be pinned; stage it on the device, or not at all",
        *asked as f64 / 1e6
    )]
    HostFull {
        /// Bytes.
        asked: u64,
    },
    /// This machine does not lend the device so much memory.
    #[error(
        "parked states are given {:.1} MB of this machine's memory, of which {:.1} MB are to be pinned; give them no more than that",
        *asked as f64 / 1e6,
        *lent as f64 / 1e6
    )]
    ParkingFull {
        /// Bytes.
        asked: u64,
        /// Bytes that it lends.
        lent: u64,
    },
    /// The weights were refused or did not arrive.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The checkpoint lacks something.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The device failed.
    #[error("the device failed while the backend was opened")]
    Executor(#[from] ExecutorError),
    /// The device failed while its states were cleared.
    #[error(transparent)]
    Device(#[from] DeviceLost),
}

/// Why weights were not exchanged. Those in use stay, unless the device failed.
#[derive(Debug, thiserror::Error)]
pub enum SwapError {
    /// They are another model's.
    #[error("the new weights are of another model than those in use")]
    OtherModel,
    /// The backend was opened without room for them.
    #[error("there is no room for a second set of weights")]
    NoStage,
    /// There is nothing to take over.
    #[error("no weights are staged, or not all of them")]
    NotStaged,
    /// They cannot be read, or a value is not finite.
    #[error(transparent)]
    Load(#[from] CheckpointError),
    /// The device failed; it cannot be used any more.
    #[error(transparent)]
    Device(#[from] DeviceLost),
}

/// Opens a checkpoint on an executor. `progress` hears of bytes loaded and bytes in all.
///
/// # Errors
/// Before anything is loaded when there are no kernels for the model or the memory is too little; afterwards when a weight is not finite.
pub fn open(
    checkpoint: &Checkpoint,
    room: Room,
    options: Options,
    executor: Box<dyn Executor>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Box<dyn Device>, OpenError> {
    let kept = Kept::of(checkpoint)?;
    let counts = Counts::of(checkpoint, kept.wide)?;
    let opening = Opening { config: checkpoint.config(), counts, room, options, executor };
    opening.device(kept.of_f32, Origin::Checkpoint { checkpoint, progress })
}

/// Opens a model in bfloat16 whose weights are noise and whose states are zeros, to be measured.
///
/// # Errors
/// As [`open`].
pub fn open_noise(
    config: &Config,
    room: Room,
    options: Options,
    executor: Box<dyn Executor>,
) -> Result<Box<dyn Device>, OpenError> {
    let counts = Counts::of_config(config);
    Opening { config, counts, room, options, executor }.device(false, Origin::Noise)
}

/// What a backend is opened with.
struct Opening<'a> {
    config: &'a Config,
    counts: Counts,
    room: Room,
    options: Options,
    executor: Box<dyn Executor>,
}

impl Opening<'_> {
    fn device(self, of_f32: bool, origin: Origin<'_>) -> Result<Box<dyn Device>, OpenError> {
        check_room(self.config, &self.room)?;
        let why = unsupported(self.config);
        if !why.is_empty() {
            return Err(OpenError::Unsupported { why });
        }
        Ok(match (of_f32, self.options.precision) {
            (true, _) => Box::new(Cuda::<Float32>::open(self, origin)?),
            (_, Precision::Usual) => Box::new(Cuda::<Bfloat16>::open(self, origin)?),
            (_, Precision::WideResidual) => Box::new(Cuda::<WideResidual>::open(self, origin)?),
            (_, Precision::NarrowState) => Box::new(Cuda::<NarrowState>::open(self, origin)?),
        })
    }
}

/// What a model in bfloat16 and this room take of a device, from its configuration alone.
///
/// # Errors
/// When there are no kernels for it.
pub fn plan(config: &Config, room: &Room, options: &Options) -> Result<Plan, OpenError> {
    Ok(needs(config, room, options)?.device)
}

/// What a model in bfloat16 and this room take of a device and of the machine around it, from its configuration alone.
///
/// # Errors
/// When there are no kernels for it.
pub fn needs(config: &Config, room: &Room, options: &Options) -> Result<Needs, OpenError> {
    needed_in(false, (config, &Counts::of_config(config), room, options))
}

/// What a checkpoint and this room take of a device and of the machine around it: what [`open`] will ask for, to the byte.
///
/// # Errors
/// When there are no kernels for it, or a tensor is missing.
pub fn needs_of(checkpoint: &Checkpoint, room: &Room, options: &Options) -> Result<Needs, OpenError> {
    let kept = Kept::of(checkpoint)?;
    let counts = Counts::of(checkpoint, kept.wide)?;
    needed_in(kept.of_f32, (checkpoint.config(), &counts, room, options))
}

fn needed_in(of_f32: bool, sizes: Sizes<'_>) -> Result<Needs, OpenError> {
    let (config, _, room, options) = sizes;
    check_room(config, room)?;
    let why = unsupported(config);
    if !why.is_empty() {
        return Err(OpenError::Unsupported { why });
    }
    Ok(match (of_f32, options.precision) {
        (true, _) => needed::<Float32>(sizes),
        (_, Precision::Usual) => needed::<Bfloat16>(sizes),
        (_, Precision::WideResidual) => needed::<WideResidual>(sizes),
        (_, Precision::NarrowState) => needed::<NarrowState>(sizes),
    })
}

/// A backend whose weights can be exchanged.
pub trait Device: Backend + fmt::Debug {
    /// What it takes, by part.
    fn plan(&self) -> &Plan;

    /// Waits until all it was told is done.
    ///
    /// # Errors
    /// When the device has failed.
    fn wait(&mut self) -> Result<(), DeviceLost>;

    /// Brings other weights of the same model to where those in use are, between two batches. Sessions, features and recorded graphs stay.
    ///
    /// # Errors
    /// When they are another model's or a value is not finite, those in use stay; when the device fails, it is lost.
    fn replace_weights(
        &mut self,
        checkpoint: &Checkpoint,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), SwapError>;

    /// Takes on other weights of the same model, to be brought beside those in use. What was staged before is forgotten.
    ///
    /// # Errors
    /// When they are another model's, or there is no room for them.
    fn stage_weights(&mut self, checkpoint: Checkpoint) -> Result<(), SwapError>;

    /// Brings some more of the staged weights, at least so many bytes or all that is left; true when all are there. Between two batches: a batch
    /// does not wait for them.
    ///
    /// # Errors
    /// When a value is not finite, what was staged is forgotten and those in use stay; when the device fails, it is lost.
    fn stage_more(&mut self, bytes: u64) -> Result<bool, SwapError>;

    /// The staged weights take over, in one copy. Sessions, features and graphs stay. For the 12B on the device 2 x 26.3 GB at 4.3 TB/s, 12 ms; from
    /// pinned memory of this machine 26.3 GB over PCIe 5 at some 55 GB/s, 0.48 s.
    ///
    /// # Errors
    /// When not all of them are there.
    fn swap_weights(&mut self) -> Result<(), SwapError>;
}

/// Blocks of a launch along its second and third axis.
const GRID_MAX: usize = 65_535;

fn check_room(config: &Config, room: &Room) -> Result<(), OpenError> {
    let parts = [("state slots", room.slots), ("rows", room.rows_max), ("rows of logits", room.logits_max)];
    if let Some((what, _)) = parts.into_iter().find(|(_, count)| *count == 0) {
        return Err(OpenError::NoRoom { what });
    }
    let asked = Limits::of(&config.text, room).rows;
    if asked > GRID_MAX {
        return Err(OpenError::TooLarge { what: "rows of a batch", asked, most: GRID_MAX });
    }
    Ok(())
}

/// Runs a model on an executor.
struct Cuda<P: Types> {
    config: Config,
    room: Room,
    options: Options,
    executor: Latch,
    plan: Plan,
    counts: Counts,
    weights: Weights<P::Value>,
    /// What was brought to them, and all of them as bytes.
    cargo: Vec<Cargo>,
    all: View<u8>,
    stage: Option<Staged>,
    memory: Memory<P>,
    parking: Parking,
    moving: Moving,
    features: Held,
    block: Block,
    /// Where the logits of each wanted row of the newest batch are.
    rows_of: Vec<u32>,
    /// Logits that were asked for last.
    logits: Vec<f32>,
}

/// All buffers behind the weights.
struct Memory<P: Types> {
    limits: Limits,
    states: States<P>,
    work: Work<P>,
    vision: Option<VisionWork<P>>,
    /// Rows of all tile features.
    features: View<P::Value>,
    /// The move from place 0 to place 0.
    one: View<Move>,
}

/// Which tile features are held.
struct Held {
    is_held: Vec<bool>,
    free: Vec<u32>,
    /// Those that the newest batch shows.
    shown: BTreeSet<Feature>,
}

impl<P: Types> Memory<P> {
    fn place(config: &Config, counts: &Counts, room: &Room, widest: [usize; 2], placer: &mut Placer) -> Self {
        let text = &config.text;
        let limits = Limits::of(text, room);
        let (vision, features) = (config.vision.as_ref(), room.features as usize);
        let feature_values = vision.map_or(0, |vision| vision.rows_per_tile() * text.hidden);
        Self {
            states: States::place(text, room, placer),
            work: Work::place(text, &limits, widest, placer),
            vision: vision.map(|vision| VisionWork::place(vision, counts.prefix, features, placer)),
            features: placer.take("tile features", features.saturating_mul(feature_values)),
            one: placer.take("state slots", 1),
            limits,
        }
    }
}

/// Everything in its place, and what must be brought there.
struct Placed<P: Types> {
    weights: Weights<P::Value>,
    cargo: Vec<Cargo>,
    /// All weights, as bytes.
    all: View<u8>,
    /// As much again, and what would be brought there; off the device from place 0 on.
    stage: Option<(View<u8>, Vec<Cargo>)>,
    memory: Memory<P>,
}

impl<P: Types> Placed<P> {
    fn at(placer: &mut Placer, (config, counts, room, options): Sizes<'_>) -> Self {
        let first = placer.next();
        let (weights, cargo) = Weights::place(config, counts, placer);
        let bytes = usize::try_from(placer.next() - first).unwrap_or(usize::MAX);
        let place = match options.stage {
            Stage::None => None,
            Stage::Device => Some(placer.take("a second set of weights", bytes)),
            Stage::Host => Some(View::new(0, bytes)),
        };
        let stage = place.map(|place| {
            (place, Weights::<P::Value>::place(config, counts, &mut Placer::at(place.address())).1)
        });
        let memory = Memory::place(config, counts, room, weights.text.widest, placer);
        Self { weights, cargo, all: View::new(first, bytes), stage, memory }
    }
}

/// What decides how much there is of everything.
type Sizes<'a> = (&'a Config, &'a Counts, &'a Room, &'a Options);

fn planned<P: Types>(sizes: Sizes<'_>) -> Plan {
    needed::<P>(sizes).device
}

fn needed<P: Types>(sizes: Sizes<'_>) -> Needs {
    let mut placer = Placer::at(0);
    let placed = Placed::<P>::at(&mut placer, sizes);
    let (_, _, room, options) = sizes;
    let staged = if options.stage == Stage::Host { placed.all.len() as u64 } else { 0 };
    Needs::new(placer.plan(), placed.memory.states.sizes(), (room.parked_bytes, staged))
}

/// Where values come from.
enum Origin<'a> {
    /// A checkpoint; `progress` hears of bytes done and bytes in all.
    Checkpoint { checkpoint: &'a Checkpoint, progress: &'a mut dyn FnMut(u64, u64) },
    /// Nowhere: noise of the size that trained weights have, for measuring.
    Noise,
}

impl Origin<'_> {
    fn bring<T: Value>(&mut self, executor: &mut dyn Executor, cargo: &[Cargo]) -> Result<(), LoadError> {
        let mut done = 0;
        for cargo in cargo {
            match self {
                Self::Noise => weights::bring_noise::<T>(executor, Hold::Device, cargo)?,
                Self::Checkpoint { checkpoint, progress } => {
                    done += weights::bring::<T>(executor, Hold::Device, checkpoint, cargo)?;
                    progress(done, checkpoint.bytes());
                }
            }
        }
        Ok(executor.wait()?)
    }
}

/// Room for a second set of weights, and what is in it.
struct Staged {
    hold: Hold,
    /// Where it is.
    place: View<u8>,
    cargo: Vec<Cargo>,
    coming: Coming,
}

/// How much of a second set of weights is there.
enum Coming {
    /// Nothing.
    Nothing,
    /// Of this checkpoint so much of the cargo.
    Some(Box<Checkpoint>, usize),
    /// Noise, which may take over as often as somebody measures it.
    Noise,
}

impl Staged {
    fn open<T: Value>(
        executor: &mut dyn Executor,
        (place, cargo): (View<u8>, Vec<Cargo>),
        stage: Stage,
        is_noise: bool,
    ) -> Result<Self, OpenError> {
        let hold = match stage {
            Stage::Host => match executor.pin(place.len() as u64) {
                Ok(pinned) => Hold::Host(pinned),
                Err(ExecutorError::NoHostMemory { asked }) => return Err(OpenError::HostFull { asked }),
                Err(error) => return Err(error.into()),
            },
            Stage::Device | Stage::None => Hold::Device,
        };
        if is_noise {
            cargo.iter().try_for_each(|cargo| weights::bring_noise::<T>(executor, hold, cargo))?;
        }
        Ok(Self { hold, place, cargo, coming: if is_noise { Coming::Noise } else { Coming::Nothing } })
    }

    fn is_whole(&self) -> bool {
        match self.coming {
            Coming::Nothing => false,
            Coming::Some(_, next) => next == self.cargo.len(),
            Coming::Noise => true,
        }
    }

    /// Brings some more; the bytes of the checkpoint that they were.
    fn bring<T: Value>(&mut self, executor: &mut dyn Executor) -> Result<u64, LoadError> {
        let Coming::Some(checkpoint, next) = &mut self.coming else { return Ok(0) };
        let brought = weights::bring::<T>(executor, self.hold, checkpoint, &self.cargo[*next])?;
        *next += 1;
        Ok(brought)
    }
}

impl<P: Fast> Cuda<P> {
    fn open(opening: Opening<'_>, origin: Origin<'_>) -> Result<Self, OpenError> {
        let Opening { config, counts, room, options, mut executor } = opening;
        let plan = planned::<P>((config, &counts, &room, &options));
        let free = executor.free_bytes()?;
        if plan.total() > free {
            return Err(OpenError::Full { asked: plan, free });
        }
        let address = match executor.allocate(plan.total()) {
            // Free, but not in one piece.
            Err(ExecutorError::NoMemory { free, .. }) => return Err(OpenError::Full { asked: plan, free }),
            allocated => allocated?,
        };
        let placed = Placed::at(&mut Placer::at(address), (config, &counts, &room, &options));
        let sizes = placed.memory.states.sizes();
        let parking = Parking::open(&mut *executor, sizes, room.parked_bytes).map_err(|why| match why {
            NotPinned::Lent(lent) => OpenError::ParkingFull { asked: room.parked_bytes, lent },
            NotPinned::Failed(error) => error.into(),
        })?;
        let Placed { weights, cargo, all, stage, memory } = placed;
        let is_noise = matches!(origin, Origin::Noise);
        let stage =
            stage.map(|stage| Staged::open::<P::Value>(&mut *executor, stage, options.stage, is_noise));
        let stage = stage.transpose()?;
        let mut origin = origin;
        origin.bring::<P::Value>(&mut *executor, &cargo)?;
        executor.upload(Lane::Batch, bytemuck::bytes_of(&Move { from: 0, to: 0 }), memory.one.address())?;
        executor.wait()?;
        let mut opened = Self {
            logits: vec![0.0; config.text.vocabulary],
            features: Held::new(room.features),
            config: config.clone(),
            room,
            options,
            executor: Latch::new(executor),
            plan,
            counts,
            weights,
            cargo,
            all,
            stage,
            memory,
            parking,
            moving: Moving::default(),
            block: Block::default(),
            rows_of: Vec::new(),
        };
        if is_noise {
            // Contexts that nobody wrote: zeros are as good as any, not-a-numbers would be drawn from in no time.
            opened.memory.states.all().into_iter().try_for_each(|all| opened.copy(Lane::Batch, None, all))?;
        }
        Ok(opened)
    }

    fn feature_rows(&self) -> usize {
        self.config.vision.as_ref().map_or(0, furrow_model::config::VisionConfig::rows_per_tile)
    }

    fn check(&self, batch: &[Span<'_>]) -> Result<(), BackendError> {
        let rows = self.feature_rows();
        let feature_rows = &|feature| if self.features.is_held(feature) { rows } else { 0 };
        Door { room: &self.room, embeddings: self.counts.embeddings, feature_rows }.check(batch)?;
        let mut slots: Vec<Slot> = batch.iter().map(|span| span.slot).collect();
        slots.sort_unstable();
        assert!(slots.windows(2).all(|two| two[0] < two[1]), "two spans of a batch share a slot");
        let room = self.memory.limits.pages * PAGE_TOKENS;
        let longest = batch.iter().map(|span| span.start as usize + span.tokens.len()).max().unwrap_or(0);
        if longest > room {
            return Err(BackendError::NoRoom { what: "positions of a sequence", asked: longest, room });
        }
        Ok(())
    }

    /// Runs a checked batch: as one, or, where neighbours must not matter, decode filled up and every other span alone.
    fn run_all(&mut self, batch: &[Span<'_>]) -> Result<(), DeviceLost> {
        if self.memory.vision.is_some() {
            // Tiles that are encoded beside this batch may take places that batches before it read.
            self.follow(Lane::Vision, Lane::Batch)?;
        }
        self.features.shown = batch.iter().flat_map(|span| span.insets).map(|inset| inset.feature).collect();
        if !self.features.shown.is_empty() {
            self.follow(Lane::Batch, Lane::Vision)?;
        }
        if batch.iter().any(|span| self.moving.holds_up_span(span)) {
            self.follow(Lane::Batch, Lane::Copy)?;
            self.moving.settle();
        }
        let firsts = batch.iter().scan(0, |sum, span| {
            *sum += span.wanted();
            Some(*sum - span.wanted())
        });
        let firsts: Vec<usize> = firsts.collect();
        self.rows_of.clear();
        self.rows_of.resize(batch.iter().map(Span::wanted).sum(), 0);
        let (singles, longs): (Vec<usize>, Vec<usize>) =
            (0..batch.len()).partition(|index| is_single(&batch[*index]));
        if !self.options.deterministic {
            let members = [singles, longs].concat();
            return self.run_pass(batch, &members, &firsts, 0);
        }
        if !singles.is_empty() {
            self.run_pass(batch, &singles, &firsts, 0)?;
        }
        // The logits of a decode batch take as many rows as it is filled up to.
        let mut logits_at = self.memory.limits.spans;
        for long in longs {
            self.run_pass(batch, &[long], &firsts, logits_at)?;
            logits_at += batch[long].wanted();
        }
        Ok(())
    }

    /// Runs some spans, the single ones first; their logits go to the rows from `logits_at` on.
    fn run_pass(
        &mut self,
        batch: &[Span<'_>],
        members: &[usize],
        firsts: &[usize],
        logits_at: usize,
    ) -> Result<(), DeviceLost> {
        let spans: Vec<&Span<'_>> = members.iter().map(|member| &batch[*member]).collect();
        let mut row = logits_at;
        for member in members {
            for wanted in 0..batch[*member].wanted() {
                self.rows_of[firsts[*member] + wanted] = row as u32;
                row += 1;
            }
        }
        let limits = &self.memory.limits;
        let layer = Layer { limits, scrap: self.memory.states.scrap(), feature_rows: self.feature_rows() };
        let decodes = spans.iter().all(|span| is_single(span));
        match decodes {
            true => {
                let most = Fixed { rows: limits.spans, splits: limits.splits(limits.pages) };
                self.block.lay_decode(layer, &spans, self.options.deterministic.then_some(most));
            }
            false => self.block.lay(layer, &spans),
        }
        self.launch_pass(decodes && self.options.graphs, logits_at)
    }

    fn launch_pass(&mut self, as_graph: bool, logits_at: usize) -> Result<(), DeviceLost> {
        let Self { config, weights, memory, block, executor, .. } = self;
        let Memory { limits, states, work, features, .. } = memory;
        let words = bytemuck::cast_slice(&block.words);
        let form = block.form;
        let lists = form.lists(work.inputs);
        let (text, features) = (&config.text, *features);
        let weights = &weights.text;
        let pass = Pass { text, weights, features, states, work, limits, form, lists, logits_at };
        executor.work(|executor| {
            executor.upload(Lane::Batch, words, work.inputs.address())?;
            if as_graph {
                let key = GraphKey { rows: form.rows, splits: form.splits };
                executor.graph(Lane::Batch, key, &mut |executor| pass.run(executor))
            } else {
                pass.run(executor)
            }
        })
    }

    fn encode_all(&mut self, tiles: &[Tile]) -> Result<Vec<Feature>, DeviceLost> {
        let Self { config, weights, memory, executor, features, options, .. } = self;
        let (Some(config), Some(weights), Some(work)) = (&config.vision, &weights.vision, &memory.vision)
        else {
            return Ok(Vec::new());
        };
        let held: Vec<Feature> = tiles.iter().map(|_| features.take()).collect();
        let values = config.rows_per_tile() * weights.projector.down.outputs;
        // A place that was given back may still be read by the batch that runs.
        if held.iter().any(|held| features.shown.contains(held)) {
            executor.work(|executor| executor.follow(Lane::Vision, Lane::Batch))?;
            features.shown.clear();
        }
        let group = if options.deterministic { 1 } else { work.group };
        for (tiles, held) in tiles.chunks(group).zip(held.chunks(group)) {
            let place = |feature: &Feature| memory.features.from(feature.0 as usize * values).first(values);
            let places: Vec<View<P::Value>> = held.iter().map(place).collect();
            let encoder = Encoder { config, weights, work, tiles: tiles.len() };
            executor.work(|executor| encoder.run(executor, tiles, &places))?;
        }
        Ok(held)
    }

    /// Copies a slot or page to another one, or clears it. Where states leave from there or come to there, the lane that moves them does it, so that batches
    /// wait for none of it before they need it.
    fn copy_at(&mut self, from: Option<At>, to: At) -> Result<(), DeviceLost> {
        let place = |at| match at {
            At::Slot(slot) => self.memory.states.slot(slot),
            At::Page(page) => self.memory.states.page(page),
        };
        let (from_place, to_place) = (from.map(place), place(to));
        if !self.moving.holds_up(from, to) {
            return self.copy(Lane::Batch, from_place, to_place);
        }
        self.follow(Lane::Copy, Lane::Batch)?;
        self.copy(Lane::Copy, from_place, to_place)?;
        self.moving.copied(from, to);
        Ok(())
    }

    /// What `lane` does from now on, it does after what `other` has got so far.
    fn follow(&mut self, lane: Lane, other: Lane) -> Result<(), DeviceLost> {
        self.executor.work(|executor| executor.follow(lane, other))
    }

    /// Copies a place to another one of the same size, or clears it.
    fn copy(&mut self, lane: Lane, from: Option<View<u8>>, to: View<u8>) -> Result<(), DeviceLost> {
        let bytes = to.len();
        if bytes == 0 {
            return self.executor.check();
        }
        let place = |bytes: View<u8>| Places { bytes, stride: bytes.len() };
        let copy = CopyPlaces { from: from.map(place), to: place(to), moves: self.memory.one, bytes };
        self.executor.work(|executor| executor.launch(lane, &copy.launch()))
    }

    /// Copies a slot and pages to where they are parked, or back.
    fn carry(&mut self, berth: &Berth, slot: Slot, pages: &[Page], carry: Carry) -> Result<(), DeviceLost> {
        let Self { memory: Memory { states, .. }, parking, executor, .. } = self;
        let mut at = states.slot(slot).address();
        executor.work(|executor| {
            for stretch in parking.slot(berth) {
                carry(executor, at, stretch)?;
                at += stretch.bytes;
            }
            let mut pages = pages.iter().zip(parking.pages(berth));
            pages.try_for_each(|(page, stretch)| carry(executor, states.page(*page).address(), stretch))
        })
    }
}

/// One copy between an address of the device and pinned memory.
type Carry = fn(&mut dyn Executor, u64, HostStretch) -> Done;

impl<P: Fast> Backend for Cuda<P> {
    fn config(&self) -> &Config {
        &self.config
    }

    fn room(&self) -> Room {
        self.room
    }

    fn encode(&mut self, tiles: &[Tile]) -> Result<Vec<Feature>, BackendError> {
        self.executor.check()?;
        if self.config.vision.is_none() {
            return Err(BackendError::NoVision);
        }
        self.features.check_room(tiles.len())?;
        Ok(self.encode_all(tiles)?)
    }

    fn encodes_beside(&self) -> bool {
        self.memory.vision.is_some()
    }

    fn release(&mut self, features: &[Feature]) {
        features.iter().for_each(|feature| self.features.release(*feature));
    }

    fn run(&mut self, batch: &[Span<'_>]) -> Result<(), BackendError> {
        self.executor.check()?;
        self.check(batch)?;
        if batch.is_empty() {
            self.rows_of.clear();
            return Ok(());
        }
        Ok(self.run_all(batch)?)
    }

    fn logits(&mut self, row: u32) -> Result<&[f32], DeviceLost> {
        assert!((row as usize) < self.rows_of.len(), "logits of row {row} were not wanted");
        let width = self.config.text.vocabulary;
        let from = self.memory.work.logits.from(self.rows_of[row as usize] as usize * width);
        let Self { executor, logits, .. } = self;
        let bytes = bytemuck::cast_slice_mut(logits);
        executor.work(|executor| executor.download(Lane::Batch, from.address(), bytes))?;
        Ok(logits)
    }

    fn sample(&mut self, picks: &[Pick<'_>]) -> Result<Vec<Picked>, DeviceLost> {
        let Self { config, memory, executor, rows_of, .. } = self;
        executor.check()?;
        let mut picked = Vec::with_capacity(picks.len());
        for picks in picks.chunks(memory.limits.draws) {
            let moved: Vec<Pick<'_>> =
                picks.iter().map(|pick| Pick { row: rows_of[pick.row as usize], ..*pick }).collect();
            let drawn = executor
                .work(|executor| draw::draw(executor, &memory.work, config.text.vocabulary, &moved))?;
            picked.extend(drawn);
        }
        Ok(picked)
    }

    fn clear(&mut self, slot: Slot) -> Result<(), DeviceLost> {
        self.copy_at(None, At::Slot(slot))
    }

    fn copy_slot(&mut self, from: Slot, to: Slot) -> Result<(), DeviceLost> {
        self.copy_at(Some(At::Slot(from)), At::Slot(to))
    }

    fn copy_page(&mut self, from: Page, to: Page) -> Result<(), DeviceLost> {
        self.copy_at(Some(At::Page(from)), At::Page(to))
    }

    fn parked_bytes(&self, pages: u32) -> u64 {
        self.parking.bytes_of(pages)
    }

    /// Nothing is waited for. Batches go on; those that come to write where the state lay wait until it has left.
    fn park(&mut self, slot: Slot, pages: &[Page]) -> Result<Option<Parked>, DeviceLost> {
        let Some(berth) = self.parking.take(pages.len()) else { return Ok(None) };
        self.follow(Lane::Copy, Lane::Batch)?;
        self.carry(&berth, slot, pages, |executor, at, to| executor.fetch(Lane::Copy, at, to))?;
        self.moving.leaves(slot, pages);
        Ok(Some(Parked::new(self.parking.bytes_of(pages.len() as u32), berth)))
    }

    fn is_moving(&mut self, slot: Slot, pages: &[Page]) -> Result<bool, DeviceLost> {
        if self.moving.is_empty() {
            return Ok(false);
        }
        if self.executor.work(|executor| executor.is_done(Lane::Copy))? {
            self.moving.settle();
        }
        Ok(self.moving.is_at(slot, pages))
    }

    /// Nothing is waited for. The lane that took the state out brings it back, so it comes after it has left.
    fn restore(&mut self, parked: &Parked, slot: Slot, pages: &[Page]) -> Result<(), DeviceLost> {
        let berth: &Berth = parked.kept().expect("a backend restores what one of its kind parked");
        assert!(self.parking.is_here(berth), "a GPU restores what it parked itself");
        let bytes = self.parking.bytes_of(pages.len() as u32);
        assert_eq!(parked.bytes(), bytes, "bytes parked for {} pages", pages.len());
        self.follow(Lane::Copy, Lane::Batch)?;
        self.carry(berth, slot, pages, |executor, at, from| executor.send(Lane::Copy, from, at))?;
        self.moving.comes(slot, pages);
        Ok(())
    }

    fn stage(&mut self, weights: Incoming) -> Result<(), WeightsError> {
        let other = |_| WeightsError::Refused("a GPU takes weights as an opened checkpoint".into());
        let checkpoint = weights.downcast::<Checkpoint>().map_err(other)?;
        self.stage_weights(*checkpoint).map_err(WeightsError::from)
    }

    fn bring(&mut self, bytes: u64) -> Result<bool, WeightsError> {
        Ok(self.stage_more(bytes)?)
    }

    /// The old ones are written over.
    fn swap(&mut self) -> Result<Option<Incoming>, WeightsError> {
        self.swap_weights()?;
        Ok(None)
    }
}

impl From<SwapError> for WeightsError {
    fn from(error: SwapError) -> Self {
        match error {
            SwapError::NotStaged => Self::NotStaged,
            SwapError::Device(lost) => Self::Device(lost),
            other => Self::Refused(other.to_string()),
        }
    }
}

impl<P: Fast> Device for Cuda<P> {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn wait(&mut self) -> Result<(), DeviceLost> {
        self.executor.wait()
    }

    fn replace_weights(
        &mut self,
        checkpoint: &Checkpoint,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), SwapError> {
        self.check_model(checkpoint)?;
        weights::check(checkpoint, &self.cargo)?;
        // Everything under way reads the old ones.
        self.executor.wait()?;
        let mut origin = Origin::Checkpoint { checkpoint, progress };
        let Self { executor, cargo, .. } = self;
        let brought = executor.load(|executor| origin.bring::<P::Value>(executor, cargo))?;
        // They were whole a moment ago, and the old ones are written over.
        let in_part = |refused| executor.lose(format!("weights were exchanged in part: {}", chain(&refused)));
        Ok(brought.map_err(in_part)?)
    }

    fn stage_weights(&mut self, checkpoint: Checkpoint) -> Result<(), SwapError> {
        self.check_model(&checkpoint)?;
        let stage = self.stage.as_mut().ok_or(SwapError::NoStage)?;
        stage.coming = Coming::Some(Box::new(checkpoint), 0);
        // The copy of those before may still be reading the place. This machine's memory is written at once, the device's when its turn comes.
        match stage.hold {
            Hold::Host(_) => self.executor.wait()?,
            Hold::Device => self.follow(Lane::Vision, Lane::Batch)?,
        }
        Ok(())
    }

    fn stage_more(&mut self, bytes: u64) -> Result<bool, SwapError> {
        let stage = self.stage.as_mut().ok_or(SwapError::NoStage)?;
        if matches!(stage.coming, Coming::Nothing) {
            return Err(SwapError::NotStaged);
        }
        let mut read = 0;
        while read < bytes.max(1) && !stage.is_whole() {
            match self.executor.load(|executor| stage.bring::<P::Value>(executor))? {
                Ok(more) => read += more,
                Err(refused) => {
                    stage.coming = Coming::Nothing;
                    return Err(refused.into());
                }
            }
        }
        Ok(stage.is_whole())
    }

    fn swap_weights(&mut self) -> Result<(), SwapError> {
        let stage = self.stage.as_mut().ok_or(SwapError::NoStage)?;
        if !stage.is_whole() {
            return Err(SwapError::NotStaged);
        }
        if !matches!(stage.coming, Coming::Noise) {
            stage.coming = Coming::Nothing;
        }
        let (hold, from, to) = (stage.hold, stage.place, self.all);
        // Tiles read weights, too: the copy waits for those before it, and those behind it wait for the copy.
        self.follow(Lane::Batch, Lane::Vision)?;
        match hold {
            Hold::Device => self.copy(Lane::Batch, Some(from), to)?,
            Hold::Host(pinned) => {
                let all = HostStretch { pinned, at: 0, bytes: to.len() as u64 };
                self.executor.work(|executor| executor.send(Lane::Batch, all, to.address()))?;
            }
        }
        Ok(self.follow(Lane::Vision, Lane::Batch)?)
    }
}

impl<P: Fast> Cuda<P> {
    /// Whether a checkpoint's weights fit where those in use are.
    fn check_model(&self, checkpoint: &Checkpoint) -> Result<(), SwapError> {
        let Kept { of_f32, wide } = Kept::of(checkpoint)?;
        let counts = Counts::of(checkpoint, wide)?;
        let same = *checkpoint.config() == self.config && counts == self.counts;
        if same && of_f32 == (size_of::<P::Value>() == size_of::<f32>()) {
            Ok(())
        } else {
            Err(SwapError::OtherModel)
        }
    }
}

impl<P: Types> fmt::Debug for Cuda<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { room, options, plan, executor, .. } = self;
        f.debug_struct("Cuda")
            .field("room", room)
            .field("options", options)
            .field("plan", plan)
            .field("lost", &executor.lost())
            .finish_non_exhaustive()
    }
}

impl Held {
    fn new(count: u32) -> Self {
        let (is_held, free) = (vec![false; count as usize], (0..count).rev().collect());
        Self { is_held, free, shown: BTreeSet::new() }
    }

    fn is_held(&self, feature: Feature) -> bool {
        self.is_held.get(feature.0 as usize).copied().unwrap_or(false)
    }

    fn check_room(&self, asked: usize) -> Result<(), BackendError> {
        let room = self.free.len();
        if asked > room { Err(BackendError::NoRoom { what: "tile features", asked, room }) } else { Ok(()) }
    }

    fn take(&mut self) -> Feature {
        let place = self.free.pop().expect("there was room");
        self.is_held[place as usize] = true;
        Feature(place)
    }

    fn release(&mut self, feature: Feature) {
        let held = std::mem::replace(&mut self.is_held[feature.0 as usize], false);
        assert!(held, "feature {} is not held", feature.0);
        self.free.push(feature.0);
    }
}
