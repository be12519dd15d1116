//! Broken, mixed-up and hostile directories: each is refused with an error that names the problem,
//! none with a panic.

use std::error::Error;
use std::fs::{self, File};
use std::path::Path;

use furrow_model::checkpoint::{CheckpointError, HEADER_MAX};
use furrow_model::kernels::ThreadPool;
use furrow_model::weights::ModelWeights;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::checkpoint::made::{MadeCheckpoint, StoredTensor, put_together, with_header};

const FIRST: &str = "model-00001-of-00002.safetensors";
const SECOND: &str = "model-00002-of-00002.safetensors";
const INDEX: &str = "model.safetensors.index.json";

fn load(dir: &Path) -> Result<ModelWeights, CheckpointError> {
    ModelWeights::load(dir, &ThreadPool::new(2), &mut |_, _| ())
}

/// Checks that it is refused, with all of these fragments in the error or its causes.
fn refused(dir: &Path, what: &str, fragments: &[&str]) {
    let error = load(dir).expect_err(what);
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    let lost: Vec<&&str> = fragments.iter().filter(|fragment| !text.contains(**fragment)).collect();
    assert!(lost.is_empty(), "{what}: {lost:?} not in: {text}");
    assert!(text.len() < 8000, "{what}: {} bytes of error", text.len());
}

/// Checks that a checkpoint with edited tensors is refused, both in one file and in shards.
fn edited(case: &str, what: &str, fragments: &[&str], edit: impl Fn(&mut MadeCheckpoint)) {
    let made = MadeCheckpoint::of(case).edited(edit);
    refused(made.write().path(), what, fragments);
    refused(made.write_sharded().path(), what, fragments);
}

#[test]
fn tensors_that_do_not_fit() {
    let dense = |what, fragments: &[&str], edit: &dyn Fn(&mut MadeCheckpoint)| {
        edited("oracle/dense", what, fragments, edit);
    };
    let gone = "backbone.layers.3.mixer.q_proj.weight";
    dense("a missing name", &[gone, "[60, 72]", "missing"], &|made| drop(made.tensors.remove(gone)));
    dense("two missing names", &["2 tensors", gone, "lm_head.weight"], &|made| {
        made.tensors.retain(|name, _| name != gone && name != "lm_head.weight");
    });
    let empty = MadeCheckpoint::of("oracle/dense").edited(|made| made.tensors.clear());
    refused(
        empty.write().path(),
        "all names missing",
        &["73 tensors", "backbone.embeddings.weight", "and 53 more"],
    );
    dense("a wrong shape", &["lm_head.weight", "[72, 512]", "[512, 72]"], &|made| {
        made.tensor("lm_head.weight").shape.reverse();
    });
    dense("too few rows", &["embeddings.weight", "[511, 72]", "[512, 72] or more rows"], &|made| {
        let table = made.tensor("backbone.embeddings.weight");
        *table = table.rows(0..511);
    });
    dense("half the precision", &["backbone.norm_f.weight", "F16", "BF16 or F32"], &|made| {
        let norm = made.tensor("backbone.norm_f.weight");
        (norm.dtype, norm.bytes) = ("F16".into(), vec![0; 144]);
    });
    dense("whole numbers", &["backbone.norm_f.weight", "I32", "BF16 or F32"], &|made| {
        made.tensor("backbone.norm_f.weight").dtype = "I32".into();
    });
    dense(
        "an unknown name",
        &["backbone.layers.0.mixer.in_proj.bias", "not a tensor of this architecture"],
        &|made| {
            made.tensors
                .insert("backbone.layers.0.mixer.in_proj.bias".into(), StoredTensor::f32(&[1], &[0.0]));
        },
    );
    dense("one layer too many", &["backbone.layers.12.norm.weight", "not a tensor"], &|made| {
        made.tensors.insert("backbone.layers.12.norm.weight".into(), StoredTensor::f32(&[1], &[0.0]));
    });
    dense(
        "two names of one tensor",
        &["backbone.norm_f.weight", "model.norm_f.weight", "keep one"],
        &|made| {
            let norm = made.tensor("backbone.norm_f.weight").clone();
            made.tensors.insert("model.norm_f.weight".into(), norm);
        },
    );
    dense("a name of control characters", &["\\u{7}\\u{1b}[2J"], &|made| {
        made.tensors.insert("\u{7}\u{1b}[2J".into(), StoredTensor::f32(&[1], &[0.0]));
    });
    dense("a very long name", &["aaaa…"], &|made| {
        made.tensors.insert("a".repeat(1 << 20), StoredTensor::f32(&[1], &[0.0]));
    });
}

