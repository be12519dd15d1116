//! Rates and their 95 % intervals: Wilson's for independent trials, a bootstrap over tasks where
//! trials of one task are correlated, and pass@k.

use rand::rngs::ChaCha12Rng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

/// Quantile of the standard normal distribution at 0.975: 95 % of it lies within ±Z.
const Z: f64 = 1.959_963_984_540_054;

/// Resamples of a bootstrap. The bounds of an interval are then accurate to about a fiftieth of its
/// width.
pub const RESAMPLES: u32 = 2_000;

/// Default seed of a bootstrap, so that the same rows give the same interval.
pub const BOOTSTRAP_SEED: u64 = 0;

/// An estimate with its uncertainty.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The mean of the terms: a rate from 0 to 1, or a mean reward.
    pub value: f64,
    /// The 95 % interval; absent where one task alone, or identical tasks, give no information on
    /// the spread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
}

/// A 95 % interval of an estimate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    /// Lower bound of the interval.
    pub low: f64,
    /// Upper bound of the interval.
    pub high: f64,
    /// The method that produced it.
    pub method: IntervalMethod,
}

/// How an interval was computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IntervalMethod {
    /// Wilson's score interval over the trials.
    Wilson,
    /// Percentiles of a bootstrap that resamples whole tasks.
    BootstrapByTask,
    /// Wilson's score interval with one trial per task: all trials had the same result, and a
    /// bootstrap would give an interval of width 0.
    WilsonByTask,
}

/// What one task adds to a mean: a sum and the number of its terms.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TaskShare {
    /// Sum of the terms.
    pub sum: f64,
    /// Number of terms; a float because the sum is divided by it.
    pub count: f64,
}

/// Wilson's score interval of a rate (E. B. Wilson 1927; method 3 in R. G. Newcombe 1998,
/// Statistics in Medicine 17, 857–872).
///
/// With p = successes / trials, n = trials and z = 1.96:
///
/// ```text
/// (p + z²/2n ± z sqrt(p (1 - p) / n + z²/4n²)) / (1 + z²/n)
/// ```
///
/// `None` without trials. The number of trials may be fractional, where it is an effective number.
pub fn wilson(successes: f64, trials: f64) -> Option<(f64, f64)> {
    if trials <= 0.0 {
        return None;
    }
    let rate = successes / trials;
    let square = Z * Z;
    let middle = rate + square / (2.0 * trials);
    let half = Z * (rate * (1.0 - rate) / trials + square / (4.0 * trials * trials)).sqrt();
    let scale = 1.0 + square / trials;
    Some((((middle - half) / scale).max(0.0), ((middle + half) / scale).min(1.0)))
}

/// The probability that at least one of `k` attempts is right, where `right` of `tried` were: 1 -
/// C(tried - right, k) / C(tried, k), the unbiased estimator of M. Chen et al. 2021
/// (arXiv:2107.03374, equation 1). `None` where fewer than `k` were tried, or `k` is 0.
pub fn pass_at_k(tried: u64, right: u64, k: u64) -> Option<f64> {
    if k == 0 || k > tried || right > tried {
        return None;
    }
    // C(n - c, k) / C(n, k) = product over i = n - c + 1 ..= n of (1 - k / i); a factor of 0 or
    // less means that k attempts cannot all be wrong.
    let wrong =
        (tried - right + 1..=tried).fold(1.0, |wrong, i| wrong * (1.0 - k as f64 / i as f64).max(0.0));
    Some(1.0 - wrong)
}

/// Kind of the terms of a mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TermKind {
    /// Each term is 0 or 1.
    Trials,
    /// Probabilities, 0 to 1.
    Chances,
    /// Numbers without bounds, such as rewards: their mean is not a rate, so Wilson's interval does
    /// not apply.
    Numbers,
}

