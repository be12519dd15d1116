//! The session stream: Open, observations in, replies out, Close.

use std::sync::Arc;
use std::time::{Duration, Instant};

use furrow_rollout::{Id, PolicyWorker, Trajectory};
use furrow_telemetry::{ReplyRepeated, ReplySent, SessionClosed, SessionEnd, SessionOpened, SessionRebuilt};
use furrow_wire::v1::policy_service_server::PolicyService;
use furrow_wire::v1::{
    Acted, Observe, Opened, SessionRequest, SessionResponse, session_request, session_response,
};
use furrow_wire::{
    Opening, PastStep, WireError, encode_trace, observation_from, outcome_from, past_from, reply_into,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::policy::{Answer, Policy, PolicyError, Turn};
use crate::sessions::{Acting, NoSeat, Seat, Sessions};

/// Replies a stream may hold back while its reader is slow. There is one a step, so two is already one too many.
const REPLIES_MAX: usize = 2;

/// A session whose worker says nothing for so long is given up; a page may take minutes, not half an hour.
const SILENCE_MAX: Duration = Duration::from_secs(1800);

/// The gRPC service.
#[derive(Clone)]
pub(crate) struct Service {
    pub worker: Id<PolicyWorker>,
    pub policy: Arc<dyn Policy>,
    pub sessions: Sessions,
    pub think: Duration,
    /// Cancelled when no new sessions are taken.
    pub draining: CancellationToken,
    pub streams: TaskTracker,
}

#[tonic::async_trait]
impl PolicyService for Service {
    type SessionStream = ReceiverStream<Result<SessionResponse, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        if self.draining.is_cancelled() {
            return Err(Status::unavailable("this policy worker is draining; open the session on another"));
        }
        let (replies, receiver) = mpsc::channel(REPLIES_MAX);
        let service = self.clone();
        self.streams.spawn(async move {
            if let Err(status) = service.serve(request.into_inner(), &replies).await {
                // A closed receiver means that nobody is left to be told.
                replies.send(Err(status)).await.ok();
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

type Replies = mpsc::Sender<Result<SessionResponse, Status>>;

impl Service {
    async fn serve(&self, mut stream: Streaming<SessionRequest>, replies: &Replies) -> Result<(), Status> {
        let opening = tokio::select! {
            opening = self.opening(&mut stream) => opening?,
            () = self.sessions.over() => return Err(self.cut_off()),
        };
        let seat = self.sessions.open(&opening.ancestry.trajectory_id, opening.token)?;
        tokio::select! {
            ready = self.ready(&mut stream, &seat, &opening) => ready?,
            () = seat.cut() => return Err(self.cut_off()),
        }
        let (trajectory_id, worker) = (&opening.ancestry.trajectory_id, self.worker.as_str());
        SessionOpened { trajectory_id, worker, policy_kind: self.policy.kind() }.emit();
        let mut given = 0;
        let ended = self.converse(&mut stream, replies, seat, &opening, &mut given).await;
        SessionClosed {
            trajectory_id,
            worker,
            end: end_of(&ended, self.draining.is_cancelled()),
            replies: given,
        }
        .emit();
        ended.map(drop)
    }

    /// Answers observations until the session or its stream ends; whether it was closed.
    async fn converse(
        &self,
        stream: &mut Streaming<SessionRequest>,
        replies: &Replies,
        seat: Seat,
        opening: &Opening,
        given: &mut u32,
    ) -> Result<bool, Status> {
        send(replies, session_response::Event::Opened(self.opened())).await?;
        loop {
            let event = tokio::select! {
                event = next(stream) => event?,
                () = seat.cut() => return Err(self.cut_off()),
            };
            match event {
                Some(session_request::Event::Observe(observe)) => {
                    let acted = self.reply(&seat, opening, observe).await?;
                    send(replies, session_response::Event::Acted(acted)).await?;
                    *given += 1;
                }
                Some(session_request::Event::Close(_)) => {
                    seat.close();
                    return Ok(true);
                }
                None => return Ok(false),
                Some(_) => {
                    return Err(Status::invalid_argument(
                        "after Open and Past only Observe and Close may come",
                    ));
                }
            }
        }
    }

    /// What a stream is told that was cut: its session lives on elsewhere, or can.
    fn cut_off(&self) -> Status {
        match self.sessions.failure() {
            Some(why) => PolicyError::Gone { why: why.to_owned() }.into(),
            None => taken_over(),
        }
    }

    async fn opening(&self, stream: &mut Streaming<SessionRequest>) -> Result<Opening, Status> {
        match next(stream).await? {
            Some(session_request::Event::Open(open)) => Ok(Opening::try_from(open)?),
            _ => Err(Status::invalid_argument("a session begins with Open")),
        }
    }

    fn opened(&self) -> Opened {
        Opened {
            worker_id: self.worker.to_string(),
            policy_kind: self.policy.kind().as_str().to_owned(),
            wants_hints: self.policy.wants_hints(),
        }
    }

    /// Finds the session as it was left, or opens one and tells it its past.
    async fn ready(
        &self,
        stream: &mut Streaming<SessionRequest>,
        seat: &Seat,
        opening: &Opening,
    ) -> Result<(), Status> {
        let mut acting = seat.life().acting.lock().await;
        let steps = opening.past_steps;
        let goes_on = |acting: &Acting| {
            acting.steps == steps || (acting.steps == steps + 1 && seat.replied(steps).is_some())
        };
        if acting.as_ref().is_some_and(goes_on) {
            for step in 0..steps {
                past(stream, step, steps).await?;
            }
            return Ok(());
        }
        // The old one goes first: its place may be the one that the new one needs.
        *acting = None;
        seat.forget();
        let mut session = self.policy.open(opening).await?;
        for step in 0..steps {
            session.recall(past(stream, step, steps).await?).await?;
        }
        *acting = Some(Acting { session, steps });
        if steps > 0 {
            let (trajectory_id, worker) = (&opening.ancestry.trajectory_id, self.worker.as_str());
            SessionRebuilt { trajectory_id, worker, steps }.emit();
        }
        Ok(())
    }

    /// The reply to one observation: the one already given if it was answered before.
    async fn reply(&self, seat: &Seat, opening: &Opening, observe: Observe) -> Result<Acted, Status> {
        let began = Instant::now();
        let (step, hint) = (observe.step, observe.hint_json);
        // A stream that broke may have left a reply in the making; it is this one's as well.
        let mut acting = seat.life().acting.lock().await;
        if let Some(acted) = seat.replied(step) {
            ReplyRepeated { trajectory_id: &opening.ancestry.trajectory_id, step }.emit();
            return Ok(acted);
        }
        let observation =
            observation_from(observe.observation.ok_or(WireError::Missing { key: "observe.observation" })?)?;
        let last_outcome = observe.last_outcome.map(outcome_from).transpose()?;
        let turn = Turn {
            ancestry: &opening.ancestry,
            session: &opening.session,
            goal: &opening.goal,
            step,
            observation: &observation,
            last_outcome: last_outcome.as_ref(),
            hint_json: hint.as_deref(),
        };
        let Acting { session, steps } = acting.as_mut().ok_or_else(|| self.cut_off())?;
        let answer = tokio::select! {
            answer = session.act(turn) => answer?,
            () = seat.life().over() => return Err(self.cut_off()),
        };
        *steps = step + 1;
        tokio::time::sleep(self.think.saturating_sub(began.elapsed())).await;
        let acted = self.acted(&opening.ancestry.trajectory_id, step, answer, began);
        seat.remember(&acted);
        Ok(acted)
    }

    fn acted(&self, trajectory_id: &Id<Trajectory>, step: u32, answer: Answer, began: Instant) -> Acted {
        match answer {
            Answer::ContextFull => Acted { step, context_full: true, ..Acted::default() },
            Answer::Reply(given) => {
                let (reply, mut trace) = *given;
                trace.engine.worker = self.worker.to_string();
                trace.engine.service_micros = began.elapsed().as_micros() as u64;
                ReplySent { trajectory_id, step, valid: reply.action.is_ok(), engine: &trace.engine }.emit();
                let (reply, trace) = (Some(reply_into(&reply)), encode_trace(&trace));
                Acted { step, reply, trace, context_full: false }
            }
        }
    }
}

/// How a session ended: closed or left, or with this status.
fn end_of(ended: &Result<bool, Status>, draining: bool) -> SessionEnd {
    match ended.as_ref().map_err(Status::code) {
        Ok(true) => SessionEnd::Closed,
        Err(Code::Aborted) if draining => SessionEnd::Draining,
        Err(Code::DeadlineExceeded) => SessionEnd::IdleTooLong,
        Err(Code::InvalidArgument) => SessionEnd::Refused,
        Err(Code::Unavailable) => SessionEnd::WorkerLost,
        Err(Code::Internal | Code::ResourceExhausted) => SessionEnd::PolicyFault,
        Ok(false) | Err(_) => SessionEnd::Disconnected,
    }
}

fn taken_over() -> Status {
    Status::aborted("the session was opened again elsewhere")
}

/// Reads one earlier step of a session: nothing reads ahead of whoever is told.
async fn past(stream: &mut Streaming<SessionRequest>, step: u32, steps: u32) -> Result<PastStep, Status> {
    match next(stream).await? {
        Some(session_request::Event::Past(past)) if past.step == step => Ok(past_from(past)?),
        _ => Err(Status::invalid_argument(format!("Past with step {step} of {steps} was expected"))),
    }
}

async fn next(stream: &mut Streaming<SessionRequest>) -> Result<Option<session_request::Event>, Status> {
    let message = tokio::time::timeout(SILENCE_MAX, stream.message())
        .await
        .map_err(|_| Status::deadline_exceeded("the session was silent for half an hour"))??;
    match message {
        None => Ok(None),
        Some(SessionRequest { event: Some(event) }) => Ok(Some(event)),
        Some(SessionRequest { event: None }) => Err(Status::invalid_argument("a message without an event")),
    }
}

async fn send(replies: &Replies, event: session_response::Event) -> Result<(), Status> {
    let message = SessionResponse { event: Some(event) };
    replies.send(Ok(message)).await.map_err(|_| Status::cancelled("the reader is gone"))
}

impl From<NoSeat> for Status {
    fn from(none: NoSeat) -> Self {
        match none {
            NoSeat::Stale { held } => {
                Status::failed_precondition(format!("the trajectory is held under the younger token {held}"))
            }
            NoSeat::Full { sessions_max } => Status::resource_exhausted(format!(
                "all {sessions_max} sessions are in use; raise policy.sessions_max or add a policy worker"
            )),
        }
    }
}

impl From<PolicyError> for Status {
    /// What the session itself cannot get over is INTERNAL: another try would fail alike. What another worker may do better is UNAVAILABLE.
    fn from(error: PolicyError) -> Self {
        let code = match &error {
            PolicyError::Full { .. } => Code::ResourceExhausted,
            PolicyError::Gone { .. } => Code::Unavailable,
            PolicyError::Settings { .. } | PolicyError::Past { .. } | PolicyError::OutOfOrder { .. } => {
                Code::InvalidArgument
            }
            PolicyError::Hint { .. } | PolicyError::Screenshot { .. } | PolicyError::Failed { .. } => {
                Code::Internal
            }
        };
        Status::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(ended: &Result<bool, Status>, draining: bool, want: SessionEnd) {
        assert_eq!(end_of(ended, draining), want, "{ended:?}");
    }

    #[test]
    fn a_session_ends_for_a_reason_with_a_name() {
        check(&Ok(true), false, SessionEnd::Closed);
        check(&Ok(true), true, SessionEnd::Closed);
        check(&Ok(false), false, SessionEnd::Disconnected);
        check(&Err(taken_over()), false, SessionEnd::Disconnected);
        check(&Err(taken_over()), true, SessionEnd::Draining);
        check(&Err(Status::deadline_exceeded("half an hour")), false, SessionEnd::IdleTooLong);
        check(&Err(Status::invalid_argument("Open twice")), false, SessionEnd::Refused);
        check(&Err(Status::cancelled("the reader is gone")), false, SessionEnd::Disconnected);
        check(
            &Err(PolicyError::Failed { step: 0, why: "NaN".into() }.into()),
            false,
            SessionEnd::PolicyFault,
        );
        let lost = PolicyError::Gone { why: "the device failed: ECC".into() };
        check(&Err(lost.into()), false, SessionEnd::WorkerLost);
    }
}
