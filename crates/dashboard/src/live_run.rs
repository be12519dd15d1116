//! A run as its coordinator last described it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use furrow_wire::v1::{ProgressResponse, WeightsResponse, WorkerHealth};

use crate::answers::{LiveProgress, RunningVersion, WorkerStatus};
use crate::metrics;
use crate::run_time::trajectories_per_hour;

/// A run as its coordinator last described it.
#[derive(Debug, Clone)]
pub(crate) struct LiveRun {
    pub progress: ProgressResponse,
    /// Versions of the weights; `None` without an answer.
    pub weights: Option<WeightsResponse>,
    /// Times of the last minutes with the number of closed groups, oldest first.
    pace: VecDeque<(Instant, u32)>,
}

/// The end is estimated from the rate of the last five minutes.
const PACE_WINDOW: Duration = Duration::from_secs(300);

impl LiveRun {
    pub(crate) fn answer(&self) -> LiveProgress {
        let now = &self.progress;
        let reward_mean = (now.scored > 0).then(|| now.reward_sum / f64::from(now.scored));
        let workers = self.weights.iter().flat_map(|weights| &weights.workers);
        let versions = workers.map(|worker| RunningVersion {
            worker: worker.worker_id.clone(),
            version: worker.version,
            lags: worker.lags.clone(),
        });
        LiveProgress {
            groups_planned: now.groups_planned,
            groups_closed: now.groups_closed,
            running: now.assigned,
            scored: now.scored,
            failed: now.failed,
            published: now.committed,
            discarded: now.discarded,
            steps: now.steps,
            successes: now.successes,
            judged: now.training_success_known,
            success_rate: metrics::rate_with_interval(
                now.training_successes.into(),
                now.training_success_known.into(),
            ),
            scoring: now.scoring,
            reward_mean: reward_mean.filter(|mean| mean.is_finite()),
            env_workers: now.env_workers,
            policy_workers: now.policy_workers,
            admission: now.admission.clone(),
            run_over: now.run_over,
            trajectories_per_hour: trajectories_per_hour(now),
            eta_seconds: self.eta_seconds(),
            version: self.weights.as_ref().map(|weights| weights.current),
            version_newest: self.weights.as_ref().map(|weights| weights.version),
            weights: versions.collect(),
        }
    }

    /// The workers, for the page Job.
    pub(crate) fn workers(&self) -> Vec<WorkerStatus> {
        let worker = |worker: &WorkerHealth| WorkerStatus {
            worker: worker.worker_id.clone(),
            role: worker.role.clone(),
            sessions: worker.sessions,
            sessions_max: worker.sessions_max,
            heard_seconds: worker.heard_millis as f64 / 1e3,
            memory_bytes: worker.memory_bytes,
            memory_left_bytes: worker.memory_left_bytes,
            version: worker.policy_version,
            waits: Some(worker.waits.clone()).filter(|why| !why.is_empty()),
        };
        self.progress.workers.iter().map(worker).collect()
    }

    /// Seconds for the remaining groups at the rate of the last minutes; `None` before a group
    /// closed within them.
    fn eta_seconds(&self) -> Option<f64> {
        let ((began, first), (now, last)) = self.pace.front().zip(self.pace.back())?;
        let closed = last.checked_sub(*first).filter(|closed| *closed > 0)?;
        let seconds = now.duration_since(*began).as_secs_f64();
        let left = self.progress.groups_planned.saturating_sub(*last);
        Some(f64::from(left) * seconds / f64::from(closed))
    }

    /// The run after one more answer of its coordinator.
    pub(crate) fn updated(
        before: Option<Self>,
        progress: ProgressResponse,
        weights: Option<WeightsResponse>,
        now: Instant,
    ) -> Self {
        let mut pace = before.map(|live| live.pace).unwrap_or_default();
        pace.push_back((now, progress.groups_closed));
        while pace.front().is_some_and(|(at, _)| now.duration_since(*at) > PACE_WINDOW) {
            pace.pop_front();
        }
        Self { progress, weights, pace }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_estimated_from_the_last_minutes() {
        let began = Instant::now();
        let progress =
            |closed| ProgressResponse { groups_planned: 100, groups_closed: closed, ..Default::default() };
        let mut live = None;
        let after = |live: Option<LiveRun>, closed, seconds| {
            Some(LiveRun::updated(live, progress(closed), None, began + Duration::from_secs(seconds)))
        };
        live = after(live, 10, 0);
        assert_eq!(live.as_ref().unwrap().eta_seconds(), None, "one point gives no rate");
        live = after(live, 10, 10);
        assert_eq!(live.as_ref().unwrap().eta_seconds(), None, "nothing closed");
        live = after(live, 20, 20);
        assert_eq!(live.as_ref().unwrap().eta_seconds(), Some(160.0), "80 left, half a group per second");
        // Points older than five minutes do not count: 20 groups in 290 s since.
        live = after(live, 40, 310);
        let eta = live.as_ref().unwrap().eta_seconds().unwrap();
        assert!((eta - 60.0 * 300.0 / 30.0).abs() < 1e-9, "{eta}");
        live = after(live, 100, 320);
        assert_eq!(live.unwrap().eta_seconds(), Some(0.0));
    }
}