/// The mean over all tasks' shares, with an interval that fits the terms.
///
/// Trials at tasks tried once each get Wilson's interval; everything else is resampled by task,
/// since attempts at one task are correlated. `None` where nothing was summed.
pub fn estimate(tasks: &[TaskShare], terms: TermKind, seed: u64) -> Option<Estimate> {
    let tasks: Vec<TaskShare> = tasks.iter().copied().filter(|task| task.count > 0.0).collect();
    let (sum, count) = total(&tasks);
    if count <= 0.0 {
        return None;
    }
    let value = sum / count;
    let made = |method| move |(low, high)| Interval { low, high, method };
    let all_alike = tasks.iter().all(|task| task.sum == value * task.count);
    let interval = if terms == TermKind::Trials && tasks.iter().all(|task| task.count == 1.0) {
        wilson(sum, count).map(made(IntervalMethod::Wilson))
    } else if terms != TermKind::Numbers && (value == 0.0 || value == 1.0) {
        let trials = tasks.len() as f64;
        wilson(value * trials, trials).map(made(IntervalMethod::WilsonByTask))
    } else if all_alike {
        None
    } else {
        bootstrap(&tasks, RESAMPLES, seed).map(made(IntervalMethod::BootstrapByTask))
    };
    Some(Estimate { value, interval })
}

/// Percentiles 2.5 and 97.5 of the mean when whole tasks are drawn with replacement (the cluster
/// bootstrap: A. C. Davison and D. V. Hinkley 1997, section 3.8; percentiles between two values by
/// linear interpolation). `None` for fewer than two tasks.
pub fn bootstrap(tasks: &[TaskShare], resamples: u32, seed: u64) -> Option<(f64, f64)> {
    if tasks.len() < 2 || resamples == 0 {
        return None;
    }
    let mut rng = ChaCha12Rng::seed_from_u64(seed);
    // The high bits of a product: an index below the length without a division; 2^64 is so much
    // larger that the bias is negligible.
    let mut index = || ((u128::from(rng.next_u64()) * tasks.len() as u128) >> 64) as usize;
    let mut means: Vec<f64> = (0..resamples)
        .map(|_| {
            let drawn = (0..tasks.len()).map(|_| tasks[index()]);
            let (sum, count) = drawn.fold((0.0, 0.0), |all, task| (all.0 + task.sum, all.1 + task.count));
            sum / count
        })
        .collect();
    means.sort_by(f64::total_cmp);
    Some((percentile(&means, 0.025), percentile(&means, 0.975)))
}

fn total(tasks: &[TaskShare]) -> (f64, f64) {
    tasks.iter().fold((0.0, 0.0), |all, task| (all.0 + task.sum, all.1 + task.count))
}

