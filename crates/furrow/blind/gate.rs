//! The rule of the blind gate: how many draws a policy is tried on, and when a template fails.
//!
//! A policy is first tried on [`FIRST_DRAWS`] draws. With fewer than [`REPEAT_FROM`] successes the
//! template passes; each other policy is tried on [`REPEAT_DRAWS`] new draws, and the template
//! fails where the upper bound of the best one exceeds [`CHANCE_MAX`]: 20 successes of 300. Thirty
//! draws alone could not prove it, since even without a success their upper bound is 0.114.

use furrow_analysis::wilson;

use super::draw::{Draw, DrawScorer};
use super::policies::BlindPolicy;

/// Draws of the first trial.
pub(super) const FIRST_DRAWS: usize = 30;
/// So many successes in the first trial ask for another one.
pub(super) const REPEAT_FROM: u64 = 3;
/// Draws of the other trial.
pub(super) const REPEAT_DRAWS: usize = 300;
/// The largest upper bound that passes.
pub(super) const CHANCE_MAX: f64 = 0.10;

/// Successes of a policy.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct BlindRate {
    pub policy: String,
    pub successes: u64,
    pub draws: u64,
}

/// The result for a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlindVerdict {
    Pass,
    Fail,
}

impl BlindRate {
    /// Successes of the draws, 0 without draws.
    pub(super) fn rate(&self) -> f64 {
        self.successes as f64 / (self.draws as f64).max(1.0)
    }

    /// Bounds of the 95 % interval (Wilson); everything without draws.
    pub(super) fn bounds(&self) -> (f64, f64) {
        wilson(self.successes as f64, self.draws as f64).unwrap_or((0.0, 1.0))
    }

    /// Whether the first trial cannot tell whether the template passes.
    pub(super) fn needs_repeat(&self) -> bool {
        self.successes >= REPEAT_FROM
    }

    pub(super) fn verdict(&self) -> BlindVerdict {
        match self.needs_repeat() && self.bounds().1 > CHANCE_MAX {
            true => BlindVerdict::Fail,
            false => BlindVerdict::Pass,
        }
    }
}

/// Each policy's successes in some draws.
pub(super) fn rates<'a>(
    policies: impl IntoIterator<Item = &'a BlindPolicy>,
    scorer: DrawScorer,
    draws: &[Draw],
) -> Vec<BlindRate> {
    let rate = |policy: &BlindPolicy| {
        let right = draws.iter().filter(|draw| scorer.earns(draw, &policy.end(&draw.goal))).count();
        BlindRate { policy: policy.name(), successes: right as u64, draws: draws.len() as u64 }
    };
    policies.into_iter().map(rate).collect()
}

/// The policies of a first trial that need another one.
pub(super) fn to_repeat<'a>(policies: &'a [BlindPolicy], first: &[BlindRate]) -> Vec<&'a BlindPolicy> {
    let needed = policies.iter().zip(first).filter(|(_, rate)| rate.needs_repeat());
    needed.map(|(policy, _)| policy).collect()
}

/// The rate that counts: the largest, of equal ones the simplest policy's. Those of another trial
/// outrank those of the first.
pub(super) fn best(first: &[BlindRate], repeated: &[BlindRate]) -> Option<BlindRate> {
    let counted = if repeated.is_empty() { first } else { repeated };
    counted.iter().rev().max_by(|one, other| one.rate().total_cmp(&other.rate())).cloned()
}

#[cfg(test)]
mod tests {
    use furrow_rollout::Evidence;
    use furrow_tasks::Scorer;
    use serde_json::json;

    use super::super::policies;
    use super::*;

    const NUMBER: &str = r#"{"score":{"kind":"answer","match":"number","expected_pointer":"/expected"}}"#;
    const TEXT: &str = r#"{"score":{"kind":"answer","match":"normalized","expected_pointer":"/expected"}}"#;

    /// A generator of tasks: the goal and the right answer of a seed.
    type Template = fn(u64) -> (String, serde_json::Value);

