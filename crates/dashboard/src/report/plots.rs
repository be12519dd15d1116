//! Which plots a report has, and which figures of the answers each is drawn from.

use serde_json::Value;

use super::RunFigures;
use super::charts::{self, Drawn, Line, Scales, WIDTH, Whole};
use super::markup::{Element, element};
use crate::figures::Device;
use crate::format::{count, device_hour, device_name, number, percent, seconds};

/// A plot with its heading.
#[derive(Debug, Clone)]
pub(super) struct Plot {
    /// Its id in the page, and the name of its picture.
    pub name: &'static str,
    /// Heading.
    pub title: String,
    /// A sentence below.
    note: String,
    /// `None`: there is nothing to draw, and the note says why.
    drawn: Option<Drawn>,
}

/// Pixels of a picture around its chart, and below its heading.
const MARGIN: u32 = 20;
const HEADING: u32 = 34;
/// Pixels a picture is wide.
pub(super) const PICTURE_WIDTH: u32 = WIDTH + 2 * MARGIN;
/// Bars of a chart by task.
const TASK_BARS_MAX: usize = 30;

impl Plot {
    /// As a part of the page.
    pub fn figure(self) -> Element {
        let figure = element("figure").set("class", "card").set("id", self.name);
        let figure = figure.with(element("h2").text(&self.title));
        let figure = match self.drawn {
            Some(drawn) => figure.with(drawn.picture),
            None => figure,
        };
        if self.note.is_empty() {
            figure
        } else {
            figure.with(element("figcaption").set("class", "note").text(&self.note))
        }
    }

    /// As a page's only part.
    pub fn alone(&self) -> Element {
        let alone = element("figure").with(element("h2").text(&self.title));
        self.drawn.iter().fold(alone, |alone, drawn| alone.with(drawn.picture.clone()))
    }

    /// Pixels that a picture of it is tall.
    pub fn picture_height(&self) -> u32 {
        2 * MARGIN + HEADING + self.drawn.as_ref().map_or(0, |drawn| drawn.height)
    }

    /// Whether there is something to see.
    pub fn is_drawn(&self) -> bool {
        self.drawn.is_some()
    }
}

