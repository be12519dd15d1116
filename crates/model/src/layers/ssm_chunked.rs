//! The Mamba-2 recurrence of one head over a chunk of tokens at once: the form that becomes matrix
//! products.
//!
//! With a_t = dt_t A and L_t = a_1 + … + a_t, for a chunk of Q tokens that starts from state S:
//!
//! ```text
//! y_t = sum_{s<=t} exp(L_t - L_s) dt_s (C_t . B_s) x_s  +  exp(L_t) S C_t  +  D x_t
//! S'  = exp(L_Q) S  +  sum_s exp(L_Q - L_s) dt_s x_s B_s^T
//! ```
//!
//! All exponents are <= 0, so nothing overflows. It is the reference for the GPU's scan, where
//! matrix products are nearly free. The CPU uses the recurrence of `ssm.rs` for prefill too: a
//! chunk costs 2 P N + Q (P + N) / 2 multiply-adds a token and head against 2 P N, the state stays
//! in a core's first-level cache either way, and a recurrence gives the same bits at any cut of a
//! prefill.

use super::dot;
use super::ssm::{SsmHead, SsmToken};

/// Advances `state` `[P, N]` by all the tokens and computes their outputs `y` `[Q, P]`.
pub fn chunk(head: &SsmHead, tokens: &[SsmToken<'_>], state: &mut [f32], y: &mut [f32]) {
    let Some(first) = tokens.first() else { return };
    let size = first.x.len();
    let n = first.b.len();
    let dt: Vec<f32> = tokens.iter().map(|token| head.dt(token.dt)).collect();
    let sums = running_sums(&dt, head.a);
    for (t, (token, y)) in tokens.iter().zip(y.chunks_exact_mut(size)).enumerate() {
        let carried = sums[t].exp();
        for (p, y) in y.iter_mut().enumerate() {
            *y = head.d.mul_add(token.x[p], carried * dot(&state[p * n..(p + 1) * n], token.c));
        }
        for s in 0..=t {
            let weight = (sums[t] - sums[s]).exp() * dt[s] * dot(token.c, tokens[s].b);
            y.iter_mut().zip(tokens[s].x).for_each(|(y, x)| *y = weight.mul_add(*x, *y));
        }
    }
    let last = sums[tokens.len() - 1];
    state.iter_mut().for_each(|s| *s *= last.exp());
    for ((token, sum), dt) in tokens.iter().zip(&sums).zip(&dt) {
        let weight = (last - sum).exp() * dt;
        for (state, x) in state.chunks_exact_mut(n).zip(token.x) {
            state.iter_mut().zip(token.b).for_each(|(s, b)| *s = (weight * x).mul_add(*b, *s));
        }
    }
}

/// L_t, starting at the first token.
fn running_sums(dt: &[f32], a: f32) -> Vec<f32> {
    dt.iter()
        .scan(0.0, |sum, dt| {
            *sum += dt * a;
            Some(*sum)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::ChaCha12Rng;
    use rand::{RngExt, SeedableRng};

    const TOKENS: usize = 300;
    const SEED: u64 = 17;

    /// Inputs of one head and its first state.
    struct ChunkedCase {
        head: SsmHead,
        size: usize,
        n: usize,
        values: Vec<f32>,
        dt: Vec<f32>,
        state: Vec<f32>,
    }

    impl ChunkedCase {
        fn new(size: usize, n: usize, a: f32) -> Self {
            let mut random = ChaCha12Rng::seed_from_u64(SEED);
            let mut random_values = |count: usize, scale: f32| -> Vec<f32> {
                (0..count).map(|_| scale * (random.random::<f32>() * 2.0 - 1.0)).collect()
            };
            Self {
                head: SsmHead { a, d: 0.7, dt_bias: -2.0, dt_limit: (0.0, f32::INFINITY) },
                size,
                n,
                values: random_values(TOKENS * (size + 2 * n), 1.0),
                dt: random_values(TOKENS, 3.0),
                state: random_values(size * n, 1.0),
            }
        }

        fn tokens(&self) -> Vec<SsmToken<'_>> {
            let rows = self.values.chunks_exact(self.size + 2 * self.n);
            rows.zip(&self.dt)
                .map(|(row, dt)| {
                    let (x, shared) = row.split_at(self.size);
                    let (b, c) = shared.split_at(self.n);
                    SsmToken { x, b, c, dt: *dt }
                })
                .collect()
        }

        fn recurrence(&self) -> (Vec<f32>, Vec<f32>) {
            let mut state = self.state.clone();
            let mut y = vec![0.0; TOKENS * self.size];
            for (token, y) in self.tokens().into_iter().zip(y.chunks_exact_mut(self.size)) {
                self.head.step(token, &mut state, y);
            }
            (y, state)
        }

        fn chunked(&self, lengths: &[usize]) -> (Vec<f32>, Vec<f32>) {
            let tokens = self.tokens();
            let mut state = self.state.clone();
            let mut y = vec![0.0; TOKENS * self.size];
            let mut first = 0;
            for length in lengths {
                let out = &mut y[first * self.size..(first + length) * self.size];
                chunk(&self.head, &tokens[first..first + length], &mut state, out);
                first += length;
            }
            assert_eq!(first, TOKENS);
            (y, state)
        }
    }

    fn relative_rms(got: &[f32], want: &[f32]) -> f64 {
        let square = |v: f32| f64::from(v) * f64::from(v);
        let error: f64 = got.iter().zip(want).map(|(got, want)| square(got - want)).sum();
        (error / want.iter().map(|want| square(*want)).sum::<f64>()).sqrt()
    }

    #[track_caller]
    fn check(case: &ChunkedCase, lengths: &[usize]) {
        let (want_y, want_state) = case.recurrence();
        let (y, state) = case.chunked(lengths);
        let errors = [relative_rms(&y, &want_y), relative_rms(&state, &want_state)];
        // A difference of running sums has an error of one ulp of the larger one, and so has its
        // exponential, relatively.
        let sum: f32 = case.dt.iter().map(|dt| case.head.dt(*dt) * case.head.a).sum();
        let bound = f64::from(sum.abs() * f32::EPSILON) + 1e-6;
        assert!(
            errors.iter().all(|error| *error <= bound),
            "seed {SEED}, {lengths:?}: {errors:?} > {bound:e}"
        );
    }

    #[test]
    fn chunks_of_any_length_from_any_state_give_what_the_recurrence_gives() {
        for case in
            [ChunkedCase::new(10, 16, -0.9), ChunkedCase::new(7, 19, -0.05), ChunkedCase::new(4, 8, -8.0)]
        {
            check(&case, &[TOKENS]);
            check(&case, &[1; TOKENS]);
            for cut in [1, 2, 3, 127, 128, 129, 255, 256, 257, 299] {
                check(&case, &[cut, TOKENS - cut]);
            }
            check(&case, &[128, 128, 44]);
            check(&case, &[130, 1, 1, 1, 1, 90, 1, 75]);
        }
    }

    #[test]
    fn a_chunk_of_one_token_is_a_step_and_an_empty_chunk_changes_nothing() {
        let case = ChunkedCase::new(10, 16, -0.9);
        let mut state = case.state.clone();
        let mut y = vec![0.0; 10];
        chunk(&case.head, &[], &mut state, &mut []);
        assert_eq!(state, case.state);
        chunk(&case.head, &case.tokens()[..1], &mut state, &mut y);
        let mut want_state = case.state.clone();
        let mut want_y = vec![0.0; 10];
        case.head.step(case.tokens()[0], &mut want_state, &mut want_y);
        assert!(relative_rms(&y, &want_y) < 5e-7 && relative_rms(&state, &want_state) < 5e-7);
    }
}
