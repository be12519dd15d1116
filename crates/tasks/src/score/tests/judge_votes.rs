//! The votes of a judge: what decides, what it is shown, what it costs.

use std::sync::Mutex;

use super::*;
use crate::judge::{JudgeQuery, JudgeReply};

/// Replies with the given texts in order, and records the questions.
struct CannedJudge {
    settings: JudgeSettings,
    replies: Mutex<std::vec::IntoIter<Result<JudgeReply, String>>>,
    questions: Mutex<Vec<JudgeQuery>>,
}

fn replying(text: &str) -> Result<JudgeReply, String> {
    Ok(JudgeReply {
        text: text.to_owned(),
        prompt_tokens: 100,
        completion_tokens: 10,
        cost_usd: Some(0.25),
        cut: false,
    })
}

fn canned(votes: u32, screenshots: u32, replies: Vec<Result<JudgeReply, String>>) -> CannedJudge {
    let habits = JudgeSettings { model: "m".to_owned(), screenshots, votes, show_reference: false };
    CannedJudge { settings: habits, replies: Mutex::new(replies.into_iter()), questions: Mutex::default() }
}

impl Judge for CannedJudge {
    fn settings(&self) -> &JudgeSettings {
        &self.settings
    }

    fn ask(&self, question: &JudgeQuery) -> Result<JudgeReply, String> {
        self.questions.lock().unwrap().push(question.clone());
        self.replies.lock().unwrap().next().expect("no more questions than prepared replies")
    }
}

fn evidence_with_answer() -> Evidence {
    Evidence { screenshot: Some(Bytes::from_static(b"last")), ..answered("7") }
}

fn judge(judge: &CannedJudge, score: Value, evidence: &Evidence, end: EndKind) -> Result<Score, ScoreError> {
    let earlier = [b"one", b"two", b"thr"].map(|bytes| Bytes::from_static(bytes));
    let facts = EndFacts { end, ..FACTS };
    scorer(score).score_with(
        &FinishedTrajectory { evidence, facts: &facts, goal: "Count.", earlier: &earlier },
        Some(judge),
    )
}

#[test]
fn more_than_half_of_all_votes_decide() {
    let yes = || replying("SUCCESS");
    let no = || replying("NOT SUCCESS");
    let mute = || replying("hm");
    let broken = || Err("it is unreachable".to_owned());
    let cut = || Ok(JudgeReply { text: "SUCCESS".to_owned(), cut: true, ..JudgeReply::default() });
    let cut_no = || Ok(JudgeReply { text: "NOT SUCCESS".to_owned(), cut: true, ..JudgeReply::default() });
    let table = [
        (1, vec![yes()], Ok(true), 1),
        (1, vec![no()], Ok(false), 1),
        (1, vec![mute()], Err("are inconclusive: 0 yes, 0 no, 1 without a verdict, of 1"), 1),
        (1, vec![broken()], Err("it is unreachable"), 1),
        (1, vec![cut()], Err("are inconclusive"), 1),
        (1, vec![cut_no()], Ok(false), 1),
        (3, vec![yes(), yes()], Ok(true), 2),
        (3, vec![no(), yes(), no()], Ok(false), 3),
        (3, vec![yes(), no(), mute()], Err("1 yes, 1 no, 1 without a verdict, of 3"), 3),
        (3, vec![yes(), mute(), yes()], Ok(true), 3),
        (3, vec![yes(), broken()], Err("it is unreachable"), 2),
        (2, vec![yes(), no()], Err("are inconclusive"), 2),
        (5, vec![no(), no(), no()], Ok(false), 3),
    ];
    for (votes, replies, want, question_count) in table {
        let canned = canned(votes, 1, replies);
        let got = judge(&canned, json!({"kind": "judge"}), &evidence_with_answer(), EndKind::Answered);
        let got = got.map(|score| (score.reward, score.success)).map_err(|error| error.to_string());
        match want {
            Ok(yes) => assert_eq!(got, Ok((Some(if yes { 1.0 } else { 0.0 }), Some(yes))), "{votes}"),
            Err(why) => assert!(got.as_ref().unwrap_err().contains(why), "{got:?}"),
        }
        let questions = canned.questions.lock().unwrap();
        let seeds: Vec<_> = questions.iter().map(|question| question.vote).collect();
        assert_eq!(seeds, (0..question_count).collect::<Vec<_>>(), "{votes}");
    }
}

