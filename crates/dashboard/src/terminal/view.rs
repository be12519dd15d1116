//! Renders a snapshot as pages of lines. Untrusted text enters only through [`clean`], so that no
//! title can move the cursor.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Margin};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Tabs};

use super::keys::UserCommand;
use super::snapshot::RunSnapshot;
use super::source::WatchError;
use crate::answers::{
    EndCount, LiveProgress, OverviewAnswer, OverviewMetrics, PageHead, RunningSession, TimeShare, TokenRates,
    TrajectoryRates,
};
use crate::format::{
    NONE, bytes, clean, count, device_hour, device_name, dollars, duration, number, percent, seconds,
    spaced_name,
};

/// The screen's state: the last snapshot, and the user's choices.
#[derive(Debug, Default)]
pub(super) struct TerminalScreen {
    snapshot: Option<RunSnapshot>,
    /// Why there is no newer snapshot.
    trouble: Option<String>,
    page: usize,
    scroll: usize,
    /// Number of lines, and number of lines that fit, at the last rendering.
    extent: (usize, usize),
}

type PageRenderer = (&'static str, fn(&RunSnapshot, usize) -> Vec<Line<'static>>);

const PAGES: [PageRenderer; 5] =
    [("Overview", overview), ("Time", time), ("Sessions", sessions), ("Ends", ends), ("Workers", workers)];

const KEYS: &str = " 1–5 ←→ page   ↑↓ scroll   q quit";
/// Columns of a name before a bar.
const NAME: usize = 24;
/// Most columns of a bar.
const BAR_MAX: usize = 60;

impl RunSnapshot {
    /// All pages, one below the other, for output without a terminal. `width` in columns.
    pub fn lines(&self, width: u16) -> Vec<String> {
        all_pages(self, width).iter().map(|line| line.to_string().trim_end().to_owned()).collect()
    }
}

impl TerminalScreen {
    /// Takes a snapshot, or why there is none; then the last one stays.
    pub(super) fn update(&mut self, look: Result<RunSnapshot, WatchError>) {
        match look {
            Ok(snapshot) => (self.snapshot, self.trouble) = (Some(snapshot), None),
            Err(why) => self.trouble = Some(why.to_string()),
        }
    }

    pub(super) fn apply(&mut self, wish: UserCommand) {
        let page = match wish {
            UserCommand::Page(page) if page < PAGES.len() => page,
            UserCommand::Turn(by) => (self.page as isize + by).rem_euclid(PAGES.len() as isize) as usize,
            _ => self.page,
        };
        if page != self.page {
            (self.page, self.scroll) = (page, 0);
        }
        let last = self.extent.0.saturating_sub(self.extent.1);
        self.scroll = match wish {
            UserCommand::Scroll(by) => self.scroll.saturating_add_signed(by).min(last),
            UserCommand::Edge(is_end) => {
                if is_end {
                    last
                } else {
                    0
                }
            }
            _ => self.scroll,
        };
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let areas = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Fill(1),
            Constraint::Length(1),
        ]);
        let [head, tabs, body, foot] = areas.areas(frame.area());
        frame.render_widget(Paragraph::new(self.head()), head);
        let names = PAGES.iter().enumerate().map(|(at, (name, _))| format!("{} {name}", at + 1));
        let tab =
            Tabs::new(names).select(self.page).highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_widget(tab, tabs);
        let body = body.inner(Margin::new(1, 0));
        let lines = match &self.snapshot {
            Some(snapshot) => (PAGES[self.page].1)(snapshot, usize::from(body.width)),
            None => vec![Line::raw("Reading…")],
        };
        self.extent = (lines.len(), usize::from(body.height));
        self.scroll = self.scroll.min(lines.len().saturating_sub(1));
        let visible: Vec<Line<'_>> = lines.into_iter().skip(self.scroll).collect();
        frame.render_widget(Paragraph::new(visible), body);
        frame.render_widget(Paragraph::new(self.foot()), foot);
    }

    fn head(&self) -> Line<'static> {
        match &self.snapshot {
            Some(snapshot) => head(snapshot),
            None => Line::from(strong("furrow watch")),
        }
    }

    fn foot(&self) -> Line<'static> {
        let unread = || self.snapshot.as_ref().and_then(unread);
        match self.trouble.as_deref().map(clean).or_else(unread) {
            Some(why) => Line::styled(format!(" {why}"), Style::new().fg(Color::Red)),
            None => Line::from(quiet(KEYS)),
        }
    }
}

