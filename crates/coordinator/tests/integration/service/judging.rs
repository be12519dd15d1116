//! Scores by a judge behind an endpoint, which may be slow, broken or away.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn the_votes_of_a_judge_are_the_reward() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("key"), "sk-not-to-be-seen\n").unwrap();
    let deeds = vec![
        ServerAction::Status(429, Some("0.01")),
        reply_deed("It says 42.\nSUCCESS"),
        reply_deed("hm"),
        reply_deed("SUCCESS"),
    ];
    let server = FakeChatServer::start(deeds).unwrap();
    let judge =
        JudgeFile { votes: 3, screenshots: 2, key_file: Some(dir.path().join("key")), ..judge_file(&server) };
    let mut farm = TestFarm::open(JobSetup { score: JUDGE_SCORER, judge, ..JobSetup::default() }, dir.path())
        .await
        .unwrap();
    farm.register().await;
    let assignment = farm.lease_one().await;
    farm.act(&assignment, 3, "forty-two").await;
    farm.end().await.unwrap();

    let requests = server.requests();
    assert_eq!(requests.len(), 4, "once more after the 429, and three votes: no two of the first two agree");
    for (turn, seed) in [(0, 42), (1, 42), (2, 43), (3, 44)] {
        let body: serde_json::Value = serde_json::from_str(&requests[turn].body).unwrap();
        assert_eq!((body["seed"].as_i64(), body["model"].as_str()), (Some(seed), Some("eye")));
        let content = body["messages"][1]["content"].as_array().unwrap();
        assert_eq!(content.len(), 3, "the text and two pictures");
        let question_text = content[0]["text"].as_str().unwrap();
        assert!(
            question_text.contains("The task: \"Say 42.\"\nThe agent's answer: \"forty-two\""),
            "{question_text}"
        );
        assert!(requests[turn].headers.iter().any(|header| header.ends_with("Bearer sk-not-to-be-seen")));
    }
    let run = dir.path().join("run");
    assert!(verify(&run).unwrap().is_sound());
    let rows: Vec<_> = DataSet::open(&run).unwrap().trajectories().map(Result::unwrap).collect();
    let score = rows[0].score.as_ref().unwrap();
    assert_eq!((score.reward, score.success, score.scorer.as_str()), (Some(1.0), Some(true), "judge"));
    assert!(
        score.rationale.starts_with("eye on the last 2 screenshots: 2 yes, 0 no, 1 without"),
        "{}",
        score.rationale
    );
    // 3 × (1200 × 10 + 30 × 100) / 1,000,000 = 0.045
    assert!((rows[0].cost_usd.unwrap() - 0.045).abs() < 1e-6, "{:?}", rows[0].cost_usd);
    for (path, bytes) in all_bytes(&run) {
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("sk-not-to-be-seen"), "the key is in {}", path.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_judge_that_comes_back_scores_and_one_that_does_not_is_no_zero() {
    let limits = || LimitsFile { score_attempts_max: 2, attempts_max: 2, ..JobSetup::default().limits };
    // The server recovers: the first scoring fails after two attempts, the second succeeds.
    let dir = tempfile::tempdir().unwrap();
    let server = FakeChatServer::start(vec![
        ServerAction::Status(500, None),
        ServerAction::Truncated,
        reply_deed("NOT SUCCESS"),
    ])
    .unwrap();
    let setup =
        JobSetup { score: JUDGE_SCORER, judge: judge_file(&server), limits: limits(), ..JobSetup::default() };
    let mut farm = TestFarm::open(setup, dir.path()).await.unwrap();
    farm.register().await;
    let assignment = farm.lease_one().await;
    farm.act(&assignment, 1, "42").await;
    let summary = farm.end().await.unwrap();
    assert_eq!((summary.progress.scored, summary.progress.successes), (1, 0));
    assert_eq!(server.requests().len(), 3);

    // The server stays broken, in each way a server can fail: both attempts at the slot end as
    // scorer_error, nothing is scored.
    let gone = FakeChatServer::start(vec![]).unwrap().endpoint();
    let servers = [
        vec![ServerAction::Status(503, None)],
        vec![ServerAction::Status(401, None)],
        vec![reply_deed("I cannot tell.")],
        vec![ServerAction::Body("<html>".into())],
        vec![ServerAction::Silence(Duration::from_secs(60))],
        vec![ServerAction::Huge(2 << 20)],
        vec![],
    ];
    for deeds in servers {
        let dir = tempfile::tempdir().unwrap();
        let server = FakeChatServer::start(deeds.clone()).unwrap();
        let mut judge = JudgeFile { call_millis: 200, ..judge_file(&server) };
        if deeds.is_empty() {
            judge.endpoint.clone_from(&gone);
        }
        let setup = JobSetup { score: JUDGE_SCORER, judge, limits: limits(), ..JobSetup::default() };
        let mut farm = TestFarm::open(setup, dir.path()).await.unwrap();
        farm.register().await;
        for _ in 0..2 {
            let assignment = farm.lease_one().await;
            farm.act(&assignment, 1, "42").await;
        }
        let summary = farm.end().await.unwrap();
        assert_eq!(summary.progress.scored, 0, "{deeds:?}");
        assert_eq!(summary.progress.failed.get(&EndKind::ScorerError), Some(&2), "{deeds:?}");
        let run = dir.path().join("run");
        assert!(verify(&run).unwrap().is_sound(), "{deeds:?}");
        for row in DataSet::open(&run).unwrap().trajectories().map(Result::unwrap) {
            assert_eq!((row.status, row.ending.end, row.score), (Scored::Failed, EndKind::ScorerError, None));
            assert!(
                row.ending.reason.starts_with("scorer judge came to no verdict: "),
                "{}",
                row.ending.reason
            );
        }
        assert_eq!(DataSet::open(&run).unwrap().steps().count(), 0, "{deeds:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_judge_that_hangs_does_not_keep_a_stopping_coordinator() {
    let dir = tempfile::tempdir().unwrap();
    let server = FakeChatServer::start(vec![ServerAction::Status(503, None)]).unwrap();
    let judge = JudgeFile {
        attempts_max: 100,
        pause_millis: 60_000,
        deadline_millis: 600_000,
        ..judge_file(&server)
    };
    let setup = || JobSetup { score: JUDGE_SCORER, ..JobSetup::default() };
    let mut farm = TestFarm::open(JobSetup { judge, ..setup() }, dir.path()).await.unwrap();
    farm.register().await;
    let assignment = farm.lease_one().await;
    farm.act(&assignment, 1, "42").await;
    while server.requests().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    farm.stop().await.unwrap();
    // Acknowledged and not scored: the next coordinator has it scored.
    let server = FakeChatServer::start(vec![reply_deed("SUCCESS")]).unwrap();
    let farm = TestFarm::open(JobSetup { resume: true, judge: judge_file(&server), ..setup() }, dir.path())
        .await
        .unwrap();
    let summary = farm.end().await.unwrap();
    assert_eq!((summary.over, summary.progress.scored), (JobOutcome::Complete, 1));
}
