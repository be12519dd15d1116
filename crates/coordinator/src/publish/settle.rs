//! The spool compared with the ledger: which files are kept as they are, which are cut, and which trajectory lost its record.

use furrow_rollout::End;

use crate::ledger::{Ended, Standing, TrajectoryRow};
use crate::spool::{Flaw, RecoveredTrajectory, Tail};

/// What becomes of a trajectory's spool file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Settlement {
    /// It is whole.
    Keep,
    /// Its tail was never acknowledged.
    Cut,
    /// What follows the whole entries is not needed, but was whole once: it is copied before it is cut.
    CopyAndCut {
        /// What was found.
        why: String,
    },
    /// What was acknowledged cannot be read any more: the file is copied, and the trajectory ends as `record_lost`.
    Lose {
        /// What was found.
        why: String,
    },
    /// The file is not there at all. That is no damage but a spool that was not put back: nothing may go on.
    Absent {
        /// What the ledger expects.
        what: String,
    },
}

/// Decides it for a trajectory that no published shard holds.
pub(super) fn settle(row: &TrajectoryRow, found: Option<&RecoveredTrajectory>) -> Settlement {
    match (&row.standing, found) {
        (Standing::Finished { ended, .. } | Standing::Scored { ended, .. }, None) => {
            Settlement::Absent { what: format!("{} steps and the ending", ended.steps) }
        }
        (Standing::Finished { ended, .. } | Standing::Scored { ended, .. }, Some(found)) => {
            missing(ended, found).map_or_else(|| tail(found), |why| Settlement::Lose { why })
        }
        // What it did before it failed is kept for those who look for the reason; nothing is trained on it.
        (Standing::Failed { ended }, Some(found)) if (found.steps.len() as u32) < ended.steps => {
            Settlement::CopyAndCut { why: short(ended, found) }
        }
        // The ledger does not count the steps of what is lent. A torn one was not acknowledged; what a whole entry follows was.
        (Standing::Assigned, Some(found)) => match found.tail {
            Tail::Damaged { .. } => Settlement::Lose { why: flaw(found) },
            _ => tail(found),
        },
        (Standing::Failed { .. }, Some(found)) => tail(found),
        (Standing::Assigned | Standing::Failed { .. }, None) => Settlement::Keep,
    }
}

/// The end of a trajectory whose record is lost.
pub(super) fn lost(row: &TrajectoryRow, found: &RecoveredTrajectory, why: String, at_micros: i64) -> Ended {
    let before = row.standing.ended();
    Ended {
        end: End::RecordLost,
        reason: why,
        steps: found.steps.len() as u32,
        policy_versions: before.and_then(|ended| ended.policy_versions),
        staleness: before.and_then(|ended| ended.staleness),
        at_micros,
    }
}

fn missing(ended: &Ended, found: &RecoveredTrajectory) -> Option<String> {
    if found.ending.is_none() || found.steps.len() != ended.steps as usize {
        return Some(short(ended, found));
    }
    None
}

fn short(ended: &Ended, found: &RecoveredTrajectory) -> String {
    let ending = if found.ending.is_some() { "its ending" } else { "no ending" };
    let (kept, flaw) = (found.steps.len(), flaw(found));
    format!("of {} acknowledged steps {kept} can be read, and {ending}: {flaw}", ended.steps)
}

fn tail(found: &RecoveredTrajectory) -> Settlement {
    match found.tail {
        Tail::None => Settlement::Keep,
        Tail::Torn { .. } => Settlement::Cut,
        Tail::Damaged { .. } => Settlement::CopyAndCut { why: flaw(found) },
    }
}

fn flaw(found: &RecoveredTrajectory) -> String {
    match found.tail {
        Tail::None => "the file ends before them".to_owned(),
        Tail::Torn { bytes } => format!("the last {bytes} bytes are no whole entry"),
        Tail::Damaged { offset, why: Flaw::Changed } => format!("the entry at byte {offset} is damaged"),
        Tail::Damaged { offset, why: Flaw::OutOfOrder } => {
            format!("the entry at byte {offset} does not follow the one before it")
        }
        Tail::Damaged { offset, why: Flaw::Unreadable } => {
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
    fn row(word: &str) -> TrajectoryRow {
        let Mutation::Assigned(start) = assigned(0, 0, 0, 1) else { unreachable!() };
        let Mutation::Finished { ended, evidence_sha256, .. } = finish(0, 0, 0, 1, End::Answered) else {
            unreachable!()
        };
        let Mutation::Scored { verdict, .. } = score(0, 0, 0, 1.0) else { unreachable!() };
        let standing = match word {
            "assigned" => Standing::Assigned,
            "finished" => Standing::Finished { ended, evidence_sha256 },
            "scored" => Standing::Scored { ended, verdict },
            "failed" => Standing::Failed { ended: Ended { end: End::LeaseLost, ..ended } },
            other => panic!("{other}"),
        };
        TrajectoryRow { start, standing, shard_id: None, published: false }
    }

    #[track_caller]
    fn check(standing: &str, steps: usize, has_ending: bool, tail: Tail, want: &str) {
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
        let torn = Tail::Torn { bytes: 9 };
        let damaged = Tail::Damaged { offset: 300, why: Flaw::Changed };
        for standing in ["finished", "scored"] {
            check(standing, 2, true, Tail::None, "Keep");
            check(standing, 2, true, torn, "Cut");
            check(standing, 2, true, damaged, "CopyAndCut");
            check(standing, 2, false, torn, "Lose");
            check(standing, 1, false, torn, "Lose");
            check(standing, 0, false, torn, "Lose");
            check(standing, 0, false, damaged, "Lose");
            check(standing, 0, false, Tail::None, "Lose");
            check(standing, 1, true, Tail::None, "Lose");
        }
        check("assigned", 2, false, Tail::None, "Keep");
        check("assigned", 0, false, torn, "Cut");
        check("assigned", 0, false, damaged, "Lose");
        check("assigned", 5, true, torn, "Cut");
        check("failed", 2, false, Tail::None, "Keep");
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
