//! Decides which policy worker a trajectory goes to, whether another one may start, and how many
//! steps the first ones may take. Plain functions of what is known.

use std::collections::BTreeMap;

use furrow_rollout::{Id, PolicyHashes, PolicyKind, PolicyWorker};

use crate::groups::GroupHome;
use crate::ledger::PolicyFacts;

/// A policy worker that can take sessions.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyOffer {
    /// `host:port` that environment workers connect to.
    pub address: String,
    /// The kind of policy it runs.
    pub kind: PolicyKind,
    /// Sessions it holds at once.
    pub sessions_max: u32,
    /// Version of its weights.
    pub version: Option<i32>,
    /// Hashes of what the policy consists of.
    pub hashes: PolicyHashes,
}

/// Registered policy workers and the number of sessions of each.
#[derive(Debug, Clone, Default)]
pub(crate) struct WorkerCapacity<'a> {
    workers: BTreeMap<&'a Id<PolicyWorker>, (&'a PolicyOffer, u32)>,
}

/// Paces the admission of new trajectories by the version of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionPacing {
    /// Trajectories a trainer consumes for one version.
    pub trajectories_per_version: u64,
    /// Versions a trajectory may be behind when it ends.
    pub max_off_policy_versions: u64,
}

/// Step limits of a job's first trajectories, for a measurement: they are spread evenly over all
/// lengths, so that trajectories that start together soon have evenly spread ages, as they would
/// after hours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FirstSteps {
    pub sessions: u32,
}

impl FirstSteps {
    /// The limit of slot `sample_index` of group `group`, with `slots` slots per group, where the
    /// task's own limit is `max_steps`.
    ///
    /// The first `sessions` slots of the job get ceil((n + 1) x `max_steps` / `sessions`) steps, n
    /// from 0: values from 1 to `max_steps`, each as often as any other to within one. The limit
    /// depends only on the slot's position in the job, so a retry keeps it, with any worker and
    /// after any number of restarts.
    pub(crate) fn limit(self, group: u64, slots: u32, sample_index: u32, max_steps: u32) -> u32 {
        let nth = u128::from(group) * u128::from(slots) + u128::from(sample_index) + 1;
        let sessions = u128::from(self.sessions);
        if nth >= sessions {
            return max_steps;
        }
        (nth * u128::from(max_steps)).div_ceil(sessions) as u32
    }
}

impl AdmissionPacing {
    /// Trajectories that may have been accepted or be running at this version; those that a trainer
    /// discarded do not count.
    pub fn allowed(self, version: Option<i32>) -> u64 {
        let version = version.map_or(0, |version| version.max(0) as u64);
        version
            .saturating_add(self.max_off_policy_versions)
            .saturating_add(1)
            .saturating_mul(self.trajectories_per_version)
    }

    /// Whether one more may start, given the number that were accepted and not discarded.
    pub fn admits(self, accepted: u64, running: u64, version: Option<i32>) -> bool {
        accepted.saturating_add(running) < self.allowed(version)
    }
}

impl<'a> WorkerCapacity<'a> {
    /// Capacity of these workers; `sessions` names the worker of each existing session.
    pub(crate) fn new<'b>(
        workers: impl Iterator<Item = (&'a Id<PolicyWorker>, &'a PolicyOffer)>,
        sessions: impl Iterator<Item = &'b Id<PolicyWorker>>,
    ) -> Self {
        let mut workers: BTreeMap<_, _> = workers.map(|(id, offer)| (id, (offer, 0))).collect();
        for worker in sessions {
            if let Some((_, taken)) = workers.get_mut(worker) {
                *taken += 1;
            }
        }
        Self { workers }
    }

    /// The worker for a group's next slot: its home while that worker is registered (the slot waits
    /// if it is full), otherwise the least loaded worker of its kind.
    pub(crate) fn for_group(&self, home: Option<&GroupHome>) -> Option<PolicyFacts> {
        match home {
            Some(home) if self.workers.contains_key(&home.worker) => self.available_worker(&home.worker),
            Some(home) => self.least_loaded(Some(home.kind)),
            None => self.least_loaded(None),
        }
    }

    /// The worker with the smallest share of its sessions taken; ties go to the lower id.
    pub(crate) fn least_loaded(&self, kind: Option<PolicyKind>) -> Option<PolicyFacts> {
        self.least_loaded_where(kind, |_| true)
    }

    /// The same among the workers that satisfy the predicate.
    pub(crate) fn least_loaded_where(
        &self,
        kind: Option<PolicyKind>,
        will_do: impl Fn(&PolicyOffer) -> bool,
    ) -> Option<PolicyFacts> {
        let fits = |offer: &PolicyOffer, taken: u32| {
            taken < offer.sessions_max && kind.is_none_or(|kind| offer.kind == kind) && will_do(offer)
        };
        // a / b < c / d without rounding: a × d < c × b
        let share = |taken: u32, other: &PolicyOffer| u64::from(taken) * u64::from(other.sessions_max);
        let mut best: Option<(&Id<PolicyWorker>, &PolicyOffer, u32)> = None;
        for (id, (offer, taken)) in self.workers.iter().filter(|(_, (offer, taken))| fits(offer, *taken)) {
            if best.is_none_or(|(_, chosen, load)| share(*taken, chosen) < share(load, offer)) {
                best = Some((id, offer, *taken));
            }
        }
        best.map(|(id, offer, _)| facts(id, offer))
    }

    /// Adds one session to a worker.
    pub(crate) fn add(&mut self, worker: &Id<PolicyWorker>) {
        if let Some((_, taken)) = self.workers.get_mut(worker) {
            *taken += 1;
        }
    }

    fn available_worker(&self, worker: &Id<PolicyWorker>) -> Option<PolicyFacts> {
        let (offer, taken) = self.workers.get(worker)?;
        (*taken < offer.sessions_max).then(|| facts(worker, offer))
    }
}

