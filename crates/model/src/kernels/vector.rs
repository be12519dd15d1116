//! Sixteen float32 lanes, the unit in which every kernel is written.
//!
//! Each operation is lane by lane and exactly rounded, or a fixed tree over the lanes, so all
//! implementations give the same bits.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(super) use avx512::Avx512;
pub(super) use portable::PortableVector;

/// Lanes of a vector.
pub(super) const LANES: usize = 16;

/// The lanes in memory.
pub(super) type Lanes = [f32; LANES];

/// Sixteen lanes. A value of an implementing type exists only where
/// [`super::isa::InstructionSet::run`] has checked that the processor has the instructions.
pub(crate) trait Vector: Copy {
    /// Rows, and vectors a row, of the largest register block of a product: what the register file
    /// holds beside two operands.
    const BLOCK: [usize; 2];

    fn load(from: &Lanes) -> Self;
    fn store(self, to: &mut Lanes);
    fn splat(value: f32) -> Self;

    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// `self * factor + term`, rounded once.
    fn fma(self, factor: Self, term: Self) -> Self;
    /// `self > other ? self : other`, so `other` if either is NaN.
    fn max(self, other: Self) -> Self;
    /// `self < other ? self : other`, so `other` if either is NaN.
    fn min(self, other: Self) -> Self;
    /// `self < other ? yes : no`.
    fn select_less(self, other: Self, yes: Self, no: Self) -> Self;

    fn and(self, other: Self) -> Self;
    /// The bits shifted to the left.
    fn shift_left<const BITS: u32>(self) -> Self;
    /// The sum of the bits as integers.
    fn add_bits(self, other: Self) -> Self;
    /// The lower half of the product of the bits as integers.
    fn mul_bits(self, other: Self) -> Self;
    /// Bytes as integers in the bits.
    fn from_bytes(from: &[u8; LANES]) -> Self;
    /// The bits as signed integers, shifted to the right and clamped to 0 to 255.
    fn to_bytes<const BITS: u32>(self) -> [u8; LANES];

    /// The sum of the lanes: lane i with i + 8, then i + 4, i + 2, i + 1.
    #[inline(always)]
    fn sum(self) -> f32 {
        let mut lanes = self.lanes();
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                lanes[lane] += lanes[lane + half];
            }
        }
        lanes[0]
    }

    /// The largest lane, compared by the rule of `max` in the order of `sum`.
    #[inline(always)]
    fn largest(self) -> f32 {
        let mut lanes = self.lanes();
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                let [a, b] = [lanes[lane], lanes[lane + half]];
                lanes[lane] = if a > b { a } else { b };
            }
        }
        lanes[0]
    }

    /// Lane i of the result is the `sum` of vector i.
    #[inline(always)]
    fn sums(vectors: [Self; LANES]) -> Self {
        let mut sums = [0.0; LANES];
        for (sum, vector) in sums.iter_mut().zip(vectors) {
            *sum = vector.sum();
        }
        Self::load(&sums)
    }

    #[inline(always)]
    fn zero() -> Self {
        Self::splat(0.0)
    }

    #[inline(always)]
    fn from_bits(bits: u32) -> Self {
        Self::splat(f32::from_bits(bits))
    }

    #[inline(always)]
    fn abs(self) -> Self {
        self.and(Self::from_bits(0x7fff_ffff))
    }

    #[inline(always)]
    fn lanes(self) -> Lanes {
        let mut lanes = [0.0; LANES];
        self.store(&mut lanes);
        lanes
    }

    /// Loads up to sixteen values; the other lanes are zero.
    #[inline(always)]
    fn load_part(from: &[f32]) -> Self {
        let mut lanes = [0.0; LANES];
        lanes[..from.len()].copy_from_slice(from);
        Self::load(&lanes)
    }

    /// Stores the first `to.len()` lanes.
    #[inline(always)]
    fn store_part(self, to: &mut [f32]) {
        to.copy_from_slice(&self.lanes()[..to.len()]);
    }

    /// SAFETY: sixteen values can be read there.
    #[inline(always)]
    unsafe fn load_at(from: *const f32) -> Self {
        // SAFETY: by the contract above; an array of f32 needs no more alignment than an f32.
        Self::load(unsafe { &*from.cast::<Lanes>() })
    }

    /// SAFETY: sixteen values can be written there, and nothing else accesses them meanwhile.
    #[inline(always)]
    unsafe fn store_at(self, to: *mut f32) {
        // SAFETY: by the contract above.
        self.store(unsafe { &mut *to.cast::<Lanes>() });
    }
}