#[test]
fn it_gets_the_last_pictures_and_an_answers_own_step_once() {
    let table = [
        (1, EndKind::Answered, "last"),
        (2, EndKind::Answered, "two last"),
        (9, EndKind::Answered, "one two last"),
        (2, EndKind::Done, "thr last"),
        (9, EndKind::Done, "one two thr last"),
    ];
    for (count, end, want) in table {
        let canned = canned(1, count, vec![replying("SUCCESS")]);
        judge(&canned, json!({"kind": "judge"}), &evidence_with_answer(), end).unwrap();
        let questions = canned.questions.lock().unwrap();
        let pictures: Vec<_> =
            questions[0].pictures.iter().map(|bytes| String::from_utf8_lossy(bytes)).collect();
        assert_eq!(pictures.join(" "), want, "{count} {end:?}");
    }
    let habits = canned(1, 4, Vec::new()).settings;
    for (score, want) in [
        (json!({"kind": "judge"}), 4),
        (json!({"kind": "judge", "screenshots": 1}), 0),
        (
            json!({"kind": "all", "of": [{"kind": "judge", "screenshots": 2}, {"kind": "not", "of": {"kind": "judge"}}]}),
            4,
        ),
        (json!({"kind": "probe"}), 0),
    ] {
        assert_eq!(scorer(score).screenshots(&habits), want);
    }
}

#[test]
fn no_answer_is_a_no_without_a_question_and_a_lost_one_no_verdict() {
    let canned = canned(1, 1, Vec::new());
    let score = json!({"kind": "judge"});
    let unanswered = Evidence { answer: None, ..evidence_with_answer() };
    let got = judge(&canned, score.clone(), &unanswered, EndKind::MaxSteps).unwrap();
    assert_eq!((got.reward, got.success), (Some(0.0), Some(false)));
    assert!(judge(&canned, score.clone(), &unanswered, EndKind::Answered).is_err());
    let unseen = Evidence { screenshot: None, ..evidence_with_answer() };
    let error = judge(&canned, score, &unseen, EndKind::Answered).unwrap_err().to_string();
    assert!(error.contains("the last screenshot"), "{error}");
}

#[test]
fn usage_is_counted_and_the_reference_is_sent_only_on_request() {
    let with_reference = json!({"kind": "judge", "votes": 3, "reference": {"type": "golden", "answer": "7"}});
    let mut canned = canned(
        1,
        1,
        vec![replying("NOT SUCCESS"), replying("It is 7:\nSUCCESS"), replying("\u{7}\nSUCCESS")],
    );
    let got = judge(&canned, with_reference.clone(), &evidence_with_answer(), EndKind::Answered).unwrap();
    let parts: Vec<_> = got.components.iter().map(|part| (part.name.as_str(), part.value)).collect();
    let want = [
        ("judge_yes", 2.0),
        ("judge_no", 1.0),
        ("judge_prompt_tokens", 300.0),
        ("judge_completion_tokens", 30.0),
        ("judge_cost_usd", 0.75),
    ];
    assert_eq!(parts, want);
    assert_eq!(judge_cost_usd(&got), Some(0.75));
    assert_eq!(
        got.rationale,
        "m on the last 1 screenshots: 2 yes, 1 no, 0 without a verdict, of 3:   SUCCESS"
    );
    assert!(!canned.questions.lock().unwrap()[0].text.contains("right answer"));
    canned.settings.show_reference = true;
    canned.replies = Mutex::new(vec![replying("SUCCESS"), replying("SUCCESS")].into_iter());
    let all =
        json!({"kind": "all", "of": [with_reference, {"kind": "answer", "match": "exact", "value": "7"}]});
    let got = judge(&canned, all, &evidence_with_answer(), EndKind::Answered).unwrap();
    assert_eq!(judge_cost_usd(&got), Some(0.5));
    assert!(canned.questions.lock().unwrap()[3].text.ends_with("The right answer: \"7\""));
    let free = scorer(json!({"kind": "answer", "match": "exact", "value": "7"}))
        .score(&evidence_with_answer(), &FACTS)
        .unwrap();
    assert_eq!(judge_cost_usd(&free), None);
}
