//! What no implementation can beat: bytes and FLOPs of a decode step, a prefill, a screenshot and a whole rollout, and the time a device
//! needs for them at its own bandwidth and matrix rate.
//!
//! Work is a list of parts. A part takes as long as its bytes or its FLOPs, whichever is longer, and parts run one after another: what
//! perfect separate kernels would reach; what two streams at once reach is `beside.rs`. Weights, keys and values are bfloat16, the SSM state float32.

mod batch;
mod beside;
mod device;
mod hybrid;
mod rollout;
mod transformer;
mod workload;

pub use batch::{Batch, Prefill};
pub use beside::{Beside, speeds};
pub use device::{DEVICES, Device};
pub use rollout::{Keep, Mix, Rollout, Turn};
pub use transformer::Transformer;
pub use workload::{StepSizes, Workload};

/// Something that takes time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Part {
    /// What it is.
    pub name: &'static str,
    /// Bytes to move.
    pub bytes: f64,
    /// Operations to do.
    pub flops: f64,
}

/// A model as far as its work goes.
pub trait Work {
    /// One token for each of `batch` sequences, each behind `context` tokens.
    fn decode(&self, batch: f64, context: f64) -> Vec<Part>;

    /// `new` tokens of one sequence behind `past` tokens.
    fn prefill(&self, new: f64, past: f64) -> Vec<Part>;

    /// One screenshot of so many pixels encoded.
    fn vision(&self, width: usize, height: usize) -> Vec<Part>;

    /// Language-model rows of a screenshot.
    fn screenshot_tokens(&self, width: usize, height: usize) -> usize;

    /// Bytes of all weights.
    fn weight_bytes(&self) -> f64;

    /// Bytes of one session with so many tokens.
    fn session_bytes(&self, context: f64) -> f64;

    /// Sessions that fit beside the weights: 8 % of the memory and 6 GB stay free for the workspace.
    fn sessions_that_fit(&self, device: &Device, context: f64) -> u64 {
        let free = device.memory * 0.92 - 6e9 - self.weight_bytes();
        (free / self.session_bytes(context)).max(0.0) as u64
    }
}

/// Seconds that the parts take one after another.
pub fn seconds(parts: &[Part], device: &Device) -> f64 {
    parts.iter().map(|part| part.seconds(device)).sum()
}

/// Name of the part of a decode step that moves the states of the recurrence.
pub const STATES: &str = "SSM state, read and written";

/// Bytes of a bfloat16.
const BF16: f64 = 2.0;
/// Bytes of a float32.
const F32: f64 = 4.0;

/// A product of `rows` inputs with a matrix: its weights once, inputs and outputs once.
fn product(name: &'static str, layers: f64, rows: f64, input: usize, out: usize) -> Part {
    let (input, out) = (input as f64, out as f64);
    Part {
        name,
        bytes: layers * BF16 * (input * out + rows * (input + out)),
        flops: layers * 2.0 * input * out * rows,
    }
}

#[cfg(test)]
mod tests;
