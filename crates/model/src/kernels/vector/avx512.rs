//! Sixteen lanes in one AVX-512 register.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{LANES, Lanes, Vector};

#[derive(Clone, Copy)]
pub(crate) struct Avx512(pub(crate) __m512);

/// Calls intrinsics. The same safety argument holds for every use in this file.
macro_rules! here {
    ($call:expr) => {
        // SAFETY: a value of this type exists only if the processor has AVX-512 F and DQ.
        unsafe { $call }
    };
}

impl Vector for Avx512 {
    /// 12 x 2 sums, 2 weights and an input: 27 of 32 registers.
    const BLOCK: [usize; 2] = [12, 2];

    #[inline(always)]
    fn load(from: &Lanes) -> Self {
        Self(here!(_mm512_loadu_ps(from.as_ptr())))
    }

    #[inline(always)]
    fn store(self, to: &mut Lanes) {
        here!(_mm512_storeu_ps(to.as_mut_ptr(), self.0));
    }

    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self(here!(_mm512_set1_ps(value)))
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(here!(_mm512_add_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Self(here!(_mm512_sub_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Self(here!(_mm512_mul_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        Self(here!(_mm512_div_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn fma(self, factor: Self, term: Self) -> Self {
        Self(here!(_mm512_fmadd_ps(self.0, factor.0, term.0)))
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Self(here!(_mm512_max_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        Self(here!(_mm512_min_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn select_less(self, other: Self, yes: Self, no: Self) -> Self {
        Self(here!(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, other.0), no.0, yes.0)))
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        Self(here!(_mm512_and_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn shift_left<const BITS: u32>(self) -> Self {
        Self(here!(_mm512_castsi512_ps(_mm512_slli_epi32::<BITS>(_mm512_castps_si512(self.0)))))
    }

    #[inline(always)]
    fn add_bits(self, other: Self) -> Self {
        Self(here!(_mm512_castsi512_ps(_mm512_add_epi32(
            _mm512_castps_si512(self.0),
            _mm512_castps_si512(other.0)
        ))))
    }

    #[inline(always)]
    fn mul_bits(self, other: Self) -> Self {
        Self(here!(_mm512_castsi512_ps(_mm512_mullo_epi32(
            _mm512_castps_si512(self.0),
            _mm512_castps_si512(other.0)
        ))))
    }

    #[inline(always)]
    fn from_bytes(from: &[u8; LANES]) -> Self {
        let bytes = here!(_mm_loadu_si128(from.as_ptr().cast()));
        Self(here!(_mm512_castsi512_ps(_mm512_cvtepu8_epi32(bytes))))
    }

    #[inline(always)]
    fn to_bytes<const BITS: u32>(self) -> [u8; LANES] {
        let mut bytes = [0; LANES];
        here!({
            let moved = _mm512_srai_epi32::<BITS>(_mm512_castps_si512(self.0));
            let bounded = _mm512_max_epi32(moved, _mm512_setzero_si512());
            _mm_storeu_si128(bytes.as_mut_ptr().cast(), _mm512_cvtusepi32_epi8(bounded));
        });
        bytes
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        here!({
            let low = _mm512_castps512_ps256(self.0);
            let eight = _mm256_add_ps(low, _mm512_extractf32x8_ps::<1>(self.0));
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        })
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        here!({
            let low = _mm512_castps512_ps256(self.0);
            let eight = _mm256_max_ps(low, _mm512_extractf32x8_ps::<1>(self.0));
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        })
    }

    /// The trees of all sixteen at once: two vectors become one at each step, 15 additions instead
    /// of 60.
    #[inline(always)]
    fn sums(vectors: [Self; LANES]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = vectors.map(|vector| vector.0);
        here!({
            let low = quarters(eighths(halves(a, b), halves(c, d)), eighths(halves(e, f), halves(g, h)));
            let high = quarters(eighths(halves(i, j), halves(k, l)), eighths(halves(m, n), halves(o, p)));
            let even = _mm512_shuffle_ps::<0b10_00_10_00>(low, high);
            let odd = _mm512_shuffle_ps::<0b11_01_11_01>(low, high);
            // Vector v of a b c … is now at 4 (v mod 4) + (v / 4): four lanes of 128 bits hold v =
            // q, q + 4, q + 8, q + 12.
            let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            Self(_mm512_permutexvar_ps(order, _mm512_add_ps(even, odd)))
        })
    }
}

/// Lanes i + i + 8 of x in the lower half, of y in the upper.
///
/// SAFETY: the processor has AVX-512 F.
#[inline(always)]
unsafe fn halves(x: __m512, y: __m512) -> __m512 {
    // SAFETY: by the contract above.
    unsafe {
        let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(x, y);
        let high = _mm512_shuffle_f32x4::<0b11_10_11_10>(x, y);
        _mm512_add_ps(low, high)
    }
}

/// From two results of `halves`, for vectors a, b and c, d: lanes i + i + 4, in the order a b c d.
///
/// SAFETY: the processor has AVX-512 F.
#[inline(always)]
unsafe fn eighths(x: __m512, y: __m512) -> __m512 {
    // SAFETY: by the contract above.
    unsafe {
        let even = _mm512_shuffle_f32x4::<0b10_00_10_00>(x, y);
        let odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(x, y);
        _mm512_add_ps(even, odd)
    }
}

/// From two results of `eighths`: lanes i + i + 2, in each 128 bits two of x and two of y.
///
/// SAFETY: the processor has AVX-512 F.
#[inline(always)]
unsafe fn quarters(x: __m512, y: __m512) -> __m512 {
    // SAFETY: by the contract above.
    unsafe {
        let low = _mm512_shuffle_ps::<0b01_00_01_00>(x, y);
        let high = _mm512_shuffle_ps::<0b11_10_11_10>(x, y);
        _mm512_add_ps(low, high)
    }
}
