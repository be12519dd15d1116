//! A data set as somebody looks at it: every trajectory in an index, the sums that figures are made of, and any row whole.
//!
//! One thread calls [`View::catch_up`] again and again; it reads what was published since, a batch at a time, and holds the lock only
//! to add it. Everybody else reads what is there. Trajectories come first and steps after them, so that a table can be looked at
//! while a large data set is still being summed up.

mod index;
mod look;
mod tally;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

pub use index::{Choices, INDEX_ROWS_MAX, Index, Line, Query, Sort, Span};
pub use look::{Look, Shot};
pub use tally::{Counts, Minute, StepSums, Tally};

use furrow_rollout::Split;

use crate::cell::{Cell, Micros, columns};
use crate::manifest::Commit;
use crate::schema::{TrajectoryTiming, key};
use crate::{DataSet, Manifest, Op, RecordsError, Snapshot, Table, WrittenFile};

columns! {
    /// What is kept of a trajectory: no text of a page, no picture.
    ViewRow {
        trajectory_id: String,
        attempt: i16,
        group_id: String,
        sample_index: i32,
        task_id: String,
        suite: String,
        split: String,
        policy_kind: String,
        status: String,
        end: String,
        reward: Option<f32>,
        score: Option<VerdictCell>,
        num_steps: i32,
        num_prompt_tokens: i64,
        num_response_tokens: i64,
        num_invalid_actions: i32,
        policy_version_min: Option<i32>,
        policy_version_max: Option<i32>,
        staleness: Option<i32>,
        timing: TrajectoryTiming,
        gpu_micros: i64,
        cost_usd: Option<f64>,
        started_at: Micros,
        ended_at: Micros,
    }

    VerdictCell { success: Option<bool> }

    /// What is summed of a step.
    StepSumRow {
        trajectory_id: String,
        split: String,
        response_mask: Option<Vec<bool>>,
        finish_reason: Option<String>,
        logprobs: Option<Vec<Option<f32>>>,
        entropy: Option<Vec<Option<f32>>>,
        policy_version: Option<i32>,
        action: ValidCell,
        outcome: OutcomeNameCell,
        engine: EngineSumCell,
    }

    ValidCell { valid: bool }

    OutcomeNameCell { name: String }

    EngineSumCell { state_origin: Option<String>, prefill_tokens: i32, reused_tokens: i32 }

    /// What is summed of a group.
    GroupSumRow { split: String, zero_variance: Option<bool>, policy_version_max: Option<i32> }
}

/// What is known of a data set at a moment.
#[derive(Default)]
pub struct Shown {
    /// Every trajectory.
    pub index: Index,
    /// The sums.
    pub tally: Tally,
    /// The commit up to which trajectories and groups were read.
    pub version: u64,
    /// Another number each time everything was built anew: places of the index mean the same rows under the same number only.
    pub generation: u64,
    /// What could not be read, a sentence a file.
    pub problems: Vec<String>,
    /// What the data set consists of, read or not.
    pub tables: Vec<TableSize>,
    spans: Vec<FileSpan>,
    /// Files of steps that were not summed up yet.
    pending: Vec<WrittenFile>,
    read: BTreeSet<String>,
    /// Of these, those that were not read to their end.
    broken: BTreeSet<String>,
}

/// How large a table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableSize {
    /// The table.
    pub table: Table,
    /// Files.
    pub files: u64,
    /// Rows.
    pub rows: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What changed is told by these: enough to ask again, and known without waiting for whoever reads or sorts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Glance {
    /// As [`Shown::version`].
    pub version: u64,
    /// As [`Shown::generation`].
    pub generation: u64,
    /// Trajectories in the index.
    pub trajectories: usize,
    /// As [`Shown::step_files_left`].
    pub step_files_left: usize,
    /// The first of [`Shown::problems`].
    pub problem: Option<String>,
}

/// A file that was read, and between which ids its trajectories lie.
struct FileSpan {
    file: WrittenFile,
    least: String,
    largest: String,
}

/// A data set that is looked at while it grows.
pub struct View {
    data_dir: PathBuf,
    manifest: Mutex<Following>,
    shown: RwLock<Shown>,
    glance: Mutex<Glance>,
}

/// Who follows the manifest, and what building everything anew cost the last time.
struct Following {
    manifest: Manifest,
    /// Replacements that came since, not taken over yet.
    replacements: Vec<Commit>,
    /// Rows that are shown were taken away, or could not be read where they were.
    is_stale: bool,
    rebuilt: Option<(Instant, Duration)>,
}

