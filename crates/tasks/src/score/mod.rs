//! Scorers: pure functions from evidence to a verdict. A scorer that cannot tell says so; it never makes a 0 of it.
//!
//! A task's line names its scorer in the key `score`:
//!
//! ```json
//! {"kind": "probe", "pointer": "/correct"}
//! {"kind": "answer", "match": "number", "value": 42, "tolerance": 0.5, "unit": ["km", "kilometres"]}
//! {"kind": "answer", "match": "normalized", "expected_pointer": "/expected"}
//! {"kind": "url", "prefix": "https://shop.test/cart", "query": {"item": "7"}}
//! {"kind": "miniwob", "reward": "sparse"}
//! {"kind": "all", "of": [{"kind": "probe", "pointer": "/sent"}, {"kind": "answer", "match": "normalized", "value": "yes"}]}
//! {"kind": "weighted", "of": [{"weight": 3, "kind": "probe"}, {"weight": 1, "kind": "url", "host": "shop.test"}]}
//! {"kind": "judge", "screenshots": 1}
//! ```
//!
//! `expected_pointer` is where the page's probe holds the right answer, for pages that draw it from the seed.
//! `all` takes the smallest reward of its parts, `any` the largest, `weighted` their mean by weight. `judge` is known but
//! comes to no verdict: a model has to be asked, and nothing here asks one.

mod answer;
mod combine;
mod miniwob;
mod probe;
mod url;

use furrow_rollout::{Component, End, Evidence, Fault, Score};
use serde_json::{Map, Value};

use crate::MiniwobReward;
use crate::fields::Fields;
use answer::AnswerRule;
use combine::Combination;
use probe::{ProbeReport, ProbeRule};
use url::UrlRule;

/// Combinations may hold combinations, this deep.
const DEPTH_MAX: usize = 4;

/// Raised when the same evidence may come to another verdict than before.
const VERSION: u32 = 1;

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
    /// A model has to be asked.
    #[error("scorer judge came to no verdict: no judge is available")]
    NoJudge,
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
    Combined(Combination),
    Judge,
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
}

impl Scorer {
    /// Scores a finished trajectory.
    pub fn score(&self, evidence: &Evidence, facts: &Facts) -> Result<Score, ScoreError> {
        if facts.end.fault(true) == Fault::Farm {
            return Err(ScoreError::FarmsEnd { end: facts.end });
        }
        if *evidence == Evidence::default() {
            return Err(ScoreError::NothingSeen);
        }
        let verdict = self.rule.judge(&Case { evidence, facts })?;
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
            Rule::Probe(_) | Rule::Miniwob(_) => true,
            Rule::Answer(answer) => answer.needs_probe(),
            _ => false,
        })
    }

    /// Whether a model has to be asked for the verdict.
    pub fn needs_judge(&self) -> bool {
        self.rule.any(&|rule| matches!(rule, Rule::Judge))
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
    All,
    Any,
    Weighted,
    Judge,
}

const KINDS: [(&str, Kind); 8] = [
    ("probe", Kind::Probe),
    ("answer", Kind::Answer),
    ("url", Kind::Url),
    ("miniwob", Kind::Miniwob),
    ("all", Kind::All),
    ("any", Kind::Any),
    ("weighted", Kind::Weighted),
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
            Kind::All => Combination::read(&mut fields, combine::Way::All, depth).map(Rule::Combined),
            Kind::Any => Combination::read(&mut fields, combine::Way::Any, depth).map(Rule::Combined),
            Kind::Weighted => {
                Combination::read(&mut fields, combine::Way::Weighted, depth).map(Rule::Combined)
            }
            Kind::Judge => read_judge(&mut fields),
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
            Rule::Combined(combination) => combination.judge(case),
            Rule::Judge => Err(ScoreError::NoJudge),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Rule::Probe(_) => "probe",
            Rule::Answer(_) => "answer",
            Rule::Url(_) => "url",
            Rule::Miniwob(_) => "miniwob",
            Rule::Combined(combination) => combination.name(),
            Rule::Judge => "judge",
        }
    }

    fn any(&self, test: &dyn Fn(&Rule) -> bool) -> bool {
        let inside = match self {
            Rule::Combined(combination) => combination.parts().any(|part| part.any(test)),
            _ => false,
        };
        inside || test(self)
    }
}

/// The judge's own keys are checked now, so that a task file that will be judged later is right today.
fn read_judge(fields: &mut Fields) -> Option<Rule> {
    fields.integer("screenshots", 1..=100);
    if let Some(reference) = fields.value("reference")
        && !reference.is_object()
    {
        return fields.refuse("reference", reference, "is no object", "use {\"type\": …, \"answer\": …}");
    }
    Some(Rule::Judge)
}

impl Verdict {
    /// All or nothing.
    fn binary(success: bool, rationale: String) -> Self {
        Self { reward: if success { 1.0 } else { 0.0 }, success, components: Vec::new(), rationale }
    }
}

impl Case<'_> {
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
