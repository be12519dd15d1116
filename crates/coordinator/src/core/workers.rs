//! Who is there: workers that register, say that they are there, leave or go silent.

use furrow_rollout::{End, EnvWorker, Id, PolicyWorker, WeightsOrder};
use furrow_telemetry::WorkerKind;

use super::{
    Answer, Call, Core, Effect, Health, Notice, Now, Seat, Turn, WeightsRun, WorkerId, WorkerStanding,
};
use crate::assign::PolicyOffer;

impl Core {
    pub(super) fn register_env(
        &mut self,
        call: Call,
        worker: &Id<EnvWorker>,
        sessions_max: u32,
        turn: &mut Turn,
    ) {
        let seat = Seat { offer: sessions_max, seen_millis: turn.now.millis, health: Health::default() };
        if self.env_workers.insert(worker.clone(), seat).is_none() {
            turn.greet(WorkerKind::Env, worker.as_str(), sessions_max);
        }
        self.welcome(call, turn);
    }

    pub(super) fn register_policy(
        &mut self,
        call: Call,
        worker: &Id<PolicyWorker>,
        offer: PolicyOffer,
        run: &WeightsRun,
        turn: &mut Turn,
    ) {
        self.newest_version = self.newest_version.max(offer.version);
        let sessions_max = offer.sessions_max;
        let seat = Seat { offer, seen_millis: turn.now.millis, health: Health::default() };
        if self.policy_workers.insert(worker.clone(), seat).is_none() {
            turn.greet(WorkerKind::Policy, worker.as_str(), sessions_max);
        }
        self.meet(worker, run, turn);
        self.rehome(turn.now);
        let weights = self.order();
        self.welcome_with(call, weights, turn);
    }

    pub(super) fn heartbeat(
        &mut self,
        call: Call,
        worker: &WorkerId,
        run: &WeightsRun,
        health: Health,
        turn: &mut Turn,
    ) {
        let now = turn.now.millis;
        let env = self.env_workers.get_mut(&worker.env);
        let env = env.map(|seat| (seat.seen_millis, seat.health) = (now, health));
        let policy = self.policy_workers.get_mut(&worker.policy).map(|seat| {
            (seat.seen_millis, seat.health) = (now, health);
            // A word that was under way while newer ones came says nothing new.
            if run.version > seat.offer.version {
                seat.offer.version = run.version;
                seat.offer.hashes.weights.clone_from(&run.weights_sha256);
            }
        });
        let (known, run_over) = (env.is_some() || policy.is_some(), self.no_more_work());
        if policy.is_none() {
            return turn.reply(call, Answer::Heard { known, run_over, weights: None });
        }
        self.newest_version = self.newest_version.max(run.version);
        self.hear_of_weights(&worker.policy, run, turn);
        let weights = self.order();
        let answer = Answer::Heard { known, run_over, weights };
        if self.versions.rows().is_empty() {
            return turn.reply(call, answer);
        }
        // Not at once: what is ordered may still be on its way to the ledger.
        turn.reply_when_durable(call, answer);
    }

    pub(super) fn leave(&mut self, call: Call, worker: &WorkerId, turn: &mut Turn) {
        if self.env_workers.remove(&worker.env).is_some() {
            turn.take_leave(WorkerKind::Env, worker.env.as_str());
        }
        if self.policy_workers.remove(&worker.policy).is_some() {
            self.forget_weights_of(&worker.policy);
            turn.take_leave(WorkerKind::Policy, worker.policy.as_str());
        }
        self.dismiss(&worker.env, turn);
        for lease in self.leases.take_where(|lease| lease.start.env_worker == worker.env) {
            let reason = format!("handed back by {}, which left", worker.env);
            self.fail_lease(lease, End::Cancelled, &reason, turn);
        }
        self.rehome(turn.now);
        turn.reply_when_durable(call, Answer::Left);
    }

