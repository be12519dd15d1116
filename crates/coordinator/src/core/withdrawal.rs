//! Versions whose weights turn out to be broken while workers run them.
//!
//! A worker whose sessions fail one after another reports its own version. It gets no more
//! trajectories, and its sessions move where another worker can take them. A version that every
//! worker that runs it reports is *withdrawn*: no worker is ordered to run it any more, and where
//! nothing newer waits, the weights before it are published under a new number. If other workers
//! run the version without fault, the one worker waits for the next version.

use std::collections::BTreeMap;

use furrow_rollout::{Id, PolicyWorker};

use super::decision::EventContext;
use super::event::WeightsReport;
use super::notice::CoreNotice;
use super::state::Core;
use crate::ledger::Mutation;
use crate::versions::{VersionRow, VersionSource};

impl Core {
    /// Handles what a worker reports of the version it runs. A late report may name one that it ran
    /// before.
    pub(super) fn update_broken(
        &mut self,
        worker: &Id<PolicyWorker>,
        run: &WeightsReport,
        turn: &mut EventContext,
    ) {
        let own = self.policy_workers.get(worker).and_then(|entry| entry.offer.version);
        if self.broken.get(worker).is_some_and(|(version, _)| Some(*version) != own) {
            self.broken.remove(worker);
        }
        let Some(found) = run.refused.as_ref().filter(|(version, _)| Some(*version) == own) else { return };
        if self.broken.insert(worker.clone(), found.clone()).as_ref() != Some(found) {
            let (version, reason) = found.clone();
            turn.notify(CoreNotice::VersionLags { version, worker: worker.clone(), reason });
            self.reassign_policy_workers(turn.now);
        }
        self.withdraw_broken(turn);
    }

    /// Withdraws each version that every worker that runs it reports.
    pub(super) fn withdraw_broken(&mut self, turn: &mut EventContext) {
        let reported: BTreeMap<i32, String> = self.broken.values().cloned().collect();
        for (version, reason) in reported {
            let mut running = self
                .policy_workers
                .iter()
                .filter(|(worker, entry)| {
                    entry.offer.version == Some(version) && !self.strangers.contains_key(*worker)
                })
                .peekable();
            if running.peek().is_some() && running.all(|(worker, _)| self.broken.contains_key(worker)) {
                self.withdraw(version, &reason, turn);
            }
        }
    }

    fn withdraw(&mut self, version: i32, reason: &str, turn: &mut EventContext) {
        if self.versions.withdraw(version, reason).is_err() {
            return;
        }
        let reason = reason.to_owned();
        turn.commit(Mutation::VersionWithdrawn { version, reason: reason.clone() });
        if self.version_limit() == Some(version) {
            self.cut_evaluation(format!("version {version} was withdrawn: {reason}"), turn);
        }
        turn.notify(CoreNotice::VersionWithdrawn { version, reason });
        self.go_back(turn);
    }

    /// Publishes the weights to go back to after the newest version was withdrawn, if nothing newer
    /// waits.
    pub(super) fn go_back(&mut self, turn: &mut EventContext) {
        let Some(to) = self.versions.fallback() else { return };
        let withdrawn = self.versions.current();
        let mut publication_id = format!("withdrawn-{withdrawn}");
        while self.versions.find_publication(&publication_id).is_some() {
            // A publisher has used the name.
            publication_id.push('x');
        }
        let proposed = self.propose(publication_id, VersionSource::Rollback { to }, None, turn);
        debug_assert!(proposed.is_ok(), "the table named a version that it does not accept: {proposed:?}");
    }

    /// Whether a worker's weights must not be used.
    pub(super) fn runs_broken_weights(&self, worker: &Id<PolicyWorker>) -> bool {
        self.broken.contains_key(worker) || self.withdrawn_version_of(worker).is_some()
    }

    /// Why a worker's weights must not be used.
    pub(super) fn broken_reason(&self, worker: &Id<PolicyWorker>) -> Option<String> {
        if let Some((_, why)) = self.broken.get(worker) {
            return Some(why.clone());
        }
        let row = self.withdrawn_version_of(worker)?;
        Some(format!("version {} was withdrawn: {}", row.version, row.state.reason()?))
    }

    fn withdrawn_version_of(&self, worker: &Id<PolicyWorker>) -> Option<&VersionRow> {
        let own = self.policy_workers.get(worker)?.offer.version?;
        self.versions.get(own).filter(|row| row.is_withdrawn())
    }
}
