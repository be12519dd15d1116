//! A live view of a data set: every trajectory in an index, the sums behind the metrics, and any
//! row in full.
//!
//! One thread calls [`DataSetView::catch_up`] repeatedly; it reads what was committed since, a
//! batch at a time, and holds the lock only to add it. Other threads read the state. Trajectories
//! come before steps, so that a table can be shown while a large data set is still being summed up.

mod detail;
mod index;
mod rows;
mod tally;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

pub use detail::{PictureSource, TrajectoryDetail};
pub use index::{FilterChoices, Sort, TrajectoryIndex, TrajectoryLine, TrajectoryQuery, ValueRange};
pub use tally::{DataSetTally, MinuteCounts, StepSums, TrajectoryCounts};

use furrow_records::cell::ColumnCell;
use furrow_records::{
    Commit, DataSet, Manifest, ManifestSnapshot, Op, RecordsError, Table, TableFile, WrittenFile,
};

use rows::{GroupSumRow, StepSumRow, ViewRow};

/// What has been read of a data set.
#[derive(Default)]
pub struct ViewState {
    /// The index of all trajectories.
    pub index: TrajectoryIndex,
    /// Sums over the data set.
    pub tally: DataSetTally,
    /// The commit up to which trajectories and groups were read.
    pub version: u64,
    /// Changes whenever everything is rebuilt: positions in the index are valid for one generation
    /// only.
    pub generation: u64,
    /// What could not be read, one sentence per file.
    pub problems: Vec<String>,
    /// Size of each table, read or not.
    pub tables: Vec<TableSize>,
    spans: Vec<FileSpan>,
    /// Files of steps that were not summed up yet.
    pending: Vec<WrittenFile>,
    read: BTreeSet<String>,
    /// Files among those read that could not be read to their end.
    broken: BTreeSet<String>,
}

/// Size of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableSize {
    /// The table this size belongs to.
    pub table: Table,
    /// Files of the table in the manifest, read or not.
    pub files: u64,
    /// Rows that the manifest lists for these files.
    pub rows: u64,
    /// Length of all files together.
    pub bytes: u64,
}

/// Enough to tell whether the state changed, available without waiting for readers or sorts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ViewSummary {
    /// The commit up to which trajectories and groups were read, as [`ViewState::version`].
    pub version: u64,
    /// Changes whenever everything is rebuilt, as [`ViewState::generation`].
    pub generation: u64,
    /// Number of trajectories in the index.
    pub trajectories: usize,
    /// Files of steps whose sums are still missing, as [`ViewState::step_files_left`].
    pub step_files_left: usize,
    /// The first of [`ViewState::problems`].
    pub problem: Option<String>,
}

/// A file that was read, and the range of its trajectory ids.
struct FileSpan {
    file: WrittenFile,
    least: String,
    largest: String,
}

/// A view of a data set that grows.
pub struct DataSetView {
    data_dir: PathBuf,
    manifest: Mutex<ManifestFollower>,
    state: RwLock<ViewState>,
    summary: Mutex<ViewSummary>,
}

/// Follows the manifest, and remembers what the last rebuild cost.
struct ManifestFollower {
    manifest: Manifest,
    /// Replacements that were committed since and are not applied yet.
    replacements: Vec<Commit>,
    /// Rows in the state were removed, or could not be read where they were.
    is_stale: bool,
    rebuilt: Option<(Instant, Duration)>,
}

/// Most problems that are listed; a data set with more is damaged as a whole.
const PROBLEMS_MAX: usize = 20;
/// After rows were removed for good, everything is rebuilt, but not before 20 times the duration of
/// the last rebuild has passed: at most 5 % of one core. Appended files are read meanwhile.
const REBUILD_PAUSE: u32 = 20;
/// Generations are unique across all views of the process.
static GENERATIONS: AtomicU64 = AtomicU64::new(1);

