//! `furrow tasks`: lists, checks and samples the tasks of a job.

use clap::{Args, Subcommand};
use furrow_tasks::{TaskSampler, TaskSet, TaskSpec};
use serde_json::{Value, json};

use crate::job::Job;
use crate::launch::{self, JobArgs, JobLaunch, SimulatedBrowserArgs};
use crate::preflight::{self, PreflightScope};
use crate::{CommandFailure, output, prove};

#[derive(Debug, Subcommand)]
pub enum TasksCommand {
    /// List every task with its split, steps, difficulty and start page
    List(ListArgs),
    /// Check every task file and print all problems; with --all prove each demonstrated task in a
    /// browser
    Check(CheckArgs),
    /// Show which task and seed each of the first groups gets
    Sample(SampleArgs),
}

#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Print each task as a JSON object in a list instead of a table
    #[arg(long)]
    json: bool,
}

/// The job, and how far to check it.
#[derive(Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Prove every demonstrated task in a real browser: its demonstration must earn reward 1; doing
    /// nothing and guessing must earn nothing
    #[arg(long)]
    all: bool,
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
pub struct SampleArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Number of groups to show
    #[arg(long, default_value_t = 20)]
    groups: u64,
    /// Print group, task and seed of each group as a JSON list instead of a table
    #[arg(long)]
    json: bool,
}

pub fn run(command: &TasksCommand) -> Result<(), CommandFailure> {
    match command {
        TasksCommand::List(args) => list(args),
        TasksCommand::Check(args) => check(args),
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
    let scope = PreflightScope {
        browser: args.all,
        run_dir: false,
        checkpoint: false,
        ..PreflightScope::whole(false)
    };
    preflight::run(&launch, scope)?.conclude()?;
    if args.all {
        return prove_all(args, &launch);
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

fn prove_all(args: &CheckArgs, launch: &JobLaunch) -> Result<(), CommandFailure> {
    let JobLaunch { job, set, .. } = launch;
    let at_once = job.env.sessions_max as usize;
    launch::runtime()?.block_on(async {
        let stages = launch.environments(&SimulatedBrowserArgs::default()).await?;
        prove::prove(set, stages, &job.policy.session, args.seeds, at_once, args.json).await
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
