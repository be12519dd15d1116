//! New weights take over between two batches; older ones stay for as long as a trajectory finishes on them.
//!
//! Where a backend gives its old weights back, an exchange is a pointer's, so weights of several versions can take turns: each iteration
//! runs one batch for each version that has work. Where it does not, new weights are brought over piece by piece between batches.

use std::collections::BTreeSet;
use std::time::Instant;

use furrow_model::backend::{Backend as _, DeviceLost, Incoming, WeightsError};
use furrow_rollout::PolicyVersion;
use tokio::sync::{mpsc, oneshot};

use super::Engine;
#[cfg(test)]
use super::SessionId;
use super::step::Session;

/// What becomes of sessions whose state older weights wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnSwap {
    /// They go on with the state they have: `state_version_min` tells.
    #[default]
    Keep,
    /// They are read again from their past before their next step.
    Rebuild,
    /// Their trajectories end on the weights they began with.
    FinishOnOld,
}

/// How weights are exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Swaps {
    /// What becomes of sessions.
    pub on_swap: OnSwap,
    /// Versions kept beside the newest for trajectories that finish on them; newer weights wait for the oldest to be done.
    pub old_versions_max: u32,
    /// Bytes brought to a device between two batches.
    pub bring_bytes: u64,
    /// Hash of the vision weights that the engine begins with.
    pub vision: [u8; 32],
}

/// Weights that shall take over.
pub struct NewWeights {
    /// Their version, newer than that in use.
    pub version: PolicyVersion,
    /// Hash of their vision encoder: tiles encoded by another are none of theirs.
    pub vision: [u8; 32],
    /// What the backend takes.
    pub weights: Incoming,
    /// Told when they have taken over, or why not.
    pub done: oneshot::Sender<Result<Swapped, WeightsError>>,
}

/// What an exchange was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Swapped {
    /// How long nothing else ran.
    pub pause_micros: u64,
    /// Sessions that were there.
    pub sessions: u32,
    /// Versions that trajectories still finish on.
    pub old_versions: u32,
}

/// Which weights there are.
pub(super) struct Shelf {
    /// What new sessions run on.
    newest: Name,
    /// What the device has now.
    on_device: Name,
    /// Others, ready to be exchanged for those on the device.
    kept: Vec<(Name, Incoming)>,
    coming: Option<Coming>,
    /// Where weights go that nobody needs any more: taking them apart takes longer than a batch.
    retired: Option<mpsc::Sender<Incoming>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Name {
    version: PolicyVersion,
    vision: [u8; 32],
}

struct Coming {
    name: Name,
    /// `None` once they are staged.
    weights: Option<Incoming>,
    done: oneshot::Sender<Result<Swapped, WeightsError>>,
}

impl Coming {
    /// Says that they do not take over, and why.
    fn refuse(self, why: WeightsError) {
        self.done.send(Err(why)).ok();
    }
}

impl Default for Swaps {
    fn default() -> Self {
        // 256 MB are 60 ms on a bus of 4 GB/s and 6 ms on one of 40.
        Self { on_swap: OnSwap::Keep, old_versions_max: 2, bring_bytes: 256 << 20, vision: [0; 32] }
    }
}

impl Shelf {
    pub fn new(version: PolicyVersion, vision: [u8; 32], retired: Option<mpsc::Sender<Incoming>>) -> Self {
        let name = Name { version, vision };
        Self { newest: name, on_device: name, kept: Vec::new(), coming: None, retired }
    }

    /// Version that new sessions begin with.
    pub fn newest(&self) -> PolicyVersion {
        self.newest.version
    }

    /// Version of the weights that the device computes with.
    pub fn on_device(&self) -> PolicyVersion {
        self.on_device.version
    }

    /// The encoder of tiles that the device computes with.
    pub fn vision(&self) -> [u8; 32] {
        self.on_device.vision
    }

    fn retire(&self, weights: Incoming) {
        // A full bin means that they are taken apart here: late, and not never.
        if let Some(bin) = &self.retired
            && let Err(back) = bin.try_send(weights)
        {
            drop(back);
        }
    }
}

impl Engine {
    /// Version of the weights that a session runs on.
    pub(super) fn version_of(&self, session: &Session) -> PolicyVersion {
        session.pinned.unwrap_or(self.shelf.newest())
    }

    /// The version that a session which begins now keeps to, if it keeps to one.
    pub(super) fn pin(&self) -> Option<PolicyVersion> {
        (self.settings.swaps.on_swap == OnSwap::FinishOnOld).then(|| self.shelf.newest())
    }

    /// Remembers weights that shall take over. Those that still waited for it never will.
    pub(super) fn expect_weights(&mut self, new: NewWeights) {
        let NewWeights { version, vision, weights, done } = new;
        let coming = Coming { name: Name { version, vision }, weights: Some(weights), done };
        let newest = self.shelf.newest();
        if version <= newest {
            let why = format!("version {} is not newer than {}, which is in use", version.0, newest.0);
            return coming.refuse(WeightsError::Refused(why));
        }
        if let Some(waited) = self.shelf.coming.replace(coming) {
            let why = format!("version {} came before it took over", version.0);
            waited.refuse(WeightsError::Refused(why));
        }
    }

    /// Whether there are weights to be brought or exchanged now.
    pub(super) fn has_weights_to_take(&self) -> bool {
        self.shelf.coming.is_some() && self.has_room_for_old()
    }

