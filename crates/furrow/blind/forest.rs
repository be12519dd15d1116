//! A small random forest that predicts the answer from the goal's words and numbers (extremely
//! randomised trees: P. Geurts et al. 2006, Machine Learning 63). The same seed grows the same one.

use std::collections::{BTreeMap, HashMap};

use rand::rngs::ChaCha12Rng;
use rand::{Rng, SeedableRng};

use super::goal::GoalText;

const TREES: usize = 48;
const DEPTH_MAX: usize = 14;
/// A node with fewer goals is a leaf.
const SPLIT_MIN: usize = 4;
/// Most different answers that it can predict, the most frequent ones.
const CLASSES_MAX: usize = 64;
/// Most words that are features, the most frequent ones.
const TERMS_MAX: usize = 300;
/// A rarer word separates single goals and no kinds of them.
const TERM_GOALS_MIN: usize = 3;
/// Numbers of a goal that are features, each by its place.
const NUMBERS: usize = 6;

/// Trees over the same features, which vote.
#[derive(Debug)]
pub(super) struct RandomForest {
    terms: Vec<String>,
    answers: Vec<String>,
    trees: Vec<TreeNode>,
}

#[derive(Debug)]
enum TreeNode {
    Leaf(usize),
    Split { feature: usize, threshold: f64, below: Box<TreeNode>, above: Box<TreeNode> },
}

/// A goal as numbers, and the index of its answer.
struct Example {
    features: Vec<f64>,
    class: usize,
}

impl RandomForest {
    /// Learns from goals and their right answers; `None` if there is nothing to tell apart.
    pub(super) fn grow(draws: &[(&GoalText, &str)], seed: u64) -> Option<Self> {
        let answers = most_frequent(draws.iter().map(|(_, answer)| *answer), CLASSES_MAX, 1);
        if answers.len() < 2 {
            return None;
        }
        let terms = separating_terms(draws);
        let classes: HashMap<&str, usize> =
            answers.iter().enumerate().map(|(class, answer)| (answer.as_str(), class)).collect();
        let example = |&(goal, answer): &(&GoalText, &str)| {
            let class = *classes.get(answer)?;
            Some(Example { features: features(&terms, goal), class })
        };
        let examples: Vec<Example> = draws.iter().filter_map(example).collect();
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        let all: Vec<&Example> = examples.iter().collect();
        let trees = (0..TREES).map(|_| grow_node(&all, answers.len(), 0, &mut rng)).collect();
        Some(Self { terms, answers, trees })
    }

    /// The answer that most trees vote for; the more frequent one of a tie.
    pub(super) fn predict(&self, goal: &GoalText) -> &str {
        let features = features(&self.terms, goal);
        let mut votes = vec![0_usize; self.answers.len()];
        for tree in &self.trees {
            votes[class_of(tree, &features)] += 1;
        }
        &self.answers[largest(&votes)]
    }
}

/// The most frequent texts that occur at least `least` times, the most frequent first; ties in the
/// order of the alphabet.
pub(super) fn most_frequent<'a>(
    texts: impl Iterator<Item = &'a str>,
    most: usize,
    least: usize,
) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    texts.for_each(|text| *counts.entry(text).or_default() += 1);
    let mut counts: Vec<(&str, usize)> = counts.into_iter().filter(|(_, count)| *count >= least).collect();
    // Stable, so that ties keep the order of the alphabet.
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts.into_iter().take(most).map(|(text, _)| text.to_owned()).collect()
}

/// Words of several goals and not of all.
fn separating_terms(draws: &[(&GoalText, &str)]) -> Vec<String> {
    let mut terms: BTreeMap<&str, usize> = BTreeMap::new();
    for (goal, _) in draws {
        let mut own: Vec<&str> = goal.terms.iter().map(String::as_str).collect();
        own.sort_unstable();
        own.dedup();
        own.into_iter().for_each(|term| *terms.entry(term).or_default() += 1);
    }
    let separates = |count: usize| count >= TERM_GOALS_MIN && count < draws.len();
    let mut terms: Vec<(&str, usize)> = terms.into_iter().filter(|(_, count)| separates(*count)).collect();
    terms.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    terms.into_iter().take(TERMS_MAX).map(|(term, _)| term.to_owned()).collect()
}

/// 1 for each word that the goal has, then its numbers and how many it has.
fn features(terms: &[String], goal: &GoalText) -> Vec<f64> {
    let has = |term: &String| f64::from(u8::from(goal.terms.contains(term)));
    let number = |position: usize| goal.numbers.get(position).copied().unwrap_or(-1.0);
    let numbers = (0..NUMBERS).map(number).chain([goal.numbers.len() as f64]);
    terms.iter().map(has).chain(numbers).collect()
}

