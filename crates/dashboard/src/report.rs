//! A report: one HTML file that needs nothing else, over one run or over several side by side.
//!
//! Its figures are those of the pages: [`RunFigures::read`] reads a run to its end and keeps the answers of `/api/overview` and
//! `/api/learning`, and everything here is drawn from these. They stand in the file, too, as JSON for programs (`#figures`), and each
//! cell of the table of figures names its place in it. The file runs no script and asks for nothing: its policy forbids both.

mod charts;
mod markup;
mod plots;

use std::path::PathBuf;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::api;
use crate::figures::Device;
use crate::follow::{State, Subject};
use crate::format::{bytes, count, device_hour, device_of, dollars, number, percent, seconds};
use markup::{Element, element};

/// What a report says of one run.
#[derive(Debug, Clone)]
pub struct RunFigures {
    name: String,
    overview: Value,
    learning: Value,
    job: Value,
    /// Tables beside the figures, made by whoever asks for the report.
    tables: Vec<ReportTable>,
}

/// A table with a heading.
#[derive(Debug, Clone)]
pub struct ReportTable {
    /// What it is of.
    pub title: String,
    /// Names of its columns; the first is written to the left, the others to the right.
    pub header: Vec<String>,
    /// Cells, row by row.
    pub rows: Vec<Vec<String>>,
    /// Sentences below it.
    pub notes: Vec<String>,
}

/// A plot of a report as a page of its own: it fills a window of this size.
#[derive(Debug, Clone)]
pub struct Picture {
    /// Name of its file, without an ending.
    pub name: &'static str,
    /// The page.
    pub html: String,
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[error("{dir}: {why}")]
pub struct ReportError {
    dir: PathBuf,
    why: String,
}

/// Runs side by side: more would have no room in a legend.
pub const REPORT_RUNS_MAX: usize = 6;

const STYLE: [&str; 2] = [include_str!("../pages/palette.css"), include_str!("../pages/report.css")];
/// Nothing is fetched, nothing is sent, nothing runs.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

impl RunFigures {
    /// Reads a run or a data set to its end. Blocks: of a million trajectories for minutes.
    pub fn read(subject: Subject) -> Result<Self, ReportError> {
        let (name, dir) = (subject.name.clone(), subject.dir.clone().unwrap_or_default());
        let refused = |why: String| ReportError { dir: dir.clone(), why };
        let state = State::new(subject);
        state.read_all(&CancellationToken::new()).map_err(refused)?;
        let learning = api::learning(&state).map_err(|why| refused(why.to_string()))?;
        let (overview, job) = (api::overview(&state), api::job(&state));
        Ok(Self { name, overview, learning, job, tables: Vec::new() })
    }

    /// With a table below the figures.
    pub fn with(mut self, table: ReportTable) -> Self {
        self.tables.push(table);
        self
    }

    /// The answers that everything is drawn from.
    fn answers(&self) -> Value {
        json!({ "name": self.name, "overview": self.overview, "learning": self.learning })
    }

    fn device(&self) -> Device {
        device_of(&self.overview)
    }

