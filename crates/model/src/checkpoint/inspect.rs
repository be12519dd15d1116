//! Describes a checkpoint from its configuration and headers alone: layers, parameters, bytes,
//! state of a session, and problems.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use serde::Serialize;

use super::layout;
use super::shards::{WeightFile, WeightFiles};
use super::wanted::{ModelPart, required_tensors};
use crate::config::{Config, LayerKind, TextConfig};

/// Contents of a directory. Everything that could be read is present, even if something else could
/// not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckpointInspection {
    /// The model; `None` if its configuration is refused.
    pub model: Option<ModelFacts>,
    pub files: Vec<FileFacts>,
    /// Bytes on disk by number type.
    pub bytes_by_type: BTreeMap<String, u64>,
    /// Names in the files that belong to no part of this model.
    pub ignored: Vec<String>,
    /// Everything that prevents loading. The values of the weights are not checked.
    pub problems: Vec<String>,
}

/// What the configuration describes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModelFacts {
    /// One character a layer: `M` SSM, `*` attention, `-` MLP, `E` experts.
    pub pattern: String,
    pub layers: LayerCounts,
    pub parameters: ParameterCounts,
    /// Whether it reads images.
    pub vision: bool,
    /// State of one session.
    pub state: SessionState,
}

/// One number a kind of layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct LayerCounts {
    pub ssm: u64,
    pub attention: u64,
    pub mlp: u64,
    pub moe: u64,
}

/// Parameters. A table with more rows than the configuration needs counts in the size it has in the
/// file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ParameterCounts {
    pub embeddings: u64,
    pub layers: LayerCounts,
    /// The final norm and the output head.
    pub head: u64,
    pub tower: u64,
    /// The projector behind it.
    pub projector: u64,
    /// Everything but tower and projector.
    pub text: u64,
    pub total: u64,
}

/// What a session keeps between two tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SessionState {
    /// Values of the SSM state: layers x heads x head size x state size.
    pub ssm_values: u64,
    /// Bytes of the SSM state in float32.
    pub ssm_float32_bytes: u64,
    /// Values of the convolution state: layers x width x (taps - 1).
    pub conv_values: u64,
    /// Bytes of the convolution state in bfloat16.
    pub conv_bfloat16_bytes: u64,
    /// Values of keys and values a token: layers x 2 x heads x head size.
    pub kv_values_a_token: u64,
    /// Bytes of keys and values a token in bfloat16.
    pub kv_bfloat16_bytes_a_token: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileFacts {
    pub name: String,
    pub bytes: u64,
    pub tensors: u64,
}

/// Inspects a directory. Reads `config.json`, the index and the headers of the files, but no
/// weights.
pub fn inspect(dir: &Path) -> CheckpointInspection {
    let (shards, errors) = WeightFiles::survey(dir);
    let mut problems: Vec<String> = errors.iter().map(|error| chain(error)).collect();
    let config = Config::read(dir).map_err(|error| problems.insert(0, chain(&error))).ok();
    let mut layout = layout::TensorLayout::default();
    if let Some(config) = &config {
        let (found, mismatches) = layout::locate(config, &shards);
        layout = found;
        // If a whole file could not be read, each of its tensors would be reported as well.
        if errors.is_empty() && !mismatches.0.is_empty() {
            problems.push(mismatches.to_string());
        }
    }
    CheckpointInspection {
        model: config.as_ref().map(|config| model_facts(config, &layout)),
        files: shards.files.iter().map(file_facts).collect(),
        bytes_by_type: bytes_by_type(&shards),
        ignored: layout.ignored,
        problems,
    }
}

impl SessionState {
    /// State of a language model of this shape.
    pub fn of(text: &TextConfig) -> Self {
        let layers = |kind| text.layers_of(kind).count() as u64;
        let ssm = &text.ssm;
        let attention = &text.attention;
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

impl ParameterCounts {
    /// Parameters that a configuration describes. Its number of prefix tokens of the tower is
    /// unknown; they count as one.
    pub fn of(config: &Config) -> Self {
        required_tensors(config).into_iter().fold(Self::default(), |mut sum, wanted| {
            sum.add(wanted.part, values(&wanted.shape));
            sum
        })
    }

    fn add(&mut self, part: ModelPart, values: u64) {
        *match part {
            ModelPart::Embeddings => &mut self.embeddings,
            ModelPart::Head => &mut self.head,
            ModelPart::Tower => &mut self.tower,
            ModelPart::Projector => &mut self.projector,
            ModelPart::Layer(kind) => self.layers.of(kind),
        } += values;
        self.total += values;
        self.text += if matches!(part, ModelPart::Tower | ModelPart::Projector) { 0 } else { values };
    }
}

impl LayerCounts {
    fn of(&mut self, kind: LayerKind) -> &mut u64 {
        match kind {
            LayerKind::Ssm => &mut self.ssm,
            LayerKind::Attention => &mut self.attention,
            LayerKind::Mlp => &mut self.mlp,
            LayerKind::Moe => &mut self.moe,
        }
    }
}

fn model_facts(config: &Config, layout: &layout::TensorLayout) -> ModelFacts {
    let mut layers = LayerCounts::default();
    config.text.layers.iter().for_each(|kind| *layers.of(*kind) += 1);
    let mut parameters = ParameterCounts::default();
    for wanted in required_tensors(config) {
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

fn file_facts(shard: &WeightFile) -> FileFacts {
    FileFacts { name: shard.name.clone(), bytes: shard.map.len() as u64, tensors: shard.entries.len() as u64 }
}

fn bytes_by_type(shards: &WeightFiles) -> BTreeMap<String, u64> {
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
