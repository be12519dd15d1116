//! How a step of a panel meets a step of inputs: one scheme for each kind of weights.
#![allow(unsafe_code)]

use crate::kernels::vector::Vector;

/// One step of a register block.
pub(super) trait Scheme<V: Vector> {
    /// Weights a word holds, and inputs a step takes.
    const WEIGHTS: usize;

    /// Adds one step to the sums of M rows by N vectors; `words` are the N vectors of the panel, `inputs` points to the first row's.
    ///
    /// SAFETY: M rows of `WEIGHTS` inputs can be read at `inputs`, `stride` apart; of one input when `HALF`.
    unsafe fn step<const M: usize, const N: usize, const HALF: bool>(
        sums: &mut [[V; N]; M],
        words: [V; N],
        inputs: *const f32,
        stride: usize,
    );
}

/// float32 weights.
pub(super) struct Float32;

impl<V: Vector> Scheme<V> for Float32 {
    const WEIGHTS: usize = 1;

    #[inline(always)]
    unsafe fn step<const M: usize, const N: usize, const HALF: bool>(
        sums: &mut [[V; N]; M],
        words: [V; N],
        inputs: *const f32,
        stride: usize,
    ) {
        // SAFETY: the contract of the trait.
        unsafe { add(sums, words, inputs, stride) };
    }
}

/// bfloat16 weights, widened to float32.
pub(super) struct Widened;

impl<V: Vector> Scheme<V> for Widened {
    const WEIGHTS: usize = 2;

    #[inline(always)]
    unsafe fn step<const M: usize, const N: usize, const HALF: bool>(
        sums: &mut [[V; N]; M],
        words: [V; N],
        inputs: *const f32,
        stride: usize,
    ) {
        let (mut even, mut odd) = (words, words);
        each!(vector < N, {
            even[vector] = words[vector].shift_left::<16>();
            odd[vector] = words[vector].and(V::from_bits(0xffff_0000));
        });
        // SAFETY: the contract of the trait.
        unsafe { add(sums, even, inputs, stride) };
        if !HALF {
            // SAFETY: the contract of the trait.
            unsafe { add(sums, odd, inputs.add(1), stride) };
        }
    }
}

/// One link of every chain.
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
