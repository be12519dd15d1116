//! Scorers: pure functions from evidence to a verdict. A scorer that cannot decide returns an
//! error, never a reward of 0.
//!
//! A task's line names its scorer in the key `score`; docs/TASKS.md documents every key:
//!
//! ```json
//! {"kind": "probe", "pointer": "/correct"}
//! {"kind": "probe", "pointer": "/order/city", "match": "normalized", "value": "Lisbon"}
//! {"kind": "answer", "match": "number", "value": 42, "tolerance": 0.5,
//!  "unit": ["km", "kilometres"]}
//! {"kind": "answer", "match": "date", "value": "2024-02-29"}
//! {"kind": "answer", "match": "set", "value": ["red", "blue"]}
//! {"kind": "answer", "match": "normalized", "expected_pointer": "/expected"}
//! {"kind": "url", "prefix": "https://shop.test/cart", "query": {"item": "7"}}
//! {"kind": "miniwob", "reward": "sparse"}
//! {"kind": "click", "box": [10, 20, 110, 60]}
//! {"kind": "download", "name": "*.csv", "contains": "total"}
//! {"kind": "all", "of": [{"kind": "probe", "pointer": "/sent"},
//!                        {"kind": "answer", "match": "normalized", "value": "yes"}]}
//! {"kind": "weighted", "of": [{"weight": 3, "kind": "probe"},
//!                             {"weight": 1, "kind": "url", "host": "shop.test"}]}
//! {"kind": "not", "of": {"kind": "probe", "pointer": "/deleted"}}
//! {"kind": "step_penalty", "of": {"kind": "probe"}, "per_step": 0.01, "free_steps": 5}
//! {"kind": "judge", "screenshots": 3, "votes": 3}
//! {"kind": "text", "selector": "#total", "match": "number", "value": 12.5, "unit": "$"}
//! {"kind": "storage", "area": "local", "key": "theme", "match": "exact", "value": "dark"}
//! {"kind": "cookie", "name": "consent", "match": "exact", "value": "no"}
//! {"kind": "script", "expression": "document.querySelectorAll('li').length", "equals": 3}
//! {"kind": "http", "url": "http://api.hats.test/cart", "pointer": "/items/0/count", "equals": 2}
//! {"kind": "command", "hook": "cart-is-paid"}
//! ```
//!
//! `expected_pointer` is the pointer to the correct answer in the page's probe, for pages that
//! generate it from the seed. `all` takes the smallest reward of its parts, `any` the largest,
//! `weighted` their weighted mean; `not` inverts a reward of 0 or 1. `judge` asks the judge that
//! the caller supplies (`judge.rs`); without one it reaches no verdict.

mod answer;
mod click;
mod combine;
mod compare;
pub(crate) mod date;
mod download;
mod ends;
mod finding;
mod finding_query;
mod llm_judge;
mod miniwob;
mod number;
mod pattern;
mod probe;
mod rule;
mod steps;
mod text;
mod url;
mod verdict;

use furrow_rollout::{EndKind, Evidence, FaultOwner, FinalQuery, PagePart, QUERIES_MAX, Score, void_of};
use serde_json::{Map, Value};

use crate::fields::JsonFields;
use crate::judge::{Judge, JudgeSettings};
use answer::AnswerRule;
use click::ClickRule;
use download::DownloadRule;
use ends::PayingEnds;
use finding::FindingRule;
use finding_query::QueryKind;
use llm_judge::JudgeRule;
use probe::ProbeRule;
use rule::{CombineMode, DEPTH_MAX, RuleCombination, ScoreRule, StepPenalty};
use url::UrlRule;
use verdict::{RuleVerdict, ScoreInput};

pub(crate) use finding_query::not_a_hook;
pub use llm_judge::judge_cost_usd;
pub use verdict::{EndFacts, FinishedTrajectory, ScoreError};

/// Incremented when the same evidence may get another verdict than before.
const VERSION: u32 = 4;

/// A validated way to score.
#[derive(Debug, Clone, PartialEq)]
pub struct Scorer {
    rule: ScoreRule,
    ends: PayingEnds,
}

impl Scorer {
    /// Scores a finished trajectory by rules alone; a scorer that needs a judge reaches no verdict.
    pub fn score(&self, evidence: &Evidence, facts: &EndFacts) -> Result<Score, ScoreError> {
        self.score_with(&FinishedTrajectory { evidence, facts, goal: "", earlier: &[] }, None)
    }