    /// Whether the weights that sessions keep to are few enough for one more.
    fn has_room_for_old(&self) -> bool {
        let kept_to: BTreeSet<PolicyVersion> =
            self.sessions.values().filter_map(|session| session.pinned).collect();
        kept_to.len() <= self.settings.swaps.old_versions_max as usize
    }

    /// Brings some of the weights that are on their way; when all are there, they take over.
    pub(super) fn take_weights(&mut self) -> Result<(), DeviceLost> {
        self.retire_unused()?;
        if !self.has_weights_to_take() {
            return Ok(());
        }
        let Some(mut coming) = self.shelf.coming.take() else { return Ok(()) };
        let began = Instant::now();
        match self.bring_weights(&mut coming) {
            Ok(false) => {
                self.shelf.coming = Some(coming);
                Ok(())
            }
            Ok(true) => self.take_over(coming, began),
            Err(why) => {
                let lost = match &why {
                    WeightsError::Device(lost) => Err(lost.clone()),
                    _ => Ok(()),
                };
                coming.refuse(why);
                lost
            }
        }
    }

    /// Brings some of them; whether they are on the device now.
    fn bring_weights(&mut self, coming: &mut Coming) -> Result<bool, WeightsError> {
        if let Some(weights) = coming.weights.take() {
            self.device.stage(weights)?;
        }
        let is_whole = self.device.bring(self.settings.swaps.bring_bytes)?;
        if is_whole {
            self.exchange(coming.name)?;
        }
        Ok(is_whole)
    }

    /// Weights that are on the device are in use from now on.
    fn take_over(&mut self, coming: Coming, began: Instant) -> Result<(), DeviceLost> {
        self.shelf.newest = coming.name;
        // A state that is begun with one version and goes on with another is nobody's to start from.
        for session in self.sessions.values_mut().filter(|session| session.pinned.is_none()) {
            for (_, name) in session.step.iter_mut().flat_map(|step| step.promised.drain(..)) {
                self.snapshots.settle(&name);
            }
        }
        let pause_micros = began.elapsed().as_micros() as u64;
        let retired = self.retire_unused();
        let old_versions = self.shelf.kept.len() as u32;
        let swapped = Swapped { pause_micros, sessions: self.sessions.len() as u32, old_versions };
        // Whoever brought them may be gone; they are in use all the same.
        coming.done.send(Ok(swapped)).ok();
        retired
    }

    /// What is staged is on the device from now on.
    fn exchange(&mut self, name: Name) -> Result<(), WeightsError> {
        let old = self.device.swap()?;
        let was = std::mem::replace(&mut self.shelf.on_device, name);
        self.shelf.kept.extend(old.map(|weights| (was, weights)));
        Ok(())
    }

    /// Weights that were on their way to a device that is lost.
    pub(super) fn lose_weights(&mut self, lost: &DeviceLost) {
        if let Some(coming) = self.shelf.coming.take() {
            coming.refuse(lost.clone().into());
        }
    }

    /// Lets go of weights that no session keeps to.
    fn retire_unused(&mut self) -> Result<(), DeviceLost> {
        if self.shelf.kept.is_empty() {
            return Ok(());
        }
        let used: BTreeSet<PolicyVersion> =
            self.sessions.values().filter_map(|session| session.pinned).collect();
        let newest = self.shelf.newest();
        if !used.contains(&self.shelf.on_device()) {
            self.use_weights(newest)?;
        }
        let is_used = |name: &Name| name.version == newest || used.contains(&name.version);
        for (name, weights) in std::mem::take(&mut self.shelf.kept) {
            match is_used(&name) {
                true => self.shelf.kept.push((name, weights)),
                false => self.shelf.retire(weights),
            }
        }
        Ok(())
    }

    /// Versions that have spans to run, the oldest first.
    pub(super) fn versions_ready(&self) -> BTreeSet<PolicyVersion> {
        let ready = |session: &&Session| session.step.as_ref().is_some_and(|step| step.is_admitted);
        self.sessions.values().filter(ready).map(|session| self.version_of(session)).collect()
    }

    /// Has the weights of a version on the device. One that cannot compute with them any more is as good as lost.
    pub(super) fn use_weights(&mut self, version: PolicyVersion) -> Result<(), DeviceLost> {
        if self.shelf.on_device() == version {
            return Ok(());
        }
        let place = self.shelf.kept.iter().position(|(name, _)| name.version == version);
        let Some(place) = place else {
            // Settings keep this from happening: only with a backend that gives weights back do sessions keep to any.
            let why = format!("weights of version {} are gone, and sessions keep to them", version.0);
            return Err(DeviceLost(why));
        };
        let (name, weights) = self.shelf.kept.swap_remove(place);
        let exchanged = self
            .device
            .stage(weights)
            .and_then(|()| self.device.bring(u64::MAX))
            .and_then(|_| self.exchange(name));
        exchanged.map_err(|why| match why {
            WeightsError::Device(lost) => lost,
            why => DeviceLost(format!("weights of version {} did not come back: {why}", version.0)),
        })
    }

    /// Versions of weights that are held.
    #[cfg(test)]
    pub(super) fn versions_held(&self) -> BTreeSet<PolicyVersion> {
        let kept = self.shelf.kept.iter().map(|(name, _)| name.version);
        kept.chain([self.shelf.on_device()]).collect()
    }

    /// The version a session keeps to.
    #[cfg(test)]
    pub(super) fn pinned(&self, id: SessionId) -> Option<PolicyVersion> {
        self.sessions.get(&id)?.pinned
    }
}
