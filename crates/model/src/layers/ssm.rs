//! The Mamba-2 recurrence of one head, token by token: prefill and decode alike.
//! `kernels::HeadScan` is its vector form.
//!
//! `S <- exp(dt A) S + dt x B^T`, `y = S C + D x` after the update. A head's state `[P, N]` is 80 x
//! 128 x 4 B = 40 KiB for the 12B: it stays in a core's first-level cache for a whole span, so a
//! token costs 2 x 80 x 128 fused multiply-adds and no memory traffic except its inputs.

use super::{dot, softplus};
use crate::config::SsmConfig;
use crate::kernels::{HeadScan, StridedRows, math};
use crate::weights::SsmWeights;

/// Parameters of one head.
#[derive(Debug, Clone, Copy)]
pub struct SsmHead {
    pub a: f32,
    pub d: f32,
    /// Added to dt before softplus.
    pub dt_bias: f32,
    /// Limits that dt is clamped to after softplus.
    pub dt_limit: (f32, f32),
}

impl SsmHead {
    /// One head of a layer.
    pub fn of(config: &SsmConfig, weights: &SsmWeights, head: usize) -> Self {
        Self {
            a: weights.a[head],
            d: weights.d[head],
            dt_bias: weights.dt_bias[head],
            dt_limit: config.time_step_limit,
        }
    }

    /// The step size: softplus, and the configured limits. There is no other lower limit:
    /// `time_step_min` belongs to initialisation.
    pub fn dt(&self, raw: f32) -> f32 {
        let dt = softplus(raw + self.dt_bias);
        limit(dt, self.dt_limit)
    }

    /// Advances `state` `[P, N]` by one token and computes its output `[P]`.
    pub fn step(&self, token: SsmToken<'_>, state: &mut [f32], y: &mut [f32]) {
        let dt = self.dt(token.dt);
        let decay = (dt * self.a).exp();
        for ((state, x), y) in state.chunks_exact_mut(token.b.len()).zip(token.x).zip(y) {
            let input = dt * x;
            state.iter_mut().zip(token.b).for_each(|(s, b)| *s = input.mul_add(*b, decay * *s));
            *y = self.d.mul_add(*x, dot(state, token.c));
        }
    }
}

/// Inputs of a head for one token.
#[derive(Debug, Clone, Copy)]
pub struct SsmToken<'a> {
    pub x: &'a [f32],
    pub b: &'a [f32],
    pub c: &'a [f32],
    pub dt: f32,
}

/// Clamps a value to limits; a NaN stays NaN.
fn limit(dt: f32, (low, high): (f32, f32)) -> f32 {
    if dt < low {
        low
    } else if dt > high {
        high
    } else {
        dt
    }
}

/// For one token, from the dt columns of its row of `in_proj`: dt of every head, then exp(dt A) of
/// every head.
pub fn steps(config: &SsmConfig, weights: &SsmWeights, raw: &[f32], out: &mut [f32]) {
    let (dt, decay) = out.split_at_mut(config.heads);
    dt.iter_mut().zip(raw.iter().zip(&weights.dt_bias)).for_each(|(dt, (raw, bias))| *dt = raw + bias);
    math::softplus(dt);
    dt.iter_mut().for_each(|dt| *dt = limit(*dt, config.time_step_limit));
    decay.iter_mut().zip(dt.iter().zip(&weights.a)).for_each(|(decay, (dt, a))| *decay = dt * a);
    math::exp(decay);
}

