//! A live view of a data set: shards are committed one by one, merged during reads, damaged.

use furrow_analysis::view::{DataSetView, PictureSource, Sort, TrajectoryQuery};
use furrow_records::fixtures::data_set::{self, commit_files, commit_group, write};
use furrow_records::fixtures::{self, RowBlock, TrajectoryFixture};
use furrow_records::{CommitDraft, Op, Table, verify};
use furrow_rollout::{ContextPolicy, EndKind, Id, Size, Trajectory};
use serde_json::json;

fn never() -> bool {
    false
}

#[test]
fn committed_rows_are_listed_and_a_row_is_found_whole() {
    let dir = tempfile::tempdir().unwrap();
    commit_group(dir.path(), 0, 4);
    let view = DataSetView::open(dir.path()).unwrap();
    assert!(view.state().index.is_empty());
    assert!(view.catch_up(&never).unwrap());
    assert_eq!((view.state().index.len(), view.state().version), (4, 1));
    assert!(!view.catch_up(&never).unwrap(), "nothing was committed since");

    // A failed trajectory and one with another context policy, in another shard.
    let failed =
        TrajectoryFixture { group: 1, end: EndKind::BrowserDead, steps: 2, ..TrajectoryFixture::default() };
    let windowed = TrajectoryFixture {
        group: 2,
        steps: 5,
        context: ContextPolicy::Window(2),
        ..TrajectoryFixture::default()
    };
    let made = [failed.trajectory(), windowed.trajectory()];
    let files = write(dir.path(), "second", &made, &[fixtures::group(&[made[0].0.clone()])], &[]);
    commit_files(dir.path(), "second", files);
    assert!(view.catch_up(&never).unwrap());
    let shown = view.state();
    assert_eq!((shown.index.len(), shown.version, shown.step_files_left()), (6, 2, 0));
    let tally = &shown.tally;
    assert_eq!((tally.all.scored, tally.all.failed, tally.all.success_known, tally.groups), (5, 1, 5, 2));
    assert_eq!((tally.all.steps, tally.steps.steps), (4 * 3 + 2 + 5, 4 * 3 + 2 + 5));
    assert_eq!(tally.all.gpu_micros, 5_000 * tally.steps.steps);
    assert_eq!(tally.steps.generated_tokens, 6 * tally.steps.steps);
    assert_eq!(
        (tally.steps.entropy_count, tally.steps.logprob_count),
        (4 * tally.steps.steps, 4 * tally.steps.steps)
    );
    assert_eq!(tally.session_micros["policy"], 40_000 * tally.steps.steps);
    assert_eq!(tally.session_micros.values().sum::<u64>(), (40_000 + 60_000) * 19 + 6 * 3_000);
    assert_eq!(tally.minutes.values().map(|minute| minute.scored + minute.failed).sum::<u64>(), 6);
    drop(shown);

    for (record, steps) in &made {
        let id = record.ancestry.trajectory_id.as_str();
        let look = view.trajectory_detail(id).unwrap().unwrap();
        assert_eq!(look.trajectory["trajectory_id"], id);
        assert_eq!(look.trajectory["end"], record.ending.end.as_str());
        let numbers: Vec<_> = look.steps.iter().map(|step| step["step"].clone()).collect();
        assert_eq!(numbers, (0..steps.len()).map(|step| json!(step)).collect::<Vec<_>>());
        assert_eq!(look.steps[1]["action"]["raw_text"], steps[1].reply.raw_text);
        assert_eq!(look.steps[1].get("prompt_token_ids"), None, "large columns are in the whole row only");
        for step in steps {
            let bytes = view.picture(id, PictureSource::Step(step.step as i32)).unwrap().unwrap();
            assert_eq!(bytes, step.observation.screenshot.bytes, "step {}", step.step);
        }
        let expected = record.ending.evidence.as_ref().and_then(|evidence| evidence.screenshot.clone());
        assert_eq!(view.picture(id, PictureSource::Evidence).unwrap(), expected);
        let row = view.row(id, Some(1)).unwrap().unwrap();
        let tokens = steps[1].trace.tokens.as_ref().unwrap();
        assert_eq!(row["prompt_token_ids"], json!(tokens.prompt_token_ids));
        let bytes = steps[1].observation.screenshot.bytes.len();
        assert_eq!(row["observation"]["screenshot"]["bytes"], json!({ "num_bytes": bytes }));
        assert_eq!(view.row(id, Some(99)).unwrap(), None);
        assert_eq!(view.picture(id, PictureSource::Step(99)).unwrap(), None);
    }
    assert!(view.trajectory_detail("test-g000009-s0-a0").unwrap().is_none());
    assert!(view.row("unknown", None).unwrap().is_none());
}

