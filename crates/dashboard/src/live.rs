//! Polls the coordinator of a running job, once a second while there are requests.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use furrow_wire::v1::coordinator_service_client::CoordinatorServiceClient;
use furrow_wire::v1::{
    DrainRequest, LastStepRequest, LastStepResponse, ProgressRequest, RunningRequest, RunningTrajectory,
    WeightsRequest,
};
use furrow_wire::{Code, MESSAGE_BYTES_MAX, OpaqueStep, Status, with_deadline};
use tokio_util::sync::CancellationToken;

use crate::answers::{RunningSession, SessionStep, SessionsAnswer, SessionsHead};
use crate::api_error::DashboardApiError;
use crate::follow::DashboardState;
use crate::live_run::LiveRun;

/// Time between two polls, and the deadline of an answer.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// A name of 255 letters and a port are shorter.
const ADDRESS_BYTES_MAX: u64 = 512;
/// Number of failed polls after which the run counts as over.
const SILENT_MAX: u32 = 3;

/// Polls until `stop`, while there are requests. A run that does not answer is over or has not
/// started: its live data is then dropped.
pub(crate) async fn poll(state: Arc<DashboardState>, stop: CancellationToken) {
    let mut silent = 0;
    while stop.run_until_cancelled(state.wait_for_request()).await.is_some() {
        match poll_once(&state).await {
            true => silent = 0,
            // A single failure does not end the run.
            false if silent < SILENT_MAX => silent += 1,
            false => state.set_live(None),
        }
        if stop.run_until_cancelled(tokio::time::sleep(POLL_INTERVAL)).await.is_none() {
            return;
        }
    }
}

/// Polls once; returns whether there was an answer.
pub(crate) async fn poll_once(state: &DashboardState) -> bool {
    update_address(state).await;
    let live = ask(state).await;
    let answers = live.is_some();
    if answers {
        state.set_live(live);
    }
    state.note_first(|firsts| firsts.coordinator = true);
    answers
}

/// Reads the coordinator's address, which a resumed run writes again.
async fn update_address(state: &DashboardState) {
    if state.subject.coordinator.is_some() {
        return;
    }
    let Some(dir) = state.subject.dir.clone() else { return };
    if let Ok(address) = tokio::task::spawn_blocking(move || address(&dir)).await {
        state.set_address(address);
    }
}

async fn ask(state: &DashboardState) -> Option<LiveRun> {
    let mut client = CoordinatorServiceClient::new(state.coordinator()?);
    let request = async { Ok(client.progress(ProgressRequest {}).await?.into_inner()) };
    let progress = with_deadline(POLL_INTERVAL, request).await.ok()?;
    if !state.is_same_run(&progress.run_id) {
        return None;
    }
    let request = async { Ok(client.weights(WeightsRequest { version: 0 }).await?.into_inner()) };
    let weights = with_deadline(POLL_INTERVAL, request).await.ok();
    Some(LiveRun::updated(state.live(), progress, weights, Instant::now()))
}

/// The running sessions, for the tiles.
pub(crate) async fn sessions(state: &DashboardState) -> Result<SessionsAnswer, DashboardApiError> {
    state.wait_for_first(|firsts| firsts.coordinator).await;
    // Without the data set, which this task must not wait for.
    let head = SessionsHead { name: state.subject.name.clone(), ..SessionsHead::default() };
    // The coordinator must be this run's, which the poll has verified.
    let Some(channel) = state.coordinator().filter(|_| state.live().is_some()) else {
        return Ok(SessionsAnswer { head, is_live: false, sessions: Vec::new() });
    };
    let mut client = CoordinatorServiceClient::new(channel);
    let answer = with_deadline(5 * POLL_INTERVAL, client.running(RunningRequest {}))
        .await
        .map_err(|status| late(&status))?;
    let session = |running: RunningTrajectory| RunningSession {
        trajectory_id: running.ancestry.unwrap_or_default().trajectory_id,
        task_id: running.task_id,
        suite: running.suite,
        steps: running.steps,
        env_worker: running.env_worker,
        policy_worker: running.policy_worker,
        started_at: running.started_at_micros,
        first_shown: running.first_shown && running.steps == 0,
    };
    let sessions = answer.into_inner().trajectories.into_iter().map(session).collect();
    Ok(SessionsAnswer { head, is_live: true, sessions })
}

