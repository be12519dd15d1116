//! Leasing: requests for work, renewals, leases that expire, sessions that move to another policy
//! worker.

use std::collections::BTreeSet;

use furrow_rollout::{EndKind, EnvWorker, Id, LeaseProof, PolicyWorker, Trajectory};
use furrow_telemetry::PauseReason;

use super::answer::{CallRefusal, CallResponse, LeaseGrant};
use super::decision::{Effect, EventContext};
use super::evaluation::serves_version;
use super::event::{CallId, EventTime};
use super::group_plan::SampledTask;
use super::notice::CoreNotice;
use super::state::{Core, PendingRequest};
use crate::assign::{PolicyOffer, WorkerCapacity, facts};
use crate::groups::{GroupHome, OpenGroup, SlotAttempt};
use crate::lease::Lease;
use crate::lease_secret::SecretDigest;
use crate::ledger::{EvaluationProblem, Mutation, PolicyFacts, TaskDraw, TrajectoryStart};

impl Core {
    /// Keeps a request for work open until there is some. A worker has one open request: a newer
    /// one replaces the older one.
    pub(super) fn queue_request(&mut self, request: PendingRequest, turn: &mut EventContext) {
        let Some(entry) = self.env_workers.get_mut(&request.worker) else {
            let worker = request.worker.to_string();
            return turn.reply(request.call, CallResponse::Refused(CallRefusal::UnknownWorker { worker }));
        };
        entry.last_contact_millis = turn.now.millis;
        let slots = request.slots.min(entry.offer);
        self.dismiss(&request.worker, turn);
        self.waiting.push_back(PendingRequest { slots, ..request });
    }

    /// Drops requests whose callers are gone.
    pub(super) fn forget(&mut self, calls: &[CallId]) {
        self.waiting.retain(|waiting| !calls.contains(&waiting.call));
    }

    /// Answers a worker's open request with nothing.
    pub(super) fn dismiss(&mut self, worker: &Id<EnvWorker>, turn: &mut EventContext) {
        self.answer_where(|waiting| waiting.worker == *worker, turn);
    }

    /// Assigns available attempts to waiting workers, first come, first served.
    pub(super) fn serve(&mut self, turn: &mut EventContext) {
        if self.is_admission_over() {
            return self.answer_where(|_| true, turn);
        }
        for waiting in std::mem::take(&mut self.waiting) {
            let grants = self.grant_up_to(waiting.slots.min(self.rules.leases_per_call_max), &waiting, turn);
            if grants.is_empty() {
                self.waiting.push_back(waiting);
            } else {
                turn.reply_when_durable(waiting.call, CallResponse::Leased { grants, run_over: false });
            }
        }
        let now = turn.now.millis;
        self.answer_where(|waiting| waiting.until_millis <= now || waiting.slots == 0, turn);
    }

    fn answer_where(&mut self, is_over: impl Fn(&PendingRequest) -> bool, turn: &mut EventContext) {
        let run_over = self.is_admission_over();
        for waiting in std::mem::take(&mut self.waiting) {
            if is_over(&waiting) {
                turn.reply(waiting.call, CallResponse::Leased { grants: Vec::new(), run_over });
            } else {
                self.waiting.push_back(waiting);
            }
        }
    }

    fn grant_up_to(
        &mut self,
        count: u32,
        waiting: &PendingRequest,
        turn: &mut EventContext,
    ) -> Vec<LeaseGrant> {
        let mut grants = Vec::new();
        while (grants.len() as u32) < count
            && let Some((group, attempt, policy)) = self.choose(turn)
        {
            grants.push(self.grant_lease(group, attempt, policy, waiting, turn));
        }
        grants
    }

    /// The next attempt to lease: the oldest group first, and a new group when no open one has a
    /// slot whose policy worker has capacity.
    fn choose(&mut self, turn: &mut EventContext) -> Option<(u64, SlotAttempt, PolicyFacts)> {
        if self.blocked_reason().is_some() {
            return None;
        }
        if let Some(chosen) = self.choose_problem(turn) {
            return Some(chosen);
        }
        if self.pacing_reason().is_some() {
            return None;
        }
        let capacity = self.worker_capacity();
        let in_open_group = |(index, group): (&u64, &OpenGroup)| {
            if group.draw().problem.is_some() {
                return None;
            }
            let attempt = group.next_attempt()?;
            Some((*index, attempt, capacity.for_group(group.home())?))
        };
        if let Some(chosen) = self.groups.iter().find_map(in_open_group) {
            return Some(chosen);
        }
        let policy = capacity.for_group(None)?;
        let index = self.open_group(turn)?;
        let attempt = self.group(index).next_attempt()?;
        Some((index, attempt, policy))
    }

