//! A simulated device: it computes nothing and takes as long as the floor says, on a clock that it
//! advances itself.
//!
//! It has the streams of a GPU. `run` begins a batch, and sampling from it waits for its end. Tiles
//! that are encoded meanwhile use the bandwidth and matrix units that the batch leaves
//! (`concurrent.rs`) and slow it down by what they use. A batch with tiles
//! waits until all tiles requested before are encoded. States are transferred to and from host
//! memory one after another at the rate of the bus, beside everything else. That uses a hundredth
//! of the device's bandwidth, 55 GB/s of 4.3 TB/s, which is not counted. A batch waits for the
//! transfers of the slots and pages it uses.

use std::collections::HashMap;

use furrow_model::backend::{
    Backend, BackendCapacity, BackendError, DeviceLost, OffloadedState, PAGE_TOKENS, Page, SequenceSpan,
    Slot, TileFeature,
};
use furrow_model::config::Config;
use furrow_model::floor::{BatchFloor, DeviceSpec, ModelWork, WorkPart};
use furrow_model::sample::{SampleOutcome, SampleRequest, SampledToken};
use furrow_model::vision::ImageTile;
use furrow_telemetry::{ManualTime, TimeSource};

use crate::concurrent::ConcurrentWork;

/// The token that is always sampled; it never ends a reply.
pub(crate) const SAMPLED_ID: u32 = 1;

/// A sample of that token.
pub(crate) fn sampled() -> SampleOutcome {
    SampleOutcome::Token(SampledToken {
        id: SAMPLED_ID,
        logprob: 0.0,
        sampled_logprob: 0.0,
        kept_count: None,
        kept_ids: Vec::new(),
        entropy: 0.0,
    })
}

/// Bytes per second between device and host: an estimate of what a PCIe 5 x16 link carries in one
/// direction.
const HOST_BYTES_A_SECOND: f64 = 55e9;

pub(crate) struct SimulatedDevice {
    config: Config,
    device: &'static DeviceSpec,
    capacity: BackendCapacity,
    time: TimeSource,
    hand: ManualTime,
    /// Bytes of a slot's state and of a page.
    slot_bytes: f64,
    page_bytes: f64,
    features: u32,
    /// Work of the batch that runs.
    batch: Vec<WorkPart>,
    tower: ConcurrentWork,
    /// Time up to which the tower's work is simulated.
    tower_until: u64,
    /// When each slot and page in a transfer is free, and when all are.
    moving: HashMap<TransferTarget, u64>,
    transfers_end: u64,
    /// The fraction of a microsecond that was not counted yet.
    left: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum TransferTarget {
    Slot(Slot),
    Page(Page),
}

impl SimulatedDevice {
    /// Creates a device on a clock and its hand.
    pub(crate) fn new(
        config: Config,
        device: &'static DeviceSpec,
        capacity: BackendCapacity,
        (time, hand): (TimeSource, ManualTime),
    ) -> Self {
        let page_tokens = PAGE_TOKENS as f64;
        Self {
            slot_bytes: config.session_bytes(0.0),
            page_bytes: config.session_bytes(page_tokens) - config.session_bytes(0.0),
            config,
            device,
            capacity,
            features: 0,
            batch: Vec::new(),
            tower: ConcurrentWork::default(),
            tower_until: time.micros(),
            moving: HashMap::new(),
            transfers_end: 0,
            left: 0.0,
            time,
            hand,
        }
    }

    /// Advances the clock, up to which the tower's work is then simulated.
    fn take(&mut self, seconds: f64) {
        let micros = seconds * 1e6 + self.left;
        self.left = micros.fract();
        self.hand.advance(micros as u64);
        self.tower_until = self.time.micros();
    }

    /// Ends the running batch. In the time of the batch and in the idle time before, the tower has
    /// worked.
    fn catch_up(&mut self) {
        let idle = self.time.micros().saturating_sub(self.tower_until);
        self.tower.run_alone(self.device, idle as f64 / 1e6);
        let batch = std::mem::take(&mut self.batch);
        let seconds = self.tower.run(&batch, self.device);
        self.take(seconds);
    }

    /// Counts bytes that a launch on the batch's stream reads and writes.
    fn move_bytes(&mut self, bytes: f64) {
        self.catch_up();
        let launch = WorkPart { name: "copy", bytes: 2.0 * bytes, flops: 0.0 };
        let seconds = self.tower.run(&[launch], self.device);
        self.take(seconds);
    }

