//! Memory that kernels read and write, with a guard on either side: what is read from there is NaN, what is written there is
//! noticed.
#![allow(unsafe_code)]

use std::fmt::Debug;

use bytemuck::{Pod, Zeroable};
use furrow_cuda::launch::{Element, Stored, View};
use half::bf16;

use crate::place::{Device, device};

/// Bytes of a guard: further than a planted bug strays, for it must not harm the test.
const GUARD: usize = 64 << 10;
/// In guards and in what was never written: NaN as float32 and as bfloat16.
const UNWRITTEN: u8 = 0xff;

/// Sixteen bytes, aligned as packs are.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(16))]
struct Line([u8; 16]);

/// Values in a place of their own, here or on the device.
pub struct Memory<T> {
    bytes: Bytes,
    len: usize,
    of: std::marker::PhantomData<T>,
}

enum Bytes {
    Here(*mut [Line]),
    There { device: &'static Device, at: u64, len: usize },
}

impl<T: Element + Pod + Debug> Memory<T> {
    /// Holds these values.
    pub fn of(values: &[T]) -> Self {
        Self::with(values.len(), bytemuck::cast_slice(values))
    }

    /// Room for values that a kernel shall write.
    pub fn unwritten(len: usize) -> Self {
        Self::with(len, &[])
    }

    /// Room for `len` values behind a guard, the first bytes of them given.
    fn with(len: usize, first: &[u8]) -> Self {
        let count = (2 * GUARD + len * size_of::<T>()).div_ceil(16);
        let mut lines = vec![Line([UNWRITTEN; 16]); count].into_boxed_slice();
        let all: &mut [u8] = bytemuck::cast_slice_mut(&mut lines);
        all[GUARD..GUARD + first.len()].copy_from_slice(first);
        let bytes = match device() {
            Some(device) => Bytes::There { device, at: device.take(all), len: all.len() },
            None => Bytes::Here(Box::into_raw(lines)),
        };
        Self { bytes, len, of: std::marker::PhantomData }
    }

    /// For a launch. It must not outlive the memory.
    pub fn view(&self) -> View<T> {
        let first = match self.bytes {
            Bytes::Here(lines) => lines.cast::<u8>() as u64,
            Bytes::There { at, .. } => at,
        };
        View::new(first + GUARD as u64, self.len)
    }

    /// What is there now; refused when a guard was written to.
    pub fn read(&self) -> Result<Vec<T>, String> {
        let fetched;
        let bytes: &[u8] = match &self.bytes {
            // SAFETY: kernels have returned, so nobody writes.
            Bytes::Here(lines) => bytemuck::cast_slice(unsafe { &**lines }),
            Bytes::There { device, at, len } => {
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

impl<T> Drop for Memory<T> {
    fn drop(&mut self) {
        match self.bytes {
            // SAFETY: it came from `Box::into_raw` and is given back once.
            Bytes::Here(lines) => drop(unsafe { Box::from_raw(lines) }),
            Bytes::There { device, at, len } => device.give_back(at, len),
        }
    }
}

/// A type of stored values, to write one comparison for both.
pub trait Number: Stored + Pod + Debug {
    /// How far a result may be from one in float32, relatively.
    const TOLERANCE: f32;
    fn of(value: f32) -> Self;
    fn wide(self) -> f32;
}

impl Number for f32 {
    const TOLERANCE: f32 = 4e-6;
    fn of(value: f32) -> Self {
        value
    }
    fn wide(self) -> f32 {
        self
    }
}

impl Number for bf16 {
    // Half an ulp is up to 2^-8 of a value, and what is rounded may have been off by a little.
    const TOLERANCE: f32 = 4.1e-3;
    fn of(value: f32) -> Self {
        Self::from_f32(value)
    }
    fn wide(self) -> f32 {
        self.to_f32()
    }
}

/// Values as they are stored.
pub fn stored<T: Number>(values: &[f32]) -> Vec<T> {
    values.iter().map(|value| T::of(*value)).collect()
}

/// Stored values as float32.
pub fn widened<T: Number>(values: &[T]) -> Vec<f32> {
    values.iter().map(|value| value.wide()).collect()
}

/// Values as they are after being stored.
pub fn rounded<T: Number>(values: &[f32]) -> Vec<f32> {
    widened(&stored::<T>(values))
}
