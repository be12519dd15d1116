//! Scores of what was looked up at the end: in the page, in a back end, by a hook.

use super::*;
use furrow_rollout::{Finding, FindingFailure, FindingFailureKind};

/// Evidence in which every query of a scorer found this.
fn found(score: &Value, found: &Value) -> Evidence {
    looked_up(score, &Ok(found.clone()))
}

fn failed(score: &Value, kind: FindingFailureKind) -> Evidence {
    looked_up(score, &Err(FindingFailure::new(kind, "the cause")))
}

fn looked_up(score: &Value, result: &Result<Value, FindingFailure>) -> Evidence {
    let queries = scorer(score.clone()).queries();
    let finding = |query| Finding { query, result: result.clone() };
    let findings: Vec<Finding> = queries.into_iter().map(finding).collect();
    Evidence {
        url: Some("http://a.test/".into()),
        findings_json: Some(Finding::list_to_json(&findings)),
        ..Evidence::default()
    }
}

fn text(condition: Value) -> Value {
    with(json!({"kind": "text", "selector": "#total"}), condition)
}

/// Adds the keys of a condition.
#[expect(clippy::needless_pass_by_value, reason = "tables build their values in place")]
fn with(mut score: Value, condition: Value) -> Value {
    score.as_object_mut().unwrap().extend(condition.as_object().unwrap().clone());
    score
}

#[test]
fn what_was_found_is_compared() {
    let script = |condition| with(json!({"kind": "script", "expression": "1"}), condition);
    let storage = |condition| with(json!({"kind": "storage", "area": "local", "key": "theme"}), condition);
    let cookie = json!({"kind": "cookie", "name": "c", "match": "exact", "value": "no"});
    let table = [
        (text(json!({"match": "number", "value": 12.5, "unit": "$"})), json!("$12.50"), 1.0),
        (text(json!({"match": "exact", "value": "12"})), json!("12 "), 0.0),
        (text(json!({"match": "normalized", "value": "thank you"})), json!(" Thank\n you. "), 1.0),
        (text(json!({"match": "contains", "value": "order 7"})), json!("your order\n 7 is sent"), 1.0),
        (text(json!({"match": "contains", "value": ["order", "8"]})), json!("your order 7"), 0.0),
        (text(json!({"match": "contains", "value": "Order"})), json!("your order 7"), 0.0),
        (text(json!({"match": "regex", "value": "^order \\d+$"})), json!("order 17"), 1.0),
        (text(json!({"match": "regex", "value": "^order \\d+$"})), json!("an order 17"), 0.0),
        (text(json!({"present": true})), json!(""), 1.0),
        (text(json!({"present": true})), Value::Null, 0.0),
        (text(json!({"present": false})), Value::Null, 1.0),
        // An element that is not there matches nothing, not even an excluded text.
        (text(json!({"match": "must_not_include", "value": "error"})), Value::Null, 0.0),
        (storage(json!({"match": "exact", "value": "dark"})), json!("dark"), 1.0),
        (storage(json!({"equals": "dark"})), json!("light"), 0.0),
        (cookie.clone(), json!("no"), 1.0),
        (cookie, Value::Null, 0.0),
        (script(json!({})), json!(true), 1.0),
        (script(json!({})), json!(1), 0.0),
        (script(json!({})), json!("true"), 0.0),
        (script(json!({"equals": {"a": [1, null]}})), json!({"a": [1.0, null]}), 1.0),
        (script(json!({"equals": false})), json!(false), 1.0),
        (script(json!({"match": "set", "value": ["b", "a"]})), json!(["a", "b"]), 1.0),
        (script(json!({"match": "exact", "value": "a"})), json!({"a": 1}), 0.0),
    ];
    for (score, value, want) in table {
        let evidence = found(&score, &value);
        let got = scorer(score.clone()).score(&evidence, &FACTS).unwrap();
        assert_eq!(got.reward, Some(want), "{score} {value}: {}", got.rationale);
        let marks: Vec<_> = got.components.iter().map(|part| part.name.as_str()).collect();
        assert_eq!(marks, ["self_reported"], "{score}");
    }
}