fn late(status: &Status) -> DashboardApiError {
    if status.code() == Code::NotFound {
        return DashboardApiError::NotFound(status.message().to_owned());
    }
    DashboardApiError::Timeout(format!("the coordinator does not answer: {}", status.message()))
}

/// What the coordinator has of a running trajectory: its newest durable step, or before it the
/// first screenshot.
async fn newest(state: &DashboardState, trajectory_id: &str) -> Result<LastStepResponse, DashboardApiError> {
    let channel = state.coordinator().filter(|_| state.live().is_some()).ok_or_else(nothing)?;
    // A record may be as large as the farm's largest message.
    let mut client = CoordinatorServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let request = LastStepRequest { trajectory_id: trajectory_id.to_owned() };
    let answer = with_deadline(5 * POLL_INTERVAL, client.last_step(request)).await;
    Ok(answer.map_err(|status| late(&status))?.into_inner())
}

fn nothing() -> DashboardApiError {
    DashboardApiError::NotFound("no durable step: the trajectory just started, or is over".to_owned())
}

fn durable_step(record: Bytes) -> Result<OpaqueStep, DashboardApiError> {
    if record.is_empty() {
        return Err(nothing());
    }
    furrow_wire::decode_opaque_step(record).map_err(|error| DashboardApiError::Unreadable(error.to_string()))
}

/// The data of a session's tile: its last step.
pub(crate) async fn session(
    state: &DashboardState,
    trajectory_id: &str,
) -> Result<SessionStep, DashboardApiError> {
    let step = durable_step(newest(state, trajectory_id).await?.record)?;
    let action = match &step.reply.action {
        Ok(action) if step.reply.name.is_empty() => action.kind().to_owned(),
        Ok(_) => step.reply.name,
        Err(_) => "no action".to_owned(),
    };
    Ok(SessionStep {
        step: step.step,
        title: step.observation.title,
        url: step.observation.url,
        action,
        outcome: step.outcome.name.as_str().to_owned(),
        observed_at: step.observed_at_micros,
    })
}

/// The newest picture of a running trajectory; with a step in the query, only if that step is the
/// newest. Before the first durable step it is that of step 0.
pub(crate) async fn picture(
    state: &DashboardState,
    trajectory_id: &str,
    query: &str,
) -> Result<Bytes, DashboardApiError> {
    let wanted = crate::query::step(query).map_err(DashboardApiError::BadRequest)?.map(i64::from);
    let LastStepResponse { record, first_screenshot } = newest(state, trajectory_id).await?;
    let (step, bytes) = match first_screenshot.is_empty() {
        true => {
            let last = durable_step(record)?;
            (i64::from(last.step), last.observation.screenshot.bytes)
        }
        false => (0, first_screenshot),
    };
    match wanted.filter(|wanted| *wanted != step) {
        Some(wanted) => Err(DashboardApiError::NotFound(format!(
            "step {wanted} is not the newest one, which is {step}: leave the step out, or request the committed picture"
        ))),
        None => Ok(bytes),
    }
}

/// What happens to running trajectories when a job is ended from a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndMode {
    /// They finish, or are handed back at the end of the grace period.
    Drain,
    /// They are revoked at once.
    Stop,
}

/// Asks the coordinator to admit nothing new and to end the run.
pub(crate) async fn end(state: &DashboardState, ending: EndMode) -> Result<(), String> {
    let no_coordinator = || "no coordinator answers: this run is over, or was not started".to_owned();
    let live = state.live().ok_or_else(no_coordinator)?;
    if live.progress.run_over {
        return Err("the run is over".to_owned());
    }
    let mut client = CoordinatorServiceClient::new(state.coordinator().ok_or_else(no_coordinator)?);
    let request = DrainRequest { at_once: ending == EndMode::Stop };
    let response = with_deadline(5 * POLL_INTERVAL, client.drain(request)).await;
    response.map(drop).map_err(|status| format!("the coordinator refused: {}", status.message()))
}

/// The address at which the coordinator of a run listens or listened, from the run directory.
/// Blocks.
fn address(dir: &Path) -> Option<String> {
    let mut text = String::new();
    let file = File::open(dir.join("coordinator.address")).ok()?;
    file.take(ADDRESS_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}
