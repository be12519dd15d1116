//! Mixture of experts: which experts a token is sent to, how much each counts, and their sum.
//!
//! Scores s = sigmoid(W_gate u). Experts are chosen by s + correction, among the router groups whose two best corrected scores sum
//! highest; they count by s alone, divided by the sum of the chosen (+ 1e-20) and times the scaling. Experts are squared-ReLU MLPs, in
//! the latent width where there is one; the shared expert works on the full input and is added as it is.

use super::{Crew, add, mlp};
use crate::config::MoeConfig;
use crate::kernels::{Compute, math};
use crate::weights::MoeWeights;

/// Where tokens go: rows of `[m, experts]` and `[m, k]`.
#[derive(Debug)]
pub struct Routes<'a> {
    /// What the router's product gave.
    pub logits: &'a mut [f32],
    /// Chosen experts of each row, ascending.
    pub experts: &'a mut [u32],
    /// How much each counts.
    pub weights: &'a mut [f32],
}

/// What the experts need to work in; `m` rows of the named width each.
#[derive(Debug)]
pub struct Scratch<'a> {
    /// The input in the width that experts work in.
    pub latent: &'a mut [f32],
    /// Rows of one expert, side by side; the same width.
    pub gathered: &'a mut [f32],
    /// What it makes of them; the same width.
    pub answered: &'a mut [f32],
    /// The sum of a row's experts; the same width.
    pub sum: &'a mut [f32],
    /// Inner width of an expert or of the shared one.
    pub wide: &'a mut [f32],
    /// What the shared expert gives, `[m, H]`.
    pub shared: &'a mut [f32],
    /// Row indices, `m`.
    pub rows: &'a mut [u32],
}

/// Chooses experts for every row of `u`; `scores` takes `scratch_values`.
pub fn route(
    crew: Crew<'_>,
    config: &MoeConfig,
    weights: &MoeWeights,
    u: &[f32],
    scores: &mut [f32],
    routes: &mut Routes<'_>,
) {
    // The choice hangs on differences between scores: the router computes in float32 always.
    weights.gate.product(crew.team, Compute::Float32, u, routes.logits);
    let k = config.experts_per_token;
    let chosen = routes.experts.chunks_exact_mut(k).zip(routes.weights.chunks_exact_mut(k));
    for (logits, (experts, counts)) in routes.logits.chunks_exact(config.experts).zip(chosen) {
        choose(config, logits, &weights.correction, scores, experts, counts);
    }
}

/// `out[m, H]`: the weighted sum of each row's experts, and the shared expert.
pub fn forward(
    crew: Crew<'_>,
    weights: &MoeWeights,
    routes: &Routes<'_>,
    u: &[f32],
    scratch: Scratch<'_>,
    out: &mut [f32],
) {
    let Scratch { latent, gathered, answered, sum, wide, shared, rows } = scratch;
    let hidden = weights.gate.input();
    match &weights.latent {
        Some([down, up]) => {
            crew.product(down, u, latent);
            sum_experts(crew, weights, routes, latent, Gather { gathered, answered, wide, rows }, sum);
            crew.product(up, sum, out);
        }
        None => sum_experts(crew, weights, routes, u, Gather { gathered, answered, wide, rows }, out),
    }
    if let Some(expert) = &weights.shared {
        let wide = &mut wide[..out.len() / hidden * expert.up.out()];
        mlp::forward(crew, expert, u, wide, shared);
        add(crew, out, shared, hidden);
    }
}

/// Where rows of one expert are brought together.
struct Gather<'a> {
    gathered: &'a mut [f32],
    answered: &'a mut [f32],
    wide: &'a mut [f32],
    rows: &'a mut [u32],
}