/// Problems that are told; a data set with more is damaged as a whole.
const PROBLEMS_MAX: usize = 20;
/// Where rows were taken away for good, everything is built anew, and not again before 20 times as long has passed: at most 5 % of one
/// core. What is appended meanwhile is read all the same.
const REBUILD_PAUSE: u32 = 20;
/// No two states of any view have the same number.
static GENERATIONS: AtomicU64 = AtomicU64::new(1);

impl View {
    /// Opens a run directory or its `data` folder; nothing is read before [`View::catch_up`].
    pub fn open(dir: &Path) -> Result<Self, RecordsError> {
        let set = DataSet::open(dir)?;
        let data_dir = set.data_dir().to_owned();
        let store = Manifest::local_store(&data_dir)?;
        let manifest = futures::executor::block_on(Manifest::open(store))?;
        let following = Following { manifest, replacements: Vec::new(), is_stale: false, rebuilt: None };
        let shown = RwLock::new(Shown::begin());
        Ok(Self { data_dir, manifest: Mutex::new(following), shown, glance: Mutex::default() })
    }

    /// The `data` folder.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// What is known now. Whoever holds it keeps [`View::catch_up`] waiting.
    pub fn shown(&self) -> RwLockReadGuard<'_, Shown> {
        self.shown.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known now, as numbers; waits for nobody.
    pub fn glance(&self) -> Glance {
        self.glance.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads everything that was published since; says whether anything was. Blocks, for minutes on a large data set. `stop` is asked
    /// after each batch.
    pub fn catch_up(&self, stop: &dyn Fn() -> bool) -> Result<bool, RecordsError> {
        let mut guard = self.following();
        let following = &mut *guard;
        let Following { manifest, replacements, is_stale, .. } = following;
        let refreshed = manifest.refresh_each(|commit| match commit.op {
            Op::Append => {}
            Op::Replace => replacements.push(commit),
            Op::Expire => *is_stale = true,
        });
        // What was applied is taken over even where a later commit cannot be read.
        let refreshed = futures::executor::block_on(refreshed);
        let is_same = self.replace(following, stop);
        following.is_stale |= !is_same;
        refreshed?;
        let snapshot = following.manifest.snapshot();
        let too_soon = |(at, took): (Instant, Duration)| at.elapsed() < took * REBUILD_PAUSE;
        if following.is_stale && !following.rebuilt.is_some_and(too_soon) {
            let began = Instant::now();
            let fresh = RwLock::new(Shown::begin());
            self.read_into(&self.adder(&fresh, None, stop), snapshot);
            if !stop() {
                let fresh = fresh.into_inner().unwrap_or_else(PoisonError::into_inner);
                self.adder(&self.shown, Some(&self.glance), stop).change(|shown| *shown = fresh);
                following.is_stale = false;
            }
            following.rebuilt = Some((Instant::now(), began.elapsed()));
            return Ok(true);
        }
        Ok(self.read_into(&self.adder(&self.shown, Some(&self.glance), stop), snapshot))
    }

    fn following(&self) -> MutexGuard<'_, Following> {
        self.manifest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn adder<'a>(
        &'a self,
        shown: &'a RwLock<Shown>,
        glance: Option<&'a Mutex<Glance>>,
        stop: &'a dyn Fn() -> bool,
    ) -> Adder<'a> {
        Adder { view: self, shown, glance, stop }
    }

    /// Puts merged files in the place of their parts: the manifest has checked that they hold the same rows. Says whether what is shown
    /// is whole: a part that could not be read may well be readable where it went.
    fn replace(&self, following: &mut Following, stop: &dyn Fn() -> bool) -> bool {
        let adder = self.adder(&self.shown, Some(&self.glance), stop);
        let mut is_whole = true;
        for commit in std::mem::take(&mut following.replacements) {
            let read = {
                let shown = self.shown();
                is_whole &= commit.removed.iter().all(|path| !shown.broken.contains(path));
                commit.removed.iter().filter(|path| shown.read.contains(*path)).count()
            };
            if read == 0 {
                continue; // The merged file is read like any other.
            }
            // Parts that nobody read yet hold rows that the merged file holds, too: it must not be read a second time.
            if read < commit.removed.len() {
                let paths: BTreeSet<&String> = commit.removed.iter().collect();
                let ever = following.manifest.snapshot().files_ever();
                let parts: Vec<&WrittenFile> = ever.filter(|file| paths.contains(&file.path)).collect();
                let is_left = |file: &&&WrittenFile| !self.shown().read.contains(&file.path);
                parts.iter().filter(is_left).for_each(|file| adder.add_file(file));
            }
            if stop() {
                return is_whole;
            }
            adder.change(|shown| shown.swap(&commit));
            let shown = self.shown();
            is_whole &= commit.removed.iter().all(|path| !shown.broken.contains(path));
        }
        is_whole
    }

    /// Whether there was anything to read.
    fn read_into(&self, adder: &Adder<'_>, snapshot: &Snapshot) -> bool {
        let left = |tables: &[Table]| -> Vec<WrittenFile> {
            let read = &adder.shown.read().unwrap_or_else(PoisonError::into_inner).read;
            let files = tables.iter().flat_map(|&table| snapshot.files(table));
            files.filter(|file| !read.contains(&file.path)).cloned().collect()
        };
        let (small, steps) =
            (left(&[Table::Trajectories, Table::Groups]), left(&[Table::Steps, Table::FailedSteps]));
        let version = adder.shown.read().unwrap_or_else(PoisonError::into_inner).version;
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
    fn of(snapshot: &Snapshot, table: Table) -> Self {
        let none = Self { table, files: 0, rows: 0, bytes: 0 };
        snapshot.files(table).fold(none, |sum, file| Self {
            table,
            files: sum.files + 1,
            rows: sum.rows.saturating_add(file.rows),
            bytes: sum.bytes.saturating_add(file.bytes),
        })
    }
}

