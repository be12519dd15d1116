//! A mixture of experts against `layers::moe`: the same choice, similar weights and sums; and a
//! row's result does not depend on other rows.

use furrow_cuda::launch::{KernelLaunch, SpanTile};
use furrow_cuda::ops::DeviceRows;
use furrow_cuda::ops::moe::{ExpertGrouping, ExpertsLaunch, RouteLaunch, tiles_max};
use furrow_model::config::MoeConfig;
use furrow_model::kernels::{PackedMatrix, ProductPrecision, ThreadPool};
use furrow_model::layers::{ComputeContext, moe};
use furrow_model::weights::{MlpWeights, MoeWeights};
use half::bf16;

use crate::batch::{RandomCase, StoredMemory};
use crate::family::{BugKind, KernelFamily, PlantedBug, near, same};
use crate::memory::{GuardedMemory, TestNumber, widened};
use crate::runner::KernelRunner;

pub(crate) const ROUTE: KernelFamily = KernelFamily {
    file: "moe_route.cu",
    check: check_route,
    bugs: &[
        PlantedBug { kind: BugKind::Index, find: "own = e / size", put: "own = e % groups" },
        PlantedBug { kind: BugKind::Index, find: "g < own);", put: "g <= own);" },
        PlantedBug { kind: BugKind::Index, find: "sorted[lower] = found[i]", put: "sorted[i] = found[i]" },
        PlantedBug {
            kind: BugKind::Index,
            find: "logits[(size_t)row * experts + e]",
            put: "logits[(size_t)warp * experts + e]",
        },
        PlantedBug {
            kind: BugKind::Barrier,
            find: "        __syncwarp();  // the choice of this round is known\n",
            put: "",
        },
        PlantedBug {
            kind: BugKind::Barrier,
            find: "        __syncwarp();  // the ratings are complete\n",
            put: "",
        },
        PlantedBug { kind: BugKind::State, find: "corrected[(unsigned)best] = NAN;", put: "" },
        PlantedBug {
            kind: BugKind::Formula,
            find: "sum += scores[sorted[i]]",
            put: "sum += scores[sorted[i]] + correction[sorted[i]]",
        },
        PlantedBug { kind: BugKind::Formula, find: "            second = first;\n", put: "" },
        PlantedBug { kind: BugKind::Formula, find: "count == 1 ? first : first + second", put: "first" },
    ],
};

pub(crate) const EXPERTS: KernelFamily = KernelFamily {
    file: "moe_experts.cu",
    check: check_experts,
    bugs: &[
        PlantedBug { kind: BugKind::Index, find: "chosen[p] < expert", put: "chosen[p] <= expert" },
        PlantedBug {
            kind: BugKind::Index,
            find: "UP ? order[begin + row] / k",
            put: "UP ? order[begin + row] % k",
        },
        PlantedBug { kind: BugKind::Index, find: "offsets[expert] + tile.first", put: "offsets[expert]" },
        PlantedBug { kind: BugKind::Index, find: "sorted_index[p] = at", put: "sorted_index[at] = p" },
        PlantedBug { kind: BugKind::Index, find: "(rows + ROWS - 1) / ROWS", put: "rows / ROWS" },
        PlantedBug { kind: BugKind::Index, find: "        if (row >= tile.rows) continue;\n", put: "" },
        PlantedBug {
            kind: BugKind::Barrier,
            find: "    __syncthreads();  // the counts of all warps are complete\n",
            put: "",
        },
        PlantedBug {
            kind: BugKind::Barrier,
            find: "counts + ++round % 2 * WARP) - 1",
            put: "counts + ++round % 1 * WARP) - 1",
        },
        PlantedBug { kind: BugKind::Barrier, find: "        copy_wait<0>();\n", put: "" },
        PlantedBug {
            kind: BugKind::Barrier,
            find: "        __syncthreads();  // this step may be overwritten, the next one is complete\n",
            put: "",
        },
        PlantedBug { kind: BugKind::State, find: "begin += all", put: "begin = all" },
        PlantedBug {
            kind: BugKind::Formula,
            find: "value < 0.0f ? 0.0f : value * value",
            put: "value < 0.0f ? 0.0f : value",
        },
        PlantedBug {
            kind: BugKind::Formula,
            find: "weights[row * k + e], sum)",
            put: "weights[row * k], sum)",
        },
    ],
};

