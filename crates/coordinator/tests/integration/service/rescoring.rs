//! A run scored again, by the stored scorers and by others.

use super::*;

/// Scores a run again, with the stored scorers or with those of a task file that is `score` for
/// both tasks.
fn rescore_run(
    dir: &Path,
    score: Option<&'static str>,
    by: JudgeFile,
    change: impl FnOnce(&mut RescoreJob),
) -> Result<RescoreSummary, RescoreError> {
    let elsewhere = tempfile::tempdir().unwrap();
    let tasks = score.map(|score| JobSetup { score, ..JobSetup::default() }.job(elsewhere.path()).tasks);
    let mut job = RescoreJob {
        run_dir: dir.join("run"),
        tasks: tasks.map(|set| vec![set]),
        filter: RescoreFilter::default(),
        judge: judge(by),
        scorers_max: 3,
        records: RecordsFile::default().check().unwrap(),
        shared_job: "[run]\nname = \"other\"\n".into(),
        dry_run: false,
    };
    change(&mut job);
    let mut last = (0, 0);
    let done = rescore(&job, &CancellationToken::new(), |done, total| last = (done, total));
    if done.is_ok() {
        assert!(last.0 == last.1 && last.1 > 0, "{last:?}");
    }
    done
}

const OTHER: &str = r#"{"kind":"answer","match":"must_include","value":"idea"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_scorer_gives_the_changed_reward_and_nothing_stored_is_rewritten() {
    let dir = tempfile::tempdir().unwrap();
    let mut farm = TestFarm::open(JobSetup { groups: 3, group_size: 2, ..JobSetup::default() }, dir.path())
        .await
        .unwrap();
    farm.register().await;
    let broken = farm.lease_one().await;
    farm.finish(broken.ending(0, EndKind::BrowserDead, None)).await.unwrap();
    for answer in ["42", "42", "42", "no idea", "an idea", "41"] {
        let assignment = farm.lease_one().await;
        farm.act(&assignment, 2, answer).await;
    }
    assert!(matches!(
        rescore_run(dir.path(), None, JudgeFile::default(), |_| {}),
        Err(RescoreError::Lock(_))
    ));
    farm.end().await.unwrap();

    let path = dir.path().to_owned();
    let rescoring = tokio::task::spawn_blocking(move || {
        let before = all_bytes(&path.join("run/data"));
        check_other_scorer(&path, &before);
        check_score_rows(&path);
        let after = all_bytes(&path.join("run/data"));
        // The card says which commit the data set is at.
        for file in before.iter().filter(|file| !file.0.ends_with("README.md")) {
            assert!(after.contains(file), "{} was rewritten", file.0.display());
        }
        check_filters(&path);
        check_judges(&path);
    });
    rescoring.await.unwrap();

    // The coordinator continues beside the scores.
    let setup = JobSetup { resume: true, groups: 3, group_size: 2, ..JobSetup::default() };
    let summary = TestFarm::open(setup, dir.path()).await.unwrap().end().await.unwrap();
    assert_eq!(summary.over, JobOutcome::Complete);
    assert!(verify(&dir.path().join("run")).unwrap().is_sound());
}

/// A dry run, the stored scorers and another one.
fn check_other_scorer(path: &Path, before: &[(PathBuf, Vec<u8>)]) {
    let tried = rescore_run(path, Some(OTHER), JudgeFile::default(), |job| job.dry_run = true).unwrap();
    assert_eq!((tried.scored, tried.changed, tried.manifest_version), (6, 4, None));
    assert_eq!(all_bytes(&path.join("run/data")), before, "nothing is written");

    let same = rescore_run(path, None, JudgeFile::default(), |_| {}).unwrap();
    assert_eq!((same.submitted, same.scored, same.changed, same.failed), (6, 6, 0, 1));
    assert_eq!((same.reward_before, same.reward_after), (3.0, 3.0));
    let other = rescore_run(path, Some(OTHER), JudgeFile::default(), |_| {}).unwrap();
    // "no idea" negates it: of the six only "an idea" is right, and the three that answered 42 are
    // not any more.
    assert_eq!((other.scored, other.changed, other.reward_after), (6, 4, 1.0));
    assert_eq!((other.successes_before, other.successes_after), (3, 1));
    assert!(other.manifest_version > same.manifest_version);
}

/// The rewards in `trajectories` stay, and `scores` has a row for each verdict of both scorings.
fn check_score_rows(path: &Path) {
    let run = path.join("run");
    let report = verify(&run).unwrap();
    assert!(report.is_sound(), "{report:?}");
    assert_eq!(report.counts.scores, 12);
    let data = DataSet::open(&run).unwrap();
    let mut answers = BTreeMap::new();
    for row in data.trajectories().map(Result::unwrap).filter(|row| row.status == Scored::Scored) {
        let answer = row.ending.evidence.unwrap().answer.unwrap();
        assert_eq!(
            row.score.unwrap().reward,
            Some(if answer == "42" { 1.0 } else { 0.0 }),
            "stored scores stay"
        );
        answers.insert(row.ancestry.trajectory_id.to_string(), answer);
    }
    for row in data.rescores().map(Result::unwrap).skip(6) {
        let right = answers[row.ancestry.trajectory_id.as_str()] == "an idea";
        assert_eq!(row.score.reward, Some(if right { 1.0 } else { 0.0 }));
    }
}

/// A few, by suite and id; a file that a killed scoring left is removed from the data set.
fn check_filters(path: &Path) {
    let run = path.join("run");
    std::fs::write(run.join("data/scores/loopback-score-1.parquet"), "half").unwrap();
    let none =
        rescore_run(path, Some(OTHER), JudgeFile::default(), |job| job.filter.suite = Some("x".into()))
            .unwrap();
    assert_eq!((none.submitted, none.left_out, none.manifest_version), (0, 6, None));
    let all =
        rescore_run(path, None, JudgeFile::default(), |job| job.filter.task = Some("*s*".into())).unwrap();
    assert_eq!(all.submitted, 6);
    assert!(!run.join("data/scores/loopback-score-1.parquet").exists());
    assert!(verify(&run).unwrap().is_sound());
}

/// An unreachable judge gives no rows; a reachable one receives the pictures of the last steps.
fn check_judges(path: &Path) {
    let server = FakeChatServer::start(vec![ServerAction::Status(503, None)]).unwrap();
    let unheard = rescore_run(path, Some(JUDGE_SCORER), judge_file(&server), |_| {}).unwrap();
    assert_eq!((unheard.scored, unheard.unscored, unheard.manifest_version), (0, 6, None));
    assert!(unheard.named[0].1.contains("answered 503"), "{:?}", unheard.named);
    let server = FakeChatServer::start(vec![reply_deed("SUCCESS")]).unwrap();
    let by = JudgeFile { screenshots: 3, ..judge_file(&server) };
    let by_judge = rescore_run(path, Some(JUDGE_SCORER), by, |_| {}).unwrap();
    assert_eq!((by_judge.scored, by_judge.reward_after), (6, 6.0));
    assert!((by_judge.cost_usd.unwrap() - 6.0 * 0.015).abs() < 1e-4, "{:?}", by_judge.cost_usd);
    // Two steps and the end; the answer's own step shows the same page as the end.
    for request in server.requests() {
        assert_eq!(request.body.matches("data:image/png").count(), 2);
    }
    assert!(verify(&path.join("run")).unwrap().is_sound());
}