#[test]
fn parts_of_larger_tensors_that_do_not_fit() {
    let stack = "backbone.layers.1.mixer.experts.up_proj";
    let stacked = |experts: usize| {
        move |made: &mut MadeCheckpoint| {
            made.tensors.retain(|name, _| {
                !(name.starts_with("backbone.layers.1.")
                    && name.contains("up_proj")
                    && name.contains(".experts."))
            });
            made.tensors
                .insert(stack.into(), StoredTensor::f32(&[experts, 36, 64], &vec![0.5; experts * 36 * 64]));
        }
    };
    assert!(load(MadeCheckpoint::of("oracle/moe").edited(stacked(8)).write().path()).is_ok());
    edited(
        "oracle/moe",
        "seven experts",
        &["1 tensor does", stack, "[7, 36, 64]", "[8, 36, 64]"],
        stacked(7),
    );
    edited("oracle/moe", "nine experts", &["1 tensor does", stack, "[9, 36, 64]", "[8, 36, 64]"], stacked(9));
    let qkv = "vision_model.radio_model.model.blocks.0.attn.qkv.bias";
    edited(
        "oracle_vl/vl_f32",
        "q without v",
        &["1 tensor does", "blocks.0.attn.v_proj.bias", "[48]", "missing"],
        |made| {
            let fused = made.tensors.remove(qkv).unwrap();
            let q = fused.rows(0..48);
            let k = fused.rows(48..96);
            made.tensors.insert("vision_model.encoder.layer.0.attention.q_proj.bias".into(), q);
            made.tensors.insert("vision_model.encoder.layer.0.attention.k_proj.bias".into(), k);
        },
    );
    edited(
        "oracle_vl/vl_f32",
        "no prefix token",
        &["cls_token.token", "[0, 48]", "[1, 48] or more rows"],
        |made| {
            let token = made.tensor("vision_model.radio_model.model.patch_generator.cls_token.token");
            *token = token.rows(0..0);
        },
    );
}

#[test]
fn weights_that_are_no_numbers() {
    // Replaces value `at` of a tensor by these bytes.
    fn set<const N: usize>(name: &str, at: usize, bytes: [u8; N]) -> impl Fn(&mut MadeCheckpoint) {
        move |made| made.tensor(name).bytes[at * N..][..N].copy_from_slice(&bytes)
    }
    let down = "backbone.layers.1.mixer.down_proj.weight";
    let nan = f32::NAN.to_le_bytes();
    edited("oracle/dense", "NaN", &[down, "NaN", "index 7", "finite"], set(down, 7, nan));
    edited("oracle/dense", "the last value", &[down, "NaN", "index 10799"], set(down, 10_799, nan));
    let scale = "backbone.layers.0.mixer.D";
    let infinity = f32::NEG_INFINITY.to_le_bytes();
    edited("oracle/dense", "infinity", &[scale, "-inf", "index 5"], set(scale, 5, infinity));
    let log = "backbone.layers.0.mixer.A_log";
    edited("oracle/dense", "an exponent", &[log, "-inf", "index 2"], set(log, 2, 100_f32.to_le_bytes()));
    let v = "language_model.backbone.layers.5.mixer.v_proj.weight";
    edited("oracle/vl_names_bf16", "bfloat16", &[v, "inf", "index 1919"], set(v, 1919, [0x80, 0x7f]));
    let table = "language_model.backbone.embeddings.weight";
    edited("oracle/vl_names_bf16", "a bfloat16 NaN", &[table, "NaN", "index 0"], set(table, 0, [0xc1, 0xff]));
}

/// A valid checkpoint whose only weight file is replaced by these bytes.
fn with_file(bytes: &[u8], what: &str, fragments: &[&str]) {
    let dir = MadeCheckpoint::of("oracle/dense").write();
    fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
    refused(dir.path(), what, &[fragments, &["model.safetensors is not a valid safetensors file"]].concat());
}

