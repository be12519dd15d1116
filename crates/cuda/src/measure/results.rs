//! Every measurement of `furrow-bench gpu`, each with its lower bound at the rates of the same run.
//!
//! A lower bound is the time that the bytes or the operations of each part take one after another
//! at the device's own copy and product rates (`furrow_model::floor`), including the context of
//! attention and all weights.

use std::time::Duration;

use furrow_model::backend::{BackendCapacity, BackendError, PAGE_TOKENS};
use furrow_model::config::Config;
use furrow_model::floor::{self, DeviceSpec, ModelWork, WorkPart, seconds};

use super::capacity::widest;
use super::{BenchmarkBuffers, BenchmarkModel, DeviceRates};
use crate::backend::{BackendOptions, CudaOpenError, ModelPrecision, StagingMode};
use crate::executor::ExecutorError;

/// Parameters of the measurements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BenchmarkCases {
    pub batches: Vec<u32>,
    /// Tokens in each sequence before a decode step, ascending.
    pub contexts: Vec<u32>,
    pub screenshots: Vec<(usize, usize)>,
    /// Text tokens that come with a screenshot.
    pub text: u32,
    /// Tokens that a prefill follows.
    pub pasts: Vec<u32>,
    /// Tokens of a prefill chunk.
    pub chunk: u32,
    /// Tokens of the session that is offloaded.
    pub offloaded: u32,
}

/// A measurement and its lower bound.
#[derive(Debug, Clone, PartialEq)]
pub struct BenchmarkResult {
    pub what: String,
    /// The median time; `None` if it does not fit.
    pub taken: Option<Duration>,
    /// Seconds at the device's own rates; `None` if there is no meaningful lower bound.
    pub floor: Option<f64>,
    /// Amount of work in that time.
    pub count: f64,
    /// Unit of that work.
    pub unit: &'static str,
}

impl Default for BenchmarkCases {
    fn default() -> Self {
        Self {
            batches: vec![1, 8, 32, 64, 100, 128, 256],
            contexts: vec![0, 2048, 8192, 16_384, 30_000],
            // 3, 7 and 13 tiles by the published rule.
            screenshots: vec![(1280, 720), (1280, 800), (1024, 768)],
            text: 60,
            pasts: vec![0, 16_384],
            chunk: 2048,
            offloaded: 8192,
        }
    }
}

impl BenchmarkResult {
    /// Lower bound over time: 1 is the fastest possible.
    pub fn share(&self) -> Option<f64> {
        Some(self.floor? / self.taken?.as_secs_f64())
    }

    pub fn rate(&self) -> Option<f64> {
        Some(self.count / self.taken?.as_secs_f64())
    }
}

impl BenchmarkCases {
    /// The largest useful capacity that fits into this many bytes, for these cases.
    ///
    /// # Errors
    /// If not even one sequence of the largest context fits.
    pub fn capacity(
        &self,
        config: &Config,
        options: &BackendOptions,
        free: u64,
    ) -> Result<BackendCapacity, CudaOpenError> {
        let last = |list: &[u32]| list.last().copied().unwrap_or(1);
        let slots = last(&self.batches).max(2);
        let features = self.screenshots.iter().map(|(width, height)| self.tiles(config, *width, *height));
        let features = features.max().unwrap_or(0);
        // One state of the offloaded context, with its first and last page in full, and the unused
        // rest of its slot's last block.
        let offloaded = self.offloaded.next_multiple_of(PAGE_TOKENS as u32) + PAGE_TOKENS as u32;
        let offload_bytes = config.session_bytes(f64::from(offloaded)).ceil() as u64;
        let rows_max = self.chunk + slots;
        let logits_max = slots;
        let each = (last(&self.contexts).max(self.longest_prefill(config)) + 1).div_ceil(PAGE_TOKENS as u32);
        let capacity = BackendCapacity { slots, pages: each, rows_max, logits_max, features, offload_bytes };
        widest(config, options, free, capacity)
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

    /// Runs the measurements that need no model: the recurrence of one layer, by batch.
    ///
    /// # Errors
    /// If the device fails.
    pub fn measure_alone(
        &self,
        config: &Config,
        buffers: &mut BenchmarkBuffers<'_>,
        rates: DeviceRates,
        report: &mut dyn FnMut(&BenchmarkResult),
    ) -> Result<(), ExecutorError> {
        let ssm = &config.text.ssm;
        for batch in &self.batches {
            let count = f64::from(*batch);
            // States in float32, read and written; also x, B, C, dt and y in bfloat16.
            let values = ssm.conv_width() + ssm.heads + ssm.inner();
            let bytes = count * (8 * ssm.inner() * ssm.state + 2 * values) as f64;
            report(&BenchmarkResult {
                what: format!("state update, batch {batch}"),
                taken: buffers.state_update(ssm, *batch)?,
                floor: Some(bytes / rates.bandwidth),
                count,
                unit: "tokens/s",
            });
        }
        Ok(())
    }

    /// Repeats some of the measurements on a model that was opened with other options, which
    /// `label` names, to show their cost.
    ///
    /// # Errors
    /// If the device fails.
    pub fn measure_with(
        &self,
        label: &str,
        subject: &mut BenchmarkModel,
        rates: DeviceRates,
        report: &mut dyn FnMut(&BenchmarkResult),
    ) -> Result<(), BackendError> {
        let config = subject.device().config().clone();
        let mut named = |result: &BenchmarkResult| {
            report(&BenchmarkResult { what: format!("{}, {label}", result.what), ..result.clone() });
        };
        let mut taking = BenchmarkRun { config, subject, device: rates.device(0), report: &mut named };
        // The second context represents sessions that have begun.
        if let Some(context) = self.contexts.get(1).or(self.contexts.first()) {
            for batch in &self.batches {
                taking.decode(*batch, *context)?;
            }
        }
        let Some((width, height)) = self.screenshots.first() else { return Ok(()) };
        let new = taking.config.screenshot_tokens(*width, *height) as u32 + self.text;
        taking.prefill(new, 0, self.chunk)
    }

    /// The result for swapping all weights from where they were staged.
    pub fn swap_result(
        config: &Config,
        rates: DeviceRates,
        stage: StagingMode,
        taken: Option<Duration>,
    ) -> BenchmarkResult {
        let bytes = config.weight_bytes();
        // The bus rate is not measured, so there is no lower bound.
        let (staged_on, floor) = match stage {
            StagingMode::Host => ("the host", None),
            StagingMode::Device | StagingMode::None => ("the device", Some(2.0 * bytes / rates.bandwidth)),
        };
        let what = format!("swap of all weights, staged on {staged_on}");
        BenchmarkResult { what, taken, floor, count: bytes / 1e9, unit: "GB/s" }
    }

    /// Runs every measurement; calls `report` with each as soon as it is complete.
    ///
    /// # Errors
    /// If the device fails.
    pub fn measure(
        &self,
        subject: &mut BenchmarkModel,
        rates: DeviceRates,
        report: &mut dyn FnMut(&BenchmarkResult),
    ) -> Result<(), BackendError> {
        let config = subject.device().config().clone();
        let mut taking = BenchmarkRun { config, subject, device: rates.device(0), report };
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
        taking.offload(self.offloaded)?;
        Ok(())
    }
}

impl DeviceRates {
    /// The device for lower bounds, with this many bytes of memory.
    pub fn device(self, memory: u64) -> DeviceSpec {
        let Self { bandwidth, flops } = self;
        DeviceSpec {
            name: "this one",
            bandwidth,
            flops,
            memory: memory as f64,
            source: "measured in this run",
        }
    }
}

struct BenchmarkRun<'a> {
    config: Config,
    subject: &'a mut BenchmarkModel,
    device: DeviceSpec,
    report: &'a mut dyn FnMut(&BenchmarkResult),
}