    fn open_group(&mut self, turn: &mut EventContext) -> Option<u64> {
        if self.next_draw >= self.plan.groups() {
            return None;
        }
        let drawn = self.plan.draw(self.next_draw, &self.tallies);
        self.next_draw += 1;
        let slots = self.plan.group_size();
        let needed = self.plan.group_needs();
        Some(self.open_group_of(drawn, None, (slots, needed), turn))
    }

    /// A group for this draw, with `slots` slots of which it needs `needed`.
    pub(super) fn open_group_of(
        &mut self,
        drawn: SampledTask,
        problem: Option<EvaluationProblem>,
        (slots, needed): (u32, u32),
        turn: &mut EventContext,
    ) -> u64 {
        let index = self.next_group;
        self.next_group += 1;
        let draw = TaskDraw {
            group_id: Id::nth(&self.run_id, index),
            index,
            suite: drawn.suite,
            task_id: drawn.task_id,
            split: drawn.split,
            seed: drawn.seed,
            group_size: slots,
            task_json: drawn.task_json,
            chance: drawn.chance,
            problem,
            at_micros: turn.now.wall_micros,
        };
        turn.commit(Mutation::GroupDrawn { draw: draw.clone(), draws: self.next_draw });
        self.groups.insert(index, OpenGroup::new(draw.into(), needed, turn.now.millis));
        index
    }

    fn grant_lease(
        &mut self,
        group: u64,
        attempt: SlotAttempt,
        policy: PolicyFacts,
        waiting: &PendingRequest,
        turn: &mut EventContext,
    ) -> LeaseGrant {
        let token = self.next_token;
        self.next_token += 1;
        let secret = self.secrets.draw();
        let run_id = self.run_id.clone();
        let in_group = self.group(group);
        in_group.take(attempt.sample_index, GroupHome { worker: policy.worker.clone(), kind: policy.kind });
        let of = in_group.ancestry(&run_id, attempt.sample_index, attempt.attempt);
        let draw = in_group.draw().clone();
        let start = TrajectoryStart {
            trajectory_id: of.trajectory_id.clone(),
            group_id: of.group_id.clone(),
            sample_index: of.sample_index,
            attempt: of.attempt,
            token,
            env_worker: waiting.worker.clone(),
            policy: policy.clone(),
            at_micros: turn.now.wall_micros,
            queue_micros: turn.now.millis.saturating_sub(attempt.since_millis) * 1000,
            secret: Some(SecretDigest::of(&secret)),
        };
        turn.commit(Mutation::Assigned(start.clone()));
        turn.notify(CoreNotice::Leased {
            of: of.clone(),
            token,
            worker: waiting.worker.clone(),
            task_id: draw.task_id.clone(),
        });
        let policy_address = policy.address.clone();
        self.leases.insert(Lease {
            start,
            of: of.clone(),
            group,
            expires_millis: turn.now.millis + self.rules.lease_millis,
            policy,
            steps: 0,
            policy_versions: None,
        });
        LeaseGrant { of, token, secret, lease_millis: self.rules.lease_millis, draw, policy_address }
    }

    pub(super) fn renew(
        &mut self,
        call: CallId,
        worker: &Id<EnvWorker>,
        leases: &[LeaseProof],
        turn: &mut EventContext,
    ) {
        if let Some(entry) = self.env_workers.get_mut(worker) {
            entry.last_contact_millis = turn.now.millis;
        }
        let expires_millis = turn.now.millis + self.rules.lease_millis;
        let mut lost = Vec::new();
        let mut moves = Vec::new();
        let is_holder = |holder: &Id<EnvWorker>| holder == worker;
        for proof in leases {
            let trajectory = proof.trajectory_id.clone();
            // Its worker may not know yet that its ending was acknowledged.
            let has_ended = self.leases.has_ended(proof, is_holder);
            match self.leases.renew(proof, is_holder, expires_millis) {
                Ok(lease) if lease.was_moved() => moves.push((trajectory, lease.policy.address.clone())),
                Ok(_) => {}
                Err(_) if has_ended => {}
                Err(_) => lost.push(trajectory),
            }
        }
        turn.reply(call, CallResponse::Renewed { lost, moves });
    }

    /// Ends expired leases: their trajectories failed, their slots are free.
    pub(super) fn lapse_leases(&mut self, turn: &mut EventContext) {
        for lease in self.leases.lapse(turn.now.millis) {
            turn.notify(CoreNotice::LeaseLost {
                of: lease.of.clone(),
                token: lease.start.token,
                worker: lease.start.env_worker.clone(),
            });
            let reason =
                format!("{} said nothing of it for {} ms", lease.start.env_worker, self.rules.lease_millis);
            self.fail_lease(lease, EndKind::LeaseLost, &reason, turn);
        }
    }

    /// Reclaims assignments that never reached a worker.
    pub(super) fn reclaim(&mut self, trajectories: &[Id<Trajectory>], turn: &mut EventContext) {
        let undelivered = |lease: &Lease| trajectories.contains(&lease.start.trajectory_id);
        for lease in self.leases.take_where(undelivered) {
            let reason = format!("{} was gone before the assignment reached it", lease.start.env_worker);
            self.fail_lease(lease, EndKind::Cancelled, &reason, turn);
        }
    }

