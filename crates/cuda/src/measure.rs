//! Measures the backend against the hardware's lower bounds: weights of noise, batches of a chosen
//! shape, timed from outside.
//!
//! Timing does not depend on values, so no checkpoint is needed: the shapes of a configuration are
//! enough. Each result is the median of several runs after uncounted ones, the first of which load
//! code and record graphs.

mod capacity;
mod results;

use std::time::{Duration, Instant};

use furrow_model::backend::{
    self, Backend, BackendCapacity, BackendError, DeviceLost, LogitRows, PAGE_TOKENS, Page, Slot,
};
use furrow_model::checkpoint::chain;
use furrow_model::config::{Config, SsmConfig};
use furrow_model::sample::SampleRequest;
use furrow_model::vision::ImageTile;
use half::bf16;

use self::capacity::widest;
pub use self::results::{BenchmarkCases, BenchmarkResult};
use crate::arena::BufferAllocator;
use crate::backend::{
    BackendOptions, CudaOpenError, DeviceBackend, ModelPrecision, StagingMode, SwapError, open_noise,
};
use crate::executor::{DeviceMatrix, ExecutionLane, Executor, ExecutorError};
use crate::launch::{CopyMove, DeviceView, RowSpan};
use crate::ops::copy::{CopyLaunch, CopyRegion};
use crate::ops::ssm::SsmRecurrence;
use crate::ops::{DeviceRows, DeviceSlots, PACK};
use crate::weights::LoadError;

/// Runs before those that count: one loads what is loaded lazily, one records, one replays.
const WARM_UP: usize = 3;

/// Rates that a device reaches, measured in the same run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceRates {
    /// Bytes a second, read and written, of a large copy.
    pub bandwidth: f64,
    /// Operations a second of a large product in bfloat16.
    pub flops: f64,
}

/// Sizes of the copy and the product that determine the rates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReferenceSizes {
    /// Bytes to copy: far more than caches hold.
    pub bytes: usize,
    /// Side of the square matrices.
    pub side: usize,
}

impl Default for ReferenceSizes {
    fn default() -> Self {
        // 1 GiB each way is 0.5 ms of an H200; 8192^3 x 2 is 1.1 TFLOP, 1.4 ms.
        Self { bytes: 1 << 30, side: 8192 }
    }
}

/// Device memory for measurements without a model. It stays allocated.
pub struct BenchmarkBuffers<'a> {
    executor: &'a mut dyn Executor,
    reference: ReferenceSizes,
    memory: DeviceView<u8>,
    times: usize,
}

impl<'a> BenchmarkBuffers<'a> {
    /// Allocates memory for the reference sizes.
    ///
    /// # Errors
    /// If the device fails or has too little memory.
    pub fn open(
        executor: &'a mut dyn Executor,
        reference: ReferenceSizes,
        times: usize,
    ) -> Result<Self, ExecutorError> {
        let ReferenceSizes { bytes, side } = reference;
        let capacity = (2 * bytes).max(3 * side * side * size_of::<bf16>()) + 256;
        let memory = DeviceView::new(executor.allocate(capacity as u64)?, capacity);
        Ok(Self { executor, reference, memory, times })
    }

    /// Measures a device's own rates.
    ///
    /// # Errors
    /// If the device fails.
    pub fn rates(&mut self) -> Result<DeviceRates, ExecutorError> {
        let ReferenceSizes { bytes, side } = self.reference;
        let values = side * side;
        let address = self.memory.address();
        let one = DeviceView::<CopyMove>::new(address + self.memory.len() as u64 - 256, 1);
        self.executor.upload(
            ExecutionLane::Batch,
            bytemuck::bytes_of(&CopyMove { from: 0, to: 0 }),
            one.address(),
        )?;
        let region = |number: usize| CopyRegion {
            bytes: DeviceView::new(address + (number * bytes) as u64, bytes),
            stride: bytes,
        };
        let copy = CopyLaunch { from: Some(region(0)), to: region(1), moves: one, bytes }.launch();
        let copied =
            median(self.executor, self.times, |executor| executor.launch(ExecutionLane::Batch, &copy))?;

        fill(self.executor, DeviceView::<bf16>::new(address, 2 * values))?;
        let matrix = |number: usize| DeviceView::<bf16>::new(address + (number * values * 2) as u64, values);
        let weight = DeviceMatrix { values: matrix(0), wide: None, outputs: side, inputs: side };
        let rows = |number| DeviceRows { values: matrix(number), stride: side };
        let product = weight.product(side, rows(1), rows(2));
        let multiplied =
            median(self.executor, self.times, |executor| executor.multiply(ExecutionLane::Batch, &product))?;
        Ok(DeviceRates {
            bandwidth: 2.0 * bytes as f64 / copied.as_secs_f64(),
            flops: 2.0 * (side as f64).powi(3) / multiplied.as_secs_f64(),
        })
    }

