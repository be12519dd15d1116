//! The state that all sessions of a model share.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use furrow_model::backend::DeviceLost;
use furrow_model::config::VisionConfig;
use furrow_model::sample::AllowedTokens;
use furrow_model::template::ChatTemplate;
use furrow_model::vision::ResampleMode;
use furrow_rollout::{Grammar, PolicyVersion};
use furrow_wire::SessionOpening;
use tokio::sync::{mpsc, oneshot, watch};

use super::audit::DriftAudit;
use super::schema_cache::SchemaCache;
use crate::constrain::{Constraint, ConstraintError, ConstraintRules, TokenLexicon};
use crate::context::ImageDelimiters;
use crate::conversation::RebuildMode;
use crate::engine::{BrokenVersion, EngineEvent, OnSwap};
use crate::policy::PolicyError;

/// State that all sessions share.
pub(super) struct ModelShared {
    pub events: mpsc::Sender<EngineEvent>,
    /// Why the engine ended; `None` while it runs.
    pub ended: watch::Receiver<Option<EngineEnd>>,
    /// The version whose sessions the engine ended last, until other weights are in use.
    pub broken: watch::Receiver<Option<BrokenVersion>>,
    pub sessions: AtomicU64,
    pub template: ChatTemplate,
    pub delimiters: ImageDelimiters,
    pub vision: VisionConfig,
    pub resample: ResampleMode,
    pub rules: Option<ConstraintRules>,
    /// One automaton for each grammar and reply length of the sessions opened so far.
    pub constraints: Mutex<Vec<CompiledGrammar>>,
    /// Automata of the JSON schemas that chats ask for.
    pub schemas: Arc<SchemaCache>,
    /// Rows of the output head. Ids below can be sampled.
    pub vocabulary: usize,
    /// Rows of the embedding table. Ids below can be run.
    pub embedding_rows: usize,
    /// Ids that an unconstrained reply may sample; `None`: every id.
    pub allowed_ids: Option<Arc<AllowedTokens>>,
    pub context_tokens_max: u32,
    pub rebuild_mode: RebuildMode,
    pub on_swap: OnSwap,
    pub audit: Option<DriftAudit>,
    pub current_weights: Mutex<CurrentWeights>,
}

/// Why an engine does not run any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum EngineEnd {
    #[error(transparent)]
    Device(#[from] DeviceLost),
    #[error("its engine was stopped")]
    Stopped,
    /// The device took longer than `policy.engine.device_timeout_millis`; the engine's thread still
    /// waits for it.
    #[error(
        "the device has not answered for {millis} ms, longer than policy.engine.device_timeout_millis allows"
    )]
    Stalled { millis: u64 },
    /// The engine's thread panicked, which is a bug.
    #[error("its engine panicked; see the worker's log")]
    Panicked,
}

impl EngineEnd {
    pub(super) fn of(lost: Option<&DeviceLost>) -> Self {
        lost.map_or(Self::Stopped, |lost| lost.clone().into())
    }
}

/// The weights that new sessions run on.
#[derive(Debug, Clone)]
pub(super) struct CurrentWeights {
    pub version: PolicyVersion,
    pub weights_sha256: String,
}

pub(super) struct CompiledGrammar {
    grammar: Grammar,
    max_tokens: u32,
    constraint: Arc<Constraint>,
}

/// How many automata are kept. A worker serves one job at a time, and a job has one grammar.
const CONSTRAINTS_MAX: usize = 8;

impl ModelShared {
    pub(super) fn current_weights(&self) -> CurrentWeights {
        self.current_weights.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) async fn send_event(&self, event: EngineEvent) -> Result<(), PolicyError> {
        tokio::select! {
            sent = self.events.send(event) => sent.map_err(|_| self.engine_gone()),
            // Nothing empties the queue of an engine whose device has stalled.
            _ = self.ended() => Err(self.engine_gone()),
        }
    }

    /// The engine's answer to an event, or why there is none.
    pub(super) async fn answer<T>(&self, answer: oneshot::Receiver<T>) -> Result<T, PolicyError> {
        tokio::select! {
            // An engine that ends answers everything first.
            biased;
            answered = answer => answered.map_err(|_| self.engine_gone()),
            _ = self.ended() => Err(self.engine_gone()),
        }
    }

    /// Resolves with the reason when the engine has ended.
    pub(super) async fn ended(&self) -> EngineEnd {
        let mut ended = self.ended.clone();
        let ended = ended.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone());
        // A thread that ended without a reason has panicked.
        ended.unwrap_or(EngineEnd::Panicked)
    }

    /// The error for a session whose engine has ended.
    pub(super) fn engine_gone(&self) -> PolicyError {
        let ended = self.ended.borrow().clone();
        let why = ended.map_or_else(|| "its engine has stopped".to_owned(), |ended| ended.to_string());
        PolicyError::Gone { why }
    }

    /// The automaton for a session's grammar, compiled on first use.
    pub(super) async fn constraint_of(
        self: &Arc<Self>,
        opening: &SessionOpening,
    ) -> Result<Option<Arc<Constraint>>, PolicyError> {
        if self.rules.is_none() {
            return Ok(None);
        }
        let grammar = opening.session.grammar.clone();
        let max_tokens = opening.session.sampling.max_tokens;
        let shared = self.clone();
        let compiling = tokio::task::spawn_blocking(move || shared.constraint(&grammar, max_tokens));
        let compiled = compiling.await.map_err(|why| PolicyError::Settings { why: why.to_string() })?;
        compiled.map_err(|why| PolicyError::Settings { why: why.to_string() })
    }

    pub(super) fn constraint(
        &self,
        grammar: &Grammar,
        max_tokens: u32,
    ) -> Result<Option<Arc<Constraint>>, ConstraintError> {
        let Some(rules) = &self.rules else { return Ok(None) };
        // The lock is held while an automaton is compiled, because callers that wait most likely
        // need the same one.
        let mut kept = self.constraints.lock().unwrap_or_else(PoisonError::into_inner);
        let same =
            |compiled: &&CompiledGrammar| compiled.grammar == *grammar && compiled.max_tokens == max_tokens;
        if let Some(compiled) = kept.iter().find(same) {
            return Ok(Some(compiled.constraint.clone()));
        }
        let lexicon = TokenLexicon::of(self.template.tokenizer(), self.vocabulary, self.template.stop());
        let constraint = Constraint::compile(grammar, &lexicon, rules, max_tokens)?;
        kept.truncate(CONSTRAINTS_MAX - 1);
        kept.insert(
            0,
            CompiledGrammar { grammar: grammar.clone(), max_tokens, constraint: constraint.clone() },
        );
        Ok(Some(constraint))
    }

    /// Most tokens of a reply. An unconstrained reply that reaches the limit gets the stop id
    /// appended.
    pub(super) fn reply_tokens_max(&self, max_tokens: u32) -> u32 {
        max_tokens + u32::from(self.rules.is_none())
    }
}
