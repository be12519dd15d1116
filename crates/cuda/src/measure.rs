//! How near the backend comes to the hardware's floor: weights of noise, batches of a chosen form, timed from outside.
//!
//! Timing does not depend on values, so nobody needs a checkpoint: the shapes of a configuration are enough. Each figure is the median of some runs after
//! others that were not counted, the first of which load code and record graphs.

mod figures;

use std::time::{Duration, Instant};

use furrow_model::backend::{self, Backend, BackendError, DeviceLost, PAGE_TOKENS, Page, Room, Slot, Want};
use furrow_model::checkpoint::chain;
use furrow_model::config::{Config, SsmConfig};
use furrow_model::sample::Pick;
use furrow_model::vision::Tile;
use half::bf16;

pub use self::figures::{Cases, Figure};
use crate::arena::Placer;
use crate::backend::{Device, OpenError, Options, Precision, Stage, SwapError, open_noise};
use crate::executor::{Executor, ExecutorError, Lane, Matrix};
use crate::launch::{Move, Span, View};
use crate::ops::copy::{CopyPlaces, Places};
use crate::ops::ssm::Recurrence;
use crate::ops::{PACK, Rows, Slots};
use crate::weights::LoadError;

/// Runs before those that count: one that loads what is loaded lazily, one that records, one that replays.
const WARM_UP: usize = 3;

/// What a device reaches by itself, measured in the same run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Bytes a second, read and written, of a large copy.
    pub bandwidth: f64,
    /// Operations a second of a large product in bfloat16.
    pub flops: f64,
}

/// How large the copy and the product are that rates are taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Yardstick {
    /// Bytes that are copied: far more than caches hold.
    pub bytes: usize,
    /// Side of the square matrices.
    pub side: usize,
}

impl Default for Yardstick {
    fn default() -> Self {
        // 1 GiB each way is 0.5 ms of an H200; 8192^3 x 2 is 1.1 TFLOP, 1.4 ms.
        Self { bytes: 1 << 30, side: 8192 }
    }
}

/// Memory of a device for what is measured without a model. It stays allocated.
pub struct Yard<'a> {
    executor: &'a mut dyn Executor,
    yardstick: Yardstick,
    memory: View<u8>,
    /// Runs that count.
    times: usize,
}

impl<'a> Yard<'a> {
    /// Takes as much as the yardstick asks for.
    ///
    /// # Errors
    /// When the device fails or has too little memory.
    pub fn open(
        executor: &'a mut dyn Executor,
        yardstick: Yardstick,
        times: usize,
    ) -> Result<Self, ExecutorError> {
        let Yardstick { bytes, side } = yardstick;
        let room = (2 * bytes).max(3 * side * side * size_of::<bf16>()) + 256;
        let memory = View::new(executor.allocate(room as u64)?, room);
        Ok(Self { executor, yardstick, memory, times })
    }

    /// A device's own rates.
    ///
    /// # Errors
    /// When the device fails.
    pub fn rates(&mut self) -> Result<Rates, ExecutorError> {
        let Yardstick { bytes, side } = self.yardstick;
        let (values, address) = (side * side, self.memory.address());
        let one = View::<Move>::new(address + self.memory.len() as u64 - 256, 1);
        self.executor.upload(Lane::Batch, bytemuck::bytes_of(&Move { from: 0, to: 0 }), one.address())?;
        let place = |number: usize| Places {
            bytes: View::new(address + (number * bytes) as u64, bytes),
            stride: bytes,
        };
        let copy = CopyPlaces { from: Some(place(0)), to: place(1), moves: one, bytes }.launch();
        let copied = median(self.executor, self.times, |executor| executor.launch(Lane::Batch, &copy))?;

        fill(self.executor, View::<bf16>::new(address, 2 * values))?;
        let matrix = |number: usize| View::<bf16>::new(address + (number * values * 2) as u64, values);
        let weight = Matrix { values: matrix(0), wide: None, outputs: side, inputs: side };
        let rows = |number| Rows { values: matrix(number), stride: side };
        let product = weight.product(side, rows(1), rows(2));
        let multiplied =
            median(self.executor, self.times, |executor| executor.multiply(Lane::Batch, &product))?;
        Ok(Rates {
            bandwidth: 2.0 * bytes as f64 / copied.as_secs_f64(),
            flops: 2.0 * (side as f64).powi(3) / multiplied.as_secs_f64(),
        })
    }

