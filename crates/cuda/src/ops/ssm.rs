//! The Mamba-2 recurrence: `kernels/ssm.cu` token by token, `kernels/ssm_chunked.cu` by chunks.

use furrow_model::config::SsmConfig;
use half::bf16;

use super::{DeviceRows, DeviceSlots, assert_in_packs};
use crate::launch::{DeviceView, KernelArgument, KernelLaunch, RowSpan, StoredElement, shared_bytes, size};

/// State size that both fast kernels support.
const STATE: usize = 128;
/// Tokens of a chunk.
const CHUNK: usize = 64;
/// Padding of rows in shared memory, so that eight of them begin in eight different banks.
const PAD: usize = 8;

/// `S = exp(dt A) S + dt x B^T; y = S C + D x` over spans; S stays in its slots.
#[derive(Debug, Clone, Copy)]
pub struct SsmRecurrence<'a, T, S> {
    /// Heads, groups, sizes and limits.
    pub config: &'a SsmConfig,
    /// x | B | C after the convolution.
    pub mixed: DeviceRows<T>,
    /// dt of every head as in_proj computed it.
    pub dt: DeviceRows<T>,
    /// Added to dt, `[heads]`.
    pub dt_bias: DeviceView<f32>,
    pub a: DeviceView<f32>,
    pub d: DeviceView<f32>,
    /// For each slot `[heads, head size, state size]`.
    pub state: DeviceSlots<S>,
    pub spans: DeviceView<RowSpan>,
    /// `[m, heads x head size]`.
    pub out: DeviceView<T>,
}

impl<T: StoredElement, S: StoredElement> SsmRecurrence<'_, T, S> {
    /// Token by token: for decode and short spans; any sizes.
    pub fn launch(&self) -> KernelLaunch {
        let vectors = self.config.state == STATE && self.config.head_dim.is_multiple_of(8);
        let of_f32 = S::pick(["ssm_128_f32", "ssm_any_f32"], ["", ""]);
        let of_bf16 = S::pick(["ssm_128_bf16", "ssm_any_bf16"], ["ssm_128_bf16_bf16", "ssm_any_bf16_bf16"]);
        let [of_128, of_any] = T::pick(of_f32, of_bf16);
        assert!(!of_any.is_empty(), "float32 activations need a float32 state");
        let mut arguments = self.arguments();
        arguments.push(size(self.config.head_dim).into());
        if !vectors {
            arguments.push(size(self.config.state).into());
        }
        KernelLaunch {
            file: "ssm.cu",
            kernel: if vectors { of_128 } else { of_any },
            grid: [size(self.config.heads), size(self.spans.len()), 1],
            // A warp takes 8 rows at a time; with 16 rows each warp has two rounds: 5 warps for 80
            // rows.
            threads: size(self.config.head_dim.div_ceil(16)).clamp(1, 8) * 32,
            shared_bytes: 0,
            arguments,
        }
    }

    fn arguments(&self) -> Vec<KernelArgument> {
        let SsmConfig { heads, head_dim, state, groups, time_step_limit: (low, high), .. } = *self.config;
        self.mixed.assert_width(heads * head_dim + 2 * groups * state, "x, B and C");
        self.dt.assert_width(heads, "dt");
        self.state.assert_width(heads * head_dim * state, "recurrence");
        for (what, of_heads) in [("dt bias", self.dt_bias), ("A", self.a), ("D", self.d)] {
            assert_eq!(of_heads.len(), heads, "{what} for each head");
        }
        let [mixed, mixed_stride] = self.mixed.arguments();
        let [dt, dt_stride] = self.dt.arguments();
        let [states, slot_stride] = self.state.arguments();
        vec![
            mixed,
            mixed_stride,
            dt,
            dt_stride,
            self.dt_bias.into(),
            self.a.into(),
            self.d.into(),
            low.into(),
            high.into(),
            states,
            slot_stride,
            self.spans.into(),
            self.out.into(),
            size(heads).into(),
            size(groups).into(),
        ]
    }
}

impl<S: StoredElement> SsmRecurrence<'_, bf16, S> {
    /// By chunks, for long spans; `None` if the kernels do not support the sizes.
    pub fn launch_chunked(&self) -> Option<KernelLaunch> {
        let head_dim = self.config.head_dim;
        let kernel = match (head_dim, self.config.state) {
            (64, STATE) => S::pick("ssm_chunked_64", "ssm_chunked_64_bf16"),
            (80, STATE) => S::pick("ssm_chunked_80", "ssm_chunked_80_bf16"),
            _ => return None,
        };
        assert_in_packs(self.mixed.stride, "stride of rows that are copied in packs");
        let row = STATE + PAD;
        Some(KernelLaunch {
            file: "ssm_chunked.cu",
            kernel,
            grid: [size(self.config.heads), size(self.spans.len()), 1],
            threads: 128,
            shared_bytes: shared_bytes(&[
                (CHUNK * (head_dim + PAD), 2),
                (2 * CHUNK * row, 2),
                (2 * head_dim * row, 2),
                (2 * CHUNK, 4),
            ]),
            arguments: self.arguments(),
        })
    }
}
