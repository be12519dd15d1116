//! Domain values that go into a shard come out of it unchanged.

use std::collections::BTreeMap;

use bytes::Bytes;
use furrow_records::fixtures::data_set::{commit_files, write};
use furrow_records::{DataSet, RescoreRecord};
use furrow_rollout::{
    ContextPolicy, EndKind, EnvironmentFingerprint, Evidence, ExtraAction, FinishReason, Grammar,
    GroupRecord, GroupStatistics, Id, IdKind, ImageFormat, Mark, Observation, ObservationSpec, PageClock,
    PageHooks, PolicyHashes, PolicyKind, PolicyReply, SamplingParams, Score, ScoreComponent, Screenshot,
    SessionSpec, Size, Split, StepRecord, Task, TimeSplit, TokenTrace, TrajectoryAncestry, TrajectoryEnding,
    TrajectoryRecord, TrajectoryStatus, WallsLevel,
};
use furrow_testkit::generators;
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

/// Values that validation accepts in an action.
fn finite() -> impl Strategy<Value = f32> + Clone {
    float().prop_map(|value| if value.is_finite() { value } else { 0.5 })
}

/// Not NaN, which does not equal itself; infinities and both zeros are included.
fn float() -> impl Strategy<Value = f32> + Clone {
    any::<f32>().prop_map(|value| if value.is_nan() { 0.25 } else { value })
}

fn text() -> impl Strategy<Value = String> + Clone {
    prop_oneof![Just(String::new()), any::<String>(), "[a-z]{1,9}"]
}

fn id<K: IdKind + 'static>() -> impl Strategy<Value = Id<K>> {
    "[A-Za-z0-9_-][A-Za-z0-9._-]{0,19}".prop_map(|text| Id::new(text).expect("these ids are valid"))
}

fn micros() -> impl Strategy<Value = u64> + Clone {
    0..=i64::MAX as u64
}

fn size() -> impl Strategy<Value = Size> {
    any::<(u32, u32)>().prop_map(|(width, height)| Size::new(width, height))
}

fn format() -> impl Strategy<Value = ImageFormat> {
    option::of(any::<u8>()).prop_map(|quality| match quality {
        None => ImageFormat::Png,
        Some(quality) => ImageFormat::Jpeg { quality },
    })
}

fn blob() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..64).prop_map(Bytes::from)
}

fn timing() -> impl Strategy<Value = TimeSplit> {
    generators::time_split(1 << 60)
}

fn reply() -> impl Strategy<Value = PolicyReply> {
    generators::reply(generators::action(generators::point(finite()), text()), text())
}

fn components() -> impl Strategy<Value = Vec<ScoreComponent>> {
    vec((text(), float()).prop_map(|(name, value)| ScoreComponent { name, value }), 0..3)
}

fn mark() -> impl Strategy<Value = Mark> {
    (any::<u32>(), text(), text(), [float(), float(), float(), float()])
        .prop_map(|(mark, role, text, [x, y, width, height])| Mark { mark, role, text, x, y, width, height })
}

fn observation() -> impl Strategy<Value = Observation> {
    let marks = vec(mark(), 0..3);
    let screenshot =
        (blob(), format(), size()).prop_map(|(bytes, format, size)| Screenshot { bytes, format, size });
    (
        screenshot,
        text(),
        text(),
        vec(generators::tab(text()), 0..3),
        float(),
        float(),
        option::of(text()),
        option::of(marks),
    )
        .prop_map(|(screenshot, url, title, tabs, scroll_y, page_height, axtree, marks)| Observation {
            screenshot,
            url,
            title,
            tabs,
            scroll_y,
            page_height,
            axtree,
            marks,
        })
}

fn ids() -> impl Strategy<Value = Vec<u32>> {
    vec(any::<u32>(), 0..6)
}

fn floats() -> impl Strategy<Value = Option<Vec<Option<f32>>>> {
    option::of(vec(option::of(float()), 0..6))
}

fn tokens() -> impl Strategy<Value = TokenTrace> {
    let prompt_and_response = (
        ids(),
        vec(generators::image_span(), 0..3),
        ids(),
        vec(any::<bool>(), 0..6),
        vec(any::<bool>(), 0..6),
    );
    let kept = (option::of(ids()), any::<u32>(), any::<[u8; 16]>(), any::<[u8; 16]>());
    let cut = (option::of(vec(option::of(any::<u32>()), 0..6)), ids(), ids());
    let finish = select(FinishReason::ALL);
    (prompt_and_response, kept, cut, finish, floats(), floats(), floats(), vec(any::<i32>(), 0..6)).prop_map(
        |(
            prompt_and_response,
            kept,
            cut,
            finish_reason,
            logprobs,
            sampled_logprobs,
            entropy,
            policy_versions,
        )| {
            let (prompt_token_ids, image_spans, response_token_ids, response_mask, forced) =
                prompt_and_response;
            let (commit_token_ids, prefix_len, prefix_hash, prompt_hash) = kept;
            let (kept_count, kept_token_ids, kept_offsets) = cut;
            TokenTrace {
                prompt_token_ids,
                image_spans,
                response_token_ids,
                response_mask,
                forced,
                commit_token_ids,
                prefix_len,
                prefix_hash,
                prompt_hash,
                finish_reason,
                logprobs,
                sampled_logprobs,
                kept_count,
                kept_token_ids,
                kept_offsets,
                entropy,
                policy_versions,
            }
        },
    )
}