    /// Scores a finished trajectory and asks the judge if a rule needs one.
    pub fn score_with(
        &self,
        finished: &FinishedTrajectory,
        judge: Option<&dyn Judge>,
    ) -> Result<Score, ScoreError> {
        let FinishedTrajectory { evidence, facts, goal, earlier } = *finished;
        if facts.end.fault(true) == FaultOwner::Farm {
            return Err(ScoreError::FarmFailure { end: facts.end });
        }
        if *evidence == Evidence::default() {
            return Err(ScoreError::EmptyEvidence);
        }
        let void = evidence.probe_json.as_deref().and_then(void_of);
        let verdict = match void {
            // Also where the rules read nothing of it: who wrote to the site's storage did not act.
            Some((void, why)) => RuleVerdict::void(void, &why),
            None => self.verdict(&ScoreInput { evidence, facts, goal, earlier, judge })?,
        };
        Ok(Score {
            reward: Some(verdict.reward),
            success: Some(verdict.success),
            components: verdict.components,
            scorer: self.rule.name().to_owned(),
            version: VERSION,
            rationale: verdict.rationale,
            evidence_sha256: evidence.sha256(),
        })
    }

    fn verdict(&self, case: &ScoreInput) -> Result<RuleVerdict, ScoreError> {
        let end = case.facts.end;
        if self.pays(end) {
            return self.rule.score(case);
        }
        // A judge costs money, and nothing that it says would be paid.
        let verdict = if self.needs_judge() { None } else { Some(self.rule.score(case)?) };
        Ok(self.ends.unpaid(end, verdict))
    }

    /// Whether the task pays for trajectories that end so.
    pub fn pays(&self, end: EndKind) -> bool {
        self.ends.pays(end)
    }

    /// Rebuilds the scorer from a trajectory's task record ([`crate::TaskSpec::json`]).
    pub fn of_task_json(json: &str) -> Result<Self, ScoreError> {
        let bad = |problems: String| ScoreError::BadRecord { problems };
        let record: Map<String, Value> = serde_json::from_str(json).map_err(|e| bad(e.to_string()))?;
        let mut problems = Vec::new();
        let scorer = Self::read(&mut JsonFields::new(&record, "", &mut problems), "score");
        scorer.ok_or_else(|| bad(problems.join("; ")))
    }

    /// Whether it reads the page's probe, which only suites with their own pages have.
    pub fn needs_probe(&self) -> bool {
        self.rule.any(&|rule| match rule {
            ScoreRule::Probe(_) | ScoreRule::Miniwob(_) | ScoreRule::Click(_) => true,
            ScoreRule::Answer(answer) => answer.needs_probe(),
            _ => false,
        })
    }

    /// An answer that its first rule on the answer takes for right; `None` if it has no such rule,
    /// or the evidence does not say what is right. Other rules may still refuse it.
    pub fn expected_answer(&self, evidence: &Evidence) -> Option<String> {
        let facts = EndFacts { end: EndKind::Answered, steps: 0, max_steps: 0 };
        let case = ScoreInput { evidence, facts: &facts, goal: "", earlier: &[], judge: None };
        let found = std::cell::RefCell::new(None);
        self.rule.any(&|rule| match rule {
            ScoreRule::Answer(answer) => {
                found.replace(answer.expected_text(&case));
                true
            }
            _ => false,
        });
        found.into_inner()
    }

    /// Whether it asks for downloads, which the task must then allow.
    pub(crate) fn needs_downloads(&self) -> bool {
        self.rule.any(&|rule| matches!(rule, ScoreRule::Download(_)))
    }

    /// What it needs looked up at the end of a trajectory, each query once.
    pub fn queries(&self) -> Vec<FinalQuery> {
        let found = std::cell::RefCell::new(Vec::new());
        self.rule.any(&|rule| {
            if let ScoreRule::Finding(rule) = rule
                && !found.borrow().contains(rule.query())
            {
                found.borrow_mut().push(rule.query().clone());
            }
            false
        });
        found.into_inner()
    }

    /// Names of the kinds that believe what a page reports of itself, each once.
    pub fn self_reported(&self) -> Vec<&'static str> {
        let kind = |query: &FinalQuery| match query {
            FinalQuery::Page { part: PagePart::Text { .. }, .. } => Some("text"),
            FinalQuery::Page { part: PagePart::Storage { .. }, .. } => Some("storage"),
            FinalQuery::Page { part: PagePart::Cookie { .. }, .. } => Some("cookie"),
            FinalQuery::Page { part: PagePart::Script { .. }, .. } => Some("script"),
            FinalQuery::Http(_) | FinalQuery::Command { .. } => None,
        };
        let mut kinds: Vec<_> = self.queries().iter().filter_map(kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// Whether the verdict needs a judge.
    pub fn needs_judge(&self) -> bool {
        self.rule.any(&|rule| matches!(rule, ScoreRule::Judge(_)))
    }

    /// Number of last screenshots that scoring needs besides the evidence: one more than the judge
    /// gets, because the step of an answer is left out.
    pub fn screenshots(&self, habits: &JudgeSettings) -> usize {
        let most = std::cell::Cell::new(0);
        self.rule.any(&|rule| {
            if let ScoreRule::Judge(judge) = rule {
                most.set(most.get().max(judge.screenshots(habits)));
            }
            false
        });
        match most.get() {
            0 | 1 => 0,
            count => count as usize,
        }
    }

    /// Name of the kind, as in [`Score::scorer`].
    pub fn name(&self) -> &'static str {
        self.rule.name()
    }

