//! Text, ids, and files that are refused.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::config::{AttentionConfig, SsmConfig, TextConfig, VisionConfig};

/// An added token as the library writes it.
pub(crate) fn mark(id: &Value, name: &str, special: bool) -> Value {
    json!({"id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
           "special": special})
}

/// Marks 0 to 4, the 256 bytes from 5 on, then a few merges and the image marks.
pub(crate) fn file() -> Value {
    let mut vocab = serde_json::Map::new();
    for name in ["<unk>", "<s>", "</s>", "<think>", "<SPECIAL_12>"] {
        vocab.insert(name.into(), vocab.len().into());
    }
    for byte in 0..=255 {
        vocab.insert(alphabet::char_of(byte).to_string(), vocab.len().into());
    }
    let merges =
        [("c", "l"), ("i", "c"), ("cl", "ic"), ("clic", "k"), ("Ġ", "click"), ("<", "s"), ("<s", ">")];
    for (left, right) in &merges[..6] {
        vocab.insert(format!("{left}{right}"), vocab.len().into());
    }
    let mut added: Vec<Value> =
        ["<unk>", "<s>", "</s>", "<SPECIAL_12>"].map(|name| mark(&vocab[name], name, true)).into();
    added.push(mark(&3.into(), "<think>", false));
    added.extend([(267, "<img>"), (268, "</img>")].map(|(id, name)| mark(&id.into(), name, true)));
    json!({
        "version": "1.0", "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": " ?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+|\\s+"}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]},
        "model": {"type": "BPE", "ignore_merges": true, "vocab": vocab, "merges": merges.map(|(left, right)| [left, right])},
    })
}

fn parse(file: &Value) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::parse(Path::new("tokenizer.json"), file.to_string().as_bytes())
}

fn tokenizer() -> Tokenizer {
    parse(&file()).unwrap()
}

/// A pre-tokenizer that does not split, so that the vocabulary sees whole texts.
fn uncut() -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false})
}

#[test]
fn text_becomes_ids_and_marks_stay_text() {
    #[track_caller]
    fn check(pre_tokenizer: Option<Value>, text: &str, want: &[u32]) {
        let mut file = file();
        if let Some(pre_tokenizer) = pre_tokenizer {
            file["pre_tokenizer"] = pre_tokenizer;
        }
        assert_eq!(parse(&file).unwrap().encode(text), want, "{text:?}");
    }
    let bytes = |text: &str| text.bytes().map(|byte| tokenizer().byte_ids[byte as usize]).collect::<Vec<_>>();
    check(None, "click click", &[264, 265]);
    check(None, "", &[]);
    check(None, "é", &bytes("é"));
    // The pattern splits these, so they never match the mark's entry.
    check(None, "<SPECIAL_12>", &bytes("<SPECIAL_12>"));
    check(None, "</img>", &bytes("</img>"));
    // Not split, they are entries of the model, found whole because of `ignore_merges`; merges also
    // produce "<s>".
    check(Some(uncut()), "<SPECIAL_12>", &bytes("<SPECIAL_12>"));
    check(Some(uncut()), "<think>", &bytes("<think>"));
    check(Some(uncut()), "<s>", &bytes("<s>"));
    check(Some(uncut()), "a<s>", &bytes("a<s>"));
}

#[test]
fn every_id_has_its_bytes() {
    let tokenizer = tokenizer();
    let vocabulary = tokenizer.vocabulary();
    assert_eq!(vocabulary.len(), 269);
    assert_eq!(vocabulary.bytes(265), Some(&b" click"[..]));
    assert_eq!((vocabulary.bytes(269), vocabulary.kind(269)), (None, None));
    assert_eq!((vocabulary.bytes(4), vocabulary.text(4)), (Some(&b"<SPECIAL_12>"[..]), None));
    assert_eq!((vocabulary.is_special(4), vocabulary.kind(3)), (true, Some(TokenKind::Added)));
    assert_eq!(vocabulary.texts().filter(|(_, bytes)| bytes.len() == 1).count(), 256);
    assert!(
        vocabulary
            .texts()
            .all(|(id, bytes)| !bytes.is_empty() && vocabulary.kind(id) == Some(TokenKind::Text))
    );
}

