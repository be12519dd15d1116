//! Leases: which worker holds which trajectory, under which token, until when by the coordinator's
//! monotonic clock.

use std::collections::{BTreeMap, VecDeque};

use furrow_rollout::{EnvWorker, Id, Trajectory, TrajectoryAncestry};

use crate::ledger::{PolicyFacts, TrajectoryStart};
use crate::version_range::merge_ranges;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Lease {
    /// How it started, including its token.
    pub start: TrajectoryStart,
    /// Its run, group, slot and attempt.
    pub of: TrajectoryAncestry,
    /// Number of its group.
    pub group: u64,
    /// The lease expires at this time unless it is renewed.
    pub expires_millis: u64,
    /// The policy worker that serves it now.
    pub policy: PolicyFacts,
    /// Steps that are durable.
    pub steps: u32,
    /// Oldest and newest policy version among their tokens.
    pub policy_versions: Option<(i32, i32)>,
}

/// All leased trajectories, and the most recently acknowledged ends.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LeaseTable {
    leases: BTreeMap<Id<Trajectory>, Lease>,
    acknowledged: AcknowledgedEnds,
    /// Former lease holders that are still accepted, where a test plants the bug of a farm without
    /// fencing tokens.
    believed: Option<BTreeMap<Id<Trajectory>, Lease>>,
}

/// Why a call about a trajectory is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StaleLease {
    /// Its lease is over or never existed.
    NotLeased,
    /// It is leased under another token.
    OtherToken { current: u64 },
    /// The caller knows the token and is not the worker that it was given to.
    OtherWorker,
}

/// Recently acknowledged ends, so that a repeated call gets the same answer as the first. Bounded:
/// a worker repeats a call within minutes; a later repetition is refused with a stale token, which
/// loses nothing.
#[derive(Debug, Clone, PartialEq, Default)]
struct AcknowledgedEnds {
    ends: BTreeMap<Id<Trajectory>, (u64, [u8; 32])>,
    order: VecDeque<Id<Trajectory>>,
}

/// Twice 1000 sessions; 200 bytes each make 0.4 MB.
const ACKNOWLEDGED_MAX: usize = 2048;

impl LeaseTable {
    pub(crate) fn new(fencing: bool) -> Self {
        let believed = (!fencing).then(BTreeMap::new);
        Self { leases: BTreeMap::new(), acknowledged: AcknowledgedEnds::default(), believed }
    }

    pub(crate) fn insert(&mut self, lease: Lease) {
        self.leases.insert(lease.start.trajectory_id.clone(), lease);
    }

    /// Renews and returns the lease a caller acts under: recording a step proves that its worker is
    /// alive.
    pub(crate) fn renew(
        &mut self,
        trajectory: &Id<Trajectory>,
        token: u64,
        is_holder: impl Fn(&Id<EnvWorker>) -> bool,
        expires_millis: u64,
    ) -> Result<&mut Lease, StaleLease> {
        let fencing = self.believed.is_none();
        let former = self.believed.as_mut().and_then(|former| former.get_mut(trajectory));
        let lease = self.leases.get_mut(trajectory).or(former).ok_or(StaleLease::NotLeased)?;
        if fencing && lease.start.token != token {
            return Err(StaleLease::OtherToken { current: lease.start.token });
        }
        if fencing && !is_holder(&lease.start.env_worker) {
            return Err(StaleLease::OtherWorker);
        }
        lease.expires_millis = lease.expires_millis.max(expires_millis);
        Ok(lease)
    }

    /// Ends the lease a caller acts under and remembers the acknowledged end.
    pub(crate) fn finish(
        &mut self,
        trajectory: &Id<Trajectory>,
        token: u64,
        is_holder: impl Fn(&Id<EnvWorker>) -> bool,
        digest: [u8; 32],
    ) -> Result<Lease, StaleLease> {
        let lease = self.renew(trajectory, token, is_holder, 0)?.clone();
        self.acknowledged.remember(trajectory, token, digest);
        self.leases.remove(trajectory);
        Ok(lease)
    }