    /// A figure by its place in the answers, such as `/overview/throughput/scored`.
    fn figure(&self, place: &str) -> Option<f64> {
        let (answer, rest) = place.trim_start_matches('/').split_once('/')?;
        let answer = if answer == "learning" { &self.learning } else { &self.overview };
        answer.pointer(&format!("/{rest}"))?.as_f64()
    }
}

/// The report as a file. Runs of the same name get their number.
pub fn report_html(runs: &[RunFigures]) -> String {
    let runs = told_apart(runs);
    let title = match runs.as_slice() {
        [run] => format!("Report of {}", run.name),
        runs => format!("{} runs side by side", runs.len()),
    };
    let plots = plots::plots(&runs);
    let body = element("main")
        .with(element("h1").text(&title))
        .with(element("p").set("class", "note").text(provenance(&runs)))
        .with_all(runs.iter().flat_map(problems))
        .with(section("Figures", "figures-table", figures(&runs)))
        .with_all(plots.into_iter().map(plots::Plot::figure))
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

/// Its plots, one by one.
pub fn report_pictures(runs: &[RunFigures]) -> Vec<Picture> {
    let picture = |plot: plots::Plot| Picture {
        name: plot.name,
        width: plots::PICTURE_WIDTH,
        height: plot.picture_height(),
        html: document(&plot.title, element("main").set("class", "alone").with(plot.alone()), None),
    };
    plots::plots(&told_apart(runs)).into_iter().filter(plots::Plot::is_drawn).map(picture).collect()
}

fn told_apart(runs: &[RunFigures]) -> Vec<RunFigures> {
    let is_alone = |name: &str| runs.iter().filter(|run| run.name == name).count() == 1;
    let named = runs.iter().enumerate().map(|(at, run)| match is_alone(&run.name) {
        true => run.clone(),
        false => RunFigures { name: format!("{} ({})", run.name, at + 1), ..run.clone() },
    });
    named.collect()
}

fn document(title: &str, body: Element, data: Option<&[RunFigures]>) -> String {
    let head = element("head")
        .with(element("meta").set("charset", "utf-8"))
        .with(element("meta").set("http-equiv", "Content-Security-Policy").set("content", POLICY))
        .with(element("meta").set("name", "viewport").set("content", "width=device-width, initial-scale=1"))
        .with(element("meta").set("name", "color-scheme").set("content", "light dark"))
        .with(element("title").text(title))
        .with(element("style").raw(&STYLE.concat()));
    let mut page = element("body").with(body);
    if let Some(runs) = data {
        let answers = json!({ "runs": runs.iter().map(RunFigures::answers).collect::<Vec<_>>() }).to_string();
        // Data to a browser, and no text of a page can end it.
        let safe =
            answers.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029");
        page = page.with(element("script").set("type", "application/json").set("id", "figures").raw(&safe));
    }
    format!("<!doctype html>\n{}\n", element("html").set("lang", "en").with(head).with(page).written())
}

/// Of which state of which data these are, so that the same file can be made again.
fn provenance(runs: &[RunFigures]) -> String {
    let of_run = |run: &RunFigures| {
        let head = &run.overview["head"];
        let commit = head["version"].as_u64().unwrap_or_default();
        let trajectories = count(head["trajectories"].as_f64());
        format!("{}: {trajectories} trajectories, commit {commit} of its manifest", run.name)
    };
    let told: Vec<String> = runs.iter().map(of_run).collect();
    format!(
        "{}. Made by Furrow {}; what each figure means: docs/DASHBOARD.md.",
        told.join("; "),
        env!("CARGO_PKG_VERSION")
    )
}

fn problems(run: &RunFigures) -> Vec<Element> {
    let listed = run.overview["head"]["problems"].as_array().into_iter().flatten();
    let told = listed.filter_map(Value::as_str).map(|text| format!("{}: {text}", run.name));
    told.map(|text| element("p").set("class", "notice").text(text)).collect()
}

/// How a figure is written.
type Write = (&'static str, fn(Option<f64>) -> String);

const NUMBER: Write = ("number", number);
const COUNT: Write = ("count", count);
const PERCENT: Write = ("percent", percent);
const DOLLARS: Write = ("dollars", dollars);
const SECONDS: Write = ("seconds", seconds);

/// A figure of the table: its name, its place in the answers, how it is written.
type Row = (&'static str, &'static str, Write);

/// `{hour}` is the name of the device's hour.
const FIGURES: &[Row] = &[
    ("Trajectories per {hour}", "/overview/throughput/trajectories_per_device_hour", NUMBER),
    ("… had the device never been idle", "/overview/throughput/ceiling_device_bound", NUMBER),
    ("… had no slot ever been empty", "/overview/throughput/ceiling_session_bound", NUMBER),
    ("Trajectories per hour", "/overview/throughput/trajectories_per_hour", NUMBER),
    ("Trajectories per slot-hour", "/overview/throughput/trajectories_per_slot_hour", NUMBER),
    ("{hour}s", "/overview/device_hours", NUMBER),
    ("Wall clock", "/overview/wall_seconds", SECONDS),
    ("Success rate", "/overview/training/success_rate", PERCENT),
    ("Solved", "/overview/training/successes", COUNT),
    ("Judged", "/overview/training/judged", COUNT),
    ("Mean reward", "/overview/training/reward_mean", NUMBER),
    ("Success in evaluations", "/overview/evaluated/success_rate", PERCENT),
    ("Scored", "/overview/counts/scored", COUNT),
    ("Failed by the farm", "/overview/counts/failed", COUNT),
    ("Share failed by the farm", "/overview/counts/failure_rate", PERCENT),
    ("Steps", "/overview/counts/steps", COUNT),
    ("Steps a trajectory", "/overview/counts/steps_mean", NUMBER),
    ("Steps per second", "/overview/throughput/steps_per_second", NUMBER),
    ("Tokens generated per second", "/overview/tokens/generated_per_second", NUMBER),
    ("Tokens prefilled per second", "/overview/tokens/prefilled_per_second", NUMBER),
    ("Tokens reused per second", "/overview/tokens/reused_per_second", NUMBER),
    ("Of what the model saw, still in its state", "/overview/tokens/reused_share", PERCENT),
    ("Tokens a response", "/learning/response_tokens_per_step", NUMBER),
    ("Invalid actions", "/learning/invalid_action_rate", PERCENT),
    ("Groups without spread", "/learning/zero_variance_share", PERCENT),
    ("Entropy, nats a sampled token", "/learning/entropy_mean", NUMBER),
    ("Log-prob of a sampled token", "/learning/logprob_mean", NUMBER),
    ("Tokens scored again by the prefill path", "/learning/prefill_gap/tokens", COUNT),
    ("… mean gap of their log-probs, nats", "/learning/prefill_gap/mean_abs", NUMBER),
    ("… largest gap, nats", "/learning/prefill_gap/max", NUMBER),
    ("Newest policy version", "/overview/versions/newest", COUNT),
    ("Versions behind, on average", "/overview/versions/staleness_mean", NUMBER),
    ("Cost of a trajectory", "/overview/cost_usd_per_trajectory", DOLLARS),
];

/// Figure by figure, a column a run. A figure that no run has is left out.
fn figures(runs: &[RunFigures]) -> Element {
    let mut hours: Vec<&str> = runs.iter().map(|run| device_hour(run.device())).collect();
    hours.dedup();
    let hour = if hours.len() == 1 { hours[0] } else { "device-hour" };
    let header = ["figure"].into_iter().chain(runs.iter().map(|run| run.name.as_str()));
    let known = |place: &str| runs.iter().any(|run| run.figure(place).is_some());
    let rows = FIGURES.iter().filter(|(_, place, _)| known(place)).map(|(name, place, (form, write))| {
        let cell = |(at, run): (usize, &RunFigures)| {
            let value = run.figure(place);
            let cell = element("td").set("class", "number").text(write(value));
            let cell = cell.set("data-figure", format!("/runs/{at}{place}")).set("data-form", form);
            cell.set("data-value", value.map_or_else(|| "null".to_owned(), |value| value.to_string()))
        };
        let name = element("th").set("scope", "row").text(name.replace("{hour}", hour));
        element("tr").with(name).with_all(runs.iter().enumerate().map(cell))
    });
    table(header, rows.collect())
}

/// Lines of the table by task.
const TASKS_MAX: usize = 200;

/// Success by task, each task of any run; those with the most attempts first.
fn by_task(runs: &[RunFigures]) -> Element {
    let mut tasks = plots::lines_by(runs, "by_task", &["suite", "task_id"]);
    let attempts = |lines: &[Option<&Value>]| -> u64 {
        lines.iter().flatten().filter_map(|line| line["scored"].as_u64()).sum()
    };
    tasks.sort_by_key(|(_, lines)| std::cmp::Reverse(attempts(lines)));
    let unknown: u64 = runs.iter().filter_map(|run| run.learning["tasks_left_out"].as_u64()).sum();
    let (shown, left) = (tasks.len().min(TASKS_MAX), tasks.len().saturating_sub(TASKS_MAX) as u64 + unknown);
    let names = runs.iter().flat_map(|run| {
        let of_run =
            |what: &str| if runs.len() > 1 { format!("{what}, {}", run.name) } else { what.to_owned() };
        ["success", "scored", "failed"].map(of_run)
    });
    let header = ["suite".to_owned(), "task".to_owned()].into_iter().chain(names);
    let rows = tasks.iter().take(shown).map(|(key, lines)| {
        let cells = lines.iter().flat_map(|line| {
            let of = |name: &str| line.and_then(|line| line[name].as_f64());
            [percent(of("success_rate")), count(of("scored")), count(of("failed"))]
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

/// What was run, as far as the directory says.
fn resolved(run: &RunFigures) -> Option<Element> {
    let job = run.job["job"].as_str()?;
    let size: f64 =
        run.job["tables"].as_array().into_iter().flatten().filter_map(|table| table["bytes"].as_f64()).sum();
    let fold =
        element("details").with(element("summary").text("job.toml, resolved")).with(element("pre").text(job));
    let note = format!("Its tables take {}.", bytes(Some(size)));
    Some(section(
        &format!("The job of {}", run.name),
        "job",
        element("div").with(element("p").set("class", "note").text(note)).with(fold),
    ))
}

fn plain(given: &ReportTable) -> Element {
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

fn table(header: impl Iterator<Item = impl AsRef<str>>, rows: Vec<Element>) -> Element {
    let head = header.enumerate().map(|(at, name)| {
        element("th").set("scope", "col").set("class", if at > 0 { "number" } else { "" }).text(name)
    });
    let head = element("thead").with(element("tr").with_all(head));
    let whole = element("table").with(head).with(element("tbody").with_all(rows));
    element("div")
        .set("class", "scroll-x")
        .set("tabindex", "0")
        .set("role", "region")
        .set("aria-label", "table")
        .with(whole)
}

fn section(title: &str, class: &str, body: Element) -> Element {
    element("section").set("class", format!("card {class}")).with(element("h2").text(title)).with(body)
}
