//! What the records claim, against the model run by itself: prompts from the rows alone, log-probs from one pass over them.

use furrow_model::backend::Backend;
use furrow_model::cpu::Cpu;
use furrow_model::forward::{Request, forward, room};
use furrow_model::kernels::{Compute, Team};
use furrow_model::vision::{ImageLimits, Resample, decode, prepare};
use furrow_model::weights::Weights;
use furrow_policy::Policy;
use furrow_rollout::{Action, ContextPolicy, FinishReason, ImageSpan, TokenTrace, token_hash};
use furrow_wire::Opening;

use crate::ground::*;

/// K and its pictures, from the rows alone.
#[derive(Default)]
pub struct Kept {
    ids: Vec<u32>,
    spans: Vec<ImageSpan>,
}

impl Kept {
    /// Holds a row against what is kept, and goes on. Returns the whole prompt.
    pub fn row(&mut self, row: &TokenTrace) -> Vec<u32> {
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

/// Log-probs of every input token but the first, in one pass.
pub fn logprobs(
    weights: &std::sync::Arc<Weights>,
    opening: &Opening,
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
            prepare(&rgb, vision, Resample::U8).tiles
        })
        .collect();
    let mut cpu = Cpu::open(weights.clone(), room(ids.len(), tiles.len(), 0), 2, Compute::Float32).unwrap();
    let request = Request { input_ids: ids, tiles: &tiles, ..Request::default() };
    assert_eq!(cpu.config(), &weights.config);
    forward(&mut cpu, &request).unwrap().logprobs
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_pass_over_the_claimed_prompt_gives_the_recorded_log_probs() {
    let weights = std::sync::Arc::new(Weights::load(checkpoint(), &Team::new(2), &mut |_, _| {}).unwrap());
    for is_held in [false, true] {
        let config = config(|file| {
            file.constrain.enabled = is_held;
            file.sampling.max_tokens = if is_held { 160 } else { 4 };
            (file.constrain.note, file.constrain.thought, file.constrain.content) = (4, 4, 4);
        });
        let model = model(&config);
        for (group, keep) in (0..).zip([&POLICIES[..], &[ContextPolicy::Window(3)]].concat()) {
            let opening = opening(&config, group, 1, keep);
            let rows = live(&model, &opening, 3).await;
            let mut kept = Kept::default();
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
                assert!(!is_held || reply.action.is_ok(), "{reply:?}");
                assert_eq!(row.forced.contains(&true), is_held);
            }
        }
        model.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_reply_ends_with_the_stop_id_and_the_next_prompt_follows_it() {
    let config = config(|file| file.sampling.max_tokens = 2);
    let model = model(&config);
    let opening = opening(&config, 0, 0, ContextPolicy::Append);
    let rows = live(&model, &opening, 2).await;
    let cut = tokens(&rows[0].1);
    assert_eq!((cut.finish_reason, cut.response_token_ids.len()), (FinishReason::Length, 3));
    assert_eq!((&cut.response_mask[..], &cut.forced[..]), (&[true, true, false][..], &[false; 3][..]));
    assert_eq!(cut.logprobs.as_ref().unwrap()[2], None);
    assert_eq!(cut.sampled_logprobs.as_ref().unwrap()[2], None);
    let next = tokens(&rows[1].1);
    assert_eq!(next.prefix_len as usize, cut.prompt_token_ids.len() + 3);
    model.stop().await;
}

/// The workload of a measurement: every reply as long as the job says, every one an action that a trajectory goes on after.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_of_an_exact_length_are_actions_that_end_nothing() {
    let exact = 180;
    let config = config(|file| {
        file.sampling.max_tokens = 200;
        file.constrain.enabled = true;
        (file.constrain.exact_tokens, file.constrain.endings) = (exact, false);
    });
    let model = model(&config);
    let (mut kinds, mut drawn) = (std::collections::BTreeSet::new(), 0);
    for group in 0..8 {
        let opening = opening(&config, group, 1, ContextPolicy::LastImage);
        for (reply, trace) in live(&model, &opening, 3).await {
            let row = tokens(&trace);
            assert_eq!(row.response_token_ids.len(), exact as usize, "{reply:?}");
            let action = reply.action.unwrap();
            let may_end = matches!(action, Action::Answer { .. }) || action.address().is_some();
            assert!(!may_end, "{action:?}");
            assert_eq!(row.finish_reason, FinishReason::GrammarCap);
            assert_eq!((row.forced.last(), row.response_mask.last()), (Some(&true), Some(&false)));
            kinds.insert(action.kind());
            drawn += row.response_mask.iter().filter(|drawn| **drawn).count();
        }
    }
    model.stop().await;
    println!("{} of {} ids were drawn: {kinds:?}", drawn, 8 * 3 * exact);
    assert!(kinds.len() >= 3, "{kinds:?}");
}
