//! Charts as SVG of a known size: parts of the page, and pictures by themselves. Colours are names
//! of `pages/palette.css`; each of several runs has its own colour and an entry in the legend.

use crate::comparison::distinct_names;
use crate::format::{count, duration, percent, spaced_name};
use crate::markup::{HtmlElement, element};

#[derive(Debug, Clone)]
pub(crate) struct RenderedChart {
    pub picture: HtmlElement,
    pub height: u32,
}

/// A line: `x`, and `y` if known.
#[derive(Debug, Clone)]
pub(crate) struct ChartLine {
    /// Name of the run.
    pub name: String,
    /// Points in the order of `x`.
    pub points: Vec<(f64, Option<f64>)>,
    /// `x`, and the interval of `y`.
    pub intervals: Vec<(f64, f64, f64)>,
}

/// Scales and formats of a line chart.
#[derive(Debug, Clone)]
pub(crate) struct ChartScales {
    /// Formats a value of `x`.
    pub x: fn(Option<f64>) -> String,
    /// Formats a value of `y`.
    pub y: fn(Option<f64>) -> String,
    /// Top of the chart, if fixed.
    pub top: Option<f64>,
    /// Marked levels: a name and a height.
    pub levels: Vec<(String, f64)>,
}

/// Parts of a total.
#[derive(Debug, Clone)]
pub(crate) struct TimeBreakdown {
    /// Name of the run.
    pub name: String,
    /// Cause, microseconds, share from 0 to 1.
    pub parts: Vec<(String, f64, f64)>,
}

/// Width of a chart in pixels.
pub(crate) const WIDTH: u32 = 760;
const WIDE: f64 = WIDTH as f64;
/// Margins of a line chart or a histogram, and its height, in pixels.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 12.0;
const FOOT: f64 = 26.0;
const TALL: f64 = 170.0;
/// Most columns of a histogram.
const BINS_MAX: i64 = 32;
/// Most characters of a name in a legend, and beside a bar: a character is about 6.6 pixels wide.
const COLUMN_CHARS_MAX: usize = 14;
const NAME_MAX: usize = 28;

/// Lines over a common axis. `None`: no line has two points.
pub(crate) fn lines(label: &str, lines: &[ChartLine], scales: &ChartScales) -> Option<RenderedChart> {
    let known = |line: &ChartLine| line.points.iter().filter(|(_, y)| y.is_some()).count();
    if !lines.iter().any(|line| known(line) >= 2) {
        return None;
    }
    let xs = || lines.iter().flat_map(|line| line.points.iter().map(|(x, _)| *x));
    let from = xs().fold(f64::INFINITY, f64::min);
    let to = xs().fold(f64::NEG_INFINITY, f64::max);
    let ys = lines.iter().flat_map(|line| line.points.iter().filter_map(|(_, y)| *y));
    let ends = lines.iter().flat_map(|line| line.intervals.iter().flat_map(|(_, low, high)| [*low, *high]));
    let all: Vec<f64> = ys.chain(ends).chain(scales.levels.iter().map(|(_, level)| *level)).collect();
    let least = all.iter().copied().fold(0.0, f64::min);
    let most = all.iter().copied().fold(0.0, f64::max);
    let rise = step(scales.top.unwrap_or(most) - least);
    let lowest = (least / rise).floor();
    let floor = lowest * rise;
    let top = scales.top.unwrap_or_else(|| (most / rise).ceil() * rise).max(floor + rise);
    let head = legend_height(lines.len());
    let x_of = |x: f64| LEFT + (x - from) / if to > from { to - from } else { 1.0 } * (WIDE - LEFT - RIGHT);
    let level = |y: f64| head + 8.0 + (1.0 - (y - floor) / (top - floor)) * TALL;
    let height = head + 8.0 + TALL + FOOT;
    let mut picture = canvas(height, &sentence(label, lines, scales));
    // Computed from whole numbers, so that 0 is exactly 0.
    let marks = (0..12).map(|mark| (lowest + f64::from(mark)) * rise);
    for at in marks.take_while(|at| *at <= top + rise * 1e-6) {
        picture = picture.with(rule(level(at))).with(text(
            "tick end",
            LEFT - 6.0,
            level(at) + 4.0,
            &(scales.y)(Some(at)),
        ));
    }
    for (share, class) in [(0.0, "tick"), (0.5, "tick middle"), (1.0, "tick end")] {
        let at = from + share * (to - from);
        picture = picture.with(text(
            class,
            LEFT + share * (WIDE - LEFT - RIGHT),
            height - 8.0,
            &(scales.x)(Some(at)),
        ));
    }
    for (name, at) in &scales.levels {
        let line = rule(level(*at)).set("stroke-dasharray", "5 4");
        picture = picture.with(line).with(text("tick end level", WIDE - RIGHT, level(*at) - 4.0, name));
    }
    for (index, line) in lines.iter().enumerate() {
        let whisker = |(x, low, high): &(f64, f64, f64)| {
            format!("M{} {}V{}", short(x_of(*x)), short(level(*low)), short(level(*high)))
        };
        if !line.intervals.is_empty() {
            let whiskers = element("path").set("class", format!("whiskers run-{index}"));
            picture = picture.with(whiskers.set("d", line.intervals.iter().map(whisker).collect::<String>()));
        }
        let path =
            element("path").set("class", format!("curve run-{index}")).set("d", path(line, x_of, level));
        picture = picture.with(path);
        // A point between two gaps is invisible as a line.
        let alone = |at: usize| {
            let is_known =
                |at: Option<usize>| at.and_then(|at| line.points.get(at)).is_some_and(|(_, y)| y.is_some());
            !is_known(at.checked_sub(1)) && !is_known(Some(at + 1))
        };
        for (at, (x, y)) in line.points.iter().enumerate() {
            if let Some(y) = y.filter(|_| alone(at)) {
                let dot = element("circle").set("class", format!("fill run-{index}")).set("r", 2.5);
                picture = picture.with(dot.set("cx", short(x_of(*x))).set("cy", short(level(y))));
            }
        }
    }
    Some(finished(legend(picture, &names(lines)), height))
}

