//! Two streams on one device: which work runs at the same time as a part of a batch, and how fast
//! both run.
//!
//! Alone, a part takes as long as its bytes or its operations. It uses all of one resource and a
//! share of the other: `b = bytes / bandwidth / seconds` of the memory's bandwidth,
//! `f = flops / rate / seconds` of the matrix units. A decode step of 100 sessions after 16,000
//! tokens moves 94 GB in 21.8 ms, and its 2.5 TFLOP use the matrix units for 3.2 ms; the tower of a
//! screenshot computes 4.8 to 20.6 TFLOP and leaves most of the bandwidth unused. Concurrently,
//! with the batch's stream at the higher priority, as `furrow-cuda` opens them:
//!
//! ```text
//! matrix units    the second stream gets what the first one leaves:      v = min(1, (1 - f1) / f2)
//! bandwidth       both get what they ask for, or the same share of it:   over = max(1, b1 + v b2)
//! speeds          of the first 1 / over, of the second v / over          1 is as fast as alone
//! ```
//!
//! While both run, neither resource is overcommitted, and one of them is used completely unless the
//! second stream needs less. The bound assumes that two kernels can share the multiprocessors, with
//! registers and shared memory for both, just as single bounds assume perfect kernels: it is the
//! most that two streams can get from a device, and a real one gives less.
//! [`super::RolloutFloor::floor_concurrent`] is the bound that uses it.

use std::collections::VecDeque;

use super::{DeviceSpec, WorkPart};

/// Speeds of two parts that run concurrently, the first one's stream with priority; 1 is as fast as
/// alone.
pub fn speeds(first: &WorkPart, second: &WorkPart, device: &DeviceSpec) -> [f64; 2] {
    let [b1, f1] = first.shares(device);
    let [b2, f2] = second.shares(device);
    let left = (1.0 - f1).max(0.0);
    let second = if f2 > left { left / f2 } else { 1.0 };
    let over = (b1 + second * b2).max(1.0);
    [1.0 / over, second / over]
}

impl WorkPart {
    /// Seconds that the part takes alone.
    pub fn seconds(&self, device: &DeviceSpec) -> f64 {
        (self.bytes / device.bandwidth).max(self.flops / device.flops)
    }

    /// Shares of bandwidth and matrix units that the part uses alone.
    fn shares(&self, device: &DeviceSpec) -> [f64; 2] {
        let seconds = self.seconds(device);
        if seconds > 0.0 {
            [self.bytes / device.bandwidth / seconds, self.flops / device.flops / seconds]
        } else {
            [0.0; 2]
        }
    }
}

/// Work of the second stream that is not done yet, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConcurrentWork {
    /// Each part, and the share of it that is left.
    waiting: VecDeque<(WorkPart, f64)>,
}

impl ConcurrentWork {
    pub fn add(&mut self, parts: Vec<WorkPart>) {
        self.waiting.extend(parts.into_iter().map(|part| (part, 1.0)));
    }

    /// Whether all work is done.
    pub fn is_done(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Runs it alone for this long. Returns the seconds that it did not need.
    pub fn run_alone(&mut self, device: &DeviceSpec, seconds: f64) -> f64 {
        let mut left = seconds;
        while left > 0.0
            && let Some((part, share)) = self.waiting.front_mut()
        {
            let needs = part.seconds(device) * *share;
            if needs > left {
                *share *= 1.0 - left / needs;
                return 0.0;
            }
            left -= needs;
            self.waiting.pop_front();
        }
        left
    }

    /// Runs it alone to its end. Returns the seconds that takes.
    pub fn finish_alone(&mut self, device: &DeviceSpec) -> f64 {
        self.waiting.drain(..).map(|(part, share)| part.seconds(device) * share).sum()
    }

    /// Runs it concurrently with the parts of a batch, which run one after another. Returns the
    /// seconds until the last of those ends.
    pub fn run(&mut self, batch: &[WorkPart], device: &DeviceSpec) -> f64 {
        batch.iter().map(|part| self.run_part(part, device)).sum()
    }

    fn run_part(&mut self, part: &WorkPart, device: &DeviceSpec) -> f64 {
        let mut needs = part.seconds(device);
        let mut taken = 0.0;
        while let Some((second, share)) = self.waiting.front_mut() {
            let [fast, slow] = speeds(part, second, device);
            let own = needs / fast;
            let other = second.seconds(device) * *share / slow;
            // A stream that makes no progress never finishes: infinity.
            if other > own {
                *share *= 1.0 - (own / other).min(1.0);
                return taken + own;
            }
            taken += other;
            needs -= other * fast;
            self.waiting.pop_front();
        }
        taken + needs.max(0.0)
    }
}
