//! Merges many small files into one, and removes files that left the data set once no reader can
//! need them.
//!
//! A followed job closes a shard every two seconds; a data set of ten thousand files is slow to
//! open. The merged file is committed with `op: replace`; its parts move to `data/replaced/`, where
//! a reader that globs a table's folder does not read their rows a second time, and stay there for
//! a while for readers that opened an older version.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use furrow_rollout::{Id, Run};

use crate::durable::{create_durable_dir, remove, sync_dir};
use crate::file::{FileOrigin, IntegrityCheck, JobRows, TableFile, TableWriter};
use crate::manifest::FileAge;
use crate::schema::key;
use crate::schema_version::SchemaVersion;
use crate::shard::check_written;
use crate::{ManifestSnapshot, RecordsConfig, RecordsError, ShardPlan, ShardStage, Table, WrittenFile};

/// Folder of files that left the data set, below the data set's. Inside it, each keeps its path.
const REPLACED: &str = "replaced";

/// How much larger a merged file is than its largest part, at least: so a row is copied five times
/// at most on the way from 64 KiB to 64 MiB.
const GROWTH: u64 = 4;
/// Files up to this size are merged whatever the size of the others: to open one takes as long as
/// to copy it.
const COPIED_FREELY_BYTES: u64 = 64 << 10;

/// Files of one table and one schema version to merge, in the order of their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergePlan {
    /// The table of the files.
    pub table: Table,
    /// Number of the schema version of their columns, which the merged file has too.
    pub schema_version: u32,
    /// The files to merge.
    pub parts: Vec<WrittenFile>,
}

/// The small files of a data set and which of them can be merged with each other.
#[derive(Debug, Default)]
pub struct MergePlanner {
    /// Schema version of each small file that was looked at; `None` for one that is left alone.
    schemas: BTreeMap<String, Option<u32>>,
}

impl MergePlanner {
    /// What is worth merging now: per table, schema version and part of what is kept, as many small
    /// files as fit one shard, once enough have gathered. Scores are excluded: a job of its own
    /// wrote each of those files. `schema` reads the schema version of a file, once for each; a
    /// file without one is left alone.
    pub fn plan(
        &mut self,
        snapshot: &ManifestSnapshot,
        config: &RecordsConfig,
        mut schema: impl FnMut(&WrittenFile) -> Option<u32>,
    ) -> Vec<MergePlan> {
        self.schemas.retain(|path, _| snapshot.holds(path));
        let parts = config.retention.merge_parts(snapshot);
        let mut small: BTreeMap<(Table, u32, usize), Vec<&WrittenFile>> = BTreeMap::new();
        let is_small =
            |file: &WrittenFile| file.table != Table::Scores && file.bytes < config.merge_below_bytes;
        for age in snapshot.file_ages().filter(|age| is_small(age.file)) {
            let FileAge { file, .. } = age;
            let Some(part) = parts.of(&age) else { continue };
            let known = self.schemas.entry(file.path.clone()).or_insert_with(|| schema(file));
            if let Some(version) = *known {
                small.entry((file.table, version, part)).or_default().push(file);
            }
        }
        let plan = |((table, schema_version, _), files): ((Table, u32, usize), Vec<&WrittenFile>)| {
            let parts = choose(&files, config)?.into_iter().cloned().collect();
            Some(MergePlan { table, schema_version, parts })
        };
        small.into_iter().filter_map(plan).collect()
    }

    /// Leaves these files alone from now on; the others are merged.
    pub fn leave_alone(&mut self, paths: impl IntoIterator<Item = String>) {
        self.schemas.extend(paths.into_iter().map(|path| (path, None)));
    }
}

/// The parts of the next merge, in the order of their names: the smallest files, as many as a file
/// of this size or a full shard can take.
fn choose<'a>(files: &[&'a WrittenFile], config: &RecordsConfig) -> Option<Vec<&'a WrittenFile>> {
    let mut by_size = files.to_vec();
    by_size.sort_by_key(|file| (file.bytes, &file.path));
    let mut bytes: u64 = 0;
    let mut count = 0;
    for (index, file) in by_size.iter().enumerate() {
        if bytes.saturating_add(file.bytes) > config.max_shard_bytes {
            // Full: worth it, however few they are.
            count = if index > 1 { index } else { count };
            break;
        }
        bytes += file.bytes;
        let grows = file.bytes <= COPIED_FREELY_BYTES || file.bytes.saturating_mul(GROWTH) <= bytes;
        if index + 1 >= config.merge_files_min && grows {
            count = index + 1;
        }
    }
    by_size.truncate(count);
    by_size.sort_by_key(|file| &file.path);
    (count > 0).then_some(by_size)
}

/// The schema version of a file that may be merged into a file of this run; `None` for a file of
/// another run, one that names no job (schema version 1), and one that cannot be read.
pub fn mergeable_schema(data_dir: &Path, run_id: &Id<Run>, file: &WrittenFile) -> Option<u32> {
    let opened = TableFile::open(&data_dir.join(&file.path), file, IntegrityCheck::Length).ok()?;
    check_origin(&opened, run_id, file.table).ok()?;
    Some(opened.schema().number)
}

/// Copies all rows of the parts into one file, durable and checked like any other. The caller
/// commits it.
///
/// `shard.shard_id` must be new, and already in the ledger. The parts must come from one run and
/// have the columns of one schema version. Where several jobs wrote them, the footer names each
/// with its rows.
pub fn merge(
    shard: &ShardPlan,
    plan: &MergePlan,
    mut reached: impl FnMut(Table, ShardStage),
) -> Result<WrittenFile, RecordsError> {
    let refuse = |why: String| RecordsError::Unmergeable { table: plan.table, why };
    let version = plan.schema_version;
    let schema = SchemaVersion::find(version).ok_or_else(|| {
        refuse(format!("they have schema version {version}, which this furrow does not know"))
    })?;
    let mut jobs = Vec::new();
    for part in &plan.parts {
        let file = TableFile::open(&shard.data_dir.join(&part.path), part, IntegrityCheck::Length)?;
        check_origin(&file, &shard.run_id, plan.table)?;
        if file.schema() != schema {
            let other = file.schema().number;
            return Err(refuse(format!("{} has schema version {other}, not {version}", part.path)));
        }
        file.jobs().into_iter().for_each(|job| JobRows::push(&mut jobs, job));
    }
    let mut merged = TableWriter::create_as(shard, plan.table, &FileOrigin { schema, jobs })?;
    for part in &plan.parts {
        let file = TableFile::open(&shard.data_dir.join(&part.path), part, IntegrityCheck::Hash)?;
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

fn check_origin(file: &TableFile, run_id: &Id<Run>, table: Table) -> Result<(), RecordsError> {
    let refuse = |why: &str| Err(RecordsError::Unmergeable { table, why: why.into() });
    let run = file.origin(key::RUN_ID).and_then(|run| Id::<Run>::new(run).ok());
    if run.as_ref() != Some(run_id) {
        return refuse("they come from different runs");
    }
    if file.jobs().is_empty() {
        return refuse("a file of schema version 1 holds its job in its footer and names none");
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
