//! How a step of a panel is multiplied with a step of inputs: one scheme for each number type of
//! weights.
#![allow(unsafe_code)]

use crate::kernels::vector::Vector;

/// One step of a register block.
pub(super) trait StepScheme<V: Vector> {
    /// Weights in a 32-bit value, and inputs of a step.
    const WEIGHTS: usize;

    /// Adds one step to the sums of M rows by N vectors. `packed` are the N vectors of the panel,
    /// `inputs` points to those of the first row.
    ///
    /// SAFETY: M rows of `WEIGHTS` inputs can be read at `inputs`, `stride` apart; one input each
    /// if `HALF`.
    unsafe fn step<const M: usize, const N: usize, const HALF: bool>(
        sums: &mut [[V; N]; M],
        packed: [V; N],
        inputs: *const f32,
        stride: usize,
    );
}

pub(super) struct Float32Scheme;

impl<V: Vector> StepScheme<V> for Float32Scheme {
    const WEIGHTS: usize = 1;

    #[inline(always)]
    unsafe fn step<const M: usize, const N: usize, const HALF: bool>(
        sums: &mut [[V; N]; M],
        packed: [V; N],
        inputs: *const f32,
        stride: usize,
    ) {
        // SAFETY: the contract of the trait.
        unsafe { add(sums, packed, inputs, stride) };
    }
}

/// bfloat16 weights, widened to float32.
pub(super) struct WidenedScheme;

impl<V: Vector> StepScheme<V> for WidenedScheme {
    const WEIGHTS: usize = 2;

    #[inline(always)]
    unsafe fn step<const M: usize, const N: usize, const HALF: bool>(
        sums: &mut [[V; N]; M],
        packed: [V; N],
        inputs: *const f32,
        stride: usize,
    ) {
        let mut even = packed;
        let mut odd = packed;
        each!(vector < N, {
            even[vector] = packed[vector].shift_left::<16>();
            odd[vector] = packed[vector].and(V::from_bits(0xffff_0000));
        });
        // SAFETY: the contract of the trait.
        unsafe { add(sums, even, inputs, stride) };
        if !HALF {
            // SAFETY: the contract of the trait.
            unsafe { add(sums, odd, inputs.add(1), stride) };
        }
    }
}

/// One fused multiply-add of every chain.
///
/// SAFETY: M inputs can be read at `inputs`, `stride` apart.
#[inline(always)]
unsafe fn add<V: Vector, const M: usize, const N: usize>(
    sums: &mut [[V; N]; M],
    weights: [V; N],
    inputs: *const f32,
    stride: usize,
) {
    each!(row < M, {
        // SAFETY: by the contract above.
        let input = V::splat(unsafe { *inputs.add(row * stride) });
        each!(vector < N, {
            sums[row][vector] = weights[vector].fma(input, sums[row][vector]);
        });
    });
}