    /// Times one layer's recurrence for one new token of each of `batch` sequences, states in
    /// float32; `None` if they do not fit.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn state_update(
        &mut self,
        ssm: &SsmConfig,
        batch: u32,
    ) -> Result<Option<Duration>, ExecutorError> {
        let count = batch as usize;
        let mut allocator = BufferAllocator::at(self.memory.address());
        let mut of_heads = || allocator.take::<f32>("", ssm.heads);
        let [dt_bias, a, d] = [of_heads(), of_heads(), of_heads()];
        let width = ssm.conv_width();
        let kept = ssm.inner() * ssm.state;
        let dt_stride = ssm.heads.next_multiple_of(PACK);
        let mixed = DeviceRows { values: allocator.take::<bf16>("", count * width), stride: width };
        let dt = DeviceRows { values: allocator.take::<bf16>("", count * dt_stride), stride: dt_stride };
        let spans = allocator.take::<RowSpan>("", count);
        let small = allocator.next() - self.memory.address();
        let state = DeviceSlots { values: allocator.take::<f32>("", count * kept), stride: kept };
        let out = allocator.take::<bf16>("", count * ssm.inner());
        if allocator.next() > self.memory.address() + self.memory.len() as u64 {
            return Ok(None);
        }
        let span = |number| RowSpan { base: number, length: 1, start: 1, slot: number };
        let all: Vec<RowSpan> = (0..batch).map(span).collect();
        let zeros = vec![0; usize::try_from(small).unwrap_or(0)];
        self.executor.upload(ExecutionLane::Batch, &zeros, self.memory.address())?;
        self.executor.upload(ExecutionLane::Batch, bytemuck::cast_slice(&all), spans.address())?;
        let config = ssm;
        let launch = SsmRecurrence { config, mixed, dt, dt_bias, a, d, state, spans, out }.launch();
        median(self.executor, self.times, |executor| executor.launch(ExecutionLane::Batch, &launch)).map(Some)
    }
}

/// Times the swap to staged weights of noise, between waits for all earlier and later work; `None`
/// if two sets do not fit. Drops the executor and its memory.
///
/// # Errors
/// If the device fails.
pub fn measure_swap(
    config: &Config,
    stage: StagingMode,
    executor: Box<dyn Executor>,
    times: usize,
) -> Result<Option<Duration>, SwapError> {
    let capacity =
        BackendCapacity { slots: 1, pages: 1, rows_max: 1, logits_max: 1, features: 1, offload_bytes: 0 };
    let options = BackendOptions { stage, ..BackendOptions::default() };
    let mut subject = match BenchmarkModel::open(config, capacity, options, executor, times) {
        Ok(subject) => subject,
        Err(CudaOpenError::Full { .. } | CudaOpenError::HostFull { .. }) => return Ok(None),
        Err(CudaOpenError::Load(LoadError::Checkpoint(refused)) | CudaOpenError::Checkpoint(refused)) => {
            return Err(refused.into());
        }
        Err(CudaOpenError::Load(LoadError::Executor(error)) | CudaOpenError::Executor(error)) => {
            return Err(DeviceLost(chain(&error)).into());
        }
        Err(CudaOpenError::Device(lost)) => return Err(lost.into()),
        Err(_) => return Err(SwapError::OtherModel),
    };
    let mut taken = Vec::with_capacity(times);
    for time in 0..WARM_UP + times {
        let begin = Instant::now();
        subject.device.swap_weights()?;
        subject.device.wait()?;
        if time >= WARM_UP {
            taken.push(begin.elapsed());
        }
    }
    Ok(Some(middle(taken)))
}

