//! What this machine can do at most, so that a measured figure has something to stand against. Whoever asks holds the clock.

use std::hint::black_box;

use super::isa::{Isa, Op};
use super::team::Team;
use super::vector::{LANES, Vector};

/// Fused multiply-adds on values in registers, `rounds` times on every thread; returns the operations done, two each.
pub fn multiply_adds(team: &Team, rounds: usize) -> f64 {
    team.tasks(team.threads(), |_| {
        black_box(Isa::best().run(MultiplyAdds { rounds }));
    });
    (team.threads() * rounds * CHAINS * LANES * 2) as f64
}

/// Reads all values once with all threads, each its own stretch; returns a sum of them.
pub fn read(team: &Team, values: &[f32]) -> f32 {
    let mut sums = vec![0.0; team.threads()];
    let stretch = values.len().div_ceil(team.threads()).max(1);
    team.pieces(&mut sums, 1, |index, sum| {
        let values = values.chunks(stretch).nth(index).unwrap_or_default();
        sum[0] = Isa::best().run(Read { values });
    });
    sums.iter().sum()
}

/// Sums under way at once: more than two pipes of latency four need.
const CHAINS: usize = 12;

struct MultiplyAdds {
    rounds: usize,
}

impl Op for MultiplyAdds {
    type Output = f32;

    #[inline(always)]
    fn run<V: Vector>(self) -> f32 {
        let factor = V::splat(black_box(0.999));
        let mut sums = [V::zero(); CHAINS];
        for _ in 0..self.rounds {
            for sum in &mut sums {
                *sum = sum.fma(factor, factor);
            }
        }
        sums.iter().fold(V::zero(), |all, sum| all.add(*sum)).sum()
    }
}

struct Read<'a> {
    values: &'a [f32],
}

impl Op for Read<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<V: Vector>(self) -> f32 {
        let mut sums = [V::zero(); CHAINS];
        let (blocks, _) = self.values.as_chunks::<{ CHAINS * LANES }>();
        for block in blocks {
            let (lanes, _) = block.as_chunks();
            for (sum, lanes) in sums.iter_mut().zip(lanes) {
                *sum = sum.add(V::load(lanes));
            }
        }
        sums.iter().fold(V::zero(), |all, sum| all.add(*sum)).sum()
    }
}
