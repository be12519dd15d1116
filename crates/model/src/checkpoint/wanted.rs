//! The tensors that a model needs: published names, shapes and parts, from the configuration alone.

use super::names::TOWER;
use crate::config::{Config, LayerKind, MoeConfig, SsmConfig, TextConfig, VisionConfig};

/// A tensor that a model needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequiredTensor {
    /// Its published name, without the outer `language_model.`.
    pub name: String,
    pub shape: Vec<usize>,
    /// Whether it may have more rows than `shape`: true for tables that are looked up by row.
    pub more_rows: bool,
    /// The part of the model it belongs to.
    pub part: ModelPart,
}

/// A part of a model, for sums over tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ModelPart {
    Embeddings,
    /// The final norm and the output head.
    Head,
    /// A layer, its pre-norm included.
    Layer(LayerKind),
    Tower,
    /// The projector behind it.
    Projector,
}

/// Every tensor of a model, in the order of use. The tower's prefix tokens have one row here: only
/// a checkpoint has their number.
pub fn required_tensors(config: &Config) -> Vec<RequiredTensor> {
    let mut list = TensorList { part: ModelPart::Embeddings, prefix: "backbone.".into(), wanted: Vec::new() };
    let text = &config.text;
    list.add_table("embeddings.weight", &[text.vocabulary, text.hidden]);
    for (index, kind) in text.layers.iter().enumerate() {
        list.enter(ModelPart::Layer(*kind), format!("backbone.layers.{index}."));
        list.add("norm.weight", &[text.hidden]);
        list.enter(ModelPart::Layer(*kind), format!("backbone.layers.{index}.mixer."));
        match kind {
            LayerKind::Ssm => add_ssm(&mut list, text.hidden, &text.ssm),
            LayerKind::Attention => add_attention(&mut list, text),
            LayerKind::Mlp => add_mlp(&mut list, "", text.hidden, text.intermediate),
            LayerKind::Moe => text.moe.iter().for_each(|moe| add_moe(&mut list, text.hidden, moe)),
        }
    }
    list.enter(ModelPart::Head, String::new());
    list.add("backbone.norm_f.weight", &[text.hidden]);
    list.add("lm_head.weight", &[text.vocabulary, text.hidden]);
    if let Some(vision) = &config.vision {
        add_vision(&mut list, vision, text.hidden);
    }
    list.wanted
}

fn add_ssm(list: &mut TensorList, hidden: usize, ssm: &SsmConfig) {
    list.add("in_proj.weight", &[ssm.in_proj_width(), hidden]);
    list.add("conv1d.weight", &[ssm.conv_width(), 1, ssm.conv_kernel]);
    list.add("conv1d.bias", &[ssm.conv_width()]);
    for name in ["A_log", "D", "dt_bias"] {
        list.add(name, &[ssm.heads]);
    }
    list.add("norm.weight", &[ssm.inner()]);
    list.add("out_proj.weight", &[hidden, ssm.inner()]);
}

fn add_attention(list: &mut TensorList, text: &TextConfig) {
    let [q, kv] =
        [text.attention.heads, text.attention.kv_heads].map(|heads| heads * text.attention.head_dim);
    list.add("q_proj.weight", &[q, text.hidden]);
    list.add("k_proj.weight", &[kv, text.hidden]);
    list.add("v_proj.weight", &[kv, text.hidden]);
    list.add("o_proj.weight", &[text.hidden, q]);
}

fn add_mlp(list: &mut TensorList, name: &str, outer: usize, inner: usize) {
    list.add(&format!("{name}up_proj.weight"), &[inner, outer]);
    list.add(&format!("{name}down_proj.weight"), &[outer, inner]);
}

fn add_moe(list: &mut TensorList, hidden: usize, moe: &MoeConfig) {
    list.add("gate.weight", &[moe.experts, hidden]);
    list.add("gate.e_score_correction_bias", &[moe.experts]);
    for expert in 0..moe.experts {
        add_mlp(list, &format!("experts.{expert}."), moe.latent.unwrap_or(hidden), moe.intermediate);
    }
    if moe.shared_intermediate > 0 {
        add_mlp(list, "shared_experts.", hidden, moe.shared_intermediate);
    }
    if let Some(latent) = moe.latent {
        list.add("fc1_latent_proj.weight", &[latent, hidden]);
        list.add("fc2_latent_proj.weight", &[hidden, latent]);
    }
}

fn add_vision(list: &mut TensorList, vision: &VisionConfig, text_hidden: usize) {
    let hidden = vision.hidden;
    let wide = vision.intermediate;
    list.enter(ModelPart::Tower, format!("{TOWER}patch_generator."));
    list.add("embedder.weight", &[hidden, 3 * vision.patch.pow(2)]);
    list.add("pos_embed", &[1, vision.positions_side.pow(2), hidden]);
    list.add_table("cls_token.token", &[1, hidden]);
    for block in 0..vision.blocks {
        list.enter(ModelPart::Tower, format!("{TOWER}blocks.{block}."));
        list.add_affine("norm1", &[hidden]);
        list.add_affine("attn.qkv", &[3 * hidden, hidden]);
        list.add_affine("attn.proj", &[hidden, hidden]);
        list.add_affine("norm2", &[hidden]);
        list.add_affine("mlp.fc1", &[wide, hidden]);
        list.add_affine("mlp.fc2", &[hidden, wide]);
    }
    let shuffled = hidden * vision.shuffle.pow(2);
    list.enter(ModelPart::Projector, "mlp1.".into());
    list.add("0.weight", &[shuffled]);
    list.add("1.weight", &[vision.projector_hidden, shuffled]);
    list.add("3.weight", &[text_hidden, vision.projector_hidden]);
}

/// The list so far, and the prefix of the next names.
struct TensorList {
    part: ModelPart,
    prefix: String,
    wanted: Vec<RequiredTensor>,
}

impl TensorList {
    fn enter(&mut self, part: ModelPart, prefix: String) {
        (self.part, self.prefix) = (part, prefix);
    }

    fn add(&mut self, name: &str, shape: &[usize]) {
        let name = format!("{}{name}", self.prefix);
        self.wanted.push(RequiredTensor { name, shape: shape.into(), more_rows: false, part: self.part });
    }

    fn add_table(&mut self, name: &str, shape: &[usize]) {
        self.add(name, shape);
        self.wanted.iter_mut().last().into_iter().for_each(|wanted| wanted.more_rows = true);
    }

    /// A weight, and a bias with as many values as the weight has rows.
    fn add_affine(&mut self, name: &str, shape: &[usize]) {
        self.add(&format!("{name}.weight"), shape);
        self.add(&format!("{name}.bias"), &shape[..1]);
    }
}