/// Adds files to what is shown.
struct Adder<'a> {
    view: &'a View,
    shown: &'a RwLock<Shown>,
    /// Where it is told; not of what nobody is shown yet.
    glance: Option<&'a Mutex<Glance>>,
    stop: &'a dyn Fn() -> bool,
}

impl Adder<'_> {
    /// Adds what is shown of a file of any table.
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

    /// Adds the rows of a file, or notes why not: one damaged file does not hide the others.
    fn add<R: Cell>(
        &self,
        file: &WrittenFile,
        each: impl Fn(&mut Shown, R, &mut FileSpan) -> Result<(), String>,
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
                    shown.problems.push(told(&error));
                }
            }
        });
    }

    fn add_rows<R: Cell>(
        &self,
        file: &WrittenFile,
        span: &mut FileSpan,
        each: &impl Fn(&mut Shown, R, &mut FileSpan) -> Result<(), String>,
    ) -> Result<(), RecordsError> {
        let path = self.view.data_dir.join(&file.path);
        let opened = self.view.table_file(file)?;
        if let Some(value) = opened.origin(key::PREFILL_GAP).filter(|_| file.table == Table::Steps) {
            self.change(|shown| shown.tally.prefill_gap.add_footer(value));
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

    fn change<T>(&self, change: impl FnOnce(&mut Shown) -> T) -> T {
        let mut shown = self.shown.write().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut shown);
        if let Some(glance) = self.glance {
            glance.lock().unwrap_or_else(PoisonError::into_inner).follow(&shown);
        }
        changed
    }
}

impl Glance {
    fn follow(&mut self, shown: &Shown) {
        (self.version, self.generation) = (shown.version, shown.generation);
        (self.trajectories, self.step_files_left) = (shown.index.len(), shown.step_files_left());
        if self.problem.as_ref() != shown.problems.first() {
            self.problem = shown.problems.first().cloned();
        }
    }
}

impl Shown {
    fn begin() -> Self {
        Self { generation: GENERATIONS.fetch_add(1, Relaxed), ..Self::default() }
    }

    /// Files in the place of others that were read and hold the same rows.
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

    /// Files of steps that were not summed up yet: until it is 0, sums over steps are of a part.
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

impl ViewRow {
    /// The reward, where it counts.
    fn scored(&self) -> Option<f32> {
        self.reward.filter(|_| self.status == "scored")
    }

    fn success(&self) -> Option<bool> {
        self.score.as_ref().and_then(|score| score.success)
    }
}

/// Whether rows of a split are those of an evaluation inside a job: a trainer never sees them.
fn is_eval(split: &str) -> bool {
    Split::parse(split) == Some(Split::Eval)
}

/// An error and its cause on one line.
fn told(error: &RecordsError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::fits;
    use crate::schema::{GroupRow, StepRow, TrajectoryRow};

    #[test]
    fn the_columns_are_columns_of_their_tables() {
        assert!(fits(&ViewRow::data_type(), &TrajectoryRow::data_type()));
        assert!(fits(&StepSumRow::data_type(), &StepRow::data_type()));
        assert!(fits(&GroupSumRow::data_type(), &GroupRow::data_type()));
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
        let held: Vec<bool> = ["a", "b", "c", "d", "e"].iter().map(|id| span.may_hold(id)).collect();
        assert_eq!(held, [false, true, true, true, false]);
    }
}
