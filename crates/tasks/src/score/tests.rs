//! Tables of a scorer, the evidence, and the expected verdict.

use super::*;
use bytes::Bytes;
use furrow_rollout::ErrorPage;
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
        (correct(), r#"[true]"#, Err("it is not a JSON object")),
        (correct(), r#"{"done":tru"#, Err("it is not JSON")),
        (correct(), "", Err("it is not JSON")),
        (correct(), r#"{"done":false,"correct":true}"#, Err("now the page reports that it is not")),
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
        match (verdict(score, &probed(probe), EndKind::Done), want) {
            (Ok(got), Ok(want)) => assert_eq!(got, want, "{probe}"),
            (Err(got), Err(want)) => assert!(got.contains(want), "{probe}: {want:?} not in {got:?}"),
            (got, want) => panic!("{probe}: {got:?}, not {want:?}"),
        }
    }
}

#[test]
fn a_missing_probe_is_no_zero_and_a_page_left_behind_is() {
    let probe = || json!({"kind": "probe"});
    no_verdict(probe(), &at("http://starter.test/"), EndKind::MaxSteps, "needs the page probe");
    let away = |scheme| probed(&json!({"done": false, "away": scheme}).to_string());
    assert_eq!(verdict(probe(), &away("http:"), EndKind::MaxSteps), Ok((0.0, false)));
    assert_eq!(verdict(probe(), &away("about:"), EndKind::MaxSteps), Ok((0.0, false)));
    no_verdict(probe(), &away("chrome-error:"), EndKind::MaxSteps, "the browser shows an error page");
    let huge = format!("{{\"correct\":true,\"x\":\"{}\"}}", "x".repeat(70_000));
    no_verdict(probe(), &probed(&huge), EndKind::MaxSteps, "more than 65536");
    let deep = format!("{{\"correct\":true,\"x\":{}{}}}", "[".repeat(9000), "]".repeat(9000));
    no_verdict(probe(), &probed(&deep), EndKind::MaxSteps, "recursion limit");
}

/// Evidence of an error page.
fn error_page(fault: FaultOwner) -> Evidence {
    let url = "https://a.test/x".to_owned();
    Evidence { url: Some(url.clone()), ..probed(&ErrorPage { fault, url }.report()) }
}

#[test]
fn a_policy_cannot_choose_to_be_unscored_by_an_error_page() {
    let probe = || json!({"kind": "probe"});
    let expected = || json!({"kind": "answer", "match": "exact", "expected_pointer": "/expected"});
    let at_home = || json!({"kind": "url", "host": "a.test"});
    let not = |of: Value| json!({"kind": "not", "of": of});
    // The same verdict as leaving the page in any other way, such as to a missing page.
    let zero = [
        probe(),
        json!({"kind": "probe", "pointer": "/n", "equals": null}),
        expected(),
        at_home(),
        json!({"kind": "miniwob"}),
        json!({"kind": "miniwob", "reward": "sparse"}),
        json!({"kind": "click", "box": [0, 0, 9, 9]}),
        not(probe()),
        not(at_home()),
        not(not(probe())),
        not(json!({"kind": "all", "of": [not(expected()), at_home()]})),
        json!({"kind": "all", "of": [probe(), expected()]}),
        json!({"kind": "any", "of": [probe(), not(probe())]}),
        json!({"kind": "weighted", "of": [{"weight": 1, "kind": "probe"}, {"weight": 3, "kind": "url", "host": "a.test"}]}),
        json!({"kind": "step_penalty", "of": probe(), "per_step": 0.1}),
    ];
    for end in [
        EndKind::Answered,
        EndKind::MaxSteps,
        EndKind::ContextFull,
        EndKind::Unparsable,
        EndKind::OffListNavigation,
        EndKind::PageHang,
    ] {
        let answer = (end == EndKind::Answered).then(|| "x".to_owned());
        let left = Evidence { answer: answer.clone(), ..error_page(FaultOwner::Policy) };
        let broken = Evidence { answer, ..error_page(FaultOwner::Farm) };
        for score in &zero {
            assert_eq!(verdict(score.clone(), &left, end), Ok((0.0, false)), "{score} {end:?}");
            // Without an answer, a rule on answers decides before it reads the page.
            if end == EndKind::Answered || !score.to_string().contains("expected_pointer") {
                no_verdict(score.clone(), &broken, end, "caused by the farm, instead of https://a.test/x");
            }
        }
    }
    let why = |score: Value| {
        scorer(score).score(&error_page(FaultOwner::Policy), &EndFacts { end: EndKind::MaxSteps, ..FACTS })
    };
    let message = why(json!({"kind": "miniwob"})).unwrap();
    assert!(
        message.rationale.ends_with("the policy's own navigation failed: https://a.test/x"),
        "{}",
        message.rationale
    );
    assert_eq!(message.components.len(), 2, "both of its rewards are 0");
    // The answer is compared with the task's own line, whatever page the policy is on.
    let seven = json!({"kind": "answer", "match": "exact", "value": "7"});
    for fault in [FaultOwner::Policy, FaultOwner::Farm] {
        let answered_page = Evidence { answer: Some("7".to_owned()), ..error_page(fault) };
        assert_eq!(verdict(seven.clone(), &answered_page, EndKind::Answered), Ok((1.0, true)));
        assert_eq!(verdict(not(seven.clone()), &answered_page, EndKind::Answered), Ok((0.0, false)));
    }
}

#[test]
fn a_report_of_an_earlier_build_is_read_as_before() {
    let earlier_report = Evidence {
        url: Some("https://a.test/x".into()),
        ..probed(r#"{"done":false,"away":"chrome-error:"}"#)
    };
    for score in [
        json!({"kind": "probe"}),
        json!({"kind": "miniwob"}),
        json!({"kind": "not", "of": {"kind": "probe"}}),
    ] {
        no_verdict(
            score,
            &earlier_report,
            EndKind::MaxSteps,
            "the browser shows an error page instead of a page",
        );
    }
    assert_eq!(
        verdict(json!({"kind": "url", "host": "a.test"}), &earlier_report, EndKind::MaxSteps),
        Ok((1.0, true))
    );
    // Its hash does not depend on the cause of the error page.
    let hash: String = earlier_report.sha256().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hash, "025b0c360f12f9db186b5a9e59fb778eeeac95a2b22cf25b75c4f85e7ec92ddc");
}

#[test]
fn miniwob() {
    let row = |done: bool, raw: Value, scaled: Value| {
        json!({"done": done, "changed": false, "raw_reward": raw, "reward": scaled, "reason": null, "episode_id": 1})
            .to_string()
    };
    let table = [
        (row(true, json!(1), json!(0.93)), EndKind::Done, Ok((1.0, true))),
        (row(true, json!(-1), json!(-1)), EndKind::Done, Ok((-1.0, false))),
        (row(true, json!(0.5), json!(0.4)), EndKind::Done, Ok((0.5, false))),
        (row(true, json!(1), json!(0.9)), EndKind::MaxSteps, Ok((1.0, true))), // done by the last step
        (row(false, json!(0), json!(0)), EndKind::MaxSteps, Ok((0.0, false))),
        (row(false, json!(0), json!(0)), EndKind::Done, Err("now the page reports that it is not")),
        (row(false, json!(1), json!(1)), EndKind::MaxSteps, Err("not done and yet its raw reward is 1")),
        (row(true, json!(null), json!(1)), EndKind::Done, Err("\"raw_reward\" is not a number")),
        (row(true, json!(1), json!(7)), EndKind::Done, Err("\"reward\" is not a number from -1 to 1")),
        (
            r#"{"done":true,"changed":true,"raw_reward":1,"reward":1}"#.into(),
            EndKind::Done,
            Err("began another task"),
        ),
        (
            r#"{"done":true,"raw_reward":1,"reward":1}"#.into(),
            EndKind::Done,
            Err("\"changed\" is not true or false"),
        ),
        (r#"{"done":false,"away":"http:"}"#.into(), EndKind::MaxSteps, Ok((0.0, false))),
        (r#"{"done":false,"away":"chrome-error:"}"#.into(), EndKind::MaxSteps, Err("error page")),
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
    let facts = EndFacts { end: EndKind::MaxSteps, steps: 20, max_steps: 20 };
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
        let end = if done { EndKind::Done } else { EndKind::MaxSteps };
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
            verdict(score, &answered(answer), EndKind::Answered),
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
            verdict(score, &answered(answer), EndKind::Answered),
            Ok((reward, want)),
            "{shown} {answer:?}"
        );
    }
}

#[test]
fn no_answer_is_wrong_and_a_lost_one_is_no_verdict() {
    let score = || json!({"kind": "answer", "match": "exact", "value": "x"});
    assert_eq!(verdict(score(), &at("http://a.test/"), EndKind::MaxSteps), Ok((0.0, false)));
    no_verdict(score(), &at("http://a.test/"), EndKind::Answered, "needs the answer");
    assert_eq!(verdict(score(), &answered(&"x".repeat(100_000)), EndKind::Answered), Ok((0.0, false)));
}

#[test]
fn a_page_may_contain_the_right_answer() {
    let score = |kind: &str| json!({"kind": "answer", "match": kind, "expected_pointer": "/expected"});
    let probed_answer =
        |probe: &str, answer: &str| Evidence { answer: Some(answer.to_owned()), ..probed(probe) };
    let table = [
        ("normalized", r#"{"expected":"3A"}"#, "3a.", Ok((1.0, true))),
        ("normalized", r#"{"expected":["3A","4B"]}"#, "4b", Ok((1.0, true))),
        ("normalized", r#"{"expected":"3A"}"#, "4B", Ok((0.0, false))),
        ("must_include", r#"{"expected":["3A","4B"]}"#, "4b or 3a", Ok((1.0, true))),
        ("number", r#"{"expected":"7"}"#, "seven: 7", Ok((1.0, true))),
        ("number", r#"{"expected":7}"#, "8", Ok((0.0, false))),
        ("number", r#"{"expected":"many"}"#, "8", Err("the expected value is not a number")),
        ("exact", r#"{"expected":7}"#, "7", Err("the expected value is not a text")),
        ("exact", r#"{"expected":[]}"#, "7", Err("the expected value is not a text")),
        ("normalized", r#"{"expected":"..."}"#, "7", Err("only spaces and punctuation")),
        ("exact", "{}", "7", Err("it has nothing at /expected")),
        ("exact", r#"{"done":false,"away":"http:"}"#, "7", Ok((0.0, false))),
    ];
    for (kind, probe, answer, want) in table {
        match (verdict(score(kind), &probed_answer(probe, answer), EndKind::Answered), want) {
            (Ok(got), Ok(want)) => assert_eq!(got, want, "{kind} {probe} {answer}"),
            (Err(got), Err(want)) => assert!(got.contains(want), "{probe}: {want:?} not in {got:?}"),
            (got, want) => panic!("{probe}: {got:?}, not {want:?}"),
        }
    }
    assert!(scorer(score("exact")).needs_probe());
    no_verdict(score("exact"), &answered("7"), EndKind::Answered, "needs the page probe");
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
        assert_eq!(verdict(score, &at(url), EndKind::MaxSteps), Ok((reward, want)), "{shown} {url}");
    }
    let host = || json!({"kind": "url", "host": "a.test"});
    no_verdict(host(), &answered("x"), EndKind::Answered, "needs the final address");
    no_verdict(host(), &at("nowhere"), EndKind::MaxSteps, "cannot use the final address");
    no_verdict(host(), &at("chrome-error://chromewebdata/"), EndKind::MaxSteps, "error page");
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
        assert_eq!(verdict(score, &evidence, EndKind::Done), Ok(want), "{shown}");
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
        let evidence = Evidence { answer: Some("x".to_owned()), ..evidence.clone() };
        no_verdict(score, &evidence, EndKind::Answered, "no judge is available");
    }
}

#[test]
fn a_judge_is_known_and_comes_to_no_verdict() {
    let score = json!({"kind": "judge", "screenshots": 3, "reference": {"type": "possible", "answer": "x"}});
    no_verdict(score, &answered("x"), EndKind::Answered, "no judge is available");
}

/// Each scorer has a problem with this text.
#[track_caller]
fn refuse(table: &[(Value, &str)]) {
    for (score, want) in table {
        let problems = Scorer::from_value(score).expect_err(&score.to_string());
        assert!(problems.iter().any(|problem| problem.contains(want)), "{want:?} not in {problems:?}");
    }
}

#[test]
fn a_scorer_is_an_object_of_a_known_kind() {
    refuse(&[
        (json!("probe"), "score: \"probe\" is not an object"),
        (json!({}), "score.kind: is missing; use one of probe, answer, url, miniwob"),
        (json!({"kind": "llm"}), "score.kind: \"llm\" is not known here; use one of probe"),
    ]);
}

#[test]
fn bad_probes_are_refused() {
    refuse(&[
        (
            json!({"kind": "probe", "pointr": "/x"}),
            "score.pointr: unknown key; known here: kind, pointer, equals, match",
        ),
        (json!({"kind": "probe", "pointer": "x"}), "score.pointer: \"x\" is not a JSON pointer"),
        (json!({"kind": "probe", "weight": 1}), "score.weight: unknown key"),
        (
            json!({"kind": "probe", "equals": 1, "match": "exact", "value": "x"}),
            "score.equals: cannot be combined with `match`",
        ),
        (json!({"kind": "probe", "match": "exact"}), "score.value: is missing"),
        (json!({"kind": "probe", "value": "x"}), "score.value: unknown key"),
    ]);
}

#[test]
fn bad_answers_are_refused() {
    refuse(&[
        (json!({"kind": "answer"}), "score.match: is missing; use one of exact"),
        (json!({"kind": "answer", "match": "fuzzy", "value": "x"}), "score.match: \"fuzzy\" is not known"),
        (json!({"kind": "answer", "match": "exact"}), "score.value: is missing"),
        (
            json!({"kind": "answer", "match": "exact", "value": "x", "expected_pointer": "/y"}),
            "give one of the two",
        ),
        (json!({"kind": "answer", "match": "exact", "expected_pointer": "y"}), "\"y\" is not a JSON pointer"),
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
        (
            json!({"kind": "answer", "match": "date", "value": "2024-02-30"}),
            "score.value: \"2024-02-30\" is not a day",
        ),
        (json!({"kind": "answer", "match": "date", "value": "2/3/2024"}), "write it as 2024-02-29"),
        (
            json!({"kind": "answer", "match": "date", "value": "2024-02-03", "order": "dmy"}),
            "use one of month_first",
        ),
        (
            json!({"kind": "answer", "match": "date", "value": "2024-02-03", "year_optional": 1}),
            "score.year_optional: 1 is not a boolean; use true or false",
        ),
        (json!({"kind": "answer", "match": "set", "value": "a", "ordered": "yes"}), "is not a boolean"),
        (json!({"kind": "answer", "match": "set", "value": ["a", "."]}), "only spaces and punctuation"),
        (
            json!({"kind": "answer", "match": "must_include", "value": "a", "among": ["."]}),
            "score.among: contains a text",
        ),
        (
            json!({"kind": "answer", "match": "normalized", "value": "a", "among": ["b"]}),
            "score.among: unknown key",
        ),
    ]);
}

#[test]
fn bad_addresses_and_boxes_are_refused() {
    refuse(&[
        (json!({"kind": "url"}), "url needs a condition"),
        (json!({"kind": "url", "prefix": "/cart"}), "score.prefix: \"/cart\" is not an address"),
        (json!({"kind": "url", "host": "A.test"}), "score.host: \"A.test\" is not a host"),
        (json!({"kind": "url", "path": "x"}), "score.path: \"x\" is not a path"),
        (json!({"kind": "url", "query": {"a": 1}}), "score.query: is not an object of strings"),
        (json!({"kind": "click"}), "score.box: is missing"),
        (json!({"kind": "click", "box": [5, 0, 4, 9]}), "score.box: [5,0,4,9] is not a box"),
        (json!({"kind": "click", "box": [0, 0, 4]}), "score.box: [0,0,4] is not a box"),
        (json!({"kind": "click", "box": [0, 0, 4, "9"]}), "is not a box"),
    ]);
}

#[test]
fn bad_combinations_are_refused() {
    let deep =
        |depth| (0..depth).fold(json!({"kind": "miniwob"}), |inner, _| json!({"kind": "all", "of": [inner]}));
    let not =
        |depth| (0..depth).fold(json!({"kind": "miniwob"}), |inner, _| json!({"kind": "not", "of": inner}));
    assert!(Scorer::from_value(&deep(4)).is_ok() && Scorer::from_value(&not(4)).is_ok());
    assert!(Scorer::from_value(&not(5)).is_err());
    refuse(&[
        (json!({"kind": "all", "of": []}), "score.of: is not a list of 1 to 32 scorers"),
        (json!({"kind": "all", "of": [{"kind": "x"}]}), "score.of[0].kind: \"x\""),
        (json!({"kind": "all", "of": [{"kind": "probe", "weight": 1}]}), "score.of[0].weight: unknown key"),
        (json!({"kind": "weighted", "of": [{"kind": "probe"}]}), "score.of[0].weight: every part needs one"),
        (
            json!({"kind": "weighted", "of": [{"kind": "probe", "weight": 0}]}),
            "score.of[0].weight: every part",
        ),
        (json!({"kind": "not"}), "score.of: is missing"),
        (json!({"kind": "not", "of": {"kind": "x"}}), "score.of.kind: \"x\" is not known"),
        (json!({"kind": "step_penalty", "of": {"kind": "probe"}}), "score.per_step: is missing"),
        (json!({"kind": "step_penalty", "per_step": 0.1}), "score.of: is missing"),
        (
            json!({"kind": "step_penalty", "of": {"kind": "probe"}, "per_step": 2}),
            "score.per_step: 2 is out of range",
        ),
        (deep(5), "combinations are nested more than 4 deep"),
    ]);
}

#[test]
fn bad_judges_are_refused() {
    refuse(&[
        (json!({"kind": "judge", "screenshots": 0}), "score.screenshots: 0 is out of range"),
        (
            json!({"kind": "judge", "reference": "x"}),
            "score.reference: \"x\" is not a reference answer object",
        ),
        (
            json!({"kind": "judge", "reference": {"type": "true", "answer": "x"}}),
            "is not a reference answer object",
        ),
        (json!({"kind": "judge", "votes": 0}), "score.votes: 0 is out of range"),
    ]);
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

/// One row: the scorer's keys besides `kind` and `match`, the answer, whether it is correct.
#[track_caller]
fn answer_table(kind: &str, table: &[(Value, &str, bool)]) {
    for (keys, answer, want) in table {
        let mut score = keys.clone();
        score["kind"] = json!("answer");
        score["match"] = json!(kind);
        let reward = if *want { 1.0 } else { 0.0 };
        let got = verdict(score, &answered(answer), EndKind::Answered);
        assert_eq!(got, Ok((reward, *want)), "{kind} {keys} {answer:?}");
    }
}

#[test]
fn numbers_that_are_denied_bounded_or_disguised() {
    let five = || json!({"value": 5});
    let table = [
        (five(), "not 5", false),
        (five(), "It is not 5.", false),
        (five(), "It isn't 5", false),
        (five(), "It isn’t 5", false),
        (five(), "5 is wrong", false),
        (five(), "5 is not the answer", false),
        (five(), "It is not 4 but 5", true),
        (five(), "It is 5, not 4", true),
        (five(), "not only 5", true),
        (five(), "I could not find a cheaper one: 5", true),
        (five(), "No. 5", true),
        (five(), "5-10", false),
        (five(), "5 – 10", false),
        (five(), "5 to 10", false),
        (five(), "between 5 and 10", false),
        (five(), "5 or 6", false),
        (five(), "1, 2, 3, 4, 5", false),
        (five(), "1 2 3 4 5 6 7 8 9", false),
        (five(), "at least 5", false),
        (five(), "more than 5", false),
        (five(), "no more than 5", false),
        (five(), "> 5", false),
        (five(), "≥5", false),
        (five(), "over $5", false),
        (five(), "over there it is 5", true),
        (five(), "5²", false),
        (five(), "5½", false),
        (five(), "5\u{336}", false),
        (five(), "\u{ff15}", true),
        (five(), "5\u{200b}", true),
        (json!({"value": 10}), "1\u{200b}0", true),
        (five(), "\u{0665}", false),
        (five(), "0x5", false),
        (five(), "5/6", false),
        (five(), "five", false),
        (five(), "V", false),
        (json!({"value": 5, "unit": "km"}), "1 km, 2 km, 3 km, 4 km, 5 km", false),
        (json!({"value": 5, "unit": "km"}), "3.1 miles, that is 5 km", true),
        (json!({"value": 5, "unit": "km"}), "not 5 km", false),
        (json!({"value": 5, "tolerance": 1}), "4 to 6", false),
    ];
    answer_table("number", &table);
}

#[test]
fn values_that_are_denied_listed_or_disguised() {
    let paris = || json!({"value": "Paris"});
    let one_of = || json!({"value": "New York", "among": ["York", "New York", "London", "Rome"]});
    let table = [
        (paris(), "It is Paris.", true),
        (paris(), "It is not Paris.", false),
        (paris(), "It isn't in Paris", false),
        (paris(), "Paris is wrong", false),
        (paris(), "Paris isn't the answer; it is Rome", false),
        (paris(), "London rather than Paris", false),
        (paris(), "It is Paris rather than London", true),
        (paris(), "It is not Paris; well, it is Paris", true),
        (paris(), "neither Rome nor Paris", false),
        (paris(), "\u{420}aris", false),
        (paris(), "P\u{430}ris", false),
        (paris(), "Pa\u{ad}ris", true),
        (paris(), "Pa\u{202e}ris", true),
        (paris(), "ＰＡＲＩＳ", true),
        (paris(), "Parisian", false),
        (paris(), "paris\u{336}", false),
        (json!({"value": "Zürich"}), "Zu\u{308}rich", true),
        (json!({"value": "Zurich"}), "Zu\u{308}rich", false),
        (json!({"value": "no refund"}), "There is no refund", true),
        (json!({"value": "refund"}), "There is no refund", false),
        (one_of(), "It is New York", true),
        (one_of(), "London, Rome, York, New York", false),
        (one_of(), "New York or London", false),
        (one_of(), "New York, not London", true),
        (one_of(), "New York and York", false),
        (one_of(), "Rome", false),
    ];
    answer_table("must_include", &table);
    let never = || json!({"value": ["Paris"]});
    let table = [
        (never(), "It is not Paris", false),
        (never(), "Parisian", true),
        (never(), "Rome", true),
        (never(), "pa\u{200d}ris", false),
    ];
    answer_table("must_not_include", &table);
}

#[test]
fn days() {
    let leap = || json!({"value": "2024-02-29"});
    let march = |keys: Value| {
        let mut all = json!({"value": "2024-03-04"});
        all.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        all
    };
    let table = [
        (leap(), "2024-02-29", true),
        (leap(), "2024/2/29", true),
        (leap(), "2024-2-29.", true),
        (leap(), "February 29, 2024", true),
        (leap(), "february 29th 2024", true),
        (leap(), "Feb. 29, 2024", true),
        (leap(), "Thursday, 29 February 2024", true),
        (leap(), "the 29th of February, 2024", true),
        (leap(), "29.2.2024", true),
        (leap(), "2/29/2024", true),
        (leap(), "29/2/2024", true),
        (leap(), "2024-02-28", false),
        (leap(), "February 29, 2023", false),
        (leap(), "February 30, 2024", false),
        (leap(), "not February 29, 2024", false),
        (leap(), "February 28 or 29, 2024", false),
        (leap(), "February 27-29, 2024", false),
        (leap(), "27-29 February 2024", false),
        (leap(), "February 28, 2024 and February 29, 2024", false),
        (leap(), "It is 2024-02-29 (February 29th, 2024)", true),
        (leap(), "February 29", false),
        (leap(), "February 2024", false),
        (leap(), "2024", false),
        (leap(), "20240229", false),
        (leap(), "2024-02-29-01", true),
        (leap(), "", false),
        (json!({"value": "2024-02-29", "year_optional": true}), "on February 29", true),
        (json!({"value": "2024-02-29", "year_optional": true}), "on February 28", false),
        (json!({"value": "2024-02-29", "year_optional": true}), "on February 29, 2020", false),
        (json!({"value": "2024-02-28", "tolerance_days": 2}), "March 1, 2024", true),
        (json!({"value": "2024-02-28", "tolerance_days": 1}), "March 1, 2024", false),
        (march(json!({})), "3/4/2024", false),
        (march(json!({"order": "month_first"})), "3/4/2024", true),
        (march(json!({"order": "day_first"})), "3/4/2024", false),
        (march(json!({"order": "day_first"})), "4/3/2024", true),
        (march(json!({})), "May I say March 4, 2024?", true),
    ];
    answer_table("date", &table);
}

#[test]
fn lists() {
    let rgb = || json!({"value": ["red", "green", "blue"]});
    let ordered = || json!({"value": ["red", "green", "blue"], "ordered": true});
    let table = [
        (rgb(), "red, green, blue", true),
        (rgb(), "Blue, Green and Red.", true),
        (rgb(), "blue, green, and red", true),
        (rgb(), "1. Red\n2. Green\n3. Blue", true),
        (rgb(), "- red\n- green\n- blue", true),
        (rgb(), "The colours are: red; green; blue", true),
        (rgb(), r#"["blue", "red", "green"]"#, true),
        (rgb(), "red, red, green, blue", true),
        (rgb(), "red, green", false),
        (rgb(), "red, green, blue, black", false),
        (rgb(), "red, green, not blue", false),
        (rgb(), "red green blue", false),
        (rgb(), "r\u{435}d, green, blue", false),
        (rgb(), "", false),
        (ordered(), "red, green, blue", true),
        (ordered(), "blue, green, red", false),
        (ordered(), "red, green, blue, blue", false),
        (json!({"value": ["2.5 kg", "1 kg"]}), "1 kg, 2.5 kg", true),
    ];
    answer_table("set", &table);
}

#[test]
fn what_a_page_reports_compares_as_answers_do() {
    let evidence = probed(
        r#"{"done":true,"city":"lisbon","price":"$12.50","day":"March 4, 2024","tags":["b","a"],"n":7,"deep":{}}"#,
    );
    let table = [
        (json!({"pointer": "/city", "match": "normalized", "value": "Lisbon"}), Ok((1.0, true))),
        (json!({"pointer": "/city", "match": "exact", "value": "Lisbon"}), Ok((0.0, false))),
        (json!({"pointer": "/price", "match": "number", "value": 12.5, "unit": "$"}), Ok((1.0, true))),
        (json!({"pointer": "/n", "match": "number", "value": 8, "tolerance": 1}), Ok((1.0, true))),
        (json!({"pointer": "/day", "match": "date", "value": "2024-03-04"}), Ok((1.0, true))),
        (json!({"pointer": "/tags", "match": "set", "value": ["a", "b"]}), Ok((1.0, true))),
        (json!({"pointer": "/tags", "match": "set", "value": ["a", "b"], "ordered": true}), Ok((0.0, false))),
        (json!({"pointer": "/deep", "match": "exact", "value": "x"}), Err("is neither a text nor a number")),
        (json!({"pointer": "/gone", "match": "exact", "value": "x"}), Err("it has nothing at /gone")),
    ];
    for (mut score, want) in table {
        score["kind"] = json!("probe");
        let shown = score.to_string();
        match (verdict(score, &evidence, EndKind::Done), want) {
            (Ok(got), Ok(want)) => assert_eq!(got, want, "{shown}"),
            (Err(got), Err(want)) => assert!(got.contains(want), "{shown}: {want:?} not in {got:?}"),
            (got, want) => panic!("{shown}: {got:?}, not {want:?}"),
        }
    }
}

#[test]
fn clicks() {
    let click = || json!({"kind": "click", "box": [10, 20, 110.5, 60]});
    let at = |x: f64, y: f64| probed(&json!({"done": true, "click": {"x": x, "y": y}}).to_string());
    for (x, y, inside) in [
        (10.0, 20.0, true),
        (110.5, 60.0, true),
        (60.0, 40.0, true),
        (9.99, 40.0, false),
        (60.0, 60.01, false),
        (1e9, 40.0, false),
    ] {
        let reward = if inside { 1.0 } else { 0.0 };
        assert_eq!(verdict(click(), &at(x, y), EndKind::Done), Ok((reward, inside)), "{x} {y}");
    }
    assert_eq!(verdict(click(), &probed(r#"{"done":false}"#), EndKind::MaxSteps), Ok((0.0, false)));
    assert_eq!(
        verdict(click(), &probed(r#"{"done":false,"away":"http:"}"#), EndKind::MaxSteps),
        Ok((0.0, false))
    );
    no_verdict(
        click(),
        &probed(r#"{"done":true,"click":{"x":"5"}}"#),
        EndKind::Done,
        "does not report where",
    );
    assert!(scorer(click()).needs_probe());
}

#[test]
fn not_and_the_price_of_steps() {
    let evidence = probed(r#"{"done":true,"yes":true,"no":false,"half":0.5,"minus":-0.5}"#);
    let probe = |pointer: &str| json!({"kind": "probe", "pointer": pointer});
    let not = |pointer: &str| json!({"kind": "not", "of": probe(pointer)});
    let priced = |pointer: &str, per_step: f64, free: u64, floor: f64| json!({"kind": "step_penalty", "of": probe(pointer), "per_step": per_step, "free_steps": free, "floor": floor});
    // Every row ended after 3 steps.
    let table = [
        (not("/yes"), (0.0, false)),
        (not("/no"), (1.0, true)),
        (not("/half"), (1.0, true)),
        (json!({"kind": "all", "of": [probe("/yes"), not("/no")]}), (1.0, true)),
        (priced("/yes", 0.1, 0, 0.0), (0.7, true)),
        (priced("/yes", 0.1, 2, 0.0), (0.9, true)),
        (priced("/yes", 0.1, 9, 0.0), (1.0, true)),
        (priced("/yes", 0.5, 0, 0.0), (0.0, true)),
        (priced("/yes", 1.0, 0, -1.0), (-1.0, true)),
        (priced("/no", 0.1, 0, 0.0), (0.0, false)),
        (priced("/no", 0.1, 0, -1.0), (-0.3, false)),
        (priced("/minus", 0.1, 0, 0.0), (-0.5, false)),
    ];
    for (score, want) in table {
        let shown = score.to_string();
        assert_eq!(verdict(score, &evidence, EndKind::Done), Ok(want), "{shown}");
    }
    let got = scorer(priced("/yes", 0.125, 1, 0.0)).score(&evidence, &FACTS).unwrap();
    let parts: Vec<_> = got.components.iter().map(|part| (part.name.as_str(), part.value)).collect();
    assert_eq!(parts, [("probe", 1.0), ("step_penalty", -0.25), ("yes", 1.0)]);
}

mod judge_votes {
    use super::*;
    use crate::judge::{JudgeQuery, JudgeReply};
    use std::sync::Mutex;

    /// Replies with the given texts in order, and records the questions.
    struct CannedJudge {
        settings: JudgeSettings,
        replies: Mutex<std::vec::IntoIter<Result<JudgeReply, String>>>,
        questions: Mutex<Vec<JudgeQuery>>,
    }

    fn replying(text: &str) -> Result<JudgeReply, String> {
        Ok(JudgeReply {
            text: text.to_owned(),
            prompt_tokens: 100,
            completion_tokens: 10,
            cost_usd: Some(0.25),
            cut: false,
        })
    }

    fn canned(votes: u32, screenshots: u32, replies: Vec<Result<JudgeReply, String>>) -> CannedJudge {
        let habits = JudgeSettings { model: "m".to_owned(), screenshots, votes, show_reference: false };
        CannedJudge {
            settings: habits,
            replies: Mutex::new(replies.into_iter()),
            questions: Mutex::default(),
        }
    }

    impl Judge for CannedJudge {
        fn settings(&self) -> &JudgeSettings {
            &self.settings
        }

        fn ask(&self, question: &JudgeQuery) -> Result<JudgeReply, String> {
            self.questions.lock().unwrap().push(question.clone());
            self.replies.lock().unwrap().next().expect("no more questions than prepared replies")
        }
    }

    fn evidence_with_answer() -> Evidence {
        Evidence { screenshot: Some(Bytes::from_static(b"last")), ..answered("7") }
    }

    fn judge(
        judge: &CannedJudge,
        score: Value,
        evidence: &Evidence,
        end: EndKind,
    ) -> Result<Score, ScoreError> {
        let earlier = [b"one", b"two", b"thr"].map(|bytes| Bytes::from_static(bytes));
        let facts = EndFacts { end, ..FACTS };
        scorer(score).score_with(
            &FinishedTrajectory { evidence, facts: &facts, goal: "Count.", earlier: &earlier },
            Some(judge),
        )
    }

    #[test]
    fn more_than_half_of_all_votes_decide() {
        let yes = || replying("SUCCESS");
        let no = || replying("NOT SUCCESS");
        let mute = || replying("hm");
        let broken = || Err("it is unreachable".to_owned());
        let cut = || Ok(JudgeReply { text: "SUCCESS".to_owned(), cut: true, ..JudgeReply::default() });
        let cut_no = || Ok(JudgeReply { text: "NOT SUCCESS".to_owned(), cut: true, ..JudgeReply::default() });
        let table = [
            (1, vec![yes()], Ok(true), 1),
            (1, vec![no()], Ok(false), 1),
            (1, vec![mute()], Err("are inconclusive: 0 yes, 0 no, 1 without a verdict, of 1"), 1),
            (1, vec![broken()], Err("it is unreachable"), 1),
            (1, vec![cut()], Err("are inconclusive"), 1),
            (1, vec![cut_no()], Ok(false), 1),
            (3, vec![yes(), yes()], Ok(true), 2),
            (3, vec![no(), yes(), no()], Ok(false), 3),
            (3, vec![yes(), no(), mute()], Err("1 yes, 1 no, 1 without a verdict, of 3"), 3),
            (3, vec![yes(), mute(), yes()], Ok(true), 3),
            (3, vec![yes(), broken()], Err("it is unreachable"), 2),
            (2, vec![yes(), no()], Err("are inconclusive"), 2),
            (5, vec![no(), no(), no()], Ok(false), 3),
        ];
        for (votes, replies, want, question_count) in table {
            let canned = canned(votes, 1, replies);
            let got = judge(&canned, json!({"kind": "judge"}), &evidence_with_answer(), EndKind::Answered);
            let got = got.map(|score| (score.reward, score.success)).map_err(|error| error.to_string());
            match want {
                Ok(yes) => assert_eq!(got, Ok((Some(if yes { 1.0 } else { 0.0 }), Some(yes))), "{votes}"),
                Err(why) => assert!(got.as_ref().unwrap_err().contains(why), "{got:?}"),
            }
            let questions = canned.questions.lock().unwrap();
            let seeds: Vec<_> = questions.iter().map(|question| question.vote).collect();
            assert_eq!(seeds, (0..question_count).collect::<Vec<_>>(), "{votes}");
        }
    }

    #[test]
    fn it_gets_the_last_pictures_and_an_answers_own_step_once() {
        let table = [
            (1, EndKind::Answered, "last"),
            (2, EndKind::Answered, "two last"),
            (9, EndKind::Answered, "one two last"),
            (2, EndKind::Done, "thr last"),
            (9, EndKind::Done, "one two thr last"),
        ];
        for (count, end, want) in table {
            let canned = canned(1, count, vec![replying("SUCCESS")]);
            judge(&canned, json!({"kind": "judge"}), &evidence_with_answer(), end).unwrap();
            let questions = canned.questions.lock().unwrap();
            let pictures: Vec<_> =
                questions[0].pictures.iter().map(|bytes| String::from_utf8_lossy(bytes)).collect();
            assert_eq!(pictures.join(" "), want, "{count} {end:?}");
        }
        let habits = canned(1, 4, Vec::new()).settings;
        for (score, want) in [
            (json!({"kind": "judge"}), 4),
            (json!({"kind": "judge", "screenshots": 1}), 0),
            (
                json!({"kind": "all", "of": [{"kind": "judge", "screenshots": 2}, {"kind": "not", "of": {"kind": "judge"}}]}),
                4,
            ),
            (json!({"kind": "probe"}), 0),
        ] {
            assert_eq!(scorer(score).screenshots(&habits), want);
        }
    }

    #[test]
    fn no_answer_is_a_no_without_a_question_and_a_lost_one_no_verdict() {
        let canned = canned(1, 1, Vec::new());
        let score = json!({"kind": "judge"});
        let unanswered = Evidence { answer: None, ..evidence_with_answer() };
        let got = judge(&canned, score.clone(), &unanswered, EndKind::MaxSteps).unwrap();
        assert_eq!((got.reward, got.success), (Some(0.0), Some(false)));
        assert!(judge(&canned, score.clone(), &unanswered, EndKind::Answered).is_err());
        let unseen = Evidence { screenshot: None, ..evidence_with_answer() };
        let error = judge(&canned, score, &unseen, EndKind::Answered).unwrap_err().to_string();
        assert!(error.contains("the last screenshot"), "{error}");
    }

    #[test]
    fn usage_is_counted_and_the_reference_is_sent_only_on_request() {
        let with_reference =
            json!({"kind": "judge", "votes": 3, "reference": {"type": "golden", "answer": "7"}});
        let mut canned = canned(
            1,
            1,
            vec![replying("NOT SUCCESS"), replying("It is 7: SUCCESS"), replying("SUCCESS\u{7}!")],
        );
        let got = judge(&canned, with_reference.clone(), &evidence_with_answer(), EndKind::Answered).unwrap();
        let parts: Vec<_> = got.components.iter().map(|part| (part.name.as_str(), part.value)).collect();
        let want = [
            ("judge_yes", 2.0),
            ("judge_no", 1.0),
            ("judge_prompt_tokens", 300.0),
            ("judge_completion_tokens", 30.0),
            ("judge_cost_usd", 0.75),
        ];
        assert_eq!(parts, want);
        assert_eq!(judge_cost_usd(&got), Some(0.75));
        assert_eq!(
            got.rationale,
            "m on the last 1 screenshots: 2 yes, 1 no, 0 without a verdict, of 3: SUCCESS !"
        );
        assert!(!canned.questions.lock().unwrap()[0].text.contains("right answer"));
        canned.settings.show_reference = true;
        canned.replies = Mutex::new(vec![replying("SUCCESS"), replying("SUCCESS")].into_iter());
        let all = json!({"kind": "all", "of": [with_reference, {"kind": "answer", "match": "exact", "value": "7"}]});
        let got = judge(&canned, all, &evidence_with_answer(), EndKind::Answered).unwrap();
        assert_eq!(judge_cost_usd(&got), Some(0.5));
        assert!(canned.questions.lock().unwrap()[3].text.ends_with("The right answer: \"7\""));
        let free = scorer(json!({"kind": "answer", "match": "exact", "value": "7"}))
            .score(&evidence_with_answer(), &FACTS)
            .unwrap();
        assert_eq!(judge_cost_usd(&free), None);
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
