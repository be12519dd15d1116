//! The time of a trajectory by cause, which several questions sum up.

use furrow_records::cell::columns;
use furrow_rollout::TimeCause;

columns! {
    /// Microseconds in the queue, in the environment worker by cause, and at the scorer.
    TimingCell {
        queue_micros: i64,
        boot_micros: i64,
        observe_micros: i64,
        policy_micros: i64,
        act_micros: i64,
        settle_micros: i64,
        record_micros: i64,
        finish_micros: i64,
        score_micros: i64,
    }
}

impl TimingCell {
    /// Microseconds by cause, in the order of a trajectory.
    pub(crate) fn causes(&self) -> [(&'static str, i64); TimeCause::ALL.len() + 2] {
        [
            ("queue", self.queue_micros),
            (TimeCause::Boot.as_str(), self.boot_micros),
            (TimeCause::Observe.as_str(), self.observe_micros),
            (TimeCause::Policy.as_str(), self.policy_micros),
            (TimeCause::Act.as_str(), self.act_micros),
            (TimeCause::Settle.as_str(), self.settle_micros),
            (TimeCause::Record.as_str(), self.record_micros),
            (TimeCause::Finish.as_str(), self.finish_micros),
            ("score", self.score_micros),
        ]
    }
}
