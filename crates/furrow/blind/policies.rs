//! Policies that never look at a page: each sees the goal alone, and learned from the goals and
//! right answers of training draws.

use std::collections::{BTreeMap, HashMap};

use super::draw::{BlindEnd, Draw, DrawScorer};
use super::forest::{RandomForest, most_frequent};
use super::formulas::{Compute, DIGITS, Formula};
use super::goal::GoalText;

/// Most frequent answers that are tried as the constant one: with a tolerance, the most frequent
/// one need not be the best.
const CONSTANTS_TRIED: usize = 8;
/// Training draws that decide among them, and among formulas.
const COMPARED_MAX: usize = 100;
/// Training draws of one masked goal that formulas are searched in, and those that they are
/// compared on.
const SEARCHED: usize = 4;
/// A formula is tried only if it comes this near to the right number, relative and absolute.
const NEAR: f64 = 0.02;
const NEAR_ABSOLUTE: f64 = 0.6;

/// A policy that looks at nothing.
#[derive(Debug)]
pub(super) enum BlindPolicy {
    Constant(String),
    /// The answer that this goal had, else goals alike but for numbers, else but for names; else
    /// the constant.
    Table {
        levels: [HashMap<String, String>; 3],
        constant: String,
    },
    /// What the goal's words and numbers predict.
    Forest {
        forest: RandomForest,
    },
    /// What the numbers of the goal come to: a formula for goals alike but for names and numbers,
    /// and one for all others.
    Formulas {
        by_goal: HashMap<String, Formula>,
        general: Option<Formula>,
    },
    Idle,
    /// Answers "done" at once.
    Done,
}

impl BlindPolicy {
    /// Its name in reports.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Constant(answer) => format!("constant {:?}", shortened(answer)),
            Self::Table { .. } => "table of goals".to_owned(),
            Self::Forest { .. } => "forest".to_owned(),
            Self::Formulas { .. } => "formula".to_owned(),
            Self::Idle => "doing nothing".to_owned(),
            Self::Done => "answering \"done\"".to_owned(),
        }
    }

    /// How it ends for a goal.
    pub(super) fn end(&self, goal: &GoalText) -> BlindEnd {
        let answer = match self {
            Self::Constant(answer) => Some(answer.clone()),
            Self::Table { levels, constant } => {
                let known = levels.iter().zip(keys(goal)).find_map(|(level, key)| level.get(key));
                Some(known.unwrap_or(constant).clone())
            }
            Self::Forest { forest } => Some(forest.predict(goal).to_owned()),
            Self::Formulas { by_goal, general } => {
                let own = by_goal.get(&goal.without_names).and_then(|formula| formula.answer(goal));
                own.or_else(|| general.as_ref()?.answer(goal))
            }
            Self::Idle => None,
            Self::Done => Some("done".to_owned()),
        };
        answer.map_or(BlindEnd::Idle, BlindEnd::Answer)
    }
}

/// The policies that the training draws allow, simple ones first. Deterministic by the seed.
pub(super) fn train(scorer: DrawScorer, draws: &[Draw], seed: u64) -> Vec<BlindPolicy> {
    let known: Vec<(&Draw, &str)> =
        draws.iter().filter_map(|draw| Some((draw, draw.right_answer.as_deref()?))).collect();
    let mut policies = Vec::new();
    if let Some(constant) = best_constant(scorer, &known) {
        policies.push(BlindPolicy::Constant(constant.clone()));
        policies.push(table(&known, constant));
        let pairs: Vec<(&GoalText, &str)> =
            known.iter().map(|(draw, answer)| (&draw.goal, *answer)).collect();
        policies.extend(RandomForest::grow(&pairs, seed).map(|forest| BlindPolicy::Forest { forest }));
        policies.extend(formulas(scorer, &known));
    }
    policies.extend([BlindPolicy::Idle, BlindPolicy::Done]);
    policies
}

fn best_constant(scorer: DrawScorer, known: &[(&Draw, &str)]) -> Option<String> {
    let tried = most_frequent(known.iter().map(|(_, answer)| *answer), CONSTANTS_TRIED, 1);
    let right = |answer: &String| {
        let end = BlindEnd::Answer(answer.clone());
        known.iter().take(COMPARED_MAX).filter(|(draw, _)| scorer.earns(draw, &end)).count()
    };
    // The last of equal ones wins: the most frequent, seen from behind.
    tried.into_iter().rev().max_by_key(right)
}

/// What a goal is looked up by, the most exact key first.
fn keys(goal: &GoalText) -> [&str; 3] {
    [&goal.text, &goal.without_numbers, &goal.without_names]
}

