//! Asks a judge: gathers what it is shown, takes the votes, signs what they come to.

use bytes::Bytes;
use furrow_rollout::{Component, End};

use super::{Case, ScoreError, Verdict};
use crate::fields::Fields;
use crate::judge::{Brief, Habits, Reference, Reply, quoted, read_verdict};

const NAME: &str = "judge";

/// Name of the component that says what the judge cost.
const COST: &str = "judge_cost_usd";

/// What the task itself says about its judging.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct JudgeRule {
    screenshots: Option<u32>,
    votes: Option<u32>,
    reference: Option<Reference>,
}

/// The votes so far.
#[derive(Debug, Default)]
struct Ballot {
    yes: u32,
    no: u32,
    /// Replies without a verdict.
    mute: u32,
    prompt_tokens: u64,
    completion_tokens: u64,
    cost_usd: Option<f64>,
    /// The last reply that agrees with what most say.
    said: [String; 2],
}

impl JudgeRule {
    /// Keys: `screenshots`, `votes` (both: as the job says where left out), `reference` `{"type": "golden"|"possible", "answer"}`.
    pub(super) fn read(fields: &mut Fields) -> Option<Self> {
        let screenshots = fields.integer("screenshots", 1..=100).map(|count| count as u32);
        let votes = fields.integer("votes", 1..=99).map(|count| count as u32);
        let reference = match fields.value("reference") {
            None => None,
            Some(value) => {
                let kind = value.get("type").and_then(serde_json::Value::as_str);
                let answer = value.get("answer").and_then(serde_json::Value::as_str);
                match (kind, answer) {
                    (Some(kind @ ("golden" | "possible")), Some(answer)) => {
                        Some(Reference { golden: kind == "golden", answer: answer.to_owned() })
                    }
                    _ => {
                        let remedy = "use {\"type\": \"golden\" or \"possible\", \"answer\": text}";
                        return fields.refuse(
                            "reference",
                            value,
                            "is no object of a reference answer",
                            remedy,
                        );
                    }
                }
            }
        };
        Some(Self { screenshots, votes, reference })
    }

    /// Screenshots it wants to see.
    pub(super) fn screenshots(&self, habits: &Habits) -> u32 {
        self.screenshots.unwrap_or(habits.screenshots)
    }

    /// No answer is a no without asking; that is the protocol's. Otherwise more than half of all votes must agree.
    pub(super) fn judge(&self, case: &Case) -> Result<Verdict, ScoreError> {
        let Some(answer) = case.answer(NAME)? else {
            let end = case.facts.end;
            return Ok(Verdict::binary(false, format!("no answer was given before {}", end.as_str())));
        };
        let judge = case.judge.ok_or(ScoreError::NoJudge)?;
        let habits = judge.habits();
        let votes = self.votes.unwrap_or(habits.votes);
        let brief = Brief {
            goal: case.goal,
            answer,
            reference: self.reference.as_ref().filter(|_| habits.show_reference),
            pictures: pictures(case, self.screenshots(habits) as usize)?,
        };
        let mut ballot = Ballot::default();
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

/// The last k pictures. What an answer was given on is the page as the evidence shows it: the last step's picture is the same
/// page once more and left out.
fn pictures(case: &Case, count: usize) -> Result<Vec<Bytes>, ScoreError> {
    let last = case.evidence.screenshot.clone();
    let last = last.ok_or(ScoreError::Missing { scorer: NAME, part: "the last screenshot" })?;
    let earlier = match case.facts.end {
        End::Answered => case.earlier.split_last().map_or(case.earlier, |(_, rest)| rest),
        _ => case.earlier,
    };
    let skipped = earlier.len().saturating_sub(count.saturating_sub(1));
    Ok(earlier[skipped..].iter().cloned().chain([last]).collect())
}

impl Ballot {
    fn count(&mut self, reply: &Reply) {
        self.prompt_tokens += reply.prompt_tokens;
        self.completion_tokens += reply.completion_tokens;
        if let Some(cost) = reply.cost_usd {
            *self.cost_usd.get_or_insert(0.0) += cost;
        }
        // What was cut off may have been about to say the other thing; only a no cannot be taken back.
        match read_verdict(&reply.text).filter(|yes| !(*yes && reply.cut)) {
            Some(true) => self.yes += 1,
            Some(false) => self.no += 1,
            None => self.mute += 1,
        }
        if let Some(yes) = read_verdict(&reply.text) {
            self.said[usize::from(yes)] = quoted(&reply.text);
        }
    }

    fn verdict(mut self, votes: u32, pictures: usize, model: &str) -> Result<Verdict, ScoreError> {
        let success = self.yes * 2 > votes;
        let count = format!("{} yes, {} no, {} without a verdict, of {votes}", self.yes, self.no, self.mute);
        if !success && self.no * 2 <= votes {
            return Err(ScoreError::Judge {
                problem: format!("the votes of {model} decide nothing: {count}"),
            });
        }
        let component = |name: &str, value: f64| Component { name: name.to_owned(), value: value as f32 };
        let mut components = vec![
            component("judge_yes", f64::from(self.yes)),
            component("judge_no", f64::from(self.no)),
            component("judge_prompt_tokens", self.prompt_tokens as f64),
            component("judge_completion_tokens", self.completion_tokens as f64),
        ];
        components.extend(self.cost_usd.map(|cost| component(COST, cost)));
        let said = std::mem::take(&mut self.said[usize::from(success)]);
        let rationale = format!("{model} on the last {pictures} screenshots: {count}: {said}");
        Ok(Verdict { components, ..Verdict::binary(success, rationale) })
    }
}

/// What the judges of a score cost together, `None` where no price is known or none was asked.
pub fn judge_cost_usd(score: &furrow_rollout::Score) -> Option<f64> {
    let costs = score.components.iter().filter(|part| part.name.rsplit('/').next() == Some(COST));
    let costs: Vec<f64> = costs.map(|part| f64::from(part.value)).collect();
    (!costs.is_empty()).then(|| costs.iter().sum())
}
