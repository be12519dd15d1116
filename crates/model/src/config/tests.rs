//! Configurations as tables: which load, and which are refused with which text.

use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// The keys of the published 12B that readers use.
const VL_12B: &str = include_str!("../../tests/configs/nano_12b_vl.json");

fn vl_12b() -> Value {
    serde_json::from_str(VL_12B).unwrap()
}

fn text_12b() -> Value {
    vl_12b()["llm_config"].take()
}

fn moe() -> Value {
    let mut moe = text_12b();
    moe["hybrid_override_pattern"] = json!("MEM*E");
    moe["num_hidden_layers"] = Value::Null;
    for (key, value) in [
        ("n_routed_experts", 8),
        ("num_experts_per_tok", 2),
        ("moe_intermediate_size", 36),
        ("moe_shared_expert_intermediate_size", 40),
        ("n_group", 4),
        ("topk_group", 2),
    ] {
        moe[key] = json!(value);
    }
    moe
}

fn parse(value: &Value) -> Result<Config, ConfigError> {
    Config::parse(value.to_string().as_bytes(), Path::new("config.json"))
}

/// Sets a key, given as a path with dots, and parses.
fn with(mut value: Value, key: &str, to: Value) -> Result<Config, ConfigError> {
    let slot = key.split('.').fold(&mut value, |value, part| &mut value[part]);
    *slot = to;
    parse(&value)
}

#[test]
fn the_published_model_is_read() {
    let config = parse(&vl_12b()).unwrap();
    let count = |kind| config.text.layers_of(kind).count();
    assert_eq!([count(LayerKind::Ssm), count(LayerKind::Mlp), count(LayerKind::Attention)], [28, 28, 6]);
    assert_eq!(config.text.layers_of(LayerKind::Attention).collect::<Vec<_>>(), [7, 16, 25, 34, 43, 52]);
    assert_eq!(config.text.ssm.in_proj_width(), 22_656);
    assert_eq!(config.text.ssm.conv_width(), 12_288);
    assert_eq!(config.text.ssm.time_step_limit, (0.0, f32::INFINITY));
    let vision = config.vision.unwrap();
    assert_eq!([vision.hidden, vision.blocks, vision.heads, vision.intermediate], [1280, 32, 16, 5120]);
    assert_eq!((vision.positions_side, vision.rows_per_tile(), vision.shuffle_swapped), (128, 256, false));
    assert_eq!((vision.image_token, vision.tiles_max, vision.align_corners), (131_072, 12, false));
    assert_eq!(
        (vision.mean, vision.std),
        ([0.481_454_66, 0.457_827_5, 0.408_210_73], [0.268_629_54, 0.261_302_6, 0.275_777_1])
    );
}

#[test]
fn old_and_new_names_mean_the_same() {
    let same = |key: &str, old: &str, value: Value| {
        let mut renamed = moe();
        renamed[key] = Value::Null;
        renamed[old] = value;
        assert_eq!(parse(&renamed).unwrap(), parse(&moe()).unwrap(), "{old} for {key}");
    };
    same("head_dim", "attention_head_dim", json!(128));
    same("layer_norm_epsilon", "rms_norm_eps", json!(1e-5));
    same("layer_norm_epsilon", "norm_eps", json!(1e-5));
    same("n_groups", "mamba_n_groups", json!(8));
    same("n_routed_experts", "num_local_experts", json!(8));
    same(
        "hybrid_override_pattern",
        "layers_block_type",
        json!(["mamba", "moe", "mamba", "attention", "moe"]),
    );
    let new = json!(["linear_attention", "moe", "linear_attention", "full_attention", "moe"]);
    same("hybrid_override_pattern", "layers_block_type", new.clone());
    same("hybrid_override_pattern", "layer_types", new);
    let mut renamed = vl_12b();
    renamed["text_config"] = renamed["llm_config"].take();
    assert_eq!(parse(&renamed).unwrap(), parse(&vl_12b()).unwrap());
}

