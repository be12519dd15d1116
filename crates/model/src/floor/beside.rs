//! Two streams on one device: what runs beside a part of a batch, and how fast both go.
//!
//! Alone, a part takes as long as its bytes or its operations, so it uses the whole of one of the two and a share of the other: of the memory's bandwidth
//! `b = bytes / bandwidth / seconds`, of the matrix units `f = flops / rate / seconds`. A decode step of 100 sessions behind 16,000 tokens moves 94 GB in
//! 21.8 ms, in which its 2.5 TFLOP take 3.2 ms of the matrix units; the tower of a screenshot computes 4.8 to 20.6 TFLOP and leaves most of the bandwidth.
//! Beside each other, with the batch's stream at the higher priority, as `furrow-cuda` opens them:
//!
//! ```text
//! matrix units    the second stream gets what the first one leaves:       v = min(1, (1 - f1) / f2)
//! bandwidth       both get what they ask for, or the same share of it:    over = max(1, b1 + v b2)
//! speeds          of the first 1 / over, of the second v / over           1 is as fast as alone
//! ```
//!
//! So while both run neither resource gives more than it has, and all of one of them is used unless the second stream needs less. That two kernels may
//! lie on the same multiprocessors at once, each with registers and shared memory enough, is assumed, as kernels at their floors are: it is the most that two
//! streams can make of a device, and a real one gives a part of it. [`super::Rollout::floor_beside`] is the bound that goes with it.

use std::collections::VecDeque;

use super::{Device, Part};

/// Speeds of two parts that run beside each other, the first one's stream before the second's; 1 is as fast as alone.
pub fn speeds(first: &Part, second: &Part, device: &Device) -> [f64; 2] {
    let ([b1, f1], [b2, f2]) = (first.shares(device), second.shares(device));
    let left = (1.0 - f1).max(0.0);
    let second = if f2 > left { left / f2 } else { 1.0 };
    let over = (b1 + second * b2).max(1.0);
    [1.0 / over, second / over]
}

impl Part {
    /// Seconds that it takes alone.
    pub fn seconds(&self, device: &Device) -> f64 {
        (self.bytes / device.bandwidth).max(self.flops / device.flops)
    }

    /// Shares of bandwidth and matrix units that it uses alone.
    fn shares(&self, device: &Device) -> [f64; 2] {
        let seconds = self.seconds(device);
        if seconds > 0.0 {
            [self.bytes / device.bandwidth / seconds, self.flops / device.flops / seconds]
        } else {
            [0.0; 2]
        }
    }
}

/// Work of the second stream that has not been done yet, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Beside {
    /// Each part, and how much of it is left.
    waiting: VecDeque<(Part, f64)>,
}

impl Beside {
    /// More of it.
    pub fn add(&mut self, parts: Vec<Part>) {
        self.waiting.extend(parts.into_iter().map(|part| (part, 1.0)));
    }

    /// Whether all is done.
    pub fn is_done(&self) -> bool {
        self.waiting.is_empty()
    }

    /// It runs alone for so long. Returns the seconds it did not need.
    pub fn alone(&mut self, device: &Device, seconds: f64) -> f64 {
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

    /// It runs alone to its end; the seconds that takes.
    pub fn rest(&mut self, device: &Device) -> f64 {
        self.waiting.drain(..).map(|(part, share)| part.seconds(device) * share).sum()
    }

    /// It runs beside the parts of a batch, one after another; the seconds until the last of those has ended.
    pub fn run(&mut self, batch: &[Part], device: &Device) -> f64 {
        batch.iter().map(|part| self.run_part(part, device)).sum()
    }

    fn run_part(&mut self, part: &Part, device: &Device) -> f64 {
        let (mut needs, mut taken) = (part.seconds(device), 0.0);
        while let Some((second, share)) = self.waiting.front_mut() {
            let [fast, slow] = speeds(part, second, device);
            let (own, other) = (needs / fast, second.seconds(device) * *share / slow);
            // One that stands still is never done: infinity.
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
