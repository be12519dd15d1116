//! The engine without its thread: the caller runs one iteration after another, on a device and a
//! clock of its own.
//!
//! This is all that other crates see of the engine. The scheduler simulator needs the engine
//! itself, because admission, planning, chunks, forks and offloading are what it measures. It needs
//! no tokens: an answer says only that a reply is complete.

use furrow_model::backend::Backend;
use furrow_rollout::{ContextPolicy, Id, ImageSpan, PolicyVersion, SamplingParams, TrajectoryAncestry};
use furrow_telemetry::{DeviceTime, TimeSource};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::context::{PromptTurn, TurnImage};
use crate::conversation::{Conversation, RebuildMode};
use crate::engine::{
    Engine, EngineEvent, EngineFault, EngineSettings, GenerationRequest, SessionId, StepOutput, SwapSettings,
};
use crate::response::{PartialResponse, RandomStream};
pub use crate::sequence::{PositionedImage, TiledImage, TokenSegment};

/// How a stepped engine uses its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SteppedSettings {
    /// State slots of sessions.
    pub state_slots: u32,
    /// State slots of snapshots, in addition.
    pub snapshot_slots: u32,
    /// Tokens of a prefill chunk.
    pub chunk: u32,
    /// Rows of prefill beside the decode rows of one batch.
    pub prefill_tokens: u32,
    /// Most tokens of a session, its longest reply included.
    pub context_tokens_max: u32,
}

/// A step of a session: what to show, and how long a reply to sample.
#[derive(Debug, Clone, PartialEq)]
pub struct SteppedRequest {
    /// Segments to add to the kept tokens first.
    pub kept: Vec<TokenSegment>,
    /// Follows the kept tokens.
    pub prompt: TokenSegment,
    /// Whether prompt and reply stay after the kept tokens; otherwise they run on a fork that is
    /// dropped.
    pub keeps_reply: bool,
    /// Index of the step in its trajectory.
    pub step: u32,
    /// Tokens to sample, if the reply does not end by itself.
    pub sampled: u32,
    /// The id that ends a reply, and is appended to one of full length.
    pub stop: u32,
}

/// An open session, and the step that it waits for.
pub struct SteppedSession {
    id: SessionId,
    awaited: Option<oneshot::Receiver<Result<StepOutput, EngineFault>>>,
}

/// The engine of a policy worker, run by its caller.
pub struct SteppedEngine {
    engine: Engine,
    /// All sessions use the same random numbers.
    stream: RandomStream,
}

impl SteppedEngine {
    /// Creates an engine on a device and a clock.
    ///
    /// # Errors
    /// Says which size of the device is too small for these settings.
    pub fn new(
        device: Box<dyn Backend>,
        settings: SteppedSettings,
        time: TimeSource,
    ) -> Result<Self, String> {
        let SteppedSettings { state_slots, snapshot_slots, chunk, prefill_tokens, context_tokens_max } =
            settings;
        let settings = EngineSettings {
            state_slots,
            snapshot_slots,
            chunk,
            prefill_tokens,
            context_tokens_max,
            version: PolicyVersion(0),
            swaps: SwapSettings::default(),
        };
        let engine = Engine::with_clock(device, settings, time).map_err(|mismatch| mismatch.to_string())?;
        Ok(Self { engine, stream: stream() })
    }

    /// Opens a session. `id` must be new; `rebuilt` says whether its past follows from traces.
    ///
    /// # Errors
    /// Says why the engine takes no further session.
    pub fn open(&mut self, id: u64, rebuilt: bool) -> Result<SteppedSession, String> {
        let id = SessionId(id);
        let (opened, mut answer) = oneshot::channel();
        let life = CancellationToken::new();
        self.engine.apply(EngineEvent::Open { session: id, rebuilt, life, opened });
        match answer.try_recv() {
            Ok(Ok(())) => Ok(SteppedSession { id, awaited: None }),
            Ok(Err(fault)) => Err(fault.to_string()),
            Err(closed) => Err(closed.to_string()),
        }
    }

    /// Adds the past of a session to its kept tokens. The answer comes once it has run.
    pub fn rebuild(&mut self, session: &mut SteppedSession, past: Vec<TokenSegment>) {
        self.begin(session, past, None);
    }

