//! The same loop on a real device and the real clock: it measures what engine and device reach
//! together.
//!
//! Sessions are aged as in the simulator. Their past is not computed: its values have no effect,
//! and whole trajectories of 100 sessions would take a device minutes. Every sampled token is
//! replaced by the simulator's, so replies have the configured length. Tiles are noise made in
//! advance, because a policy worker prepares tiles before the engine receives a step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use furrow_cuda::measure::noise_tile;
use furrow_model::backend::{
    Backend, BackendCapacity, BackendError, DeviceLost, OffloadedState, PAGE_TOKENS, Page, SequenceSpan,
    Slot, TileFeature,
};
use furrow_model::config::Config;
use furrow_model::floor::{DeviceSpec, ModelWork};
use furrow_model::sample::{SampleOutcome, SampleRequest};
use furrow_model::vision::ImageTile;
use furrow_telemetry::TimeSource;

use crate::device::sampled;
use crate::floor::RolloutFloor;
use crate::settings::{SimulatorError, SimulatorSettings};
use crate::simulator::{SimulationOutcome, SimulatorClock, SimulatorLoop};

/// Rounds of the sessions before the measurement; they begin spread evenly.
const WARM_UP: u32 = 2;
/// Number of prepared tiles: more than a batch shows.
const TILES: usize = 32;

/// The capacity that the sessions need on a device with `rates.memory` bytes: state slots, pages
/// for one session at its longest (more of them for more), and pinned memory for the sessions that
/// do not fit at their longest.
///
/// # Errors
/// As [`crate::simulate`].
pub fn required_capacity(
    config: &Config,
    rates: &DeviceSpec,
    settings: &SimulatorSettings,
) -> Result<BackendCapacity, SimulatorError> {
    let floor = settings.floor(config, rates, (RolloutFloor::floor, RolloutFloor::workload_floor))?;
    let longest = floor.context_max + f64::from(settings.spare_tokens()) + (8 * PAGE_TOKENS) as f64;
    let sessions = settings.mix.sessions as u64;
    // Four fewer: the engine keeps pages for one session more than it holds, and workspaces differ.
    let fit = config.sessions_that_fit(rates, longest).saturating_sub(4).min(sessions);
    let offload_bytes = (sessions - fit) as f64 * config.session_bytes(longest);
    let pages = (2.0 * longest / PAGE_TOKENS as f64).ceil() as u32;
    let capacity = settings.capacity(config, rates, &floor);
    Ok(BackendCapacity { pages, features: 256, offload_bytes: offload_bytes as u64, ..capacity })
}

/// Runs engine and device and measures them. The floor is the one without concurrent streams.
///
/// # Errors
/// When the settings do not fit the device, or a step gets a fault.
pub fn run_on_device(
    device: Box<dyn Backend>,
    rates: &DeviceSpec,
    settings: &SimulatorSettings,
) -> Result<SimulationOutcome, SimulatorError> {
    let floor =
        settings.floor(device.config(), rates, (RolloutFloor::floor, RolloutFloor::workload_floor))?;
    let clock = SimulatorClock { time: TimeSource::system(), hand: None };
    let (stage, is_aging) = BenchmarkBackend::new(device);
    let world = SimulatorLoop::new(Box::new(stage), clock, settings, &floor)?;
    is_aging.store(false, Ordering::Relaxed);
    world.measure(settings, floor, WARM_UP)
}

/// The real device with simulated tokens: it does the work of the loop, but its results are not
/// used.
struct BenchmarkBackend {
    device: Box<dyn Backend>,
    /// Whether the past is being built, during which nothing is computed.
    is_aging: Arc<AtomicBool>,
    tiles: Vec<ImageTile>,
}

impl BenchmarkBackend {
    fn new(device: Box<dyn Backend>) -> (Self, Arc<AtomicBool>) {
        let side = device.config().vision.as_ref().map_or(0, |vision| vision.tile);
        let is_aging = Arc::new(AtomicBool::new(true));
        let tiles = (0..TILES).map(|number| noise_tile(number as u32, side)).collect();
        (Self { device, is_aging: is_aging.clone(), tiles }, is_aging)
    }
}

impl Backend for BenchmarkBackend {
    fn config(&self) -> &Config {
        self.device.config()
    }

    fn capacity(&self) -> BackendCapacity {
        self.device.capacity()
    }

    /// Encodes as many of the prepared tiles, because the simulated ones have no pixels.
    fn encode(&mut self, tiles: &[ImageTile]) -> Result<Vec<TileFeature>, BackendError> {
        let mut features = Vec::with_capacity(tiles.len());
        for tiles in tiles.chunks(TILES) {
            features.extend(self.device.encode(&self.tiles[..tiles.len()])?);
        }
        Ok(features)
    }

