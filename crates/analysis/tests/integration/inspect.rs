//! Metrics over a data set.

use furrow_analysis::inspect;
use furrow_records::fixtures::data_set::{commit_files, write};
use furrow_records::fixtures::{self, TrajectoryFixture};
use furrow_rollout::{EndKind, PolicyKind};

#[test]
fn metrics_add_up() {
    let dir = tempfile::tempdir().unwrap();
    let plot = TrajectoryFixture {
        kind: PolicyKind::Random,
        end: EndKind::MaxSteps,
        ..TrajectoryFixture::default()
    };
    let plots = [
        TrajectoryFixture::default(),
        TrajectoryFixture { sample: 1, reward: 0.0, ..TrajectoryFixture::default() },
        TrajectoryFixture { sample: 2, end: EndKind::PageCrash, ..TrajectoryFixture::default() },
        TrajectoryFixture { group: 1, reward: 0.25, ..plot },
    ];
    let made: Vec<_> = plots.iter().map(TrajectoryFixture::trajectory).collect();
    let records: Vec<_> = made.iter().map(|(record, _)| record.clone()).collect();
    let files = write(dir.path(), "s", &made, &[fixtures::group(&records[..3])], &[]);
    commit_files(dir.path(), "s", files);
    let summary = inspect(dir.path()).unwrap();

    let rows: Vec<u64> = summary.tables.iter().map(|table| table.rows).collect();
    assert_eq!(rows, [4, 9, 3, 1, 0]);
    assert_eq!((summary.version, summary.steps), (1, 12));
    assert_eq!(summary.policy_versions, Some((3, 3)));
    // Three trajectories of the model, three steps each, six response tokens per step.
    assert_eq!(summary.response_tokens, 3 * 3 * 6);
    assert_eq!(summary.prompt_tokens, records.iter().map(|record| record.prompt_tokens).sum::<u64>());
    assert_eq!(summary.gpu_micros, 9 * 5_000);
    let lines: Vec<_> = summary
        .suites
        .iter()
        .map(|line| (&*line.policy_kind, line.scored, line.failed, line.reward_mean, line.success_rate))
        .collect();
    assert_eq!(lines, [("model", 2, 1, Some(0.5), Some(0.5)), ("random", 1, 0, Some(0.25), Some(0.0))]);
    assert_eq!(summary.tasks.len(), 2);
    assert!(summary.tasks.iter().all(|line| line.task_id.as_deref() == Some("click-it")));
    let ends: Vec<_> =
        summary.ends.iter().map(|line| (&*line.end, &*line.status, line.trajectories)).collect();
    assert_eq!(ends, [("answered", "scored", 2), ("max_steps", "scored", 1), ("page_crash", "failed", 1)]);
    let shares: f64 = summary.timing.iter().map(|line| line.share).sum();
    assert!((shares - 1.0).abs() < 1e-9, "{shares}");
    // 12 steps of 60 ms settling and 40 ms thinking; 4 trajectories of 1 ms queue and 2 ms scoring.
    let micros: Vec<_> = summary.timing.iter().map(|line| (&*line.cause, line.micros)).take(4).collect();
    assert_eq!(micros, [("settle", 720_000), ("policy", 480_000), ("score", 8_000), ("queue", 4_000)]);
    assert!(serde_json::to_string(&summary).unwrap().contains("\"table\":\"failed_steps\""));
}
