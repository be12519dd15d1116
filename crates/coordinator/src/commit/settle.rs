//! Compares the spool with the ledger: which files are kept, which are cut, and which trajectories
//! lost their record.

use furrow_rollout::EndKind;

use crate::ledger::{TrajectoryEnd, TrajectoryRow, TrajectoryStanding};
use crate::spool::{EntryFlaw, RecoveredTrajectory, SpoolTail};

/// What happens to a trajectory's spool file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SpoolSettlement {
    Keep,
    /// Its tail was never acknowledged.
    Cut,
    /// What follows the whole entries is not needed, but was once whole: it is copied before it is
    /// cut.
    CopyAndCut {
        why: String,
    },
    /// Acknowledged entries can no longer be read: the file is copied, and the trajectory ends as
    /// `record_lost`.
    Lose {
        why: String,
    },
    /// The file does not exist. That is not damage but a spool that was not restored: the start
    /// must fail.
    Absent {
        /// What the ledger expects.
        what: String,
    },
}

/// Settles a trajectory that no committed shard holds.
pub(super) fn settle(row: &TrajectoryRow, found: Option<&RecoveredTrajectory>) -> SpoolSettlement {
    match (&row.standing, found) {
        (TrajectoryStanding::Finished { ended, .. } | TrajectoryStanding::Scored { ended, .. }, None) => {
            SpoolSettlement::Absent { what: format!("{} steps and the ending", ended.steps) }
        }
        (
            TrajectoryStanding::Finished { ended, .. } | TrajectoryStanding::Scored { ended, .. },
            Some(found),
        ) => describe_missing(ended, found)
            .map_or_else(|| settle_tail(found), |why| SpoolSettlement::Lose { why }),
        // What it did before it failed is kept for debugging; nothing trains on it.
        (TrajectoryStanding::Failed { ended }, Some(found)) if (found.steps.len() as u32) < ended.steps => {
            SpoolSettlement::CopyAndCut { why: describe_shortfall(ended, found) }
        }
        // The ledger does not count the steps of leased trajectories. A torn entry was not
        // acknowledged; one that a whole entry follows was.
        (TrajectoryStanding::Assigned, Some(found)) => match found.tail {
            SpoolTail::Damaged { .. } => SpoolSettlement::Lose { why: describe_flaw(found) },
            _ => settle_tail(found),
        },
        (TrajectoryStanding::Failed { .. }, Some(found)) => settle_tail(found),
        (TrajectoryStanding::Assigned | TrajectoryStanding::Failed { .. }, None) => SpoolSettlement::Keep,
    }
}

/// The end of a trajectory whose record is lost.
pub(super) fn lost(
    row: &TrajectoryRow,
    found: &RecoveredTrajectory,
    why: String,
    at_micros: i64,
) -> TrajectoryEnd {
    let before = row.standing.ended();
    TrajectoryEnd {
        end: EndKind::RecordLost,
        reason: why,
        steps: found.steps.len() as u32,
        policy_versions: before.and_then(|ended| ended.policy_versions),
        staleness: before.and_then(|ended| ended.staleness),
        at_micros,
    }
}

fn describe_missing(ended: &TrajectoryEnd, found: &RecoveredTrajectory) -> Option<String> {
    if found.ending.is_none() || found.steps.len() != ended.steps as usize {
        return Some(describe_shortfall(ended, found));
    }
    None
}

fn describe_shortfall(ended: &TrajectoryEnd, found: &RecoveredTrajectory) -> String {
    let ending = if found.ending.is_some() { "its ending" } else { "no ending" };
    let kept = found.steps.len();
    let flaw = describe_flaw(found);
    format!("of {} acknowledged steps {kept} can be read, and {ending}: {flaw}", ended.steps)
}

fn settle_tail(found: &RecoveredTrajectory) -> SpoolSettlement {
    match found.tail {
        SpoolTail::None => SpoolSettlement::Keep,
        SpoolTail::Torn { .. } => SpoolSettlement::Cut,
        SpoolTail::Damaged { .. } => SpoolSettlement::CopyAndCut { why: describe_flaw(found) },
    }
}