/// Every page below its name, for output without a terminal.
fn all_pages(snapshot: &RunSnapshot, width: u16) -> Vec<Line<'static>> {
    let mut lines = vec![head(snapshot)];
    lines.extend(unread(snapshot).map(|why| Line::raw(format!(" {why}"))));
    for (name, page) in PAGES {
        lines.extend([Line::default(), Line::from(strong(name))]);
        lines.extend(page(snapshot, usize::from(width)));
    }
    lines
}

/// The name of the run, and its state.
fn head(snapshot: &RunSnapshot) -> Line<'static> {
    let head = &snapshot.overview.head;
    let state = match &snapshot.overview.live {
        None => "not running".to_owned(),
        Some(live) if live.run_over => "the run is over".to_owned(),
        Some(live) if live.admission == "open" => "running".to_owned(),
        Some(live) => format!("no new trajectories: {}", spaced_name(&clean(&live.admission))),
    };
    let trajectories = whole(head.trajectories);
    Line::from(vec![
        Span::raw(" "),
        strong(clean(&head.name)),
        Span::raw(format!("   {state}   {trajectories} trajectories committed")),
    ])
}

/// The message if the run cannot be read completely.
fn unread(snapshot: &RunSnapshot) -> Option<String> {
    snapshot.overview.head.trouble.as_ref().map(|why| format!("cannot read: {}", clean(why)))
}

/// Messages about missing data: damaged files, and files that were not read yet. The pages show the
/// same in their header.
fn missing(head: &PageHead) -> Vec<Line<'static>> {
    let mut messages: Vec<String> = head.problems.iter().map(|problem| clean(problem)).collect();
    if head.step_files_left > 0 {
        messages.push(format!(
            "Metrics over steps are incomplete: {} files are still being read.",
            whole(head.step_files_left)
        ));
    }
    if head.left_out > 0 {
        messages
            .push(format!("{} trajectories exceed the table; the metrics count them.", whole(head.left_out)));
    }
    let mut lines: Vec<_> =
        messages.iter().map(|text| Line::styled(plain(text), Style::new().fg(Color::Red))).collect();
    if !lines.is_empty() {
        lines.push(Line::default());
    }
    lines
}

fn overview(snapshot: &RunSnapshot, width: usize) -> Vec<Line<'static>> {
    let answer = &snapshot.overview;
    let metrics = &answer.metrics;
    let mut lines = missing(&answer.head);
    if let Some(live) = &answer.live {
        lines.extend(progress(live, width));
        lines.push(Line::default());
    }
    lines.extend(match metrics.throughput.trajectories_per_device_hour {
        Some(rate) => device_rates(answer, rate, width),
        None => slot_rates(metrics),
    });
    lines.extend(results(metrics));
    lines.extend(policy_versions(answer));
    if let Some(cost) = metrics.cost_usd_per_trajectory {
        lines.push(figure(
            "Cost of a trajectory",
            &dollars(Some(cost)),
            &format!("{} in all", dollars(metrics.cost_usd)),
        ));
    }
    lines.push(Line::default());
    lines.extend(token_rates(&metrics.tokens));
    lines
}

/// Trajectories per hour of a device, beside what its time and the sessions' time allow at most.
fn device_rates(answer: &OverviewAnswer, rate: f64, width: usize) -> Vec<Line<'static>> {
    let throughput = &answer.metrics.throughput;
    let device = answer.head.device;
    let hour = device_hour(device);
    let hours = number(answer.metrics.device_hours);
    let note = format!("{} scored in {hours} {hour}s", whole(throughput.scored));
    let mut lines = vec![figure(&format!("Trajectories per {hour}"), &number(Some(rate)), &note)];
    let ceilings = [
        ("measured".to_owned(), Some(rate)),
        (format!("{}-bound", device_name(device)), throughput.ceiling_device_bound),
        ("session-bound".to_owned(), throughput.ceiling_session_bound),
    ];
    let most = ceilings.iter().filter_map(|(_, value)| *value).fold(0.0, f64::max);
    for (name, value) in ceilings {
        lines.push(bar(&format!("  {name}"), value.unwrap_or(0.0) / most, &number(value), width));
    }
    lines
}

