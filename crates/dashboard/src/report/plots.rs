//! The plots of a report, and the metrics that each is made of.

use serde_json::Value;

use super::charts::{self, ChartLine, ChartScales, RenderedChart, TimeBreakdown, WIDTH};
use super::markup::{HtmlElement, element};
use super::run_metrics::RunMetrics;
use crate::format::{count, device_hour, device_name, number, percent, seconds};
use crate::metrics::DeviceKind;

#[derive(Debug, Clone)]
pub(super) struct ReportPlot {
    /// Id in the page, and name of its picture.
    pub name: &'static str,
    pub title: String,
    /// A note below the plot.
    note: String,
    /// `None`: nothing to draw; the note says why.
    chart: Option<RenderedChart>,
}

/// Margin of a picture around its chart, and below its heading, in pixels.
const MARGIN: u32 = 20;
const HEADING: u32 = 34;
/// Width of a picture in pixels.
pub(super) const PICTURE_WIDTH: u32 = WIDTH + 2 * MARGIN;
/// Most bars of a chart by task.
const TASK_BARS_MAX: usize = 30;

impl ReportPlot {
    /// The plot as a part of the page.
    pub fn figure(self) -> HtmlElement {
        let figure = element("figure").set("class", "card").set("id", self.name);
        let figure = figure.with(element("h2").text(&self.title));
        let figure = match self.chart {
            Some(chart) => figure.with(chart.picture),
            None => figure,
        };
        if self.note.is_empty() {
            figure
        } else {
            figure.with(element("figcaption").set("class", "note").text(&self.note))
        }
    }

    /// The plot as the only part of a page.
    pub fn standalone(&self) -> HtmlElement {
        let alone = element("figure").with(element("h2").text(&self.title));
        self.chart.iter().fold(alone, |alone, drawn| alone.with(drawn.picture.clone()))
    }

    /// Height of its picture in pixels.
    pub fn picture_height(&self) -> u32 {
        2 * MARGIN + HEADING + self.chart.as_ref().map_or(0, |chart| chart.height)
    }

    /// Whether there is something to draw.
    pub fn has_chart(&self) -> bool {
        self.chart.is_some()
    }
}

/// All plots, in the order of the page.
pub(super) fn plots(runs: &[RunMetrics]) -> Vec<ReportPlot> {
    vec![
        throughput(runs),
        device_time(runs),
        session_time(runs),
        slot_time(runs),
        success_by_suite(runs),
        success_by_task(runs),
        success_over_time(runs),
        lengths(runs),
        failures(runs),
        staleness(runs),
        drift(runs, "drift-success", "Success rate by policy version", "success_rate", percent, Some(1.0)),
        drift(
            runs,
            "drift-entropy",
            "Entropy by policy version, nats a sampled token",
            "entropy_mean",
            number,
            None,
        ),
        drift(
            runs,
            "drift-logprob",
            "Log-prob of a sampled token by policy version",
            "logprob_mean",
            number,
            Some(0.0),
        ),
        drift(
            runs,
            "drift-length",
            "Tokens a response by policy version",
            "response_tokens_per_step",
            number,
            None,
        ),
    ]
}

/// The text if nothing can be drawn.
fn plot(
    name: &'static str,
    title: &str,
    chart: Option<RenderedChart>,
    note: &str,
    missing: &str,
) -> ReportPlot {
    let note = if chart.is_some() { note } else { missing };
    ReportPlot { name, title: title.to_owned(), note: note.to_owned(), chart }
}

/// Trajectories per device-hour if every run has a device with known hours, else per hour of wall
/// clock; from each run's start.
fn throughput(runs: &[RunMetrics]) -> ReportPlot {
    let device = runs[0].device();
    let knows = |run: &RunMetrics| run.metric("/overview/throughput/trajectories_per_device_hour").is_some();
    let by_device = device != DeviceKind::None && runs.iter().all(|run| run.device() == device && knows(run));
    let (pointer, of, figure) = if by_device {
        ("/hours_over_time", device_hour(device), "trajectories_per_device_hour")
    } else {
        ("/over_time/points", "hour", "trajectories_per_hour")
    };
    let lines: Vec<ChartLine> = runs.iter().map(|run| over_time(run, pointer, figure)).collect();
    let ceiling =
        |name: String, level_pointer: &str| runs[0].metric(level_pointer).map(|level| (name, level));
    let levels = match runs {
        [_] if by_device => [
            ceiling(format!("{}-bound", device_name(device)), "/overview/throughput/ceiling_device_bound"),
            ceiling("session-bound".to_owned(), "/overview/throughput/ceiling_session_bound"),
        ]
        .into_iter()
        .flatten()
        .collect(),
        _ => Vec::new(),
    };
    let scales = ChartScales { x: seconds, y: number, top: None, levels };
    let title = format!("Trajectories per {of} over time");
    let note = if by_device {
        "Between lines of metrics.jsonl; dashed: the ceilings of the whole run."
    } else {
        "Over spans of equal length, by the end of each trajectory."
    };
    plot(
        "throughput",
        &title,
        charts::lines(&title, &lines, &scales),
        note,
        "A line needs two points: not enough trajectories have ended.",
    )
}

