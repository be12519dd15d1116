//! Scorers: pure functions from evidence to a verdict. A scorer that cannot tell says so; it never makes a 0 of it.
//!
//! A task's line names its scorer in the key `score`; docs/TASKS.md tells every key:
//!
//! ```json
//! {"kind": "probe", "pointer": "/correct"}
//! {"kind": "probe", "pointer": "/order/city", "match": "normalized", "value": "Lisbon"}
//! {"kind": "answer", "match": "number", "value": 42, "tolerance": 0.5, "unit": ["km", "kilometres"]}
//! {"kind": "answer", "match": "date", "value": "2024-02-29"}
//! {"kind": "answer", "match": "set", "value": ["red", "blue"]}
//! {"kind": "answer", "match": "normalized", "expected_pointer": "/expected"}
//! {"kind": "url", "prefix": "https://shop.test/cart", "query": {"item": "7"}}
//! {"kind": "miniwob", "reward": "sparse"}
//! {"kind": "click", "box": [10, 20, 110, 60]}
//! {"kind": "all", "of": [{"kind": "probe", "pointer": "/sent"}, {"kind": "answer", "match": "normalized", "value": "yes"}]}
//! {"kind": "weighted", "of": [{"weight": 3, "kind": "probe"}, {"weight": 1, "kind": "url", "host": "shop.test"}]}
//! {"kind": "not", "of": {"kind": "probe", "pointer": "/deleted"}}
//! {"kind": "step_penalty", "of": {"kind": "probe"}, "per_step": 0.01, "free_steps": 5}
//! {"kind": "judge", "screenshots": 3, "votes": 3}
//! ```
//!
//! `expected_pointer` is where the page's probe holds the right answer, for pages that draw it from the seed.
//! `all` takes the smallest reward of its parts, `any` the largest, `weighted` their mean by weight, `not` turns all into nothing.
//! `judge` asks whom the caller brings (`judge.rs`); without one it comes to no verdict.

mod answer;
mod click;
mod combine;
mod compare;
pub(crate) mod date;
mod judged;
mod miniwob;
mod number;
mod probe;
mod steps;
mod text;
mod url;

use bytes::Bytes;
use furrow_rollout::{Component, End, ErrorPage, Evidence, Fault, Score};
use serde_json::{Map, Value};

use crate::MiniwobReward;
use crate::fields::Fields;
use crate::judge::{Habits, Judge};
use answer::AnswerRule;
use click::ClickRule;
use combine::Combination;
use judged::JudgeRule;
use probe::{ProbeReport, ProbeRule};
use steps::StepPenalty;
use url::UrlRule;

pub use judged::judge_cost_usd;

/// Combinations may hold combinations, this deep.
const DEPTH_MAX: usize = 4;

/// Raised when the same evidence may come to another verdict than before.
const VERSION: u32 = 2;

/// A way to score, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Scorer {
    rule: Rule,
}

/// What the farm itself knows of a trajectory's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// How it ended.
    pub end: End,
    /// Steps taken.
    pub steps: u32,
    /// Steps allowed.
    pub max_steps: u32,
}

/// A finished trajectory as a scorer is shown it.
#[derive(Debug, Clone, Copy)]
pub struct Finished<'a> {
    /// What was seen at the end.
    pub evidence: &'a Evidence,
    /// What the farm knows of the end.
    pub facts: &'a Facts,
    /// The instruction that was given.
    pub goal: &'a str,
    /// Screenshots of its last steps, oldest first, at least as many as [`Scorer::screenshots`] asks for where there are so many.
    pub earlier: &'a [Bytes],
}

