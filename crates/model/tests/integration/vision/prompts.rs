//! Screenshots in prompts, through the whole model on the `cpu` backend.

use furrow_model::cpu::CpuBackend;
use furrow_model::forward::{ForwardRequest, capacity_for, forward};
use furrow_model::kernels::{ProductPrecision, ThreadPool};
use furrow_model::vision::{ImageTile, ResampleMode, prepare};
use furrow_model::weights::ModelWeights;
use serde_json::Value;

use crate::vision::oracle::{ExpectedTensors, folder, json, screenshot};
use crate::vision::tower::near;

/// A prompt of the reference and its results.
struct ReferencePrompt {
    name: String,
    ids: Vec<u32>,
    images: Vec<String>,
    decode: Vec<u32>,
    decode_aligned: Option<Vec<u32>>,
}

impl ReferencePrompt {
    fn read(name: &str, reference: &Value) -> Self {
        let list = |value: &Value| serde_json::from_value::<Vec<u32>>(value.clone()).ok();
        Self {
            name: name.into(),
            ids: list(&reference["ids"]).unwrap(),
            images: serde_json::from_value(reference["images"].clone()).unwrap(),
            decode: list(&reference["decode"]).unwrap(),
            decode_aligned: list(&reference["decode_ac1"]),
        }
    }
}

/// Checks the prompts of a checkpoint that have a reference for this way of resizing the position
/// table; returns their number.
fn check(case: &str, align_corners: bool) -> usize {
    let mut weights = ModelWeights::load(&folder().join(case), &ThreadPool::new(2), &mut |_, _| {}).unwrap();
    weights.config.vision.as_mut().unwrap().align_corners = align_corners;
    let vision = weights.config.vision.clone().unwrap();
    let tag = if align_corners { "ac1" } else { "ac0" };
    let expected = ExpectedTensors::read(&format!("{case}/expected.safetensors"));
    let mut cpu = CpuBackend::open(weights, capacity_for(512, 64, 16), 2, ProductPrecision::Float32).unwrap();
    let inputs = json(&format!("{case}/inputs.json"));
    let prompts = inputs["prompts"].as_object().unwrap().iter();
    let mut checked = 0;
    for prompt in prompts.map(|(name, reference)| ReferencePrompt::read(name, reference)) {
        let decode = if align_corners { prompt.decode_aligned } else { Some(prompt.decode) };
        let Some(decode) = decode else { continue };
        let tiles_of = |image: &String| prepare(screenshot(image), &vision, ResampleMode::U8).tiles;
        let tiles: Vec<ImageTile> = prompt.images.iter().flat_map(tiles_of).collect();
        let request =
            ForwardRequest { input_ids: &prompt.ids, tiles: &tiles, segments: &[], decode: decode.len() };
        let whole = forward(&mut cpu, &request).unwrap();
        let key = format!("{}.{tag}", prompt.name);
        near(&format!("{case} {key}"), &whole.logits, &expected.floats(&format!("{key}.logits")));
        let decode_logits = expected.floats(&format!("{key}.decode.logits"));
        near(&format!("{case} {key} decode"), &whole.decode_logits, &decode_logits);
        assert_eq!(whole.decode_tokens, decode, "{case} {key}");

        // Cut inside the prompt's images: the same bits.
        let segments = [prompt.ids.len() / 3, 1, prompt.ids.len() - prompt.ids.len() / 3 - 1];
        let cut = forward(&mut cpu, &ForwardRequest { segments: &segments, ..request }).unwrap();
        assert!(cut == whole, "{case} {key} in pieces of {segments:?}");
        checked += 1;
    }
    checked
}

#[test]
fn every_prompt_gets_the_references_logits() {
    assert_eq!(check("vl_f32", false), 4);
    assert_eq!(check("vl_f32", true), 2);
    assert_eq!(check("vl_bf16_sharded", false), 3);
    assert_eq!(check("vl_bf16_sharded", true), 2);
}

/// The placeholders of a prompt and its tiles must match.
#[test]
fn images_and_placeholders_must_match() {
    let weights = ModelWeights::load(&folder().join("vl_f32"), &ThreadPool::new(1), &mut |_, _| {}).unwrap();
    let vision = weights.config.vision.clone().unwrap();
    let mut cpu = CpuBackend::open(weights, capacity_for(64, 9, 0), 1, ProductPrecision::Float32).unwrap();
    let tiles = prepare(screenshot("a_1280x720"), &vision, ResampleMode::U8).tiles;
    let mut refused = |ids: &[u32], tiles: &[ImageTile]| {
        let request = ForwardRequest { input_ids: ids, tiles, ..ForwardRequest::default() };
        let error = forward(&mut cpu, &request).unwrap_err();
        std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source())
            .last()
            .unwrap()
            .to_string()
    };
    let image = vision.image_token;
    assert!(refused(&[1, image, 2], &tiles).contains("1 image placeholders for 9 tiles of 4 rows each"));
    assert!(refused(&[1, 2], &tiles).contains("0 image placeholders for 9 tiles"));
    assert!(refused(&[1, image, image, image, image], &[]).contains("4 image placeholders for 0 tiles"));
    let more = [tiles.as_slice(), &tiles[..1]].concat();
    assert!(refused(&[image; 40], &more).contains("10 requested, 9 available"));
}
