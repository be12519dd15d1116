//! New weights take effect between two batches. Older ones stay while trajectories finish on them.
//!
//! If a backend returns its old weights, an exchange only swaps pointers, so weights of several
//! versions can alternate: each iteration runs one batch for each version with work. Otherwise new
//! weights are copied in parts between batches.

use std::collections::BTreeSet;
use std::time::Instant;

use furrow_model::backend::{Backend as _, DeviceLost, WeightsError};
use furrow_rollout::PolicyVersion;

use super::Engine;
#[cfg(test)]
use super::SessionId;
use super::session::SessionCore;
use super::weight_versions::{NewWeights, OnSwap, PendingSwap, SwapReport, WeightsKey};

impl Engine {
    /// Version of the weights that a session runs on.
    pub(super) fn version_of(&self, session: &SessionCore) -> PolicyVersion {
        session.pinned.unwrap_or(self.weight_versions.newest())
    }

    /// The version that a new session is pinned to, if it is pinned.
    pub(super) fn version_to_pin(&self) -> Option<PolicyVersion> {
        (self.settings.swaps.on_swap == OnSwap::FinishOnOld).then(|| self.weight_versions.newest())
    }

    /// Queues weights that are to take effect. Refuses those that were queued before.
    pub(super) fn expect_weights(&mut self, new: NewWeights) {
        let NewWeights { version, vision, weights, done } = new;
        let pending_swap = PendingSwap { name: WeightsKey { version, vision }, weights: Some(weights), done };
        let newest = self.weight_versions.newest();
        if version <= newest {
            let why = format!("version {} is not newer than {}, which is in use", version.0, newest.0);
            return pending_swap.refuse(WeightsError::Refused(why));
        }
        if let Some(waited) = self.weight_versions.pending_swap.replace(pending_swap) {
            let why = format!("version {} replaced it before it took effect", version.0);
            waited.refuse(WeightsError::Refused(why));
        }
    }

    /// Whether queued weights can be copied or exchanged now.
    pub(super) fn has_weights_to_take(&self) -> bool {
        self.weight_versions.pending_swap.is_some() && self.can_keep_old()
    }

    /// Whether one more version may be kept for pinned sessions.
    fn can_keep_old(&self) -> bool {
        let kept_to: BTreeSet<PolicyVersion> =
            self.sessions.cores().filter_map(|session| session.pinned).collect();
        kept_to.len() <= self.settings.swaps.old_versions_max as usize
    }

    /// Copies a part of the queued weights; when all of them are on the device, they take effect.
    pub(super) fn take_weights(&mut self) -> Result<(), DeviceLost> {
        self.retire_unused()?;
        if !self.has_weights_to_take() {
            return Ok(());
        }
        let Some(mut pending_swap) = self.weight_versions.pending_swap.take() else { return Ok(()) };
        let began = Instant::now();
        match self.bring_weights(&mut pending_swap) {
            Ok(false) => {
                self.weight_versions.pending_swap = Some(pending_swap);
                Ok(())
            }
            Ok(true) => self.take_over(pending_swap, began),
            Err(why) => {
                let lost = match &why {
                    WeightsError::Device(lost) => Err(lost.clone()),
                    _ => Ok(()),
                };
                pending_swap.refuse(why);
                lost
            }
        }
    }

    /// Copies a part of the weights. Returns whether all of them are on the device.
    fn bring_weights(&mut self, pending_swap: &mut PendingSwap) -> Result<bool, WeightsError> {
        if let Some(weights) = pending_swap.weights.take() {
            self.device.stage(weights)?;
        }
        let is_whole = self.device.copy_staged(self.settings.swaps.bring_bytes)?;
        if is_whole {
            self.exchange(pending_swap.name)?;
        }
        Ok(is_whole)
    }