/// All plots, in the order of the page.
pub(super) fn plots(runs: &[RunFigures]) -> Vec<Plot> {
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

/// What stands where nothing can be drawn.
fn plot(name: &'static str, title: &str, drawn: Option<Drawn>, note: &str, missing: &str) -> Plot {
    let note = if drawn.is_some() { note } else { missing };
    Plot { name, title: title.to_owned(), note: note.to_owned(), drawn }
}

/// Trajectories per device-hour where every run has one device and knows its hours, else per hour of wall clock; from each run's
/// beginning.
fn throughput(runs: &[RunFigures]) -> Plot {
    let device = runs[0].device();
    let knows = |run: &RunFigures| run.figure("/overview/throughput/trajectories_per_device_hour").is_some();
    let by_device = device != Device::None && runs.iter().all(|run| run.device() == device && knows(run));
    let (place, of, figure) = if by_device {
        ("/hours_over_time", device_hour(device), "trajectories_per_device_hour")
    } else {
        ("/over_time/points", "hour", "trajectories_per_hour")
    };
    let lines: Vec<Line> = runs.iter().map(|run| over_time(run, place, figure)).collect();
    let ceiling = |name: String, place: &str| runs[0].figure(place).map(|level| (name, level));
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
    let scales = Scales { x: seconds, y: number, top: None, levels };
    let title = format!("Trajectories per {of} over time");
    let note = if by_device {
        "Between lines of metrics.jsonl; dashed: the ceilings of the whole run."
    } else {
        "Of spans of equal length, by when a trajectory ended."
    };
    plot(
        "throughput",
        &title,
        charts::lines(&title, &lines, &scales),
        note,
        "A line needs two points: not enough has ended.",
    )
}

fn success_over_time(runs: &[RunFigures]) -> Plot {
    let lines: Vec<Line> =
        runs.iter().map(|run| over_time(run, "/over_time/points", "success_rate")).collect();
    let scales = Scales { x: seconds, y: percent, top: Some(1.0), levels: Vec::new() };
    let title = "Success rate over time";
    plot(
        "success-over-time",
        title,
        charts::lines(title, &lines, &scales),
        "Of what ended in each span, evaluations included.",
        "A line needs two points: not enough was judged.",
    )
}

/// Seconds since the run's first point, and the figure.
fn over_time(run: &RunFigures, place: &str, figure: &str) -> Line {
    let points = run.overview.pointer(place).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let began = points.first().and_then(|point| point["at"].as_f64()).unwrap_or_default();
    let point = |point: &Value| Some((point["at"].as_f64()? - began, point[figure].as_f64()));
    let points = points.iter().filter_map(point).collect();
    Line { name: run.name.clone(), points, intervals: Vec::new() }
}

fn device_time(runs: &[RunFigures]) -> Plot {
    let title = match runs {
        [run] => format!("Where the {}'s time went", device_name(run.device())),
        _ => "Where the devices' time went".to_owned(),
    };
    let missing = "The hours of a device are not known here: the policy has none, or no metrics.jsonl lies beside the data.";
    plot(
        "device-time",
        &title,
        wholes(runs, &title, "device_parts"),
        "Each microsecond is in one part; no_work, no_room and host are idle time.",
        missing,
    )
}

fn session_time(runs: &[RunFigures]) -> Plot {
    let title = "Where the sessions' time went";
    plot(
        "session-time",
        title,
        wholes(runs, title, "session_parts"),
        "From the queue to the score, over all trajectories.",
        "No time was accounted for.",
    )
}

fn slot_time(runs: &[RunFigures]) -> Plot {
    let title = "What the slots of the environment workers held";
    plot(
        "slot-time",
        title,
        wholes(runs, title, "slot_parts"),
        "",
        "The hours of slots are not known here: no metrics.jsonl lies beside the data.",
    )
}

/// Parts of a whole, run by run.
fn wholes(runs: &[RunFigures], label: &str, parts: &str) -> Option<Drawn> {
    let part = |part: &Value| {
        Some((part["cause"].as_str()?.to_owned(), part["micros"].as_f64()?, part["share"].as_f64()?))
    };
    let whole = |run: &RunFigures| {
        let listed = run.overview[parts].as_array().into_iter().flatten();
        Whole { name: run.name.clone(), parts: listed.filter_map(part).collect() }
    };
    charts::wholes(label, &runs.iter().map(whole).collect::<Vec<_>>())
}

fn success_by_suite(runs: &[RunFigures]) -> Plot {
    let title = "Success rate by suite";
    plot(
        "success-by-suite",
        title,
        success_by(runs, title, "by_suite", &["suite"]),
        "Evaluations left out.",
        "Nothing was judged.",
    )
}

fn success_by_task(runs: &[RunFigures]) -> Plot {
    let title = "Success rate by task";
    let note = format!("The {TASK_BARS_MAX} tasks with the most attempts at most; the table below has more.");
    plot(
        "success-by-task",
        title,
        success_by(runs, title, "by_task", &["task_id", "suite"]),
        &note,
        "Nothing was judged.",
    )
}

fn success_by(runs: &[RunFigures], label: &str, lines: &str, key: &[&str]) -> Option<Drawn> {
    let rows = lines_by(runs, lines, key).into_iter().take(TASK_BARS_MAX).map(|(key, lines)| {
        let rates = lines.iter().map(|line| line.and_then(|line| line["success_rate"].as_f64()));
        (key.join(" · "), rates.collect::<Vec<_>>())
    });
    let rows: Vec<_> = rows.collect();
    let is_judged = rows.iter().any(|(_, rates)| rates.iter().any(Option::is_some));
    if is_judged { charts::bars(label, &names(runs), &rows, percent, Some(1.0)) } else { None }
}

/// Lines of Learning by their key, each with that of every run: in the order of the first run that has it.
pub(super) fn lines_by<'r>(
    runs: &'r [RunFigures],
    lines: &str,
    key: &[&str],
) -> Vec<(Vec<String>, Vec<Option<&'r Value>>)> {
    let mut found: Vec<(Vec<String>, Vec<Option<&Value>>)> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for (index, run) in runs.iter().enumerate() {
        for line in run.learning[lines].as_array().into_iter().flatten() {
            let named = |name: &&str| line[*name].as_str().unwrap_or_default().to_owned();
            let key: Vec<String> = key.iter().map(named).collect();
            let at = *places.entry(key.clone()).or_insert(found.len());
            if at == found.len() {
                found.push((key, vec![None; runs.len()]));
            }
            found[at].1[index] = Some(line);
        }
    }
    found
}

