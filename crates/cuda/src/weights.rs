//! The weights on the device: where each lies, and how it gets there.
//!
//! Matrices lie as checkpoints store them, `[outputs, inputs]` by row, which is what products read; q, k and v of a layer one behind the other. Taps of the
//! convolution are turned to `[kernel, W]`; A is -exp(A_log) and stands, with D and dt_bias, in float32. One walk over the model names every tensor:
//! with nothing to load from it plans, with a checkpoint it loads to the same places. A tensor is looked over for values that are not finite before
//! its first byte is copied.
//!
//! Floor: 24.6 GB for the 12B, over PCIe 5 at some 55 GB/s 0.45 s; from a disk whatever that gives.

use std::borrow::Cow;

use furrow_model::checkpoint::{Checkpoint, CheckpointError, Numbers, Tensor};
use furrow_model::config::{Config, LayerKind, TextConfig, VisionConfig};
use furrow_model::vision::resize_positions;
use furrow_model::weights::decay;
use half::bf16;

use crate::arena::Placer;
use crate::executor::{Executor, ExecutorError, Lane, Matrix};
use crate::launch::View;
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
}

/// A layer: its pre-norm `[H]` and its mixer.
#[derive(Debug)]
pub(crate) struct Layer<T> {
    pub norm: View<T>,
    pub mixer: Mixer<T>,
}

/// The mixers there are kernels for.
#[derive(Debug)]
pub(crate) enum Mixer<T> {
    Ssm(SsmWeights<T>),
    Attention(AttentionWeights<T>),
    Mlp(MlpWeights<T>),
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Rows of the embedding table.
    pub embeddings: usize,
    /// Prefix tokens of the tower.
    pub prefix: usize,
}

/// Why weights were not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The checkpoint cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The device failed.
    #[error("the weights did not reach the device")]
    Executor(#[from] ExecutorError),
}

type Loaded<T> = Result<T, LoadError>;

/// Where values come from, and who brings them to the device.
pub(crate) struct Source<'e, 'o> {
    pub origin: Origin<'o>,
    pub executor: &'e mut dyn Executor,
}

/// Where values come from.
pub(crate) enum Origin<'a> {
    /// A checkpoint; `progress` hears of bytes done and bytes in all.
    Checkpoint { checkpoint: &'a Checkpoint, progress: &'a mut dyn FnMut(u64, u64) },
    /// Nowhere: noise of the size that trained weights have, for measuring.
    Noise,
}

/// Values that a tensor has where they come from nowhere: a middle, and how far they are from it.
#[derive(Debug, Clone, Copy)]
struct Noise(f32, f32);

impl Noise {
    /// Norms, scales and biases.
    const VECTOR: Self = Self(1.0, 0.1);
    /// Repeated where a tensor is longer: 1 MiB of bfloat16 goes through staging at once.
    const BLOCK: usize = 1 << 19;

    /// A matrix whose product is about as large as its inputs.
    fn matrix(inputs: usize) -> Self {
        Self(0.0, 1.7 / (inputs as f32).sqrt())
    }

    /// Values one behind the other; the same each time.
    fn values(self, count: usize) -> impl Iterator<Item = f32> {
        let Self(middle, spread) = self;
        (0..count as u32).map(move |index| {
            // Knuth's multiplicative hash; its upper 24 bits make -1..1.
            let unit = (index.wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0;
            middle + spread * unit
        })
    }
}

impl Counts {
    /// As a configuration has them where no checkpoint is at hand. Prefix tokens: as many as the published tower has.
    pub fn of_config(config: &Config) -> Self {
        Self { embeddings: config.text.vocabulary, prefix: if config.vision.is_some() { 16 } else { 0 } }
    }

    pub fn of(checkpoint: &Checkpoint) -> Result<Self, CheckpointError> {
        let rows = |name: &str| -> Result<usize, CheckpointError> {
            Ok(checkpoint.tensor(name)?.shape().first().copied().unwrap_or(0))
        };
        let prefix = format!("{TOWER}patch_generator.cls_token.token");
        Ok(Self {
            embeddings: rows("backbone.embeddings.weight")?,
            prefix: checkpoint.config().vision.as_ref().map_or(Ok(0), |_| rows(&prefix))?,
        })
    }
}

impl<T: Value> Weights<T> {
    /// Where everything will lie.
    pub fn place(config: &Config, counts: Counts, placer: &mut Placer) -> Self {
        let walk = Walk { placer, source: None, prefix: String::new(), done: 0 };
        walk.all(config, counts).expect("what is only placed cannot fail")
    }

