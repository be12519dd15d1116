//! `furrow report`: success rates of a policy with intervals, beside the failures of the farm, and
//! a self-contained page of metrics and plots over one run or several side by side.

mod pictures;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use furrow_analysis::{
    Estimate, EvaluationLine, EvaluationQuery, EvaluationReport, FailureReason, IntervalMethod, LineGrouping,
    MixedSuite, PassAtK, RESAMPLES, RunComparison, VersionLine, compare_runs, evaluate,
};
use furrow_dashboard::{
    DashboardSubject, REPORT_RUNS_MAX, ReportTable, RunMetrics, comparison_sentence, report_html,
    report_pictures,
};
use furrow_rollout::Split;

use super::view::subject;
use crate::job::shared;
use crate::{CommandFailure, launch, output, whole_file};

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Run directories; several are compared side by side
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Limit the tables of rates to tasks of this split: train, validation, test or eval; plots
    /// always cover all tasks
    #[arg(long)]
    split: Option<String>,
    /// Limit the tables of rates to suites whose version begins with these digits; the report names
    /// the versions of a suite where it has several
    #[arg(long, value_name = "DIGITS")]
    suite_version: Option<String>,
    /// Values of k for pass@k, such as 1,5,10 [default: 1, 2, 4, … up to the most attempts at one
    /// problem]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    k: Vec<u64>,
    /// Seed of the bootstrap that computes the intervals
    #[arg(long, default_value_t = furrow_analysis::BOOTSTRAP_SEED)]
    seed: u64,
    /// File to write the page to [default: report.html in the first run directory]
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Also write each plot as a PNG into a directory beside the page; needs a Chromium
    #[arg(long)]
    png: bool,
    /// Chromium for --png [default: the one that environment workers find]
    #[arg(long, value_name = "FILE", requires = "png")]
    browser: Option<PathBuf>,
    /// Price of a device-hour in US dollars, to report the cost of a trajectory
    #[arg(long, value_name = "USD")]
    usd_per_device_hour: Option<f64>,
    /// Print JSON, an array for several runs; writes a page only with --html
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &ReportArgs) -> Result<(), CommandFailure> {
    let question = args.check()?;
    let evaluations: Vec<EvaluationReport> =
        args.runs.iter().map(|dir| evaluate(dir, &question)).collect::<Result<_, _>>()?;
    let comparisons = compare(args, &question)?;
    if args.json {
        match evaluations.as_slice() {
            [one] => output::json(one)?,
            several => output::json(&several)?,
        }
    } else {
        print(args, &evaluations);
        for (dir, found) in &comparisons {
            let [first, second] = [&args.runs[0], dir].map(|dir| dir.display().to_string());
            output::line(comparison_sentence(&first, &second, found));
        }
    }
    if args.json && args.html.is_none() && !args.png {
        return Ok(());
    }
    write(args, &evaluations, &comparisons)
}

/// Each run after the first against it.
fn compare(
    args: &ReportArgs,
    question: &EvaluationQuery,
) -> Result<BTreeMap<PathBuf, RunComparison>, CommandFailure> {
    let [first, others @ ..] = args.runs.as_slice() else { return Ok(BTreeMap::new()) };
    let of = |dir: &PathBuf| Ok((dir.clone(), compare_runs(first, dir, question)?));
    others.iter().map(of).collect()
}

impl ReportArgs {
    fn check(&self) -> Result<EvaluationQuery, CommandFailure> {
        let mut problems = Vec::new();
        let split = self.split.clone().unwrap_or_default();
        if !split.is_empty() && Split::parse(&split).is_none() {
            problems.push(format!("--split: {split:?}; use train, validation, test or eval"));
        }
        if self.runs.len() > REPORT_RUNS_MAX {
            problems.push(format!("RUN: {} run directories; use 1 to {REPORT_RUNS_MAX}", self.runs.len()));
        }
        if let Some(price) = self.usd_per_device_hour.filter(|price| !(0.0..=1e6).contains(price)) {
            problems.push(format!("--usd-per-device-hour: {price}; use 0 (unknown) to 1000000"));
        }
        let question = EvaluationQuery {
            split,
            suite_version: self.suite_version.clone().unwrap_or_default(),
            k: self.k.clone(),
            seed: self.seed,
        };
        if problems.is_empty() { Ok(question) } else { Err(CommandFailure::Input(problems)) }
    }

    /// The path of the page.
    fn page(&self) -> PathBuf {
        self.html.clone().unwrap_or_else(|| self.runs[0].join("report.html"))
    }
}

fn print(args: &ReportArgs, evaluations: &[EvaluationReport]) {
    for (dir, evaluation) in args.runs.iter().zip(evaluations) {
        if evaluations.len() > 1 {
            output::line(format!("{}:", dir.display()));
        }
        for table in tables(evaluation) {
            let header: Vec<&str> = table.header.iter().map(String::as_str).collect();
            output::table(&header, &table.rows);
            output::line("");
            table.notes.iter().for_each(output::line);
        }
    }
}

