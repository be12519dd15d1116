//! For every rule, a data set that breaks only that rule.

use std::collections::BTreeSet;

use furrow_rollout::{ContextPolicy, EndKind, PolicyKind, Split, TrajectoryRecord, token_hash};
use tempfile::TempDir;

use super::*;
use crate::file::TableWriter;
use crate::fixtures::{self, PLACEHOLDER, TrajectoryFixture};
use crate::rows::RescoreRecord;
use crate::schema::{ComponentCell, EvidenceCell, FailedCell, MarkCell};
use crate::{CommitDraft, Manifest};

/// Rows of a small data set, to be broken before they are written.
struct SampleRows {
    trajectories: Vec<TrajectoryRow>,
    steps: Vec<StepRow>,
    failed_steps: Vec<StepRow>,
    groups: Vec<GroupRow>,
    scores: Vec<ScoreRow>,
}

/// Two groups: one of two scored trajectories and a failed attempt, one of a single demonstration.
fn sound(context: ContextPolicy) -> SampleRows {
    let plot = TrajectoryFixture { context, group_size: 2, ..TrajectoryFixture::default() };
    let group = [
        plot.clone(),
        TrajectoryFixture { sample: 1, end: EndKind::EnvCrash, steps: 2, ..plot.clone() },
        TrajectoryFixture { sample: 1, attempt: 1, reward: 0.0, end: EndKind::MaxSteps, ..plot.clone() },
    ];
    let other = [TrajectoryFixture { group: 1, group_size: 1, kind: PolicyKind::Scripted, ..plot }];
    let mut rows = SampleRows {
        trajectories: vec![],
        steps: vec![],
        failed_steps: vec![],
        groups: vec![],
        scores: vec![],
    };
    for plots in [&group[..], &other] {
        let made: Vec<_> = plots.iter().map(TrajectoryFixture::trajectory).collect();
        for (record, steps) in &made {
            let row = |step: &furrow_rollout::StepRecord| {
                StepRow::new(record, step, step.step + 1 == record.ending.steps).unwrap()
            };
            let table = if record.score.is_some() { &mut rows.steps } else { &mut rows.failed_steps };
            table.extend(steps.iter().map(row));
            rows.trajectories.push(TrajectoryRow::new(record).unwrap());
        }
        let records: Vec<_> = made.into_iter().map(|(record, _)| record).collect();
        rows.groups.push(GroupRow::new(&fixtures::group(&records)));
        rows.scores.push(ScoreRow::new(&rescore(&records[0])).unwrap());
    }
    rows
}

fn rescore(record: &TrajectoryRecord) -> RescoreRecord {
    RescoreRecord {
        ancestry: record.ancestry.clone(),
        task_id: record.task.task_id.clone(),
        suite: record.task.suite.clone(),
        split: record.task.split,
        score: record.score.clone().unwrap(),
        scored_at_micros: fixtures::STARTED,
    }
}

fn write_rows<R: ColumnCell>(dir: &Path, table: Table, rows: Vec<R>, files: &mut Vec<WrittenFile>) {
    if !rows.is_empty() {
        let mut writer = TableWriter::create(&fixtures::plan(dir, "s0"), table).unwrap();
        writer.add(rows, 0).unwrap();
        files.push(writer.seal(&mut |_, _| {}).unwrap());
    }
}

fn commit_rows(rows: SampleRows) -> TempDir {
    let dir = TempDir::new().unwrap();
    let mut files = Vec::new();
    write_rows(dir.path(), Table::Trajectories, rows.trajectories, &mut files);
    write_rows(dir.path(), Table::Steps, rows.steps, &mut files);
    write_rows(dir.path(), Table::FailedSteps, rows.failed_steps, &mut files);
    write_rows(dir.path(), Table::Groups, rows.groups, &mut files);
    write_rows(dir.path(), Table::Scores, rows.scores, &mut files);
    let plan = fixtures::plan(dir.path(), "s0");
    let draft = CommitDraft::append(files, plan.run_id, 1, plan.shard_id, fixtures::STARTED);
    futures::executor::block_on(async {
        let mut manifest = Manifest::open(Manifest::local_store(dir.path()).unwrap()).await.unwrap();
        manifest.commit(&draft).await.unwrap();
    });
    dir
}

