//! Steps and endings in transit and in the spool: the environment worker encodes them once, and one
//! digest covers them until they are in a shard.

use bytes::Bytes;
use furrow_rollout::{
    EndKind, EnvironmentFingerprint, Evidence, FINDINGS_BYTES_MAX, Observation, Outcome, PolicyReply,
    StepRecord, TimeCause, TimeSplit, TrajectoryEnding, WallsLevel,
};
use prost::Message;
use sha2::{Digest, Sha256};

use crate::error::{WireError, cap, capped, known_value, need, unknown};
use crate::limits::{RECORD_BYTES_MAX, SCREENSHOT_BYTES_MAX, TEXT_BYTES_MAX, TITLE_BYTES_MAX, URL_BYTES_MAX};
use crate::observation::{size_from, size_into};
use crate::{
    decode_trace, observation_from, observation_into, outcome_from, outcome_into, reply_from, reply_into, v1,
};

/// A step with an encoded trace, as an environment worker keeps it.
#[derive(Debug, Clone, PartialEq)]
pub struct OpaqueStep {
    /// Number of the step, counted from 0.
    pub step: u32,
    /// State before the action.
    pub observation: Observation,
    /// What the policy wrote at this step, and the action that its grammar read from it.
    pub reply: PolicyReply,
    /// The outcome of the action.
    pub outcome: Outcome,
    /// The policy's trace, still encoded.
    pub trace: Bytes,
    /// Where the step's time went.
    pub timing: TimeSplit,
    /// Wall clock at the observation, in microseconds since the Unix epoch.
    pub observed_at_micros: i64,
}

/// SHA-256 over encoded bytes.
pub fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Encodes a step whose trace is already encoded.
pub fn encode_opaque_step(value: &OpaqueStep) -> Bytes {
    let message = v1::StepRecord {
        step: value.step,
        observation: Some(observation_into(&value.observation)),
        reply: Some(reply_into(&value.reply)),
        outcome: Some(outcome_into(&value.outcome)),
        trace: value.trace.clone(),
        timing: Some(timing_into(&value.timing)),
        observed_at_micros: value.observed_at_micros,
    };
    message.encode_to_vec().into()
}

/// Decodes a step and leaves the trace encoded. The screenshot shares `bytes`.
pub fn decode_opaque_step(bytes: Bytes) -> Result<OpaqueStep, WireError> {
    cap(bytes.len(), RECORD_BYTES_MAX, "record")?;
    let message = v1::StepRecord::decode(bytes)
        .map_err(|source| WireError::Malformed { what: "a step record", source })?;
    Ok(OpaqueStep {
        step: message.step,
        observation: observation_from(need(message.observation, "record.observation")?)?,
        reply: reply_from(need(message.reply, "record.reply")?)?,
        outcome: outcome_from(need(message.outcome, "record.outcome")?)?,
        trace: message.trace,
        timing: timing_from(message.timing.unwrap_or_default())?,
        observed_at_micros: message.observed_at_micros,
    })
}

/// Decodes a step, trace included.
pub fn decode_step(bytes: Bytes) -> Result<StepRecord, WireError> {
    let step = decode_opaque_step(bytes)?;
    Ok(StepRecord {
        step: step.step,
        observation: step.observation,
        reply: step.reply,
        outcome: step.outcome,
        trace: decode_trace(&step.trace)?,
        timing: step.timing,
        observed_at_micros: step.observed_at_micros,
    })
}

/// Encodes an ending as the worker sends it and the spool stores it.
pub fn encode_ending(value: &TrajectoryEnding) -> Bytes {
    let message = v1::Ending {
        end: value.end.as_str().to_owned(),
        reason: value.reason.clone(),
        evidence: value.evidence.as_ref().map(evidence_into),
        goal: value.goal.clone(),
        steps: value.steps,
        last_outcome: value.last_outcome.as_ref().map(outcome_into),
        timing: Some(timing_into(&value.timing)),
        environment: Some(environment_into(&value.environment)),
    };
    message.encode_to_vec().into()
}

