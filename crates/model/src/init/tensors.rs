//! Every tensor of a random checkpoint: its published name, its shape, and the distribution of its
//! values.
//!
//! The distributions keep every signal near a root mean square of one: a matrix has a standard
//! deviation of one over the square root of its inputs; a layer's last matrix is smaller by the
//! square root of the number of layers, so that the residual stream ends below twice its start;
//! logits have a standard deviation of two.

use crate::checkpoint::{ModelPart, RequiredTensor, required_tensors};
use crate::config::Config;

/// Root mean square of the logits: the model has preferences but is never certain.
const LOGITS_RMS: f64 = 2.0;
/// Root mean square after a squared ReLU of a signal of root mean square one: sqrt(E[relu(x)^4]) =
/// sqrt(3 / 2) for a standard normal x.
const RELU_SQUARED_RMS: f64 = 1.224_744_871_391_589;
/// Small but not zero, so that a missing bias is noticed.
const BIAS_SPREAD: f64 = 0.02;

/// Distribution of a tensor's values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ValueDistribution {
    /// All one: norms, and the skip D of a state space.
    Ones,
    /// All zero: shifts of norms.
    Zeros,
    /// Bell-shaped around zero, with this standard deviation.
    Spread(f64),
    /// Uniform between minus and plus this.
    Even(f64),
    /// `A_log`: log of a uniform number in 1 to 16.
    LogOfDecay,
    /// `dt_bias`: softplus makes it a step that is log-uniform in 0.001 to 0.1.
    Step,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct TensorSpec {
    pub name: String,
    pub shape: Vec<usize>,
    pub distribution: ValueDistribution,
}

impl TensorSpec {
    pub(super) fn values(&self) -> usize {
        self.shape.iter().product()
    }
}

/// All tensors that the loader needs; `prefix`: rows before the patches of a tile.
pub(super) fn tensors(config: &Config, prefix: usize) -> Vec<TensorSpec> {
    required_tensors(config).into_iter().map(|wanted| tensor(wanted, config, prefix)).collect()
}

fn tensor(wanted: RequiredTensor, config: &Config, prefix: usize) -> TensorSpec {
    let distribution = distribution(&wanted, config);
    let name = published(wanted.name, wanted.part);
    let mut shape = wanted.shape;
    if name.ends_with("cls_token.token") {
        shape[0] = prefix;
    }
    TensorSpec { name, shape, distribution }
}

/// Its name in a checkpoint that reads images.
fn published(name: String, part: ModelPart) -> String {
    match part {
        ModelPart::Tower | ModelPart::Projector => name,
        ModelPart::Embeddings | ModelPart::Head | ModelPart::Layer(_) => format!("language_model.{name}"),
    }
}

fn distribution(wanted: &RequiredTensor, config: &Config) -> ValueDistribution {
    let name = wanted.name.as_str();
    let shape = wanted.shape.as_slice();
    let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    if ends(&["conv1d.weight", "conv1d.bias"]) {
        ValueDistribution::Even(1.0 / (config.text.ssm.conv_kernel as f64).sqrt())
    } else if ends(&["A_log"]) {
        ValueDistribution::LogOfDecay
    } else if ends(&["dt_bias"]) {
        ValueDistribution::Step
    } else if ends(&["norm1.bias", "norm2.bias"]) {
        ValueDistribution::Zeros
    } else if ends(&[".bias"]) {
        ValueDistribution::Spread(BIAS_SPREAD)
    } else if let [_] = shape {
        ValueDistribution::Ones
    } else if ends(&["embeddings.weight", "pos_embed", "cls_token.token"]) {
        ValueDistribution::Spread(1.0)
    } else {
        ValueDistribution::Spread(gain(wanted, config) / (shape[1] as f64).sqrt())
    }
}

