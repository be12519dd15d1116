//! A device whose every microsecond is accounted for: what it did, or why it did nothing.

use furrow_model::backend::{
    Backend, BackendError, Feature, Incoming, Page, Parked, Room, Slot, Span, WeightsError,
};
use furrow_model::config::Config;
use furrow_model::floor::{Batch, Device, Prefill};
use furrow_model::sample::{Pick, Picked};
use furrow_model::vision::Tile;
use furrow_telemetry::{DeviceAccount, DeviceTime, DeviceUse, TimeSource};

/// A backend and its time account. Between two calls the device is idle for the reason given last.
pub struct Metered {
    device: Box<dyn Backend>,
    time: TimeSource,
    account: DeviceAccount,
    idle: DeviceUse,
    /// By whose rates the time of a batch is shared between its decode rows and its prefill.
    rates: &'static Device,
}

impl Metered {
    /// Opens the account.
    pub fn new(device: Box<dyn Backend>, time: TimeSource) -> Self {
        let account = DeviceAccount::open(time.micros());
        // Decode moves bytes and prefill computes. The devices known here do 136 to 373 operations in the time they move a byte, this one 183.
        let rates = &furrow_model::floor::DEVICES[0];
        Self { device, account, idle: DeviceUse::NoWork, rates, time }
    }

    /// From now on the device is idle for this reason whenever it does nothing.
    pub fn idle_because(&mut self, why: DeviceUse) {
        self.idle = why;
        self.account.enter(why, self.time.micros());
    }

    /// Where its time went until now.
    pub fn time(&mut self) -> DeviceTime {
        self.account.until(self.time.micros())
    }

    fn doing<T>(&mut self, used: DeviceUse, what: impl FnOnce(&mut dyn Backend) -> T) -> T {
        self.account.enter(used, self.time.micros());
        let done = what(&mut *self.device);
        self.account.enter(self.idle, self.time.micros());
        done
    }
}

/// Floors of a batch's two parts on a device. A span of one token counts as decode, whether the token was drawn or given.
pub fn floor_of(batch: &[Span<'_>], model: &Config, device: &Device) -> Batch {
    let (decodes, prefills): (Vec<&Span<'_>>, Vec<&Span<'_>>) =
        batch.iter().partition(|span| span.tokens.len() == 1);
    let past: f64 = decodes.iter().map(|span| f64::from(span.start)).sum();
    let prefill = |span: &&Span<'_>| Prefill { new: span.tokens.len() as f64, past: span.start.into() };
    let prefills: Vec<Prefill> = prefills.iter().map(prefill).collect();
    Batch::floor(model, device, decodes.len(), past / decodes.len().max(1) as f64, &prefills)
}

impl Backend for Metered {
    fn config(&self) -> &Config {
        self.device.config()
    }

    fn room(&self) -> Room {
        self.device.room()
    }

    fn encode(&mut self, tiles: &[Tile]) -> Result<Vec<Feature>, BackendError> {
        self.doing(DeviceUse::Vision, |device| device.encode(tiles))
    }

    fn release(&mut self, features: &[Feature]) {
        self.device.release(features);
    }

    /// The parts of a batch run at once: its time is shared between them as their floors are.
    fn run(&mut self, batch: &[Span<'_>]) -> Result<(), BackendError> {
        let floor = floor_of(batch, self.device.config(), self.rates);
        let began = self.time.micros();
        self.account.enter(DeviceUse::Decode, began);
        let done = self.device.run(batch);
        let ended = self.time.micros();
        let decode = (ended - began) as f64 * floor.decode / floor.seconds();
        self.account.enter(DeviceUse::Prefill, began + decode.round() as u64);
        self.account.enter(self.idle, ended);
        done
    }

    fn logits(&mut self, row: u32) -> &[f32] {
        self.device.logits(row)
    }

    fn sample(&mut self, picks: &[Pick<'_>]) -> Vec<Picked> {
        self.doing(DeviceUse::Decode, |device| device.sample(picks))
    }

    fn clear(&mut self, slot: Slot) {
        self.doing(DeviceUse::Copy, |device| device.clear(slot));
    }

    fn copy_slot(&mut self, from: Slot, to: Slot) {
        self.doing(DeviceUse::Copy, |device| device.copy_slot(from, to));
    }

    fn copy_page(&mut self, from: Page, to: Page) {
        self.doing(DeviceUse::Copy, |device| device.copy_page(from, to));
    }

    fn parked_bytes(&self, pages: u32) -> u64 {
        self.device.parked_bytes(pages)
    }

    fn park(&mut self, slot: Slot, pages: &[Page]) -> Option<Parked> {
        self.doing(DeviceUse::Copy, |device| device.park(slot, pages))
    }

    fn restore(&mut self, parked: &Parked, slot: Slot, pages: &[Page]) {
        self.doing(DeviceUse::Copy, |device| device.restore(parked, slot, pages));
    }

    fn stage(&mut self, weights: Incoming) -> Result<(), WeightsError> {
        self.doing(DeviceUse::Weights, |device| device.stage(weights))
    }

    fn bring(&mut self, bytes: u64) -> Result<bool, WeightsError> {
        self.doing(DeviceUse::Weights, |device| device.bring(bytes))
    }

    fn swap(&mut self) -> Result<Option<Incoming>, WeightsError> {
        self.doing(DeviceUse::Weights, |device| device.swap())
    }
}
