//! Replies of one length, and replies that never end a trajectory: walks through the automata of
//! random vocabularies.

use super::*;

/// Rules of a measurement.
fn rules(caps: TextCaps, exact_tokens: Option<u32>, endings: bool) -> ConstraintRules {
    ConstraintRules { caps, exact_tokens, endings }
}

fn compile(
    book: &TestVocabulary,
    grammar: &Grammar,
    rules: &ConstraintRules,
    max_tokens: u32,
) -> Result<Arc<Constraint>, ConstraintError> {
    Constraint::compile(grammar, &book.lexicon(), rules, max_tokens)
}

/// The least possible `exact_tokens`.
fn least(book: &TestVocabulary, grammar: &Grammar, rules: &ConstraintRules) -> u32 {
    let refused = compile(book, grammar, &ConstraintRules { exact_tokens: Some(1), ..rules.clone() }, 10_000);
    match refused {
        Err(ConstraintError::NotExact { least, .. }) => least,
        other => panic!("a reply of one id was accepted: {other:?}"),
    }
}

/// The name of an action's kind, without its fields.
fn kind(action: &Action) -> String {
    format!("{action:?}").split([' ', '{', '(']).next().unwrap().to_owned()
}

/// Whether an environment worker ends the trajectory after it, or ends it if its address is off the
/// task's list.
fn may_end(action: &Action) -> bool {
    action.parts().iter().any(|part| matches!(part, Action::Answer { .. }) || part.address().is_some())
}

/// Closes every text as soon as it is legal, and takes any id otherwise.
fn hasty(rng: &mut ChaCha12Rng) -> impl FnMut(&TestVocabulary, &[u32]) -> u32 {
    |book, ids| {
        let closing: Vec<u32> =
            ids.iter().filter(|id| book.pieces[**id as usize].starts_with(b"\"")).copied().collect();
        *closing.choose(rng).or(ids.choose(rng)).unwrap()
    }
}

/// Walks with three choosers and replies of these lengths. All are readable and of their length,
/// and none has an ending unless endings are allowed.
fn walked(grammar: &Grammar, endings: bool) -> BTreeSet<String> {
    let mut kinds = BTreeSet::new();
    for seed in 0..16 {
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        let book = TestVocabulary::random(seed);
        let given = rules(small(7), None, endings);
        let least = least(&book, grammar, &given);
        for exact in [least, least + 1, least + 2, least + 7, least + 60, 800] {
            let given = ConstraintRules { exact_tokens: Some(exact), ..given.clone() };
            let constraint = compile(&book, grammar, &given, 1_000).unwrap();
            for turn in 0..24 {
                let walk = match turn % 4 {
                    0 => walk(&book, &constraint, &mut anything(&mut rng)),
                    1 => walk(&book, &constraint, &mut restless(&mut rng)),
                    2 => walk(&book, &constraint, &mut hasty(&mut rng)),
                    _ => walk(&book, &constraint, &mut longest),
                };
                let at = format!("seed {seed}, {exact} ids, walk {turn}");
                assert_eq!(walk.ids.len(), exact as usize, "{at}");
                let action =
                    read(grammar, &book, &walk.ids, exact).unwrap_or_else(|why| panic!("{at}: {why}"));
                assert_eq!(walk.forced.last(), Some(&true), "the stop id is forced");
                kinds.insert(kind(&action));
                // Even if its texts are closed early, the long part is the thought and not the
                // white space after the action.
                let spaces =
                    walk.ids.iter().rev().skip(1).skip_while(|id| book.pieces[**id as usize].ends_with(b"}"));
                let spaces =
                    spaces.take_while(|id| book.pieces[**id as usize].trim_ascii().is_empty()).count();
                assert!((1..=least as usize).contains(&spaces), "{at}: {spaces} ids of white space");
            }
        }
    }
    kinds
}

#[test]
fn every_reply_has_exactly_so_many_ids_and_every_action_stays_possible() {
    let navigation = walked(&all_actions(), true);
    assert_eq!(navigation.iter().map(String::as_str).collect::<Vec<_>>(), ALL_ACTIONS);
    let step = walked(&plain("holo_step"), true);
    assert!(step.contains("Answer") && step.len() >= 10, "{step:?}");
}

#[test]
fn without_endings_no_reply_ends_a_trajectory() {
    let navigation = walked(&all_actions(), false);
    assert!(!navigation.contains("Answer") && !navigation.contains("Goto"), "{navigation:?}");
    assert_eq!(navigation.len(), ALL_ACTIONS.len() - 2, "{navigation:?}");
    let step = walked(&plain("holo_step"), false);
    assert!(!step.contains("Answer") && !step.contains("Goto") && step.len() >= 8, "{step:?}");
    // Without an exact length as well.
    let book = TestVocabulary::random(3);
    let mut rng = ChaCha12Rng::seed_from_u64(3);
    let grammar = all_actions();
    for (endings, want) in [(true, true), (false, false)] {
        let constraint = compile(&book, &grammar, &rules(small(3), None, endings), 1_000).unwrap();
        let ended = (0..400).any(|_| {
            let walk = walk(&book, &constraint, &mut anything(&mut rng));
            read(&grammar, &book, &walk.ids, 1_000).is_ok_and(|action| may_end(&action))
        });
        assert_eq!(ended, want);
    }
}

