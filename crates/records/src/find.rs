//! Finds single trajectories of a data set with their steps, without reading the pictures of the
//! others.

use std::collections::{BTreeMap, BTreeSet};

use furrow_rollout::{Id, StepRecord, Trajectory, TrajectoryRecord, TrajectoryStatus};

use crate::cell::{ColumnCell, columns};
use crate::file::{IntegrityCheck, TableFile};
use crate::read::DataSet;
use crate::rows::{RecordedStep, RowError};
use crate::schema::{StepRow, TrajectoryRow};
use crate::{RecordsError, Table, WrittenFile};

/// A trajectory and its steps in order, also for a failed one.
pub type FoundTrajectory = (TrajectoryRecord, Vec<StepRecord>);

columns! {
    /// The column that decides whether a file must be read whole.
    NameRow { trajectory_id: String }
}

impl DataSet {
    /// Ids of all trajectories, in the order they were written.
    pub fn trajectory_ids(&self) -> Result<Vec<String>, RecordsError> {
        let mut ids = Vec::new();
        for file in self.snapshot().files(Table::Trajectories) {
            ids.extend(self.trajectory_names(file)?);
        }
        Ok(ids)
    }

    /// These trajectories with their steps, in the order of `ids`. Ids that the data set does not
    /// hold are left out.
    pub fn find(&self, ids: &[Id<Trajectory>]) -> Result<Vec<FoundTrajectory>, RecordsError> {
        let wanted: BTreeSet<&str> = ids.iter().map(Id::as_str).collect();
        let mut records = BTreeMap::new();
        for record in self.records_with(Table::Trajectories, &wanted, TrajectoryRow::into_domain)? {
            records.insert(record.ancestry.trajectory_id.to_string(), record);
        }
        let mut steps: BTreeMap<String, Vec<StepRecord>> = BTreeMap::new();
        for table in [Table::Steps, Table::FailedSteps] {
            let is_here = |record: &&TrajectoryRecord| {
                (record.status == TrajectoryStatus::Scored) == (table == Table::Steps)
            };
            let wanted: BTreeSet<&str> = records
                .values()
                .filter(is_here)
                .map(|record| record.ancestry.trajectory_id.as_str())
                .collect();
            for RecordedStep { ancestry, record, .. } in
                self.records_with(table, &wanted, StepRow::into_domain)?
            {
                steps.entry(ancestry.trajectory_id.to_string()).or_default().push(record);
            }
        }
        let mut whole = |id: &Id<Trajectory>| {
            let record = records.remove(id.as_str())?;
            let mut steps = steps.remove(id.as_str()).unwrap_or_default();
            steps.sort_by_key(|step| step.step);
            Some((record, steps))
        };
        Ok(ids.iter().filter_map(&mut whole).collect())
    }

    fn trajectory_names(&self, file: &WrittenFile) -> Result<Vec<String>, RecordsError> {
        let mut names = Vec::new();
        for batch in self.file(file, IntegrityCheck::Length).and_then(TableFile::rows::<NameRow>)? {
            names.extend(batch?.into_iter().map(|row| row.trajectory_id));
        }
        Ok(names)
    }

    /// The wanted rows of a table; of a file without any, only the id column is read.
    fn records_with<R: ColumnCell + HasTrajectoryId, N>(
        &self,
        table: Table,
        wanted: &BTreeSet<&str>,
        into_domain: fn(R) -> Result<N, RowError>,
    ) -> Result<Vec<N>, RecordsError> {
        let mut found = Vec::new();
        for file in self.snapshot().files(table) {
            if !self.trajectory_names(file)?.iter().any(|name| wanted.contains(&**name)) {
                continue;
            }
            for batch in self.file(file, IntegrityCheck::Hash).and_then(TableFile::rows::<R>)? {
                for row in batch?.into_iter().filter(|row| wanted.contains(row.name())) {
                    let damaged = |what: RowError| {
                        RecordsError::damaged(&self.data_dir().join(&file.path), what.to_string())
                    };
                    found.push(into_domain(row).map_err(damaged)?);
                }
            }
        }
        Ok(found)
    }
}

/// A row that belongs to a trajectory.
trait HasTrajectoryId {
    fn name(&self) -> &str;
}

impl HasTrajectoryId for TrajectoryRow {
    fn name(&self) -> &str {
        &self.trajectory_id
    }
}

impl HasTrajectoryId for StepRow {
    fn name(&self) -> &str {
        &self.trajectory_id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::fits;

    #[test]
    fn the_name_is_a_column_of_every_table_looked_in() {
        assert!(fits(&NameRow::data_type(), &TrajectoryRow::data_type()));
        assert!(fits(&NameRow::data_type(), &StepRow::data_type()));
    }
}