    /// Makes weights on the device the ones in use.
    fn take_over(&mut self, pending_swap: PendingSwap, began: Instant) -> Result<(), DeviceLost> {
        self.weight_versions.newest = pending_swap.name;
        self.breaker.reset();
        // A state that begins with one version and continues with another must not become a
        // snapshot.
        for session in self.sessions.all_running_mut().filter(|session| session.core.pinned.is_none()) {
            for (_, name) in session.step.promised.drain(..) {
                self.snapshots.settle(&name);
            }
        }
        let pause_micros = began.elapsed().as_micros() as u64;
        let retired = self.retire_unused();
        let old_versions = self.weight_versions.kept.len() as u32;
        let swapped = SwapReport { pause_micros, sessions: self.sessions.len() as u32, old_versions };
        // The sender may have left; the weights are in use anyway.
        pending_swap.done.send(Ok(swapped)).ok();
        retired
    }

    /// Exchanges the staged weights with those on the device.
    fn exchange(&mut self, name: WeightsKey) -> Result<(), WeightsError> {
        let old = self.device.swap()?;
        let was = std::mem::replace(&mut self.weight_versions.on_device, name);
        self.weight_versions.kept.extend(old.map(|weights| (was, weights)));
        Ok(())
    }

    /// Refuses queued weights because the device has failed.
    pub(super) fn lose_weights(&mut self, lost: &DeviceLost) {
        if let Some(pending_swap) = self.weight_versions.pending_swap.take() {
            pending_swap.refuse(lost.clone().into());
        }
    }

    /// Retires weights that no session is pinned to.
    fn retire_unused(&mut self) -> Result<(), DeviceLost> {
        if self.weight_versions.kept.is_empty() {
            return Ok(());
        }
        let used: BTreeSet<PolicyVersion> =
            self.sessions.cores().filter_map(|session| session.pinned).collect();
        let newest = self.weight_versions.newest();
        if !used.contains(&self.weight_versions.on_device()) {
            self.use_weights(newest)?;
        }
        let is_used = |name: &WeightsKey| name.version == newest || used.contains(&name.version);
        for (name, weights) in std::mem::take(&mut self.weight_versions.kept) {
            match is_used(&name) {
                true => self.weight_versions.kept.push((name, weights)),
                false => self.weight_versions.retire(weights),
            }
        }
        Ok(())
    }

    /// Versions with steps that run, the oldest first.
    pub(super) fn versions_ready(&self) -> BTreeSet<PolicyVersion> {
        self.sessions.all_running().map(|(_, session)| self.version_of(&session.core)).collect()
    }

    /// Ensures that the device holds the weights of a version. A failure counts as a lost device.
    pub(super) fn use_weights(&mut self, version: PolicyVersion) -> Result<(), DeviceLost> {
        if self.weight_versions.on_device() == version {
            return Ok(());
        }
        let index = self.weight_versions.kept.iter().position(|(name, _)| name.version == version);
        let Some(index) = index else {
            // The settings prevent this: sessions are pinned only if the backend returns old
            // weights.
            let why =
                format!("weights of version {} are missing, but sessions are pinned to them", version.0);
            return Err(DeviceLost(why));
        };
        let (name, weights) = self.weight_versions.kept.swap_remove(index);
        let exchanged = self
            .device
            .stage(weights)
            .and_then(|()| self.device.copy_staged(u64::MAX))
            .and_then(|_| self.exchange(name));
        exchanged.map_err(|why| match why {
            WeightsError::Device(lost) => lost,
            why => DeviceLost(format!("weights of version {} could not be restored: {why}", version.0)),
        })
    }

    #[cfg(test)]
    pub(super) fn versions_kept(&self) -> BTreeSet<PolicyVersion> {
        let kept = self.weight_versions.kept.iter().map(|(name, _)| name.version);
        kept.chain([self.weight_versions.on_device()]).collect()
    }

    /// The version a session is pinned to.
    #[cfg(test)]
    pub(super) fn pinned(&self, id: SessionId) -> Option<PolicyVersion> {
        self.sessions.get(id)?.core().pinned
    }
}