#[test]
fn files_that_are_not_sound() {
    let made = MadeCheckpoint::of("oracle/dense");
    let sound = put_together(made.tensors.iter());
    with_file(&[], "an empty file", &["has 0 bytes"]);
    with_file(&sound[..4], "half a length", &["has 4 bytes"]);
    with_file(&sound[..100], "half a header", &["truncated"]);
    with_file(&sound[..sound.len() - 1], "one byte short", &["truncated"]);
    with_file(&[&sound[..], &[0]].concat(), "one byte more", &["belong to no tensor"]);
    with_file(
        &[&(HEADER_MAX + 1).to_le_bytes(), &sound[8..]].concat(),
        "a header of 16 MiB and a byte",
        &["16777217", "at most 16777216"],
    );
    with_file(&u64::MAX.to_le_bytes(), "a header of 2^64 bytes", &["18446744073709551615"]);
    with_file(b"not a checkpoint at all", "some text", &["at most"]);
    let entry = |shape: Value, start: u64, end: u64| json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]});
    let headers = [
        ("overlap", json!({"a": entry(json!([2]), 0, 8), "b": entry(json!([2]), 4, 12)}), "a and b overlap"),
        (
            "oversize",
            json!({"a": entry(json!([4]), 0, 16)}),
            "a ends at byte 16 of the data, but the file has 12",
        ),
        ("a wrong size", json!({"a": entry(json!([9]), 0, 12)}), "a of type F32 and shape [9]"),
        ("an overflow", json!({"a": entry(json!([1_u64 << 62, 4]), 0, 12)}), "a of type F32"),
        ("backwards", json!({"a": entry(json!([3]), 12, 0)}), "cannot have the byte range 12..0"),
        ("a gap", json!({"a": entry(json!([1]), 8, 12)}), "bytes 0..8"),
        (
            "no shape",
            json!({"a": {"dtype": "F32", "data_offsets": [0, 12]}}),
            "tensor a: missing field `shape`",
        ),
        (
            "an unknown type",
            json!({"a": {"dtype": "F12", "shape": [], "data_offsets": [0, 12]}}),
            "unknown type F12",
        ),
        ("a list", json!([]), "not a JSON object"),
    ];
    for (what, header, fragments) in headers {
        with_file(&with_header(&header.to_string(), &[0; 12]), what, &[fragments]);
    }
    let twice = r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},"a":{"dtype":"F32","shape":[0],"data_offsets":[12,12]}}"#;
    with_file(&with_header(twice, &[0; 12]), "a name twice", &["a is named twice"]);
}

/// A valid sharded checkpoint that `spoil` damages.
fn mixed_up(what: &str, fragments: &[&str], spoil: impl Fn(&Path)) {
    let dir = MadeCheckpoint::of("oracle/dense").write_sharded();
    spoil(dir.path());
    refused(dir.path(), what, fragments);
}

/// A valid sharded checkpoint with an edited index.
fn misplaced(what: &str, fragments: &[&str], edit: impl Fn(&mut Value)) {
    mixed_up(what, fragments, |dir| {
        let mut index: Value = serde_json::from_slice(&fs::read(dir.join(INDEX)).unwrap()).unwrap();
        edit(&mut index["weight_map"]);
        fs::write(dir.join(INDEX), index.to_string()).unwrap();
    });
}

