//! Compares the kernels with the peak rates of this machine:
//! `cargo bench -p furrow-model --bench kernels [-- THREADS]`. Each number is the best of several
//! runs, printed next to the peak measured in the same run.
#![allow(clippy::print_stdout, reason = "it prints what it measured")]

use std::hint::black_box;
use std::time::Instant;

use furrow_model::kernels::{InstructionSet, PackedMatrix, ProductPrecision, ThreadPool, peak};

fn main() {
    let threads = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(2);
    let team = ThreadPool::new(threads);
    let peaks = MachinePeaks::measure(&team);
    println!("{threads} threads, {:?}", InstructionSet::best());
    println!("peaks: {:.0} GFLOP/s of multiply-adds, {:.1} GB/s read", peaks.flops / 1e9, peaks.bytes / 1e9);
    println!("dispatch: {:.2} us", dispatch(&team) * 1e6);
    for (out, input) in [(768, 1536), (3072, 768), (16384, 768), (20480, 5120), (5120, 20480)] {
        let values: Vec<f32> = (0..out * input).map(|index| (index % 1013) as f32 * 1e-3 - 0.5).collect();
        let bits: Vec<u16> = values.iter().map(|value| (value.to_bits() >> 16) as u16).collect();
        let full = PackedMatrix::from_f32(out, input, &values);
        let half = PackedMatrix::from_bf16(out, input, &bits);
        for rows in [1, 2, 4, 8, 12, 32, 128, 1024] {
            for (name, matrix, compute) in [
                ("f32 ", &full, ProductPrecision::Float32),
                ("b16w", &half, ProductPrecision::Float32),
                ("b16 ", &half, ProductPrecision::Bfloat16),
            ] {
                product(&team, &peaks, name, matrix, compute, rows);
            }
        }
    }
}

struct MachinePeaks {
    flops: f64,
    bytes: f64,
}

impl MachinePeaks {
    fn measure(team: &ThreadPool) -> Self {
        let rounds = 4_000_000;
        let seconds = best(5, || _ = black_box(peak::multiply_adds(team, rounds)));
        let flops = peak::multiply_adds(team, 1) * rounds as f64 / seconds;
        let values = vec![1.0f32; 96 << 20];
        let seconds = best(7, || _ = black_box(peak::read(team, &values)));
        Self { flops, bytes: values.len() as f64 * 4.0 / seconds }
    }
}

fn product(
    team: &ThreadPool,
    peaks: &MachinePeaks,
    name: &str,
    matrix: &PackedMatrix,
    compute: ProductPrecision,
    rows: usize,
) {
    let x: Vec<f32> = (0..rows * matrix.input()).map(|index| (index % 61) as f32 * 0.01 - 0.3).collect();
    let mut y = vec![0.0; rows * matrix.out()];
    let flops = 2.0 * (rows * matrix.out() * matrix.input()) as f64;
    let runs = (4e10 / (flops + 2e8)).clamp(3.0, 400.0) as usize;
    let seconds = best(runs, || matrix.product(team, compute, &x, &mut y));
    println!(
        "{name} {rows:>5} x {:>6} x {:>6}: {:>9.1} us {:>7.1} GFLOP/s ({:>3.0} %) {:>6.1} GB/s ({:>3.0} %)",
        matrix.input(),
        matrix.out(),
        seconds * 1e6,
        flops / seconds / 1e9,
        100.0 * flops / seconds / peaks.flops,
        matrix.bytes() as f64 / seconds / 1e9,
        100.0 * matrix.bytes() as f64 / seconds / peaks.bytes,
    );
}

fn dispatch(team: &ThreadPool) -> f64 {
    best(5, || (0..1000).for_each(|_| team.tasks(team.threads(), |task| _ = black_box(task)))) / 1000.0
}

/// Seconds of the fastest of some runs.
fn best(runs: usize, mut work: impl FnMut()) -> f64 {
    let seconds = (0..runs).map(|_| {
        let begun = Instant::now();
        work();
        begun.elapsed().as_secs_f64()
    });
    seconds.fold(f64::INFINITY, f64::min)
}
