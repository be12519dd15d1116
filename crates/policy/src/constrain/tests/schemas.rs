//! Replies that match a JSON schema: what is sampled, what can be written, what is refused.

use super::*;

/// Schemas of every supported kind.
fn schemas() -> Vec<Value> {
    vec![
        json!({ "type": "object", "properties": { "say": { "type": "string" } }, "required": ["say"], "additionalProperties": false }),
        json!({ "type": "object", "properties": {
            "a": { "type": "boolean" }, "b": { "type": "integer" }, "c": { "type": "number" }, "d": { "type": "null" },
        } }),
        json!({ "type": "object", "properties": {
            "kind": { "enum": ["a", "ab", "\"b\"", "b\\"] }, "level": { "const": 3 }, "mixed": { "enum": [1, 12, "1", true, null, 1.5] },
        }, "required": ["level"] }),
        json!({ "type": "array", "items": { "type": "integer", "minimum": -12, "exclusiveMaximum": 4 }, "minItems": 2, "maxItems": 4 }),
        json!({ "type": "object", "properties": {
            "at": { "$ref": "#/$defs/Point" }, "path": { "type": "array", "items": { "$ref": "#/$defs/Point" } },
            "note": { "type": ["string", "null"] }, "left": { "anyOf": [{ "type": "integer", "minimum": 5 }, { "type": "null" }] },
        }, "required": ["at", "note"], "$defs": { "Point": { "title": "Point", "type": "object", "properties": {
            "x": { "type": "integer", "minimum": 0, "maximum": 1000 }, "y": { "type": "integer", "minimum": 95, "maximum": 1203 },
        }, "required": ["x", "y"] } } }),
        json!({ "type": "string" }),
        json!({ "type": "integer", "minimum": -7, "maximum": -7 }),
        json!({ "type": "object", "properties": {
            "id": { "type": "string", "minLength": 4, "maxLength": 4 }, "short": { "type": "string", "maxLength": 3 },
            "long": { "type": "string", "minLength": 2 }, "none": { "type": "string", "maxLength": 0 },
        }, "required": ["id"] }),
        json!({ "type": "array", "items": { "type": "number", "minimum": 0.1, "maximum": 2.0 }, "min_items": 2, "maxItems": 3 }),
        json!({ "type": "array", "items": { "type": "number", "exclusiveMinimum": -12, "exclusiveMaximum": 9.5 } }),
        json!({ "type": "object" }),
        json!({ "type": "array", "items": { "type": "array", "items": { "type": "boolean" }, "maxItems": 2 }, "maxItems": 0 }),
    ]
}

/// Whether a value matches a schema: a separate validator for what `schemas` uses.
fn is_of(root: &Value, schema: &Value, value: &Value) -> bool {
    let says = |key: &str| schema.get(key);
    if let Some(target) = says("$ref") {
        return is_of(root, root.pointer(&target.as_str().unwrap()[1..]).unwrap(), value);
    }
    if let Some(ways) = says("anyOf") {
        return ways.as_array().unwrap().iter().any(|way| is_of(root, way, value));
    }
    let is_kind = |kind: &str| match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("{other}"),
    };
    let kinds = match says("type") {
        None => vec![],
        Some(Value::Array(kinds)) => kinds.clone(),
        Some(kind) => vec![kind.clone()],
    };
    let least = |key: &str| says(key).and_then(Value::as_i64);
    (kinds.is_empty() || kinds.iter().any(|kind| is_kind(kind.as_str().unwrap())))
        && says("enum").is_none_or(|literals| literals.as_array().unwrap().contains(value))
        && says("const").is_none_or(|literal| literal == value)
        && value.as_i64().is_none_or(|number| {
            least("minimum").is_none_or(|least| number >= least)
                && least("maximum").is_none_or(|most| number <= most)
                && least("exclusiveMaximum").is_none_or(|most| number < most)
        })
        && value.as_f64().is_none_or(|number| {
            let bound = |key: &str| says(key).and_then(Value::as_f64);
            bound("minimum").is_none_or(|least| number >= least)
                && bound("maximum").is_none_or(|most| number <= most)
                && bound("exclusiveMinimum").is_none_or(|least| number > least)
                && bound("exclusiveMaximum").is_none_or(|most| number < most)
        })
        && value.as_str().is_none_or(|text| {
            let count = text.chars().count() as i64;
            least("minLength").is_none_or(|least| count >= least)
                && least("maxLength").is_none_or(|most| count <= most)
        })
        && value.as_array().is_none_or(|items| {
            let count = items.len() as i64;
            least("min_items").or(least("minItems")).is_none_or(|least| count >= least)
                && count <= least("maxItems").unwrap_or(16)
                && items.iter().all(|item| is_of(root, says("items").unwrap(), item))
        })
        && value.as_object().is_none_or(|members| {
            let none = Value::Null;
            let properties = says("properties").unwrap_or(&none);
            let required = says("required").and_then(Value::as_array).cloned().unwrap_or_default();
            required.iter().all(|name| members.contains_key(name.as_str().unwrap()))
                && members.iter().all(|(name, member)| {
                    properties.get(name).is_some_and(|schema| is_of(root, schema, member))
                })
        })
}

