//! Compares values with float64 results of the oracle, and with the `cpu` backend.

use furrow_cuda::backend::ModelPrecision;
use furrow_model::forward::{ForwardOutputs, ForwardRequest, forward};

use crate::case::{BackendCase, FLOAT32, expected, inputs, numbers, relative_rms};

const PRECISIONS: [ModelPrecision; 3] =
    [ModelPrecision::Usual, ModelPrecision::WideResidual, ModelPrecision::NarrowState];

#[track_caller]
fn near(what: &str, got: &[f32], want: &[f32], bound: f64) {
    let error = relative_rms(got, want);
    assert!(error <= bound, "{what}: relative RMS {error:e} > {bound:e}");
}

fn on_the_device(case: &BackendCase, ids: &[u32], segments: &[usize], decode: usize) -> ForwardOutputs {
    let request = ForwardRequest { input_ids: ids, segments, decode, ..ForwardRequest::default() };
    forward(&mut *case.device().0, &request).unwrap()
}

#[test]
fn oracle_prompts_whole_and_in_pieces_with_their_continuations() {
    for name in FLOAT32 {
        let case = BackendCase::oracle(name, ModelPrecision::Usual);
        let oracle_inputs = inputs(&case.dir);
        let ids: Vec<u32> = numbers(&oracle_inputs["prompt_a"]).iter().map(|id| *id as u32).collect();
        let truth = expected(&case.dir, "a.logits_ref64");
        let decoded = expected(&case.dir, "a.decode.logits_ref64");
        let whole = on_the_device(&case, &ids, &[], 4);
        near(name, &whole.logits, &truth, case.bound);
        let width = case.weights.config.text.vocabulary;
        near(&format!("{name} decode"), &whole.decode_logits, &decoded[..4 * width], case.bound);
        // One of the oracle's segmentations: others are compared with the cpu backend.
        let segments = numbers(&oracle_inputs["segmentations"][1]);
        let cut = on_the_device(&case, &ids, &segments, 0);
        near(&format!("{name} in pieces of {segments:?}"), &cut.logits, &truth, case.bound);
    }
}

#[test]
fn bfloat16_stays_as_near_to_float64_as_transformers_does() {
    for precision in PRECISIONS {
        let case = BackendCase::oracle("vl_names_bf16", precision);
        let ids: Vec<u32> = numbers(&inputs(&case.dir)["prompt_a"]).iter().map(|id| *id as u32).collect();
        let outputs = on_the_device(&case, &ids, &[], 1);
        let truth = expected(&case.dir, "a.logits_ref64");
        println!("{precision:?}: relative RMS {:.2e}", relative_rms(&outputs.logits, &truth));
        near(&format!("{precision:?}"), &outputs.logits, &truth, 2e-2);
    }
}

/// Differences between the log-probabilities of a prompt's tokens, read whole and token by token.
#[derive(Debug)]
pub(crate) struct LogprobDifference {
    pub p50: f64,
    pub p99: f64,
    pub mean: f64,
}

/// The differences of transformers 5.23.0 in bfloat16 on a CPU, for the same prompt.
const TRANSFORMERS: LogprobDifference = LogprobDifference { p50: 0.0770, p99: 0.2784, mean: 0.0896 };

impl LogprobDifference {
    /// For the oracle's bfloat16 checkpoint, which `tests/peers/transformers_gpu.py` reads, too.
    pub(crate) fn of_the_oracle(precision: ModelPrecision) -> Self {
        let case = BackendCase::oracle("vl_names_bf16", precision);
        let ids: Vec<u32> = numbers(&inputs(&case.dir)["prompt_a"]).iter().map(|id| *id as u32).collect();
        Self::of(&case, &ids)
    }

    /// For a generated checkpoint with heads of the published size, so that prefill runs by chunks
    /// and decode by parts of the context.
    pub(crate) fn of_a_made_one(precision: ModelPrecision) -> Self {
        let case = BackendCase::made(precision);
        Self::of(&case, &case.ids(3, 260))
    }

    fn of(case: &BackendCase, ids: &[u32]) -> Self {
        let whole = on_the_device(case, ids, &[], 0).logprobs;
        let singly = on_the_device(case, ids, &vec![1; ids.len()], 0).logprobs;
        let apart = whole.iter().zip(&singly).map(|(one, other)| f64::from((one - other).abs()));
        let mut apart: Vec<f64> = apart.collect();
        apart.sort_by(f64::total_cmp);
        let at = |share: f64| apart[((share * apart.len() as f64) as usize).min(apart.len() - 1)];
        Self { p50: at(0.5), p99: at(0.99), mean: apart.iter().sum::<f64>() / apart.len() as f64 }
    }
}

#[test]
fn decode_and_prefill_are_no_further_apart_than_transformers_has_them() {
    for precision in PRECISIONS {
        let gap = LogprobDifference::of_the_oracle(precision);
        println!("{precision:?}: {gap:?}");
        let is_less = |of: fn(&LogprobDifference) -> f64| of(&gap) <= of(&TRANSFORMERS);
        assert!(
            is_less(|gap| gap.p50) && is_less(|gap| gap.p99) && is_less(|gap| gap.mean),
            "{precision:?}: {gap:?}"
        );
    }
}

#[test]
fn the_fast_kernels_agree_with_the_cpu_at_every_cut() {
    // Chunks have 64 tokens, pages 64, tiles of the convolution 16: cuts on, before and after each;
    // pieces shorter than its taps.
    let cuts: [&[usize]; 4] = [&[], &[64, 66], &[1, 1, 1, 127], &[63, 2, 65]];
    for precision in PRECISIONS {
        let case = BackendCase::made(precision);
        let ids = case.ids(3, 130);
        let request = ForwardRequest { input_ids: &ids, ..ForwardRequest::default() };
        let want = forward(&mut case.cpu(), &request).unwrap();
        let tried = if precision == ModelPrecision::Usual { &cuts[..] } else { &cuts[3..] };
        for segments in tried {
            let got = on_the_device(&case, &ids, segments, 0);
            near(&format!("{precision:?} {segments:?}"), &got.logits, &want.logits, case.bound);
        }
    }
}
