//! Reads the language model's section: the keys of `nemotron_h`, under their old and new names.

use serde_json::{Value, json};

use super::fields::ConfigSection;
use super::json::number;
use super::shapes::{AttentionConfig, LayerKind, MoeConfig, SsmConfig, TextConfig};

/// Most layers. The largest published model of the family has 118.
const LAYERS_MAX: usize = 1024;
/// Largest width. The widest of the 12B is 22,656; products of two widths stay below 2^40.
pub(super) const WIDTH_MAX: usize = 1 << 20;
/// Most rows of the vocabulary: 128 times the published 131,072.
const VOCABULARY_MAX: usize = 1 << 24;
/// Most experts of a model, over all layers: each has two names to look up. Published models have
/// about 20,000.
const EXPERTS_MAX: usize = 1 << 17;
/// Longest sequence; positions up to here leave room for sums in 32 bits.
const POSITIONS_MAX: usize = 1 << 30;

/// The keys that name the layers, newest last.
pub(super) const LAYER_KEYS: [&str; 3] = ["hybrid_override_pattern", "layers_block_type", "layer_types"];

pub(super) fn read(fields: ConfigSection<'_>) -> TextConfig {
    refuse_what_is_not_implemented(fields);
    let layers = layers(fields);
    let has = |kind| layers.contains(&kind);
    let intermediate = match has(LayerKind::Mlp) {
        true => fields.count(&["intermediate_size"], 1..=WIDTH_MAX),
        false => fields.count_or(&["intermediate_size"], 0..=WIDTH_MAX, 0),
    };
    TextConfig {
        hidden: fields.count(&["hidden_size"], 1..=WIDTH_MAX),
        vocabulary: fields.count(&["vocab_size"], 1..=VOCABULARY_MAX),
        intermediate,
        // The default of the published configuration class.
        norm_epsilon: fields.number_or(
            &["layer_norm_epsilon", "rms_norm_eps", "norm_eps", "layernorm_epsilon"],
            1e-12..=0.1,
            1e-5,
        ) as f32,
        // What the published models were trained on.
        positions_max: fields.count_or(&["max_position_embeddings"], 1..=POSITIONS_MAX, 131_072),
        attention: attention(fields),
        ssm: ssm(fields),
        moe: has(LayerKind::Moe).then(|| moe(fields, &layers)),
        layers,
    }
}

/// One mixer a layer, from a pattern or a list.
fn layers(fields: ConfigSection<'_>) -> Vec<LayerKind> {
    let [pattern_key, list_key, types_key] = LAYER_KEYS;
    let pattern = fields.value(pattern_key).and_then(|pattern| from_pattern(fields, pattern_key, pattern));
    let list = fields.find(&[list_key, types_key]).and_then(|(key, list)| from_list(fields, key, list));
    let layers = match (pattern, list) {
        (Some(pattern), Some(list)) if pattern != list => {
            fields.note_problem(
                list_key,
                &format!("lists other layers than `{pattern_key}`; keep one of the two"),
            );
            pattern
        }
        (Some(layers), _) | (None, Some(layers)) => layers,
        (None, None) => {
            let right = format!("expected one of M - * E a layer, or a list in `{list_key}`");
            if fields.find(&[list_key, types_key]).is_none() {
                fields.note_problem(pattern_key, &right);
            }
            return Vec::new();
        }
    };
    let says = fields.count_or(&["num_hidden_layers"], 1..=LAYERS_MAX, layers.len());
    if says != layers.len() {
        fields.note_problem(
            "num_hidden_layers",
            &format!("the layer list has {} layers; correct it or leave it out", layers.len()),
        );
    }
    layers
}

