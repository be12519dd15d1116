//! Leases: which worker holds which trajectory, under which token and secret, until when by the
//! coordinator's monotonic clock.

use std::collections::{BTreeMap, VecDeque};

use furrow_rollout::{EnvWorker, Id, LeaseProof, Trajectory, TrajectoryAncestry};

use crate::lease_secret::SecretDigest;
use crate::ledger::{PolicyFacts, TrajectoryStart};
use crate::version_range::merge_ranges;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Lease {
    /// How it started, including its token and the digest of its secret.
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

/// Why a call about a trajectory is refused. The caller does not learn it: one that may not act for
/// a trajectory must not learn whether that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StaleLease {
    /// Its lease is over or never existed.
    NotLeased,
    /// It is leased under another token.
    OtherToken,
    /// The caller knows the token and is not the worker that it was given to.
    OtherWorker,
    /// The caller may be that worker, and does not know the secret that came with the token.
    OtherSecret,
}

/// Recently acknowledged ends, so that a repeated call gets the same answer as the first. Bounded:
/// a worker repeats a call within minutes; a later repetition is refused with a stale token, which
/// loses nothing.
#[derive(Debug, Clone, PartialEq, Default)]
struct AcknowledgedEnds {
    ends: BTreeMap<Id<Trajectory>, AcknowledgedEnd>,
    order: VecDeque<Id<Trajectory>>,
}

#[derive(Debug, Clone, PartialEq)]
struct AcknowledgedEnd {
    /// The worker that had the lease, its token and its secret.
    worker: Id<EnvWorker>,
    token: u64,
    secret: Option<SecretDigest>,
    /// SHA-256 of the encoded ending.
    digest: [u8; 32],
}

/// Twice 1000 sessions; 300 bytes each make 0.6 MB.
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
        proof: &LeaseProof,
        is_holder: impl Fn(&Id<EnvWorker>) -> bool,
        expires_millis: u64,
    ) -> Result<&mut Lease, StaleLease> {
        let fencing = self.believed.is_none();
        let former = self.believed.as_mut().and_then(|former| former.get_mut(&proof.trajectory_id));
        let lease = self.leases.get_mut(&proof.trajectory_id).or(former).ok_or(StaleLease::NotLeased)?;
        if fencing {
            let TrajectoryStart { token, env_worker, secret, .. } = &lease.start;
            check_proof(proof, is_holder, (*token, env_worker, secret.as_ref()))?;
        }
        lease.expires_millis = lease.expires_millis.max(expires_millis);
        Ok(lease)
    }

    /// Ends the lease a caller acts under and remembers the acknowledged end.
    pub(crate) fn finish(
        &mut self,
        proof: &LeaseProof,
        is_holder: impl Fn(&Id<EnvWorker>) -> bool,
        digest: [u8; 32],
    ) -> Result<Lease, StaleLease> {
        let lease = self.renew(proof, is_holder, 0)?.clone();
        self.acknowledged.remember(&lease.start, digest);
        self.leases.remove(&proof.trajectory_id);
        Ok(lease)
    }

    /// Whether this same end of the caller was acknowledged before; `Some(false)` means that
    /// another end was.
    pub(crate) fn acknowledged(
        &self,
        proof: &LeaseProof,
        is_holder: impl Fn(&Id<EnvWorker>) -> bool,
        digest: [u8; 32],
    ) -> Option<bool> {
        let end = self.acknowledged.ends.get(&proof.trajectory_id)?;
        let checked = check_proof(proof, is_holder, (end.token, &end.worker, end.secret.as_ref()));
        checked.ok().map(|()| end.digest == digest)
    }

    /// Whether an end of the caller was acknowledged under this lease.
    pub(crate) fn has_ended(&self, proof: &LeaseProof, is_holder: impl Fn(&Id<EnvWorker>) -> bool) -> bool {
        self.acknowledged(proof, is_holder, [0; 32]).is_some()
    }

    /// Restores an end that an earlier coordinator acknowledged.
    pub(crate) fn restore_acknowledged(&mut self, start: &TrajectoryStart, digest: [u8; 32]) {
        self.acknowledged.remember(start, digest);
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

impl StaleLease {
    /// The reason, for the coordinator's own log.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            StaleLease::NotLeased => "not leased",
            StaleLease::OtherToken => "other token",
            StaleLease::OtherWorker => "other worker",
            StaleLease::OtherSecret => "other secret",
        }
    }
}

