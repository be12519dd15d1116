//! Formulas over the numbers and days that a goal names: what can be computed without a page.

use super::expression::written_value;
use super::goal::{GoalText, day_text};

/// Numbers of a goal that formulas of two and of three numbers combine; more would be thousands.
const PAIRED_MAX: usize = 6;
const TRIPLED_MAX: usize = 4;

/// A way to compute an answer from a goal, and how the result is written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Formula {
    pub compute: Compute,
    pub digits: Digits,
}

/// Numbers and days are named by their places in the goal, from 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Compute {
    /// The arithmetic that the goal writes out.
    Written,
    Pair(PairOperation, usize, usize),
    Triple(TripleOperation, [usize; 3]),
    All(Aggregate),
    /// A number times a factor plus an offset that were learned, such as a conversion of units.
    Linear {
        number: usize,
        factor: f64,
        offset: f64,
    },
    /// Days from the first day to the second, both included if `more` is 1.
    DaysBetween {
        days: [usize; 2],
        more: i64,
    },
    /// The day that lies a number of days behind another one (`sign` 1) or before it (-1).
    DayFrom {
        day: usize,
        number: usize,
        sign: i64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PairOperation {
    Sum,
    Difference,
    Product,
    Quotient,
    Remainder,
    Power,
    GreatestDivisor,
    LeastMultiple,
    /// `a` percent of `b`.
    Percent,
    /// `a` as a percentage of `b`.
    Percentage,
    /// From `a` to `b` in percent of `a`.
    Change,
}

/// Operations on three numbers, named by the first that is done and the one that follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TripleOperation {
    ProductSum,
    ProductDifference,
    SumProduct,
    DifferenceProduct,
    DifferenceQuotient,
    ProductQuotient,
    /// Monthly payment of a loan of a at b percent a year over c years.
    Payment,
    /// All that is paid for it.
    Paid,
    /// All that is paid for it, less the loan.
    Interest,
    /// a at b percent a year after c years.
    Compound,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Aggregate {
    Sum,
    Product,
    Mean,
    Median,
    Least,
    Largest,
    Range,
    /// Standard deviation of a population and of a sample.
    Deviation,
    SampleDeviation,
    GreatestDivisor,
    LeastMultiple,
    Count,
}

/// How a number is written as an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Digits {
    /// Rounded to this many decimals, with all of them.
    Decimals(usize),
    /// Up to 10 significant digits.
    All,
}

const PAIRS: [PairOperation; 11] = [
    PairOperation::Sum,
    PairOperation::Difference,
    PairOperation::Product,
    PairOperation::Quotient,
    PairOperation::Remainder,
    PairOperation::Power,
    PairOperation::GreatestDivisor,
    PairOperation::LeastMultiple,
    PairOperation::Percent,
    PairOperation::Percentage,
    PairOperation::Change,
];

const TRIPLES: [TripleOperation; 10] = [
    TripleOperation::ProductSum,
    TripleOperation::ProductDifference,
    TripleOperation::SumProduct,
    TripleOperation::DifferenceProduct,
    TripleOperation::DifferenceQuotient,
    TripleOperation::ProductQuotient,
    TripleOperation::Payment,
    TripleOperation::Paid,
    TripleOperation::Interest,
    TripleOperation::Compound,
];

const AGGREGATES: [Aggregate; 12] = [
    Aggregate::Sum,
    Aggregate::Product,
    Aggregate::Mean,
    Aggregate::Median,
    Aggregate::Least,
    Aggregate::Largest,
    Aggregate::Range,
    Aggregate::Deviation,
    Aggregate::SampleDeviation,
    Aggregate::GreatestDivisor,
    Aggregate::LeastMultiple,
    Aggregate::Count,
];

pub(super) const DIGITS: [Digits; 4] =
    [Digits::All, Digits::Decimals(0), Digits::Decimals(1), Digits::Decimals(2)];

impl Formula {
    /// The answer to a goal; `None` if the goal lacks a number, or the result is none.
    pub(super) fn answer(&self, goal: &GoalText) -> Option<String> {
        if let Compute::DayFrom { day, number, sign } = self.compute {
            let days = goal.numbers.get(number).filter(|number| number.abs() < 1e5)?;
            return Some(day_text(goal.days.get(day)? + sign * *days as i64));
        }
        Some(self.digits.write(self.compute.value(goal)?))
    }
}

