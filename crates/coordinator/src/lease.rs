//! Leases: who holds which trajectory, under which token, until when by the coordinator's monotonic clock.

use std::collections::{BTreeMap, VecDeque};

use furrow_rollout::{Ancestry, Id, Trajectory};

use crate::groups::span;
use crate::ledger::{PolicyFacts, Start};

/// A trajectory that is lent.
#[derive(Debug, Clone, PartialEq)]
pub struct Lease {
    /// How it began; its token is in there.
    pub start: Start,
    /// Where it belongs.
    pub of: Ancestry,
    /// Number of its group.
    pub group: u64,
    /// It is lost when nobody has spoken for it by then.
    pub expires_millis: u64,
    /// The policy worker it is with now.
    pub policy: PolicyFacts,
    /// Steps that are durable.
    pub steps: u32,
    /// Oldest and newest policy version among their tokens.
    pub policy_versions: Option<(i32, i32)>,
}

/// All trajectories that are lent, and the ends that were acknowledged last.
#[derive(Debug, Clone, PartialEq)]
pub struct Leases {
    lent: BTreeMap<Id<Trajectory>, Lease>,
    acknowledged: Acknowledged,
    /// Where a test plants the bug of a farm without fencing tokens: former holders, who are still believed.
    believed: Option<BTreeMap<Id<Trajectory>, Lease>>,
}

/// Why a call about a trajectory is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stale {
    /// Its lease is over or never was.
    NotLent,
    /// It is lent under another token.
    OtherToken {
        /// The newer one.
        current: u64,
    },
}

/// Ends acknowledged lately, so that a repeated call is answered as the first was. Bounded: a worker repeats a call within minutes,
/// and one that comes later is told that its token is stale, which loses nothing either.
#[derive(Debug, Clone, PartialEq, Default)]
struct Acknowledged {
    ends: BTreeMap<Id<Trajectory>, (u64, [u8; 32])>,
    order: VecDeque<Id<Trajectory>>,
}

/// Twice 1000 sessions; 200 bytes each make 0.4 MB.
const ACKNOWLEDGED_MAX: usize = 2048;

impl Leases {
    /// Nothing is lent.
    pub fn new(fencing: bool) -> Self {
        let believed = (!fencing).then(BTreeMap::new);
        Self { lent: BTreeMap::new(), acknowledged: Acknowledged::default(), believed }
    }

    /// Lends a trajectory.
    pub fn lend(&mut self, lease: Lease) {
        self.lent.insert(lease.start.trajectory_id.clone(), lease);
    }

    /// The lease a caller speaks for, prolonged: whoever records a step is alive.
    pub fn renew(
        &mut self,
        trajectory: &Id<Trajectory>,
        token: u64,
        expires_millis: u64,
    ) -> Result<&mut Lease, Stale> {
        let fencing = self.believed.is_none();
        let former = self.believed.as_mut().and_then(|former| former.get_mut(trajectory));
        let lease = self.lent.get_mut(trajectory).or(former).ok_or(Stale::NotLent)?;
        if fencing && lease.start.token != token {
            return Err(Stale::OtherToken { current: lease.start.token });
        }
        lease.expires_millis = lease.expires_millis.max(expires_millis);
        Ok(lease)
    }

    /// Ends the lease a caller speaks for and remembers what was acknowledged under it.
    pub fn finish(
        &mut self,
        trajectory: &Id<Trajectory>,
        token: u64,
        digest: [u8; 32],
    ) -> Result<Lease, Stale> {
        let lease = self.renew(trajectory, token, 0)?.clone();
        self.acknowledged.remember(trajectory, token, digest);
        self.lent.remove(trajectory);
        Ok(lease)
    }

    /// Whether the very end was acknowledged before: `Some(false)` means another end was.
    pub fn acknowledged(&self, trajectory: &Id<Trajectory>, token: u64, digest: [u8; 32]) -> Option<bool> {
        let (ended_token, ended_digest) = self.acknowledged.ends.get(trajectory)?;
        (*ended_token == token).then_some(*ended_digest == digest)
    }

    /// Whether an end was acknowledged under this token.
    pub fn has_ended(&self, trajectory: &Id<Trajectory>, token: u64) -> bool {
        self.acknowledged.ends.get(trajectory).is_some_and(|(ended_token, _)| *ended_token == token)
    }

    /// Remembers an end that an earlier coordinator acknowledged.
    pub fn recall(&mut self, trajectory: &Id<Trajectory>, token: u64, digest: [u8; 32]) {
        self.acknowledged.remember(trajectory, token, digest);
    }

    /// Takes back the leases that ran out, oldest id first. From then on their tokens are stale.
    pub fn lapse(&mut self, now_millis: u64) -> Vec<Lease> {
        let lapsed = self.take_where(|lease| lease.expires_millis <= now_millis);
        if let Some(believed) = &mut self.believed {
            let ids = lapsed.iter().map(|lease| lease.start.trajectory_id.clone());
            believed.extend(ids.zip(lapsed.iter().cloned()));
        }
        lapsed
    }