/// Trajectories per hour of a run whose policy uses no device.
fn slot_rates(metrics: &OverviewMetrics) -> Vec<Line<'static>> {
    let throughput = &metrics.throughput;
    let rate = number(throughput.trajectories_per_hour);
    let note = format!("{} scored in {}", whole(metrics.counts.scored), seconds(metrics.wall_seconds));
    let slots = number(throughput.trajectories_per_slot_hour);
    vec![
        figure("Trajectories per hour", &rate, &note),
        figure("… per slot-hour", &slots, "per hour of a slot, busy or empty"),
    ]
}

/// What the trajectories earned, how fast they step, and how many the farm failed.
fn results(metrics: &OverviewMetrics) -> Vec<Line<'static>> {
    let decided =
        |rates: &TrajectoryRates| format!("{} of {} decided", whole(rates.successes), whole(rates.judged));
    let training = &metrics.training;
    let mut lines = vec![figure("Success rate", &percent(training.success_rate), &decided(training))];
    let evaluated = &metrics.evaluated;
    if evaluated.trajectories > 0 {
        lines.push(figure("Success in evaluations", &percent(evaluated.success_rate), &decided(evaluated)));
    }
    lines.push(figure(
        "Mean reward",
        &number(training.reward_mean),
        &format!("of {} scored", whole(training.scored)),
    ));
    let counts = &metrics.counts;
    let speed = number(metrics.throughput.steps_per_second);
    let steps = format!("{} steps a trajectory", number(counts.steps_mean));
    lines.push(figure("Steps per second", &speed, &steps));
    let failed = format!("{} of {} attempts", whole(counts.failed), whole(counts.trajectories));
    lines.push(figure("Failed by the farm", &percent(counts.failure_rate), &failed));
    lines
}

/// The newest version that acted, and in a running job the one in use now.
fn policy_versions(answer: &OverviewAnswer) -> Vec<Line<'static>> {
    let versions = &answer.metrics.versions;
    let version = |version: Option<i32>| count(version.map(f64::from));
    let behind = match versions.staleness_mean {
        Some(mean) => {
            format!("{} behind on average, at most {}", number(Some(mean)), version(versions.staleness_max))
        }
        None => "no staleness is recorded".to_owned(),
    };
    let mut lines = vec![figure("Policy version", &version(versions.newest), &behind)];
    let live = answer.live.as_ref();
    if let Some(newest) = live.and_then(|live| live.version_newest) {
        let newest = i64::from(newest);
        let current = i64::from(live.and_then(|live| live.version).unwrap_or_default());
        lines.push(figure(
            "… in use now",
            &current.to_string(),
            &format!("{newest} is the newest published: lag {}", newest - current),
        ));
    }
    lines
}

fn token_rates(tokens: &TokenRates) -> Vec<Line<'static>> {
    let mut lines = vec![figure("Tokens", "a second", "in all")];
    for (kind, rate, all) in [
        ("generated", tokens.generated_per_second, tokens.generated),
        ("prefilled", tokens.prefilled_per_second, tokens.prefilled),
        ("reused", tokens.reused_per_second, tokens.reused),
    ] {
        lines.push(figure(&format!("  {kind}"), &number(rate), &whole(all)));
    }
    if let Some(share) = tokens.reused_share {
        lines.push(Line::from(quiet(&format!(
            "  {} of the context was still in the state",
            plain(&percent(Some(share)))
        ))));
    }
    lines
}

