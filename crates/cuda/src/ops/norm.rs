//! Norms: `kernels/residual_rms_norm.cu`, `kernels/gated_norm.cu`.

use super::{Rows, in_packs};
use crate::launch::{Launch, Stored, THREADS_MAX, View, shared_bytes, size};

/// `h = h + d; y = w .* h / sqrt(mean(h^2) + eps)`.
#[derive(Debug, Clone, Copy)]
pub struct ResidualRmsNorm<R, T> {
    /// The residual stream, `[m, width]`.
    pub residual: View<R>,
    /// What is added to it, `[m, width]`.
    pub delta: Option<View<T>>,
    /// Row of the residual stream that each output row is of; `None`: the same.
    pub rows: Option<View<u32>>,
    /// `[width]`.
    pub weight: View<T>,
    /// `[count, width]`.
    pub out: View<T>,
    /// Output rows.
    pub count: usize,
    /// Of the norm.
    pub epsilon: f32,
}

impl<R: Stored, T: Stored> ResidualRmsNorm<R, T> {
    /// The launch. A residual stream is stored as its deltas are, or in float32.
    pub fn launch(&self) -> Launch {
        let width = self.weight.len();
        in_packs(width, "width of a norm");
        assert!(self.out.len() >= self.count * width, "{} rows of output", self.count);
        let rows = self.residual.len() / width;
        assert!(self.delta.is_none_or(|delta| delta.len() / width >= rows), "a delta for each row");
        let sources = self.rows.map_or(rows, |rows| rows.len());
        assert!(sources >= self.count, "a row for each of {} outputs", self.count);
        let of_f32 = T::pick("residual_rms_norm_f32", "residual_rms_norm_f32_bf16");
        let of_bf16 = T::pick(None, Some("residual_rms_norm_bf16"));
        let kernel =
            R::pick(Some(of_f32), of_bf16).expect("a bfloat16 residual stream takes bfloat16 deltas");
        Launch {
            file: "residual_rms_norm.cu",
            kernel,
            grid: [size(self.count), 1, 1],
            threads: threads(width),
            shared_bytes: shared_bytes(&[(width, 4), (32, 4)]),
            arguments: vec![
                self.residual.into(),
                self.delta.into(),
                self.rows.into(),
                self.weight.into(),
                self.out.into(),
                size(width).into(),
                self.epsilon.into(),
            ],
        }
    }
}

/// `g = y .* silu(z); out = w .* g / sqrt(mean over each group(g^2) + eps)`.
#[derive(Debug, Clone, Copy)]
pub struct GatedNorm<T> {
    /// `[m, width]`.
    pub y: View<T>,
    /// The gates, a slice of in_proj's rows.
    pub z: Rows<T>,
    /// `[width]`.
    pub weight: View<T>,
    /// `[m, width]`; may be `y`.
    pub out: View<T>,
    /// Rows, m.
    pub count: usize,
    /// Groups of channels that are normed apart.
    pub groups: usize,
    /// Of the norm.
    pub epsilon: f32,
}

impl<T: Stored> GatedNorm<T> {
    /// The launch.
    pub fn launch(&self) -> Launch {
        let (width, group) = (self.weight.len(), self.weight.len() / self.groups);
        assert!(width.is_multiple_of(self.groups), "{} groups of {width} channels", self.groups);
        // This kernel moves packs of 4.
        assert!(group > 0 && group.is_multiple_of(4), "width of a group: {group} is no multiple of 4");
        self.z.hold(width, "gates");
        let values = self.count * width;
        assert!(self.y.len() >= values && self.out.len() >= values, "{} rows of {width}", self.count);
        let [z, z_stride] = self.z.arguments();
        Launch {
            file: "gated_norm.cu",
            kernel: T::pick("gated_norm_f32", "gated_norm_bf16"),
            grid: [size(self.groups), size(self.count), 1],
            threads: threads(group),
            shared_bytes: shared_bytes(&[(group, 4), (32, 4)]),
            arguments: vec![
                self.y.into(),
                z,
                z_stride,
                self.weight.into(),
                self.out.into(),
                size(width).into(),
                size(group).into(),
                self.epsilon.into(),
            ],
        }
    }
}

/// A thread for 4 values, and a quarter of a block's most: wide rows take several rounds, which hides more than it costs.
fn threads(width: usize) -> u32 {
    size((width / 4).next_multiple_of(32)).min(THREADS_MAX / 4)
}