/// Decodes an ending, in transit or from the spool, and validates every part of it.
pub fn decode_ending(bytes: Bytes) -> Result<TrajectoryEnding, WireError> {
    cap(bytes.len(), RECORD_BYTES_MAX, "ending")?;
    let message =
        v1::Ending::decode(bytes).map_err(|source| WireError::Malformed { what: "an ending", source })?;
    Ok(TrajectoryEnding {
        end: known_value(
            EndKind::parse(&message.end),
            "ending.end",
            &message.end,
            "a name of the closed set",
        )?,
        reason: capped(message.reason, TEXT_BYTES_MAX, "ending.reason")?,
        evidence: message.evidence.map(evidence_from).transpose()?,
        goal: capped(message.goal, TEXT_BYTES_MAX, "ending.goal")?,
        steps: message.steps,
        last_outcome: message.last_outcome.map(outcome_from).transpose()?,
        timing: timing_from(message.timing.unwrap_or_default())?,
        environment: environment_from(message.environment.unwrap_or_default())?,
    })
}

fn timing_from(message: v1::TimeSplit) -> Result<TimeSplit, WireError> {
    cap(message.micros.len(), TimeCause::ALL.len(), "timing.micros")?;
    let mut split = TimeSplit::default();
    for (cause, micros) in TimeCause::ALL.into_iter().zip(message.micros) {
        // The limit is a century of microseconds: beyond it a sum could overflow.
        if micros > 100 * 365 * 86_400 * 1_000_000 {
            return Err(unknown("timing.micros", &micros.to_string(), "less than a century"));
        }
        split.add(cause, micros);
    }
    Ok(split)
}

fn timing_into(value: &TimeSplit) -> v1::TimeSplit {
    v1::TimeSplit { micros: TimeCause::ALL.map(|cause| value.of(cause)).to_vec() }
}

fn evidence_from(message: v1::Evidence) -> Result<Evidence, WireError> {
    let part = |text: Option<String>, max, key| text.map(|text| capped(text, max, key)).transpose();
    cap(message.screenshot.as_ref().map_or(0, Bytes::len), SCREENSHOT_BYTES_MAX, "evidence.screenshot")?;
    Ok(Evidence {
        screenshot: message.screenshot,
        url: part(message.url, URL_BYTES_MAX, "evidence.url")?,
        title: part(message.title, TITLE_BYTES_MAX, "evidence.title")?,
        answer: part(message.answer, TEXT_BYTES_MAX, "evidence.answer")?,
        probe_json: part(message.probe_json, TEXT_BYTES_MAX, "evidence.probe_json")?,
        findings_json: part(message.findings_json, FINDINGS_BYTES_MAX, "evidence.findings_json")?,
    })
}

fn evidence_into(value: &Evidence) -> v1::Evidence {
    v1::Evidence {
        screenshot: value.screenshot.clone(),
        url: value.url.clone(),
        title: value.title.clone(),
        answer: value.answer.clone(),
        probe_json: value.probe_json.clone(),
        findings_json: value.findings_json.clone(),
    }
}

fn environment_from(message: v1::EnvironmentFingerprint) -> Result<EnvironmentFingerprint, WireError> {
    Ok(EnvironmentFingerprint {
        worker: capped(message.worker, 256, "environment.worker")?,
        browser: capped(message.browser, 256, "environment.browser")?,
        sandbox: message.sandbox,
        locale: capped(message.locale, 256, "environment.locale")?,
        timezone: capped(message.timezone, 256, "environment.timezone")?,
        viewport: message.viewport.map(size_from).transpose()?,
        walls: walls_from(&message.walls)?,
    })
}

fn walls_from(name: &str) -> Result<Option<WallsLevel>, WireError> {
    match name {
        "" => Ok(None),
        name => {
            let expected = "basic, namespaces or full";
            known_value(WallsLevel::parse(name), "environment.walls", name, expected).map(Some)
        }
    }
}

fn environment_into(value: &EnvironmentFingerprint) -> v1::EnvironmentFingerprint {
    v1::EnvironmentFingerprint {
        worker: value.worker.clone(),
        browser: value.browser.clone(),
        sandbox: value.sandbox,
        locale: value.locale.clone(),
        timezone: value.timezone.clone(),
        viewport: value.viewport.map(size_into),
        walls: value.walls.map_or_else(String::new, |level| level.as_str().into()),
    }
}