    /// Parses the scorer under a key, and beside it the ends that pay, and reports every problem.
    pub(crate) fn read(fields: &mut JsonFields, key: &'static str) -> Option<Self> {
        let Some(value) = fields.value(key) else {
            fields.problem(
                key,
                "is missing; say how the task is scored, such as \
                 {\"kind\": \"probe\", \"pointer\": \"/correct\"}",
            );
            return None;
        };
        let scorer = {
            let (prefix, problems) = fields.nested(key);
            let rule = ScoreRule::read(value, &prefix, DEPTH_MAX, problems)?;
            Self { ends: PayingEnds::read(fields), rule }
        };
        let queries = scorer.queries().len();
        if queries > QUERIES_MAX {
            let problem = format!("looks up {queries} different things; use at most {QUERIES_MAX}");
            fields.problem(key, problem);
            return None;
        }
        Some(scorer)
    }

    /// Parses a scorer from its JSON alone.
    pub(crate) fn from_value(value: &Value) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let rule = ScoreRule::read(value, "score.", DEPTH_MAX, &mut problems);
        rule.map(|rule| Self { ends: PayingEnds::default(), rule }).ok_or(problems)
    }
}

#[derive(Clone, Copy)]
enum RuleKind {
    Probe,
    Answer,
    Url,
    Miniwob,
    Click,
    Download,
    All,
    Any,
    Weighted,
    Not,
    StepPenalty,
    Judge,
    Query(QueryKind),
}

const KINDS: [(&str, RuleKind); 18] = [
    ("probe", RuleKind::Probe),
    ("answer", RuleKind::Answer),
    ("url", RuleKind::Url),
    ("miniwob", RuleKind::Miniwob),
    ("click", RuleKind::Click),
    ("download", RuleKind::Download),
    ("all", RuleKind::All),
    ("any", RuleKind::Any),
    ("weighted", RuleKind::Weighted),
    ("not", RuleKind::Not),
    ("step_penalty", RuleKind::StepPenalty),
    ("judge", RuleKind::Judge),
    ("text", RuleKind::Query(QueryKind::Text)),
    ("storage", RuleKind::Query(QueryKind::Storage)),
    ("cookie", RuleKind::Query(QueryKind::Cookie)),
    ("script", RuleKind::Query(QueryKind::Script)),
    ("http", RuleKind::Query(QueryKind::Http)),
    ("command", RuleKind::Query(QueryKind::Command)),
];

impl ScoreRule {
    /// Parses one rule; `prefix` ends in a dot, `depth` is the number of combinations that may
    /// still be nested in it.
    fn read(value: &Value, prefix: &str, depth: usize, problems: &mut Vec<String>) -> Option<Self> {
        let Some(map) = value.as_object() else {
            let key = prefix.trim_end_matches('.');
            problems.push(format!(
                "{key}: {} is not an object; write {{\"kind\": …}}",
                crate::fields::quoted_value(value)
            ));
            return None;
        };
        let before = problems.len();
        let mut fields = JsonFields::new(map, prefix, problems);
        if !fields.has("kind") {
            let known = KINDS.map(|(name, _)| name).join(", ");
            fields.problem("kind", format!("is missing; use one of {known}"));
            return None;
        }
        let rule = match fields.choice("kind", &KINDS)? {
            RuleKind::Probe => ProbeRule::read(&mut fields).map(ScoreRule::Probe),
            RuleKind::Answer => AnswerRule::read(&mut fields).map(ScoreRule::Answer),
            RuleKind::Url => UrlRule::read(&mut fields).map(ScoreRule::Url),
            RuleKind::Miniwob => miniwob::read(&mut fields).map(ScoreRule::Miniwob),
            RuleKind::Click => ClickRule::read(&mut fields).map(ScoreRule::Click),
            RuleKind::Download => DownloadRule::read(&mut fields).map(ScoreRule::Download),
            RuleKind::All => {
                RuleCombination::read(&mut fields, CombineMode::All, depth).map(ScoreRule::Combined)
            }
            RuleKind::Any => {
                RuleCombination::read(&mut fields, CombineMode::Any, depth).map(ScoreRule::Combined)
            }
            RuleKind::Weighted => {
                RuleCombination::read(&mut fields, CombineMode::Weighted, depth).map(ScoreRule::Combined)
            }
            RuleKind::Not => read_not(&mut fields, depth),
            RuleKind::StepPenalty => StepPenalty::read(&mut fields, depth).map(ScoreRule::StepPenalty),
            RuleKind::Judge => JudgeRule::read(&mut fields).map(ScoreRule::Judge),
            RuleKind::Query(kind) => FindingRule::read(kind, &mut fields).map(ScoreRule::Finding),
        };
        fields.refuse_unknown();
        rule.filter(|_| problems.len() == before)
    }