    /// Whether this same end was acknowledged before; `Some(false)` means that another end was.
    pub(crate) fn acknowledged(
        &self,
        trajectory: &Id<Trajectory>,
        token: u64,
        digest: [u8; 32],
    ) -> Option<bool> {
        let (ended_token, ended_digest) = self.acknowledged.ends.get(trajectory)?;
        (*ended_token == token).then_some(*ended_digest == digest)
    }

    /// Whether an end was acknowledged under this token.
    pub(crate) fn has_ended(&self, trajectory: &Id<Trajectory>, token: u64) -> bool {
        self.acknowledged.ends.get(trajectory).is_some_and(|(ended_token, _)| *ended_token == token)
    }

    /// Restores an end that an earlier coordinator acknowledged.
    pub(crate) fn restore_acknowledged(&mut self, trajectory: &Id<Trajectory>, token: u64, digest: [u8; 32]) {
        self.acknowledged.remember(trajectory, token, digest);
    }

    /// Removes the expired leases, lowest id first. From then on their tokens are stale.
    pub(crate) fn lapse(&mut self, now_millis: u64) -> Vec<Lease> {
        let lapsed = self.take_where(|lease| lease.expires_millis <= now_millis);
        if let Some(believed) = &mut self.believed {
            let ids = lapsed.iter().map(|lease| lease.start.trajectory_id.clone());
            believed.extend(ids.zip(lapsed.iter().cloned()));
        }
        lapsed
    }

    /// Removes all leases that match, in order of their ids.
    pub(crate) fn take_where(&mut self, is_over: impl Fn(&Lease) -> bool) -> Vec<Lease> {
        let over: Vec<_> =
            self.leases.iter().filter(|(_, lease)| is_over(lease)).map(|(id, _)| id.clone()).collect();
        over.iter().filter_map(|id| self.leases.remove(id)).collect()
    }

    /// The lease of a trajectory.
    pub(crate) fn get_mut(&mut self, trajectory: &Id<Trajectory>) -> Option<&mut Lease> {
        self.leases.get_mut(trajectory)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.leases.values()
    }

    /// All leases, to move them to another policy worker.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Lease> {
        self.leases.values_mut()
    }

    pub(crate) fn len(&self) -> usize {
        self.leases.len()
    }
}

impl Lease {
    /// Records that a step is durable. A repeated step counts once.
    pub(crate) fn keep_step(&mut self, step: u32, policy_versions: Option<(i32, i32)>) {
        self.steps = self.steps.max(step + 1);
        self.policy_versions = merge_ranges(self.policy_versions, policy_versions);
    }

    /// Whether its policy worker differs from the one in its assignment.
    pub(crate) fn was_moved(&self) -> bool {
        self.policy.address != self.start.policy.address
    }
}