    /// Workers that are there and how they are, environment workers first.
    pub(super) fn health(&self) -> Vec<WorkerStanding> {
        let heard = |seen_millis: u64| self.ticked_millis.saturating_sub(seen_millis);
        let env = self.env_workers.iter().map(|(worker, seat)| WorkerStanding {
            worker: worker.to_string(),
            kind: WorkerKind::Env,
            sessions_max: seat.offer,
            heard_millis: heard(seat.seen_millis),
            health: seat.health,
            version: None,
            waits: None,
        });
        let policy = self.policy_workers.iter().map(|(worker, seat)| WorkerStanding {
            worker: worker.to_string(),
            kind: WorkerKind::Policy,
            sessions_max: seat.offer.sessions_max,
            heard_millis: heard(seat.seen_millis),
            health: seat.health,
            version: seat.offer.version,
            waits: self.why_it_waits(worker),
        });
        env.chain(policy).collect()
    }

    /// Forgets workers that said nothing for the length of a lease. Their trajectories live by leases of their own.
    pub(super) fn lapse_workers(&mut self, turn: &mut Turn) {
        let oldest = turn.now.millis.saturating_sub(self.rules.lease_millis);
        for worker in silent(&self.env_workers, oldest) {
            self.env_workers.remove(&worker);
            self.dismiss(&worker, turn);
            turn.miss(WorkerKind::Env, worker.as_str(), SILENT);
        }
        for worker in silent(&self.policy_workers, oldest) {
            self.policy_workers.remove(&worker);
            self.forget_weights_of(&worker);
            turn.miss(WorkerKind::Policy, worker.as_str(), SILENT);
        }
    }

    /// After a stop of the coordinator's own (a suspended machine, a full disk) everybody gets one whole term, as after a restart.
    pub(super) fn forgive_own_absence(&mut self, now: Now) {
        let absent_millis = now.millis.saturating_sub(self.ticked_millis);
        self.ticked_millis = now.millis;
        if absent_millis <= self.rules.lease_millis / 3 {
            return;
        }
        let expires_millis = now.millis + self.rules.lease_millis;
        self.leases.iter_mut().for_each(|lease| lease.expires_millis = expires_millis);
        self.env_workers.values_mut().for_each(|seat| seat.seen_millis = now.millis);
        self.policy_workers.values_mut().for_each(|seat| seat.seen_millis = now.millis);
    }

    fn welcome(&self, call: Call, turn: &mut Turn) {
        self.welcome_with(call, None, turn);
    }

    fn welcome_with(&self, call: Call, weights: Option<WeightsOrder>, turn: &mut Turn) {
        let heartbeat_millis = self.rules.heartbeat_millis;
        let (run_id, epoch, is_ordered) = (self.run_id.clone(), self.epoch, weights.is_some());
        let answer = Answer::Registered { run_id, epoch, heartbeat_millis, weights };
        match is_ordered {
            true => turn.reply_when_durable(call, answer),
            false => turn.reply(call, answer),
        }
    }
}

const SILENT: &str = "it went silent";

impl Turn {
    fn greet(&mut self, kind: WorkerKind, worker: &str, slots: u32) {
        let worker = worker.to_owned();
        self.at_once(Effect::Tell(Notice::WorkerRegistered { kind, worker, slots }));
    }

    fn take_leave(&mut self, kind: WorkerKind, worker: &str) {
        self.at_once(Effect::Tell(Notice::WorkerLeft { kind, worker: worker.to_owned() }));
    }

    fn miss(&mut self, kind: WorkerKind, worker: &str, reason: &'static str) {
        let worker = worker.to_owned();
        self.at_once(Effect::Tell(Notice::WorkerLost { kind, worker, reason }));
    }
}

fn silent<K, T>(seats: &std::collections::BTreeMap<Id<K>, Seat<T>>, oldest: u64) -> Vec<Id<K>> {
    seats.iter().filter(|(_, seat)| seat.seen_millis < oldest).map(|(id, _)| id.clone()).collect()
}
