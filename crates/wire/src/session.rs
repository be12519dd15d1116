//! What opens a session and what rebuilds one.

use furrow_rollout::{Ancestry, Outcome, Reply, Screenshot, SessionSpec, Trace};

use crate::error::{WireError, cap, capped, need};
use crate::limits::{PAST_STEPS_MAX, TEXT_BYTES_MAX, TRACE_BYTES_MAX};
use crate::{
    ancestry_from, ancestry_into, decode_trace, outcome_from, outcome_into, reply_from, reply_into,
    screenshot_from, screenshot_into, session_spec_from, session_spec_into, v1,
};

/// The first message of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct Opening {
    /// Whose session it is.
    pub ancestry: Ancestry,
    /// Fencing token of the assignment.
    pub token: u64,
    /// How the policy speaks, samples and remembers.
    pub session: SessionSpec,
    /// The instruction.
    pub goal: String,
    /// How many earlier steps follow.
    pub past_steps: u32,
}

/// One earlier step of a session that is rebuilt.
#[derive(Debug, Clone, PartialEq)]
pub struct PastStep {
    /// Its number.
    pub step: u32,
    /// What was shown.
    pub screenshot: Screenshot,
    /// What had come of the step before it.
    pub last_outcome: Option<Outcome>,
    /// What was replied.
    pub reply: Reply,
    /// The policy's own account.
    pub trace: Trace,
}

impl TryFrom<v1::Open> for Opening {
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

impl From<&Opening> for v1::Open {
    fn from(noun: &Opening) -> Self {
        Self {
            ancestry: Some(ancestry_into(&noun.ancestry)),
            token: noun.token,
            session: Some(session_spec_into(&noun.session)),
            goal: noun.goal.clone(),
            past_steps: noun.past_steps,
        }
    }
}

/// Noun from message.
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

/// Message from what an environment worker keeps of a step: the trace stays unopened.
pub fn past_into(
    step: u32,
    screenshot: &Screenshot,
    last_outcome: Option<&Outcome>,
    reply: &Reply,
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