    /// Begins a step. The answer comes with the end of its reply.
    pub fn request(&mut self, session: &mut SteppedSession, request: SteppedRequest) {
        let SteppedRequest { kept, prompt, keeps_reply, step, sampled, stop } = request;
        let sampling = SamplingParams { max_tokens: sampled, ..SamplingParams::default() };
        let ask = GenerationRequest {
            prompt,
            keeps_reply,
            response: PartialResponse::new(&sampling, &self.stream, step, stop, None),
            tokens_max: sampled + 1,
        };
        self.begin(session, kept, Some(Box::new(ask)));
    }

    fn begin(
        &mut self,
        session: &mut SteppedSession,
        kept: Vec<TokenSegment>,
        ask: Option<Box<GenerationRequest>>,
    ) {
        let (done, answer) = oneshot::channel();
        session.awaited = Some(answer);
        self.engine.apply(EngineEvent::Step { session: session.id, kept, ask, done });
    }

    /// Ends a session and frees what it has on the device.
    pub fn close(&mut self, session: SteppedSession) {
        let SteppedSession { id, awaited } = session;
        drop(awaited);
        self.engine.apply(EngineEvent::Close(id));
    }

    /// Whether no step waits.
    pub fn is_idle(&self) -> bool {
        self.engine.is_idle()
    }

    /// Runs one iteration: admits steps, runs a batch and answers the steps that it completes.
    pub fn step(&mut self) {
        self.engine.step();
    }

    /// How the device's time was used so far.
    pub fn device_time(&mut self) -> DeviceTime {
        self.engine.device_time()
    }

    /// States that were offloaded to host memory so far.
    pub fn offloaded(&self) -> u64 {
        self.engine.offloaded()
    }
}

impl SteppedSession {
    /// The answer to the session's step, once there is one: the engine's fault, if it ended the
    /// session.
    pub fn take_answer(&mut self) -> Option<Result<(), String>> {
        let answer = match self.awaited.as_mut()?.try_recv() {
            Err(oneshot::error::TryRecvError::Empty) => return None,
            Err(closed) => Err(closed.to_string()),
            Ok(answer) => answer.map(drop).map_err(|fault| fault.to_string()),
        };
        self.awaited = None;
        Some(answer)
    }
}

/// The random numbers of all sessions: on a device that samples by itself they have no effect.
fn stream() -> RandomStream {
    let name = "simulator";
    RandomStream::new(
        0,
        &TrajectoryAncestry {
            run_id: Id::new(name).unwrap_or_else(|_| unreachable!("a plain name")),
            group_id: Id::new(name).unwrap_or_else(|_| unreachable!("a plain name")),
            sample_index: 0,
            attempt: 0,
            trajectory_id: Id::new(name).unwrap_or_else(|_| unreachable!("a plain name")),
        },
    )
}

/// The segments that the model's policy passes to the engine, for tests: a simulated session must
/// pass the same.
#[doc(hidden)]
pub struct ConversationFixture {
    conversation: Conversation,
    step: u32,
}

/// What the policy passes to the engine for one turn.
#[doc(hidden)]
#[derive(Debug, PartialEq)]
pub struct ConversationTurn {
    pub kept: Vec<TokenSegment>,
    pub prompt: TokenSegment,
    pub keeps_reply: bool,
}

impl ConversationFixture {
    pub fn new(keep: ContextPolicy) -> Self {
        Self { conversation: Conversation::new(keep, RebuildMode::AtOnce), step: 0 }
    }

    /// Shows a turn with an image between two delimiters, before which instructions and task end,
    /// and commits a response to it.
    pub fn turn(&mut self, ids: &[u32], image: &PositionedImage, response: &[u32]) -> ConversationTurn {
        let PositionedImage { at, picture } = image;
        let span = ImageSpan {
            step: self.step,
            token_start: *at,
            token_len: picture.rows(),
            tiles_x: picture.grid.0,
            tiles_y: picture.grid.1,
            blob_sha256: picture.blob_sha256,
            rgb_sha256: picture.rgb_sha256,
        };
        let leaves = at - 1..at + picture.rows() + 1;
        let turn = PromptTurn { ids: ids.to_vec(), image: Some(TurnImage { span, leaves }) };
        let plan = self.conversation.plan_prompt(&turn, Some(picture.clone()), at - 1);
        self.conversation.commit_response(turn, response);
        self.step += 1;
        ConversationTurn { kept: plan.kept, prompt: plan.segment, keeps_reply: plan.keeps_reply }
    }
}
