//! A simulated backend for the engine's tests: scripted logits and a cost for each token.
//!
//! Its logits come from a hash of everything a sequence ran: every token and tile row in the slot's
//! state *and* in the KV pages, and where the sequence was cut into spans. So a mixed-up state, a
//! page that was shared too long, a tile at the wrong position or a moved cut changes the next
//! token. It also checks its caller: it panics on inputs from which a real device would silently
//! compute wrong results (two spans on one slot, a state of another length, a released feature).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use furrow_model::backend::{
    Backend, BackendCapacity, BackendError, DeviceLost, HostState, ImageInset, IncomingWeights, LogitRows,
    OffloadedState, PAGE_TOKENS, Page, SequenceSpan, Slot, TileFeature, WeightsError,
};
use furrow_model::config::{AttentionConfig, Config, LayerKind, SsmConfig, TextConfig};
use furrow_model::sample::{SampleOutcome, SampleRequest, sample_token};
use furrow_model::vision::ImageTile;

/// Settings of the simulated backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SimSettings {
    /// Slots, pages and other sizes.
    pub capacity: BackendCapacity,
    pub vocabulary: u32,
    /// Id that is made likelier than others, so that replies end.
    pub stop: u32,
    pub positions_max: u32,
    /// Whether cuts into spans change the results, as they change the last bits on a real device.
    pub cuts_matter: bool,
    /// A sequence with this id gets logits that are not finite.
    pub poison: Option<u32>,
    /// Whether tiles are encoded and states transferred beside batches. One in four queries reports
    /// an allocation as in transfer.
    pub beside: bool,
    /// Cost of its work.
    pub cost: SimCost,
}

/// Cost of work, in real time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SimCost {
    /// Cost of a batch, for reading the weights.
    pub batch: Duration,
    /// Cost of each row of a batch.
    pub row: Duration,
    /// Cost of each tile.
    pub tile: Duration,
}

#[derive(Debug)]
pub(crate) struct SimBackend {
    settings: SimSettings,
    config: Config,
    slots: Vec<SlotState>,
    pages: Vec<[u64; PAGE_TOKENS]>,
    features: HashMap<u32, u64>,
    features_made: u32,
    /// Number of queries whether an allocation is in transfer.
    moving_polls: u64,
    logits: Vec<Vec<f32>>,
    weights: SimWeights,
    staged: Option<SimWeights>,
}

/// The weights of the simulated backend: numbers that enter the hash of every token and every tile.
/// The numbers start at 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SimWeights {
    /// Number of the language model.
    pub text: u64,
    /// Number of the vision encoder.
    pub vision: u64,
    /// Whether every sequence that they run gets logits that are not finite.
    pub overflow: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct SlotState {
    hash: u64,
    tokens: u32,
    poisoned: bool,
}

impl SimBackend {
    /// Creates a backend with empty slots and pages.
    pub(crate) fn new(settings: SimSettings) -> Self {
        Self {
            settings,
            config: Config {
                text: text_config(settings.vocabulary as usize, settings.positions_max as usize),
                vision: None,
            },
            slots: vec![SlotState::default(); settings.capacity.slots as usize],
            pages: vec![[0; PAGE_TOKENS]; settings.capacity.pages as usize],
            features: HashMap::new(),
            features_made: 0,
            moving_polls: 0,
            logits: Vec::new(),
            weights: SimWeights::default(),
            staged: None,
        }
    }

    /// The same with other weights than those of zeros.
    pub(crate) fn with_weights(settings: SimSettings, weights: SimWeights) -> Self {
        Self { weights, ..Self::new(settings) }
    }

