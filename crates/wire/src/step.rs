//! Steps and endings as they travel and rest: encoded once by the environment worker, under one digest until they are in a shard.

use bytes::Bytes;
use furrow_rollout::{
    Cause, End, Ending, EnvironmentFingerprint, Evidence, Observation, Outcome, Reply, StepRecord, TimeSplit,
};
use prost::Message;
use sha2::{Digest, Sha256};

use crate::error::{WireError, cap, capped, need, unknown, word};
use crate::limits::{RECORD_BYTES_MAX, SCREENSHOT_BYTES_MAX, TEXT_BYTES_MAX, TITLE_BYTES_MAX, URL_BYTES_MAX};
use crate::observation::{size_from, size_into};
use crate::{
    decode_trace, observation_from, observation_into, outcome_from, outcome_into, reply_from, reply_into, v1,
};

/// A step whose trace is still sealed: what an environment worker holds.
#[derive(Debug, Clone, PartialEq)]
pub struct OpaqueStep {
    /// Counted from 0.
    pub step: u32,
    /// State before the action.
    pub observation: Observation,
    /// What the policy replied.
    pub reply: Reply,
    /// What came of it.
    pub outcome: Outcome,
    /// The policy's account, unopened.
    pub trace: Bytes,
    /// Where the step's time went.
    pub timing: TimeSplit,
    /// Wall clock at the observation.
    pub observed_at_micros: i64,
}

/// SHA-256 over encoded bytes.
pub fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Encodes a step.
pub fn encode_opaque_step(noun: &OpaqueStep) -> Bytes {
    let message = v1::StepRecord {
        step: noun.step,
        observation: Some(observation_into(&noun.observation)),
        reply: Some(reply_into(&noun.reply)),
        outcome: Some(outcome_into(&noun.outcome)),
        trace: noun.trace.clone(),
        timing: Some(timing_into(&noun.timing)),
        observed_at_micros: noun.observed_at_micros,
    };
    message.encode_to_vec().into()
}

/// Reads a step and leaves the trace sealed. The screenshot shares `bytes`.
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

/// Reads a step, trace included.
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

/// Encodes an ending.
pub fn encode_ending(noun: &Ending) -> Bytes {
    let message = v1::Ending {
        end: noun.end.as_str().to_owned(),
        reason: noun.reason.clone(),
        evidence: noun.evidence.as_ref().map(evidence_into),
        goal: noun.goal.clone(),
        steps: noun.steps,
        last_outcome: noun.last_outcome.as_ref().map(outcome_into),
        timing: Some(timing_into(&noun.timing)),
        environment: Some(environment_into(&noun.environment)),
    };
    message.encode_to_vec().into()
}

/// Reads an ending.
pub fn decode_ending(bytes: Bytes) -> Result<Ending, WireError> {
    cap(bytes.len(), RECORD_BYTES_MAX, "ending")?;
    let message =
        v1::Ending::decode(bytes).map_err(|source| WireError::Malformed { what: "an ending", source })?;
    Ok(Ending {
        end: word(End::parse(&message.end), "ending.end", &message.end, "a name of the closed set")?,
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
    cap(message.micros.len(), Cause::ALL.len(), "timing.micros")?;
    let mut split = TimeSplit::default();
    for (cause, micros) in Cause::ALL.into_iter().zip(message.micros) {
        // A century of microseconds: beyond it a sum could overflow.
        if micros > 100 * 365 * 86_400 * 1_000_000 {
            return Err(unknown("timing.micros", &micros.to_string(), "less than a century"));
        }
        split.add(cause, micros);
    }
    Ok(split)
}

fn timing_into(noun: &TimeSplit) -> v1::TimeSplit {
    v1::TimeSplit { micros: Cause::ALL.map(|cause| noun.of(cause)).to_vec() }
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
    })
}

fn evidence_into(noun: &Evidence) -> v1::Evidence {
    v1::Evidence {
        screenshot: noun.screenshot.clone(),
        url: noun.url.clone(),
        title: noun.title.clone(),
        answer: noun.answer.clone(),
        probe_json: noun.probe_json.clone(),
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
    })
}

fn environment_into(noun: &EnvironmentFingerprint) -> v1::EnvironmentFingerprint {
    v1::EnvironmentFingerprint {
        worker: noun.worker.clone(),
        browser: noun.browser.clone(),
        sandbox: noun.sandbox,
        locale: noun.locale.clone(),
        timezone: noun.timezone.clone(),
        viewport: noun.viewport.map(size_into),
    }
}
