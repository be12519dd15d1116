//! A group: the slots of one task under one draw, and what is said of it when it closes.

use std::collections::BTreeMap;

use crate::{Group, Id, Run, Split};

/// One row of `groups`, written once, when the group closes.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupRecord {
    /// Run it belongs to.
    pub run_id: Id<Run>,
    /// The group.
    pub group_id: Id<Group>,
    /// Its task.
    pub task_id: String,
    /// The task's suite.
    pub suite: String,
    /// The task's split.
    pub split: Split,
    /// The draw all slots share.
    pub seed: u64,
    /// Slots planned.
    pub planned: u32,
    /// Slots with a scored trajectory.
    pub valid: u32,
    /// Failed attempts by end, retried ones included.
    pub failed: BTreeMap<String, u32>,
    /// Mean, spread and whether the spread is zero, over the scored trajectories.
    pub rewards: Option<GroupStatistics>,
    /// Oldest and newest policy version among the scored trajectories' tokens.
    pub policy_versions: Option<(i32, i32)>,
    /// Wall clock at closing, microseconds since the Unix epoch.
    pub closed_at_micros: i64,
}

/// Statistics of the scored rewards of a group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupStatistics {
    /// Mean reward.
    pub mean: f64,
    /// Standard deviation of the population (divided by n, not n - 1).
    pub std: f64,
    /// Whether all rewards are equal, so that no advantage can be told.
    pub zero_variance: bool,
}

impl GroupStatistics {
    /// Statistics of a list of rewards; `None` of an empty one.
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
