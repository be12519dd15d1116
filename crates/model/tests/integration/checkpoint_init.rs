//! Random checkpoints: one seed gives the same bytes, every reader opens them, and they appear
//! completely or not at all.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use furrow_model::checkpoint::Checkpoint;
use furrow_model::config::Config;
use furrow_model::cpu::CpuBackend;
use furrow_model::forward::{self, ForwardRequest, forward};
use furrow_model::init::{InitError, InitSpec, ModelSize, SHARD_BYTES_MAX, StoredType, init};
use furrow_model::kernels::{ProductPrecision, ThreadPool};
use furrow_model::template::{ChatTemplate, TemplateFile};
use furrow_model::tokenizer::{TokenKind, Tokenizer};
use furrow_model::vision::{DecodedImage, ResampleMode, prepare};
use furrow_model::weights::ModelWeights;
use proptest::prelude::*;
use safetensors::SafeTensors;
use sha2::{Digest, Sha256};

const TINY: InitSpec =
    InitSpec { size: ModelSize::Tiny, seed: 7, dtype: StoredType::Float32, shard_bytes_max: SHARD_BYTES_MAX };

/// Contents of every file by name.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

fn written(how: &InitSpec) -> BTreeMap<String, Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    init(&dir.path().join("checkpoint"), how).unwrap();
    files(&dir.path().join("checkpoint"))
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let [first, second] = [written(&TINY), written(&TINY)];
    assert!(first == second);
    let other = written(&InitSpec { seed: 8, ..TINY });
    let differing: Vec<&str> =
        first.keys().map(String::as_str).filter(|name| first[*name] != other[*name]).collect();
    assert_eq!(differing, ["model.safetensors"]);
}

#[test]
fn every_reader_opens_it() {
    let dir = tempfile::tempdir().unwrap();
    for (size, dtype, parameters) in [
        (ModelSize::Mini, StoredType::Float32, 1_000_000..2_000_000),
        (ModelSize::Tiny, StoredType::Float32, 3_000_000..6_000_000),
        (ModelSize::Tiny, StoredType::Bfloat16, 3_000_000..6_000_000),
    ] {
        let checkpoint = dir.path().join(format!("{}-{}", size.as_str(), dtype.name()));
        let summary = init(&checkpoint, &InitSpec { size, dtype, ..TINY }).unwrap();
        let opened = Checkpoint::open(&checkpoint).unwrap();
        assert!(opened.ignored().is_empty(), "{:?}", opened.ignored());
        assert_eq!(opened.bytes(), summary.parameters * dtype.bytes() as u64);
        let config = opened.config().clone();
        let tokenizer = Arc::new(Tokenizer::open(&checkpoint).unwrap());
        assert_eq!(tokenizer.vocabulary().len(), config.text.vocabulary);
        let weights = ModelWeights::load(&checkpoint, &ThreadPool::new(2), &mut |_, _| {}).unwrap();
        tokenizer.fits(&config, weights.text.embeddings.rows).unwrap();
        let file = TemplateFile::open(&checkpoint).unwrap();
        let template = ChatTemplate::check(&file, &tokenizer, &config).unwrap();
        assert_eq!(template.stop(), 12);
        assert_eq!(template.image(2).unwrap(), [17, 16, 16, 18]);
        let bytes: usize = files(&checkpoint).values().map(Vec::len).sum();
        assert_eq!((summary.bytes, summary.vocabulary), (bytes as u64, config.text.vocabulary));
        assert!(parameters.contains(&summary.parameters), "{}", summary.parameters);
    }
}

/// The SHA-256 of each size's files: any later build can recreate a checkpoint that a run's records
/// name.
#[test]
fn sizes_keep_their_bytes() {
    for (size, dtype, sha256) in [
        (
            ModelSize::Mini,
            StoredType::Float32,
            "3325a8cdbd0dce9faa30619200bcd62fa00dc5025f35d3be8bd8032d1a632fbb",
        ),
        (
            ModelSize::Tiny,
            StoredType::Float32,
            "74c9d08cf8007bfb950dd9c556bf261b8f55d9cbea36703b4e2c43f9a332ee48",
        ),
        (
            ModelSize::Tiny,
            StoredType::Bfloat16,
            "48f3f06c7104816210fbbf8d3bb110bea8a82e0f694f7e56cd4463a80cd80ef1",
        ),
    ] {
        let files = written(&InitSpec { size, dtype, ..TINY });
        let mut hash = Sha256::new();
        for (name, bytes) in &files {
            hash.update(name);
            hash.update(bytes);
        }
        let got: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(got, sha256, "{} {}", size.as_str(), dtype.name());
    }
}

