//! Compares sampled tokens with the same definition written in float64 with a full sort.

use proptest::prelude::*;
use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};

use super::*;

/// Reference: the whole distribution and what the filters leave.
struct ReferenceDistribution {
    logprobs: Vec<f64>,
    /// Kept ids in ascending order and their log-probabilities.
    kept: Vec<(u32, f64)>,
    cut: bool,
}

const PLAIN: SampleRequest<'static> = SampleRequest {
    row: 0,
    temperature: 1.0,
    top_k: 0,
    top_p: 1.0,
    min_p: 0.0,
    allowed: None,
    uniform: 0.55,
};

fn reference_distribution(logits: &[f32], pick: &SampleRequest<'_>) -> Option<ReferenceDistribution> {
    let finite = |logit: f32| logit > f32::NEG_INFINITY;
    if logits.iter().any(|logit| logit.is_nan() || *logit == f32::INFINITY) {
        return None;
    }
    let greedy = pick.temperature == 0.0;
    let temperature = if greedy { 1.0 } else { f64::from(pick.temperature) };
    let scaled: Vec<f64> = logits.iter().map(|logit| f64::from(*logit) / temperature).collect();
    let whole: Vec<u32> = (0..logits.len() as u32).filter(|id| finite(logits[*id as usize])).collect();
    let logprobs = {
        let total = log_sum_exp(&scaled, &whole);
        scaled.iter().map(|x| x - total).collect()
    };
    let mut left: Vec<u32> =
        whole.iter().copied().filter(|id| pick.allowed.is_none_or(|allowed| allowed.contains(*id))).collect();
    left.sort_by(|a, b| logits[*b as usize].partial_cmp(&logits[*a as usize]).unwrap().then(a.cmp(b)));
    let best = *left.first()?;
    if greedy {
        left.truncate(1);
    }
    if pick.top_k > 0 {
        left.truncate(pick.top_k as usize);
    }
    if pick.top_p < 1.0 {
        let weight = |id: &u32| (scaled[*id as usize] - scaled[best as usize]).exp();
        let target = f64::from(pick.top_p) * left.iter().map(weight).sum::<f64>();
        let mut sum = 0.0;
        let reach = left.iter().position(|id| {
            sum += weight(id);
            sum >= target
        });
        left.truncate(reach.map_or(left.len(), |index| index + 1));
    }
    left.retain(|id| (scaled[*id as usize] - scaled[best as usize]).exp() >= f64::from(pick.min_p));
    let total = log_sum_exp(&scaled, &left);
    left.sort_unstable();
    let kept: Vec<_> = left.iter().map(|id| (*id, scaled[*id as usize] - total)).collect();
    Some(ReferenceDistribution { logprobs, cut: greedy || kept.len() < whole.len(), kept })
}

fn log_sum_exp(scaled: &[f64], ids: &[u32]) -> f64 {
    let highest = ids.iter().map(|id| scaled[*id as usize]).fold(f64::NEG_INFINITY, f64::max);
    highest + ids.iter().map(|id| (scaled[*id as usize] - highest).exp()).sum::<f64>().ln()
}

/// Close enough for float32 sums: within 2e-6, relative for numbers above 1.
fn near(got: f32, want: f64) -> bool {
    (f64::from(got) - want).abs() <= 2e-6 * want.abs().max(1.0)
}