/// The progress of a job, and its time left.
fn progress(live: &LiveProgress, width: usize) -> Vec<Line<'static>> {
    let planned = live.groups_planned;
    let share = (planned > 0).then(|| f64::from(live.groups_closed) / f64::from(planned));
    let left = match (live.run_over, live.eta_seconds) {
        (true, _) => "over".to_owned(),
        (false, Some(left)) => format!("{} left", seconds(Some(left))),
        (false, None) => "measuring the time left".to_owned(),
    };
    let note = format!("{} of {} groups, {left}", whole(live.groups_closed), whole(planned));
    let trajectories = format!(
        "{} running, {} scored, {} failed, {} committed",
        whole(live.running),
        whole(live.scored),
        whole(live.failed),
        whole(live.published)
    );
    let mut lines = vec![bar("Groups closed", share.unwrap_or(0.0), &percent(share), width)];
    lines.extend([figure("", "", &note), figure("", "", &trajectories)]);
    if live.trajectories_per_hour.is_some() {
        let rate = number(live.trajectories_per_hour);
        lines.push(figure("… per hour, live", &rate, "scored since this start"));
    }
    if let Some(rate) = live.success_rate {
        let interval = format!(
            "[{}, {}] of {} decided so far",
            percent(Some(rate.low)),
            percent(Some(rate.high)),
            whole(live.judged)
        );
        lines.push(figure("Success rate, live", &percent(Some(rate.value)), &interval));
    }
    lines
}

fn time(snapshot: &RunSnapshot, width: usize) -> Vec<Line<'static>> {
    let device = device_name(snapshot.overview.head.device);
    let metrics = &snapshot.overview.metrics;
    let mut lines = Vec::new();
    let wholes: [(String, &[TimeShare]); 3] = [
        (format!("Where the {device}'s time went"), metrics.device_parts.as_deref().unwrap_or_default()),
        ("Where the sessions' time went".to_owned(), &metrics.session_parts),
        ("Use of the slots".to_owned(), metrics.slot_parts.as_deref().unwrap_or_default()),
    ];
    for (title, parts) in wholes {
        lines.push(Line::from(strong(title)));
        if parts.iter().all(|part| part.micros == 0) {
            lines.push(Line::from(quiet("  unknown")));
        }
        for part in parts.iter().filter(|part| part.micros > 0) {
            let note = format!(
                "{:>7} {:>12}",
                plain(&percent(Some(part.share))),
                plain(&duration(Some(part.micros as f64)))
            );
            let name = format!("  {}", spaced_name(&clean(&part.cause)));
            lines.push(bar(&name, part.share, &note, width));
        }
        lines.push(Line::default());
    }
    lines
}

fn sessions(snapshot: &RunSnapshot, width: usize) -> Vec<Line<'static>> {
    let Some(live) = &snapshot.overview.live else {
        return vec![Line::raw("Not running: no coordinator answers.")];
    };
    let listed = snapshot.sessions.as_ref().map(|answer| answer.sessions.as_slice()).unwrap_or_default();
    let acting = listed.iter().filter(|session| session.steps > 0).count();
    let ended = u64::from(live.scored) + u64::from(live.failed);
    let mut lines = vec![
        figure("begin", &(listed.len() - acting).to_string(), "leased, without a durable step"),
        figure("act", &acting.to_string(), "with a durable step"),
        figure("are scored", &live.scoring.to_string(), "ended, without a verdict yet"),
        figure(
            "wait for a shard",
            &ended.saturating_sub(live.published.into()).to_string(),
            "scored or failed, not committed yet",
        ),
        Line::default(),
    ];
    let row = |cells: [String; 5]| {
        let [task, steps, since, env, policy] = cells;
        let wide = width.saturating_sub(52).clamp(12, 48);
        format!(
            "{} {steps:>6} {since:>10}  {} {}",
            fit_columns(&task, wide),
            fit_columns(&env, 15),
            fit_columns(&policy, 15)
        )
    };
    let names = ["task", "steps", "for", "environment", "policy"].map(str::to_owned);
    lines.push(Line::from(quiet(&row(names))));
    // The longest-running first: stuck ones are among them.
    let mut listed: Vec<&RunningSession> = listed.iter().collect();
    listed.sort_by_key(|session| session.started_at);
    for session in listed {
        let since = snapshot.at_micros.saturating_sub(session.started_at).max(0);
        let cells = [
            clean(&session.task_id),
            whole(session.steps),
            duration(Some(since as f64)),
            clean(&session.env_worker),
            clean(&session.policy_worker),
        ];
        lines.push(Line::raw(row(cells.map(|cell| plain(&cell)))));
    }
    lines
}

