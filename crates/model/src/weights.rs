//! The weights of a model in the form for products: `checkpoint.rs` loads them and a backend runs
//! them.

mod load;

pub use self::load::decay;
use crate::config::Config;
use crate::kernels::PackedMatrix;

/// All weights.
#[derive(Debug)]
pub struct ModelWeights {
    /// Configuration that the weights belong to.
    pub config: Config,
    /// The language model.
    pub text: TextWeights,
    /// The vision encoder.
    pub vision: Option<VisionWeights>,
}

/// The language model.
#[derive(Debug)]
pub struct TextWeights {
    /// `[rows, H]`, by row; may have more rows than the head.
    pub embeddings: EmbeddingTable,
    /// Layers in order.
    pub layers: Vec<LayerWeights>,
    /// `[H]`.
    pub final_norm: Vec<f32>,
    /// `[V, H]`.
    pub head: PackedMatrix,
}

/// A table looked up by row.
#[derive(Debug)]
pub struct EmbeddingTable {
    /// Rows.
    pub rows: usize,
    /// Values a row.
    pub width: usize,
    /// Values, as stored.
    pub values: StoredValues,
}

/// Stored values.
#[derive(Debug)]
pub enum StoredValues {
    /// float32.
    F32(Vec<f32>),
    /// bfloat16 bits.
    Bf16(Vec<u16>),
}

/// A layer: its pre-norm and its mixer.
#[derive(Debug)]
pub struct LayerWeights {
    /// `[H]`.
    pub norm: Vec<f32>,
    /// Its mixer.
    pub mixer: MixerWeights,
}

/// The four mixers.
#[derive(Debug)]
pub enum MixerWeights {
    /// Mamba-2.
    Ssm(SsmWeights),
    /// Grouped-query attention.
    Attention(AttentionWeights),
    /// Squared-ReLU MLP.
    Mlp(MlpWeights),
    /// Mixture of experts.
    Moe(MoeWeights),
}

/// Mamba-2.
#[derive(Debug)]
pub struct SsmWeights {
    /// `[2P + 2GN + Hm, H]`: z, x, B, C, dt.
    pub in_proj: PackedMatrix,
    /// Taps by channel, `[W, kernel]`; the last tap is that of the current token.
    pub conv: Vec<f32>,
    /// `[W]`.
    pub conv_bias: Vec<f32>,
    /// A = -exp(A_log), `[Hm]`.
    pub a: Vec<f32>,
    /// `[Hm]`.
    pub d: Vec<f32>,
    /// `[Hm]`.
    pub dt_bias: Vec<f32>,
    /// Weight of the gated group norm, `[P]`.
    pub norm: Vec<f32>,
    /// `[H, P]`.
    pub out_proj: PackedMatrix,
}

/// Grouped-query attention.
#[derive(Debug)]
pub struct AttentionWeights {
    /// q, k and v by row, `[(heads + 2 kv_heads) head_dim, H]`.
    pub qkv: PackedMatrix,
    /// `[H, heads head_dim]`.
    pub out: PackedMatrix,
}

/// Squared-ReLU MLP.
#[derive(Debug)]
pub struct MlpWeights {
    /// `[I, H]`.
    pub up: PackedMatrix,
    /// `[H, I]`.
    pub down: PackedMatrix,
}

/// Mixture of experts.
#[derive(Debug)]
pub struct MoeWeights {
    /// Router, `[experts, H]`.
    pub gate: PackedMatrix,
    /// `e_score_correction_bias`, `[experts]`.
    pub correction: Vec<f32>,
    /// Routed experts.
    pub experts: Vec<MlpWeights>,
    /// The shared expert.
    pub shared: Option<MlpWeights>,
    /// Down to and up from the latent width, `[L, H]` and `[H, L]`.
    pub latent: Option<[PackedMatrix; 2]>,
}

/// The vision encoder.
#[derive(Debug)]
pub struct VisionWeights {
    /// Patch embedding, `[hidden, 3 patch^2]`.
    pub embedder: PackedMatrix,
    /// Position table, `[side^2, hidden]`.
    pub positions: Vec<f32>,
    /// Prefix tokens, `[prefix, hidden]`; their number comes from the tensor.
    pub prefix: Vec<f32>,
    /// Blocks in order.
    pub blocks: Vec<VisionBlock>,
    /// Weight of the projector's RMSNorm, `[shuffle^2 hidden]`.
    pub projector_norm: Vec<f32>,
    /// The projector, up to `projector_hidden` and down to H.
    pub projector: MlpWeights,
}

/// One transformer block of the tower.
#[derive(Debug)]
pub struct VisionBlock {
    /// LayerNorm before attention.
    pub norm1: LayerNormWeights,
    /// `[3 hidden, hidden]`: q, k, v; inside each, head-major.
    pub qkv: BiasedMatrix,
    /// `[hidden, hidden]`.
    pub proj: BiasedMatrix,
    /// LayerNorm before the MLP.
    pub norm2: LayerNormWeights,
    /// `[intermediate, hidden]`.
    pub fc1: BiasedMatrix,
    /// `[hidden, intermediate]`.
    pub fc2: BiasedMatrix,
}

/// Scale and shift of a LayerNorm.
#[derive(Debug)]
pub struct LayerNormWeights {
    /// Scale.
    pub weight: Vec<f32>,
    /// Shift.
    pub bias: Vec<f32>,
}

/// A matrix and the bias of its product.
#[derive(Debug)]
pub struct BiasedMatrix {
    /// `[out, in]`.
    pub matrix: PackedMatrix,
    /// `[out]`.
    pub bias: Vec<f32>,
}
