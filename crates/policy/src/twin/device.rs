//! A device of air: it computes nothing and takes as long as the floor says, on a clock that it moves itself.
//!
//! It has the streams that a GPU has. A batch is begun by `run` and has ended when it is drawn from; tiles that are encoded meanwhile take what it leaves of
//! bandwidth and matrix units (`furrow_model::floor::Beside`), and slow it down by what they take. A batch that shows tiles waits until all that were asked for
//! before are encoded. States go to host memory and back one after another at the rate of the bus, beside everything else: of the device's bandwidth that is a
//! hundredth, 55 GB/s of 4.3 TB/s, and is not counted. A batch waits for those whose places it touches.

use std::collections::HashMap;

use furrow_model::backend::{
    Backend, BackendError, DeviceLost, Feature, PAGE_TOKENS, Page, Parked, Room, Slot, Span,
};
use furrow_model::config::Config;
use furrow_model::floor::{Beside, Device, Part, Work};
use furrow_model::sample::{Pick, Picked, Token};
use furrow_model::vision::Tile;
use furrow_telemetry::{ManualTime, TimeSource};

use crate::metered::parts_of;

/// What the twin draws: never the id that ends a reply.
pub const DRAWN: u32 = 1;

/// A draw of it.
pub fn drawn() -> Picked {
    Picked::Token(Token {
        id: DRAWN,
        logprob: 0.0,
        sampled_logprob: 0.0,
        kept_count: None,
        kept_ids: Vec::new(),
        entropy: 0.0,
    })
}

/// Bytes a second between device and host: what a PCIe 5 x16 link carries in one direction, an estimate.
const HOST_BYTES_A_SECOND: f64 = 55e9;

/// The backend.
pub struct Air {
    config: Config,
    device: &'static Device,
    room: Room,
    time: TimeSource,
    hand: ManualTime,
    /// Bytes of a slot's state and of a page.
    slot_bytes: f64,
    page_bytes: f64,
    features: u32,
    /// What was begun and has not been drawn from.
    batch: Vec<Part>,
    tower: Beside,
    /// Up to when the tower has worked.
    seen: u64,
    /// When each place that a state leaves or comes to is free, and when all are.
    moving: HashMap<At, u64>,
    moved: u64,
    /// What is left of a microsecond.
    left: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Slot(Slot),
    Page(Page),
}

impl Air {
    /// Opens one on a clock and the hand that moves it.
    pub fn new(
        config: Config,
        device: &'static Device,
        room: Room,
        (time, hand): (TimeSource, ManualTime),
    ) -> Self {
        let page_tokens = PAGE_TOKENS as f64;
        Self {
            slot_bytes: config.session_bytes(0.0),
            page_bytes: config.session_bytes(page_tokens) - config.session_bytes(0.0),
            config,
            device,
            room,
            features: 0,
            batch: Vec::new(),
            tower: Beside::default(),
            seen: time.micros(),
            moving: HashMap::new(),
            moved: 0,
            left: 0.0,
            time,
            hand,
        }
    }

    /// Takes time in which the tower has done what it could.
    fn take(&mut self, seconds: f64) {
        let micros = seconds * 1e6 + self.left;
        self.left = micros.fract();
        self.hand.advance(micros as u64);
        self.seen = self.time.micros();
    }

    /// Ends the batch that was begun; in the time since then, and while nothing was asked of the device, the tower has worked.
    fn catch_up(&mut self) {
        let idle = self.time.micros().saturating_sub(self.seen);
        self.tower.alone(self.device, idle as f64 / 1e6);
        let batch = std::mem::take(&mut self.batch);
        let seconds = self.tower.run(&batch, self.device);
        self.take(seconds);
    }

    /// Read and written on the device, by a launch of the batch's stream.
    fn move_bytes(&mut self, bytes: f64) {
        self.catch_up();
        let launch = Part { name: "copy", bytes: 2.0 * bytes, flops: 0.0 };
        let seconds = self.tower.run(&[launch], self.device);
        self.take(seconds);
    }