impl DataSetView {
    /// Opens a run directory or its `data` folder; reads no rows before [`DataSetView::catch_up`].
    pub fn open(dir: &Path) -> Result<Self, RecordsError> {
        let set = DataSet::open(dir)?;
        let data_dir = set.data_dir().to_owned();
        let store = Manifest::local_store(&data_dir)?;
        let manifest = futures::executor::block_on(Manifest::open(store))?;
        let following =
            ManifestFollower { manifest, replacements: Vec::new(), is_stale: false, rebuilt: None };
        let shown = RwLock::new(ViewState::begin());
        Ok(Self { data_dir, manifest: Mutex::new(following), state: shown, summary: Mutex::default() })
    }

    /// The `data` folder of the data set.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// The current state. [`DataSetView::catch_up`] waits while the guard is held.
    pub fn state(&self) -> RwLockReadGuard<'_, ViewState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// A summary of the current state; never blocks on readers.
    pub fn summary(&self) -> ViewSummary {
        self.summary.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads everything that was committed since; returns whether there was anything. Blocks, for
    /// minutes on a large data set. `stop` is polled after each batch.
    pub fn catch_up(&self, stop: &dyn Fn() -> bool) -> Result<bool, RecordsError> {
        let mut guard = self.following();
        let following = &mut *guard;
        let ManifestFollower { manifest, replacements, is_stale, .. } = following;
        let refreshed = manifest.refresh_each(|commit| match commit.op {
            Op::Append => {}
            Op::Replace => replacements.push(commit),
            Op::Expire => *is_stale = true,
        });
        // Commits that were applied are processed even where a later one cannot be read.
        let refreshed = futures::executor::block_on(refreshed);
        let is_same = self.replace(following, stop);
        following.is_stale |= !is_same;
        refreshed?;
        let snapshot = following.manifest.snapshot();
        let too_soon = |(at, took): (Instant, Duration)| at.elapsed() < took * REBUILD_PAUSE;
        if following.is_stale && !following.rebuilt.is_some_and(too_soon) {
            let began = Instant::now();
            let fresh = RwLock::new(ViewState::begin());
            self.read_into(&self.adder(&fresh, None, stop), snapshot);
            if !stop() {
                let fresh = fresh.into_inner().unwrap_or_else(PoisonError::into_inner);
                self.adder(&self.state, Some(&self.summary), stop).change(|shown| *shown = fresh);
                following.is_stale = false;
            }
            following.rebuilt = Some((Instant::now(), began.elapsed()));
            return Ok(true);
        }
        Ok(self.read_into(&self.adder(&self.state, Some(&self.summary), stop), snapshot))
    }

    fn following(&self) -> MutexGuard<'_, ManifestFollower> {
        self.manifest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn adder<'a>(
        &'a self,
        shown: &'a RwLock<ViewState>,
        glance: Option<&'a Mutex<ViewSummary>>,
        stop: &'a dyn Fn() -> bool,
    ) -> FileAdder<'a> {
        FileAdder { view: self, state: shown, summary: glance, stop }
    }

    /// Replaces parts by their merged files: the manifest has checked that they hold the same rows.
    /// Returns whether the state is whole: a part that could not be read may be readable in the
    /// merged file.
    fn replace(&self, following: &mut ManifestFollower, stop: &dyn Fn() -> bool) -> bool {
        let adder = self.adder(&self.state, Some(&self.summary), stop);
        let mut is_whole = true;
        for commit in std::mem::take(&mut following.replacements) {
            let read = {
                let shown = self.state();
                is_whole &= commit.removed.iter().all(|path| !shown.broken.contains(path));
                commit.removed.iter().filter(|path| shown.read.contains(*path)).count()
            };
            if read == 0 {
                continue; // the merged file is read like any other
            }
            // Unread parts hold rows that are also in the merged file: read them now, since the
            // merged file counts as read.
            if read < commit.removed.len() {
                let gone = following.manifest.snapshot().removed();
                let is_left = |path: &&String| !self.state().read.contains(*path);
                for path in commit.removed.iter().filter(is_left) {
                    match gone.get(path) {
                        Some(part) => adder.add_file(&part.file),
                        // So much was merged since that the manifest forgot it.
                        None => is_whole = false,
                    }
                }
            }
            if stop() {
                return is_whole;
            }
            adder.change(|shown| shown.swap(&commit));
            let shown = self.state();
            is_whole &= commit.removed.iter().all(|path| !shown.broken.contains(path));
        }
        is_whole
    }

    /// Reads what is new. Returns whether there was anything to read.
    fn read_into(&self, adder: &FileAdder<'_>, snapshot: &ManifestSnapshot) -> bool {
        let left = |tables: &[Table]| -> Vec<WrittenFile> {
            let read = &adder.state.read().unwrap_or_else(PoisonError::into_inner).read;
            let files = tables.iter().flat_map(|&table| snapshot.files(table));
            files.filter(|file| !read.contains(&file.path)).cloned().collect()
        };
        let small = left(&[Table::Trajectories, Table::Groups]);
        let steps = left(&[Table::Steps, Table::FailedSteps]);
        let version = adder.state.read().unwrap_or_else(PoisonError::into_inner).version;
        if small.is_empty() && steps.is_empty() && version == snapshot.version() {
            return false;
        }
        let tables = Table::ALL.iter().map(|&table| TableSize::of(snapshot, table)).collect();
        adder.change(|shown| {
            shown.pending.clone_from(&steps);
            shown.tables = tables;
        });
        small.iter().for_each(|file| adder.add_file(file));
        if !(adder.stop)() {
            adder.change(|shown| shown.version = snapshot.version());
        }
        for file in &steps {
            adder.add_file(file);
            adder.change(|shown| shown.pending.retain(|left| left.path != file.path));
        }
        !small.is_empty() || !steps.is_empty()
    }
}

