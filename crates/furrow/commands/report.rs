//! `furrow report`: how well a policy did over a data set, with intervals, beside what the farm failed at; and a page of figures and
//! plots that needs nothing else, over one run or several side by side.

mod pictures;

use std::path::{Path, PathBuf};

use clap::Args;
use furrow_dashboard::{REPORT_RUNS_MAX, ReportTable, RunFigures, report_html, report_pictures};
use furrow_records::{
    By, Estimate, Evaluation, EvaluationLine, Method, PassAtK, Question, RESAMPLES, VersionLine, evaluate,
};
use furrow_rollout::Split;

use super::view::subject;
use crate::{Failure, launch, output};

/// Which data sets, and what is asked of them.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Run directories; several are set side by side
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Only tasks of this split: train, validation, test or eval; for the tables of rates, the plots are of everything
    #[arg(long)]
    split: Option<String>,
    /// The k of pass@k, such as 1,5,10; left out: 1, 2, 4, … up to the most attempts at one problem
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    k: Vec<u64>,
    /// Seed of the bootstrap
    #[arg(long, default_value_t = furrow_records::BOOTSTRAP_SEED)]
    seed: u64,
    /// Where the page goes; left out: report.html in the run directory, of several in that of the first
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write each plot as a PNG, too, into a folder beside the page; a Chromium draws them
    #[arg(long)]
    png: bool,
    /// The Chromium for --png; left out: the one that collecting uses
    #[arg(long, value_name = "FILE", requires = "png")]
    browser: Option<PathBuf>,
    /// Price of an hour of a device in US dollars, for the cost of a trajectory
    #[arg(long, value_name = "USD")]
    usd_per_device_hour: Option<f64>,
    /// Print JSON, an array where several runs are named, and write no page but where --html says
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &ReportArgs) -> Result<(), Failure> {
    let question = args.check()?;
    let evaluations: Vec<Evaluation> =
        args.runs.iter().map(|dir| evaluate(dir, &question)).collect::<Result<_, _>>()?;
    if args.json {
        match evaluations.as_slice() {
            [one] => output::json(one)?,
            several => output::json(&several)?,
        }
    } else {
        print(args, &evaluations);
    }
    if args.json && args.html.is_none() && !args.png {
        return Ok(());
    }
    write(args, &evaluations)
}

impl ReportArgs {
    fn check(&self) -> Result<Question, Failure> {
        let mut problems = Vec::new();
        let split = self.split.clone().unwrap_or_default();
        if !split.is_empty() && Split::parse(&split).is_none() {
            problems.push(format!("--split: {split:?}; use train, validation, test or eval"));
        }
        if self.runs.len() > REPORT_RUNS_MAX {
            problems.push(format!("{} runs; name 1 to {REPORT_RUNS_MAX}", self.runs.len()));
        }
        if let Some(price) = self.usd_per_device_hour.filter(|price| !(0.0..=1e6).contains(price)) {
            problems.push(format!("--usd-per-device-hour: {price}; use 0 (not known) to 1000000"));
        }
        let question = Question { split, k: self.k.clone(), seed: self.seed };
        if problems.is_empty() { Ok(question) } else { Err(Failure::Input(problems)) }
    }

    /// Where the page goes.
    fn page(&self) -> PathBuf {
        self.html.clone().unwrap_or_else(|| self.runs[0].join("report.html"))
    }
}

fn print(args: &ReportArgs, evaluations: &[Evaluation]) {
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

/// Writes the page and, where they are asked for, the pictures of its plots.
fn write(args: &ReportArgs, evaluations: &[Evaluation]) -> Result<(), Failure> {
    let price = args.usd_per_device_hour.filter(|price| *price > 0.0);
    let read = |(dir, evaluation): (&PathBuf, &Evaluation)| -> anyhow::Result<RunFigures> {
        let read = RunFigures::read(subject(dir, price))?;
        Ok(tables(evaluation).into_iter().fold(read, RunFigures::with))
    };
    let figures = args.runs.iter().zip(evaluations).map(read);
    let figures: Vec<RunFigures> = figures.collect::<anyhow::Result<_>>()?;
    let page = args.page();
    let told = |why: std::io::Error| {
        anyhow::anyhow!("{} cannot be written ({why}); name another place with --html FILE", page.display())
    };
    write_whole(&page, report_html(&figures).as_bytes()).map_err(told)?;
    output::aside(format!("report: {}", page.display()));
    if args.png {
        let folder = page.with_extension("");
        let browser = pictures::browser(args.browser.as_deref())?;
        std::fs::create_dir_all(&folder)?;
        let runtime = launch::runtime()?;
        for picture in report_pictures(&figures) {
            let bytes = runtime.block_on(pictures::draw(&browser, &picture))?;
            write_whole(&folder.join(picture.name).with_extension("png"), &bytes)?;
        }
        output::aside(format!("pictures: {}", folder.display()));
    }
    Ok(())
}

/// Under a temporary name first, so that nobody opens half a file.
fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let unfinished = path.with_extension("unfinished");
    std::fs::write(&unfinished, bytes)?;
    std::fs::rename(&unfinished, path)
}

