//! `furrow runs`: lists run directories, and removes one.

use std::io::{BufRead as _, IsTerminal as _};
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::run_dir::{self, RemovedRun};
use crate::run_list::{ListedRun, describe, runs_below};
use crate::{CommandFailure, output};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct RunsArgs {
    #[command(subcommand)]
    command: Option<RunsCommand>,
    /// Folder below which run directories are searched
    #[arg(default_value = "runs", value_name = "DIR")]
    folder: PathBuf,
    /// Print each run as a JSON object in a list instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum RunsCommand {
    /// Remove a run directory with everything that the run wrote; other files in it stay
    Remove(RemoveArgs),
}

#[derive(Debug, Args)]
struct RemoveArgs {
    /// Run directory to remove
    run: PathBuf,
    /// Answer the question with yes, as a script must
    #[arg(long)]
    yes: bool,
}

pub(crate) fn run(args: &RunsArgs) -> Result<(), CommandFailure> {
    if let Some(RunsCommand::Remove(args)) = &args.command {
        return remove(args);
    }
    let found = runs_below(&args.folder).map_err(|why| {
        CommandFailure::Input(vec![format!(
            "{}: {why}; name a folder with run directories",
            args.folder.display()
        )])
    })?;
    let runs: Vec<ListedRun> = found.iter().map(|dir| describe(dir)).collect();
    if args.json {
        return Ok(output::json(&runs)?);
    }
    if runs.is_empty() {
        output::line(format!("no run directory below {}", args.folder.display()));
        return Ok(());
    }
    let rows: Vec<Vec<String>> = runs.iter().map(row).collect();
    output::table(&["run", "state", "size", "trajectories", "started (UTC)", "policy", "directory"], &rows);
    Ok(())
}

fn row(run: &ListedRun) -> Vec<String> {
    let ListedRun { dir, name, state, bytes, trajectories, started, policy, .. } = run;
    let none = || "–".to_owned();
    vec![
        name.clone(),
        state.as_str().to_owned(),
        output::bytes(*bytes),
        trajectories.map_or_else(none, |count| count.to_string()),
        started.clone().unwrap_or_else(none),
        policy.clone(),
        dir.display().to_string(),
    ]
}

fn remove(args: &RemoveArgs) -> Result<(), CommandFailure> {
    let dir = &args.run;
    // Locked before it is described: no start may begin between the question and the answer.
    let lock = run_dir::lock_to_remove(dir)?;
    if !args.yes {
        ask(&describe_to_remove(args))?;
    }
    match run_dir::remove_run(dir, lock)? {
        RemovedRun::Whole => output::line(format!("removed {}", dir.display())),
        RemovedRun::Left(names) => output::line(format!(
            "removed the run in {}; kept what it did not write: {}",
            dir.display(),
            names.join(", ")
        )),
    }
    Ok(())
}

fn describe_to_remove(args: &RemoveArgs) -> String {
    let ListedRun { dir, bytes, trajectories, .. } = describe(&args.run);
    let count = trajectories.map_or_else(|| "unreadable".to_owned(), |count| count.to_string());
    format!("remove {} with {count} trajectories, {}?", dir.display(), output::bytes(bytes))
}

fn ask(question: &str) -> Result<(), CommandFailure> {
    let input = std::io::stdin();
    if !input.is_terminal() {
        return Err(CommandFailure::Input(vec![format!(
            "{question} Give --yes: there is no terminal to ask on"
        )]));
    }
    output::progress_line(format!("{question} [y/N]"));
    let mut answer = String::new();
    input.lock().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(CommandFailure::Input(vec!["nothing was removed".to_owned()])),
    }
}
