//! The definition of every metric on the pages: which sum is divided by which. `docs/DASHBOARD.md`
//! explains them with examples, and `tests/dashboard_metrics.py` computes them a second time from
//! the files.
//!
//! Two sources: the data set ([`DataSetTally`]: what is committed, to the microsecond) and the
//! history of the run ([`MetricTotals`]: `metrics.jsonl`). Only the history contains idle time. No
//! metric divides one by the other except the cost, since only the data set has the cost of judges.
//! A metric without its source is `null`, never 0.

use furrow_analysis::view::{DataSetTally, MinuteCounts, StepSums, TrajectoryCounts};
use furrow_rollout::TimeCause;
use furrow_telemetry::{DeviceUse, Label, SlotUse};

use crate::answers::{
    DeviceKind, EndCount, HistorySpan, LearningMetrics, MinuteSpan, OverviewMetrics, RateInterval,
    RateWithInterval, SuiteLine, TaskLine, Throughput, TimeAccount, TimeLedger, TimeShare, TokenRates,
    TrajectoriesOverTime, TrajectoryRates, VersionLine, VersionRange,
};
use crate::history::{HistoryPoint, MetricTotals};
use crate::run_time::{Pause, run_micros};

const MICROS_PER_HOUR: f64 = 3.6e9;
const MICROS_PER_MINUTE: i64 = 60_000_000;
/// Points of a chart over time: one per 8 pixels of a wide page.
const POINTS_MAX: i64 = 120;
/// Lines of a table by version, newest first.
const VERSIONS_MAX: usize = 200;
/// Lines of a table by task, those with the most attempts first.
const TASKS_MAX: usize = 1000;

/// The metrics of the page Overview.
pub(crate) fn overview(
    tally: &DataSetTally,
    totals: Option<&MetricTotals>,
    (moments, pauses): (&[HistoryPoint], &[Pause]),
    device: DeviceKind,
    usd_per_device_hour: Option<f64>,
) -> OverviewMetrics {
    let all = &tally.all;
    let began_and_ended = tally.started_at.zip(tally.ended_at);
    let wall_micros = began_and_ended.map(|(from, to)| run_micros(from, to, pauses) as f64);
    let wall_seconds = wall_micros.map(|micros| micros / 1e6);
    let with_device = totals.filter(|totals| totals.device_total() > 0);
    let device_hours = with_device.map(|totals| hours(totals.device_total()));
    let cost = cost(all.cost_usd, device_hours, usd_per_device_hour, device);
    let scored = totals.map_or(all.scored, |totals| totals.scored);
    let ends = tally.ends.iter().map(|((end, status), count)| EndCount {
        end: end.clone(),
        status: status.clone(),
        trajectories: *count,
    });
    OverviewMetrics {
        counts: rates(all),
        training: rates(&tally.training),
        evaluated: rates(&tally.evaluated),
        ends: ends.collect(),
        started_at: tally.started_at,
        ended_at: tally.ended_at,
        wall_seconds,
        device,
        throughput: Throughput {
            scored,
            trajectories_per_device_hour: with_device.and_then(per_device_hour),
            ceiling_device_bound: with_device
                .and_then(|totals| ratio(totals.scored as f64, hours(totals.device_busy()))),
            ceiling_session_bound: with_device.and_then(ceiling_session_bound),
            trajectories_per_slot_hour: totals.and_then(per_slot_hour),
            trajectories_per_hour: wall_micros
                .and_then(|micros| ratio(all.scored as f64, micros / MICROS_PER_HOUR)),
            steps_per_second: wall_seconds.and_then(|seconds| ratio(all.steps as f64, seconds)),
        },
        tokens: tokens(&tally.steps, wall_seconds),
        device_hours,
        device_micros_of_trajectories: all.gpu_micros,
        device_parts: with_device.map(device_parts),
        slot_parts: totals.filter(|totals| totals.slot_total() > 0).map(slot_parts),
        session_parts: session_parts(tally, totals),
        cost_usd: cost,
        cost_usd_per_trajectory: cost.and_then(|usd| ratio(usd, scored as f64)),
        versions: versions(tally),
        over_time: over_time(tally, pauses),
        hours_over_time: hours_over_time(moments),
    }
}

/// The cost of devices and judges; `None` if a device has a price and its hours are unknown.
fn cost(
    judges: f64,
    device_hours: Option<f64>,
    usd_per_hour: Option<f64>,
    device: DeviceKind,
) -> Option<f64> {
    let usd = match (device_hours, usd_per_hour) {
        (Some(hours), Some(usd)) => Some(hours * usd + judges),
        (None, Some(_)) if device != DeviceKind::None => None,
        _ => (judges > 0.0).then_some(judges),
    };
    usd.filter(|usd| usd.is_finite())
}