#[test]
fn every_sampled_reply_matches_the_schema_and_fits() {
    let all = schemas().into_iter().map(|source| (Schema::check(&source).unwrap(), Some(source)));
    let all: Vec<_> = all.chain([(Schema::any_object(), None)]).collect();
    for seed in 0..2 {
        let book = TestVocabulary::random(seed);
        let lexicon = book.lexicon();
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        let letters = SharedTransitions::of(&lexicon);
        for (schema, source) in &all {
            let compile = |max_tokens| Constraint::of_schema(schema, &lexicon, &letters, max_tokens);
            let Err(ConstraintError::TooFew { least, .. }) = compile(0) else {
                panic!("an empty reply is not a value")
            };
            assert!(matches!(compile(least - 1), Err(ConstraintError::TooFew { .. })));
            for budget in [0, 2, 40, 300] {
                let constraint = compile(least + budget).unwrap();
                for round in 0..3 {
                    let walked = match round % 3 {
                        0 => walk(&book, &constraint, &mut anything(&mut rng)),
                        1 => walk(&book, &constraint, &mut restless(&mut rng)),
                        _ => walk(&book, &constraint, &mut longest),
                    };
                    let text = String::from_utf8(book.decode(&walked.ids)).unwrap();
                    assert!(walked.ids.len() as u32 <= least + budget, "seed {seed}: {text}");
                    assert_eq!(walked.ids.last(), Some(&STOP), "seed {seed}: {text}");
                    let value: Value = serde_json::from_str(&text)
                        .unwrap_or_else(|why| panic!("seed {seed}: {why} in {text}"));
                    match source {
                        Some(source) => {
                            assert!(is_of(source, source, &value), "seed {seed}: {text} of {source}");
                        }
                        None => assert!(value.is_object(), "seed {seed}: {text}"),
                    }
                }
            }
        }
    }
}

#[test]
fn every_value_of_a_schema_can_be_written() {
    let book = TestVocabulary::bytes();
    let lexicon = book.lexicon();
    let letters = SharedTransitions::of(&lexicon);
    #[track_caller]
    fn check(
        book: &TestVocabulary,
        letters: &SharedTransitions,
        schema: &Value,
        texts: &[&str],
        not: &[&str],
    ) {
        let schema = Schema::check(schema).unwrap();
        let constraint = Constraint::of_schema(&schema, &book.lexicon(), letters, 400).unwrap();
        for (text, is_legal) in
            texts.iter().map(|text| (text, true)).chain(not.iter().map(|text| (text, false)))
        {
            let ids = text.bytes().map(|byte| MARKS + u32::from(byte)).chain([STOP]);
            let mut cursor = ConstraintCursor::new(&constraint);
            let walked = ids.into_iter().try_for_each(|id| cursor.advance(id));
            assert_eq!(walked.is_ok(), is_legal, "{text}");
        }
    }
    let whole = json!({ "type": "integer" });
    check(
        &book,
        &letters,
        &whole,
        &["0", "7", "-1", "999999999999999", "-999999999999999"],
        &["00", "-0", "1.0", "1e3", "1000000000000000", ""],
    );
    let some = json!({ "type": "integer", "minimum": -12, "maximum": 130 });
    let all: Vec<String> = (-12..=130).map(|number: i32| number.to_string()).collect();
    check(
        &book,
        &letters,
        &some,
        &all.iter().map(String::as_str).collect::<Vec<_>>(),
        &["-13", "131", "200", "1000", "-0", "01"],
    );
    check(
        &book,
        &letters,
        &json!({ "type": "number" }),
        &["0", "0.5", "-0.25", "12.000000001"],
        &["1.", ".5", "1.0000000001", "01.5", "1e3"],
    );
    let optional = json!({ "type": "object", "properties": {
        "a": { "type": "boolean" }, "b": { "type": "null" }, "c": { "type": "string" },
    }, "required": ["b"] });
    check(
        &book,
        &letters,
        &optional,
        &[
            r#"{"b":null}"#,
            r#"{"a":true,"b":null}"#,
            r#"{"b":null,"c":"é\n"}"#,
            r#"{"a":false,"b":null,"c":""}"#,
        ],
        &[
            r#"{}"#,
            r#"{"a":true}"#,
            r#"{"b":null,"a":true}"#,
            r#"{"b":null,}"#,
            r#"{ "b":null}"#,
            r#"{"b":null,"d":1}"#,
        ],
    );
    let list = json!({ "type": "array", "items": { "type": "boolean" }, "minItems": 1, "maxItems": 2 });
    check(&book, &letters, &list, &["[true]", "[true,false]"], &["[]", "[true,true,true]", "[true,]"]);
}

