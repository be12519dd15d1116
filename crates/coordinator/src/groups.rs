//! Groups and their slots: which attempt a slot is at, when it is retried, when its group closes.

use std::collections::BTreeMap;
use std::sync::Arc;

use furrow_rollout::{
    EndKind, FaultOwner, GroupRecord, GroupStatistics, Id, PolicyKind, PolicyWorker, Run, Trajectory,
    TrajectoryAncestry,
};

use crate::ledger::TaskDraw;
use crate::version_range::merge_ranges;

/// A group that is not committed yet.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OpenGroup {
    draw: Arc<TaskDraw>,
    slots: Vec<GroupSlot>,
    /// Number of scored slots with which the group is complete.
    needed: u32,
    /// Failed attempts by end, over all slots.
    failed: BTreeMap<EndKind, u32>,
    /// The policy worker that keeps its sessions, and the kind of policy that makes its steps.
    /// Known from its first assignment.
    home: Option<GroupHome>,
    closed_at_micros: Option<i64>,
}

/// The policy worker a group stays with while that worker is registered, and the kind of policy,
/// which never changes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GroupHome {
    /// The worker of its newest session.
    pub worker: Id<PolicyWorker>,
    /// The kind of policy in all its slots.
    pub kind: PolicyKind,
}

/// One slot: at most one of its attempts ever scores.
#[derive(Debug, Clone, PartialEq)]
struct GroupSlot {
    attempts: u32,
    failures: SlotFailures,
    state: SlotState,
}

#[derive(Debug, Clone, PartialEq)]
enum SlotState {
    Free { since_millis: u64 },
    Taken,
    Scored { reward: f32, policy_versions: Option<(i32, i32)> },
    OutOfRetries,
}

/// Failed attempts at one slot, as far as they decide about the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct SlotFailures {
    counted: u32,
    cancelled: u32,
    hung: bool,
}

/// The next attempt at a free slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotAttempt {
    pub sample_index: u32,
    /// Number of earlier attempts.
    pub attempt: u32,
    /// When the slot became free.
    pub since_millis: u64,
}

/// This many cancelled attempts count as one failure: a drained or returned trajectory is no
/// failure of the task, yet a task that never ends in time must not be tried forever.
const CANCELLED_WEIGHT: u32 = 4;

impl OpenGroup {
    /// A group with all slots free, of which it needs `needed` scored.
    pub(crate) fn new(draw: Arc<TaskDraw>, needed: u32, now_millis: u64) -> Self {
        let free = GroupSlot {
            attempts: 0,
            failures: SlotFailures::default(),
            state: SlotState::Free { since_millis: now_millis },
        };
        let slots = vec![free; draw.group_size as usize];
        Self { draw, slots, needed, failed: BTreeMap::new(), home: None, closed_at_micros: None }
    }

    /// The draw of its task.
    pub(crate) fn draw(&self) -> &Arc<TaskDraw> {
        &self.draw
    }

    /// The policy worker that keeps its sessions.
    pub(crate) fn home(&self) -> Option<&GroupHome> {
        self.home.as_ref()
    }