impl AcknowledgedEnds {
    fn remember(&mut self, trajectory: &Id<Trajectory>, token: u64, digest: [u8; 32]) {
        if self.ends.insert(trajectory.clone(), (token, digest)).is_none() {
            self.order.push_back(trajectory.clone());
        }
        if self.order.len() > ACKNOWLEDGED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.ends.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_rollout::{PolicyHashes, PolicyKind};

    fn id(name: &str) -> Id<Trajectory> {
        Id::new(name).unwrap()
    }

    fn lease(name: &str, token: u64, expires_millis: u64) -> Lease {
        let policy = PolicyFacts {
            worker: Id::new("p").unwrap(),
            address: "here:1".into(),
            kind: PolicyKind::Random,
            version: None,
            hashes: PolicyHashes::default(),
        };
        let of = TrajectoryAncestry {
            run_id: Id::new("r").unwrap(),
            group_id: Id::new("g").unwrap(),
            sample_index: 0,
            attempt: 0,
            trajectory_id: id(name),
        };
        let start = TrajectoryStart {
            trajectory_id: id(name),
            group_id: of.group_id.clone(),
            sample_index: 0,
            attempt: 0,
            token,
            env_worker: Id::new("e").unwrap(),
            policy: policy.clone(),
            at_micros: 0,
            queue_micros: 0,
        };
        Lease { start, of, group: 0, expires_millis, policy, steps: 0, policy_versions: None }
    }

    fn two() -> LeaseTable {
        let mut leases = LeaseTable::new(true);
        leases.insert(lease("a", 1, 100));
        leases.insert(lease("b", 2, 200));
        leases
    }

    #[test]
    fn only_the_current_token_is_believed() {
        let mut leases = two();
        let table = [
            ("a", 1, Ok(())),
            ("a", 0, Err(StaleLease::OtherToken { current: 1 })),
            ("a", 2, Err(StaleLease::OtherToken { current: 1 })),
            ("b", 2, Ok(())),
            ("c", 1, Err(StaleLease::NotLeased)),
        ];
        for (name, token, want) in table {
            assert_eq!(leases.renew(&id(name), token, |_| true, 0).map(|_| ()), want, "{name} {token}");
        }
    }

    #[test]
    fn the_token_alone_does_not_make_a_holder() {
        let mut leases = two();
        let stranger = |holder: &Id<EnvWorker>| holder.as_str() == "stranger";
        assert_eq!(leases.renew(&id("a"), 1, stranger, 999).map(|_| ()), Err(StaleLease::OtherWorker));
        assert_eq!(leases.finish(&id("a"), 1, stranger, [0; 32]).map(|_| ()), Err(StaleLease::OtherWorker));
        assert_eq!(leases.get_mut(&id("a")).map(|lease| lease.expires_millis), Some(100));
        // Who comes late with an old token learns that, so that it gives the lease up.
        let late = leases.renew(&id("a"), 0, stranger, 999).map(|_| ());
        assert_eq!(late, Err(StaleLease::OtherToken { current: 1 }));
    }

    #[test]
    fn a_lease_lapses_at_its_time_and_its_token_with_it() {
        let mut leases = two();
        assert_eq!(leases.lapse(99), []);
        leases.renew(&id("a"), 1, |_| true, 150).unwrap();
        assert_eq!(leases.lapse(100), []);
        let lapsed = leases.lapse(150);
        assert_eq!(lapsed.iter().map(|lease| lease.start.token).collect::<Vec<_>>(), [1]);
        assert_eq!(leases.renew(&id("a"), 1, |_| true, 999).unwrap_err(), StaleLease::NotLeased);
        assert_eq!(leases.len(), 1);
    }

    #[test]
    fn a_call_never_shortens_a_lease() {
        let mut leases = two();
        assert_eq!(leases.renew(&id("b"), 2, |_| true, 10).unwrap().expires_millis, 200);
    }

    #[test]
    fn without_fencing_the_old_holder_is_believed() {
        let mut leases = LeaseTable::new(false);
        leases.insert(lease("a", 1, 100));
        assert_eq!(leases.lapse(100).len(), 1);
        assert!(leases.finish(&id("a"), 1, |_| true, [0; 32]).is_ok());
    }

    #[test]
    fn an_end_is_recognised_when_it_comes_again() {
        let mut leases = two();
        leases.finish(&id("a"), 1, |_| true, [7; 32]).unwrap();
        assert_eq!(leases.finish(&id("a"), 1, |_| true, [7; 32]).unwrap_err(), StaleLease::NotLeased);
        assert_eq!(leases.acknowledged(&id("a"), 1, [7; 32]), Some(true));
        assert_eq!(leases.acknowledged(&id("a"), 1, [8; 32]), Some(false));
        assert_eq!(leases.acknowledged(&id("a"), 2, [7; 32]), None);
        assert_eq!(leases.acknowledged(&id("b"), 2, [7; 32]), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut leases = LeaseTable::new(true);
        for number in 0..=ACKNOWLEDGED_MAX {
            leases.restore_acknowledged(&id(&format!("t{number}")), 1, [0; 32]);
        }
        assert!(!leases.has_ended(&id("t0"), 1));
        assert!(leases.has_ended(&id("t1"), 1));
        assert_eq!(leases.acknowledged.ends.len(), ACKNOWLEDGED_MAX);
    }

    #[test]
    fn a_repeated_step_counts_once() {
        let mut lease = lease("a", 1, 0);
        lease.keep_step(0, None);
        lease.keep_step(1, Some((4, 5)));
        lease.keep_step(1, Some((4, 5)));
        lease.keep_step(2, Some((3, 4)));
        assert_eq!((lease.steps, lease.policy_versions), (3, Some((3, 5))));
    }
}
