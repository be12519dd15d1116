//! Groups and their slots: which attempt a slot is at, when it is tried again, when its group closes.

use std::collections::BTreeMap;
use std::sync::Arc;

use furrow_rollout::{
    Ancestry, End, Fault, GroupRecord, GroupStatistics, Id, PolicyKind, PolicyWorker, Run, Trajectory,
};

use crate::ledger::Draw;

/// A group that is not published yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    draw: Arc<Draw>,
    slots: Vec<Slot>,
    /// Scored slots with which it is done.
    needed: u32,
    /// Failed attempts by end, over all slots.
    failed: BTreeMap<End, u32>,
    /// Where its sessions are kept together, and what kind of policy makes its steps. Known from its first assignment.
    home: Option<Home>,
    closed_at_micros: Option<i64>,
}

/// The policy worker a group stays with while it lives, and the kind it never leaves.
#[derive(Debug, Clone, PartialEq)]
pub struct Home {
    /// Where its newest session was opened.
    pub worker: Id<PolicyWorker>,
    /// What acts in all its slots.
    pub kind: PolicyKind,
}

/// One slot: at most one of its attempts ever scores.
#[derive(Debug, Clone, PartialEq)]
struct Slot {
    attempts: u32,
    failures: Failures,
    state: SlotState,
}

#[derive(Debug, Clone, PartialEq)]
enum SlotState {
    Free { since_millis: u64 },
    Taken,
    Scored { reward: f32, policy_versions: Option<(i32, i32)> },
    OutOfRetries,
}

/// Failed attempts at one slot, so far as they decide about the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Failures {
    counted: u32,
    cancelled: u32,
    hung: bool,
}

/// The next attempt at a free slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// The slot.
    pub sample_index: u32,
    /// Attempts before it.
    pub attempt: u32,
    /// When the slot became free.
    pub since_millis: u64,
}

/// So many cancelled attempts weigh as one failure: a drained or handed-back trajectory is nobody's failure, yet a task that never
/// ends in time must not be tried for ever.
const CANCELLED_WEIGHT: u32 = 4;

impl Group {
    /// A group with all slots free, of which so many are needed.
    pub fn new(draw: Arc<Draw>, needed: u32, now_millis: u64) -> Self {
        let free = Slot {
            attempts: 0,
            failures: Failures::default(),
            state: SlotState::Free { since_millis: now_millis },
        };
        let slots = vec![free; draw.group_size as usize];
        Self { draw, slots, needed, failed: BTreeMap::new(), home: None, closed_at_micros: None }
    }

    /// How it began.
    pub fn draw(&self) -> &Arc<Draw> {
        &self.draw
    }

    /// Where its sessions are kept together.
    pub fn home(&self) -> Option<&Home> {
        self.home.as_ref()
    }

    /// Whether its row is final.
    pub fn is_closed(&self) -> bool {
        self.closed_at_micros.is_some()
    }

    /// Whether as many slots are scored as it needs.
    pub fn has_enough(&self) -> bool {
        let scored = |slot: &&Slot| matches!(slot.state, SlotState::Scored { .. });
        self.slots.iter().filter(scored).count() >= self.needed as usize
    }

    /// The lowest free slot, while it needs one. A closed group needs none, also where a scored record was lost since.
    pub fn next_attempt(&self) -> Option<Attempt> {
        if self.is_closed() || self.has_enough() {
            return None;
        }
        let free = |(index, slot): (usize, &Slot)| match slot.state {
            SlotState::Free { since_millis } => {
                Some(Attempt { sample_index: index as u32, attempt: slot.attempts, since_millis })
            }
            _ => None,
        };
        self.slots.iter().enumerate().find_map(free)
    }

    /// A slot's next attempt is lent; its group lives at `home` from now on.
    pub fn take(&mut self, sample_index: u32, home: Home) {
        let slot = &mut self.slots[sample_index as usize];
        slot.attempts += 1;
        slot.state = SlotState::Taken;
        self.home = Some(home);
    }

    /// Nobody needs more of it than there is.
    pub fn give_up(&mut self) {
        self.needed = 0;
    }

    /// Whether an earlier attempt at the slot ended in `page_hang`.
    pub fn hung_before(&self, sample_index: u32) -> bool {
        self.slots[sample_index as usize].failures.hung
    }

    /// The slot's attempt was scored, and its record is lost. Answers whether it is tried again.
    pub fn lose_record(&mut self, sample_index: u32, attempts_max: u32, now_millis: u64) -> bool {
        // Not scored any more, so that the group may lack it.
        self.slots[sample_index as usize].state = SlotState::Taken;
        self.fail(sample_index, End::RecordLost, attempts_max, now_millis)
    }