#[test]
fn the_prompt_is_what_the_published_template_renders() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = dir.path().join("checkpoint");
    init(&checkpoint, &TINY).unwrap();
    let tokenizer = Arc::new(Tokenizer::open(&checkpoint).unwrap());
    let config = Config::read(&checkpoint).unwrap();
    let template = ChatTemplate::check(&TemplateFile::default(), &tokenizer, &config).unwrap();
    let turn = template.first_turn("Be brief.", "Find <img> the </img> mug.");
    assert_eq!(turn.before_image[..2], [1, 10]);
    assert_eq!(turn.before_image.iter().filter(|id| **id < 32).count(), 3, "{:?}", turn.before_image);
    assert_eq!(
        tokenizer.decode_with_marks(&[turn.before_image, turn.after_image].concat()),
        "<s><SPECIAL_10>System\nBe brief.\n<SPECIAL_11>User\nFind <img> the </img> mug.\n\n<SPECIAL_11>Assistant\n<think></think>"
    );
}

#[test]
fn the_library_tokenises_the_rendered_prompt_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = dir.path().join("checkpoint");
    init(&checkpoint, &TINY).unwrap();
    let library = tokenizers::Tokenizer::from_file(checkpoint.join("tokenizer.json")).unwrap();
    let tokenizer = Arc::new(Tokenizer::open(&checkpoint).unwrap());
    let config = Config::read(&checkpoint).unwrap();
    let template = ChatTemplate::check(&TemplateFile::default(), &tokenizer, &config).unwrap();
    for (instructions, text) in
        [("", ""), ("Be brief.\n\n", "  Find 12 mugs"), ("é\t漢字\n", "\n\nx {task}\r\n")]
    {
        for turn in [template.first_turn(instructions, text), template.later_turn(text)] {
            let ids = [turn.before_image, template.image(3).unwrap(), turn.after_image].concat();
            let rendered = tokenizer.decode_with_marks(&ids);
            assert_eq!(library.encode(rendered.as_str(), false).unwrap().get_ids(), ids, "{rendered:?}");
        }
    }
}

/// The tiny model's logits for a prompt whose screenshot has one shade of grey.
fn logits(dir: &Path, grey: u8) -> Vec<f32> {
    let weights = ModelWeights::load(dir, &ThreadPool::new(2), &mut |_, _| {}).unwrap();
    let config = weights.config.clone();
    let tokenizer = Arc::new(Tokenizer::open(dir).unwrap());
    let template = ChatTemplate::check(&TemplateFile::default(), &tokenizer, &config).unwrap();
    let image = DecodedImage::new(320, 240, vec![grey; 320 * 240 * 3]);
    let tiles = prepare(&image, config.vision.as_ref().unwrap(), ResampleMode::default()).tiles;
    let turn = template.first_turn("Reply with one JSON object.", "Find the cheapest blue mug.");
    let image = template.image(tiles.len() * config.vision.as_ref().unwrap().rows_per_tile()).unwrap();
    let ids = [turn.before_image, image, turn.after_image].concat();
    let capacity = forward::capacity_for(ids.len(), tiles.len(), 0);
    let mut cpu = CpuBackend::open(weights, capacity, 2, ProductPrecision::Float32).unwrap();
    forward(&mut cpu, &ForwardRequest { input_ids: &ids, tiles: &tiles, ..ForwardRequest::default() })
        .unwrap()
        .logits
}

#[test]
fn the_model_runs_and_its_logits_depend_on_the_image() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = dir.path().join("checkpoint");
    init(&checkpoint, &TINY).unwrap();
    let [dark, light] = [20, 220].map(|grey| logits(&checkpoint, grey));
    let rms = |values: &mut dyn Iterator<Item = f32>, count: usize| {
        (values.map(|value| value * value).sum::<f32>() / count as f32).sqrt()
    };
    let spread = rms(&mut dark.iter().copied(), dark.len());
    assert!((1.5..2.5).contains(&spread), "logits spread by {spread}");
    // The first token of the reply depends on the screenshot.
    let last = dark.len() - 1024..dark.len();
    let moved = rms(&mut last.map(|at| dark[at] - light[at]), 1024);
    assert!(moved > 0.05, "another screenshot moves the last logits by {moved}");
}

