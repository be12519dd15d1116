//! The same loop in front of a device that is there, by the wall clock: what engine and device reach together.
//!
//! Sessions are aged as in the twin. Their past is not computed, for nobody reads what comes of it, and whole trajectories of 100 sessions would take a device
//! minutes. Whatever is drawn counts as the twin's own token, so replies are as long as they should be. Tiles are noise made before; where pages are
//! seen, the policy worker has tiles ready when the engine hears of a step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use furrow_cuda::measure::noise_tile;
use furrow_model::backend::{
    Backend, BackendError, DeviceLost, Feature, PAGE_TOKENS, Page, Parked, Room, Slot, Span,
};
use furrow_model::config::Config;
use furrow_model::floor::{Device, Rollout, Work};
use furrow_model::sample::{Pick, Picked};
use furrow_model::vision::Tile;
use furrow_telemetry::TimeSource;

use super::device::drawn;
use super::{Clock, Outcome, TwinError, TwinSettings, World};

/// Rounds of the sessions before they are watched: they begin spread evenly.
const WARM_UP: u32 = 2;
/// Tiles that are made: more than a batch shows.
const TILES: usize = 32;

/// What the sessions need of a device that has `rates.memory` bytes: state slots, pages for one session at its longest (more of them for more), pinned memory for
/// the sessions that do not fit at their longest.
///
/// # Errors
/// As [`super::simulate`].
pub fn needs(config: &Config, rates: &Device, settings: &TwinSettings) -> Result<Room, TwinError> {
    let floor = settings.floor(config, rates, (Rollout::floor, Rollout::floor_of))?;
    let longest = floor.context_max + f64::from(settings.spare_tokens()) + (8 * PAGE_TOKENS) as f64;
    let sessions = settings.mix.sessions as u64;
    // Some fewer: the engine keeps pages for one session more than it holds, and workspaces differ.
    let fit = config.sessions_that_fit(rates, longest).saturating_sub(4).min(sessions);
    let parked_bytes = (sessions - fit) as f64 * config.session_bytes(longest);
    let pages = (2.0 * longest / PAGE_TOKENS as f64).ceil() as u32;
    let room = settings.room(config, rates, &floor);
    Ok(Room { pages, features: 256, parked_bytes: parked_bytes as u64, ..room })
}

/// Runs engine and device until they have been watched for so long. The floor is that of one thing after another.
///
/// # Errors
/// When they do not fit each other, or a step is not answered.
pub fn rehearse(
    device: Box<dyn Backend>,
    rates: &Device,
    settings: &TwinSettings,
) -> Result<Outcome, TwinError> {
    let floor = settings.floor(device.config(), rates, (Rollout::floor, Rollout::floor_of))?;
    let clock = Clock { time: TimeSource::system(), hand: None };
    let (stage, ages) = Stage::new(device);
    let world = World::new(Box::new(stage), clock, settings, &floor)?;
    ages.store(false, Ordering::Relaxed);
    world.watch(settings, floor, WARM_UP)
}

/// The device, with what the loop needs of it and nothing of what it says.
struct Stage {
    device: Box<dyn Backend>,
    /// The past is laid: nothing is computed.
    ages: Arc<AtomicBool>,
    tiles: Vec<Tile>,
}

impl Stage {
    fn new(device: Box<dyn Backend>) -> (Self, Arc<AtomicBool>) {
        let side = device.config().vision.as_ref().map_or(0, |vision| vision.tile);
        let ages = Arc::new(AtomicBool::new(true));
        let tiles = (0..TILES).map(|number| noise_tile(number as u32, side)).collect();
        (Self { device, ages: ages.clone(), tiles }, ages)
    }
}

impl Backend for Stage {
    fn config(&self) -> &Config {
        self.device.config()
    }

    fn room(&self) -> Room {
        self.device.room()
    }

    /// As many of the tiles that are there: those that are shown have no pixels.
    fn encode(&mut self, tiles: &[Tile]) -> Result<Vec<Feature>, BackendError> {
        let mut features = Vec::with_capacity(tiles.len());
        for tiles in tiles.chunks(TILES) {
            features.extend(self.device.encode(&self.tiles[..tiles.len()])?);
        }
        Ok(features)
    }

