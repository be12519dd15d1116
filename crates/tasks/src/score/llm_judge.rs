//! Asks a judge: collects the evidence, takes the votes, and scores the result.

use bytes::Bytes;
use furrow_rollout::{EndKind, ScoreComponent};

use super::verdict::{RuleVerdict, ScoreError, ScoreInput};
use crate::fields::JsonFields;
use crate::judge::{JudgeBrief, JudgeReply, JudgeSettings, ReferenceAnswer, quoted, read_verdict};

const NAME: &str = "judge";

/// Name of the component with the judge's cost.
const COST: &str = "judge_cost_usd";

/// The task's own judge settings.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct JudgeRule {
    screenshots: Option<u32>,
    votes: Option<u32>,
    reference: Option<ReferenceAnswer>,
}

/// The votes so far.
#[derive(Debug, Default)]
struct JudgeBallot {
    yes: u32,
    no: u32,
    /// Replies without a verdict.
    undecided: u32,
    prompt_tokens: u64,
    completion_tokens: u64,
    cost_usd: Option<f64>,
    /// The last reply with each verdict.
    last_replies: [String; 2],
}

impl JudgeRule {
    /// Keys: `screenshots`, `votes` (both default to the job's settings), `reference` `{"type":
    /// "golden"|"possible", "answer"}`.
    pub(super) fn read(fields: &mut JsonFields) -> Option<Self> {
        let screenshots = fields.integer("screenshots", 1..=100).map(|count| count as u32);
        let votes = fields.integer("votes", 1..=99).map(|count| count as u32);
        let reference = match fields.value("reference") {
            None => None,
            Some(value) => {
                let kind = value.get("type").and_then(serde_json::Value::as_str);
                let answer = value.get("answer").and_then(serde_json::Value::as_str);
                match (kind, answer) {
                    (Some(kind @ ("golden" | "possible")), Some(answer)) => {
                        Some(ReferenceAnswer { golden: kind == "golden", answer: answer.to_owned() })
                    }
                    _ => {
                        let remedy = "use {\"type\": \"golden\" or \"possible\", \"answer\": text}";
                        return fields.refuse("reference", value, "is not a reference answer object", remedy);
                    }
                }
            }
        };
        Some(Self { screenshots, votes, reference })
    }

    /// Number of screenshots for the judge.
    pub(super) fn screenshots(&self, habits: &JudgeSettings) -> u32 {
        self.screenshots.unwrap_or(habits.screenshots)
    }

    /// A missing answer is a no without a question, as in the protocol. Otherwise more than half of
    /// all votes must agree.
    pub(super) fn score(&self, case: &ScoreInput) -> Result<RuleVerdict, ScoreError> {
        let Some(answer) = case.answer(NAME)? else {
            let end = case.facts.end;
            return Ok(RuleVerdict::binary(false, format!("no answer was given before {}", end.as_str())));
        };
        let judge = case.judge.ok_or(ScoreError::NoJudge)?;
        let habits = judge.settings();
        let votes = self.votes.unwrap_or(habits.votes);
        let brief = JudgeBrief {
            goal: case.goal,
            answer,
            reference: self.reference.as_ref().filter(|_| habits.show_reference),
            pictures: pictures(case, self.screenshots(habits) as usize)?,
        };
        let mut ballot = JudgeBallot::default();
        for vote in 0..votes {
            let reply = judge.ask(&brief.question(vote)).map_err(|problem| ScoreError::Judge { problem })?;
            ballot.count(&reply);
            if ballot.yes.max(ballot.no) * 2 > votes {
                break;
            }
        }
        ballot.verdict(votes, brief.pictures.len(), &habits.model)
    }
}

/// The last k pictures. With an answer, the evidence shows the page of the last step, so that the
/// last step's own picture is left out as a duplicate.
fn pictures(case: &ScoreInput, count: usize) -> Result<Vec<Bytes>, ScoreError> {
    let last = case.evidence.screenshot.clone();
    let last = last.ok_or(ScoreError::Missing { scorer: NAME, part: "the last screenshot" })?;
    let earlier = match case.facts.end {
        EndKind::Answered => case.earlier.split_last().map_or(case.earlier, |(_, rest)| rest),
        _ => case.earlier,
    };
    let skipped = earlier.len().saturating_sub(count.saturating_sub(1));
    Ok(earlier[skipped..].iter().cloned().chain([last]).collect())
}

impl JudgeBallot {
    fn count(&mut self, reply: &JudgeReply) {
        self.prompt_tokens += reply.prompt_tokens;
        self.completion_tokens += reply.completion_tokens;
        if let Some(cost) = reply.cost_usd {
            *self.cost_usd.get_or_insert(0.0) += cost;
        }
        // A reply that was cut off may have been about to state the opposite; only a no cannot be
        // revoked.
        match read_verdict(&reply.text).filter(|yes| !(*yes && reply.cut)) {
            Some(true) => self.yes += 1,
            Some(false) => self.no += 1,
            None => self.undecided += 1,
        }
        if let Some(yes) = read_verdict(&reply.text) {
            self.last_replies[usize::from(yes)] = quoted(&reply.text);
        }
    }

    fn verdict(mut self, votes: u32, pictures: usize, model: &str) -> Result<RuleVerdict, ScoreError> {
        let success = self.yes * 2 > votes;
        let count =
            format!("{} yes, {} no, {} without a verdict, of {votes}", self.yes, self.no, self.undecided);
        if !success && self.no * 2 <= votes {
            return Err(ScoreError::Judge {
                problem: format!("the votes of {model} are inconclusive: {count}"),
            });
        }
        let component =
            |name: &str, value: f64| ScoreComponent { name: name.to_owned(), value: value as f32 };
        let mut components = vec![
            component("judge_yes", f64::from(self.yes)),
            component("judge_no", f64::from(self.no)),
            component("judge_prompt_tokens", self.prompt_tokens as f64),
            component("judge_completion_tokens", self.completion_tokens as f64),
        ];
        components.extend(self.cost_usd.map(|cost| component(COST, cost)));
        let reply = std::mem::take(&mut self.last_replies[usize::from(success)]);
        let rationale = format!("{model} on the last {pictures} screenshots: {count}: {reply}");
        Ok(RuleVerdict { components, ..RuleVerdict::binary(success, rationale) })
    }
}

/// Total cost of the judges of a score, `None` if no price is known or no judge was asked.
pub fn judge_cost_usd(score: &furrow_rollout::Score) -> Option<f64> {
    let costs = score.components.iter().filter(|part| part.name.rsplit('/').next() == Some(COST));
    let costs: Vec<f64> = costs.map(|part| f64::from(part.value)).collect();
    (!costs.is_empty()).then(|| costs.iter().sum())
}
