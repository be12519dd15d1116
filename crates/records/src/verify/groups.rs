//! Checks of a group's row against its trajectories.

use std::collections::{BTreeMap, BTreeSet};

use furrow_rollout::{GroupRecord, GroupStatistics, TrajectoryStatus};

use super::report::VerifyCheck;
use super::trajectories::{TrajectoryChecks, widen};

/// Totals over a group's trajectories.
#[derive(Default)]
pub(super) struct GroupTally {
    rewards: Vec<f32>,
    failed: BTreeMap<String, u32>,
    versions: Option<(i32, i32)>,
    group_sizes: BTreeSet<u32>,
}

impl GroupTally {
    pub(super) fn add(&mut self, facts: &TrajectoryChecks) {
        self.group_sizes.insert(facts.group_size);
        match (facts.status, facts.reward) {
            (TrajectoryStatus::Failed, _) => *self.failed.entry(facts.end.as_str().into()).or_default() += 1,
            (TrajectoryStatus::Scored, reward) => {
                self.rewards.extend(reward);
                facts.policy_versions.into_iter().for_each(|range| widen(&mut self.versions, range));
            }
        }
    }

    /// Whether trajectories of the group are missing and none is too many: what is left where some
    /// have expired.
    pub(super) fn is_part_of(&self, group: &GroupRecord) -> bool {
        let scored = self.rewards.len() as u64;
        let counted = |end: &String| group.failed.get(end).copied().unwrap_or(0);
        let is_within =
            scored <= u64::from(group.valid) && self.failed.iter().all(|(end, count)| *count <= counted(end));
        let is_short = scored < u64::from(group.valid)
            || group.failed.iter().any(|(end, count)| self.failed.get(end).is_none_or(|has| has < count));
        is_within && is_short
    }

    pub(super) fn compare(&self, group: &GroupRecord) -> Vec<(VerifyCheck, String)> {
        let mut problems = Vec::new();
        let mut differ = |check, name: &str, says: String, has: String| {
            if says != has {
                problems.push((check, format!("says {name} {says}, its trajectories give {has}")));
            }
        };
        differ(VerifyCheck::GroupCounts, "valid", group.valid.to_string(), self.rewards.len().to_string());
        differ(
            VerifyCheck::GroupCounts,
            "failed",
            format!("{:?}", group.failed),
            format!("{:?}", self.failed),
        );
        differ(
            VerifyCheck::Versions,
            "versions",
            format!("{:?}", group.policy_versions),
            format!("{:?}", self.versions),
        );
        let planned = BTreeSet::from([group.planned]);
        if !self.group_sizes.is_empty() && planned != self.group_sizes {
            let what = format!("says planned {}, its trajectories say {:?}", group.planned, self.group_sizes);
            problems.push((VerifyCheck::GroupCounts, what));
        }
        if group.valid > group.planned {
            problems.push((
                VerifyCheck::GroupCounts,
                format!("has {} of {} slots scored", group.valid, group.planned),
            ));
        }
        let wanted = GroupStatistics::of(&self.rewards);
        if !alike(group.rewards, wanted) {
            problems.push((
                VerifyCheck::GroupRewards,
                format!("says {:?}, its rewards give {wanted:?}", group.rewards),
            ));
        }
        problems
    }
}

/// Compares with a tolerance: sums of the same rewards in another order may differ in their last
/// digits.
fn alike(says: Option<GroupStatistics>, wanted: Option<GroupStatistics>) -> bool {
    let near = |a: f64, b: f64| a == b || (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).clamp(1.0, f64::MAX);
    match (says, wanted) {
        (None, None) => true,
        (Some(a), Some(b)) => {
            near(a.mean, b.mean) && near(a.std, b.std) && a.zero_variance == b.zero_variance
        }
        _ => false,
    }
}
