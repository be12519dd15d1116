//! The shapes of a model.

use std::ops::Range;

#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub text: TextConfig,
    /// The vision encoder; `None` for a checkpoint that reads text only.
    pub vision: Option<VisionConfig>,
}

/// The mixer of a layer; every layer has exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LayerKind {
    Ssm,
    /// `*`: grouped-query attention without positions.
    Attention,
    Mlp,
    /// `E`: mixture of experts.
    Moe,
}

#[derive(Debug, Clone, PartialEq)]
pub struct TextConfig {
    /// One mixer a layer, in order.
    pub layers: Vec<LayerKind>,
    /// Width of the residual stream, H.
    pub hidden: usize,
    /// Rows of the output head, V.
    pub vocabulary: usize,
    /// Width of an MLP layer, I.
    pub intermediate: usize,
    /// Epsilon of every norm.
    pub norm_epsilon: f32,
    /// Longest sequence in tokens.
    pub positions_max: usize,
    pub attention: AttentionConfig,
    pub ssm: SsmConfig,
    /// Expert layers; `None` when there are none.
    pub moe: Option<MoeConfig>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionConfig {
    pub heads: usize,
    /// Key and value heads; `heads` is a multiple.
    pub kv_heads: usize,
    /// Size of a head; never derived from the hidden size.
    pub head_dim: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SsmConfig {
    pub heads: usize,
    /// Size of a head.
    pub head_dim: usize,
    pub state: usize,
    /// Groups that share one B and one C, G; `heads` is a multiple.
    pub groups: usize,
    /// Taps of the causal convolution.
    pub conv_kernel: usize,
    /// Tokens of a prefill chunk. It is a choice of algorithm that does not change the result.
    pub chunk: usize,
    /// Limits of dt after softplus; (0, inf), which means no limit, in every published checkpoint.
    pub time_step_limit: (f32, f32),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MoeConfig {
    pub experts: usize,
    /// Experts that a token is sent to.
    pub experts_per_token: usize,
    /// Width of a routed expert.
    pub intermediate: usize,
    /// Width of the shared expert; 0 when there is none.
    pub shared_intermediate: usize,
    pub groups: usize,
    /// Router groups that are kept.
    pub groups_kept: usize,
    /// Whether the chosen weights are divided by their sum.
    pub normalise: bool,
    /// Factor on the chosen weights.
    pub scaling: f32,
    /// Width in which the routed experts work; `None`: the hidden size.
    pub latent: Option<usize>,
}

/// The vision encoder: tiles, RADIO tower, pixel shuffle, projector.
#[derive(Debug, Clone, PartialEq)]
pub struct VisionConfig {
    /// Side of a tile in pixels.
    pub tile: usize,
    /// Most tiles of an image, not counting the thumbnail.
    pub tiles_max: usize,
    /// Whether an image of more than one tile also gets a thumbnail.
    pub thumbnail: bool,
    /// Side of a patch in pixels.
    pub patch: usize,
    /// Width of the tower.
    pub hidden: usize,
    /// Blocks of the tower.
    pub blocks: usize,
    /// Attention heads of a block.
    pub heads: usize,
    /// MLP width of a block.
    pub intermediate: usize,
    /// Side of the position table in patches.
    pub positions_side: usize,
    /// Whether the position table is resized with aligned corners.
    pub align_corners: bool,
    /// Pixel shuffle "v1" leaves rows and columns of output tokens swapped; "v2" does not.
    pub shuffle_swapped: bool,
    /// Patches along a side of one token (2 for a downsample ratio of 0.5).
    pub shuffle: usize,
    /// Width inside the projector.
    pub projector_hidden: usize,
    /// Mean of each colour channel.
    pub mean: [f32; 3],
    /// Standard deviation of each colour channel.
    pub std: [f32; 3],
    /// Placeholder of an image row; may be outside the embedding table.
    pub image_token: u32,
    /// Names of the marks around an image in the tokenizer: `<img>`, `</img>`.
    pub image_marks: [String; 2],
}

impl LayerKind {
    /// The layer kind of a character of `hybrid_override_pattern`.
    pub(crate) fn from_letter(letter: char) -> Option<Self> {
        Some(match letter {
            'M' => Self::Ssm,
            '*' => Self::Attention,
            '-' => Self::Mlp,
            'E' => Self::Moe,
            _ => return None,
        })
    }

    /// Its character in `hybrid_override_pattern`.
    pub fn letter(self) -> char {
        match self {
            Self::Ssm => 'M',
            Self::Attention => '*',
            Self::Mlp => '-',
            Self::Moe => 'E',
        }
    }

    /// The layer kind of a name in `layers_block_type`, old or new.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "mamba" | "linear_attention" => Self::Ssm,
            "attention" | "full_attention" => Self::Attention,
            "mlp" => Self::Mlp,
            "moe" => Self::Moe,
            _ => return None,
        })
    }
}

impl TextConfig {
    /// Layers of one kind, by index.
    pub fn layers_of(&self, kind: LayerKind) -> impl Iterator<Item = usize> + '_ {
        self.layers.iter().enumerate().filter(move |(_, k)| **k == kind).map(|(index, _)| index)
    }
}

impl SsmConfig {
    /// Inner width, P = heads x head size.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Channels of the convolution, W = P + 2 G N.
    pub fn conv_width(&self) -> usize {
        self.inner() + 2 * self.groups * self.state
    }

    /// Rows of `in_proj`: z, x, B, C, dt.
    pub fn in_proj_width(&self) -> usize {
        self.inner() + self.conv_width() + self.heads
    }

    /// Range of each part in a row of `in_proj`: z, then x | B | C together, then dt.
    pub fn parts(&self) -> [Range<usize>; 3] {
        let inner = self.inner();
        let conv = self.conv_width();
        [0..inner, inner..inner + conv, inner + conv..inner + conv + self.heads]
    }
}

impl VisionConfig {
    /// Patches along a side of a tile.
    pub fn patches_side(&self) -> usize {
        self.tile / self.patch
    }

    /// Language-model rows of a tile: (512 / 16 / 2)^2 = 256 as published.
    pub fn rows_per_tile(&self) -> usize {
        (self.patches_side() / self.shuffle).pow(2)
    }
}
