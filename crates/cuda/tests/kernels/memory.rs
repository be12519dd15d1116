//! Memory for kernels with a guard on either side: values read from a guard are NaN, and writes to
//! a guard are detected.
#![allow(unsafe_code)]

use std::fmt::Debug;

use bytemuck::{Pod, Zeroable};
use furrow_cuda::launch::{DeviceElement, DeviceView, StoredElement};
use half::bf16;

use crate::runner::{TestDevice, device};

/// Bytes of a guard: more than a planted bug misses by, because it must not damage the test.
const GUARD: usize = 64 << 10;
/// Byte of guards and of memory that was never written: NaN as float32 and as bfloat16.
const UNWRITTEN: u8 = 0xff;

/// Sixteen bytes, aligned as packs are.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(16))]
struct PackLine([u8; 16]);

/// Values in memory of their own, on the host or on the device.
pub(crate) struct GuardedMemory<T> {
    bytes: GuardedBytes,
    len: usize,
    of: std::marker::PhantomData<T>,
}

enum GuardedBytes {
    Here(*mut [PackLine]),
    There { device: &'static TestDevice, at: u64, len: usize },
}

impl<T: DeviceElement + Pod + Debug> GuardedMemory<T> {
    /// Memory with these values.
    pub(crate) fn of(values: &[T]) -> Self {
        Self::with(values.len(), bytemuck::cast_slice(values))
    }

    /// Memory for values that a kernel writes.
    pub(crate) fn unwritten(len: usize) -> Self {
        Self::with(len, &[])
    }

    /// Memory for `len` values after a guard, the first bytes of which are given.
    fn with(len: usize, first: &[u8]) -> Self {
        let count = (2 * GUARD + len * size_of::<T>()).div_ceil(16);
        let mut lines = vec![PackLine([UNWRITTEN; 16]); count].into_boxed_slice();
        let all: &mut [u8] = bytemuck::cast_slice_mut(&mut lines);
        all[GUARD..GUARD + first.len()].copy_from_slice(first);
        let bytes = match device() {
            Some(device) => GuardedBytes::There { device, at: device.take(all), len: all.len() },
            None => GuardedBytes::Here(Box::into_raw(lines)),
        };
        Self { bytes, len, of: std::marker::PhantomData }
    }

    /// A view for a launch. It must not outlive the memory.
    pub(crate) fn view(&self) -> DeviceView<T> {
        let first = match self.bytes {
            GuardedBytes::Here(lines) => lines.cast::<u8>() as u64,
            GuardedBytes::There { at, .. } => at,
        };
        DeviceView::new(first + GUARD as u64, self.len)
    }

    /// The present values; an error if a guard was overwritten.
    pub(crate) fn read(&self) -> Result<Vec<T>, String> {
        let fetched;
        let bytes: &[u8] = match &self.bytes {
            // SAFETY: kernels have returned, so nothing writes.
            GuardedBytes::Here(lines) => bytemuck::cast_slice(unsafe { &**lines }),
            GuardedBytes::There { device, at, len } => {
                fetched = device.read(*at, *len);
                &fetched
            }
        };
        let values = GUARD..GUARD + self.len * size_of::<T>();
        let whole = [UNWRITTEN; GUARD + 16];
        let guards = [&bytes[..GUARD], &bytes[values.end..]];
        if guards.iter().any(|guard| *guard != &whole[..guard.len()]) {
            return Err(format!("memory of {} values was written outside of them", self.len));
        }
        Ok(bytes[values].chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect())
    }
}

impl<T> Drop for GuardedMemory<T> {
    fn drop(&mut self) {
        match self.bytes {
            // SAFETY: it came from `Box::into_raw` and is freed once.
            GuardedBytes::Here(lines) => drop(unsafe { Box::from_raw(lines) }),
            GuardedBytes::There { device, at, len } => device.give_back(at, len),
        }
    }
}

/// A type of stored values, to write one comparison for both.
pub(crate) trait TestNumber: StoredElement + Pod + Debug {
    /// Permitted relative error against a result in float32.
    const TOLERANCE: f32;
    fn of(value: f32) -> Self;
    fn wide(self) -> f32;
}

impl TestNumber for f32 {
    const TOLERANCE: f32 = 4e-6;
    fn of(value: f32) -> Self {
        value
    }
    fn wide(self) -> f32 {
        self
    }
}

impl TestNumber for bf16 {
    // Half an ulp is up to 2^-8 of a value, and the value may have had a small error before
    // rounding.
    const TOLERANCE: f32 = 4.1e-3;
    fn of(value: f32) -> Self {
        Self::from_f32(value)
    }
    fn wide(self) -> f32 {
        self.to_f32()
    }
}

/// Converts values to the stored type.
pub(crate) fn stored<T: TestNumber>(values: &[f32]) -> Vec<T> {
    values.iter().map(|value| T::of(*value)).collect()
}

/// Stored values as float32.
pub(crate) fn widened<T: TestNumber>(values: &[T]) -> Vec<f32> {
    values.iter().map(|value| value.wide()).collect()
}

/// Rounds values to the stored type and back.
pub(crate) fn rounded<T: TestNumber>(values: &[f32]) -> Vec<f32> {
    widened(&stored::<T>(values))
}
