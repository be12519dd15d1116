//! `furrow records`: inspects a data set, verifies that it can be trusted, exports from it.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use furrow_analysis::{DataSetSummary, RewardLine, ShardGap, inspect, kept};
use furrow_records::{ExpiredCounts, LogprobGap, RuleBreach, VerifyCounts, VerifyReport, verify};

use super::export::{self, ExportArgs};
use crate::{CommandFailure, output};

#[derive(Debug, Subcommand)]
pub(crate) enum RecordsCommand {
    /// Print what was collected: rewards by task, ends, sizes, where the time went
    Inspect(DirArgs),
    /// Print what a trainer would keep and leave out, by suite, difficulty and length, to detect a
    /// bias
    Kept(KeptArgs),
    /// Verify a data set: rebuild every prompt and hash, and check every row against the promises
    /// of docs/DATASET.md
    Verify(DirArgs),
    /// Write one trajectory to a file that shows it without Furrow: an HTML page, an animated GIF
    Export(ExportArgs),
}

#[derive(Debug, Args)]
pub(crate) struct DirArgs {
    /// Run directory whose data set is read: the one that holds data/
    dir: PathBuf,
    /// Print the result as one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

/// The data set, and the limit on staleness.
#[derive(Debug, Args)]
pub(crate) struct KeptArgs {
    #[command(flatten)]
    data_set: DirArgs,
    /// Leave out trajectories that end more than this many policy versions behind [default: leave
    /// out none]
    #[arg(long, value_name = "VERSIONS")]
    max_off_policy_versions: Option<i32>,
}

pub(crate) fn run(command: &RecordsCommand) -> Result<(), CommandFailure> {
    match command {
        RecordsCommand::Inspect(args) => inspect_dir(args),
        RecordsCommand::Kept(args) => print_kept(args),
        RecordsCommand::Verify(args) => verify_dir(args),
        RecordsCommand::Export(args) => export::run(args),
    }
}

fn inspect_dir(args: &DirArgs) -> Result<(), CommandFailure> {
    let summary = inspect(&args.dir)?;
    if args.json {
        output::json(&summary)?;
    } else {
        print(&summary);
    }
    Ok(())
}

fn print_kept(args: &KeptArgs) -> Result<(), CommandFailure> {
    let report = kept(&args.data_set.dir, args.max_off_policy_versions)?;
    if args.data_set.json {
        return Ok(output::json(&report)?);
    }
    let mean = |mean: Option<f64>| mean.map_or("–".to_owned(), |mean| format!("{mean:.3}"));
    let rows = report.lines.iter().map(|line| {
        let failed: u64 = line.failed.values().sum();
        let share = (line.trajectories > 0).then(|| line.kept as f64 / line.trajectories as f64);
        vec![
            format!("{} {}", line.by, line.value),
            line.trajectories.to_string(),
            line.kept.to_string(),
            output::percent(share),
            failed.to_string(),
            line.stale.to_string(),
            line.zero_variance.to_string(),
            mean(line.reward_mean_scored),
            mean(line.reward_mean_kept),
        ]
    });
    let header = [
        "subset",
        "attempts",
        "kept",
        "share",
        "failed",
        "stale",
        "no spread",
        "reward, scored",
        "reward, kept",
    ];
    output::table(&header, &rows.collect::<Vec<_>>());
    Ok(())
}

fn print(summary: &DataSetSummary) {
    let rewards: Vec<Vec<String>> = summary.tasks.iter().chain(&summary.suites).map(reward_row).collect();
    output::table(&["task", "policy", "scored", "failed", "reward", "success"], &rewards);
    output::line("");
    let ends = summary
        .ends
        .iter()
        .map(|end| vec![end.end.clone(), end.status.clone(), end.trajectories.to_string()]);
    output::table(&["end", "status", "trajectories"], &ends.collect::<Vec<_>>());
    output::line("");
    let tables = summary.tables.iter().map(|table| {
        vec![
            table.table.as_str().to_owned(),
            table.files.to_string(),
            table.rows.to_string(),
            output::bytes(table.bytes),
        ]
    });
    output::table(&["table", "files", "rows", "size"], &tables.collect::<Vec<_>>());
    let expired = summary.tables.iter().filter(|table| table.expired > 0);
    let expired: Vec<String> = expired.map(|table| format!("{} {}", table.expired, table.table)).collect();
    if !expired.is_empty() {
        output::line(format!("\nrows of this data set have expired: {}", expired.join(", ")));
    }
    let shares = summary.timing.iter().filter(|line| line.micros > 0);
    let shares: Vec<String> =
        shares.map(|line| format!("{} {}", line.cause, output::percent(Some(line.share)))).collect();
    output::line(format!("\ntime of the trajectories by cause: {}", shares.join(", ")));
    for ShardGap { path, gap: LogprobGap { tokens, mean_abs, p50, p99, max } } in &summary.prefill_gaps {
        output::line(format!(
            "{path}: log-probs of {tokens} tokens recomputed, gap mean {mean_abs:.2e}, p50 {p50:.2e}, p99 {p99:.2e}, max {max:.2e} nats"
        ));
    }
}

fn reward_row(line: &RewardLine) -> Vec<String> {
    let task = match &line.task_id {
        Some(task) => format!("{}/{task}", line.suite),
        None => format!("{} (all)", line.suite),
    };
    vec![
        task,
        line.policy_kind.clone(),
        line.scored.to_string(),
        line.failed.to_string(),
        line.reward_mean.map_or("–".into(), |mean| format!("{mean:.2}")),
        output::percent(line.success_rate),
    ]
}

fn verify_dir(args: &DirArgs) -> Result<(), CommandFailure> {
    let report = verify(&args.dir)?;
    if args.json {
        output::json(&report)?;
    } else {
        print_report(&report);
    }
    if report.is_sound() {
        Ok(())
    } else {
        Err(anyhow::anyhow!("{}: {} breaches", args.dir.display(), report.breaches_total).into())
    }
}

fn print_report(report: &VerifyReport) {
    for breach in &report.breaches {
        output::line(format!("BREACH {}: {}", location(breach), breach.what));
    }
    for warning in &report.warnings {
        output::line(format!("warning: {}: {}", warning.about, warning.what));
    }
    report.expired.iter().for_each(|expired| output::line(expired_sentence(expired)));
    output::line(checked(&report.counts, report.breaches_total));
}

/// What is missing and no breach.
fn expired_sentence(expired: &ExpiredCounts) -> String {
    let ExpiredCounts { trajectories, steps, groups_cut, failed_steps_left, scores_left } = expired;
    let mut text = format!("rows of this data set have expired: {trajectories} trajectories, {steps} steps");
    let left = [
        (groups_cut, "groups lack trajectories"),
        (failed_steps_left, "steps of failed trajectories have no trajectory"),
        (scores_left, "later scores have no trajectory"),
    ];
    for (count, what) in left.into_iter().filter(|(count, _)| **count > 0) {
        text.push_str(&format!("; {count} {what}"));
    }
    text
}

/// What was checked, in a sentence. A policy without tokens has no prompts to rebuild, and the
/// pictures are decoded for the prompts that hold them.
fn checked(counts: &VerifyCounts, breaches: u64) -> String {
    let tokens = match counts.prompts {
        0 if counts.steps + counts.failed_steps > 0 => {
            "found no tokens, so no prompt to rebuild and no picture to decode".to_owned()
        }
        prompts => format!(
            "rebuilt {prompts} prompts, decoded {} pictures",
            counts.png_pictures + counts.jpeg_pictures
        ),
    };
    format!(
        "checked {} trajectories, {} steps ({} of failed ones), {} groups in {} files; {tokens}; {breaches} breaches",
        counts.trajectories,
        counts.steps + counts.failed_steps,
        counts.failed_steps,
        counts.groups,
        counts.files,
    )
}

/// The location of a breach: table, file and row, trajectory and step, as far as they are known.
fn location(breach: &RuleBreach) -> String {
    let row = breach.row.map(|row| format!("row {row}"));
    let step = breach.step.map(|step| format!("step {step}"));
    let table = breach.table.map(|table| table.as_str().to_owned());
    let parts = [breach.file.clone().or(table), row, breach.trajectory.clone(), step];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verification_says_what_expired_and_what_that_left() {
        let expired = ExpiredCounts { trajectories: 4, steps: 40, ..ExpiredCounts::default() };
        let text = "rows of this data set have expired: 4 trajectories, 40 steps";
        assert_eq!(expired_sentence(&expired), text);
        let expired = ExpiredCounts { groups_cut: 1, scores_left: 2, ..expired };
        let left = "; 1 groups lack trajectories; 2 later scores have no trajectory";
        assert_eq!(expired_sentence(&expired), format!("{text}{left}"));
    }

    #[test]
    fn a_verification_says_what_it_did_not_find_to_check() {
        let counts = |steps, prompts| VerifyCounts {
            trajectories: 2,
            steps,
            prompts,
            png_pictures: prompts,
            ..VerifyCounts::default()
        };
        let rebuilt = "rebuilt 7 prompts, decoded 7 pictures; 1 breaches";
        let no_tokens = "found no tokens, so no prompt to rebuild and no picture to decode; 1 breaches";
        for (steps, prompts, want) in
            [(7, 7, rebuilt), (7, 0, no_tokens), (0, 0, "rebuilt 0 prompts, decoded 0 pictures; 1 breaches")]
        {
            let text = checked(&counts(steps, prompts), 1);
            assert!(text.starts_with(&format!("checked 2 trajectories, {steps} steps")), "{text}");
            assert!(text.ends_with(want), "{text}");
        }
    }
}
