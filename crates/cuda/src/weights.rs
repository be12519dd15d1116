//! The weights on the device: the address of each, and what must be uploaded there.
//!
//! Matrices have the layout of checkpoints, `[outputs, inputs]` by row, which products read
//! directly; q, k and v of a layer are adjacent. Taps of the convolution are transposed to
//! `[kernel, W]`; A is -exp(A_log) and is stored, with D and dt_bias, in float32. One pass over the
//! model assigns every tensor an address and its upload; `load.rs` uploads them, all at once or
//! piece by piece while batches run.

mod load;
mod matrix_types;

use std::collections::BTreeSet;

use furrow_model::checkpoint::{Checkpoint, CheckpointError};
use furrow_model::config::{Config, LayerKind, MoeConfig, TextConfig, VisionConfig};

pub use self::load::LoadError;
pub(crate) use self::load::{UploadTarget, check, upload_noise, upload_tensor};
pub(crate) use self::matrix_types::MatrixTypes;
use crate::arena::BufferAllocator;
use crate::executor::DeviceMatrix;
use crate::launch::{DeviceElement, DeviceView};
use crate::types::WeightElement;

/// Part of a plan.
const WEIGHTS: &str = "weights";
/// Prefix of the tower's names.
const TOWER: &str = "vision_model.radio_model.model.";

#[derive(Debug)]
pub(crate) struct DeviceWeights<T> {
    pub text: DeviceTextWeights<T>,
    pub vision: Option<DeviceVisionWeights<T>>,
}

#[derive(Debug)]
pub(crate) struct DeviceTextWeights<T> {
    /// `[rows, H]`; may have more rows than the head.
    pub embeddings: DeviceMatrix<T>,
    pub layers: Vec<DeviceLayer<T>>,
    pub final_norm: DeviceView<T>,
    pub head: DeviceMatrix<T>,
    /// Widest inputs, and widest narrowed outputs, of float32 products in a bfloat16 model.
    pub widest: [usize; 2],
}

/// A layer: its pre-norm `[H]` and its mixer.
#[derive(Debug)]
pub(crate) struct DeviceLayer<T> {
    pub norm: DeviceView<T>,
    pub mixer: DeviceMixer<T>,
}

#[derive(Debug)]
pub(crate) enum DeviceMixer<T> {
    Ssm(DeviceSsmWeights<T>),
    Attention(DeviceAttentionWeights<T>),
    Mlp(DeviceMlpWeights<T>),
    Moe(DeviceMoeWeights<T>),
}

#[derive(Debug)]
pub(crate) struct DeviceSsmWeights<T> {
    pub in_proj: DeviceMatrix<T>,
    pub taps: DeviceView<T>,
    pub conv_bias: DeviceView<T>,
    pub a: DeviceView<f32>,
    pub d: DeviceView<f32>,
    pub dt_bias: DeviceView<f32>,
    pub norm: DeviceView<T>,
    pub out_proj: DeviceMatrix<T>,
}

#[derive(Debug)]
pub(crate) struct DeviceAttentionWeights<T> {
    /// q, k and v.
    pub qkv: DeviceMatrix<T>,
    pub out: DeviceMatrix<T>,
}

#[derive(Debug)]
pub(crate) struct DeviceMlpWeights<T> {
    pub up: DeviceMatrix<T>,
    pub down: DeviceMatrix<T>,
}

#[derive(Debug)]
pub(crate) struct DeviceMoeWeights<T> {
    pub gate: DeviceMatrix<T>,
    /// Added to scores for the choice, `[experts]`.
    pub correction: DeviceView<f32>,
    /// `[experts, inner, width]`; the width is H or the latent one.
    pub up: DeviceView<T>,
    pub down: DeviceView<T>,
    pub shared: Option<DeviceMlpWeights<T>>,
    /// Down to and up from the latent width, `[L, H]` and `[H, L]`.
    pub latent: Option<[DeviceMatrix<T>; 2]>,
}

#[derive(Debug)]
pub(crate) struct DeviceVisionWeights<T> {
    pub embedder: DeviceMatrix<T>,
    /// Position of each patch of a tile, `[patches, hidden]`.
    pub positions: DeviceView<f32>,
    pub prefix: DeviceView<T>,
    pub blocks: Vec<DeviceVisionBlock<T>>,
    pub projector_norm: DeviceView<T>,
    pub projector: DeviceMlpWeights<T>,
}

