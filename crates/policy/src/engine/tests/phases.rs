//! Random events over an engine, compared with a model that knows of a session only whether it has
//! a step and how many tokens it keeps.

use std::cell::RefCell;
use std::collections::BTreeSet;

use furrow_rollout::SamplingParams;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

use super::harness::{POISON, STOP, sim_settings};
use super::*;
use crate::engine::running::Stage;
use crate::engine::session::StateTier;
use crate::response::{PartialResponse, RandomStream};
use crate::sequence::TokenSegment;
use crate::sim::{SimBackend, SimWeights};

const TOKENS_MAX: u32 = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Removed,
    Idle,
    IdleOffloaded,
    Waiting,
    WaitingOffloaded,
    Rebuild,
    Extend,
    BeforeFork,
    OnFork,
}

use Phase::*;

/// What one iteration of the engine can make of a session that no caller ends: at most one
/// admission and one span. `phase.rs` lists the transitions one by one.
const ITERATION: [(Phase, Phase); 24] = [
    (Idle, Idle),
    (Idle, IdleOffloaded),
    (IdleOffloaded, IdleOffloaded),
    (Waiting, Waiting),
    (Waiting, WaitingOffloaded),
    (Waiting, Rebuild),
    (Waiting, Extend),
    (Waiting, BeforeFork),
    (Waiting, OnFork),
    (Waiting, Idle),
    (WaitingOffloaded, WaitingOffloaded),
    (WaitingOffloaded, Rebuild),
    (WaitingOffloaded, Extend),
    (WaitingOffloaded, BeforeFork),
    (WaitingOffloaded, OnFork),
    (WaitingOffloaded, Idle),
    (Rebuild, Rebuild),
    (Rebuild, Idle),
    (Extend, Extend),
    (Extend, Idle),
    (BeforeFork, BeforeFork),
    (BeforeFork, OnFork),
    (OnFork, OnFork),
    (OnFork, Idle),
];

#[derive(Debug, Clone)]
enum Event {
    Open,
    Step {
        session: usize,
        step: StepSpec,
    },
    Close(usize),
    /// The owner leaves without closing its session.
    Leave(usize),
    Weights,
    Iterate,
}

#[derive(Debug, Clone, Copy)]
struct StepSpec {
    kept: u32,
    /// Whether siblings may fork in the middle and at the end of its first tokens. Only an empty
    /// sequence has such points, as in conversations: pages are reserved for two snapshots.
    forks: bool,
    reply: Option<ReplySpec>,
}

#[derive(Debug, Clone, Copy)]
struct ReplySpec {
    prompt: u32,
    stays: bool,
    max_tokens: u32,
    is_poisoned: bool,
}

/// What the engine has to answer, and when.
#[derive(Debug, PartialEq)]
enum Expected {
    AtOnce,
    Later,
    Fault(EngineFault),
}

#[derive(Debug)]
struct ModelSession {
    id: SessionId,
    life: CancellationToken,
    is_open: bool,
    kept: u32,
    /// Whether kept tokens did not run, because the reply after them ended at once.
    has_spans: bool,
    /// Whether its last kept tokens belong to no chunk group yet.
    has_tail: bool,
    pending: Option<(StepSpec, oneshot::Receiver<Result<StepOutput, EngineFault>>)>,
}

struct Walk {
    engine: Engine,
    sessions: Vec<ModelSession>,
    version: i32,
    taken: BTreeSet<(Phase, Phase)>,
}

/// Tokens that depend on their number alone, so that sessions are siblings.
fn segment(len: u32, forks: bool) -> TokenSegment {
    let mut points = if forks { vec![len / 2, len] } else { Vec::new() };
    points.retain(|point| *point > 0);
    points.dedup();
    TokenSegment { ids: vec![len; len as usize], forks: points, ..TokenSegment::default() }
}

impl StepSpec {
    /// Its longest sequence after this many tokens.
    fn end(self, kept: u32) -> u32 {
        kept + self.kept + self.reply.map_or(0, |reply| reply.prompt + reply.max_tokens + 1)
    }