    /// One layer's recurrence for one new token of each of `batch` sequences, states in float32; `None` where they do not fit.
    ///
    /// # Errors
    /// When the device fails.
    pub fn state_update(&mut self, ssm: &SsmConfig, batch: u32) -> Result<Option<Duration>, ExecutorError> {
        let count = batch as usize;
        let mut placer = Placer::at(self.memory.address());
        let mut of_heads = || placer.take::<f32>("", ssm.heads);
        let [dt_bias, a, d] = [of_heads(), of_heads(), of_heads()];
        let (width, kept) = (ssm.conv_width(), ssm.inner() * ssm.state);
        let dt_stride = ssm.heads.next_multiple_of(PACK);
        let mixed = Rows { values: placer.take::<bf16>("", count * width), stride: width };
        let dt = Rows { values: placer.take::<bf16>("", count * dt_stride), stride: dt_stride };
        let spans = placer.take::<Span>("", count);
        let small = placer.next() - self.memory.address();
        let state = Slots { values: placer.take::<f32>("", count * kept), stride: kept };
        let out = placer.take::<bf16>("", count * ssm.inner());
        if placer.next() > self.memory.address() + self.memory.len() as u64 {
            return Ok(None);
        }
        let span = |number| Span { base: number, length: 1, start: 1, slot: number };
        let all: Vec<Span> = (0..batch).map(span).collect();
        let zeros = vec![0; usize::try_from(small).unwrap_or(0)];
        self.executor.upload(Lane::Batch, &zeros, self.memory.address())?;
        self.executor.upload(Lane::Batch, bytemuck::cast_slice(&all), spans.address())?;
        let config = ssm;
        let launch = Recurrence { config, mixed, dt, dt_bias, a, d, state, spans, out }.launch();
        median(self.executor, self.times, |executor| executor.launch(Lane::Batch, &launch)).map(Some)
    }
}

