//! A device whose every microsecond is accounted for: what it did, or why it did nothing.

use furrow_model::backend::{
    Backend, BackendError, DeviceLost, Feature, Incoming, Page, Parked, Room, Slot, Span, WeightsError,
};
use furrow_model::config::Config;
use furrow_model::floor::{Batch, Device, Part, Prefill, seconds};
use furrow_model::sample::{Pick, Picked};
use furrow_model::vision::Tile;
use furrow_telemetry::{DeviceAccount, DeviceTime, DeviceUse, TimeSource};

/// A backend and its time account. Between two calls the device is idle for the reason given last.
pub struct Metered {
    device: Box<dyn Backend>,
    time: TimeSource,
    account: DeviceAccount,
    idle: DeviceUse,
    /// The batch that was begun and not drawn from yet: when, and what share of its time is decode's.
    batch: Option<(u64, f64)>,
    /// By whose rates the time of a batch is shared between its decode rows and its prefill.
    rates: &'static Device,
}

impl Metered {
    /// Opens the account.
    pub fn new(device: Box<dyn Backend>, time: TimeSource) -> Self {
        let account = DeviceAccount::open(time.micros());
        // Decode moves bytes and prefill computes. The devices known here do 136 to 373 operations in the time they move a byte, this one 183.
        let rates = &furrow_model::floor::DEVICES[0];
        Self { device, account, idle: DeviceUse::NoWork, batch: None, rates, time }
    }

    /// From now on the device is idle for this reason whenever it does nothing.
    pub fn idle_because(&mut self, why: DeviceUse) {
        self.end_batch();
        self.idle = why;
        self.account.enter(why, self.time.micros());
    }

    /// Where its time went until now.
    pub fn time(&mut self) -> DeviceTime {
        self.end_batch();
        self.account.until(self.time.micros())
    }

    /// A device may return from a batch before it has run it; what is drawn from it says that it has. Its time is shared between its parts as their floors are.
    fn end_batch(&mut self) {
        let Some((began, share)) = self.batch.take() else { return };
        let ended = self.time.micros();
        let decode = ended.saturating_sub(began) as f64 * share;
        self.account.enter(DeviceUse::Prefill, began + decode.round() as u64);
        self.account.enter(self.idle, ended);
    }

    fn doing<T>(&mut self, used: DeviceUse, what: impl FnOnce(&mut dyn Backend) -> T) -> T {
        self.end_batch();
        self.account.enter(used, self.time.micros());
        let done = what(&mut *self.device);
        self.account.enter(self.idle, self.time.micros());
        done
    }
}

/// Where a test may have the device fail: `FAILPOINTS=device.sample=40*off->return(launch failed)` is a device that shows a failed kernel at the 41st draw.
#[cfg(feature = "failpoints")]
fn fault(point: &str) -> Result<(), DeviceLost> {
    fail::fail_point!(point, |why| Err(DeviceLost(why.unwrap_or_else(|| "a test had it fail".to_owned()))));
    Ok(())
}

/// Nothing.
#[cfg(not(feature = "failpoints"))]
fn fault(_point: &str) -> Result<(), DeviceLost> {
    Ok(())
}

/// Floors of a batch's two parts on a device.
pub fn floor_of(batch: &[Span<'_>], model: &Config, device: &Device) -> Batch {
    let [decode, prefill] = parts_of(batch, model);
    Batch { decode: seconds(&decode, device), prefill: seconds(&prefill, device) }
}

/// What a batch's rows that decode do, and what its spans do. A span of one token counts as decode, whether the token was drawn or given.
pub fn parts_of(batch: &[Span<'_>], model: &Config) -> [Vec<Part>; 2] {
    let (decodes, prefills): (Vec<&Span<'_>>, Vec<&Span<'_>>) =
        batch.iter().partition(|span| span.tokens.len() == 1);
    let past: f64 = decodes.iter().map(|span| f64::from(span.start)).sum();
    let prefill = |span: &&Span<'_>| Prefill { new: span.tokens.len() as f64, past: span.start.into() };
    let prefills: Vec<Prefill> = prefills.iter().map(prefill).collect();
    Batch::parts(model, decodes.len(), past / decodes.len().max(1) as f64, &prefills)
}

impl Backend for Metered {
    fn config(&self) -> &Config {
        self.device.config()
    }

    fn room(&self) -> Room {
        self.device.room()
    }

    /// What is asked for while a batch runs is done beside it.
    fn encode(&mut self, tiles: &[Tile]) -> Result<Vec<Feature>, BackendError> {
        fault("device.encode")?;
        if self.batch.is_some() && self.device.encodes_beside() {
            return self.device.encode(tiles);
        }
        self.doing(DeviceUse::Vision, |device| device.encode(tiles))
    }

    fn encodes_beside(&self) -> bool {
        self.device.encodes_beside()
    }

    fn await_tiles(&mut self) -> Result<(), DeviceLost> {
        self.doing(DeviceUse::Vision, |device| device.await_tiles())
    }

    fn release(&mut self, features: &[Feature]) {
        self.device.release(features);
    }

    /// What it waits for first is not its own time, where the device tells. It ends with what is drawn from it.
    fn run(&mut self, batch: &[Span<'_>]) -> Result<(), BackendError> {
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

    fn sample(&mut self, picks: &[Pick<'_>]) -> Result<Vec<Picked>, DeviceLost> {
        fault("device.sample")?;
        let picked = self.device.sample(picks);
        self.end_batch();
        picked
    }

    fn clear(&mut self, slot: Slot) -> Result<(), DeviceLost> {
        self.doing(DeviceUse::Copy, |device| device.clear(slot))
    }

    fn copy_slot(&mut self, from: Slot, to: Slot) -> Result<(), DeviceLost> {
        self.doing(DeviceUse::Copy, |device| fault("device.copy").and_then(|()| device.copy_slot(from, to)))
    }

    fn copy_page(&mut self, from: Page, to: Page) -> Result<(), DeviceLost> {
        self.doing(DeviceUse::Copy, |device| device.copy_page(from, to))
    }

    fn parked_bytes(&self, pages: u32) -> u64 {
        self.device.parked_bytes(pages)
    }

    fn park(&mut self, slot: Slot, pages: &[Page]) -> Result<Option<Parked>, DeviceLost> {
        self.doing(DeviceUse::Copy, |device| device.park(slot, pages))
    }

    fn is_moving(&mut self, slot: Slot, pages: &[Page]) -> Result<bool, DeviceLost> {
        self.device.is_moving(slot, pages)
    }

    fn await_states(&mut self, batch: &[Span<'_>]) -> Result<(), DeviceLost> {
        self.doing(DeviceUse::Copy, |device| device.await_states(batch))
    }

    fn restore(&mut self, parked: &Parked, slot: Slot, pages: &[Page]) -> Result<(), DeviceLost> {
        self.doing(DeviceUse::Copy, |device| device.restore(parked, slot, pages))
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
