//! Action grammars: a reply becomes an action.

use furrow_policy::grammar::{self, ReplyRemarks, ViewedPage};
use furrow_rollout::{Action, ExtraAction, Grammar, Mark, Modifiers, PagePoint, ScrollDirection, Size};

use crate::{FuzzTarget, Seed, accept};

pub(super) const GRAMMAR: FuzzTarget = FuzzTarget {
    name: "grammar",
    run,
    repair: None,
    memory_max: |_| 16 << 20,
    bytes_max: 4 << 10,
    catches_panics: false,
    seeds,
};

const IMAGE: Size = Size::new(1000, 500);

/// The first line names the grammar, `+` behind it enables all further actions.
///
/// What is written of an action may lose what the grammar cannot express; the rest reads back.
fn run(input: &[u8]) {
    let Ok(input) = std::str::from_utf8(input) else { return };
    let Some((head, text)) = input.split_once('\n') else { return };
    let Some(grammar) = grammar_of(head) else { return };
    let marks = marks();
    let view = ViewedPage { image: IMAGE, marks: Some(&marks) };
    let reply = grammar::parse(&grammar, text, view);
    assert_eq!(reply.raw_text, text, "a reply is kept as it was");
    let Ok(action) = reply.action else { return };
    accept();
    let remarks = ReplyRemarks { thought: "so".into(), ..ReplyRemarks::default() };
    let Ok(written) = grammar::encode(&grammar, &action, &remarks, view) else { return };
    let read = grammar::parse(&grammar, &written, view).action;
    let read = read.unwrap_or_else(|why| panic!("{why}: {written}"));
    let again = grammar::encode(&grammar, &read, &remarks, view);
    let again = again.unwrap_or_else(|why| panic!("{why} of {read:?} in {written:?}"));
    assert_eq!(grammar::parse(&grammar, &again, view).action, Ok(read), "{written} then {again}");
}

fn grammar_of(head: &str) -> Option<Grammar> {
    let (name, all) = head.strip_suffix('+').map_or((head, false), |name| (name, true));
    grammar::names().find(|known| *known == name)?;
    let extra = [
        ExtraAction::Drag,
        ExtraAction::SelectTab,
        ExtraAction::PressKey,
        ExtraAction::Write,
        ExtraAction::Upload,
    ];
    Some(Grammar { name: name.to_owned(), extra: if all { extra.into() } else { Vec::new() } })
}

fn marks() -> [Mark; 2] {
    [(1, 100.0), (2, 400.0)].map(|(mark, x)| Mark {
        mark,
        role: "button".into(),
        text: "OK".into(),
        x,
        y: 100.0,
        width: 60.0,
        height: 20.0,
    })
}

/// Each grammar's texts of some actions.
fn seeds() -> Vec<Seed> {
    let at = PagePoint { x: 130.0, y: 110.0 };
    let none = Modifiers::NONE;
    let actions = [
        Action::click(at),
        Action::Write { into: Some(at), content: "blue \"mug\"".into(), press_enter: true },
        Action::Scroll { at: Some(at), direction: ScrollDirection::Down, pixels: Some(300), modifiers: none },
        Action::Drag { from: Some(at), to: PagePoint { x: 400.0, y: 20.0 }, modifiers: none },
        Action::PressKey { key: "Control+a".into(), times: 1 },
        Action::Goto { url: "https://a.test/?q=1".into() },
        Action::Wait { seconds: 2 },
        Action::Answer { content: "42".into() },
        Action::Upload { names: vec!["cv.pdf".into()] },
    ];
    let marks = marks();
    let view = ViewedPage { image: IMAGE, marks: Some(&marks) };
    let remarks = ReplyRemarks { thought: "so".into(), note: "n".into(), element: "the box".into() };
    let mut seeds = Vec::new();
    for name in grammar::names() {
        let head = format!("{name}+");
        let Some(grammar) = grammar_of(&head) else { continue };
        for action in &actions {
            if let Ok(text) = grammar::encode(&grammar, action, &remarks, view) {
                seeds.push(Seed::new(&format!("{name}-{}", action.kind()), format!("{head}\n{text}")));
            }
        }
    }
    seeds
}
