//! Replays a recorded trajectory token by token on a checkpoint: reports where the tokens differ
//! and how far log-probs are apart.

use std::sync::Arc;

use furrow_policy::{ModelPolicy, Policy, PolicyError, PolicyInput, PolicyOutput, Session};
use furrow_records::{FoundTrajectory, LogprobGap};
use furrow_rollout::{Outcome, StepRecord, TokenTrace, TrajectoryRecord};
use furrow_wire::{PastStep, SessionOpening};
use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

/// The result of one trajectory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct TokenReplay {
    /// Id of the trajectory.
    pub trajectory_id: String,
    /// Number of steps with tokens.
    pub steps: usize,
    /// Number of tokens of their responses.
    pub tokens: usize,
    /// Number of steps with identical responses, ids and log-probs to the last bit.
    pub identical_steps: usize,
    pub first_difference: Option<TokenDifference>,
    /// Recorded log-prob minus the decode path's, over the tokens sampled again.
    pub decoded: Option<LogprobGap>,
    /// Recorded log-prob minus the prefill path's, over the tokens chosen for it.
    pub prefilled: Option<LogprobGap>,
    /// Whether the checkpoint's weights have the hash that the trajectory began with.
    pub same_weights: bool,
    /// Oldest and newest weights version among its tokens: one checkpoint cannot reproduce several.
    pub policy_versions: Option<(i32, i32)>,
}

/// The first place where a step differs from its record.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct TokenDifference {
    /// Index of the step.
    pub step: u32,
    /// Index in the response; `None` if the prompt differs.
    pub token: Option<usize>,
    /// What differs: `prompt`, `id`, `logprob` or `length`.
    pub what: &'static str,
    pub recorded: String,
    pub replayed: String,
}

/// Replays one trajectory. The prefill path recomputes the log-probs of a `share` of its sampled
/// tokens, chosen by `seed`.
pub(crate) async fn play(
    model: &Arc<ModelPolicy>,
    (record, steps): &FoundTrajectory,
    share: f64,
    seed: u64,
) -> Result<TokenReplay, PolicyError> {
    let mut player = TokenReplayer::new(model, record, steps);
    for at in 0..steps.len() {
        player.step(at).await?;
        player.score(at, share, seed).await?;
    }
    Ok(player.finish())
}

/// A replay in progress.
struct TokenReplayer<'a> {
    model: &'a Arc<ModelPolicy>,
    record: &'a TrajectoryRecord,
    steps: &'a [StepRecord],
    opening: SessionOpening,
    past: Vec<PastStep>,
    /// Kept while the replay matches the record.
    session: Option<Box<dyn Session>>,
    identical: usize,
    first: Option<TokenDifference>,
    decoded: Vec<f64>,
    prefilled: Vec<f64>,
}

impl<'a> TokenReplayer<'a> {
    fn new(model: &'a Arc<ModelPolicy>, record: &'a TrajectoryRecord, steps: &'a [StepRecord]) -> Self {
        let opening = SessionOpening {
            ancestry: record.ancestry.clone(),
            token: record.token,
            session: record.session.clone(),
            goal: record.ending.goal.clone(),
            past_steps: 0,
        };
        let past = (0..steps.len()).map(|at| past_step(steps, at)).collect();
        let decoded = Vec::new();
        let prefilled = Vec::new();
        Self {
            model,
            record,
            steps,
            opening,
            past,
            session: None,
            identical: 0,
            first: None,
            decoded,
            prefilled,
        }
    }

    /// Samples a step again, after the steps as they were recorded.
    async fn step(&mut self, at: usize) -> Result<(), PolicyError> {
        let step = &self.steps[at];
        let Some(recorded) = &step.trace.tokens else { return Ok(()) };
        let mut session = match self.session.take() {
            Some(session) => session,
            None => self.rebuild_session(at).await?,
        };
        let last_outcome = last_outcome(self.steps, at);
        let turn = PolicyInput {
            ancestry: &self.opening.ancestry,
            session: &self.opening.session,
            goal: &self.opening.goal,
            step: step.step,
            observation: &step.observation,
            last_outcome: last_outcome.as_ref(),
            hint_json: None,
        };
        let parting = match session.act(turn).await? {
            PolicyOutput::ContextFull => Some(TokenDifference {
                step: step.step,
                token: None,
                what: "length",
                recorded: "a reply".into(),
                replayed: "the context is full".into(),
            }),
            PolicyOutput::Reply(given) => {
                let replayed = given.1.tokens.as_ref();
                replayed.and_then(|replayed| self.compare(step.step, recorded, replayed))
            }
        };
        match parting {
            None => {
                self.identical += 1;
                self.session = Some(session);
            }
            Some(parting) => drop(self.first.get_or_insert(parting)),
        }
        Ok(())
    }

