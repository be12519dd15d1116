//! The sizes of random checkpoints, and the `config.json` of each.

use std::str::FromStr;

use serde_json::{Value, json};

use super::stored_type::StoredType;
use super::vocabulary::{BOS, IMAGE, STOP};

/// Size of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ModelSize {
    /// About a million parameters, 9 rows a screenshot: learns simple tasks in minutes on one core.
    Mini,
    /// About four million parameters, 16 rows a screenshot: for tests and the quickstart.
    Tiny,
    /// About a hundred million parameters, up to five tiles of 64 rows: for measuring.
    Small,
    /// The published shape: 12.3 G parameters and a tower of 0.7 G, up to thirteen tiles of 256
    /// rows. 26 GB in bfloat16.
    Nano12b,
}

/// Shapes of one size.
pub(super) struct SizeShapes {
    pub pattern: &'static str,
    pub vocabulary: usize,
    positions_max: usize,
    hidden: usize,
    intermediate: usize,
    /// Query heads, key and value heads, size of a head.
    attention: [usize; 3],
    /// Heads, size of a head, state, groups.
    ssm: [usize; 4],
    chunk: usize,
    tile: usize,
    tiles_max: usize,
    /// Width, blocks, heads, MLP width.
    tower: [usize; 4],
    projector_hidden: usize,
    /// Rows before the patches of a tile: a class token for each of four teachers, then registers
    /// up to a multiple of this.
    pub prefix: usize,
    /// Tiles along a side of the position table: more than one, so that the table is resized as the
    /// published one is.
    table_tiles: usize,
}

/// All three mixers and little else. A tile of 96 pixels is 3 x 3 rows: pages of nine fields have a
/// row for each field, and the model learns which field is where from a few thousand screenshots. A
/// forward and backward pass takes about 4 ms for a reply of 80 tokens on one core.
const MINI: SizeShapes = SizeShapes {
    pattern: "M-M*-M*-",
    vocabulary: 1024,
    positions_max: 16_384,
    hidden: 128,
    intermediate: 256,
    attention: [4, 2, 32],
    ssm: [8, 32, 16, 1],
    chunk: 16,
    tile: 96,
    tiles_max: 1,
    tower: [64, 2, 2, 256],
    projector_hidden: 256,
    prefix: 8,
    table_tiles: 2,
};

/// All three mixers. A token costs 3.1 M multiply-adds, so 10 G of them a second give 3,200 tokens
/// a second; a session's state has 0.33 MB.
const TINY: SizeShapes = SizeShapes {
    pattern: "M-M-M*-M-M-M*-",
    vocabulary: 1024,
    positions_max: 16_384,
    hidden: 192,
    intermediate: 512,
    attention: [6, 2, 32],
    ssm: [16, 24, 32, 2],
    chunk: 64,
    tile: 128,
    tiles_max: 1,
    tower: [96, 2, 3, 384],
    projector_hidden: 384,
    prefix: 8,
    table_tiles: 2,
};

/// The published proportions at a hidden size of 768 (inner width twice the hidden size, state 128,
/// 8 groups) with RADIO's smallest tower.
const SMALL: SizeShapes = SizeShapes {
    pattern: "M-M-M*-M-M-M*-M-",
    vocabulary: 1024,
    positions_max: 32_768,
    hidden: 768,
    intermediate: 3072,
    attention: [12, 4, 64],
    ssm: [24, 64, 128, 8],
    chunk: 128,
    tile: 256,
    tiles_max: 4,
    tower: [384, 12, 6, 1536],
    projector_hidden: 3072,
    prefix: 8,
    table_tiles: 2,
};

/// Nemotron-Nano-12B-v2-VL, as in `Config::published`. The vocabulary's image mark is inside the
/// table, as in the sizes above.
const NANO_12B: SizeShapes = SizeShapes {
    pattern: "M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M-",
    vocabulary: 131_072,
    positions_max: 131_072,
    hidden: 5120,
    intermediate: 20_480,
    attention: [40, 8, 128],
    ssm: [128, 80, 128, 8],
    chunk: 128,
    tile: 512,
    tiles_max: 12,
    tower: [1280, 32, 16, 5120],
    projector_hidden: 20_480,
    prefix: 16,
    table_tiles: 4,
};

/// Side of a patch, and patches along a side of one token, as published.
const PATCH: usize = 16;
const SHUFFLE: usize = 2;