impl TableSize {
    fn of(snapshot: &ManifestSnapshot, table: Table) -> Self {
        let none = Self { table, files: 0, rows: 0, bytes: 0 };
        snapshot.files(table).fold(none, |sum, file| Self {
            table,
            files: sum.files + 1,
            rows: sum.rows.saturating_add(file.rows),
            bytes: sum.bytes.saturating_add(file.bytes),
        })
    }
}

/// Adds files to a state.
struct FileAdder<'a> {
    view: &'a DataSetView,
    state: &'a RwLock<ViewState>,
    /// The summary to update; `None` for a state that is not shown yet.
    summary: Option<&'a Mutex<ViewSummary>>,
    stop: &'a dyn Fn() -> bool,
}

impl FileAdder<'_> {
    /// Adds the rows of a file of any table.
    fn add_file(&self, file: &WrittenFile) {
        match file.table {
            Table::Trajectories => self.add(file, |shown, row: ViewRow, span| {
                span.reach(&row.trajectory_id);
                shown.index.add(&row)?;
                shown.tally.add_trajectory(&row);
                Ok(())
            }),
            Table::Groups => self.add(file, |shown, row: GroupSumRow, _| {
                shown.tally.add_group(&row);
                Ok(())
            }),
            Table::Steps | Table::FailedSteps => self.add(file, |shown, row: StepSumRow, span| {
                span.reach(&row.trajectory_id);
                shown.tally.add_step(&row);
                Ok(())
            }),
            Table::Scores => {}
        }
    }

    /// Adds the rows of a file, or records why not: one damaged file does not hide the others.
    fn add<R: ColumnCell>(
        &self,
        file: &WrittenFile,
        each: impl Fn(&mut ViewState, R, &mut FileSpan) -> Result<(), String>,
    ) {
        if (self.stop)() {
            return;
        }
        let mut span = FileSpan { file: file.clone(), least: String::new(), largest: String::new() };
        let added = self.add_rows(file, &mut span, &each);
        self.change(|shown| {
            shown.read.insert(file.path.clone());
            shown.spans.push(span);
            if let Err(error) = added {
                shown.broken.insert(file.path.clone());
                if shown.problems.len() < PROBLEMS_MAX {
                    shown.problems.push(error_line(&error));
                }
            }
        });
    }

    fn add_rows<R: ColumnCell>(
        &self,
        file: &WrittenFile,
        span: &mut FileSpan,
        each: &impl Fn(&mut ViewState, R, &mut FileSpan) -> Result<(), String>,
    ) -> Result<(), RecordsError> {
        let path = self.view.data_dir.join(&file.path);
        let opened = TableFile::open_listed(&self.view.data_dir, file)?;
        if file.table == Table::Steps {
            self.change(|shown| opened.add_prefill_gap(&mut shown.tally.prefill_gap));
        }
        for batch in opened.rows::<R>()? {
            let rows = batch?;
            if (self.stop)() {
                return Ok(());
            }
            self.change(|shown| rows.into_iter().try_for_each(|row| each(shown, row, span)))
                .map_err(index::damaged(&path))?;
        }
        Ok(())
    }

    fn change<T>(&self, change: impl FnOnce(&mut ViewState) -> T) -> T {
        let mut shown = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut shown);
        if let Some(glance) = self.summary {
            glance.lock().unwrap_or_else(PoisonError::into_inner).follow(&shown);
        }
        changed
    }
}

