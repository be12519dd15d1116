//! Sampling on the device against `furrow_model::sample::sample_token`: the same ids, kept ids and
//! counts; log-probabilities and entropy to an ulp or two.

use furrow_cuda::ops::sample::{self, SampleLaunch, sums};
use furrow_model::sample::{
    AllowedTokens, KEPT_MAX, SampleOutcome, SampleRequest, SampledToken, sample_token,
};

use crate::batch::RandomCase;
use crate::family::{BugKind, KernelFamily, PlantedBug};
use crate::memory::GuardedMemory;
use crate::runner::KernelRunner;

pub(crate) const FAMILY: KernelFamily = KernelFamily {
    file: "sample.cu",
    check,
    bugs: &[
        PlantedBug {
            kind: BugKind::Index,
            find: "blocks; first += THREADS / LANES",
            put: "blocks; first += THREADS",
        },
        // An unwritten entry is read as an id.
        PlantedBug { kind: BugKind::Index, find: "of_others + rank - 1] = id", put: "rank - 1] = id" },
        PlantedBug {
            kind: BugKind::Index,
            find: "set[id / 64] >> id % 64",
            put: "set[id / 64] >> (id + 1) % 64",
        },
        PlantedBug { kind: BugKind::Index, find: "at < count ? exponent", put: "at <= count ? exponent" },
        PlantedBug {
            kind: BugKind::Barrier,
            find: "        __syncthreads();  // all have read the bins\n",
            put: "",
        },
        PlantedBug {
            kind: BugKind::Barrier,
            find: "        __syncthreads();  // all threads have read what is overwritten now, and the counts\n",
            put: "",
        },
        PlantedBug { kind: BugKind::State, find: "before = under_digit", put: "before = 0" },
        PlantedBug { kind: BugKind::State, find: "kept += of_all", put: "kept = of_all" },
        PlantedBug {
            kind: BugKind::Formula,
            find: "if (under + board->bins[d] >= target) break",
            put: "if (under + board->bins[d] > target) break",
        },
        PlantedBug {
            kind: BugKind::Formula,
            find: "before + sums[b] > target",
            put: "before + sums[b] > 0.7 * target",
        },
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

/// A vocabulary of one block of weights that are summed together.
const BLOCKS: usize = 256;

fn check(library: &KernelRunner) -> Result<(), String> {
    for (vocabulary, seed) in [(70, 1), (1000, 2), (9000, 3)] {
        compare(library, vocabulary, seed)?;
    }
    Ok(())
}

/// Rows of every kind: spread, peaked, all equal, with ties and ids of probability 0; and three
/// that are invalid.
fn rows(vocabulary: usize, random: &mut RandomCase) -> Vec<Vec<f32>> {
    let spread = random.floats(vocabulary, 8.0);
    let peaked: Vec<f32> =
        random.floats(vocabulary, 1.0).iter().map(|v| if *v > 0.99 { 30.0 * v } else { *v }).collect();
    let tied: Vec<f32> = random.floats(vocabulary, 3.0).iter().map(|v| v.round()).collect();
    let mut holes = random.floats(vocabulary, 4.0);
    holes.iter_mut().skip(1).step_by(3).for_each(|v| *v = f32::NEG_INFINITY);
    let mut spoilt = spread.clone();
    spoilt[vocabulary / 2] = f32::NAN;
    let mut endless = spread.clone();
    endless[vocabulary - 1] = f32::INFINITY;
    vec![
        spread,
        peaked,
        vec![-0.0; vocabulary],
        tied,
        holes,
        spoilt,
        endless,
        vec![f32::NEG_INFINITY; vocabulary],
    ]
}

/// Sets of ids that a request may be limited to: many, a few, none.
fn id_sets(vocabulary: usize) -> [AllowedTokens; 3] {
    let mut some = AllowedTokens::new(vocabulary);
    some.extend((0..vocabulary as u32).filter(|id| id % 7 < 3));
    let mut few = AllowedTokens::new(vocabulary);
    few.extend([1, vocabulary as u32 - 1, 64]);
    [some, few, AllowedTokens::new(vocabulary)]
}

/// Any id by its probability.
const FREE: SampleRequest<'static> =
    SampleRequest { row: 0, temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, allowed: None, uniform: 0.0 };

fn filters(sets: &[AllowedTokens; 3]) -> [SampleRequest<'_>; 11] {
    [
        FREE,
        SampleRequest { temperature: 0.0, ..FREE },
        SampleRequest { temperature: 0.0, allowed: Some(&sets[0]), ..FREE },
        SampleRequest { temperature: 0.7, top_k: 40, ..FREE },
        SampleRequest { top_p: 0.9, ..FREE },
        SampleRequest { top_p: 0.5, allowed: Some(&sets[0]), ..FREE },
        SampleRequest { temperature: 1.6, min_p: 0.05, ..FREE },
        SampleRequest {
            temperature: 0.9,
            top_k: 60,
            top_p: 0.8,
            min_p: 0.02,
            allowed: Some(&sets[0]),
            ..FREE
        },
        SampleRequest { temperature: 2.5, allowed: Some(&sets[1]), ..FREE },
        SampleRequest { allowed: Some(&sets[2]), ..FREE },
        SampleRequest { top_k: 1, ..FREE },
    ]
}

/// Each filter on each row, and samples at the end and in the middle of a row's distribution.
fn requests<'a>(
    filters: &[SampleRequest<'a>],
    rows: usize,
    random: &mut RandomCase,
) -> Vec<SampleRequest<'a>> {
    let mut picks = Vec::new();
    for row in 0..rows {
        for (at, filter) in filters.iter().enumerate() {
            let uniform =
                if at == 0 { 0.0 } else { f64::from(random.floats(1, 0.5)[0] + 0.5).min(1.0 - f64::EPSILON) };
            picks.push(SampleRequest { row: row as u32, uniform, ..*filter });
        }
        picks.push(SampleRequest { row: row as u32, uniform: 1.0 - f64::EPSILON, ..FREE });
        picks.push(SampleRequest { row: row as u32, uniform: 0.31, ..FREE });
    }
    picks
}

fn set_of(pick: &SampleRequest<'_>, sets: &[AllowedTokens; 3]) -> Option<u32> {
    let number = |of: &AllowedTokens| sets.iter().position(|set| set == of).unwrap() as u32;
    pick.allowed.map(number)
}

fn compare(library: &KernelRunner, vocabulary: usize, seed: u64) -> Result<(), String> {
    let mut random = RandomCase::new(seed);
    let rows = rows(vocabulary, &mut random);
    let sets = id_sets(vocabulary);
    let mut picks = requests(&filters(&sets), rows.len(), &mut random);
    if vocabulary > BLOCKS {
        // The effect of more blocks appears in some of the requests; vocabularies test different
        // ones.
        picks = picks.into_iter().skip(seed as usize).step_by(3).collect();
    }
    let outcomes = sample_on_device(library, &rows, &sets, &picks)?;
    for (request, got) in picks.iter().zip(outcomes) {
        let want = sample_token(&rows[request.row as usize], request);
        if !alike(&got, &want) {
            let set = set_of(request, &sets);
            let request = SampleRequest { allowed: None, ..*request };
            return Err(format!("of {vocabulary} ids, {request:?}, set {set:?}: {got:?} for {want:?}"));
        }
    }
    Ok(())
}

fn sample_on_device(
    library: &KernelRunner,
    rows: &[Vec<f32>],
    sets: &[AllowedTokens; 3],
    picks: &[SampleRequest<'_>],
) -> Result<Vec<SampleOutcome>, String> {
    let vocabulary = rows[0].len();
    let logits = GuardedMemory::of(&rows.concat());
    let requests = GuardedMemory::of(
        &picks.iter().map(|pick| sample::PackedRequest::new(pick, set_of(pick, sets))).collect::<Vec<_>>(),
    );
    let allowed = GuardedMemory::of(&sets.iter().flat_map(|set| set.bits().to_vec()).collect::<Vec<u64>>());
    let ids = GuardedMemory::<u32>::unwritten(picks.len() * vocabulary);
    let lefts = GuardedMemory::<f32>::unwritten(picks.len() * vocabulary);
    let sum_memory = GuardedMemory::<f64>::unwritten(picks.len() * sums(vocabulary));
    let answers = GuardedMemory::<sample::PackedSample>::unwritten(picks.len());
    let kept = GuardedMemory::<u32>::unwritten(picks.len() * KEPT_MAX);
    let launch = SampleLaunch {
        logits: logits.view(),
        vocabulary,
        picks: requests.view(),
        allowed: allowed.view(),
        ids: ids.view(),
        lefts: lefts.view(),
        sums: sum_memory.view(),
        picked: answers.view(),
        kept: kept.view(),
    };
    library.run(&launch.launch())?;
    ids.read()?;
    lefts.read()?;
    sum_memory.read()?;
    let answers = answers.read()?;
    let kept = kept.read()?;
    Ok(answers.iter().zip(kept.chunks_exact(KEPT_MAX)).map(|(answer, kept)| answer.answer(kept)).collect())
}

fn alike(got: &SampleOutcome, want: &SampleOutcome) -> bool {
    let near = |got: f32, want: f32| (got - want).abs() <= 3e-7 * want.abs().max(1.0);
    match (got, want) {
        (SampleOutcome::NotFinite, SampleOutcome::NotFinite) => true,
        (SampleOutcome::Token(got), SampleOutcome::Token(want)) => {
            let exact = |token: &SampledToken| (token.id, token.kept_count, token.kept_ids.clone());
            exact(got) == exact(want)
                && near(got.logprob, want.logprob)
                && near(got.sampled_logprob, want.sampled_logprob)
                && near(got.entropy, want.entropy)
        }
        _ => false,
    }
}