fn agrees(logits: &[f32], pick: &SampleRequest<'_>) -> Result<(), String> {
    let picked = sample_token(logits, pick);
    let (got, want) = match (picked, reference_distribution(logits, pick)) {
        (SampleOutcome::NotFinite, None) => return Ok(()),
        (SampleOutcome::Token(token), Some(book)) => (token, book),
        (got, want) => return Err(format!("{got:?}, the reference has a token: {}", want.is_some())),
    };
    let mut before = 0.0;
    for (id, logprob) in &want.kept {
        if *id == got.id {
            let after = before + logprob.exp();
            let inside = (before - 1e-6..=after + 1e-6).contains(&pick.uniform);
            let entropy: f64 =
                -want.kept.iter().map(|(_, l)| if *l < -700.0 { 0.0 } else { l * l.exp() }).sum::<f64>();
            let ids: Vec<u32> = want.kept.iter().map(|(id, _)| *id).collect();
            let written = want.cut && ids.len() <= KEPT_MAX;
            let rows = [
                ("uniform", inside),
                ("logprob", near(got.logprob, want.logprobs[*id as usize]) && got.logprob <= 0.0),
                ("sampled", near(got.sampled_logprob, *logprob) && got.sampled_logprob <= 0.0),
                ("count", got.kept_count == want.cut.then_some(ids.len() as u32)),
                ("ids", got.kept_ids == if written { ids } else { Vec::new() }),
                ("entropy", near(got.entropy, entropy)),
            ];
            return match rows.iter().find(|(_, right)| !right) {
                Some((what, _)) => {
                    Err(format!("{what}: {got:?}, log-probability {logprob}, {before} to {after}"))
                }
                None => Ok(()),
            };
        }
        before += logprob.exp();
    }
    Err(format!("{got:?} is not among {:?}", want.kept))
}

#[track_caller]
fn check(logits: &[f32], pick: SampleRequest<'_>, want_id: u32, want_kept: &[u32]) {
    agrees(logits, &pick).unwrap();
    let SampleOutcome::Token(token) = sample_token(logits, &pick) else { panic!("not finite") };
    assert_eq!((token.id, token.kept_ids.as_slice()), (want_id, want_kept), "{token:?}");
}

#[test]
fn top_k_top_p_and_min_p_keep_the_expected_ids() {
    // Probabilities 0.1, 0.4, 0.2, 0.3.
    let logits = [0.1f32, 0.4, 0.2, 0.3].map(f32::ln);
    check(&logits, PLAIN, 2, &[]);
    check(&logits, SampleRequest { uniform: 0.0, ..PLAIN }, 0, &[]);
    check(&logits, SampleRequest { uniform: 0.9999, ..PLAIN }, 3, &[]);
    check(&logits, SampleRequest { temperature: 0.0, ..PLAIN }, 1, &[1]);
    check(&logits, SampleRequest { top_k: 1, ..PLAIN }, 1, &[1]);
    check(&logits, SampleRequest { top_k: 2, ..PLAIN }, 1, &[1, 3]);
    check(&logits, SampleRequest { top_k: 9, ..PLAIN }, 2, &[]);
    check(&logits, SampleRequest { top_p: 0.39, ..PLAIN }, 1, &[1]);
    check(&logits, SampleRequest { top_p: 0.41, ..PLAIN }, 1, &[1, 3]);
    check(&logits, SampleRequest { top_p: 0.69, uniform: 0.6, ..PLAIN }, 3, &[1, 3]);
    check(&logits, SampleRequest { top_p: 0.71, ..PLAIN }, 2, &[1, 2, 3]);
    check(&logits, SampleRequest { top_p: 1e-30, ..PLAIN }, 1, &[1]);
    check(&logits, SampleRequest { min_p: 0.74, ..PLAIN }, 1, &[1, 3]);
    check(&logits, SampleRequest { min_p: 0.76, ..PLAIN }, 1, &[1]);
    check(&logits, SampleRequest { min_p: 1.0, ..PLAIN }, 1, &[1]);
    // top-p counts what top-k left: of {0.4, 0.3} the first has 0.57.
    check(&logits, SampleRequest { top_k: 2, top_p: 0.56, ..PLAIN }, 1, &[1]);
    let mut allowed = AllowedTokens::new(4);
    allowed.extend([0, 3]);
    check(&logits, SampleRequest { allowed: Some(&allowed), ..PLAIN }, 3, &[0, 3]);
    check(&logits, SampleRequest { allowed: Some(&allowed), uniform: 0.24, ..PLAIN }, 0, &[0, 3]);
    check(&logits, SampleRequest { allowed: Some(&allowed), temperature: 0.0, ..PLAIN }, 3, &[3]);
    check(&logits, SampleRequest { allowed: Some(&allowed), top_p: 0.74, ..PLAIN }, 3, &[3]);
    check(&logits, SampleRequest { allowed: Some(&AllowedTokens::all(4)), ..PLAIN }, 2, &[]);
}

