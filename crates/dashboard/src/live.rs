//! What the coordinator of a running job says of it, asked once a second while somebody looks.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use furrow_wire::v1::coordinator_service_client::CoordinatorServiceClient;
use furrow_wire::v1::{
    DrainRequest, LastStepRequest, ProgressRequest, ProgressResponse, RunningRequest, RunningTrajectory,
    WeightsRequest, WeightsResponse, WorkerHealth,
};
use furrow_wire::{Code, MESSAGE_BYTES_MAX, OpaqueStep, Status, within};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::api::Refusal;
use crate::figures;
use crate::follow::State;

/// A run as its coordinator last described it.
#[derive(Debug, Clone)]
pub(crate) struct Live {
    /// Its figures.
    pub progress: ProgressResponse,
    /// Versions of the weights; `None` where it did not say.
    pub weights: Option<WeightsResponse>,
    /// Groups that were closed at moments of the last minutes, oldest first.
    pace: VecDeque<(Instant, u32)>,
}

/// How often is asked, and how long an answer may take.
const LOOK: Duration = Duration::from_secs(1);
/// An end is foretold from the pace of the last five minutes.
const PACE: Duration = Duration::from_secs(300);
/// A name of 255 letters and a port are shorter.
const ADDRESS_BYTES_MAX: u64 = 512;
/// So many silent seconds, and the run counts as over.
const SILENT_MAX: u32 = 3;

impl Live {
    /// For the pages.
    pub fn told(&self) -> Value {
        let now = &self.progress;
        let workers = self.weights.iter().flat_map(|weights| &weights.workers);
        json!({
            "groups_planned": now.groups_planned,
            "groups_closed": now.groups_closed,
            "running": now.assigned,
            "scored": now.scored,
            "failed": now.failed,
            "published": now.published,
            "discarded": now.discarded,
            "steps": now.steps,
            "successes": now.successes,
            "judged": now.training_judged,
            "success_rate": figures::rate_with_interval(now.training_successes.into(), now.training_judged.into()),
            "scoring": now.scoring,
            "reward_mean": (now.scored > 0).then(|| now.reward_sum / f64::from(now.scored)),
            "env_workers": now.env_workers,
            "policy_workers": now.policy_workers,
            "admission": now.admission,
            "run_over": now.run_over,
            "eta_seconds": self.eta_seconds(),
            "version": self.weights.as_ref().map(|weights| weights.current),
            "version_newest": self.weights.as_ref().map(|weights| weights.version),
            "weights": workers.map(|worker| json!({
                "worker": worker.worker_id, "version": worker.version, "lags": worker.lags,
            })).collect::<Vec<_>>(),
        })
    }

    /// Who is there, for the page of the job.
    pub fn workers(&self) -> Value {
        let worker = |worker: &WorkerHealth| {
            json!({
                "worker": worker.worker_id,
                "role": worker.role,
                "sessions": worker.sessions,
                "sessions_max": worker.sessions_max,
                "heard_seconds": worker.heard_millis as f64 / 1e3,
                "memory_bytes": worker.memory_bytes,
                "memory_left_bytes": worker.memory_left_bytes,
                "version": worker.policy_version,
                "waits": Some(&worker.waits).filter(|why| !why.is_empty()),
            })
        };
        self.progress.workers.iter().map(worker).collect()
    }

    /// Groups that are left at the pace of the last minutes; `None` before a group closed within them.
    fn eta_seconds(&self) -> Option<f64> {
        let ((began, first), (now, last)) = self.pace.front().zip(self.pace.back())?;
        let closed = last.checked_sub(*first).filter(|closed| *closed > 0)?;
        let seconds = now.duration_since(*began).as_secs_f64();
        let left = self.progress.groups_planned.saturating_sub(*last);
        Some(f64::from(left) * seconds / f64::from(closed))
    }

