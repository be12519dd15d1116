//! Weights that consist of changes: a delta or an adapter gives exactly the checkpoint that full
//! weights would give, and every hostile one is refused.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fs;
use std::path::Path;

use furrow_model::checkpoint::{
    ADAPTER_CONFIG, ADAPTER_WEIGHTS, Checkpoint, DELTA_MANIFEST, DeltaManifest, UpdateError, UpdateForm,
};
use furrow_model::kernels::ThreadPool;
use furrow_model::weights::ModelWeights;
use proptest::prelude::*;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::checkpoint::made::{MadeCheckpoint, StoredTensor, put_together};

type StoredTensors = BTreeMap<String, StoredTensor>;

const FILE: &str = "delta-00001.safetensors";
const OUT: &str = "backbone.layers.3.mixer.o_proj.weight";

fn open(made: &MadeCheckpoint) -> (Checkpoint, TempDir) {
    let dir = made.write();
    (Checkpoint::open(dir.path()).unwrap(), dir)
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Other values for a tensor, the same for the same seed.
fn shaken(tensor: &StoredTensor, seed: u32) -> StoredTensor {
    let values = (0..tensor.shape.iter().product::<usize>() as u32).map(|index| {
        (index.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 8) as f32 / (1 << 24) as f32 - 0.5
    });
    let bytes = match tensor.dtype.as_str() {
        "BF16" => values.flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes()).collect(),
        _ => values.flat_map(f32::to_le_bytes).collect(),
    };
    StoredTensor { bytes, ..tensor.clone() }
}

/// A delta of these tensors in one file; `edit` can change the manifest before it is written.
fn delta(tensors: &StoredTensors, edit: impl FnOnce(&mut Value)) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let file = put_together(tensors.iter());
    let mut manifest = json!({
        "format": "furrow.delta", "format_version": 1, "base_version": 3,
        "files": {FILE: {"bytes": file.len(), "sha256": hash(&file)}},
    });
    edit(&mut manifest);
    fs::write(dir.path().join(FILE), file).unwrap();
    fs::write(dir.path().join(DELTA_MANIFEST), manifest.to_string()).unwrap();
    dir
}

fn some(made: &MadeCheckpoint, names: &[&str]) -> StoredTensors {
    names.iter().map(|name| ((*name).to_owned(), shaken(&made.tensors[*name], 7))).collect()
}

/// An error and its causes on one line.
fn error_chain(error: &UpdateError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    assert!(text.len() < 8000, "{} bytes of error", text.len());
    text
}

#[track_caller]
fn check_refused(what: &str, got: Result<Checkpoint, UpdateError>, fragments: &[&str]) {
    let text = error_chain(&got.expect_err(what));
    let lost: Vec<&&str> = fragments.iter().filter(|fragment| !text.contains(**fragment)).collect();
    assert!(lost.is_empty(), "{what}: {lost:?} not in: {text}");
}

