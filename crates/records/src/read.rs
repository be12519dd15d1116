//! Reads a data set back into domain types, following its manifest: each row once and whole, or an
//! error that names the file.

use std::path::{Path, PathBuf};

use furrow_rollout::{GroupRecord, SCHEMA_VERSION, TrajectoryRecord};

use crate::cell::ColumnCell;
use crate::file::{IntegrityCheck, TableFile};
use crate::gap::LogprobGap;
use crate::rows::{RecordedStep, RescoreRecord, RowError};
use crate::schema::{GroupRow, ScoreRow, StepRow, TrajectoryRow, key};
use crate::{Manifest, ManifestSnapshot, RecordsError, StoredCommits, Table, WrittenFile, jobs, merge};

/// A data set on a local disk, as of its newest commit when it was opened.
pub struct DataSet {
    data_dir: PathBuf,
    snapshot: ManifestSnapshot,
}

/// Records of a table, one at a time. A file that cannot be read yields one error; the iterator
/// then continues with the next file.
pub type RecordIter<'a, N> = Box<dyn Iterator<Item = Result<N, RecordsError>> + 'a>;

impl DataSet {
    /// Opens a run directory or its `data` folder. Blocks; in async code call it from a blocking
    /// thread.
    pub fn open(dir: &Path) -> Result<Self, RecordsError> {
        let data_dir = data_dir(dir)?;
        let store = Manifest::local_store(&data_dir)?;
        let manifest = futures::executor::block_on(Manifest::open(store))?;
        Ok(Self { data_dir, snapshot: manifest.snapshot().clone() })
    }

    /// The same from every commit and no checkpoint, to check the whole manifest. The second value
    /// is whether the newest checkpoint says the same.
    pub(crate) fn open_whole(dir: &Path) -> Result<(Self, bool), RecordsError> {
        let data_dir = data_dir(dir)?;
        let store = Manifest::local_store(&data_dir)?;
        let stored = futures::executor::block_on(StoredCommits::read(&store))?;
        let newest = stored.newest();
        let snapshot = stored.into_snapshot()?;
        let read = StoredCommits::read_newest(&store, Some(newest));
        let begun = futures::executor::block_on(read)?.into_snapshot();
        // A living run may have gone on.
        let is_same = begun.is_ok_and(|begun| begun.version() > newest || begun.lists_same(&snapshot));
        Ok((Self { data_dir, snapshot }, is_same))
    }

    /// The files of the data set according to its manifest.
    pub fn snapshot(&self) -> &ManifestSnapshot {
        &self.snapshot
    }