/// Opens a model of noise with as many pages as fit, and with at least this `capacity`.
///
/// # Errors
/// As opening a checkpoint.
pub fn open_widest(
    config: &Config,
    capacity: BackendCapacity,
    options: BackendOptions,
    mut executor: Box<dyn Executor>,
) -> Result<Box<dyn Backend>, CudaOpenError> {
    let free = executor.free_bytes()?;
    let capacity = widest(config, &options, free, capacity)?;
    Ok(open_noise(config, capacity, options, executor)?)
}

/// Small numbers everywhere: a product of zeros takes less power, and therefore runs faster than
/// any other.
fn fill(executor: &mut dyn Executor, to: DeviceView<bf16>) -> Result<(), ExecutorError> {
    let block: Vec<bf16> = (0..1_u32 << 16)
        .map(|i| bf16::from_f32((i.wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0))
        .collect();
    for first in (0..to.len()).step_by(block.len()) {
        let count = block.len().min(to.len() - first);
        executor.upload(
            ExecutionLane::Batch,
            bytemuck::cast_slice(&block[..count]),
            to.from(first).address(),
        )?;
    }
    Ok(())
}

fn median(
    executor: &mut dyn Executor,
    times: usize,
    mut work: impl FnMut(&mut dyn Executor) -> Result<(), ExecutorError>,
) -> Result<Duration, ExecutorError> {
    let mut taken = Vec::with_capacity(times);
    for time in 0..WARM_UP + times {
        executor.wait()?;
        let begin = Instant::now();
        work(executor)?;
        executor.wait()?;
        if time >= WARM_UP {
            taken.push(begin.elapsed());
        }
    }
    Ok(middle(taken))
}

fn middle(mut taken: Vec<Duration>) -> Duration {
    taken.sort_unstable();
    taken.get(taken.len() / 2).copied().unwrap_or_default()
}

/// A model of noise on a device, for timing.
#[derive(Debug)]
pub struct BenchmarkModel {
    device: Box<dyn DeviceBackend>,
    precision: ModelPrecision,
    times: usize,
}

impl BenchmarkModel {
    /// Opens a model in bfloat16 from its configuration alone.
    ///
    /// # Errors
    /// As opening a checkpoint.
    pub fn open(
        config: &Config,
        capacity: BackendCapacity,
        options: BackendOptions,
        executor: Box<dyn Executor>,
        times: usize,
    ) -> Result<Self, CudaOpenError> {
        let precision = options.precision;
        Ok(Self { device: open_noise(config, capacity, options, executor)?, precision, times })
    }

    /// Precision that it is computed in.
    pub fn precision(&self) -> ModelPrecision {
        self.precision
    }

    /// Its device memory by part.
    pub fn device(&self) -> &dyn DeviceBackend {
        &*self.device
    }

    /// Times one decode step of `batch` sequences of `context` tokens, including sampling; `None`
    /// if they do not fit.
    ///
    /// # Errors
    /// If the device fails.
    pub fn decode(&mut self, batch: u32, context: u32) -> Result<Option<Duration>, BackendError> {
        let capacity = self.device.capacity();
        let each = (context + 1).div_ceil(PAGE_TOKENS as u32);
        let fits = batch <= capacity.slots
            && batch <= capacity.logits_max
            && batch.saturating_mul(each) <= capacity.pages;
        if !fits {
            return Ok(None);
        }
        let pages: Vec<Page> = (0..batch * each).map(Page).collect();
        let span = |(slot, pages)| backend::SequenceSpan {
            slot: Slot(slot),
            pages,
            start: context,
            tokens: &[1],
            insets: &[],
            want: LogitRows::Last,
        };
        let spans: Vec<backend::SequenceSpan<'_>> =
            (0..batch).zip(pages.chunks_exact(each as usize)).map(span).collect();
        let picks: Vec<SampleRequest<'_>> = (0..batch).map(sample_request).collect();
        self.median(|device| {
            device.run(&spans)?;
            device.sample(&picks)?;
            Ok(())
        })
        .map(Some)
    }

    /// Times a prefill of `new` tokens after `past` of one sequence, in pieces of `chunk`, and the
    /// first sampled token.
    ///
    /// # Errors
    /// If the device fails.
    pub fn prefill(&mut self, new: u32, past: u32, chunk: u32) -> Result<Option<Duration>, BackendError> {
        let capacity = self.device.capacity();
        let pages: Vec<Page> = (0..(past + new).div_ceil(PAGE_TOKENS as u32)).map(Page).collect();
        if pages.len() > capacity.pages as usize || chunk > capacity.rows_max || chunk == 0 {
            return Ok(None);
        }
        let tokens = vec![1; chunk as usize];
        self.median(|device| {
            let mut done = 0;
            while done < new {
                let count = chunk.min(new - done);
                let want = if done + count == new { LogitRows::Last } else { LogitRows::Nothing };
                let start = past + done;
                let tokens = &tokens[..count as usize];
                device.run(&[backend::SequenceSpan {
                    slot: Slot(0),
                    pages: &pages,
                    start,
                    tokens,
                    insets: &[],
                    want,
                }])?;
                done += count;
            }
            device.sample(&[sample_request(0)])?;
            Ok(())
        })
        .map(Some)
    }

    /// Times the encoding of tiles of noise; `None` if there is no tower or they do not fit.
    ///
    /// # Errors
    /// If the device fails.
    pub fn vision(&mut self, tiles: u32) -> Result<Option<Duration>, BackendError> {
        let Some(vision) = &self.device.config().vision else { return Ok(None) };
        if tiles > self.device.capacity().features {
            return Ok(None);
        }
        let side = vision.tile;
        let tiles: Vec<ImageTile> = (0..tiles).map(|number| noise_tile(number, side)).collect();
        self.median(|device| {
            let features = device.encode(&tiles)?;
            device.release(&features);
            Ok(device.wait()?)
        })
        .map(Some)
    }

    /// Times the copy of a slot: the cost of a fork apart from its pages.
    ///
    /// # Errors
    /// If the device fails.
    pub fn fork(&mut self) -> Result<Option<Duration>, BackendError> {
        if self.device.capacity().slots < 2 {
            return Ok(None);
        }
        self.median(|device| {
            device.copy_slot(Slot(0), Slot(1))?;
            Ok(device.wait()?)
        })
        .map(Some)
    }

    /// Times the transfer of a session of `context` tokens to host memory, and back.
    ///
    /// # Errors
    /// If the device fails.
    pub fn offload(&mut self, context: u32) -> Result<Option<[Duration; 2]>, BackendError> {
        let pages: Vec<Page> = (0..context.div_ceil(PAGE_TOKENS as u32)).map(Page).collect();
        if pages.len() > self.device.capacity().pages as usize {
            return Ok(None);
        }
        // The memory may suffice for only one state: each is dropped before the next.
        if self.device.offload(Slot(0), &pages)?.is_none() {
            return Ok(None);
        }
        let out = self.median(|device| {
            device.offload(Slot(0), &pages)?;
            Ok(device.wait()?)
        })?;
        let Some(offloaded) = self.device.offload(Slot(0), &pages)? else { return Ok(None) };
        let back = self.median(|device| {
            device.restore(&offloaded, Slot(0), &pages)?;
            Ok(device.wait()?)
        })?;
        Ok(Some([out, back]))
    }

    fn median(
        &mut self,
        mut work: impl FnMut(&mut dyn DeviceBackend) -> Result<(), BackendError>,
    ) -> Result<Duration, BackendError> {
        let mut taken = Vec::with_capacity(self.times);
        for time in 0..WARM_UP + self.times {
            self.device.wait()?;
            let begin = Instant::now();
            work(&mut *self.device)?;
            if time >= WARM_UP {
                taken.push(begin.elapsed());
            }
        }
        Ok(middle(taken))
    }
}

/// A tile of noise, `[3, side, side]` in -1..1.
pub fn noise_tile(number: u32, side: usize) -> ImageTile {
    let value = |index: u32| (index.wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0;
    let pixels = (0..3 * side * side).map(|index| value(index as u32 ^ number)).collect();
    ImageTile { pixels, hash: [0; 32] }
}

/// Parameters of rollouts: temperature 1, no filters.
fn sample_request(row: u32) -> SampleRequest<'static> {
    SampleRequest { row, temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, allowed: None, uniform: 0.5 }
}