fn step() -> impl Strategy<Value = StepRecord> {
    let trace = generators::trace(tokens(), generators::engine(text(), float(), micros()));
    (any::<u32>(), observation(), reply(), generators::outcome(text()), trace, timing(), any::<i64>())
        .prop_map(|(step, observation, reply, outcome, trace, timing, observed_at_micros)| StepRecord {
            step,
            observation,
            reply,
            outcome,
            trace,
            timing,
            observed_at_micros,
        })
}

fn ancestry() -> impl Strategy<Value = TrajectoryAncestry> {
    (id(), id(), any::<u32>(), 0..=i16::MAX as u32, id()).prop_map(
        |(run_id, group_id, sample_index, attempt, trajectory_id)| TrajectoryAncestry {
            run_id,
            group_id,
            sample_index,
            attempt,
            trajectory_id,
        },
    )
}

fn split() -> impl Strategy<Value = Split> {
    select(&Split::ALL[..])
}

fn task() -> impl Strategy<Value = Task> {
    let names = (text(), text(), split(), option::of(text()), text());
    let limits = (any::<u64>(), any::<u32>(), micros(), size());
    let spec = (format(), option::of(size()), any::<bool>())
        .prop_map(|(format, clip, square)| ObservationSpec { format, clip, square });
    let hooks = (option::of(text()), option::of(text()), option::of(text()))
        .prop_map(|(start, probe, solve)| PageHooks { start, probe, solve });
    let clock = option::of(any::<u32>())
        .prop_map(|step| step.map_or(PageClock::Real, |step_millis| PageClock::Virtual { step_millis }));
    (names, limits, spec, vec(text(), 0..3), hooks, clock).prop_map(
        |(names, limits, observation, allow_hosts, hooks, clock)| {
            let (task_id, suite, split, goal, start_url) = names;
            let (seed, max_steps, time_limit_millis, viewport) = limits;
            Task {
                task_id,
                suite,
                split,
                goal,
                start_url,
                seed,
                max_steps,
                time_limit_millis,
                viewport,
                observation,
                allow_hosts,
                hooks,
                clock,
            }
        },
    )
}

fn score() -> impl Strategy<Value = Score> {
    let verdict = (option::of(float()), option::of(any::<bool>()), components());
    (verdict, text(), any::<u32>(), text(), any::<[u8; 32]>()).prop_map(
        |((reward, success, components), scorer, version, rationale, evidence_sha256)| Score {
            reward,
            success,
            components,
            scorer,
            version,
            rationale,
            evidence_sha256,
        },
    )
}

fn ending() -> impl Strategy<Value = TrajectoryEnding> {
    let part = || option::of(text());
    let evidence = (option::of(blob()), part(), part(), part(), part()).prop_map(
        |(screenshot, url, title, answer, probe_json)| Evidence {
            screenshot,
            url,
            // A part of its own would make the strategy too large for a test's stack.
            findings_json: title.clone(),
            title,
            answer,
            probe_json,
        },
    );
    let walls = option::of(select(&WallsLevel::ALL[..]));
    let environment = (text(), text(), any::<bool>(), text(), text(), option::of(size()), walls).prop_map(
        |(worker, browser, sandbox, locale, timezone, viewport, walls)| EnvironmentFingerprint {
            worker,
            browser,
            sandbox,
            locale,
            timezone,
            viewport,
            walls,
        },
    );
    let end = select(&EndKind::ALL[..]);
    let last = option::of(generators::outcome(text()));
    (end, text(), option::of(evidence), text(), any::<u32>(), last, timing(), environment).prop_map(
        |(end, reason, evidence, goal, steps, last_outcome, timing, environment)| TrajectoryEnding {
            end,
            reason,
            evidence,
            goal,
            steps,
            last_outcome,
            timing,
            environment,
        },
    )
}

fn session() -> impl Strategy<Value = SessionSpec> {
    let context = prop_oneof![
        Just(ContextPolicy::Append),
        Just(ContextPolicy::LastImage),
        any::<u32>().prop_map(ContextPolicy::Window),
        Just(ContextPolicy::Fresh),
    ];
    let sampling = (float(), float(), any::<u32>(), float(), any::<u32>(), any::<u64>()).prop_map(
        |(temperature, top_p, top_k, min_p, max_tokens, seed)| SamplingParams {
            temperature,
            top_p,
            top_k,
            min_p,
            max_tokens,
            seed,
        },
    );
    (text(), subsequence(&ExtraAction::ALL[..], 0..=5), sampling, context, text()).prop_map(
        |(name, extra, sampling, context, instructions)| SessionSpec {
            grammar: Grammar { name, extra },
            sampling,
            context,
            instructions,
        },
    )
}