/// A policy worker as it is now, for the ledger.
pub(crate) fn facts(worker: &Id<PolicyWorker>, offer: &PolicyOffer) -> PolicyFacts {
    PolicyFacts {
        worker: worker.clone(),
        address: offer.address.clone(),
        kind: offer.kind,
        version: offer.version,
        hashes: offer.hashes.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admission_is_paced_by_versions() {
        let pacing = |trajectories_per_version, max_off_policy_versions| AdmissionPacing {
            trajectories_per_version,
            max_off_policy_versions,
        };
        let table = [
            // per version, behind, version, accepted, running → admitted
            (8, 0, None, 0, 0, true),
            (8, 0, None, 3, 4, true),
            (8, 0, None, 4, 4, false),
            (8, 0, Some(0), 8, 0, false),
            (8, 0, Some(1), 8, 7, true),
            (8, 0, Some(1), 8, 8, false),
            (8, 2, Some(0), 20, 3, true),
            (8, 2, Some(0), 20, 4, false),
            (8, 0, Some(-1), 7, 0, true),
            (u64::MAX, u64::MAX, Some(i32::MAX), u64::MAX - 1, 0, true),
        ];
        for (per, behind, version, accepted, running, want) in table {
            assert_eq!(
                pacing(per, behind).admits(accepted, running, version),
                want,
                "{accepted} + {running} at {version:?} with {per} a version, {behind} behind"
            );
        }
    }

    #[test]
    fn the_first_limits_are_spread_evenly_and_the_rest_is_whole() {
        let limits = |sessions: u32, slots: u32, max_steps: u32, count: u32| -> Vec<u32> {
            let first = FirstSteps { sessions };
            let limit = |nth: u32| first.limit(u64::from(nth / slots), slots, nth % slots, max_steps);
            (0..count).map(limit).collect()
        };
        assert_eq!(limits(5, 1, 10, 7), [2, 4, 6, 8, 10, 10, 10]);
        assert_eq!(limits(4, 4, 30, 6), [8, 15, 23, 30, 30, 30]);
        assert_eq!(limits(6, 2, 3, 8), [1, 1, 2, 2, 3, 3, 3, 3]);
        assert_eq!(limits(1, 1, 30, 3), [30, 30, 30]);
        assert_eq!(limits(8, 3, 1, 9), [1; 9]);
        // 100 sessions and 30 steps: each length 3 or 4 times, in groups of any size.
        for slots in [1, 4, 7] {
            let all = limits(100, slots, 30, 140);
            for length in 1..30 {
                let count = all.iter().filter(|limit| **limit == length).count();
                assert!((3..=4).contains(&count), "{count} of {length} steps");
            }
            assert!(all.iter().all(|limit| (1..=30).contains(limit)) && all[100..] == [30; 40]);
        }
        let last = FirstSteps { sessions: u32::MAX };
        assert_eq!(last.limit(0, 1, 0, u32::MAX), 1);
        assert_eq!(last.limit(u64::MAX, u32::MAX, u32::MAX, u32::MAX), u32::MAX);
    }

    /// Workers as `name:kind:taken/max`, separated by spaces; the home as `name:kind`.
    #[track_caller]
    fn check(workers: &str, home: Option<&str>, want: Option<&str>) {
        let kind = |kind_text| PolicyKind::parse(kind_text).unwrap();
        let parsed: Vec<(Id<PolicyWorker>, PolicyOffer, u32)> = workers
            .split_whitespace()
            .map(|text| {
                let (name, rest) = text.split_once(':').unwrap();
                let (policy_kind, load) = rest.split_once(':').unwrap();
                let (taken, max) = load.split_once('/').unwrap();
                let offer = PolicyOffer {
                    address: format!("{name}:1"),
                    kind: kind(policy_kind),
                    sessions_max: max.parse().unwrap(),
                    version: None,
                    hashes: PolicyHashes::default(),
                };
                (Id::new(name).unwrap(), offer, taken.parse().unwrap())
            })
            .collect();
        let sessions = parsed.iter().flat_map(|(id, _, taken)| (0..*taken).map(move |_| id));
        let capacity = WorkerCapacity::new(parsed.iter().map(|(id, offer, _)| (id, offer)), sessions);
        let home = home.map(|text| {
            let (name, policy_kind) = text.split_once(':').unwrap();
            GroupHome { worker: Id::new(name).unwrap(), kind: kind(policy_kind) }
        });
        let got = capacity.for_group(home.as_ref()).map(|facts| facts.worker.to_string());
        assert_eq!(got.as_deref(), want, "{workers} with home {home:?}");
    }

    #[test]
    fn groups_stay_together_and_new_ones_go_to_the_least_loaded_worker() {
        check("", None, None);
        check("a:random:0/4", None, Some("a"));
        check("a:random:1/4 b:random:0/4", None, Some("b"));
        check("a:random:1/4 b:random:1/2", None, Some("a"));
        check("a:random:1/2 b:random:2/4", None, Some("a"));
        check("a:random:4/4 b:random:2/2", None, None);
        check("a:random:4/4 b:random:1/2", None, Some("b"));
        check("a:random:3/4 b:random:0/4", Some("a:random"), Some("a"));
        check("a:random:4/4 b:random:0/4", Some("a:random"), None);
        check("b:random:0/4", Some("a:random"), Some("b"));
        check("b:scripted:0/4", Some("a:random"), None);
        check("b:scripted:0/4 c:random:3/4", Some("a:random"), Some("c"));
        check("a:random:0/0", None, None);
    }
}
