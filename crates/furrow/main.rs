//! The command line: reads a job file, checks it, starts services, looks at data sets.

mod budget;
mod commands;
mod job;
mod launch;
mod output;
mod progress;
mod prove;
mod recorded;
mod replay;
mod run_dir;
mod sessions;
mod tokens;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::commands::{
    bench, check, checkpoint, discarded, doctor, model, plan, publish, records, report, roles, run, score,
    tasks, view, watch,
};

/// Collects rollouts of computer-use agents in real browsers and writes them to Parquet.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Collect: start every role in this process and fill a run directory
    Run(run::RunArgs),
    /// Read, resolve and check a job file, print the plan, start nothing
    Check(check::CheckArgs),
    /// Start a coordinator alone
    Coordinator(roles::CoordinatorArgs),
    /// Start an environment worker alone: a pool of browsers
    Env(roles::WorkerArgs),
    /// Start a policy worker alone; with [policy.serve] it also answers OpenAI's chat protocol
    Policy(roles::PolicyArgs),
    /// Make weights the next policy version of a running job, and wait until its policy workers run it
    Publish(publish::PublishArgs),
    /// Report how many trajectories a trainer discarded: a running job that paces its admission by versions collects as many more
    Discarded(discarded::DiscardedArgs),
    /// Look at the tasks of a job
    #[command(subcommand)]
    Tasks(tasks::TasksCommand),
    /// Look at a data set, or prove that it can be trusted
    #[command(subcommand)]
    Records(records::RecordsCommand),
    /// Look at a data set in a browser: figures, and any trajectory step by step
    View(view::ViewArgs),
    /// Look at a run in a browser while it goes on: how far it is, how fast, and where the time goes
    Dashboard(view::DashboardArgs),
    /// Look at a run in a terminal: the figures of the dashboard, from one that is served somewhere or from a run directory
    Watch(watch::WatchArgs),
    /// Act recorded trajectories again in real browsers and say, step by step, where they differ
    Replay(commands::replay::ReplayArgs),
    /// Say how well the policy did, with intervals, and write a page of figures and plots of one run or of several side by side
    Report(report::ReportArgs),
    /// Score stored trajectories again, with scorers of today, into data/scores/
    Score(score::ScoreArgs),
    /// Say what a model takes on a device, how many sessions fit, and the floor of a rollout
    Plan(plan::PlanArgs),
    /// Write random checkpoints of the published architecture, or look at any
    #[command(subcommand)]
    Checkpoint(checkpoint::CheckpointCommand),
    /// Run a checkpoint by itself
    #[command(subcommand)]
    Model(model::ModelCommand),
    /// Say whether this machine is fit to run a farm, and what to do if not
    Doctor(doctor::DoctorArgs),
    /// Measure parts of the farm on this machine
    #[command(subcommand)]
    Bench(bench::BenchCommand),
}

/// Which job, and what to change in it.
#[derive(Debug, Args)]
struct JobArgs {
    /// Job file (TOML)
    job: PathBuf,
    /// Replace a key, such as `policy.sampling.temperature=0.7`; may be given again
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// What went wrong, and with it the exit status.
#[derive(Debug)]
enum Failure {
    /// The input is wrong: each line names a key, its value and what would be right. Exit status 2.
    Input(Vec<String>),
    /// The work failed. Exit status 1.
    Work(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::Work(error.into())
    }
}

fn main() -> ExitCode {
    #[cfg(feature = "failpoints")]
    furrow_coordinator::arm_fail_points();
    let outcome = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Coordinator(args) => roles::coordinator(&args),
        Command::Env(args) => roles::env(&args),
        Command::Policy(args) => roles::policy(&args),
        Command::Publish(args) => publish::run(&args),
        Command::Discarded(args) => discarded::run(&args),
        Command::Tasks(command) => tasks::run(&command),
        Command::Records(command) => records::run(&command),
        Command::View(args) => view::run(&args),
        Command::Dashboard(args) => view::dashboard(&args),
        Command::Watch(args) => watch::run(&args),
        Command::Replay(args) => commands::replay::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Score(args) => score::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Checkpoint(command) => checkpoint::run(&command),
        Command::Model(command) => model::run(&command),
        Command::Doctor(args) => doctor::run(&args),
        Command::Bench(command) => bench::run(&command),
    };
    match outcome.and_then(|()| all_was_printed()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Input(problems)) => {
            for problem in problems {
                output::complain(&problem);
            }
            ExitCode::from(2)
        }
        Err(Failure::Work(error)) => {
            output::complain(&chain(&error));
            if is_of_the_machine(&error) { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

/// Whether what a command found reached the place it was printed to.
fn all_was_printed() -> Result<(), Failure> {
    match output::lost() {
        Some(why) => Err(anyhow::anyhow!("the output cannot be written: {why}").into()),
        None => Ok(()),
    }
}

/// Whether the machine lacks what the job asks of it: the input is wrong for this place, as much as a wrong key is.
fn is_of_the_machine(error: &anyhow::Error) -> bool {
    let models = error.chain().filter_map(|cause| cause.downcast_ref::<furrow_policy::ModelError>());
    models.into_iter().any(furrow_policy::ModelError::is_of_the_machine)
}

/// An error and its causes on one line, a cause that repeats what was said left out.
fn chain(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}
