//! The causal depthwise convolution over x | B | C, and its state: the inputs of the last
//! `kernel - 1` tokens.
//!
//! `c_t = silu(bias + sum_k w[k] .* in_{t-kernel+1+k})`; k = kernel - 1 is the current token, and
//! there are zeros before the sequence. The state holds inputs, not outputs, oldest first, one row
//! of W values a token, so that rows are copied in and out unchanged. `kernels::ConvKernel` is its
//! vector form.

use super::silu;
use crate::kernels::StridedRows;

/// Taps and bias of one layer.
#[derive(Debug, Clone, Copy)]
pub struct ConvTaps<'a> {
    /// `[W, kernel]`, by channel.
    pub weights: &'a [f32],
    pub bias: &'a [f32],
}

impl ConvTaps<'_> {
    pub fn kernel(&self) -> usize {
        self.weights.len() / self.bias.len()
    }

    /// Output `[W]` of token `t`, from the inputs of these tokens and, for taps before the first of
    /// them, from the state `[kernel - 1, W]`.
    pub fn row(&self, inputs: StridedRows<'_>, state: &[f32], t: usize, out: &mut [f32]) {
        let kernel = self.kernel();
        let width = self.bias.len();
        out.copy_from_slice(self.bias);
        for tap in 0..kernel {
            let input = match (t + tap).checked_sub(kernel - 1) {
                Some(at) => inputs.row(at),
                None => &state[(t + tap) * width..][..width],
            };
            let weights = self.weights.iter().skip(tap).step_by(kernel);
            for ((out, input), weight) in out.iter_mut().zip(input).zip(weights) {
                *out = weight.mul_add(*input, *out);
            }
        }
        out.iter_mut().for_each(|out| *out = silu(*out));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::ConvKernel;

    const WEIGHTS: [f32; 8] = [0.5, -1.0, 2.0, 0.25, 1.0, 3.0, -0.5, 0.125];
    const BIAS: [f32; 2] = [0.1, -0.2];
    const TAPS: ConvTaps<'_> = ConvTaps { weights: &WEIGHTS, bias: &BIAS };

    fn values() -> Vec<f32> {
        (0..7 * 5).map(|i| (i as f32 * 0.7).sin()).collect()
    }

    /// Outputs of 7 tokens of 2 channels, given in pieces, as columns of wider rows.
    fn run(pieces: &[usize], output: impl Fn(StridedRows<'_>, &[f32], usize, &mut [f32])) -> Vec<f32> {
        let values = values();
        let conv = ConvKernel::new(&WEIGHTS, &BIAS, 4);
        let inputs = StridedRows::new(&values, 2, 2, 5);
        let mut state = vec![0.0; 6];
        let mut out = vec![0.0; 14];
        let mut first = 0;
        for piece in pieces {
            let inputs = inputs.part(first, first + piece);
            for t in 0..*piece {
                output(inputs, &state, t, &mut out[(first + t) * 2..][..2]);
            }
            conv.advance(&mut state, inputs);
            first += piece;
        }
        out
    }

    fn plain(inputs: StridedRows<'_>, state: &[f32], t: usize, out: &mut [f32]) {
        TAPS.row(inputs, state, t, out);
    }

    #[track_caller]
    fn near(got: &[f32], want: impl Iterator<Item = f64>) {
        for (index, (got, want)) in got.iter().zip(want).enumerate() {
            assert!((f64::from(*got) - want).abs() < 1e-6, "{got} for {want} at {index}");
        }
    }

    #[test]
    fn the_present_token_takes_the_last_tap_and_zeros_stand_before_the_first() {
        let values = values();
        let input = |t: usize, channel: usize| f64::from(values[t * 5 + 2 + channel]);
        let want = (0..14).map(|index| {
            let t = index / 2;
            let channel = index % 2;
            let tap = |k: usize| f64::from(WEIGHTS[channel * 4 + k]);
            let terms = (0..4).filter(|k| t + k >= 3).map(|k| tap(k) * input(t + k - 3, channel));
            let sum = f64::from(BIAS[channel]) + terms.sum::<f64>();
            sum / (1.0 + (-sum).exp())
        });
        near(&run(&[7], plain), want);
    }

    #[test]
    fn the_vector_form_is_the_same_and_any_cut_gives_the_same_bits() {
        let conv = ConvKernel::new(&WEIGHTS, &BIAS, 4);
        let whole = run(&[7], plain);
        let vectors = |inputs: StridedRows<'_>, state: &[f32], t: usize, out: &mut [f32]| {
            conv.output(state, inputs, t, out);
        };
        near(&run(&[7], vectors), whole.iter().map(|value| f64::from(*value)));
        for pieces in [&[1, 1, 1, 1, 1, 1, 1][..], &[1, 6], &[2, 5], &[3, 4], &[4, 3], &[2, 2, 3], &[6, 1]] {
            assert_eq!(run(pieces, plain), whole, "cut {pieces:?}");
            assert_eq!(run(pieces, vectors), run(&[7], vectors), "cut {pieces:?}");
        }
    }
}
