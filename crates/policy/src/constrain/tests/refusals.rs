//! Grammars, schemas and ids that are refused.

use super::*;

#[test]
fn a_grammar_without_one_layout_is_refused() {
    let book = TestVocabulary::random(0);
    let refused =
        |name| Constraint::compile(&plain(name), &book.lexicon(), &small(7).into(), 10_000).map(drop);
    for name in grammar::names() {
        let leads = ["holo_navigation", "holo_step"].contains(&name);
        assert_eq!(refused(name).is_ok(), leads, "{name}");
    }
}

#[test]
fn what_cannot_be_enforced_is_refused() {
    #[track_caller]
    fn check(book: &TestVocabulary, rows: usize, stop: u32, max_tokens: u32, want: &str) {
        let lexicon = TokenLexicon::new(rows, stop, |id| book.text(id), |text| book.encode(text));
        let refused = Constraint::compile(&all_actions(), &lexicon, &TextCaps::default().into(), max_tokens)
            .unwrap_err();
        assert!(refused.to_string().starts_with(want), "\n got {refused}\nwant {want}");
    }
    let book = TestVocabulary::bytes();
    let rows = book.pieces.len();
    check(&book, rows, rows as u32, 512, "the stop id 259 is not below the model's 259 rows");
    let least = book.constraint(&TextCaps::default(), 512).unwrap().tokens_least();
    let message =
        format!("policy.sampling.max_tokens: {}; a constrained reply takes at least {least} ids", least - 1);
    check(&book, rows, STOP, least - 1, &message);
    check(&book, rows, STOP, 0, "policy.sampling.max_tokens: 0;");
    check(&book, 100, STOP, 512, "the tokenizer does not decode the ids [128, 128] back to \"}}\";");
    // A stop id that is a piece of text could end a reply in the middle.
    check(&book, rows, MARKS + u32::from(b'{'), 512, "the tokenizer does not decode");
    let mut no_digit = book.clone();
    no_digit.pieces[MARKS as usize + usize::from(b'7')] = b"77".to_vec();
    check(&no_digit, rows, STOP, 512, "the tokenizer has no id for the digit 7 alone");
    let twice = TokenLexicon::new(rows, STOP, |id| book.text(id), |_| vec![MARKS]);
    assert!(matches!(
        Constraint::compile(&all_actions(), &twice, &TextCaps::default().into(), 512),
        Err(ConstraintError::Encoding { .. })
    ));
}

#[test]
fn illegal_ids_are_refused_and_change_nothing() {
    let book = TestVocabulary::random(1);
    let constraint = book.constraint(&small(5), 10_000).unwrap();
    let mut rng = ChaCha12Rng::seed_from_u64(1);
    let mut cursor = ConstraintCursor::new(&constraint);
    while cursor.next() != NextToken::Done {
        let legal: Vec<u32> = match cursor.next() {
            NextToken::Forced(id) => vec![id],
            NextToken::Choose(allowed) => allowed.iter().collect(),
            NextToken::Done => Vec::new(),
        };
        let before = format!("{:?}", (cursor.node_id, cursor.used, cursor.text, cursor.state));
        for id in (0..book.pieces.len() as u32 + 70).filter(|id| !legal.contains(id)) {
            assert_eq!(cursor.advance(id), Err(IllegalToken { id, index: cursor.used() }));
        }
        assert_eq!(format!("{:?}", (cursor.node_id, cursor.used, cursor.text, cursor.state)), before);
        cursor.advance(*legal.choose(&mut rng).unwrap()).unwrap();
    }
    assert!(cursor.advance(STOP).is_err());
}
