//! The causal depthwise convolution of a Mamba-2 layer, with bias and SiLU.
//!
//! Lower bound: a channel of a token reads its newest input and writes its output, 8 bytes; earlier
//! inputs, taps and bias are in a cache. About 30 operations a channel (4 multiply-adds, the rest
//! SiLU) take one core 1 cycle.
//!
//! Order: `bias`, then the taps from the oldest input to the newest, each a fused multiply-add.

use super::StridedRows;
use super::isa::{InstructionSet, VectorOp};
use super::math::functions::{Silu, UnaryFunction};
use super::vector::{LANES, Vector};

/// The taps and the bias of one layer.
#[derive(Debug)]
pub struct ConvKernel {
    width: usize,
    kernel: usize,
    /// `[kernel][W]`: channels are adjacent, as in a token's inputs.
    taps: Vec<f32>,
    bias: Vec<f32>,
}

impl ConvKernel {
    /// Takes taps by channel, `[W][kernel]`, the last one for the current token, and a bias for
    /// each channel.
    pub fn new(taps: &[f32], bias: &[f32], kernel: usize) -> Self {
        let width = bias.len();
        assert!(kernel > 0 && taps.len() == width * kernel, "{kernel} taps for each of {width} channels");
        let tap = |at: usize| taps[at % width * kernel + at / width];
        Self { width, kernel, taps: (0..width * kernel).map(tap).collect(), bias: bias.to_vec() }
    }

    pub fn width(&self) -> usize {
        self.width
    }

    /// Values of a sequence's state: the last `kernel - 1` inputs, `[kernel - 1][W]`, oldest first;
    /// zeros at the start of the sequence.
    pub(crate) fn state_len(&self) -> usize {
        (self.kernel - 1) * self.width
    }

    /// Computes the output `[W]` for the `token`th of the new inputs that follow those in `state`.
    /// Any thread may compute any token; after all are done, `advance` the state.
    pub fn output(&self, state: &[f32], inputs: StridedRows<'_>, token: usize, out: &mut [f32]) {
        self.output_by(InstructionSet::best(), state, inputs, token, out);
    }

    fn output_by(
        &self,
        isa: InstructionSet,
        state: &[f32],
        inputs: StridedRows<'_>,
        token: usize,
        out: &mut [f32],
    ) {
        self.check(state, inputs);
        assert_eq!(out.len(), self.width, "an output for each channel");
        isa.run(ConvToken { conv: self, state, inputs, token, out });
    }

    /// Updates the state to the end of the new inputs.
    pub fn advance(&self, state: &mut [f32], inputs: StridedRows<'_>) {
        self.check(state, inputs);
        let kept = self.kernel - 1;
        let new = inputs.count();
        if new < kept {
            state.copy_within(new * self.width.., 0);
        }
        let first = kept.saturating_sub(new);
        for index in first..kept {
            let token = index + new - kept;
            state[index * self.width..][..self.width].copy_from_slice(inputs.row(token));
        }
    }

    fn check(&self, state: &[f32], inputs: StridedRows<'_>) {
        assert_eq!(
            state.len(),
            self.state_len(),
            "a state of {} inputs by {} channels",
            self.kernel - 1,
            self.width
        );
        assert_eq!(inputs.width(), self.width, "an input for each channel");
    }

    /// The input that tap `tap` of a token applies to.
    #[inline(always)]
    fn input<'a>(&self, state: &'a [f32], inputs: StridedRows<'a>, token: usize, tap: usize) -> &'a [f32] {
        match (token + tap).checked_sub(self.kernel - 1) {
            Some(row) => inputs.row(row),
            None => &state[(token + tap) * self.width..][..self.width],
        }
    }
}

struct ConvToken<'a> {
    conv: &'a ConvKernel,
    state: &'a [f32],
    inputs: StridedRows<'a>,
    token: usize,
    out: &'a mut [f32],
}

impl VectorOp for ConvToken<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { conv, state, inputs, token, out } = self;
        out.copy_from_slice(&conv.bias);
        for tap in 0..conv.kernel - 1 {
            let taps = &conv.taps[tap * conv.width..][..conv.width];
            add_tap::<V, false>(out, taps, conv.input(state, inputs, token, tap));
        }
        let taps = &conv.taps[(conv.kernel - 1) * conv.width..];
        add_tap::<V, true>(out, taps, inputs.row(token));
    }
}

