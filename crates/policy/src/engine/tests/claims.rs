//! Compares what the records state with a model that runs exactly that.

use std::collections::BTreeMap;

use furrow_model::backend::{ImageInset, LogitRows, Page, SequenceSpan, Slot, TileFeature};
use furrow_model::sample::{SampleOutcome, sample_token};
use furrow_rollout::TokenTrace;

use super::harness::{PLACEHOLDER, sim_settings};
use super::*;
use crate::sim::{SimBackend, SimSettings};

/// The kept tokens after some steps, from their rows alone.
fn kept(before: &[TokenTrace]) -> Vec<u32> {
    let mut kept = Vec::new();
    for row in before {
        match &row.commit_token_ids {
            Some(commit) => kept.extend(commit),
            None => kept.extend(row.prompt_token_ids.iter().chain(&row.response_token_ids)),
        }
    }
    kept
}

/// Runs prompt and response of a row at once, and compares every sampled token with one sampled
/// from these logits.
fn check_row(script: &SessionScript, step: u32, rows: &[TokenTrace]) {
    let row = &rows[step as usize];
    let prompt = [kept(&rows[..step as usize]), row.prompt_token_ids.clone()].concat();
    let ids = [&prompt[..], &row.response_token_ids].concat();
    let capacity = BackendCapacity {
        slots: 1,
        pages: 60,
        rows_max: 4096,
        logits_max: 4096,
        features: 64,
        offload_bytes: 0,
    };
    let mut device = SimBackend::new(SimSettings { cuts_matter: false, ..sim_settings(capacity) });
    let mut insets = Vec::new();
    for span in &row.image_spans {
        let (_, picture, _) = script.turn(span.step);
        let features: Vec<TileFeature> = device.encode(&picture.tiles).unwrap();
        let at = (span.token_start..).step_by(picture.rows_per_tile as usize);
        let inset = |(at, feature)| ImageInset { at, len: picture.rows_per_tile, feature, row: 0 };
        insets.extend(at.zip(features).map(inset));
    }
    let rows_of_images: u32 = row.image_spans.iter().map(|span| span.token_len).sum();
    assert_eq!(prompt.iter().filter(|id| **id == PLACEHOLDER).count(), rows_of_images as usize);
    let pages: Vec<Page> = (0..60).map(Page).collect();
    device
        .run(&[SequenceSpan {
            slot: Slot(0),
            pages: &pages,
            start: 0,
            tokens: &ids,
            insets: &insets,
            want: LogitRows::All,
        }])
        .unwrap();
    let mut response = script.response(step);
    for (at, id) in row.response_token_ids.iter().enumerate().filter(|(at, _)| row.response_mask[*at]) {
        response.append_forced(1);
        let one = response.pick(0);
        let SampleOutcome::Token(token) =
            sample_token(device.logits((prompt.len() + at - 1) as u32).unwrap(), &one)
        else {
            panic!("the logits are not finite")
        };
        let recorded = row.logprobs.as_ref().unwrap()[at];
        assert_eq!(
            (token.id, Some(token.logprob)),
            (*id, recorded),
            "{} step {step} token {at}",
            script.keep
        );
        response.take(&token, 1).unwrap();
    }
    response.append_forced(1);
    assert_eq!(response.columns().ids, row.response_token_ids);
}

#[test]
fn a_fresh_prefill_of_the_claimed_prompt_gives_the_recorded_tokens() {
    for (group, keep) in (0..).zip(alone::policies()) {
        let scripts: Vec<SessionScript> =
            (0..4).map(|sample| SessionScript { steps: 5, ..alone::script(keep, group, sample) }).collect();
        let mut harness = EngineHarness::with_device(
            settings(),
            SimSettings { cuts_matter: false, ..sim_settings(capacity()) },
            scripts,
        );
        harness.run_to_end();
        for actor in &harness.actors {
            (0..5).for_each(|step| check_row(&actor.script, step, &actor.traces));
        }
    }
}