#[test]
fn routing_agrees_with_the_cpu() {
    ROUTE.agrees();
}

#[test]
fn planted_bugs_show_in_routing() {
    ROUTE.finds_its_bugs();
}

#[test]
fn experts_agree_with_the_cpu() {
    EXPERTS.agrees();
}

#[test]
fn planted_bugs_show_in_experts() {
    EXPERTS.finds_its_bugs();
}

fn config(experts: usize, k: usize, groups: usize, groups_kept: usize) -> MoeConfig {
    MoeConfig {
        experts,
        experts_per_token: k,
        intermediate: 1,
        shared_intermediate: 0,
        groups,
        groups_kept,
        normalise: true,
        scaling: 2.5,
        latent: None,
    }
}

fn check_route(library: &KernelRunner) -> Result<(), String> {
    for (config, rows) in [
        (config(128, 6, 1, 1), 9),
        (config(16, 4, 4, 2), 5),
        (config(64, 22, 8, 4), 6),
        (config(6, 2, 6, 3), 4),
        (MoeConfig { normalise: false, ..config(40, 3, 2, 1) }, 3),
    ] {
        compare_routes(library, &config, rows)?;
    }
    Ok(())
}

/// A router whose product equals its input.
fn router(experts: usize, correction: Vec<f32>) -> MoeWeights {
    let identity: Vec<f32> =
        (0..experts * experts).map(|at| f32::from(u8::from(at % experts == at / experts))).collect();
    let gate = PackedMatrix::from_f32(experts, experts, &identity);
    MoeWeights { gate, correction, experts: Vec::new(), shared: None, latent: None }
}

/// Random rows, one of equal logits, one with many ties, one far from 0 on both sides, one of NaN.
fn compare_routes(library: &KernelRunner, config: &MoeConfig, rows: usize) -> Result<(), String> {
    let experts = config.experts;
    let k = config.experts_per_token;
    let mut random = RandomCase::new(31);
    let mut logits = random.floats(rows * experts, 3.0);
    let tied = logits[..experts].iter().map(|value| value.round()).collect::<Vec<_>>();
    let far = logits[experts..2 * experts].iter().map(|value| value * 40.0).collect::<Vec<_>>();
    for odd in [vec![0.25; experts], tied, far, vec![f32::NAN; experts]] {
        logits.extend(odd);
    }
    let rows = rows + 4;
    // Large enough that scores alone would choose other experts, and from few values, so that there
    // are ties.
    let correction: Vec<f32> =
        random.floats(experts, 0.6).iter().map(|value| (value * 4.0).round() / 4.0).collect();

    let logits_memory = GuardedMemory::of(&logits);
    let correction_memory = GuardedMemory::of(&correction);
    let chosen = GuardedMemory::<u32>::unwritten(rows * k);
    let weights = GuardedMemory::<f32>::unwritten(rows * k);
    let route = RouteLaunch {
        config,
        logits: logits_memory.view(),
        correction: correction_memory.view(),
        chosen: chosen.view(),
        weights: weights.view(),
    };
    library.run(&route.launch())?;

    let (want, want_weights) = routes(config, correction, &logits, rows);
    let what = format!("{rows} rows, {k} of {experts} in {} groups", config.groups);
    same(format!("experts of {what}"), &chosen.read()?, &want)?;
    let (numbers, spoilt) = want_weights.split_at((rows - 1) * k);
    let got = weights.read()?;
    near(format!("weights of {what}"), &got[..numbers.len()], numbers, 1e-6)?;
    let are_spoilt = |weights: &[f32]| weights.iter().all(|weight| weight.is_nan());
    assert!(are_spoilt(spoilt), "the CPU must give NaN as well");
    if are_spoilt(&got[numbers.len()..]) { Ok(()) } else { Err("a NaN was hidden".into()) }
}

