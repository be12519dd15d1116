//! Maps every name that writers use for a tensor to its canonical name.
//!
//! The canonical name is the published one, without the outer `language_model.`:
//! `backbone.layers.0.norm.weight`, `lm_head.weight`,
//! `vision_model.radio_model.model.blocks.0.norm1.weight`, `mlp1.0.weight`.

/// Prefix of the tower's names.
pub(crate) const TOWER: &str = "vision_model.radio_model.model.";

/// Parts of the tower: names in transformers and published names.
const TOWER_PARTS: [(&str, &str); 4] = [
    ("embeddings.patch_projection.", "patch_generator.embedder."),
    ("embeddings.position_embedding", "patch_generator.pos_embed"),
    ("embeddings.cls_register_token", "patch_generator.cls_token.token"),
    ("encoder.layer.", "blocks."),
];
/// Parts of a block. Several releases renamed the attention.
const BLOCK_PARTS: [(&str, &str); 8] = [
    ("attention.attention.query.", "attn.q_proj."),
    ("attention.attention.key.", "attn.k_proj."),
    ("attention.attention.value.", "attn.v_proj."),
    ("attention.q_proj.", "attn.q_proj."),
    ("attention.k_proj.", "attn.k_proj."),
    ("attention.v_proj.", "attn.v_proj."),
    ("attention.o_proj.", "attn.proj."),
    ("attention.output.dense.", "attn.proj."),
];
/// Parts of the projector.
const PROJECTOR_PARTS: [(&str, &str); 9] = [
    ("multi_modal_projector.layer_norm.", "mlp1.0."),
    ("multi_modal_projector.linear_1.", "mlp1.1."),
    ("multi_modal_projector.linear_2.", "mlp1.3."),
    ("vision_projector.mlp1.norm.", "mlp1.0."),
    ("vision_projector.mlp1.linear1.", "mlp1.1."),
    ("vision_projector.mlp1.linear2.", "mlp1.3."),
    ("mlp1.norm.", "mlp1.0."),
    ("mlp1.linear1.", "mlp1.1."),
    ("mlp1.linear2.", "mlp1.3."),
];
/// Prefixes of tensors that this model does not have: heads for drafting tokens, and audio.
const OTHER_MODELS: [&str; 3] = ["mtp.", "sound_encoder.", "sound_projection."];

/// Canonical name of a tensor that a file calls `name`; `None` if it belongs to something that this
/// model does not have.
pub(super) fn canonical(name: &str) -> Option<String> {
    // transformers nests a model of several parts under `model.`; `text_name` handles a text
    // model's own `model.`.
    let inner = name.strip_prefix("model.").filter(|rest| is_part(rest)).unwrap_or(name);
    let text = inner.strip_prefix("language_model.").unwrap_or(inner);
    if OTHER_MODELS.iter().any(|other| text.starts_with(other)) {
        return None;
    }
    Some(match inner.strip_prefix("vision_model.") {
        Some(tower) => tower_name(tower),
        None => renamed(inner, &PROJECTOR_PARTS).unwrap_or_else(|| text_name(text)),
    })
}

fn is_part(rest: &str) -> bool {
    ["language_model.", "vision_model.", "multi_modal_projector.", "vision_projector.", "mlp1."]
        .iter()
        .any(|part| rest.starts_with(part))
}

/// `model.` and no prefix both mean `backbone.`.
fn text_name(name: &str) -> String {
    let rest = name.strip_prefix("backbone.").or_else(|| name.strip_prefix("model."));
    let body = |rest: &str| ["layers.", "embeddings.", "norm_f."].iter().any(|part| rest.starts_with(part));
    match rest {
        Some(rest) => format!("backbone.{rest}"),
        None if body(name) => format!("backbone.{name}"),
        None => name.into(),
    }
}

fn tower_name(name: &str) -> String {
    let inner = name.strip_prefix("radio_model.").unwrap_or(name);
    let inner = inner.strip_prefix("model.").unwrap_or(inner);
    let inner = renamed(inner, &TOWER_PARTS).unwrap_or_else(|| inner.into());
    let Some((block, part)) = inner.strip_prefix("blocks.").and_then(|rest| rest.split_once('.')) else {
        return format!("{TOWER}{inner}");
    };
    let part = renamed(part, &BLOCK_PARTS).unwrap_or_else(|| part.into());
    format!("{TOWER}blocks.{block}.{part}")
}

/// The name with its prefix replaced, if the table has it.
fn renamed(name: &str, table: &[(&str, &str)]) -> Option<String> {
    table.iter().find_map(|(from, to)| name.strip_prefix(from).map(|rest| format!("{to}{rest}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_has_one_name() {
        let check =
            |name: &str, expected: Option<&str>| assert_eq!(canonical(name).as_deref(), expected, "{name}");
        let in_proj = Some("backbone.layers.0.mixer.in_proj.weight");
        check("backbone.layers.0.mixer.in_proj.weight", in_proj);
        check("model.layers.0.mixer.in_proj.weight", in_proj);
        check("layers.0.mixer.in_proj.weight", in_proj);
        check("language_model.backbone.layers.0.mixer.in_proj.weight", in_proj);
        check("language_model.model.layers.0.mixer.in_proj.weight", in_proj);
        check("model.language_model.layers.0.mixer.in_proj.weight", in_proj);
        check("model.language_model.backbone.layers.0.mixer.in_proj.weight", in_proj);
        check("language_model.lm_head.weight", Some("lm_head.weight"));
        check("lm_head.weight", Some("lm_head.weight"));
        check("model.embeddings.weight", Some("backbone.embeddings.weight"));
        check("model.norm_f.weight", Some("backbone.norm_f.weight"));
        let embedder = Some("vision_model.radio_model.model.patch_generator.embedder.weight");
        check("vision_model.radio_model.model.patch_generator.embedder.weight", embedder);
        check("model.vision_model.embeddings.patch_projection.weight", embedder);
        check("vision_model.embeddings.patch_projection.weight", embedder);
        let q = Some("vision_model.radio_model.model.blocks.7.attn.q_proj.bias");
        check("vision_model.encoder.layer.7.attention.q_proj.bias", q);
        check("vision_model.encoder.layer.7.attention.attention.query.bias", q);
        let proj = Some("vision_model.radio_model.model.blocks.7.attn.proj.weight");
        check("vision_model.radio_model.model.blocks.7.attn.proj.weight", proj);
        check("vision_model.encoder.layer.7.attention.o_proj.weight", proj);
        check("model.vision_model.encoder.layer.7.attention.output.dense.weight", proj);
        check(
            "vision_model.encoder.layer.7.mlp.fc1.bias",
            Some("vision_model.radio_model.model.blocks.7.mlp.fc1.bias"),
        );
        check("multi_modal_projector.linear_2.weight", Some("mlp1.3.weight"));
        check("model.multi_modal_projector.layer_norm.weight", Some("mlp1.0.weight"));
        check("mlp1.1.weight", Some("mlp1.1.weight"));
        check("mtp.layers.0.eh_proj.weight", None);
        check("language_model.mtp.layers.0.norm.weight", None);
        check("sound_encoder.layers.0.norm.weight", None);
    }
}
