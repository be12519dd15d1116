//! Draws on the device against the same draws on the CPU, from the very logits the device has.

use furrow_cuda::backend::Precision;
use furrow_model::backend::Want;
use furrow_model::sample::{Allowed, Pick, Picked, pick};

use crate::case::{Case, sequence};

#[test]
fn the_same_numbers_draw_the_same_tokens() {
    let case = Case::oracle("dense", Precision::Usual);
    let (mut device, _) = case.device();
    let ids = case.ids(2, 9);
    sequence(0).run(&mut *device, &ids, &[], Want::All).unwrap();
    let vocabulary = case.weights.config.text.vocabulary;
    let mut some = Allowed::new(vocabulary);
    some.extend((0..vocabulary as u32).filter(|id| id % 7 < 2));
    let larger = Allowed::all(vocabulary + 100);
    let usual =
        Pick { row: 0, temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, allowed: None, uniform: 0.3 };
    let picks = [
        usual,
        Pick { row: 1, temperature: 0.0, ..usual },
        Pick { row: 2, temperature: 0.7, uniform: 0.99, ..usual },
        Pick { row: 3, top_k: 20, ..usual },
        Pick { row: 4, top_p: 0.9, uniform: 0.0, ..usual },
        Pick { row: 5, min_p: 0.05, uniform: 0.7, ..usual },
        Pick { row: 6, allowed: Some(&some), ..usual },
        Pick { row: 7, allowed: Some(&larger), temperature: 1.3, ..usual },
        Pick { row: 8, allowed: Some(&some), top_k: 5, top_p: 0.8, ..usual },
        Pick { row: 0, uniform: 0.6, ..usual },
    ];
    let got = device.sample(&picks).unwrap();
    assert_eq!(got.len(), picks.len());
    for (got, asked) in got.iter().zip(&picks) {
        let want = pick(device.logits(asked.row).unwrap(), &Pick { row: 0, ..*asked });
        let (Picked::Token(got), Picked::Token(want)) = (got, want) else { panic!("finite logits") };
        let what = |token: &furrow_model::sample::Token| (token.id, token.kept_count, token.kept_ids.clone());
        assert_eq!(what(got), what(&want), "{asked:?}");
        for (got, want) in [
            (got.logprob, want.logprob),
            (got.sampled_logprob, want.sampled_logprob),
            (got.entropy, want.entropy),
        ] {
            assert!((got - want).abs() <= 1e-5, "{asked:?}: {got} for {want}");
        }
    }
}
