//! A report: one self-contained HTML file over one run or several side by side.
//!
//! Its metrics are those of the pages: [`RunMetrics::read`] reads a whole run and keeps the answers
//! of `/api/overview` and `/api/learning`, and everything here is rendered from these. The file
//! also contains them as JSON for programs (`#figures`), and each cell of the table of metrics
//! names its position there. The file runs no script and loads nothing: its policy forbids both.

mod charts;
mod elements;
mod metric_rows;
mod plots;
mod run_metrics;
mod verdict;

use serde_json::json;

use crate::answers::{TaskLine, TrajectoryRates};
use crate::format::{bytes, count, device_hour, percent};
use crate::markup::{HtmlElement, element};
use elements::{section, short_names, table};
use metric_rows::{METRIC_ROWS, MetricRow};
pub use run_metrics::{ReportError, ReportTable, RunMetrics};

/// A plot of a report as a separate page, which fills a window of this size.
#[derive(Debug, Clone)]
pub struct PlotPicture {
    /// Name of its file, without an extension.
    pub name: &'static str,
    pub html: String,
    pub width: u32,
    pub height: u32,
}

/// Most runs side by side: more do not fit into a legend.
pub const REPORT_RUNS_MAX: usize = 6;

const STYLE: [&str; 2] = [include_str!("../pages/palette.css"), include_str!("../pages/report.css")];
/// No requests, no forms, no scripts.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// The report as a file. Runs with the same name get a number.
pub fn report_html(runs: &[RunMetrics]) -> String {
    let runs = with_unique_names(runs);
    let title = match runs.as_slice() {
        [run] => format!("Report of {}", run.name),
        runs => format!("{} runs side by side", runs.len()),
    };
    let plots = plots::plots(&runs);
    let body = element("main")
        .with(element("h1").text(&title))
        .with(element("p").set("class", "note").text(provenance(&runs)))
        .with_all(runs.iter().flat_map(problems))
        .with_all(verdict::section_of(&runs))
        .with(section("Metrics", "figures-table", metrics_table(&runs)))
        .with_all(plots.into_iter().map(plots::ReportPlot::figure))
        .with_all(runs.iter().flat_map(|run| run.tables.iter().map(move |table| (run, table))).map(
            |(run, table)| {
                let of_run = if runs.len() > 1 {
                    format!("{}: {}", run.name, table.title)
                } else {
                    table.title.clone()
                };
                section(&of_run, "evaluation", plain(table))
            },
        ))
        .with(by_task(&runs))
        .with_all(runs.iter().filter_map(resolved));
    document(&title, body, Some(&runs))
}

/// Its plots as separate pages.
pub fn report_pictures(runs: &[RunMetrics]) -> Vec<PlotPicture> {
    let picture = |plot: plots::ReportPlot| PlotPicture {
        name: plot.name,
        width: plots::PICTURE_WIDTH,
        height: plot.picture_height(),
        html: document(&plot.title, element("main").set("class", "alone").with(plot.standalone()), None),
    };
    plots::plots(&with_unique_names(runs))
        .into_iter()
        .filter(plots::ReportPlot::has_chart)
        .map(picture)
        .collect()
}

fn with_unique_names(runs: &[RunMetrics]) -> Vec<RunMetrics> {
    let is_alone = |name: &str| runs.iter().filter(|run| run.name == name).count() == 1;
    let named = runs.iter().enumerate().map(|(at, run)| match is_alone(&run.name) {
        true => run.clone(),
        false => RunMetrics { name: format!("{} ({})", run.name, at + 1), ..run.clone() },
    });
    named.collect()
}

fn document(title: &str, body: HtmlElement, data: Option<&[RunMetrics]>) -> String {
    let head = element("head")
        .with(element("meta").set("charset", "utf-8"))
        .with(element("meta").set("http-equiv", "Content-Security-Policy").set("content", POLICY))
        .with(element("meta").set("name", "viewport").set("content", "width=device-width, initial-scale=1"))
        .with(element("meta").set("name", "color-scheme").set("content", "light dark"))
        .with(element("title").text(title))
        .with(element("style").raw(&STYLE.concat()));
    let mut page = element("body").with(body);
    if let Some(runs) = data {
        let answers = json!({ "runs": runs }).to_string();
        // Data to a browser, and no text of a page can end it.
        let safe =
            answers.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029");
        page = page.with(element("script").set("type", "application/json").set("id", "figures").raw(&safe));
    }
    format!("<!doctype html>\n{}\n", element("html").set("lang", "en").with(head).with(page).written())
}

/// The state of each data set, so that the same report can be made again.
fn provenance(runs: &[RunMetrics]) -> String {
    let of_run = |run: &RunMetrics| {
        let head = &run.overview.head;
        let trajectories = count(Some(head.trajectories as f64));
        format!("{}: {trajectories} trajectories, manifest commit {}", run.name, head.version)
    };
    let lines: Vec<String> = runs.iter().map(of_run).collect();
    format!(
        "{}. Made by Furrow {}; docs/DASHBOARD.md defines each metric.",
        lines.join("; "),
        env!("CARGO_PKG_VERSION")
    )
}

