//! Writes the files of one shard: whole trajectories in, durable Parquet files out.
//!
//! The caller does the rest of the commit: the ids of the shard and its trajectories are in the
//! ledger before `create`, the ledger records the files after `finish`, the manifest names them
//! after that. Whatever fails in between, `remove_shard` removes what was left.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use furrow_rollout::{GroupRecord, Id, Shard, StepRecord, TrajectoryRecord, TrajectoryStatus};

use crate::durable::{remove, sync_dir};
use crate::file::{IntegrityCheck, TableFile, TableWriter, final_name, temp_name};
use crate::rows::{RescoreRecord, RowError};
use crate::schema::{GroupRow, ScoreRow, StepRow, TrajectoryRow};
use crate::{RecordsError, ShardPlan, ShardStage, Table, WrittenFile};

/// Writes one shard. Rows are encoded at once, so it holds about one row group per table and the
/// current trajectory.
///
/// After an error it can only be dropped, which removes the temporary files.
pub struct ShardWriter {
    plan: ShardPlan,
    files: BTreeMap<Table, TableWriter>,
}

/// A file found in a table's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalFile {
    /// The table of the folder.
    pub table: Table,
    /// Path of the file.
    pub path: PathBuf,
    /// Path below `data/`, as the manifest would list it.
    pub name: String,
    /// The shard it belongs to; `None` where the name is not that of a shard file.
    pub shard_id: Option<Id<Shard>>,
    /// Whether its name is a temporary one.
    pub temporary: bool,
}

impl ShardWriter {
    /// Begins a shard without rows. A table's file is created with its first row.
    pub fn create(plan: ShardPlan) -> Self {
        Self { plan, files: BTreeMap::new() }
    }

    /// Adds a trajectory and its steps in order. Scored ones go to `steps`, failed ones to
    /// `failed_steps`.
    pub fn add_trajectory(
        &mut self,
        trajectory: &TrajectoryRecord,
        steps: &[StepRecord],
    ) -> Result<(), RecordsError> {
        let row = TrajectoryRow::new(trajectory).map_err(unwritable(trajectory))?;
        let bytes = row.evidence.as_ref().and_then(|evidence| evidence.screenshot.as_ref());
        let bytes = bytes.map_or(0, |image| image.bytes.len());
        self.file(Table::Trajectories)?.add(vec![row], bytes)?;
        let table = match trajectory.status {
            TrajectoryStatus::Scored => Table::Steps,
            TrajectoryStatus::Failed => Table::FailedSteps,
        };
        self.add_steps(table, trajectory, steps)
    }

    /// Adds the row of a closed group.
    pub fn add_group(&mut self, group: &GroupRecord) -> Result<(), RecordsError> {
        self.file(Table::Groups)?.add(vec![GroupRow::new(group)], 0)
    }

    /// Adds a later verdict on a stored trajectory.
    pub fn add_rescore(&mut self, rescore: &RescoreRecord) -> Result<(), RecordsError> {
        let refused = |why: RowError| RecordsError::Unwritable {
            what: format!("a score of {}", rescore.ancestry.trajectory_id),
            why: why.to_string(),
        };
        let row = ScoreRow::new(rescore).map_err(refused)?;
        self.file(Table::Scores)?.add(vec![row], 0)
    }

    /// Bytes of all files so far, for closing by size.
    pub fn bytes(&self) -> u64 {
        self.files.values().map(TableWriter::bytes).sum()
    }

    /// Makes the files durable under their final names, one after another, and returns what the
    /// manifest must list.
    ///
    /// Calls `reached` after every stage of a file, for crash points.
    pub fn finish(
        self,
        mut reached: impl FnMut(Table, ShardStage),
    ) -> Result<Vec<WrittenFile>, RecordsError> {
        self.files.into_values().map(|file| file.seal(&mut reached)).collect()
    }

    fn file(&mut self, table: Table) -> Result<&mut TableWriter, RecordsError> {
        use std::collections::btree_map::Entry;
        match self.files.entry(table) {
            Entry::Occupied(file) => Ok(file.into_mut()),
            Entry::Vacant(vacant) => Ok(vacant.insert(TableWriter::create(&self.plan, table)?)),
        }
    }