fn ends(snapshot: &RunSnapshot, width: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for (title, status, none) in
        [("Ends of scored trajectories", "scored", "none yet"), ("Failures by kind", "failed", "none failed")]
    {
        lines.push(Line::from(strong(title)));
        let ends = snapshot.overview.metrics.ends.iter();
        let mut listed: Vec<&EndCount> = ends.filter(|end| end.status == status).collect();
        listed.sort_by_key(|end| std::cmp::Reverse(end.trajectories));
        let all: f64 = listed.iter().map(|end| end.trajectories as f64).sum();
        if listed.is_empty() {
            lines.push(Line::from(quiet(&format!("  {none}"))));
        }
        for end in listed {
            let share = end.trajectories as f64 / all;
            let note = format!("{:>9} {:>7}", plain(&whole(end.trajectories)), plain(&percent(Some(share))));
            lines.push(bar(&format!("  {}", spaced_name(&clean(&end.end))), share, &note, width));
        }
        lines.push(Line::default());
    }
    lines
}

fn workers(snapshot: &RunSnapshot, _width: usize) -> Vec<Line<'static>> {
    let Some(listed) = &snapshot.job.workers else {
        return vec![Line::raw("The workers are unknown: no coordinator answers.")];
    };
    if listed.is_empty() {
        return vec![Line::raw("No worker is registered.")];
    }
    let row = |cells: [String; 6]| {
        let [worker, role, sessions, heard, memory, version] = cells;
        format!(
            "{} {} {sessions:>11} {heard:>12} {memory:>10} {version:>8}",
            fit_columns(&worker, 24),
            fit_columns(&role, 12)
        )
    };
    let names = ["worker", "role", "sessions", "last heard", "memory", "version"].map(str::to_owned);
    let mut lines = vec![Line::from(quiet(&row(names)))];
    for worker in listed {
        let cells = [
            clean(&worker.worker),
            spaced_name(&clean(&worker.role)),
            format!("{} of {}", whole(worker.sessions), whole(worker.sessions_max)),
            format!("{} ago", seconds(Some(worker.heard_seconds))),
            bytes(worker.memory_bytes.map(|size| size as f64)),
            worker.version.map_or_else(|| NONE.to_owned(), |version| version.to_string()),
        ];
        lines.push(Line::raw(row(cells.map(|cell| plain(&cell)))));
        if let Some(why) = &worker.waits {
            lines.push(Line::from(quiet(&format!("  gets no sessions: {}", plain(&clean(why))))));
        }
    }
    lines
}

/// A name, a value, a note.
fn figure(name: &str, value: &str, note: &str) -> Line<'static> {
    Line::from(vec![
        Span::raw(fit_columns(name, NAME + 2)),
        strong(format!("{:>10}", plain(value))),
        quiet(&format!("   {}", plain(note))),
    ])
}

/// A name, a bar of a share, and its text. A bar has a resolution of an eighth of a column.
fn bar(name: &str, share: f64, note: &str, width: usize) -> Line<'static> {
    let note = plain(note);
    let bar_width = width.saturating_sub(NAME + 3 + note.chars().count().max(10)).clamp(8, BAR_MAX);
    let eighths = (share.clamp(0.0, 1.0) * bar_width as f64 * 8.0).round() as usize;
    let mut drawn = "█".repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        drawn.push(['▏', '▎', '▍', '▌', '▋', '▊', '▉'][eighths % 8 - 1]);
    }
    let rest = " ".repeat(bar_width - drawn.chars().count());
    let bar = Span::styled(drawn, Style::new().fg(Color::Green));
    Line::from(vec![
        Span::raw(fit_columns(name, NAME + 1)),
        bar,
        Span::raw(rest),
        strong(format!(" {note:>10}")),
    ])
}

/// A known count, with thin spaces.
fn whole(number: impl Into<u64>) -> String {
    count(Some(number.into() as f64))
}

/// Replaces thin spaces, which not every terminal has.
fn plain(text: &str) -> String {
    text.replace('\u{202f}', " ")
}

/// Exactly this many columns; longer text is cut.
fn fit_columns(text: &str, wide: usize) -> String {
    let mut out = String::new();
    let mut used = 0;
    let whole: usize = Span::raw(text).width();
    for letter in text.chars() {
        let columns = Span::raw(letter.to_string()).width();
        let limit = if whole > wide { wide - 1 } else { wide };
        if used + columns > limit {
            out.push('…');
            used += 1;
            break;
        }
        out.push(letter);
        used += columns;
    }
    out + &" ".repeat(wide.saturating_sub(used))
}

