//! Reads a data set back into nouns, following its manifest: each row once, whole, or an error that names the file.

use std::path::{Path, PathBuf};

use furrow_rollout::{GroupRecord, TrajectoryRecord};

use crate::cell::Cell;
use crate::file::{TableFile, Trust};
use crate::rows::{RecordedStep, Rescore};
use crate::schema::{GroupRow, ScoreRow, StepRow, TrajectoryRow};
use crate::{Manifest, RecordsError, Snapshot, Table, WrittenFile, merge};

/// A data set on this machine's disk, as of the newest commit when it was opened.
pub struct DataSet {
    data_dir: PathBuf,
    snapshot: Snapshot,
}

/// Nouns of a table, one at a time. A file that cannot be read is one error; the iterator then goes on with the next file.
pub type Nouns<'a, N> = Box<dyn Iterator<Item = Result<N, RecordsError>> + 'a>;

impl DataSet {
    /// Opens a run directory or its `data` folder. Blocks; in async code call it from a blocking thread.
    pub fn open(dir: &Path) -> Result<Self, RecordsError> {
        let data_dir = data_dir(dir)?;
        let store = Manifest::local_store(&data_dir)?;
        let manifest = futures::executor::block_on(Manifest::open(store))?;
        Ok(Self { data_dir, snapshot: manifest.snapshot().clone() })
    }

    /// What the manifest says.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The `data` folder.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// All trajectories.
    pub fn trajectories(&self) -> Nouns<'_, TrajectoryRecord> {
        self.nouns(Table::Trajectories, TrajectoryRow::noun)
    }

    /// Steps of the scored trajectories; those of one trajectory lie together and in order.
    pub fn steps(&self) -> Nouns<'_, RecordedStep> {
        self.nouns(Table::Steps, StepRow::noun)
    }

    /// Steps of the failed trajectories.
    pub fn failed_steps(&self) -> Nouns<'_, RecordedStep> {
        self.nouns(Table::FailedSteps, StepRow::noun)
    }

    /// All closed groups.
    pub fn groups(&self) -> Nouns<'_, GroupRecord> {
        self.nouns(Table::Groups, GroupRow::noun)
    }

    /// All later scores.
    pub fn rescores(&self) -> Nouns<'_, Rescore> {
        self.nouns(Table::Scores, ScoreRow::noun)
    }

    /// Opens a listed file, which a merge may have set aside since the data set was opened.
    pub(crate) fn file(&self, file: &WrittenFile, trust: Trust) -> Result<TableFile, RecordsError> {
        let path = self.data_dir.join(&file.path);
        match TableFile::open(&path, file, trust) {
            Err(_) if !path.exists() => {
                TableFile::open(&merge::aside(&self.data_dir, &file.path), file, trust)
            }
            opened => opened,
        }
    }

    fn nouns<'a, R: Cell + 'a, N: 'a>(
        &'a self,
        table: Table,
        noun: fn(R) -> Result<N, String>,
    ) -> Nouns<'a, N> {
        Box::new(self.snapshot.files(table).flat_map(move |file| self.nouns_of(file, noun)))
    }

    fn nouns_of<'a, R: Cell + 'a, N: 'a>(
        &'a self,
        file: &'a WrittenFile,
        noun: fn(R) -> Result<N, String>,
    ) -> Nouns<'a, N> {
        let batches = match self.file(file, Trust::Hash).and_then(TableFile::rows::<R>) {
            Ok(batches) => batches,
            Err(error) => return Box::new(std::iter::once(Err(error))),
        };
        let mut row = 0u64;
        let mut convert = move |cells: R| {
            row += 1;
            noun(cells).map_err(|what| {
                RecordsError::damaged(&self.data_dir.join(&file.path), format!("row {}: {what}", row - 1))
            })
        };
        let nouns = batches.flat_map(move |batch| match batch {
            Ok(rows) => rows.into_iter().map(&mut convert).collect::<Vec<_>>(),
            Err(error) => vec![Err(error)],
        });
        Box::new(nouns)
    }
}

/// The folder that holds the manifest: the one named, or `data` in it.
fn data_dir(dir: &Path) -> Result<PathBuf, RecordsError> {
    let candidates = [dir.to_owned(), dir.join("data")];
    let found = candidates.into_iter().find(|dir| dir.join("manifest").is_dir());
    found.ok_or_else(|| RecordsError::NoDataSet { path: dir.to_owned() })
}