    fn after(
        before: Option<Self>,
        progress: ProgressResponse,
        weights: Option<WeightsResponse>,
        now: Instant,
    ) -> Self {
        let mut pace = before.map(|live| live.pace).unwrap_or_default();
        pace.push_back((now, progress.groups_closed));
        while pace.front().is_some_and(|(at, _)| now.duration_since(*at) > PACE) {
            pace.pop_front();
        }
        Self { progress, weights, pace }
    }
}

/// Asks until `stop`, as long as somebody looks. A run that does not answer is over, or not begun: nothing is told of it then.
pub(crate) async fn poll(state: Arc<State>, stop: CancellationToken) {
    let mut silent = 0;
    loop {
        let rest = async {
            tokio::time::sleep(LOOK).await;
            state.until_looked_at().await;
        };
        if stop.run_until_cancelled(rest).await.is_none() {
            return;
        }
        match look(&state).await {
            true => silent = 0,
            // One late answer is no end.
            false if silent < SILENT_MAX => silent += 1,
            false => state.set_live(None),
        }
    }
}

/// Asks once, and says whether there was an answer.
pub(crate) async fn look(state: &State) -> bool {
    look_up(state).await;
    let live = ask(state).await;
    let answers = live.is_some();
    if answers {
        state.set_live(live);
    }
    answers
}

/// Reads where the coordinator listens, which a run that is resumed says anew.
async fn look_up(state: &State) {
    if state.subject.coordinator.is_some() {
        return;
    }
    let Some(dir) = state.subject.dir.clone() else { return };
    if let Ok(address) = tokio::task::spawn_blocking(move || address(&dir)).await {
        state.set_address(address);
    }
}

async fn ask(state: &State) -> Option<Live> {
    let mut client = CoordinatorServiceClient::new(state.coordinator()?);
    let asked = async { Ok(client.progress(ProgressRequest {}).await?.into_inner()) };
    let progress = within(LOOK, asked).await.ok()?;
    if !state.is_of(&progress.run_id) {
        return None;
    }
    let asked = async { Ok(client.weights(WeightsRequest { version: 0 }).await?.into_inner()) };
    let weights = within(LOOK, asked).await.ok();
    Some(Live::after(state.live(), progress, weights, Instant::now()))
}

/// What runs now, for tiles.
pub(crate) async fn sessions(state: &State) -> Result<Value, Refusal> {
    // What answers must be this run's, which the poll has asked.
    let Some(channel) = state.coordinator().filter(|_| state.live().is_some()) else {
        return Ok(json!({ "head": head(state), "is_live": false, "sessions": [] }));
    };
    let mut client = CoordinatorServiceClient::new(channel);
    let answer = within(5 * LOOK, client.running(RunningRequest {})).await.map_err(|status| late(&status))?;
    let session = |running: &RunningTrajectory| {
        let of = running.ancestry.clone().unwrap_or_default();
        json!({
            "trajectory_id": of.trajectory_id,
            "task_id": running.task_id,
            "suite": running.suite,
            "steps": running.steps,
            "env_worker": running.env_worker,
            "policy_worker": running.policy_worker,
            "started_at": running.started_at_micros,
        })
    };
    let sessions: Vec<Value> = answer.into_inner().trajectories.iter().map(session).collect();
    Ok(json!({ "head": head(state), "is_live": true, "sessions": sessions }))
}

/// What the header needs. Whose figures they are is known without a data set, which this task must not wait for.
fn head(state: &State) -> Value {
    json!({ "name": state.subject.name, "problems": [], "step_files_left": 0, "left_out": 0 })
}

fn late(status: &Status) -> Refusal {
    if status.code() == Code::NotFound {
        return Refusal::Missing(status.message().to_owned());
    }
    Refusal::Late(format!("the coordinator does not answer now: {}", status.message()))
}