fn describe_flaw(found: &RecoveredTrajectory) -> String {
    match found.tail {
        SpoolTail::None => "the file ends before them".to_owned(),
        SpoolTail::Torn { bytes } => format!("the last {bytes} bytes are not a whole entry"),
        SpoolTail::Damaged { offset, why: EntryFlaw::Changed } => {
            format!("the entry at byte {offset} is damaged")
        }
        SpoolTail::Damaged { offset, why: EntryFlaw::OutOfOrder } => {
            format!("the entry at byte {offset} does not follow the one before it")
        }
        SpoolTail::Damaged { offset, why: EntryFlaw::Unreadable } => {
            format!("the disk cannot read the entry at byte {offset}")
        }
    }
}

#[cfg(test)]
mod tests {
    use furrow_rollout::Id;

    use super::*;
    use crate::ledger::Mutation;
    use crate::ledger::conformance::{assigned, finish, score};

    /// A row of the ledger with two acknowledged steps.
    fn row(state: &str) -> TrajectoryRow {
        let Mutation::Assigned(start) = assigned(0, 0, 0, 1) else { unreachable!() };
        let Mutation::Finished { ended, evidence_sha256, .. } = finish(0, 0, 0, 1, EndKind::Answered) else {
            unreachable!()
        };
        let Mutation::Scored { verdict, .. } = score(0, 0, 0, 1.0) else { unreachable!() };
        let standing = match state {
            "assigned" => TrajectoryStanding::Assigned,
            "finished" => TrajectoryStanding::Finished { ended, evidence_sha256 },
            "scored" => TrajectoryStanding::Scored { ended, verdict },
            "failed" => {
                TrajectoryStanding::Failed { ended: TrajectoryEnd { end: EndKind::LeaseLost, ..ended } }
            }
            other => panic!("{other}"),
        };
        TrajectoryRow { start, standing, shard_id: None, committed: false }
    }

    #[track_caller]
    fn check(standing: &str, steps: usize, has_ending: bool, tail: SpoolTail, want: &str) {
        let found = RecoveredTrajectory {
            trajectory_id: Id::new("r-g000000-s0-a0").unwrap(),
            steps: (0..).zip(vec![[1; 32]; steps]).collect(),
            ending: has_ending.then_some([2; 32]),
            tail,
        };
        let got = format!("{:?}", settle(&row(standing), Some(&found)));
        assert!(
            got.starts_with(want),
            "{standing}, {steps} steps, {has_ending}, {tail:?}: {got}, not {want}"
        );
    }

    #[test]
    fn only_what_was_never_acknowledged_is_cut_without_a_copy() {
        let torn = SpoolTail::Torn { bytes: 9 };
        let damaged = SpoolTail::Damaged { offset: 300, why: EntryFlaw::Changed };
        for standing in ["finished", "scored"] {
            check(standing, 2, true, SpoolTail::None, "Keep");
            check(standing, 2, true, torn, "Cut");
            check(standing, 2, true, damaged, "CopyAndCut");
            check(standing, 2, false, torn, "Lose");
            check(standing, 1, false, torn, "Lose");
            check(standing, 0, false, torn, "Lose");
            check(standing, 0, false, damaged, "Lose");
            check(standing, 0, false, SpoolTail::None, "Lose");
            check(standing, 1, true, SpoolTail::None, "Lose");
        }
        check("assigned", 2, false, SpoolTail::None, "Keep");
        check("assigned", 0, false, torn, "Cut");
        check("assigned", 0, false, damaged, "Lose");
        check("assigned", 5, true, torn, "Cut");
        check("failed", 2, false, SpoolTail::None, "Keep");
        check("failed", 3, false, torn, "Cut");
        check("failed", 1, false, torn, "CopyAndCut");
        check("failed", 2, false, damaged, "CopyAndCut");
    }

    #[test]
    fn a_file_that_is_not_there_is_no_damage() {
        for (standing, want) in
            [("assigned", "Keep"), ("failed", "Keep"), ("finished", "Absent"), ("scored", "Absent")]
        {
            let got = format!("{:?}", settle(&row(standing), None));
            assert!(got.starts_with(want), "{standing}: {got}");
        }
    }
}
