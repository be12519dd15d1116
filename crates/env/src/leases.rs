//! The leases of this worker: the trajectories leased to it, what proves that, and the channels to
//! their attempts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use furrow_rollout::{Assignment, Id, LeaseProof, Trajectory};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::attempt::AttemptSignals;

/// All leases of the worker.
#[derive(Debug, Default)]
pub(crate) struct WorkerLeases {
    table: Mutex<HashMap<Id<Trajectory>, LeaseEntry>>,
}

/// An attempt's lease; dropping it releases the trajectory.
#[derive(Debug)]
pub(crate) struct LeaseGuard {
    leases: Arc<WorkerLeases>,
    trajectory: Id<Trajectory>,
    token: u64,
    pub signals: AttemptSignals,
    pub policy_address: watch::Receiver<String>,
}

#[derive(Debug)]
struct LeaseEntry {
    proof: LeaseProof,
    lease: Duration,
    lost: CancellationToken,
    policy_address: watch::Sender<String>,
}

impl WorkerLeases {
    /// Adds a lease. `whole` are the worker's own signals, which every attempt receives.
    pub(crate) fn insert(self: &Arc<Self>, assignment: &Assignment, whole: &AttemptSignals) -> LeaseGuard {
        let trajectory = assignment.ancestry.trajectory_id.clone();
        let (sender, policy_address) = watch::channel(assignment.policy_address.clone());
        let lost = CancellationToken::new();
        let entry = LeaseEntry {
            proof: assignment.proof(),
            lease: Duration::from_millis(assignment.lease_millis),
            lost: lost.clone(),
            policy_address: sender,
        };
        // If the trajectory is leased again while an older attempt still runs, that attempt has
        // lost its lease.
        if let Some(older) = self.table().insert(trajectory.clone(), entry) {
            older.lost.cancel();
        }
        let signals = AttemptSignals { lost, ..whole.clone() };
        LeaseGuard { leases: self.clone(), trajectory, token: assignment.token, signals, policy_address }
    }

    /// All leases, for a renewal.
    pub(crate) fn all(&self) -> Vec<LeaseProof> {
        self.table().values().map(|entry| entry.proof.clone()).collect()
    }

    /// The shortest lease duration.
    pub(crate) fn shortest_lease(&self) -> Option<Duration> {
        self.table().values().map(|entry| entry.lease).min()
    }

    /// Signals the attempts whose lease is lost. `renewed` are the leases in the renewal request:
    /// leases added since are not affected.
    pub(crate) fn cancel_lost(&self, lost: &[String], renewed: &[LeaseProof]) {
        let table = self.table();
        let is_lost = |proof: &&LeaseProof| lost.iter().any(|lost| lost == proof.trajectory_id.as_str());
        for proof in renewed.iter().filter(is_lost) {
            if let Some(entry) = table.get(&proof.trajectory_id).filter(|entry| entry.proof == *proof) {
                entry.lost.cancel();
            }
        }
    }

    /// Sends an attempt the new address of its policy worker.
    pub(crate) fn move_policy(&self, trajectory: &str, address: &str) {
        let Ok(trajectory) = Id::<Trajectory>::new(trajectory) else { return };
        if let Some(entry) = self.table().get(&trajectory) {
            // The coordinator repeats a move with every renewal; only a new address may break a
            // stream.
            entry.policy_address.send_if_modified(|current| {
                let is_new = current != address;
                address.clone_into(current);
                is_new
            });
        }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Id<Trajectory>, LeaseEntry>> {
        // No code that can panic runs while the lock is held.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        let mut table = self.leases.table();
        if table.get(&self.trajectory).is_some_and(|entry| entry.proof.token == self.token) {
            table.remove(&self.trajectory);
        }
    }
}