impl Compute {
    /// Every formula over the numbers and days of a goal except learned ones.
    pub(super) fn every(goal: &GoalText) -> Vec<Self> {
        let pairs = pairs_of(goal.numbers.len().min(PAIRED_MAX));
        let mut every: Vec<Self> =
            pairs.iter().flat_map(|&[a, b]| PAIRS.map(|operation| Self::Pair(operation, a, b))).collect();
        for [a, b] in pairs_of(goal.numbers.len().min(TRIPLED_MAX)) {
            let thirds = (0..goal.numbers.len().min(TRIPLED_MAX)).filter(|c| *c != a && *c != b);
            every.extend(thirds.flat_map(|c| TRIPLES.map(|operation| Self::Triple(operation, [a, b, c]))));
        }
        every.push(Self::Written);
        every.extend(AGGREGATES.map(Self::All));
        for days in pairs_of(goal.days.len()) {
            every.extend([-1, 0, 1].map(|more| Self::DaysBetween { days, more }));
        }
        for day in 0..goal.days.len() {
            let signs = (0..goal.numbers.len()).flat_map(|number| [(number, 1), (number, -1)]);
            every.extend(signs.map(|(number, sign)| Self::DayFrom { day, number, sign }));
        }
        every
    }

    /// The number that it comes to; `None` if there is none, or it is no finite one.
    pub(super) fn value(&self, goal: &GoalText) -> Option<f64> {
        let number = |position: usize| goal.numbers.get(position).copied();
        let value = match *self {
            Self::Written => written_value(&goal.text)?,
            Self::Pair(operation, a, b) => operation.apply(number(a)?, number(b)?)?,
            Self::Triple(operation, [a, b, c]) => operation.apply(number(a)?, number(b)?, number(c)?),
            Self::All(aggregate) => aggregate.of(&goal.numbers)?,
            Self::Linear { number: position, factor, offset } => number(position)? * factor + offset,
            Self::DaysBetween { days: [from, to], more } => {
                (goal.days.get(to)? - goal.days.get(from)? + more) as f64
            }
            Self::DayFrom { .. } => return None,
        };
        value.is_finite().then_some(value)
    }
}

/// All ordered pairs of different places.
fn pairs_of(count: usize) -> Vec<[usize; 2]> {
    let all = (0..count).flat_map(|a| (0..count).map(move |b| [a, b]));
    all.filter(|[a, b]| a != b).collect()
}

impl Digits {
    fn write(self, value: f64) -> String {
        let text = match self {
            Self::Decimals(count) => format!("{value:.count$}"),
            // An exponent is no answer: it is read back and written without one.
            Self::All => format!("{value:.9e}").parse::<f64>().unwrap_or(value).to_string(),
        };
        if text.trim_matches(['-', '0', '.']).is_empty() { "0".to_owned() } else { text }
    }
}

impl PairOperation {
    fn apply(self, a: f64, b: f64) -> Option<f64> {
        Some(match self {
            Self::Sum => a + b,
            Self::Difference => a - b,
            Self::Product => a * b,
            Self::Quotient => a / b,
            Self::Remainder => a % b,
            Self::Power => a.powf(b),
            Self::GreatestDivisor => greatest_divisor(whole(a)?, whole(b)?) as f64,
            Self::LeastMultiple => least_multiple(whole(a)?, whole(b)?)? as f64,
            Self::Percent => a * b / 100.0,
            Self::Percentage => a / b * 100.0,
            Self::Change => (b - a) / a * 100.0,
        })
    }
}

impl TripleOperation {
    fn apply(self, a: f64, b: f64, c: f64) -> f64 {
        match self {
            Self::ProductSum => a * b + c,
            Self::ProductDifference => a * b - c,
            Self::SumProduct => (a + b) * c,
            Self::DifferenceProduct => (a - b) * c,
            Self::DifferenceQuotient => (a - b) / c,
            Self::ProductQuotient => a * b / c,
            Self::Payment => monthly_payment(a, b, c),
            Self::Paid => monthly_payment(a, b, c) * c * 12.0,
            Self::Interest => monthly_payment(a, b, c) * c * 12.0 - a,
            Self::Compound => a * (1.0 + b / 100.0).powf(c),
        }
    }
}