#[test]
fn the_bare_literal_infinity_is_read() {
    let text = text_12b().to_string().replace(r#"{"__float__":"Infinity"}"#, "Infinity");
    assert!(text.contains("[0.0,Infinity]"));
    let config = Config::parse(text.as_bytes(), Path::new("config.json")).unwrap();
    assert_eq!(config, parse(&text_12b()).unwrap());
}

#[test]
fn a_wrong_key_is_named_with_its_remedy() {
    let check = |value: Value, key: &str, to: Value, fragments: &[&str]| {
        let error = with(value, key, to.clone()).expect_err(&format!("{key} = {to}")).to_string();
        let named = error.contains(&format!("`{key}` is "));
        assert!(named && fragments.iter().all(|fragment| error.contains(fragment)), "{key} = {to}: {error}");
    };
    for key in [
        "use_bias",
        "mlp_bias",
        "attention_bias",
        "mamba_proj_bias",
        "tie_word_embeddings",
        "residual_in_fp32",
    ] {
        check(text_12b(), key, json!(true), &["true", "only false is supported"]);
    }
    check(text_12b(), "use_conv_bias", json!(false), &["only true"]);
    check(text_12b(), "mlp_hidden_act", json!("silu"), &["silu", "relu2"]);
    check(text_12b(), "sliding_window", json!(4096), &["4096", "only null"]);
    check(text_12b(), "quantization_config", json!({"bits": 4}), &["bfloat16"]);
    check(text_12b(), "model_type", json!("llama"), &["llama", "nemotron_h"]);
    check(text_12b(), "num_hidden_layers", json!(61), &["61", "62 layers"]);
    check(text_12b(), "hybrid_override_pattern", json!("M-X"), &["layer 2 is X"]);
    check(text_12b(), "hybrid_override_pattern", json!(""), &["1 to 1024 characters"]);
    check(text_12b(), "hybrid_override_pattern", Value::Null, &["missing", "layers_block_type"]);
    check(text_12b(), "layers_block_type", json!(["mamba", "mlp"]), &["other layers", "keep one"]);
    check(text_12b(), "layers_block_type", json!(["mamba", "conv"]), &["layer 1 is \"conv\""]);
    check(text_12b(), "hidden_size", Value::Null, &["missing", "from 1 to 1048576"]);
    check(text_12b(), "hidden_size", json!(0), &["is 0"]);
    check(text_12b(), "hidden_size", json!(1_u64 << 60), &["1152921504606846976", "1048576"]);
    check(text_12b(), "hidden_size", json!(-3), &["-3"]);
    check(text_12b(), "hidden_size", json!(51.5), &["51.5"]);
    check(text_12b(), "hidden_size", json!("5120"), &["\"5120\""]);
    check(text_12b(), "attention_head_dim", json!(64), &["64", "`head_dim` is 128"]);
    check(text_12b(), "rms_norm_eps", json!(1e-6), &["`layer_norm_epsilon` is"]);
    check(text_12b(), "layer_norm_epsilon", json!({"__float__": "NaN"}), &["NaN"]);
    check(text_12b(), "num_key_value_heads", json!(7), &["must divide", "40"]);
    check(text_12b(), "n_groups", json!(7), &["must divide", "128"]);
    check(text_12b(), "mamba_num_heads", json!(65_536), &["wide"]);
    check(text_12b(), "conv_kernel", json!(1), &["from 2 to 16"]);
    check(text_12b(), "time_step_limit", json!([0.1, 0.0]), &["[0.0, Infinity]"]);
    check(text_12b(), "time_step_limit", json!(0.1), &["[0.0, Infinity]"]);
    check(moe(), "n_group", json!(3), &["must divide"]);
    check(moe(), "n_group", json!(8), &["needs two"]);
    check(moe(), "topk_group", json!(5), &["at most `n_group`, 4"]);
    check(moe(), "num_experts_per_tok", json!(5), &["only 4 experts"]);
    check(moe(), "n_shared_experts", json!(2), &["from 0 to 1"]);
    check(moe(), "moe_latent_size", json!(0), &["is 0"]);
    check(vl_12b(), "llm_config", json!(7), &["an object"]);
    check(vl_12b(), "text_config", json!({}), &["keep one of the two"]);
    check(vl_12b(), "llm_config.hidden_size", json!("wide"), &["wide"]);
    check(vl_12b(), "vision_config", json!([]), &["an object"]);
    check(vl_12b(), "vision_config.num_attention_heads", json!(15), &["must divide", "1280"]);
    check(vl_12b(), "vision_config.use_swiglu_ffn", json!(true), &["only false"]);
    check(vl_12b(), "vision_config.args.model_norm", json!(true), &["only false"]);
    check(vl_12b(), "vision_config.max_resolution", json!("2048"), &["from 1 to 65536"]);
    check(vl_12b(), "vit_hidden_size", json!(1024), &["1024", "1280 wide"]);
    check(vl_12b(), "force_image_size", json!(500), &["multiple of 32"]);
    check(vl_12b(), "downsample_ratio", json!(0.3), &["0.3", "whole number"]);
    check(vl_12b(), "ps_version", json!("v3"), &["v1", "v2"]);
    check(vl_12b(), "image_tag_type", json!("other"), &["internvl"]);
    check(vl_12b(), "norm_std", json!([1.0, 0.0, 1.0]), &["three numbers"]);
    check(vl_12b(), "norm_mean", json!([0.5, 0.5]), &["three numbers"]);
    check(vl_12b(), "img_context_token_id", Value::Null, &["missing"]);
    check(vl_12b(), "projector_hidden_size", Value::Null, &["missing"]);
    let unknown =
        with(vl_12b(), "vision_config.args.model", json!("vit_odd_patch16")).unwrap_err().to_string();
    assert!(unknown.contains("vit_odd_patch16") && unknown.contains("vit_huge"), "{unknown}");
}

#[test]
fn all_problems_are_reported_at_once() {
    let mut value = vl_12b();
    value["llm_config"]["use_bias"] = json!(true);
    value["llm_config"]["hidden_size"] = Value::Null;
    value["projector_hidden_size"] = json!("wide");
    let Err(ConfigError::Invalid { problems, .. }) = parse(&value) else { panic!("expected three problems") };
    let keys: Vec<&str> = problems.0.iter().map(|problem| problem.key.as_str()).collect();
    assert_eq!(keys, ["llm_config.use_bias", "llm_config.hidden_size", "projector_hidden_size"]);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(Config::parse(&bytes, Path::new("config.json")).is_err());
    }

    #[test]
    fn no_change_of_a_valid_file_makes_it_panic(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut text = VL_12B.as_bytes().to_vec();
        for (at, to) in changes {
            *at.get_mut(&mut text) = to;
        }
        if let Err(error) = Config::parse(&text, Path::new("config.json")) {
            prop_assert!(error.to_string().starts_with("config.json"));
        }
        let cut = &VL_12B.as_bytes()[..cut.index(VL_12B.trim_end().len())];
        prop_assert!(Config::parse(cut, Path::new("config.json")).is_err());
    }

    #[test]
    fn no_value_of_any_key_makes_it_panic(
        section in 0..4_usize,
        key in 0..40_usize,
        to in prop::sample::select(VALUES.as_slice()),
    ) {
        let mut value = if section == 3 { moe() } else { vl_12b() };
        let part = match section {
            0 => Some(&mut value),
            1 => value.get_mut("llm_config"),
            2 => value.get_mut("vision_config"),
            _ => Some(&mut value),
        };
        let object = part.and_then(Value::as_object_mut).unwrap();
        let name = object.keys().nth(key % object.len()).cloned().unwrap();
        object[&name] = serde_json::from_str(to).unwrap();
        if let Ok(config) = parse(&value) {
            prop_assert!(config.text.ssm.in_proj_width() < 1 << 22);
        }
    }
}

/// Hostile values for a key.
const VALUES: [&str; 16] = [
    "0",
    "1",
    "2",
    "7",
    "-1",
    "1e308",
    "18446744073709551615",
    "1048576",
    "0.3",
    "\"\"",
    "\"v1\"",
    "[]",
    "{}",
    "true",
    "null",
    r#"{"__float__":"-Infinity"}"#,
];