    /// Brings weights to where `place` put them.
    pub fn load(
        config: &Config,
        counts: Counts,
        placer: &mut Placer,
        source: Source<'_, '_>,
    ) -> Loaded<Self> {
        Walk { placer, source: Some(source), prefix: String::new(), done: 0 }.all(config, counts)
    }
}

/// Looks every value over; nothing is copied.
pub(crate) fn check(checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
    for wanted in furrow_model::checkpoint::wanted(checkpoint.config()) {
        let tensor = checkpoint.tensor(&wanted.name)?;
        match wanted.name.ends_with("A_log") {
            true => drop(decay(&tensor)?),
            false => drop(tensor.numbers()?),
        }
    }
    Ok(())
}

/// Goes over a model's tensors in one order.
struct Walk<'p, 'e, 'o> {
    placer: &'p mut Placer,
    source: Option<Source<'e, 'o>>,
    prefix: String,
    done: u64,
}

impl Walk<'_, '_, '_> {
    fn all<T: Value>(mut self, config: &Config, counts: Counts) -> Loaded<Weights<T>> {
        let text = self.text(&config.text, counts.embeddings)?;
        let hidden = config.text.hidden;
        let vision = config.vision.as_ref().map(|vision| self.vision(vision, hidden, counts.prefix));
        Ok(Weights { text, vision: vision.transpose()? })
    }

    fn text<T: Value>(&mut self, text: &TextConfig, embeddings: usize) -> Loaded<TextWeights<T>> {
        self.enter("backbone.");
        let embeddings = self.matrix("embeddings.weight", embeddings, text.hidden)?;
        let layers = (0..).zip(&text.layers).map(|(index, kind)| self.layer(text, index, *kind));
        let layers = layers.collect::<Loaded<_>>()?;
        self.enter("");
        Ok(TextWeights {
            embeddings,
            layers,
            final_norm: self.vector("backbone.norm_f.weight", text.hidden)?,
            head: self.matrix("lm_head.weight", text.vocabulary, text.hidden)?,
        })
    }

    fn layer<T: Value>(&mut self, text: &TextConfig, index: usize, kind: LayerKind) -> Loaded<Layer<T>> {
        self.enter(&format!("backbone.layers.{index}."));
        let norm = self.vector("norm.weight", text.hidden)?;
        self.enter(&format!("backbone.layers.{index}.mixer."));
        let mixer = match kind {
            LayerKind::Ssm => Mixer::Ssm(self.ssm(text)?),
            LayerKind::Attention => Mixer::Attention(self.attention(text)?),
            LayerKind::Mlp => Mixer::Mlp(MlpWeights {
                up: self.matrix("up_proj.weight", text.intermediate, text.hidden)?,
                down: self.matrix("down_proj.weight", text.hidden, text.intermediate)?,
            }),
            LayerKind::Moe => unreachable!("a model with expert layers is refused before it is placed"),
        };
        Ok(Layer { norm, mixer })
    }

    fn ssm<T: Value>(&mut self, text: &TextConfig) -> Loaded<SsmWeights<T>> {
        let ssm = &text.ssm;
        let (width, kernel) = (ssm.conv_width(), ssm.conv_kernel);
        Ok(SsmWeights {
            in_proj: self.matrix("in_proj.weight", ssm.in_proj_width(), text.hidden)?,
            taps: self.turned("conv1d.weight", width, kernel)?,
            conv_bias: self.vector("conv1d.bias", width)?,
            a: self.made("A_log", ssm.heads, Noise(-1.5, 0.5), |tensor| Ok(decay(tensor)?))?,
            d: self.made("D", ssm.heads, Noise::VECTOR, |tensor| Ok(tensor.to_f32()?))?,
            dt_bias: self.made("dt_bias", ssm.heads, Noise(-3.0, 1.0), |tensor| Ok(tensor.to_f32()?))?,
            norm: self.vector("norm.weight", ssm.inner())?,
            out_proj: self.matrix("out_proj.weight", text.hidden, ssm.inner())?,
        })
    }

    fn attention<T: Value>(&mut self, text: &TextConfig) -> Loaded<AttentionWeights<T>> {
        let [q, _, qkv] = text.attention.widths();
        let names = ["q_proj.weight", "k_proj.weight", "v_proj.weight"];
        let values = self.placer.take(WEIGHTS, qkv * text.hidden);
        self.copy(&names, values, Noise::matrix(text.hidden))?;
        Ok(AttentionWeights {
            qkv: Matrix { values, outputs: qkv, inputs: text.hidden },
            out: self.matrix("o_proj.weight", text.hidden, q)?,
        })
    }

    fn vision<T: Value>(
        &mut self,
        vision: &VisionConfig,
        text_hidden: usize,
        prefix: usize,
    ) -> Loaded<VisionWeights<T>> {
        let (hidden, patches) = (vision.hidden, vision.patches_side().pow(2));
        self.enter(&format!("{TOWER}patch_generator."));
        let embedder = self.matrix("embedder.weight", hidden, 3 * vision.patch.pow(2))?;
        let positions = self.made("pos_embed", patches * hidden, Noise(0.0, 1.0), |tensor| {
            let mut resized = Vec::new();
            resize_positions(vision, &tensor.to_f32()?, &mut resized);
            Ok(resized)
        })?;
        let prefix = self.vector("cls_token.token", prefix * hidden)?;
        let blocks = (0..vision.blocks).map(|index| self.block(vision, index)).collect::<Loaded<_>>()?;
        let shuffled = vision.shuffle.pow(2) * hidden;
        self.enter("mlp1.");
        Ok(VisionWeights {
            embedder,
            positions,
            prefix,
            blocks,
            projector_norm: self.vector("0.weight", shuffled)?,
            projector: MlpWeights {
                up: self.matrix("1.weight", vision.projector_hidden, shuffled)?,
                down: self.matrix("3.weight", text_hidden, vision.projector_hidden)?,
            },
        })
    }

    fn block<T: Value>(&mut self, vision: &VisionConfig, index: usize) -> Loaded<VisionBlock<T>> {
        let (hidden, wide) = (vision.hidden, vision.intermediate);
        self.enter(&format!("{TOWER}blocks.{index}."));
        Ok(VisionBlock {
            norm1: self.affine("norm1", hidden)?,
            qkv: self.biased("attn.qkv", 3 * hidden, hidden)?,
            proj: self.biased("attn.proj", hidden, hidden)?,
            norm2: self.affine("norm2", hidden)?,
            fc1: self.biased("mlp.fc1", wide, hidden)?,
            fc2: self.biased("mlp.fc2", hidden, wide)?,
        })
    }

    /// What the next names start with.
    fn enter(&mut self, prefix: &str) {
        prefix.clone_into(&mut self.prefix);
    }

    fn matrix<T: Value>(&mut self, name: &str, outputs: usize, inputs: usize) -> Loaded<Matrix<T>> {
        let values = self.placer.take(WEIGHTS, outputs * inputs);
        self.copy(&[name], values, Noise::matrix(inputs))?;
        Ok(Matrix { values, outputs, inputs })
    }

    fn affine<T: Value>(&mut self, name: &str, width: usize) -> Loaded<Affine<T>> {
        Ok(Affine {
            weight: self.vector(&format!("{name}.weight"), width)?,
            shift: self.vector(&format!("{name}.bias"), width)?,
        })
    }

    fn biased<T: Value>(&mut self, name: &str, outputs: usize, inputs: usize) -> Loaded<Biased<T>> {
        Ok(Biased {
            matrix: self.matrix(&format!("{name}.weight"), outputs, inputs)?,
            bias: self.vector(&format!("{name}.bias"), outputs)?,
        })
    }

    /// A tensor as it lies.
    fn vector<T: Value>(&mut self, name: &str, count: usize) -> Loaded<View<T>> {
        let view = self.placer.take(WEIGHTS, count);
        self.copy(&[name], view, Noise::VECTOR)?;
        Ok(view)
    }

    /// A tensor `[rows, columns]` as `[columns, rows]`.
    fn turned<T: Value>(&mut self, name: &str, rows: usize, columns: usize) -> Loaded<View<T>> {
        let view = self.placer.take(WEIGHTS, rows * columns);
        self.put(name, view, Noise(0.0, 0.6), |tensor| {
            let values = tensor.to_f32()?;
            let at = |index: usize| T::nearest(values[index % rows * columns + index / rows]);
            Ok((0..rows * columns).map(at).collect())
        })?;
        Ok(view)
    }

    /// float32 values made of a tensor.
    fn made(
        &mut self,
        name: &str,
        count: usize,
        noise: Noise,
        make: impl FnOnce(&Tensor<'_>) -> Loaded<Vec<f32>>,
    ) -> Loaded<View<f32>> {
        let view = self.placer.take(WEIGHTS, count);
        self.put(name, view, noise, make)?;
        Ok(view)
    }

    /// Values that are made of a tensor, to their place.
    fn put<T: Value>(
        &mut self,
        name: &str,
        to: View<T>,
        noise: Noise,
        make: impl FnOnce(&Tensor<'_>) -> Loaded<Vec<T>>,
    ) -> Loaded<()> {
        let Some(Source { origin, executor }) = &mut self.source else { return Ok(()) };
        let Origin::Checkpoint { checkpoint, progress } = origin else { return fill(*executor, to, noise) };
        let tensor = checkpoint.tensor(&format!("{}{name}", self.prefix))?;
        let values = make(&tensor)?;
        assert_eq!(values.len(), to.len(), "{name} fills its place");
        executor.upload(Lane::Vision, bytemuck::cast_slice(&values), to.address())?;
        self.done += tensor.bytes();
        progress(self.done, checkpoint.bytes());
        Ok(())
    }

    /// Tensors one behind the other as they lie, to their place.
    fn copy<T: Value>(&mut self, names: &[&str], to: View<T>, noise: Noise) -> Loaded<()> {
        let Some(Source { origin, executor }) = &mut self.source else { return Ok(()) };
        let Origin::Checkpoint { checkpoint, progress } = origin else { return fill(*executor, to, noise) };
        let mut at = to.address();
        let end = at + (to.len() * size_of::<T>()) as u64;
        for name in names {
            let tensor = checkpoint.tensor(&format!("{}{name}", self.prefix))?;
            let numbers = tensor.numbers()?;
            let bytes = as_stored::<T>(&numbers);
            assert!(at + bytes.len() as u64 <= end, "{name} fits its place");
            executor.upload(Lane::Vision, &bytes, at)?;
            at += bytes.len() as u64;
            self.done += tensor.bytes();
        }
        assert_eq!(at, end, "{names:?} fill their place");
        progress(self.done, checkpoint.bytes());
        Ok(())
    }
}

fn fill<T: Value>(executor: &mut dyn Executor, to: View<T>, noise: Noise) -> Loaded<()> {
    let block: Vec<T> = noise.values(to.len().min(Noise::BLOCK)).map(T::nearest).collect();
    for first in (0..to.len()).step_by(Noise::BLOCK) {
        let count = block.len().min(to.len() - first);
        executor.upload(Lane::Vision, bytemuck::cast_slice(&block[..count]), to.from(first).address())?;
    }
    Ok(())
}

/// Numbers as bytes of another type, or their own.
fn as_stored<'a, T: Value>(numbers: &'a Numbers<'_>) -> Cow<'a, [u8]> {
    let of = |values: &mut dyn Iterator<Item = f32>| -> Cow<'a, [u8]> {
        let values: Vec<T> = values.map(T::nearest).collect();
        Cow::Owned(bytemuck::pod_collect_to_vec(&values))
    };
    match (numbers, T::pick(false, true)) {
        (Numbers::F32(values), false) => Cow::Borrowed(bytemuck::cast_slice(values)),
        (Numbers::Bf16(bits), true) => Cow::Borrowed(bytemuck::cast_slice(bits)),
        (Numbers::F32(values), true) => of(&mut values.iter().copied()),
        (Numbers::Bf16(bits), false) => of(&mut bits.iter().map(|bits| bf16::from_bits(*bits).to_f32())),
    }
}
