//! An evaluation of a data set, compared with a Python script that computes it from the Parquet
//! files alone.

use std::collections::BTreeMap;
use std::process::Command;

use furrow_analysis::{EvaluationQuery, EvaluationReport, FailureReason, LineGrouping, evaluate, kept};
use furrow_records::fixtures::data_set::{commit_files, write};
use furrow_records::fixtures::{self, TrajectoryFixture};
use furrow_rollout::{EndKind, PolicyKind, Split, StepRecord, TrajectoryRecord};
use rand::rngs::ChaCha12Rng;
use rand::{Rng, SeedableRng};

const SEED: u64 = 20_261_122;

/// An attempt at one of 24 tasks of two suites, six sites and three difficulties.
fn attempt(group: u64, sample: u32, rng: &mut ChaCha12Rng) -> (TrajectoryRecord, Vec<StepRecord>) {
    let mut share = || rng.next_u64() as f64 / u64::MAX as f64;
    let task = group % 24;
    // The farm fails one time in eight; tasks differ much, as real tasks do.
    let end = if share() < 0.125 { EndKind::BrowserDead } else { EndKind::Answered };
    let solved = share() < (task % 6) as f64 / 5.0;
    let reward = if solved { 1.0 } else { (share() * 4.0).floor() as f32 / 5.0 };
    let plot = TrajectoryFixture {
        group,
        sample,
        group_size: 4,
        steps: 1,
        end,
        reward,
        kind: PolicyKind::Random,
        ..TrajectoryFixture::default()
    };
    let (mut record, steps) = plot.trajectory();
    record.task.suite = if task < 16 { "web" } else { "live" }.into();
    record.task.task_id = format!("task-{task}");
    record.task.seed = group / 48;
    record.task.start_url = format!("http://site{}.web.test:80/start?x", task % 4);
    record.task_json = match task {
        0..16 => format!(
            r#"{{"task_id":"task-{task}","difficulty":"{}"}}"#,
            ["easy", "medium", "hard"][(task % 3) as usize]
        ),
        _ => format!(r#"{{"id":"task-{task}","web_name":"Site {}","difficulty":{}}}"#, task % 2, task % 3),
    };
    if let Some(score) = &mut record.score {
        // A scorer need not decide whether a reward is a success.
        score.success = (task != 7).then_some(solved);
    }
    (record, steps)
}

#[test]
fn metrics_agree_with_those_of_a_script() {
    println!("seed {SEED}");
    let dir = tempfile::tempdir().unwrap();
    let mut rng = ChaCha12Rng::seed_from_u64(SEED);
    // Tasks have 4 or 8 attempts under one seed, and some have a second seed.
    for (shard, groups) in [("a", 0..40), ("b", 40..96)] {
        let made: Vec<_> = groups
            .flat_map(|group| (0..4).map(move |sample| (group, sample)))
            .map(|(group, sample)| attempt(group, sample, &mut rng))
            .collect();
        let files = write(dir.path(), shard, &made, &[fixtures::group(&[made[0].0.clone()])], &[]);
        commit_files(dir.path(), shard, files);
    }
    let evaluation = evaluate(dir.path(), &EvaluationQuery::default()).unwrap();
    let all = &evaluation.lines[0];
    assert_eq!((all.by, all.tasks, all.problems), (LineGrouping::All, 24, 48));
    assert!(all.scored > all.success_known && !all.failed.is_empty() && all.lost_slots > 0, "{all:?}");
    // All failures of the fixtures have one reason, under different ends.
    let by_end = |reason: &FailureReason| (reason.end.clone(), reason.count);
    let reasons: BTreeMap<String, u64> = evaluation.failure_reasons.iter().map(by_end).collect();
    assert_eq!(reasons, all.failed);
    assert!(evaluation.failure_reasons.iter().all(|one| one.reason == "the browser went away"));
    assert_eq!(all.pass.iter().map(|pass| pass.k).collect::<Vec<_>>(), [1, 2, 4, 8]);
    assert!(evaluation.policy.is_fixed);
    assert_eq!(evaluation.lines.iter().filter(|line| line.by == LineGrouping::Site).count(), 6);
    script::check_with_a_script(dir.path(), &evaluation);
}

/// Each group of split `eval` belongs to the version of its attempts with a reward; a failed one
/// began on other weights.
#[test]
fn each_version_that_was_evaluated_has_its_line() {
    println!("seed {SEED}");
    let dir = tempfile::tempdir().unwrap();
    let mut rng = ChaCha12Rng::seed_from_u64(SEED);
    let mut made: Vec<_> = Vec::new();
    for (group, version) in (0..72).map(|group| (group, (group / 24) as i32 * 5)) {
        for sample in 0..4 {
            let (mut record, steps) = attempt(group, sample, &mut rng);
            let split = if group % 24 < 20 { Split::Eval } else { Split::Train };
            record.task.split = split;
            record.task.seed = 7;
            let is_failed = record.score.is_none();
            record.policy_versions =
                Some(if is_failed { (version - 1, version + 1) } else { (version, version) });
            made.push((record, steps));
        }
    }
    let files = write(dir.path(), "s", &made, &[], &[]);
    commit_files(dir.path(), "s", files);
    let evaluation = evaluate(dir.path(), &EvaluationQuery::default()).unwrap();
    let got: Vec<_> = evaluation.versions.iter().map(|row| (row.version, row.line.problems)).collect();
    assert_eq!(got, [(Some(0), 20), (Some(5), 20), (Some(10), 20)]);
    assert!(evaluation.versions.iter().all(|row| !row.line.failed.is_empty() && row.line.pass.len() == 3));
    script::check_with_a_script(dir.path(), &evaluation);
    let training = EvaluationQuery { split: "train".into(), ..EvaluationQuery::default() };
    assert_eq!(evaluate(dir.path(), &training).unwrap().versions, []);
    let report = kept(dir.path(), None).unwrap();
    assert_eq!(report.lines[0].trajectories, 3 * 4 * 4, "trainers keep training trajectories only");
}

#[cfg(test)]
mod script {
    use super::*;

    pub(super) fn check_with_a_script(dir: &std::path::Path, evaluation: &EvaluationReport) {
        let report = dir.join("report.json");
        std::fs::write(&report, serde_json::to_string(evaluation).unwrap()).unwrap();
        let python = std::env::var("FURROW_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/evaluate.py");
        let output = Command::new(python).arg(script).arg(dir).arg(&report).output().unwrap();
        println!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success());
    }
}

#[test]
fn a_split_can_be_evaluated_alone_and_a_changing_policy_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let plots = [
        TrajectoryFixture::default(),
        TrajectoryFixture { group: 1, split: Split::Test, reward: 0.0, ..TrajectoryFixture::default() },
    ];
    let mut made: Vec<_> = plots.iter().map(TrajectoryFixture::trajectory).collect();
    made[1].0.policy_versions = Some((4, 4));
    let files = write(dir.path(), "s", &made, &[], &[]);
    commit_files(dir.path(), "s", files);
    let of = |split: &str| {
        evaluate(dir.path(), &EvaluationQuery { split: split.into(), ..EvaluationQuery::default() }).unwrap()
    };
    assert_eq!(of("").lines[0].success.unwrap().value, 0.5);
    assert!(!of("").policy.is_fixed, "two versions acted");
    assert_eq!(of("test").lines[0].success.unwrap().value, 0.0);
    assert!(of("test").policy.is_fixed);
    assert_eq!(of("eval").lines[0].success, None);
    // The same task in another split gives another variant.
    assert_ne!(of("test").lines[0].variant, of("train").lines[0].variant);
}