/// `out = taps inputs + out`; after the last tap also SiLU.
#[inline(always)]
fn add_tap<V: Vector, const LAST: bool>(out: &mut [f32], taps: &[f32], inputs: &[f32]) {
    let (out, out_rest) = out.as_chunks_mut::<LANES>();
    let (taps, taps_rest) = taps.as_chunks();
    let (inputs, inputs_rest) = inputs.as_chunks();
    for ((out, taps), inputs) in out.iter_mut().zip(taps).zip(inputs) {
        finish::<V, LAST>(V::load(taps).fma(V::load(inputs), V::load(out))).store(out);
    }
    if !out_rest.is_empty() {
        let sum = V::load_part(taps_rest).fma(V::load_part(inputs_rest), V::load_part(out_rest));
        finish::<V, LAST>(sum).store_part(out_rest);
    }
}

#[inline(always)]
fn finish<V: Vector, const LAST: bool>(sum: V) -> V {
    if LAST { Silu.of(sum) } else { sum }
}

#[cfg(test)]
mod tests {
    use rand::rngs::ChaCha12Rng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    const SEED: u64 = 3;

    /// The definition in float64, with zeros before the inputs.
    fn exact(taps: &[f32], bias: &[f32], kernel: usize, inputs: StridedRows<'_>) -> Vec<f64> {
        let element = |token: usize, channel: usize| {
            let term = |tap: usize| {
                let row = (token + tap).checked_sub(kernel - 1);
                row.map_or(0.0, |row| {
                    f64::from(inputs.row(row)[channel]) * f64::from(taps[channel * kernel + tap])
                })
            };
            let sum = f64::from(bias[channel]) + (0..kernel).map(term).sum::<f64>();
            sum / (1.0 + (-sum).exp())
        };
        (0..inputs.count() * bias.len()).map(|at| element(at / bias.len(), at % bias.len())).collect()
    }

    fn run(conv: &ConvKernel, isa: InstructionSet, state: &mut [f32], inputs: StridedRows<'_>) -> Vec<f32> {
        let mut out = vec![f32::NAN; inputs.count() * conv.width()];
        for (token, out) in out.chunks_mut(conv.width()).enumerate() {
            conv.output_by(isa, state, inputs, token, out);
        }
        conv.advance(state, inputs);
        out
    }

    /// Checks against float64, with every instruction set, and with cuts anywhere, also into single
    /// tokens.
    #[track_caller]
    fn check(width: usize, kernel: usize, tokens: usize) {
        let mut rng = ChaCha12Rng::seed_from_u64(SEED);
        let mut random_values =
            |len: usize| -> Vec<f32> { (0..len).map(|_| rng.random_range(-1.0f32..1.0)).collect() };
        let taps = random_values(width * kernel);
        let bias = random_values(width);
        let values = random_values(tokens * (width + 5));
        let inputs = StridedRows::new(&values, 2, width, width + 5);
        let conv = ConvKernel::new(&taps, &bias, kernel);
        let case = format!("{tokens} tokens of {width} channels, {kernel} taps, seed {SEED}");
        let mut state = vec![0.0; conv.state_len()];
        let want = run(&conv, InstructionSet::best(), &mut state, inputs);
        for (got, want) in want.iter().zip(exact(&taps, &bias, kernel, inputs)) {
            assert!((f64::from(*got) - want).abs() < 1e-6, "{case}: {got} for {want}");
        }
        for isa in InstructionSet::available() {
            for cut in 1..tokens {
                let mut cut_state = vec![0.0; conv.state_len()];
                let mut got = run(&conv, isa, &mut cut_state, inputs.part(0, cut));
                got.extend(run(&conv, isa, &mut cut_state, inputs.part(cut, tokens)));
                assert!(got == want && cut_state == state, "{case}: cut at {cut} by {isa:?}");
            }
            let mut cut_state = vec![0.0; conv.state_len()];
            let single = |token| run(&conv, isa, &mut cut_state, inputs.part(token, token + 1));
            assert!(
                (0..tokens).flat_map(single).eq(want.iter().copied()),
                "{case}: token by token by {isa:?}"
            );
        }
    }

    #[test]
    fn the_convolution_is_exact_and_may_be_cut_anywhere() {
        for (width, kernel, tokens) in [(1, 1, 2), (5, 4, 1), (16, 4, 2), (33, 4, 9), (48, 2, 6), (70, 5, 7)]
        {
            check(width, kernel, tokens);
        }
    }
}