fn problems(run: &RunMetrics) -> Vec<HtmlElement> {
    let messages = run.overview.head.problems.iter().map(|text| format!("{}: {text}", run.name));
    messages.map(|text| element("p").set("class", "notice").text(text)).collect()
}

/// One row per metric, one column per run. A metric that no run has is left out.
fn metrics_table(runs: &[RunMetrics]) -> HtmlElement {
    let mut hours: Vec<&str> = runs.iter().map(|run| device_hour(run.device())).collect();
    hours.dedup();
    let hour = if hours.len() == 1 { hours[0] } else { "device-hour" };
    let names = short_names(runs);
    let header = ["metric"].into_iter().chain(names.iter().map(String::as_str));
    let known = |row: &&MetricRow| runs.iter().any(|run| (row.read)(run).is_some());
    let rows = METRIC_ROWS.iter().filter(known).map(|row| {
        let (form, write) = row.format;
        let cell = |(at, run): (usize, &RunMetrics)| {
            let value = (row.read)(run);
            let cell = element("td").set("class", "number").text(write(value));
            let cell = cell.set("data-figure", format!("/runs/{at}{}", row.pointer)).set("data-form", form);
            cell.set("data-value", value.map_or_else(|| "null".to_owned(), |value| value.to_string()))
        };
        let name = element("th").set("scope", "row").text(row.name.replace("{hour}", hour));
        element("tr").with(name).with_all(runs.iter().enumerate().map(cell))
    });
    table(header, rows.collect())
}

/// Most lines of the table by task.
const TASKS_MAX: usize = 200;

/// Success by task, for the tasks of all runs; those with the most attempts first.
fn by_task(runs: &[RunMetrics]) -> HtmlElement {
    let key = |line: &TaskLine| vec![line.suite.clone(), line.task_id.clone()];
    let mut tasks = plots::rates_by(runs, |run| {
        run.learning.metrics.by_task.iter().map(|line| (key(line), &line.rates)).collect()
    });
    let attempts =
        |lines: &[Option<&TrajectoryRates>]| -> u64 { lines.iter().flatten().map(|line| line.scored).sum() };
    tasks.sort_by_key(|(_, lines)| std::cmp::Reverse(attempts(lines)));
    let unknown: u64 = runs.iter().map(|run| run.learning.metrics.tasks_left_out).sum();
    let listed = tasks.len().min(TASKS_MAX);
    let left = tasks.len().saturating_sub(TASKS_MAX) as u64 + unknown;
    let short = short_names(runs);
    let names = short.iter().flat_map(|name| {
        let of_run = |what: &str| if runs.len() > 1 { format!("{what}, {name}") } else { what.to_owned() };
        ["success", "scored", "failed"].map(of_run)
    });
    let header = ["suite".to_owned(), "task".to_owned()].into_iter().chain(names);
    let rows = tasks.iter().take(listed).map(|(key, lines)| {
        let cells = lines.iter().flat_map(|line| {
            [
                percent(line.and_then(|line| line.success_rate)),
                count(line.map(|line| line.scored as f64)),
                count(line.map(|line| line.failed as f64)),
            ]
        });
        let cells = cells.map(|cell| element("td").set("class", "number").text(cell));
        let names = key.iter().map(|name| element("td").text(name));
        element("tr").with_all(names).with_all(cells)
    });
    let mut body = element("div").with(table(header, rows.collect()));
    if left > 0 {
        body = body.with(
            element("p")
                .set("class", "note")
                .text(format!("{left} tasks with fewer attempts are not shown.")),
        );
    }
    section("Success by task", "tasks", body)
}

/// The job, if the directory has it.
fn resolved(run: &RunMetrics) -> Option<HtmlElement> {
    let job = run.job.job.as_ref()?;
    let size: f64 = run.job.tables.iter().flatten().map(|table| table.bytes as f64).sum();
    let fold =
        element("details").with(element("summary").text("job.toml, resolved")).with(element("pre").text(job));
    let note = format!("Its tables take {}.", bytes(Some(size)));
    Some(section(
        &format!("The job of {}", run.name),
        "job",
        element("div").with(element("p").set("class", "note").text(note)).with(fold),
    ))
}

fn plain(given: &ReportTable) -> HtmlElement {
    let rows = given.rows.iter().map(|row| {
        let cells = row.iter().enumerate().map(|(at, cell)| match at {
            0 => element("th").set("scope", "row").text(cell),
            _ => element("td").set("class", "number").text(cell),
        });
        element("tr").with_all(cells)
    });
    let notes = given.notes.iter().map(|note| element("p").set("class", "note").text(note));
    element("div").with(table(given.header.iter(), rows.collect())).with_all(notes)
}
