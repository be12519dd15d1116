//! `config.json` of a checkpoint.

use std::hint::black_box;
use std::path::Path;

use furrow_model::checkpoint::{ParameterCounts, SessionState, required_tensors};
use furrow_model::config::Config;
use furrow_model::floor::DEVICES;
use serde_json::json;

use crate::{FuzzTarget, Seed, accept, models};

pub(super) const CONFIG: FuzzTarget = FuzzTarget {
    name: "config",
    run,
    repair: None,
    // The names of all tensors of 1,024 layers with 131,072 experts.
    memory_max: |_| 256 << 20,
    bytes_max: 8 << 10,
    catches_panics: false,
    seeds,
};

/// What is computed of an accepted configuration before any weight is read does not overflow.
fn run(input: &[u8]) {
    let Ok(config) = Config::parse(input, Path::new("config.json")) else { return };
    accept();
    let tensors = required_tensors(&config);
    assert!(!tensors.is_empty(), "a model has tensors");
    black_box(ParameterCounts::of(&config));
    black_box(SessionState::of(&config.text));
    black_box(config.parameters());
    if let Some(vision) = &config.vision {
        assert!(vision.rows_per_tile() > 0, "a tile has rows");
        assert!(vision.patches_side() > 0, "a tile has patches");
    }
    black_box(DEVICES.len());
}

fn seeds() -> Vec<Seed> {
    let mut experts = models::text_json();
    experts["hybrid_override_pattern"] = json!("ME*E");
    for (key, value) in [
        ("n_routed_experts", json!(8)),
        ("num_experts_per_tok", json!(2)),
        ("moe_intermediate_size", json!(16)),
        ("n_shared_experts", json!(1)),
        ("moe_shared_expert_intermediate_size", json!(16)),
        ("n_group", json!(2)),
        ("topk_group", json!(1)),
        ("norm_topk_prob", json!(true)),
        ("routed_scaling_factor", json!(2.5)),
    ] {
        experts[key] = value;
    }
    let mut listed = models::text_json();
    listed["hybrid_override_pattern"] = json!(null);
    listed["layers_block_type"] = json!(["mamba", "mlp", "attention", "mlp"]);
    [
        ("vision", models::config_json()),
        ("text", models::text_json()),
        ("experts", experts),
        ("listed", listed),
    ]
    .map(|(name, config)| Seed::new(name, config.to_string()))
    .into()
}
