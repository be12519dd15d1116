//! Memory of a model and its sessions: in values, and in bytes as this backend stores them.

use super::memory_use::MemoryUse;
use super::work::row_values;
use crate::backend::{BackendCapacity, PAGE_TOKENS};
use crate::config::{Config, LayerKind, MoeConfig, TextConfig, VisionConfig};

/// Bytes of a float32: states, keys, values and everything computed are float32.
const F32: u64 = size_of::<f32>() as u64;

impl BackendCapacity {
    /// Bytes of a backend with this capacity whose weights take `weights` bytes.
    pub fn bytes(&self, config: &Config, weights: u64) -> MemoryUse {
        let text = &config.text;
        let of = |count: u32, values: u64| u64::from(count).saturating_mul(values).saturating_mul(F32);
        let feature = config.vision.as_ref().map_or(0, |vision| vision.rows_per_tile() * text.hidden) as u64;
        MemoryUse {
            weights,
            ssm: of(self.slots, text.ssm_values()),
            conv: of(self.slots, text.conv_values()),
            kv: of(self.pages, text.kv_values() * PAGE_TOKENS as u64),
            workspace: of(self.rows_max, row_values(text))
                .saturating_add(of(self.logits_max, text.hidden as u64)),
            logits: of(self.logits_max, text.vocabulary as u64),
            features: of(self.features, feature),
        }
    }
}

impl Config {
    /// Number of weights. The vision tower's prefix tokens are not included: only the checkpoint
    /// has their number.
    pub fn parameters(&self) -> u64 {
        self.text.parameters() + self.vision.as_ref().map_or(0, |vision| vision.parameters(self.text.hidden))
    }
}

impl TextConfig {
    /// Values of the SSM state of one sequence: 28 x 128 x 80 x 128 for the 12B.
    pub fn ssm_values(&self) -> u64 {
        (self.count(LayerKind::Ssm) * self.ssm.inner() * self.ssm.state) as u64
    }

    /// Values of the convolution state of one sequence: 28 x 12,288 x 3.
    pub fn conv_values(&self) -> u64 {
        (self.count(LayerKind::Ssm) * self.ssm.conv_width() * (self.ssm.conv_kernel - 1)) as u64
    }

    /// Values of the keys and values of one token: 6 x 2 x 8 x 128.
    pub fn kv_values(&self) -> u64 {
        (self.count(LayerKind::Attention) * 2 * self.attention.kv_heads * self.attention.head_dim) as u64
    }

    /// Weights of the language model: 12,310,001,152 for the 12B.
    pub fn parameters(&self) -> u64 {
        let layers: usize = self.layers.iter().map(|kind| self.hidden + self.mixer_parameters(*kind)).sum();
        (layers + self.hidden + 2 * self.vocabulary * self.hidden) as u64
    }

    /// Layers of one kind.
    pub(super) fn count(&self, kind: LayerKind) -> usize {
        self.layers_of(kind).count()
    }

    fn mixer_parameters(&self, kind: LayerKind) -> usize {
        let h = self.hidden;
        let ssm = &self.ssm;
        match kind {
            LayerKind::Ssm => {
                let conv = ssm.conv_width() * (ssm.conv_kernel + 1);
                ssm.in_proj_width() * h + conv + 3 * ssm.heads + ssm.inner() + h * ssm.inner()
            }
            LayerKind::Attention => {
                let [q, _, qkv] = self.attention.widths();
                qkv * h + h * q
            }
            LayerKind::Mlp => 2 * self.intermediate * h,
            LayerKind::Moe => self.moe.as_ref().map_or(0, |moe| moe_parameters(moe, h)),
        }
    }
}

fn moe_parameters(moe: &MoeConfig, hidden: usize) -> usize {
    let latent = moe.latent.unwrap_or(hidden);
    let experts = moe.experts * 2 * moe.intermediate * latent;
    let around = moe.latent.map_or(0, |latent| 2 * latent * hidden);
    moe.experts * (hidden + 1) + experts + around + 2 * moe.shared_intermediate * hidden
}

impl VisionConfig {
    fn parameters(&self, hidden: usize) -> u64 {
        let d = self.hidden;
        let i = self.intermediate;
        let block = 4 * d + (3 * d * d + 3 * d) + (d * d + d) + (i * d + i) + (d * i + d);
        let shuffled = self.shuffle.pow(2) * d;
        let projector = shuffled + self.projector_hidden * (shuffled + hidden);
        (3 * self.patch.pow(2) * d + self.positions_side.pow(2) * d + self.blocks * block + projector) as u64
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::config::{AttentionConfig, SsmConfig};

    /// The language model of Nemotron-Nano-12B-v2.
    pub(crate) fn published() -> TextConfig {
        let pattern = "M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M-";
        let kind = |letter| match letter {
            'M' => LayerKind::Ssm,
            '*' => LayerKind::Attention,
            _ => LayerKind::Mlp,
        };
        TextConfig {
            layers: pattern.chars().map(kind).collect(),
            hidden: 5120,
            vocabulary: 131_072,
            intermediate: 20_480,
            norm_epsilon: 1e-5,
            positions_max: 131_072,
            attention: AttentionConfig { heads: 40, kv_heads: 8, head_dim: 128 },
            ssm: SsmConfig {
                heads: 128,
                head_dim: 80,
                state: 128,
                groups: 8,
                conv_kernel: 4,
                chunk: 128,
                time_step_limit: (0.0, f32::INFINITY),
            },
            moe: None,
        }
    }

    #[test]
    fn the_published_model_has_the_published_sizes() {
        let text = published();
        assert_eq!(text.parameters(), 12_310_001_152);
        assert_eq!(text.ssm_values() * F32, 146_800_640);
        assert_eq!(text.conv_values(), 1_032_192);
        assert_eq!(text.kv_values(), 12_288);
    }

    #[test]
    fn a_hundred_sessions_of_16_384_tokens_take_the_bytes_of_the_table() {
        let config = Config { text: published(), vision: None };
        let pages = 100 * 16_384 / PAGE_TOKENS as u32;
        let capacity =
            BackendCapacity { slots: 100, pages, rows_max: 1, logits_max: 1, features: 0, offload_bytes: 0 };
        let bytes = capacity.bytes(&config, 2 * config.parameters());
        assert_eq!(bytes.ssm, 14_680_064_000);
        assert_eq!(bytes.conv, 412_876_800); // float32 here: twice the 0.21 GB of bfloat16
        assert_eq!(bytes.kv, 2 * 40_265_318_400); // float32: twice 40.3 GB
        assert_eq!(bytes.total(), bytes.parts().iter().map(|(_, bytes)| bytes).sum::<u64>());
    }
}