#[track_caller]
fn check_in(
    context: ContextPolicy,
    name: &str,
    change: impl FnOnce(&mut SampleRows),
    wanted: &[VerifyCheck],
) {
    let mut rows = sound(context);
    change(&mut rows);
    let report = verify(commit_rows(rows).path()).unwrap();
    let found: BTreeSet<VerifyCheck> = report.breaches.iter().map(|breach| breach.check).collect();
    let wanted_set: BTreeSet<VerifyCheck> = wanted.iter().copied().collect();
    assert!(found == wanted_set, "{name}: found {found:?}, not {wanted:?}: {:#?}", report.breaches);
    assert_eq!(report.is_sound(), wanted.is_empty());
    assert!(report.breaches.iter().all(|breach| breach.table.is_some() && breach.row.is_some()), "{name}");
}

#[track_caller]
fn check(name: &str, change: impl FnOnce(&mut SampleRows), wanted: &[VerifyCheck]) {
    check_in(ContextPolicy::Append, name, change, wanted);
}

/// The step with index 1 of the first trajectory, which has steps before and after it.
fn middle(rows: &mut SampleRows) -> &mut StepRow {
    &mut rows.steps[1]
}

fn ids(cell: &mut Option<Vec<i32>>) -> &mut Vec<i32> {
    cell.as_mut().unwrap()
}

/// Removes the demonstration's reward everywhere.
fn take_reward(r: &mut SampleRows) {
    r.trajectories[3].reward = None;
    r.steps[6..].iter_mut().for_each(|step| step.reward = None);
    r.groups[1] = GroupRow { mean: None, std: None, zero_variance: None, valid: 0, ..r.groups[1].clone() };
}

fn shorten<T>(cell: &mut Option<Vec<T>>) {
    let list = cell.as_mut().unwrap();
    list.truncate(list.len() - 1);
}

#[test]
fn a_sound_data_set_is_found_sound_whatever_is_kept() {
    for context in [
        ContextPolicy::Append,
        ContextPolicy::LastImage,
        ContextPolicy::Window(1),
        ContextPolicy::Window(2),
        ContextPolicy::Window(9),
        ContextPolicy::Fresh,
    ] {
        check_in(context, "untouched", |_| {}, &[]);
    }
}

#[test]
fn what_was_looked_at_is_counted() {
    let report = verify(commit_rows(sound(ContextPolicy::Append)).path()).unwrap();
    let c = report.counts;
    assert_eq!((c.files, c.trajectories, c.steps, c.failed_steps, c.groups, c.scores), (5, 4, 9, 2, 2, 2));
    // Two scored and one failed trajectory of the model; the demonstration has no tokens.
    assert_eq!((c.prompts, c.png_pictures, c.jpeg_pictures), (8, 8, 0));
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
}

#[test]
fn rows_are_there_once() {
    use VerifyCheck::*;
    check("a trajectory twice", |r| r.trajectories.push(r.trajectories[0].clone()), &[TrajectoryOnce]);
    check(
        "a slot scored twice",
        |r| {
            let slot = r.trajectories[0].sample_index;
            let group = r.trajectories[0].group_id.clone();
            let second = r.trajectories.iter_mut().find(|t| t.group_id == group && t.attempt == 1).unwrap();
            second.sample_index = slot;
            let id = second.trajectory_id.clone();
            r.steps.iter_mut().filter(|s| s.trajectory_id == id).for_each(|s| s.sample_index = slot);
        },
        &[SlotOnce],
    );
    check("a group twice", |r| r.groups.push(r.groups[0].clone()), &[GroupOnce]);
    check("a step twice", |r| r.steps.insert(9, r.steps[8].clone()), &[StepOnce, StepCount]);
    check("a trajectory's steps apart", |r| r.steps.rotate_left(1), &[StepOrder, SpanBounds, Prefix]);
    check("steps out of order", |r| r.steps.swap(7, 8), &[StepOrder, StepOnce]);
    check("a step is missing", |r| drop(r.steps.remove(7)), &[StepOrder, StepCount]);
    check("the last step is missing", |r| drop(r.steps.pop()), &[StepCount]);
    check("a failed step is missing", |r| drop(r.failed_steps.pop()), &[StepCount]);
}