#[test]
fn back_ends_are_not_self_reported() {
    let http = |condition| with(json!({"kind": "http", "url": "http://api.test/cart"}), condition);
    let command = || json!({"kind": "command", "hook": "paid"});
    let state = || http(json!({"pointer": "/state", "equals": "sent"}));
    let table = [
        (http(json!({})), json!({"status": 200}), Ok(1.0)),
        (http(json!({})), json!({"status": 404}), Ok(0.0)),
        (http(json!({"status": 404})), json!({"status": 404}), Ok(1.0)),
        // A redirect is an answer, and is not followed.
        (http(json!({})), json!({"status": 302}), Ok(0.0)),
        (http(json!({})), json!({"status": 503}), Err("the back end failed with status 503")),
        (state(), json!({"status": 200, "value": "sent"}), Ok(1.0)),
        (state(), json!({"status": 200, "value": null}), Ok(0.0)),
        (state(), json!({"status": 200, "is_json": false}), Err("is not JSON")),
        (command(), json!({"exit": 0}), Ok(1.0)),
        (command(), json!({"exit": 1}), Ok(0.0)),
        (command(), json!({"exit": 2, "output": "no database"}), Err("status 2, not 0 or 1: no database")),
        (command(), json!({"exit": null}), Err("no status, not 0 or 1")),
    ];
    for (score, value, want) in table {
        let evidence = found(&score, &value);
        match (scorer(score.clone()).score(&evidence, &FACTS), want) {
            (Ok(got), Ok(want)) => {
                assert_eq!((got.reward, got.components), (Some(want), vec![]), "{score} {value}");
            }
            (Err(got), Err(want)) => assert!(got.to_string().contains(want), "{score}: {got}"),
            (got, want) => panic!("{score} {value}: {got:?}, not {want:?}"),
        }
    }
}

/// A policy that could make the page unreadable would choose not to be scored.
#[test]
fn a_failure_that_a_page_can_cause_is_a_zero_and_proves_nothing() {
    let any = || text(json!({"match": "contains", "value": "x"}));
    for kind in FindingFailureKind::ALL {
        let not = json!({"kind": "not", "of": any()});
        let deep = json!({"kind": "not", "of": {"kind": "all", "of": [any(), {"kind": "not", "of": any()}]}});
        let absent = text(json!({"present": false}));
        for score in [any(), not, deep, absent] {
            let evidence = failed(&score, kind);
            match kind.fault() {
                FaultOwner::Policy => {
                    let got = scorer(score.clone()).score(&evidence, &FACTS).unwrap();
                    assert_eq!(got.reward, Some(0.0), "{score} {kind:?}");
                    assert!(got.rationale.contains(kind.as_str()), "{kind:?}: {}", got.rationale);
                }
                FaultOwner::Farm => no_verdict(score, &evidence, EndKind::MaxSteps, kind.as_str()),
            }
        }
    }
}

#[test]
fn evidence_without_the_finding_gives_no_verdict() {
    let score = || text(json!({"present": true}));
    no_verdict(score(), &at("http://a.test/"), EndKind::MaxSteps, "needs what it looks up");
    let other = found(&json!({"kind": "text", "match": "exact", "value": "x"}), &json!("x"));
    no_verdict(score(), &other, EndKind::MaxSteps, "needs what it looks up");
    let broken = Evidence { findings_json: Some("[1]".into()), ..at("http://a.test/") };
    no_verdict(score(), &broken, EndKind::MaxSteps, "cannot use what it looks up");
}

#[test]
fn an_error_page_is_scored_by_who_caused_it() {
    let score = || text(json!({"present": false}));
    let url = "https://a.test/x".to_owned();
    for (fault, want) in [(FaultOwner::Policy, Some(0.0)), (FaultOwner::Farm, None)] {
        let report = ErrorPage { fault, url: url.clone() }.report();
        let evidence = Evidence { probe_json: Some(report), ..found(&score(), &Value::Null) };
        let got = scorer(score()).score(&evidence, &EndFacts { end: EndKind::MaxSteps, ..FACTS });
        assert_eq!(got.ok().and_then(|score| score.reward), want, "{fault:?}");
    }
}

