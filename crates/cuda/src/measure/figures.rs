//! Every figure that `furrow bench gpu` prints, each beside its floor at the rates of the same run.
//!
//! A floor is the time that the bytes or the operations of each part take one after another at the device's own copy and product rates
//! (`furrow_model::floor`), the attention's context and all weights included.

use std::time::Duration;

use furrow_model::backend::{BackendError, PAGE_TOKENS, Room};
use furrow_model::config::Config;
use furrow_model::floor::{self, Device, Part, Work, seconds};

use super::{Rates, Subject, Yard};
use crate::backend::{self, OpenError, Options, Precision, Stage};
use crate::executor::ExecutorError;

/// What is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cases {
    /// Decode batches, ascending.
    pub batches: Vec<u32>,
    /// Tokens in each sequence before a decode step, ascending.
    pub contexts: Vec<u32>,
    /// Sizes of screenshots.
    pub screenshots: Vec<(usize, usize)>,
    /// Text tokens that come with a screenshot.
    pub text: u32,
    /// Tokens that a prefill follows.
    pub pasts: Vec<u32>,
    /// Tokens of a prefill chunk.
    pub chunk: u32,
    /// Tokens of the session that is parked.
    pub parked: u32,
}

/// A figure and what stands against it.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// What was timed.
    pub what: String,
    /// The median; `None` where it does not fit.
    pub taken: Option<Duration>,
    /// Seconds at the device's own rates; `None` where there is no floor to speak of.
    pub floor: Option<f64>,
    /// What was done in that time.
    pub count: f64,
    /// Of what.
    pub unit: &'static str,
}

impl Default for Cases {
    fn default() -> Self {
        Self {
            batches: vec![1, 8, 32, 64, 100, 128, 256],
            contexts: vec![0, 2048, 8192, 16_384, 30_000],
            // 3, 7 and 13 tiles by the published rule.
            screenshots: vec![(1280, 720), (1280, 800), (1024, 768)],
            text: 60,
            pasts: vec![0, 16_384],
            chunk: 2048,
            parked: 8192,
        }
    }
}

impl Figure {
    /// Floor over time: 1 is as fast as the device can be.
    pub fn share(&self) -> Option<f64> {
        Some(self.floor? / self.taken?.as_secs_f64())
    }

    /// Done a second.
    pub fn rate(&self) -> Option<f64> {
        Some(self.count / self.taken?.as_secs_f64())
    }
}

impl Cases {
    /// The largest room of use that fits into so many bytes, for these cases.
    ///
    /// # Errors
    /// When not even one sequence of the largest context fits.
    pub fn room(&self, config: &Config, options: &Options, free: u64) -> Result<Room, OpenError> {
        let last = |list: &[u32]| list.last().copied().unwrap_or(1);
        let slots = last(&self.batches).max(2);
        let features = self.screenshots.iter().map(|(width, height)| self.tiles(config, *width, *height));
        let features = features.max().unwrap_or(0);
        // One state of the context that is parked, the pages it begins and ends in full, and what its slot leaves of a block.
        let parked = self.parked.next_multiple_of(PAGE_TOKENS as u32) + PAGE_TOKENS as u32;
        let parked_bytes = config.session_bytes(f64::from(parked)).ceil() as u64;
        let (rows_max, logits_max) = (self.chunk + slots, slots);
        let each = (last(&self.contexts).max(self.longest_prefill(config)) + 1).div_ceil(PAGE_TOKENS as u32);
        let room = Room { slots, pages: each, rows_max, logits_max, features, parked_bytes };
        widest(config, options, free, room)
    }

    fn longest_prefill(&self, config: &Config) -> u32 {
        let rows = self.screenshots.iter().map(|(width, height)| config.screenshot_tokens(*width, *height));
        let past = self.pasts.iter().max().copied().unwrap_or(0);
        past + self.text + rows.max().unwrap_or(0) as u32
    }