    /// A state goes to host memory or comes back, behind those before it.
    fn carry(&mut self, slot: Slot, pages: &[Page]) {
        self.catch_up();
        let seconds = (self.slot_bytes + pages.len() as f64 * self.page_bytes) / HOST_BYTES_A_SECOND;
        let now = self.time.micros();
        if self.moved <= now {
            self.moving.clear();
        }
        self.moved = self.moved.max(now) + (seconds * 1e6) as u64;
        let places = pages.iter().map(|page| At::Page(*page)).chain([At::Slot(slot)]);
        self.moving.extend(places.map(|at| (at, self.moved)));
    }

    /// When a slot and pages are free of states on their way.
    fn free_at(&self, slot: Slot, pages: &[Page]) -> u64 {
        if self.moved <= self.time.micros() {
            return 0;
        }
        let places = pages.iter().map(|page| At::Page(*page)).chain([At::Slot(slot)]);
        places.filter_map(|at| self.moving.get(&at)).max().copied().unwrap_or(0)
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
        if self.batch.is_empty() {
            self.catch_up();
        }
        self.tower.add(self.config.tower(tiles.len() as f64));
        let first = self.features;
        self.features += tiles.len() as u32;
        Ok((first..self.features).map(Feature).collect())
    }

    fn encodes_beside(&self) -> bool {
        true
    }

    fn await_tiles(&mut self) -> Result<(), DeviceLost> {
        self.catch_up();
        let seconds = self.tower.rest(self.device);
        self.take(seconds);
        Ok(())
    }

    fn release(&mut self, _: &[Feature]) {}

    fn run(&mut self, batch: &[Span<'_>]) -> Result<(), BackendError> {
        let rows: usize = batch.iter().map(|span| span.tokens.len()).sum();
        let room = self.room.rows_max as usize;
        if rows > room {
            return Err(BackendError::NoRoom { what: "rows", asked: rows, room });
        }
        self.catch_up();
        self.batch = parts_of(batch, &self.config).concat();
        Ok(())
    }

    fn logits(&mut self, _: u32) -> Result<&[f32], DeviceLost> {
        Ok(&[])
    }

    fn sample(&mut self, picks: &[Pick<'_>]) -> Result<Vec<Picked>, DeviceLost> {
        self.catch_up();
        Ok(picks.iter().map(|_| drawn()).collect())
    }

    fn clear(&mut self, _: Slot) -> Result<(), DeviceLost> {
        // Written only.
        self.move_bytes(self.slot_bytes / 2.0);
        Ok(())
    }

    fn copy_slot(&mut self, _: Slot, _: Slot) -> Result<(), DeviceLost> {
        self.move_bytes(self.slot_bytes);
        Ok(())
    }

    fn copy_page(&mut self, _: Page, _: Page) -> Result<(), DeviceLost> {
        self.move_bytes(self.page_bytes);
        Ok(())
    }

    fn parked_bytes(&self, pages: u32) -> u64 {
        (self.slot_bytes + f64::from(pages) * self.page_bytes) as u64
    }

    fn park(&mut self, slot: Slot, pages: &[Page]) -> Result<Option<Parked>, DeviceLost> {
        self.carry(slot, pages);
        Ok(Some(Parked::new(self.parked_bytes(pages.len() as u32), ())))
    }

    fn is_moving(&mut self, slot: Slot, pages: &[Page]) -> Result<bool, DeviceLost> {
        Ok(self.free_at(slot, pages) > self.time.micros())
    }

    fn await_states(&mut self, batch: &[Span<'_>]) -> Result<(), DeviceLost> {
        self.catch_up();
        let free = batch.iter().map(|span| self.free_at(span.slot, span.pages)).max().unwrap_or(0);
        let waits = free.saturating_sub(self.time.micros());
        self.tower.alone(self.device, waits as f64 / 1e6);
        self.take(waits as f64 / 1e6);
        Ok(())
    }

    fn restore(&mut self, _: &Parked, slot: Slot, pages: &[Page]) -> Result<(), DeviceLost> {
        self.carry(slot, pages);
        Ok(())
    }
}
