//! Scorers that a task file may not have.

use super::*;

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
