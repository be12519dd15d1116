//! A device of air: it computes nothing and takes as long as the floor says, on a clock that it moves itself.

use furrow_model::backend::{Backend, BackendError, Feature, PAGE_TOKENS, Page, Parked, Room, Slot, Span};
use furrow_model::config::Config;
use furrow_model::floor::{Device, Work, seconds};
use furrow_model::sample::{Pick, Picked, Token};
use furrow_model::vision::Tile;
use furrow_telemetry::ManualTime;

use crate::metered::floor_of;

/// What the twin draws: never the id that ends a reply.
pub const DRAWN: u32 = 1;

/// Bytes a second between device and host: what a PCIe 5 x16 link carries in one direction, an estimate.
const HOST_BYTES_A_SECOND: f64 = 55e9;

/// The backend.
pub struct Air {
    config: Config,
    device: &'static Device,
    room: Room,
    hand: ManualTime,
    /// Bytes of a slot's state and of a page.
    slot_bytes: f64,
    page_bytes: f64,
    tile_seconds: f64,
    features: u32,
    /// What is left of a microsecond.
    left: f64,
}

impl Air {
    /// Opens one. `hand` moves the clock it is held to.
    pub fn new(config: Config, device: &'static Device, room: Room, hand: ManualTime) -> Self {
        let tile = config.vision.as_ref().map_or(0, |vision| vision.tile);
        let page_tokens = PAGE_TOKENS as f64;
        Self {
            slot_bytes: config.session_bytes(0.0),
            page_bytes: config.session_bytes(page_tokens) - config.session_bytes(0.0),
            tile_seconds: seconds(&config.vision(tile, tile), device),
            config,
            device,
            room,
            hand,
            features: 0,
            left: 0.0,
        }
    }

    fn take(&mut self, seconds: f64) {
        let micros = seconds * 1e6 + self.left;
        self.left = micros.fract();
        self.hand.advance(micros as u64);
    }

    /// Read and written on the device.
    fn move_bytes(&mut self, bytes: f64) {
        self.take(2.0 * bytes / self.device.bandwidth);
    }

    fn carry(&mut self, pages: usize) {
        self.take((self.slot_bytes + pages as f64 * self.page_bytes) / HOST_BYTES_A_SECOND);
    }
}

impl Backend for Air {
    fn config(&self) -> &Config {
        &self.config
    }

    fn room(&self) -> Room {
        self.room
    }

    fn encode(&mut self, tiles: &[Tile]) -> Result<Vec<Feature>, BackendError> {
        self.take(self.tile_seconds * tiles.len() as f64);
        let first = self.features;
        self.features += tiles.len() as u32;
        Ok((first..self.features).map(Feature).collect())
    }

    fn release(&mut self, _: &[Feature]) {}

    fn run(&mut self, batch: &[Span<'_>]) -> Result<(), BackendError> {
        let rows: usize = batch.iter().map(|span| span.tokens.len()).sum();
        let room = self.room.rows_max as usize;
        if rows > room {
            return Err(BackendError::NoRoom { what: "rows", asked: rows, room });
        }
        self.take(floor_of(batch, &self.config, self.device).seconds());
        Ok(())
    }

    fn logits(&mut self, _: u32) -> &[f32] {
        &[]
    }

    fn sample(&mut self, picks: &[Pick<'_>]) -> Vec<Picked> {
        let token = Token {
            id: DRAWN,
            logprob: 0.0,
            sampled_logprob: 0.0,
            kept_count: None,
            kept_ids: Vec::new(),
            entropy: 0.0,
        };
        picks.iter().map(|_| Picked::Token(token.clone())).collect()
    }

    fn clear(&mut self, _: Slot) {
        // Written only.
        self.move_bytes(self.slot_bytes / 2.0);
    }

    fn copy_slot(&mut self, _: Slot, _: Slot) {
        self.move_bytes(self.slot_bytes);
    }

    fn copy_page(&mut self, _: Page, _: Page) {
        self.move_bytes(self.page_bytes);
    }

    fn parked_bytes(&self, pages: u32) -> u64 {
        (self.slot_bytes + f64::from(pages) * self.page_bytes) as u64
    }

    fn park(&mut self, _: Slot, pages: &[Page]) -> Option<Parked> {
        self.carry(pages.len());
        Some(Parked::new(self.parked_bytes(pages.len() as u32), ()))
    }

    fn restore(&mut self, _: &Parked, _: Slot, pages: &[Page]) {
        self.carry(pages.len());
    }
}