#[test]
fn steps_belong_to_their_trajectory() {
    use VerifyCheck::*;
    check(
        "a failed trajectory in steps",
        |r| {
            let failed = std::mem::take(&mut r.failed_steps);
            r.steps.extend(failed);
        },
        &[FailedApart],
    );
    check(
        "a scored trajectory in failed_steps",
        |r| {
            let scripted = r.steps.split_off(6);
            r.failed_steps.extend(scripted);
        },
        &[FailedApart],
    );
    check(
        "steps without a trajectory",
        |r| {
            r.trajectories.pop();
            r.groups.pop();
            r.scores.pop();
        },
        &[StepParent],
    );
    check("another slot", |r| r.steps[6].sample_index = 5, &[StepParent]);
    check("another run", |r| r.steps[6].run_id = "other".into(), &[StepParent]);
    check("another task", |r| r.steps[6].task_id = "other".into(), &[StepParent]);
    check("another split", |r| r.steps[6].split = Split::Test.as_str().into(), &[StepParent]);
}

#[test]
fn derived_columns_follow() {
    use VerifyCheck::*;
    let one = &[DerivedValues][..];
    check("first", |r| r.steps[7].is_first = true, one);
    check("last", |r| r.steps[7].is_last = true, one);
    check("terminal", |r| r.steps[8].is_terminal = false, one);
    check("truncated", |r| r.steps[8].is_truncated = true, one);
    check("trainable for RL without log-probs", |r| r.steps[8].trainable_rl = true, one);
    check("trainable for RL though failed", |r| r.failed_steps[0].trainable_rl = true, one);
    let of_an_evaluation = |r: &mut SampleRows, trainable| {
        let id = r.steps[6].trajectory_id.clone();
        let split = || Split::Eval.as_str().to_owned();
        r.trajectories.iter_mut().filter(|row| row.trajectory_id == id).for_each(|row| row.split = split());
        for step in r.steps.iter_mut().filter(|step| step.trajectory_id == id) {
            step.split = split();
            (step.trainable_rl, step.trainable_sft) = (false, trainable);
        }
    };
    check("never trainable in an evaluation", |r| of_an_evaluation(r, true), one);
    check("not trainable though scored", |r| r.steps[0].trainable_sft = false, one);
    check("success missing", |r| r.trajectories[0].success = None, one);
    check("success of a failed one", |r| r.trajectories[1].success = Some(false), one);
    check("reward early", |r| r.steps[7].reward = Some(1.0), one);
    check("reward missing", |r| r.steps[8].reward = Some(0.0), one);
    check("reward of a failed one", |r| r.failed_steps[1].reward = Some(0.0), one);
    check(
        "components early",
        |r| {
            r.steps[7].reward_components.push(ComponentCell { name: "x".into(), value: 1.0 });
        },
        one,
    );
}

#[test]
fn a_trajectory_is_scored_exactly_when_it_has_all_that_a_score_needs() {
    use VerifyCheck::*;
    check(
        "a reward without a score",
        |r| r.trajectories[3].score = None,
        &[Row, StepParent, GroupCounts, GroupRewards, EvidenceReceived],
    );
    check(
        "scored without a score",
        |r| {
            take_reward(r);
            r.trajectories[3].score = None;
            r.trajectories[3].success = None;
            r.steps[8].reward_components.clear();
        },
        &[ScoredComplete],
    );
    check("scored without a reward", take_reward, &[ScoredComplete]);
    check(
        "failed with a score",
        |r| {
            r.trajectories[1].evidence = r.trajectories[0].evidence.clone();
            r.trajectories[1].score = r.trajectories[0].score.clone();
            r.trajectories[1].success = r.trajectories[0].success;
        },
        &[ScoredComplete],
    );
    check(
        "scored though the farm's fault",
        |r| {
            r.trajectories[2].end = EndKind::EnvCrash.as_str().into();
        },
        &[ScoredComplete],
    );
    check(
        "failed though the policy's own end",
        |r| {
            r.trajectories[1].end = EndKind::Answered.as_str().into();
            r.groups[0].failed[0].end = EndKind::Answered.as_str().into();
        },
        &[ScoredComplete],
    );
    check(
        "scored without evidence",
        |r| r.trajectories[0].evidence = None,
        &[ScoredComplete, EvidenceReceived],
    );
}