    /// The slot's attempt failed. Answers whether it is tried again.
    pub fn fail(&mut self, sample_index: u32, end: End, attempts_max: u32, now_millis: u64) -> bool {
        *self.failed.entry(end).or_default() += 1;
        let (has_enough, is_closed) = (self.has_enough(), self.is_closed());
        let slot = &mut self.slots[sample_index as usize];
        slot.failures.add(end);
        let again = slot.failures.weight() < attempts_max && !has_enough && !is_closed;
        slot.state =
            if again { SlotState::Free { since_millis: now_millis } } else { SlotState::OutOfRetries };
        again
    }

    /// The slot's attempt has its reward.
    pub fn score(&mut self, sample_index: u32, reward: f32, policy_versions: Option<(i32, i32)>) {
        self.slots[sample_index as usize].state = SlotState::Scored { reward, policy_versions };
    }

    /// Whether every slot is scored or out of retries, or enough are scored and none is taken; and nobody has written that down yet.
    pub fn may_close(&self) -> bool {
        let has_enough = self.has_enough();
        let settled = |slot: &Slot| match slot.state {
            SlotState::Scored { .. } | SlotState::OutOfRetries => true,
            SlotState::Free { .. } => has_enough,
            SlotState::Taken => false,
        };
        !self.is_closed() && self.slots.iter().all(settled)
    }

    /// It takes no more attempts.
    pub fn close(&mut self, at_micros: i64) {
        self.closed_at_micros = Some(at_micros);
    }

    /// Its row, once it is closed.
    pub fn record(&self, run_id: &Id<Run>) -> Option<GroupRecord> {
        let closed_at_micros = self.closed_at_micros?;
        let rewards = self.rewards();
        Some(GroupRecord {
            run_id: run_id.clone(),
            group_id: self.draw.group_id.clone(),
            task_id: self.draw.task_id.clone(),
            suite: self.draw.suite.clone(),
            split: self.draw.split,
            seed: self.draw.seed,
            planned: self.draw.group_size,
            valid: rewards.len() as u32,
            failed: self.failed.iter().map(|(end, count)| (end.as_str().to_owned(), *count)).collect(),
            rewards: GroupStatistics::of(&rewards),
            policy_versions: self.policy_versions(),
            closed_at_micros,
        })
    }

    /// Where one attempt belongs.
    pub fn ancestry(&self, run_id: &Id<Run>, sample_index: u32, attempt: u32) -> Ancestry {
        let group_id = self.draw.group_id.clone();
        Ancestry {
            run_id: run_id.clone(),
            trajectory_id: Id::<Trajectory>::attempt(&group_id, sample_index, attempt),
            group_id,
            sample_index,
            attempt,
        }
    }

    fn rewards(&self) -> Vec<f32> {
        let reward = |slot: &Slot| match slot.state {
            SlotState::Scored { reward, .. } => Some(reward),
            _ => None,
        };
        self.slots.iter().filter_map(reward).collect()
    }

    /// Oldest and newest policy version among the tokens of the scored trajectories.
    fn policy_versions(&self) -> Option<(i32, i32)> {
        self.slots.iter().fold(None, |range, slot| match slot.state {
            SlotState::Scored { policy_versions, .. } => span(range, policy_versions),
            _ => range,
        })
    }
}

impl Failures {
    fn add(&mut self, end: End) {
        match end {
            End::Cancelled => self.cancelled += 1,
            _ => self.counted += 1,
        }
        self.hung |= end == End::PageHang;
    }

    fn weight(self) -> u32 {
        self.counted + self.cancelled / CANCELLED_WEIGHT
    }
}

/// What an environment's report comes to: the end that is recorded and whose doing it is.
///
/// A hang is the farm's the first time and the policy's own when it recurs at the slot; an end of the policy's own that left no
/// evidence cannot be scored and becomes `page_crash`.
pub fn judge(end: End, hung_before: bool, has_evidence: bool) -> (End, Fault) {
    match end.fault(hung_before) {
        Fault::Policy if !has_evidence => (End::PageCrash, Fault::Farm),
        fault => (end, fault),
    }
}

