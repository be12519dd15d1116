//! One trajectory of a data set, as a page shows it: its rows with the names of their columns, its
//! pictures one by one.

use std::ops::Range;

use arrow::array::RecordBatch;
use bytes::Bytes;
use furrow_records::cell::{ColumnCell, columns};
use furrow_records::{RecordsError, Table, TableFile, WrittenFile};
use serde_json::Value;

use super::{DataSetView, FileSpan};
use crate::json;

columns! {
    /// The trajectory of a row.
    NameRow { trajectory_id: String }

    /// The trajectory and step of a row.
    StepNameRow { trajectory_id: String, step: i32 }

    StepPictureRow { observation: PictureCell }

    PictureCell { screenshot: ImageCell }

    ImageCell { bytes: Bytes }

    EvidencePictureRow { evidence: Option<EvidencePictureCell> }

    EvidencePictureCell { screenshot: Option<ImageCell> }
}

/// A trajectory with its steps in order.
#[derive(Debug, Clone, PartialEq)]
pub struct TrajectoryDetail {
    /// Its row of `trajectories`.
    pub trajectory: Value,
    /// Its rows of `steps` or `failed_steps`, without the columns of `LARGE`.
    pub steps: Vec<Value>,
}

/// Identifies a picture of a trajectory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PictureSource {
    /// The screenshot of a step.
    Step(i32),
    /// The screenshot of the evidence.
    Evidence,
}

/// Columns of a step that its page shows only on request: prompts of thousands of ids, ids that a
/// grammar allowed, a page's accessibility text.
pub(super) const LARGE: [&str; 6] = [
    "prompt_token_ids",
    "image_spans",
    "commit_token_ids",
    "kept_token_ids",
    "kept_offsets",
    "observation.axtree",
];

/// Leaves that hold encoded pictures.
const PICTURES: [&str; 2] = ["observation.screenshot.bytes", "evidence.screenshot.bytes"];

impl DataSetView {
    /// A trajectory and its steps; `None` if the data set does not hold it.
    pub fn trajectory_detail(&self, trajectory_id: &str) -> Result<Option<TrajectoryDetail>, RecordsError> {
        let Some(trajectory) = self.trajectory_row(trajectory_id)? else { return Ok(None) };
        let keeps = |leaf: &str| !is_below_any(leaf, &PICTURES) && !is_below_any(leaf, &LARGE);
        let mut steps = Vec::new();
        for (file, rows) in self.step_rows(trajectory_id, None)? {
            steps.extend(self.read(&file, &rows, keeps)?.iter().flat_map(json::rows));
        }
        steps.sort_by_key(|step| step["step"].as_i64());
        Ok(Some(TrajectoryDetail { trajectory, steps }))
    }

