//! Time by cause, of a step and of a trajectory.

use furrow_rollout::{TimeCause, TimeSplit, TrajectoryRecord};

use super::values::{elapsed, micros};
use crate::schema::{StepTiming, TrajectoryTiming};

impl From<TimeSplit> for StepTiming {
    fn from(split: TimeSplit) -> Self {
        let of = |cause| micros(split.of(cause));
        Self {
            boot_micros: of(TimeCause::Boot),
            observe_micros: of(TimeCause::Observe),
            policy_micros: of(TimeCause::Policy),
            act_micros: of(TimeCause::Act),
            settle_micros: of(TimeCause::Settle),
            record_micros: of(TimeCause::Record),
            finish_micros: of(TimeCause::Finish),
        }
    }
}

impl From<&StepTiming> for TimeSplit {
    fn from(cell: &StepTiming) -> Self {
        let mut split = TimeSplit::default();
        for (cause, micros) in [
            (TimeCause::Boot, cell.boot_micros),
            (TimeCause::Observe, cell.observe_micros),
            (TimeCause::Policy, cell.policy_micros),
            (TimeCause::Act, cell.act_micros),
            (TimeCause::Settle, cell.settle_micros),
            (TimeCause::Record, cell.record_micros),
            (TimeCause::Finish, cell.finish_micros),
        ] {
            split.add(cause, elapsed(micros));
        }
        split
    }
}

impl TrajectoryTiming {
    pub(super) fn new(record: &TrajectoryRecord) -> Self {
        let worker = StepTiming::from(record.ending.timing);
        Self {
            queue_micros: micros(record.queue_micros),
            boot_micros: worker.boot_micros,
            observe_micros: worker.observe_micros,
            policy_micros: worker.policy_micros,
            act_micros: worker.act_micros,
            settle_micros: worker.settle_micros,
            record_micros: worker.record_micros,
            finish_micros: worker.finish_micros,
            score_micros: micros(record.score_micros),
        }
    }

    pub(super) fn worker(&self) -> StepTiming {
        StepTiming {
            boot_micros: self.boot_micros,
            observe_micros: self.observe_micros,
            policy_micros: self.policy_micros,
            act_micros: self.act_micros,
            settle_micros: self.settle_micros,
            record_micros: self.record_micros,
            finish_micros: self.finish_micros,
        }
    }
}