fn table(known: &[(&Draw, &str)], constant: String) -> BlindPolicy {
    let level = |of: usize| {
        let mut answers: HashMap<&str, Vec<&str>> = HashMap::new();
        for (draw, answer) in known {
            answers.entry(keys(&draw.goal)[of]).or_default().push(answer);
        }
        let usual = |answers: Vec<&str>| most_frequent(answers.into_iter(), 1, 1).pop();
        answers.into_iter().filter_map(|(key, all)| Some((key.to_owned(), usual(all)?))).collect()
    };
    BlindPolicy::Table { levels: [0, 1, 2].map(level), constant }
}

/// The formulas that were right most often; `None` if none was right twice.
fn formulas(scorer: DrawScorer, known: &[(&Draw, &str)]) -> Option<BlindPolicy> {
    let mut alike: BTreeMap<&str, Vec<(&Draw, &str)>> = BTreeMap::new();
    for &(draw, answer) in known {
        alike.entry(&draw.goal.without_names).or_default().push((draw, answer));
    }
    let mut by_goal = HashMap::new();
    for (key, draws) in alike.iter().filter(|(_, draws)| draws.len() > 1) {
        if let Some((formula, _)) = best_formula(scorer, draws) {
            by_goal.insert((*key).to_owned(), formula);
        }
    }
    let general = best_formula(scorer, known).map(|(formula, _)| formula);
    (general.is_some() || !by_goal.is_empty()).then_some(BlindPolicy::Formulas { by_goal, general })
}

/// The formula that is right most often in some draws, and how often; at least twice, since one hit
/// in hundreds of formulas is chance.
fn best_formula(scorer: DrawScorer, draws: &[(&Draw, &str)]) -> Option<(Formula, usize)> {
    let mut tried: Vec<(Formula, usize)> = Vec::new();
    for (draw, answer) in draws.iter().take(SEARCHED) {
        for formula in right_formulas(scorer, draw, answer, draws) {
            if tried.iter().all(|(other, _)| *other != formula) {
                tried.push((formula, hits(scorer, &formula, draws)));
            }
        }
    }
    // The first of equal ones: formulas without learned numbers come first.
    let best = tried.into_iter().rev().max_by_key(|(_, hits)| *hits);
    best.filter(|(_, hits)| *hits >= 2)
}

fn hits(scorer: DrawScorer, formula: &Formula, draws: &[(&Draw, &str)]) -> usize {
    let is_right = |draw: &Draw, answer: &str| {
        let Some(given) = formula.answer(&draw.goal) else { return false };
        is_near(&given, answer) && scorer.earns(draw, &BlindEnd::Answer(given))
    };
    draws.iter().take(COMPARED_MAX).filter(|(draw, answer)| is_right(draw, answer)).count()
}

/// The formulas that give the right answer in this draw.
fn right_formulas(scorer: DrawScorer, draw: &Draw, answer: &str, others: &[(&Draw, &str)]) -> Vec<Formula> {
    let every = Compute::every(&draw.goal).into_iter().chain(learned(draw, answer, others));
    let mut right = Vec::new();
    for compute in every {
        for digits in DIGITS {
            let formula = Formula { compute, digits };
            let Some(given) = formula.answer(&draw.goal).filter(|given| is_near(given, answer)) else {
                continue;
            };
            if scorer.earns(draw, &BlindEnd::Answer(given)) {
                right.push(formula);
            }
        }
    }
    right
}

/// Factors and offsets that lead from a number of the goal to the answer: through zero, and through
/// the answer of another draw.
fn learned(draw: &Draw, answer: &str, others: &[(&Draw, &str)]) -> Vec<Compute> {
    let Ok(value) = answer.parse::<f64>() else { return Vec::new() };
    let mut learned = Vec::new();
    for (number, &from) in draw.goal.numbers.iter().enumerate() {
        if from != 0.0 && value != 0.0 {
            learned.push(Compute::Linear { number, factor: value / from, offset: 0.0 });
        }
        let other = others.iter().find_map(|(other, answer)| {
            let other_from = *other.goal.numbers.get(number)?;
            (other_from != from).then_some((other_from, answer.parse::<f64>().ok()?))
        });
        if let Some((other_from, other_value)) = other {
            let factor = (value - other_value) / (from - other_from);
            learned.push(Compute::Linear { number, factor, offset: value - factor * from });
        }
    }
    learned
}

/// Whether a scorer could take one text for the other: both are no numbers, or near ones.
fn is_near(given: &str, answer: &str) -> bool {
    let number = |text: &str| text.replace(',', "").trim_start_matches('$').parse::<f64>().ok();
    match (number(given), number(answer)) {
        (Some(given), Some(answer)) => (given - answer).abs() <= (answer.abs() * NEAR).max(NEAR_ABSOLUTE),
        (None, None) => true,
        _ => false,
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}
