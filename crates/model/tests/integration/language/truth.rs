//! Compares values with the float64 results of the oracle where it has them, otherwise with
//! transformers' own.

use std::sync::{Arc, Mutex};

use furrow_model::backend::{Backend, ImageInset, LogitRows};
use furrow_model::cpu::{CpuBackend, ProbeEvent};
use furrow_model::forward::{ForwardOutputs, ForwardRequest, forward};
use furrow_model::kernels::ProductPrecision;
use furrow_model::sample::{AllowedTokens, SampleOutcome, SampleRequest, SampledToken};

use crate::language::oracle::{OracleCase, largest, relative_rms, sequence};

/// Permitted errors: the bounds of the oracle's README.
struct ErrorBounds {
    logits: f64,
    logits_largest: f64,
    hidden: f64,
    ssm: f64,
    conv: f64,
    logprob: f64,
}

const FLOAT32: ErrorBounds =
    ErrorBounds { logits: 5e-6, logits_largest: 2e-4, hidden: 5e-6, ssm: 2e-5, conv: 5e-6, logprob: 2e-4 };
const BFLOAT16: ErrorBounds =
    ErrorBounds { logits: 2e-2, logits_largest: 1.0, hidden: 3e-2, ssm: 4e-2, conv: 3e-2, logprob: 0.4 };

impl OracleCase {
    /// Against float64 results for exactly the weights that were read.
    fn bounds(&self) -> ErrorBounds {
        if self.compute == ProductPrecision::Float32 { FLOAT32 } else { BFLOAT16 }
    }

    /// Against the results of transformers, in bfloat16 if the weights are.
    fn stored_bounds(&self) -> ErrorBounds {
        if self.name.ends_with("bf16") { BFLOAT16 } else { FLOAT32 }
    }

    #[track_caller]
    fn near(&self, what: &str, got: &[f32], want: &[f32], bound: f64) {
        let error = relative_rms(got, want);
        assert!(
            error <= bound,
            "{} {:?} {what}: relative RMS {error:e} > {bound:e}",
            self.name,
            self.compute
        );
    }

    #[track_caller]
    fn nearest(&self, what: &str, got: &[f32], want: &[f32], bound: f64) {
        let error = largest(got, want);
        assert!(
            error <= bound,
            "{} {:?} {what}: largest error {error:e} > {bound:e}",
            self.name,
            self.compute
        );
    }

    fn forward(&self, ids: &str, decode: usize) -> ForwardOutputs {
        let input_ids = self.ids(ids);
        let request = ForwardRequest { input_ids: &input_ids, decode, ..ForwardRequest::default() };
        forward(&mut self.open(), &request).unwrap()
    }
}

#[test]
fn logits_and_logprobs_of_a_whole_prompt() {
    for case in OracleCase::all() {
        let outputs = case.forward("prompt_a", 0);
        let bounds = case.bounds();
        let truth = case.floats("a.logits_ref64");
        case.near("logits", &outputs.logits, &truth, bounds.logits);
        case.nearest("logits", &outputs.logits, &truth, bounds.logits_largest);
        case.nearest("logprobs", &outputs.logprobs, &case.floats("a.logprob_ref64.t1.0"), bounds.logprob);
        let other = case.forward("prompt_b", 0).logits;
        case.near("logits of b", &other, &case.floats("b.logits"), case.stored_bounds().logits);
    }
}

/// All probe events of one batch, under the oracle's names.
type RecordedProbes = Arc<Mutex<Vec<(String, Vec<f32>)>>>;

fn record_probes(cpu: &mut CpuBackend) -> RecordedProbes {
    let probes = RecordedProbes::default();
    let list = Arc::clone(&probes);
    cpu.observe(Some(Box::new(move |probe| {
        let mut list = list.lock().unwrap();
        match probe {
            ProbeEvent::Entering { layer, rows } => list.push((format!("a.hidden.{layer}"), rows.to_vec())),
            ProbeEvent::FinalNorm { rows } => list.push(("a.final_norm".to_owned(), rows.to_vec())),
            ProbeEvent::Routed { layer, logits, experts, weights } => {
                list.push((format!("a.router.{layer}.logits"), logits.to_vec()));
                list.push((format!("a.router.{layer}.experts"), experts.iter().map(|e| *e as f32).collect()));
                list.push((format!("a.router.{layer}.weights"), weights.to_vec()));
            }
        }
    })));
    probes
}

