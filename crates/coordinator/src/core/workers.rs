//! Workers that register, send heartbeats, leave or go silent.

use furrow_rollout::{EndKind, EnvWorker, Id, PolicyWorker, WeightsOrder};
use furrow_telemetry::WorkerKind;
use furrow_wire::{PeerRole, RevokedPeer};

use super::answer::{CallResponse, WorkerStanding};
use super::decision::{Effect, EventContext};
use super::event::{CallId, EventTime, HeartbeatStatus, WeightsReport, WorkerId};
use super::notice::CoreNotice;
use super::state::{Core, WorkerEntry};
use crate::assign::PolicyOffer;

impl Core {
    pub(super) fn register_env(
        &mut self,
        call: CallId,
        worker: &Id<EnvWorker>,
        sessions_max: u32,
        turn: &mut EventContext,
    ) {
        let entry = WorkerEntry {
            offer: sessions_max,
            last_contact_millis: turn.now.millis,
            health: HeartbeatStatus::default(),
        };
        if self.env_workers.insert(worker.clone(), entry).is_none() {
            turn.notify_registered(WorkerKind::Env, worker.as_str(), sessions_max);
        }
        self.reply_registered(call, turn);
    }

    pub(super) fn register_policy(
        &mut self,
        call: CallId,
        worker: &Id<PolicyWorker>,
        offer: PolicyOffer,
        run: &WeightsReport,
        turn: &mut EventContext,
    ) {
        self.newest_version = self.newest_version.max(offer.version);
        let sessions_max = offer.sessions_max;
        let entry =
            WorkerEntry { offer, last_contact_millis: turn.now.millis, health: HeartbeatStatus::default() };
        if self.policy_workers.insert(worker.clone(), entry).is_none() {
            turn.notify_registered(WorkerKind::Policy, worker.as_str(), sessions_max);
        }
        self.track_registration(worker, run, turn);
        self.reassign_policy_workers(turn.now);
        let weights = self.weights_order();
        self.reply_registered_with(call, weights, turn);
    }

    pub(super) fn heartbeat(
        &mut self,
        call: CallId,
        worker: &WorkerId,
        run: &WeightsReport,
        health: HeartbeatStatus,
        turn: &mut EventContext,
    ) {
        let now = turn.now.millis;
        let env = worker.env.as_ref().and_then(|id| self.env_workers.get_mut(id));
        let env = env.map(|entry| (entry.last_contact_millis, entry.health) = (now, health));
        let policy = worker.policy.as_ref().filter(|id| self.policy_workers.contains_key(id));
        if let Some(entry) = policy.and_then(|id| self.policy_workers.get_mut(id)) {
            (entry.last_contact_millis, entry.health) = (now, health);
            // An old report that arrives after newer ones brings nothing new.
            if run.version > entry.offer.version {
                entry.offer.version = run.version;
                entry.offer.hashes.weights.clone_from(&run.weights_sha256);
            }
        }
        let known = env.is_some() || policy.is_some();
        let run_over = self.is_admission_over();
        let Some(policy) = policy else {
            return turn.reply(call, CallResponse::HeartbeatAcknowledged { known, run_over, weights: None });
        };
        self.newest_version = self.newest_version.max(run.version);
        self.update_weights(policy, run, turn);
        let weights = self.weights_order();
        let answer = CallResponse::HeartbeatAcknowledged { known, run_over, weights };
        if self.versions.rows().is_empty() {
            return turn.reply(call, answer);
        }
        // Not at once: the order may still be on its way to the ledger.
        turn.reply_when_durable(call, answer);
    }

    pub(super) fn leave(&mut self, call: CallId, worker: &WorkerId, turn: &mut EventContext) {
        if let Some(env) = &worker.env {
            self.leave_as_env(env, turn);
        }
        if let Some(policy) = &worker.policy
            && self.policy_workers.remove(policy).is_some()
        {
            self.forget_weights_of(policy);
            turn.notify_left(WorkerKind::Policy, policy.as_str());
        }
        self.reassign_policy_workers(turn.now);
        turn.reply_when_durable(call, CallResponse::Left);
    }

    fn leave_as_env(&mut self, worker: &Id<EnvWorker>, turn: &mut EventContext) {
        if self.env_workers.remove(worker).is_some() {
            turn.notify_left(WorkerKind::Env, worker.as_str());
        }
        self.dismiss(worker, turn);
        for lease in self.leases.take_where(|lease| lease.start.env_worker == *worker) {
            let reason = format!("handed back by {worker}, which left");
            self.fail_lease(lease, EndKind::Cancelled, &reason, turn);
        }
    }

