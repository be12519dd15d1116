//! Random walks through the automata of random vocabularies: the parser accepts whatever is
//! sampled.

mod exact;
mod refusals;
mod schemas;

use std::collections::{BTreeSet, HashSet};

use furrow_rollout::{Action, ExtraAction, Size};
use proptest::prelude::*;
use rand::rngs::ChaCha12Rng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use super::*;
use crate::grammar::{self, HOLO_NAVIGATION, ReplyRemarks, ViewedPage};

/// Kinds of the actions of `all_actions`, sorted.
const ALL_ACTIONS: [&str; 13] = [
    "Answer",
    "Click",
    "Drag",
    "GoBack",
    "Goto",
    "PressKey",
    "Refresh",
    "Restart",
    "Scroll",
    "SelectTab",
    "Upload",
    "Wait",
    "Write",
];

const IMAGE: Size = Size::new(1000, 500);
/// Ids of special tokens, which are not text.
const STOP: u32 = 0;
const MARKS: u32 = 3;
/// Pieces that span the border between fixed and free text in both directions, and characters cut
/// in the middle.
const TEMPTING: &[&str] = &[
    "\"}",
    "\"}}",
    " \"",
    "\",",
    "\",\"",
    "\":\"",
    "{\"",
    "{\"note\":\"",
    "\",\"thought\":\"",
    "a\"",
    "x\":",
    "0}",
    "0}}",
    "1,\"",
    "12",
    "100",
    "1000",
    "1001",
    "007",
    "255",
    "\\\"",
    "\\",
    "\\\\\"",
    "\\u00",
    "\\u001",
    "1f",
    "ht",
    "http",
    "://",
    "s://",
    "https://www.",
    "click",
    "_element",
    "write",
    "write_",
    "_abs",
    "wr",
    "it",
    "true",
    "false",
    "down",
    " the",
    "ing",
    "é",
    "日本",
    "🦀",
    "\n",
    "\t",
    "go",
    "go_",
    "back",
    "to",
    "select_tab",
];

/// A byte-level vocabulary: special tokens, the bytes, then pieces.
#[derive(Debug, Clone)]
struct TestVocabulary {
    pieces: Vec<Vec<u8>>,
}

impl TestVocabulary {
    /// All bytes, and some of the pieces and of their parts.
    fn random(seed: u64) -> Self {
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        let mut pieces: BTreeSet<Vec<u8>> = BTreeSet::new();
        for _ in 0..rng.random_range(0..80) {
            let piece = TEMPTING.choose(&mut rng).unwrap().as_bytes();
            let cut = rng.random_range(0..piece.len());
            pieces.insert(if rng.random() { piece.to_vec() } else { piece[cut..].to_vec() });
        }
        let mut all: Vec<Vec<u8>> = (0..MARKS).map(|_| Vec::new()).collect();
        all.extend((0..=255).map(|byte| vec![byte]));
        all.extend(pieces.into_iter().filter(|piece| piece.len() > 1));
        Self { pieces: all }
    }

    fn bytes() -> Self {
        Self { pieces: Self::random(0).pieces[..MARKS as usize + 256].to_vec() }
    }

    fn text(&self, id: u32) -> Option<&[u8]> {
        self.pieces.get(id as usize).filter(|_| id >= MARKS).map(Vec::as_slice)
    }

    /// Greedy encoding with the longest piece that fits.
    fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let fits =
                (MARKS..self.pieces.len() as u32).filter(|id| rest.starts_with(&self.pieces[*id as usize]));
            let id = fits.max_by_key(|id| self.pieces[*id as usize].len()).unwrap();
            ids.push(id);
            rest = &rest[self.pieces[id as usize].len()..];
        }
        ids
    }

    fn decode(&self, ids: &[u32]) -> Vec<u8> {
        ids.iter().flat_map(|id| self.text(*id).unwrap_or_default()).copied().collect()
    }

    fn lexicon(&self) -> TokenLexicon<'_> {
        TokenLexicon::new(self.pieces.len(), STOP, |id| self.text(id), |text| self.encode(text))
    }

    fn constraint(&self, caps: &TextCaps, max_tokens: u32) -> Result<Arc<Constraint>, ConstraintError> {
        Constraint::compile(&all_actions(), &self.lexicon(), &caps.clone().into(), max_tokens)
    }
}

