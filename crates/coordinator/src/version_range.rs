//! The oldest and the newest policy version among the tokens of a step or a trajectory.

use furrow_rollout::StepRecord;

/// The smallest range that contains both.
pub(crate) fn merge_ranges(a: Option<(i32, i32)>, b: Option<(i32, i32)>) -> Option<(i32, i32)> {
    match (a, b) {
        (Some((a_min, a_max)), Some((b_min, b_max))) => Some((a_min.min(b_min), a_max.max(b_max))),
        (one, other) => one.or(other),
    }
}

/// Oldest and newest policy version among a step's tokens.
pub(crate) fn versions_of(record: &StepRecord) -> Option<(i32, i32)> {
    let tokens = record.trace.tokens.as_ref()?;
    tokens.policy_versions.iter().map(|version| Some((*version, *version))).fold(None, merge_ranges)
}