impl ModelSize {
    pub const ALL: [Self; 4] = [Self::Mini, Self::Tiny, Self::Small, Self::Nano12b];

    /// Its name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mini => "mini",
            Self::Tiny => "tiny",
            Self::Small => "small",
            Self::Nano12b => "12b",
        }
    }

    pub(super) fn shapes(self) -> &'static SizeShapes {
        match self {
            Self::Mini => &MINI,
            Self::Tiny => &TINY,
            Self::Small => &SMALL,
            Self::Nano12b => &NANO_12B,
        }
    }
}

impl FromStr for ModelSize {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|size| size.as_str() == name).ok_or_else(|| {
            format!("there is no size {name:?}; use one of {}", Self::ALL.map(Self::as_str).join(", "))
        })
    }
}

/// The whole `config.json`: published field names, and our own `max_num_tiles`, `cpe_align_corners`
/// and sizes of the tower.
pub(super) fn config_json(shapes: &SizeShapes, dtype: StoredType) -> Value {
    json!({
        "architectures": ["NemotronH_Nano_VL_V2"],
        "model_type": "NemotronH_Nano_VL_V2",
        "torch_dtype": dtype.name(),
        "force_image_size": shapes.tile,
        "patch_size": PATCH,
        "downsample_ratio": 1.0 / SHUFFLE as f64,
        "ps_version": "v2",
        "use_thumbnail": shapes.tiles_max > 1,
        "max_num_tiles": shapes.tiles_max,
        "cpe_align_corners": false,
        "image_tag_type": "internvl",
        "vit_hidden_size": shapes.tower[0],
        "projector_hidden_size": shapes.projector_hidden,
        "norm_mean": [0.481_454_66, 0.457_827_5, 0.408_210_73],
        "norm_std": [0.268_629_54, 0.261_302_58, 0.275_777_11],
        "img_context_token_id": IMAGE,
        "img_context_token": "<image>",
        "img_start_token": "<img>",
        "img_end_token": "</img>",
        "vision_config": vision_json(shapes, dtype),
        "llm_config": text_json(shapes, dtype),
    })
}

fn vision_json(shapes: &SizeShapes, dtype: StoredType) -> Value {
    let [hidden, blocks, heads, intermediate] = shapes.tower;
    let table = shapes.tile * shapes.table_tiles;
    json!({
        "model_type": "",
        "torch_dtype": dtype.name(),
        "patch_size": PATCH,
        "hidden_size": hidden,
        "num_hidden_layers": blocks,
        "num_attention_heads": heads,
        "intermediate_size": intermediate,
        "max_resolution": table,
        "preferred_resolution": [shapes.tile, shapes.tile],
        "args": {
            "model": "vit_furrow",
            "cpe_max_size": table,
            "register_multiple": shapes.prefix,
            "cls_token_per_teacher": true,
            "teachers": [{"name": "a"}, {"name": "b"}, {"name": "c"}, {"name": "d"}],
        },
    })
}

fn text_json(shapes: &SizeShapes, dtype: StoredType) -> Value {
    let [heads, kv_heads, head_dim] = shapes.attention;
    let [ssm_heads, ssm_head_dim, state, groups] = shapes.ssm;
    json!({
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "torch_dtype": dtype.name(),
        "hybrid_override_pattern": shapes.pattern,
        "num_hidden_layers": shapes.pattern.len(),
        "hidden_size": shapes.hidden,
        "intermediate_size": shapes.intermediate,
        "vocab_size": shapes.vocabulary,
        "max_position_embeddings": shapes.positions_max,
        "layer_norm_epsilon": 1e-5,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "mamba_num_heads": ssm_heads,
        "mamba_head_dim": ssm_head_dim,
        "ssm_state_size": state,
        "n_groups": groups,
        "conv_kernel": 4,
        "chunk_size": shapes.chunk,
        "time_step_limit": [0.0, {"__float__": "Infinity"}],
        "time_step_min": 0.001,
        "time_step_max": 0.1,
        "time_step_floor": 0.0001,
        "mlp_hidden_act": "relu2",
        "mamba_hidden_act": "silu",
        "use_conv_bias": true,
        "use_bias": false,
        "mlp_bias": false,
        "attention_bias": false,
        "mamba_proj_bias": false,
        "tie_word_embeddings": false,
        "residual_in_fp32": false,
        "use_cache": true,
        "bos_token_id": BOS,
        "eos_token_id": STOP,
    })
}