/// Adds up each row's experts in ascending order, whatever other rows are there.
fn sum_experts(
    crew: Crew<'_>,
    weights: &MoeWeights,
    routes: &Routes<'_>,
    x: &[f32],
    gather: Gather<'_>,
    sum: &mut [f32],
) {
    let Gather { gathered, answered, wide, rows } = gather;
    let m = rows.len();
    let (k, width) = (routes.experts.len() / m, x.len() / m);
    sum.fill(0.0);
    for (index, expert) in weights.experts.iter().enumerate() {
        let mut count = 0;
        for (row, experts) in routes.experts.chunks_exact(k).enumerate() {
            if experts.contains(&(index as u32)) {
                rows[count] = row as u32;
                gathered[count * width..][..width].copy_from_slice(&x[row * width..][..width]);
                count += 1;
            }
        }
        if count == 0 {
            continue;
        }
        let wide = &mut wide[..count * expert.up.out()];
        let answered = &mut answered[..count * width];
        mlp::forward(crew, expert, &gathered[..count * width], wide, answered);
        for (row, answered) in rows.iter().zip(answered.chunks_exact(width)) {
            let row = *row as usize;
            let weight = routes.weight(row, index, k);
            math::add_scaled(&mut sum[row * width..][..width], weight, answered);
        }
    }
}

impl Routes<'_> {
    /// How much an expert that row `row` chose counts.
    fn weight(&self, row: usize, expert: usize, k: usize) -> f32 {
        let chosen = row * k..(row + 1) * k;
        let slot = self.experts[chosen.clone()].iter().position(|chosen| *chosen as usize == expert);
        self.weights[chosen.start + slot.expect("the row was gathered because it chose this expert")]
    }
}

/// One row's choice. `scores` has the room that `scratch_values` says; `experts` and `counts` take the chosen.
fn choose(
    config: &MoeConfig,
    logits: &[f32],
    correction: &[f32],
    scores: &mut [f32],
    experts: &mut [u32],
    counts: &mut [f32],
) {
    let (scores, rest) = scores.split_at_mut(config.experts);
    let (corrected, ratings) = rest.split_at_mut(config.experts);
    scores.copy_from_slice(logits);
    math::sigmoid(scores);
    corrected
        .iter_mut()
        .zip(scores.iter().zip(correction))
        .for_each(|(c, (s, correction))| *c = s + correction);
    corrected.iter_mut().filter(|c| c.is_nan()).for_each(|c| *c = SHUT_OUT);
    if config.groups > 1 {
        keep_groups(config, corrected, ratings);
    }
    for expert in &mut *experts {
        let best = best(corrected);
        corrected[best] = TAKEN;
        *expert = best as u32;
    }
    experts.sort_unstable();
    counts.iter_mut().zip(&*experts).for_each(|(count, expert)| *count = scores[*expert as usize]);
    let sum = if config.normalise { counts.iter().sum::<f32>() + 1e-20 } else { 1.0 };
    counts.iter_mut().for_each(|count| *count = *count / sum * config.scaling);
}

/// Values that choosing for one row takes: scores, corrected scores, ratings of groups.
pub fn scratch_values(config: &MoeConfig) -> usize {
    2 * config.experts + config.groups
}

/// Comes after every real score: an expert whose group does not stay, or whose score is not a number.
const SHUT_OUT: f32 = f32::NEG_INFINITY;
/// Marks a chosen expert: no comparison takes it again.
const TAKEN: f32 = f32::NAN;

/// Shuts out the experts of all but the best groups; of equal groups the lower one is the better.
fn keep_groups(config: &MoeConfig, corrected: &mut [f32], ratings: &mut [f32]) {
    let size = config.experts / config.groups;
    for (rating, corrected) in ratings.iter_mut().zip(corrected.chunks_exact(size)) {
        *rating = two_best(corrected);
    }
    for (group, corrected) in corrected.chunks_exact_mut(size).enumerate() {
        let own = ratings[group];
        let better = |(other, rating): &(usize, &f32)| **rating > own || **rating == own && *other < group;
        if ratings.iter().enumerate().filter(better).count() >= config.groups_kept {
            corrected.fill(SHUT_OUT);
        }
    }
}

