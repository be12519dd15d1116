//! Decides: (state, event, time) → mutations to record and effects to perform after. It uses no
//! clock, no I/O and no randomness of its own, so any decision can be reproduced exactly.
//!
//! Randomness enters through [`GroupPlan::draw`], a function of the job's seed and the group's
//! number, and through the secrets of leases, which a [`SecretSource`](crate::SecretSource) draws.
//! Iteration is always in order of ids: no hash map is ever iterated.

mod answer;
mod decision;
mod discards;
mod ending;
mod evaluation;
mod event;
mod group_plan;
mod leasing;
mod notice;
mod restore;
mod rules;
mod state;
mod stopping;
mod weights;
mod withdrawal;
mod workers;

#[cfg(test)]
mod cases;
#[cfg(test)]
mod simulation;

use crate::assign::WorkerCapacity;
use crate::groups::OpenGroup;
use crate::lease::Lease;

pub use answer::{
    CallRefusal, CallResponse, LeaseGrant, LeasedTrajectory, PublicationRefusal, RunProgress,
    WeightsStanding, WorkerStanding, WorkerVersion,
};
use decision::EventContext;
pub use decision::{Decision, Effect, EndedTrajectory, JobOutcome};
pub use event::{
    CallId, DiscardReport, Event, EventTime, HeartbeatStatus, LeaseClaim, ReportedEnd, ShardSummary,
    WeightsPublication, WeightsReport, WorkerId,
};
pub use group_plan::{EvaluationSchedule, GroupPlan, SampledTask, TaskTallies};
pub use notice::{CoreNotice, EvaluationResult};
pub use restore::SpoolProgress;
pub use rules::CoreRules;
pub use state::Core;
use state::PendingRequest;

impl Core {
    /// Decides what an event leads to.
    pub fn apply(&mut self, event: Event, now: EventTime) -> Decision {
        let mut turn = EventContext::at(now);
        let matters = event.affects_leasing();
        self.handle_event(event, &mut turn);
        if matters {
            self.begin_evaluation(&mut turn);
            self.serve(&mut turn);
            self.report_admission(&mut turn);
            self.finish_if_done(&mut turn);
        }
        turn.decision
    }

    /// Whether no worker is registered.
    pub fn is_alone(&self) -> bool {
        self.env_workers.is_empty() && self.policy_workers.is_empty()
    }

    fn running(&self) -> Vec<LeasedTrajectory> {
        let running = |lease: &Lease| {
            let draw = self.groups.get(&lease.group)?.draw();
            Some(LeasedTrajectory {
                of: lease.of.clone(),
                draw: draw.clone(),
                env_worker: lease.start.env_worker.clone(),
                policy_worker: lease.policy.worker.clone(),
                steps: lease.steps,
                started_at_micros: lease.start.at_micros,
            })
        };
        self.leases.iter().filter_map(running).collect()
    }

    /// How far the job is.
    pub fn progress(&self) -> RunProgress {
        let tally = &self.tally;
        RunProgress {
            run_id: self.run_id.clone(),
            groups_planned: self.plan.groups(),
            groups_closed: tally.groups_closed,
            assigned: self.leases.len() as u64,
            scored: tally.scored,
            scored_before: self.scored_before,
            uptime_millis: self.ticked_millis.saturating_sub(self.began_millis),
            failed: tally.failed.clone(),
            committed: tally.committed,
            reward_sum: tally.reward_sum,
            successes: tally.successes,
            training_success_known: tally.training_success_known,
            training_successes: tally.training_successes,
            scoring: self.scoring.len() as u64,
            workers: self.worker_standings(),
            steps: tally.steps,
            discarded: self.discards.total(),
            env_workers: self.env_workers.len() as u64,
            policy_workers: self.policy_workers.len() as u64,
            admission: self.describe_admission(),
            run_over: self.over,
        }
    }