#[test]
fn the_residual_stream_layer_by_layer_and_the_routers() {
    for case in OracleCase::all() {
        let mut cpu = case.open();
        let bounds = case.stored_bounds();
        let ids = case.ids("prompt_a");
        let probes = record_probes(&mut cpu);
        sequence(0).run(&mut cpu, &ids, &[], LogitRows::All).unwrap();
        let text = &case.weights.config.text;
        let probes = probes.lock().unwrap();
        let routers = probes.iter().filter(|(name, _)| name.contains("router")).count();
        assert_eq!(probes.len() - routers, text.layers.len() + 1);
        for (name, got) in probes.iter() {
            if name.ends_with("experts") {
                let want: Vec<f32> = case.ints(name).iter().map(|expert| *expert as f32).collect();
                assert_eq!(*got, want, "{} {name}", case.name);
            } else if name.ends_with("weights") {
                case.nearest(name, got, &case.floats(name), 1e-5);
            } else {
                // The oracle has only the first rows of its long case.
                let want = case.floats(name);
                case.near(name, &got[..want.len()], &want, bounds.hidden);
            }
        }
    }
}

#[test]
fn states_after_a_prompt() {
    for case in OracleCase::all() {
        let mut cpu = case.open();
        let bounds = case.stored_bounds();
        let ids = case.ids("prompt_a");
        let mut own = sequence(1);
        own.run(&mut cpu, &ids, &[], LogitRows::Nothing).unwrap();
        let mut recurrent = 0;
        let mut attended = 0;
        for layer in 0..case.weights.config.text.layers.len() {
            if let Some((conv, ssm)) = cpu.state(layer, own.slot()) {
                let name = format!("a.state.{layer}");
                let width = case.weights.config.text.ssm.conv_width();
                let want = last_inputs(&case.floats(&format!("{name}.conv")), width);
                case.near(&format!("{name}.conv"), conv, &want, bounds.conv);
                case.near(&format!("{name}.ssm"), ssm, &case.floats(&format!("{name}.ssm")), bounds.ssm);
                recurrent += 1;
            }
            if let Some((keys, values)) = cpu.keys_values(layer, own.pages(), ids.len()) {
                for (name, got) in [("k", keys), ("v", values)] {
                    let name = format!("a.state.{layer}.{name}");
                    let Some(want) = case.find(&name) else { continue };
                    case.near(&name, &got, &want, bounds.conv);
                    attended += 1;
                }
            }
        }
        assert!(recurrent > 0 && (attended > 0 || case.name == "long_chunk128"), "{}", case.name);
    }
}

/// The oracle's `[W, 4]` by channel, whose first column is never used again, as `[3, W]` by token.
fn last_inputs(stored: &[f32], width: usize) -> Vec<f32> {
    (1..4).flat_map(|tap| (0..width).map(move |channel| stored[channel * 4 + tap])).collect()
}

#[test]
fn greedy_continuation() {
    // The tokens of the bfloat16 case were sampled in bfloat16 and may differ where two logits are
    // close: a later test feeds them.
    for case in OracleCase::all().filter(|case| !case.name.ends_with("bf16")) {
        let tokens = case.ints("a.decode.tokens");
        let outputs = case.forward("prompt_a", tokens.len());
        assert_eq!(outputs.decode_tokens, tokens, "{}", case.name);
        let truth = case.floats("a.decode.logits_ref64");
        let bound = case.bounds().logits;
        case.near("decoded logits", &outputs.decode_logits, &truth, bound);
        let other = case.forward("prompt_b", 12);
        assert_eq!(other.decode_tokens, case.ints("b.decode.tokens"), "{} b", case.name);
        case.near("decoded logits of b", &other.decode_logits, &case.floats("b.decode.logits"), bound);
    }
}

