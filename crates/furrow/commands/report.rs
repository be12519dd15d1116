//! `furrow report`: how well a policy did over a data set, with intervals, beside what the farm failed at.

use std::path::PathBuf;

use clap::Args;
use furrow_records::{
    By, Estimate, Evaluation, EvaluationLine, Method, PassAtK, Question, RESAMPLES, VersionLine, evaluate,
};
use furrow_rollout::Split;

use crate::{Failure, output};

/// Which data set, and what is asked of it.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Run directory
    dir: PathBuf,
    /// Only tasks of this split: train, validation, test or eval
    #[arg(long)]
    split: Option<String>,
    /// The k of pass@k, such as 1,5,10; left out: 1, 2, 4, … up to the most attempts at one problem
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    k: Vec<u64>,
    /// Seed of the bootstrap
    #[arg(long, default_value_t = furrow_records::BOOTSTRAP_SEED)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &ReportArgs) -> Result<(), Failure> {
    let split = args.split.clone().unwrap_or_default();
    if !split.is_empty() && Split::parse(&split).is_none() {
        return Err(Failure::Input(vec![format!("--split: {split:?}; use train, validation, test or eval")]));
    }
    let question = Question { split, k: args.k.clone(), seed: args.seed };
    let evaluation = evaluate(&args.dir, &question)?;
    if args.json {
        return Ok(output::json(&evaluation)?);
    }
    print(&evaluation);
    Ok(())
}

fn print(evaluation: &Evaluation) {
    let ks = ks(evaluation);
    let header = ["tasks of", "variant", "tasks", "scored", "failed", "lost", "success", "reward"];
    let passes: Vec<String> = ks.iter().map(|k| format!("pass@{k}")).collect();
    let header: Vec<&str> = header.into_iter().chain(passes.iter().map(String::as_str)).collect();
    output::table(&header, &evaluation.lines.iter().map(|line| row(line, &ks)).collect::<Vec<_>>());
    if !evaluation.versions.is_empty() {
        output::line("");
        let rows = evaluation.versions.iter().map(|VersionLine { version, line }| {
            let named =
                version.map_or_else(|| "no version".to_owned(), |version| format!("version {version}"));
            [vec![named], row(line, &ks).split_off(1)].concat()
        });
        let header: Vec<&str> = ["evaluation of"].into_iter().chain(header.into_iter().skip(1)).collect();
        output::table(&header, &rows.collect::<Vec<_>>());
    }
    for note in notes(evaluation) {
        output::line(note);
    }
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
    let mut notes = vec![String::new()];
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
