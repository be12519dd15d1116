//! A closed group: a row of `groups`.

use furrow_rollout::{GroupRecord, GroupStatistics};

use super::error::RowError;
use super::values::{id, split};
use crate::cell::TimestampMicros;
use crate::schema::{FailedCell, GroupRow};

impl GroupRow {
    /// The row of one group.
    pub(crate) fn new(record: &GroupRecord) -> Self {
        let failed =
            |(end, count): (&String, &u32)| FailedCell { end: end.clone(), count: count.cast_signed() };
        Self {
            run_id: record.run_id.to_string(),
            group_id: record.group_id.to_string(),
            task_id: record.task_id.clone(),
            suite: record.suite.clone(),
            split: record.split.as_str().into(),
            seed: record.seed,
            planned: record.planned.cast_signed(),
            valid: record.valid.cast_signed(),
            failed: record.failed.iter().map(failed).collect(),
            mean: record.rewards.map(|rewards| rewards.mean),
            std: record.rewards.map(|rewards| rewards.std),
            zero_variance: record.rewards.map(|rewards| rewards.zero_variance),
            policy_version_min: record.policy_versions.map(|(oldest, _)| oldest),
            policy_version_max: record.policy_versions.map(|(_, newest)| newest),
            closed_at: TimestampMicros(record.closed_at_micros),
        }
    }

    fn rewards(&self) -> Result<Option<GroupStatistics>, RowError> {
        match (self.mean, self.std, self.zero_variance) {
            (None, None, None) => Ok(None),
            (Some(mean), Some(std), Some(zero_variance)) => {
                Ok(Some(GroupStatistics { mean, std, zero_variance }))
            }
            _ => Err(RowError::GroupStatistics),
        }
    }

    /// Converts the row to a group.
    pub(crate) fn into_domain(self) -> Result<GroupRecord, RowError> {
        Ok(GroupRecord {
            run_id: id(&self.run_id)?,
            group_id: id(&self.group_id)?,
            split: split(&self.split)?,
            seed: self.seed,
            planned: self.planned.cast_unsigned(),
            valid: self.valid.cast_unsigned(),
            rewards: self.rewards()?,
            failed: self.failed.into_iter().map(|cell| (cell.end, cell.count.cast_unsigned())).collect(),
            policy_versions: self.policy_version_min.zip(self.policy_version_max),
            closed_at_micros: self.closed_at.0,
            task_id: self.task_id,
            suite: self.suite,
        })
    }
}
