//! A device with a complete account of its time: what it did, or why it was idle.

use furrow_model::backend::{
    Backend, BackendCapacity, BackendError, DeviceLost, IncomingWeights, OffloadedState, Page, SequenceSpan,
    Slot, TileFeature, WeightsError,
};
use furrow_model::config::Config;
use furrow_model::floor::{BatchFloor, DeviceSpec, seconds};
use furrow_model::sample::{SampleOutcome, SampleRequest};
use furrow_model::vision::ImageTile;
use furrow_telemetry::{DeviceAccount, DeviceTime, DeviceUse, TimeSource};

use crate::device_faults::fault;

/// A backend and its time account. Between two calls the device is idle for the reason given last.
pub(crate) struct MeteredBackend {
    device: Box<dyn Backend>,
    time: TimeSource,
    account: DeviceAccount,
    idle: DeviceUse,
    /// The batch that runs, until its tokens are sampled: its start, and the share of its time that
    /// is decode.
    batch: Option<(u64, f64)>,
    /// The rates by which a batch's time is divided between decode rows and prefill.
    rates: &'static DeviceSpec,
}

impl MeteredBackend {
    /// Creates an account that starts now.
    pub(crate) fn new(device: Box<dyn Backend>, time: TimeSource) -> Self {
        let account = DeviceAccount::open(time.micros());
        // Decode is limited by memory bandwidth and prefill by computation. The known devices do
        // 136 to 373 operations in the time they move a byte, this one 183.
        let rates = &furrow_model::floor::DEVICES[0];
        Self { device, account, idle: DeviceUse::NoWork, batch: None, rates, time }
    }

    /// Sets the reason for which the device is idle from now on.
    pub(crate) fn idle_because(&mut self, why: DeviceUse) {
        self.end_batch();
        self.idle = why;
        self.account.enter(why, self.time.micros());
    }

    /// How the device's time was used so far.
    pub(crate) fn time(&mut self) -> DeviceTime {
        self.end_batch();
        self.account.until(self.time.micros())
    }

    /// Closes the account of a batch. A device may return from `run` before the batch has ended;
    /// sampling from it waits for the end. The time is divided between the batch's parts in
    /// proportion to their floors.
    fn end_batch(&mut self) {
        let Some((began, share)) = self.batch.take() else { return };
        let ended = self.time.micros();
        let decode = ended.saturating_sub(began) as f64 * share;
        self.account.enter(DeviceUse::Prefill, began + decode.round() as u64);
        self.account.enter(self.idle, ended);
    }

    fn run_accounted<T>(&mut self, used: DeviceUse, what: impl FnOnce(&mut dyn Backend) -> T) -> T {
        self.end_batch();
        self.account.enter(used, self.time.micros());
        let done = what(&mut *self.device);
        self.account.enter(self.idle, self.time.micros());
        done
    }
}

