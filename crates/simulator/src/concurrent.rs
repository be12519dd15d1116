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
//! [`crate::RolloutFloor::floor_concurrent`] is the bound that uses it.

use std::collections::VecDeque;

use furrow_model::floor::{DeviceSpec, WorkPart};

/// Speeds of two parts that run concurrently, the first one's stream with priority; 1 is as fast as
/// alone.
pub(crate) fn speeds(first: &WorkPart, second: &WorkPart, device: &DeviceSpec) -> [f64; 2] {
    let [b1, f1] = shares(first, device);
    let [b2, f2] = shares(second, device);
    let left = (1.0 - f1).max(0.0);
    let second = if f2 > left { left / f2 } else { 1.0 };
    let over = (b1 + second * b2).max(1.0);
    [1.0 / over, second / over]
}

/// Shares of bandwidth and matrix units that a part uses alone.
fn shares(part: &WorkPart, device: &DeviceSpec) -> [f64; 2] {
    let seconds = part.seconds(device);
    if seconds > 0.0 {
        [part.bytes / device.bandwidth / seconds, part.flops / device.flops / seconds]
    } else {
        [0.0; 2]
    }
}

/// Work of the second stream that is not done yet, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ConcurrentWork {
    /// Each part, and the share of it that is left.
    waiting: VecDeque<(WorkPart, f64)>,
}

impl ConcurrentWork {
    pub(crate) fn add(&mut self, parts: Vec<WorkPart>) {
        self.waiting.extend(parts.into_iter().map(|part| (part, 1.0)));
    }

    /// Whether all work is done.
    #[cfg(test)]
    fn is_done(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Runs it alone for this long. Returns the seconds that it did not need.
    pub(crate) fn run_alone(&mut self, device: &DeviceSpec, seconds: f64) -> f64 {
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
    pub(crate) fn finish_alone(&mut self, device: &DeviceSpec) -> f64 {
        self.waiting.drain(..).map(|(part, share)| part.seconds(device) * share).sum()
    }

    /// Runs it concurrently with the parts of a batch, which run one after another. Returns the
    /// seconds until the last of those ends.
    pub(crate) fn run(&mut self, batch: &[WorkPart], device: &DeviceSpec) -> f64 {
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

#[cfg(test)]
mod tests {
    use furrow_model::config::Config;
    use furrow_model::floor::{BatchFloor, PrefillSpan, seconds};

    use super::*;

    #[track_caller]
    fn near(got: f64, want: f64, share: f64) {
        assert!((got / want - 1.0).abs() <= share, "{got}, expected {want} within {share}");
    }

    fn part(bytes: f64, flops: f64) -> WorkPart {
        WorkPart { name: "part", bytes, flops }
    }

    /// In units in which a device moves one byte and computes one operation a second.
    const UNIT: DeviceSpec = DeviceSpec { name: "unit", bandwidth: 1.0, flops: 1.0, memory: 1.0, source: "" };

    #[test]
    fn two_streams_share_what_one_leaves() {
        let check = |first, second, want: [f64; 2]| {
            let got = speeds(&first, &second, &UNIT);
            near(got[0], want[0], 1e-12);
            near(got[1] + 1.0, want[1] + 1.0, 1e-12);
        };
        // Bytes alone and operations alone do not slow each other.
        check(part(3.0, 0.0), part(0.0, 2.0), [1.0, 1.0]);
        // Decode leaves three quarters of the matrix units.
        check(part(4.0, 1.0), part(0.0, 2.0), [1.0, 0.75]);
        // And the tower needs a fifth of the bandwidth at full speed, 0.15 at this speed.
        check(part(4.0, 1.0), part(1.0, 5.0), [1.0 / 1.15, 0.75 / 1.15]);
        // A product uses all of them.
        check(part(0.0, 1.0), part(0.0, 2.0), [1.0, 0.0]);
        check(part(1.0, 0.0), part(1.0, 0.0), [0.5, 0.5]);
    }

    #[test]
    fn concurrent_work_ends_and_no_resource_is_oversubscribed() {
        let decode = part(4.0, 1.0);
        let product = part(0.0, 2.0);
        let tower = part(1.0, 5.0);
        let mut beside = ConcurrentWork::default();
        near(beside.run(&[decode, product], &UNIT), 6.0, 1e-12);
        beside.add(vec![tower]);
        // 4 s of decode become 4.6, in which 3 of the tower's 5 operations are done; a product
        // leaves it none.
        near(beside.run(&[decode, product], &UNIT), 6.6, 1e-12);
        near(beside.clone().finish_alone(&UNIT), 2.0, 1e-12);
        near(beside.run_alone(&UNIT, 0.5) + 1.0, 1.0, 1e-12);
        // The remaining 1.5 s take 2 concurrently with decode.
        near(beside.run(&[decode], &UNIT), 4.0 + 0.15 * 2.0, 1e-12);
        assert!(beside.is_done());
        near(beside.run_alone(&UNIT, 0.5), 0.5, 1e-12);

        let model = Config::published();
        let device = DeviceSpec::named("h200").unwrap();
        for (decodes, tiles) in [(1, 1.0), (75, 3.0), (100, 13.0)] {
            let [decode, prefill] =
                BatchFloor::parts(&model, decodes, 8000.0, &[PrefillSpan { new: 512.0, past: 8000.0 }]);
            let batch = [decode, prefill].concat();
            let vision = model.tower(tiles);
            let mut beside = ConcurrentWork::default();
            beside.add(vision.clone());
            let taken = beside.run(&batch, device);
            let all = taken + beside.finish_alone(device);
            let own = seconds(&batch, device);
            let other = seconds(&vision, device);
            let sum = |of: fn(&WorkPart) -> f64| batch.iter().chain(&vision).map(of).sum::<f64>();
            let least =
                (sum(|part| part.flops) / device.flops).max(sum(|part| part.bytes) / device.bandwidth);
            assert!(
                taken >= own && all >= least * (1.0 - 1e-9) && all < own + other,
                "{taken} {all} {least}"
            );
        }
    }
}