/// Inputs of `head` for some tokens: their rows after the convolution `[T, W]`, x | B | C, and the
/// output of `steps` `[T, 2 heads]`.
///
/// Head h shares B and C of group floor(h / heads per group).
pub fn scan<'a>(
    config: &SsmConfig,
    weights: &SsmWeights,
    head: usize,
    mixed: &'a [f32],
    steps: &'a [f32],
) -> HeadScan<'a> {
    let width = config.conv_width();
    let inner = config.inner();
    let shared = config.groups * config.state;
    let group = head / (config.heads / config.groups) * config.state;
    HeadScan {
        x: StridedRows::new(mixed, head * config.head_dim, config.head_dim, width),
        b: StridedRows::new(mixed, inner + group, config.state, width),
        c: StridedRows::new(mixed, inner + shared + group, config.state, width),
        dt: StridedRows::new(steps, head, 1, 2 * config.heads),
        decay: StridedRows::new(steps, config.heads + head, 1, 2 * config.heads),
        skip: weights.d[head],
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::ChaCha12Rng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::kernels::PackedMatrix;

    #[test]
    fn a_step_decays_adds_and_reads_after_the_update() {
        let head = SsmHead { a: -0.5, d: 3.0, dt_bias: 0.25, dt_limit: (0.0, f32::INFINITY) };
        let mut state = [1.0, 2.0, -1.0, 0.5];
        let mut y = [0.0; 2];
        let token = SsmToken { x: &[2.0, -1.0], b: &[0.5, 1.0], c: &[1.0, -2.0], dt: 0.75 };
        head.step(token, &mut state, &mut y);
        let dt = (1.0 + 1.0_f64.exp()).ln();
        let decay = (-0.5 * dt).exp();
        let want = [decay + dt * 2.0 * 0.5, 2.0 * decay + dt * 2.0, -decay - dt * 0.5, 0.5 * decay - dt];
        let out = [want[0] - 2.0 * want[1] + 6.0, want[2] - 2.0 * want[3] - 3.0];
        let near =
            |got: &[f32], want: &[f64]| got.iter().zip(want).all(|(g, w)| (f64::from(*g) - w).abs() < 1e-6);
        assert!(near(&state, &want), "{state:?} for {want:?}");
        assert!(near(&y, &out), "{y:?} for {out:?}");
    }

    #[test]
    fn dt_has_no_floor_but_the_configured_limits() {
        #[track_caller]
        fn check(dt_limit: (f32, f32), raw: f32, want: f32) {
            let head = SsmHead { a: -1.0, d: 0.0, dt_bias: 0.0, dt_limit };
            let got = head.dt(raw);
            assert!((got - want).abs() <= 1e-6 * want || got.is_nan() && want.is_nan(), "{got} for {want}");
        }
        let free = (0.0, f32::INFINITY);
        check(free, -12.0, 6.144_194e-6); // far below time_step_min = 1e-3, and kept
        check(free, -104.0, 0.0);
        check(free, 0.0, std::f32::consts::LN_2);
        check(free, 90.0, 90.0);
        check((0.001, 0.1), -12.0, 0.001);
        check((0.001, 0.1), 5.0, 0.1);
        check((0.001, 0.1), f32::NAN, f32::NAN);
    }

    /// Rows of random tokens, and random weights, for 4 heads in 2 groups.
    struct SsmCase {
        config: SsmConfig,
        weights: SsmWeights,
        mixed: Vec<f32>,
        raw: Vec<f32>,
    }

    const SEED: u64 = 23;
    const TOKENS: usize = 40;

    impl SsmCase {
        fn new() -> Self {
            let config = SsmConfig {
                heads: 4,
                head_dim: 10,
                state: 19,
                groups: 2,
                conv_kernel: 4,
                chunk: 8,
                time_step_limit: (0.0, f32::INFINITY),
            };
            let mut random = ChaCha12Rng::seed_from_u64(SEED);
            let mut random_values = |count: usize, scale: f32| -> Vec<f32> {
                (0..count).map(|_| scale * (random.random::<f32>() * 2.0 - 1.0)).collect()
            };
            let weights = SsmWeights {
                in_proj: PackedMatrix::from_f32(0, 0, &[]),
                conv: Vec::new(),
                conv_bias: Vec::new(),
                a: random_values(4, 1.0).into_iter().map(|a| -1.0 - a).collect(),
                d: random_values(4, 1.0),
                dt_bias: random_values(4, 3.0),
                norm: Vec::new(),
                out_proj: PackedMatrix::from_f32(0, 0, &[]),
            };
            let mixed = random_values(TOKENS * config.conv_width(), 1.0);
            Self { raw: random_values(TOKENS * config.heads, 2.0), config, weights, mixed }
        }

        /// Inputs of a head for a token, in the layout of `scan`: x of 4 heads, B of 2 groups, C of
        /// 2 groups.
        fn token(&self, head: usize, t: usize) -> SsmToken<'_> {
            let row = &self.mixed[t * 116..(t + 1) * 116];
            let group = head / 2;
            SsmToken {
                x: &row[head * 10..][..10],
                b: &row[40 + group * 19..][..19],
                c: &row[78 + group * 19..][..19],
                dt: self.raw[t * 4 + head],
            }
        }
    }

    #[track_caller]
    fn near(got: &[f32], want: &[f32], what: &str) {
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(want) {
            assert!(
                (got - want).abs() <= 3e-6 * want.abs().max(1.0),
                "seed {SEED}, {what}: {got} for {want}"
            );
        }
    }

    #[test]
    fn the_vector_form_does_what_the_steps_do_and_heads_read_their_own_group() {
        let case = SsmCase::new();
        let mut steps_of = vec![0.0; TOKENS * 8];
        for (raw, out) in case.raw.chunks_exact(4).zip(steps_of.chunks_exact_mut(8)) {
            steps(&case.config, &case.weights, raw, out);
        }
        for index in 0..4 {
            let head = SsmHead::of(&case.config, &case.weights, index);
            let mut state = vec![0.0; 190];
            let mut y = vec![0.0; TOKENS * 10];
            for (t, y) in y.chunks_exact_mut(10).enumerate() {
                head.step(case.token(index, t), &mut state, y);
            }
            let mut vector_state = vec![0.0; 190];
            let mut vector_y = vec![0.0; TOKENS * 10];
            let scan = scan(&case.config, &case.weights, index, &case.mixed, &steps_of);
            scan.run(&mut vector_state, &mut vector_y);
            near(&vector_state, &state, "state");
            near(&vector_y, &y, "outputs");
        }
    }
}