/// Floors of a batch's two parts on a device.
pub(crate) fn floor_of(batch: &[SequenceSpan<'_>], model: &Config, device: &DeviceSpec) -> BatchFloor {
    let [decode, prefill] = BatchFloor::span_parts(batch, model);
    BatchFloor { decode: seconds(&decode, device), prefill: seconds(&prefill, device) }
}

impl Backend for MeteredBackend {
    fn config(&self) -> &Config {
        self.device.config()
    }

    fn capacity(&self) -> BackendCapacity {
        self.device.capacity()
    }

    /// Accounted as part of the batch if one is running.
    fn encode(&mut self, tiles: &[ImageTile]) -> Result<Vec<TileFeature>, BackendError> {
        fault("device.encode")?;
        if self.batch.is_some() && self.device.encodes_concurrently() {
            return self.device.encode(tiles);
        }
        self.run_accounted(DeviceUse::Vision, |device| device.encode(tiles))
    }

    fn encodes_concurrently(&self) -> bool {
        self.device.encodes_concurrently()
    }

    fn await_tiles(&mut self) -> Result<(), DeviceLost> {
        fault("device.await_tiles")?;
        self.run_accounted(DeviceUse::Vision, |device| device.await_tiles())
    }

    fn release(&mut self, features: &[TileFeature]) {
        self.device.release(features);
    }

    /// The wait before a batch, if the device reports one, is not part of the batch's time. The
    /// batch ends when its tokens are sampled.
    fn run(&mut self, batch: &[SequenceSpan<'_>]) -> Result<(), BackendError> {
        if batch.iter().any(|span| !span.insets.is_empty()) {
            self.await_tiles()?;
        }
        self.await_states(batch)?;
        fault("device.run")?;
        let floor = floor_of(batch, self.device.config(), self.rates);
        let began = self.time.micros();
        self.account.enter(DeviceUse::Decode, began);
        self.batch = Some((began, floor.decode / floor.seconds()));
        let done = self.device.run(batch);
        if done.is_err() {
            self.end_batch();
        }
        done
    }

    fn logits(&mut self, row: u32) -> Result<&[f32], DeviceLost> {
        self.end_batch();
        fault("device.logits")?;
        let Self { device, account, time, idle, .. } = self;
        account.enter(DeviceUse::Copy, time.micros());
        let logits = device.logits(row);
        account.enter(*idle, time.micros());
        logits
    }

    fn sample(&mut self, picks: &[SampleRequest<'_>]) -> Result<Vec<SampleOutcome>, DeviceLost> {
        fault("device.sample")?;
        let picked = self.device.sample(picks);
        self.end_batch();
        picked
    }

    fn clear(&mut self, slot: Slot) -> Result<(), DeviceLost> {
        fault("device.clear")?;
        self.run_accounted(DeviceUse::Copy, |device| device.clear(slot))
    }

    fn copy_slot(&mut self, from: Slot, to: Slot) -> Result<(), DeviceLost> {
        self.run_accounted(DeviceUse::Copy, |device| {
            fault("device.copy").and_then(|()| device.copy_slot(from, to))
        })
    }

    fn copy_page(&mut self, from: Page, to: Page) -> Result<(), DeviceLost> {
        fault("device.copy_page")?;
        self.run_accounted(DeviceUse::Copy, |device| device.copy_page(from, to))
    }

    fn offloaded_bytes(&self, pages: u32) -> u64 {
        self.device.offloaded_bytes(pages)
    }

    fn offload(&mut self, slot: Slot, pages: &[Page]) -> Result<Option<OffloadedState>, DeviceLost> {
        fault("device.offload")?;
        self.run_accounted(DeviceUse::Copy, |device| device.offload(slot, pages))
    }

    fn is_moving(&mut self, slot: Slot, pages: &[Page]) -> Result<bool, DeviceLost> {
        fault("device.is_moving")?;
        self.device.is_moving(slot, pages)
    }

    fn await_states(&mut self, batch: &[SequenceSpan<'_>]) -> Result<(), DeviceLost> {
        fault("device.await_states")?;
        self.run_accounted(DeviceUse::Copy, |device| device.await_states(batch))
    }

    fn restore(&mut self, offloaded: &OffloadedState, slot: Slot, pages: &[Page]) -> Result<(), DeviceLost> {
        fault("device.restore")?;
        self.run_accounted(DeviceUse::Copy, |device| device.restore(offloaded, slot, pages))
    }

    fn stage(&mut self, weights: IncomingWeights) -> Result<(), WeightsError> {
        fault("device.stage")?;
        self.run_accounted(DeviceUse::Weights, |device| device.stage(weights))
    }

    fn copy_staged(&mut self, bytes: u64) -> Result<bool, WeightsError> {
        fault("device.copy_staged")?;
        self.run_accounted(DeviceUse::Weights, |device| device.copy_staged(bytes))
    }

    fn swap(&mut self) -> Result<Option<IncomingWeights>, WeightsError> {
        fault("device.swap")?;
        self.run_accounted(DeviceUse::Weights, |device| device.swap())
    }
}
