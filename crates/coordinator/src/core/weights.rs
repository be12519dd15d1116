//! Weights: publications become versions, workers are told which to run, and what they say becomes the versions' standing.

use furrow_rollout::{Id, PolicyWorker, WeightsLink, WeightsOrder};

use super::{Answer, Call, Core, Notice, Refused, Turn};
use crate::ledger::Mutation;
use crate::versions::{Source, VersionRow, VersionState};

/// Weights that somebody wants to be the next version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// Names it: the same again is the same version.
    pub publication_id: String,
    /// What it is made of.
    pub source: Source,
    /// What its weights must hash to.
    pub weights_sha256: Option<String>,
}

/// What a policy worker says of its weights.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Run {
    /// The version it runs; `None` for a policy without weights.
    pub version: Option<i32>,
    /// What they hash to.
    pub weights_sha256: Option<String>,
    /// The last version it could not run, and why.
    pub refused: Option<(i32, String)>,
}

/// How far a version is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightsStanding {
    /// The newest version that a policy worker runs or ran.
    pub current: i32,
    /// The version asked for.
    pub version: i32,
    /// What became of it.
    pub state: VersionState,
    /// What its weights hash to, once that is known.
    pub weights_sha256: Option<String>,
    /// Policy workers with weights.
    pub workers: Vec<Follower>,
    /// Directories that must stay.
    pub needed: Vec<String>,
}

/// A policy worker and the version asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Follower {
    /// Which.
    pub worker: Id<PolicyWorker>,
    /// What it runs.
    pub version: i32,
    /// Why it does not run the version asked for or a newer one, if it does not.
    pub lags: Option<String>,
}

impl Core {
    /// Makes a publication the next version; answered when that is durable.
    pub(super) fn publish_weights(&mut self, call: Call, publication: Publication, turn: &mut Turn) {
        let Publication { publication_id, source, weights_sha256 } = publication;
        if let Some(row) = self.versions.of_publication(&publication_id) {
            let version = row.version;
            return match row.source == source {
                true => turn.reply_when_durable(call, Answer::VersionProposed { version, repeated: true }),
                false => {
                    let why = format!("publication {publication_id} was version {version}, of other weights");
                    turn.reply(call, Answer::Refused(Refused::Publication { why }));
                }
            };
        }
        let mut with_weights = self.policy_workers.values().filter(|seat| seat.offer.version.is_some());
        if !self.policy_workers.is_empty() && with_weights.next().is_none() {
            let why = "no policy worker of this job has weights".to_owned();
            return turn.reply(call, Answer::Refused(Refused::Publication { why }));
        }
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
        if let Err(why) = self.versions.propose(row.clone()) {
            return turn.reply(call, Answer::Refused(Refused::Publication { why }));
        }
        turn.commit(Mutation::VersionProposed(row));
        turn.tell(Notice::VersionProposed { version });
        turn.reply_when_durable(call, Answer::VersionProposed { version, repeated: false });
    }

    /// What policy workers shall run. Whoever is told must be told after it is durable.
    pub(super) fn order(&self) -> Option<WeightsOrder> {
        self.versions.order(self.held_version())
    }

    /// A worker registers: until it has caught up with what others run, nothing is lent to it.
    pub(super) fn meet(&mut self, worker: &Id<PolicyWorker>, run: &Run, turn: &mut Turn) {
        let current = self.versions.current();
        if run.version.is_some() && current > 0 {
            self.behind.insert(worker.clone(), current);
        }
        self.refusals.remove(worker);
        self.hear_of_weights(worker, run, turn);
    }

    /// A worker says what it runs.
    pub(super) fn hear_of_weights(&mut self, worker: &Id<PolicyWorker>, run: &Run, turn: &mut Turn) {
        let Some(version) = run.version else { return };
        self.strangers.remove(worker);
        if let Some(found) = &run.weights_sha256 {
            self.compare(worker, version, found);
            if !self.strangers.contains_key(worker) && self.versions.take(version, found).is_ok() {
                turn.commit(Mutation::VersionTaken { version, weights_sha256: found.clone() });
                turn.tell(Notice::VersionTaken { version, worker: worker.clone() });
            }
        }
        if self.behind.get(worker).is_some_and(|wanted| version >= *wanted) {
            self.behind.remove(worker);
        }
        // Before the worker is told of anything newer.
        self.begin_evaluation(turn);
        if let Some(refused) = &run.refused {
            let before = self.refusals.insert(worker.clone(), refused.clone());
            if before.as_ref() != Some(refused) {
                let (version, reason) = refused.clone();
                turn.tell(Notice::VersionLags { version, worker: worker.clone(), reason });
            }
            self.refuse_if_nobody_can(refused, turn);
        }
    }