/// Whether a caller may act under a lease that was given to this worker with this token and
/// secret.
fn check_proof(
    proof: &LeaseProof,
    is_holder: impl Fn(&Id<EnvWorker>) -> bool,
    (token, worker, secret): (u64, &Id<EnvWorker>, Option<&SecretDigest>),
) -> Result<(), StaleLease> {
    if token != proof.token {
        return Err(StaleLease::OtherToken);
    }
    if !is_holder(worker) {
        return Err(StaleLease::OtherWorker);
    }
    match secret {
        Some(digest) if digest.is_of(&proof.secret) => Ok(()),
        _ => Err(StaleLease::OtherSecret),
    }
}

impl AcknowledgedEnds {
    fn remember(&mut self, start: &TrajectoryStart, digest: [u8; 32]) {
        let trajectory = &start.trajectory_id;
        let end = AcknowledgedEnd {
            worker: start.env_worker.clone(),
            token: start.token,
            secret: start.secret,
            digest,
        };
        if self.ends.insert(trajectory.clone(), end).is_none() {
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
    use furrow_rollout::{LEASE_SECRET_BYTES, LeaseSecret, PolicyHashes, PolicyKind};

    fn id(name: &str) -> Id<Trajectory> {
        Id::new(name).unwrap()
    }

    /// The secret of the lease under a token.
    fn secret(token: u64) -> LeaseSecret {
        LeaseSecret::new([token as u8; LEASE_SECRET_BYTES])
    }

    fn proof(name: &str, token: u64) -> LeaseProof {
        LeaseProof { trajectory_id: id(name), token, secret: secret(token) }
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
            secret: Some(SecretDigest::of(&secret(token))),
        };
        Lease { start, of, group: 0, expires_millis, policy, steps: 0, policy_versions: None }
    }

    fn two() -> LeaseTable {
        let mut leases = LeaseTable::new(true);
        leases.insert(lease("a", 1, 100));
        leases.insert(lease("b", 2, 200));
        leases
    }

    fn is_own(worker: &Id<EnvWorker>) -> bool {
        worker.as_str() == "e"
    }

    fn is_strangers(worker: &Id<EnvWorker>) -> bool {
        worker.as_str() == "stranger"
    }

    type Caller = fn(&Id<EnvWorker>) -> bool;

    /// Every way to be wrong, before and after the end of the lease.
    #[test]
    fn only_the_holder_with_token_and_secret_is_accepted() {
        let of = |name: &str, token, secret| LeaseProof { trajectory_id: id(name), token, secret };
        let none = LeaseSecret::new([0; LEASE_SECRET_BYTES]);
        let table: [(&str, LeaseProof, Caller, Result<(), StaleLease>); 9] = [
            ("its own", proof("a", 1), is_own, Ok(())),
            ("an older token", of("a", 0, secret(1)), is_own, Err(StaleLease::OtherToken)),
            ("a newer token", of("a", 2, secret(1)), is_own, Err(StaleLease::OtherToken)),
            ("an empty secret", of("a", 1, none.clone()), is_own, Err(StaleLease::OtherSecret)),
            ("the secret of another lease", of("a", 1, secret(2)), is_own, Err(StaleLease::OtherSecret)),
            ("another worker", proof("a", 1), is_strangers, Err(StaleLease::OtherWorker)),
            ("another worker and secret", of("a", 1, none), is_strangers, Err(StaleLease::OtherWorker)),
            ("another's lease", proof("b", 1), is_own, Err(StaleLease::OtherToken)),
            ("no lease", proof("c", 1), is_own, Err(StaleLease::NotLeased)),
        ];
        for (what, proof, caller, want) in &table {
            let mut leases = two();
            assert_eq!(leases.renew(proof, caller, 999).map(|_| ()), *want, "{what}");
            let expires = leases.get_mut(&id("a")).map(|lease| lease.expires_millis);
            assert_eq!(expires, Some(if want.is_ok() { 999 } else { 100 }), "{what} and its renewal");
            assert_eq!(leases.finish(proof, caller, [7; 32]).map(|_| ()), *want, "{what}");
        }
        let mut leases = two();
        leases.finish(&proof("a", 1), is_own, [7; 32]).unwrap();
        for (what, proof, caller, want) in &table {
            let is_same = want.is_ok().then_some(true);
            assert_eq!(leases.acknowledged(proof, caller, [7; 32]), is_same, "{what}, after the end");
            assert_eq!(leases.has_ended(proof, caller), want.is_ok(), "{what}, after the end");
            assert!(leases.finish(proof, caller, [7; 32]).is_err(), "{what} ends it twice");
        }
    }

    /// A lease of a release that gave no secrets.
    #[test]
    fn a_lease_without_a_secret_is_refused() {
        let mut leases = LeaseTable::new(true);
        let mut older = lease("a", 1, 100);
        older.start.secret = None;
        leases.restore_acknowledged(&older.start, [7; 32]);
        leases.insert(older);
        assert_eq!(leases.renew(&proof("a", 1), is_own, 0).map(|_| ()), Err(StaleLease::OtherSecret));
        assert_eq!(leases.acknowledged(&proof("a", 1), is_own, [7; 32]), None);
    }

    #[test]
    fn a_lease_lapses_at_its_time_and_its_token_with_it() {
        let mut leases = two();
        assert_eq!(leases.lapse(99), []);
        leases.renew(&proof("a", 1), is_own, 150).unwrap();
        assert_eq!(leases.lapse(100), []);
        let lapsed = leases.lapse(150);
        assert_eq!(lapsed.iter().map(|lease| lease.start.token).collect::<Vec<_>>(), [1]);
        assert_eq!(leases.renew(&proof("a", 1), is_own, 999).unwrap_err(), StaleLease::NotLeased);
        assert_eq!(leases.len(), 1);
    }

    #[test]
    fn a_call_never_shortens_a_lease() {
        let mut leases = two();
        assert_eq!(leases.renew(&proof("b", 2), is_own, 10).unwrap().expires_millis, 200);
    }

    #[test]
    fn without_fencing_the_old_holder_is_believed() {
        let mut leases = LeaseTable::new(false);
        leases.insert(lease("a", 1, 100));
        assert_eq!(leases.lapse(100).len(), 1);
        assert!(leases.finish(&proof("a", 1), is_own, [0; 32]).is_ok());
    }

    #[test]
    fn an_end_is_recognised_when_it_comes_again() {
        let mut leases = two();
        leases.finish(&proof("a", 1), is_own, [7; 32]).unwrap();
        assert_eq!(leases.finish(&proof("a", 1), is_own, [7; 32]).unwrap_err(), StaleLease::NotLeased);
        assert_eq!(leases.acknowledged(&proof("a", 1), is_own, [7; 32]), Some(true));
        assert_eq!(leases.acknowledged(&proof("a", 1), is_own, [8; 32]), Some(false));
        assert_eq!(leases.acknowledged(&proof("a", 2), is_own, [7; 32]), None);
        assert_eq!(leases.acknowledged(&proof("b", 2), is_own, [7; 32]), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut leases = LeaseTable::new(true);
        for number in 0..=ACKNOWLEDGED_MAX {
            leases.restore_acknowledged(&lease(&format!("t{number}"), 1, 0).start, [0; 32]);
        }
        assert!(!leases.has_ended(&proof("t0", 1), is_own));
        assert!(leases.has_ended(&proof("t1", 1), is_own));
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
