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
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

pub use index::{Choices, INDEX_ROWS_MAX, Index, Line, Query, Sort, Span};
pub use look::{Look, Shot};
pub use tally::{Counts, Minute, StepSums, Tally};

use crate::cell::{Cell, Micros, columns};
use crate::file::{TableFile, Trust};
use crate::schema::TrajectoryTiming;
use crate::{DataSet, Manifest, RecordsError, Table, WrittenFile};

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
    GroupSumRow { zero_variance: Option<bool>, policy_version_max: Option<i32> }
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
    spans: Vec<FileSpan>,
    /// Files of steps that were not summed up yet.
    pending: Vec<WrittenFile>,
    read: BTreeSet<String>,
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
}

/// Who follows the manifest, and what building everything anew cost the last time.
struct Following {
    manifest: Manifest,
    rebuilt: Option<(Instant, Duration)>,
}

/// Problems that are told; a data set with more is damaged as a whole.
const PROBLEMS_MAX: usize = 20;
/// A merge puts other files in the place of those that were read. Everything is built anew then, and not again before 20 times as long
/// has passed: at most 5 % of one core, and the rows that are shown until then are the same rows.
const REBUILD_PAUSE: u32 = 20;

impl View {
    /// Opens a run directory or its `data` folder; nothing is read before [`View::catch_up`].
    pub fn open(dir: &Path) -> Result<Self, RecordsError> {
        let set = DataSet::open(dir)?;
        let data_dir = set.data_dir().to_owned();
        let store = Manifest::local_store(&data_dir)?;
        let manifest = futures::executor::block_on(Manifest::open(store))?;
        let following = Following { manifest, rebuilt: None };
        Ok(Self { data_dir, manifest: Mutex::new(following), shown: RwLock::default() })
    }

    /// The `data` folder.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// What is known now. Whoever holds it keeps [`View::catch_up`] waiting.
    pub fn shown(&self) -> RwLockReadGuard<'_, Shown> {
        self.shown.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads everything that was published since; says whether anything was. Blocks, for minutes on a large data set. `stop` is asked
    /// after each batch.
    pub fn catch_up(&self, stop: &dyn Fn() -> bool) -> Result<bool, RecordsError> {
        let mut following = self.following();
        futures::executor::block_on(following.manifest.refresh())?;
        let snapshot = following.manifest.snapshot().clone();
        let is_gone = self.shown().read.iter().any(|path| !snapshot.holds(path));
        if is_gone {
            let too_soon = |(at, took): (Instant, Duration)| at.elapsed() < took * REBUILD_PAUSE;
            if following.rebuilt.is_some_and(too_soon) {
                return Ok(false);
            }
            let began = Instant::now();
            let generation = self.shown().generation + 1;
            let fresh = RwLock::new(Shown { generation, ..Shown::default() });
            self.read_into(&fresh, &snapshot, stop);
            if !stop() {
                let fresh = fresh.into_inner().unwrap_or_else(PoisonError::into_inner);
                *self.shown.write().unwrap_or_else(PoisonError::into_inner) = fresh;
            }
            following.rebuilt = Some((Instant::now(), began.elapsed()));
            return Ok(true);
        }
        Ok(self.read_into(&self.shown, &snapshot, stop))
    }

    fn following(&self) -> MutexGuard<'_, Following> {
        self.manifest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there was anything to read.
    fn read_into(&self, shown: &RwLock<Shown>, snapshot: &crate::Snapshot, stop: &dyn Fn() -> bool) -> bool {
        let left = |tables: &[Table]| -> Vec<WrittenFile> {
            let read = &shown.read().unwrap_or_else(PoisonError::into_inner).read;
            let files = tables.iter().flat_map(|&table| snapshot.files(table));
            files.filter(|file| !read.contains(&file.path)).cloned().collect()
        };
        let (small, steps) =
            (left(&[Table::Trajectories, Table::Groups]), left(&[Table::Steps, Table::FailedSteps]));
        let adder = Adder { data_dir: &self.data_dir, shown, stop };
        adder.change(|shown| shown.pending.clone_from(&steps));
        for file in &small {
            match file.table {
                Table::Groups => adder.add(file, |shown, row: GroupSumRow, _| {
                    shown.tally.add_group(&row);
                    Ok(())
                }),
                _ => adder.add(file, |shown, row: ViewRow, span| {
                    span.reach(&row.trajectory_id);
                    shown.index.add(&row)?;
                    shown.tally.add_trajectory(&row);
                    Ok(())
                }),
            }
        }
        if !stop() {
            adder.change(|shown| shown.version = snapshot.version());
        }
        for file in &steps {
            adder.add(file, |shown, row: StepSumRow, span| {
                span.reach(&row.trajectory_id);
                shown.tally.add_step(&row);
                Ok(())
            });
            adder.change(|shown| shown.pending.retain(|left| left.path != file.path));
        }
        !small.is_empty() || !steps.is_empty()
    }
}

/// Adds files to what is shown.
struct Adder<'a> {
    data_dir: &'a Path,
    shown: &'a RwLock<Shown>,
    stop: &'a dyn Fn() -> bool,
}

impl Adder<'_> {
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
            if let Err(error) = added
                && shown.problems.len() < PROBLEMS_MAX
            {
                shown.problems.push(told(&error));
            }
        });
    }

    fn add_rows<R: Cell>(
        &self,
        file: &WrittenFile,
        span: &mut FileSpan,
        each: &impl Fn(&mut Shown, R, &mut FileSpan) -> Result<(), String>,
    ) -> Result<(), RecordsError> {
        let path = self.data_dir.join(&file.path);
        for batch in TableFile::open(&path, file, Trust::Length)?.rows::<R>()? {
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
        change(&mut self.shown.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Shown {
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