fn lengths(runs: &[RunFigures]) -> Plot {
    let title = "Steps of scored trajectories";
    plot("lengths", title, histogram(runs, title, "lengths"), of_each(runs), "Nothing was scored.")
}

fn staleness(runs: &[RunFigures]) -> Plot {
    let title = "Versions behind when a trajectory ended";
    plot(
        "staleness",
        title,
        histogram(runs, title, "staleness"),
        of_each(runs),
        "No staleness is recorded: the policy has no versions.",
    )
}

fn of_each(runs: &[RunFigures]) -> &'static str {
    if runs.len() > 1 { "Shares of each run's trajectories." } else { "Trajectories, evaluations left out." }
}

fn histogram(runs: &[RunFigures], label: &str, figure: &str) -> Option<Drawn> {
    let pairs = |run: &RunFigures| {
        let listed = run.learning[figure].as_array().into_iter().flatten();
        listed.filter_map(|pair| Some((pair[0].as_i64()?, pair[1].as_u64()?))).collect::<Vec<_>>()
    };
    let each: Vec<_> = runs.iter().map(|run| (run.name.clone(), pairs(run))).collect();
    charts::histogram(label, &each)
}

/// Attempts that ended by the farm's fault, by how they ended; of several runs their share of all attempts.
fn failures(runs: &[RunFigures]) -> Plot {
    let is_one = runs.len() == 1;
    let mut rows: Vec<(String, Vec<Option<f64>>)> = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        let attempts = run.figure("/overview/counts/trajectories").unwrap_or_default();
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
    let drawn = charts::bars(title, &names(runs), &rows, if is_one { count } else { percent }, None);
    plot(
        "failures",
        title,
        drawn,
        "Ended by the farm's fault: in no rate of success or reward.",
        "None failed.",
    )
}

/// A figure of the lines by version: what changes from one to the next is drift.
fn drift(
    runs: &[RunFigures],
    name: &'static str,
    title: &str,
    figure: &str,
    write: fn(Option<f64>) -> String,
    top: Option<f64>,
) -> Plot {
    let line = |run: &RunFigures| {
        let listed = run.learning["by_version"].as_array().into_iter().flatten();
        let points = listed.filter_map(|line| Some((line["version"].as_f64()?, line[figure].as_f64())));
        let mut points: Vec<_> = points.collect();
        points.reverse(); // the newest comes first there
        let intervals = match figure {
            "success_rate" => intervals(run),
            _ => Vec::new(),
        };
        Line { name: run.name.clone(), points, intervals }
    };
    let scales = Scales { x: version, y: write, top, levels: Vec::new() };
    let lines: Vec<Line> = runs.iter().map(line).collect();
    let note = match figure {
        "success_rate" => {
            "With Wilson's 95 % intervals, as if each attempt were at a task of its own; evaluations left out."
        }
        _ => "",
    };
    plot(name, title, charts::lines(title, &lines, &scales), note, "Fewer than two policy versions have it.")
}

/// Of the success rate by version, each version's interval.
fn intervals(run: &RunFigures) -> Vec<(f64, f64, f64)> {
    let listed = run.learning["by_version"].as_array().into_iter().flatten();
    let interval = |line: &Value| {
        let of = |end: &str| line["success_interval"][end].as_f64();
        Some((line["version"].as_f64()?, of("low")?, of("high")?))
    };
    listed.filter_map(interval).collect()
}

/// A version of an axis; between two of them stands nothing.
fn version(value: Option<f64>) -> String {
    let whole = value.filter(|value| value.fract() == 0.0);
    whole.map_or_else(String::new, |value| format!("version {value}"))
}

fn names(runs: &[RunFigures]) -> Vec<&str> {
    runs.iter().map(|run| run.name.as_str()).collect()
}
