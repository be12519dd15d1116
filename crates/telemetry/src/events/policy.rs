//! What a policy worker says.

use furrow_rollout::{Id, PolicyKind, Trajectory};
use tracing::{debug, info};

use crate::labels::{Label, SessionEnd};
use crate::names::{event, figures};

/// A session opened for a trajectory.
#[derive(Debug)]
pub struct SessionOpened<'a> {
    /// The trajectory.
    pub trajectory_id: &'a Id<Trajectory>,
    /// This worker.
    pub worker: &'a str,
    /// Which policy acts in it.
    pub policy_kind: PolicyKind,
}

/// A session was rebuilt from the traces that its `Open` carried.
#[derive(Debug)]
pub struct SessionRebuilt<'a> {
    /// The trajectory.
    pub trajectory_id: &'a Id<Trajectory>,
    /// This worker.
    pub worker: &'a str,
    /// Steps it was rebuilt from.
    pub steps: u32,
}

/// A session ended and its state is gone.
#[derive(Debug)]
pub struct SessionClosed<'a> {
    /// The trajectory.
    pub trajectory_id: &'a Id<Trajectory>,
    /// This worker.
    pub worker: &'a str,
    /// How.
    pub end: SessionEnd,
    /// Replies it gave.
    pub replies: u32,
}

/// A reply went out.
#[derive(Debug)]
pub struct ReplySent<'a> {
    /// The trajectory.
    pub trajectory_id: &'a Id<Trajectory>,
    /// The step.
    pub step: u32,
    /// Whether it holds an action.
    pub valid: bool,
    /// From the observation read to the reply sent.
    pub service_micros: u64,
}

/// A step was asked for again and got the same reply.
#[derive(Debug)]
pub struct ReplyRepeated<'a> {
    /// The trajectory.
    pub trajectory_id: &'a Id<Trajectory>,
    /// The step.
    pub step: u32,
}

impl SessionOpened<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let Self { trajectory_id, worker, policy_kind } = self;
        let policy_kind = policy_kind.as_str();
        info!(event = event::SESSION_OPENED, %trajectory_id, worker, policy_kind, "session opened");
        figures().sessions_opened.add(1);
        figures().sessions.add(1);
    }
}

impl SessionRebuilt<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let Self { trajectory_id, worker, steps } = self;
        info!(event = event::SESSION_REBUILT, %trajectory_id, worker, steps, "session rebuilt");
        figures().sessions_rebuilt.add(1);
    }
}

impl SessionClosed<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let Self { trajectory_id, worker, replies, .. } = self;
        let end = self.end.word();
        info!(event = event::SESSION_CLOSED, %trajectory_id, worker, end, replies, "session closed");
        figures().sessions_ended.at(self.end).add(1);
        figures().sessions.add(-1);
    }
}

impl ReplySent<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let Self { trajectory_id, step, valid, service_micros } = self;
        debug!(event = event::REPLY_SENT, %trajectory_id, step, valid, service_micros, "reply sent");
        figures().replies.add(1);
        figures().replies_invalid.add((!valid).into());
        figures().service_micros.record(service_micros);
    }
}

impl ReplyRepeated<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let Self { trajectory_id, step } = self;
        debug!(event = event::REPLY_REPEATED, %trajectory_id, step, "reply repeated");
        figures().replies_repeated.add(1);
    }
}
