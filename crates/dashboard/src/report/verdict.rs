//! The first section of a report over several runs: which is better, by how much, and at which
//! tasks.

use super::elements::{section, short_names, table};
use super::run_metrics::RunMetrics;
use crate::answers::{ComparisonAnswer, TaskDifferenceLine};
use crate::comparison::{amount, sentence};
use crate::format::percent;
use crate::markup::{HtmlElement, element};

/// Most tasks of a table from either end: the losses and the gains.
const TASKS_MAX: usize = 12;

/// Each run against the first; `None` for a report over one run.
pub(super) fn section_of(runs: &[RunMetrics]) -> Option<HtmlElement> {
    let [first, others @ ..] = runs else { return None };
    let compared: Vec<(usize, &RunMetrics, &ComparisonAnswer)> =
        (1..).zip(others).filter_map(|(at, run)| Some((at, run, run.comparison.as_ref()?))).collect();
    if compared.is_empty() {
        return None;
    }
    let names = short_names(runs);
    let verdicts = compared.iter().map(|(_, run, found)| {
        element("p").set("class", "verdict").text(sentence(&first.name, &run.name, found))
    });
    let method = "The difference is the mean over tasks, in points of a percent of success; its 95 % interval resamples tasks (docs/EVALUATION.md).";
    let body = element("div")
        .with_all(verdicts)
        .with(element("p").set("class", "note").text(method))
        .with_all(compared.iter().flat_map(|(at, _, found)| by_task(&names[0], &names[*at], found)));
    Some(section("Verdict", "verdicts", body))
}

fn by_task(first: &str, second: &str, found: &ComparisonAnswer) -> Vec<HtmlElement> {
    let changed: Vec<&TaskDifferenceLine> = found.tasks.iter().filter(|task| change(task) != 0.0).collect();
    let is_listed = |at: usize| at < TASKS_MAX || at + TASKS_MAX >= changed.len();
    let rows: Vec<HtmlElement> =
        (0..changed.len()).filter(|at| is_listed(*at)).map(|at| row(changed[at])).collect();
    let mut notes = vec![format!(
        "{} of {} shared tasks have the same result.",
        found.shared_tasks as usize - changed.len() - found.tasks_left_out as usize,
        found.shared_tasks
    )];
    let left = changed.len() - rows.len() + found.tasks_left_out as usize;
    for (number, what) in [
        (left as u64, "tasks between the largest losses and gains are not listed"),
        (found.only_first, "tasks were tried by the first run alone"),
        (found.only_second, "tasks were tried by the second run alone"),
        (found.redefined, "tasks have another definition in the second run and are not compared"),
    ] {
        if number > 0 {
            notes.push(format!("{number} {what}."));
        }
    }
    let notes = element("p").set("class", "note").text(notes.join(" "));
    let title = element("h3").text(format!("{second} against {first}, by task"));
    if rows.is_empty() {
        return vec![title, notes];
    }
    let header = ["task", "suite", first, second, "difference"];
    vec![title, table(header.into_iter(), rows), notes]
}

fn change(task: &TaskDifferenceLine) -> f64 {
    task.success.map(|of| of.value).or(task.reward).unwrap_or(0.0)
}

fn row(task: &TaskDifferenceLine) -> HtmlElement {
    let rate = |share: Option<f64>, tries: u64| format!("{} of {tries}", percent(share));
    let difference = match task.success {
        Some(of) => amount(of, true),
        None => task.reward.map_or_else(String::new, |value| format!("reward {value:+.3}")),
    };
    let cells = [
        task.suite.clone(),
        rate(task.success_first, task.judged_first),
        rate(task.success_second, task.judged_second),
        difference,
    ];
    let cells = cells.map(|cell| element("td").set("class", "number").text(cell));
    element("tr").with(element("th").set("scope", "row").text(&task.task_id)).with_all(cells)
}