fn routes(config: &MoeConfig, correction: Vec<f32>, logits: &[f32], rows: usize) -> (Vec<u32>, Vec<f32>) {
    let experts = config.experts;
    let k = config.experts_per_token;
    let team = ThreadPool::new(1);
    let mut scores = vec![0.0; moe::scratch_values(config)];
    let crew = ComputeContext { team: &team, compute: ProductPrecision::Float32 };
    let mut given = vec![0.0; rows * experts];
    let mut chosen = vec![0; rows * k];
    let mut counts = vec![0.0; rows * k];
    let mut routes = moe::ExpertRoutes { logits: &mut given, experts: &mut chosen, weights: &mut counts };
    moe::route(crew, config, &router(experts, correction), logits, &mut scores, &mut routes);
    (chosen, counts)
}

/// The launches of one form of the products.
type ExpertsForm<T> = fn(&ExpertsLaunch<'_, T>) -> [KernelLaunch; 3];

/// A function, not the method, because it is generic in the lifetime of the operation's borrows.
fn plainly<T: TestNumber>(op: &ExpertsLaunch<'_, T>) -> [KernelLaunch; 3] {
    op.launches()
}

fn check_experts(library: &KernelRunner) -> Result<(), String> {
    let plain = |library: &KernelRunner, shape| {
        compare_experts::<f32>(library, shape, plainly, 2e-6)?;
        compare_experts::<bf16>(library, shape, plainly, 2e-2)
    };
    plain(library, ExpertsShape { rows: 7, experts: 5, k: 2, width: 24, inner: 40, favourite: None })?;
    plain(library, ExpertsShape { rows: 300, experts: 4, k: 2, width: 8, inner: 16, favourite: Some(1) })?;
    let tiles = |op: &ExpertsLaunch<'_, bf16>| op.launches_by_tiles().unwrap();
    for shape in [
        ExpertsShape { rows: 20, experts: 12, k: 3, width: 64, inner: 128, favourite: None },
        ExpertsShape { rows: 70, experts: 6, k: 2, width: 192, inner: 64, favourite: Some(4) },
    ] {
        compare_experts::<bf16>(library, shape, tiles, 2e-2)?;
    }
    Ok(())
}

#[derive(Debug, Clone, Copy)]
struct ExpertsShape {
    rows: usize,
    experts: usize,
    k: usize,
    width: usize,
    inner: usize,
    /// An expert that every row chooses: more pairs than a tile.
    favourite: Option<u32>,
}

impl ExpertsShape {
    /// Different experts for each row, ascending; no row chooses the last expert.
    fn choose(&self, random: &mut RandomCase) -> Vec<u32> {
        let one_row = |_| {
            let mut row: Vec<u32> = self.favourite.into_iter().collect();
            while row.len() < self.k {
                let expert = ((random.floats(1, 0.5)[0] + 0.5) * (self.experts - 1) as f32) as u32;
                if !row.contains(&expert) {
                    row.push(expert);
                }
            }
            row.sort_unstable();
            row
        };
        (0..self.rows).flat_map(one_row).collect()
    }
}

fn compare_experts<T: TestNumber>(
    library: &KernelRunner,
    shape: ExpertsShape,
    form: ExpertsForm<T>,
    tolerance: f32,
) -> Result<(), String> {
    let ExpertsShape { rows, experts, k, width, inner, .. } = shape;
    let mut random = RandomCase::new(37);
    let chosen = shape.choose(&mut random);
    let weights = random.floats(rows * k, 1.0);
    let x = random.spread_in_packs::<T>(rows, width, 8, 1.0);
    let [up, down]: [StoredMemory<T>; 2] = [0; 2].map(|_| random.stored(experts * width * inner, 0.5));
    let out = run(library, &shape, &chosen, &weights, x.rows(), [&up, &down], form)?;

    let matrix = |stored: &StoredMemory<T>, expert: usize, out: usize, input: usize| {
        PackedMatrix::from_f32(out, input, &stored.values[expert * out * input..][..out * input])
    };
    let expert = |e| MlpWeights { up: matrix(&up, e, inner, width), down: matrix(&down, e, width, inner) };
    let layer = MoeWeights {
        gate: PackedMatrix::from_f32(experts, width, &vec![0.0; experts * width]),
        correction: vec![0.0; experts],
        experts: (0..experts).map(expert).collect(),
        shared: None,
        latent: None,
    };
    let u: Vec<f32> = (0..rows).flat_map(|row| x.row(row).to_vec()).collect();
    let want = answers(&layer, &chosen, &weights, &u, [width, inner]);
    let what = format!("{shape:?}, {}", std::any::type_name::<T>());
    near(&what, &widened(&out), &want, tolerance)?;

    // The same row alone, bit for bit.
    let alone = rows / 2;
    let of_row = alone * k..(alone + 1) * k;
    let one = ExpertsShape { rows: 1, ..shape };
    let input = DeviceRows { values: x.rows().values.from(alone * x.rows().stride), ..x.rows() };
    let single = run(library, &one, &chosen[of_row.clone()], &weights[of_row], input, [&up, &down], form)?;
    same(format!("row {alone} alone, {what}"), &widened(&single), &widened(&out[alone * width..][..width]))
}

/// Groups the rows, runs the products, checks the grouping, and returns the output.
fn run<T: TestNumber>(
    library: &KernelRunner,
    shape: &ExpertsShape,
    chosen: &[u32],
    weights: &[f32],
    input: DeviceRows<T>,
    [up, down]: [&StoredMemory<T>; 2],
    form: ExpertsForm<T>,
) -> Result<Vec<T>, String> {
    let ExpertsShape { rows, experts, k, width, inner, .. } = *shape;
    let pairs = rows * k;
    let chosen_memory = GuardedMemory::of(chosen);
    let weights_memory = GuardedMemory::of(weights);
    let [order, sorted_index] = [0; 2].map(|_| GuardedMemory::<u32>::unwritten(pairs));
    let offsets = GuardedMemory::<u32>::unwritten(experts + 1);
    let tiles = GuardedMemory::<SpanTile>::unwritten(tiles_max(experts, pairs));
    let grouping = ExpertGrouping {
        experts,
        k,
        chosen: chosen_memory.view(),
        order: order.view(),
        sorted_index: sorted_index.view(),
        offsets: offsets.view(),
        tiles: tiles.view(),
    };
    for launch in grouping.launches() {
        library.run(&launch)?;
    }
    let mut want: Vec<u32> = (0..pairs as u32).collect();
    want.sort_by_key(|pair| chosen[*pair as usize]);
    same("order of pairs", &order.read()?, &want)?;
    let below = |expert: usize| chosen.iter().filter(|chosen| (**chosen as usize) < expert).count() as u32;
    same("offsets of experts", &offsets.read()?, &(0..=experts).map(below).collect::<Vec<_>>())?;
    sorted_index.read()?;
    tiles.read()?;

    let wide = GuardedMemory::<T>::unwritten(pairs * inner);
    let answered = GuardedMemory::<f32>::unwritten(pairs * width);
    let out = GuardedMemory::<T>::unwritten(rows * width);
    let op = ExpertsLaunch {
        grouping: &grouping,
        input,
        width,
        inner,
        up: up.view(),
        down: down.view(),
        weights: weights_memory.view(),
        wide: wide.view(),
        answered: answered.view(),
        out: out.view(),
    };
    for launch in form(&op) {
        library.run(&launch)?;
    }
    wide.read()?;
    answered.read()?;
    out.read()
}

fn answers(
    layer: &MoeWeights,
    chosen: &[u32],
    weights: &[f32],
    u: &[f32],
    [width, inner]: [usize; 2],
) -> Vec<f32> {
    let rows = u.len() / width;
    let team = ThreadPool::new(1);
    let crew = ComputeContext { team: &team, compute: ProductPrecision::Float32 };
    let mut chosen = chosen.to_vec();
    let mut weights = weights.to_vec();
    let routes = moe::ExpertRoutes { logits: &mut [], experts: &mut chosen, weights: &mut weights };
    let [mut gathered, mut answered, mut out] = [0; 3].map(|_| vec![0.0; rows * width]);
    let mut wide = vec![0.0; rows * inner];
    let mut indices = vec![0; rows];
    let scratch = moe::ExpertScratch {
        latent: &mut [],
        gathered: &mut gathered,
        answered: &mut answered,
        sum: &mut [],
        wide: &mut wide,
        shared: &mut [],
        rows: &mut indices,
    };
    moe::forward(crew, layer, &routes, u, scratch, &mut out);
    out
}