/// The range that holds both.
pub fn span(a: Option<(i32, i32)>, b: Option<(i32, i32)>) -> Option<(i32, i32)> {
    match (a, b) {
        (Some((a_min, a_max)), Some((b_min, b_max))) => Some((a_min.min(b_min), a_max.max(b_max))),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_rollout::Split;

    fn group(slots: u32) -> Group {
        let run = Id::new("r").unwrap();
        let draw = Draw {
            group_id: Id::nth(&run, 0),
            index: 0,
            suite: "starter".into(),
            task_id: "click".into(),
            split: Split::Train,
            seed: 7,
            group_size: slots,
            task_json: "{}".into(),
            chance: None,
            problem: None,
            at_micros: 0,
        };
        Group::new(Arc::new(draw), slots, 0)
    }

    fn home() -> Home {
        Home { worker: Id::new("p").unwrap(), kind: PolicyKind::Random }
    }

    #[test]
    fn whose_doing_an_end_is() {
        use End::*;
        let table = [
            // reported, hung before, evidence → recorded, fault
            (Answered, false, true, Answered, Fault::Policy),
            (Done, false, true, Done, Fault::Policy),
            (MaxSteps, true, true, MaxSteps, Fault::Policy),
            (ContextFull, false, true, ContextFull, Fault::Policy),
            (Unparsable, false, true, Unparsable, Fault::Policy),
            (OffListNavigation, false, true, OffListNavigation, Fault::Policy),
            (Answered, false, false, PageCrash, Fault::Farm),
            (MaxSteps, true, false, PageCrash, Fault::Farm),
            (PageHang, false, true, PageHang, Fault::Farm),
            (PageHang, false, false, PageHang, Fault::Farm),
            (PageHang, true, true, PageHang, Fault::Policy),
            (PageHang, true, false, PageCrash, Fault::Farm),
            (EnvCrash, false, true, EnvCrash, Fault::Farm),
            (Blocked, true, true, Blocked, Fault::Farm),
            (PolicyFault, false, true, PolicyFault, Fault::Farm),
            (Cancelled, false, true, Cancelled, Fault::Farm),
        ];
        for (end, hung, evidence, want_end, want_fault) in table {
            assert_eq!(
                judge(end, hung, evidence),
                (want_end, want_fault),
                "{end:?} hung={hung} evidence={evidence}"
            );
        }
    }

    /// Fails slot 0 with these ends, three attempts allowed, and tells after each whether there is another.
    #[track_caller]
    fn check(ends: &[End], want: &[bool]) {
        let mut group = group(1);
        let again: Vec<bool> = ends
            .iter()
            .map(|end| {
                group.take(0, home());
                group.fail(0, *end, 3, 0)
            })
            .collect();
        assert_eq!(again, want, "{ends:?}");
        assert_eq!(group.may_close(), want.last() == Some(&false));
    }

    #[test]
    fn a_slot_is_tried_again_within_its_budget() {
        use End::*;
        check(&[LeaseLost, EnvCrash, PageCrash], &[true, true, false]);
        check(&[PageHang, PageCrash], &[true, true]);
        check(&[Cancelled; 4], &[true; 4]);
        check(&[EnvCrash, EnvCrash, Cancelled, Cancelled, Cancelled], &[true; 5]);
        check(
            &[EnvCrash, EnvCrash, Cancelled, Cancelled, Cancelled, Cancelled],
            &[true, true, true, true, true, false],
        );
        let mut twelve = [true; 12];
        twelve[11] = false;
        check(&[Cancelled; 12], &twelve);
    }

    #[test]
    fn a_hang_is_remembered_at_its_slot_alone() {
        let mut group = group(2);
        group.take(0, home());
        group.fail(0, End::PageHang, 3, 0);
        assert!(group.hung_before(0));
        assert!(!group.hung_before(1));
    }

    #[test]
    fn a_group_closes_when_every_slot_is_settled_and_says_what_happened() {
        let mut group = group(3);
        let run = Id::new("r").unwrap();
        assert_eq!(group.next_attempt(), Some(Attempt { sample_index: 0, attempt: 0, since_millis: 0 }));
        for slot in 0..3 {
            group.take(slot, home());
        }
        assert_eq!(group.next_attempt(), None);
        group.score(0, 1.0, Some((3, 4)));
        assert!(group.fail(1, End::LeaseLost, 3, 50));
        assert_eq!(group.next_attempt(), Some(Attempt { sample_index: 1, attempt: 1, since_millis: 50 }));
        group.take(1, home());
        group.score(1, 0.0, Some((5, 5)));
        assert!(!group.may_close());
        assert!(group.fail(2, End::EnvCrash, 2, 60));
        group.take(2, home());
        assert!(!group.fail(2, End::EnvCrash, 2, 70));
        assert!(group.may_close());
        assert_eq!(group.record(&run), None);
        group.close(99);
        assert!(!group.may_close());
        let row = group.record(&run).unwrap();
        assert_eq!((row.planned, row.valid, row.policy_versions), (3, 2, Some((3, 5))));
        assert_eq!(row.failed, BTreeMap::from([("env_crash".into(), 2), ("lease_lost".into(), 1)]));
        assert_eq!(row.rewards, GroupStatistics::of(&[1.0, 0.0]));
        assert_eq!(row.closed_at_micros, 99);
    }
}
