//! `furrow tasks`: lists, checks and samples the tasks of a job.

use clap::{Args, Subcommand};
use furrow_tasks::{TaskSampler, TaskSet, TaskSpec};
use serde_json::{Value, json};

use crate::blind::{self, BlindArgs};
use crate::job::Job;
use crate::launch::{self, JobArgs, JobLaunch, SimulatedBrowserArgs};
use crate::preflight::{self, PreflightScope};
use crate::prove::{self, ProofPlan};
use crate::{CommandFailure, attack, look, output};

#[derive(Debug, Subcommand)]
pub(crate) enum TasksCommand {
    /// List every task with its split, steps, difficulty and start page
    List(ListArgs),
    /// Check every task file and print all problems; with --all prove each demonstrated task in a
    /// browser, and open the others
    Check(CheckArgs),
    /// Try on each demonstrated task, in a browser, what earns a reward without the task: forged
    /// reports, written storage, ends that do not pay; docs/REWARD_HACKING.md
    Attack(AttackArgs),
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
    /// Check only tasks whose id, or suite and id (`web/shop-*`), matches; `*` and `?` are
    /// wildcards. Repeat the option for more patterns
    #[arg(long, value_name = "PATTERN")]
    task: Vec<String>,
    /// Number of seeds to prove each task with
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    #[command(flatten)]
    blind: BlindArgs,
    /// Print the number of tasks and the notes as JSON instead of text; with --all, every proof and
    /// its problems; with --blind and --replays, every template and its rates
    #[arg(long)]
    json: bool,
}

/// The job, and which of its tasks to attack.
#[derive(Debug, Args)]
pub(crate) struct AttackArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Attack only tasks whose id, or suite and id (`web/shop-*`), matches; `*` and `?` are
    /// wildcards. Repeat the option for more patterns
    #[arg(long, value_name = "PATTERN")]
    task: Vec<String>,
    /// Number of seeds to attack each task with
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Print every attack and its result as JSON instead of a table of those that were paid
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
        TasksCommand::Attack(args) => attack_tasks(args),
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
    output::table(&["task", "split", "steps", "difficulty", "chance level", "demonstration", "start"], &rows);
    Ok(())
}

fn check(args: &CheckArgs) -> Result<(), CommandFailure> {
    let launch = JobLaunch::read(&args.job)?;
    let proves = args.all || args.blind.is_on() || !args.task.is_empty();
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

/// Proves the tasks in a browser, or tries them without looking.
fn prove_tasks(args: &CheckArgs, mut launch: JobLaunch) -> Result<(), CommandFailure> {
    // Errors of pages are for their authors; draws do not wait for them.
    launch.job.env.browser.page_errors = !args.blind.is_on();
    if args.blind.is_on() {
        let deadline = &mut launch.job.env.browser.deadlines.input;
        *deadline = blind::DRAWS_DEADLINE.max(*deadline);
    }
    let specs = chosen(&launch, &args.job, &args.task)?;
    let plan = proof_plan(&launch, args.seeds, args.json);
    let ProofPlan { session, at_once, .. } = plan;
    launch::runtime()?.block_on(async {
        let stages = launch.environments(&SimulatedBrowserArgs::default()).await?;
        match args.blind.is_on() {
            true => args.blind.check(&specs, stages, session, at_once, args.json).await,
            false => prove::prove(&specs, stages, &plan).await,
        }
    })
}

fn attack_tasks(args: &AttackArgs) -> Result<(), CommandFailure> {
    let launch = JobLaunch::read(&args.job)?;
    let scope =
        PreflightScope { browser: true, run_dir: false, checkpoint: false, ..PreflightScope::whole(false) };
    preflight::run(&launch, scope)?.conclude()?;
    let specs = chosen(&launch, &args.job, &args.task)?;
    let plan = proof_plan(&launch, args.seeds, args.json);
    launch::runtime()?.block_on(async {
        let stages = launch.environments(&SimulatedBrowserArgs::default()).await?;
        attack::attack(&specs, stages, &plan).await
    })
}

fn proof_plan(launch: &JobLaunch, seeds: u64, as_json: bool) -> ProofPlan<'_> {
    let JobLaunch { job, .. } = launch;
    ProofPlan { session: &job.policy.session, seeds, at_once: job.env.sessions_max as usize, as_json }
}

/// The tasks that match one of the patterns; all without a pattern.
fn chosen<'a>(
    launch: &'a JobLaunch,
    job: &JobArgs,
    patterns: &[String],
) -> Result<Vec<&'a TaskSpec>, CommandFailure> {
    let is_chosen = |spec: &&TaskSpec| patterns.is_empty() || spec.fits_any(patterns);
    let specs: Vec<&TaskSpec> = launch.set.specs().iter().filter(is_chosen).collect();
    if specs.is_empty() {
        let patterns = patterns.join(", ");
        return Err(CommandFailure::Input(vec![format!(
            "--task: {patterns:?} matches no task; `furrow tasks list {}` lists them",
            job.job.display()
        )]));
    }
    Ok(specs)
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
        "start_url": task.start_url, "goal": task.goal, "difficulty": spec.difficulty, "chance_level": spec.chance_level,
        "demonstration": task.hooks.solve.is_some(),
    })
}

fn row(spec: &TaskSpec) -> Vec<String> {
    let task = &spec.task;
    vec![
        spec.name(),
        task.split.as_str().to_owned(),
        task.max_steps.to_string(),
        spec.difficulty.clone().unwrap_or_default(),
        spec.chance_level.map_or("–".to_owned(), |level| level.to_string()),
        if task.hooks.solve.is_some() { "yes" } else { "no" }.to_owned(),
        task.start_url.clone(),
    ]
}
