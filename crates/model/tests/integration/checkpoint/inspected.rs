//! Results of `inspect` for the oracle's checkpoints, for the 12B in full size, and for incomplete
//! directories.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use furrow_model::checkpoint::{Checkpoint, CheckpointInspection, LayerCounts, inspect, required_tensors};
use furrow_model::config::Config;
use serde_json::{Map, json};

use crate::checkpoint::made::{MadeCheckpoint, oracle, with_header};

fn config_12b() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/configs/nano_12b_vl.json")
}

fn directory_12b() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(config_12b(), dir.path().join("config.json")).unwrap();
    dir
}

/// The sizes of the 12B; each can be computed by hand from its shapes.
fn check_12b(inspection: &CheckpointInspection) {
    let model = inspection.model.as_ref().unwrap();
    assert_eq!(model.layers, LayerCounts { ssm: 28, attention: 6, mlp: 28, moe: 0 });
    let parameters = &model.parameters;
    assert_eq!(parameters.layers.ssm, 28 * 168_504_704);
    assert_eq!(parameters.layers.mlp, 28 * 209_720_320);
    assert_eq!(parameters.layers.attention, 6 * 62_919_680);
    assert_eq!(parameters.embeddings + parameters.head, 1_342_177_280 + 5120);
    assert_eq!(parameters.text, 12_310_001_152);
    assert_eq!(parameters.projector, 5120 + 2 * 5120 * 20_480);
    assert_eq!(parameters.total, parameters.text + parameters.tower + parameters.projector);
    let state = model.state;
    assert_eq!((state.ssm_values, state.ssm_float32_bytes), (36_700_160, 146_800_640));
    assert_eq!((state.conv_values, state.conv_bfloat16_bytes), (1_032_192, 2_064_384));
    assert_eq!((state.kv_values_a_token, state.kv_bfloat16_bytes_a_token), (12_288, 24_576));
}

/// 32 blocks of 19,677,440, the table of 16,384 positions, the patch embedding, and `prefix` prefix
/// tokens.
fn tower_12b(prefix: u64) -> u64 {
    32 * 19_677_440 + 16_384 * 1280 + 768 * 1280 + prefix * 1280
}

#[test]
fn a_configuration_alone_describes_the_model() {
    let dir = directory_12b();
    let inspection = inspect(dir.path());
    check_12b(&inspection);
    assert_eq!(inspection.model.unwrap().parameters.tower, tower_12b(1));
    let [problem] = inspection.problems.as_slice() else { panic!("{:?}", inspection.problems) };
    assert!(problem.contains("holds neither model.safetensors nor"), "{problem}");
}

/// A sparse file of the 12B's full size: only code that reads nothing but headers finishes in time.
#[test]
fn the_12b_in_full_size_is_inspected_by_its_headers() {
    let dir = directory_12b();
    let config = Config::read(dir.path()).unwrap();
    let mut header = Map::new();
    let mut end = 0;
    for mut tensor in required_tensors(&config) {
        if tensor.name.ends_with("cls_token.token") {
            tensor.shape[0] = 16;
        }
        let start = end;
        end += 2 * tensor.shape.iter().product::<usize>();
        header.insert(
            tensor.name,
            json!({"dtype": "BF16", "shape": tensor.shape, "data_offsets": [start, end]}),
        );
    }
    let header = with_header(&json!(header).to_string(), &[]);
    let path = dir.path().join("model.safetensors");
    fs::write(&path, &header).unwrap();
    File::options().write(true).open(&path).unwrap().set_len((header.len() + end) as u64).unwrap();

    let inspection = inspect(dir.path());
    assert_eq!(inspection.problems, [""; 0]);
    check_12b(&inspection);
    let parameters = inspection.model.unwrap().parameters;
    assert_eq!(parameters.tower, tower_12b(16));
    assert_eq!(inspection.bytes_by_type["BF16"], 2 * parameters.total);
    assert_eq!(Checkpoint::open(dir.path()).unwrap().bytes(), 2 * parameters.total);
}

#[test]
fn oracle_checkpoints_have_no_problems() {
    let check = |case: &str, pattern: &str, types: &[&str], files: usize| {
        let inspection = inspect(&oracle(case));
        assert_eq!(inspection.problems, [""; 0], "{case}");
        assert_eq!(inspection.model.as_ref().unwrap().pattern, pattern, "{case}");
        assert_eq!(inspection.bytes_by_type.keys().collect::<Vec<_>>(), types, "{case}");
        assert_eq!(inspection.files.len(), files, "{case}");
        let data: u64 = inspection.bytes_by_type.values().sum();
        let all: u64 = inspection.files.iter().map(|file| file.bytes).sum();
        assert!(data < all && all < data + 100_000, "{case}: {data} bytes of data in {all}");
        assert!(serde_json::to_string(&inspection).unwrap().contains("\"kv_values_a_token\":"));
    };
    check("oracle/dense", "M-M*-M-M*-M-", &["F32"], 1);
    check("oracle/moe", "MEM*EM*E", &["F32"], 1);
    check("oracle/vl_names_bf16", "M-M-M*-M-M*-", &["BF16"], 2);
    check("oracle_vl/vl_bf16_sharded", "M-M*-M-", &["BF16", "F32", "I64"], 2);
}

#[test]
fn every_problem_of_a_directory_is_reported() {
    let mut made = MadeCheckpoint::of("oracle/dense");
    made.tensors.remove("lm_head.weight");
    made.tensors.remove("backbone.layers.3.mixer.q_proj.weight");
    let inspection = inspect(made.write().path());
    let [problem] = inspection.problems.as_slice() else { panic!("{:?}", inspection.problems) };
    assert!(problem.contains("lm_head.weight of shape [512, 72] is missing"), "{problem}");
    assert!(problem.contains("layers.3.mixer.q_proj.weight of shape [60, 72] is missing"), "{problem}");

    let dir = made.write_sharded();
    fs::write(dir.path().join("config.json"), "{").unwrap();
    fs::write(dir.path().join("model-00001-of-00002.safetensors"), "x").unwrap();
    let inspection = inspect(dir.path());
    assert_eq!((inspection.problems.len(), inspection.files.len()), (2, 1), "{:?}", inspection.problems);
    assert!(inspection.problems[0].contains("config.json is not JSON: EOF"), "{:?}", inspection.problems);
    assert!(
        inspection.problems[1].contains("model-00001-of-00002.safetensors is not a valid"),
        "{:?}",
        inspection.problems
    );
}
