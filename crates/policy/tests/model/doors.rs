//! What is wrong from outside ends where it came in, with words, and harms nobody else.

use bytes::Bytes;
use furrow_policy::{Answer, Model, Policy, PolicyError};
use furrow_rollout::{ContextPolicy, Trace};
use furrow_wire::PastStep;

use crate::ground::*;

#[track_caller]
fn check<T>(got: Result<T, PolicyError>, want: &str) {
    let said = got.err().map_or_else(|| "nothing wrong".to_owned(), |error| error.to_string());
    assert!(said.contains(want), "\n got {said}\nwant {want}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_past_that_is_no_past_of_this_session_is_refused() {
    let config = config(|_| {});
    let model = model(&config);
    let opening = opening(&config, 0, 0, ContextPolicy::Append);
    let lived = live(&model, &opening, 2).await;
    let recalled = async |change: fn(&mut PastStep)| {
        let opening = furrow_wire::Opening { past_steps: 2, ..opening.clone() };
        let mut session = model.open(&opening).await.unwrap();
        let mut step = past(&opening, 0, &lived[0]);
        change(&mut step);
        session.recall(step).await
    };
    fn told(past: &mut PastStep) -> &mut furrow_rollout::TokenTrace {
        past.trace.tokens.as_mut().unwrap()
    }
    check(recalled(|_| {}).await, "nothing wrong");
    check(recalled(|past| past.step = 1).await, "step 1 was observed, the session is at step 0");
    check(recalled(|past| past.trace = Trace { tokens: None, ..past.trace.clone() }).await, "has no tokens");
    check(recalled(|past| told(past).prompt_token_ids[3] = 1_000_000).await, "token id 1000000");
    check(recalled(|past| told(past).prefix_len = 1).await, "prefix_len");
    check(recalled(|past| told(past).prompt_token_ids[3] ^= 1).await, "prompt_hash");
    check(recalled(|past| told(past).image_spans[0].token_start += 1).await, "marks around its picture");
    check(
        recalled(|past| told(past).image_spans[0].token_start = u32::MAX).await,
        "marks around its picture",
    );
    check(
        recalled(|past| told(past).image_spans[0].token_len = u32::MAX).await,
        "not the one that its trace",
    );
    check(recalled(|past| told(past).response_mask.clear()).await, "response_mask");
    check(recalled(|past| told(past).commit_token_ids = Some(vec![])).await, "commit_token_ids");
    check(
        recalled(|past| past.screenshot.bytes = Bytes::from_static(b"?")).await,
        "screenshot cannot be read",
    );
    model.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_screenshot_ends_its_session_and_a_full_context_its_trajectory() {
    let config = config(|file| file.engine.context_tokens_max = 130);
    let model = model(&config);
    let opening = opening(&config, 0, 0, ContextPolicy::Append);
    let mut session = open(&model, &opening, &[]).await.unwrap();
    let mut step = 0;
    while let Answer::Reply(_) = act(&mut *session, &opening, step).await.unwrap() {
        step += 1;
    }
    assert!((1..4).contains(&step), "130 tokens held {step} steps");
    check(act(&mut *session, &opening, step + 1).await, "the session is at step");
    drop(session);
    assert_eq!(live(&model, &opening, 1).await.len(), 1, "others go on");
    model.stop().await;
    check(model.open(&opening).await.map(drop), "model is gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_more_than_fit_is_refused_until_one_is_dropped() {
    let config = config(|file| {
        file.engine.parked_bytes = 0;
        file.engine.state_slots = 3;
    });
    let model = model(&config);
    assert_eq!(model.places(), Some(1));
    let openings: Vec<_> =
        (0..2).map(|sample| opening(&config, 0, sample, ContextPolicy::LastImage)).collect();
    let first = open(&model, &openings[0], &[]).await.unwrap();
    check(open(&model, &openings[1], &[]).await.map(drop), "all 1 places for sessions are taken");
    drop(first);
    assert_eq!(live(&model, &openings[1], 1).await.len(), 1);
    model.stop().await;
}

#[test]
fn an_audit_that_would_find_no_place_is_refused() {
    let opened = |share: f64, state_slots: u32| {
        let config = config(|file| {
            (file.engine.parked_bytes, file.engine.state_slots) = (0, state_slots);
            file.audit.share = share;
        });
        let opened = Model::open(config.model.as_ref().unwrap(), &config.session);
        opened.map(|model| model.places()).map_err(|error| error.to_string())
    };
    let told = opened(0.5, 3).unwrap_err();
    assert!(told.contains("policy.audit.share: 0.5") && told.contains("policy.engine.state_slots"), "{told}");
    assert_eq!(opened(0.0, 3), Ok(Some(1)));
    assert_eq!(opened(0.5, 4), Ok(Some(1)), "two places, and one of them is the audit's");
}

#[test]
fn what_does_not_fit_together_is_told_by_its_key() {
    let refused = |change: fn(&mut furrow_policy::PolicyFile)| {
        let config = config(change);
        let error = Model::open(config.model.as_ref().unwrap(), &config.session).err();
        error.map(|error| error.to_string()).unwrap_or_default()
    };
    let stop = refused(|file| file.template.stop = "<no such mark>".into());
    assert!(stop.contains("policy.checkpoint") && stop.contains("no such mark"), "{stop}");
    let short = refused(|file| file.constrain.enabled = true);
    assert!(short.contains("policy.constrain") && short.contains("max_tokens"), "{short}");
    let inexact = refused(|file| {
        file.sampling.max_tokens = 200;
        (file.constrain.enabled, file.constrain.exact_tokens) = (true, 20);
    });
    assert!(inexact.contains("policy.constrain.exact_tokens: 20; with this tokenizer"), "{inexact}");
}