#[test]
fn of_equal_logits_the_lower_ids_stay() {
    let mut logits = [7.5; 10];
    check(&logits, SampleRequest { top_k: 3, ..PLAIN }, 1, &[0, 1, 2]);
    check(&logits, SampleRequest { top_p: 0.5, ..PLAIN }, 2, &[0, 1, 2, 3, 4]);
    check(&logits, SampleRequest { temperature: 0.0, ..PLAIN }, 0, &[0]);
    check(&logits, SampleRequest { min_p: 1.0, ..PLAIN }, 5, &[]);
    logits[0] = -0.0;
    logits[1] = 0.0;
    check(&logits[..2], SampleRequest { top_k: 1, ..PLAIN }, 0, &[0]);
    check(&logits[1..3], SampleRequest { top_k: 1, ..PLAIN }, 1, &[1]);
    let allowed = {
        let mut set = AllowedTokens::new(10);
        set.insert(6);
        set
    };
    check(&logits, SampleRequest { allowed: Some(&allowed), ..PLAIN }, 6, &[6]);
}

#[test]
fn ids_of_probability_zero_are_never_sampled() {
    const NONE: f32 = f32::NEG_INFINITY;
    let last = 1.0 - 2f64.powi(-53);
    for uniform in [0.0, f64::MIN_POSITIVE, 0.5, last] {
        check(&[NONE, NONE, 3.0, NONE], SampleRequest { uniform, ..PLAIN }, 2, &[]);
        check(&[NONE, -2e38, 2e38, -1e30, NONE], SampleRequest { uniform, ..PLAIN }, 2, &[]);
        check(&[NONE, -2e38, NONE], SampleRequest { uniform, temperature: 1e-30, ..PLAIN }, 1, &[]);
    }
    // Between two ids, exactly at the edge and over many blocks: the last id with a weight above
    // zero takes what rounding leaves.
    let mut long = vec![NONE; 3000];
    (long[5], long[2000]) = (1.0, 1.0);
    check(&long, SampleRequest { uniform: 0.5, ..PLAIN }, 2000, &[]);
    check(&long, SampleRequest { uniform: 0.5 - 1e-9, ..PLAIN }, 5, &[]);
    check(&long, SampleRequest { uniform: last, ..PLAIN }, 2000, &[]);
    check(&long, SampleRequest { uniform: last, top_k: 1, ..PLAIN }, 5, &[5]);
}

#[test]
fn extreme_temperatures_stay_finite() {
    let logits: Vec<f32> = (0..1000).map(|id| ((id * 37) % 101) as f32 - 50.0).collect();
    let mut rare = AllowedTokens::new(1000);
    rare.extend([0, 1]);
    for temperature in [0.0, f32::from_bits(1), 1e-30, 1e-3, 0.1, 1.0, 10.0, 1e6, f32::MAX] {
        for allowed in [None, Some(&rare)] {
            let pick = SampleRequest { temperature, allowed, ..PLAIN };
            let SampleOutcome::Token(token) = sample_token(&logits, &pick) else {
                panic!("not finite at {temperature}")
            };
            let numbers = [token.logprob, token.sampled_logprob, token.entropy];
            assert!(numbers.iter().all(|number| number.is_finite()), "{temperature}: {token:?}");
            assert!(token.logprob <= 0.0 && token.sampled_logprob <= 0.0 && token.entropy >= 0.0);
            if temperature > 1e-20 {
                agrees(&logits, &pick).unwrap();
            }
        }
    }
    let SampleOutcome::Token(cold) = sample_token(&logits, &SampleRequest { temperature: 1e-30, ..PLAIN })
    else {
        panic!()
    };
    assert_eq!(logits[cold.id as usize], 50.0);
}