/// Sum of the two best scores of a group, or the one there is.
fn two_best(scores: &[f32]) -> f32 {
    let (mut first, mut second) = (SHUT_OUT, SHUT_OUT);
    for score in scores {
        if *score > first {
            (first, second) = (*score, first);
        } else if *score > second {
            second = *score;
        }
    }
    if scores.len() == 1 { first } else { first + second }
}

/// The highest that is not taken; of equals the lowest index.
fn best(corrected: &[f32]) -> usize {
    let open = corrected.iter().enumerate().filter(|(_, score)| !score.is_nan());
    open.reduce(|best, next| if next.1 > best.1 { next } else { best }).map_or(0, |(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(experts: usize, k: usize, groups: usize, groups_kept: usize) -> MoeConfig {
        MoeConfig {
            experts,
            experts_per_token: k,
            intermediate: 1,
            shared_intermediate: 0,
            groups,
            groups_kept,
            normalise: true,
            scaling: 2.0,
            latent: None,
        }
    }

    fn chosen(config: &MoeConfig, logits: &[f32], correction: &[f32]) -> (Vec<u32>, Vec<f32>) {
        let k = config.experts_per_token;
        let (mut scores, mut experts, mut counts) =
            (vec![0.0; scratch_values(config)], vec![0; k], vec![0.0; k]);
        choose(config, logits, correction, &mut scores, &mut experts, &mut counts);
        (experts, counts)
    }

    #[track_caller]
    fn check(config: &MoeConfig, logits: &[f32], correction: &[f32], want: &[u32]) {
        let (experts, counts) = chosen(config, logits, correction);
        assert_eq!(experts, want);
        let score = |expert: &u32| 1.0 / (1.0 + (-f64::from(logits[*expert as usize])).exp());
        let sum: f64 = want.iter().map(score).sum();
        for (expert, count) in want.iter().zip(counts) {
            assert!((f64::from(count) - 2.0 * score(expert) / sum).abs() < 1e-6, "expert {expert}: {count}");
        }
    }

    #[test]
    fn corrected_scores_choose_and_plain_scores_count() {
        let none = [0.0; 4];
        check(&config(4, 2, 1, 1), &[0.0, 2.0, 1.0, -3.0], &none, &[1, 2]);
        check(&config(4, 2, 1, 1), &[0.0, 2.0, 1.0, -3.0], &[0.0, 0.0, 0.0, 5.0], &[1, 3]);
        check(&config(4, 3, 1, 1), &[1.0, 1.0, 1.0, 1.0], &none, &[0, 1, 2]);
        check(&config(4, 4, 1, 1), &[0.5, -1.0, 1.0, 9.0], &none, &[0, 1, 2, 3]);
    }

    #[test]
    fn groups_are_rated_by_their_two_best() {
        // Sums of two best: 0.5 + 0.5, 0.95 + 0.01, 0.6 + 0.6: the group with the single best expert falls.
        let logit = |p: f32| (p / (1.0 - p)).ln();
        let logits = [0.5, 0.5, 0.95, 0.01, 0.6, 0.6].map(logit);
        check(&config(6, 2, 3, 1), &logits, &[0.0; 6], &[4, 5]);
        check(&config(6, 3, 3, 2), &logits, &[0.0; 6], &[0, 4, 5]);
        // An expert of a fallen group is not chosen, however the draw ends.
        check(&config(6, 1, 3, 2), &logits, &[0.0; 6], &[4]);
    }

    #[test]
    fn not_a_number_makes_weights_that_are_not_numbers_and_no_panic() {
        let (experts, counts) = chosen(&config(4, 2, 2, 1), &[f32::NAN; 4], &[0.0; 4]);
        assert!(experts[0] < experts[1] && experts[1] < 4);
        assert!(counts.iter().all(|count| count.is_nan()));
    }
}
