//! `furrow records`: look at a data set, or prove that it can be trusted.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use furrow_records::{Breach, Gap, Report, RewardLine, ShardGap, Summary, inspect, kept, verify};

use crate::{Failure, output};

/// What to do with a data set.
#[derive(Debug, Subcommand)]
pub enum RecordsCommand {
    /// Print what was collected: rewards by task, ends, sizes, where the time went
    Inspect(DirArgs),
    /// Say what a trainer would keep and leave out, by suite, difficulty and length, so that no bias hides
    Kept(KeptArgs),
    /// Rebuild every prompt and hash and hold every row to the data set's promises
    Verify(DirArgs),
}

/// Which data set.
#[derive(Debug, Args)]
pub struct DirArgs {
    /// Run directory
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Which data set, and what is too old.
#[derive(Debug, Args)]
pub struct KeptArgs {
    #[command(flatten)]
    of: DirArgs,
    /// Versions a trajectory may be behind when it ends; else none is left out for that
    #[arg(long, value_name = "VERSIONS")]
    max_off_policy_versions: Option<i32>,
}

/// Runs the command.
pub fn run(command: &RecordsCommand) -> Result<(), Failure> {
    match command {
        RecordsCommand::Inspect(args) => inspect_dir(args),
        RecordsCommand::Kept(args) => kept_of(args),
        RecordsCommand::Verify(args) => verify_dir(args),
    }
}

fn inspect_dir(args: &DirArgs) -> Result<(), Failure> {
    let summary = inspect(&args.dir)?;
    if args.json {
        output::json(&summary)?;
    } else {
        print(&summary);
    }
    Ok(())
}

fn kept_of(args: &KeptArgs) -> Result<(), Failure> {
    let report = kept(&args.of.dir, args.max_off_policy_versions)?;
    if args.of.json {
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
    let header =
        ["of", "attempts", "kept", "share", "failed", "stale", "no spread", "reward, scored", "reward, kept"];
    output::table(&header, &rows.collect::<Vec<_>>());
    Ok(())
}

fn print(summary: &Summary) {
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
    let shares = summary.timing.iter().filter(|line| line.micros > 0);
    let shares: Vec<String> =
        shares.map(|line| format!("{} {}", line.cause, output::percent(Some(line.share)))).collect();
    output::line(format!("\nwhere the trajectories' time went: {}", shares.join(", ")));
    for ShardGap { path, gap: Gap { tokens, mean_abs, p50, p99, max } } in &summary.prefill_gaps {
        output::line(format!(
            "{path}: {tokens} tokens scored again, gap mean {mean_abs:.2e}, p50 {p50:.2e}, p99 {p99:.2e}, max {max:.2e} nats"
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

fn verify_dir(args: &DirArgs) -> Result<(), Failure> {
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

fn print_report(report: &Report) {
    for breach in &report.breaches {
        output::line(format!("BREACH {}: {}", place(breach), breach.what));
    }
    for warning in &report.warnings {
        output::line(format!("warning: {}: {}", warning.about, warning.what));
    }
    let counts = &report.counts;
    output::line(format!(
        "looked at {} trajectories, {} steps ({} of failed ones), {} groups in {} files; {} prompts rebuilt, {} pictures decoded; {} breaches",
        counts.trajectories,
        counts.steps + counts.failed_steps,
        counts.failed_steps,
        counts.groups,
        counts.files,
        counts.prompts,
        counts.png_pictures + counts.jpeg_pictures,
        report.breaches_total
    ));
}

/// Where a breach is: table, file and row, trajectory and step, as far as they are known.
fn place(breach: &Breach) -> String {
    let row = breach.row.map(|row| format!("row {row}"));
    let step = breach.step.map(|step| format!("step {step}"));
    let table = breach.table.map(|table| table.as_str().to_owned());
    let parts = [breach.file.clone().or(table), row, breach.trajectory.clone(), step];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}
