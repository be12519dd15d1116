//! The job that a run directory keeps: resolved, perhaps by an earlier release.

use std::path::Path;

use toml::{Table, Value};

use super::renamed;
use super::tree::{self, ConfigNode};
use crate::{identity, run_dir};

/// How the text of a resolved job begins. Releases have written it so since v0.1.0.
pub(crate) const HEADER: &str = "# The whole job: ";

/// A resolved job as it lies in a run directory.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StoredJob {
    /// Its text, with the keys of the release that wrote it.
    pub text: String,
    /// The same with the keys of today.
    pub table: Table,
}

/// Reads a resolved job under the keys of today.
///
/// # Errors
/// What TOML says of the text.
pub(crate) fn table(text: &str) -> Result<Table, String> {
    let mut tree = tree::parse(text).map_err(|problems| {
        problems.iter().map(|problem| problem.text.as_str()).collect::<Vec<_>>().join("; ")
    })?;
    renamed::apply(&mut tree);
    match tree.into_toml() {
        Value::Table(table) => Ok(table),
        _ => unreachable!("a file of TOML is a table"),
    }
}

/// The job of the run in this directory; `None`: it keeps none.
///
/// # Errors
/// A sentence with the file's path and what to do: it cannot be read, is empty, or is not TOML.
pub(crate) fn read(run: &Path) -> Result<Option<StoredJob>, String> {
    let refused = |why: &dyn std::fmt::Display| {
        format!(
            "{}: {why}; put the job that began this run there, or move the file away: --resume writes it again",
            run.join("job.toml").display()
        )
    };
    let Some(text) = run_dir::job_text(run).map_err(|why| refused(&why))? else { return Ok(None) };
    // A power cut leaves this of a file that was written without a sync.
    if text.trim().is_empty() {
        return Err(refused(&"it is empty"));
    }
    let table = table(&text).map_err(|why| refused(&why))?;
    Ok(Some(StoredJob { text, table }))
}

/// Gives the keys of a run's identity that a job does not set the values that the run began with.
/// `alone` is what the job would be without them. Returns a note for each value that differs.
pub(crate) fn inherit(job: &mut ConfigNode, began: &Table, alone: &Table) -> Vec<String> {
    let mut notes = Vec::new();
    for key in identity::KEYS {
        if let Some(value) = identity::at(began, key) {
            inherit_below(job, key, value, identity::at(alone, key), &mut notes);
        }
    }
    notes
}

fn inherit_below(
    job: &mut ConfigNode,
    key: &str,
    value: &Value,
    alone: Option<&Value>,
    notes: &mut Vec<String>,
) {
    // A section that only exists if the job has it, such as [score.judge], is not brought back.
    if alone.is_none() && !job.has(key.rsplit_once('.').map_or(key, |(section, _)| section)) {
        return;
    }
    match value {
        Value::Table(table) => {
            for (name, value) in table {
                let alone = alone.and_then(|alone| alone.get(name));
                inherit_below(job, &format!("{key}.{name}"), value, alone, notes);
            }
        }
        Value::Array(entries) if job.has(key) && entries.iter().any(Value::is_table) => {
            for (index, entry) in entries.iter().enumerate() {
                let key = format!("{key}[{index}]");
                if job.has(&key) {
                    let alone = alone.and_then(|alone| alone.get(index));
                    inherit_below(job, &key, entry, alone, notes);
                }
            }
        }
        value => {
            if job.inherit(key, value) && alone != Some(value) {
                notes.push(format!("{key}: {value}, as when the run began; this job does not set it"));
            }
        }
    }
}