    fn handle_event(&mut self, event: Event, turn: &mut EventContext) {
        match event {
            Event::RegisterEnv { call, worker, sessions_max } => {
                self.register_env(call, &worker, sessions_max, turn);
            }
            Event::RegisterPolicy { call, worker, offer, run } => {
                self.register_policy(call, &worker, offer, &run, turn);
            }
            Event::Heartbeat { call, worker, run, health } => {
                self.heartbeat(call, &worker, &run, health, turn);
            }
            Event::Publish { call, publication } => self.publish_weights(call, publication, turn),
            Event::Discarded { call, report } => self.discard(call, report, turn),
            Event::Weights { call, version } => {
                let answer = match self.standing_of(version) {
                    Some(standing) => CallResponse::Weights(Box::new(standing)),
                    None => CallResponse::Refused(CallRefusal::NoVersion { version }),
                };
                turn.reply_when_durable(call, answer);
            }
            Event::Revoked { peer } => self.revoke(&peer, turn),
            Event::Leave { call, worker } => self.leave(call, &worker, turn),
            Event::Lease { call, worker, slots, wait_millis } => {
                let until_millis = turn.now.millis + wait_millis.min(self.rules.lease_wait_millis);
                self.queue_request(PendingRequest { call, worker, slots, until_millis }, turn);
            }
            Event::Renew { call, worker, leases } => self.renew(call, &worker, &leases, turn),
            Event::StepArrived { call, claim } => self.check_claim(call, &claim, "record_step", turn),
            Event::FirstShown { call, claim } => self.check_claim(call, &claim, "show_first", turn),
            Event::StepKept { trajectory, step, policy_versions } => {
                self.keep_step(&trajectory, step, policy_versions);
            }
            Event::EndingArrived { call, claim, digest } => self.check_ending(call, &claim, digest, turn),
            Event::EndingKept { call, claim, ending } => self.finish(call, &claim, ending, turn),
            Event::Scored { trajectory, verdict } => self.record_score(&trajectory, verdict, turn),
            Event::RecordLost { trajectory, steps, why } => {
                self.lose_record(&trajectory, steps, &why, turn);
            }
            Event::ShardCommitted { shard, trajectories, groups } => {
                self.mark_committed(shard, &trajectories, &groups, turn);
            }
            Event::Undelivered { trajectories } => self.reclaim(&trajectories, turn),
            Event::HungUp { calls } => self.forget(&calls),
            Event::Disk { low } => self.disk_low = low,
            Event::Progress { call } => {
                let answer = CallResponse::Progress(Box::new(self.progress()));
                turn.at_once(Effect::Reply { call, answer });
            }
            Event::Running { call } => {
                let answer = CallResponse::Running(self.running());
                turn.at_once(Effect::Reply { call, answer });
            }
            Event::Drain { call } => self.drain(call, turn),
            Event::Stop { call } => self.stop_at_once(call, turn),
            Event::Tick => self.tick(turn),
        }
    }

    fn tick(&mut self, turn: &mut EventContext) {
        self.extend_after_suspension(turn.now);
        self.lapse_leases(turn);
        self.lapse_workers(turn);
        // The last worker that ran a version without fault may be gone.
        self.withdraw_broken(turn);
        self.reassign_policy_workers(turn.now);
        self.retry_scoring(turn);
        self.cut_overdue_evaluation(turn);
        self.end_grace(turn);
    }

    /// Policy workers and how many sessions each has.
    fn worker_capacity(&self) -> WorkerCapacity<'_> {
        let ready = self.policy_workers.iter().filter(|(id, _)| self.may_serve(id));
        let workers = ready.map(|(id, entry)| (id, &entry.offer));
        WorkerCapacity::new(workers, self.leases.iter().map(|lease| &lease.policy.worker))
    }

    fn group(&mut self, index: u64) -> &mut OpenGroup {
        self.groups.get_mut(&index).expect("a group stays until its last trajectory is committed")
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("progress", &self.progress()).finish_non_exhaustive()
    }
}
