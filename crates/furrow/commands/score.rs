//! `furrow score`: shows stored trajectories to scorers again; what they say goes to `data/scores/`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use furrow_coordinator::{JudgeConfig, RescoreFilter, RescoreJob, RescoreSummary, rescore};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use crate::job::Job;
use crate::{Failure, launch, output};

/// How often a log that is no terminal gets a line.
const LINE_EVERY: Duration = Duration::from_secs(15);

/// Which run, and what scores it.
#[derive(Debug, Args)]
pub struct ScoreArgs {
    /// Run directory
    run: PathBuf,
    /// Take scorers and [score] from this job file; else scorers come with each trajectory, and [score] from the run's job
    #[arg(long)]
    job: Option<PathBuf>,
    /// Replace a key of the job, such as `score.judge.votes=3`; may be given again
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Only this suite
    #[arg(long)]
    suite: Option<String>,
    /// Only tasks whose ids fit this pattern, `*` and `?` allowed
    #[arg(long, value_name = "PATTERN")]
    task: Option<String>,
    /// Say what would come of it and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON: one object a change, the last one the result
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &ScoreArgs) -> Result<(), Failure> {
    let job = Job::read(args.job.as_ref().unwrap_or(&args.run.join("job.toml")), &args.set)
        .map_err(Failure::Input)?;
    let tasks = match &args.job {
        Some(_) => {
            let (set, eval) = launch::load(&job)?;
            Some([Some(set), eval].into_iter().flatten().collect())
        }
        None => None,
    };
    let judge = job.score.judge.map(JudgeConfig::with_key).transpose();
    let again = RescoreJob {
        run_dir: args.run.clone(),
        tasks,
        filter: RescoreFilter { suite: args.suite.clone(), task: args.task.clone() },
        judge: judge.map_err(|problem| Failure::Input(vec![problem]))?,
        scorers_max: job.limits.scorers_max(),
        records: job.records,
        job_toml: job.resolved,
        dry_run: args.dry_run,
    };
    let runtime = launch::runtime()?;
    let stop = runtime.block_on(async { launch::stop_on_signal() })?;
    let mut told = Told::new(args.json);
    let summary = rescore(&again, &stop, |done, total| told.update(done, total))?;
    told.finish();
    conclude(args, &summary)
}

fn conclude(args: &ScoreArgs, summary: &RescoreSummary) -> Result<(), Failure> {
    for (trajectory, why) in &summary.named {
        output::complain(&format!("{trajectory}: {why}"));
    }
    if args.json {
        output::json(&figures(summary))?;
    } else {
        print(args, summary);
    }
    if summary.scored == 0 && summary.unscored > 0 {
        return Err(anyhow::anyhow!("no verdict on any of {} trajectories", summary.shown).into());
    }
    Ok(())
}

fn print(args: &ScoreArgs, summary: &RescoreSummary) {
    let RescoreSummary { shown, failed, left_out, scored, changed, unscored, .. } = summary;
    output::line(format!(
        "{shown} trajectories shown, {scored} scored, {changed} with another reward, {unscored} without a verdict; {left_out} left out, {failed} failed ones"
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

fn figures(summary: &RescoreSummary) -> Value {
    let mean = |sum: f64| (summary.scored > 0).then(|| sum / summary.scored as f64);
    let named =
        summary.named.iter().map(|(trajectory, why)| json!({ "trajectory_id": trajectory, "why": why }));
    json!({
        "shown": summary.shown, "scored": summary.scored, "changed": summary.changed, "unscored": summary.unscored,
        "left_out": summary.left_out, "failed": summary.failed, "unscored_named": named.collect::<Vec<_>>(),
        "reward_mean_before": mean(summary.reward_before), "reward_mean_after": mean(summary.reward_after),
        "successes_before": summary.successes_before, "successes_after": summary.successes_after,
        "cost_usd": summary.cost_usd, "manifest_version": summary.manifest_version,
    })
}

/// How far it is: a bar for people, lines for logs, JSON for programs.
enum Told {
    Bar(ProgressBar),
    Lines { last: Instant },
    Json,
}

impl Told {
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
            // A value of two numbers is always writable.
            Self::Json => drop(output::json(&json!({ "done": done, "total": total }))),
        }
    }

    fn finish(self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}