/// How long weights of noise take to take over from where they are staged, all work before and after them waited for; `None` where there is no room for two sets.
/// The executor is dropped, and with it what it allocated.
///
/// # Errors
/// When the device fails.
pub fn swap(
    config: &Config,
    stage: Stage,
    executor: Box<dyn Executor>,
    times: usize,
) -> Result<Option<Duration>, SwapError> {
    let room = Room { slots: 1, pages: 1, rows_max: 1, logits_max: 1, features: 1, parked_bytes: 0 };
    let options = Options { stage, ..Options::default() };
    let mut subject = match Subject::open(config, room, options, executor, times) {
        Ok(subject) => subject,
        Err(OpenError::Full { .. } | OpenError::HostFull { .. }) => return Ok(None),
        Err(OpenError::Load(LoadError::Checkpoint(refused)) | OpenError::Checkpoint(refused)) => {
            return Err(refused.into());
        }
        Err(OpenError::Load(LoadError::Executor(error)) | OpenError::Executor(error)) => {
            return Err(DeviceLost(chain(&error)).into());
        }
        Err(OpenError::Device(lost)) => return Err(lost.into()),
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

/// A model of noise with as many pages as there is memory for, and with room for at least what `room` says.
///
/// # Errors
/// As opening a checkpoint.
pub fn open_widest(
    config: &Config,
    room: Room,
    options: Options,
    mut executor: Box<dyn Executor>,
) -> Result<Box<dyn Backend>, OpenError> {
    let free = executor.free_bytes()?;
    let room = figures::widest(config, &options, free, room)?;
    Ok(open_noise(config, room, options, executor)?)
}

/// Small numbers everywhere: a product of zeros takes less power, and so runs faster than any other.
fn fill(executor: &mut dyn Executor, to: View<bf16>) -> Result<(), ExecutorError> {
    let block: Vec<bf16> = (0..1_u32 << 16)
        .map(|i| bf16::from_f32((i.wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0))
        .collect();
    for first in (0..to.len()).step_by(block.len()) {
        let count = block.len().min(to.len() - first);
        executor.upload(Lane::Batch, bytemuck::cast_slice(&block[..count]), to.from(first).address())?;
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

/// A model of noise on a device, to be timed.
#[derive(Debug)]
pub struct Subject {
    device: Box<dyn Device>,
    precision: Precision,
    /// Runs that count.
    times: usize,
}

impl Subject {
    /// Opens a model in bfloat16 from its configuration alone.
    ///
    /// # Errors
    /// As opening a checkpoint.
    pub fn open(
        config: &Config,
        room: Room,
        options: Options,
        executor: Box<dyn Executor>,
        times: usize,
    ) -> Result<Self, OpenError> {
        let precision = options.precision;
        Ok(Self { device: open_noise(config, room, options, executor)?, precision, times })
    }

    /// What it is computed in.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// What it takes of the device.
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// One decode step of `batch` sequences of `context` tokens, draws included; `None` where they do not fit.
    ///
    /// # Errors
    /// When the device fails.
    pub fn decode(&mut self, batch: u32, context: u32) -> Result<Option<Duration>, BackendError> {
        let room = self.device.room();
        let each = (context + 1).div_ceil(PAGE_TOKENS as u32);
        let fits =
            batch <= room.slots && batch <= room.logits_max && batch.saturating_mul(each) <= room.pages;
        if !fits {
            return Ok(None);
        }
        let pages: Vec<Page> = (0..batch * each).map(Page).collect();
        let span = |(slot, pages)| backend::Span {
            slot: Slot(slot),
            pages,
            start: context,
            tokens: &[1],
            insets: &[],
            want: Want::Last,
        };
        let spans: Vec<backend::Span<'_>> =
            (0..batch).zip(pages.chunks_exact(each as usize)).map(span).collect();
        let picks: Vec<Pick<'_>> = (0..batch).map(pick).collect();
        self.median(|device| {
            device.run(&spans)?;
            device.sample(&picks)?;
            Ok(())
        })
        .map(Some)
    }

    /// A prefill of `new` tokens behind `past` of one sequence, in pieces of `chunk`, and the first draw.
    ///
    /// # Errors
    /// When the device fails.
    pub fn prefill(&mut self, new: u32, past: u32, chunk: u32) -> Result<Option<Duration>, BackendError> {
        let room = self.device.room();
        let pages: Vec<Page> = (0..(past + new).div_ceil(PAGE_TOKENS as u32)).map(Page).collect();
        if pages.len() > room.pages as usize || chunk > room.rows_max || chunk == 0 {
            return Ok(None);
        }
        let tokens = vec![1; chunk as usize];
        self.median(|device| {
            let mut done = 0;
            while done < new {
                let count = chunk.min(new - done);
                let want = if done + count == new { Want::Last } else { Want::Nothing };
                let (start, tokens) = (past + done, &tokens[..count as usize]);
                device.run(&[backend::Span {
                    slot: Slot(0),
                    pages: &pages,
                    start,
                    tokens,
                    insets: &[],
                    want,
                }])?;
                done += count;
            }
            device.sample(&[pick(0)])?;
            Ok(())
        })
        .map(Some)
    }

    /// Encoding of so many tiles of noise; `None` where there is no tower or no room.
    ///
    /// # Errors
    /// When the device fails.
    pub fn vision(&mut self, tiles: u32) -> Result<Option<Duration>, BackendError> {
        let Some(vision) = &self.device.config().vision else { return Ok(None) };
        if tiles > self.device.room().features {
            return Ok(None);
        }
        let side = vision.tile;
        let tiles: Vec<Tile> = (0..tiles).map(|number| noise_tile(number, side)).collect();
        self.median(|device| {
            let held = device.encode(&tiles)?;
            device.release(&held);
            Ok(device.wait()?)
        })
        .map(Some)
    }

    /// A copy of a slot: what a fork costs beside its pages.
    ///
    /// # Errors
    /// When the device fails.
    pub fn fork(&mut self) -> Result<Option<Duration>, BackendError> {
        if self.device.room().slots < 2 {
            return Ok(None);
        }
        self.median(|device| {
            device.copy_slot(Slot(0), Slot(1))?;
            Ok(device.wait()?)
        })
        .map(Some)
    }

    /// A session of `context` tokens to host memory, and back.
    ///
    /// # Errors
    /// When the device fails.
    pub fn park(&mut self, context: u32) -> Result<Option<[Duration; 2]>, BackendError> {
        let pages: Vec<Page> = (0..context.div_ceil(PAGE_TOKENS as u32)).map(Page).collect();
        if pages.len() > self.device.room().pages as usize {
            return Ok(None);
        }
        // There may be room for one state: each is dropped before the next.
        if self.device.park(Slot(0), &pages)?.is_none() {
            return Ok(None);
        }
        let out = self.median(|device| {
            device.park(Slot(0), &pages)?;
            Ok(device.wait()?)
        })?;
        let Some(parked) = self.device.park(Slot(0), &pages)? else { return Ok(None) };
        let back = self.median(|device| {
            device.restore(&parked, Slot(0), &pages)?;
            Ok(device.wait()?)
        })?;
        Ok(Some([out, back]))
    }

    fn median(
        &mut self,
        mut work: impl FnMut(&mut dyn Device) -> Result<(), BackendError>,
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
pub fn noise_tile(number: u32, side: usize) -> Tile {
    let value = |index: u32| (index.wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0;
    let pixels = (0..3 * side * side).map(|index| value(index as u32 ^ number)).collect();
    Tile { pixels, hash: [0; 32] }
}

/// As rollouts draw: at temperature 1, from everything.
fn pick(row: u32) -> Pick<'static> {
    Pick { row, temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, allowed: None, uniform: 0.5 }
}
