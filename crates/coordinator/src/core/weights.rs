//! Weights: publications become versions, workers are ordered to run them, and their reports decide
//! the state of each version.

use furrow_rollout::{Id, PolicyWorker, WeightsOrder};

use super::answer::{CallRefusal, CallResponse, PublicationRefusal, WeightsStanding, WorkerVersion};
use super::decision::EventContext;
use super::event::{CallId, WeightsPublication, WeightsReport};
use super::notice::CoreNotice;
use super::state::Core;
use crate::ledger::Mutation;
use crate::versions::{VersionRefusal, VersionRow, VersionSource, VersionState};

impl Core {
    /// Makes a publication the next version; answers once that is durable.
    pub(super) fn publish_weights(
        &mut self,
        call: CallId,
        publication: WeightsPublication,
        turn: &mut EventContext,
    ) {
        let WeightsPublication { publication_id, source, weights_sha256 } = publication;
        if let Some(row) = self.versions.find_publication(&publication_id) {
            let version = row.version;
            return match row.source == source {
                true => {
                    turn.reply_when_durable(call, CallResponse::VersionProposed { version, repeated: true });
                }
                false => {
                    let why = PublicationRefusal::OtherWeights { publication_id, version };
                    turn.reply(call, CallResponse::Refused(CallRefusal::Publication { why }));
                }
            };
        }
        let mut with_weights = self.policy_workers.values().filter(|entry| entry.offer.version.is_some());
        if !self.policy_workers.is_empty() && with_weights.next().is_none() {
            let why = PublicationRefusal::NoWeights;
            return turn.reply(call, CallResponse::Refused(CallRefusal::Publication { why }));
        }
        match self.propose(publication_id, source, weights_sha256, turn) {
            Ok(version) => {
                turn.reply_when_durable(call, CallResponse::VersionProposed { version, repeated: false });
            }
            Err(why) => {
                let why = why.into();
                turn.reply(call, CallResponse::Refused(CallRefusal::Publication { why }));
            }
        }
    }

    /// Makes weights the next version, and returns its number.
    pub(super) fn propose(
        &mut self,
        publication_id: String,
        source: VersionSource,
        weights_sha256: Option<String>,
        turn: &mut EventContext,
    ) -> Result<i32, VersionRefusal> {
        // Workers of a run whose ledger was removed may know larger numbers.
        let version = self.versions.last().max(self.newest_version.unwrap_or(0)).saturating_add(1);
        let row = VersionRow {
            version,
            publication_id,
            source,
            state: VersionState::Proposed,
            weights_sha256,
            at_micros: turn.now.wall_micros,
        };
        self.versions.propose(row.clone())?;
        turn.commit(Mutation::VersionProposed(row));
        turn.notify(CoreNotice::VersionProposed { version });
        Ok(version)
    }

    /// The version that policy workers shall run. It must be durable before a worker receives it.
    pub(super) fn weights_order(&self) -> Option<WeightsOrder> {
        self.versions.order(self.version_limit())
    }

    /// Tracks a worker that registers: nothing is leased to it until it has caught up with the
    /// others.
    pub(super) fn track_registration(
        &mut self,
        worker: &Id<PolicyWorker>,
        run: &WeightsReport,
        turn: &mut EventContext,
    ) {
        let current = self.versions.current();
        if run.version.is_some() && current > 0 {
            self.behind.insert(worker.clone(), current);
        }
        self.refusals.remove(worker);
        self.broken.remove(worker);
        self.update_weights(worker, run, turn);
    }

    /// Handles a worker's report of the version it runs.
    pub(super) fn update_weights(
        &mut self,
        worker: &Id<PolicyWorker>,
        run: &WeightsReport,
        turn: &mut EventContext,
    ) {
        let Some(version) = run.version else { return };
        self.strangers.remove(worker);
        if let Some(found) = &run.weights_sha256 {
            self.check_weights_hash(worker, version, found);
            if !self.strangers.contains_key(worker) && self.versions.take(version, found).is_ok() {
                turn.commit(Mutation::VersionTaken { version, weights_sha256: found.clone() });
                turn.notify(CoreNotice::VersionTaken { version, worker: worker.clone() });
            }
        }
        if self.behind.get(worker).is_some_and(|wanted| version >= *wanted) {
            self.behind.remove(worker);
        }
        self.update_broken(worker, run, turn);
        // Before the worker receives an order for anything newer.
        self.begin_evaluation(turn);
        if let Some(refused) = run.refused.as_ref().filter(|(refused, _)| *refused != version) {
            let before = self.refusals.insert(worker.clone(), refused.clone());
            if before.as_ref() != Some(refused) {
                let (version, reason) = refused.clone();
                turn.notify(CoreNotice::VersionLags { version, worker: worker.clone(), reason });
            }
            self.refuse_if_no_worker_runs_it(refused, turn);
        }
    }

