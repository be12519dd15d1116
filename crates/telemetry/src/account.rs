//! The time account: attributes every microsecond of a trajectory, of a worker's slots, and of a
//! policy worker's device to exactly one cause.
//!
//! An account is in exactly one cause at any moment. Time is added in one place only, on leaving a
//! cause, by the clock and not by the caller; so the parts add up to the total, whatever the calls
//! are. An account also adds to the process's metrics what it attributes, so the dashboard and the
//! data set agree.

use furrow_rollout::{TimeCause, TimeSplit};

use crate::ProcessMetrics;
use crate::labels::{DeviceUse, IdleCause, Label, SlotUse};
use crate::names::process_metrics;

/// Where the time of one trajectory goes, from [`SessionAccount::open`] to
/// [`SessionAccount::close`].
#[derive(Debug)]
#[must_use = "an account that is not closed leaves its last time unattributed"]
pub struct SessionAccount {
    cause: TimeCause,
    since_micros: u64,
    life: TimeSplit,
    marked: TimeSplit,
    figures: &'static ProcessMetrics,
}

/// Where the time of a worker's slots goes: each slot is busy with a trajectory, or idle for the
/// one cause that holds for all idle slots.
#[derive(Debug)]
pub struct WorkerAccount {
    slots: u32,
    busy: u32,
    idle_cause: IdleCause,
    since_micros: u64,
    figures: &'static ProcessMetrics,
}

/// Where the time of a device goes, from the opening of the account.
#[derive(Debug)]
pub struct DeviceAccount {
    used: DeviceUse,
    since_micros: u64,
    time: DeviceTime,
    figures: &'static ProcessMetrics,
}

/// Microseconds by device use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceTime {
    micros: [u64; DeviceUse::ALL.len()],
}

impl SessionAccount {
    /// Opens the account in this cause.
    pub fn open(cause: TimeCause, now_micros: u64) -> Self {
        Self::open_in(process_metrics(), cause, now_micros)
    }

    fn open_in(figures: &'static ProcessMetrics, cause: TimeCause, now_micros: u64) -> Self {
        let empty = TimeSplit::default();
        Self { cause, since_micros: now_micros, life: empty, marked: empty, figures }
    }

    /// Attributes the time from now on to this cause.
    pub fn enter(&mut self, cause: TimeCause, now_micros: u64) {
        self.attribute(now_micros);
        self.cause = cause;
    }

    pub fn cause(&self) -> TimeCause {
        self.cause
    }

    /// The time since the last mark, or since the opening: the split of a step. The cause stays the
    /// same.
    pub fn mark(&mut self, now_micros: u64) -> TimeSplit {
        self.attribute(now_micros);
        std::mem::take(&mut self.marked)
    }

    /// The whole time of the account: the sum of all marks and of the time after the last one.
    pub fn close(mut self, now_micros: u64) -> TimeSplit {
        self.attribute(now_micros);
        self.life
    }

    /// The only place where time is added. A clock that goes back counts as stopped until it has
    /// caught up.
    fn attribute(&mut self, now_micros: u64) {
        let elapsed = now_micros.saturating_sub(self.since_micros);
        self.since_micros += elapsed;
        self.life.add(self.cause, elapsed);
        self.marked.add(self.cause, elapsed);
        self.figures.session_micros.at(self.cause).add(elapsed);
    }
}

impl WorkerAccount {
    /// Opens with all slots idle.
    pub fn open(slots: u32, cause: IdleCause, now_micros: u64) -> Self {
        Self::open_in(process_metrics(), slots, cause, now_micros)
    }

    fn open_in(figures: &'static ProcessMetrics, slots: u32, idle_cause: IdleCause, now_micros: u64) -> Self {
        figures.slots.add(slots.into());
        Self { slots, busy: 0, idle_cause, since_micros: now_micros, figures }
    }

    /// Marks one more slot as busy with a trajectory.
    ///
    /// # Panics
    /// If no slot is idle: a worker that admits more than its slots has a bug that no metric should
    /// hide.
    pub fn occupy(&mut self, now_micros: u64) {
        assert!(self.busy < self.slots, "all {} slots are busy", self.slots);
        self.attribute(now_micros);
        self.busy += 1;
        self.figures.slots_busy.add(1);
    }

    /// Marks one slot as idle again.
    ///
    /// # Panics
    /// If no slot is busy.
    pub fn release(&mut self, now_micros: u64) {
        assert!(self.busy > 0, "no slot is busy");
        self.attribute(now_micros);
        self.busy -= 1;
        self.figures.slots_busy.add(-1);
    }

    /// Attributes idle slots to this cause from now on.
    pub fn set_idle_cause(&mut self, cause: IdleCause, now_micros: u64) {
        self.attribute(now_micros);
        self.idle_cause = cause;
    }

    /// Updates the metrics to now. Called before an export, so that a long idle time shows while it
    /// lasts.
    pub fn tick(&mut self, now_micros: u64) {
        self.attribute(now_micros);
    }

    /// Number of slots with a trajectory.
    pub fn busy(&self) -> u32 {
        self.busy
    }

