//! Answers of the policy compared as texts, numbers, dates and lists.

use super::*;

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