#[test]
fn each_query_is_sent_once() {
    let score = json!({"kind": "all", "of": [
        text(json!({"present": true})),
        {"kind": "not", "of": text(json!({"match": "contains", "value": "error"}))},
        {"kind": "step_penalty", "of": {"kind": "command", "hook": "paid"}, "per_step": 0.1},
        {"kind": "http", "url": "http://api.test/"},
    ]});
    let scorer = scorer(score);
    assert_eq!(scorer.queries().len(), 3);
    assert_eq!(scorer.self_reported(), ["text"]);
    assert!(!scorer.needs_probe() && !scorer.needs_judge());
}

#[test]
fn what_a_line_gets_wrong_is_named_with_its_remedy() {
    let many: Vec<Value> = (0..32)
        .map(|index| json!({"kind": "storage", "area": "local", "key": index.to_string(), "present": true}))
        .collect();
    let table = [
        (json!({"kind": "text"}), "score.match: is missing; give match with value, equals or present"),
        (json!({"kind": "text", "selector": "", "present": true}), "score.selector: \"\" has 0 bytes"),
        (
            json!({"kind": "text", "selector": "x".repeat(2049), "present": true}),
            "has 2049 bytes; use 1 to 2048",
        ),
        (json!({"kind": "text", "present": 1}), "score.present: 1 is not a boolean"),
        (json!({"kind": "text", "present": true, "equals": 1}), "give one of them"),
        (json!({"kind": "text", "match": "exact"}), "score.value: is missing"),
        (json!({"kind": "text", "match": "regex", "value": "("}), "is not a regular expression"),
        (json!({"kind": "text", "match": "regex", "value": "(?=a)"}), "look-around"),
        (json!({"kind": "text", "match": "regex", "value": "((a{99}){99}){99}"}), "it is too large"),
        (json!({"kind": "text", "host": "*", "present": true}), "score.host: \"*\" is not a host"),
        (json!({"kind": "text", "selectr": "a", "present": true}), "score.selectr: unknown key"),
        (json!({"kind": "storage", "key": "k", "present": true}), "score.area: is missing"),
        (
            json!({"kind": "storage", "area": "disk", "key": "k", "present": true}),
            "use one of local, session",
        ),
        (json!({"kind": "storage", "area": "local", "present": true}), "score.key: is missing"),
        (json!({"kind": "cookie", "present": true}), "score.name: is missing"),
        (json!({"kind": "script"}), "score.expression: is missing"),
        (json!({"kind": "script", "expression": "x".repeat(9000)}), "use 1 to 8192"),
        (json!({"kind": "http"}), "score.url: is missing"),
        (json!({"kind": "http", "url": "https://a.test/"}), "is not an http address"),
        (json!({"kind": "http", "url": "http://u:p@a.test/"}), "without a login"),
        (json!({"kind": "http", "url": "file:///etc/passwd"}), "is not an http address"),
        (json!({"kind": "http", "url": "http://a.test/", "method": "DELETE"}), "use one of GET, HEAD, POST"),
        (json!({"kind": "http", "url": "http://a.test/", "body": {}}), "belongs to a POST"),
        (
            json!({"kind": "http", "url": "http://a.test/", "status": 99}),
            "use a whole number from 100 to 599",
        ),
        (json!({"kind": "http", "url": "http://a.test/", "equals": 1}), "score.pointer: is missing"),
        (
            json!({"kind": "http", "url": "http://a.test/", "pointer": "a", "equals": 1}),
            "is not a JSON pointer",
        ),
        (json!({"kind": "http", "url": "http://a.test/", "pointer": "/a"}), "score.match: is missing"),
        (json!({"kind": "command"}), "score.hook: is missing"),
        (json!({"kind": "command", "hook": "../../bin/sh"}), "is not a hook's name"),
        (json!({"kind": "command", "hook": "a", "argv": ["sh"]}), "score.argv: unknown key"),
        (
            json!({"kind": "all", "of": [{"kind": "all", "of": many.clone()}, {"kind": "script", "expression": "1"}]}),
            "looks up 33 different things",
        ),
    ];
    for (score, want) in table {
        let line = json!({"task_id": "a", "score": score}).to_string();
        let got = Scorer::of_task_json(&line).unwrap_err().to_string();
        assert!(got.contains(want), "{score}: {want:?} not in {got:?}");
    }
}