fn success_over_time(runs: &[RunMetrics]) -> ReportPlot {
    let lines: Vec<ChartLine> =
        runs.iter().map(|run| over_time(run, "/over_time/points", "success_rate")).collect();
    let scales = ChartScales { x: seconds, y: percent, top: Some(1.0), levels: Vec::new() };
    let title = "Success rate over time";
    plot(
        "success-over-time",
        title,
        charts::lines(title, &lines, &scales),
        "Of the trajectories that ended in each span, evaluations included.",
        "A line needs two points: not enough trajectories have a verdict.",
    )
}

/// The metric over seconds since the run's first point.
fn over_time(run: &RunMetrics, pointer: &str, figure: &str) -> ChartLine {
    let points =
        run.overview.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let began = points.first().and_then(|point| point["at"].as_f64()).unwrap_or_default();
    let point = |point: &Value| Some((point["at"].as_f64()? - began, point[figure].as_f64()));
    let points = points.iter().filter_map(point).collect();
    ChartLine { name: run.name.clone(), points, intervals: Vec::new() }
}

fn device_time(runs: &[RunMetrics]) -> ReportPlot {
    let title = match runs {
        [run] => format!("Where the {}'s time went", device_name(run.device())),
        _ => "Where the devices' time went".to_owned(),
    };
    let missing = "The hours of the device are unknown: the policy has no device, or there is no metrics.jsonl beside the data.";
    plot(
        "device-time",
        &title,
        breakdowns(runs, &title, "device_parts"),
        "Each microsecond is in one part; no_work, no_room and host are idle time.",
        missing,
    )
}

fn session_time(runs: &[RunMetrics]) -> ReportPlot {
    let title = "Where the sessions' time went";
    plot(
        "session-time",
        title,
        breakdowns(runs, title, "session_parts"),
        "From the queue to the score, over all trajectories.",
        "No time was recorded.",
    )
}

fn slot_time(runs: &[RunMetrics]) -> ReportPlot {
    let title = "Use of the slots of the environment workers";
    plot(
        "slot-time",
        title,
        breakdowns(runs, title, "slot_parts"),
        "",
        "The hours of slots are unknown: there is no metrics.jsonl beside the data.",
    )
}

/// Parts of a total, run by run.
fn breakdowns(runs: &[RunMetrics], label: &str, parts: &str) -> Option<RenderedChart> {
    let part = |part: &Value| {
        Some((part["cause"].as_str()?.to_owned(), part["micros"].as_f64()?, part["share"].as_f64()?))
    };
    let whole = |run: &RunMetrics| {
        let listed = run.overview[parts].as_array().into_iter().flatten();
        TimeBreakdown { name: run.name.clone(), parts: listed.filter_map(part).collect() }
    };
    charts::breakdowns(label, &runs.iter().map(whole).collect::<Vec<_>>())
}

fn success_by_suite(runs: &[RunMetrics]) -> ReportPlot {
    let title = "Success rate by suite";
    plot(
        "success-by-suite",
        title,
        success_by(runs, title, "by_suite", &["suite"]),
        "Without evaluations.",
        "No trajectory has a verdict.",
    )
}

fn success_by_task(runs: &[RunMetrics]) -> ReportPlot {
    let title = "Success rate by task";
    let note = format!("At most the {TASK_BARS_MAX} tasks with the most attempts; the table below has more.");
    plot(
        "success-by-task",
        title,
        success_by(runs, title, "by_task", &["task_id", "suite"]),
        &note,
        "No trajectory has a verdict.",
    )
}

fn success_by(runs: &[RunMetrics], label: &str, lines: &str, key: &[&str]) -> Option<RenderedChart> {
    let rows = lines_by(runs, lines, key).into_iter().take(TASK_BARS_MAX).map(|(key, lines)| {
        let rates = lines.iter().map(|line| line.and_then(|line| line["success_rate"].as_f64()));
        (key.join(" · "), rates.collect::<Vec<_>>())
    });
    let rows: Vec<_> = rows.collect();
    let is_judged = rows.iter().any(|(_, rates)| rates.iter().any(Option::is_some));
    if is_judged { charts::bars(label, &names(runs), &rows, percent, Some(1.0)) } else { None }
}

/// Lines of Learning by key, each with the values of every run: in the order of the first run that
/// has it.
pub(super) fn lines_by<'r>(
    runs: &'r [RunMetrics],
    lines: &str,
    key: &[&str],
) -> Vec<(Vec<String>, Vec<Option<&'r Value>>)> {
    let mut found: Vec<(Vec<String>, Vec<Option<&Value>>)> = Vec::new();
    let mut positions = std::collections::HashMap::new();
    for (index, run) in runs.iter().enumerate() {
        for line in run.learning[lines].as_array().into_iter().flatten() {
            let named = |name: &&str| line[*name].as_str().unwrap_or_default().to_owned();
            let key: Vec<String> = key.iter().map(named).collect();
            let at = *positions.entry(key.clone()).or_insert(found.len());
            if at == found.len() {
                found.push((key, vec![None; runs.len()]));
            }
            found[at].1[index] = Some(line);
        }
    }
    found
}