#[test]
fn weights_are_sharded_under_a_cap_with_the_same_values() {
    let whole = written(&TINY);
    let parts = written(&InitSpec { shard_bytes_max: 4 << 20, ..TINY });
    let index: serde_json::Value = serde_json::from_slice(&parts["model.safetensors.index.json"]).unwrap();
    let map = index["weight_map"].as_object().unwrap();
    let whole = SafeTensors::deserialize(&whole["model.safetensors"]).unwrap();
    assert_eq!(map.len(), whole.len());
    let mut total = 0;
    for (name, shard) in map {
        let file = &parts[shard.as_str().unwrap()];
        assert!(file.len() < (4 << 20) + 65_536, "{shard} holds {} bytes", file.len());
        let part = SafeTensors::deserialize(file).unwrap();
        assert!(part.tensor(name).unwrap() == whole.tensor(name).unwrap(), "{name}");
        total += part.tensor(name).unwrap().data().len();
    }
    assert_eq!(index["metadata"]["total_size"], total);
    assert!(parts.keys().filter(|name| name.ends_with(".safetensors")).count() >= 3);
}

#[test]
fn a_directory_is_committed_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = dir.path().join("checkpoint");
    fs::create_dir(&checkpoint).unwrap();
    assert!(matches!(init(&checkpoint, &TINY), Err(InitError::Exists { .. })));
    assert!(matches!(init(Path::new("/"), &TINY), Err(InitError::Exists { .. })));
    let nowhere = dir.path().join("missing").join("checkpoint");
    assert!(matches!(init(&nowhere, &TINY), Err(InitError::Write { what: "create", .. })));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "a draft was left");
    assert_eq!(fs::read_dir(&checkpoint).unwrap().count(), 0);
}

/// Trained once for all cases.
fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: std::sync::OnceLock<Tokenizer> = std::sync::OnceLock::new();
    TOKENIZER.get_or_init(|| {
        Tokenizer::parse(Path::new("tokenizer.json"), &written(&TINY)["tokenizer.json"]).unwrap()
    })
}

#[test]
fn the_vocabulary_has_marks_bytes_and_merges() {
    let tokenizer = tokenizer();
    let vocabulary = tokenizer.vocabulary();
    let special: Vec<u32> = (0..vocabulary.len() as u32).filter(|id| vocabulary.is_special(*id)).collect();
    assert_eq!(special, (0..32).collect::<Vec<_>>());
    assert_eq!(vocabulary.texts().filter(|(_, bytes)| bytes.len() == 1).count(), 256);
    assert!((32..1024).all(|id| vocabulary.kind(id) == Some(TokenKind::Text)));
    for (name, id) in
        [("<s>", 1), ("</s>", 2), ("<SPECIAL_10>", 10), ("<SPECIAL_11>", 11), ("<SPECIAL_12>", 12)]
    {
        assert_eq!(tokenizer.special(name), Some(id));
    }
}

#[test]
fn a_reply_in_the_grammar_takes_few_tokens() {
    let reply = r#"{"note":"","thought":"Open the cart.","action":{"action":"click_element","element":"cart icon","x":907,"y":64}}"#;
    let ids = tokenizer().encode(reply);
    assert!(
        ids.len() <= 45,
        "{} tokens: {:?}",
        ids.len(),
        ids.iter().map(|id| tokenizer().decode(&[*id])).collect::<Vec<_>>()
    );
    // Digits are never merged, so that coordinates are spelled.
    let digits = |bytes: &[u8]| bytes.iter().filter(|byte| byte.is_ascii_digit()).count();
    assert!(
        tokenizer().vocabulary().texts().all(|(_, bytes)| digits(bytes) <= usize::from(bytes.len() == 1))
    );
}

proptest! {
    #[test]
    fn any_text_comes_back(text in any::<String>()) {
        let ids = tokenizer().encode(&text);
        prop_assert!(ids.iter().all(|id| *id >= 32));
        prop_assert_eq!(tokenizer().decode(&ids), text);
    }
}

/// 100 M values, 200 MB: 3 s.
#[test]
fn small_has_about_a_hundred_million_parameters() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = dir.path().join("small");
    let small = InitSpec { size: ModelSize::Small, dtype: StoredType::Bfloat16, ..TINY };
    let summary = init(&checkpoint, &small).unwrap();
    assert!((90_000_000..115_000_000).contains(&summary.parameters), "{}", summary.parameters);
    Tokenizer::open(&checkpoint).unwrap().fits(&Config::read(&checkpoint).unwrap(), 1024).unwrap();
}
