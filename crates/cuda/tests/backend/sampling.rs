//! Compares sampling on the device with sampling on the CPU from the device's own logits.

use furrow_cuda::backend::ModelPrecision;
use furrow_model::backend::LogitRows;
use furrow_model::sample::{AllowedTokens, SampleOutcome, SampleRequest, sample_token};

use crate::case::{BackendCase, sequence};

#[test]
fn the_same_uniforms_sample_the_same_tokens() {
    let case = BackendCase::oracle("dense", ModelPrecision::Usual);
    let (mut device, _) = case.device();
    let ids = case.ids(2, 9);
    sequence(0).run(&mut *device, &ids, &[], LogitRows::All).unwrap();
    let vocabulary = case.weights.config.text.vocabulary;
    let mut some = AllowedTokens::new(vocabulary);
    some.extend((0..vocabulary as u32).filter(|id| id % 7 < 2));
    let larger = AllowedTokens::all(vocabulary + 100);
    let usual = SampleRequest {
        row: 0,
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        allowed: None,
        uniform: 0.3,
    };
    let picks = [
        usual,
        SampleRequest { row: 1, temperature: 0.0, ..usual },
        SampleRequest { row: 2, temperature: 0.7, uniform: 0.99, ..usual },
        SampleRequest { row: 3, top_k: 20, ..usual },
        SampleRequest { row: 4, top_p: 0.9, uniform: 0.0, ..usual },
        SampleRequest { row: 5, min_p: 0.05, uniform: 0.7, ..usual },
        SampleRequest { row: 6, allowed: Some(&some), ..usual },
        SampleRequest { row: 7, allowed: Some(&larger), temperature: 1.3, ..usual },
        SampleRequest { row: 8, allowed: Some(&some), top_k: 5, top_p: 0.8, ..usual },
        SampleRequest { row: 0, uniform: 0.6, ..usual },
    ];
    let got = device.sample(&picks).unwrap();
    assert_eq!(got.len(), picks.len());
    for (got, request) in got.iter().zip(&picks) {
        let want = sample_token(device.logits(request.row).unwrap(), &SampleRequest { row: 0, ..*request });
        let (SampleOutcome::Token(got), SampleOutcome::Token(want)) = (got, want) else {
            panic!("the logits are not finite")
        };
        let what =
            |token: &furrow_model::sample::SampledToken| (token.id, token.kept_count, token.kept_ids.clone());
        assert_eq!(what(got), what(&want), "{request:?}");
        for (got, want) in [
            (got.logprob, want.logprob),
            (got.sampled_logprob, want.sampled_logprob),
            (got.entropy, want.entropy),
        ] {
            assert!((got - want).abs() <= 1e-5, "{request:?}: {got} for {want}");
        }
    }
}
