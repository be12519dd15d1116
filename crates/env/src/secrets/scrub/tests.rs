//! Values in every form that is found, and texts that stay.

use base64::engine::general_purpose::{STANDARD, URL_SAFE};

use super::*;

/// A value with a character of every kind that is escaped somewhere.
const HARD: &str = "pä\"ss\\w/<o>r&d 'x' +%{}";

fn scrubber(values: &[(&str, &str)]) -> Scrubber {
    Scrubber::new(values.iter().map(|(name, value)| (*value, format!("{{{{{name}}}}}"))))
}

/// The text around the value, which was written as `form`, stays.
#[track_caller]
fn check(value: &str, form: &str) {
    let scrubber = scrubber(&[("OTHER", "another-value"), ("PW", value)]);
    for (before, after) in [("", ""), ("a=", "&b=2"), ("see \"", "\" there"), ("x", "y"), ("%41", "%")] {
        let text = format!("{before}{form}{after}");
        assert_eq!(scrubber.text(&text), format!("{before}{{{{PW}}}}{after}"), "{text}");
        assert_eq!(
            scrubber.bytes(text.as_bytes()),
            format!("{before}{{{{PW}}}}{after}").as_bytes(),
            "{text}"
        );
    }
}

fn percent(value: &str, keeps: impl Fn(u8) -> bool) -> String {
    value
        .bytes()
        .map(|byte| if keeps(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[test]
fn a_value_is_found_however_it_is_written() {
    check("hunter2!", "hunter2!");
    check("hunter2!", "HUNTER2!");
    check("hunter2!", "hunter2%21");
    check("hunter2!", "%68%75%6e%74%65%72%32%21");
    check("hunter2!", "hunter2%2521");
    check("hunter2!", "hunter2&#33;");
    check("hunter2!", "hunter2&#x21;");
    check("hunter2!", r"hunter2\u0021");
    check("hunter2!", r"hunter2\u{21}");
    check("hunter2!", r"\x68unter2!");
    check("hunter2!", "68756e7465723221");
    check("hunter2!", "68756E7465723221");
    check("two words", "two+words");
    check("two words", "two%20words");
    check("two words", "two \n\t words");
    check("two words", "two&nbsp;words");
    check("two words", "two\u{a0}words");
    check("😀smile", r"\ud83d\ude00smile");
    check("😀smile", "%F0%9F%98%80smile");
    check("a/b?c:d", "a_b_c_d");

    let plain = |byte: u8| byte.is_ascii_alphanumeric();
    check(HARD, HARD);
    check(HARD, &percent(HARD, plain));
    check(HARD, &percent(HARD, plain).to_lowercase());
    check(HARD, &percent(HARD, |_| false));
    check(HARD, &percent(&percent(HARD, plain), plain));
    check(HARD, &percent(HARD, |byte| plain(byte) || byte == b' ').replace(' ', "+"));
    let quoted = |text: &str| {
        let json = Value::from(text).to_string();
        json[1..json.len() - 1].to_owned()
    };
    check(HARD, &quoted(HARD));
    check(HARD, &quoted(&quoted(HARD)));
    check(HARD, &quoted(&quoted(&quoted(HARD))));
    check(HARD, &percent(&quoted(HARD), plain));
    check(HARD, &quoted(HARD).replace('/', "\\/"));
    let entities = |text: &str| {
        text.replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;")
            .replace('"', "&quot;")
            .replace('\'', "&#39;")
    };
    check(HARD, &entities(HARD));
    check(HARD, &entities(&entities(HARD)));
    let debug = format!("{HARD:?}");
    check(HARD, &debug[1..debug.len() - 1]);
}

#[test]
fn a_value_is_found_in_base64_at_every_position() {
    for value in ["hunter", "hunter2!", "correct horse battery", HARD] {
        let scrubber = scrubber(&[("PW", value)]);
        for before in ["", "a", "ab", "user:", "abc"] {
            for after in ["", "z", "zz", "zzz"] {
                let bytes = format!("{before}{value}{after}");
                for encoded in
                    [STANDARD.encode(&bytes), URL_SAFE.encode(&bytes), STANDARD_NO_PAD.encode(&bytes)]
                {
                    let scrubbed = scrubber.text(&encoded);
                    assert!(scrubbed.contains("{{PW}}"), "{value:?} in {encoded}: {scrubbed}");
                    let escaped = percent(&encoded, |byte| byte.is_ascii_alphanumeric());
                    assert!(scrubber.text(&escaped).contains("{{PW}}"), "{escaped}");
                }
            }
        }
    }
    // Base64 in another case is of other bytes.
    let encoded = STANDARD.encode("hunter2!");
    assert!(!scrubber(&[("PW", "hunter2!")]).text(&encoded.to_uppercase()).contains("PW"));
}

#[test]
fn values_that_contain_or_overlap_each_other_leave_nothing() {
    let scrubber =
        scrubber(&[("SHORT", "hunter"), ("LONG", "hunter2000"), ("NEXT", "2000abc"), ("LATE", "nter20")]);
    for (text, want) in [
        ("hunter", "{{SHORT}}"),
        ("hunter2", "{{SHORT}}2"),
        ("hunter20", "{{SHORT}}"),
        ("hunter2000", "{{LONG}}"),
        ("hunter2000abc", "{{LONG}}"),
        ("2000abc hunter", "{{NEXT}} {{SHORT}}"),
        ("hunterhunter", "{{SHORT}}{{SHORT}}"),
        ("hunhunter", "hun{{SHORT}}"),
    ] {
        assert_eq!(scrubber.text(text), want, "{text}");
    }
}

#[test]
fn what_is_no_value_stays_as_it_is() {
    let scrubber = scrubber(&[("PW", "hunter2!"), ("PHRASE", "two words")]);
    for text in
        ["", "hunter2", "hunter 2!", "hunter2?", "twowords", "hunter2%2", "%", "\\", "&amp;", "hunter2\\"]
    {
        assert!(matches!(scrubber.text(text), Cow::Borrowed(_)), "{text}");
    }
    // Two texts are not one, and bytes that are not UTF-8 are no text.
    assert!(matches!(scrubber.bytes(b"hunter\xff2!"), Cow::Borrowed(_)));
    assert!(matches!(scrubber.bytes(b"\xff\xfe%ff%c3"), Cow::Borrowed(_)));
    assert!(Scrubber::default().is_empty());
    assert!(matches!(Scrubber::default().text("hunter2!"), Cow::Borrowed(_)));
}

#[test]
fn a_value_that_was_cut_at_the_end_of_a_text_is_found() {
    let scrubber = scrubber(&[("PW", "hunter2!correct")]);
    let filler = "x".repeat(100);
    for (end, want) in [
        ("hunter2", "{{PW}}"),
        ("hunt", "{{PW}}"),
        ("hun", "hun"),
        ("hunter2%2", "{{PW}}"),
        ("hunter2%21corr", "{{PW}}"),
        ("hunter2\\u00", "{{PW}}"),
        ("hunter2&#3", "{{PW}}"),
        ("hunter2%20", "hunter2%20"),
        ("hunter2%21&a=1", "hunter2%21&a=1"),
        ("hunter2!correct", "{{PW}}"),
    ] {
        assert_eq!(scrubber.cut_text(&format!("{filler}{end}")), format!("{filler}{want}"));
        // A short text was not cut.
        let short = if end == "hunter2!correct" { "{{PW}}" } else { end };
        assert_eq!(scrubber.cut_text(end), short);
    }
}

#[test]
fn json_stays_json() {
    let scrubber = scrubber(&[("PW", "a\",\"b\": \"c"), ("PIN", "314159")]);
    for (json, want) in [
        (r#"{"a" : "x",  "n":1.50}"#, r#"{"a" : "x",  "n":1.50}"#),
        (r#"{"k":"a\",\"b\": \"c"}"#, r#"{"k":"{{PW}}"}"#),
        (r#"{"a\",\"b\": \"c":[1]}"#, r#"{"{{PW}}":[1]}"#),
        (r#"{"pin":314159}"#, r#"{"pin":"{{PIN}}"}"#),
        (r#"["{\"pin\":\"314159\"}",true]"#, r#"["{\"pin\":\"{{PIN}}\"}",true]"#),
        ("not JSON 314159", "not JSON {{PIN}}"),
    ] {
        assert_eq!(scrubber.json(json.to_owned()), want);
    }
}

#[test]
fn ranges_are_of_the_text_as_it_is() {
    let scrubber = scrubber(&[("PW", "hunter2!")]);
    assert_eq!(scrubber.ranges("é hunter2! x HUNTER2!"), [(3, 11), (14, 22)]);
    assert!(!format!("{scrubber:?}").contains("hunter"));
}

#[test]
fn a_large_text_and_many_values_are_searched_in_bounded_time() {
    let values: Vec<(String, String)> =
        (0..128).map(|index| (format!("S{index}"), format!("Value-{index:03}-{}", index * 7919))).collect();
    let scrubber = Scrubber::new(values.iter().map(|(name, value)| (value.as_str(), name.clone())));
    let began = std::time::Instant::now();
    for filler in ["%41\\u0041&amp;+", "Value-", "plain text of a page. "] {
        let text = filler.repeat((1 << 18) / filler.len());
        assert!(matches!(scrubber.text(&text), Cow::Borrowed(_)));
    }
    // A debug build takes a hundred times as long as a release.
    assert!(began.elapsed().as_secs() < 60, "{:?}", began.elapsed());
}

#[test]
fn any_text_is_searched_to_its_end_and_keeps_no_value() {
    use rand::rngs::ChaCha12Rng;
    use rand::{RngExt, SeedableRng};

    const PIECES: [&str; 24] = [
        "hunter2!", "hunter", "HUNT", "er2", "2!", "!", "%", "%2", "%25", "%21", "\\", "\\u", "\\x", "\\\\",
        "&", "&#", "33;", "amp;", "é", "+", " ", "😀", "0021", "{{PW}}",
    ];
    let scrubber = scrubber(&[("PW", "hunter2!"), ("PHRASE", "é 😀 hunt")]);
    let mut rng = ChaCha12Rng::seed_from_u64(7);
    for _ in 0..20_000 {
        let count = rng.random_range(1..40);
        let text: String = (0..count).map(|_| PIECES[rng.random_range(0..PIECES.len())]).collect();
        let scrubbed = scrubber.text(&text);
        assert!(!scrubbed.to_lowercase().contains("hunter2!"), "{text:?} became {scrubbed:?}");
        assert_eq!(scrubber.bytes(text.as_bytes()), scrubbed.as_bytes(), "{text:?}");
        assert!(!scrubber.cut_text(&text).to_lowercase().contains("hunter2!"), "{text:?}");
    }
}