    /// Marks a worker whose weights do not hash to those of their version: it runs other weights.
    fn check_weights_hash(&mut self, worker: &Id<PolicyWorker>, version: i32, found: &str) {
        let expected = self.versions.get(version).and_then(|row| row.weights_sha256.as_ref());
        if let Some(expected) = expected.filter(|expected| !expected.eq_ignore_ascii_case(found)) {
            let why = format!("its weights hash to {found}, those of version {version} to {expected}");
            self.strangers.insert(worker.clone(), why);
        }
    }

    /// Refuses a version for good when every policy worker refuses it, and orders the one before it
    /// again.
    fn refuse_if_no_worker_runs_it(&mut self, (version, reason): &(i32, String), turn: &mut EventContext) {
        let refuses = |worker| self.refusals.get(worker).is_some_and(|(refused, _)| refused == version);
        let with_weights = self.policy_workers.iter().filter(|(_, entry)| entry.offer.version.is_some());
        if with_weights.map(|(worker, _)| worker).all(refuses)
            && self.versions.refuse(*version, reason).is_ok()
        {
            let version = *version;
            let reason = reason.clone();
            turn.commit(Mutation::VersionRefused { version, reason: reason.clone() });
            turn.notify(CoreNotice::VersionRefused { version, reason });
            self.go_back(turn);
        }
    }

    pub(super) fn forget_weights_of(&mut self, worker: &Id<PolicyWorker>) {
        self.behind.remove(worker);
        self.refusals.remove(worker);
        self.broken.remove(worker);
        self.strangers.remove(worker);
    }

    /// Whether a worker may get sessions: it runs what the others run, did not fall behind by a
    /// restart, and its weights are not broken.
    pub(super) fn may_serve(&self, worker: &Id<PolicyWorker>) -> bool {
        !self.behind.contains_key(worker)
            && !self.strangers.contains_key(worker)
            && !self.runs_broken_weights(worker)
    }

    /// Why a worker gets no sessions, if it gets none.
    pub(super) fn wait_reason(&self, worker: &Id<PolicyWorker>) -> Option<String> {
        if self.may_serve(worker) {
            return None;
        }
        if let Some(why) = self.broken_reason(worker) {
            return Some(why);
        }
        let own = self.policy_workers.get(worker)?.offer.version.unwrap_or(0);
        self.lag_reason(worker, own, self.versions.current())
    }

    /// Why none of the registered policy workers may get sessions.
    pub(super) fn unavailable_reason(&self) -> Option<String> {
        if self.policy_workers.keys().any(|worker| self.may_serve(worker)) {
            return None;
        }
        let Some((worker, entry)) = self.policy_workers.iter().next() else {
            return Some(
                "no policy worker is registered: none is started, or it loads its weights".to_owned(),
            );
        };
        let own = entry.offer.version.unwrap_or(0);
        let current = self.versions.current();
        let why = self.wait_reason(worker).unwrap_or_default();
        Some(format!("no policy worker may serve version {current}; {worker} runs {own}: {why}"))
    }

    /// How far a version is; 0 selects the newest.
    pub(super) fn standing_of(&self, version: i32) -> Option<WeightsStanding> {
        let version = if version == 0 { self.versions.last() } else { version };
        let row = self.versions.get(version)?;
        let with_weights = self.policy_workers.iter().filter_map(|(worker, entry)| {
            let own = entry.offer.version?;
            Some(WorkerVersion {
                worker: worker.clone(),
                version: own,
                lags: self.lag_reason(worker, own, version),
            })
        });
        Some(WeightsStanding {
            current: self.versions.current(),
            version,
            state: row.state.clone(),
            weights_sha256: row.weights_sha256.clone(),
            workers: with_weights.collect(),
            needed: self.versions.needed(self.version_limit()),
        })
    }

    fn lag_reason(&self, worker: &Id<PolicyWorker>, own: i32, version: i32) -> Option<String> {
        match (self.strangers.get(worker), self.refusals.get(worker)) {
            (Some(why), _) => Some(why.clone()),
            _ if own >= version => self.broken_reason(worker),
            (_, Some((refused, why))) if *refused >= version => Some(why.clone()),
            _ => self.version_limit_reason(version).or_else(|| Some("it has not loaded it yet".to_owned())),
        }
    }
}