/// `M-M*-`: one character a layer.
fn from_pattern(fields: ConfigSection<'_>, key: &str, pattern: &Value) -> Option<Vec<LayerKind>> {
    let pattern = pattern.as_str().filter(|pattern| (1..=LAYERS_MAX).contains(&pattern.len()));
    if pattern.is_none() {
        fields.note_problem(key, &format!("expected a string of 1 to {LAYERS_MAX} characters"));
    }
    collect(fields, key, pattern?.chars().map(|letter| (LayerKind::from_letter(letter), letter.to_string())))
}

/// `["mamba", "mlp", …]`: one name a layer.
fn from_list(fields: ConfigSection<'_>, key: &str, list: &Value) -> Option<Vec<LayerKind>> {
    let list = list.as_array().filter(|list| (1..=LAYERS_MAX).contains(&list.len()));
    if list.is_none() {
        fields.note_problem(key, &format!("expected a list of 1 to {LAYERS_MAX} layer names"));
    }
    collect(
        fields,
        key,
        list?.iter().map(|name| (name.as_str().and_then(LayerKind::from_name), name.to_string())),
    )
}

fn collect(
    fields: ConfigSection<'_>,
    key: &str,
    named: impl Iterator<Item = (Option<LayerKind>, String)>,
) -> Option<Vec<LayerKind>> {
    let mut layers = Vec::new();
    for (index, (kind, name)) in named.enumerate() {
        let Some(kind) = kind else {
            let names = "M or mamba, * or attention, - or mlp, E or moe";
            fields.note_problem(key, &format!("layer {index} is {name}; a layer is one of {names}"));
            return None;
        };
        layers.push(kind);
    }
    Some(layers)
}

fn attention(fields: ConfigSection<'_>) -> AttentionConfig {
    let heads = fields.count(&["num_attention_heads"], 1..=4096);
    let attention = AttentionConfig {
        heads,
        kv_heads: fields.count_or(&["num_key_value_heads"], 1..=4096, heads),
        head_dim: fields.count(&["head_dim", "attention_head_dim"], 1..=4096),
    };
    if fields.has_no_problems() && !heads.is_multiple_of(attention.kv_heads) {
        fields.note_problem("num_key_value_heads", &format!("must divide `num_attention_heads`, {heads}"));
    }
    if fields.has_no_problems() && heads * attention.head_dim > WIDTH_MAX {
        fields.note_problem("head_dim", &format!("times {heads} heads it is more than {WIDTH_MAX}"));
    }
    attention
}

fn ssm(fields: ConfigSection<'_>) -> SsmConfig {
    let ssm = SsmConfig {
        heads: fields.count(&["mamba_num_heads"], 1..=65_536),
        head_dim: fields.count(&["mamba_head_dim"], 1..=4096),
        state: fields.count(&["ssm_state_size"], 1..=4096),
        groups: fields.count(&["n_groups", "mamba_n_groups"], 1..=4096),
        // At least two taps: a sequence's convolution state holds the inputs of all but the last
        // one.
        conv_kernel: fields.count_or(&["conv_kernel", "mamba_d_conv"], 2..=16, 4),
        chunk: fields.count_or(&["chunk_size", "mamba_chunk_size"], 1..=65_536, 128),
        time_step_limit: time_step_limit(fields),
    };
    if fields.has_no_problems() && !ssm.heads.is_multiple_of(ssm.groups) {
        fields.note_problem("n_groups", &format!("must divide `mamba_num_heads`, {}", ssm.heads));
    }
    if fields.has_no_problems() && ssm.conv_width() > WIDTH_MAX {
        fields.note_problem(
            "mamba_num_heads",
            &format!("the convolution is {} wide; at most {WIDTH_MAX}", ssm.conv_width()),
        );
    }
    ssm
}

/// Lower and upper limit of dt. If absent: no limit, as published.
fn time_step_limit(fields: ConfigSection<'_>) -> (f32, f32) {
    let Some((key, value)) = fields.find(&["time_step_limit", "mamba_dt_limit"]) else {
        return (0.0, f32::INFINITY);
    };
    let limits: Option<Vec<f64>> = value.as_array().and_then(|list| list.iter().map(number).collect());
    match limits.as_deref() {
        Some(&[low, high]) if low >= 0.0 && low.is_finite() && high > low => (low as f32, high as f32),
        _ => {
            fields.note_problem(
                key,
                "expected a list of a lower and an upper limit, [0.0, Infinity] as published",
            );
            (0.0, f32::INFINITY)
        }
    }
}