    /// The `data` folder of the data set.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// All trajectories, scored and failed.
    pub fn trajectories(&self) -> RecordIter<'_, TrajectoryRecord> {
        self.records(Table::Trajectories, TrajectoryRow::into_domain)
    }

    /// Steps of the scored trajectories; those of one trajectory are adjacent and in order.
    pub fn steps(&self) -> RecordIter<'_, RecordedStep> {
        self.records(Table::Steps, StepRow::into_domain)
    }

    /// Steps of the failed trajectories, in the same order.
    pub fn failed_steps(&self) -> RecordIter<'_, RecordedStep> {
        self.records(Table::FailedSteps, StepRow::into_domain)
    }

    /// All closed groups, one record each.
    pub fn groups(&self) -> RecordIter<'_, GroupRecord> {
        self.records(Table::Groups, GroupRow::into_domain)
    }

    /// All scores that were added later.
    pub fn rescores(&self) -> RecordIter<'_, RescoreRecord> {
        self.records(Table::Scores, ScoreRow::into_domain)
    }

    /// The rows of a table as `R`, a batch at a time, for metrics over a whole data set: only the
    /// columns of `R` are read, which the table must have ([`Table::has_columns`]), and files are
    /// compared with the manifest by their length alone.
    pub fn rows<'a, R: ColumnCell + 'a>(&'a self, table: Table) -> RecordIter<'a, Vec<R>> {
        let rows = move |file: &'a WrittenFile| -> RecordIter<'a, Vec<R>> {
            match self.file(file, IntegrityCheck::Length).and_then(TableFile::rows::<R>) {
                Ok(batches) => Box::new(batches),
                Err(error) => Box::new(std::iter::once(Err(error))),
            }
        };
        Box::new(self.snapshot.files(table).flat_map(rows))
    }

    /// The gap between the recorded log-probs of a file of steps and those of the prefill path, as
    /// its footer stores it; `None` where no token was rescored.
    pub fn prefill_gap(&self, file: &WrittenFile) -> Result<Option<LogprobGap>, RecordsError> {
        Ok(self.file(file, IntegrityCheck::Length)?.prefill_gap())
    }

    /// The job that wrote the newest trajectories: without secrets and paths of its machine, or
    /// whole where an earlier release wrote them. `None` where it is not there.
    pub fn job(&self) -> Option<String> {
        let newest = self.snapshot.newest_file(Table::Trajectories)?;
        let file = self.file(newest, IntegrityCheck::Length).ok()?;
        match file.origin(key::JOB_SHA256) {
            Some(sha256) => jobs::read(&self.data_dir, sha256)?.ok(),
            None => file.origin(key::JOB).map(str::to_owned),
        }
    }

    /// Opens a listed file, which may have left the data set since that was opened.
    pub(crate) fn file(&self, file: &WrittenFile, trust: IntegrityCheck) -> Result<TableFile, RecordsError> {
        open_listed(&self.data_dir, file, trust)
    }

    fn records<'a, R: ColumnCell + 'a, N: 'a>(
        &'a self,
        table: Table,
        into_domain: fn(R) -> Result<N, RowError>,
    ) -> RecordIter<'a, N> {
        Box::new(self.snapshot.files(table).flat_map(move |file| self.file_records(file, into_domain)))
    }

    fn file_records<'a, R: ColumnCell + 'a, N: 'a>(
        &'a self,
        file: &'a WrittenFile,
        into_domain: fn(R) -> Result<N, RowError>,
    ) -> RecordIter<'a, N> {
        let batches = match self.file(file, IntegrityCheck::Hash).and_then(TableFile::rows::<R>) {
            Ok(batches) => batches,
            Err(error) => return Box::new(std::iter::once(Err(error))),
        };
        let mut row = 0u64;
        let mut convert = move |cells: R| {
            row += 1;
            into_domain(cells).map_err(|what| {
                RecordsError::damaged(&self.data_dir.join(&file.path), format!("row {}: {what}", row - 1))
            })
        };
        let records = batches.flat_map(move |batch| match batch {
            Ok(rows) => rows.into_iter().map(&mut convert).collect::<Vec<_>>(),
            Err(error) => vec![Err(error)],
        });
        Box::new(records)
    }
}

impl TableFile {
    /// Opens a file that a commit listed, for a reader that follows the manifest by itself. The
    /// file may have left the data set since.
    pub fn open_listed(data_dir: &Path, file: &WrittenFile) -> Result<Self, RecordsError> {
        open_listed(data_dir, file, IntegrityCheck::Length)
    }
}

/// Opens a file where it is, or where files go that leave the data set.
fn open_listed(
    data_dir: &Path,
    file: &WrittenFile,
    trust: IntegrityCheck,
) -> Result<TableFile, RecordsError> {
    let path = data_dir.join(&file.path);
    let opened = TableFile::open(&path, file, trust);
    // The other path is tried only after the first one fails, since the file may move at any
    // moment.
    let Err(error) = opened else { return opened };
    if path.exists() {
        return Err(error);
    }
    let aside = merge::replaced_path(data_dir, &file.path);
    match TableFile::open(&aside, file, trust) {
        Err(_) if !aside.exists() => Err(explain_missing(data_dir, file, error)),
        opened => opened,
    }
}

/// Why a listed file is not there: it left the data set, or it is missing.
fn explain_missing(data_dir: &Path, file: &WrittenFile, error: RecordsError) -> RecordsError {
    let opened =
        Manifest::local_store(data_dir).map(|store| futures::executor::block_on(Manifest::open(store)));
    let Ok(Ok(manifest)) = opened else { return error };
    let now = manifest.snapshot();
    let path = data_dir.join(&file.path);
    if now.holds(&file.path) {
        error
    } else if now.is_expired(&file.path) {
        RecordsError::Expired { path }
    } else {
        RecordsError::LeftDataSet { path }
    }
}

/// The schema version of the files of one commit; today's where none of them can be opened.
pub fn schema_version(data_dir: &Path, files: &[WrittenFile]) -> u32 {
    let opened = files.iter().find_map(|file| TableFile::open_listed(data_dir, file).ok());
    opened.map_or(SCHEMA_VERSION, |file| file.schema().number)
}

/// The folder that holds the manifest: `dir` itself, or `data` in it.
fn data_dir(dir: &Path) -> Result<PathBuf, RecordsError> {
    let candidates = [dir.to_owned(), dir.join("data")];
    let found = candidates.into_iter().find(|dir| dir.join("manifest").is_dir());
    found.ok_or_else(|| RecordsError::NoDataSet { path: dir.to_owned() })
}
