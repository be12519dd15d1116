//! The session stream of an environment worker: Open, then observations in and replies out, then
//! Close.

use std::sync::Arc;
use std::time::{Duration, Instant};

use furrow_rollout::{Id, PolicyWorker, Trajectory};
use furrow_telemetry::{ReplyRepeated, ReplySent, SessionClosed, SessionEnd, SessionOpened, SessionRebuilt};
use furrow_wire::v1::policy_service_server::PolicyService;
use furrow_wire::v1::{
    Acted, Observe, Opened, SessionRequest, SessionResponse, session_request, session_response,
};
use furrow_wire::{
    Caller, PastStep, Revocations, SessionOpening, WireError, encode_trace, observation_from, outcome_from,
    past_from, reply_into,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::config::PolicyConfig;
use crate::grammar;
use crate::policy::{Policy, PolicyError, PolicyInput, PolicyOutput};
use crate::session_table::{ActingSession, SessionSlot, SessionTable, SlotRefusal};

/// Replies that a stream buffers while its reader is slow. A session has one reply under way at a
/// time, so two suffice.
const REPLIES_MAX: usize = 2;

/// A session without a message for this long is closed. A page may take minutes, but not half an
/// hour.
const SILENCE_MAX: Duration = Duration::from_secs(1800);

#[derive(Clone)]
pub(crate) struct SessionService {
    pub worker: Id<PolicyWorker>,
    pub policy: Arc<dyn Policy>,
    pub sessions: SessionTable,
    pub think: Duration,
    /// Peers whose streams end.
    pub revocations: Revocations,
    /// Cancelled when new sessions are refused.
    pub draining: CancellationToken,
    pub streams: TaskTracker,
}

#[tonic::async_trait]
impl PolicyService for SessionService {
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
        let caller = Caller::of(&request);
        self.streams.spawn(async move {
            let served = tokio::select! {
                served = service.serve(request.into_inner(), &replies) => served,
                refused = service.revocations.revoked(&caller) => Err(refused),
            };
            if let Err(status) = served {
                // The send fails only if the client has left already.
                replies.send(Err(status)).await.ok();
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

type ReplySender = mpsc::Sender<Result<SessionResponse, Status>>;

impl SessionService {
    pub(crate) fn new(
        config: &PolicyConfig,
        worker: Id<PolicyWorker>,
        policy: Arc<dyn Policy>,
        draining: CancellationToken,
    ) -> Self {
        Self {
            worker,
            policy,
            sessions: SessionTable::new(config.sessions_max, config.linger),
            think: config.think,
            revocations: Revocations::default(),
            draining,
            streams: TaskTracker::new(),
        }
    }

    async fn serve(
        &self,
        mut stream: Streaming<SessionRequest>,
        replies: &ReplySender,
    ) -> Result<(), Status> {
        let opening = tokio::select! {
            opening = self.opening(&mut stream) => opening?,
            () = self.sessions.ended() => return Err(self.cut_off()),
        };
        let slot = self.sessions.open(&opening.ancestry.trajectory_id, opening.token)?;
        tokio::select! {
            ready = self.resume_or_open(&mut stream, &slot, &opening) => ready?,
            () = slot.cut() => return Err(self.cut_off()),
        }
        let trajectory_id = &opening.ancestry.trajectory_id;
        let worker = self.worker.as_str();
        SessionOpened { trajectory_id, worker, policy_kind: self.policy.kind() }.emit();
        let mut given = 0;
        let ended = self.serve_session(&mut stream, replies, slot, &opening, &mut given).await;
        SessionClosed {
            trajectory_id,
            worker,
            end: end_of(&ended, self.draining.is_cancelled()),
            replies: given,
        }
        .emit();
        ended.map(drop)
    }

    /// Answers observations until the session or its stream ends. Returns whether the session was
    /// closed.
    async fn serve_session(
        &self,
        stream: &mut Streaming<SessionRequest>,
        replies: &ReplySender,
        slot: SessionSlot,
        opening: &SessionOpening,
        given: &mut u32,
    ) -> Result<bool, Status> {
        send(replies, session_response::Event::Opened(self.opened())).await?;
        loop {
            let event = tokio::select! {
                event = next_event(stream) => event?,
                () = slot.cut() => return Err(self.cut_off()),
            };
            match event {
                Some(session_request::Event::Observe(observe)) => {
                    let acted = self.reply(&slot, opening, observe).await?;
                    send(replies, session_response::Event::Acted(acted)).await?;
                    *given += 1;
                }
                Some(session_request::Event::Close(_)) => {
                    slot.close();
                    return Ok(true);
                }
                None => return Ok(false),
                Some(_) => {
                    return Err(Status::invalid_argument("only Observe and Close may follow Open and Past"));
                }
            }
        }
    }

    /// Status for a stream whose session another stream took over or the worker ended.
    fn cut_off(&self) -> Status {
        match self.sessions.failure() {
            Some(why) => PolicyError::Gone { why: why.to_owned() }.into(),
            None => taken_over(),
        }
    }

    async fn opening(&self, stream: &mut Streaming<SessionRequest>) -> Result<SessionOpening, Status> {
        match next_event(stream).await? {
            Some(session_request::Event::Open(open)) => known_grammar(SessionOpening::try_from(open)?),
            _ => Err(Status::invalid_argument("the first message of a session must be Open")),
        }
    }

    fn opened(&self) -> Opened {
        Opened {
            worker_id: self.worker.to_string(),
            policy_kind: self.policy.kind().as_str().to_owned(),
            wants_hints: self.policy.wants_hints(),
        }
    }

    /// Resumes the session where it was left, or opens one and rebuilds its past.
    async fn resume_or_open(
        &self,
        stream: &mut Streaming<SessionRequest>,
        slot: &SessionSlot,
        opening: &SessionOpening,
    ) -> Result<(), Status> {
        let mut acting = slot.life().acting.lock().await;
        let steps = opening.past_steps;
        let goes_on = |acting: &ActingSession| {
            acting.steps == steps || (acting.steps == steps + 1 && slot.replied(steps).is_some())
        };
        if acting.as_ref().is_some_and(goes_on) {
            for step in 0..steps {
                next_past_step(stream, step, steps).await?;
            }
            return Ok(());
        }
        // The old session is dropped first, because the new one may need its capacity.
        *acting = None;
        slot.forget();
        let mut session = self.policy.open(opening).await?;
        for step in 0..steps {
            session.rebuild_step(next_past_step(stream, step, steps).await?).await?;
        }
        *acting = Some(ActingSession { session, steps });
        if steps > 0 {
            let trajectory_id = &opening.ancestry.trajectory_id;
            let worker = self.worker.as_str();
            SessionRebuilt { trajectory_id, worker, steps }.emit();
        }
        Ok(())
    }

    /// The reply to an observation; a repeated observation gets the reply that was given already.
    async fn reply(
        &self,
        slot: &SessionSlot,
        opening: &SessionOpening,
        observe: Observe,
    ) -> Result<Acted, Status> {
        let began = Instant::now();
        let step = observe.step;
        let hint = observe.hint_json;
        // An earlier stream of this session may still compute this reply; the lock waits for it.
        let mut acting = slot.life().acting.lock().await;
        if let Some(acted) = slot.replied(step) {
            ReplyRepeated { trajectory_id: &opening.ancestry.trajectory_id, step }.emit();
            return Ok(acted);
        }
        let observation =
            observation_from(observe.observation.ok_or(WireError::Missing { key: "observe.observation" })?)?;
        let last_outcome = observe.last_outcome.map(outcome_from).transpose()?;
        let turn = PolicyInput {
            ancestry: &opening.ancestry,
            session: &opening.session,
            goal: &opening.goal,
            step,
            observation: &observation,
            last_outcome: last_outcome.as_ref(),
            hint_json: hint.as_deref(),
        };
        let ActingSession { session, steps } = acting.as_mut().ok_or_else(|| self.cut_off())?;
        let answer = tokio::select! {
            answer = session.act(turn) => answer,
            () = slot.life().ended() => return Err(self.cut_off()),
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(why) => {
                // The policy has ended it, but may open another: a stream that comes back must not
                // find this one.
                if matches!(why, PolicyError::Gone { .. }) {
                    *acting = None;
                }
                return Err(why.into());
            }
        };
        *steps = step + 1;
        tokio::time::sleep(self.think.saturating_sub(began.elapsed())).await;
        let acted = self.acted(&opening.ancestry.trajectory_id, step, answer, began);
        slot.remember(&acted);
        Ok(acted)
    }

    fn acted(
        &self,
        trajectory_id: &Id<Trajectory>,
        step: u32,
        answer: PolicyOutput,
        began: Instant,
    ) -> Acted {
        match answer {
            PolicyOutput::ContextFull => Acted { step, context_full: true, ..Acted::default() },
            PolicyOutput::Reply(given) => {
                let (reply, mut trace) = *given;
                trace.engine.worker = self.worker.to_string();
                trace.engine.service_micros = began.elapsed().as_micros() as u64;
                ReplySent { trajectory_id, step, valid: reply.action.is_ok(), engine: &trace.engine }.emit();
                let reply = Some(reply_into(&reply));
                let trace = encode_trace(&trace);
                Acted { step, reply, trace, context_full: false }
            }
        }
    }
}

/// How a session ended: closed, left, or with this status.
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
    Status::aborted("another stream opened this session")
}

/// Reads one earlier step from the stream.
async fn next_past_step(
    stream: &mut Streaming<SessionRequest>,
    step: u32,
    steps: u32,
) -> Result<PastStep, Status> {
    match next_event(stream).await? {
        Some(session_request::Event::Past(past)) if past.step == step => Ok(past_from(past)?),
        _ => Err(Status::invalid_argument(format!("expected Past with step {step} of {steps}"))),
    }
}

async fn next_event(
    stream: &mut Streaming<SessionRequest>,
) -> Result<Option<session_request::Event>, Status> {
    let message = tokio::time::timeout(SILENCE_MAX, stream.message())
        .await
        .map_err(|_| Status::deadline_exceeded("no message arrived for half an hour"))??;
    match message {
        None => Ok(None),
        Some(SessionRequest { event: Some(event) }) => Ok(Some(event)),
        Some(SessionRequest { event: None }) => Err(Status::invalid_argument("the message has no event")),
    }
}

/// Refuses a grammar that another release may know.
fn known_grammar(opening: SessionOpening) -> Result<SessionOpening, Status> {
    let name = &opening.session.grammar.name;
    if grammar::names().any(|known| known == name) {
        return Ok(opening);
    }
    let names: Vec<&str> = grammar::names().collect();
    let name: String = name.chars().take(60).collect();
    Err(Status::invalid_argument(format!(
        "open.session.grammar.name: {name:?} is not known here; use one of {}, and one release for all processes of a run",
        names.join(", ")
    )))
}

async fn send(replies: &ReplySender, event: session_response::Event) -> Result<(), Status> {
    let message = SessionResponse { event: Some(event) };
    replies.send(Ok(message)).await.map_err(|_| Status::cancelled("the client has left"))
}

impl From<SlotRefusal> for Status {
    fn from(none: SlotRefusal) -> Self {
        match none {
            SlotRefusal::Stale { current } => {
                Status::failed_precondition(format!("the trajectory runs under the newer token {current}"))
            }
            SlotRefusal::Full { sessions_max } => Status::resource_exhausted(format!(
                "all {sessions_max} sessions are in use; raise policy.sessions_max or add a policy worker"
            )),
        }
    }
}

impl From<PolicyError> for Status {
    /// Failures of the session itself are INTERNAL, since another try would fail the same way.
    /// Failures that another worker may not have are UNAVAILABLE.
    fn from(error: PolicyError) -> Self {
        let code = match &error {
            PolicyError::Full { .. } => Code::ResourceExhausted,
            PolicyError::Gone { .. } => Code::Unavailable,
            PolicyError::Settings { .. } | PolicyError::PastStep { .. } | PolicyError::OutOfOrder { .. } => {
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
        check(&Err(Status::cancelled("the client has left")), false, SessionEnd::Disconnected);
        check(
            &Err(PolicyError::Failed { step: 0, why: "NaN".into() }.into()),
            false,
            SessionEnd::PolicyFault,
        );
        let lost = PolicyError::Gone { why: "the device failed: ECC".into() };
        check(&Err(lost.into()), false, SessionEnd::WorkerLost);
    }
}