/// Trajectories with a reward per hour of a device, busy or idle.
pub(crate) fn per_device_hour(totals: &MetricTotals) -> Option<f64> {
    ratio(totals.scored as f64, hours(totals.device_total()))
}

/// Trajectories with a reward per hour of a slot, busy or empty.
pub(crate) fn per_slot_hour(totals: &MetricTotals) -> Option<f64> {
    ratio(totals.scored as f64, hours(totals.slot_total()))
}

/// The rate if no slot of the environment workers were ever empty: measured × all slot time ÷ busy
/// slot time.
fn ceiling_session_bound(totals: &MetricTotals) -> Option<f64> {
    let measured = per_device_hour(totals)?;
    Some(measured * ratio(totals.slot_total() as f64, totals.slot_busy() as f64)?)
}

fn hours(micros: u64) -> f64 {
    micros as f64 / MICROS_PER_HOUR
}

/// A ratio; `None` if the divisor is 0, or if a sum of a damaged data set makes it not finite.
pub(crate) fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole).filter(|ratio| ratio.is_finite())
}

/// A rate with its 95 % interval, by Wilson's score: as if each attempt were at a different task.
pub(crate) fn rate_with_interval(successes: u64, decided: u64) -> Option<RateWithInterval> {
    let value = share(successes, decided)?;
    let RateInterval { low, high } = interval(successes, decided)?;
    Some(RateWithInterval { low, high, value })
}

/// Wilson's 95 % interval of a rate.
fn interval(successes: u64, decided: u64) -> Option<RateInterval> {
    let (low, high) = furrow_analysis::wilson(successes as f64, decided as f64)?;
    Some(RateInterval { low, high })
}

pub(crate) fn share(part: u64, whole: u64) -> Option<f64> {
    ratio(part as f64, whole as f64)
}

fn rates(counts: &TrajectoryCounts) -> TrajectoryRates {
    TrajectoryRates {
        trajectories: counts.trajectories(),
        scored: counts.scored,
        failed: counts.failed,
        judged: counts.success_known,
        successes: counts.successes,
        steps: counts.steps,
        success_rate: share(counts.successes, counts.success_known),
        reward_mean: ratio(counts.reward_sum, counts.scored as f64),
        failure_rate: share(counts.failed, counts.trajectories()),
        steps_mean: share(counts.steps, counts.trajectories()),
        response_tokens_per_step: share(counts.response_tokens, counts.steps),
        invalid_action_rate: share(counts.invalid_actions, counts.steps),
        device_seconds_per_scored: ratio(counts.gpu_micros as f64 / 1e6, counts.scored as f64),
    }
}

/// Tokens by how the model got them. Reused tokens cost nothing: that is the purpose of resident
/// state.
fn tokens(steps: &StepSums, wall_seconds: Option<f64>) -> TokenRates {
    let per_second = |tokens: u64| wall_seconds.and_then(|seconds| ratio(tokens as f64, seconds));
    TokenRates {
        generated: steps.generated_tokens,
        prefilled: steps.prefill_tokens,
        reused: steps.reused_tokens,
        generated_per_second: per_second(steps.generated_tokens),
        prefilled_per_second: per_second(steps.prefill_tokens),
        reused_per_second: per_second(steps.reused_tokens),
        reused_share: share(steps.reused_tokens, steps.reused_tokens + steps.prefill_tokens),
    }
}

/// Device time by use; each microsecond is in one part, idle time by its cause.
pub(crate) fn device_parts(totals: &MetricTotals) -> Vec<TimeShare> {
    let group = |used: DeviceUse| match used {
        DeviceUse::NoWork | DeviceUse::NoCapacity | DeviceUse::Host => "idle",
        _ => "busy",
    };
    parts(DeviceUse::ALL.iter().map(|&used| (used.value(), group(used), totals.device(used))))
}

/// Slot time: with a trajectory, or idle by cause.
pub(crate) fn slot_parts(totals: &MetricTotals) -> Vec<TimeShare> {
    let micros = |used: &SlotUse| totals.slot_micros.get(used.index()).copied().unwrap_or(0);
    let group = |used: &SlotUse| if *used == SlotUse::Busy { "busy" } else { "idle" };
    parts(SlotUse::ALL.iter().map(|used| (used.value(), group(used), micros(used))))
}