#[test]
fn a_recorded_continuation_fed_token_by_token() {
    for case in OracleCase::all() {
        let mut cpu = case.open();
        let mut own = sequence(0);
        let tokens = case.ints("a.decode.tokens");
        own.run(&mut cpu, &case.ids("prompt_a"), &[], LogitRows::Last).unwrap();
        let mut logits = cpu.logits(0).unwrap().to_vec();
        for token in &tokens[..tokens.len() - 1] {
            own.run(&mut cpu, &[*token], &[], LogitRows::Last).unwrap();
            logits.extend_from_slice(cpu.logits(0).unwrap());
        }
        case.near("fed logits", &logits, &case.floats("a.decode.logits_ref64"), case.bounds().logits);
    }
}

#[test]
fn vectors_replace_embeddings() {
    for case in OracleCase::all() {
        let mut cpu = case.open();
        let mut own = sequence(2);
        let feature = cpu.store_rows(&case.floats("emb.override")).unwrap();
        let positions = case.ids("emb_positions");
        let inset = |(row, at): (usize, &u32)| ImageInset { at: *at, len: 1, feature, row: row as u32 };
        let insets: Vec<ImageInset> = positions.iter().enumerate().map(inset).collect();
        // The token at a replaced position is not read: a placeholder may be outside the table.
        let mut ids = case.ids("prompt_a");
        positions.iter().for_each(|at| ids[*at as usize] = u32::MAX);
        own.run(&mut cpu, &ids, &insets, LogitRows::All).unwrap();
        let logits: Vec<f32> =
            (0..ids.len()).flat_map(|row| cpu.logits(row as u32).unwrap().to_vec()).collect();
        case.near("logits", &logits, &case.floats("emb.logits_ref64"), case.bounds().logits);
    }
}

#[test]
fn sampled_tokens_carry_the_oracles_logprobs_and_entropy() {
    for case in OracleCase::all() {
        let mut cpu = case.open();
        let ids = case.ids("prompt_a");
        sequence(0).run(&mut cpu, &ids, &[], LogitRows::All).unwrap();
        for (temperature, name) in [(1.0, "a.logprob_ref64.t1.0"), (0.7, "a.logprob_ref64.t0.7")] {
            let allowed: Vec<AllowedTokens> =
                ids[1..].iter().map(|id| only(*id, case.vocabulary())).collect();
            let picks: Vec<SampleRequest<'_>> = (0..)
                .zip(&allowed)
                .map(|(row, allowed)| SampleRequest { allowed: Some(allowed), ..pick(row, temperature) })
                .collect();
            let got: Vec<f32> =
                tokens(cpu.sample(&picks).unwrap()).iter().map(|token| token.logprob).collect();
            case.nearest(name, &got, &case.floats(name), case.bounds().logprob);
        }
        let picks: Vec<SampleRequest<'_>> = (0..ids.len() as u32).map(|row| pick(row, 1.0)).collect();
        let got: Vec<f32> = tokens(cpu.sample(&picks).unwrap()).iter().map(|token| token.entropy).collect();
        case.nearest("a.entropy", &got, &case.floats("a.entropy"), case.stored_bounds().logprob);
    }
}

fn only(id: u32, vocabulary: usize) -> AllowedTokens {
    let mut allowed = AllowedTokens::new(vocabulary);
    assert!(allowed.insert(id));
    allowed
}

fn pick(row: u32, temperature: f32) -> SampleRequest<'static> {
    SampleRequest { row, temperature, top_k: 0, top_p: 1.0, min_p: 0.0, allowed: None, uniform: 0.5 }
}

fn tokens(picked: Vec<SampleOutcome>) -> Vec<SampledToken> {
    let token = |picked| match picked {
        SampleOutcome::Token(token) => token,
        SampleOutcome::NotFinite => panic!("the logits are not finite"),
    };
    picked.into_iter().map(token).collect()
}
