//! Lending: requests for work, renewals, leases that run out, sessions that move to another policy worker.

use furrow_rollout::{End, EnvWorker, Id, Trajectory};
use furrow_telemetry::PauseReason;

use super::evaluation::runs;
use super::{Answer, Call, Core, Drawn, Effect, Grant, Notice, Now, Refused, Turn, Waiting};
use crate::assign::{PolicyOffer, Rooms, facts};
use crate::groups::{Attempt, Group, Home};
use crate::lease::Lease;
use crate::ledger::{Draw, Mutation, PolicyFacts, Problem, Start};

impl Core {
    /// Holds a request for work open until there is some. A worker has one: a newer one takes the place of the older.
    pub(super) fn ask(&mut self, asked: Waiting, turn: &mut Turn) {
        let Some(seat) = self.env_workers.get_mut(&asked.worker) else {
            let worker = asked.worker.to_string();
            return turn.reply(asked.call, Answer::Refused(Refused::UnknownWorker { worker }));
        };
        seat.seen_millis = turn.now.millis;
        let slots = asked.slots.min(seat.offer);
        self.dismiss(&asked.worker, turn);
        self.waiting.push_back(Waiting { slots, ..asked });
    }

    /// Askers that are gone get nothing.
    pub(super) fn forget(&mut self, calls: &[Call]) {
        self.waiting.retain(|waiting| !calls.contains(&waiting.call));
    }

    /// Answers a worker's waiting request with nothing.
    pub(super) fn dismiss(&mut self, worker: &Id<EnvWorker>, turn: &mut Turn) {
        self.answer_where(|waiting| waiting.worker == *worker, turn);
    }

    /// Gives waiting workers what there is, first come, first served.
    pub(super) fn serve(&mut self, turn: &mut Turn) {
        if self.no_more_work() {
            return self.answer_where(|_| true, turn);
        }
        for waiting in std::mem::take(&mut self.waiting) {
            let grants = self.grant_up_to(waiting.slots.min(self.rules.leases_per_call_max), &waiting, turn);
            if grants.is_empty() {
                self.waiting.push_back(waiting);
            } else {
                turn.reply_when_durable(waiting.call, Answer::Leased { grants, run_over: false });
            }
        }
        let now = turn.now.millis;
        self.answer_where(|waiting| waiting.until_millis <= now || waiting.slots == 0, turn);
    }

    fn answer_where(&mut self, is_over: impl Fn(&Waiting) -> bool, turn: &mut Turn) {
        let run_over = self.no_more_work();
        for waiting in std::mem::take(&mut self.waiting) {
            if is_over(&waiting) {
                turn.reply(waiting.call, Answer::Leased { grants: Vec::new(), run_over });
            } else {
                self.waiting.push_back(waiting);
            }
        }
    }

    fn grant_up_to(&mut self, count: u32, waiting: &Waiting, turn: &mut Turn) -> Vec<Grant> {
        let mut grants = Vec::new();
        while (grants.len() as u32) < count
            && let Some((group, attempt, policy)) = self.choose(turn)
        {
            grants.push(self.lend(group, attempt, policy, waiting, turn));
        }
        grants
    }

    /// The next attempt to lend: the oldest group first, a new group when no open one has a slot whose policy worker has room.
    fn choose(&mut self, turn: &mut Turn) -> Option<(u64, Attempt, PolicyFacts)> {
        if self.blocked().is_some() {
            return None;
        }
        if let Some(chosen) = self.choose_problem(turn) {
            return Some(chosen);
        }
        if self.paced().is_some() {
            return None;
        }
        let rooms = self.rooms();
        let in_open_group = |(index, group): (&u64, &Group)| {
            if group.draw().problem.is_some() {
                return None;
            }
            let attempt = group.next_attempt()?;
            Some((*index, attempt, rooms.for_group(group.home())?))
        };
        if let Some(chosen) = self.groups.iter().find_map(in_open_group) {
            return Some(chosen);
        }
        let policy = rooms.for_group(None)?;
        let index = self.open_group(turn)?;
        let attempt = self.group(index).next_attempt()?;
        Some((index, attempt, policy))
    }