#[test]
fn a_delta_gives_the_checkpoint_that_a_whole_one_would() {
    let team = ThreadPool::new(2);
    let cases: [(&str, &[&str]); 3] = [
        (
            "oracle/dense",
            &[OUT, "backbone.embeddings.weight", "backbone.layers.0.mixer.A_log", "lm_head.weight"],
        ),
        ("oracle/moe", &["backbone.layers.1.mixer.experts.3.up_proj.weight", "backbone.norm_f.weight"]),
        ("oracle_vl/vl_bf16_sharded", &["vision_model.radio_model.model.blocks.0.attn.qkv.weight"]),
    ];
    for (case, names) in cases {
        let made = MadeCheckpoint::of(case);
        let outer = |name: &str| made.tensors.keys().find(|own| own.ends_with(name)).unwrap().clone();
        let names: Vec<String> = names.iter().map(|name| outer(name)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let change = some(&made, &names);
        let (whole, _whole) = open(&made.clone().edited(|made| made.tensors.extend(change.clone())));
        let (base, _base) = open(&made);
        let before = base.hashes(&team);
        let expected = whole.weights_sha256(&team);
        let dir = delta(&change, |manifest| manifest["weights_sha256"] = json!(expected));
        assert_eq!(UpdateForm::of(dir.path()).unwrap(), UpdateForm::Delta);
        assert_eq!(DeltaManifest::read(dir.path()).unwrap().base_version, 3);
        let over = base.with_delta(dir.path(), &team).unwrap();
        let after = over.hashes(&team);
        assert_eq!(after, whole.hashes(&team), "{case}");
        assert_ne!(after.weights, before.weights, "{case}");
        assert_eq!(after.vision == before.vision, !case.contains("vl_"), "{case}");
        ModelWeights::of(&over, &team, &mut |_, _| ()).unwrap();
    }
}

#[test]
fn deltas_go_over_deltas_and_the_last_value_stands() {
    let made = MadeCheckpoint::of("oracle/dense");
    let team = ThreadPool::new(1);
    let (base, _base) = open(&made);
    let first = some(&made, &[OUT, "lm_head.weight"]);
    let second = StoredTensors::from([(OUT.to_owned(), shaken(&made.tensors[OUT], 8))]);
    let dirs = [&first, &second].map(|tensors| delta(tensors, |_| ()));
    let over = base.with_delta(dirs[0].path(), &team).unwrap().with_delta(dirs[1].path(), &team).unwrap();
    let (whole, _whole) = open(&made.edited(|made| {
        made.tensors.extend(first.clone());
        made.tensors.extend(second.clone());
    }));
    assert_eq!(over.weights_sha256(&team), whole.weights_sha256(&team));
}

#[test]
fn a_delta_that_contradicts_its_manifest_is_refused() {
    let made = MadeCheckpoint::of("oracle/dense");
    let team = ThreadPool::new(1);
    let change = some(&made, &[OUT]);
    let over = |dir: &TempDir| open(&made).0.with_delta(dir.path(), &team);
    let manifest = |what: &str, fragments: &[&str], edit: &dyn Fn(&mut Value)| {
        check_refused(what, over(&delta(&change, edit)), fragments);
    };
    let wrong = "0".repeat(64);
    manifest("another format", &["delta.json", "unknown variant"], &|m| m["format"] = json!("other"));
    manifest("a later format", &["format_version is 2", "only format version 1"], &|m| {
        m["format_version"] = json!(2);
    });
    manifest("an unknown key", &["unknown field `also`"], &|m| m["also"] = json!(1));
    manifest("no base", &["missing field `base_version`"], &|m| {
        drop(m.as_object_mut().unwrap().remove("base_version"));
    });
    manifest("a base below zero", &["delta.json", "invalid value"], &|m| m["base_version"] = json!(-1));
    manifest("no files", &["files is 0 files"], &|m| m["files"] = json!({}));
    manifest(
        "a string that is not a hash",
        &["files.delta-00001.safetensors.sha256 is beef", "64 hex"],
        &|m| {
            m["files"][FILE]["sha256"] = json!("beef");
        },
    );
    manifest("another hash", &["its SHA-256 is", &wrong, "copy it again"], &|m| {
        m["files"][FILE]["sha256"] = json!(wrong);
    });
    manifest("another size", &["its size is", "not 5"], &|m| m["files"][FILE]["bytes"] = json!(5));
    manifest("another whole", &["the updated weights", &wrong], &|m| {
        m["weights_sha256"] = json!(wrong);
    });
    manifest("a file outside", &["../delta.safetensors", "in this directory"], &|m| {
        m["files"] = json!({"../delta.safetensors": {"bytes": 1, "sha256": wrong}});
    });
    manifest("a missing file", &["cannot read", "gone.safetensors"], &|m| {
        m["files"]["gone.safetensors"] = json!({"bytes": 1, "sha256": wrong});
    });

    let tensors = |what: &str, fragments: &[&str], edit: &dyn Fn(&mut StoredTensors)| {
        let mut change = change.clone();
        edit(&mut change);
        check_refused(what, over(&delta(&change, |_| ())), fragments);
    };
    tensors("nothing", &["changes no tensor"], &|t| t.clear());
    tensors("another shape", &[OUT, "[60, 72]", "config.json needs [72, 60]"], &|t| {
        t.get_mut(OUT).unwrap().shape.reverse();
    });
    tensors("a type that is not read", &[OUT, "I32", "BF16 or F32"], &|t| {
        t.get_mut(OUT).unwrap().dtype = "I32".into();
    });
    tensors("an unknown tensor", &["layers.99", "not a tensor of this architecture"], &|t| {
        t.insert("backbone.layers.99.norm.weight".into(), StoredTensor::f32(&[1], &[0.0]));
    });
    tensors("one tensor under two names", &["keep one"], &|t| {
        let own = t[OUT].clone();
        t.insert(OUT.replace("backbone", "model"), own);
    });
    tensors("a table of more rows", &["[513, 72]", "the base version has [512, 72]"], &|t| {
        t.insert("backbone.embeddings.weight".into(), StoredTensor::f32(&[513, 72], &vec![0.0; 513 * 72]));
    });

    let dir = delta(&change, |_| ());
    fs::write(dir.path().join("delta-00002.safetensors"), b"").unwrap();
    check_refused("a file that is not named", over(&dir), &["delta-00002.safetensors", "not named by"]);
    let dir = delta(&change, |_| ());
    fs::write(dir.path().join(DELTA_MANIFEST), vec![b' '; 2 << 20]).unwrap();
    check_refused("a huge manifest", over(&dir), &["delta.json has", "at most"]);
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(UpdateForm::of(empty.path()), Err(UpdateError::NoForm { .. })));
}