    fn score(&self, case: &ScoreInput) -> Result<RuleVerdict, ScoreError> {
        match self {
            ScoreRule::Probe(rule) => Ok(case.with_source(rule.score(case)?)),
            ScoreRule::Answer(rule) if rule.needs_probe() => Ok(case.with_source(rule.score(case)?)),
            ScoreRule::Answer(rule) => rule.score(case),
            ScoreRule::Url(rule) => rule.score(case),
            ScoreRule::Miniwob(reward) => Ok(case.with_source(miniwob::score(*reward, case)?)),
            ScoreRule::Click(rule) => Ok(case.with_source(rule.score(case)?)),
            ScoreRule::Download(rule) => rule.score(case),
            ScoreRule::Combined(combination) => combination.score(case),
            ScoreRule::Not(rule) => {
                let verdict = rule.score(case)?;
                // An error page shows nothing, which does not prove that something is absent from
                // the task's page.
                let nothing_shown = case.left_for_error_page() && rule.any(&ScoreRule::looks_at_page);
                // What could not be looked up is not absent either.
                let nothing_found = rule
                    .any(&|rule| matches!(rule, ScoreRule::Finding(finding) if finding.found_nothing(case)));
                Ok(if nothing_shown || nothing_found {
                    RuleVerdict::binary(false, verdict.rationale)
                } else {
                    verdict.negated()
                })
            }
            ScoreRule::StepPenalty(rule) => rule.score(case),
            ScoreRule::Judge(rule) => rule.score(case),
            ScoreRule::Finding(rule) => rule.score(case),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            ScoreRule::Probe(_) => "probe",
            ScoreRule::Answer(_) => "answer",
            ScoreRule::Url(_) => "url",
            ScoreRule::Miniwob(_) => "miniwob",
            ScoreRule::Click(_) => "click",
            ScoreRule::Download(_) => "download",
            ScoreRule::Combined(combination) => combination.name(),
            ScoreRule::Not(_) => "not",
            ScoreRule::StepPenalty(_) => "step_penalty",
            ScoreRule::Judge(_) => "judge",
            ScoreRule::Finding(rule) => rule.name(),
        }
    }

    /// Whether it reads the final page itself, and not only the answer.
    fn looks_at_page(&self) -> bool {
        match self {
            ScoreRule::Probe(_) | ScoreRule::Url(_) | ScoreRule::Miniwob(_) | ScoreRule::Click(_) => true,
            ScoreRule::Answer(answer) => answer.needs_probe(),
            ScoreRule::Finding(rule) => rule.looks_at_page(),
            _ => false,
        }
    }

    fn any(&self, test: &dyn Fn(&ScoreRule) -> bool) -> bool {
        let inside = match self {
            ScoreRule::Combined(combination) => combination.parts().any(|part| part.any(test)),
            ScoreRule::Not(rule) => rule.any(test),
            ScoreRule::StepPenalty(penalty) => penalty.inner().any(test),
            _ => false,
        };
        inside || test(self)
    }
}

/// Key: `of`, a scorer.
fn read_not(fields: &mut JsonFields, depth: usize) -> Option<ScoreRule> {
    let Some(value) = fields.value("of") else {
        fields.problem("of", "is missing; name the scorer that must not be satisfied, {\"kind\": …}");
        return None;
    };
    let Some(depth) = depth.checked_sub(1) else {
        fields.problem("of", format!("combinations are nested more than {DEPTH_MAX} deep; flatten them"));
        return None;
    };
    let (prefix, problems) = fields.nested("of");
    ScoreRule::read(value, &prefix, depth, problems).map(|rule| ScoreRule::Not(Box::new(rule)))
}

#[cfg(test)]
mod tests;