fn plain(name: &str) -> Grammar {
    Grammar { name: name.into(), extra: Vec::new() }
}

fn all_actions() -> Grammar {
    Grammar { name: HOLO_NAVIGATION.into(), extra: ExtraAction::ALL.to_vec() }
}

fn small(cap: u32) -> TextCaps {
    TextCaps { note: cap, thought: cap, content: cap, element: cap, url: cap, key: cap }
}

/// Chooses one of the legal ids.
type TokenChooser<'a> = dyn FnMut(&TestVocabulary, &[u32]) -> u32 + 'a;

/// Any legal id with equal probability, so texts run to their caps.
fn anything(rng: &mut ChaCha12Rng) -> impl FnMut(&TestVocabulary, &[u32]) -> u32 {
    |_, ids| *ids.choose(rng).unwrap()
}

/// Closes often, and leaves something open in between.
fn restless(rng: &mut ChaCha12Rng) -> impl FnMut(&TestVocabulary, &[u32]) -> u32 {
    |book, ids| {
        let close = rng.random_ratio(1, 4);
        let wanted = |id: &&u32| match book.pieces[**id as usize].as_slice() {
            [b'"', ..] => close,
            [.., last] => !close && (*last >= 0xC2 || *last == b'\\'),
            [] => false,
        };
        let some: Vec<u32> = ids.iter().filter(wanted).copied().collect();
        *some.choose(rng).or(ids.choose(rng)).unwrap()
    }
}

/// The id of the longest piece.
fn longest(book: &TestVocabulary, ids: &[u32]) -> u32 {
    *ids.iter().max_by_key(|id| book.pieces[**id as usize].len()).unwrap()
}

/// The id of one byte if it is legal, else the first legal id.
fn only(byte: u8) -> impl FnMut(&TestVocabulary, &[u32]) -> u32 {
    move |_, ids| ids.iter().copied().find(|id| *id == MARKS + u32::from(byte)).unwrap_or(ids[0])
}

/// A reply that a walk produced.
struct ConstrainedWalk {
    ids: Vec<u32>,
    forced: Vec<bool>,
    finish: FinishReason,
}

fn walk(
    book: &TestVocabulary,
    constraint: &Arc<Constraint>,
    taste: &mut TokenChooser<'_>,
) -> ConstrainedWalk {
    let mut cursor = ConstraintCursor::new(constraint);
    let mut ids = Vec::new();
    let mut forced = Vec::new();
    loop {
        let (id, only) = match cursor.next() {
            NextToken::Done => return ConstrainedWalk { ids, forced, finish: cursor.finish_reason() },
            NextToken::Forced(id) => (id, true),
            NextToken::Choose(allowed) => {
                assert!(allowed.count() > 1);
                (taste(book, &allowed.iter().collect::<Vec<_>>()), false)
            }
        };
        cursor.advance(id).unwrap();
        ids.push(id);
        forced.push(only);
        assert_eq!(cursor.used() as usize, ids.len());
    }
}

/// Parses the result of a walk; `Err` says what is wrong with it.
fn read(grammar: &Grammar, book: &TestVocabulary, ids: &[u32], max_tokens: u32) -> Result<Action, String> {
    let text = String::from_utf8(book.decode(ids)).map_err(|why| why.to_string())?;
    if ids.len() > max_tokens as usize {
        return Err(format!("{} ids, but {max_tokens} are allowed", ids.len()));
    }
    if ids.last() != Some(&STOP) || ids.iter().filter(|id| **id < MARKS).count() != 1 {
        return Err(format!("the stop id is not the last id alone: {ids:?}"));
    }
    grammar::parse(grammar, &text, ViewedPage::image(IMAGE))
        .action
        .map_err(|why| format!("{why} in {text:?}"))
}

#[test]
fn a_step_object_is_constrained_as_well() {
    let grammar = plain("holo_step");
    let mut tools = BTreeSet::new();
    for seed in 0..12 {
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        let book = TestVocabulary::random(seed);
        let constraint = Constraint::compile(&grammar, &book.lexicon(), &small(7).into(), 10_000).unwrap();
        for walked in 0..40 {
            let walk = match walked % 2 {
                0 => walk(&book, &constraint, &mut anything(&mut rng)),
                _ => walk(&book, &constraint, &mut restless(&mut rng)),
            };
            let action = read(&grammar, &book, &walk.ids, 10_000)
                .unwrap_or_else(|why| panic!("seed {seed}, walk {walked}: {why}"));
            tools.insert(action.kind());
        }
    }
    assert!(tools.len() >= 10, "{tools:?}");
}

