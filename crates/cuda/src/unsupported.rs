//! Lists everything about a model that the kernels do not support, at once and by name.

use furrow_model::config::{Config, LayerKind, TextConfig, VisionConfig};

use crate::ops::{PACK, conv, moe, vision};

/// Largest head size of the plain attention kernel.
const HEAD_MAX: usize = 256;

/// Reasons, each with the key of `config.json`; empty for a supported model.
pub(crate) fn unsupported(config: &Config) -> Vec<String> {
    text(&config.text).into_iter().chain(config.vision.iter().flat_map(tower)).collect()
}

fn text(text: &TextConfig) -> Vec<String> {
    let has = |kind| text.layers.contains(&kind);
    let mut why = Vec::new();
    let mut unless = |holds: bool, what: String| {
        if !holds {
            why.push(what);
        }
    };
    let ssm = &text.ssm;
    if let Some(moe) = &text.moe {
        let experts = moe.experts;
        let most = moe::EXPERTS_MAX;
        unless(experts <= most, format!("n_routed_experts: {experts}, more than {most}"));
    }
    unless(in_packs(text.hidden), format!("hidden_size: {}, not a multiple of {PACK}", text.hidden));
    if has(LayerKind::Ssm) {
        let kernel = ssm.conv_kernel;
        let width = ssm.conv_width();
        let group = ssm.inner() / ssm.groups;
        unless(kernel == conv::KERNEL, format!("conv_kernel: {kernel}, not {}", conv::KERNEL));
        unless(
            width.is_multiple_of(4),
            format!(
                "mamba_num_heads, mamba_head_dim, n_groups, ssm_state_size: a convolution of {width} channels, not a multiple of 4"
            ),
        );
        unless(
            ssm.inner().is_multiple_of(ssm.groups) && group.is_multiple_of(4),
            format!("n_groups: {}, which makes groups of {group} channels, not a multiple of 4", ssm.groups),
        );
    }
    if has(LayerKind::Attention) {
        let head = text.attention.head_dim;
        unless(head <= HEAD_MAX, format!("head_dim: {head}, more than {HEAD_MAX}"));
    }
    why
}

fn tower(of: &VisionConfig) -> Vec<String> {
    let head = of.hidden / of.heads;
    let mut why = Vec::new();
    if head > vision::HEAD_MAX {
        let most = vision::HEAD_MAX;
        why.push(format!(
            "vision_config.num_attention_heads: {}, which makes heads of {head} values, more than {most}",
            of.heads
        ));
    }
    for (key, width) in [("hidden_size", of.hidden), ("intermediate_size", of.intermediate)] {
        if !in_packs(width) {
            why.push(format!("vision_config.{key}: {width}, not a multiple of {PACK}"));
        }
    }
    why
}

fn in_packs(width: usize) -> bool {
    width.is_multiple_of(PACK)
}
