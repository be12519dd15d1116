//! Peak rates of this machine, as a reference for measurements. The caller measures the time.

use std::hint::black_box;

use super::isa::{InstructionSet, VectorOp};
use super::thread_pool::ThreadPool;
use super::vector::{LANES, Vector};

/// Fused multiply-adds on values in registers, `rounds` times on every thread; returns the number
/// of operations, two for each.
pub fn multiply_adds(team: &ThreadPool, rounds: usize) -> f64 {
    team.tasks(team.threads(), |_| {
        black_box(InstructionSet::best().run(MultiplyAdds { rounds }));
    });
    (team.threads() * rounds * CHAINS * LANES * 2) as f64
}

/// Reads all values once with all threads, each a segment of its own; returns a sum of them.
pub fn read(team: &ThreadPool, values: &[f32]) -> f32 {
    let mut sums = vec![0.0; team.threads()];
    let share = values.len().div_ceil(team.threads()).max(1);
    team.pieces(&mut sums, 1, |index, sum| {
        let values = values.chunks(share).nth(index).unwrap_or_default();
        sum[0] = InstructionSet::best().run(ReadSum { values });
    });
    sums.iter().sum()
}

/// Independent sums: more than two pipes with a latency of four need.
const CHAINS: usize = 12;

struct MultiplyAdds {
    rounds: usize,
}

impl VectorOp for MultiplyAdds {
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

struct ReadSum<'a> {
    values: &'a [f32],
}

impl VectorOp for ReadSum<'_> {
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
