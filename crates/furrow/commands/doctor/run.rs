//! `furrow doctor --run`: what is wrong with a run directory, and `--repair`, which does what the
//! next start would do.

use std::path::{Path, PathBuf};

use furrow_coordinator::{
    PutAside, RepairedBy, RunFinding, RunInspection, RunRepair, inspect_run, repair_run,
};
use serde::Serialize;

use crate::job::stored;
use crate::{CommandFailure, output};

/// What is printed as JSON.
#[derive(Serialize)]
struct RunReport<'a> {
    run_dir: &'a Path,
    repaired: &'a [RunFinding],
    records_lost: &'a [String],
    #[serde(flatten)]
    inspection: &'a RunInspection,
}

/// Inspects a run directory; with `repair`, repairs it first. Fails where problems are left.
pub(super) fn check(run: &Path, repair: bool, as_json: bool) -> Result<(), CommandFailure> {
    if !run.is_dir() || !(run.join("ledger.sqlite").exists() || run.join("data").exists()) {
        let why = format!(
            "--run: {} is not a run directory; use the directory that holds ledger.sqlite",
            run.display()
        );
        return Err(CommandFailure::Input(vec![why]));
    }
    let repaired = if repair { Some(repair_run(run)?) } else { None };
    let (done, records_lost, mut inspection) = match repaired {
        Some(RunRepair { repaired, records_lost, left }) => (repaired, records_lost, left),
        None => (Vec::new(), Vec::new(), inspect_run(run)),
    };
    inspection.findings.extend(job_finding(run));
    if as_json {
        let report =
            RunReport { run_dir: run, repaired: &done, records_lost: &records_lost, inspection: &inspection };
        output::json(&report)?;
    } else {
        print(run, &done, &records_lost, &inspection);
    }
    conclude(run, &records_lost, &inspection)
}

/// The job that the run directory keeps must be readable.
fn job_finding(run: &Path) -> Option<RunFinding> {
    let what = match stored::read(run) {
        Ok(Some(_)) => return None,
        Ok(None) => "it is missing; the next start with the run's job writes it".to_owned(),
        Err(why) => why,
    };
    let path = PathBuf::from("job.toml");
    Some(RunFinding { path, what, rows: 0, repaired_by: RepairedBy::User, is_ordinary: false })
}

fn print(run: &Path, done: &[RunFinding], records_lost: &[String], found: &RunInspection) {
    if let Some(holder) = &found.holder {
        output::line(format!("{} is in use by {holder}: only what is committed was checked", run.display()));
    }
    for finding in done {
        output::line(format!("repaired  {}", sentence(finding)));
    }
    for id in records_lost {
        output::line(format!(
            "lost      {}: its record could not be read; it ended as record_lost",
            escaped(id)
        ));
    }
    for finding in &found.findings {
        let mark = if finding.is_ordinary { "note" } else { "BAD " };
        let remedy = match finding.repaired_by {
            RepairedBy::Start => " (the next start repairs it, or --repair)",
            RepairedBy::Backup => " (restore it from a backup: `furrow restore BACKUP DIR`)",
            RepairedBy::User => "",
        };
        output::line(format!("{mark}      {}{remedy}", sentence(finding)));
    }
    print_lost_and_found(run, &found.lost_and_found);
    output::line(format!(
        "{} committed files checked, {}",
        found.files_checked,
        output::bytes(found.bytes_checked)
    ));
}

fn sentence(finding: &RunFinding) -> String {
    let rows = match finding.rows {
        0 => String::new(),
        rows => format!(", with {rows} rows"),
    };
    format!("{}{rows}: {}", escaped(&finding.path.to_string_lossy()), escaped(&finding.what))
}

/// Lists what earlier starts could not account for: files without a shard, damaged spool files,
/// unreadable manifest commits.
fn print_lost_and_found(run: &Path, entries: &[PutAside]) {
    if entries.is_empty() {
        return;
    }
    output::line(format!("{} entries in lost+found; remove those you do not need:", entries.len()));
    for PutAside { from, kept_as, why, copied_bytes } in entries {
        let how = copied_bytes
            .map_or_else(|| "moved".to_owned(), |bytes| format!("copied, {}", output::bytes(bytes)));
        output::line(format!(
            "  {}  ({how})\n      was {}: {}",
            escaped(&run.join(kept_as).to_string_lossy()),
            escaped(&from.to_string_lossy()),
            escaped(why)
        ));
    }
}

fn conclude(run: &Path, records_lost: &[String], found: &RunInspection) -> Result<(), CommandFailure> {
    let problems = found.problems().count();
    let rows: u64 = found.problems().map(|finding| finding.rows).sum();
    match (problems, records_lost.len()) {
        (0, 0) => Ok(()),
        (0, lost) => {
            Err(anyhow::anyhow!("{}: repaired; {lost} trajectories lost their record", run.display()).into())
        }
        (problems, _) => Err(anyhow::anyhow!(
            "{}: {problems} problems, {rows} rows of the data set affected",
            run.display()
        )
        .into()),
    }
}

/// A name may hold a line break or a terminal's control characters: print them as escapes.
fn escaped(text: &str) -> String {
    text.escape_debug().to_string()
}