#[test]
fn spoilt_rows_are_refused() {
    let mut none_finite = AllowedTokens::new(3);
    none_finite.insert(1);
    let nothing = AllowedTokens::new(2);
    for temperature in [0.0, 1.0] {
        let pick = SampleRequest { temperature, ..PLAIN };
        let refused = |logits: &[f32], allowed| {
            sample_token(logits, &SampleRequest { allowed, ..pick }) == SampleOutcome::NotFinite
        };
        assert!(refused(&[0.0, f32::NAN, 1.0], None));
        assert!(refused(&[0.0, 2.0, f32::INFINITY], None));
        assert!(refused(&[f32::NEG_INFINITY; 40], None));
        assert!(refused(&[], None));
        assert!(refused(&[0.0, f32::NEG_INFINITY, 1.0], Some(&none_finite)));
        assert!(refused(&[0.0], Some(&none_finite)));
        assert!(refused(&[0.0, 1.0], Some(&nothing)));
        let mut late = vec![0.0; 100];
        late[97] = f32::NAN;
        assert!(refused(&late, None));
        assert!(!refused(&[0.0, f32::NEG_INFINITY, 1.0], None));
    }
}

#[test]
fn a_hundred_thousand_samples_follow_the_distribution() {
    const SEED: u64 = 20_261_103;
    const SAMPLES: usize = 100_000;
    println!("seed {SEED}");
    let mut rng = ChaCha12Rng::seed_from_u64(SEED);
    let logits: Vec<f32> = (0..600).map(|_| rng.random_range(-3.0..3.0)).collect();
    let mut sampler = Sampler::default();
    for (temperature, top_p) in [(1.0, 1.0), (0.7, 0.9)] {
        let pick = SampleRequest { temperature, top_p, ..PLAIN };
        let book = reference_distribution(&logits, &pick).unwrap();
        let mut counts = vec![0usize; logits.len()];
        for _ in 0..SAMPLES {
            let SampleOutcome::Token(token) =
                sampler.sample(&logits, &SampleRequest { uniform: rng.random(), ..pick })
            else {
                panic!()
            };
            counts[token.id as usize] += 1;
        }
        let mut statistic = 0.0;
        let mut possible_ids = 0;
        for (id, logprob) in &book.kept {
            let expected = logprob.exp() * SAMPLES as f64;
            statistic += (counts[*id as usize] as f64 - expected).powi(2) / expected;
            possible_ids += counts[*id as usize];
        }
        // Chi-square with f degrees of freedom: mean f, variance 2f; it exceeds five standard
        // deviations once in a million.
        let freedom = (book.kept.len() - 1) as f64;
        println!("chi-square {statistic:.1} with {freedom} degrees of freedom");
        assert_eq!(possible_ids, SAMPLES);
        assert!((statistic - freedom).abs() < 5.0 * (2.0 * freedom).sqrt(), "{statistic} for {freedom}");
    }
}

#[test]
fn the_exponential_is_within_its_bound() {
    let worst = (0..=870_000)
        .map(|step| -step as f32 / 10_000.0)
        .filter(|x| *x > LOWEST)
        .map(|x| (f64::from(exp(x)) / f64::from(x).exp() - 1.0).abs())
        .fold(0.0, f64::max);
    assert!(worst < 2e-7, "{worst:e}");
    assert_eq!((exp(0.0), exp(LOWEST)), (1.0, 0.0));
}

#[test]
fn a_sampler_is_independent_of_its_earlier_samples() {
    let rows =
        [vec![0.5; 700], (0..50).map(|id| id as f32 / 9.0).collect(), vec![f32::NAN; 30], vec![1.0, 2.0]];
    let mut sampler = Sampler::default();
    for top_k in [0, 3] {
        for logits in rows.iter().chain(rows.iter().rev()) {
            let pick = SampleRequest { top_k, top_p: 0.8, ..PLAIN };
            assert_eq!(sampler.sample(logits, &pick), sample_token(logits, &pick));
        }
    }
}