impl Aggregate {
    fn of(self, numbers: &[f64]) -> Option<f64> {
        if numbers.is_empty() {
            return None;
        }
        let count = numbers.len() as f64;
        let mut sorted = numbers.to_vec();
        sorted.sort_by(f64::total_cmp);
        let least = sorted[0];
        let largest = sorted[sorted.len() - 1];
        let mean = numbers.iter().sum::<f64>() / count;
        let squares: f64 = numbers.iter().map(|number| (number - mean).powi(2)).sum();
        let whole_numbers = || numbers.iter().map(|number| whole(*number)).collect::<Option<Vec<u64>>>();
        Some(match self {
            Self::Sum => mean * count,
            Self::Product => numbers.iter().product(),
            Self::Mean => mean,
            Self::Median => f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]),
            Self::Least => least,
            Self::Largest => largest,
            Self::Range => largest - least,
            Self::Deviation => (squares / count).sqrt(),
            Self::SampleDeviation => (squares / (count - 1.0)).sqrt(),
            Self::GreatestDivisor => whole_numbers()?.into_iter().fold(0, greatest_divisor) as f64,
            Self::LeastMultiple => whole_numbers()?.into_iter().try_fold(1, least_multiple)? as f64,
            Self::Count => count,
        })
    }
}

/// Payment a month of a loan over so many years, at an interest in percent a year.
fn monthly_payment(loan: f64, percent: f64, years: f64) -> f64 {
    let rate = percent / 1200.0;
    loan * rate / (1.0 - (1.0 + rate).powf(-years * 12.0))
}

/// A number from 1 to 2^53 without a fraction.
fn whole(number: f64) -> Option<u64> {
    (number.fract() == 0.0 && (1.0..9.0e15).contains(&number)).then_some(number as u64)
}

fn greatest_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}

fn least_multiple(a: u64, b: u64) -> Option<u64> {
    (a / greatest_divisor(a, b).max(1)).checked_mul(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether some formula, however written, gives this answer.
    #[track_caller]
    fn check(goal: &str, want: &str) {
        let goal = GoalText::read(goal);
        let every = Compute::every(&goal);
        let written =
            every.iter().flat_map(|&compute| DIGITS.map(|digits| Formula { compute, digits }.answer(&goal)));
        assert!(written.flatten().any(|answer| answer == want), "{goal:?} never gives {want}");
    }

    #[test]
    fn what_a_goal_lets_one_compute_is_computed() {
        check("What is 17 × 23?", "391");
        check("What is 100 - 58.5?", "41.5");
        check("Work out 74 × (448 + 40) − 21².", "35671");
        check("What is 12 % of 350?", "42");
        check("What is the mean of 4, 8, 9 and 11?", "8");
        check("What is the median of 4, 8, 9 and 11?", "8.5");
        check("What is the greatest common divisor of 84, 126 and 210?", "42");
        check("What is the least common multiple of 12 and 18?", "36");
        check("How many days are there from March 5, 2026 to April 1, 2026?", "27");
        check("Which day is 30 days after 2026-02-10?", "2026-03-12");
        check("Solve 3x + 7 = 28.", "7");
        check("A loan of $200000 at 6 % over 30 years: the monthly payment?", "1199.10");
    }

    #[test]
    fn no_formula_gives_something_that_is_no_number() {
        for goal in ["Divide 1 by 0", "No number", "0 0 0 0", "-1 0.5 1e 99999999999999999999"] {
            let goal = GoalText::read(goal);
            for compute in Compute::every(&goal) {
                let answer = Formula { compute, digits: Digits::All }.answer(&goal);
                assert!(
                    answer.as_ref().is_none_or(|answer| !answer.contains("NaN") && !answer.contains("inf")),
                    "{compute:?} of {goal:?}: {answer:?}"
                );
            }
        }
        assert_eq!(Digits::Decimals(2).write(-0.001), "0");
    }
}
