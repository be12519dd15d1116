//! Tables: a scorer, what was seen, what it makes of it.

use super::*;
use bytes::Bytes;
use serde_json::json;

const FACTS: Facts = Facts { end: End::Done, steps: 3, max_steps: 10 };

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
fn verdict(score: Value, evidence: &Evidence, end: End) -> Result<(f32, bool), String> {
    let got = scorer(score).score(evidence, &Facts { end, ..FACTS }).map_err(|error| error.to_string())?;
    assert_eq!(got.evidence_sha256, evidence.sha256());
    Ok((got.reward.unwrap(), got.success.unwrap()))
}

#[track_caller]
fn no_verdict(score: Value, evidence: &Evidence, end: End, why: &str) {
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
    for end in End::ALL {
        let got = scorer(json!({"kind": "probe"})).score(&right, &Facts { end, ..FACTS });
        assert_eq!(got.is_ok(), end.fault(true) == Fault::Policy, "{end:?}");
    }
    for score in [json!({"kind": "probe"}), json!({"kind": "answer", "match": "exact", "value": "x"})] {
        no_verdict(score, &Evidence::default(), End::MaxSteps, "the evidence is empty");
    }
}

#[test]
fn probes() {
    let correct = || json!({"kind": "probe", "pointer": "/correct"});
    let table = [
        (correct(), r#"{"done":true,"correct":true}"#, Ok((1.0, true))),
        (correct(), r#"{"done":true,"correct":false}"#, Ok((0.0, false))),
        (correct(), r#"{"done":true,"correct":0.25}"#, Ok((0.25, false))),
        (correct(), r#"{"done":true,"correct":-1}"#, Ok((-1.0, false))),
        (json!({"kind": "probe"}), r#"{"done":true,"correct":1}"#, Ok((1.0, true))),
        (correct(), r#"{"done":true,"correct":2}"#, Err("/correct is outside -1 to 1: 2")),
        (correct(), r#"{"done":true,"correct":"yes"}"#, Err("/correct is neither true, false nor a number")),
        (correct(), r#"{"done":true,"correct":null}"#, Err("is neither true, false nor a number: null")),
        (correct(), r#"{"done":true}"#, Err("it has nothing at /correct")),
        (correct(), r#"[true]"#, Err("it is no JSON object")),
        (correct(), r#"{"done":tru"#, Err("it is no JSON")),
        (correct(), "", Err("it is no JSON")),
        (correct(), r#"{"done":false,"correct":true}"#, Err("now the page says it is not")),
        (
            json!({"kind": "probe", "pointer": "/cart/0/id"}),
            r#"{"done":true,"cart":[{"id":1}]}"#,
            Ok((1.0, true)),
        ),
        (
            json!({"kind": "probe", "pointer": "/pick", "equals": "red"}),
            r#"{"done":true,"pick":"red"}"#,
            Ok((1.0, true)),
        ),
        (
            json!({"kind": "probe", "pointer": "/pick", "equals": "red"}),
            r#"{"done":true,"pick":"Red"}"#,
            Ok((0.0, false)),
        ),
        (
            json!({"kind": "probe", "pointer": "/n", "equals": [1, {"a": 2}]}),
            r#"{"done":true,"n":[1.0,{"a":2.0}]}"#,
            Ok((1.0, true)),
        ),
        (
            json!({"kind": "probe", "pointer": "/n", "equals": [1]}),
            r#"{"done":true,"n":[1,1]}"#,
            Ok((0.0, false)),
        ),
        (
            json!({"kind": "probe", "pointer": "/n", "equals": false}),
            r#"{"done":true,"n":0}"#,
            Ok((0.0, false)),
        ),
    ];
    for (score, probe, want) in table {
        match (verdict(score, &probed(probe), End::Done), want) {
            (Ok(got), Ok(want)) => assert_eq!(got, want, "{probe}"),
            (Err(got), Err(want)) => assert!(got.contains(want), "{probe}: {want:?} not in {got:?}"),
            (got, want) => panic!("{probe}: {got:?}, not {want:?}"),
        }
    }
}

#[test]
fn a_missing_probe_is_no_zero_and_a_page_left_behind_is() {
    let probe = || json!({"kind": "probe"});
    no_verdict(probe(), &at("http://starter.test/"), End::MaxSteps, "needs the page probe");
    let away = |scheme| probed(&json!({"done": false, "away": scheme}).to_string());
    assert_eq!(verdict(probe(), &away("http:"), End::MaxSteps), Ok((0.0, false)));
    assert_eq!(verdict(probe(), &away("about:"), End::MaxSteps), Ok((0.0, false)));
    no_verdict(probe(), &away("chrome-error:"), End::MaxSteps, "the browser shows an error page");
    let huge = format!("{{\"correct\":true,\"x\":\"{}\"}}", "x".repeat(70_000));
    no_verdict(probe(), &probed(&huge), End::MaxSteps, "more than 65536");
    let deep = format!("{{\"correct\":true,\"x\":{}{}}}", "[".repeat(9000), "]".repeat(9000));
    no_verdict(probe(), &probed(&deep), End::MaxSteps, "recursion limit");
}

#[test]
fn miniwob() {
    let row = |done: bool, raw: Value, scaled: Value| {
        json!({"done": done, "changed": false, "raw_reward": raw, "reward": scaled, "reason": null, "episode_id": 1})
            .to_string()
    };
    let table = [
        (row(true, json!(1), json!(0.93)), End::Done, Ok((1.0, true))),
        (row(true, json!(-1), json!(-1)), End::Done, Ok((-1.0, false))),
        (row(true, json!(0.5), json!(0.4)), End::Done, Ok((0.5, false))),
        (row(true, json!(1), json!(0.9)), End::MaxSteps, Ok((1.0, true))), // done by the very last step
        (row(false, json!(0), json!(0)), End::MaxSteps, Ok((0.0, false))),
        (row(false, json!(0), json!(0)), End::Done, Err("now the page says it is not")),
        (row(false, json!(1), json!(1)), End::MaxSteps, Err("not done and yet its raw reward is 1")),
        (row(true, json!(null), json!(1)), End::Done, Err("\"raw_reward\" is no number")),
        (row(true, json!(1), json!(7)), End::Done, Err("\"reward\" is no number from -1 to 1")),
        (
            r#"{"done":true,"changed":true,"raw_reward":1,"reward":1}"#.into(),
            End::Done,
            Err("began another task"),
        ),
        (
            r#"{"done":true,"raw_reward":1,"reward":1}"#.into(),
            End::Done,
            Err("\"changed\" is not true or false"),
        ),
        (r#"{"done":false,"away":"http:"}"#.into(), End::MaxSteps, Ok((0.0, false))),
        (r#"{"done":false,"away":"chrome-error:"}"#.into(), End::MaxSteps, Err("error page")),
    ];
    for (probe, end, want) in table {
        match (verdict(json!({"kind": "miniwob"}), &probed(&probe), end), want) {
            (Ok(got), Ok(want)) => assert_eq!(got, want, "{probe}"),
            (Err(got), Err(want)) => assert!(got.contains(want), "{probe}: {want:?} not in {got:?}"),
            (got, want) => panic!("{probe}: {got:?}, not {want:?}"),
        }
    }
}

#[test]
fn miniwob_keeps_both_rewards_and_the_pages_reason() {
    let timed_out =
        r#"{"done":true,"changed":false,"raw_reward":-1,"reward":-0.5,"reason":"timed out","episode_id":1}"#;
    let score = scorer(json!({"kind": "miniwob"})).score(&probed(timed_out), &FACTS).unwrap();
    let parts: Vec<_> = score.components.iter().map(|part| (part.name.as_str(), part.value)).collect();
    assert_eq!(parts, [("raw", -1.0), ("time_scaled", -0.5)]);
    assert!(score.rationale.ends_with(": timed out"), "{}", score.rationale);
    let running = r#"{"done":false,"changed":false,"raw_reward":0,"reward":0}"#;
    let facts = Facts { end: End::MaxSteps, steps: 20, max_steps: 20 };
    let score = scorer(json!({"kind": "miniwob"})).score(&probed(running), &facts).unwrap();
    assert_eq!(score.rationale, "the page was not done after 20 of 20 steps (max_steps)");
}

#[test]
fn a_sparse_miniwob_reward_is_1_only_when_the_page_is_solved() {
    for (done, raw, want) in [
        (true, 1.0, (1.0, true)),
        (true, 0.5, (0.0, false)),
        (true, -1.0, (0.0, false)),
        (false, 0.0, (0.0, false)),
    ] {
        let probe = json!({"done": done, "changed": false, "raw_reward": raw, "reward": raw}).to_string();
        let end = if done { End::Done } else { End::MaxSteps };
        let got = verdict(json!({"kind": "miniwob", "reward": "sparse"}), &probed(&probe), end);
        assert_eq!(got, Ok(want), "{probe}");
    }
}

#[test]
fn answers() {
    let table = [
        ("exact", json!("Paris"), "Paris", true),
        ("exact", json!("Paris"), "paris", false),
        ("exact", json!(["Paris", "paris"]), "paris", true),
        ("exact", json!("Paris"), "Paris ", false),
        ("normalized", json!("Paris"), "  “PARIS”.\n", true),
        ("normalized", json!("New York"), "new\u{a0}  york", true),
        ("normalized", json!("it's 5–6"), "It’s 5-6!", true),
        ("normalized", json!(".5"), "5", false),
        ("normalized", json!("Paris"), "Paris, France", false),
        ("normalized", json!(["yes", "no"]), "No.", true),
        ("must_include", json!(["red", "blue"]), "Blue, then red.", true),
        ("must_include", json!(["red", "blue"]), "Blue", false),
        ("must_include", json!("art"), "start", false),
        ("must_include", json!("10"), "it costs 100", false),
        ("must_include", json!("10"), "it costs 10.5", false),
        ("must_include", json!("10"), "it costs 10.", true),
        ("must_include", json!("10"), "it is -10", false),
        ("must_include", json!("10"), "from 5-10", true),
        ("must_include", json!("$5"), "US$5 and $5", true),
        ("must_include", json!("New York"), "in new   york city", true),
        ("must_not_include", json!(["sorry", "cannot"]), "The answer is 7", true),
        ("must_not_include", json!(["sorry", "cannot"]), "Sorry, no.", false),
        ("must_not_include", json!("art"), "start", true),
    ];
    for (kind, value, answer, want) in table {
        let score = json!({"kind": "answer", "match": kind, "value": value});
        let reward = if want { 1.0 } else { 0.0 };
        assert_eq!(
            verdict(score, &answered(answer), End::Answered),
            Ok((reward, want)),
            "{kind} {value} {answer:?}"
        );
    }
}

#[test]
fn numbers() {
    let table = [
        (json!({"value": 42}), "42", true),
        (json!({"value": 42}), "The answer is 42.", true),
        (json!({"value": 42}), "42 (yes, 42)", true),
        (json!({"value": 42}), "41 or 42", false),
        (json!({"value": 42}), "forty-two", false),
        (json!({"value": 42}), "43", false),
        (json!({"value": -3.5}), "−3.5", true),
        (json!({"value": -3.5}), "it is -3.5 degrees", true),
        (json!({"value": 3.5}), "-3.5", false),
        (json!({"value": -5}), "-$5", true),
        (json!({"value": 0.5}), ".5", true),
        (json!({"value": 1234567.5}), "1,234,567.50", true),
        (json!({"value": 3e8}), "3e8 m/s", true),
        (json!({"value": 4}), "gpt-4 says nothing", false),
        (json!({"value": 7}), "B2B: 7", true),
        (json!({"value": 7}), "in v1.2.3 it is 7", true),
        (json!({"value": 1, "tolerance": 0.1}), "1.1", true),
        (json!({"value": 1, "tolerance": 0.1}), "1.11", false),
        (json!({"value": 200, "relative_tolerance": 0.05}), "210", true),
        (json!({"value": 200, "relative_tolerance": 0.05}), "211", false),
        (json!({"value": 5, "unit": ["km", "kilometres"]}), "Route 66 goes 5km", true),
        (json!({"value": 5, "unit": ["km", "kilometres"]}), "5 Kilometres", true),
        (json!({"value": 5, "unit": "km"}), "5 miles", false),
        (json!({"value": 5, "unit": "km"}), "5 kmh", false),
        (json!({"value": 5, "unit": "km"}), "5", false),
        (json!({"value": 5, "unit": "$"}), "$5 in 2024", true),
        (json!({"value": 5, "unit": "usd"}), "USD 5", true),
        (json!({"value": 5, "unit": "%"}), "about 5%", true),
        (json!({"value": 5}), "1e999", false),
        (json!({"value": 5}), "", false),
    ];
    for (mut score, answer, want) in table {
        score["kind"] = json!("answer");
        score["match"] = json!("number");
        let reward = if want { 1.0 } else { 0.0 };
        let shown = score.to_string();
        assert_eq!(
            verdict(score, &answered(answer), End::Answered),
            Ok((reward, want)),
            "{shown} {answer:?}"
        );
    }
}

#[test]
fn no_answer_is_wrong_and_a_lost_one_is_no_verdict() {
    let score = || json!({"kind": "answer", "match": "exact", "value": "x"});
    assert_eq!(verdict(score(), &at("http://a.test/"), End::MaxSteps), Ok((0.0, false)));
    no_verdict(score(), &at("http://a.test/"), End::Answered, "needs the answer");
    assert_eq!(verdict(score(), &answered(&"x".repeat(100_000)), End::Answered), Ok((0.0, false)));
}

#[test]
fn a_page_may_hold_the_right_answer() {
    let score = |kind: &str| json!({"kind": "answer", "match": kind, "expected_pointer": "/expected"});
    let seen = |probe: &str, answer: &str| Evidence { answer: Some(answer.to_owned()), ..probed(probe) };
    let table = [
        ("normalized", r#"{"expected":"3A"}"#, "3a.", Ok((1.0, true))),
        ("normalized", r#"{"expected":["3A","4B"]}"#, "4b", Ok((1.0, true))),
        ("normalized", r#"{"expected":"3A"}"#, "4B", Ok((0.0, false))),
        ("must_include", r#"{"expected":["3A","4B"]}"#, "4b or 3a", Ok((1.0, true))),
        ("number", r#"{"expected":"7"}"#, "seven: 7", Ok((1.0, true))),
        ("number", r#"{"expected":7}"#, "8", Ok((0.0, false))),
        ("number", r#"{"expected":"many"}"#, "8", Err("what it expects is no number")),
        ("exact", r#"{"expected":7}"#, "7", Err("what it expects is no text")),
        ("exact", r#"{"expected":[]}"#, "7", Err("what it expects is no text")),
        ("normalized", r#"{"expected":"..."}"#, "7", Err("only spaces and punctuation")),
        ("exact", "{}", "7", Err("it has nothing at /expected")),
        ("exact", r#"{"done":false,"away":"http:"}"#, "7", Ok((0.0, false))),
    ];
    for (kind, probe, answer, want) in table {
        match (verdict(score(kind), &seen(probe, answer), End::Answered), want) {
            (Ok(got), Ok(want)) => assert_eq!(got, want, "{kind} {probe} {answer}"),
            (Err(got), Err(want)) => assert!(got.contains(want), "{probe}: {want:?} not in {got:?}"),
            (got, want) => panic!("{probe}: {got:?}, not {want:?}"),
        }
    }
    assert!(scorer(score("exact")).needs_probe());
    no_verdict(score("exact"), &answered("7"), End::Answered, "needs the page probe");
}

#[test]
fn urls() {
    let table = [
        (json!({"equals": "https://a.test/x?b=2&a=1"}), "https://a.test/x/?a=1&b=2#top", true),
        (json!({"equals": "https://a.test/x"}), "https://a.test:443/x", true),
        (json!({"equals": "https://a.test/x"}), "http://a.test/x", false),
        (json!({"equals": "https://a.test/x"}), "https://a.test/x?a=1", false),
        (json!({"equals": "https://a.test/#top"}), "https://a.test/", false),
        (json!({"equals": ["https://a.test/x", "https://a.test/y"]}), "https://A.TEST/y", true),
        (json!({"prefix": "https://a.test/cart"}), "https://a.test/cart/2?x=1", true),
        (json!({"prefix": "https://a.test/cart"}), "https://a.test/cartoons", false),
        (json!({"prefix": "https://a.test"}), "https://a.test.evil.test/", false),
        (json!({"prefix": "https://a.test/"}), "https://a.test/any", true),
        (json!({"prefix": "https://a.test/s?q=1"}), "https://a.test/s?page=2&q=1", true),
        (json!({"prefix": "https://a.test/s?q=1"}), "https://a.test/s?q=2", false),
        (json!({"host": "a.test"}), "http://a.test:8080/", true),
        (json!({"host": "*.a.test"}), "http://b.a.test/", true),
        (json!({"host": "*.a.test"}), "http://a.test/", false),
        (json!({"host": "*.a.test"}), "http://evila.test/", false),
        (json!({"path": "/done"}), "http://a.test/done/?x", true),
        (json!({"path": "/done"}), "http://a.test/done.html", false),
        (json!({"query": {"id": "7 8"}}), "http://a.test/?x=1&id=7+8", true),
        (json!({"query": {"id": "7"}}), "http://a.test/?id=70", false),
        (json!({"host": "a.test", "path": "/x"}), "http://a.test/y", false),
        (json!({"host": "a.test"}), "about:blank", false),
        (json!({"host": "a.test"}), "data:text/html,a.test", false),
    ];
    for (mut score, url, want) in table {
        score["kind"] = json!("url");
        let reward = if want { 1.0 } else { 0.0 };
        let shown = score.to_string();
        assert_eq!(verdict(score, &at(url), End::MaxSteps), Ok((reward, want)), "{shown} {url}");
    }
    let host = || json!({"kind": "url", "host": "a.test"});
    no_verdict(host(), &answered("x"), End::Answered, "needs the final address");
    no_verdict(host(), &at("nowhere"), End::MaxSteps, "cannot use the final address");
    no_verdict(host(), &at("chrome-error://chromewebdata/"), End::MaxSteps, "error page");
}

#[test]
fn combinations() {
    let probe = |pointer: &str| json!({"kind": "probe", "pointer": pointer});
    let evidence = probed(r#"{"done":true,"yes":true,"no":false,"half":0.5}"#);
    let parts = |kind: &str, pointers: &[&str]| json!({"kind": kind, "of": pointers.iter().map(|pointer| probe(pointer)).collect::<Vec<_>>()});
    let weighted = |weights: &[(f64, &str)]| {
        let part =
            |(weight, pointer): &(f64, &str)| json!({"weight": weight, "kind": "probe", "pointer": pointer});
        json!({"kind": "weighted", "of": weights.iter().map(part).collect::<Vec<_>>()})
    };
    let table = [
        (parts("all", &["/yes", "/yes"]), (1.0, true)),
        (parts("all", &["/yes", "/half"]), (0.5, false)),
        (parts("all", &["/yes", "/no", "/half"]), (0.0, false)),
        (parts("any", &["/no", "/half"]), (0.5, false)),
        (parts("any", &["/no", "/yes"]), (1.0, true)),
        (weighted(&[(3.0, "/yes"), (1.0, "/no")]), (0.75, false)),
        (weighted(&[(0.1, "/yes"), (0.2, "/yes"), (0.3, "/yes")]), (1.0, true)),
        (json!({"kind": "all", "of": [parts("any", &["/no", "/yes"]), probe("/yes")]}), (1.0, true)),
    ];
    for (score, want) in table {
        let shown = score.to_string();
        assert_eq!(verdict(score, &evidence, End::Done), Ok(want), "{shown}");
    }
}

#[test]
fn a_combination_names_its_parts_and_needs_every_verdict() {
    let evidence = probed(r#"{"done":true,"yes":true,"half":0.5}"#);
    let score = json!({"kind": "all", "of": [{"kind": "probe", "pointer": "/yes"}, {"kind": "probe", "pointer": "/half"}]});
    let got = scorer(score).score(&evidence, &FACTS).unwrap();
    let parts: Vec<_> = got.components.iter().map(|part| (part.name.as_str(), part.value)).collect();
    assert_eq!(parts, [("0.probe", 1.0), ("0.probe/yes", 1.0), ("1.probe", 0.5), ("1.probe/half", 0.5)]);
    assert_eq!(got.rationale, "0: /yes is true; 1: /half is 0.5");
    for kind in ["all", "any"] {
        let score = json!({"kind": kind, "of": [{"kind": "probe", "pointer": "/yes"}, {"kind": "judge"}]});
        assert!(scorer(score.clone()).needs_judge() && scorer(score.clone()).needs_probe());
        no_verdict(score, &evidence, End::Done, "no judge is available");
    }
}

#[test]
fn a_judge_is_known_and_comes_to_no_verdict() {
    let score = json!({"kind": "judge", "screenshots": 3, "reference": {"type": "possible", "answer": "x"}});
    no_verdict(score, &answered("x"), End::Answered, "no judge is available");
}

#[test]
fn bad_scorers_are_refused_at_the_door() {
    let deep =
        |depth| (0..depth).fold(json!({"kind": "miniwob"}), |inner, _| json!({"kind": "all", "of": [inner]}));
    assert!(Scorer::from_value(&deep(4)).is_ok());
    let table = [
        (json!("probe"), "score: \"probe\" is no object"),
        (json!({}), "score.kind: is missing; use one of probe, answer, url, miniwob"),
        (json!({"kind": "llm"}), "score.kind: \"llm\" is not known here; use one of probe"),
        (
            json!({"kind": "probe", "pointr": "/x"}),
            "score.pointr: unknown key; known here: kind, pointer, equals",
        ),
        (json!({"kind": "probe", "pointer": "x"}), "score.pointer: \"x\" is no JSON pointer"),
        (json!({"kind": "probe", "weight": 1}), "score.weight: unknown key"),
        (json!({"kind": "answer"}), "score.match: is missing; use one of exact"),
        (json!({"kind": "answer", "match": "fuzzy", "value": "x"}), "score.match: \"fuzzy\" is not known"),
        (json!({"kind": "answer", "match": "exact"}), "score.value: is missing"),
        (
            json!({"kind": "answer", "match": "exact", "value": "x", "expected_pointer": "/y"}),
            "give one of the two",
        ),
        (json!({"kind": "answer", "match": "exact", "expected_pointer": "y"}), "\"y\" is no JSON pointer"),
        (json!({"kind": "answer", "match": "exact", "value": []}), "score.value: [] has 0 entries"),
        (
            json!({"kind": "answer", "match": "exact", "value": "x", "tolerance": 1}),
            "score.tolerance: unknown key",
        ),
        (json!({"kind": "answer", "match": "normalized", "value": "..."}), "use match exact"),
        (
            json!({"kind": "answer", "match": "number", "value": "5"}),
            "score.value: \"5\" is out of range; use a number",
        ),
        (
            json!({"kind": "answer", "match": "number", "value": 5, "tolerance": -1}),
            "score.tolerance: -1 is out of range",
        ),
        (json!({"kind": "answer", "match": "number", "value": 5, "unit": " "}), "score.unit: is only spaces"),
        (json!({"kind": "url"}), "url needs a condition"),
        (json!({"kind": "url", "prefix": "/cart"}), "score.prefix: \"/cart\" is no address"),
        (json!({"kind": "url", "host": "A.test"}), "score.host: \"A.test\" is no host"),
        (json!({"kind": "url", "path": "x"}), "score.path: \"x\" is no path"),
        (json!({"kind": "url", "query": {"a": 1}}), "score.query: is no object of texts"),
        (json!({"kind": "all", "of": []}), "score.of: is no list of 1 to 32 scorers"),
        (json!({"kind": "all", "of": [{"kind": "x"}]}), "score.of[0].kind: \"x\""),
        (json!({"kind": "all", "of": [{"kind": "probe", "weight": 1}]}), "score.of[0].weight: unknown key"),
        (json!({"kind": "weighted", "of": [{"kind": "probe"}]}), "score.of[0].weight: every part needs one"),
        (
            json!({"kind": "weighted", "of": [{"kind": "probe", "weight": 0}]}),
            "score.of[0].weight: every part",
        ),
        (json!({"kind": "judge", "screenshots": 0}), "score.screenshots: 0 is out of range"),
        (json!({"kind": "judge", "reference": "x"}), "score.reference: \"x\" is no object"),
        (deep(5), "combinations lie more than 4 deep"),
    ];
    for (score, want) in table {
        let problems = Scorer::from_value(&score).expect_err(&score.to_string());
        assert!(problems.iter().any(|problem| problem.contains(want)), "{want:?} not in {problems:?}");
    }
}

#[test]
fn a_scorer_is_made_again_from_the_task_record() {
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
        /// Whatever a page or a policy says: no panic, and a reward that is there is finite and within its range.
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
                json!({"kind": "answer", "match": "must_include", "value": ["5", "€", "a"]}),
                json!({"kind": "url", "prefix": "http://a/", "host": "*.a", "query": {"a": "b"}}),
            ];
            for score in scores {
                if let Ok(got) = scorer(score).score(&evidence, &Facts { end: End::MaxSteps, ..FACTS }) {
                    prop_assert!(got.reward.is_some_and(|reward| (-1.0..=1.0).contains(&reward)));
                }
            }
        }
    }
}