impl ViewSummary {
    fn follow(&mut self, shown: &ViewState) {
        (self.version, self.generation) = (shown.version, shown.generation);
        (self.trajectories, self.step_files_left) = (shown.index.len(), shown.step_files_left());
        if self.problem.as_ref() != shown.problems.first() {
            self.problem = shown.problems.first().cloned();
        }
    }
}

impl ViewState {
    fn begin() -> Self {
        Self { generation: GENERATIONS.fetch_add(1, Relaxed), ..Self::default() }
    }

    /// Replaces files that were read by others that hold the same rows.
    fn swap(&mut self, commit: &Commit) {
        let removed: BTreeSet<&String> = commit.removed.iter().collect();
        let is_part = |path: &String| removed.contains(path);
        self.read.retain(|path| !is_part(path));
        self.pending.retain(|file| !is_part(&file.path));
        let (parts, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.spans).into_iter().partition(|span| is_part(&span.file.path));
        self.spans = others;
        for file in &commit.files {
            let mut span = FileSpan { file: file.clone(), least: String::new(), largest: String::new() };
            for part in parts.iter().filter(|part| part.file.table == file.table && !part.largest.is_empty())
            {
                span.reach(&part.least);
                span.reach(&part.largest);
            }
            self.read.insert(file.path.clone());
            self.spans.push(span);
        }
    }

    /// Number of step files that were not summed up yet: until it is 0, sums over steps are
    /// partial.
    pub fn step_files_left(&self) -> usize {
        self.pending.len()
    }
}

impl FileSpan {
    fn reach(&mut self, id: &str) {
        if self.least.is_empty() || id < self.least.as_str() {
            id.clone_into(&mut self.least);
        }
        if id > self.largest.as_str() {
            id.clone_into(&mut self.largest);
        }
    }

    fn may_hold(&self, id: &str) -> bool {
        (self.least.as_str()..=self.largest.as_str()).contains(&id)
    }
}

/// An error and its cause on one line.
fn error_line(error: &RecordsError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_are_columns_of_their_tables() {
        assert!(Table::Trajectories.has_columns::<ViewRow>());
        assert!(Table::Steps.has_columns::<StepSumRow>());
        assert!(Table::Groups.has_columns::<GroupSumRow>());
    }

    #[test]
    fn a_file_knows_between_which_ids_it_lies() {
        let file = WrittenFile {
            table: Table::Steps,
            path: String::new(),
            rows: 0,
            bytes: 0,
            sha256: String::new(),
        };
        let mut span = FileSpan { file, least: String::new(), largest: String::new() };
        assert!(!span.may_hold("b"));
        ["c", "b", "d"].iter().for_each(|id| span.reach(id));
        let got: Vec<bool> = ["a", "b", "c", "d", "e"].iter().map(|id| span.may_hold(id)).collect();
        assert_eq!(got, [false, true, true, true, false]);
    }
}
