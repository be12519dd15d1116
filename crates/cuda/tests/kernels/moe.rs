//! A mixture of experts against `layers::moe`: the same choice, near weights, near sums; and a row's result whatever rows are beside it.

use furrow_cuda::launch::{Launch, Tile};
use furrow_cuda::ops::Rows;
use furrow_cuda::ops::moe::{Experts, Grouping, Route, tiles_max};
use furrow_model::config::MoeConfig;
use furrow_model::kernels::{Compute, Matrix, Team};
use furrow_model::layers::{Crew, moe};
use furrow_model::weights::{MlpWeights, MoeWeights};
use half::bf16;

use crate::batch::{Draw, Held};
use crate::family::{Bug, Family, Kind, near, same};
use crate::memory::{Memory, Number, widened};
use crate::place::Library;

pub const ROUTE: Family = Family {
    file: "moe_route.cu",
    check: check_route,
    bugs: &[
        Bug { kind: Kind::Index, find: "own = e / size", put: "own = e % groups" },
        Bug { kind: Kind::Index, find: "g < own);", put: "g <= own);" },
        Bug { kind: Kind::Index, find: "sorted[lower] = found[i]", put: "sorted[i] = found[i]" },
        Bug {
            kind: Kind::Index,
            find: "logits[(size_t)row * experts + e]",
            put: "logits[(size_t)warp * experts + e]",
        },
        Bug {
            kind: Kind::Barrier,
            find: "        __syncwarp();  // the choice of this round is known\n",
            put: "",
        },
        Bug {
            kind: Kind::Barrier,
            find: "        __syncwarp();  // the ratings are there, and nobody rates any more\n",
            put: "",
        },
        Bug { kind: Kind::State, find: "corrected[(unsigned)best] = NAN;", put: "" },
        Bug {
            kind: Kind::Formula,
            find: "sum += scores[sorted[i]]",
            put: "sum += scores[sorted[i]] + correction[sorted[i]]",
        },
        Bug { kind: Kind::Formula, find: "            second = first;\n", put: "" },
        Bug { kind: Kind::Formula, find: "count == 1 ? first : first + second", put: "first" },
    ],
};