#[test]
fn every_walk_is_read_and_fits() {
    let mut actions = BTreeSet::new();
    let mut cut = 0;
    let mut stopped = 0;
    for seed in 0..24 {
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        let book = TestVocabulary::random(seed);
        let least = book.constraint(&small(7), 10_000).unwrap().tokens_least();
        for max_tokens in [least, least + 1, least + 5, least + 40, 10_000] {
            let constraint = book.constraint(&small(7), max_tokens).unwrap();
            for walked in 0..36 {
                let walk = match walked % 3 {
                    0 => walk(&book, &constraint, &mut anything(&mut rng)),
                    1 => walk(&book, &constraint, &mut restless(&mut rng)),
                    _ => walk(&book, &constraint, &mut longest),
                };
                let action = read(&all_actions(), &book, &walk.ids, max_tokens)
                    .unwrap_or_else(|why| panic!("seed {seed}, {max_tokens} ids, walk {walked}: {why}"));
                actions.insert(format!("{action:?}").split([' ', '{']).next().unwrap().to_owned());
                assert_eq!(walk.forced.last(), Some(&true), "the stop id is forced");
                match walk.finish {
                    FinishReason::GrammarCap => cut += 1,
                    FinishReason::Stop => stopped += 1,
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    println!("seeds 0 to 23: {cut} replies were cut, {stopped} ended with a stop id: {actions:?}");
    assert!(cut > 100 && stopped > 20);
    assert_eq!(actions.iter().map(String::as_str).collect::<Vec<_>>(), ALL_ACTIONS);
}

#[test]
fn texts_are_closed_where_no_budget_is_left() {
    let book = TestVocabulary::bytes();
    #[track_caller]
    fn check(
        book: &TestVocabulary,
        caps: &TextCaps,
        budget: u32,
        byte: u8,
        want: &str,
        finish: FinishReason,
    ) {
        let least = book.constraint(caps, 100_000).unwrap().tokens_least();
        let constraint = book.constraint(caps, least + budget).unwrap();
        let walk = walk(book, &constraint, &mut only(byte));
        let text = String::from_utf8(book.decode(&walk.ids)).unwrap();
        assert!(text.starts_with(want), "{text}\n{want}");
        assert_eq!(walk.finish, finish);
    }
    let caps = TextCaps { thought: 2, ..small(4) };
    let cut = FinishReason::GrammarCap;
    check(&book, &caps, 1000, b'a', r#"{"note":"aaaa","thought":"aa","action":"#, cut);
    check(&book, &caps, 5, b'a', r#"{"note":"aaaa","thought":"a","action":"#, cut);
    check(&book, &caps, 3, b'a', r#"{"note":"aaa","thought":"","action":"#, cut);
    check(&book, &caps, 0, b'a', r#"{"note":"","thought":"","action":"#, cut);
    // A character begins only if the budget allows to finish it; here the first legal byte is a
    // space.
    check(&book, &caps, 1000, 0xF0, "{\"note\":\"\u{10000}\",\"thought\"", cut);
    check(&book, &caps, 3, 0xF0, r#"{"note":"   ","thought":"","action":"#, cut);
    check(&book, &small(0), 0, b'a', r#"{"note":"","thought":"","action":"#, FinishReason::Stop);
    let none = book.constraint(&small(0), 100_000).unwrap();
    assert_eq!(none.tokens_least(), none.tokens_most());
    let some = book.constraint(&caps, 100_000).unwrap();
    // note, thought, and the longest action: an element, a content.
    assert_eq!(some.tokens_most(), some.tokens_least() + 4 + 2 + 4 + 4);
}

/// The cursor after a text, if it can be cut into legal ids.
fn reach(book: &TestVocabulary, cursor: &ConstraintCursor, rest: &[u8]) -> Option<ConstraintCursor> {
    reach_but_from(book, cursor, rest, &mut HashSet::new())
}

/// Like `reach`, with a set of nodes from which no path continues. A text can be cut in
/// exponentially many ways, but these reach few nodes.
fn reach_but_from(
    book: &TestVocabulary,
    cursor: &ConstraintCursor,
    rest: &[u8],
    dead: &mut HashSet<(usize, String)>,
) -> Option<ConstraintCursor> {
    if rest.is_empty() {
        return Some(cursor.clone());
    }
    let ConstraintCursor { node_id, used, text, state, cut, .. } = cursor;
    let here = (rest.len(), format!("{:?}", (node_id, used, text, state, cut)));
    if dead.contains(&here) {
        return None;
    }
    let mut goes_on = |id: u32| {
        let rest = rest.strip_prefix(book.text(id)?)?;
        let mut next = cursor.clone();
        next.advance(id).unwrap();
        reach_but_from(book, &next, rest, dead)
    };
    let reached = match cursor.next() {
        NextToken::Done => None,
        NextToken::Forced(id) => goes_on(id),
        NextToken::Choose(allowed) => {
            // Longest first, because the first attempt is nearly always right.
            let mut ids: Vec<u32> = allowed.iter().collect();
            ids.sort_by_key(|id| usize::MAX - book.pieces[*id as usize].len());
            ids.into_iter().find_map(goes_on)
        }
    };
    if reached.is_none() {
        dead.insert(here);
    }
    reached
}

/// Texts that fail only at their end, after free text that can be cut in 2^40 ways. A test must not
/// try them all.
#[test]
fn a_text_is_refused_in_little_time_however_many_ways_it_can_be_cut() {
    let thought = "abab".repeat(20);
    for seed in 0..6 {
        let book = TestVocabulary::random(seed);
        let constraint = book.constraint(&small(1000), 100_000).unwrap();
        let remarks = ReplyRemarks { thought: thought.clone(), ..ReplyRemarks::default() };
        let text =
            grammar::encode(&all_actions(), &Action::Refresh, &remarks, ViewedPage::image(IMAGE)).unwrap();
        assert!(accepts(&book, &constraint, &text), "{text}");
        assert!(!accepts(&book, &constraint, &text.replacen("}}", "}", 1)), "{text}");
    }
}

fn accepts(book: &TestVocabulary, constraint: &Arc<Constraint>, text: &str) -> bool {
    reach(book, &ConstraintCursor::new(constraint), text.as_bytes())
        .is_some_and(|cursor| cursor.next() == NextToken::Forced(STOP))
}

fn any_action() -> impl Strategy<Value = Action> {
    use furrow_rollout::{ModelPoint, ScrollDirection, page_from_model};
    let point = || (0u16..=1000, 0u16..=1000).prop_map(|(x, y)| page_from_model(ModelPoint { x, y }, IMAGE));
    let direction = prop::sample::select(vec![
        ScrollDirection::Down,
        ScrollDirection::Up,
        ScrollDirection::Left,
        ScrollDirection::Right,
    ]);
    let text = || prop_oneof![".{0,30}", "[\\x00-\\x22\\\\]{0,12}"];
    let scheme = prop::sample::select(vec!["http://", "https://"]);
    prop_oneof![
        point().prop_map(Action::click),
        (point(), text()).prop_map(|(at, content)| Action::Write {
            into: Some(at),
            content,
            press_enter: true
        }),
        (text(), any::<bool>()).prop_map(|(content, press_enter)| Action::Write {
            into: None,
            content,
            press_enter
        }),
        direction.prop_map(Action::scroll),
        Just(Action::GoBack),
        Just(Action::Refresh),
        Just(Action::Restart),
        (scheme, text()).prop_map(|(scheme, rest)| Action::Goto { url: format!("{scheme}{rest}") }),
        (0u8..=10).prop_map(|seconds| Action::Wait { seconds }),
        text().prop_map(|content| Action::Answer { content }),
        (point(), point()).prop_map(|(from, to)| Action::drag(from, to)),
        (0u32..256).prop_map(|index| Action::SelectTab { index }),
        text().prop_map(Action::press),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_the_encoder_writes_is_accepted(action in any_action(), thought in ".{0,20}", element in ".{0,20}", seed in 0u64..6) {
        let book = TestVocabulary::random(seed);
        let constraint = book.constraint(&small(1000), 100_000).unwrap();
        let remarks = ReplyRemarks { thought, element, ..ReplyRemarks::default() };
        let text = grammar::encode(&all_actions(), &action, &remarks, ViewedPage::image(IMAGE)).unwrap();
        prop_assert!(accepts(&book, &constraint, &text), "{}", text);
        // The first two stand before the texts, which may hold anything; the last brace stands
        // behind them.
        let unfinished = text.strip_suffix('}').unwrap();
        for wrong in [text.replacen("note", "Note", 1), text.replacen('{', "{ ", 1), unfinished.to_owned()] {
            prop_assert!(!accepts(&book, &constraint, &wrong), "{}", wrong);
        }
    }
}

/// All numbers that a node can write.
fn numbers_at(
    book: &TestVocabulary,
    cursor: &ConstraintCursor,
    written: String,
    found: &mut BTreeSet<String>,
) {
    let NextToken::Choose(allowed) = cursor.next() else {
        found.insert(written);
        return;
    };
    for id in allowed.iter() {
        match str::from_utf8(&book.pieces[id as usize]) {
            Ok(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                let mut next = cursor.clone();
                next.advance(id).unwrap();
                numbers_at(book, &next, format!("{written}{digits}"), found);
            }
            _ => drop(found.insert(written.clone())),
        }
    }
}

#[test]
fn numbers_are_all_of_their_range_and_no_other() {
    for seed in 0..4 {
        let book = TestVocabulary::random(seed);
        let constraint = book.constraint(&small(9), 10_000).unwrap();
        for (action, to) in [
            (r#"click_element","element":"","x":"#, 1000),
            (r#"wait","seconds":"#, 10),
            (r#"select_tab","index":"#, 255),
        ] {
            let before = format!(r#"{{"note":"","thought":"","action":{{"action":"{action}"#);
            let cursor = reach(&book, &ConstraintCursor::new(&constraint), before.as_bytes()).unwrap();
            let mut found = BTreeSet::new();
            numbers_at(&book, &cursor, String::new(), &mut found);
            let want: BTreeSet<String> = (0..=to).map(|number: u32| number.to_string()).collect();
            assert_eq!(found, want, "seed {seed}, {action}");
        }
    }
}

#[test]
fn planted_bugs_are_caught() {
    // The walks of `every_walk_is_read_and_fits` over an automaton that was broken on purpose: a
    // reply must be unreadable or too long.
    #[track_caller]
    fn check(what: &str, plant: impl Fn(&TestVocabulary, &mut Constraint)) {
        let caught = (0..12).any(|seed| {
            let mut book = TestVocabulary::random(seed);
            book.pieces.extend([b"a\"".to_vec(), b"\xE6\x97".to_vec(), b"x\\".to_vec(), b"00".to_vec()]);
            let least = book.constraint(&small(7), 10_000).unwrap().tokens_least();
            let mut constraint = Arc::into_inner(book.constraint(&small(7), least + 9).unwrap()).unwrap();
            plant(&book, &mut constraint);
            constraint.masks =
                TokenMasks::new(&constraint.automaton, &constraint.texts, book.pieces.len()).unwrap();
            let constraint = Arc::new(constraint);
            let mut rng = ChaCha12Rng::seed_from_u64(seed);
            (0..60).any(|_| {
                read(&all_actions(), &book, &walk(&book, &constraint, &mut anything(&mut rng)).ids, least + 9)
                    .is_err()
            })
        });
        assert!(caught, "{what} was not detected");
    }
    let id = |book: &TestVocabulary, piece: &[u8]| {
        book.pieces.iter().position(|known| known == piece).unwrap() as u32
    };
    check("an id across the end of a text", |book, constraint| {
        Arc::get_mut(&mut constraint.texts).unwrap().plant(id(book, b"a\""), TextState::Plain);
    });
    check("half a character", |book, constraint| {
        Arc::get_mut(&mut constraint.texts).unwrap().plant(id(book, b"\xE6\x97"), TextState::Plain);
    });
    check("an open escape", |book, constraint| {
        Arc::get_mut(&mut constraint.texts).unwrap().plant(id(book, b"x\\"), TextState::Plain);
    });
    check("a reserve too small", |_, constraint| constraint.max_tokens += 5);
    check("a control byte", |book, constraint| {
        Arc::get_mut(&mut constraint.texts).unwrap().plant(id(book, b"\n"), TextState::Plain);
    });
}
