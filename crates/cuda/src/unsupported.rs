//! What stands between a model and the kernels there are: everything, at once, by name.

use furrow_model::config::{Config, LayerKind, TextConfig, VisionConfig};

use crate::ops::{PACK, conv, moe};

/// Largest head size of attention's plain form.
const HEAD_MAX: usize = 256;
/// Head sizes of attention inside tiles.
const IMAGE_HEADS: [usize; 2] = [64, 80];

/// Reasons; none for a model that can be run.
pub(crate) fn unsupported(config: &Config, of_f32: bool) -> Vec<String> {
    let mut why = text(&config.text);
    if let Some(vision) = &config.vision {
        why.extend(tower(vision));
        if of_f32 {
            why.push("its vision encoder is to be computed in float32, kernels are for bfloat16".to_owned());
        }
    }
    why
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
        let (experts, most) = (moe.experts, moe::EXPERTS_MAX);
        unless(experts <= most, format!("its expert layers have {experts} experts, over {most}"));
    }
    unless(in_packs(text.hidden), format!("its width {} is no multiple of {PACK}", text.hidden));
    if has(LayerKind::Ssm) {
        let (kernel, width, group) = (ssm.conv_kernel, ssm.conv_width(), ssm.inner() / ssm.groups);
        unless(kernel == conv::KERNEL, format!("its convolution has {kernel} taps, not {}", conv::KERNEL));
        unless(width.is_multiple_of(4), format!("its convolution's width {width} is no multiple of 4"));
        unless(
            ssm.inner().is_multiple_of(ssm.groups) && group.is_multiple_of(4),
            format!("a group of its gated norm has {group} channels, which is no multiple of 4"),
        );
    }
    if has(LayerKind::Attention) {
        let head = text.attention.head_dim;
        unless(head <= HEAD_MAX, format!("its attention heads have {head} values, over {HEAD_MAX}"));
    }
    why
}

fn tower(vision: &VisionConfig) -> Vec<String> {
    let head = vision.hidden / vision.heads;
    let mut why = Vec::new();
    if !IMAGE_HEADS.contains(&head) {
        why.push(format!(
            "the heads of its vision encoder have {head} values; there are kernels for 64 and 80"
        ));
    }
    if !in_packs(vision.hidden) || !in_packs(vision.intermediate) {
        why.push(format!(
            "its vision encoder's widths {} and {} are no multiples of {PACK}",
            vision.hidden, vision.intermediate
        ));
    }
    why
}

fn in_packs(width: usize) -> bool {
    width.is_multiple_of(PACK)
}
