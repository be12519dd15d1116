//! Checks of the order of steps, and of a step alone.

use std::collections::BTreeSet;

use furrow_rollout::{Mark, Observation};

use super::report::VerifyCheck;
use super::tokens::SessionMemory;

/// The trajectory whose steps are being read.
#[derive(Default)]
pub(super) struct StepWalk {
    trajectory: Option<String>,
    next: u32,
    pub memory: SessionMemory,
    walked: BTreeSet<String>,
}

impl StepWalk {
    /// Records that a step follows: steps of a trajectory must be adjacent, and a trajectory comes
    /// once.
    pub(super) fn arrive(&mut self, id: &str, step: u32) -> Vec<(VerifyCheck, String)> {
        let mut problems = Vec::new();
        if self.trajectory.as_deref() != Some(id) {
            if !self.walked.insert(id.to_owned()) {
                problems.push((VerifyCheck::StepOrder, "is apart from the trajectory's other steps".into()));
            }
            *self = Self {
                trajectory: Some(id.to_owned()),
                walked: std::mem::take(&mut self.walked),
                ..Self::default()
            };
        }
        let next = std::mem::replace(&mut self.next, step.saturating_add(1));
        if step < next {
            problems.push((VerifyCheck::StepOnce, format!("comes after step {}", next - 1)));
        } else if step > next {
            problems.push((VerifyCheck::StepOrder, format!("comes where step {next} should be")));
        }
        problems
    }
}

pub(super) fn check_marks(observation: &Observation) -> Option<(VerifyCheck, String)> {
    let problem = Mark::problem(observation.marks.as_deref()?, observation.screenshot.size)?;
    Some((VerifyCheck::Marks, problem))
}