fn lengths(runs: &[RunMetrics]) -> ReportPlot {
    let title = "Steps of scored trajectories";
    plot("lengths", title, histogram(runs, title, "lengths"), share_note(runs), "No trajectory was scored.")
}

fn staleness(runs: &[RunMetrics]) -> ReportPlot {
    let title = "Versions behind when a trajectory ended";
    plot(
        "staleness",
        title,
        histogram(runs, title, "staleness"),
        share_note(runs),
        "No staleness is recorded: the policy has no versions.",
    )
}

fn share_note(runs: &[RunMetrics]) -> &'static str {
    if runs.len() > 1 { "Shares of each run's trajectories." } else { "Trajectories without evaluations." }
}

fn histogram(runs: &[RunMetrics], label: &str, figure: &str) -> Option<RenderedChart> {
    let pairs = |run: &RunMetrics| {
        let listed = run.learning[figure].as_array().into_iter().flatten();
        listed.filter_map(|pair| Some((pair[0].as_i64()?, pair[1].as_u64()?))).collect::<Vec<_>>()
    };
    let each: Vec<_> = runs.iter().map(|run| (run.name.clone(), pairs(run))).collect();
    charts::histogram(label, &each)
}

/// Attempts that ended by a fault of the farm, by their end; for several runs as a share of all
/// attempts.
fn failures(runs: &[RunMetrics]) -> ReportPlot {
    let is_one = runs.len() == 1;
    let mut rows: Vec<(String, Vec<Option<f64>>)> = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        let attempts = run.metric("/overview/counts/trajectories").unwrap_or_default();
        let ends = run.overview["ends"].as_array().into_iter().flatten();
        for end in ends.filter(|end| end["status"] == "failed") {
            let name = end["end"].as_str().unwrap_or_default();
            let times = end["trajectories"].as_f64().unwrap_or_default();
            let value = if is_one || attempts == 0.0 { times } else { times / attempts };
            let at = rows.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
                rows.push((name.to_owned(), vec![Some(0.0); runs.len()]));
                rows.len() - 1
            });
            rows[at].1[index] = Some(value);
        }
    }
    rows.sort_by(|(_, a), (_, b)| b.iter().flatten().sum::<f64>().total_cmp(&a.iter().flatten().sum()));
    let title = if is_one { "Failures by kind" } else { "Failures by kind, of all attempts" };
    let chart = charts::bars(title, &names(runs), &rows, if is_one { count } else { percent }, None);
    plot(
        "failures",
        title,
        chart,
        "Ended by a fault of the farm: in no rate of success or reward.",
        "No attempt failed.",
    )
}

/// A metric by version: changes from one version to the next are drift.
fn drift(
    runs: &[RunMetrics],
    name: &'static str,
    title: &str,
    figure: &str,
    write: fn(Option<f64>) -> String,
    top: Option<f64>,
) -> ReportPlot {
    let line = |run: &RunMetrics| {
        let listed = run.learning["by_version"].as_array().into_iter().flatten();
        let points = listed.filter_map(|line| Some((line["version"].as_f64()?, line[figure].as_f64())));
        let mut points: Vec<_> = points.collect();
        points.reverse(); // the answer lists the newest first
        let intervals = match figure {
            "success_rate" => intervals(run),
            _ => Vec::new(),
        };
        ChartLine { name: run.name.clone(), points, intervals }
    };
    let scales = ChartScales { x: version, y: write, top, levels: Vec::new() };
    let lines: Vec<ChartLine> = runs.iter().map(line).collect();
    let note = match figure {
        "success_rate" => {
            "With Wilson's 95 % intervals, as if each attempt were at a different task; without evaluations."
        }
        _ => "",
    };
    plot(
        name,
        title,
        charts::lines(title, &lines, &scales),
        note,
        "Fewer than two policy versions have a value.",
    )
}

/// The intervals of the success rate, by version.
fn intervals(run: &RunMetrics) -> Vec<(f64, f64, f64)> {
    let listed = run.learning["by_version"].as_array().into_iter().flatten();
    let interval = |line: &Value| {
        let of = |end: &str| line["success_interval"][end].as_f64();
        Some((line["version"].as_f64()?, of("low")?, of("high")?))
    };
    listed.filter_map(interval).collect()
}

/// A version on an axis; positions between two versions have no label.
fn version(value: Option<f64>) -> String {
    let whole = value.filter(|value| value.fract() == 0.0);
    whole.map_or_else(String::new, |value| format!("version {value}"))
}

fn names(runs: &[RunMetrics]) -> Vec<&str> {
    runs.iter().map(|run| run.name.as_str()).collect()
}
