//! What a checkpoint is, from its configuration and headers alone: layers, parameters, bytes, state of a session, and what is wrong.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use serde::Serialize;

use super::layout;
use super::shards::{Shard, Shards};
use super::wanted::{Part, wanted};
use crate::config::{Config, LayerKind, TextConfig};

/// What a directory holds. Whatever could be read is there, also when something else could not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Inspection {
    /// The model; `None` when its configuration is refused.
    pub model: Option<ModelFacts>,
    /// The weight files.
    pub files: Vec<FileFacts>,
    /// Bytes on disk by type of number.
    pub bytes_by_type: BTreeMap<String, u64>,
    /// Names in the files that belong to no part of this model.
    pub ignored: Vec<String>,
    /// Everything that keeps it from being loaded; weights' values are not looked at.
    pub problems: Vec<String>,
}

/// What a configuration says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModelFacts {
    /// One character a layer: `M` SSM, `*` attention, `-` MLP, `E` experts.
    pub pattern: String,
    /// Layers by kind.
    pub layers: ByKind,
    /// Parameters by part.
    pub parameters: Parameters,
    /// Whether it reads images.
    pub vision: bool,
    /// State of one session.
    pub state: SessionState,
}

/// One number a kind of layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ByKind {
    /// Mamba-2.
    pub ssm: u64,
    /// Attention.
    pub attention: u64,
    /// MLP.
    pub mlp: u64,
    /// Mixture of experts.
    pub moe: u64,
}

/// Parameters. A table with more rows than the configuration asks for counts as the file has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Parameters {
    /// The embedding table.
    pub embeddings: u64,
    /// Layers, pre-norms included.
    pub layers: ByKind,
    /// The final norm and the output head.
    pub head: u64,
    /// The vision tower.
    pub tower: u64,
    /// The projector behind it.
    pub projector: u64,
    /// Everything but tower and projector.
    pub text: u64,
    /// Everything.
    pub total: u64,
}

/// What one session keeps between two tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SessionState {
    /// Values of the SSM state: layers x heads x head size x state size.
    pub ssm_values: u64,
    /// The same in float32.
    pub ssm_float32_bytes: u64,
    /// Values of the convolution state: layers x width x (taps - 1).
    pub conv_values: u64,
    /// The same in bfloat16.
    pub conv_bfloat16_bytes: u64,
    /// Keys and values a token: layers x 2 x heads x head size.
    pub kv_values_a_token: u64,
    /// The same in bfloat16.
    pub kv_bfloat16_bytes_a_token: u64,
}

/// A weight file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileFacts {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Tensors in it.
    pub tensors: u64,
}

/// Looks at a directory. Reads `config.json`, the index and the files' headers; no weight is touched.
pub fn inspect(dir: &Path) -> Inspection {
    let (shards, errors) = Shards::survey(dir);
    let mut problems: Vec<String> = errors.iter().map(|error| chain(error)).collect();
    let config = Config::read(dir).map_err(|error| problems.insert(0, chain(&error))).ok();
    let mut layout = layout::Layout::default();
    if let Some(config) = &config {
        let (found, misfits) = layout::locate(config, &shards);
        layout = found;
        // Where a whole file could not be read, its tensors would all be told once more.
        if errors.is_empty() && !misfits.0.is_empty() {
            problems.push(misfits.to_string());
        }
    }
    Inspection {
        model: config.as_ref().map(|config| model_facts(config, &layout)),
        files: shards.files.iter().map(file_facts).collect(),
        bytes_by_type: bytes_by_type(&shards),
        ignored: layout.ignored,
        problems,
    }
}

impl SessionState {
    /// The state that a language model of this shape keeps.
    pub fn of(text: &TextConfig) -> Self {
        let layers = |kind| text.layers_of(kind).count() as u64;
        let (ssm, attention) = (&text.ssm, &text.attention);
        let ssm_values = layers(LayerKind::Ssm) * (ssm.inner() * ssm.state) as u64;
        let conv_values = layers(LayerKind::Ssm) * (ssm.conv_width() * (ssm.conv_kernel - 1)) as u64;
        let kv_values_a_token =
            layers(LayerKind::Attention) * (2 * attention.kv_heads * attention.head_dim) as u64;
        Self {
            ssm_values,
            ssm_float32_bytes: 4 * ssm_values,
            conv_values,
            conv_bfloat16_bytes: 2 * conv_values,
            kv_values_a_token,
            kv_bfloat16_bytes_a_token: 2 * kv_values_a_token,
        }
    }
}

impl Parameters {
    /// The parameters a configuration asks for; the tower's prefix tokens, which it does not number, count as one.
    pub fn of(config: &Config) -> Self {
        wanted(config).into_iter().fold(Self::default(), |mut sum, wanted| {
            sum.add(wanted.part, values(&wanted.shape));
            sum
        })
    }

    fn add(&mut self, part: Part, values: u64) {
        *match part {
            Part::Embeddings => &mut self.embeddings,
            Part::Head => &mut self.head,
            Part::Tower => &mut self.tower,
            Part::Projector => &mut self.projector,
            Part::Layer(kind) => self.layers.of(kind),
        } += values;
        self.total += values;
        self.text += if matches!(part, Part::Tower | Part::Projector) { 0 } else { values };
    }
}

impl ByKind {
    fn of(&mut self, kind: LayerKind) -> &mut u64 {
        match kind {
            LayerKind::Ssm => &mut self.ssm,
            LayerKind::Attention => &mut self.attention,
            LayerKind::Mlp => &mut self.mlp,
            LayerKind::Moe => &mut self.moe,
        }
    }
}

fn model_facts(config: &Config, layout: &layout::Layout) -> ModelFacts {
    let mut layers = ByKind::default();
    config.text.layers.iter().for_each(|kind| *layers.of(*kind) += 1);
    let mut parameters = Parameters::default();
    for wanted in wanted(config) {
        let shape = layout.tensors.get(&wanted.name).map_or(&wanted.shape, |located| &located.shape);
        parameters.add(wanted.part, values(shape));
    }
    ModelFacts {
        pattern: config.text.layers.iter().map(|kind| kind.letter()).collect(),
        layers,
        parameters,
        vision: config.vision.is_some(),
        state: SessionState::of(&config.text),
    }
}

fn values(shape: &[usize]) -> u64 {
    shape.iter().map(|dimension| *dimension as u64).product()
}

fn file_facts(shard: &Shard) -> FileFacts {
    FileFacts { name: shard.name.clone(), bytes: shard.map.len() as u64, tensors: shard.entries.len() as u64 }
}

fn bytes_by_type(shards: &Shards) -> BTreeMap<String, u64> {
    let mut bytes = BTreeMap::new();
    for entry in shards.files.iter().flat_map(|file| &file.entries) {
        *bytes.entry(entry.dtype.to_string()).or_default() += entry.bytes.len() as u64;
    }
    bytes
}

/// An error and its causes on one line.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
