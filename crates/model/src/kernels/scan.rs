//! The state-space recurrence of one Mamba-2 head: `S = decay S + (dt x) B^T`, `y = S C + skip x`,
//! token by token.
//!
//! Lower bound: 6 P N operations a token on P N floats of state. 64 x 128 floats are 32 KiB and
//! stay in the first-level cache for all tokens of a span, so the state moves from memory once a
//! span. Per sixteen values three loads, three operations and one store remain, 1.5 cycles on two
//! pipes. For 97M parameters that is a thirtieth of the matrix products, so turning the recurrence
//! into products over chunks would gain nothing and lose a property: any cut of a prompt gives the
//! same bits.
//!
//! Order: `S[p][n] = fma(dt x[p], B[n], decay S[p][n])`, the product with decay rounded; `y[p]` is
//! sixteen partial sums, n in partial n mod 16, chained over n and added by the tree of
//! `Vector::sum`; then `fma(skip, x[p], …)`.

use super::StridedRows;
use super::isa::{InstructionSet, VectorOp};
use super::vector::{LANES, Lanes, Vector};

/// Inputs of one head for some tokens.
#[derive(Debug, Clone, Copy)]
pub struct HeadScan<'a> {
    pub x: StridedRows<'a>,
    /// B of the head's group, `[T][N]`.
    pub b: StridedRows<'a>,
    /// C of the head's group, `[T][N]`.
    pub c: StridedRows<'a>,
    /// dt after softplus, `[T][1]`.
    pub dt: StridedRows<'a>,
    pub decay: StridedRows<'a>,
    /// D of the head.
    pub skip: f32,
}

impl HeadScan<'_> {
    /// Runs the tokens through `state[P][N]` and writes `y[T][P]`.
    pub fn run(self, state: &mut [f32], y: &mut [f32]) {
        self.run_by(InstructionSet::best(), state, y);
    }

    fn run_by(self, isa: InstructionSet, state: &mut [f32], y: &mut [f32]) {
        let tokens = self.x.count();
        let size = self.x.width();
        let width = self.b.width();
        let counts = [self.b.count(), self.c.count(), self.dt.count(), self.decay.count()];
        assert_eq!(counts, [tokens; 4], "rows of B, C, dt and decay for {tokens} rows of x");
        assert_eq!(
            [self.c.width(), self.dt.width(), self.decay.width()],
            [width, 1, 1],
            "widths of C, dt and decay"
        );
        assert_eq!(state.len(), size * width, "a state of {size} x {width}");
        assert_eq!(y.len(), tokens * size, "outputs of {tokens} tokens by {size}");
        isa.run(ScanTokens { scan: self, state, y });
    }
}

/// Rows of the state that are updated together: their sums become one vector.
const BLOCK: usize = LANES;

struct ScanTokens<'a> {
    scan: HeadScan<'a>,
    state: &'a mut [f32],
    y: &'a mut [f32],
}

impl VectorOp for ScanTokens<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let HeadScan { x, b, c, dt, decay, skip } = self.scan;
        let size = x.width();
        let width = b.width();
        if size == 0 || width == 0 {
            return;
        }
        for (token, y) in self.y.chunks_exact_mut(size).enumerate() {
            let b = b.row(token);
            let c = c.row(token);
            let dt = dt.row(token)[0];
            let decay = decay.row(token)[0];
            let blocks =
                self.state.chunks_mut(BLOCK * width).zip(x.row(token).chunks(BLOCK)).zip(y.chunks_mut(BLOCK));
            for ((state, x), y) in blocks {
                let sums = update::<V>(state, dt, decay, x, b, c);
                V::splat(skip).fma(V::load_part(x), sums).store_part(y);
            }
        }
    }
}

/// Up to sixteen rows of the state by one token; lane p of the result is S C of row p.
#[inline(always)]
fn update<V: Vector>(state: &mut [f32], dt: f32, decay: f32, x: &[f32], b: &[f32], c: &[f32]) -> V {
    let decay = V::splat(decay);
    let mut sums = [V::zero(); BLOCK];
    let rows = state.chunks_exact_mut(b.len()).zip(x).zip(&mut sums);
    for ((state, x), sum) in rows {
        let x = V::splat(dt * x);
        let (state, state_rest) = state.as_chunks_mut::<LANES>();
        let (b, b_rest) = b.as_chunks();
        let (c, c_rest) = c.as_chunks();
        for ((state, b), c) in state.iter_mut().zip(b).zip(c) {
            *sum = step(state, x, decay, V::load(b), V::load(c), *sum);
        }
        if !state_rest.is_empty() {
            let mut lanes: Lanes = V::load_part(state_rest).lanes();
            *sum = step(&mut lanes, x, decay, V::load_part(b_rest), V::load_part(c_rest), *sum);
            state_rest.copy_from_slice(&lanes[..state_rest.len()]);
        }
    }
    V::sums(sums)
}

