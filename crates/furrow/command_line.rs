//! The commands of `furrow`, and which code runs each.

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::commands::{
    backup, check, checkpoint, discarded, doctor, identity, init, model, plan, publish, records, replay,
    report, roles, run, runs, score, shell, tasks, view, watch,
};
use crate::{exit_code, output, renamed, suggested};

/// Collect rollouts of computer-use agents in real browsers and write them to Parquet.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write a commented job to begin with: for a first run, pages of your own, a server on
    /// localhost, WebVoyager, a GPU, or an evaluation
    Init(init::InitArgs),
    /// Run every role in one process and fill a run directory
    Run(run::RunArgs),
    /// Check a job: read and resolve it, open what it names on this machine (start pages, browser,
    /// directories, checkpoint), print the plan; nothing that it starts stays
    Check(check::CheckArgs),
    /// Start a coordinator alone, for a farm of several processes or machines
    Coordinator(roles::CoordinatorArgs),
    /// Start an environment worker alone: a pool of browsers
    Env(roles::WorkerArgs),
    /// Start a policy worker alone; with [policy.serve] it also serves OpenAI's chat protocol, and
    /// with --serve-only nothing else
    Policy(roles::PolicyArgs),
    /// Publish weights as the next policy version of a running job, and wait until its policy
    /// workers run it
    Publish(publish::PublishArgs),
    /// Report how many trajectories a trainer discarded; a job that paces its admission by versions
    /// collects as many more
    Discarded(discarded::DiscardedArgs),
    /// Issue identities to processes of a run on other machines
    #[command(subcommand)]
    Identity(identity::IdentityCommand),
    /// List the run directories below a folder, or remove one
    Runs(runs::RunsArgs),
    /// Back a run directory up while its run goes on: consistent, verified, and continued where an
    /// earlier try stopped
    Backup(backup::BackupArgs),
    /// Restore a backup as a run directory, every file by its hash
    Restore(backup::RestoreArgs),
    /// List, check or sample the tasks of a job
    #[command(subcommand)]
    Tasks(tasks::TasksCommand),
    /// Inspect a data set, or verify that it can be trusted
    #[command(subcommand)]
    Records(records::RecordsCommand),
    /// Serve web pages over a data set: metrics, and every trajectory step by step
    View(view::ViewArgs),
    /// Serve web pages over a run in progress: how far it is, how fast, and where the time goes
    Dashboard(view::DashboardArgs),
    /// Show the dashboard's metrics in a terminal, from a served dashboard or from a run directory
    Watch(watch::WatchArgs),
    /// Replay recorded trajectories in real browsers and report, step by step, where they differ
    Replay(replay::ReplayArgs),
    /// Report success rates with intervals, and write a page of metrics and plots of one run or of
    /// several side by side
    Report(report::ReportArgs),
    /// Score stored trajectories again with today's scorers, into data/scores/
    Score(score::ScoreArgs),
    /// Compute what a model needs on a device, how many sessions fit, and the lower bound of a
    /// rollout's time
    Plan(plan::PlanArgs),
    /// Write random checkpoints of the published architecture, or inspect any checkpoint
    #[command(subcommand)]
    Checkpoint(checkpoint::CheckpointCommand),
    /// Run a checkpoint outside of a farm
    #[command(subcommand)]
    Model(model::ModelCommand),
    /// Check whether this machine can run a farm, and say what to do if not
    Doctor(doctor::DoctorArgs),
    /// Print the script with which a shell completes the commands
    Completions(shell::CompletionsArgs),
    /// Write manual pages of all commands to a directory
    Man(shell::ManArgs),
}

/// Reads the command line, runs the command, and returns the exit status of the program.
pub fn run_command_line() -> ExitCode {
    if let Some(status) = furrow_env::become_namespace_helper() {
        return status;
    }
    #[cfg(feature = "failpoints")]
    furrow_coordinator::arm_fail_points();
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => {
            let Some(renamed) = renamed::explain(&error) else {
                let arguments: Vec<String> =
                    std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
                suggested::with_suggestion(error, &Cli::command(), &arguments).exit();
            };
            output::error_line(&renamed);
            return ExitCode::from(2);
        }
    };
    furrow_wire::raise_descriptor_limit();
    let outcome = match command {
        Command::Init(args) => init::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Coordinator(args) => roles::coordinator(&args),
        Command::Env(args) => roles::env(&args),
        Command::Policy(args) => roles::policy(&args),
        Command::Publish(args) => publish::run(&args),
        Command::Discarded(args) => discarded::run(&args),
        Command::Identity(command) => identity::run(&command),
        Command::Runs(args) => runs::run(&args),
        Command::Backup(args) => backup::backup(&args),
        Command::Restore(args) => backup::restore(&args),
        Command::Tasks(command) => tasks::run(&command),
        Command::Records(command) => records::run(&command),
        Command::View(args) => view::run(&args),
        Command::Dashboard(args) => view::dashboard(&args),
        Command::Watch(args) => watch::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Score(args) => score::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Checkpoint(command) => checkpoint::run(&command),
        Command::Model(command) => model::run(&command),
        Command::Doctor(args) => doctor::run(&args),
        Command::Completions(args) => shell::completions(&args, Cli::command()),
        Command::Man(args) => shell::man(&args, Cli::command()),
    };
    exit_code(outcome)
}