    /// Whether its row is final.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed_at_micros.is_some()
    }

    /// Whether as many slots are scored as it needs.
    pub(crate) fn has_enough(&self) -> bool {
        let scored = |slot: &&GroupSlot| matches!(slot.state, SlotState::Scored { .. });
        self.slots.iter().filter(scored).count() >= self.needed as usize
    }

    /// The lowest free slot, while the group needs one. A closed group needs none, even where a
    /// scored record was lost since.
    pub(crate) fn next_attempt(&self) -> Option<SlotAttempt> {
        if self.is_closed() || self.has_enough() {
            return None;
        }
        let free = |(index, slot): (usize, &GroupSlot)| match slot.state {
            SlotState::Free { since_millis } => {
                Some(SlotAttempt { sample_index: index as u32, attempt: slot.attempts, since_millis })
            }
            _ => None,
        };
        self.slots.iter().enumerate().find_map(free)
    }

    /// Records that a slot's next attempt is leased; from now on its group's home is `home`.
    pub(crate) fn take(&mut self, sample_index: u32, home: GroupHome) {
        let slot = &mut self.slots[sample_index as usize];
        slot.attempts += 1;
        slot.state = SlotState::Taken;
        self.home = Some(home);
    }

    /// Stops the group: it needs no more than it has.
    pub(crate) fn give_up(&mut self) {
        self.needed = 0;
    }

    /// Whether an earlier attempt at the slot ended in `page_hang`.
    pub(crate) fn hung_before(&self, sample_index: u32) -> bool {
        self.slots[sample_index as usize].failures.hung
    }

    /// Records that the slot's scored attempt lost its record. Returns whether the slot is tried
    /// again.
    pub(crate) fn lose_record(&mut self, sample_index: u32, attempts_max: u32, now_millis: u64) -> bool {
        // No longer scored, so that the group may count as incomplete.
        self.slots[sample_index as usize].state = SlotState::Taken;
        self.fail(sample_index, EndKind::RecordLost, attempts_max, now_millis)
    }

    /// Records that the slot's attempt failed. Returns whether the slot is tried again.
    pub(crate) fn fail(
        &mut self,
        sample_index: u32,
        end: EndKind,
        attempts_max: u32,
        now_millis: u64,
    ) -> bool {
        *self.failed.entry(end).or_default() += 1;
        let has_enough = self.has_enough();
        let is_closed = self.is_closed();
        let slot = &mut self.slots[sample_index as usize];
        slot.failures.add(end);
        let is_retried = slot.failures.weight() < attempts_max && !has_enough && !is_closed;
        slot.state =
            if is_retried { SlotState::Free { since_millis: now_millis } } else { SlotState::OutOfRetries };
        is_retried
    }

    /// Records the reward of the slot's attempt.
    pub(crate) fn score(&mut self, sample_index: u32, reward: f32, policy_versions: Option<(i32, i32)>) {
        self.slots[sample_index as usize].state = SlotState::Scored { reward, policy_versions };
    }

    /// Whether every slot is scored or out of retries, or enough are scored and none is taken, and
    /// the group is not closed yet.
    pub(crate) fn may_close(&self) -> bool {
        let has_enough = self.has_enough();
        let settled = |slot: &GroupSlot| match slot.state {
            SlotState::Scored { .. } | SlotState::OutOfRetries => true,
            SlotState::Free { .. } => has_enough,
            SlotState::Taken => false,
        };
        !self.is_closed() && self.slots.iter().all(settled)
    }

    /// Closes the group: it takes no more attempts.
    pub(crate) fn close(&mut self, at_micros: i64) {
        self.closed_at_micros = Some(at_micros);
    }

    /// Its row, once it is closed.
    pub(crate) fn record(&self, run_id: &Id<Run>) -> Option<GroupRecord> {
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

    /// Run, group, slot and attempt of one trajectory.
    pub(crate) fn ancestry(&self, run_id: &Id<Run>, sample_index: u32, attempt: u32) -> TrajectoryAncestry {
        let group_id = self.draw.group_id.clone();
        TrajectoryAncestry {
            run_id: run_id.clone(),
            trajectory_id: Id::<Trajectory>::attempt(&group_id, sample_index, attempt),
            group_id,
            sample_index,
            attempt,
        }
    }

    fn rewards(&self) -> Vec<f32> {
        let reward = |slot: &GroupSlot| match slot.state {
            SlotState::Scored { reward, .. } => Some(reward),
            _ => None,
        };
        self.slots.iter().filter_map(reward).collect()
    }

    /// Oldest and newest policy version among the tokens of the scored trajectories.
    fn policy_versions(&self) -> Option<(i32, i32)> {
        self.slots.iter().fold(None, |range, slot| match slot.state {
            SlotState::Scored { policy_versions, .. } => merge_ranges(range, policy_versions),
            _ => range,
        })
    }
}

impl SlotFailures {
    fn add(&mut self, end: EndKind) {
        match end {
            EndKind::Cancelled => self.cancelled += 1,
            _ => self.counted += 1,
        }
        self.hung |= end == EndKind::PageHang;
    }

    fn weight(self) -> u32 {
        self.counted + self.cancelled / CANCELLED_WEIGHT
    }
}