/// A percentile of sorted values without NaN.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = share * (sorted.len() - 1) as f64;
    let below = rank.floor() as usize;
    let above = rank.ceil() as usize;
    sorted[below] + (sorted[above] - sorted[below]) * (rank - below as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Newcombe 1998, table I, method 3, to four digits; the last row is the closed form at p =
    /// 1/2: 1/2 ± z / 2 sqrt(n + z²).
    #[test]
    fn wilsons_interval_is_the_published_one() {
        for (successes, trials, low, high) in [
            (81.0, 263.0, 0.2553, 0.3662),
            (15.0, 148.0, 0.0624, 0.1605),
            (0.0, 20.0, 0.0, 0.1611),
            (1.0, 29.0, 0.0061, 0.1718),
            (20.0, 20.0, 0.8389, 1.0),
            (50.0, 100.0, 0.4038, 0.5962),
        ] {
            let got = wilson(successes, trials).unwrap();
            assert!(
                (got.0 - low).abs() < 5e-5 && (got.1 - high).abs() < 5e-5,
                "{successes}/{trials}: {got:?}"
            );
        }
        assert_eq!(wilson(0.0, 0.0), None);
    }

    #[test]
    fn pass_at_k_counts_the_draws_without_a_right_one() {
        for (tried, right, k, want) in [
            (1, 0, 1, Some(0.0)),
            (1, 1, 1, Some(1.0)),
            (4, 1, 1, Some(0.25)),
            // Of the 6 pairs of 4, 3 contain the right one.
            (4, 1, 2, Some(0.5)),
            // C(7, 5) / C(10, 5) = 21 / 252.
            (10, 3, 5, Some(1.0 - 21.0 / 252.0)),
            // Two are wrong: three attempts cannot all be wrong.
            (5, 3, 3, Some(1.0)),
            (4, 0, 4, Some(0.0)),
            (4, 2, 5, None),
            (4, 2, 0, None),
            (0, 0, 1, None),
        ] {
            let got = pass_at_k(tried, right, k);
            let near =
                got.zip(want).map_or(got == want, |(got, want): (f64, f64)| (got - want).abs() < 1e-12);
            assert!(near, "pass@{k} of {right}/{tried}: {got:?}, not {want:?}");
        }
    }

    fn shares(pairs: &[(f64, f64)]) -> Vec<TaskShare> {
        pairs.iter().map(|&(sum, count)| TaskShare { sum, count }).collect()
    }

    #[test]
    fn the_interval_follows_from_how_the_trials_came_about() {
        use TermKind::{Chances, Numbers, Trials};
        let method = |pairs: &[(f64, f64)], terms| {
            estimate(&shares(pairs), terms, 0).unwrap().interval.map(|interval| interval.method)
        };
        assert_eq!(method(&[(1.0, 1.0), (0.0, 1.0)], Trials), Some(IntervalMethod::Wilson));
        assert_eq!(method(&[(1.0, 1.0)], Trials), Some(IntervalMethod::Wilson));
        assert_eq!(method(&[(1.0, 2.0), (2.0, 2.0)], Trials), Some(IntervalMethod::BootstrapByTask));
        assert_eq!(method(&[(2.0, 2.0), (2.0, 2.0)], Trials), Some(IntervalMethod::WilsonByTask));
        assert_eq!(method(&[(0.25, 1.0), (0.5, 1.0)], Numbers), Some(IntervalMethod::BootstrapByTask));
        assert_eq!(method(&[(0.25, 1.0), (0.5, 1.0)], Chances), Some(IntervalMethod::BootstrapByTask));
        assert_eq!(method(&[(0.0, 1.0), (0.0, 1.0)], Chances), Some(IntervalMethod::WilsonByTask));
        assert_eq!(method(&[(0.0, 1.0), (0.0, 1.0)], Numbers), None);
        assert_eq!(method(&[(1.5, 4.0)], Numbers), None);
        assert_eq!(estimate(&shares(&[(0.0, 0.0)]), Trials, 0), None);
        assert_eq!(estimate(&[], Trials, 0), None);
    }

    /// Two tasks, one always solved and one never: the mean of two draws is 0, 1/2 or 1 with
    /// probabilities 1/4, 1/2, 1/4.
    #[test]
    fn a_bootstrap_draws_whole_tasks() {
        let tasks = shares(&[(8.0, 8.0), (0.0, 8.0)]);
        assert_eq!(bootstrap(&tasks, 2_000, 0), Some((0.0, 1.0)));
        assert_eq!(bootstrap(&tasks[..1], 2_000, 0), None);
        // A hundred tasks of ten identical trials each: as wide as the normal interval of 100
        // trials, not of 1,000.
        let many: Vec<TaskShare> = (0..100)
            .map(|task| TaskShare { sum: if task % 2 == 0 { 10.0 } else { 0.0 }, count: 10.0 })
            .collect();
        let (low, high) = bootstrap(&many, 4_000, 1).unwrap();
        let want = Z * (0.25f64 / 100.0).sqrt();
        assert!((high - low - 2.0 * want).abs() < 0.03, "{low} {high}");
        assert_eq!(bootstrap(&many, 4_000, 1), bootstrap(&many, 4_000, 1));
    }

    proptest! {
        #[test]
        fn an_interval_holds_its_rate(trials in 1u32..2000, part in 0.0f64..=1.0) {
            let successes = (f64::from(trials) * part).floor();
            let rate = successes / f64::from(trials);
            let (low, high) = wilson(successes, f64::from(trials)).unwrap();
            prop_assert!((0.0..=1.0).contains(&low) && low <= rate + 1e-12 && rate <= high + 1e-12 && high <= 1.0);
        }

        /// The estimator is unbiased: over all ways to choose k of n it is the share of choices
        /// with a right one.
        #[test]
        fn pass_at_k_is_the_share_of_choices(tried in 1u64..12, right in 0u64..12, k in 1u64..12) {
            prop_assume!(right <= tried && k <= tried);
            let choices = (0u32..1 << tried).filter(|choice| u64::from(choice.count_ones()) == k);
            let mut all = 0.0;
            let mut hits = 0.0;
            for choice in choices {
                all += 1.0;
                hits += f64::from(u8::from(choice & ((1 << right) - 1) != 0));
            }
            prop_assert!((pass_at_k(tried, right, k).unwrap() - hits / all).abs() < 1e-9);
        }
    }
}
