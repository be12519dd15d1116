//! Sampling on the device against `furrow_model::sample::pick`: the same ids, kept ids and counts; log-probabilities and entropy to an ulp or two.

use furrow_cuda::ops::sample::{self, Sample, sums};
use furrow_model::sample::{Allowed, KEPT_MAX, Pick, Picked, Token, pick};

use crate::batch::Draw;
use crate::family::{Bug, Family, Kind};
use crate::memory::Memory;
use crate::place::Library;

pub const FAMILY: Family = Family {
    file: "sample.cu",
    check,
    bugs: &[
        Bug { kind: Kind::Index, find: "blocks; first += THREADS / LANES", put: "blocks; first += THREADS" },
        // What is not written is read as an id.
        Bug { kind: Kind::Index, find: "of_others + place - 1] = id", put: "place - 1] = id" },
        Bug { kind: Kind::Index, find: "set[id / 64] >> id % 64", put: "set[id / 64] >> (id + 1) % 64" },
        Bug { kind: Kind::Index, find: "at < count ? exponent", put: "at <= count ? exponent" },
        Bug { kind: Kind::Barrier, find: "        __syncthreads();  // all have read the bins\n", put: "" },
        Bug {
            kind: Kind::Barrier,
            find: "        __syncthreads();  // all have read what is written now, and the counts\n",
            put: "",
        },
        Bug { kind: Kind::State, find: "before = under_digit", put: "before = 0" },
        Bug { kind: Kind::State, find: "kept += of_all", put: "kept = of_all" },
        Bug {
            kind: Kind::Formula,
            find: "if (under + board->bins[d] >= target) break",
            put: "if (under + board->bins[d] > target) break",
        },
        Bug {
            kind: Kind::Formula,
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

fn check(library: &Library) -> Result<(), String> {
    for (vocabulary, seed) in [(70, 1), (1000, 2), (9000, 3)] {
        compare(library, vocabulary, seed)?;
    }
    Ok(())
}

/// Rows of every kind: spread, peaked, all equal, with ties and ids that cannot be; and three that cannot be drawn from.
fn rows(vocabulary: usize, draw: &mut Draw) -> Vec<Vec<f32>> {
    let spread = draw.floats(vocabulary, 8.0);
    let peaked: Vec<f32> =
        draw.floats(vocabulary, 1.0).iter().map(|v| if *v > 0.99 { 30.0 * v } else { *v }).collect();
    let tied: Vec<f32> = draw.floats(vocabulary, 3.0).iter().map(|v| v.round()).collect();
    let mut holes = draw.floats(vocabulary, 4.0);
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

fn compare(library: &Library, vocabulary: usize, seed: u64) -> Result<(), String> {
    let mut draw = Draw::new(seed);
    let rows = rows(vocabulary, &mut draw);
    let mut some = Allowed::new(vocabulary);
    some.extend((0..vocabulary as u32).filter(|id| id % 7 < 3));
    let mut few = Allowed::new(vocabulary);
    few.extend([1, vocabulary as u32 - 1, 64]);
    let sets = [some, few, Allowed::new(vocabulary)];
    let free =
        Pick { row: 0, temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, allowed: None, uniform: 0.0 };
    let filters = [
        free,
        Pick { temperature: 0.0, ..free },
        Pick { temperature: 0.0, allowed: Some(&sets[0]), ..free },
        Pick { temperature: 0.7, top_k: 40, ..free },
        Pick { top_p: 0.9, ..free },
        Pick { top_p: 0.5, allowed: Some(&sets[0]), ..free },
        Pick { temperature: 1.6, min_p: 0.05, ..free },
        Pick { temperature: 0.9, top_k: 60, top_p: 0.8, min_p: 0.02, allowed: Some(&sets[0]), ..free },
        Pick { temperature: 2.5, allowed: Some(&sets[1]), ..free },
        Pick { allowed: Some(&sets[2]), ..free },
        Pick { top_k: 1, ..free },
    ];
    let mut picks = Vec::new();
    for row in 0..rows.len() {
        for (at, filter) in filters.iter().enumerate() {
            let uniform =
                if at == 0 { 0.0 } else { f64::from(draw.floats(1, 0.5)[0] + 0.5).min(1.0 - f64::EPSILON) };
            picks.push(Pick { row: row as u32, uniform, ..*filter });
        }
        picks.push(Pick { row: row as u32, uniform: 1.0 - f64::EPSILON, ..free });
        picks.push(Pick { row: row as u32, uniform: 0.31, ..free });
    }
    if vocabulary > BLOCKS {
        // What more blocks change shows in a part of them; which part, differs by vocabulary.
        picks = picks.into_iter().skip(seed as usize).step_by(3).collect();
    }
    let set_of = |pick: &Pick<'_>| {
        let number = |of: &Allowed| sets.iter().position(|set| set == of).unwrap() as u32;
        pick.allowed.map(number)
    };

    let logits = Memory::of(&rows.concat());
    let asked =
        Memory::of(&picks.iter().map(|pick| sample::Pick::new(pick, set_of(pick))).collect::<Vec<_>>());
    let allowed = Memory::of(&sets.iter().flat_map(|set| set.bits().to_vec()).collect::<Vec<u64>>());
    let ids = Memory::<u32>::unwritten(picks.len() * vocabulary);
    let lefts = Memory::<f32>::unwritten(picks.len() * vocabulary);
    let room = Memory::<f64>::unwritten(picks.len() * sums(vocabulary));
    let answers = Memory::<sample::Picked>::unwritten(picks.len());
    let kept = Memory::<u32>::unwritten(picks.len() * KEPT_MAX);
    let draws = Sample {
        logits: logits.view(),
        vocabulary,
        picks: asked.view(),
        allowed: allowed.view(),
        ids: ids.view(),
        lefts: lefts.view(),
        sums: room.view(),
        picked: answers.view(),
        kept: kept.view(),
    };
    library.run(&draws.launch())?;
    ids.read()?;
    lefts.read()?;
    room.read()?;
    let (answers, kept) = (answers.read()?, kept.read()?);
    for ((asked, answer), kept) in picks.iter().zip(&answers).zip(kept.chunks_exact(KEPT_MAX)) {
        let want = pick(&rows[asked.row as usize], asked);
        let got = answer.answer(kept);
        if !alike(&got, &want) {
            let asked = Pick { allowed: None, ..*asked };
            return Err(format!(
                "of {vocabulary} ids, {asked:?}, set {:?}: {got:?} for {want:?}",
                set_of(&asked)
            ));
        }
    }
    Ok(())
}

fn alike(got: &Picked, want: &Picked) -> bool {
    let near = |got: f32, want: f32| (got - want).abs() <= 3e-7 * want.abs().max(1.0);
    match (got, want) {
        (Picked::NotFinite, Picked::NotFinite) => true,
        (Picked::Token(got), Picked::Token(want)) => {
            let exact = |token: &Token| (token.id, token.kept_count, token.kept_ids.clone());
            exact(got) == exact(want)
                && near(got.logprob, want.logprob)
                && near(got.sampled_logprob, want.sampled_logprob)
                && near(got.entropy, want.entropy)
        }
        _ => false,
    }
}
