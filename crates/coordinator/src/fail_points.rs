//! The names of all fail points, for the tests that kill the process at each of them.

use crate::commit::{CommitStage, EXPIRY_FAIL_POINTS};
use crate::ledger::LEDGER_FAIL_POINTS;
use crate::shell::SERVICE_FAIL_POINTS;
use crate::spool::SPOOL_FAIL_POINTS;

/// The fail points that every job passes, in the order of a step's path to the data set.
pub fn fail_points() -> impl Iterator<Item = &'static str> {
    all_fail_points().filter(|point| !is_weights_point(point) && !is_evaluation_point(point))
}

/// The fail points passed when weights are published.
pub fn weights_fail_points() -> impl Iterator<Item = &'static str> {
    all_fail_points().filter(|point| is_weights_point(point) && !is_withdrawal_point(point))
}

/// The fail points passed when a version is withdrawn.
pub fn withdrawal_fail_points() -> impl Iterator<Item = &'static str> {
    all_fail_points().filter(|point| is_withdrawal_point(point))
}

/// The fail points passed when versions are evaluated.
pub fn evaluation_fail_points() -> impl Iterator<Item = &'static str> {
    all_fail_points().filter(|point| is_evaluation_point(point))
}

/// The fail points passed when rows of the data set expire.
pub fn expiry_fail_points() -> impl Iterator<Item = &'static str> {
    EXPIRY_FAIL_POINTS.into_iter()
}

fn is_evaluation_point(point: &str) -> bool {
    point.contains("_evaluation_")
}

fn is_withdrawal_point(point: &str) -> bool {
    point.contains("_version_withdraw")
}

fn is_weights_point(point: &str) -> bool {
    point.contains("_version_") || point == "coordinator.before_ack_publish"
}

fn all_fail_points() -> impl Iterator<Item = &'static str> {
    let commit = CommitStage::ALL.into_iter().map(CommitStage::fail_point);
    let ledger = LEDGER_FAIL_POINTS.iter().copied();
    let service = SERVICE_FAIL_POINTS.iter().copied();
    SPOOL_FAIL_POINTS.iter().copied().chain(ledger).chain(service).chain(commit)
}