fn strong(text: impl Into<String>) -> Span<'static> {
    Span::styled(text.into(), Style::new().add_modifier(Modifier::BOLD))
}

fn quiet(text: &str) -> Span<'static> {
    Span::styled(text.to_owned(), Style::new().add_modifier(Modifier::DIM))
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::answers::{
        DeviceKind, JobAnswer, RateWithInterval, SessionsAnswer, Throughput, VersionRange, WorkerStatus,
    };
    use crate::format::is_control_character;

    /// The running GPU run of the example in docs/DASHBOARD.md.
    fn sample_snapshot() -> RunSnapshot {
        let head = PageHead {
            name: "night".into(),
            trajectories: 1234,
            device: DeviceKind::Gpu,
            ..PageHead::default()
        };
        let overview = OverviewAnswer { metrics: sample_metrics(), head, live: Some(sample_progress()) };
        let session = |task: &str, steps, started_at| RunningSession {
            task_id: task.into(),
            steps,
            started_at,
            env_worker: "env-0".into(),
            policy_worker: "policy-0".into(),
            ..RunningSession::default()
        };
        let hostile = "\u{1b}]0;pwned\u{7}\u{202e}\n<b>";
        let listed = vec![session("book-a-table", 4, 990_000_000), session(hostile, 0, 940_000_000)];
        let worker = WorkerStatus {
            worker: "env-0".into(),
            role: "env".into(),
            sessions: 3,
            sessions_max: 8,
            heard_seconds: 0.5,
            memory_bytes: Some(1_500_000_000),
            ..WorkerStatus::default()
        };
        RunSnapshot {
            overview,
            sessions: Some(SessionsAnswer { sessions: listed, ..SessionsAnswer::default() }),
            job: JobAnswer { workers: Some(vec![worker]), ..JobAnswer::default() },
            at_micros: 1_000_000_000,
        }
    }

    fn sample_progress() -> LiveProgress {
        LiveProgress {
            groups_planned: 500,
            groups_closed: 125,
            running: 3,
            scored: 480,
            failed: 7,
            published: 470,
            scoring: 2,
            admission: "open".into(),
            eta_seconds: Some(720.0),
            version: Some(4),
            version_newest: Some(5),
            judged: 120,
            success_rate: Some(RateWithInterval { low: 0.4119, high: 0.5881, value: 0.5 }),
            ..LiveProgress::default()
        }
    }

    fn sample_metrics() -> OverviewMetrics {
        let part = |cause: &str, micros, share| TimeShare {
            cause: cause.into(),
            micros,
            share,
            ..TimeShare::default()
        };
        let end = |end: &str, status: &str, trajectories| EndCount {
            end: end.into(),
            status: status.into(),
            trajectories,
        };
        OverviewMetrics {
            throughput: Throughput {
                scored: 30,
                trajectories_per_device_hour: Some(30.0),
                ceiling_device_bound: Some(45.0),
                ceiling_session_bound: Some(40.0),
                trajectories_per_slot_hour: Some(15.0),
                trajectories_per_hour: Some(60.0),
                steps_per_second: Some(2.5),
            },
            counts: TrajectoryRates {
                scored: 30,
                failed: 1,
                trajectories: 31,
                failure_rate: Some(1.0 / 31.0),
                steps_mean: Some(6.5),
                ..TrajectoryRates::default()
            },
            training: TrajectoryRates {
                success_rate: Some(2.0 / 3.0),
                successes: 20,
                judged: 30,
                reward_mean: Some(0.7),
                scored: 30,
                ..TrajectoryRates::default()
            },
            tokens: TokenRates {
                generated: 12_345,
                prefilled: 100,
                reused: 900,
                generated_per_second: Some(120.0),
                prefilled_per_second: Some(1.0),
                reused_per_second: Some(9.0),
                reused_share: Some(0.9),
            },
            versions: VersionRange {
                newest: Some(4),
                staleness_mean: Some(0.5),
                staleness_max: Some(2),
                ..VersionRange::default()
            },
            device_hours: Some(1.0),
            device_parts: Some(vec![
                part("decode", 1_800_000_000, 0.5),
                part("vision", 0, 0.0),
                part("no_work", 1_800_000_000, 0.5),
            ]),
            session_parts: vec![part("settle", 61_000_000, 1.0)],
            ends: vec![
                end("answered", "scored", 25),
                end("max_steps", "scored", 5),
                end("browser_dead", "failed", 1),
            ],
            cost_usd_per_trajectory: Some(0.1),
            cost_usd: Some(3.0),
            ..OverviewMetrics::default()
        }
    }

    fn text(lines: &[Line<'_>]) -> Vec<String> {
        lines.iter().map(|line| line.to_string().trim_end().to_owned()).collect()
    }

    #[test]
    fn the_overview_matches_the_page() {
        let full = "█".repeat(41);
        let want = [
            format!("Groups closed            {}▎{}     25.0 %", "█".repeat(10), " ".repeat(30)),
            "                                       125 of 500 groups, 12 min 0 s left".into(),
            "                                       3 running, 480 scored, 7 failed, 470 committed".into(),
            "Success rate, live            50.0 %   [41.2 %, 58.8 %] of 120 decided so far".into(),
            String::new(),
            "Trajectories per GPU-hour         30   30 scored in 1 GPU-hours".into(),
            format!("  measured               {}▍{}         30", "█".repeat(27), " ".repeat(13)),
            format!("  GPU-bound              {full}         45"),
            format!("  session-bound          {}▌{}         40", "█".repeat(36), " ".repeat(4)),
            "Success rate                  66.7 %   20 of 30 decided".into(),
            "Mean reward                    0.700   of 30 scored".into(),
            "Steps per second                2.50   6.50 steps a trajectory".into(),
            "Failed by the farm             3.2 %   1 of 31 attempts".into(),
            "Policy version                     4   0.500 behind on average, at most 2".into(),
            "… in use now                       4   5 is the newest published: lag 1".into(),
            "Cost of a trajectory          $0.100   $3.00 in all".into(),
            String::new(),
            "Tokens                      a second   in all".into(),
            "  generated                      120   12 345".into(),
            "  prefilled                        1   100".into(),
            "  reused                           9   900".into(),
            "  90.0 % of the context was still in the state".into(),
        ];
        assert_eq!(text(&overview(&sample_snapshot(), 78)), want);
    }

    #[test]
    fn time_and_ends_are_bars() {
        let lines = text(&time(&sample_snapshot(), 78));
        assert_eq!(lines[0], "Where the GPU's time went");
        assert!(
            lines[1].starts_with("  decode                 ███") && lines[1].ends_with("50.0 %   30 min 0 s"),
            "{lines:?}"
        );
        assert!(lines[2].starts_with("  no work "), "a part without time has no line: {lines:?}");
        assert_eq!(&lines[7..9], ["Use of the slots", "  unknown"]);
        let lines = text(&ends(&sample_snapshot(), 78));
        assert!(lines[1].starts_with("  answered ") && lines[1].ends_with("25  83.3 %"), "{lines:?}");
        assert!(lines[5].starts_with("  browser dead ") && lines[5].ends_with("1   100 %"), "{lines:?}");
    }

    #[test]
    fn sessions_are_listed_by_state_and_no_title_moves_the_cursor() {
        let lines = text(&sessions(&sample_snapshot(), 100));
        assert_eq!(
            lines[..4],
            [
                "begin                              1   leased, without a durable step",
                "act                                1   with a durable step",
                "are scored                         2   ended, without a verdict yet",
                "wait for a shard                  17   scored or failed, not committed yet",
            ]
        );
        assert!(
            lines[6].starts_with("\u{fffd}]0;pwned\u{fffd}\u{fffd}\u{fffd}<b> "),
            "the longest first: {lines:?}"
        );
        assert!(lines[6].contains("     0       60 s  env-0"), "{lines:?}");
        assert!(lines[7].starts_with("book-a-table "), "{lines:?}");
        let printed = sample_snapshot().lines(100).join("\n");
        assert!(printed.chars().all(|letter| letter == '\n' || !is_control_character(letter)), "{printed:?}");
    }

    #[test]
    fn workers_are_listed_with_their_state() {
        let lines = text(&workers(&sample_snapshot(), 100));
        assert_eq!(
            lines[1],
            "env-0                    env               3 of 8   500 ms ago    1.50 GB        –"
        );
        // The length of a long silence depends on the job's heartbeat, which is unknown here: no
        // worker is called silent.
        let mut long_ago = sample_snapshot();
        long_ago.job.workers.as_mut().unwrap()[0].heard_seconds = 3000.0;
        let lines = workers(&long_ago, 100);
        assert!(lines[1].to_string().contains("50 min 0 s ago"), "{lines:?}");
        let mut spans = lines.iter().flat_map(|line| &line.spans);
        assert!(
            spans.all(|span| span.style.fg.is_none()) && lines.iter().all(|line| line.style.fg.is_none())
        );
        let mut other = sample_snapshot();
        other.job.workers.as_mut().unwrap()[0].waits = Some("its file is torn\u{1b}[2J".into());
        assert_eq!(text(&workers(&other, 100))[2], "  gets no sessions: its file is torn\u{fffd}[2J");
        other.job.workers = Some(Vec::new());
        assert_eq!(text(&workers(&other, 100)), ["No worker is registered."]);
        other.job.workers = None;
        assert_eq!(text(&workers(&other, 100)), ["The workers are unknown: no coordinator answers."]);
    }

    #[test]
    fn missing_data_is_named_above_the_values() {
        assert_eq!(text(&missing(&sample_snapshot().overview.head)), [""; 0]);
        let head = PageHead {
            problems: vec!["steps-1.parquet\u{1b}c is damaged".into()],
            step_files_left: 2,
            left_out: 1500,
            ..PageHead::default()
        };
        assert_eq!(
            text(&missing(&head)),
            [
                "steps-1.parquet\u{fffd}c is damaged",
                "Metrics over steps are incomplete: 2 files are still being read.",
                "1 500 trajectories exceed the table; the metrics count them.",
                ""
            ]
        );
    }

    #[test]
    fn names_fill_their_columns() {
        let check = |name: &str, want: &str| assert_eq!(fit_columns(name, 6), want);
        check("abc", "abc   ");
        check("abcdef", "abcdef");
        check("abcdefg", "abcde…");
        check("数数数数", "数数… "); // two columns each
    }

    /// The lines of the rendered screen.
    fn render(screen: &mut TerminalScreen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line =
            |y: u16| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(line).collect()
    }

    #[test]
    fn keys_choose_pages_and_scroll() {
        let mut screen = TerminalScreen::default();
        assert_eq!(render(&mut screen, 60, 8)[2], " Reading…");
        screen.update(Ok(sample_snapshot()));
        let first = render(&mut screen, 80, 10);
        assert_eq!(
            first[0],
            " night   running   1 234 trajectories committed".replace("1 234", "1\u{202f}234")
        );
        assert!(first[1].contains("1 Overview") && first[1].contains("5 Workers"), "{first:?}");
        assert!(first[2].starts_with(" Groups closed "), "{first:?}");
        assert!(first[9].contains("q quit"), "{first:?}");
        screen.apply(UserCommand::Scroll(3));
        assert!(render(&mut screen, 80, 10)[2].starts_with(" Success rate, live"));
        screen.apply(UserCommand::Edge(true));
        assert!(render(&mut screen, 80, 10)[8].contains("still in the state"));
        screen.apply(UserCommand::Scroll(1000));
        assert!(render(&mut screen, 80, 10)[8].contains("still in the state"), "scrolling stops at the end");
        screen.apply(UserCommand::Turn(-1));
        assert!(
            render(&mut screen, 80, 10)[2].starts_with(" worker "),
            "from the last page to the first, from the top"
        );
        screen.apply(UserCommand::Page(2));
        assert!(render(&mut screen, 80, 10)[2].starts_with(" begin "));
        screen.apply(UserCommand::Page(9));
        assert!(render(&mut screen, 80, 10)[2].starts_with(" begin "), "there is no such page");
        // The last snapshot stays while there is no newer one.
        screen.update(Err(WatchError::Silent { host: "there".into(), why: "gone".into() }));
        let lost = render(&mut screen, 80, 10);
        assert!(lost[9].contains("does not answer: gone") && lost[2].starts_with(" begin "), "{lost:?}");
        for (width, height) in [(1, 1), (3, 2), (20, 4), (300, 80)] {
            render(&mut screen, width, height);
        }
    }
}
