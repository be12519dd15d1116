//! The weights of a model in the form for products: `checkpoint.rs` loads them and a backend runs
//! them.

mod load;

pub use self::load::decay;
use crate::config::Config;
use crate::kernels::PackedMatrix;

#[derive(Debug)]
pub struct ModelWeights {
    /// Configuration that the weights belong to.
    pub config: Config,
    pub text: TextWeights,
    pub vision: Option<VisionWeights>,
}

#[derive(Debug)]
pub struct TextWeights {
    /// `[rows, H]`, by row; may have more rows than the head.
    pub embeddings: EmbeddingTable,
    pub layers: Vec<LayerWeights>,
    pub final_norm: Vec<f32>,
    pub head: PackedMatrix,
}

/// A table looked up by row.
#[derive(Debug)]
pub struct EmbeddingTable {
    pub rows: usize,
    pub width: usize,
    pub values: StoredValues,
}

#[derive(Debug)]
pub enum StoredValues {
    F32(Vec<f32>),
    Bf16(Vec<u16>),
}

/// A layer: its pre-norm and its mixer.
#[derive(Debug)]
pub struct LayerWeights {
    pub norm: Vec<f32>,
    pub mixer: MixerWeights,
}

#[derive(Debug)]
pub enum MixerWeights {
    Ssm(SsmWeights),
    Attention(AttentionWeights),
    Mlp(MlpWeights),
    Moe(MoeWeights),
}

#[derive(Debug)]
pub struct SsmWeights {
    /// `[2P + 2GN + Hm, H]`: z, x, B, C, dt.
    pub in_proj: PackedMatrix,
    /// Taps by channel, `[W, kernel]`; the last tap is that of the current token.
    pub conv: Vec<f32>,
    pub conv_bias: Vec<f32>,
    pub a: Vec<f32>,
    pub d: Vec<f32>,
    pub dt_bias: Vec<f32>,
    /// Weight of the gated group norm, `[P]`.
    pub norm: Vec<f32>,
    pub out_proj: PackedMatrix,
}

#[derive(Debug)]
pub struct AttentionWeights {
    /// q, k and v by row, `[(heads + 2 kv_heads) head_dim, H]`.
    pub qkv: PackedMatrix,
    pub out: PackedMatrix,
}

#[derive(Debug)]
pub struct MlpWeights {
    pub up: PackedMatrix,
    pub down: PackedMatrix,
}

#[derive(Debug)]
pub struct MoeWeights {
    pub gate: PackedMatrix,
    pub correction: Vec<f32>,
    pub experts: Vec<MlpWeights>,
    pub shared: Option<MlpWeights>,
    /// Down to and up from the latent width, `[L, H]` and `[H, L]`.
    pub latent: Option<[PackedMatrix; 2]>,
}

#[derive(Debug)]
pub struct VisionWeights {
    /// Patch embedding, `[hidden, 3 patch^2]`.
    pub embedder: PackedMatrix,
    /// Position table, `[side^2, hidden]`.
    pub positions: Vec<f32>,
    /// Prefix tokens, `[prefix, hidden]`; their number comes from the tensor.
    pub prefix: Vec<f32>,
    pub blocks: Vec<VisionBlock>,
    /// Weight of the projector's RMSNorm, `[shuffle^2 hidden]`.
    pub projector_norm: Vec<f32>,
    /// The projector, up to `projector_hidden` and down to H.
    pub projector: MlpWeights,
}

/// One transformer block of the tower.
#[derive(Debug)]
pub struct VisionBlock {
    pub norm1: LayerNormWeights,
    /// `[3 hidden, hidden]`: q, k, v; inside each, head-major.
    pub qkv: BiasedMatrix,
    pub proj: BiasedMatrix,
    /// LayerNorm before the MLP.
    pub norm2: LayerNormWeights,
    pub fc1: BiasedMatrix,
    pub fc2: BiasedMatrix,
}

/// Scale and shift of a LayerNorm.
#[derive(Debug)]
pub struct LayerNormWeights {
    pub weight: Vec<f32>,
    pub bias: Vec<f32>,
}

/// A matrix and the bias of its product.
#[derive(Debug)]
pub struct BiasedMatrix {
    pub matrix: PackedMatrix,
    pub bias: Vec<f32>,
}