#[test]
fn no_reward_without_received_evidence() {
    use VerifyCheck::*;
    let evidence = |r: &mut SampleRows| r.trajectories[0].evidence.take().unwrap();
    check(
        "the evidence changed",
        |r| {
            let changed = EvidenceCell { answer: Some("43".into()), ..evidence(r) };
            r.trajectories[0].evidence = Some(changed);
        },
        &[EvidenceReceived],
    );
    check(
        "the evidence and its hash changed",
        |r| {
            let changed = EvidenceCell { url: None, ..evidence(r) };
            let sha256 = changed.clone().into_domain().sha256();
            r.trajectories[0].evidence = Some(EvidenceCell { sha256, ..changed });
        },
        &[EvidenceReceived],
    );
    check(
        "the scorer received other evidence",
        |r| r.trajectories[0].score.as_mut().unwrap().evidence_sha256 = [0; 32],
        &[EvidenceReceived],
    );
    check(
        "a later scorer received other evidence",
        |r| r.scores[0].score.evidence_sha256 = [0; 32],
        &[EvidenceReceived],
    );
    check(
        "a later score of an unknown trajectory",
        |r| r.scores[0].trajectory_id = "unknown".into(),
        &[EvidenceReceived],
    );
}

#[test]
fn rewards_are_finite() {
    use VerifyCheck::*;
    check("a later reward is NaN", |r| r.scores[0].reward = Some(f32::NAN), &[RewardFinite]);
    check(
        "a reward is infinite",
        |r| {
            r.trajectories[3].reward = Some(f32::INFINITY);
            r.steps[8].reward = Some(f32::INFINITY);
        },
        // Its steps and its group break rules as well: an infinite reward before the last step is
        // invalid, and has no mean.
        &[RewardFinite, GroupRewards],
    );
}

#[test]
fn groups_count_their_trajectories() {
    use VerifyCheck::*;
    check(
        "a slot beyond the plan",
        |r| {
            r.trajectories[3].sample_index = 1;
            r.steps[6..].iter_mut().for_each(|step| step.sample_index = 1);
        },
        &[GroupCounts],
    );
    check("valid", |r| r.groups[0].valid = 1, &[GroupCounts]);
    check("planned", |r| r.groups[0].planned = 3, &[GroupCounts]);
    check(
        "failed, another end",
        |r| r.groups[0].failed[0].end = EndKind::PageCrash.as_str().into(),
        &[GroupCounts],
    );
    check("failed, too many", |r| r.groups[0].failed[0].count = 2, &[GroupCounts]);
    check("failed, hidden", |r| r.groups[0].failed.clear(), &[GroupCounts]);
    check(
        "failed, invented",
        |r| {
            r.groups[1].failed.push(FailedCell { end: EndKind::EnvCrash.as_str().into(), count: 1 });
        },
        &[GroupCounts],
    );
    check("mean", |r| r.groups[0].mean = Some(0.6), &[GroupRewards]);
    check(
        "std of a sample instead of the population",
        |r| r.groups[0].std = Some(0.5f64.sqrt()),
        &[GroupRewards],
    );
    check("zero variance", |r| r.groups[0].zero_variance = Some(true), &[GroupRewards]);
    check(
        "no statistics",
        |r| {
            r.groups[0] = GroupRow { mean: None, std: None, zero_variance: None, ..r.groups[0].clone() };
        },
        &[GroupRewards],
    );
    check("versions", |r| r.groups[0].policy_version_min = Some(2), &[Versions]);
    check("of an unknown group", |r| r.groups[1].group_id = "unknown".into(), &[GroupCounts, GroupRewards]);
}

