//! Lower bounds of time: bytes and FLOPs of a decode step, a prefill and a screenshot, and the time
//! that a device needs for them at its own bandwidth and matrix rate.
//!
//! Work is a list of parts. A part takes as long as its bytes or its FLOPs, whichever is longer,
//! and parts run one after another, which perfect separate kernels would reach. Weights, keys and
//! values are bfloat16, the SSM state float32.

mod batch;
mod device;
mod hybrid;
mod transformer;

pub use batch::{BatchFloor, PrefillSpan};
pub use device::{DEVICES, DeviceSpec};
pub use transformer::Transformer;

/// A part of the work of a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorkPart {
    pub name: &'static str,
    pub bytes: f64,
    pub flops: f64,
}

impl WorkPart {
    /// Seconds that the part takes alone.
    pub fn seconds(&self, device: &DeviceSpec) -> f64 {
        (self.bytes / device.bandwidth).max(self.flops / device.flops)
    }
}

/// Work of a model.
pub trait ModelWork {
    /// Decodes one token for each of `batch` sequences, each after `context` tokens.
    fn decode(&self, batch: f64, context: f64) -> Vec<WorkPart>;

    /// Prefills `new` tokens of one sequence after `past` tokens.
    fn prefill(&self, new: f64, past: f64) -> Vec<WorkPart>;

    /// Encodes one screenshot of this size in pixels.
    fn vision(&self, width: usize, height: usize) -> Vec<WorkPart>;

    /// Language-model rows of a screenshot.
    fn screenshot_tokens(&self, width: usize, height: usize) -> usize;

    /// Bytes of all weights.
    fn weight_bytes(&self) -> f64;

    /// Bytes of one session with this many tokens.
    fn session_bytes(&self, context: f64) -> f64;

    /// Sessions whose memory fits beside the weights: 8 % of the memory and 6 GB stay free for the
    /// workspace.
    fn sessions_that_fit(&self, device: &DeviceSpec, context: f64) -> u64 {
        let free = device.memory * 0.92 - 6e9 - self.weight_bytes();
        (free / self.session_bytes(context)).max(0.0) as u64
    }
}

/// Seconds that the parts take, one after another.
pub fn seconds(parts: &[WorkPart], device: &DeviceSpec) -> f64 {
    parts.iter().map(|part| part.seconds(device)).sum()
}

/// Name of the part of a decode step that moves the states of the recurrence.
pub const STATES: &str = "SSM state, read and written";

/// Bytes of a bfloat16.
const BF16: f64 = 2.0;
/// Bytes of a float32.
const F32: f64 = 4.0;

/// A product of `rows` inputs with a matrix: reads the weights once, inputs and outputs once.
fn product(name: &'static str, layers: f64, rows: f64, input: usize, out: usize) -> WorkPart {
    let input = input as f64;
    let out = out as f64;
    WorkPart {
        name,
        bytes: layers * BF16 * (input * out + rows * (input + out)),
        flops: layers * 2.0 * input * out * rows,
    }
}

#[cfg(test)]
mod tests;
