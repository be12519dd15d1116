//! Sixteen lanes as an array: for machines without wider instructions, and as the definition that
//! the others must match.

use super::{LANES, Lanes, Vector};

/// Sixteen lanes in as many registers as the compiler chooses.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct PortableVector(Lanes);

impl PortableVector {
    #[inline(always)]
    fn zip(self, other: Self, apply: impl Fn(f32, f32) -> f32) -> Self {
        let mut lanes = self.0;
        for (lane, other) in lanes.iter_mut().zip(other.0) {
            *lane = apply(*lane, other);
        }
        Self(lanes)
    }

    #[inline(always)]
    fn zip_bits(self, other: Self, apply: impl Fn(u32, u32) -> u32) -> Self {
        self.zip(other, |a, b| f32::from_bits(apply(a.to_bits(), b.to_bits())))
    }
}

impl Vector for PortableVector {
    /// NEON has 32 registers of four lanes: 4 x 4 sums, 4 weights.
    const BLOCK: [usize; 2] = [4, 1];

    #[inline(always)]
    fn load(from: &Lanes) -> Self {
        Self(*from)
    }

    #[inline(always)]
    fn store(self, to: &mut Lanes) {
        *to = self.0;
    }

    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self([value; LANES])
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }

    #[inline(always)]
    fn fma(self, factor: Self, term: Self) -> Self {
        let mut lanes = self.0;
        for ((lane, factor), term) in lanes.iter_mut().zip(factor.0).zip(term.0) {
            *lane = lane.mul_add(factor, term);
        }
        Self(lanes)
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn select_less(self, other: Self, yes: Self, no: Self) -> Self {
        let mut lanes = no.0;
        for (index, lane) in lanes.iter_mut().enumerate() {
            if self.0[index] < other.0[index] {
                *lane = yes.0[index];
            }
        }
        Self(lanes)
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        self.zip_bits(other, |a, b| a & b)
    }

    #[inline(always)]
    fn shift_left<const BITS: u32>(self) -> Self {
        self.zip_bits(self, |a, _| a << BITS)
    }

    #[inline(always)]
    fn add_bits(self, other: Self) -> Self {
        self.zip_bits(other, u32::wrapping_add)
    }

    #[inline(always)]
    fn mul_bits(self, other: Self) -> Self {
        self.zip_bits(other, u32::wrapping_mul)
    }

    #[inline(always)]
    fn from_bytes(from: &[u8; LANES]) -> Self {
        Self(from.map(|byte| f32::from_bits(u32::from(byte))))
    }

    #[inline(always)]
    fn to_bytes<const BITS: u32>(self) -> [u8; LANES] {
        self.0.map(|lane| (lane.to_bits().cast_signed() >> BITS).clamp(0, 255) as u8)
    }
}
