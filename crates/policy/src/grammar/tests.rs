//! Tests for all grammars. Each grammar's file has a table of its own replies.

use furrow_rollout::{ExtraAction, Mark, Modifiers, PagePoint, ScrollDirection, Size};
use furrow_testkit::generators;
use proptest::prelude::*;

use super::*;

const IMAGE: Size = Size::new(1000, 500);

/// Marks of a page of [`IMAGE`]: one around everything, two inside it.
fn marks() -> Vec<Mark> {
    let boxes = [(0.0, 0.0, 1000.0, 500.0), (100.0, 40.0, 200.0, 20.0), (120.0, 300.0, 40.0, 40.0)];
    let mark = |(number, (x, y, width, height))| Mark {
        mark: number,
        role: "button".into(),
        text: String::new(),
        x,
        y,
        width,
        height,
    };
    (1..).zip(boxes).map(mark).collect()
}

fn of(name: &str) -> Grammar {
    Grammar { name: name.into(), extra: Vec::new() }
}

/// A grammar with all extra actions that it supports.
fn whole(dialect: &GrammarDialect) -> Grammar {
    let extra = dialect.extra.to_vec();
    Grammar { name: dialect.name.into(), extra }
}

/// Parses a reply to a page of [`IMAGE`] with its marks. `want` is the beginning of the action or
/// of the error.
#[track_caller]
pub(super) fn check(grammar: &str, text: &str, want: &str) {
    let marks = marks();
    let got = match parse(&of(grammar), text, ViewedPage { image: IMAGE, marks: Some(&marks) }).action {
        Ok(action) => format!("{action:?}"),
        Err(why) => why,
    };
    assert!(got.starts_with(want), "{grammar} reads {text:?} as\n     {got}\nnot  {want}");
}

#[test]
fn grammar_names_are_distinct() {
    let mut all: Vec<&str> = names().collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), DIALECTS.len());
    for dialect in DIALECTS {
        assert_eq!(extra_actions(dialect.name), Some(dialect.extra));
        let text = instructions(&whole(dialect));
        assert!(text.ends_with('\n') && text.len() > 60, "{}: {text:?}", dialect.name);
    }
    assert_eq!(extra_actions("morse"), None);
}

#[test]
fn a_reply_without_end_is_not_read() {
    for dialect in DIALECTS {
        let text = "[".repeat(TEXT_BYTES_MAX + 1);
        let reply = parse(&of(dialect.name), &text, ViewedPage::image(IMAGE));
        assert_eq!(reply.action, Err("the reply has 65537 bytes; use at most 65536".into()));
        // At the deepest nesting that fits, parsing must fail without overflowing the stack.
        assert!(parse(&of(dialect.name), &text[1..], ViewedPage::image(IMAGE)).action.is_err());
    }
}

#[test]
fn each_grammar_writes_what_it_is_for() {
    let marks = marks();
    let at = PagePoint { x: 130.0, y: 310.0 };
    let view = ViewedPage { image: IMAGE, marks: Some(&marks) };
    let write = Action::Write { into: Some(at), content: "blue mug".into(), press_enter: true };
    let answer = Action::Answer { content: "42".into() };
    let writes = |dialect: &GrammarDialect, action: &Action| {
        encode(&whole(dialect), action, &ReplyRemarks::default(), view)
            .unwrap_or_else(|why| panic!("{}: {why}", dialect.name))
    };
    for dialect in DIALECTS {
        writes(dialect, &Action::click(at));
        if !["holo_click", "holo_click_absolute", "holo_point"].contains(&dialect.name) {
            writes(dialect, &answer);
            let there = !dialect.extra.contains(&ExtraAction::Drag);
            writes(
                dialect,
                &Action::Scroll {
                    at: there.then_some(at),
                    direction: ScrollDirection::Down,
                    pixels: there.then_some(300),
                    modifiers: Modifiers::NONE,
                },
            );
        }
        if !["holo_click", "holo_click_absolute", "holo_point", "holo_step"].contains(&dialect.name) {
            writes(dialect, &write);
        }
    }
}