    /// Weights that hash to something else than their version's are somebody else's.
    fn compare(&mut self, worker: &Id<PolicyWorker>, version: i32, found: &str) {
        let said = self.versions.get(version).and_then(|row| row.weights_sha256.as_ref());
        if let Some(said) = said.filter(|said| !said.eq_ignore_ascii_case(found)) {
            let why = format!("its weights hash to {found}, those of version {version} to {said}");
            self.strangers.insert(worker.clone(), why);
        }
    }

    /// A version that every policy worker refuses is refused for good, and the one before it is ordered again.
    fn refuse_if_nobody_can(&mut self, (version, reason): &(i32, String), turn: &mut Turn) {
        let refuses = |worker| self.refusals.get(worker).is_some_and(|(refused, _)| refused == version);
        let with_weights = self.policy_workers.iter().filter(|(_, seat)| seat.offer.version.is_some());
        if with_weights.map(|(worker, _)| worker).all(refuses)
            && self.versions.refuse(*version, reason).is_ok()
        {
            let (version, reason) = (*version, reason.clone());
            turn.commit(Mutation::VersionRefused { version, reason: reason.clone() });
            turn.tell(Notice::VersionRefused { version, reason });
        }
    }

    pub(super) fn forget_weights_of(&mut self, worker: &Id<PolicyWorker>) {
        self.behind.remove(worker);
        self.refusals.remove(worker);
        self.strangers.remove(worker);
    }

    /// Whether a worker may be given sessions: it runs what others run, and has not fallen behind by being started again.
    pub(super) fn may_serve(&self, worker: &Id<PolicyWorker>) -> bool {
        !self.behind.contains_key(worker) && !self.strangers.contains_key(worker)
    }

    /// Why a worker is given no sessions, if it is given none.
    pub(super) fn why_it_waits(&self, worker: &Id<PolicyWorker>) -> Option<String> {
        if self.may_serve(worker) {
            return None;
        }
        let own = self.policy_workers.get(worker)?.offer.version.unwrap_or(0);
        self.lag(worker, own, self.versions.current())
    }

    /// Why none of the policy workers that are there may be given sessions.
    pub(super) fn why_none_may_serve(&self) -> Option<String> {
        if self.policy_workers.keys().any(|worker| self.may_serve(worker)) {
            return None;
        }
        let Some((worker, seat)) = self.policy_workers.iter().next() else {
            return Some("no policy worker is registered".to_owned());
        };
        let (own, current) = (seat.offer.version.unwrap_or(0), self.versions.current());
        let why = self.why_it_waits(worker).unwrap_or_default();
        Some(format!("no policy worker may serve version {current}; {worker} runs {own}: {why}"))
    }

    /// How far a version is; 0: the newest.
    pub(super) fn standing_of(&self, version: i32) -> Option<WeightsStanding> {
        let version = if version == 0 { self.versions.last() } else { version };
        let row = self.versions.get(version)?;
        let with_weights = self.policy_workers.iter().filter_map(|(worker, seat)| {
            let own = seat.offer.version?;
            Some(Follower { worker: worker.clone(), version: own, lags: self.lag(worker, own, version) })
        });
        Some(WeightsStanding {
            current: self.versions.current(),
            version,
            state: row.state.clone(),
            weights_sha256: row.weights_sha256.clone(),
            workers: with_weights.collect(),
            needed: self.versions.needed(self.held_version()),
        })
    }

    fn lag(&self, worker: &Id<PolicyWorker>, own: i32, version: i32) -> Option<String> {
        match (self.strangers.get(worker), self.refusals.get(worker)) {
            (Some(why), _) => Some(why.clone()),
            _ if own >= version => None,
            (_, Some((refused, why))) if *refused >= version => Some(why.clone()),
            _ => self.why_held(version).or_else(|| Some("it has not taken it up yet".to_owned())),
        }
    }
}

impl Publication {
    /// A directory of weights over an earlier version.
    pub fn of_directory(
        publication_id: String,
        link: WeightsLink,
        base_version: i32,
        weights_sha256: Option<String>,
    ) -> Self {
        let source = Source::Directory { link, base_version };
        Self { publication_id, source, weights_sha256 }
    }
}
