//! Reads the sections of the vision encoder: RADIO's `vision_config` and the related keys of the
//! top level.

use serde_json::json;

use super::fields::ConfigSection;
use super::shapes::VisionConfig;
use super::text::WIDTH_MAX;

/// Width, blocks, heads and MLP width of each RADIO backbone.
const TOWERS: [(&str, TowerSizes); 4] = [
    ("vit_small_patch", [384, 12, 6, 1536]),
    ("vit_base_patch", [768, 12, 12, 3072]),
    ("vit_large_patch", [1024, 24, 16, 4096]),
    ("vit_huge_patch", [1280, 32, 16, 5120]),
];
/// Pixel statistics of RADIO, which are CLIP's.
pub(super) const MEAN: [f32; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
pub(super) const STD: [f32; 3] = [0.268_629_54, 0.261_302_6, 0.275_777_1];

type TowerSizes = [usize; 4];

/// Reads `vision_config` and the keys of the top level that holds it.
pub(super) fn read(top: ConfigSection<'_>, vision: ConfigSection<'_>) -> VisionConfig {
    let args = vision.section("args", "vision_config.args.");
    refuse_what_is_not_implemented(top, vision, args);
    let [hidden, blocks, heads, intermediate] = tower(vision, args);
    let patch = vision.count_or(&["patch_size"], 1..=256, top.count_or(&["patch_size"], 1..=256, 16));
    let config = VisionConfig {
        tile: top.count(&["force_image_size"], 1..=4096),
        // Twelve is the default of the published image processor.
        tiles_max: top.count_or(&["max_num_tiles"], 1..=256, 12),
        thumbnail: top.flag_or("use_thumbnail", true),
        patch,
        hidden,
        blocks,
        heads,
        intermediate,
        positions_side: table_pixels(vision, args) / patch,
        align_corners: top.flag_or("cpe_align_corners", false),
        shuffle_swapped: top.string_or(&["ps_version"], "v2") == "v1",
        shuffle: shuffle(top),
        projector_hidden: top.count(&["projector_hidden_size"], 1..=WIDTH_MAX),
        mean: top.triple_or("norm_mean", 0.0..=1.0, vision.triple_or("norm_mean", 0.0..=1.0, MEAN)),
        std: top.triple_or("norm_std", 1e-3..=10.0, vision.triple_or("norm_std", 1e-3..=10.0, STD)),
        image_token: top
            .count(&["img_context_token_id", "image_context_token_id", "image_token_id"], 0..=(1 << 30))
            as u32,
        image_marks: [
            top.string_or(&["img_start_token"], "<img>"),
            top.string_or(&["img_end_token"], "</img>"),
        ],
    };
    if top.has_no_problems() {
        check_fit(top, vision, &config);
    }
    config
}

/// Sizes of the tower: explicit, or those of the named backbone.
fn tower(vision: ConfigSection<'_>, args: Option<ConfigSection<'_>>) -> TowerSizes {
    let name = args.map(|args| args.string_or(&["model"], "")).unwrap_or_default();
    let known = TOWERS.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|(_, tower)| *tower);
    let keys = ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"];
    if known.is_none() && vision.value(keys[0]).is_none() {
        let right = format!(
            "expected one of vit_small, vit_base, vit_large, vit_huge in `args.model` (it is {name:?}), or all of {keys:?} here"
        );
        vision.note_problem(keys[0], &right);
    }
    let max = [65_536, 1024, 4096, WIDTH_MAX];
    let size = |index: usize, default: Option<usize>| match default {
        Some(default) => vision.count_or(&[keys[index]], 1..=max[index], default),
        None => vision.count(&[keys[index]], 1..=max[index]),
    };
    let hidden = size(0, known.map(|tower| tower[0]));
    // RADIO's MLP is four times as wide as the tower unless the file says otherwise.
    let ratio = vision.number_or(&["mlp_ratio"], 0.01..=16.0, 4.0);
    let wide =
        known.filter(|tower| tower[0] == hidden).map_or((hidden as f64 * ratio) as usize, |tower| tower[3]);
    [hidden, size(1, known.map(|tower| tower[1])), size(2, known.map(|tower| tower[2])), size(3, Some(wide))]
}

/// Side in pixels that the position table was trained for.
fn table_pixels(vision: ConfigSection<'_>, args: Option<ConfigSection<'_>>) -> usize {
    let outer = vision.count_or(&["max_resolution", "max_img_size"], 1..=65_536, 2048);
    args.map_or(outer, |args| args.count_or(&["cpe_max_size"], 1..=65_536, outer))
}

/// Patches along a side of one token, from their inverse.
fn shuffle(top: ConfigSection<'_>) -> usize {
    let ratio = top.number_or(&["downsample_ratio"], 0.0625..=1.0, 0.5);
    let shuffle = (1.0 / ratio).round();
    if (shuffle * ratio - 1.0).abs() > 1e-6 {
        top.note_problem("downsample_ratio", "expected one over a whole number");
    }
    shuffle as usize
}

fn check_fit(top: ConfigSection<'_>, vision: ConfigSection<'_>, config: &VisionConfig) {
    let step = config.patch * config.shuffle;
    if !config.tile.is_multiple_of(step) {
        top.note_problem(
            "force_image_size",
            &format!("must be a multiple of {step}: the patch size over the downsample ratio"),
        );
    }
    if !config.hidden.is_multiple_of(config.heads) {
        vision.note_problem(
            "num_attention_heads",
            &format!("must divide the tower's width, {}", config.hidden),
        );
    }
    if top.count_or(&["vit_hidden_size"], 1..=65_536, config.hidden) != config.hidden {
        top.note_problem(
            "vit_hidden_size",
            &format!("the tower of `vision_config` is {} wide", config.hidden),
        );
    }
    if top.count_or(&["patch_size"], 1..=256, config.patch) != config.patch {
        top.note_problem("patch_size", &format!("`vision_config.patch_size` is {}", config.patch));
    }
    if config.positions_side == 0 || config.positions_side > 4096 {
        vision.note_problem(
            "max_resolution",
            &format!("expected a table of 1 to 4096 patches a side, each {} pixels", config.patch),
        );
    }
    if config.hidden * config.shuffle.pow(2) > WIDTH_MAX {
        top.note_problem("downsample_ratio", &format!("a shuffled token is more than {WIDTH_MAX} wide"));
    }
}

/// Refuses values that this code would otherwise ignore silently.
fn refuse_what_is_not_implemented(
    top: ConfigSection<'_>,
    vision: ConfigSection<'_>,
    args: Option<ConfigSection<'_>>,
) {
    top.allow_only("ps_version", &[json!("v1"), json!("v2")], "no other pixel shuffle is published");
    top.allow_only("image_tag_type", &[json!("internvl")], "no published checkpoint uses another");
    vision.allow_only("use_swiglu_ffn", &[json!(false)], "the published tower has a plain MLP");
    vision.allow_only("qkv_bias", &[json!(true)], "the published tower has this bias");
    vision.allow_only("hidden_act", &[json!("gelu")], "the published tower uses the exact GELU");
    vision.allow_only("layer_norm_eps", &[json!(1e-6)], "the published tower uses this epsilon");
    vision.allow_only("num_channels", &[json!(3)], "images are RGB");
    if let Some(args) = args {
        args.allow_only(
            "model_norm",
            &[json!(false)],
            "the published tower has no norm after its last block",
        );
    }
}