    fn open_group(&mut self, turn: &mut Turn) -> Option<u64> {
        if self.next_draw >= self.plan.groups() {
            return None;
        }
        let drawn = self.plan.draw(self.next_draw, &self.tallies);
        self.next_draw += 1;
        let (slots, needed) = (self.plan.group_size(), self.plan.group_needs());
        Some(self.open_group_of(drawn, None, (slots, needed), turn))
    }

    /// A group of what was drawn, of so many slots of which so many are needed.
    pub(super) fn open_group_of(
        &mut self,
        drawn: Drawn,
        problem: Option<Problem>,
        (slots, needed): (u32, u32),
        turn: &mut Turn,
    ) -> u64 {
        let index = self.next_group;
        self.next_group += 1;
        let draw = Draw {
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
        self.groups.insert(index, Group::new(draw.into(), needed, turn.now.millis));
        index
    }

    fn lend(
        &mut self,
        group: u64,
        attempt: Attempt,
        policy: PolicyFacts,
        waiting: &Waiting,
        turn: &mut Turn,
    ) -> Grant {
        let token = self.next_token;
        self.next_token += 1;
        let run_id = self.run_id.clone();
        let in_group = self.group(group);
        in_group.take(attempt.sample_index, Home { worker: policy.worker.clone(), kind: policy.kind });
        let of = in_group.ancestry(&run_id, attempt.sample_index, attempt.attempt);
        let draw = in_group.draw().clone();
        let start = Start {
            trajectory_id: of.trajectory_id.clone(),
            group_id: of.group_id.clone(),
            sample_index: of.sample_index,
            attempt: of.attempt,
            token,
            env_worker: waiting.worker.clone(),
            policy: policy.clone(),
            at_micros: turn.now.wall_micros,
            queue_micros: turn.now.millis.saturating_sub(attempt.since_millis) * 1000,
        };
        turn.commit(Mutation::Assigned(start.clone()));
        turn.tell(Notice::Leased {
            of: of.clone(),
            token,
            worker: waiting.worker.clone(),
            task_id: draw.task_id.clone(),
        });
        let policy_address = policy.address.clone();
        self.leases.lend(Lease {
            start,
            of: of.clone(),
            group,
            expires_millis: turn.now.millis + self.rules.lease_millis,
            policy,
            steps: 0,
            policy_versions: None,
        });
        Grant { of, token, lease_millis: self.rules.lease_millis, draw, policy_address }
    }

    pub(super) fn renew(
        &mut self,
        call: Call,
        worker: &Id<EnvWorker>,
        held: &[(Id<Trajectory>, u64)],
        turn: &mut Turn,
    ) {
        if let Some(seat) = self.env_workers.get_mut(worker) {
            seat.seen_millis = turn.now.millis;
        }
        let expires_millis = turn.now.millis + self.rules.lease_millis;
        let (mut lost, mut moves) = (Vec::new(), Vec::new());
        for (trajectory, token) in held {
            // It may not have heard yet that its ending was acknowledged.
            let has_ended = self.leases.has_ended(trajectory, *token);
            match self.leases.renew(trajectory, *token, expires_millis) {
                Ok(lease) if lease.was_moved() => {
                    moves.push((trajectory.clone(), lease.policy.address.clone()));
                }
                Ok(_) => {}
                Err(_) if has_ended => {}
                Err(_) => lost.push(trajectory.clone()),
            }
        }
        turn.reply(call, Answer::Renewed { lost, moves });
    }

    /// Leases that ran out: their trajectories failed, their slots are free.
    pub(super) fn lapse_leases(&mut self, turn: &mut Turn) {
        for lease in self.leases.lapse(turn.now.millis) {
            turn.tell(Notice::LeaseLost {
                of: lease.of.clone(),
                token: lease.start.token,
                worker: lease.start.env_worker.clone(),
            });
            let reason =
                format!("{} said nothing of it for {} ms", lease.start.env_worker, self.rules.lease_millis);
            self.fail_lease(lease, End::LeaseLost, &reason, turn);
        }
    }

    /// Assignments that never reached anybody.
    pub(super) fn take_back(&mut self, trajectories: &[Id<Trajectory>], turn: &mut Turn) {
        let undelivered = |lease: &Lease| trajectories.contains(&lease.start.trajectory_id);
        for lease in self.leases.take_where(undelivered) {
            let reason = format!("{} was gone before the assignment reached it", lease.start.env_worker);
            self.fail_lease(lease, End::Cancelled, &reason, turn);
        }
    }

    /// Finds another policy worker for every session whose own is gone or has moved. Where there is none it is looked for again; the
    /// environment worker gives up after a wait of its own and reports `policy_fault`.
    pub(super) fn rehome(&mut self, now: Now) {
        let (behind, strangers) = (&self.behind, &self.strangers);
        let ready = self
            .policy_workers
            .iter()
            .filter(|(id, _)| !behind.contains_key(*id) && !strangers.contains_key(*id));
        let workers = ready.map(|(id, seat)| (id, &seat.offer));
        let mut rooms = Rooms::new(workers, self.leases.iter().map(|lease| &lease.policy.worker));
        for lease in self.leases.iter_mut() {
            let PolicyFacts { worker, address, kind, .. } = &lease.policy;
            let kept_to = self.groups.get(&lease.group).and_then(|group| group.draw().problem);
            let will_do =
                |offer: &PolicyOffer| kept_to.is_none_or(|problem| runs(offer.version, problem.version));
            let is_ready = !behind.contains_key(worker) && !strangers.contains_key(worker);
            let found = match self.policy_workers.get(worker) {
                Some(seat) if seat.offer.address == *address => None,
                Some(seat) if is_ready && will_do(&seat.offer) => Some(facts(worker, &seat.offer)),
                None if now.millis < self.settled_millis => None,
                _ => rooms.least_loaded_where(Some(*kind), will_do),
            };
            if let Some(policy) = found {
                rooms.add(&policy.worker);
                lease.policy = policy;
            }
        }
    }

    /// Why nothing is lent just now, and the numbers behind it.
    pub(super) fn pause(&self) -> Option<(PauseReason, String)> {
        self.blocked().or_else(|| self.paced())
    }

    /// Why nothing at all is lent just now; of an evaluation neither.
    fn blocked(&self) -> Option<(PauseReason, String)> {
        if let Some(detail) = &self.disk_low {
            return Some((PauseReason::DiskReserve, detail.clone()));
        }
        let backlog = self.scoring.len() + self.unpublished.len();
        if backlog >= self.rules.backlog_max {
            let detail = format!("{backlog} trajectories wait to be scored or published");
            return Some((PauseReason::Backlog, detail));
        }
        self.why_none_may_serve().map(|detail| (PauseReason::NoPolicyWorker, detail))
    }

    fn paced(&self) -> Option<(PauseReason, String)> {
        let pacing = self.rules.pacing?;
        let (accepted, discarded, running) = (self.accepted(), self.discards.total(), self.training());
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

    /// Says when lending begins to pause or goes on. That nobody is there to ask is no pause.
    pub(super) fn tell_admission(&mut self, turn: &mut Turn) {
        let found = if self.no_more_work() { None } else { self.pause() };
        let reason = found.as_ref().map(|(reason, _)| *reason);
        let unasked = reason == Some(PauseReason::NoPolicyWorker) && self.waiting.is_empty();
        if reason == self.told_pause || unasked {
            return;
        }
        if let Some(reason) = self.told_pause {
            turn.at_once(Effect::Tell(Notice::Resumed { reason }));
        }
        if let Some((reason, detail)) = found {
            turn.at_once(Effect::Tell(Notice::Paused { reason, detail }));
        }
        self.told_pause = reason;
    }
}