/// One transformer block of the tower.
#[derive(Debug)]
pub(crate) struct DeviceVisionBlock<T> {
    pub norm1: DeviceLayerNorm<T>,
    pub qkv: DeviceBiasedMatrix<T>,
    pub proj: DeviceBiasedMatrix<T>,
    pub norm2: DeviceLayerNorm<T>,
    pub fc1: DeviceBiasedMatrix<T>,
    pub fc2: DeviceBiasedMatrix<T>,
}

/// Scale and shift of a LayerNorm.
#[derive(Debug)]
pub(crate) struct DeviceLayerNorm<T> {
    pub weight: DeviceView<T>,
    pub shift: DeviceView<T>,
}

/// A matrix and the bias of its product.
#[derive(Debug)]
pub(crate) struct DeviceBiasedMatrix<T> {
    pub matrix: DeviceMatrix<T>,
    pub bias: DeviceView<T>,
}

/// Numbers that only a checkpoint has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CheckpointCounts {
    /// Rows of the embedding table.
    pub embeddings: usize,
    /// Prefix tokens of the tower.
    pub prefix: usize,
    /// Names of float32 matrices of a model that is computed in bfloat16.
    pub wide: BTreeSet<String>,
}

/// The upload of one buffer.
#[derive(Debug)]
pub(crate) struct TensorUpload {
    /// Tensors, stored one after another.
    pub names: Vec<String>,
    pub to: u64,
    pub count: usize,
    /// Conversion of the tensors.
    pub form: UploadForm,
    /// Values if nothing is loaded.
    pub noise: NoiseValues,
}

/// Conversion of a tensor before it is uploaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UploadForm {
    /// Unchanged, in the type of the weights.
    Stored,
    /// Transposes `[rows, columns]` to `[columns, rows]`, in the type of the weights.
    Turned {
        rows: usize,
        columns: usize,
    },
    Float32,
    /// -exp of each value, in float32.
    Decay,
    /// The position table resized to a tile, in float32.
    Positions,
}

/// Generated values: mean, and largest distance from it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct NoiseValues(pub f32, pub f32);

impl NoiseValues {
    /// Norms, scales and biases.
    const VECTOR: Self = Self(1.0, 0.1);

    /// For a matrix whose product is about as large as its inputs.
    fn matrix(inputs: usize) -> Self {
        Self(0.0, 1.7 / (inputs as f32).sqrt())
    }
}

impl CheckpointCounts {
    /// From a configuration, without a checkpoint. The number of prefix tokens is that of the
    /// published tower.
    pub(crate) fn of_config(config: &Config) -> Self {
        let prefix = if config.vision.is_some() { 16 } else { 0 };
        Self { embeddings: config.text.vocabulary, prefix, wide: BTreeSet::new() }
    }

    pub(crate) fn of(checkpoint: &Checkpoint, wide: BTreeSet<String>) -> Result<Self, CheckpointError> {
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

impl<T: WeightElement> DeviceWeights<T> {
    /// Assigns addresses to all buffers, and returns their uploads.
    pub(crate) fn allocate(
        config: &Config,
        counts: &CheckpointCounts,
        allocator: &mut BufferAllocator,
    ) -> (Self, Vec<TensorUpload>) {
        let prefix = String::new();
        let wide = &counts.wide;
        let mut walk = WeightWalk { allocator, prefix, uploads: Vec::new(), wide, widest: [0; 2] };
        let text = walk.text(&config.text, counts.embeddings);
        let hidden = config.text.hidden;
        let vision = config.vision.as_ref().map(|vision| walk.vision(vision, hidden, counts.prefix));
        (Self { text, vision }, walk.uploads)
    }
}

/// Visits a model's tensors in one order.
struct WeightWalk<'a> {
    allocator: &'a mut BufferAllocator,
    /// Prefix of the next names.
    prefix: String,
    uploads: Vec<TensorUpload>,
    /// Names of matrices that stay in float32.
    wide: &'a BTreeSet<String>,
    widest: [usize; 2],
}

impl WeightWalk<'_> {
    fn text<T: WeightElement>(&mut self, text: &TextConfig, embeddings: usize) -> DeviceTextWeights<T> {
        self.enter("backbone.");
        let embeddings = self.matrix("embeddings.weight", embeddings, text.hidden);
        let layers = (0..).zip(&text.layers).map(|(index, kind)| self.layer(text, index, *kind));
        let layers = layers.collect();
        self.enter("");
        DeviceTextWeights {
            embeddings,
            layers,
            final_norm: self.vector("backbone.norm_f.weight", text.hidden),
            head: self.with_f32_outputs("lm_head.weight", text.vocabulary, text.hidden),
            widest: self.widest,
        }
    }

