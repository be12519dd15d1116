//! The weights of a model, ready to be multiplied with: what `checkpoint.rs` loads and a backend runs.

mod load;

pub use self::load::decay;
use crate::config::Config;
use crate::kernels::Matrix;

/// All weights.
#[derive(Debug)]
pub struct Weights {
    /// What they are the weights of.
    pub config: Config,
    /// The language model.
    pub text: TextWeights,
    /// The vision encoder.
    pub vision: Option<VisionWeights>,
}

/// The language model.
#[derive(Debug)]
pub struct TextWeights {
    /// `[rows, H]`, by row; the rows may be more than the head's.
    pub embeddings: Table,
    /// Layers in order.
    pub layers: Vec<Layer>,
    /// `[H]`.
    pub final_norm: Vec<f32>,
    /// `[V, H]`.
    pub head: Matrix,
}

/// A table looked up by row.
#[derive(Debug)]
pub struct Table {
    /// Rows.
    pub rows: usize,
    /// Values a row.
    pub width: usize,
    /// Values, as stored.
    pub values: Values,
}

/// Stored values.
#[derive(Debug)]
pub enum Values {
    /// float32.
    F32(Vec<f32>),
    /// bfloat16 bits.
    Bf16(Vec<u16>),
}

/// A layer: its pre-norm and its mixer.
#[derive(Debug)]
pub struct Layer {
    /// `[H]`.
    pub norm: Vec<f32>,
    /// What it does.
    pub mixer: Mixer,
}

/// The four mixers.
#[derive(Debug)]
pub enum Mixer {
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
    pub in_proj: Matrix,
    /// Taps by channel, `[W, kernel]`; the last tap is the present token's.
    pub conv: Vec<f32>,
    /// `[W]`.
    pub conv_bias: Vec<f32>,
    /// A = -exp(A_log), `[Hm]`.
    pub a: Vec<f32>,
    /// `[Hm]`.
    pub d: Vec<f32>,
    /// `[Hm]`.
    pub dt_bias: Vec<f32>,
    /// Of the gated group norm, `[P]`.
    pub norm: Vec<f32>,
    /// `[H, P]`.
    pub out_proj: Matrix,
}

/// Grouped-query attention.
#[derive(Debug)]
pub struct AttentionWeights {
    /// q, k and v rows one after another, `[(heads + 2 kv_heads) head_dim, H]`.
    pub qkv: Matrix,
    /// `[H, heads head_dim]`.
    pub out: Matrix,
}

/// Squared-ReLU MLP.
#[derive(Debug)]
pub struct MlpWeights {
    /// `[I, H]`.
    pub up: Matrix,
    /// `[H, I]`.
    pub down: Matrix,
}

/// Mixture of experts.
#[derive(Debug)]
pub struct MoeWeights {
    /// Router, `[experts, H]`.
    pub gate: Matrix,
    /// `e_score_correction_bias`, `[experts]`.
    pub correction: Vec<f32>,
    /// Routed experts.
    pub experts: Vec<MlpWeights>,
    /// The shared expert.
    pub shared: Option<MlpWeights>,
    /// Down to and up from the latent width, `[L, H]` and `[H, L]`.
    pub latent: Option<[Matrix; 2]>,
}

/// The vision encoder.
#[derive(Debug)]
pub struct VisionWeights {
    /// Patch embedding, `[hidden, 3 patch^2]`.
    pub embedder: Matrix,
    /// Position table, `[side^2, hidden]`.
    pub positions: Vec<f32>,
    /// Prefix tokens, `[prefix, hidden]`; how many is read from the tensor.
    pub prefix: Vec<f32>,
    /// Blocks in order.
    pub blocks: Vec<VisionBlock>,
    /// Of the projector's RMSNorm, `[shuffle^2 hidden]`.
    pub projector_norm: Vec<f32>,
    /// The projector, up to `projector_hidden` and down to H.
    pub projector: MlpWeights,
}

/// One transformer block of the tower.
#[derive(Debug)]
pub struct VisionBlock {
    /// LayerNorm before attention.
    pub norm1: Affine,
    /// `[3 hidden, hidden]`: q, k, v; inside each, head-major.
    pub qkv: BiasedMatrix,
    /// `[hidden, hidden]`.
    pub proj: BiasedMatrix,
    /// LayerNorm before the MLP.
    pub norm2: Affine,
    /// `[intermediate, hidden]`.
    pub fc1: BiasedMatrix,
    /// `[hidden, intermediate]`.
    pub fc2: BiasedMatrix,
}

/// Scale and shift of a LayerNorm.
#[derive(Debug)]
pub struct Affine {
    /// Scale.
    pub weight: Vec<f32>,
    /// Shift.
    pub bias: Vec<f32>,
}

/// A matrix and what is added to its product.
#[derive(Debug)]
pub struct BiasedMatrix {
    /// `[out, in]`.
    pub matrix: Matrix,
    /// `[out]`.
    pub bias: Vec<f32>,
}
