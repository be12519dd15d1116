//! The rules of scorers as data. Rules contain rules, so all of these types are together.

use super::answer::AnswerRule;
use super::click::ClickRule;
use super::download::DownloadRule;
use super::finding::FindingRule;
use super::llm_judge::JudgeRule;
use super::probe::ProbeRule;
use super::url::UrlRule;
use crate::MiniwobReward;

/// Largest nesting depth of combinations.
pub(super) const DEPTH_MAX: usize = 4;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum ScoreRule {
    Probe(ProbeRule),
    Answer(AnswerRule),
    Url(UrlRule),
    Miniwob(MiniwobReward),
    Click(ClickRule),
    Download(DownloadRule),
    Combined(RuleCombination),
    Not(Box<ScoreRule>),
    StepPenalty(StepPenalty),
    Judge(JudgeRule),
    /// `text`, `storage`, `cookie`, `script`, `http` or `command`.
    Finding(FindingRule),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct RuleCombination {
    pub way: CombineMode,
    pub parts: Vec<WeightedRule>,
}

/// How the parts' rewards are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CombineMode {
    /// The smallest reward; solved if all parts are.
    All,
    /// The largest reward; solved if one part is.
    Any,
    /// The weighted mean; solved if all parts are.
    Weighted,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct WeightedRule {
    pub weight: f64,
    pub rule: ScoreRule,
}

/// A penalty on steps.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StepPenalty {
    pub of: Box<ScoreRule>,
    pub per_step: f64,
    pub free_steps: u64,
    /// The penalty never lowers the reward below this; a reward that is already lower stays
    /// unchanged.
    pub floor: f64,
}