#[test]
fn directories_that_are_mixed_up() {
    mixed_up("no shard", &[INDEX, "names", SECOND, "does not exist"], |dir| {
        fs::remove_file(dir.join(SECOND)).unwrap();
    });
    mixed_up("no index", &["neither model.safetensors nor"], |dir| fs::remove_file(dir.join(INDEX)).unwrap());
    mixed_up("no configuration", &["config.json", "No such file"], |dir| {
        fs::remove_file(dir.join("config.json")).unwrap();
    });
    mixed_up("a third shard", &["model-00003-of-00002.safetensors", "not in the index"], |dir| {
        fs::copy(dir.join(FIRST), dir.join("model-00003-of-00002.safetensors")).map(drop).unwrap();
    });
    mixed_up("an unsharded file beside shards", &["model.safetensors is not in the index"], |dir| {
        fs::copy(dir.join(FIRST), dir.join("model.safetensors")).map(drop).unwrap();
    });
    mixed_up(
        "one shard twice",
        &["146 tensors", "holds backbone", "places elsewhere", "and 126 more"],
        |dir| {
            fs::copy(dir.join(FIRST), dir.join(SECOND)).map(drop).unwrap();
        },
    );
    mixed_up("a truncated shard", &[SECOND, "truncated"], |dir| {
        let file = File::options().write(true).open(dir.join(SECOND)).unwrap();
        file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    });
    mixed_up("a broken index", &[INDEX, "weight_map"], |dir| fs::write(dir.join(INDEX), "]").unwrap());
    mixed_up("an empty index", &[INDEX, "weight_map"], |dir| fs::write(dir.join(INDEX), "{}").unwrap());
    mixed_up("an endless index", &[INDEX, "at most 16777216"], |dir| {
        File::create(dir.join(INDEX)).unwrap().set_len(1 << 40).unwrap();
    });
    mixed_up("an endless configuration", &["config.json", "at most 16777216"], |dir| {
        File::create(dir.join("config.json")).unwrap().set_len(1 << 40).unwrap();
    });
    mixed_up("a configuration that is not JSON", &["config.json is not JSON"], |dir| {
        fs::write(dir.join("config.json"), [0xff, 0xfe, 0]).unwrap();
    });
    mixed_up("a configuration of brackets", &["config.json is not JSON"], |dir| {
        fs::write(dir.join("config.json"), "[".repeat(1 << 20)).unwrap();
    });
    mixed_up("a directory for a shard", &[SECOND, "not a regular file"], |dir| {
        fs::remove_file(dir.join(SECOND)).unwrap();
        fs::create_dir(dir.join(SECOND)).unwrap();
    });
    for outside in
        ["../model.safetensors", "/etc/hosts.safetensors", "a/b.safetensors", "..", "model.bin", ""]
    {
        misplaced(outside, &[INDEX, "plain name", outside], |map| {
            map["lm_head.weight"] = json!(outside);
        });
    }
    misplaced(
        "a tensor elsewhere",
        &["lm_head.weight in", FIRST, "does not hold it", "places elsewhere"],
        |map| {
            let there = map["lm_head.weight"] == json!(FIRST);
            map["lm_head.weight"] = json!(if there { SECOND } else { FIRST });
        },
    );
    misplaced("a tensor nowhere", &["holds lm_head.weight", "places elsewhere or nowhere"], |map| {
        map.as_object_mut().unwrap().remove("lm_head.weight");
    });
    misplaced("a tensor without data", &["places more.weight in", "does not hold it"], |map| {
        map["more.weight"] = json!(FIRST);
    });
    misplaced("five thousand shards", &["5002 files", "at most 4096"], |map| {
        (0..5000).for_each(|at| map[format!("t{at}")] = json!(format!("{at}.safetensors")));
    });
}

#[cfg(unix)]
#[test]
fn devices_and_pipes_are_not_read() {
    for name in ["config.json", "model.safetensors"] {
        let dir = MadeCheckpoint::of("oracle/dense").write();
        fs::remove_file(dir.path().join(name)).unwrap();
        std::os::unix::fs::symlink("/dev/zero", dir.path().join(name)).unwrap();
        refused(dir.path(), name, &[name, "not a regular file"]);
    }
}

#[test]
fn absurd_numbers_are_refused_before_anything_is_made_of_them() {
    let check = |case: &str, key: &str, to: u64| {
        let mut made = MadeCheckpoint::of(case);
        made.config[key] = json!(to);
        refused(made.write().path(), key, &[&format!("`{key}` is {to}"), "a whole number from"]);
    };
    let keys = [
        "hidden_size",
        "intermediate_size",
        "vocab_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
    ];
    let more =
        ["mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel", "chunk_size"];
    for key in keys.into_iter().chain(more) {
        check("oracle/dense", key, u64::MAX);
        check("oracle/dense", key, 0);
    }
    for key in [
        "n_routed_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "moe_latent_size",
        "n_group",
        "topk_group",
    ] {
        check("oracle/moe_latent_groups", key, 1 << 40);
    }
    for key in ["force_image_size", "projector_hidden_size", "max_num_tiles", "img_context_token_id"] {
        check("oracle_vl/vl_f32", key, 1 << 40);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Changes bytes of a valid file, most of them in the header, and sometimes truncates it.
    #[test]
    fn no_mutation_makes_it_panic(changes in prop::collection::vec((0.0..1.0_f64, any::<u8>()), 1..6), cut in 0.9..1.2_f64) {
        let made = MadeCheckpoint::of("oracle/long_chunk128");
        let dir = made.write();
        let path = dir.path().join("model.safetensors");
        let mut file = fs::read(&path).unwrap();
        let header = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        for (at, to) in changes {
            file[(at * header as f64) as usize] = to;
        }
        file.truncate((cut * file.len() as f64) as usize);
        fs::write(&path, &file).unwrap();
        if let Err(error) = load(dir.path()) {
            prop_assert!(!error.to_string().is_empty());
        }
    }
}
