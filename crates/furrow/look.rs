//! `furrow tasks look`: opens one task's start page in a real browser, as a trajectory does, and
//! shows its author what the policy sees first and what went wrong in the page.

use std::path::{Path, PathBuf};

use clap::Args;
use furrow_env::{Environment, PageError, PageErrorKind};
use furrow_rollout::{ImageFormat, Observation, Screenshot};
use furrow_tasks::TaskSpec;
use serde_json::json;

use crate::launch::{self, JobArgs, JobLaunch, SimulatedBrowserArgs};
use crate::{CommandFailure, output, prove};

#[derive(Debug, Args)]
pub(crate) struct LookArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Task to open, by its id or by suite and id (`web/shop-price`); the first that matches, where
    /// `*` and `?` are wildcards
    task: String,
    /// Write the first screenshot to this file, as PNG even where the policy gets JPEG
    #[arg(long, value_name = "FILE")]
    png: Option<PathBuf>,
    /// Seed of the page; a seed of the task's own line outranks it
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// What was found in the task's page.
#[derive(Debug, Default)]
struct StartPage {
    goal: Option<String>,
    observation: Option<Observation>,
    probe: Option<String>,
    errors: Vec<PageError>,
    /// Why the task cannot start.
    problem: Option<String>,
}

pub(crate) fn run(args: &LookArgs) -> Result<(), CommandFailure> {
    let mut launch = JobLaunch::read(&args.job)?;
    launch.job.env.browser.page_errors = true;
    let pattern = std::slice::from_ref(&args.task);
    let spec = launch.set.specs().iter().find(|spec| spec.fits_any(pattern)).ok_or_else(|| {
        CommandFailure::Input(vec![format!(
            "{:?} is no task of the job; `furrow tasks list {}` lists them",
            args.task,
            args.job.job.display()
        )])
    })?;
    let page = launch::runtime()?.block_on(open(&launch, spec, args.seed))?;
    let picture = page.observation.as_ref().map(|observation| &observation.screenshot);
    if let (Some(file), Some(picture)) = (&args.png, picture) {
        std::fs::write(file, &picture.bytes).map_err(|error| {
            CommandFailure::Input(vec![format!("--png: {}: cannot be written: {error}", file.display())])
        })?;
    }
    if args.json {
        print_json(spec, &page)?;
    } else {
        print(spec, &page, args.png.as_deref());
    }
    match page.problem {
        Some(_) => Err(CommandFailure::Work(anyhow::anyhow!("{} cannot start", spec.name()))),
        None => Ok(()),
    }
}

async fn open(launch: &JobLaunch, spec: &TaskSpec, seed: u64) -> Result<StartPage, CommandFailure> {
    let stages = launch.environments(&SimulatedBrowserArgs::default()).await?;
    let mut assignment = prove::assignment(spec, seed, 0, &launch.job.policy.session)
        .map_err(|error| CommandFailure::Work(anyhow::anyhow!(error)))?;
    assignment.task.observation.format = ImageFormat::Png;
    let mut page = StartPage { goal: spec.task.goal.clone(), ..StartPage::default() };
    match stages.open(&assignment).await {
        Err(error) => page.problem = Some(error.to_string()),
        Ok(mut stage) => {
            if let Err(error) = page.examine(stage.as_mut()).await {
                page.problem = Some(error);
            }
            page.errors = stage.page_errors().await;
            stage.close().await;
        }
    }
    stages.close().await;
    Ok(page)
}

impl StartPage {
    /// What a trajectory does before its first step. A page whose task does not start is shown,
    /// too.
    async fn examine(&mut self, stage: &mut dyn Environment) -> Result<(), String> {
        let begun = stage.begin().await;
        self.observation = stage.observe().await.ok();
        let made = begun.map_err(|error| error.to_string())?;
        self.goal = self.goal.take().or(made);
        self.probe = stage.probe().await.map_err(|error| error.to_string())?;
        match (&self.goal, &self.observation) {
            (None, _) => Err("neither the task nor its page has a goal".to_owned()),
            (_, None) => Err("the page cannot be observed".to_owned()),
            _ => Ok(()),
        }
    }
}

fn print(spec: &TaskSpec, page: &StartPage, file: Option<&Path>) {
    let task = &spec.task;
    let row = |name: &str, value: &str| {
        output::line(format!("{name:<12}  {}", furrow_dashboard::clean(value)));
    };
    row("task", &spec.name());
    row("goal", page.goal.as_deref().unwrap_or("unknown: the page gives it, and did not start its task"));
    row("start page", &task.start_url);
    row("hosts", &hosts(spec).join(", "));
    row("scorer", spec.scorer.name());
    row("steps", &task.max_steps.to_string());
    row("time limit", &format!("{} s", task.time_limit_millis / 1000));
    if let Some(observation) = &page.observation {
        row("title", &observation.title);
        row("address", &observation.url);
        row("screenshot", &describe(&observation.screenshot, task.observation.format, file));
        let height = observation.page_height;
        row("page", &format!("{} x {height:.0} CSS pixels", task.viewport.width));
    }
    if let Some(probe) = &page.probe {
        row("probe", &probe.chars().take(300).collect::<String>());
    }
    for error in &page.errors {
        row("page error", &error.to_string());
    }
    if page.errors.iter().any(|error| error.kind == PageErrorKind::Refused) {
        row(
            "",
            "a page reaches its own host and those in allow_hosts; put the file beside the page, or list its host",
        );
    }
    if let Some(problem) = &page.problem {
        row("problem", problem);
    }
}

fn print_json(spec: &TaskSpec, page: &StartPage) -> Result<(), CommandFailure> {
    let observed = page.observation.as_ref();
    let size = observed.map(|observed| [observed.screenshot.size.width, observed.screenshot.size.height]);
    let errors: Vec<_> = page
        .errors
        .iter()
        .map(|error| json!({ "kind": error.kind.as_str(), "location": error.location, "text": error.text }))
        .collect();
    Ok(output::json(&json!({
        "task": spec.name(), "goal": page.goal, "start_url": spec.task.start_url, "hosts": hosts(spec),
        "scorer": spec.scorer.name(), "max_steps": spec.task.max_steps, "title": observed.map(|observed| &observed.title),
        "url": observed.map(|observed| &observed.url), "screenshot": size, "probe": page.probe, "page_errors": errors,
        "problem": page.problem,
    }))?)
}

/// The hosts that the page may reach: its own, then those of the task's list.
fn hosts(spec: &TaskSpec) -> Vec<String> {
    let own = spec.task.start_url.split('/').nth(2).unwrap_or_default();
    [own.to_owned()].into_iter().chain(spec.task.allow_hosts.iter().cloned()).collect()
}

fn describe(picture: &Screenshot, format: ImageFormat, file: Option<&Path>) -> String {
    let format = match format {
        ImageFormat::Png => "as PNG".to_owned(),
        ImageFormat::Jpeg { quality } => format!("as JPEG of quality {quality}"),
    };
    let written = file.map(|file| format!("; written to {}", file.display())).unwrap_or_default();
    format!("{} x {} pixels {format}{written}", picture.size.width, picture.size.height)
}
