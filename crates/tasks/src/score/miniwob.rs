//! MiniWoB++'s own reward, as Furrow's probe script reports it.
//!
//! The reward is the raw reward (-1 to 1), or with `sparse` 1 if solved and else 0; the raw reward
//! and the one scaled by the page's clock are recorded as components. Solved means done with a raw
//! reward of exactly 1.0 (Farama's binary reward). A page that is not done has given no reward: its
//! raw reward is 0 while the task runs, and a truncated trajectory is recorded as that 0 and as not
//! solved.

use furrow_rollout::ScoreComponent;
use serde_json::Value;

use super::probe::ProbeReport;
use super::verdict::{RuleVerdict, ScoreError, ScoreInput};
use crate::MiniwobReward;
use crate::fields::{JsonFields, short};

const NAME: &str = "miniwob";

/// Values of the key `reward`; the default is raw.
const REWARDS: [(&str, MiniwobReward); 2] = [("raw", MiniwobReward::Raw), ("sparse", MiniwobReward::Sparse)];

pub(super) fn read(fields: &mut JsonFields) -> Option<MiniwobReward> {
    if fields.has("reward") { fields.choice("reward", &REWARDS) } else { Some(MiniwobReward::default()) }
}

pub(super) fn score(reward: MiniwobReward, case: &ScoreInput) -> Result<RuleVerdict, ScoreError> {
    let mut verdict = score_raw(case)?;
    if reward == MiniwobReward::Sparse {
        verdict.reward = f32::from(u8::from(verdict.success));
    }
    Ok(verdict)
}

fn score_raw(case: &ScoreInput) -> Result<RuleVerdict, ScoreError> {
    let report = case.probe(NAME)?;
    if let Some(why) = report.away_message("the final page no longer shows the task: it was reloaded or left")
    {
        return Ok(verdict(0.0, 0.0, false, why));
    }
    if flag(&report, "changed")? {
        return Err(unusable("the page began another task than the one that was started".to_owned()));
    }
    let done = flag(&report, "done")?;
    let raw = number(&report, "raw_reward")?;
    let scaled = number(&report, "reward")?;
    if !done {
        if raw != 0.0 {
            return Err(unusable(format!("it is not done and yet its raw reward is {raw}")));
        }
        return Ok(verdict(raw, scaled, false, truncated(case)));
    }
    Ok(verdict(raw, scaled, raw == 1.0, finished(raw, &report)))
}

fn verdict(raw: f32, scaled: f32, success: bool, rationale: String) -> RuleVerdict {
    let component = |name: &str, value| ScoreComponent { name: name.to_owned(), value };
    let components = vec![component("raw", raw), component("time_scaled", scaled)];
    RuleVerdict { reward: raw, success, components, rationale }
}

fn truncated(case: &ScoreInput) -> String {
    let facts = case.facts;
    format!(
        "the page was not done after {} of {} steps ({})",
        facts.steps,
        facts.max_steps,
        facts.end.as_str()
    )
}

/// The page's own reason comes last because it is foreign text.
fn finished(raw: f32, report: &ProbeReport) -> String {
    let reason = report.fields().and_then(|fields| fields.get("reason")).and_then(Value::as_str);
    match reason {
        Some(reason) => format!("the page ended with raw reward {raw}: {}", short(reason)),
        None => format!("the page ended with raw reward {raw}"),
    }
}

fn flag(report: &ProbeReport, key: &str) -> Result<bool, ScoreError> {
    let value = report.fields().and_then(|fields| fields.get(key)).and_then(Value::as_bool);
    value.ok_or_else(|| unusable(format!("its {key:?} is not true or false")))
}

fn number(report: &ProbeReport, key: &str) -> Result<f32, ScoreError> {
    let value = report.fields().and_then(|fields| fields.get(key)).and_then(Value::as_f64);
    let value = value.filter(|value| (-1.0..=1.0).contains(value));
    value
        .map(|value| value as f32)
        .ok_or_else(|| unusable(format!("its {key:?} is not a number from -1 to 1")))
}

fn unusable(problem: String) -> ScoreError {
    ScoreError::Unusable { scorer: NAME, part: "the page probe", problem }
}