    /// Some number from 0 to below `below` that follows from a seed.
    fn some(seed: u64, salt: u64, below: u64) -> u64 {
        let mixed = (seed ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        ((mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53) >> 33) % below
    }

    fn draws(scorer: DrawScorer, template: Template, seeds: std::ops::Range<u64>) -> Vec<Draw> {
        let made = |seed: u64| {
            let (goal, expected) = template(seed);
            let probe_json = Some(json!({ "done": false, "expected": expected }).to_string());
            scorer.draw(&goal, Evidence { probe_json, ..Evidence::default() })
        };
        seeds.map(made).collect()
    }

    /// What the gate finds of a template.
    fn examined(line: &str, template: Template) -> (BlindRate, BlindVerdict) {
        let scorer = Scorer::of_task_json(line).unwrap();
        let scorer = DrawScorer { scorer: &scorer, max_steps: 8 };
        let trained = policies::train(scorer, &draws(scorer, template, 0..300), 7);
        let first = rates(&trained, scorer, &draws(scorer, template, 10_000..10_030));
        let again = to_repeat(&trained, &first);
        let repeated = match again.is_empty() {
            true => Vec::new(),
            false => rates(again, scorer, &draws(scorer, template, 20_000..20_300)),
        };
        let best = best(&first, &repeated).unwrap();
        let verdict = best.verdict();
        (best, verdict)
    }

    #[test]
    fn a_constant_answer_fails() {
        let (best, verdict) = examined(NUMBER, |seed| {
            let answer = if some(seed, 1, 3) == 0 { 2 } else { some(seed, 2, 1000) };
            (format!("How many pages has book {}?", some(seed, 3, 100_000)), answer.into())
        });
        assert_eq!((best.policy.as_str(), verdict, best.draws), ("constant \"2\"", BlindVerdict::Fail, 300));
        assert!((0.2..0.5).contains(&best.rate()), "{best:?}");
    }

    #[test]
    fn a_finite_table_fails() {
        let (best, verdict) = examined(TEXT, |seed| {
            let term = some(seed, 1, 40);
            (format!("What is \"term {term}\" in Welsh?"), format!("gair {}", term * 7 % 41).into())
        });
        assert_eq!((best.policy.as_str(), verdict), ("table of goals", BlindVerdict::Fail));
        assert!(best.rate() > 0.95, "{best:?}");
    }

    #[test]
    fn a_sum_of_the_goals_numbers_fails() {
        let (best, verdict) = examined(NUMBER, |seed| {
            let one = some(seed, 1, 900) + 100;
            let other = some(seed, 2, 900) + 100;
            (format!("Use the calculator: what is {one} + {other}?"), (one + other).into())
        });
        assert_eq!((best.policy.as_str(), verdict), ("formula", BlindVerdict::Fail));
        assert_eq!(best.successes, 300, "{best:?}");
    }

    #[test]
    fn a_conversion_with_a_factor_of_its_own_fails() {
        let (best, verdict) = examined(NUMBER, |seed| {
            let (unit, factor) =
                [("miles", 1.5), ("feet", 0.25), ("degrees", 4.0)][some(seed, 1, 3) as usize];
            let offset = if unit == "degrees" { 32.0 } else { 0.0 };
            let amount = some(seed, 2, 5000);
            (format!("How much are {amount} {unit}?"), (amount as f64 * factor + offset).into())
        });
        assert_eq!((best.policy.as_str(), verdict), ("formula", BlindVerdict::Fail));
        assert!(best.rate() > 0.9, "{best:?}");
    }

    #[test]
    fn a_template_whose_answer_is_on_the_page_alone_passes() {
        let (best, verdict) = examined(NUMBER, |seed| {
            let year = 1900 + some(seed, 3, 100);
            let book = some(seed, 1, 40);
            (format!("How many pages has \"Book {book}\" of {year}?"), some(seed, 2, 5000).into())
        });
        assert_eq!(verdict, BlindVerdict::Pass, "{best:?}");
    }

    #[test]
    fn a_state_that_is_right_at_once_fails() {
        const STATE: &str = r#"{"score":{"kind":"probe","pointer":"/expected"}}"#;
        let (best, verdict) = examined(STATE, |_| ("Set it.".to_owned(), true.into()));
        assert_eq!((best.policy.as_str(), verdict), ("doing nothing", BlindVerdict::Fail));
        let (_, verdict) = examined(STATE, |_| ("Set it.".to_owned(), false.into()));
        assert_eq!(verdict, BlindVerdict::Pass);
    }

    #[test]
    fn a_policy_with_three_successes_is_tried_again() {
        let rate = |successes, draws| BlindRate { policy: "p".to_owned(), successes, draws };
        for (successes, draws, repeats, verdict) in [
            (0, 30, false, BlindVerdict::Pass),
            (2, 30, false, BlindVerdict::Pass),
            (3, 30, true, BlindVerdict::Fail),
            (19, 300, true, BlindVerdict::Pass),
            (20, 300, true, BlindVerdict::Fail),
        ] {
            let rate = rate(successes, draws);
            assert_eq!((rate.needs_repeat(), rate.verdict()), (repeats, verdict), "{rate:?}");
        }
        let simple = BlindRate { policy: "simple".to_owned(), ..rate(1, 30) };
        assert_eq!(best(&[simple.clone(), rate(1, 30)], &[]), Some(simple));
        assert_eq!(best(&[rate(9, 30)], &[rate(1, 300)]), Some(rate(1, 300)));
    }
}