    fn kept(self) -> Vec<TokenSegment> {
        let segment = TokenSegment { ends: vec![self.kept], ..segment(self.kept, self.forks) };
        if self.kept > 0 { vec![segment] } else { Vec::new() }
    }

    fn ask(self) -> Option<Box<GenerationRequest>> {
        let ReplySpec { prompt, stays, max_tokens, .. } = self.reply?;
        let mut prompt = segment(prompt, self.forks && self.kept == 0);
        if let Some(last) = prompt.ids.last_mut().filter(|_| self.is_poisoned()) {
            *last = POISON;
        }
        let sampling = SamplingParams { max_tokens, ..SamplingParams::default() };
        let response = PartialResponse::new(&sampling, &RandomStream::of_chat(7), 0, STOP, None);
        Some(Box::new(GenerationRequest { prompt, keeps_reply: stays, response, tokens_max: max_tokens + 1 }))
    }

    fn is_poisoned(self) -> bool {
        self.reply.is_some_and(|reply| reply.is_poisoned && reply.prompt > 0 && reply.max_tokens > 0)
    }
}

impl ModelSession {
    fn expected(&self, step: StepSpec) -> Expected {
        if !self.is_open || self.pending.is_some() {
            return Expected::Fault(EngineFault::Gone);
        }
        let tokens = step.end(self.kept);
        if tokens > TOKENS_MAX {
            return Expected::Fault(EngineFault::TooLong { tokens, tokens_max: TOKENS_MAX });
        }
        let tail_runs = self.has_tail && step.kept == 0;
        let base_runs = self.has_spans || step.kept > 0;
        match step.reply {
            None if !base_runs => Expected::AtOnce,
            Some(ReplySpec { max_tokens: 0, .. }) => Expected::AtOnce,
            Some(ReplySpec { prompt: 0, stays, .. }) if !(tail_runs || stays && base_runs) => {
                Expected::Fault(EngineFault::NoPrompt)
            }
            None | Some(_) => Expected::Later,
        }
    }

    fn answered(&mut self, step: StepSpec, answer: Result<StepOutput, EngineFault>) {
        let is_at_once = self.expected(step) == Expected::AtOnce;
        match answer {
            Ok(output) => {
                self.has_spans = is_at_once && (self.has_spans || step.kept > 0);
                assert!(!step.is_poisoned());
                let stays = step.reply.is_some_and(|reply| reply.stays);
                let reply = output.columns.ids.len() as u32;
                assert_eq!(reply > 0, step.reply.is_some());
                self.kept += step.kept;
                self.kept += if stays { step.reply.map_or(0, |reply| reply.prompt) + reply } else { 0 };
                self.has_tail = stays || (self.has_tail && step.kept == 0);
            }
            Err(EngineFault::NotFinite { .. }) => {
                assert!(step.is_poisoned());
                self.is_open = false;
            }
            Err(fault) => panic!("{fault}"),
        }
    }
}

fn phase(session: Option<&EngineSession>) -> Phase {
    let is_offloaded = |state: &StateTier| matches!(state, StateTier::Host(_));
    match session {
        None => Removed,
        Some(EngineSession::Idle(session)) if is_offloaded(&session.state) => IdleOffloaded,
        Some(EngineSession::Idle(_)) => Idle,
        Some(EngineSession::Waiting(session)) if is_offloaded(&session.state) => WaitingOffloaded,
        Some(EngineSession::Waiting(_)) => Waiting,
        Some(EngineSession::Running(session)) => match session.stage() {
            Stage::Rebuild { .. } => Rebuild,
            Stage::Extend { .. } => Extend,
            Stage::BeforeFork { .. } => BeforeFork,
            Stage::OnFork { .. } => OnFork,
        },
    }
}