    fn run_span(&mut self, span: &SequenceSpan<'_>) {
        let SequenceSpan { slot, pages, start, tokens, insets, want } = *span;
        let state = self.slots[slot.0 as usize];
        assert_eq!(state.tokens, start, "{slot:?} holds {} tokens, the span begins at {start}", state.tokens);
        let end = start as usize + tokens.len();
        assert!(end <= pages.len() * PAGE_TOKENS, "{} pages do not hold {end} positions", pages.len());
        let mut hash =
            if self.settings.cuts_matter { mix(state.hash, tokens.len() as u64) } else { state.hash };
        let mut row_hashes = Vec::with_capacity(tokens.len());
        let mut poisoned = state.poisoned || self.weights.overflow;
        for (index, id) in tokens.iter().enumerate() {
            let tile_row = insets.iter().find_map(|inset| self.row_of(inset, index as u32));
            poisoned |= tile_row.is_none() && Some(*id) == self.settings.poison;
            let input = tile_row.unwrap_or(u64::from(*id) + 1);
            hash = mix(hash, input ^ self.weights.text);
            let at = start as usize + index;
            self.pages[pages[at / PAGE_TOKENS].0 as usize][at % PAGE_TOKENS] = mix(input, at as u64);
            row_hashes.push(hash);
        }
        self.slots[slot.0 as usize] = SlotState { hash, tokens: end as u32, poisoned };
        let first = match want {
            LogitRows::Nothing => tokens.len(),
            LogitRows::Last => tokens.len() - 1,
            LogitRows::All => 0,
        };
        for (row, hash) in row_hashes.iter().enumerate().skip(first) {
            let attended = self.attend(pages, start as usize + row + 1, *hash);
            self.logits.push(self.make_logits(attended, poisoned));
        }
    }

    /// Reads the keys and values of all positions up to a row.
    fn attend(&self, pages: &[Page], end: usize, hash: u64) -> u64 {
        let read = |at: usize| self.pages[pages[at / PAGE_TOKENS].0 as usize][at % PAGE_TOKENS];
        (0..end).fold(hash, |sum, at| mix(sum, read(at)))
    }

    /// The tile row at an index that has a placeholder.
    fn row_of(&self, inset: &ImageInset, index: u32) -> Option<u64> {
        let row = (inset.at..inset.at + inset.len).contains(&index).then(|| inset.row + index - inset.at)?;
        let tile =
            self.features.get(&inset.feature.0).unwrap_or_else(|| panic!("{:?} was released", inset.feature));
        Some(mix(*tile, u64::from(row)))
    }

    fn make_logits(&self, seed: u64, poisoned: bool) -> Vec<f32> {
        let mut logits: Vec<f32> = (0..self.settings.vocabulary)
            .map(|id| (mix(seed, u64::from(id)) >> 40) as f32 / (1u64 << 22) as f32 - 2.0)
            .collect();
        if let Some(stop) = logits.get_mut(self.settings.stop as usize) {
            *stop += 1.0;
        }
        if poisoned {
            logits[0] = f32::NAN;
        }
        logits
    }
}

impl Backend for SimBackend {
    fn config(&self) -> &Config {
        &self.config
    }

    fn capacity(&self) -> BackendCapacity {
        self.settings.capacity
    }

    fn encode(&mut self, tiles: &[ImageTile]) -> Result<Vec<TileFeature>, BackendError> {
        let feature_capacity = self.settings.capacity.features as usize;
        let requested = self.features.len() + tiles.len();
        if requested > feature_capacity {
            return Err(BackendError::OverCapacity {
                what: "tile features",
                requested,
                capacity: feature_capacity,
            });
        }
        wait_for(self.settings.cost.tile * tiles.len() as u32);
        Ok(tiles
            .iter()
            .map(|tile| {
                self.features_made += 1;
                let hash = tile
                    .pixels
                    .iter()
                    .fold(self.weights.vision, |sum, value| mix(sum, u64::from(value.to_bits())));
                self.features.insert(self.features_made, hash);
                TileFeature(self.features_made)
            })
            .collect())
    }

    fn encodes_concurrently(&self) -> bool {
        self.settings.beside
    }

    fn is_moving(&mut self, slot: Slot, _: &[Page]) -> Result<bool, DeviceLost> {
        self.moving_polls += 1;
        Ok(self.settings.beside && mix(self.moving_polls, slot.0.into()).is_multiple_of(4))
    }

    fn release(&mut self, features: &[TileFeature]) {
        for feature in features {
            assert!(self.features.remove(&feature.0).is_some(), "{feature:?} is released twice");
        }
    }