#[inline(always)]
fn step<V: Vector>(state: &mut Lanes, x: V, decay: V, b: V, c: V, sum: V) -> V {
    let new = x.fma(b, V::load(state).mul(decay));
    new.store(state);
    new.fma(c, sum)
}

#[cfg(test)]
mod tests {
    use rand::rngs::ChaCha12Rng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    const SEED: u64 = 5;

    struct ScanCase {
        size: usize,
        width: usize,
        tokens: usize,
        rows: Vec<f32>,
        dt: Vec<f32>,
        state: Vec<f32>,
    }

    impl ScanCase {
        fn new(size: usize, width: usize, tokens: usize) -> Self {
            let mut rng = ChaCha12Rng::seed_from_u64(SEED);
            let mut random_values =
                |len: usize, low: f32| -> Vec<f32> { (0..len).map(|_| rng.random_range(low..1.0)).collect() };
            let rows = random_values(tokens * (size + 2 * width + 1), -1.0);
            Self {
                size,
                width,
                tokens,
                rows,
                dt: random_values(tokens * 2, 0.01),
                state: random_values(size * width, -1.0),
            }
        }

        fn scan(&self, from: usize, to: usize) -> HeadScan<'_> {
            let stride = self.size + 2 * self.width + 1;
            let rows = |at, width| StridedRows::new(&self.rows, at, width, stride).part(from, to);
            let column = |at| StridedRows::new(&self.dt, at, 1, 2).part(from, to);
            let x = rows(1, self.size);
            let b = rows(1 + self.size, self.width);
            let c = rows(1 + self.size + self.width, self.width);
            HeadScan { x, b, c, dt: column(0), decay: column(1), skip: 0.7 }
        }

        /// State and outputs after all tokens, in float64.
        fn exact(&self) -> (Vec<f64>, Vec<f64>) {
            let mut state: Vec<f64> = self.state.iter().map(|value| f64::from(*value)).collect();
            let mut y = Vec::new();
            let HeadScan { x, b, c, dt, decay, skip } = self.scan(0, self.tokens);
            for token in 0..self.tokens {
                let [dt, decay] = [dt, decay].map(|rows| f64::from(rows.row(token)[0]));
                for (state, x) in state.chunks_mut(self.width).zip(x.row(token)) {
                    let mut sum = f64::from(skip) * f64::from(*x);
                    for ((state, b), c) in state.iter_mut().zip(b.row(token)).zip(c.row(token)) {
                        *state = decay * *state + dt * f64::from(*x) * f64::from(*b);
                        sum += *state * f64::from(*c);
                    }
                    y.push(sum);
                }
            }
            (state, y)
        }
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    #[track_caller]
    fn near(got: &[f32], want: &[f64], what: &str) {
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(want) {
            assert!((f64::from(*got) - want).abs() < 3e-6 * want.abs().max(3.0), "{what}: {got} for {want}");
        }
    }

    /// Checks against float64, with every instruction set, and with cuts anywhere.
    #[track_caller]
    fn check(size: usize, width: usize, tokens: usize) {
        let case = ScanCase::new(size, width, tokens);
        let text = format!("{tokens} tokens on {size} x {width}, seed {SEED}");
        let mut state = case.state.clone();
        let mut y = vec![f32::NAN; tokens * size];
        case.scan(0, tokens).run(&mut state, &mut y);
        let (exact_state, exact_y) = case.exact();
        near(&state, &exact_state, &text);
        near(&y, &exact_y, &text);
        for isa in InstructionSet::available() {
            let mut other = case.state.clone();
            let mut other_y = vec![f32::NAN; tokens * size];
            case.scan(0, tokens).run_by(isa, &mut other, &mut other_y);
            assert!(bits(&other) == bits(&state) && bits(&other_y) == bits(&y), "{text}: {isa:?}");
        }
        for cut in 1..tokens {
            let mut other = case.state.clone();
            let mut other_y = vec![f32::NAN; tokens * size];
            let (first, second) = other_y.split_at_mut(cut * size);
            case.scan(0, cut).run(&mut other, first);
            case.scan(cut, tokens).run(&mut other, second);
            assert!(bits(&other) == bits(&state) && bits(&other_y) == bits(&y), "{text}: cut at {cut}");
        }
    }

    #[test]
    fn the_scan_is_exact_and_may_be_cut_anywhere() {
        for (size, width, tokens) in
            [(1, 1, 1), (8, 4, 5), (16, 16, 3), (17, 33, 4), (64, 128, 9), (80, 128, 3), (12, 24, 7)]
        {
            check(size, width, tokens);
        }
    }
}
