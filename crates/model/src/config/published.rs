//! The published model's shape, for plans and lower bounds without a checkpoint.

use super::vision::{MEAN, STD};
use super::{AttentionConfig, Config, LayerKind, SsmConfig, TextConfig, VisionConfig};

impl Config {
    /// Nemotron-Nano-12B-v2-VL, whose shape Holotron-12B keeps: 28 Mamba-2, 28 MLP and 6 attention
    /// layers behind RADIO-H.
    pub fn published() -> Self {
        let pattern = "M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M-";
        let kind = |c| match c {
            'M' => LayerKind::Ssm,
            '*' => LayerKind::Attention,
            _ => LayerKind::Mlp,
        };
        Self {
            text: TextConfig {
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
            },
            vision: Some(VisionConfig {
                tile: 512,
                tiles_max: 12,
                thumbnail: true,
                patch: 16,
                hidden: 1280,
                blocks: 32,
                heads: 16,
                intermediate: 5120,
                positions_side: 128,
                align_corners: false,
                shuffle_swapped: false,
                shuffle: 2,
                projector_hidden: 20_480,
                mean: MEAN,
                std: STD,
                image_token: 131_072,
                image_marks: ["<img>".into(), "</img>".into()],
            }),
        }
    }
}
