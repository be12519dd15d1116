//! The plots of a report, and the metrics that each is made of.

use super::charts::{self, ChartLine, ChartScales, RenderedChart, TimeBreakdown, WIDTH};
use super::run_metrics::RunMetrics;
use crate::answers::{
    DeviceKind, LearningMetrics, MinuteSpan, OverviewMetrics, TaskLine, TimeShare, TrajectoryRates,
    VersionLine,
};
use crate::format::{count, device_hour, device_name, number, percent, seconds};
use crate::markup::{HtmlElement, element};

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
    pub(super) fn figure(self) -> HtmlElement {
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
    pub(super) fn standalone(&self) -> HtmlElement {
        let alone = element("figure").with(element("h2").text(&self.title));
        self.chart.iter().fold(alone, |alone, drawn| alone.with(drawn.picture.clone()))
    }

    /// Height of its picture in pixels.
    pub(super) fn picture_height(&self) -> u32 {
        2 * MARGIN + HEADING + self.chart.as_ref().map_or(0, |chart| chart.height)
    }

    /// Whether there is something to draw.
    pub(super) fn has_chart(&self) -> bool {
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
        success_drift(runs),
        drift(
            runs,
            "drift-entropy",
            "Entropy by policy version, nats a sampled token",
            |line| line.entropy_mean,
            number,
            None,
        ),
        drift(
            runs,
            "drift-logprob",
            "Log-prob of a sampled token by policy version",
            |line| line.logprob_mean,
            number,
            Some(0.0),
        ),
        drift(
            runs,
            "drift-length",
            "Tokens a response by policy version",
            |line| line.rates.response_tokens_per_step,
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
    let knows = |run: &RunMetrics| run.overview.metrics.throughput.trajectories_per_device_hour.is_some();
    let by_device = device != DeviceKind::None && runs.iter().all(|run| run.device() == device && knows(run));
    let (of, lines): (_, Vec<ChartLine>) = if by_device {
        (device_hour(device), runs.iter().map(device_rate_over_time).collect())
    } else {
        let line = |run| over_minutes(run, |span| Some(span.trajectories_per_hour));
        ("hour", runs.iter().map(line).collect())
    };
    let bounds = &runs[0].overview.metrics.throughput;
    let ceiling = |name: String, level: Option<f64>| level.map(|level| (name, level));
    let levels = match runs {
        [_] if by_device => [
            ceiling(format!("{}-bound", device_name(device)), bounds.ceiling_device_bound),
            ceiling("session-bound".to_owned(), bounds.ceiling_session_bound),
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
    let lines: Vec<ChartLine> = runs.iter().map(|run| over_minutes(run, |span| span.success_rate)).collect();
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

fn over_minutes(run: &RunMetrics, metric: fn(&MinuteSpan) -> Option<f64>) -> ChartLine {
    let spans = run.overview.metrics.over_time.points.iter();
    from_the_first(run, spans.map(|span| (span.at as f64, metric(span))).collect())
}

fn device_rate_over_time(run: &RunMetrics) -> ChartLine {
    let spans = run.overview.metrics.hours_over_time.iter();
    from_the_first(run, spans.map(|span| (span.at, span.trajectories_per_device_hour)).collect())
}

/// A line over seconds since the run's first point.
fn from_the_first(run: &RunMetrics, mut points: Vec<(f64, Option<f64>)>) -> ChartLine {
    let began = points.first().map_or(0.0, |(at, _)| *at);
    points.iter_mut().for_each(|(at, _)| *at -= began);
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
        breakdowns(runs, &title, |metrics| metrics.device_parts.as_deref().unwrap_or_default()),
        "Each microsecond is in one part; no_work, no_room and host are idle time.",
        missing,
    )
}

fn session_time(runs: &[RunMetrics]) -> ReportPlot {
    let title = "Where the sessions' time went";
    plot(
        "session-time",
        title,
        breakdowns(runs, title, |metrics| &metrics.session_parts),
        "From the queue to the score, over all trajectories.",
        "No time was recorded.",
    )
}

fn slot_time(runs: &[RunMetrics]) -> ReportPlot {
    let title = "Use of the slots of the environment workers";
    plot(
        "slot-time",
        title,
        breakdowns(runs, title, |metrics| metrics.slot_parts.as_deref().unwrap_or_default()),
        "",
        "The hours of slots are unknown: there is no metrics.jsonl beside the data.",
    )
}

/// Parts of a total, run by run.
fn breakdowns(
    runs: &[RunMetrics],
    label: &str,
    parts: fn(&OverviewMetrics) -> &[TimeShare],
) -> Option<RenderedChart> {
    let part = |part: &TimeShare| (part.cause.clone(), part.micros as f64, part.share);
    let whole = |run: &RunMetrics| TimeBreakdown {
        name: run.name.clone(),
        parts: parts(&run.overview.metrics).iter().map(part).collect(),
    };
    charts::breakdowns(label, &runs.iter().map(whole).collect::<Vec<_>>())
}

fn success_by_suite(runs: &[RunMetrics]) -> ReportPlot {
    let title = "Success rate by suite";
    let suites = rates_by(runs, |run| {
        run.learning.metrics.by_suite.iter().map(|line| (vec![line.suite.clone()], &line.rates)).collect()
    });
    plot(
        "success-by-suite",
        title,
        success_by(runs, title, suites),
        "Without evaluations.",
        "No trajectory has a verdict.",
    )
}

fn success_by_task(runs: &[RunMetrics]) -> ReportPlot {
    let title = "Success rate by task";
    let key = |line: &TaskLine| vec![line.task_id.clone(), line.suite.clone()];
    let tasks = rates_by(runs, |run| {
        run.learning.metrics.by_task.iter().map(|line| (key(line), &line.rates)).collect()
    });
    let note = format!("At most the {TASK_BARS_MAX} tasks with the most attempts; the table below has more.");
    plot("success-by-task", title, success_by(runs, title, tasks), &note, "No trajectory has a verdict.")
}

fn success_by(runs: &[RunMetrics], label: &str, keyed: Vec<KeyedRates<'_>>) -> Option<RenderedChart> {
    let rows = keyed.into_iter().take(TASK_BARS_MAX).map(|(key, lines)| {
        let rates = lines.iter().map(|line| line.and_then(|line| line.success_rate));
        (key.join(" · "), rates.collect::<Vec<_>>())
    });
    let rows: Vec<_> = rows.collect();
    let is_judged = rows.iter().any(|(_, rates)| rates.iter().any(Option::is_some));
    if is_judged { charts::bars(label, &names(runs), &rows, percent, Some(1.0)) } else { None }
}

/// A key, such as suite and task, and the rates of each run under it.
pub(super) type KeyedRates<'r> = (Vec<String>, Vec<Option<&'r TrajectoryRates>>);

/// Lines of Learning by key, each with the rates of every run: in the order of the first run that
/// has it.
pub(super) fn rates_by<'r>(
    runs: &'r [RunMetrics],
    lines: impl Fn(&'r RunMetrics) -> Vec<(Vec<String>, &'r TrajectoryRates)>,
) -> Vec<KeyedRates<'r>> {
    let mut found: Vec<KeyedRates<'r>> = Vec::new();
    let mut positions = std::collections::HashMap::new();
    for (index, run) in runs.iter().enumerate() {
        for (key, rates) in lines(run) {
            let at = *positions.entry(key.clone()).or_insert(found.len());
            if at == found.len() {
                found.push((key, vec![None; runs.len()]));
            }
            found[at].1[index] = Some(rates);
        }
    }
    found
}

fn lengths(runs: &[RunMetrics]) -> ReportPlot {
    let title = "Steps of scored trajectories";
    plot(
        "lengths",
        title,
        histogram(runs, title, |metrics| &metrics.lengths),
        share_note(runs),
        "No trajectory was scored.",
    )
}

fn staleness(runs: &[RunMetrics]) -> ReportPlot {
    let title = "Staleness: versions between acting and the end";
    plot(
        "staleness",
        title,
        histogram(runs, title, |metrics| &metrics.staleness),
        share_note(runs),
        "No staleness is recorded: the policy has no versions.",
    )
}

fn share_note(runs: &[RunMetrics]) -> &'static str {
    if runs.len() > 1 { "Shares of each run's trajectories." } else { "Trajectories without evaluations." }
}

