//! What the coordinator decides: mutations to record, and effects to perform after them.

use std::sync::Arc;

use furrow_rollout::{GroupRecord, Id, Trajectory, TrajectoryAncestry};

use super::answer::CallResponse;
use super::event::{CallId, EventTime};
use super::notice::CoreNotice;
use crate::ledger::{Mutation, TaskDraw, TimedScore, TrajectoryEnd, TrajectoryStart};

/// The result of an event.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Decision {
    /// Performed at once: these effects depend on nothing that is not durable already.
    pub at_once: Vec<Effect>,
    /// Recorded in one transaction, after the mutations of all earlier decisions.
    pub commit: Vec<Mutation>,
    /// Performed once this and all earlier decisions are durable.
    pub then: Vec<Effect>,
}

/// An action to perform.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// A call is answered. Each call is answered once.
    Reply { call: CallId, answer: CallResponse },
    /// A finished trajectory's evidence goes to its scorer; [`Scored`](super::Event::Scored) comes
    /// back.
    Score {
        trajectory: Id<Trajectory>,
        /// Its task and seed.
        draw: Arc<TaskDraw>,
        /// Its slot in the group.
        sample_index: u32,
    },
    /// An ended trajectory's rows go to the data set;
    /// [`ShardCommitted`](super::Event::ShardCommitted) comes back.
    CommitTrajectory(Box<EndedTrajectory>),
    /// A closed group's row goes to the data set, after those of its trajectories;
    /// [`ShardCommitted`](super::Event::ShardCommitted) comes back.
    CommitGroup { record: Box<GroupRecord> },
    /// Nothing more comes for now: open shards close without waiting for more.
    CloseShards,
    /// A notice for logs and metrics.
    Notify(CoreNotice),
    /// The job is over.
    Over(JobOutcome),
}

/// An ended trajectory on its way to the data set.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedTrajectory {
    /// Its run, group, slot and attempt.
    pub of: TrajectoryAncestry,
    pub start: TrajectoryStart,
    pub ended: TrajectoryEnd,
    /// The scorer's verdict; `None` when it failed.
    pub verdict: Option<TimedScore>,
    /// Its task and seed.
    pub draw: Arc<TaskDraw>,
}

/// An event being handled.
#[derive(Debug)]
pub(super) struct EventContext {
    pub now: EventTime,
    pub decision: Decision,
}

impl EventContext {
    pub(super) fn at(now: EventTime) -> Self {
        Self { now, decision: Decision::default() }
    }

    pub(super) fn at_once(&mut self, effect: Effect) {
        self.decision.at_once.push(effect);
    }

    pub(super) fn commit(&mut self, mutation: Mutation) {
        self.decision.commit.push(mutation);
    }

    pub(super) fn then(&mut self, effect: Effect) {
        self.decision.then.push(effect);
    }

    pub(super) fn reply(&mut self, call: CallId, answer: CallResponse) {
        self.at_once(Effect::Reply { call, answer });
    }

    pub(super) fn reply_when_durable(&mut self, call: CallId, answer: CallResponse) {
        self.then(Effect::Reply { call, answer });
    }

    pub(super) fn notify(&mut self, notice: CoreNotice) {
        self.then(Effect::Notify(notice));
    }
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobOutcome {
    /// Every planned group is in the data set.
    Complete,
    /// It was asked to stop before that; `--resume` continues it.
    Drained {
        /// Trajectories cancelled at the end of the grace period.
        cancelled: u64,
    },
    /// The farm failed too often.
    TooManyFailures { detail: String },
}
