//! A group: the slots of one task with one seed, and the record written when it closes.

use std::collections::BTreeMap;

use crate::{Group, Id, Run, Split};

/// One row of the table `groups`, written once, when the group closes.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupRecord {
    /// The run that the group belongs to.
    pub run_id: Id<Run>,
    /// Identifier of the group.
    pub group_id: Id<Group>,
    /// The task that all slots attempt.
    pub task_id: String,
    /// The suite of the task.
    pub suite: String,
    /// The split of the task.
    pub split: Split,
    /// The seed that all slots share.
    pub seed: u64,
    /// Number of planned slots.
    pub planned: u32,
    /// Number of slots with a scored trajectory.
    pub valid: u32,
    /// Number of failed attempts by end, retried ones included.
    pub failed: BTreeMap<String, u32>,
    /// Statistics of the scored trajectories' rewards; `None` if there are none.
    pub rewards: Option<GroupStatistics>,
    /// Oldest and newest policy version among the tokens of the scored trajectories.
    pub policy_versions: Option<(i32, i32)>,
    /// Wall clock when the group closed, in microseconds since the Unix epoch.
    pub closed_at_micros: i64,
}

/// Statistics of the scored rewards of a group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupStatistics {
    /// Mean of the rewards.
    pub mean: f64,
    /// Standard deviation of the population (divided by n, not n - 1).
    pub std: f64,
    /// Whether all rewards are equal, so that every advantage is zero.
    pub zero_variance: bool,
}

impl GroupStatistics {
    /// Computes the statistics of a list of rewards; `None` for an empty list.
    pub fn of(rewards: &[f32]) -> Option<Self> {
        let first = *rewards.first()?;
        let count = rewards.len() as f64;
        let mean = rewards.iter().map(|&r| f64::from(r)).sum::<f64>() / count;
        let variance = rewards.iter().map(|&r| (f64::from(r) - mean).powi(2)).sum::<f64>() / count;
        let zero_variance = rewards.iter().all(|&r| r == first);
        Some(Self { mean, std: if zero_variance { 0.0 } else { variance.sqrt() }, zero_variance })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_is_the_populations() {
        let got = GroupStatistics::of(&[1.0, 0.0, 1.0, 0.0]).unwrap();
        assert_eq!((got.mean, got.std, got.zero_variance), (0.5, 0.5, false));
        assert!(GroupStatistics::of(&[0.1, 0.1, 0.1]).unwrap().zero_variance);
        assert!(GroupStatistics::of(&[]).is_none());
    }
}