    /// Number of idle slots.
    pub fn idle(&self) -> u32 {
        self.slots - self.busy
    }

    /// The only place where slot time is added: slots × elapsed, split between busy and one idle
    /// cause.
    fn attribute(&mut self, now_micros: u64) {
        let elapsed = now_micros.saturating_sub(self.since_micros);
        self.since_micros += elapsed;
        let idle: SlotUse = self.idle_cause.into();
        self.figures.slot_micros.at(SlotUse::Busy).add(elapsed * u64::from(self.busy));
        self.figures.slot_micros.at(idle).add(elapsed * u64::from(self.idle()));
    }
}

impl DeviceAccount {
    /// Opens idle, without work.
    pub fn open(now_micros: u64) -> Self {
        Self::open_in(process_metrics(), now_micros)
    }

    fn open_in(figures: &'static ProcessMetrics, now_micros: u64) -> Self {
        Self { used: DeviceUse::NoWork, since_micros: now_micros, time: DeviceTime::default(), figures }
    }

    /// Attributes the time from now on to this use.
    pub fn enter(&mut self, used: DeviceUse, now_micros: u64) {
        self.attribute(now_micros);
        self.used = used;
    }

    /// The time since the opening of the account.
    pub fn until(&mut self, now_micros: u64) -> DeviceTime {
        self.attribute(now_micros);
        self.time
    }

    /// The only place where a device's time is added.
    fn attribute(&mut self, now_micros: u64) {
        let elapsed = now_micros.saturating_sub(self.since_micros);
        self.since_micros += elapsed;
        self.time.micros[self.used.index()] += elapsed;
        self.figures.device_micros.at(self.used).add(elapsed);
    }
}

impl DeviceTime {
    /// Microseconds of one use.
    pub fn micros_of(&self, used: DeviceUse) -> u64 {
        self.micros[used.index()]
    }

    /// Microseconds of all uses.
    pub fn total(&self) -> u64 {
        self.micros.iter().sum()
    }

    /// The time added after an earlier reading of the same account.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut micros = self.micros;
        micros.iter_mut().zip(earlier.micros).for_each(|(micros, earlier)| *micros -= earlier);
        Self { micros }
    }
}

impl Drop for WorkerAccount {
    /// The slots end with their worker.
    fn drop(&mut self) {
        self.figures.slots.add(-i64::from(self.slots));
        self.figures.slots_busy.add(-i64::from(self.busy));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Label;
    use proptest::prelude::*;

    /// Metrics of one test; leaking 20 kB per case is the cost of accounts without a lifetime.
    fn own_metrics() -> &'static ProcessMetrics {
        Box::leak(Box::new(ProcessMetrics::new()))
    }

    #[track_caller]
    fn check(calls: &[(TimeCause, u64)], close: u64, want: &[(TimeCause, u64)]) {
        let mut account = SessionAccount::open_in(own_metrics(), TimeCause::Boot, 100);
        calls.iter().for_each(|&(cause, now)| account.enter(cause, now));
        let life = account.close(close);
        for cause in TimeCause::ALL {
            let wanted = want.iter().filter(|(c, _)| *c == cause).map(|(_, micros)| micros).sum::<u64>();
            assert_eq!(life.of(cause), wanted, "{}", cause.as_str());
        }
    }

    #[test]
    fn time_goes_to_the_cause_that_was_entered_last() {
        use TimeCause::*;
        check(&[], 100, &[]);
        check(&[], 130, &[(Boot, 30)]);
        check(&[(Observe, 110), (Policy, 115)], 200, &[(Boot, 10), (Observe, 5), (Policy, 85)]);
        check(&[(Act, 100), (Act, 150)], 160, &[(Act, 60)]);
        check(&[(Act, 110), (Boot, 120)], 121, &[(Boot, 11), (Act, 10)]);
        // A clock that goes back counts as stopped until it has caught up.
        check(&[(Observe, 150), (Policy, 120), (Act, 140)], 160, &[(Boot, 50), (Act, 10)]);
        check(&[(Observe, 50)], 40, &[]);
    }

    /// One call of an account: enter a cause or mark, some time after the last call, sometimes
    /// before it.
    fn calls() -> impl Strategy<Value = Vec<(Option<usize>, i64)>> {
        let cause = prop::option::weighted(0.7, 0..TimeCause::ALL.len());
        let moved = prop_oneof![3 => 0i64..1_000_000, 1 => Just(0), 1 => -500_000i64..0];
        prop::collection::vec((cause, moved), 0..60)
    }

