//! `furrow tasks`: lists, checks and samples the tasks of a job.

use clap::{Args, Subcommand};
use furrow_tasks::{TaskSampler, TaskSet, TaskSpec};
use serde_json::{Value, json};

use crate::job::Job;
use crate::launch::{self, JobArgs, JobLaunch, SimulatedBrowserArgs};
use crate::preflight::{self, PreflightScope};
use crate::prove::{self, ProofPlan};
use crate::{CommandFailure, look, output};

#[derive(Debug, Subcommand)]
pub(crate) enum TasksCommand {
    /// List every task with its split, steps, difficulty and start page
    List(ListArgs),
    /// Check every task file and print all problems; with --all prove each demonstrated task in a
    /// browser, and open the others
    Check(CheckArgs),
    /// Open one task's start page in a browser; print its goal, hosts, scorer and the errors of the
    /// page, and write what the policy sees first
    Look(look::LookArgs),
    /// Show which task and seed each of the first groups gets
    Sample(SampleArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Print each task as a JSON object in a list instead of a table
    #[arg(long)]
    json: bool,
}

/// The job, and how far to check it.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Prove every task in a real browser: its demonstration must earn reward 1; doing nothing and
    /// guessing must earn nothing. A task without a demonstration is only opened
    #[arg(long)]
    all: bool,
    /// Prove only tasks whose id, or suite and id (`web/shop-*`), matches; `*` and `?` are
    /// wildcards. Repeat the option for more patterns
    #[arg(long, value_name = "PATTERN")]
    task: Vec<String>,
    /// Number of seeds to prove each task with
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Print the number of tasks and the notes as JSON instead of text; with --all, every proof and
    /// its problems
    #[arg(long)]
    json: bool,
}

/// The job, and how many groups to show.
#[derive(Debug, Args)]
pub(crate) struct SampleArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Number of groups to show
    #[arg(long, default_value_t = 20)]
    groups: u64,
    /// Print group, task and seed of each group as a JSON list instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: &TasksCommand) -> Result<(), CommandFailure> {
    match command {
        TasksCommand::List(args) => list(args),
        TasksCommand::Check(args) => check(args),
        TasksCommand::Look(args) => look::run(args),
        TasksCommand::Sample(args) => sample(args),
    }
}

fn list(args: &ListArgs) -> Result<(), CommandFailure> {
    let (_, set) = load(&args.job)?;
    if args.json {
        return Ok(output::json(&set.specs().iter().map(describe).collect::<Vec<_>>())?);
    }
    let rows: Vec<Vec<String>> = set.specs().iter().map(row).collect();
    output::table(&["task", "split", "steps", "difficulty", "demonstration", "start"], &rows);
    Ok(())
}

fn check(args: &CheckArgs) -> Result<(), CommandFailure> {
    let launch = JobLaunch::read(&args.job)?;
    let proves = args.all || !args.task.is_empty();
    let scope =
        PreflightScope { browser: proves, run_dir: false, checkpoint: false, ..PreflightScope::whole(false) };
    preflight::run(&launch, scope)?.conclude()?;
    if proves {
        return prove_tasks(args, launch);
    }
    let set = launch.set;
    if args.json {
        return Ok(output::json(
            &json!({ "tasks": set.specs().len(), "notes": set.notes(), "warnings": set.warnings() }),
        )?);
    }
    output::line(format!("{} tasks, no problems", set.specs().len()));
    Ok(())
}

fn prove_tasks(args: &CheckArgs, mut launch: JobLaunch) -> Result<(), CommandFailure> {
    launch.job.env.browser.page_errors = true;
    let JobLaunch { job, set, .. } = &launch;
    let specs: Vec<&TaskSpec> = match &args.task[..] {
        [] => set.specs().iter().collect(),
        patterns => set.specs().iter().filter(|spec| spec.fits_any(patterns)).collect(),
    };
    if specs.is_empty() {
        let patterns = args.task.join(", ");
        return Err(CommandFailure::Input(vec![format!(
            "--task: {patterns:?} matches no task; `furrow tasks list {}` lists them",
            args.job.job.display()
        )]));
    }
    let plan = ProofPlan {
        session: &job.policy.session,
        seeds: args.seeds,
        at_once: job.env.sessions_max as usize,
        as_json: args.json,
    };
    launch::runtime()?.block_on(async {
        let stages = launch.environments(&SimulatedBrowserArgs::default()).await?;
        prove::prove(&specs, stages, &plan).await
    })
}

fn sample(args: &SampleArgs) -> Result<(), CommandFailure> {
    let (job, set) = load(&args.job)?;
    let sampler = TaskSampler::new(&set, &job.tasks);
    let draws = (0..args.groups.min(sampler.groups())).map(|index| {
        let draw = sampler.draw(index);
        (index, set.specs()[draw.spec].name(), draw.seed)
    });
    if args.json {
        let rows = draws.map(|(group, task, seed)| json!({ "group": group, "task": task, "seed": seed }));
        return Ok(output::json(&rows.collect::<Vec<_>>())?);
    }
    let rows = draws.map(|(group, task, seed)| vec![task, group.to_string(), seed.to_string()]);
    output::table(&["task", "group", "seed"], &rows.collect::<Vec<_>>());
    Ok(())
}

fn load(args: &JobArgs) -> Result<(Job, TaskSet), CommandFailure> {
    let JobLaunch { job, set, .. } = JobLaunch::read(args)?;
    Ok((job, set))
}

fn describe(spec: &TaskSpec) -> Value {
    let task = &spec.task;
    json!({
        "task_id": task.task_id, "suite": task.suite, "split": task.split.as_str(), "max_steps": task.max_steps,
        "start_url": task.start_url, "goal": task.goal, "difficulty": spec.difficulty, "demonstration": task.hooks.solve.is_some(),
    })
}

fn row(spec: &TaskSpec) -> Vec<String> {
    let task = &spec.task;
    vec![
        spec.name(),
        task.split.as_str().to_owned(),
        task.max_steps.to_string(),
        spec.difficulty.clone().unwrap_or_default(),
        if task.hooks.solve.is_some() { "yes" } else { "no" }.to_owned(),
        task.start_url.clone(),
    ]
}
