//! Detects the vector instructions of this machine, and compiles one source for each instruction
//! set.
//!
//! A kernel is a [`VectorOp`] written once over [`Vector`], sixteen float32 lanes with the same
//! arithmetic on every machine. A result is therefore the same bit for bit with AVX-512, with AVX2
//! and without either; only the time differs.
#![allow(unsafe_code)]

use std::sync::OnceLock;

use super::vector::{PortableVector, Vector};

/// A set of vector instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InstructionSet {
    /// x86-64 with AVX-512 F, BW, DQ, VL: one register is sixteen lanes.
    Avx512,
    /// x86-64 with AVX2 and FMA: two registers.
    Avx2,
    /// Any other; the compiler vectorises what it can (NEON on aarch64). Without fused multiply-add
    /// in hardware it is correct but slow.
    Portable,
}

/// A computation that is compiled for each instruction set. `run` and everything it calls must be
/// `#[inline(always)]`, or they are compiled without these instructions.
pub(super) trait VectorOp {
    type Output;
    fn run<V: Vector>(self) -> Self::Output;
}

impl InstructionSet {
    /// The best instruction set of this machine.
    pub fn best() -> Self {
        static BEST: OnceLock<InstructionSet> = OnceLock::new();
        *BEST.get_or_init(|| Self::available()[0])
    }

    /// Every instruction set of this machine, best first.
    pub fn available() -> Vec<Self> {
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

    /// Runs the computation with these instructions. The set must be one of
    /// [`InstructionSet::available`]; elsewhere the portable code runs.
    #[inline]
    pub(super) fn run<O: VectorOp>(self, op: O) -> O::Output {
        match self {
            // SAFETY: a value of this variant comes only from `best` or `available`, which checked
            // the processor.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { x86::avx512(op) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { x86::avx2(op) },
            _ => op.run::<PortableVector>(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::VectorOp;
    use crate::kernels::vector::{Avx2, Avx512};

    /// SAFETY: the processor has these features.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    pub(super) unsafe fn avx512<O: VectorOp>(op: O) -> O::Output {
        op.run::<Avx512>()
    }

    /// SAFETY: the processor has these features.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn avx2<O: VectorOp>(op: O) -> O::Output {
        op.run::<Avx2>()
    }
}
