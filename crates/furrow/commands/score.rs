//! `furrow score`: submits stored trajectories to scorers again and writes the scores to
//! `data/scores/`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use furrow_coordinator::{JudgeConfig, RescoreFilter, RescoreJob, RescoreSummary, rescore};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use crate::job::Job;
use crate::{CommandFailure, launch, output};

/// Time between two lines of a log that is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(15);

/// Which run to score, and with which scorers.
#[derive(Debug, Args)]
pub(crate) struct ScoreArgs {
    /// Run directory whose trajectories are scored; new verdicts go to its data/scores
    run: PathBuf,
    /// Job file to take scorers and [score] from [default: the scorers stored with each trajectory,
    /// and [score] of the run's job]
    #[arg(long)]
    job: Option<PathBuf>,
    /// Replace one key of the job, such as `score.judge.votes=3`; repeat the option for more keys
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Limit to the trajectories of this suite
    #[arg(long)]
    suite: Option<String>,
    /// Limit to tasks whose ids match this pattern; `*` matches any text, `?` one character
    #[arg(long, value_name = "PATTERN")]
    task: Option<String>,
    /// Print the new scores and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON lines: one object per change, the result last
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &ScoreArgs) -> Result<(), CommandFailure> {
    let stored = args.run.join("job.toml");
    if args.job.is_none() && !stored.exists() {
        let run = args.run.display();
        let message =
            format!("{run}: not a run directory, which holds job.toml; name one, or a job with --job");
        return Err(CommandFailure::Input(vec![message]));
    }
    let job = Job::read(args.job.as_ref().unwrap_or(&stored), &args.set).map_err(CommandFailure::Input)?;
    let tasks = match &args.job {
        Some(_) => {
            let (set, eval) = launch::load(&job)?;
            Some([Some(set), eval].into_iter().flatten().collect())
        }
        None => None,
    };
    let judge = job.score.judge.map(JudgeConfig::with_key).transpose();
    let rescore_job = RescoreJob {
        run_dir: args.run.clone(),
        tasks,
        filter: RescoreFilter { suite: args.suite.clone(), task: args.task.clone() },
        judge: judge.map_err(|error| CommandFailure::Input(vec![error.to_string()]))?,
        scorers_max: job.limits.scorers_max(),
        records: job.records,
        shared_job: launch::shared_job(&job.resolved)?,
        dry_run: args.dry_run,
    };
    let runtime = launch::runtime()?;
    let stop = runtime.block_on(async { launch::stop_on_signal(launch::SignalledWork::Scoring) })?;
    let mut progress = ScoreProgress::new(args.json);
    let summary = rescore(&rescore_job, &stop, |done, total| progress.update(done, total))?;
    progress.finish();
    conclude(args, &summary)
}

fn conclude(args: &ScoreArgs, summary: &RescoreSummary) -> Result<(), CommandFailure> {
    for (trajectory, why) in &summary.named {
        output::error_line(&format!("{trajectory}: {why}"));
    }
    if args.json {
        output::json_line(&summary_json(summary))?;
    } else {
        print(args, summary);
    }
    if summary.submitted == 0 {
        return Err(nothing_selected(args, summary));
    }
    if summary.scored == 0 && summary.unscored > 0 {
        return Err(anyhow::anyhow!(
            "none of {} trajectories got a verdict; the lines above name the reasons",
            summary.submitted
        )
        .into());
    }
    Ok(())
}

/// Nothing was submitted: a filter that matches nothing is misspelt, and a run without a finished
/// trajectory has nothing to score.
fn nothing_selected(args: &ScoreArgs, summary: &RescoreSummary) -> CommandFailure {
    let filters: Vec<String> = [("--suite", &args.suite), ("--task", &args.task)]
        .into_iter()
        .filter_map(|(option, value)| value.as_ref().map(|value| format!("{option} {value:?}")))
        .collect();
    let text = if filters.is_empty() {
        format!(
            "{}: no trajectory to score; {} were left out and {} failed",
            args.run.display(),
            summary.left_out,
            summary.failed
        )
    } else {
        format!(
            "{}: selects none of the run's trajectories; `furrow records inspect {}` lists its tasks",
            filters.join(" "),
            args.run.display()
        )
    };
    CommandFailure::Input(vec![text])
}

fn print(args: &ScoreArgs, summary: &RescoreSummary) {
    let RescoreSummary { submitted, failed, left_out, scored, changed, unscored, .. } = summary;
    output::line(format!(
        "{submitted} trajectories submitted, {scored} scored, {changed} with another reward, {unscored} without a verdict; {left_out} left out, {failed} failed"
    ));
    if *scored > 0 {
        let count = *scored as f64;
        output::line(format!(
            "mean reward {:.3}, before {:.3}; {} solved their task, before {}",
            summary.reward_after / count,
            summary.reward_before / count,
            summary.successes_after,
            summary.successes_before
        ));
    }
    if let Some(cost) = summary.cost_usd {
        output::line(format!("judges cost {cost:.4} US dollars"));
    }
    match summary.manifest_version {
        Some(version) => output::line(format!(
            "scores: {} (manifest commit {version})",
            args.run.join("data").join("scores").display()
        )),
        None => output::line("nothing was written"),
    }
}

fn summary_json(summary: &RescoreSummary) -> Value {
    let mean = |sum: f64| (summary.scored > 0).then(|| sum / summary.scored as f64);
    let named =
        summary.named.iter().map(|(trajectory, why)| json!({ "trajectory_id": trajectory, "why": why }));
    json!({
        "submitted": summary.submitted, "scored": summary.scored, "changed": summary.changed, "unscored": summary.unscored,
        "left_out": summary.left_out, "failed": summary.failed, "unscored_named": named.collect::<Vec<_>>(),
        "reward_mean_before": mean(summary.reward_before), "reward_mean_after": mean(summary.reward_after),
        "successes_before": summary.successes_before, "successes_after": summary.successes_after,
        "cost_usd": summary.cost_usd, "manifest_version": summary.manifest_version,
    })
}

/// Reports progress: a bar on a terminal, lines in logs, JSON for programs.
enum ScoreProgress {
    Bar(ProgressBar),
    Lines { last: Instant },
    Json,
}

impl ScoreProgress {
    fn new(as_json: bool) -> Self {
        match (as_json, std::io::stderr().is_terminal()) {
            (true, _) => Self::Json,
            (false, false) => Self::Lines { last: Instant::now() },
            (false, true) => {
                let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
                let style = ProgressStyle::with_template("{bar:24} {pos}/{len} trajectories");
                bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
                Self::Bar(bar)
            }
        }
    }

    fn update(&mut self, done: u64, total: u64) {
        match self {
            Self::Bar(bar) => {
                bar.set_length(total);
                bar.set_position(done);
            }
            Self::Lines { last } => {
                if last.elapsed() >= LINE_EVERY {
                    *last = Instant::now();
                    output::line(format!("{done} of {total} trajectories"));
                }
            }
            // Two numbers always serialize.
            Self::Json => drop(output::json_line(&json!({ "done": done, "total": total }))),
        }
    }

    fn finish(self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}