/// Counts of whole numbers as columns; for several runs, shares of each run's own sum. `None`: no
/// counts.
pub(crate) fn histogram(label: &str, runs: &[(String, Vec<(i64, u64)>)]) -> Option<RenderedChart> {
    let values = || runs.iter().flat_map(|(_, pairs)| pairs.iter().map(|(value, _)| *value));
    let (least, most) = values().min().zip(values().max())?;
    let width = (most - least) / BINS_MAX + 1;
    let bins = ((most - least) / width + 1) as usize;
    let of_run = |pairs: &[(i64, u64)]| {
        let mut sums = vec![0.0; bins];
        pairs.iter().for_each(|(value, times)| sums[((value - least) / width) as usize] += *times as f64);
        let whole: f64 = sums.iter().sum();
        let scale = if runs.len() > 1 && whole > 0.0 { whole } else { 1.0 };
        sums.into_iter().map(|sum| sum / scale).collect::<Vec<f64>>()
    };
    let sums: Vec<Vec<f64>> = runs.iter().map(|(_, pairs)| of_run(pairs)).collect();
    let write = if runs.len() > 1 { percent } else { count };
    let top = sums.iter().flatten().copied().fold(0.0, f64::max);
    let head = legend_height(runs.len());
    let height = head + 8.0 + TALL + FOOT;
    let floor = height - FOOT;
    let wide = (WIDE - LEFT - RIGHT) / bins as f64;
    let name = |bin: usize| {
        let first = least + bin as i64 * width;
        if width == 1 { first.to_string() } else { format!("{first}–{}", first + width - 1) }
    };
    let most = (0..bins).max_by(|a, b| sums[0][*a].total_cmp(&sums[0][*b])).unwrap_or_default();
    let description =
        format!("{label}: {bins} columns, most ({}) at {}", write(Some(sums[0][most])), name(most));
    let mut picture = canvas(height, &description).with(rule(floor));
    picture = picture.with(text("tick end", LEFT - 6.0, head + 16.0, &write(Some(top))));
    let each = ((wide - 2.0) / runs.len() as f64).clamp(1.0, 60.0);
    for bin in 0..bins {
        let left = LEFT + bin as f64 * wide + 1.0;
        for (index, of_run) in sums.iter().enumerate().filter(|(_, of_run)| of_run[bin] > 0.0) {
            let tall = of_run[bin] / top * TALL;
            let column = boxed(left + index as f64 * each, floor - tall, each.max(1.5) - 0.5, tall);
            let title = element("title").text(format!("{}: {}", name(bin), write(Some(of_run[bin]))));
            picture = picture.with(column.set("class", format!("fill run-{index}")).with(title));
        }
        if bin % bins.div_ceil(10) == 0 {
            let middle = left + each * runs.len() as f64 / 2.0;
            picture = picture.with(text("tick middle", middle, height - 8.0, &name(bin)));
        }
    }
    let names: Vec<&str> = runs.iter().map(|(name, _)| name.as_str()).collect();
    Some(finished(legend(picture, &names), height))
}

