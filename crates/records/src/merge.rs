//! Merges many small files into one, and removes the parts once no reader can need them.
//!
//! A followed job closes a shard every two seconds; a data set of ten thousand files is slow to
//! open. The merged file is committed with `op: replace`; its parts move to `data/replaced/`, where
//! a reader that globs a table's folder does not read their rows a second time, and stay there for
//! a while for readers that opened an older version.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use furrow_rollout::{Id, Run, SCHEMA_VERSION};

use crate::durable::{create_durable_dir, remove, sync_dir};
use crate::file::{IntegrityCheck, TableFile, TableWriter};
use crate::schema::key;
use crate::shard::check_written;
use crate::{ManifestSnapshot, RecordsConfig, RecordsError, ShardPlan, ShardStage, Table, WrittenFile, jobs};

/// Folder of the parts of merged files, below the data set's. Inside it, each keeps its path.
const REPLACED: &str = "replaced";

/// Files of one table to merge, in the order of their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergePlan {
    /// The table of the files.
    pub table: Table,
    /// The files to merge.
    pub parts: Vec<WrittenFile>,
}

/// What is worth merging now: per table, as many small files as fit one shard, once enough have
/// gathered. Scores are excluded: a job of its own wrote each of those files. `foreign` holds paths
/// of files known to be from another job ([`foreign`]).
pub fn plan(
    snapshot: &ManifestSnapshot,
    config: &RecordsConfig,
    foreign: &BTreeSet<String>,
) -> Vec<MergePlan> {
    let tables = Table::ALL.into_iter().filter(|table| *table != Table::Scores);
    tables.filter_map(|table| plan_table(snapshot, config, foreign, table)).collect()
}

/// Paths of the parts that cannot be merged with what `shard` writes: a run that was resumed with
/// other settings, or by a later version with more of them or with another schema, keeps its
/// earlier files as they are.
pub fn foreign(shard: &ShardPlan, plan: &MergePlan) -> Result<Vec<String>, RecordsError> {
    let mut found = Vec::new();
    for part in &plan.parts {
        let file = TableFile::open(&shard.data_dir.join(&part.path), part, IntegrityCheck::Length)?;
        if check_origin(&file, shard, plan.table).is_err() {
            found.push(part.path.clone());
        }
    }
    Ok(found)
}

fn plan_table(
    snapshot: &ManifestSnapshot,
    config: &RecordsConfig,
    foreign: &BTreeSet<String>,
    table: Table,
) -> Option<MergePlan> {
    let is_small =
        |file: &&WrittenFile| file.bytes < config.merge_below_bytes && !foreign.contains(&file.path);
    let small = snapshot.files(table).filter(is_small);
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

/// Copies all rows of the parts into one file, durable and checked like any other. The caller
/// commits it.
///
/// `shard.shard_id` must be new, and already in the ledger. The parts must come from one run and
/// one job, and have today's columns: an older file does not become one of today with nulls.
pub fn merge(
    shard: &ShardPlan,
    plan: &MergePlan,
    mut reached: impl FnMut(Table, ShardStage),
) -> Result<WrittenFile, RecordsError> {
    let mut merged = TableWriter::create(shard, plan.table)?;
    for part in &plan.parts {
        let file = TableFile::open(&shard.data_dir.join(&part.path), part, IntegrityCheck::Hash)?;
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
    let version = file.schema().number;
    if version != SCHEMA_VERSION {
        return refuse(&format!("they have schema version {version}, new files have {SCHEMA_VERSION}"));
    }
    if file.origin(key::JOB_SHA256) != Some(&jobs::sha256(&shard.job_toml)) {
        return refuse("they were written by different jobs");
    }
    Ok(())
}

/// Path of a part after it was set aside.
pub(crate) fn replaced_path(data_dir: &Path, path: &str) -> PathBuf {
    data_dir.join(REPLACED).join(path)
}

/// Moves files that a commit removed out of their tables' folders. May be repeated: files already
/// moved stay where they are.
pub fn set_aside<'a>(
    data_dir: &Path,
    paths: impl IntoIterator<Item = &'a String>,
) -> Result<(), RecordsError> {
    let mut tables = BTreeSet::new();
    for path in paths {
        let from = data_dir.join(path);
        let to = replaced_path(data_dir, path);
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

/// Moves files that belong to the data set back from the folder of replaced files. A file that is
/// already in its own folder stays.
pub fn put_back(data_dir: &Path, snapshot: &ManifestSnapshot) -> Result<(), RecordsError> {
    for file in Table::ALL.iter().flat_map(|table| snapshot.files(*table)) {
        let from = replaced_path(data_dir, &file.path);
        let to = data_dir.join(&file.path);
        let is_aside = to.symlink_metadata().is_err() && from.symlink_metadata().is_ok();
        if is_aside {
            std::fs::rename(&from, &to).map_err(RecordsError::io("move back", &from))?;
            [from.parent(), to.parent()].into_iter().flatten().try_for_each(sync_dir)?;
        }
    }
    Ok(())
}

/// Result of removing parts whose grace is over.
#[derive(Debug, Default)]
pub struct RetireSummary {
    /// Paths of the removed parts.
    pub removed: Vec<PathBuf>,
    /// Merged files that are damaged or missing: their parts are kept as the only copy.
    pub damaged: Vec<RecordsError>,
    /// Files that the manifest may forget: their grace is over and they are not there any more, as
    /// it lists them.
    pub gone: Vec<String>,
}

/// Removes files that a commit removed at least `grace` ago, once the file they were merged into
/// was read and verified.
pub fn retire(
    data_dir: &Path,
    snapshot: &ManifestSnapshot,
    now_micros: i64,
    grace: Duration,
) -> Result<RetireSummary, RecordsError> {
    let grace = i64::try_from(grace.as_micros()).unwrap_or(i64::MAX);
    let due = snapshot
        .removed()
        .iter()
        .filter(|(_, removed)| now_micros.saturating_sub(removed.at_micros) >= grace);
    let mut retired = RetireSummary::default();
    let mut is_whole = BTreeMap::new();
    for (path, _) in due {
        let part = replaced_path(data_dir, path);
        if part.symlink_metadata().is_err() {
            retired.gone.push(path.clone());
            continue;
        }
        let is_whole = snapshot.holder(path).map_or(snapshot.is_expired(path), |holder| {
            *is_whole.entry(&holder.path).or_insert_with(|| match check_written(data_dir, holder) {
                Ok(()) => true,
                Err(damage) => {
                    retired.damaged.push(damage);
                    false
                }
            })
        });
        if is_whole && remove(&part)? {
            retired.removed.push(part);
            retired.gone.push(path.clone());
        }
    }
    Ok(retired)
}