    /// Takes back all leases of which this is true, in the order of their ids.
    pub fn take_where(&mut self, is_over: impl Fn(&Lease) -> bool) -> Vec<Lease> {
        let over: Vec<_> =
            self.lent.iter().filter(|(_, lease)| is_over(lease)).map(|(id, _)| id.clone()).collect();
        over.iter().filter_map(|id| self.lent.remove(id)).collect()
    }

    /// One lease.
    pub fn get_mut(&mut self, trajectory: &Id<Trajectory>) -> Option<&mut Lease> {
        self.lent.get_mut(trajectory)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.lent.values()
    }

    /// All of them, to move them to another policy worker.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Lease> {
        self.lent.values_mut()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lent.len()
    }
}

impl Lease {
    /// A step became durable. A repeated one is counted once.
    pub fn keep_step(&mut self, step: u32, policy_versions: Option<(i32, i32)>) {
        self.steps = self.steps.max(step + 1);
        self.policy_versions = span(self.policy_versions, policy_versions);
    }

    /// Whether its environment worker was told of another policy worker when it was lent.
    pub fn was_moved(&self) -> bool {
        self.policy.address != self.start.policy.address
    }
}

impl Acknowledged {
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
    use furrow_rollout::{Hashes, PolicyKind};

    fn id(name: &str) -> Id<Trajectory> {
        Id::new(name).unwrap()
    }

    fn lease(name: &str, token: u64, expires_millis: u64) -> Lease {
        let policy = PolicyFacts {
            worker: Id::new("p").unwrap(),
            address: "here:1".into(),
            kind: PolicyKind::Random,
            version: None,
            hashes: Hashes::default(),
        };
        let of = Ancestry {
            run_id: Id::new("r").unwrap(),
            group_id: Id::new("g").unwrap(),
            sample_index: 0,
            attempt: 0,
            trajectory_id: id(name),
        };
        let start = Start {
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

    fn two() -> Leases {
        let mut leases = Leases::new(true);
        leases.lend(lease("a", 1, 100));
        leases.lend(lease("b", 2, 200));
        leases
    }

    #[test]
    fn only_the_current_token_is_believed() {
        let mut leases = two();
        let table = [
            ("a", 1, Ok(())),
            ("a", 0, Err(Stale::OtherToken { current: 1 })),
            ("a", 2, Err(Stale::OtherToken { current: 1 })),
            ("b", 2, Ok(())),
            ("c", 1, Err(Stale::NotLent)),
        ];
        for (name, token, want) in table {
            assert_eq!(leases.renew(&id(name), token, 0).map(|_| ()), want, "{name} {token}");
        }
    }

    #[test]
    fn a_lease_lapses_at_its_time_and_its_token_with_it() {
        let mut leases = two();
        assert_eq!(leases.lapse(99), []);
        leases.renew(&id("a"), 1, 150).unwrap();
        assert_eq!(leases.lapse(100), []);
        let lapsed = leases.lapse(150);
        assert_eq!(lapsed.iter().map(|lease| lease.start.token).collect::<Vec<_>>(), [1]);
        assert_eq!(leases.renew(&id("a"), 1, 999).unwrap_err(), Stale::NotLent);
        assert_eq!(leases.len(), 1);
    }

    #[test]
    fn a_call_never_shortens_a_lease() {
        let mut leases = two();
        assert_eq!(leases.renew(&id("b"), 2, 10).unwrap().expires_millis, 200);
    }

    #[test]
    fn without_fencing_the_old_holder_is_believed() {
        let mut leases = Leases::new(false);
        leases.lend(lease("a", 1, 100));
        assert_eq!(leases.lapse(100).len(), 1);
        assert!(leases.finish(&id("a"), 1, [0; 32]).is_ok());
    }

    #[test]
    fn an_end_is_recognised_when_it_comes_again() {
        let mut leases = two();
        leases.finish(&id("a"), 1, [7; 32]).unwrap();
        assert_eq!(leases.finish(&id("a"), 1, [7; 32]).unwrap_err(), Stale::NotLent);
        assert_eq!(leases.acknowledged(&id("a"), 1, [7; 32]), Some(true));
        assert_eq!(leases.acknowledged(&id("a"), 1, [8; 32]), Some(false));
        assert_eq!(leases.acknowledged(&id("a"), 2, [7; 32]), None);
        assert_eq!(leases.acknowledged(&id("b"), 2, [7; 32]), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut leases = Leases::new(true);
        for number in 0..=ACKNOWLEDGED_MAX {
            leases.recall(&id(&format!("t{number}")), 1, [0; 32]);
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