/// Why there is no verdict. The trajectory then has no reward at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScoreError {
    /// The farm's failures are not scored.
    #[error("a trajectory that ended as {} is not scored: that is the farm's failure, not the policy's", .end.as_str())]
    FarmsEnd {
        /// How it ended.
        end: End,
    },
    /// Nothing was seen.
    #[error("the evidence is empty: nothing was seen at the end")]
    NothingSeen,
    /// A part the scorer reads is missing.
    #[error("scorer {scorer} needs {part}, and the evidence has none")]
    Missing {
        /// Scorer.
        scorer: &'static str,
        /// Part of the evidence.
        part: &'static str,
    },
    /// A part is there and cannot be what it should be.
    #[error("scorer {scorer} cannot use {part}: {problem}")]
    Unusable {
        /// Scorer.
        scorer: &'static str,
        /// Part of the evidence.
        part: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// A model has to be asked and there is none.
    #[error(
        "scorer judge came to no verdict: no judge is available; set score.judge.endpoint and score.judge.model in the job"
    )]
    NoJudge,
    /// A model was asked and nothing came of it.
    #[error("scorer judge came to no verdict: {problem}")]
    Judge {
        /// Why.
        problem: String,
    },
    /// The task's line has no scorer in it.
    #[error("the task's record names no usable scorer: {problems}")]
    BadRecord {
        /// All of them.
        problems: String,
    },
}

#[derive(Debug, Clone, PartialEq)]
enum Rule {
    Probe(ProbeRule),
    Answer(AnswerRule),
    Url(UrlRule),
    Miniwob(MiniwobReward),
    Click(ClickRule),
    Combined(Combination),
    Not(Box<Rule>),
    StepPenalty(StepPenalty),
    Judge(JudgeRule),
}

/// What a rule makes of evidence, before it is signed.
#[derive(Debug, Clone, PartialEq)]
struct Verdict {
    reward: f32,
    success: bool,
    components: Vec<Component>,
    rationale: String,
}

/// What a rule may look at.
struct Case<'a> {
    evidence: &'a Evidence,
    facts: &'a Facts,
    goal: &'a str,
    earlier: &'a [Bytes],
    judge: Option<&'a dyn Judge>,
}

impl Scorer {
    /// Scores a finished trajectory by rules alone; what needs a judge comes to no verdict.
    pub fn score(&self, evidence: &Evidence, facts: &Facts) -> Result<Score, ScoreError> {
        self.score_with(&Finished { evidence, facts, goal: "", earlier: &[] }, None)
    }