#[test]
fn a_merge_changes_no_metric() {
    let dir = tempfile::tempdir().unwrap();
    for group in 0..6 {
        commit_group(dir.path(), group, 4);
    }
    let view = DataSetView::open(dir.path()).unwrap();
    view.catch_up(&never).unwrap();
    let before = view.state().tally.clone();
    data_set::merge_all(dir.path());
    commit_group(dir.path(), 6, 4);
    assert!(view.catch_up(&never).unwrap());
    let shown = view.state();
    assert_eq!(shown.index.len(), 28);
    assert_eq!((before.all.scored, shown.tally.all.scored), (24, 28));
    let ids: std::collections::BTreeSet<_> =
        (0..28).map(|position| shown.index.line(position).unwrap().trajectory_id.to_owned()).collect();
    assert_eq!(ids.len(), 28, "no row twice");
    drop(shown);
    let id = Id::<Trajectory>::new("test-g000002-s3-a0").unwrap();
    assert_eq!(view.trajectory_detail(id.as_str()).unwrap().unwrap().steps.len(), 3);
}

#[test]
fn merge_after_merge_hides_nothing_that_was_committed_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    (0..2).for_each(|group| drop(commit_group(dir.path(), group, 2)));
    let view = DataSetView::open(dir.path()).unwrap();
    view.catch_up(&never).unwrap();
    // A part that was not read before its merge, and a shard right after it: no pause hides it.
    for turn in 1..4 {
        commit_group(dir.path(), 2 * turn, 2);
        data_set::merge_all_as(dir.path(), &format!("merged{turn}"));
        commit_group(dir.path(), 2 * turn + 1, 2);
        assert!(view.catch_up(&never).unwrap(), "turn {turn}");
        let shown = view.state();
        assert_eq!(shown.index.len() as u64, 4 * turn + 4, "turn {turn}: {:?}", shown.problems);
        assert_eq!(shown.tally.steps.steps, 3 * (4 * turn + 4), "turn {turn}");
        assert_eq!(shown.tally.groups, 2 * turn + 2, "turn {turn}");
        assert_eq!((shown.problems.len(), shown.step_files_left()), (0, 0));
        let rows = |table| shown.tables.iter().find(|size| size.table == table).unwrap().rows;
        assert_eq!(rows(Table::Trajectories), 4 * turn + 4);
        assert_eq!(view.summary().trajectories, shown.index.len());
    }
    for group in 0..8 {
        let look = view.trajectory_detail(&format!("test-g{group:06}-s1-a0")).unwrap().unwrap();
        assert_eq!(look.steps.len(), 3, "group {group}");
    }
}

#[test]
fn rows_that_expire_go_and_what_is_appended_meanwhile_waits_for_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<_> = (0..3).map(|group| commit_group(dir.path(), group, 2)).collect();
    let expire = |group: usize| {
        let shard = format!("expired-{group}");
        let removed: Vec<String> = files[group].iter().map(|file| file.path.clone()).collect();
        let draft =
            CommitDraft { op: Op::Expire, removed, ..data_set::append(dir.path(), &shard, Vec::new()) };
        futures::executor::block_on(data_set::open(dir.path()).commit(&draft)).unwrap();
    };
    let view = DataSetView::open(dir.path()).unwrap();
    view.catch_up(&never).unwrap();
    let before = view.state().generation;
    expire(0);
    assert!(view.catch_up(&never).unwrap());
    assert_eq!((view.state().index.len(), view.state().tally.steps.steps), (4, 12));
    assert_ne!(view.state().generation, before);
    // Too soon after the last rebuild for another one, which must not delay new files.
    expire(1);
    commit_group(dir.path(), 3, 2);
    view.catch_up(&never).unwrap();
    assert!(view.trajectory_detail("test-g000003-s0-a0").unwrap().is_some());
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while view.state().index.len() != 4 {
        assert!(std::time::Instant::now() < deadline, "{} rows", view.state().index.len());
        view.catch_up(&never).unwrap();
    }
    assert!(view.trajectory_detail("test-g000001-s0-a0").unwrap().is_none());
}

#[test]
fn parts_that_are_merged_while_they_are_read_are_read_where_they_went() {
    let dir = tempfile::tempdir().unwrap();
    (0..3).for_each(|group| drop(commit_group(dir.path(), group, 2)));
    let view = DataSetView::open(dir.path()).unwrap();
    let merged = std::cell::Cell::new(false);
    // Polled between two files: the first file was read, the others move now.
    view.catch_up(&|| {
        if view.state().index.len() >= 2 && !merged.replace(true) {
            data_set::merge_all(dir.path());
        }
        false
    })
    .unwrap();
    assert!(merged.get());
    for _ in 0..2 {
        let shown = view.state();
        assert_eq!((shown.index.len(), shown.tally.steps.steps), (6, 18), "{:?}", shown.problems);
        assert!(shown.problems.is_empty());
        drop(shown);
        assert!(!view.catch_up(&never).unwrap(), "a merge alone brings nothing new");
    }
}

#[test]
fn a_damaged_file_is_reported_and_hides_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let files = commit_group(dir.path(), 0, 2);
    commit_group(dir.path(), 1, 2);
    for file in files {
        std::fs::write(dir.path().join(&file.path), b"PAR1 not any more").unwrap();
    }
    let view = DataSetView::open(dir.path()).unwrap();
    view.catch_up(&never).unwrap();
    let shown = view.state();
    assert_eq!((shown.index.len(), shown.problems.len()), (2, 3));
    assert!(shown.problems[0].contains("the manifest says"), "{:?}", shown.problems);
}