/// Writes the page and, with `--png`, the pictures of its plots.
fn write(
    args: &ReportArgs,
    evaluations: &[EvaluationReport],
    comparisons: &BTreeMap<PathBuf, RunComparison>,
) -> Result<(), CommandFailure> {
    let price = args.usd_per_device_hour.filter(|price| *price > 0.0);
    let read = |(dir, evaluation): (&PathBuf, &EvaluationReport)| -> anyhow::Result<RunMetrics> {
        let subject = subject(dir, price);
        // The page is made to be passed on.
        let job = subject.job.as_deref().and_then(|job| shared::text(job).ok());
        let read = RunMetrics::read(DashboardSubject { job, ..subject })?;
        let read = match comparisons.get(dir) {
            Some(found) => read.compared(found),
            None => read,
        };
        Ok(tables(evaluation).into_iter().fold(read, RunMetrics::with))
    };
    let figures = args.runs.iter().zip(evaluations).map(read);
    let figures: Vec<RunMetrics> = figures.collect::<anyhow::Result<_>>()?;
    let page = args.page();
    let write_failure = |why: std::io::Error| {
        anyhow::anyhow!("cannot write {} ({why}); use another path with --html FILE", page.display())
    };
    whole_file::write(&page, report_html(&figures).as_bytes()).map_err(write_failure)?;
    output::progress_line(format!("report: {}", page.display()));
    if args.png {
        let folder = page.with_extension("");
        let browser = pictures::browser(args.browser.as_deref())?;
        std::fs::create_dir_all(&folder)?;
        let runtime = launch::runtime()?;
        for picture in report_pictures(&figures) {
            let bytes = runtime.block_on(pictures::draw(&browser, &picture))?;
            whole_file::write(&folder.join(picture.name).with_extension("png"), &bytes)?;
        }
        output::progress_line(format!("pictures: {}", folder.display()));
    }
    Ok(())
}

/// Rates with their intervals, and the notes they need.
fn tables(evaluation: &EvaluationReport) -> Vec<ReportTable> {
    let ks = ks(evaluation);
    let header =
        ["tasks of", "variant", "tasks", "scored", "failed", "lost", "success", "lost as 0", "reward"];
    let passes = ks.iter().map(|k| format!("pass@{k}"));
    let header: Vec<String> = header.into_iter().map(str::to_owned).chain(passes).collect();
    let rows = evaluation.lines.iter().map(|line| row(line, &ks)).collect();
    let mut tables = vec![ReportTable {
        title: "Rates with their intervals".to_owned(),
        header: header.clone(),
        rows,
        notes: Vec::new(),
    }];
    if !evaluation.versions.is_empty() {
        let rows = evaluation.versions.iter().map(|VersionLine { version, line }| {
            let named =
                version.map_or_else(|| "no version".to_owned(), |version| format!("version {version}"));
            [vec![named], row(line, &ks).split_off(1)].concat()
        });
        let header = ["evaluation of".to_owned()].into_iter().chain(header.into_iter().skip(1)).collect();
        let title = "Evaluations by version".to_owned();
        tables.push(ReportTable { title, header, rows: rows.collect(), notes: Vec::new() });
    }
    if let Some(last) = tables.last_mut() {
        last.notes = notes(evaluation);
    }
    tables
}

fn ks(evaluation: &EvaluationReport) -> Vec<u64> {
    let all = evaluation.lines.iter().find(|line| line.by == LineGrouping::All);
    all.map_or_else(Vec::new, |line| line.pass.iter().map(|pass| pass.k).collect())
}

fn row(line: &EvaluationLine, ks: &[u64]) -> Vec<String> {
    let named = match line.by {
        LineGrouping::All => "everything".to_owned(),
        LineGrouping::Suite => line.suite.clone(),
        LineGrouping::Site | LineGrouping::Difficulty => format!("{}: {}", line.suite, line.name),
    };
    let failed: u64 = line.failed.values().sum();
    let mut cells = vec![
        named,
        line.variant.clone(),
        line.tasks.to_string(),
        line.scored.to_string(),
        failed.to_string(),
        line.lost_slots.to_string(),
        rate(line.success.as_ref()),
        line.success_lost_as_zero.map_or_else(|| "–".to_owned(), |share| format!("{} %", percent(share))),
        mean(line.reward.as_ref()),
    ];
    let pass_at = |k: &u64| line.pass.iter().find(|pass| pass.k == *k);
    cells.extend(ks.iter().map(|k| rate(pass_at(k).map(|PassAtK { estimate, .. }| estimate))));
    cells
}