fn histogram(
    runs: &[RunMetrics],
    label: &str,
    pairs: fn(&LearningMetrics) -> &[(i32, u64)],
) -> Option<RenderedChart> {
    let of_run = |run: &RunMetrics| {
        let pairs = pairs(&run.learning.metrics).iter().map(|&(value, times)| (i64::from(value), times));
        (run.name.clone(), pairs.collect::<Vec<_>>())
    };
    charts::histogram(label, &runs.iter().map(of_run).collect::<Vec<_>>())
}

/// Attempts that ended by a fault of the farm, by their end; for several runs as a share of all
/// attempts.
fn failures(runs: &[RunMetrics]) -> ReportPlot {
    let is_one = runs.len() == 1;
    let mut rows: Vec<(String, Vec<Option<f64>>)> = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        let attempts = run.overview.metrics.counts.trajectories as f64;
        for end in run.overview.metrics.ends.iter().filter(|end| end.status == "failed") {
            let times = end.trajectories as f64;
            let value = if is_one || attempts == 0.0 { times } else { times / attempts };
            let at = rows.iter().position(|(known, _)| *known == end.end).unwrap_or_else(|| {
                rows.push((end.end.clone(), vec![Some(0.0); runs.len()]));
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

/// The success rate by version, with its intervals.
fn success_drift(runs: &[RunMetrics]) -> ReportPlot {
    let line = |run: &RunMetrics| ChartLine {
        intervals: intervals(run),
        ..over_versions(run, |line| line.rates.success_rate)
    };
    let lines: Vec<ChartLine> = runs.iter().map(line).collect();
    let note =
        "With Wilson's 95 % intervals, as if each attempt were at a different task; without evaluations.";
    drift_plot("drift-success", "Success rate by policy version", &lines, percent, Some(1.0), note)
}

/// A metric by version: changes from one version to the next are drift.
fn drift(
    runs: &[RunMetrics],
    name: &'static str,
    title: &str,
    metric: fn(&VersionLine) -> Option<f64>,
    write: fn(Option<f64>) -> String,
    top: Option<f64>,
) -> ReportPlot {
    let lines: Vec<ChartLine> = runs.iter().map(|run| over_versions(run, metric)).collect();
    drift_plot(name, title, &lines, write, top, "")
}

fn drift_plot(
    name: &'static str,
    title: &str,
    lines: &[ChartLine],
    write: fn(Option<f64>) -> String,
    top: Option<f64>,
    note: &str,
) -> ReportPlot {
    let scales = ChartScales { x: version, y: write, top, levels: Vec::new() };
    let chart = charts::lines(title, lines, &scales);
    plot(name, title, chart, note, "Fewer than two policy versions have a value.")
}

fn over_versions(run: &RunMetrics, metric: fn(&VersionLine) -> Option<f64>) -> ChartLine {
    let newest_first = run.learning.metrics.by_version.iter();
    let points = newest_first.rev().filter_map(|line| Some((f64::from(line.version?), metric(line))));
    ChartLine { name: run.name.clone(), points: points.collect(), intervals: Vec::new() }
}

/// The intervals of the success rate, by version.
fn intervals(run: &RunMetrics) -> Vec<(f64, f64, f64)> {
    let interval = |line: &VersionLine| {
        let interval = line.success_interval?;
        Some((f64::from(line.version?), interval.low, interval.high))
    };
    run.learning.metrics.by_version.iter().filter_map(interval).collect()
}

/// A version on an axis; positions between two versions have no label.
fn version(value: Option<f64>) -> String {
    let whole = value.filter(|value| value.fract() == 0.0);
    whole.map_or_else(String::new, |value| format!("version {value}"))
}

fn names(runs: &[RunMetrics]) -> Vec<&str> {
    runs.iter().map(|run| run.name.as_str()).collect()
}
