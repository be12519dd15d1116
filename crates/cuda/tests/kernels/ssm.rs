//! The recurrence, token by token and by chunks, against `layers::ssm::SsmHead` and
//! `layers::ssm_chunked`.

use std::ops::Range;

use furrow_cuda::launch::KernelLaunch;
use furrow_cuda::ops::ssm::SsmRecurrence;
use furrow_model::config::SsmConfig;
use furrow_model::layers::ssm::{SsmHead, SsmToken};
use furrow_model::layers::ssm_chunked::chunk;
use half::bf16;

use crate::batch::{RandomCase, StoredMemory, TestBatch};
use crate::family::{BugKind, KernelFamily, PlantedBug, near};
use crate::memory::{GuardedMemory, TestNumber, widened};
use crate::runner::KernelRunner;

pub(crate) const FAMILY: KernelFamily = KernelFamily {
    file: "ssm.cu",
    check,
    bugs: &[
        PlantedBug {
            kind: BugKind::Index,
            find: "upper ? sums[i] : sums[4 + i]",
            put: "upper ? sums[4 + i] : sums[i]",
        },
        PlantedBug {
            kind: BugKind::Index,
            find: "load_floats(row + inputs.x + first, x)",
            put: "load_floats(row + inputs.x, x)",
        },
        PlantedBug {
            kind: BugKind::Index,
            find: "i = lane; i < n; i += WARP",
            put: "i = lane; i + WARP <= n; i += WARP",
        },
        PlantedBug {
            kind: BugKind::State,
            find: "if (span.start > 0) load_floats",
            put: "if (span.start > 1) load_floats",
        },
        PlantedBug { kind: BugKind::State, find: "span.start == 0 && t == 0", put: "t == 0" },
        PlantedBug {
            kind: BugKind::State,
            find: "for (int r = 0; r < ROWS; r++) store_floats",
            put: "for (int r = 1; r < ROWS; r++) store_floats",
        },
        PlantedBug { kind: BugKind::Formula, find: "fmaf(d[head], widen(row[p]), sum)", put: "sum" },
    ],
};

pub(crate) const CHUNKED: KernelFamily = KernelFamily {
    file: "ssm_chunked.cu",
    check: check_chunked,
    bugs: &[
        PlantedBug { kind: BugKind::Index, find: "s <= t ?", put: "s < t ?" },
        PlantedBug { kind: BugKind::Index, find: "thread < rows) step", put: "thread <= rows) step" },
        PlantedBug {
            kind: BugKind::Barrier,
            find: "        __syncthreads();  // no thread reads the previous chunk any more\n",
            put: "",
        },
        PlantedBug {
            kind: BugKind::Barrier,
            find: "        __syncthreads();  // the steps are complete\n",
            put: "",
        },
        PlantedBug { kind: BugKind::Barrier, find: "        copy_wait<0>();\n", put: "" },
        PlantedBug {
            kind: BugKind::Barrier,
            find: "        __syncthreads();  // L, the state and the copies of all threads are complete\n",
            put: "",
        },
        PlantedBug {
            kind: BugKind::State,
            find: "carried[m][j][i] *= decay",
            put: "carried[m][j][i] *= 1.0f",
        },
        PlantedBug { kind: BugKind::State, find: "expf(last - sums[s]) * steps[s]", put: "steps[s]" },
        PlantedBug {
            kind: BugKind::State,
            find: "state + span.slot * slot_stride",
            put: "state + blockIdx.y * slot_stride",
        },
        PlantedBug {
            kind: BugKind::State,
            find: "if (span.start > 0) load_floats",
            put: "if (span.start > 999) load_floats",
        },
        // Without its lower half the state is only bfloat16.
        PlantedBug { kind: BugKind::Formula, find: "mma(carried[m][j], x, lower[j]);", put: "" },
    ],
};

#[test]
fn agrees_with_the_cpu() {
    FAMILY.agrees();
}

#[test]
fn planted_bugs_show() {
    FAMILY.finds_its_bugs();
}

#[test]
fn chunks_agree_with_the_cpu() {
    CHUNKED.agrees();
}

#[test]
fn planted_bugs_show_in_chunks() {
    CHUNKED.finds_its_bugs();
}