#[test]
fn logits_that_are_not_numbers_end_their_session_alone() {
    let scripts: Vec<SessionScript> = (0..8)
        .map(|sample| SessionScript {
            poisoned_at: (sample == 3).then_some(2),
            ..alone::script(ContextPolicy::LastImage, 1, sample)
        })
        .collect();
    let want: BTreeMap<usize, _> =
        (0..8).filter(|index| *index != 3).map(|index| (index, alone::alone(&scripts[index]))).collect();
    let mut harness = EngineHarness::new(settings(), capacity(), scripts);
    harness.run_to_end();
    assert!(
        matches!(harness.actors[3].fault, Some(EngineFault::NotFinite { .. })),
        "{:?}",
        harness.actors[3].fault
    );
    let tokens = harness.tokens();
    assert_eq!(tokens[3].len(), 2, "the steps before it remain");
    for (index, want) in want {
        assert_eq!(tokens[index], want, "session {index}");
    }
}

#[test]
fn more_sessions_than_the_limit_are_refused_until_one_ends() {
    let scripts = (0..4).map(|sample| alone::script(ContextPolicy::Append, 1, sample)).collect();
    let mut harness =
        EngineHarness::new(settings(), BackendCapacity { offload_bytes: 0, ..capacity() }, scripts);
    assert_eq!(
        harness.engine.sessions_max(),
        2,
        "60 pages are 20 for the running session and 2 x 20 for the idle ones"
    );
    (0..4).for_each(|index| harness.act(index));
    assert_eq!(harness.engine.sessions.len(), 2);
    harness.run_to_end();
    assert!(harness.actors.iter().all(|actor| actor.fault.is_none()));
}

#[test]
fn a_prompt_beyond_the_longest_context_is_refused_and_harms_no_other_session() {
    let settings = EngineSettings { context_tokens_max: 130, ..settings() };
    let scripts = [0, 2].into_iter().map(|sample| alone::script(ContextPolicy::Append, 1, sample)).collect();
    let mut harness = EngineHarness::new(settings, capacity(), scripts);
    harness.run_to_end();
    assert!(harness.actors.iter().all(|actor| matches!(actor.fault, Some(EngineFault::TooLong { .. }))));
    assert!(harness.actors.iter().all(|actor| !actor.traces.is_empty()));
}

#[test]
fn siblings_start_from_what_the_first_of_them_made() {
    let scripts = (0..4).map(|sample| alone::script(ContextPolicy::Append, 9, sample)).collect();
    let mut harness = EngineHarness::new(settings(), capacity(), scripts);
    harness.run_to_end();
    let first: Vec<_> = harness.actors.iter().map(|actor| &actor.replies[0].engine).collect();
    let (turn, _, _) = harness.actors[0].script.turn(0);
    let page_end = turn.image.unwrap().leaves.end;
    assert_eq!(first[0].reused_tokens, 0);
    for engine in &first[1..] {
        assert_eq!((engine.state_origin, engine.reused_tokens), (Some(StateOrigin::Forked), page_end));
    }
    let prefilled: u32 = first.iter().map(|engine| engine.prefill_tokens).sum();
    assert!(prefilled < 2 * turn.ids.len() as u32, "{prefilled} tokens for four sessions");
}

#[test]
fn settings_under_which_a_session_could_wait_for_ever_are_refused() {
    let refused = |settings: EngineSettings, capacity: BackendCapacity| {
        Engine::new(Box::new(SimBackend::new(sim_settings(capacity))), settings)
            .err()
            .map(|mismatch| mismatch.what)
    };
    assert_eq!(refused(settings(), capacity()), None);
    assert_eq!(
        refused(EngineSettings { state_slots: 1, ..settings() }, capacity()),
        Some("state slots of sessions")
    );
    assert_eq!(refused(settings(), BackendCapacity { pages: 19, ..capacity() }), Some("KV pages"));
    assert_eq!(refused(settings(), BackendCapacity { slots: 7, ..capacity() }), Some("state slots"));
    assert_eq!(
        refused(EngineSettings { prefill_tokens: 15, ..settings() }, capacity()),
        Some("prefill tokens")
    );
}
