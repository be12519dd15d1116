//! The weights on the device: where each lies, and what must be brought there.
//!
//! Matrices lie as checkpoints store them, `[outputs, inputs]` by row, which is what products read; q, k and v of a layer one behind the other. Taps of the
//! convolution are turned to `[kernel, W]`; A is -exp(A_log) and stands, with D and dt_bias, in float32. One walk over the model places every tensor and
//! says what goes there; `load.rs` brings it, all at once or piece by piece beside running batches.

mod kept;
mod load;

use std::collections::BTreeSet;

use furrow_model::checkpoint::{Checkpoint, CheckpointError};
use furrow_model::config::{Config, LayerKind, MoeConfig, TextConfig, VisionConfig};

pub(crate) use self::kept::Kept;
pub use self::load::LoadError;
pub(crate) use self::load::{Hold, bring, bring_noise, check};
use crate::arena::Placer;
use crate::executor::Matrix;
use crate::launch::{Element, View};
use crate::types::Value;

/// Part of a plan.
const WEIGHTS: &str = "weights";
/// What the tower's names start with.
const TOWER: &str = "vision_model.radio_model.model.";

/// All weights.
#[derive(Debug)]
pub(crate) struct Weights<T> {
    pub text: TextWeights<T>,
    pub vision: Option<VisionWeights<T>>,
}

/// The language model.
#[derive(Debug)]
pub(crate) struct TextWeights<T> {
    /// `[rows, H]`; the rows may be more than the head's.
    pub embeddings: Matrix<T>,
    pub layers: Vec<Layer<T>>,
    /// `[H]`.
    pub final_norm: View<T>,
    /// `[V, H]`.
    pub head: Matrix<T>,
    /// Widest inputs, and widest outputs that are narrowed, of products in float32 in a model of bfloat16.
    pub widest: [usize; 2],
}

/// A layer: its pre-norm `[H]` and its mixer.
#[derive(Debug)]
pub(crate) struct Layer<T> {
    pub norm: View<T>,
    pub mixer: Mixer<T>,
}

/// The four mixers.
#[derive(Debug)]
pub(crate) enum Mixer<T> {
    Ssm(SsmWeights<T>),
    Attention(AttentionWeights<T>),
    Mlp(MlpWeights<T>),
    Moe(MoeWeights<T>),
}

/// Mamba-2.
#[derive(Debug)]
pub(crate) struct SsmWeights<T> {
    pub in_proj: Matrix<T>,
    /// `[kernel, W]`.
    pub taps: View<T>,
    pub conv_bias: View<T>,
    pub a: View<f32>,
    pub d: View<f32>,
    pub dt_bias: View<f32>,
    pub norm: View<T>,
    pub out_proj: Matrix<T>,
}

/// Grouped-query attention.
#[derive(Debug)]
pub(crate) struct AttentionWeights<T> {
    /// q, k and v.
    pub qkv: Matrix<T>,
    pub out: Matrix<T>,
}

/// Squared-ReLU MLP.
#[derive(Debug)]
pub(crate) struct MlpWeights<T> {
    pub up: Matrix<T>,
    pub down: Matrix<T>,
}

/// Mixture of experts.
#[derive(Debug)]
pub(crate) struct MoeWeights<T> {
    /// Router, `[experts, H]`.
    pub gate: Matrix<T>,
    /// Added to scores where they choose, `[experts]`.
    pub correction: View<f32>,
    /// `[experts, inner, width]`; the width is H or the latent one.
    pub up: View<T>,
    /// `[experts, width, inner]`.
    pub down: View<T>,
    /// The shared expert.
    pub shared: Option<MlpWeights<T>>,
    /// Down to and up from the latent width, `[L, H]` and `[H, L]`.
    pub latent: Option<[Matrix<T>; 2]>,
}

/// The vision encoder.
#[derive(Debug)]
pub(crate) struct VisionWeights<T> {
    pub embedder: Matrix<T>,
    /// Of each patch of a tile, `[patches, hidden]`.
    pub positions: View<f32>,
    /// `[prefix, hidden]`.
    pub prefix: View<T>,
    pub blocks: Vec<VisionBlock<T>>,
    pub projector_norm: View<T>,
    pub projector: MlpWeights<T>,
}