#[test]
fn ids_become_text() {
    let tokenizer = tokenizer();
    let mut ids = vec![tokenizer.special("<s>").unwrap(), 3];
    ids.extend(tokenizer.encode("click é"));
    ids.extend([tokenizer.special("<SPECIAL_12>").unwrap(), 9999]);
    assert_eq!(tokenizer.decode(&ids), "<think>click é");
    assert_eq!(tokenizer.decode_with_marks(&ids), "<s><think>click é<SPECIAL_12>");
    assert_eq!(tokenizer.decode(&[tokenizer.byte_ids[0xff]]), "\u{fffd}");
    assert_eq!(tokenizer.special("<nothing>"), None);
}

#[test]
fn the_library_agrees_on_plain_text() {
    let library: tokenizers::Tokenizer = file().to_string().parse().unwrap();
    let tokenizer = tokenizer();
    for text in ["click  the\n\n2nd click", "clic clicks CLICK", "漢字 click🦀 é", "\t x=\"12\"\r\n"] {
        assert_eq!(tokenizer.encode(text), library.encode(text, false).unwrap().get_ids(), "{text:?}");
    }
}

proptest! {
    #[test]
    fn any_text_comes_back_and_holds_no_mark(text in ".{0,40}|[<>/a-zA-Z_0-9]{0,20}|<SPECIAL_12>|.{0,3}</?(s|img|think)>.{0,3}") {
        for file in [file(), { let mut file = file(); file["pre_tokenizer"] = uncut(); file }] {
            let tokenizer = parse(&file).unwrap();
            let ids = tokenizer.encode(&text);
            prop_assert!(ids.iter().all(|id| tokenizer.vocabulary().text(*id).is_some()));
            prop_assert_eq!(tokenizer.decode(&ids), text.as_str());
        }
    }

    #[test]
    fn bytes_bound_tokens(text in ".{0,40}|( click){0,9}", ids in prop::collection::vec(0u32..300, 0..30)) {
        for form in [Value::Null, json!({"type": "NFC"}), json!({"type": "NFKC"})] {
            let mut file = file();
            file["normalizer"] = form;
            let tokenizer = parse(&file).unwrap();
            let encoded = tokenizer.encode(&text);
            prop_assert!(text.len() <= tokenizer.encoded_bytes_max(encoded.len()), "{text:?}");
            prop_assert!(tokenizer.decode(&ids).len() <= tokenizer.decoded_bytes_max(ids.len()), "{ids:?}");
        }
    }
}

/// Letters whose normal form is shorter, each alone: the blocks of Unicode with such letters.
#[test]
fn no_letter_shrinks_further_than_is_counted() {
    let mut file = file();
    file["normalizer"] = json!({"type": "NFKC"});
    let tokenizer = parse(&file).unwrap();
    let blocks = [0x1..0x3400, 0xa640..0xac00, 0xf900..0x10000, 0x1d400..0x1d800, 0x1ee00..0x1fc00u32];
    let letters = blocks.into_iter().flatten().filter_map(char::from_u32);
    let shrunk = letters.map(|letter| {
        let pieces = tokenizer.pieces(letter.encode_utf8(&mut [0; 4])).unwrap();
        letter.len_utf8() as f64 / pieces.iter().flat_map(|piece| piece.chars()).count() as f64
    });
    assert_eq!(shrunk.fold(0.0, f64::max), NORMALIZED_SHRINK_MAX as f64);
}

