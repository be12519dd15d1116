//! The ends that pay.

use super::*;
use crate::fields::JsonFields;

/// The scorer of a task's line, or its problems.
fn of_line(line: Value) -> Result<Scorer, Vec<String>> {
    let Value::Object(map) = line else { panic!("{line} is no line") };
    let mut problems = Vec::new();
    let scorer = Scorer::read(&mut JsonFields::new(&map, "", &mut problems), "score");
    if problems.is_empty() { Ok(scorer.unwrap()) } else { Err(problems) }
}

fn reward(line: Value, evidence: &Evidence, end: EndKind) -> (f32, Vec<String>) {
    let score = of_line(line).unwrap().score(evidence, &EndFacts { end, ..FACTS }).unwrap();
    assert_eq!(score.success, Some(score.reward == Some(1.0)));
    (score.reward.unwrap(), score.components.into_iter().map(|part| part.name).collect())
}

fn own_ends() -> impl Iterator<Item = EndKind> {
    EndKind::ALL.into_iter().filter(|end| end.fault(true) == FaultOwner::Policy)
}

#[test]
fn a_goal_reached_pays_only_at_the_ends_that_the_task_names() {
    let right = Evidence { url: Some("http://a.test/".into()), ..probed(r#"{"done":true,"correct":true}"#) };
    let scores = [
        json!({"kind": "probe"}),
        json!({"kind": "url", "host": "a.test"}),
        json!({"kind": "not", "of": {"kind": "url", "host": "b.test"}}),
        json!({"kind": "any", "of": [{"kind": "probe"}, {"kind": "url", "host": "a.test"}]}),
        json!({"kind": "weighted", "of": [{"weight": 1, "kind": "probe"}, {"weight": 1, "kind": "url", "host": "a.test"}]}),
        json!({"kind": "step_penalty", "of": {"kind": "probe"}, "per_step": 0}),
    ];
    for (score, end) in scores.iter().flat_map(|score| own_ends().map(move |end| (score, end))) {
        let pays = matches!(end, EndKind::Answered | EndKind::Done);
        let (got, parts) = reward(json!({ "score": score }), &right, end);
        assert_eq!(got, if pays { 1.0 } else { 0.0 }, "{score} {end:?}");
        assert_eq!(parts.iter().any(|part| part == "unpaid_end"), !pays, "{score} {end:?}");
        let named = json!({ "score": score, "ends": ["max_steps", "unparsable"] });
        let pays = matches!(end, EndKind::MaxSteps | EndKind::Unparsable);
        assert_eq!(reward(named, &right, end).0, if pays { 1.0 } else { 0.0 }, "{score} {end:?}");
    }
}

#[test]
fn a_loss_stays_a_loss_at_any_end() {
    let lost = probed(r#"{"done":true,"changed":false,"raw_reward":-1,"reward":-1}"#);
    for end in own_ends() {
        assert_eq!(reward(json!({ "score": {"kind": "miniwob"} }), &lost, end).0, -1.0, "{end:?}");
    }
}

#[test]
fn no_judge_votes_on_what_does_not_pay() {
    let judged = json!({ "score": {"kind": "judge"} });
    assert_eq!(reward(judged, &at("http://a.test/"), EndKind::MaxSteps), (0.0, vec!["unpaid_end".into()]));
}

#[test]
fn ends_that_no_policy_can_reach_are_refused() {
    let line = |ends: Value| json!({ "score": {"kind": "probe"}, "ends": ends });
    for (ends, why) in [
        (
            json!(["answered", "env_crash"]),
            "ends: \"env_crash\" is no end of a policy's; use some of answered, done, ",
        ),
        (json!(["Answered"]), "ends: \"Answered\" is no end of a policy's"),
        (json!([]), "ends: [] has 0 entries; use 1 to"),
        (json!([1]), "ends: [1] is not a list of strings"),
    ] {
        let problems = of_line(line(ends)).unwrap_err();
        assert!(problems[0].starts_with(why), "{problems:?}");
    }
    assert_eq!(
        of_line(line(json!("done"))),
        of_line(line(json!(["done"]))),
        "a single name is a list of one"
    );
}

#[test]
fn the_ends_are_read_back_from_the_task_record() {
    let right = probed(r#"{"correct":true}"#);
    let scorer = Scorer::of_task_json(r#"{"score":{"kind":"probe"},"ends":["max_steps"]}"#).unwrap();
    let reward = |end| scorer.score(&right, &EndFacts { end, ..FACTS }).unwrap().reward;
    assert_eq!((reward(EndKind::MaxSteps), reward(EndKind::Answered)), (Some(1.0), Some(0.0)));
}

#[test]
fn what_the_farm_had_graded_is_not_self_reported() {
    let graded = probed(r#"{"correct":true,"furrow_graded":true}"#);
    let parts =
        |evidence: &Evidence| reward(json!({ "score": {"kind": "probe"} }), evidence, EndKind::Answered).1;
    assert!(!parts(&graded).contains(&"self_reported".to_owned()));
    assert!(parts(&probed(r#"{"correct":true}"#)).contains(&"self_reported".to_owned()));
}
