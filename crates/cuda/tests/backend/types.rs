//! Checkpoints with matrices of several types.

use furrow_cuda::backend::{BackendOptions, SwapError};
use furrow_model::backend::LogitRows;
use furrow_model::checkpoint::Checkpoint;
use furrow_model::forward::Sequence;
use safetensors::Dtype;

use crate::case::{BackendCase, relative_rms, sequence};
use crate::made;
use crate::pair::BackendPair;

fn weights(pair: &BackendPair) -> u64 {
    pair.device.plan().parts()[0].1
}

#[test]
fn a_few_matrices_in_float32_stay_so_and_the_rest_stays_bfloat16() {
    // The products of the language model: outputs narrowed, used unchanged, added.
    let dense = ["in_proj", "layers.1.mixer.k_proj", "o_proj", "layers.2.mixer.up_proj", "lm_head"];
    let experts = ["gate.weight", "shared_experts.down", "fc1_latent", "layers.1.mixer.out_proj"];
    for (config, name_parts) in [(made::config(), &dense[..]), (made::config_of_experts(), &experts)] {
        let (plain, _kept) = BackendCase::with_float32(&config, &[]);
        let plain = weights(&BackendPair::open(&plain));
        let (case, _kept) = BackendCase::with_float32(&config, name_parts);
        let mut pair = BackendPair::open(&case);
        assert!(weights(&pair) > plain && weights(&pair) < 2 * plain, "{} for {plain}", weights(&pair));
        let mut own: Vec<Sequence> = (0..2).map(sequence).collect();
        let ids = case.ids(60, 80);
        pair.extend(&mut own[0], &ids[..70]);
        for token in &ids[70..73] {
            let spans =
                [&own[0], &own[1]].map(|own| own.span(std::slice::from_ref(token), &[], LogitRows::Last));
            pair.run(&spans);
            own.iter_mut().for_each(|own| own.advance(1));
        }
    }
}

/// Steps of 2^-12, where bfloat16 has steps of 2^-8.
#[test]
fn what_is_stored_in_float32_is_not_rounded() {
    let config = made::config();
    let head = |factor: f32, dtype: Dtype| {
        let is_head = |name: &str| name == "lm_head.weight";
        let edit = |name: &str, values: &mut [f32]| {
            if is_head(name) {
                let rounded = |value: f32| half::bf16::from_f32(value).to_f32();
                values.iter_mut().for_each(|value| *value = rounded(*value) * factor);
            }
        };
        let dir = made::written_as(7, &config, edit, |name| if is_head(name) { dtype } else { Dtype::BF16 });
        let case = BackendCase::new("head", dir.path().to_owned(), BackendOptions::default(), 0.0);
        let ids = case.ids(61, 9);
        let mut device = case.device().0;
        sequence(0).run(&mut *device, &ids, &[], LogitRows::Last).unwrap();
        device.logits(0).unwrap().to_vec()
    };
    let small = 1.0 + 1.0 / 4096.0;
    let stored = head(1.0, Dtype::BF16);
    let same = head(1.0, Dtype::F32);
    let other = head(small, Dtype::F32);
    assert!(relative_rms(&same, &stored) < 1e-6);
    let want: Vec<f32> = stored.iter().map(|logit| logit * small).collect();
    assert!(relative_rms(&other, &want) < 1e-6 && relative_rms(&other, &stored) > 1e-4);
}

#[test]
fn a_tower_in_float32_makes_all_of_it_float32_and_other_types_are_another_model() {
    let (case, _kept) =
        BackendCase::with_float32(&made::config(), &["radio_model.model.blocks.0.mlp.fc1.weight"]);
    let (plain, _kept) = BackendCase::with_float32(&made::config(), &[]);
    let tower = BackendPair::open(&case);
    let mut narrow = BackendPair::open(&plain);
    // Less than twice as much: both have some in float32.
    assert!(weights(&tower) as f64 > 1.7 * weights(&narrow) as f64);
    let refused = narrow.device.replace_weights(&Checkpoint::open(&case.dir).unwrap(), &mut |_, _| {});
    assert!(matches!(refused, Err(SwapError::OtherModel)));
    let (router, _kept) = BackendCase::with_float32(&made::config(), &["o_proj"]);
    let refused = narrow.device.replace_weights(&Checkpoint::open(&router.dir).unwrap(), &mut |_, _| {});
    assert!(matches!(refused, Err(SwapError::OtherModel)));
}