impl Walk {
    fn new(on_swap: OnSwap) -> Self {
        let swaps = SwapSettings { on_swap, old_versions_max: 1, ..SwapSettings::default() };
        let settings = EngineSettings { context_tokens_max: TOKENS_MAX, swaps, ..settings() };
        // A few states fit host memory, so that sessions also wait for capacity.
        let device = SimBackend::new(sim_settings(capacity()));
        let bytes = 4 * device.offloaded_bytes(pages_for(TOKENS_MAX) + PAGES_SPARE);
        let capacity = BackendCapacity { offload_bytes: bytes, ..capacity() };
        let device = SimBackend::new(sim_settings(capacity));
        let engine = Engine::new(Box::new(device), settings).unwrap();
        Self { engine, sessions: Vec::new(), version: 1, taken: BTreeSet::new() }
    }

    fn phases(&self) -> Vec<Phase> {
        self.sessions.iter().map(|session| phase(self.engine.sessions.get(session.id))).collect()
    }

    /// Removes the sessions whose owners have left from the model.
    fn sweep(&mut self) {
        for session in self.sessions.iter_mut().filter(|session| session.life.is_cancelled()) {
            session.is_open = false;
        }
    }

    fn apply(&mut self, event: &Event) {
        let before = self.phases();
        match event {
            Event::Open => self.open(),
            Event::Step { session, step } => self.step(*session, *step),
            Event::Close(index) => {
                if let Some(session) = self.pick(*index) {
                    session.is_open = false;
                    let id = session.id;
                    self.engine.apply(EngineEvent::Close(id));
                }
            }
            Event::Leave(index) => {
                if let Some(session) = self.pick(*index) {
                    session.life.cancel();
                }
            }
            Event::Weights => {
                self.version += 1;
                let (done, _) = oneshot::channel();
                let weights = SimWeights { text: self.version as u64, ..SimWeights::default() };
                let version = PolicyVersion(self.version);
                let new = NewWeights { version, vision: [0; 32], weights: Box::new(weights), done };
                self.engine.apply(EngineEvent::Weights(Box::new(new)));
            }
            Event::Iterate => {
                self.sweep();
                self.engine.step();
            }
        }
        self.check(&before, matches!(event, Event::Iterate));
    }

    fn pick(&mut self, index: usize) -> Option<&mut ModelSession> {
        let count = self.sessions.len().max(1);
        self.sessions.get_mut(index % count)
    }

    fn open(&mut self) {
        self.sweep();
        let id = SessionId(self.sessions.len() as u64);
        let life = CancellationToken::new();
        let (opened, mut answer) = oneshot::channel();
        let sessions_max = self.engine.sessions_max();
        let is_full = self.sessions.iter().filter(|session| session.is_open).count() >= sessions_max as usize;
        self.engine.apply(EngineEvent::Open { session: id, rebuilt: false, life: life.clone(), opened });
        let want = if is_full { Err(EngineFault::Full { sessions_max }) } else { Ok(()) };
        assert_eq!(answer.try_recv().unwrap(), want);
        self.sessions.push(ModelSession {
            id,
            life,
            is_open: !is_full,
            kept: 0,
            has_spans: false,
            has_tail: false,
            pending: None,
        });
    }

    fn step(&mut self, index: usize, step: StepSpec) {
        let count = self.sessions.len().max(1);
        let Some(session) = self.sessions.get_mut(index % count) else { return };
        let step = StepSpec { forks: step.forks && session.kept == 0, ..step };
        let (done, mut answer) = oneshot::channel();
        let kept = step.kept();
        let ask = step.ask();
        self.engine.apply(EngineEvent::Step { session: session.id, kept, ask, done });
        match session.expected(step) {
            Expected::Later => session.pending = Some((step, answer)),
            Expected::AtOnce => session.answered(step, answer.try_recv().unwrap()),
            Expected::Fault(fault) => {
                assert_eq!(answer.try_recv().unwrap().unwrap_err(), fault);
                session.is_open &= fault != EngineFault::NoPrompt;
            }
        }
    }

