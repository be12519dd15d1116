//! Mixture of experts: chooses each token's experts and their weights, and computes the weighted
//! sum.
//!
//! Scores s = sigmoid(W_gate u). Experts are chosen by s + correction, from the router groups whose
//! two best corrected scores have the highest sum; their weight is s alone, divided by the sum over
//! the chosen (+ 1e-20) and multiplied by the scaling. Experts are squared-ReLU MLPs, in the latent
//! width if there is one; the shared expert works on the full input and is added without a weight.

use super::{ComputeContext, add, mlp};
use crate::config::MoeConfig;
use crate::kernels::{ProductPrecision, math};
use crate::weights::MoeWeights;

/// Experts of each token: rows of `[m, experts]` and `[m, k]`.
#[derive(Debug)]
pub struct ExpertRoutes<'a> {
    /// Output of the router's product.
    pub logits: &'a mut [f32],
    /// Chosen experts of each row, ascending.
    pub experts: &'a mut [u32],
    /// Weight of each chosen expert.
    pub weights: &'a mut [f32],
}

/// Scratch of the experts; `m` rows of the named width each.
#[derive(Debug)]
pub struct ExpertScratch<'a> {
    /// The input in the width of the experts.
    pub latent: &'a mut [f32],
    /// Rows of one expert, gathered; in the same width.
    pub gathered: &'a mut [f32],
    /// The expert's outputs for them; in the same width.
    pub answered: &'a mut [f32],
    /// The sum over a row's experts; in the same width.
    pub sum: &'a mut [f32],
    /// Inner width of an expert or of the shared one.
    pub wide: &'a mut [f32],
    /// Output of the shared expert, `[m, H]`.
    pub shared: &'a mut [f32],
    pub rows: &'a mut [u32],
}

/// Chooses experts for every row of `u`; `scores` takes `scratch_values`.
pub fn route(
    crew: ComputeContext<'_>,
    config: &MoeConfig,
    weights: &MoeWeights,
    u: &[f32],
    scores: &mut [f32],
    routes: &mut ExpertRoutes<'_>,
) {
    // The choice depends on differences between scores: the router always computes in float32.
    weights.gate.product(crew.team, ProductPrecision::Float32, u, routes.logits);
    let k = config.experts_per_token;
    let chosen = routes.experts.chunks_exact_mut(k).zip(routes.weights.chunks_exact_mut(k));
    for (logits, (experts, counts)) in routes.logits.chunks_exact(config.experts).zip(chosen) {
        choose(config, logits, &weights.correction, scores, experts, counts);
    }
}

/// `out[m, H]`: the weighted sum of each row's experts, and the shared expert.
pub fn forward(
    crew: ComputeContext<'_>,
    weights: &MoeWeights,
    routes: &ExpertRoutes<'_>,
    u: &[f32],
    scratch: ExpertScratch<'_>,
    out: &mut [f32],
) {
    let ExpertScratch { latent, gathered, answered, sum, wide, shared, rows } = scratch;
    let hidden = weights.gate.input();
    match &weights.latent {
        Some([down, up]) => {
            crew.product(down, u, latent);
            sum_experts(crew, weights, routes, latent, ExpertGather { gathered, answered, wide, rows }, sum);
            crew.product(up, sum, out);
        }
        None => sum_experts(crew, weights, routes, u, ExpertGather { gathered, answered, wide, rows }, out),
    }
    if let Some(expert) = &weights.shared {
        let wide = &mut wide[..out.len() / hidden * expert.up.out()];
        mlp::forward(crew, expert, u, wide, shared);
        add(crew, out, shared, hidden);
    }
}

/// Gathers the rows of one expert.
struct ExpertGather<'a> {
    gathered: &'a mut [f32],
    answered: &'a mut [f32],
    wide: &'a mut [f32],
    rows: &'a mut [u32],
}

/// Adds up each row's experts in ascending order, independently of other rows.
fn sum_experts(
    crew: ComputeContext<'_>,
    weights: &MoeWeights,
    routes: &ExpertRoutes<'_>,
    x: &[f32],
    gather: ExpertGather<'_>,
    sum: &mut [f32],
) {
    let ExpertGather { gathered, answered, wide, rows } = gather;
    let m = rows.len();
    let k = routes.experts.len() / m;
    let width = x.len() / m;
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

impl ExpertRoutes<'_> {
    /// Weight of an expert that row `row` chose.
    fn weight(&self, row: usize, expert: usize, k: usize) -> f32 {
        let chosen = row * k..(row + 1) * k;
        let slot = self.experts[chosen.clone()].iter().position(|chosen| *chosen as usize == expert);
        self.weights[chosen.start + slot.expect("the row was gathered because it chose this expert")]
    }
}

/// Chooses the experts of one row. `scores` has the size of `scratch_values`; `experts` and
/// `counts` receive the choice.
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

/// Scratch values for the choice of one row: scores, corrected scores, ratings of groups.
pub fn scratch_values(config: &MoeConfig) -> usize {
    2 * config.experts + config.groups
}

/// Ranks below every real score: an expert of a dropped group, or with a score that is not a
/// number.
const SHUT_OUT: f32 = f32::NEG_INFINITY;
/// Marks a chosen expert: no comparison takes it again.
const TAKEN: f32 = f32::NAN;

/// Excludes the experts of all but the best groups; of equal groups the lower index is the better.
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

/// Sum of the two best scores of a group, or the only one.
fn two_best(scores: &[f32]) -> f32 {
    let mut first = SHUT_OUT;
    let mut second = SHUT_OUT;
    for score in scores {
        if *score > first {
            (first, second) = (*score, first);
        } else if *score > second {
            second = *score;
        }
    }
    if scores.len() == 1 { first } else { first + second }
}

/// The highest score that is not taken; of equal ones the lowest index.
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
        let mut scores = vec![0.0; scratch_values(config)];
        let mut experts = vec![0; k];
        let mut counts = vec![0.0; k];
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
        // Sums of the two best: 0.5 + 0.5, 0.95 + 0.01, 0.6 + 0.6: the group with the single best
        // expert is dropped.
        let logit = |p: f32| (p / (1.0 - p)).ln();
        let logits = [0.5, 0.5, 0.95, 0.01, 0.6, 0.6].map(logit);
        check(&config(6, 2, 3, 1), &logits, &[0.0; 6], &[4, 5]);
        check(&config(6, 3, 3, 2), &logits, &[0.0; 6], &[0, 4, 5]);
        // An expert of a dropped group is never chosen.
        check(&config(6, 1, 3, 2), &logits, &[0.0; 6], &[4]);
    }

    #[test]
    fn not_a_number_makes_weights_that_are_not_numbers_and_no_panic() {
        let (experts, counts) = chosen(&config(4, 2, 2, 1), &[f32::NAN; 4], &[0.0; 4]);
        assert!(experts[0] < experts[1] && experts[1] < 4);
        assert!(counts.iter().all(|count| count.is_nan()));
    }
}
