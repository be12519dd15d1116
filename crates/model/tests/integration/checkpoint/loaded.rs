//! Checkpoints that must load: every oracle checkpoint, under every naming, from one file or from
//! shards, always with the same weights.

use furrow_model::checkpoint::Checkpoint;
use furrow_model::kernels::{PackedMatrix, ProductPrecision, ThreadPool};
use furrow_model::weights::{MixerWeights, ModelWeights, StoredValues};

use crate::checkpoint::made::{MadeCheckpoint, StoredTensor, oracle};

const CASES: [&str; 7] = [
    "oracle/dense",
    "oracle/long_chunk128",
    "oracle/moe",
    "oracle/moe_latent_groups",
    "oracle/vl_names_bf16",
    "oracle_vl/vl_f32",
    "oracle_vl/vl_bf16_sharded",
];

fn load(dir: &std::path::Path) -> ModelWeights {
    ModelWeights::load(dir, &ThreadPool::new(2), &mut |_, _| ()).unwrap()
}

/// Row `row` of a packed matrix, computed as a product.
fn row(matrix: &PackedMatrix, row: usize) -> Vec<f32> {
    let unit = |column: usize| (0..matrix.input()).map(move |at| f32::from(u8::from(at == column)));
    let x: Vec<f32> = (0..matrix.input()).flat_map(unit).collect();
    let mut y = vec![0.0; matrix.input() * matrix.out()];
    matrix.product(&ThreadPool::new(1), ProductPrecision::Float32, &x, &mut y);
    y.chunks(matrix.out()).map(|y| y[row]).collect()
}

fn stored(tensor: &StoredTensor) -> Vec<f32> {
    match tensor.dtype.as_str() {
        "F32" => tensor.bytes.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect(),
        _ => tensor
            .bytes
            .chunks(2)
            .map(|bytes| f32::from_bits(u32::from_le_bytes([0, 0, bytes[0], bytes[1]])))
            .collect(),
    }
}

#[test]
fn every_oracle_checkpoint_loads() {
    for case in CASES {
        let mut heard = Vec::new();
        let team = ThreadPool::new(2);
        let checkpoint = Checkpoint::open(&oracle(case)).unwrap();
        let weights =
            ModelWeights::of(&checkpoint, &team, &mut |done, total| heard.push((done, total))).unwrap();
        assert_eq!(&weights.config, checkpoint.config());
        assert_eq!(weights.text.layers.len(), weights.config.text.layers.len(), "{case}");
        assert_eq!(weights.vision.is_some(), case.starts_with("oracle_vl"), "{case}");
        assert!(
            heard.is_sorted() && heard.last() == Some(&(checkpoint.bytes(), checkpoint.bytes())),
            "{case}: {heard:?}"
        );
    }
}

#[test]
fn every_value_lands_where_it_belongs() {
    let made = MadeCheckpoint::of("oracle/dense");
    let weights = load(&oracle("oracle/dense"));
    let value = |name: &str| stored(&made.tensors[&format!("backbone.layers.{name}")]);
    let MixerWeights::Ssm(ssm) = &weights.text.layers[0].mixer else { panic!("layer 0 is an SSM layer") };
    assert_eq!(weights.text.layers[0].norm, value("0.norm.weight"));
    assert_eq!((&ssm.conv, &ssm.conv_bias), (&value("0.mixer.conv1d.weight"), &value("0.mixer.conv1d.bias")));
    assert_eq!(
        (&ssm.d, &ssm.dt_bias, &ssm.norm),
        (&value("0.mixer.D"), &value("0.mixer.dt_bias"), &value("0.mixer.norm.weight"))
    );
    let a: Vec<f32> = value("0.mixer.A_log").iter().map(|log| (-f64::from(*log).exp()) as f32).collect();
    assert_eq!(ssm.a, a);
    assert_eq!(row(&ssm.in_proj, 309), value("0.mixer.in_proj.weight")[309 * 72..]);
    assert_eq!(row(&ssm.out_proj, 1), value("0.mixer.out_proj.weight")[120..240]);
    let MixerWeights::Attention(attention) = &weights.text.layers[3].mixer else {
        panic!("layer 3 is attention")
    };
    assert_eq!(attention.qkv.out(), 100);
    assert_eq!(row(&attention.qkv, 59), value("3.mixer.q_proj.weight")[59 * 72..]);
    assert_eq!(row(&attention.qkv, 60), value("3.mixer.k_proj.weight")[..72]);
    assert_eq!(row(&attention.qkv, 80), value("3.mixer.v_proj.weight")[..72]);
    assert_eq!(row(&attention.out, 2), value("3.mixer.o_proj.weight")[120..180]);
    let StoredValues::F32(embeddings) = &weights.text.embeddings.values else {
        panic!("float32 stays float32")
    };
    assert_eq!(embeddings, &stored(&made.tensors["backbone.embeddings.weight"]));
    assert_eq!(weights.text.final_norm, stored(&made.tensors["backbone.norm_f.weight"]));
    assert_eq!(row(&weights.text.head, 511), stored(&made.tensors["lm_head.weight"])[511 * 72..]);
}