#[test]
fn bounds_without_a_value_are_refused() {
    #[track_caller]
    fn check(schema: &Value, path: &str, says: &str) {
        let error = Schema::check(schema).unwrap_err();
        assert!(error.path == path && error.why.contains(says), "{error}");
    }
    check(&json!({ "type": "string", "minLength": 3, "maxLength": 2 }), "$", "minLength");
    check(&json!({ "type": "string", "minLength": -1 }), "$", "minLength");
    check(&json!({ "type": "number", "minimum": "0" }), "$", "minimum");
    check(&json!({ "type": "number", "minimum": 0.1, "maximum": 0.9 }), "$", "no whole number");
    check(&json!({ "type": "number", "multipleOf": 2 }), "$", "multipleOf");
}

#[test]
fn unsupported_schema_keywords_are_refused_by_name() {
    #[track_caller]
    fn check(schema: &Value, path: &str, says: &str) {
        let error = Schema::check(schema).unwrap_err();
        assert!(error.path == path && error.why.contains(says), "{error}");
    }
    check(&json!({ "type": "string", "pattern": "^a" }), "$", "pattern");
    check(
        &json!({ "type": "object", "properties": { "a": { "type": "string", "maxLength": 300 } } }),
        "$.a",
        "maxLength",
    );
    check(&json!({ "type": "object", "patternProperties": {} }), "$", "patternProperties");
    check(&json!({ "allOf": [] }), "$", "type is missing");
    check(&json!({ "oneOf": [], "type": "string" }), "$", "oneOf");
    check(&json!({ "type": "array" }), "$", "items");
    check(&json!({ "type": "array", "items": { "type": "null" }, "maxItems": 257 }), "$", "maxItems");
    check(
        &json!({ "type": "array", "items": { "type": "null" }, "minItems": 3, "maxItems": 2 }),
        "$",
        "minItems",
    );
    check(&json!({ "type": "integer", "minimum": 3, "maximum": 2 }), "$", "no whole number");
    check(&json!({ "type": "object", "required": ["a"] }), "$", "required");
    check(&json!({ "enum": [] }), "$", "at least one");
    check(&json!({ "enum": [{ "a": 1 }] }), "$", "at least one");
    check(&json!({ "type": "string", "enum": [1] }), "$", "type that the schema sets");
    check(&json!({ "type": "date" }), "$", "unknown");
    check(&json!(true), "$", "object");
    check(&json!({ "$ref": "#/$defs/A" }), "$", "does not name a definition");
    check(&json!({ "$defs": { "A": { "$ref": "#/$defs/A" } }, "$ref": "#/$defs/A" }), "$", "deep");
    let wide: serde_json::Map<String, Value> =
        (0..1001).map(|n| (format!("p{n}"), json!({ "type": "null" }))).collect();
    check(&json!({ "type": "object", "properties": wide }), "$.p999", "more than");
    for bound in ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"] {
        check(&json!({ "type": "integer", bound: i64::MIN }), "$", "15 digits");
    }
    let long = "x".repeat(300);
    check(&json!({ "type": "object", "properties": { long.clone(): { "type": "null" } } }), "$", "302 bytes");
    check(&json!({ "enum": [long] }), "$", "302 bytes");
    check(&json!({ "const": "\u{1}".repeat(50) }), "$", "302 bytes");
    check(&json!({ "type": "string", "title": "x".repeat(40_000) }), "$", "use at most 32768");
    check(&json!({ "type": ["null", "string", "null"] }), "$", "each once");
    let far = Schema::check(&json!({ "type": "object", "required": ["y".repeat(9000)] })).unwrap_err();
    assert!(far.to_string().len() < 200, "{far}");

    let book = TestVocabulary::bytes();
    let letters = SharedTransitions::of(&book.lexicon());
    let compile = |schema: &Value| {
        Constraint::of_schema(&Schema::check(schema).unwrap(), &book.lexicon(), &letters, 4000).map(drop)
    };
    let alike = json!({ "anyOf": [{ "type": "string" }, { "enum": ["a"] }] });
    assert_eq!(compile(&alike), Err(ConstraintError::Ambiguous));
    let deep =
        (0..4).fold(json!({ "type": "number" }), |inner, _| json!({ "type": "array", "items": inner }));
    assert!(matches!(compile(&deep), Err(ConstraintError::TooLarge { .. })));
    // Alternatives that share as much as a list allows, and equal elements made repeatedly.
    let literal = "w".repeat(200);
    let list = |last: &str| json!({ "type": "array", "items": { "enum": [literal, last] }, "maxItems": 256 });
    let equal: Vec<Value> = (0..200).map(|_| json!({ "$ref": "#/$defs/A" })).collect();
    let numbers = json!({ "type": "array", "items": { "type": "number" }, "maxItems": 256 });
    for hostile in
        [json!({ "anyOf": [list("a"), list("b")] }), json!({ "anyOf": equal, "$defs": { "A": numbers } })]
    {
        let began = std::time::Instant::now();
        let refused = compile(&hostile);
        assert!(
            matches!(refused, Err(ConstraintError::TooLarge { .. } | ConstraintError::Ambiguous)),
            "{refused:?} of {hostile}"
        );
        assert!(began.elapsed().as_secs() < 60, "{:?} for {hostile}", began.elapsed());
    }
}