    /// Takes the answers and compares every session with the model.
    fn check(&mut self, before: &[Phase], iterated: bool) {
        for session in &mut self.sessions {
            let Some((step, mut answer)) = session.pending.take() else { continue };
            match answer.try_recv() {
                Ok(answer) => session.answered(step, answer),
                Err(oneshot::error::TryRecvError::Empty) => session.pending = Some((step, answer)),
                Err(oneshot::error::TryRecvError::Closed) => assert!(!session.is_open, "no answer"),
            }
        }
        let after = self.phases();
        for ((session, after), before) in self.sessions.iter().zip(&after).zip(before) {
            let is_at_rest = matches!(after, Idle | IdleOffloaded);
            assert_eq!(*after != Removed, session.is_open, "{session:?} is {after:?}");
            assert_eq!(is_at_rest, session.is_open && session.pending.is_none(), "{session:?} is {after:?}");
            if iterated && *before != Removed && *after != Removed {
                assert!(ITERATION.contains(&(*before, *after)), "{session:?} was {before:?}, is {after:?}");
                self.taken.insert((*before, *after));
            }
        }
        self.check_table();
    }

    /// What the types do not say of the engine's own sessions.
    fn check_table(&self) {
        let sessions = &self.engine.sessions;
        let mut waiting: Vec<(u64, SessionId)> = Vec::new();
        for model in self.sessions.iter().filter(|session| session.is_open) {
            match sessions.get(model.id) {
                Some(EngineSession::Waiting(session)) => waiting.push((session.step.since, model.id)),
                Some(EngineSession::Running(session)) => {
                    assert!(session.active().sequence.next().is_some(), "{model:?} has no span to run");
                    assert!(!session.has_run_kept(), "{model:?} is still before its fork");
                }
                Some(EngineSession::Idle(session)) => {
                    assert_eq!(session.core.base.len(), model.kept, "{model:?}");
                    assert_eq!(session.core.base.next().is_some(), model.has_spans, "{model:?}");
                }
                None => panic!("{model:?} is removed"),
            }
        }
        waiting.sort_unstable();
        let waiting: Vec<SessionId> = waiting.into_iter().map(|(_, id)| id).collect();
        assert_eq!(sessions.queue().collect::<Vec<_>>(), waiting, "the queue is in order of arrival");
    }

    /// Lets every step end, closes all sessions and checks that nothing is left.
    fn end(mut self) -> BTreeSet<(Phase, Phase)> {
        for _ in 0..2000 {
            if self.sessions.iter().all(|session| session.pending.is_none()) {
                break;
            }
            self.apply(&Event::Iterate);
        }
        assert!(self.sessions.iter().all(|session| session.pending.is_none()), "a step waits forever");
        (0..self.sessions.len()).for_each(|index| self.apply(&Event::Close(index)));
        assert!(self.engine.sessions.is_empty());
        self.engine.assert_empty();
        self.taken
    }
}

fn event() -> impl Strategy<Value = Event> {
    let reply = (0u32..20, any::<bool>(), 0u32..6, prop::bool::weighted(0.03)).prop_map(
        |(prompt, stays, max_tokens, is_poisoned)| ReplySpec { prompt, stays, max_tokens, is_poisoned },
    );
    let step = (prop_oneof![Just(0), 1u32..60], any::<bool>(), prop::option::weighted(0.8, reply))
        .prop_map(|(kept, forks, reply)| StepSpec { kept, forks, reply });
    prop_oneof![
        3 => Just(Event::Open),
        12 => (any::<usize>(), step).prop_map(|(session, step)| Event::Step { session, step }),
        1 => any::<usize>().prop_map(Event::Close),
        1 => any::<usize>().prop_map(Event::Leave),
        1 => Just(Event::Weights),
        16 => Just(Event::Iterate),
    ]
}

#[test]
fn random_events_take_the_transitions_of_the_table_and_every_step_is_answered() {
    let config = ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let swaps = prop_oneof![Just(OnSwap::Keep), Just(OnSwap::FinishOnOld)];
    let taken = RefCell::new(BTreeSet::new());
    let events = prop::collection::vec(event(), 1..200);
    let outcome = runner.run(&(swaps, events), |(on_swap, events)| {
        let mut walk = Walk::new(on_swap);
        events.iter().for_each(|event| walk.apply(event));
        taken.borrow_mut().extend(walk.end());
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    let never: Vec<_> = ITERATION.iter().filter(|pair| !taken.borrow().contains(pair)).collect();
    assert!(never.is_empty(), "these transitions never happened: {never:?}");
}