/// Session time by cause, from the queue to the score: of the committed trajectories, or of the
/// running ones if none is committed yet (these have no queue and no score).
pub(crate) fn session_parts(tally: &DataSetTally, totals: Option<&MetricTotals>) -> Vec<TimeShare> {
    let committed = |cause: &str| tally.session_micros.get(cause).copied().unwrap_or(0);
    let is_empty = tally.session_micros.is_empty();
    let running = |cause: TimeCause| {
        totals.and_then(|totals| totals.session_micros.get(cause.index()).copied()).unwrap_or(0)
    };
    let causes = TimeCause::ALL.iter().map(|&cause| {
        let group = match cause {
            TimeCause::Policy => "policy",
            TimeCause::Record => "record",
            _ => "browser",
        };
        let micros = if is_empty { running(cause) } else { committed(cause.as_str()) };
        (cause.as_str(), group, micros)
    });
    let queue = ("queue", "queue", committed("queue"));
    let score = ("score", "scoring", committed("score"));
    parts([queue].into_iter().chain(causes).chain([score]))
}

fn parts(each: impl Iterator<Item = (&'static str, &'static str, u64)>) -> Vec<TimeShare> {
    let each: Vec<_> = each.collect();
    let whole: u64 = each.iter().map(|(_, _, micros)| micros).sum();
    let part = |(cause, group, micros): (&str, &str, u64)| TimeShare {
        cause: cause.to_owned(),
        group: group.to_owned(),
        micros,
        share: share(micros, whole).unwrap_or(0.0),
    };
    each.into_iter().map(part).collect()
}

fn versions(tally: &DataSetTally) -> VersionRange {
    let known: Vec<i32> = tally.by_version.keys().copied().filter(|version| *version >= 0).collect();
    let (sum, count) = tally.staleness.iter().fold((0i64, 0u64), |(sum, all), (behind, count)| {
        (sum + i64::from(*behind) * *count as i64, all + count)
    });
    VersionRange {
        oldest: known.first().copied(),
        newest: known.last().copied(),
        staleness_mean: ratio(sum as f64, count as f64),
        staleness_max: tally.staleness.keys().last().copied(),
    }
}

/// Trajectories by the time of their end, in equal spans of whole minutes: one in which nothing
/// ended is a point, too. The run began and ended within its first and its last minute, and a rate
/// divides by the time it ran, so the rates of all spans have the mean that the table gives. An end
/// of less than half a span belongs to its neighbour: a second with one trajectory is no rate.
fn over_time(tally: &DataSetTally, pauses: &[Pause]) -> TrajectoriesOverTime {
    let Some((&first_end, &last)) = tally.minutes.keys().next().zip(tally.minutes.keys().next_back()) else {
        return TrajectoriesOverTime { span_minutes: 1, points: Vec::new() };
    };
    let began = tally.started_at.unwrap_or(first_end.saturating_mul(MICROS_PER_MINUTE));
    let ended = tally.ended_at.unwrap_or(last.saturating_add(1).saturating_mul(MICROS_PER_MINUTE));
    let first = began.div_euclid(MICROS_PER_MINUTE).min(first_end);
    let span = last.saturating_sub(first) / POINTS_MAX + 1;
    let begins = std::iter::successors(Some(first), |at| at.checked_add(span).filter(|at| *at <= last));
    let whole = begins.map(|at| (at, at.saturating_add(span - 1).min(last))).collect();
    let micros = |&(at, end): &(i64, i64)| {
        let from = at.saturating_mul(MICROS_PER_MINUTE).max(began);
        let to = end.saturating_add(1).saturating_mul(MICROS_PER_MINUTE).min(ended);
        run_micros(from, to, pauses)
    };
    let points = with_short_ends_merged(whole, |part| 2 * micros(part) < span * MICROS_PER_MINUTE);
    let point = |(at, end): (i64, i64)| {
        let mut sum = MinuteCounts::default();
        tally.minutes.range(at..=end).for_each(|(_, ended)| add(&mut sum, ended));
        MinuteSpan {
            at: at.saturating_mul(60),
            scored: sum.scored,
            failed: sum.failed,
            trajectories_per_hour: ratio(sum.scored as f64 * MICROS_PER_HOUR, micros(&(at, end)) as f64)
                .unwrap_or(0.0),
            success_rate: share(sum.successes, sum.success_known),
            success_interval: interval(sum.successes, sum.success_known),
        }
    };
    TrajectoriesOverTime { span_minutes: span, points: points.into_iter().map(point).collect() }
}