#[test]
fn cells_hold_allowed_values() {
    use VerifyCheck::*;
    check(
        "a status",
        |r| r.trajectories[3].status = "fine".into(),
        &[Row, StepParent, GroupCounts, GroupRewards, EvidenceReceived],
    );
    check("an outcome", |r| r.steps[8].outcome.name = "fine".into(), &[Row, StepCount]);
    check("a picture's format", |r| r.steps[8].observation.format = "gif".into(), &[Row, StepCount]);
    check("valid and an error", |r| r.steps[8].action.error = Some("no".into()), &[Row, StepCount]);
    check("half a statistic", |r| r.groups[0].std = None, &[Row]);
    check("a score without tokens' companions", |r| r.steps[8].forced = Some(vec![]), &[Row, StepCount]);
    check("an id", |r| r.scores[0].group_id = "a/b".into(), &[Row]);
}

#[test]
fn marks_fit_their_picture() {
    use VerifyCheck::*;
    let mark = |mark| MarkCell {
        mark,
        role: "button".into(),
        text: "OK".into(),
        x: 0.0,
        y: 0.0,
        width: 8.0,
        height: 8.0,
    };
    let with = |marks: Vec<MarkCell>| {
        move |r: &mut SampleRows| {
            r.steps[2].observation.marks = Some(marks.clone());
            r.failed_steps[0].observation.marks = Some(marks);
        }
    };
    check("none found", with(vec![]), &[]);
    check("as they should be", with(vec![mark(1), mark(2)]), &[]);
    check("a gap", with(vec![mark(1), mark(3)]), &[Marks]);
    check("from 0", with(vec![mark(0), mark(1)]), &[Marks]);
    check("to the right of the picture", with(vec![MarkCell { x: 600.0, ..mark(1) }]), &[Marks]);
    check("half below it", with(vec![MarkCell { height: 5000.0, ..mark(1) }]), &[Marks]);
    check("no box", with(vec![MarkCell { width: 0.0, ..mark(1) }]), &[Marks]);
    check("no number", with(vec![MarkCell { y: f32::NAN, ..mark(1) }]), &[Marks]);
}

#[test]
fn token_lists_agree() {
    use VerifyCheck::*;
    let lengths = &[TokenLengths][..];
    check("mask", |r| shorten(&mut middle(r).response_mask), lengths);
    check("forced", |r| middle(r).forced.as_mut().unwrap().push(false), lengths);
    check("versions", |r| middle(r).policy_versions.as_mut().unwrap().push(3), lengths);
    check("logprobs", |r| shorten(&mut middle(r).logprobs), lengths);
    check("no logprobs at all", |r| middle(r).logprobs.as_mut().unwrap().clear(), lengths);
    check("sampled_logprobs", |r| shorten(&mut middle(r).sampled_logprobs), lengths);
    check("kept_count", |r| shorten(&mut middle(r).kept_count), lengths);
    check("entropy", |r| middle(r).entropy.as_mut().unwrap().push(None), lengths);
    let logprob = |at: usize, value: Option<f32>| {
        move |r: &mut SampleRows| middle(r).logprobs.as_mut().unwrap()[at] = value
    };
    check("positive", logprob(1, Some(0.1)), &[Logprobs]);
    check("NaN", logprob(1, Some(f32::NAN)), &[Logprobs]);
    check("infinite", logprob(1, Some(f32::NEG_INFINITY)), &[Logprobs]);
    check("padded: forced", logprob(0, Some(-1.0)), &[TokenMarks]);
    check("padded: appended", logprob(5, Some(-1.0)), &[TokenMarks]);
    check("sampled, none", logprob(1, None), &[TokenMarks]);
    let sampled =
        |at: usize, value| move |r: &mut SampleRows| middle(r).sampled_logprobs.as_mut().unwrap()[at] = value;
    check("sampled: positive", sampled(1, Some(0.5)), &[Logprobs]);
    check("sampled: none", sampled(1, None), &[TokenMarks]);
    check("sampled: forced is not 0", sampled(0, Some(-0.5)), &[TokenMarks]);
    check("sampled: forced is null", sampled(0, None), &[TokenMarks]);
    check("sampled: appended", sampled(5, Some(0.0)), &[TokenMarks]);
    check("entropy: negative", |r| middle(r).entropy.as_mut().unwrap()[1] = Some(-0.1), &[Logprobs]);
    check("entropy: NaN", |r| middle(r).entropy.as_mut().unwrap()[1] = Some(f32::NAN), &[Logprobs]);
    check("both sampled and forced", |r| middle(r).forced.as_mut().unwrap()[1] = true, &[TokenMarks]);
    check("versions go back", |r| middle(r).policy_versions.as_mut().unwrap()[5] = 2, &[Versions]);
    check("a version out of range", |r| middle(r).policy_versions.as_mut().unwrap()[5] = 4, &[Versions]);
}

