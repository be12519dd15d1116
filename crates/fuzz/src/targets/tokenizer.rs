//! `tokenizer.json` of a checkpoint.

use std::path::Path;

use furrow_model::tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::{FuzzTarget, Seed, accept, models};

pub(super) const TOKENIZER: FuzzTarget = FuzzTarget {
    name: "tokenizer",
    run,
    repair: None,
    // 2,097,152 ids with their names.
    memory_max: |_| 256 << 20,
    bytes_max: 32 << 10,
    catches_panics: false,
    seeds,
};

const TEXT: &str = "Click the 2nd \"tab\",\n\tthen </s> <SPECIAL_12> — 漢字 🦀 e\u{301}{}\r\n";

/// Ids of a text are ids of text, and as many as the bounds promise.
fn run(input: &[u8]) {
    let Ok(tokenizer) = Tokenizer::parse(Path::new("tokenizer.json"), input) else { return };
    accept();
    let ids = tokenizer.encode(TEXT);
    assert!(ids.iter().all(|id| tokenizer.vocabulary().text(*id).is_some()), "text has no marks: {ids:?}");
    assert!(TEXT.len() <= tokenizer.encoded_bytes_max(ids.len()), "{} ids of a text", ids.len());
    let back = tokenizer.decode_with_marks(&ids);
    assert!(
        back.len() <= tokenizer.decoded_bytes_max(ids.len()),
        "{} bytes of {} ids",
        back.len(),
        ids.len()
    );
    let again = tokenizer.encode(&back);
    assert_eq!(tokenizer.decode(&again), back, "a normal text is read back");
}

fn seeds() -> Vec<Seed> {
    let file = models::tokenizer_json();
    let mut lines = file.clone();
    lines["model"]["merges"] = json!(["#version: 0.2", "c l", "i c", "cl ic"]);
    lines["normalizer"] = json!(null);
    lines["pre_tokenizer"] =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true});
    let mut normalized = file.clone();
    normalized["normalizer"] =
        json!({"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "ByteLevel"}]});
    normalized["pre_tokenizer"] = json!({"type": "Digits", "individual_digits": true});
    [("split", file), ("lines", lines), ("normalized", normalized)]
        .map(|(name, file): (&str, Value)| Seed::new(name, file.to_string()))
        .into()
}
