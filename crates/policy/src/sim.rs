//! A model of air: a scripted backend with a cost for each token, for tests and for tuning the scheduler where no device is at hand.
//!
//! Its logits are drawn from a hash of everything a sequence went through: every token and tile row in the slot's state *and* in the KV
//! pages, and where the sequence was cut into spans. So a state that was mixed up, a page that was shared too long, a tile in the wrong
//! place or a cut that moved shows in the very next token. It also checks its caller: what a real device would silently compute wrong
//! from (two spans on one slot, a state of another length, a feature that was released) ends in a panic here.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use furrow_model::backend::{
    Backend, BackendError, DeviceLost, Feature, Incoming, Inset, PAGE_TOKENS, Page, Parked, Plain, Room,
    Slot, Span, Want, WeightsError,
};
use furrow_model::config::{AttentionConfig, Config, LayerKind, SsmConfig, TextConfig};
use furrow_model::sample::{Pick, Picked, pick};
use furrow_model::vision::Tile;

/// How the model of air behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimSettings {
    /// Slots, pages and the rest.
    pub room: Room,
    /// Ids, 0 to one below.
    pub vocabulary: u32,
    /// Id that is made likelier than others, so that replies end.
    pub stop: u32,
    /// Longest sequence.
    pub positions_max: u32,
    /// Whether it matters where a sequence is cut into spans, as it does, in the last bits, on a real device.
    pub cuts_matter: bool,
    /// A sequence that holds this id gives logits that are not numbers.
    pub poison: Option<u32>,
    /// Whether tiles are encoded and states moved beside batches: one place in four is said to be on its way whenever that is asked.
    pub beside: bool,
    /// What its work costs.
    pub cost: Cost,
}

/// What work costs, in real time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Each batch: reading the weights.
    pub batch: Duration,
    /// Each row of it.
    pub row: Duration,
    /// Each tile.
    pub tile: Duration,
}

/// The backend.
#[derive(Debug)]
pub struct Sim {
    settings: SimSettings,
    config: Config,
    slots: Vec<SlotState>,
    pages: Vec<[u64; PAGE_TOKENS]>,
    features: HashMap<u32, u64>,
    features_made: u32,
    /// How often somebody asked whether a place is on its way.
    asked: u64,
    logits: Vec<Vec<f32>>,
    weights: AirWeights,
    staged: Option<AirWeights>,
}

/// The weights of a model of air: a number that goes into every token and every tile. It begins with 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AirWeights {
    /// Of the language model.
    pub text: u64,
    /// Of the vision encoder.
    pub vision: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct SlotState {
    hash: u64,
    tokens: u32,
    poisoned: bool,
}

impl Sim {
    /// Opens one.
    pub fn new(settings: SimSettings) -> Self {
        Self {
            settings,
            config: Config {
                text: text_config(settings.vocabulary as usize, settings.positions_max as usize),
                vision: None,
            },
            slots: vec![SlotState::default(); settings.room.slots as usize],
            pages: vec![[0; PAGE_TOKENS]; settings.room.pages as usize],
            features: HashMap::new(),
            features_made: 0,
            asked: 0,
            logits: Vec::new(),
            weights: AirWeights::default(),
            staged: None,
        }
    }

    fn run_span(&mut self, span: &Span<'_>) {
        let Span { slot, pages, start, tokens, insets, want } = *span;
        let state = self.slots[slot.0 as usize];
        assert_eq!(state.tokens, start, "{slot:?} holds {} tokens, the span begins at {start}", state.tokens);
        let end = start as usize + tokens.len();
        assert!(end <= pages.len() * PAGE_TOKENS, "{} pages do not hold {end} positions", pages.len());
        let mut hash =
            if self.settings.cuts_matter { mix(state.hash, tokens.len() as u64) } else { state.hash };
        let mut row_hashes = Vec::with_capacity(tokens.len());
        let mut poisoned = state.poisoned;
        for (index, id) in tokens.iter().enumerate() {
            let seen = insets.iter().find_map(|inset| self.row_of(inset, index as u32));
            poisoned |= seen.is_none() && Some(*id) == self.settings.poison;
            let input = seen.unwrap_or(u64::from(*id) + 1);
            hash = mix(hash, input ^ self.weights.text);
            let at = start as usize + index;
            self.pages[pages[at / PAGE_TOKENS].0 as usize][at % PAGE_TOKENS] = mix(input, at as u64);
            row_hashes.push(hash);
        }
        self.slots[slot.0 as usize] = SlotState { hash, tokens: end as u32, poisoned };
        let first = match want {
            Want::Nothing => tokens.len(),
            Want::Last => tokens.len() - 1,
            Want::All => 0,
        };
        for (row, hash) in row_hashes.iter().enumerate().skip(first) {
            let attended = self.attend(pages, start as usize + row + 1, *hash);
            self.logits.push(self.draw_logits(attended, poisoned));
        }
    }

    /// Reads the keys and values of all positions up to a row.
    fn attend(&self, pages: &[Page], end: usize, hash: u64) -> u64 {
        let read = |at: usize| self.pages[pages[at / PAGE_TOKENS].0 as usize][at % PAGE_TOKENS];
        (0..end).fold(hash, |sum, at| mix(sum, read(at)))
    }