/// The actions that a grammar lists as endings are those that its parser reads as endings.
#[test]
fn the_endings_of_a_grammar_are_those_that_it_reads() {
    for grammar in [all_actions(), plain("holo_step")] {
        let frame = grammar::frame(&grammar).unwrap();
        let names: Vec<&str> = (frame.shapes)(&grammar.extra).iter().map(|shape| shape.name).collect();
        for ending in frame.endings {
            assert!(names.contains(ending), "{ending}");
        }
        let book = TestVocabulary::bytes();
        let constraint = compile(&book, &grammar, &TextCaps::default().into(), 10_000).unwrap();
        let mut rng = ChaCha12Rng::seed_from_u64(9);
        let mut read_as_endings = BTreeSet::new();
        for _ in 0..600 {
            let walk = walk(&book, &constraint, &mut hasty(&mut rng));
            let text = String::from_utf8(book.decode(&walk.ids)).unwrap();
            let reply = grammar::parse(&grammar, &text, ViewedPage::image(IMAGE));
            if reply.action.as_ref().is_ok_and(may_end) {
                read_as_endings.insert(reply.name);
            }
        }
        let endings: Vec<&str> = read_as_endings.iter().map(String::as_str).collect();
        assert_eq!(endings, frame.endings, "{}", grammar.name);
    }
}

#[test]
fn white_space_fills_a_short_action_and_the_thought_takes_the_rest() {
    let book = TestVocabulary::bytes();
    let grammar = all_actions();
    let given = rules(small(4), None, true);
    let least = least(&book, &grammar, &given);
    let exact = ConstraintRules { exact_tokens: Some(least + 20), ..given };
    let constraint = compile(&book, &grammar, &exact, 1_000).unwrap();
    // `a` wherever it is legal: the note has its cap of 4, the thought has its budget.
    let walk = walk(&book, &constraint, &mut only(b'a'));
    let text = String::from_utf8(book.decode(&walk.ids)).unwrap();
    let want =
        format!(r#"{{"note":"aaaa","thought":"{}","action":{{"action":"answer","content":""#, "a".repeat(16));
    assert!(text.starts_with(&want), "{text}");
    // The answer's text takes the ids that the longest action would need; then white space takes
    // the rest and is sampled.
    assert!(text.ends_with("\t}}") && text.contains(r#""content":"aaaa""#), "{text}");
    let spaces = text.chars().rev().skip(2).take_while(|letter| *letter == '\t').count();
    let sampled = walk.forced.iter().rev().skip(3).take(spaces).filter(|forced| !**forced).count();
    assert_eq!(sampled, spaces, "each is sampled from four ids");
}

#[test]
fn an_unreachable_exact_length_is_refused() {
    let book = TestVocabulary::bytes();
    let grammar = all_actions();
    let given = rules(small(4), None, true);
    let least = least(&book, &grammar, &given);
    let check = |exact: u32, max_tokens: u32, want: Option<String>| {
        let exact = ConstraintRules { exact_tokens: Some(exact), ..given.clone() };
        let got = compile(&book, &grammar, &exact, max_tokens).err().map(|error| error.to_string());
        assert_eq!(got.is_some(), want.is_some());
        let got = got.unwrap_or_default();
        let want = want.unwrap_or_default();
        assert!(got.starts_with(&want), "{got}\n{want}");
    };
    check(least, least, None);
    let message = |exact: u32| {
        format!(
            "policy.constrain.exact_tokens: {exact}; with this tokenizer a reply takes at least {least} ids"
        )
    };
    check(least - 1, 1_000, Some(message(least - 1)));
    check(300, 299, Some(message(300)));
    // A vocabulary without ids of white space alone.
    let mut crowded = book.clone();
    for byte in [b' ', b'\t', b'\n', b'\r'] {
        crowded.pieces[MARKS as usize + usize::from(byte)] = vec![b'x', byte];
    }
    let exact = ConstraintRules { exact_tokens: Some(300), ..given.clone() };
    assert_eq!(compile(&crowded, &grammar, &exact, 1_000).map(drop), Err(ConstraintError::NoSpace));
}

/// The cursor and its masks both refuse to close a text too early, or white space.
#[test]
fn an_exact_reply_cannot_be_closed_before_its_length() {
    let book = TestVocabulary::random(5);
    let grammar = all_actions();
    let given = rules(small(5), None, true);
    let least = least(&book, &grammar, &given);
    let constraint =
        compile(&book, &grammar, &ConstraintRules { exact_tokens: Some(least + 30), ..given }, 1_000)
            .unwrap();
    let mut rng = ChaCha12Rng::seed_from_u64(5);
    for _ in 0..8 {
        let mut cursor = ConstraintCursor::new(&constraint);
        while cursor.next() != NextToken::Done {
            let legal: Vec<u32> = match cursor.next() {
                NextToken::Forced(id) => vec![id],
                NextToken::Choose(allowed) => allowed.iter().collect(),
                NextToken::Done => unreachable!(),
            };
            for id in (0..book.pieces.len() as u32).filter(|id| !legal.contains(id)) {
                let mut tried = cursor.clone();
                assert_eq!(tried.advance(id), Err(IllegalToken { id, index: cursor.used() }));
                assert_eq!(tried.next(), cursor.next());
            }
            cursor.advance(*legal.choose(&mut rng).unwrap()).unwrap();
        }
        assert_eq!(cursor.used(), least + 30);
    }
}

#[test]
fn ordinary_jobs_have_the_masks_they_had() {
    let book = TestVocabulary::random(2);
    let ordinary = compile(&book, &all_actions(), &TextCaps::default().into(), 1_000).unwrap();
    let exact = rules(TextCaps::default(), Some(600), true);
    let exact = compile(&book, &all_actions(), &exact, 1_000).unwrap();
    assert!(ordinary.masks.space().is_none() && exact.masks.space().is_some());
    // White space, the step to it after a number, and the sets of a filling text with budget.
    assert!(exact.masks() <= ordinary.masks() + 8, "{} and {}", exact.masks(), ordinary.masks());
}