/// Rates with their intervals, and what must be said beside them.
fn tables(evaluation: &Evaluation) -> Vec<ReportTable> {
    let ks = ks(evaluation);
    let header = ["tasks of", "variant", "tasks", "scored", "failed", "lost", "success", "reward"];
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

fn ks(evaluation: &Evaluation) -> Vec<u64> {
    let all = evaluation.lines.iter().find(|line| line.by == By::All);
    all.map_or_else(Vec::new, |line| line.pass.iter().map(|pass| pass.k).collect())
}

fn row(line: &EvaluationLine, ks: &[u64]) -> Vec<String> {
    let named = match line.by {
        By::All => "everything".to_owned(),
        By::Suite => line.suite.clone(),
        By::Site | By::Difficulty => format!("{}: {}", line.suite, line.name),
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
        mean(line.reward.as_ref()),
    ];
    let pass_at = |k: &u64| line.pass.iter().find(|pass| pass.k == *k);
    cells.extend(ks.iter().map(|k| rate(pass_at(k).map(|PassAtK { estimate, .. }| estimate))));
    cells
}

fn rate(estimate: Option<&Estimate>) -> String {
    let Some(Estimate { value, interval }) = estimate else { return "–".to_owned() };
    let percent = |share: f64| format!("{:.1}", share * 100.0);
    match interval {
        Some(interval) => {
            format!("{} % [{}, {}]", percent(*value), percent(interval.low), percent(interval.high))
        }
        None => format!("{} %", percent(*value)),
    }
}

fn mean(estimate: Option<&Estimate>) -> String {
    let Some(Estimate { value, interval }) = estimate else { return "–".to_owned() };
    match interval {
        Some(interval) => format!("{value:.3} [{:.3}, {:.3}]", interval.low, interval.high),
        None => format!("{value:.3}"),
    }
}

/// What must be said beside the rates.
fn notes(evaluation: &Evaluation) -> Vec<String> {
    let mut notes = Vec::new();
    let policy = &evaluation.policy;
    let kinds: Vec<&str> = policy.kinds.iter().map(String::as_str).collect();
    let versions = match policy.versions {
        Some((oldest, newest)) if oldest == newest => format!(", version {oldest}"),
        Some((oldest, newest)) => format!(", versions {oldest} to {newest}"),
        None => String::new(),
    };
    notes.push(format!(
        "policy: {}{versions}; commit {} of the manifest",
        kinds.join(", "),
        evaluation.version
    ));
    if !policy.is_fixed {
        notes.push(
            "the policy changed while this was collected: the rates are those of no one policy".to_owned(),
        );
    }
    let Some(all) = evaluation.lines.iter().find(|line| line.by == By::All) else { return notes };
    if !all.failed.is_empty() {
        let ends: Vec<String> = all.failed.iter().map(|(end, count)| format!("{count} {end}")).collect();
        notes.push(format!(
            "failed by the farm's fault, in no rate: {}; {} slots have no reward at all",
            ends.join(", "),
            all.lost_slots
        ));
    }
    if all.judged < all.scored {
        notes.push(format!(
            "{} attempts have a reward and no verdict: they are in no success rate",
            all.scored - all.judged
        ));
    }
    let used = |method| {
        let estimates =
            all.success.iter().chain(&all.reward).chain(all.pass.iter().map(|pass| &pass.estimate));
        estimates.filter_map(|estimate| estimate.interval).any(|interval| interval.method == method)
    };
    let bootstrap = format!("a bootstrap over tasks ({RESAMPLES} resamples)");
    let told = [
        (Method::Wilson, "Wilson's where each task was tried once"),
        (Method::BootstrapByTask, &*bootstrap),
        (Method::WilsonByTask, "Wilson's with one trial a task where all came out alike"),
    ];
    let told: Vec<&str> =
        told.into_iter().filter(|(method, _)| used(*method)).map(|(_, told)| told).collect();
    if !told.is_empty() {
        notes.push(format!("[95 % intervals]: {}", told.join("; ")));
    }
    notes
}
