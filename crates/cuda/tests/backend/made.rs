//! A checkpoint for the kernels of the published sizes: heads of 64, a state of 128, a tower with
//! heads of 64; in bfloat16, with a few layers.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use furrow_model::checkpoint::required_tensors;
use furrow_model::config::Config;
use half::bf16;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Prefix tokens of the tower.
const PREFIX: usize = 4;

/// The checkpoint that every test reads.
pub(crate) fn checkpoint() -> &'static Path {
    static MADE: OnceLock<TempDir> = OnceLock::new();
    MADE.get_or_init(|| written(1, &config(), |_, _| {})).path()
}

pub(crate) fn config() -> Value {
    json!({
        "architectures": ["NemotronH_Nano_VL_V2"],
        "model_type": "NemotronH_Nano_VL_V2",
        "torch_dtype": "bfloat16",
        "force_image_size": 64,
        "patch_size": 16,
        "downsample_ratio": 0.5,
        "ps_version": "v2",
        "use_thumbnail": true,
        "projector_hidden_size": 64,
        "img_context_token_id": 96,
        "max_num_tiles": 4,
        "norm_mean": [0.5, 0.5, 0.5],
        "norm_std": [0.25, 0.25, 0.25],
        "vision_config": {
            "patch_size": 16,
            "hidden_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 192,
            "max_resolution": 128,
            "args": { "model": "made", "cpe_max_size": 128 }
        },
        "llm_config": {
            "hybrid_override_pattern": "M*-M",
            "hidden_size": 64,
            "intermediate_size": 96,
            "vocab_size": 96,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "mamba_num_heads": 2,
            "mamba_head_dim": 64,
            "ssm_state_size": 128,
            "n_groups": 1,
            "conv_kernel": 4,
            "chunk_size": 64,
            "max_position_embeddings": 2048,
            "layer_norm_epsilon": 1e-5,
            "time_step_limit": [0.0, { "__float__": "Infinity" }]
        }
    })
}

/// That configuration with expert layers of a latent width and a shared expert, and without a
/// tower.
pub(crate) fn config_of_experts() -> Value {
    let mut text = config()["llm_config"].clone();
    let experts = json!({
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "EM*E",
        "n_routed_experts": 3,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 64,
        "moe_shared_expert_intermediate_size": 72,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": true,
        "routed_scaling_factor": 1.5,
        "moe_latent_size": 64
    });
    text.as_object_mut().unwrap().extend(experts.as_object().unwrap().clone());
    text
}

/// A directory with this configuration and random weights in bfloat16; `edit` may change a tensor's
/// values.
pub(crate) fn written(seed: u64, config: &Value, edit: impl Fn(&str, &mut [f32])) -> TempDir {
    written_as(seed, config, edit, |_| Dtype::BF16)
}

/// As `written`; `stored` returns the type of each tensor, bfloat16 or float32.
pub(crate) fn written_as(
    seed: u64,
    config: &Value,
    edit: impl Fn(&str, &mut [f32]),
    stored: impl Fn(&str) -> Dtype,
) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let model = Config::read(dir.path()).unwrap();
    let mut random = RandomTensors(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let tensors: Vec<(String, Vec<usize>, Vec<u8>, Dtype)> = required_tensors(&model)
        .into_iter()
        .map(|wanted| {
            let mut shape = wanted.shape;
            if wanted.name.ends_with("cls_token.token") {
                shape[0] = PREFIX;
            }
            let mut values = random.tensor(&wanted.name, &shape);
            edit(&wanted.name, &mut values);
            let dtype = stored(&wanted.name);
            let bytes = match dtype {
                Dtype::F32 => values.into_iter().flat_map(f32::to_le_bytes).collect(),
                _ => values.into_iter().flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect(),
            };
            (wanted.name, shape, bytes, dtype)
        })
        .collect();
    let views = tensors.iter().map(|(name, shape, bytes, dtype)| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    serialize_to_file(views, None, &dir.path().join("model.safetensors")).unwrap();
    dir
}

struct RandomTensors(u64);

impl RandomTensors {
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Values like those of trained models: products keep their inputs' size, states fade over tens
    /// of tokens.
    fn tensor(&mut self, name: &str, shape: &[usize]) -> Vec<f32> {
        let count: usize = shape.iter().product();
        let inputs = shape.last().copied().unwrap_or(1) as f32;
        let is = |ending: &str| name.ends_with(ending);
        let (middle, spread) = match () {
            () if is("A_log") => (0.5, 0.5),
            () if is("dt_bias") => (-3.0, 1.0),
            () if is("mixer.D") || (shape.len() == 1 && is("weight")) => (1.0, 0.2),
            () if shape.len() == 1 => (0.0, 0.2),
            () if is("conv1d.weight") => (0.0, 0.6),
            () if is("embeddings.weight") || is("pos_embed") || is("token") => (0.0, 1.0),
            () if is("lm_head.weight") => (0.0, 4.0 / inputs.sqrt()),
            () => (0.0, 1.7 / inputs.sqrt()),
        };
        (0..count).map(|_| middle + spread * self.next()).collect()
    }
}
