//! What a rule receives, and the verdict or the error that it returns.

use bytes::Bytes;
use furrow_rollout::{EndKind, ErrorPage, Evidence, FaultOwner, ScoreComponent, VoidState, is_graded};
use serde_json::{Map, Value};

use crate::fields::short;
use crate::judge::Judge;

/// What the farm knows about a trajectory's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndFacts {
    pub end: EndKind,
    pub steps: u32,
    pub max_steps: u32,
}

/// A finished trajectory as passed to a scorer.
#[derive(Debug, Clone, Copy)]
pub struct FinishedTrajectory<'a> {
    pub evidence: &'a Evidence,
    /// What the farm knows about the end.
    pub facts: &'a EndFacts,
    /// The instruction that the policy received.
    pub goal: &'a str,
    /// Screenshots of its last steps, oldest first, at least as many as `Scorer::screenshots`
    /// returns if there are so many.
    pub earlier: &'a [Bytes],
}

/// Why there is no verdict. The trajectory then has no reward.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScoreError {
    /// Failures of the farm are not scored.
    #[error("a trajectory that ended as {} is not scored: that is the farm's failure, not the policy's", .end.as_str())]
    FarmFailure { end: EndKind },
    /// The page could not be observed at the end.
    #[error("the evidence is empty: the page could not be observed at the end")]
    EmptyEvidence,
    /// A part that the scorer needs is missing.
    #[error("scorer {scorer} needs {part}, but the evidence has none")]
    Missing {
        scorer: &'static str,
        /// Part of the evidence.
        part: &'static str,
    },
    /// A part is present but invalid.
    #[error("scorer {scorer} cannot use {part}: {problem}")]
    Unusable {
        scorer: &'static str,
        /// Part of the evidence.
        part: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The scorer needs a judge and none is available.
    #[error(
        "scorer judge came to no verdict: no judge is available; set score.judge.endpoint and score.judge.model in the job"
    )]
    NoJudge,
    /// The judge reached no verdict.
    #[error("scorer judge came to no verdict: {problem}")]
    Judge { problem: String },
    /// The task's line contains no valid scorer.
    #[error("the task's record contains no usable scorer: {problems}")]
    BadRecord {
        /// All problems of the scorer.
        problems: String,
    },
}

/// The result of a rule, before name, version and hash are added.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RuleVerdict {
    pub reward: f32,
    pub success: bool,
    pub components: Vec<ScoreComponent>,
    pub rationale: String,
}

/// The input of a rule.
pub(super) struct ScoreInput<'a> {
    pub evidence: &'a Evidence,
    pub facts: &'a EndFacts,
    pub goal: &'a str,
    pub earlier: &'a [Bytes],
    pub judge: Option<&'a dyn Judge>,
}

impl RuleVerdict {
    /// A verdict with reward 1 or 0.
    pub(super) fn binary(success: bool, rationale: String) -> Self {
        Self { reward: if success { 1.0 } else { 0.0 }, success, components: Vec::new(), rationale }
    }

    /// A 0 for a final state that counts for nothing, with the reason as a component.
    pub(super) fn void(void: VoidState, why: &str) -> Self {
        let named = match void {
            VoidState::Tampered => "tampered: the site's storage is not what its own pages leave",
            VoidState::Oversized => "oversized: the site's storage has more bytes than a state may have",
            VoidState::SideEffects => "side_effects: something changed that the task did not ask for",
        };
        let rationale = if why.is_empty() { named.to_owned() } else { format!("{named}: {}", short(why)) };
        let components = vec![ScoreComponent { name: void.as_str().to_owned(), value: 1.0 }];
        Self { components, ..Self::binary(false, rationale) }
    }

    /// Inverts the verdict: 1 if it was not satisfied, 0 if it was; partial success counts as not
    /// satisfied.
    pub(super) fn negated(self) -> Self {
        let Self { success, components, rationale, .. } = self;
        Self { components, ..Self::binary(!success, format!("not: {rationale}")) }
    }
}

/// Component of a verdict that rests on what the final page says of itself: who runs a script in
/// that page, or writes to it, can forge it.
pub(super) const SELF_REPORTED: &str = "self_reported";

impl ScoreInput<'_> {
    /// A verdict on the report of a page, marked unless the farm had the site make that report.
    pub(super) fn with_source(&self, mut verdict: RuleVerdict) -> RuleVerdict {
        if !self.evidence.probe_json.as_deref().is_some_and(is_graded) {
            verdict.components.push(ScoreComponent { name: SELF_REPORTED.to_owned(), value: 1.0 });
        }
        verdict
    }

    /// The browser's error page, if it is shown and its cause is known.
    pub(super) fn error_page(&self) -> Option<ErrorPage> {
        let report: Map<String, Value> = serde_json::from_str(self.evidence.probe_json.as_deref()?).ok()?;
        ErrorPage::of_report(&report)
    }

    pub(super) fn left_for_error_page(&self) -> bool {
        self.error_page().is_some_and(|page| page.fault == FaultOwner::Policy)
    }
}