fn grow_node(examples: &[&Example], classes: usize, depth: usize, rng: &mut ChaCha12Rng) -> TreeNode {
    let counts = class_counts(examples, classes);
    let leaf = TreeNode::Leaf(largest(&counts));
    let is_pure = counts.iter().filter(|count| **count > 0).count() < 2;
    if is_pure || depth == DEPTH_MAX || examples.len() < SPLIT_MIN {
        return leaf;
    }
    let Some((feature, threshold)) = best_split(examples, classes, rng) else { return leaf };
    let (below, above): (Vec<&Example>, Vec<&Example>) =
        examples.iter().partition(|example| example.features[feature] <= threshold);
    let mut grown = |part: &[&Example]| Box::new(grow_node(part, classes, depth + 1, rng));
    TreeNode::Split { feature, threshold, below: grown(&below), above: grown(&above) }
}

/// The best of some random splits by the Gini impurity of its parts; `None` if none of them
/// separates anything.
fn best_split(examples: &[&Example], classes: usize, rng: &mut ChaCha12Rng) -> Option<(usize, f64)> {
    let width = examples[0].features.len();
    // The square root of the number of features is usual; twice that, because most words are absent
    // from most goals.
    let tries = 2 * width.isqrt() + 2;
    let mut best: Option<(f64, usize, f64)> = None;
    for _ in 0..tries {
        let feature = below(rng, width);
        let value = |rng: &mut ChaCha12Rng| examples[below(rng, examples.len())].features[feature];
        let one = value(rng);
        let other = value(rng);
        let threshold = f64::midpoint(one, other);
        let (low, high): (Vec<&Example>, Vec<&Example>) =
            examples.iter().partition(|example| example.features[feature] <= threshold);
        if low.is_empty() || high.is_empty() {
            continue;
        }
        let impurity = impurity(&class_counts(&low, classes)) + impurity(&class_counts(&high, classes));
        if best.is_none_or(|(least, ..)| impurity < least) {
            best = Some((impurity, feature, threshold));
        }
    }
    best.map(|(_, feature, threshold)| (feature, threshold))
}

/// Gini impurity times the number of examples.
fn impurity(counts: &[usize]) -> f64 {
    let total: usize = counts.iter().sum();
    let squares: f64 = counts.iter().map(|count| (*count as f64).powi(2)).sum();
    total as f64 - squares / total as f64
}

fn class_counts(examples: &[&Example], classes: usize) -> Vec<usize> {
    let mut counts = vec![0; classes];
    examples.iter().for_each(|example| counts[example.class] += 1);
    counts
}

fn class_of(tree: &TreeNode, features: &[f64]) -> usize {
    match tree {
        TreeNode::Leaf(class) => *class,
        TreeNode::Split { feature, threshold, below, above } => {
            class_of(if features[*feature] <= *threshold { below } else { above }, features)
        }
    }
}

/// The first index of the largest count.
fn largest(counts: &[usize]) -> usize {
    (0..counts.len()).rev().max_by_key(|index| counts[*index]).unwrap_or_default()
}

fn below(rng: &mut ChaCha12Rng, count: usize) -> usize {
    ((u128::from(rng.next_u64()) * count as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grown(goals: &[GoalText], answers: &[String], seed: u64) -> RandomForest {
        let draws: Vec<_> = goals.iter().zip(answers.iter().map(String::as_str)).collect();
        RandomForest::grow(&draws, seed).unwrap()
    }

    /// The answer follows from a word and from whether a number is above 50; no goal occurs twice.
    #[test]
    fn terms_and_numbers_that_decide_are_found() {
        let made = |index: u64| {
            let number = (index * 37) % 100;
            let kind = ["tea", "coffee", "milk"][index as usize % 3];
            let size = if number > 50 { "large" } else { "small" };
            (GoalText::read(&format!("Order {number} of {kind} for guest {index}")), format!("{size} {kind}"))
        };
        let (goals, answers): (Vec<_>, Vec<_>) = (0..300).map(made).unzip();
        let forest = grown(&goals, &answers, 1);
        let right = (1000..1300).map(made).filter(|(goal, answer)| forest.predict(goal) == answer).count();
        assert!(right > 270, "{right} of 300");
        let again = grown(&goals, &answers, 1);
        let alike = |(goal, _): (GoalText, String)| forest.predict(&goal) == again.predict(&goal);
        assert!((1000..1100).map(made).all(alike));
    }

    #[test]
    fn one_answer_is_no_forest_and_ties_are_by_the_alphabet() {
        let goal = GoalText::read("Go");
        assert!(RandomForest::grow(&[(&goal, "a"), (&goal, "a")], 0).is_none());
        assert_eq!(most_frequent(["b", "a", "c", "c"].into_iter(), 2, 1), ["c", "a"]);
        assert_eq!(most_frequent(["b", "a"].into_iter(), 2, 2), [""; 0]);
    }
}