#[test]
fn files_are_uploaded_by_name_where_the_job_enables_it() {
    let names = ["cv.pdf".to_owned(), "photo \"1\".png".to_owned()];
    let upload = Action::Upload { names: names.to_vec() };
    let remarks = ReplyRemarks::default();
    let view = ViewedPage::image(IMAGE);
    for dialect in DIALECTS {
        let with = Grammar { name: dialect.name.into(), extra: vec![ExtraAction::Upload] };
        let without = of(dialect.name);
        if !dialect.extra.contains(&ExtraAction::Upload) {
            assert!(encode(&without, &upload, &remarks, view).is_err(), "{}", dialect.name);
            continue;
        }
        let text = encode(&with, &upload, &remarks, view).unwrap();
        let reply = parse(&with, &text, view);
        assert_eq!((reply.action, reply.name.as_str()), (Ok(upload.clone()), "upload"), "{text}");
        assert!(reply.args_json.contains("cv.pdf"), "{}", reply.args_json);
        assert!(parse(&without, &text, view).action.is_err(), "{text}");
        assert!(instructions(&with).contains("upload") && !instructions(&without).contains("upload"));
        // One name too many, none, and a name that is no text; some grammars have them in a string.
        let in_string = |json: &str| serde_json::Value::from(json).to_string().trim_matches('"').to_owned();
        let list = serde_json::json!(names).to_string();
        for wrong in ["[]".to_owned(), "[7]".into(), serde_json::json!(vec!["a"; 17]).to_string()] {
            let text = text.replace(&list, &wrong).replace(&in_string(&list), &in_string(&wrong));
            let error = parse(&with, &text, view).action.unwrap_err();
            assert!(error.contains("use a list of 1 to 16 names of files"), "{error}: {text}");
        }
    }
}

/// The replies below each grammar's heading in its documentation: a step, and the answer.
#[test]
fn the_documented_replies_are_read() {
    let text = include_str!("../../../../docs/GRAMMARS.md");
    let marks = marks();
    let view = ViewedPage { image: IMAGE, marks: Some(&marks) };
    for dialect in DIALECTS {
        let (_, section) = text.split_once(&format!("\n### `{}`\n", dialect.name)).unwrap();
        let section = section.split("\n#").next().unwrap();
        let blocks: Vec<&str> = section.split("```\n").skip(1).step_by(2).collect();
        let kinds: Vec<&str> = blocks
            .iter()
            .map(|block| {
                parse(&of(dialect.name), block, view).action.unwrap_or_else(|why| panic!("{why}: {block}"))
            })
            .map(|action| action.kind())
            .collect();
        match dialect.name {
            "holo_click" | "holo_click_absolute" | "holo_point" => assert_eq!(kinds, ["click"]),
            name => assert!(matches!(kinds[..], [step, "answer"] if step != "answer"), "{name}: {kinds:?}"),
        }
    }
}

fn action() -> impl Strategy<Value = Action> {
    let point = (0u16..=1000, 0u16..=500).prop_map(|(x, y)| PagePoint { x: x.into(), y: y.into() });
    let text = prop_oneof![4 => "[ -~]{0,12}", 1 => "https://[a-z./]{1,9}", 2 => ".{0,12}"];
    generators::action(point, text)
}

proptest! {
    /// An action may lose what the grammar cannot express, a fraction of a pixel or a distance. The
    /// remaining action parses back unchanged.
    #[test]
    fn what_is_written_reads_back(action in action(), thought in "[^<]{0,30}", element in ".{0,9}") {
        let marks = marks();
        let view = ViewedPage { image: IMAGE, marks: Some(&marks) };
        let remarks = ReplyRemarks { thought, element, ..ReplyRemarks::default() };
        for dialect in DIALECTS {
            let grammar = whole(dialect);
            let Ok(text) = encode(&grammar, &action, &remarks, view) else { continue };
            let read = parse(&grammar, &text, view);
            let parsed = read.action.clone().unwrap();
            prop_assert!(!read.name.is_empty(), "{}: {text}", dialect.name);
            let encoded = encode(&grammar, &parsed, &remarks, view);
            let encoded = encoded.unwrap_or_else(|why| panic!("{}: {why} of {parsed:?} in {text:?}", dialect.name));
            prop_assert_eq!(parse(&grammar, &encoded, view).action, Ok(parsed), "{}: {} then {}", dialect.name, text, encoded);
        }
    }

    #[test]
    fn any_text_is_read_or_refused_and_kept_as_it_was(text in ".*", name in "[a-z(){}<>\\[\\]\"':,;=0-9 \n]{0,60}") {
        for dialect in DIALECTS {
            for text in [text.clone(), format!("Action: {name}"), format!("<TOOLCALL>{name}</TOOLCALL>")] {
                prop_assert_eq!(parse(&whole(dialect), &text, ViewedPage::image(IMAGE)).raw_text, text);
            }
        }
    }
}