    /// The row of a trajectory, or of one of its steps, with every column (pictures as their
    /// length).
    pub fn row(&self, trajectory_id: &str, step: Option<i32>) -> Result<Option<Value>, RecordsError> {
        if step.is_none() {
            return self.trajectory_row(trajectory_id);
        }
        for (file, rows) in self.step_rows(trajectory_id, step)? {
            // Includes the picture, whose length is reported.
            let batches = self.read(&file, &rows, |_| true)?;
            if let Some(row) = batches.iter().flat_map(json::rows).next() {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }

    /// The bytes of a picture as they were recorded.
    pub fn picture(&self, trajectory_id: &str, shot: PictureSource) -> Result<Option<Bytes>, RecordsError> {
        let found = match shot {
            PictureSource::Step(step) => self.step_rows(trajectory_id, Some(step))?,
            PictureSource::Evidence => self.rows_of(Table::Trajectories, trajectory_id, None)?,
        };
        for (file, rows) in found {
            for batch in self.read(&file, &rows, |leaf| {
                is_below_any(leaf, &["observation.screenshot", "evidence.screenshot"])
            })? {
                let batch = arrow::array::StructArray::from(batch);
                let bytes = match shot {
                    PictureSource::Step(_) => StepPictureRow::read(&batch)
                        .into_iter()
                        .next()
                        .map(|row| row.observation.screenshot.bytes),
                    PictureSource::Evidence => EvidencePictureRow::read(&batch)
                        .into_iter()
                        .next()
                        .and_then(|row| row.evidence?.screenshot)
                        .map(|image| image.bytes),
                };
                if bytes.is_some() {
                    return Ok(bytes);
                }
            }
        }
        Ok(None)
    }

    fn trajectory_row(&self, trajectory_id: &str) -> Result<Option<Value>, RecordsError> {
        for (file, rows) in self.rows_of(Table::Trajectories, trajectory_id, None)? {
            let batches = self.read(&file, &rows, |_| true)?;
            if let Some(row) = batches.iter().flat_map(json::rows).next() {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }

    /// The files and rows that hold the steps of a trajectory, or one of them.
    fn step_rows(&self, trajectory_id: &str, step: Option<i32>) -> Result<Vec<FileRows>, RecordsError> {
        let mut found = self.rows_of(Table::Steps, trajectory_id, step)?;
        if found.is_empty() {
            found = self.rows_of(Table::FailedSteps, trajectory_id, step)?;
        }
        Ok(found)
    }

    fn rows_of(
        &self,
        table: Table,
        trajectory_id: &str,
        step: Option<i32>,
    ) -> Result<Vec<FileRows>, RecordsError> {
        let mut found = Vec::new();
        for file in self.candidates(table, trajectory_id) {
            let rows = match table {
                Table::Trajectories => {
                    ranges(TableFile::open_listed(&self.data_dir, &file)?.rows::<NameRow>()?, |row| {
                        row.trajectory_id == trajectory_id
                    })?
                }
                _ => ranges(TableFile::open_listed(&self.data_dir, &file)?.rows::<StepNameRow>()?, |row| {
                    row.trajectory_id == trajectory_id && step.is_none_or(|step| step == row.step)
                })?,
            };
            if !rows.is_empty() {
                found.push((file, rows));
                // All rows of a trajectory are in one file of a table.
                break;
            }
        }
        Ok(found)
    }

    /// Files that may hold a trajectory: first those whose range of ids contains it, then those
    /// whose range is not known yet.
    fn candidates(&self, table: Table, trajectory_id: &str) -> Vec<WrittenFile> {
        let shown = self.state();
        let of_table = shown.spans.iter().filter(|span| span.file.table == table);
        let holding =
            of_table.filter(|span| span.may_hold(trajectory_id)).map(|FileSpan { file, .. }| file.clone());
        let mut files: Vec<_> = holding.collect();
        // Files that were not summed up yet have no known range of ids.
        files.extend(shown.pending.iter().filter(|file| file.table == table).cloned());
        files
    }

    fn read(
        &self,
        file: &WrittenFile,
        rows: &[Range<u64>],
        keeps: impl Fn(&str) -> bool,
    ) -> Result<Vec<RecordBatch>, RecordsError> {
        TableFile::open_listed(&self.data_dir, file)?.some_rows(rows, keeps)?.collect()
    }
}

/// A file and rows of it.
type FileRows = (WrittenFile, Vec<Range<u64>>);

/// The positions of the wanted rows, with neighbours joined.
fn ranges<R>(
    batches: impl Iterator<Item = Result<Vec<R>, RecordsError>>,
    wanted: impl Fn(&R) -> bool,
) -> Result<Vec<Range<u64>>, RecordsError> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut at = 0;
    for batch in batches {
        for row in batch? {
            if wanted(&row) {
                match ranges.last_mut() {
                    Some(last) if last.end == at => last.end += 1,
                    _ => ranges.push(at..at + 1),
                }
            }
            at += 1;
        }
    }
    Ok(ranges)
}

/// Whether a leaf is one of these columns or below one.
fn is_below_any(leaf: &str, columns: &[&str]) -> bool {
    let is_below = |column: &&str| {
        leaf.strip_prefix(*column).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    columns.iter().any(is_below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_are_columns_of_their_tables() {
        assert!(Table::Steps.has_columns::<StepNameRow>());
        assert!(Table::Steps.has_columns::<StepPictureRow>());
        assert!(Table::Trajectories.has_columns::<EvidencePictureRow>());
    }

    #[test]
    fn rows_that_follow_each_other_are_one_range() {
        let batches = [Ok(vec![1, 2, 2]), Ok(vec![2, 1, 2])];
        assert_eq!(ranges(batches.into_iter(), |row| *row == 2).unwrap(), [1..4, 5..6]);
    }
}
