//! Loads the weights of an open checkpoint: layers in parallel, each value checked once.

use std::cell::Cell;
use std::path::Path;

use super::{
    AttentionWeights, BiasedMatrix, EmbeddingTable, LayerNormWeights, LayerWeights, MixerWeights, MlpWeights,
    ModelWeights, MoeWeights, SsmWeights, TextWeights, VisionBlock, VisionWeights,
};
use crate::checkpoint::{Checkpoint, CheckpointError, TOWER, Tensor};
use crate::config::{LayerKind, MoeConfig};
use crate::kernels::{PackedMatrix, ThreadPool};

type LoadResult<T> = Result<T, CheckpointError>;

impl ModelWeights {
    /// Opens and loads a directory. `progress` is called with bytes done and bytes in total, at
    /// least once a group of layers.
    ///
    /// Reads each weight once and writes it once, packed: 24.6 GB each way for the 12B.
    ///
    /// # Errors
    /// As [`Checkpoint::open`], and if a weight is not finite.
    pub fn load(dir: &Path, team: &ThreadPool, progress: &mut dyn FnMut(u64, u64)) -> LoadResult<Self> {
        Self::of(&Checkpoint::open(dir)?, team, progress)
    }

    /// Loads an open checkpoint; `progress` as for [`ModelWeights::load`].
    ///
    /// # Errors
    /// If a weight is not finite; the error names its tensor and index.
    pub fn of(
        checkpoint: &Checkpoint,
        team: &ThreadPool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> LoadResult<Self> {
        let total = checkpoint.bytes();
        let config = checkpoint.config().clone();
        let mut loader =
            WeightLoader { checkpoint, team, done: 0, report: &mut |done| progress(done, total) };
        let text = loader.text(&config.text.layers)?;
        let vision = config.vision.as_ref().map(|vision| loader.vision(vision.blocks)).transpose()?;
        checkpoint.check_uncut()?;
        Ok(Self { config, text, vision })
    }
}

/// Loads parts one after another; the thread pool shares the layers of each.
struct WeightLoader<'a> {
    checkpoint: &'a Checkpoint,
    team: &'a ThreadPool,
    done: u64,
    report: &'a mut dyn FnMut(u64),
}

impl WeightLoader<'_> {
    fn text(&mut self, kinds: &[LayerKind]) -> LoadResult<TextWeights> {
        Ok(TextWeights {
            embeddings: self.part("backbone.", |source| table(&source.tensor("embeddings.weight")?))?,
            layers: self
                .parts(kinds.len(), "backbone.layers.", |index, source| layer(source, kinds[index]))?,
            final_norm: self.part("backbone.", |source| source.f32("norm_f.weight"))?,
            head: self.part("", |source| source.matrix("lm_head.weight"))?,
        })
    }

    fn vision(&mut self, blocks: usize) -> LoadResult<VisionWeights> {
        let generator = format!("{TOWER}patch_generator.");
        Ok(VisionWeights {
            embedder: self.part(&generator, |source| source.matrix("embedder.weight"))?,
            positions: self.part(&generator, |source| source.f32("pos_embed"))?,
            prefix: self.part(&generator, |source| source.f32("cls_token.token"))?,
            blocks: self.parts(blocks, &format!("{TOWER}blocks."), |_, source| block(source))?,
            projector_norm: self.part("mlp1.", |source| source.f32("0.weight"))?,
            projector: self.part("mlp1.", |source| {
                Ok(MlpWeights { up: source.matrix("1.weight")?, down: source.matrix("3.weight")? })
            })?,
        })
    }

    fn part<T>(
        &mut self,
        prefix: &str,
        load: impl FnOnce(&TensorSource<'_>) -> LoadResult<T>,
    ) -> LoadResult<T> {
        let source = TensorSource::new(self.checkpoint, prefix.into());
        let part = load(&source)?;
        self.advance(source.bytes.get());
        Ok(part)
    }

    /// Loads parts `{prefix}{index}.`, as many at a time as `team` has threads.
    fn parts<T: Send>(
        &mut self,
        count: usize,
        prefix: &str,
        load: impl Fn(usize, &TensorSource<'_>) -> LoadResult<T> + Sync,
    ) -> LoadResult<Vec<T>> {
        let mut parts = Vec::with_capacity(count);
        while parts.len() < count {
            let first = parts.len();
            let checkpoint = self.checkpoint;
            let mut slots: Vec<Option<LoadResult<(T, u64)>>> = Vec::new();
            slots.resize_with(self.team.threads().min(count - first), || None);
            self.team.pieces(&mut slots, 1, |offset, slot| {
                let index = first + offset;
                let source = TensorSource::new(checkpoint, format!("{prefix}{index}."));
                slot[0] = Some(load(index, &source).map(|part| (part, source.bytes.get())));
            });
            for loaded in slots.into_iter().flatten() {
                let (part, bytes) = loaded?;
                self.advance(bytes);
                parts.push(part);
            }
        }
        Ok(parts)
    }

    fn advance(&mut self, bytes: u64) {
        self.done += bytes;
        (self.report)(self.done);
    }
}

/// Tensors with a common prefix, and the number of their bytes that were read.
struct TensorSource<'a> {
    checkpoint: &'a Checkpoint,
    prefix: String,
    bytes: Cell<u64>,
}

