//! What this worker holds: the trajectories lent to it, under which token, and how each is reached.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use furrow_rollout::{Assignment, Id, Trajectory};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::attempt::Signals;

/// All trajectories in hand.
#[derive(Debug, Default)]
pub(crate) struct Held {
    table: Mutex<HashMap<Id<Trajectory>, Entry>>,
}

/// An attempt's hold on its trajectory; dropping it lets go.
#[derive(Debug)]
pub(crate) struct Hold {
    held: Arc<Held>,
    trajectory: Id<Trajectory>,
    token: u64,
    pub signals: Signals,
    pub policy_address: watch::Receiver<String>,
}

#[derive(Debug)]
struct Entry {
    token: u64,
    lease: Duration,
    lost: CancellationToken,
    policy_address: watch::Sender<String>,
}

impl Held {
    /// Takes a trajectory in hand. `whole` are the worker's own signals, which every attempt hears.
    pub fn take(self: &Arc<Self>, assignment: &Assignment, whole: &Signals) -> Hold {
        let trajectory = assignment.ancestry.trajectory_id.clone();
        let (sender, policy_address) = watch::channel(assignment.policy_address.clone());
        let lost = CancellationToken::new();
        let entry = Entry {
            token: assignment.token,
            lease: Duration::from_millis(assignment.lease_millis),
            lost: lost.clone(),
            policy_address: sender,
        };
        // Lent anew while an older attempt is still here: that one has lost it.
        if let Some(older) = self.table().insert(trajectory.clone(), entry) {
            older.lost.cancel();
        }
        let signals = Signals { lost, ..whole.clone() };
        Hold { held: self.clone(), trajectory, token: assignment.token, signals, policy_address }
    }

    /// Everything in hand with its token, for a renewal.
    pub fn all(&self) -> Vec<(Id<Trajectory>, u64)> {
        self.table().iter().map(|(id, entry)| (id.clone(), entry.token)).collect()
    }

    /// The shortest lease in hand.
    pub fn shortest_lease(&self) -> Option<Duration> {
        self.table().values().map(|entry| entry.lease).min()
    }

    /// Tells the attempts whose trajectory is lost. `asked` is what the renewal spoke of: what was taken in hand since is not meant.
    pub fn lose(&self, lost: &[String], asked: &[(Id<Trajectory>, u64)]) {
        let table = self.table();
        let meant = asked.iter().filter(|(id, _)| lost.iter().any(|lost| lost == id.as_str()));
        for (id, token) in meant {
            if let Some(entry) = table.get(id).filter(|entry| entry.token == *token) {
                entry.lost.cancel();
            }
        }
    }

    /// Tells an attempt where its policy worker is now.
    pub fn move_policy(&self, trajectory: &str, address: &str) {
        let Ok(trajectory) = Id::<Trajectory>::new(trajectory) else { return };
        if let Some(entry) = self.table().get(&trajectory) {
            // The coordinator repeats a move with every renewal; only a new one may break a stream.
            entry.policy_address.send_if_modified(|current| {
                let is_new = current != address;
                address.clone_into(current);
                is_new
            });
        }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Id<Trajectory>, Entry>> {
        // No code that can panic runs under the lock.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut table = self.held.table();
        if table.get(&self.trajectory).is_some_and(|entry| entry.token == self.token) {
            table.remove(&self.trajectory);
        }
    }
}
