//! Which vector instructions this machine has, and how one source becomes code for each.
//!
//! A kernel is an [`Op`] written once over [`Vector`], sixteen float32 lanes whose arithmetic every machine does alike: so a result is
//! the same bit for bit on AVX-512, on AVX2 and without either, and only the time differs.
#![allow(unsafe_code)]

use std::sync::OnceLock;

use super::vector::{Portable, Vector};

/// A family of vector instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isa {
    /// x86-64 with AVX-512 F, BW, DQ, VL: one register is sixteen lanes.
    Avx512,
    /// x86-64 with AVX2 and FMA: two registers.
    Avx2,
    /// Anything else; the compiler vectorises what it can (NEON on aarch64). Without fused multiply-add in hardware it is right but slow.
    Portable,
}

/// A computation that can be compiled for each family. `run` and all it calls must be `#[inline(always)]`, or they are compiled
/// for the plain machine.
pub(super) trait Op {
    type Output;
    fn run<V: Vector>(self) -> Self::Output;
}

impl Isa {
    /// The best family this machine has.
    pub fn best() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Self::here()[0])
    }

    /// Every family this machine has, best first.
    pub fn here() -> Vec<Self> {
        [Self::Avx512, Self::Avx2, Self::Portable].into_iter().filter(|isa| isa.is_here()).collect()
    }

    #[cfg(target_arch = "x86_64")]
    fn is_here(self) -> bool {
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        match self {
            Self::Avx512 => {
                avx2 && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            Self::Avx2 => avx2,
            Self::Portable => true,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn is_here(self) -> bool {
        self == Self::Portable
    }

    /// Runs the computation with these instructions. The family must be one of [`Isa::here`]; elsewhere the portable code runs.
    #[inline]
    pub(super) fn run<O: Op>(self, op: O) -> O::Output {
        match self {
            // SAFETY: a value of this variant comes from `best` or `here`, which asked the processor, or from nowhere.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { x86::avx512(op) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { x86::avx2(op) },
            _ => op.run::<Portable>(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Op;
    use crate::kernels::vector::{Avx2, Avx512};

    /// SAFETY: the processor has these features.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    pub(super) unsafe fn avx512<O: Op>(op: O) -> O::Output {
        op.run::<Avx512>()
    }

    /// SAFETY: the processor has these features.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn avx2<O: Op>(op: O) -> O::Output {
        op.run::<Avx2>()
    }
}