/// One transformer block of the tower.
#[derive(Debug)]
pub(crate) struct VisionBlock<T> {
    pub norm1: Affine<T>,
    pub qkv: Biased<T>,
    pub proj: Biased<T>,
    pub norm2: Affine<T>,
    pub fc1: Biased<T>,
    pub fc2: Biased<T>,
}

/// Scale and shift of a LayerNorm.
#[derive(Debug)]
pub(crate) struct Affine<T> {
    pub weight: View<T>,
    pub shift: View<T>,
}

/// A matrix and what is added to its product.
#[derive(Debug)]
pub(crate) struct Biased<T> {
    pub matrix: Matrix<T>,
    pub bias: View<T>,
}

/// What only a checkpoint says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Rows of the embedding table.
    pub embeddings: usize,
    /// Prefix tokens of the tower.
    pub prefix: usize,
    /// Matrices in float32, by name, of a model that is computed in bfloat16.
    pub wide: BTreeSet<String>,
}

/// What must be brought to a place.
#[derive(Debug)]
pub(crate) struct Cargo {
    /// Tensors, one behind the other.
    pub names: Vec<String>,
    /// Where to.
    pub to: u64,
    /// Values.
    pub count: usize,
    /// What becomes of them on the way.
    pub form: Form,
    /// What is there where nothing is loaded.
    pub noise: Noise,
}

/// What becomes of a tensor on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// As it is, in the type of the weights.
    Stored,
    /// `[rows, columns]` as `[columns, rows]`, in the type of the weights.
    Turned { rows: usize, columns: usize },
    /// float32.
    Float32,
    /// -exp of it, float32.
    Decay,
    /// The position table at the size of a tile, float32.
    Positions,
}

/// Values that come from nowhere: a middle, and how far they are from it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Noise(pub f32, pub f32);

impl Noise {
    /// Norms, scales and biases.
    const VECTOR: Self = Self(1.0, 0.1);

    /// A matrix whose product is about as large as its inputs.
    fn matrix(inputs: usize) -> Self {
        Self(0.0, 1.7 / (inputs as f32).sqrt())
    }
}

impl Counts {
    /// As a configuration has them where no checkpoint is at hand. Prefix tokens: as many as the published tower has.
    pub fn of_config(config: &Config) -> Self {
        let prefix = if config.vision.is_some() { 16 } else { 0 };
        Self { embeddings: config.text.vocabulary, prefix, wide: BTreeSet::new() }
    }

    pub fn of(checkpoint: &Checkpoint, wide: BTreeSet<String>) -> Result<Self, CheckpointError> {
        let rows = |name: &str| -> Result<usize, CheckpointError> {
            Ok(checkpoint.tensor(name)?.shape().first().copied().unwrap_or(0))
        };
        let prefix = format!("{TOWER}patch_generator.cls_token.token");
        Ok(Self {
            embeddings: rows("backbone.embeddings.weight")?,
            prefix: checkpoint.config().vision.as_ref().map_or(Ok(0), |_| rows(&prefix))?,
            wide,
        })
    }
}

impl<T: Value> Weights<T> {
    /// Places everything, and says what must be brought there.
    pub fn place(config: &Config, counts: &Counts, placer: &mut Placer) -> (Self, Vec<Cargo>) {
        let (prefix, wide) = (String::new(), &counts.wide);
        let mut walk = Walk { placer, prefix, cargo: Vec::new(), wide, widest: [0; 2] };
        let text = walk.text(&config.text, counts.embeddings);
        let hidden = config.text.hidden;
        let vision = config.vision.as_ref().map(|vision| walk.vision(vision, hidden, counts.prefix));
        (Self { text, vision }, walk.cargo)
    }
}

/// Goes over a model's tensors in one order.
struct Walk<'a> {
    placer: &'a mut Placer,
    /// What the next names start with.
    prefix: String,
    cargo: Vec<Cargo>,
    /// Matrices that are kept in float32.
    wide: &'a BTreeSet<String>,
    widest: [usize; 2],
}