    /// What stands at an index in place of a placeholder.
    fn row_of(&self, inset: &Inset, index: u32) -> Option<u64> {
        let row = (inset.at..inset.at + inset.len).contains(&index).then(|| inset.row + index - inset.at)?;
        let tile =
            self.features.get(&inset.feature.0).unwrap_or_else(|| panic!("{:?} was released", inset.feature));
        Some(mix(*tile, u64::from(row)))
    }

    fn draw_logits(&self, seed: u64, poisoned: bool) -> Vec<f32> {
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

impl Backend for Sim {
    fn config(&self) -> &Config {
        &self.config
    }

    fn room(&self) -> Room {
        self.settings.room
    }

    fn encode(&mut self, tiles: &[Tile]) -> Result<Vec<Feature>, BackendError> {
        let room = self.settings.room.features as usize;
        let asked = self.features.len() + tiles.len();
        if asked > room {
            return Err(BackendError::NoRoom { what: "tile features", asked, room });
        }
        take_time(self.settings.cost.tile * tiles.len() as u32);
        Ok(tiles
            .iter()
            .map(|tile| {
                self.features_made += 1;
                let hash = tile
                    .pixels
                    .iter()
                    .fold(self.weights.vision, |sum, value| mix(sum, u64::from(value.to_bits())));
                self.features.insert(self.features_made, hash);
                Feature(self.features_made)
            })
            .collect())
    }

    fn encodes_beside(&self) -> bool {
        self.settings.beside
    }

    fn is_moving(&mut self, slot: Slot, _: &[Page]) -> Result<bool, DeviceLost> {
        self.asked += 1;
        Ok(self.settings.beside && mix(self.asked, slot.0.into()).is_multiple_of(4))
    }

    fn release(&mut self, features: &[Feature]) {
        for feature in features {
            assert!(self.features.remove(&feature.0).is_some(), "{feature:?} is released twice");
        }
    }

    fn run(&mut self, batch: &[Span<'_>]) -> Result<(), BackendError> {
        let rows: usize = batch.iter().map(|span| span.tokens.len()).sum();
        let room = self.settings.room;
        if rows > room.rows_max as usize {
            return Err(BackendError::NoRoom { what: "rows", asked: rows, room: room.rows_max as usize });
        }
        let mut slots: Vec<Slot> = batch.iter().map(|span| span.slot).collect();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), batch.len(), "two spans share a slot");
        self.logits.clear();
        batch.iter().for_each(|span| self.run_span(span));
        assert!(self.logits.len() <= room.logits_max as usize, "more logits than there is room for");
        take_time(self.settings.cost.batch + self.settings.cost.row * rows as u32);
        Ok(())
    }

    fn logits(&mut self, row: u32) -> Result<&[f32], DeviceLost> {
        Ok(&self.logits[row as usize])
    }

    fn sample(&mut self, picks: &[Pick<'_>]) -> Result<Vec<Picked>, DeviceLost> {
        Ok(picks.iter().map(|one| pick(&self.logits[one.row as usize], one)).collect())
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

    fn parked_bytes(&self, pages: u32) -> u64 {
        // Three words of state, a word a position.
        8 * (3 + u64::from(pages) * PAGE_TOKENS as u64)
    }

    fn park(&mut self, slot: Slot, pages: &[Page]) -> Result<Option<Parked>, DeviceLost> {
        let SlotState { hash, tokens, poisoned } = self.slots[slot.0 as usize];
        let state = [hash, u64::from(tokens), u64::from(poisoned)];
        let values = pages.iter().flat_map(|page| self.pages[page.0 as usize]);
        let plain = Plain {
            state: state.iter().flat_map(|value| value.to_le_bytes()).collect(),
            pages: values.flat_map(u64::to_le_bytes).collect(),
        };
        Ok(Some(plain.parked()))
    }

    fn restore(&mut self, parked: &Parked, slot: Slot, pages: &[Page]) -> Result<(), DeviceLost> {
        let words = |bytes: &[u8]| -> Vec<u64> {
            let eights = bytes.chunks_exact(8);
            eights.map(|eight| eight.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))).collect()
        };
        let parked = Plain::of(parked);
        let state = words(&parked.state);
        self.slots[slot.0 as usize] =
            SlotState { hash: state[0], tokens: state[1] as u32, poisoned: state[2] != 0 };
        for (page, values) in pages.iter().zip(words(&parked.pages).chunks_exact(PAGE_TOKENS)) {
            self.pages[page.0 as usize].copy_from_slice(values);
        }
        Ok(())
    }

    fn stage(&mut self, weights: Incoming) -> Result<(), WeightsError> {
        let other = |_| WeightsError::Refused("a model of air takes weights of air".into());
        self.staged = Some(*weights.downcast::<AirWeights>().map_err(other)?);
        Ok(())
    }

    fn bring(&mut self, _bytes: u64) -> Result<bool, WeightsError> {
        if self.staged.is_some() { Ok(true) } else { Err(WeightsError::NotStaged) }
    }

    fn swap(&mut self) -> Result<Option<Incoming>, WeightsError> {
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

/// The engine's thread is the device here, so it is what waits.
fn take_time(cost: Duration) {
    let began = Instant::now();
    while let Some(left) = cost.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}

/// Shapes of a model that has just one layer of each kind that keeps state.
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