    /// A session rebuilt from the recorded earlier steps.
    async fn rebuild_session(&self, at: usize) -> Result<Box<dyn Session>, PolicyError> {
        let opening = SessionOpening { past_steps: at as u32, ..self.opening.clone() };
        let mut session = self.model.open(&opening).await?;
        for past in &self.past[..at] {
            session.rebuild_step(past.clone()).await?;
        }
        Ok(session)
    }

    /// The first difference of a step; also collects the gaps of the tokens before it.
    fn compare(
        &mut self,
        step: u32,
        recorded: &TokenTrace,
        replayed: &TokenTrace,
    ) -> Option<TokenDifference> {
        if recorded.prompt_hash != replayed.prompt_hash {
            let hex = |hash: &[u8; 16]| hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            let then = hex(&recorded.prompt_hash);
            let now = hex(&replayed.prompt_hash);
            return Some(TokenDifference {
                step,
                token: None,
                what: "prompt",
                recorded: then,
                replayed: now,
            });
        }
        let pairs = recorded.response_token_ids.iter().zip(&replayed.response_token_ids).enumerate();
        let mut found = None;
        for (at, (then, now)) in pairs {
            let part = |what, recorded: String, replayed: String| TokenDifference {
                step,
                token: Some(at),
                what,
                recorded,
                replayed,
            };
            if then != now {
                found.get_or_insert(part("id", then.to_string(), now.to_string()));
                break;
            }
            let then = logprob(recorded, at);
            let now = logprob(replayed, at);
            if let (Some(then), Some(now)) = (then, now) {
                self.decoded.push(f64::from(then) - f64::from(now));
            }
            if then.map(f32::to_bits) != now.map(f32::to_bits) {
                found.get_or_insert(part("logprob", format!("{then:?}"), format!("{now:?}")));
            }
        }
        let then = recorded.response_token_ids.len();
        let now = replayed.response_token_ids.len();
        if found.is_none() && then != now {
            let recorded = then.to_string();
            let replayed = now.to_string();
            found = Some(TokenDifference {
                step,
                token: Some(then.min(now)),
                what: "length",
                recorded,
                replayed,
            });
        }
        found
    }

    /// Recomputes the log-probs of some tokens of a step by the prefill path.
    async fn score(&mut self, at: usize, share: f64, seed: u64) -> Result<(), PolicyError> {
        let Some(tokens) = &self.steps[at].trace.tokens else { return Ok(()) };
        let mut chance = ChaCha12Rng::seed_from_u64(seed);
        chance.set_stream(at as u64);
        let sampled = (0..tokens.response_token_ids.len()).filter(|index| logprob(tokens, *index).is_some());
        let indices: Vec<usize> = sampled.filter(|_| chance.random::<f64>() < share).collect();
        if indices.is_empty() {
            return Ok(());
        }
        if self.model.sessions_max() == Some(1) {
            // Scoring needs the only session; the next step rebuilds this one.
            self.session = None;
        }
        let rescored = self.model.score(&self.opening, &self.past[..at], &self.past[at], &indices).await?;
        let recorded = indices.iter().filter_map(|index| logprob(tokens, *index));
        self.prefilled.extend(recorded.zip(rescored).map(|(then, now)| f64::from(then) - f64::from(now)));
        Ok(())
    }

    fn finish(self) -> TokenReplay {
        let traces = || self.steps.iter().filter_map(|step| step.trace.tokens.as_ref());
        TokenReplay {
            trajectory_id: self.record.ancestry.trajectory_id.to_string(),
            steps: traces().count(),
            tokens: traces().map(|tokens| tokens.response_token_ids.len()).sum(),
            identical_steps: self.identical,
            first_difference: self.first,
            decoded: LogprobGap::of(&self.decoded),
            prefilled: LogprobGap::of(&self.prefilled),
            same_weights: self.record.hashes.weights == self.model.hashes().weights,
            policy_versions: self.record.policy_versions,
        }
    }
}

fn logprob(tokens: &TokenTrace, at: usize) -> Option<f32> {
    tokens.logprobs.as_ref()?.get(at).copied().flatten()
}

fn last_outcome(steps: &[StepRecord], at: usize) -> Option<Outcome> {
    at.checked_sub(1).map(|before| steps[before].outcome.clone())
}

fn past_step(steps: &[StepRecord], at: usize) -> PastStep {
    let step = &steps[at];
    PastStep {
        step: step.step,
        screenshot: step.observation.screenshot.clone(),
        last_outcome: last_outcome(steps, at),
        reply: step.reply.clone(),
        trace: step.trace.clone(),
    }
}