    fn tiles(&self, config: &Config, width: usize, height: usize) -> u32 {
        let rows = config.vision.as_ref().map_or(1, furrow_model::config::VisionConfig::rows_per_tile);
        (config.screenshot_tokens(width, height) / rows) as u32
    }

    /// Takes the figures that need no model: the recurrence of one layer by batch.
    ///
    /// # Errors
    /// When the device fails.
    pub fn measure_alone(
        &self,
        config: &Config,
        yard: &mut Yard<'_>,
        rates: Rates,
        tell: &mut dyn FnMut(&Figure),
    ) -> Result<(), ExecutorError> {
        let ssm = &config.text.ssm;
        for batch in &self.batches {
            let count = f64::from(*batch);
            // States in float32 both ways; x, B, C, dt and y in bfloat16 beside them.
            let values = ssm.conv_width() + ssm.heads + ssm.inner();
            let bytes = count * (8 * ssm.inner() * ssm.state + 2 * values) as f64;
            tell(&Figure {
                what: format!("state update, batch {batch}"),
                taken: yard.state_update(ssm, *batch)?,
                floor: Some(bytes / rates.bandwidth),
                count,
                unit: "tokens/s",
            });
        }
        Ok(())
    }

    /// Takes some of the same figures of a subject that was opened with other options, which `label` names: what they cost.
    ///
    /// # Errors
    /// When the device fails.
    pub fn measure_with(
        &self,
        label: &str,
        subject: &mut Subject,
        rates: Rates,
        tell: &mut dyn FnMut(&Figure),
    ) -> Result<(), BackendError> {
        let config = subject.device().config().clone();
        let mut named = |figure: &Figure| {
            tell(&Figure { what: format!("{}, {label}", figure.what), ..figure.clone() });
        };
        let mut taking = Taking { config, subject, device: rates.device(0), tell: &mut named };
        // The second context: of sessions that have begun.
        if let Some(context) = self.contexts.get(1).or(self.contexts.first()) {
            for batch in &self.batches {
                taking.decode(*batch, *context)?;
            }
        }
        let Some((width, height)) = self.screenshots.first() else { return Ok(()) };
        let new = taking.config.screenshot_tokens(*width, *height) as u32 + self.text;
        taking.prefill(new, 0, self.chunk)
    }

    /// What swapping all weights took, from where they were staged.
    pub fn swapped(config: &Config, rates: Rates, stage: Stage, taken: Option<Duration>) -> Figure {
        let bytes = config.weight_bytes();
        // A bus that nobody measured has no floor.
        let (place, floor) = match stage {
            Stage::Host => ("the host", None),
            Stage::Device | Stage::None => ("the device", Some(2.0 * bytes / rates.bandwidth)),
        };
        let what = format!("swap of all weights, staged on {place}");
        Figure { what, taken, floor, count: bytes / 1e9, unit: "GB/s" }
    }

    /// Takes every figure; `tell` hears each as soon as it is there.
    ///
    /// # Errors
    /// When the device fails.
    pub fn measure(
        &self,
        subject: &mut Subject,
        rates: Rates,
        tell: &mut dyn FnMut(&Figure),
    ) -> Result<(), BackendError> {
        let config = subject.device().config().clone();
        let mut taking = Taking { config, subject, device: rates.device(0), tell };
        for context in &self.contexts {
            for batch in &self.batches {
                taking.decode(*batch, *context)?;
            }
        }
        for (width, height) in &self.screenshots {
            let tiles = self.tiles(&taking.config, *width, *height);
            if tiles > 0 {
                taking.vision(*width, *height, tiles)?;
            }
            let new = taking.config.screenshot_tokens(*width, *height) as u32 + self.text;
            for past in &self.pasts {
                taking.prefill(new, *past, self.chunk)?;
            }
        }
        taking.fork()?;
        taking.park(self.parked)?;
        Ok(())
    }
}

