//! `furrow check`: reads, resolves and checks a job and what it names on this machine, prints the
//! plan, leaves nothing running.

use std::time::Instant;

use clap::Args;
use furrow_tasks::TaskSampler;
use serde_json::json;

use crate::launch::{JobArgs, JobLaunch};
use crate::preflight::{self, PreflightScope};
use crate::{CommandFailure, output};

/// The schema of a job, which a test writes from the sources (`job/reference.rs`).
const SCHEMA: &str = include_str!("../../../docs/job.schema.json");

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Absent only with `--schema`, which excludes every other argument.
    #[command(flatten)]
    job: Option<JobArgs>,
    /// Leave out the browser, where environment workers run on other machines
    #[arg(long)]
    no_browser: bool,
    /// Print the JSON Schema of job files, for an editor that completes and checks TOML
    #[arg(long, exclusive = true)]
    schema: bool,
    /// Print the resolved job and the plan as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &CheckArgs) -> Result<(), CommandFailure> {
    let Some(job) = &args.job else {
        output::line(SCHEMA.trim_end());
        return Ok(());
    };
    let began = Instant::now();
    let launch = JobLaunch::read(job)?.with_key()?.with_policy_key()?;
    let found = preflight::run(&launch, PreflightScope::whole(!args.no_browser))?;
    found.conclude()?;
    let JobLaunch { job, set, eval } = launch;
    let groups = TaskSampler::new(&set, &job.tasks).groups();
    let trajectories = groups * u64::from(job.tasks.group_size);
    let evaluation = job
        .eval
        .as_ref()
        .zip(eval.as_ref())
        .map(|(config, set)| (config, TaskSampler::new(set, &config.tasks).groups()));
    if args.json {
        let eval = evaluation.map(|(config, problems)| {
            json!({ "every_versions": config.every_versions, "problems": problems, "group_size": config.tasks.group_size })
        });
        let plan = json!({
            "run_dir": job.run_dir, "policy": job.policy.choice.kind().as_str(), "tasks": set.specs().len(), "groups": groups,
            "trajectories": trajectories, "eval": eval, "notes": set.notes(), "job": job.resolved,
            "warnings": set.warnings().iter().chain(&found.warnings).chain(&found.low_disk).collect::<Vec<_>>(),
            "checked": found.passed,
        });
        return Ok(output::json(&plan)?);
    }
    output::line(job.resolved.trim_end());
    output::line("\n# the plan");
    output::line(format!("# run directory  {}", job.run_dir.display()));
    output::line(format!("# policy         {}", job.policy.choice.kind().as_str()));
    output::line(format!("# tasks          {}", set.specs().len()));
    output::line(format!(
        "# trajectories   {trajectories} in {groups} groups of {}, {} at once",
        job.tasks.group_size, job.env.sessions_max
    ));
    if let Some((config, problems)) = evaluation {
        output::line(format!(
            "# evaluation     of {problems} problems, {} trajectories each, every {} versions",
            config.tasks.group_size, config.every_versions
        ));
    }
    output::line("\n# checked on this machine");
    found.passed.iter().for_each(|passed| output::line(format!("# {passed}")));
    output::line(format!("# everything in {} ms", began.elapsed().as_millis()));
    Ok(())
}