impl BenchmarkRun<'_> {
    fn report_result(
        &mut self,
        what: String,
        taken: Option<Duration>,
        parts: Option<&[WorkPart]>,
        count: f64,
        unit: &'static str,
    ) {
        let floor = parts.map(|parts| seconds(parts, &self.device));
        (self.report)(&BenchmarkResult { what, taken, floor, count, unit });
    }

    fn decode(&mut self, batch: u32, context: u32) -> Result<(), BackendError> {
        let taken = self.subject.decode(batch, context)?;
        let mut parts = self.config.decode(f64::from(batch), f64::from(context));
        if self.subject.precision() == ModelPrecision::NarrowState {
            // bfloat16 where the lower bound assumes float32.
            let states = parts.iter_mut().filter(|part| part.name == floor::STATES);
            states.for_each(|part| part.bytes /= 2.0);
        }
        let what = format!("decode, batch {batch}, context {context}");
        self.report_result(what, taken, Some(&parts), f64::from(batch), "tokens/s");
        Ok(())
    }

    fn vision(&mut self, width: usize, height: usize, tiles: u32) -> Result<(), BackendError> {
        let taken = self.subject.vision(tiles)?;
        let parts = self.config.vision(width, height);
        let what = format!("vision, {width}x{height}, {tiles} tiles");
        self.report_result(what, taken, Some(&parts), f64::from(tiles), "tiles/s");
        Ok(())
    }

    fn prefill(&mut self, new: u32, past: u32, chunk: u32) -> Result<(), BackendError> {
        let taken = self.subject.prefill(new, past, chunk)?;
        let parts = self.config.prefill(f64::from(new), f64::from(past));
        let what = format!("prefill, {new} tokens behind {past}");
        self.report_result(what, taken, Some(&parts), f64::from(new), "tokens/s");
        Ok(())
    }

    fn fork(&mut self) -> Result<(), BackendError> {
        let taken = self.subject.fork()?;
        let bytes = 2.0 * self.config.session_bytes(0.0);
        let parts = [WorkPart { name: "state, read and written", bytes, flops: 0.0 }];
        self.report_result("fork of a state".to_owned(), taken, Some(&parts), 1.0, "forks/s");
        Ok(())
    }

    /// To host memory and back. The bus rate is not measured, so there is no lower bound.
    fn offload(&mut self, context: u32) -> Result<(), BackendError> {
        let gigabytes = self.config.session_bytes(f64::from(context)) / 1e9;
        let both = self.subject.offload(context)?;
        for (way, taken) in [("to", both.map(|both| both[0])), ("from", both.map(|both| both[1]))] {
            let what = format!("a session of {context} tokens {way} host memory");
            self.report_result(what, taken, None, gigabytes, "GB/s");
        }
        Ok(())
    }
}
