//! Tables of a scorer, the evidence, and the expected verdict.

mod answers;
mod combinations;
mod ends;
mod findings;
mod judge_votes;
mod pages;
mod refusals;

use super::*;
use bytes::Bytes;
use furrow_rollout::{EndKind, ErrorPage};
use serde_json::json;

const FACTS: EndFacts = EndFacts { end: EndKind::Done, steps: 3, max_steps: 10 };

#[expect(clippy::needless_pass_by_value, reason = "tables build their values in place")]
fn scorer(score: Value) -> Scorer {
    Scorer::from_value(&score).unwrap_or_else(|problems| panic!("{score}: {problems:?}"))
}

fn probed(probe: &str) -> Evidence {
    Evidence { probe_json: Some(probe.to_owned()), ..Evidence::default() }
}

fn answered(answer: &str) -> Evidence {
    Evidence { answer: Some(answer.to_owned()), ..Evidence::default() }
}

fn at(url: &str) -> Evidence {
    Evidence { url: Some(url.to_owned()), ..Evidence::default() }
}

/// The verdict as (reward, success), or the error's text.
fn verdict(score: Value, evidence: &Evidence, end: EndKind) -> Result<(f32, bool), String> {
    let got = scorer(score).score(evidence, &EndFacts { end, ..FACTS }).map_err(|error| error.to_string())?;
    assert_eq!(got.evidence_sha256, evidence.sha256());
    Ok((got.reward.unwrap(), got.success.unwrap()))
}

#[track_caller]
fn no_verdict(score: Value, evidence: &Evidence, end: EndKind, why: &str) {
    let error = verdict(score, evidence, end).unwrap_err();
    assert!(error.contains(why), "{why:?} not in {error:?}");
}

#[test]
fn a_score_is_signed_with_the_evidence_the_scorer_received() {
    let mut evidence = probed(r#"{"done":true,"correct":true}"#);
    evidence.screenshot = Some(Bytes::from_static(b"png"));
    let score = scorer(json!({"kind": "probe"})).score(&evidence, &FACTS).unwrap();
    assert_eq!((score.reward, score.success), (Some(1.0), Some(true)));
    assert_eq!((score.scorer.as_str(), score.version), ("probe", VERSION));
    assert_eq!(score.evidence_sha256, evidence.sha256());
    evidence.screenshot = Some(Bytes::from_static(b"gif"));
    assert_ne!(score.evidence_sha256, evidence.sha256());
}

#[test]
fn the_farms_ends_and_empty_evidence_are_never_scored() {
    let right = probed(r#"{"done":true,"correct":true}"#);
    for end in EndKind::ALL {
        let got = scorer(json!({"kind": "probe"})).score(&right, &EndFacts { end, ..FACTS });
        assert_eq!(got.is_ok(), end.fault(true) == FaultOwner::Policy, "{end:?}");
    }
    for score in [json!({"kind": "probe"}), json!({"kind": "answer", "match": "exact", "value": "x"})] {
        no_verdict(score, &Evidence::default(), EndKind::MaxSteps, "the evidence is empty");
    }
}

#[test]
fn a_judge_is_known_and_comes_to_no_verdict() {
    let score = json!({"kind": "judge", "screenshots": 3, "reference": {"type": "possible", "answer": "x"}});
    no_verdict(score, &answered("x"), EndKind::Answered, "no judge is available");
}

#[test]
fn a_scorer_is_rebuilt_from_the_task_record() {
    let json = r#"{"task_id":"a","score":{"kind":"probe"},"mine":{"kept":1}}"#;
    assert_eq!(Scorer::of_task_json(json), Ok(scorer(json!({"kind": "probe"}))));
    for (json, why) in
        [("{", "EOF"), ("{}", "score: is missing"), (r#"{"score":{"kind":"x"}}"#, "score.kind")]
    {
        let error = Scorer::of_task_json(json).unwrap_err().to_string();
        assert!(error.contains(why), "{why:?} not in {error:?}");
    }
}

mod anything {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// For any text of a page or a policy: no panic, and a reward, if there is one, is finite
        /// and within its range.
        #[test]
        fn hostile_evidence_gets_a_sane_verdict_or_none(
            probe in "\\PC{0,60}|\\{\"done\":(true|false),\"correct\":(true|-?[0-9]{1,3}e[0-9]{1,3}|[0-9.]{1,4})\\}",
            answer in "[-$.,0-9e +a-z€\\PC]{0,30}",
            url in "(https?:)?//[a-z.]{0,8}(:[0-9]{1,6})?/[a-z?=&#%]{0,12}|\\PC{0,20}",
        ) {
            let evidence = Evidence {
                probe_json: Some(probe), answer: Some(answer), url: Some(url), ..Evidence::default()
            };
            let scores = [
                json!({"kind": "probe"}),
                json!({"kind": "miniwob"}),
                json!({"kind": "answer", "match": "number", "value": 5, "unit": ["km", "€"]}),
                json!({"kind": "answer", "match": "must_include", "value": ["5", "€", "a"], "among": ["b", "6"]}),
                json!({"kind": "answer", "match": "date", "value": "2024-02-29", "year_optional": true}),
                json!({"kind": "answer", "match": "set", "value": ["5", "a"]}),
                json!({"kind": "click", "box": [0, 0, 1, 1]}),
                json!({"kind": "step_penalty", "of": {"kind": "not", "of": {"kind": "probe"}}, "per_step": 1, "floor": -1}),
                json!({"kind": "url", "prefix": "http://a/", "host": "*.a", "query": {"a": "b"}}),
            ];
            for score in scores {
                if let Ok(got) = scorer(score).score(&evidence, &EndFacts { end: EndKind::MaxSteps, ..FACTS }) {
                    prop_assert!(got.reward.is_some_and(|reward| (-1.0..=1.0).contains(&reward)));
                }
            }
        }
    }
}