    /// Queues the transfer of a state to or from host memory.
    fn transfer_state(&mut self, slot: Slot, pages: &[Page]) {
        self.catch_up();
        let seconds = (self.slot_bytes + pages.len() as f64 * self.page_bytes) / HOST_BYTES_A_SECOND;
        let now = self.time.micros();
        if self.transfers_end <= now {
            self.moving.clear();
        }
        self.transfers_end = self.transfers_end.max(now) + (seconds * 1e6) as u64;
        let targets =
            pages.iter().map(|page| TransferTarget::Page(*page)).chain([TransferTarget::Slot(slot)]);
        self.moving.extend(targets.map(|at| (at, self.transfers_end)));
    }

    /// When a slot and pages are free of transfers.
    fn free_at(&self, slot: Slot, pages: &[Page]) -> u64 {
        if self.transfers_end <= self.time.micros() {
            return 0;
        }
        let targets =
            pages.iter().map(|page| TransferTarget::Page(*page)).chain([TransferTarget::Slot(slot)]);
        targets.filter_map(|at| self.moving.get(&at)).max().copied().unwrap_or(0)
    }
}

impl Backend for SimulatedDevice {
    fn config(&self) -> &Config {
        &self.config
    }

    fn capacity(&self) -> BackendCapacity {
        self.capacity
    }

    fn encode(&mut self, tiles: &[ImageTile]) -> Result<Vec<TileFeature>, BackendError> {
        if self.batch.is_empty() {
            self.catch_up();
        }
        self.tower.add(self.config.tower(tiles.len() as f64));
        let first = self.features;
        self.features += tiles.len() as u32;
        Ok((first..self.features).map(TileFeature).collect())
    }

    fn encodes_concurrently(&self) -> bool {
        true
    }

    fn await_tiles(&mut self) -> Result<(), DeviceLost> {
        self.catch_up();
        let seconds = self.tower.finish_alone(self.device);
        self.take(seconds);
        Ok(())
    }

    fn release(&mut self, _: &[TileFeature]) {}

    fn run(&mut self, batch: &[SequenceSpan<'_>]) -> Result<(), BackendError> {
        let rows: usize = batch.iter().map(|span| span.tokens.len()).sum();
        let capacity = self.capacity.rows_max as usize;
        if rows > capacity {
            return Err(BackendError::OverCapacity { what: "rows", requested: rows, capacity });
        }
        self.catch_up();
        self.batch = BatchFloor::span_parts(batch, &self.config).concat();
        Ok(())
    }

    fn logits(&mut self, _: u32) -> Result<&[f32], DeviceLost> {
        Ok(&[])
    }

    fn sample(&mut self, picks: &[SampleRequest<'_>]) -> Result<Vec<SampleOutcome>, DeviceLost> {
        self.catch_up();
        Ok(picks.iter().map(|_| sampled()).collect())
    }

    fn clear(&mut self, _: Slot) -> Result<(), DeviceLost> {
        // Counted as half, because it is only written.
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

    fn offloaded_bytes(&self, pages: u32) -> u64 {
        (self.slot_bytes + f64::from(pages) * self.page_bytes) as u64
    }

    fn offload(&mut self, slot: Slot, pages: &[Page]) -> Result<Option<OffloadedState>, DeviceLost> {
        self.transfer_state(slot, pages);
        Ok(Some(OffloadedState::new(self.offloaded_bytes(pages.len() as u32), ())))
    }

    fn is_moving(&mut self, slot: Slot, pages: &[Page]) -> Result<bool, DeviceLost> {
        Ok(self.free_at(slot, pages) > self.time.micros())
    }

    fn await_states(&mut self, batch: &[SequenceSpan<'_>]) -> Result<(), DeviceLost> {
        self.catch_up();
        let free = batch.iter().map(|span| self.free_at(span.slot, span.pages)).max().unwrap_or(0);
        let waits = free.saturating_sub(self.time.micros());
        self.tower.run_alone(self.device, waits as f64 / 1e6);
        self.take(waits as f64 / 1e6);
        Ok(())
    }

    fn restore(&mut self, _: &OffloadedState, slot: Slot, pages: &[Page]) -> Result<(), DeviceLost> {
        self.transfer_state(slot, pages);
        Ok(())
    }
}