    fn encodes_concurrently(&self) -> bool {
        self.device.encodes_concurrently()
    }

    fn await_tiles(&mut self) -> Result<(), DeviceLost> {
        self.device.await_tiles()
    }

    fn release(&mut self, features: &[TileFeature]) {
        self.device.release(features);
    }

    fn run(&mut self, batch: &[SequenceSpan<'_>]) -> Result<(), BackendError> {
        if self.is_aging.load(Ordering::Relaxed) { Ok(()) } else { self.device.run(batch) }
    }

    fn logits(&mut self, row: u32) -> Result<&[f32], DeviceLost> {
        self.device.logits(row)
    }

    fn sample(&mut self, picks: &[SampleRequest<'_>]) -> Result<Vec<SampleOutcome>, DeviceLost> {
        if !self.is_aging.load(Ordering::Relaxed) {
            self.device.sample(picks)?;
        }
        Ok(picks.iter().map(|_| sampled()).collect())
    }

    fn clear(&mut self, slot: Slot) -> Result<(), DeviceLost> {
        self.device.clear(slot)
    }

    fn copy_slot(&mut self, from: Slot, to: Slot) -> Result<(), DeviceLost> {
        self.device.copy_slot(from, to)
    }

    fn copy_page(&mut self, from: Page, to: Page) -> Result<(), DeviceLost> {
        self.device.copy_page(from, to)
    }

    fn offloaded_bytes(&self, pages: u32) -> u64 {
        self.device.offloaded_bytes(pages)
    }

    fn offload(&mut self, slot: Slot, pages: &[Page]) -> Result<Option<OffloadedState>, DeviceLost> {
        self.device.offload(slot, pages)
    }

    fn is_moving(&mut self, slot: Slot, pages: &[Page]) -> Result<bool, DeviceLost> {
        self.device.is_moving(slot, pages)
    }

    fn await_states(&mut self, batch: &[SequenceSpan<'_>]) -> Result<(), DeviceLost> {
        self.device.await_states(batch)
    }

    fn restore(&mut self, offloaded: &OffloadedState, slot: Slot, pages: &[Page]) -> Result<(), DeviceLost> {
        self.device.restore(offloaded, slot, pages)
    }
}

#[cfg(test)]
mod tests {
    use furrow_rollout::ContextPolicy;
    use furrow_telemetry::ManualTime;

    use super::*;
    use crate::device::SimulatedDevice;
    use crate::workload::SessionMix;

    #[test]
    fn a_real_device_is_driven_by_the_wall_clock() {
        let config = Config::published();
        let rates = DeviceSpec::named("h200").unwrap();
        let mix =
            SessionMix { sessions: 3, steps: 3, generated: 5, page_seconds: 0.02, ..SessionMix::default() };
        let settings = SimulatorSettings {
            mix,
            workload: None,
            keep: ContextPolicy::LastImage,
            prefill_chunk: 512,
            prefill_tokens: 1024,
            host_micros: 0,
            seconds: Some(0.3),
        };
        let capacity = required_capacity(&config, rates, &settings).unwrap();
        assert_eq!(capacity.offload_bytes, 0, "three sessions fit");
        let capacity = BackendCapacity { pages: 4 * capacity.pages, ..capacity };
        // The simulated device advances a clock that is not used here, so it takes no real time.
        let (time, hand): (TimeSource, ManualTime) = TimeSource::manual(0);
        let backend = SimulatedDevice::new(config.clone(), rates, capacity, (time.clone(), hand));
        let outcome = run_on_device(Box::new(backend), rates, &settings).unwrap();
        assert!(time.micros() > 0, "the device was driven");
        // Each session returns after the 20 ms of its page and the time of its step.
        assert!((3..=46).contains(&outcome.steps), "{outcome:?}");
        assert!((300_000..2_000_000).contains(&outcome.micros), "{outcome:?}");
    }

    #[test]
    fn sessions_that_do_not_fit_get_pinned_memory() {
        let config = Config::published();
        let rates = DeviceSpec::named("h200").unwrap();
        let mix = SessionMix { screenshot: (1440, 900), ..SessionMix::default() };
        let settings = SimulatorSettings {
            mix,
            workload: None,
            keep: ContextPolicy::Append,
            prefill_chunk: 512,
            prefill_tokens: 1024,
            host_micros: 0,
            seconds: None,
        };
        // 58 of 100 fit at their 61,000 tokens, 1.65 GB each.
        let capacity = required_capacity(&config, rates, &settings).unwrap();
        assert!((60e9..90e9).contains(&(capacity.offload_bytes as f64)), "{capacity:?}");
    }
}