fn rate(estimate: Option<&Estimate>) -> String {
    let Some(Estimate { value, interval }) = estimate else { return "–".to_owned() };
    match interval {
        Some(interval) => {
            format!("{} % [{}, {}]", percent(*value), percent(interval.low), percent(interval.high))
        }
        None => format!("{} %", percent(*value)),
    }
}

fn percent(share: f64) -> String {
    format!("{:.1}", share * 100.0)
}

fn mean(estimate: Option<&Estimate>) -> String {
    let Some(Estimate { value, interval }) = estimate else { return "–".to_owned() };
    match interval {
        Some(interval) => format!("{value:.3} [{:.3}, {:.3}]", interval.low, interval.high),
        None => format!("{value:.3}"),
    }
}

/// Share of failed attempts from which on the rate is doubted, though each was tried again.
const FAILED_SHARE_MAX: f64 = 0.02;

/// A warning where failures of the farm raise the rate: a policy that can bring them about would be
/// paid for it.
fn unscored_warning(all: &EvaluationLine) -> Option<String> {
    let success = all.success?.value;
    let lost = all.success_lost_as_zero?;
    let failed = all.success_failed_as_zero?;
    let failures: u64 = all.failed.values().sum();
    let share = failures as f64 / (all.scored + failures) as f64;
    (lost < success || (failed < success && share > FAILED_SHARE_MAX)).then(|| {
        format!(
            "warning: unscored attempts raise the success rate of {} %; it is {} % with every lost slot as 0, \
             and {} % with every failed attempt as 0; see what the failures have in common before you compare",
            percent(success),
            percent(lost),
            percent(failed)
        )
    })
}

fn mixed_note(MixedSuite { suite, versions }: &MixedSuite) -> String {
    let versions: Vec<String> =
        versions.iter().map(|(version, attempts)| format!("{version} ({attempts} attempts)")).collect();
    format!(
        "suite {suite} has several versions, which no rate mixes: {}; choose one with --suite-version",
        versions.join(", ")
    )
}

/// The notes that the rates need.
fn notes(evaluation: &EvaluationReport) -> Vec<String> {
    let mut notes = Vec::new();
    let policy = &evaluation.policy;
    if evaluation.expired > 0 {
        notes.push(format!(
            "rows of this data set have expired: {} trajectories are in no rate",
            evaluation.expired
        ));
    }
    if policy.kinds.is_empty() {
        notes.push(format!("no trajectory is selected; manifest commit {}", evaluation.version));
        return notes;
    }
    notes.extend(evaluation.mixed_suites.iter().map(mixed_note));
    let kinds: Vec<&str> = policy.kinds.iter().map(String::as_str).collect();
    let versions = match policy.versions {
        Some((oldest, newest)) if oldest == newest => format!(", version {oldest}"),
        Some((oldest, newest)) => format!(", versions {oldest} to {newest}"),
        None => String::new(),
    };
    notes.push(format!("policy: {}{versions}; manifest commit {}", kinds.join(", "), evaluation.version));
    if !policy.is_fixed {
        notes.push("the policy changed during the run: the rates mix its versions".to_owned());
    }
    let Some(all) = evaluation.lines.iter().find(|line| line.by == LineGrouping::All) else { return notes };
    if !all.failed.is_empty() {
        let ends: Vec<String> = all.failed.iter().map(|(end, count)| format!("{count} {end}")).collect();
        notes.push(format!(
            "failed by a fault of the farm, in no rate: {}; {} slots have no reward",
            ends.join(", "),
            all.lost_slots
        ));
        notes.extend(unscored_warning(all));
        let reasons = evaluation.failure_reasons.iter();
        notes.extend(reasons.map(|FailureReason { end, reason, count }| {
            format!("{count} of them {end}: {}", furrow_dashboard::clean(reason))
        }));
    }
    if all.success_known < all.scored {
        notes.push(format!(
            "{} attempts have a reward and no verdict: no success rate counts them",
            all.scored - all.success_known
        ));
    }
    let used = |method| {
        let estimates =
            all.success.iter().chain(&all.reward).chain(all.pass.iter().map(|pass| &pass.estimate));
        estimates.filter_map(|estimate| estimate.interval).any(|interval| interval.method == method)
    };
    let bootstrap = format!("a bootstrap over tasks ({RESAMPLES} resamples)");
    let explanations = [
        (IntervalMethod::Wilson, "Wilson's where each task has one attempt"),
        (IntervalMethod::BootstrapByTask, &*bootstrap),
        (
            IntervalMethod::WilsonByTask,
            "Wilson's with one trial per task where all attempts have the same result",
        ),
    ];
    let explanations: Vec<&str> = explanations
        .into_iter()
        .filter(|(method, _)| used(*method))
        .map(|(_, explanations)| explanations)
        .collect();
    if !explanations.is_empty() {
        notes.push(format!("[95 % intervals]: {}", explanations.join("; ")));
    }
    notes
}
