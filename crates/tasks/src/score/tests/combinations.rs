//! Scorers made of scorers.

use super::*;

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
    let first = [("0.probe", 1.0), ("0.probe/yes", 1.0), ("0.probe/self_reported", 1.0)];
    let second = [("1.probe", 0.5), ("1.probe/half", 0.5), ("1.probe/self_reported", 1.0)];
    assert_eq!(parts, [first, second].concat());
    assert_eq!(got.rationale, "0: /yes is true; 1: /half is 0.5");
    for kind in ["all", "any"] {
        let score = json!({"kind": kind, "of": [{"kind": "probe", "pointer": "/yes"}, {"kind": "judge"}]});
        assert!(scorer(score.clone()).needs_judge() && scorer(score.clone()).needs_probe());
        let evidence = Evidence { answer: Some("x".to_owned()), ..evidence.clone() };
        no_verdict(score, &evidence, EndKind::Answered, "no judge is available");
    }
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
    let believed = ("self_reported", 1.0);
    assert_eq!(parts, [("probe", 1.0), ("step_penalty", -0.25), ("yes", 1.0), believed]);
}