#[test]
fn the_tower_lands_where_it_belongs() {
    let made = MadeCheckpoint::of("oracle_vl/vl_bf16_sharded");
    let weights = load(&oracle("oracle_vl/vl_bf16_sharded"));
    let value = |name: &str| stored(&made.tensors[&format!("vision_model.radio_model.model.{name}")]);
    let vision = weights.vision.unwrap();
    assert_eq!(vision.positions, value("patch_generator.pos_embed"));
    assert_eq!(vision.prefix, value("patch_generator.cls_token.token"));
    assert_eq!(vision.prefix.len(), 8 * 60);
    let block = &vision.blocks[1];
    assert_eq!(row(&block.qkv.matrix, 179), value("blocks.1.attn.qkv.weight")[179 * 60..]);
    assert_eq!(
        (&block.qkv.bias, &block.fc2.bias),
        (&value("blocks.1.attn.qkv.bias"), &value("blocks.1.mlp.fc2.bias"))
    );
    assert_eq!(
        (&block.norm2.weight, &block.norm1.bias),
        (&value("blocks.1.norm2.weight"), &value("blocks.1.norm1.bias"))
    );
    assert_eq!((vision.projector.up.out(), vision.projector.down.out()), (88, 72));
    assert!(matches!(weights.text.embeddings.values, StoredValues::Bf16(_)));
}

/// The names that transformers uses internally; its own saving would write them if it did not
/// rename them back.
fn transformers_names(name: &str) -> String {
    let exchanged = [
        ("language_model.backbone.", "model.language_model."),
        ("language_model.lm_head.", "lm_head."),
        (
            "vision_model.radio_model.model.patch_generator.embedder.",
            "model.vision_model.embeddings.patch_projection.",
        ),
        (
            "vision_model.radio_model.model.patch_generator.pos_embed",
            "model.vision_model.embeddings.position_embedding",
        ),
        (
            "vision_model.radio_model.model.patch_generator.cls_token.token",
            "model.vision_model.embeddings.cls_register_token",
        ),
        ("vision_model.radio_model.model.blocks.", "model.vision_model.encoder.layer."),
        ("mlp1.0.", "model.multi_modal_projector.layer_norm."),
        ("mlp1.1.", "model.multi_modal_projector.linear_1."),
        ("mlp1.3.", "model.multi_modal_projector.linear_2."),
    ];
    let found =
        exchanged.iter().find_map(|(from, to)| name.strip_prefix(from).map(|rest| format!("{to}{rest}")));
    found.unwrap_or_else(|| name.into()).replace(".attn.proj.", ".attention.o_proj.")
}

fn split_qkv(made: &mut MadeCheckpoint) {
    let fused: Vec<String> =
        made.tensors.keys().filter(|name| name.contains(".attn.qkv.")).cloned().collect();
    for name in fused {
        let tensor = made.tensors.remove(&name).unwrap();
        let third = tensor.shape[0] / 3;
        for (at, part) in ["q_proj", "k_proj", "v_proj"].iter().enumerate() {
            let name = name.replace(".attn.qkv.", &format!(".attention.{part}."));
            made.tensors.insert(name, tensor.rows(at * third..(at + 1) * third));
        }
    }
}