/// A value per name and run, as horizontal bars. `None`: no names.
pub(crate) fn bars(
    label: &str,
    runs: &[&str],
    rows: &[(String, Vec<Option<f64>>)],
    write: fn(Option<f64>) -> String,
    top: Option<f64>,
) -> Option<RenderedChart> {
    let (name, values) = rows.first()?;
    let most = rows.iter().flat_map(|(_, values)| values.iter().flatten()).copied().fold(0.0, f64::max);
    let top = top.unwrap_or(most).max(f64::MIN_POSITIVE);
    let left = 230.0;
    let right = 90.0;
    let thick = if runs.len() > 1 { 13.0 } else { 14.0 };
    let row_height = thick * runs.len() as f64 + 8.0;
    let head = legend_height(runs.len());
    let height = head + row_height * rows.len() as f64 + 8.0;
    let description =
        format!("{label}: {} bars, the first {} {}", rows.len(), spaced_name(name), write(values[0]));
    let mut picture = canvas(height, &description);
    for (at, (name, values)) in rows.iter().enumerate() {
        let above = head + row_height * at as f64 + 4.0;
        let middle = above + thick * runs.len() as f64 / 2.0 + 4.0;
        let whole_name = element("title").text(name);
        picture = picture.with(text("end", left - 8.0, middle, &cut(&spaced_name(name))).with(whole_name));
        for (index, value) in values.iter().enumerate() {
            let above = above + thick * index as f64;
            let long = value.unwrap_or(0.0) / top * (WIDE - left - right);
            picture =
                picture.with(boxed(left, above, WIDE - left - right, thick - 1.0).set("class", "track"));
            picture =
                picture.with(boxed(left, above, long, thick - 1.0).set("class", format!("fill run-{index}")));
            let beside = text("tick", WIDE - right + 8.0, above + thick / 2.0 + 3.5, &write(*value));
            picture = picture.with(beside);
        }
    }
    Some(finished(legend(picture, runs), height))
}

/// Where time went: one bar per run, one below the other, and the meaning of each colour. `None`:
/// no time.
pub(crate) fn breakdowns(label: &str, runs: &[TimeBreakdown]) -> Option<RenderedChart> {
    let causes = causes_of(runs);
    if runs.iter().all(|run| run.parts.iter().all(|(_, micros, _)| *micros <= 0.0)) {
        return None;
    }
    let is_one = runs.len() == 1;
    let bar_height = if is_one { 34.0 } else { 48.0 };
    let bars_height = bar_height * runs.len() as f64 + 10.0;
    let columns = if is_one { 2 } else { 1 };
    let row = |at: usize| bars_height + 22.0 * (at / columns) as f64 + 14.0;
    let height = bars_height + 22.0 * causes.len().div_ceil(columns) as f64 + if is_one { 8.0 } else { 30.0 };
    let descriptions = runs.iter().map(|run| {
        let parts = run.parts.iter().filter(|(_, micros, _)| *micros > 0.0);
        let parts: Vec<String> = parts
            .map(|(cause, _, share)| format!("{} {}", spaced_name(cause), percent(Some(*share))))
            .collect();
        format!("{}: {}", run.name, parts.join(", "))
    });
    let mut picture = canvas(height, &format!("{label}; {}", descriptions.collect::<Vec<_>>().join("; ")));
    for (index, run) in runs.iter().enumerate() {
        let mut above = bar_height * index as f64 + 4.0;
        if !is_one {
            picture = picture.with(text("", 0.0, above + 11.0, &cut(&run.name)));
            above += 16.0;
        }
        let mut left = 0.0;
        for (cause, micros, share) in run.parts.iter().filter(|(_, micros, _)| *micros > 0.0) {
            let wide = share * WIDE;
            let title =
                format!("{}: {} ({})", spaced_name(cause), duration(Some(*micros)), percent(Some(*share)));
            let part =
                boxed(left, above, (wide - 0.7).max(0.4), 26.0).set("class", format!("part part-{cause}"));
            picture = picture.with(part.with(element("title").text(title)));
            left += wide;
        }
    }
    let below = if is_one { 0.0 } else { 22.0 };
    let column_of = |index: usize| 260.0 + 110.0 * index as f64;
    if !is_one {
        let names: Vec<String> = runs.iter().map(|run| run.name.to_string()).collect();
        for (index, name) in distinct_names(&names).iter().enumerate() {
            // The end is what tells them apart.
            let letters = name.chars().count();
            let end: String = name.chars().skip(letters.saturating_sub(COLUMN_CHARS_MAX)).collect();
            picture = picture.with(text("tick end", column_of(index), row(0), &end));
        }
    }
    for (at, cause) in causes.iter().enumerate() {
        let left = if at % columns == 1 { WIDE / 2.0 + 10.0 } else { 0.0 };
        let at = row(at) + below;
        picture = picture.with(boxed(left, at - 10.0, 11.0, 11.0).set("class", format!("part part-{cause}")));
        picture = picture.with(text("", left + 18.0, at, &spaced_name(cause)));
        for (index, run) in runs.iter().enumerate() {
            let part = run.parts.iter().find(|(name, ..)| name == cause);
            let share = percent(part.map(|(_, _, share)| *share));
            if is_one {
                let time = duration(part.map(|(_, micros, _)| *micros));
                picture = picture.with(text("tick end", left + 260.0, at, &time));
                picture = picture.with(text("end", left + 340.0, at, &share));
            } else {
                picture = picture.with(text("end", column_of(index), at, &share));
            }
        }
    }
    Some(finished(picture, height))
}