impl<'a> TensorSource<'a> {
    fn new(checkpoint: &'a Checkpoint, prefix: String) -> Self {
        Self { checkpoint, prefix, bytes: Cell::new(0) }
    }

    fn tensor(&self, name: &str) -> LoadResult<Tensor<'a>> {
        let tensor = self.checkpoint.tensor(&format!("{}{name}", self.prefix))?;
        self.bytes.set(self.bytes.get() + tensor.bytes());
        Ok(tensor)
    }

    fn f32(&self, name: &str) -> LoadResult<Vec<f32>> {
        self.tensor(name)?.to_f32()
    }

    fn matrix(&self, name: &str) -> LoadResult<PackedMatrix> {
        self.tensor(name)?.matrix()
    }

    fn affine(&self, name: &str) -> LoadResult<LayerNormWeights> {
        Ok(LayerNormWeights {
            weight: self.f32(&format!("{name}.weight"))?,
            bias: self.f32(&format!("{name}.bias"))?,
        })
    }

    fn biased(&self, name: &str) -> LoadResult<BiasedMatrix> {
        Ok(BiasedMatrix {
            matrix: self.matrix(&format!("{name}.weight"))?,
            bias: self.f32(&format!("{name}.bias"))?,
        })
    }

    fn mlp(&self, name: &str) -> LoadResult<MlpWeights> {
        let matrix = |part: &str| self.matrix(&format!("{name}.{part}_proj.weight"));
        Ok(MlpWeights { up: matrix("up")?, down: matrix("down")? })
    }
}

fn table(tensor: &Tensor<'_>) -> LoadResult<EmbeddingTable> {
    Ok(EmbeddingTable { rows: tensor.shape()[0], width: tensor.shape()[1], values: tensor.values()? })
}

fn layer(source: &TensorSource<'_>, kind: LayerKind) -> LoadResult<LayerWeights> {
    let mixer = match kind {
        LayerKind::Ssm => MixerWeights::Ssm(ssm(source)?),
        LayerKind::Attention => MixerWeights::Attention(attention(source)?),
        LayerKind::Mlp => MixerWeights::Mlp(source.mlp("mixer")?),
        LayerKind::Moe => {
            let config = source.checkpoint.config().text.moe;
            MixerWeights::Moe(moe(
                source,
                &config.expect("the configuration of a model with expert layers has their sizes"),
            )?)
        }
    };
    Ok(LayerWeights { norm: source.f32("norm.weight")?, mixer })
}

fn ssm(source: &TensorSource<'_>) -> LoadResult<SsmWeights> {
    Ok(SsmWeights {
        in_proj: source.matrix("mixer.in_proj.weight")?,
        conv: source.f32("mixer.conv1d.weight")?,
        conv_bias: source.f32("mixer.conv1d.bias")?,
        a: decay(&source.tensor("mixer.A_log")?)?,
        d: source.f32("mixer.D")?,
        dt_bias: source.f32("mixer.dt_bias")?,
        norm: source.f32("mixer.norm.weight")?,
        out_proj: source.matrix("mixer.out_proj.weight")?,
    })
}

/// A = -exp(A_log), rounded once. Above 88.7 the exponential exceeds float32, and 0 times infinity
/// would be NaN.
///
/// # Errors
/// If a value is not finite, or its exponential is not.
pub fn decay(log: &Tensor<'_>) -> LoadResult<Vec<f32>> {
    let log_values = log.to_f32()?;
    let a: Vec<f32> = log_values.iter().map(|log| -f64::from(*log).exp() as f32).collect();
    match a.iter().position(|a| !a.is_finite()) {
        Some(index) => Err(log.not_finite(index, a[index])),
        None => Ok(a),
    }
}

fn attention(source: &TensorSource<'_>) -> LoadResult<AttentionWeights> {
    let [q, k, v] = ["q", "k", "v"].map(|part| source.tensor(&format!("mixer.{part}_proj.weight")));
    let qkv = Tensor::stacked(&[q?, k?, v?]).matrix()?;
    Ok(AttentionWeights { qkv, out: source.matrix("mixer.o_proj.weight")? })
}

fn moe(source: &TensorSource<'_>, config: &MoeConfig) -> LoadResult<MoeWeights> {
    let expert = |index| source.mlp(&format!("mixer.experts.{index}"));
    let latent = || -> LoadResult<[PackedMatrix; 2]> {
        Ok([source.matrix("mixer.fc1_latent_proj.weight")?, source.matrix("mixer.fc2_latent_proj.weight")?])
    };
    Ok(MoeWeights {
        gate: source.matrix("mixer.gate.weight")?,
        correction: source.f32("mixer.gate.e_score_correction_bias")?,
        experts: (0..config.experts).map(expert).collect::<LoadResult<_>>()?,
        shared: (config.shared_intermediate > 0).then(|| source.mlp("mixer.shared_experts")).transpose()?,
        latent: config.latent.map(|_| latent()).transpose()?,
    })
}

fn block(source: &TensorSource<'_>) -> LoadResult<VisionBlock> {
    Ok(VisionBlock {
        norm1: source.affine("norm1")?,
        qkv: source.biased("attn.qkv")?,
        proj: source.biased("attn.proj")?,
        norm2: source.affine("norm2")?,
        fc1: source.biased("mlp.fc1")?,
        fc2: source.biased("mlp.fc2")?,
    })
}