/// Maps an environment's report to the recorded end and to whose fault it is.
///
/// A first hang is the farm's fault, a recurring one at the slot the policy's. One of the policy's
/// own ends without evidence cannot be scored and becomes `page_crash`.
pub(crate) fn classify_end(end: EndKind, hung_before: bool, has_evidence: bool) -> (EndKind, FaultOwner) {
    match end.fault(hung_before) {
        FaultOwner::Policy if !has_evidence => (EndKind::PageCrash, FaultOwner::Farm),
        fault => (end, fault),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_rollout::Split;

    fn group(slots: u32) -> OpenGroup {
        let run = Id::new("r").unwrap();
        let draw = TaskDraw {
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
        OpenGroup::new(Arc::new(draw), slots, 0)
    }

    fn home() -> GroupHome {
        GroupHome { worker: Id::new("p").unwrap(), kind: PolicyKind::Random }
    }

    #[test]
    fn an_end_is_attributed_to_the_farm_or_the_policy() {
        use EndKind::*;
        let table = [
            // reported, hung before, evidence → recorded, fault
            (Answered, false, true, Answered, FaultOwner::Policy),
            (Done, false, true, Done, FaultOwner::Policy),
            (MaxSteps, true, true, MaxSteps, FaultOwner::Policy),
            (ContextFull, false, true, ContextFull, FaultOwner::Policy),
            (Unparsable, false, true, Unparsable, FaultOwner::Policy),
            (OffListNavigation, false, true, OffListNavigation, FaultOwner::Policy),
            (MaxTime, false, true, MaxTime, FaultOwner::Policy),
            (ScriptLoop, false, true, ScriptLoop, FaultOwner::Policy),
            (Answered, false, false, PageCrash, FaultOwner::Farm),
            (MaxSteps, true, false, PageCrash, FaultOwner::Farm),
            (PageHang, false, true, PageHang, FaultOwner::Farm),
            (PageHang, false, false, PageHang, FaultOwner::Farm),
            (PageHang, true, true, PageHang, FaultOwner::Policy),
            (PageHang, true, false, PageCrash, FaultOwner::Farm),
            (EnvCrash, false, true, EnvCrash, FaultOwner::Farm),
            (Blocked, true, true, Blocked, FaultOwner::Farm),
            (PolicyFault, false, true, PolicyFault, FaultOwner::Farm),
            (Cancelled, false, true, Cancelled, FaultOwner::Farm),
        ];
        for (end, hung, evidence, want_end, want_fault) in table {
            assert_eq!(
                classify_end(end, hung, evidence),
                (want_end, want_fault),
                "{end:?} hung={hung} evidence={evidence}"
            );
        }
    }

    /// Fails slot 0 with these ends, with three attempts allowed, and checks after each whether
    /// there is another attempt.
    #[track_caller]
    fn check(ends: &[EndKind], want: &[bool]) {
        let mut group = group(1);
        let retried: Vec<bool> = ends
            .iter()
            .map(|end| {
                group.take(0, home());
                group.fail(0, *end, 3, 0)
            })
            .collect();
        assert_eq!(retried, want, "{ends:?}");
        assert_eq!(group.may_close(), want.last() == Some(&false));
    }

    #[test]
    fn a_slot_is_tried_again_within_its_budget() {
        use EndKind::*;
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
        group.fail(0, EndKind::PageHang, 3, 0);
        assert!(group.hung_before(0));
        assert!(!group.hung_before(1));
    }

    #[test]
    fn a_group_closes_when_every_slot_is_settled_and_says_what_happened() {
        let mut group = group(3);
        let run = Id::new("r").unwrap();
        assert_eq!(group.next_attempt(), Some(SlotAttempt { sample_index: 0, attempt: 0, since_millis: 0 }));
        for slot in 0..3 {
            group.take(slot, home());
        }
        assert_eq!(group.next_attempt(), None);
        group.score(0, 1.0, Some((3, 4)));
        assert!(group.fail(1, EndKind::LeaseLost, 3, 50));
        assert_eq!(group.next_attempt(), Some(SlotAttempt { sample_index: 1, attempt: 1, since_millis: 50 }));
        group.take(1, home());
        group.score(1, 0.0, Some((5, 5)));
        assert!(!group.may_close());
        assert!(group.fail(2, EndKind::EnvCrash, 2, 60));
        group.take(2, home());
        assert!(!group.fail(2, EndKind::EnvCrash, 2, 70));
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