impl Walk<'_> {
    fn text<T: Value>(&mut self, text: &TextConfig, embeddings: usize) -> TextWeights<T> {
        self.enter("backbone.");
        let embeddings = self.matrix("embeddings.weight", embeddings, text.hidden);
        let layers = (0..).zip(&text.layers).map(|(index, kind)| self.layer(text, index, *kind));
        let layers = layers.collect();
        self.enter("");
        TextWeights {
            embeddings,
            layers,
            final_norm: self.vector("backbone.norm_f.weight", text.hidden),
            head: self.with_f32_outputs("lm_head.weight", text.vocabulary, text.hidden),
            widest: self.widest,
        }
    }

    fn layer<T: Value>(&mut self, text: &TextConfig, index: usize, kind: LayerKind) -> Layer<T> {
        self.enter(&format!("backbone.layers.{index}."));
        let norm = self.vector("norm.weight", text.hidden);
        self.enter(&format!("backbone.layers.{index}.mixer."));
        let mixer = match kind {
            LayerKind::Ssm => Mixer::Ssm(self.ssm(text)),
            LayerKind::Attention => Mixer::Attention(self.attention(text)),
            LayerKind::Mlp => Mixer::Mlp(self.mlp("", text.hidden, text.intermediate)),
            LayerKind::Moe => {
                let moe = text.moe.as_ref();
                let moe = moe.expect("a checked configuration with expert layers has their sizes");
                Mixer::Moe(self.moe(text.hidden, moe))
            }
        };
        Layer { norm, mixer }
    }

    fn ssm<T: Value>(&mut self, text: &TextConfig) -> SsmWeights<T> {
        let ssm = &text.ssm;
        let (width, kernel) = (ssm.conv_width(), ssm.conv_kernel);
        let turned = Form::Turned { rows: width, columns: kernel };
        SsmWeights {
            in_proj: self.matrix("in_proj.weight", ssm.in_proj_width(), text.hidden),
            taps: self.put(&["conv1d.weight"], width * kernel, turned, Noise(0.0, 0.6)),
            conv_bias: self.vector("conv1d.bias", width),
            a: self.put(&["A_log"], ssm.heads, Form::Decay, Noise(-1.5, 0.5)),
            d: self.put(&["D"], ssm.heads, Form::Float32, Noise::VECTOR),
            dt_bias: self.put(&["dt_bias"], ssm.heads, Form::Float32, Noise(-3.0, 1.0)),
            norm: self.vector("norm.weight", ssm.inner()),
            out_proj: self.matrix("out_proj.weight", text.hidden, ssm.inner()),
        }
    }

    fn attention<T: Value>(&mut self, text: &TextConfig) -> AttentionWeights<T> {
        let [q, _, qkv] = text.attention.widths();
        let names = ["q_proj.weight", "k_proj.weight", "v_proj.weight"];
        AttentionWeights {
            qkv: self.matrices(&names, qkv, text.hidden, qkv),
            out: self.matrix("o_proj.weight", text.hidden, q),
        }
    }

    fn mlp<T: Value>(&mut self, name: &str, outer: usize, inner: usize) -> MlpWeights<T> {
        MlpWeights {
            up: self.matrix(&format!("{name}up_proj.weight"), inner, outer),
            down: self.matrix(&format!("{name}down_proj.weight"), outer, inner),
        }
    }

    fn moe<T: Value>(&mut self, hidden: usize, moe: &MoeConfig) -> MoeWeights<T> {
        let (width, inner, shared) =
            (moe.latent.unwrap_or(hidden), moe.intermediate, moe.shared_intermediate);
        let gate = self.with_f32_outputs("gate.weight", moe.experts, hidden);
        let correction =
            self.put(&["gate.e_score_correction_bias"], moe.experts, Form::Float32, Noise(0.0, 0.1));
        let mut of_all = |part: &str, inputs: usize| {
            let names: Vec<String> =
                (0..moe.experts).map(|expert| format!("experts.{expert}.{part}_proj.weight")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            self.put(&names, moe.experts * width * inner, Form::Stored, Noise::matrix(inputs))
        };
        let (up, down) = (of_all("up", width), of_all("down", inner));
        MoeWeights {
            gate,
            correction,
            up,
            down,
            shared: (shared > 0).then(|| self.mlp("shared_experts.", hidden, shared)),
            latent: moe.latent.map(|latent| {
                [
                    self.matrix("fc1_latent_proj.weight", latent, hidden),
                    self.matrix("fc2_latent_proj.weight", hidden, latent),
                ]
            }),
        }
    }

    fn vision<T: Value>(
        &mut self,
        vision: &VisionConfig,
        text_hidden: usize,
        prefix: usize,
    ) -> VisionWeights<T> {
        let (hidden, patches) = (vision.hidden, vision.patches_side().pow(2));
        self.enter(&format!("{TOWER}patch_generator."));
        let embedder = self.matrix("embedder.weight", hidden, 3 * vision.patch.pow(2));
        let positions = self.put(&["pos_embed"], patches * hidden, Form::Positions, Noise(0.0, 1.0));
        let prefix = self.vector("cls_token.token", prefix * hidden);
        let blocks = (0..vision.blocks).map(|index| self.block(vision, index)).collect();
        let shuffled = vision.shuffle.pow(2) * hidden;
        self.enter("mlp1.");
        VisionWeights {
            embedder,
            positions,
            prefix,
            blocks,
            projector_norm: self.vector("0.weight", shuffled),
            projector: MlpWeights {
                up: self.matrix("1.weight", vision.projector_hidden, shuffled),
                down: self.matrix("3.weight", text_hidden, vision.projector_hidden),
            },
        }
    }

    fn block<T: Value>(&mut self, vision: &VisionConfig, index: usize) -> VisionBlock<T> {
        let (hidden, wide) = (vision.hidden, vision.intermediate);
        self.enter(&format!("{TOWER}blocks.{index}."));
        VisionBlock {
            norm1: self.affine("norm1", hidden),
            qkv: self.biased("attn.qkv", 3 * hidden, hidden),
            proj: self.biased("attn.proj", hidden, hidden),
            norm2: self.affine("norm2", hidden),
            fc1: self.biased("mlp.fc1", wide, hidden),
            fc2: self.biased("mlp.fc2", hidden, wide),
        }
    }

    /// What the next names start with.
    fn enter(&mut self, prefix: &str) {
        prefix.clone_into(&mut self.prefix);
    }

    fn matrix<T: Value>(&mut self, name: &str, outputs: usize, inputs: usize) -> Matrix<T> {
        self.matrices(&[name], outputs, inputs, outputs)
    }

    /// One whose outputs are float32 in any case.
    fn with_f32_outputs<T: Value>(&mut self, name: &str, outputs: usize, inputs: usize) -> Matrix<T> {
        self.matrices(&[name], outputs, inputs, 0)
    }

    /// Matrices as one, `[outputs, inputs]`; so many of the outputs are narrowed where it is in float32.
    fn matrices<T: Value>(
        &mut self,
        names: &[&str],
        outputs: usize,
        inputs: usize,
        narrowed: usize,
    ) -> Matrix<T> {
        let (count, noise) = (outputs * inputs, Noise::matrix(inputs));
        if !names.iter().any(|name| self.wide.contains(&format!("{}{name}", self.prefix))) {
            return Matrix {
                values: self.put(names, count, Form::Stored, noise),
                wide: None,
                outputs,
                inputs,
            };
        }
        self.widest = [self.widest[0].max(inputs), self.widest[1].max(narrowed)];
        let wide = self.put(names, count, Form::Float32, noise);
        Matrix { values: View::new(wide.address(), 0), wide: Some(wide), outputs, inputs }
    }

    fn affine<T: Value>(&mut self, name: &str, width: usize) -> Affine<T> {
        Affine {
            weight: self.vector(&format!("{name}.weight"), width),
            shift: self.vector(&format!("{name}.bias"), width),
        }
    }

    fn biased<T: Value>(&mut self, name: &str, outputs: usize, inputs: usize) -> Biased<T> {
        Biased {
            matrix: self.matrix(&format!("{name}.weight"), outputs, inputs),
            bias: self.vector(&format!("{name}.bias"), outputs),
        }
    }

    fn vector<T: Value>(&mut self, name: &str, count: usize) -> View<T> {
        self.put(&[name], count, Form::Stored, Noise::VECTOR)
    }

    /// Tensors one behind the other, in a place of their own.
    fn put<T: Element>(&mut self, names: &[&str], count: usize, form: Form, noise: Noise) -> View<T> {
        let view: View<T> = self.placer.take(WEIGHTS, count);
        let names = names.iter().map(|name| format!("{}{name}", self.prefix)).collect();
        self.cargo.push(Cargo { names, to: view.address(), count, form, noise });
        view
    }
}