#[test]
fn kept_ids_lie_between_their_offsets() {
    use VerifyCheck::*;
    let one = &[KeptIds][..];
    check("they go back", |r| ids(&mut middle(r).kept_offsets)[2] = 0, one);
    check("they begin late", |r| ids(&mut middle(r).kept_offsets)[0] = 1, one);
    check("they end early", |r| shorten(&mut middle(r).kept_token_ids), one);
    check("one too few", |r| shorten(&mut middle(r).kept_offsets), one);
    check("ids without offsets", |r| ids(&mut middle(r).kept_offsets).clear(), one);
    check("not as many as were allowed", |r| middle(r).kept_count.as_mut().unwrap()[1] = Some(3), one);
    check("ids where none were cut", |r| middle(r).kept_count.as_mut().unwrap()[1] = None, one);
    check(
        "no ids at all",
        |r| {
            ids(&mut middle(r).kept_offsets).clear();
            ids(&mut middle(r).kept_token_ids).clear();
        },
        &[],
    );
}

#[test]
fn kept_tokens_and_commits_rebuild_every_prompt() {
    use VerifyCheck::*;
    check("a prompt token changed", |r| ids(&mut r.steps[2].prompt_token_ids)[0] += 1, &[PromptHash]);
    check("and later steps differ", |r| ids(&mut middle(r).prompt_token_ids)[0] += 1, &[PromptHash, Prefix]);
    check(
        "a response token changed",
        |r| ids(&mut middle(r).response_token_ids)[0] += 1,
        &[PromptHash, Prefix],
    );
    check("prefix_len", |r| *middle(r).prefix_len.as_mut().unwrap() += 1, &[Prefix]);
    check("prefix_hash", |r| middle(r).prefix_hash = Some([0; 16]), &[Prefix]);
    check("prompt_hash", |r| middle(r).prompt_hash = Some([0; 16]), &[PromptHash]);
    check(
        "a commit that drops its tokens",
        |r| r.steps[1].commit_token_ids = Some(vec![]),
        &[Prefix, SpanBounds],
    );
    let last_image = |name, change: fn(&mut SampleRows), wanted: &[VerifyCheck]| {
        check_in(ContextPolicy::LastImage, name, change, wanted);
    };
    last_image(
        "a committed token changed",
        |r| ids(&mut middle(r).commit_token_ids)[0] += 1,
        &[Prefix, PromptHash],
    );
    last_image(
        "a commit dropped",
        |r| middle(r).commit_token_ids = None,
        &[Prefix, PromptHash, Placeholders],
    );
    last_image(
        "a commit with a picture",
        |r| ids(&mut middle(r).commit_token_ids).push(PLACEHOLDER as i32),
        &[Prefix, PromptHash, Placeholders],
    );
    check_in(
        ContextPolicy::Window(2),
        "a window's commit dropped",
        |r| ids(&mut middle(r).commit_token_ids).clear(),
        &[Prefix, SpanBounds],
    );
}

