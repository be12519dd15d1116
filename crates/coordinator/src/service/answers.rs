//! What the core answers, as messages.

use furrow_telemetry::Label as _;
use furrow_wire::v1;

use crate::core::{LeasedTrajectory, RunProgress, WeightsStanding, WorkerStanding, WorkerVersion};
use crate::first_screenshots::FirstScreenshots;

/// The progress of a run as its coordinator sends it.
pub fn progress_message(progress: RunProgress) -> v1::ProgressResponse {
    let count = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    v1::ProgressResponse {
        run_id: progress.run_id.to_string(),
        groups_planned: count(progress.groups_planned),
        groups_closed: count(progress.groups_closed),
        assigned: count(progress.assigned),
        scored: count(progress.scored),
        scored_before: count(progress.scored_before),
        uptime_millis: progress.uptime_millis,
        failed: count(progress.failed.values().sum()),
        committed: count(progress.committed),
        reward_sum: progress.reward_sum,
        successes: count(progress.successes),
        steps: progress.steps,
        discarded: count(progress.discarded),
        env_workers: count(progress.env_workers),
        policy_workers: count(progress.policy_workers),
        admission: progress.admission,
        run_over: progress.run_over,
        training_success_known: count(progress.training_success_known),
        training_successes: count(progress.training_successes),
        scoring: count(progress.scoring),
        workers: progress.workers.into_iter().map(worker_into).collect(),
        first_shown: 0,
    }
}

fn worker_into(standing: WorkerStanding) -> v1::WorkerHealth {
    let WorkerStanding {
        worker,
        kind,
        sessions_max,
        last_contact_millis: heard_millis,
        health,
        version,
        waits,
    } = standing;
    v1::WorkerHealth {
        worker_id: worker,
        role: kind.value().to_owned(),
        sessions_max,
        sessions: health.sessions,
        heard_millis,
        memory_bytes: health.memory_bytes,
        memory_left_bytes: health.memory_left_bytes,
        policy_version: version,
        waits: waits.unwrap_or_default(),
    }
}

pub(super) fn running_into(running: &LeasedTrajectory, first: &FirstScreenshots) -> v1::RunningTrajectory {
    v1::RunningTrajectory {
        ancestry: Some(furrow_wire::ancestry_into(&running.of)),
        task_id: running.draw.task_id.clone(),
        suite: running.draw.suite.clone(),
        env_worker: running.env_worker.to_string(),
        policy_worker: running.policy_worker.to_string(),
        steps: running.steps,
        started_at_micros: running.started_at_micros,
        first_shown: first.has(&running.of.trajectory_id),
    }
}

pub(super) fn standing_into(standing: WeightsStanding) -> v1::WeightsResponse {
    let WeightsStanding { current, version, state, weights_sha256, workers, needed } = standing;
    let state_name = state.as_str().to_owned();
    let reason = state.reason().unwrap_or_default().to_owned();
    let workers = workers.into_iter().map(|WorkerVersion { worker, version, lags }| v1::WeightsWorker {
        worker_id: worker.to_string(),
        version,
        moved: lags.is_none(),
        lags: lags.unwrap_or_default(),
    });
    v1::WeightsResponse {
        current,
        version,
        state: state_name,
        reason,
        workers: workers.collect(),
        needed,
        weights_sha256,
    }
}