    fn layer<T: WeightElement>(
        &mut self,
        text: &TextConfig,
        index: usize,
        kind: LayerKind,
    ) -> DeviceLayer<T> {
        self.enter(&format!("backbone.layers.{index}."));
        let norm = self.vector("norm.weight", text.hidden);
        self.enter(&format!("backbone.layers.{index}.mixer."));
        let mixer = match kind {
            LayerKind::Ssm => DeviceMixer::Ssm(self.ssm(text)),
            LayerKind::Attention => DeviceMixer::Attention(self.attention(text)),
            LayerKind::Mlp => DeviceMixer::Mlp(self.mlp("", text.hidden, text.intermediate)),
            LayerKind::Moe => {
                let moe = text.moe.as_ref();
                let moe = moe.expect("the configuration of a model with expert layers has their sizes");
                DeviceMixer::Moe(self.moe(text.hidden, moe))
            }
        };
        DeviceLayer { norm, mixer }
    }

    fn ssm<T: WeightElement>(&mut self, text: &TextConfig) -> DeviceSsmWeights<T> {
        let ssm = &text.ssm;
        let width = ssm.conv_width();
        let kernel = ssm.conv_kernel;
        let turned = UploadForm::Turned { rows: width, columns: kernel };
        DeviceSsmWeights {
            in_proj: self.matrix("in_proj.weight", ssm.in_proj_width(), text.hidden),
            taps: self.put(&["conv1d.weight"], width * kernel, turned, NoiseValues(0.0, 0.6)),
            conv_bias: self.vector("conv1d.bias", width),
            a: self.put(&["A_log"], ssm.heads, UploadForm::Decay, NoiseValues(-1.5, 0.5)),
            d: self.put(&["D"], ssm.heads, UploadForm::Float32, NoiseValues::VECTOR),
            dt_bias: self.put(&["dt_bias"], ssm.heads, UploadForm::Float32, NoiseValues(-3.0, 1.0)),
            norm: self.vector("norm.weight", ssm.inner()),
            out_proj: self.matrix("out_proj.weight", text.hidden, ssm.inner()),
        }
    }

    fn attention<T: WeightElement>(&mut self, text: &TextConfig) -> DeviceAttentionWeights<T> {
        let [q, _, qkv] = text.attention.widths();
        let names = ["q_proj.weight", "k_proj.weight", "v_proj.weight"];
        DeviceAttentionWeights {
            qkv: self.matrices(&names, qkv, text.hidden, qkv),
            out: self.matrix("o_proj.weight", text.hidden, q),
        }
    }

    fn mlp<T: WeightElement>(&mut self, name: &str, outer: usize, inner: usize) -> DeviceMlpWeights<T> {
        DeviceMlpWeights {
            up: self.matrix(&format!("{name}up_proj.weight"), inner, outer),
            down: self.matrix(&format!("{name}down_proj.weight"), outer, inner),
        }
    }

