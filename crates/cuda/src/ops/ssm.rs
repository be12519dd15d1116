//! The Mamba-2 recurrence: `kernels/ssm.cu` token by token, `kernels/ssm_chunked.cu` by chunks.

use furrow_model::config::SsmConfig;
use half::bf16;

use super::{Rows, Slots, in_packs};
use crate::launch::{Argument, Launch, Span, Stored, View, shared_bytes, size};

/// State size that both fast forms are made for.
const STATE: usize = 128;
/// Tokens of a chunk.
const CHUNK: usize = 64;
/// Added to rows in shared memory, so that eight of them begin in eight different banks.
const PAD: usize = 8;

/// `S = exp(dt A) S + dt x B^T; y = S C + D x` over spans; S is left in its slots.
#[derive(Debug, Clone, Copy)]
pub struct Recurrence<'a, T, S> {
    /// Heads, groups, sizes and limits.
    pub config: &'a SsmConfig,
    /// x | B | C after the convolution.
    pub mixed: Rows<T>,
    /// dt of every head as in_proj gave it.
    pub dt: Rows<T>,
    /// Added to dt, `[heads]`.
    pub dt_bias: View<f32>,
    /// A = -exp(A_log), `[heads]`.
    pub a: View<f32>,
    /// D, `[heads]`.
    pub d: View<f32>,
    /// Of each slot `[heads, head size, state size]`.
    pub state: Slots<S>,
    /// The batch.
    pub spans: View<Span>,
    /// `[m, heads x head size]`.
    pub out: View<T>,
}

impl<T: Stored, S: Stored> Recurrence<'_, T, S> {
    /// Token by token: for decode and short spans; any sizes.
    pub fn launch(&self) -> Launch {
        let vectors = self.config.state == STATE && self.config.head_dim.is_multiple_of(8);
        let of_f32 = S::pick(["ssm_128_f32", "ssm_any_f32"], ["", ""]);
        let of_bf16 = S::pick(["ssm_128_bf16", "ssm_any_bf16"], ["ssm_128_bf16_bf16", "ssm_any_bf16_bf16"]);
        let [of_128, of_any] = T::pick(of_f32, of_bf16);
        assert!(!of_any.is_empty(), "float32 activations take a float32 state");
        let mut arguments = self.arguments();
        arguments.push(size(self.config.head_dim).into());
        if !vectors {
            arguments.push(size(self.config.state).into());
        }
        Launch {
            file: "ssm.cu",
            kernel: if vectors { of_128 } else { of_any },
            grid: [size(self.config.heads), size(self.spans.len()), 1],
            // A warp takes 8 rows at a time; with 16 a warp each has two rounds: 5 warps for 80 rows.
            threads: size(self.config.head_dim.div_ceil(16)).clamp(1, 8) * 32,
            shared_bytes: 0,
            arguments,
        }
    }

    fn arguments(&self) -> Vec<Argument> {
        let SsmConfig { heads, head_dim, state, groups, time_step_limit: (low, high), .. } = *self.config;
        self.mixed.hold(heads * head_dim + 2 * groups * state, "x, B and C");
        self.dt.hold(heads, "dt");
        self.state.hold(heads * head_dim * state, "recurrence");
        for (what, of_heads) in [("dt bias", self.dt_bias), ("A", self.a), ("D", self.d)] {
            assert_eq!(of_heads.len(), heads, "{what} for each head");
        }
        let ([mixed, mixed_stride], [dt, dt_stride]) = (self.mixed.arguments(), self.dt.arguments());
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

impl<S: Stored> Recurrence<'_, bf16, S> {
    /// By chunks, for long spans; `None` where the sizes are others than the kernels are made for.
    pub fn launch_chunked(&self) -> Option<Launch> {
        let head_dim = self.config.head_dim;
        let kernel = match (head_dim, self.config.state) {
            (64, STATE) => S::pick("ssm_chunked_64", "ssm_chunked_64_bf16"),
            (80, STATE) => S::pick("ssm_chunked_80", "ssm_chunked_80_bf16"),
            _ => return None,
        };
        in_packs(self.mixed.stride, "steps between rows that are copied in packs");
        let row = STATE + PAD;
        Some(Launch {
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