#[test]
fn a_value_that_is_no_number_is_found_when_it_is_loaded() {
    let made = MadeCheckpoint::of("oracle/dense");
    let team = ThreadPool::new(1);
    let mut change = some(&made, &[OUT]);
    change.get_mut(OUT).unwrap().bytes[20..24].copy_from_slice(&f32::NAN.to_le_bytes());
    let dir = delta(&change, |_| ());
    let over = open(&made).0.with_delta(dir.path(), &team).unwrap();
    let text = ModelWeights::of(&over, &team, &mut |_, _| ()).unwrap_err().to_string();
    assert!(text.contains(&format!("{OUT} in {FILE} has the value NaN at index 5")), "{text}");
}

/// An adapter with these factors, under PEFT's names.
fn adapter(tensors: &StoredTensors, edit: impl FnOnce(&mut Value)) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut config = json!({
        "peft_type": "LORA", "r": 2, "lora_alpha": 5, "bias": "none", "use_rslora": false, "use_dora": false,
        "modules_to_save": null, "target_modules": ["o_proj"], "init_lora_weights": true, "alpha_pattern": {},
        "rank_pattern": {}, "fan_in_fan_out": false, "layers_to_transform": null, "base_model_name_or_path": "x",
    });
    edit(&mut config);
    fs::write(dir.path().join(ADAPTER_CONFIG), config.to_string()).unwrap();
    fs::write(dir.path().join(ADAPTER_WEIGHTS), put_together(tensors.iter())).unwrap();
    dir
}

/// Factors of a module, `[rank, inputs]` and `[outputs, rank]`.
fn factors(module: &str, rank: usize, [outputs, inputs]: [usize; 2]) -> StoredTensors {
    let part = |name: &str, shape: [usize; 2], seed| {
        let zeros = StoredTensor::f32(&shape, &vec![0.0; shape[0] * shape[1]]);
        (format!("base_model.model.{module}.lora_{name}.weight"), shaken(&zeros, seed))
    };
    StoredTensors::from([part("A", [rank, inputs], 1), part("B", [outputs, rank], 2)])
}

fn floats(tensor: &StoredTensor) -> Vec<f64> {
    tensor.bytes.chunks(4).map(|bytes| f64::from(f32::from_le_bytes(bytes.try_into().unwrap()))).collect()
}

/// W + scale · B A in float64.
fn merged(weight: &[f64], inputs: usize, tensors: &StoredTensors, scale: f64) -> Vec<f64> {
    let [a, b] = ["A", "B"].map(|part| {
        floats(tensors.iter().find(|(name, _)| name.ends_with(&format!("lora_{part}.weight"))).unwrap().1)
    });
    let rank = a.len() / inputs;
    let product = |at: usize| {
        let row = at / inputs;
        let column = at % inputs;
        (0..rank).map(|k| b[row * rank + k] * a[k * inputs + column]).sum::<f64>()
    };
    weight.iter().enumerate().map(|(at, weight)| weight + scale * product(at)).collect()
}