#[test]
fn the_likeliest_are_ranked_and_equals_by_their_ids() {
    let none = f32::NEG_INFINITY;
    let mut sampler = Sampler::default();
    let check = |sampler: &mut Sampler, logits: &[f32], count: usize, want: &[u32]| {
        let ranking = sampler.rank(logits, 1, count).unwrap();
        assert_eq!(ranking.likeliest.iter().map(|(id, _)| *id).collect::<Vec<_>>(), want, "{logits:?}");
        // The log-probability that sampling reports, to the last bit.
        for temperature in [0.0, 1.0] {
            let mut only = AllowedTokens::new(logits.len());
            only.insert(1);
            let one = sample_token(logits, &SampleRequest { temperature, allowed: Some(&only), ..PLAIN });
            let SampleOutcome::Token(token) = one else { panic!("{one:?}") };
            assert_eq!((token.id, token.logprob.to_bits()), (1, ranking.logprob.to_bits()), "{logits:?}");
        }
    };
    check(&mut sampler, &[0.0, 1.0, 3.0, 2.0], 0, &[]);
    check(&mut sampler, &[0.0, 1.0, 3.0, 2.0], 1, &[2]);
    check(&mut sampler, &[0.0, 1.0, 3.0, 2.0], 3, &[2, 3, 1]);
    check(&mut sampler, &[0.0, 1.0, 3.0, 2.0], 9, &[2, 3, 1, 0]);
    check(&mut sampler, &[2.0, -0.0, 2.0, 0.0, 2.0, none], 5, &[0, 2, 4, 1, 3]);
    for (logits, id) in
        [(&[0.0, f32::NAN][..], 0), (&[none, none], 0), (&[0.0, none], 1), (&[0.0], 1), (&[], 0)]
    {
        assert_eq!(sampler.rank(logits, id, 2), None, "{id} of {logits:?}");
    }
}

fn any_logit() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => -20.0f32..20.0,
        2 => (-4i8..4).prop_map(f32::from),
        1 => Just(f32::NEG_INFINITY),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]
    #[test]
    fn every_sample_follows_the_reference_distribution(
        logits in prop::collection::vec(any_logit(), 1..900),
        temperature in prop_oneof![Just(0.0f32), Just(1.0), 0.05f32..5.0],
        top_k in prop_oneof![Just(0u32), 1u32..40],
        top_p in prop_oneof![Just(1.0f32), 0.01f32..1.0],
        min_p in prop_oneof![Just(0.0f32), 0.0f32..1.0],
        uniform in 0.0f64..1.0,
        mask in prop::option::of(prop::collection::vec(0u32..900, 1..99)),
    ) {
        let allowed = mask.map(|ids| { let mut set = AllowedTokens::new(logits.len()); set.extend(ids); set });
        let pick = SampleRequest { row: 0, temperature, top_k, top_p, min_p, allowed: allowed.as_ref(), uniform };
        prop_assert_eq!(agrees(&logits, &pick), Ok(()));
    }

    #[test]
    fn every_ranking_is_by_the_book(logits in prop::collection::vec(any_logit(), 1..900), id in any::<prop::sample::Index>(), count in 0usize..30) {
        let id = id.index(logits.len()) as u32;
        let mut by_rank: Vec<u32> = (0..logits.len() as u32).filter(|id| logits[*id as usize] > f32::NEG_INFINITY).collect();
        by_rank.sort_by(|a, b| logits[*b as usize].partial_cmp(&logits[*a as usize]).unwrap().then(a.cmp(b)));
        by_rank.truncate(count);
        match (Sampler::default().rank(&logits, id, count), reference_distribution(&logits, &PLAIN)) {
            (Some(ranking), Some(book)) if logits[id as usize] > f32::NEG_INFINITY => {
                prop_assert!(near(ranking.logprob, book.logprobs[id as usize]));
                prop_assert_eq!(ranking.likeliest.iter().map(|(id, _)| *id).collect::<Vec<_>>(), by_rank);
                for (id, logprob) in ranking.likeliest {
                    prop_assert!(near(logprob, book.logprobs[id as usize]), "{} is {}", id, logprob);
                }
            }
            (ranking, book) => prop_assert!(ranking.is_none() && (book.is_none() || logits[id as usize] == f32::NEG_INFINITY)),
        }
    }

    #[test]
    fn order_keys_sort_as_logits_and_give_them_back(a in any::<f32>(), b in any::<f32>(), id in any::<u32>()) {
        prop_assume!(!a.is_nan() && !b.is_nan());
        prop_assert_eq!(logit_at(order_key(a, id)), a);
        prop_assert_eq!(a > b, order_key(a, id) >> 32 < order_key(b, id) >> 32);
    }
}