/// Root mean square of a matrix's product divided by that of its input.
fn gain(wanted: &RequiredTensor, config: &Config) -> f64 {
    let ends = |end: &str| wanted.name.ends_with(end);
    let layers = (config.text.layers.len() as f64).sqrt();
    // Attention and MLP of each block.
    let halves = config.vision.as_ref().map_or(1.0, |vision| (2.0 * vision.blocks as f64).sqrt());
    match wanted.part {
        ModelPart::Head => LOGITS_RMS,
        ModelPart::Layer(_) if ends("down_proj.weight") => 1.0 / layers / RELU_SQUARED_RMS,
        ModelPart::Layer(_) if ends("out_proj.weight") || ends("o_proj.weight") => 1.0 / layers,
        ModelPart::Tower if ends("attn.proj.weight") || ends("fc2.weight") => 1.0 / halves,
        ModelPart::Projector if ends("3.weight") => 1.0 / RELU_SQUARED_RMS,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::init::StoredType;
    use crate::init::sizes::{ModelSize, config_json};

    #[test]
    fn each_tensor_has_its_distribution() {
        let json = config_json(ModelSize::Tiny.shapes(), StoredType::Float32).to_string();
        let config = Config::parse(json.as_bytes(), Path::new("config.json")).unwrap();
        let tensors = tensors(&config, 8);
        let check = |name: &str, shape: &[usize], distribution: ValueDistribution| {
            let tensor = tensors.iter().find(|tensor| tensor.name.ends_with(name)).unwrap();
            assert_eq!(tensor.shape, shape, "{name}");
            match (tensor.distribution, distribution) {
                (ValueDistribution::Spread(got), ValueDistribution::Spread(want)) => {
                    assert!((got / want - 1.0).abs() < 1e-3, "{name}: {got}");
                }
                (got, want) => assert_eq!(got, want, "{name}"),
            }
        };
        check("language_model.backbone.embeddings.weight", &[1024, 192], ValueDistribution::Spread(1.0));
        check("layers.0.norm.weight", &[192], ValueDistribution::Ones);
        check("layers.0.mixer.in_proj.weight", &[912, 192], ValueDistribution::Spread(0.072_17));
        check("layers.0.mixer.conv1d.weight", &[512, 1, 4], ValueDistribution::Even(0.5));
        check("layers.0.mixer.conv1d.bias", &[512], ValueDistribution::Even(0.5));
        check("layers.0.mixer.A_log", &[16], ValueDistribution::LogOfDecay);
        check("layers.0.mixer.D", &[16], ValueDistribution::Ones);
        check("layers.0.mixer.dt_bias", &[16], ValueDistribution::Step);
        check("layers.0.mixer.norm.weight", &[384], ValueDistribution::Ones);
        // 1 / sqrt(14 layers) / sqrt(384)
        check("layers.0.mixer.out_proj.weight", &[192, 384], ValueDistribution::Spread(0.013_639));
        check("layers.1.mixer.up_proj.weight", &[512, 192], ValueDistribution::Spread(0.072_17));
        check("layers.1.mixer.down_proj.weight", &[192, 512], ValueDistribution::Spread(0.009_644));
        check("layers.5.mixer.q_proj.weight", &[192, 192], ValueDistribution::Spread(0.072_17));
        check("layers.5.mixer.k_proj.weight", &[64, 192], ValueDistribution::Spread(0.072_17));
        check("layers.5.mixer.o_proj.weight", &[192, 192], ValueDistribution::Spread(0.019_287));
        check("language_model.lm_head.weight", &[1024, 192], ValueDistribution::Spread(0.144_34));
        check("patch_generator.embedder.weight", &[96, 768], ValueDistribution::Spread(0.036_08));
        check("patch_generator.pos_embed", &[1, 256, 96], ValueDistribution::Spread(1.0));
        check("patch_generator.cls_token.token", &[8, 96], ValueDistribution::Spread(1.0));
        check("blocks.0.norm1.bias", &[96], ValueDistribution::Zeros);
        check("blocks.0.attn.qkv.bias", &[288], ValueDistribution::Spread(0.02));
        check("blocks.1.mlp.fc2.weight", &[96, 384], ValueDistribution::Spread(0.025_516));
        check("mlp1.0.weight", &[384], ValueDistribution::Ones);
        check("mlp1.3.weight", &[192, 384], ValueDistribution::Spread(0.041_667));
    }
}