pub const EXPERTS: Family = Family {
    file: "moe_experts.cu",
    check: check_experts,
    bugs: &[
        Bug { kind: Kind::Index, find: "chosen[p] < expert", put: "chosen[p] <= expert" },
        Bug { kind: Kind::Index, find: "UP ? order[begin + row] / k", put: "UP ? order[begin + row] % k" },
        Bug { kind: Kind::Index, find: "offsets[expert] + tile.first", put: "offsets[expert]" },
        Bug { kind: Kind::Index, find: "place[p] = at", put: "place[at] = p" },
        Bug { kind: Kind::Index, find: "(rows + ROWS - 1) / ROWS", put: "rows / ROWS" },
        Bug { kind: Kind::Index, find: "        if (row >= lot.rows) continue;\n", put: "" },
        Bug {
            kind: Kind::Barrier,
            find: "    __syncthreads();  // the counts of all warps are there\n",
            put: "",
        },
        Bug {
            kind: Kind::Barrier,
            find: "counts + ++round % 2 * WARP) - 1",
            put: "counts + ++round % 1 * WARP) - 1",
        },
        Bug { kind: Kind::Barrier, find: "        copy_wait<0>();\n", put: "" },
        Bug {
            kind: Kind::Barrier,
            find: "        __syncthreads();  // this step may be overwritten, the next one is there\n",
            put: "",
        },
        Bug { kind: Kind::State, find: "begin += all", put: "begin = all" },
        Bug {
            kind: Kind::Formula,
            find: "value < 0.0f ? 0.0f : value * value",
            put: "value < 0.0f ? 0.0f : value",
        },
        Bug { kind: Kind::Formula, find: "weights[row * k + e], sum)", put: "weights[row * k], sum)" },
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

fn check_route(library: &Library) -> Result<(), String> {
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

/// A router whose product is its input.
fn router(experts: usize, correction: Vec<f32>) -> MoeWeights {
    let identity: Vec<f32> =
        (0..experts * experts).map(|at| f32::from(u8::from(at % experts == at / experts))).collect();
    let gate = Matrix::from_f32(experts, experts, &identity);
    MoeWeights { gate, correction, experts: Vec::new(), shared: None, latent: None }
}

/// Drawn rows, one of equal logits, one with many ties, one far from 0 on both sides, one of no numbers.
fn compare_routes(library: &Library, config: &MoeConfig, rows: usize) -> Result<(), String> {
    let (experts, k) = (config.experts, config.experts_per_token);
    let mut draw = Draw::new(31);
    let mut logits = draw.floats(rows * experts, 3.0);
    let tied = logits[..experts].iter().map(|value| value.round()).collect::<Vec<_>>();
    let far = logits[experts..2 * experts].iter().map(|value| value * 40.0).collect::<Vec<_>>();
    for odd in [vec![0.25; experts], tied, far, vec![f32::NAN; experts]] {
        logits.extend(odd);
    }
    let rows = rows + 4;
    // Large enough that choosing by scores alone would choose others, and few enough that there are ties.
    let correction: Vec<f32> =
        draw.floats(experts, 0.6).iter().map(|value| (value * 4.0).round() / 4.0).collect();

    let (logits_memory, correction_memory) = (Memory::of(&logits), Memory::of(&correction));
    let (chosen, weights) = (Memory::<u32>::unwritten(rows * k), Memory::<f32>::unwritten(rows * k));
    let route = Route {
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
    assert!(are_spoilt(spoilt), "the CPU gives no numbers either");
    if are_spoilt(&got[numbers.len()..]) { Ok(()) } else { Err("a NaN was hidden".into()) }
}

fn routes(config: &MoeConfig, correction: Vec<f32>, logits: &[f32], rows: usize) -> (Vec<u32>, Vec<f32>) {
    let (experts, k) = (config.experts, config.experts_per_token);
    let (team, mut scores) = (Team::new(1), vec![0.0; moe::scratch_values(config)]);
    let crew = Crew { team: &team, compute: Compute::Float32 };
    let (mut given, mut chosen, mut counts) =
        (vec![0.0; rows * experts], vec![0; rows * k], vec![0.0; rows * k]);
    let mut routes = moe::Routes { logits: &mut given, experts: &mut chosen, weights: &mut counts };
    moe::route(crew, config, &router(experts, correction), logits, &mut scores, &mut routes);
    (chosen, counts)
}

/// Which form of the products.
type Form<T> = fn(&Experts<'_, T>) -> [Launch; 3];

/// A function and not the method: it is general in the lifetime of what the operation borrows.
fn plainly<T: Number>(op: &Experts<'_, T>) -> [Launch; 3] {
    op.launches()
}

fn check_experts(library: &Library) -> Result<(), String> {
    let plain = |library: &Library, shape| {
        compare_experts::<f32>(library, shape, plainly, 2e-6)?;
        compare_experts::<bf16>(library, shape, plainly, 2e-2)
    };
    plain(library, Shape { rows: 7, experts: 5, k: 2, width: 24, inner: 40, favourite: None })?;
    plain(library, Shape { rows: 300, experts: 4, k: 2, width: 8, inner: 16, favourite: Some(1) })?;
    let tiles = |op: &Experts<'_, bf16>| op.launches_by_tiles().unwrap();
    for shape in [
        Shape { rows: 20, experts: 12, k: 3, width: 64, inner: 128, favourite: None },
        Shape { rows: 70, experts: 6, k: 2, width: 192, inner: 64, favourite: Some(4) },
    ] {
        compare_experts::<bf16>(library, shape, tiles, 2e-2)?;
    }
    Ok(())
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    rows: usize,
    experts: usize,
    k: usize,
    width: usize,
    inner: usize,
    /// An expert that every row chooses: more than a tile.
    favourite: Option<u32>,
}

impl Shape {
    /// Different experts a row, ascending; the last expert is nobody's.
    fn choose(&self, draw: &mut Draw) -> Vec<u32> {
        let one_row = |_| {
            let mut row: Vec<u32> = self.favourite.into_iter().collect();
            while row.len() < self.k {
                let expert = ((draw.floats(1, 0.5)[0] + 0.5) * (self.experts - 1) as f32) as u32;
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

fn compare_experts<T: Number>(
    library: &Library,
    shape: Shape,
    form: Form<T>,
    tolerance: f32,
) -> Result<(), String> {
    let Shape { rows, experts, k, width, inner, .. } = shape;
    let mut draw = Draw::new(37);
    let chosen = shape.choose(&mut draw);
    let weights = draw.floats(rows * k, 1.0);
    let x = draw.spread_in_packs::<T>(rows, width, 8, 1.0);
    let [up, down]: [Held<T>; 2] = [0; 2].map(|_| draw.held(experts * width * inner, 0.5));
    let out = run(library, &shape, &chosen, &weights, x.rows(), [&up, &down], form)?;

    let matrix = |held: &Held<T>, expert: usize, out: usize, input: usize| {
        Matrix::from_f32(out, input, &held.values[expert * out * input..][..out * input])
    };
    let expert = |e| MlpWeights { up: matrix(&up, e, inner, width), down: matrix(&down, e, width, inner) };
    let layer = MoeWeights {
        gate: Matrix::from_f32(experts, width, &vec![0.0; experts * width]),
        correction: vec![0.0; experts],
        experts: (0..experts).map(expert).collect(),
        shared: None,
        latent: None,
    };
    let u: Vec<f32> = (0..rows).flat_map(|row| x.row(row).to_vec()).collect();
    let want = answers(&layer, &chosen, &weights, &u, [width, inner]);
    let what = format!("{shape:?}, {}", std::any::type_name::<T>());
    near(&what, &widened(&out), &want, tolerance)?;

    // The same row with nobody beside it, bit for bit.
    let alone = rows / 2;
    let of_row = alone * k..(alone + 1) * k;
    let one = Shape { rows: 1, ..shape };
    let input = Rows { values: x.rows().values.from(alone * x.rows().stride), ..x.rows() };
    let single = run(library, &one, &chosen[of_row.clone()], &weights[of_row], input, [&up, &down], form)?;
    same(format!("row {alone} alone, {what}"), &widened(&single), &widened(&out[alone * width..][..width]))
}

/// Groups the rows, runs the products, and says what came out and whether the grouping is one.
fn run<T: Number>(
    library: &Library,
    shape: &Shape,
    chosen: &[u32],
    weights: &[f32],
    input: Rows<T>,
    [up, down]: [&Held<T>; 2],
    form: Form<T>,
) -> Result<Vec<T>, String> {
    let Shape { rows, experts, k, width, inner, .. } = *shape;
    let pairs = rows * k;
    let (chosen_memory, weights_memory) = (Memory::of(chosen), Memory::of(weights));
    let [order, place] = [0; 2].map(|_| Memory::<u32>::unwritten(pairs));
    let (offsets, tiles) =
        (Memory::<u32>::unwritten(experts + 1), Memory::<Tile>::unwritten(tiles_max(experts, pairs)));
    let grouping = Grouping {
        experts,
        k,
        chosen: chosen_memory.view(),
        order: order.view(),
        place: place.view(),
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
    place.read()?;
    tiles.read()?;

    let (wide, answered) = (Memory::<T>::unwritten(pairs * inner), Memory::<f32>::unwritten(pairs * width));
    let out = Memory::<T>::unwritten(rows * width);
    let op = Experts {
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
    let team = Team::new(1);
    let crew = Crew { team: &team, compute: Compute::Float32 };
    let (mut chosen, mut weights) = (chosen.to_vec(), weights.to_vec());
    let routes = moe::Routes { logits: &mut [], experts: &mut chosen, weights: &mut weights };
    let [mut gathered, mut answered, mut out] = [0; 3].map(|_| vec![0.0; rows * width]);
    let (mut wide, mut indices) = (vec![0.0; rows * inner], vec![0; rows]);
    let scratch = moe::Scratch {
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
