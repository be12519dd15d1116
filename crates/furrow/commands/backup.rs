//! `furrow backup` and `furrow restore`: a run directory is copied while its run goes on, and comes
//! back whole or not at all.

use std::path::PathBuf;

use clap::Args;
use furrow_coordinator::{BackupDamage, BackupError, restore_backup, take_backup};

use crate::{CommandFailure, output};

#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    /// Run directory to back up; its run may go on meanwhile
    run: PathBuf,
    /// Folder of the backup: a new one, or an incomplete backup of the same run, which is continued
    backup: PathBuf,
    /// Print files, bytes and damage as JSON instead of lines
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// Folder of a backup that `furrow backup` completed
    backup: PathBuf,
    /// Run directory to create; it must not exist yet, or be empty
    run: PathBuf,
    /// Print files, bytes and damage as JSON instead of lines
    #[arg(long)]
    json: bool,
}

pub(crate) fn backup(args: &BackupArgs) -> Result<(), CommandFailure> {
    let summary = take_backup(&args.run, &args.backup).map_err(failure)?;
    if args.json {
        output::json(&summary)?;
    } else {
        for path in &summary.left_out {
            output::line(format!("left out {}: a link or a special file", escaped(&path.to_string_lossy())));
        }
        output::line(format!(
            "{}: {} files, {}, verified",
            args.backup.display(),
            summary.files,
            output::bytes(summary.bytes)
        ));
    }
    check_undamaged(&summary.damaged, args.json)
}

pub(crate) fn restore(args: &RestoreArgs) -> Result<(), CommandFailure> {
    let summary = restore_backup(&args.backup, &args.run).map_err(failure)?;
    if args.json {
        output::json(&summary)?;
    } else {
        output::line(format!(
            "{}: {} files, {} of run {} restored, each with its recorded hash",
            args.run.display(),
            summary.files,
            output::bytes(summary.bytes),
            escaped(&summary.run_id)
        ));
    }
    check_undamaged(&summary.damaged, args.json)
}

/// The copy is whole, but what it was taken of was not: a script must notice.
fn check_undamaged(damaged: &[BackupDamage], as_json: bool) -> Result<(), CommandFailure> {
    if damaged.is_empty() {
        return Ok(());
    }
    if !as_json {
        for BackupDamage { path, why } in damaged {
            output::line(format!("damaged {}: {}", escaped(path), escaped(why)));
        }
    }
    let what = "findings in the run directory when it was backed up; the backup holds it as it was";
    Err(anyhow::anyhow!("{} {what}", damaged.len()).into())
}

fn failure(error: BackupError) -> CommandFailure {
    match error {
        BackupError::NoRun { .. } | BackupError::Occupied { .. } | BackupError::List { .. } => {
            CommandFailure::Input(vec![error.to_string()])
        }
        other => other.into(),
    }
}

/// A name may hold a line break or a terminal's control characters: print them as escapes.
fn escaped(text: &str) -> String {
    text.escape_debug().to_string()
}