    proptest! {
        #[test]
        fn the_parts_are_the_whole(calls in calls(), opened in 0i64..1_000_000) {
            let figures = own_metrics();
            let mut now = opened;
            let mut latest = opened;
            let mut marks = TimeSplit::default();
            let mut account = SessionAccount::open_in(figures, TimeCause::Boot, opened as u64);
            for (cause, moved) in calls {
                now = (now + moved).max(0);
                latest = latest.max(now);
                match cause {
                    Some(cause) => account.enter(TimeCause::ALL[cause], now as u64),
                    None => marks.merge(&account.mark(now as u64)),
                }
            }
            marks.merge(&account.mark(now as u64));
            let life = account.close(now as u64);
            // The clock never went back beyond what was counted: the total is the time from the
            // opening to the latest moment.
            prop_assert_eq!(life.total(), (latest - opened) as u64);
            prop_assert_eq!(life, marks, "the marks add up to the total");
            for cause in TimeCause::ALL {
                prop_assert_eq!(figures.session_micros.at(cause).get(), life.of(cause));
            }
        }

        #[test]
        fn slots_times_time_is_fully_attributed(slots in 1u32..50, calls in prop::collection::vec((0usize..8, 0u64..1_000_000), 0..80)) {
            let figures = own_metrics();
            let mut now = 7;
            let mut worker = WorkerAccount::open_in(figures, slots, IdleCause::Starting, now);
            let mut open = Vec::new();
            let mut lives = TimeSplit::default();
            for (call, moved) in calls {
                now += moved;
                match call {
                    0..3 if worker.idle() > 0 => {
                        worker.occupy(now);
                        open.push(SessionAccount::open_in(figures, TimeCause::Boot, now));
                    }
                    3 if !open.is_empty() => {
                        worker.release(now);
                        lives.merge(&open.remove(0).close(now));
                    }
                    4 => open.iter_mut().for_each(|account| account.enter(TimeCause::Policy, now)),
                    5 => worker.tick(now),
                    other => worker.set_idle_cause(IdleCause::ALL[other % IdleCause::ALL.len()], now),
                }
            }
            for account in open {
                worker.release(now);
                lives.merge(&account.close(now));
            }
            worker.tick(now);
            prop_assert_eq!(figures.slot_micros.total(), u64::from(slots) * (now - 7));
            prop_assert_eq!(figures.slot_micros.at(SlotUse::Busy).get(), lives.total(), "busy slot time is the trajectories' time");
            prop_assert_eq!(figures.session_micros.total(), lives.total());
            drop(worker);
            prop_assert_eq!((figures.slots.get(), figures.slots_busy.get()), (0, 0));
        }
    }

    proptest! {
        #[test]
        fn a_device_does_one_thing_at_a_time(calls in prop::collection::vec((0..DeviceUse::ALL.len(), -500_000i64..1_000_000), 0..80)) {
            let figures = own_metrics();
            let mut now = 1_000_000i64;
            let mut latest = 1_000_000i64;
            let mut device = DeviceAccount::open_in(figures, now as u64);
            let mut halfway = DeviceTime::default();
            for (at, (used, moved)) in calls.iter().enumerate() {
                now = (now + moved).max(0);
                latest = latest.max(now);
                device.enter(DeviceUse::ALL[*used], now as u64);
                if at == calls.len() / 2 {
                    halfway = device.until(now as u64);
                }
            }
            let time = device.until(now as u64);
            prop_assert_eq!(time.total(), (latest - 1_000_000) as u64, "the parts add up to the total");
            prop_assert_eq!(figures.device_micros.total(), time.total());
            prop_assert_eq!(time.since(&halfway).total() + halfway.total(), time.total());
            for used in DeviceUse::ALL {
                prop_assert_eq!(figures.device_micros.at(*used).get(), time.micros_of(*used));
            }
        }
    }

    #[test]
    fn a_devices_time_goes_to_what_it_did_last() {
        let mut device = DeviceAccount::open_in(own_metrics(), 5);
        device.enter(DeviceUse::Vision, 7); // no work until here
        device.enter(DeviceUse::Decode, 10);
        let time = device.until(16);
        let of = [DeviceUse::NoWork, DeviceUse::Vision, DeviceUse::Decode].map(|used| time.micros_of(used));
        assert_eq!((of, time.total()), ([2, 3, 6], 11));
    }

    #[test]
    fn idle_time_goes_to_the_current_cause() {
        let figures = own_metrics();
        let mut worker = WorkerAccount::open_in(figures, 4, IdleCause::Starting, 0);
        worker.set_idle_cause(IdleCause::NoAssignment, 10); // 4 × 10 starting
        worker.occupy(15); //                                 4 × 5 without an assignment
        worker.set_idle_cause(IdleCause::Draining, 20); //      3 × 5 more of it, 5 busy
        worker.tick(30); //                                   3 × 10 draining, 10 busy
        let at = |slot_use| figures.slot_micros.at(slot_use).get();
        assert_eq!((at(SlotUse::Starting), at(SlotUse::NoAssignment)), (40, 35));
        assert_eq!((at(SlotUse::Draining), at(SlotUse::Busy), at(SlotUse::Admission)), (30, 15, 0));
    }

    #[test]
    #[should_panic(expected = "all 1 slots are busy")]
    fn occupying_more_slots_than_exist_panics() {
        let mut worker = WorkerAccount::open_in(own_metrics(), 1, IdleCause::Starting, 0);
        worker.occupy(0);
        worker.occupy(0);
    }
}