/// The spans, where a short first or last one is a part of its neighbour.
fn with_short_ends_merged(
    mut spans: Vec<(i64, i64)>,
    is_short: impl Fn(&(i64, i64)) -> bool,
) -> Vec<(i64, i64)> {
    if let [first, second, ..] = spans[..]
        && is_short(&first)
    {
        spans.splice(..2, [(first.0, second.1)]);
    }
    if let [.., before, last] = spans[..]
        && is_short(&last)
    {
        spans.truncate(spans.len() - 2);
        spans.push((before.0, last.1));
    }
    spans
}

fn add(sum: &mut MinuteCounts, more: &MinuteCounts) {
    sum.scored += more.scored;
    sum.failed += more.failed;
    sum.success_known += more.success_known;
    sum.successes += more.successes;
}

/// Trajectories per device-hour and the device's busy share between lines of `metrics.jsonl`, some
/// lines apart.
fn hours_over_time(moments: &[HistoryPoint]) -> Vec<HistorySpan> {
    let stride = (moments.len() / POINTS_MAX as usize).max(1);
    let picked: Vec<&HistoryPoint> = moments.iter().rev().step_by(stride).collect();
    let pairs = picked.windows(2).rev();
    let point = |pair: &[&HistoryPoint]| {
        let now = &pair[0].totals;
        let before = &pair[1].totals;
        let device = now.device_total().saturating_sub(before.device_total());
        let busy = now.device_busy().saturating_sub(before.device_busy());
        let scored = now.scored.saturating_sub(before.scored) as f64;
        HistorySpan {
            at: pair[0].unix_seconds,
            trajectories_per_device_hour: ratio(scored, hours(device)),
            trajectories_per_hour: ratio(scored * 3600.0, pair[0].unix_seconds - pair[1].unix_seconds),
            device_busy_share: share(busy, device),
        }
    };
    pairs.map(point).collect()
}

/// The metrics of the page Learning: without evaluations, which have their own.
pub(crate) fn learning(tally: &DataSetTally) -> LearningMetrics {
    let by_version = tally.by_version.iter().rev().take(VERSIONS_MAX);
    let mut tasks: Vec<_> = tally.by_task.iter().collect();
    tasks.sort_by_key(|(_, sums)| std::cmp::Reverse(sums.trajectories()));
    let tasks_left_out = tasks.len().saturating_sub(TASKS_MAX) as u64;
    let by_task = tasks.into_iter().take(TASKS_MAX).map(|((suite, task), sums)| TaskLine {
        rates: rates(sums),
        suite: suite.clone(),
        task_id: task.clone(),
    });
    let by_suite =
        tally.by_suite.iter().map(|(suite, sums)| SuiteLine { rates: rates(sums), suite: suite.clone() });
    let steps = &tally.training_steps;
    LearningMetrics {
        all: rates(&tally.training),
        evaluated: rates(&tally.evaluated),
        by_version: by_version.map(|(version, sums)| version_line(tally, *version, sums)).collect(),
        versions_left_out: tally.by_version.len().saturating_sub(VERSIONS_MAX) as u64,
        by_suite: by_suite.collect(),
        by_task: by_task.collect(),
        tasks_left_out,
        groups: tally.groups,
        zero_variance_share: share(tally.groups_zero_variance, tally.groups),
        finish_reasons: steps.finish_reasons.clone(),
        outcomes: steps.outcomes.clone(),
        state_origins: steps.state_origins.clone(),
        invalid_action_rate: share(steps.invalid, steps.steps),
        response_tokens_per_step: share(steps.generated_tokens, steps.steps),
        entropy_mean: ratio(steps.entropy_sum, steps.entropy_count as f64),
        logprob_mean: ratio(steps.logprob_sum, steps.logprob_count as f64),
        prefill_gap: tally.prefill_gap.gap(),
        staleness: pairs(&tally.staleness),
        lengths: pairs(&tally.lengths),
    }
}

fn version_line(tally: &DataSetTally, version: i32, sums: &TrajectoryCounts) -> VersionLine {
    let steps = tally.steps_by_version.get(&version).cloned().unwrap_or_default();
    let (groups, flat) = tally.groups_by_version.get(&version).copied().unwrap_or_default();
    VersionLine {
        rates: rates(sums),
        version: (version >= 0).then_some(version),
        success_interval: interval(sums.successes, sums.success_known),
        entropy_mean: ratio(steps.entropy_sum, steps.entropy_count as f64),
        logprob_mean: ratio(steps.logprob_sum, steps.logprob_count as f64),
        groups,
        zero_variance_share: share(flat, groups),
    }
}

