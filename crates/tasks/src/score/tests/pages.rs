//! Scores of what a page reports: probes, MiniWoB's reward, addresses, clicks, error pages.

use super::*;

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
    assert_eq!(message.components.len(), 3, "both of its rewards are 0, on the page's own word");
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
        verdict(json!({"kind": "url", "host": "a.test"}), &earlier_report, EndKind::Done),
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
        (row(true, json!(1), json!(0.9)), EndKind::MaxSteps, Ok((0.0, false))), // done after the last step
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
    assert_eq!(parts, [("raw", -1.0), ("time_scaled", -0.5), ("self_reported", 1.0)]);
    assert!(score.rationale.ends_with(": timed out"), "{}", score.rationale);
    let running = r#"{"done":false,"changed":false,"raw_reward":0,"reward":0}"#;
    let facts = EndFacts { end: EndKind::MaxSteps, steps: 20, max_steps: 20 };
    let score = scorer(json!({"kind": "miniwob"})).score(&probed(running), &facts).unwrap();
    assert!(score.rationale.ends_with("the page was not done after 20 of 20 steps (max_steps)"));
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
        assert_eq!(verdict(score, &at(url), EndKind::Answered), Ok((reward, want)), "{shown} {url}");
    }
    let host = || json!({"kind": "url", "host": "a.test"});
    no_verdict(host(), &answered("x"), EndKind::Answered, "needs the final address");
    no_verdict(host(), &at("nowhere"), EndKind::MaxSteps, "cannot use the final address");
    no_verdict(host(), &at("chrome-error://chromewebdata/"), EndKind::MaxSteps, "error page");
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