/// The causes of all runs, in the order in which they first appear.
fn causes_of(runs: &[TimeBreakdown]) -> Vec<&str> {
    let mut causes: Vec<&str> = Vec::new();
    for (cause, ..) in runs.iter().flat_map(|run| &run.parts) {
        if !causes.contains(&cause.as_str()) {
            causes.push(cause);
        }
    }
    causes
}

/// 1, 2 or 5 times a power of ten, such that four or five of them make the span.
fn step(span: f64) -> f64 {
    let rough = if span > 0.0 { span / 4.0 } else { 0.25 };
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|size| *size >= rough)
        .unwrap_or(power)
}

fn path(line: &ChartLine, x_of: impl Fn(f64) -> f64, level: impl Fn(f64) -> f64) -> String {
    let mut path = String::new();
    let mut pen = 'M';
    for (x, y) in &line.points {
        match y {
            Some(y) => {
                path.push_str(&format!("{pen}{} {}", short(x_of(*x)), short(level(*y))));
                pen = 'L';
            }
            None => pen = 'M',
        }
    }
    path
}

/// The text alternative of a line chart.
fn sentence(label: &str, lines: &[ChartLine], scales: &ChartScales) -> String {
    let descriptions = lines.iter().filter_map(|line| {
        let known: Vec<f64> = line.points.iter().filter_map(|(_, y)| *y).collect();
        let least = known.iter().copied().reduce(f64::min)?;
        let most = known.iter().copied().reduce(f64::max)?;
        let least = (scales.y)(Some(least));
        let most = (scales.y)(Some(most));
        let last = (scales.y)(known.last().copied());
        Some(format!("{}: {} points, from {least} to {most}, last {last}", line.name, known.len()))
    });
    format!("{label}; {}", descriptions.collect::<Vec<_>>().join("; "))
}

fn names(lines: &[ChartLine]) -> Vec<&str> {
    lines.iter().map(|line| line.name.as_str()).collect()
}

/// Names of runs per row of the legend.
const NAMES_A_ROW: usize = 3;

fn legend_height(names: usize) -> f64 {
    if names > 1 { 20.0 * names.div_ceil(NAMES_A_ROW) as f64 } else { 0.0 }
}

/// A single name needs no legend.
fn legend(mut picture: HtmlElement, names: &[&str]) -> HtmlElement {
    for (index, name) in names.iter().enumerate().filter(|_| names.len() > 1) {
        let left = (index % NAMES_A_ROW) as f64 * (WIDE / NAMES_A_ROW as f64);
        let above = (index / NAMES_A_ROW) as f64 * 20.0;
        picture =
            picture.with(boxed(left, above + 3.0, 11.0, 11.0).set("class", format!("fill run-{index}")));
        picture =
            picture.with(text("", left + 17.0, above + 13.0, &cut(name)).with(element("title").text(name)));
    }
    picture
}

fn canvas(height: f64, description: &str) -> HtmlElement {
    let view = format!("0 0 {WIDTH} {}", height.ceil());
    let canvas =
        element("svg").set("class", "chart").set("xmlns", "http://www.w3.org/2000/svg").set("viewBox", view);
    canvas.set("role", "img").set("aria-label", description)
}