fn pairs(histogram: &std::collections::BTreeMap<i32, u64>) -> Vec<(i32, u64)> {
    histogram.iter().map(|(&value, &count)| (value, count)).collect()
}

/// Device, slot and session time by cause, with the sums that must agree.
pub(crate) fn ledger(tally: &DataSetTally, totals: Option<&MetricTotals>) -> TimeLedger {
    let account =
        |parts: Vec<TimeShare>| TimeAccount { micros: parts.iter().map(|part| part.micros).sum(), parts };
    TimeLedger {
        device: account(totals.map(device_parts).unwrap_or_default()),
        slots: account(totals.map(slot_parts).unwrap_or_default()),
        sessions: account(session_parts(tally, totals)),
        cpu_micros: totals.map(|totals| totals.cpu_micros),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals() -> MetricTotals {
        let mut totals = MetricTotals {
            device_micros: vec![0; DeviceUse::ALL.len()],
            slot_micros: vec![0; SlotUse::ALL.len()],
            scored: 30,
            ..MetricTotals::default()
        };
        // Two devices for half an hour: one GPU-hour, with 40 minutes of work.
        totals.device_micros[DeviceUse::Decode.index()] = 1_800_000_000;
        totals.device_micros[DeviceUse::Prefill.index()] = 600_000_000;
        totals.device_micros[DeviceUse::NoWork.index()] = 1_200_000_000;
        // Four slots for half an hour, three quarters of it busy.
        totals.slot_micros[SlotUse::Busy.index()] = 5_400_000_000;
        totals.slot_micros[SlotUse::NoAssignment.index()] = 1_800_000_000;
        totals
    }

    #[test]
    fn a_gpu_hour_counts_idle_time_and_the_ceilings_do_not() {
        let overview =
            overview(&DataSetTally::default(), Some(&totals()), (&[], &[]), DeviceKind::Gpu, Some(3.0));
        let throughput = &overview.throughput;
        assert_eq!(overview.device_hours, Some(1.0));
        assert_eq!(throughput.trajectories_per_device_hour, Some(30.0));
        assert_eq!(throughput.ceiling_device_bound, Some(45.0));
        assert_eq!(throughput.ceiling_session_bound, Some(40.0));
        assert_eq!(throughput.trajectories_per_slot_hour, Some(15.0));
        assert_eq!(overview.cost_usd_per_trajectory, Some(0.1));
        let shares = overview.device_parts.unwrap().into_iter().map(|part| part.share);
        assert_eq!(shares.sum::<f64>(), 1.0);
    }

    #[test]
    fn what_is_not_known_is_null_and_never_0() {
        let overview = overview(&DataSetTally::default(), None, (&[], &[]), DeviceKind::None, Some(3.0));
        let throughput = &overview.throughput;
        for rate in [
            throughput.trajectories_per_device_hour,
            throughput.ceiling_device_bound,
            throughput.ceiling_session_bound,
            throughput.steps_per_second,
            overview.device_hours,
            overview.cost_usd,
            overview.wall_seconds,
            overview.counts.success_rate,
        ] {
            assert_eq!(rate, None);
        }
        assert_eq!(overview.device_parts, None);
    }

    #[test]
    fn what_is_not_finite_is_not_known() {
        let counts = TrajectoryCounts {
            scored: 1,
            reward_sum: f64::NAN,
            cost_usd: f64::INFINITY,
            ..TrajectoryCounts::default()
        };
        assert_eq!(rates(&counts).reward_mean, None);
        let tally = DataSetTally { all: counts, ..DataSetTally::default() };
        assert_eq!(overview(&tally, None, (&[], &[]), DeviceKind::None, None).cost_usd, None);
    }

    #[test]
    fn a_cost_is_given_only_where_all_of_it_is_known() {
        #[track_caller]
        fn check(judges: f64, known: bool, usd: Option<f64>, device: DeviceKind, want: Option<f64>) {
            let tally = DataSetTally {
                all: TrajectoryCounts { cost_usd: judges, ..TrajectoryCounts::default() },
                ..DataSetTally::default()
            };
            let totals = totals();
            let overview = overview(&tally, known.then_some(&totals), (&[], &[]), device, usd);
            assert_eq!(overview.cost_usd, want);
        }
        check(0.5, true, Some(3.0), DeviceKind::Gpu, Some(3.5));
        check(0.5, false, Some(3.0), DeviceKind::Gpu, None);
        check(0.5, false, Some(3.0), DeviceKind::None, Some(0.5));
        check(0.5, true, None, DeviceKind::Gpu, Some(0.5));
        check(0.0, true, None, DeviceKind::Gpu, None);
    }

    #[test]
    fn minutes_become_a_bounded_number_of_points_that_hold_all() {
        let mut tally = DataSetTally::default();
        for minute in 0..1000 {
            let ended =
                MinuteCounts { scored: 2, failed: 0, success_known: 2, successes: u64::from(minute >= 500) };
            tally.minutes.insert(29_000_000 + minute, ended);
        }
        let over_time = over_time(&tally, &[]);
        let points = &over_time.points;
        assert_eq!(over_time.span_minutes, 9);
        assert_eq!(points.len(), 111);
        assert_eq!(points.iter().map(|point| point.scored).sum::<u64>(), 2000);
        // 1000 minutes are 111 spans of 9 and a single minute, which is part of the last span.
        assert!(points.iter().all(|point| point.trajectories_per_hour == 120.0), "{points:?}");
        assert_eq!((points[0].success_rate, points[110].success_rate), (Some(0.0), Some(0.5)));
    }

    #[test]
    fn a_minute_in_which_nothing_ended_is_a_point() {
        let mut tally = DataSetTally::default();
        assert_eq!(over_time(&tally, &[]).points, []);
        for minute in [10, 14] {
            tally
                .minutes
                .insert(minute, MinuteCounts { scored: 1, failed: 1, success_known: 0, successes: 0 });
        }
        let over_time = over_time(&tally, &[]);
        let spans: Vec<_> =
            over_time.points.iter().map(|point| (point.at, point.trajectories_per_hour)).collect();
        assert_eq!(spans, [(600, 60.0), (660, 0.0), (720, 0.0), (780, 0.0), (840, 60.0)]);
        assert!(over_time.points.iter().all(|point| point.success_rate.is_none()));
    }

    /// 27 s that lie in two minutes, with 125 trajectories: each rate is theirs over 27 s.
    #[test]
    fn a_run_of_seconds_has_one_rate_in_its_table_and_its_plot() {
        let counts = |scored| MinuteCounts { scored, failed: 0, success_known: 0, successes: 0 };
        let second = 1_000_000;
        let mut tally = DataSetTally {
            started_at: Some(650 * second),
            ended_at: Some(677 * second),
            all: TrajectoryCounts { scored: 125, ..TrajectoryCounts::default() },
            ..DataSetTally::default()
        };
        tally.minutes.extend([(10, counts(40)), (11, counts(85))]);
        let of = |tally: &DataSetTally, pauses: &[Pause]| {
            let overview = overview(tally, None, (&[], pauses), DeviceKind::None, None);
            let points: Vec<_> =
                overview.over_time.points.iter().map(|point| point.trajectories_per_hour).collect();
            (overview.throughput.trajectories_per_hour.unwrap(), points)
        };
        let rate = 125.0 * 3600.0 / 27.0;
        assert_eq!(of(&tally, &[]), (rate, vec![rate]));
        // Three minutes with 40 s, 60 s and 50 s of the run, less a pause of 20 s in the second.
        tally.started_at = Some(620 * second);
        tally.ended_at = Some(770 * second);
        tally.minutes.insert(12, counts(10));
        tally.all.scored = 135;
        let (all, points) = of(&tally, &[(680.0, 700.0)]);
        assert!((all - 135.0 * 3600.0 / 130.0).abs() < 1e-6, "{all}");
        assert_eq!(points, [40.0 * 90.0, 85.0 * 90.0, 10.0 * 72.0]);
    }

    #[test]
    fn hours_over_time_are_differences() {
        let moment = |at: f64, scored: u64, decode: u64| {
            let mut totals = MetricTotals {
                scored,
                device_micros: vec![0; DeviceUse::ALL.len()],
                ..MetricTotals::default()
            };
            totals.device_micros[DeviceUse::Decode.index()] = decode;
            HistoryPoint { unix_seconds: at, totals }
        };
        let points =
            hours_over_time(&[moment(0.0, 0, 0), moment(10.0, 1, 10_000_000), moment(20.0, 3, 20_000_000)]);
        let rates: Vec<_> = points.iter().map(|point| point.trajectories_per_device_hour).collect();
        assert_eq!(rates, [Some(360.0), Some(720.0)]);
        assert_eq!(hours_over_time(&[]), []);
    }
}