    /// Finds another policy worker for every session whose own is gone, has another address or
    /// broken weights.
    /// Where none exists, it tries again later; the environment worker gives up after a timeout of
    /// its own and reports `policy_fault`.
    pub(super) fn reassign_policy_workers(&mut self, now: EventTime) {
        let ids = || self.policy_workers.keys().cloned();
        let ready: BTreeSet<Id<PolicyWorker>> = ids().filter(|id| self.may_serve(id)).collect();
        let broken: BTreeSet<Id<PolicyWorker>> = ids().filter(|id| self.runs_broken_weights(id)).collect();
        let workers = self.policy_workers.iter().filter(|(id, _)| ready.contains(*id));
        let workers = workers.map(|(id, entry)| (id, &entry.offer));
        let mut capacity = WorkerCapacity::new(workers, self.leases.iter().map(|lease| &lease.policy.worker));
        for lease in self.leases.iter_mut() {
            let PolicyFacts { worker, address, kind, .. } = &lease.policy;
            let kept_to = self.groups.get(&lease.group).and_then(|group| group.draw().problem);
            let will_do = |offer: &PolicyOffer| {
                kept_to.is_none_or(|problem| serves_version(offer.version, problem.version))
            };
            let found = match self.policy_workers.get(worker) {
                Some(entry) if entry.offer.address == *address && !broken.contains(worker) => None,
                Some(entry) if ready.contains(worker) && will_do(&entry.offer) => {
                    Some(facts(worker, &entry.offer))
                }
                None if now.millis < self.settled_millis => None,
                _ => capacity.least_loaded_where(Some(*kind), will_do),
            };
            if let Some(policy) = found {
                capacity.add(&policy.worker);
                lease.policy = policy;
            }
        }
    }

    /// Why nothing is leased at the moment, with the numbers behind it.
    pub(super) fn pause_reason(&self) -> Option<(PauseReason, String)> {
        self.blocked_reason().or_else(|| self.pacing_reason())
    }

    /// `open`, or why nothing is leased. A job that ends leases nothing, whatever its workers do.
    pub(super) fn describe_admission(&self) -> String {
        if self.stopping.is_some() {
            return "draining".to_owned();
        }
        if self.is_admission_over() {
            return "every group is closed".to_owned();
        }
        self.pause_reason().map_or_else(|| "open".to_owned(), |(_, detail)| detail)
    }

    /// Why nothing at all is leased at the moment, not even for an evaluation.
    fn blocked_reason(&self) -> Option<(PauseReason, String)> {
        if let Some(detail) = &self.disk_low {
            return Some((PauseReason::DiskReserve, detail.clone()));
        }
        let backlog = self.scoring.len() + self.uncommitted.len();
        if backlog >= self.rules.backlog_max {
            let detail = format!("{backlog} trajectories wait to be scored or committed");
            return Some((PauseReason::Backlog, detail));
        }
        self.unavailable_reason().map(|detail| (PauseReason::NoPolicyWorker, detail))
    }

    fn pacing_reason(&self) -> Option<(PauseReason, String)> {
        let pacing = self.rules.pacing?;
        let accepted = self.accepted();
        let discarded = self.discards.total();
        let running = self.training_in_flight();
        if pacing.admits(accepted.saturating_sub(discarded), running, self.newest_version) {
            return None;
        }
        let detail = format!(
            "{accepted} accepted, {discarded} of them discarded, and {running} running fill what version {} allows: {}",
            self.newest_version.unwrap_or(0),
            pacing.allowed(self.newest_version)
        );
        Some((PauseReason::OffPolicy, detail))
    }

    /// Reports when leasing pauses or resumes. A lack of waiting workers is not a pause.
    pub(super) fn report_admission(&mut self, turn: &mut EventContext) {
        let found = if self.is_admission_over() { None } else { self.pause_reason() };
        let reason = found.as_ref().map(|(reason, _)| *reason);
        let is_without_policy = reason == Some(PauseReason::NoPolicyWorker);
        let unrequested = is_without_policy && self.waiting.is_empty();
        // A policy worker registers once its weights are loaded, after the environment worker asks.
        let is_starting =
            is_without_policy && self.policy_workers.is_empty() && turn.now.millis < self.settled_millis;
        if reason == self.reported_pause || unrequested || is_starting {
            return;
        }
        if let Some(reason) = self.reported_pause {
            turn.at_once(Effect::Notify(CoreNotice::Resumed { reason }));
        }
        if let Some((reason, detail)) = found {
            turn.at_once(Effect::Notify(CoreNotice::Paused { reason, detail }));
        }
        self.reported_pause = reason;
    }
}
