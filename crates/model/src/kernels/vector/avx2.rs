//! Sixteen lanes in two AVX2 registers.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{LANES, Lanes, Vector};

/// Two ymm registers: lanes 0 to 7 and 8 to 15.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256, __m256);

/// Calls intrinsics. The same safety argument holds for every use in this file.
macro_rules! here {
    ($call:expr) => {
        // SAFETY: a value of this type exists only if the processor has AVX2 and FMA.
        unsafe { $call }
    };
}

/// An operation of two vectors, half by half.
macro_rules! by_halves {
    ($name:ident, $intrinsic:ident) => {
        #[inline(always)]
        fn $name(self, other: Self) -> Self {
            Self(here!($intrinsic(self.0, other.0)), here!($intrinsic(self.1, other.1)))
        }
    };
}

impl Vector for Avx2 {
    /// 6 x 2 registers of sums, 2 of weights and an input: 15 of 16.
    const BLOCK: [usize; 2] = [6, 1];

    #[inline(always)]
    fn load(from: &Lanes) -> Self {
        // SAFETY: both halves are in the array; the processor has AVX, see `here`.
        unsafe { Self(_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))) }
    }

    #[inline(always)]
    fn store(self, to: &mut Lanes) {
        // SAFETY: both halves are in the array; the processor has AVX, see `here`.
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), self.0);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), self.1);
        }
    }

    #[inline(always)]
    fn splat(value: f32) -> Self {
        let half = here!(_mm256_set1_ps(value));
        Self(half, half)
    }

    by_halves!(add, _mm256_add_ps);
    by_halves!(sub, _mm256_sub_ps);
    by_halves!(mul, _mm256_mul_ps);
    by_halves!(div, _mm256_div_ps);
    by_halves!(max, _mm256_max_ps);
    by_halves!(min, _mm256_min_ps);
    by_halves!(and, _mm256_and_ps);

    #[inline(always)]
    fn fma(self, factor: Self, term: Self) -> Self {
        Self(
            here!(_mm256_fmadd_ps(self.0, factor.0, term.0)),
            here!(_mm256_fmadd_ps(self.1, factor.1, term.1)),
        )
    }

    #[inline(always)]
    fn select_less(self, other: Self, yes: Self, no: Self) -> Self {
        here!({
            let [low, high] =
                [_mm256_cmp_ps::<_CMP_LT_OQ>(self.0, other.0), _mm256_cmp_ps::<_CMP_LT_OQ>(self.1, other.1)];
            Self(_mm256_blendv_ps(no.0, yes.0, low), _mm256_blendv_ps(no.1, yes.1, high))
        })
    }

    #[inline(always)]
    fn shift_left<const BITS: u32>(self) -> Self {
        here!({
            let count = _mm_cvtsi32_si128(BITS as i32);
            let low = _mm256_sll_epi32(_mm256_castps_si256(self.0), count);
            let high = _mm256_sll_epi32(_mm256_castps_si256(self.1), count);
            Self(_mm256_castsi256_ps(low), _mm256_castsi256_ps(high))
        })
    }

    #[inline(always)]
    fn add_bits(self, other: Self) -> Self {
        here!({
            let low = _mm256_add_epi32(_mm256_castps_si256(self.0), _mm256_castps_si256(other.0));
            let high = _mm256_add_epi32(_mm256_castps_si256(self.1), _mm256_castps_si256(other.1));
            Self(_mm256_castsi256_ps(low), _mm256_castsi256_ps(high))
        })
    }

    #[inline(always)]
    fn mul_bits(self, other: Self) -> Self {
        here!({
            let low = _mm256_mullo_epi32(_mm256_castps_si256(self.0), _mm256_castps_si256(other.0));
            let high = _mm256_mullo_epi32(_mm256_castps_si256(self.1), _mm256_castps_si256(other.1));
            Self(_mm256_castsi256_ps(low), _mm256_castsi256_ps(high))
        })
    }

    #[inline(always)]
    fn from_bytes(from: &[u8; LANES]) -> Self {
        here!({
            let bytes = _mm_loadu_si128(from.as_ptr().cast());
            let low = _mm256_cvtepu8_epi32(bytes);
            let high = _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes));
            Self(_mm256_castsi256_ps(low), _mm256_castsi256_ps(high))
        })
    }

    #[inline(always)]
    fn to_bytes<const BITS: u32>(self) -> [u8; LANES] {
        let mut bytes = [0; LANES];
        here!({
            let count = _mm_cvtsi32_si128(BITS as i32);
            let low = _mm256_sra_epi32(_mm256_castps_si256(self.0), count);
            let high = _mm256_sra_epi32(_mm256_castps_si256(self.1), count);
            // Halves of low, high, low, high; both packings clamp what is out of bounds.
            let shorts = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(low, high));
            let packed =
                _mm_packus_epi16(_mm256_castsi256_si128(shorts), _mm256_extracti128_si256::<1>(shorts));
            _mm_storeu_si128(bytes.as_mut_ptr().cast(), packed);
        });
        bytes
    }
}