    /// Scores a finished trajectory, asking the judge where a rule needs one.
    pub fn score_with(&self, finished: &Finished, judge: Option<&dyn Judge>) -> Result<Score, ScoreError> {
        let Finished { evidence, facts, goal, earlier } = *finished;
        if facts.end.fault(true) == Fault::Farm {
            return Err(ScoreError::FarmsEnd { end: facts.end });
        }
        if *evidence == Evidence::default() {
            return Err(ScoreError::NothingSeen);
        }
        let verdict = self.rule.judge(&Case { evidence, facts, goal, earlier, judge })?;
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

    /// Makes the scorer again from a trajectory's task record ([`crate::TaskSpec::json`]).
    pub fn of_task_json(json: &str) -> Result<Self, ScoreError> {
        let bad = |problems: String| ScoreError::BadRecord { problems };
        let record: Map<String, Value> = serde_json::from_str(json).map_err(|e| bad(e.to_string()))?;
        let mut problems = Vec::new();
        let scorer = Self::read(&mut Fields::new(&record, "", &mut problems), "score");
        scorer.ok_or_else(|| bad(problems.join("; ")))
    }

    /// Whether it reads the page's own report, which only suites with pages of their own have.
    pub fn needs_probe(&self) -> bool {
        self.rule.any(&|rule| match rule {
            Rule::Probe(_) | Rule::Miniwob(_) | Rule::Click(_) => true,
            Rule::Answer(answer) => answer.needs_probe(),
            _ => false,
        })
    }

    /// Whether a model has to be asked for the verdict.
    pub fn needs_judge(&self) -> bool {
        self.rule.any(&|rule| matches!(rule, Rule::Judge(_)))
    }

    /// Screenshots of the last steps that scoring wants to see beside the evidence: one more than the judge is shown, since an
    /// answer's own step is left out.
    pub fn screenshots(&self, habits: &Habits) -> usize {
        let most = std::cell::Cell::new(0);
        self.rule.any(&|rule| {
            if let Rule::Judge(judge) = rule {
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

    /// The door: reads the scorer under a key, with every problem in it.
    pub(crate) fn read(fields: &mut Fields, key: &'static str) -> Option<Self> {
        let Some(value) = fields.value(key) else {
            fields.problem(
                key,
                "is missing; say how the task is scored, such as \
                 {\"kind\": \"probe\", \"pointer\": \"/correct\"}",
            );
            return None;
        };
        let (place, problems) = fields.inside(key);
        Rule::read(value, &place, DEPTH_MAX, problems).map(|rule| Self { rule })
    }

    /// A scorer from its JSON alone.
    pub(crate) fn from_value(value: &Value) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let rule = Rule::read(value, "score.", DEPTH_MAX, &mut problems);
        rule.map(|rule| Self { rule }).ok_or(problems)
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Probe,
    Answer,
    Url,
    Miniwob,
    Click,
    All,
    Any,
    Weighted,
    Not,
    StepPenalty,
    Judge,
}

const KINDS: [(&str, Kind); 11] = [
    ("probe", Kind::Probe),
    ("answer", Kind::Answer),
    ("url", Kind::Url),
    ("miniwob", Kind::Miniwob),
    ("click", Kind::Click),
    ("all", Kind::All),
    ("any", Kind::Any),
    ("weighted", Kind::Weighted),
    ("not", Kind::Not),
    ("step_penalty", Kind::StepPenalty),
    ("judge", Kind::Judge),
];

impl Rule {
    /// Reads one rule; `place` ends in a dot, `depth` is how many combinations it may still hold inside.
    fn read(value: &Value, place: &str, depth: usize, problems: &mut Vec<String>) -> Option<Self> {
        let Some(map) = value.as_object() else {
            let key = place.trim_end_matches('.');
            problems
                .push(format!("{key}: {} is no object; write {{\"kind\": …}}", crate::fields::shown(value)));
            return None;
        };
        let before = problems.len();
        let mut fields = Fields::new(map, place, problems);
        if !fields.has("kind") {
            let known = KINDS.map(|(word, _)| word).join(", ");
            fields.problem("kind", format!("is missing; use one of {known}"));
            return None;
        }
        let rule = match fields.word("kind", &KINDS)? {
            Kind::Probe => ProbeRule::read(&mut fields).map(Rule::Probe),
            Kind::Answer => AnswerRule::read(&mut fields).map(Rule::Answer),
            Kind::Url => UrlRule::read(&mut fields).map(Rule::Url),
            Kind::Miniwob => miniwob::read(&mut fields).map(Rule::Miniwob),
            Kind::Click => ClickRule::read(&mut fields).map(Rule::Click),
            Kind::All => Combination::read(&mut fields, combine::Way::All, depth).map(Rule::Combined),
            Kind::Any => Combination::read(&mut fields, combine::Way::Any, depth).map(Rule::Combined),
            Kind::Weighted => {
                Combination::read(&mut fields, combine::Way::Weighted, depth).map(Rule::Combined)
            }
            Kind::Not => read_not(&mut fields, depth),
            Kind::StepPenalty => StepPenalty::read(&mut fields, depth).map(Rule::StepPenalty),
            Kind::Judge => JudgeRule::read(&mut fields).map(Rule::Judge),
        };
        fields.no_others();
        rule.filter(|_| problems.len() == before)
    }

    fn judge(&self, case: &Case) -> Result<Verdict, ScoreError> {
        match self {
            Rule::Probe(rule) => rule.judge(case),
            Rule::Answer(rule) => rule.judge(case),
            Rule::Url(rule) => rule.judge(case),
            Rule::Miniwob(reward) => miniwob::judge(*reward, case),
            Rule::Click(rule) => rule.judge(case),
            Rule::Combined(combination) => combination.judge(case),
            Rule::Not(rule) => {
                let verdict = rule.judge(case)?;
                // What is not to be seen on a page is not proved by showing none.
                let nothing_shown = case.left_for_error_page() && rule.any(&Rule::looks_at_page);
                Ok(if nothing_shown {
                    Verdict::binary(false, verdict.rationale)
                } else {
                    verdict.turned_round()
                })
            }
            Rule::StepPenalty(rule) => rule.judge(case),
            Rule::Judge(rule) => rule.judge(case),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Rule::Probe(_) => "probe",
            Rule::Answer(_) => "answer",
            Rule::Url(_) => "url",
            Rule::Miniwob(_) => "miniwob",
            Rule::Click(_) => "click",
            Rule::Combined(combination) => combination.name(),
            Rule::Not(_) => "not",
            Rule::StepPenalty(_) => "step_penalty",
            Rule::Judge(_) => "judge",
        }
    }

    /// Whether it reads the final page itself, beside what was answered.
    fn looks_at_page(&self) -> bool {
        match self {
            Rule::Probe(_) | Rule::Url(_) | Rule::Miniwob(_) | Rule::Click(_) => true,
            Rule::Answer(answer) => answer.needs_probe(),
            _ => false,
        }
    }

    fn any(&self, test: &dyn Fn(&Rule) -> bool) -> bool {
        let inside = match self {
            Rule::Combined(combination) => combination.parts().any(|part| part.any(test)),
            Rule::Not(rule) => rule.any(test),
            Rule::StepPenalty(penalty) => penalty.of().any(test),
            _ => false,
        };
        inside || test(self)
    }
}

/// Key: `of`, a scorer.
fn read_not(fields: &mut Fields, depth: usize) -> Option<Rule> {
    let Some(value) = fields.value("of") else {
        fields.problem("of", "is missing; name the scorer that must not be satisfied, {\"kind\": …}");
        return None;
    };
    let Some(depth) = depth.checked_sub(1) else {
        fields.problem("of", format!("combinations lie more than {DEPTH_MAX} deep; flatten them"));
        return None;
    };
    let (place, problems) = fields.inside("of");
    Rule::read(value, &place, depth, problems).map(|rule| Rule::Not(Box::new(rule)))
}

impl Verdict {
    /// All or nothing.
    fn binary(success: bool, rationale: String) -> Self {
        Self { reward: if success { 1.0 } else { 0.0 }, success, components: Vec::new(), rationale }
    }

    /// All where there was nothing to be had, nothing where there was all; what lies between counts as not satisfied.
    fn turned_round(self) -> Self {
        let Self { success, components, rationale, .. } = self;
        Self { components, ..Self::binary(!success, format!("not: {rationale}")) }
    }
}

impl Case<'_> {
    /// The browser's error page, where one is in front and it is known whose doing that is.
    fn error_page(&self) -> Option<ErrorPage> {
        let report: Map<String, Value> = serde_json::from_str(self.evidence.probe_json.as_deref()?).ok()?;
        ErrorPage::of_report(&report)
    }

    fn left_for_error_page(&self) -> bool {
        self.error_page().is_some_and(|page| page.fault == Fault::Policy)
    }

    /// The page's report, parsed and compared with how the trajectory ended.
    fn probe(&self, scorer: &'static str) -> Result<ProbeReport, ScoreError> {
        let json = self.evidence.probe_json.as_deref();
        let json = json.ok_or(ScoreError::Missing { scorer, part: "the page probe" })?;
        ProbeReport::parse(json, self.facts.end).map_err(|problem| ScoreError::Unusable {
            scorer,
            part: "the page probe",
            problem,
        })
    }
}

#[cfg(test)]
mod tests;
