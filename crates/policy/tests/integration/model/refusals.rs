//! Invalid input is refused with a message at the call that receives it, and other sessions are not
//! affected.

use bytes::Bytes;
use furrow_policy::{ModelPolicy, Policy, PolicyError, PolicyOutput};
use furrow_rollout::{ContextPolicy, Trace};
use furrow_wire::PastStep;

use crate::model::fixture::*;

#[track_caller]
fn check<T>(got: Result<T, PolicyError>, want: &str) {
    let message = got.err().map_or_else(|| "no error".to_owned(), |error| error.to_string());
    assert!(message.contains(want), "\n got {message}\nwant {want}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn past_steps_of_another_session_are_refused() {
    let config = config(|_| {});
    let model = model(&config);
    let opening = opening(&config, 0, 0, ContextPolicy::Append);
    let acted = act_steps(&model, &opening, 2).await;
    let rebuild_with = async |change: fn(&mut PastStep)| {
        let opening = furrow_wire::SessionOpening { past_steps: 2, ..opening.clone() };
        let mut session = model.open(&opening).await.unwrap();
        let mut step = past(&opening, 0, &acted[0]);
        change(&mut step);
        session.rebuild_step(step).await
    };
    fn token_trace(past: &mut PastStep) -> &mut furrow_rollout::TokenTrace {
        past.trace.tokens.as_mut().unwrap()
    }
    check(rebuild_with(|_| {}).await, "no error");
    check(rebuild_with(|past| past.step = 1).await, "step 1 arrived, but the next step of the session is 0");
    check(
        rebuild_with(|past| past.trace = Trace { tokens: None, ..past.trace.clone() }).await,
        "has no tokens",
    );
    check(rebuild_with(|past| token_trace(past).prompt_token_ids[3] = 1_000_000).await, "token id 1000000");
    check(rebuild_with(|past| token_trace(past).prefix_len = 1).await, "prefix_len");
    check(rebuild_with(|past| token_trace(past).prompt_token_ids[3] ^= 1).await, "prompt_hash");
    check(
        rebuild_with(|past| token_trace(past).image_spans[0].token_start += 1).await,
        "delimiters around its image",
    );
    check(
        rebuild_with(|past| token_trace(past).image_spans[0].token_start = u32::MAX).await,
        "delimiters around its image",
    );
    check(
        rebuild_with(|past| token_trace(past).image_spans[0].token_len = u32::MAX).await,
        "not the one its trace",
    );
    check(rebuild_with(|past| token_trace(past).response_mask.clear()).await, "response_mask");
    check(rebuild_with(|past| token_trace(past).commit_token_ids = Some(vec![])).await, "commit_token_ids");
    check(
        rebuild_with(|past| past.screenshot.bytes = Bytes::from_static(b"?")).await,
        "screenshot cannot be read",
    );
    model.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_screenshot_ends_its_session_and_a_full_context_its_trajectory() {
    let config = config(|file| file.engine.context_tokens_max = 130);
    let model = model(&config);
    let opening = opening(&config, 0, 0, ContextPolicy::Append);
    let mut session = open(&model, &opening, &[]).await.unwrap();
    let mut step = 0;
    while let PolicyOutput::Reply(_) = act(&mut *session, &opening, step).await.unwrap() {
        step += 1;
    }
    assert!((1..4).contains(&step), "130 tokens held {step} steps");
    check(act(&mut *session, &opening, step + 1).await, "the next step of the session is");
    drop(session);
    assert_eq!(act_steps(&model, &opening, 1).await.len(), 1, "other sessions continue");
    model.stop().await.unwrap();
    check(model.open(&opening).await.map(drop), "model of this policy worker has failed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_more_than_fit_is_refused_until_one_is_dropped() {
    let config = config(|file| {
        file.engine.offload_bytes = 0;
        file.engine.state_slots = 3;
    });
    let model = model(&config);
    assert_eq!(model.sessions_max(), Some(1));
    let openings: Vec<_> =
        (0..2).map(|sample| opening(&config, 0, sample, ContextPolicy::LastImage)).collect();
    let first = open(&model, &openings[0], &[]).await.unwrap();
    check(open(&model, &openings[1], &[]).await.map(drop), "all 1 sessions are in use");
    drop(first);
    assert_eq!(act_steps(&model, &openings[1], 1).await.len(), 1);
    model.stop().await.unwrap();
}

#[test]
fn an_audit_without_a_free_session_is_refused() {
    let opened = |share: f64, state_slots: u32| {
        let config = config(|file| {
            (file.engine.offload_bytes, file.engine.state_slots) = (0, state_slots);
            file.audit.share = share;
        });
        let opened = ModelPolicy::open(config.model.as_ref().unwrap(), &config.session);
        opened.map(|model| model.sessions_max()).map_err(|error| error.to_string())
    };
    let error = opened(0.5, 3).unwrap_err();
    assert!(
        error.contains("policy.audit.share: 0.5") && error.contains("policy.engine.state_slots"),
        "{error}"
    );
    assert_eq!(opened(0.0, 3), Ok(Some(1)));
    assert_eq!(opened(0.5, 4), Ok(Some(1)), "two sessions, one of them for the audit");
}

#[test]
fn inconsistent_settings_are_reported_by_their_key() {
    let refused = |change: fn(&mut furrow_policy::PolicyFile)| {
        let config = config(change);
        let error = ModelPolicy::open(config.model.as_ref().unwrap(), &config.session).err();
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

/// A job's check finds each fault of a checkpoint without loading it.
#[test]
fn a_broken_checkpoint_is_found_without_loading_it() {
    let found = |break_it: fn(&std::path::Path)| {
        let copy = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(checkpoint()).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        break_it(copy.path());
        let config = config(|file| {
            file.checkpoint = copy.path().to_owned();
            file.constrain.enabled = true;
            file.sampling.max_tokens = 400;
        });
        ModelPolicy::check(config.model.as_ref().unwrap(), &config.session)
    };
    type Break = fn(&std::path::Path);
    let cases: [(&str, Break, &[&str]); 5] = [
        ("whole", |_| {}, &[]),
        ("tokenizer", |dir| std::fs::write(dir.join("tokenizer.json"), "{").unwrap(), &["tokenizer"]),
        ("config", |dir| std::fs::write(dir.join("config.json"), "{}").unwrap(), &["config.json"]),
        ("template", break_template, &["template"]),
        ("weights", truncate_weights, &["safetensors"]),
    ];
    for (name, break_it, parts) in cases {
        let problems = found(break_it);
        assert_eq!(problems.is_empty(), parts.is_empty(), "{name}: {problems:#?}");
        for part in parts {
            assert!(problems.iter().any(|problem| problem.contains(part)), "{name}: {problems:#?}");
        }
        assert!(problems.iter().all(|problem| problem.starts_with("policy.checkpoint")), "{problems:#?}");
    }
}

fn break_template(dir: &std::path::Path) {
    std::fs::write(dir.join("furrow_template.json"), "{").unwrap();
}

/// A download that broke off.
fn truncate_weights(dir: &std::path::Path) {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let is_weights = |path: &std::path::PathBuf| path.extension().is_some_and(|end| end == "safetensors");
    let path = entries.into_iter().find(is_weights).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(path.metadata().unwrap().len() / 2).unwrap();
}
