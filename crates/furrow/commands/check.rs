//! `furrow check`: reads, resolves and checks a job, prints the plan, starts nothing.

use clap::Args;
use furrow_tasks::TaskSampler;
use serde_json::json;

use crate::launch::{JobArgs, JobLaunch};
use crate::{CommandFailure, output};

#[derive(Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Print the resolved job and the plan as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &CheckArgs) -> Result<(), CommandFailure> {
    let JobLaunch { job, set, eval } = JobLaunch::read(&args.job)?.with_key()?.with_policy_key()?;
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
    Ok(())
}