fn hashes() -> impl Strategy<Value = PolicyHashes> {
    proptest::array::uniform5(option::of(text())).prop_map(
        |[weights, tokenizer, template, grammar, processor]| PolicyHashes {
            weights,
            tokenizer,
            template,
            grammar,
            processor,
        },
    )
}

fn trajectory() -> impl Strategy<Value = TrajectoryRecord> {
    let names = (ancestry(), task(), text(), select(PolicyKind::ALL));
    let status = select(vec![TrajectoryStatus::Scored, TrajectoryStatus::Failed]);
    let end =
        (status, ending(), option::of(score()), option::of(any::<(i32, i32)>()), option::of(any::<i32>()));
    let made_of = (hashes(), session(), any::<u32>(), any::<u64>());
    let sums = (micros(), micros(), micros(), micros(), micros(), any::<u32>());
    (names, end, made_of, sums, option::of(-1e9..1e9f64), any::<i64>(), any::<i64>()).prop_map(
        |(names, end, made_of, sums, cost_usd, started_at_micros, ended_at_micros)| {
            let (ancestry, task, task_json, policy_kind) = names;
            let (status, ending, score, policy_versions, staleness) = end;
            let (hashes, session, group_size, token) = made_of;
            let (queue_micros, score_micros, gpu_micros, prompt_tokens, response_tokens, invalid_actions) =
                sums;
            TrajectoryRecord {
                ancestry,
                task,
                task_json,
                policy_kind,
                status,
                ending,
                score,
                policy_versions,
                staleness,
                hashes,
                session,
                group_size,
                token,
                queue_micros,
                score_micros,
                gpu_micros,
                prompt_tokens,
                response_tokens,
                invalid_actions,
                cost_usd,
                started_at_micros,
                ended_at_micros,
            }
        },
    )
}

fn group() -> impl Strategy<Value = GroupRecord> {
    let names = (id(), id(), text(), text(), split());
    let counts = (any::<u64>(), any::<u32>(), any::<u32>(), btree_map(text(), any::<u32>(), 0..3));
    let rewards = option::of(vec(-10.0..10.0f32, 1..5));
    (names, counts, rewards, option::of(any::<(i32, i32)>()), any::<i64>()).prop_map(
        |(names, counts, rewards, policy_versions, closed_at_micros)| {
            let (run_id, group_id, task_id, suite, split) = names;
            let (seed, planned, valid, failed): (_, _, _, BTreeMap<_, _>) = counts;
            let rewards = rewards.and_then(|rewards| GroupStatistics::of(&rewards));
            GroupRecord {
                run_id,
                group_id,
                task_id,
                suite,
                split,
                seed,
                planned,
                valid,
                failed,
                rewards,
                policy_versions,
                closed_at_micros,
            }
        },
    )
}

fn rescore() -> impl Strategy<Value = RescoreRecord> {
    (ancestry(), text(), text(), split(), score(), any::<i64>()).prop_map(
        |(ancestry, task_id, suite, split, score, scored_at_micros)| RescoreRecord {
            ancestry,
            task_id,
            suite,
            split,
            score,
            scored_at_micros,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(
        trajectories in vec((trajectory(), vec(step(), 0..4)), 1..6),
        groups in vec(group(), 0..4),
        rescores in vec(rescore(), 0..3),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let files = write(dir.path(), "s", &trajectories, &groups, &rescores);
        commit_files(dir.path(), "s", files);
        let set = DataSet::open(dir.path()).unwrap();

        let records: Vec<_> = set.trajectories().collect::<Result<_, _>>().unwrap();
        let wanted: Vec<_> = trajectories.iter().map(|(record, _)| record.clone()).collect();
        prop_assert_eq!(records, wanted);

        for status in [TrajectoryStatus::Scored, TrajectoryStatus::Failed] {
            let read = if status == TrajectoryStatus::Scored { set.steps() } else { set.failed_steps() };
            let read: Vec<_> = read.collect::<Result<_, _>>().unwrap();
            let of_status = trajectories.iter().filter(|(record, _)| record.status == status);
            let wanted: Vec<_> = of_status.flat_map(|(record, steps)| steps.iter().map(move |step| (record, step))).collect();
            prop_assert_eq!(read.len(), wanted.len());
            for (read, (record, step)) in read.iter().zip(wanted) {
                prop_assert_eq!(&read.record, step);
                prop_assert_eq!(&read.ancestry, &record.ancestry);
                prop_assert_eq!(&read.sampling, &record.session.sampling);
                prop_assert_eq!((&read.task_id, &read.suite, read.split), (&record.task.task_id, &record.task.suite, record.task.split));
            }
        }

        let read: Vec<_> = set.groups().collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(read, groups);
        let read: Vec<_> = set.rescores().collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(read, rescores);
    }
}