    fn moe<T: WeightElement>(&mut self, hidden: usize, moe: &MoeConfig) -> DeviceMoeWeights<T> {
        let width = moe.latent.unwrap_or(hidden);
        let inner = moe.intermediate;
        let shared = moe.shared_intermediate;
        let gate = self.with_f32_outputs("gate.weight", moe.experts, hidden);
        let correction = self.put(
            &["gate.e_score_correction_bias"],
            moe.experts,
            UploadForm::Float32,
            NoiseValues(0.0, 0.1),
        );
        let mut of_all = |part: &str, inputs: usize| {
            let names: Vec<String> =
                (0..moe.experts).map(|expert| format!("experts.{expert}.{part}_proj.weight")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            self.put(&names, moe.experts * width * inner, UploadForm::Stored, NoiseValues::matrix(inputs))
        };
        let up = of_all("up", width);
        let down = of_all("down", inner);
        DeviceMoeWeights {
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

    fn vision<T: WeightElement>(
        &mut self,
        vision: &VisionConfig,
        text_hidden: usize,
        prefix: usize,
    ) -> DeviceVisionWeights<T> {
        let hidden = vision.hidden;
        let patches = vision.patches_side().pow(2);
        self.enter(&format!("{TOWER}patch_generator."));
        let embedder = self.matrix("embedder.weight", hidden, 3 * vision.patch.pow(2));
        let positions =
            self.put(&["pos_embed"], patches * hidden, UploadForm::Positions, NoiseValues(0.0, 1.0));
        let prefix = self.vector("cls_token.token", prefix * hidden);
        let blocks = (0..vision.blocks).map(|index| self.block(vision, index)).collect();
        let shuffled = vision.shuffle.pow(2) * hidden;
        self.enter("mlp1.");
        DeviceVisionWeights {
            embedder,
            positions,
            prefix,
            blocks,
            projector_norm: self.vector("0.weight", shuffled),
            projector: DeviceMlpWeights {
                up: self.matrix("1.weight", vision.projector_hidden, shuffled),
                down: self.matrix("3.weight", text_hidden, vision.projector_hidden),
            },
        }
    }

    fn block<T: WeightElement>(&mut self, vision: &VisionConfig, index: usize) -> DeviceVisionBlock<T> {
        let hidden = vision.hidden;
        let wide = vision.intermediate;
        self.enter(&format!("{TOWER}blocks.{index}."));
        DeviceVisionBlock {
            norm1: self.affine("norm1", hidden),
            qkv: self.biased("attn.qkv", 3 * hidden, hidden),
            proj: self.biased("attn.proj", hidden, hidden),
            norm2: self.affine("norm2", hidden),
            fc1: self.biased("mlp.fc1", wide, hidden),
            fc2: self.biased("mlp.fc2", hidden, wide),
        }
    }

    /// Sets the prefix of the next names.
    fn enter(&mut self, prefix: &str) {
        prefix.clone_into(&mut self.prefix);
    }

    fn matrix<T: WeightElement>(&mut self, name: &str, outputs: usize, inputs: usize) -> DeviceMatrix<T> {
        self.matrices(&[name], outputs, inputs, outputs)
    }

    /// A matrix whose outputs are always float32.
    fn with_f32_outputs<T: WeightElement>(
        &mut self,
        name: &str,
        outputs: usize,
        inputs: usize,
    ) -> DeviceMatrix<T> {
        self.matrices(&[name], outputs, inputs, 0)
    }

    /// Several matrices as one, `[outputs, inputs]`; `narrowed` of the outputs are narrowed if it
    /// is in float32.
    fn matrices<T: WeightElement>(
        &mut self,
        names: &[&str],
        outputs: usize,
        inputs: usize,
        narrowed: usize,
    ) -> DeviceMatrix<T> {
        let count = outputs * inputs;
        let noise = NoiseValues::matrix(inputs);
        if !names.iter().any(|name| self.wide.contains(&format!("{}{name}", self.prefix))) {
            return DeviceMatrix {
                values: self.put(names, count, UploadForm::Stored, noise),
                wide: None,
                outputs,
                inputs,
            };
        }
        self.widest = [self.widest[0].max(inputs), self.widest[1].max(narrowed)];
        let wide = self.put(names, count, UploadForm::Float32, noise);
        DeviceMatrix { values: DeviceView::new(wide.address(), 0), wide: Some(wide), outputs, inputs }
    }

    fn affine<T: WeightElement>(&mut self, name: &str, width: usize) -> DeviceLayerNorm<T> {
        DeviceLayerNorm {
            weight: self.vector(&format!("{name}.weight"), width),
            shift: self.vector(&format!("{name}.bias"), width),
        }
    }

    fn biased<T: WeightElement>(
        &mut self,
        name: &str,
        outputs: usize,
        inputs: usize,
    ) -> DeviceBiasedMatrix<T> {
        DeviceBiasedMatrix {
            matrix: self.matrix(&format!("{name}.weight"), outputs, inputs),
            bias: self.vector(&format!("{name}.bias"), outputs),
        }
    }

    fn vector<T: WeightElement>(&mut self, name: &str, count: usize) -> DeviceView<T> {
        self.put(&[name], count, UploadForm::Stored, NoiseValues::VECTOR)
    }

    /// Tensors one after another, in a buffer of their own.
    fn put<T: DeviceElement>(
        &mut self,
        names: &[&str],
        count: usize,
        form: UploadForm,
        noise: NoiseValues,
    ) -> DeviceView<T> {
        let view: DeviceView<T> = self.allocator.take(WEIGHTS, count);
        let names = names.iter().map(|name| format!("{}{name}", self.prefix)).collect();
        self.uploads.push(TensorUpload { names, to: view.address(), count, form, noise });
        view
    }
}