    fn encodes_beside(&self) -> bool {
        self.device.encodes_beside()
    }

    fn await_tiles(&mut self) -> Result<(), DeviceLost> {
        self.device.await_tiles()
    }

    fn release(&mut self, features: &[Feature]) {
        self.device.release(features);
    }

    fn run(&mut self, batch: &[Span<'_>]) -> Result<(), BackendError> {
        if self.ages.load(Ordering::Relaxed) { Ok(()) } else { self.device.run(batch) }
    }

    fn logits(&mut self, row: u32) -> Result<&[f32], DeviceLost> {
        self.device.logits(row)
    }

    fn sample(&mut self, picks: &[Pick<'_>]) -> Result<Vec<Picked>, DeviceLost> {
        if !self.ages.load(Ordering::Relaxed) {
            self.device.sample(picks)?;
        }
        Ok(picks.iter().map(|_| drawn()).collect())
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

    fn parked_bytes(&self, pages: u32) -> u64 {
        self.device.parked_bytes(pages)
    }

    fn park(&mut self, slot: Slot, pages: &[Page]) -> Result<Option<Parked>, DeviceLost> {
        self.device.park(slot, pages)
    }

    fn is_moving(&mut self, slot: Slot, pages: &[Page]) -> Result<bool, DeviceLost> {
        self.device.is_moving(slot, pages)
    }

    fn await_states(&mut self, batch: &[Span<'_>]) -> Result<(), DeviceLost> {
        self.device.await_states(batch)
    }

    fn restore(&mut self, parked: &Parked, slot: Slot, pages: &[Page]) -> Result<(), DeviceLost> {
        self.device.restore(parked, slot, pages)
    }
}

#[cfg(test)]
mod tests {
    use furrow_rollout::ContextPolicy;
    use furrow_telemetry::ManualTime;

    use super::super::device::Air;
    use super::*;
    use furrow_model::floor::Mix;

    #[test]
    fn a_device_that_is_there_is_driven_by_the_wall_clock() {
        let config = Config::published();
        let rates = Device::named("h200").unwrap();
        let mix = Mix { sessions: 3, steps: 3, generated: 5, page_seconds: 0.02, ..Mix::default() };
        let settings = TwinSettings {
            mix,
            workload: None,
            keep: ContextPolicy::LastImage,
            prefill_chunk: 512,
            prefill_tokens: 1024,
            host_micros: 0,
            seconds: Some(0.3),
        };
        let room = needs(&config, rates, &settings).unwrap();
        assert_eq!(room.parked_bytes, 0, "three sessions fit");
        let room = Room { pages: 4 * room.pages, ..room };
        // It moves a hand that nobody looks at, so to the wall clock it takes no time.
        let (time, hand): (TimeSource, ManualTime) = TimeSource::manual(0);
        let air = Air::new(config.clone(), rates, room, (time.clone(), hand));
        let outcome = rehearse(Box::new(air), rates, &settings).unwrap();
        assert!(time.micros() > 0, "the device was driven");
        // Each session comes round in the 20 ms of its page and the time that this takes.
        assert!((3..=46).contains(&outcome.steps), "{outcome:?}");
        assert!((300_000..2_000_000).contains(&outcome.micros), "{outcome:?}");
    }

    #[test]
    fn sessions_that_do_not_fit_have_pinned_memory_to_wait_in() {
        let config = Config::published();
        let rates = Device::named("h200").unwrap();
        let mix = Mix { screenshot: (1440, 900), ..Mix::default() };
        let settings = TwinSettings {
            mix,
            workload: None,
            keep: ContextPolicy::Append,
            prefill_chunk: 512,
            prefill_tokens: 1024,
            host_micros: 0,
            seconds: None,
        };
        // 58 of 100 fit at their 61,000 tokens, 1.65 GB each.
        let room = needs(&config, rates, &settings).unwrap();
        assert!((60e9..90e9).contains(&(room.parked_bytes as f64)), "{room:?}");
    }
}
