//! A recorded trajectory played again token by token on a checkpoint: where the tokens part, and how far log-probs lie apart.

use std::sync::Arc;

use furrow_policy::{Answer, Model, Policy, PolicyError, Session, Turn};
use furrow_records::{Found, Gap};
use furrow_rollout::{Outcome, StepRecord, TokenTrace, TrajectoryRecord};
use furrow_wire::{Opening, PastStep};
use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

/// What became of a trajectory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Played {
    /// The trajectory.
    pub trajectory_id: String,
    /// Steps with tokens.
    pub steps: usize,
    /// Tokens of their responses.
    pub tokens: usize,
    /// Steps whose responses came out alike, ids and log-probs to the last bit.
    pub identical_steps: usize,
    /// The first thing that is not as it was.
    pub first_difference: Option<Parting>,
    /// Recorded log-prob minus the one of the decode path, over tokens that were drawn again.
    pub decoded: Option<Gap>,
    /// Recorded log-prob minus the one of the prefill path, over the tokens that were scored.
    pub prefilled: Option<Gap>,
    /// Whether the checkpoint's weights hash to what the trajectory began on.
    pub same_weights: bool,
    /// Versions of the weights among its tokens: more than one cannot come out alike on one checkpoint.
    pub policy_versions: Option<(i32, i32)>,
}

/// Where a step parted from its record.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Parting {
    /// The step.
    pub step: u32,
    /// Index in the response; `None`: the prompt differs already.
    pub token: Option<usize>,
    /// What differs: `prompt`, `id`, `logprob` or `length`.
    pub what: &'static str,
    /// As it was.
    pub recorded: String,
    /// As it is.
    pub replayed: String,
}

/// Plays one trajectory again. Of its sampled tokens a `share` is scored by the prefill path; which, the `seed` says.
pub async fn play(
    model: &Arc<Model>,
    (record, steps): &Found,
    share: f64,
    seed: u64,
) -> Result<Played, PolicyError> {
    let mut player = Player::new(model, record, steps);
    for at in 0..steps.len() {
        player.step(at).await?;
        player.score(at, share, seed).await?;
    }
    Ok(player.played())
}

/// A trajectory being played.
struct Player<'a> {
    model: &'a Arc<Model>,
    record: &'a TrajectoryRecord,
    steps: &'a [StepRecord],
    opening: Opening,
    past: Vec<PastStep>,
    /// As long as it went like its record.
    session: Option<Box<dyn Session>>,
    identical: usize,
    first: Option<Parting>,
    decoded: Vec<f64>,
    prefilled: Vec<f64>,
}

impl<'a> Player<'a> {
    fn new(model: &'a Arc<Model>, record: &'a TrajectoryRecord, steps: &'a [StepRecord]) -> Self {
        let opening = Opening {
            ancestry: record.ancestry.clone(),
            token: record.token,
            session: record.session.clone(),
            goal: record.ending.goal.clone(),
            past_steps: 0,
        };
        let past = (0..steps.len()).map(|at| past_step(steps, at)).collect();
        let (decoded, prefilled) = (Vec::new(), Vec::new());
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

    /// Has a step drawn again, behind the steps as they were recorded.
    async fn step(&mut self, at: usize) -> Result<(), PolicyError> {
        let step = &self.steps[at];
        let Some(recorded) = &step.trace.tokens else { return Ok(()) };
        let mut session = match self.session.take() {
            Some(session) => session,
            None => self.rebuilt(at).await?,
        };
        let last_outcome = last_outcome(self.steps, at);
        let turn = Turn {
            ancestry: &self.opening.ancestry,
            session: &self.opening.session,
            goal: &self.opening.goal,
            step: step.step,
            observation: &step.observation,
            last_outcome: last_outcome.as_ref(),
            hint_json: None,
        };
        let parting = match session.act(turn).await? {
            Answer::ContextFull => Some(Parting {
                step: step.step,
                token: None,
                what: "length",
                recorded: "a reply".into(),
                replayed: "the context is full".into(),
            }),
            Answer::Reply(given) => {
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

    /// A session that was told the steps before as they were recorded.
    async fn rebuilt(&self, at: usize) -> Result<Box<dyn Session>, PolicyError> {
        let opening = Opening { past_steps: at as u32, ..self.opening.clone() };
        let mut session = self.model.open(&opening).await?;
        for past in &self.past[..at] {
            session.recall(past.clone()).await?;
        }
        Ok(session)
    }

    /// The first difference of a step, and the gaps of the tokens before it.
    fn compare(&mut self, step: u32, recorded: &TokenTrace, replayed: &TokenTrace) -> Option<Parting> {
        if recorded.prompt_hash != replayed.prompt_hash {
            let hex = |hash: &[u8; 16]| hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            let (then, now) = (hex(&recorded.prompt_hash), hex(&replayed.prompt_hash));
            return Some(Parting { step, token: None, what: "prompt", recorded: then, replayed: now });
        }
        let pairs = recorded.response_token_ids.iter().zip(&replayed.response_token_ids).enumerate();
        let mut found = None;
        for (at, (then, now)) in pairs {
            let part = |what, recorded: String, replayed: String| Parting {
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
            let (then, now) = (logprob(recorded, at), logprob(replayed, at));
            if let (Some(then), Some(now)) = (then, now) {
                self.decoded.push(f64::from(then) - f64::from(now));
            }
            if then.map(f32::to_bits) != now.map(f32::to_bits) {
                found.get_or_insert(part("logprob", format!("{then:?}"), format!("{now:?}")));
            }
        }
        let (then, now) = (recorded.response_token_ids.len(), replayed.response_token_ids.len());
        if found.is_none() && then != now {
            let (recorded, replayed) = (then.to_string(), now.to_string());
            found = Some(Parting { step, token: Some(then.min(now)), what: "length", recorded, replayed });
        }
        found
    }

    /// Scores some tokens of a step by the prefill path.
    async fn score(&mut self, at: usize, share: f64, seed: u64) -> Result<(), PolicyError> {
        let Some(tokens) = &self.steps[at].trace.tokens else { return Ok(()) };
        let mut chance = ChaCha12Rng::seed_from_u64(seed);
        chance.set_stream(at as u64);
        let drawn = (0..tokens.response_token_ids.len()).filter(|place| logprob(tokens, *place).is_some());
        let places: Vec<usize> = drawn.filter(|_| chance.random::<f64>() < share).collect();
        if places.is_empty() {
            return Ok(());
        }
        if self.model.places() == Some(1) {
            // Scoring needs a session of its own; this one is built again at the next step.
            self.session = None;
        }
        let again = self.model.score(&self.opening, &self.past[..at], &self.past[at], &places).await?;
        let recorded = places.iter().filter_map(|place| logprob(tokens, *place));
        self.prefilled.extend(recorded.zip(again).map(|(then, now)| f64::from(then) - f64::from(now)));
        Ok(())
    }

    fn played(self) -> Played {
        let traces = || self.steps.iter().filter_map(|step| step.trace.tokens.as_ref());
        Played {
            trajectory_id: self.record.ancestry.trajectory_id.to_string(),
            steps: traces().count(),
            tokens: traces().map(|tokens| tokens.response_token_ids.len()).sum(),
            identical_steps: self.identical,
            first_difference: self.first,
            decoded: Gap::of(&self.decoded),
            prefilled: Gap::of(&self.prefilled),
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
