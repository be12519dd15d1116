//! Success and reward of a whole data set, evaluations left out: few columns, for lists of many
//! data sets.

use std::path::Path;

use furrow_records::cell::columns;
use furrow_records::{DataSet, RecordsError, Table};
use furrow_rollout::Split;

columns! {
    SuccessRow { split: String, status: String, reward: Option<f32>, score: Option<DecisionCell> }

    DecisionCell { success: Option<bool> }
}

/// Counts over the trajectories of a data set, evaluations left out.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SuccessCounts {
    /// Trajectories with a reward.
    pub scored: u64,
    /// Those whose scorer decides whether the task is solved.
    pub success_known: u64,
    /// Those that solved it.
    pub successes: u64,
    /// Sum of the rewards.
    pub reward_sum: f64,
}

impl SuccessCounts {
    /// Solved trajectories per decided one.
    pub fn success_rate(&self) -> Option<f64> {
        (self.success_known > 0).then(|| self.successes as f64 / self.success_known as f64)
    }

    /// Mean reward of the scored trajectories.
    pub fn reward_mean(&self) -> Option<f64> {
        (self.scored > 0).then(|| self.reward_sum / self.scored as f64)
    }
}

/// Reads a run directory or its `data` folder.
pub fn success_counts(dir: &Path) -> Result<SuccessCounts, RecordsError> {
    let set = DataSet::open(dir)?;
    let mut counts = SuccessCounts::default();
    for batch in set.rows::<SuccessRow>(Table::Trajectories) {
        for row in batch?.iter().filter(|row| row.split != Split::Eval.as_str() && row.status == "scored") {
            let success = row.score.as_ref().and_then(|score| score.success);
            counts.scored += 1;
            counts.reward_sum += f64::from(row.reward.unwrap_or_default());
            counts.success_known += u64::from(success.is_some());
            counts.successes += u64::from(success == Some(true));
        }
    }
    Ok(counts)
}
