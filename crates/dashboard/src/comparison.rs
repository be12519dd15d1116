//! What a comparison of two runs says, in a sentence, for the report, the terminal and the pages.

use furrow_analysis::RunComparison;

use crate::answers::{ComparisonAnswer, DifferenceAnswer};
use crate::format::{count, number};

/// Which of two runs is better, by how much, and over how many tasks.
pub fn comparison_sentence(first: &str, second: &str, found: &RunComparison) -> String {
    sentence(first, second, &ComparisonAnswer::from(found))
}

/// How the run named `second` differs from the one named `first`.
pub(crate) fn compare(first: &str, second: &str, found: &RunComparison) -> ComparisonAnswer {
    let answer = ComparisonAnswer::from(found);
    ComparisonAnswer { sentence: sentence(first, second, &answer), ..answer }
}

pub(crate) fn sentence(first: &str, second: &str, found: &ComparisonAnswer) -> String {
    let Some((of, difference)) =
        found.success.map(|of| ("success", of)).or(found.reward.map(|of| ("mean reward", of)))
    else {
        return format!(
            "{second} and {first} cannot be compared: no task has a scored attempt and the same definition in both."
        );
    };
    let is_success = of == "success";
    let by = amount(difference, is_success);
    let over = format!("over {} tasks of both", count(Some(found.shared_tasks as f64)));
    match found.verdict.as_str() {
        "better" => format!("{second} is better than {first}: {of} {by} {over}."),
        "worse" => format!("{second} is worse than {first}: {of} {by} {over}."),
        _ if difference.low.is_none() => {
            format!("{second} against {first}: {of} {by} {over}, which give no interval.")
        }
        _ => format!(
            "Undecided: {second} against {first}: {of} {by} {over}; the interval holds 0, so more tasks are needed."
        ),
    }
}

/// A difference with its sign and interval: success in points of a percent.
pub(crate) fn amount(difference: DifferenceAnswer, is_success: bool) -> String {
    let write = |value: f64| match is_success {
        true => format!("{:+.1}", value * 100.0),
        false => signed(value),
    };
    let unit = if is_success { " points" } else { "" };
    let interval = difference.low.zip(difference.high);
    let interval = interval.map(|(low, high)| format!(" [{}, {}]", write(low), write(high)));
    format!("{}{unit}{}", write(difference.value), interval.unwrap_or_default())
}

fn signed(value: f64) -> String {
    let sign = if value > 0.0 { "+" } else { "" };
    format!("{sign}{}", number(Some(value)))
}

/// Names without what they share at their beginning: `quickstart-model` beside
/// `quickstart-random` becomes `…model`.
pub(crate) fn distinct_names(names: &[String]) -> Vec<String> {
    let [first, rest @ ..] = names else { return Vec::new() };
    let shared = |a: &str, b: &str| a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let common = rest.iter().map(|name| shared(first, name)).min().unwrap_or(0);
    // Whole parts only, and nothing that would leave a name empty.
    let begin = first.get(..common).and_then(|text| text.rfind(['-', '_', '.', '/'])).map_or(0, |at| at + 1);
    let is_worth_it = begin > 3 && names.iter().all(|name| name.len() > begin);
    let short = |name: &String| match is_worth_it {
        true => name.get(begin..).map_or_else(|| name.clone(), |end| format!("…{end}")),
        false => name.clone(),
    };
    names.iter().map(short).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinct_names_keep_their_ends() {
        let check = |names: &[&str], want: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(distinct_names(&names), want);
        };
        check(&["quickstart-random", "quickstart-scripted"], &["…random", "…scripted"]);
        check(&["quickstart-random", "quickstart-random-2"], &["…random", "…random-2"]);
        check(&["night-run", "day-run"], &["night-run", "day-run"]);
        check(&["a-1", "a-2"], &["a-1", "a-2"]);
        check(&["größe-eins", "größe-zwei"], &["…eins", "…zwei"]);
        check(&["alone"], &["alone"]);
        check(&[], &[]);
    }

    #[test]
    fn a_sentence_says_which_is_better_and_by_how_much() {
        let found = |verdict: &str, success| ComparisonAnswer {
            verdict: verdict.into(),
            success,
            shared_tasks: 31,
            ..ComparisonAnswer::default()
        };
        let of = |value, low, high| Some(DifferenceAnswer { value, low: Some(low), high: Some(high) });
        assert_eq!(
            sentence("old", "new", &found("better", of(0.125, 0.04, 0.2))),
            "new is better than old: success +12.5 points [+4.0, +20.0] over 31 tasks of both."
        );
        assert!(sentence("old", "new", &found("undecided", of(0.125, -0.04, 0.2))).starts_with("Undecided"));
        assert!(sentence("old", "new", &found("undecided", None)).contains("cannot be compared"));
    }
}