#[test]
fn an_adapter_is_merged_where_transformers_would_put_it() {
    let made = MadeCheckpoint::of("oracle/dense");
    let team = ThreadPool::new(2);
    let weight: Vec<f64> = floats(&made.tensors[OUT]);
    type ConfigEdit<'a> = &'a dyn Fn(&mut Value);
    let scales: [(&str, f64, ConfigEdit<'_>); 4] = [
        ("alpha / r", 2.5, &|_| ()),
        ("alpha / sqrt(r)", 5.0 / 2.0_f64.sqrt(), &|c| c["use_rslora"] = json!(true)),
        ("an alpha for a module", 4.0, &|c| c["alpha_pattern"] = json!({"q_proj": 1, "mixer.o_proj": 8})),
        ("a rank for a module", 2.5, &|c| {
            c["r"] = json!(16);
            c["rank_pattern"] = json!({"o_proj": 2});
        }),
    ];
    for module in ["backbone.layers.3.mixer.o_proj", "model.layers.3.mixer.o_proj"] {
        for (what, scale, edit) in scales {
            let tensors = factors(module, 2, [72, 60]);
            let dir = adapter(&tensors, edit);
            assert_eq!(UpdateForm::of(dir.path()).unwrap(), UpdateForm::Adapter);
            let over = open(&made).0.with_adapter(dir.path(), &team).unwrap();
            let got = over.tensor(OUT).unwrap().to_f32().unwrap();
            let want = merged(&weight, 60, &tensors, scale);
            let far = got.iter().zip(&want).map(|(got, want)| (f64::from(*got) - want).abs());
            let far = far.fold(0.0, f64::max);
            assert!(far < 1e-6, "{what}: {far}");
            let (base, _base) = open(&made);
            for name in made.tensors.keys().filter(|name| *name != OUT) {
                let same = |checkpoint: &Checkpoint| checkpoint.tensor(name).unwrap().to_f32().unwrap();
                assert_eq!(same(&over), same(&base), "{what}: {name} changed");
            }
            ModelWeights::of(&over, &team, &mut |_, _| ()).unwrap();
        }
    }
}

/// The tower's projections are three modules in transformers and one matrix here, in bfloat16: each
/// is added to its rows and rounded once.
#[test]
fn an_adapter_of_one_projection_goes_to_its_rows() {
    let made = MadeCheckpoint::of("oracle_vl/vl_bf16_sharded");
    let team = ThreadPool::new(2);
    let (base, _base) = open(&made);
    let name = "vision_model.radio_model.model.blocks.0.attn.qkv.weight";
    let own = base.tensor(name).unwrap();
    let rows = own.shape()[0] / 3;
    let inputs = own.shape()[1];
    let weight = own.to_f32().unwrap();
    let tensors = factors("model.vision_model.encoder.layer.0.attention.k_proj", 2, [rows, inputs]);
    let dir = adapter(&tensors, |_| ());
    let third: Vec<f64> =
        weight[rows * inputs..2 * rows * inputs].iter().map(|value| f64::from(*value)).collect();
    let want = merged(&third, inputs, &tensors, 2.5);
    drop(own);
    let over = base.with_adapter(dir.path(), &team).unwrap();
    assert!(over.tensor(name).unwrap().is_bf16());
    let got = over.tensor(name).unwrap().to_f32().unwrap();
    assert_eq!(got[..rows * inputs], weight[..rows * inputs]);
    assert_eq!(got[2 * rows * inputs..], weight[2 * rows * inputs..]);
    for (got, want) in got[rows * inputs..2 * rows * inputs].iter().zip(&want) {
        // Half a unit in the last of bfloat16's eight digits.
        assert!((f64::from(*got) - want).abs() <= want.abs() / 256.0 + 1e-6, "{got} for {want}");
    }
}

#[test]
fn an_adapter_that_would_be_merged_wrongly_is_refused() {
    let made = MadeCheckpoint::of("oracle/dense");
    let team = ThreadPool::new(1);
    let plain = factors("backbone.layers.3.mixer.o_proj", 2, [72, 60]);
    let a = "base_model.model.backbone.layers.3.mixer.o_proj.lora_A.weight";
    let over = |dir: &TempDir| open(&made).0.with_adapter(dir.path(), &team);
    let config = |what: &str, fragments: &[&str], edit: &dyn Fn(&mut Value)| {
        check_refused(what, over(&adapter(&plain, edit)), fragments);
    };
    config("another method", &["peft_type is \"LOHA\"", "only \"LORA\""], &|c| {
        c["peft_type"] = json!("LOHA");
    });
    config("no method", &["peft_type is null"], &|c| drop(c.as_object_mut().unwrap().remove("peft_type")));
    config("directions", &["use_dora is true"], &|c| c["use_dora"] = json!(true));
    config("biases", &["bias is \"all\""], &|c| c["bias"] = json!("all"));
    config("whole modules", &["modules_to_save is [\"lm_head\"]", "delta"], &|c| {
        c["modules_to_save"] = json!(["lm_head"]);
    });
    config("a moved base", &["init_lora_weights is \"pissa_niter_4\""], &|c| {
        c["init_lora_weights"] = json!("pissa_niter_4");
    });
    config("rank 0", &["r is 0", "1 to 16384"], &|c| c["r"] = json!(0));
    config("a huge rank", &["r is 18446744073709551615"], &|c| c["r"] = json!(u64::MAX));
    config("no alpha", &["lora_alpha is null"], &|c| drop(c.as_object_mut().unwrap().remove("lora_alpha")));
    config("a regular expression", &["alpha_pattern", "^o_.*", "not regular expressions"], &|c| {
        c["alpha_pattern"] = json!({"^o_.*": 3});
    });
    config("another rank than its tensors", &[a, "[2, 60]", "expected [4, 60]"], &|c| c["r"] = json!(4));

    let tensors = |what: &str, fragments: &[&str], edit: &dyn Fn(&mut StoredTensors)| {
        let mut tensors = plain.clone();
        edit(&mut tensors);
        check_refused(what, over(&adapter(&tensors, |_| ())), fragments);
    };
    tensors("nothing", &["changes no tensor"], &|t| t.clear());
    tensors("half a module", &["only one of lora_A and lora_B"], &|t| drop(t.remove(a)));
    tensors("an unknown module", &["layers.98", "does not belong to a matrix"], &|t| {
        t.extend(factors("model.layers.98.mixer.o_proj", 2, [72, 60]));
    });
    tensors("a norm", &["norm_f", "does not belong to a matrix"], &|t| {
        t.extend(factors("model.norm_f", 2, [72, 1]));
    });
    tensors("an embedding", &["lora_embedding_A", "only these are merged"], &|t| {
        t.insert(
            "base_model.model.backbone.embeddings.lora_embedding_A".into(),
            StoredTensor::f32(&[1], &[0.0]),
        );
    });
    tensors("a value that is not a number", &[a, "has the value NaN at index 1"], &|t| {
        t.get_mut(a).unwrap().bytes[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    tensors("a sum that overflows", &["after the merge", "inf"], &|t| {
        for factor in t.values_mut() {
            factor.bytes = f32::MAX.to_le_bytes().repeat(factor.bytes.len() / 4);
        }
    });
    tensors("half the precision", &[a, "F16", "BF16 or F32"], &|t| {
        let factor = t.get_mut(a).unwrap();
        (factor.dtype, factor.bytes) = ("F16".into(), vec![0; 240]);
    });
}

/// Small files of any bytes, and complete files with one byte changed, give an error or a
/// checkpoint, never a panic.
fn check_any_bytes_are_refused_or_read(
    dir: &Path,
    files: &[&str],
    made: &MadeCheckpoint,
    bytes: &[u8],
    (at, bit): (usize, u8),
) {
    let team = ThreadPool::new(1);
    let try_it = || {
        let base = open(made).0;
        match UpdateForm::of(dir) {
            Ok(UpdateForm::Delta) => drop(base.with_delta(dir, &team)),
            Ok(UpdateForm::Adapter) => drop(base.with_adapter(dir, &team)),
            _ => {}
        }
    };
    for name in files {
        let path = dir.join(name);
        let whole = fs::read(&path).unwrap();
        let mut flipped = whole.clone();
        let at = at % flipped.len().min(600);
        flipped[at] ^= 1 << bit;
        for content in [bytes, &flipped, &whole[..at]] {
            fs::write(&path, content).unwrap();
            try_it();
        }
        fs::write(&path, whole).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_bytes_break_the_readers(bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0_usize..600, bit in 0_u8..8) {
        let made = MadeCheckpoint::of("oracle/dense");
        let delta = delta(&some(&made, &["backbone.norm_f.weight"]), |_| ());
        check_any_bytes_are_refused_or_read(delta.path(), &[FILE, DELTA_MANIFEST], &made, &bytes, (at, bit));
        let adapter = adapter(&factors("backbone.layers.3.mixer.o_proj", 2, [72, 60]), |_| ());
        check_any_bytes_are_refused_or_read(adapter.path(), &[ADAPTER_CONFIG, ADAPTER_WEIGHTS], &made, &bytes, (at, bit));
    }
}