fn moe(fields: ConfigSection<'_>, layers: &[LayerKind]) -> MoeConfig {
    let experts = fields.count(&["n_routed_experts", "num_local_experts"], 1..=4096);
    let shared = fields.count_or(&["n_shared_experts"], 0..=1, 1);
    let moe = MoeConfig {
        experts,
        experts_per_token: fields.count(&["num_experts_per_tok"], 1..=4096),
        intermediate: fields.count(&["moe_intermediate_size"], 1..=WIDTH_MAX),
        shared_intermediate: match shared {
            0 => 0,
            _ => fields.count(&["moe_shared_expert_intermediate_size"], 1..=WIDTH_MAX),
        },
        groups: fields.count_or(&["n_group"], 1..=4096, 1),
        groups_kept: fields.count_or(&["topk_group"], 1..=4096, 1),
        normalise: fields.flag_or("norm_topk_prob", true),
        scaling: fields.number_or(&["routed_scaling_factor"], 1e-6..=1e6, 1.0) as f32,
        latent: fields.value("moe_latent_size").map(|_| fields.count(&["moe_latent_size"], 1..=WIDTH_MAX)),
    };
    if fields.has_no_problems() {
        check_routing(fields, &moe, layers);
    }
    moe
}

fn check_routing(fields: ConfigSection<'_>, moe: &MoeConfig, layers: &[LayerKind]) {
    let size = moe.experts / moe.groups;
    if layers.iter().filter(|kind| **kind == LayerKind::Moe).count() * moe.experts > EXPERTS_MAX {
        fields.note_problem(
            "n_routed_experts",
            &format!("all layers together may have at most {EXPERTS_MAX} experts"),
        );
    }
    if moe.groups * size != moe.experts {
        fields.note_problem("n_group", &format!("must divide `n_routed_experts`, {}", moe.experts));
    } else if moe.groups > 1 && size < 2 {
        fields.note_problem("n_group", "a group is rated by its two best experts and needs two");
    }
    if moe.groups_kept > moe.groups {
        fields.note_problem("topk_group", &format!("must be at most `n_group`, {}", moe.groups));
    } else if moe.experts_per_token > moe.groups_kept * size {
        let right = format!("the kept groups have only {} experts to choose from", moe.groups_kept * size);
        fields.note_problem("num_experts_per_tok", &right);
    }
}

/// Refuses values that this code would otherwise ignore silently.
fn refuse_what_is_not_implemented(fields: ConfigSection<'_>) {
    let no = [json!(false)];
    fields.allow_only("model_type", &[json!("nemotron_h")], "the checkpoint has another architecture");
    for key in ["use_bias", "mlp_bias", "attention_bias", "mamba_proj_bias"] {
        fields.allow_only(key, &no, "no published checkpoint has biases there");
    }
    for key in ["use_conv_bias", "mamba_conv_bias"] {
        fields.allow_only(key, &[json!(true)], "every published checkpoint has this bias");
    }
    fields.allow_only("tie_word_embeddings", &no, "write `lm_head.weight` as a tensor of its own");
    fields.allow_only("residual_in_fp32", &no, "no published checkpoint needs it");
    fields.allow_only("mlp_hidden_act", &[json!("relu2")], "no published checkpoint uses another");
    fields.allow_only(
        "mamba_hidden_act",
        &[json!("silu"), json!("swish")],
        "no published checkpoint uses another",
    );
    fields.refuse_key("sliding_window", "attention reads every earlier position; only null is supported");
    fields.refuse_key("quantization_config", "quantised weights cannot be read; use the bfloat16 checkpoint");
}