/// The newest durable step of a trajectory that runs.
async fn last_step(state: &State, trajectory_id: &str) -> Result<OpaqueStep, Refusal> {
    let nothing = || Refusal::Missing("no step of it is known: it began just now, or is over".to_owned());
    let channel = state.coordinator().filter(|_| state.live().is_some()).ok_or_else(nothing)?;
    // A record may be as large as the farm's largest message.
    let mut client = CoordinatorServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let request = LastStepRequest { trajectory_id: trajectory_id.to_owned() };
    let answer = within(5 * LOOK, client.last_step(request)).await;
    let record = answer.map_err(|status| late(&status))?.into_inner().record;
    if record.is_empty() {
        return Err(nothing());
    }
    furrow_wire::decode_opaque_step(record).map_err(|error| Refusal::Broken(error.to_string()))
}

/// What a tile says of its last step.
pub(crate) async fn session(state: &State, trajectory_id: &str) -> Result<Value, Refusal> {
    let step = last_step(state, trajectory_id).await?;
    let action = match &step.reply.action {
        Ok(_) => step.reply.name.clone(),
        Err(_) => "no action".to_owned(),
    };
    Ok(json!({
        "step": step.step,
        "title": step.observation.title,
        "url": step.observation.url,
        "action": action,
        "outcome": step.outcome.name.as_str(),
        "observed_at": step.observed_at_micros,
    }))
}

/// The newest picture of a trajectory that runs; where a step is asked for, that of this step while it is the newest one.
pub(crate) async fn picture(state: &State, trajectory_id: &str, query: &str) -> Result<Bytes, Refusal> {
    let asked = crate::query::step(query).map_err(Refusal::Asked)?;
    let last = last_step(state, trajectory_id).await?;
    match asked {
        Some(asked) if i64::from(asked) != i64::from(last.step) => Err(Refusal::Missing(format!(
            "step {asked} is not the newest one, which is {}: ask without a step, or for the published picture",
            last.step
        ))),
        _ => Ok(last.observation.screenshot.bytes),
    }
}

/// What becomes of what runs when a job is ended from a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It is finished, or handed back when the grace is over.
    Drain,
    /// It is taken back now.
    Stop,
}

/// Tells the coordinator to admit nothing new and to end the run.
pub(crate) async fn end(state: &State, ending: Ending) -> Result<(), String> {
    let nobody = || "no coordinator answers: this run is over, or was not started".to_owned();
    let live = state.live().ok_or_else(nobody)?;
    if live.progress.run_over {
        return Err("the run is over".to_owned());
    }
    let mut client = CoordinatorServiceClient::new(state.coordinator().ok_or_else(nobody)?);
    let request = DrainRequest { at_once: ending == Ending::Stop };
    let told = within(5 * LOOK, client.drain(request)).await;
    told.map(drop).map_err(|status| format!("the coordinator refused: {}", status.message()))
}

/// Where the coordinator of a run listens, or listened: what it wrote into its directory. Blocks.
fn address(dir: &Path) -> Option<String> {
    let mut text = String::new();
    let file = File::open(dir.join("coordinator.address")).ok()?;
    file.take(ADDRESS_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_foretold_from_the_last_minutes() {
        let began = Instant::now();
        let progress =
            |closed| ProgressResponse { groups_planned: 100, groups_closed: closed, ..Default::default() };
        let mut live = None;
        let after = |live: Option<Live>, closed, seconds| {
            Some(Live::after(live, progress(closed), None, began + Duration::from_secs(seconds)))
        };
        live = after(live, 10, 0);
        assert_eq!(live.as_ref().unwrap().eta_seconds(), None, "one moment is no pace");
        live = after(live, 10, 10);
        assert_eq!(live.as_ref().unwrap().eta_seconds(), None, "nothing closed");
        live = after(live, 20, 20);
        assert_eq!(live.as_ref().unwrap().eta_seconds(), Some(160.0), "80 left, half a group a second");
        // What is older than five minutes counts no more: 20 groups in 290 s since.
        live = after(live, 40, 310);
        let eta = live.as_ref().unwrap().eta_seconds().unwrap();
        assert!((eta - 60.0 * 300.0 / 30.0).abs() < 1e-9, "{eta}");
        live = after(live, 100, 320);
        assert_eq!(live.unwrap().eta_seconds(), Some(0.0));
    }
}