/// 250 groups of 4 with various ends and lengths, encoded once.
fn block(steps: bool) -> RowBlock {
    let ends = [EndKind::Answered, EndKind::MaxSteps, EndKind::BrowserDead, EndKind::Unparsable];
    let plot = |mix: u32| TrajectoryFixture {
        steps: 1 + mix % 3,
        end: ends[mix as usize % 4],
        reward: (mix % 8) as f32 / 8.0,
        size: Size::new(4, 4),
        ..TrajectoryFixture::default()
    };
    let plots: Vec<_> = (0..24).map(|mix| plot(mix).trajectory()).collect();
    let attempt = |group: u64, sample: u32| {
        let (mut record, made) = plots[(group as usize * 4 + sample as usize) % plots.len()].clone();
        let run = record.ancestry.run_id.clone();
        record.ancestry.sample_index = sample;
        record.ancestry.group_id = Id::nth(&run, group);
        record.ancestry.trajectory_id = Id::attempt(&record.ancestry.group_id, sample, 0);
        record.task.task_id = format!("task-{}", group % 200);
        record.task.seed = group;
        record.ended_at_micros += (group * 4 + u64::from(sample)) as i64;
        (record, if steps { made } else { Vec::new() })
    };
    let made: Vec<_> = (0..250)
        .flat_map(|group| (0..4).map(move |sample| (group, sample)))
        .map(|(group, sample)| attempt(group, sample))
        .collect();
    let records: Vec<_> = made.iter().map(|(record, _)| record.clone()).collect();
    RowBlock::new(&made, &records.chunks(4).map(fixtures::group).collect::<Vec<_>>())
}

#[test]
fn a_block_that_is_repeated_is_a_data_set_like_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let block = block(true);
    block.commit(dir.path(), "s0", 0..2);
    block.commit(dir.path(), "s1", 2..3);
    let report = verify(dir.path()).unwrap();
    assert!(report.breaches.is_empty(), "{:?}", report.breaches);
    let view = DataSetView::open(dir.path()).unwrap();
    view.catch_up(&never).unwrap();
    let shown = view.state();
    assert_eq!((shown.index.len(), shown.tally.groups, shown.problems.len()), (3000, 750, 0));
    let newest = TrajectoryQuery { descending: true, ..TrajectoryQuery::default() };
    let last = shown.index.select(&newest)[0];
    assert_eq!(shown.index.line(last).unwrap().trajectory_id, "test-g000749-s3-a0");
    drop(shown);
    let look = view.trajectory_detail("test-g000749-s3-a0").unwrap().unwrap();
    assert_eq!(look.steps.len(), look.trajectory["num_steps"].as_u64().unwrap() as usize);
}

/// Prints the cost of an index of many rows;
/// `cargo test --release -p furrow-analysis --test integration -- --ignored --nocapture`.
#[test]
#[ignore = "reads a million rows, and two million of steps"]
fn a_million_trajectories() {
    let rows: u64 = std::env::var("FURROW_ROWS").ok().and_then(|rows| rows.parse().ok()).unwrap_or(1_000_000);
    let dir = tempfile::tempdir().unwrap();
    let block = block(true);
    for shard in 0..rows.div_ceil(100_000) {
        block.commit(dir.path(), &format!("s{shard}"), 100 * shard..100 * (shard + 1));
    }
    let view = DataSetView::open(dir.path()).unwrap();
    let began = std::time::Instant::now();
    view.catch_up(&never).unwrap();
    let shown = view.state();
    let read = rows.div_ceil(100_000) * 100_000;
    assert_eq!((shown.index.len() as u64, shown.tally.groups, shown.problems.len()), (read, read / 4, 0));
    let per_row = shown.index.bytes() as f64 / shown.index.len() as f64;
    println!("{} rows read in {:.1?}, {per_row:.0} bytes a row", shown.index.len(), began.elapsed());
    for sort in Sort::ALL {
        let began = std::time::Instant::now();
        let found = shown.index.select(&TrajectoryQuery {
            sort: *sort,
            descending: true,
            ..TrajectoryQuery::default()
        });
        assert_eq!(found.len() as u64, read);
        println!("sorted by {}: {} rows in {:.1?}", sort.as_str(), found.len(), began.elapsed());
    }
    let began = std::time::Instant::now();
    let found = shown.index.select(&TrajectoryQuery { text: "g0012".into(), ..TrajectoryQuery::default() });
    println!("text: {} rows in {:.1?}", found.len(), began.elapsed());
    drop(shown);
    let began = std::time::Instant::now();
    let last = format!("test-g{:06}-s3-a0", rows.div_ceil(100_000) * 25_000 - 1);
    assert!(!view.trajectory_detail(&last).unwrap().unwrap().steps.is_empty());
    println!("one trajectory in {:.1?}", began.elapsed());
}
