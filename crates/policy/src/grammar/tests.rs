//! What holds for every grammar. Each file has a table of its own replies.

use furrow_rollout::{PagePoint, Size};
use furrow_testkit::nouns;
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

/// A grammar with everything switched on that it lets switch on.
fn whole(dialect: &Dialect) -> Grammar {
    let extra = if dialect.is_extensible { ExtraAction::ALL.to_vec() } else { Vec::new() };
    Grammar { name: dialect.name.into(), extra }
}

/// Reads a reply to a page of [`IMAGE`] with its marks; `want` begins the action or the reason why there is none.
#[track_caller]
pub(super) fn check(grammar: &str, text: &str, want: &str) {
    let marks = marks();
    let got = match parse(&of(grammar), text, Seen { image: IMAGE, marks: Some(&marks) }).action {
        Ok(action) => format!("{action:?}"),
        Err(why) => why,
    };
    assert!(got.starts_with(want), "{grammar} reads {text:?} as\n     {got}\nnot  {want}");
}

#[test]
fn names_are_told_apart() {
    let mut all: Vec<&str> = names().collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), DIALECTS.len());
    for dialect in DIALECTS {
        assert_eq!(is_extensible(dialect.name), Some(dialect.is_extensible));
        let text = instructions(&whole(dialect));
        assert!(text.ends_with('\n') && text.len() > 60, "{}: {text:?}", dialect.name);
    }
    assert_eq!(is_extensible("morse"), None);
}

#[test]
fn a_reply_without_end_is_not_read() {
    for dialect in DIALECTS {
        let text = "[".repeat(TEXT_BYTES_MAX + 1);
        let reply = parse(&of(dialect.name), &text, Seen::image(IMAGE));
        assert_eq!(reply.action, Err("the reply has 65537 bytes, at most 65536 are read".into()));
        // As deep as it may be: refused, not followed.
        assert!(parse(&of(dialect.name), &text[1..], Seen::image(IMAGE)).action.is_err());
    }
}

#[test]
fn each_grammar_writes_what_it_is_for() {
    let (marks, at) = (marks(), PagePoint { x: 130.0, y: 310.0 });
    let seen = Seen { image: IMAGE, marks: Some(&marks) };
    let write = Action::Write { into: Some(at), content: "blue mug".into(), press_enter: true };
    let answer = Action::Answer { content: "42".into() };
    let writes = |dialect: &Dialect, action: &Action| {
        encode(&whole(dialect), action, &Remarks::default(), seen)
            .unwrap_or_else(|why| panic!("{}: {why}", dialect.name))
    };
    for dialect in DIALECTS {
        writes(dialect, &Action::click(at));
        if !["holo_click", "holo_click_absolute", "holo_point"].contains(&dialect.name) {
            writes(dialect, &answer);
            let there = !dialect.is_extensible;
            writes(
                dialect,
                &Action::Scroll {
                    at: there.then_some(at),
                    direction: Direction::Down,
                    pixels: there.then_some(300),
                },
            );
        }
        if !["holo_click", "holo_click_absolute", "holo_point", "holo_step"].contains(&dialect.name) {
            writes(dialect, &write);
        }
    }
}

fn action() -> impl Strategy<Value = Action> {
    let point = (0u16..=1000, 0u16..=500).prop_map(|(x, y)| PagePoint { x: x.into(), y: y.into() });
    let text = prop_oneof![4 => "[ -~]{0,12}", 1 => "https://[a-z./]{1,9}", 2 => ".{0,12}"];
    nouns::action(point, text)
}

proptest! {
    /// An action may lose what the grammar has no word for, a fraction of a pixel or a distance; what is left of it comes back as it is.
    #[test]
    fn what_is_written_reads_back(action in action(), thought in "[^<]{0,30}", element in ".{0,9}") {
        let marks = marks();
        let seen = Seen { image: IMAGE, marks: Some(&marks) };
        let remarks = Remarks { thought, element, ..Remarks::default() };
        for dialect in DIALECTS {
            let grammar = whole(dialect);
            let Ok(text) = encode(&grammar, &action, &remarks, seen) else { continue };
            let read = parse(&grammar, &text, seen);
            let said = read.action.clone().unwrap();
            prop_assert!(!read.name.is_empty(), "{}: {text}", dialect.name);
            let again = encode(&grammar, &said, &remarks, seen);
            let again = again.unwrap_or_else(|why| panic!("{}: {why} of {said:?} in {text:?}", dialect.name));
            prop_assert_eq!(parse(&grammar, &again, seen).action, Ok(said), "{}: {} then {}", dialect.name, text, again);
        }
    }

    #[test]
    fn any_text_is_read_or_refused_and_kept_as_it_was(text in ".*", name in "[a-z(){}<>\\[\\]\"':,;=0-9 \n]{0,60}") {
        for dialect in DIALECTS {
            for text in [text.clone(), format!("Action: {name}"), format!("<TOOLCALL>{name}</TOOLCALL>")] {
                prop_assert_eq!(parse(&whole(dialect), &text, Seen::image(IMAGE)).raw_text, text);
            }
        }
    }
}
