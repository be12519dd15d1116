//! Compares what a job planned with what was measured: shows where a run falls behind, in its own
//! metrics.

use std::fmt::Debug;
use std::sync::Arc;

use furrow_analysis::view::DataSetTally;
use furrow_rollout::TimeCause;

use crate::answers::PlanLine;
use crate::history::MetricTotals;
use crate::live_run::LiveRun;
use crate::metrics::{per_device_hour, per_slot_hour, ratio, share};

/// What a job plans, as far as its file says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlannedWork {
    /// Number of trajectories without evaluations; `None`: as many as there are tasks.
    pub trajectories: Option<u64>,
    /// Slots of an environment worker.
    pub sessions: u32,
    /// Most tokens of a reply; `None`: the policy has no tokens.
    pub tokens_max: Option<u32>,
}

/// The lower bound of a device for a run's own work. The implementation knows models and devices,
/// the pages do not.
pub trait DeviceFloor: Debug + Send + Sync {
    fn device(&self) -> &str;

    /// The most trajectories per hour.
    fn trajectories_per_hour(&self, work: &MeasuredWork) -> f64;
}

/// A run's work, as measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasuredWork {
    pub steps: f64,
    /// Tokens generated per step.
    pub tokens: f64,
    /// Seconds per step outside of the policy.
    pub page_seconds: f64,
    /// Number of concurrent trajectories.
    pub sessions: u32,
}

/// Lines of the table: what is compared, the planned value or bound, the measured value.
pub(crate) fn lines(
    planned: &PlannedWork,
    floor: Option<&Arc<dyn DeviceFloor>>,
    tally: &DataSetTally,
    totals: Option<&MetricTotals>,
    live: Option<&LiveRun>,
) -> Vec<PlanLine> {
    let filled = totals.and_then(|totals| share(totals.slot_busy(), totals.slot_total()));
    let tokens = share(tally.all.response_tokens, tally.all.steps);
    let workers = live.map_or(1, |live| live.progress.env_workers.max(1));
    let work = work(tally, tokens, planned.sessions.saturating_mul(workers));
    let mut lines = vec![
        line("trajectories", planned.trajectories.map(|all| all as f64), Some(tally.training.scored as f64)),
        line("slots_filled", Some(1.0), filled),
        line("tokens_a_step", planned.tokens_max.map(f64::from), tokens),
        line(
            "per_slot_hour",
            work.map(|work| 3600.0 / (work.steps * work.page_seconds)),
            totals.and_then(per_slot_hour),
        ),
    ];
    if let Some(floor) = floor {
        let bound = work.filter(|work| work.tokens > 0.0).map(|work| floor.trajectories_per_hour(&work));
        let row = line("per_device_hour", bound, totals.and_then(per_device_hour));
        lines.push(PlanLine { device: Some(floor.device().to_owned()), ..row });
    }
    lines
}

fn line(figure: &str, planned: Option<f64>, measured: Option<f64>) -> PlanLine {
    let share = planned.zip(measured).and_then(|(planned, measured)| ratio(measured, planned));
    PlanLine { figure: figure.to_owned(), planned, measured, share, device: None }
}

/// Page seconds: the session's time without policy, queue and scorer, divided by its steps.
fn work(tally: &DataSetTally, tokens: Option<f64>, sessions: u32) -> Option<MeasuredWork> {
    let policy = TimeCause::Policy.as_str();
    let of_pages =
        tally.session_micros.iter().filter(|(cause, _)| ![policy, "queue", "score"].contains(cause));
    let micros: u64 = of_pages.map(|(_, micros)| micros).sum();
    let all = &tally.all;
    let page_seconds = ratio(micros as f64 / 1e6, all.steps as f64).filter(|seconds| *seconds > 0.0)?;
    let steps = share(all.steps, all.trajectories())?;
    Some(MeasuredWork { steps, tokens: tokens.unwrap_or(0.0), page_seconds, sessions })
}

#[cfg(test)]
mod tests {
    use furrow_analysis::view::TrajectoryCounts;
    use furrow_telemetry::{Label as _, SlotUse};

    use super::*;

    #[derive(Debug)]
    struct FixedFloor;

    impl DeviceFloor for FixedFloor {
        fn device(&self) -> &str {
            "h200"
        }

        fn trajectories_per_hour(&self, work: &MeasuredWork) -> f64 {
            assert_eq!(*work, MeasuredWork { steps: 5.0, tokens: 20.0, page_seconds: 2.0, sessions: 8 });
            1000.0
        }
    }

    /// Four trajectories of five steps, 20 tokens each; pages took 40 s of them, the policy 15 s.
    fn tally() -> DataSetTally {
        let counts =
            TrajectoryCounts { scored: 4, steps: 20, response_tokens: 400, ..TrajectoryCounts::default() };
        let mut tally = DataSetTally { all: counts.clone(), training: counts, ..DataSetTally::default() };
        let micros = [("queue", 9), ("policy", 15), ("observe", 10), ("settle", 30), ("score", 7)];
        tally.session_micros.extend(micros.map(|(cause, seconds)| (cause, seconds * 1_000_000)));
        tally
    }

    #[track_caller]
    fn check(
        lines: &[PlanLine],
        figure: &str,
        planned: Option<f64>,
        measured: Option<f64>,
        share: Option<f64>,
    ) {
        let line = lines.iter().find(|line| line.figure == figure).unwrap();
        assert_eq!([line.planned, line.measured, line.share], [planned, measured, share], "{figure}");
    }

    #[test]
    fn a_plan_stands_beside_what_came_of_it() {
        let mut totals =
            MetricTotals { scored: 4, slot_micros: vec![0; SlotUse::ALL.len()], ..MetricTotals::default() };
        totals.slot_micros[SlotUse::Busy.index()] = 60_000_000;
        totals.slot_micros[SlotUse::NoAssignment.index()] = 20_000_000;
        let planned = PlannedWork { trajectories: Some(16), sessions: 8, tokens_max: Some(40) };
        let floor: Arc<dyn DeviceFloor> = Arc::new(FixedFloor);
        let lines = lines(&planned, Some(&floor), &tally(), Some(&totals), None);
        check(&lines, "trajectories", Some(16.0), Some(4.0), Some(0.25));
        check(&lines, "slots_filled", Some(1.0), Some(0.75), Some(0.75));
        check(&lines, "tokens_a_step", Some(40.0), Some(20.0), Some(0.5));
        // A slot whose policy answers at once: five steps of 2 s; and 4 scored in 80 slot-seconds.
        check(&lines, "per_slot_hour", Some(360.0), Some(180.0), Some(0.5));
        check(&lines, "per_device_hour", Some(1000.0), None, None);
        assert_eq!(lines[4].device.as_deref(), Some("h200"));
        assert_eq!(lines[0].device, None);
    }

    #[test]
    fn what_is_not_known_is_null() {
        let lines = lines(&PlannedWork::default(), None, &DataSetTally::default(), None, None);
        assert_eq!(lines.len(), 4);
        check(&lines, "trajectories", None, Some(0.0), None);
        check(&lines, "slots_filled", Some(1.0), None, None);
        check(&lines, "tokens_a_step", None, None, None);
        check(&lines, "per_slot_hour", None, None, None);
    }
}