    fn run(&mut self, batch: &[SequenceSpan<'_>]) -> Result<(), BackendError> {
        let rows: usize = batch.iter().map(|span| span.tokens.len()).sum();
        let capacity = self.settings.capacity;
        if rows > capacity.rows_max as usize {
            return Err(BackendError::OverCapacity {
                what: "rows",
                requested: rows,
                capacity: capacity.rows_max as usize,
            });
        }
        let mut slots: Vec<Slot> = batch.iter().map(|span| span.slot).collect();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), batch.len(), "two spans share a slot");
        self.logits.clear();
        batch.iter().for_each(|span| self.run_span(span));
        assert!(self.logits.len() <= capacity.logits_max as usize, "more logits than the capacity allows");
        wait_for(self.settings.cost.batch + self.settings.cost.row * rows as u32);
        Ok(())
    }

    fn logits(&mut self, row: u32) -> Result<&[f32], DeviceLost> {
        Ok(&self.logits[row as usize])
    }

    fn sample(&mut self, picks: &[SampleRequest<'_>]) -> Result<Vec<SampleOutcome>, DeviceLost> {
        Ok(picks.iter().map(|one| sample_token(&self.logits[one.row as usize], one)).collect())
    }

    fn clear(&mut self, slot: Slot) -> Result<(), DeviceLost> {
        self.slots[slot.0 as usize] = SlotState::default();
        Ok(())
    }

    fn copy_slot(&mut self, from: Slot, to: Slot) -> Result<(), DeviceLost> {
        self.slots[to.0 as usize] = self.slots[from.0 as usize];
        Ok(())
    }

    fn copy_page(&mut self, from: Page, to: Page) -> Result<(), DeviceLost> {
        self.pages[to.0 as usize] = self.pages[from.0 as usize];
        Ok(())
    }

    fn offloaded_bytes(&self, pages: u32) -> u64 {
        // Three u64 of state, and one for each position.
        8 * (3 + u64::from(pages) * PAGE_TOKENS as u64)
    }

    fn offload(&mut self, slot: Slot, pages: &[Page]) -> Result<Option<OffloadedState>, DeviceLost> {
        let SlotState { hash, tokens, poisoned } = self.slots[slot.0 as usize];
        let state = [hash, u64::from(tokens), u64::from(poisoned)];
        let values = pages.iter().flat_map(|page| self.pages[page.0 as usize]);
        let plain = HostState {
            state: state.iter().flat_map(|value| value.to_le_bytes()).collect(),
            pages: values.flat_map(u64::to_le_bytes).collect(),
        };
        Ok(Some(plain.into_offloaded()))
    }

    fn restore(&mut self, offloaded: &OffloadedState, slot: Slot, pages: &[Page]) -> Result<(), DeviceLost> {
        let to_u64s = |bytes: &[u8]| -> Vec<u64> {
            let eights = bytes.chunks_exact(8);
            eights.map(|eight| eight.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))).collect()
        };
        let offloaded = HostState::of(offloaded);
        let state = to_u64s(&offloaded.state);
        self.slots[slot.0 as usize] =
            SlotState { hash: state[0], tokens: state[1] as u32, poisoned: state[2] != 0 };
        for (page, values) in pages.iter().zip(to_u64s(&offloaded.pages).chunks_exact(PAGE_TOKENS)) {
            self.pages[page.0 as usize].copy_from_slice(values);
        }
        Ok(())
    }

    fn stage(&mut self, weights: IncomingWeights) -> Result<(), WeightsError> {
        let other = |_| WeightsError::Refused("the simulated backend takes simulated weights".into());
        self.staged = Some(*weights.downcast::<SimWeights>().map_err(other)?);
        Ok(())
    }

    fn copy_staged(&mut self, _bytes: u64) -> Result<bool, WeightsError> {
        if self.staged.is_some() { Ok(true) } else { Err(WeightsError::NotStaged) }
    }

    fn swap(&mut self) -> Result<Option<IncomingWeights>, WeightsError> {
        let new = self.staged.take().ok_or(WeightsError::NotStaged)?;
        Ok(Some(Box::new(std::mem::replace(&mut self.weights, new))))
    }
}

/// One round of splitmix64 over both.
fn mix(sum: u64, value: u64) -> u64 {
    let mut z = sum.rotate_left(17) ^ value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The engine's thread is also the device here, so it waits.
fn wait_for(cost: Duration) {
    let began = Instant::now();
    while let Some(left) = cost.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}

/// Shapes of a model with one layer of each kind that keeps state.
fn text_config(vocabulary: usize, positions_max: usize) -> TextConfig {
    TextConfig {
        layers: vec![LayerKind::Ssm, LayerKind::Attention],
        hidden: 8,
        vocabulary,
        intermediate: 8,
        norm_epsilon: 1e-5,
        positions_max,
        attention: AttentionConfig { heads: 1, kv_heads: 1, head_dim: 8 },
        ssm: SsmConfig {
            heads: 1,
            head_dim: 8,
            state: 8,
            groups: 1,
            conv_kernel: 4,
            chunk: 8,
            time_step_limit: (0.0, f32::INFINITY),
        },
        moe: None,
    }
}
