//! Compares the records with the model alone: prompts from the rows, log-probs from one pass over
//! them.

use furrow_model::backend::Backend;
use furrow_model::cpu::CpuBackend;
use furrow_model::forward::{ForwardRequest, capacity_for, forward};
use furrow_model::kernels::{ProductPrecision, ThreadPool};
use furrow_model::vision::{ImageLimits, ResampleMode, decode, prepare};
use furrow_model::weights::ModelWeights;
use furrow_policy::Policy;
use furrow_rollout::{Action, ContextPolicy, FinishReason, ImageSpan, TokenTrace, token_hash};
use furrow_wire::SessionOpening;

use crate::model::fixture::*;

/// K and its images, computed from the rows alone.
#[derive(Default)]
pub(super) struct KeptTokens {
    ids: Vec<u32>,
    spans: Vec<ImageSpan>,
}

impl KeptTokens {
    /// Checks a row against what is kept, and commits it. Returns the whole prompt.
    pub(super) fn row(&mut self, row: &TokenTrace) -> Vec<u32> {
        assert_eq!(row.prefix_len as usize, self.ids.len());
        assert_eq!(row.prefix_hash, token_hash(&self.ids, &self.spans));
        let prompt = [&self.ids[..], &row.prompt_token_ids].concat();
        assert_eq!(row.prompt_hash, token_hash(&prompt, &row.image_spans));
        match &row.commit_token_ids {
            Some(commit) => self.ids.extend(commit),
            None => {
                self.ids = [&prompt[..], &row.response_token_ids].concat();
                self.spans.clone_from(&row.image_spans);
            }
        }
        prompt
    }
}

/// Log-probs of every input token except the first, in one pass.
pub(super) fn logprobs(
    weights: &std::sync::Arc<ModelWeights>,
    opening: &SessionOpening,
    ids: &[u32],
    spans: &[ImageSpan],
) -> Vec<f32> {
    let vision = weights.config.vision.as_ref().unwrap();
    let tiles: Vec<_> = spans
        .iter()
        .flat_map(|span| {
            let page = page(opening, span.step).screenshot;
            let rgb = decode(&page.bytes, ImageLimits::default()).unwrap();
            assert_eq!(rgb.sha256, span.rgb_sha256);
            prepare(&rgb, vision, ResampleMode::U8).tiles
        })
        .collect();
    let mut cpu = CpuBackend::open(
        weights.clone(),
        capacity_for(ids.len(), tiles.len(), 0),
        2,
        ProductPrecision::Float32,
    )
    .unwrap();
    let request = ForwardRequest { input_ids: ids, tiles: &tiles, ..ForwardRequest::default() };
    assert_eq!(cpu.config(), &weights.config);
    forward(&mut cpu, &request).unwrap().logprobs
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_pass_over_the_claimed_prompt_gives_the_recorded_log_probs() {
    let weights =
        std::sync::Arc::new(ModelWeights::load(checkpoint(), &ThreadPool::new(2), &mut |_, _| {}).unwrap());
    for is_constrained in [false, true] {
        let config = config(|file| {
            file.constrain.enabled = is_constrained;
            file.sampling.max_tokens = if is_constrained { 160 } else { 4 };
            (file.constrain.note, file.constrain.thought, file.constrain.content) = (4, 4, 4);
        });
        let model = model(&config);
        for (group, keep) in (0..).zip([&POLICIES[..], &[ContextPolicy::Window(3)]].concat()) {
            let opening = opening(&config, group, 1, keep);
            let rows = act_steps(&model, &opening, 3).await;
            let mut kept = KeptTokens::default();
            for (step, (reply, trace)) in rows.iter().enumerate() {
                let row = tokens(trace);
                let prompt = kept.row(row);
                let ids = [&prompt[..], &row.response_token_ids].concat();
                let want = logprobs(&weights, &opening, &ids, &row.image_spans);
                for (at, got) in row.logprobs.as_ref().unwrap().iter().enumerate() {
                    let want = want[prompt.len() + at - 1];
                    let near = got.is_none_or(|got| (got - want).abs() < 1e-4);
                    assert!(near, "{keep} step {step} token {at}: {got:?}, one pass gives {want}");
                    assert_eq!(got.is_some(), row.response_mask[at]);
                }
                assert!(!is_constrained || reply.action.is_ok(), "{reply:?}");
                assert_eq!(row.forced.contains(&true), is_constrained);
            }
        }
        model.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_reply_ends_with_the_stop_id_and_the_next_prompt_follows_it() {
    let config = config(|file| file.sampling.max_tokens = 2);
    let model = model(&config);
    let opening = opening(&config, 0, 0, ContextPolicy::Append);
    let rows = act_steps(&model, &opening, 2).await;
    let cut = tokens(&rows[0].1);
    assert_eq!((cut.finish_reason, cut.response_token_ids.len()), (FinishReason::Length, 3));
    assert_eq!((&cut.response_mask[..], &cut.forced[..]), (&[true, true, false][..], &[false; 3][..]));
    assert_eq!(cut.logprobs.as_ref().unwrap()[2], None);
    assert_eq!(cut.sampled_logprobs.as_ref().unwrap()[2], None);
    let next = tokens(&rows[1].1);
    assert_eq!(next.prefix_len as usize, cut.prompt_token_ids.len() + 3);
    model.stop().await.unwrap();
}

/// The workload of a measurement: every reply has the configured length, and no action ends its
/// trajectory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_of_an_exact_length_are_actions_that_end_nothing() {
    let exact = 180;
    let config = config(|file| {
        file.sampling.max_tokens = 200;
        file.constrain.enabled = true;
        (file.constrain.exact_tokens, file.constrain.endings) = (exact, false);
    });
    let model = model(&config);
    let mut kinds = std::collections::BTreeSet::new();
    let mut sampled = 0;
    for group in 0..8 {
        let opening = opening(&config, group, 1, ContextPolicy::LastImage);
        for (reply, trace) in act_steps(&model, &opening, 3).await {
            let row = tokens(&trace);
            assert_eq!(row.response_token_ids.len(), exact as usize, "{reply:?}");
            let action = reply.action.unwrap();
            let may_end = matches!(action, Action::Answer { .. }) || action.address().is_some();
            assert!(!may_end, "{action:?}");
            assert_eq!(row.finish_reason, FinishReason::GrammarCap);
            assert_eq!((row.forced.last(), row.response_mask.last()), (Some(&true), Some(&false)));
            kinds.insert(action.kind());
            sampled += row.response_mask.iter().filter(|sampled| **sampled).count();
        }
    }
    model.stop().await.unwrap();
    println!("{} of {} ids were sampled: {kinds:?}", sampled, 8 * 3 * exact);
    assert!(kinds.len() >= 3, "{kinds:?}");
}
