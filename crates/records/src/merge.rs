//! Makes one file of many small ones, and removes the parts when no reader can still want them.
//!
//! A followed job closes a shard every two seconds; a data set of ten thousand files is slow to open everywhere. The merged file
//! is committed with `op: replace`; its parts are set aside in `data/replaced/`, where whoever globs a table's folder does not read their
//! rows a second time, and stay there for a while for readers that opened an older version.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use furrow_rollout::{Id, Run};

use crate::file::{TableFile, TableWriter, Trust, create_durable_dir, sync_dir};
use crate::schema::key;
use crate::shard::remove;
use crate::{RecordsConfig, RecordsError, ShardPlan, ShardStage, Snapshot, Table, WrittenFile};

/// Folder of the parts of merged files, below the data set's. Inside, each has the path it had.
const REPLACED: &str = "replaced";

/// Files of one table that should become one, in the order of their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergePlan {
    /// Their table.
    pub table: Table,
    /// The parts.
    pub parts: Vec<WrittenFile>,
}

/// What is worth merging now: per table, as many small files as fit one shard, once enough have gathered. Scores are left alone:
/// each file of them was written by a job of its own.
pub fn plan(snapshot: &Snapshot, config: &RecordsConfig) -> Vec<MergePlan> {
    let tables = Table::ALL.into_iter().filter(|table| *table != Table::Scores);
    tables.filter_map(|table| plan_table(snapshot, config, table)).collect()
}

fn plan_table(snapshot: &Snapshot, config: &RecordsConfig, table: Table) -> Option<MergePlan> {
    let small = snapshot.files(table).filter(|file| file.bytes < config.merge_below_bytes);
    let mut bytes = 0;
    let parts: Vec<WrittenFile> = small
        .take_while(|file| {
            bytes += file.bytes;
            bytes <= config.max_shard_bytes
        })
        .cloned()
        .collect();
    (parts.len() >= config.merge_files_min).then_some(MergePlan { table, parts })
}

/// Copies all rows of the parts into one file, durable and checked like any other; the commit is the caller's.
///
/// `shard.shard_id` must be new, and in the ledger before. The parts must come from one run and one job.
pub fn merge(
    shard: &ShardPlan,
    plan: &MergePlan,
    mut reached: impl FnMut(Table, ShardStage),
) -> Result<WrittenFile, RecordsError> {
    let mut merged = TableWriter::create(shard, plan.table)?;
    for part in &plan.parts {
        let file = TableFile::open(&shard.data_dir.join(&part.path), part, Trust::Hash)?;
        check_origin(&file, shard, plan.table)?;
        merged.begin_rows(part.bytes as usize)?;
        if let Some(value) = file.origin(key::PREFILL_GAP) {
            merged.add_gap_footer(value);
        }
        for batch in file.batches()? {
            merged.add_batch(&batch?)?;
        }
    }
    merged.seal(&mut reached)
}

fn check_origin(file: &TableFile, shard: &ShardPlan, table: Table) -> Result<(), RecordsError> {
    let refuse = |why: &str| Err(RecordsError::Unmergeable { table, why: why.into() });
    let run = file.origin(key::RUN_ID).and_then(|run| Id::<Run>::new(run).ok());
    if run.as_ref() != Some(&shard.run_id) {
        return refuse("they come from different runs");
    }
    if file.origin(key::JOB) != Some(&shard.job_toml) {
        return refuse("they were written by different jobs");
    }
    Ok(())
}

/// Where a part lies once it was set aside.
pub(crate) fn aside(data_dir: &Path, path: &str) -> PathBuf {
    data_dir.join(REPLACED).join(path)
}

/// Moves files that a commit took away out of their tables' folders. What was moved already stays where it is, so it may be repeated.
pub fn set_aside<'a>(
    data_dir: &Path,
    paths: impl IntoIterator<Item = &'a String>,
) -> Result<(), RecordsError> {
    let mut tables = BTreeSet::new();
    for path in paths {
        let (from, to) = (data_dir.join(path), aside(data_dir, path));
        if let Some(folder) = to.parent() {
            create_durable_dir(folder)?;
        }
        match std::fs::rename(&from, &to) {
            Ok(()) => tables.extend(from.parent().into_iter().chain(to.parent()).map(Path::to_owned)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(RecordsError::io("set aside", &from)(error)),
        }
    }
    tables.iter().try_for_each(|folder| sync_dir(folder))
}

/// Removes files that a commit took away at least `grace` ago. Returns those it removed.
pub fn retire(
    data_dir: &Path,
    snapshot: &Snapshot,
    now_micros: i64,
    grace: Duration,
) -> Result<Vec<PathBuf>, RecordsError> {
    let grace = i64::try_from(grace.as_micros()).unwrap_or(i64::MAX);
    let due = snapshot.removed().iter().filter(|(_, at)| now_micros.saturating_sub(**at) >= grace);
    let mut retired = Vec::new();
    for (path, _) in due {
        let part = aside(data_dir, path);
        if remove(&part)? {
            retired.push(part);
        }
    }
    Ok(retired)
}