    /// Removes the workers that use a revoked certificate. Their trajectories are run again by
    /// others, and trajectories that a revoked policy worker served continue on another.
    pub(super) fn revoke(&mut self, peer: &RevokedPeer, turn: &mut EventContext) {
        let env = |worker: &Id<EnvWorker>| peer.covers(PeerRole::Env, worker.as_str());
        let policy = |worker: &Id<PolicyWorker>| peer.covers(PeerRole::Policy, worker.as_str());
        for worker in self.env_workers.keys().filter(|worker| env(worker)).cloned().collect::<Vec<_>>() {
            self.env_workers.remove(&worker);
            self.dismiss(&worker, turn);
            turn.notify_lost(WorkerKind::Env, worker.as_str(), REVOKED_REASON);
        }
        // A worker that a restarted coordinator does not know yet may hold leases.
        for lease in self.leases.take_where(|lease| env(&lease.start.env_worker)) {
            let reason = format!("the identity of {} was revoked", lease.start.env_worker);
            self.fail_lease(lease, EndKind::LeaseLost, &reason, turn);
        }
        for worker in self.policy_workers.keys().filter(|worker| policy(worker)).cloned().collect::<Vec<_>>()
        {
            self.policy_workers.remove(&worker);
            self.forget_weights_of(&worker);
            turn.notify_lost(WorkerKind::Policy, worker.as_str(), REVOKED_REASON);
        }
        self.reassign_policy_workers(turn.now);
    }

    /// Registered workers and their status, environment workers first.
    pub(super) fn worker_standings(&self) -> Vec<WorkerStanding> {
        let since_contact = |contact_millis: u64| self.ticked_millis.saturating_sub(contact_millis);
        let env = self.env_workers.iter().map(|(worker, entry)| WorkerStanding {
            worker: worker.to_string(),
            kind: WorkerKind::Env,
            sessions_max: entry.offer,
            last_contact_millis: since_contact(entry.last_contact_millis),
            health: entry.health,
            version: None,
            waits: None,
        });
        let policy = self.policy_workers.iter().map(|(worker, entry)| WorkerStanding {
            worker: worker.to_string(),
            kind: WorkerKind::Policy,
            sessions_max: entry.offer.sessions_max,
            last_contact_millis: since_contact(entry.last_contact_millis),
            health: entry.health,
            version: entry.offer.version,
            waits: self.wait_reason(worker),
        });
        env.chain(policy).collect()
    }

    /// Removes workers without a heartbeat for the length of a lease. Their trajectories have
    /// leases of their own.
    pub(super) fn lapse_workers(&mut self, turn: &mut EventContext) {
        let oldest = turn.now.millis.saturating_sub(self.rules.lease_millis);
        for worker in silent_workers(&self.env_workers, oldest) {
            self.env_workers.remove(&worker);
            self.dismiss(&worker, turn);
            turn.notify_lost(WorkerKind::Env, worker.as_str(), SILENT_REASON);
        }
        for worker in silent_workers(&self.policy_workers, oldest) {
            self.policy_workers.remove(&worker);
            self.forget_weights_of(&worker);
            turn.notify_lost(WorkerKind::Policy, worker.as_str(), SILENT_REASON);
        }
    }

    /// After the coordinator itself was suspended (a suspended machine, a full disk), every worker
    /// and lease gets one whole term, as after a restart.
    pub(super) fn extend_after_suspension(&mut self, now: EventTime) {
        let absent_millis = now.millis.saturating_sub(self.ticked_millis);
        self.ticked_millis = now.millis;
        if absent_millis <= self.rules.lease_millis / 3 {
            return;
        }
        let expires_millis = now.millis + self.rules.lease_millis;
        self.leases.iter_mut().for_each(|lease| lease.expires_millis = expires_millis);
        self.env_workers.values_mut().for_each(|entry| entry.last_contact_millis = now.millis);
        self.policy_workers.values_mut().for_each(|entry| entry.last_contact_millis = now.millis);
    }

    fn reply_registered(&self, call: CallId, turn: &mut EventContext) {
        self.reply_registered_with(call, None, turn);
    }

    fn reply_registered_with(&self, call: CallId, weights: Option<WeightsOrder>, turn: &mut EventContext) {
        let heartbeat_millis = self.rules.heartbeat_millis;
        let run_id = self.run_id.clone();
        let epoch = self.epoch;
        let is_ordered = weights.is_some();
        let answer = CallResponse::Registered { run_id, epoch, heartbeat_millis, weights };
        match is_ordered {
            true => turn.reply_when_durable(call, answer),
            false => turn.reply(call, answer),
        }
    }
}

const SILENT_REASON: &str = "it went silent";

const REVOKED_REASON: &str = "its identity was revoked";

impl EventContext {
    fn notify_registered(&mut self, kind: WorkerKind, worker: &str, slots: u32) {
        let worker = worker.to_owned();
        self.at_once(Effect::Notify(CoreNotice::WorkerRegistered { kind, worker, slots }));
    }

    fn notify_left(&mut self, kind: WorkerKind, worker: &str) {
        self.at_once(Effect::Notify(CoreNotice::WorkerLeft { kind, worker: worker.to_owned() }));
    }

    fn notify_lost(&mut self, kind: WorkerKind, worker: &str, reason: &'static str) {
        let worker = worker.to_owned();
        self.at_once(Effect::Notify(CoreNotice::WorkerLost { kind, worker, reason }));
    }
}

fn silent_workers<K, T>(
    entries: &std::collections::BTreeMap<Id<K>, WorkerEntry<T>>,
    oldest: u64,
) -> Vec<Id<K>> {
    entries.iter().filter(|(_, entry)| entry.last_contact_millis < oldest).map(|(id, _)| id.clone()).collect()
}