#[test]
fn spans_are_the_placeholders() {
    use VerifyCheck::*;
    fn spans(r: &mut SampleRows) -> &mut Vec<crate::schema::ImageSpanCell> {
        r.steps[2].image_spans.as_mut().unwrap()
    }
    check("a span lost", |r| spans(r).truncate(2), &[Placeholders, PromptHash]);
    check("a kept span lost", |r| *spans(r) = spans(r).split_off(1), &[Placeholders, PromptHash, Prefix]);
    check("a span one to the right", |r| spans(r)[2].token_start += 1, &[Placeholders, PromptHash]);
    check("a span too short", |r| spans(r)[2].token_len -= 1, &[Placeholders, PromptHash]);
    check("a span too long", |r| spans(r)[2].token_len += 1, &[Placeholders, PromptHash]);
    check("a span beyond the prompt", |r| spans(r)[2].token_start += 100, &[SpanBounds]);
    check("a span of 4 thousand million", |r| spans(r)[2].token_len = -1, &[SpanBounds]);
    check("an empty span", |r| spans(r)[2].token_len = 0, &[SpanBounds]);
    check("spans out of order", |r| spans(r).swap(1, 2), &[SpanBounds]);
    check("a kept span changed", |r| spans(r)[0].tiles_x = 9, &[Prefix]);
    check("a span of a step to come", |r| spans(r)[2].step = 3, &[Pictures]);
    check("a span of another step", |r| spans(r)[2].step = 1, &[Pictures]);
    check("another blob", |r| spans(r)[2].blob_sha256 = [0; 32], &[Pictures]);
    check("other pixels", |r| spans(r)[2].rgb_sha256 = [0; 32], &[Pictures, PromptHash]);
    check(
        "other pixels and a hash that fits them",
        |r| {
            spans(r)[2].rgb_sha256 = [7; 32];
            let spans: Vec<furrow_rollout::ImageSpan> = spans(r).iter().map(Into::into).collect();
            let prompt: Vec<u32> = prompt_of_step_2(r);
            r.steps[2].prompt_hash = Some(token_hash(&prompt, &spans));
        },
        &[Pictures],
    );
    check(
        "the screenshot changed",
        |r| r.steps[2].observation.screenshot.bytes = fixtures::png(16, 16, 12345),
        &[Pictures],
    );
    check(
        "the screenshot is not a picture",
        |r| r.steps[2].observation.screenshot.bytes = "x".into(),
        &[Pictures],
    );
}

/// All the first trajectory's tokens up to its third response.
fn prompt_of_step_2(rows: &SampleRows) -> Vec<u32> {
    let cells = rows.steps[..3].iter().flat_map(|step| {
        let response = step.response_token_ids.iter().flatten().filter(|_| step.step < 2);
        step.prompt_token_ids.iter().flatten().chain(response)
    });
    cells.map(|id| id.cast_unsigned()).collect()
}

#[test]
fn differing_pixels_of_a_lossy_picture_are_counted_and_no_breach() {
    let mut rows = sound(ContextPolicy::Fresh);
    let pixels = [[9, 99, 199]; 64].concat();
    let mut jpeg = Vec::new();
    let encoder = image::codecs::jpeg::JpegEncoder::new_with_quality(&mut jpeg, 80);
    image::ImageEncoder::write_image(encoder, &pixels, 8, 8, image::ExtendedColorType::Rgb8).unwrap();
    let step = &mut rows.steps[2];
    let span = &mut step.image_spans.as_mut().unwrap()[0];
    span.blob_sha256 =
        sha2::Digest::finalize(sha2::Digest::chain_update(sha2::Sha256::default(), &jpeg)).into();
    span.rgb_sha256 = [7; 32];
    let prompt: Vec<u32> = step.prompt_token_ids.iter().flatten().map(|id| id.cast_unsigned()).collect();
    step.prompt_hash = Some(token_hash(&prompt, &[(&*span).into()]));
    step.observation.screenshot.bytes = jpeg.into();
    (step.observation.format, step.observation.quality) = ("jpeg".into(), Some(80));
    let report = verify(commit_rows(rows).path()).unwrap();
    assert!(report.is_sound(), "{:#?}", report.breaches);
    assert_eq!((report.counts.jpeg_pictures, report.counts.jpeg_differing), (1, 1));
}

#[test]
fn breaches_beyond_the_first_thousand_are_counted() {
    let mut rows = sound(ContextPolicy::Append);
    let one = rows.groups[0].clone();
    rows.groups.extend(std::iter::repeat_n(one, 1_500));
    let report = verify(commit_rows(rows).path()).unwrap();
    assert_eq!((report.breaches_total, report.breaches.len()), (1_500, 1_000));
}