/// Stacks the experts of each layer into one tensor for each matrix.
fn stack_experts(made: &mut MadeCheckpoint) {
    let of_experts = |name: &String| name.contains(".mixer.experts.");
    let names: Vec<String> = made.tensors.keys().filter(|name| of_experts(name)).cloned().collect();
    for name in names {
        let tensor = made.tensors.remove(&name).unwrap();
        let (layer, rest) = name.split_once(".mixer.experts.").unwrap();
        // With eight experts the order of names is the order of numbers.
        let matrix = rest.split('.').nth(1).unwrap();
        let empty = StoredTensor {
            shape: vec![0, tensor.shape[0], tensor.shape[1]],
            bytes: Vec::new(),
            ..tensor.clone()
        };
        let stack = made.tensors.entry(format!("{layer}.mixer.experts.{matrix}")).or_insert(empty);
        stack.shape[0] += 1;
        stack.bytes.extend_from_slice(&tensor.bytes);
    }
}

#[test]
fn every_naming_and_every_cut_gives_the_same_weights() {
    let team = ThreadPool::new(2);
    let hash = |dir: &std::path::Path| Checkpoint::open(dir).unwrap().weights_sha256(&team);
    for case in CASES {
        let made = MadeCheckpoint::of(case);
        let expected = hash(&oracle(case));
        assert_eq!(expected.len(), 64);
        let variants: [(&str, MadeCheckpoint); 5] = [
            ("unchanged", made.clone()),
            ("model. for backbone.", made.clone().rename(|name| name.replace("backbone.", "model."))),
            ("no outer prefix", made.clone().rename(|name| name.replace("language_model.", ""))),
            ("stacked experts", made.clone().edited(stack_experts)),
            ("transformers' names", made.clone().edited(split_qkv).rename(transformers_names)),
        ];
        for (variant, made) in variants {
            assert_eq!(hash(made.write().path()), expected, "{case}, {variant}");
            assert_eq!(hash(made.write_sharded().path()), expected, "{case}, {variant}, sharded");
        }
        let mut other = made.clone();
        other.tensors.values_mut().find(|tensor| tensor.bytes.len() > 64).unwrap().bytes[1] ^= 1;
        assert_ne!(hash(other.write().path()), expected, "{case}: one bit flipped");
    }
}

#[test]
fn tensors_of_other_models_are_ignored() {
    let extra =
        ["mtp.layers.0.norm.weight", "vision_model.radio_model.model.patch_generator.video_embedder.weight"];
    let mut made = MadeCheckpoint::of("oracle_vl/vl_f32");
    extra.iter().for_each(|name| {
        drop(made.tensors.insert((*name).into(), StoredTensor::f32(&[2], &[1.0, f32::NAN])));
    });
    let dir = made.write();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert!(
        extra.iter().all(|name| checkpoint.ignored().iter().any(|ignored| ignored == name)),
        "{:?}",
        checkpoint.ignored()
    );
    assert!(checkpoint.ignored().iter().any(|name| name.ends_with("summary_idxs")));
    load(dir.path());
}

#[test]
fn a_table_may_have_more_rows_than_the_head() {
    let mut made = MadeCheckpoint::of("oracle/dense");
    let table = made.tensor("backbone.embeddings.weight");
    table.shape[0] += 8;
    table.bytes.extend(vec![0; 8 * 72 * 4]);
    let weights = load(made.write().path());
    assert_eq!((weights.text.embeddings.rows, weights.text.head.out()), (520, 512));
}

#[test]
fn float32_beside_bfloat16_is_widened_together() {
    let mut made = MadeCheckpoint::of("oracle/vl_names_bf16");
    let name = "language_model.backbone.layers.5.mixer.k_proj.weight";
    let widened = stored(&made.tensors[name]);
    *made.tensor(name) = StoredTensor::f32(&[24, 80], &widened);
    let weights = load(made.write().path());
    let MixerWeights::Attention(attention) = &weights.text.layers[5].mixer else {
        panic!("layer 5 is attention")
    };
    assert_eq!(row(&attention.qkv, 120), widened[..80]);
}
