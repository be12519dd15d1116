//! Normalises rows: `kernels/residual_rms_norm.cu` adds to the residual stream first,
//! `kernels/gated_norm.cu` gates.

use super::{DeviceRows, assert_in_packs};
use crate::launch::{DeviceView, KernelLaunch, StoredElement, THREADS_MAX, shared_bytes, size};

/// `h = h + d; y = w .* h / sqrt(mean(h^2) + eps)`.
#[derive(Debug, Clone, Copy)]
pub struct ResidualRmsNorm<R, T> {
    /// The residual stream, `[m, width]`.
    pub residual: DeviceView<R>,
    /// What is added to it, `[m, width]`.
    pub delta: Option<DeviceView<T>>,
    /// Row of the residual stream for each output row; `None`: the same row.
    pub rows: Option<DeviceView<u32>>,
    pub weight: DeviceView<T>,
    pub out: DeviceView<T>,
    pub count: usize,
    /// Epsilon of the norm.
    pub epsilon: f32,
}

impl<R: StoredElement, T: StoredElement> ResidualRmsNorm<R, T> {
    /// The launch. The residual stream has the type of its deltas, or float32.
    pub fn launch(&self) -> KernelLaunch {
        let width = self.weight.len();
        assert_in_packs(width, "width of a norm");
        assert!(self.out.len() >= self.count * width, "{} rows of output", self.count);
        let rows = self.residual.len() / width;
        assert!(self.delta.is_none_or(|delta| delta.len() / width >= rows), "one delta for each row");
        let sources = self.rows.map_or(rows, |rows| rows.len());
        assert!(sources >= self.count, "one row for each of {} outputs", self.count);
        let of_f32 = T::pick("residual_rms_norm_f32", "residual_rms_norm_f32_bf16");
        let of_bf16 = T::pick(None, Some("residual_rms_norm_bf16"));
        let kernel =
            R::pick(Some(of_f32), of_bf16).expect("a bfloat16 residual stream needs bfloat16 deltas");
        KernelLaunch {
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
    pub y: DeviceView<T>,
    /// The gates, a slice of in_proj's rows.
    pub z: DeviceRows<T>,
    pub weight: DeviceView<T>,
    /// `[m, width]`; may be `y`.
    pub out: DeviceView<T>,
    pub count: usize,
    /// Groups of channels, normed separately.
    pub groups: usize,
    /// Epsilon of the norm.
    pub epsilon: f32,
}

impl<T: StoredElement> GatedNorm<T> {
    pub fn launch(&self) -> KernelLaunch {
        let width = self.weight.len();
        let group = self.weight.len() / self.groups;
        assert!(width.is_multiple_of(self.groups), "{} groups of {width} channels", self.groups);
        // This kernel moves packs of 4.
        assert!(group > 0 && group.is_multiple_of(4), "width of a group: {group} is not a multiple of 4");
        self.z.assert_width(width, "gates");
        let values = self.count * width;
        assert!(self.y.len() >= values && self.out.len() >= values, "{} rows of {width}", self.count);
        let [z, z_stride] = self.z.arguments();
        KernelLaunch {
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

/// A thread for 4 values, up to a quarter of a block's maximum: wide rows take several rounds,
/// which hides more latency than it costs.
fn threads(width: usize) -> u32 {
    size((width / 4).next_multiple_of(32)).min(THREADS_MAX / 4)
}