/// The room with the most pages that fit into so many bytes: from those it has, to as many for every slot.
///
/// # Errors
/// When not even those it has fit.
pub(super) fn widest(config: &Config, options: &Options, free: u64, room: Room) -> Result<Room, OpenError> {
    let (each, with) = (room.pages, |pages| Room { pages, ..room });
    let fits = |pages| Ok::<_, OpenError>(backend::plan(config, &with(pages), options)?.total() <= free);
    if !fits(each)? {
        let asked = backend::plan(config, &room, options)?;
        return Err(OpenError::Full { asked, free });
    }
    // Between what fits and what nobody needs: halved until a sequence's pages are left.
    let (mut low, mut high) = (each, each.saturating_mul(room.slots));
    if fits(high)? {
        return Ok(with(high));
    }
    while high - low > each {
        let middle = low + (high - low) / 2;
        if fits(middle)? { low = middle } else { high = middle }
    }
    Ok(with(low))
}

impl Rates {
    /// The device of a floor, with so many bytes of memory.
    pub fn device(self, memory: u64) -> Device {
        let Self { bandwidth, flops } = self;
        Device { name: "this one", bandwidth, flops, memory: memory as f64, source: "measured in this run" }
    }
}

/// Figures being taken.
struct Taking<'a> {
    config: Config,
    subject: &'a mut Subject,
    device: Device,
    tell: &'a mut dyn FnMut(&Figure),
}

impl Taking<'_> {
    fn told(
        &mut self,
        what: String,
        taken: Option<Duration>,
        parts: Option<&[Part]>,
        count: f64,
        unit: &'static str,
    ) {
        let floor = parts.map(|parts| seconds(parts, &self.device));
        (self.tell)(&Figure { what, taken, floor, count, unit });
    }

    fn decode(&mut self, batch: u32, context: u32) -> Result<(), BackendError> {
        let taken = self.subject.decode(batch, context)?;
        let mut parts = self.config.decode(f64::from(batch), f64::from(context));
        if self.subject.precision() == Precision::NarrowState {
            // bfloat16 where the floor has float32.
            let states = parts.iter_mut().filter(|part| part.name == floor::STATES);
            states.for_each(|part| part.bytes /= 2.0);
        }
        let what = format!("decode, batch {batch}, context {context}");
        self.told(what, taken, Some(&parts), f64::from(batch), "tokens/s");
        Ok(())
    }

    fn vision(&mut self, width: usize, height: usize, tiles: u32) -> Result<(), BackendError> {
        let taken = self.subject.vision(tiles)?;
        let parts = self.config.vision(width, height);
        let what = format!("vision, {width}x{height}, {tiles} tiles");
        self.told(what, taken, Some(&parts), f64::from(tiles), "tiles/s");
        Ok(())
    }

    fn prefill(&mut self, new: u32, past: u32, chunk: u32) -> Result<(), BackendError> {
        let taken = self.subject.prefill(new, past, chunk)?;
        let parts = self.config.prefill(f64::from(new), f64::from(past));
        let what = format!("prefill, {new} tokens behind {past}");
        self.told(what, taken, Some(&parts), f64::from(new), "tokens/s");
        Ok(())
    }

    fn fork(&mut self) -> Result<(), BackendError> {
        let taken = self.subject.fork()?;
        let bytes = 2.0 * self.config.session_bytes(0.0);
        let parts = [Part { name: "state, read and written", bytes, flops: 0.0 }];
        self.told("fork of a state".to_owned(), taken, Some(&parts), 1.0, "forks/s");
        Ok(())
    }

    /// To host memory and back: over a bus that nobody measured, so without a floor.
    fn park(&mut self, context: u32) -> Result<(), BackendError> {
        let gigabytes = self.config.session_bytes(f64::from(context)) / 1e9;
        let both = self.subject.park(context)?;
        for (way, taken) in [("to", both.map(|both| both[0])), ("from", both.map(|both| both[1]))] {
            let what = format!("a session of {context} tokens {way} host memory");
            self.told(what, taken, None, gigabytes, "GB/s");
        }
        Ok(())
    }
}