type LaunchFn<T, S> = fn(&SsmRecurrence<'_, T, S>) -> KernelLaunch;

const DECODE: &[(u32, u32)] = &[(1, 0), (1, 7), (0, 0), (1, 1), (1, 300)];
const RAGGED: &[(u32, u32)] = &[(1, 0), (3, 0), (1, 1), (6, 40)];

fn config(heads: usize, groups: usize, head_dim: usize, state: usize) -> SsmConfig {
    let time_step_limit = (0.0, f32::INFINITY);
    SsmConfig { heads, head_dim, state, groups, conv_kernel: 4, chunk: 64, time_step_limit }
}

/// A function, not the method, because it is generic in the lifetime of the operation's borrows.
fn by_token<T: TestNumber, S: TestNumber>(op: &SsmRecurrence<'_, T, S>) -> KernelLaunch {
    op.launch()
}

fn check(library: &KernelRunner) -> Result<(), String> {
    let clamped = SsmConfig { time_step_limit: (0.3, 0.9), ..config(2, 1, 16, 128) };
    let shapes =
        [config(4, 2, 80, 128), config(2, 1, 64, 128), config(4, 2, 10, 19), config(2, 2, 40, 96), clamped];
    for config in &shapes {
        for of in [DECODE, RAGGED] {
            compare::<f32, f32>(library, config, of, by_token)?;
            compare::<bf16, f32>(library, config, of, by_token)?;
            compare::<bf16, bf16>(library, config, of, by_token)?;
        }
    }
    Ok(())
}

fn check_chunked(library: &KernelRunner) -> Result<(), String> {
    // One token, a chunk less one, a chunk, one more, two and a rest; from an empty state and from
    // a given one; an unused span.
    let ragged: &[(u32, u32)] = &[(1, 0), (63, 5), (64, 0), (0, 3), (65, 7), (130, 1)];
    for config in [config(2, 1, 80, 128), config(2, 2, 64, 128)] {
        compare::<bf16, f32>(library, &config, ragged, |op| op.launch_chunked().unwrap())?;
        compare::<bf16, bf16>(library, &config, &ragged[3..], |op| op.launch_chunked().unwrap())?;
    }
    Ok(())
}

fn compare<T: TestNumber, S: TestNumber>(
    library: &KernelRunner,
    config: &SsmConfig,
    of: &[(u32, u32)],
    make: LaunchFn<T, S>,
) -> Result<(), String> {
    let SsmConfig { heads, head_dim, state: n, groups, .. } = *config;
    let batch = TestBatch::new(of);
    let count = batch.count();
    let inner = heads * head_dim;
    let width = heads * head_dim + 2 * groups * n;
    let mut random = RandomCase::new(13);
    let mixed = random.spread_in_packs::<T>(count, width, 24, 1.0);
    let dt = random.spread::<T>(count, heads, 5, 2.0);
    let [dt_bias, d]: [StoredMemory<f32>; 2] = [random.stored(heads, 1.0), random.stored(heads, 1.0)];
    let a: Vec<f32> = random.floats(heads, 0.4).into_iter().map(|a| -0.5 - a).collect();
    let a: StoredMemory<f32> = StoredMemory::of(&a);
    let mut states = random.states::<S>(&batch, 8, inner * n);
    let out = GuardedMemory::<T>::unwritten(count * inner);
    let recurrence = SsmRecurrence {
        config,
        mixed: mixed.rows(),
        dt: dt.rows(),
        dt_bias: dt_bias.view(),
        a: a.view(),
        d: d.view(),
        state: states.slots(),
        spans: batch.view(),
        out: out.view(),
    };
    library.run(&make(&recurrence))?;

    let mut want = vec![0.0; count * inner];
    for span in &batch.spans {
        for (head, own) in states.of(span).chunks_exact_mut(head_dim * n).enumerate() {
            let weights = SsmHead {
                a: a.values[head],
                d: d.values[head],
                dt_bias: dt_bias.values[head],
                dt_limit: config.time_step_limit,
            };
            let group = head / (heads / groups) * n;
            let token = |row: usize| {
                let (x, shared) = mixed.row(row).split_at(inner);
                let (b, c) = shared.split_at(groups * n);
                SsmToken {
                    x: &x[head * head_dim..][..head_dim],
                    b: &b[group..][..n],
                    c: &c[group..][..n],
                    dt: dt.row(row)[head],
                }
            };
            let rows = span.base as usize..(span.base + span.length) as usize;
            let y = head_outputs(&weights, rows.clone(), token, own, head_dim);
            for (row, y) in rows.zip(y.chunks(head_dim)) {
                want[row * inner + head * head_dim..][..head_dim].copy_from_slice(y);
            }
        }
    }
    let what = format!(
        "{of:?}, {heads} heads of {head_dim} x {n} in {groups} groups, {}",
        std::any::type_name::<(T, S)>()
    );
    // A state in bfloat16 is rounded after each call or, by the plain kernel, after each token.
    let tolerance = if S::TOLERANCE > 1e-3 { 2.5 * S::TOLERANCE } else { 2e-5 };
    near(
        &what,
        &widened(&out.read()?),
        &want,
        T::TOLERANCE.max(1e-5).max(if S::TOLERANCE > 1e-3 { tolerance } else { 0.0 }),
    )?;
    states.compare(&what, tolerance)
}

/// What one head makes of the tokens of a span on the CPU: a short span token by token, a long one
/// by chunks.
fn head_outputs<'a>(
    weights: &SsmHead,
    rows: Range<usize>,
    token: impl Fn(usize) -> SsmToken<'a>,
    state: &mut [f32],
    head_dim: usize,
) -> Vec<f32> {
    let mut y = vec![0.0; rows.len() * head_dim];
    if rows.len() > 32 {
        for (at, y) in y.chunks_mut(100 * head_dim).enumerate() {
            let first = rows.start + at * 100;
            let tokens: Vec<SsmToken<'_>> = (first..first + y.len() / head_dim).map(&token).collect();
            chunk(weights, &tokens, state, y);
        }
    } else {
        for (row, y) in rows.zip(y.chunks_mut(head_dim)) {
            weights.step(token(row), state, y);
        }
    }
    y
}