#[test]
fn what_cannot_run_exactly_is_refused() {
    #[track_caller]
    fn check(change: impl FnOnce(&mut Value), want: &str) {
        let mut file = file();
        change(&mut file);
        let got = parse(&file).map(|_| "read".to_owned()).unwrap_or_else(|why| why.to_string());
        assert!(got.contains(want), "\n got {got}\nwant {want}");
    }
    check(|_| {}, "read");
    check(|file| file["model"]["type"] = "Unigram".into(), r#"model.type is "Unigram"; only "BPE" is read"#);
    check(|file| file["model"]["dropout"] = 0.1.into(), "model.dropout is set; set it to null");
    check(|file| file["model"]["byte_fallback"] = true.into(), "model.byte_fallback is true");
    check(
        |file| file["model"]["continuing_subword_prefix"] = "##".into(),
        "continuing_subword_prefix is set",
    );
    check(|file| file["model"]["continuing_subword_prefix"] = "".into(), "read");
    check(|file| file["model"]["vocab"]["x"] = 4_000_000_000_u32.into(), "id 4000000000 is too high");
    check(|file| file["model"]["vocab"]["x"] = 7.into(), r#"id 7 is both "x" and"#);
    check(|file| file["added_tokens"][0]["id"] = 9.into(), r#""<unk>" has another id in model.vocab than 9"#);
    check(
        |file| {
            file["model"]["vocab"].as_object_mut().unwrap().remove("Ġ");
        },
        "lacks 1 of the 256 single bytes (0x20 first)",
    );
    check(|file| file["added_tokens"][0] = json!({"id": 70, "content": "A"}), "bytes (0x41 first)");
    check(
        |file| file["model"]["merges"] = json!(["cl ic", "clic"]),
        r#"merges[1] is "clic"; it needs two parts"#,
    );
    check(|file| file["model"]["merges"] = json!(["#version: 0.2", "c l"]), "read");
    check(
        |file| file["model"]["merges"] = json!([["click", "click"]]),
        r#"uses or produces "clickclick", which is not in model.vocab"#,
    );
    check(|file| file["pre_tokenizer"] = Value::Null, "there are 0 ByteLevel steps");
    check(
        |file| file["pre_tokenizer"] = json!({"type": "Metaspace"}),
        r#"pre_tokenizer "Metaspace" is not supported"#,
    );
    check(
        |file| file["pre_tokenizer"] = json!({"type": "ByteLevel", "add_prefix_space": true}),
        "adds a space before text",
    );
    check(
        |file| file["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed".into(),
        "Split removes what it finds",
    );
    check(
        |file| file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(".into(),
        "pre_tokenizer cannot be read",
    );
    check(
        |file| file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "a".repeat(20_000).into(),
        "more than 16384 bytes",
    );
    check(
        |file| file["normalizer"] = json!({"type": "Lowercase"}),
        r#"normalizer "Lowercase" is not supported"#,
    );
    check(|file| file["normalizer"] = json!({"type": "NFC"}), "read");
    check(
        |file| file["model"]["vocab"] = json!([]),
        "not a tokenizer in the format of the tokenizers library",
    );
}

#[test]
fn files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(Tokenizer::open(dir.path()), Err(TokenizerError::File(FileError::Read { .. }))));
    let large = fs::File::create(dir.path().join(TOKENIZER_FILE)).unwrap();
    large.set_len(FILE_BYTES_MAX + 1).unwrap();
    assert!(matches!(Tokenizer::open(dir.path()), Err(TokenizerError::File(FileError::TooLarge { .. }))));
    fs::write(dir.path().join(TOKENIZER_FILE), file().to_string()).unwrap();
    let tokenizer = Tokenizer::open(dir.path()).unwrap();
    assert_eq!(tokenizer.sha256()[..], Sha256::digest(file().to_string())[..]);
}

/// Configuration of a model with this many ids that reads images.
pub(crate) fn config(vocabulary: usize, image_token: u32) -> Config {
    let text = TextConfig {
        layers: Vec::new(),
        hidden: 8,
        vocabulary,
        intermediate: 8,
        norm_epsilon: 1e-5,
        positions_max: 64,
        attention: AttentionConfig { heads: 1, kv_heads: 1, head_dim: 8 },
        ssm: SsmConfig {
            heads: 1,
            head_dim: 8,
            state: 8,
            groups: 1,
            conv_kernel: 4,
            chunk: 8,
            time_step_limit: (0.0, f32::INFINITY),
        },
        moe: None,
    };
    let vision = VisionConfig {
        tile: 32,
        tiles_max: 1,
        thumbnail: false,
        patch: 16,
        hidden: 8,
        blocks: 1,
        heads: 1,
        intermediate: 8,
        positions_side: 2,
        align_corners: false,
        shuffle_swapped: false,
        shuffle: 2,
        projector_hidden: 8,
        mean: [0.0; 3],
        std: [1.0; 3],
        image_token,
        image_marks: ["<img>".into(), "</img>".into()],
    };
    Config { text, vision: Some(vision) }
}

#[test]
fn a_tokenizer_mismatch_is_named() {
    #[track_caller]
    fn check(vocabulary: usize, image_token: u32, embedding_rows: usize, want: &str) {
        let got = tokenizer().fits(&config(vocabulary, image_token), embedding_rows);
        let got = got.map(|()| "fits".to_owned()).unwrap_or_else(|problems| problems.join("; "));
        assert!(got.contains(want), "\n got {got}\nwant {want}");
    }
    check(269, 269, 269, "fits");
    check(512, 500, 512, "fits");
    // Marks above the head's rows occur only in prompts.
    check(267, 269, 269, "fits");
    check(266, 269, 269, "pieces of text have ids up to 266, but the model has 266");
    check(269, 267, 268, r#""</img>" is id 268, but the embedding table has 268 rows"#);
    check(269, 268, 268, "fits");
    check(269, 265, 269, r#"the image placeholder is id 265, which is the text " click""#);
}
