//! Messages that open and rebuild a session.

use furrow_rollout::{Outcome, PolicyReply, Screenshot, SessionSpec, Trace, TrajectoryAncestry};

use crate::error::{WireError, cap, capped, need};
use crate::limits::{PAST_STEPS_MAX, TEXT_BYTES_MAX, TRACE_BYTES_MAX};
use crate::{
    ancestry_from, ancestry_into, decode_trace, outcome_from, outcome_into, reply_from, reply_into,
    screenshot_from, screenshot_into, session_spec_from, session_spec_into, v1,
};

/// The first message of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionOpening {
    /// The trajectory that the session belongs to.
    pub ancestry: TrajectoryAncestry,
    /// Fencing token of the assignment.
    pub token: u64,
    /// How the policy parses replies, samples and keeps context.
    pub session: SessionSpec,
    /// The instruction for the policy.
    pub goal: String,
    /// Number of earlier steps that follow.
    pub past_steps: u32,
}

/// One earlier step, sent to rebuild a session.
#[derive(Debug, Clone, PartialEq)]
pub struct PastStep {
    /// Number of the step, counted from 0.
    pub step: u32,
    /// The screenshot of the step.
    pub screenshot: Screenshot,
    /// Outcome of the step before it.
    pub last_outcome: Option<Outcome>,
    /// What the policy wrote at that step, for the conversation of the rebuilt session.
    pub reply: PolicyReply,
    /// The policy's token-level account of the step.
    pub trace: Trace,
}

impl TryFrom<v1::Open> for SessionOpening {
    type Error = WireError;

    fn try_from(message: v1::Open) -> Result<Self, WireError> {
        cap(message.past_steps as usize, PAST_STEPS_MAX as usize, "open.past_steps")?;
        Ok(Self {
            ancestry: ancestry_from(&need(message.ancestry, "open.ancestry")?)?,
            token: message.token,
            session: session_spec_from(need(message.session, "open.session")?)?,
            goal: capped(message.goal, TEXT_BYTES_MAX, "open.goal")?,
            past_steps: message.past_steps,
        })
    }
}

impl From<&SessionOpening> for v1::Open {
    fn from(value: &SessionOpening) -> Self {
        Self {
            ancestry: Some(ancestry_into(&value.ancestry)),
            token: value.token,
            session: Some(session_spec_into(&value.session)),
            goal: value.goal.clone(),
            past_steps: value.past_steps,
        }
    }
}

/// Validates an earlier step of a session.
pub fn past_from(message: v1::Past) -> Result<PastStep, WireError> {
    cap(message.trace.len(), TRACE_BYTES_MAX, "past.trace")?;
    Ok(PastStep {
        step: message.step,
        screenshot: screenshot_from(need(message.screenshot, "past.screenshot")?)?,
        last_outcome: message.last_outcome.map(outcome_from).transpose()?,
        reply: reply_from(need(message.reply, "past.reply")?)?,
        trace: decode_trace(&message.trace)?,
    })
}

/// Builds the message from an environment worker's copy of a step; the trace stays encoded.
pub fn past_into(
    step: u32,
    screenshot: &Screenshot,
    last_outcome: Option<&Outcome>,
    reply: &PolicyReply,
    trace: bytes::Bytes,
) -> v1::Past {
    v1::Past {
        step,
        screenshot: Some(screenshot_into(screenshot)),
        last_outcome: last_outcome.map(outcome_into),
        trace,
        reply: Some(reply_into(reply)),
    }
}