fn finished(picture: HtmlElement, height: f64) -> RenderedChart {
    RenderedChart { picture, height: height.ceil() as u32 }
}

fn rule(y: f64) -> HtmlElement {
    let line = element("line").set("class", "grid").set("x1", LEFT).set("x2", WIDE - RIGHT);
    line.set("y1", short(y)).set("y2", short(y))
}

fn boxed(left: f64, above: f64, wide: f64, tall: f64) -> HtmlElement {
    let boxed = element("rect").set("x", short(left)).set("y", short(above));
    boxed.set("width", short(wide.max(0.0))).set("height", short(tall.max(0.0)))
}

fn text(class: &str, left: f64, base: f64, text: &str) -> HtmlElement {
    element("text").set("class", class).set("x", short(left)).set("y", short(base)).text(text)
}

/// A tenth of a pixel is precise enough.
fn short(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

fn cut(name: &str) -> String {
    if name.chars().count() <= NAME_MAX {
        return name.to_owned();
    }
    name.chars().take(NAME_MAX - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::number;

    fn line(points: &[(f64, Option<f64>)]) -> ChartLine {
        ChartLine { name: "a".into(), points: points.to_vec(), intervals: Vec::new() }
    }

    fn scales(top: Option<f64>) -> ChartScales {
        ChartScales { x: number, y: number, top, levels: Vec::new() }
    }

    #[test]
    fn a_line_goes_from_edge_to_edge_and_stops_at_gaps() {
        let drawn = lines(
            "rate",
            &[line(&[(0.0, Some(0.0)), (1.0, None), (2.0, Some(50.0)), (4.0, Some(100.0))])],
            &scales(None),
        );
        let text = drawn.unwrap().picture.written();
        // 100 is the top, 8 pixels down; 0 is 170 below it. The first point is isolated and becomes
        // a dot.
        assert!(text.contains("d=\"M64 178M406 93L748 8\""), "{text}");
        assert!(text.contains("cx=\"64\" cy=\"178\""), "{text}");
        assert!(text.contains("rate; a: 3 points, from 0 to 100, last 100"), "{text}");
        assert!(
            lines("rate", &[line(&[(0.0, Some(1.0)), (1.0, None)])], &scales(None)).is_none(),
            "one point is not a line"
        );
        let mut sure = line(&[(0.0, Some(0.5)), (1.0, Some(0.5))]);
        sure.intervals = vec![(1.0, 0.25, 1.0)];
        let text = lines("rate", &[sure], &scales(Some(1.0))).unwrap().picture.written();
        assert!(text.contains("class=\"whiskers run-0\" d=\"M748 135.5V8\""), "{text}");
        // Values below 0, such as log-probs, hang from the top.
        let text = lines("rate", &[line(&[(0.0, Some(-1.0)), (1.0, Some(-0.5))])], &scales(Some(0.0)))
            .unwrap()
            .picture
            .written();
        assert!(text.contains("d=\"M64 178L748 93\""), "{text}");
        let same = [(0.0, Some(-0.75)), (1.0, Some(-0.75))];
        let text = lines("rate", &[line(&same)], &scales(Some(0.0))).unwrap().picture.written();
        assert!(
            text.contains(">0</text>") && text.contains(">-0.800</text>") && !text.contains("0.0000"),
            "{text}"
        );
    }

    #[test]
    fn a_histogram_holds_every_value_in_at_most_33_columns() {
        let columns = |pairs: Vec<(i64, u64)>| {
            let text = histogram("steps", &[("a".into(), pairs)]).unwrap().picture.written();
            text.matches("class=\"fill run-0\"").count()
        };
        assert_eq!(columns(vec![(3, 5)]), 1);
        assert_eq!(columns((0..32).map(|value| (value, 1)).collect()), 32);
        assert_eq!(columns((0..33).map(|value| (value, 1)).collect()), 17);
        assert!((17..=33).contains(&columns((-500..1000).map(|value| (value, 1)).collect())));
        assert!(histogram("steps", &[("a".into(), Vec::new())]).is_none());
    }

    #[test]
    fn steps_of_an_axis_are_round() {
        let check =
            |span: f64, want: f64| assert!((step(span) - want).abs() < want * 1e-9, "{span}: {}", step(span));
        check(100.0, 50.0);
        check(4.0, 1.0);
        check(0.7, 0.2);
        check(0.0, 0.5);
    }
}