    fn add_steps(
        &mut self,
        table: Table,
        trajectory: &TrajectoryRecord,
        steps: &[StepRecord],
    ) -> Result<(), RecordsError> {
        let cap = self.plan.row_group_bytes;
        let mut rest = steps;
        while !rest.is_empty() {
            let (part, bytes) = leading(rest, cap);
            let to_row = |(index, step)| StepRow::new(trajectory, step, rest.len() == index + 1);
            let rows = part.iter().enumerate().map(to_row).collect::<Result<Vec<_>, _>>();
            let file = self.file(table)?;
            file.add(rows.map_err(unwritable(trajectory))?, bytes)?;
            file.add_gaps(part.iter().flat_map(StepRecord::prefill_gaps));
            rest = &rest[part.len()..];
        }
        Ok(())
    }
}

/// The first steps that fit a row group together, at least one, and their size.
fn leading(steps: &[StepRecord], cap: usize) -> (&[StepRecord], usize) {
    let mut bytes = 0;
    for (index, step) in steps.iter().enumerate() {
        let more = step_bytes(step);
        if index > 0 && bytes + more > cap {
            return (&steps[..index], bytes);
        }
        bytes += more;
    }
    (steps, bytes)
}

/// The dominant parts of a step: the picture, and the tokens before compression.
fn step_bytes(step: &StepRecord) -> usize {
    let tokens = step.trace.tokens.as_ref();
    let tokens =
        tokens.map_or(0, |tokens| tokens.prompt_token_ids.len() + 8 * tokens.response_token_ids.len());
    step.observation.screenshot.bytes.len() + 4 * tokens
}

fn unwritable(trajectory: &TrajectoryRecord) -> impl FnOnce(RowError) -> RecordsError {
    let what = format!("trajectory {}", trajectory.ancestry.trajectory_id);
    move |why| RecordsError::Unwritable { what, why: why.to_string() }
}

/// Reopens a written file and compares rows, columns and hash: a restart repeats this check before
/// it commits.
pub fn check_written(data_dir: &Path, file: &WrittenFile) -> Result<(), RecordsError> {
    TableFile::open(&data_dir.join(&file.path), file, IntegrityCheck::Hash).map(drop)
}

/// The manifest entry of a file in a table's folder: its length, rows and hash come from the file
/// itself.
pub fn written_file(
    data_dir: &Path,
    table: Table,
    shard_id: &Id<Shard>,
) -> Result<WrittenFile, RecordsError> {
    TableFile::described(data_dir, table, shard_id)
}

/// Every file in the tables' folders, temporary ones included, so that a restart can remove those
/// its ledger does not know.
pub fn local_files(data_dir: &Path) -> Result<Vec<LocalFile>, RecordsError> {
    let mut found = Vec::new();
    for table in Table::ALL {
        let dir = data_dir.join(table.as_str());
        if !dir.is_dir() {
            continue;
        }
        for entry in std::fs::read_dir(&dir).map_err(RecordsError::io("list", &dir))? {
            let path = entry.map_err(RecordsError::io("list", &dir))?.path();
            found.push(local_file(table, path));
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn local_file(table: Table, path: PathBuf) -> LocalFile {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let temporary = name.strip_prefix('.').and_then(|name| name.strip_suffix(".parquet.tmp"));
    let shard = temporary.or_else(|| name.strip_suffix(".parquet"));
    LocalFile {
        table,
        shard_id: shard.and_then(|shard| Id::new(shard).ok()),
        temporary: temporary.is_some(),
        name: format!("{table}/{name}"),
        path,
    }
}

/// Removes the files of a shard, under their temporary and final names. Only for shards that no
/// commit names.
pub fn remove_shard(data_dir: &Path, shard_id: &Id<Shard>) -> Result<(), RecordsError> {
    for table in Table::ALL {
        let dir = data_dir.join(table.as_str());
        let names = [temp_name(shard_id), final_name(shard_id)];
        let removed = names.iter().map(|name| remove(&dir.join(name))).collect::<Result<Vec<_>, _>>()?;
        if removed.contains(&true) {
            sync_dir(&dir)?;
        }
    }
    Ok(())
}
